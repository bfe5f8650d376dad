//! Why the mesh of a node does not start.

use crate::{mcp_connection::CallError, model::ModelSetupError};

/// Why the mesh of a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// A model cannot be set up.
    #[error("set up model {name:?}")]
    Model {
        /// Its name in the configuration.
        name: String,
        /// The cause.
        #[source]
        source: ModelSetupError,
    },
    /// An agent names a model that is not configured.
    #[error("agent {agent} uses model {model:?}, which is not configured")]
    UnknownModel {
        /// The agent.
        agent: String,
        /// What it names.
        model: String,
    },
    /// The HTTP client for peers outside of this mesh cannot be made.
    #[error("make the HTTP client for peers")]
    Http(#[source] reqwest::Error),
    /// A server without which this node must not start is not there.
    #[error("connect to the required MCP server {name:?}")]
    RequiredServer {
        /// Its name.
        name: String,
        /// The cause.
        #[source]
        source: CallError,
    },
    /// The actor system refused an actor.
    #[error("start the dispatcher")]
    Spawn(#[from] ractor::SpawnErr),
}

//! What an agent needs of a node and does not find there at the moment: an MCP server that is down.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::{AgentName, BootId, NodeId, Rejection, Timestamp, limits};

/// A node says which of its agents lack something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lack {
    /// The node.
    pub node: NodeId,
    /// This life of its process.
    pub boot: BootId,
    /// What each agent lacks, in words; those that are not named lack nothing.
    pub agents: BTreeMap<AgentName, String>,
}

/// What an agent lacks on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lacking {
    /// Since when.
    pub since: Timestamp,
    /// What, in words.
    pub what: String,
}

impl Lack {
    /// Checks the bounds.
    ///
    /// # Errors
    /// When it says too much.
    pub(crate) fn check(&self) -> Result<(), Rejection> {
        let too_long = self.agents.values().any(|what| what.len() > limits::MAX_LACKING_BYTES);
        let what = || "what an agent lacks".to_owned();
        if too_long {
            Err(Rejection::TooLarge { what: what(), limit: limits::MAX_LACKING_BYTES as u64 })
        } else {
            Ok(())
        }
    }
}

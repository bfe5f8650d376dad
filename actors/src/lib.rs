//! The supervision tree of a node: dispatcher, agents, task runs, MCP connections, delegations, models.
//!
//! ```text
//! Mesh ──▶ Dispatcher ─┬▶ Agent ─▶ TaskRun ─▶ Delegation      one per agent, leased task, outstanding delegation
//!                      ├▶ McpConnection                       one per server
//!                      ├▶ Push                                one, where push notifications are on
//!                      └▶ Triggers ─▶ Subscription, schedule  one; one per trigger that is this node's
//! ```
//! What a task does next is decided by a pure function of its journal (`decision`); the actors perform it and report what
//! came of it as words in the log. Nothing here knows how the log is kept, or how a caller is answered.
//!
//! Shutdown is start-up read backwards: [`Mesh::stop`] stops the agents with their runs, then the connections.

mod agent;
pub mod config;
mod decision;
mod delegation;
mod dispatcher;
pub mod egress;
mod errands;
mod error;
mod hand_over;
mod lacking;
mod logs;
mod mailbox;
pub mod mcp_connection;
pub mod model;
mod orphans;
mod outbox;
mod parked;
mod peers;
pub mod prompt;
mod push;
mod shared;
mod stored;
mod task_run;
mod thinking;
mod toolbox;
mod traits;
pub mod triggers;

use ractor::{Actor, ActorRef};
use std::{sync::Arc, time::Duration};
use towline_cluster::ClusterHandle;
use towline_core::{AgentName, AgentSpec, Interruption, Step, Task, TriggerSpec};

pub use config::{
    AgentConfig, McpServerConfig, McpTransport, MeshConfig, ModelConfig, ModelTimeouts, OnChange, PeerConfig, Provider,
    Secret,
};
pub use error::MeshError;
pub use hand_over::HandOver;
pub use mcp_connection::{McpHandle, McpServerStatus};
pub use peers::{Dialler, own_mesh, resolved};
pub use push::PushConfig;
pub use task_run::MAX_DEPTH;
pub use traits::Traits;

use dispatcher::{DispatcherActor, DispatcherMsg};
use mailbox::Mail;
use shared::Shared;

/// How long a node waits for a server without which it must not start.
const REQUIRED_SERVER_WITHIN: Duration = Duration::from_secs(20);

/// Longest time for everything to stop: a little more than the agents' runs and the connections have.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// How often a mesh that stops looks whether it has settled. A report that was on its way has been committed by then.
const SETTLED_POLL: Duration = Duration::from_millis(100);

/// This node's part of the mesh: its agents and what they use.
pub struct Mesh {
    dispatcher: ActorRef<Mail<DispatcherMsg>>,
    shared: Arc<Shared>,
}

impl Mesh {
    /// Starts the MCP connections, and the agents that the cluster places on this node. Nothing runs before the node is
    /// registered and its session is alive.
    ///
    /// # Errors
    /// When a model cannot be set up, or a required MCP server is not there.
    pub async fn start(config: MeshConfig, cluster: ClusterHandle) -> Result<Self, MeshError> {
        let shared = Arc::new(Shared::new(config, cluster)?);
        let (dispatcher, _) = Actor::spawn(None, DispatcherActor, Arc::clone(&shared)).await?;
        let mesh = Self { dispatcher, shared };
        if let Err(error) = mesh.await_required_servers().await {
            mesh.stop().await;
            return Err(error);
        }
        Ok(mesh)
    }

    /// What the cluster is told of the agents.
    pub fn agent_specs(config: &MeshConfig) -> Vec<AgentSpec> {
        config.agents.iter().map(AgentConfig::spec).collect()
    }

    /// Where the MCP connections stand, by name.
    pub fn mcp_servers(&self) -> Vec<McpServerStatus> {
        self.shared.servers().iter().map(McpHandle::status).collect()
    }

    /// The connection to an MCP server, by its name in the configuration.
    pub fn mcp_server(&self, name: &str) -> Option<McpHandle> {
        self.shared.server(name)
    }

    /// Whether an agent that this node declares must not be given a peer: it holds sensitive data, and a peer would bring text
    /// from outside and be a way out.
    pub fn keeps_peers_away(&self, agent: &AgentName) -> bool {
        let agents = &self.shared.config.agents;
        agents
            .iter()
            .any(|known| known.name == *agent && !known.allow_trifecta && known.traits.and(Traits::PEER).is_trifecta())
    }

    /// Whether text from outside must not come to an agent that this node declares.
    pub fn keeps_text_away(&self, agent: &AgentName) -> bool {
        self.shared.config.agents.iter().any(|known| known.name == *agent && known.must_stay_clean())
    }

    /// Whether this node has an MCP server of that name.
    pub fn has_server(&self, name: &str) -> bool {
        self.shared.config.servers.iter().any(|server| server.name == name)
    }

    /// What a trigger would tell its agent now: the content of its resource, where this node has its server.
    pub fn event_of(&self, spec: &TriggerSpec) -> impl Future<Output = Option<triggers::Event>> + Send + use<> {
        let (shared, spec) = (Arc::clone(&self.shared), spec.clone());
        async move { triggers::event_of(&shared, &spec).await }
    }

    /// What gives the tasks of this node to others; it holds no lock that this mesh is behind.
    pub fn hand_over(&self) -> HandOver {
        HandOver { dispatcher: self.dispatcher.clone(), shared: Arc::clone(&self.shared) }
    }

    /// Begins nothing new, and waits until nothing is under way that must not run twice, or the time is over: then this
    /// node can give up its leases and leave no doubt.
    pub async fn settle(&self, limit: Duration) {
        if self.dispatcher.cast(DispatcherMsg::Quiet.into()).is_err() {
            return;
        }
        let settled = async {
            // What was begun just before the word came is seen at the second look.
            loop {
                tokio::time::sleep(SETTLED_POLL).await;
                if !self.has_unrepeatable_steps() {
                    return;
                }
            }
        };
        if tokio::time::timeout(limit, settled).await.is_err() {
            tracing::warn!(?limit, "a call that must not run twice has not ended: its task will ask");
        }
    }

    fn has_unrepeatable_steps(&self) -> bool {
        let cluster = &self.shared.cluster;
        let in_doubt = |step: &Step| step.intent.when_interrupted() == Interruption::InDoubt;
        cluster.local(|state| state.tasks_of(cluster.node_id()).flat_map(Task::open_steps).any(in_doubt))
    }

    /// Stops everything, and waits for it.
    pub async fn stop(self) {
        if let Err(error) = self.dispatcher.stop_and_wait(None, Some(STOP_TIMEOUT)).await {
            tracing::warn!(%error, "dispatcher did not stop in time");
        }
    }

    async fn await_required_servers(&self) -> Result<(), MeshError> {
        for server in self.shared.config.servers.iter().filter(|server| server.required) {
            let Some(handle) = self.shared.server(&server.name) else { continue };
            handle
                .ready(REQUIRED_SERVER_WITHIN)
                .await
                .map_err(|source| MeshError::RequiredServer { name: server.name.clone(), source })?;
        }
        Ok(())
    }
}

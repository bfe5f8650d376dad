//! What all actors of a node use: the cluster, the configuration, models, MCP servers, permits.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use towline_cluster::ClusterHandle;
use towline_core::{NodeId, OnAdoption, Peer};

use crate::{
    config::{AgentConfig, MeshConfig},
    errands::Errands,
    error::MeshError,
    lacking::Lacks,
    mcp_connection::McpHandle,
    model::{self, ModelProvider},
    parked::Parked,
    peers::{Cards, Dialler},
    toolbox::{Delegate, Readable, Toolbox, agent_name, distinct},
    traits::Traits,
};

/// What all actors of a node use.
pub(crate) struct Shared {
    /// The way into the cluster.
    pub cluster: ClusterHandle,
    /// What this node is told to run.
    pub config: MeshConfig,
    /// Models by the name that agents use.
    pub models: BTreeMap<String, Model>,
    /// Dials peers outside of this mesh.
    pub dialler: Dialler,
    /// What they said of themselves.
    pub cards: Cards,
    /// One permit for each task that works on this node.
    pub permits: Arc<Semaphore>,
    /// Delegations that are being dialled.
    pub dialled: Dialled,
    /// What is still to be said for runs that have gone.
    pub errands: Errands,
    /// Calls that wait for a person.
    pub parked: Parked,
    /// What the cluster was told of what agents lack.
    pub lacks: Lacks,
    servers: RwLock<BTreeMap<String, McpHandle>>,
}

/// A model that is set up.
pub(crate) struct Model {
    /// Who answers.
    pub provider: Arc<dyn ModelProvider>,
    /// The name that the provider knows it by.
    pub name: String,
}

impl Shared {
    /// Sets up everything that needs no connection.
    ///
    /// # Errors
    /// When a model cannot be set up, or an agent uses one that is not there.
    pub(crate) fn new(config: MeshConfig, cluster: ClusterHandle) -> Result<Self, MeshError> {
        let mut models = BTreeMap::new();
        for (name, model) in &config.models {
            let provider = model::provider(model).map_err(|source| MeshError::Model { name: name.clone(), source })?;
            models.insert(name.clone(), Model { provider, name: model.model.clone() });
        }
        if let Some(agent) = config.agents.iter().find(|agent| !models.contains_key(&agent.model)) {
            return Err(MeshError::UnknownModel { agent: agent.name.to_string(), model: agent.model.clone() });
        }
        let dialler = Dialler::new().map_err(MeshError::Http)?;
        let permits = Arc::new(Semaphore::new(config.permits.max(1) as usize));
        Ok(Self {
            cluster,
            config,
            models,
            dialler,
            cards: Cards::default(),
            permits,
            dialled: Dialled::default(),
            errands: Errands::default(),
            parked: Parked::default(),
            lacks: Lacks::default(),
            servers: RwLock::default(),
        })
    }

    /// Puts a connection in the place of the one with the same name.
    pub(crate) fn set_server(&self, handle: McpHandle) {
        let mut servers = self.servers.write().unwrap_or_else(PoisonError::into_inner);
        servers.insert(handle.name().to_owned(), handle);
    }

    /// The connection to a server.
    pub(crate) fn server(&self, name: &str) -> Option<McpHandle> {
        self.servers.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// All connections.
    pub(crate) fn servers(&self) -> Vec<McpHandle> {
        self.servers.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Waits for the first listing of the agent's servers, within the bounds of that: a task that comes just after the start of
    /// its node is to see the tools that it has a moment later. One that is down is not waited for: it shows what it listed
    /// last, and its calls say why they fail.
    pub(crate) async fn await_servers(&self, agent: &AgentConfig) {
        let servers = self.servers_of(agent);
        futures::future::join_all(servers.iter().map(McpHandle::first_listing)).await;
    }

    /// What an agent may call at this moment.
    pub(crate) fn toolbox(&self, agent: &AgentConfig) -> Toolbox {
        let tools = self
            .servers_of(agent)
            .into_iter()
            .flat_map(|server| server.tools())
            .filter(|tool| agent.tools.iter().any(|glob| glob_match::glob_match(glob, &tool.qualified)));
        let tools = distinct(tools);
        let readable =
            self.servers().into_iter().filter(|server| may_read(agent, server.name()) && server.has_resources());
        let readable = Readable::of(readable.map(|server| (server.name().to_owned(), server.resources())));
        let instructions = self.servers_of(agent).into_iter().filter_map(|server| {
            let is_used = tools.values().any(|tool| tool.server == server.name())
                || readable.servers.iter().any(|readable| readable == server.name());
            Some((server.name().to_owned(), server.instructions().filter(|_| is_used)?))
        });
        let instructions = instructions.collect();
        let missing = self.servers_of(agent).into_iter();
        let missing =
            Arc::new(missing.filter_map(|server| Some((server.name().to_owned(), server.unlisted()?))).collect());
        let delegates = self.delegates(agent);
        Toolbox { tools, readable, instructions, missing, delegates, ask_human: agent.ask_human, sent: BTreeMap::new() }
    }

    pub(crate) fn servers_of(&self, agent: &AgentConfig) -> Vec<McpHandle> {
        let is_used = |server: &McpHandle| may_offer(agent, server.name()) || may_read(agent, server.name());
        self.servers().into_iter().filter(is_used).collect()
    }

    fn delegates(&self, agent: &AgentConfig) -> BTreeMap<String, Delegate> {
        let mut names = agent.delegates.clone();
        names.extend(self.made_known_for(agent));
        names.into_iter().map(|name| (name.clone(), self.delegate(&name))).collect()
    }

    /// The peers and joined agents that an operator made known for this agent while the mesh runs. A peer would bring text
    /// from outside to an agent that must stay clean, so that one is not offered any.
    fn made_known_for(&self, agent: &AgentConfig) -> Vec<String> {
        self.cluster.local(|state| {
            let is_for = |peer: &&Peer| peer.for_agents.contains(&agent.name);
            let made_known = state.peers().filter(is_for);
            let offered = made_known.filter(|peer| {
                let would_be = agent.traits.and(Traits::PEER);
                agent.allow_trifecta || peer.joined.is_some() || !would_be.is_trifecta()
            });
            offered.map(|peer| peer.name.to_string()).collect()
        })
    }

    fn delegate(&self, name: &str) -> Delegate {
        let on_adoption = |idempotent| if idempotent { OnAdoption::Retry } else { OnAdoption::Ask };
        let of_peer = |url: &str, idempotent| {
            let description = format!("an agent at {url}");
            Delegate { description, own_mesh: false, on_adoption: on_adoption(idempotent) }
        };
        if let Some(peer) = self.config.peers.iter().find(|peer| peer.name == name) {
            return of_peer(peer.urls.first().map_or("", String::as_str), peer.idempotent);
        }
        let made_known = agent_name(name).and_then(|name| self.cluster.local(|state| state.peer(&name).cloned()));
        if let Some(peer) = made_known.filter(|peer| peer.joined.is_none()) {
            return of_peer(peer.urls.first().map_or("", String::as_str), peer.idempotent);
        }
        let declared =
            self.config.agents.iter().find(|agent| agent.name.as_str() == name).map(|agent| agent.description.clone());
        let description = agent_name(name)
            .and_then(|name| self.cluster.local(|state| state.agent(&name).map(|agent| agent.spec.description.clone())))
            .or(declared)
            .unwrap_or_default();
        // The message of a delegation has the same id on every attempt, and this mesh takes it once.
        Delegate { description, own_mesh: true, on_adoption: OnAdoption::Retry }
    }
}

/// Whether some glob of the agent can match a tool of this server.
fn may_offer(agent: &AgentConfig, server: &str) -> bool {
    agent.tools.iter().any(|glob| {
        let of_server = glob.split_once('.').map_or(glob.as_str(), |(server, _)| server);
        of_server.contains("**") || glob_match::glob_match(of_server, server)
    })
}

/// Whether the agent may read the resources of this server.
fn may_read(agent: &AgentConfig, server: &str) -> bool {
    agent.resources.iter().any(|glob| glob_match::glob_match(glob, server))
}

/// The right to work: one place of the node and, if the agent has a limit, one of the agent. Given back when dropped.
pub(crate) struct Permits {
    _agent: Option<OwnedSemaphorePermit>,
    _node: OwnedSemaphorePermit,
}

impl Permits {
    /// Waits for a place. The agent's comes first, so that a full agent does not hold places of the node.
    pub(crate) async fn acquire(agent: Option<Arc<Semaphore>>, node: Arc<Semaphore>) -> Option<Self> {
        let agent = match agent {
            Some(agent) => Some(agent.acquire_owned().await.ok()?),
            None => None,
        };
        Some(Self { _agent: agent, _node: node.acquire_owned().await.ok()? })
    }
}

/// Delegations that this node has dialled and that no lease shows yet, by node: without them, twenty delegations of one
/// moment would all go to the node that was the least loaded just before.
#[derive(Clone, Default)]
pub(crate) struct Dialled(Arc<Mutex<BTreeMap<NodeId, usize>>>);

impl Dialled {
    /// Chooses among nodes by load and counts the choice until the guard is dropped.
    pub(crate) fn choose(&self, loads: impl Iterator<Item = (NodeId, usize)>) -> Option<DialGuard> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (node, _) = loads.min_by_key(|(node, load)| (load + counts.get(node).copied().unwrap_or(0), *node))?;
        *counts.entry(node).or_default() += 1;
        Some(DialGuard { node, dialled: self.clone() })
    }
}

/// A delegation that is being dialled.
pub(crate) struct DialGuard {
    /// Where to.
    pub node: NodeId,
    dialled: Dialled,
}

impl Drop for DialGuard {
    fn drop(&mut self) {
        let mut counts = self.dialled.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.node) {
            *count = count.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delegations_of_one_moment_are_spread() {
        let dialled = Dialled::default();
        let loads = || [(NodeId(1), 1), (NodeId(2), 0), (NodeId(3), 0)].into_iter();
        let guards: Vec<DialGuard> = (0..5).filter_map(|_| dialled.choose(loads())).collect();
        let nodes: Vec<u64> = guards.iter().map(|guard| guard.node.0).collect();
        assert_eq!(nodes, [2, 3, 1, 2, 3]);
        drop(guards);
        assert_eq!(dialled.choose(loads()).map(|guard| guard.node), Some(NodeId(2)));
    }

    #[tokio::test]
    async fn a_full_agent_holds_no_place_of_the_node() {
        let (agent, node) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(2)));
        let held = Permits::acquire(Some(agent.clone()), node.clone()).await.unwrap();
        let second = Permits::acquire(Some(agent), node.clone());
        tokio::pin!(second);
        assert!(futures::poll!(&mut second).is_pending());
        assert_eq!(node.available_permits(), 1);
        drop(held);
        assert!(second.await.is_some());
    }
}

//! The part of the state that knows agents outside of this mesh.

use std::{collections::BTreeSet, sync::Arc};

use super::{State, done};
use crate::{Agent, AgentName, Applied, Node, Peer, Rejection, Stamp, limits::MAX_PEERS};

/// When another try is worth it after the list of peers was full: somebody has to remove one first.
const RETRY_AFTER_MS: u64 = 60_000;

impl State {
    /// The peers that were made known at run time, by name.
    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.peers.values().map(Arc::as_ref)
    }

    /// One of them.
    pub fn peer(&self, name: &AgentName) -> Option<&Peer> {
        self.peers.get(name).map(Arc::as_ref)
    }

    /// Whether a node can run tasks of an agent: its configuration declares it, or it is one that any node can dial.
    pub fn can_run(&self, node: &Node, agent: &AgentName) -> bool {
        can_run(&self.peers, node, agent)
    }

    pub(super) fn add_peer(&mut self, peer: Peer, stamp: Stamp) -> Result<Applied, Rejection> {
        peer.check()?;
        if let Some(known) = self.peers.get(&peer.name) {
            let same = **known == peer;
            return if same { Ok(done(Vec::new())) } else { Err(Rejection::NameInUse { name: peer.name }) };
        }
        if self.agents.contains_key(&peer.name) {
            return Err(Rejection::NameInUse { name: peer.name });
        }
        if self.peers.len() >= MAX_PEERS {
            let what = "the list of peers".to_owned();
            return Err(Rejection::Full { what, limit: MAX_PEERS as u64, retry_after_ms: RETRY_AFTER_MS });
        }
        let name = peer.name.clone();
        let spec = peer.spec();
        self.peers.insert(name.clone(), Arc::new(peer));
        let mut effects = Vec::new();
        if let Some(spec) = spec {
            self.agents.insert(name, Agent { spec, placed: BTreeSet::new() });
            self.place_agents(&mut effects);
            effects.extend(self.assign_pending(stamp));
        }
        Ok(done(effects))
    }

    pub(super) fn remove_peer(&mut self, name: AgentName) -> Result<Applied, Rejection> {
        let Some(peer) = self.peers.get(&name) else { return Err(Rejection::UnknownPeer { name }) };
        let is_agent = peer.joined.is_some();
        let open = if is_agent { self.open_tasks_of(&name) } else { 0 };
        if open > 0 {
            return Err(Rejection::AgentInUse { name, open });
        }
        self.peers.remove(&name);
        let mut effects = Vec::new();
        if is_agent {
            self.agents.remove(&name);
            effects.push(crate::Effect::PlacementChanged);
        }
        Ok(done(effects))
    }

    /// Whether a peer is an agent of the mesh.
    pub(super) fn is_joined(&self, name: &AgentName) -> bool {
        is_joined(&self.peers, name)
    }
}

pub(super) type Peers = std::collections::BTreeMap<AgentName, Arc<Peer>>;

pub(super) fn is_joined(peers: &Peers, name: &AgentName) -> bool {
    peers.get(name).is_some_and(|peer| peer.joined.is_some())
}

pub(super) fn can_run(peers: &Peers, node: &Node, agent: &AgentName) -> bool {
    node.declares.contains(agent) || is_joined(peers, agent)
}

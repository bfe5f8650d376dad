//! Agents outside of this mesh that an operator made known while it runs. What it takes to reach one is here; a secret never
//! is: only where each node finds it.

use serde::{Deserialize, Serialize};

use crate::{
    AgentName, AgentSpec, Labels, Placement, Rejection,
    limits::{MAX_PEER_TEXT_BYTES, MAX_PEER_URLS, MAX_URL_BYTES},
};

/// Where a node finds the token that a peer wants. Each node looks for itself, at each dial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerToken {
    /// The environment variable of that name, else the file of that name in the folder of secrets.
    Secret(String),
    /// This file.
    File(String),
}

/// A peer that takes part in the mesh as one of its agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedAgent {
    /// What it is good at, as its card says.
    pub description: String,
    /// Tags of its skill.
    pub tags: Vec<String>,
}

/// An agent outside of this mesh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// The name that agents delegate to. No agent of the mesh has it, unless this peer is that agent.
    pub name: AgentName,
    /// Where it is: the first is dialled as long as it answers.
    pub urls: Vec<String>,
    /// The token that it wants, if it wants one.
    pub token: Option<PeerToken>,
    /// Whether it takes the same message id twice as one message.
    pub idempotent: bool,
    /// The agents that may delegate to it, beside those whose configuration names it.
    pub for_agents: Vec<AgentName>,
    /// Set if it is an agent of the mesh.
    pub joined: Option<JoinedAgent>,
}

impl Peer {
    /// Refuses what is too much, or cannot be.
    pub(crate) fn check(&self) -> Result<(), Rejection> {
        let too_large = |what: &str, limit: usize| Rejection::TooLarge { what: what.to_owned(), limit: limit as u64 };
        if self.urls.is_empty() {
            return Err(Rejection::PeerWithoutUrl { name: self.name.clone() });
        }
        if self.urls.len() > MAX_PEER_URLS {
            return Err(too_large("number of URLs of the peer", MAX_PEER_URLS));
        }
        if self.urls.iter().any(|url| url.len() > MAX_URL_BYTES) {
            return Err(too_large("URL of the peer in bytes", MAX_URL_BYTES));
        }
        let token = match &self.token {
            Some(PeerToken::Secret(text) | PeerToken::File(text)) => text.len(),
            None => 0,
        };
        let joined = self
            .joined
            .as_ref()
            .map_or(0, |joined| joined.description.len() + joined.tags.iter().map(String::len).sum::<usize>());
        let names: usize = self.for_agents.iter().map(|name| name.as_str().len()).sum();
        if token + joined + names > MAX_PEER_TEXT_BYTES {
            return Err(too_large("description of the peer in bytes", MAX_PEER_TEXT_BYTES));
        }
        Ok(())
    }

    /// What the mesh shows of it as an agent: any node can dial it.
    pub(crate) fn spec(&self) -> Option<AgentSpec> {
        let joined = self.joined.as_ref()?;
        Some(AgentSpec {
            name: self.name.clone(),
            description: joined.description.clone(),
            placement: Placement::EveryNode,
            tags: joined.tags.clone(),
            queue: None,
            labels: Labels::new(),
        })
    }
}

//! Agents, and the nodes on which each is placed.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

use crate::{AgentName, Labels, NodeId};

/// On how many of the nodes that declare an agent it is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// On this many; on another when one of them is lost.
    Replicas(u32),
    /// On every node that declares it.
    EveryNode,
}

/// What the cluster knows of an agent. Its instruction, model and tools stay in the configuration of the nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentSpec {
    /// Unique in the cluster.
    pub name: AgentName,
    /// For its agent card, and for the model of an agent that may delegate to it.
    pub description: String,
    /// Where it runs.
    pub placement: Placement,
    /// Tags of its skill on the agent card.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Most of its tasks that have not ended; none means [`crate::limits::MAX_OPEN_TASKS_PER_AGENT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
    /// It runs only on nodes that have all of these.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
}

/// An agent, as the nodes declared it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// The latest declaration.
    pub spec: AgentSpec,
    /// Where it is placed. Some of these nodes may be down while no other can take their place.
    pub placed: BTreeSet<NodeId>,
}

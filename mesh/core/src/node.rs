//! Nodes, as every node of the cluster sees them.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

use crate::{AgentName, BootId, NodeCertificate, NodeId, NodeRole, Timestamp};

/// Where a node is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAddresses {
    /// Base URL of its public listener, such as `http://127.0.0.1:7420`.
    pub http: String,
    /// `host:port` of its peer listener.
    pub peer: String,
}

/// What operators call a node, and what an agent asks of the nodes that run it: values by name.
pub type Labels = BTreeMap<String, String>;

/// Whether a node can run tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeHealth {
    /// Enrolled, and not yet heard of.
    Enrolled,
    /// It registered and its session is kept alive.
    Up,
    /// Its session ended without a word.
    Lost,
}

/// A node that is emptied: it is given no tasks, and those that it runs move to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draining {
    /// Since when.
    pub since: Timestamp,
    /// How long a step that another owner would run again is waited for, in milliseconds.
    pub patience_ms: u64,
}

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Never reused.
    pub id: NodeId,
    /// A name for people.
    pub name: String,
    /// Voter, learner or worker.
    pub role: NodeRole,
    /// Where it is reached.
    pub addresses: NodeAddresses,
    /// Version of its binary.
    pub version: String,
    /// The life of its process that registered last.
    pub boot: Option<BootId>,
    /// Whether it can run tasks.
    pub health: NodeHealth,
    /// Since when.
    pub since: Timestamp,
    /// How many tasks it runs at the same time.
    pub capacity: u32,
    /// The agents that its configuration declares.
    pub declares: BTreeSet<AgentName>,
    /// It is removed as soon as its session has ended: until then it may still act.
    #[serde(default)]
    pub leaving: bool,
    /// Set while it is to be empty; it stays so over restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining: Option<Draining>,
    /// None where an earlier version enrolled it, until it says so itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<NodeCertificate>,
    /// Its labels; none where an earlier version registered it, which knows of no labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Labels>,
    /// Up to which [`crate::Level`] it knows the rules, as it said when it registered last.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub level: u32,
    /// Agents that lack something there at the moment.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub lacking: std::collections::BTreeMap<AgentName, crate::Lacking>,
}

pub(crate) fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Node {
    /// Whether it is up and stays.
    pub fn is_live(&self) -> bool {
        self.health == NodeHealth::Up && !self.leaving
    }

    /// Whether it is given tasks.
    pub fn takes_tasks(&self) -> bool {
        self.is_live() && self.draining.is_none()
    }

    /// Whether it holds the log, be it with a vote or without.
    pub fn keeps_log(&self) -> bool {
        match self.role {
            NodeRole::Voter | NodeRole::Learner => true,
            NodeRole::Worker => false,
        }
    }

    /// Whether it has all of these labels.
    pub fn has_labels(&self, wanted: &Labels) -> bool {
        let has =
            |(name, value): (&String, &String)| self.labels.as_ref().and_then(|labels| labels.get(name)) == Some(value);
        wanted.iter().all(has)
    }
}

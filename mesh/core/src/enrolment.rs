//! How a node becomes a member: a join token, good for one node and a limited time.

use serde::{Deserialize, Serialize};

use crate::{NodeAddresses, NodeId, Timestamp};

/// What a node is in the Raft group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeRole {
    /// Votes, and counts for the quorum.
    Voter,
    /// Receives the log, and does not vote.
    Learner,
}

/// A token that was made and not yet swept. Only the hash of its secret is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinToken {
    /// What the node becomes.
    pub role: NodeRole,
    /// After this it is refused.
    pub expires: Timestamp,
    /// Which request used it, and what id it got: the same request again gets the same id.
    pub used: Option<(uuid::Uuid, NodeId)>,
}

/// A node that asks to be a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolment {
    /// Hash of the token's secret, in hex.
    pub token_hash: String,
    /// Made by the joining node, the same on each try.
    pub request: uuid::Uuid,
    /// The node's name.
    pub name: String,
    /// Where it will be reached.
    pub addresses: NodeAddresses,
}

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
    /// Is fed by the others and keeps no log; for as long as it is a member.
    Worker,
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
    /// Its key. A node that asks again under the same key is the same node; an enrolment that an earlier version logged has
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<NodeKey>,
    /// Whether its version knows of workers and labels. One that an earlier version logged says nothing of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub knows_labels: bool,
}

/// The public key of a node, as the hash of it in hex. A node keeps its key for as long as it is a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeKey(pub String);

/// What the cluster knows of a node's certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCertificate {
    /// The key that it is over: a certificate over another one is not this node's, whoever signed it.
    pub key: NodeKey,
    /// When the one in use ends; not known before the node has said so.
    pub ends: Option<Timestamp>,
    /// Whether the node holds the key of the cluster's authority, and signs the certificates of others.
    #[serde(default)]
    pub signs: bool,
}

//! Who asks.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::{AgentName, NodeId};

/// Who stands behind a command. Made in one place at each door, then carried by every [`crate::Proposal`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Principal {
    /// The person or program that operates this cluster from the node's own loopback interface.
    Operator,
    /// A node of the cluster, speaking for itself: registrations, owner reports, lease expiry.
    Node(NodeId),
    /// An agent of this mesh that delegates. The principal on whose behalf it acts owns what it makes.
    Agent {
        /// The delegating agent.
        name: AgentName,
        /// The principal at the start of the chain.
        on_behalf_of: Box<Principal>,
    },
}

impl Principal {
    /// The principal that owns what this one creates: for an agent, the one at the start of its chain.
    pub fn owner(&self) -> &Principal {
        match self {
            Principal::Agent { on_behalf_of, .. } => on_behalf_of.owner(),
            Principal::Operator | Principal::Node(_) => self,
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Operator => f.write_str("operator"),
            Principal::Node(id) => write!(f, "node:{id}"),
            Principal::Agent { name, on_behalf_of } => write!(f, "agent:{name} for {on_behalf_of}"),
        }
    }
}

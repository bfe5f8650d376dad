//! Who asks, and what is whose.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::{AgentName, NodeId, PrincipalId};

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
    /// Somebody whom a door knows by a credential.
    Named {
        /// Who: what is made is owned by this id, whatever the role and the credential were.
        id: PrincipalId,
        /// What it may do.
        role: PrincipalRole,
    },
}

/// What somebody may do. Not to be confused with the [`crate::Role`] of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrincipalRole {
    /// Everything, the controls of the cluster included, and on whatever anybody owns.
    Operator,
    /// Talks to agents and manages its own work.
    User,
    /// Another agent: delegates work and follows it. What it says is outside input.
    Agent,
    /// Nothing.
    Anonymous,
}

impl PrincipalRole {
    /// All of them, the most powerful first.
    pub const ALL: [PrincipalRole; 4] =
        [PrincipalRole::Operator, PrincipalRole::User, PrincipalRole::Agent, PrincipalRole::Anonymous];

    /// As it is written in a configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            PrincipalRole::Operator => "operator",
            PrincipalRole::User => "user",
            PrincipalRole::Agent => "agent",
            PrincipalRole::Anonymous => "anonymous",
        }
    }
}

impl fmt::Display for PrincipalRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Principal {
    /// The principal that owns what this one creates: for an agent, the one at the start of its chain. Two that differ in
    /// nothing but their role are one owner: somebody who was made an operator, or is none any more, loses nothing.
    pub fn owner(&self) -> Principal {
        match self {
            Principal::Agent { on_behalf_of, .. } => on_behalf_of.owner(),
            Principal::Named { id, .. } => Principal::Named { id: id.clone(), role: PrincipalRole::User },
            Principal::Operator | Principal::Node(_) => self.clone(),
        }
    }

    /// Whether this principal may see and change what `owner` owns: its own, and the operator anything, also what nobody
    /// can speak for. An agent that delegates for the operator is not the operator.
    pub fn may_act_on(&self, owner: &Principal) -> bool {
        self.is_operator() || self.owner() == *owner
    }

    /// Whether this is an operator, and not somebody who acts on behalf of one.
    pub fn is_operator(&self) -> bool {
        self.role() == Some(PrincipalRole::Operator)
    }

    /// The role of somebody outside the mesh; its nodes and agents have none.
    pub fn role(&self) -> Option<PrincipalRole> {
        match self {
            Principal::Operator => Some(PrincipalRole::Operator),
            Principal::Named { role, .. } => Some(*role),
            Principal::Node(_) | Principal::Agent { .. } => None,
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Operator => f.write_str("operator"),
            Principal::Node(id) => write!(f, "node:{id}"),
            Principal::Agent { name, on_behalf_of } => write!(f, "agent:{name} for {on_behalf_of}"),
            Principal::Named { id, .. } => id.fmt(f),
        }
    }
}

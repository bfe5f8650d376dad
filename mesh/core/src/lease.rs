//! Who runs a task, and the stamp that orders everything.

use serde::{Deserialize, Serialize};

use crate::{BootId, NodeId};

/// Milliseconds since the Unix epoch, as the leader stamped them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(pub u64);

/// Where in the log a command stands, and when the leader put it there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Log index of the entry.
    pub index: u64,
    /// The leader's time; the state never lets it run backwards.
    pub at: Timestamp,
}

/// A fencing token: the log index of the entry that gave the lease. Later ones are greater, whoever led.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// The right to run a task. Every word of the owner carries the epoch; an old one is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The owner.
    pub node: NodeId,
    /// The life of the owner's process to which the lease was given.
    pub boot: BootId,
    /// The fencing token.
    pub epoch: Epoch,
    /// Number of the owner's last report under this epoch; a repeated report is recognised by it.
    pub reported: u64,
}

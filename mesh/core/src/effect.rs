//! What a command asks of the shell. Hints only: each can be lost, since the state says the same.

use serde::{Deserialize, Serialize};

use crate::{Lease, NodeId, TaskId};

/// One hint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// The owner named in the lease starts (or goes on with) the task.
    Start {
        /// The task.
        task: TaskId,
        /// Its new lease.
        lease: Lease,
    },
    /// The node stops working on the task: it ended, waits for a person, or moved.
    Stop {
        /// The task.
        task: TaskId,
        /// The node whose lease ended.
        node: NodeId,
    },
    /// The task has new events.
    Changed {
        /// The task.
        task: TaskId,
    },
    /// Some agent is placed on other nodes than before.
    PlacementChanged,
    /// Sessions of people were revoked.
    SessionsEnded,
    /// The task has other webhooks than before, or another node tells one of them.
    Webhook {
        /// The task.
        task: TaskId,
    },
    /// There are other triggers than before, or another node looks after one.
    Triggers,
}

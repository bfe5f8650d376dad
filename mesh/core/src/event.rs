//! Events of a task: what every stream of it shows, in the same order, on every node.

use serde::{Deserialize, Serialize};

use crate::{Metadata, Part, TaskStatus, Timestamp};

/// One event. Indexes of a task start at 1 and have no gap; the index is the task's generation after the event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Its index.
    pub index: u64,
    /// When it was committed.
    pub at: Timestamp,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum EventKind {
    /// The task was accepted: always event 1. A stream shows it as the task with its first message.
    Created,
    /// Its status changed, or another node took it over (then `metadata` says so and the state is the same).
    Status {
        /// The status from here on.
        status: TaskStatus,
        /// Such as `dev.towline/owner` after an adoption.
        metadata: Metadata,
    },
    /// A chunk of an artifact.
    Artifact {
        /// Which artifact.
        artifact_id: String,
        /// Its name.
        name: Option<String>,
        /// The chunk.
        parts: Vec<Part>,
        /// Whether the chunk extends the artifact; otherwise it replaces it.
        append: bool,
        /// Whether it is the last one.
        last_chunk: bool,
        /// Such as the attempt of the step that made it.
        metadata: Metadata,
    },
}

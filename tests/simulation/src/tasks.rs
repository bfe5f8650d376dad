//! A task as a node has it: the one place that knows where nodes keep those that have ended.

use std::sync::Arc;

use towline_cluster::ClusterHandle;
use towline_core::{State, Task, TaskId, TaskState};

/// A task as a node gives it to a reader; none if it does not.
#[expect(clippy::unused_async, reason = "where finished tasks are kept elsewhere, reading them takes time")]
pub async fn recall(cluster: &ClusterHandle, id: TaskId) -> Option<Arc<Task>> {
    cluster.local(|state| state.task(id).cloned()).map(Arc::new)
}

/// The state of a task, wherever its record is.
pub fn state_of(state: &State, id: TaskId) -> Option<TaskState> {
    state.task(id).map(|task| task.status.state)
}

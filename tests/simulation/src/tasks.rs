//! A task as a node has it: the one place that knows where nodes keep those that have ended.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use towline_cluster::ClusterHandle;
use towline_core::{State, Task, TaskId, TaskState};

/// Between two tries to read a record that is nowhere within reach: that is no lie, so it is asked for again.
const PAUSE: Duration = Duration::from_millis(50);

/// A task as a node gives it to a reader; none if it does not know one.
pub async fn recall(cluster: &ClusterHandle, id: TaskId) -> Option<Arc<Task>> {
    loop {
        match cluster.local_task(id).await {
            Ok(found) => return found,
            Err(_unavailable) => sleep(PAUSE).await,
        }
    }
}

/// The state of a task, wherever its record is.
pub fn state_of(state: &State, id: TaskId) -> Option<TaskState> {
    state.state_of(id)
}

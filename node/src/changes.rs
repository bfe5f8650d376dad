//! Says in the log of this node what has become of nodes, leases and peers, one line each, and counts what has become of tasks.
//!
//! It reads the feed of the cluster, so what it says is committed, and a node that was away says what it missed as far as the feed
//! is kept. Members and peers are said by every node; a lease is said by the node that gets or loses it.

use tokio_util::sync::CancellationToken;
use towline_a2a::convert::state_name;
use towline_cluster::{ClusterHandle, FeedGone};
use towline_core::{Happening, NodeChange, NodeId, TaskChange, TaskId, TaskNews};
use towline_trace::metrics::instruments::{TASK_ADOPTIONS, TASKS_ENDED};

/// Entries that are taken out of the ring at once.
const PAGE_ENTRIES: usize = 256;

/// Follows the feed from now on until it is told to stop.
pub(crate) async fn follow(cluster: ClusterHandle, stop: CancellationToken) {
    let mut changes = cluster.feed_changes();
    let mut after = match cluster.feed(u64::MAX, 0) {
        Ok(page) => page.applied,
        Err(gone) => gone.applied,
    };
    loop {
        changes.borrow_and_update();
        match cluster.feed(after, PAGE_ENTRIES) {
            Ok(page) => {
                let is_last = page.entries.len() < PAGE_ENTRIES;
                page.entries.iter().flat_map(|entry| &entry.happened).for_each(|happening| say(&cluster, happening));
                after = after.max(page.through);
                if !is_last {
                    continue;
                }
            }
            // What was passed over is in the feed of another node, or in the state.
            Err(FeedGone { oldest, .. }) => after = oldest,
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = stop.cancelled() => return,
        }
    }
}

fn say(cluster: &ClusterHandle, happening: &Happening) {
    match happening {
        Happening::Task(news) => of_task(cluster, news),
        Happening::Node { node, change } => of_node(cluster, *node, *change),
        Happening::PeerAdded { name } => tracing::info!(event = "peer.added", peer = %name, "peer is known"),
        Happening::PeerRemoved { name } => {
            tracing::info!(event = "peer.removed", peer = %name, "peer is known no more")
        }
        // What these are about has lines of its own where it happens.
        Happening::AgentsPlaced
        | Happening::SignIn(_)
        | Happening::LevelRaised { .. }
        | Happening::Trigger { .. }
        | Happening::Founded { .. } => {}
    }
}

fn of_node(cluster: &ClusterHandle, node: NodeId, change: NodeChange) {
    let name = cluster.local(|state| state.node(node).map(|node| node.name.clone())).unwrap_or_default();
    match change {
        NodeChange::Joined { role } => tracing::info!(event = "node.joined", %node, name, ?role, "node is a member"),
        NodeChange::Up => tracing::info!(event = "node.up", %node, name, "node is up"),
        NodeChange::Lost if node == cluster.node_id() => {
            tracing::info!(event = "node.lost", %node, name, "the session of this node has ended: its tasks go to others");
        }
        NodeChange::Lost => {
            tracing::warn!(event = "node.lost", %node, name, "the session of a node has ended: its tasks go to others");
        }
        NodeChange::Leaving => tracing::info!(event = "node.leaving", %node, name, "node leaves"),
        NodeChange::Removed => tracing::info!(event = "node.removed", %node, name, "node is a member no more"),
        NodeChange::Draining => tracing::info!(event = "node.draining", %node, name, "node is drained"),
        NodeChange::Undrained => tracing::info!(event = "node.undrained", %node, name, "node takes tasks again"),
        NodeChange::Role { role } => tracing::info!(event = "node.role", %node, name, ?role, "node has another role"),
    }
}

fn of_task(cluster: &ClusterHandle, news: &TaskNews) {
    let (task, agent, me) = (news.task, news.agent.as_str(), cluster.node_id());
    match &news.change {
        TaskChange::Status { state, .. } if state.is_terminal() => {
            TASKS_ENDED.one(&[agent, state_name(*state)]);
            let was_mine = cluster.local(|state| state.task(task).is_some_and(|task| task.ran_on.last() == Some(&me)));
            if was_mine {
                let state = state_name(*state);
                tracing::info!(event = "task.ended", %task, trace_id = trace(cluster, task), agent, state, "task has ended");
            }
        }
        TaskChange::Leased { node, epoch } if *node == me => {
            tracing::info!(event = "task.leased", %task, trace_id = trace(cluster, task), agent, epoch = epoch.0, "lease is taken");
        }
        TaskChange::Adopted { from, to, epoch } => {
            TASK_ADOPTIONS.one(&[agent]);
            if *to == me {
                let trace_id = trace(cluster, task);
                tracing::info!(event = "task.adopted", %task, trace_id, agent, %from, epoch = epoch.0, "task is adopted");
            }
        }
        TaskChange::Orphaned { node } if *node == me => {
            tracing::warn!(event = "task.orphaned", %task, trace_id = trace(cluster, task), agent, "lease is lost, and nobody takes the task yet");
        }
        TaskChange::Submitted | TaskChange::Status { .. } | TaskChange::Leased { .. } | TaskChange::Orphaned { .. } => {
        }
    }
}

fn trace(cluster: &ClusterHandle, task: TaskId) -> Option<String> {
    cluster.local(|state| state.task(task).map(|task| task.trace.trace_id_hex()))
}

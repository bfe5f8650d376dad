//! Tasks of peers outside of this mesh whose delegating task was canceled while it waited for its client. No run is there
//! then to tell the peer; the node that ran it last does, or the first one that could have.

use std::sync::Arc;
use towline_core::{
    EventKind, Handover, Intent, NodeHealth, NodeId, State, Step, Task, TaskId, TaskState, TraceContext,
};

use crate::{delegation, shared::Shared};

/// A peer's task that nobody wants any more.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Orphan {
    /// The configured peer.
    pub target: String,
    /// The peer's id of its task.
    pub peer_task: String,
    /// The span of the step that delegated.
    pub trace: TraceContext,
}

/// Tells the peers of a task that was canceled while it waited, if that is for this node to do.
pub(crate) fn cancel(shared: &Arc<Shared>, task: TaskId) {
    let node = shared.cluster.node_id();
    let orphans = shared.cluster.local(|state| state.task(task).map_or_else(Vec::new, |task| of(state, task, node)));
    for orphan in orphans {
        let errand = delegation::cancel_orphan(Arc::clone(shared), task, orphan);
        shared.errands.run("cancellation of a peer's task", errand);
    }
}

fn of(state: &State, task: &Task, node: NodeId) -> Vec<Orphan> {
    let waited_and_was_canceled = task.status.state == TaskState::Canceled && waited_before(task);
    if !waited_and_was_canceled || speaker(state, task) != Some(node) {
        return Vec::new();
    }
    task.journal.iter().filter(|step| step.ended.is_none() || was_sent(step)).filter_map(orphan).collect()
}

/// Whether the status before the last one was a wait for the client.
fn waited_before(task: &Task) -> bool {
    let mut states = task.events.iter().rev().filter_map(|event| match &event.kind {
        EventKind::Status { status, .. } => Some(status.state),
        EventKind::Created | EventKind::Artifact { .. } => None,
    });
    states.nth(1).is_some_and(TaskState::is_interrupted)
}

/// The node that speaks for a task without an owner: the last one that ran it, else the first that declares its agent.
fn speaker(state: &State, task: &Task) -> Option<NodeId> {
    let is_up = |id: &NodeId| state.node(*id).is_some_and(|node| node.health == NodeHealth::Up);
    let last = task.ran_on.last().copied().filter(is_up);
    last.or_else(|| {
        let declares = state.nodes().filter(|node| state.can_run(node, &task.agent)).map(|node| node.id);
        declares.filter(|id| is_up(id)).min()
    })
}

/// Whether the step sent something and did not wait for it.
pub(crate) fn was_sent(step: &Step) -> bool {
    matches!(step.intent, Intent::Delegate { handover: Handover::Send, .. })
}

/// What is to be told to the peer of a step, if it has one.
pub(crate) fn orphan(step: &Step) -> Option<Orphan> {
    match &step.intent {
        Intent::Delegate { target, own_mesh: false, peer_task: Some(peer_task), .. } => {
            Some(Orphan { target: target.clone(), peer_task: peer_task.clone(), trace: step.span })
        }
        Intent::Delegate { .. }
        | Intent::Model { .. }
        | Intent::Tool { .. }
        | Intent::Ask { .. }
        | Intent::Refused { .. } => None,
    }
}

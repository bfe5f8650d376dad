//! What somebody sees of another's task who was asked something about it. As long as the question is open that is the whole
//! task; once it is answered, where the task stands and nothing of what is said or made in it.

use std::collections::VecDeque;

use towline_a2a::convert::{self, Answer, TaskView};
use towline_core::{Event, EventKind, Metadata, Task, TaskStatus};

/// The task without what is said or made in it.
pub(super) fn bare(task: &Task) -> Task {
    let mut bare = Task::clone(task);
    bare.status.message = None;
    bare.history.clear();
    bare.artifacts.clear();
    bare.events.clear();
    // What it asks next, and whom, is in its journal.
    bare.journal.clear();
    bare.outside_input.clear();
    bare
}

/// The task as it stands, for the beginning of a stream.
pub(super) fn snapshot(task: &Task, view: TaskView) -> Answer {
    convert::snapshot(&bare(task), view)
}

/// Of so many events behind the first `skipped` those that say where the task stands, and the index of the last that was looked at.
pub(super) fn events(task: &Task, skipped: usize, most: usize) -> (VecDeque<(u64, Answer)>, Option<u64>) {
    let looked_at = || task.events.iter().skip(skipped).take(most);
    let shown = |event: &Event| Some((event.index, convert::event(task, &bare_event(event)?)));
    (looked_at().filter_map(shown).collect(), looked_at().next_back().map(|event| event.index))
}

fn bare_event(event: &Event) -> Option<Event> {
    match &event.kind {
        EventKind::Status { status, .. } => {
            let status = TaskStatus { state: status.state, message: None, at: status.at };
            let kind = EventKind::Status { status, metadata: Metadata::new() };
            Some(Event { index: event.index, at: event.at, kind })
        }
        EventKind::Created | EventKind::Artifact { .. } => None,
    }
}

//! How far the surveyor is, read from its task record: the journal names every delegation and what came of it.

use std::collections::BTreeSet;

use towline_core::{Intent, Outcome, Step, StepNo, Task, TaskState};

/// How many delegations stand where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Delegations {
    /// With an outcome.
    pub(crate) ended: usize,
    /// With an intent and no outcome.
    pub(crate) open: usize,
}

impl Delegations {
    /// Counts them in a journal.
    pub(crate) fn of(task: &Task) -> Self {
        let (ended, open): (Vec<_>, Vec<_>) = delegations(task).partition(|step| step.ended.is_some());
        Delegations { ended: ended.len(), open: open.len() }
    }
}

/// One delegation that ended since it was looked at last.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    /// What the reader was asked.
    pub(crate) asked: String,
    /// Its task, if it was seen.
    pub(crate) task: Option<String>,
    /// Whether it did not work.
    pub(crate) failed: bool,
}

/// What was told already.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    told: BTreeSet<StepNo>,
}

impl Progress {
    /// The delegations that ended since the last call, in the order of the journal.
    pub(crate) fn news(&mut self, task: &Task) -> Vec<Finished> {
        delegations(task)
            .filter(|step| step.ended.is_some())
            .filter(|step| self.told.insert(step.no))
            .map(finished)
            .collect()
    }
}

/// The tasks that the delegations made.
pub(crate) fn child_tasks(task: &Task) -> Vec<String> {
    delegations(task).filter_map(|step| finished(step).task).collect()
}

/// Whether the work is over or at rest.
pub(crate) fn has_ended(task: &Task) -> bool {
    match task.status.state {
        TaskState::Submitted | TaskState::Working => false,
        TaskState::InputRequired
        | TaskState::AuthRequired
        | TaskState::Completed
        | TaskState::Failed
        | TaskState::Canceled
        | TaskState::Rejected => true,
    }
}

fn delegations(task: &Task) -> impl Iterator<Item = &Step> {
    task.journal.iter().filter(|step| matches!(step.intent, Intent::Delegate { .. }))
}

fn finished(step: &Step) -> Finished {
    let (asked, task) = match &step.intent {
        Intent::Delegate { message, peer_task, .. } => (message.text(), peer_task.clone()),
        Intent::Model { .. } | Intent::Tool { .. } | Intent::Ask { .. } | Intent::Refused { .. } => {
            (String::new(), None)
        }
    };
    let failed = match step.ended.as_ref().map(|record| &record.outcome) {
        Some(Outcome::Returned { is_error, .. } | Outcome::Stored { is_error, .. }) => *is_error,
        Some(Outcome::Failed { .. }) => true,
        Some(Outcome::Answered(_)) | None => false,
    };
    Finished { asked, task, failed }
}

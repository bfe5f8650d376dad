//! Calls that wait for a person. A question ends the run that made the call, and with it the lease; the call itself stays
//! here, with its connection, until the person has answered and a run of the same task takes it up again. What is asked of
//! a call that nobody has any more is answered by nobody, and then by its own time.

use ractor::ActorRef;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use towline_core::{Outcome, StepNo, TaskId};

use crate::{
    mailbox::Mail,
    mcp_connection::{CallError, Question, ToolResult},
    task_run::TaskRunMsg,
};

/// Calls of one node that wait: each holds a place of its server.
const MAX_PARKED: usize = 256;

/// How long the result of a call is kept whose task has not been taken up again. The question itself ends before.
const KEPT_FOR: Duration = Duration::from_secs(3_600);

type Returned = Result<ToolResult, CallError>;

/// Where a call tells what happens, whoever has it at the moment; cheap to clone.
#[derive(Clone)]
pub(crate) struct Line(Arc<Mutex<Held>>);

struct Held {
    step: StepNo,
    attempt: u32,
    run: Option<ActorRef<Mail<TaskRunMsg>>>,
    question: Option<Question>,
    result: Option<Returned>,
}

impl Line {
    pub(crate) fn new(run: ActorRef<Mail<TaskRunMsg>>, step: StepNo, attempt: u32) -> Self {
        Self(Arc::new(Mutex::new(Held { step, attempt, run: Some(run), question: None, result: None })))
    }

    /// The call has ended.
    pub(crate) fn returned(&self, result: Returned) {
        let mut held = self.held();
        held.question = None;
        let message = TaskRunMsg::ToolReturned { step: held.step, attempt: held.attempt, result: result.clone() };
        held.result = Some(result);
        held.say(message);
    }

    /// The server asks something.
    pub(crate) fn asks(&self, question: Question) {
        let mut held = self.held();
        let (text, details) = (question.text.clone(), question.details.clone());
        held.question = Some(question);
        let message = TaskRunMsg::ToolAsks { step: held.step, attempt: held.attempt, text, details };
        held.say(message);
    }

    /// Something else is worth an event.
    pub(crate) fn says(&self, message: TaskRunMsg) {
        self.held().say(message);
    }

    /// Whether a question is open.
    pub(crate) fn is_asking(&self) -> bool {
        self.held().question.as_ref().is_some_and(|question| !question.is_over())
    }

    fn leave(&self) {
        self.held().run = None;
    }

    /// Another run has the call: it passes the person's answer on and hears what happened meanwhile.
    pub(crate) fn take(&self, run: ActorRef<Mail<TaskRunMsg>>, attempt: u32, answer: Option<String>) {
        let mut held = self.held();
        (held.run, held.attempt) = (Some(run), attempt);
        if let (Some(question), Some(answer)) = (held.question.take(), answer) {
            question.answer(answer);
        }
        if let Some(result) = held.result.clone() {
            let message = TaskRunMsg::ToolReturned { step: held.step, attempt, result };
            held.say(message);
        }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn say(&self, message: TaskRunMsg) {
        // A run that has stopped finds the result when the next one takes the call up.
        if let Some(run) = &self.run {
            let _ = run.cast(message.into());
        }
    }
}

/// A call that waits.
pub(crate) struct ParkedCall {
    pub cancel: CancellationToken,
    pub task: AbortOnDropHandle<Option<Outcome>>,
    pub line: Line,
    /// Since when it waits.
    pub since: Instant,
}

/// The calls of this node that wait for a person.
#[derive(Default)]
pub(crate) struct Parked(Mutex<BTreeMap<(TaskId, StepNo), ParkedCall>>);

impl Parked {
    /// Keeps a call whose run goes. One too many is canceled.
    pub(crate) fn park(&self, task: TaskId, step: StepNo, call: ParkedCall) {
        call.line.leave();
        let mut calls = self.calls();
        if calls.len() >= MAX_PARKED {
            tracing::warn!(%task, step = step.0, "too many calls wait for a person: this one is canceled");
            call.cancel.cancel();
            return;
        }
        calls.insert((task, step), call);
    }

    /// The calls of a task.
    pub(crate) fn take(&self, task: TaskId) -> Vec<(StepNo, ParkedCall)> {
        let mut calls = self.calls();
        let steps: Vec<_> = calls.keys().filter(|(of, _)| *of == task).copied().collect();
        steps.into_iter().filter_map(|key| Some((key.1, calls.remove(&key)?))).collect()
    }

    /// Cancels the calls of tasks that nobody comes back to.
    pub(crate) fn sweep(&self, is_wanted: impl Fn(TaskId) -> bool) {
        self.calls().retain(|(task, step), call| {
            let keep = call.since.elapsed() < KEPT_FOR && is_wanted(*task);
            if !keep {
                tracing::info!(%task, step = step.0, "a call that waited for a person is canceled: its task went on without it");
                call.cancel.cancel();
            }
            keep
        });
    }

    /// Cancels all.
    pub(crate) fn clear(&self) {
        let calls = std::mem::take(&mut *self.calls());
        calls.values().for_each(|call| call.cancel.cancel());
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, BTreeMap<(TaskId, StepNo), ParkedCall>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

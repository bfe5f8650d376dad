//! Steps whose effect may have happened: what a person decides about them, and what a former owner still tells.
//!
//! A verdict ends the doubt, or has the step run again. What a former owner tells is evidence for the one who decides and
//! nothing else: it is kept and shown, and it never becomes an outcome.

use serde::{Deserialize, Serialize};

use crate::{
    Doubt, Epoch, Intent, Message, MessageId, Metadata, NodeId, Outcome, Part, Principal, Step, StepNo, StepRecord,
    Task, TaskId, TaskState, Timestamp,
    limits::{MAX_LATE_RESULT_CHARS, MAX_LATE_RESULTS},
};

/// What a person says about a step in doubt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It happened, and this came of it.
    Done {
        /// What the model is told.
        result: String,
    },
    /// It is to run again, under the same key.
    Retry,
    /// It did not happen, or it counts as failed.
    Failed {
        /// Why: the model is told.
        reason: String,
    },
}

impl Verdict {
    /// One word for it.
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Done { .. } => "done",
            Verdict::Retry => "retry",
            Verdict::Failed { .. } => "failed",
        }
    }

    /// Whether it says that the step did not happen: then nothing behind it did either.
    pub(crate) fn denies(&self) -> bool {
        matches!(self, Verdict::Retry)
    }

    /// Reads an answer that begins with one of the words.
    pub fn parse(answer: &str) -> Option<Self> {
        let (word, rest) = answer.trim().split_once(char::is_whitespace).unwrap_or((answer.trim(), ""));
        let rest = rest.trim().to_owned();
        match word.to_ascii_lowercase().as_str() {
            "done" => Some(Verdict::Done { result: rest }),
            "retry" => Some(Verdict::Retry),
            "failed" => Some(Verdict::Failed { reason: rest }),
            _ => None,
        }
    }
}

/// How a doubt was settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolution {
    /// The request that settled it; the same one again changes nothing.
    pub request: uuid::Uuid,
    /// Who decided.
    pub by: Principal,
    /// What.
    pub verdict: Verdict,
    /// When.
    pub at: Timestamp,
}

/// The decision about a step, as it is asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Resolve {
    /// Made by the node that took the request.
    pub request: uuid::Uuid,
    /// The task.
    pub task: TaskId,
    /// The step; none means the only one in doubt.
    pub step: Option<StepNo>,
    /// The decision.
    pub verdict: Verdict,
    /// The span of the request: parent of the next turn's.
    pub trace: crate::TraceContext,
}

/// What a former owner tells of a step that it had begun.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LateReport {
    /// The task.
    pub task: TaskId,
    /// The fencing token of the lease that it held.
    pub epoch: Epoch,
    /// The step.
    pub step: StepNo,
    /// What came of it there.
    pub outcome: Outcome,
}

/// What a former owner told, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateResult {
    /// Who told it.
    pub node: NodeId,
    /// The fencing token of the lease that it had held.
    pub epoch: Epoch,
    /// The step.
    pub step: StepNo,
    /// When.
    pub at: Timestamp,
    /// Whether it says that the call failed.
    pub is_error: bool,
    /// What came of the step there; cut if it is long.
    pub text: String,
}

impl LateResult {
    pub(crate) fn new(node: NodeId, report: LateReport, at: Timestamp) -> Self {
        let (is_error, text) = match report.outcome {
            Outcome::Answered(answer) => (false, answer.text),
            Outcome::Returned { content, is_error } => (is_error, content),
            Outcome::Stored { blob, is_error } => (is_error, format!("{} bytes of text", blob.length)),
            Outcome::Failed { error_type, message } => (true, format!("{error_type}: {message}")),
        };
        let text = text.chars().take(MAX_LATE_RESULT_CHARS).collect();
        Self { node, epoch: report.epoch, step: report.step, at, is_error, text }
    }

    /// It in words, for the one who decides.
    pub fn describe(&self, node_name: &str) -> String {
        let how = if self.is_error { "it failed" } else { "it returned" };
        let told = if self.text.is_empty() { "nothing" } else { self.text.as_str() };
        format!(
            "the old owner reported: step {}: {how}: {told} (from node {node_name}, after its lease had ended; not applied)",
            self.step
        )
    }
}

impl Task {
    /// What former owners told of a step.
    pub fn late_results_of(&self, step: StepNo) -> impl Iterator<Item = &LateResult> {
        self.late_results.iter().filter(move |late| late.step == step)
    }

    pub(crate) fn numbers_in_doubt(&self) -> Vec<StepNo> {
        self.doubtful_steps().map(|step| step.no).collect()
    }

    /// Whether a late result of this lease and step is kept already.
    pub(crate) fn has_heard(&self, epoch: Epoch, step: StepNo) -> bool {
        self.late_results.iter().any(|late| late.epoch == epoch && late.step == step)
    }

    pub(crate) fn has_room_for_late_results(&self) -> bool {
        self.late_results.len() < MAX_LATE_RESULTS
    }

    /// Asks what was asked before, with a note below it.
    pub(crate) fn ask_again(&mut self, note: String, at: Timestamp) {
        let Some(mut question) = self.status.message.clone().filter(|_| self.has_room_for_events(1)) else { return };
        let id = format!("{}/asked/{}", self.id, self.generation + 1);
        question.message_id = MessageId::try_from(id).expect("a task id and a number are printable and short");
        question.parts.push(Part::text(note));
        self.set_status(at, TaskState::InputRequired, Some(question), Metadata::new());
    }
}

/// Whether a step's outcome is some server's or peer's, so that a former owner can know of it.
pub(crate) fn is_effect(step: &Step) -> bool {
    match &step.intent {
        Intent::Tool { .. } | Intent::Delegate { .. } => true,
        Intent::Model { .. } | Intent::Ask { .. } | Intent::Refused { .. } => false,
    }
}

/// Lets a verdict end a step, or have it run again.
pub(crate) fn settle(step: &mut Step, verdict: &Verdict, at: Timestamp) {
    let outcome = match verdict {
        Verdict::Retry => {
            step.doubt = Some(Doubt::Retry);
            return;
        }
        Verdict::Done { result } => Outcome::Returned { content: result.clone(), is_error: false },
        Verdict::Failed { reason } => Outcome::Failed { error_type: "in_doubt".to_owned(), message: reason.clone() },
    };
    step.ended = Some(StepRecord { outcome, at });
}

/// How many bytes of content a verdict adds to its task.
pub(crate) fn verdict_size(verdict: &Verdict) -> usize {
    match verdict {
        Verdict::Done { result: text } | Verdict::Failed { reason: text } => text.len(),
        Verdict::Retry => 0,
    }
}

/// The steps as a person reads them.
pub(crate) fn listed(steps: &[StepNo]) -> String {
    if steps.is_empty() {
        return "none".to_owned();
    }
    steps.iter().map(StepNo::to_string).collect::<Vec<_>>().join(", ")
}

/// An answer of a client's message, as the way over A2A carries it.
pub(crate) fn verdict_of(message: &Message) -> Option<Verdict> {
    Verdict::parse(&message.text())
}

//! What comes back of what was begun, and what it says in the journal.

use ractor::ActorCell;
use std::time::Duration;
use towline_core::{Intent, Metadata, ModelAnswer, Outcome, OwnerWord, Part, Step, StepNo, StepRecord};
use towline_trace::{KeyValue, names};

use super::{ANSWER, Phase, Running, TaskRunMsg, TaskRunState, Work, spans, tool_outcome};
use crate::{
    decision::{Next, with_distinct_ids},
    delegation::News,
    mcp_connection::{CallError, ToolResult},
    model::{MadeArtifact, ModelError},
    thinking::{Piece, Progress},
};

/// How often crashed delegations of one run are started again.
const MAX_DELEGATION_RESTARTS: u32 = 3;

/// Wait before a crashed delegation is started again, times the number of crashes.
const DELEGATION_RESTART_WAIT: Duration = Duration::from_millis(500);

impl TaskRunState {
    /// The last piece of a text goes into the log with the answer, which follows at once.
    pub(super) fn progress(&mut self, step: StepNo, attempt: u32, progress: Progress) {
        match progress {
            Progress::Text(piece) => {
                let last = piece.last;
                self.show(step, attempt, piece);
                if last {
                    return;
                }
            }
            Progress::Artifact(number, artifact) => self.show_artifact(step, attempt, number, artifact),
            Progress::Reply => self.replies = true,
            Progress::AskedAgain { attempt, error } => {
                if let Some(span) = &mut self.turn {
                    span.event(
                        names::event::MODEL_RETRY,
                        vec![
                            KeyValue::new(names::MODEL_ATTEMPT, i64::from(attempt)),
                            KeyValue::new(names::ERROR_TYPE, error.error_type.to_string()),
                        ],
                    );
                }
            }
        }
        self.pump();
    }

    /// Content that a model makes beside its text is an artifact of its own.
    fn show_artifact(&mut self, step: StepNo, attempt: u32, number: usize, artifact: MadeArtifact) {
        let metadata = self.metadata_of_attempt(attempt);
        self.outbox.push(OwnerWord::Chunk {
            artifact_id: format!("step-{step}-made-{number}"),
            name: artifact.name,
            parts: artifact.parts,
            append: false,
            last_chunk: true,
            metadata,
        });
    }

    fn metadata_of_attempt(&self, attempt: u32) -> Metadata {
        let mut metadata = Metadata::from([("dev.towline/attempt".to_owned(), attempt.into())]);
        if self.is_simulated() {
            metadata.insert("simulated".to_owned(), true.into());
        }
        metadata
    }

    fn show(&mut self, step: StepNo, attempt: u32, piece: Piece) {
        let metadata = self.metadata_of_attempt(attempt);
        self.outbox.push(OwnerWord::Chunk {
            artifact_id: format!("step-{step}"),
            name: Some(ANSWER.to_owned()),
            parts: vec![Part::text(piece.text)],
            append: piece.append,
            last_chunk: piece.last,
            metadata,
        });
    }

    pub(super) fn thought(&mut self, step: StepNo, answer: Result<ModelAnswer, ModelError>) -> Outcome {
        let outcome = match answer {
            Ok(mut answer) => {
                answer.calls = with_distinct_ids(answer.calls, step);
                if let Some(span) = self.step_spans.get_mut(&step) {
                    span.set(names::GEN_AI_USAGE_INPUT_TOKENS, spans::number(answer.usage.input));
                    span.set(names::GEN_AI_USAGE_OUTPUT_TOKENS, spans::number(answer.usage.output));
                    span.content(names::GEN_AI_OUTPUT_MESSAGES, || shown_answer(&answer));
                }
                if self.replies && answer.calls.is_empty() {
                    self.reply = Some(answer.text.clone());
                }
                Outcome::Answered(answer)
            }
            Err(error) => Outcome::Failed { error_type: error.error_type.into_owned(), message: error.message },
        };
        self.end_step(step, outcome.clone());
        outcome
    }

    /// Says the last word in the same report as the outcome that leaves nothing else to do.
    pub(super) fn complete_with(&mut self, step: StepNo, outcome: Outcome) {
        if self.phase != Phase::Running || self.give_up.is_some() {
            return;
        }
        let mut journal = self.view.journal.clone();
        let Some(ended) = journal.get_mut(step.0 as usize) else { return };
        ended.ended = Some(StepRecord { outcome, at: self.view.now });
        if self.decide_from(&journal) == Next::Complete {
            self.complete();
        }
    }

    pub(super) fn tool_returned(&mut self, step: StepNo, result: Result<ToolResult, CallError>) {
        match result {
            Err(error) if error.may_have_happened => self.call_lost(step, error),
            Ok(mut result) => {
                self.note_untrusted(step);
                self.note_fence(step, &result.text);
                if let Some(span) = self.step_spans.get_mut(&step) {
                    span.content(names::GEN_AI_TOOL_CALL_RESULT, || result.text.clone().into());
                }
                self.show_files(step, std::mem::take(&mut result.files));
                self.end_step(step, tool_outcome(Ok(result)));
            }
            Err(error) => self.end_step(step, tool_outcome(Err(error))),
        }
    }

    /// What a tool made that is no text becomes an artifact of the task: no model reads it.
    fn show_files(&mut self, step: StepNo, files: Vec<Part>) {
        let attempt = self.view.step(step).map_or(1, |step| step.attempt);
        for (number, file) in files.into_iter().enumerate() {
            self.outbox.push(OwnerWord::Chunk {
                artifact_id: format!("step-{step}-file-{number}"),
                name: file.filename.clone(),
                parts: vec![file],
                append: false,
                last_chunk: true,
                metadata: Metadata::from([("dev.towline/attempt".to_owned(), attempt.into())]),
            });
        }
    }

    pub(super) fn news(&mut self, step: StepNo, news: News) {
        match news {
            News::PeerTask { task, node } => {
                if let (Some(span), Some(node)) = (self.step_spans.get_mut(&step), node) {
                    span.set(names::DELEGATION_NODE, spans::number(node.0));
                }
                let known = self.view.step(step).is_some_and(|step| peer_task(step) == Some(&task));
                if !known {
                    self.outbox.push(OwnerWord::PeerTask { step, peer_task: task });
                }
            }
            News::Asks { question, auth } => {
                self.asking.insert(step, question);
                if auth {
                    self.asking_auth.insert(step);
                }
            }
            News::Artifact(chunk) => self.relay_chunk(*chunk),
            News::Outside(reason) => {
                self.outside.insert(step, reason);
            }
            News::GoesOn => {
                self.asking.remove(&step);
                self.asking_auth.remove(&step);
            }
            News::Ended(outcome) => {
                self.let_go(step);
                let outcome = self.taken_in(step, outcome);
                self.end_step(step, outcome);
            }
            News::InDoubt(why) => {
                self.let_go(step);
                self.doubtful.insert(step, why);
            }
        }
    }

    /// Stops the delegation of a step, which is then no crash.
    fn let_go(&mut self, step: StepNo) {
        if let Some(Running { work: Work::Delegation(actor), .. }) = self.running.remove(&step) {
            actor.stop(None);
        }
    }

    pub(super) fn delegation_crashed(&mut self, child: &ActorCell, reason: &str) {
        let crashed = self
            .running
            .iter_mut()
            .find(|(_, running)| matches!(&running.work, Work::Delegation(actor) if actor.get_id() == child.get_id()));
        let Some((&step, running)) = crashed else { return };
        self.delegation_crashes += 1;
        tracing::warn!(task = %self.view.id, step = step.0, reason, crashes = self.delegation_crashes, "delegation crashed");
        if self.delegation_crashes > MAX_DELEGATION_RESTARTS {
            let message = format!("the delegation crashed {} times: {reason}", self.delegation_crashes);
            self.end_step(step, Outcome::Failed { error_type: "crashed".to_owned(), message });
            return;
        }
        running.work = Work::Resting;
        self.myself
            .send_after(DELEGATION_RESTART_WAIT * self.delegation_crashes, move || TaskRunMsg::Rested { step }.into());
    }
}

/// An answer as spans show it.
fn shown_answer(answer: &ModelAnswer) -> serde_json::Value {
    let text = serde_json::json!({ "content": answer.text, "type": "text" });
    let calls = answer.calls.iter().map(|call| {
        serde_json::json!({ "arguments": call.arguments, "id": call.id, "name": call.name, "type": "tool_call" })
    });
    let parts: Vec<serde_json::Value> = std::iter::once(text).chain(calls).collect();
    serde_json::json!([{ "parts": parts, "role": "assistant" }])
}

fn peer_task(step: &Step) -> Option<&String> {
    match &step.intent {
        Intent::Delegate { peer_task, .. } => peer_task.as_ref(),
        Intent::Model { .. } | Intent::Tool { .. } | Intent::Ask { .. } | Intent::Refused { .. } => None,
    }
}

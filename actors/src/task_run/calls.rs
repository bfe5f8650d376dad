//! Calls of tools: what is heard of one while it is under way, and the questions that its server asks a person.
//!
//! ```text
//! server asks ──▶ run asks its client, and ends ──▶ the call stays in `parked` ──▶ the answer ──▶ a new run takes it up
//! ```
//! Progress and log messages are artifacts of their own beside the answer: so many at most, and no more than one a second.

use std::time::{Duration, Instant};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use towline_core::{Content, Intent, Metadata, OwnerWord, Part, Step, StepNo};
use towline_trace::{KeyValue, names};

use super::{Running, TaskRunMsg, TaskRunState, Work, ending::what_happened, perform::set};
use crate::{
    logs,
    mcp_connection::{CallError, CallEvent, CallRequest, Heard, call_events},
    parked::{Line, ParkedCall},
    prompt,
    toolbox::step_key,
};

/// Events that the progress of one call may be: each is an entry of the log.
const MAX_PROGRESS_EVENTS: u32 = 32;

/// Events that the log messages of one call may be.
const MAX_LOG_EVENTS: u32 = 32;

/// Least time between two events of one call. What comes meanwhile is told with the next.
const EVENT_EVERY: Duration = Duration::from_secs(1);

/// Log lines of one event.
const MAX_LINES: usize = 32;

/// Key of the artifacts that are no result, but were said on the way to one.
const ASIDE_KEY: &str = "dev.towline/aside";

/// Key of the structured form of a question that a server asks.
const ELICITATION_KEY: &str = "dev.towline/elicitation";

/// Something that was said about a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Aside {
    /// How far it is.
    Progress { progress: f64, total: Option<f64>, message: Option<String> },
    /// Log messages.
    Log(Vec<String>),
}

impl TaskRunState {
    pub(super) fn call_tool(&mut self, step: &Step, server: &str, tool: &str, arguments: &serde_json::Value) -> Work {
        let (no, attempt) = (step.no, step.attempt);
        let (events, heard) = call_events();
        let request = CallRequest {
            tool: tool.to_owned(),
            arguments: arguments.clone(),
            task: self.id(),
            step: no,
            attempt,
            idempotency_key: step_key(self.id(), no),
            trace: step.span,
            trace_state: format!("towline={}", step.span.span_id_hex()),
            labels: self.view.labels.clone(),
            timeout: None,
            events,
        };
        let handle = self.context.shared.server(server);
        if let (Some(handle), Some(span)) = (&handle, self.step_spans.get_mut(&no)) {
            handle.span_attributes().into_iter().for_each(|pair| set(span, pair));
            span.content(names::GEN_AI_TOOL_CALL_ARGUMENTS, || arguments.clone());
        }
        let server = server.to_owned();
        let cancel = CancellationToken::new();
        let canceled = cancel.clone();
        let line = Line::new(self.myself.clone(), no, attempt);
        let told = line.clone();
        let task = logs::spawn(&self.logs, async move {
            let calling = async {
                match handle {
                    Some(handle) => handle.call(request, canceled).await,
                    None => Err(CallError {
                        error_type: "server_unavailable".into(),
                        message: format!("call {server}.{}: the server is not configured on this node", request.tool),
                        may_have_happened: false,
                    }),
                }
            };
            let result = tokio::select! {
                biased;
                result = calling => result,
                never = listen(heard, &told, (no, attempt)) => match never {},
            };
            let known = what_happened(&result);
            told.returned(result);
            known
        });
        Work::Call { cancel, task: AbortOnDropHandle::new(task), line: Some(line) }
    }

    /// A server asks a person something: that is said as soon as nothing else is under way.
    pub(super) fn tool_asks(&mut self, step: StepNo, text: String, details: serde_json::Value) {
        self.asking.insert(step, text);
        self.asked_details.insert(step, details);
    }

    /// What a question of a tool's server says beside its text.
    pub(super) fn question_of_server(&self, step: StepNo, server: &str, tool: &str) -> Metadata {
        let details = self.asked_details.get(&step).cloned().unwrap_or_default();
        Metadata::from([
            ("dev.towline/askedBy".to_owned(), format!("{server}.{tool}").into()),
            (ELICITATION_KEY.to_owned(), details),
        ])
    }

    /// Shows what was said about a call. It is text from outside, and no model reads it.
    pub(super) fn aside(&mut self, step: StepNo, attempt: u32, said: Aside) {
        let Some(Intent::Tool { server, tool, .. }) = self.view.step(step).map(|step| &step.intent) else { return };
        let source = format!("{server}.{tool}");
        let (name, part, append) = match said {
            Aside::Progress { progress, total, message } => {
                let data = serde_json::json!({
                    "message": message, "progress": progress, "source": source, "total": total,
                });
                let part =
                    Part { content: Content::Data(data), media_type: None, filename: None, metadata: Metadata::new() };
                ("progress", part, false)
            }
            Aside::Log(lines) => ("log", Part::text(lines.join("\n") + "\n"), true),
        };
        self.outbox.push(OwnerWord::Chunk {
            artifact_id: format!("step-{step}-{name}"),
            name: Some(name.to_owned()),
            parts: vec![part],
            append,
            last_chunk: false,
            metadata: Metadata::from([
                (ASIDE_KEY.to_owned(), name.into()),
                ("dev.towline/attempt".to_owned(), attempt.into()),
            ]),
        });
        self.pump();
    }

    /// A fence mark inside of what a tool answered is made harmless where it is shown; that it was there is told.
    pub(super) fn note_fence(&mut self, step: StepNo, text: &str) {
        if !prompt::has_mark(text) {
            return;
        }
        let Some(Intent::Tool { server, tool, .. }) = self.view.step(step).map(|step| &step.intent) else { return };
        let source = format!("{server}.{tool}");
        let task = self.id();
        tracing::warn!(event = "mcp.fence_in_data", %task, step = step.0, source, "an answer has a fence mark in it");
        if let Some(span) = self.step_spans.get_mut(&step) {
            span.event(names::event::FENCE_IN_DATA, vec![KeyValue::new(names::MCP_SERVER, source)]);
        }
    }

    /// Keeps the calls that wait for a person beyond the end of this run.
    pub(super) fn park_asking(&mut self) {
        if !self.view.state.is_interrupted() {
            return;
        }
        let has_line = |running: &Running| matches!(&running.work, Work::Call { line: Some(_), .. });
        let asking = self.running.iter().filter(|(step, running)| self.asking.contains_key(step) && has_line(running));
        let steps: Vec<StepNo> = asking.map(|(step, _)| *step).collect();
        for step in steps {
            let Some(Running { work: Work::Call { cancel, task, line: Some(line) }, .. }) = self.running.remove(&step)
            else {
                continue;
            };
            let call = ParkedCall { cancel, task, line, since: Instant::now() };
            self.context.shared.parked.park(self.id(), step, call);
        }
    }

    /// Takes up what an earlier run of this task left waiting. The first call that asks gets the answer of the person.
    pub(super) fn take_parked(&mut self) {
        let mut answer = self.view.last_text_of_client();
        for (no, ParkedCall { cancel, task, line, .. }) in self.context.shared.parked.take(self.id()) {
            let step = self.view.step(no).filter(|step| step.ended.is_none() && step.doubt.is_none()).cloned();
            let Some(step) = step else {
                cancel.cancel();
                continue;
            };
            let said = if line.is_asking() { answer.take() } else { None };
            self.mine.insert(no);
            line.take(self.myself.clone(), step.attempt, said);
            let work = Work::Call { cancel, task, line: Some(line) };
            self.running.insert(no, Running { attempt: step.attempt, work });
        }
    }
}

/// Passes on what is heard of a call, not too often and not without end.
async fn listen(mut heard: Heard, line: &Line, (step, attempt): (StepNo, u32)) -> std::convert::Infallible {
    let (mut progress_left, mut logs_left) = (MAX_PROGRESS_EVENTS, MAX_LOG_EVENTS);
    let mut progress = None;
    let mut lines: Vec<String> = Vec::new();
    let mut next = tokio::time::Instant::now();
    loop {
        let has_news = (progress.is_some() && progress_left > 0) || (!lines.is_empty() && logs_left > 0);
        tokio::select! {
            biased;
            event = heard.next() => match event {
                CallEvent::Asks(question) => line.asks(question),
                CallEvent::Progress { progress: at, total, message } => {
                    progress = Some(Aside::Progress { progress: at, total, message });
                }
                CallEvent::Log(text) if lines.len() < MAX_LINES => lines.push(text),
                CallEvent::Log(_) => {}
            },
            () = tokio::time::sleep_until(next), if has_news => {
                if let Some(said) = progress.take().filter(|_| progress_left > 0) {
                    progress_left -= 1;
                    line.says(TaskRunMsg::ToolSays { step, attempt, said });
                }
                if !lines.is_empty() && logs_left > 0 {
                    logs_left -= 1;
                    line.says(TaskRunMsg::ToolSays { step, attempt, said: Aside::Log(std::mem::take(&mut lines)) });
                }
                next = tokio::time::Instant::now() + EVENT_EVERY;
            }
        }
    }
}

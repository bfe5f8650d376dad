//! What a server says about a call while it is under way, on its way to the task that called: bounded, and never a reason
//! for the server to wait. Of progress only the furthest is kept.

use futures::FutureExt as _;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

/// Log messages that wait to be read; beyond it they are dropped.
const MAX_LOGS: usize = 32;

/// Questions of one call that wait to be read: a server asks one after the other.
const MAX_QUESTIONS: usize = 4;

/// What a server says about a call.
#[derive(Debug)]
pub enum CallEvent {
    /// How far it is.
    Progress {
        /// Only grows.
        progress: f64,
        /// What it will be at the end, if known.
        total: Option<f64>,
        /// In the words of the server: text from outside.
        message: Option<String>,
    },
    /// A log message: text from outside.
    Log(String),
    /// It wants to know something from a person.
    Asks(Question),
}

/// Something that a server wants to know from a person.
#[derive(Debug)]
pub struct Question {
    /// What the person is shown: text from outside.
    pub text: String,
    /// The same for programs: mode, schema, URL, host.
    pub details: Value,
    answer: oneshot::Sender<String>,
}

impl Question {
    /// A question, and where its answer comes.
    pub(super) fn new(text: String, details: Value) -> (Self, oneshot::Receiver<String>) {
        let (answer, answered) = oneshot::channel();
        (Self { text, details, answer }, answered)
    }

    /// Passes an answer on. A question that is no longer open takes none.
    pub fn answer(self, text: String) {
        let _ = self.answer.send(text);
    }

    /// Whether nobody waits for an answer any more.
    pub fn is_over(&self) -> bool {
        self.answer.is_closed()
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Progress {
    progress: f64,
    total: Option<f64>,
    message: Option<String>,
}

/// Where the events of a call go; by default nowhere.
#[derive(Debug, Clone, Default)]
pub struct CallEvents(Option<Senders>);

#[derive(Debug, Clone)]
struct Senders {
    caller: Option<Arc<str>>,
    progress: watch::Sender<Option<Progress>>,
    logs: mpsc::Sender<String>,
    questions: mpsc::Sender<Question>,
    /// Log messages go as the parameters of their notification, for who passes them on.
    whole_logs: bool,
}

/// The events of a call, as they come.
#[derive(Debug)]
pub struct Heard {
    progress: watch::Receiver<Option<Progress>>,
    logs: mpsc::Receiver<String>,
    questions: mpsc::Receiver<Question>,
}

/// A way for the events of one call.
pub fn channel() -> (CallEvents, Heard) {
    made(None, false)
}

/// The same for a call of somebody who is asked what its server wants to know ([`super::HostAsk::caller`]).
pub fn channel_of(caller: Option<Arc<str>>) -> (CallEvents, Heard) {
    made(caller, false)
}

/// The same, for who passes them on: a log message is the parameters of its notification, as JSON.
pub fn passed_on() -> (CallEvents, Heard) {
    made(None, true)
}

fn made(caller: Option<Arc<str>>, whole_logs: bool) -> (CallEvents, Heard) {
    let (progress, progresses) = watch::channel(None);
    let (logs, logged) = mpsc::channel(MAX_LOGS);
    let (questions, asked) = mpsc::channel(MAX_QUESTIONS);
    let heard = Heard { progress: progresses, logs: logged, questions: asked };
    (CallEvents(Some(Senders { caller, progress, logs, questions, whole_logs })), heard)
}

impl Heard {
    /// An event that has come already.
    pub fn waiting(&mut self) -> Option<CallEvent> {
        self.next().now_or_never()
    }

    /// The next event. Waits for ever when there can be none.
    pub async fn next(&mut self) -> CallEvent {
        tokio::select! {
            biased;
            Some(question) = self.questions.recv() => CallEvent::Asks(question),
            Ok(()) = self.progress.changed() => {
                let Progress { progress, total, message } = self.progress.borrow_and_update().clone().unwrap_or_default();
                CallEvent::Progress { progress, total, message }
            }
            Some(line) = self.logs.recv() => CallEvent::Log(line),
            else => std::future::pending().await,
        }
    }
}

impl CallEvents {
    /// Notifications are read side by side, so they come in any order: what is not further than before says nothing.
    pub(super) fn progress(&self, progress: f64, total: Option<f64>, message: Option<String>) {
        let Some(senders) = &self.0 else { return };
        senders.progress.send_if_modified(|known| {
            let is_further = progress.is_finite() && known.as_ref().is_none_or(|known| progress > known.progress);
            if is_further {
                *known = Some(Progress { progress, total, message });
            }
            is_further
        });
    }

    pub(super) fn wants_whole_logs(&self) -> bool {
        self.0.as_ref().is_some_and(|senders| senders.whole_logs)
    }

    pub(super) fn log(&self, line: String) {
        if let Some(senders) = &self.0 {
            // A flood of messages is worth its first ones.
            let _ = senders.logs.try_send(line);
        }
    }

    /// Who calls, if that was said.
    pub(super) fn caller(&self) -> Option<Arc<str>> {
        self.0.as_ref()?.caller.clone()
    }

    /// Whether somebody takes the question.
    pub(super) fn ask(&self, question: Question) -> bool {
        self.0.as_ref().is_some_and(|senders| senders.questions.try_send(question).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_flood_is_a_bounded_number_of_events() {
        let (events, mut heard) = channel();
        for at in 0..10_000 {
            events.progress(f64::from(at), None, None);
            events.log(format!("line {at}"));
        }
        events.progress(f64::NAN, None, None);
        let mut seen = Vec::new();
        while let std::task::Poll::Ready(event) = futures::poll!(std::pin::pin!(heard.next())) {
            seen.push(event);
        }
        assert_eq!(seen.len(), 1 + MAX_LOGS);
        assert!(matches!(seen[0], CallEvent::Progress { progress: 9_999.0, .. }), "{:?}", seen[0]);
    }

    #[test]
    fn questions_that_nobody_takes_are_refused() {
        let ask = |events: &CallEvents| events.ask(Question::new("?".into(), Value::Null).0);
        assert!(!ask(&CallEvents::default()));
        let (events, heard) = channel();
        assert_eq!((0..6).filter(|_| ask(&events)).count(), MAX_QUESTIONS);
        drop(heard);
        assert!(!ask(&events));
    }
}

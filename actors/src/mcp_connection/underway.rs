//! The calls that are under way on one connection, so that what the server says about one of them finds it: progress by its
//! token, a question by the request in whose stream it came, a log message only where a single call can be meant.
//!
//! A call that was given up may go on at the server, and what the server says next may be about it. From then on the only call
//! under way need not be the one that is meant: what names no call is then of none, for as long as the connection lives. The
//! server is never heard to be through with such a call, as it does not answer what was canceled.
#![expect(deprecated, reason = "servers of earlier revisions still send log messages")]

use rmcp::{
    model::{LoggingMessageNotificationParam, NumberOrString, ProgressNotificationParam, ProgressToken, RequestId},
    service::InboundStreamOrigin,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::watch;

use super::{
    events::{CallEvents, Question},
    not_asked::NotAsked,
    text,
};

/// Longest message of progress, in characters.
const MAX_PROGRESS_CHARS: usize = 256;

/// Longest log message that is passed on, in characters.
const MAX_LOG_CHARS: usize = 1_024;

/// Longest log message that is passed on as it is, as JSON.
const MAX_WHOLE_LOG_BYTES: usize = 16 * 1024;

/// Progress tokens that are unknown yet: a server may be quicker than the note of the call it answers.
const MAX_EARLY: usize = 32;

/// Why a question is not asked that could be about a call that was given up.
pub(super) const DOUBTFUL: &str = "it names no call, and may be about one that was given up";

/// What keeps a call alive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pulse {
    /// How often it was heard of.
    pub beats: u64,
    /// Questions of its that are open: while there are any, no time runs.
    pub asking: u32,
}

/// The calls of one connection; cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Underway(Arc<Mutex<Calls>>, Arc<NotAsked>);

#[derive(Default)]
struct Calls {
    next: u64,
    calls: BTreeMap<u64, Entry>,
    early: Vec<ProgressToken>,
    /// A call ended while it may go on at the server.
    given_up: bool,
}

struct Entry {
    request: RequestId,
    token: ProgressToken,
    pulse: watch::Sender<Pulse>,
    events: CallEvents,
}

/// A call that is noted until this is dropped.
pub(super) struct Noted {
    key: u64,
    underway: Underway,
    is_over: bool,
    /// What keeps it alive.
    pub pulse: watch::Receiver<Pulse>,
}

impl Noted {
    /// The server has answered the call, or did not take it: nothing of it goes on there.
    pub(super) fn over(&mut self) {
        self.is_over = true;
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let mut calls = self.underway.lock();
        calls.calls.remove(&self.key);
        calls.given_up |= !self.is_over;
    }
}

impl Underway {
    /// Questions of this connection that nobody is asked.
    pub(super) fn not_asked(&self) -> &NotAsked {
        &self.1
    }

    /// Notes a call that was sent.
    pub(super) fn note(&self, request: RequestId, token: ProgressToken, events: CallEvents) -> Noted {
        let mut calls = self.lock();
        let beats = u64::from(calls.early.contains(&token));
        let (pulse, beating) = watch::channel(Pulse { beats, asking: 0 });
        calls.next += 1;
        let key = calls.next;
        calls.calls.insert(key, Entry { request, token, pulse, events });
        Noted { key, underway: self.clone(), is_over: false, pulse: beating }
    }

    /// The server tells how far a call is. Progress of no call is dropped.
    pub(super) fn progress(&self, said: &ProgressNotificationParam) {
        let mut calls = self.lock();
        let Some(entry) = calls.calls.values().find(|entry| is_same(&entry.token, &said.progress_token)) else {
            if calls.early.len() == MAX_EARLY {
                calls.early.remove(0);
            }
            calls.early.push(said.progress_token.clone());
            return;
        };
        entry.pulse.send_modify(|pulse| pulse.beats += 1);
        let message = said.message.as_deref().map(|message| text::plain_line(message, MAX_PROGRESS_CHARS));
        entry.events.progress(said.progress, said.total, message);
    }

    /// The server says something; it is of a call if there is only one.
    pub(super) fn log(&self, said: &LoggingMessageNotificationParam) {
        let calls = self.lock();
        if let Some(entry) = only(&calls) {
            entry.events.log(if entry.events.wants_whole_logs() { whole_log(said) } else { log_line(said) });
        }
    }

    /// The one call that a question can be about: that in whose stream it came, or else the only one. The call stays alive
    /// until the guard is dropped.
    pub(super) fn asks(&self, origin: Option<&InboundStreamOrigin>, question: Question) -> Option<Asking> {
        let calls = self.lock();
        let entry = call_of(&calls, origin)?;
        if !entry.events.ask(question) {
            return None;
        }
        entry.pulse.send_modify(|pulse| pulse.asking += 1);
        Some(Asking(entry.pulse.clone()))
    }

    /// The call that a request of the server is about, as for [`Self::asks`]: it stays alive until the guard is dropped. And who
    /// calls, if that was said.
    pub(super) fn holds(&self, origin: Option<&InboundStreamOrigin>) -> Option<(Asking, Option<Arc<str>>)> {
        let calls = self.lock();
        let entry = call_of(&calls, origin)?;
        entry.pulse.send_modify(|pulse| pulse.asking += 1);
        Some((Asking(entry.pulse.clone()), entry.events.caller()))
    }

    /// Whether a question may be about a call that was given up: nobody is asked it.
    pub(super) fn is_doubtful(&self, origin: Option<&InboundStreamOrigin>) -> bool {
        !matches!(origin, Some(InboundStreamOrigin::OutboundRequest(_))) && self.lock().given_up
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question that is open until this is dropped.
pub(super) struct Asking(watch::Sender<Pulse>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.send_modify(|pulse| {
            pulse.asking = pulse.asking.saturating_sub(1);
            pulse.beats += 1;
        });
    }
}

fn call_of<'a>(calls: &'a Calls, origin: Option<&InboundStreamOrigin>) -> Option<&'a Entry> {
    match origin {
        Some(InboundStreamOrigin::OutboundRequest(id)) => calls.calls.values().find(|entry| entry.request == *id),
        Some(InboundStreamOrigin::Unassociated) | None => only(calls),
    }
}

fn only(calls: &Calls) -> Option<&Entry> {
    let mut all = calls.calls.values();
    all.next().filter(|_| all.next().is_none() && !calls.given_up)
}

/// Some servers send a number back as a string.
fn is_same(ours: &ProgressToken, theirs: &ProgressToken) -> bool {
    match (&ours.0, &theirs.0) {
        (NumberOrString::Number(ours), NumberOrString::String(theirs)) => theirs.parse() == Ok(*ours),
        (ours, theirs) => ours == theirs,
    }
}

/// A log message on one line.
pub(super) fn log_line(said: &LoggingMessageNotificationParam) -> String {
    let data = said.data.as_str().map_or_else(|| said.data.to_string(), str::to_owned);
    let level = serde_json::to_value(said.level).ok();
    let level = level.as_ref().and_then(serde_json::Value::as_str).unwrap_or("log");
    let logger = said.logger.as_deref().map(|logger| format!("{logger}: ")).unwrap_or_default();
    text::plain_line(&format!("[{level}] {logger}{data}"), MAX_LOG_CHARS)
}

/// A log message as the parameters of its notification. What is too long is cut to a line.
fn whole_log(said: &LoggingMessageNotificationParam) -> String {
    let whole = serde_json::to_string(said).unwrap_or_default();
    if whole.len() <= MAX_WHOLE_LOG_BYTES {
        return whole;
    }
    serde_json::json!({ "data": log_line(said), "level": said.level }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp_connection::events::{CallEvent, channel};
    use rmcp::model::LoggingLevel;
    use serde_json::json;

    fn token(number: i64) -> ProgressToken {
        ProgressToken(NumberOrString::Number(number))
    }

    fn progress(token: ProgressToken, at: f64) -> ProgressNotificationParam {
        ProgressNotificationParam::new(token, at)
    }

    #[tokio::test]
    async fn progress_finds_its_call_and_never_goes_back() {
        let underway = Underway::default();
        let (events, mut heard) = channel();
        let mut noted = underway.note(RequestId::Number(1), token(7), events);
        underway.progress(&progress(token(8), 9.0));
        assert!(!noted.pulse.has_changed().unwrap(), "that was of another call");
        underway.progress(&progress(ProgressToken(NumberOrString::String("7".into())), 2.0));
        underway.progress(&progress(token(7), 1.0));
        assert_eq!(noted.pulse.borrow_and_update().beats, 2);
        let CallEvent::Progress { progress, .. } = heard.next().await else { panic!("no progress") };
        assert_eq!(progress, 2.0, "it is the furthest, not the last that came");
    }

    #[test]
    fn progress_that_is_quicker_than_the_note_of_its_call_counts() {
        let underway = Underway::default();
        underway.progress(&progress(token(7), 1.0));
        let noted = underway.note(RequestId::Number(1), token(7), CallEvents::default());
        assert_eq!(noted.pulse.borrow().beats, 1);
        (0..1_000).for_each(|at| underway.progress(&progress(token(100 + at), 1.0)));
        assert_eq!(underway.lock().early.len(), MAX_EARLY);
    }

    #[tokio::test]
    async fn a_log_message_is_of_a_call_only_if_there_is_just_one() {
        let said = LoggingMessageNotificationParam::new(LoggingLevel::Warning, json!("low\u{1b}[2J on disk"));
        let underway = Underway::default();
        let ((first, mut heard), (second, _)) = (channel(), channel());
        let one = underway.note(RequestId::Number(1), token(1), first);
        let mut two = underway.note(RequestId::Number(2), token(2), second);
        underway.log(&said);
        assert!(futures::poll!(std::pin::pin!(heard.next())).is_pending(), "it may be of either");
        two.over();
        drop(two);
        underway.log(&said);
        let CallEvent::Log(line) = heard.next().await else { panic!("no log") };
        assert_eq!(line, "[warning] low\u{fffd}[2J on disk");
        drop(one);
        assert!(underway.lock().calls.is_empty());
    }

    #[test]
    fn a_question_goes_to_the_call_in_whose_stream_it_came_and_stops_its_clock() {
        let underway = Underway::default();
        let ((first, _heard), (second, _heard_too)) = (channel(), channel());
        let one = underway.note(RequestId::Number(1), token(1), first);
        let two = underway.note(RequestId::Number(2), token(2), second);
        let question = || Question::new("name?".to_owned(), serde_json::Value::Null).0;
        assert!(underway.asks(None, question()).is_none(), "nobody knows whose it is");
        let origin = InboundStreamOrigin::OutboundRequest(RequestId::Number(2));
        let asking = underway.asks(Some(&origin), question()).unwrap();
        assert_eq!((one.pulse.borrow().asking, two.pulse.borrow().asking), (0, 1));
        drop(asking);
        assert_eq!(two.pulse.borrow().asking, 0);
        let unheard = underway.note(RequestId::Number(3), token(3), CallEvents::default());
        let origin = InboundStreamOrigin::OutboundRequest(RequestId::Number(3));
        assert!(underway.asks(Some(&origin), question()).is_none(), "nobody listens to this call");
        drop(unheard);
    }

    #[tokio::test]
    async fn after_a_call_was_given_up_the_only_one_is_not_taken_for_what_is_meant() {
        let underway = Underway::default();
        let question = || Question::new("name?".to_owned(), serde_json::Value::Null).0;
        let mut answered = underway.note(RequestId::Number(1), token(1), CallEvents::default());
        answered.over();
        drop(answered);
        assert!(!underway.is_doubtful(None), "that call is over");

        let given_up = underway.note(RequestId::Number(2), token(2), CallEvents::default());
        let (events, mut heard) = channel();
        let other = underway.note(RequestId::Number(3), token(3), events);
        drop(given_up);
        let said = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!("of the call before"));
        underway.log(&said);
        for origin in [None, Some(&InboundStreamOrigin::Unassociated)] {
            assert!(underway.is_doubtful(origin));
            assert!(underway.asks(origin, question()).is_none() && underway.holds(origin).is_none());
        }
        assert!(heard.waiting().is_none(), "nothing of it reaches another call");
        let named = InboundStreamOrigin::OutboundRequest(RequestId::Number(3));
        assert!(!underway.is_doubtful(Some(&named)) && underway.asks(Some(&named), question()).is_some());
        drop(other);
    }
}

//! The calls that are under way on one connection, so that what the server says about one of them finds it: progress by its
//! token, a question by the request in whose stream it came, and what names no call only where a single one can be meant.
//!
//! Which call that is is looked at when the message *arrives* ([`Underway::hears`]), since what is read side by side is carried out in
//! any order. A call that was given up may go on at the server, and what the server says then may be about it. So until the
//! server has answered that call as well, what names no call is of none. A server that does not do so – it need not answer what was
//! canceled – would be heard no more: where all calls share one stream, its connection ends [`ANSWERS_WITHIN`] later, in the next
//! moment without a call, and with it whatever goes on there. A call that would begin before that waits for the new one.
#![expect(deprecated, reason = "servers of earlier revisions still send log messages")]

use rmcp::{
    RoleClient,
    model::{
        GetExtensions, JsonRpcMessage, LoggingMessageNotificationParam, NumberOrString, ProgressNotificationParam,
        ProgressToken, RequestId, ServerJsonRpcMessage, ServerNotification,
    },
    service::{InboundStreamOrigin, RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

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

/// Calls that were given up and are remembered; where there are more, the doubt lasts as long as the connection.
const MAX_GIVEN_UP: usize = 256;

/// How long a server has to answer a call that was given up. Those that do so at all do it as soon as they read of it.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);

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

/// Which call something that the server says is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meant {
    /// That one, by its key.
    Call(u64),
    /// None, or one of several.
    NoCall,
    /// It may be one that was given up.
    Doubtful,
}

/// The calls of one connection; cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Underway(Arc<Inner>);

#[derive(Default)]
struct Inner {
    calls: Mutex<Calls>,
    /// Questions that nobody is asked.
    not_asked: NotAsked,
    /// Grows whenever something of the calls has changed that somebody may wait for.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Calls {
    next: u64,
    calls: BTreeMap<u64, Entry>,
    early: Vec<ProgressToken>,
    /// Calls that may go on at the server, and since when.
    given_up: Vec<(Option<RequestId>, Instant)>,
    /// There were more of them.
    too_many: bool,
    /// The connection ends where such a call is not answered in time.
    renews: bool,
    /// The connection takes no more calls.
    is_closed: bool,
}

struct Entry {
    request: Option<RequestId>,
    token: Option<ProgressToken>,
    /// The server has said its last word of it.
    is_answered: bool,
    pulse: watch::Sender<Pulse>,
    events: CallEvents,
}

/// A call that is under way until this is dropped.
pub(super) struct Noted {
    key: u64,
    underway: Underway,
    is_over: bool,
    /// What keeps it alive.
    pub pulse: watch::Receiver<Pulse>,
}

impl Noted {
    /// A request of the call is about to be sent.
    pub(super) fn sends(&mut self) {
        self.is_over = false;
        let mut calls = self.underway.lock();
        if let Some(entry) = calls.calls.get_mut(&self.key) {
            (entry.request, entry.token, entry.is_answered) = (None, None, false);
        }
    }

    /// It was sent.
    pub(super) fn sent(&mut self, request: RequestId, token: ProgressToken) {
        let mut calls = self.underway.lock();
        let is_early = calls.early.contains(&token);
        let Some(entry) = calls.calls.get_mut(&self.key) else { return };
        if is_early {
            entry.pulse.send_modify(|pulse| pulse.beats += 1);
        }
        (entry.request, entry.token) = (Some(request), Some(token));
    }

    /// The server has answered the call, or did not take it: nothing of it goes on there.
    pub(super) fn over(&mut self) {
        self.is_over = true;
    }

    /// The call, as what a question is about.
    pub(super) fn meant(&self) -> Meant {
        Meant::Call(self.key)
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let mut calls = self.underway.lock();
        let entry = calls.calls.remove(&self.key);
        if let (false, Some(Entry { request, is_answered: false, .. })) = (self.is_over, entry) {
            if calls.given_up.len() < MAX_GIVEN_UP {
                calls.given_up.push((request, Instant::now()));
            } else {
                calls.too_many = true;
            }
        }
        drop(calls);
        self.underway.changed();
    }
}

impl Underway {
    /// Questions of this connection that nobody is asked.
    pub(super) fn not_asked(&self) -> &NotAsked {
        &self.0.not_asked
    }

    /// Begins a call, which is sent afterwards. Waits where a call before it leaves a doubt that is about to end; none where the
    /// connection takes no more calls.
    pub(super) async fn admit(&self, events: &CallEvents) -> Option<Noted> {
        let mut changes = self.0.changes.subscribe();
        loop {
            match self.try_admit(events) {
                Admission::Admitted(noted) => return Some(noted),
                Admission::Closed => return None,
                Admission::Later => changes.changed().await.ok()?,
            }
        }
    }

    fn try_admit(&self, events: &CallEvents) -> Admission {
        let mut calls = self.lock();
        if calls.is_closed {
            return Admission::Closed;
        }
        if calls.renews && calls.is_in_doubt() && calls.calls.is_empty() {
            return Admission::Later;
        }
        let (pulse, beating) = watch::channel(Pulse::default());
        calls.next += 1;
        let key = calls.next;
        let entry = Entry { request: None, token: None, is_answered: false, pulse, events: events.clone() };
        calls.calls.insert(key, entry);
        Admission::Admitted(Noted { key, underway: self.clone(), is_over: true, pulse: beating })
    }

    /// All calls of this connection share one stream, and it can be made anew.
    pub(super) fn renews(&self) {
        self.lock().renews = true;
    }

    /// The connection takes no more calls.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed();
    }

    /// Waits until the connection has to end, as a call that was given up was not answered; it takes no more calls then.
    pub(super) async fn overdue(&self) {
        let mut changes = self.0.changes.subscribe();
        loop {
            let wait = {
                let mut calls = self.lock();
                let since = calls.given_up.iter().map(|(_, since)| *since).min();
                let due = since.filter(|_| calls.renews && calls.calls.is_empty()).map(|since| since + ANSWERS_WITHIN);
                if due.is_some_and(|due| due <= Instant::now()) {
                    calls.is_closed = true;
                }
                if calls.is_closed {
                    break;
                }
                due
            };
            let due = async {
                match wait {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                // The sender is in `self`.
                Ok(()) = changes.changed() => {}
            }
        }
        self.changed();
    }

    /// A message has arrived: what it is about is noted in it, and an answer is the end of its call.
    pub(super) fn hears(&self, message: &mut ServerJsonRpcMessage) {
        match message {
            JsonRpcMessage::Request(request) => {
                let meant = self.meant(request.request.extensions().get());
                request.request.extensions_mut().insert(meant);
            }
            JsonRpcMessage::Notification(said) => {
                if let ServerNotification::LoggingMessageNotification(said) = &mut said.notification {
                    let meant = self.meant(None);
                    said.extensions.insert(meant);
                }
            }
            JsonRpcMessage::Response(answer) => self.is_answered(&answer.id),
            JsonRpcMessage::Error(error) => {
                if let Some(id) = &error.id {
                    self.is_answered(id);
                }
            }
        }
    }

    fn is_answered(&self, id: &RequestId) {
        let mut calls = self.lock();
        if let Some(entry) = calls.calls.values_mut().find(|entry| entry.request.as_ref() == Some(id)) {
            entry.is_answered = true;
        }
        let before = calls.given_up.len();
        calls.given_up.retain(|(given_up, _)| given_up.as_ref() != Some(id));
        let is_news = calls.given_up.len() != before;
        drop(calls);
        if is_news {
            self.changed();
        }
    }

    /// The server tells how far a call is. Progress of no call is dropped.
    pub(super) fn progress(&self, said: &ProgressNotificationParam) {
        let mut calls = self.lock();
        let is_of = |entry: &&Entry| entry.token.as_ref().is_some_and(|token| is_same(token, &said.progress_token));
        let Some(entry) = calls.calls.values().find(is_of) else {
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

    /// The server says something about a call.
    pub(super) fn log(&self, meant: Meant, said: &LoggingMessageNotificationParam) {
        let calls = self.lock();
        if let Some(entry) = calls.of(meant) {
            entry.events.log(if entry.events.wants_whole_logs() { whole_log(said) } else { log_line(said) });
        }
    }

    /// Passes a question on to the call that it is about, which stays alive until the guard is dropped.
    pub(super) fn asks(&self, meant: Meant, question: Question) -> Option<Asking> {
        let calls = self.lock();
        let entry = calls.of(meant)?;
        if !entry.events.ask(question) {
            return None;
        }
        entry.pulse.send_modify(|pulse| pulse.asking += 1);
        Some(Asking(entry.pulse.clone()))
    }

    /// Keeps the call alive that a request of the server is about, until the guard is dropped. And who calls, if that was said.
    pub(super) fn holds(&self, meant: Meant) -> Option<(Asking, Option<Arc<str>>)> {
        let calls = self.lock();
        let entry = calls.of(meant)?;
        entry.pulse.send_modify(|pulse| pulse.asking += 1);
        Some((Asking(entry.pulse.clone()), entry.events.caller()))
    }

    /// The call that something is about which arrives now: that in whose stream it came, or else the only one.
    fn meant(&self, origin: Option<&InboundStreamOrigin>) -> Meant {
        let calls = self.lock();
        if let Some(InboundStreamOrigin::OutboundRequest(id)) = origin {
            let found = calls.calls.iter().find(|(_, entry)| entry.request.as_ref() == Some(id));
            return found.map_or(Meant::NoCall, |(key, _)| Meant::Call(*key));
        }
        if calls.is_in_doubt() {
            return Meant::Doubtful;
        }
        let mut all = calls.calls.keys();
        all.next().filter(|_| all.next().is_none()).map_or(Meant::NoCall, |key| Meant::Call(*key))
    }

    fn changed(&self) {
        self.0.changes.send_modify(|changes| *changes += 1);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Calls> {
        self.0.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Admission {
    Admitted(Noted),
    Later,
    Closed,
}

impl Calls {
    fn is_in_doubt(&self) -> bool {
        self.too_many || !self.given_up.is_empty()
    }

    fn of(&self, meant: Meant) -> Option<&Entry> {
        if let Meant::Call(key) = meant { self.calls.get(&key) } else { None }
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

/// A transport of which each message is heard in the order in which it arrives.
pub(super) struct Listened<T> {
    pub transport: T,
    pub underway: Underway,
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Listened<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.transport.send(message)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let mut message = self.transport.receive().await?;
        self.underway.hears(&mut message);
        Some(message)
    }

    fn close(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        self.transport.close()
    }
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

    /// A call that was sent.
    async fn call(underway: &Underway, number: i64, events: CallEvents) -> Noted {
        let mut noted = underway.admit(&events).await.unwrap();
        noted.sends();
        noted.sent(RequestId::Number(number), token(number));
        noted
    }

    fn question() -> Question {
        Question::new("name?".to_owned(), serde_json::Value::Null).0
    }

    fn message(value: serde_json::Value) -> ServerJsonRpcMessage {
        serde_json::from_value(value).unwrap()
    }

    /// What a question is about that comes now.
    fn asked(underway: &Underway, origin: Option<InboundStreamOrigin>) -> Meant {
        let params = json!({ "message": "?", "requestedSchema": { "type": "object", "properties": {} } });
        let mut question =
            message(json!({ "jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params }));
        let JsonRpcMessage::Request(request) = &mut question else { panic!("no request") };
        if let Some(origin) = origin {
            request.request.extensions_mut().insert(origin);
        }
        underway.hears(&mut question);
        let JsonRpcMessage::Request(request) = question else { panic!("no request") };
        *request.request.extensions().get::<Meant>().unwrap()
    }

    fn stream_of(number: i64) -> Option<InboundStreamOrigin> {
        Some(InboundStreamOrigin::OutboundRequest(RequestId::Number(number)))
    }

    #[tokio::test]
    async fn progress_finds_its_call_and_never_goes_back() {
        let underway = Underway::default();
        let (events, mut heard) = channel();
        let mut noted = call(&underway, 7, events).await;
        underway.progress(&progress(token(8), 9.0));
        assert!(!noted.pulse.has_changed().unwrap(), "that was of another call");
        underway.progress(&progress(ProgressToken(NumberOrString::String("7".into())), 2.0));
        underway.progress(&progress(token(7), 1.0));
        assert_eq!(noted.pulse.borrow_and_update().beats, 2);
        let CallEvent::Progress { progress, .. } = heard.next().await else { panic!("no progress") };
        assert_eq!(progress, 2.0, "it is the furthest, not the last that came");
    }

    #[tokio::test]
    async fn progress_that_is_quicker_than_the_note_of_its_call_counts() {
        let underway = Underway::default();
        underway.progress(&progress(token(7), 1.0));
        let noted = call(&underway, 7, CallEvents::default()).await;
        assert_eq!(noted.pulse.borrow().beats, 1);
        (0..1_000).for_each(|at| underway.progress(&progress(token(100 + at), 1.0)));
        assert_eq!(underway.lock().early.len(), MAX_EARLY);
    }

    #[tokio::test]
    async fn a_log_message_is_of_a_call_only_if_there_is_just_one() {
        let underway = Underway::default();
        let said = LoggingMessageNotificationParam::new(LoggingLevel::Warning, json!("low\u{1b}[2J on disk"));
        let comes = || {
            let params = json!({ "level": "warning", "data": "x" });
            let mut said = message(json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params }));
            underway.hears(&mut said);
            let JsonRpcMessage::Notification(said) = said else { panic!("no notification") };
            let ServerNotification::LoggingMessageNotification(said) = said.notification else { panic!("no log") };
            *said.extensions.get::<Meant>().unwrap()
        };
        let ((first, mut heard), (second, _)) = (channel(), channel());
        let one = call(&underway, 1, first).await;
        let mut two = call(&underway, 2, second).await;
        assert_eq!(comes(), Meant::NoCall, "it may be of either");
        two.over();
        drop(two);
        let meant = comes();
        underway.log(meant, &said);
        let CallEvent::Log(line) = heard.next().await else { panic!("no log") };
        assert_eq!(line, "[warning] low\u{fffd}[2J on disk");
        drop(one);
        assert_eq!(comes(), Meant::Doubtful, "it was given up");
        underway.log(meant, &said);
        assert!(underway.lock().calls.is_empty());
    }

    #[tokio::test]
    async fn a_question_goes_to_the_call_in_whose_stream_it_came_and_stops_its_clock() {
        let underway = Underway::default();
        let ((first, _heard), (second, _heard_too)) = (channel(), channel());
        let (one, two) = (call(&underway, 1, first).await, call(&underway, 2, second).await);
        assert_eq!(asked(&underway, None), Meant::NoCall, "nobody knows whose it is");
        assert!(underway.asks(Meant::NoCall, question()).is_none());
        let meant = asked(&underway, stream_of(2));
        let asking = underway.asks(meant, question()).unwrap();
        assert_eq!((one.pulse.borrow().asking, two.pulse.borrow().asking), (0, 1));
        drop(asking);
        assert_eq!(two.pulse.borrow().asking, 0);
        let _unheard = call(&underway, 3, CallEvents::default()).await;
        assert!(underway.asks(asked(&underway, stream_of(3)), question()).is_none(), "nobody listens to this call");
    }

    #[tokio::test]
    async fn what_names_no_call_is_of_none_until_the_server_has_answered_the_one_that_was_given_up() {
        let underway = Underway::default();
        let (events, mut heard) = channel();
        let given_up = call(&underway, 1, CallEvents::default()).await;
        let other = call(&underway, 2, events).await;
        drop(given_up);
        for origin in [None, Some(InboundStreamOrigin::Unassociated)] {
            let meant = asked(&underway, origin);
            assert_eq!(meant, Meant::Doubtful);
            assert!(underway.asks(meant, question()).is_none() && underway.holds(meant).is_none());
        }
        assert_eq!(asked(&underway, stream_of(2)), other.meant(), "this one names its call");
        let before = asked(&underway, None);
        let error = json!({ "code": 0, "message": "Request cancelled" });
        underway.hears(&mut message(json!({ "jsonrpc": "2.0", "id": 1, "error": error })));
        assert!(underway.asks(before, question()).is_none(), "it came when that call still ran");
        assert!(heard.waiting().is_none());
        let after = asked(&underway, None);
        assert!(underway.asks(after, question()).is_some() && heard.waiting().is_some());
    }

    #[tokio::test]
    async fn a_call_whose_answer_was_on_its_way_when_it_was_given_up_leaves_no_doubt() {
        let underway = Underway::default();
        let given_up = call(&underway, 1, CallEvents::default()).await;
        underway.hears(&mut message(json!({ "jsonrpc": "2.0", "id": 1, "result": {} })));
        drop(given_up);
        assert_eq!(asked(&underway, None), Meant::NoCall);
        drop(underway.admit(&CallEvents::default()).await.unwrap());
        assert_eq!(asked(&underway, None), Meant::NoCall, "this one was never sent");
        let mut sending = underway.admit(&CallEvents::default()).await.unwrap();
        sending.sends();
        drop(sending);
        assert_eq!(asked(&underway, None), Meant::Doubtful, "this one may have been");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_a_call_was_given_up_on_ends_in_the_next_moment_without_a_call() {
        let underway = Underway::default();
        underway.renews();
        let given_up = call(&underway, 1, CallEvents::default()).await;
        let other = call(&underway, 2, CallEvents::default()).await;
        drop(given_up);
        let mut ends = std::pin::pin!(underway.overdue());
        assert!(tokio::time::timeout(ANSWERS_WITHIN * 10, &mut ends).await.is_err(), "a call is under way");
        let third = underway.admit(&CallEvents::default()).await.unwrap();
        drop((other, third));
        underway.hears(&mut message(json!({ "jsonrpc": "2.0", "id": 2, "result": {} })));
        let next = tokio::spawn({
            let underway = underway.clone();
            async move { underway.admit(&CallEvents::default()).await.is_some() }
        });
        ends.await;
        assert!(!next.await.unwrap(), "it has to be made over another connection");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_the_answer_of_the_one_before_that_was_given_up_and_is_made_then() {
        let underway = Underway::default();
        underway.renews();
        drop(call(&underway, 1, CallEvents::default()).await);
        let answering = async {
            tokio::time::sleep(ANSWERS_WITHIN / 2).await;
            underway.hears(&mut message(json!({ "jsonrpc": "2.0", "id": 1, "result": {} })));
        };
        let none = CallEvents::default();
        let (admitted, ()) = tokio::join!(underway.admit(&none), answering);
        let noted = admitted.expect("the connection stays");
        assert_eq!(asked(&underway, None), noted.meant());
        assert!(tokio::time::timeout(ANSWERS_WITHIN * 10, underway.overdue()).await.is_err(), "nothing is due");
    }
}

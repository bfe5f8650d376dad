//! Sessions, for the revisions of MCP that have them.
//!
//! The id of a session says all that has to be known of its client: the revision, and whether it asks people. So a session
//! costs nothing until it subscribes or listens, and it goes on at any node: one that has not seen it reads the id. An id
//! opens nothing. Who asks is found out anew at each request, before this; an id is good only for whom it was made.
//!
//! What a session subscribes to is in the memory of one node, and in the id of each event of its stream: a client that
//! comes back, here or elsewhere, shows the last one (`Last-Event-ID`), and is told of all that has changed since.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;
use towline_core::Principal;
use uuid::Uuid;

use super::{
    logs::Level,
    message::{RpcError, code},
    revision::{Era, Speaker, WITH_SESSIONS},
    shares::Shares,
    watch::Watched,
};

/// Most sessions that have something in memory on one node, each of some kilobytes: as many as clients that listen.
pub(super) const MAX_SESSIONS: usize = 4_096;

/// Most of these of one principal: one caller must not take the places of all others.
const MAX_SESSIONS_OF_ONE: usize = 512;

/// A session that nobody listens to is forgotten here after this time, when its place is needed. It can come back.
const IDLE: Duration = Duration::from_secs(300);

/// Sessions that were ended here and are remembered as such.
const MAX_ENDED: usize = 16_384;

/// Most of these of one principal: what it ends pushes out nobody else's.
const MAX_ENDED_OF_ONE: usize = 1_024;

/// Most resources that one session subscribes to: all of them are named in the id of each event, which is in one header.
pub(super) const MAX_SUBSCRIPTIONS: usize = 128;

/// Most bytes that the URIs of other servers' resources take in that id, beside the rest of it.
pub(super) const MAX_ELSEWHERE_BYTES: usize = 8 * 1024;

/// Most questions that wait for the answer of one client, and most calls that it may take back.
const MAX_PENDING: usize = 64;

/// A session, by its id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SessionId {
    version: &'static str,
    elicits: bool,
    /// Of the owner.
    mark: u64,
    unique: Uuid,
}

impl SessionId {
    /// A new session of a client.
    pub fn new(version: &'static str, elicits: bool, principal: &Principal) -> Self {
        Self { version, elicits, mark: mark(principal), unique: Uuid::now_v7() }
    }

    /// Reads an id, if it is one that was made for this principal.
    pub fn read(text: &str, principal: &Principal) -> Option<Self> {
        let (head, rest) = text.split_once('-')?;
        let (owner, unique) = rest.split_once('-')?;
        let (number, elicits) = head.split_at_checked(1)?;
        let version = WITH_SESSIONS.get(number.parse::<usize>().ok()?)?;
        let elicits = match elicits {
            "e" => true,
            "n" => false,
            _ => return None,
        };
        let id = Self {
            version,
            elicits,
            mark: u64::from_str_radix(owner, 16).ok()?,
            unique: Uuid::try_parse(unique).ok()?,
        };
        (id.mark == mark(principal) && id.to_string() == text).then_some(id)
    }

    /// What it says of its client.
    pub fn speaker(&self) -> Speaker {
        Speaker { era: Era::Sessions, version: self.version, elicits: self.elicits }
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = WITH_SESSIONS.iter().position(|known| *known == self.version).unwrap_or_default();
        let elicits = if self.elicits { 'e' } else { 'n' };
        write!(f, "{number}{elicits}-{:016x}-{}", self.mark, self.unique.simple())
    }
}

/// Tells owners apart; who reads an id does not learn whose it is.
pub(super) fn mark(principal: &Principal) -> u64 {
    let hash = ring::digest::digest(&ring::digest::SHA256, format!("{:?}", principal.owner()).as_bytes());
    hash.as_ref().iter().take(8).fold(0, |mark, byte| (mark << 8) | u64::from(*byte))
}

/// The sessions of this node that have something in memory.
pub(super) struct Sessions {
    live: Mutex<HashMap<SessionId, Arc<Live>>>,
    ended: Mutex<Shares>,
}

impl Sessions {
    pub fn new() -> Self {
        Self { live: Mutex::default(), ended: Mutex::new(Shares::new(MAX_ENDED, MAX_ENDED_OF_ONE)) }
    }

    /// What this node holds of a session, made if there is nothing yet.
    ///
    /// # Errors
    /// When there is no place for it.
    pub fn open(&self, id: &SessionId) -> Result<Arc<Live>, RpcError> {
        let mut live = self.lock();
        if let Some(known) = live.get(id) {
            known.touch();
            return Ok(Arc::clone(known));
        }
        let of_one = live.keys().filter(|known| known.mark == id.mark).count();
        if live.len() >= MAX_SESSIONS || of_one >= MAX_SESSIONS_OF_ONE {
            live.retain(|_, session| !session.is_idle());
        }
        let of_one = live.keys().filter(|known| known.mark == id.mark).count();
        if live.len() >= MAX_SESSIONS || of_one >= MAX_SESSIONS_OF_ONE {
            let message = "too many sessions subscribe or listen at this node: end some of them, or ask another node";
            return Err(RpcError::new(code::UNAVAILABLE, message));
        }
        let session = Arc::new(Live::new());
        live.insert(id.clone(), Arc::clone(&session));
        Ok(session)
    }

    /// What this node holds of a session, if it holds something.
    pub fn get(&self, id: &SessionId) -> Option<Arc<Live>> {
        self.lock().get(id).cloned()
    }

    /// Ends a session: its stream, and what waits for its client.
    pub fn end(&self, id: &SessionId) {
        if let Some(session) = self.lock().remove(id) {
            session.end();
        }
        self.ended().insert(id.mark, id.unique);
    }

    /// Whether a session was ended here.
    pub fn is_ended(&self, id: &SessionId) -> bool {
        self.ended().contains(id.mark, id.unique)
    }

    fn ended(&self) -> MutexGuard<'_, Shares> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a node holds of one session.
pub(super) struct Live {
    held: Mutex<Held>,
    /// Wakes the stream when the subscriptions are others.
    pub changed: Notify,
}

struct Held {
    /// Each with the version that the client is known to have seen.
    subscriptions: BTreeMap<Watched, Option<u64>>,
    /// Ends the stream that is open.
    stream: Option<CancellationToken>,
    /// Who waits for an answer of the client, by the id of the question.
    questions: HashMap<String, oneshot::Sender<Result<Value, Value>>>,
    /// What takes a call back, by the id of its request.
    calls: HashMap<String, CancellationToken>,
    /// The least severe log messages that its client wants.
    log_level: Option<Level>,
    used: Instant,
}

impl Live {
    fn new() -> Self {
        let held = Held {
            subscriptions: BTreeMap::new(),
            stream: None,
            questions: HashMap::new(),
            calls: HashMap::new(),
            log_level: None,
            used: Instant::now(),
        };
        Self { held: Mutex::new(held), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        self.lock().used = Instant::now();
    }

    fn is_idle(&self) -> bool {
        let held = self.lock();
        let is_waited_for = held.stream.as_ref().is_some_and(|stream| !stream.is_cancelled())
            || !held.questions.is_empty()
            || !held.calls.is_empty();
        !is_waited_for && held.used.elapsed() >= IDLE
    }

    fn end(&self) {
        let mut held = self.lock();
        if let Some(stream) = held.stream.take() {
            stream.cancel();
        }
        held.questions.clear();
        held.calls.drain().for_each(|(_, call)| call.cancel());
    }

    /// Subscribes to a resource in the version that the client may know.
    ///
    /// # Errors
    /// When there are too many.
    pub fn subscribe(&self, to: Watched, seen: Option<u64>) -> Result<(), RpcError> {
        let mut held = self.lock();
        if held.subscriptions.len() >= MAX_SUBSCRIPTIONS && !held.subscriptions.contains_key(&to) {
            let message = format!("a session subscribes to {MAX_SUBSCRIPTIONS} resources at most: end some of them");
            return Err(RpcError::new(code::UNAVAILABLE, message));
        }
        let others = held.subscriptions.keys().filter(|known| **known != to).map(Watched::weight);
        if others.sum::<usize>() + to.weight() > MAX_ELSEWHERE_BYTES {
            let message = "the URIs of other servers' resources of this session are too long together: end some, or begin another session";
            return Err(RpcError::new(code::UNAVAILABLE, message));
        }
        held.subscriptions.entry(to).or_insert(seen);
        drop(held);
        self.changed.notify_one();
        Ok(())
    }

    /// Takes up what the client was told of elsewhere. A session that has subscriptions here has all of them: what a client names
    /// beside them takes no places.
    pub fn resume(&self, told: impl FnOnce() -> BTreeMap<Watched, u64>) {
        let mut held = self.lock();
        if held.subscriptions.is_empty() {
            held.subscriptions = told().into_iter().map(|(watched, seen)| (watched, Some(seen))).collect();
        }
    }

    pub fn unsubscribe(&self, from: &Watched) {
        self.lock().subscriptions.remove(from);
        self.changed.notify_one();
    }

    /// Sets the least severe log messages that its client wants. Another node does not know of it, and sends what it sends to who
    /// never said.
    pub fn set_log_level(&self, level: Level) {
        self.lock().log_level = Some(level);
    }

    pub fn log_level(&self) -> Option<Level> {
        self.lock().log_level
    }

    /// What it subscribes to.
    pub fn subscriptions(&self) -> BTreeMap<Watched, Option<u64>> {
        self.lock().subscriptions.clone()
    }

    /// Notes what the client was sent.
    pub fn saw(&self, seen: &BTreeMap<Watched, u64>) {
        let mut held = self.lock();
        held.used = Instant::now();
        for (watched, version) in seen {
            if let Some(known) = held.subscriptions.get_mut(watched) {
                *known = Some(*version);
            }
        }
    }

    /// Begins a stream; one that is open ends. A client that comes back after a break is not shut out by what it has lost.
    pub fn begin_stream(&self) -> CancellationToken {
        let stream = CancellationToken::new();
        let mut held = self.lock();
        held.used = Instant::now();
        if let Some(before) = held.stream.replace(stream.clone()) {
            before.cancel();
        }
        stream
    }

    /// Waits for an answer of the client to the question of this id.
    ///
    /// # Errors
    /// When it is asked too much already.
    pub fn expect(self: &Arc<Self>, question: &Value) -> Result<Expected, RpcError> {
        let (answer, answered) = oneshot::channel();
        let mut held = self.lock();
        if held.questions.len() >= MAX_PENDING {
            return Err(RpcError::new(code::UNAVAILABLE, "too many questions wait for this client"));
        }
        let key = question.to_string();
        held.questions.insert(key.clone(), answer);
        drop(held);
        Ok(Expected { session: Arc::clone(self), key, answered })
    }

    /// Takes an answer of the client; whether somebody waited for it.
    pub fn answer(&self, question: &Value, outcome: Result<Value, Value>) -> bool {
        let waits = self.lock().questions.remove(&question.to_string());
        waits.is_some_and(|waits| waits.send(outcome).is_ok())
    }

    /// What tells of a call that the client takes back. Given back when dropped.
    ///
    /// # Errors
    /// When too many calls are under way.
    pub fn begin_call(self: &Arc<Self>, request: &str) -> Result<Begun, RpcError> {
        let mut held = self.lock();
        if held.calls.len() >= MAX_PENDING || held.calls.contains_key(request) {
            let message = "too many calls of this session are under way, or two of the same id: wait for some of them";
            return Err(RpcError::new(code::UNAVAILABLE, message));
        }
        let taken_back = CancellationToken::new();
        held.calls.insert(request.to_owned(), taken_back.clone());
        drop(held);
        Ok(Begun { session: Arc::clone(self), request: request.to_owned(), taken_back })
    }

    /// Takes a call back.
    pub fn take_back(&self, request: &Value) {
        if let Some(call) = self.lock().calls.get(&request.to_string()) {
            call.cancel();
        }
    }
}

/// A question that the client was asked. Nobody waits for it any more when this is dropped.
pub(super) struct Expected {
    session: Arc<Live>,
    key: String,
    answered: oneshot::Receiver<Result<Value, Value>>,
}

impl Expected {
    /// The answer; none when the session ended or the time is over.
    pub async fn within(mut self, limit: Duration) -> Option<Result<Value, Value>> {
        tokio::time::timeout(limit, &mut self.answered).await.ok()?.ok()
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.session.lock().questions.remove(&self.key);
    }
}

/// A call that is under way.
pub(super) struct Begun {
    session: Arc<Live>,
    request: String,
    /// Canceled when the client takes the call back.
    pub taken_back: CancellationToken,
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.session.lock().calls.remove(&self.request);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use towline_core::PrincipalRole;

    use super::*;

    fn named(id: &str) -> Principal {
        Principal::Named { id: id.parse().unwrap(), role: PrincipalRole::User }
    }

    #[test]
    fn an_id_says_what_its_client_is_and_is_good_for_its_principal_only() {
        let id = SessionId::new(WITH_SESSIONS[1], true, &named("user:ada"));
        let text = id.to_string();
        assert!(text.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), "{text}");
        let read = SessionId::read(&text, &named("user:ada")).unwrap();
        assert_eq!((read.speaker().version, read.speaker().elicits), (WITH_SESSIONS[1], true));
        assert_eq!(SessionId::read(&text, &named("user:bob")), None, "another's");
        assert_eq!(SessionId::read(&text, &Principal::Operator), None);
        for wrong in ["", "x", "9e-0-0", "0x-0000000000000000-0", &text.to_uppercase(), &format!("{text} ")] {
            assert_eq!(SessionId::read(wrong, &named("user:ada")), None, "{wrong}");
        }
    }

    #[test]
    fn sessions_have_a_bound_for_all_and_for_one_and_end_for_good() {
        let sessions = Sessions::new();
        let of = |who: &str| SessionId::new(WITH_SESSIONS[0], false, &named(who));
        for _ in 0..MAX_SESSIONS_OF_ONE {
            sessions.open(&of("user:ada")).unwrap();
        }
        assert!(sessions.open(&of("user:ada")).is_err(), "one caller");
        let bob = of("user:bob");
        sessions.open(&bob).unwrap();
        for number in 0..MAX_SESSIONS {
            drop(sessions.open(&of(&format!("user:{number}"))));
        }
        assert_eq!(sessions.lock().len(), MAX_SESSIONS);
        assert!(sessions.open(&of("user:eve")).is_err(), "all callers");
        sessions.end(&bob);
        assert!(sessions.is_ended(&bob) && sessions.get(&bob).is_none());
        assert!(sessions.open(&of("user:eve")).is_ok(), "the place of the one that ended");
        for _ in 0..MAX_ENDED * 2 {
            sessions.end(&of("user:mallory"));
        }
        assert!(sessions.is_ended(&bob), "whatever others end");
    }

    #[test]
    fn a_session_subscribes_up_to_a_bound() {
        let session = Live::new();
        let task = || Watched::Task(towline_core::TaskId::from_uuid(Uuid::now_v7()));
        let first = task();
        session.subscribe(first.clone(), None).unwrap();
        for _ in 1..MAX_SUBSCRIPTIONS {
            session.subscribe(task(), None).unwrap();
        }
        assert!(session.subscribe(task(), None).is_err());
        assert!(session.subscribe(first.clone(), None).is_ok(), "what is subscribed to already");
        session.unsubscribe(&first);
        assert!(session.subscribe(task(), None).is_ok());

        let session = Live::new();
        let long = |name: &str| Watched::of(&format!("note://{name}{}", "x".repeat(MAX_ELSEWHERE_BYTES / 2)));
        session.subscribe(long("a"), None).unwrap();
        assert!(session.subscribe(long("b"), None).is_err(), "it is named in a header");
        assert!(session.subscribe(long("a"), None).is_ok(), "what is subscribed to already");
    }

    #[test]
    fn what_a_client_says_that_it_was_told_of_takes_no_places_of_its_subscriptions() {
        let session = Live::new();
        let task = || Watched::Task(towline_core::TaskId::from_uuid(Uuid::now_v7()));
        let (first, second) = (task(), task());
        session.resume(|| BTreeMap::from([(first.clone(), 3)]));
        assert_eq!(session.subscriptions(), BTreeMap::from([(first.clone(), Some(3))]), "from another node");
        session.resume(|| (0..MAX_SUBSCRIPTIONS as u64).map(|seen| (task(), seen)).collect());
        assert_eq!(session.subscriptions().len(), 1);
        session.subscribe(second, None).unwrap();
    }

    #[tokio::test]
    async fn an_answer_reaches_who_asked_and_nobody_when_nobody_waits() {
        let session = Arc::new(Live::new());
        let expected = session.expect(&json!("q-1")).unwrap();
        assert!(session.answer(&json!("q-1"), Ok(json!({ "action": "accept" }))));
        assert_eq!(expected.within(Duration::from_secs(10)).await, Some(Ok(json!({ "action": "accept" }))));
        assert!(!session.answer(&json!("q-1"), Ok(json!({}))), "answered already");
        drop(session.expect(&json!("q-2")).unwrap());
        assert!(!session.answer(&json!("q-2"), Ok(json!({}))), "given up");
    }

    #[test]
    fn a_second_stream_of_a_session_ends_the_first() {
        let session = Live::new();
        let first = session.begin_stream();
        let second = session.begin_stream();
        assert!(first.is_cancelled() && !second.is_cancelled());
    }
}

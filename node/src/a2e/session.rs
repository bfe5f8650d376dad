//! Sessions of agents: what they have agreed on, what waits to be read by them, and what they were asked.
//!
//! A session is in the memory of the node that began it, and of one principal. What it is to be told waits in a queue with a
//! bound, from before its stream is open, and a stream that broke goes on behind the last message that it names
//! (`Last-Event-ID`). An agent that reads too slowly, or that is silent and listens no more, loses its session: so nothing is
//! left out without its knowledge.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::body::Bytes;
use serde_json::Value;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use towline_core::Principal;

use super::{
    message::{Code, Failure, Incoming},
    servers::Key,
};
use crate::auth::Recent;

/// Most sessions of one node: each has a queue and calls under way.
const MAX_SESSIONS: usize = 1_024;

/// Most of these of one principal: one caller must not take the places of all others.
const MAX_SESSIONS_OF_ONE: usize = 64;

/// A session that nobody listens to and that says nothing ends after this time: agents come back within half a minute.
const IDLE: Duration = Duration::from_secs(300);

/// Most requests of one session that are under way.
pub(super) const MAX_PARALLEL: usize = 16;

/// Most messages that wait to be read, and most bytes: an agent that is this far behind is gone.
const MAX_QUEUE: usize = 1_024;
const MAX_QUEUE_BYTES: usize = 16 * 1024 * 1024;

/// Most bytes of the queues of all sessions: the next one that fills its queue ends.
const MAX_BYTES: usize = 256 * 1024 * 1024;

/// Most of these of the sessions of one principal, of which the next one that fills its queue ends: who does not read ends no session
/// of others.
const MAX_BYTES_OF_ONE: usize = MAX_BYTES / 8;

/// Unread messages beyond which what is only nice to know is left out: progress, and words of a log.
const CROWDED: usize = MAX_QUEUE / 2;

/// Messages that were read and are kept for a stream that broke, and their bytes.
const KEPT: usize = 64;
const KEPT_BYTES: usize = 4 * 1024 * 1024;

/// Ids of requests that are remembered: agents send again what they do not know to have arrived.
const MAX_SEEN: usize = 1_024;

/// Most questions that wait for the answer of one agent.
const MAX_PENDING: usize = 16;

/// Most resources that one session subscribes to.
const MAX_SUBSCRIPTIONS: usize = 128;

/// The sessions of a node.
#[derive(Default)]
pub(super) struct Sessions {
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    /// Bytes of all queues.
    bytes: Arc<AtomicUsize>,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session; none when there is no place for it.
    pub fn begin(&self, by: &Principal) -> Option<Arc<Session>> {
        let owner = by.owner();
        let mut sessions = self.lock();
        if sessions.len() >= MAX_SESSIONS
            || sessions.values().filter(|one| one.owner == owner).count() >= MAX_SESSIONS_OF_ONE
        {
            end_idle(&mut sessions);
        }
        if sessions.len() >= MAX_SESSIONS
            || sessions.values().filter(|one| one.owner == owner).count() >= MAX_SESSIONS_OF_ONE
        {
            return None;
        }
        let beside = sessions.values().find(|one| one.owner == owner);
        let of_one = beside.map(|session| Arc::clone(&session.bytes.of_one)).unwrap_or_default();
        let session = Arc::new(Session::new(by, QueueBytes { of_all: Arc::clone(&self.bytes), of_one }));
        sessions.insert(session.id.to_string(), Arc::clone(&session));
        Some(session)
    }

    /// A session of this principal: another's looks as if it were not there.
    pub fn get(&self, id: &str, by: &Principal) -> Option<Arc<Session>> {
        self.lock().get(id).filter(|session| session.owner == by.owner() && !session.over.is_cancelled()).cloned()
    }

    /// All that live.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.lock().values().filter(|session| !session.over.is_cancelled()).cloned().collect()
    }

    /// Forgets those that are over, and ends those that nobody uses.
    pub fn sweep(&self) {
        end_idle(&mut self.lock());
    }

    /// Ends all.
    pub fn end(&self) {
        self.lock().drain().for_each(|(_, session)| session.end());
    }
}

fn end_idle(sessions: &mut HashMap<String, Arc<Session>>) {
    sessions.retain(|_, session| {
        if session.is_idle() {
            session.end();
        }
        !session.over.is_cancelled()
    });
}

/// One session.
pub(super) struct Session {
    pub id: Arc<str>,
    /// Who began it.
    pub by: Principal,
    pub owner: Principal,
    /// Canceled when it ends.
    pub over: CancellationToken,
    /// What is under way for it.
    pub work: TaskTracker,
    places: Arc<Semaphore>,
    bytes: QueueBytes,
    held: Mutex<Held>,
    wake: Notify,
}

/// Bytes of queues.
#[derive(Default)]
struct QueueBytes {
    /// Of all sessions.
    of_all: Arc<AtomicUsize>,
    /// Of those of the same principal.
    of_one: Arc<AtomicUsize>,
}

impl QueueBytes {
    fn take(&self, bytes: usize) {
        self.of_all.fetch_add(bytes, Ordering::Relaxed);
        self.of_one.fetch_add(bytes, Ordering::Relaxed);
    }

    fn give_back(&self, bytes: usize) {
        self.of_all.fetch_sub(bytes, Ordering::Relaxed);
        self.of_one.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.of_all.load(Ordering::Relaxed) + bytes <= MAX_BYTES
            && self.of_one.load(Ordering::Relaxed) + bytes <= MAX_BYTES_OF_ONE
    }
}

struct Held {
    queue: VecDeque<(u64, Bytes)>,
    /// Number of the last message.
    last: u64,
    /// Number of the last message that was read.
    read: u64,
    bytes: usize,
    /// What was said that counts once as long as it is unread, and under which number.
    once: HashMap<String, u64>,
    seen: Recent<String, ()>,
    has_mcp: bool,
    subscribed: BTreeSet<(Key, String)>,
    pending: HashMap<String, Pending>,
    stream: Option<CancellationToken>,
    /// Whether it ends once all was read.
    leaves: bool,
    used: Instant,
}

impl Held {
    /// How many messages nobody has read.
    fn unread(&self) -> usize {
        usize::try_from(self.last - self.read).unwrap_or(usize::MAX)
    }
}

/// A question that the agent was asked.
struct Pending {
    server: String,
    request: String,
    kind: &'static str,
    answer: oneshot::Sender<Incoming>,
}

impl Session {
    fn new(by: &Principal, bytes: QueueBytes) -> Self {
        let held = Held {
            queue: VecDeque::new(),
            last: 0,
            read: 0,
            bytes: 0,
            once: HashMap::new(),
            seen: Recent::new(MAX_SEEN),
            has_mcp: false,
            subscribed: BTreeSet::new(),
            pending: HashMap::new(),
            stream: None,
            leaves: false,
            used: Instant::now(),
        };
        Self {
            id: uuid::Uuid::new_v4().simple().to_string().into(),
            by: by.clone(),
            owner: by.owner(),
            over: CancellationToken::new(),
            work: TaskTracker::new(),
            places: Arc::new(Semaphore::new(MAX_PARALLEL)),
            bytes,
            held: Mutex::new(held),
            wake: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it: its stream, its calls, and what it was asked.
    pub fn end(&self) {
        self.over.cancel();
        let mut held = self.lock();
        held.pending.clear();
        held.queue.clear();
        self.bytes.give_back(std::mem::take(&mut held.bytes));
        if let Some(stream) = held.stream.take() {
            stream.cancel();
        }
    }

    /// Ends it once all was read.
    pub fn leave(&self) {
        let mut held = self.lock();
        held.leaves = true;
        let is_read = held.read == held.last;
        drop(held);
        if is_read {
            self.end();
        }
        self.wake.notify_one();
    }

    fn is_idle(&self) -> bool {
        let held = self.lock();
        let is_heard = held.stream.as_ref().is_some_and(|stream| !stream.is_cancelled());
        !is_heard && held.used.elapsed() >= IDLE
    }

    /// When it was used last.
    pub fn used(&self) -> Instant {
        self.lock().used
    }

    /// Notes that a message came; whether it is a new one.
    pub fn takes(&self, id: &str) -> bool {
        let mut held = self.lock();
        held.used = Instant::now();
        let id = id.to_owned();
        let is_new = held.seen.get(&id).is_none();
        held.seen.get_or(&id, || ());
        is_new
    }

    /// A place for one more request; none when too many are under way.
    pub fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// Notes what was agreed on.
    pub fn agree(&self, has_mcp: bool) {
        self.lock().has_mcp = has_mcp;
    }

    /// Whether it may use what this host has.
    pub fn has_mcp(&self) -> bool {
        self.lock().has_mcp
    }

    /// Has the agent told something. One that does not read loses its session.
    pub fn say(&self, message: &Value) {
        self.put(self.lock(), message);
    }

    /// The same for what is only nice to know: it is left out when much is unread.
    pub fn hint(&self, message: &Value) {
        let held = self.lock();
        if held.unread() < CROWDED {
            self.put(held, message);
        }
    }

    /// The same for what need not be told again as long as it is unread.
    pub fn say_once(&self, what: String, message: &Value) {
        let mut held = self.lock();
        let (read, next) = (held.read, held.last + 1);
        held.once.retain(|_, number| *number > read);
        if held.once.contains_key(&what) {
            return;
        }
        held.once.insert(what, next);
        self.put(held, message);
    }

    fn put(&self, mut held: MutexGuard<'_, Held>, message: &Value) {
        if self.over.is_cancelled() {
            return;
        }
        let text = Bytes::from(message.to_string());
        let is_much = held.bytes + text.len() > MAX_QUEUE_BYTES + KEPT_BYTES;
        if held.unread() >= MAX_QUEUE || is_much || !self.bytes.has_room_for(text.len()) {
            drop(held);
            tracing::warn!(session = %self.id, "an agent reads too slowly: its session ends");
            return self.end();
        }
        held.last += 1;
        let number = held.last;
        held.bytes += text.len();
        self.bytes.take(text.len());
        held.queue.push_back((number, text));
        drop(held);
        self.wake.notify_one();
    }

    /// Begins a stream behind a message that the agent knows, if it is kept; one that is open ends.
    pub fn begin_stream(&self, after: Option<u64>) -> CancellationToken {
        let stream = self.over.child_token();
        let mut held = self.lock();
        held.used = Instant::now();
        let first = held.queue.front().map_or(held.last, |(number, _)| number - 1);
        if let Some(after) = after {
            held.read = after.max(first).min(held.read);
        }
        if let Some(before) = held.stream.replace(stream.clone()) {
            before.cancel();
        }
        drop(held);
        self.wake.notify_one();
        stream
    }

    /// The next message and its number; waits until there is one.
    pub async fn next(&self) -> (u64, Bytes) {
        loop {
            let woken = self.wake.notified();
            if let Some(next) = self.read() {
                return next;
            }
            if self.lock().leaves {
                self.end();
            }
            woken.await;
        }
    }

    fn read(&self) -> Option<(u64, Bytes)> {
        let mut held = self.lock();
        let next = held.read + 1;
        let at = held.queue.iter().position(|(number, _)| *number == next)?;
        let found = held.queue[at].clone();
        held.read = next;
        held.used = Instant::now();
        // What was read is kept for a while.
        let (mut kept, mut bytes) = (at + 1, held.queue.iter().take(at + 1).map(|(_, text)| text.len()).sum::<usize>());
        while kept > KEPT || (bytes > KEPT_BYTES && kept > 1) {
            let Some((_, text)) = held.queue.pop_front() else { break };
            held.bytes -= text.len();
            self.bytes.give_back(text.len());
            bytes -= text.len();
            kept -= 1;
        }
        Some(found)
    }

    /// Notes a subscription.
    ///
    /// # Errors
    /// When there are too many.
    pub fn subscribe(&self, server: &Key, uri: &str) -> Result<(), Failure> {
        let mut held = self.lock();
        let of = (server.clone(), uri.to_owned());
        if held.subscribed.len() >= MAX_SUBSCRIPTIONS && !held.subscribed.contains(&of) {
            let message = format!("a session subscribes to {MAX_SUBSCRIPTIONS} resources at most");
            return Err(Failure::new(Code::Runtime, message));
        }
        held.subscribed.insert(of);
        Ok(())
    }

    /// Whether it wants to know that a resource has changed.
    pub fn subscribes(&self, server: &Key, uri: &str) -> bool {
        self.lock().subscribed.contains(&(server.clone(), uri.to_owned()))
    }

    /// What it wants to know of the resources of a server.
    pub fn subscriptions(&self, server: &Key) -> Vec<String> {
        self.lock().subscribed.iter().filter(|(of, _)| of == server).map(|(_, uri)| uri.clone()).collect()
    }

    /// Forgets the subscriptions to the resources of a server that is gone.
    pub fn forget(&self, server: &Key) {
        self.lock().subscribed.retain(|(of, _)| of != server);
    }

    /// Waits for the answer to a question of this id, which a server asks in its request; none when the agent is asked too much.
    pub fn expect(self: &Arc<Self>, id: &str, kind: &'static str, (server, request): (&str, &str)) -> Option<Expected> {
        let (answer, answered) = oneshot::channel();
        let mut held = self.lock();
        if held.pending.len() >= MAX_PENDING || self.over.is_cancelled() {
            return None;
        }
        let pending = Pending { server: server.to_owned(), request: request.to_owned(), kind, answer };
        held.pending.insert(id.to_owned(), pending);
        Some(Expected { session: Arc::clone(self), id: id.to_owned(), answered })
    }

    /// Passes an answer on to who waits for it; whether somebody does. An answer names the question, or the request that it is
    /// about: the published SDK leaves `req_id` empty.
    pub fn answer(&self, kind: Option<&'static str>, answer: Incoming) -> bool {
        let text = |field: &str| answer.text(field).unwrap_or_default().to_owned();
        let (question, server, request) = (text("req_id"), text("server_id"), text("mcp_request_id"));
        let mut held = self.lock();
        held.used = Instant::now();
        let is_of_kind = |pending: &Pending| kind.is_none_or(|kind| kind == pending.kind);
        let by_id = held.pending.get(&question).filter(|pending| is_of_kind(pending)).map(|_| question);
        let key = by_id.or_else(|| {
            let is_it =
                |pending: &Pending| is_of_kind(pending) && pending.server == server && pending.request == request;
            held.pending.iter().find(|(_, pending)| is_it(pending)).map(|(key, _)| key.clone())
        });
        let pending = key.and_then(|key| held.pending.remove(&key));
        pending.is_some_and(|pending| pending.answer.send(answer).is_ok())
    }
}

/// A question that the agent was asked. Nobody waits for it any more when this is dropped.
pub(super) struct Expected {
    session: Arc<Session>,
    id: String,
    answered: oneshot::Receiver<Incoming>,
}

impl Expected {
    /// The answer; none when the session ended or the time is over.
    pub async fn within(mut self, limit: Duration) -> Option<Incoming> {
        tokio::time::timeout(limit, &mut self.answered).await.ok()?.ok()
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.session.lock().pending.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use towline_core::PrincipalRole;

    use super::*;
    use crate::a2e::message::parse;

    fn named(id: &str, role: PrincipalRole) -> Principal {
        Principal::Named { id: id.parse().unwrap(), role }
    }

    fn session() -> Arc<Session> {
        Sessions::default().begin(&Principal::Operator).unwrap()
    }

    #[test]
    fn a_session_is_of_its_owner_alone_and_has_a_bound_for_one_and_for_all() {
        let sessions = Sessions::default();
        let ada = named("user:ada", PrincipalRole::User);
        let first = sessions.begin(&ada).unwrap();
        assert!(sessions.get(&first.id, &named("user:ada", PrincipalRole::Operator)).is_some(), "the same person");
        assert!(sessions.get(&first.id, &named("user:bob", PrincipalRole::User)).is_none());
        assert!(sessions.get(&first.id, &Principal::Operator).is_none());
        for _ in 1..MAX_SESSIONS_OF_ONE {
            sessions.begin(&ada).unwrap();
        }
        assert!(sessions.begin(&ada).is_none());
        let mut others = 0;
        while sessions.begin(&named(&format!("user:u{others}"), PrincipalRole::User)).is_some() {
            others += 1;
        }
        assert_eq!(others, MAX_SESSIONS - MAX_SESSIONS_OF_ONE);
        first.end();
        assert!(sessions.get(&first.id, &ada).is_none());
        assert!(sessions.begin(&ada).is_some(), "the place of the one that ended");
    }

    #[tokio::test]
    async fn what_is_said_before_the_stream_waits_and_a_stream_goes_on_behind_what_it_names() {
        let session = session();
        (1..=3).for_each(|number| session.say(&json!(number)));
        let first = session.begin_stream(None);
        assert_eq!(session.next().await, (1, Bytes::from("1")));
        assert_eq!(session.next().await, (2, Bytes::from("2")));
        let second = session.begin_stream(Some(1));
        assert!(first.is_cancelled() && !second.is_cancelled());
        assert_eq!(session.next().await, (2, Bytes::from("2")), "again: nobody knows that it arrived");
        // Nobody skips what it has not read.
        drop(session.begin_stream(Some(99)));
        assert_eq!(session.next().await, (3, Bytes::from("3")));
    }

    #[tokio::test]
    async fn who_does_not_read_loses_the_session_and_what_was_read_makes_room() {
        let session = session();
        for number in 0..5 * MAX_QUEUE {
            session.say(&json!(number));
            session.next().await;
        }
        assert!(!session.over.is_cancelled());
        assert!(session.lock().queue.len() <= KEPT + 1);
        for number in 0..=MAX_QUEUE {
            session.say(&json!(number));
        }
        assert!(session.over.is_cancelled());
        session.say(&json!("nothing"));
        assert!(session.lock().queue.is_empty());
        assert_eq!(session.bytes.of_all.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_flood_of_announcements_ends_no_session() {
        let session = session();
        for number in 0..5 * MAX_QUEUE {
            session.hint(&json!(number));
            session.say_once("tools".into(), &json!("tools"));
        }
        assert!(!session.over.is_cancelled());
        assert!(session.lock().unread() <= CROWDED + 1);
        while session.lock().unread() > 0 {
            session.next().await;
        }
        session.say_once("tools".into(), &json!("tools"));
        assert_eq!(session.lock().unread(), 1, "it was read, and is news again");
    }

    #[tokio::test]
    async fn an_answer_finds_its_question_by_either_of_its_names_and_only_of_its_kind() {
        let session = session();
        let read = |value: Value| parse(value.to_string().as_bytes()).unwrap();
        let by_id = session.expect("q1", "mcp/sample/resp", ("fs", "7")).unwrap();
        let root = read(json!({ "type": "mcp/root/list/resp", "id": "a", "req_id": "q1" }));
        assert!(!session.answer(Some("mcp/root/list/resp"), root));
        let answer = read(json!({ "type": "mcp/sample/resp", "id": "a", "req_id": "q1" }));
        assert!(session.answer(Some("mcp/sample/resp"), answer.clone()));
        assert!(!session.answer(Some("mcp/sample/resp"), answer), "once");
        assert!(by_id.within(Duration::from_secs(5)).await.is_some());
        let by_request = session.expect("q2", "mcp/sample/resp", ("fs", "8")).unwrap();
        let of = |server: &str| {
            let fields = json!({ "type": "mcp/sample/req", "id": "b", "req_id": "", "server_id": server, "mcp_request_id": "8" });
            session.answer(Some("mcp/sample/resp"), read(fields))
        };
        assert!(!of("other") && of("fs"));
        assert!(by_request.within(Duration::from_secs(5)).await.is_some());
        let _waiting: Vec<_> = (0..MAX_PENDING)
            .map(|at| session.expect(&at.to_string(), "mcp/sample/resp", ("fs", "9")).unwrap())
            .collect();
        assert!(session.expect("more", "mcp/sample/resp", ("fs", "9")).is_none());
    }

    #[test]
    fn who_does_not_read_takes_its_own_share_and_ends_no_session_of_others() {
        let sessions = Sessions::default();
        let user = |name: &str| Principal::Named {
            id: format!("user:{name}").try_into().unwrap(),
            role: towline_core::PrincipalRole::User,
        };
        let large = serde_json::Value::from("x".repeat(MAX_QUEUE_BYTES / 4));
        let other = sessions.begin(&user("bob")).unwrap();
        for _ in 0..MAX_SESSIONS_OF_ONE {
            let session = sessions.begin(&user("ada")).unwrap();
            for _ in 0..3 {
                session.say(&large);
            }
        }
        other.say(&large);
        assert!(!other.over.is_cancelled(), "bob reads");
        let held = other.bytes.of_all.load(Ordering::Relaxed);
        assert!(held <= MAX_BYTES_OF_ONE + MAX_QUEUE_BYTES, "{held} bytes are kept for ada");
    }

    #[test]
    fn a_message_that_comes_again_is_known() {
        let session = session();
        assert!(session.takes("a") && !session.takes("a") && session.takes("b"));
    }

    #[test]
    fn a_session_subscribes_up_to_a_bound() {
        let session = session();
        let key = |owner: Option<Principal>| Key { owner, id: "fs".to_owned() };
        let (configured, own) = (key(None), key(Some(Principal::Operator)));
        for number in 0..MAX_SUBSCRIPTIONS {
            session.subscribe(&configured, &number.to_string()).unwrap();
        }
        assert!(session.subscribe(&configured, "more").is_err() && session.subscribe(&configured, "0").is_ok());
        assert!(session.subscribes(&configured, "0"));
        assert!(!session.subscribes(&own, "0"), "a server that somebody registered under the same id is another one");
        session.forget(&configured);
        assert!(!session.subscribes(&configured, "0"));
    }
}

//! Who lives: a node keeps its session alive at the leader, stops by itself when it cannot, and is declared lost when it
//! does not. Between the two lies the promise that a task has one owner.
//!
//! ```text
//! sent        a node sends a keep-alive; an answer lets it act until sent + SELF_STOP
//! answered    the leader answers only while its last quorum acknowledgement is younger than the quorum lease, so no
//!             other leader can be elected before the answer; it counts the session from here: TTL
//! elected     a new leader knows no keep-alive. Whatever its predecessor answered was sent before the election, so
//!             GRACE = SELF_STOP + MARGIN after it every node that is not heard of has stopped by itself
//! ```
//!
//! All of it is measured with clocks that go on while the machine sleeps. Sessions live in the leader's memory; that a
//! node is lost is proposed and agreed on like everything else.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use openraft::Instant as _;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use towline_core::{
    BootId, Command, NodeHealth, NodeId, Rejection, State,
    mutants::{self, Mutant},
};
use towline_proto::v1;
use towline_trace::metrics::instruments::LEADER_CHANGES;

use crate::{
    ProposeError,
    handle::{ClusterHandle, Registration},
    leader::{Leadership, ReadIndex, Written, wall_clock},
    membership::FOUNDER,
    peers::{self, Lane},
    raft::{ELECTION_TIMEOUT_MAX_MS, RaftLeaderId, StateView, TypeConfig},
    routes::{Detours, Routes, Way},
    seams::{Clock, read_clock},
    unheard::{Unheard, what_to_check},
};

/// A node sends a keep-alive this often: three may be lost before it stops by itself.
const KEEP_ALIVE_EVERY: Duration = Duration::from_millis(250);
/// An answer that takes longer is not waited for; the next keep-alive may find another leader.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_millis(300);
/// Pause after a keep-alive that was not answered well: a leader may be about to be elected.
const KEEP_ALIVE_RETRY: Duration = Duration::from_millis(50);
/// After so many keep-alives in a row that came to nothing every other one goes to another node than the leader that is known
/// here. That one may be gone for good, and a node that was removed while it was away hears of no other leader.
const ASK_OTHERS_AFTER: u32 = 3;
/// How long a node acts after the sending of the last answered keep-alive.
pub(crate) const SELF_STOP: Duration = Duration::from_millis(900);
/// How long the leader counts a session after it answered. More than [`SELF_STOP`] by what work takes to stop.
const TTL: Duration = Duration::from_millis(1_500);
/// What is added to [`SELF_STOP`] where everything else is known: it covers timers that fire late.
const MARGIN: Duration = Duration::from_millis(200);
/// How long after its election a leader waits for nodes to show up, and the least it waits for one that seems dead.
const GRACE: Duration = Duration::from_millis(1_100);
const _: () = assert!(GRACE.as_millis() == SELF_STOP.as_millis() + MARGIN.as_millis());
const _: () = assert!(TTL.as_millis() >= GRACE.as_millis());
/// As long after its sending, a quorum acknowledgement keeps voters from electing another leader.
const QUORUM_LEASE: Duration = Duration::from_millis(ELECTION_TIMEOUT_MAX_MS);
/// The leader looks at its sessions this often.
const TICK: Duration = Duration::from_millis(50);
/// A leader that did not run for a while lets the keep-alives that wait in its sockets be read first.
const STALL: Duration = Duration::from_millis(250);
/// A node that is silent for this long is probed.
const SILENT: Duration = Duration::from_millis(400);
/// A probe that takes longer has failed.
const PROBE_TIMEOUT: Duration = Duration::from_millis(250);
/// A proposal of the leader itself; it tries again at a later tick.
const OWN_PROPOSAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Terminal tasks are swept this often at most.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// A leader whose disk is full hands over this often at most while it is the same leadership: nobody may take over.
const RELIEVE_EVERY: Duration = Duration::from_secs(30);
/// A new leader asks for its first read index again after this.
const READY_TIMEOUT: Duration = Duration::from_millis(500);
/// The machine slept if the two clocks moved apart by more than their readings can.
const SLEPT: Duration = Duration::from_millis(20);

type RaftInstant = openraft::alias::InstantOf<TypeConfig>;

/// The time since boot, sleep included.
pub(crate) fn boot_clock() -> Duration {
    read_clock(Clock::Boot)
}

/// The answer to a keep-alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeepAlive {
    /// The session goes on.
    Alive,
    /// The session has ended, or there was none: the node registers.
    Gone,
    /// This node leads, but not surely enough to answer.
    Unsure,
    /// This node does not lead.
    NotLeader(Option<NodeId>),
    /// The node that asks was removed from the cluster.
    Removed,
}

/// The sessions of all nodes, on the leader.
#[derive(Default)]
pub(crate) struct LeaderSessions(Mutex<Sessions>);

#[derive(Default)]
struct Sessions {
    reign: Option<Reign>,
    wake: WakeClock,
    pace: Pace,
}

/// Knows when this process last ran. While it did not, it heard nobody, and nobody's silence counts.
#[derive(Default)]
struct Pace {
    looked: Option<Duration>,
}

impl Pace {
    /// How long this process did not run since the last look, which was to be [`TICK`] ago; nothing if it was late by less than
    /// another one, as any timer may be.
    fn pause(&mut self, now: Duration) -> Option<Duration> {
        let since = now.saturating_sub(self.looked.replace(now)?);
        (since > TICK * 2).then(|| since - TICK)
    }
}

/// One leadership of this node.
struct Reign {
    leader: RaftLeaderId,
    since: Duration,
    /// Everything that leaders before this one committed is applied, so the state shows which sessions they ended.
    ready: bool,
    handing_over: bool,
    nodes: BTreeMap<NodeId, Heard>,
}

/// What the leader knows of one session.
#[derive(Debug, Clone, Copy)]
struct Heard {
    boot: BootId,
    at: Duration,
    expires: Duration,
    /// When it expires if the node's machine refuses connections.
    expires_if_refused: Duration,
    refused: bool,
    probing: bool,
    /// It was waited for at the end of its time, for what may lie in the sockets of a leader that was paused. Once, or a leader that
    /// is always late would lose nobody.
    waited_for: bool,
    /// Its end is proposed: it is not answered any more, whatever becomes of the proposal.
    ending: bool,
}

impl Heard {
    fn now(boot: BootId, now: Duration) -> Self {
        let (expires, expires_if_refused) = (now + TTL, now + GRACE);
        Self {
            boot,
            at: now,
            expires,
            expires_if_refused,
            refused: false,
            probing: false,
            waited_for: false,
            ending: false,
        }
    }

    fn before_election(boot: BootId, elected: Duration) -> Self {
        let expires = elected + GRACE;
        let heard = Self::now(boot, elected);
        Self { expires, expires_if_refused: expires, ..heard }
    }

    /// The leader did not run for `pause`, which ended now: that much of the silence was its own.
    fn excuse(&mut self, pause: Duration, now: Duration) {
        self.expires += pause;
        self.expires_if_refused += pause;
        let end = if self.refused { self.expires_if_refused } else { self.expires };
        if !self.waited_for && end < now + STALL {
            self.waited_for = true;
            self.expires = self.expires.max(now + STALL);
            self.expires_if_refused = self.expires_if_refused.max(now + STALL);
        }
    }

    /// The node has spoken, and this leader could not answer it: it lives, and its time has not begun anew.
    fn spoke(&mut self, now: Duration) {
        self.expires = self.expires.max(now + GRACE);
        self.expires_if_refused = self.expires_if_refused.max(now + GRACE);
    }

    fn over(&self, now: Duration) -> bool {
        if mutants::on(Mutant::LeaseExpiresAtOnce) {
            return now >= self.at + KEEP_ALIVE_EVERY + TICK;
        }
        now >= if self.refused { self.expires_if_refused } else { self.expires }
    }
}

/// Knows when the machine last woke from sleep. Raft's acknowledgements are stamped with a clock that sleeps with it, so
/// those from before are of unknown age.
#[derive(Default)]
struct WakeClock {
    apart: Duration,
    awake_since: Option<RaftInstant>,
}

impl WakeClock {
    fn awake_since(&mut self) -> Option<RaftInstant> {
        let apart = boot_clock().saturating_sub(read_clock(Clock::Monotonic));
        if apart > self.apart + SLEPT {
            self.awake_since = Some(RaftInstant::now());
        }
        self.apart = apart;
        self.awake_since
    }
}

impl LeaderSessions {
    /// Answers a keep-alive of a node.
    pub(crate) fn keep_alive(&self, leadership: &Leadership, node: NodeId, boot: BootId) -> KeepAlive {
        let Some(raft) = leadership.raft() else { return KeepAlive::NotLeader(leadership.leader()) };
        let leader = match raft.as_leader() {
            Ok(leader) => leader,
            Err(forward) => return KeepAlive::NotLeader(forward.leader_id.map(NodeId)),
        };
        // What is committed and not applied is of no use to anybody: another node is to lead.
        if leadership.applying().stall().is_some() {
            return KeepAlive::Unsure;
        }
        let mut sessions = self.lock();
        let awake_since = sessions.wake.awake_since();
        let Some(reign) = &mut sessions.reign else { return KeepAlive::Unsure };
        if reign.leader != *leader.leader_id() || !reign.ready || reign.handing_over {
            return KeepAlive::Unsure;
        }
        if !has_quorum_lease(leadership, leader.last_quorum_acked(), awake_since) {
            if let Some(heard) = reign.nodes.get_mut(&node).filter(|heard| heard.boot == boot && !heard.ending) {
                heard.spoke(boot_clock());
            }
            return KeepAlive::Unsure;
        }
        let up = leadership.view().read(|state| is_up(state, node, boot));
        let ending = reign.nodes.get(&node).is_some_and(|heard| heard.boot == boot && heard.ending);
        if !up || ending {
            return KeepAlive::Gone;
        }
        reign.nodes.insert(node, Heard::now(boot, boot_clock()));
        KeepAlive::Alive
    }

    /// Answers no keep-alive from here on: this leader hands its leadership over.
    pub(crate) fn hand_over(&self) {
        if let Some(reign) = &mut self.lock().reign {
            reign.handing_over = true;
        }
    }

    /// Takes leadership back that nobody took over.
    pub(crate) fn keep_leading(&self) {
        if let Some(reign) = &mut self.lock().reign {
            reign.handing_over = false;
        }
    }

    /// Notes who leads. Returns true while this node leads and has yet to catch up with its predecessors.
    fn observe(&self, leader: Option<RaftLeaderId>) -> bool {
        let mut sessions = self.lock();
        let Some(leader) = leader else {
            sessions.reign = None;
            return false;
        };
        if sessions.reign.as_ref().is_none_or(|reign| reign.leader != leader) {
            let (since, nodes) = (boot_clock(), BTreeMap::new());
            sessions.reign = Some(Reign { leader, since, ready: false, handing_over: false, nodes });
        }
        sessions.reign.as_ref().is_some_and(|reign| !reign.ready)
    }

    /// This leader has applied what its predecessors committed.
    fn ready(&self, leader: RaftLeaderId, view: &StateView) {
        let up: Vec<(NodeId, BootId)> = view.read(|state| live(state).collect());
        let mut sessions = self.lock();
        let Some(reign) = sessions.reign.as_mut().filter(|reign| reign.leader == leader) else { return };
        reign.ready = true;
        let since = reign.since;
        reign.nodes = up.into_iter().map(|(node, boot)| (node, Heard::before_election(boot, since))).collect();
    }

    /// Looks whether this process was paused. Called each [`TICK`], whatever else the leader waits for.
    fn look_at_pace(&self) {
        self.lock().excuse_for_pause(boot_clock());
    }

    /// Compares the sessions with the state, and takes out those that have ended.
    fn expire(&self, view: &StateView) -> Tick {
        let mut sessions = self.lock();
        // The timers of a process that was paused fire in any order.
        sessions.excuse_for_pause(boot_clock());
        let Some(reign) = sessions.reign.as_mut().filter(|reign| reign.ready && !reign.handing_over) else {
            return Tick::default();
        };
        let up: BTreeMap<NodeId, BootId> = view.read(|state| live(state).collect());
        reign.nodes.retain(|node, heard| up.get(node) == Some(&heard.boot));
        let now = boot_clock();
        let mut tick = Tick::default();
        for (node, boot) in up {
            let heard = reign.nodes.entry(node).or_insert_with(|| Heard::now(boot, now));
            if heard.over(now) {
                if !std::mem::replace(&mut heard.ending, true) {
                    tracing::warn!(%node, "session ended without a word");
                }
                tick.lost.push((node, boot));
            } else if !heard.refused && !heard.probing && now > heard.at + SILENT {
                heard.probing = true;
                tick.silent.push((node, boot));
            }
        }
        tick
    }

    /// The end of a session is applied: whoever registers from here on begins another one.
    fn ended(&self, node: NodeId, boot: BootId) {
        if let Some(reign) = &mut self.lock().reign
            && reign.nodes.get(&node).is_some_and(|heard| heard.boot == boot && heard.ending)
        {
            reign.nodes.remove(&node);
        }
    }

    fn probed(&self, node: NodeId, boot: BootId, refused: bool) {
        let mut sessions = self.lock();
        let heard = sessions.reign.as_mut().and_then(|reign| reign.nodes.get_mut(&node));
        if let Some(heard) = heard.filter(|heard| heard.boot == boot && heard.probing) {
            heard.probing = false;
            heard.refused = refused;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    fn excuse_for_pause(&mut self, now: Duration) {
        let Some(pause) = self.pace.pause(now) else { return };
        let Some(reign) = &mut self.reign else { return };
        tracing::debug!(
            pause_ms = pause.as_millis() as u64,
            nodes = reign.nodes.len(),
            "this leader did not run: sessions last longer by that"
        );
        reign.nodes.values_mut().filter(|heard| !heard.ending).for_each(|heard| heard.excuse(pause, now));
    }
}

#[derive(Default)]
struct Tick {
    lost: Vec<(NodeId, BootId)>,
    silent: Vec<(NodeId, BootId)>,
}

fn is_up(state: &State, node: NodeId, boot: BootId) -> bool {
    let fits = |node: &towline_core::Node| node.health == NodeHealth::Up && node.boot == Some(boot) && !node.leaving;
    state.node(node).is_some_and(fits)
}

fn live(state: &State) -> impl Iterator<Item = (NodeId, BootId)> {
    state.nodes().filter(|node| node.health == NodeHealth::Up).filter_map(|node| Some((node.id, node.boot?)))
}

/// Whether voters are still bound to this leader. A leader that is the only voter is bound to itself.
fn has_quorum_lease(leadership: &Leadership, acked: Option<RaftInstant>, awake_since: Option<RaftInstant>) -> bool {
    if leadership.is_only_voter() || mutants::on(Mutant::IsolatedLeaderRenews) {
        return true;
    }
    let Some(acked) = acked else { return false };
    acked.elapsed() < QUORUM_LEASE && awake_since.is_none_or(|since| acked >= since)
}

/// The duties of the leader, as long as this node is it: ends sessions, assigns what waits, sweeps what is old.
pub(crate) async fn lead(cluster: ClusterHandle) {
    futures::future::join(keep_pace(&cluster), do_duties(&cluster)).await;
}

/// Looks whether this process runs, also while a duty waits for its commit.
async fn keep_pace(cluster: &ClusterHandle) {
    loop {
        cluster.leader_sessions().look_at_pace();
        tokio::time::sleep(TICK).await;
    }
}

async fn do_duties(cluster: &ClusterHandle) {
    let mut done = Done { swept: Instant::now(), relieved: None };
    loop {
        tokio::time::sleep(TICK).await;
        let leader = cluster.leadership().leads();
        if cluster.leader_sessions().observe(leader) {
            let Some(leader) = leader else { continue };
            catch_up(cluster, leader).await;
        }
        if let Some(leader) = leader {
            end_sessions(cluster).await;
            housekeeping(cluster, leader, &mut done).await;
        }
    }
}

async fn catch_up(cluster: &ClusterHandle, leader: RaftLeaderId) {
    let leadership = cluster.leadership();
    let caught_up = async {
        let ReadIndex::At(index) = leadership.read_index().await else { return false };
        leadership.view().wait_applied(index).await;
        true
    };
    if tokio::time::timeout(READY_TIMEOUT, caught_up).await == Ok(true) {
        cluster.leader_sessions().ready(leader, leadership.view());
        LEADER_CHANGES.one(&[]);
        tracing::info!(node = %cluster.node_id(), "leads");
    }
}

async fn end_sessions(cluster: &ClusterHandle) {
    let tick = cluster.leader_sessions().expire(cluster.leadership().view());
    for (node, boot) in tick.silent {
        if node == cluster.node_id() {
            continue;
        }
        let cluster = cluster.clone();
        tokio::spawn(async move {
            let refused = is_refused(&cluster, node).await;
            cluster.leader_sessions().probed(node, boot, refused);
        });
    }
    join_all(tick.lost.into_iter().map(|(node, boot)| end_session(cluster, node, boot))).await;
}

async fn end_session(cluster: &ClusterHandle, node: NodeId, boot: BootId) {
    let written = cluster.leadership().write_own(Command::NodeLost { node, boot }, OWN_PROPOSAL_TIMEOUT).await;
    if matches!(written, Written::Applied { .. }) {
        cluster.leader_sessions().ended(node, boot);
        cluster.troubles().said(node, "");
    } else {
        tracing::debug!(%node, ?written, "end of session is proposed again");
    }
}

/// A node whose machine refuses connections, and that does not answer on one that may still stand, has no process.
async fn is_refused(cluster: &ClusterHandle, node: NodeId) -> bool {
    if !cluster.peers().refuses(node).await {
        return false;
    }
    let mut client = cluster.peers().peer(node, Lane::Session);
    let probe = tokio::time::timeout(PROBE_TIMEOUT, client.probe(v1::ProbeRequest {})).await;
    !matches!(probe, Ok(Ok(_)))
}

/// When this node last did what is not done at each tick.
struct Done {
    swept: Instant,
    relieved: Option<(RaftLeaderId, Instant)>,
}

async fn housekeeping(cluster: &ClusterHandle, leader: RaftLeaderId, done: &mut Done) {
    let leadership = cluster.leadership();
    let now = wall_clock();
    let (founded, assignable) =
        leadership.view().read(|state| (state.cluster().is_some(), state.has_assignable() || state.has_waited(now)));
    if !founded && cluster.node_id() == FOUNDER {
        own(leadership, cluster.found_command()).await;
    }
    if assignable {
        own(leadership, Command::AssignPending).await;
    }
    if let Some(level) = leadership.view().read(State::next_level) {
        tracing::info!(level = level.number(), "every member knows this feature level: its rules count from here on");
        own(leadership, Command::Raise { level }).await;
    }
    if leadership.log().is_some_and(|log| log.has_room().is_err())
        && done.relieved.is_none_or(|(led, at)| led != leader || at.elapsed() >= RELIEVE_EVERY)
    {
        done.relieved = Some((leader, Instant::now()));
        tracing::warn!(node = %cluster.node_id(), "disk is full: leadership is handed over");
        cluster.hand_over().await;
    }
    if done.swept.elapsed() >= SWEEP_EVERY {
        done.swept = Instant::now();
        if leadership.view().read(|state| state.has_sweepable(wall_clock())) {
            own(leadership, Command::Sweep).await;
        }
    }
}

async fn own(leadership: &Leadership, command: Command) {
    match leadership.write_own(command, OWN_PROPOSAL_TIMEOUT).await {
        Written::Applied { outcome: Err(rejection), .. } => tracing::warn!(%rejection, "leader's own proposal"),
        Written::Applied { outcome: Ok(_), .. } | Written::NotLeader(_) => {}
        Written::Unavailable(reason) | Written::Unknown(reason) => {
            tracing::debug!(reason, "leader's own proposal is made again");
        }
    }
}

/// The session of this node, as it knows it.
pub(crate) struct OwnSession {
    /// Until when this node may act, in nanoseconds of [`boot_clock`].
    deadline: AtomicU64,
    acting: watch::Sender<bool>,
    renewed: Notify,
    registration: watch::Sender<Option<Registration>>,
    /// This node is no member any more.
    removed: watch::Sender<bool>,
    /// Why the leader has fenced this node off.
    fence: watch::Sender<Option<String>>,
}

impl Default for OwnSession {
    fn default() -> Self {
        Self {
            deadline: AtomicU64::new(0),
            acting: watch::Sender::new(false),
            renewed: Notify::new(),
            registration: watch::Sender::new(None),
            removed: watch::Sender::new(false),
            fence: watch::Sender::new(None),
        }
    }
}

impl OwnSession {
    pub(crate) fn may_act(&self) -> bool {
        boot_clock() < self.deadline()
    }

    pub(crate) fn acting(&self) -> watch::Receiver<bool> {
        self.acting.subscribe()
    }

    /// What this node registers with, from here on.
    pub(crate) fn set_registration(&self, registration: Registration) {
        self.registration.send_replace(Some(registration));
    }

    /// Ends the session on this side: nothing may act, and nothing registers again.
    pub(crate) fn end(&self) {
        self.registration.send_replace(None);
        self.stop_acting();
    }

    /// Nothing may act until the session is renewed.
    fn stop_acting(&self) {
        self.deadline.store(0, Ordering::SeqCst);
        self.acting.send_replace(false);
    }

    /// The cluster has removed this node.
    pub(crate) fn end_for_good(&self) {
        self.end();
        self.removed.send_replace(true);
    }

    /// Returns when the cluster has removed this node.
    pub(crate) async fn removed(&self) {
        let mut removed = self.removed.subscribe();
        if removed.wait_for(|removed| *removed).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends the session because the leader has fenced this node off, or another process is this node.
    pub(crate) fn end_fenced(&self, reason: String) {
        self.end();
        self.fence.send_replace(Some(reason));
    }

    /// Returns when this node was fenced off, with the reason.
    pub(crate) async fn fenced(&self) -> String {
        let mut fence = self.fence.subscribe();
        match fence.wait_for(Option::is_some).await.map(|fence| fence.clone()) {
            Ok(Some(reason)) => reason,
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Lets this node act for a while after `sent`, unless its session was ended meanwhile: the guard keeps
    /// [`OwnSession::end`] waiting.
    fn renew(&self, sent: Duration) {
        let registration = self.registration.borrow();
        if registration.is_none() {
            return;
        }
        let deadline = u64::try_from((sent + SELF_STOP).as_nanos()).unwrap_or(u64::MAX);
        self.deadline.fetch_max(deadline, Ordering::SeqCst);
        if self.may_act() {
            self.acting.send_if_modified(|acting| !std::mem::replace(acting, true));
        }
        self.renewed.notify_one();
    }

    fn deadline(&self) -> Duration {
        Duration::from_nanos(self.deadline.load(Ordering::SeqCst))
    }
}

/// Turns the signal off when the deadline passes. Looks often, since timers stand still while the machine sleeps.
pub(crate) async fn watch_deadline(session: Arc<OwnSession>) {
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    loop {
        let left = session.deadline().saturating_sub(boot_clock());
        if left.is_zero() {
            session.acting.send_if_modified(|acting| std::mem::replace(acting, false));
            session.renewed.notified().await;
        } else {
            tokio::time::sleep(left.min(LOOK_EVERY)).await;
        }
    }
}

/// Keeps this node's session alive once it has registered, and registers again when the leader says that it is gone.
pub(crate) async fn keep_alive(cluster: ClusterHandle) {
    let session = Arc::clone(cluster.own_session());
    let mut registration = session.registration.subscribe();
    let mut hint = None;
    let mut unanswered = 0_u32;
    let mut detours = Detours::default();
    // Whether this node has applied its latest registration. Until then what it knows of its leases may be from before their
    // end, and it must not act.
    let mut is_current = true;
    let mut unheard = None;
    loop {
        let registered = registration.wait_for(Option::is_some).await;
        let Ok(Some(current)) = registered.map(|registration| registration.clone()) else { return };
        let (sent, next) = (boot_clock(), Instant::now() + KEEP_ALIVE_EVERY);
        let answer = match beat(&cluster, hint.take(), &mut detours, unanswered).await {
            Beat::Answered(answer) => answer,
            Beat::Fenced(reason) => return session.end_fenced(reason),
        };
        note_silence(&cluster, unheard.get_or_insert_with(|| Unheard::since(sent)), answer);
        let is_answered = !matches!(answer, KeepAlive::NotLeader(None) | KeepAlive::Unsure);
        unanswered = if is_answered { 0 } else { unanswered.saturating_add(1) };
        match answer {
            KeepAlive::Alive if is_current => {
                session.renew(sent);
                tokio::time::sleep_until(next).await;
            }
            KeepAlive::Alive | KeepAlive::Gone => match announce(&cluster, &current, &mut is_current).await {
                Ok(()) => {}
                // Its vote may still be needed to see it out: it goes on until the others refuse it.
                Err(ProposeError::Rejected(Rejection::NodeRemoved { .. })) => {
                    session.stop_acting();
                    tokio::time::sleep(KEEP_ALIVE_EVERY).await;
                }
                Err(error) => {
                    tracing::debug!(%error, "registration is made again");
                    tokio::time::sleep(KEEP_ALIVE_EVERY).await;
                }
            },
            KeepAlive::Removed => return session.end_for_good(),
            KeepAlive::NotLeader(other) => {
                hint = other.filter(|other| *other != cluster.node_id());
                if hint.is_none() {
                    detours.want();
                }
                hint = hint.or_else(|| other_to_ask(&cluster, unanswered));
                tokio::time::sleep(KEEP_ALIVE_RETRY).await;
            }
            // Perhaps a leader of a cluster that has gone on without it, this node itself not least.
            KeepAlive::Unsure => {
                hint = other_to_ask(&cluster, unanswered);
                tokio::time::sleep(KEEP_ALIVE_RETRY).await;
            }
        }
    }
}

/// Says that this node is not answered once that lasts.
fn note_silence(cluster: &ClusterHandle, unheard: &mut Unheard, answer: KeepAlive) {
    let (me, now) = (cluster.node_id(), boot_clock());
    if answer == KeepAlive::Alive {
        unheard.heard(now);
    } else if unheard.is_to_be_said(now) {
        let known = cluster.local(|state| state.node(me).map(|node| node.addresses.clone()));
        let check = what_to_check(known.as_ref(), cluster.advertised());
        tracing::warn!(node = %me, check, "no leader has answered this node for a while");
    }
}

async fn announce(
    cluster: &ClusterHandle,
    registration: &Registration,
    is_current: &mut bool,
) -> Result<(), ProposeError> {
    *is_current = false;
    cluster.announce(registration).await?;
    *is_current = true;
    Ok(())
}

/// What came of one keep-alive.
enum Beat {
    Answered(KeepAlive),
    /// The leader has fenced this node off.
    Fenced(String),
}

/// Whom to ask after nobody could answer for a while; every second time, since the leader that is known may answer again.
fn other_to_ask(cluster: &ClusterHandle, unanswered: u32) -> Option<NodeId> {
    if unanswered < ASK_OTHERS_AFTER || unanswered.is_multiple_of(2) {
        return None;
    }
    any_other(cluster, unanswered / 2)
}

/// A node to ask where no leader is known: it may know one, or know that this node was removed. Each in turn.
fn any_other(cluster: &ClusterHandle, turn: u32) -> Option<NodeId> {
    let me = cluster.node_id();
    let others: Vec<NodeId> = cluster
        .local(|state| state.nodes().filter(|node| node.id != me && node.keeps_log()).map(|node| node.id).collect());
    let turn = usize::try_from(turn).unwrap_or_default().checked_rem(others.len())?;
    others.get(turn).copied()
}

async fn beat(cluster: &ClusterHandle, hint: Option<NodeId>, detours: &mut Detours, unanswered: u32) -> Beat {
    let unknown = Beat::Answered(KeepAlive::NotLeader(None));
    let leader = hint.or_else(|| cluster.leadership().leader());
    let routes = cluster.leadership().routes();
    // A worker that is not fed does not know what it holds, and lets its session end.
    if routes.is_some_and(|routes| routes.is_starved()) {
        return unknown;
    }
    let way = match routes {
        Some(routes) => routes.way(leader, detours, || cluster.helpers(routes)),
        None => leader.or_else(|| any_other(cluster, unanswered)).map(Way::straight),
    };
    let Some(Way { node: leader, send_on }) = way else { return unknown };
    let trouble = cluster.disk_trouble().map(|trouble| trouble.to_string()).unwrap_or_default();
    if leader == cluster.node_id() {
        cluster.troubles().said(leader, &trouble);
        return Beat::Answered(cluster.leader_sessions().keep_alive(cluster.leadership(), leader, cluster.boot()));
    }
    let route = send_on.then_some(v1::Route { send_on, caller: 0 });
    let request = v1::KeepAliveRequest { boot: cluster.boot().as_uuid().as_bytes().to_vec().into(), route, trouble };
    let mut client = cluster.peers().peer(leader, Lane::Session);
    let answer = tokio::time::timeout(KEEP_ALIVE_TIMEOUT, client.keep_alive(request)).await;
    let answer = match answer {
        Ok(Ok(answer)) => answer,
        Ok(Err(status)) if status.code() == tonic::Code::PermissionDenied => {
            return Beat::Answered(KeepAlive::Removed);
        }
        Ok(Err(status)) => {
            not_reached(routes, leader, send_on, peers::never_sent(&status));
            return unknown;
        }
        Err(_) => {
            not_reached(routes, leader, send_on, false);
            return unknown;
        }
    };
    Beat::Answered(match answer.into_inner().result {
        Some(v1::keep_alive_response::Result::Alive(alive)) => {
            cluster.troubles().told(alive.troubles);
            if let Some(routes) = routes {
                routes.told(alive.applied);
                if !send_on {
                    routes.confirm(leader);
                }
            }
            KeepAlive::Alive
        }
        Some(v1::keep_alive_response::Result::Gone(_)) => KeepAlive::Gone,
        Some(v1::keep_alive_response::Result::Unsure(_)) => KeepAlive::Unsure,
        Some(v1::keep_alive_response::Result::NotLeader(other)) => KeepAlive::NotLeader(other.leader.map(NodeId)),
        Some(v1::keep_alive_response::Result::Fenced(fenced)) => return Beat::Fenced(fenced.reason),
        None => KeepAlive::NotLeader(None),
    })
}

/// A worker goes around a leader that it does not reach.
fn not_reached(routes: Option<&Arc<Routes>>, node: NodeId, send_on: bool, surely: bool) {
    if let Some(routes) = routes.filter(|_| !send_on) {
        routes.not_reached(node, surely);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn boot() -> BootId {
        BootId::from_uuid(uuid::Uuid::from_u128(7))
    }

    fn registered() -> OwnSession {
        let session = OwnSession::default();
        session.set_registration(Registration { capacity: 1, agents: Vec::new(), labels: towline_core::Labels::new() });
        session
    }

    #[test]
    fn a_silent_node_outlives_its_own_stop_and_is_lost_after_its_time() {
        let heard = Heard::now(boot(), Duration::from_secs(10));
        assert!(!heard.over(Duration::from_secs(10) + SELF_STOP + MARGIN));
        assert!(heard.over(Duration::from_secs(10) + TTL));
    }

    #[test]
    fn a_refused_connection_shortens_the_wait_but_not_below_the_nodes_own_stop() {
        let heard = Heard { refused: true, ..Heard::now(boot(), Duration::from_secs(10)) };
        assert!(!heard.over(Duration::from_secs(10) + SELF_STOP + MARGIN - MS));
        assert!(heard.over(Duration::from_secs(10) + SELF_STOP + MARGIN));
    }

    fn leads(nodes: impl IntoIterator<Item = (NodeId, Heard)>) -> Sessions {
        let leader = RaftLeaderId { term: 1, node_id: 1 };
        let nodes = nodes.into_iter().collect();
        let reign = Reign { leader, since: Duration::ZERO, ready: true, handing_over: false, nodes };
        Sessions { reign: Some(reign), ..Sessions::default() }
    }

    fn over(sessions: &Sessions, now: Duration) -> bool {
        sessions.reign.as_ref().unwrap().nodes[&NodeId(2)].over(now)
    }

    #[test]
    fn what_a_leader_was_paused_is_not_counted_as_the_silence_of_others() {
        let begun = Duration::from_secs(10);
        for refused in [false, true] {
            let mut sessions = leads([(NodeId(2), Heard { refused, ..Heard::now(boot(), begun) })]);
            let (mut now, mut ran) = (begun, Duration::ZERO);
            sessions.excuse_for_pause(now);
            // As on a machine with far too much to do: it runs for a moment each half a second.
            let pause = Duration::from_millis(500);
            while ran < GRACE - TICK * 2 {
                now += pause;
                sessions.excuse_for_pause(now);
                assert!(!over(&sessions, now), "after {:?}, of which it ran for {ran:?}", now - begun);
                ran += TICK;
            }
            // From here on it runs, and hears nothing.
            let silent_since = now;
            while !over(&sessions, now) {
                now += TICK;
                sessions.excuse_for_pause(now);
            }
            assert!(now - silent_since <= TTL, "a node that is gone is lost all the same");
        }
    }

    #[test]
    fn a_leader_that_comes_back_reads_what_waits_for_it_before_it_gives_anybody_up() {
        let begun = Duration::from_secs(10);
        let mut sessions = leads([(NodeId(2), Heard::now(boot(), begun))]);
        sessions.excuse_for_pause(begun);
        let almost = begun + TTL - MS;
        let mut now = begun;
        while now + TICK < almost {
            now += TICK;
            sessions.excuse_for_pause(now);
        }
        now += Duration::from_secs(3);
        sessions.excuse_for_pause(now);
        assert!(!over(&sessions, now + STALL - MS));
        assert!(over(&sessions, now + STALL + TICK * 2));
    }

    #[test]
    fn a_leader_that_is_always_late_loses_a_node_that_is_gone_all_the_same() {
        for late in [TICK * 3, Duration::from_secs(1)] {
            let begun = Duration::from_secs(10);
            let mut sessions = leads([(NodeId(2), Heard::now(boot(), begun))]);
            let lost_at = (0..100).find(|look| {
                sessions.excuse_for_pause(begun + late * *look);
                over(&sessions, begun + late * *look)
            });
            assert!(lost_at.is_some_and(|look| look > 20), "each look counts for a tick of silence: {lost_at:?}");
        }
    }

    #[test]
    fn a_leader_on_time_gives_no_time_away() {
        let mut pace = Pace::default();
        let at = |ticks: u32| Duration::from_secs(10) + TICK * ticks;
        assert_eq!(pace.pause(at(0)), None, "the first look");
        assert_eq!([1, 2, 4].map(|ticks| pace.pause(at(ticks))), [None; 3], "as late as timers are");
        assert_eq!(pace.pause(at(14)), Some(TICK * 9));
    }

    #[test]
    fn a_node_that_speaks_to_a_leader_without_a_quorum_is_not_given_up() {
        let begun = Duration::from_secs(10);
        let mut heard = Heard::now(boot(), begun);
        heard.spoke(begun + TTL - MS);
        assert!(!heard.over(begun + TTL));
        assert!(heard.over(begun + TTL - MS + GRACE));
        heard.spoke(begun);
        assert_eq!(heard.expires, begun + TTL - MS + GRACE, "a late word shortens nothing");
    }

    #[test]
    fn a_new_leader_waits_out_what_its_predecessor_may_have_answered() {
        for refused in [false, true] {
            let heard = Heard { refused, ..Heard::before_election(boot(), Duration::from_secs(10)) };
            assert!(!heard.over(Duration::from_secs(10) + SELF_STOP + MARGIN - MS));
            assert!(heard.over(Duration::from_secs(10) + SELF_STOP + MARGIN));
        }
    }

    #[test]
    fn a_node_acts_from_the_sending_of_an_answered_keep_alive_and_not_from_its_answer() {
        let session = registered();
        session.renew(boot_clock().saturating_sub(SELF_STOP));
        assert!(!session.may_act());
        session.renew(boot_clock());
        assert!(session.may_act());
        assert!(*session.acting().borrow());
    }

    #[test]
    fn a_late_answer_does_not_shorten_a_session_and_an_ended_one_stays_ended() {
        let session = registered();
        session.renew(boot_clock());
        session.renew(boot_clock().saturating_sub(SELF_STOP));
        assert!(session.may_act());
        session.end();
        session.renew(boot_clock());
        assert!(!session.may_act());
        assert!(!*session.acting().borrow());
    }
}

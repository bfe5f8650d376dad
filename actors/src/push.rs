//! Tells the webhooks of clients what happens to their tasks. One per node, started by the dispatcher and restarted by it; only
//! where the operator turned it on.
//!
//! The state says which webhook is behind and which node has it; this actor runs one delivery for each of its own that has
//! something to be sent now, and claims those that nobody has. A delivery posts event by event, in order, and reports how far
//! it came; at the first event that is not taken it ends, and the webhook rests. What is reported late after a loss is sent
//! again by the next owner: each event arrives at least once.
//!
//! ```text
//! event committed ─hint─▶ due? ─▶ Delivery: page ▸ post ▸ post … ▸ report ─▶ Ended ─▶ rests, or due again
//! once a second ─────────▶ due? claim?
//! ```
//! Who claims is agreed without a word: each node has its rank for a webhook and waits so much longer, so that one where
//! push is off, or that is cut off, is passed by.

mod delivery;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::task::AbortOnDropHandle;
use towline_core::{
    Command, Digest, Effect, Epoch, NodeId, Principal, Proposal, State, TaskId, WebhookLease, WebhookName,
    limits::MAX_CLAIMED_PER_ENTRY,
};

use crate::{
    egress::{EgressClient, EgressPolicy},
    shared::Shared,
};

/// How often the state is looked through, beside the hints: for claims, for rests that end and for what a hint did not reach.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Deliveries at the same time on one node: each holds a page of events and a connection.
const MAX_DELIVERIES: usize = 64;

/// Deliveries at the same time to one host: one that hangs does not hold up those to others.
const MAX_DELIVERIES_PER_HOST: usize = 8;

/// Pause before the state is looked through for those that had no place: each look costs a pass over all webhooks.
const CROWDED_PAUSE: Duration = Duration::from_millis(50);

/// How much longer a node waits for each one that stands before it in the claim of a webhook: a claim takes less.
const CLAIM_PACE: Duration = Duration::from_secs(1);

/// What a node needs to tell webhooks.
#[derive(Debug, Clone)]
pub struct PushConfig {
    /// Where it may dial.
    pub policy: Arc<EgressPolicy>,
    /// Base URL under which callers reach this node, for links to large content.
    pub public_url: String,
}

/// Messages of the push actor.
pub(crate) enum PushMsg {
    /// A task has new events, or other webhooks.
    Task(TaskId),
    /// Look through the state.
    Look,
    /// This node may act, or may no longer.
    Session(bool),
    /// A delivery has come to its end.
    Ended { webhook: WebhookName, run: u64, rest: Option<Duration> },
}

/// What a push actor is started with.
pub(crate) struct Push {
    pub shared: Arc<Shared>,
    pub config: PushConfig,
}

/// What its deliveries use.
pub(crate) struct Tools {
    shared: Arc<Shared>,
    public_url: String,
    client: EgressClient,
}

struct Running {
    epoch: Epoch,
    host: String,
    /// Tells it from one that ran before under the same lease.
    run: u64,
    _task: AbortOnDropHandle<()>,
}

pub(crate) struct PushState {
    myself: ActorRef<PushMsg>,
    tools: Arc<Tools>,
    running: BTreeMap<WebhookName, Running>,
    /// Webhooks whose receiver did not take an event: under which lease, and until when they rest.
    resting: BTreeMap<WebhookName, (Epoch, Instant)>,
    /// Webhooks that nobody has, since when this node knows.
    unclaimed: BTreeMap<WebhookName, Instant>,
    /// Some were due and had no place.
    is_crowded: bool,
    runs: u64,
    _listeners: Vec<AbortOnDropHandle<()>>,
}

pub(crate) struct PushActor;

impl Actor for PushActor {
    type Msg = PushMsg;
    type State = PushState;
    type Arguments = Push;

    async fn pre_start(&self, myself: ActorRef<PushMsg>, push: Push) -> Result<PushState, ActorProcessingErr> {
        let Push { shared, config } = push;
        let client = EgressClient::new(config.policy)?;
        let listeners = vec![listen_to_effects(&shared, &myself), listen_to_session(&shared, &myself), tick(&myself)];
        Ok(PushState {
            myself,
            tools: Arc::new(Tools { shared, public_url: config.public_url, client }),
            running: BTreeMap::new(),
            resting: BTreeMap::new(),
            unclaimed: BTreeMap::new(),
            is_crowded: false,
            runs: 0,
            _listeners: listeners,
        })
    }

    async fn handle(
        &self,
        _: ActorRef<PushMsg>,
        message: PushMsg,
        state: &mut PushState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PushMsg::Task(task) => state.look_at(task),
            PushMsg::Look | PushMsg::Session(true) => state.look(),
            PushMsg::Session(false) => state.running.clear(),
            PushMsg::Ended { webhook, run, rest } => state.ended(webhook, run, rest),
        }
        Ok(())
    }
}

impl PushState {
    /// Starts what is due of one task, and ends what is no longer this node's to tell.
    fn look_at(&mut self, task: TaskId) {
        let cluster = &self.tools.shared.cluster;
        let (pending, gone) = cluster.local(|state| {
            let of_task = self.running.iter().filter(|(name, _)| name.task == task);
            (state.pending_webhooks_of(task), not_mine(state, of_task))
        });
        self.end(&gone);
        self.start_due(pending);
    }

    fn look(&mut self) {
        let cluster = &self.tools.shared.cluster;
        if !cluster.may_act() {
            self.running.clear();
            return;
        }
        let (pending, gone) = cluster.local(|state| {
            let pending: Vec<_> = state.pending_webhooks().collect();
            (pending, not_mine(state, self.running.iter()))
        });
        self.end(&gone);
        let due: BTreeSet<&WebhookName> = pending.iter().map(|(name, _)| name).collect();
        self.resting.retain(|name, _| due.contains(name));
        self.is_crowded = false;
        self.claim(&pending, Instant::now());
        self.start_due(pending);
    }

    fn end(&mut self, gone: &[WebhookName]) {
        for name in gone {
            self.running.remove(name);
        }
    }

    fn start_due(&mut self, pending: Vec<(WebhookName, Option<WebhookLease>)>) {
        let cluster = &self.tools.shared.cluster;
        let (node, boot) = (cluster.node_id(), cluster.boot());
        if !cluster.may_act() {
            return;
        }
        for (name, lease) in pending {
            let Some(lease) = lease.filter(|lease| lease.node == node && lease.boot == boot) else { continue };
            self.start(name, lease.epoch);
        }
    }

    fn start(&mut self, name: WebhookName, epoch: Epoch) {
        if self.running.get(&name).is_some_and(|running| running.epoch == epoch) {
            return;
        }
        let Some((host, wait)) = self.tools.shared.cluster.local(|state| {
            let webhook = state.webhook(&name)?;
            let host = self.tools.client.authority_of(&webhook.config.url);
            Some((host, webhook.failing.map(|failing| Duration::from_millis(failing.wait_ms))))
        }) else {
            return;
        };
        if self.rests(&name, epoch, wait) {
            return;
        }
        let to_host = self.running.values().filter(|running| running.host == host).count();
        if self.running.len() >= MAX_DELIVERIES || to_host >= MAX_DELIVERIES_PER_HOST {
            self.is_crowded = true;
            return;
        }
        self.runs += 1;
        let run = self.runs;
        let end = End { pusher: self.myself.clone(), webhook: name.clone(), run, rest: None };
        let task = tokio::spawn(delivery::run(Arc::clone(&self.tools), name.clone(), epoch, end));
        self.running.insert(name, Running { epoch, host, run, _task: AbortOnDropHandle::new(task) });
    }

    /// Whether a webhook rests. One that failed under another lease rests for what is left of its wait.
    fn rests(&mut self, name: &WebhookName, epoch: Epoch, wait: Option<Duration>) -> bool {
        let now = Instant::now();
        let known = self.resting.get(name).filter(|(known, _)| *known == epoch).map(|(_, until)| *until);
        let until = known.unwrap_or_else(|| {
            let left = |wait| self.tools.shared.cluster.local(|state| left_of_wait(state, name, wait));
            now + wait.map_or(Duration::ZERO, left)
        });
        self.resting.insert(name.clone(), (epoch, until));
        until > now
    }

    /// Takes those that nobody has, when it is this node's turn.
    fn claim(&mut self, pending: &[(WebhookName, Option<WebhookLease>)], now: Instant) {
        let ownerless: Vec<&WebhookName> =
            pending.iter().filter(|(_, lease)| lease.is_none()).map(|(name, _)| name).collect();
        let known = std::mem::take(&mut self.unclaimed);
        let cluster = &self.tools.shared.cluster;
        let (node, boot) = (cluster.node_id(), cluster.boot());
        let mut claimed = Vec::new();
        for name in ownerless {
            let since = known.get(name).copied().unwrap_or(now);
            self.unclaimed.insert(name.clone(), since);
            let rank = cluster.local(|state| rank(state, name, node));
            if now.duration_since(since) >= CLAIM_PACE * rank && claimed.len() < MAX_CLAIMED_PER_ENTRY {
                claimed.push(name.clone());
            }
        }
        if claimed.is_empty() {
            return;
        }
        tracing::info!(webhooks = claimed.len(), "webhooks without an owner are claimed");
        let cluster = cluster.clone();
        let proposal =
            Proposal { by: Principal::Node(node), command: Command::ClaimWebhooks { node, boot, webhooks: claimed } };
        self.tools.shared.errands.run("claim of webhooks", async move {
            // What was not claimed is claimed at the next look.
            if let Err(error) = cluster.propose(proposal, None).await {
                tracing::debug!(%error, "webhooks are claimed later");
            }
        });
    }

    fn ended(&mut self, webhook: WebhookName, run: u64, rest: Option<Duration>) {
        if self.running.get(&webhook).is_none_or(|running| running.run != run) {
            return;
        }
        let Some(Running { epoch, .. }) = self.running.remove(&webhook) else { return };
        match rest {
            Some(rest) => {
                self.resting.insert(webhook, (epoch, Instant::now() + rest));
            }
            // An event may have come just before it ended.
            None => {
                self.resting.remove(&webhook);
                self.look_at(webhook.task);
            }
        }
        if std::mem::take(&mut self.is_crowded) {
            self.myself.send_after(CROWDED_PAUSE, || PushMsg::Look);
        }
    }
}

/// The end of a delivery, told to the pusher also when it panics or is dropped.
struct End {
    pusher: ActorRef<PushMsg>,
    webhook: WebhookName,
    run: u64,
    rest: Option<Duration>,
}

impl Drop for End {
    fn drop(&mut self) {
        let rest = if std::thread::panicking() { Some(LOOK_EVERY) } else { self.rest };
        let _ = self.pusher.cast(PushMsg::Ended { webhook: self.webhook.clone(), run: self.run, rest });
    }
}

/// Of these, those that the state no longer gives to the lease under which they run.
fn not_mine<'a>(state: &State, running: impl Iterator<Item = (&'a WebhookName, &'a Running)>) -> Vec<WebhookName> {
    let is_mine = |name: &WebhookName, epoch: Epoch| {
        let lease = state.webhook(name).and_then(|webhook| webhook.lease);
        lease.is_some_and(|lease| lease.epoch == epoch)
    };
    running.filter(|(name, running)| !is_mine(name, running.epoch)).map(|(name, _)| name.clone()).collect()
}

/// How much of a wait that began before this lease is left, in the time of the log.
fn left_of_wait(state: &State, name: &WebhookName, wait: Duration) -> Duration {
    let last = state.webhook(name).and_then(|webhook| webhook.last.as_ref());
    let failed_at = last.map_or(0, |last| last.at.0);
    wait.saturating_sub(Duration::from_millis(state.last().at.0.saturating_sub(failed_at)))
}

/// How many live nodes stand before this one for a webhook. All nodes agree, and webhooks spread.
fn rank(state: &State, name: &WebhookName, me: NodeId) -> u32 {
    rank_by(state, me, |node| serde_json::json!([name.task.to_string(), name.id, node.0]))
}

/// The same for something else that has one owner.
pub(crate) fn rank_of(state: &State, name: &str, me: NodeId) -> u32 {
    rank_by(state, me, |node| serde_json::json!([name, node.0]))
}

fn rank_by(state: &State, me: NodeId, text: impl Fn(NodeId) -> serde_json::Value) -> u32 {
    let weight = |node: NodeId| (Digest::of_json(&text(node)), node);
    let mine = weight(me);
    let before = state.nodes().filter(|node| node.is_live() && node.id != me && weight(node.id) < mine);
    u32::try_from(before.count()).unwrap_or(u32::MAX)
}

fn listen_to_effects(shared: &Arc<Shared>, pusher: &ActorRef<PushMsg>) -> AbortOnDropHandle<()> {
    let mut effects = shared.cluster.effects();
    let (pusher, cluster) = (pusher.clone(), shared.cluster.clone());
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let message = match effects.recv().await {
                Ok(Effect::Webhook { task }) => PushMsg::Task(task),
                Ok(Effect::Changed { task }) => {
                    if cluster.local(|state| state.webhooks_of(task).next().is_none()) {
                        continue;
                    }
                    PushMsg::Task(task)
                }
                Ok(Effect::PlacementChanged) | Err(RecvError::Lagged(_)) => PushMsg::Look,
                Ok(Effect::Start { .. } | Effect::Stop { .. } | Effect::SessionsEnded | Effect::Triggers) => continue,
                Err(RecvError::Closed) => return,
            };
            if pusher.cast(message).is_err() {
                return;
            }
        }
    }))
}

fn listen_to_session(shared: &Arc<Shared>, pusher: &ActorRef<PushMsg>) -> AbortOnDropHandle<()> {
    let mut session = shared.cluster.session();
    let pusher = pusher.clone();
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let alive = *session.borrow_and_update();
            if pusher.cast(PushMsg::Session(alive)).is_err() || session.changed().await.is_err() {
                return;
            }
        }
    }))
}

fn tick(pusher: &ActorRef<PushMsg>) -> AbortOnDropHandle<()> {
    let pusher = pusher.clone();
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if pusher.cast(PushMsg::Look).is_err() {
                return;
            }
        }
    }))
}

//! Looks after the triggers of the cluster that are this node's: one task each. One actor per node, started by the dispatcher and
//! restarted by it.
//!
//! The state says which triggers there are and which node has each; this actor tells the cluster which ones the configuration of
//! this node has, claims those that nobody has, and runs what is its own. A trigger of a resource is only claimed by a node
//! that has the server.
//!
//! ```text
//! Declare ─▶ state ─▶ Claim ─▶ Subscription | schedule ─▶ Fire ─▶ state: the task, and what was seen
//! ```

mod clock;
pub mod contents;
mod filter;
mod firing;
mod schedule;
mod subscription;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::task::AbortOnDropHandle;
use towline_cluster::ClusterHandle;
use towline_core::{
    Command, Effect, Epoch, Level, Principal, Proposal, Trigger, TriggerChange, TriggerName, TriggerSource,
    TriggerSpec, WebhookLease, limits::MAX_CLAIMED_PER_ENTRY,
};

use crate::{push, shared::Shared};

pub use firing::{Event, FireError, TRIGGER_KEY, fire};

/// How often the state is looked through, beside the hints.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How much longer a node waits for each one that stands before it in the claim of a trigger: a claim takes less.
const CLAIM_PACE: Duration = Duration::from_secs(1);

/// Whether a trigger can do what it says.
///
/// # Errors
/// What is wrong with its filter or its times.
pub fn check(spec: &TriggerSpec) -> Result<(), String> {
    match &spec.source {
        TriggerSource::Resource(source) => match &source.filter {
            Some(text) => filter::Filter::new(text).map(|_| ()),
            None => Ok(()),
        },
        TriggerSource::Schedule { when, .. } => clock::Clock::new(when).map(|_| ()),
        TriggerSource::Webhook => Ok(()),
    }
}

/// What an operator who fires a trigger by hand has it say: the resource as it is, if this node has its server.
pub(crate) async fn event_of(shared: &Shared, spec: &TriggerSpec) -> Option<Event> {
    let source = spec.resource()?;
    let handle = shared.server(&source.server)?;
    match subscription::read(&handle, &source.uri).await {
        Ok(text) => Some(Event { source: format!("resource {} of {}", source.uri, source.server), text }),
        Err(error) => {
            tracing::info!(trigger = %spec.name, error, "fired by hand without the content of its resource");
            None
        }
    }
}

/// Messages of the triggers actor.
pub(crate) enum TriggersMsg {
    /// Look through the state.
    Look,
    /// This node may act, or may no longer.
    Session(bool),
}

pub(crate) struct TriggersState {
    shared: Arc<Shared>,
    running: BTreeMap<TriggerName, (Epoch, AbortOnDropHandle<()>)>,
    /// Triggers that nobody has, since when this node knows.
    unclaimed: BTreeMap<TriggerName, Instant>,
    /// Whether the cluster was told what this node declares.
    declared: Arc<AtomicBool>,
    /// A declaration or a claim is under way.
    proposing: Option<AbortOnDropHandle<()>>,
    _listeners: Vec<AbortOnDropHandle<()>>,
}

pub(crate) struct TriggersActor;

impl Actor for TriggersActor {
    type Msg = TriggersMsg;
    type State = TriggersState;
    type Arguments = Arc<Shared>;

    async fn pre_start(
        &self,
        myself: ActorRef<TriggersMsg>,
        shared: Arc<Shared>,
    ) -> Result<TriggersState, ActorProcessingErr> {
        let listeners = vec![listen_to_effects(&shared, &myself), listen_to_session(&shared, &myself), tick(&myself)];
        Ok(TriggersState {
            shared,
            running: BTreeMap::new(),
            unclaimed: BTreeMap::new(),
            declared: Arc::default(),
            proposing: None,
            _listeners: listeners,
        })
    }

    async fn handle(
        &self,
        _: ActorRef<TriggersMsg>,
        message: TriggersMsg,
        state: &mut TriggersState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            TriggersMsg::Look | TriggersMsg::Session(true) => state.look(),
            TriggersMsg::Session(false) => state.running.clear(),
        }
        Ok(())
    }
}

impl TriggersState {
    fn look(&mut self) {
        let cluster = &self.shared.cluster;
        if !cluster.may_act() {
            self.running.clear();
            return;
        }
        let (node, boot) = (cluster.node_id(), cluster.boot());
        let is_mine = |lease: &WebhookLease| lease.node == node && lease.boot == boot;
        let mut mine: BTreeMap<TriggerName, Epoch> = BTreeMap::new();
        let (mut starting, mut ownerless) = (Vec::new(), Vec::new());
        cluster.local(|state| {
            for trigger in state.triggers().filter(|trigger| trigger.spec.has_owner()) {
                let name = &trigger.spec.name;
                match &trigger.lease {
                    Some(lease) if is_mine(lease) => {
                        let is_running = self.running.get(name).is_some_and(|(epoch, _)| *epoch == lease.epoch);
                        if !is_running {
                            starting.push((trigger.spec.clone(), lease.epoch));
                        }
                        mine.insert(name.clone(), lease.epoch);
                    }
                    None if can_look_after(&self.shared, trigger) => {
                        ownerless.push((name.clone(), push::rank_of(state, name.as_str(), node)));
                    }
                    Some(_) | None => {}
                }
            }
        });
        // One that has ended by itself is started again at the next look.
        self.running.retain(|name, (epoch, task)| mine.get(name) == Some(epoch) && !task.is_finished());
        for (spec, epoch) in starting {
            let name = spec.name.clone();
            let task = AbortOnDropHandle::new(tokio::spawn(run(Arc::clone(&self.shared), spec, epoch)));
            self.running.insert(name, (epoch, task));
        }
        self.propose(ownerless, Instant::now());
    }

    /// Tells what this node declares, or takes what nobody has when it is this node's turn; one at a time.
    fn propose(&mut self, ownerless: Vec<(TriggerName, u32)>, now: Instant) {
        let known = std::mem::take(&mut self.unclaimed);
        let since = |name: &TriggerName| known.get(name).copied().unwrap_or(now);
        self.unclaimed = ownerless.iter().map(|(name, _)| (name.clone(), since(name))).collect();
        if self.proposing.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let cluster = self.shared.cluster.clone();
        let (node, boot) = (cluster.node_id(), cluster.boot());
        let is_due = |(name, rank): &&(TriggerName, u32)| now.duration_since(since(name)) >= CLAIM_PACE * *rank;
        let names: Vec<TriggerName> =
            ownerless.iter().filter(is_due).take(MAX_CLAIMED_PER_ENTRY).map(|(name, _)| name.clone()).collect();
        let change = if let Some(triggers) = self.undeclared() {
            TriggerChange::Declare { node, triggers }
        } else if names.is_empty() {
            return;
        } else {
            TriggerChange::Claim { node, boot, names }
        };
        self.proposing = Some(AbortOnDropHandle::new(tokio::spawn(say(cluster, change, Arc::clone(&self.declared)))));
    }

    /// What this node has to declare, once in its life, as soon as all nodes know what it is.
    fn undeclared(&self) -> Option<Vec<TriggerSpec>> {
        if self.declared.load(Ordering::Relaxed) {
            return None;
        }
        let triggers = &self.shared.config.triggers;
        let cluster = &self.shared.cluster;
        let node = cluster.node_id();
        cluster.local(|state| {
            let is_ready = state.level() >= Level::TRIGGERS && state.node(node).is_some_and(|node| node.is_live());
            let had_some = || state.triggers().any(|known| known.declared_by.contains(&node));
            (is_ready && (!triggers.is_empty() || had_some())).then(|| triggers.clone())
        })
    }
}

async fn say(cluster: ClusterHandle, change: TriggerChange, declared: Arc<AtomicBool>) {
    let by = Principal::Node(cluster.node_id());
    let said = if let TriggerChange::Declare { triggers, .. } = &change {
        Some(triggers.iter().map(|spec| spec.name.clone()).collect::<Vec<_>>())
    } else {
        None
    };
    let proposed = cluster.propose(Proposal { by, command: Command::Trigger(Box::new(change)) }, None).await;
    // What was not heard is said again at a later look.
    match (proposed, said) {
        (Ok(_), Some(names)) => {
            declared.store(true, Ordering::Relaxed);
            let node = cluster.node_id();
            let is_left_out = |name: &&TriggerName| {
                cluster.local(|state| state.trigger(name).is_none_or(|known| !known.declared_by.contains(&node)))
            };
            for trigger in names.iter().filter(is_left_out) {
                let why = "one of its name was added, or another one watches its resource: see towline sub list";
                tracing::warn!(event = "trigger.left_out", %trigger, why, "a trigger of this node's configuration is not used");
            }
        }
        (Ok(_), None) => {}
        (Err(error), Some(_)) => tracing::warn!(%error, "the triggers of this node are declared later"),
        (Err(error), None) => tracing::debug!(%error, "triggers are claimed later"),
    }
}

/// Whether this node can do its work.
fn can_look_after(shared: &Shared, trigger: &Trigger) -> bool {
    trigger.spec.resource().is_none_or(|source| shared.config.servers.iter().any(|known| known.name == source.server))
}

async fn run(shared: Arc<Shared>, spec: TriggerSpec, epoch: Epoch) {
    match &spec.source {
        TriggerSource::Resource(_) => {
            if let Some(subscription) = subscription::Subscription::new(shared, spec, epoch) {
                subscription.run().await;
            }
        }
        TriggerSource::Schedule { .. } => schedule::run(shared, spec, epoch).await,
        TriggerSource::Webhook => {}
    }
}

fn listen_to_effects(shared: &Arc<Shared>, actor: &ActorRef<TriggersMsg>) -> AbortOnDropHandle<()> {
    let mut effects = shared.cluster.effects();
    let actor = actor.clone();
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            match effects.recv().await {
                Ok(Effect::Triggers) | Err(RecvError::Lagged(_)) => {}
                Ok(
                    Effect::Start { .. }
                    | Effect::Stop { .. }
                    | Effect::Changed { .. }
                    | Effect::PlacementChanged
                    | Effect::SessionsEnded
                    | Effect::Webhook { .. },
                ) => continue,
                Err(RecvError::Closed) => return,
            }
            if actor.cast(TriggersMsg::Look).is_err() {
                return;
            }
        }
    }))
}

fn listen_to_session(shared: &Arc<Shared>, actor: &ActorRef<TriggersMsg>) -> AbortOnDropHandle<()> {
    let mut session = shared.cluster.session();
    let actor = actor.clone();
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let alive = *session.borrow_and_update();
            if actor.cast(TriggersMsg::Session(alive)).is_err() || session.changed().await.is_err() {
                return;
            }
        }
    }))
}

fn tick(actor: &ActorRef<TriggersMsg>) -> AbortOnDropHandle<()> {
    let actor = actor.clone();
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if actor.cast(TriggersMsg::Look).is_err() {
                return;
            }
        }
    }))
}

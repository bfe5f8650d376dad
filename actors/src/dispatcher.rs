//! Makes what runs on this node equal to what the state says. One per node, started and stopped by [`crate::Mesh`].
//!
//! Effects are hints: a start or stop is passed on at once, and whatever was missed is found by comparing with
//! [`towline_core::State::tasks_of`] on start, when the hints lagged, when the session comes back, and every few seconds.
//! A node whose session is not alive runs nothing.
//!
//! Children are the agents and the MCP connections. An agent or connection that crashes is started again with back-off, up to
//! [`MAX_RESTARTS`] times within [`RESTART_WINDOW`]; beyond that it rests for as long as the window.
//! It stops in the reverse order of its start: agents with their runs, then the connections.

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{Semaphore, broadcast::error::RecvError};
use tokio_util::task::AbortOnDropHandle;
use towline_core::{AgentName, Draining, Effect, Epoch, TaskId};
use towline_trace::metrics::instruments::RESTARTS;

use crate::{
    agent::{AgentActor, AgentMsg},
    config::AgentConfig,
    lacking,
    mailbox::{Addressed, Mail},
    mcp_connection::McpHandle,
    orphans,
    push::{Push, PushActor, PushMsg},
    shared::Shared,
    task_run::{AgentContext, Leave},
    triggers::{TriggersActor, TriggersMsg},
};

/// How often what runs is compared with the state, beside the hints.
const RECONCILE_EVERY: Duration = Duration::from_secs(3);

/// Restarts of one child within [`RESTART_WINDOW`] before it rests.
const MAX_RESTARTS: usize = 5;

/// The window of [`MAX_RESTARTS`].
const RESTART_WINDOW: Duration = Duration::from_secs(60);

/// Wait before the first restart; it doubles with each within the window.
const FIRST_RESTART_WAIT: Duration = Duration::from_millis(200);

/// Longest time that the agents have to stop.
const AGENTS_STOP_TIMEOUT: Duration = Duration::from_secs(10);

impl Addressed for DispatcherMsg {
    const KIND: &'static str = "dispatcher";
}

/// Messages of the dispatcher actor.
pub(crate) enum DispatcherMsg {
    /// A hint of the cluster.
    Effect(Effect),
    /// Compare what runs with the state.
    Reconcile,
    /// Whether this node may act.
    Session(bool),
    /// This node stops: its tasks go on elsewhere, those at a step that may be repeated when it has ended or the time is over.
    HandOver { until: Instant },
    /// This node stops in a moment: nothing new is begun.
    Quiet,
    /// A crashed connection has rested.
    Reconnect { server: String },
    /// The push actor has rested after a crash.
    RestartPush,
    /// The triggers actor has.
    RestartTriggers,
}

pub(crate) struct DispatcherState {
    myself: ActorRef<Mail<DispatcherMsg>>,
    shared: Arc<Shared>,
    agents: BTreeMap<AgentName, ActorRef<Mail<AgentMsg>>>,
    /// Agents that crashed and rest until then.
    resting: BTreeMap<AgentName, Instant>,
    connections: BTreeMap<ActorId, String>,
    restarts: BTreeMap<String, VecDeque<Instant>>,
    push: Option<ActorRef<PushMsg>>,
    triggers: Option<ActorRef<TriggersMsg>>,
    /// What the state says of this node, and when its patience ends.
    draining: Option<(Draining, Instant)>,
    /// Until when tasks are handed over because the node stops.
    handing_over: Option<Instant>,
    is_quiet: bool,
    _listeners: Vec<AbortOnDropHandle<()>>,
}

pub(crate) struct DispatcherActor;

impl Actor for DispatcherActor {
    type Msg = Mail<DispatcherMsg>;
    type State = DispatcherState;
    type Arguments = Arc<Shared>;

    async fn pre_start(
        &self,
        myself: ActorRef<Mail<DispatcherMsg>>,
        shared: Arc<Shared>,
    ) -> Result<DispatcherState, ActorProcessingErr> {
        let mut state = DispatcherState {
            _listeners: vec![listen_to_effects(&shared, &myself), listen_to_session(&shared, &myself), tick(&myself)],
            myself,
            shared,
            agents: BTreeMap::new(),
            resting: BTreeMap::new(),
            connections: BTreeMap::new(),
            restarts: BTreeMap::new(),
            push: None,
            triggers: None,
            draining: None,
            handing_over: None,
            is_quiet: false,
        };
        let servers: Vec<String> = state.shared.config.servers.iter().map(|server| server.name.clone()).collect();
        for server in servers {
            state.connect(&server).await?;
        }
        state.start_push().await?;
        state.start_triggers().await?;
        Ok(state)
    }

    async fn handle(
        &self,
        _: ActorRef<Mail<DispatcherMsg>>,
        message: Mail<DispatcherMsg>,
        state: &mut DispatcherState,
    ) -> Result<(), ActorProcessingErr> {
        match message.open() {
            DispatcherMsg::Effect(effect) => state.effect(effect).await,
            DispatcherMsg::Reconcile => state.reconcile().await,
            DispatcherMsg::Session(true) => state.reconcile().await,
            DispatcherMsg::Session(false) => state.stop_runs(),
            DispatcherMsg::HandOver { until } => {
                state.handing_over = Some(until);
                state.tell_to_leave();
            }
            DispatcherMsg::Quiet => {
                state.is_quiet = true;
                state.tell_to_leave();
            }
            DispatcherMsg::Reconnect { server } => {
                if let Err(error) = state.connect(&server).await {
                    state.rest_connection(server, &error.to_string());
                }
            }
            DispatcherMsg::RestartPush => {
                if let Err(error) = state.start_push().await {
                    state.rest_push(&error.to_string());
                }
            }
            DispatcherMsg::RestartTriggers => {
                if let Err(error) = state.start_triggers().await {
                    state.rest_triggers(&error.to_string());
                }
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<Mail<DispatcherMsg>>,
        event: SupervisionEvent,
        state: &mut DispatcherState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(child, error) => state.child_ended(&child, &error.to_string()),
            SupervisionEvent::ActorTerminated(child, _, reason) => {
                state.child_ended(&child, reason.as_deref().unwrap_or("stopped"));
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        _: ActorRef<Mail<DispatcherMsg>>,
        state: &mut DispatcherState,
    ) -> Result<(), ActorProcessingErr> {
        let agents = std::mem::take(&mut state.agents);
        let stops = agents.into_values().map(|agent| async move {
            if let Err(error) = agent.stop_and_wait(None, Some(AGENTS_STOP_TIMEOUT)).await {
                tracing::warn!(%error, "agent did not stop in time");
            }
        });
        if let Some(push) = state.push.take()
            && let Err(error) = push.stop_and_wait(None, Some(AGENTS_STOP_TIMEOUT)).await
        {
            tracing::warn!(%error, "push notifications did not stop in time");
        }
        if let Some(triggers) = state.triggers.take()
            && let Err(error) = triggers.stop_and_wait(None, Some(AGENTS_STOP_TIMEOUT)).await
        {
            tracing::warn!(%error, "triggers did not stop in time");
        }
        futures::future::join_all(stops).await;
        state.shared.parked.clear();
        futures::future::join_all(state.shared.servers().iter().map(McpHandle::stop)).await;
        Ok(())
    }
}

impl DispatcherState {
    async fn connect(&mut self, server: &str) -> Result<(), ActorProcessingErr> {
        let Some(config) = self.shared.config.servers.iter().find(|config| config.name == server) else {
            return Ok(());
        };
        let (cluster, supervisor) = (self.shared.cluster.clone(), self.myself.get_cell());
        let instance = &self.shared.config.instance;
        let handle = McpHandle::spawn(config.clone(), Some(cluster), instance, Some(supervisor)).await?;
        self.connections.insert(handle.actor_id(), server.to_owned());
        self.shared.set_server(handle);
        Ok(())
    }

    async fn start_push(&mut self) -> Result<(), ActorProcessingErr> {
        let Some(config) = self.shared.config.push.clone() else { return Ok(()) };
        let push = Push { shared: Arc::clone(&self.shared), config };
        let (actor, _) = Actor::spawn_linked(None, PushActor, push, self.myself.get_cell()).await?;
        self.push = Some(actor);
        Ok(())
    }

    fn rest_push(&mut self, reason: &str) {
        RESTARTS.one(&["push"]);
        let wait = self.restart_wait("push notifications");
        tracing::error!(reason, wait_ms = wait.as_millis() as u64, "push notifications crashed");
        self.myself.send_after(wait, || DispatcherMsg::RestartPush.into());
    }

    async fn start_triggers(&mut self) -> Result<(), ActorProcessingErr> {
        let shared = Arc::clone(&self.shared);
        let (actor, _) = Actor::spawn_linked(None, TriggersActor, shared, self.myself.get_cell()).await?;
        self.triggers = Some(actor);
        Ok(())
    }

    fn rest_triggers(&mut self, reason: &str) {
        RESTARTS.one(&["triggers"]);
        let wait = self.restart_wait("triggers");
        tracing::error!(reason, wait_ms = wait.as_millis() as u64, "triggers crashed");
        self.myself.send_after(wait, || DispatcherMsg::RestartTriggers.into());
    }

    async fn effect(&mut self, effect: Effect) {
        let node = self.shared.cluster.node_id();
        match effect {
            Effect::Start { task, lease } if lease.node == node && lease.boot == self.shared.cluster.boot() => {
                self.start(task, lease.epoch).await;
            }
            Effect::Stop { task, node: owner } if owner == node => {
                self.agents.values().for_each(|agent| tell(agent, AgentMsg::Stop { task }));
            }
            Effect::PlacementChanged => self.reconcile().await,
            Effect::Start { .. }
            | Effect::Stop { .. }
            | Effect::Changed { .. }
            | Effect::SessionsEnded
            | Effect::Webhook { .. }
            | Effect::Triggers => {}
        }
    }

    async fn start(&mut self, task: TaskId, epoch: Epoch) {
        if !self.shared.cluster.may_act() {
            return;
        }
        let Some(name) = self.shared.cluster.local(|state| state.task(task).map(|task| task.agent.clone())) else {
            return;
        };
        if let Some(agent) = self.agent(&name).await {
            tell(&agent, AgentMsg::Start { task, epoch });
        }
    }

    /// Starts and stops the difference between the state and what runs.
    async fn reconcile(&mut self) {
        if !self.shared.cluster.may_act() {
            return;
        }
        let (node, boot) = (self.shared.cluster.node_id(), self.shared.cluster.boot());
        let (draining, placed, mut leases) = self.shared.cluster.local(|state| {
            let draining = state.node(node).and_then(|node| node.draining);
            let placed: BTreeSet<AgentName> = state.agents_on(node).map(|agent| agent.spec.name.clone()).collect();
            let mut leases: BTreeMap<AgentName, BTreeMap<TaskId, Epoch>> = BTreeMap::new();
            for task in state.tasks_of(node) {
                if let Some(lease) = task.lease.as_ref().filter(|lease| lease.boot == boot) {
                    leases.entry(task.agent.clone()).or_default().insert(task.id, lease.epoch);
                }
            }
            (draining, placed, leases)
        });
        let wanted: BTreeSet<AgentName> = placed.into_iter().chain(leases.keys().cloned()).collect();
        self.agents.retain(|name, agent| {
            let keep = wanted.contains(name);
            if !keep {
                agent.stop(None);
            }
            keep
        });
        for name in wanted {
            let leases = leases.remove(&name).unwrap_or_default();
            if let Some(agent) = self.agent(&name).await {
                tell(&agent, AgentMsg::Sync { leases });
            }
        }
        self.drain(draining);
        self.sweep_parked();
        lacking::tell(&self.shared);
    }

    /// A call that waits for a person is wanted while its task waits as well, or has come back to this node.
    fn sweep_parked(&self) {
        let cluster = &self.shared.cluster;
        let node = cluster.node_id();
        self.shared.parked.sweep(|task| {
            cluster.local(|state| {
                state.task(task).is_some_and(|task| match &task.lease {
                    Some(lease) => lease.node == node,
                    None => !task.status.state.is_terminal(),
                })
            })
        });
    }

    /// Said again at each comparison while the node is drained: another node may have become able to take a task.
    fn drain(&mut self, draining: Option<Draining>) {
        let was_draining = self.draining.is_some();
        self.draining = draining.map(|draining| match self.draining {
            Some((known, until)) if known == draining => (known, until),
            Some(_) | None => (draining, Instant::now() + Duration::from_millis(draining.patience_ms)),
        });
        if was_draining || self.draining.is_some() || self.handing_over.is_some() {
            self.tell_to_leave();
        }
    }

    fn leave(&self) -> Option<Leave> {
        if self.is_quiet {
            return Some(Leave::Stop);
        }
        let until = self.handing_over.or(self.draining.map(|(_, until)| until))?;
        Some(Leave::Move { until })
    }

    fn tell_to_leave(&self) {
        let leave = self.leave();
        self.agents.values().for_each(|agent| tell(agent, AgentMsg::Leave(leave)));
    }

    fn stop_runs(&mut self) {
        self.agents.values().for_each(|agent| tell(agent, AgentMsg::StopAll));
    }

    /// The agent, started if it does not run.
    async fn agent(&mut self, name: &AgentName) -> Option<ActorRef<Mail<AgentMsg>>> {
        if let Some(agent) = self.agents.get(name) {
            return Some(agent.clone());
        }
        if self.resting.get(name).is_some_and(|until| *until > Instant::now()) {
            return None;
        }
        let joined = self.shared.cluster.local(|state| state.peer(name).and_then(AgentConfig::of_peer));
        let declared = || self.shared.config.agents.iter().find(|agent| agent.name == *name).cloned();
        let Some(config) = joined.or_else(declared) else {
            tracing::warn!(agent = %name, "agent is placed on this node and not configured here");
            return None;
        };
        let permits = config.permits.map(|permits| Arc::new(Semaphore::new(permits.max(1) as usize)));
        let context = AgentContext { shared: Arc::clone(&self.shared), agent: config, permits };
        match Actor::spawn_linked(None, AgentActor, Arc::new(context), self.myself.get_cell()).await {
            Ok((agent, _)) => {
                if self.leave().is_some() {
                    tell(&agent, AgentMsg::Leave(self.leave()));
                }
                self.agents.insert(name.clone(), agent.clone());
                Some(agent)
            }
            Err(error) => {
                tracing::error!(agent = %name, %error, "agent did not start");
                None
            }
        }
    }

    fn child_ended(&mut self, child: &ActorCell, reason: &str) {
        if let Some(server) = self.connections.remove(&child.get_id()) {
            self.rest_connection(server, reason);
            return;
        }
        if self.push.as_ref().is_some_and(|push| push.get_id() == child.get_id()) {
            self.push = None;
            return self.rest_push(reason);
        }
        if self.triggers.as_ref().is_some_and(|triggers| triggers.get_id() == child.get_id()) {
            self.triggers = None;
            return self.rest_triggers(reason);
        }
        let ended = self.agents.iter().find(|(_, agent)| agent.get_id() == child.get_id());
        let Some(name) = ended.map(|(name, _)| name.clone()) else { return };
        self.agents.remove(&name);
        RESTARTS.one(&[AgentMsg::KIND]);
        let wait = self.restart_wait(name.as_str());
        tracing::error!(agent = %name, reason, wait_ms = wait.as_millis() as u64, "agent crashed");
        self.resting.insert(name, Instant::now() + wait);
        self.myself.send_after(wait, || DispatcherMsg::Reconcile.into());
    }

    fn rest_connection(&mut self, server: String, reason: &str) {
        RESTARTS.one(&["mcp_connection"]);
        let wait = self.restart_wait(&server);
        tracing::error!(server, reason, wait_ms = wait.as_millis() as u64, "MCP connection crashed");
        self.myself.send_after(wait, move || DispatcherMsg::Reconnect { server }.into());
    }

    fn restart_wait(&mut self, child: &str) -> Duration {
        let now = Instant::now();
        let restarts = self.restarts.entry(child.to_owned()).or_default();
        while restarts.front().is_some_and(|at| now.duration_since(*at) > RESTART_WINDOW) {
            restarts.pop_front();
        }
        if restarts.len() >= MAX_RESTARTS {
            return RESTART_WINDOW;
        }
        let wait = FIRST_RESTART_WAIT * 2u32.pow(u32::try_from(restarts.len()).unwrap_or(0));
        restarts.push_back(now);
        wait
    }
}

fn tell(agent: &ActorRef<Mail<AgentMsg>>, message: AgentMsg) {
    // An agent that has stopped is started again by the next comparison.
    let _ = agent.cast(message.into());
}

fn listen_to_effects(shared: &Arc<Shared>, dispatcher: &ActorRef<Mail<DispatcherMsg>>) -> AbortOnDropHandle<()> {
    let mut effects = shared.cluster.effects();
    let (dispatcher, shared) = (dispatcher.clone(), Arc::clone(shared));
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let message = match effects.recv().await {
                Ok(Effect::Changed { task }) => {
                    orphans::cancel(&shared, task);
                    continue;
                }
                Ok(effect) => DispatcherMsg::Effect(effect),
                Err(RecvError::Lagged(_)) => DispatcherMsg::Reconcile,
                Err(RecvError::Closed) => return,
            };
            if dispatcher.cast(message.into()).is_err() {
                return;
            }
        }
    }))
}

fn listen_to_session(shared: &Arc<Shared>, dispatcher: &ActorRef<Mail<DispatcherMsg>>) -> AbortOnDropHandle<()> {
    let mut session = shared.cluster.session();
    let dispatcher = dispatcher.clone();
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut alive = false;
        loop {
            let now = *session.borrow_and_update();
            if now != alive {
                alive = now;
                if dispatcher.cast(DispatcherMsg::Session(alive).into()).is_err() {
                    return;
                }
            }
            if session.changed().await.is_err() {
                return;
            }
        }
    }))
}

fn tick(dispatcher: &ActorRef<Mail<DispatcherMsg>>) -> AbortOnDropHandle<()> {
    let dispatcher = dispatcher.clone();
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            if dispatcher.cast(DispatcherMsg::Reconcile.into()).is_err() {
                return;
            }
            tokio::time::sleep(RECONCILE_EVERY).await;
        }
    }))
}

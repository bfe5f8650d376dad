//! Runs the tasks of one agent on this node. Started by the dispatcher when the agent is placed here, stopped by it when
//! the agent has moved and no task of it is left; restarted by it after a crash.
//!
//! It keeps one run per leased task, and never two: a run under an older epoch stops before the next one starts. A run that
//! crashes is started again with back-off; after [`MAX_CRASHES`] of them the next run ends the task as failed.

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use towline_core::{Epoch, TaskId};
use towline_trace::metrics::instruments::RESTARTS;

use crate::{
    mailbox::{Addressed, Mail},
    task_run::{AgentContext, Leave, TaskRunActor, TaskRunArguments, TaskRunMsg},
};

/// Crashes of one task's runs after which the task ends as failed: what crashed that often crashes again.
const MAX_CRASHES: u32 = 3;

/// Wait before a crashed run is started again; it doubles with each crash.
const FIRST_RESTART_WAIT: Duration = Duration::from_millis(200);

/// Longest time that the runs of an agent that stops have to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(8);

/// Messages of the agent actor.
pub(crate) enum AgentMsg {
    /// This node holds the lease of a task.
    Start { task: TaskId, epoch: Epoch },
    /// This node's lease of a task ended.
    Stop { task: TaskId },
    /// These are all leases of this node: start what is missing, stop the rest.
    Sync { leases: BTreeMap<TaskId, Epoch> },
    /// This node may not act: stop everything.
    StopAll,
    /// This node is to be empty, or it stops; none if it is to work again. May be said again.
    Leave(Option<Leave>),
    /// A crashed run has rested.
    Restart { task: TaskId },
}

impl Addressed for AgentMsg {
    const KIND: &'static str = "agent";
}

/// A task of this agent on this node.
struct Run {
    epoch: Epoch,
    crashes: u32,
    stage: Stage,
}

enum Stage {
    Runs(ActorRef<Mail<TaskRunMsg>>),
    /// It was told to stop. If `again`, another run starts when it has.
    Stops {
        actor: ActorRef<Mail<TaskRunMsg>>,
        again: bool,
    },
    /// It crashed and waits to be started again.
    Rests {
        reason: String,
    },
}

pub(crate) struct AgentState {
    myself: ActorRef<Mail<AgentMsg>>,
    context: Arc<AgentContext>,
    runs: BTreeMap<TaskId, Run>,
    leave: Option<Leave>,
}

pub(crate) struct AgentActor;

impl Actor for AgentActor {
    type Msg = Mail<AgentMsg>;
    type State = AgentState;
    type Arguments = Arc<AgentContext>;

    async fn pre_start(
        &self,
        myself: ActorRef<Mail<AgentMsg>>,
        context: Arc<AgentContext>,
    ) -> Result<AgentState, ActorProcessingErr> {
        Ok(AgentState { myself, context, runs: BTreeMap::new(), leave: None })
    }

    async fn handle(
        &self,
        _: ActorRef<Mail<AgentMsg>>,
        message: Mail<AgentMsg>,
        state: &mut AgentState,
    ) -> Result<(), ActorProcessingErr> {
        match message.open() {
            AgentMsg::Start { task, epoch } => state.start(task, epoch).await,
            AgentMsg::Stop { task } => state.stop(task),
            AgentMsg::Sync { leases } => state.sync(leases).await,
            AgentMsg::StopAll => state.stop_all(),
            AgentMsg::Leave(leave) => state.leave(leave),
            AgentMsg::Restart { task } => state.restart(task).await,
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<Mail<AgentMsg>>,
        event: SupervisionEvent,
        state: &mut AgentState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(child, _, _) => state.ended(&child).await,
            SupervisionEvent::ActorFailed(child, error) => state.crashed(&child, error.to_string()).await,
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Mail<AgentMsg>>, state: &mut AgentState) -> Result<(), ActorProcessingErr> {
        state.stop_all();
        let actors = state.runs.values().filter_map(|run| match &run.stage {
            Stage::Runs(actor) | Stage::Stops { actor, .. } => Some(actor.clone()),
            Stage::Rests { .. } => None,
        });
        let ends = actors.map(|actor| async move { drop(actor.wait(None).await) });
        if tokio::time::timeout(STOP_TIMEOUT, futures::future::join_all(ends)).await.is_err() {
            tracing::warn!(agent = %state.context.agent.name, "runs of a stopped agent did not end in time");
        }
        Ok(())
    }
}

impl AgentState {
    async fn start(&mut self, task: TaskId, epoch: Epoch) {
        let Some(run) = self.runs.get_mut(&task) else {
            self.spawn(task, epoch, 0, None).await;
            return;
        };
        if run.epoch > epoch {
            return;
        }
        let is_newer = run.epoch < epoch;
        run.epoch = epoch;
        match &mut run.stage {
            Stage::Runs(actor) if is_newer => {
                let actor = actor.clone();
                tell_to_stop(&actor);
                run.stage = Stage::Stops { actor, again: true };
            }
            Stage::Stops { again, .. } => *again = true,
            Stage::Runs(_) | Stage::Rests { .. } => {}
        }
    }

    fn stop(&mut self, task: TaskId) {
        let Some(run) = self.runs.get_mut(&task) else { return };
        match &mut run.stage {
            Stage::Runs(actor) => {
                let actor = actor.clone();
                tell_to_stop(&actor);
                run.stage = Stage::Stops { actor, again: false };
            }
            Stage::Stops { again, .. } => *again = false,
            Stage::Rests { .. } => {
                self.runs.remove(&task);
            }
        }
    }

    async fn sync(&mut self, leases: BTreeMap<TaskId, Epoch>) {
        let gone: Vec<TaskId> = self.runs.keys().filter(|task| !leases.contains_key(task)).copied().collect();
        gone.into_iter().for_each(|task| self.stop(task));
        for (task, epoch) in leases {
            self.start(task, epoch).await;
        }
    }

    fn stop_all(&mut self) {
        let all: Vec<TaskId> = self.runs.keys().copied().collect();
        if !all.is_empty() {
            tracing::warn!(agent = %self.context.agent.name, runs = all.len(), "the session of this node is not alive: its runs stop");
        }
        all.into_iter().for_each(|task| self.stop(task));
    }

    fn leave(&mut self, leave: Option<Leave>) {
        self.leave = leave;
        for run in self.runs.values() {
            if let Stage::Runs(actor) = &run.stage {
                tell_to_leave(actor, leave);
            }
        }
    }

    async fn restart(&mut self, task: TaskId) {
        let Some(Run { epoch, crashes, stage: Stage::Rests { reason } }) = self.runs.get(&task) else { return };
        let (epoch, crashes) = (*epoch, *crashes);
        let give_up = (crashes >= MAX_CRASHES)
            .then(|| format!("the run of this task crashed {crashes} times, the last time so: {reason}"));
        self.spawn(task, epoch, crashes, give_up).await;
    }

    async fn spawn(&mut self, task: TaskId, epoch: Epoch, crashes: u32, give_up: Option<String>) {
        let arguments =
            TaskRunArguments { context: Arc::clone(&self.context), task, epoch, received: Instant::now(), give_up };
        match Actor::spawn_linked(None, TaskRunActor, arguments, self.myself.get_cell()).await {
            Ok((actor, _)) => {
                if self.leave.is_some() {
                    tell_to_leave(&actor, self.leave);
                }
                self.runs.insert(task, Run { epoch, crashes, stage: Stage::Runs(actor) });
            }
            Err(error) => {
                // The dispatcher compares with the state again in a moment.
                tracing::warn!(%task, %error, "run did not start");
                self.runs.remove(&task);
            }
        }
    }

    fn run_of(&self, child: &ActorCell) -> Option<TaskId> {
        let is_child = |run: &Run| match &run.stage {
            Stage::Runs(actor) | Stage::Stops { actor, .. } => actor.get_id() == child.get_id(),
            Stage::Rests { .. } => false,
        };
        self.runs.iter().find(|(_, run)| is_child(run)).map(|(task, _)| *task)
    }

    async fn ended(&mut self, child: &ActorCell) {
        let Some(task) = self.run_of(child) else { return };
        let Some(run) = self.runs.remove(&task) else { return };
        if matches!(run.stage, Stage::Stops { again: true, .. }) {
            self.spawn(task, run.epoch, run.crashes, None).await;
        }
    }

    async fn crashed(&mut self, child: &ActorCell, reason: String) {
        let Some(task) = self.run_of(child) else { return };
        if self.runs.get(&task).is_some_and(|run| matches!(run.stage, Stage::Stops { .. })) {
            self.ended(child).await;
            return;
        }
        let Some(run) = self.runs.get_mut(&task) else { return };
        run.crashes += 1;
        RESTARTS.one(&[TaskRunMsg::KIND]);
        tracing::error!(%task, agent = %self.context.agent.name, crashes = run.crashes, reason, "run crashed");
        let wait = FIRST_RESTART_WAIT * 2u32.pow(run.crashes.min(8));
        run.stage = Stage::Rests { reason };
        self.myself.send_after(wait, move || AgentMsg::Restart { task }.into());
    }
}

fn tell_to_stop(actor: &ActorRef<Mail<TaskRunMsg>>) {
    // One that has stopped already needs no word; its end is on its way here.
    let _ = actor.cast(TaskRunMsg::Stop.into());
}

fn tell_to_leave(actor: &ActorRef<Mail<TaskRunMsg>>, leave: Option<Leave>) {
    // One that has stopped has left.
    let _ = actor.cast(TaskRunMsg::Leave(leave).into());
}

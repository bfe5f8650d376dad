//! The shell of a node, by script: it runs what is leased to the node, and stops when it may not act any more.
//!
//! It does what the dispatcher and the task runs of a real node do: effects are hints and the state is the truth, words go out
//! as numbered reports that are proposed again while their fate is unknown, an intent is committed before its effect, a step
//! without an outcome runs again under the next owner, and a run that waits for its child gives its permit back.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    task::AbortHandle,
    time::sleep,
};
use towline_cluster::{ClusterHandle, ProposeError};
use towline_core::{
    AgentName, Command, Epoch, Intent, Metadata, NodeId, OnAdoption, Outcome, OwnerReport, OwnerWord, ParentLink, Part,
    Principal, Proposal, Rejection, Reply, State, StepNo, Task, TaskId, TaskState, TraceContext,
    limits::MAX_INLINE_BYTES,
    mutants::{self, Mutant},
};

use crate::{
    host::AGENT,
    ledger::{self, Shared},
    plan::{self, Plan},
    tasks, world,
};

/// The state is compared with what runs this often, besides after each hint.
const COMPARE_EVERY: Duration = Duration::from_millis(100);
/// Between two tries of a report.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// Between two acts of a step.
const ACTS_EVERY: Duration = Duration::from_millis(25);
/// One of so many reports is in nobody's hands once it was said.
const LINGERS_ONE_OF: u8 = 12;
/// And may be on its way for so long, in milliseconds: also past the end of the lease.
const LINGERS_MS: std::ops::Range<u64> = 1..2_500;
/// Tasks of a node that work at the same time: few, so that parents stand in each other's way.
const PERMITS: usize = 4;

/// Runs as long as the node does.
pub async fn run(machine: usize, cluster: ClusterHandle, shared: Shared) {
    let permits = Arc::new(Semaphore::new(PERMITS));
    let mut running: BTreeMap<TaskId, (Epoch, AbortHandle)> = BTreeMap::new();
    let (mut effects, mut session) = (cluster.effects(), cluster.session());
    loop {
        compare(machine, &cluster, &shared, &permits, &mut running);
        tokio::select! {
            biased;
            changed = session.changed() => if changed.is_err() { return },
            _ = effects.recv() => {}
            () = sleep(COMPARE_EVERY) => {}
        }
    }
}

fn compare(
    machine: usize,
    cluster: &ClusterHandle,
    shared: &Shared,
    permits: &Arc<Semaphore>,
    running: &mut BTreeMap<TaskId, (Epoch, AbortHandle)>,
) {
    let (node, boot) = (cluster.node_id(), cluster.boot());
    let leases: BTreeMap<TaskId, Epoch> = if cluster.may_act() {
        let mine =
            |task: &Task| task.lease.as_ref().filter(|lease| lease.boot == boot).map(|lease| (task.id, lease.epoch));
        cluster.local(|state| state.tasks_of(node).filter_map(mine).collect())
    } else {
        BTreeMap::new()
    };
    running.retain(|task, (epoch, run)| {
        // One that stopped by itself begins again, if the lease outlived the pause.
        let keep = leases.get(task) == Some(epoch) && !run.is_finished();
        if !keep {
            run.abort();
        }
        keep
    });
    for (task, epoch) in leases {
        running.entry(task).or_insert_with(|| {
            let run = Run {
                machine,
                node,
                task,
                epoch,
                cluster: cluster.clone(),
                shared: shared.clone(),
                permits: permits.clone(),
                permit: None,
                number: 0,
            };
            (epoch, tokio::spawn(run.go()).abort_handle())
        });
    }
}

/// The run of one task under one lease.
struct Run {
    machine: usize,
    node: NodeId,
    task: TaskId,
    epoch: Epoch,
    cluster: ClusterHandle,
    shared: Shared,
    permits: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
    /// Of the last report.
    number: u64,
}

/// The lease is over, or may be.
struct Stopped;

impl Run {
    async fn go(mut self) {
        if Box::pin(self.work()).await.is_err() {
            tracing::debug!(machine = self.machine, task = %self.task, epoch = self.epoch.0, "run stops");
        }
    }

    async fn work(&mut self) -> Result<(), Stopped> {
        self.take_permit().await?;
        let task = self.begin().await?;
        let plan = Plan::of(&task);
        for number in 0..plan.steps {
            let step = StepNo(number);
            let span = span();
            let known = task.step(step);
            if known.is_some_and(|known| known.ended.is_some()) {
                continue;
            }
            if self.is_to_leave() {
                self.say(vec![OwnerWord::Released]).await?;
                self.mine()?;
            }
            match known {
                Some(_) => self.say(vec![OwnerWord::StepRestarted { step, span }]).await?,
                None => self.say(vec![OwnerWord::StepStarted { step, intent: intent(number), span }]).await?,
            }
            if self.mine()?.step(step).is_none_or(|step| step.span != span) {
                self.spoken_for("a step");
            }
            self.write(step, plan.chunks).await?;
            if plan.delegates && number + 1 == plan.steps {
                self.delegate(step).await?;
            }
            let content = if plan.is_large { self.large_result(number) } else { "done".to_owned() };
            let outcome = Outcome::Returned { content, is_error: false };
            self.say(vec![OwnerWord::StepEnded { step, outcome }]).await?;
        }
        let state = if plan.fails { TaskState::Failed } else { TaskState::Completed };
        self.say(vec![OwnerWord::Finished { state, message: None }]).await
    }

    /// Whether the node is drained, and another one could take the task.
    fn is_to_leave(&self) -> bool {
        self.cluster.local(|state| {
            let is_drained = state.node(self.node).is_some_and(|node| node.draining.is_some());
            is_drained && state.task(self.task).is_some_and(|task| state.has_another_host(&task.agent, self.node))
        })
    }

    fn large_result(&self, number: u32) -> String {
        let word = format!("result {number} of {} under {} ", self.task, self.epoch.0);
        word.repeat(MAX_INLINE_BYTES / word.len() + 1)
    }

    /// Begins the turn. That it is this run which began it is seen from its span: a report of an earlier run under the same
    /// lease, on its way still, may have taken the number.
    async fn begin(&mut self) -> Result<Task, Stopped> {
        let (span, first) = (span(), self.shared.ledger().begins(self.task, self.epoch));
        loop {
            self.number = self.mine()?.lease.ok_or(Stopped)?.reported;
            self.say(vec![OwnerWord::TurnStarted { span }]).await?;
            let task = self.mine()?;
            if task.turn.span == Some(span) {
                return Ok(task);
            }
            if first {
                self.spoken_for("the turn");
            }
        }
    }

    /// Another than the owner has said something under its epoch.
    fn spoken_for(&self, what: &str) {
        let text = format!(
            "somebody else began {what} of task {} under epoch {:?} of node {}",
            self.task, self.epoch, self.node
        );
        self.shared.ledger().wrong(text);
    }

    /// The task, as long as it is leased to this run.
    fn mine(&self) -> Result<Task, Stopped> {
        let task = self.cluster.local(|state| state.task(self.task).cloned());
        task.filter(|task| task.lease.as_ref().is_some_and(|lease| lease.epoch == self.epoch)).ok_or(Stopped)
    }

    async fn take_permit(&mut self) -> Result<(), Stopped> {
        if self.permit.is_none() {
            self.permit = Some(self.permits.clone().acquire_owned().await.map_err(|_| Stopped)?);
        }
        Ok(())
    }

    /// Does something in the world, piece by piece, and tells of each.
    async fn write(&mut self, step: StepNo, chunks: u32) -> Result<(), Stopped> {
        for number in 0..chunks {
            self.toil().await?;
            let text = ledger::chunk(self.epoch, number);
            self.say(vec![OwnerWord::Chunk {
                artifact_id: format!("step-{step}"),
                name: None,
                parts: vec![Part::text(text)],
                append: number > 0,
                last_chunk: number + 1 == chunks,
                metadata: Metadata::new(),
            }])
            .await?;
        }
        Ok(())
    }

    /// Acts for a while, sometimes for longer than a session lasts, and looks each time whether it may.
    async fn toil(&self) -> Result<(), Stopped> {
        let ms = world::with(
            |world| if world.rng.u8(0..12) == 0 { world.rng.u64(200..4_000) } else { world.rng.u64(1..50) },
        );
        let until = world::now() + Duration::from_millis(ms);
        while world::now() < until {
            self.act()?;
            sleep(ACTS_EVERY).await;
        }
        self.act()
    }

    fn act(&self) -> Result<(), Stopped> {
        if !self.cluster.may_act() {
            return Err(Stopped);
        }
        self.shared.ledger().acts(self.task, self.epoch, self.node);
        Ok(())
    }

    /// Has another task do a part, and waits for it. Whoever adopts this one sends the same message.
    async fn delegate(&mut self, step: StepNo) -> Result<(), Stopped> {
        let message = plan::message(&format!("child of {} at {step}", self.task), &Plan::CHILD);
        let submission = plan::submission(message, self.node, Some(ParentLink { task: self.task, step }));
        let name: AgentName = AGENT.parse().map_err(|_| Stopped)?;
        let by = Principal::Agent { name, on_behalf_of: Box::new(Principal::Operator) };
        let child = loop {
            self.act()?;
            let command = Command::Submit(Box::new(submission.clone()));
            match self.cluster.propose(Proposal { by: by.clone(), command }, None).await {
                Ok(Reply::Submitted { task, .. }) => break task,
                Ok(Reply::Continued { .. } | Reply::Enrolled { .. } | Reply::Done) | Err(ProposeError::Rejected(_)) => {
                    return Err(Stopped);
                }
                Err(ProposeError::Unavailable { .. } | ProposeError::Unknown { .. }) => sleep(RETRY_AFTER).await,
            }
        };
        if !mutants::on(Mutant::PermitKeptWhileWaiting) {
            self.permit = None;
        }
        let mut watch = self.cluster.watch_task(child);
        let is_open = |state: &State| tasks::state_of(state, child).is_some_and(|state| !state.is_terminal());
        while self.cluster.local(is_open) {
            watch.changed().await;
        }
        self.take_permit().await
    }

    /// Has words committed, whatever it takes.
    async fn say(&mut self, mut words: Vec<OwnerWord>) -> Result<(), Stopped> {
        self.number += 1;
        while let Err(error) = self.cluster.keep_words(&mut words).await {
            tracing::debug!(task = %self.task, %error, "content is kept again");
            sleep(RETRY_AFTER).await;
            if !self.cluster.may_act() {
                return Err(Stopped);
            }
        }
        let report = OwnerReport { task: self.task, epoch: self.epoch, number: self.number, words };
        let lingers = world::with(|world| world.rng.u8(0..LINGERS_ONE_OF) == 0);
        loop {
            if !self.cluster.may_act() {
                return Err(Stopped);
            }
            let others = self.shared.ledger().newest_epoch(self.task);
            let told = match lingers {
                true => self.propose_beside(report.clone()).await?,
                false => propose(&self.cluster, report.clone()).await,
            };
            match told {
                Ok(_) => {
                    self.shared.ledger().reported(self.task, self.epoch, self.node, others);
                    return Ok(());
                }
                Err(ProposeError::Rejected(rejection)) => {
                    refused(&self.shared, self.node, self.task, &rejection);
                    return Err(Stopped);
                }
                Err(error) => {
                    tracing::debug!(task = %self.task, %error, "report is made again");
                    sleep(RETRY_AFTER).await;
                }
            }
        }
    }

    /// Proposes a report that is on its way still when its run has been stopped: what is sent is not taken back.
    async fn propose_beside(&self, report: OwnerReport) -> Result<Result<Reply, ProposeError>, Stopped> {
        let (cluster, shared) = (self.cluster.clone(), self.shared.clone());
        let (tell, told) = oneshot::channel();
        let by_its_time = world::with(|world| Duration::from_millis(world.rng.u64(LINGERS_MS)));
        tokio::spawn(async move {
            let (node, task, epoch) = (cluster.node_id(), report.task, report.epoch);
            // It stays in a queue before it goes out, and while it does the lease may end.
            if world::with(|world| world.rng.bool()) {
                sleep(by_its_time).await;
            }
            let before = shared.ledger().newest_epoch(task);
            let outcome = propose(&cluster, report).await;
            if let Err(unheard) = tell.send(outcome) {
                match unheard {
                    Ok(_) => shared.ledger().reported(task, epoch, node, before),
                    Err(ProposeError::Rejected(rejection)) => refused(&shared, node, task, &rejection),
                    Err(ProposeError::Unavailable { .. } | ProposeError::Unknown { .. }) => {}
                }
            }
        });
        told.await.map_err(|_| Stopped)
    }
}

async fn propose(cluster: &ClusterHandle, report: OwnerReport) -> Result<Reply, ProposeError> {
    let by = Principal::Node(cluster.node_id());
    cluster.propose(Proposal { by, command: Command::Report(report) }, None).await
}

/// A report is refused for one reason only.
fn refused(shared: &Shared, node: NodeId, task: TaskId, rejection: &Rejection) {
    let mut ledger = shared.ledger();
    ledger.counts.refused += 1;
    if !matches!(rejection, Rejection::StaleEpoch { .. }) {
        ledger.wrong(format!("a report of node {node} on task {task} was refused: {rejection}"));
    }
}

fn intent(number: u32) -> Intent {
    Intent::Tool {
        call_id: format!("call-{number}"),
        server: "world".to_owned(),
        tool: "write".to_owned(),
        arguments: serde_json::Value::Null,
        on_adoption: OnAdoption::Retry,
    }
}

/// One that is like no other: by it an owner knows its own words.
fn span() -> TraceContext {
    TraceContext { trace_id: 1, span_id: world::with(|world| world.rng.u64(1..)), sampled: false }
}

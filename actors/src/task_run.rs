//! Runs one task for as long as this node holds its lease: one owner loop that reads the journal, decides, commits an
//! intent, performs it, commits its outcome, and decides again.
//!
//! ```text
//!  journal ──decide──▶ words ──outbox──▶ report ──commit──▶ journal
//!     ▲                                                        │
//!     └── outcomes ◀── model, tools, peers ◀── perform ◀───────┘
//! ```
//! Started by its agent when a lease is given to this node. It ends by itself when the task has ended or waits for a
//! person, and when its epoch is stale; it is stopped when the lease is lost or the task is canceled. It is restarted by its
//! agent after a crash: everything it needs is in the journal. A delegation that crashes is started again with back-off, a
//! few times per run; then its step fails.

mod budget;
mod calls;
mod doubt;
mod ending;
mod leaving;
mod outcomes;
mod perform;
mod relay;
mod spans;
mod view;

use crate::{
    config::AgentConfig,
    decision::{self, Next, Situation},
    delegation::{DelegationMsg, News},
    logs,
    mailbox::{Addressed, Mail},
    mcp_connection::{CallError, ToolResult},
    model::ModelError,
    outbox::Outbox,
    parked::Line,
    prompt,
    shared::{Model, Permits, Shared},
    thinking::Progress,
    toolbox::{Planned, Toolbox, sent_in},
};
use calls::Aside;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use towline_cluster::{ClusterHandle, ProposeError};
use towline_core::{
    Command, Doubt, Epoch, Intent, Message, Metadata, ModelAnswer, Outcome, OwnerReport, OwnerWord, Part, Principal,
    Proposal, Rejection, Role, Step, StepNo, TaskId, TaskState, ToolCall, TraceContext,
};
use towline_trace::{KeyValue, LostSpan, Span, metrics::instruments::ADOPTION_WAIT, names};
use view::View;

pub(crate) use leaving::Leave;
pub use relay::MAX_DEPTH;
pub(crate) use relay::ON_BEHALF_OF_KEY;

/// Name of the artifacts that hold the answers of an agent's model.
pub(crate) const ANSWER: &str = "answer";

/// Wait before a report whose fate is unknown is proposed again; it doubles.
const FIRST_REPORT_WAIT: Duration = Duration::from_millis(100);

/// Longest such wait: an election takes about a second.
const LONGEST_REPORT_WAIT: Duration = Duration::from_secs(1);

/// How often a run begins its turn anew because a report of an earlier run under the same lease was in its way.
const MAX_BEGINS: u32 = 5;

/// How long a run that stops waits for what it had under way, so that servers and peers hear of it.
const STOP_TIMEOUT: Duration = Duration::from_secs(6);

/// Longest text of a call's arguments in a question to a person.
const MAX_SHOWN_ARGUMENTS: usize = 500;

/// What an agent's runs have in common.
pub(crate) struct AgentContext {
    pub shared: Arc<Shared>,
    pub agent: AgentConfig,
    /// The agent's own limit of tasks at the same time, if it has one.
    pub permits: Option<Arc<Semaphore>>,
}

impl AgentContext {
    fn model(&self) -> Option<&Model> {
        self.shared.models.get(&self.agent.model)
    }
}

/// Messages of a run. Outcomes carry step and attempt; a late one is dropped.
pub(crate) enum TaskRunMsg {
    /// There is a place to work, and the tools are known.
    Prepared { permits: Permits, toolbox: Toolbox, waited: Duration },
    /// A report is committed, and applied on this node.
    Committed { number: u64 },
    /// A report was refused.
    Refused { number: u64, rejection: Rejection },
    /// The model is answering.
    Progress { step: StepNo, attempt: u32, progress: Progress },
    /// The model has answered. The tools may have changed meanwhile.
    Thought { step: StepNo, attempt: u32, answer: Result<ModelAnswer, ModelError>, toolbox: Toolbox },
    /// A tool has answered.
    ToolReturned { step: StepNo, attempt: u32, result: Result<ToolResult, CallError> },
    /// The server of a tool asks a person something.
    ToolAsks { step: StepNo, attempt: u32, text: String, details: serde_json::Value },
    /// The server of a tool says something about the call.
    ToolSays { step: StepNo, attempt: u32, said: Aside },
    /// A delegation has news.
    News { step: StepNo, attempt: u32, news: News },
    /// A crashed delegation has rested.
    Rested { step: StepNo },
    /// The task's caller gives up.
    DeadlinePassed,
    /// This node is to be empty, or it stops; none if it is to work again.
    Leave(Option<Leave>),
    /// A step that may be repeated is waited for no longer.
    PatienceOver,
    /// The task has ended or moved, or this node may not act: stop.
    Stop,
}

impl Addressed for TaskRunMsg {
    const KIND: &'static str = "task_run";
}

pub(crate) struct TaskRunArguments {
    pub context: Arc<AgentContext>,
    pub task: TaskId,
    pub epoch: Epoch,
    /// When this node learned of the lease.
    pub received: Instant,
    /// Ends the task as failed, and this is why: its runs crashed too often.
    pub give_up: Option<String>,
}

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It waits for a place to work.
    Preparing,
    /// Its turn is being committed.
    Beginning,
    /// It works.
    Running,
    /// It offers the task to another node.
    Leaving,
    /// Its last word is on its way.
    Ending,
}

/// A step that is under way.
struct Running {
    attempt: u32,
    work: Work,
}

enum Work {
    /// A model or tool call: it needs a permit. A tool's ends with what came of it.
    Call {
        cancel: CancellationToken,
        task: AbortOnDropHandle<Option<Outcome>>,
        /// Where a tool's call tells what happens.
        line: Option<Line>,
    },
    Delegation(ActorRef<DelegationMsg>),
    /// A crashed delegation, until it is started again.
    Resting,
}

pub(crate) struct TaskRunState {
    myself: ActorRef<Mail<TaskRunMsg>>,
    context: Arc<AgentContext>,
    epoch: Epoch,
    view: View,
    outbox: Outbox,
    phase: Phase,
    begins: u32,
    received: Instant,
    give_up: Option<String>,
    turn: Option<Span>,
    turn_context: TraceContext,
    /// What the lines of the log say that belong to the task.
    logs: tracing::Span,
    lost: Vec<LostSpan>,
    step_spans: BTreeMap<StepNo, Span>,
    mine: BTreeSet<StepNo>,
    running: BTreeMap<StepNo, Running>,
    asking: BTreeMap<StepNo, String>,
    /// Those of them that ask for credentials.
    asking_auth: BTreeSet<StepNo>,
    /// What the questions of tools' servers say for programs.
    asked_details: BTreeMap<StepNo, serde_json::Value>,
    /// Delegations whose result is outside input, and why.
    outside: BTreeMap<StepNo, String>,
    doubtful: BTreeMap<StepNo, String>,
    /// Steps that a person said may run again.
    may_repeat: BTreeSet<StepNo>,
    /// Steps that ran again after their connection had broken.
    repeated: BTreeSet<StepNo>,
    delegation_crashes: u32,
    permits: Option<Permits>,
    /// How long it waited for them, all in all.
    permit_wait: Duration,
    toolbox: Toolbox,
    preparing: Option<AbortOnDropHandle<()>>,
    proposing: Option<AbortOnDropHandle<()>>,
    deadline: Option<AbortOnDropHandle<()>>,
    leave: Option<Leave>,
    patience: Option<AbortOnDropHandle<()>>,
    /// Another node has taken the task over, with nothing in doubt.
    gave_away: bool,
    /// Whether the model calls its text a plain reply.
    replies: bool,
    /// That text, once it is whole.
    reply: Option<String>,
}

pub(crate) struct TaskRunActor;

impl Actor for TaskRunActor {
    type Msg = Mail<TaskRunMsg>;
    type State = TaskRunState;
    type Arguments = TaskRunArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Mail<TaskRunMsg>>,
        arguments: TaskRunArguments,
    ) -> Result<TaskRunState, ActorProcessingErr> {
        let TaskRunArguments { context, task, epoch, received, give_up } = arguments;
        let view = context
            .shared
            .cluster
            .local(|state| View::read(state, task))
            .ok_or_else(|| format!("task {task} is not there"))?;
        let reported = view.lease.as_ref().map_or(0, |lease| lease.reported);
        let mut state = TaskRunState {
            myself,
            context,
            epoch,
            outbox: Outbox::new(task, epoch, reported),
            phase: Phase::Preparing,
            begins: 0,
            received,
            give_up,
            turn: None,
            turn_context: view.turn.parent,
            logs: logs::of_task(task, &view.trace),
            view,
            lost: Vec::new(),
            step_spans: BTreeMap::new(),
            mine: BTreeSet::new(),
            running: BTreeMap::new(),
            asking: BTreeMap::new(),
            asking_auth: BTreeSet::new(),
            asked_details: BTreeMap::new(),
            outside: BTreeMap::new(),
            doubtful: BTreeMap::new(),
            may_repeat: BTreeSet::new(),
            repeated: BTreeSet::new(),
            delegation_crashes: 0,
            permits: None,
            permit_wait: Duration::ZERO,
            toolbox: Toolbox::default(),
            preparing: None,
            proposing: None,
            deadline: None,
            leave: None,
            patience: None,
            gave_away: false,
            replies: false,
            reply: None,
        };
        state.prepare();
        state.watch_deadline();
        Ok(state)
    }

    async fn handle(
        &self,
        _: ActorRef<Mail<TaskRunMsg>>,
        message: Mail<TaskRunMsg>,
        state: &mut TaskRunState,
    ) -> Result<(), ActorProcessingErr> {
        match message.open() {
            TaskRunMsg::Prepared { permits, toolbox, waited } => {
                state.permit_wait += waited;
                state.prepared(permits, toolbox).await?;
            }
            TaskRunMsg::Committed { number } => state.committed(number).await?,
            TaskRunMsg::Refused { number, rejection } => state.refused(number, rejection)?,
            TaskRunMsg::Progress { step, attempt, progress } if state.is_running(step, attempt) => {
                state.progress(step, attempt, progress);
            }
            TaskRunMsg::Thought { step, attempt, answer, toolbox } if state.is_running(step, attempt) => {
                state.toolbox = toolbox;
                let outcome = state.thought(step, answer);
                state.complete_with(step, outcome);
                state.advance().await?;
            }
            TaskRunMsg::ToolReturned { step, attempt, result } if state.is_running(step, attempt) => {
                state.tool_returned(step, result);
                state.advance().await?;
            }
            TaskRunMsg::ToolAsks { step, attempt, text, details } if state.is_running(step, attempt) => {
                state.tool_asks(step, text, details);
                state.advance().await?;
            }
            TaskRunMsg::ToolSays { step, attempt, said } if state.is_running(step, attempt) => {
                state.aside(step, attempt, said);
            }
            TaskRunMsg::News { step, attempt, news } if state.is_running(step, attempt) => {
                state.news(step, news);
                state.advance().await?;
            }
            TaskRunMsg::Progress { .. }
            | TaskRunMsg::Thought { .. }
            | TaskRunMsg::ToolReturned { .. }
            | TaskRunMsg::ToolAsks { .. }
            | TaskRunMsg::ToolSays { .. }
            | TaskRunMsg::News { .. } => {}
            TaskRunMsg::Rested { step } => {
                state.running.remove(&step);
                state.advance().await?;
            }
            TaskRunMsg::DeadlinePassed => {
                state.finish(TaskState::Failed, Some("the deadline of the task passed".to_owned()));
            }
            TaskRunMsg::Leave(leave) => state.leave(leave).await?,
            TaskRunMsg::PatienceOver => state.advance().await?,
            TaskRunMsg::Stop => state.stop(),
        }
        Ok(())
    }

    /// Children are delegations. One that ends before its run has let it go has crashed.
    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<Mail<TaskRunMsg>>,
        event: SupervisionEvent,
        state: &mut TaskRunState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(child, error) => state.delegation_crashed(&child, &error.to_string()),
            SupervisionEvent::ActorTerminated(child, _, reason) => {
                state.delegation_crashed(&child, reason.as_deref().unwrap_or("stopped"));
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        state.advance().await
    }

    async fn post_stop(
        &self,
        _: ActorRef<Mail<TaskRunMsg>>,
        state: &mut TaskRunState,
    ) -> Result<(), ActorProcessingErr> {
        state.shut_down().await;
        Ok(())
    }
}

impl TaskRunState {
    fn id(&self) -> TaskId {
        self.view.id
    }

    fn is_running(&self, step: StepNo, attempt: u32) -> bool {
        self.running.get(&step).is_some_and(|running| running.attempt == attempt)
    }

    fn stop(&mut self) {
        self.phase = Phase::Ending;
        self.myself.stop(None);
    }

    /// Waits for a place to work and for the tools, outside of the handler.
    fn prepare(&mut self) {
        if self.preparing.is_some() {
            return;
        }
        let (context, myself) = (Arc::clone(&self.context), self.myself.clone());
        self.preparing = Some(AbortOnDropHandle::new(logs::spawn(&self.logs, async move {
            context.shared.await_servers(&context.agent).await;
            let toolbox = context.shared.toolbox(&context.agent);
            let node = Arc::clone(&context.shared.permits);
            let since = Instant::now();
            // The semaphores are never closed.
            let Some(permits) = Permits::acquire(context.permits.clone(), node).await else { return };
            // A run that has stopped gives the permit back by dropping the message.
            let _ = myself.cast(TaskRunMsg::Prepared { permits, toolbox, waited: since.elapsed() }.into());
        })));
    }

    async fn prepared(&mut self, permits: Permits, toolbox: Toolbox) -> Result<(), ActorProcessingErr> {
        self.preparing = None;
        self.permits = Some(permits);
        self.toolbox = toolbox;
        match self.phase {
            Phase::Preparing => {
                if self.leave != Some(Leave::Stop) {
                    self.begin();
                }
                Ok(())
            }
            Phase::Running => self.advance().await,
            Phase::Beginning | Phase::Leaving | Phase::Ending => Ok(()),
        }
    }

    fn refresh(&mut self) -> bool {
        let id = self.id();
        match self.context.shared.cluster.local(|state| View::read(state, id)) {
            Some(view) => {
                self.view = view;
                true
            }
            None => false,
        }
    }

    /// Commits the turn. Whether this run is the one that began it is seen from its span in the journal: a report of an
    /// earlier run under the same lease may have taken its number.
    fn begin(&mut self) {
        let node = self.context.shared.cluster.node_id();
        let known = self.refresh();
        let Some(lease) = self.view.lease_under(node, self.epoch).filter(|_| known).cloned() else {
            self.stop();
            return;
        };
        self.begins += 1;
        if self.begins == 1 {
            self.lost = spans::lost(&self.view);
            self.measure_adoption();
        }
        if self.turn.is_none() {
            let waited = u64::try_from(self.received.elapsed().as_millis()).unwrap_or(u64::MAX);
            let mut span = spans::turn(&self.view, self.context.model(), self.epoch.0, waited);
            let for_permits = u64::try_from(self.permit_wait.as_millis()).unwrap_or(u64::MAX);
            span.set(names::PERMIT_WAIT_MS, spans::number(for_permits));
            self.turn_context = span.context();
            self.turn = Some(span);
        }
        self.phase = Phase::Beginning;
        self.outbox = Outbox::new(self.id(), self.epoch, lease.reported);
        self.outbox.push(OwnerWord::TurnStarted { span: self.turn_context });
        if self.give_up.is_none() && self.view.journal.is_empty() {
            let next = self.decide();
            // What goes over the budget is said once the turn has begun.
            let may_begin = self.over_budget(&next).is_none();
            if may_begin && next == Next::Think {
                self.think_next();
            } else if may_begin && next == Next::Relay {
                self.relay();
            }
        }
        self.pump();
    }

    /// A task that came from a lost node goes on. Clocks differ, so a wait can look like less than nothing.
    fn measure_adoption(&self) {
        let Some(adoption) = self.view.adoption.as_ref().filter(|adoption| adoption.epoch == self.epoch) else {
            return;
        };
        let waited = Duration::from_millis(self.view.now.0.saturating_sub(adoption.at.0));
        ADOPTION_WAIT.add(waited.as_secs_f64(), &[self.context.agent.name.as_str()]);
    }

    fn model_name(&self) -> String {
        self.context.model().map(|model| model.name.clone()).unwrap_or_default()
    }

    fn is_simulated(&self) -> bool {
        self.context.model().is_some_and(|model| model.provider.info().simulated)
    }

    /// Sends the next report, if none is under way.
    fn pump(&mut self) {
        let Some(report) = self.outbox.next_report() else { return };
        let shows_text_only = report.words.iter().all(|word| matches!(word, OwnerWord::Chunk { .. }));
        let parent = (!shows_text_only).then_some(self.turn_context);
        let proposing = propose(Arc::clone(&self.context), self.myself.clone(), report, parent);
        self.proposing = Some(AbortOnDropHandle::new(logs::spawn(&self.logs, proposing)));
    }

    async fn committed(&mut self, number: u64) -> Result<(), ActorProcessingErr> {
        let Some(words) = self.outbox.committed(number) else { return Ok(()) };
        let changes_journal = words.iter().any(|word| !matches!(word, OwnerWord::Chunk { .. }));
        if changes_journal && !self.refresh() {
            self.stop();
            return Ok(());
        }
        for word in words {
            match word {
                OwnerWord::TurnStarted { span } => {
                    if !self.begun(span)? {
                        return Ok(());
                    }
                }
                OwnerWord::StepStarted { step, .. } => {
                    self.mine.insert(step);
                    self.doubt_if_restored(step);
                }
                OwnerWord::StepRestarted { step, .. } => {
                    self.mine.insert(step);
                }
                OwnerWord::Released => return self.released().await,
                OwnerWord::AskPerson { .. } | OwnerWord::Doubt { .. } | OwnerWord::Finished { .. } => {
                    // Before anybody can answer.
                    self.park_asking();
                    self.stop();
                    return Ok(());
                }
                OwnerWord::PeerTask { .. }
                | OwnerWord::StepEnded { .. }
                | OwnerWord::OutsideInput { .. }
                | OwnerWord::Chunk { .. } => {}
            }
        }
        self.advance().await
    }

    /// The turn is committed. False if it was not this run's report that took the number.
    fn begun(&mut self, span: TraceContext) -> Result<bool, ActorProcessingErr> {
        if self.view.turn.span != Some(span) {
            if self.begins >= MAX_BEGINS {
                return Err(format!("turn of task {} could not be begun {MAX_BEGINS} times", self.id()).into());
            }
            self.begin();
            return Ok(false);
        }
        self.phase = Phase::Running;
        self.take_parked();
        std::mem::take(&mut self.lost).into_iter().for_each(towline_trace::report_lost);
        self.watch_deadline();
        Ok(true)
    }

    /// Milliseconds until the task's caller gives up, or the configuration does for it.
    fn remaining_ms(&self) -> Option<u64> {
        let longest = self.context.shared.config.task_time.filter(|_| !self.view.is_delegated);
        let until = longest.map(|longest| {
            let longest = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
            self.view.created.0.saturating_add(longest).saturating_sub(self.view.now.0)
        });
        [until, self.view.remaining_ms()].into_iter().flatten().min()
    }

    fn watch_deadline(&mut self) {
        let Some(remaining) = self.remaining_ms() else { return };
        let myself = self.myself.clone();
        self.deadline = Some(AbortOnDropHandle::new(logs::spawn(&self.logs, async move {
            tokio::time::sleep(Duration::from_millis(remaining)).await;
            // A run that has stopped has no deadline.
            let _ = myself.cast(TaskRunMsg::DeadlinePassed.into());
        })));
    }

    /// A report was refused. What the lease's loss explains ends the run, a bound of the task ends the task; anything else
    /// is a bug, and a fresh run reads the journal again.
    #[expect(clippy::wildcard_enum_match_arm, reason = "whatever else is refused is the same bug")]
    fn refused(&mut self, number: u64, rejection: Rejection) -> Result<(), ActorProcessingErr> {
        let Some(words) = self.outbox.refused(number) else { return Ok(()) };
        match rejection {
            Rejection::StaleEpoch { .. } | Rejection::TaskEnded { .. } | Rejection::UnknownTask { .. } => {
                tracing::info!(task = %self.id(), epoch = self.epoch.0, %rejection, "run ends");
                self.testify_of(words);
                self.stop();
                Ok(())
            }
            Rejection::TooLarge { .. } | Rejection::Full { .. }
                if !matches!(words.as_slice(), [OwnerWord::Finished { .. }]) =>
            {
                self.phase = Phase::Running;
                self.finish(TaskState::Failed, Some(format!("stopped: {rejection}")));
                Ok(())
            }
            rejection => Err(format!("report {number} of task {} was refused: {rejection}", self.id()).into()),
        }
    }

    /// Says the task's last word. Words that wait are dropped: nobody reads the journal of a task that has ended.
    fn finish(&mut self, state: TaskState, reason: Option<String>) {
        if self.phase == Phase::Ending {
            return;
        }
        if let (Some(turn), TaskState::Failed) = (&mut self.turn, state) {
            turn.fail("task_failed", reason.as_deref().unwrap_or("failed"));
        }
        if state == TaskState::Failed {
            self.outbox.clear();
        }
        let message = reason.map(|reason| self.say(reason, Metadata::new()));
        self.end_with(state, message);
    }

    /// The turn is over. What the model said to be a plain reply is the last word as well.
    fn complete(&mut self) {
        if self.phase == Phase::Ending {
            return;
        }
        let is_reply = || Metadata::from([(towline_a2a::REPLY_KEY.to_owned(), true.into())]);
        let message = self.reply.take().map(|text| self.say(text, is_reply()));
        self.end_with(TaskState::Completed, message);
    }

    fn end_with(&mut self, state: TaskState, message: Option<Message>) {
        self.note_state(state);
        self.phase = Phase::Ending;
        self.outbox.push(OwnerWord::Finished { state, message });
        self.pump();
    }

    /// Notes on the turn what it makes of the task.
    fn note_state(&mut self, state: TaskState) {
        let Some(turn) = &mut self.turn else { return };
        let name = |state| towline_a2a::convert::state_name(state);
        turn.set(names::A2A_TASK_STATE, name(state));
        let change = [(names::FROM, self.view.state), (names::TO, state)];
        turn.event(names::event::TASK_STATE, change.map(|(key, state)| KeyValue::new(key, name(state))).to_vec());
    }

    /// A message of the agent to its client.
    fn say(&self, text: String, metadata: Metadata) -> Message {
        let id = format!("{}/said/{}", self.id(), self.view.history.len());
        Message {
            message_id: id.try_into().expect("a task id and a number are printable and short"),
            context_id: Some(self.view.context.clone()),
            task_id: Some(self.id()),
            role: Role::Agent,
            parts: vec![Part::text(text)],
            metadata,
            extensions: Vec::new(),
            reference_task_ids: Vec::new(),
        }
    }

    /// Goes on until there is something to wait for.
    async fn advance(&mut self) -> Result<(), ActorProcessingErr> {
        loop {
            self.pump();
            if self.phase != Phase::Running || !self.outbox.is_idle() {
                return Ok(());
            }
            if let Some(reason) = self.give_up.take() {
                self.finish(TaskState::Failed, Some(reason));
                return Ok(());
            }
            let next = self.decide();
            let Some(next) = self.unless_leaving(next) else { return Ok(()) };
            if self.permits.is_none() && self.needs_permit(&next) {
                self.prepare();
                return Ok(());
            }
            if next == Next::Wait {
                self.give_permit_back();
                return Ok(());
            }
            if let Some(reason) = self.over_budget(&next) {
                self.finish(TaskState::Failed, Some(reason));
                return Ok(());
            }
            self.follow(next).await?;
        }
    }

    fn decide(&self) -> Next {
        self.decide_from(&self.view.journal)
    }

    fn decide_from(&self, journal: &[Step]) -> Next {
        let running = self.running.keys().filter(|step| !self.asking.contains_key(step)).copied().collect();
        decision::decide(&Situation {
            journal,
            mine: &self.mine,
            running: &running,
            asking: &self.asking,
            doubtful: &self.doubtful.keys().copied().collect(),
            max_model_calls: self.context.agent.max_steps,
            relays: self.context.agent.relays,
        })
    }

    fn needs_permit(&self, next: &Next) -> bool {
        match next {
            Next::Think => true,
            Next::Call(calls) => calls.iter().any(|call| !prompt::is_for_agents(&call.name)),
            Next::Perform(steps) => steps
                .iter()
                .filter_map(|step| self.view.step(*step))
                .any(|step| matches!(step.intent, Intent::Model { .. } | Intent::Tool { .. })),
            Next::TakeUp { .. }
            | Next::Wait
            | Next::Relay
            | Next::Doubt(_)
            | Next::Ask(_)
            | Next::AskAgain(..)
            | Next::AskForPeer(..)
            | Next::Complete
            | Next::Fail(_)
            | Next::Reject(_) => false,
        }
    }

    /// A run that waits for nothing but peers leaves its place to others: its own children, perhaps.
    fn give_permit_back(&mut self) {
        let works = self.running.values().any(|running| matches!(running.work, Work::Call { .. }));
        if !works {
            self.permits = None;
        }
    }

    async fn follow(&mut self, next: Next) -> Result<(), ActorProcessingErr> {
        match next {
            Next::TakeUp { restart, fail } => self.take_up(&restart, &fail),
            Next::Perform(steps) => return self.perform(&steps).await,
            Next::Call(calls) => self.call(&calls),
            Next::Think => self.think_next(),
            Next::Relay => self.relay(),
            Next::Doubt(steps) => self.ask_about(steps),
            Next::Ask(call) => self.ask(&call),
            Next::AskAgain(step, question) => self.ask_person(step, question, Metadata::new(), false),
            Next::AskForPeer(step, question) => self.ask_for_peer(step, question),
            Next::Complete => self.complete(),
            Next::Fail(reason) => self.finish(TaskState::Failed, Some(reason)),
            Next::Reject(reason) => self.finish(TaskState::Rejected, Some(reason)),
            Next::Wait => {}
        }
        Ok(())
    }

    fn think_next(&mut self) {
        let model = self.model_name();
        self.start_step(self.next_step(0), Intent::Model { model });
    }

    fn next_step(&self, ahead: usize) -> StepNo {
        StepNo(u32::try_from(self.view.journal.len() + ahead).unwrap_or(u32::MAX))
    }

    fn start_step(&mut self, step: StepNo, intent: Intent) {
        let span = self.open_span(step, &intent, 1);
        self.outbox.push(OwnerWord::StepStarted { step, intent, span });
    }

    fn open_span(&mut self, step: StepNo, intent: &Intent, attempt: u32) -> TraceContext {
        let provider = self.context.model().map(|model| model.provider.info());
        let span = spans::step(&self.view, intent, (step, attempt), &self.turn_context, provider.as_ref());
        let context = span.context();
        self.step_spans.insert(step, span);
        context
    }

    fn take_up(&mut self, restart: &[StepNo], fail: &[StepNo]) {
        for no in restart {
            let Some(step) = self.view.step(*no).cloned() else { continue };
            if step.doubt == Some(Doubt::Retry) {
                self.may_repeat.insert(*no);
            }
            let span = self.open_span(*no, &step.intent, step.attempt + 1);
            self.outbox.push(OwnerWord::StepRestarted { step: *no, span });
        }
        for no in fail {
            let outcome = Outcome::Failed {
                error_type: names::error::NODE_LOST.to_owned(),
                message: "the node that ran it was lost, and it must not run twice: it may have happened".to_owned(),
            };
            self.outbox.push(OwnerWord::StepEnded { step: *no, outcome });
        }
    }

    fn call(&mut self, calls: &[ToolCall]) {
        self.toolbox.sent = sent_in(&self.view.journal);
        let delegations = self.delegations_to_come();
        for (ahead, call) in calls.iter().enumerate() {
            let step = self.next_step(ahead);
            match self.toolbox.plan(call, self.id(), step) {
                Planned::Do(mut intent) => match self.grant(&mut intent, delegations) {
                    Ok(()) => self.start_step(step, intent),
                    Err(outcome) => {
                        let refused = Intent::Refused { call_id: call.id.clone(), name: call.name.clone() };
                        self.refuse(step, refused, outcome);
                    }
                },
                Planned::Refuse(intent, outcome) => self.refuse(step, intent, outcome),
            }
        }
    }

    fn refuse(&mut self, step: StepNo, intent: Intent, outcome: Outcome) {
        self.start_step(step, intent);
        self.end_step(step, outcome);
    }

    /// Queues the outcome of a step and ends its span.
    fn end_step(&mut self, step: StepNo, outcome: Outcome) {
        if let Some(mut span) = self.step_spans.remove(&step) {
            match &outcome {
                Outcome::Failed { error_type, message } => span.fail(error_type, message),
                Outcome::Returned { is_error: true, .. } | Outcome::Stored { is_error: true, .. } => {
                    span.fail(names::error::TOOL_ERROR, "the call returned an error")
                }
                Outcome::Returned { is_error: false, .. }
                | Outcome::Stored { is_error: false, .. }
                | Outcome::Answered(_) => {}
            }
            span.end();
        }
        self.running.remove(&step);
        self.asking.remove(&step);
        self.asking_auth.remove(&step);
        self.asked_details.remove(&step);
        self.outbox.push(OwnerWord::StepEnded { step, outcome });
    }

    fn ask(&mut self, call: &ToolCall) {
        let step = self.next_step(0);
        match self.toolbox.plan(call, self.id(), step) {
            Planned::Do(intent) => {
                let question = match &intent {
                    Intent::Ask { question, .. } => question.clone(),
                    Intent::Model { .. } | Intent::Tool { .. } | Intent::Delegate { .. } | Intent::Refused { .. } => {
                        String::new()
                    }
                };
                self.start_step(step, intent);
                self.ask_person(step, question, Metadata::new(), false);
            }
            Planned::Refuse(intent, outcome) => self.refuse(step, intent, outcome),
        }
    }

    fn ask_person(&mut self, step: StepNo, question: String, metadata: Metadata, auth: bool) {
        self.note_state(if auth { TaskState::AuthRequired } else { TaskState::InputRequired });
        let message = self.say(question, metadata);
        self.phase = Phase::Ending;
        self.outbox.push(OwnerWord::AskPerson { step, message, auth });
        self.pump();
    }

    fn ask_for_peer(&mut self, step: StepNo, question: String) {
        let metadata = match self.view.step(step).map(|step| &step.intent) {
            Some(Intent::Delegate { target, .. }) => {
                Metadata::from([("dev.towline/askedBy".to_owned(), target.clone().into())])
            }
            Some(Intent::Tool { server, tool, .. }) => self.question_of_server(step, server, tool),
            Some(Intent::Model { .. } | Intent::Ask { .. } | Intent::Refused { .. }) | None => Metadata::new(),
        };
        let auth = self.asking_auth.contains(&step);
        self.ask_person(step, question, metadata, auth);
    }
}

fn tool_outcome(result: Result<ToolResult, CallError>) -> Outcome {
    match result {
        Ok(result) => Outcome::Returned { content: result.text, is_error: result.is_error },
        Err(error) => Outcome::Failed { error_type: error.error_type.into_owned(), message: error.message },
    }
}

/// Keeps what is large in a report, however long it takes: without it there is nothing to report.
async fn kept(cluster: &ClusterHandle, report: OwnerReport) -> OwnerReport {
    let mut wait = FIRST_REPORT_WAIT;
    loop {
        let mut kept = report.clone();
        match cluster.keep_words(&mut kept.words).await {
            Ok(()) => return kept,
            Err(error) => tracing::info!(task = %report.task, %error, "large content is kept again"),
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LONGEST_REPORT_WAIT);
    }
}

/// Proposes a report until its fate is known: the same number each time, so that it is applied once.
async fn propose(
    context: Arc<AgentContext>,
    run: ActorRef<Mail<TaskRunMsg>>,
    report: OwnerReport,
    parent: Option<TraceContext>,
) {
    let cluster = &context.shared.cluster;
    let (task, number) = (report.task, report.number);
    let report = kept(cluster, report).await;
    let proposal = Proposal { by: Principal::Node(cluster.node_id()), command: Command::Report(report) };
    let mut wait = FIRST_REPORT_WAIT;
    let message = loop {
        match cluster.propose(proposal.clone(), parent.as_ref()).await {
            Ok(_) => break TaskRunMsg::Committed { number },
            Err(ProposeError::Rejected(rejection)) => break TaskRunMsg::Refused { number, rejection },
            Err(error @ (ProposeError::Unavailable { .. } | ProposeError::Unknown { .. })) => {
                tracing::info!(%task, number, %error, "report is proposed again");
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(LONGEST_REPORT_WAIT);
            }
        }
    };
    // A run that has stopped does not go on.
    let _ = run.cast(message.into());
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= MAX_SHOWN_ARGUMENTS {
        return text.to_owned();
    }
    let start: String = text.chars().take(MAX_SHOWN_ARGUMENTS).collect();
    format!("{start}…")
}

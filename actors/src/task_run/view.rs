//! What a run reads of its task: all but the events and artifacts, which it never needs.

use towline_core::{
    Adoption, AgentName, Budget, ContextId, Epoch, Labels, LateResult, Lease, Message, MessageId, NodeId, Principal,
    Role, Spent, State, Step, StepNo, Task, TaskId, TaskState, Timestamp, TraceContext, Turn,
};

/// The task as it was committed last.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub id: TaskId,
    pub context: ContextId,
    pub agent: AgentName,
    pub owner: Principal,
    pub hop: u32,
    pub created: Timestamp,
    /// Whether a task of this mesh waits for it, or has sent it.
    pub is_delegated: bool,
    /// What its message says that it may spend.
    pub budget: Option<Budget>,
    /// What the tasks have spent that it delegated, as far as they have ended.
    pub spent_below: Spent,
    pub deadline: Option<Timestamp>,
    pub state: TaskState,
    pub lease: Option<Lease>,
    /// The request that made it.
    pub trace: TraceContext,
    pub adoption: Option<Adoption>,
    pub turn: Turn,
    pub history: Vec<Message>,
    pub journal: Vec<Step>,
    pub late_results: Vec<LateResult>,
    pub outside_input: Vec<String>,
    pub restored: bool,
    pub labels: Labels,
    /// The time of the last command that this node has applied.
    pub now: Timestamp,
}

impl View {
    /// Reads the task, if it is still there.
    pub(super) fn read(state: &State, id: TaskId) -> Option<Self> {
        state.task(id).map(|task| Self::of(task, state.last().at))
    }

    fn of(task: &Task, now: Timestamp) -> Self {
        Self {
            id: task.id,
            context: task.context.clone(),
            agent: task.agent.clone(),
            owner: task.owner.clone(),
            hop: task.hop,
            created: task.created,
            is_delegated: task.parent.is_some(),
            budget: task.budget(),
            spent_below: task.spent_below,
            deadline: task.deadline,
            state: task.status.state,
            lease: task.lease.clone(),
            trace: task.trace,
            adoption: task.adoptions.last().cloned(),
            turn: task.turn.clone(),
            history: task.history.clone(),
            journal: task.journal.clone(),
            late_results: task.late_results.clone(),
            outside_input: task.outside_input.clone(),
            restored: task.restored,
            labels: task.labels.clone(),
            now,
        }
    }

    /// The lease, if this node holds it under this epoch.
    pub(super) fn lease_under(&self, node: NodeId, epoch: Epoch) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| lease.node == node && lease.epoch == epoch)
    }

    /// A step.
    pub(super) fn step(&self, no: StepNo) -> Option<&Step> {
        self.journal.get(no.0 as usize)
    }

    /// A message of the history.
    pub(super) fn message(&self, id: &MessageId) -> Option<&Message> {
        self.history.iter().find(|message| message.message_id == *id)
    }

    /// Id of what the client said last.
    pub(super) fn last_message_of_client(&self) -> Option<&MessageId> {
        self.history.iter().rev().find(|message| message.role == Role::User).map(|message| &message.message_id)
    }

    /// What the client said last, as text.
    pub(super) fn last_text_of_client(&self) -> Option<String> {
        self.history.iter().rev().find(|message| message.role == Role::User).map(Message::text)
    }

    /// Milliseconds until the caller gives up.
    pub(super) fn remaining_ms(&self) -> Option<u64> {
        self.deadline.map(|deadline| deadline.0.saturating_sub(self.now.0))
    }

    /// Spans of the attempts of this turn that ended with their node.
    pub(super) fn lost_turns(&self) -> Vec<TraceContext> {
        self.turn.lost.iter().copied().chain(self.turn.span).collect()
    }
}

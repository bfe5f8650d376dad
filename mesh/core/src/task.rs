//! Tasks and their life cycle (A2A 1.0, section 4.1.3).

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    AgentName, Artifact, Asked, Blob, BlobHash, ContextId, Doubt, Epoch, Event, EventKind, Intent, Labels, LateResult,
    Lease, Message, Metadata, NodeId, Outcome, Part, Principal, Rejection, Spent, Step, StepNo, StepRecord, TaskId,
    Timestamp, TraceContext,
    limits::{
        MAX_ARTIFACTS, MAX_CONTENT_BYTES, MAX_EVENTS_PER_TASK, MAX_OUTSIDE_REASON_CHARS, MAX_OUTSIDE_REASONS,
        MAX_PARTS, MAX_RETAINED_EVENTS, MAX_STEPS, MAX_TASK_BYTES,
    },
    mutants::{self, Mutant},
};

/// A2A `TaskState`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TaskState {
    /// Accepted, and not yet begun.
    Submitted,
    /// Its owner works on it.
    Working,
    /// It waits for a person's answer.
    InputRequired,
    /// It waits for credentials.
    AuthRequired,
    /// Done.
    Completed,
    /// Ended by an error.
    Failed,
    /// Ended by its client.
    Canceled,
    /// The agent would not do it.
    Rejected,
}

impl TaskState {
    /// Whether nothing can follow: terminal states absorb.
    pub fn is_terminal(self) -> bool {
        match self {
            TaskState::Completed | TaskState::Failed | TaskState::Canceled | TaskState::Rejected => true,
            TaskState::Submitted | TaskState::Working | TaskState::InputRequired | TaskState::AuthRequired => false,
        }
    }

    /// Whether the task waits for its client.
    pub fn is_interrupted(self) -> bool {
        matches!(self, TaskState::InputRequired | TaskState::AuthRequired)
    }
}

/// A2A `TaskStatus`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskStatus {
    /// The state.
    pub state: TaskState,
    /// What the agent says about it: a question, the reason of a failure.
    pub message: Option<Message>,
    /// Since when.
    pub at: Timestamp,
}

/// The step of another task that this one was made by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentLink {
    /// The delegating task.
    pub task: TaskId,
    /// The delegating step.
    pub step: StepNo,
}

/// A request for a new task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// Made by the node that took the request.
    pub task: TaskId,
    /// The context to use when the message names none.
    pub fresh_context: ContextId,
    /// Who is to do it.
    pub agent: AgentName,
    /// What is to be done.
    pub message: Message,
    /// The node that took the request: it runs the task if it can.
    pub prefer: NodeId,
    /// The delegation that made it.
    pub parent: Option<ParentLink>,
    /// How many delegations lie above it.
    pub hop: u32,
    /// When its caller gives up, in milliseconds from now.
    pub deadline_ms: Option<u64>,
    /// The span of the request.
    pub trace: TraceContext,
    /// Most open tasks that the principal may have, as the node that took the request is told; none means
    /// [`crate::limits::MAX_OPEN_TASKS_PER_PRINCIPAL`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_open: Option<u32>,
    /// What the configuration says of who asks; a delegated task has those of the task above it.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
}

/// The turn that runs, or ran last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// From 1; an adopted turn keeps its number.
    pub number: u32,
    /// 1 for the first owner of the turn, 2 for the first adopter.
    pub attempt: u32,
    /// Span of the current attempt, once its owner has begun.
    pub span: Option<TraceContext>,
    /// The request's span: parent of the turn's.
    pub parent: TraceContext,
    /// When the current attempt began.
    pub started: Timestamp,
    /// Spans of earlier attempts of this turn that were lost with their node.
    pub lost: Vec<TraceContext>,
}

/// One change of owner that no one asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adoption {
    /// The lost owner.
    pub from: NodeId,
    /// The adopter.
    pub to: NodeId,
    /// Its fencing token.
    pub epoch: Epoch,
    /// When.
    pub at: Timestamp,
    /// Generation of the task just before.
    pub generation: u64,
}

/// A task: everything that is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// The conversation.
    pub context: ContextId,
    /// Who does it.
    pub agent: AgentName,
    /// Who may see it.
    pub owner: Principal,
    /// Who asked, if it was an agent on the owner's behalf.
    pub submitted_by: Principal,
    /// The delegation that made it.
    pub parent: Option<ParentLink>,
    /// How many delegations lie above it.
    pub hop: u32,
    /// When it was accepted.
    pub created: Timestamp,
    /// When its caller gives up.
    pub deadline: Option<Timestamp>,
    /// What its client sees.
    pub status: TaskStatus,
    /// Messages of both sides, in order.
    pub history: Vec<Message>,
    /// Who sent those messages of the history, by their place in it, that somebody else than the owner sent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sent_by: BTreeMap<usize, Principal>,
    /// What it made.
    pub artifacts: Vec<Artifact>,
    /// Index of the last event.
    pub generation: u64,
    /// The retained tail of its events.
    pub events: VecDeque<Event>,
    /// Who runs it now.
    pub lease: Option<Lease>,
    /// The owner before the lease was lost, until someone adopts the task.
    pub lost_owner: Option<NodeId>,
    /// Every adoption.
    pub adoptions: Vec<Adoption>,
    /// The nodes that held its lease, in order; one that holds it again at once is not named twice.
    #[serde(default)]
    pub ran_on: Vec<NodeId>,
    /// What former owners told after their lease had ended: evidence, never applied.
    #[serde(default)]
    pub late_results: Vec<LateResult>,
    /// Whether it was open when its state was saved, and goes on in a cluster that began with that: what it did in between is
    /// not known here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restored: bool,
    /// The current or last turn.
    pub turn: Turn,
    /// The steps of all turns.
    pub journal: Vec<Step>,
    /// The span of the request that made it.
    pub trace: TraceContext,
    /// Bytes of content in messages, artifacts and journal.
    pub bytes: usize,
    /// Why what it says counts as outside input: text of another agent or of an untrusted tool went into it. Empty if none did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outside_input: Vec<String>,
    /// Every blob that it names or has named, and its length.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub blobs: BTreeMap<BlobHash, u64>,
    /// What the configuration said of the principal that it is for, when it was submitted.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// What the tasks that it delegated have spent, those that had a budget and have ended.
    #[serde(default, skip_serializing_if = "Spent::is_nothing")]
    pub spent_below: Spent,
}

impl Task {
    /// The events after index `after` if all of them are retained; `None` asks for a snapshot instead, also when `after`
    /// lies beyond the last event.
    pub fn events_after(&self, after: u64) -> Option<impl Iterator<Item = &Event>> {
        let first_retained = self.events.front().map_or(self.generation + 1, |event| event.index);
        let in_window = after <= self.generation && after + 1 >= first_retained;
        in_window.then(|| self.events.iter().filter(move |event| event.index > after))
    }

    /// Bytes of content that its client is shown: the status, the last `history` messages (none: all), the artifacts.
    pub fn shown_bytes(&self, history: Option<usize>, artifacts: bool) -> usize {
        let status = self.status.message.as_ref().map_or(0, Message::size);
        let messages = self.history.iter().rev().take(history.unwrap_or(usize::MAX)).map(Message::size).sum::<usize>();
        let parts = self.artifacts.iter().filter(|_| artifacts).flat_map(|artifact| &artifact.parts);
        status + messages + parts.map(Part::size).sum::<usize>()
    }

    /// A part that its client is shown, and that names this blob.
    pub fn shown_part(&self, hash: BlobHash) -> Option<&Part> {
        let messages = self.history.iter().chain(&self.status.message).flat_map(|message| &message.parts);
        let artifacts = self.artifacts.iter().flat_map(|artifact| &artifact.parts);
        let events = self.events.iter().flat_map(|event| match &event.kind {
            EventKind::Artifact { parts, .. } => parts.as_slice(),
            EventKind::Status { status: TaskStatus { message: Some(message), .. }, .. } => message.parts.as_slice(),
            EventKind::Status { .. } | EventKind::Created => &[],
        });
        messages.chain(artifacts).chain(events).find(|part| part.blob().is_some_and(|blob| blob.hash == hash))
    }

    /// The messages of its history, each with the principal that it is remembered under: its sender.
    pub(crate) fn sent(&self) -> impl Iterator<Item = (&Principal, &Message)> {
        let sender = |at: usize| self.sent_by.get(&at).unwrap_or(&self.owner);
        self.history.iter().enumerate().map(move |(at, message)| (sender(at), message))
    }

    /// The step, if the journal has it.
    pub fn step(&self, no: StepNo) -> Option<&Step> {
        self.journal.get(no.0 as usize)
    }

    /// Steps of the current turn that have an intent and no outcome.
    pub fn open_steps(&self) -> impl Iterator<Item = &Step> {
        self.journal.iter().filter(|step| step.turn == self.turn.number && step.ended.is_none())
    }

    /// Steps that a person must decide on.
    pub fn doubtful_steps(&self) -> impl Iterator<Item = &Step> {
        self.open_steps().filter(|step| step.doubt == Some(Doubt::Asked))
    }

    /// Whether text of another agent or of an untrusted tool went into it.
    pub fn is_outside_input(&self) -> bool {
        !self.outside_input.is_empty()
    }

    /// The one principal that may answer its open question, if that is one.
    pub fn asked_of(&self) -> Option<&str> {
        let asks = |step: &&Step| {
            matches!(step.intent, Intent::Ask { .. })
                || step.asked == Some(Asked::Waiting)
                || step.doubt == Some(Doubt::Asked)
        };
        let step = self.open_steps().find(asks).filter(|_| self.status.state.is_interrupted())?;
        match &step.intent {
            Intent::Ask { to, .. } => to.as_deref(),
            Intent::Model { .. } | Intent::Tool { .. } | Intent::Delegate { .. } | Intent::Refused { .. } => None,
        }
    }

    /// Each reason once, and no more than [`MAX_OUTSIDE_REASONS`].
    pub(crate) fn note_outside_input(&mut self, reason: &str) {
        let reason: String = reason.chars().take(MAX_OUTSIDE_REASON_CHARS).collect();
        if self.outside_input.len() < MAX_OUTSIDE_REASONS && !self.outside_input.contains(&reason) {
            self.outside_input.push(reason);
        }
    }

    pub(crate) fn push_event(&mut self, at: Timestamp, kind: EventKind) {
        self.generation += 1;
        self.events.push_back(Event { index: self.generation, at, kind });
        if self.events.len() > MAX_RETAINED_EVENTS {
            self.events.pop_front();
        }
    }

    pub(crate) fn set_status(&mut self, at: Timestamp, state: TaskState, message: Option<Message>, metadata: Metadata) {
        self.status = TaskStatus { state, message: message.clone(), at };
        if let Some(message) = message {
            self.bytes += message.size();
            self.history.push(message);
        }
        self.push_event(at, EventKind::Status { status: self.status.clone(), metadata });
    }

    pub(crate) fn has_room_for_events(&self, more: u64) -> bool {
        self.generation + more <= MAX_EVENTS_PER_TASK
    }
}

/// What the owner of a task says about it. All words of a report are applied together or not at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwnerReport {
    /// The task.
    pub task: TaskId,
    /// The fencing token of the owner's lease.
    pub epoch: Epoch,
    /// 1 for the first report under this epoch, then one more each time. A number that was already applied is answered
    /// with success and changes nothing, so a report whose outcome is unknown can be proposed again.
    pub number: u64,
    /// What happened.
    pub words: Vec<OwnerWord>,
}

/// One thing that an owner says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum OwnerWord {
    /// The owner begins (or takes up) the turn under this span.
    TurnStarted {
        /// Span of this attempt of the turn.
        span: TraceContext,
    },
    /// An intent. Its number is the length of the journal.
    StepStarted {
        /// The next free number.
        step: StepNo,
        /// What it does.
        intent: Intent,
        /// The span of this attempt.
        span: TraceContext,
    },
    /// A step whose owner was lost runs again.
    StepRestarted {
        /// An open step of this turn.
        step: StepNo,
        /// The span of this attempt.
        span: TraceContext,
    },
    /// The peer's task id of a delegation was seen.
    PeerTask {
        /// An open delegation.
        step: StepNo,
        /// The peer's id of the task.
        peer_task: String,
    },
    /// A step has its outcome.
    StepEnded {
        /// An open step.
        step: StepNo,
        /// What came of it.
        outcome: Outcome,
    },
    /// A chunk of an artifact.
    Chunk {
        /// Which artifact.
        artifact_id: String,
        /// Its name.
        name: Option<String>,
        /// The chunk.
        parts: Vec<Part>,
        /// Whether it extends the artifact; otherwise it replaces it.
        append: bool,
        /// Whether it is the last one.
        last_chunk: bool,
        /// Free-form metadata of the event.
        metadata: Metadata,
    },
    /// The task waits for a person's answer to an [`Intent::Ask`] step, or to what the peer of an [`Intent::Delegate`] step
    /// asks; the lease ends.
    AskPerson {
        /// The open step.
        step: StepNo,
        /// The question, as the client sees it.
        message: Message,
        /// Whether credentials are asked for.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        auth: bool,
    },
    /// Steps are in doubt: the task waits for a person's decision; the lease ends.
    Doubt {
        /// Open steps of this turn.
        steps: Vec<StepNo>,
        /// What was attempted, as the client sees it.
        message: Message,
    },
    /// The owner gives the task away between two steps. Where no other node can take it, the owner keeps it.
    Released,
    /// The turn ended, and the task with it.
    Finished {
        /// `Completed`, `Failed` or `Rejected`.
        state: TaskState,
        /// The reason of a failure.
        message: Option<Message>,
    },
    /// From here on what the task says counts as outside input.
    OutsideInput {
        /// Whose text went into it.
        reason: String,
    },
}

impl OwnerWord {
    /// The blobs that it names.
    pub fn blobs(&self) -> Vec<Blob> {
        match self {
            OwnerWord::StepStarted { intent: Intent::Delegate { message, .. }, .. } => {
                message.blobs().copied().collect()
            }
            OwnerWord::StepEnded { outcome: Outcome::Stored { blob, .. }, .. } => vec![*blob],
            OwnerWord::Chunk { parts, .. } => parts.iter().filter_map(Part::blob).copied().collect(),
            OwnerWord::AskPerson { message, .. } | OwnerWord::Doubt { message, .. } => {
                message.blobs().copied().collect()
            }
            OwnerWord::Finished { message, .. } => message.iter().flat_map(Message::blobs).copied().collect(),
            OwnerWord::TurnStarted { .. }
            | OwnerWord::StepStarted { .. }
            | OwnerWord::StepRestarted { .. }
            | OwnerWord::PeerTask { .. }
            | OwnerWord::StepEnded { .. }
            | OwnerWord::OutsideInput { .. }
            | OwnerWord::Released => Vec::new(),
        }
    }
}

/// Refuses a report that cannot be applied as a whole, so that applying it needs no way back.
pub(crate) fn check_words(task: &Task, words: &[OwnerWord]) -> Result<(), Rejection> {
    let mut journal_length = task.journal.len();
    let mut ended = BTreeSet::new();
    let mut bytes = task.bytes;
    let mut has_ended = false;
    for word in words {
        if has_ended {
            return Err(Rejection::TaskEnded { task: task.id, state: task.status.state });
        }
        bytes += word_size(word);
        let open = |no: StepNo| {
            let known_open = task.step(no).is_none_or(|step| step.ended.is_none());
            (no.0 as usize) < journal_length && known_open && !ended.contains(&no)
        };
        let misplaced = match word {
            OwnerWord::TurnStarted { .. }
            | OwnerWord::Chunk { .. }
            | OwnerWord::OutsideInput { .. }
            | OwnerWord::Released
            | OwnerWord::Finished { .. } => None,
            OwnerWord::StepStarted { step, .. } => (step.0 as usize != journal_length).then_some(*step),
            OwnerWord::StepRestarted { step, .. }
            | OwnerWord::PeerTask { step, .. }
            | OwnerWord::StepEnded { step, .. }
            | OwnerWord::AskPerson { step, .. } => (!open(*step)).then_some(*step),
            OwnerWord::Doubt { steps, .. } => steps.iter().find(|step| !open(**step)).copied(),
        };
        if let Some(step) = misplaced {
            return Err(Rejection::UnexpectedStep { step });
        }
        match word {
            OwnerWord::StepStarted { .. } => journal_length += 1,
            OwnerWord::StepEnded { step, .. } => {
                ended.insert(*step);
            }
            OwnerWord::Chunk { parts, .. } => check_chunk(parts)?,
            OwnerWord::Released
            | OwnerWord::Finished { .. }
            | OwnerWord::AskPerson { .. }
            | OwnerWord::Doubt { .. } => has_ended = true,
            OwnerWord::TurnStarted { .. }
            | OwnerWord::StepRestarted { .. }
            | OwnerWord::PeerTask { .. }
            | OwnerWord::OutsideInput { .. } => {}
        }
    }
    let too_large = |what: &str, limit: usize| Rejection::TooLarge { what: what.into(), limit: limit as u64 };
    if matches!(words, [OwnerWord::Finished { .. } | OwnerWord::Released]) {
        return Ok(());
    }
    if bytes > MAX_TASK_BYTES {
        return Err(too_large("content of the task in bytes", MAX_TASK_BYTES));
    }
    if journal_length > MAX_STEPS {
        return Err(too_large("number of steps of the task", MAX_STEPS));
    }
    if task.generation + words.len() as u64 > MAX_EVENTS_PER_TASK {
        return Err(too_large("number of events of the task", MAX_EVENTS_PER_TASK as usize));
    }
    let names_new = |word: &&OwnerWord| match word {
        OwnerWord::Chunk { artifact_id, .. } => !task.artifacts.iter().any(|known| known.artifact_id == *artifact_id),
        OwnerWord::TurnStarted { .. }
        | OwnerWord::StepStarted { .. }
        | OwnerWord::StepRestarted { .. }
        | OwnerWord::PeerTask { .. }
        | OwnerWord::StepEnded { .. }
        | OwnerWord::AskPerson { .. }
        | OwnerWord::Doubt { .. }
        | OwnerWord::Released
        | OwnerWord::OutsideInput { .. }
        | OwnerWord::Finished { .. } => false,
    };
    if task.artifacts.len() + words.iter().filter(names_new).count() > MAX_ARTIFACTS {
        return Err(too_large("number of artifacts of the task", MAX_ARTIFACTS));
    }
    Ok(())
}

fn check_chunk(parts: &[Part]) -> Result<(), Rejection> {
    let size: usize = parts.iter().map(Part::size).sum();
    if parts.len() > MAX_PARTS || size > MAX_CONTENT_BYTES {
        return Err(Rejection::TooLarge { what: "artifact chunk in bytes".into(), limit: MAX_CONTENT_BYTES as u64 });
    }
    Ok(())
}

/// Applies one word of a report that [`check_words`] let pass.
pub(crate) fn apply_word(task: &mut Task, word: OwnerWord, at: Timestamp) {
    task.bytes += word_size(&word);
    let turn_span = task.turn.span.map_or(task.turn.parent.span_id, |turn| turn.span_id);
    match word {
        OwnerWord::TurnStarted { span } => {
            if let Some(lost) = task.turn.span.replace(span) {
                task.turn.lost.push(lost);
                task.turn.attempt += 1;
            }
            task.turn.started = at;
            if task.status.state != TaskState::Working {
                task.set_status(at, TaskState::Working, None, Metadata::new());
            }
        }
        OwnerWord::StepStarted { step, intent, span } => task.journal.push(Step {
            no: step,
            turn: task.turn.number,
            attempt: 1,
            intent,
            span,
            parent_span: turn_span,
            started: at,
            doubt: None,
            asked: None,
            resolved: None,
            ended: None,
        }),
        OwnerWord::StepRestarted { step, span } => {
            let step = step_mut(task, step);
            step.attempt += 1;
            step.span = span;
            step.parent_span = turn_span;
            step.started = at;
            step.doubt = None;
        }
        OwnerWord::PeerTask { step, peer_task: seen } => {
            if let Intent::Delegate { peer_task, .. } = &mut step_mut(task, step).intent {
                *peer_task = Some(seen);
            }
        }
        OwnerWord::StepEnded { step, outcome } => step_mut(task, step).ended = Some(StepRecord { outcome, at }),
        OwnerWord::Chunk { artifact_id, name, parts, append, last_chunk, metadata } => {
            store_chunk(task, &artifact_id, name.as_ref(), &parts, append, &metadata);
            task.push_event(at, EventKind::Artifact { artifact_id, name, parts, append, last_chunk, metadata });
        }
        OwnerWord::AskPerson { step, message, auth } => {
            let step = step_mut(task, step);
            if matches!(step.intent, Intent::Delegate { .. }) {
                step.asked = Some(Asked::Waiting);
            }
            let state = if auth { TaskState::AuthRequired } else { TaskState::InputRequired };
            task.set_status(at, state, Some(message), Metadata::new());
        }
        OwnerWord::Doubt { steps, message } => {
            for step in steps {
                step_mut(task, step).doubt = Some(Doubt::Asked);
            }
            task.set_status(at, TaskState::InputRequired, Some(message), Metadata::new());
        }
        OwnerWord::OutsideInput { reason } => task.note_outside_input(&reason),
        // Who owns the task is the state's to say.
        OwnerWord::Released => {}
        OwnerWord::Finished { state, message } => {
            let state = if state.is_terminal() { state } else { TaskState::Failed };
            task.set_status(at, state, message, Metadata::new());
        }
    }
}

fn step_mut(task: &mut Task, no: StepNo) -> &mut Step {
    task.journal.get_mut(no.0 as usize).expect("check_words found the step")
}

fn word_size(word: &OwnerWord) -> usize {
    match word {
        OwnerWord::StepStarted { intent, .. } => intent_size(intent),
        OwnerWord::StepEnded { outcome, .. } => outcome_size(outcome),
        OwnerWord::Chunk { parts, .. } => parts.iter().map(Part::size).sum(),
        // Messages are counted where they enter the history.
        OwnerWord::TurnStarted { .. }
        | OwnerWord::StepRestarted { .. }
        | OwnerWord::PeerTask { .. }
        | OwnerWord::AskPerson { .. }
        | OwnerWord::Doubt { .. }
        | OwnerWord::Released
        | OwnerWord::OutsideInput { .. }
        | OwnerWord::Finished { .. } => 0,
    }
}

fn store_chunk(
    task: &mut Task,
    artifact_id: &str,
    name: Option<&String>,
    parts: &[Part],
    append: bool,
    metadata: &Metadata,
) {
    let known = task.artifacts.iter_mut().find(|artifact| artifact.artifact_id == artifact_id);
    match known {
        Some(artifact) => {
            if !append && !mutants::on(Mutant::ChunkAppendedOnRerun) {
                artifact.parts.clear();
            }
            artifact.append(parts);
            artifact.metadata.extend(metadata.clone());
        }
        None => {
            let mut artifact = Artifact {
                artifact_id: artifact_id.to_owned(),
                name: name.cloned(),
                description: None,
                parts: Vec::new(),
                metadata: metadata.clone(),
            };
            artifact.append(parts);
            task.artifacts.push(artifact);
        }
    }
}

fn intent_size(intent: &Intent) -> usize {
    match intent {
        Intent::Model { .. } | Intent::Refused { .. } => 0,
        Intent::Tool { arguments, .. } => arguments.to_string().len(),
        Intent::Delegate { message, .. } => message.size(),
        Intent::Ask { question, .. } => question.len(),
    }
}

fn outcome_size(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Answered(answer) => {
            answer.text.len() + answer.calls.iter().map(|call| call.arguments.to_string().len()).sum::<usize>()
        }
        Outcome::Returned { content, .. } => content.len(),
        // A model reads it whole.
        Outcome::Stored { blob, .. } => usize::try_from(blob.length).unwrap_or(usize::MAX),
        Outcome::Failed { message, .. } => message.len(),
    }
}

//! A log in miniature: gives each command the next index and time, applies it, and remembers it.
#![allow(dead_code, reason = "each test binary uses its own part of this module")]

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, str::FromStr};
use towline_core::*;
use uuid::Uuid;

/// One entry as a failing run leaves it behind and `replay.rs` reads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub stamp: Stamp,
    pub proposal: Proposal,
}

/// A state and the log that made it.
#[derive(Debug, Clone, Default)]
pub struct Log {
    pub state: State,
    pub entries: Vec<Entry>,
    now: u64,
}

pub const MILLISECONDS_PER_ENTRY: u64 = 10;

impl Log {
    /// A cluster at the highest level of nodes 1, 2, … that are up, each declares the agents `surveyor` (one replica) and `reader` (all).
    pub fn of_nodes(count: u64) -> Self {
        let mut log = Self { now: 1_000_000, ..Self::default() };
        log.node(
            1,
            Command::Found { cluster: uuid(1), name: "prod".into(), node_name: "a".into(), addresses: addresses(1) },
        )
        .unwrap();
        for position in 2..=count {
            log.enrol(position);
        }
        for node in log.node_ids() {
            log.up(node, boot(node, 1)).unwrap();
        }
        log.node(1, Command::Raise { level: Level::KNOWN }).unwrap();
        log
    }

    pub fn node_ids(&self) -> Vec<u64> {
        self.state.nodes().map(|node| node.id.0).collect()
    }

    /// Makes a token and enrols a node with it; returns the node's id.
    pub fn enrol(&mut self, position: u64) -> u64 {
        let hash = format!("hash-{position}");
        self.operator(Command::MintToken { hash: hash.clone(), role: NodeRole::Voter, ttl_ms: 60_000 }).unwrap();
        let reply = self.node(1, Command::Enrol(enrolment(&hash, position))).unwrap().reply;
        let Reply::Enrolled { node, .. } = reply else { panic!("{reply:?}") };
        node.0
    }

    pub fn up(&mut self, node: u64, boot: BootId) -> Result<Applied, Rejection> {
        self.up_with(node, boot, 8)
    }

    pub fn up_with(&mut self, node: u64, boot: BootId, capacity: u32) -> Result<Applied, Rejection> {
        self.node(node, node_up(node, boot, capacity))
    }

    pub fn lose(&mut self, node: u64) -> Applied {
        let boot = self.state.node(NodeId(node)).unwrap().boot.unwrap();
        self.node(1, Command::NodeLost { node: NodeId(node), boot }).unwrap()
    }

    pub fn operator(&mut self, command: Command) -> Result<Applied, Rejection> {
        self.apply(Principal::Operator, command)
    }

    pub fn node(&mut self, node: u64, command: Command) -> Result<Applied, Rejection> {
        self.apply(Principal::Node(NodeId(node)), command)
    }

    pub fn apply(&mut self, by: Principal, command: Command) -> Result<Applied, Rejection> {
        self.now += MILLISECONDS_PER_ENTRY;
        let stamp = Stamp { index: self.entries.len() as u64 + 1, at: Timestamp(self.now) };
        let proposal = Proposal { by, command };
        self.entries.push(Entry { stamp, proposal: proposal.clone() });
        self.state.apply(proposal, stamp)
    }

    pub fn pass(&mut self, milliseconds: u64) {
        self.now += milliseconds;
    }

    /// Submits a new task to an agent, through a node, and returns its id.
    pub fn submit(&mut self, number: u64, agent: &str, prefer: u64) -> TaskId {
        let submission = submission(number, agent, prefer, user_message(&format!("m-{number}"), "read the file"));
        self.operator(Command::Submit(Box::new(submission))).unwrap();
        task_id(number)
    }

    /// Submits a task as a child of another.
    pub fn submit_child(&mut self, number: u64, parent: TaskId) -> Result<Applied, Rejection> {
        let message = user_message(&format!("m-{number}"), "read the file");
        let mut submission = submission(number, "reader", 2, message);
        submission.parent = Some(ParentLink { task: parent, step: StepNo(1) });
        submission.hop = 1;
        let by = Principal::Agent { name: name("surveyor"), on_behalf_of: Box::new(Principal::Operator) };
        self.apply(by, Command::Submit(Box::new(submission)))
    }

    /// A page of a listing of tasks that are all in memory.
    pub fn page(&self, filter: &ListFilter, page_size: usize, weigh: impl Fn(&Task) -> usize) -> TaskPage {
        self.state.list(&Principal::Operator, filter, page_size).page(&BTreeMap::new(), weigh)
    }

    /// Sends tasks to the archive, and returns their records.
    pub fn archive(&mut self, tasks: Vec<TaskId>) -> Vec<std::sync::Arc<Task>> {
        let records = self.state.to_archive(&tasks);
        self.node(1, Command::Archive { tasks }).unwrap();
        records
    }

    pub fn task(&self, id: TaskId) -> &Task {
        self.state.task(id).unwrap()
    }

    pub fn lease(&self, id: TaskId) -> Lease {
        self.task(id).lease.clone().expect("task is leased")
    }

    /// The owner reports, with the right epoch and number.
    pub fn report(&mut self, id: TaskId, words: Vec<OwnerWord>) -> Result<Applied, Rejection> {
        let lease = self.lease(id);
        self.report_as(&lease, id, lease.reported + 1, words)
    }

    pub fn report_as(
        &mut self,
        lease: &Lease,
        id: TaskId,
        number: u64,
        words: Vec<OwnerWord>,
    ) -> Result<Applied, Rejection> {
        let report = OwnerReport { task: id, epoch: lease.epoch, number, words };
        self.node(lease.node.0, Command::Report(report))
    }

    /// A task whose tool call is in doubt after the loss of its owner, and the lease that was lost.
    pub fn doubtful(&mut self, number: u64, calls: u32) -> (TaskId, Lease) {
        let id = self.submit(number, "reader", 1);
        let mut words = vec![turn_started(number)];
        words.extend((0..calls).map(|no| step_started(no, tool_intent(OnAdoption::Ask))));
        self.report(id, words).unwrap();
        let lost = self.lease(id);
        self.lose(lost.node.0);
        let steps = (0..calls).map(StepNo).collect();
        let doubt = OwnerWord::Doubt { steps, message: agent_message(&format!("doubt-{number}"), "was it sent?") };
        self.report(id, vec![turn_started(number + 1), doubt]).unwrap();
        (id, lost)
    }

    pub fn resolve(&mut self, id: TaskId, step: Option<u32>, verdict: Verdict) -> Result<Applied, Rejection> {
        let request = uuid(7_000 + self.entries.len() as u64);
        self.operator(resolve(request, id, step, verdict))
    }

    /// A former owner tells what came of a step.
    pub fn testify(&mut self, lost: &Lease, id: TaskId, step: u32, text: &str) -> Result<Applied, Rejection> {
        self.node(lost.node.0, testimony(lost, id, step, text))
    }

    /// A node changes who is signed in.
    pub fn sign_in(&mut self, node: u64, change: SignIn) -> Result<Applied, Rejection> {
        self.node(node, Command::SignIn(Box::new(change)))
    }

    /// What a refused command must leave as it was: everything but the position in the log.
    pub fn without_position(&self) -> State {
        let mut state = self.state.clone();
        let far = Stamp { index: u64::MAX, at: Timestamp(u64::MAX) };
        let nobody = Proposal { by: Principal::Operator, command: Command::Sweep };
        state.apply(nobody, far).unwrap_err();
        state
    }
}

pub fn resolve(request: Uuid, id: TaskId, step: Option<u32>, verdict: Verdict) -> Command {
    Command::Resolve(Box::new(Resolve { request, task: id, step: step.map(StepNo), verdict, trace: span(70) }))
}

pub fn testimony(lost: &Lease, id: TaskId, step: u32, text: &str) -> Command {
    let outcome = Outcome::Returned { content: text.to_owned(), is_error: false };
    Command::Testify(Box::new(LateReport { task: id, epoch: lost.epoch, step: StepNo(step), outcome }))
}

/// The state as a snapshot holds it.
pub fn encode(state: &State) -> Vec<u8> {
    rmp_serde::to_vec_named(state).unwrap()
}

/// The state as a snapshot gives it back.
pub fn decode(bytes: &[u8]) -> State {
    rmp_serde::from_slice(bytes).unwrap()
}

pub fn replay(entries: &[Entry]) -> State {
    let mut state = State::default();
    for entry in entries {
        let _refused_or_not = state.apply(entry.proposal.clone(), entry.stamp);
    }
    state
}

pub fn uuid(number: u64) -> Uuid {
    Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 + u128::from(number))
}

pub fn task_id(number: u64) -> TaskId {
    TaskId::from_uuid(uuid(number))
}

pub fn boot(node: u64, life: u64) -> BootId {
    BootId::from_uuid(uuid(1_000_000 * node + life))
}

pub fn name(text: &str) -> AgentName {
    AgentName::from_str(text).unwrap()
}

pub fn addresses(node: u64) -> NodeAddresses {
    NodeAddresses { http: format!("http://127.0.0.1:{}", 7000 + node), peer: format!("127.0.0.1:{}", 8000 + node) }
}

pub fn enrolment(hash: &str, position: u64) -> Enrolment {
    Enrolment {
        token_hash: hash.to_owned(),
        request: uuid(5_000 + position),
        name: format!("node-{position}"),
        addresses: addresses(position),
        key: None,
        knows_labels: false,
    }
}

/// As today's nodes ask: with the key of the node.
pub fn enrolment_with_key(hash: &str, position: u64) -> Enrolment {
    Enrolment { key: Some(node_key(position)), ..enrolment(hash, position) }
}

pub fn node_key(number: u64) -> NodeKey {
    NodeKey(format!("key-{number}"))
}

pub fn node_up(node: u64, boot: BootId, capacity: u32) -> Command {
    let spec = |agent: &str, placement| AgentSpec {
        name: name(agent),
        description: format!("{agent} of the tests"),
        placement,
        tags: Vec::new(),
        queue: None,
        labels: Labels::new(),
    };
    Command::NodeUp {
        node: NodeId(node),
        boot,
        addresses: addresses(node),
        version: "0.1.0".into(),
        capacity,
        agents: vec![spec("reader", Placement::EveryNode), spec("surveyor", Placement::Replicas(1))],
        labels: None,
        level: Level::KNOWN.number(),
    }
}

pub fn submission(number: u64, agent: &str, prefer: u64, message: Message) -> Submission {
    Submission {
        task: task_id(number),
        fresh_context: ContextId::from_str(&format!("context-{number}")).unwrap(),
        agent: name(agent),
        message,
        prefer: NodeId(prefer),
        parent: None,
        hop: 0,
        deadline_ms: None,
        trace: span(number),
        most_open: None,
        labels: Labels::new(),
    }
}

pub fn user_message(id: &str, text: &str) -> Message {
    message(id, Role::User, text)
}

pub fn agent_message(id: &str, text: &str) -> Message {
    message(id, Role::Agent, text)
}

fn message(id: &str, role: Role, text: &str) -> Message {
    Message {
        message_id: MessageId::from_str(id).unwrap(),
        context_id: None,
        task_id: None,
        role,
        parts: vec![Part::text(text)],
        metadata: Metadata::new(),
        extensions: Vec::new(),
        reference_task_ids: Vec::new(),
    }
}

pub fn span(number: u64) -> TraceContext {
    TraceContext { trace_id: 7, span_id: number + 1, sampled: true }
}

pub fn turn_started(number: u64) -> OwnerWord {
    OwnerWord::TurnStarted { span: span(number) }
}

pub fn step_started(step: u32, intent: Intent) -> OwnerWord {
    OwnerWord::StepStarted { step: StepNo(step), intent, span: span(10_000 + u64::from(step)) }
}

pub fn model_step(step: u32) -> OwnerWord {
    step_started(step, Intent::Model { model: "scripted-1".into() })
}

pub fn tool_intent(on_adoption: OnAdoption) -> Intent {
    Intent::Tool {
        call_id: "call-1".into(),
        server: "fs".into(),
        tool: "read_file".into(),
        arguments: serde_json::json!({ "path": "a.txt" }),
        on_adoption,
    }
}

pub fn ask_intent() -> Intent {
    Intent::Ask { call_id: "call-1".into(), question: "which one?".into(), to: None }
}

pub fn step_ended(step: u32, text: &str) -> OwnerWord {
    OwnerWord::StepEnded {
        step: StepNo(step),
        outcome: Outcome::Returned { content: text.to_owned(), is_error: false },
    }
}

pub fn chunk(artifact: &str, text: &str, append: bool) -> OwnerWord {
    OwnerWord::Chunk {
        artifact_id: artifact.to_owned(),
        name: Some("answer".into()),
        parts: vec![Part::text(text)],
        append,
        last_chunk: false,
        metadata: Metadata::new(),
    }
}

pub fn finished(state: TaskState) -> OwnerWord {
    OwnerWord::Finished { state, message: None }
}

pub fn ask_person(step: u32, question: &str) -> OwnerWord {
    OwnerWord::AskPerson {
        step: StepNo(step),
        message: agent_message(&format!("question-{step}"), question),
        auth: false,
    }
}

/// What a client that concatenates by A2A's rules ends with: artifact id to text.
pub fn concatenated<'a>(events: impl IntoIterator<Item = &'a Event>) -> BTreeMap<String, String> {
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    for event in events {
        let EventKind::Artifact { artifact_id, parts, append, .. } = &event.kind else { continue };
        let text = texts.entry(artifact_id.clone()).or_default();
        if !append {
            text.clear();
        }
        for part in parts {
            let Content::Text(more) = &part.content else { continue };
            text.push_str(more);
        }
    }
    texts
}

/// The events by which a task says that another node took it over.
pub fn adoption_events(task: &Task) -> Vec<&Event> {
    task.events
        .iter()
        .filter(
            |event| matches!(&event.kind, EventKind::Status { metadata, .. } if metadata.contains_key("dev.towline/adopted")),
        )
        .collect()
}

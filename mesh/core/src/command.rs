//! Everything that can change the state, and how a change is refused.

use serde::{Deserialize, Serialize};

use crate::{
    AgentName, AgentSpec, BlobHash, BootId, BridgeChange, Effect, Enrolment, Labels, Lack, LateReport, Level, Message,
    NodeAddresses, NodeCertificate, NodeId, NodeRole, OwnerReport, Peer, PinTools, Principal, Resolve, SetWebhook,
    SignIn, SignInRejection, StepNo, Submission, TaskId, TaskState, TraceContext, TriggerChange, TriggerName,
    WebhookName, WebhookReport, doubt::listed, node::is_zero,
};

mod questions;

/// A command, and who stands behind it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    /// Who asks.
    pub by: Principal,
    /// What is asked.
    pub command: Command,
}

/// A change that is asked for. Each may be proposed again when its outcome is unknown: the second time changes nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// A new task.
    Submit(Box<Submission>),
    /// A message to a task that waits for its client.
    Continue {
        /// The task.
        task: TaskId,
        /// The message; its `task_id` is the task.
        message: Message,
        /// The span of the request: parent of the next turn's.
        trace: TraceContext,
    },
    /// The client no longer wants the task.
    Cancel {
        /// The task.
        task: TaskId,
    },
    /// The owner of a task reports.
    Report(OwnerReport),
    /// A person decides about a step in doubt.
    Resolve(Box<Resolve>),
    /// A former owner tells what came of a step after its lease had ended: kept as evidence, never applied.
    Testify(Box<LateReport>),
    /// The first node founds the cluster.
    Found {
        /// Id of the cluster.
        cluster: uuid::Uuid,
        /// Name of the cluster.
        name: String,
        /// Name of the first node.
        node_name: String,
        /// Where the first node is reached.
        addresses: NodeAddresses,
    },
    /// A join token was made.
    MintToken {
        /// Hash of its secret, in hex.
        hash: String,
        /// What the node becomes.
        role: NodeRole,
        /// How long it is good, in milliseconds.
        ttl_ms: u64,
    },
    /// A node asks to be a member.
    Enrol(Enrolment),
    /// A node registers: after each start, and when its configuration changed.
    NodeUp {
        /// The node.
        node: NodeId,
        /// This life of its process.
        boot: BootId,
        /// Where it is reached.
        addresses: NodeAddresses,
        /// Version of its binary.
        version: String,
        /// How many tasks it runs at the same time.
        capacity: u32,
        /// The agents that its configuration declares.
        agents: Vec<AgentSpec>,
        /// What its configuration calls it; none from an earlier version, which knows of no labels.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels: Option<Labels>,
        /// Up to which [`crate::Level`] it knows the rules; 0 from a version that knows of none.
        #[serde(default, skip_serializing_if = "is_zero")]
        level: u32,
    },
    /// The session of a node ended: proposed by the leader, or by the node itself when it stops in order.
    NodeLost {
        /// The node.
        node: NodeId,
        /// The life that ended; a later one is not touched.
        boot: BootId,
    },
    /// A node tells of the certificate that it uses, when that is another one than the cluster knows.
    Certify {
        /// The node.
        node: NodeId,
        /// Its certificate.
        certificate: NodeCertificate,
    },
    /// Take a node out of the cluster for good.
    RemoveNode {
        /// The node.
        node: NodeId,
    },
    /// Whether a node counts for the quorum from here on.
    SetRole {
        /// The node.
        node: NodeId,
        /// What it becomes.
        role: NodeRole,
    },
    /// Give a node no more tasks, and move those away that it runs.
    Drain {
        /// The node.
        node: NodeId,
        /// How long a step that another owner would run again is waited for, in milliseconds.
        patience_ms: u64,
    },
    /// Give a node tasks again.
    Undrain {
        /// The node.
        node: NodeId,
    },
    /// Assign tasks that no node could take when they came.
    AssignPending,
    /// Remove terminal tasks past their retention.
    Sweep,
    /// Content was uploaded, and lies on a majority of the voters: who asks may name it in a message.
    Upload {
        /// Its address.
        hash: BlobHash,
        /// Its length in bytes.
        length: u64,
    },
    /// An operator keeps a small text under a key.
    Note {
        /// Under what.
        key: String,
        /// The text; an empty one removes the note.
        value: String,
        /// Orders the words about one key: one that is not above what the key has seen changes nothing.
        version: u64,
    },
    /// Records of tasks that have ended leave the state for the archive of each node.
    Archive {
        /// The tasks; those that have not ended, or are not here, stay as they are.
        tasks: Vec<TaskId>,
    },
    /// The rules of a level count from here on. Proposed by the leader once every member has said that it knows them.
    Raise {
        /// The level.
        level: Level,
    },
    /// An operator makes an agent outside of this mesh known.
    AddPeer(Box<Peer>),
    /// An operator takes it away again.
    RemovePeer {
        /// Its name.
        name: AgentName,
    },
    /// Who is signed in changes.
    SignIn(Box<SignIn>),
    /// A client wants to be told of the events of its task at a URL.
    SetWebhook(Box<SetWebhook>),
    /// A client no longer wants that.
    RemoveWebhook(WebhookName),
    /// A node takes webhooks that no node has.
    ClaimWebhooks {
        /// The node.
        node: NodeId,
        /// This life of its process.
        boot: BootId,
        /// Those that have an owner by then stay with it.
        webhooks: Vec<WebhookName>,
    },
    /// The owner of a webhook reports what came of its calls.
    ReportWebhook(Box<WebhookReport>),
    /// A message to a task or its cancelation, only if nothing has happened to the task since its client looked.
    IfGeneration {
        /// The task.
        task: TaskId,
        /// Index of the last event that the client knows.
        generation: u64,
        /// What is done then: `Continue` or `Cancel` of this task.
        then: Box<Command>,
    },
    /// Something about what starts tasks by itself.
    Trigger(Box<TriggerChange>),
    /// Somebody makes an MCP server known to its own sessions of the bridge, or takes it away again.
    Bridge(Box<BridgeChange>),
    /// What the tools of an MCP server look like is what later looks are compared with.
    PinTools(Box<PinTools>),
    /// A node says what its agents lack at the moment.
    Lack(Box<Lack>),
}

/// What a command did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The answer to the proposer.
    pub reply: Reply,
    /// Hints to the shell of every node.
    pub effects: Vec<Effect>,
}

/// The answer to a proposer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// A task was made, or the same message had made it before.
    Submitted {
        /// The task.
        task: TaskId,
        /// Whether this proposal made it.
        created: bool,
    },
    /// A message was taken for a task.
    Continued {
        /// The task.
        task: TaskId,
    },
    /// A node is a member.
    Enrolled {
        /// Its id.
        node: NodeId,
        /// What it becomes.
        role: NodeRole,
    },
    /// Done.
    Done,
}

/// Why a command was refused: the proposer's doing, so proposing it again without a change is refused again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Rejection {
    /// No node declares such an agent.
    #[error("agent {agent} is not known; known agents: {}", list(known))]
    UnknownAgent {
        /// What was asked for.
        agent: AgentName,
        /// What there is.
        known: Vec<AgentName>,
    },
    /// There is no such task, or it is not the caller's.
    #[error("task {task} is not known")]
    UnknownTask {
        /// What was asked for.
        task: TaskId,
    },
    /// The task has ended.
    #[error("task {task} has ended as {state:?}: send a message without taskId to begin a new one")]
    TaskEnded {
        /// The task.
        task: TaskId,
        /// How it ended.
        state: TaskState,
    },
    /// A message came while the task works.
    #[error(
        "task {task} is {state:?} and takes no message until it asks for one: wait for INPUT_REQUIRED or cancel it"
    )]
    TaskBusy {
        /// The task.
        task: TaskId,
        /// Its state.
        state: TaskState,
    },
    /// The task has ended otherwise.
    #[error("task {task} has ended as {state:?} and cannot be canceled")]
    NotCancelable {
        /// The task.
        task: TaskId,
        /// How it ended.
        state: TaskState,
    },
    /// Something has happened to the task since its client looked.
    #[error("task {task} is at generation {current}, not {expected}: look at it again before you decide")]
    GenerationMismatch {
        /// The task.
        task: TaskId,
        /// What the client knows.
        expected: u64,
        /// Index of the last event.
        current: u64,
    },
    /// The message names a context that is not the task's.
    #[error("task {task} belongs to another context than the message names")]
    ContextMismatch {
        /// The task.
        task: TaskId,
    },
    /// The same message id came before with other content.
    #[error("message {message} was sent before with different content (it made task {task}): use a new messageId")]
    MessageReused {
        /// The message id.
        message: String,
        /// The task of the first one.
        task: TaskId,
    },
    /// A message without content.
    #[error("message has no parts, or only empty text: say what is to be done")]
    EmptyMessage,
    /// An answer to an in-doubt step that is not understood.
    #[error("step {step} is in doubt: answer \"retry\", \"done RESULT\" or \"failed REASON\"")]
    UndecidedDoubt {
        /// The step.
        step: StepNo,
    },
    /// No step of the task waits for a decision.
    #[error("task {task} is {state:?} and waits for no decision: no step of it is in doubt")]
    NotInDoubt {
        /// The task.
        task: TaskId,
        /// Its state.
        state: TaskState,
    },
    /// Another step than the one that was named is in doubt.
    #[error("step {step} of task {task} is not in doubt; in doubt: step {}", listed(in_doubt))]
    StepNotInDoubt {
        /// The task.
        task: TaskId,
        /// What was named.
        step: StepNo,
        /// What waits.
        in_doubt: Vec<StepNo>,
    },
    /// No step was named, and several are in doubt.
    #[error("several steps of task {task} are in doubt: say which one of {}", listed(in_doubt))]
    SeveralInDoubt {
        /// The task.
        task: TaskId,
        /// What waits.
        in_doubt: Vec<StepNo>,
    },
    /// More than a bound allows.
    #[error("{what} exceeds the limit of {limit}")]
    TooLarge {
        /// What.
        what: String,
        /// The bound.
        limit: u64,
    },
    /// The node is not a member any more, or is about to leave.
    #[error("node {node} was removed from this cluster: its data folder is of no more use, join with a new one")]
    NodeRemoved {
        /// The node.
        node: NodeId,
    },
    /// Without the node there would be no majority of live voters.
    #[error("{}", without_voter(*node, *up, *voters, *quorum))]
    QuorumNeeds {
        /// The node.
        node: NodeId,
        /// Voters that would be up.
        up: usize,
        /// Voters that would be left.
        voters: usize,
        /// How many of them are a majority.
        quorum: usize,
    },
    /// A voter that does not run only counts against the quorum.
    #[error("node {node} is not up, so its vote would only count against the quorum: start it, then promote it")]
    NotUp {
        /// The node.
        node: NodeId,
    },
    /// Full for the moment.
    #[error("{what} is full ({limit}): try again in {retry_after_ms} ms")]
    Full {
        /// What.
        what: String,
        /// The bound.
        limit: u64,
        /// When it is worth another try.
        retry_after_ms: u64,
    },
    /// A chain of delegations that is too deep.
    #[error("delegation chain is longer than {limit}: agents probably delegate in a circle")]
    TooManyHops {
        /// The bound.
        limit: u32,
    },
    /// The principal may not do this.
    #[error("{by} may not do this")]
    NotAllowed {
        /// Who asked.
        by: String,
    },
    /// The reporter does not hold the lease.
    #[error("lease of task {task} is not held under epoch {epoch}")]
    StaleEpoch {
        /// The task.
        task: TaskId,
        /// What the report carried.
        epoch: u64,
    },
    /// A report came before the one that precedes it.
    #[error("report {number} came where {expected} was expected")]
    ReportGap {
        /// Its number.
        number: u64,
        /// What was expected.
        expected: u64,
    },
    /// A step that is not there, or not open.
    #[error("step {step} is not the next, or is not open")]
    UnexpectedStep {
        /// The step.
        step: StepNo,
    },
    /// A join token that is not known.
    #[error("join token is not known: make one with `towline cluster join-token`")]
    UnknownToken,
    /// A join token past its time.
    #[error("join token has expired: make one with `towline cluster join-token`")]
    TokenExpired,
    /// A join token that made another node a member.
    #[error("join token was used by node {node}: make another with `towline cluster join-token`")]
    TokenUsed {
        /// The node.
        node: NodeId,
    },
    /// A node with this name is a member.
    #[error(
        "node name {name:?} is taken by node {node}: choose another node.name, or take that node out with `towline cluster remove {node}`"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// Who has it.
        node: NodeId,
    },
    /// A member is reached at this address.
    #[error(
        "peer address {peer} belongs to node {node}: change node.listen.peer or node.advertise_peer, or take that node out with `towline cluster remove {node}`"
    )]
    AddressTaken {
        /// The address.
        peer: String,
        /// Who has it.
        node: NodeId,
    },
    /// No other node has the key of the cluster's authority yet.
    #[error(
        "node {node} alone can sign certificates: every other voter fetches that key within seconds, so try again in a moment"
    )]
    OnlySigner {
        /// The node.
        node: NodeId,
    },
    /// A node keeps its key for as long as it is a member.
    #[error("node {node} is known by another key: join with an empty data folder, as a new node")]
    OtherKey {
        /// The node.
        node: NodeId,
    },
    /// A node that is not a member.
    #[error("node {node} is not a member of this cluster: `towline cluster status` lists its nodes")]
    UnknownNode {
        /// The node.
        node: NodeId,
    },
    /// A worker cannot be given a log.
    #[error(
        "node {node} is a worker and keeps no log, so it cannot become a voter or learner: take it out with `towline cluster \
         remove {node}`, and join it with an empty data folder and a token of `towline cluster join-token --role voter` (or learner)"
    )]
    IsWorker {
        /// The node.
        node: NodeId,
    },
    /// A node that keeps the log stays one that does.
    #[error(
        "node {node} keeps the log, so it cannot become a worker: take it out with `towline cluster remove {node}`, and join it \
         with an empty data folder and a token of `towline cluster join-token --role worker`"
    )]
    IsNoWorker {
        /// The node.
        node: NodeId,
    },
    /// The cluster was founded with another id.
    #[error("cluster was founded before, under id {cluster}")]
    AlreadyFounded {
        /// Its id.
        cluster: uuid::Uuid,
    },
    /// A peer that is nowhere.
    #[error("peer {name} has no URL: name at least one")]
    PeerWithoutUrl {
        /// Its name.
        name: AgentName,
    },
    /// An agent or another peer has the name.
    #[error(
        "name {name} is in use by an agent or by a peer with other settings: choose another, or remove that one first"
    )]
    NameInUse {
        /// The name.
        name: AgentName,
    },
    /// No peer of that name was made known at run time.
    #[error(
        "peer {name} is not known here: `towline peer list` names those that are; one of the configuration is removed there"
    )]
    UnknownPeer {
        /// The name.
        name: AgentName,
    },
    /// An agent that has work to do cannot go.
    #[error("agent {name} has {open} open tasks: cancel them or wait for their end, then remove it")]
    AgentInUse {
        /// The name.
        name: AgentName,
        /// How many.
        open: usize,
    },
    /// A question that is for somebody else.
    #[error("the question of task {task} is for {to}: only {to} may answer it, or an operator")]
    NotAsked {
        /// The task.
        task: TaskId,
        /// Who was asked.
        to: String,
    },
    /// A change of who is signed in.
    #[error(transparent)]
    SignIn(#[from] SignInRejection),
    /// There is no such trigger.
    #[error("trigger {name} is not known: `towline sub list` names those that are")]
    UnknownTrigger {
        /// What was asked for.
        name: TriggerName,
    },
    /// A trigger of this name is there, and is another one.
    #[error("trigger {name} is there already, and is another one: choose another name, or remove that one first")]
    TriggerInUse {
        /// The name.
        name: TriggerName,
    },
    /// A resource is watched once.
    #[error(
        "resource {uri} of {server} is watched by trigger {by} already: let its agent delegate, or remove that one"
    )]
    ResourceInUse {
        /// The server.
        server: String,
        /// The resource.
        uri: String,
        /// Who watches it.
        by: TriggerName,
    },
    /// A trigger that the configuration declares.
    #[error(
        "trigger {name} is of the configuration of nodes: take it out of triggers: there, and start those nodes again"
    )]
    DeclaredTrigger {
        /// The name.
        name: TriggerName,
    },
    /// Another node looks after the trigger by now.
    #[error("trigger {name} is not held under epoch {epoch}")]
    StaleTrigger {
        /// The trigger.
        name: TriggerName,
        /// What was said.
        epoch: u64,
    },
    /// Another MCP server of the same principal has the id.
    #[error("server_id {id:?} is in use: choose another, or unregister that server first")]
    ServerIdInUse {
        /// The id.
        id: String,
    },
}

fn list(names: &[AgentName]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.iter().map(AgentName::as_str).collect::<Vec<_>>().join(", ")
}

fn without_voter(node: NodeId, up: usize, voters: usize, quorum: usize) -> String {
    if voters == 0 {
        return format!("node {node} is the last voter: join or promote another first");
    }
    format!(
        "without node {node} only {up} of {voters} voters would be up, and {quorum} are needed: bring voters up or add some first"
    )
}

//! What is true now: `apply` takes a command and makes the next truth.

use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    Adoption, Agent, AgentName, AgentSpec, Applied, Asked, BootId, Command, ContextId, Doubt, Effect, Epoch, EventKind,
    Handover, Intent, JoinToken, Labels, Lease, Level, Message, MessageId, Metadata, Node, NodeAddresses, NodeHealth,
    NodeId, NodeRole, Note, Outcome, OwnerReport, OwnerWord, Placement, Principal, PrincipalRole, Proposal, Rejection,
    Reply, Stamp, Step, Submission, Task, TaskId, TaskState, TaskStatus, Timestamp, Turn, VShard, limits,
    mutants::{self, Mutant},
    note::Notes,
    policy, task,
};

mod blobs;
mod bridge;
mod charges;
mod dedup;
mod doubt;
mod enrolment;
mod finished;
mod generation;
mod lacking;
mod members;
mod peers;
mod pins;
mod push;
mod remembered;
mod room;
mod sign_in;
mod stubs;
mod triggers;
mod waiting;

use blobs::Named;
use bridge::Bridged;
use dedup::{Expiring, Sent};
pub use finished::{Listing, Record, Row, TaskPage};
use lacking::Rank;
use peers::Peers;
use pins::Pins;
use push::Webhooks;
use remembered::Remembered;
use room::OpenTasks;
use sign_in::SignIns;
use stubs::Archived;
pub use stubs::Stub;
use triggers::Triggers;

type TaskKey = (VShard, TaskId);

/// The id of the first node of a cluster that was founded empty; every other id is a log index, which is greater.
const FOUNDER: NodeId = NodeId(1);

/// What the replicated state machine holds. Equal on every node at the same log index.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    cluster: Option<(uuid::Uuid, String)>,
    nodes: BTreeMap<NodeId, Node>,
    /// Nodes that were members. Their certificates are still signed, and good for nothing.
    #[serde(default)]
    removed: BTreeSet<NodeId>,
    tokens: BTreeMap<String, JoinToken>,
    agents: BTreeMap<AgentName, Agent>,
    /// Shared with the copies that snapshots are made of, so that a copy of the state costs little.
    tasks: BTreeMap<TaskKey, Arc<Task>>,
    dedup: BTreeMap<(Principal, MessageId), Sent>,
    /// Tasks leased to a node: its load, and what its dispatcher compares itself with.
    leased: BTreeMap<NodeId, BTreeSet<TaskId>>,
    /// Tasks that should run and have no owner.
    unassigned: BTreeSet<TaskId>,
    children: BTreeMap<TaskId, BTreeSet<TaskId>>,
    /// Messages of tasks that have ended, by when that was.
    #[serde(default)]
    expiring: BTreeSet<Expiring>,
    #[serde(default)]
    late_results: u64,
    /// Terminal tasks whose records are here, by the time they ended.
    ended: BTreeSet<(Timestamp, TaskId)>,
    #[serde(default, skip_serializing_if = "Notes::is_empty")]
    notes: Notes,
    /// Agents outside of this mesh; shared with the copies that snapshots are made of.
    #[serde(default, skip_serializing_if = "Peers::is_empty")]
    peers: Peers,
    /// What lies in the blob store.
    #[serde(default, skip_serializing_if = "Named::is_empty")]
    named: Named,
    /// Terminal tasks whose records are in the archive.
    #[serde(default, skip_serializing_if = "Archived::is_empty")]
    archived: Archived,
    /// Messages of archived tasks.
    #[serde(default, skip_serializing_if = "Remembered::is_empty")]
    remembered: Remembered,
    /// The rules that count.
    #[serde(default, skip_serializing_if = "Level::is_first")]
    pub(crate) level: Level,
    /// Who is signed in, and who asks to be.
    #[serde(default, skip_serializing_if = "SignIns::is_empty")]
    sign_ins: SignIns,
    /// Who is told of tasks.
    #[serde(default, skip_serializing_if = "Webhooks::is_empty")]
    webhooks: Webhooks,
    /// What starts tasks by itself.
    #[serde(default, skip_serializing_if = "Triggers::is_empty")]
    triggers: Triggers,
    /// MCP servers that somebody made known to its own sessions of the bridge; shared with the copies that snapshots are made of.
    #[serde(default, skip_serializing_if = "Bridged::is_empty")]
    bridged: Bridged,
    /// What the tools of MCP servers looked like first.
    #[serde(default, skip_serializing_if = "Pins::is_empty")]
    pins: Pins,
    #[serde(skip)]
    open: OpenTasks,
    last: Stamp,
}

/// The first node of a cluster that begins with the state of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Founder {
    /// Its id.
    pub node: NodeId,
    /// A name for people.
    pub name: String,
    /// Where it is reached.
    pub addresses: NodeAddresses,
}

/// Which tasks a listing shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// Only of this conversation.
    pub context: Option<ContextId>,
    /// Only in this state.
    pub state: Option<TaskState>,
    /// Only with a status that is this recent.
    pub status_after: Option<Timestamp>,
    /// Only of this agent.
    pub agent: Option<AgentName>,
    /// Go on behind this position: status time and id of the last task of the page before.
    pub after: Option<(Timestamp, TaskId)>,
}

impl State {
    /// Applies a command. Total: every command either changes the state or is refused with a [`Rejection`], and then the
    /// state is as before.
    ///
    /// # Errors
    /// A [`Rejection`], which is the proposer's doing and goes back to it.
    pub fn apply(&mut self, proposal: Proposal, stamp: Stamp) -> Result<Applied, Rejection> {
        let stamp = Stamp { index: stamp.index, at: stamp.at.max(self.last.at) };
        self.last = stamp;
        let Proposal { by, command } = proposal;
        policy::check(&by, &command)?;
        self.carry_out(by, command, stamp)
    }

    fn carry_out(&mut self, by: Principal, command: Command, stamp: Stamp) -> Result<Applied, Rejection> {
        match command {
            Command::Submit(submission) => self.submit(by, *submission, stamp),
            Command::Continue { task, message, trace } => self.continue_task(&by, task, message, trace, stamp),
            Command::Cancel { task } => self.cancel(&by, task, stamp),
            Command::Report(report) => self.report(&by, report, stamp),
            Command::Resolve(resolve) => self.resolve(by, *resolve, stamp),
            Command::Testify(report) => self.testify(&by, *report, stamp),
            Command::Found { cluster, name, node_name, addresses } => {
                self.found(cluster, name, node_name, addresses, stamp)
            }
            Command::MintToken { hash, role, ttl_ms } => self.mint(hash, role, ttl_ms, stamp),
            Command::Enrol(enrolment) => self.enrol(enrolment, stamp),
            Command::NodeUp { node, boot, addresses, version, capacity, agents, labels, level } => {
                let news = NodeNews { boot, addresses, version, capacity, labels, level };
                self.node_up(node, news, agents, stamp)
            }
            Command::NodeLost { node, boot } => Ok(self.node_lost(node, boot, stamp)),
            Command::Certify { node, certificate } => self.certify(node, certificate),
            Command::RemoveNode { node } => self.remove_node(node, stamp),
            Command::SetRole { node, role } => self.set_role(node, role),
            Command::Drain { node, patience_ms } => self.drain(node, patience_ms, stamp),
            Command::Undrain { node } => self.undrain(node, stamp),
            Command::AssignPending => Ok(done(self.assign_pending(stamp))),
            Command::Sweep => Ok(self.sweep(stamp)),
            Command::Upload { hash, length } => self.take_upload(&by, hash, length, stamp),
            Command::Note { key, value, version } => {
                self.notes.put(key, Note { value, version }).map(|()| done(Vec::new()))
            }
            Command::Archive { tasks } => self.archive(&tasks),
            Command::Raise { level } => self.raise(level),
            Command::AddPeer(peer) => self.add_peer(*peer, stamp),
            Command::RemovePeer { name } => self.remove_peer(name),
            Command::SignIn(change) => self.sign_in(&by, *change, stamp),
            Command::SetWebhook(set) => self.set_webhook(&by, *set, stamp),
            Command::RemoveWebhook(name) => self.remove_webhook(&by, &name),
            Command::ClaimWebhooks { node, boot, webhooks } => self.claim_webhooks(node, boot, &webhooks, stamp),
            Command::ReportWebhook(report) => self.report_webhook(&by, *report, stamp),
            Command::Trigger(change) => self.change_trigger(&by, *change, stamp),
            Command::IfGeneration { task, generation, then } => self.if_generation(by, task, generation, *then, stamp),
            Command::Bridge(change) => self.bridge(&by, *change),
            Command::PinTools(pins) => self.pin_tools(*pins),
            Command::Lack(lack) => self.lack(*lack, stamp),
        }
    }

    /// Id and name of the cluster, once it was founded.
    pub fn cluster(&self) -> Option<(uuid::Uuid, &str)> {
        self.cluster.as_ref().map(|(id, name)| (*id, name.as_str()))
    }

    /// How many tasks there are, ended and archived ones too.
    pub fn task_count(&self) -> usize {
        self.tasks.len() + self.archived.len()
    }

    /// Makes this state that of another cluster, founded by one new node: tasks and what is known of their messages stay,
    /// nodes, join tokens and agents go. Every lease is void, and who held one counts as lost, so that the tasks are
    /// adopted like those of a dead node; those that are open are marked as [restored](Task::restored). The new node's id must be a log index behind everything in this state, where
    /// the new cluster's log begins: so no epoch and no id comes twice.
    pub fn refound(&mut self, cluster: uuid::Uuid, name: String, founder: Founder) {
        let Founder { node, name: node_name, addresses } = founder;
        self.triggers.refound(node);
        let lost: Vec<NodeId> = self.leased.keys().copied().collect();
        for old in lost {
            self.lose_leases(old, &mut Vec::new());
        }
        self.webhooks.void_leases(None);
        let open = self.tasks.values_mut().filter(|task| !task.status.state.is_terminal());
        open.for_each(|task| Arc::make_mut(task).restored = true);
        self.last.index = node.0;
        self.cluster = Some((cluster, name));
        self.nodes = BTreeMap::from([(node, new_node(node, node_name, NodeRole::Voter, addresses, self.last.at))]);
        self.tokens.clear();
        self.removed.clear();
        let peers = &self.peers;
        self.agents.retain(|name, _| peers::is_joined(peers, name));
        self.agents.values_mut().for_each(|agent| agent.placed.clear());
        self.sign_ins.refound();
    }

    /// Position and time of the last command.
    pub fn last(&self) -> Stamp {
        self.last
    }

    /// All nodes, by id.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// One node.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// Whether a node was a member and is none any more.
    pub fn is_removed(&self, id: NodeId) -> bool {
        self.removed.contains(&id)
    }

    /// All agents, by name.
    pub fn agents(&self) -> impl Iterator<Item = &Agent> {
        self.agents.values()
    }

    /// One agent.
    pub fn agent(&self, name: &AgentName) -> Option<&Agent> {
        self.agents.get(name)
    }

    /// The agents placed on a node.
    pub fn agents_on(&self, node: NodeId) -> impl Iterator<Item = &Agent> {
        self.agents.values().filter(move |agent| agent.placed.contains(&node))
    }

    /// A task, whoever owns it: for the node that runs it. None also when its record is in the archive.
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&key(id)).map(Arc::as_ref)
    }

    /// A task as a principal may see it: another's looks as if it did not exist.
    pub fn task_for(&self, by: &Principal, id: TaskId) -> Option<&Task> {
        self.task(id).filter(|task| by.may_act_on(&task.owner))
    }

    /// A task that asks this principal something, whoever owns it: it may see what it is asked about, and answer.
    fn asked_task(&self, by: &Principal, id: TaskId) -> Option<&Task> {
        self.task(id).filter(|task| task.asked_of().is_some_and(|to| to == by.owner().to_string()))
    }

    /// The tasks whose lease a node holds.
    pub fn tasks_of(&self, node: NodeId) -> impl Iterator<Item = &Task> {
        self.leased.get(&node).into_iter().flatten().filter_map(|id| self.task(*id))
    }

    /// How many tasks a node holds a lease of.
    pub fn load_of(&self, node: NodeId) -> usize {
        self.leased.get(&node).map_or(0, BTreeSet::len)
    }

    /// The tasks that a task delegated to agents of this mesh, without those that are in the archive.
    pub fn children_of(&self, task: TaskId) -> impl Iterator<Item = &Task> {
        self.children.get(&task).into_iter().flatten().filter_map(|id| self.task(*id))
    }

    /// Tasks that should run and have no owner.
    pub fn unassigned(&self) -> usize {
        self.unassigned.len()
    }

    /// Whether some unassigned task could be given to a node.
    pub fn has_assignable(&self) -> bool {
        let mut asked = BTreeSet::new();
        let mut agents = self.unassigned.iter().filter_map(|id| self.task(*id)).map(|task| &task.agent);
        agents.any(|agent| asked.insert(agent) && self.choose(agent, Wish::None).is_some())
    }

    /// Whether a join token with this hash was made and not yet swept.
    pub fn knows_token(&self, hash: &str) -> bool {
        self.tokens.contains_key(hash)
    }

    /// What a join token makes a node, if it was made and not yet swept.
    pub fn role_of_token(&self, hash: &str) -> Option<NodeRole> {
        self.tokens.get(hash).map(|token| token.role)
    }

    /// The hashes of the join tokens that were made and not yet swept.
    pub fn token_hashes(&self) -> impl Iterator<Item = &str> {
        self.tokens.keys().map(String::as_str)
    }

    /// Whether a sweep would remove something at this time.
    pub fn has_sweepable(&self, now: Timestamp) -> bool {
        self.terminal_count() > limits::MAX_TERMINAL_TASKS
            || self.oldest_ended().is_some_and(|(at, _)| now.0.saturating_sub(at.0) > limits::TERMINAL_RETENTION_MS)
            || self.has_expired_messages(now)
            || self.has_expired_uploads(now)
            || self.sign_ins.has_over(now)
            || self.tokens.values().any(|token| token_is_over(token, now))
    }

    /// What an operator keeps under a key.
    pub fn note(&self, key: &str) -> Option<&Note> {
        self.notes.get(key)
    }

    /// All tasks of one virtual shard, by id.
    pub fn tasks_in(&self, shard: VShard) -> impl Iterator<Item = &Task> {
        let first = (shard, TaskId::from_uuid(uuid::Uuid::nil()));
        let last = (shard, TaskId::from_uuid(uuid::Uuid::max()));
        self.tasks.range(first..=last).map(|(_, task)| task.as_ref())
    }

    fn all_tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.values().map(Arc::as_ref)
    }

    fn submit(&mut self, by: Principal, submission: Submission, stamp: Stamp) -> Result<Applied, Rejection> {
        if let Some(task) = self.sent_before(&by.owner(), &submission.message, Some(&submission.agent), stamp.at)? {
            return Ok(Applied { reply: Reply::Submitted { task, created: false }, effects: Vec::new() });
        }
        check_message(&submission.message, self.level)?;
        if !self.agents.contains_key(&submission.agent) {
            return Err(Rejection::UnknownAgent {
                agent: submission.agent,
                known: self.agents.keys().cloned().collect(),
            });
        }
        if submission.hop > limits::MAX_HOPS {
            return Err(Rejection::TooManyHops { limit: limits::MAX_HOPS });
        }
        if let Some(parent) = &submission.parent
            && let Some(state) = self.state_of(parent.task)
            && state.is_terminal()
        {
            return Err(Rejection::TaskEnded { task: parent.task, state });
        }
        self.check_room(&by, &submission)?;
        let blobs = blobs::of_message(&submission.message);
        self.check_blobs(&by.owner(), None, &blobs)?;

        let id = submission.task;
        let prefer = submission.prefer;
        let mut task = new_task(by, submission, stamp.at);
        let parent = task.parent.as_ref().and_then(|parent| self.task(parent.task));
        task.restored = parent.is_some_and(|parent| parent.restored);
        if let Some(parent) = parent {
            task.labels = parent.labels.clone();
        }
        self.remember(&task.owner, &task.history[0], &task);
        if let Some(parent) = &task.parent {
            self.children.entry(parent.task).or_default().insert(id);
        }
        self.open.opened(&task);
        self.tasks.insert(key(id), Arc::new(task));
        self.name_blobs(id, &blobs, stamp);
        self.unassigned.insert(id);
        let mut effects = vec![Effect::Changed { task: id }];
        self.assign(id, Wish::Prefer(prefer), stamp, &mut effects);
        Ok(Applied { reply: Reply::Submitted { task: id, created: true }, effects })
    }

    fn continue_task(
        &mut self,
        by: &Principal,
        id: TaskId,
        message: Message,
        trace: crate::TraceContext,
        stamp: Stamp,
    ) -> Result<Applied, Rejection> {
        // Before the task is looked for: who was only asked, and has answered, does not see it any more.
        if let Some(task) = self.sent_before(&by.owner(), &message, None, stamp.at)? {
            return Ok(Applied { reply: Reply::Continued { task }, effects: Vec::new() });
        }
        let Some(task) = self.task_for(by, id).or_else(|| self.asked_task(by, id)) else {
            return self.continue_ended(by, id, &message);
        };
        check_message(&message, self.level)?;
        if message.context_id.as_ref().is_some_and(|context| *context != task.context) {
            return Err(Rejection::ContextMismatch { task: id });
        }
        let state = task.status.state;
        if state.is_terminal() {
            return Err(Rejection::TaskEnded { task: id, state });
        }
        if !state.is_interrupted() {
            return Err(Rejection::TaskBusy { task: id, state });
        }
        self.check_room_in(task, &message)?;
        let blobs = blobs::of_message(&message);
        self.check_blobs(&task.owner, Some(task), &blobs)?;

        let overrides = overridden(task, by)?;
        let mut task = task.clone();
        settle_questions(&mut task, &message, stamp.at)?;
        if let Some(reason) = outside_reason(by, &message) {
            task.note_outside_input(&reason);
        }
        let sender = by.owner();
        self.remember(&sender, &message, &task);
        task.bytes += message.size();
        if sender != task.owner {
            task.sent_by.insert(task.history.len(), sender);
        }
        task.history.push(message);
        self.tasks.insert(key(id), Arc::new(task));
        self.name_blobs(id, &blobs, stamp);
        Ok(self.go_on(id, trace, overrides, stamp))
    }

    fn cancel(&mut self, by: &Principal, id: TaskId, stamp: Stamp) -> Result<Applied, Rejection> {
        let Some(task) = self.task_for(by, id) else {
            return self.cancel_ended(by, id);
        };
        match task.status.state {
            TaskState::Canceled => return Ok(done(Vec::new())),
            state @ (TaskState::Completed | TaskState::Failed | TaskState::Rejected) => {
                return Err(Rejection::NotCancelable { task: id, state });
            }
            TaskState::Submitted | TaskState::Working | TaskState::InputRequired | TaskState::AuthRequired => {}
        }
        let mut effects = Vec::new();
        self.cancel_tree(id, stamp, &mut effects);
        Ok(done(effects))
    }

    /// What a task delegated does not outlive it; what it sent does when it has completed.
    fn cancel_children(&mut self, id: TaskId, state: TaskState, stamp: Stamp, effects: &mut Vec<Effect>) {
        let was_sent = |child: &Task| {
            let step = child.parent.as_ref().and_then(|parent| self.task(id)?.step(parent.step));
            step.is_some_and(|step| matches!(step.intent, Intent::Delegate { handover: Handover::Send, .. }))
        };
        let stays = |child: &TaskId| state == TaskState::Completed && self.task(*child).is_some_and(was_sent);
        let children = self.children.get(&id).into_iter().flatten();
        let canceled: Vec<TaskId> = children.filter(|child| !stays(child)).copied().collect();
        canceled.into_iter().for_each(|child| self.cancel_tree(child, stamp, effects));
    }

    /// Cancels a task and every open task below it: a child does not outlive its parent.
    fn cancel_tree(&mut self, id: TaskId, stamp: Stamp, effects: &mut Vec<Effect>) {
        let mut open = vec![id];
        while let Some(id) = open.pop() {
            if let Some(task) = self.tasks.get_mut(&key(id)).filter(|task| !task.status.state.is_terminal()) {
                Arc::make_mut(task).set_status(stamp.at, TaskState::Canceled, None, Metadata::new());
                effects.push(Effect::Changed { task: id });
                self.release(id, effects);
                self.end(id, stamp);
            }
            open.extend(self.children.get(&id).into_iter().flatten());
        }
    }

    fn report(&mut self, by: &Principal, report: OwnerReport, stamp: Stamp) -> Result<Applied, Rejection> {
        let OwnerReport { task: id, epoch, number, words } = report;
        let Some(task) = self.task(id) else {
            return Err(match self.stub(id) {
                Some(_) => Rejection::StaleEpoch { task: id, epoch: epoch.0 },
                None => Rejection::UnknownTask { task: id },
            });
        };
        let held = task.lease.as_ref().filter(|lease| {
            lease.epoch == epoch && *by == Principal::Node(lease.node) || mutants::on(Mutant::EpochCheckOff)
        });
        let Some(lease) = held else {
            return Err(Rejection::StaleEpoch { task: id, epoch: epoch.0 });
        };
        if number <= lease.reported {
            return Ok(done(Vec::new()));
        }
        if number != lease.reported + 1 {
            return Err(Rejection::ReportGap { number, expected: lease.reported + 1 });
        }

        task::check_words(task, &words)?;
        let is_released = words.last() == Some(&OwnerWord::Released);
        let owner = lease.node;
        let blobs = blobs::of_words(&words);
        self.check_blobs(&task.owner, Some(task), &blobs)?;
        self.name_blobs(id, &blobs, stamp);

        let task = self.tasks.get_mut(&key(id)).map(Arc::make_mut).expect("task was found above");
        let generation = task.generation;
        for word in words {
            task::apply_word(task, word, stamp.at);
        }
        if let Some(lease) = &mut task.lease {
            lease.reported = number;
        }
        let state = task.status.state;
        let changed = task.generation != generation;

        let mut effects = Vec::new();
        if changed {
            effects.push(Effect::Changed { task: id });
        }
        if state.is_terminal() || state.is_interrupted() {
            self.release(id, &mut effects);
        }
        if state.is_terminal() {
            self.end(id, stamp);
            self.cancel_children(id, state, stamp, &mut effects);
        }
        if is_released {
            self.give_away(id, owner, stamp, &mut effects);
        }
        Ok(done(effects))
    }

    fn found(
        &mut self,
        cluster: uuid::Uuid,
        name: String,
        node_name: String,
        addresses: NodeAddresses,
        stamp: Stamp,
    ) -> Result<Applied, Rejection> {
        match &self.cluster {
            Some((id, _)) if *id == cluster => return Ok(done(Vec::new())),
            Some((id, _)) => return Err(Rejection::AlreadyFounded { cluster: *id }),
            None => {}
        }
        self.cluster = Some((cluster, name));
        self.nodes.insert(FOUNDER, new_node(FOUNDER, node_name, NodeRole::Voter, addresses, stamp.at));
        Ok(done(Vec::new()))
    }

    fn node_up(
        &mut self,
        id: NodeId,
        news: NodeNews,
        agents: Vec<AgentSpec>,
        stamp: Stamp,
    ) -> Result<Applied, Rejection> {
        let node = self.member(id)?;
        if node.leaving {
            return Err(Rejection::NodeRemoved { node: id });
        }
        let restarted = node.boot.is_some_and(|boot| boot != news.boot);
        if node.boot != Some(news.boot) {
            node.lacking.clear();
        }
        if node.health != NodeHealth::Up || restarted {
            node.since = stamp.at;
        }
        node.boot = Some(news.boot);
        node.addresses = news.addresses;
        node.version = news.version;
        node.capacity = news.capacity;
        node.labels = news.labels;
        node.level = news.level;
        node.health = NodeHealth::Up;
        node.declares = agents.iter().map(|agent| agent.name.clone()).collect();

        let mut effects = Vec::new();
        if restarted {
            self.lose_leases(id, &mut effects);
        }
        for spec in agents {
            let name = spec.name.clone();
            // One that any node can dial is the one that the mesh knows.
            if self.is_joined(&name) {
                continue;
            }
            self.agents
                .entry(name)
                .and_modify(|agent| agent.spec = spec.clone())
                .or_insert(Agent { spec, placed: BTreeSet::new() });
        }
        let (nodes, peers) = (&self.nodes, &self.peers);
        let is_anywhere = |name: &AgentName| nodes.values().any(|node| peers::can_run(peers, node, name));
        self.agents.retain(|name, _| is_anywhere(name));
        self.place_agents(&mut effects);
        effects.extend(self.assign_pending(stamp));
        Ok(done(effects))
    }

    fn node_lost(&mut self, id: NodeId, boot: BootId, stamp: Stamp) -> Applied {
        let mut effects = Vec::new();
        if let Some(node) = self.nodes.get_mut(&id)
            && node.boot == Some(boot)
            && node.health == NodeHealth::Up
        {
            node.health = NodeHealth::Lost;
            node.since = stamp.at;
            self.lose_leases(id, &mut effects);
            self.place_agents(&mut effects);
            effects.extend(self.assign_pending(stamp));
            self.drop_if_leaving(id);
        }
        done(effects)
    }

    fn member(&mut self, id: NodeId) -> Result<&mut Node, Rejection> {
        let removed = self.is_removed(id);
        let unknown = if removed { Rejection::NodeRemoved { node: id } } else { Rejection::UnknownNode { node: id } };
        self.nodes.get_mut(&id).ok_or(unknown)
    }

    fn sweep(&mut self, stamp: Stamp) -> Applied {
        for _ in 0..limits::MAX_SWEPT_PER_ENTRY {
            let Some((at, id)) = self.oldest_ended() else { break };
            let old = stamp.at.0.saturating_sub(at.0) > limits::TERMINAL_RETENTION_MS;
            if !old && self.terminal_count() <= limits::MAX_TERMINAL_TASKS {
                break;
            }
            self.ended.remove(&(at, id));
            self.forget(id);
        }
        self.forget_messages(stamp.at);
        self.forget_uploads(stamp.at);
        self.sign_ins.forget_over(stamp.at);
        self.tokens.retain(|_, token| !token_is_over(token, stamp.at));
        done(Vec::new())
    }

    /// How many tasks have ended and are kept.
    fn terminal_count(&self) -> usize {
        self.ended.len() + self.archived.len()
    }

    fn oldest_ended(&self) -> Option<(Timestamp, TaskId)> {
        self.ended.first().copied().into_iter().chain(self.archived.oldest()).min()
    }

    fn forget(&mut self, id: TaskId) {
        let parent = if let Some(task) = self.tasks.remove(&key(id)) {
            self.forget_unnoted(&task);
            self.unname_blobs(&task.owner, &task.blobs);
            task.parent.clone()
        } else if let Some(stub) = self.archived.remove(id) {
            self.unname_blobs(&stub.owner, stub.blobs());
            stub.parent
        } else {
            return;
        };
        self.webhooks.forget(id);
        self.children.remove(&id);
        if let Some(parent) = &parent
            && let Some(siblings) = self.children.get_mut(&parent.task)
        {
            siblings.remove(&id);
        }
    }

    /// Notes that a task has ended, for the sweep.
    fn end(&mut self, id: TaskId, stamp: Stamp) {
        self.ended.insert((stamp.at, id));
        self.close(id);
        self.charge(id);
        self.let_messages_expire(id, stamp.at);
    }

    /// Ends the lease of a task that no longer runs.
    fn release(&mut self, id: TaskId, effects: &mut Vec<Effect>) {
        self.unassigned.remove(&id);
        let Some(task) = self.tasks.get_mut(&key(id)).map(Arc::make_mut) else { return };
        task.lost_owner = None;
        if let Some(lease) = task.lease.take() {
            if let Some(held) = self.leased.get_mut(&lease.node) {
                held.remove(&id);
            }
            effects.push(Effect::Stop { task: id, node: lease.node });
        }
    }

    /// Ends every lease of a node that was lost or came back as another process.
    fn lose_leases(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        self.webhooks.void_leases(Some(node));
        if self.triggers.void_leases(node) {
            effects.push(Effect::Triggers);
        }
        for id in self.leased.remove(&node).unwrap_or_default() {
            let Some(task) = self.tasks.get_mut(&key(id)).map(Arc::make_mut) else { continue };
            task.lease = None;
            task.lost_owner = Some(node);
            self.unassigned.insert(id);
            effects.push(Effect::Stop { task: id, node });
        }
    }

    fn assign_pending(&mut self, stamp: Stamp) -> Vec<Effect> {
        let mut effects = Vec::new();
        // Those that some node can take: the others may be many, and must not stand before them.
        let mut takes: BTreeMap<&AgentName, bool> = BTreeMap::new();
        let mut is_taken = |agent| *takes.entry(agent).or_insert_with(|| self.choose(agent, Wish::None).is_some());
        let can_go = |id: &&TaskId| self.task(**id).is_some_and(|task| is_taken(&task.agent));
        let pending: Vec<TaskId> =
            self.unassigned.iter().filter(can_go).take(limits::MAX_REASSIGNED_PER_ENTRY).copied().collect();
        for id in pending {
            self.assign(id, Wish::None, stamp, &mut effects);
        }
        effects
    }

    /// Gives an unassigned task to a node, if one can take it.
    fn assign(&mut self, id: TaskId, wish: Wish, stamp: Stamp, effects: &mut Vec<Effect>) {
        let Some(agent) = self.task(id).map(|task| task.agent.clone()) else { return };
        let Some((node, boot)) = self.choose(&agent, wish) else { return };
        let Some(task) = self.tasks.get_mut(&key(id)).map(Arc::make_mut) else { return };
        let epoch = Epoch(stamp.index);
        let lease = Lease { node, boot, epoch, reported: 0 };
        task.lease = Some(lease.clone());
        if task.ran_on.last() != Some(&node) {
            task.ran_on.push(node);
        }
        if let Some(from) = task.lost_owner.take() {
            task.adoptions.push(Adoption { from, to: node, epoch, at: stamp.at, generation: task.generation });
            if task.status.state == TaskState::Working && task.has_room_for_events(1) {
                task.push_event(
                    stamp.at,
                    EventKind::Status {
                        status: task.status.clone(),
                        metadata: adoption_metadata(from, node, epoch, wish),
                    },
                );
                effects.push(Effect::Changed { task: id });
            }
        }
        self.unassigned.remove(&id);
        self.leased.entry(node).or_default().insert(id);
        effects.push(Effect::Start { task: id, lease });
    }

    /// The node that is to run a task of this agent: the preferred one if it has a free place, else the least loaded
    /// of those that have one, else the least loaded of all: what has no place waits at its node.
    fn choose(&self, agent: &AgentName, wish: Wish) -> Option<(NodeId, BootId)> {
        self.choose_at(agent, wish, self.last.at)
    }

    fn choose_at(&self, agent: &AgentName, wish: Wish, now: Timestamp) -> Option<(NodeId, BootId)> {
        let Agent { placed, spec } = self.agents.get(agent)?;
        let all_know_labels = self.all_know_labels();
        let can_host = |node: &&Node| {
            node.takes_tasks()
                && wish != Wish::Except(node.id)
                && self.can_run(node, agent)
                && (!all_know_labels || node.has_labels(&spec.labels))
                && self.load_of(node.id) < limits::MAX_LEASED_PER_NODE
        };
        let candidates = || placed.iter().filter_map(|id| self.nodes.get(id)).filter(can_host);
        let preferred = match wish {
            Wish::Prefer(id) if placed.contains(&id) => self.nodes.get(&id).filter(can_host),
            Wish::Prefer(_) | Wish::None | Wish::Except(_) => None,
        };
        let lack = |node: &Node| self.rank_of_lack(node, agent, now);
        let is_free = |node: &&Node| self.load_of(node.id) < node.capacity as usize;
        let preferred = preferred.filter(is_free).filter(|node| lack(node) == Rank::LacksNothing);
        let is_full = |node: &Node| all_know_labels && !is_free(&node);
        let node = preferred
            .or_else(|| candidates().min_by_key(|node| (lack(node), is_full(node), self.load_of(node.id), node.id)))?;
        if lack(node) == Rank::Waits {
            return None;
        }
        Some((node.id, node.boot?))
    }

    /// Makes the placement of every agent fit the nodes that are up. A placement on a live node never moves by itself.
    fn place_agents(&mut self, effects: &mut Vec<Effect>) {
        let is_on_some = |agent: &Agent| matches!(agent.spec.placement, Placement::Replicas(_));
        let mut placements: BTreeMap<NodeId, usize> = BTreeMap::new();
        // With hundreds of nodes this is work, and only an agent that is on some of them asks who has few.
        if self.agents.values().any(is_on_some) {
            for node in self.agents.values().flat_map(|agent| &agent.placed) {
                *placements.entry(*node).or_default() += 1;
            }
        }
        let all_know_labels = self.all_know_labels();
        for (name, agent) in &mut self.agents {
            let fits = |node: &&Node| !all_know_labels || node.has_labels(&agent.spec.labels);
            let mut candidates: Vec<NodeId> = self
                .nodes
                .values()
                .filter(|node| node.takes_tasks() && peers::can_run(&self.peers, node, name))
                .filter(fits)
                .map(|node| node.id)
                .collect();
            if candidates.is_empty() {
                continue;
            }
            let wanted = match agent.spec.placement {
                Placement::Replicas(count) => count as usize,
                Placement::EveryNode => candidates.len(),
            };
            if wanted < candidates.len() {
                candidates
                    .sort_by_key(|id| (!agent.placed.contains(id), placements.get(id).copied().unwrap_or(0), *id));
                candidates.truncate(wanted);
                candidates.sort_unstable();
            }
            let (added, gone) = differences(&agent.placed, &candidates);
            if added.is_empty() && gone.is_empty() {
                continue;
            }
            for node in gone {
                agent.placed.remove(&node);
            }
            for node in added {
                *placements.entry(node).or_default() += 1;
                agent.placed.insert(node);
            }
            effects.push(Effect::PlacementChanged);
        }
    }
}

/// What is in the second and not in the first, and the other way round. Both are in order.
fn differences(old: &BTreeSet<NodeId>, new: &[NodeId]) -> (Vec<NodeId>, Vec<NodeId>) {
    let (mut added, mut gone) = (Vec::new(), Vec::new());
    let (mut old, mut new) = (old.iter().copied().peekable(), new.iter().copied().peekable());
    loop {
        match (old.peek(), new.peek()) {
            (Some(a), Some(b)) if a == b => {
                old.next();
                new.next();
            }
            (Some(a), Some(b)) if a < b => gone.extend(old.next()),
            (Some(_), None) => gone.extend(old.next()),
            (_, Some(_)) => added.extend(new.next()),
            (None, None) => return (added, gone),
        }
    }
}

impl ListFilter {
    fn selects(&self, task: &Task) -> bool {
        self.context.as_ref().is_none_or(|context| *context == task.context)
            && self.state.is_none_or(|state| state == task.status.state)
            && self.status_after.is_none_or(|after| task.status.at >= after)
            && self.agent.as_ref().is_none_or(|agent| *agent == task.agent)
    }
}

/// What is asked of the choice of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    None,
    Prefer(NodeId),
    /// The owner gives the task away.
    Except(NodeId),
}

struct NodeNews {
    boot: BootId,
    addresses: NodeAddresses,
    version: String,
    capacity: u32,
    labels: Option<Labels>,
    level: u32,
}

fn done(effects: Vec<Effect>) -> Applied {
    Applied { reply: Reply::Done, effects }
}

fn key(id: TaskId) -> TaskKey {
    (id.vshard(), id)
}

fn token_is_over(token: &JoinToken, now: Timestamp) -> bool {
    const KEPT_AFTER_EXPIRY_MS: u64 = 3_600_000;
    now.0 > token.expires.0.saturating_add(KEPT_AFTER_EXPIRY_MS)
}

fn check_message(message: &Message, level: Level) -> Result<(), Rejection> {
    let blank =
        message.parts.iter().all(|part| matches!(&part.content, crate::Content::Text(text) if text.trim().is_empty()));
    if blank {
        return Err(Rejection::EmptyMessage);
    }
    if message.parts.len() > limits::MAX_PARTS {
        return Err(Rejection::TooLarge { what: "number of message parts".into(), limit: limits::MAX_PARTS as u64 });
    }
    if message.size() > limits::MAX_CONTENT_BYTES {
        return Err(Rejection::TooLarge {
            what: "message content in bytes".into(),
            limit: limits::MAX_CONTENT_BYTES as u64,
        });
    }
    if level >= Level::BOUNDS && message.extra_size() > limits::MAX_METADATA_BYTES {
        let limit = limits::MAX_METADATA_BYTES as u64;
        return Err(Rejection::TooLarge { what: "metadata of the message in bytes".into(), limit });
    }
    Ok(())
}

fn new_node(id: NodeId, name: String, role: NodeRole, addresses: NodeAddresses, at: Timestamp) -> Node {
    Node {
        id,
        name,
        role,
        addresses,
        version: String::new(),
        boot: None,
        health: NodeHealth::Enrolled,
        since: at,
        capacity: 0,
        declares: BTreeSet::new(),
        leaving: false,
        draining: None,
        certificate: None,
        labels: None,
        lacking: BTreeMap::new(),
        level: 0,
    }
}

fn new_task(by: Principal, submission: Submission, at: Timestamp) -> Task {
    let Submission { task: id, fresh_context, agent, message, parent, hop, deadline_ms, trace, labels, .. } =
        submission;
    let outside = outside_reason(&by, &message);
    let context = message.context_id.clone().unwrap_or(fresh_context);
    let mut task = Task {
        id,
        context,
        agent,
        owner: by.owner(),
        submitted_by: by,
        parent,
        hop,
        created: at,
        deadline: deadline_ms.map(|ms| Timestamp(at.0.saturating_add(ms))),
        status: TaskStatus { state: TaskState::Submitted, message: None, at },
        bytes: message.size(),
        outside_input: Vec::new(),
        blobs: BTreeMap::new(),
        labels,
        history: vec![message],
        sent_by: BTreeMap::new(),
        artifacts: Vec::new(),
        generation: 0,
        events: std::collections::VecDeque::new(),
        lease: None,
        lost_owner: None,
        adoptions: Vec::new(),
        ran_on: Vec::new(),
        late_results: Vec::new(),
        restored: false,
        spent_below: crate::Spent::default(),
        turn: Turn { number: 1, attempt: 1, span: None, parent: trace, started: at, lost: Vec::new() },
        journal: Vec::new(),
        trace,
    };
    if let Some(reason) = outside {
        task.note_outside_input(&reason);
    }
    task.push_event(at, EventKind::Created);
    task
}

/// Why a message counts as outside input: another agent wrote it, and no agent of this mesh.
fn outside_reason(by: &Principal, message: &Message) -> Option<String> {
    let from_a_mesh = crate::chain_in(message).last().map(|link| format!("message of agent {}", link.agent));
    match by {
        Principal::Named { id, role: PrincipalRole::Agent } => Some(format!("message of agent {id}")),
        Principal::Operator | Principal::Node(_) | Principal::Named { .. } => from_a_mesh,
        Principal::Agent { .. } => None,
    }
}

fn adoption_metadata(from: NodeId, to: NodeId, epoch: Epoch, wish: Wish) -> Metadata {
    let reason = match wish {
        Wish::None | Wish::Prefer(_) => "node_lost",
        Wish::Except(_) => "drained",
    };
    // In the order of the names: whether a JSON object keeps another order is a feature of a build.
    let adopted = serde_json::json!({ "epoch": epoch, "from": from, "reason": reason, "to": to });
    Metadata::from([("dev.towline/adopted".to_owned(), adopted)])
}

/// Whether this principal may answer what the task asks. An operator may in the place of the one who is asked: that is what the
/// metadata of the next event then says.
fn overridden(task: &Task, by: &Principal) -> Result<Metadata, Rejection> {
    let answers = by.owner().to_string();
    match task.asked_of() {
        Some(to) if to != answers && by.is_operator() => {
            let overridden = serde_json::json!({ "by": answers, "to": to });
            Ok(Metadata::from([("dev.towline/override".to_owned(), overridden)]))
        }
        Some(to) if to != answers => Err(Rejection::NotAsked { task: task.id, to: to.to_owned() }),
        Some(_) | None => Ok(Metadata::new()),
    }
}

/// Lets an answer end the step that asked for it. With several open questions the first one is answered; a step in doubt
/// is decided by the first word of the answer; an answer to a peer's question leaves the delegation open.
fn settle_questions(task: &mut Task, message: &Message, at: Timestamp) -> Result<(), Rejection> {
    let answer = message.text();
    let turn = task.turn.number;
    let waiting = |step: &&mut Step| {
        let asks = matches!(step.intent, crate::Intent::Ask { .. }) || step.asked == Some(Asked::Waiting);
        step.turn == turn && step.ended.is_none() && (asks || step.doubt == Some(Doubt::Asked))
    };
    let Some(step) = task.journal.iter_mut().find(waiting) else { return Ok(()) };
    if step.doubt.is_none() && step.asked.is_some() {
        step.asked = Some(Asked::Answered(message.message_id.clone()));
        return Ok(());
    }
    if step.doubt.is_none() {
        step.ended = Some(crate::StepRecord { outcome: Outcome::Returned { content: answer, is_error: false }, at });
        return Ok(());
    }
    let verdict = crate::doubt::verdict_of(message).ok_or(Rejection::UndecidedDoubt { step: step.no })?;
    crate::doubt::settle(step, &verdict, at);
    task.restored &= !verdict.denies();
    Ok(())
}

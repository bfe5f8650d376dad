//! What happens in the cluster as a whole, told in the order of the log: the same at the same entry on every node, since it
//! is made of the entry, of the state before it and of the state after it. Nothing of it is in the state.

use std::collections::BTreeMap;

use crate::{
    AgentName, Applied, Command, ContextId, Effect, Epoch, EventKind, Level, NodeHealth, NodeId, NodeRole, Principal,
    PrincipalId, PrincipalRole, Proposal, Rejection, Reply, Revoke, SessionId, SignIn, Stamp, State, TaskId, TaskState,
    TriggerChange, TriggerName,
};

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// To a task.
    Task(Box<TaskNews>),
    /// To a node.
    Node {
        /// The node.
        node: NodeId,
        /// What.
        change: NodeChange,
    },
    /// Some agent is placed on other nodes than before.
    AgentsPlaced,
    /// An agent outside of this mesh was made known.
    PeerAdded {
        /// Its name.
        name: AgentName,
    },
    /// It was taken away again.
    PeerRemoved {
        /// Its name.
        name: AgentName,
    },
    /// Who is signed in, or asks to be.
    SignIn(SignInChange),
    /// The rules of a level count from here on.
    LevelRaised {
        /// The level.
        level: Level,
    },
    /// Something that starts tasks by itself.
    Trigger {
        /// Its name.
        name: TriggerName,
        /// What happened to it.
        news: TriggerNews,
    },
    /// The cluster was founded.
    Founded {
        /// Its name.
        name: String,
    },
}

/// What happened to a trigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TriggerNews {
    /// It is there.
    Added,
    /// It is there no more.
    Removed,
    /// A node looks after it.
    Claimed {
        /// The node.
        node: NodeId,
    },
    /// It started a task.
    Fired {
        /// The task.
        task: TaskId,
    },
}

/// What happened to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskNews {
    /// The task.
    pub task: TaskId,
    /// Its conversation.
    pub context: ContextId,
    /// Who does it.
    pub agent: AgentName,
    /// Who may see it.
    pub owner: Principal,
    /// What.
    pub change: TaskChange,
}

/// A step in the life of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskChange {
    /// It was accepted.
    Submitted,
    /// Its status is another one.
    Status {
        /// The state from here on.
        state: TaskState,
        /// Index of its event that says so.
        generation: u64,
    },
    /// A node was given its lease.
    Leased {
        /// The node.
        node: NodeId,
        /// Under which epoch.
        epoch: Epoch,
    },
    /// A node was given it in the place of another.
    Adopted {
        /// Who had it.
        from: NodeId,
        /// Who has it.
        to: NodeId,
        /// Under which epoch.
        epoch: Epoch,
    },
    /// Its node has it no more, and no other could take it yet.
    Orphaned {
        /// Who had it.
        node: NodeId,
    },
}

/// What happened to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeChange {
    /// It is a member.
    Joined {
        /// What it is.
        role: NodeRole,
    },
    /// It runs, or runs as another process.
    Up,
    /// Its session has ended.
    Lost,
    /// It is taken out as soon as its session has ended.
    Leaving,
    /// It is a member no more.
    Removed,
    /// It is given no more tasks.
    Draining,
    /// It is given tasks again.
    Undrained,
    /// It counts for the quorum, or no more.
    Role {
        /// What it is.
        role: NodeRole,
    },
}

/// What happened to somebody who signs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignInChange {
    /// A device asks to be let in.
    Asked,
    /// An operator lets somebody in under a name.
    Approved {
        /// The name.
        name: PrincipalId,
        /// What it may do.
        role: PrincipalRole,
    },
    /// An operator lets nobody in.
    Denied,
    /// A session began.
    Began {
        /// The session.
        session: SessionId,
        /// Whose it is.
        name: PrincipalId,
    },
    /// A session was ended before its time.
    Revoked {
        /// The session.
        session: SessionId,
        /// Whose it was.
        name: PrincipalId,
    },
}

impl Happening {
    /// All kinds, as [`Happening::kind`] names them.
    pub const KINDS: [&'static str; 27] = [
        "agents.placed",
        "cluster.founded",
        "cluster.level",
        "device.approved",
        "device.asked",
        "device.denied",
        "node.draining",
        "node.joined",
        "node.leaving",
        "node.lost",
        "node.removed",
        "node.role",
        "node.undrained",
        "node.up",
        "peer.added",
        "peer.removed",
        "session.began",
        "session.revoked",
        "task.adopted",
        "task.leased",
        "task.orphaned",
        "task.status",
        "task.submitted",
        "trigger.added",
        "trigger.claimed",
        "trigger.fired",
        "trigger.removed",
    ];

    /// The name of its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Happening::Task(news) => match news.change {
                TaskChange::Submitted => "task.submitted",
                TaskChange::Status { .. } => "task.status",
                TaskChange::Leased { .. } => "task.leased",
                TaskChange::Adopted { .. } => "task.adopted",
                TaskChange::Orphaned { .. } => "task.orphaned",
            },
            Happening::Node { change, .. } => match change {
                NodeChange::Joined { .. } => "node.joined",
                NodeChange::Up => "node.up",
                NodeChange::Lost => "node.lost",
                NodeChange::Leaving => "node.leaving",
                NodeChange::Removed => "node.removed",
                NodeChange::Draining => "node.draining",
                NodeChange::Undrained => "node.undrained",
                NodeChange::Role { .. } => "node.role",
            },
            Happening::AgentsPlaced => "agents.placed",
            Happening::PeerAdded { .. } => "peer.added",
            Happening::PeerRemoved { .. } => "peer.removed",
            Happening::SignIn(change) => match change {
                SignInChange::Asked => "device.asked",
                SignInChange::Approved { .. } => "device.approved",
                SignInChange::Denied => "device.denied",
                SignInChange::Began { .. } => "session.began",
                SignInChange::Revoked { .. } => "session.revoked",
            },
            Happening::Trigger { news, .. } => match news {
                TriggerNews::Added => "trigger.added",
                TriggerNews::Removed => "trigger.removed",
                TriggerNews::Claimed { .. } => "trigger.claimed",
                TriggerNews::Fired { .. } => "trigger.fired",
            },
            Happening::LevelRaised { .. } => "cluster.level",
            Happening::Founded { .. } => "cluster.founded",
        }
    }

    /// Whether a principal may hear of it: of its own tasks, and an operator of everything.
    pub fn is_for(&self, by: &Principal) -> bool {
        match self {
            Happening::Task(news) => by.may_act_on(&news.owner),
            Happening::Node { .. }
            | Happening::AgentsPlaced
            | Happening::PeerAdded { .. }
            | Happening::PeerRemoved { .. }
            | Happening::SignIn(_)
            | Happening::LevelRaised { .. }
            | Happening::Trigger { .. }
            | Happening::Founded { .. } => by.is_operator(),
        }
    }
}

impl State {
    /// [`State::apply`], and what happened by it.
    pub fn apply_and_tell(&mut self, proposal: Proposal, stamp: Stamp) -> (Result<Applied, Rejection>, Vec<Happening>) {
        let before = Before::of(self, &proposal.command, stamp);
        let outcome = self.apply(proposal, stamp);
        let told = outcome.as_ref().map(|applied| before.told(self, applied, stamp)).unwrap_or_default();
        (outcome, told)
    }
}

/// What is kept of an entry and of the state before it, to tell what it changed.
enum Before {
    Nothing,
    /// A task, and the index of its last event.
    Task(TaskId, u64),
    Founding(String),
    Enrolment,
    Node {
        node: NodeId,
        known: Option<Glance>,
    },
    Level(Level),
    /// A peer, and whether it was known.
    Peer(AgentName, bool),
    Asked,
    Approved(PrincipalId, PrincipalRole),
    Denied,
    /// A session that is to begin, unless it was there before.
    Beginning(SessionId, bool),
    Revoked(Vec<(SessionId, PrincipalId)>),
    /// The triggers that the entry is about, and what of them is told.
    Triggers(BTreeMap<TriggerName, TriggerGlance>),
    /// A trigger that fires, and the task that it asks for.
    Firing(TriggerName, TaskId),
}

/// A node at one moment.
#[derive(PartialEq, Eq, Clone, Copy)]
struct Glance {
    up: Option<crate::BootId>,
    lost: bool,
    leaving: bool,
    draining: bool,
    role: NodeRole,
}

impl Glance {
    fn at(state: &State, node: NodeId) -> Option<Self> {
        state.node(node).map(|node| Self {
            up: node.boot.filter(|_| node.health == NodeHealth::Up),
            lost: node.health == NodeHealth::Lost,
            leaving: node.leaving,
            draining: node.draining.is_some(),
            role: node.role,
        })
    }
}

impl Before {
    fn of(state: &State, command: &Command, stamp: Stamp) -> Self {
        let task = |id: TaskId| Before::Task(id, state.task(id).map_or(0, |task| task.generation));
        let node = |node: NodeId| Before::Node { node, known: Glance::at(state, node) };
        match command {
            Command::Submit(submission) => task(submission.task),
            Command::Continue { task: id, .. } | Command::Cancel { task: id } => task(*id),
            Command::IfGeneration { task: id, .. } => task(*id),
            Command::Report(report) => task(report.task),
            Command::Resolve(resolve) => task(resolve.task),
            Command::Found { name, .. } if state.cluster().is_none() => Before::Founding(name.clone()),
            Command::Enrol(_) => Before::Enrolment,
            Command::NodeUp { node: id, .. }
            | Command::NodeLost { node: id, .. }
            | Command::RemoveNode { node: id }
            | Command::SetRole { node: id, .. }
            | Command::Drain { node: id, .. }
            | Command::Undrain { node: id } => node(*id),
            Command::Raise { .. } => Before::Level(state.level()),
            Command::AddPeer(peer) => Before::Peer(peer.name.clone(), state.peer(&peer.name).is_some()),
            Command::RemovePeer { name } => Before::Peer(name.clone(), state.peer(name).is_some()),
            Command::SignIn(change) => Before::of_sign_in(state, change, stamp),
            Command::Trigger(change) => match &**change {
                TriggerChange::Fire(fire) => Before::Firing(fire.name.clone(), fire.submission.task),
                TriggerChange::Report(_) => Before::Nothing,
                TriggerChange::Declare { .. }
                | TriggerChange::Add(_)
                | TriggerChange::Remove { .. }
                | TriggerChange::Claim { .. } => Before::Triggers(glance_at_triggers(state)),
            },
            Command::Testify(_)
            | Command::Found { .. }
            | Command::MintToken { .. }
            | Command::Certify { .. }
            | Command::AssignPending
            | Command::Sweep
            | Command::Upload { .. }
            | Command::Note { .. }
            | Command::Archive { .. }
            | Command::SetWebhook(_)
            | Command::RemoveWebhook(_)
            | Command::ClaimWebhooks { .. }
            | Command::ReportWebhook(_)
            | Command::Bridge(_)
            | Command::PinTools(_)
            | Command::Lack(_) => Before::Nothing,
        }
    }

    fn of_sign_in(state: &State, change: &SignIn, stamp: Stamp) -> Self {
        let at = stamp.at.max(state.last().at);
        let is_there = |id: &SessionId| state.sessions(at).any(|session| session.id == *id);
        match change {
            SignIn::Ask(_) => Before::Asked,
            SignIn::Approve(approve) => Before::Approved(approve.name.clone(), approve.role),
            SignIn::Deny { .. } => Before::Denied,
            SignIn::Redeem { session, .. } | SignIn::Launch { session, .. } => {
                Before::Beginning(session.clone(), is_there(session))
            }
            SignIn::Revoke(which) => {
                let is_meant = |session: &&crate::Session| match which {
                    Revoke::Session(id) => session.id == *id,
                    Revoke::Name(name) => session.name == *name,
                    Revoke::All => true,
                };
                let meant = state.sessions(at).filter(is_meant);
                Before::Revoked(meant.map(|session| (session.id.clone(), session.name.clone())).collect())
            }
            SignIn::Seen { .. } => Before::Nothing,
        }
    }

    fn told(self, state: &State, applied: &Applied, stamp: Stamp) -> Vec<Happening> {
        let known = if let Before::Task(task, generation) = &self {
            Some((*task, *generation))
        } else if let Before::Firing(_, task) = &self {
            // What it asks for is there only once it has fired.
            Some((*task, 0))
        } else {
            None
        };
        let mut told = self.own(state, applied, stamp);
        for effect in &applied.effects {
            match effect {
                Effect::Changed { task } => changes(state, *task, known, &mut told),
                Effect::Start { task, lease } => {
                    let adoption = state.task(*task).and_then(|task| task.adoptions.last());
                    let change = match adoption.filter(|adoption| adoption.epoch == lease.epoch) {
                        Some(adoption) => {
                            TaskChange::Adopted { from: adoption.from, to: adoption.to, epoch: lease.epoch }
                        }
                        None => TaskChange::Leased { node: lease.node, epoch: lease.epoch },
                    };
                    told.extend(news(state, *task, change));
                }
                Effect::Stop { task, node } => {
                    let waits = state.task(*task).is_some_and(|task| {
                        let state = task.status.state;
                        task.lease.is_none() && !state.is_terminal() && !state.is_interrupted()
                    });
                    told.extend(news(state, *task, TaskChange::Orphaned { node: *node }).filter(|_| waits));
                }
                Effect::PlacementChanged if told.contains(&Happening::AgentsPlaced) => {}
                Effect::PlacementChanged => told.push(Happening::AgentsPlaced),
                Effect::SessionsEnded | Effect::Webhook { .. } | Effect::Triggers => {}
            }
        }
        told
    }

    /// What the command itself is about, beside its effects.
    fn own(self, state: &State, applied: &Applied, stamp: Stamp) -> Vec<Happening> {
        let at = stamp.at.max(state.last().at);
        match self {
            Before::Nothing | Before::Task(..) => Vec::new(),
            Before::Founding(name) => vec![Happening::Founded { name }],
            Before::Enrolment => match applied.reply {
                // The id of a node is the index of the entry that made it a member.
                Reply::Enrolled { node, role } if node.0 == stamp.index => {
                    vec![Happening::Node { node, change: NodeChange::Joined { role } }]
                }
                Reply::Enrolled { .. } | Reply::Submitted { .. } | Reply::Continued { .. } | Reply::Done => Vec::new(),
            },
            Before::Node { node, known } => {
                node_changes(known, Glance::at(state, node)).map(|change| Happening::Node { node, change }).collect()
            }
            Before::Triggers(known) => trigger_changes(&known, &glance_at_triggers(state)),
            Before::Firing(name, task) => match applied.reply {
                Reply::Submitted { created: true, .. } => {
                    vec![Happening::Trigger { name, news: TriggerNews::Fired { task } }]
                }
                Reply::Submitted { .. } | Reply::Enrolled { .. } | Reply::Continued { .. } | Reply::Done => Vec::new(),
            },
            Before::Level(level) if state.level() == level => Vec::new(),
            Before::Level(_) => vec![Happening::LevelRaised { level: state.level() }],
            Before::Peer(name, was_known) => match (was_known, state.peer(&name).is_some()) {
                (false, true) => vec![Happening::PeerAdded { name }],
                (true, false) => vec![Happening::PeerRemoved { name }],
                (false, false) | (true, true) => Vec::new(),
            },
            Before::Asked => vec![Happening::SignIn(SignInChange::Asked)],
            Before::Approved(name, role) => vec![Happening::SignIn(SignInChange::Approved { name, role })],
            Before::Denied => vec![Happening::SignIn(SignInChange::Denied)],
            Before::Beginning(_, true) => Vec::new(),
            Before::Beginning(session, false) => {
                let begun = state.sessions(at).find(|one| one.id == session).map(|one| one.name.clone());
                begun.map(|name| Happening::SignIn(SignInChange::Began { session, name })).into_iter().collect()
            }
            Before::Revoked(sessions) => {
                let revoked = |(session, name)| Happening::SignIn(SignInChange::Revoked { session, name });
                sessions.into_iter().map(revoked).collect()
            }
        }
    }
}

fn node_changes(before: Option<Glance>, after: Option<Glance>) -> impl Iterator<Item = NodeChange> {
    let differs = |of: fn(&Glance) -> bool| before.as_ref().is_some_and(of) != after.as_ref().is_some_and(of);
    let gone = before.is_some() && after.is_none();
    let was_up = before.and_then(|glance| glance.up);
    let is_up = after.and_then(|glance| glance.up);
    let is_lost = after.map_or(was_up.is_some(), |glance| glance.lost) && was_up.is_some();
    let role = before.zip(after).filter(|(before, after)| before.role != after.role).map(|(_, after)| after.role);
    let draining = after.filter(|_| differs(|glance| glance.draining)).map(|after| match after.draining {
        true => NodeChange::Draining,
        false => NodeChange::Undrained,
    });
    let all = [
        is_up.filter(|boot| was_up != Some(*boot)).map(|_| NodeChange::Up),
        is_lost.then_some(NodeChange::Lost),
        (!gone && differs(|glance| glance.leaving)).then_some(NodeChange::Leaving),
        gone.then_some(NodeChange::Removed),
        draining,
        role.map(|role| NodeChange::Role { role }),
    ];
    all.into_iter().flatten()
}

/// The new events of a task that say how it stands. Of one that the command does not name there is one at most.
fn changes(state: &State, id: TaskId, known: Option<(TaskId, u64)>, told: &mut Vec<Happening>) {
    let Some(task) = state.task(id) else { return };
    let before = known.filter(|(known, _)| *known == id).map_or(task.generation.saturating_sub(1), |(_, last)| last);
    let first = task.events.iter().rev().take_while(|event| event.index > before).count();
    for event in task.events.iter().skip(task.events.len() - first) {
        let change = match &event.kind {
            EventKind::Created => TaskChange::Submitted,
            // An adoption is told with the lease.
            EventKind::Status { metadata, .. } if metadata.contains_key(ADOPTED) => continue,
            EventKind::Status { status, .. } => TaskChange::Status { state: status.state, generation: event.index },
            EventKind::Artifact { .. } => continue,
        };
        told.extend(news(state, id, change));
    }
}

/// In the metadata of an event that another node took a task over.
const ADOPTED: &str = "dev.towline/adopted";

fn news(state: &State, id: TaskId, change: TaskChange) -> Option<Happening> {
    let task = state.task(id)?;
    Some(Happening::Task(Box::new(TaskNews {
        task: id,
        context: task.context.clone(),
        agent: task.agent.clone(),
        owner: task.owner.clone(),
        change,
    })))
}

/// Who looks after a trigger.
type TriggerGlance = Option<NodeId>;

fn glance_at_triggers(state: &State) -> BTreeMap<TriggerName, TriggerGlance> {
    let glance = |trigger: &crate::Trigger| (trigger.spec.name.clone(), trigger.lease.map(|lease| lease.node));
    state.triggers().map(glance).collect()
}

fn trigger_changes(
    before: &BTreeMap<TriggerName, TriggerGlance>,
    after: &BTreeMap<TriggerName, TriggerGlance>,
) -> Vec<Happening> {
    let news = |name: &TriggerName, news| Happening::Trigger { name: name.clone(), news };
    let mut told: Vec<Happening> = Vec::new();
    for (name, owner) in after {
        let known = before.get(name);
        if known.is_none() {
            told.push(news(name, TriggerNews::Added));
        }
        if let Some(node) = owner.filter(|_| known.is_none_or(|known| known != owner)) {
            told.push(news(name, TriggerNews::Claimed { node }));
        }
    }
    let gone = before.keys().filter(|name| !after.contains_key(*name));
    told.extend(gone.map(|name| news(name, TriggerNews::Removed)));
    told
}

//! Tasks that have ended and were handed to the archive. Of each a stub stays here until the sweep: all that a command can
//! still ask, so that nothing is read from the archive to apply one.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{cmp::Reverse, collections::BTreeMap, fmt, sync::Arc};
use uuid::Uuid;

use super::{ListFilter, State, TaskKey, check_message, done, key};
use crate::{
    AgentName, Applied, BlobHash, ContextId, Digest, Message, ParentLink, Principal, Rejection, Reply, Stamp, Task,
    TaskId, TaskState, Timestamp, VShard, chunked::Chunked, limits,
};

/// What the state keeps of a task whose record is in the archive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stub {
    /// The conversation.
    #[serde(rename = "c")]
    pub context: ContextId,
    /// Who did it.
    #[serde(rename = "a")]
    pub agent: AgentName,
    /// Who may see it.
    #[serde(rename = "o")]
    pub owner: Principal,
    /// The delegation that made it.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentLink>,
    /// How it ended.
    #[serde(rename = "s")]
    pub state: TaskState,
    /// When it ended.
    #[serde(rename = "t")]
    pub at: Timestamp,
    /// Index of its last event.
    #[serde(rename = "g")]
    pub generation: u64,
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    rest: Option<Box<Rest>>,
}

/// What few tasks have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Rest {
    /// The blobs that it names.
    #[serde(rename = "b", default, skip_serializing_if = "BTreeMap::is_empty")]
    blobs: BTreeMap<BlobHash, u64>,
    /// Decisions about its steps: each may be proposed again.
    #[serde(rename = "d", default, skip_serializing_if = "Vec::is_empty")]
    resolved: Vec<Uuid>,
}

impl Stub {
    fn of(task: &Task) -> Self {
        let resolved = task.journal.iter().filter_map(|step| step.resolved.as_ref().map(|resolved| resolved.request));
        let rest = Rest { blobs: task.blobs.clone(), resolved: resolved.collect() };
        Self {
            context: task.context.clone(),
            agent: task.agent.clone(),
            owner: task.owner.clone(),
            parent: task.parent.clone(),
            state: task.status.state,
            at: task.status.at,
            generation: task.generation,
            rest: (rest != Rest::default()).then(|| Box::new(rest)),
        }
    }

    pub(super) fn blobs(&self) -> impl Iterator<Item = (&BlobHash, &u64)> {
        self.rest.iter().flat_map(|rest| &rest.blobs)
    }

    fn was_resolved_by(&self, request: Uuid) -> bool {
        self.rest.as_ref().is_some_and(|rest| rest.resolved.contains(&request))
    }
}

/// The first bytes of a hash of what the tasks of a group have in common.
type Group = u64;

/// All stubs, and the orders in which they are listed.
#[derive(Debug, Clone, Default)]
pub(super) struct Archived {
    stubs: Chunked<TaskKey, Stub>,
    /// By when they ended.
    order: Chunked<(Timestamp, TaskId), ()>,
    /// The same within an agent, a context, each end that is not the usual one, and each owner that is not the usual one.
    groups: Chunked<(Group, Timestamp, TaskId), ()>,
    counts: BTreeMap<Principal, BTreeMap<(AgentName, TaskState), usize>>,
}

/// The orders follow from the stubs.
impl PartialEq for Archived {
    fn eq(&self, other: &Self) -> bool {
        self.stubs == other.stubs
    }
}

impl Serialize for Archived {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.stubs.iter().map(|((_, id), stub)| (id, stub)))
    }
}

impl<'de> Deserialize<'de> for Archived {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Stubs;
        impl<'de> de::Visitor<'de> for Stubs {
            type Value = Archived;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the stubs of archived tasks")
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut entries: A) -> Result<Archived, A::Error> {
                let mut archived = Archived::default();
                while let Some((id, stub)) = entries.next_element()? {
                    archived.insert(id, stub);
                }
                Ok(archived)
            }
        }
        deserializer.deserialize_seq(Stubs)
    }
}

impl Archived {
    pub(super) fn is_empty(&self) -> bool {
        self.stubs.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.stubs.len()
    }

    pub(super) fn get(&self, id: TaskId) -> Option<&Stub> {
        self.stubs.get(&key(id))
    }

    pub(super) fn oldest(&self) -> Option<(Timestamp, TaskId)> {
        self.order.iter().next().map(|(first, ())| *first)
    }

    fn insert(&mut self, id: TaskId, stub: Stub) {
        self.order.insert((stub.at, id), ());
        for group in groups_of(&stub) {
            self.groups.insert((group, stub.at, id), ());
        }
        let counts = self.counts.entry(stub.owner.clone()).or_default();
        *counts.entry((stub.agent.clone(), stub.state)).or_default() += 1;
        self.stubs.insert(key(id), stub);
    }

    pub(super) fn remove(&mut self, id: TaskId) -> Option<Stub> {
        let stub = self.stubs.remove(&key(id))?;
        self.order.remove(&(stub.at, id));
        for group in groups_of(&stub) {
            self.groups.remove(&(group, stub.at, id));
        }
        if let Some(counts) = self.counts.get_mut(&stub.owner) {
            let name = (stub.agent.clone(), stub.state);
            if let Some(count) = counts.get_mut(&name) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&name);
                }
            }
            if counts.is_empty() {
                self.counts.remove(&stub.owner);
            }
        }
        Some(stub)
    }

    /// What a filter selects of an owner's stubs, or of all, below a position, newest first.
    fn selected<'a>(
        &'a self,
        owner: Option<&'a Principal>,
        filter: &'a ListFilter,
        below: Option<(Timestamp, TaskId)>,
    ) -> impl Iterator<Item = (Timestamp, TaskId)> + use<'a> {
        let (at, id) = below.unwrap_or((Timestamp(u64::MAX), TaskId::from_uuid(Uuid::max())));
        let group = narrowest(owner, filter);
        let of_group = group.map(|group| {
            let entries = self.groups.below(&(group, at, id)).take_while(move |((other, _, _), ())| *other == group);
            entries.map(|((_, at, id), ())| (*at, *id))
        });
        let of_all = group.is_none().then(|| self.order.below(&(at, id)).map(|(position, ())| *position));
        let oldest = filter.status_after.unwrap_or(Timestamp(0));
        let positions = of_group.into_iter().flatten().chain(of_all.into_iter().flatten());
        positions.take_while(move |(at, _)| *at >= oldest).filter(move |(_, id)| {
            self.get(*id).is_some_and(|stub| is_of(owner, &stub.owner) && filter.selects_stub(stub))
        })
    }

    /// How many of an owner's stubs, or of all, a filter selects.
    fn count(&self, owner: Option<&Principal>, filter: &ListFilter) -> usize {
        if filter.context.is_some() || filter.status_after.is_some() {
            return self.selected(owner, filter, None).count();
        }
        let of_one = owner.and_then(|owner| self.counts.get(owner)).into_iter().flatten();
        let of_all = self.counts.values().filter(|_| owner.is_none()).flatten();
        let counts = of_one.chain(of_all);
        let wanted = counts.filter(|((agent, state), _)| {
            filter.agent.as_ref().is_none_or(|wanted| wanted == agent)
                && filter.state.is_none_or(|wanted| wanted == *state)
        });
        wanted.map(|(_, count)| count).sum()
    }
}

fn groups_of(stub: &Stub) -> impl Iterator<Item = Group> {
    let unusual = (stub.state != TaskState::Completed).then(|| group("state", &format!("{:?}", stub.state)));
    let agent = group("agent", stub.agent.as_str());
    let context = group("context", stub.context.as_str());
    [Some(agent), Some(context), unusual, of_owner(&stub.owner)].into_iter().flatten()
}

/// The group of an owner, who so never waits for a look through what others own. Where nothing else is configured all is
/// the operator's, and a group would be all once more.
fn of_owner(owner: &Principal) -> Option<Group> {
    (*owner != Principal::Operator).then(|| group("owner", &owner.to_string()))
}

/// The smallest group that holds all that a filter selects for an owner, or for who sees all.
fn narrowest(owner: Option<&Principal>, filter: &ListFilter) -> Option<Group> {
    let unusual = filter.state.filter(|state| *state != TaskState::Completed);
    let context = filter.context.as_ref().map(|context| group("context", context.as_str()));
    let state = unusual.map(|state| group("state", &format!("{state:?}")));
    let agent = filter.agent.as_ref().map(|agent| group("agent", agent.as_str()));
    context.or(owner.and_then(of_owner)).or(state).or(agent)
}

/// Whether a task of `task_owner` is one of an owner's, or of all.
fn is_of(owner: Option<&Principal>, task_owner: &Principal) -> bool {
    owner.is_none_or(|owner| owner == task_owner)
}

/// Two names may have one hash: whoever reads a group looks at each stub.
fn group(kind: &str, name: &str) -> Group {
    let mut hasher = blake3::Hasher::new();
    for text in [kind, name] {
        hasher.update(text.as_bytes());
        hasher.update(&[0]);
    }
    let mut first = [0; 8];
    hasher.finalize_xof().fill(&mut first);
    u64::from_le_bytes(first)
}

/// Where the record of a task is.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// Here.
    Live(Arc<Task>),
    /// In the archive.
    Archived,
}

/// One task of a listing.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its id.
    pub id: TaskId,
    /// Since when it has its status.
    pub at: Timestamp,
    /// The task; none when its record is in the archive.
    pub task: Option<Arc<Task>>,
}

/// Which tasks are on a page, newest status first. The archive has the records of some of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// The tasks.
    pub rows: Vec<Row>,
    /// Whether there are more behind them.
    pub more: bool,
    /// How many tasks the filter selects on all pages.
    pub total: usize,
}

/// One page of a listing, newest status first.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskPage {
    /// The tasks.
    pub tasks: Vec<Arc<Task>>,
    /// Where the next page goes on, if there is one.
    pub next: Option<(Timestamp, TaskId)>,
    /// How many tasks the filter selects on all pages.
    pub total: usize,
}

impl Listing {
    /// The tasks whose records are in the archive, in order.
    pub fn archived(&self) -> Vec<TaskId> {
        self.rows.iter().filter(|row| row.task.is_none()).map(|row| row.id).collect()
    }

    /// The page, with what the archive gave. A task that it does not have (any more) is left out; the page ends before one
    /// that was not asked for. It also ends early before the task with which it would exceed [`limits::MAX_PAGE_BYTES`] of
    /// what `weigh` says is shown of each. The first one is always on it.
    pub fn page(self, found: &BTreeMap<TaskId, Option<Arc<Task>>>, weigh: impl Fn(&Task) -> usize) -> TaskPage {
        let (rows, total) = (self.rows.len(), self.total);
        let mut tasks: Vec<Arc<Task>> = Vec::new();
        let (mut bytes, mut taken, mut last) = (0, 0, None);
        for row in self.rows {
            let task = match row.task {
                Some(task) => Some(task),
                None => match found.get(&row.id) {
                    Some(found) => found.clone(),
                    None => break,
                },
            };
            if let Some(task) = task {
                bytes += weigh(&task);
                if bytes > limits::MAX_PAGE_BYTES && !tasks.is_empty() {
                    break;
                }
                tasks.push(task);
            }
            taken += 1;
            last = Some((row.at, row.id));
        }
        let more = self.more || taken < rows;
        TaskPage { tasks, next: last.filter(|_| more), total }
    }
}

impl ListFilter {
    fn selects_stub(&self, stub: &Stub) -> bool {
        self.context.as_ref().is_none_or(|context| *context == stub.context)
            && self.state.is_none_or(|state| state == stub.state)
            && self.status_after.is_none_or(|after| stub.at >= after)
            && self.agent.as_ref().is_none_or(|agent| *agent == stub.agent)
    }
}

impl State {
    /// What is kept of a task whose record is in the archive.
    pub fn stub(&self, id: TaskId) -> Option<&Stub> {
        self.archived.get(id)
    }

    /// [`State::stub`] as a principal may see it: another's looks as if it did not exist.
    pub fn stub_for(&self, by: &Principal, id: TaskId) -> Option<&Stub> {
        self.stub(id).filter(|stub| by.may_act_on(&stub.owner))
    }

    /// Where the record of a task is, whoever owns it; none if there is no such task.
    pub fn record(&self, id: TaskId) -> Option<Record> {
        let live = self.tasks.get(&key(id)).map(|task| Record::Live(Arc::clone(task)));
        live.or_else(|| self.stub(id).map(|_| Record::Archived))
    }

    /// [`State::record`] as a principal may see it: another's looks as if it did not exist.
    pub fn record_for(&self, by: &Principal, id: TaskId) -> Option<Record> {
        if self.asked_task(by, id).is_some() {
            return self.record(id);
        }
        let owner = self.task(id).map(|task| &task.owner).or_else(|| self.stub(id).map(|stub| &stub.owner))?;
        by.may_act_on(owner).then(|| self.record(id)).flatten()
    }

    /// The state of a task, wherever its record is.
    pub fn state_of(&self, id: TaskId) -> Option<TaskState> {
        self.task(id).map(|task| task.status.state).or_else(|| self.stub(id).map(|stub| stub.state))
    }

    /// Whether a task is known, wherever its record is.
    pub fn knows_task(&self, id: TaskId) -> bool {
        self.state_of(id).is_some()
    }

    /// How many tasks are in the archive.
    pub fn archived_count(&self) -> usize {
        self.archived.len()
    }

    /// All stubs, by virtual shard and id.
    pub fn stubs(&self) -> impl Iterator<Item = (TaskId, &Stub)> {
        self.archived.stubs.iter().map(|((_, id), stub)| (*id, stub))
    }

    /// The stubs behind a task in the order of [`State::stubs`], or from the first one on.
    pub fn stubs_behind(&self, id: Option<TaskId>) -> impl Iterator<Item = TaskId> + '_ {
        let from = id.map_or((VShard(0), TaskId::from_uuid(Uuid::nil())), key);
        self.archived.stubs.from(&from).map(|((_, id), _)| *id).filter(move |other| Some(*other) != id)
    }

    /// The tasks that a task delegated to agents of this mesh, wherever their records are.
    pub fn children_ids(&self, task: TaskId) -> impl Iterator<Item = TaskId> + '_ {
        self.children.get(&task).into_iter().flatten().copied()
    }

    /// The tasks that should go to the archive: those that ended `after_ms` ago or earlier, and the oldest of more than
    /// [`limits::MAX_ENDED_IN_MEMORY`]; as many as one entry takes.
    pub fn archivable(&self, now: Timestamp, after_ms: u64) -> Vec<TaskId> {
        let excess = self.ended.len().saturating_sub(limits::MAX_ENDED_IN_MEMORY);
        let due = |(number, (at, _)): &(usize, &(Timestamp, TaskId))| {
            *number < excess || now.0.saturating_sub(at.0) >= after_ms
        };
        let due = self.ended.iter().enumerate().take_while(due).map(|(_, (_, id))| *id);
        due.take(limits::MAX_ARCHIVED_PER_ENTRY).collect()
    }

    /// The records that a command to archive these tasks takes out of this state, as they are.
    pub fn to_archive(&self, ids: &[TaskId]) -> Vec<Arc<Task>> {
        let ids = if ids.len() > limits::MAX_ARCHIVED_PER_ENTRY { &[] } else { ids };
        let mut tasks: Vec<Arc<Task>> = ids.iter().filter_map(|id| self.ended_task(*id)).cloned().collect();
        tasks.dedup_by_key(|task| task.id);
        tasks
    }

    /// The archived tasks that a sweep may remove, and perhaps more.
    pub fn first_archived(&self) -> Vec<TaskId> {
        self.archived.order.iter().take(limits::MAX_SWEPT_PER_ENTRY).map(|((_, id), ())| *id).collect()
    }

    fn ended_task(&self, id: TaskId) -> Option<&Arc<Task>> {
        self.tasks.get(&key(id)).filter(|task| task.status.state.is_terminal())
    }

    /// One page of the tasks that a principal may see, newest status first.
    pub fn list(&self, by: &Principal, filter: &ListFilter, page_size: usize) -> Listing {
        let owner = by.owner();
        let owner = (!by.is_operator()).then_some(&owner);
        let mine = self.tasks.values().filter(|task| is_of(owner, &task.owner) && filter.selects(task));
        let mut live: Vec<&Arc<Task>> = mine.collect();
        let total = live.len() + self.archived.count(owner, filter);
        live.retain(|task| filter.after.is_none_or(|after| (task.status.at, task.id) < after));
        live.sort_unstable_by_key(|task| Reverse((task.status.at, task.id)));
        let mut live = live.into_iter().peekable();
        let mut archived = self.archived.selected(owner, filter, filter.after).peekable();
        let mut rows = Vec::new();
        loop {
            let newest = live.peek().map(|task| (task.status.at, task.id));
            let (Some(next), is_live) = (match archived.peek() {
                Some(stub) if newest.is_none_or(|newest| newest < *stub) => (Some(*stub), false),
                Some(_) | None => (newest, true),
            }) else {
                return Listing { rows, more: false, total };
            };
            if rows.len() == page_size {
                return Listing { rows, more: true, total };
            }
            let task = if is_live { live.next().cloned() } else { archived.next().and(None) };
            rows.push(Row { id: next.1, at: next.0, task });
        }
    }

    /// Records of ended tasks leave for the archive. Others of these ids stay as they are.
    pub(super) fn archive(&mut self, ids: &[TaskId]) -> Result<Applied, Rejection> {
        if ids.len() > limits::MAX_ARCHIVED_PER_ENTRY {
            let limit = limits::MAX_ARCHIVED_PER_ENTRY as u64;
            return Err(Rejection::TooLarge { what: "number of tasks to archive".into(), limit });
        }
        for id in ids {
            if self.ended_task(*id).is_none() {
                continue;
            }
            let Some(task) = self.tasks.remove(&key(*id)) else { continue };
            if !self.ended.remove(&(task.status.at, *id)) {
                self.ended.retain(|(_, other)| other != id);
            }
            self.note_messages(&task);
            self.archived.insert(*id, Stub::of(&task));
        }
        Ok(done(Vec::new()))
    }

    /// What versions noted of messages only with the task is noted with them: the task's history goes.
    fn note_messages(&mut self, task: &Task) {
        for message in &task.history {
            let name = (task.owner.clone(), message.message_id.clone());
            let Some(sent) = self.dedup.get_mut(&name).filter(|sent| sent.is_of(task.id)) else { continue };
            if sent.note(Digest::of_message(message), task.status.at) {
                self.expiring.insert((task.status.at, name.0, name.1));
            }
        }
    }

    /// A message to a task that may be in the archive, and is not here.
    pub(super) fn continue_ended(
        &self,
        by: &Principal,
        id: TaskId,
        message: &Message,
        stamp: Stamp,
    ) -> Result<Applied, Rejection> {
        let stub = self.stub_for(by, id).ok_or(Rejection::UnknownTask { task: id })?;
        if let Some(task) = self.sent_before(&stub.owner, message, None, stamp.at)? {
            return Ok(Applied { reply: Reply::Continued { task }, effects: Vec::new() });
        }
        check_message(message)?;
        if message.context_id.as_ref().is_some_and(|context| *context != stub.context) {
            return Err(Rejection::ContextMismatch { task: id });
        }
        Err(Rejection::TaskEnded { task: id, state: stub.state })
    }

    /// A cancel of a task that may be in the archive, and is not here.
    pub(super) fn cancel_ended(&self, by: &Principal, id: TaskId) -> Result<Applied, Rejection> {
        let stub = self.stub_for(by, id).ok_or(Rejection::UnknownTask { task: id })?;
        if stub.state == TaskState::Canceled {
            return Ok(done(Vec::new()));
        }
        Err(Rejection::NotCancelable { task: id, state: stub.state })
    }

    /// A decision about a step of a task that may be in the archive, and is not here.
    pub(super) fn resolve_ended(&self, by: &Principal, id: TaskId, request: Uuid) -> Result<Applied, Rejection> {
        let stub = self.stub_for(by, id).ok_or(Rejection::UnknownTask { task: id })?;
        if stub.was_resolved_by(request) {
            return Ok(Applied { reply: Reply::Continued { task: id }, effects: Vec::new() });
        }
        Err(Rejection::NotInDoubt { task: id, state: stub.state })
    }

    /// What a former owner tells of a task that may be in the archive, and is not here.
    pub(super) fn refuse_of_ended(&self, id: TaskId) -> Rejection {
        match self.stub(id) {
            Some(stub) => Rejection::TaskEnded { task: id, state: stub.state },
            None => Rejection::UnknownTask { task: id },
        }
    }
}

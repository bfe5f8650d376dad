//! What the state keeps of each task whose record is in the archive, in few bytes: there are up to a million.
//!
//! ```text
//! kept     by shard and id                 64 bytes: end, last event, context, and one name of owner and agent
//! ends     by owner and agent, end, id     28 bytes
//! others   the same, only of ends that are not the usual one
//! contexts by hash of the context, id      20 bytes
//! ```
//! Owners and agents are few: their names are kept once. What few tasks have (blobs, a parent, decisions, a context that is
//! no UUID) lies in a box of its own.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    fmt,
    sync::Arc,
};
use uuid::Uuid;

use super::ListFilter;
use crate::{
    AgentName, BlobHash, ContextId, ParentLink, Principal, Task, TaskId, TaskState, Timestamp, chunked::Chunked,
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
    rest: Option<Rest>,
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
    pub(super) fn of(task: &Task) -> Self {
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
            rest: (rest != Rest::default()).then_some(rest),
        }
    }

    pub(super) fn blobs(&self) -> impl Iterator<Item = (&BlobHash, &u64)> {
        self.rest.iter().flat_map(|rest| &rest.blobs)
    }

    pub(super) fn was_resolved_by(&self, request: Uuid) -> bool {
        self.rest.as_ref().is_some_and(|rest| rest.resolved.contains(&request))
    }
}

/// A stub in memory.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    of: Arc<Names>,
    at: Timestamp,
    extra: Option<Box<Extra>>,
    /// Of a context that is not the text of a UUID it is nil, and the text is with the extras.
    context: Uuid,
    /// A task makes fewer events than this can count.
    generation: u32,
    pub(super) state: TaskState,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Extra {
    context: Option<ContextId>,
    parent: Option<ParentLink>,
    rest: Option<Rest>,
}

/// The owner and the agent of many tasks.
#[derive(Debug, PartialEq)]
pub(super) struct Names {
    number: u32,
    pub(super) owner: Principal,
    agent: AgentName,
}

impl PartialEq for Kept {
    /// The numbers of names do not count.
    fn eq(&self, other: &Self) -> bool {
        let of = |kept: &Self| (kept.at, kept.context, kept.generation, kept.state);
        of(self) == of(other)
            && self.extra == other.extra
            && self.of.owner == other.of.owner
            && self.of.agent == other.of.agent
    }
}

impl Kept {
    fn new(stub: Stub, of: Arc<Names>) -> Self {
        let Stub { context, parent, state, at, generation, rest, .. } = stub;
        let uuid = short(&context);
        let extra = Extra { context: uuid.is_nil().then_some(context), parent, rest };
        Self {
            of,
            at,
            extra: (extra != Extra::default()).then(|| Box::new(extra)),
            context: uuid,
            generation: u32::try_from(generation).unwrap_or(u32::MAX),
            state,
        }
    }

    pub(super) fn stub(&self) -> Stub {
        let extra = self.extra.as_deref().cloned().unwrap_or_default();
        Stub {
            context: extra.context.unwrap_or_else(|| long(self.context)),
            agent: self.of.agent.clone(),
            owner: self.of.owner.clone(),
            parent: extra.parent,
            state: self.state,
            at: self.at,
            generation: self.generation.into(),
            rest: extra.rest,
        }
    }

    pub(super) fn owner(&self) -> &Principal {
        &self.of.owner
    }

    fn is_in(&self, context: &ContextId) -> bool {
        match self.extra.as_ref().and_then(|extra| extra.context.as_ref()) {
            Some(own) => own == context,
            None => self.context == short(context),
        }
    }

    fn is_selected(&self, owner: Option<&Principal>, filter: &ListFilter) -> bool {
        owner.is_none_or(|owner| self.of.owner == *owner)
            && filter.context.as_ref().is_none_or(|context| self.is_in(context))
            && filter.state.is_none_or(|state| state == self.state)
            && filter.status_after.is_none_or(|after| self.at >= after)
            && filter.agent.as_ref().is_none_or(|agent| *agent == self.of.agent)
    }
}

/// The UUID whose text a context is; nil if it is none's.
fn short(context: &ContextId) -> Uuid {
    let uuid = Uuid::try_parse(context.as_str()).unwrap_or_default();
    let mut text = Uuid::encode_buffer();
    if context.as_str() == uuid.hyphenated().encode_lower(&mut text) { uuid } else { Uuid::nil() }
}

fn long(context: Uuid) -> ContextId {
    context.to_string().try_into().expect("the text of a UUID is printable and short")
}

/// The id with the byte of its virtual shard first: by shard and id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key([u8; 16]);

impl Key {
    const MIN: Self = Self([0; 16]);

    fn of(id: TaskId) -> Self {
        let mut bytes = *id.as_uuid().as_bytes();
        bytes.rotate_right(1);
        Self(bytes)
    }

    fn id(self) -> TaskId {
        let mut bytes = self.0;
        bytes.rotate_left(1);
        TaskId::from_uuid(Uuid::from_bytes(bytes))
    }
}

/// Where a task stands among those of an owner and an agent. The time is big-endian: so it needs no padding.
type End = (u32, [u8; 8], TaskId);

/// The first bytes of a hash of the context.
type Context = u32;

/// All stubs, and the orders in which they are listed.
#[derive(Debug, Clone, Default)]
pub(super) struct Archived {
    kept: Chunked<Key, Kept>,
    ends: Chunked<End, ()>,
    /// Of those that did not end as most do.
    others: Chunked<End, ()>,
    contexts: Chunked<(Context, TaskId), ()>,
    names: BTreeMap<Principal, BTreeMap<AgentName, Tasks>>,
    numbers: BTreeSet<u32>,
    /// The first end of each number.
    firsts: BTreeSet<(Timestamp, TaskId, u32)>,
}

/// The tasks of an owner and an agent.
#[derive(Debug, Clone)]
struct Tasks {
    of: Arc<Names>,
    counts: BTreeMap<TaskState, usize>,
}

/// The orders follow from the stubs.
impl PartialEq for Archived {
    fn eq(&self, other: &Self) -> bool {
        self.kept == other.kept
    }
}

impl Serialize for Archived {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.kept.iter().map(|(key, kept)| (key.id(), kept.stub())))
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
                let mut all = Vec::new();
                while let Some((id, stub)) = entries.next_element::<(TaskId, Stub)>()? {
                    all.push((Key::of(id), archived.take(stub)));
                }
                archived.fill(all);
                Ok(archived)
            }
        }
        deserializer.deserialize_seq(Stubs)
    }
}

impl Archived {
    pub(super) fn is_empty(&self) -> bool {
        self.kept.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(super) fn get(&self, id: TaskId) -> Option<&Kept> {
        self.kept.get(&Key::of(id))
    }

    /// The ids behind one, or from the first one on, by virtual shard and id.
    pub(super) fn ids_behind(&self, id: Option<TaskId>) -> impl Iterator<Item = TaskId> + '_ {
        let from = id.map_or(Key::MIN, Key::of);
        self.kept.from(&from).map(|(key, _)| key.id()).filter(move |other| Some(*other) != id)
    }

    pub(super) fn oldest(&self) -> Option<(Timestamp, TaskId)> {
        self.firsts.first().map(|(at, id, _)| (*at, *id))
    }

    /// Those that ended first, in that order.
    pub(super) fn first_ended(&self, count: usize) -> Vec<TaskId> {
        // Only one whose first is among the first `count` firsts has any of them.
        let orders = self.firsts.iter().take(count).map(|(at, id, number)| {
            let entries = self.ends.from(&end(*number, *at, *id));
            let own = entries.take_while(move |((other, _, _), ())| other == number);
            own.map(|((_, at, id), ())| Reverse((time(*at), *id)))
        });
        Merged::of(orders).take(count).map(|Reverse((_, id))| id).collect()
    }

    pub(super) fn insert(&mut self, id: TaskId, stub: Stub) {
        let kept = self.take(stub);
        let end = end(kept.of.number, kept.at, id);
        let first = self.first_of(kept.of.number);
        if first.is_none_or(|first| (kept.at, id) < first) {
            if let Some((at, id)) = first {
                self.firsts.remove(&(at, id, kept.of.number));
            }
            self.firsts.insert((kept.at, id, kept.of.number));
        }
        self.ends.insert(end, ());
        if kept.state != TaskState::Completed {
            self.others.insert(end, ());
        }
        self.contexts.insert((context_of(&kept), id), ());
        self.kept.insert(Key::of(id), kept);
    }

    pub(super) fn remove(&mut self, id: TaskId) -> Option<Stub> {
        let kept = self.kept.remove(&Key::of(id))?;
        let number = kept.of.number;
        let end = end(number, kept.at, id);
        self.ends.remove(&end);
        if kept.state != TaskState::Completed {
            self.others.remove(&end);
        }
        self.contexts.remove(&(context_of(&kept), id));
        if self.firsts.remove(&(kept.at, id, number))
            && let Some((at, id)) = self.first_of(number)
        {
            self.firsts.insert((at, id, number));
        }
        self.give_back(&kept);
        Some(kept.stub())
    }

    /// What a filter selects of an owner's stubs, or of all, below a position, newest first.
    pub(super) fn selected<'a>(
        &'a self,
        owner: Option<&'a Principal>,
        filter: &'a ListFilter,
        below: Option<(Timestamp, TaskId)>,
    ) -> impl Iterator<Item = (Timestamp, TaskId)> + use<'a> {
        let below = below.unwrap_or((Timestamp(u64::MAX), TaskId::from_uuid(Uuid::max())));
        let in_context = filter.context.as_ref().map(|context| self.in_context(context, below));
        let in_order = filter.context.is_none().then(|| self.newest(owner, filter, below));
        let oldest = filter.status_after.unwrap_or(Timestamp(0));
        let positions = in_context.into_iter().flatten().chain(in_order.into_iter().flatten());
        positions
            .take_while(move |(at, _)| *at >= oldest)
            .filter(move |(_, id)| self.get(*id).is_some_and(|kept| kept.is_selected(owner, filter)))
    }

    /// How many of an owner's stubs, or of all, a filter selects.
    pub(super) fn count(&self, owner: Option<&Principal>, filter: &ListFilter) -> usize {
        if filter.context.is_some() || filter.status_after.is_some() {
            return self.selected(owner, filter, None).count();
        }
        let tasks = self.tasks_of(owner, filter);
        let counts = tasks.flat_map(|(_, tasks)| &tasks.counts);
        counts.filter(|(state, _)| filter.state.is_none_or(|wanted| wanted == **state)).map(|(_, count)| count).sum()
    }

    /// A conversation is read whole: it is short.
    fn in_context(
        &self,
        context: &ContextId,
        below: (Timestamp, TaskId),
    ) -> impl Iterator<Item = (Timestamp, TaskId)> + use<> {
        let hash = hash_of(context);
        let ids = self.contexts.from(&(hash, TaskId::from_uuid(Uuid::nil())));
        let ids = ids.take_while(|((other, _), ())| *other == hash).map(|((_, id), ())| *id);
        let positions = ids.filter_map(|id| Some((self.get(id)?.at, id))).filter(|position| *position < below);
        let mut positions: Vec<(Timestamp, TaskId)> = positions.collect();
        positions.sort_unstable();
        positions.into_iter().rev()
    }

    /// Through the orders of all agents that a filter leaves, side by side.
    fn newest<'a>(
        &'a self,
        owner: Option<&'a Principal>,
        filter: &'a ListFilter,
        (at, id): (Timestamp, TaskId),
    ) -> impl Iterator<Item = (Timestamp, TaskId)> + use<'a> {
        let is_usual = filter.state.is_none_or(|state| state == TaskState::Completed);
        let order = if is_usual { &self.ends } else { &self.others };
        let tasks = self.tasks_of(owner, filter);
        Merged::of(tasks.map(move |(_, tasks)| {
            let number = tasks.of.number;
            let entries = order.below(&end(number, at, id)).take_while(move |((other, _, _), ())| *other == number);
            entries.map(|((_, at, id), ())| (time(*at), *id))
        }))
    }

    /// Those of an owner, or of all, and of the agent that a filter names.
    fn tasks_of<'a>(
        &'a self,
        owner: Option<&'a Principal>,
        filter: &'a ListFilter,
    ) -> impl Iterator<Item = (&'a AgentName, &'a Tasks)> + use<'a> {
        let of_one = owner.and_then(|owner| self.names.get(owner)).into_iter().flatten();
        let of_all = self.names.values().filter(move |_| owner.is_none()).flatten();
        of_one.chain(of_all).filter(|(agent, _)| filter.agent.as_ref().is_none_or(|wanted| wanted == *agent))
    }

    fn first_of(&self, number: u32) -> Option<(Timestamp, TaskId)> {
        let first = self.ends.from(&end(number, Timestamp(0), TaskId::from_uuid(Uuid::nil()))).next();
        first.filter(|((other, _, _), ())| *other == number).map(|((_, at, id), ())| (time(*at), *id))
    }

    /// Counts a stub, and gives it the one name of its owner and agent.
    fn take(&mut self, stub: Stub) -> Kept {
        let of_owner = match self.names.get_mut(&stub.owner) {
            Some(of_owner) => of_owner,
            None => self.names.entry(stub.owner.clone()).or_default(),
        };
        let tasks = match of_owner.get_mut(&stub.agent) {
            Some(tasks) => tasks,
            None => {
                let number = free(&self.numbers);
                self.numbers.insert(number);
                let of = Arc::new(Names { number, owner: stub.owner.clone(), agent: stub.agent.clone() });
                of_owner.entry(stub.agent.clone()).or_insert(Tasks { of, counts: BTreeMap::new() })
            }
        };
        *tasks.counts.entry(stub.state).or_default() += 1;
        let of = Arc::clone(&tasks.of);
        Kept::new(stub, of)
    }

    fn give_back(&mut self, kept: &Kept) {
        let Names { number, owner, agent } = kept.of.as_ref();
        let Some(of_owner) = self.names.get_mut(owner) else { return };
        let Some(tasks) = of_owner.get_mut(agent) else { return };
        if let Some(count) = tasks.counts.get_mut(&kept.state) {
            *count -= 1;
            if *count == 0 {
                tasks.counts.remove(&kept.state);
            }
        }
        if tasks.counts.is_empty() {
            of_owner.remove(agent);
            self.numbers.remove(number);
        }
        if of_owner.is_empty() {
            self.names.remove(owner);
        }
    }

    /// Makes the orders of stubs that were taken, all at once.
    fn fill(&mut self, all: Vec<(Key, Kept)>) {
        let end_of = |(key, kept): &(Key, Kept)| (end(kept.of.number, kept.at, key.id()), ());
        self.ends = all.iter().map(end_of).collect();
        self.others = all.iter().filter(|(_, kept)| kept.state != TaskState::Completed).map(end_of).collect();
        self.contexts = all.iter().map(|(key, kept)| ((context_of(kept), key.id()), ())).collect();
        self.kept = all.into_iter().collect();
        let firsts = self.numbers.iter().filter_map(|number| self.first_of(*number).map(|(at, id)| (at, id, *number)));
        self.firsts = firsts.collect();
    }
}

fn end(number: u32, at: Timestamp, id: TaskId) -> End {
    (number, at.0.to_be_bytes(), id)
}

fn time(at: [u8; 8]) -> Timestamp {
    Timestamp(u64::from_be_bytes(at))
}

/// The lowest number above all that are used, or one that has become free.
fn free(numbers: &BTreeSet<u32>) -> u32 {
    let above = numbers.last().map_or(Some(0), |last| last.checked_add(1));
    above.unwrap_or_else(|| (0..u32::MAX).find(|number| !numbers.contains(number)).unwrap_or(u32::MAX))
}

fn context_of(kept: &Kept) -> Context {
    match kept.extra.as_ref().and_then(|extra| extra.context.as_ref()) {
        Some(context) => hash_of(context),
        None => hash_of(&long(kept.context)),
    }
}

/// Two contexts may have one hash: whoever reads one looks at each stub.
fn hash_of(context: &ContextId) -> Context {
    let mut first = [0; 4];
    blake3::Hasher::new().update(context.as_str().as_bytes()).finalize_xof().fill(&mut first);
    u32::from_le_bytes(first)
}

/// Several orders as one: the greatest of what is next comes first.
struct Merged<I: Iterator> {
    orders: Vec<I>,
    next: BinaryHeap<(I::Item, usize)>,
}

impl<I: Iterator<Item: Ord>> Merged<I> {
    fn of(orders: impl Iterator<Item = I>) -> Self {
        let mut orders: Vec<I> = orders.collect();
        let next = orders.iter_mut().enumerate().filter_map(|(number, order)| Some((order.next()?, number)));
        Self { next: next.collect(), orders }
    }
}

impl<I: Iterator<Item: Ord>> Iterator for Merged<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        let (item, number) = self.next.pop()?;
        let following = self.orders.get_mut(number).and_then(Iterator::next);
        self.next.extend(following.map(|following| (following, number)));
        Some(item)
    }
}

#[cfg(test)]
mod tests;

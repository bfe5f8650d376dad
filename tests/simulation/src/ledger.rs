//! What clients, owners and subscribers were told, and whether it fits: every promise is checked here, while the world runs
//! and after it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use towline_core::{
    BlobHash, BootId, Content, Epoch, Event, EventKind, NodeId, Part, State, Task, TaskId, TaskState, VShard,
};

use crate::{tasks, world};

/// More is not told of one run: what follows the first is mostly its consequence.
const MAX_WRONG: usize = 20;
/// A run has to have so many tasks, or it says nothing.
const LEAST_SUBMITTED: u32 = 40;
/// And so many faults must have hit.
const LEAST_FAULTS: u32 = 3;

/// The ledger, for everyone who tells it something.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<Ledger>>);

impl Shared {
    /// The ledger itself. Not to be held while anything else is waited for.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was seen.
#[derive(Default)]
pub struct Ledger {
    wrong: Vec<String>,
    /// Messages that were sent, and the task that one of them was told to have made.
    messages: BTreeMap<String, Option<TaskId>>,
    /// Tasks that a client knows, in the order in which it heard of them.
    acknowledged: Vec<TaskId>,
    canceled: BTreeSet<TaskId>,
    /// The last index that was applied anywhere: it is committed.
    applied: u64,
    tasks: BTreeMap<TaskId, Known>,
    /// Content that a task was seen to name.
    named: BTreeSet<BlobHash>,
    /// The last entry by which content was named that was looked at.
    named_at: u64,
    /// Nodes that were members and are none any more.
    removed: BTreeSet<NodeId>,
    /// The clock of the log may have passed a day: what is kept for a day may be forgotten.
    is_a_day_over: bool,
    /// What was counted, for the report of a run.
    pub counts: Counts,
}

/// What happened, in numbers.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    /// Messages that a client knows to be taken.
    pub submitted: u32,
    /// Answered cancels.
    pub canceled: u32,
    /// Linearizable reads.
    pub reads: u32,
    /// Events that subscribers were shown.
    pub followed: u32,
    /// Streams that went on through another node.
    pub resumed: u32,
    /// Outward acts of owners.
    pub acts: u32,
    /// Reports under an old epoch that were refused.
    pub refused: u32,
    /// Tasks that changed their owner.
    pub adopted: u32,
    /// Requests whose content was kept beside the log.
    pub kept: u32,
    /// Pieces of content that were read.
    pub contents: u32,
    /// Snapshots that were written, built or taken from another node.
    pub snapshots: u32,
    /// Changes of who belongs to the cluster, and how.
    pub changes: u32,
    /// Faults that hit something.
    pub faults: u32,
    /// Tasks that were in the archive in the end.
    pub archived: u32,
}

impl Counts {
    /// Whether a run did enough to say something.
    pub fn are_enough(&self) -> bool {
        self.submitted >= LEAST_SUBMITTED && self.faults >= LEAST_FAULTS
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { submitted, canceled, reads, followed, resumed, acts, refused, adopted, faults, .. } = self;
        let Self { kept, contents, snapshots, changes, archived, .. } = self;
        write!(
            f,
            "{faults} faults, {submitted} tasks ({archived} archived), {adopted} adoptions, {acts} acts, {refused} stale reports, \
             {canceled} cancels, {reads} reads, {followed} events in streams, {resumed} resumed, {kept} large parts kept, \
             {contents} read, {snapshots} snapshots, {changes} changes of members"
        )
    }
}

/// What is known of a task.
#[derive(Default)]
struct Known {
    /// A digest of each event, from the first on.
    events: Vec<u64>,
    ended: Option<(TaskState, u64)>,
    owners: BTreeMap<Epoch, (NodeId, BootId)>,
    acted: Option<(Epoch, NodeId, Duration)>,
    /// The epochs under which a run began.
    began: BTreeSet<Epoch>,
    /// The epoch under which the last chunk was written.
    wrote: Option<u64>,
}

/// What a read that begins must show at least.
#[derive(Debug, Clone, Copy)]
pub struct Floor {
    index: u64,
    acknowledged: usize,
}

impl Ledger {
    /// Something does not fit.
    pub fn wrong(&mut self, what: String) {
        let what = format!("{:?}: {what}", world::now());
        tracing::error!(what, "WRONG");
        if self.wrong.len() < MAX_WRONG {
            self.wrong.push(what);
        }
    }

    /// Everything that does not fit.
    pub fn is_wrong(&self) -> &[String] {
        &self.wrong
    }

    /// A message is sent, perhaps again.
    pub fn sends(&mut self, message: &str) {
        self.messages.entry(message.to_owned()).or_default();
    }

    /// A wall clock is set so far that the log may be a day further at once: a message may make another task.
    pub fn a_day_passes(&mut self) {
        self.is_a_day_over = true;
    }

    /// A client was told which task its message made.
    pub fn submitted(&mut self, message: &str, task: TaskId) {
        match self.messages.entry(message.to_owned()).or_default() {
            Some(first) if *first != task && !self.is_a_day_over => {
                let first = *first;
                self.wrong(format!("message {message} made task {first}, and task {task}"));
            }
            Some(_) => {}
            made @ None => {
                *made = Some(task);
                self.acknowledged.push(task);
                self.counts.submitted += 1;
            }
        }
    }

    /// A client was told that a task is canceled.
    pub fn was_canceled(&mut self, task: TaskId) {
        self.counts.canceled += 1;
        self.canceled.insert(task);
    }

    /// Content that a task names was read, and its hash was right.
    pub fn content(&mut self, task: TaskId, length: u64, read: usize) {
        self.counts.contents += 1;
        if read as u64 != length {
            self.wrong(format!("content of task {task} has {read} bytes, and {length} were named"));
        }
    }

    /// What a state names that was not looked at before.
    pub fn newly_named(&mut self, state: &State) -> Vec<BlobHash> {
        if state.blobs_named_at() <= self.named_at {
            return Vec::new();
        }
        self.named_at = state.blobs_named_at();
        state.named_blobs().map(|(hash, _)| hash).filter(|hash| self.named.insert(*hash)).collect()
    }

    /// Nodes that a state shows as removed, among these.
    pub fn were_removed(&mut self, nodes: impl Iterator<Item = NodeId>) {
        self.removed.extend(nodes);
    }

    /// Whether a node was removed.
    pub fn is_removed(&self, node: NodeId) -> bool {
        self.removed.contains(&node)
    }

    /// A task that clients know, by chance.
    pub fn some_task(&self, rng: &mut fastrand::Rng) -> Option<TaskId> {
        // Mostly recent ones: those still change.
        let last = self.acknowledged.len().checked_sub(1)?;
        let back = rng.usize(0..=last.min(40));
        self.acknowledged.get(last - back).copied()
    }

    /// A node has applied entries up to an index.
    pub fn applied(&mut self, index: u64) {
        self.applied = self.applied.max(index);
    }

    /// What a linearizable read that begins here must show.
    pub fn floor(&self) -> Floor {
        Floor { index: self.applied, acknowledged: self.acknowledged.len() }
    }

    /// A linearizable read has shown a state.
    pub fn read(&mut self, node: NodeId, floor: Floor, state: &State) {
        self.counts.reads += 1;
        let shown = state.last().index;
        if shown < floor.index {
            let index = floor.index;
            self.wrong(format!(
                "stale read through node {node}: it shows entry {shown}, entry {index} was applied before"
            ));
        }
        let recent = floor.acknowledged.saturating_sub(30);
        let lost: Vec<TaskId> = self.acknowledged[recent..floor.acknowledged]
            .iter()
            .filter(|task| tasks::state_of(state, **task).is_none())
            .copied()
            .collect();
        for task in lost {
            self.wrong(format!("task {task} was acknowledged, and a read through node {node} does not show it"));
        }
        self.applied(shown);
    }

    /// A subscriber was shown the event with an index, the last one before it being `after`.
    pub fn followed(&mut self, task: TaskId, after: u64, event: &Event) {
        self.counts.followed += 1;
        if event.index != after + 1 {
            self.wrong(format!("a stream of task {task} goes on with event {} behind event {after}", event.index));
        }
        self.event(task, event, "a stream");
    }

    fn event(&mut self, task: TaskId, event: &Event, where_: &str) {
        let digest = digest(event);
        let known = self.tasks.entry(task).or_default();
        let position = usize::try_from(event.index).unwrap_or(usize::MAX).wrapping_sub(1);
        let told = match known.events.get(position) {
            Some(first) if *first != digest => {
                Some(format!("{where_} of task {task} shows another event {}", event.index))
            }
            Some(_) => None,
            None if position == known.events.len() => {
                known.events.push(digest);
                known.take_new(task, event)
            }
            None => Some(format!("{where_} of task {task} shows event {} and not those before", event.index)),
        };
        if let Some(told) = told {
            self.wrong(format!("{told}: {:?}", event.kind));
        }
    }

    /// A run begins. Returns whether it is the first one under its epoch.
    pub fn begins(&mut self, task: TaskId, epoch: Epoch) -> bool {
        self.tasks.entry(task).or_default().began.insert(epoch)
    }

    /// An owner does something in the world under a lease.
    pub fn acts(&mut self, task: TaskId, epoch: Epoch, node: NodeId) {
        self.counts.acts += 1;
        let now = world::now();
        if self.removed.contains(&node) {
            self.wrong(format!("node {node} acts on task {task} under epoch {epoch:?}, and was removed"));
        }
        let known = self.tasks.entry(task).or_default();
        match known.acted {
            Some((last, other, at)) if last > epoch => {
                self.wrong(format!(
                    "two owners: node {node} acts on task {task} under epoch {epoch:?}, and node {other} did under {last:?} \
                     at {at:?}"
                ));
            }
            Some(_) | None => known.acted = Some((epoch, node, now)),
        }
    }

    /// A report was applied.
    pub fn reported(&mut self, task: TaskId, epoch: Epoch, node: NodeId, acted_before: Option<Epoch>) {
        if let Some(other) = acted_before.filter(|other| *other > epoch) {
            self.wrong(format!(
                "a report of node {node} on task {task} under epoch {epoch:?} was applied, and {other:?} had begun before it was sent"
            ));
        }
    }

    /// The newest epoch under which somebody has acted on a task.
    pub fn newest_epoch(&self, task: TaskId) -> Option<Epoch> {
        self.tasks.get(&task).and_then(|known| known.acted).map(|(epoch, _, _)| epoch)
    }

    /// Looks at what a node has applied, `seen` being what was looked at before in this life of it.
    pub fn look(&mut self, node: NodeId, state: &State, seen: &mut BTreeMap<TaskId, u64>) {
        for task in all_tasks(state) {
            let before = seen.insert(task.id, task.generation).unwrap_or(0);
            for event in task.events.iter().filter(|event| event.index > before) {
                self.event(task.id, event, &format!("the state of node {node}"));
            }
            self.look_at(node, task);
        }
    }

    fn look_at(&mut self, node: NodeId, task: &Task) {
        let mut told = Vec::new();
        let known = self.tasks.entry(task.id).or_default();
        let state = task.status.state;
        match known.ended {
            Some((ended, at)) if task.generation >= at && (state, task.generation) != (ended, at) => {
                told.push(format!(
                    "task {} ended as {ended:?} with event {at}, and is {state:?} at event {} on node {node}",
                    task.id, task.generation
                ));
            }
            Some(_) => {}
            None if state.is_terminal() => known.ended = Some((state, task.generation)),
            None => {}
        }
        if let Some(lease) = &task.lease {
            let owner = (lease.node, lease.boot);
            let first = *known.owners.entry(lease.epoch).or_insert(owner);
            if first != owner {
                told.push(format!("epoch {:?} of task {} belongs to {first:?} and {owner:?}", lease.epoch, task.id));
            }
        }
        for artifact in &task.artifacts {
            if let Err(text) = check_artifact(&artifact.parts) {
                told.push(format!(
                    "artifact {} of task {} on node {node} reads {text:?}",
                    artifact.artifact_id, task.id
                ));
            }
        }
        told.into_iter().for_each(|told| self.wrong(told));
    }

    /// Every task that anybody has seen.
    pub fn all_tasks(&self) -> Vec<TaskId> {
        self.tasks.keys().copied().collect()
    }

    /// Looks at all tasks that a node gives to a reader in the end.
    pub fn look_back(&mut self, node: NodeId, given: &[Arc<Task>]) {
        let mut told = Vec::new();
        let mut made: BTreeMap<&str, Vec<TaskId>> = BTreeMap::new();
        let tasks: BTreeMap<TaskId, &Task> = given.iter().map(|task| (task.id, task.as_ref())).collect();
        for task in tasks.values() {
            if let Some(message) = task.history.first() {
                made.entry(message.message_id.as_str()).or_default().push(task.id);
            }
            if !task.status.state.is_terminal() {
                told.push(format!("task {} is {:?} long after everything was mended", task.id, task.status.state));
            }
            let shown = shown_by_events(task);
            let kept: BTreeMap<String, String> =
                task.artifacts.iter().map(|artifact| (artifact.artifact_id.clone(), text(&artifact.parts))).collect();
            if shown != kept {
                told.push(format!("the events of task {} add up to {shown:?}, its artifacts are {kept:?}", task.id));
            }
        }
        for (message, tasks) in made.iter().filter(|(_, tasks)| tasks.len() > 1 && !self.is_a_day_over) {
            told.push(format!("message {message} made several tasks: {tasks:?}"));
        }
        for (message, task) in &self.messages {
            let Some(task) = task else { continue };
            if made.get(message.as_str()).is_none_or(|made| !made.contains(task)) {
                told.push(format!("task {task} of message {message} was acknowledged, and is lost"));
            }
        }
        for task in &self.canceled {
            let state = tasks.get(task).map(|task| task.status.state);
            if state != Some(TaskState::Canceled) {
                told.push(format!("task {task} was told to be canceled, and is {state:?}"));
            }
        }
        told.extend(self.what_is_not_as_it_ended(&tasks));
        let adopted = tasks.values().map(|task| u32::try_from(task.adoptions.len()).unwrap_or(0)).sum();
        self.counts.adopted = adopted;
        told.into_iter().for_each(|told| self.wrong(format!("node {node}: {told}")));
    }

    /// A task that has ended is still there with all of its events, on a node that was there all the time as on one that was
    /// sent a snapshot.
    fn what_is_not_as_it_ended(&self, tasks: &BTreeMap<TaskId, &Task>) -> Vec<String> {
        let mut told = Vec::new();
        for (id, known) in &self.tasks {
            let Some((ended, last)) = known.ended else { continue };
            let Some(task) = tasks.get(id) else {
                told.push(format!("task {id} ended as {ended:?}, and cannot be read any more"));
                continue;
            };
            let events: Vec<u64> = task.events.iter().map(digest).collect();
            if task.status.state != ended || task.generation != last || events != known.events {
                let (all, shown, state) = (known.events.len(), events.len(), task.status.state);
                told.push(format!("task {id} ended as {ended:?} with {all} events, and reads {state:?} with {shown}"));
            }
        }
        told
    }
}

impl Known {
    /// A new event must come from the owner of its time.
    fn take_new(&mut self, task: TaskId, event: &Event) -> Option<String> {
        let EventKind::Artifact { parts, .. } = &event.kind else { return None };
        let text = text(parts);
        let (epoch, _) = text.trim_end().split_once('.')?;
        let epoch = epoch.parse().ok()?;
        let last = self.wrote.replace(epoch);
        last.filter(|last| *last > epoch)
            .map(|last| format!("task {task} has a chunk of epoch {epoch} behind one of epoch {last}"))
    }
}

/// The text of a chunk that an owner writes.
pub fn chunk(epoch: Epoch, number: u32) -> String {
    format!("{}.{number} ", epoch.0)
}

/// An artifact is what one owner wrote, from its first chunk on.
fn check_artifact(parts: &[Part]) -> Result<(), String> {
    let text = text(parts);
    let first = text.split_once('.').map(|(epoch, _)| epoch);
    for (number, piece) in text.split_whitespace().enumerate() {
        let expected = first.map(|epoch| format!("{epoch}.{number}"));
        if expected.as_deref() != Some(piece) {
            return Err(text);
        }
    }
    Ok(())
}

/// What a client that concatenates by the rules of A2A ends with.
fn shown_by_events(task: &Task) -> BTreeMap<String, String> {
    let mut shown: BTreeMap<String, String> = BTreeMap::new();
    for event in &task.events {
        let EventKind::Artifact { artifact_id, parts, append, .. } = &event.kind else { continue };
        let artifact = shown.entry(artifact_id.clone()).or_default();
        if !append {
            artifact.clear();
        }
        artifact.push_str(&text(parts));
    }
    shown
}

fn text(parts: &[Part]) -> String {
    parts
        .iter()
        .filter_map(|part| match &part.content {
            Content::Text(text) => Some(text.as_str()),
            Content::Raw(_) | Content::Url(_) | Content::Data(_) | Content::Blob(_) => None,
        })
        .collect()
}

fn digest(event: &Event) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{event:?}").hash(&mut hasher);
    hasher.finish()
}

fn all_tasks(state: &State) -> impl Iterator<Item = &Task> {
    (0..=u8::MAX).flat_map(|shard| state.tasks_in(VShard(shard)))
}

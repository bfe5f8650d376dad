//! The replicated state of this node: entries in, state, answers and hints out; and its snapshots on disk.
//!
//! ```text
//! committed entries ──▶ apply ──▶ State ──▶ responders, applied index, task watches, effects
//!                                   └─clone─▶ snapshot file ──▶ log may be purged
//! ```
//! The state lives in memory. After a start it is the last snapshot plus the entries that were known to be committed;
//! effects of entries that were in the log by then are not repeated, since whoever acts on effects compares itself
//! with the state when it starts.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use bytes::Bytes;
use futures::{Stream, TryStreamExt, stream::TryReadyChunksError};
use openraft::{
    EntryPayload, OptionalSend, RaftSnapshotBuilder,
    storage::{EntryResponder, RaftStateMachine},
};
use tokio::sync::{broadcast, watch};
use towline_core::{Effect, Proposal, Stamp, State, Task, TaskId, Timestamp, VShard};

mod recent;
mod replica;

use super::{
    ApplyResponse, RaftEntry, RaftLogId, RaftMembership, RaftSnapshot, RaftSnapshotMeta, RaftStoredMembership,
    StoreError, TypeConfig,
};
use crate::{
    kill_points, seams,
    wal::disk::Disk,
    wire::{self, WireError},
};

use recent::Recent;
pub(crate) use recent::{After, Portion};
pub(crate) use replica::{FedError, Replica};

/// Effects that a slow reader may be behind before it has to compare itself with the state.
const EFFECTS_KEPT: usize = 4_096;
/// Entries that are applied under one lock: a reader waits for so many at most.
const APPLIED_TOGETHER: usize = 64;
/// What stays free besides a snapshot: the log goes on while it is written.
const SNAPSHOT_HEADROOM_BYTES: u64 = 16 * 1024 * 1024;
/// The snapshot of a folder.
const SNAPSHOT_FILE: &str = "state.snapshot";
/// A snapshot that is being written.
const UNFINISHED_FILE: &str = "state.snapshot.unfinished";

/// The bytes of a snapshot, whose checksum was right when it was made or taken; cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct SnapshotFile(Bytes);

impl SnapshotFile {
    /// Takes the bytes of a snapshot that came from a disk or a peer.
    ///
    /// # Errors
    /// When they are not a snapshot, or damaged.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, WireError> {
        wire::check_snapshot(&bytes)?;
        Ok(Self(bytes))
    }

    /// The whole file.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    fn encode(meta: &RaftSnapshotMeta, state: &State) -> Result<Self, WireError> {
        wire::encode_snapshot(meta, state).map(Self)
    }

    fn decode(&self) -> Result<(RaftSnapshotMeta, State), WireError> {
        wire::decode_snapshot(&self.0)
    }

    fn meta(&self) -> Result<RaftSnapshotMeta, WireError> {
        wire::decode_snapshot_meta(&self.0)
    }
}

impl std::fmt::Debug for SnapshotFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SnapshotFile({} bytes)", self.0.len())
    }
}

/// What openraft drives.
pub struct StateMachine(Arc<Shared>);

/// What everything else reads; cheap to clone.
#[derive(Clone)]
pub struct StateView(Arc<Shared>);

/// Writes snapshots of a state machine while it goes on.
pub struct SnapshotBuilder(Arc<Shared>);

struct Shared {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    applied: RwLock<AppliedState>,
    /// Up to where the snapshot on disk reaches; held while one is written.
    saved: Mutex<Option<RaftLogId>>,
    /// Effects of entries up to this index are not repeated.
    quiet_through: u64,
    index: watch::Sender<u64>,
    effects: broadcast::Sender<Effect>,
    watched: Arc<Watched>,
    held: watch::Sender<bool>,
    /// What was applied last, for nodes that this one feeds.
    recent: Recent,
}

#[derive(Clone, Default)]
struct AppliedState {
    last: Option<RaftLogId>,
    membership: RaftStoredMembership,
    state: State,
}

/// An entry that can be applied.
struct Decoded {
    log_id: RaftLogId,
    change: Change,
}

/// What an entry changes.
enum Change {
    Nothing,
    Membership(RaftMembership),
    State(Timestamp, Box<Proposal>),
}

impl Decoded {
    fn of(entry: RaftEntry) -> io::Result<Self> {
        let log_id = entry.log_id;
        let change = match entry.payload {
            EntryPayload::Blank => Change::Nothing,
            EntryPayload::Membership(membership) => Change::Membership(membership),
            EntryPayload::Normal(logged) => {
                let proposal = logged.proposal().map_err(|error| undecodable(log_id, error))?;
                Change::State(logged.at, Box::new(proposal))
            }
        };
        Ok(Self { log_id, change })
    }
}

impl AppliedState {
    fn apply(&mut self, Decoded { log_id, change }: Decoded) -> ApplyResponse {
        self.last = Some(log_id);
        let index = log_id.index;
        let outcome = match change {
            Change::Nothing => None,
            Change::Membership(membership) => {
                self.membership = RaftStoredMembership::new(Some(log_id), membership);
                None
            }
            Change::State(at, proposal) => Some(self.state.apply(*proposal, Stamp { index, at })),
        };
        ApplyResponse { index, outcome }
    }
}

impl StateMachine {
    /// Opens the state in a folder, which is made if it is not there, from its last snapshot. Effects of entries up to
    /// and with `quiet_through` are not repeated.
    ///
    /// # Errors
    /// When the snapshot cannot be read or is damaged: the entries before it are gone, so there is nothing to fall
    /// back to.
    pub fn open(dir: &Path, quiet_through: u64) -> Result<(StateMachine, StateView), StoreError> {
        super::make_folder(dir)?;
        let disk = seams::disk();
        let applied = load(disk.as_ref(), &dir.join(SNAPSHOT_FILE))?;
        let index = applied.last.map_or(0, |log_id| log_id.index);
        let saved = Mutex::new(applied.last);
        let shared = Arc::new(Shared {
            dir: dir.to_owned(),
            disk,
            applied: RwLock::new(applied),
            saved,
            quiet_through,
            index: watch::Sender::new(index),
            effects: broadcast::Sender::new(EFFECTS_KEPT),
            watched: Arc::default(),
            held: watch::Sender::new(false),
            recent: Recent::default(),
        });
        Ok((StateMachine(shared.clone()), StateView(shared)))
    }
}

/// Makes the folder of a state machine that begins with a state, and no log before it.
pub(crate) fn write_first_snapshot(dir: &Path, meta: &RaftSnapshotMeta, state: &State) -> Result<(), StoreError> {
    let path = dir.join(SNAPSHOT_FILE);
    super::make_folder(dir)?;
    let file = SnapshotFile::encode(meta, state)
        .map_err(|source| StoreError::Unreadable { path: path.clone(), source: Box::new(source) })?;
    write_whole(seams::disk().as_ref(), dir, &file).map_err(|source| StoreError::File {
        action: "write snapshot",
        path,
        source,
    })
}

/// Puts a snapshot in a folder, whole or not at all.
fn write_whole(disk: &dyn Disk, dir: &Path, file: &SnapshotFile) -> io::Result<()> {
    let unfinished = dir.join(UNFINISHED_FILE);
    match disk.remove(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut written = disk.create(&unfinished)?;
    written.write_at(file.bytes(), 0)?;
    kill_points::pass("snapshot-drafted");
    written.sync()?;
    kill_points::pass("snapshot-synced");
    disk.rename(&unfinished, &dir.join(SNAPSHOT_FILE))?;
    kill_points::pass("snapshot-renamed");
    disk.sync_dir(dir)
}

fn load(disk: &dyn Disk, path: &Path) -> Result<AppliedState, StoreError> {
    let unreadable = |source| StoreError::Unreadable { path: path.to_owned(), source: Box::new(source) };
    let failed = |source| StoreError::File { action: "read snapshot", path: path.to_owned(), source };
    let Some(bytes) = read_if_there(disk, path).map_err(failed)? else { return Ok(AppliedState::default()) };
    let (meta, state) = SnapshotFile(bytes).decode().map_err(unreadable)?;
    Ok(AppliedState { last: meta.last_log_id, membership: meta.last_membership, state })
}

fn read_if_there(disk: &dyn Disk, path: &Path) -> io::Result<Option<Bytes>> {
    match disk.read(path) {
        Ok(bytes) => Ok(Some(bytes.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl StateView {
    /// Reads the state as this node has applied it. Keep the closure short: entries wait for it.
    pub fn read<R>(&self, f: impl FnOnce(&State) -> R) -> R {
        f(&self.0.read().state)
    }

    /// The Raft membership as it is applied here: one that is only appended may still be taken back.
    pub(crate) fn membership(&self) -> RaftMembership {
        self.0.read().membership.membership().clone()
    }

    /// The last entry that is applied here, and the Raft membership as of it.
    pub(crate) fn applied_membership(&self) -> (Option<RaftLogId>, RaftStoredMembership) {
        let applied = self.0.read();
        (applied.last, applied.membership.clone())
    }

    /// Effects of entries as they are applied here. A reader that lags compares itself with the state.
    pub fn effects(&self) -> broadcast::Receiver<Effect> {
        self.0.effects.subscribe()
    }

    /// Log index up to which entries are applied here.
    pub fn applied(&self) -> watch::Receiver<u64> {
        self.0.index.subscribe()
    }

    /// Returns once the entry at an index is applied here.
    pub async fn wait_applied(&self, index: u64) {
        let mut applied = self.applied();
        let reached = applied.wait_for(|applied| *applied >= index).await;
        reached.expect("the view holds the sender");
    }

    /// Lets nothing be applied while it is held.
    pub(crate) fn hold(&self, held: bool) {
        self.0.held.send_replace(held);
    }

    /// Wakes on each change of a task from here on.
    pub fn watch_task(&self, task: TaskId) -> TaskWatch {
        self.0.watched.watch(task)
    }
}

impl Shared {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, AppliedState> {
        self.applied.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, AppliedState> {
        self.applied.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies entries that follow each other, under one lock. Whoever is told of one of them finds all of them applied.
    fn apply(&self, entries: Vec<RaftEntry>) -> io::Result<Vec<ApplyResponse>> {
        let kept = self.recent.copy_if_wanted(&entries);
        let decoded = entries.into_iter().map(Decoded::of).collect::<io::Result<Vec<_>>>()?;
        let responses: Vec<ApplyResponse> = {
            let mut applied = self.write();
            let responses = decoded.into_iter().map(|entry| applied.apply(entry)).collect();
            self.recent.look(&applied.state);
            responses
        };
        self.recent.keep(kept);
        if let Some(last) = responses.last() {
            self.index.send_replace(last.index);
        }
        for ApplyResponse { index, outcome } in &responses {
            if let Some(Ok(applied)) = outcome {
                self.publish(&applied.effects, *index > self.quiet_through);
            }
        }
        Ok(responses)
    }

    async fn let_go(&self) {
        if *self.held.borrow() {
            let freed = self.held.subscribe().wait_for(|held| !held).await.map(|_| ());
            freed.expect("this value holds the sender");
        }
    }

    fn publish(&self, effects: &[Effect], loud: bool) {
        self.watched.notify(effects);
        if !loud || self.effects.receiver_count() == 0 {
            return;
        }
        for effect in effects {
            if self.effects.send(effect.clone()).is_err() {
                break;
            }
        }
    }

    /// Replaces everything by a snapshot, once it is readable and on disk.
    fn install(&self, meta: &RaftSnapshotMeta, file: &SnapshotFile) -> io::Result<()> {
        let (covered, state) = file.decode().map_err(invalid_data)?;
        if covered != *meta {
            let reason = format!("covers {covered} where {meta} was announced");
            return Err(invalid_data(WireError::Foreign { what: "snapshot", reason }));
        }
        self.save(meta, file)?;
        let effects = {
            let mut applied = self.write();
            let effects = changes(&applied.state, &state);
            *applied = AppliedState { last: meta.last_log_id, membership: meta.last_membership.clone(), state };
            effects
        };
        let index = meta.last_log_id.map_or(0, |log_id| log_id.index);
        self.index.send_replace(index);
        self.publish(&effects, index > self.quiet_through);
        Ok(())
    }

    /// Puts a snapshot on disk, unless a newer one is there.
    fn save(&self, meta: &RaftSnapshotMeta, file: &SnapshotFile) -> io::Result<()> {
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        if *saved > meta.last_log_id {
            return Ok(());
        }
        write_whole(self.disk.as_ref(), &self.dir, file)?;
        *saved = meta.last_log_id;
        Ok(())
    }

    /// The snapshot on disk.
    fn current_snapshot(&self) -> io::Result<Option<RaftSnapshot>> {
        let Some(bytes) = read_if_there(self.disk.as_ref(), &self.dir.join(SNAPSHOT_FILE))? else { return Ok(None) };
        let snapshot = SnapshotFile(bytes);
        let meta = snapshot.meta().map_err(invalid_data)?;
        Ok(Some(RaftSnapshot { meta, snapshot }))
    }

    /// Whether a snapshot could be written. It grows between two of them, and less than doubles.
    fn has_room_for_snapshot(&self) -> bool {
        let last = self.disk.size(&self.dir.join(SNAPSHOT_FILE)).unwrap_or(0);
        self.disk.space(&self.dir).is_ok_and(|space| space.free > 2 * last + SNAPSHOT_HEADROOM_BYTES)
    }
}

fn invalid_data(error: WireError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// An entry that this binary cannot decode must stop it: to go on without it would make its state another one.
fn undecodable(log_id: RaftLogId, error: WireError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("entry {log_id}: {error}: upgrade this node"))
}

/// The effects that lead from one state to another, for those who missed the entries between.
fn changes(old: &State, new: &State) -> Vec<Effect> {
    let mut effects = vec![Effect::PlacementChanged];
    for task in (0..=u8::MAX).flat_map(|shard| new.tasks_in(VShard(shard))) {
        task_changes(old.task(task.id), task, &mut effects);
    }
    effects
}

fn task_changes(old: Option<&Task>, new: &Task, effects: &mut Vec<Effect>) {
    let id = new.id;
    let old_lease = old.and_then(|old| old.lease.as_ref());
    if old.is_none_or(|old| old.generation != new.generation) {
        effects.push(Effect::Changed { task: id });
    }
    let same_epoch = old_lease.map(|lease| lease.epoch) == new.lease.as_ref().map(|lease| lease.epoch);
    if same_epoch {
        return;
    }
    effects.extend(old_lease.map(|lease| Effect::Stop { task: id, node: lease.node }));
    effects.extend(new.lease.clone().map(|lease| Effect::Start { task: id, lease }));
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<RaftLogId>, RaftStoredMembership), io::Error> {
        let applied = self.0.read();
        Ok((applied.last, applied.membership.clone()))
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let mut batches = entries.try_ready_chunks(APPLIED_TOGETHER);
        while let Some(batch) = batches.try_next().await.map_err(|TryReadyChunksError(_, error)| error)? {
            self.0.let_go().await;
            let (entries, responders): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let responses = self.0.apply(entries)?;
            for (responder, response) in responders.into_iter().zip(responses) {
                if let Some(responder) = responder {
                    responder.send(response);
                }
            }
        }
        Ok(())
    }

    /// Puts a snapshot off while there is no room for it: to fail would end the node.
    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Self::SnapshotBuilder> {
        if !force && !self.0.has_room_for_snapshot() {
            tracing::warn!(dir = %self.0.dir.display(), "snapshot is put off: disk is full");
            return None;
        }
        Some(SnapshotBuilder(self.0.clone()))
    }

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        SnapshotBuilder(self.0.clone())
    }

    async fn install_snapshot(&mut self, meta: &RaftSnapshotMeta, snapshot: SnapshotFile) -> Result<(), io::Error> {
        let (shared, meta) = (self.0.clone(), meta.clone());
        let install = move || shared.install(&meta, &snapshot);
        seams::blocking(install).await?
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<RaftSnapshot>, io::Error> {
        let shared = self.0.clone();
        seams::blocking(move || shared.current_snapshot()).await?
    }
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotFile;

    /// The state is copied under the lock, which is cheap since tasks are shared, and encoded outside of it.
    async fn build_snapshot(&mut self) -> Result<RaftSnapshot, io::Error> {
        let shared = self.0.clone();
        let work = move || {
            let applied = shared.read().clone();
            let meta = RaftSnapshotMeta { last_log_id: applied.last, last_membership: applied.membership };
            let file = SnapshotFile::encode(&meta, &applied.state).map_err(invalid_data)?;
            shared.save(&meta, &file)?;
            Ok(RaftSnapshot { meta, snapshot: file })
        };
        seams::blocking(work).await?
    }
}

/// Who waits for which task.
#[derive(Debug, Default)]
struct Watched(Mutex<HashMap<TaskId, watch::Sender<u64>>>);

impl Watched {
    fn lock(&self) -> MutexGuard<'_, HashMap<TaskId, watch::Sender<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(self: &Arc<Self>, task: TaskId) -> TaskWatch {
        let changes = self.lock().entry(task).or_default().subscribe();
        TaskWatch { task, changes, watched: self.clone() }
    }

    fn notify(&self, effects: &[Effect]) {
        if effects.is_empty() {
            return;
        }
        let watched = self.lock();
        if watched.is_empty() {
            return;
        }
        for effect in effects {
            let sender = match effect {
                Effect::Start { task, .. } | Effect::Stop { task, .. } | Effect::Changed { task } => watched.get(task),
                Effect::PlacementChanged => None,
            };
            if let Some(sender) = sender {
                sender.send_modify(|count| *count += 1);
            }
        }
    }
}

/// Wakes when something about a task was applied on this node.
#[derive(Debug)]
pub struct TaskWatch {
    task: TaskId,
    changes: watch::Receiver<u64>,
    watched: Arc<Watched>,
}

impl TaskWatch {
    /// Returns when some event or change of lease of the task was applied here since the last call (or since the
    /// watch was made). Changes are counted, never lost: several of them wake it once.
    pub async fn changed(&mut self) {
        let changed = self.changes.changed().await;
        changed.expect("the registry keeps the sender for as long as there is a watch");
    }
}

impl Drop for TaskWatch {
    /// The last watch of a task takes its sender with it. The receiver goes under the lock, so that of two watches that
    /// end together one sees that it is the last.
    fn drop(&mut self) {
        let mut watched = self.watched.lock();
        self.changes = watch::Sender::new(0).subscribe();
        if watched.get(&self.task).is_some_and(|sender| sender.receiver_count() == 0) {
            watched.remove(&self.task);
        }
    }
}

#[cfg(test)]
mod tests;

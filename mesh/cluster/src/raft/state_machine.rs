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
    collections::{BTreeMap, HashMap},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use futures::{Stream, TryStreamExt, stream::TryReadyChunksError};
use openraft::{
    EntryPayload, OptionalSend, RaftSnapshotBuilder,
    storage::{EntryResponder, RaftStateMachine},
};
use tokio::sync::{broadcast, oneshot, watch};
use towline_core::{Command, Effect, Principal, Proposal, Stamp, State, Task, TaskId, Timestamp, VShard};

mod feed;
mod recent;
mod replica;

use super::{
    ApplyResponse, RaftEntry, RaftLogId, RaftMembership, RaftSnapshot, RaftSnapshotMeta, RaftStoredMembership,
    SnapshotError, SnapshotFile, StoreError, TypeConfig,
    snapshot_file::{self, Incoming},
};
use crate::{
    finished, kill_points, seams,
    wal::disk::{Disk, DiskFile},
    wire::WireError,
};

use feed::Feed;
pub use feed::{FeedEntry, FeedGone, FeedPage};
use recent::Recent;
pub(crate) use recent::{After, Portion};
pub(crate) use replica::{FedError, Replica};

/// Effects that a slow reader may be behind before it has to compare itself with the state.
const EFFECTS_KEPT: usize = 4_096;
/// Entries that are applied under one lock: a reader waits for so many at most.
const APPLIED_TOGETHER: usize = 64;
/// What stays free besides a snapshot: the log goes on while it is written.
const SNAPSHOT_HEADROOM_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes of a snapshot that are copied at a time.
const COPIED_TOGETHER: usize = 256 * 1024;
/// The snapshot of a folder.
const SNAPSHOT_FILE: &str = "state.snapshot";
/// A snapshot that is being written.
const UNFINISHED_FILE: &str = "state.snapshot.unfinished";

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
    finished: finished::Store,
    /// Up to where the snapshot on disk reaches; held while one is written.
    saved: Mutex<Option<RaftLogId>>,
    /// Effects of entries up to this index are not repeated.
    quiet_through: u64,
    index: watch::Sender<u64>,
    arrivals: Arrivals,
    effects: broadcast::Sender<Effect>,
    watched: Arc<Watched>,
    #[cfg(feature = "kill-points")]
    held: watch::Sender<bool>,
    /// What was applied last, for nodes that this one feeds.
    recent: Recent,
    /// What happened last, for readers of the cluster's events.
    feed: Feed,
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

    fn moves_records(&self) -> bool {
        self.archives().is_some() || self.sweeps()
    }

    /// The tasks that it sends to the archive.
    fn archives(&self) -> Option<&[TaskId]> {
        match &self.change {
            Change::State(_, proposal) => match (&proposal.by, &proposal.command) {
                (Principal::Node(_), Command::Archive { tasks }) => Some(tasks),
                (Principal::Node(_) | Principal::Operator | Principal::Agent { .. } | Principal::Named { .. }, _) => {
                    None
                }
            },
            Change::Nothing | Change::Membership(_) => None,
        }
    }

    /// Whether the members may be others after it, or of another kind.
    fn may_change_members(&self) -> bool {
        let Change::State(_, proposal) = &self.change else { return false };
        matches!(
            proposal.command,
            Command::Found { .. }
                | Command::Enrol(_)
                | Command::NodeLost { .. }
                | Command::RemoveNode { .. }
                | Command::SetRole { .. }
        )
    }

    fn sweeps(&self) -> bool {
        matches!(&self.change, Change::State(_, proposal) if proposal.command == Command::Sweep)
    }
}

impl AppliedState {
    /// Applies one entry, and puts what happened by it behind what was told.
    fn apply(&mut self, Decoded { log_id, change }: Decoded, told: &mut Vec<FeedEntry>) -> ApplyResponse {
        self.last = Some(log_id);
        let index = log_id.index;
        let outcome = match change {
            Change::Nothing => None,
            Change::Membership(membership) => {
                self.membership = RaftStoredMembership::new(Some(log_id), membership);
                None
            }
            Change::State(at, proposal) => {
                let (outcome, happened) = self.state.apply_and_tell(*proposal, Stamp { index, at });
                if !happened.is_empty() {
                    told.push(FeedEntry { index, at: self.state.last().at, happened });
                }
                Some(outcome)
            }
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
        let failed = |source| StoreError::File { action: "look through", path: dir.to_owned(), source };
        snapshot_file::remove_incoming(disk.as_ref(), dir).map_err(failed)?;
        let applied = load(disk.as_ref(), &dir.join(SNAPSHOT_FILE))?;
        let finished = finished::Store::open(dir, Arc::clone(&disk))?;
        let archived = applied.state.archived_count();
        if archived > 0 && finished.was_made() {
            tracing::error!(dir = %dir.display(), archived, "archive is not there: its tasks are fetched from other nodes");
        }
        let index = applied.last.map_or(0, |log_id| log_id.index);
        let saved = Mutex::new(applied.last);
        let recent = Recent::of(&applied.state);
        let shared = Arc::new(Shared {
            dir: dir.to_owned(),
            disk,
            applied: RwLock::new(applied),
            finished,
            saved,
            quiet_through,
            index: watch::Sender::new(index),
            arrivals: Arrivals::default(),
            effects: broadcast::Sender::new(EFFECTS_KEPT),
            watched: Arc::default(),
            #[cfg(feature = "kill-points")]
            held: watch::Sender::new(false),
            recent,
            feed: Feed::behind(index),
        });
        Ok((StateMachine(shared.clone()), StateView(shared)))
    }
}

/// Makes the folder of a state machine that begins with a state, and no log before it.
pub(crate) fn write_first_snapshot(dir: &Path, meta: &RaftSnapshotMeta, state: &State) -> Result<(), StoreError> {
    let path = dir.join(SNAPSHOT_FILE);
    super::make_folder(dir)?;
    let written = write_whole(seams::disk().as_ref(), dir, |file| Ok(snapshot_file::write(file, meta, state)?));
    written.map_err(|source| StoreError::File { action: "write snapshot", path, source })
}

/// Puts a snapshot in a folder, whole or not at all.
fn write_whole(disk: &dyn Disk, dir: &Path, write: impl FnOnce(&mut dyn DiskFile) -> io::Result<()>) -> io::Result<()> {
    let unfinished = dir.join(UNFINISHED_FILE);
    match disk.remove(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut written = disk.create(&unfinished)?;
    write(written.as_mut())?;
    kill_points::pass("snapshot-drafted");
    written.sync()?;
    kill_points::pass("snapshot-synced");
    disk.rename(&unfinished, &dir.join(SNAPSHOT_FILE))?;
    kill_points::pass("snapshot-renamed");
    disk.sync_dir(dir)
}

fn load(disk: &dyn Disk, path: &Path) -> Result<AppliedState, StoreError> {
    let failed = |error: SnapshotError| match error {
        SnapshotError::File(source) => StoreError::File { action: "read snapshot", path: path.to_owned(), source },
        SnapshotError::Content(source) => StoreError::Unreadable { path: path.to_owned(), source: Box::new(source) },
    };
    let Some(file) = SnapshotFile::open(disk, path).map_err(|error| failed(error.into()))? else {
        return Ok(AppliedState::default());
    };
    let (meta, state) = file.decode().map_err(failed)?;
    Ok(AppliedState { last: meta.last_log_id, membership: meta.last_membership, state })
}

impl StateView {
    /// Reads the state as this node has applied it. Keep the closure short: entries wait for it.
    pub fn read<R>(&self, f: impl FnOnce(&State) -> R) -> R {
        f(&self.0.read().state)
    }

    /// A file for a snapshot that arrives.
    pub(crate) fn incoming(&self) -> io::Result<Incoming> {
        Incoming::begin(&self.0.disk, &self.0.dir)
    }

    /// The records of finished tasks.
    pub(crate) fn finished(&self) -> &finished::Store {
        &self.0.finished
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
        let Some(reached) = self.0.arrivals.wait(index, &self.0.index) else { return };
        reached.await.expect("the view holds the sender until the index is reached");
    }

    /// Lets nothing be applied while it is held.
    #[cfg(feature = "kill-points")]
    pub(crate) fn hold(&self, held: bool) {
        self.0.held.send_replace(held);
    }

    /// What happened behind an entry, at most `most` entries of it.
    ///
    /// # Errors
    /// When that is not kept here any more.
    pub(crate) fn feed(&self, after: u64, most: usize) -> Result<FeedPage, FeedGone> {
        // Before the entries are looked at: what is applied by then is among them.
        let applied = *self.0.index.borrow();
        self.0.feed.page(after, applied, most)
    }

    /// Index of the last entry by which something happened, as it is applied here.
    pub(crate) fn feed_changes(&self) -> watch::Receiver<u64> {
        self.0.feed.changes()
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
        let may_change_members = decoded.iter().any(Decoded::may_change_members);
        let (mut responses, mut together, mut told) = (Vec::new(), Vec::new(), Vec::new());
        for entry in decoded {
            if entry.moves_records() {
                self.apply_together(std::mem::take(&mut together), &mut responses, &mut told);
                responses.push(self.apply_and_move(entry, &mut told));
            } else {
                together.push(entry);
            }
        }
        self.apply_together(together, &mut responses, &mut told);
        if may_change_members {
            self.recent.look(&self.read().state);
        }
        self.recent.keep(kept);
        self.feed.keep(told);
        if let Some(last) = responses.last() {
            self.reached(last.index);
        }
        for ApplyResponse { index, outcome } in &responses {
            if let Some(Ok(applied)) = outcome {
                self.publish(&applied.effects, *index > self.quiet_through);
            }
        }
        Ok(responses)
    }

    fn apply_together(&self, entries: Vec<Decoded>, responses: &mut Vec<ApplyResponse>, told: &mut Vec<FeedEntry>) {
        if !entries.is_empty() {
            let mut applied = self.write();
            responses.extend(entries.into_iter().map(|entry| applied.apply(entry, told)));
        }
    }

    /// Records are in the archive before they leave the state, and as long as it knows their tasks: so a reader that finds
    /// one in neither is told of a task that is swept.
    fn apply_and_move(&self, entry: Decoded, told: &mut Vec<FeedEntry>) -> ApplyResponse {
        let _moving = self.finished.moving();
        let (archived, swept) = {
            let state = &self.read().state;
            let archived = entry.archives().map(|tasks| state.to_archive(tasks));
            (archived.unwrap_or_default(), if entry.sweeps() { state.first_archived() } else { Vec::new() })
        };
        self.finished.put(archived);
        let (response, swept) = {
            let mut applied = self.write();
            let response = applied.apply(entry, told);
            let is_gone = |id: &TaskId| !applied.state.knows_task(*id);
            (response, swept.into_iter().filter(is_gone).collect::<Vec<_>>())
        };
        self.finished.forget(swept);
        response
    }

    fn reached(&self, index: u64) {
        self.index.send_replace(index);
        self.arrivals.tell(index);
    }

    #[cfg(feature = "kill-points")]
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
        let (covered, state) = file.take_decoded()?;
        if covered != *meta {
            let reason = format!("covers {covered} where {meta} was announced");
            return Err(invalid_data(WireError::Foreign { what: "snapshot", reason }));
        }
        self.save(meta, file)?;
        let effects = {
            let mut applied = self.write();
            let effects = changes(&applied.state, &state);
            *applied = AppliedState { last: meta.last_log_id, membership: meta.last_membership.clone(), state };
            self.recent.look(&applied.state);
            self.feed.begin_behind(meta.last_log_id.map_or(0, |last| last.index));
            effects
        };
        let index = meta.last_log_id.map_or(0, |log_id| log_id.index);
        self.reached(index);
        self.finished.mend();
        self.publish(&effects, index > self.quiet_through);
        Ok(())
    }

    /// Puts a snapshot on disk, unless a newer one is there.
    fn save(&self, meta: &RaftSnapshotMeta, file: &SnapshotFile) -> io::Result<()> {
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        if *saved > meta.last_log_id {
            return Ok(());
        }
        // The log before a snapshot may be purged, and with it what is not in the archive yet.
        self.finished.write_out()?;
        if file.take(self.disk.as_ref(), &self.dir.join(SNAPSHOT_FILE))? {
            kill_points::pass("snapshot-renamed");
            self.disk.sync_dir(&self.dir)?;
        } else {
            write_whole(self.disk.as_ref(), &self.dir, |written| copy(file, written))?;
        }
        *saved = meta.last_log_id;
        Ok(())
    }

    /// Makes a snapshot on disk, unless a newer one is there: then it is made in memory, for who asked for it.
    fn build(&self, meta: &RaftSnapshotMeta, state: &State) -> io::Result<SnapshotFile> {
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.dir.join(SNAPSHOT_FILE);
        if *saved > meta.last_log_id {
            return Ok(SnapshotFile::encode(meta, state)?);
        }
        self.finished.write_out()?;
        write_whole(self.disk.as_ref(), &self.dir, |file| Ok(snapshot_file::write(file, meta, state)?))?;
        *saved = meta.last_log_id;
        SnapshotFile::open(self.disk.as_ref(), &path)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The snapshot on disk.
    fn current_snapshot(&self) -> io::Result<Option<RaftSnapshot>> {
        let path = self.dir.join(SNAPSHOT_FILE);
        let Some(snapshot) = SnapshotFile::open(self.disk.as_ref(), &path)? else { return Ok(None) };
        let meta = snapshot.meta()?;
        Ok(Some(RaftSnapshot { meta, snapshot }))
    }

    /// Whether a snapshot could be written. It grows between two of them, and less than doubles.
    fn has_room_for_snapshot(&self) -> bool {
        let last = self.disk.size(&self.dir.join(SNAPSHOT_FILE)).unwrap_or(0);
        self.disk.space(&self.dir).is_ok_and(|space| space.free > 2 * last + SNAPSHOT_HEADROOM_BYTES)
    }
}

fn copy(from: &SnapshotFile, to: &mut dyn DiskFile) -> io::Result<()> {
    let mut position = 0;
    while position < from.length() {
        let rest = usize::try_from(from.length() - position).unwrap_or(usize::MAX);
        let piece = from.piece(position, rest.min(COPIED_TOGETHER))?;
        to.write_at(&piece, position)?;
        position += piece.len() as u64;
    }
    Ok(())
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
    let mut effects = vec![Effect::PlacementChanged, Effect::SessionsEnded];
    for task in (0..=u8::MAX).flat_map(|shard| new.tasks_in(VShard(shard))) {
        task_changes(old.task(task.id), task, &mut effects);
    }
    for task in (0..=u8::MAX).flat_map(|shard| old.tasks_in(VShard(shard))).filter(|task| new.task(task.id).is_none()) {
        effects.push(Effect::Changed { task: task.id });
        effects.extend(task.lease.as_ref().map(|lease| Effect::Stop { task: task.id, node: lease.node }));
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
            #[cfg(feature = "kill-points")]
            self.0.let_go().await;
            let (entries, responders): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let responses = self.0.apply(entries)?;
            if self.0.finished.is_full() {
                let finished = self.0.finished.clone();
                seams::blocking(move || finished.write_out()).await??;
            }
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
            let snapshot = shared.build(&meta, &applied.state)?;
            Ok(RaftSnapshot { meta, snapshot })
        };
        seams::blocking(work).await?
    }
}

/// Who waits for which index: each is woken once, when it is reached. Everyone who waited on the index itself would be woken
/// by every batch that is applied.
#[derive(Debug, Default)]
struct Arrivals(Mutex<BTreeMap<u64, Vec<oneshot::Sender<()>>>>);

impl Arrivals {
    /// What ends when an index is reached; nothing if it is. Proposals and reads are bounded where they come in, and who gave up
    /// makes room before more is taken.
    fn wait(&self, index: u64, applied: &watch::Sender<u64>) -> Option<oneshot::Receiver<()>> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *applied.borrow() >= index {
            return None;
        }
        let (reached, arrival) = oneshot::channel();
        let waiters = waiting.entry(index).or_default();
        if waiters.len() == waiters.capacity() {
            waiters.retain(|waiter| !waiter.is_closed());
        }
        waiters.push(reached);
        Some(arrival)
    }

    /// Wakes those who waited for an index up to this one, which is told as applied before.
    fn tell(&self, index: u64) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.is_empty() {
            return;
        }
        let later = waiting.split_off(&index.saturating_add(1));
        let arrived = std::mem::replace(&mut *waiting, later);
        drop(waiting);
        for reached in arrived.into_values().flatten() {
            // Who waited may have given up.
            let _ = reached.send(());
        }
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
                Effect::PlacementChanged | Effect::SessionsEnded | Effect::Webhook { .. } | Effect::Triggers => None,
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

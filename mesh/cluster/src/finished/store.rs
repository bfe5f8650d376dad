//! The archive of this node: the records of finished tasks in one file, written behind the state and read without it.
//!
//! ```text
//! entry ──▶ put ──▶ pending (read at once) ──write_out──▶ file, durable ──▶ a snapshot may be saved, the log purged
//! ```
//! A record never changes, and the log says the same of it on every node; so to write it again, after a restart or from another
//! node, changes nothing.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use redb::{Database, ReadableDatabase, TableDefinition};
use tokio::sync::Notify;
use towline_core::{Task, TaskId};

use super::{backend::DiskBackend, guarded::Guarded, record};
use crate::{
    kill_points,
    raft::{self, StoreError},
    seams,
    wal::disk::{Disk, OsDisk},
    wire::WireError,
};

/// The records, by virtual shard and id.
const RECORDS: TableDefinition<(u8, u128), &[u8]> = TableDefinition::new("finished");
/// The file in the folder of the snapshots, which it belongs to.
const FILE: &str = "finished.redb";
/// What is left of one that was damaged, for whoever wants to look at it.
const DAMAGED_FILE: &str = "finished.redb.damaged";
/// Pages in memory: who reads an old task waits for the disk, and an idle node is small.
const CACHE_BYTES: usize = 4 * 1024 * 1024;
/// Changes that wait to be written: beyond it entries wait for the disk.
const MAX_PENDING: usize = 4_096;
/// And bytes of content in them.
const MAX_PENDING_BYTES: usize = 64 * 1024 * 1024;
/// Records that a node without an archive has in memory: what is streamed and looked at again.
const MAX_CACHED: usize = 1_024;
/// And bytes of content in them.
const MAX_CACHED_BYTES: usize = 32 * 1024 * 1024;
/// Changes that are written together: they are in memory as bytes, beside what they are made of.
const WRITTEN_TOGETHER: usize = 256;

/// The archive of a node; cheap to clone.
#[derive(Clone)]
pub(crate) struct Store(Arc<Inner>);

struct Inner {
    keeps: Keeps,
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    /// None until it is used (again).
    file: Mutex<Option<Arc<Guarded>>>,
    /// Whether it may be used: written once, when the node stops, after everyone who reads.
    closed: RwLock<bool>,
    pending: Mutex<Pending>,
    /// Held while pending changes are written.
    writing: Mutex<()>,
    /// Held while records move between the state and this.
    moving: Mutex<()>,
    has_pending: Notify,
    wants_mending: Notify,
    installing: AtomicUsize,
    missing: AtomicUsize,
    was_made: AtomicBool,
}

/// Where records are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeps {
    /// In the file, all of them.
    Archive,
    /// In memory, those that came last: the node keeps no log, and other nodes have the others.
    Cache,
}

#[derive(Default)]
struct Pending {
    /// None removes a record.
    changes: BTreeMap<TaskId, Option<Arc<Task>>>,
    bytes: usize,
    /// Of a cache: in which order they came.
    order: VecDeque<TaskId>,
}

impl Pending {
    fn change(&mut self, id: TaskId, task: Option<Arc<Task>>) {
        self.bytes += task.as_ref().map_or(0, |task| task.bytes);
        let old = self.changes.insert(id, task);
        self.left(old.as_ref());
    }

    fn left(&mut self, old: Option<&Option<Arc<Task>>>) {
        let bytes = old.and_then(Option::as_ref).map_or(0, |task| task.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Takes a record into a cache, or out of it, and makes room for it.
    fn cache(&mut self, id: TaskId, task: Option<Arc<Task>>) {
        self.order.retain(|other| *other != id);
        let old = self.changes.remove(&id);
        self.left(old.as_ref());
        if task.is_none() {
            return;
        }
        self.change(id, task);
        self.order.push_back(id);
        while self.order.len() > MAX_CACHED || (self.bytes > MAX_CACHED_BYTES && self.order.len() > 1) {
            let Some(oldest) = self.order.pop_front() else { break };
            let old = self.changes.remove(&oldest);
            self.left(old.as_ref());
        }
    }
}

/// Says that records are on their way for a state that is not here yet: none of them is removed.
pub(crate) struct Installing(Store);

impl Drop for Installing {
    fn drop(&mut self) {
        self.0.0.installing.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Store {
    /// Opens the archive in a folder. A damaged one is set aside, said, and begun anew: other nodes have its records.
    ///
    /// # Errors
    /// When its file cannot be opened or made.
    pub(crate) fn open(dir: &Path, disk: Arc<dyn Disk>) -> Result<Self, StoreError> {
        let store = Self::new(Keeps::Archive, dir, disk);
        match store.file() {
            Ok(_) => Ok(store),
            Err(source) => Err(StoreError::File { action: "open the archive", path: dir.join(FILE), source }),
        }
    }

    /// What a node without an archive has of it.
    pub(crate) fn cache(disk: Arc<dyn Disk>) -> Self {
        Self::new(Keeps::Cache, Path::new(""), disk)
    }

    fn new(keeps: Keeps, dir: &Path, disk: Arc<dyn Disk>) -> Self {
        Self(Arc::new(Inner {
            keeps,
            dir: dir.to_owned(),
            disk,
            file: Mutex::default(),
            closed: RwLock::default(),
            pending: Mutex::default(),
            writing: Mutex::default(),
            moving: Mutex::default(),
            has_pending: Notify::new(),
            wants_mending: Notify::new(),
            installing: AtomicUsize::new(0),
            missing: AtomicUsize::new(0),
            was_made: AtomicBool::new(false),
        }))
    }

    /// Whether the file was not there, or not good, when it was opened.
    pub(crate) fn was_made(&self) -> bool {
        self.0.was_made.load(Ordering::Relaxed)
    }

    /// Takes records. They can be read from here on.
    pub(crate) fn put(&self, tasks: Vec<Arc<Task>>) {
        self.change(tasks.into_iter().map(|task| (task.id, Some(task))));
    }

    /// Removes records of tasks that the state has forgotten.
    pub(crate) fn forget(&self, tasks: impl IntoIterator<Item = TaskId>) {
        self.change(tasks.into_iter().map(|id| (id, None)));
    }

    fn change(&self, changes: impl Iterator<Item = (TaskId, Option<Arc<Task>>)>) {
        let mut pending = self.pending();
        if self.0.keeps == Keeps::Cache {
            changes.for_each(|(id, task)| pending.cache(id, task));
            return;
        }
        changes.for_each(|(id, task)| pending.change(id, task));
        let any = !pending.changes.is_empty();
        drop(pending);
        if any {
            self.0.has_pending.notify_one();
        }
    }

    /// Whether so much waits to be written that nothing more should come before it is.
    pub(crate) fn is_full(&self) -> bool {
        let pending = self.pending();
        let is_full = pending.changes.len() > MAX_PENDING || pending.bytes > MAX_PENDING_BYTES;
        self.0.keeps == Keeps::Archive && is_full
    }

    /// Returns when something waits to be written.
    pub(crate) async fn has_pending(&self) {
        self.0.has_pending.notified().await;
    }

    /// Returns when records may be missing.
    pub(crate) async fn wants_mending(&self) {
        self.0.wants_mending.notified().await;
    }

    /// Has the archive compared with the state.
    pub(crate) fn mend(&self) {
        self.0.wants_mending.notify_one();
    }

    /// How many records were missing when they were last looked for.
    pub(crate) fn missing_count(&self) -> usize {
        self.0.missing.load(Ordering::Relaxed)
    }

    pub(crate) fn set_missing_count(&self, missing: usize) {
        self.0.missing.store(missing, Ordering::Relaxed);
    }

    /// Held while a record goes from the state to here, or is removed since the state does not know it.
    pub(crate) fn moving(&self) -> MutexGuard<'_, ()> {
        self.0.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn installing(&self) -> Installing {
        self.0.installing.fetch_add(1, Ordering::SeqCst);
        Installing(self.clone())
    }

    pub(crate) fn is_installing(&self) -> bool {
        self.0.installing.load(Ordering::SeqCst) > 0
    }

    /// The record of a task, if it is here and whole. May wait for the disk.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(crate) fn get(&self, id: TaskId) -> io::Result<Option<Arc<Task>>> {
        if let Some(change) = self.pending().changes.get(&id) {
            return Ok(change.clone());
        }
        let Some(bytes) = self.read(id)? else { return Ok(None) };
        Ok(self.whole(id, record::decode(id, &bytes)).map(Arc::new))
    }

    /// The record of a task as bytes, if it is here and whole. May wait for the disk.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(crate) fn bytes(&self, id: TaskId) -> io::Result<Option<Vec<u8>>> {
        let pending = self.pending().changes.get(&id).cloned();
        match pending {
            Some(None) => Ok(None),
            Some(Some(task)) => record::encode(&task).map(Some).map_err(io::Error::other),
            None => {
                let Some(bytes) = self.read(id)? else { return Ok(None) };
                Ok(self.whole(id, record::check(id, &bytes).map(|_| ())).map(|()| bytes))
            }
        }
    }

    /// Which of these tasks have no record here, or a damaged one. May wait for the disk.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(crate) fn lacks(&self, ids: Vec<TaskId>) -> io::Result<Vec<TaskId>> {
        let mut lacks = Vec::new();
        for id in ids {
            let pending = self.pending().changes.get(&id).map(Option::is_some);
            let held = match pending {
                Some(held) => held,
                None => self.bytes(id)?.is_some(),
            };
            if !held {
                lacks.push(id);
            }
        }
        Ok(lacks)
    }

    /// Ids of records in the file behind one, in order. May wait for the disk.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(crate) fn ids_behind(&self, id: Option<TaskId>, count: usize) -> io::Result<Vec<TaskId>> {
        self.with_file(|file| {
            let Some(table) = records(file)? else { return Ok(Vec::new()) };
            let from = id.map_or((0, 0), key);
            let mut ids = Vec::new();
            for entry in table.range(from..).map_err(failed)? {
                let (found, _) = entry.map_err(failed)?;
                let (_, found) = found.value();
                let found = TaskId::from_uuid(uuid::Uuid::from_u128(found));
                if Some(found) != id {
                    ids.push(found);
                }
                if ids.len() == count {
                    break;
                }
            }
            Ok(ids)
        })
    }

    /// Writes what waits, durably. Whatever was put or forgotten before the call is on disk after it.
    ///
    /// # Errors
    /// When it cannot be written: it stays here, and can be written later.
    pub(crate) fn write_out(&self) -> io::Result<()> {
        if self.0.keeps == Keeps::Cache {
            return Ok(());
        }
        let _alone = self.0.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = None;
        loop {
            let changes: Vec<(TaskId, Option<Arc<Task>>)> = {
                let pending = self.pending();
                let rest = pending.changes.iter().filter(|(id, _)| last.is_none_or(|last| **id > last));
                rest.take(WRITTEN_TOGETHER).map(|(id, task)| (*id, task.clone())).collect()
            };
            let Some((id, _)) = changes.last() else { return Ok(()) };
            last = Some(*id);
            self.with_file(|file| write(file, &changes))?;
            self.are_written(&changes);
        }
    }

    fn are_written(&self, changes: &[(TaskId, Option<Arc<Task>>)]) {
        let mut pending = self.pending();
        for (id, written) in changes {
            let same = pending.changes.get(id).is_some_and(|now| match (now, written) {
                (Some(now), Some(written)) => Arc::ptr_eq(now, written),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            });
            if same {
                pending.changes.remove(id);
                pending.bytes = pending.bytes.saturating_sub(written.as_ref().map_or(0, |task| task.bytes));
            }
        }
    }

    /// Damages a record.
    #[cfg(test)]
    pub(super) fn spoil(&self, id: TaskId) {
        let mut bytes = self.bytes(id).unwrap().unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        let file = self.file().unwrap();
        let spoil = |file: &Database| {
            let transaction = file.begin_write().unwrap();
            transaction.open_table(RECORDS).unwrap().insert(key(id), bytes.as_slice()).unwrap();
            transaction.commit().unwrap();
            Ok(())
        };
        file.with(spoil).unwrap();
    }

    /// A damaged record is removed, and fetched from another node.
    fn whole<T>(&self, id: TaskId, read: Result<T, WireError>) -> Option<T> {
        match read {
            Ok(read) => Some(read),
            Err(error) => {
                tracing::warn!(task = %id, %error, "record in the archive is damaged: it is fetched from another node");
                self.forget([id]);
                self.mend();
                None
            }
        }
    }

    fn read(&self, id: TaskId) -> io::Result<Option<Vec<u8>>> {
        if self.0.keeps == Keeps::Cache {
            return Ok(None);
        }
        self.with_file(|file| {
            let Some(table) = records(file)? else { return Ok(None) };
            let found = table.get(key(id)).map_err(failed)?;
            Ok(found.map(|found| found.value().to_vec()))
        })
    }

    /// Closes the file once nobody uses it, and for good: whoever starts this node again opens it. May wait for the disk.
    pub(crate) fn close(&self) {
        let mut closed = self.0.closed.write().unwrap_or_else(PoisonError::into_inner);
        *closed = true;
        *self.opened() = None;
    }

    fn with_file<R>(&self, act: impl Fn(&Database) -> io::Result<R>) -> io::Result<R> {
        let closed = self.0.closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(io::Error::other("the archive is closed"));
        }
        let file = self.file()?;
        match file.with(&act) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.set_aside(&file, &error)?;
                drop(file);
                self.file()?.with(act)
            }
            // After an error of the disk the file is opened anew, which goes back to what is durable.
            Err(error) => {
                *self.opened() = None;
                Err(error)
            }
            Ok(done) => Ok(done),
        }
    }

    fn file(&self) -> io::Result<Arc<Guarded>> {
        let mut opened = self.opened();
        if let Some(file) = opened.as_ref() {
            return Ok(Arc::clone(file));
        }
        let file = match Guarded::open(|| self.open_file()) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.move_aside(&error)?;
                Guarded::open(|| self.open_file())
            }
            done => done,
        };
        let file = Arc::new(file?);
        *opened = Some(Arc::clone(&file));
        Ok(file)
    }

    fn open_file(&self) -> io::Result<Database> {
        let path = self.0.dir.join(FILE);
        let is_new = match self.0.disk.size(&path) {
            Ok(length) => length == 0,
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => return Err(error),
        };
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE_BYTES);
        let file = if seams::simulated().is_some() {
            let backend = DiskBackend::open(Arc::clone(&self.0.disk), &path)?;
            builder.create_with_backend(backend).map_err(failed)?
        } else {
            builder.create(&path).map_err(failed)?
        };
        if is_new {
            self.0.was_made.store(true, Ordering::Relaxed);
            self.0.disk.sync_dir(&self.0.dir)?;
        }
        Ok(file)
    }

    /// Others may have found the same damage, and set the file aside already: the one that was made since is left.
    fn set_aside(&self, damaged: &Arc<Guarded>, error: &io::Error) -> io::Result<()> {
        let mut opened = self.opened();
        if opened.as_ref().is_some_and(|file| !Arc::ptr_eq(file, damaged)) {
            return Ok(());
        }
        *opened = None;
        self.move_aside(error)
    }

    fn move_aside(&self, error: &io::Error) -> io::Result<()> {
        let path = self.0.dir.join(FILE);
        tracing::error!(path = %path.display(), %error, "archive is damaged: it is set aside and fetched from other nodes");
        self.0.disk.rename(&path, &self.0.dir.join(DAMAGED_FILE))?;
        self.0.disk.sync_dir(&self.0.dir)?;
        self.mend();
        Ok(())
    }

    fn opened(&self) -> MutexGuard<'_, Option<Arc<Guarded>>> {
        self.0.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.0.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An archive that is written before its node is there: that of a cluster that begins with a saved one.
pub(crate) fn first(dir: &Path) -> Result<Store, StoreError> {
    raft::make_folder(dir)?;
    Store::open(dir, Arc::new(OsDisk))
}

fn write(file: &Database, changes: &[(TaskId, Option<Arc<Task>>)]) -> io::Result<()> {
    let mut transaction = file.begin_write().map_err(failed)?;
    // A node that was killed opens its archive at once, however large it is.
    transaction.set_quick_repair(true);
    {
        let mut table = transaction.open_table(RECORDS).map_err(failed)?;
        for (id, task) in changes {
            match task {
                Some(task) => {
                    let record = record::encode(task).map_err(io::Error::other)?;
                    table.insert(key(*id), record.as_slice()).map_err(failed)?;
                }
                None => drop(table.remove(key(*id)).map_err(failed)?),
            }
        }
    }
    kill_points::pass("archive-written");
    transaction.commit().map_err(failed)?;
    kill_points::pass("archive-synced");
    Ok(())
}

type Records = redb::ReadOnlyTable<(u8, u128), &'static [u8]>;

/// None as long as nothing was written.
fn records(file: &Database) -> io::Result<Option<Records>> {
    match file.begin_read().map_err(failed)?.open_table(RECORDS) {
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
        opened => opened.map(Some).map_err(failed),
    }
}

fn key(id: TaskId) -> (u8, u128) {
    (id.vshard().0, id.as_uuid().as_u128())
}

/// Damage is [`io::ErrorKind::InvalidData`]: also a page that lies where the file does not reach, and a table or a format that is
/// not ours.
#[expect(clippy::wildcard_enum_match_arm, reason = "all that is not the disk's or damage is told as it is")]
fn failed(error: impl Into<redb::Error>) -> io::Error {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    match error.into() {
        redb::Error::Io(error) if matches!(error.kind(), InvalidInput | UnexpectedEof) => {
            io::Error::new(InvalidData, error)
        }
        redb::Error::Io(error) => error,
        redb::Error::Corrupted(reason) => io::Error::new(InvalidData, reason),
        error @ (redb::Error::UpgradeRequired(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TableIsMultimap(_)
        | redb::Error::TypeDefinitionChanged { .. }
        | redb::Error::LockPoisoned(_)) => io::Error::new(InvalidData, error),
        error => io::Error::other(error),
    }
}

//! Raft's log on disk: openraft's storage traits over the write-ahead log, with the newest entries in memory.
//!
//! An entry is readable as soon as [`append`](RaftLogStorage::append) returns and durable when its callback is called.
//! What is committed is remembered without a write of its own: it goes with the next append or purge, or with the end of the
//! log. So it may be behind after a crash, never ahead: it stands behind every entry that it covers.

use std::{
    collections::VecDeque,
    fmt::Debug,
    io,
    ops::{Bound, RangeBounds},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use bytes::Bytes;
use openraft::{
    LogState, OptionalSend, RaftLogReader,
    entry::RaftEntry as _,
    storage::{IOFlushed, RaftLogStorage},
};
use prost::Message as _;
use tokio::{sync::oneshot, time::Instant};
use towline_core::mutants::{self, Mutant};
use towline_proto::v1;

use super::{RaftEntry, RaftLogId, RaftVote, StoreError, TypeConfig};
pub use crate::wal::LogHealth;
use crate::{
    kill_points, seams,
    wal::{
        EntryId, Place, Record, Recovered, Wal,
        disk::{Disk, Space},
    },
    wire::{self, WireError},
};

/// Bytes of entries that one batch of replication carries: a peer refuses frames of more than 8 MiB, and an entry
/// that is larger by itself travels alone.
const REPLICATION_BATCH_BYTES: usize = 1024 * 1024;
/// Bytes of entries that are kept in memory. Followers that keep up and the state machine read from here; a follower
/// that was away, and a start, read older ones from disk.
const HOT_BYTES: usize = 64 * 1024 * 1024;
/// What an entry costs in a frame besides its proposal.
const ENTRY_OVERHEAD: usize = 64;
/// No proposal is taken when less than this is free: the log, snapshots and the other nodes' entries still need room.
const DISK_RESERVE_BYTES: u64 = 128 * 1024 * 1024;
/// On a small disk the reserve is this part of it.
const DISK_RESERVE_PART: u64 = 10;
/// How long an answer about free room is believed: every proposal asks.
const SPACE_CHECK_EVERY: Duration = Duration::from_millis(200);

/// Why no proposal is taken: there is just enough room left for Raft itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("disk of {} is full: {free} bytes are free and {reserve} are kept for the log", dir.display())]
pub struct DiskFull {
    /// The folder of the log.
    pub dir: PathBuf,
    /// What is free.
    pub free: u64,
    /// What has to stay free.
    pub reserve: u64,
}

/// The log of this node; cheap to clone.
#[derive(Clone)]
pub struct LogStore(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    wal: Wal,
    disk: Arc<dyn Disk>,
    /// How many bytes of entries stay in memory.
    hot_bytes: usize,
    log: RwLock<Log>,
    space: Mutex<Option<(Instant, Space)>>,
}

/// The log as it reads, durable or not.
#[derive(Default)]
struct Log {
    vote: Option<RaftVote>,
    committed: Option<RaftLogId>,
    /// Whether `committed` is newer than what the log on disk says.
    committed_unsaved: bool,
    purged: Option<RaftLogId>,
    /// Behind `purged`, without a gap.
    entries: VecDeque<Slot>,
    /// How many of them, from the front, are on disk only.
    cold: usize,
    hot_bytes: usize,
}

/// Room for an entry.
struct Slot {
    log_id: RaftLogId,
    size: usize,
    held: Held,
}

/// Where an entry is to be had.
#[derive(Clone)]
enum Held {
    Hot(RaftEntry),
    Cold(Place),
}

impl LogStore {
    /// Opens the log in a folder, which is made if it is not there.
    ///
    /// # Errors
    /// When a file cannot be read, or the log is damaged where the disk had confirmed it.
    pub fn open(dir: &Path) -> Result<LogStore, StoreError> {
        Self::open_on(dir, seams::disk(), HOT_BYTES)
    }

    pub(crate) fn open_on(dir: &Path, disk: Arc<dyn Disk>, hot_bytes: usize) -> Result<LogStore, StoreError> {
        super::make_folder(dir)?;
        let (wal, recovered) = Wal::open(dir, disk.clone())?;
        let unreadable = |source| StoreError::Unreadable { path: dir.to_owned(), source: Box::new(source) };
        let mut log = Log::decode(recovered).map_err(unreadable)?;
        log.cool(hot_bytes, |index| wal.place(index));
        let (log, space) = (RwLock::new(log), Mutex::new(None));
        Ok(LogStore(Arc::new(Inner { dir: dir.to_owned(), wal, disk, hot_bytes, log, space })))
    }

    /// Index of the last entry, or 0 when there is none.
    pub fn last_index(&self) -> u64 {
        self.read(|log| log.last_log_id().map_or(0, |log_id| log_id.index))
    }

    /// Index of the last entry that was removed, since a snapshot holds it; or 0 when none was.
    pub fn purged_index(&self) -> u64 {
        self.read(|log| log.purged.map_or(0, |log_id| log_id.index))
    }

    /// Whether the log can be written. A full reserve shows as [`LogHealth::Full`], before any write has to wait.
    pub fn health(&self) -> LogHealth {
        match self.0.wal.health() {
            LogHealth::Ok if self.space().is_some_and(|space| space.read_only) => {
                LogHealth::Failed { detail: format!("file system of {} is read-only", self.0.dir.display()) }
            }
            LogHealth::Ok if self.has_room().is_err() => LogHealth::Full,
            health @ (LogHealth::Ok | LogHealth::Full | LogHealth::Failed { .. }) => health,
        }
    }

    /// Whether there is room for new work. Asked before every proposal, so that work is refused while the log, votes
    /// and snapshots can still be written.
    ///
    /// # Errors
    /// When less than the reserve is free.
    pub fn has_room(&self) -> Result<(), DiskFull> {
        self.has_reserve(1)
    }

    /// Whether there is room for what running tasks come to: they may use half of the reserve, so that work that was taken
    /// ends, and the other half is Raft's.
    ///
    /// # Errors
    /// When less than half of the reserve is free.
    pub fn has_room_for_running(&self) -> Result<(), DiskFull> {
        self.has_reserve(2)
    }

    /// Whether there is room for so many bytes that are no part of the log. It is looked up each time: such bytes come faster
    /// than what is known of the room grows old.
    ///
    /// # Errors
    /// When less than the reserve would be free.
    pub(crate) fn has_room_beside(&self, bytes: u64) -> Result<(), DiskFull> {
        let Some(Space { free, total, .. }) = self.fresh_space() else { return Ok(()) };
        let reserve = DISK_RESERVE_BYTES.min(total / DISK_RESERVE_PART);
        if free < reserve.saturating_add(bytes) {
            return Err(DiskFull { dir: self.0.dir.clone(), free, reserve });
        }
        Ok(())
    }

    fn has_reserve(&self, part: u64) -> Result<(), DiskFull> {
        let Some(Space { free, total, .. }) = self.space() else { return Ok(()) };
        let reserve = DISK_RESERVE_BYTES.min(total / DISK_RESERVE_PART) / part;
        if free < reserve { Err(DiskFull { dir: self.0.dir.clone(), free, reserve }) } else { Ok(()) }
    }

    /// Lets a write that waits for room on the disk fail, so that a node with a full disk can stop.
    pub fn stop_waiting(&self) {
        self.0.wal.stop_waiting();
    }

    /// Writes what is queued and ends the thread of the log.
    pub async fn close(&self) {
        let last = self.update(Log::take_unsaved);
        if let Some(last) = last
            && let Err(error) = self.0.wal.write(vec![last]).await
        {
            tracing::debug!(%error, "log ends without its last word on what is committed");
        }
        self.0.wal.close().await;
    }

    /// A disk that cannot say how much is free is taken to have room: the write itself will tell.
    fn space(&self) -> Option<Space> {
        let known = *self.known_space();
        match known {
            Some((at, space)) if at.elapsed() < SPACE_CHECK_EVERY => Some(space),
            Some(_) | None => self.fresh_space(),
        }
    }

    /// What is free at this moment, which everyone knows from here on.
    fn fresh_space(&self) -> Option<Space> {
        let space = self.0.disk.space(&self.0.dir).ok()?;
        *self.known_space() = Some((Instant::now(), space));
        Some(space)
    }

    fn known_space(&self) -> MutexGuard<'_, Option<(Instant, Space)>> {
        self.0.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entries of a range that are in the log, the first of them at least and no more bytes than allowed. Cold ones
    /// may be purged while they are read: then the log says so when it is asked again.
    async fn entries<RB: RangeBounds<u64> + Clone>(&self, range: RB, max_bytes: usize) -> io::Result<Vec<RaftEntry>> {
        loop {
            let (held, purged) = self.read(|log| (log.select(range.clone(), max_bytes), log.purged));
            let all_hot = held.iter().all(|held| matches!(held, Held::Hot(_)));
            let found = if all_hot { warm(held, Vec::new()) } else { self.fetch(held).await };
            match found {
                Err(error) if error.kind() == io::ErrorKind::NotFound && self.read(|log| log.purged) != purged => {}
                found => return found,
            }
        }
    }

    async fn fetch(&self, held: Vec<Held>) -> io::Result<Vec<RaftEntry>> {
        let store = self.clone();
        let fetch = move || {
            let places: Vec<Place> = held.iter().filter_map(Held::place).collect();
            warm(held, store.0.wal.read(&places)?)
        };
        seams::blocking(fetch).await?
    }

    fn read<R>(&self, f: impl FnOnce(&Log) -> R) -> R {
        f(&self.0.log.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn update<R>(&self, f: impl FnOnce(&mut Log) -> R) -> R {
        f(&mut self.0.log.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Held {
    fn place(&self) -> Option<Place> {
        match self {
            Held::Hot(_) => None,
            Held::Cold(place) => Some(*place),
        }
    }
}

/// Puts what was read from disk where it belongs.
fn warm(held: Vec<Held>, cold: Vec<Bytes>) -> io::Result<Vec<RaftEntry>> {
    let mut cold = cold.into_iter();
    let entry = |held| match held {
        Held::Hot(entry) => Ok(entry),
        Held::Cold(_) => {
            let body = cold.next().expect("one body was read for each cold entry");
            wire::decode_entry(body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        }
    };
    held.into_iter().map(entry).collect()
}

impl Log {
    fn decode(recovered: Recovered) -> Result<Log, WireError> {
        let mut log = Log {
            vote: recovered.vote.map(decode_vote).transpose()?,
            committed: recovered.committed.map(decode_log_id).transpose()?,
            purged: recovered.purged.map(|(_, log_id)| decode_log_id(log_id)).transpose()?,
            ..Log::default()
        };
        for (_, body) in recovered.entries {
            log.push(wire::decode_entry(body)?);
        }
        log.committed = log.committed.min(log.last_log_id());
        Ok(log)
    }

    fn last_log_id(&self) -> Option<RaftLogId> {
        self.entries.back().map(|slot| slot.log_id).or(self.purged)
    }

    fn append(&mut self, entry: RaftEntry) -> io::Result<()> {
        let index = entry.log_id.index;
        match self.last_log_id() {
            Some(last) if last.index + 1 != index => {
                Err(io::Error::other(format!("append entry {index} behind entry {}", last.index)))
            }
            Some(_) | None => {
                self.push(entry);
                Ok(())
            }
        }
    }

    fn push(&mut self, entry: RaftEntry) {
        let size = size_of_entry(&entry);
        self.hot_bytes += size;
        self.entries.push_back(Slot { log_id: entry.log_id, size, held: Held::Hot(entry) });
    }

    fn truncate_after(&mut self, after: Option<u64>) {
        while self.entries.back().is_some_and(|slot| after.is_none_or(|after| slot.log_id.index > after)) {
            let removed = self.entries.pop_back();
            self.forget(removed);
        }
        self.cold = self.cold.min(self.entries.len());
    }

    fn purge(&mut self, upto: RaftLogId) {
        while self.entries.front().is_some_and(|slot| slot.log_id.index <= upto.index) {
            let removed = self.entries.pop_front();
            self.cold = self.cold.saturating_sub(1);
            self.forget(removed);
        }
        self.purged = self.purged.max(Some(upto));
    }

    /// What the log on disk does not say yet of what is committed.
    fn take_unsaved(&mut self) -> Option<Record> {
        std::mem::take(&mut self.committed_unsaved)
            .then(|| self.committed.as_ref().map(|committed| Record::Committed(encode_log_id(committed))))
            .flatten()
    }

    fn forget(&mut self, slot: Option<Slot>) {
        self.hot_bytes -= match slot {
            Some(Slot { size, held: Held::Hot(_), .. }) => size,
            Some(Slot { held: Held::Cold(_), .. }) | None => 0,
        };
    }

    /// Leaves the oldest entries to the disk while more is in memory than allowed: those that are committed, so that
    /// they stay what they are, and written.
    fn cool(&mut self, hot_bytes: usize, place: impl Fn(u64) -> Option<Place>) {
        while self.hot_bytes > hot_bytes {
            let Some(slot) = self.entries.get_mut(self.cold) else { return };
            let written = place(slot.log_id.index).filter(|place| place.id == entry_id(&slot.log_id));
            let Some(place) = written.filter(|_| Some(slot.log_id) <= self.committed) else { return };
            slot.held = Held::Cold(place);
            self.hot_bytes -= slot.size;
            self.cold += 1;
        }
    }

    fn select(&self, range: impl RangeBounds<u64>, max_bytes: usize) -> Vec<Held> {
        let Some(first) = self.entries.front().map(|slot| slot.log_id.index) else { return Vec::new() };
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => first,
        };
        let skipped = usize::try_from(start.saturating_sub(first)).unwrap_or(usize::MAX);
        let mut bytes = 0;
        let mut selected = Vec::new();
        for slot in self.entries.iter().skip(skipped).take_while(|slot| range.contains(&slot.log_id.index)) {
            bytes += slot.size;
            if bytes > max_bytes && !selected.is_empty() {
                break;
            }
            selected.push(slot.held.clone());
        }
        selected
    }
}

fn entry_id(log_id: &RaftLogId) -> EntryId {
    EntryId { index: log_id.index, term: log_id.leader_id.term, node: log_id.leader_id.node_id }
}

fn size_of_entry(entry: &RaftEntry) -> usize {
    let body = match &entry.payload {
        openraft::EntryPayload::Normal(logged) => logged.payload().len(),
        openraft::EntryPayload::Blank | openraft::EntryPayload::Membership(_) => 0,
    };
    ENTRY_OVERHEAD + body
}

fn encode_log_id(log_id: &RaftLogId) -> Bytes {
    wire::log_id_to_proto(log_id).encode_to_vec().into()
}

fn decode_log_id(bytes: Bytes) -> Result<RaftLogId, WireError> {
    let log_id = v1::LogId::decode(bytes).map_err(|source| WireError::Envelope { what: "log id", source })?;
    Ok(wire::log_id_from_proto(&log_id))
}

fn encode_vote(vote: &RaftVote) -> Bytes {
    wire::vote_to_proto(vote).encode_to_vec().into()
}

fn decode_vote(bytes: Bytes) -> Result<RaftVote, WireError> {
    let vote = v1::Vote::decode(bytes).map_err(|source| WireError::Envelope { what: "vote", source })?;
    Ok(wire::vote_from_proto(&vote))
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<RaftEntry>, io::Error> {
        self.entries(range, usize::MAX).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<RaftEntry>, io::Error> {
        let entries = self.entries(start..end, REPLICATION_BATCH_BYTES).await?;
        // Who has just lost its leadership may ask for what it has purged since, or the new leader has cut off: it gets nothing
        // and finds out before it sends anything. An error would end its Raft.
        let begins_there = entries.first().is_some_and(|entry| entry.index() == start);
        Ok(if begins_there { entries } else { Vec::new() })
    }

    async fn read_vote(&mut self) -> Result<Option<RaftVote>, io::Error> {
        Ok(self.read(|log| log.vote))
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        Ok(self.read(|log| LogState { last_purged_log_id: log.purged, last_log_id: log.last_log_id() }))
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &RaftVote) -> Result<(), io::Error> {
        let (done, durable) = oneshot::channel();
        let record = Record::Vote(encode_vote(vote));
        if mutants::on(Mutant::VoteNotSynced) {
            self.update(|log| log.vote = Some(*vote));
            return self.0.wal.write(vec![record]).await;
        }
        let notify = move |outcome| {
            if done.send(outcome).is_err() {
                tracing::debug!("nobody waits for the vote any more");
            }
        };
        self.0.wal.write_durably(vec![record], Box::new(notify)).await?;
        durable.await.map_err(|_| io::Error::other("log ended before the vote was durable"))??;
        kill_points::pass("vote-saved");
        self.update(|log| log.vote = Some(*vote));
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<RaftLogId>) -> Result<(), io::Error> {
        let Some(committed) = committed else { return Ok(()) };
        self.update(|log| {
            log.committed_unsaved |= log.committed != Some(committed);
            log.committed = Some(committed);
            log.cool(self.0.hot_bytes, |index| self.0.wal.place(index));
        });
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<RaftLogId>, io::Error> {
        Ok(self.read(|log| log.committed))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<RaftEntry> = entries.into_iter().collect();
        let record =
            |entry: &RaftEntry| Record::Entry { id: entry_id(&entry.log_id), body: wire::encode_entry(entry).into() };
        let mut records = Vec::with_capacity(entries.len() + 1);
        records.extend(self.update(Log::take_unsaved));
        records.extend(entries.iter().map(record));
        self.update(|log| entries.into_iter().try_for_each(|entry| log.append(entry)))?;
        self.0.wal.write_durably(records, Box::new(|outcome| callback.io_completed(outcome))).await
    }

    async fn truncate_after(&mut self, last_log_id: Option<RaftLogId>) -> Result<(), io::Error> {
        let after = last_log_id.map(|log_id| log_id.index);
        if let Some(committed) = self.read(|log| log.committed).filter(|committed| Some(committed.index) > after) {
            return Err(io::Error::other(format!(
                "entry {} of the log in {} is committed, and another leader has another one in its place: a node has lost what \
                 it had stored; see which of them differs before one is replaced",
                committed.index,
                self.0.dir.display()
            )));
        }
        self.update(|log| log.truncate_after(after));
        self.0.wal.write(vec![Record::Truncate { after }]).await
    }

    async fn purge(&mut self, log_id: RaftLogId) -> Result<(), io::Error> {
        let committed = self.update(|log| {
            log.purge(log_id);
            log.take_unsaved()
        });
        let purge = Record::Purge { upto: log_id.index, log_id: encode_log_id(&log_id) };
        self.0.wal.write(committed.into_iter().chain([purge]).collect()).await
    }
}

#[cfg(test)]
mod tests;

//! The write-ahead log: what Raft must remember, durable and in order.
//!
//! One thread owns the files. It drains its queue, writes everything as one run of records and makes it durable with
//! one `fdatasync` (group commit), then tells every waiter. Votes, entries, truncations and purges share the queue, so
//! a later word is never durable without an earlier one.
//!
//! ```text
//! segment  = header, record, record, ..., zeros          wal-00000000000000000001.log
//! header   = mark(8) | sequence(8) | base(8) | crc(4) | 0(4)
//! record   = mark(4) | crc(4) | offset(8) | durable(8) | length(4) | kind(1) | 0(3) | payload | 0 to a multiple of 8
//! ```
//! `offset` counts bytes of records over all segments; `base` is the offset of a segment's first record. `durable` is the
//! offset up to which the disk had confirmed everything when the record was written, which is what makes recovery
//! honest: a bad record at or behind the last offset that any record proves durable is the torn end of a crash and is
//! cut; a bad record before it is damage, and the node refuses to start. A segment is made only after everything
//! before it is durable, so its header proves that.
//!
//! A full disk is waited for, with everything kept; a failed `fdatasync` or any other failed write is final.

pub(crate) mod disk;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::raft::StoreError;
use disk::{Disk, DiskFile, is_full};

const SEGMENT_MARK: [u8; 8] = *b"TOWLWAL1";
const RECORD_MARK: [u8; 4] = *b"TwRc";
const SEGMENT_HEADER: usize = 32;
const RECORD_HEADER: usize = 32;
/// Records begin at multiples of this, so that one behind a damaged one can be found.
const ALIGNMENT: usize = 8;

/// A segment that has reached this is closed: small enough to read at once at start, large enough that a purge
/// removes whole files.
const SEGMENT_BYTES: u64 = 64 * 1024 * 1024;
/// Room is reserved in steps of this, so that a write inside of it can neither fail for lack of room nor has to change
/// the size of the file.
const ALLOCATION_STEP: u64 = 4 * 1024 * 1024;
/// A larger record is refused: nothing that fits through the peer protocol comes near it.
pub(crate) const MAX_RECORD_BYTES: usize = 16 * 1024 * 1024;
/// Appends, votes and so on that wait for the thread; beyond it Raft itself waits.
const QUEUE: usize = 1_024;
/// One run of records is not made longer than this, so that its first waiter does not wait for all the others.
const RUN_BYTES: usize = 8 * 1024 * 1024;
/// How often a write that found the disk full is tried again.
const FULL_DISK_RETRY: Duration = Duration::from_millis(200);

/// Whether the log can be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum LogHealth {
    /// It can.
    Ok,
    /// A write waits for room.
    Full,
    /// A write failed for good: the node has to be started again.
    Failed {
        /// What failed.
        detail: String,
    },
}

/// One thing to remember.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// An entry of the log.
    Entry {
        /// Its index; the next of the one before, unless a truncation lies between.
        index: u64,
        /// The encoded entry.
        body: Bytes,
    },
    /// The vote.
    Vote(Bytes),
    /// Up to where entries are known to be committed.
    Committed(Bytes),
    /// Entries behind this one are void; all of them if there is none.
    Truncate {
        /// The last one that stays.
        after: Option<u64>,
    },
    /// Entries up to and with this one are in a snapshot.
    Purge {
        /// Index of the last one.
        upto: u64,
        /// Its encoded log id.
        log_id: Bytes,
    },
    /// Nothing, except that it proves what was durable before it.
    Mark,
}

/// What the log held when it was opened.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Recovered {
    pub(crate) vote: Option<Bytes>,
    pub(crate) committed: Option<Bytes>,
    pub(crate) purged: Option<(u64, Bytes)>,
    /// Behind `purged`, without a gap.
    pub(crate) entries: VecDeque<(u64, Bytes)>,
}

/// Called once the records of a job are durable, or never will be.
pub(crate) type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

enum Job {
    Write { records: Vec<Record>, sync: Option<Done> },
    Close,
}

/// The log of a node; the way to its thread.
pub(crate) struct Wal {
    queue: mpsc::Sender<Job>,
    watched: Arc<Watched>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

/// What the thread shares.
struct Watched {
    health: Mutex<LogHealth>,
    stop_waiting: AtomicBool,
}

impl Wal {
    /// Opens the log of a folder, or begins it.
    ///
    /// # Errors
    /// When a file cannot be read, or the log is damaged where it was durable.
    pub(crate) fn open(dir: &Path, disk: Arc<dyn Disk>) -> Result<(Wal, Recovered), StoreError> {
        let (writer, recovered) = Writer::recover(dir, disk)?;
        let (queue, jobs) = mpsc::channel(QUEUE);
        let watched = Arc::new(Watched { health: Mutex::new(LogHealth::Ok), stop_waiting: AtomicBool::new(false) });
        let shared = watched.clone();
        let thread = thread::Builder::new()
            .name("towline-wal".to_owned())
            .spawn(move || LogThread { writer, jobs, watched: shared, failed: None }.run())
            .map_err(|source| StoreError::File { action: "start the log thread for", path: dir.to_owned(), source })?;
        Ok((Wal { queue, watched, thread: Mutex::new(Some(thread)) }, recovered))
    }

    /// Queues records that need not be durable before anything else is said.
    pub(crate) async fn write(&self, records: Vec<Record>) -> io::Result<()> {
        self.enqueue(Job::Write { records, sync: None }).await
    }

    /// Queues records; `done` is called when they are durable.
    pub(crate) async fn write_durably(&self, records: Vec<Record>, done: Done) -> io::Result<()> {
        self.enqueue(Job::Write { records, sync: Some(done) }).await
    }

    async fn enqueue(&self, job: Job) -> io::Result<()> {
        if let LogHealth::Failed { detail } = self.health() {
            return Err(io::Error::other(detail));
        }
        self.queue.send(job).await.map_err(|_| io::Error::other("log is closed"))
    }

    /// Whether the log can be written.
    pub(crate) fn health(&self) -> LogHealth {
        self.watched.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets a write that waits for room on the disk fail: the node stops.
    pub(crate) fn stop_waiting(&self) {
        self.watched.stop_waiting.store(true, Ordering::Relaxed);
    }

    /// Writes what is queued and ends the thread.
    pub(crate) async fn close(&self) {
        let closing = self.queue.send(Job::Close).await;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        if closing.is_err() {
            tracing::debug!("log thread had ended before");
        }
        if tokio::task::spawn_blocking(|| thread.join()).await.is_err() {
            tracing::error!("log thread was not joined");
        }
    }
}

/// The thread: it owns the files.
struct LogThread {
    writer: Writer,
    jobs: mpsc::Receiver<Job>,
    watched: Arc<Watched>,
    /// The first error that was final. Everything later fails with it, and nothing is tried again.
    failed: Option<(io::ErrorKind, String)>,
}

impl LogThread {
    fn run(mut self) {
        while let Some(first) = self.jobs.blocking_recv() {
            let (records, waiters, close) = self.drain(first);
            let outcome = self.perform(&records, !waiters.is_empty() || close);
            for done in waiters {
                done(outcome.clone().map_err(|(kind, detail)| io::Error::new(kind, detail)));
            }
            if close {
                break;
            }
        }
        self.seal();
    }

    /// Leaves a record which proves that everything before it is durable.
    fn seal(&mut self) {
        let sealed = self.perform(&[], true).and_then(|()| self.perform(&[Record::Mark], true));
        if let Err((_, detail)) = sealed {
            tracing::warn!(detail, "log was closed without its last mark");
        }
    }

    /// Everything that waits, up to one run.
    fn drain(&mut self, first: Job) -> (Vec<Record>, Vec<Done>, bool) {
        let (mut records, mut waiters, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut next = Some(first);
        while let Some(job) = next {
            match job {
                Job::Write { records: more, sync } => {
                    bytes += more.iter().map(Record::encoded_len).sum::<usize>();
                    records.extend(more);
                    waiters.extend(sync);
                }
                Job::Close => return (records, waiters, true),
            }
            next = if bytes < RUN_BYTES { self.jobs.try_recv().ok() } else { None };
        }
        (records, waiters, false)
    }

    fn perform(&mut self, records: &[Record], sync: bool) -> Result<(), (io::ErrorKind, String)> {
        if let Some(failure) = &self.failed {
            return Err(failure.clone());
        }
        let watched = self.watched.clone();
        let written = self.writer.write(records, sync, &|| watched.wait_for_room());
        match written {
            Ok(()) => {
                self.watched.set(LogHealth::Ok);
                Ok(())
            }
            Err(error) => {
                let failure = (error.kind(), format!("write the log in {}: {error}", self.writer.dir.display()));
                tracing::error!(error = failure.1, "log can no longer be written");
                self.watched.set(LogHealth::Failed { detail: failure.1.clone() });
                self.failed = Some(failure.clone());
                Err(failure)
            }
        }
    }
}

impl Watched {
    fn set(&self, health: LogHealth) {
        let mut current = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        if *current != health {
            tracing::warn!(from = ?*current, to = ?health, "log health changed");
            *current = health;
        }
    }

    /// Whether to try again a write that found the disk full.
    fn wait_for_room(&self) -> bool {
        if self.stop_waiting.load(Ordering::Relaxed) {
            return false;
        }
        self.set(LogHealth::Full);
        thread::sleep(FULL_DISK_RETRY);
        true
    }
}

/// A segment file and what it holds.
struct Segment {
    sequence: u64,
    path: PathBuf,
    base: u64,
    /// The greatest index of an entry in it, void ones too.
    last_entry: Option<u64>,
}

/// What the newest segment must repeat, so that older ones can go.
#[derive(Default)]
struct Standing {
    vote: Option<Bytes>,
    committed: Option<Bytes>,
    purged: Option<(u64, Bytes)>,
}

/// The files.
struct Writer {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// Oldest first; the last one is written. Never empty after `recover`.
    segments: VecDeque<Segment>,
    file: Box<dyn DiskFile>,
    /// Offset behind the last record.
    end: u64,
    /// Offset up to which the disk confirmed everything.
    durable: u64,
    /// How far the written file has room reserved, in bytes of the file.
    allocated: u64,
    standing: Standing,
    buffer: Vec<u8>,
}

impl Writer {
    /// Writes records, and makes them durable if asked to. `wait_for_room` is asked whether to try again when the disk
    /// is full.
    fn write(&mut self, records: &[Record], sync: bool, wait_for_room: &dyn Fn() -> bool) -> io::Result<()> {
        let mut purged = false;
        for record in records {
            if self.position(self.end) >= SEGMENT_BYTES {
                self.flush(wait_for_room)?;
                self.rotate(wait_for_room)?;
            }
            purged |= matches!(record, Record::Purge { .. });
            self.stage(record)?;
        }
        self.flush(wait_for_room)?;
        if sync || (purged && self.has_purgeable_segment()) {
            self.sync()?;
        }
        if purged {
            self.remove_purged_segments()?;
        }
        Ok(())
    }

    fn stage(&mut self, record: &Record) -> io::Result<()> {
        if record.encoded_len() > MAX_RECORD_BYTES {
            let reason = format!("record of {} bytes exceeds {MAX_RECORD_BYTES}", record.encoded_len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        match record {
            Record::Entry { index, .. } => {
                let segment = self.segments.back_mut().expect("recovery leaves a segment");
                segment.last_entry = segment.last_entry.max(Some(*index));
            }
            Record::Vote(vote) => self.standing.vote = Some(vote.clone()),
            Record::Committed(committed) => self.standing.committed = Some(committed.clone()),
            Record::Purge { upto, log_id } => self.standing.purged = Some((*upto, log_id.clone())),
            Record::Truncate { .. } | Record::Mark => {}
        }
        record.encode(self.end, self.durable, &mut self.buffer);
        self.end += record.encoded_len() as u64;
        Ok(())
    }

    /// Writes the staged records. When the disk is full the same bytes are written again at the same place.
    fn flush(&mut self, wait_for_room: &dyn Fn() -> bool) -> io::Result<()> {
        let until = self.position(self.end);
        let from = until - self.buffer.len() as u64;
        loop {
            match self.put(from, until) {
                Ok(()) => break,
                Err(error) if is_full(&error) && wait_for_room() => {}
                Err(error) => return Err(error),
            }
        }
        self.buffer.clear();
        Ok(())
    }

    fn put(&mut self, from: u64, until: u64) -> io::Result<()> {
        if until > self.allocated {
            let step = (until - self.allocated).next_multiple_of(ALLOCATION_STEP);
            match self.file.allocate(self.allocated, step) {
                Ok(()) => self.allocated += step,
                Err(error) if is_full(&error) => {}
                Err(error) => return Err(error),
            }
        }
        self.file.write_at(&self.buffer, from)
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.durable < self.end {
            self.file.sync()?;
            self.durable = self.end;
        }
        Ok(())
    }

    /// Closes the written segment, once all of it is durable, and begins the next one.
    fn rotate(&mut self, wait_for_room: &dyn Fn() -> bool) -> io::Result<()> {
        self.sync()?;
        let sequence = self.segments.back().map_or(1, |segment| segment.sequence + 1);
        loop {
            match begin_segment(self.disk.as_ref(), &self.dir, sequence, self.end) {
                Ok((segment, file)) => {
                    self.segments.push_back(segment);
                    self.file = file;
                    self.allocated = 0;
                    break;
                }
                Err(error) if is_full(&error) && wait_for_room() => {}
                Err(error) => return Err(error),
            }
        }
        for record in self.standing.records() {
            self.stage(&record)?;
        }
        Ok(())
    }

    fn has_purgeable_segment(&self) -> bool {
        self.segments.len() > 1 && self.segments.front().is_some_and(|oldest| self.is_purged(oldest))
    }

    fn is_purged(&self, segment: &Segment) -> bool {
        match (segment.last_entry, &self.standing.purged) {
            (None, _) => true,
            (Some(last), Some((upto, _))) => last <= *upto,
            (Some(_), None) => false,
        }
    }

    /// Removes the oldest segments that hold no entry that is still needed. The purge is durable by then.
    fn remove_purged_segments(&mut self) -> io::Result<()> {
        let mut removed = false;
        while self.has_purgeable_segment() {
            let Some(oldest) = self.segments.pop_front() else { break };
            self.disk.remove(&oldest.path)?;
            removed = true;
        }
        if removed {
            self.disk.sync_dir(&self.dir)?;
        }
        Ok(())
    }

    /// Where an offset lies in the written file.
    fn position(&self, offset: u64) -> u64 {
        let base = self.segments.back().map_or(0, |segment| segment.base);
        SEGMENT_HEADER as u64 + offset - base
    }
}

impl Standing {
    fn records(&self) -> Vec<Record> {
        let vote = self.vote.clone().map(Record::Vote);
        let committed = self.committed.clone().map(Record::Committed);
        let purged = self.purged.clone().map(|(upto, log_id)| Record::Purge { upto, log_id });
        [vote, committed, purged].into_iter().flatten().collect()
    }
}

/// Makes a segment and its header durable, replacing one that a crash or a full disk left half made.
fn begin_segment(disk: &dyn Disk, dir: &Path, sequence: u64, base: u64) -> io::Result<(Segment, Box<dyn DiskFile>)> {
    let path = dir.join(format!("wal-{sequence:020}.log"));
    let mut file = match disk.create(&path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let mut file = disk.open(&path)?;
            file.truncate(0)?;
            file
        }
        created => created?,
    };
    file.write_at(&encode_segment_header(sequence, base), 0)?;
    file.sync()?;
    disk.sync_dir(dir)?;
    Ok((Segment { sequence, path, base, last_entry: None }, file))
}

// ---- recovery ----

impl Writer {
    fn recover(dir: &Path, disk: Arc<dyn Disk>) -> Result<(Writer, Recovered), StoreError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::File { action, path, source }
        };
        let mut segments = VecDeque::new();
        let mut recovered = Recovered::default();
        let mut end = 0;
        let paths = segment_paths(disk.as_ref(), dir)?;
        let newest = paths.last().map(|(sequence, _)| *sequence);
        let mut cut = None;
        for (sequence, path) in paths {
            let bytes = disk.read(&path).map_err(failed("read", &path))?;
            let Some(base) = decode_segment_header(&bytes, sequence) else {
                if Some(sequence) == newest && find_record(&bytes, 0, |_| true).is_none() {
                    tracing::warn!(path = %path.display(), "removing a segment that a crash left half made");
                    disk.remove(&path).map_err(failed("remove", &path))?;
                    break;
                }
                return Err(damaged(&path, 0, "its header is not valid"));
            };
            if !segments.is_empty() && base != end {
                let reason = format!("it begins at {base}, and the segment before it ends at {end}");
                return Err(damaged(&path, 0, &reason));
            }
            let mut segment = Segment { sequence, path, base, last_entry: None };
            let length = read_segment(&mut segment, &bytes, &mut recovered)?;
            end = base + (length - SEGMENT_HEADER) as u64;
            cut = Some(length as u64);
            segments.push_back(segment);
        }
        recovered.finish().map_err(|reason| damaged(dir, 0, &reason))?;

        let file = match (segments.back(), cut) {
            (Some(newest), Some(length)) => open_cut(disk.as_ref(), newest, length)?,
            (None, _) | (_, None) => {
                let sequence = newest.unwrap_or(1);
                let (segment, file) = begin_segment(disk.as_ref(), dir, sequence, 0).map_err(failed("begin", dir))?;
                segments.push_back(segment);
                file
            }
        };
        let allocated = cut.unwrap_or(SEGMENT_HEADER as u64);
        let standing = Standing {
            vote: recovered.vote.clone(),
            committed: recovered.committed.clone(),
            purged: recovered.purged.clone(),
        };
        let dir = dir.to_owned();
        let writer = Writer { disk, dir, segments, file, end, durable: end, allocated, standing, buffer: Vec::new() };
        Ok((writer, recovered))
    }
}

/// Opens the newest segment behind its last good record: what lies there was never confirmed and must not come back.
/// Syncing it also makes durable what a crash left in the page cache, since it is now relied upon.
fn open_cut(disk: &dyn Disk, segment: &Segment, length: u64) -> Result<Box<dyn DiskFile>, StoreError> {
    let failed = |source| StoreError::File { action: "cut the torn end of", path: segment.path.clone(), source };
    let mut file = disk.open(&segment.path).map_err(failed)?;
    file.truncate(length).map_err(failed)?;
    file.sync().map_err(failed)?;
    Ok(file)
}

/// The segments of a folder, oldest first, without a gap.
fn segment_paths(disk: &dyn Disk, dir: &Path) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let paths = disk.list(dir).map_err(|source| StoreError::File { action: "list", path: dir.to_owned(), source })?;
    let mut segments: Vec<(u64, PathBuf)> =
        paths.into_iter().filter_map(|path| Some((sequence_of(&path)?, path))).collect();
    segments.sort();
    let gap = segments.windows(2).find(|pair| pair[1].0 != pair[0].0 + 1);
    match gap {
        Some(pair) => Err(damaged(&pair[0].1, 0, "the segment behind it is missing")),
        None => Ok(segments),
    }
}

fn sequence_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("wal-")?.strip_suffix(".log")?.parse().ok()
}

/// Takes the records of a segment; returns how many bytes of the file are good.
fn read_segment(segment: &mut Segment, bytes: &[u8], recovered: &mut Recovered) -> Result<usize, StoreError> {
    let mut position = SEGMENT_HEADER;
    loop {
        let offset = segment.base + (position - SEGMENT_HEADER) as u64;
        let Some(frame) = Frame::read(bytes, position, Some(offset)) else {
            check_torn(segment, bytes, position, offset)?;
            return Ok(position);
        };
        let payload = Bytes::copy_from_slice(&bytes[frame.payload.clone()]);
        let record =
            Record::decode(frame.kind, payload).map_err(|reason| damaged(&segment.path, position as u64, &reason))?;
        if let Record::Entry { index, .. } = &record {
            segment.last_entry = segment.last_entry.max(Some(*index));
        }
        recovered.take(record).map_err(|reason| damaged(&segment.path, position as u64, &reason))?;
        position = frame.next;
    }
}

/// A bad record is a torn end, unless a record behind it proves that the disk had confirmed it.
fn check_torn(segment: &Segment, bytes: &[u8], position: usize, offset: u64) -> Result<(), StoreError> {
    let proof = find_record(bytes, position + ALIGNMENT, |frame| frame.durable > offset);
    if let Some(proof) = proof {
        let reason = format!("the record is not valid, and one at byte {proof} says that it was durable");
        return Err(damaged(&segment.path, position as u64, &reason));
    }
    let torn = bytes.iter().skip(position).filter(|byte| **byte != 0).count();
    if torn > 0 {
        tracing::warn!(path = %segment.path.display(), position, torn, "cutting the torn end of the log");
    }
    Ok(())
}

/// The first position, from a given one on, of a valid record that is looked for.
fn find_record(bytes: &[u8], from: usize, wanted: impl Fn(&Frame) -> bool) -> Option<usize> {
    let candidates = (from..bytes.len()).step_by(ALIGNMENT).filter(|at| bytes[*at..].starts_with(&RECORD_MARK));
    candidates.into_iter().find(|at| Frame::read(bytes, *at, None).is_some_and(|frame| wanted(&frame)))
}

fn damaged(path: &Path, offset: u64, reason: &str) -> StoreError {
    StoreError::Damaged { path: path.to_owned(), offset, reason: reason.to_owned() }
}

impl Recovered {
    /// Takes the next record of the log.
    fn take(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Entry { index, body } => self.take_entry(index, body)?,
            Record::Vote(vote) => self.vote = Some(vote),
            Record::Committed(committed) => self.committed = Some(committed),
            Record::Truncate { after: None } => self.entries.clear(),
            Record::Truncate { after: Some(after) } => self.drop_behind(after),
            Record::Purge { upto, log_id } => {
                self.purged = Some((upto, log_id));
                self.drop_purged();
            }
            Record::Mark => {}
        }
        Ok(())
    }

    fn take_entry(&mut self, index: u64, body: Bytes) -> Result<(), String> {
        match self.entries.back() {
            Some((last, _)) if index > last + 1 => {
                return Err(format!("entry {index} follows entry {last}"));
            }
            Some(_) | None => {}
        }
        while self.entries.back().is_some_and(|(last, _)| *last >= index) {
            self.entries.pop_back();
        }
        self.entries.push_back((index, body));
        Ok(())
    }

    fn drop_behind(&mut self, after: u64) {
        while self.entries.back().is_some_and(|(last, _)| *last > after) {
            self.entries.pop_back();
        }
    }

    fn drop_purged(&mut self) {
        let Some((upto, _)) = &self.purged else { return };
        while self.entries.front().is_some_and(|(first, _)| first <= upto) {
            self.entries.pop_front();
        }
    }

    /// Checks that the entries follow what was purged. Only at the end: the oldest segment may hold entries whose
    /// purge is recorded in a later one.
    fn finish(&mut self) -> Result<(), String> {
        self.drop_purged();
        match (&self.purged, self.entries.front()) {
            (Some((upto, _)), Some((first, _))) if *first != upto + 1 => {
                Err(format!("entries begin at {first}, and those up to {upto} were purged"))
            }
            (Some(_) | None, Some(_) | None) => Ok(()),
        }
    }
}

// ---- bytes ----

/// A valid record in a file.
struct Frame {
    kind: u8,
    durable: u64,
    payload: Range<usize>,
    next: usize,
}

impl Frame {
    /// Reads the record at a position; nothing if it is not valid, or not the one with the expected offset.
    fn read(bytes: &[u8], at: usize, expected: Option<u64>) -> Option<Frame> {
        let header = bytes.get(at..at + RECORD_HEADER)?;
        let length = u32_at(header, 24) as usize;
        if header[..4] != RECORD_MARK || length > MAX_RECORD_BYTES {
            return None;
        }
        let payload = at + RECORD_HEADER..at + RECORD_HEADER + length;
        let checked = bytes.get(at + 8..payload.end)?;
        let offset = u64_at(header, 8);
        if crc32fast::hash(checked) != u32_at(header, 4) || expected.is_some_and(|expected| expected != offset) {
            return None;
        }
        let next = payload.end.next_multiple_of(ALIGNMENT);
        Some(Frame { kind: header[28], durable: u64_at(header, 16), payload, next })
    }
}

impl Record {
    const ENTRY: u8 = 1;
    const VOTE: u8 = 2;
    const COMMITTED: u8 = 3;
    const TRUNCATE: u8 = 4;
    const PURGE: u8 = 5;
    const MARK: u8 = 6;

    fn kind(&self) -> u8 {
        match self {
            Record::Entry { .. } => Self::ENTRY,
            Record::Vote(_) => Self::VOTE,
            Record::Committed(_) => Self::COMMITTED,
            Record::Truncate { .. } => Self::TRUNCATE,
            Record::Purge { .. } => Self::PURGE,
            Record::Mark => Self::MARK,
        }
    }

    fn payload_len(&self) -> usize {
        match self {
            Record::Entry { body, .. } => 8 + body.len(),
            Record::Vote(bytes) | Record::Committed(bytes) => bytes.len(),
            Record::Truncate { after } => after.map_or(0, |_| 8),
            Record::Purge { log_id, .. } => 8 + log_id.len(),
            Record::Mark => 0,
        }
    }

    fn encoded_len(&self) -> usize {
        (RECORD_HEADER + self.payload_len()).next_multiple_of(ALIGNMENT)
    }

    fn encode(&self, offset: u64, durable: u64, into: &mut Vec<u8>) {
        let at = into.len();
        let length = u32::try_from(self.payload_len()).expect("records are bounded by MAX_RECORD_BYTES");
        into.extend_from_slice(&RECORD_MARK);
        into.extend_from_slice(&[0; 4]);
        into.extend_from_slice(&offset.to_le_bytes());
        into.extend_from_slice(&durable.to_le_bytes());
        into.extend_from_slice(&length.to_le_bytes());
        into.extend_from_slice(&[self.kind(), 0, 0, 0]);
        match self {
            Record::Entry { index: number, body } | Record::Purge { upto: number, log_id: body } => {
                into.extend_from_slice(&number.to_le_bytes());
                into.extend_from_slice(body);
            }
            Record::Vote(body) | Record::Committed(body) => into.extend_from_slice(body),
            Record::Truncate { after: Some(after) } => into.extend_from_slice(&after.to_le_bytes()),
            Record::Truncate { after: None } | Record::Mark => {}
        }
        let crc = crc32fast::hash(&into[at + 8..]);
        into[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        into.resize(at + self.encoded_len(), 0);
    }

    fn decode(kind: u8, payload: Bytes) -> Result<Record, String> {
        let numbered = |payload: &Bytes| {
            let number = payload.get(..8).map(|number| u64_at(number, 0));
            number.map(|number| (number, payload.slice(8..))).ok_or("a record is too short".to_owned())
        };
        match kind {
            Self::ENTRY => numbered(&payload).map(|(index, body)| Record::Entry { index, body }),
            Self::VOTE => Ok(Record::Vote(payload)),
            Self::COMMITTED => Ok(Record::Committed(payload)),
            Self::TRUNCATE if payload.is_empty() => Ok(Record::Truncate { after: None }),
            Self::TRUNCATE => numbered(&payload).map(|(after, _)| Record::Truncate { after: Some(after) }),
            Self::PURGE => numbered(&payload).map(|(upto, log_id)| Record::Purge { upto, log_id }),
            Self::MARK => Ok(Record::Mark),
            kind => Err(format!("a record is of kind {kind}, which a newer version wrote")),
        }
    }
}

fn encode_segment_header(sequence: u64, base: u64) -> [u8; SEGMENT_HEADER] {
    let mut header = [0; SEGMENT_HEADER];
    header[..8].copy_from_slice(&SEGMENT_MARK);
    header[8..16].copy_from_slice(&sequence.to_le_bytes());
    header[16..24].copy_from_slice(&base.to_le_bytes());
    let crc = crc32fast::hash(&header[..24]);
    header[24..28].copy_from_slice(&crc.to_le_bytes());
    header
}

/// The base of a segment; nothing if its header is not valid.
fn decode_segment_header(bytes: &[u8], sequence: u64) -> Option<u64> {
    let header = bytes.get(..SEGMENT_HEADER)?;
    let valid = header[..8] == SEGMENT_MARK
        && u64_at(header, 8) == sequence
        && crc32fast::hash(&header[..24]) == u32_at(header, 24);
    valid.then(|| u64_at(header, 16))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

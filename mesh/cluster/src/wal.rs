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
//! Entries can be read back from where they lie, so that not all of them have to be kept in memory.
//!
//! A full disk is waited for, with everything kept; a failed `fdatasync` or any other failed write is final.

#[cfg(feature = "kill-points")]
pub(crate) mod ailing;
pub(crate) mod disk;
mod record;
mod recovery;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "kill-points"))]
pub(crate) mod through;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::{runtime::Handle, sync::mpsc};
use towline_core::mutants::{self, Mutant};
use towline_trace::metrics::instruments::LOG_SYNC_DURATION;

use crate::{kill_points, raft::StoreError, seams};
use disk::{Disk, DiskFile, is_full};
use record::{SEGMENT_HEADER, encode_segment_header, entry_in};

pub(crate) use record::{EntryId, MAX_RECORD_BYTES, Record};
pub(crate) use recovery::{Recovered, read_bytes};

/// A segment that has reached this is closed: small enough to read at once at start, large enough that a purge
/// removes whole files.
const SEGMENT_BYTES: u64 = 64 * 1024 * 1024;
/// Name of the note of the newest segment, before its number.
const BEGUN_PREFIX: &str = "begun-";
/// Room is reserved in steps of this, so that a write inside of it can neither fail for lack of room nor has to change
/// the size of the file.
const ALLOCATION_STEP: u64 = 4 * 1024 * 1024;
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

/// Where an entry lies on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) id: EntryId,
    /// Sequence of the segment.
    segment: u64,
    position: u64,
    length: usize,
}

/// Where the entries lie that were written, by index.
type Places = Arc<Mutex<BTreeMap<u64, Place>>>;

/// Called once the records of a job are durable, or never will be.
pub(crate) type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

enum Job {
    Write { records: Vec<Record>, sync: Option<Done> },
    Close,
}

/// The log of a node; the way to its thread.
pub(crate) struct Wal {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    places: Places,
    queue: mpsc::Sender<Job>,
    watched: Arc<Watched>,
    worker: Mutex<Option<Worker>>,
}

/// Who works the queue off.
enum Worker {
    Thread(thread::JoinHandle<()>),
    /// On a simulated machine, and where the log lies in memory.
    Task(tokio::task::JoinHandle<()>),
}

/// What the thread shares.
struct Watched {
    health: Mutex<LogHealth>,
    stop_waiting: AtomicBool,
    /// The log is written by a task, which waits where others can run.
    in_runtime: bool,
}

impl Wal {
    /// Opens the log of a folder, or begins it.
    ///
    /// # Errors
    /// When a file cannot be read, or the log is damaged where it was durable.
    pub(crate) fn open(dir: &Path, disk: Arc<dyn Disk>) -> Result<(Wal, Recovered), StoreError> {
        let (writer, recovered) = Writer::recover(dir, disk.clone())?;
        let places = writer.places.clone();
        let (queue, jobs) = mpsc::channel(QUEUE);
        // A thread is for a device that is waited for; handing work to one costs more than to copy the bytes.
        let runtime = Handle::try_current().ok().filter(|_| seams::simulated().is_some() || disk.is_memory(dir));
        let watched = Arc::new(Watched {
            health: Mutex::new(LogHealth::Ok),
            stop_waiting: AtomicBool::new(false),
            in_runtime: runtime.is_some(),
        });
        let shared = watched.clone();
        let thread = LogThread { writer, jobs, watched: shared, failed: None };
        let worker = Worker::start(thread, runtime).map_err(|source| StoreError::File {
            action: "start the log thread for",
            path: dir.to_owned(),
            source,
        })?;
        Ok((Wal { dir: dir.to_owned(), disk, places, queue, watched, worker: Mutex::new(Some(worker)) }, recovered))
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

    /// Where an entry lies, once it is written.
    pub(crate) fn place(&self, index: u64) -> Option<Place> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).get(&index).copied()
    }

    /// Reads entries back. Blocking.
    ///
    /// # Errors
    /// `NotFound` when a segment was purged meanwhile, `InvalidData` when the disk changed what was written.
    pub(crate) fn read(&self, places: &[Place]) -> io::Result<Vec<Bytes>> {
        let mut bodies = Vec::with_capacity(places.len());
        for of_one_segment in places.chunk_by(|one, next| one.segment == next.segment) {
            let path = segment_path(&self.dir, of_one_segment[0].segment);
            let ranges: Vec<(u64, usize)> = of_one_segment.iter().map(|place| (place.position, place.length)).collect();
            let records = self.disk.read_ranges(&path, &ranges)?;
            for (place, record) in of_one_segment.iter().zip(records) {
                bodies.push(entry_in(place.id, &record).ok_or_else(|| unreadable(&path, place))?);
            }
        }
        Ok(bodies)
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
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(worker) = worker else { return };
        if closing.is_err() {
            tracing::debug!("log thread had ended before");
        }
        let joined = match worker {
            Worker::Thread(thread) => tokio::task::spawn_blocking(|| thread.join()).await.map(drop),
            Worker::Task(task) => task.await,
        };
        if joined.is_err() {
            tracing::error!("log thread was not joined");
        }
    }
}

impl Worker {
    fn start(log: LogThread, runtime: Option<Handle>) -> io::Result<Self> {
        if let Some(runtime) = runtime {
            return Ok(Worker::Task(runtime.spawn(log.run_inside())));
        }
        thread::Builder::new().name("towline-wal".to_owned()).spawn(move || log.run()).map(Worker::Thread)
    }
}

/// The thread: it owns the files.
struct LogThread {
    writer: Writer,
    jobs: mpsc::Receiver<Job>,
    watched: Arc<Watched>,
    /// The first error that was final. Everything later fails with it, and nothing is tried again.
    failed: Option<Failure>,
}

/// Why a write failed, for everyone who waits for it.
type Failure = (io::ErrorKind, String);

/// Records that were written together.
struct Run {
    written: Result<(), Failure>,
    must_sync: bool,
    waiters: Vec<Done>,
    close: bool,
}

impl Run {
    fn answer(&mut self, outcome: &Result<(), Failure>) {
        for done in self.waiters.drain(..) {
            done(outcome.clone().map_err(|(kind, detail)| io::Error::new(kind, detail)));
        }
    }
}

impl LogThread {
    fn run(mut self) {
        while let Some(first) = self.jobs.blocking_recv() {
            let run = self.begin(first);
            if self.finish(run) {
                break;
            }
        }
        self.seal();
    }

    /// The same inside of the runtime. A simulated machine may stop between a write and its sync.
    async fn run_inside(mut self) {
        while let Some(first) = self.jobs.recv().await {
            let mut run = self.begin(first);
            while matches!(run.written, Err((io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded, _)))
                && self.failed.is_none()
            {
                tokio::time::sleep(FULL_DISK_RETRY).await;
                // What was staged is still there.
                run.written = self.perform(&[], false);
            }
            if let Some(machine) = seams::simulated().filter(|_| run.must_sync) {
                tokio::time::sleep(machine.sync_takes()).await;
            }
            if self.finish(run) {
                break;
            }
        }
        self.seal();
    }

    /// Writes what waits.
    fn begin(&mut self, first: Job) -> Run {
        let (records, waiters, close) = self.drain(first);
        let written = self.perform(&records, false);
        let mut run = Run { written, must_sync: !waiters.is_empty() || close, waiters, close };
        if mutants::on(Mutant::AckBeforeFsync) {
            run.answer(&Ok(()));
        }
        run
    }

    /// Makes what was written durable if somebody waits for it, and tells them. Returns whether the log is closed.
    fn finish(&mut self, mut run: Run) -> bool {
        let synced = match &run.written {
            Ok(()) if run.must_sync => self.perform(&[], true),
            written => written.clone(),
        };
        run.answer(&synced);
        run.close
    }

    /// Leaves a record which proves that everything before it is durable.
    fn seal(&mut self) {
        let sealed = self.perform(&[], true).and_then(|()| self.perform(&[Record::Mark], true));
        if let Err((_, detail)) = sealed {
            tracing::warn!(detail, "log was closed without its last mark");
        }
        kill_points::pass("wal-sealed");
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

    fn perform(&mut self, records: &[Record], sync: bool) -> Result<(), Failure> {
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
            Err(error) if is_full(&error) && self.watched.waits_elsewhere() => Err((error.kind(), error.to_string())),
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
        if self.waits_elsewhere() {
            return false;
        }
        thread::sleep(FULL_DISK_RETRY);
        true
    }

    /// A task waits where others can run, and where the time of a simulated machine passes.
    fn waits_elsewhere(&self) -> bool {
        self.in_runtime && !self.stop_waiting.load(Ordering::Relaxed)
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
    /// Where the entries of the buffer will lie.
    staged: Vec<Place>,
    places: Places,
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
        if !records.is_empty() {
            kill_points::pass("wal-run-written");
        }
        let removable = purged && self.has_purgeable_segment();
        if sync || removable {
            self.sync()?;
            kill_points::pass("wal-run-synced");
        }
        if purged {
            self.forget_purged_places();
        }
        if removable {
            // From here on only the newer segments say what stands, so a record behind proves that they are durable.
            self.stage(&Record::Mark)?;
            self.flush(wait_for_room)?;
            kill_points::pass("wal-purge-marked");
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
            Record::Entry { id, .. } => {
                let position = self.position(self.end);
                let segment = self.segments.back_mut().expect("recovery leaves a segment");
                segment.last_entry = segment.last_entry.max(Some(id.index));
                let (segment, length) = (segment.sequence, record.encoded_len());
                self.staged.push(Place { id: *id, segment, position, length });
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
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.extend(self.staged.drain(..).map(|place| (place.id.index, place)));
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
            let began = Instant::now();
            self.file.sync()?;
            LOG_SYNC_DURATION.add(began.elapsed().as_secs_f64(), &[]);
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

    fn forget_purged_places(&self) {
        let Some((upto, _)) = &self.standing.purged else { return };
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        *places = places.split_off(&upto.saturating_add(1));
    }

    /// Removes the oldest segments that hold no entry that is still needed. The purge is durable by then.
    fn remove_purged_segments(&mut self) -> io::Result<()> {
        let mut removed = false;
        while self.has_purgeable_segment() {
            let Some(oldest) = self.segments.pop_front() else { break };
            self.disk.remove(&oldest.path)?;
            kill_points::pass("wal-segment-removed");
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
    let path = segment_path(dir, sequence);
    let mut file = match disk.create(&path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let mut file = disk.open(&path)?;
            file.truncate(0)?;
            file
        }
        created => created?,
    };
    kill_points::pass("wal-segment-opened");
    file.write_at(&encode_segment_header(sequence, base), 0)?;
    file.sync()?;
    disk.sync_dir(dir)?;
    kill_points::pass("wal-segment-made");
    note_begun(disk, dir, sequence)?;
    Ok((Segment { sequence, path, base, last_entry: None }, file))
}

/// Notes durably, beside the segments, which of them is the newest: a log that lost it must not begin anew, since it would forget
/// votes and entries that others rely on.
fn note_begun(disk: &dyn Disk, dir: &Path, sequence: u64) -> io::Result<()> {
    match disk.create(&dir.join(format!("{BEGUN_PREFIX}{sequence:020}"))) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => drop(created?),
    }
    disk.sync_dir(dir)?;
    kill_points::pass("wal-segment-noted");
    let older = disk.list(dir)?.into_iter().filter(|path| begun_of(path).is_some_and(|noted| noted < sequence));
    older.into_iter().try_for_each(|path| disk.remove(&path))
}

/// The segment that a note names, if a file is one.
fn begun_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix(BEGUN_PREFIX)?.parse().ok()
}

fn segment_path(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(format!("wal-{sequence:020}.log"))
}

fn unreadable(path: &Path, place: &Place) -> io::Error {
    let reason = format!("entry {} at byte {} of {} is damaged", place.id.index, place.position, path.display());
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

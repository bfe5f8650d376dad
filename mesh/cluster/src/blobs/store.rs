//! The blobs that this node holds, as files.
//!
//! ```text
//! blobs/ab/cdef…       content | chaining value of each group, if there is more than one | length(8) | mark(8)
//! blobs/unfinished/…   files that are being written; removed at start
//! ```
//! A file gets its name once everything in it is durable, so what has a name is whole, unless the disk damaged it: every
//! group is checked when it is read. Writing what is held already only says that it is still wanted: the time of the last
//! write is the time of the file.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use blake3::hazmat::ChainingValue;
use towline_core::{BlobHash, Timestamp};

use super::{
    BlobError,
    disk::{BlobDisk, BlobFile},
    tree::{Groups, TreeHasher, groups_of},
};
use crate::{
    kill_points, seams,
    wal::disk::{DiskFile, is_full},
};

const MARK: [u8; 8] = *b"TOWLBLOB";
const VALUE_BYTES: u64 = 32;
const FOOTER_BYTES: u64 = 16;
/// A file that claims to be longer is refused before room is made for its chaining values.
const MAX_LENGTH: u64 = towline_core::limits::MAX_BLOB_BYTES;
const UNFINISHED: &str = "unfinished";

/// The blobs of this node; cheap to clone.
#[derive(Clone)]
pub(crate) struct Store(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    disk: Arc<dyn BlobDisk>,
    /// What there are files of, and since when it is known to be wanted, by the clock that nobody sets: since it was written
    /// last in this life of the process, or since that began. Held while a file is touched or removed, so that neither meets
    /// the other.
    held: Mutex<BTreeMap<BlobHash, Duration>>,
    next: AtomicU64,
}

impl Store {
    /// Looks what there is, and removes what was not finished.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        Self::open_on(dir, seams::blob_disk())
    }

    fn open_on(dir: &Path, disk: Arc<dyn BlobDisk>) -> io::Result<Self> {
        disk.remove_dir(&dir.join(UNFINISHED))?;
        let (mut held, since) = (BTreeMap::new(), boot_clock());
        for folder in list(disk.as_ref(), dir)? {
            let Some(prefix) = folder.file_name().and_then(|name| name.to_str()) else { continue };
            let names = list(disk.as_ref(), &folder)?;
            let names = names.iter().filter_map(|path| path.file_name().and_then(|name| name.to_str()));
            let hashes = names.filter_map(|name| format!("{prefix}{name}").parse::<BlobHash>().ok());
            held.extend(hashes.map(|hash| (hash, since)));
        }
        let (dir, held, next) = (dir.to_owned(), Mutex::new(held), AtomicU64::new(0));
        Ok(Self(Arc::new(Inner { dir, disk, held, next })))
    }

    /// Whether there is a file of it.
    pub(crate) fn holds(&self, hash: &BlobHash) -> bool {
        self.held().contains_key(hash)
    }

    /// Everything there is a file of.
    pub(crate) fn all(&self) -> Vec<BlobHash> {
        self.held().keys().copied().collect()
    }

    /// The folder that they lie in.
    pub(crate) fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// Everything there is a file of, with its size on disk and when it was written or wanted last.
    pub(crate) fn files(&self) -> Vec<(BlobHash, u64, Timestamp)> {
        let file = |hash: BlobHash| {
            let path = self.path(&hash);
            let (size, written) = (self.disk().size(&path).ok()?, self.disk().modified(&path).ok()?.as_millis());
            Some((hash, size, Timestamp(u64::try_from(written).unwrap_or(u64::MAX))))
        };
        self.all().into_iter().filter_map(file).collect()
    }

    /// Says that a blob is still wanted, if it is held and looks whole.
    pub(crate) fn touch(&self, hash: &BlobHash, length: u64) -> bool {
        let mut held = self.held();
        let Some(since) = held.get_mut(hash) else { return false };
        let path = self.path(hash);
        let touched = Reader::open(self.disk(), &path, *hash).and_then(|reader| {
            self.disk().touch(&path).map_err(file_error("mark", &path))?;
            *since = boot_clock();
            Ok(reader.length() == length)
        });
        drop(held);
        match touched {
            Ok(same_length) => same_length,
            Err(error) => {
                tracing::warn!(%hash, %error, "blob cannot be used");
                self.give_up(hash);
                false
            }
        }
    }

    /// Opens a blob.
    pub(crate) fn open_blob(&self, hash: BlobHash) -> Result<Reader, BlobError> {
        if !self.holds(&hash) {
            return Err(BlobError::NotHeld { hash });
        }
        Reader::open(self.disk(), &self.path(&hash), hash)
    }

    /// A file that was found damaged does not count as held: it is written anew.
    pub(crate) fn give_up(&self, hash: &BlobHash) {
        self.held().remove(hash);
    }

    /// Begins to write a blob.
    pub(crate) fn writer(&self) -> Result<Writer, BlobError> {
        let dir = self.0.dir.join(UNFINISHED);
        self.disk().make_dir(&dir).map_err(file_error("create", &dir))?;
        let path = dir.join(self.0.next.fetch_add(1, Ordering::Relaxed).to_string());
        let file = self.disk().create(&path).map_err(file_error("create", &path))?;
        let unfinished = Unfinished { disk: Arc::clone(&self.0.disk), path };
        Ok(Writer { store: self.clone(), file, written: 0, unfinished, hasher: TreeHasher::new() })
    }

    /// Removes a blob if it was written last before this time, and is not known to be wanted since less than `kept`.
    pub(crate) fn remove_if_older(&self, hash: &BlobHash, than: Timestamp, kept: Duration) -> io::Result<bool> {
        let path = self.path(hash);
        let mut held = self.held();
        let is_young = held.get(hash).is_some_and(|since| boot_clock().saturating_sub(*since) < kept);
        if is_young || self.disk().modified(&path)?.as_millis() >= u128::from(than.0) {
            return Ok(false);
        }
        self.disk().remove(&path)?;
        held.remove(hash);
        Ok(true)
    }

    fn keep(&self, hash: BlobHash, unfinished: &Path) -> Result<(), BlobError> {
        let path = self.path(&hash);
        let dir = path.parent().unwrap_or(&self.0.dir);
        let mut held = self.held();
        if self.disk().make_dir(dir).map_err(file_error("create", dir))? {
            self.sync_dir(&self.0.dir)?;
            self.sync_dir(self.0.dir.parent().unwrap_or(&self.0.dir))?;
        }
        self.disk().rename(unfinished, &path).map_err(file_error("name", &path))?;
        kill_points::pass("blob-renamed");
        self.sync_dir(dir)?;
        held.insert(hash, boot_clock());
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), BlobError> {
        self.disk().sync_dir(dir).map_err(file_error("make durable", dir))
    }

    fn disk(&self) -> &dyn BlobDisk {
        self.0.disk.as_ref()
    }

    fn path(&self, hash: &BlobHash) -> PathBuf {
        let name = hash.to_string();
        let (prefix, rest) = name.split_at(2);
        self.0.dir.join(prefix).join(rest)
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<BlobHash, Duration>> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A blob that is being written. Dropped before its end, it leaves nothing.
pub(crate) struct Writer {
    store: Store,
    file: Box<dyn DiskFile>,
    written: u64,
    unfinished: Unfinished,
    hasher: TreeHasher,
}

impl Writer {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.hasher.update(bytes);
        if self.hasher.length() > MAX_LENGTH {
            return Err(BlobError::TooLarge { limit: MAX_LENGTH });
        }
        self.append(bytes)
    }

    /// Makes it durable under its hash; if another is expected, nothing is kept.
    pub(crate) fn finish(mut self, expected: Option<BlobHash>) -> Result<(BlobHash, u64), BlobError> {
        let (hash, groups) = std::mem::replace(&mut self.hasher, TreeHasher::new()).finish();
        if let Some(expected) = expected.filter(|expected| *expected != hash) {
            return Err(BlobError::OtherContent { expected, found: hash });
        }
        self.append(&tail(&groups))?;
        kill_points::pass("blob-drafted");
        self.file.sync().map_err(file_error("write", &self.unfinished.path))?;
        kill_points::pass("blob-synced");
        self.store.keep(hash, &self.unfinished.path)?;
        Ok((hash, groups.length()))
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.file.write_at(bytes, self.written).map_err(file_error("write", &self.unfinished.path))?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

/// The path of a file that is removed unless it got its name.
struct Unfinished {
    disk: Arc<dyn BlobDisk>,
    path: PathBuf,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Err(error) = self.disk.remove(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(path = %self.path.display(), %error, "unfinished blob stays until the next start");
        }
    }
}

/// A blob that is being read.
#[derive(Debug)]
pub(crate) struct Reader {
    hash: BlobHash,
    path: PathBuf,
    file: Box<dyn BlobFile>,
    groups: Groups,
}

impl Reader {
    fn open(disk: &dyn BlobDisk, path: &Path, hash: BlobHash) -> Result<Self, BlobError> {
        let damaged = |what| BlobError::Damaged { hash, what };
        let file = match disk.open_to_read(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(BlobError::NotHeld { hash }),
            Err(error) => return Err(file_error("open", path)(error)),
        };
        let failed = |error| file_error("read", path)(error);
        let size = file.size().map_err(failed)?;
        let at = size.checked_sub(FOOTER_BYTES).ok_or(damaged("it has no end"))?;
        let footer = file.read_at(at, FOOTER_BYTES as usize).map_err(failed)?;
        let footer = footer.first_chunk().ok_or(damaged("it has no end"))?;
        let length = length_in(footer, size).ok_or(damaged("its end is not right"))?;
        let values = file.read_at(length, usize::try_from(at - length).unwrap_or_default()).map_err(failed)?;
        let groups = Groups::prove(hash, length, values_in(&values)).ok_or(damaged("its hash tree is not right"))?;
        Ok(Self { hash, path: path.to_owned(), file, groups })
    }

    pub(crate) fn length(&self) -> u64 {
        self.groups.length()
    }

    /// One group of the content, checked.
    pub(crate) fn group(&self, group: u64) -> Result<Vec<u8>, BlobError> {
        let (from, length) = self.groups.place(group);
        let bytes = self.file.read_at(from, length).map_err(file_error("read", &self.path))?;
        if self.groups.is_right(group, &bytes) {
            Ok(bytes)
        } else {
            Err(BlobError::Damaged { hash: self.hash, what: "its content is not right" })
        }
    }
}

fn tail(groups: &Groups) -> Vec<u8> {
    let mut tail: Vec<u8> = groups.values().concat();
    tail.extend(groups.length().to_le_bytes());
    tail.extend(MARK);
    tail
}

/// The length of the content of a file of this size, by its last bytes.
fn length_in(footer: &[u8; FOOTER_BYTES as usize], size: u64) -> Option<u64> {
    let (length, mark) = footer.split_first_chunk::<8>()?;
    let length = u64::from_le_bytes(*length);
    if length > MAX_LENGTH || mark != MARK {
        return None;
    }
    let values = if groups_of(length) > 1 { groups_of(length) * VALUE_BYTES } else { 0 };
    (length + values + FOOTER_BYTES == size).then_some(length)
}

fn values_in(bytes: &[u8]) -> Vec<ChainingValue> {
    let (values, _) = bytes.as_chunks::<{ VALUE_BYTES as usize }>();
    values.to_vec()
}

/// Reads a whole file of a blob from its bytes: for fuzzing.
pub(crate) fn read_bytes(hash: BlobHash, bytes: &[u8]) -> Option<Vec<u8>> {
    let footer: &[u8; FOOTER_BYTES as usize] = bytes.last_chunk()?;
    let length = usize::try_from(length_in(footer, bytes.len() as u64)?).ok()?;
    let values = values_in(bytes.get(length..bytes.len() - FOOTER_BYTES as usize)?);
    let groups = Groups::prove(hash, length as u64, values)?;
    let right = (0..groups_of(length as u64)).all(|group| {
        let (from, size) = groups.place(group);
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        bytes.get(from..from + size).is_some_and(|part| groups.is_right(group, part))
    });
    right.then(|| bytes[..length].to_vec())
}

fn list(disk: &dyn BlobDisk, dir: &Path) -> io::Result<Vec<PathBuf>> {
    match disk.list(dir) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(Vec::new()),
        listed => listed,
    }
}

fn boot_clock() -> Duration {
    seams::read_clock(seams::Clock::Boot)
}

fn file_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> BlobError {
    let path = path.to_owned();
    move |source| {
        if is_full(&source) {
            return BlobError::NoRoom { reason: format!("disk of {} is full", path.display()) };
        }
        BlobError::File { action, path: path.clone(), source: Arc::new(source) }
    }
}

#[cfg(test)]
mod tests;

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
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use blake3::hazmat::ChainingValue;
use towline_core::{BlobHash, Timestamp};

use super::{
    BlobError,
    tree::{Groups, TreeHasher, groups_of},
};
use crate::{kill_points, wal::disk::is_full};

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
    /// What there are files of. Held while one is touched or removed, so that neither meets the other.
    held: Mutex<BTreeSet<BlobHash>>,
    next: AtomicU64,
}

impl Store {
    /// Looks what there is, and removes what was not finished.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        let unfinished = dir.join(UNFINISHED);
        if unfinished.is_dir() {
            fs::remove_dir_all(&unfinished)?;
        }
        let mut held = BTreeSet::new();
        for folder in list(dir)? {
            let Some(prefix) = folder.file_name().and_then(|name| name.to_str()) else { continue };
            let names = list(&folder)?;
            let names = names.iter().filter_map(|path| path.file_name().and_then(|name| name.to_str()));
            held.extend(names.filter_map(|name| format!("{prefix}{name}").parse::<BlobHash>().ok()));
        }
        Ok(Self(Arc::new(Inner { dir: dir.to_owned(), held: Mutex::new(held), next: AtomicU64::new(0) })))
    }

    /// Whether there is a file of it.
    pub(crate) fn holds(&self, hash: &BlobHash) -> bool {
        self.held().contains(hash)
    }

    /// Everything there is a file of.
    pub(crate) fn all(&self) -> Vec<BlobHash> {
        self.held().iter().copied().collect()
    }

    /// The folder that they lie in.
    pub(crate) fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// Everything there is a file of, with its size on disk and when it was written or wanted last.
    pub(crate) fn files(&self) -> Vec<(BlobHash, u64, Timestamp)> {
        let file = |hash: BlobHash| {
            let metadata = fs::metadata(self.path(&hash)).ok()?;
            let written = metadata.modified().ok()?.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
            Some((hash, metadata.len(), Timestamp(u64::try_from(written).unwrap_or(u64::MAX))))
        };
        self.all().into_iter().filter_map(file).collect()
    }

    /// Says that a blob is still wanted, if it is held and looks whole.
    pub(crate) fn touch(&self, hash: &BlobHash, length: u64) -> bool {
        let held = self.held();
        if !held.contains(hash) {
            return false;
        }
        let path = self.path(hash);
        let touched = Reader::open(&path, *hash).and_then(|reader| {
            let file = OpenOptions::new().append(true).open(&path).map_err(file_error("open", &path))?;
            file.set_modified(SystemTime::now()).map_err(file_error("mark", &path))?;
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
        Reader::open(&self.path(&hash), hash)
    }

    /// A file that was found damaged does not count as held: it is written anew.
    pub(crate) fn give_up(&self, hash: &BlobHash) {
        self.held().remove(hash);
    }

    /// Begins to write a blob.
    pub(crate) fn writer(&self) -> Result<Writer, BlobError> {
        let dir = self.0.dir.join(UNFINISHED);
        fs::create_dir_all(&dir).map_err(file_error("create", &dir))?;
        let path = dir.join(self.0.next.fetch_add(1, Ordering::Relaxed).to_string());
        let file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(file_error("create", &path))?;
        Ok(Writer { store: self.clone(), file, unfinished: Unfinished(path), hasher: TreeHasher::new() })
    }

    /// Removes a blob if it was written last before this time.
    pub(crate) fn remove_if_older(&self, hash: &BlobHash, than: Timestamp) -> io::Result<bool> {
        let path = self.path(hash);
        let mut held = self.held();
        let modified = fs::metadata(&path)?.modified()?;
        let modified = modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        if modified >= u128::from(than.0) {
            return Ok(false);
        }
        fs::remove_file(&path)?;
        held.remove(hash);
        Ok(true)
    }

    fn keep(&self, hash: BlobHash, unfinished: &Path) -> Result<(), BlobError> {
        let path = self.path(&hash);
        let dir = path.parent().unwrap_or(&self.0.dir);
        let mut held = self.held();
        if !dir.is_dir() {
            fs::create_dir_all(dir).map_err(file_error("create", dir))?;
            sync_dir(&self.0.dir)?;
            sync_dir(self.0.dir.parent().unwrap_or(&self.0.dir))?;
        }
        fs::rename(unfinished, &path).map_err(file_error("name", &path))?;
        kill_points::pass("blob-renamed");
        sync_dir(dir)?;
        held.insert(hash);
        Ok(())
    }

    fn path(&self, hash: &BlobHash) -> PathBuf {
        let name = hash.to_string();
        let (prefix, rest) = name.split_at(2);
        self.0.dir.join(prefix).join(rest)
    }

    fn held(&self) -> MutexGuard<'_, BTreeSet<BlobHash>> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A blob that is being written. Dropped before its end, it leaves nothing.
pub(crate) struct Writer {
    store: Store,
    file: File,
    unfinished: Unfinished,
    hasher: TreeHasher,
}

impl Writer {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.hasher.update(bytes);
        if self.hasher.length() > MAX_LENGTH {
            return Err(BlobError::TooLarge { limit: MAX_LENGTH });
        }
        self.file.write_all(bytes).map_err(file_error("write", &self.unfinished.0))
    }

    /// Makes it durable under its hash; if another is expected, nothing is kept.
    pub(crate) fn finish(mut self, expected: Option<BlobHash>) -> Result<(BlobHash, u64), BlobError> {
        let (hash, groups) = self.hasher.finish();
        if let Some(expected) = expected.filter(|expected| *expected != hash) {
            return Err(BlobError::OtherContent { expected, found: hash });
        }
        let failed = |error| file_error("write", &self.unfinished.0)(error);
        self.file.write_all(&tail(&groups)).map_err(failed)?;
        kill_points::pass("blob-drafted");
        self.file.sync_all().map_err(failed)?;
        kill_points::pass("blob-synced");
        self.store.keep(hash, &self.unfinished.0)?;
        Ok((hash, groups.length()))
    }
}

/// The path of a file that is removed unless it got its name.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(path = %self.0.display(), %error, "unfinished blob stays until the next start");
        }
    }
}

/// A blob that is being read.
#[derive(Debug)]
pub(crate) struct Reader {
    hash: BlobHash,
    path: PathBuf,
    file: File,
    groups: Groups,
}

impl Reader {
    fn open(path: &Path, hash: BlobHash) -> Result<Self, BlobError> {
        let damaged = |what| BlobError::Damaged { hash, what };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(BlobError::NotHeld { hash }),
            Err(error) => return Err(file_error("open", path)(error)),
        };
        let failed = |error| file_error("read", path)(error);
        let size = file.metadata().map_err(failed)?.len();
        let at = size.checked_sub(FOOTER_BYTES).ok_or(damaged("it has no end"))?;
        let mut footer = [0; FOOTER_BYTES as usize];
        file.read_exact_at(&mut footer, at).map_err(failed)?;
        let length = length_in(&footer, size).ok_or(damaged("its end is not right"))?;
        let mut values = vec![0; usize::try_from(at - length).unwrap_or_default()];
        file.read_exact_at(&mut values, length).map_err(failed)?;
        let groups = Groups::prove(hash, length, values_in(&values)).ok_or(damaged("its hash tree is not right"))?;
        Ok(Self { hash, path: path.to_owned(), file, groups })
    }

    pub(crate) fn length(&self) -> u64 {
        self.groups.length()
    }

    /// One group of the content, checked.
    pub(crate) fn group(&self, group: u64) -> Result<Vec<u8>, BlobError> {
        let (from, length) = self.groups.place(group);
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, from).map_err(file_error("read", &self.path))?;
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

fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn sync_dir(dir: &Path) -> Result<(), BlobError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(file_error("make durable", dir))
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

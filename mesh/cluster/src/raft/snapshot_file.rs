//! A snapshot as a file that is written, read, sent and taken piece by piece.
//!
//! ```text
//! file = mark(8) | format(4) | length of meta(4) | BLAKE3 of all but this field (32) | meta | state
//! ```

use std::{
    fmt,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use prost::Message as _;
use towline_core::State;
use towline_proto::v1;

use super::RaftSnapshotMeta;
use crate::{
    wal::disk::{Disk, DiskFile, DiskReader},
    wire::{self, SNAPSHOT_HEADER, WireError},
};

/// Bytes that are read, hashed or written at a time.
const PIECE: usize = 256 * 1024;
/// What a snapshot says of itself names some nodes: more is no snapshot's.
const MAX_META_BYTES: usize = 16 * 1024 * 1024;
const WHAT: &str = "snapshot";
/// How snapshots are called that arrive.
const INCOMING: &str = "state.snapshot.incoming-";

/// A snapshot, and what is in it.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It cannot be read or written.
    #[error(transparent)]
    File(#[from] io::Error),
    /// It is none, or damaged, or of another version.
    #[error(transparent)]
    Content(#[from] WireError),
}

impl From<SnapshotError> for io::Error {
    fn from(error: SnapshotError) -> Self {
        match error {
            SnapshotError::File(error) => error,
            SnapshotError::Content(error) => io::Error::new(io::ErrorKind::InvalidData, error),
        }
    }
}

/// A snapshot; cheap to clone. It can be read for as long as it is held, also when another has taken its name.
#[derive(Clone)]
pub struct SnapshotFile(Arc<Inside>);

struct Inside {
    source: Source,
    /// What is in it, between the look at what it needs and its installation.
    decoded: Mutex<Option<Box<(RaftSnapshotMeta, State)>>>,
}

enum Source {
    Memory(Bytes),
    Disk { file: Box<dyn DiskReader>, length: u64, arrived: Option<Arrived> },
}

/// A file that arrived: it is removed unless it is taken.
struct Arrived {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    taken: AtomicBool,
}

impl Drop for Arrived {
    fn drop(&mut self) {
        if !self.taken.load(Ordering::Relaxed)
            && let Err(error) = self.disk.remove(&self.path)
        {
            tracing::debug!(path = %self.path.display(), %error, "is removed at the next start");
        }
    }
}

impl SnapshotFile {
    fn of(source: Source) -> Self {
        Self(Arc::new(Inside { source, decoded: Mutex::default() }))
    }

    /// Takes the bytes of a snapshot.
    ///
    /// # Errors
    /// When they are not a snapshot, or damaged.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, SnapshotError> {
        let file = Self::of(Source::Memory(bytes));
        file.check()?;
        Ok(file)
    }

    /// A snapshot in memory.
    pub(super) fn encode(meta: &RaftSnapshotMeta, state: &State) -> Result<Self, SnapshotError> {
        Ok(Self::of(Source::Memory(wire::encode_snapshot(meta, state)?)))
    }

    /// The snapshot under a name, if there is one.
    pub(super) fn open(disk: &dyn Disk, path: &Path) -> io::Result<Option<Self>> {
        let file = match disk.reader(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let length = disk.size(path)?;
        Ok(Some(Self::of(Source::Disk { file, length, arrived: None })))
    }

    /// How many bytes it has.
    pub fn length(&self) -> u64 {
        match &self.0.source {
            Source::Memory(bytes) => bytes.len() as u64,
            Source::Disk { length, .. } => *length,
        }
    }

    /// Some of its bytes. May wait for the disk.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn piece(&self, position: u64, length: usize) -> io::Result<Bytes> {
        match &self.0.source {
            Source::Memory(bytes) => {
                let start = usize::try_from(position).map_err(io::Error::other)?;
                let end = start.checked_add(length).filter(|end| *end <= bytes.len());
                end.map(|end| bytes.slice(start..end)).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
            }
            Source::Disk { file, .. } => {
                let mut piece = vec![0; length];
                file.read_at(&mut piece, position)?;
                Ok(piece.into())
            }
        }
    }

    /// What it covers, and the state. Every byte is checked before one is believed.
    pub(crate) fn decode(&self) -> Result<(RaftSnapshotMeta, State), SnapshotError> {
        let meta = self.check()?;
        let begin = SNAPSHOT_HEADER as u64 + meta.len() as u64;
        let state = wire::read_state(&mut Bytewise { file: self, position: begin })?;
        Ok((meta_from(meta)?, state))
    }

    /// Remembers what [`SnapshotFile::decode`] gave until it is taken.
    pub(super) fn keep(&self, decoded: (RaftSnapshotMeta, State)) {
        *self.decoded() = Some(Box::new(decoded));
    }

    /// What is remembered of it, which is then forgotten; or else it is decoded.
    pub(super) fn take_decoded(&self) -> Result<(RaftSnapshotMeta, State), SnapshotError> {
        let kept = self.decoded().take();
        kept.map_or_else(|| self.decode(), |kept| Ok(*kept))
    }

    fn decoded(&self) -> MutexGuard<'_, Option<Box<(RaftSnapshotMeta, State)>>> {
        self.0.decoded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it covers. Every byte of it is checked.
    pub(super) fn meta(&self) -> Result<RaftSnapshotMeta, SnapshotError> {
        Ok(meta_from(self.check()?)?)
    }

    /// Checks all of it, and returns the encoded meta.
    fn check(&self) -> Result<Bytes, SnapshotError> {
        if self.length() < SNAPSHOT_HEADER as u64 {
            return Err(WireError::Mark { what: WHAT }.into());
        }
        let header = self.piece(0, SNAPSHOT_HEADER)?;
        let meta_length = wire::snapshot_meta_length(&header)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&header[..16]);
        let mut position = SNAPSHOT_HEADER as u64;
        while position < self.length() {
            let rest = usize::try_from(self.length() - position).unwrap_or(usize::MAX);
            let piece = self.piece(position, rest.min(PIECE))?;
            hasher.update(&piece);
            position += piece.len() as u64;
        }
        if hasher.finalize().as_bytes()[..] != header[16..] {
            return Err(WireError::Checksum { what: WHAT }.into());
        }
        if meta_length > MAX_META_BYTES || SNAPSHOT_HEADER as u64 + meta_length as u64 > self.length() {
            return Err(WireError::Missing { message: WHAT, field: "state" }.into());
        }
        Ok(self.piece(SNAPSHOT_HEADER as u64, meta_length)?)
    }

    /// Gives the file another name in its folder, if it is one that arrived. Returns whether it is.
    pub(super) fn take(&self, disk: &dyn Disk, name: &Path) -> io::Result<bool> {
        let Source::Disk { arrived: Some(arrived), .. } = &self.0.source else { return Ok(false) };
        disk.rename(&arrived.path, name)?;
        arrived.taken.store(true, Ordering::Relaxed);
        Ok(true)
    }
}

impl fmt::Debug for SnapshotFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SnapshotFile({} bytes)", self.length())
    }
}

fn meta_from(meta: Bytes) -> Result<RaftSnapshotMeta, WireError> {
    let meta = v1::SnapshotMeta::decode(meta);
    wire::snapshot_meta_from_proto(meta.map_err(|source| WireError::Envelope { what: "snapshot meta", source })?)
}

/// Reads a snapshot from a position on.
struct Bytewise<'a> {
    file: &'a SnapshotFile,
    position: u64,
}

impl Read for Bytewise<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(self.file.length() - self.position).unwrap_or(usize::MAX);
        let piece = self.file.piece(self.position, rest.min(into.len()))?;
        into[..piece.len()].copy_from_slice(&piece);
        self.position += piece.len() as u64;
        Ok(piece.len())
    }
}

/// Writes a snapshot into an empty file, piece by piece. It is none before the last piece is written, which comes first in it.
pub(super) fn write(file: &mut dyn DiskFile, meta: &RaftSnapshotMeta, state: &State) -> Result<(), SnapshotError> {
    let meta = wire::snapshot_meta_to_proto(meta).encode_to_vec();
    let mut header = wire::snapshot_header(&meta, state.level());
    let mut hasher = blake3::Hasher::new();
    hasher.update(&header[..16]);
    let position = SNAPSHOT_HEADER as u64;
    let mut out = Piecewise { file, position, hasher, piece: Vec::with_capacity(PIECE), failed: None };
    out.write_all(&meta)?;
    let written = wire::write_state(state, &mut out);
    if let Some(error) = out.failed.take() {
        return Err(error.into());
    }
    written?;
    out.flush()?;
    header[16..].copy_from_slice(out.hasher.finalize().as_bytes());
    out.file.write_at(&header, 0)?;
    Ok(())
}

struct Piecewise<'a> {
    file: &'a mut dyn DiskFile,
    position: u64,
    hasher: blake3::Hasher,
    piece: Vec<u8>,
    /// The error of the disk, which a serializer would tell as its own.
    failed: Option<io::Error>,
}

impl Write for Piecewise<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.piece.len() == PIECE {
            self.flush().inspect_err(|error| self.failed = Some(io::Error::new(error.kind(), error.to_string())))?;
        }
        let taken = bytes.len().min(PIECE - self.piece.len());
        self.piece.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hasher.update(&self.piece);
        self.file.write_at(&self.piece, self.position)?;
        self.position += self.piece.len() as u64;
        self.piece.clear();
        Ok(())
    }
}

/// A snapshot that arrives, in a file of its own.
pub(crate) struct Incoming {
    file: Box<dyn DiskFile>,
    arrived: Arrived,
    length: u64,
}

impl Incoming {
    /// Makes a file for it in the folder of snapshots.
    pub(crate) fn begin(disk: &Arc<dyn Disk>, dir: &Path) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let path = dir.join(format!("{INCOMING}{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let file = disk.create(&path)?;
        Ok(Self { file, arrived: Arrived { disk: Arc::clone(disk), path, taken: AtomicBool::new(false) }, length: 0 })
    }

    /// How much has arrived.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Takes what follows. May wait for the disk.
    pub(crate) fn take(&mut self, piece: &[u8]) -> io::Result<()> {
        self.file.write_at(piece, self.length)?;
        self.length += piece.len() as u64;
        Ok(())
    }

    /// All has arrived: it is durable and whole, or refused. May wait for the disk.
    pub(crate) fn finish(mut self) -> Result<SnapshotFile, SnapshotError> {
        self.file.sync()?;
        let file = self.arrived.disk.reader(&self.arrived.path)?;
        let source = Source::Disk { file, length: self.length, arrived: Some(self.arrived) };
        let snapshot = SnapshotFile::of(source);
        snapshot.check()?;
        Ok(snapshot)
    }
}

/// Removes what arrived before the process ended and was not taken.
pub(super) fn remove_incoming(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    for path in disk.list(dir)? {
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(INCOMING)) {
            disk.remove(&path)?;
        }
    }
    Ok(())
}

//! Content that is too large for the log: kept as files beside it, and named in the log by hash.
//!
//! ```text
//! content ──▶ own file, fsynced ──push──▶ files of the other voters, fsynced
//!                   └── once a majority of the voters holds it ──▶ the command that names it is proposed
//! reader ──▶ own file, checked ──missing or damaged──▶ fetched from another node ──▶ own file
//! ```
//! So whatever is named is on a majority of the voters, and survives what the log survives. The other voters are pushed to in
//! the background, and every node fetches what is named and it does not hold (`upkeep`). What nothing names is removed a day
//! after it was written last.

mod cache;
pub(crate) mod disk;
mod parts;
mod passing;
mod replicate;
mod safety;
mod serve;
mod store;
mod tree;
mod upkeep;

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::Stream;
use tokio::sync::{Mutex, MutexGuard};
use towline_core::BlobHash;

use crate::{handle::ClusterHandle, seams};
use passing::Passing;

pub(crate) use cache::run as run_cache;
pub(crate) use replicate::Pushes;
pub(crate) use safety::unsafe_reason;
pub(crate) use serve::{ChunkStream, get, hold, missing, named, put};
pub(crate) use store::{Store, Writer, read_bytes};
pub(crate) use tree::GROUP_BYTES;
pub(crate) use upkeep::run;

/// How many blobs are fetched or received at the same time, if their hashes differ enough: each holds a few groups in
/// memory.
const STRIPES: usize = 16;
/// When another try is worth it after no majority held a blob: a node is restarted, or another elected, in about a second.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why content was not kept, or cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BlobError {
    /// This node has no file of it.
    #[error("blob {hash} is not held by this node")]
    NotHeld {
        /// Which.
        hash: BlobHash,
    },
    /// The file of this node is not what it was.
    #[error("blob {hash} is damaged on this node: {what}")]
    Damaged {
        /// Which.
        hash: BlobHash,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A file could not be read or written.
    #[error("{action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: Arc<io::Error>,
    },
    /// More than one blob may have.
    #[error("content exceeds the limit of {limit} bytes")]
    TooLarge {
        /// The bound.
        limit: u64,
    },
    /// The disk has no room beside what is kept for the log.
    #[error("content is not kept: {reason}")]
    NoRoom {
        /// Which disk, and what is free.
        reason: String,
    },
    /// Something else came than was announced.
    #[error("content has hash {found}, and {expected} was expected")]
    OtherContent {
        /// What was announced.
        expected: BlobHash,
        /// What came.
        found: BlobHash,
    },
    /// Not enough voters hold it, so that nothing may name it.
    #[error("content is not yet on a majority of the voters: {reason}")]
    NoMajority {
        /// Who does not hold it, and why.
        reason: String,
    },
    /// No node gave it.
    #[error("blob {hash} cannot be read at this moment: {reason}")]
    Unreadable {
        /// Which.
        hash: BlobHash,
        /// What each node said.
        reason: String,
    },
    /// The node is stopping.
    #[error("work on a blob was cut off: the node is stopping")]
    Stopping,
}

impl BlobError {
    /// When another try is worth it, if it is.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            BlobError::TooLarge { .. } | BlobError::OtherContent { .. } => None,
            BlobError::NotHeld { .. }
            | BlobError::Damaged { .. }
            | BlobError::File { .. }
            | BlobError::NoRoom { .. }
            | BlobError::NoMajority { .. }
            | BlobError::Unreadable { .. }
            | BlobError::Stopping => Some(RETRY_AFTER),
        }
    }
}

/// This node's side of the blob store.
pub(crate) struct Blobs {
    store: Store,
    pushes: Pushes,
    /// Named blobs that were not held when this node looked last.
    missing: AtomicUsize,
    /// What a change of the voters waits for.
    waiting: std::sync::Mutex<Option<String>>,
    /// How long what was written stays in any case.
    kept_at_least: std::sync::Mutex<Duration>,
    /// One of them is held while a blob is fetched or received, so that it does not come twice at the same time.
    stripes: [Mutex<()>; STRIPES],
}

impl Blobs {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            store,
            pushes: Pushes::default(),
            missing: AtomicUsize::new(0),
            waiting: std::sync::Mutex::default(),
            kept_at_least: std::sync::Mutex::new(upkeep::KEPT_AT_LEAST),
            stripes: std::array::from_fn(|_| Mutex::default()),
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn pushes(&self) -> &Pushes {
        &self.pushes
    }

    /// How many named blobs were not held when this node looked last.
    pub(crate) fn missing(&self) -> usize {
        self.missing.load(Ordering::Relaxed)
    }

    pub(crate) fn set_missing(&self, missing: usize) {
        self.missing.store(missing, Ordering::Relaxed);
    }

    /// What a change of the voters waits for, if this node leads and one waits for content.
    pub(crate) fn waiting(&self) -> Option<String> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_waiting(&self, reason: Option<String>) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    fn kept_at_least(&self) -> Duration {
        *self.kept_at_least.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn stripe(&self, hash: &BlobHash) -> MutexGuard<'_, ()> {
        self.stripes[usize::from(hash.as_bytes()[0]) % STRIPES].lock().await
    }
}

impl ClusterHandle {
    /// Keeps content on a majority of the voters; from then on a command may name it.
    ///
    /// # Errors
    /// When it is too large, there is no room, or no majority holds it in time.
    pub async fn keep_content(&self, content: Bytes) -> Result<BlobHash, BlobError> {
        let mut upload = self.begin_upload(Some(content.len() as u64)).await?;
        upload.write(content).await?;
        let (hash, _) = upload.finish(None).await?;
        Ok(hash)
    }

    /// Has a majority of the voters keep content that one of the nodes holds, as if it was written at this moment.
    ///
    /// # Errors
    /// When no node gives it, or no majority holds it in time.
    pub async fn hold_content(&self, hash: BlobHash, length: u64) -> Result<(), BlobError> {
        let store = self.blobs().store().clone();
        if !blocking(move || Ok(store.touch(&hash, length))).await? {
            replicate::fetch(self, hash, length).await?;
        }
        replicate::to_majority(self, hash, length).await
    }

    /// Begins to keep content that comes piece by piece, and that has so many bytes if that is known.
    ///
    /// # Errors
    /// When there is no room.
    pub async fn begin_upload(&self, length: Option<u64>) -> Result<Upload, BlobError> {
        self.has_room_for_blobs(length.unwrap_or_default())?;
        let store = self.blobs().store().clone();
        let writer = blocking(move || store.writer()).await?;
        Ok(Upload { cluster: self.clone(), writer: Some(writer) })
    }

    /// Opens a blob, fetching it from another node if this one does not hold it. Without room it passes through.
    ///
    /// # Errors
    /// When no node gives it.
    pub async fn open_blob(&self, hash: BlobHash, length: u64) -> Result<BlobContent, BlobError> {
        let source = match self.open_held(hash).await {
            Ok(reader) => Source::Held(Arc::new(reader)),
            Err(error) => self.mend(hash, length, &error).await?,
        };
        Ok(BlobContent { cluster: self.clone(), hash, length, source })
    }

    /// Lets this node remove what nothing names so soon after it was written, if it is a day old by the log: for tests that do
    /// not wait for an hour.
    #[doc(hidden)]
    pub fn keep_unnamed_for(&self, at_least: Duration) {
        *self.blobs().kept_at_least.lock().unwrap_or_else(PoisonError::into_inner) = at_least;
    }

    /// Whether there is room for blobs beside what is kept for the log.
    pub(crate) fn has_room_for_blobs(&self, bytes: u64) -> Result<(), BlobError> {
        let Some(log) = self.leadership().log() else { return cache::has_room(self, bytes) };
        log.has_room_beside(bytes)
            .map_err(|full| BlobError::NoRoom { reason: format!("node {}: {full}", self.node_id()) })
    }

    async fn open_held(&self, hash: BlobHash) -> Result<store::Reader, BlobError> {
        let store = self.blobs().store().clone();
        blocking(move || store.open_blob(hash)).await
    }

    /// Puts a good copy in the place of one that is missing or damaged.
    async fn mend(&self, hash: BlobHash, length: u64, why: &BlobError) -> Result<Source, BlobError> {
        if !matches!(why, BlobError::NotHeld { .. }) {
            tracing::warn!(%hash, error = %why, "blob is fetched anew");
            self.blobs().store().give_up(&hash);
        }
        match replicate::fetch(self, hash, length).await {
            Ok(()) => self.open_held(hash).await.map(|reader| Source::Held(Arc::new(reader))),
            Err(full @ BlobError::NoRoom { .. }) => {
                tracing::debug!(%hash, %full, "blob passes through");
                Passing::begin(self, hash, length).await.map(|passing| Source::Passing(Box::new(passing)))
            }
            Err(error) => Err(error),
        }
    }
}

/// Where the content comes from that is read.
enum Source {
    Held(Arc<store::Reader>),
    /// From another node: this one has no room.
    Passing(Box<Passing>),
}

/// Content that is being kept.
pub struct Upload {
    cluster: ClusterHandle,
    writer: Option<store::Writer>,
}

impl Upload {
    /// The next piece.
    ///
    /// # Errors
    /// When it cannot be written: then nothing is kept.
    pub async fn write(&mut self, piece: Bytes) -> Result<(), BlobError> {
        self.cluster.has_room_for_blobs(piece.len() as u64)?;
        let Some(mut writer) = self.writer.take() else { return Err(BlobError::Stopping) };
        self.writer = Some(
            blocking(move || {
                writer.write(&piece)?;
                Ok(writer)
            })
            .await?,
        );
        Ok(())
    }

    /// Everything has come: returns once a majority of the voters holds it. Other content than is expected is not kept.
    ///
    /// # Errors
    /// When it has another hash, or no majority holds it in time. What is held then goes by itself, if nothing is proposed that names it.
    pub async fn finish(mut self, expected: Option<BlobHash>) -> Result<(BlobHash, u64), BlobError> {
        let (hash, length) = self.end(expected).await?;
        replicate::to_majority(&self.cluster, hash, length).await?;
        Ok((hash, length))
    }

    /// Everything has come: returns once this node holds it. Before a command may name it, [`ClusterHandle::hold_content`] has
    /// a majority of the voters hold it as well.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn finish_here(mut self) -> Result<(BlobHash, u64), BlobError> {
        self.end(None).await
    }

    async fn end(&mut self, expected: Option<BlobHash>) -> Result<(BlobHash, u64), BlobError> {
        let Some(writer) = self.writer.take() else { return Err(BlobError::Stopping) };
        blocking(move || writer.finish(expected)).await
    }
}

/// A blob that is being read; what is damaged is mended on the way.
pub struct BlobContent {
    cluster: ClusterHandle,
    hash: BlobHash,
    length: u64,
    source: Source,
}

impl BlobContent {
    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        match &self.source {
            Source::Held(reader) => reader.length(),
            Source::Passing(_) => self.length,
        }
    }

    /// All of it.
    ///
    /// # Errors
    /// When it is damaged and no node has a good copy.
    pub async fn whole(mut self) -> Result<Vec<u8>, BlobError> {
        let mut all = Vec::with_capacity(usize::try_from(self.length()).unwrap_or_default());
        for group in 0..tree::groups_of(self.length()) {
            all.extend(self.group(group).await?);
        }
        Ok(all)
    }

    /// The bytes from `from` up to before `to`, in pieces of which one is in memory at a time.
    pub fn range(self, from: u64, to: u64) -> impl Stream<Item = Result<Bytes, BlobError>> + Send {
        futures::stream::try_unfold((self, from), move |(mut content, at)| async move {
            if at >= to {
                return Ok(None);
            }
            let group = at / GROUP_BYTES;
            let bytes = Bytes::from(content.group(group).await?);
            let start = at - group * GROUP_BYTES;
            let end = (to - group * GROUP_BYTES).min(bytes.len() as u64);
            if end <= start {
                return Ok(None);
            }
            let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
            Ok(Some((bytes.slice(place(start)..place(end)), (content, group * GROUP_BYTES + end))))
        })
    }

    async fn group(&mut self, group: u64) -> Result<Vec<u8>, BlobError> {
        match self.read(group).await {
            Err(error @ (BlobError::Damaged { .. } | BlobError::File { .. })) => {
                self.source = self.cluster.mend(self.hash, self.length, &error).await?;
                self.read(group).await
            }
            read => read,
        }
    }

    async fn read(&mut self, group: u64) -> Result<Vec<u8>, BlobError> {
        match &mut self.source {
            Source::Held(reader) => {
                let reader = Arc::clone(reader);
                blocking(move || reader.group(group)).await
            }
            Source::Passing(passing) => passing.group(&self.cluster, group).await,
        }
    }
}

/// Runs file operations beside the runtime.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BlobError> + Send + 'static,
) -> Result<T, BlobError> {
    seams::blocking(work).await.unwrap_or(Err(BlobError::Stopping))
}

//! A saved cluster: its state in one file, and a new cluster that begins with it.
//!
//! Saving reads linearizably from a running cluster, on whatever node, and holds up nothing but the copy of the state,
//! whose tasks are shared. The records of finished tasks and the content that tasks name are read while the file is made. Restoring makes the data folder of a *new* cluster: other id, other keys, other node ids. Tasks
//! that ran are adopted by its nodes, as after the death of their owner. A data folder is never restored: it would come
//! back with promises that it has forgotten.

mod format;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write},
    path::Path,
    sync::Arc,
};

use bytes::Bytes;
use futures::StreamExt;
use serde::Serialize;
use tokio::sync::mpsc;
use towline_core::{BlobHash, Founder, Level, NodeAddresses, NodeId, State, TaskId};
use towline_proto::v1;
use uuid::Uuid;

use crate::{
    BlobError, ClusterError, ClusterHandle, Identity, Unavailable,
    blobs::{Store, Writer},
    finished, leader,
    membership::{self, Founding},
    raft::{self, RaftLeaderId, RaftLogId, RaftMembership, RaftSnapshotMeta, RaftStoredMembership},
    wire::{self, WireError},
};

pub use format::ArchiveError;
use format::{ArchiveReader, ArchiveWriter, FORMAT, FORMAT_WITH_BLOBS, FORMAT_WITH_LEVEL, FORMAT_WITH_RECORDS, Piece};

/// Chunks that are ready before their reader is: it sets the pace.
const CHUNKS_AHEAD: usize = 4;
/// Bytes that are handed to the reader at a time.
const OUTLET_BYTES: usize = 256 * 1024;

/// What a saved snapshot says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ArchiveSummary {
    /// The cluster that was saved.
    pub cluster: Uuid,
    /// Its name.
    pub cluster_name: String,
    /// Log index up to which everything is in it.
    pub index: u64,
    /// When it was saved, in milliseconds since the Unix epoch.
    pub saved_at_ms: u64,
    /// Version of the binary that wrote it.
    pub version: String,
    /// How many tasks are in it.
    pub tasks: u64,
}

impl ClusterHandle {
    /// Saves the state of the cluster as it is at this moment, as the bytes of a file. They are made while they are read;
    /// an error in between leaves a torn file, which no reader takes.
    ///
    /// # Errors
    /// When no leader with a quorum answers in time, or the content of a task cannot be read.
    pub async fn save(&self) -> Result<mpsc::Receiver<io::Result<Bytes>>, Unavailable> {
        let state = self.read(State::clone).await?;
        let head = self.archive_head(&state);
        self.gather(&state).await?;
        let (chunks, receiver) = mpsc::channel(CHUNKS_AHEAD);
        let (cluster, runtime) = (self.clone(), tokio::runtime::Handle::current());
        tokio::task::spawn_blocking(move || {
            let out = BufWriter::with_capacity(OUTLET_BYTES, Outlet(chunks.clone()));
            let content = |hash, length| Content { cluster: &cluster, runtime: &runtime, hash, length };
            let record = |task| runtime.block_on(cluster.record_bytes(task));
            if let Err(error) = write(&head, &state, Beside { content, record }, out) {
                // A reader that went away needs no word.
                let _ = chunks.blocking_send(Err(error));
            }
        });
        Ok(receiver)
    }

    /// Fetches all content that the state names, so that a file is only begun that can be made whole.
    async fn gather(&self, state: &State) -> Result<(), Unavailable> {
        for (hash, length) in state.named_blobs() {
            let opened = self.open_blob(hash, length).await;
            let missing = |error| Unavailable { reason: format!("save the content of tasks: {error}") };
            opened.map_err(missing)?;
        }
        Ok(())
    }

    fn archive_head(&self, state: &State) -> v1::ArchiveHead {
        let identity = self.identity();
        v1::ArchiveHead {
            cluster: identity.cluster.as_bytes().to_vec().into(),
            cluster_name: identity.cluster_name.clone(),
            index: state.last().index,
            saved_at_ms: leader::wall_clock().0,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            tasks: state.task_count() as u64,
        }
    }
}

/// Reads a saved snapshot to its end and checks every byte of it.
///
/// # Errors
/// When it cannot be read, is torn, damaged or edited, or another version wrote it.
pub fn check(path: &Path) -> Result<ArchiveSummary, ArchiveError> {
    let (mut reader, head) = ArchiveReader::begin(open(path)?)?;
    reader.finish()?;
    summary(head)
}

/// Founds a new cluster in an empty data folder, with the state that was saved in a file.
///
/// # Errors
/// When the file is refused as by [`check`], or the folder holds an identity or a log already or cannot be written.
pub fn restore(
    data: &Path,
    file: &Path,
    cluster_name: &str,
    node_name: &str,
    addresses: NodeAddresses,
) -> Result<(Identity, ArchiveSummary), ClusterError> {
    let (saved, mut state) = read(open(file)?)?;
    // A second time, below: the content is not in memory in between.
    // Behind everything that was saved, so that nothing of the new cluster's log has an index that was used.
    let node = NodeId(saved.index.max(state.last().index) + 1);
    let founding = Founding { cluster_name, node, node_name, addresses };
    let identity = membership::found_with(data, founding, |identity, snapshots| {
        let (name, node_name, addresses) =
            (identity.cluster_name.clone(), identity.node_name.clone(), identity.addresses.clone());
        restore_beside(open(file)?, &data.join("blobs"), snapshots)?;
        state.refound(identity.cluster, name, Founder { node, name: node_name, addresses });
        raft::state_machine::write_first_snapshot(snapshots, &first_meta(identity)?, &state)?;
        Ok(())
    })?;
    Ok((identity, saved))
}

/// The first entry of the new log stands behind what was saved, in a term that comes before the first election.
pub(crate) fn first_meta(identity: &Identity) -> Result<RaftSnapshotMeta, ClusterError> {
    let node = identity.node.0;
    let log_id = RaftLogId::new(RaftLeaderId { term: 0, node_id: node }, node);
    let members = BTreeMap::from([(node, identity.addresses.clone())]);
    let membership = RaftMembership::new(vec![[node].into()], members)
        .map_err(|error| ClusterError::Fatal { reason: error.to_string() })?;
    Ok(RaftSnapshotMeta {
        last_log_id: Some(log_id),
        last_membership: RaftStoredMembership::new(Some(log_id), membership),
    })
}

fn open(path: &Path) -> Result<BufReader<File>, ArchiveError> {
    File::open(path).map(BufReader::new).map_err(|source| ArchiveError::File { action: "open", source })
}

/// A blob of a running cluster, read on a thread that may wait.
struct Content<'a> {
    cluster: &'a ClusterHandle,
    runtime: &'a tokio::runtime::Handle,
    hash: BlobHash,
    length: u64,
}

impl Pieces for Content<'_> {
    fn each(self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let Self { cluster, runtime, hash, length } = self;
        let content = runtime.block_on(cluster.open_blob(hash, length)).map_err(io::Error::other)?;
        let mut pieces = std::pin::pin!(content.range(0, length));
        while let Some(piece) = runtime.block_on(pieces.next()) {
            take(&piece.map_err(io::Error::other)?)?;
        }
        Ok(())
    }
}

/// Content that comes piece by piece.
pub(crate) trait Pieces {
    /// Hands on every piece.
    fn each(self, take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>;
}

impl Pieces for Vec<u8> {
    fn each(self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        take(&self)
    }
}

/// Where that comes from which is beside a state.
pub(crate) struct Beside<C, R> {
    /// The content of a blob.
    pub(crate) content: C,
    /// The record of an archived task.
    pub(crate) record: R,
}

pub(crate) fn write<P: Pieces>(
    head: &v1::ArchiveHead,
    state: &State,
    beside: Beside<impl Fn(BlobHash, u64) -> P, impl Fn(TaskId) -> io::Result<Vec<u8>>>,
    out: impl Write,
) -> io::Result<()> {
    let Beside { content, record } = beside;
    let with_blobs = if state.named_blobs().next().is_some() { FORMAT_WITH_BLOBS } else { FORMAT };
    let of_first_level = if state.archived_count() > 0 { FORMAT_WITH_RECORDS } else { with_blobs };
    let format = if state.level() == Level::FIRST { of_first_level } else { FORMAT_WITH_LEVEL };
    let mut writer = ArchiveWriter::begin(out, head, format)?;
    wire::write_state(state, &mut writer).map_err(io::Error::other)?;
    for task in state.archived_behind(None) {
        let bytes = record(task)?;
        writer.record(task)?;
        writer.content(&bytes)?;
    }
    for (hash, length) in state.named_blobs() {
        writer.blob(&v1::BlobName { hash: hash.as_bytes().to_vec().into(), length })?;
        content(hash, length).each(|piece| writer.content(piece))?;
    }
    writer.finish()
}

/// Writes what is beside the state of a saved snapshot: the records of archived tasks, and the blobs, each as its name says.
fn restore_beside(input: impl Read, dir: &Path, snapshots: &Path) -> Result<(), ClusterError> {
    let damaged = |error: BlobError| ArchiveError::Blob { reason: error.to_string() };
    let (mut reader, _) = ArchiveReader::begin(input)?;
    let store = Store::open(dir).map_err(|source| ArchiveError::File { action: "restore the content of", source })?;
    let archive = finished::first(snapshots)?;
    let unwritten = |source| ArchiveError::File { action: "restore the finished tasks of", source };
    let mut writing: Option<(BlobHash, Writer)> = None;
    let mut record: Option<(TaskId, Vec<u8>)> = None;
    loop {
        let piece = reader.next_piece()?;
        if let (Some(Piece::Content(bytes)), Some((_, record))) = (&piece, &mut record) {
            if record.len() + bytes.len() > finished::MAX_RECORD_BYTES {
                return Err(ArchiveError::Record { reason: "one is too long".to_owned() }.into());
            }
            record.extend_from_slice(bytes);
            continue;
        }
        if let Some(Piece::Content(bytes)) = &piece {
            let (_, writer) = writing.as_mut().ok_or(ArchiveError::Blob { reason: "content has no name".into() })?;
            writer.write(bytes).map_err(damaged)?;
            continue;
        }
        if let Some((hash, writer)) = writing.take() {
            writer.finish(Some(hash)).map_err(damaged)?;
        }
        if let Some((task, bytes)) = record.take() {
            let decoded = finished::decode_record(task, &bytes);
            archive.put(vec![Arc::new(decoded.map_err(|error| ArchiveError::Record { reason: error.to_string() })?)]);
            if archive.is_full() {
                archive.write_out().map_err(unwritten)?;
            }
        }
        match piece {
            Some(Piece::Record(task)) => record = Some((task, Vec::new())),
            Some(Piece::Blob(hash)) => writing = Some((hash, store.writer().map_err(damaged)?)),
            Some(Piece::Content(_)) | None => break,
        }
    }
    archive.write_out().map_err(unwritten)?;
    Ok(())
}

/// Reads a saved snapshot, and nothing of it that is not checked.
pub(crate) fn read(input: impl Read) -> Result<(ArchiveSummary, State), ArchiveError> {
    let (mut reader, head) = ArchiveReader::begin(input)?;
    let decoded = wire::read_state(&mut reader);
    if let Some(failure) = reader.failure() {
        return Err(failure);
    }
    let state = decoded.map_err(|source| ArchiveError::Content { source: Box::new(source) })?;
    let (mut blobs, mut records) = (BTreeSet::new(), BTreeSet::new());
    while let Some(piece) = reader.next_piece()? {
        match piece {
            Piece::Record(task) => drop(records.insert(task)),
            Piece::Blob(hash) => drop(blobs.insert(hash)),
            Piece::Content(_) => {}
        }
    }
    if let Some(task) = state.archived_behind(None).find(|task| !records.contains(task)) {
        return Err(ArchiveError::Record { reason: format!("that of task {task} is not in it") });
    }
    let missing = state.named_blobs().map(|(hash, _)| hash).find(|hash| !blobs.contains(hash));
    match missing {
        Some(hash) => Err(ArchiveError::Blob { reason: format!("blob {hash} is not in it") }),
        None => Ok((summary(head)?, state)),
    }
}

fn summary(head: v1::ArchiveHead) -> Result<ArchiveSummary, ArchiveError> {
    let missing = WireError::Missing { message: "head of the saved snapshot", field: "cluster" };
    let cluster = Uuid::from_slice(&head.cluster).map_err(|_| ArchiveError::Content { source: Box::new(missing) })?;
    Ok(ArchiveSummary {
        cluster,
        cluster_name: head.cluster_name,
        index: head.index,
        saved_at_ms: head.saved_at_ms,
        version: head.version,
        tasks: head.tasks,
    })
}

/// Where a file goes that is read while it is made.
struct Outlet(mpsc::Sender<io::Result<Bytes>>);

impl Write for Outlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "nobody reads the snapshot any more");
        self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes))).map_err(gone)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

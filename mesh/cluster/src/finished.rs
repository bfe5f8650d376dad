//! Finished tasks: their records leave the state for an archive on the disk of each node, a while after they ended.
//!
//! ```text
//! leader ── Archive{ids} ──▶ log ──▶ every node: record ─▶ store, stub stays in State
//! reader ──▶ State: live task | stub ──▶ store ──▶ a voter, if the record is not here
//! ```
//! What is in the archive follows from the log, so it is the same on every node that has applied the same. A record that a
//! node lacks (its file was lost or damaged, or it was sent a snapshot) is fetched from another one; `mend` looks for such
//! records at each start and after each installed snapshot, and removes those that the state does not know.

mod backend;
mod guarded;
mod record;
pub mod retaining;
mod serve;
mod store;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use tokio::time::{sleep, timeout};
use towline_core::{
    Command, NodeHealth, NodeId, NodeRole, Record, State, Task, TaskId,
    limits::MAX_PAGE_BYTES,
    mutants::{self, Mutant},
};
use towline_proto::v1;

use crate::{
    Unavailable,
    handle::ClusterHandle,
    leader::{Written, wall_clock},
    peers::{self, Lane},
    raft::StateView,
    seams,
};

pub(crate) use record::decode as decode_record;
#[cfg(test)]
pub(crate) use record::encode as encode_record;
pub(crate) use serve::{ChunkStream, serve};
pub(crate) use store::{Installing, Store, first};

/// How often the leader looks for tasks that should go to the archive.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// An entry that is not full waits this long for more tasks.
const ARCHIVE_EVERY: Duration = Duration::from_secs(1);
/// The leader's own proposal; it is made again at a later look.
const PROPOSAL_TIMEOUT: Duration = Duration::from_secs(2);
/// A question whether a node knows of archives.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// What is put waits this long for more, so that the disk is the log's.
const WRITE_PAUSE: Duration = Duration::from_secs(1);
/// Pause after the archive could not be written.
const WRITE_AGAIN: Duration = Duration::from_secs(5);
/// Records that one question asks for.
const ASKED_TOGETHER: usize = 256;
/// Stubs that are compared with the store at a time, and the pause between: to look through a million takes minutes, beside
/// what the disk has to do.
const COMPARED_TOGETHER: usize = 500;
const COMPARE_PAUSE: Duration = Duration::from_millis(50);
/// When records that no node gave are asked for again.
const MEND_AGAIN: Duration = Duration::from_secs(10);
/// A node that sends nothing for this long is given up.
const SILENCE: Duration = Duration::from_secs(5);
/// Longest record: that of a task with all content that a task may have, twice (in its history and in its events), and what
/// is around it.
pub(crate) const MAX_RECORD_BYTES: usize = 4 * towline_core::limits::MAX_TASK_BYTES;
/// Bytes of content that are read for one page: what is not shown of its tasks is read as well.
const MAX_RECALLED_BYTES: usize = 4 * MAX_PAGE_BYTES;

impl ClusterHandle {
    /// A task, with everything that was committed before the call; from the archive when it is there.
    ///
    /// # Errors
    /// When no leader with a quorum answers in time, or no node that answers has the record.
    pub async fn task(&self, id: TaskId) -> Result<Option<Arc<Task>>, Unavailable> {
        let record = self.read(|state| state.record(id)).await?;
        self.recall(id, record).await
    }

    /// A task as this node knows it; from the archive when it is there.
    ///
    /// # Errors
    /// When no node that answers has the record.
    pub async fn local_task(&self, id: TaskId) -> Result<Option<Arc<Task>>, Unavailable> {
        let record = self.local(|state| state.record(id));
        self.recall(id, record).await
    }

    /// The task behind what a state says of it.
    ///
    /// # Errors
    /// When no node that answers has the record.
    pub async fn recall(&self, id: TaskId, record: Option<Record>) -> Result<Option<Arc<Task>>, Unavailable> {
        match record {
            None => Ok(None),
            Some(Record::Live(task)) => Ok(Some(task)),
            Some(Record::Archived) => self.recall_archived(id).await,
        }
    }

    /// Tasks from the archive, in this order: as many as fit into what is read for a page, and at least one. None stands for
    /// a task that was swept since the state was asked, or that no node gave.
    pub async fn recall_page(&self, ids: Vec<TaskId>) -> BTreeMap<TaskId, Option<Arc<Task>>> {
        let store = self.finished().clone();
        let read = seams::blocking(move || {
            let mut bytes = 0;
            let mut found = BTreeMap::new();
            for id in ids {
                let task = store.get(id).unwrap_or_else(|error| unreadable(id, &error));
                bytes += task.as_ref().map_or(0, |task| task.bytes);
                found.insert(id, task);
                if bytes > MAX_RECALLED_BYTES {
                    break;
                }
            }
            found
        });
        let mut found = read.await.unwrap_or_default();
        for (id, task) in found.iter_mut().filter(|(_, task)| task.is_none()) {
            *task = self.recall_archived(*id).await.unwrap_or_else(|error| {
                tracing::warn!(task = %id, %error, "finished task is left out of a page");
                None
            });
        }
        found
    }

    async fn recall_archived(&self, id: TaskId) -> Result<Option<Arc<Task>>, Unavailable> {
        if let Some(task) = self.archived_here(id).await {
            return Ok(Some(task));
        }
        let told = fetch(self, &[id], None).await;
        if let Some(task) = self.archived_here(id).await {
            return Ok(Some(task));
        }
        match self.local(|state| state.record(id)) {
            // Swept meanwhile.
            None => Ok(None),
            Some(Record::Live(task)) => Ok(Some(task)),
            Some(Record::Archived) => {
                let reason = told.err().unwrap_or_else(|| "no node has it".to_owned());
                Err(Unavailable { reason: format!("record of finished task {id}: {reason}") })
            }
        }
    }

    async fn archived_here(&self, id: TaskId) -> Option<Arc<Task>> {
        let store = self.finished().clone();
        let read = seams::blocking(move || store.get(id)).await.and_then(|read| read);
        read.unwrap_or_else(|error| unreadable(id, &error))
    }

    /// The record of a finished task that lies on this node, for tests and simulations that look at one node alone.
    ///
    /// # Errors
    /// When the archive cannot be read.
    #[doc(hidden)]
    pub fn record_here(&self, id: TaskId) -> io::Result<Option<Arc<Task>>> {
        self.finished().get(id)
    }

    /// The record of a finished task as bytes, wherever it is: for a saved snapshot.
    pub(crate) async fn record_bytes(&self, id: TaskId) -> io::Result<Vec<u8>> {
        let read = || {
            let store = self.finished().clone();
            async move { seams::blocking(move || store.bytes(id)).await.and_then(|read| read) }
        };
        if let Some(bytes) = read().await? {
            return Ok(bytes);
        }
        let gone = || io::Error::other(format!("finished task {id} was swept meanwhile: save again"));
        self.recall_archived(id).await.map_err(io::Error::other)?.ok_or_else(gone)?;
        read().await?.ok_or_else(gone)
    }

    pub(crate) fn finished(&self) -> &Store {
        self.leadership().view().finished()
    }
}

fn unreadable(id: TaskId, error: &io::Error) -> Option<Arc<Task>> {
    tracing::warn!(task = %id, %error, "archive cannot be read");
    None
}

/// Writes the archive behind the entries that are applied. Runs as long as the node does.
pub(crate) async fn write_out(cluster: ClusterHandle) {
    let store = cluster.finished();
    loop {
        store.has_pending().await;
        sleep(WRITE_PAUSE).await;
        let writing = store.clone();
        if let Err(error) = seams::blocking(move || writing.write_out()).await.and_then(|written| written) {
            tracing::warn!(%error, "archive is written later");
            sleep(WRITE_AGAIN).await;
            store.put(Vec::new());
        }
    }
}

/// While this node leads: sends tasks that ended a while ago to the archive. Runs as long as the node does.
pub(crate) async fn archive_ended(cluster: ClusterHandle) {
    let after = seams::archive_after();
    let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
    let mut understand = BTreeSet::new();
    let mut waited = Duration::ZERO;
    loop {
        sleep(LOOK_EVERY).await;
        waited += LOOK_EVERY;
        let leadership = cluster.leadership();
        let (Some(raft), Some(log)) = (leadership.raft(), leadership.log()) else { return };
        if raft.as_leader().is_err() {
            understand.clear();
            continue;
        }
        let tasks = leadership.view().read(|state| state.archivable(wall_clock(), after_ms));
        let is_full = tasks.len() == towline_core::limits::MAX_ARCHIVED_PER_ENTRY;
        if tasks.is_empty() || !is_full && waited < ARCHIVE_EVERY {
            continue;
        }
        waited = Duration::ZERO;
        // What a full disk cannot take stays in memory.
        if log.has_room().is_err() || !all_understand(&cluster, &mut understand).await {
            continue;
        }
        match leadership.write_own(Command::Archive { tasks }, PROPOSAL_TIMEOUT).await {
            Written::Applied { outcome: Err(rejection), .. } => tracing::warn!(%rejection, "tasks are not archived"),
            Written::Applied { outcome: Ok(_), .. } | Written::NotLeader(_) => {}
            Written::Unavailable(reason) | Written::Unknown(reason) => {
                tracing::debug!(reason, "tasks are archived later");
            }
        }
    }
}

/// Whether every node that is up knows the command: one of an earlier version would stop at such an entry.
async fn all_understand(cluster: &ClusterHandle, understand: &mut BTreeSet<(NodeId, towline_core::BootId)>) -> bool {
    let me = cluster.node_id();
    let up: Vec<(NodeId, towline_core::BootId)> = cluster.local(|state| {
        let up = state.nodes().filter(|node| node.id != me && node.health == NodeHealth::Up);
        up.filter_map(|node| Some((node.id, node.boot?))).collect()
    });
    let open = up.iter().filter(|node| !understand.contains(node));
    let asked = join_all(
        open.map(|(node, boot)| async move { knows_archives(cluster, *node).await.then_some((*node, *boot)) }),
    );
    understand.extend(asked.await.into_iter().flatten());
    up.iter().all(|node| understand.contains(node))
}

async fn knows_archives(cluster: &ClusterHandle, node: NodeId) -> bool {
    let mut client = cluster.peers().peer(node, Lane::Session);
    matches!(timeout(ASK_TIMEOUT, client.finished(v1::FinishedRequest { tasks: Vec::new() })).await, Ok(Ok(_)))
}

/// Compares the archive with the state: at the start, after a snapshot was installed, and when a record was found damaged.
/// Runs as long as the node does.
pub(crate) async fn mend(cluster: ClusterHandle) {
    loop {
        let missing = compare(&cluster).await;
        cluster.finished().set_missing_count(missing);
        if missing == 0 {
            cluster.finished().wants_mending().await;
        } else {
            tracing::warn!(missing, "records of finished tasks are neither here nor on a node that answers");
            // Another word of the same need not be waited for.
            let _again = timeout(MEND_AGAIN, cluster.finished().wants_mending()).await;
        }
    }
}

/// Fetches what is missing and removes what is not known. Returns how many records are still missing.
async fn compare(cluster: &ClusterHandle) -> usize {
    let mut last = None;
    let mut missing = 0;
    loop {
        let ids: Vec<TaskId> = cluster.local(|state| state.archived_behind(last).take(COMPARED_TOGETHER).collect());
        let Some(next) = ids.last() else { break };
        last = Some(*next);
        for ids in lacks(cluster, ids).await.chunks(ASKED_TOGETHER) {
            let left = match fetch(cluster, ids, None).await {
                Ok(left) => left,
                Err(reason) => {
                    tracing::debug!(reason, "records of finished tasks are fetched later");
                    ids.to_vec()
                }
            };
            missing += cluster.local(|state| left.iter().filter(|id| state.knows_task(**id)).count());
        }
        sleep(COMPARE_PAUSE).await;
    }
    let (store, view) = (cluster.finished().clone(), cluster.leadership().view().clone());
    let removed = seams::blocking(move || remove_unknown(&store, &view)).await.and_then(|removed| removed);
    if let Err(error) = removed {
        tracing::warn!(%error, "archive cannot be looked through");
    }
    missing
}

/// Which of these tasks have no record here. One that cannot be told is taken for missing.
async fn lacks(cluster: &ClusterHandle, ids: Vec<TaskId>) -> Vec<TaskId> {
    let store = cluster.finished().clone();
    let asked = ids.clone();
    match seams::blocking(move || store.lacks(asked)).await.and_then(|lacks| lacks) {
        Ok(lacks) => lacks,
        Err(error) => {
            tracing::warn!(%error, "archive cannot be read");
            ids
        }
    }
}

/// Removes records of tasks that the state does not know: they were swept while a snapshot passed over it.
fn remove_unknown(store: &Store, view: &StateView) -> io::Result<()> {
    let mut last = None;
    loop {
        let ids = store.ids_behind(last, COMPARED_TOGETHER)?;
        let Some(next) = ids.last() else { return Ok(()) };
        last = Some(*next);
        let _moving = store.moving();
        if store.is_installing() {
            return Ok(());
        }
        store.forget(view.read(|state| ids.into_iter().filter(|id| !state.knows_task(*id)).collect::<Vec<_>>()));
    }
}

/// Fetches all records that belong to a state and are not here: before it is installed. `from` has sent it.
///
/// # Errors
/// When a record may be on a node that does not answer, or the archive cannot be written.
pub(crate) async fn complete(cluster: &ClusterHandle, state: &State, from: Option<NodeId>) -> Result<(), String> {
    let mut left = 0;
    let mut ids = state.archived_behind(None).peekable();
    while ids.peek().is_some() {
        let page: Vec<TaskId> = ids.by_ref().take(ASKED_TOGETHER).collect();
        left += fetch(cluster, &lacks(cluster, page).await, from).await?.len();
    }
    if left > 0 {
        tracing::warn!(left, "some finished tasks of the snapshot have no record on the node that sent it");
    }
    let store = cluster.finished().clone();
    let written = seams::blocking(move || store.write_out()).await.and_then(|written| written);
    written.map_err(|error| format!("write the archive: {error}"))
}

/// Fetches records from one node after the other, `from` and the leader first. Returns those that none of them has.
///
/// # Errors
/// When no node answers.
async fn fetch(cluster: &ClusterHandle, ids: &[TaskId], from: Option<NodeId>) -> Result<Vec<TaskId>, String> {
    let mut left = ids.to_vec();
    if left.is_empty() || mutants::on(Mutant::ArchiveMissingFromSnapshot) {
        return Ok(Vec::new());
    }
    let me = cluster.node_id();
    let voters = cluster.local(|state| {
        let voters = state.nodes().filter(|node| node.role == NodeRole::Voter && node.health == NodeHealth::Up);
        voters.map(|node| node.id).collect::<Vec<NodeId>>()
    });
    let mut nodes: Vec<NodeId> = from.into_iter().chain(cluster.leadership().leader()).chain(voters).collect();
    let mut seen = BTreeSet::from([me]);
    nodes.retain(|node| seen.insert(*node));
    let mut told = Err("no other voter is up".to_owned());
    for node in nodes {
        match fetch_from(cluster, node, &left).await {
            Ok(absent) => {
                told = Ok(());
                left = absent;
            }
            Err(reason) => {
                tracing::debug!(%node, reason, "was asked for finished tasks");
                told = told.map_err(|_| reason);
            }
        }
        if left.is_empty() {
            break;
        }
    }
    told.map(|()| left)
}

/// Fetches records from a node. Returns those that it does not have.
async fn fetch_from(cluster: &ClusterHandle, node: NodeId, ids: &[TaskId]) -> Result<Vec<TaskId>, String> {
    let store = cluster.finished();
    let tasks = ids.iter().map(|id| id.as_uuid().as_bytes().to_vec().into()).collect();
    let mut client = cluster.peers().peer(node, Lane::Blobs);
    let asked = timeout(SILENCE, client.finished(v1::FinishedRequest { tasks })).await;
    let silent = |_| format!("node {node} sends nothing");
    let failed = |status: tonic::Status| format!("node {node}: {}", peers::root_cause(&status));
    let mut chunks = asked.map_err(silent)?.map_err(failed)?.into_inner();
    let mut absent = Vec::new();
    for id in ids {
        let mut record = Vec::new();
        let is_there = loop {
            let chunk = timeout(SILENCE, chunks.message()).await.map_err(silent)?.map_err(failed)?;
            let chunk = chunk.ok_or_else(|| format!("node {node} ended its answer before task {id}"))?;
            if chunk.task != id.as_uuid().as_bytes()[..] || record.len() + chunk.data.len() > MAX_RECORD_BYTES {
                return Err(format!("node {node} answers otherwise than it was asked"));
            }
            record.extend_from_slice(&chunk.data);
            if chunk.absent || chunk.last {
                break !chunk.absent;
            }
        };
        if !is_there {
            absent.push(*id);
            continue;
        }
        let task = record::decode(*id, &record).map_err(|error| format!("node {node}: task {id}: {error}"))?;
        store.put(vec![Arc::new(task)]);
        if store.is_full() {
            let writing = store.clone();
            let written = seams::blocking(move || writing.write_out()).await.and_then(|written| written);
            written.map_err(|error| format!("write the archive: {error}"))?;
        }
    }
    Ok(absent)
}

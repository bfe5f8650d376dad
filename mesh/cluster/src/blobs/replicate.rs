//! Blobs on their way between nodes: pushed to the voters, fetched from whoever has them.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{Stream, StreamExt};
use openraft::async_runtime::WatchReceiver;
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};
use towline_core::{BlobHash, NodeId};
use towline_proto::v1;

use super::{BlobError, blocking, tree};
use crate::{
    handle::ClusterHandle,
    peers::{self, Lane},
};

/// How long a majority is waited for, before what the bytes themselves take: an election or a restart of a node fits in.
const MAJORITY_TIMEOUT: Duration = Duration::from_secs(10);
/// The slowest way between nodes that is waited for, in bytes per second.
const SLOWEST: u64 = 4 * 1024 * 1024;
/// Between two tries to push to a node.
const PUSH_PAUSE: Duration = Duration::from_millis(300);
/// A node that is silent for this long in the middle of a blob is given up.
pub(super) const SILENCE: Duration = Duration::from_secs(10);
/// Blobs that are pushed at the same time: each has a group or two in memory.
const MAX_PUSHING: usize = 16;
/// Pushes that may wait for their turn. Beyond it nothing new is kept until some are done.
const MAX_WAITING: usize = 4_096;

/// The pushes of this node that are under way; dropped, they end.
pub(crate) struct Pushes {
    under_way: Mutex<JoinSet<()>>,
    turns: Arc<Semaphore>,
}

impl Default for Pushes {
    fn default() -> Self {
        Self { under_way: Mutex::default(), turns: Arc::new(Semaphore::new(MAX_PUSHING)) }
    }
}

impl Pushes {
    fn run(&self, push: impl Future<Output = ()> + Send + 'static) -> Result<(), BlobError> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        while under_way.try_join_next().is_some() {}
        if under_way.len() >= MAX_WAITING {
            return Err(BlobError::NoMajority { reason: format!("{MAX_WAITING} pushes wait for their turn") });
        }
        under_way.spawn(push);
        Ok(())
    }

    /// Ends all of them.
    pub(crate) async fn stop(&self) {
        let mut under_way = std::mem::take(&mut *self.under_way.lock().unwrap_or_else(PoisonError::into_inner));
        under_way.shutdown().await;
    }
}

/// Returns once a majority of the voters holds a blob that this node holds. The others are still pushed to.
pub(super) async fn to_majority(cluster: &ClusterHandle, hash: BlobHash, length: u64) -> Result<(), BlobError> {
    let deadline = Instant::now() + MAJORITY_TIMEOUT + Duration::from_secs(length / SLOWEST);
    let (told, mut pushed) = mpsc::channel(MAX_WAITING);
    let me = cluster.node_id().0;
    for node in voter_sets(cluster).into_iter().flatten().filter(|node| *node != me).collect::<BTreeSet<u64>>() {
        let (pusher, told) = (cluster.clone(), told.clone());
        cluster.blobs().pushes().run(async move {
            let result = push(&pusher, NodeId(node), hash, length, deadline).await;
            if let Err(reason) = &result {
                tracing::info!(node, %hash, reason, "blob was not pushed: the node fetches it once it is named");
            }
            // Nobody waits any more once there is a majority.
            let _ = told.send((node, result)).await;
        })?;
    }
    drop(told);
    let mut holders = BTreeSet::from([me]);
    let mut failed = Vec::new();
    while !is_majority(&voter_sets(cluster), &holders) {
        match timeout_at(deadline, pushed.recv()).await {
            Ok(Some((node, Ok(())))) => {
                holders.insert(node);
            }
            Ok(Some((node, Err(reason)))) => failed.push(format!("node {node}: {reason}")),
            Ok(None) => return Err(BlobError::NoMajority { reason: failed.join("; ") }),
            Err(_) => return Err(BlobError::NoMajority { reason: "the other voters did not answer in time".into() }),
        }
    }
    Ok(())
}

/// The majorities that a decision needs: two while the membership changes.
fn voter_sets(cluster: &ClusterHandle) -> Vec<BTreeSet<u64>> {
    let Some(raft) = cluster.leadership().raft() else {
        return cluster.leadership().view().membership().get_joint_config().clone();
    };
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    metrics.membership_config.membership().get_joint_config().clone()
}

fn is_majority(voter_sets: &[BTreeSet<u64>], holders: &BTreeSet<u64>) -> bool {
    !voter_sets.is_empty() && voter_sets.iter().all(|voters| voters.intersection(holders).count() > voters.len() / 2)
}

/// Pushes until the node holds the blob, or the time is over.
async fn push(
    cluster: &ClusterHandle,
    node: NodeId,
    hash: BlobHash,
    length: u64,
    deadline: Instant,
) -> Result<(), String> {
    let Ok(_turn) = Arc::clone(&cluster.blobs().pushes().turns).acquire_owned().await else {
        return Err("this node is stopping".to_owned());
    };
    loop {
        let reason = match timeout_at(deadline, try_push(cluster, node, hash, length)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(reason)) => reason,
            Err(_) => return Err("it did not take it in time".to_owned()),
        };
        if Instant::now() + PUSH_PAUSE >= deadline {
            return Err(reason);
        }
        tokio::time::sleep(PUSH_PAUSE).await;
    }
}

async fn try_push(cluster: &ClusterHandle, node: NodeId, hash: BlobHash, length: u64) -> Result<(), String> {
    let mut client = cluster.peers().peer(node, Lane::Blobs);
    let name = v1::BlobName { hash: hash.as_bytes().to_vec().into(), length };
    // A small one is sent at once: asking first would take as long.
    if length > tree::GROUP_BYTES {
        let asked = client.hold_blobs(v1::HoldBlobsRequest { blobs: vec![name.clone()] }).await;
        let held = asked.map_err(|status| peers::root_cause(&status))?.into_inner().held;
        if held.first() == Some(&true) {
            return Ok(());
        }
    }
    let content = cluster.open_blob(hash, length).await.map_err(|error| error.to_string())?;
    let head = v1::BlobChunk { name: Some(name), data: bytes::Bytes::new() };
    let sent = client.put_blob(futures::stream::once(async { head }).chain(chunks(content, hash)));
    Box::pin(sent).await.map(|_| ()).map_err(|status| peers::root_cause(&status))
}

/// The content as messages. One that cannot be read ends them early, and the receiver finds that something is missing.
fn chunks(content: super::BlobContent, hash: BlobHash) -> impl Stream<Item = v1::BlobChunk> + Send {
    let length = content.length();
    content.range(0, length).scan((), move |(), piece| {
        let piece = piece.inspect_err(|error| tracing::warn!(%hash, %error, "blob is not pushed to its end"));
        futures::future::ready(piece.ok().map(|data| v1::BlobChunk { name: None, data }))
    })
}

/// Fetches a blob from whoever has it, unless it is held by now.
pub(super) async fn fetch(cluster: &ClusterHandle, hash: BlobHash, length: u64) -> Result<(), BlobError> {
    let _alone = cluster.blobs().stripe(&hash).await;
    if cluster.blobs().store().holds(&hash) {
        return Ok(());
    }
    cluster.has_room_for_blobs(length)?;
    let mut said = Vec::new();
    for node in sources(cluster) {
        match fetch_from(cluster, node, hash, length).await {
            Ok(()) => return Ok(()),
            Err(reason) => said.push(format!("node {node}: {reason}")),
        }
    }
    let reason = if said.is_empty() { "there is no other node".to_owned() } else { said.join("; ") };
    Err(BlobError::Unreadable { hash, reason })
}

/// All other nodes that keep what is named, voters first.
pub(super) fn sources(cluster: &ClusterHandle) -> Vec<NodeId> {
    let voters: BTreeSet<u64> = voter_sets(cluster).into_iter().flatten().collect();
    let mut nodes = cluster.log_keepers();
    nodes.sort_by_key(|node| (!voters.contains(&node.0), *node));
    nodes
}

async fn fetch_from(cluster: &ClusterHandle, node: NodeId, hash: BlobHash, length: u64) -> Result<(), String> {
    let mut client = cluster.peers().peer(node, Lane::Blobs);
    let name = v1::BlobName { hash: hash.as_bytes().to_vec().into(), length };
    let asked = timeout(SILENCE, client.get_blob(v1::GetBlobRequest { name: Some(name) })).await;
    let silent = |_| format!("it was silent for {SILENCE:?}");
    let mut answer = asked.map_err(silent)?.map_err(|status| peers::root_cause(&status))?.into_inner();
    let store = cluster.blobs().store().clone();
    let failed = |error: BlobError| error.to_string();
    let mut writer = blocking(move || store.writer()).await.map_err(failed)?;
    loop {
        let next = timeout(SILENCE, answer.message()).await.map_err(silent)?;
        let Some(chunk) = next.map_err(|status| peers::root_cause(&status))? else { break };
        writer = blocking(move || {
            writer.write(&chunk.data)?;
            Ok(writer)
        })
        .await
        .map_err(failed)?;
    }
    blocking(move || writer.finish(Some(hash))).await.map(|_| ()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_the_membership_changes_a_majority_of_both_sets_is_needed() {
        let sets = [BTreeSet::from([1, 2, 3]), BTreeSet::from([3, 4, 5])];
        assert!(is_majority(&sets, &BTreeSet::from([1, 3, 4])));
        assert!(!is_majority(&sets, &BTreeSet::from([1, 2, 3])));
        assert!(!is_majority(&[], &BTreeSet::from([1])), "who votes is not known yet");
    }
}

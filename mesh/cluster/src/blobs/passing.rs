//! Content that this node gives to a reader and does not keep, since it has no room for it: it passes through, a group at a time.
//!
//! Who gives it has checked each group against the hash, as it does for everything that it reads, and the way between nodes is
//! mutual TLS. A reader who begins in the middle waits for what lies before.

use tokio::time::timeout;
use tonic::Streaming;
use towline_core::{BlobHash, NodeId};
use towline_proto::v1;

use super::{
    BlobError,
    replicate::{SILENCE, sources},
    tree::GROUP_BYTES,
};
use crate::{
    handle::ClusterHandle,
    peers::{self, Lane},
};

/// A blob of another node, read from its beginning on.
pub(super) struct Passing {
    hash: BlobHash,
    length: u64,
    chunks: Streaming<v1::BlobChunk>,
    /// The group that comes next.
    next: u64,
}

impl Passing {
    /// Has another node give a blob.
    ///
    /// # Errors
    /// When none does.
    pub(super) async fn begin(cluster: &ClusterHandle, hash: BlobHash, length: u64) -> Result<Self, BlobError> {
        let mut said = Vec::new();
        for node in sources(cluster) {
            match ask(cluster, node, hash, length).await {
                Ok(chunks) => return Ok(Self { hash, length, chunks, next: 0 }),
                Err(reason) => said.push(format!("node {node}: {reason}")),
            }
        }
        let reason = if said.is_empty() { "there is no other node".to_owned() } else { said.join("; ") };
        Err(BlobError::Unreadable { hash, reason })
    }

    /// A group of it.
    ///
    /// # Errors
    /// When it does not come.
    pub(super) async fn group(&mut self, cluster: &ClusterHandle, wanted: u64) -> Result<Vec<u8>, BlobError> {
        if wanted < self.next {
            *self = Self::begin(cluster, self.hash, self.length).await?;
        }
        loop {
            let expected = self.length.saturating_sub(self.next * GROUP_BYTES).min(GROUP_BYTES);
            let read = timeout(SILENCE, self.chunks.message()).await;
            let reason = match read {
                Ok(Ok(Some(chunk))) if chunk.data.len() as u64 == expected => {
                    self.next += 1;
                    if self.next > wanted {
                        return Ok(chunk.data.into());
                    }
                    continue;
                }
                Ok(Ok(_)) => "what came is not all of it".to_owned(),
                Ok(Err(status)) => peers::root_cause(&status),
                Err(_) => format!("it was silent for {SILENCE:?}"),
            };
            return Err(BlobError::Unreadable { hash: self.hash, reason });
        }
    }
}

async fn ask(
    cluster: &ClusterHandle,
    node: NodeId,
    hash: BlobHash,
    length: u64,
) -> Result<Streaming<v1::BlobChunk>, String> {
    let mut client = cluster.peers().peer(node, Lane::Blobs);
    let name = v1::BlobName { hash: hash.as_bytes().to_vec().into(), length };
    let asked = timeout(SILENCE, client.get_blob(v1::GetBlobRequest { name: Some(name) })).await;
    let answer = asked.map_err(|_| format!("it was silent for {SILENCE:?}"))?;
    answer.map(tonic::Response::into_inner).map_err(|status| peers::root_cause(&status))
}

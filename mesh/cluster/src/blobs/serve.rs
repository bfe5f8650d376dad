//! What this node does for others with blobs: takes them, gives them, and says which it holds.

use std::pin::Pin;

use futures::{Stream, StreamExt};
use tokio::time::timeout;
use tonic::{Status, Streaming};
use towline_core::{BlobHash, State};
use towline_proto::v1;

use super::{BlobError, blocking, replicate::SILENCE};
use crate::handle::ClusterHandle;

/// Blobs that one question may name: the answer is made in one go.
const MAX_ASKED: usize = 1_024;
/// Missing blobs that one answer names; more are said to be more.
const MAX_MISSING: usize = 10_000;

/// A blob as it is sent.
pub(crate) type ChunkStream = Pin<Box<dyn Stream<Item = Result<v1::BlobChunk, Status>> + Send>>;

/// Takes a blob. Returns once it is durable here.
pub(crate) async fn put(cluster: &ClusterHandle, mut chunks: Streaming<v1::BlobChunk>) -> Result<(), Status> {
    let first = next(&mut chunks).await?.ok_or_else(|| Status::invalid_argument("no blob was sent"))?;
    let (hash, length) = named(first.name.as_ref())?;
    let _alone = cluster.blobs().stripe(&hash).await;
    let store = cluster.blobs().store().clone();
    if blocking({
        let store = store.clone();
        move || Ok(store.touch(&hash, length))
    })
    .await
    .map_err(status)?
    {
        return Ok(());
    }
    cluster.has_room_for_blobs(length).map_err(status)?;
    let mut writer = blocking(move || store.writer()).await.map_err(status)?;
    let mut left = length;
    let mut chunk = Some(first);
    while let Some(v1::BlobChunk { data, .. }) = chunk {
        left = left
            .checked_sub(data.len() as u64)
            .ok_or_else(|| Status::invalid_argument("blob is longer than was said"))?;
        writer = blocking(move || {
            writer.write(&data)?;
            Ok(writer)
        })
        .await
        .map_err(status)?;
        chunk = next(&mut chunks).await?;
    }
    blocking(move || writer.finish(Some(hash))).await.map(|_| ()).map_err(status)
}

async fn next(chunks: &mut Streaming<v1::BlobChunk>) -> Result<Option<v1::BlobChunk>, Status> {
    timeout(SILENCE, chunks.message()).await.map_err(|_| Status::deadline_exceeded("no more of the blob came"))?
}

/// Gives a blob that this node holds. It is not fetched from elsewhere: who asks does that.
pub(crate) async fn get(cluster: &ClusterHandle, request: v1::GetBlobRequest) -> Result<ChunkStream, Status> {
    let (hash, length) = named(request.name.as_ref())?;
    let reader = cluster.open_held(hash).await;
    let reader = reader.inspect_err(|error| give_up_damaged(cluster, error)).map_err(status)?;
    if reader.length() != length {
        return Err(Status::not_found(format!("blob {hash} has another length here")));
    }
    let (cluster, reader) = (cluster.clone(), std::sync::Arc::new(reader));
    let groups = futures::stream::iter(0..super::tree::groups_of(length));
    Ok(Box::pin(groups.then(move |group| {
        let (cluster, reader) = (cluster.clone(), std::sync::Arc::clone(&reader));
        async move {
            let read = blocking(move || reader.group(group)).await;
            let read = read.inspect_err(|error| give_up_damaged(&cluster, error)).map_err(status)?;
            Ok(v1::BlobChunk { name: None, data: read.into() })
        }
    })))
}

fn give_up_damaged(cluster: &ClusterHandle, error: &BlobError) {
    if let BlobError::Damaged { hash, .. } = error {
        tracing::warn!(%error, "blob is damaged: it is fetched anew");
        cluster.blobs().store().give_up(hash);
    }
}

/// Says which of these blobs this node holds, and that they are still wanted.
pub(crate) async fn hold(cluster: &ClusterHandle, request: v1::HoldBlobsRequest) -> Result<Vec<bool>, Status> {
    if request.blobs.len() > MAX_ASKED {
        return Err(Status::invalid_argument(format!("at most {MAX_ASKED} blobs are asked for at a time")));
    }
    let asked: Vec<(BlobHash, u64)> =
        request.blobs.iter().map(|name| named(Some(name))).collect::<Result<_, Status>>()?;
    let store = cluster.blobs().store().clone();
    let held = blocking(move || Ok(asked.iter().map(|(hash, length)| store.touch(hash, *length)).collect()));
    held.await.map_err(status)
}

/// Which named blobs this node does not hold, by the state that it has applied.
pub(crate) fn missing(cluster: &ClusterHandle) -> v1::MissingBlobsResponse {
    let store = cluster.blobs().store();
    let look = |state: &State| {
        let missing = state.named_blobs().map(|(hash, _)| hash).filter(|hash| !store.holds(hash));
        (state.last().index, missing.take(MAX_MISSING + 1).collect::<Vec<BlobHash>>())
    };
    let (applied, mut missing) = cluster.local(look);
    let more = missing.len() > MAX_MISSING;
    missing.truncate(MAX_MISSING);
    v1::MissingBlobsResponse {
        applied,
        missing: missing.iter().map(|hash| hash.as_bytes().to_vec().into()).collect(),
        more,
    }
}

/// The hash and length that a message names.
pub(crate) fn named(name: Option<&v1::BlobName>) -> Result<(BlobHash, u64), Status> {
    let name = name.ok_or_else(|| Status::invalid_argument("no blob is named"))?;
    let hash: [u8; 32] =
        name.hash.as_ref().try_into().map_err(|_| Status::invalid_argument("hash of a blob has not 32 bytes"))?;
    Ok((BlobHash::from_bytes(hash), name.length))
}

fn status(error: BlobError) -> Status {
    let text = error.to_string();
    match error {
        BlobError::NotHeld { .. } | BlobError::Unreadable { .. } => Status::not_found(text),
        BlobError::Damaged { .. } => Status::data_loss(text),
        BlobError::TooLarge { .. } | BlobError::OtherContent { .. } => Status::invalid_argument(text),
        BlobError::NoRoom { .. } => Status::resource_exhausted(text),
        BlobError::File { .. } | BlobError::NoMajority { .. } | BlobError::Stopping => Status::unavailable(text),
    }
}

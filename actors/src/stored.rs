//! What lies in the blob store, put in its place before a model or a peer reads it.

use std::time::Duration;
use tokio::time::Instant;
use towline_cluster::{BlobError, ClusterHandle};
use towline_core::{Blob, Message, Outcome, Step, limits::MAX_CONTENT_BYTES};

/// How long content is asked for that no node gives: an election, or the restart of a node, fits in.
const PATIENCE: Duration = Duration::from_secs(60);

/// Wait between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// Largest part that is read into memory for a model or a peer. A larger one came through the upload door, and is named to
/// them only.
const MAX_READ_BYTES: u64 = MAX_CONTENT_BYTES as u64;

/// Puts the content of a message's parts in the place of their names.
pub(crate) async fn with_parts(cluster: &ClusterHandle, message: &mut Message) -> Result<(), BlobError> {
    let patience = Patience::begin();
    loop {
        let shown = cluster.show_parts(message.parts.iter_mut().collect(), MAX_READ_BYTES).await;
        match shown {
            Err(error) => patience.wait(error).await?,
            Ok(()) => return Ok(()),
        }
    }
}

/// Has a majority of the voters hold what this node wrote.
pub(crate) async fn held(cluster: &ClusterHandle, blob: &Blob) -> Result<(), BlobError> {
    let patience = Patience::begin();
    loop {
        match cluster.hold_content(blob.hash, blob.length).await {
            Err(error) => patience.wait(error).await?,
            Ok(()) => return Ok(()),
        }
    }
}

/// Puts the texts of outcomes in the place of their names.
pub(crate) async fn with_outcomes(cluster: &ClusterHandle, journal: &mut [Step]) -> Result<(), BlobError> {
    for ended in journal.iter_mut().filter_map(|step| step.ended.as_mut()) {
        let Outcome::Stored { is_error, .. } = ended.outcome else { continue };
        if let Some(content) = text(cluster, &ended.outcome).await? {
            ended.outcome = Outcome::Returned { content, is_error };
        }
    }
    Ok(())
}

async fn text(cluster: &ClusterHandle, outcome: &Outcome) -> Result<Option<String>, BlobError> {
    let patience = Patience::begin();
    loop {
        match cluster.stored_text(outcome).await {
            Err(error) => patience.wait(error).await?,
            read => return read,
        }
    }
}

/// How often something is tried again.
struct Patience {
    ends: Instant,
}

impl Patience {
    fn begin() -> Self {
        Self { ends: Instant::now() + PATIENCE }
    }

    /// Waits for the next try, unless none is of use any more.
    async fn wait(&self, error: BlobError) -> Result<(), BlobError> {
        if error.retry_after().is_none() || Instant::now() >= self.ends {
            return Err(error);
        }
        tracing::debug!(%error, "stored content is asked for again");
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}

//! Keeps this node's blobs what the state says: fetches what is named and not held, and removes what nothing has named for
//! a day. Each node does it by the state that it has applied itself, whoever leads.

use std::time::Duration;

use futures::StreamExt;
use tokio::time::{Instant, sleep};
use towline_core::{BlobHash, State, Timestamp, limits::BLOB_KEPT_UNNAMED_MS};

use super::{blocking, replicate};
use crate::handle::ClusterHandle;

/// How often the state is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a blob that no node gave is left before it is asked for again; also how often all named ones are compared.
const COMPARE_EVERY: Duration = Duration::from_secs(10);
/// Blobs that are fetched at the same time: enough to hide the way to the other node, and no more than the disk can take
/// beside the log.
const FETCH_AT_ONCE: usize = 2;
/// Blobs that one round fetches, so that a round ends.
const FETCH_PER_ROUND: usize = 256;
/// How often this node looks for what nothing names.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// Files that one sweep removes at most: removals are work for the disk that the log is written to.
const MAX_REMOVED: usize = 1_000;

/// Runs as long as the node does.
pub(crate) async fn run(cluster: ClusterHandle) {
    let mut compared: Option<(u64, Instant)> = None;
    let mut swept = Instant::now();
    loop {
        sleep(LOOK_EVERY).await;
        let named_at = cluster.local(State::blobs_named_at);
        if compared.is_none_or(|(index, at)| index != named_at || at.elapsed() >= COMPARE_EVERY) {
            let whole = catch_up(&cluster).await;
            compared = whole.then(|| (named_at, Instant::now()));
        }
        if swept.elapsed() >= SWEEP_EVERY {
            swept = Instant::now();
            sweep(&cluster).await;
        }
    }
}

/// Fetches what is named and not held. False if there may be more to do at once.
async fn catch_up(cluster: &ClusterHandle) -> bool {
    let store = cluster.blobs().store();
    let missing: Vec<(BlobHash, u64)> = cluster
        .local(|state| state.named_blobs().filter(|(hash, _)| !store.holds(hash)).take(FETCH_PER_ROUND).collect());
    let is_last_round = missing.len() < FETCH_PER_ROUND;
    let fetches = missing.into_iter().map(|(hash, length)| async move {
        let fetched = replicate::fetch(cluster, hash, length).await;
        fetched.inspect_err(|error| tracing::warn!(%hash, %error, "named blob is not held here")).is_ok()
    });
    let fetched: Vec<bool> = futures::stream::iter(fetches).buffer_unordered(FETCH_AT_ONCE).collect().await;
    is_last_round || !fetched.contains(&true)
}

/// Removes what nothing names and nobody has written for a day. The time that counts is that of the log: a node that is cut
/// off does not learn what is named meanwhile, and removes nothing.
async fn sweep(cluster: &ClusterHandle) {
    let store = cluster.blobs().store().clone();
    let held = store.all();
    if held.is_empty() {
        return;
    }
    let (now, unnamed) = cluster.local(|state| {
        let unnamed = held.into_iter().filter(|hash| !state.names_blob(hash)).collect::<Vec<BlobHash>>();
        (state.last().at, unnamed)
    });
    let before = Timestamp(now.0.saturating_sub(BLOB_KEPT_UNNAMED_MS));
    let removed = blocking(move || {
        let mut removed = 0;
        for hash in unnamed {
            match store.remove_if_older(&hash, before) {
                Ok(true) => removed += 1,
                Ok(false) => {}
                Err(error) => tracing::warn!(%hash, %error, "blob was not removed"),
            }
            if removed == MAX_REMOVED {
                break;
            }
        }
        Ok(removed)
    });
    if let Ok(removed @ 1..) = removed.await {
        tracing::info!(removed, "blobs that nothing named were removed");
    }
}

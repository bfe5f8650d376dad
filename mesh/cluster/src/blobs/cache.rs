//! Blobs on a worker: copies of what its tasks and readers asked for, and what is uploaded at its own door until a majority of
//! the voters holds it. It keeps no content for others, so it drops what was written first once there is too much.

use std::time::Duration;

use tokio::time::sleep;
use towline_core::{BlobHash, Timestamp};

use super::{BlobError, Store, blocking};
use crate::{handle::ClusterHandle, leader::wall_clock, seams};

/// How much a worker keeps: the inputs and results of the tasks that it runs, twice the largest that one may have.
const MAX_CACHED_BYTES: u64 = 32 * 1024 * 1024 * 1024;
/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// What was written this recently stays: an upload may not have reached a majority of the voters yet, and the longest takes
/// less than 20 minutes.
const KEPT_AT_LEAST: Duration = Duration::from_secs(30 * 60);
/// What stays free on the disk of a worker: it is not the log's, but others live on it.
const FREE_BYTES: u64 = 256 * 1024 * 1024;
/// Files that one look removes at most.
const MAX_REMOVED: usize = 1_000;

/// Whether a worker has room for more.
pub(super) fn has_room(cluster: &ClusterHandle, bytes: u64) -> Result<(), BlobError> {
    let dir = cluster.blobs().store().dir();
    // The folder is made with the first blob.
    let dir = if dir.exists() { dir } else { dir.parent().unwrap_or(dir) };
    let Ok(space) = seams::disk().space(dir) else { return Ok(()) };
    if space.free < FREE_BYTES.saturating_add(bytes) {
        let reason = format!("node {}: {} has {} bytes free", cluster.node_id(), dir.display(), space.free);
        return Err(BlobError::NoRoom { reason });
    }
    Ok(())
}

/// Runs as long as the worker does.
pub(crate) async fn run(cluster: ClusterHandle) {
    loop {
        sleep(LOOK_EVERY).await;
        let store = cluster.blobs().store().clone();
        if let Ok(removed @ 1..) = blocking(move || Ok(drop_oldest(&store, MAX_CACHED_BYTES, wall_clock()))).await {
            tracing::info!(removed, "blobs were dropped: this worker has fetched newer ones");
        }
    }
}

/// Removes what was written first until there is no more than `limit`; says how many.
fn drop_oldest(store: &Store, limit: u64, now: Timestamp) -> usize {
    let mut files = store.files();
    let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    files.sort_unstable_by_key(|(hash, _, written)| (*written, *hash));
    let kept_at_least = u64::try_from(KEPT_AT_LEAST.as_millis()).unwrap_or(u64::MAX);
    let before = Timestamp(now.0.saturating_sub(kept_at_least));
    let mut removed = 0;
    for (hash, size, written) in files {
        if bytes <= limit || written >= before || removed == MAX_REMOVED {
            break;
        }
        if remove(store, &hash, before) {
            bytes -= size;
            removed += 1;
        }
    }
    removed
}

fn remove(store: &Store, hash: &BlobHash, before: Timestamp) -> bool {
    let removed = store.remove_if_older(hash, before, Duration::ZERO);
    removed.inspect_err(|error| tracing::warn!(%hash, %error, "blob was not removed")).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn store_of(dir: &std::path::Path, count: u8) -> Store {
        let store = Store::open(dir).unwrap();
        for number in 0..count {
            let mut writer = store.writer().unwrap();
            writer.write(&[number; 1_000]).unwrap();
            writer.finish(None).unwrap();
        }
        store
    }

    #[test]
    fn what_is_too_much_is_dropped_oldest_first() {
        let dir = tempfile::tempdir().unwrap();
        let store = store_of(dir.path(), 4);
        let first = store.all()[2];
        let name = first.to_string();
        let path = dir.path().join(&name[..2]).join(&name[2..]);
        let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000);
        std::fs::File::options().append(true).open(path).unwrap().set_modified(old).unwrap();

        let later = Timestamp(wall_clock().0 + HOUR_MS);
        assert_eq!(drop_oldest(&store, 5_000, later), 0, "there is room");
        assert_eq!(drop_oldest(&store, 3_100, later), 1);
        assert!(!store.holds(&first));
        assert_eq!(drop_oldest(&store, 0, later), 3);
    }

    #[test]
    fn what_was_just_written_stays_until_the_voters_surely_have_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = store_of(dir.path(), 2);
        assert_eq!(drop_oldest(&store, 0, wall_clock()), 0);
        assert_eq!(store.all().len(), 2);
    }
}

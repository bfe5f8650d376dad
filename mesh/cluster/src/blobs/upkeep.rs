//! Keeps this node's blobs what the state says: fetches what is named and not held, removes what nothing has named for a
//! day, and looks for damage in what nobody reads. Each node does it by the state that it has applied itself, whoever leads.

use std::time::Duration;

use futures::StreamExt;
use tokio::time::{Instant, sleep};
use towline_core::{
    BlobHash, State, Timestamp,
    limits::BLOB_KEPT_UNNAMED_MS,
    mutants::{self, Mutant},
};

use super::{BlobError, Store, blocking, replicate, tree};
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
/// However the wall clocks of the cluster differ or jump, and with them the day, what was written is kept for this long by the
/// clock that nobody sets: what is to name it is on its way for seconds, or for as long as the others are away.
pub(super) const KEPT_AT_LEAST: Duration = Duration::from_secs(3_600);
/// Files that one sweep removes at most: removals are work for the disk that the log is written to.
const MAX_REMOVED: usize = 1_000;

/// Groups that are looked through after each sweep: less than a mebibyte per second, so that the disk is the log's, and a
/// hundred gibibytes in a day and a half.
const LOOKED_THROUGH: usize = 8;

/// Runs as long as the node does.
pub(crate) async fn run(cluster: ClusterHandle) {
    let mut compared: Option<(u64, Instant)> = None;
    let mut swept = Instant::now();
    let mut looked = Place::default();
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
            let store = cluster.blobs().store().clone();
            looked = blocking(move || Ok(look_through(&store, looked))).await.unwrap_or_default();
        }
    }
}

/// Fetches what is named and not held. False if there may be more to do at once.
async fn catch_up(cluster: &ClusterHandle) -> bool {
    let store = cluster.blobs().store();
    let missing: Vec<(BlobHash, u64)> = cluster
        .local(|state| state.named_blobs().filter(|(hash, _)| !store.holds(hash)).take(FETCH_PER_ROUND).collect());
    cluster.blobs().set_missing(missing.len());
    let is_last_round = missing.len() < FETCH_PER_ROUND;
    let fetches = missing.into_iter().map(|(hash, length)| async move {
        let fetched = replicate::fetch(cluster, hash, length).await;
        fetched.inspect_err(|error| tracing::warn!(%hash, %error, "named blob is not held here")).is_ok()
    });
    let fetched: Vec<bool> = futures::stream::iter(fetches).buffer_unordered(FETCH_AT_ONCE).collect().await;
    cluster.blobs().set_missing(fetched.iter().filter(|fetched| !**fetched).count());
    is_last_round || !fetched.contains(&true)
}

/// Removes what nothing names and nobody has written for a day. The time that counts is that of the log: a node that is cut
/// off does not learn what is named meanwhile, and removes nothing. The time of a file is that of this machine, whose clock
/// may be another: so nothing goes that was written within [`KEPT_AT_LEAST`].
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
    let (before, kept) = if mutants::on(Mutant::BlobCollectionWithoutGrace) {
        (Timestamp(u64::MAX), Duration::ZERO)
    } else {
        (Timestamp(now.0.saturating_sub(BLOB_KEPT_UNNAMED_MS)), cluster.blobs().kept_at_least())
    };
    let removed = blocking(move || {
        let mut removed = 0;
        for hash in unnamed {
            match store.remove_if_older(&hash, before, kept) {
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

/// How far this node has looked through its blobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    hash: Option<BlobHash>,
    group: u64,
}

/// Looks through some groups from a place on; what is damaged is not held any more, and fetched anew if it is named.
fn look_through(store: &Store, from: Place) -> Place {
    let mut left = LOOKED_THROUGH;
    for hash in store.all().into_iter().filter(|hash| Some(*hash) >= from.hash) {
        let Ok(reader) = store.open_blob(hash).inspect_err(|error| give_up(store, error)) else { continue };
        let first = if Some(hash) == from.hash { from.group } else { 0 };
        for group in first..tree::groups_of(reader.length()) {
            if left == 0 {
                return Place { hash: Some(hash), group };
            }
            left -= 1;
            if let Err(error) = reader.group(group) {
                give_up(store, &error);
                break;
            }
        }
    }
    Place::default()
}

fn give_up(store: &Store, error: &BlobError) {
    if let BlobError::Damaged { hash, .. } = error {
        tracing::warn!(%error, "blob is damaged");
        store.give_up(hash);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn damage_is_found_in_what_nobody_reads_some_groups_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let content = vec![7; 3 * tree::GROUP_BYTES as usize];
        let mut hashes: Vec<BlobHash> = (0..5_u8)
            .map(|number| {
                let mut writer = store.writer().unwrap();
                writer.write(&[number]).unwrap();
                writer.write(&content).unwrap();
                writer.finish(None).unwrap().0
            })
            .collect();
        hashes.sort_unstable();
        let name = hashes[4].to_string();
        let path = dir.path().join(&name[..2]).join(&name[2..]);
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(b"x", 2 * tree::GROUP_BYTES).unwrap();

        let mut place = Place::default();
        let mut rounds = 0;
        while store.holds(&hashes[4]) && rounds < 10 {
            place = look_through(&store, place);
            rounds += 1;
        }
        assert_eq!(rounds, 3, "the third group of the fifth blob is the nineteenth of all, eight at a time");
        assert!(hashes[..4].iter().all(|hash| store.holds(hash)));
        assert_eq!(place, Place::default(), "then it begins anew");
    }
}

//! Places beside durable writes where a test can end the process, as a power cut would, without a word to anybody.
//!
//! With the feature `kill-points`, `TOWLINE_KILL_POINT=NAME` aborts the process when it first passes the place, and
//! `NAME:3` at the third time. Without the feature there is nothing here.

/// All places.
pub const ALL: [&str; 20] = [
    "archive-synced",
    "archive-written",
    "blob-drafted",
    "blob-synced",
    "blob-renamed",
    "folder-file-drafted",
    "folder-file-renamed",
    "snapshot-drafted",
    "snapshot-synced",
    "snapshot-renamed",
    "vote-saved",
    "wal-end-cut",
    "wal-purge-marked",
    "wal-run-synced",
    "wal-run-written",
    "wal-sealed",
    "wal-segment-made",
    "wal-segment-noted",
    "wal-segment-opened",
    "wal-segment-removed",
];

/// Passes a place; the process may end here.
#[cfg(feature = "kill-points")]
pub(crate) fn pass(name: &'static str) {
    use std::sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    };

    static WANTED: LazyLock<Option<(String, u64)>> = LazyLock::new(|| {
        let wanted = std::env::var("TOWLINE_KILL_POINT").ok()?;
        let (name, time) = wanted.split_once(':').unwrap_or((&wanted, "1"));
        Some((name.to_owned(), time.parse().ok()?))
    });
    static PASSED: AtomicU64 = AtomicU64::new(0);

    debug_assert!(ALL.contains(&name), "{name} is not listed");
    let Some((wanted, time)) = WANTED.as_ref() else { return };
    if wanted == name && PASSED.fetch_add(1, Ordering::SeqCst) + 1 == *time {
        std::process::abort();
    }
}

/// Passes a place.
#[cfg(not(feature = "kill-points"))]
#[inline]
pub(crate) fn pass(_: &'static str) {}

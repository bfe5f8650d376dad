//! Named bugs. The simulation switches one on and must find it: a check that finds no bug proves nothing.
//!
//! Without the feature `mutants` none of them is compiled in.

/// One bug, in the rule that it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutant {
    /// A write of the log counts as durable before the disk has said so.
    AckBeforeFsync = 1,
    /// A report under an old epoch is applied.
    EpochCheckOff,
    /// A leader that was killed resumes its leadership.
    LeaderRestoreOn,
    /// A session ends with the first keep-alive that is late.
    LeaseExpiresAtOnce,
    /// A leader answers keep-alives without a quorum lease.
    IsolatedLeaderRenews,
    /// The same message makes a task each time.
    DedupOff,
    /// A vote counts before it is durable.
    VoteNotSynced,
    /// Damage in synced data is cut like a torn end.
    TailCutInSyncedData,
    /// The first chunk of a step that runs again extends what the lost attempt wrote.
    ChunkAppendedOnRerun,
    /// A task that waits for its children keeps its permit.
    PermitKeptWhileWaiting,
    /// Content that nothing names yet is removed at once.
    BlobCollectionWithoutGrace,
    /// A snapshot is installed without the archive that belongs to it.
    ArchiveMissingFromSnapshot,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 12] = [
        Mutant::AckBeforeFsync,
        Mutant::EpochCheckOff,
        Mutant::LeaderRestoreOn,
        Mutant::LeaseExpiresAtOnce,
        Mutant::IsolatedLeaderRenews,
        Mutant::DedupOff,
        Mutant::VoteNotSynced,
        Mutant::TailCutInSyncedData,
        Mutant::ChunkAppendedOnRerun,
        Mutant::PermitKeptWhileWaiting,
        Mutant::BlobCollectionWithoutGrace,
        Mutant::ArchiveMissingFromSnapshot,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mutant::AckBeforeFsync => "ack-before-fsync",
            Mutant::EpochCheckOff => "epoch-check-off",
            Mutant::LeaderRestoreOn => "leader-restore-on",
            Mutant::LeaseExpiresAtOnce => "lease-expires-at-once",
            Mutant::IsolatedLeaderRenews => "isolated-leader-renews",
            Mutant::DedupOff => "dedup-off",
            Mutant::VoteNotSynced => "vote-not-synced",
            Mutant::TailCutInSyncedData => "tail-cut-in-synced-data",
            Mutant::ChunkAppendedOnRerun => "chunk-appended-on-rerun",
            Mutant::PermitKeptWhileWaiting => "permit-kept-while-waiting",
            Mutant::BlobCollectionWithoutGrace => "blob-collection-without-grace",
            Mutant::ArchiveMissingFromSnapshot => "archive-missing-from-snapshot",
        }
    }
}

#[cfg(feature = "mutants")]
static ON: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Switches one bug on, for this process.
#[cfg(feature = "mutants")]
pub fn switch_on(mutant: Mutant) {
    ON.store(mutant as u8, std::sync::atomic::Ordering::Relaxed);
}

/// Whether a bug is on.
#[cfg(feature = "mutants")]
pub fn on(mutant: Mutant) -> bool {
    ON.load(std::sync::atomic::Ordering::Relaxed) == mutant as u8
}

/// Whether a bug is on: never.
#[cfg(not(feature = "mutants"))]
pub const fn on(_: Mutant) -> bool {
    false
}

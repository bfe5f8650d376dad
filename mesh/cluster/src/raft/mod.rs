//! The Raft group: which types openraft is given, and the values it runs with.
//!
//! Nothing outside this module and the files below it names an openraft type, save for the handle that holds [`Raft`].

pub mod log_store;
pub(crate) mod network;
pub(crate) mod snapshot_file;
pub mod state_machine;

use std::{
    fmt,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use openraft::{Config, SnapshotPolicy};
use serde::{Deserialize, Serialize};
use towline_core::{
    Applied, NodeAddresses, Rejection,
    mutants::{self, Mutant},
};

use crate::wire::{LoggedProposal, WireError};

pub use log_store::LogStore;
pub use snapshot_file::{SnapshotError, SnapshotFile};
pub(crate) use state_machine::{After, FedError, Portion, Replica};
pub use state_machine::{FeedEntry, FeedGone, FeedPage, StateMachine, StateView, TaskWatch};

openraft::declare_raft_types!(
    /// The types of Towline's Raft group.
    pub TypeConfig:
        D = LoggedProposal,
        R = ApplyResponse,
        NodeId = u64,
        Node = NodeAddresses,
);

/// The Raft node of this process.
pub type Raft = openraft::Raft<TypeConfig, StateMachine>;
/// A log entry.
pub type RaftEntry = openraft::alias::EntryOf<TypeConfig>;
/// The payload of a log entry.
pub type RaftPayload = openraft::alias::EntryPayloadOf<TypeConfig>;
/// Where an entry stands.
pub type RaftLogId = openraft::alias::LogIdOf<TypeConfig>;
/// Who appended an entry, or asks for votes.
pub type RaftLeaderId = openraft::alias::LeaderIdOf<TypeConfig>;
/// Whom a node follows.
pub type RaftVote = openraft::alias::VoteOf<TypeConfig>;
/// Voters and learners.
pub type RaftMembership = openraft::Membership<u64, NodeAddresses>;
/// Voters and learners, and the entry that made them so.
pub type RaftStoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
/// What a snapshot covers.
pub type RaftSnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;
/// A snapshot and what it covers.
pub type RaftSnapshot = openraft::alias::SnapshotOf<TypeConfig, SnapshotFile>;

/// The answer of the state machine to one entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyResponse {
    /// Log index of the entry.
    pub index: u64,
    /// What the core said; nothing for entries that are Raft's own.
    pub outcome: Option<Result<Applied, Rejection>>,
}

impl fmt::Display for ApplyResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = match &self.outcome {
            None => "raft",
            Some(Ok(_)) => "applied",
            Some(Err(_)) => "rejected",
        };
        write!(f, "{said} at {}", self.index)
    }
}

/// Why the log or a snapshot could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file operation failed.
    #[error("{action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// What was known to be durable is damaged. It is never repaired by guessing.
    #[error(
        "{} is damaged at byte {offset} ({reason}), where the disk had confirmed it: replace this node with a fresh id",
        path.display()
    )]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// The log begins behind what the state is.
    #[error(
        "{} does not hold what was removed from the log (up to entry {purged}): the snapshot was lost; take this node out \
         (`towline cluster remove`, at another one) and join a new one with an empty folder",
        path.display()
    )]
    SnapshotLost {
        /// Where snapshots lie.
        path: PathBuf,
        /// The last entry that only a snapshot holds.
        purged: u64,
    },
    /// A record or snapshot that this binary does not understand.
    #[error(
        "read {} (where it is damaged: take this node out with `towline cluster remove`, at another one, and join a new one \
         with an empty folder)",
        path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is not understood.
        source: Box<WireError>,
    },
}

/// Makes a folder if it is not there, so that it outlives a power cut like the files that will be in it.
pub(crate) fn make_folder(dir: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::File { action: "make folder", path: dir.to_owned(), source };
    fs::create_dir_all(dir).map_err(failed)?;
    match dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed),
        None => Ok(()),
    }
}

/// A leader says that it lives this often. The failover time is bound to [`ELECTION_TIMEOUT_MAX_MS`], not to this.
const HEARTBEAT_MS: u64 = 100;
/// A follower waits between this and the maximum before it asks for votes: four missed heartbeats, so that a busy
/// machine makes no spurious election.
const ELECTION_TIMEOUT_MIN_MS: u64 = 400;
/// Also the leader's quorum lease: a new leader is there at most this plus one election timeout after the old one died.
pub const ELECTION_TIMEOUT_MAX_MS: u64 = 600;
/// Proposals that wait for the core: beyond it a caller is told to come back, since a longer queue only ages.
const API_QUEUE: u64 = 1_024;
/// Notices of the core's own workers that wait for it.
const NOTICE_QUEUE: u64 = 4_096;
/// Batches that wait for the state machine.
const STATE_MACHINE_QUEUE: u64 = 256;
/// Entries between two snapshots: replaying them at start takes about a second.
const SNAPSHOT_EVERY_ENTRIES: u64 = 100_000;
/// Entries kept behind a snapshot, so that a follower that was away for a moment needs no snapshot.
const KEPT_BEHIND_SNAPSHOT: u64 = 20_000;
/// A follower further behind is sent a snapshot. Above the snapshot interval, or a snapshot would not cure the lag.
const SNAPSHOT_LAG: u64 = 150_000;
/// Entries that one purge removes from the log at a time.
const PURGE_BATCH: u64 = 1_024;
/// Sending a whole snapshot may take this long.
const SNAPSHOT_TIMEOUT_MS: u64 = 5 * 60 * 1_000;

/// The values that Raft runs with.
///
/// `enable_leader_restore` stays off: a leader that was killed and came back within its old lease served reads from a
/// state that was behind what it had served before. `enable_pre_vote` stays on: a node that was cut off does not
/// depose a healthy leader when it comes back.
pub fn config(cluster_name: &str) -> Arc<Config> {
    let config = Config {
        cluster_name: cluster_name.to_owned(),
        heartbeat_interval: HEARTBEAT_MS,
        election_timeout_min: ELECTION_TIMEOUT_MIN_MS,
        election_timeout_max: ELECTION_TIMEOUT_MAX_MS,
        enable_leader_restore: Some(mutants::on(Mutant::LeaderRestoreOn)),
        enable_pre_vote: Some(true),
        api_channel_size: Some(API_QUEUE),
        notification_channel_size: Some(NOTICE_QUEUE),
        state_machine_channel_size: Some(STATE_MACHINE_QUEUE),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(SNAPSHOT_EVERY_ENTRIES),
        max_in_snapshot_log_to_keep: KEPT_BEHIND_SNAPSHOT,
        replication_lag_threshold: SNAPSHOT_LAG,
        purge_batch_size: PURGE_BATCH,
        install_snapshot_timeout: SNAPSHOT_TIMEOUT_MS,
        ..Config::default()
    };
    Arc::new(config.validate().expect("the values above are constants that openraft accepts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openraft_accepts_the_values_and_leader_restore_stays_off() {
        let config = config("prod");
        assert_eq!(config.enable_leader_restore, Some(false));
        assert_eq!(config.enable_pre_vote, Some(true));
    }
}

//! The log store and the state machine keep openraft's storage contract, and what they hold outlives a restart.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use openraft::{
    EntryPayload, RaftLogReader, StorageError,
    entry::RaftEntry as _,
    storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine},
    testing::log::{StoreBuilder, Suite},
};
use tempfile::TempDir;
use towline_cluster::raft::{
    LogStore, RaftEntry, RaftLeaderId, RaftLogId, RaftVote, StateMachine, StoreError, TypeConfig,
};

struct Folder;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, TempDir> for Folder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().unwrap();
        let log = LogStore::open(&dir.path().join("log")).unwrap();
        let (state, _) = StateMachine::open(&dir.path().join("snapshots"), 0).unwrap();
        Ok((dir, log, state))
    }
}

#[test]
fn the_stores_pass_openrafts_own_suite() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(Suite::<TypeConfig, LogStore, StateMachine, Folder, TempDir>::test_all(Folder)).unwrap();
}

#[tokio::test]
async fn entries_vote_and_committed_outlive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = LogStore::open(dir.path()).unwrap();
    let vote = RaftVote::new_committed(3, 2);
    log.save_vote(&vote).await.unwrap();
    log.blocking_append((1..=20).map(blank)).await.unwrap();
    log.truncate_after(Some(log_id(12))).await.unwrap();
    log.blocking_append([blank(13)]).await.unwrap();
    log.save_committed(Some(log_id(10))).await.unwrap();
    log.purge(log_id(4)).await.unwrap();
    log.close().await;
    drop(log);

    let mut log = LogStore::open(dir.path()).unwrap();

    let state = log.get_log_state().await.unwrap();
    assert_eq!(log.read_vote().await.unwrap(), Some(vote));
    assert_eq!(log.read_committed().await.unwrap(), Some(log_id(10)));
    assert_eq!(state.last_purged_log_id, Some(log_id(4)));
    assert_eq!(state.last_log_id, Some(log_id(13)));
    let indexes: Vec<u64> = log.try_get_log_entries(..).await.unwrap().iter().map(|entry| entry.index()).collect();
    assert_eq!(indexes, (5..=13).collect::<Vec<_>>());
    log.close().await;
}

#[tokio::test]
async fn a_closed_log_refuses_what_comes_later() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = LogStore::open(dir.path()).unwrap();
    log.close().await;

    let refused = log.save_vote(&RaftVote::new(1, 1)).await.unwrap_err();

    assert_eq!(refused.to_string(), "log is closed");
}

#[tokio::test]
async fn a_damaged_snapshot_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mut state, view) = StateMachine::open(dir.path(), 0).unwrap();
    build_snapshot(&mut state).await;
    drop((state, view));
    let file = dir.path().join("state.snapshot");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();

    let refused = StateMachine::open(dir.path(), 0).map(|_| ()).unwrap_err();

    assert!(matches!(refused, StoreError::Unreadable { .. }), "{refused}");
}

async fn build_snapshot(state: &mut StateMachine) {
    use openraft::RaftSnapshotBuilder as _;
    state.get_snapshot_builder().await.build_snapshot().await.unwrap();
}

fn log_id(index: u64) -> RaftLogId {
    RaftLogId::new(RaftLeaderId { term: 1, node_id: 1 }, index)
}

fn blank(index: u64) -> RaftEntry {
    RaftEntry { log_id: log_id(index), payload: EntryPayload::Blank }
}

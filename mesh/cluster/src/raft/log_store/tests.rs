//! The log reads the same whether its entries are in memory or on disk, and after a restart.

use std::collections::BTreeMap;

use openraft::{EntryPayload, storage::RaftLogStorageExt as _};
use proptest::prelude::*;
use tempfile::TempDir;
use towline_core::Timestamp;

use super::*;
use crate::{
    raft::RaftLeaderId,
    wal::{
        disk::{OsDisk, Space},
        through::{Through, Trouble},
    },
    wire::logged_from_bytes,
};

#[tokio::test]
async fn committed_entries_are_read_back_from_disk() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(&dir);
    log.blocking_append((1..=50).map(|index| entry(1, index))).await.unwrap();
    log.save_committed(Some(log_id(1, 40))).await.unwrap();
    assert_eq!(log.read(|log| log.cold), 40);

    let entries = log.try_get_log_entries(30..=45).await.unwrap();

    assert_eq!(entries, (30..=45).map(|index| entry(1, index)).collect::<Vec<_>>());
    log.close().await;
}

#[tokio::test]
async fn what_is_committed_goes_to_disk_with_the_next_append_or_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = LogStore::open(dir.path()).unwrap();
    log.blocking_append((1..=3).map(|index| entry(1, index))).await.unwrap();
    log.save_committed(Some(log_id(1, 2))).await.unwrap();
    log.blocking_append([entry(1, 4)]).await.unwrap();
    log.save_committed(Some(log_id(1, 3))).await.unwrap();
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    log.close().await;

    let mut killed = LogStore::open(copy.path()).unwrap();
    let mut closed = LogStore::open(dir.path()).unwrap();

    assert_eq!(killed.read_committed().await.unwrap(), Some(log_id(1, 2)));
    assert_eq!(closed.read_committed().await.unwrap(), Some(log_id(1, 3)));
    killed.close().await;
    closed.close().await;
}

#[tokio::test]
async fn a_batch_for_a_follower_is_bounded_in_bytes_and_has_no_gap() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = LogStore::open(dir.path()).unwrap();
    let sizes = [400_000, 400_000, 400_000, 3_000_000, 10];
    log.blocking_append((1..).zip(sizes).map(|(index, size)| sized_entry(index, size))).await.unwrap();

    let mut batches = Vec::new();
    let mut next = 1;
    while next <= 5 {
        let batch = log.limited_get_log_entries(next, 6).await.unwrap();
        batches.push(batch.len());
        next += batch.len() as u64;
    }

    assert_eq!(batches, [2, 1, 1, 1]);
    let cut_off = log.limited_get_log_entries(6, 7).await.unwrap();
    assert!(cut_off.is_empty(), "a former leader may ask for what the new one has cut off");
    log.save_committed(Some(log_id(1, 5))).await.unwrap();
    log.purge(log_id(1, 2)).await.unwrap();
    let purged = log.limited_get_log_entries(2, 4).await.unwrap();
    assert!(purged.is_empty(), "or for what it has purged since, and gets nothing that leaves a gap");
    log.close().await;
}

#[tokio::test]
async fn entries_that_are_purged_while_they_are_read_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(&dir);
    for index in 1..=10 {
        log.blocking_append([sized_entry(index, 9 * 1024 * 1024)]).await.unwrap();
    }
    log.save_committed(Some(log_id(1, 10))).await.unwrap();
    let selected = log.read(|log| log.select(1..=10, usize::MAX));
    log.purge(log_id(1, 9)).await.unwrap();
    log.save_vote(&RaftVote::new(1, 1)).await.unwrap();

    let raced = log.fetch(selected).await;

    assert_eq!(raced.unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(log.try_get_log_entries(1..=10).await.unwrap().len(), 1);
    log.close().await;
}

#[tokio::test]
async fn a_disk_that_became_read_only_is_said_before_a_write_fails() {
    let dir = tempfile::tempdir().unwrap();
    let log = LogStore::open_on(dir.path(), Arc::new(Through(ReadOnly)), HOT_BYTES).unwrap();
    let LogHealth::Failed { detail } = log.health() else { panic!("{:?}", log.health()) };
    assert!(detail.ends_with("is read-only"), "{detail}");
    log.close().await;
}

#[derive(Debug, Clone)]
enum Op {
    Append(u8),
    Truncate(u8),
    Commit(u8),
    Purge(u8),
    Restart,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_log_reads_like_a_map_whatever_was_done_to_it(ops in proptest::collection::vec(any_op(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(compare_with_a_map(ops))?;
    }
}

// ---- helpers ----

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..20_u8).prop_map(Op::Append),
        1 => (0..10_u8).prop_map(Op::Truncate),
        2 => (0..20_u8).prop_map(Op::Commit),
        1 => (0..20_u8).prop_map(Op::Purge),
        1 => Just(Op::Restart),
    ]
}

/// Performs what Raft could ask for: nothing committed is truncated, nothing uncommitted is purged.
async fn compare_with_a_map(ops: Vec<Op>) -> Result<(), TestCaseError> {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(&dir);
    let mut model: BTreeMap<u64, RaftEntry> = BTreeMap::new();
    let (mut last, mut committed, mut purged) = (0, 0, 0);
    for (term, op) in (1..).zip(ops) {
        match op {
            Op::Append(count) => {
                let entries: Vec<RaftEntry> = (last + 1..=last + u64::from(count)).map(|i| entry(term, i)).collect();
                last += u64::from(count);
                model.extend(entries.iter().map(|entry| (entry.log_id.index, entry.clone())));
                log.blocking_append(entries).await.unwrap();
            }
            Op::Truncate(count) if last > committed => {
                let after = last.saturating_sub(u64::from(count)).max(committed);
                let Some(after_id) = id_at(&model, after) else { continue };
                log.truncate_after(Some(after_id)).await.unwrap();
                model.retain(|index, _| *index <= after);
                last = after;
            }
            Op::Commit(count) => {
                let upto = (committed + u64::from(count)).min(last);
                let Some(log_id) = id_at(&model, upto) else { continue };
                log.save_committed(Some(log_id)).await.unwrap();
                committed = upto;
            }
            Op::Purge(count) => {
                let upto = (purged + u64::from(count)).min(committed);
                let Some(log_id) = id_at(&model, upto) else { continue };
                log.purge(log_id).await.unwrap();
                model.retain(|index, _| *index > upto);
                purged = upto;
            }
            Op::Restart => {
                log.close().await;
                log = open(&dir);
            }
            Op::Truncate(_) => {}
        }
        let read = log.try_get_log_entries(..).await.unwrap();
        prop_assert_eq!(read, model.values().cloned().collect::<Vec<_>>());
        prop_assert_eq!(log.last_index(), last);
    }
    log.close().await;
    Ok(())
}

fn id_at(model: &BTreeMap<u64, RaftEntry>, index: u64) -> Option<RaftLogId> {
    model.get(&index).map(|entry| entry.log_id)
}

/// A log that keeps nothing in memory that it could read from disk.
fn open(dir: &TempDir) -> LogStore {
    LogStore::open_on(dir.path(), Arc::new(OsDisk), 0).unwrap()
}

fn log_id(term: u64, index: u64) -> RaftLogId {
    RaftLogId::new(RaftLeaderId { term, node_id: 1 }, index)
}

fn entry(term: u64, index: u64) -> RaftEntry {
    let logged = logged_from_bytes(Timestamp(index), format!("{term}:{index}").into());
    RaftEntry { log_id: log_id(term, index), payload: EntryPayload::Normal(logged) }
}

fn sized_entry(index: u64, size: usize) -> RaftEntry {
    let logged = logged_from_bytes(Timestamp(index), vec![7; size].into());
    RaftEntry { log_id: log_id(1, index), payload: EntryPayload::Normal(logged) }
}

/// A disk that says of itself that it is read-only.
#[derive(Clone)]
struct ReadOnly;

impl Trouble for ReadOnly {
    fn space(&self, space: Space) -> Space {
        Space { read_only: true, ..space }
    }
}

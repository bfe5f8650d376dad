//! The state of a node that keeps no log: in memory, and the same at the same log index as everywhere else.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex, RwLock},
};

use bytes::Bytes;
use tokio::sync::{broadcast, watch};
use towline_proto::v1;

use super::{
    APPLIED_TOGETHER, AppliedState, Arrivals, EFFECTS_KEPT, Feed, Recent, Shared, SnapshotFile, StateView, changes,
    invalid_data,
};
use crate::{
    finished,
    raft::{RaftEntry, RaftLogId},
    seams,
    wire::{self, WireError},
};

/// Why what came cannot be applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FedError {
    /// It does not follow what is applied: another node may do better.
    #[error("{0}")]
    Unfit(String),
    /// To go on without it would make this state another one.
    #[error("{0}: upgrade this node")]
    NotUnderstood(String),
}

/// The write side of such a state.
pub(crate) struct Replica(Arc<Shared>);

impl Replica {
    /// One that has applied nothing.
    pub(crate) fn new() -> (Self, StateView) {
        let disk = seams::disk();
        let shared = Arc::new(Shared {
            dir: PathBuf::new(),
            finished: finished::Store::cache(Arc::clone(&disk)),
            disk,
            applied: RwLock::new(AppliedState::default()),
            saved: Mutex::new(None),
            quiet_through: 0,
            index: watch::Sender::new(0),
            arrivals: Arrivals::default(),
            effects: broadcast::Sender::new(EFFECTS_KEPT),
            watched: Arc::default(),
            #[cfg(feature = "kill-points")]
            held: watch::Sender::new(false),
            recent: Recent::default(),
            feed: Feed::behind(0),
        });
        (Self(shared.clone()), StateView(shared))
    }

    /// The last entry that is applied.
    pub(crate) fn last(&self) -> Option<RaftLogId> {
        self.0.read().last
    }

    /// Applies entries that follow what is applied; those that are applied already are passed over.
    pub(crate) async fn apply(&self, entries: Vec<v1::Entry>) -> Result<(), FedError> {
        let mut next = self.last().map_or(0, |last| last.index + 1);
        let mut follow: Vec<RaftEntry> = Vec::with_capacity(entries.len());
        for entry in entries {
            let entry = wire::entry_from_proto(entry).map_err(not_understood)?;
            let index = entry.log_id.index;
            if index > next {
                return Err(FedError::Unfit(format!("entry {index} came where {next} was expected")));
            }
            if index == next {
                next += 1;
                follow.push(entry);
            }
        }
        while !follow.is_empty() {
            let rest = follow.split_off(follow.len().min(APPLIED_TOGETHER));
            #[cfg(feature = "kill-points")]
            self.0.let_go().await;
            self.0
                .apply(std::mem::replace(&mut follow, rest))
                .map_err(|error| FedError::NotUnderstood(chain(&error)))?;
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Lets a snapshot take the place of everything, if it is not older than that.
    pub(crate) async fn install(&self, file: Bytes) -> Result<(), FedError> {
        let shared = self.0.clone();
        let work = move || {
            let file = SnapshotFile::from_bytes(file).map_err(|error| FedError::Unfit(error.to_string()))?;
            let (meta, state) = file.decode().map_err(|error| FedError::NotUnderstood(chain(&error.into())))?;
            let effects = {
                let mut applied = shared.write();
                if applied.last.map(|last| last.index) > meta.last_log_id.map(|last| last.index) {
                    return Err(FedError::Unfit("its snapshot is older than what is applied here".to_owned()));
                }
                let effects = changes(&applied.state, &state);
                *applied = AppliedState { last: meta.last_log_id, membership: meta.last_membership, state };
                shared.recent.look(&applied.state);
                shared.feed.begin_behind(meta.last_log_id.map_or(0, |last| last.index));
                effects
            };
            shared.reached(meta.last_log_id.map_or(0, |last| last.index));
            shared.publish(&effects, true);
            Ok(())
        };
        seams::blocking(work).await.unwrap_or_else(|error| Err(FedError::Unfit(chain(&error))))
    }
}

fn not_understood(error: WireError) -> FedError {
    FedError::NotUnderstood(chain(&invalid_data(error)))
}

/// An error and its causes, in one sentence.
fn chain(error: &io::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.get_ref().and_then(std::error::Error::source);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use openraft::EntryPayload;
    use towline_core::{Command, NodeAddresses, NodeId, Principal, Proposal, Timestamp};

    use super::*;
    use crate::{raft::RaftLeaderId, wire::LoggedProposal};

    fn log_id(index: u64) -> RaftLogId {
        RaftLogId::new(RaftLeaderId { term: 1, node_id: 1 }, index)
    }

    fn founding(index: u64) -> v1::Entry {
        let command = Command::Found {
            cluster: uuid::Uuid::from_u128(1),
            name: "prod".into(),
            node_name: "a".into(),
            addresses: NodeAddresses::default(),
        };
        let proposal = Proposal { by: Principal::Node(NodeId(1)), command };
        let logged = LoggedProposal::new(Timestamp(5), None, &proposal).unwrap();
        wire::entry_to_proto(&RaftEntry { log_id: log_id(index), payload: EntryPayload::Normal(logged) })
    }

    fn blank(index: u64) -> v1::Entry {
        wire::entry_to_proto(&RaftEntry { log_id: log_id(index), payload: EntryPayload::Blank })
    }

    #[tokio::test]
    async fn entries_are_applied_once_and_without_a_gap() {
        let (replica, view) = Replica::new();
        replica.apply(vec![blank(0), blank(1), founding(2)]).await.unwrap();
        replica.apply(vec![founding(2), blank(3)]).await.unwrap();
        assert_eq!(replica.last(), Some(log_id(3)));
        assert_eq!(*view.applied().borrow(), 3);
        assert_eq!(view.read(|state| state.last().index), 2);
        let gap = replica.apply(vec![blank(5)]).await.unwrap_err();
        assert!(matches!(gap, FedError::Unfit(_)), "{gap}");
        assert_eq!(replica.last(), Some(log_id(3)));
    }

    #[tokio::test]
    async fn a_snapshot_takes_the_place_of_what_is_older_and_of_nothing_newer() {
        let (full, view) = Replica::new();
        full.apply(vec![blank(0), blank(1), founding(2), blank(3)]).await.unwrap();
        let (_, file) = view.encode().await.unwrap();
        let bytes = file.piece(0, file.length() as usize).unwrap();

        let (behind, behind_view) = Replica::new();
        behind.apply(vec![blank(0), blank(1)]).await.unwrap();
        behind.install(bytes.clone()).await.unwrap();
        assert_eq!(behind.last(), Some(log_id(3)));
        assert_eq!(behind_view.read(|state| state.clone()), view.read(|state| state.clone()));

        full.apply(vec![blank(4)]).await.unwrap();
        assert!(matches!(full.install(bytes.clone()).await, Err(FedError::Unfit(_))));
        let damaged = Bytes::from(bytes.iter().rev().copied().collect::<Vec<u8>>());
        assert!(matches!(behind.install(damaged).await, Err(FedError::Unfit(_))));
        assert_eq!(behind.last(), Some(log_id(3)));
    }

    #[tokio::test]
    async fn what_a_newer_version_has_logged_is_not_passed_over() {
        let (replica, _) = Replica::new();
        let newer = v1::Entry { format: 99, ..blank(0) };
        let refused = replica.apply(vec![newer]).await.unwrap_err();
        assert!(refused.to_string().contains("upgrade this node"), "{refused}");
        assert_eq!(replica.last(), None);
    }
}

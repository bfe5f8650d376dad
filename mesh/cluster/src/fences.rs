//! Nodes that lost what they had stored: they are fenced off, and the leader goes on without them.
//!
//! A follower acknowledges an entry after it has flushed it. One that later says that it does not hold such an entry was
//! started from an old copy of its data folder, or its disk lost synced data. Raft's rules do not cover it: what it
//! acknowledged or promised may be what a commit rests on. So its answer never reaches the Raft core, nothing is sent to it
//! again, its votes do not count here, and it is told so in the answer to its keep-alive.
//!
//! What is known here is what this process has heard itself: entries acknowledged to its present leadership, and committed
//! entries acknowledged to any leadership of this life of the process. Another node, or another life, does not know it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use towline_core::NodeId;

use crate::raft::{RaftVote, TypeConfig};

/// What other nodes have stored, as they told this one.
#[derive(Debug, Default)]
pub(crate) struct Fences(Mutex<BTreeMap<NodeId, Stored>>);

#[derive(Debug, Clone, Default)]
struct Stored {
    /// The last index that was acknowledged, and the leadership that it was acknowledged to.
    acked: Option<(RaftVote, u64)>,
    /// The last committed index that was acknowledged: no leadership takes it back.
    committed: Option<u64>,
    fence: Option<Fence>,
}

impl Stored {
    /// The last index that the node must hold in a log that fits this leadership's.
    fn certain(&self, vote: &RaftVote) -> Option<u64> {
        let acked = self.acked.as_ref().filter(|(to, _)| to == vote).map(|(_, index)| *index);
        acked.max(self.committed)
    }
}

/// Why a node is fenced off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this data folder is older than what the cluster knows of node {node}: it had stored the log up to entry {stored}, and \
     does not hold entry {missing}; move the folder away and join again as a new node"
)]
pub(crate) struct Fence {
    node: NodeId,
    stored: u64,
    missing: u64,
}

/// What a node must hold, as it was known before it was asked: what it stores while it is asked proves nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Certain(Option<u64>);

impl Fences {
    /// Why a node is fenced off, if it is.
    pub(crate) fn of(&self, node: NodeId) -> Option<Fence> {
        self.lock().get(&node).and_then(|stored| stored.fence)
    }

    /// To be taken before a node is asked, for [`Fences::judge`].
    pub(crate) fn certain(&self, node: NodeId, vote: &RaftVote) -> Certain {
        Certain(self.lock().get(&node).and_then(|stored| stored.certain(vote)))
    }

    /// Learns from an answer to an append.
    ///
    /// # Errors
    /// When the answer shows that the node lost what it had stored; it is fenced off from here on.
    pub(crate) fn judge(
        &self,
        node: NodeId,
        certain: Certain,
        asked: &Asked,
        answer: &AppendEntriesResponse<TypeConfig>,
    ) -> Result<(), Fence> {
        match answer {
            AppendEntriesResponse::Success => self.acknowledged(node, asked, asked.last),
            AppendEntriesResponse::PartialSuccess(matching) => {
                self.acknowledged(node, asked, matching.as_ref().map(|log_id| log_id.index));
            }
            AppendEntriesResponse::Conflict => return self.conflicted(node, certain, asked),
            AppendEntriesResponse::HigherVote(_) => {}
        }
        Ok(())
    }

    fn acknowledged(&self, node: NodeId, asked: &Asked, index: Option<u64>) {
        let Some(index) = index else { return };
        let mut all = self.lock();
        let stored = all.entry(node).or_default();
        let before = stored.acked.take().filter(|(vote, _)| *vote == asked.vote).map(|(_, index)| index);
        stored.acked = Some((asked.vote, before.map_or(index, |before| before.max(index))));
        stored.committed = stored.committed.max(asked.committed.map(|committed| committed.min(index)));
    }

    fn conflicted(&self, node: NodeId, Certain(certain): Certain, asked: &Asked) -> Result<(), Fence> {
        let (Some(stored), Some(missing)) = (certain, asked.previous) else { return Ok(()) };
        if missing > stored {
            return Ok(());
        }
        let fence = Fence { node, stored, missing };
        let before = self.lock().entry(node).or_default().fence.replace(fence);
        if before.is_none() {
            tracing::error!(%node, stored, missing, "node lost entries that it had stored: it is fenced off");
        }
        Err(fence)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Stored>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an append says of the leader's log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    vote: RaftVote,
    previous: Option<u64>,
    last: Option<u64>,
    committed: Option<u64>,
}

impl Asked {
    /// What this append says.
    pub(crate) fn of(append: &AppendEntriesRequest<TypeConfig>) -> Self {
        let previous = append.prev_log_id.as_ref().map(|log_id| log_id.index);
        let last = append.entries.last().map(|entry| entry.log_id.index).or(previous);
        let committed = append.leader_commit.as_ref().map(|log_id| log_id.index);
        Self { vote: append.vote, previous, last, committed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(2);

    fn asked(term: u64, previous: u64, last: u64, committed: u64) -> Asked {
        let vote = RaftVote::new_committed(term, 1);
        Asked { vote, previous: Some(previous), last: Some(last), committed: Some(committed) }
    }

    fn judge(fences: &Fences, asked: Asked, answer: AppendEntriesResponse<TypeConfig>) -> Result<(), Fence> {
        fences.judge(NODE, fences.certain(NODE, &asked.vote), &asked, &answer)
    }

    #[test]
    fn a_node_that_misses_what_it_acknowledged_is_fenced_off_for_good() {
        let fences = Fences::default();
        judge(&fences, asked(1, 4, 9, 3), AppendEntriesResponse::Success).unwrap();
        let fence = judge(&fences, asked(1, 9, 9, 3), AppendEntriesResponse::Conflict).unwrap_err();
        assert_eq!(fence, Fence { node: NODE, stored: 9, missing: 9 });
        assert_eq!(fences.of(NODE), Some(fence));
    }

    #[test]
    fn a_node_that_is_behind_is_not_fenced_off() {
        let fences = Fences::default();
        judge(&fences, asked(1, 9, 9, 3), AppendEntriesResponse::Conflict).unwrap();
        judge(&fences, asked(1, 4, 5, 3), AppendEntriesResponse::Success).unwrap();
        judge(&fences, asked(1, 9, 9, 3), AppendEntriesResponse::Conflict).unwrap();
        assert_eq!(fences.of(NODE), None);
    }

    #[test]
    fn another_leadership_may_take_back_what_was_not_committed_and_nothing_else() {
        let fences = Fences::default();
        judge(&fences, asked(1, 4, 9, 6), AppendEntriesResponse::Success).unwrap();
        judge(&fences, asked(2, 7, 7, 6), AppendEntriesResponse::Conflict).unwrap();
        judge(&fences, asked(2, 6, 6, 6), AppendEntriesResponse::Conflict).unwrap_err();
    }

    #[test]
    fn what_a_node_stores_while_it_is_asked_does_not_count_against_its_answer() {
        let fences = Fences::default();
        let heartbeat = asked(1, 9, 9, 3);
        let before = fences.certain(NODE, &heartbeat.vote);
        judge(&fences, asked(1, 4, 9, 3), AppendEntriesResponse::Success).unwrap();
        fences.judge(NODE, before, &heartbeat, &AppendEntriesResponse::Conflict).unwrap();
        assert_eq!(fences.of(NODE), None);
    }
}

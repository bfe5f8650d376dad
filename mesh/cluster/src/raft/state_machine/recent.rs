//! The entries that were applied last, for nodes that keep no log: one that is fed goes on from where it stands.
//!
//! Kept only while the cluster has such nodes, and within bounds: who is further behind is given a snapshot.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use towline_core::{Node, State};
use towline_proto::v1;

use super::{SnapshotFile, StateView};
use crate::{
    raft::{RaftEntry, RaftLogId, RaftSnapshotMeta},
    seams, wire,
};

/// Entries that are kept: at 15,000 a second, the most that one group is meant to commit, the three seconds in which a
/// worker finds another node to feed it.
const MAX_ENTRIES: usize = 50_000;
/// Bytes of them. A proposal has some hundred; those with more leave fewer.
const MAX_BYTES: usize = 32 * 1024 * 1024;
/// What an entry takes besides its proposal, about.
const ENTRY_BYTES: usize = 160;

/// What was applied last.
#[derive(Default)]
pub(super) struct Recent {
    is_wanted: AtomicBool,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Without a gap, oldest first.
    entries: VecDeque<One>,
    bytes: usize,
}

struct One {
    log_id: RaftLogId,
    entry: v1::Entry,
    bytes: usize,
}

impl One {
    fn of(entry: &RaftEntry) -> Self {
        let message = wire::entry_to_proto(entry);
        let bytes = match &message.payload {
            Some(v1::entry::Payload::Proposal(logged)) => logged.proposal.len(),
            Some(v1::entry::Payload::Blank(_) | v1::entry::Payload::Membership(_)) | None => 0,
        };
        Self { log_id: entry.log_id, entry: message, bytes: bytes + ENTRY_BYTES }
    }
}

/// What follows an entry on this node.
#[derive(Debug)]
pub(crate) enum After {
    /// These, up to and with the last one.
    Entries(Vec<v1::Entry>, RaftLogId),
    /// Nothing yet.
    Nothing,
    /// It is not kept here any more: a snapshot is needed.
    Gone,
}

/// The most that is handed out at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portion {
    pub(crate) entries: usize,
    /// A larger entry goes alone.
    pub(crate) bytes: usize,
}

impl Recent {
    /// Copies entries that are about to be applied, which shares their content.
    pub(super) fn copy_if_wanted(&self, entries: &[RaftEntry]) -> Vec<RaftEntry> {
        if self.is_wanted.load(Ordering::Relaxed) { entries.to_vec() } else { Vec::new() }
    }

    /// Of a node that begins with a state.
    pub(super) fn of(state: &State) -> Self {
        let recent = Self::default();
        recent.look(state);
        recent
    }

    /// Looks whether somebody has to be fed: when the members may have changed.
    pub(super) fn look(&self, state: &State) {
        let is_wanted = state.nodes().any(|node: &Node| !node.keeps_log());
        if self.is_wanted.swap(is_wanted, Ordering::Relaxed) && !is_wanted {
            *self.lock() = Kept::default();
        }
    }

    /// Keeps entries that were applied. To be called before it is said that they are.
    pub(super) fn keep(&self, entries: Vec<RaftEntry>) {
        let Some(first) = entries.first() else { return };
        let mut kept = self.lock();
        if kept.entries.back().is_some_and(|last| last.log_id.index + 1 != first.log_id.index) {
            *kept = Kept::default();
        }
        for one in entries.iter().map(One::of) {
            kept.bytes += one.bytes;
            kept.entries.push_back(one);
        }
        while kept.entries.len() > MAX_ENTRIES || kept.bytes > MAX_BYTES {
            let Some(oldest) = kept.entries.pop_front() else { break };
            kept.bytes -= oldest.bytes;
        }
    }

    fn after(&self, after: Option<&RaftLogId>, portion: Portion) -> After {
        let Some(after) = after else { return After::Gone };
        let kept = self.lock();
        let Some(first) = kept.entries.front().map(|one| one.log_id.index) else { return After::Gone };
        let at = |index: u64| usize::try_from(index.checked_sub(first)?).ok();
        let own = at(after.index).and_then(|at| kept.entries.get(at)).map(|one| &one.log_id);
        if own.is_some_and(|own| own != after) {
            return After::Gone;
        }
        let Some(start) = at(after.index + 1).filter(|start| *start < kept.entries.len()) else { return After::Gone };
        let (mut entries, mut bytes, mut last) = (Vec::new(), 0, None);
        for one in kept.entries.range(start..).take(portion.entries) {
            bytes += one.bytes;
            if bytes > portion.bytes && !entries.is_empty() {
                break;
            }
            entries.push(one.entry.clone());
            last = Some(one.log_id);
        }
        last.map_or(After::Gone, |last| After::Entries(entries, last))
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StateView {
    /// What this node has applied after an entry; none stands for the beginning.
    pub(crate) fn after(&self, after: Option<&RaftLogId>, portion: Portion) -> After {
        let applied = *self.0.index.borrow();
        if applied <= after.map_or(0, |after| after.index) {
            return After::Nothing;
        }
        self.0.recent.after(after, portion)
    }

    /// The state as it is applied here, as a snapshot that is put on no disk.
    pub(crate) async fn encode(&self) -> io::Result<(RaftSnapshotMeta, SnapshotFile)> {
        let shared = self.0.clone();
        let work = move || {
            let applied = shared.read().clone();
            let meta = RaftSnapshotMeta { last_log_id: applied.last, last_membership: applied.membership };
            let file = SnapshotFile::encode(&meta, &applied.state)?;
            Ok((meta, file))
        };
        seams::blocking(work).await?
    }
}

#[cfg(test)]
mod tests {
    use openraft::EntryPayload;

    use super::*;
    use crate::raft::RaftLeaderId;

    const ALL: Portion = Portion { entries: usize::MAX, bytes: usize::MAX };

    fn log_id(term: u64, index: u64) -> RaftLogId {
        RaftLogId::new(RaftLeaderId { term, node_id: 1 }, index)
    }

    fn entries(indexes: impl IntoIterator<Item = u64>) -> Vec<RaftEntry> {
        let blank = |index| RaftEntry { log_id: log_id(1, index), payload: EntryPayload::Blank };
        indexes.into_iter().map(blank).collect()
    }

    fn indexes(after: After) -> Option<Vec<u64>> {
        match after {
            After::Entries(entries, last) => {
                let all: Vec<u64> = entries.iter().map(|entry| entry.log_id.unwrap().index).collect();
                assert_eq!(all.last(), Some(&last.index));
                Some(all)
            }
            After::Nothing | After::Gone => None,
        }
    }

    #[test]
    fn who_is_fed_goes_on_behind_what_it_has() {
        let recent = Recent::default();
        recent.keep(entries(5..=9));
        assert_eq!(indexes(recent.after(Some(&log_id(1, 6)), ALL)), Some(vec![7, 8, 9]));
        assert_eq!(indexes(recent.after(Some(&log_id(1, 4)), ALL)), Some(vec![5, 6, 7, 8, 9]));
        let two = Portion { entries: 2, ..ALL };
        assert_eq!(indexes(recent.after(Some(&log_id(1, 6)), two)), Some(vec![7, 8]));
        let small = Portion { bytes: 1, ..ALL };
        assert_eq!(indexes(recent.after(Some(&log_id(1, 6)), small)), Some(vec![7]), "one goes in any case");
    }

    #[test]
    fn who_is_too_far_behind_or_has_another_entry_needs_a_snapshot() {
        let recent = Recent::default();
        assert_eq!(indexes(recent.after(None, ALL)), None);
        recent.keep(entries(5..=9));
        assert_eq!(indexes(recent.after(Some(&log_id(1, 3)), ALL)), None);
        assert_eq!(indexes(recent.after(None, ALL)), None);
        assert_eq!(indexes(recent.after(Some(&log_id(2, 6)), ALL)), None, "of another leader");
    }

    #[test]
    fn what_is_kept_is_bounded_and_has_no_gap() {
        let recent = Recent::default();
        recent.keep(entries(1..=MAX_ENTRIES as u64 + 10));
        assert_eq!(recent.lock().entries.len(), MAX_ENTRIES);
        assert_eq!(recent.lock().bytes, MAX_ENTRIES * ENTRY_BYTES);
        assert_eq!(indexes(recent.after(Some(&log_id(1, 9)), ALL)), None);
        let next = Portion { entries: 1, ..ALL };
        assert_eq!(indexes(recent.after(Some(&log_id(1, 10)), next)), Some(vec![11]));
        recent.keep(entries([MAX_ENTRIES as u64 + 20]));
        assert_eq!(recent.lock().entries.len(), 1, "a snapshot was installed in between");
    }

    #[test]
    fn nothing_is_kept_where_nobody_is_fed() {
        let recent = Recent::default();
        recent.look(&State::default());
        assert!(recent.copy_if_wanted(&entries(1..=3)).is_empty());
        recent.is_wanted.store(true, Ordering::Relaxed);
        recent.keep(recent.copy_if_wanted(&entries(1..=3)));
        assert_eq!(recent.lock().entries.len(), 3);
        recent.look(&State::default());
        assert!(recent.lock().entries.is_empty());
    }
}

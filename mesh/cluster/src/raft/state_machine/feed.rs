//! What happened last, on this node: a function of the log, so every node has the same at the same index, as far back as it
//! has it. It begins behind the snapshot that this node began with, and is bounded from there on.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;
use towline_core::{Happening, Timestamp};

/// What is kept: an hour of a cluster that does three tasks a second, in some 10 MB.
const MAX_HAPPENINGS: usize = 32_768;

/// What happened by one entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedEntry {
    /// The index of the entry: where a reader stands that has seen all of it.
    pub index: u64,
    /// When it was committed.
    pub at: Timestamp,
    /// What happened, in order; at least one thing.
    pub happened: Vec<Happening>,
}

/// A part of what happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPage {
    /// The entries, in order. Between them nothing happened.
    pub entries: Vec<Arc<FeedEntry>>,
    /// Everything up to and with this index is in them, or was before them.
    pub through: u64,
    /// The index that a reader may stand at and miss nothing here.
    pub oldest: u64,
    /// The last entry that is applied here.
    pub applied: u64,
}

/// What follows an entry is not kept here any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("events after {after} are gone here: the oldest index to go on from is {oldest}")]
pub struct FeedGone {
    /// What was asked for.
    pub after: u64,
    /// The index that a reader may stand at and miss nothing here.
    pub oldest: u64,
    /// The last entry that is applied here.
    pub applied: u64,
}

/// The ring of this node.
pub(super) struct Feed {
    ring: Mutex<Ring>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Ring {
    /// Of the entries behind this one nothing is missing.
    oldest: u64,
    entries: VecDeque<Arc<FeedEntry>>,
    happenings: usize,
}

impl Feed {
    /// One that begins behind an entry.
    pub(super) fn behind(index: u64) -> Self {
        let ring = Ring { oldest: index, ..Ring::default() };
        Self { ring: Mutex::new(ring), changes: watch::Sender::new(index) }
    }

    /// Begins anew behind an entry: what was between is not known here.
    pub(super) fn begin_behind(&self, index: u64) {
        *self.lock() = Ring { oldest: index, ..Ring::default() };
        self.changes.send_replace(index);
    }

    /// Keeps what happened. To be called before it is said that it is applied.
    pub(super) fn keep(&self, told: Vec<FeedEntry>) {
        let Some(last) = told.last().map(|entry| entry.index) else { return };
        self.lock().keep(told, MAX_HAPPENINGS);
        self.changes.send_replace(last);
    }

    pub(super) fn page(&self, after: u64, applied: u64, most: usize) -> Result<FeedPage, FeedGone> {
        self.lock().page(after, applied, most)
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn keep(&mut self, told: Vec<FeedEntry>, bound: usize) {
        for entry in told {
            self.happenings += entry.happened.len();
            self.entries.push_back(Arc::new(entry));
        }
        // The last entry stays, however much happened by it.
        while self.happenings > bound && self.entries.len() > 1 {
            let Some(gone) = self.entries.pop_front() else { break };
            self.happenings -= gone.happened.len();
            self.oldest = gone.index;
        }
    }

    fn page(&self, after: u64, applied: u64, most: usize) -> Result<FeedPage, FeedGone> {
        let oldest = self.oldest;
        if after < oldest {
            return Err(FeedGone { after, oldest, applied: applied.max(oldest) });
        }
        let first = self.entries.partition_point(|entry| entry.index <= after);
        let entries: Vec<_> = self.entries.iter().skip(first).take(most).cloned().collect();
        let is_all = first + entries.len() == self.entries.len();
        let last = entries.last().map(|entry| entry.index);
        let applied = applied.max(last.unwrap_or(0));
        let through = if is_all { applied.max(after) } else { last.unwrap_or(after) };
        Ok(FeedPage { entries, through, oldest, applied })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, things: usize) -> FeedEntry {
        FeedEntry { index, at: Timestamp(index), happened: vec![Happening::AgentsPlaced; things] }
    }

    fn indexes(page: &FeedPage) -> Vec<u64> {
        page.entries.iter().map(|entry| entry.index).collect()
    }

    #[test]
    fn a_reader_is_given_what_follows_and_where_it_stands_then() {
        let feed = Feed::behind(10);
        feed.keep(vec![entry(12, 1), entry(15, 2), entry(16, 1)]);
        let page = feed.page(10, 20, 2).unwrap();
        assert_eq!((indexes(&page), page.through, page.oldest), (vec![12, 15], 15, 10));
        let rest = feed.page(page.through, 20, 2).unwrap();
        assert_eq!((indexes(&rest), rest.through), (vec![16], 20), "nothing happened from 17 to 20");
        let none = feed.page(20, 20, 2).unwrap();
        assert_eq!((indexes(&none), none.through), (vec![], 20));
        assert_eq!(indexes(&feed.page(13, 20, 9).unwrap()), [15, 16], "an index between entries is a place as well");
    }

    #[test]
    fn what_is_applied_while_a_page_is_read_is_not_passed_over() {
        let feed = Feed::behind(0);
        feed.keep(vec![entry(3, 1)]);
        let page = feed.page(0, 2, 9).unwrap();
        assert_eq!((indexes(&page), page.through), (vec![3], 3), "the index that was read first is behind");
    }

    #[test]
    fn the_oldest_goes_whole_beyond_the_bound_and_who_needs_it_is_told() {
        let mut ring = Ring::default();
        ring.keep(vec![entry(1, 2), entry(2, 2), entry(3, 2)], 4);
        assert_eq!(ring.page(0, 3, 9), Err(FeedGone { after: 0, oldest: 1, applied: 3 }));
        assert_eq!(indexes(&ring.page(1, 3, 9).unwrap()), [2, 3], "the oldest index that it names can be gone on from");
        ring.keep(vec![entry(4, 100)], 4);
        assert_eq!(indexes(&ring.page(3, 4, 9).unwrap()), [4], "one entry is never cut");
        assert_eq!(ring.happenings, 100);
    }

    #[test]
    fn a_snapshot_in_between_is_a_gap() {
        let feed = Feed::behind(0);
        feed.keep(vec![entry(1, 1)]);
        feed.begin_behind(50);
        assert_eq!(feed.page(1, 50, 9), Err(FeedGone { after: 1, oldest: 50, applied: 50 }));
        assert_eq!(feed.page(50, 50, 9).unwrap().entries, []);
    }

    #[test]
    fn a_reader_wakes_when_something_happens_and_sleeps_when_nothing_does() {
        let feed = Feed::behind(0);
        let mut changes = feed.changes();
        changes.mark_unchanged();
        feed.keep(Vec::new());
        assert!(!changes.has_changed().unwrap());
        feed.keep(vec![entry(7, 1)]);
        assert_eq!((changes.has_changed().unwrap(), *changes.borrow_and_update()), (true, 7));
    }
}

//! Compares what the caller saw with what the log says. Nothing here is taken on trust: both lists are read over the wire,
//! from different nodes.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use towline_core::Task;

use super::observer::Seen;

/// How the caller's stream differs from the log.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Tally {
    /// Events that the caller saw.
    pub(crate) seen: usize,
    /// Events in the log.
    pub(crate) in_log: usize,
    /// Indexes in the log that the caller never saw.
    pub(crate) lost: Vec<u64>,
    /// Indexes that the caller saw more than once.
    pub(crate) duplicated: Vec<u64>,
    /// Indexes that came with another content than in the log, out of order, or that the log does not have; 0 stands for an
    /// event without an index.
    pub(crate) differing: Vec<u64>,
}

impl Tally {
    pub(crate) fn compare(seen: &[Seen], log: &[Seen]) -> Self {
        let logged: BTreeMap<u64, &Seen> = log.iter().filter_map(|event| Some((event.index?, event))).collect();
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        let mut differing = Vec::new();
        let mut last = 0;
        for event in seen {
            let index = event.index.unwrap_or(0);
            let count = counts.entry(index).or_default();
            *count += 1;
            let same = logged.get(&index).is_some_and(|logged| logged.raw == event.raw);
            let in_order = *count > 1 || index > last;
            if !same || !in_order {
                differing.push(index);
            }
            last = last.max(index);
        }
        let gaps = (1..=logged.keys().last().copied().unwrap_or(0)).filter(|index| !logged.contains_key(index));
        differing.extend(gaps);
        let lost = logged.keys().filter(|index| !counts.contains_key(index)).copied().collect();
        let duplicated = counts.iter().filter(|(_, count)| **count > 1).map(|(index, _)| *index).collect();
        Tally { seen: seen.len(), in_log: log.len(), lost, duplicated, differing }
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.lost.is_empty() && self.duplicated.is_empty() && self.differing.is_empty() && self.in_log > 0
    }
}

/// The first event after a moment, and how long the caller waited for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(crate) struct NextEvent {
    /// Its index.
    pub(crate) index: u64,
    /// From the moment until it arrived.
    pub(crate) after_ms: u64,
}

impl NextEvent {
    /// The first event that was committed after `moment`. Events that were on their way already do not count, although
    /// they may arrive later.
    pub(crate) fn after(moment: SystemTime, seen: &[Seen], record: &Task) -> Option<NextEvent> {
        let committed: BTreeMap<u64, u64> = record.events.iter().map(|event| (event.index, event.at.0)).collect();
        let moment_ms = millis(moment);
        let next = seen.iter().find(|event| {
            let stamp = event.index.and_then(|index| committed.get(&index));
            stamp.is_some_and(|stamp| *stamp > moment_ms)
        })?;
        let waited = next.at.duration_since(moment).unwrap_or(Duration::ZERO);
        Some(NextEvent { index: next.index?, after_ms: whole_millis(waited) })
    }
}

/// Milliseconds since 1970.
pub(crate) fn millis(at: SystemTime) -> u64 {
    whole_millis(at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO))
}

pub(crate) fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(index: u64) -> Seen {
        Seen { index: Some(index), at: UNIX_EPOCH, raw: json!({ "n": index }), state: None }
    }

    fn events(indexes: &[u64]) -> Vec<Seen> {
        indexes.iter().copied().map(event).collect()
    }

    #[test]
    fn the_same_events_in_the_same_order_are_clean() {
        let tally = Tally::compare(&events(&[1, 2, 3]), &events(&[1, 2, 3]));
        assert!(tally.is_clean());
        assert_eq!((tally.seen, tally.in_log), (3, 3));
    }

    #[test]
    fn what_was_lost_or_came_twice_is_named() {
        let tally = Tally::compare(&events(&[1, 3, 3, 5]), &events(&[1, 2, 3, 4, 5]));
        assert_eq!(tally.lost, [2, 4]);
        assert_eq!(tally.duplicated, [3]);
        assert!(!tally.is_clean());
    }

    #[test]
    fn another_content_order_or_number_differs() {
        let mut other = events(&[1, 3, 2]);
        other[0].raw = json!("something else");
        let tally = Tally::compare(&other, &events(&[1, 2, 3]));
        assert_eq!(tally.differing, [1, 2]);

        let unnumbered = Seen { index: None, ..event(1) };
        assert_eq!(Tally::compare(&[event(1), unnumbered], &events(&[1])).differing, [0]);
    }

    #[test]
    fn a_gap_in_the_log_itself_is_not_clean() {
        assert_eq!(Tally::compare(&events(&[1, 3]), &events(&[1, 3])).differing, [2]);
        assert!(!Tally::compare(&[], &[]).is_clean());
    }
}

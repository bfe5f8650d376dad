//! The owner's words on their way into the log: one report at a time, in order, the same number until its fate is known.
//!
//! ```text
//! push ──▶ queue ──next_report──▶ in flight ──committed──▶ gone
//!                                    └── unknown: the same report again
//! ```

use std::collections::VecDeque;
use towline_core::{Content, Epoch, OwnerReport, OwnerWord, Part, TaskId};

/// Most words of one report: it bounds the time of one apply.
const MAX_WORDS: usize = 64;

/// About how many bytes of artifact text one report carries: log entries stay small.
const MAX_CHUNK_BYTES: usize = 64 * 1024;

/// The words that wait, and the report that is under way.
#[derive(Debug)]
pub(crate) struct Outbox {
    task: TaskId,
    epoch: Epoch,
    next_number: u64,
    queue: VecDeque<OwnerWord>,
    in_flight: Option<OwnerReport>,
}

impl Outbox {
    /// An empty outbox that goes on behind report `reported`.
    pub(crate) fn new(task: TaskId, epoch: Epoch, reported: u64) -> Self {
        Self { task, epoch, next_number: reported + 1, queue: VecDeque::new(), in_flight: None }
    }

    /// Adds a word. A chunk that extends the one before it becomes part of it.
    pub(crate) fn push(&mut self, word: OwnerWord) {
        if let Some(last) = self.queue.back_mut()
            && extends(last, &word)
        {
            extend(last, word);
            return;
        }
        self.queue.push_back(word);
    }

    /// Drops every word that is not yet under way.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Takes every word whose fate is not known, those under way included.
    pub(crate) fn take_unsaid(&mut self) -> Vec<OwnerWord> {
        let under_way = self.in_flight.take().map(|report| report.words).unwrap_or_default();
        under_way.into_iter().chain(self.queue.drain(..)).collect()
    }

    /// Whether nothing waits and nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_none()
    }

    /// The next report, if none is under way.
    pub(crate) fn next_report(&mut self) -> Option<OwnerReport> {
        if self.in_flight.is_some() || self.queue.is_empty() {
            return None;
        }
        let words = self.take_words();
        let report = OwnerReport { task: self.task, epoch: self.epoch, number: self.next_number, words };
        self.in_flight = Some(report.clone());
        Some(report)
    }

    fn take_words(&mut self) -> Vec<OwnerWord> {
        let mut words = Vec::new();
        let mut bytes = 0;
        while let Some(word) = self.queue.front() {
            bytes += chunk_size(word);
            if words.len() == MAX_WORDS || (bytes > MAX_CHUNK_BYTES && !words.is_empty()) {
                break;
            }
            words.extend(self.queue.pop_front());
        }
        words
    }

    /// The report with this number is committed. Gives back its words; none if it is not the one under way.
    pub(crate) fn committed(&mut self, number: u64) -> Option<Vec<OwnerWord>> {
        let report = self.in_flight.take_if(|report| report.number == number)?;
        self.next_number = number + 1;
        Some(report.words)
    }

    /// The report under way was refused and changed nothing: its words are dropped, its number is free.
    pub(crate) fn refused(&mut self, number: u64) -> Option<Vec<OwnerWord>> {
        self.in_flight.take_if(|report| report.number == number).map(|report| report.words)
    }
}

fn chunk_size(word: &OwnerWord) -> usize {
    match word {
        OwnerWord::Chunk { parts, .. } => parts.iter().map(Part::size).sum(),
        OwnerWord::TurnStarted { .. }
        | OwnerWord::StepStarted { .. }
        | OwnerWord::StepRestarted { .. }
        | OwnerWord::PeerTask { .. }
        | OwnerWord::StepEnded { .. }
        | OwnerWord::AskPerson { .. }
        | OwnerWord::Doubt { .. }
        | OwnerWord::Released
        | OwnerWord::OutsideInput { .. }
        | OwnerWord::Finished { .. } => 0,
    }
}

fn extends(last: &OwnerWord, word: &OwnerWord) -> bool {
    let (
        OwnerWord::Chunk { artifact_id: first_id, parts: first, last_chunk: false, .. },
        OwnerWord::Chunk { artifact_id: id, parts, append: true, .. },
    ) = (last, word)
    else {
        return false;
    };
    first_id == id
        && matches!(first.as_slice(), [Part { content: Content::Text(_), .. }])
        && matches!(parts.as_slice(), [Part { content: Content::Text(_), .. }])
        && chunk_size(last) + chunk_size(word) <= MAX_CHUNK_BYTES
}

fn extend(last: &mut OwnerWord, word: OwnerWord) {
    let OwnerWord::Chunk { parts, last_chunk, metadata, .. } = last else { return };
    let OwnerWord::Chunk { parts: more, last_chunk: is_last, metadata: more_metadata, .. } = word else { return };
    if let (Some(Part { content: Content::Text(text), .. }), [Part { content: Content::Text(tail), .. }]) =
        (parts.first_mut(), more.as_slice())
    {
        text.push_str(tail);
    }
    *last_chunk = is_last;
    metadata.extend(more_metadata);
}

#[cfg(test)]
mod tests {
    use super::*;
    use towline_core::{Metadata, Outcome, StepNo, TaskState};

    fn outbox() -> Outbox {
        Outbox::new(TaskId::from_uuid(uuid::Uuid::max()), Epoch(9), 4)
    }

    fn chunk(text: &str, append: bool, last_chunk: bool) -> OwnerWord {
        OwnerWord::Chunk {
            artifact_id: "step-0".into(),
            name: None,
            parts: vec![Part::text(text)],
            append,
            last_chunk,
            metadata: Metadata::new(),
        }
    }

    fn ended(no: u32) -> OwnerWord {
        OwnerWord::StepEnded { step: StepNo(no), outcome: Outcome::Returned { content: "x".into(), is_error: false } }
    }

    #[test]
    fn a_report_keeps_its_number_until_its_fate_is_known() {
        let mut outbox = outbox();
        outbox.push(ended(0));
        let report = outbox.next_report().unwrap();
        assert_eq!((report.number, report.epoch), (5, Epoch(9)));
        outbox.push(ended(1));
        assert_eq!(outbox.next_report(), None, "one report at a time");
        assert_eq!(outbox.committed(4), None, "a late answer of another report changes nothing");
        assert_eq!(outbox.committed(5), Some(vec![ended(0)]));
        assert_eq!(outbox.next_report().unwrap().number, 6);
    }

    #[test]
    fn a_refused_report_gives_its_number_back() {
        let mut outbox = outbox();
        outbox.push(ended(0));
        outbox.next_report().unwrap();
        outbox.refused(5).unwrap();
        outbox.push(ended(1));
        let report = outbox.next_report().unwrap();
        assert_eq!((report.number, report.words), (5, vec![ended(1)]));
    }

    #[test]
    fn words_that_wait_go_together_and_chunks_melt_into_one() {
        let mut outbox = outbox();
        for word in [chunk("a", false, false), chunk("b", true, false), chunk("c", true, true), ended(0)] {
            outbox.push(word);
        }
        let words = outbox.next_report().unwrap().words;
        assert_eq!(words, vec![chunk("abc", false, true), ended(0)]);
    }

    #[test]
    fn a_replacing_chunk_stays_by_itself() {
        let mut outbox = outbox();
        outbox.push(chunk("a", true, false));
        outbox.push(chunk("b", false, false));
        assert_eq!(outbox.next_report().unwrap().words.len(), 2);
    }

    #[test]
    fn the_last_outcome_and_the_end_are_one_report() {
        let mut outbox = outbox();
        let end = OwnerWord::Finished { state: TaskState::Completed, message: None };
        outbox.push(ended(0));
        outbox.push(end.clone());
        let report = outbox.next_report().unwrap();
        assert_eq!(report.words, vec![ended(0), end]);
        outbox.committed(report.number).unwrap();
        assert!(outbox.is_idle());
    }

    #[test]
    fn a_long_text_is_spread_over_reports() {
        let mut outbox = outbox();
        let text = "x".repeat(40 * 1024);
        outbox.push(chunk(&text, false, false));
        outbox.push(chunk(&text, true, true));
        assert_eq!(outbox.next_report().unwrap().words.len(), 1);
    }
}

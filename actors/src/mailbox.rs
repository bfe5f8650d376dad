//! Messages on their way to an actor, counted: mailboxes have no bound of their own, so that one grows has to be seen.

use std::time::Instant;

use towline_trace::metrics::instruments::{MAILBOX_DEPTH, MAILBOX_WAIT};

/// What is sent to actors of a kind.
pub(crate) trait Addressed {
    /// The kind, as the metrics name it.
    const KIND: &'static str;
}

/// A message that waits in a mailbox. It counts until it is opened, or is thrown away with its actor.
pub(crate) struct Mail<M> {
    message: M,
    waiting: Waiting,
}

struct Waiting {
    kind: &'static str,
    since: Instant,
}

impl<M: Addressed> From<M> for Mail<M> {
    fn from(message: M) -> Self {
        MAILBOX_DEPTH.one(&[M::KIND]);
        Self { message, waiting: Waiting { kind: M::KIND, since: Instant::now() } }
    }
}

impl<M> Mail<M> {
    /// Takes the message: its actor begins with it.
    pub(crate) fn open(self) -> M {
        MAILBOX_WAIT.add(self.waiting.since.elapsed().as_secs_f64(), &[self.waiting.kind]);
        self.message
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        MAILBOX_DEPTH.add(-1.0, &[self.kind]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Word;

    impl Addressed for Word {
        const KIND: &'static str = "tested";
    }

    fn waiting() -> f64 {
        let families = towline_trace::metrics::snapshot();
        let depth = families.iter().find(|family| family.about.name == "towline.actor.mailbox.depth").unwrap();
        depth.points.iter().find(|point| point.labels[0].1 == "tested").map_or(0.0, |point| point.value)
    }

    #[test]
    fn a_message_counts_until_it_is_opened_or_thrown_away() {
        let (first, second) = (Mail::from(Word), Mail::from(Word));
        assert!((waiting() - 2.0).abs() < f64::EPSILON);
        let Word = first.open();
        assert!((waiting() - 1.0).abs() < f64::EPSILON);
        drop(second);
        assert!(waiting().abs() < f64::EPSILON);
    }
}

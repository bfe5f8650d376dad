//! Counts the spans that go to a collector, and keeps more than a bound from waiting for it.
//!
//! The SDK has a queue of its own and says nothing of what it drops, so the bound is kept here, a little below its own.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use opentelemetry_sdk::error::OTelSdkError;
use serde::{Deserialize, Serialize};

/// What became of the spans of this process since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanCounts {
    /// Taken by the collector.
    pub exported: u64,
    /// Sent, and not taken.
    pub failed: u64,
    /// Not sent: too many were waiting.
    pub dropped: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Gate {
    most: usize,
    waiting: AtomicUsize,
    exported: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    /// Whether the trouble that there is was told.
    told: AtomicBool,
}

impl Gate {
    /// For a queue of the SDK of so many spans.
    pub(crate) fn of(queue: usize) -> Self {
        Self { most: queue, ..Self::default() }
    }

    /// Whether one more span may wait. One that may has to be sent.
    pub(crate) fn admits(&self) -> bool {
        let admitted = self.waiting.fetch_add(1, Relaxed) < self.most;
        if !admitted {
            self.waiting.fetch_sub(1, Relaxed);
            self.dropped.fetch_add(1, Relaxed);
        }
        admitted
    }

    /// A batch was sent. Trouble is told once, and that it is over as well.
    pub(crate) fn sent(&self, spans: usize, error: Option<&OTelSdkError>, endpoint: &str) {
        self.waiting.fetch_sub(spans.min(self.waiting.load(Relaxed)), Relaxed);
        let counter = if error.is_some() { &self.failed } else { &self.exported };
        counter.fetch_add(spans as u64, Relaxed);
        if self.told.swap(error.is_some(), Relaxed) == error.is_some() {
            return;
        }
        let SpanCounts { failed, dropped, .. } = self.counts();
        match error {
            Some(error) => tracing::warn!(endpoint, %error, "spans do not reach the collector"),
            None => tracing::info!(endpoint, failed, dropped, "spans reach the collector again"),
        }
    }

    pub(crate) fn counts(&self) -> SpanCounts {
        SpanCounts {
            exported: self.exported.load(Relaxed),
            failed: self.failed.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_than_the_bound_is_dropped_and_counted_until_some_was_sent() {
        let gate = Gate::of(2);
        assert_eq!([gate.admits(), gate.admits(), gate.admits()], [true, true, false]);
        gate.sent(2, Some(&OTelSdkError::InternalFailure("down".into())), "x");
        assert!(gate.admits());
        gate.sent(1, None, "x");
        assert_eq!(gate.counts(), SpanCounts { exported: 1, failed: 2, dropped: 1 });
    }
}

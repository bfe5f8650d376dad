//! The first try to reach a server: what a task waits for that comes just after the start of its node.

use std::time::{Duration, Instant};

use super::{McpHandle, Phase};

/// Longest wait for the first try: a child may take 30 s to start, and its lists 20 s. Each is a bound of its own.
const FIRST_TRY: Duration = Duration::from_secs(50);

/// A server that refuses the first try may be starting beside the node: so long after its start, the next tries count as well.
const STARTS_BESIDE: Duration = Duration::from_secs(5);

impl McpHandle {
    /// Waits until it is known what the server has, or that it is not to be had for now. Once its first try is over and the
    /// servers that start beside this node have had their time, nothing is waited for.
    pub(crate) async fn first_listing(&self) {
        let mut published = self.published.clone();
        loop {
            let until = {
                let known = published.borrow_and_update();
                match &known.phase {
                    _ if known.catalogue > 0 => return,
                    Phase::Waiting { next_try: None, .. } => return,
                    Phase::Connecting | Phase::Ready(_) | Phase::Waiting { next_try: Some(_), .. } => {
                        until(self.begun, known.was_tried)
                    }
                }
            };
            let changed = tokio::time::timeout_at(until.into(), published.changed());
            if !matches!(changed.await, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// Why it is not known what the server has, if that was never listed.
    pub(crate) fn unlisted(&self) -> Option<String> {
        let published = self.published.borrow();
        if published.catalogue > 0 {
            return None;
        }
        Some(match &published.phase {
            Phase::Waiting { reason, .. } => reason.clone(),
            Phase::Connecting | Phase::Ready(_) => "it has not answered yet".to_owned(),
        })
    }
}

fn until(begun: Instant, was_tried: bool) -> Instant {
    begun + if was_tried { STARTS_BESIDE } else { FIRST_TRY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_try_has_its_time_and_later_ones_that_of_a_start() {
        let begun = Instant::now();
        assert_eq!(until(begun, false), begun + FIRST_TRY);
        assert_eq!(until(begun, true), begun + STARTS_BESIDE);
    }
}

//! Who may be asked for the leader, and when: one node's proposals and reads search together, so that a thousand of them
//! that wait dial no more than one.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use towline_core::NodeId;

/// Wait before a node that was not reached is tried again; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(40);

/// Longest such wait: it is lost when a node is back and leads, and short beside an election.
const LONGEST_PAUSE: Duration = Duration::from_millis(160);

/// Who is asked: a node that should lead, or whoever may know one.
pub(crate) type Asked = Option<NodeId>;

/// What the searches of a node have found out.
#[derive(Debug, Default)]
pub(crate) struct Finder(Mutex<BTreeMap<Asked, Rest>>);

/// A node that was not reached, or that nobody knew a leader.
#[derive(Debug, Clone, Copy)]
struct Rest {
    until: Instant,
    pause: Duration,
}

impl Finder {
    /// Whether a node may be asked at this moment. Of those who ask about one that rests, one is told so.
    pub(crate) fn may_ask(&self, node: Asked) -> bool {
        let mut resting = self.lock();
        let Some(rest) = resting.get_mut(&node) else { return true };
        let now = Instant::now();
        if now < rest.until {
            return false;
        }
        rest.until = now + rest.pause;
        true
    }

    /// A node was of no use: it rests, longer each time.
    pub(crate) fn rest(&self, node: Asked) {
        let mut resting = self.lock();
        let before = resting.get(&node).map(|rest| rest.pause * 2);
        let pause = before.map_or(FIRST_PAUSE, |pause| pause.min(LONGEST_PAUSE));
        resting.insert(node, Rest { until: Instant::now() + pause, pause });
    }

    /// Somebody has answered, or a leader is known.
    pub(crate) fn answered(&self, node: Asked) {
        self.lock().remove(&node);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Asked, Rest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Asked = Some(NodeId(7));

    #[tokio::test(start_paused = true)]
    async fn a_thousand_searches_ask_a_node_that_is_gone_a_few_times_a_second() {
        let finder = Finder::default();
        assert!(finder.may_ask(NODE), "one that nobody has tried");
        let mut asked = 0;
        for _ in 0..100 {
            for _ in 0..1_000 {
                if finder.may_ask(NODE) {
                    asked += 1;
                    finder.rest(NODE);
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!((6..=10).contains(&asked), "{asked} times in a second");
        assert!(finder.may_ask(None), "others are asked at once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_answers_is_asked_by_everybody() {
        let finder = Finder::default();
        finder.rest(NODE);
        assert!(!finder.may_ask(NODE));
        finder.answered(NODE);
        assert!(finder.may_ask(NODE) && finder.may_ask(NODE));
    }
}

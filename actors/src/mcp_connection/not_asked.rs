//! Questions of a server that nobody is asked: told in the log once in a while, since a server can ask as often as it likes.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// One line in this time says that there are such questions, and how many there were since the last one.
const TOLD_EACH: Duration = Duration::from_secs(60);

/// What was told of one connection.
#[derive(Debug, Default)]
pub(super) struct NotAsked(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    at: Option<Instant>,
    untold: u64,
}

impl NotAsked {
    /// Notes a question that is not asked, and tells of it if it is time.
    pub(super) fn note(&self, server: &str, why: &str) {
        if let Some(times) = self.due(Instant::now()) {
            tracing::warn!(server, why, times, "a question of an MCP server is not asked");
        }
    }

    /// How many there were since the last line, if another line is due.
    fn due(&self, now: Instant) -> Option<u64> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.untold += 1;
        if told.at.is_some_and(|at| now.saturating_duration_since(at) < TOLD_EACH) {
            return None;
        }
        told.at = Some(now);
        Some(std::mem::take(&mut told.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_questions_that_nobody_is_asked_is_one_line_a_minute_with_their_number() {
        let (not_asked, begun) = (NotAsked::default(), Instant::now());
        let lines: Vec<u64> =
            (0..1_000).filter_map(|question| not_asked.due(begun + Duration::from_millis(question * 100))).collect();
        assert_eq!(lines, [1, 600]);
    }
}

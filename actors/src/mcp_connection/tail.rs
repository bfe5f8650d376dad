//! What a server says beside its answers – lines on its standard error, log messages, progress, announcements – kept in a
//! ring for whoever looks, and never in the way of the server.

use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use super::{bridged::Notices, text};

/// Lines that are kept of one server: what was said around a failure, and no more memory than a few hundred KiB.
const MAX_LINES: usize = 500;

/// Longest line that is kept, in characters.
const MAX_LINE_CHARS: usize = 1_024;

/// What a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TailKind {
    /// A line on the standard error of a child process.
    Stderr,
    /// A log message over the protocol.
    Log,
    /// Progress of a call.
    Progress,
    /// Something else that it announced.
    Notification,
    /// What this node has to say of the connection.
    Connection,
}

impl TailKind {
    /// As it is shown.
    pub fn word(self) -> &'static str {
        match self {
            TailKind::Stderr => "stderr",
            TailKind::Log => "log",
            TailKind::Progress => "progress",
            TailKind::Notification => "notification",
            TailKind::Connection => "connection",
        }
    }
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TailLine {
    /// Its number, from 1; numbers that are missing were dropped.
    pub no: u64,
    /// When, in milliseconds since 1970 by the clock of this node.
    pub at_ms: u64,
    /// What it is.
    pub kind: TailKind,
    /// The text, with nothing hidden in it.
    pub text: String,
}

/// The ring of one server; cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Tail(Arc<Mutex<Lines>>, Notices);

#[derive(Default)]
struct Lines {
    last: u64,
    lines: VecDeque<TailLine>,
}

impl Tail {
    /// The announcements of the server, as they came.
    pub(super) fn notices(&self) -> &Notices {
        &self.1
    }

    pub(super) fn say(&self, kind: TailKind, said: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let text = text::plain_line(said, MAX_LINE_CHARS);
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.last += 1;
        let line = TailLine { no: lines.last, at_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX), kind, text };
        if lines.lines.len() == MAX_LINES {
            lines.lines.pop_front();
        }
        lines.lines.push_back(line);
    }

    /// The lines after a number.
    pub(super) fn after(&self, no: u64) -> Vec<TailLine> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.lines.iter().filter(|line| line.no > no).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_leaves_the_last_lines_and_their_numbers_say_what_is_missing() {
        let tail = Tail::default();
        (0..MAX_LINES * 3).for_each(|_| tail.say(TailKind::Log, &"x".repeat(5_000)));
        tail.say(TailKind::Stderr, "last\u{1b}[2J");
        let lines = tail.after(0);
        assert_eq!((lines.len(), lines[0].no), (MAX_LINES, (MAX_LINES * 2 + 2) as u64));
        assert_eq!(lines[0].text.chars().count(), MAX_LINE_CHARS);
        assert_eq!(lines.last().unwrap().text, "last\u{fffd}[2J");
        assert_eq!(tail.after(lines[MAX_LINES - 2].no), lines[MAX_LINES - 1..]);
    }
}

//! Results as their server wrote them, byte by byte, for who passes them on: what rmcp makes of a message has lost what it does not
//! know, and how numbers and texts were written.
//!
//! Results are kept only while somebody wants one, and forgotten with the last who does.

use serde::Deserialize;
use serde_json::value::RawValue;
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Results that wait to be taken: more than the calls of one connection. Beyond it the oldest are forgotten, and are passed on as
/// rmcp reads them.
const MAX_KEPT: usize = 256;

/// Their bytes.
const MAX_KEPT_BYTES: usize = 64 * 1024 * 1024;

#[derive(Default)]
pub(super) struct Originals(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// Who wants a result.
    wanted: usize,
    results: VecDeque<(String, Box<RawValue>)>,
    bytes: usize,
}

/// An answer, but for its result.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    result: &'a RawValue,
}

impl Originals {
    pub(super) fn want(&self) {
        self.lock().wanted += 1;
    }

    pub(super) fn want_no_more(&self) {
        let mut kept = self.lock();
        kept.wanted = kept.wanted.saturating_sub(1);
        if kept.wanted == 0 {
            (kept.results, kept.bytes) = (VecDeque::new(), 0);
        }
    }

    /// Keeps the result of a message, if it is an answer and somebody wants one.
    pub(super) fn keep(&self, id: &[u8], message: &[u8]) {
        let mut kept = self.lock();
        if kept.wanted == 0 || id.is_empty() {
            return;
        }
        let Ok(answer) = serde_json::from_slice::<Answer<'_>>(message) else { return };
        kept.bytes += answer.result.get().len();
        kept.results.push_back((plain(&String::from_utf8_lossy(id)), answer.result.to_owned()));
        while kept.results.len() > MAX_KEPT || kept.bytes > MAX_KEPT_BYTES {
            let Some((_, forgotten)) = kept.results.pop_front() else { break };
            kept.bytes = kept.bytes.saturating_sub(forgotten.get().len());
        }
    }

    /// The last result under an id.
    pub(super) fn take(&self, id: &str) -> Option<Box<RawValue>> {
        let (mut kept, id) = (self.lock(), plain(id));
        let at = kept.results.iter().rposition(|(known, _)| *known == id)?;
        let (_, result) = kept.results.remove(at)?;
        kept.bytes = kept.bytes.saturating_sub(result.get().len());
        Some(result)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Some servers send a number back as a string.
fn plain(id: &str) -> String {
    id.trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_kept_as_it_was_written_while_somebody_wants_one() {
        let originals = Originals::default();
        let message = br#"{"jsonrpc":"2.0","id":7,"result":{"b":1.50, "a":1e2,"x":"\u0041"}}"#;
        originals.keep(b"7", message);
        assert!(originals.take("7").is_none(), "nobody wanted it");
        originals.want();
        originals.keep(b"7", message);
        originals.keep(b"8", br#"{"jsonrpc":"2.0","id":8,"error":{"code":1,"message":"no"}}"#);
        assert_eq!(originals.take("7").unwrap().get(), r#"{"b":1.50, "a":1e2,"x":"\u0041"}"#);
        assert!(originals.take("7").is_none() && originals.take("8").is_none());
        originals.keep(b"9", br#"{"id":9,"result":{}}"#);
        originals.want_no_more();
        assert!(originals.take("9").is_none(), "it is forgotten with who wanted it");
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let originals = Originals::default();
        originals.want();
        let large = format!(r#"{{"result":"{}"}}"#, "x".repeat(MAX_KEPT_BYTES / 3));
        (0..9).for_each(|id| originals.keep(format!("{id}").as_bytes(), large.as_bytes()));
        (10..2_000).for_each(|id| originals.keep(format!("{id}").as_bytes(), br#"{"result":{}}"#));
        let kept = originals.lock();
        assert!(kept.results.len() == MAX_KEPT && kept.bytes <= MAX_KEPT_BYTES);
    }
}

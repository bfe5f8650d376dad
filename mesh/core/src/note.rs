//! What operators keep in the cluster: small texts under keys, bounded in number and size.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

use crate::{
    Rejection,
    limits::{MAX_NOTE_BYTES, MAX_NOTE_KEY_BYTES, MAX_NOTES},
};

/// When another try is worth it after the notes were full: somebody has to remove one first.
const RETRY_AFTER_MS: u64 = 60_000;

/// A text, and which word about its key it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The text.
    pub value: String,
    /// Versions of one key only grow.
    pub version: u64,
}

/// All notes, by key; shared with the copies that snapshots are made of.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Notes(BTreeMap<String, Arc<Note>>);

impl Notes {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Note> {
        self.0.get(key).map(Arc::as_ref).filter(|note| !note.value.is_empty())
    }

    /// Keeps a note, unless its key has seen this version or a later one. A removed note stays as an empty one, so that a
    /// word about it that comes late does not bring it back.
    pub(crate) fn put(&mut self, key: String, note: Note) -> Result<(), Rejection> {
        check("key of a note in bytes", key.len(), MAX_NOTE_KEY_BYTES)?;
        check("note in bytes", note.value.len(), MAX_NOTE_BYTES)?;
        if let Some(known) = self.0.get_mut(&key) {
            if known.version < note.version {
                *known = Arc::new(note);
            }
            return Ok(());
        }
        if self.0.len() >= MAX_NOTES {
            let what = "the list of notes".to_owned();
            return Err(Rejection::Full { what, limit: MAX_NOTES as u64, retry_after_ms: RETRY_AFTER_MS });
        }
        self.0.insert(key, Arc::new(note));
        Ok(())
    }
}

fn check(what: &str, size: usize, limit: usize) -> Result<(), Rejection> {
    if size > limit { Err(Rejection::TooLarge { what: what.to_owned(), limit: limit as u64 }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(value: &str, version: u64) -> Note {
        Note { value: value.to_owned(), version }
    }

    #[test]
    fn a_word_that_comes_late_or_twice_changes_nothing() {
        let mut notes = Notes::default();
        notes.put("a".into(), note("second", 2)).unwrap();
        notes.put("a".into(), note("first", 1)).unwrap();
        notes.put("a".into(), note("other", 2)).unwrap();
        assert_eq!(notes.get("a"), Some(&note("second", 2)));
        notes.put("a".into(), note("", 3)).unwrap();
        notes.put("a".into(), note("second", 2)).unwrap();
        assert_eq!(notes.get("a"), None);
    }

    #[test]
    fn notes_are_bounded_in_number_and_size() {
        let mut notes = Notes::default();
        let long = "x".repeat(MAX_NOTE_BYTES + 1);
        assert!(matches!(notes.put("a".into(), note(&long, 1)), Err(Rejection::TooLarge { .. })));
        assert!(matches!(notes.put(long, note("x", 1)), Err(Rejection::TooLarge { .. })));
        for number in 0..MAX_NOTES {
            notes.put(number.to_string(), note("x", 1)).unwrap();
        }
        assert!(matches!(notes.put("one more".into(), note("x", 1)), Err(Rejection::Full { .. })));
        notes.put("0".into(), note("y", 2)).unwrap();
    }
}

//! What a peer's task makes, shown while it is made: only where the task is relayed as a whole.

use std::collections::BTreeMap;
use towline_core::{Artifact, Message, Metadata, Part};

use super::{Chunk, News};

/// Most chunks that are passed on while a task runs: a peer that makes more is shown as a whole at its end. It bounds what a
/// fast peer can put before a run that commits each of them.
const MAX_PASSED_ON: u32 = 10_000;

/// Name of the artifact that a direct answer becomes.
const ANSWER: &str = "answer";

/// What was shown so far.
#[derive(Debug, Default)]
pub(super) struct Shown {
    artifacts: BTreeMap<String, Artifact>,
    passed_on: u32,
}

impl Shown {
    /// Passes a chunk on.
    pub(super) fn chunk(&mut self, chunk: Chunk, tell: &impl Fn(News)) {
        if self.passed_on >= MAX_PASSED_ON {
            return;
        }
        self.passed_on += 1;
        let known = self.artifacts.entry(chunk.artifact_id.clone()).or_insert_with(|| empty(&chunk));
        if !chunk.append {
            known.parts.clear();
        }
        known.append(&chunk.parts);
        tell(News::Artifact(Box::new(chunk)));
    }

    /// Shows what differs from what was shown: a stream may have been cut, or begun anew.
    pub(super) fn whole(&mut self, artifacts: &[Artifact], tell: &impl Fn(News)) {
        for artifact in artifacts {
            if self
                .artifacts
                .get(&artifact.artifact_id)
                .is_some_and(|shown| joined(&shown.parts) == joined(&artifact.parts))
            {
                continue;
            }
            let chunk = Chunk {
                artifact_id: artifact.artifact_id.clone(),
                name: artifact.name.clone(),
                parts: artifact.parts.clone(),
                append: false,
                last_chunk: true,
            };
            self.artifacts.insert(artifact.artifact_id.clone(), artifact.clone());
            tell(News::Artifact(Box::new(chunk)));
        }
    }

    /// A direct answer, as an artifact.
    pub(super) fn answer(&mut self, message: &Message, tell: &impl Fn(News)) {
        let artifact = Artifact {
            artifact_id: ANSWER.to_owned(),
            name: Some(ANSWER.to_owned()),
            description: None,
            parts: message.parts.clone(),
            metadata: Metadata::new(),
        };
        self.whole(&[artifact], tell);
    }
}

fn empty(chunk: &Chunk) -> Artifact {
    Artifact {
        artifact_id: chunk.artifact_id.clone(),
        name: chunk.name.clone(),
        description: None,
        parts: Vec::new(),
        metadata: Metadata::new(),
    }
}

/// Whether a server joins the chunks of a text or keeps them as parts says nothing of what they are.
fn joined(parts: &[Part]) -> Vec<Part> {
    let mut artifact = Artifact {
        artifact_id: String::new(),
        name: None,
        description: None,
        parts: Vec::new(),
        metadata: Metadata::new(),
    };
    artifact.append(parts);
    artifact.parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn chunk(text: &str, append: bool) -> Chunk {
        Chunk { artifact_id: "a".into(), name: None, parts: vec![Part::text(text)], append, last_chunk: false }
    }

    #[test]
    fn what_was_shown_in_chunks_is_not_shown_again_as_a_whole() {
        let told = RefCell::new(0);
        let tell = |_| *told.borrow_mut() += 1;
        let mut shown = Shown::default();
        shown.chunk(chunk("one ", false), &tell);
        shown.chunk(chunk("two", true), &tell);
        let whole = |texts: &[&str]| Artifact {
            parts: texts.iter().map(|text| Part::text(*text)).collect(),
            ..empty(&chunk("", false))
        };
        shown.whole(&[whole(&["one ", "two"])], &tell);
        assert_eq!(*told.borrow(), 2, "nothing is new");
        shown.whole(&[whole(&["one two three"])], &tell);
        assert_eq!(*told.borrow(), 3, "the stream was cut");
    }
}

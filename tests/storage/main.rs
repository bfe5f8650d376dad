//! What is on disk: saved, restored, refused.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod disk;
mod snapshot;

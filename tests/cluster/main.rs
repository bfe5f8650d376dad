//! Nodes die and come back; callers notice nothing but time.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod node_death;
mod restart;

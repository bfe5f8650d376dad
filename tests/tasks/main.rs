//! Tasks through any node: the same answers everywhere, canceling, and the limits of what runs at once.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod any_node;
mod budgets;
mod cancel;
mod command_line;
mod limits;
mod permits;

//! Content that is too large for the log: through real nodes, their doors and their deaths.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod door;
mod http_server;
mod parts;
mod tools;

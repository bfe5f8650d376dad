//! The demo, as a test: on a folder that nobody has seen before, judged by our own counting and by the task records that the
//! nodes kept.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails, and says what it measured or drew"
)]

mod dev;
mod folder;
mod shown;

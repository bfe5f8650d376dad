//! Bad input gets a clear error, and nothing is lost.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod configuration;
mod disk;
mod load;
mod quorum;
mod requests;

//! Nodes die and come back; callers notice nothing but time.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails, and says what it measured or drew"
)]

mod doctor;
mod drain;
mod events;
mod joining;
mod membership;
mod node_death;
mod removal;
mod restart;
mod signing_in;
mod stopping;
mod twin;
mod upgrade;
mod workers;

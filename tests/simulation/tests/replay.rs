//! A seed is one run: whoever has its number has all of it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{path::Path, process::Command};

/// A seed with every kind of fault in its first seconds.
const SEED: &str = "7";

#[test]
fn a_seed_replays_to_the_byte() {
    let dir = tempfile::tempdir().unwrap();

    let first = run(&dir.path().join("first.log"));
    let second = run(&dir.path().join("second.log"));

    assert!(first.len() > 10_000, "a run has a log to compare: {} bytes", first.len());
    let lines = || first.split(|byte| *byte == b'\n').zip(second.split(|byte| *byte == b'\n'));
    let differs = lines().position(|(one, other)| one != other);
    assert_eq!(differs, None, "the first line that differs");
    assert_eq!(first.len(), second.len());
}

fn run(log: &Path) -> Vec<u8> {
    let out =
        Command::new(env!("CARGO_BIN_EXE_towline-simulation")).args(["run", SEED, "--log"]).arg(log).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    std::fs::read(log).unwrap()
}

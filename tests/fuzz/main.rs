//! Fuzzing on stable: each decoder runs over its corpus, over every input of it cut short, and over random changes of it.
//!
//! `TOWLINE_FUZZ_SECONDS` is how long each target gets, `TOWLINE_FUZZ_SEED` repeats the inputs of a run. A failing input is
//! printed in hex: put it into `tests/fuzz/corpus/TARGET/`, where it stays. `tests/fuzz/Cargo.toml` runs the same decoders under `cargo fuzz`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod targets;

use std::{
    env, fs,
    num::NonZero,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use targets::{TARGETS, Target};

/// Random inputs for each target, unless a time is given: with all targets some seconds without optimisation.
const ROUNDS: u64 = 4_000;
/// Most changes to one input.
const MAX_CHANGES: u64 = 6;
/// Longer inputs are cut at random only: one cut at each byte would take too long.
const CUT_EVERYWHERE: usize = 2_048;
/// Longest input that is made up.
const MADE_UP_BYTES: u64 = 400;

#[test]
fn no_decoder_panics() {
    let seed = setting("TOWLINE_FUZZ_SEED")
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 | 1);
    let time = setting("TOWLINE_FUZZ_SECONDS").map(Duration::from_secs);
    println!("TOWLINE_FUZZ_SEED={seed}");
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(target) = TARGETS.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (inputs, took) = fuzz(target, seed, time);
            println!("{:16} {inputs} random inputs, {took:?}", target.name);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(work);
        }
    });
}

/// Over the corpus, over all of it cut short, and over random inputs for this time or a number of rounds.
fn fuzz(target: &Target, seed: u64, time: Option<Duration>) -> (u64, Duration) {
    let began = Instant::now();
    let corpus = corpus(target);
    assert!(!corpus.is_empty(), "{} has no corpus", target.name);
    for input in &corpus {
        check(target, input);
        (0..input.len().min(CUT_EVERYWHERE)).for_each(|cut| check(target, &input[..cut]));
    }
    let mut random = Random(seed);
    let mut rounds = 0;
    while time.map_or(rounds < ROUNDS, |time| began.elapsed() < time) {
        check(target, &random.input(&corpus));
        rounds += 1;
    }
    (rounds, began.elapsed())
}

fn check(target: &Target, input: &[u8]) {
    let ran = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let hex = || input.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert!(ran.is_ok(), "{} panicked at {}", target.name, hex());
}

/// What is valid, and what failed before.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target.name);
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn setting(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Xorshift: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// A changed input of the corpus; one in eight is made up.
    fn input(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        if self.below(8) == 0 {
            return (0..self.below(MADE_UP_BYTES)).map(|_| self.next() as u8).collect();
        }
        let mut input = corpus[self.below(corpus.len() as u64) as usize].clone();
        for _ in 0..=self.below(MAX_CHANGES) {
            self.change(&mut input, corpus);
        }
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(input.len() as u64) as usize;
        let rest = input.len() - at;
        let length = self.below(rest.min(32) as u64 + 1) as usize;
        match self.below(7) {
            0 if rest > 0 => input[at] ^= 1 << self.below(8),
            1 if rest > 0 => input[at] = self.next() as u8,
            // The ends of every range of numbers.
            2 if rest > 0 => input[at] = [0, 0x7f, 0x80, 0xff][self.below(4) as usize],
            3 => input.truncate(at),
            4 => drop(input.drain(at..at + length)),
            5 => {
                let doubled = input[at..at + length].to_vec();
                drop(input.splice(at..at, doubled));
            }
            _ => {
                let other = &corpus[self.below(corpus.len() as u64) as usize];
                let from = self.below(other.len() as u64) as usize;
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
}

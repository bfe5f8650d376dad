//! A deterministic simulation: several nodes in one process, on simulated clocks, networks and disks, torn at while clients use
//! them; the same seed is the same run, to the byte.
//!
//! ```text
//! world    one thread, one clock; what each machine makes of it
//! host     a machine and the process on it: one runtime per life, killed by dropping it
//! net      connections that are late, cut, reset     disk   what a power cut leaves of what was not synced
//! owner    the shell of a node, by script            clients   send, cancel, read, follow
//! nemesis  the faults        members    who joins and leaves
//! ledger   what everyone was told, and whether it fits
//! many     many seeds, each in a process of its own
//! ```
//! What runs on it is the product: its log, its Raft, its sessions and its state. TLS and the actors are left out.
//!
//! Each seed runs in a process of its own, since libc's clocks and randomness are replaced, and since counters and hash keys
//! are per process.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that tests says what it found")]

mod ambush;
mod clients;
mod disk;
mod host;
mod ledger;
mod many;
mod members;
mod nemesis;
mod net;
mod owner;
mod panics;
mod plan;
mod run;
mod tasks;
mod trace;
mod world;

use std::{io, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use rand::{SeedableRng, rngs::StdRng};

/// A run that found something.
const WRONG: u8 = 1;
/// A run that did too little to say anything.
const IDLE: u8 = 2;

/// Runs a cluster in a simulated world, and checks what everyone was told
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one seed
    Run {
        /// The seed
        seed: u64,
        /// Where the log goes
        #[arg(long)]
        log: Option<PathBuf>,
        /// A bug that is switched on
        #[arg(long)]
        mutant: Option<String>,
    },
    /// Run fresh seeds, and those that failed before
    Many(many::Many),
    /// Switch on one bug after the other: each has to be found
    Mutants(many::Mutants),
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Run { seed, log, mutant } => one(seed, log, mutant),
        Command::Many(many) => many.run(),
        Command::Mutants(mutants) => mutants.run(),
    };
    done.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::from(WRONG)
    })
}

fn one(seed: u64, log: Option<PathBuf>, mutant: Option<String>) -> Result<ExitCode, String> {
    if let Some(name) = mutant {
        switch_on(&name)?;
    }
    mad_turmoil::rand::set_rng(StdRng::seed_from_u64(seed));
    let clocks = mad_turmoil::time::SimClocksGuard::init();
    trace::begin(log.as_deref()).map_err(|error| format!("make the log of seed {seed}: {error}"))?;
    let folder = enter_folder().map_err(|error| format!("make a folder for seed {seed}: {error}"))?;
    panics::watch();
    let mut outcome = run::run(seed);
    outcome.wrong.extend(panics::seen());
    drop(clocks);
    if let Err(error) = std::fs::remove_dir_all(&folder) {
        eprintln!("remove {}: {error}", folder.display());
    }
    println!("seed {seed}: {} in {:.1} s of the world", outcome.counts, outcome.took.as_secs_f64());
    for wrong in &outcome.wrong {
        println!("WRONG {wrong}");
    }
    Ok(if !outcome.wrong.is_empty() {
        ExitCode::from(WRONG)
    } else if !outcome.counts.are_enough() {
        ExitCode::from(IDLE)
    } else {
        ExitCode::SUCCESS
    })
}

/// Makes a folder for what nodes keep beside their log, and works in it: so that no path in a log depends on where it ran.
fn enter_folder() -> io::Result<PathBuf> {
    let memory = PathBuf::from("/dev/shm");
    let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let folder = parent.join(format!("towline-simulation-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    std::env::set_current_dir(&folder)?;
    Ok(folder)
}

#[cfg(feature = "mutants")]
fn switch_on(name: &str) -> Result<(), String> {
    let mutant = towline_core::mutants::Mutant::ALL.into_iter().find(|mutant| mutant.name() == name);
    towline_core::mutants::switch_on(mutant.ok_or_else(|| format!("there is no bug called {name}"))?);
    Ok(())
}

#[cfg(not(feature = "mutants"))]
fn switch_on(name: &str) -> Result<(), String> {
    Err(format!("{name} is not compiled in: use `make sim-mutants`"))
}

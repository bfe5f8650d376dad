//! Tears at a cluster of real processes while clients use it, and checks what they saw.
//!
//! ```text
//! lab       three nodes, each in a network namespace of its own, joined by a bridge
//! nemesis   kills, stops, isolates, cuts, drains and demotes them, makes a disk slow or full, or has one hand over: one fault
//!           at a time, the leader more often than the others
//! registers clients that submit, read and cancel through all nodes; their history has to be linearizable
//! streams   clients that follow long answers and go on elsewhere when a stream breaks; no gap, no duplicate, the same bytes
//! ```
//! Needs root (network namespaces) and `ip`. Where namespaces cannot be made, `--network loopback` leaves the partitions out.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that tests fails when it cannot go on, and says what it found"
)]

mod checker;
mod lab;
mod nemesis;
mod registers;
mod streams;

use std::{process::ExitCode, sync::Arc, time::Duration};

use clap::{Parser, ValueEnum};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::Instant,
};

use lab::{Lab, Network};

/// How long a healed cluster may take until all streams have ended.
const AFTER: Duration = Duration::from_secs(90);

/// Breaks a cluster in every way it can while clients use it, and checks what they saw.
#[derive(Parser)]
struct Args {
    /// How long to do so
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(5..=86_400))]
    seconds: u64,
    /// Seed of the order of faults and requests; drawn if it is not given
    #[arg(long)]
    seed: Option<u64>,
    /// How the nodes reach each other
    #[arg(long, value_enum, default_value_t = Network::Auto)]
    network: Network,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    println!("chaos for {} s, seed {seed}", args.seconds);
    let lab = Arc::new(Lab::start(args.network).await);
    let disks = if lab.can_trouble_disks() { "slow and full by turns" } else { "always well: build with kill points" };
    println!("three nodes vote; network: {}; disks: {disks}", lab.network_name());
    let told = tokio::select! {
        told = run(&lab, seed, Duration::from_secs(args.seconds)) => told,
        () = told_to_end() => vec!["interrupted".to_owned()],
    };
    lab.stop();
    if told.is_empty() {
        println!("ok: no acknowledged task lost, no gap, no duplicate, every key linearizable");
        return ExitCode::SUCCESS;
    }
    told.iter().for_each(|line| eprintln!("FAILED {line}"));
    eprintln!("logs of the nodes: {}; the same order again: --seed {seed}", lab.keep().display());
    ExitCode::FAILURE
}

/// Waits for Ctrl-C or `SIGTERM`: nodes and namespaces are not left behind.
async fn told_to_end() {
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    tokio::select! {
        _ = tokio::signal::ctrl_c() => (),
        _ = terminate.recv() => (),
    }
}

/// Everything that was wrong.
async fn run(lab: &Arc<Lab>, seed: u64, time: Duration) -> Vec<String> {
    let began = Instant::now();
    let (over, until) = watch::channel(false);
    let registers = registers::start(lab, seed, began, &until);
    let streams = streams::start(lab, seed, &until);
    let faults = nemesis::torment(lab, seed, time).await;
    over.send_replace(true);
    lab.heal_and_restart().await;
    let healed = Instant::now();
    let (history, mut wrong) = registers::finish(lab, registers).await;
    let (told, more) = streams::finish(lab, streams, healed + AFTER).await;
    wrong.extend(more);
    wrong.extend(checker::check(&history));
    wrong.extend(lab.ended_by_themselves());
    println!("faults    {faults}");
    println!("registers {}", history.summary());
    println!("streams   {told}");
    println!("took      {:.1} s", began.elapsed().as_secs_f64());
    wrong
}

/// How a word of the command line is spelled.
fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

//! One fault after the other, each ended before the next begins: a majority is always there, or soon again.

use std::{collections::BTreeMap, fmt, time::Duration};

use fastrand::Rng;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::lab::Lab;

/// Between two faults: long enough for an election now and then, short enough that some fall into one.
const REST: std::ops::Range<u64> = 200..2_500;
/// Shorter and longer than a lease and an election.
const OUTAGE: std::ops::Range<u64> = 300..4_500;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Kill,
    KillAll,
    Stop,
    Isolate,
    CutBothWays,
    CutOneWay,
    Transfer,
    Drain,
    Demote,
    SlowDisk,
    FullDisk,
}

/// How many of each.
#[derive(Debug, Default)]
pub(crate) struct Faults(BTreeMap<Fault, usize>, usize);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(kinds, on_leader) = self;
        kinds.iter().try_for_each(|(fault, count)| write!(f, "{fault:?} {count}, "))?;
        write!(f, "{on_leader} of them on the leader")
    }
}

/// Torments the cluster for this long.
pub(crate) async fn torment(lab: &Lab, seed: u64, time: Duration) -> Faults {
    let mut rng = Rng::with_seed(seed);
    let mut faults = Faults::default();
    let end = Instant::now() + time;
    let disks = lab.can_trouble_disks();
    while Instant::now() < end {
        let leader = lab.leader().await;
        let count = lab.nodes().len();
        let victim = leader.filter(|_| rng.bool()).unwrap_or_else(|| rng.usize(0..count));
        let fault = draw(&mut rng, lab.can_partition(), disks);
        *faults.0.entry(fault).or_default() += 1;
        faults.1 += usize::from(leader == Some(victim));
        let other = (victim + rng.usize(1..count)) % count;
        let outage = Duration::from_millis(rng.u64(OUTAGE));
        inflict(lab, fault, victim, other, outage).await;
        sleep(Duration::from_millis(rng.u64(REST))).await;
    }
    faults
}

fn draw(rng: &mut Rng, can_partition: bool, can_trouble_disks: bool) -> Fault {
    let wires = if can_partition { 10 } else { 0 };
    let disks = if can_trouble_disks { 6 } else { 0 };
    let drawn = rng.u32(0..16 + wires + disks);
    match drawn {
        0..5 => Fault::Kill,
        5 => Fault::KillAll,
        6..10 => Fault::Stop,
        10..12 => Fault::Transfer,
        12..14 => Fault::Drain,
        14..16 => Fault::Demote,
        _ if drawn >= 16 + wires + 4 => Fault::FullDisk,
        _ if drawn >= 16 + wires => Fault::SlowDisk,
        16..20 => Fault::Isolate,
        20..23 => Fault::CutBothWays,
        _ => Fault::CutOneWay,
    }
}

async fn inflict(lab: &Lab, fault: Fault, victim: usize, other: usize, outage: Duration) {
    let node = &lab.nodes()[victim];
    match fault {
        Fault::Kill => {
            node.kill();
            sleep(outage).await;
            node.start(None);
        }
        Fault::KillAll => {
            lab.nodes().iter().for_each(|node| node.kill());
            lab.nodes().iter().for_each(|node| node.start(None));
            sleep(outage).await;
        }
        Fault::Stop => {
            node.signal(Signal::STOP);
            sleep(outage).await;
            node.signal(Signal::CONT);
        }
        Fault::Isolate => {
            lab.isolate(victim, true);
            sleep(outage).await;
            lab.isolate(victim, false);
        }
        // What is asked for may be refused: that is one of the things that can happen.
        Fault::Transfer => {
            lab.transfer(other).await;
        }
        Fault::Drain => {
            lab.operate(victim, "drain").await;
            sleep(outage).await;
            lab.insist(victim, "undrain").await;
        }
        Fault::Demote => {
            lab.operate(victim, "demote").await;
            sleep(outage).await;
            lab.insist(victim, "promote").await;
        }
        Fault::SlowDisk => {
            // Slower than a heartbeat, an election and a lease by turns.
            node.trouble_disk(Some(&format!("slow {}", outage.as_millis() / 4)));
            sleep(outage * 2).await;
            node.trouble_disk(None);
        }
        Fault::FullDisk => {
            node.trouble_disk(Some("full"));
            sleep(outage).await;
            node.trouble_disk(None);
        }
        Fault::CutBothWays | Fault::CutOneWay => {
            let both = fault == Fault::CutBothWays;
            lab.cut(victim, other, true);
            both.then(|| lab.cut(other, victim, true));
            sleep(outage).await;
            lab.cut(victim, other, false);
            both.then(|| lab.cut(other, victim, false));
        }
    }
}

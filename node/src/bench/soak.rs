//! `towline bench soak`: minutes of tasks and puts, and what the nodes hold meanwhile.
//!
//! Memory grows at first: with the tasks that are kept (`mesh/core/src/limits.rs` bounds them), with the entries that are
//! kept in memory, and with the spans. What is looked for is growth that does not end: the last third against the second.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use towline_cluster::PeerCaller;
use towline_core::{Command, Principal, Proposal};

use super::{
    BenchError,
    keys::Keys,
    load::{Measured, Worker, drive},
    machine::{Machine, cpu_of, load, open_files, rss_kb, threads},
    options::SoakArgs,
    report::{Report, Row, rounded},
    subjects::{OURS, Towline},
    task::{Submitter, submitters},
};

/// How often memory is read in one soak: a curve, and few rows.
const LOOKS: u32 = 30;

/// What one client does.
enum Client {
    Tasks(Box<Submitter>),
    Puts(Box<PeerCaller>, Keys),
}

impl Worker for Client {
    async fn once(&mut self) -> Result<(), String> {
        match self {
            Client::Tasks(submitter) => submitter.task().await.map(|_| ()),
            Client::Puts(caller, keys) => {
                let (key, value, version) = keys.next();
                let proposal = Proposal { by: Principal::Operator, command: Command::Note { key, value, version } };
                caller.propose(&proposal).await.map(|_| ()).map_err(|error| error.to_string())
            }
        }
    }
}

/// What a node held at one moment.
struct Look {
    at: Duration,
    node: String,
    rss_kb: u64,
    open_files: u64,
    threads: u64,
}

pub(super) async fn run(args: &SoakArgs, dir: &Path) -> Result<Report, BenchError> {
    let window = args.check()?;
    let machine = Machine::of_this(dir);
    let towline = Towline::start(&super::nodes::this_program()?, dir).await?;
    let soaked = soak(&towline, args.clients, window).await;
    towline.nodes.stop().await;
    let (measured, looks) = soaked?;
    let rows = std::iter::once(Row::of("soak", "tasks and puts", args.clients, &measured));
    let rows = rows.chain(looks.iter().map(row)).collect();
    let subjects = BTreeMap::from([(OURS.to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    Ok(Report { machine, load_after: load(), subjects, rows })
}

async fn soak(towline: &Towline, clients: u32, window: Duration) -> Result<(Measured, Vec<Look>), BenchError> {
    let completed = Arc::new(AtomicU64::new(0));
    let tasks = submitters(&towline.nodes, clients.div_ceil(2), "noop", &completed)?;
    let (caller, keys) = (towline.caller()?, Keys::default());
    let puts = (0..clients / 2).map(|_| Client::Puts(Box::new(caller.clone()), keys.clone()));
    let workers = tasks.into_iter().map(|submitter| Client::Tasks(Box::new(submitter))).chain(puts).collect();
    let pids = towline.nodes.pids();
    let (measured, looks) = tokio::join!(drive(workers, window, || cpu_of(&pids)), watch(towline, window));
    measured.check("task or put")?;
    Ok((measured, looks))
}

/// Looks at all nodes from time to time, until the window ends.
async fn watch(towline: &Towline, window: Duration) -> Vec<Look> {
    let every = window / LOOKS;
    let mut looks = Vec::new();
    for number in 1..=LOOKS {
        tokio::time::sleep(every).await;
        for node in towline.nodes.cluster.alive() {
            let Some(pid) = node.pid() else { continue };
            looks.push(Look {
                at: every * number,
                node: node.plan.name.clone(),
                rss_kb: rss_kb(pid),
                open_files: open_files(pid),
                threads: threads(pid),
            });
        }
    }
    looks
}

fn row(look: &Look) -> Row {
    Row {
        bench: "soak memory".to_owned(),
        subject: format!("node {}", look.node),
        at_s: Some(rounded(look.at.as_secs_f64(), 10.0)),
        rss_mb: Some(rounded(look.rss_kb as f64 / 1024.0, 10.0)),
        open_files: Some(look.open_files),
        threads: Some(look.threads),
        ..Row::default()
    }
}

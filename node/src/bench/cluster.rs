//! `towline bench cluster`: committed commands and linearizable reads, beside etcd's puts and gets.
//!
//! The clients are in this process and speak gRPC to the leader of each subject, over as many connections for one as for
//! the other. What an operation is, from its request to its answer:
//!
//! | | towline | etcd |
//! |---|---|---|
//! | put | `Peer.Propose` of a `Note` of 256 bytes: decoded, appended, fsynced by a quorum, applied, answered | `KV.Put` of the same |
//! | get | `Peer.Note`: leadership confirmed by a quorum, applied up to there, read | `KV.Range`, linearizable |
//! | transport | mutual TLS, to the clients and between the nodes | plain, its default |

use std::{collections::BTreeMap, path::Path};

use towline_cluster::PeerCaller;
use towline_core::{Command, Principal, Proposal};

use super::{
    BenchError,
    etcd::{EtcdClient, Gets, Puts},
    keys::Keys,
    load::{Measured, Worker, drive},
    machine::{Machine, cpu_of, load},
    options::{ClusterArgs, Plan},
    report::{Report, Row},
    subjects::{self, OURS, Server, Subject},
};

/// Most connections of one subject: clients share them, as the callers of one node do.
const CONNECTIONS: u32 = 4;

/// Proposes notes, one after the other.
struct Proposals {
    caller: PeerCaller,
    keys: Keys,
}

impl Worker for Proposals {
    async fn once(&mut self) -> Result<(), String> {
        let (key, value, version) = self.keys.next();
        let proposal = Proposal { by: Principal::Operator, command: Command::Note { key, value, version } };
        self.caller.propose(&proposal).await.map(|_| ()).map_err(|error| error.to_string())
    }
}

/// Reads them.
struct Reads {
    caller: PeerCaller,
    keys: Keys,
}

impl Worker for Reads {
    async fn once(&mut self) -> Result<(), String> {
        let (key, ..) = self.keys.next();
        match self.caller.note(&key).await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(format!("note {key} is not there")),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    Put,
    Get,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Operation::Put => "cluster put",
            Operation::Get => "cluster get",
        }
    }
}

/// What each subject showed at each point.
type Results = BTreeMap<(Operation, u32, usize), Measured>;

pub(super) async fn run(args: &ClusterArgs, dir: &Path) -> Result<Report, BenchError> {
    let plan = args.check()?;
    let machine = Machine::of_this(dir);
    let subjects = subjects::start(args, dir).await?;
    let results = measure(&subjects, args, plan).await;
    let names: Vec<String> = subjects.iter().map(|subject| subject.name.clone()).collect();
    let versions = subjects.iter().map(|subject| (subject.name.clone(), subject.version.clone())).collect();
    subjects::stop(subjects).await;
    let rows = rows(&names, &results?);
    Ok(Report { machine, load_after: load(), subjects: versions, rows })
}

/// All points in turn, the subjects one after the other at each, as often as the plan says. Every second round goes through
/// the subjects from behind, so that none always has the machine that another has just warmed.
async fn measure(subjects: &[Subject], args: &ClusterArgs, plan: Plan) -> Result<Results, BenchError> {
    let keys = Keys::default();
    for subject in subjects {
        fill(subject, &keys).await?;
    }
    let mut results = Results::new();
    for round in 0..plan.rounds {
        for clients in &args.clients {
            for operation in [Operation::Put, Operation::Get] {
                let mut order: Vec<usize> = (0..subjects.len()).collect();
                if round % 2 == 1 {
                    order.reverse();
                }
                for at in order {
                    let measured = point(&subjects[at], operation, *clients, plan, &keys).await?;
                    results.entry((operation, *clients, at)).or_insert_with(Measured::new).add(&measured);
                }
            }
        }
    }
    Ok(results)
}

/// Writes every key once, so that every read finds something.
async fn fill(subject: &Subject, keys: &Keys) -> Result<(), BenchError> {
    let failed = |reason| BenchError::NothingDone { operation: "first write of a key".to_owned(), reason };
    let etcd = subject.etcd_client()?;
    let caller = match &subject.server {
        Server::Towline(towline) => Some(towline.caller()?),
        Server::Etcd(_) => None,
    };
    let mut writers = tokio::task::JoinSet::new();
    for slice in keys.all().collect::<Vec<_>>().chunks(FILL_SLICE) {
        let (slice, mut caller, mut etcd) = (slice.to_vec(), caller.clone(), etcd.clone());
        writers.spawn(async move {
            for (key, value, version) in slice {
                if let Some(etcd) = &mut etcd {
                    etcd.put(&key, &value).await?;
                }
                if let Some(caller) = &mut caller {
                    let command = Command::Note { key, value, version };
                    let proposal = Proposal { by: Principal::Operator, command };
                    caller.propose(&proposal).await.map_err(|error| error.to_string())?;
                }
            }
            Ok(())
        });
    }
    while let Some(written) = writers.join_next().await {
        written.unwrap_or_else(|error| Err(error.to_string())).map_err(failed)?;
    }
    Ok(())
}

async fn point(
    subject: &Subject,
    operation: Operation,
    clients: u32,
    plan: Plan,
    keys: &Keys,
) -> Result<Measured, BenchError> {
    let pids = subject.pids();
    let cpu = || cpu_of(&pids);
    let keys = || keys.clone();
    let measured = match (&subject.server, operation) {
        (Server::Towline(towline), Operation::Put) => {
            let callers = connected(clients, || towline.caller())?;
            let workers = callers.map(|caller| Proposals { caller, keys: keys() });
            drive(workers.collect(), plan.seconds, cpu).await
        }
        (Server::Towline(towline), Operation::Get) => {
            let callers = connected(clients, || towline.caller())?;
            drive(callers.map(|caller| Reads { caller, keys: keys() }).collect(), plan.seconds, cpu).await
        }
        (Server::Etcd(etcd), Operation::Put) => {
            let clients = connected(clients, || EtcdClient::new(&etcd.leader_url))?;
            drive(clients.map(|client| Puts { client, keys: keys() }).collect(), plan.seconds, cpu).await
        }
        (Server::Etcd(etcd), Operation::Get) => {
            let clients = connected(clients, || EtcdClient::new(&etcd.leader_url))?;
            drive(clients.map(|client| Gets { client, keys: keys() }).collect(), plan.seconds, cpu).await
        }
    };
    measured.check(operation.name())?;
    Ok(measured)
}

/// A connection for each client; most share one with others.
fn connected<C: Clone>(
    clients: u32,
    connect: impl Fn() -> Result<C, BenchError>,
) -> Result<impl Iterator<Item = C>, BenchError> {
    let connections: Vec<C> = (0..clients.min(CONNECTIONS)).map(|_| connect()).collect::<Result<_, _>>()?;
    Ok((0..clients as usize).map(move |at| connections[at % connections.len()].clone()))
}

/// Keys that one writer fills: some hundred writers go side by side.
const FILL_SLICE: usize = 100;

/// One row per point. Each other subject's row says how ours stands to it, and ours how it stands to the first of them.
fn rows(names: &[String], results: &Results) -> Vec<Row> {
    let row = |(operation, clients, at): (Operation, u32, usize)| {
        let measured = results.get(&(operation, clients, at))?;
        Some(Row::of(operation.name(), &names[at], clients, measured))
    };
    let mut rows = Vec::new();
    for (operation, clients, at) in results.keys().copied() {
        let Some(own) = row((operation, clients, at)) else { continue };
        let ours = row((operation, clients, 0)).unwrap_or_default();
        rows.push(match (at, row((operation, clients, 1))) {
            (0, Some(first)) => own.compared_with(&first),
            (0, None) => own,
            (_, _) => {
                let Row { ratio, p99_ratio, .. } = ours.compared_with(&own);
                Row { ratio, p99_ratio, ..own }
            }
        });
    }
    debug_assert!(names.first().is_none_or(|name| name == OURS));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_other_subject_says_how_ours_stands_to_it() {
        let measured = |count: u32| {
            let mut measured = Measured::new();
            (0..count).for_each(|_| measured.record(Duration::from_millis(1)));
            measured.window = Duration::from_secs(1);
            measured
        };
        let results = [(0, 30), (1, 20), (2, 10)].map(|(at, count)| ((Operation::Put, 1, at), measured(count)));
        let names = [OURS, "etcd 3.4.23", "etcd 3.7.0"].map(str::to_owned);
        let rows = rows(&names, &Results::from_iter(results));
        let ratios: Vec<(&str, Option<f64>)> = rows.iter().map(|row| (row.subject.as_str(), row.ratio)).collect();
        assert_eq!(ratios, [(OURS, Some(1.5)), ("etcd 3.4.23", Some(1.5)), ("etcd 3.7.0", Some(3.0))]);
    }
}

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

use std::{collections::BTreeMap, path::Path, sync::Arc};

use towline_cluster::{PeerCaller, PeerCredentials};
use towline_core::{Command, NodeId, Principal, Proposal};

use super::{
    BenchError,
    etcd::{Etcd, EtcdClient, Gets, Puts},
    keys::Keys,
    load::{Measured, Worker, drive},
    machine::{Machine, cpu_of, load},
    nodes::Nodes,
    options::{ClusterArgs, Plan, Versus, check_clients},
    report::{Report, Row},
};

/// Most connections of one subject: clients share them, as the callers of one node do.
const CONNECTIONS: u32 = 4;

/// What our own rows are called.
const OURS: &str = "towline";

/// What etcd's rows are called.
const ETCD: &str = "etcd";

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

/// Everything that is measured.
struct Subjects {
    nodes: Nodes,
    leader: NodeId,
    credentials: Arc<PeerCredentials>,
    etcd: Option<Etcd>,
    keys: Keys,
}

type Results = BTreeMap<(Operation, u32, &'static str), Measured>;

pub(super) async fn run(args: &ClusterArgs, dir: &Path) -> Result<Report, BenchError> {
    check_clients(&args.clients)?;
    let plan = args.pace.check()?;
    let machine = Machine::of_this(dir);
    let subjects = Subjects::start(args, dir).await?;
    let results = subjects.measure(args, plan).await;
    let versions = subjects.versions();
    subjects.stop().await;
    let rows = rows(&results?);
    Ok(Report { machine, load_after: load(), subjects: versions, rows })
}

impl Subjects {
    async fn start(args: &ClusterArgs, dir: &Path) -> Result<Self, BenchError> {
        let etcd = match args.vs {
            Some(Versus::Etcd) => Some(Etcd::start(&dir.join(ETCD)).await?),
            None => None,
        };
        let nodes = Nodes::start(&dir.join(OURS)).await?;
        let leader = nodes.leader().await?;
        let credentials = Arc::new(nodes.credentials().await?);
        Ok(Self { nodes, leader, credentials, etcd, keys: Keys::default() })
    }

    async fn stop(self) {
        self.nodes.stop().await;
        if let Some(etcd) = self.etcd {
            etcd.stop().await;
        }
    }

    fn versions(&self) -> BTreeMap<String, String> {
        let ours = (OURS.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        let etcd = self.etcd.as_ref().map(|etcd| (ETCD.to_owned(), etcd.version.clone()));
        std::iter::once(ours).chain(etcd).collect()
    }

    /// All points in turn, the subjects one after the other at each, as often as the plan says.
    async fn measure(&self, args: &ClusterArgs, plan: Plan) -> Result<Results, BenchError> {
        self.fill().await?;
        let mut results = Results::new();
        for _ in 0..plan.rounds {
            for clients in &args.clients {
                for operation in [Operation::Put, Operation::Get] {
                    let ours = self.ours(operation, *clients, plan).await?;
                    add(&mut results, (operation, *clients, OURS), &ours);
                    if let Some(etcd) = &self.etcd {
                        let theirs = self.etcds(etcd, operation, *clients, plan).await?;
                        add(&mut results, (operation, *clients, ETCD), &theirs);
                    }
                }
            }
        }
        Ok(results)
    }

    /// Writes every key once, so that every read finds something.
    async fn fill(&self) -> Result<(), BenchError> {
        let failed = |reason| BenchError::NothingDone { operation: "first write of a key".to_owned(), reason };
        let etcd = self.etcd.as_ref().map(|etcd| EtcdClient::new(&etcd.leader_url)).transpose()?;
        let caller = self.caller()?;
        let mut writers = tokio::task::JoinSet::new();
        for slice in self.keys.all().collect::<Vec<_>>().chunks(FILL_SLICE) {
            let (slice, mut caller, mut etcd) = (slice.to_vec(), caller.clone(), etcd.clone());
            writers.spawn(async move {
                for (key, value, version) in slice {
                    if let Some(etcd) = &mut etcd {
                        etcd.put(&key, &value).await?;
                    }
                    let command = Command::Note { key, value, version };
                    let proposal = Proposal { by: Principal::Operator, command };
                    caller.propose(&proposal).await.map_err(|error| error.to_string())?;
                }
                Ok(())
            });
        }
        while let Some(written) = writers.join_next().await {
            written.unwrap_or_else(|error| Err(error.to_string())).map_err(failed)?;
        }
        Ok(())
    }

    fn caller(&self) -> Result<PeerCaller, BenchError> {
        Ok(self.credentials.caller(self.leader, &self.nodes.peer_address(self.leader))?)
    }

    async fn ours(&self, operation: Operation, clients: u32, plan: Plan) -> Result<Measured, BenchError> {
        let connections: Vec<PeerCaller> =
            (0..clients.min(CONNECTIONS)).map(|_| self.caller()).collect::<Result<_, _>>()?;
        let pids = self.nodes.pids();
        let cpu = || cpu_of(&pids);
        let shared = connections.iter().cycle().take(clients as usize).cloned();
        let measured = match operation {
            Operation::Put => {
                let workers = shared.map(|caller| Proposals { caller, keys: self.keys.clone() });
                drive(workers.collect(), plan.seconds, cpu).await
            }
            Operation::Get => {
                let workers = shared.map(|caller| Reads { caller, keys: self.keys.clone() });
                drive(workers.collect(), plan.seconds, cpu).await
            }
        };
        measured.check(operation.name())?;
        Ok(measured)
    }

    async fn etcds(&self, etcd: &Etcd, operation: Operation, clients: u32, plan: Plan) -> Result<Measured, BenchError> {
        let connections: Vec<EtcdClient> =
            (0..clients.min(CONNECTIONS)).map(|_| EtcdClient::new(&etcd.leader_url)).collect::<Result<_, _>>()?;
        let pids = etcd.pids();
        let cpu = || cpu_of(&pids);
        let shared = connections.iter().cycle().take(clients as usize).cloned();
        let measured = match operation {
            Operation::Put => {
                let workers = shared.map(|client| Puts { client, keys: self.keys.clone() });
                drive(workers.collect(), plan.seconds, cpu).await
            }
            Operation::Get => {
                let workers = shared.map(|client| Gets { client, keys: self.keys.clone() });
                drive(workers.collect(), plan.seconds, cpu).await
            }
        };
        measured.check(operation.name())?;
        Ok(measured)
    }
}

/// Keys that one writer fills: some hundred writers go side by side.
const FILL_SLICE: usize = 100;

fn add(results: &mut Results, point: (Operation, u32, &'static str), measured: &Measured) {
    results.entry(point).or_insert_with(Measured::new).add(measured);
}

/// One row per point; ours say how they stand to etcd's.
fn rows(results: &Results) -> Vec<Row> {
    let row = |(operation, clients, subject): (Operation, u32, &'static str)| {
        let measured = results.get(&(operation, clients, subject))?;
        Some(Row::of(operation.name(), subject, clients, measured))
    };
    let mut rows = Vec::new();
    for (operation, clients, subject) in results.keys().copied() {
        let Some(own) = row((operation, clients, subject)) else { continue };
        let other = if subject == OURS { row((operation, clients, ETCD)) } else { None };
        rows.push(match other {
            Some(other) => own.compared_with(&other),
            None => own,
        });
    }
    rows
}

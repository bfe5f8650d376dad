//! What is measured side by side: this binary, other builds of it, and etcd. Each is three processes on the same disk.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use towline_cluster::{PeerCaller, PeerCredentials};
use towline_core::NodeId;

use super::{
    BenchError,
    etcd::{Etcd, EtcdClient},
    nodes::Nodes,
    options::{ClusterArgs, Versus},
};

/// What our own rows are called.
pub(super) const OURS: &str = "towline";

/// One of them, running.
pub(super) struct Subject {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) server: Server,
}

/// How it is spoken to.
pub(super) enum Server {
    Towline(Towline),
    Etcd(Etcd),
}

/// Three nodes, and how one calls their leader.
pub(super) struct Towline {
    pub(super) nodes: Nodes,
    leader: NodeId,
    credentials: Arc<PeerCredentials>,
}

impl Towline {
    pub(super) async fn start(program: &Path, dir: &Path) -> Result<Self, BenchError> {
        let nodes = Nodes::start_program(program, dir).await?;
        let leader = nodes.leader().await?;
        let credentials = Arc::new(nodes.credentials().await?);
        Ok(Self { nodes, leader, credentials })
    }

    /// A connection of its own to the leader.
    pub(super) fn caller(&self) -> Result<PeerCaller, BenchError> {
        Ok(self.credentials.caller(self.leader, &self.nodes.peer_address(self.leader))?)
    }
}

impl Subject {
    /// The processes.
    pub(super) fn pids(&self) -> Vec<u32> {
        match &self.server {
            Server::Towline(towline) => towline.nodes.pids(),
            Server::Etcd(etcd) => etcd.pids(),
        }
    }

    /// A connection to etcd's leader, where this is one.
    pub(super) fn etcd_client(&self) -> Result<Option<EtcdClient>, BenchError> {
        match &self.server {
            Server::Towline(_) => Ok(None),
            Server::Etcd(etcd) => EtcdClient::new(&etcd.leader_url).map(Some),
        }
    }

    async fn stop(self) {
        match self.server {
            Server::Towline(towline) => towline.nodes.stop().await,
            Server::Etcd(etcd) => etcd.stop().await,
        }
    }
}

/// This binary first, then what it is compared with.
pub(super) async fn start(args: &ClusterArgs, dir: &Path) -> Result<Vec<Subject>, BenchError> {
    let mut subjects = Vec::new();
    let ours = Towline::start(&super::nodes::this_program()?, &dir.join(OURS)).await?;
    let version = env!("CARGO_PKG_VERSION").to_owned();
    subjects.push(Subject { name: OURS.to_owned(), version, server: Server::Towline(ours) });
    for (at, program) in etcds(args)?.iter().enumerate() {
        let etcd = Etcd::start(program, &dir.join(format!("etcd-{at}"))).await?;
        let (name, version) = (format!("etcd {}", etcd.version), program.display().to_string());
        subjects.push(Subject { name, version, server: Server::Etcd(etcd) });
    }
    for (at, program) in args.towline.iter().enumerate() {
        let other = Towline::start(program, &dir.join(format!("towline-{at}"))).await?;
        let (name, version) = (other_build(at), program.display().to_string());
        subjects.push(Subject { name, version, server: Server::Towline(other) });
    }
    Ok(subjects)
}

/// What the rows of another build are called.
pub(super) fn other_build(at: usize) -> String {
    format!("towline, build {}", at + 2)
}

/// Stops all of them in good order.
pub(super) async fn stop(subjects: Vec<Subject>) {
    for subject in subjects {
        subject.stop().await;
    }
}

fn etcds(args: &ClusterArgs) -> Result<Vec<PathBuf>, BenchError> {
    match (args.etcd.as_slice(), args.vs) {
        ([], None) => Ok(Vec::new()),
        ([], Some(Versus::Etcd)) => Ok(vec![Etcd::in_path()?]),
        (named, _) => Ok(named.to_vec()),
    }
}

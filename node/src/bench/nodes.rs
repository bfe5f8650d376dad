//! The nodes that are measured: three ordinary processes of this binary, founded and joined as always.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use http::{HeaderMap, HeaderValue, header};
use towline_cluster::{PeerCredentials, finished::retaining};
use towline_core::NodeId;

use super::BenchError;
use crate::auth::Sha256;
use crate::demo::{NodePlan, RunningCluster, RunningNode, plan_on_free_ports};

/// Name of the cluster.
const CLUSTER: &str = "bench";

/// The rules of its agents.
const RULES: &str = include_str!("rules.yaml");

/// Tasks that one node runs at the same time: more than there are clients, so that none waits for a place.
const PERMITS: u32 = 4_096;

/// A folder that is removed when the bench ends, however it ends.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Only this user can enter it: it holds the cluster's keys.
    pub(super) fn new(above: &Path) -> Result<Self, BenchError> {
        let dir = above.join(format!("towline-bench-{}", uuid::Uuid::now_v7().simple()));
        DirBuilder::new().mode(0o700).create(&dir).map_err(|source| file("make folder", &dir, source))?;
        Ok(Self(dir))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(dir = %self.0.display(), %error, "could not be removed");
        }
    }
}

/// A running cluster.
pub(super) struct Nodes {
    pub(super) cluster: RunningCluster,
    program: PathBuf,
    dir: PathBuf,
}

impl Nodes {
    /// Three nodes with the agents of the bench.
    pub(super) async fn start(dir: &Path) -> Result<Self, BenchError> {
        Self::start_program(&this_program()?, dir).await
    }

    /// The same of another build.
    pub(super) async fn start_program(program: &Path, dir: &Path) -> Result<Self, BenchError> {
        Self::start_nodes(program, dir, usize::MAX, AGENTS, 0, HeaderMap::new()).await
    }

    /// Three nodes with the agents of the bench, which keep so many finished tasks of the one that does nothing.
    pub(super) async fn start_retaining(dir: &Path, retained: u64) -> Result<Self, BenchError> {
        Self::start_nodes(&this_program()?, dir, usize::MAX, AGENTS, retained, HeaderMap::new()).await
    }

    /// At most `count` nodes with these agents.
    pub(super) async fn start_some(dir: &Path, count: usize, agents: &str) -> Result<Self, BenchError> {
        Self::start_nodes(&this_program()?, dir, count, agents, 0, HeaderMap::new()).await
    }

    /// Three nodes with what follows the line `agents:` of their configuration.
    pub(super) async fn start_some_of(program: &Path, dir: &Path, agents: &str) -> Result<Self, BenchError> {
        Self::start_nodes(program, dir, usize::MAX, agents, 0, HeaderMap::new()).await
    }

    /// Three nodes where people can sign in, and the operator is who knows a token.
    pub(super) async fn start_signing_in(dir: &Path) -> Result<Self, BenchError> {
        let token = uuid::Uuid::now_v7().to_string();
        let hash = Sha256::of(token.as_bytes());
        let agents = format!(
            "{AGENTS}auth:
  device_grant: {{ enabled: true }}
  principals: [ {{ id: root, role: operator, bearer: {{ sha256: \"{hash}\" }} }} ]
"
        );
        let header = HeaderValue::try_from(format!("Bearer {token}"));
        let header =
            header.map_err(|error| BenchError::Waited { what: "a header".to_owned(), reason: error.to_string() })?;
        let operator = HeaderMap::from_iter([(header::AUTHORIZATION, header)]);
        Self::start_nodes(&this_program()?, dir, usize::MAX, &agents, 0, operator).await
    }

    async fn start_nodes(
        program: &Path,
        dir: &Path,
        count: usize,
        agents: &str,
        retained: u64,
        operator: HeaderMap,
    ) -> Result<Self, BenchError> {
        fs::create_dir_all(dir).map_err(|source| file("make folder", dir, source))?;
        let mut plans = plan_on_free_ports(dir)?;
        plans.truncate(count);
        for plan in &plans {
            let home = dir.join(&plan.name);
            fs::create_dir_all(&home).map_err(|source| file("make folder", &home, source))?;
            fs::write(&plan.config, config(plan, agents)).map_err(|source| file("write", &plan.config, source))?;
        }
        let rules = dir.join("rules.yaml");
        fs::write(&rules, RULES).map_err(|source| file("write", &rules, source))?;
        if let (Some(first), 1..) = (plans.first(), retained) {
            found_retaining(first.clone(), retained).await?;
        }
        let cluster = RunningCluster::start_as(program, CLUSTER, plans, operator).await?;
        Ok(Self { cluster, program: program.to_owned(), dir: dir.to_owned() })
    }

    /// The processes that run.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.cluster.alive().filter_map(RunningNode::pid).collect()
    }

    pub(super) async fn leader(&self) -> Result<NodeId, BenchError> {
        Ok(self.cluster.leader().await?)
    }

    /// Starts a node again that was killed.
    pub(super) async fn restart(&mut self, node: NodeId) -> Result<(), BenchError> {
        Ok(self.cluster.restart(&self.program, node).await?)
    }

    /// Where a node is reached by other nodes.
    pub(super) fn peer_address(&self, node: NodeId) -> String {
        self.cluster.node(node).map(|node| node.plan.peer.to_string()).unwrap_or_default()
    }

    /// The credentials of a node that does not lead, copied: clients forward their commands to the leader as it would.
    pub(super) async fn credentials(&self) -> Result<PeerCredentials, BenchError> {
        let leader = self.leader().await?;
        let other = self.cluster.nodes().iter().find(|node| node.id != leader);
        let data = other.map(|node| node.plan.data.clone()).unwrap_or_default();
        let copy = self.dir.join("client");
        copy_file(&data, &copy, "identity.json")?;
        let tls = data.join("tls");
        for entry in fs::read_dir(&tls).map_err(|source| file("read folder", &tls, source))? {
            let entry = entry.map_err(|source| file("read folder", &tls, source))?;
            copy_file(&tls, &copy.join("tls"), &entry.file_name().to_string_lossy())?;
        }
        Ok(PeerCredentials::open(&copy)?)
    }

    /// Stops the nodes in good order.
    pub(super) async fn stop(self) {
        for name in self.cluster.stop().await {
            tracing::warn!(name, "node did not stop in time and was killed");
        }
    }
}

/// The binary that runs.
pub(super) fn this_program() -> Result<PathBuf, BenchError> {
    std::env::current_exe().map_err(|source| file("find", Path::new("this program"), source))
}

fn copy_file(from: &Path, to: &Path, name: &str) -> Result<(), BenchError> {
    fs::create_dir_all(to).map_err(|source| file("make folder", to, source))?;
    let target = to.join(name);
    fs::copy(from.join(name), &target).map(|_| ()).map_err(|source| file("copy to", &target, source))
}

/// An agent that answers at once, one that takes two seconds, and one that delegates to the first.
pub(super) const AGENTS: &str =
    "  - { name: noop, description: Does nothing., instruction: Do nothing., replicas: all }
  - { name: slow, description: Speaks slowly., instruction: Speak slowly., replicas: all }
  - { name: boss, description: Delegates., instruction: Delegate., replicas: all, delegates: [noop] }
";

fn config(node: &NodePlan, agents: &str) -> String {
    let NodePlan { name, http, peer, .. } = node;
    format!(
        "node:
  name: {name}
  data: ./data
  listen: {{ http: \"{http}\", peer: \"{peer}\" }}
  permits: {PERMITS}
cluster: {{ name: {CLUSTER} }}
models:
  default: {{ provider: scripted, rules: \"file://../rules.yaml\" }}
agents:
{agents}"
    )
}

pub(super) fn file(action: &'static str, path: &Path, source: io::Error) -> BenchError {
    BenchError::File { action, path: path.to_owned(), source }
}

/// Founds the cluster with finished tasks in its archive, which takes a while.
async fn found_retaining(plan: NodePlan, retained: u64) -> Result<(), BenchError> {
    let made = tokio::task::spawn_blocking(move || {
        let agent = "noop".parse().expect("it is the name of an agent of the bench");
        let tasks = (&agent, retained);
        retaining::found(&plan.data, CLUSTER, &plan.name, plan.addresses(), tasks)
    });
    let founded =
        made.await.map_err(|error| file("found a cluster in", Path::new("its folder"), io::Error::other(error)))?;
    founded.map(|_| ()).map_err(BenchError::from)
}

//! Three node processes on this machine: planned, founded, joined, watched, killed and stopped. Used by `demo` and `dev`.
//!
//! The nodes are ordinary ones, of this same binary: the first is founded, the others join it with tokens, and they speak
//! mutual TLS with each other. Each gets a pipe as standard input and stops when it closes, so that no node outlives this
//! process, however that ends.

use std::{
    fs::{self, OpenOptions},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use http::HeaderMap;
use tokio::process::{Child, ChildStdin, Command};
use towline_cluster::{ClusterStatus, membership};
use towline_core::{NodeAddresses, NodeId};

use super::{
    DemoError,
    mesh_config::{MeshSpec, RULES},
    operator::OperatorClient,
    patience::Patience,
};

/// Names of the nodes.
pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];

/// Name of a node's configuration file.
pub(crate) const CONFIG_FILE: &str = "towline.yaml";

/// How long an election may take, on a busy machine.
const LEADER_WITHIN: Duration = Duration::from_secs(30);

/// How often a starting node is asked whether it is ready.
const READY_POLL: Duration = Duration::from_millis(50);

/// How long a node may take to stop in good order before it is killed: it hands over its tasks and its leadership.
const STOP_WITHIN: Duration = Duration::from_secs(8);

/// How much of a log an error shows.
const LOG_TAIL_LINES: usize = 12;

/// One node: where it listens and where its files are.
#[derive(Debug, Clone)]
pub(crate) struct NodePlan {
    pub(crate) name: String,
    pub(crate) http: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) config: PathBuf,
    pub(crate) data: PathBuf,
    pub(crate) log: PathBuf,
}

impl NodePlan {
    /// A node with its files in a folder of its name.
    pub(crate) fn new(dir: &Path, name: &str, http: SocketAddr, peer: SocketAddr) -> Self {
        let home = dir.join(name);
        Self {
            name: name.to_owned(),
            http,
            peer,
            config: home.join(CONFIG_FILE),
            data: home.join("data"),
            log: home.join("node.log"),
        }
    }

    /// Base URL of the node's client listener.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.http)
    }

    pub(crate) fn addresses(&self) -> NodeAddresses {
        NodeAddresses { http: self.url(), peer: self.peer.to_string() }
    }

    /// Refuses to start where another process listens, and says which setting to change.
    fn check_ports(&self) -> Result<(), DemoError> {
        for (address, setting) in [(self.http, "node.listen.http"), (self.peer, "node.listen.peer")] {
            if let Err(error) = TcpListener::bind(address)
                && error.kind() == io::ErrorKind::AddrInUse
            {
                let (node, config) = (self.name.clone(), self.config.clone());
                return Err(DemoError::PortInUse { node, address, setting, config });
            }
        }
        Ok(())
    }
}

/// Nodes on ports that are free at this moment.
pub(crate) fn plan_on_free_ports(dir: &Path) -> Result<Vec<NodePlan>, DemoError> {
    let listeners: Vec<TcpListener> = (0..2 * NAMES.len())
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<io::Result<_>>()
        .map_err(|source| file("find free ports for", dir, source))?;
    let addresses: Vec<SocketAddr> = listeners
        .iter()
        .map(TcpListener::local_addr)
        .collect::<io::Result<_>>()
        .map_err(|source| file("find free ports for", dir, source))?;
    let nodes = NAMES.iter().zip(addresses.chunks_exact(2));
    Ok(nodes.map(|(name, pair)| NodePlan::new(dir, name, pair[0], pair[1])).collect())
}

/// Writes the configuration of each node, and the rules that they share.
pub(crate) fn write_configs(dir: &Path, nodes: &[NodePlan], spec: &MeshSpec<'_>) -> Result<(), DemoError> {
    for node in nodes {
        let home = dir.join(&node.name);
        fs::create_dir_all(&home).map_err(|source| file("make folder", &home, source))?;
        fs::write(&node.config, spec.config_of(node)).map_err(|source| file("write", &node.config, source))?;
    }
    let rules = dir.join("rules.yaml");
    fs::write(&rules, RULES).map_err(|source| file("write", &rules, source))
}

/// A node whose process runs, or ran.
pub(crate) struct RunningNode {
    pub(crate) plan: NodePlan,
    pub(crate) id: NodeId,
    pub(crate) alive: bool,
    child: Child,
    /// The node stops when this closes.
    stdin: Option<ChildStdin>,
}

impl RunningNode {
    /// The process, while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }
}

/// Three nodes with a quorum.
pub(crate) struct RunningCluster {
    nodes: Vec<RunningNode>,
    operator: OperatorClient,
}

impl RunningCluster {
    /// Starts the nodes, founds and joins what has no identity yet, and waits until all of them vote.
    pub(crate) async fn start(program: &Path, cluster: &str, plans: Vec<NodePlan>) -> Result<Self, DemoError> {
        Self::start_as(program, cluster, plans, HeaderMap::new()).await
    }

    /// The same with nodes where the operator is who shows these headers.
    pub(crate) async fn start_as(
        program: &Path,
        cluster: &str,
        plans: Vec<NodePlan>,
        operator: HeaderMap,
    ) -> Result<Self, DemoError> {
        for plan in &plans {
            plan.check_ports()?;
        }
        if let [first, ..] = plans.as_slice()
            && !is_member(first)?
        {
            membership::found(&first.data, cluster, &first.name, first.addresses()).map_err(DemoError::Found)?;
        }
        let operator = OperatorClient::new(operator)?;
        let mut starting = Starting { program, operator: &operator, nodes: Vec::new() };
        let mut strangers = Vec::new();
        for plan in plans {
            if is_member(&plan)? {
                starting.spawn(plan, None)?;
            } else {
                strangers.push(plan);
            }
        }
        starting.wait_ready().await?;
        starting.join_all(strangers).await?;
        let nodes = starting.nodes;
        let mut running = Self { nodes, operator };
        running.wait_voting().await?;
        Ok(running)
    }

    pub(crate) fn operator(&self) -> &OperatorClient {
        &self.operator
    }

    pub(crate) fn nodes(&self) -> &[RunningNode] {
        &self.nodes
    }

    /// What each node was started with.
    pub(crate) fn plans(&self) -> Vec<NodePlan> {
        self.nodes.iter().map(|node| node.plan.clone()).collect()
    }

    pub(crate) fn node(&self, id: NodeId) -> Option<&RunningNode> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The nodes that were not killed.
    pub(crate) fn alive(&self) -> impl Iterator<Item = &RunningNode> {
        self.nodes.iter().filter(|node| node.alive)
    }

    /// The name of a node, for people.
    pub(crate) fn name_of(&self, id: NodeId) -> String {
        self.node(id).map_or_else(|| format!("node {id}"), |node| node.plan.name.clone())
    }

    /// The leader, as some live node knows it.
    pub(crate) async fn leader(&self) -> Result<NodeId, DemoError> {
        let deadline = Instant::now() + LEADER_WITHIN;
        loop {
            for node in self.alive() {
                if let Ok(ClusterStatus { leader: Some(leader), .. }) = self.operator.status(&node.plan.url()).await {
                    return Ok(leader);
                }
            }
            if Instant::now() > deadline {
                return Err(DemoError::NotReady { what: "a leader".to_owned(), waited: LEADER_WITHIN });
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }

    /// `SIGKILL`: the process ends where it stands.
    pub(crate) async fn kill(&mut self, id: NodeId) -> Result<Option<u32>, DemoError> {
        let Some(node) = self.nodes.iter_mut().find(|node| node.id == id) else { return Ok(None) };
        let pid = node.child.id();
        node.alive = false;
        node.child.kill().await.map_err(|source| file("kill the process of", &node.plan.config, source))?;
        Ok(pid)
    }

    /// Starts a node again that was killed, and waits until it is ready.
    pub(crate) async fn restart(&mut self, program: &Path, id: NodeId) -> Result<(), DemoError> {
        let Some(at) = self.nodes.iter().position(|node| node.id == id) else { return Ok(()) };
        let mut starting = Starting { program, operator: &self.operator, nodes: Vec::new() };
        starting.spawn(self.nodes[at].plan.clone(), None)?;
        starting.wait_ready().await?;
        self.nodes.splice(at..=at, starting.nodes.into_iter().map(|node| RunningNode { id, ..node }));
        Ok(())
    }

    /// The first node whose process ended by itself.
    pub(crate) fn first_ended(&mut self) -> Option<DemoError> {
        self.newly_ended().0.into_iter().next()
    }

    /// The nodes whose processes have ended by themselves since this was asked last, and whether any is left.
    pub(crate) fn newly_ended(&mut self) -> (Vec<DemoError>, bool) {
        let mut ends = Vec::new();
        for node in self.nodes.iter_mut().filter(|node| node.alive) {
            if let Some(error) = ended(&node.plan, &mut node.child) {
                node.alive = false;
                ends.push(error);
            }
        }
        (ends, self.nodes.iter().any(|node| node.alive))
    }

    /// Stops every node in good order, all at once; kills what does not stop in time, and names it.
    pub(crate) async fn stop(mut self) -> Vec<String> {
        for node in &mut self.nodes {
            drop(node.stdin.take());
        }
        let deadline = tokio::time::Instant::now() + STOP_WITHIN;
        let mut stuck = Vec::new();
        for node in &mut self.nodes {
            let stopped = tokio::time::timeout_at(deadline, node.child.wait()).await;
            if stopped.is_err() {
                stuck.push(node.plan.name.clone());
                // It is gone at the latest when `child` is dropped.
                let _ = node.child.kill().await;
            }
        }
        stuck
    }

    /// Waits until every node counts for the quorum, and learns the nodes' ids.
    async fn wait_voting(&mut self) -> Result<(), DemoError> {
        let mut patience = Patience::with(self.nodes.iter().map(|node| node.plan.data.join("snapshots")));
        loop {
            if let Some(error) = self.first_ended() {
                return Err(error);
            }
            if self.learn_ids().await {
                return Ok(());
            }
            if patience.is_over() {
                let what = "all nodes to vote".to_owned();
                return Err(DemoError::NotReady { what, waited: patience.waited() });
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }

    async fn learn_ids(&mut self) -> bool {
        let Some(first) = self.nodes.first() else { return false };
        let Ok(status) = self.operator.status(&first.plan.url()).await else { return false };
        for node in &mut self.nodes {
            let url = node.plan.url();
            let Some(member) = status.members.iter().find(|member| member.addresses.http == url) else { return false };
            if !member.voting || member.health != towline_core::NodeHealth::Up {
                return false;
            }
            node.id = member.id;
        }
        status.leader.is_some()
    }
}

/// Nodes on their way.
struct Starting<'a> {
    program: &'a Path,
    operator: &'a OperatorClient,
    nodes: Vec<RunningNode>,
}

/// How a node without an identity becomes a member.
struct Joining {
    address: String,
    token: String,
}

impl Starting<'_> {
    fn spawn(&mut self, plan: NodePlan, joining: Option<Joining>) -> Result<(), DemoError> {
        let failed = |source| file("start a node with", &plan.config, source);
        let log = OpenOptions::new().create(true).append(true).open(&plan.log);
        let log = log.map_err(|source| file("open", &plan.log, source))?;
        let mut command = Command::new(self.program);
        command.arg("node").arg("-c").arg(&plan.config).arg("--exit-with-stdin");
        for (name, _) in std::env::vars_os().filter(|(name, _)| !is_for_nodes(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        if let Some(Joining { address, token }) = joining {
            command.arg("--join").arg(address).env("TOWLINE_TOKEN", token);
        }
        command.stdin(Stdio::piped()).stdout(log.try_clone().map_err(failed)?).stderr(log);
        // Ctrl-C is for this process, which stops the nodes in good order.
        command.process_group(0).kill_on_drop(true);
        let mut child = command.spawn().map_err(failed)?;
        let stdin = child.stdin.take();
        self.nodes.push(RunningNode { plan, id: NodeId(0), alive: true, child, stdin });
        Ok(())
    }

    async fn join_all(&mut self, strangers: Vec<NodePlan>) -> Result<(), DemoError> {
        let Some(member) = self.nodes.first().map(|node| node.plan.clone()) else { return Ok(()) };
        for plan in strangers {
            let token = self.operator.mint_token(&member.url()).await?;
            self.spawn(plan, Some(Joining { address: member.peer.to_string(), token }))?;
        }
        self.wait_ready().await
    }

    async fn wait_ready(&mut self) -> Result<(), DemoError> {
        let mut patience = Patience::with(self.nodes.iter().map(|node| node.plan.data.join("snapshots")));
        for node in &mut self.nodes {
            while !self.operator.is_ready(&node.plan.url()).await {
                if let Some(error) = ended(&node.plan, &mut node.child) {
                    return Err(error);
                }
                if patience.is_over() {
                    let what = format!("node {} to be ready (its log: {})", node.plan.name, node.plan.log.display());
                    return Err(DemoError::NotReady { what, waited: patience.waited() });
                }
                tokio::time::sleep(READY_POLL).await;
            }
        }
        Ok(())
    }
}

/// Whether a variable of this process is for the nodes as well. Settings and tokens in `TOWLINE_…` are meant for the
/// command that was typed; three nodes could not share an address.
pub(crate) fn is_for_nodes(variable: &str) -> bool {
    const SHARED: [&str; 3] = ["TOWLINE_LOG", "TOWLINE_LOG_FORMAT", "TOWLINE_SECRETS_DIR"];
    !variable.starts_with("TOWLINE_") || SHARED.contains(&variable)
}

fn is_member(plan: &NodePlan) -> Result<bool, DemoError> {
    membership::identity(&plan.data).map(|identity| identity.is_some()).map_err(DemoError::Found)
}

/// The error that says how a process ended, if it did.
fn ended(plan: &NodePlan, child: &mut Child) -> Option<DemoError> {
    let status = child.try_wait().ok().flatten()?;
    let text = fs::read_to_string(&plan.log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n");
    Some(DemoError::Node { node: plan.name.clone(), what: format!("ended with {status}"), log: plan.log.clone(), tail })
}

pub(crate) fn file(action: &'static str, path: &Path, source: io::Error) -> DemoError {
    DemoError::File { action, path: path.to_owned(), source }
}

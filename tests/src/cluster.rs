//! A cluster of real node processes on this machine, each with its own folder, ports and log.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tempfile::TempDir;
use tokio::process::{Child, ChildStdin, Command};
use towline_core::Task;

use crate::{
    a2a_client::{A2aClient, http_client},
    binaries::towline,
    cli::{run_cli, run_cli_with},
    ports::free_port,
    wait::eventually,
};

/// How much of each log a failing test shows.
const LOG_TAIL_LINES: usize = 40;

/// How long one answer of the operator API may take.
const OPERATOR_LIMIT: Duration = Duration::from_secs(10);

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// What to start.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How many nodes.
    pub nodes: usize,
    /// How many tasks each runs at the same time.
    pub permits: u32,
    /// The sections of the configuration from `models:` on, the same on each node.
    pub mesh: String,
}

impl Plan {
    /// Three nodes with room.
    pub fn three(mesh: impl Into<String>) -> Self {
        Self { nodes: 3, permits: 8, mesh: mesh.into() }
    }

    /// One node with room.
    pub fn one(mesh: impl Into<String>) -> Self {
        Self { nodes: 1, permits: 8, mesh: mesh.into() }
    }
}

/// The sections `node:` and `cluster:` of a configuration, for a node in the folder of its file.
pub fn base_config(name: &str, http: u16, peer: u16, permits: u32) -> String {
    format!(
        "node:\n  name: {name}\n  data: ./data\n  permits: {permits}\n  listen: {{ http: \"127.0.0.1:{http}\", peer: \"127.0.0.1:{peer}\" }}\ncluster: {{ name: test }}\n"
    )
}

/// One node and its process, while it runs.
#[derive(Debug)]
pub struct TestNode {
    /// Its name.
    pub name: String,
    /// Its id in the cluster; 0 until it is known.
    pub id: u64,
    /// Base URL of its client listener.
    pub url: String,
    /// `host:port` of its peer listener.
    pub peer: String,
    /// The folder with its configuration, data and log.
    pub home: PathBuf,
    program: PathBuf,
    env: Vec<(String, String)>,
    process: Option<(Child, ChildStdin)>,
}

impl TestNode {
    /// A node that does not run yet, with its configuration written.
    pub fn new(folder: &Path, name: &str, permits: u32, mesh: &str) -> Self {
        let home = folder.join(name);
        fs::create_dir_all(&home).unwrap();
        let (http, peer) = (free_port(), free_port());
        fs::write(home.join("towline.yaml"), base_config(name, http, peer, permits) + mesh).unwrap();
        Self {
            name: name.to_owned(),
            id: 0,
            url: format!("http://127.0.0.1:{http}"),
            peer: format!("127.0.0.1:{peer}"),
            home,
            program: towline(),
            env: Vec::new(),
            process: None,
        }
    }

    /// A node that ran before: its folder holds its configuration and its data.
    pub fn existing(home: &Path) -> Self {
        let config = fs::read_to_string(home.join("towline.yaml")).unwrap();
        let address = |key: &str| {
            let (_, rest) = config.split_once(&format!("{key}: \"")).expect("the listener is in the file");
            rest.split('"').next().unwrap().to_owned()
        };
        Self {
            name: home.file_name().and_then(|name| name.to_str()).expect("a folder has a name").to_owned(),
            id: 0,
            url: format!("http://{}", address("http")),
            peer: address("peer"),
            home: home.to_owned(),
            program: towline(),
            env: Vec::new(),
            process: None,
        }
    }

    /// Has it start another binary from its next start on.
    pub fn upgrade(&mut self, program: PathBuf) {
        self.program = program;
    }

    /// Its configuration file.
    pub fn config(&self) -> PathBuf {
        self.home.join("towline.yaml")
    }

    /// Its data folder.
    pub fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    /// Makes it the first node of a new cluster.
    pub async fn init(&self) {
        let home = self.home.to_str().unwrap();
        let ran = run_cli_with(Path::new("."), &self.env, ["init", "--name", "test", "--dir", home]).await;
        assert_eq!(ran.code, 0, "towline init: {}", ran.said());
    }

    /// Starts its process.
    pub fn start(&mut self, join: Option<(&str, &str)>) {
        assert!(self.process.is_none(), "node {} runs already", self.name);
        let log = OpenOptions::new().create(true).append(true).open(self.log()).unwrap();
        let mut command = Command::new(&self.program);
        command.arg("node").arg("-c").arg(self.config()).arg("--exit-with-stdin");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TOWLINE_")) {
            command.env_remove(name);
        }
        command.env("TOWLINE_LOG_FORMAT", "text");
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some((address, token)) = join {
            command.args(["--join", address]).env("TOWLINE_TOKEN", token);
        }
        command.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().expect("it is piped");
        self.process = Some((child, stdin));
    }

    /// Whether its process was started and not killed.
    pub fn is_alive(&self) -> bool {
        self.process.is_some()
    }

    /// The id of its process.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().and_then(|(child, _)| child.id())
    }

    /// `SIGSTOP`: the process stands still, and its connections stay open.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// `SIGCONT`.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends a signal to its process.
    pub fn signal(&self, signal: Signal) {
        let pid = self.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).unwrap()));
        kill_process(pid.expect("the node runs"), signal).unwrap();
    }

    /// `SIGKILL`.
    pub async fn kill(&mut self) {
        let (mut child, _stdin) = self.process.take().expect("the node runs");
        child.kill().await.unwrap();
    }

    /// Asks it to stop in good order, and returns its exit code.
    pub async fn stop(&mut self) -> Option<i32> {
        let (mut child, stdin) = self.process.take().expect("the node runs");
        drop(stdin);
        let ended = tokio::time::timeout(Duration::from_secs(40), child.wait()).await;
        ended.expect("the node stops in time").unwrap().code()
    }

    /// Waits until its process ended by itself, and returns the exit code.
    pub async fn ended(&mut self) -> Option<i32> {
        let (child, _stdin) = self.process.as_mut().expect("the node runs");
        let ended = tokio::time::timeout(Duration::from_secs(30), child.wait()).await;
        let code = ended.expect("the node ends by itself").unwrap().code();
        self.process = None;
        code
    }

    /// Waits until it knows a leader and is registered.
    pub async fn ready(&mut self) {
        let http = http_client();
        let health = format!("{}/healthz", self.url);
        let what = format!("node {} to be ready", self.name);
        let log = self.log();
        let process = std::cell::RefCell::new(&mut self.process);
        eventually(&what, async || {
            if let Some((child, _)) = process.borrow_mut().as_mut()
                && let Some(status) = child.try_wait().unwrap()
            {
                panic!("the node ended with {status}:\n{}", tail(&log));
            }
            let answer = http.get(&health).timeout(OPERATOR_LIMIT).send().await.ok()?;
            answer.status().is_success().then_some(())
        })
        .await;
    }

    /// Status code and text of `/healthz`, if it answers.
    pub async fn health(&self) -> Option<(u16, String)> {
        let answer = http_client().get(format!("{}/healthz", self.url)).timeout(OPERATOR_LIMIT).send().await.ok()?;
        let code = answer.status().as_u16();
        Some((code, answer.text().await.ok()?))
    }

    /// Its log so far.
    pub fn log_text(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Its endpoint of an agent.
    pub fn agent(&self, agent: &str) -> A2aClient {
        A2aClient::new(format!("{}/agents/{agent}", self.url))
    }

    /// Its answer of the operator API, if it is a success.
    pub async fn operator(&self, path: &str) -> Option<Value> {
        let url = format!("{}/api/v1/{path}", self.url);
        let answer = http_client().get(url).timeout(OPERATOR_LIMIT).send().await.ok()?;
        if !answer.status().is_success() {
            return None;
        }
        answer.json().await.ok()
    }

    fn log(&self) -> PathBuf {
        self.home.join("node.log")
    }
}

/// Nodes that form a cluster. Dropped, it ends every process it started; after a panic it shows the tails of their logs.
#[derive(Debug)]
pub struct Cluster {
    /// The nodes, in the order in which they were started.
    pub nodes: Vec<TestNode>,
    folder: TempDir,
}

impl Cluster {
    /// Founds a cluster, lets the other nodes join, and waits until all vote.
    pub async fn start(plan: Plan) -> Self {
        Self::start_with(plan, towline()).await
    }

    /// The same with nodes of another binary.
    pub async fn start_with(plan: Plan, program: PathBuf) -> Self {
        Self::start_nodes(plan, program, &[]).await
    }

    /// The same with nodes that have something in their environment.
    pub async fn start_in(plan: Plan, env: &[(&str, &str)]) -> Self {
        Self::start_nodes(plan, towline(), env).await
    }

    async fn start_nodes(plan: Plan, program: PathBuf, env: &[(&str, &str)]) -> Self {
        let folder = tempfile::Builder::new().prefix("towline-test-").tempdir().unwrap();
        let new = |name: &&str| TestNode::new(folder.path(), name, plan.permits, &plan.mesh);
        let mut nodes: Vec<TestNode> = NAMES.iter().take(plan.nodes).map(new).collect();
        for node in &mut nodes {
            node.upgrade(program.clone());
            node.env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        }
        let mut cluster = Self { nodes, folder };
        cluster.nodes[0].init().await;
        cluster.nodes[0].start(None);
        cluster.nodes[0].ready().await;
        for position in 1..plan.nodes {
            let token = cluster.join_token().await;
            let member = cluster.nodes[0].peer.clone();
            cluster.nodes[position].start(Some((&member, &token)));
        }
        cluster.all_ready().await;
        cluster
    }

    /// Starts the nodes a, b and c whose folders lie in this one, as `towline demo --keep` leaves them.
    pub async fn start_again(kept: &Path) -> Self {
        let folder = tempfile::Builder::new().prefix("towline-test-").tempdir().unwrap();
        let mut nodes: Vec<TestNode> = NAMES.iter().take(3).map(|name| TestNode::existing(&kept.join(name))).collect();
        for node in &mut nodes {
            node.start(None);
        }
        let mut cluster = Self { nodes, folder };
        cluster.all_ready().await;
        cluster
    }

    /// A folder of this cluster, removed with it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A token for one more voter.
    pub async fn join_token(&self) -> String {
        self.join_token_for("voter").await
    }

    /// A token for one more node of this role.
    pub async fn join_token_for(&self, role: &str) -> String {
        let ran = run_cli(["cluster", "join-token", "--role", role, "--server", &self.nodes[0].url]).await;
        assert_eq!(ran.code, 0, "towline cluster join-token: {}", ran.said());
        ran.stdout.trim().to_owned()
    }

    /// Waits until every node that runs is ready, all of them vote and are up.
    pub async fn all_ready(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.is_alive()) {
            node.ready().await;
        }
        let members = eventually("all nodes to vote", async || {
            let status = self.alive().next()?.operator("cluster").await?;
            let members = status["members"].as_array()?.clone();
            let alive = |member: &&Value| self.alive().any(|node| member["addresses"]["http"] == *node.url);
            let fit = |member: &&Value| member["voting"] == Value::Bool(true) && member["health"] == *"Up";
            let all_fit = members.iter().filter(alive).filter(fit).count() == self.alive().count();
            (all_fit && status["leader"].is_u64()).then_some(members)
        })
        .await;
        for node in &mut self.nodes {
            if let Some(member) = members.iter().find(|member| member["addresses"]["http"] == *node.url) {
                node.id = member["id"].as_u64().unwrap();
            }
        }
    }

    /// The nodes that run.
    pub fn alive(&self) -> impl Iterator<Item = &TestNode> {
        self.nodes.iter().filter(|node| node.is_alive())
    }

    /// The node with this id.
    pub fn node(&self, id: u64) -> &TestNode {
        self.nodes.iter().find(|node| node.id == id).unwrap_or_else(|| panic!("there is no node {id}"))
    }

    /// The node with this id, to start or kill it.
    pub fn node_mut(&mut self, id: u64) -> &mut TestNode {
        self.nodes.iter_mut().find(|node| node.id == id).unwrap_or_else(|| panic!("there is no node {id}"))
    }

    /// A node that runs and is none of these.
    pub fn another_than(&self, ids: &[u64]) -> &TestNode {
        self.alive().find(|node| !ids.contains(&node.id)).expect("another node runs")
    }

    /// The leader, as a live node knows it.
    pub async fn leader(&self) -> u64 {
        eventually("a leader", async || {
            let status = self.alive().next()?.operator("cluster").await?;
            let leader = status["leader"].as_u64()?;
            self.alive().any(|node| node.id == leader).then_some(leader)
        })
        .await
    }

    /// The record of a task, read through a live node.
    pub async fn task(&self, id: &str) -> Task {
        let record =
            eventually("the record of a task", async || self.alive().next()?.operator(&format!("tasks/{id}")).await)
                .await;
        serde_json::from_value(record.clone()).unwrap_or_else(|error| panic!("{error}: {record}"))
    }

    /// The record of a task, read through this node.
    pub async fn task_at(&self, node: u64, id: &str) -> Task {
        let path = format!("tasks/{id}");
        let record = eventually("the record of a task", async || self.node(node).operator(&path).await).await;
        serde_json::from_value(record.clone()).unwrap_or_else(|error| panic!("{error}: {record}"))
    }

    /// The node that runs a task, once one does.
    pub async fn owner(&self, task: &str) -> u64 {
        eventually("an owner of the task", async || {
            let lease = self.task(task).await.lease?;
            self.alive().any(|node| node.id == lease.node.0).then_some(lease.node.0)
        })
        .await
    }

    /// The spans of a task's trace.
    pub async fn spans(&self, task: &str) -> Vec<Value> {
        let trace = eventually("the trace of a task", async || {
            self.alive().next()?.operator(&format!("tasks/{task}/trace")).await
        })
        .await;
        trace["spans"].as_array().unwrap_or_else(|| panic!("no spans: {trace}")).clone()
    }

    /// Kills a node.
    pub async fn kill(&mut self, id: u64) {
        self.node_mut(id).kill().await;
    }

    /// Kills every node that runs, and starts all again from their disks.
    pub async fn restart_all(&mut self) {
        for node in &mut self.nodes {
            if node.is_alive() {
                node.kill().await;
            }
        }
        for node in &mut self.nodes {
            node.start(None);
        }
        self.all_ready().await;
    }

    /// Starts a node that was killed.
    pub async fn restart(&mut self, id: u64) {
        self.node_mut(id).start(None);
        self.node_mut(id).ready().await;
    }
}

impl Drop for Cluster {
    #[expect(clippy::print_stderr, reason = "a failed test shows what its nodes said")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in &self.nodes {
                eprintln!("--- log of node {} (id {}):\n{}", node.name, node.id, tail(&node.log()));
            }
        }
    }
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
}

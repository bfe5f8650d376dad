//! Three real nodes, each in a network namespace of its own, so that the wires between them can be cut.

use std::{
    fs::{self, File, OpenOptions},
    net::Ipv4Addr,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, mpsc},
    time::Duration,
};

use clap::ValueEnum;
use rustix::{
    process::{Pid, Signal, kill_process},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{runtime::Handle, sync::oneshot};
use towline_tests::{free_port, http_client, towline, within};

/// How long the cluster may take to form, or to be whole again after the last fault.
const WHOLE_LIMIT: Duration = Duration::from_secs(90);

/// How long one look at a node may take.
const LOOK_LIMIT: Duration = Duration::from_secs(3);
/// How long an answer to an operator may take: a proposal looks for a leader for five seconds.
const OPERATE_LIMIT: Duration = Duration::from_secs(8);

/// What a node says whose disk can be made slow or full.
const DISK_IS_OURS: &str = "disk is made slow or full by a test";

const NAMES: [&str; 3] = ["a", "b", "c"];

/// What the agents do: `asker` asks at once and waits; `speaker` speaks for some seconds.
const RULES: &str = r#"
rules:
  - name: ask and wait
    agent: asker
    calls: [{ tool: ask_human, arguments: { question: "and now?" } }]
  - name: speak
    agent: speaker
    delay_ms: 60
    delta_chars: 24
    say: "{% for line in range(40) %}{{ user }} says line {{ line }}, {% endfor %}the end"
"#;

const AGENTS: &str = "
models: { default: { provider: scripted, rules: \"file://../rules.yaml\" } }
agents:
  - { name: asker, description: Asks., instruction: Ask., replicas: all, ask_human: true }
  - { name: speaker, description: Speaks., instruction: Speak., replicas: all }
";

/// How the nodes reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Network {
    /// Namespaces where they can be made, else loopback
    Auto,
    /// A network namespace for each node
    Namespaces,
    /// All on loopback: no partitions
    Loopback,
}

/// The cluster. Dropped, it ends its processes and removes its namespaces.
pub(crate) struct Lab {
    nodes: Vec<LabNode>,
    folder: Mutex<Option<TempDir>>,
    bridge: Option<Namespace>,
}

/// One node: its place, its process, and a thread that sees its loopback.
pub(crate) struct LabNode {
    pub(crate) name: &'static str,
    pub(crate) url: String,
    peer: String,
    home: PathBuf,
    place: Option<(Namespace, Ipv4Addr)>,
    process: Mutex<Option<Child>>,
    reached_from: Handle,
    _thread: oneshot::Sender<()>,
    ended: Mutex<Vec<String>>,
}

impl Lab {
    pub(crate) async fn start(network: Network) -> Self {
        let folder = tempfile::Builder::new().prefix("towline-chaos-").tempdir().unwrap();
        fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
        let bridge = match network {
            Network::Loopback => None,
            Network::Namespaces => Some(bridge().unwrap_or_else(|error| panic!("make network namespaces: {error}"))),
            Network::Auto => bridge().map_err(|error| eprintln!("no partitions here: {error}")).ok(),
        };
        let nodes = (0..NAMES.len()).map(|at| LabNode::new(folder.path(), at, bridge.as_ref())).collect();
        let lab = Self { nodes, folder: Mutex::new(Some(folder)), bridge };
        lab.found().await;
        lab
    }

    async fn found(&self) {
        let first = &self.nodes[0];
        let home = first.home.to_str().unwrap();
        said(first.towline().args(["init", "--name", "chaos", "--dir", home]));
        first.start(None);
        first.ready().await;
        for node in &self.nodes[1..] {
            let token = said(first.towline().args(["cluster", "join-token", "--server", &first.url]));
            node.start(Some((&first.peer, token.trim())));
        }
        self.whole().await;
    }

    pub(crate) fn network_name(&self) -> String {
        super::name_of(if self.bridge.is_some() { Network::Namespaces } else { Network::Loopback })
    }

    pub(crate) fn nodes(&self) -> &[LabNode] {
        &self.nodes
    }

    pub(crate) fn can_partition(&self) -> bool {
        self.bridge.is_some()
    }

    /// Whether the nodes let their disks be made slow or full: a build without kill points does not.
    pub(crate) fn can_trouble_disks(&self) -> bool {
        let says_so = |node: &LabNode| fs::read_to_string(node.log()).is_ok_and(|log| log.contains(DISK_IS_OURS));
        self.nodes.iter().all(says_so)
    }

    /// The position of the leader, as the first node that answers knows it.
    pub(crate) async fn leader(&self) -> Option<usize> {
        for node in &self.nodes {
            let Some(status) = node.look("/api/v1/cluster").await else { continue };
            let members = status["members"].as_array()?;
            let leader = members.iter().find(|member| member["id"] == status["leader"])?;
            return self.nodes.iter().position(|node| leader["name"] == node.name);
        }
        None
    }

    /// Takes a node off the network, or puts it back.
    pub(crate) fn isolate(&self, at: usize, cut: bool) {
        if let Some(bridge) = &self.bridge {
            let state = if cut { "down" } else { "up" };
            ip(&["-n", &bridge.0, "link", "set", &format!("to-{}", self.nodes[at].name), state]).unwrap();
        }
    }

    /// Drops what `from` sends to `to`, or lets it through again.
    pub(crate) fn cut(&self, from: usize, to: usize, cut: bool) {
        let (Some((place, _)), Some((_, target))) = (&self.nodes[from].place, &self.nodes[to].place) else { return };
        let action = if cut { "add" } else { "del" };
        ip(&["-n", &place.0, "route", action, "blackhole", &format!("{target}/32")]).unwrap();
    }

    /// Starts every node that does not run, and waits until all of them vote, are up and take tasks.
    pub(crate) async fn heal_and_restart(&self) {
        self.nodes.iter().filter(|node| !node.runs()).for_each(|node| node.start(None));
        for at in 0..self.nodes.len() {
            for wish in ["undrain", "promote"] {
                self.insist(at, wish).await;
            }
        }
        self.whole().await;
    }

    /// Asks for a change of a node through another one. It may be refused, or nobody may be there to take it.
    pub(crate) async fn operate(&self, at: usize, wish: &str) -> bool {
        let other = &self.nodes[(at + 1) % self.nodes.len()];
        let Some(id) = self.id_of(at).await else { return false };
        let timeout = json!({ "timeout_ms": 1_000 });
        other.post(format!("/api/v1/cluster/nodes/{id}/{wish}"), timeout).await
    }

    /// [`Lab::operate`] until it is done.
    pub(crate) async fn insist(&self, at: usize, wish: &str) {
        within(WHOLE_LIMIT, wish, async || self.operate(at, wish).await.then_some(())).await;
    }

    /// Has the leader hand over to whomever it likes.
    pub(crate) async fn transfer(&self, asked: usize) -> bool {
        self.nodes[asked].post("/api/v1/cluster/leader".to_owned(), json!({})).await
    }

    async fn id_of(&self, at: usize) -> Option<u64> {
        let status = self.nodes[(at + 1) % self.nodes.len()].look("/api/v1/cluster").await?;
        let members = status["members"].as_array()?;
        members.iter().find(|member| member["name"] == self.nodes[at].name)?["id"].as_u64()
    }

    async fn whole(&self) {
        within(WHOLE_LIMIT, "a whole cluster", async || {
            for node in &self.nodes {
                let status = node.look("/api/v1/cluster").await?;
                let members = status["members"].as_array()?;
                let fit = |member: &&Value| member["voting"] == Value::Bool(true) && member["health"] == *"Up";
                (members.iter().filter(fit).count() == self.nodes.len() && status["leader"].is_u64()).then_some(())?;
            }
            Some(())
        })
        .await;
    }

    /// The nodes that ended though nobody killed them.
    pub(crate) fn ended_by_themselves(&self) -> Vec<String> {
        self.nodes.iter().flat_map(|node| node.ended.lock().unwrap().clone()).collect()
    }

    pub(crate) fn stop(&self) {
        self.nodes.iter().for_each(LabNode::kill);
    }

    /// Leaves the folder with logs and data there, and says where.
    pub(crate) fn keep(&self) -> PathBuf {
        self.folder.lock().unwrap().take().map(TempDir::keep).unwrap_or_default()
    }
}

impl LabNode {
    fn new(folder: &Path, at: usize, bridge: Option<&Namespace>) -> Self {
        let name = NAMES[at];
        let home = folder.join(name);
        fs::create_dir_all(&home).unwrap();
        let place = bridge.map(|bridge| join_bridge(bridge, name, at));
        let address = place.as_ref().map_or(Ipv4Addr::LOCALHOST, |(_, address)| *address);
        let (http, peer) = (free_port(), free_port());
        let config = format!(
            "node:\n  name: {name}\n  data: ./data\n  listen: {{ http: \"127.0.0.1:{http}\", peer: \"{address}:{peer}\" }}\n\
             cluster: {{ name: chaos }}\n{AGENTS}"
        );
        fs::write(home.join("towline.yaml"), config).unwrap();
        let (reached_from, thread) = runtime_in(place.as_ref().map(|(namespace, _)| namespace));
        Self {
            name,
            url: format!("http://127.0.0.1:{http}"),
            peer: format!("{address}:{peer}"),
            home,
            place,
            process: Mutex::new(None),
            reached_from,
            _thread: thread,
            ended: Mutex::default(),
        }
    }

    /// Runs a client where the node's loopback is.
    pub(crate) async fn reach<T: Send + 'static>(&self, client: impl Future<Output = T> + Send + 'static) -> T {
        self.reached_from.spawn(client).await.unwrap()
    }

    /// The endpoint of an agent on this node.
    pub(crate) fn agent(&self, agent: &str) -> String {
        format!("{}/agents/{agent}", self.url)
    }

    /// The program, in the network of this node.
    fn towline(&self) -> Command {
        let Some((namespace, _)) = &self.place else { return Command::new(towline()) };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespace.0]).arg(towline());
        command
    }

    pub(crate) fn start(&self, join: Option<(&str, &str)>) {
        let log = OpenOptions::new().create(true).append(true).open(self.log()).unwrap();
        let mut command = self.towline();
        command.arg("node").arg("-c").arg(self.home.join("towline.yaml")).arg("--exit-with-stdin");
        if let Some((address, token)) = join {
            command.args(["--join", address]).env("TOWLINE_TOKEN", token);
        }
        command.env("TOWLINE_DISK_TROUBLE", self.disk_trouble());
        command.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log);
        *self.process.lock().unwrap() = Some(command.spawn().unwrap());
    }

    /// `SIGKILL`, and the end of the process. One that had ended by itself is noted.
    pub(crate) fn kill(&self) {
        let Some(mut child) = self.process.lock().unwrap().take() else { return };
        if let Some(status) = child.try_wait().unwrap() {
            let text = format!("node {} ended by itself with {status}", self.name);
            self.ended.lock().unwrap().push(text);
            return;
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// `SIGSTOP` and `SIGCONT`.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(child) = self.process.lock().unwrap().as_ref() {
            let pid = Pid::from_child(child);
            kill_process(pid, signal).unwrap();
        }
    }

    fn runs(&self) -> bool {
        let mut process = self.process.lock().unwrap();
        let Some(child) = process.as_mut() else { return false };
        let Some(status) = child.try_wait().unwrap() else { return true };
        *process = None;
        self.ended.lock().unwrap().push(format!("node {} ended by itself with {status}", self.name));
        false
    }

    async fn ready(&self) {
        within(WHOLE_LIMIT, "the first node", async || self.look("/healthz").await).await;
    }

    /// A successful answer of the node; `null` if it is no JSON.
    pub(crate) async fn look(&self, path: &str) -> Option<Value> {
        let url = format!("{}{path}", self.url);
        self.reach(async move {
            let answer = http_client().get(url).timeout(LOOK_LIMIT).send().await.ok()?;
            if !answer.status().is_success() {
                return None;
            }
            Some(answer.json().await.unwrap_or_default())
        })
        .await
    }

    /// Whether the node did what it was asked to.
    async fn post(&self, path: String, body: Value) -> bool {
        let url = format!("{}{path}", self.url);
        self.reach(async move {
            let answer = http_client().post(url).timeout(OPERATE_LIMIT).json(&body).send().await;
            answer.is_ok_and(|answer| answer.status().is_success())
        })
        .await
    }

    /// Makes the disk of the node's log `slow MS` or `full`; none makes it well.
    pub(crate) fn trouble_disk(&self, trouble: Option<&str>) {
        match trouble {
            Some(trouble) => fs::write(self.disk_trouble(), trouble).unwrap(),
            None => fs::remove_file(self.disk_trouble()).unwrap(),
        }
    }

    fn disk_trouble(&self) -> PathBuf {
        self.home.join("disk-trouble")
    }

    fn log(&self) -> PathBuf {
        self.home.join("node.log")
    }
}

impl Drop for LabNode {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A network namespace that this program made; removed when dropped.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Result<Self, String> {
        let name = format!("towline-{}-{name}", std::process::id());
        ip(&["netns", "add", &name])?;
        let made = Self(name);
        ip(&["-n", &made.0, "link", "set", "lo", "up"])?;
        Ok(made)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = ip(&["netns", "del", &self.0]) {
            eprintln!("{error}");
        }
    }
}

/// A namespace with nothing in it but the bridge that joins the others.
fn bridge() -> Result<Namespace, String> {
    let hub = Namespace::new("hub")?;
    ip(&["-n", &hub.0, "link", "add", "bridge", "type", "bridge"])?;
    ip(&["-n", &hub.0, "link", "set", "bridge", "up"])?;
    Ok(hub)
}

fn join_bridge(hub: &Namespace, name: &str, at: usize) -> (Namespace, Ipv4Addr) {
    let address = Ipv4Addr::new(10, 77, 0, u8::try_from(at + 1).unwrap());
    let namespace = Namespace::new(name).unwrap();
    let (own, port) = (&namespace.0, format!("to-{name}"));
    let steps: [&[&str]; 5] = [
        &["-n", &hub.0, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", own],
        &["-n", &hub.0, "link", "set", &port, "master", "bridge"],
        &["-n", &hub.0, "link", "set", &port, "up"],
        &["-n", own, "addr", "add", &format!("{address}/24"), "dev", "eth0"],
        &["-n", own, "link", "set", "eth0", "up"],
    ];
    steps.iter().for_each(|step| ip(step).unwrap());
    (namespace, address)
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let told = |what: String| format!("ip {}: {what}", arguments.join(" "));
    let ran = Command::new("ip").args(arguments).output().map_err(|error| told(error.to_string()))?;
    if ran.status.success() { Ok(()) } else { Err(told(String::from_utf8_lossy(&ran.stderr).trim().to_owned())) }
}

/// A runtime of one thread whose sockets belong to a namespace. It ends when the sender is dropped.
fn runtime_in(namespace: Option<&Namespace>) -> (Handle, oneshot::Sender<()>) {
    let file = namespace.map(|namespace| File::open(Path::new("/run/netns").join(&namespace.0)).unwrap());
    let (give, take) = mpsc::channel();
    let (end, ended) = oneshot::channel();
    std::thread::spawn(move || {
        if let Some(file) = file {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        give.send(runtime.handle().clone()).unwrap();
        let _ = runtime.block_on(ended);
    });
    (take.recv().unwrap(), end)
}

fn said(command: &mut Command) -> String {
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

//! One machine and the process of the node on it: started, killed, stopped and continued, put to sleep, without power.
//!
//! Each life of the process has a runtime of its own, whose clock stands still unless the world lets it run for a tick. To
//! drop the runtime is to kill the process: nothing of it goes on.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tokio::{
    runtime::Runtime,
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::ServiceExt as _;
use towline_cluster::{
    CERTIFICATE_LIFE, CertifiedNode, Cluster, ClusterHandle, ClusterOptions, Identity, PeerIdentity, Registration,
    membership,
};
use towline_core::{AgentSpec, NodeAddresses, NodeId, Placement};

use crate::{ledger::Shared, net, owner, world};

/// What a node tells of how many tasks it runs at the same time.
const CAPACITY: u32 = 64;
/// Name of the cluster.
const CLUSTER: &str = "simulation";
/// The agent that all tasks are for.
pub const AGENT: &str = "worker";

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Killed: what it wrote is with the kernel.
    Killed,
    /// Without power: what was not synced may be lost.
    PowerCut,
}

/// How a process stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Still {
    /// Stopped: its clocks go on.
    Stopped,
    /// Its machine sleeps: the monotonic clock stands still too.
    Asleep,
}

/// A machine.
pub struct Host {
    /// Its number.
    pub number: usize,
    /// Folder of its node, without the log: that is on the simulated disk.
    data: PathBuf,
    process: Option<Process>,
    lives: u32,
    /// What it is to the cluster.
    pub standing: Standing,
    /// The node on it, once it is known.
    pub node: Option<NodeId>,
    /// Whether its log is damaged at the moment.
    pub is_damaged: bool,
    /// How its node began.
    begin: Begin,
}

struct Process {
    runtime: Runtime,
    life: Arc<Life>,
    still: Option<(Still, Duration)>,
}

/// One life of a process, as seen from outside and from inside.
#[derive(Default)]
pub struct Life {
    handle: OnceLock<ClusterHandle>,
    ended: Mutex<Option<String>>,
}

impl Life {
    /// The way into the cluster, once the node has started.
    pub fn handle(&self) -> Option<ClusterHandle> {
        self.handle.get().cloned()
    }

    fn end(&self, reason: String) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    }

    /// Why the process ended by itself, if it did.
    pub fn ended(&self) -> Option<String> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The data folder of a machine.
pub fn folder(machine: usize) -> PathBuf {
    PathBuf::from(format!("node-{}", machine + 1))
}

/// What a machine is to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nothing: no node was ever on it, or all of that is gone.
    Empty,
    /// Its node asks to be a member.
    Joining,
    /// Its node is a member, or is to be one no more and still counts as one.
    Member,
    /// Its node was removed.
    Removed,
}

/// What a node does first.
#[derive(Clone)]
pub enum Begin {
    /// It founds the cluster, unless it has.
    Found,
    /// It joins by a token, at another machine.
    Join(String, usize),
    /// It is a member.
    Again,
}

impl Host {
    /// A machine without a process.
    pub fn new(number: usize) -> Self {
        let (data, standing) = (folder(number), Standing::Empty);
        Self { number, data, process: None, lives: 0, standing, node: None, is_damaged: false, begin: Begin::Again }
    }

    /// Makes a machine without a process one without a node.
    pub fn wipe(&mut self) {
        match std::fs::remove_dir_all(&self.data) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => tracing::error!(%error, "wipe a machine"),
            Ok(()) | Err(_) => {}
        }
        world::with(|world| world.disk(self.number)).wipe();
        (self.standing, self.node, self.begin) = (Standing::Empty, None, Begin::Again);
    }

    /// Starts the process of a node that was on the machine before; one that still asks to be a member asks at `member`.
    pub fn start_again(&mut self, member: usize, shared: &Shared) {
        let begin = match &self.begin {
            Begin::Join(token, _) => Begin::Join(token.clone(), member),
            begin @ (Begin::Found | Begin::Again) => begin.clone(),
        };
        self.start(begin, shared);
    }

    /// Starts a process.
    pub fn start(&mut self, begin: Begin, shared: &Shared) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime without threads needs nothing of the system");
        let base = {
            let _entered = runtime.enter();
            Instant::now()
        };
        let number = self.number;
        world::with(|world| {
            world.boot(number, base);
            world.net.listen(number);
        });
        self.lives += 1;
        self.begin = begin.clone();
        let life = Arc::new(Life::default());
        let node = Node { number, data: self.data.clone(), life: life.clone(), shared: shared.clone() };
        runtime.spawn(node.run(begin));
        self.process = Some(Process { runtime, life, still: None });
    }

    /// Lets the process run for a tick. Returns why it ended by itself, if it did.
    pub fn tick(&mut self) -> Option<String> {
        let process = self.process.as_mut().filter(|process| process.still.is_none())?;
        world::with(|world| world.enter(Some(self.number)));
        process.runtime.block_on(async { sleep(world::TICK).await });
        world::with(|world| world.enter(None));
        process.life.ended()
    }

    /// Ends the process. Returns how many bytes its disk lost.
    pub fn end(&mut self, end: End) -> usize {
        let number = self.number;
        world::with(|world| world.net.stop(number, end == End::PowerCut));
        drop(self.process.take());
        match end {
            End::Killed => 0,
            End::PowerCut => world::with(|world| world.disk(number)).cut_power(),
        }
    }

    /// The process stands still from here on.
    pub fn stand_still(&mut self, still: Still) {
        if let Some(process) = &mut self.process {
            process.still.get_or_insert((still, world::now()));
        }
    }

    /// The process goes on.
    pub fn go_on(&mut self) {
        let Some(process) = &mut self.process else { return };
        let Some((still, since)) = process.still.take() else { return };
        let passed = world::now() - since;
        match still {
            Still::Asleep => world::with(|world| world.wake(self.number, passed)),
            Still::Stopped => {
                let number = self.number;
                world::with(|world| world.enter(Some(number)));
                process.runtime.block_on(async { tokio::time::advance(passed).await });
                world::with(|world| world.enter(None));
            }
        }
    }

    /// Whether a process runs, or could.
    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// How many lives processes had here.
    pub fn lives(&self) -> u32 {
        self.lives
    }

    /// Whether it stands still.
    pub fn is_still(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.still.is_some())
    }

    /// The life of the process that runs.
    pub fn life(&self) -> Option<&Arc<Life>> {
        self.process.as_ref().map(|process| &process.life)
    }

    /// The way into the cluster, if a process runs and has come so far.
    pub fn handle(&self) -> Option<ClusterHandle> {
        self.life()?.handle()
    }

    /// Has the process do something beside. The future must look at no other machine.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(process) = &self.process {
            process.runtime.spawn(task);
        }
    }
}

/// The inside of a process.
struct Node {
    number: usize,
    data: PathBuf,
    life: Arc<Life>,
    shared: Shared,
}

impl Node {
    async fn run(self, begin: Begin) {
        if let Err(error) = Box::pin(self.live(begin)).await {
            self.life.end(error);
        }
    }

    async fn live(&self, begin: Begin) -> Result<(), String> {
        self.identity(begin).await?;
        let options = ClusterOptions {
            data: self.data.clone(),
            addresses: self.addresses(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            certificate_life: CERTIFICATE_LIFE,
        };
        let cluster = Cluster::start(options).await.map_err(chain)?;
        let mut serving = JoinSet::new();
        serving.spawn(serve(cluster.peer_routes()));
        let handle = cluster.handle();
        let worker = AgentSpec {
            name: AGENT.parse().map_err(chain)?,
            description: "Does what its message says.".to_owned(),
            placement: Placement::EveryNode,
            tags: Vec::new(),
            queue: None,
            labels: towline_core::Labels::new(),
        };
        if self.life.handle.set(handle.clone()).is_err() {
            return Err("a life has one node".to_owned());
        }
        serving.spawn(owner::run(self.number, handle.clone(), self.shared.clone()));
        let registration =
            Registration { capacity: CAPACITY, agents: vec![worker], labels: towline_core::Labels::new() };
        if let Err(error) = handle.register(registration).await {
            tracing::info!(%error, "registers later");
        }
        Err(cluster.fatal().await)
    }

    async fn identity(&self, begin: Begin) -> Result<Identity, String> {
        let name = format!("node-{}", self.number + 1);
        if let Some(identity) = membership::identity(&self.data).map_err(chain)? {
            return Ok(identity);
        }
        match begin {
            Begin::Found => membership::found(&self.data, CLUSTER, &name, self.addresses()).map_err(chain),
            Begin::Join(token, member) => {
                let member = net::address_of(member);
                membership::join(&self.data, &member, &token, &name, self.addresses()).await.map_err(chain)
            }
            Begin::Again => Err("the folder holds no identity".to_owned()),
        }
    }

    fn addresses(&self) -> NodeAddresses {
        let peer = net::address_of(self.number);
        NodeAddresses { http: format!("http://{peer}"), peer }
    }
}

fn chain(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Answers what other nodes ask. Who they are is known from where they are: connections are not encrypted here.
async fn serve(routes: axum::Router) {
    let mut connections = JoinSet::new();
    loop {
        let arrival = net::accept().await;
        let identity = PeerIdentity(certified(arrival.from));
        connections.spawn(serve_connection(arrival.end, identity, routes.clone()));
        while connections.try_join_next().is_some() {}
    }
}

/// What the certificate says that lies on a machine.
fn certified(machine: usize) -> Option<CertifiedNode> {
    let file = folder(machine).join("tls/node.pem");
    membership::certified_node(&CertificateDer::from_pem_file(file).ok()?)
}

async fn serve_connection(end: net::End, identity: PeerIdentity, routes: axum::Router) {
    let service = routes.map_request(move |mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(identity.clone());
        request.map(axum::body::Body::new)
    });
    let mut connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    connection.timer(TokioTimer::new());
    if let Err(error) = connection.serve_connection(TokioIo::new(end), TowerToHyperService::new(service)).await {
        tracing::trace!(%error, "connection ends");
    }
}

//! Nodes of one cluster in this process, with real gRPC over mutual TLS on loopback.
#![allow(dead_code, reason = "each test binary uses its own part of this module")]

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use futures::StreamExt as _;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep},
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;
use towline_cluster::{
    CERTIFICATE_LIFE, Cluster, ClusterHandle, ClusterOptions, PeerIdentity, ProposeError, Registration, membership,
};
use towline_core::{
    AgentSpec, Command, Message, MessageId, NodeAddresses, NodeId, NodeRole, Part, Placement, Principal, Proposal,
    Role, State, Submission, TaskId, TraceContext,
};
use uuid::Uuid;

/// No wait in a test is longer.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Some nodes and their data folders.
pub struct TestCluster {
    pub nodes: Vec<TestNode>,
    dir: TempDir,
    /// How long the certificates are good that the nodes sign.
    certificate_life: Duration,
}

/// A node that runs, or its data folder while it does not.
pub struct TestNode {
    data: PathBuf,
    addresses: NodeAddresses,
    certificate_life: Duration,
    running: Option<Running>,
}

struct Running {
    cluster: Cluster,
    server: JoinHandle<()>,
}

impl TestCluster {
    /// A founded cluster of one node, registered, whose certificates are good for so long.
    pub async fn found(certificate_life: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (data, (listener, addresses)) = (dir.path().join("1"), listen().await);
        membership::found(&data, "test", "node-1", addresses.clone()).unwrap();
        let mut node = TestNode { data, addresses, certificate_life, running: None };
        node.start_on(listener).await;
        node.register().await;
        Self { nodes: vec![node], dir, certificate_life }
    }

    /// A cluster of several voters, all registered.
    pub async fn of(count: usize) -> Self {
        let mut cluster = Self::found(CERTIFICATE_LIFE).await;
        for _ in 1..count {
            cluster.join(0, NodeRole::Voter).await;
        }
        cluster.wait_for_voters(count).await;
        cluster
    }

    /// Lets a further node join at the one at `position`, and registers it.
    pub async fn join(&mut self, position: usize, role: NodeRole) {
        let name = format!("node-{}", self.nodes.len() + 1);
        let (data, (listener, addresses)) = (self.dir.path().join(&name), listen().await);
        let member = &self.nodes[position];
        let token = member.handle().mint_token(role, Duration::from_secs(600)).await.unwrap();
        membership::join(&data, &member.addresses.peer, &token, &name, addresses.clone()).await.unwrap();
        let mut node = TestNode { data, addresses, certificate_life: self.certificate_life, running: None };
        node.start_on(listener).await;
        node.register().await;
        self.nodes.push(node);
    }

    /// Lets many workers join at the nodes that run, some at a time, and then starts and registers all of them.
    pub async fn join_workers(&mut self, count: usize) {
        const JOINING: usize = 4;
        const STARTING: usize = 16;
        let members: Vec<(ClusterHandle, String)> =
            self.nodes.iter().map(|node| (node.handle(), node.addresses.peer.clone())).collect();
        let first = self.nodes.len() + 1;
        let joins = (0..count).map(|number| {
            let (handle, member) = members[number % members.len()].clone();
            let name = format!("node-{}", first + number);
            let (data, certificate_life) = (self.dir.path().join(&name), self.certificate_life);
            async move {
                let (listener, addresses) = listen().await;
                let token = handle.mint_token(NodeRole::Worker, Duration::from_secs(600)).await.unwrap();
                let (folder, reached) = (data.clone(), addresses.clone());
                // A join syncs its files.
                let join = move || {
                    let join = membership::join(&folder, &member, &token, &name, reached);
                    tokio::runtime::Handle::current().block_on(join)
                };
                tokio::task::spawn_blocking(join).await.unwrap().unwrap();
                (TestNode { data, addresses, certificate_life, running: None }, listener)
            }
        });
        let joined: Vec<(TestNode, TcpListener)> = futures::stream::iter(joins).buffered(JOINING).collect().await;
        let starts = joined.into_iter().map(|(mut node, listener)| async move {
            node.start_on(listener).await;
            node.try_register().await;
            node
        });
        let started: Vec<TestNode> = futures::stream::iter(starts).buffered(STARTING).collect().await;
        self.nodes.extend(started);
    }

    /// Waits until so many nodes vote, as every running node sees it.
    pub async fn wait_for_voters(&self, count: usize) {
        for handle in self.running() {
            let voting = || handle.status().members.iter().filter(|member| member.voting).count();
            wait_until(&format!("{count} voters"), || voting() == count).await;
        }
    }

    /// The position of the node that leads, once all running nodes agree on one that runs.
    pub async fn leader(&self) -> usize {
        let agreed = || {
            let mut leaders = self.running().map(|handle| handle.status().leader);
            let first = leaders.next()??;
            let running = self.running().any(|handle| handle.node_id() == first);
            (running && leaders.all(|leader| leader == Some(first))).then_some(first)
        };
        wait_until("a leader", || agreed().is_some()).await;
        let leader = agreed();
        let position = self.nodes.iter().position(|node| node.running.is_some() && Some(node.id()) == leader);
        position.unwrap_or(0)
    }

    pub fn running(&self) -> impl Iterator<Item = ClusterHandle> {
        self.nodes.iter().filter(|node| node.running.is_some()).map(TestNode::handle)
    }

    /// Waits until all running nodes have applied the same, and returns it.
    #[allow(dead_code, reason = "not every suite compares states")]
    pub async fn settled_state(&self) -> State {
        let states = || self.running().map(|handle| handle.local(State::clone)).collect::<Vec<_>>();
        wait_until("equal states", || states().windows(2).all(|pair| pair[0] == pair[1])).await;
        self.running().next().unwrap().local(State::clone)
    }

    pub async fn shutdown(self) {
        for mut node in self.nodes {
            node.stop().await;
        }
    }
}

impl TestNode {
    pub fn handle(&self) -> ClusterHandle {
        self.cluster().handle()
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub fn cluster(&self) -> &Cluster {
        &self.running.as_ref().expect("the node runs").cluster
    }

    pub fn id(&self) -> NodeId {
        self.handle().node_id()
    }

    /// Starts the node again on its data folder and address.
    pub async fn start(&mut self) {
        let listener = TcpListener::bind(&self.addresses.peer).await.unwrap();
        self.start_on(listener).await;
    }

    async fn start_on(&mut self, listener: TcpListener) {
        let (data, addresses) = (self.data.clone(), self.addresses.clone());
        let certificate_life = self.certificate_life;
        let options = ClusterOptions { data, addresses, version: "0.1.0".into(), certificate_life };
        let cluster = Cluster::start(options).await.unwrap();
        let server = tokio::spawn(serve(listener, cluster.peer_tls(), cluster.peer_routes()));
        self.running = Some(Running { cluster, server });
    }

    /// Registers, if that is answered in time; else the node does it by itself.
    pub async fn try_register(&self) {
        let registered = self.handle().register(registration()).await;
        assert!(!matches!(registered, Err(ProposeError::Rejected(_))), "{registered:?}");
    }

    pub async fn register(&self) {
        self.handle().register(registration()).await.unwrap();
    }

    /// `host:port` of its peer listener.
    pub fn peer(&self) -> &str {
        &self.addresses.peer
    }

    /// Its data folder.
    pub fn data(&self) -> &std::path::Path {
        &self.data
    }

    /// Stops without a word: connections break, leases and leadership are not given up.
    pub async fn stop(&mut self) {
        let Some(Running { cluster, server }) = self.running.take() else { return };
        server.abort();
        cluster.shutdown().await;
    }
}

fn registration() -> Registration {
    let reader = AgentSpec {
        name: "reader".parse().unwrap(),
        description: "Reads one file.".into(),
        placement: Placement::EveryNode,
        tags: Vec::new(),
        queue: None,
        labels: towline_core::Labels::new(),
    };
    Registration { capacity: 64, agents: vec![reader], labels: towline_core::Labels::new() }
}

async fn listen() -> (TcpListener, NodeAddresses) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = listener.local_addr().unwrap().to_string();
    (listener, NodeAddresses { http: format!("http://{peer}"), peer })
}

async fn serve(listener: TcpListener, tls: Arc<rustls::ServerConfig>, routes: axum::Router) {
    let acceptor = TlsAcceptor::from(tls);
    let mut connections = JoinSet::new();
    while let Ok((tcp, _)) = listener.accept().await {
        connections.spawn(serve_connection(acceptor.clone(), tcp, routes.clone()));
    }
}

async fn serve_connection(acceptor: TlsAcceptor, tcp: TcpStream, routes: axum::Router) {
    tcp.set_nodelay(true).unwrap();
    let Ok(tls) = acceptor.accept(tcp).await else { return };
    let certificate = tls.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let identity = PeerIdentity(certificate.and_then(membership::certified_node));
    let service = routes.map_request(move |mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(identity.clone());
        request.map(axum::body::Body::new)
    });
    let connection = auto::Builder::new(TokioExecutor::new());
    // A connection that breaks is what these tests are about.
    drop(connection.serve_connection(TokioIo::new(tls), TowerToHyperService::new(service)).await);
}

/// Waits until something is so.
pub async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// A new task of the agent `reader`.
pub fn submit(task: TaskId, prefer: NodeId) -> Proposal {
    let message = Message {
        message_id: MessageId::try_from(format!("message of {task}")).unwrap(),
        context_id: None,
        task_id: None,
        role: Role::User,
        parts: vec![Part::text("read a file")],
        metadata: BTreeMap::new(),
        extensions: Vec::new(),
        reference_task_ids: Vec::new(),
    };
    let submission = Submission {
        task,
        fresh_context: "context-1".parse().unwrap(),
        agent: "reader".parse().unwrap(),
        message,
        prefer,
        parent: None,
        hop: 0,
        deadline_ms: None,
        trace: TraceContext { trace_id: 1, span_id: 2, sampled: true },
        most_open: None,
        labels: towline_core::Labels::new(),
    };
    Proposal { by: Principal::Operator, command: Command::Submit(Box::new(submission)) }
}

pub fn new_task() -> TaskId {
    TaskId::from_uuid(Uuid::now_v7())
}

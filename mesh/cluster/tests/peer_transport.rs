//! Nodes in one process that found, join and lose each other over real gRPC with mutual TLS on loopback.
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use towline_cluster::{
    CERTIFICATE_LIFE, Cluster, ClusterError, ClusterHandle, ClusterOptions, PeerIdentity, ProposeError, Registration,
    membership,
};
use towline_core::{
    AgentName, AgentSpec, Command, ContextId, Effect, Message, MessageId, NodeAddresses, NodeId, NodeRole, Part,
    Placement, Principal, Proposal, Rejection, Reply, Role, Submission, TaskId, TraceContext,
};

/// A wait of a test: far above what is measured, since machines are busy.
const PATIENCE: Duration = Duration::from_secs(30);
/// A leader is replaced within this: lease and one election take about a second.
const FAILOVER: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_writes_and_reads_for_the_whole_cluster() {
    let mut mesh = Mesh::of_three().await;
    let (first, second, third) = (mesh.handle(0), mesh.handle(1), mesh.handle(2));

    let leader = first.status().leader.expect("a leader is known");
    let follower = if leader == second.node_id() { third.clone() } else { second.clone() };
    let task = submit(&follower, "t-1").await;
    assert!(follower.local(|state| state.task(task).is_some()), "the proposer reads what it wrote");
    for handle in [&first, &second, &third] {
        assert!(handle.read(|state| state.task(task).is_some()).await.unwrap(), "node {}", handle.node_id());
    }

    let again = submit_as(&third, "t-1", task).await;
    assert_eq!(again.unwrap(), Reply::Submitted { task, created: false });
    assert_eq!(first.status().quorum, "3 voters, quorum 2, can lose 1 more");
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_calls_another_over_http_by_the_name_in_its_certificate() {
    let mut mesh = Mesh::of_three().await;
    let (first, second) = (mesh.handle(0), mesh.handle(1));
    let url = first.peer_url(second.node_id()).unwrap();
    let response = first.peer_http().get(format!("{url}/hello")).send().await.unwrap();
    assert_eq!(response.text().await.unwrap(), format!("hello {:?}", Some(first.node_id())));

    let wrong = url.replace(&format!("node-{}", second.node_id()), "node-999");
    assert!(first.peer_http().get(wrong).send().await.is_err());
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_dies_is_replaced_and_its_tasks_move_on() {
    let mut mesh = Mesh::of_three().await;
    let dead = mesh.leader_at().await;
    let dead_id = mesh.handle(dead).node_id();
    let task = submit(&mesh.handle(dead), "t-1").await;
    let epoch = mesh.handle(dead).local(|state| state.task(task).and_then(|task| task.lease.clone())).unwrap().epoch;

    let killed = Instant::now();
    mesh.kill(dead).await;
    let alive = mesh.handle((dead + 1) % 3);
    let other = submit(&alive, "t-2").await;
    assert!(killed.elapsed() < FAILOVER, "writes went on after {:?}", killed.elapsed());
    assert!(alive.read(|state| state.task(other).is_some()).await.unwrap());

    let lease = wait_for("the task has another owner", &alive, |state| {
        let lease = state.task(task)?.lease.clone()?;
        (lease.node != dead_id).then_some(lease)
    })
    .await;
    println!("adopted {:?} after the kill of the leader", killed.elapsed());
    assert!(lease.epoch > epoch);
    assert!(killed.elapsed() < FAILOVER, "adopted after {:?}", killed.elapsed());
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_dies_loses_its_tasks_soon() {
    let mut mesh = Mesh::of_three().await;
    let dead = (mesh.leader_at().await + 1) % 3;
    let dead_id = mesh.handle(dead).node_id();
    let task = submit(&mesh.handle(dead), "t-1").await;
    let killed = Instant::now();
    mesh.kill(dead).await;
    let alive = mesh.handle((dead + 1) % 3);
    wait_for("the task has another owner", &alive, |state| {
        state.task(task)?.lease.clone().filter(|lease| lease.node != dead_id)
    })
    .await;
    println!("adopted {:?} after the kill of a follower", killed.elapsed());
    assert!(killed.elapsed() < FAILOVER, "adopted after {:?}", killed.elapsed());
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_cut_off_stops_before_its_task_moves_be_it_leader_or_not() {
    for owner_leads in [true, false] {
        let mut mesh = Mesh::of_three().await;
        let leader = mesh.leader_at().await;
        let owner_at = if owner_leads { leader } else { (leader + 1) % 3 };
        let owner = mesh.handle(owner_at);
        let task = submit(&owner, "t-1").await;
        let lease = owner.local(|state| state.task(task).and_then(|task| task.lease.clone())).unwrap();
        assert_eq!(lease.node, owner.node_id());

        let mut session = owner.session();
        let stopped = tokio::spawn(async move {
            session.wait_for(|acting| !*acting).await.unwrap();
            Instant::now()
        });
        let watcher = mesh.handle((owner_at + 1) % 3);
        let mut effects = watcher.effects();
        mesh.cut_off(owner.node_id());
        let adopted = timeout(PATIENCE, async {
            loop {
                match effects.recv().await.unwrap() {
                    Effect::Start { task: started, lease: next } if started == task && next.epoch > lease.epoch => {
                        break (Instant::now(), next);
                    }
                    Effect::Start { .. }
                    | Effect::Stop { .. }
                    | Effect::Changed { .. }
                    | Effect::PlacementChanged
                    | Effect::SessionsEnded => {}
                    Effect::Webhook { .. } | Effect::Triggers => {}
                }
            }
        });
        let (moved_at, adopted) = adopted.await.unwrap();
        let stopped_at = timeout(PATIENCE, stopped).await.unwrap().unwrap();
        assert!(stopped_at < moved_at, "owner stopped {:?} after the task moved", stopped_at - moved_at);
        assert!(!owner.may_act());
        assert_ne!(adopted.node, owner.node_id());

        mesh.heal();
        let mut session = owner.session();
        timeout(PATIENCE, session.wait_for(|acting| *acting)).await.unwrap().unwrap();
        mesh.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_resigns_hands_over_at_once() {
    let mut mesh = Mesh::of_three().await;
    let leader = mesh.leader_at().await;
    let leaving = mesh.handle(leader);
    let task = submit(&leaving, "t-1").await;
    let began = Instant::now();
    leaving.resign().await.unwrap();
    let alive = mesh.handle((leader + 1) % 3);
    wait_for("the task has another owner", &alive, |state| {
        state.task(task)?.lease.clone().filter(|lease| lease.node != leaving.node_id())
    })
    .await;
    let other = submit(&alive, "t-2").await;
    assert!(alive.read(|state| state.task(other).is_some()).await.unwrap());
    assert_ne!(alive.status().leader, Some(leaving.node_id()));
    println!("resigned within {:?}", began.elapsed());
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_restart_with_what_they_knew() {
    let mut mesh = Mesh::of_three().await;
    let task = submit(&mesh.handle(1), "t-1").await;
    let ids: Vec<NodeId> = (0..3).map(|at| mesh.handle(at).node_id()).collect();
    for at in 0..3 {
        mesh.kill(at).await;
    }
    for at in 0..3 {
        mesh.restart(at).await;
    }
    mesh.all_register().await;
    for (at, id) in ids.into_iter().enumerate() {
        let handle = mesh.handle(at);
        assert_eq!(handle.node_id(), id);
        assert!(handle.read(|state| state.task(task).is_some()).await.unwrap(), "node {id}");
    }
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_a_proposal_is_never_reported_as_failed() {
    let mut mesh = Mesh::of_three().await;
    mesh.kill(1).await;
    mesh.kill(2).await;
    let alone = mesh.handle(0);
    let began = Instant::now();
    let outcome = submit_as(&alone, "t-1", fresh_task()).await;
    let waited = began.elapsed();
    assert!(
        matches!(outcome, Err(ProposeError::Unavailable { .. } | ProposeError::Unknown { .. })),
        "answered {outcome:?}"
    );
    assert!(waited < Duration::from_secs(7), "answered after {waited:?}");
    alone.read(|_| ()).await.unwrap_err();
    assert!(!alone.may_act(), "a leader without quorum loses its own session");
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_token_works_once_and_not_after_its_time() {
    let mut mesh = Mesh::founded("prod").await;
    let first = mesh.handle(0);
    let token = first.mint_token(NodeRole::Voter, Duration::from_secs(600)).await.unwrap();
    let joined = mesh.join(&token).await.unwrap();
    assert_eq!(mesh.handle(joined).cluster_name(), "prod");
    let used = refusal(mesh.try_join(&token).await);
    assert!(used.contains("was used"), "{used}");

    let short = first.mint_token(NodeRole::Voter, Duration::from_millis(1)).await.unwrap();
    sleep(Duration::from_millis(20)).await;
    let expired = refusal(mesh.try_join(&short).await);
    assert!(expired.contains("expired"), "{expired}");

    let mut other = Mesh::founded("prod").await;
    let foreign = other.handle(0).mint_token(NodeRole::Voter, Duration::from_secs(600)).await.unwrap();
    let refused = refusal(mesh.try_join(&foreign).await);
    assert!(refused.contains("not a member of the cluster"), "{refused}");
    other.stop().await;
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_at_any_member_finds_the_one_that_signs() {
    let mut mesh = Mesh::of_three().await;
    let token = mesh.handle(2).mint_token(NodeRole::Learner, Duration::from_secs(600)).await.unwrap();
    let data = tempfile::tempdir().unwrap();
    let at = mesh.nodes[2].address.to_string();
    let addresses = addresses(free_port());
    let identity = membership::join(data.path(), &at, &token, "late", addresses).await.unwrap();
    assert!(mesh.handle(0).read(|state| state.node(identity.node).is_some()).await.unwrap());
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_receives_the_log_and_does_not_vote() {
    let mut mesh = Mesh::founded("prod").await;
    let token = mesh.handle(0).mint_token(NodeRole::Learner, Duration::from_secs(600)).await.unwrap();
    let at = mesh.join(&token).await.unwrap();
    mesh.all_register().await;
    let learner = mesh.handle(at);
    let task = submit(&learner, "t-1").await;
    assert!(learner.read(|state| state.task(task).is_some()).await.unwrap());
    assert_eq!(mesh.handle(0).status().quorum, "1 voter, quorum 1, can lose 0 more");
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_joins_behind_a_purged_log_receives_a_snapshot() {
    let mut mesh = Mesh::founded("prod").await;
    let first = mesh.handle(0);
    let mut tasks = Vec::new();
    for number in 0..5 {
        tasks.push(submit_text(&first, &format!("t-{number}"), &"x".repeat(1024 * 1024)).await.unwrap());
    }
    first.compact().await.unwrap();
    let token = first.mint_token(NodeRole::Voter, Duration::from_secs(600)).await.unwrap();
    let at = mesh.join(&token).await.unwrap();
    mesh.all_register().await;
    let late = mesh.handle(at);
    let known = late.read(|state| tasks.iter().filter(|task| state.task(**task).is_some()).count()).await.unwrap();
    assert_eq!(known, tasks.len());
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_message_reaches_every_node_and_a_larger_one_is_refused() {
    let mut mesh = Mesh::of_three().await;
    let largest = "x".repeat(towline_core::limits::MAX_CONTENT_BYTES);
    for at in 0..3 {
        let task = submit_text(&mesh.handle(at), &format!("t-{at}"), &largest).await.unwrap();
        for reader in 0..3 {
            assert!(mesh.handle(reader).read(|state| state.task(task).is_some()).await.unwrap());
        }
    }
    for (message, length) in [("above", largest.len() + 1), ("far-above", 5 * largest.len())] {
        let refused = submit_text(&mesh.handle(1), message, &"x".repeat(length)).await;
        assert!(matches!(refused, Err(ProposeError::Rejected(Rejection::TooLarge { .. }))), "{message}");
    }
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_members_are_heard() {
    let mut mesh = Mesh::founded("prod").await;
    let address = mesh.nodes[0].address;
    let authority = CertificateDer::from_pem_file(mesh.nodes[0].data.path().join("tls/authority.pem")).unwrap();

    let nobody = tls(&authority, None);
    assert_eq!(grpc_status(nobody, address, "/towline.v1.Peer/Probe").await.unwrap(), Some("16".to_owned()));
    let nobody = tls(&authority, None);
    assert_eq!(grpc_status(nobody, address, "/towline.v1.Raft/AppendEntries").await.unwrap(), Some("16".to_owned()));

    let mut other = Mesh::founded("prod").await;
    let foreigner = tls(&authority, Some(other.nodes[0].data.path()));
    assert!(grpc_status(foreigner, address, "/towline.v1.Peer/Probe").await.is_err());
    other.stop().await;
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_folder_runs_one_node_at_a_time() {
    let mut mesh = Mesh::founded("prod").await;
    let node = &mesh.nodes[0];
    let second = Cluster::start(options(node.data.path(), node.address)).await;
    assert!(matches!(second, Err(ClusterError::Locked { .. })));
    mesh.stop().await;
}

// Helpers

static NEXT_PORT: AtomicU16 = AtomicU16::new(0);

/// A port below the range that the system hands out by itself, so that a node finds it free again after a restart.
fn free_port() -> SocketAddr {
    loop {
        let next = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + (u32::from(next) + std::process::id() * 37) % 12_000;
        let address = SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).unwrap()));
        if std::net::TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

fn addresses(address: SocketAddr) -> NodeAddresses {
    NodeAddresses { http: format!("http://{address}"), peer: address.to_string() }
}

fn options(data: &Path, address: SocketAddr) -> ClusterOptions {
    let (data, version) = (data.to_owned(), "test".to_owned());
    ClusterOptions { data, addresses: addresses(address), version, certificate_life: CERTIFICATE_LIFE }
}

fn registration() -> Registration {
    let agent = AgentSpec {
        name: "reader".parse().unwrap(),
        description: String::new(),
        placement: Placement::EveryNode,
        tags: Vec::new(),
        queue: None,
        labels: towline_core::Labels::new(),
    };
    Registration { capacity: 8, agents: vec![agent], labels: towline_core::Labels::new() }
}

fn fresh_task() -> TaskId {
    TaskId::from_uuid(uuid::Uuid::now_v7())
}

async fn submit(handle: &ClusterHandle, message: &str) -> TaskId {
    let task = fresh_task();
    let reply = submit_as(handle, message, task).await.unwrap();
    assert!(matches!(reply, Reply::Submitted { task: made, .. } if made == task), "{reply:?}");
    task
}

async fn submit_as(handle: &ClusterHandle, message: &str, task: TaskId) -> Result<Reply, ProposeError> {
    propose_task(handle, message, "read it", task).await
}

async fn submit_text(handle: &ClusterHandle, message: &str, text: &str) -> Result<TaskId, ProposeError> {
    let task = fresh_task();
    propose_task(handle, message, text, task).await.map(|_| task)
}

async fn propose_task(handle: &ClusterHandle, message: &str, text: &str, task: TaskId) -> Result<Reply, ProposeError> {
    let agent: AgentName = "reader".parse().unwrap();
    let message_id: MessageId = message.parse().unwrap();
    let fresh_context: ContextId = "c".parse().unwrap();
    let message = Message {
        message_id,
        context_id: None,
        task_id: None,
        role: Role::User,
        parts: vec![Part::text(text)],
        metadata: Default::default(),
        extensions: Vec::new(),
        reference_task_ids: Vec::new(),
    };
    let trace = TraceContext { trace_id: 1, span_id: 1, sampled: false };
    let submission = Submission {
        task,
        fresh_context,
        agent,
        message,
        prefer: handle.node_id(),
        parent: None,
        hop: 0,
        deadline_ms: None,
        trace,
        most_open: None,
        labels: towline_core::Labels::new(),
    };
    let command = Command::Submit(Box::new(submission));
    handle.propose(Proposal { by: Principal::Operator, command }, Some(&trace)).await
}

fn refusal(joined: Result<impl std::fmt::Debug, ClusterError>) -> String {
    joined.unwrap_err().to_string()
}

async fn wait_for<R>(what: &str, handle: &ClusterHandle, f: impl Fn(&towline_core::State) -> Option<R>) -> R {
    let began = Instant::now();
    loop {
        if let Some(found) = handle.local(&f) {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}; {:?}", handle.status());
        sleep(Duration::from_millis(10)).await;
    }
}

/// Which nodes are cut off from all others.
#[derive(Default)]
struct Net {
    cut: Mutex<BTreeSet<NodeId>>,
}

impl Net {
    fn passes(&self, a: NodeId, b: Option<NodeId>) -> bool {
        let cut = self.cut.lock().unwrap();
        !cut.contains(&a) && b.is_none_or(|b| !cut.contains(&b))
    }
}

struct TestNode {
    data: TempDir,
    address: SocketAddr,
    handle: ClusterHandle,
    running: Option<Running>,
}

struct Running {
    cluster: Cluster,
    server: tokio::task::JoinHandle<()>,
}

struct Mesh {
    net: Arc<Net>,
    nodes: Vec<TestNode>,
}

impl Mesh {
    async fn founded(name: &str) -> Self {
        let mut mesh = Self { net: Arc::default(), nodes: Vec::new() };
        let data = tempfile::tempdir().unwrap();
        let address = free_port();
        membership::found(data.path(), name, "n1", addresses(address)).unwrap();
        mesh.start(data, address).await;
        mesh.all_register().await;
        mesh
    }

    async fn of_three() -> Self {
        let mut mesh = Self::founded("prod").await;
        for _ in 0..2 {
            let token = mesh.handle(0).mint_token(NodeRole::Voter, Duration::from_secs(600)).await.unwrap();
            mesh.join(&token).await.unwrap();
        }
        mesh.all_register().await;
        let began = Instant::now();
        while mesh.handle(0).status().members.iter().filter(|member| member.voting).count() < 3 {
            assert!(began.elapsed() < PATIENCE, "not all vote: {:?}", mesh.handle(0).status());
            sleep(Duration::from_millis(20)).await;
        }
        mesh
    }

    fn handle(&self, at: usize) -> ClusterHandle {
        self.nodes[at].handle.clone()
    }

    async fn try_join(&self, token: &str) -> Result<(TempDir, SocketAddr), ClusterError> {
        let data = tempfile::tempdir().unwrap();
        let address = free_port();
        let name = format!("n{}", self.nodes.len() + 1);
        let at = self.nodes[0].address.to_string();
        membership::join(data.path(), &at, token, &name, addresses(address)).await?;
        Ok((data, address))
    }

    async fn join(&mut self, token: &str) -> Result<usize, ClusterError> {
        let (data, address) = self.try_join(token).await?;
        self.start(data, address).await;
        Ok(self.nodes.len() - 1)
    }

    async fn start(&mut self, data: TempDir, address: SocketAddr) {
        let (handle, running) = run(&self.net, data.path(), address).await;
        self.nodes.push(TestNode { data, address, handle, running: Some(running) });
    }

    async fn restart(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let (handle, running) = run(&self.net, node.data.path(), node.address).await;
        node.handle = handle;
        node.running = Some(running);
    }

    async fn all_register(&self) {
        let up = self.nodes.iter().filter(|node| node.running.is_some());
        for node in up {
            let began = Instant::now();
            while let Err(error) = node.handle.register(registration()).await {
                assert!(began.elapsed() < PATIENCE, "register node {}: {error}", node.handle.node_id());
            }
        }
    }

    async fn leader_at(&self) -> usize {
        let began = Instant::now();
        loop {
            let leader = self.nodes[0].handle.status().leader;
            if let Some(at) = self.nodes.iter().position(|node| Some(node.handle.node_id()) == leader) {
                return at;
            }
            assert!(began.elapsed() < PATIENCE, "no leader");
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn cut_off(&self, node: NodeId) {
        self.net.cut.lock().unwrap().insert(node);
    }

    fn heal(&self) {
        self.net.cut.lock().unwrap().clear();
    }

    /// Stops a node without a word to the others.
    async fn kill(&mut self, at: usize) {
        if let Some(Running { cluster, server }) = self.nodes[at].running.take() {
            server.abort();
            let _ = server.await;
            timeout(PATIENCE, cluster.shutdown()).await.unwrap();
        }
    }

    async fn stop(&mut self) {
        for at in 0..self.nodes.len() {
            self.kill(at).await;
        }
    }
}

async fn run(net: &Arc<Net>, data: &Path, address: SocketAddr) -> (ClusterHandle, Running) {
    let cluster = Cluster::start(options(data, address)).await.unwrap();
    let handle = cluster.handle();
    let hello = axum::routing::get(|axum::Extension(PeerIdentity(caller)): axum::Extension<PeerIdentity>| async move {
        format!("hello {:?}", caller.map(|caller| caller.node))
    });
    let router = cluster.peer_routes().route("/hello", hello);
    let listener = TcpListener::bind(address).await.unwrap();
    let acceptor = TlsAcceptor::from(cluster.peer_tls());
    let server = tokio::spawn(serve(listener, acceptor, router, Arc::clone(net), handle.node_id()));
    (handle, Running { cluster, server })
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, router: axum::Router, net: Arc<Net>, node: NodeId) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (acceptor, router, net) = (acceptor.clone(), router.clone(), Arc::clone(&net));
        connections.spawn(async move { serve_connection(stream, acceptor, router, net, node).await });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    router: axum::Router,
    net: Arc<Net>,
    node: NodeId,
) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let stream = acceptor.accept(stream).await.ok()?;
    let caller = stream.get_ref().1.peer_certificates().and_then(|chain| membership::certified_node(chain.first()?));
    let node_id = caller.as_ref().map(|caller| caller.node);
    let router = router.layer(axum::Extension(PeerIdentity(caller)));
    let builder = auto::Builder::new(TokioExecutor::new());
    let serving = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let cut = async {
        while net.passes(node, node_id) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    // In this order: a connection that is cut must not get a request through while it is closed.
    tokio::select! {
        biased;
        () = cut => {}
        _ = serving => {}
    }
    Some(())
}

fn tls(authority: &CertificateDer<'static>, client: Option<&Path>) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match client {
        None => builder.with_no_client_auth(),
        Some(data) => {
            let certificate = CertificateDer::from_pem_file(data.join("tls/node.pem")).unwrap();
            let key = PrivateKeyDer::from_pem_file(data.join("tls/node.key")).unwrap();
            builder.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

async fn grpc_status(
    tls: rustls::ClientConfig,
    address: SocketAddr,
    path: &str,
) -> Result<Option<String>, reqwest::Error> {
    let name = "member.towline.internal";
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .no_proxy()
        .resolve(name, address)
        .timeout(Duration::from_secs(5))
        .build()?;
    let url = format!("https://{name}:{}{path}", address.port());
    let response = client.post(url).header("content-type", "application/grpc").send().await?;
    Ok(response.headers().get("grpc-status").map(|status| status.to_str().unwrap().to_owned()))
}

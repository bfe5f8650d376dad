//! How a node starts, and stops in the reverse order.
//!
//! ```text
//! logs ▸ config ▸ ports ▸ identity ▸ traces ▸ cluster ▸ listeners ▸ mesh ▸ register ▸ ready
//!      ◂───────────── traces ◂ cluster ◂ listeners ◂ mesh ◂ resign ◂ settle ◂ tasks ◂ streams ◂ signal
//! ```
//! Up to the ports nothing is touched: a wrong file or a taken port leaves no trace. Traces outlive the runtime, so that
//! the last spans are exported.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::middleware;
use tokio::{net::TcpListener, sync::Mutex, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use towline_actors::{HandOver, Mesh, MeshConfig, MeshError, PushConfig};
use towline_cluster::{
    Cluster, ClusterError, ClusterHandle, ClusterOptions, ProposeError, Registration,
    membership::{self, Identity, Joining},
};
use towline_core::{AgentName, NodeAddresses, Rejection};

use crate::{
    a2a::{
        self, A2aSettings, CardSigner, Door, listener,
        unix::{self, UnixDoor},
    },
    a2e::Bridge,
    api::{self, Api},
    auth::{Auth, PublicTls, Sessions},
    changes,
    config::NodeConfig,
    descriptors,
    error::{CliError, chain},
    mcp_server::McpServer,
    metrics,
    peer_server::PeerTls,
    sign_in::{self, SignIns},
    signals, telemetry,
};

/// Pause between two tries to register: an election takes about a second.
const REGISTER_PAUSE: Duration = Duration::from_millis(300);
/// What a stop keeps of its time for what follows when the tasks are handed over, but never more than half.
const STOP_RESERVE: Duration = Duration::from_secs(10);
/// Each step of a stop may take this long. In practice a stop takes well below a second.
const STOP_STEP: Duration = Duration::from_secs(2);
/// A call that must not run twice may end within this time: then no task asks whether it happened. Most stops wait for none.
const STOP_SETTLE: Duration = Duration::from_secs(5);
/// Runs and connections are told to end; child processes are given a moment before they are killed.
const STOP_MESH: Duration = Duration::from_secs(5);
/// The listeners drain connections themselves, within a limit of their own.
const DRAIN: Duration = Duration::from_secs(6);
/// Tasks that still run when the runtime ends are given this long.
const RUNTIME_STOP: Duration = Duration::from_secs(1);
/// Stands for the front door where no agent is declared: the answer to a request names the agents that there are.
const NO_FRONT_DOOR: &str = "front-door";
/// Folder of what people let this node use of MCP servers, in its data folder.
const MCP_TOKENS: &str = "mcp";
/// Name of a cluster that lives as long as its node, unless the configuration has one.
const EPHEMERAL: &str = "ephemeral";

/// What sets the number of threads of tokio.
const WORKERS: &str = "TOKIO_WORKER_THREADS";

/// How a node comes into its cluster, and when it ends.
#[derive(Debug, Default)]
pub struct StartOptions {
    /// Address of a member's peer listener, and the join token.
    pub join: Option<(String, String)>,
    /// Whether the end of standard input ends the node.
    pub exit_with_stdin: bool,
    /// Whether the node founds a cluster of its own in its data folder, which is removed behind it.
    pub ephemeral: bool,
}

/// Runs a node until it is told to stop.
///
/// # Errors
/// When it cannot start, or its Raft core stops for good.
pub fn run(config: NodeConfig, options: StartOptions) -> Result<(), CliError> {
    descriptors::raise();
    let runtime = runtime(options.ephemeral).map_err(CliError::other)?;
    let stop = runtime.block_on(async { stop_signal(options.exit_with_stdin) })?;
    let ports = runtime.block_on(Ports::bind(&config))?;
    let identity = if options.ephemeral {
        found(&config, &ports)?
    } else {
        runtime.block_on(identity(&config, &ports, options.join))?
    };
    let traces = telemetry::start_traces(&config.telemetry, &identity)?;
    let result = runtime.block_on(Box::pin(serve(config, ports, stop)));
    runtime.shutdown_timeout(RUNTIME_STOP);
    drop(traces);
    result
}

/// The threads of a node. One that keeps its log in memory waits for no disk, and nearly all of its work is one task after the other
/// through that log: a second thread costs more in waking each other than it takes over. [`WORKERS`] has another number.
fn runtime(ephemeral: bool) -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if ephemeral && std::env::var_os(WORKERS).is_none() {
        builder.worker_threads(1);
    }
    builder.enable_all().build()
}

/// The two ports of a node, bound and not yet served.
struct Ports {
    http: TcpListener,
    peer: TcpListener,
    unix: Option<UnixDoor>,
    /// As others reach them.
    advertised: NodeAddresses,
}

impl Ports {
    async fn bind(config: &NodeConfig) -> Result<Self, CliError> {
        let node = &config.node;
        let http = bind(node.http, "node.listen.http").await?;
        let peer = bind(node.peer, "node.listen.peer").await?;
        let http_address = http.local_addr().map_err(CliError::other)?;
        let peer_address = peer.local_addr().map_err(CliError::other)?;
        let advertised = NodeAddresses {
            http: node.public_url.clone().unwrap_or_else(|| format!("{}://{http_address}", node.scheme())),
            peer: node.advertise_peer.clone().unwrap_or_else(|| peer_address.to_string()),
        };
        let unix = node.unix.as_deref().map(bind_unix).transpose()?;
        Ok(Self { http, peer, unix, advertised })
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the other kinds of I/O error need no advice of their own")]
async fn bind(address: SocketAddr, setting: &str) -> Result<TcpListener, CliError> {
    TcpListener::bind(address).await.map_err(|error| {
        let text = match error.kind() {
            std::io::ErrorKind::AddrInUse => format!(
                "port {} is in use ({setting}: {address}): stop what listens there (`ss -ltnp`), or choose another port: in the \
                 file, or with `towline node --set {setting}={}:PORT`",
                address.port(),
                address.ip()
            ),
            std::io::ErrorKind::AddrNotAvailable => {
                format!("{address} is no address of this machine ({setting}): choose one of `ip addr`")
            }
            _ => format!("listen on {address} ({setting}): {error}"),
        };
        CliError::Usage(text)
    })
}

fn bind_unix(path: &Path) -> Result<UnixDoor, CliError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    UnixDoor::bind(path).map_err(|error| {
        let what = format!("listen on {} (node.listen.unix)", path.display());
        CliError::Usage(if folder.exists() {
            format!("{what}: {error}")
        } else {
            let folder = folder.display();
            format!("{what}: folder {folder} is not there: make it for the user of this node, as with `mkdir -p -m 0700 {folder}`")
        })
    })
}

/// A cluster of this node alone, on the ports that it was given.
fn found(config: &NodeConfig, ports: &Ports) -> Result<Identity, CliError> {
    let name = config.cluster.as_deref().unwrap_or(EPHEMERAL);
    membership::found(&config.node.data, name, &config.node.name, ports.advertised.clone()).map_err(cluster_error)
}

/// What cards are signed with; the key was checked when the configuration was read.
fn card_signer(config: &NodeConfig) -> Option<CardSigner> {
    let key = config.cards.signing_key.as_ref()?;
    CardSigner::from_pem(key.expose()).inspect_err(|error| tracing::error!(%error, "cards are not signed")).ok()
}

/// Who this node is: what the data folder says, else what the cluster says that it joins.
async fn identity(config: &NodeConfig, ports: &Ports, join: Option<(String, String)>) -> Result<Identity, CliError> {
    let data = &config.node.data;
    let found = membership::identity(data).map_err(cluster_error)?;
    let identity = match (found, join) {
        (Some(identity), join) => {
            if join.is_some() {
                tracing::info!(node = %identity.node, cluster = %identity.cluster_name, "this node is a member; --join is not needed");
            }
            identity
        }
        (None, Some((address, token))) => {
            let joining = Joining {
                address: &address,
                token: &token,
                cluster_name: config.cluster.as_deref(),
                node_name: &config.node.name,
                addresses: ports.advertised.clone(),
            };
            membership::join_as(data, joining).await.map_err(cluster_error)?
        }
        (None, None) => return Err(no_identity(data)),
    };
    check_identity(config, &identity)?;
    Ok(identity)
}

fn no_identity(data: &Path) -> CliError {
    CliError::Usage(format!(
        "data folder {} belongs to no cluster: found one with `towline init --name CLUSTER`, or join one with \
         `--join ADDR` and a token in TOWLINE_TOKEN (`towline cluster join-token` at a member makes one)",
        data.display()
    ))
}

/// A data folder that belongs to another node or cluster than the file means is a mistake that must not go on.
fn check_identity(config: &NodeConfig, identity: &Identity) -> Result<(), CliError> {
    let data = config.node.data.display();
    if let Some(wanted) = config.cluster.as_ref().filter(|wanted| **wanted != identity.cluster_name) {
        return Err(CliError::Usage(format!(
            "data folder {data} belongs to cluster {:?}, and cluster.name is {wanted:?}: change node.data or cluster.name",
            identity.cluster_name
        )));
    }
    if identity.node_name != config.node.name {
        return Err(CliError::Usage(format!(
            "data folder {data} belongs to node {:?}, and node.name is {:?}: change node.data or node.name",
            identity.node_name, config.node.name
        )));
    }
    Ok(())
}

/// What a refusal of the cluster means for the exit code.
pub(crate) fn cluster_error(error: ClusterError) -> CliError {
    let text = chain(&error);
    match error {
        ClusterError::Enrol { reached: false, .. } => CliError::Unreachable(text),
        ClusterError::Enrol { .. } | ClusterError::Token { .. } => CliError::Auth(text),
        ClusterError::NoIdentity { .. } | ClusterError::Occupied { .. } | ClusterError::Foreign { .. } => {
            CliError::Usage(text)
        }
        ClusterError::Locked { .. }
        | ClusterError::Invalid { .. }
        | ClusterError::File { .. }
        | ClusterError::Certificate { .. }
        | ClusterError::Store(_)
        | ClusterError::Archive(_)
        | ClusterError::Fatal { .. } => CliError::Other(text),
    }
}

/// Why a node ends.
enum End {
    Asked,
    Fatal(String),
}

async fn serve(config: NodeConfig, ports: Ports, stop: CancellationToken) -> Result<(), CliError> {
    let options = ClusterOptions {
        data: config.node.data.clone(),
        addresses: ports.advertised.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        certificate_life: config.certificate_life,
    };
    let cluster = Cluster::start(options).await.map_err(cluster_error)?;
    let handle = cluster.handle();
    let doors = Doors::open(&config, ports, &cluster)?;
    let started = tokio::select! {
        started = start_mesh(&config, &handle, &doors.api) => started.map(|()| None),
        () = stop.cancelled() => Ok(Some(End::Asked)),
        reason = cluster.fatal() => Ok(Some(End::Fatal(reason))),
    };
    let end = match started {
        Ok(Some(end)) => Ok(end),
        Ok(None) => Ok(tokio::select! {
            () = stop.cancelled() => End::Asked,
            reason = cluster.fatal() => End::Fatal(reason),
        }),
        Err(error) => Err(error),
    };
    let can_resign = !matches!(end, Ok(End::Fatal(_)));
    let time = StopTime::new(config.lifecycle.drain_timeout);
    doors.stop(&config, &handle, can_resign, &time).await;
    time.within("stop raft", STOP_STEP * 2, cluster.shutdown()).await;
    match end? {
        End::Asked => Ok(()),
        End::Fatal(reason) => Err(CliError::Other(reason)),
    }
}

/// The listeners, and what is served on them.
struct Doors {
    api: Arc<Api>,
    /// What is served over MCP, if anything is.
    mcp: Option<Arc<McpServer>>,
    /// What agents of others reach MCP servers through, unless it is switched off.
    bridge: Option<Arc<Bridge>>,
    /// Ends streams and waits.
    stopping: CancellationToken,
    /// Closes the listeners.
    close: CancellationToken,
    serving: Vec<JoinHandle<()>>,
}

impl Doors {
    fn open(config: &NodeConfig, ports: Ports, cluster: &Cluster) -> Result<Self, CliError> {
        let (stopping, close) = (CancellationToken::new(), CancellationToken::new());
        let public_url = ports.advertised.http.clone();
        let auth = Arc::new(Auth::new(config.auth.clone(), config.node.http, &public_url).map_err(CliError::other)?);
        let public_tls = config.node.tls.clone().map(PublicTls::new).transpose();
        let public_tls = public_tls.map_err(|error| {
            let files = "node.tls.certificate, node.tls.key and auth.client_ca";
            CliError::Usage(format!("{files} do not go together: {error}"))
        })?;
        let sign_ins = SignIns::new(cluster.handle(), config.auth.device_grant, public_url.clone());
        auth.attach(Arc::clone(&sign_ins) as Arc<dyn Sessions>);
        let api = Arc::new(Api {
            cluster: cluster.handle(),
            mesh: Mutex::new(None),
            public_url: public_url.clone(),
            auth: Arc::clone(&auth),
            ready: AtomicBool::new(false),
            sign_ins: Arc::clone(&sign_ins),
            hooks: config.hooks.clone(),
            config: Arc::new(config.clone()),
            stopping: stopping.clone(),
        });
        metrics::tell(&api);
        let settings = Arc::new(A2aSettings {
            cluster: cluster.handle(),
            front_door: config.front_door.clone().unwrap_or_else(no_front_door),
            public_url: public_url.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            most_open: config.limits.open_tasks_per_principal,
            auth,
            push: config.push.clone(),
            card_signer: card_signer(config),
            api: api::for_known(Arc::clone(&api)),
            stopping: stopping.clone(),
        });
        let mcp = open_mcp(config, &settings, &api)?;
        let bridge = config
            .a2e
            .enabled
            .then(|| Bridge::new(config.a2e.clone(), &config.serve.hosts, Arc::clone(&settings), Arc::clone(&api)));
        let mut for_all = a2a::router(Arc::clone(&settings), Door::Public).merge(api::router(Arc::clone(&api)));
        if let Some(mcp) = &mcp {
            for_all = for_all.merge(mcp.routes());
        }
        if let Some(bridge) = &bridge {
            for_all = for_all.merge(bridge.routes());
        }
        let public = a2a::answered(for_all.clone().merge(sign_ins.routes()))
            .layer(middleware::from_fn_with_state(Arc::clone(&sign_ins), sign_in::guard));
        let peer = a2a::router(settings, Door::Peer).merge(cluster.peer_routes());
        let tls = PeerTls::new(cluster.peer_tls());
        let address =
            |port: &TcpListener| port.local_addr().map_or_else(|error| error.to_string(), |at| at.to_string());
        tracing::info!(http = address(&ports.http), peer = address(&ports.peer), "listening");
        let serving_public = match public_tls {
            Some(tls) => tokio::spawn(listener::serve(ports.http, tls, public, close.clone())),
            None => tokio::spawn(listener::serve(ports.http, listener::Plain, public, close.clone())),
        };
        let mut serving = vec![
            serving_public,
            tokio::spawn(listener::serve(ports.peer, tls, peer, close.clone())),
            tokio::spawn(sign_ins.watch(close.clone())),
            tokio::spawn(changes::follow(cluster.handle(), close.clone())),
        ];
        if let Some(bridge) = &bridge {
            serving.push(tokio::spawn(Arc::clone(bridge).watch(close.clone())));
        }
        if let Some(door) = ports.unix {
            serving.push(tokio::spawn(unix::serve(door, a2a::answered(for_all), close.clone())));
        }
        Ok(Self { api, mcp, bridge, stopping, close, serving })
    }

    /// Stops in the reverse order of the start; every step has a limit.
    async fn stop(self, config: &NodeConfig, handle: &ClusterHandle, can_resign: bool, time: &StopTime) {
        self.api.ready.store(false, Ordering::Relaxed);
        self.stopping.cancel();
        metrics::tell_no_more();
        if can_resign {
            let tasks = self.api.mesh.lock().await.as_ref().map(Mesh::hand_over);
            if let Some(tasks) = tasks {
                hand_over(tasks, config, handle, time).await;
            }
            if let Some(mesh) = self.api.mesh.lock().await.as_ref() {
                mesh.settle(time.at_most(STOP_SETTLE)).await;
            }
            time.within("resign", STOP_STEP, async {
                if let Err(error) = handle.resign().await {
                    tracing::warn!(error = chain(&error), "resign: the others find out by themselves");
                }
            })
            .await;
        }
        if let Some(bridge) = &self.bridge {
            time.within("stop the bridge", STOP_MESH, bridge.stop()).await;
        }
        let mesh = self.api.mesh.lock().await.take();
        if let Some(mesh) = mesh {
            time.within("stop the mesh", STOP_MESH, mesh.stop()).await;
        }
        if let Some(mcp) = &self.mcp {
            time.within("stop the MCP server", STOP_STEP, mcp.stop()).await;
        }
        self.close.cancel();
        time.within("close the listeners", DRAIN, async {
            for task in self.serving {
                if let Err(error) = task.await {
                    tracing::error!(%error, "a listener ended badly");
                }
            }
        })
        .await;
    }
}

/// Gives the tasks away that another node can take. It has no room before it lets the first go, so that none comes back.
async fn hand_over(tasks: HandOver, config: &NodeConfig, handle: &ClusterHandle, time: &StopTime) {
    if !tasks.is_possible() {
        return;
    }
    time.within("say that this node has no room", STOP_STEP, async {
        if let Err(error) = handle.register(Registration { capacity: 0, ..registration(config) }).await {
            tracing::warn!(error = chain(&error), "the others do not know that this node stops");
        }
    })
    .await;
    tasks.run(time.for_tasks()).await;
}

/// The time that all steps of a stop share.
struct StopTime {
    end: Instant,
    reserve: Duration,
}

impl StopTime {
    fn new(limit: Duration) -> Self {
        Self { end: Instant::now() + limit, reserve: STOP_RESERVE.min(limit / 2) }
    }

    /// What is left for a step that takes this long at most.
    fn at_most(&self, limit: Duration) -> Duration {
        limit.min(self.end.saturating_duration_since(Instant::now()))
    }

    /// How long tasks may take to get away.
    fn for_tasks(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now()).saturating_sub(self.reserve)
    }

    async fn within(&self, what: &str, limit: Duration, step: impl Future<Output = ()>) {
        let limit = self.at_most(limit);
        if tokio::time::timeout(limit, step).await.is_err() {
            tracing::warn!(?limit, "{what}: takes too long, going on");
        }
    }
}

/// The MCP server, unless it is switched off.
fn open_mcp(config: &NodeConfig, a2a: &Arc<A2aSettings>, api: &Arc<Api>) -> Result<Option<Arc<McpServer>>, CliError> {
    if !config.serve.enabled {
        return Ok(None);
    }
    let server = McpServer::new(&config.serve, Arc::clone(a2a), Arc::clone(api));
    server.map(Some).map_err(|error| CliError::Usage(error.to_string()))
}

fn no_front_door() -> AgentName {
    NO_FRONT_DOOR.parse().expect("a constant of this file")
}

/// Starts the mesh and registers; from then on this node takes work.
async fn start_mesh(config: &NodeConfig, handle: &ClusterHandle, api: &Api) -> Result<(), CliError> {
    let public_url = api.public_url.clone();
    let push = config.push.clone().map(|policy| PushConfig { policy, public_url });
    let mut mesh = MeshConfig { push, instance: config.node.name.clone(), ..config.mesh.clone() };
    let folder = config.node.data.join(MCP_TOKENS);
    mesh.servers.iter_mut().for_each(|server| server.security.folder = Some(folder.clone()));
    let mesh = Mesh::start(mesh, handle.clone()).await.map_err(|error| {
        if matches!(error, MeshError::RequiredServer { .. }) {
            CliError::RequiredServer(chain(&error))
        } else {
            CliError::other(error)
        }
    })?;
    *api.mesh.lock().await = Some(mesh);
    register(handle, registration(config)).await?;
    api.ready.store(true, Ordering::Relaxed);
    tracing::info!(
        node = %handle.node_id(),
        name = config.node.name,
        cluster = handle.cluster_name(),
        url = api.public_url,
        "ready"
    );
    Ok(())
}

/// What the cluster is told of this node.
fn registration(config: &NodeConfig) -> Registration {
    let agents = Mesh::agent_specs(&config.mesh);
    Registration { capacity: config.mesh.permits, agents, labels: config.node.labels.clone() }
}

/// Registers as soon as there is a leader: a cluster that starts has none yet.
async fn register(handle: &ClusterHandle, registration: Registration) -> Result<(), CliError> {
    loop {
        match handle.register(registration.clone()).await {
            Ok(()) => return Ok(()),
            // It takes part in Raft until the others have let it go, and then is told so and ends.
            Err(ProposeError::Rejected(rejection @ Rejection::NodeRemoved { .. })) => {
                tracing::warn!(%rejection, "this node is being removed");
                return Ok(());
            }
            Err(ProposeError::Rejected(rejection)) => {
                return Err(CliError::Other(format!("register this node: {rejection}")));
            }
            Err(error @ (ProposeError::Unavailable { .. } | ProposeError::Unknown { .. })) => {
                tracing::debug!(error = chain(&error), "register: trying again");
                tokio::time::sleep(REGISTER_PAUSE).await;
            }
        }
    }
}

/// Canceled by SIGTERM, SIGINT, or the end of standard input if that counts.
fn stop_signal(exit_with_stdin: bool) -> Result<CancellationToken, CliError> {
    let token = CancellationToken::new();
    signals::watch(token.clone())?;
    if exit_with_stdin {
        watch_stdin(token.clone());
    }
    Ok(token)
}

/// Reads standard input on a thread of its own: a read cannot be canceled, and must not keep the runtime from ending.
fn watch_stdin(token: CancellationToken) {
    std::thread::spawn(move || {
        let ended = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        tracing::info!(?ended, "standard input ended: stopping");
        token.cancel();
    });
}

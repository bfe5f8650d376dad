//! Connections to other nodes: where each is reached, and channels that know whom they talk to.
//!
//! A channel connects when it is first used and again after it broke. It dials the address that the node has registered
//! last, and the certificate must name the node that was meant. Raft's appends, its heartbeats, its snapshots, blobs and
//! all other calls have a connection each, so that a large one does not delay a small one.

use std::{
    collections::BTreeMap,
    error::Error,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::{
    Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint, Uri},
};
use towline_core::{NodeAddresses, NodeId};
use towline_proto::v1::{enrol_client::EnrolClient, peer_client::PeerClient, raft_client::RaftClient};

use crate::{
    ClusterError, PeerIdentity,
    certificates::{self, CertifiedNode},
    coalesce::Coalesced,
    credentials::{self, Alpn, Credentials},
    fences::Fences,
    handle::ClusterHandle,
    raft::StateView,
    raft_view::RaftView,
    roster::NotAdmitted,
    seams::{self, Link},
};

/// Largest message between nodes. An append carries about 1 MiB, or one entry with the largest content the core takes
/// (4 MiB) and what it is wrapped in; tonic's default of 4 MiB would stop replication for good at such an entry.
pub(crate) const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// A dial that takes longer is as good as refused: an election would be over.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(800);
/// A connection that is silent for this long is asked for a sign of life, and given up after as long again.
const CONNECTION_KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Flow control window of one stream and connection: a snapshot chunk and an append fit without a pause.
const WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// The metadata that says for which node a call is meant.
const TARGET: &str = "towline-target";

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// Log entries, votes.
    Append,
    /// Heartbeats.
    Heartbeat,
    /// Snapshots.
    Snapshot,
    /// Everything that is not Raft.
    Calls,
    /// Blobs.
    Blobs,
    /// Keep-alives and probes, which must not wait behind a large proposal.
    Session,
    /// What a worker is fed.
    Tail,
}

/// A channel that marks each call with the node it is meant for.
pub(crate) type PeerChannel = InterceptedService<Channel, Target>;

/// Where nodes are reached: as they registered, else as the Raft membership knows them.
pub(crate) struct AddressBook {
    view: StateView,
    seeds: RwLock<BTreeMap<NodeId, NodeAddresses>>,
}

impl AddressBook {
    pub(crate) fn new(view: StateView) -> Self {
        Self { view, seeds: RwLock::default() }
    }

    /// Remembers where the Raft membership says that a node is.
    pub(crate) fn seed(&self, node: NodeId, addresses: &NodeAddresses) {
        self.seeds.write().unwrap_or_else(PoisonError::into_inner).insert(node, addresses.clone());
    }

    /// Remembers where other members say that a node is, unless something better is known.
    pub(crate) fn hear(&self, node: NodeId, peer: &str) {
        let mut seeds = self.seeds.write().unwrap_or_else(PoisonError::into_inner);
        seeds.entry(node).or_insert_with(|| NodeAddresses { http: String::new(), peer: peer.to_owned() });
    }

    /// `host:port` of a node's peer listener.
    pub(crate) fn peer(&self, node: NodeId) -> Option<String> {
        let registered = self.view.read(|state| state.node(node).map(|node| node.addresses.peer.clone()));
        registered.or_else(|| {
            let seeds = self.seeds.read().unwrap_or_else(PoisonError::into_inner);
            seeds.get(&node).map(|addresses| addresses.peer.clone())
        })
    }

    /// All nodes that this one has heard of.
    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.view.read(|state| state.nodes().map(|node| node.id).collect());
        nodes.extend(self.seeds.read().unwrap_or_else(PoisonError::into_inner).keys());
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

/// The connections of this node to all others.
pub(crate) struct Peers {
    book: Arc<AddressBook>,
    cluster_name: String,
    tls: TlsConnector,
    channels: Mutex<BTreeMap<(NodeId, Lane), PeerChannel>>,
    fences: Arc<Fences>,
}

impl Peers {
    pub(crate) fn new(
        book: Arc<AddressBook>,
        cluster_name: &str,
        credentials: &Credentials,
    ) -> Result<Self, ClusterError> {
        let tls = TlsConnector::from(Arc::new(credentials.client_config(Alpn::Http2)?));
        Ok(Self {
            book,
            cluster_name: cluster_name.to_owned(),
            tls,
            channels: Mutex::default(),
            fences: Arc::default(),
        })
    }

    pub(crate) fn book(&self) -> &Arc<AddressBook> {
        &self.book
    }

    /// What other nodes have stored, and who of them lost it.
    pub(crate) fn fences(&self) -> &Arc<Fences> {
        &self.fences
    }

    /// A client of a node's Raft service.
    pub(crate) fn raft(&self, node: NodeId, lane: Lane) -> RaftClient<PeerChannel> {
        RaftClient::new(self.channel(node, lane))
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// A client of a node's peer service.
    pub(crate) fn peer(&self, node: NodeId, lane: Lane) -> PeerClient<PeerChannel> {
        PeerClient::new(self.channel(node, lane))
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// A client of a node's enrolment service, on a connection of its own: it may have to do without a certificate.
    pub(crate) fn enrol(
        &self,
        node: NodeId,
        credentials: &Credentials,
    ) -> Result<EnrolClient<PeerChannel>, ClusterError> {
        let tls = TlsConnector::from(Arc::new(credentials.renewing_config()?));
        Ok(EnrolClient::new(self.make_channel(node, tls)))
    }

    /// Whether a node's machine refuses connections to its peer listener: no process listens there.
    pub(crate) async fn refuses(&self, node: NodeId) -> bool {
        let Some(address) = self.book.peer(node) else { return false };
        let dial = async {
            match seams::simulated() {
                Some(machine) => machine.dial(&address).await.map(drop),
                None => TcpStream::connect(address).await.map(drop),
            }
        };
        let dial = tokio::time::timeout(CONNECT_TIMEOUT, dial).await;
        matches!(dial, Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused)
    }

    fn channel(&self, node: NodeId, lane: Lane) -> PeerChannel {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.entry((node, lane)).or_insert_with(|| self.make_channel(node, self.tls.clone())).clone()
    }

    fn make_channel(&self, node: NodeId, tls: TlsConnector) -> PeerChannel {
        let book = Arc::clone(&self.book);
        node_channel(node, &self.cluster_name, tls, Arc::new(move || book.peer(node)))
    }
}

/// A channel to a node at one address, as the node whose credentials these are.
pub(crate) fn channel_at(
    node: NodeId,
    address: String,
    cluster_name: &str,
    credentials: &Credentials,
) -> Result<PeerChannel, ClusterError> {
    let tls = TlsConnector::from(Arc::new(credentials.client_config(Alpn::Http2)?));
    Ok(node_channel(node, cluster_name, tls, Arc::new(move || Some(address.clone()))))
}

fn node_channel(node: NodeId, cluster_name: &str, tls: TlsConnector, address: FindAddress) -> PeerChannel {
    let name = certificates::node_name(node, cluster_name);
    let server = ServerName::try_from(name.clone()).expect("a cluster name is checked to be a DNS label");
    let channel = lazy_channel(&name, Dial { tls, name: server, address }).expect("a DNS name makes a URI");
    InterceptedService::new(channel, Target::new(node))
}

/// Where to dial, asked anew at each dial.
type FindAddress = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// A channel to a member whose id is not known, for a node that has no certificate yet.
pub(crate) fn joining_channel(address: &str, authority: &CertificateDer<'static>) -> Result<Channel, ClusterError> {
    check_join_address(address)?;
    let address = address.to_owned();
    let dial = Dial {
        tls: TlsConnector::from(Arc::new(credentials::joining_config(authority)?)),
        name: certificates::member_name(),
        address: Arc::new(move || Some(address.clone())),
    };
    lazy_channel("member", dial).map_err(|_| ClusterError::Invalid {
        what: "address to join",
        value: String::new(),
        reason: "makes no URI",
    })
}

/// Refuses what cannot be dialled.
pub(crate) fn check_join_address(address: &str) -> Result<(), ClusterError> {
    if is_host_and_port(address) {
        return Ok(());
    }
    let reason = "must be HOST:PORT of a member's peer listener, as in 10.0.0.1:7421";
    Err(ClusterError::Invalid { what: "address to join", value: address.to_owned(), reason })
}

/// Whether text is `host:port`.
pub(crate) fn is_host_and_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
}

#[derive(Clone)]
struct Dial {
    tls: TlsConnector,
    name: ServerName<'static>,
    address: FindAddress,
}

impl Dial {
    async fn connect(self) -> io::Result<TokioIo<Box<dyn Link>>> {
        let address = (self.address)()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no address of this node is known"))?;
        let connect = async {
            if let Some(machine) = seams::simulated() {
                return machine.dial(&address).await;
            }
            let stream = TcpStream::connect(&address).await?;
            stream.set_nodelay(true)?;
            let link: Box<dyn Link> = Box::new(Coalesced::new(self.tls.connect(self.name, stream).await?));
            Ok(link)
        };
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("dial of {address} took {CONNECT_TIMEOUT:?}"));
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect).await.map_err(late)??;
        Ok(TokioIo::new(stream))
    }
}

/// The scheme is plain because the connector brings its own TLS, with the name that it verifies.
fn lazy_channel(name: &str, dial: Dial) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{name}"))?
        .http2_keep_alive_interval(CONNECTION_KEEP_ALIVE)
        .keep_alive_timeout(CONNECTION_KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    Ok(endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| dial.clone().connect())))
}

/// Marks a call with the node it is meant for.
#[derive(Debug, Clone)]
pub(crate) struct Target(MetadataValue<Ascii>);

impl Target {
    fn new(node: NodeId) -> Self {
        Self(MetadataValue::from(node.0))
    }
}

impl Interceptor for Target {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, Status> {
        request.metadata_mut().insert(TARGET, self.0.clone());
        Ok(request)
    }
}

/// Lets through only what another member of the cluster meant for this one.
#[derive(Clone)]
pub(crate) struct Admission {
    node: NodeId,
    cluster: ClusterHandle,
}

/// The node that called, as its certificate says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller(pub(crate) NodeId);

impl Admission {
    pub(crate) fn to(cluster: ClusterHandle) -> Self {
        Self { node: cluster.node_id(), cluster }
    }

    /// The node behind a certificate. One that was removed is heard as long as its vote may be needed to see it out.
    fn admit(&self, certified: Option<&CertifiedNode>) -> Result<NodeId, NotAdmitted> {
        let certified = certified.ok_or(NotAdmitted::NoCertificate)?;
        match self.cluster.roster().check(certified) {
            Err(NotAdmitted::Removed { node }) if RaftView::of(&self.cluster).is_member(node.0) => Ok(node),
            checked => checked.map(|()| certified.node),
        }
    }
}

/// The answer to a node that is not let in. One that was removed ends itself on hearing so.
pub(crate) fn refusal(refused: &NotAdmitted) -> Status {
    let text = refused.to_string();
    match refused {
        NotAdmitted::NoCertificate | NotAdmitted::OtherKey { .. } => Status::unauthenticated(text),
        NotAdmitted::Removed { .. } => Status::permission_denied(text),
        NotAdmitted::Unknown { .. } => Status::unavailable(text),
    }
}

impl Interceptor for Admission {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, Status> {
        let certified = request.extensions().get::<PeerIdentity>().and_then(|identity| identity.0.as_ref());
        if certified.is_none() {
            return Err(refusal(&NotAdmitted::NoCertificate));
        }
        let meant = request.metadata().get(TARGET).and_then(|id| id.to_str().ok()).and_then(|id| id.parse().ok());
        if meant != Some(self.node.0) {
            return Err(Status::failed_precondition(format!("this is node {}, another was meant", self.node)));
        }
        let caller = self.admit(certified).map_err(|refused| refusal(&refused))?;
        request.extensions_mut().insert(Caller(caller));
        Ok(request)
    }
}

/// Whether a call failed before anything of it was sent.
pub(crate) fn never_sent(status: &Status) -> bool {
    chain(status).any(|error| error.is::<tonic::ConnectError>())
}

/// The last cause of a failed call: what the network or TLS said.
pub(crate) fn root_cause(status: &Status) -> String {
    chain(status).last().map_or_else(|| status.message().to_owned(), ToString::to_string)
}

/// What TLS said, if a dial failed by it.
pub(crate) fn tls_error(status: &Status) -> Option<&rustls::Error> {
    chain(status)
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .find_map(|error| error.get_ref()?.downcast_ref())
}

/// What kind of error the network gave, if a dial failed by it.
pub(crate) fn io_error_kind(status: &Status) -> Option<io::ErrorKind> {
    chain(status).find_map(|error| error.downcast_ref::<io::Error>()).map(io::Error::kind)
}

fn chain(status: &Status) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(Error::source(status), |error| (**error).source())
}

/// The HTTP client for other nodes' peer listeners.
pub(crate) fn http_client(book: Arc<AddressBook>, credentials: &Credentials) -> Result<reqwest::Client, ClusterError> {
    reqwest::Client::builder()
        .tls_backend_preconfigured(credentials.client_config(Alpn::Http2AndHttp1)?)
        .dns_resolver(Arc::new(NodeResolver { book }))
        .connect_timeout(CONNECT_TIMEOUT)
        .no_proxy()
        .tcp_nodelay(true)
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(|error| ClusterError::Certificate {
            action: "set up the client for peer listeners",
            reason: error.to_string(),
        })
}

/// Base URL of a node's peer listener: the name is the one in its certificate.
pub(crate) fn node_url(book: &AddressBook, node: NodeId, cluster_name: &str) -> Option<String> {
    let address = book.peer(node)?;
    let (_, port) = address.rsplit_once(':')?;
    Some(format!("https://{}:{port}", certificates::node_name(node, cluster_name)))
}

/// Finds nodes by the names in their certificates, and nothing else.
struct NodeResolver {
    book: Arc<AddressBook>,
}

impl reqwest::dns::Resolve for NodeResolver {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let address = certificates::parse_node_name(name.as_str()).and_then(|(node, _)| self.book.peer(node));
        Box::pin(async move {
            let address = address.ok_or("no node of this cluster has that name")?;
            let found: Vec<SocketAddr> = tokio::net::lookup_host(address).await?.collect();
            Ok(Box::new(found.into_iter()) as reqwest::dns::Addrs)
        })
    }
}

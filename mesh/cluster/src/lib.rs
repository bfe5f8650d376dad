//! The replicated cluster: Raft, log store, membership, sessions, and the [`ClusterHandle`].
//!
//! ```text
//! ClusterHandle ── propose/read ──▶ leader.rs here, or service.rs of the node that leads ──▶ Raft ──▶ State::apply
//!       ▲                                                                                             │
//!       └──────────── effects, watches, local reads ◀─────────────────────────────────────────────────┘
//! ```
//!
//! A worker keeps no log: another node feeds it (`tail`), and what it proposes finds the leader (`routes`). All others do the
//! same; the leader also keeps the sessions (`sessions`) and makes the Raft membership fit the state
//! (`reconcile`). Nodes talk over mutual TLS (`certificates`, `peers`), and only a join is answered without a certificate.
//! What an agent is, or A2A, is not known here.

pub mod archive;
mod blobs;
mod caller;
mod certificates;
mod coalesce;
mod credentials;
mod enrolment;
mod error;
mod fences;
#[doc(hidden)]
pub mod finished;
#[cfg(test)]
mod format_tests;
#[doc(hidden)]
pub mod fuzz;
mod handle;
mod health;
mod joining;
mod keeper;
#[doc(hidden)]
pub mod kill_points;
mod leader;
pub mod membership;
mod peers;
#[doc(hidden)]
pub mod raft;
mod raft_view;
mod reconcile;
mod roster;
mod routes;
#[doc(hidden)]
pub mod seams;
mod search;
mod service;
mod sessions;
mod status;
mod tail;
mod transfer;
mod troubles;
mod twin;
mod unheard;
mod wal;
#[doc(hidden)]
pub mod wire;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use openraft::async_runtime::WatchReceiver;
use tokio::task::JoinSet;
use tonic::{body::Body, server::NamedService, service::interceptor::InterceptedService};
use tower::ServiceExt;
use towline_core::{NodeAddresses, Rejection};
use towline_proto::v1::{enrol_server::EnrolServer, peer_server::PeerServer, raft_server::RaftServer};

pub use blobs::{BlobContent, BlobError, Upload};
pub use caller::{PeerCaller, PeerCredentials};
pub use certificates::{CERTIFICATE_LIFE, CertifiedNode};
pub use coalesce::Coalesced;
pub use error::{ClusterError, ProposeError, Unavailable};
pub use handle::{ClusterHandle, Registration};
pub use health::Unwell;
pub use membership::Identity;
pub use raft::{FeedEntry, FeedGone, FeedPage, TaskWatch};
pub use roster::NotAdmitted;
pub use status::{ClusterStatus, DiskHealth, DiskStatus, MemberStatus};
pub use transfer::TransferError;

use blobs::{Blobs, Store};
use credentials::Credentials;
use enrolment::{EnrolService, MAX_ENROLMENT_BYTES, Signer};
use handle::Parts;
use leader::{Leadership, Seat};
use membership::{FOUNDER, Folder};
use peers::{AddressBook, Admission, MAX_MESSAGE_BYTES, Peers};
use raft::{
    LogStore, Raft, Replica, StateMachine, StateView, StoreError,
    network::{NetworkFactory, RaftService},
};
use routes::Routes;
use service::PeerService;

/// How long a founder waits for its first entry: it is its own quorum.
const FOUNDING_TIMEOUT: Duration = Duration::from_secs(10);

/// How a node starts.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The data folder; [`membership::found`] or [`membership::join`] made its identity.
    pub data: PathBuf,
    /// Where other nodes reach this one.
    pub addresses: NodeAddresses,
    /// Version of the binary.
    pub version: String,
    /// How long the certificates are good that this node signs; [`CERTIFICATE_LIFE`] if nothing else is wanted.
    pub certificate_life: Duration,
}

/// What the certificate on a connection to the peer listener says. The server inserts it as a request extension after the
/// handshake; every service other than enrolment refuses `None`, and asks whether the node is known by that key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity(pub Option<CertifiedNode>);

/// The running cluster side of a node.
pub struct Cluster {
    handle: ClusterHandle,
    tls: Arc<rustls::ServerConfig>,
    tasks: JoinSet<()>,
    /// Held until everything else has stopped.
    folder: Arc<Folder>,
}

impl Cluster {
    /// Locks the data folder, opens the log, restores the snapshot and starts Raft. It does not listen: the caller mounts
    /// [`Cluster::peer_routes`] behind [`Cluster::peer_tls`].
    ///
    /// # Errors
    /// When the folder is not this node's, is in use, or holds what cannot be read.
    pub async fn start(options: ClusterOptions) -> Result<Cluster, ClusterError> {
        let (folder, identity, credentials) = Folder::open(&options.data)?;
        let (folder, credentials) = (Arc::new(folder), Arc::new(credentials));
        let tls = credentials.server_config()?;
        let (parts, replica) = if identity.worker {
            let (parts, replica) = start_worker(&folder, identity, options, credentials)?;
            (parts, Some(replica))
        } else {
            (start_raft(&folder, identity, options, credentials).await?, None)
        };
        let handle = ClusterHandle::new(parts);
        let mut tasks = JoinSet::new();
        match handle.leadership().routes().zip(replica) {
            Some((routes, replica)) => {
                tasks.spawn(tail::follow(handle.clone(), Arc::clone(routes), replica));
                tasks.spawn(blobs::run_cache(handle.clone()));
            }
            None => {
                tasks.spawn(sessions::lead(handle.clone()));
                tasks.spawn(reconcile::run(handle.clone()));
                tasks.spawn(health::watch(handle.clone()));
                tasks.spawn(blobs::run(handle.clone()));
                tasks.spawn(finished::write_out(handle.clone()));
                tasks.spawn(finished::archive_ended(handle.clone()));
                tasks.spawn(finished::mend(handle.clone()));
            }
        }
        tasks.spawn(sessions::keep_alive(handle.clone()));
        tasks.spawn(sessions::watch_deadline(Arc::clone(handle.own_session())));
        tasks.spawn(keeper::keep_roster(handle.clone(), Arc::clone(&folder)));
        tasks.spawn(keeper::keep_certificate(handle.clone(), Arc::clone(&folder)));
        let cluster = Cluster { handle, tls, tasks, folder };
        cluster.found().await?;
        Ok(cluster)
    }

    /// The way in for everything above.
    pub fn handle(&self) -> ClusterHandle {
        self.handle.clone()
    }

    /// The gRPC services of the peer listener. No fallback is set.
    pub fn peer_routes(&self) -> axum::Router {
        let admission = Admission::to(self.handle.clone());
        let raft = self.handle.leadership().raft().map(|raft| {
            RaftServer::new(RaftService::new(self.handle.clone(), raft.clone()))
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES)
        });
        let peer = PeerServer::new(PeerService::new(self.handle.clone()))
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let enrol =
            EnrolServer::new(EnrolService::new(self.handle.clone())).max_decoding_message_size(MAX_ENROLMENT_BYTES);
        let router = raft
            .into_iter()
            .fold(axum::Router::new(), |router, raft| mount(router, InterceptedService::new(raft, admission.clone())));
        mount(mount(router, InterceptedService::new(peer, admission)), enrol)
    }

    /// The TLS of the peer listener: mutual, except that a node without certificate may enrol.
    pub fn peer_tls(&self) -> Arc<rustls::ServerConfig> {
        Arc::clone(&self.tls)
    }

    /// The Raft node itself, for tests that make snapshots and purge the log; none on a worker.
    #[doc(hidden)]
    pub fn raft(&self) -> Option<&raft::Raft> {
        self.handle.leadership().raft()
    }

    /// Lets this node apply nothing until it is called again, for tests of a state machine that stands still.
    #[cfg(feature = "kill-points")]
    #[doc(hidden)]
    pub fn hold_applying(&self, held: bool) {
        self.handle.leadership().view().hold(held);
    }

    /// Returns when this node cannot go on, with the reason: the cluster has removed it, the leader has fenced it off because
    /// it lost what it had stored, or its Raft core has stopped for good. Then the process must end, since a node without
    /// its core only looks alive.
    pub async fn fatal(&self) -> String {
        let session = self.handle.own_session();
        tokio::select! {
            () = session.removed() => Rejection::NodeRemoved { node: self.handle.node_id() }.to_string(),
            reason = session.fenced() => reason,
            reason = self.core_stopped() => format!("raft core stopped, the node must be started again: {reason}"),
            reason = self.feed_stopped() => reason,
        }
    }

    /// Waits for the metrics that change with roles and members, and for their end: those of the data change with each entry.
    async fn core_stopped(&self) -> String {
        let Some(raft) = self.handle.leadership().raft() else { return std::future::pending().await };
        let mut server = raft.server_metrics();
        loop {
            let ended = server.changed().await.is_err();
            if let Err(fatal) = &raft.metrics().borrow_watched().running_state {
                return fatal.to_string();
            }
            if ended {
                return "raft core ended".to_owned();
            }
        }
    }

    async fn feed_stopped(&self) -> String {
        match self.handle.leadership().routes() {
            Some(routes) => routes.stopped().await,
            None => std::future::pending().await,
        }
    }

    /// Stops everything that [`Cluster::start`] started, in reverse order. Resigning is the caller's choice.
    pub async fn shutdown(mut self) {
        self.handle.own_session().end();
        self.tasks.shutdown().await;
        self.handle.blobs().pushes().stop().await;
        let leadership = self.handle.leadership();
        if let (Some(raft), Some(log)) = (leadership.raft(), leadership.log()) {
            log.stop_waiting();
            if let Err(error) = raft.shutdown().await {
                tracing::warn!(%error, "raft core did not end in order");
            }
            log.close().await;
        }
        let finished = self.handle.finished().clone();
        if let Err(error) = seams::blocking(move || finished.close()).await {
            tracing::warn!(%error, "archive was not closed in order");
        }
        drop(self.folder);
    }

    /// Makes the first node the cluster, once.
    async fn found(&self) -> Result<(), ClusterError> {
        let Some(raft) = self.handle.leadership().raft() else { return Ok(()) };
        let fatal = |reason: String| ClusterError::Fatal { reason };
        if self.handle.node_id() != FOUNDER || raft.is_initialized().await.map_err(|error| fatal(error.to_string()))? {
            return Ok(());
        }
        let members = BTreeMap::from([(FOUNDER.0, self.handle.identity().addresses.clone())]);
        raft.initialize(members).await.map_err(|error| fatal(error.to_string()))?;
        let founded = async {
            let mut applied = self.handle.leadership().view().applied();
            while self.handle.local(|state| state.cluster().is_none()) {
                if applied.changed().await.is_err() {
                    break;
                }
            }
        };
        tokio::time::timeout(FOUNDING_TIMEOUT, founded)
            .await
            .map_err(|_| fatal(format!("cluster was not founded within {FOUNDING_TIMEOUT:?}")))
    }
}

async fn start_raft(
    folder: &Folder,
    identity: Identity,
    options: ClusterOptions,
    credentials: Arc<Credentials>,
) -> Result<Parts, ClusterError> {
    let log = LogStore::open(&folder.log())?;
    let (machine, view) = StateMachine::open(&folder.snapshots(), log.last_index())?;
    let (purged, (applied, _)) = (log.purged_index(), view.applied_membership());
    if purged > applied.map_or(0, |log_id| log_id.index) {
        return Err(StoreError::SnapshotLost { path: folder.snapshots(), purged }.into());
    }
    let peers = connect(&identity, &credentials, &view)?;
    let network = NetworkFactory::new(identity.node, Arc::clone(&peers));
    let config = raft::config(&identity.cluster_name);
    let raft = Raft::new(identity.node.0, config, network, log.clone(), machine)
        .await
        .map_err(|error| ClusterError::Fatal { reason: error.to_string() })?;
    let leadership = Leadership::new(identity.node, Seat::Member { raft, log }, view);
    put_together(folder, identity, options, credentials, leadership, peers)
}

/// The parts of a node that keeps no log, and the write side of its state.
fn start_worker(
    folder: &Folder,
    identity: Identity,
    options: ClusterOptions,
    credentials: Arc<Credentials>,
) -> Result<(Parts, Replica), ClusterError> {
    let (replica, view) = Replica::new();
    let peers = connect(&identity, &credentials, &view)?;
    let leadership = Leadership::new(identity.node, Seat::Worker(Arc::new(Routes::default())), view);
    let parts = put_together(folder, identity, options, credentials, leadership, peers)?;
    Ok((parts, replica))
}

/// The connections to other nodes, as far as those are known without the state.
fn connect(identity: &Identity, credentials: &Arc<Credentials>, view: &StateView) -> Result<Arc<Peers>, ClusterError> {
    credentials.roster().follow(view.clone());
    let book = Arc::new(AddressBook::new(view.clone()));
    for member in credentials.roster().members().nodes {
        book.seed(member.id, &NodeAddresses { http: String::new(), peer: member.peer });
    }
    Peers::new(book, &identity.cluster_name, credentials).map(Arc::new)
}

fn put_together(
    folder: &Folder,
    identity: Identity,
    options: ClusterOptions,
    credentials: Arc<Credentials>,
    leadership: Leadership,
    peers: Arc<Peers>,
) -> Result<Parts, ClusterError> {
    let http = peers::http_client(Arc::clone(peers.book()), &credentials)?;
    let blobs = Blobs::new(blob_store(&folder.blobs())?);
    let signer = Signer::new(folder.authority(&credentials)?, options.certificate_life);
    Ok(Parts { identity, options, credentials, signer, leadership, peers, blobs, http })
}

fn blob_store(dir: &Path) -> Result<Store, ClusterError> {
    Store::open(dir).map_err(|source| ClusterError::File { action: "open the blobs in", path: dir.to_owned(), source })
}

fn mount<S>(router: axum::Router, service: S) -> axum::Router
where
    S: tower::Service<http::Request<Body>, Error = std::convert::Infallible>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Response: axum::response::IntoResponse,
    S::Future: Send + 'static,
{
    let path = format!("/{}/{{*rest}}", S::NAME);
    router.route_service(&path, service.map_request(|request: http::Request<axum::body::Body>| request.map(Body::new)))
}

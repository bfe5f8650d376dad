//! The replicated cluster: Raft, log store, membership, sessions, and the ClusterHandle.

mod error;
mod handle;
pub mod membership;

use std::{path::PathBuf, sync::Arc};

use towline_core::{NodeAddresses, NodeId};

pub use error::{ClusterError, ProposeError, Unavailable};
pub use handle::{ClusterHandle, ClusterStatus, DiskHealth, DiskStatus, MemberStatus, Registration, TaskWatch};

/// How a node starts.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The data folder; [`membership::found`] or [`membership::join`] made its identity.
    pub data: PathBuf,
    /// Where other nodes reach this one.
    pub addresses: NodeAddresses,
    /// Version of the binary.
    pub version: String,
}

/// The node behind a connection to the peer listener, as its certificate says. The server inserts it as a request
/// extension after the handshake; every service other than enrolment refuses `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerIdentity(pub Option<NodeId>);

/// The running cluster side of a node.
pub struct Cluster {
    handle: ClusterHandle,
}

impl Cluster {
    /// Locks the data folder, opens the log, restores the snapshot and starts Raft. It does not listen: the caller mounts
    /// [`Cluster::peer_routes`] behind [`Cluster::peer_tls`].
    ///
    /// # Errors
    /// When the folder is not this node's, is in use, or holds what cannot be read.
    pub async fn start(options: ClusterOptions) -> Result<Cluster, ClusterError> {
        Err(ClusterError::NoIdentity { path: options.data })
    }

    /// The way in for everything above.
    pub fn handle(&self) -> ClusterHandle {
        self.handle.clone()
    }

    /// The gRPC services of the peer listener.
    pub fn peer_routes(&self) -> axum::Router {
        axum::Router::new()
    }

    /// The TLS of the peer listener: mutual, except that a node without certificate may enrol.
    pub fn peer_tls(&self) -> Arc<rustls::ServerConfig> {
        unreachable!("no cluster starts before this is written")
    }

    /// Returns when the Raft core has stopped for good: the process must end and be started again.
    pub async fn fatal(&self) -> String {
        std::future::pending().await
    }

    /// Stops everything that [`Cluster::start`] started, in reverse order.
    pub async fn shutdown(self) {}
}

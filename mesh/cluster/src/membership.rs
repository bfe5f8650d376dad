//! Who belongs to the cluster: founding, join tokens, certificates, and the identity that a data folder holds.

use std::path::Path;

use rustls::pki_types::CertificateDer;
use towline_core::{NodeAddresses, NodeId};

use crate::ClusterError;

/// Whose data folder this is.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// The cluster.
    pub cluster: uuid::Uuid,
    /// Its name.
    pub cluster_name: String,
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub node_name: String,
    /// Where it was reached when it became a member.
    pub addresses: NodeAddresses,
}

/// Founds a cluster in an empty data folder: makes its certificate authority, the keys of node 1 and its identity.
///
/// # Errors
/// When the folder holds an identity already, or cannot be written.
pub fn found(
    data: &Path,
    cluster_name: &str,
    node_name: &str,
    addresses: NodeAddresses,
) -> Result<Identity, ClusterError> {
    let _ = (cluster_name, node_name, addresses);
    Err(ClusterError::NoIdentity { path: data.to_owned() })
}

/// Enrols this node at a member of a cluster with a join token, and keeps what it answered in the data folder.
///
/// # Errors
/// When the folder holds an identity already, or the member is not reached or refuses.
pub async fn join(
    data: &Path,
    address: &str,
    token: &str,
    node_name: &str,
    addresses: NodeAddresses,
) -> Result<Identity, ClusterError> {
    let _ = (address, token, node_name, addresses);
    Err(ClusterError::NoIdentity { path: data.to_owned() })
}

/// The node that a certificate of this cluster names.
pub fn peer_node_id(certificate: &CertificateDer<'_>) -> Option<NodeId> {
    let _ = certificate;
    None
}

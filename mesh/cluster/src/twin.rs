//! Another process that is this node: a copy of its data folder, started somewhere else while the node runs. By its address, which
//! is another than the registered one, it is seen before it takes the place of the other one, and ends.

use std::time::Duration;

use tokio::time::timeout;
use towline_core::{NodeAddresses, State};
use towline_proto::v1::{ProbeRequest, peer_client::PeerClient};

use crate::{ProposeError, handle::ClusterHandle, peers};

/// How long the registered address may take to answer: longer than a connection and its handshake take on a busy machine. A node
/// that has moved waits for it once, where nothing says that nobody is there.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Looks whether another process answers as this node where it is registered; if so, this one has to end.
///
/// # Errors
/// When one does, or the state cannot be read.
pub(crate) async fn refuse_to_be_one(cluster: &ClusterHandle) -> Result<(), ProposeError> {
    let me = cluster.node_id();
    let registered = |state: &State| state.node(me).map(|node| node.addresses.clone());
    let is_elsewhere = |known: &NodeAddresses| known.peer != cluster.advertised().peer;
    if !cluster.local(registered).is_none_or(|known| is_elsewhere(&known)) {
        return Ok(());
    }
    // What lies in the folder may be older than the last move of this node.
    let Some(known) = cluster.read(registered).await?.filter(is_elsewhere) else { return Ok(()) };
    let channel = peers::channel_at(me, known.peer.clone(), &cluster.cluster_name(), cluster.credentials());
    let Ok(channel) = channel else { return Ok(()) };
    let mut client = PeerClient::new(channel);
    let Ok(Ok(answer)) = timeout(PROBE_TIMEOUT, client.probe(ProbeRequest {})).await else { return Ok(()) };
    if answer.into_inner().boot.as_ref() == cluster.boot().as_uuid().as_bytes().as_slice() {
        return Ok(());
    }
    let reason = format!(
        "node {me} runs already, and answers at {}: this data folder is a copy of its own, or it was not stopped before it moved \
         here. Stop it there first; a further machine joins with an empty folder and a token",
        known.peer
    );
    cluster.own_session().end_fenced(reason.clone());
    Err(ProposeError::Unavailable { reason, retry_after: PROBE_TIMEOUT })
}

//! Calls to one node's peer listener without being a running node: for tools that measure a cluster.
//!
//! A caller has the credentials of a node and speaks as that node does when it forwards a proposal or asks for a read.

use std::{path::Path, time::Duration};

use tokio::time::timeout;
use towline_core::{NodeId, Note, Proposal, Reply};
use towline_proto::v1::{self, peer_client::PeerClient};

use crate::{
    ClusterError, Identity, ProposeError, Unavailable,
    credentials::Credentials,
    handle::{self, Attempt, RETRY_AFTER},
    leader::Written,
    membership::Folder,
    peers::{self, PeerChannel},
};

/// How long a call waits for its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The credentials of a node, read from a folder that no running node holds.
pub struct PeerCredentials {
    identity: Identity,
    credentials: Credentials,
    /// Held, so that no node starts there meanwhile.
    _folder: Folder,
}

impl PeerCredentials {
    /// Reads them.
    ///
    /// # Errors
    /// When the folder is no node's, or in use.
    pub fn open(data: &Path) -> Result<Self, ClusterError> {
        let (folder, identity, credentials) = Folder::open(data)?;
        Ok(Self { identity, credentials, _folder: folder })
    }

    /// A connection of its own to the node whose peer listener is at `address`; it connects when it is first used.
    ///
    /// # Errors
    /// When the credentials make no TLS client.
    pub fn caller(&self, node: NodeId, address: &str) -> Result<PeerCaller, ClusterError> {
        let channel = peers::channel_at(node, address.to_owned(), &self.identity.cluster_name, &self.credentials)?;
        Ok(PeerCaller { node, client: PeerClient::new(channel) })
    }
}

/// One connection to one node; cheap to clone, and clones share it.
#[derive(Clone)]
pub struct PeerCaller {
    node: NodeId,
    client: PeerClient<PeerChannel>,
}

impl PeerCaller {
    /// Has the node, which must lead, commit a proposal.
    ///
    /// # Errors
    /// As for [`crate::ClusterHandle::propose`]; it is tried once.
    pub async fn propose(&mut self, proposal: &Proposal) -> Result<Reply, ProposeError> {
        let wait_ms = u32::try_from(ANSWER_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
        let request = v1::ProposeRequest { proposal: handle::encode(proposal)?, wait_ms, route: None };
        let attempt = match timeout(ANSWER_TIMEOUT, self.client.propose(request)).await {
            Err(_) => Attempt::Here(Written::Unknown("no answer came".to_owned())),
            Ok(Ok(answer)) => handle::written(self.node, answer.into_inner()),
            Ok(Err(status)) => handle::failed_forward(self.node, &status),
        };
        let unavailable = |reason| ProposeError::Unavailable { reason, retry_after: RETRY_AFTER };
        match attempt {
            Attempt::Here(Written::Applied { outcome, .. }) => Ok(outcome?.reply),
            Attempt::Here(Written::NotLeader(_)) => Err(unavailable(format!("node {} does not lead", self.node))),
            Attempt::Here(Written::Unavailable(reason)) | Attempt::Unreached(reason) => Err(unavailable(reason)),
            Attempt::Here(Written::Unknown(reason)) => Err(ProposeError::Unknown { waited: ANSWER_TIMEOUT, reason }),
        }
    }

    /// Reads a note so that everything is seen that was committed before the call.
    ///
    /// # Errors
    /// When the node does not answer, or has no quorum.
    pub async fn note(&mut self, key: &str) -> Result<Option<Note>, Unavailable> {
        let call = self.client.note(v1::NoteRequest { key: key.to_owned() });
        let failed = |reason| Unavailable { reason: format!("read a note at node {}: {reason}", self.node) };
        match timeout(ANSWER_TIMEOUT, call).await {
            Err(_) => Err(failed(format!("no answer within {ANSWER_TIMEOUT:?}"))),
            Ok(Err(status)) => Err(failed(peers::root_cause(&status))),
            Ok(Ok(answer)) => {
                let v1::NoteResponse { value, version } = answer.into_inner();
                Ok(value.map(|value| Note { value, version }))
            }
        }
    }
}

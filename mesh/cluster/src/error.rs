//! What can go wrong in the cluster, kept apart by what the caller can do about it.

use std::{path::PathBuf, time::Duration};

use towline_core::Rejection;

/// Why a proposal has no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProposeError {
    /// The core refused it: the proposer's doing.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// It was not sent to any leader, so it has not happened and will not.
    #[error("cluster is unavailable: {reason}")]
    Unavailable {
        /// What is missing.
        reason: String,
        /// When another try is worth it.
        retry_after: Duration,
    },
    /// It was sent, and no answer came: it may have happened, or may yet. Proposing it again is safe.
    #[error("outcome is unknown after {waited:?}: {reason}")]
    Unknown {
        /// How long an answer was waited for.
        waited: Duration,
        /// What was seen last.
        reason: String,
    },
}

/// Why a linearizable read has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cluster is unavailable: {reason}")]
pub struct Unavailable {
    /// What is missing.
    pub reason: String,
}

impl From<Unavailable> for ProposeError {
    fn from(error: Unavailable) -> Self {
        ProposeError::Unavailable { reason: error.reason, retry_after: crate::handle::RETRY_AFTER }
    }
}

/// Why a node did not start, did not join, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A file of the data folder.
    #[error("{action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A running process holds the data folder.
    #[error("data folder {} is in use by a running node", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// The data folder has no identity.
    #[error("data folder {} belongs to no cluster: found one with `towline init`, or join one with a token", path.display())]
    NoIdentity {
        /// The folder.
        path: PathBuf,
    },
    /// The data folder has an identity already.
    #[error("data folder {} belongs to node {node} of cluster {cluster:?}", path.display())]
    Occupied {
        /// The folder.
        path: PathBuf,
        /// The node that it belongs to.
        node: towline_core::NodeId,
        /// The cluster that it belongs to.
        cluster: String,
    },
    /// The identity and what lies beside it do not belong together.
    #[error("data folder {}: {reason}", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// A name or address that cannot be part of a cluster.
    #[error("{what} {value:?} {reason}")]
    Invalid {
        /// Which value.
        what: &'static str,
        /// The value.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A join token that is none. It is not repeated here: it is a secret.
    #[error("join token {reason}")]
    Token {
        /// What is wrong with it.
        reason: String,
    },
    /// A certificate could not be made or read.
    #[error("{action}: {reason}")]
    Certificate {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        reason: String,
    },
    /// The node that was asked to take this one in did not.
    #[error("enrol at {address}: {reason}")]
    Enrol {
        /// The node that was asked.
        address: String,
        /// What it said.
        reason: String,
        /// Whether it answered at all.
        reached: bool,
    },
    /// The log or a snapshot cannot be opened.
    #[error(transparent)]
    Store(#[from] crate::raft::StoreError),
    /// A saved snapshot cannot be used.
    #[error(transparent)]
    Archive(#[from] crate::archive::ArchiveError),
    /// The Raft core stopped for good; the process must end.
    #[error("raft core stopped: {reason}")]
    Fatal {
        /// What it said.
        reason: String,
    },
}

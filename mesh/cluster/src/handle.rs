//! The one way into the cluster for everything above it.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::sync::{broadcast, watch};
use towline_core::{
    AgentSpec, BootId, Effect, NodeAddresses, NodeHealth, NodeId, NodeRole, Proposal, Reply, State, TaskId,
    TraceContext,
};

use crate::{ProposeError, Unavailable};

/// When another try is worth it after [`ProposeError::Unavailable`]: an election takes about a second.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What a node tells the cluster when it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// How many tasks it runs at the same time.
    pub capacity: u32,
    /// The agents that its configuration declares.
    pub agents: Vec<AgentSpec>,
}

/// The cluster as this node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Name of the cluster.
    pub cluster: String,
    /// This node.
    pub node: NodeId,
    /// The leader, if one is known.
    pub leader: Option<NodeId>,
    /// The current term.
    pub term: u64,
    /// All nodes, by id.
    pub members: Vec<MemberStatus>,
    /// Log index up to which entries are known to be committed.
    pub committed: u64,
    /// Log index up to which this node has applied entries.
    pub applied: u64,
    /// How many voters there are and how many can be lost, in words.
    pub quorum: String,
    /// The disk of this node.
    pub disk: DiskStatus,
}

/// One node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its id.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Voter or learner, as it was enrolled.
    pub role: NodeRole,
    /// Whether it counts for the quorum at this moment: a voter is a learner until it has caught up.
    pub voting: bool,
    /// Whether it can run tasks.
    pub health: NodeHealth,
    /// Where it is reached.
    pub addresses: NodeAddresses,
    /// Version of its binary.
    pub version: String,
    /// How many tasks it runs at the same time.
    pub capacity: u32,
    /// How many tasks it runs.
    pub load: usize,
    /// Log index up to which it holds the log; only the leader knows.
    pub matched: Option<u64>,
    /// How many entries it is behind; only the leader knows.
    pub lag: Option<u64>,
}

/// Whether a node can write its log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Whether it can.
    pub health: DiskHealth,
    /// What the log said last.
    pub detail: String,
}

/// One word for the disk of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskHealth {
    /// The log is written.
    Ok,
    /// There is no room for the log.
    Full,
}

/// Wakes when something about a task was applied on this node.
#[derive(Debug)]
pub struct TaskWatch {
    changes: watch::Receiver<u64>,
}

impl TaskWatch {
    /// Returns when some event or change of lease of the task was applied here since the last call (or since the watch
    /// was made). Changes are counted, never lost: several of them wake it once.
    pub async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

struct Inner {
    effects: broadcast::Sender<Effect>,
    session: watch::Sender<bool>,
}

/// The one way into the cluster; cheap to clone.
#[derive(Clone)]
pub struct ClusterHandle(Arc<Inner>);

impl ClusterHandle {
    /// This node.
    pub fn node_id(&self) -> NodeId {
        NodeId(1)
    }

    /// This life of this process.
    pub fn boot(&self) -> BootId {
        BootId::from_uuid(uuid::Uuid::nil())
    }

    /// Name of the cluster.
    pub fn cluster_name(&self) -> String {
        String::new()
    }

    /// Has a proposal committed, and waits until this node has applied it.
    ///
    /// # Errors
    /// See [`ProposeError`]: refused, not sent, or sent without an answer.
    pub async fn propose(&self, proposal: Proposal, parent: Option<&TraceContext>) -> Result<Reply, ProposeError> {
        let _ = (proposal, parent);
        Err(ProposeError::Unavailable { reason: "no leader".into(), retry_after: RETRY_AFTER })
    }

    /// Reads the state so that everything is seen that was committed before the call, on whatever node.
    ///
    /// # Errors
    /// When no leader with a quorum answers in time.
    pub async fn read<R>(&self, f: impl FnOnce(&State) -> R) -> Result<R, Unavailable> {
        let _ = f;
        Err(Unavailable { reason: "no leader".into() })
    }

    /// Reads what this node has applied.
    pub fn local<R>(&self, f: impl FnOnce(&State) -> R) -> R {
        f(&State::default())
    }

    /// Watches one task.
    pub fn watch_task(&self, id: TaskId) -> TaskWatch {
        let _ = id;
        TaskWatch { changes: watch::channel(0).1 }
    }

    /// The effects of entries that are applied here from now on. A receiver that lags reconciles from the state.
    pub fn effects(&self) -> broadcast::Receiver<Effect> {
        self.0.effects.subscribe()
    }

    /// Registers this node and keeps its session alive from then on.
    ///
    /// # Errors
    /// As for [`ClusterHandle::propose`].
    pub async fn register(&self, registration: Registration) -> Result<(), ProposeError> {
        let _ = registration;
        Err(ProposeError::Unavailable { reason: "no leader".into(), retry_after: RETRY_AFTER })
    }

    /// Whether this node may act on its leases: its session was kept alive recently enough.
    pub fn may_act(&self) -> bool {
        *self.0.session.borrow()
    }

    /// [`ClusterHandle::may_act`] as a signal: owners stop when it turns false.
    pub fn session(&self) -> watch::Receiver<bool> {
        self.0.session.subscribe()
    }

    /// Gives up this node's leases and its leadership, for a stop in order.
    ///
    /// # Errors
    /// As for [`ClusterHandle::propose`].
    pub async fn resign(&self) -> Result<(), ProposeError> {
        Err(ProposeError::Unavailable { reason: "no leader".into(), retry_after: RETRY_AFTER })
    }

    /// The cluster as this node sees it.
    pub fn status(&self) -> ClusterStatus {
        ClusterStatus {
            cluster: self.cluster_name(),
            node: self.node_id(),
            leader: None,
            term: 0,
            members: Vec::new(),
            committed: 0,
            applied: 0,
            quorum: String::new(),
            disk: DiskStatus { health: DiskHealth::Ok, detail: String::new() },
        }
    }

    /// Makes a join token, good for one node.
    ///
    /// # Errors
    /// As for [`ClusterHandle::propose`].
    pub async fn mint_token(&self, role: NodeRole, ttl: Duration) -> Result<String, ProposeError> {
        let _ = (role, ttl);
        Err(ProposeError::Unavailable { reason: "no leader".into(), retry_after: RETRY_AFTER })
    }

    /// The HTTP client for other nodes' peer listeners: mutual TLS, pooled.
    pub fn peer_http(&self) -> reqwest::Client {
        reqwest::Client::new()
    }

    /// Base URL of a node's peer listener, for [`ClusterHandle::peer_http`].
    pub fn peer_url(&self, node: NodeId) -> Option<String> {
        let _ = node;
        None
    }
}

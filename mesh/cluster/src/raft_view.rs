//! What Raft itself says of the nodes. It never waits for the state, which may stand still when it is asked.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use openraft::{Instant as _, async_runtime::WatchReceiver as _};

use crate::{handle::ClusterHandle, raft::TypeConfig};

pub(crate) type Metrics = openraft::RaftMetrics<TypeConfig>;

/// A node that answered this recently lives.
pub(crate) const HEARD_WITHIN: Duration = Duration::from_millis(1_500);

/// What this node's Raft says at one moment.
pub(crate) struct RaftView {
    me: u64,
    leads: bool,
    metrics: Metrics,
}

impl RaftView {
    pub(crate) fn of(cluster: &ClusterHandle) -> Self {
        let me = cluster.node_id().0;
        match cluster.leadership().raft() {
            Some(raft) => {
                Self { me, leads: raft.as_leader().is_ok(), metrics: raft.metrics().borrow_watched().clone() }
            }
            None => Self { me, leads: false, metrics: as_fed(cluster) },
        }
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Whether this node leads.
    pub(crate) fn leads(&self) -> bool {
        self.leads
    }

    pub(crate) fn is_member(&self, node: u64) -> bool {
        self.metrics.membership_config.membership().get_node(&node).is_some()
    }

    /// Members, voters or not.
    pub(crate) fn members(&self) -> impl Iterator<Item = u64> {
        self.metrics.membership_config.membership().nodes().map(|(node, _)| *node)
    }

    pub(crate) fn voters(&self) -> BTreeSet<u64> {
        self.metrics.membership_config.membership().voter_ids().collect()
    }

    /// Whether the voters are changed by two quorums, and the second step is yet to come.
    pub(crate) fn is_joint(&self) -> bool {
        self.metrics.membership_config.membership().get_joint_config().len() > 1
    }

    /// Log index up to which a node holds the log; only the leader knows.
    pub(crate) fn matched(&self, node: u64) -> Option<u64> {
        if !self.leads {
            return None;
        }
        if node == self.me {
            return Some(self.last());
        }
        let replicated = self.metrics.replication.as_ref()?.get(&node)?;
        Some(replicated.as_ref().map_or(0, |log_id| log_id.index))
    }

    /// How many entries a node is behind; only the leader knows.
    pub(crate) fn lag(&self, node: u64) -> Option<u64> {
        self.matched(node).map(|matched| self.last().saturating_sub(matched))
    }

    /// Whether a node has answered its leader, which this node is, a moment ago.
    pub(crate) fn is_heard(&self, node: u64) -> bool {
        let heard = || Some(self.metrics.heartbeat.as_ref()?.get(&node)?.as_ref()?.elapsed() < HEARD_WITHIN);
        node == self.me || heard() == Some(true)
    }

    /// Whether the other voters could decide without these, being a majority of themselves that answers.
    pub(crate) fn can_do_without(&self, leaving: &BTreeSet<u64>) -> bool {
        let stay: BTreeSet<u64> = self.voters().difference(leaving).copied().collect();
        let heard = stay.iter().filter(|node| self.is_heard(**node)).count();
        heard > stay.len() / 2
    }

    fn last(&self) -> u64 {
        self.metrics.last_log_index.unwrap_or_default()
    }
}

/// What a worker, which has no Raft, would say if it had: what it has been told and has applied.
fn as_fed(cluster: &ClusterHandle) -> Metrics {
    let leadership = cluster.leadership();
    let (term, leader) = leadership.term_and_leader();
    let (last_applied, membership) = leadership.view().applied_membership();
    let mut metrics = Metrics::new_initial(cluster.node_id().0);
    metrics.current_term = term;
    metrics.current_leader = leader.map(|leader| leader.0);
    metrics.last_applied = last_applied;
    metrics.cluster_committed = last_applied;
    metrics.membership_config = Arc::new(membership);
    metrics
}

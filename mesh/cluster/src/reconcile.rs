//! Makes the Raft membership what the state says of its nodes: whoever enrolled becomes a learner, and a voter once it has
//! caught up; whoever was removed leaves it. Other voters are made only once a majority of them holds every named
//! blob. The leader does it, one change at a time; a new leader finishes what the one before it began.

use std::{collections::BTreeSet, time::Duration};

use openraft::{ChangeMembers, Instant as _};
use tokio::time::{sleep, timeout};
use towline_core::{NodeAddresses, NodeId, NodeRole};

use crate::{blobs, handle::ClusterHandle, status};

/// How often the leader compares.
const COMPARE_EVERY: Duration = Duration::from_millis(200);
/// A change that is not committed within this time is looked at again.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// A learner this many entries behind has caught up: the rest is sent within milliseconds.
const CAUGHT_UP: u64 = 100;
/// A learner that answered this recently lives: a dead voter would only count against the quorum.
const HEARD_WITHIN: Duration = Duration::from_millis(1_500);

/// One change of the membership.
#[derive(Debug)]
enum Change {
    /// A change by two quorums has been left half-way.
    Finish,
    Learn(u64, NodeAddresses),
    Promote(BTreeSet<u64>),
    /// Voters that were removed lose their vote and leave.
    Remove(BTreeSet<u64>),
    /// Learners that were removed leave.
    Forget(BTreeSet<u64>),
    /// This node leads and was removed: another one has to see it out.
    HandOver,
}

/// Runs as long as the node does, and acts while it leads.
pub(crate) async fn run(cluster: ClusterHandle) {
    loop {
        sleep(COMPARE_EVERY).await;
        let Some(change) = next_change(&cluster) else {
            cluster.blobs().set_waiting(None);
            continue;
        };
        let waits_for = match voters_after(&cluster, &change) {
            Some(voters) => blobs::unsafe_reason(&cluster, &voters).await,
            None => None,
        };
        cluster.blobs().set_waiting(waits_for.clone());
        if let Some(reason) = waits_for {
            tracing::debug!(?change, reason, "membership change waits");
            continue;
        }
        tracing::info!(?change, "membership changes");
        match timeout(CHANGE_TIMEOUT, make(&cluster, change)).await {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => tracing::debug!(reason, "membership change is made again"),
            Err(_) => tracing::warn!("membership change was not committed within {CHANGE_TIMEOUT:?}"),
        }
    }
}

/// The voters that a change makes, if it makes others.
fn voters_after(cluster: &ClusterHandle, change: &Change) -> Option<BTreeSet<u64>> {
    let metrics = status::metrics(cluster);
    let voters: BTreeSet<u64> = metrics.membership_config.membership().voter_ids().collect();
    match change {
        Change::Promote(nodes) => Some(voters.union(nodes).copied().collect()),
        Change::Remove(nodes) => Some(voters.difference(nodes).copied().collect()),
        Change::Finish | Change::Learn(..) | Change::Forget(_) | Change::HandOver => None,
    }
}

async fn make(cluster: &ClusterHandle, change: Change) -> Result<(), String> {
    let raft = cluster.leadership().raft();
    let changed = match change {
        Change::Finish => raft.change_membership(ChangeMembers::AddVoterIds(BTreeSet::new()), true).await,
        Change::Learn(node, addresses) => raft.add_learner(node, addresses, false).await,
        Change::Promote(nodes) => raft.change_membership(ChangeMembers::AddVoterIds(nodes), true).await,
        Change::Remove(nodes) => raft.change_membership(ChangeMembers::RemoveVoters(nodes), false).await,
        Change::Forget(nodes) => raft.change_membership(ChangeMembers::RemoveNodes(nodes), false).await,
        Change::HandOver => {
            cluster.hand_over().await;
            return Ok(());
        }
    };
    changed.map(|_| ()).map_err(|error| error.to_string())
}

fn next_change(cluster: &ClusterHandle) -> Option<Change> {
    let metrics = status::metrics(cluster);
    if cluster.leadership().raft().as_leader().is_err() {
        return None;
    }
    let membership = metrics.membership_config.membership();
    if membership.get_joint_config().len() > 1 {
        return Some(Change::Finish);
    }
    let nodes: Vec<(u64, NodeRole, NodeAddresses)> =
        cluster.local(|state| state.nodes().map(|node| (node.id.0, node.role, node.addresses.clone())).collect());
    if let Some((node, _, addresses)) = nodes.iter().find(|(node, _, _)| membership.get_node(node).is_none()) {
        return Some(Change::Learn(*node, addresses.clone()));
    }
    let last = metrics.last_log_index.unwrap_or_default();
    let caught_up = |node: &u64| {
        let matched = metrics.replication.as_ref()?.get(node)?.as_ref()?.index;
        let heard = metrics.heartbeat.as_ref()?.get(node)?.as_ref()?.elapsed();
        Some(matched + CAUGHT_UP >= last && heard < HEARD_WITHIN)
    };
    let voters: BTreeSet<u64> = membership.voter_ids().collect();
    if let Some(change) = removal(cluster, &voters, membership.nodes().map(|(node, _)| *node)) {
        return Some(change);
    }
    let fit: BTreeSet<u64> = nodes
        .iter()
        .filter(|(node, role, _)| *role == NodeRole::Voter && !voters.contains(node))
        .map(|(node, _, _)| *node)
        .filter(|node| caught_up(node) == Some(true))
        .collect();
    (!fit.is_empty()).then_some(Change::Promote(fit))
}

fn removal(cluster: &ClusterHandle, voters: &BTreeSet<u64>, members: impl Iterator<Item = u64>) -> Option<Change> {
    let removed: BTreeSet<u64> =
        cluster.local(|state| members.filter(|node| state.is_removed(NodeId(*node))).collect());
    if removed.contains(&cluster.node_id().0) {
        return Some(Change::HandOver);
    }
    let (votes, others): (BTreeSet<u64>, BTreeSet<u64>) = removed.into_iter().partition(|node| voters.contains(node));
    if !votes.is_empty() {
        return Some(Change::Remove(votes));
    }
    (!others.is_empty()).then_some(Change::Forget(others))
}

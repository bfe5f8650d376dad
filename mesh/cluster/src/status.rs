//! The cluster as one node sees it: for operators, and to pick a successor.

use std::{collections::BTreeSet, fmt};

use openraft::async_runtime::WatchReceiver;
use serde::{Deserialize, Serialize};
use towline_core::{Node, NodeAddresses, NodeHealth, NodeId, NodeRole};

use crate::{
    handle::ClusterHandle,
    raft::{RaftMembership, TypeConfig, log_store::LogHealth},
};

type Metrics = openraft::RaftMetrics<TypeConfig>;

/// A voter this many entries behind may still take the leadership over: they are sent to it first.
const SUCCESSOR_LAG: u64 = 1_000;

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
    /// How many results of owners whose lease had ended were kept as evidence, and not applied.
    #[serde(default)]
    pub late_results: u64,
    /// How many pieces of content lie beside the log.
    #[serde(default)]
    pub contents: usize,
    /// How many of them this node does not hold yet, when it looked last.
    #[serde(default)]
    pub contents_missing: usize,
    /// What a change of the voters waits for, if it waits for the content of tasks; only the leader knows.
    #[serde(default)]
    pub waits_for_content: Option<String>,
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
    /// Whether it counts for every quorum that may decide at this moment: a voter is a learner until it has caught up, and
    /// the change that makes it one is committed.
    pub voting: bool,
    /// Whether it can run tasks.
    pub health: NodeHealth,
    /// Whether the answering node has fenced it off because it lost what it had stored.
    #[serde(default)]
    pub fenced: bool,
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
    /// A write failed for good.
    Failed,
}

pub(crate) fn of(cluster: &ClusterHandle) -> ClusterStatus {
    let metrics = metrics(cluster);
    let quorums = Quorums::of(metrics.membership_config.membership(), &cluster.leadership().view().membership());
    let members: Vec<MemberStatus> = cluster.local(|state| {
        state.nodes().map(|node| member(node, state.load_of(node.id), cluster, &metrics, &quorums)).collect()
    });
    ClusterStatus {
        cluster: cluster.cluster_name(),
        node: cluster.node_id(),
        leader: metrics.current_leader.map(NodeId),
        term: metrics.current_term,
        quorum: quorums.words(&members),
        members,
        committed: metrics.cluster_committed.map_or(0, |log_id| log_id.index),
        applied: metrics.last_applied.map_or(0, |log_id| log_id.index),
        disk: disk(cluster),
        late_results: cluster.local(towline_core::State::late_results),
        contents: cluster.local(towline_core::State::named_blob_count),
        contents_missing: cluster.blobs().missing(),
        waits_for_content: cluster.blobs().waiting(),
    }
}

/// The voter that can take the leadership over, if this node leads: the one that is least behind.
pub(crate) fn successor(cluster: &ClusterHandle) -> Option<NodeId> {
    let status = of(cluster);
    if status.leader != Some(cluster.node_id()) {
        return None;
    }
    let others = status.members.iter().filter(|member| member.id != cluster.node_id());
    let fit = others.filter(|member| {
        member.voting
            && !member.fenced
            && member.health == NodeHealth::Up
            && member.lag.is_some_and(|lag| lag <= SUCCESSOR_LAG)
    });
    fit.min_by_key(|member| (member.lag, member.id)).map(|member| member.id)
}

pub(crate) fn metrics(cluster: &ClusterHandle) -> Metrics {
    cluster.leadership().raft().metrics().borrow_watched().clone()
}

/// Whether a node is a voter or learner of the Raft group, as far as this node knows.
pub(crate) fn is_in_raft(cluster: &ClusterHandle, node: NodeId) -> bool {
    metrics(cluster).membership_config.membership().get_node(&node.0).is_some()
}

fn member(node: &Node, load: usize, cluster: &ClusterHandle, metrics: &Metrics, quorums: &Quorums) -> MemberStatus {
    let last = metrics.last_log_index.unwrap_or_default();
    let leads = metrics.current_leader == Some(cluster.node_id().0);
    let matched = if leads && node.id == cluster.node_id() {
        Some(last)
    } else {
        let replicated = metrics.replication.as_ref().and_then(|replication| replication.get(&node.id.0));
        replicated.map(|log_id| log_id.as_ref().map_or(0, |log_id| log_id.index))
    };
    MemberStatus {
        id: node.id,
        name: node.name.clone(),
        role: node.role,
        voting: quorums.count(node.id),
        health: node.health,
        fenced: cluster.peers().fences().of(node.id).is_some(),
        addresses: node.addresses.clone(),
        version: node.version.clone(),
        capacity: node.capacity,
        load,
        matched,
        lag: matched.map(|matched| last.saturating_sub(matched)),
    }
}

/// The sets of voters that decide, each by its majority. More than one while the membership changes: what is appended here
/// may decide already, and what is applied may still decide if the change is lost with its leader.
struct Quorums(Vec<BTreeSet<u64>>);

impl Quorums {
    fn of(appended: &RaftMembership, applied: &RaftMembership) -> Self {
        let mut sets = appended.get_joint_config().clone();
        sets.extend(applied.get_joint_config().iter().cloned());
        sets.sort_unstable();
        sets.dedup();
        Self(sets)
    }

    fn count(&self, node: NodeId) -> bool {
        !self.0.is_empty() && self.0.iter().all(|voters| voters.contains(&node.0))
    }

    fn words(&self, members: &[MemberStatus]) -> String {
        let up: BTreeSet<u64> = members
            .iter()
            .filter(|member| !member.fenced && member.health == NodeHealth::Up)
            .map(|member| member.id.0)
            .collect();
        let weakest = self.0.iter().map(|voters| Majority::of(voters, &up)).min_by_key(Majority::spare);
        let Some(weakest) = weakest else { return "no voters are known yet".to_owned() };
        let changes = if self.0.len() > 1 { ", while the membership changes" } else { "" };
        format!("{weakest}{changes}")
    }
}

/// What one set of voters needs to decide, and has.
struct Majority {
    voters: usize,
    quorum: usize,
    up: usize,
}

impl Majority {
    fn of(voters: &BTreeSet<u64>, up: &BTreeSet<u64>) -> Self {
        Self { voters: voters.len(), quorum: voters.len() / 2 + 1, up: voters.intersection(up).count() }
    }

    /// How many more can be lost; below zero there is no quorum.
    fn spare(&self) -> isize {
        self.up.cast_signed() - self.quorum.cast_signed()
    }
}

impl fmt::Display for Majority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { voters, quorum, up } = self;
        let noun = if *voters == 1 { "voter" } else { "voters" };
        match self.spare() {
            spare @ 0.. => write!(f, "{voters} {noun}, quorum {quorum}, can lose {spare} more"),
            _ => write!(f, "{voters} {noun}, quorum {quorum}, only {up} up"),
        }
    }
}

fn disk(cluster: &ClusterHandle) -> DiskStatus {
    let log = cluster.leadership().log();
    match log.health() {
        LogHealth::Ok => DiskStatus { health: DiskHealth::Ok, detail: "log is written".to_owned() },
        LogHealth::Full => {
            let detail = log.has_room().map_or_else(|full| full.to_string(), |()| "a write waits for room".to_owned());
            DiskStatus { health: DiskHealth::Full, detail }
        }
        LogHealth::Failed { detail } => DiskStatus { health: DiskHealth::Failed, detail },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership(sets: &[&[u64]]) -> RaftMembership {
        let sets: Vec<BTreeSet<u64>> = sets.iter().map(|set| set.iter().copied().collect()).collect();
        let nodes = sets.iter().flatten().map(|node| (*node, NodeAddresses::default()));
        let nodes: std::collections::BTreeMap<u64, NodeAddresses> = nodes.collect();
        RaftMembership::new(sets, nodes).unwrap()
    }

    fn quorums(appended: &[&[u64]], applied: &[&[u64]]) -> Quorums {
        Quorums::of(&membership(appended), &membership(applied))
    }

    fn words(quorums: &Quorums, up: &[u64]) -> String {
        let member = |id: &u64| MemberStatus {
            id: NodeId(*id),
            name: String::new(),
            role: NodeRole::Voter,
            voting: true,
            health: NodeHealth::Up,
            fenced: false,
            addresses: NodeAddresses::default(),
            version: String::new(),
            capacity: 0,
            load: 0,
            matched: None,
            lag: None,
        };
        quorums.words(&up.iter().map(member).collect::<Vec<_>>())
    }

    #[test]
    fn what_can_be_lost_is_said_in_words() {
        let three = quorums(&[&[1, 2, 3]], &[&[1, 2, 3]]);
        assert_eq!(words(&three, &[1, 2, 3]), "3 voters, quorum 2, can lose 1 more");
        assert_eq!(words(&three, &[1, 2, 4]), "3 voters, quorum 2, can lose 0 more");
        assert_eq!(words(&three, &[3]), "3 voters, quorum 2, only 1 up");
        assert_eq!(words(&quorums(&[&[1]], &[&[1]]), &[1]), "1 voter, quorum 1, can lose 0 more");
        assert_eq!(words(&Quorums(Vec::new()), &[]), "no voters are known yet");
    }

    #[test]
    fn a_voter_counts_once_the_change_that_made_it_one_is_committed() {
        for (appended, applied) in [(&[&[1, 2][..], &[1, 2, 3]][..], &[&[1, 2][..]][..]), (&[&[1, 2, 3]], &[&[1, 2]])] {
            let changing = quorums(appended, applied);
            assert!(changing.count(NodeId(2)));
            assert!(!changing.count(NodeId(3)));
            let said = words(&changing, &[1, 2, 3]);
            assert_eq!(said, "2 voters, quorum 2, can lose 0 more, while the membership changes");
        }
        assert!(quorums(&[&[1, 2, 3]], &[&[1, 2, 3]]).count(NodeId(3)));
    }
}

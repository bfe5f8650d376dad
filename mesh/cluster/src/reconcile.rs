//! Makes the Raft membership what the state says of its nodes: whoever enrolled becomes a learner, and a voter once it has
//! caught up; whoever was demoted becomes a learner again; whoever was removed leaves. Other voters are made only once a
//! majority of them holds every named blob. The leader does it, one change at a time; a new leader finishes what the one
//! before it began. A leader that is to have no vote, or to be empty, hands over.

use std::{collections::BTreeSet, time::Duration};

use openraft::ChangeMembers;
use tokio::time::{Instant, sleep, timeout};
use towline_core::{Node, NodeAddresses, NodeId, NodeRole};

use crate::{blobs, handle::ClusterHandle, raft_view::RaftView};

/// How often the leader compares.
const COMPARE_EVERY: Duration = Duration::from_millis(200);
/// A change that is not committed within this time is looked at again.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// A learner this many entries behind has caught up: the rest is sent within milliseconds.
const CAUGHT_UP: u64 = 100;
/// Between two tries to hand over: while one is made, no session is kept alive.
const HAND_OVER_EVERY: Duration = Duration::from_secs(5);

/// A change that failed is made again after twice the time, up to this: what it waits for, a node that does not answer or a
/// quorum, comes back in seconds at best, and each try is a warning of Raft's in the log.
const SLOWEST_TRY: Duration = Duration::from_secs(5);

/// One change of the membership.
#[derive(Debug, Clone, PartialEq)]
enum Change {
    /// A change by two quorums has been left half-way.
    Finish,
    Learn(u64, NodeAddresses),
    Promote(BTreeSet<u64>),
    /// A voter becomes a learner.
    Demote(BTreeSet<u64>),
    /// Voters that were removed lose their vote and leave.
    Remove(BTreeSet<u64>),
    /// Learners that were removed leave.
    Forget(BTreeSet<u64>),
    /// This node leads, and another one should.
    HandOver,
}

/// Runs as long as the node does, and acts while it leads.
pub(crate) async fn run(cluster: ClusterHandle) {
    let mut handed_over: Option<Instant> = None;
    let mut tries = Tries::default();
    loop {
        sleep(COMPARE_EVERY).await;
        let Some(change) = next_change(&cluster) else {
            cluster.blobs().set_waiting(None);
            tries = Tries::default();
            continue;
        };
        if matches!(change, Change::HandOver) {
            if handed_over.is_none_or(|at| at.elapsed() >= HAND_OVER_EVERY) && cluster.hand_over().await {
                handed_over = Some(Instant::now());
            }
            continue;
        }
        let waits_for = match voters_after(&cluster, &change) {
            Some(voters) => blobs::unsafe_reason(&cluster, &voters).await,
            None => None,
        };
        cluster.blobs().set_waiting(waits_for.clone());
        if let Some(reason) = waits_for {
            tracing::debug!(?change, reason, "membership change waits");
            continue;
        }
        if !tries.is_due(&change, Instant::now()) {
            continue;
        }
        if tries.begin(change.clone()) {
            tracing::info!(?change, "membership changes");
        }
        let failed = match timeout(CHANGE_TIMEOUT, make(&cluster, change)).await {
            Ok(Ok(())) => {
                tries = Tries::default();
                continue;
            }
            Ok(Err(reason)) => reason,
            Err(_) => format!("not committed within {CHANGE_TIMEOUT:?}"),
        };
        if tries.failed(&failed, Instant::now()) {
            tracing::warn!(reason = failed, "membership change is made again until it succeeds");
        }
    }
}

/// The change that is tried, how often it failed, and what was told of it.
#[derive(Debug, Default)]
struct Tries {
    change: Option<Change>,
    failures: u32,
    reason: String,
    next: Option<Instant>,
}

impl Tries {
    /// Another change than the one that failed is due at once.
    fn is_due(&self, change: &Change, now: Instant) -> bool {
        self.change.as_ref() != Some(change) || self.next.is_none_or(|next| now >= next)
    }

    /// Returns whether it is another change than before.
    fn begin(&mut self, change: Change) -> bool {
        let is_new = self.change.as_ref() != Some(&change);
        if is_new {
            *self = Self { change: Some(change), ..Self::default() };
        }
        is_new
    }

    /// Returns whether it failed for another reason than before.
    fn failed(&mut self, reason: &str, now: Instant) -> bool {
        let pause = COMPARE_EVERY.saturating_mul(2_u32.saturating_pow(self.failures)).min(SLOWEST_TRY);
        self.failures += 1;
        self.next = Some(now + pause);
        let is_new = self.reason != reason;
        reason.clone_into(&mut self.reason);
        is_new
    }
}

/// The voters that a change makes, if it makes others.
fn voters_after(cluster: &ClusterHandle, change: &Change) -> Option<BTreeSet<u64>> {
    let voters = RaftView::of(cluster).voters();
    match change {
        Change::Promote(nodes) => Some(voters.union(nodes).copied().collect()),
        Change::Demote(nodes) | Change::Remove(nodes) => Some(voters.difference(nodes).copied().collect()),
        Change::Finish | Change::Learn(..) | Change::Forget(_) | Change::HandOver => None,
    }
}

async fn make(cluster: &ClusterHandle, change: Change) -> Result<(), String> {
    let raft = cluster.leadership().raft().ok_or("a worker is in no Raft group")?;
    let changed = match change {
        Change::Finish => raft.change_membership(ChangeMembers::AddVoterIds(BTreeSet::new()), true).await,
        Change::Learn(node, addresses) => raft.add_learner(node, addresses, false).await,
        Change::Promote(nodes) => raft.change_membership(ChangeMembers::AddVoterIds(nodes), true).await,
        Change::Demote(nodes) => raft.change_membership(ChangeMembers::RemoveVoters(nodes), true).await,
        Change::Remove(nodes) => raft.change_membership(ChangeMembers::RemoveVoters(nodes), false).await,
        Change::Forget(nodes) => raft.change_membership(ChangeMembers::RemoveNodes(nodes), false).await,
        // The caller does it, at its own pace.
        Change::HandOver => return Ok(()),
    };
    changed.map(|_| ()).map_err(|error| error.to_string())
}

fn next_change(cluster: &ClusterHandle) -> Option<Change> {
    let raft = RaftView::of(cluster);
    if !raft.leads() {
        return None;
    }
    if raft.is_joint() {
        return Some(Change::Finish);
    }
    let nodes: Vec<Wanted> =
        cluster.local(|state| state.nodes().filter(|node| node.keeps_log()).map(Wanted::of).collect());
    if let Some(new) = nodes.iter().find(|node| !raft.is_member(node.id)) {
        return Some(Change::Learn(new.id, new.addresses.clone()));
    }
    let voters = raft.voters();
    if let Some(change) = removal(cluster, &voters, raft.members()) {
        return Some(change);
    }
    let wants_vote = |node: &&Wanted| node.role == NodeRole::Voter && !voters.contains(&node.id);
    let fit: BTreeSet<u64> =
        nodes.iter().filter(wants_vote).map(|node| node.id).filter(|node| has_caught_up(&raft, *node)).collect();
    if !fit.is_empty() {
        return Some(Change::Promote(fit));
    }
    demotion(cluster, &raft, &nodes).or_else(|| emptied_leader(cluster, &nodes))
}

/// What the state wants of a node.
struct Wanted {
    id: u64,
    role: NodeRole,
    is_drained: bool,
    addresses: NodeAddresses,
}

impl Wanted {
    fn of(node: &Node) -> Self {
        let addresses = node.addresses.clone();
        Self { id: node.id.0, role: node.role, is_drained: node.draining.is_some(), addresses }
    }
}

fn has_caught_up(raft: &RaftView, node: u64) -> bool {
    raft.lag(node).is_some_and(|lag| lag <= CAUGHT_UP) && raft.is_heard(node)
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

/// One at a time, and only where the voters that stay can decide: the state counts a voter before it has caught up.
fn demotion(cluster: &ClusterHandle, raft: &RaftView, nodes: &[Wanted]) -> Option<Change> {
    let voters = raft.voters();
    let demoted = nodes.iter().filter(|node| node.role == NodeRole::Learner && voters.contains(&node.id));
    let mut can_go = demoted.map(|node| BTreeSet::from([node.id])).filter(|node| raft.can_do_without(node));
    let me = BTreeSet::from([cluster.node_id().0]);
    let node = can_go.next()?;
    Some(if node == me { Change::HandOver } else { Change::Demote(node) })
}

fn emptied_leader(cluster: &ClusterHandle, nodes: &[Wanted]) -> Option<Change> {
    let me = cluster.node_id().0;
    let is_drained = nodes.iter().any(|node| node.id == me && node.is_drained);
    (is_drained && cluster.meant_successor().is_some()).then_some(Change::HandOver)
}

/// What a node waits for until it is what the state wants it to be, in words.
pub(crate) fn waits_for(cluster: &ClusterHandle, raft: &RaftView, node: &Node, load: usize) -> Option<String> {
    let mut waits = Vec::new();
    if node.leaving {
        waits.push("leaves when its session has ended".to_owned());
    }
    waits.extend(waits_for_role(cluster, raft, node));
    if node.draining.is_some() && load > 0 {
        let noun = if load == 1 { "task" } else { "tasks" };
        waits.push(format!("{load} {noun} left"));
    }
    (!waits.is_empty()).then(|| waits.join("; "))
}

fn waits_for_role(cluster: &ClusterHandle, raft: &RaftView, node: &Node) -> Option<String> {
    let id = node.id.0;
    let seen = raft.leads().then(|| Seen {
        is_heard: raft.is_heard(id),
        lag: raft.lag(id).unwrap_or_default(),
        can_go: raft.can_do_without(&BTreeSet::from([id])),
        leads: node.id == cluster.node_id(),
    });
    match (node.role, raft.voters().contains(&id)) {
        (NodeRole::Voter, true) | (NodeRole::Learner, false) | (NodeRole::Worker, _) => None,
        (NodeRole::Voter, false) => Some(waits_for_vote(seen, cluster.leadership().leader())),
        (NodeRole::Learner, true) => Some(keeps_vote(seen).to_owned()),
    }
}

/// What only the leader sees of a node.
#[derive(Debug, Clone, Copy)]
struct Seen {
    is_heard: bool,
    lag: u64,
    /// Whether the others could decide without it.
    can_go: bool,
    leads: bool,
}

fn waits_for_vote(seen: Option<Seen>, leader: Option<NodeId>) -> String {
    match seen {
        Some(Seen { is_heard: false, .. }) => "gets its vote when it answers".to_owned(),
        Some(Seen { lag, .. }) => format!("gets its vote when it has caught up: {lag} entries behind"),
        None => {
            let who = leader.map_or_else(|| "the leader".to_owned(), |leader| format!("node {leader}"));
            format!("gets its vote when it has caught up: {who} knows how far it is")
        }
    }
}

fn keeps_vote(seen: Option<Seen>) -> &'static str {
    match seen {
        Some(Seen { can_go: false, .. }) => "keeps its vote until the other voters are a majority that answers",
        Some(Seen { leads: true, .. }) => "keeps its vote until another node leads",
        Some(_) | None => "is about to lose its vote",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR_BEHIND: Seen = Seen { is_heard: true, lag: 12_345, can_go: true, leads: false };

    #[test]
    fn a_promoted_node_that_is_far_behind_is_said_to_be_and_how_far() {
        let leader = Some(NodeId(7));
        assert_eq!(
            waits_for_vote(Some(FAR_BEHIND), leader),
            "gets its vote when it has caught up: 12345 entries behind"
        );
        let silent = Seen { is_heard: false, ..FAR_BEHIND };
        assert_eq!(waits_for_vote(Some(silent), leader), "gets its vote when it answers");
        let elsewhere = "gets its vote when it has caught up: node 7 knows how far it is";
        assert_eq!(waits_for_vote(None, leader), elsewhere);
    }

    #[test]
    fn a_change_that_fails_is_made_again_ever_more_slowly_and_told_once() {
        let begin = Instant::now();
        let (change, other) = (Change::Finish, Change::Forget(BTreeSet::from([3])));
        let mut tries = Tries::default();
        let mut pauses = Vec::new();
        let mut now = begin;
        for number in 0..8 {
            assert!(tries.is_due(&change, now));
            assert_eq!(tries.begin(change.clone()), number == 0, "it is told when it is tried first");
            assert_eq!(tries.failed("node 3 does not answer", now), number == 0);
            let next = tries.next.unwrap();
            assert!(!tries.is_due(&change, next - Duration::from_millis(1)));
            pauses.push(next - now);
            now = next;
        }
        assert_eq!(pauses[..3], [COMPARE_EVERY, COMPARE_EVERY * 2, COMPARE_EVERY * 4]);
        assert_eq!(pauses.last(), Some(&SLOWEST_TRY));
        assert!(tries.failed("no quorum", now), "another reason is told");
        assert!(tries.is_due(&other, now), "another change does not wait");
        assert!(tries.begin(other));
        assert_eq!(tries.failures, 0);
    }

    #[test]
    fn a_demoted_node_says_why_it_still_votes() {
        for (seen, words) in [
            (Seen { can_go: false, ..FAR_BEHIND }, "keeps its vote until the other voters are a majority that answers"),
            (Seen { leads: true, ..FAR_BEHIND }, "keeps its vote until another node leads"),
            (FAR_BEHIND, "is about to lose its vote"),
        ] {
            assert_eq!(keeps_vote(Some(seen)), words);
        }
    }
}

//! The cluster as one node sees it, for operators.

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Serialize};
use towline_core::{Agent, Node, NodeAddresses, NodeHealth, NodeId, NodeRole, State};

use crate::{
    handle::ClusterHandle,
    raft::{RaftMembership, log_store::LogHealth},
    raft_view::RaftView,
    reconcile,
};

/// Agents with one host that are named: a person reads them.
const MAX_AGENTS_NOTED: usize = 10;

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
    /// Whether a leader with a majority has answered this node within the last second. If not, all else here is as it was
    /// when one did.
    #[serde(default)]
    pub in_touch: bool,
    /// How many voters there are and how many can be lost, in words.
    pub quorum: String,
    /// How many more voters can be lost; below zero there is no quorum. None where no leader answers.
    #[serde(default)]
    pub spare_voters: Option<i64>,
    /// What else could be lost, and what is under way, in words.
    #[serde(default)]
    pub notes: Vec<String>,
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
    /// How many finished tasks have their records in the archive.
    #[serde(default)]
    pub archived: usize,
    /// How many of these records this node does not have, when it looked last.
    #[serde(default)]
    pub archived_missing: usize,
    /// What a change of the voters waits for, if it waits for the content of tasks; only the leader knows.
    #[serde(default)]
    pub waits_for_content: Option<String>,
    /// What stands in the way of renewing the certificate of this node.
    #[serde(default)]
    pub certificate_trouble: Option<String>,
    /// Which node feeds this one, if it is a worker and fed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fed_by: Option<NodeId>,
    /// What became of the spans of this node on their way to a collector.
    #[serde(default)]
    pub spans: towline_trace::SpanCounts,
}

/// One node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its id.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Voter, learner or worker, as it was enrolled or made since.
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
    /// Whether it is drained: it is given no tasks.
    #[serde(default)]
    pub draining: bool,
    /// Whether it is removed as soon as its session has ended.
    #[serde(default)]
    pub leaving: bool,
    /// Why it cannot write its log, if so: it counts for no quorum then.
    #[serde(default)]
    pub trouble: Option<String>,
    /// Whether there is no quorum without it.
    #[serde(default)]
    pub needed: bool,
    /// What it waits for until it is what operators want it to be.
    #[serde(default)]
    pub waits: Option<String>,
    /// When its certificate ends, in milliseconds since the Unix epoch; it is renewed before.
    #[serde(default)]
    pub certificate_ends_ms: Option<u64>,
    /// Whether it can sign certificates, and so take nodes in.
    #[serde(default)]
    pub signs: bool,
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
    let raft = RaftView::of(cluster);
    let metrics = raft.metrics();
    let quorums = Quorums::of(metrics.membership_config.membership(), &cluster.leadership().view().membership());
    let mut members: Vec<MemberStatus> = cluster.local(|state| {
        state.nodes().map(|node| member(node, state.load_of(node.id), cluster, &raft, &quorums)).collect()
    });
    let needed = members.iter().filter(|member| member.voting && !quorums.stand_without(member.id, &members));
    let needed: BTreeSet<NodeId> = needed.map(|member| member.id).collect();
    members.iter_mut().for_each(|member| member.needed = needed.contains(&member.id));
    // A worker hears of what is committed from the leader.
    let told = cluster.leadership().routes().map_or(0, |routes| routes.leader_applied());
    let in_touch = cluster.own_session().may_act();
    ClusterStatus {
        in_touch,
        cluster: cluster.cluster_name(),
        node: cluster.node_id(),
        leader: metrics.current_leader.map(NodeId),
        term: metrics.current_term,
        quorum: if in_touch { quorums.words(&members) } else { quorums.words_out_of_touch() },
        spare_voters: if in_touch { quorums.spare(&members) } else { None },
        notes: notes(cluster, &members),
        members,
        committed: metrics.cluster_committed.map_or(0, |log_id| log_id.index).max(told),
        applied: metrics.last_applied.map_or(0, |log_id| log_id.index),
        disk: disk(cluster),
        late_results: cluster.local(towline_core::State::late_results),
        contents: cluster.local(towline_core::State::named_blob_count),
        contents_missing: cluster.blobs().missing(),
        archived: cluster.local(towline_core::State::archived_count),
        archived_missing: cluster.finished().missing_count(),
        waits_for_content: cluster.blobs().waiting(),
        certificate_trouble: cluster.trouble().get(),
        fed_by: cluster.fed_by(),
        spans: towline_trace::counts(),
    }
}

fn member(node: &Node, load: usize, cluster: &ClusterHandle, raft: &RaftView, quorums: &Quorums) -> MemberStatus {
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
        matched: raft.matched(node.id.0),
        lag: raft.lag(node.id.0),
        draining: node.draining.is_some(),
        leaving: node.leaving,
        trouble: cluster.troubles().of(node.id),
        needed: false,
        waits: reconcile::waits_for(cluster, raft, node, load),
        certificate_ends_ms: node.certificate.as_ref().and_then(|certificate| certificate.ends).map(|ends| ends.0),
        signs: node.certificate.as_ref().is_some_and(|certificate| certificate.signs),
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

    /// The set of voters that can lose the fewest.
    fn weakest(&self, members: &[MemberStatus]) -> Option<Majority> {
        let up: BTreeSet<u64> = members.iter().filter(|member| is_up(member)).map(|member| member.id.0).collect();
        self.0.iter().map(|voters| Majority::of(voters, &up)).min_by_key(Majority::spare)
    }

    fn spare(&self, members: &[MemberStatus]) -> Option<i64> {
        self.weakest(members).and_then(|weakest| i64::try_from(weakest.spare()).ok())
    }

    fn words(&self, members: &[MemberStatus]) -> String {
        let Some(weakest) = self.weakest(members) else { return "no voters are known yet".to_owned() };
        let changes = if self.0.len() > 1 { ", while the membership changes" } else { "" };
        format!("{weakest}{changes}")
    }

    /// What is known where no leader answers: which nodes have to be up again, and nothing of who is.
    fn words_out_of_touch(&self) -> String {
        let Some(voters) = self.0.first() else { return "no voters are known yet".to_owned() };
        let ids: Vec<String> = voters.iter().map(u64::to_string).collect();
        let quorum = voters.len() / 2 + 1;
        format!(
            "no leader with a majority answers this node: {quorum} of {} voters must be up and connected (nodes {}); \
             until then nothing is accepted, and what follows is as it was before",
            voters.len(),
            ids.join(", ")
        )
    }

    /// Whether there is a quorum without this node.
    fn stand_without(&self, node: NodeId, members: &[MemberStatus]) -> bool {
        let up: BTreeSet<u64> =
            members.iter().filter(|member| is_up(member) && member.id != node).map(|member| member.id.0).collect();
        self.0.iter().all(|voters| Majority::of(voters, &up).spare() >= 0)
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

fn is_up(member: &MemberStatus) -> bool {
    !member.fenced && member.trouble.is_none() && member.health == NodeHealth::Up
}

fn notes(cluster: &ClusterHandle, members: &[MemberStatus]) -> Vec<String> {
    let mut notes: Vec<String> = members.iter().filter_map(note_of).collect();
    if members.len() > 1 {
        notes.extend(cluster.local(lonely_agents));
        notes.extend(cluster.local(workers));
    }
    notes
}

/// What is to be known of a node that is no plain voter.
fn note_of(member: &MemberStatus) -> Option<String> {
    let who = format!("node {} ({})", member.id, member.name);
    if let Some(trouble) = &member.trouble {
        return Some(format!("{who} is up and of no use to a quorum: {trouble}"));
    }
    if member.leaving {
        return Some(format!("{who} leaves: its tasks go to others, and it keeps its vote until it is out"));
    }
    if member.draining && member.load > 0 {
        return Some(format!("{who} is drained: it takes no tasks, and has {} left", member.load));
    }
    if member.draining && member.needed {
        return Some(format!(
            "{who} is drained and has no tasks, and without its vote there is no quorum: do not stop it"
        ));
    }
    if member.draining {
        return Some(format!("{who} is drained and has no tasks: it can be stopped"));
    }
    if member.role == NodeRole::Worker {
        return None;
    }
    let is_learner = member.role == NodeRole::Learner && !member.voting;
    is_learner.then(|| format!("{who} is a learner: it holds the log and runs tasks, and its loss changes no quorum"))
}

/// The workers, which may be many, in one sentence.
fn workers(state: &State) -> Option<String> {
    let workers: Vec<&Node> = state.nodes().filter(|node| !node.keeps_log()).collect();
    let up = workers.iter().filter(|node| node.health == NodeHealth::Up).count();
    let noun = if workers.len() == 1 { "worker" } else { "workers" };
    let text = || format!("{} {noun}, {up} up: they run tasks, keep no log and count for no quorum", workers.len());
    (!workers.is_empty()).then(text)
}

/// Agents whose tasks would wait if one more node were lost.
fn lonely_agents(state: &State) -> Vec<String> {
    let hosts = |agent: &Agent| -> Vec<NodeId> {
        let fits = |node: &&Node| !state.all_know_labels() || node.has_labels(&agent.spec.labels);
        let hosts = state.nodes().filter(|node| node.takes_tasks() && state.can_run(node, &agent.spec.name));
        hosts.filter(fits).map(|node| node.id).collect()
    };
    let words = |agent: &Agent| match hosts(agent)[..] {
        [] => {
            let lacks = state.what_lacks(&agent.spec.name).map_or_else(String::new, |lacks| format!(" for {lacks}"));
            Some(format!("no node takes tasks of agent {}: they wait{lacks}", agent.spec.name))
        }
        [only] => Some(format!("only node {only} takes tasks of agent {}: without it they wait", agent.spec.name)),
        _ => None,
    };
    state.agents().filter_map(words).take(MAX_AGENTS_NOTED).collect()
}

fn disk(cluster: &ClusterHandle) -> DiskStatus {
    let Some(log) = cluster.leadership().log() else {
        return DiskStatus { health: DiskHealth::Ok, detail: "this worker keeps no log".to_owned() };
    };
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

    fn member(id: &u64) -> MemberStatus {
        MemberStatus {
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
            draining: false,
            leaving: false,
            trouble: None,
            needed: false,
            waits: None,
            certificate_ends_ms: None,
            signs: false,
        }
    }

    fn words(quorums: &Quorums, up: &[u64]) -> String {
        quorums.words(&up.iter().map(member).collect::<Vec<_>>())
    }

    #[test]
    fn a_voter_that_cannot_write_is_no_part_of_a_quorum() {
        let three = quorums(&[&[1, 2, 3]], &[&[1, 2, 3]]);
        let mut members = [member(&1), member(&2), member(&3)];
        assert!(three.stand_without(NodeId(1), &members));
        members[2].trouble = Some("the disk is full".to_owned());
        assert_eq!(three.words(&members), "3 voters, quorum 2, can lose 0 more");
        assert!(!three.stand_without(NodeId(1), &members));
        assert!(three.stand_without(NodeId(3), &members));
    }

    #[test]
    fn what_can_be_lost_is_said_in_words() {
        let three = quorums(&[&[1, 2, 3]], &[&[1, 2, 3]]);
        assert_eq!(words(&three, &[1, 2, 3]), "3 voters, quorum 2, can lose 1 more");
        assert_eq!(words(&three, &[1, 2, 4]), "3 voters, quorum 2, can lose 0 more");
        assert_eq!(words(&three, &[3]), "3 voters, quorum 2, only 1 up");
        assert_eq!(words(&quorums(&[&[1]], &[&[1]]), &[1]), "1 voter, quorum 1, can lose 0 more");
        assert_eq!(words(&Quorums(Vec::new()), &[]), "no voters are known yet");
        assert!(three.words_out_of_touch().contains("2 of 3 voters must be up and connected (nodes 1, 2, 3)"));
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

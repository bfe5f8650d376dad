//! Three nodes keep one state, whoever stops and comes back.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{path::Path, time::Duration};

use openraft::async_runtime::watch::WatchReceiver as _;
use support::*;
use tokio::time::{Instant, sleep};
use towline_cluster::{Registration, raft::Raft};
use towline_core::{NodeRole, State, VShard};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_back_catches_up() {
    let mut cluster = TestCluster::of(3).await;
    let leader = cluster.leader().await;
    let away = (leader + 1) % 3;
    cluster.nodes[away].stop().await;
    let writer = cluster.nodes[leader].handle();
    for _ in 0..50 {
        writer.propose(submit(new_task(), writer.node_id()), None).await.unwrap();
    }

    cluster.nodes[away].start().await;

    let state = cluster.settled_state().await;
    assert_eq!(tasks_in(&state), 50);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_pauses_between_its_dials_of_a_node_that_does_not_answer() {
    let mut cluster = TestCluster::of(3).await;
    let leader = cluster.leader().await;
    let away = (leader + 1) % 3;
    cluster.nodes[away].stop().await;
    let listener = tokio::net::TcpListener::bind(cluster.nodes[away].peer()).await.unwrap();
    let writer = cluster.nodes[leader].handle();
    writer.propose(submit(new_task(), writer.node_id()), None).await.unwrap();

    let (began, mut dials) = (Instant::now(), 0_u32);
    while began.elapsed() < Duration::from_secs(2) {
        let accepted = tokio::time::timeout(Duration::from_millis(100), listener.accept()).await;
        dials += u32::from(accepted.is_ok());
    }

    let per_second = f64::from(dials) / began.elapsed().as_secs_f64();
    assert!(per_second < 120.0, "{per_second} dials a second");
    drop(listener);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voter_on_an_old_copy_of_its_folder_is_fenced_off_and_the_leader_goes_on() {
    let mut cluster = TestCluster::of(3).await;
    let leader = cluster.leader().await;
    let old = (leader + 1) % 3;
    let writer = cluster.nodes[leader].handle();
    let copy = tempfile::tempdir().unwrap();
    cluster.nodes[old].stop().await;
    copy_folder(cluster.nodes[old].data(), copy.path());
    cluster.nodes[old].start().await;
    for _ in 0..50 {
        writer.propose(submit(new_task(), writer.node_id()), None).await.unwrap();
    }
    cluster.settled_state().await;
    let term = writer.status().term;

    cluster.nodes[old].stop().await;
    copy_folder(copy.path(), cluster.nodes[old].data());
    cluster.nodes[old].start().await;
    let returned = cluster.nodes[old].handle();
    let registration = Registration { capacity: 1, agents: Vec::new(), labels: towline_core::Labels::new() };
    let registering = tokio::spawn(async move { returned.register(registration).await });
    let told = tokio::time::timeout(PATIENCE, cluster.nodes[old].cluster().fatal()).await.unwrap();

    let id = cluster.nodes[old].id();
    assert!(told.contains(&format!("older than what the cluster knows of node {id}")), "{told}");
    registering.abort();
    cluster.nodes[old].stop().await;
    writer.propose(submit(new_task(), writer.node_id()), None).await.unwrap();
    let status = writer.status();
    assert_eq!((status.term, status.leader), (term, Some(writer.node_id())), "the leader went on");
    let fenced: Vec<_> = status.members.iter().filter(|member| member.fenced).map(|member| member.id).collect();
    assert_eq!(fenced, [id]);
    assert_eq!(status.quorum, "3 voters, quorum 2, can lose 0 more");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_applies_nothing_steps_down_and_says_so() {
    let cluster = TestCluster::of(3).await;
    let leader = cluster.leader().await;
    let (stalled, writer) = (cluster.nodes[leader].handle(), cluster.nodes[(leader + 1) % 3].handle());
    stalled.health().unwrap();

    cluster.nodes[leader].cluster().hold_applying(true);
    let task = new_task();
    let written = tokio::spawn(async move { writer.propose(submit(task, writer.node_id()), None).await });
    let id = stalled.node_id();
    let leads = |handle: &towline_cluster::ClusterHandle| handle.status().leader.is_some_and(|leader| leader != id);
    let others = || cluster.running().filter(|handle| handle.node_id() != id);
    wait_until("another leader", || others().all(|handle| leads(&handle))).await;

    let said = stalled.health().unwrap_err();
    assert!(said.class == "not_applied", "{said}");
    assert!(matches!(written.await.unwrap(), Ok(_) | Err(towline_cluster::ProposeError::Unknown { .. })));
    let other = others().next().unwrap();
    wait_until("the proposal to be applied", || other.local(|state| state.task(task).is_some())).await;

    cluster.nodes[leader].cluster().hold_applying(false);
    wait_until("the node to be well", || stalled.health().is_ok()).await;
    assert_eq!(tasks_in(&cluster.settled_state().await), 1);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_no_leader_answers_says_that_it_may_be_stale() {
    let mut cluster = TestCluster::of(3).await;
    let leader = cluster.leader().await;
    let alone = cluster.nodes[(leader + 1) % 3].handle();
    alone.health().unwrap();
    for stopped in [leader, (leader + 2) % 3] {
        cluster.nodes[stopped].stop().await;
    }
    wait_until("the node to be alone", || alone.health().is_err()).await;
    let said = alone.health().unwrap_err();
    assert!(matches!(said.class, "no_leader" | "cut_off"), "{said}");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voter_is_demoted_and_promoted_in_raft_too_also_when_it_leads() {
    let cluster = TestCluster::of(3).await;
    let leader = cluster.nodes[cluster.leader().await].id();
    let asked = cluster.running().find(|handle| handle.node_id() != leader).unwrap();
    asked.set_role(leader, NodeRole::Learner).await.unwrap();
    let two_vote = || asked.status().quorum == "2 voters, quorum 2, can lose 0 more";
    wait_until("the leader to hand over and lose its vote", two_vote).await;
    let status = asked.status();
    assert!(status.members.iter().all(|member| member.voting != (member.id == leader)), "{:?}", status.members);
    assert!(status.notes.iter().any(|note| note.contains("is a learner")), "{:?}", status.notes);
    let left = asked.node_id();
    let refused = asked.set_role(left, NodeRole::Learner).await;
    assert!(refused.is_ok(), "one voter is a quorum of one: {refused:?}");
    let last = status.members.iter().map(|member| member.id).find(|id| *id != left && *id != leader).unwrap();
    let refused = asked.set_role(last, NodeRole::Learner).await.unwrap_err().to_string();
    assert!(refused.contains("is the last voter: join or promote another first"), "{refused}");

    for node in [leader, left] {
        asked.set_role(node, NodeRole::Voter).await.unwrap();
    }
    let all_vote = || asked.status().quorum == "3 voters, quorum 2, can lose 1 more";
    wait_until("all to vote again", all_vote).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leadership_goes_to_the_node_that_was_named_whichever_node_is_asked() {
    let cluster = TestCluster::of(3).await;
    let leader = cluster.leader().await;
    let (follower, target) = (cluster.nodes[(leader + 1) % 3].handle(), cluster.nodes[(leader + 2) % 3].id());
    assert_eq!(follower.transfer_leader(Some(target)).await, Ok(target));
    let next = cluster.nodes[cluster.leader().await].id();
    assert_eq!(next, target);
    assert_eq!(follower.transfer_leader(Some(target)).await, Ok(target), "it leads");

    let unknown = follower.transfer_leader(Some(towline_core::NodeId(9_999))).await.unwrap_err();
    assert!(unknown.to_string().contains("node 9999 is not a member"), "{unknown}");
    let learner = follower.node_id();
    follower.set_role(learner, NodeRole::Learner).await.unwrap();
    let refused = follower.transfer_leader(Some(learner)).await.unwrap_err().to_string();
    assert!(refused.contains(&format!("`towline cluster promote {learner}` first")), "{refused}");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_drained_hands_over_to_one_that_is_not() {
    let cluster = TestCluster::of(3).await;
    let leader = cluster.nodes[cluster.leader().await].id();
    let asked = cluster.running().find(|handle| handle.node_id() != leader).unwrap();
    asked.drain(leader, Duration::ZERO).await.unwrap();
    wait_until("another leader", || asked.status().leader.is_some_and(|next| next != leader)).await;
    let refused = asked.transfer_leader(Some(leader)).await.unwrap_err().to_string();
    assert!(refused.contains("is drained"), "{refused}");
    let status = asked.status();
    assert!(status.notes.iter().any(|note| note.contains("it can be stopped")), "{:?}", status.notes);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_away_for_longer_than_the_log_reaches_back_gets_a_snapshot() {
    let mut cluster = TestCluster::of(3).await;
    let leader = cluster.leader().await;
    let away = (leader + 1) % 3;
    cluster.nodes[away].stop().await;
    let writer = cluster.nodes[leader].handle();
    for _ in 0..50 {
        writer.propose(submit(new_task(), writer.node_id()), None).await.unwrap();
    }
    let last = writer.status().applied;
    let raft = cluster.nodes[leader].cluster().raft().unwrap().clone();
    raft.trigger().snapshot().await.unwrap();
    wait_until("a snapshot", || snapshot_index(&raft) >= Some(last)).await;
    raft.trigger().purge_log(last).await.unwrap();
    wait_until("a purge", || purged_index(&raft) >= Some(last)).await;

    cluster.nodes[away].start().await;

    let state = cluster.settled_state().await;
    assert_eq!(tasks_in(&state), 50);
    assert!(snapshot_index(cluster.nodes[away].cluster().raft().unwrap()) >= Some(last));

    // What was installed is what the node starts from.
    cluster.nodes[away].stop().await;
    cluster.nodes[away].start().await;
    assert_eq!(tasks_in(&cluster.settled_state().await), 50);
    cluster.shutdown().await;
}

/// Nodes stop and come back one after the other while proposals are made through all of them: nothing that was
/// acknowledged is lost, and all end up with the same state.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_while_nodes_stop_and_come_back() {
    let mut cluster = TestCluster::of(3).await;
    let mut acknowledged = Vec::new();

    for round in 0..6 {
        let stopped = round % 3;
        cluster.nodes[stopped].stop().await;
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            for node in cluster.running() {
                let task = new_task();
                if node.propose(submit(task, node.node_id()), None).await.is_ok() {
                    acknowledged.push(task);
                }
            }
            sleep(Duration::from_millis(5)).await;
        }
        cluster.nodes[stopped].start().await;
        cluster.nodes[stopped].register().await;
    }

    assert!(acknowledged.len() > 100, "{}", acknowledged.len());
    let state = cluster.settled_state().await;
    let lost = acknowledged.iter().filter(|task| state.task(**task).is_none()).count();
    assert_eq!(lost, 0, "of {}", acknowledged.len());
    cluster.shutdown().await;
}

fn tasks_in(state: &State) -> usize {
    (0..=u8::MAX).map(|shard| state.tasks_in(VShard(shard)).count()).sum()
}

fn snapshot_index(raft: &Raft) -> Option<u64> {
    raft.metrics().borrow_watched().snapshot.map(|log_id| log_id.index)
}

fn purged_index(raft: &Raft) -> Option<u64> {
    raft.metrics().borrow_watched().purged.map(|log_id| log_id.index)
}

/// Makes one folder the same as another.
fn copy_folder(from: &Path, to: &Path) {
    std::fs::remove_dir_all(to).unwrap();
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

//! Workers: nodes that run tasks and keep no log. Whoever feeds them may go, and so may they.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use support::*;
use tokio::time::timeout;
use towline_cluster::{ClusterHandle, ProposeError};
use towline_core::{Command, NodeHealth, NodeId, NodeRole, Principal, Proposal, Rejection, State, TaskId};

/// Three voters and some workers, which are fed.
async fn cluster_with(workers: usize) -> TestCluster {
    let mut cluster = TestCluster::of(3).await;
    for _ in 0..workers {
        cluster.join(0, NodeRole::Worker).await;
    }
    for node in &cluster.nodes[3..] {
        let handle = node.handle();
        wait_until("a worker to be well", || handle.health().is_ok()).await;
    }
    cluster
}

fn position_of(cluster: &TestCluster, id: NodeId) -> usize {
    cluster.nodes.iter().position(|node| node.is_running() && node.id() == id).unwrap()
}

fn owner(state: &State, task: TaskId) -> Option<NodeId> {
    state.task(task)?.lease.as_ref().map(|lease| lease.node)
}

async fn add_task(through: &ClusterHandle, prefer: NodeId) -> TaskId {
    let task = new_task();
    through.propose(submit(task, prefer), None).await.unwrap();
    task
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_has_the_state_of_all_and_no_log() {
    let mut cluster = cluster_with(1).await;
    let worker = cluster.nodes[3].handle();
    let task = add_task(&worker, worker.node_id()).await;
    assert_eq!(worker.local(|state| owner(state, task)), Some(worker.node_id()), "it reads what it wrote");
    let elsewhere = add_task(&cluster.nodes[1].handle(), cluster.nodes[1].id()).await;
    let read = worker.read(|state| state.task(elsewhere).is_some()).await.unwrap();
    assert!(read, "it reads what was committed before");

    let state = cluster.settled_state().await;
    assert_eq!(state.node(worker.node_id()).unwrap().role, NodeRole::Worker);
    let status = worker.status();
    assert_eq!(status.quorum, "3 voters, quorum 2, can lose 1 more");
    assert_eq!(Some(status.leader), Some(cluster.nodes[0].handle().status().leader));
    assert_eq!(status.term, cluster.nodes[0].handle().status().term);
    let of_worker = status.members.iter().find(|member| member.id == worker.node_id()).unwrap();
    assert!(!of_worker.voting && of_worker.waits.is_none(), "{of_worker:?}");
    assert!(status.notes.iter().any(|note| note.starts_with("1 worker, 1 up")), "{:?}", status.notes);
    for name in ["log", "snapshots", "started"] {
        assert!(!cluster.nodes[3].data().join(name).exists(), "{name}");
    }

    cluster.nodes[3].stop().await;
    cluster.nodes[3].start().await;
    cluster.nodes[3].register().await;
    cluster.settled_state().await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_goes_on_with_another_node_where_the_one_that_fed_it_is_gone() {
    let mut cluster = cluster_with(1).await;
    let worker = cluster.nodes[3].handle();
    for round in 0..2 {
        let task = add_task(&worker, worker.node_id()).await;
        let fed_by = worker.fed_by().unwrap();
        let gone = position_of(&cluster, fed_by);
        cluster.nodes[gone].stop().await;
        // Whatever is committed from here on comes from another node; the one that is gone may have led.
        let canceled = async { while worker.propose(cancel(task), None).await.is_err() {} };
        timeout(PATIENCE, canceled).await.unwrap();
        assert_ne!(worker.fed_by(), Some(fed_by), "in round {round}");
        cluster.nodes[gone].start().await;
        cluster.nodes[gone].register().await;
        cluster.settled_state().await;
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_leaves_a_node_that_stands_still_while_the_leader_goes_on() {
    let cluster = cluster_with(1).await;
    let worker = cluster.nodes[3].handle();
    let still = position_of(&cluster, worker.fed_by().unwrap());
    if cluster.leader().await == still {
        let leader = cluster.nodes[still].handle();
        wait_until("a successor", || leader.status().members.iter().filter(|member| member.lag == Some(0)).count() > 1)
            .await;
        assert!(leader.hand_over().await);
    }
    cluster.nodes[still].cluster().hold_applying(true);
    let task = add_task(&worker, worker.node_id()).await;
    assert!(worker.local(|state| state.task(task).is_some()));
    assert_ne!(worker.fed_by(), Some(cluster.nodes[still].id()));
    cluster.nodes[still].cluster().hold_applying(false);
    cluster.settled_state().await;
    cluster.shutdown().await;
}

fn cancel(task: TaskId) -> Proposal {
    Proposal { by: Principal::Operator, command: Command::Cancel { task } }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_outlives_the_leader_and_a_majority() {
    let mut cluster = cluster_with(1).await;
    let worker = cluster.nodes[3].handle();
    let first = cluster.leader().await;
    cluster.nodes[first].stop().await;
    let task = timeout(PATIENCE, async {
        loop {
            let task = new_task();
            match worker.propose(submit(task, worker.node_id()), None).await {
                Ok(_) => return task,
                Err(ProposeError::Rejected(rejection)) => panic!("{rejection}"),
                Err(ProposeError::Unavailable { .. } | ProposeError::Unknown { .. }) => {}
            }
        }
    });
    let task = task.await.unwrap();
    wait_until("an owner", || worker.local(|state| owner(state, task)).is_some()).await;

    let second = cluster.leader().await;
    cluster.nodes[second].stop().await;
    wait_until("the worker to notice", || worker.health().is_err()).await;
    assert!(worker.read(|_| ()).await.is_err(), "there is no majority");
    assert!(worker.local(|state| state.task(task).is_some()), "what it has can be read");
    wait_until("it to stop acting", || !worker.may_act()).await;

    cluster.nodes[second].start().await;
    wait_until("the worker to be well", || worker.health().is_ok()).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_does_not_reach_the_leader_gets_through_over_a_voter() {
    let cluster = cluster_with(1).await;
    let worker = cluster.nodes[3].handle();
    let leader = cluster.nodes[cluster.leader().await].id();
    let boot = worker.boot();
    let since = worker.local(|state| state.node(worker.node_id()).unwrap().since);
    let began = tokio::time::Instant::now();
    // Longer than a session lasts without an answer.
    while began.elapsed() < Duration::from_secs(3) {
        worker.go_around(leader);
        add_task(&worker, worker.node_id()).await;
        worker.go_around(leader);
        worker.read(|_| ()).await.unwrap();
    }
    let node = worker.local(|state| state.node(worker.node_id()).cloned()).unwrap();
    assert_eq!((node.health, node.boot, node.since), (NodeHealth::Up, Some(boot), since), "its session went on");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tasks_of_a_worker_that_is_lost_are_adopted() {
    let mut cluster = cluster_with(2).await;
    let (lost, other) = (cluster.nodes[3].id(), cluster.nodes[4].handle());
    let mut tasks = Vec::new();
    for _ in 0..8 {
        tasks.push(add_task(&other, lost).await);
    }
    assert!(tasks.iter().all(|task| other.local(|state| owner(state, *task)) == Some(lost)));
    cluster.nodes[3].stop().await;
    let adopted = |task: &TaskId| other.local(|state| owner(state, *task)).is_some_and(|owner| owner != lost);
    wait_until("all to be adopted", || tasks.iter().all(adopted)).await;
    assert_eq!(other.local(|state| state.node(lost).unwrap().health), NodeHealth::Lost);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_drained_and_removed_and_ends_itself() {
    let cluster = cluster_with(1).await;
    let (asked, worker) = (cluster.nodes[1].handle(), cluster.nodes[3].id());
    for role in [NodeRole::Voter, NodeRole::Learner] {
        let refused = asked.set_role(worker, role).await;
        assert_eq!(refused, Err(ProposeError::Rejected(Rejection::IsWorker { node: worker })));
    }
    asked.drain(worker, Duration::from_secs(1)).await.unwrap();
    let task = add_task(&cluster.nodes[3].handle(), worker).await;
    assert_ne!(asked.read(|state| owner(state, task)).await.unwrap(), Some(worker));
    asked.undrain(worker).await.unwrap();

    asked.remove_node(worker).await.unwrap();
    let said = timeout(PATIENCE, cluster.nodes[3].cluster().fatal()).await.unwrap();
    assert_eq!(said, Rejection::NodeRemoved { node: worker }.to_string());
    wait_until("it to be out", || asked.local(|state| state.is_removed(worker))).await;
    assert_eq!(asked.status().quorum, "3 voters, quorum 2, can lose 1 more");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_takes_nodes_in_and_feeds_none() {
    let mut cluster = cluster_with(1).await;
    cluster.join(3, NodeRole::Worker).await;
    let second = cluster.nodes[4].handle();
    wait_until("it to be fed", || second.health().is_ok()).await;
    let voters: Vec<NodeId> = cluster.nodes[..3].iter().map(TestNode::id).collect();
    assert!(voters.contains(&second.fed_by().unwrap()));
    cluster.settled_state().await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_content_that_comes_in_at_a_worker_is_on_a_majority_and_read_back() {
    let cluster = cluster_with(2).await;
    let (one, other) = (cluster.nodes[3].handle(), cluster.nodes[4].handle());
    let content: bytes::Bytes = vec![7; 3 * 1024 * 1024].into();
    let hash = one.keep_content(content.clone()).await.unwrap();
    let read = other.open_blob(hash, content.len() as u64).await.unwrap().whole().await.unwrap();
    assert!(content == read);
    cluster.shutdown().await;
}

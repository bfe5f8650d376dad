//! Finished tasks leave the memory of every node, and are read through each of them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::sync::Arc;

use support::*;
use towline_cluster::ClusterHandle;
use towline_core::{Command, ListFilter, NodeRole, Principal, Proposal, Record, Task, TaskId};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archived_task_reads_the_same_through_every_node() {
    let cluster = TestCluster::of(3).await;
    let tasks = archived(&cluster, 5).await;

    for handle in cluster.running() {
        for task in &tasks {
            assert_eq!(handle.task(task.id).await.unwrap().as_ref(), Some(task));
        }
        assert!(handle.task(new_task()).await.unwrap().is_none());
        let filter = ListFilter::default();
        let listing = handle.read(|state| state.list(&Principal::Operator, &filter, 50)).await.unwrap();
        assert_eq!((listing.total, listing.archived().len()), (5, 5));
        let page = listing.page(&handle.recall_page(tasks.iter().map(|task| task.id).collect()).await, |_| 0);
        assert_eq!(page.tasks.len(), 5);
        wait_until("the record on this node", || handle.record_here(tasks[0].id).unwrap().is_some()).await;
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_node_has_the_archive_that_it_had() {
    let mut cluster = TestCluster::of(1).await;
    let before = archived(&cluster, 3).await;
    cluster.nodes[0].handle().compact().await.unwrap();
    let after = archived(&cluster, 3).await;

    cluster.nodes[0].stop().await;
    cluster.nodes[0].start().await;

    let handle = cluster.nodes[0].handle();
    for task in before.iter().chain(&after) {
        assert_eq!(handle.task(task.id).await.unwrap().as_ref(), Some(task));
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_joins_behind_a_purged_log_has_the_whole_archive() {
    let mut cluster = TestCluster::of(1).await;
    let tasks = archived(&cluster, 300).await;
    cluster.nodes[0].handle().compact().await.unwrap();

    cluster.join(0, NodeRole::Learner).await;

    let late = cluster.nodes[1].handle();
    let count = tasks.len();
    wait_until("the snapshot", || late.local(|state| state.archived_count()) == count).await;
    for task in &tasks {
        assert_eq!(late.record_here(task.id).unwrap().as_ref(), Some(task), "before the snapshot is there");
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_archive_is_damaged_or_gone_has_it_again_from_the_others() {
    let mut cluster = TestCluster::of(3).await;
    let tasks = archived(&cluster, 20).await;
    for (position, damage) in [(1, true), (2, false)] {
        let node = &mut cluster.nodes[position];
        node.handle().compact().await.unwrap();
        node.stop().await;
        let file = node.data().join("snapshots/finished.redb");
        if damage {
            std::fs::write(&file, vec![7; 50_000]).unwrap();
        } else {
            std::fs::remove_file(&file).unwrap();
        }
        node.start().await;
        let handle = node.handle();
        let all = || tasks.iter().all(|task| handle.record_here(task.id).unwrap().as_ref() == Some(task));
        wait_until("all records", all).await;
        wait_until("a status that says so", || handle.status().archived_missing == 0).await;
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_no_node_has_is_unavailable_and_said() {
    let mut cluster = TestCluster::of(1).await;
    let tasks = archived(&cluster, 2).await;
    cluster.nodes[0].handle().compact().await.unwrap();
    cluster.nodes[0].stop().await;
    std::fs::remove_file(cluster.nodes[0].data().join("snapshots/finished.redb")).unwrap();

    cluster.nodes[0].start().await;

    let handle = cluster.nodes[0].handle();
    assert!(handle.task(tasks[0].id).await.is_err());
    wait_until("a status that says so", || handle.status().archived_missing == 2).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_goes_to_the_archive_by_itself_a_while_after_it_ended() {
    let cluster = TestCluster::of(3).await;
    let handle = cluster.nodes[1].handle();
    let task = ended(&handle).await;
    assert!(matches!(handle.local(|state| state.record(task)), Some(Record::Live(_))));

    for handle in cluster.running() {
        wait_until("the archive", || handle.local(|state| state.record(task)) == Some(Record::Archived)).await;
    }
    cluster.shutdown().await;
}

// ---- helpers ----

/// So many tasks that have ended and are archived, and their records.
async fn archived(cluster: &TestCluster, count: usize) -> Vec<Arc<Task>> {
    let leader = cluster.nodes[cluster.leader().await].handle();
    let mut tasks = Vec::new();
    while tasks.len() < count {
        let id = ended(&leader).await;
        tasks.push(leader.task(id).await.unwrap().unwrap());
    }
    let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
    for ids in ids.chunks(200) {
        let by = Principal::Node(leader.node_id());
        leader.propose(Proposal { by, command: Command::Archive { tasks: ids.to_vec() } }, None).await.unwrap();
    }
    assert!(leader.local(|state| ids.iter().all(|id| state.record(*id) == Some(Record::Archived))));
    tasks
}

async fn ended(handle: &ClusterHandle) -> TaskId {
    let task = new_task();
    handle.propose(submit(task, handle.node_id()), None).await.unwrap();
    handle.propose(Proposal { by: Principal::Operator, command: Command::Cancel { task } }, None).await.unwrap();
    task
}

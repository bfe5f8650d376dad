//! Many workers at three voters: they register, are given tasks and end them; one voter and one worker in fifteen die, and nothing
//! is lost. Their clocks are real, and all of them are in this process: sixty are no load for two cores, three hundred need both
//! for a minute, `TOWLINE_WORKERS=300 cargo test -p towline-cluster --test many_workers -- --nocapture`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails, and says what it measured"
)]

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use support::*;
use tokio::{task::JoinSet, time::Instant};
use towline_cluster::{ClusterHandle, ProposeError};
use towline_core::{
    Command, Lease, NodeHealth, NodeId, OwnerReport, OwnerWord, Principal, Proposal, State, TaskId, TaskState,
    TraceContext,
};

/// Workers, unless `TOWLINE_WORKERS` says otherwise.
const WORKERS: usize = 60;
/// Of so many workers one is killed.
const KILLED_OF: usize = 15;
/// Tasks that are ended by their workers.
const SHORT: usize = 100;
/// Clients at the same time.
const CLIENTS: usize = 32;
/// Between two looks at all workers.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// About a minute on two cores that have nothing else to do. Where they have, sessions end for want of an answer in time: then
/// tasks move, and still none is lost.
const LIMIT: Duration = Duration::from_secs(300);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_workers_lose_nothing_when_a_voter_and_some_of_them_die() {
    tokio::time::timeout(LIMIT, Box::pin(play())).await.unwrap();
}

async fn play() {
    let many = std::env::var("TOWLINE_WORKERS").map_or(WORKERS, |count| count.parse().unwrap());
    let killed_count = many / KILLED_OF;
    let began = Instant::now();
    let say = |what: &str| println!("{:5.1} s  {what}", began.elapsed().as_secs_f64());
    let mut cluster = TestCluster::of(3).await;
    let voters: Vec<NodeId> = cluster.nodes.iter().map(TestNode::id).collect();
    cluster.join_workers(many).await;
    say("all have joined and were started");
    let workers: Vec<ClusterHandle> = cluster.nodes[3..].iter().map(TestNode::handle).collect();
    for worker in &workers {
        until(|| worker.health().is_ok() && worker.may_act()).await;
    }
    say("all have registered, are fed and may act");
    let fed_by = feeders(&workers);
    assert!(fed_by.values().all(|count| *count < many * 2 / 3), "{fed_by:?}");

    let mut owners = JoinSet::new();
    workers.iter().for_each(|worker| drop(owners.spawn(end_tasks(worker.clone()))));
    let short = submit_through(&workers, SHORT).await;
    let is_completed = |state: &State, id: &TaskId| state.state_of(*id) == Some(TaskState::Completed);
    let ended = |state: &State| short.iter().filter(|id| is_completed(state, id)).count();
    until(|| workers[0].local(ended) == SHORT).await;
    owners.shutdown().await;
    say("short tasks were given to workers, and ended by them");
    let mut ran_on = BTreeSet::new();
    for id in &short {
        ran_on.insert(workers[0].local_task(*id).await.unwrap().unwrap().ran_on[0]);
    }
    assert!(ran_on.len() > SHORT.min(many) / 2, "the load is spread: {}", ran_on.len());

    let long = submit_through(&workers, many).await;
    say("long tasks were given to workers");

    let before = sessions(&workers[0], &workers);
    let leader = cluster.leader().await;
    let victim = (0..3).find(|position| *position != leader).unwrap();
    cluster.nodes[victim].stop().await;
    let gone = voters[victim];
    for worker in &workers {
        until(|| worker.fed_by().is_some_and(|node| node != gone)).await;
    }
    say("a voter is gone, and the workers are fed by the others");
    until(|| workers[0].local(|state| workers.iter().all(|worker| is_up(state, worker.node_id())))).await;
    let after = sessions(&workers[0], &workers);
    let ended = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    say(&format!("all workers are up, {ended} of them after their session had ended"));

    for node in &mut cluster.nodes[3..3 + killed_count] {
        node.stop().await;
    }
    let killed: BTreeSet<NodeId> = workers[..killed_count].iter().map(ClusterHandle::node_id).collect();
    say(&format!("{killed_count} workers are gone"));
    let reader = &workers[many - 1];
    let adopted = |state: &State| {
        let lease = |id: &TaskId| state.task(*id).and_then(|task| task.lease.as_ref().map(|lease| lease.node));
        long.iter().all(|id| lease(id).is_some_and(|node| !killed.contains(&node)))
    };
    until(|| reader.local(adopted)).await;
    say("their tasks are adopted by others");
    let is_adopted = |id: &TaskId| reader.local(|state| !state.task(*id).unwrap().adoptions.is_empty());
    assert!(long.iter().any(is_adopted), "those that died had tasks");

    let voter = cluster.nodes[leader].handle();
    until(|| {
        let state = voter.local(State::clone);
        workers[killed_count..].iter().all(|worker| worker.local(|own| *own == state))
    })
    .await;
    assert_eq!(reader.local(State::task_count), SHORT + many, "nothing is lost, and nothing came twice");
    let survived = |state: &State| short.iter().chain(&long).all(|id| state.knows_task(*id));
    assert!(reader.local(survived));
    say("all nodes have the same state");
    stop_all(cluster).await;
}

/// Waits until something is so, within the limit of the whole.
async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// How many workers each node feeds.
fn feeders(workers: &[ClusterHandle]) -> BTreeMap<NodeId, usize> {
    let mut fed_by = BTreeMap::new();
    workers.iter().filter_map(ClusterHandle::fed_by).for_each(|node| *fed_by.entry(node).or_default() += 1);
    fed_by
}

fn is_up(state: &State, node: NodeId) -> bool {
    state.node(node).is_some_and(|node| node.health == NodeHealth::Up)
}

/// Since when each worker is up.
fn sessions(asked: &ClusterHandle, workers: &[ClusterHandle]) -> Vec<u64> {
    asked.local(|state| workers.iter().map(|worker| state.node(worker.node_id()).unwrap().since.0).collect())
}

/// Gives tasks to the cluster through the workers.
async fn submit_through(workers: &[ClusterHandle], count: usize) -> Vec<TaskId> {
    let submit_one = |number: usize| {
        let worker = workers[number % workers.len()].clone();
        async move {
            let task = new_task();
            // A message is taken once, however often it is sent.
            while let Err(error) = worker.propose(submit(task, worker.node_id()), None).await {
                assert!(!matches!(error, ProposeError::Rejected(_)), "{error}");
            }
            task
        }
    };
    stream::iter((0..count).map(submit_one)).buffer_unordered(CLIENTS).collect().await
}

/// What an owner does that has nothing to do: it ends what its node is given.
async fn end_tasks(worker: ClusterHandle) {
    let me = worker.node_id();
    loop {
        let open: Vec<(TaskId, Lease)> =
            worker.local(|state| state.tasks_of(me).filter_map(|task| Some((task.id, task.lease.clone()?))).collect());
        for (task, lease) in open {
            report(&worker, task, &lease).await;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A report that did not come through, or came twice, is made again or refused.
async fn report(worker: &ClusterHandle, task: TaskId, lease: &Lease) {
    let span = TraceContext { trace_id: 1, span_id: 3, sampled: false };
    let words =
        vec![OwnerWord::TurnStarted { span }, OwnerWord::Finished { state: TaskState::Completed, message: None }];
    let command = Command::Report(OwnerReport { task, epoch: lease.epoch, number: lease.reported + 1, words });
    drop(worker.propose(Proposal { by: Principal::Node(worker.node_id()), command }, None).await);
}

/// Ends all nodes side by side.
async fn stop_all(cluster: TestCluster) {
    let stops = cluster.nodes.into_iter().map(|mut node| async move { node.stop().await });
    stream::iter(stops).buffer_unordered(CLIENTS).collect::<()>().await;
}

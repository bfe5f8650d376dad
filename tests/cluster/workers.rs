//! A worker joins with a token, runs a task, and streams it at its own door. The voter that feeds it dies, and the stream goes
//! on; the worker dies, and another node goes on with the task.

use serde_json::Value;
use std::fs;
use towline_tests::{
    Answer, Cluster, FakeModel, Gate, Observer, Plan, Seen, TestNode, eventually, run_cli, state_of, text_message,
};

const WORKER: &str =
    "agents:\n  - { name: worker, description: Says words., instruction: Say words., replicas: all }\n";
/// The same agent, for nodes with a label.
const LABELED: &str = "agents:\n  - { name: worker, description: Says words., instruction: Say words., replicas: all, labels: { gpu: \"yes\" } }\n";

const WORDS: [[&str; 3]; 3] = [["one ", "two ", "three "], ["four ", "five ", "six "], ["seven ", "eight ", "nine "]];

#[tokio::test(flavor = "multi_thread")]
async fn the_stream_at_a_worker_outlives_the_voter_that_feeds_it_and_the_task_outlives_the_worker() {
    let (first, second) = (Gate::closed(), Gate::closed());
    let gates = (first.clone(), second.clone());
    let model = FakeModel::start(move |chat| {
        let wait = |answer: Answer, gate: &Gate| if chat.repeated == 0 { answer.wait(gate) } else { answer };
        let answer = wait(Answer::new().words(&WORDS[0]), &gates.0).words(&WORDS[1]);
        wait(answer, &gates.1).words(&WORDS[2])
    })
    .await;
    let mesh = model.config() + WORKER;
    let mut cluster = Cluster::start(Plan::three(mesh.clone())).await;
    let worker = with_worker(&mut cluster, "w", &mesh).await;

    let door = cluster.node(worker).agent("worker").endpoint().to_owned();
    let at_the_worker = Observer::send(&door, text_message("the-message", "speak"));
    let task = at_the_worker.task().await;
    assert_eq!(cluster.owner(&task).await, worker, "the dialled node runs the task");
    // Created, working, and a chunk for each word.
    at_the_worker.saw(2 + WORDS[0].len()).await;

    let feeder = fed_by(&cluster, worker).await;
    // An election takes about as long as an owner acts without an answer; that is not what this is about.
    if cluster.leader().await == feeder {
        let ran = run_cli(["cluster", "transfer-leader", "--server", &cluster.nodes[0].url]).await;
        assert_eq!(ran.code, 0, "{}", ran.said());
    }
    let others: Vec<u64> =
        cluster.alive().map(|node| node.id).filter(|node| ![worker, feeder].contains(node)).collect();
    let at_a_voter = Observer::subscribe(cluster.node(others[0]).agent("worker").endpoint(), &task, Some(0));
    cluster.kill(feeder).await;
    first.open();
    let seen = at_the_worker.saw(2 + WORDS[0].len() + WORDS[1].len()).await;
    assert!(others.contains(&fed_by(&cluster, worker).await));
    let record = cluster.task_at(others[0], &task).await;
    assert!(record.adoptions.is_empty(), "the worker's session went on: {:?}", record.adoptions);

    cluster.kill(worker).await;
    second.open();
    let whole = at_a_voter.finished().await;
    let short = |list: &[Seen]| list.iter().map(|seen| (seen.index, seen.hash.clone())).collect::<Vec<_>>();
    let indexes: Vec<u64> = whole.iter().map(|seen| seen.index).collect();
    assert_eq!(indexes, (1..=whole.len() as u64).collect::<Vec<_>>());
    assert_eq!(short(&seen), short(&whole)[..seen.len()], "the stream at the worker lost nothing");
    let record = cluster.task_at(others[0], &task).await;
    let adopted_from: Vec<u64> = record.adoptions.iter().map(|adoption| adoption.from.0).collect();
    assert_eq!(adopted_from, [worker]);

    cluster.node_mut(worker).start(None);
    cluster.node_mut(worker).ready().await;
    let read = cluster.node(worker).agent("worker").get(&task).await.unwrap();
    assert_eq!(state_of(&read), "TASK_STATE_COMPLETED");
    let from_the_log = Observer::subscribe(&door, &task, Some(0)).finished().await;
    assert_eq!(short(&from_the_log), short(&whole), "read at the worker that came back");
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_wait_for_a_node_with_the_label_that_their_agent_asks_for() {
    let model = FakeModel::start(|_| Answer::say("spoken")).await;
    let mesh = model.config() + LABELED;
    let mut cluster = Cluster::start(Plan::one(mesh.clone())).await;
    let url = cluster.nodes[0].url.clone();
    let sent = cluster.nodes[0].agent("worker").send_async(text_message("m-1", "speak")).await.unwrap();
    let task = sent["id"].as_str().unwrap().to_owned();
    let shown = run_cli(["task", "get", &task, "--server", &url]).await;
    let waits = "for a node that declares agent worker and has the label gpu=yes";
    assert!(shown.stdout.contains(waits), "{}", shown.said());

    let node = TestNode::new(cluster.folder(), "gpu", 8, &mesh);
    let config = fs::read_to_string(node.config()).unwrap();
    fs::write(node.config(), config.replacen("node:\n", "node:\n  labels: { gpu: \"yes\" }\n", 1)).unwrap();
    let worker = start_worker(&mut cluster, node).await;
    eventually("the task to end", async || {
        let read = cluster.nodes[0].agent("worker").get(&task).await.ok()?;
        (state_of(&read) == "TASK_STATE_COMPLETED").then_some(())
    })
    .await;
    let record = cluster.task(&task).await;
    assert_eq!(record.ran_on.iter().map(|node| node.0).collect::<Vec<_>>(), [worker]);

    let status = run_cli(["cluster", "status", "--server", &url]).await;
    assert!(status.stdout.contains("1 worker, 1 up"), "{}", status.said());
    assert!(status.stdout.contains("1 voter, quorum 1, can lose 0 more"), "{}", status.said());
    let refused = run_cli(["cluster", "promote", &worker.to_string(), "--server", &url]).await;
    assert_eq!(refused.code, 1, "{}", refused.said());
    assert!(refused.stderr.contains("keeps no log") && refused.stderr.contains("--role voter"), "{}", refused.said());
    let removed = run_cli(["cluster", "remove", &worker.to_string(), "--server", &url]).await;
    assert_eq!(removed.code, 0, "{}", removed.said());
    assert_eq!(cluster.node_mut(worker).ended().await, Some(1));
    assert!(cluster.node(worker).log_text().contains("was removed from this cluster"));
}

async fn with_worker(cluster: &mut Cluster, name: &str, mesh: &str) -> u64 {
    let node = TestNode::new(cluster.folder(), name, 8, mesh);
    start_worker(cluster, node).await
}

async fn start_worker(cluster: &mut Cluster, mut node: TestNode) -> u64 {
    let token = cluster.join_token_for("worker").await;
    let member = cluster.nodes[0].peer.clone();
    node.start(Some((&member, &token)));
    node.ready().await;
    let status = node.operator("cluster").await.unwrap();
    node.id = status["node"].as_u64().unwrap();
    let id = node.id;
    cluster.nodes.push(node);
    id
}

/// Which node feeds a worker.
async fn fed_by(cluster: &Cluster, worker: u64) -> u64 {
    eventually("the worker to be fed", async || {
        let status: Value = cluster.node(worker).operator("cluster").await?;
        status["fed_by"].as_u64()
    })
    .await
}

//! A node is told to stop by a signal: its tasks go on elsewhere at the end of a step; a second signal does not wait for that.

use crate::drain::{callers_with, follow, noted};
use rustix::process::Signal;
use serde_json::json;
use std::fs;
use towline_tests::{Answer, Cluster, FakeModel, Gate, Observer, eventually, http_client, text_message};

/// Tasks in the middle of a model call when the node is told to stop, beside one in a call that must not run twice.
const SPEAKERS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_told_to_stop_hands_its_tasks_over_and_no_step_is_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let (calls, half_way) = (folder.path().join("calls"), Gate::closed());
    let (mut cluster, _model) = callers_with(&calls, half_way_model(&half_way).await).await;
    let owner = cluster.another_than(&[cluster.leader().await]).id;
    let other = cluster.another_than(&[owner]).id;
    let tasks = busy(&cluster, owner).await;
    eventually("the call", async || (noted(&calls) == 1).then_some(())).await;
    let streams: Vec<Observer> = tasks.iter().map(|task| follow(&cluster, other, task)).collect();
    for stream in &streams {
        stream.saw(2).await;
    }

    cluster.node(owner).signal(Signal::TERM);
    stopping(&cluster, owner).await;
    fs::write(calls.with_extension("go"), "").unwrap();
    half_way.open();

    assert_eq!(cluster.node_mut(owner).ended().await, Some(0));
    for (task, stream) in tasks.iter().zip(streams) {
        let seen = stream.finished().await;
        let indexes: Vec<u64> = seen.iter().map(|seen| seen.index).collect();
        assert_eq!(indexes, (1..=indexes.len() as u64).collect::<Vec<_>>(), "task {task}");
        let asked = seen.iter().any(|seen| seen.event.to_string().contains("INPUT_REQUIRED"));
        assert!(!asked, "nobody was asked: task {task}");
        let record = cluster.task_at(other, task).await;
        assert_eq!(format!("{:?}", record.status.state), "Completed", "task {task}");
        let attempts: Vec<_> = record.journal.iter().map(|step| step.attempt).collect();
        assert_eq!(attempts, [1, 1, 1], "no step of task {task} was interrupted");
        assert_ne!(record.ran_on.last(), record.ran_on.first(), "task {task} went on elsewhere");
    }
    assert_eq!(noted(&calls), 1, "the call was made once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hang_up_ends_nothing_and_the_second_signal_ends_a_node_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (calls, half_way) = (folder.path().join("calls"), Gate::closed());
    let (mut cluster, _model) = callers_with(&calls, half_way_model(&half_way).await).await;
    let owner = cluster.another_than(&[cluster.leader().await]).id;
    let tasks = busy(&cluster, owner).await;
    eventually("the call", async || (noted(&calls) == 1).then_some(())).await;

    cluster.node(owner).signal(Signal::HUP);
    eventually("the word in the log", async || cluster.node(owner).log_text().contains("SIGHUP").then_some(())).await;
    assert_eq!(cluster.owner(&tasks[0]).await, owner, "it goes on");
    cluster.node(owner).signal(Signal::TERM);
    stopping(&cluster, owner).await;
    cluster.node(owner).signal(Signal::TERM);

    assert_eq!(cluster.node_mut(owner).ended().await, Some(143), "it does not wait for the calls, which never end");
}

/// A model that stops in the middle of its first answer until the gate is open, but for the agent that sends.
async fn half_way_model(gate: &Gate) -> FakeModel {
    let gate = gate.clone();
    FakeModel::start(move |chat| match (chat.system.starts_with("Send"), chat.results.last()) {
        (_, Some(result)) => Answer::say(result.clone()),
        (true, None) => Answer::new().call("srv__send_gated", &json!({ "text": "the letter" })),
        (false, None) => Answer::new().words(&["a ", "b "]).wait(&gate).call("echo__echo", &json!({ "text": "hello" })),
    })
    .await
}

async fn busy(cluster: &Cluster, owner: u64) -> Vec<String> {
    let mut tasks = Vec::new();
    for number in 0..=SPEAKERS {
        let agent = if number == 0 { "sender" } else { "speaker" };
        let message = text_message(&format!("m-{number}"), "go");
        let sent = cluster.node(owner).agent(agent).send_async(message).await.unwrap();
        let task = sent["id"].as_str().unwrap().to_owned();
        assert_eq!(cluster.owner(&task).await, owner);
        tasks.push(task);
    }
    tasks
}

async fn stopping(cluster: &Cluster, node: u64) {
    let health = format!("{}/healthz", cluster.node(node).url);
    eventually("the beginning of the stop", async || {
        let answer = http_client().get(&health).send().await;
        answer.is_ok_and(|answer| answer.status() == 503).then_some(())
    })
    .await;
}

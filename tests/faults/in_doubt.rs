//! A node dies between an intent and its outcome. What is declared harmless runs again; anything else waits for a person.

use serde_json::json;
use std::{fs, path::Path};
use towline_core::Intent;
use towline_tests::{
    Answer, Cluster, FakeModel, Plan, eventually, scripted_mcp, state_of, text_message, text_of_artifacts,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_call_that_must_not_happen_twice_stops_in_doubt_and_a_person_decides() {
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    let (mut cluster, _model) = senders(&calls, "ask").await;
    let leader = cluster.leader().await;
    let owner = cluster.another_than(&[leader]).id;
    let sent = cluster.node(owner).agent("sender").send_async(text_message("m-1", "send it")).await.unwrap();
    let task = sent["id"].as_str().unwrap().to_owned();
    eventually("the call", async || (noted(&calls) == 1).then_some(())).await;

    cluster.kill(owner).await;

    let entry = cluster.node(leader).agent("sender");
    let asked = eventually("the question", async || {
        Some(entry.get(&task).await.unwrap()).filter(|task| state_of(task) == "TASK_STATE_INPUT_REQUIRED")
    })
    .await;
    let question = asked["status"]["message"]["parts"][0]["text"].as_str().unwrap();
    assert!(question.contains("send_once"), "it says what was attempted: {question}");
    assert_eq!(noted(&calls), 1, "nothing was sent again");

    let mut verdict = text_message("m-2", "done it was sent");
    verdict["taskId"] = json!(task);
    let done = entry.send(verdict).await.unwrap();
    assert_eq!(state_of(&done), "TASK_STATE_COMPLETED", "{done}");
    let text: String = text_of_artifacts(&done).into_values().collect();
    assert!(text.contains("it was sent"), "{text}");
    assert_eq!(noted(&calls), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_call_that_is_declared_harmless_runs_again_under_the_same_key() {
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    let (mut cluster, _model) = senders(&calls, "retry").await;
    let leader = cluster.leader().await;
    let owner = cluster.another_than(&[leader]).id;
    let sent = cluster.node(owner).agent("sender").send_async(text_message("m-1", "send it")).await.unwrap();
    let task = sent["id"].as_str().unwrap().to_owned();
    eventually("the call", async || (noted(&calls) == 1).then_some(())).await;

    cluster.kill(owner).await;

    eventually("the second call", async || (noted(&calls) == 2).then_some(())).await;
    let record = cluster.task(&task).await;
    let step = record.journal.iter().find(|step| matches!(step.intent, Intent::Tool { .. })).unwrap();
    assert_eq!(step.attempt, 2);
    let text = fs::read_to_string(&calls).unwrap();
    let key = format!("{task}/{}", step.no);
    assert_eq!(text.matches(&key).count(), 2, "both carry the key {key}: {text}");
}

fn noted(calls: &Path) -> usize {
    fs::read_to_string(calls).unwrap_or_default().lines().count()
}

async fn senders(calls: &Path, on_adoption: &str) -> (Cluster, FakeModel) {
    let model = FakeModel::start(|chat| match chat.results.last() {
        None => Answer::new().call("srv__send_once", &json!({ "text": "the letter" })),
        Some(result) => Answer::say(result.clone()),
    })
    .await;
    let mesh = model.config()
        + &format!(
            "mcp:\n  servers:\n    - {{ name: srv, transport: stdio, command: [{:?}, {calls:?}], timeout: 300s, on_adoption: {{ \"*\": {on_adoption} }} }}\nagents:\n  - {{ name: sender, description: Sends., instruction: Send., tools: [\"srv.*\"], replicas: all }}\n",
            scripted_mcp()
        );
    (Cluster::start(Plan::three(mesh)).await, model)
}

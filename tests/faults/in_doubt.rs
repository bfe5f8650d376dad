//! A node dies between an intent and its outcome. What is declared harmless runs again; anything else waits for a person.

use serde_json::json;
use std::{fs, path::Path};
use towline_core::Intent;
use towline_tests::{
    Answer, Cluster, FakeModel, Plan, eventually, run_cli, scripted_mcp, state_of, text_message, text_of_artifacts,
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
    let dead = format!("node {} ({owner}), which ran it, was lost", cluster.node(owner).name);
    for part in ["send_once", "step 1", "attempt 1", &format!("{task}/1"), &dead] {
        assert!(question.contains(part), "it says what was attempted, {part:?}: {question}");
    }
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

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_call_that_counts_as_failed_is_told_to_the_model_and_not_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    let (mut cluster, _model) = senders(&calls, "fail").await;
    let leader = cluster.leader().await;
    let owner = cluster.another_than(&[leader]).id;
    let sent = cluster.node(owner).agent("sender").send_async(text_message("m-1", "send it")).await.unwrap();
    let task = sent["id"].as_str().unwrap().to_owned();
    eventually("the call", async || (noted(&calls) == 1).then_some(())).await;

    cluster.kill(owner).await;

    let entry = cluster.node(leader).agent("sender");
    let done = eventually("the end", async || {
        Some(entry.get(&task).await.unwrap()).filter(|task| state_of(task) == "TASK_STATE_COMPLETED")
    })
    .await;
    let text: String = text_of_artifacts(&done).into_values().collect();
    assert!(text.contains("it may have happened"), "the model was told: {text}");
    assert_eq!(noted(&calls), 1, "nothing was sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_owner_that_comes_back_stops_by_itself_and_what_it_says_is_evidence_and_never_applied() {
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    let (cluster, _model) = callers(&calls, "ask", "srv__send_gated").await;
    let leader = cluster.leader().await;
    let owner = cluster.another_than(&[leader]).id;
    let sent = cluster.node(owner).agent("sender").send_async(text_message("m-1", "send it")).await.unwrap();
    let task = sent["id"].as_str().unwrap().to_owned();
    eventually("the call", async || (noted(&calls) == 1).then_some(())).await;

    cluster.node(owner).pause();
    let entry = cluster.node(leader).agent("sender");
    let asked =
        async || Some(entry.get(&task).await.unwrap()).filter(|task| state_of(task) == "TASK_STATE_INPUT_REQUIRED");
    eventually("the question of the adopter", asked).await;
    let before = cluster.task_at(leader, &task).await;
    assert_eq!((before.adoptions.len(), before.adoptions[0].from.0), (1, owner), "{before:?}");
    fs::write(folder.path().join("calls.go"), "").unwrap();
    eventually("the answer to the old owner", async || folder.path().join("calls.done").exists().then_some(())).await;
    cluster.node(owner).resume();

    let question = eventually("the word of the old owner", async || {
        let task = asked().await?;
        let text = task["status"]["message"]["parts"].to_string();
        text.contains("the old owner reported").then_some(text)
    })
    .await;
    assert!(question.contains("250 accepted") && question.contains("send_gated"), "{question}");
    let record = cluster.task_at(leader, &task).await;
    let step = record.journal.iter().find(|step| matches!(step.intent, Intent::Tool { .. })).unwrap();
    assert_eq!(step.ended, None, "it is not applied");
    assert_eq!((record.lease.is_none(), step.attempt), (true, 1));
    assert!(cluster.node(owner).log_text().contains("its runs stop"), "the old owner stopped by itself");
    let status = cluster.node(leader).operator("cluster").await.unwrap();
    assert_eq!(status["late_results"], 1, "it is counted: {status}");

    let url = &cluster.node(leader).url;
    let settled =
        run_cli(["task", "resolve", &task, "--step", "1", "--as", "done", "--result", "sent", "--server", url]).await;
    assert_eq!(settled.code, 0, "{settled:?}");
    eventually("the end", async || {
        (state_of(&entry.get(&task).await.unwrap()) == "TASK_STATE_COMPLETED").then_some(())
    })
    .await;
    assert_eq!(noted(&calls), 1, "one call in all");
}

fn noted(calls: &Path) -> usize {
    fs::read_to_string(calls).unwrap_or_default().lines().count()
}

async fn senders(calls: &Path, on_adoption: &str) -> (Cluster, FakeModel) {
    callers(calls, on_adoption, "srv__send_once").await
}

async fn callers(calls: &Path, on_adoption: &str, tool: &'static str) -> (Cluster, FakeModel) {
    let model = FakeModel::start(move |chat| match chat.results.last() {
        None => Answer::new().call(tool, &json!({ "text": "the letter" })),
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

//! What a task may spend: it is counted, goes down with delegations, and ends the task when it is spent.

use serde_json::{Value, json};
use towline_core::Intent;
use towline_tests::{Answer, Cluster, FakeModel, Gate, Plan, run_cli, state_of, text_message};

const BOSS_AND_READER: &str = "\
agents:
  - { name: boss, description: B., instruction: You are the boss., delegates: [reader], replicas: all }
  - { name: reader, description: R., instruction: You are the reader., replicas: all }
";

/// A boss that has two readers work side by side, and then says that it is done. Each answer takes 12 tokens.
async fn start(more: &str) -> (Cluster, FakeModel) {
    let delegate = |what: &str| json!({ "agent": "reader", "message": what });
    let model = FakeModel::start(move |chat| match chat.results.last() {
        None if chat.system.contains("boss") => {
            Answer::new().call("delegate", &delegate("a")).call("delegate", &delegate("b"))
        }
        None => Answer::say("read"),
        Some(_) => Answer::say("done"),
    })
    .await;
    (Cluster::start(Plan::one(model.config() + BOSS_AND_READER + more)).await, model)
}

async fn send(cluster: &Cluster, id: &str, metadata: Value) -> Result<Value, towline_tests::RpcError> {
    let mut message = text_message(id, "have it read");
    message["metadata"] = metadata;
    cluster.nodes[0].agent("boss").send(message).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_is_counted_over_all_that_a_task_delegates_and_parted_among_it() {
    let (cluster, _model) = start("").await;
    let budget = json!({ "dev.towline/budget": { "tokens": 1000, "steps": 50 } });
    let task = send(&cluster, "m-1", budget).await.unwrap();
    assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
    let spent = json!({ "spentSteps": 6, "spentTokens": 48, "steps": 50, "tokens": 1000 });
    assert_eq!(task["metadata"]["dev.towline/budget"], spent, "{task}");

    let id = task["id"].as_str().unwrap();
    let record = cluster.task(id).await;
    let made: Vec<String> = record.journal.iter().filter_map(|step| peer_task(&step.intent)).collect();
    assert_eq!(made.len(), 2);
    for below in made {
        let budget = cluster.task(&below).await.budget().unwrap();
        assert_eq!((budget.tokens, budget.steps), (Some(494), Some(23)), "each half of what was left");
    }
    let shown = run_cli(["task", "get", id, "--server", &cluster.nodes[0].url]).await;
    assert!(shown.stdout.contains("budget   48 of 1000 tokens, 6 of 50 steps"), "{shown:?}");
}

fn peer_task(intent: &Intent) -> Option<String> {
    if let Intent::Delegate { peer_task, .. } = intent { peer_task.clone() } else { None }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_budget_is_spent_fails_and_says_of_what_how_much() {
    let (cluster, _model) = start("limits: { task_tokens: 40 }\n").await;
    for (number, budget, says) in [
        (1, json!({ "tokens": 30 }), "36 of 30 tokens are spent"),
        (2, json!({ "steps": 2 }), "1 of 2 steps are spent"),
        (3, json!({ "tokens": 9000, "steps": 9000 }), "36 of 40 tokens"),
    ] {
        let sent = send(&cluster, &format!("m-{number}"), json!({ "dev.towline/budget": budget })).await.unwrap();
        let reason = sent["status"]["message"]["parts"][0]["text"].as_str().unwrap_or_default();
        if number == 3 {
            assert_eq!(state_of(&sent), "TASK_STATE_COMPLETED", "36 of 40 tokens reach for one more answer: {sent}");
            continue;
        }
        assert_eq!(state_of(&sent), "TASK_STATE_FAILED", "{sent}");
        assert!(reason.contains("the budget of the task") && reason.contains(says), "{reason}");
    }
    let (cluster, _model) = start("limits: { task_tokens: 20 }\n").await;
    let sent = send(&cluster, "m-1", json!({})).await.unwrap();
    assert_eq!(state_of(&sent), "TASK_STATE_FAILED", "{sent}");
    assert!(sent.to_string().contains("36 of 20 tokens are spent"), "the limit of the configuration: {sent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_or_deadline_that_cannot_be_read_is_refused_by_its_name() {
    let (cluster, _model) = start("").await;
    for (metadata, names) in [
        (json!({ "dev.towline/budget": { "tokens": 0 } }), "dev.towline/budget"),
        (json!({ "dev.towline/budget": { "euros": 5 } }), "euros"),
        (json!({ "dev.towline/deadlineMs": "soon" }), "dev.towline/deadlineMs"),
    ] {
        let refused = send(&cluster, "m-1", metadata).await.unwrap_err();
        assert!(refused.code == -32602 && refused.message.contains(names), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_takes_longer_than_its_sender_or_the_configuration_allows_fails() {
    let never = Gate::closed();
    let gate = never.clone();
    let model = FakeModel::start(move |_| Answer::new().text("hm ").wait(&gate)).await;
    let mesh = model.config() + BOSS_AND_READER + "limits: { task_time: 2s }\n";
    let cluster = Cluster::start(Plan::one(mesh)).await;
    let url = &cluster.nodes[0].url;
    for more in [&["--deadline", "500ms"][..], &[]] {
        let command = ["send", "reader", "read", "-o", "json", "--server", url];
        let ran = run_cli(command.iter().chain(more)).await;
        assert!(ran.stdout.contains("the deadline of the task passed"), "{ran:?}");
    }
    never.open();
}

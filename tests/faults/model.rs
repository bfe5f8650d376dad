//! A model that refuses, breaks off, or writes nonsense.

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use towline_tests::{Answer, Chat, Cluster, FakeModel, Plan, state_of, text_message, text_of_artifacts};

const AGENTS: &str = "\
agents:
  - { name: speaker, description: Speaks., instruction: Speak., delegates: [other] }
  - { name: other, description: Speaks too., instruction: Speak too. }
";

#[tokio::test(flavor = "multi_thread")]
async fn a_429_is_tried_again_after_the_time_that_the_model_asks_for() {
    let begun = Instant::now();
    let (task, model, _cluster) = ask(|chat| match chat.number {
        0 => Answer::status(429, Some(1)),
        _ => Answer::say("now I can"),
    })
    .await;
    assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
    assert_eq!(text_of_artifacts(&task).into_values().collect::<String>(), "now I can");
    assert_eq!(model.chats().len(), 2);
    assert!(begun.elapsed() >= Duration::from_secs(1), "it did not wait");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_refuses_for_ever_fails_the_task_and_says_why() {
    let (task, model, _cluster) = ask(|_| Answer::status(429, Some(0))).await;
    assert_eq!(state_of(&task), "TASK_STATE_FAILED", "{task}");
    let reason = reason_of(&task);
    assert!(reason.contains("429") || reason.contains("rate"), "{reason}");
    assert!((2..=10).contains(&model.chats().len()), "tries are bounded: {}", model.chats().len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_is_never_taken_for_a_whole_answer() {
    for broken in [Answer::say("half an ans").cut(), Answer::say("half an ans").end_unfinished()] {
        let (task, _model, _cluster) = ask(move |_| broken.clone()).await;
        assert_eq!(state_of(&task), "TASK_STATE_FAILED", "{task}");
        assert!(!reason_of(&task).is_empty(), "{task}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_tool_arguments_are_told_to_the_model_which_can_mend_them() {
    let (task, model, _cluster) = ask(|chat| match (chat.system.starts_with("Speak too"), chat.results.last()) {
        (true, _) => Answer::say("the other speaks"),
        (false, None) => Answer::new().raw_call("delegate", "{\"agent\": \"other\", \"mess"),
        (false, Some(result)) if result.contains("JSON") => {
            Answer::new().call("delegate", &json!({ "agent": "other", "message": "speak" }))
        }
        (false, Some(result)) => Answer::say(format!("it said: {result}")),
    })
    .await;
    assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
    let text: String = text_of_artifacts(&task).into_values().collect();
    assert!(text.contains("the other speaks"), "{text}");
    let told = model.chats().iter().any(|chat| chat.results.iter().any(|result| result.contains("not valid JSON")));
    assert!(told, "the model was told what was wrong");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_never_stops_calling_meets_the_step_limit() {
    let agents = "agents:\n  - { name: speaker, description: S., instruction: S., delegates: [other], max_steps: 5 }\n  - { name: other, description: S., instruction: Speak too. }\n";
    let model = FakeModel::start(|chat| {
        if chat.system.starts_with("Speak too") {
            return Answer::say("again");
        }
        Answer::new().call("delegate", &json!({ "agent": "other", "message": format!("round {}", chat.results.len()) }))
    })
    .await;
    let cluster = Cluster::start(Plan::one(model.config() + agents)).await;
    let task = cluster.nodes[0].agent("speaker").send(text_message("m-1", "go")).await.unwrap();
    assert_eq!(state_of(&task), "TASK_STATE_FAILED", "{task}");
    assert!(reason_of(&task).contains('5'), "it names the limit: {}", reason_of(&task));
}

async fn ask(script: impl Fn(&Chat) -> Answer + Send + Sync + 'static) -> (Value, FakeModel, Cluster) {
    let model = FakeModel::start(script).await;
    let cluster = Cluster::start(Plan::one(model.config() + AGENTS)).await;
    let task = cluster.nodes[0].agent("speaker").send(text_message("m-1", "speak")).await.unwrap();
    (task, model, cluster)
}

fn reason_of(task: &Value) -> String {
    task["status"]["message"]["parts"][0]["text"].as_str().unwrap_or_default().to_owned()
}

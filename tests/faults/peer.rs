//! A foreign agent that dies in the middle of a delegation, and one that does not.

use serde_json::{Value, json};
use towline_core::{Intent, Outcome};
use towline_tests::{
    Answer, Cluster, FakeModel, FakePeer, PeerScript, Plan, eventually, state_of, text_message, text_of_artifacts,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_dies_in_the_middle_is_told_to_the_model_and_the_task_goes_on() {
    let peer = FakePeer::start(PeerScript::DiesInTheMiddle).await;
    let (task, cluster) = delegate_to(&peer).await;
    assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
    let record = cluster.task(task["id"].as_str().unwrap()).await;
    let step = record.journal.iter().find(|step| matches!(step.intent, Intent::Delegate { .. })).unwrap();
    let Intent::Delegate { peer_task, own_mesh, .. } = &step.intent else { unreachable!() };
    assert_eq!(peer_task.as_deref(), Some("foreign-task-1"), "the peer's task id was logged as soon as it was seen");
    assert!(!own_mesh);
    let outcome = &step.ended.as_ref().unwrap().outcome;
    assert!(matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
    assert_eq!(peer.messages(), 1, "a message whose outcome is unknown is not sent again by itself");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_peer_that_lives_gives_its_answer() {
    let peer = FakePeer::start(PeerScript::Completes).await;
    let (task, cluster) = delegate_to(&peer).await;
    assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
    let text: String = text_of_artifacts(&task).into_values().collect();
    assert!(text.contains("the peer is done"), "{text}");
    assert_eq!(peer.messages(), 1);
    let (_, sent) = peer.calls().into_iter().find(|(method, _)| method.starts_with("Send")).unwrap();
    let message = &sent["message"];
    assert_eq!(message["referenceTaskIds"], json!([task["id"]]));
    let record = cluster.task(task["id"].as_str().unwrap()).await;
    let step = record.journal.iter().find(|step| matches!(step.intent, Intent::Delegate { .. })).unwrap();
    assert_eq!(message["messageId"], format!("{}/{}", record.id, step.no), "the key of the step, on every attempt");
    assert!(message["contextId"].as_str().is_some_and(|context| context.starts_with(task["id"].as_str().unwrap())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_whose_question_nobody_answers_is_canceled_with_the_task_that_waits_for_it() {
    let peer = FakePeer::start(PeerScript::Asks).await;
    let (task, cluster) = delegate_to(&peer).await;
    assert_eq!(state_of(&task), "TASK_STATE_INPUT_REQUIRED", "{task}");
    let canceled = cluster.nodes[0].agent("boss").call("CancelTask", json!({ "id": task["id"] })).await.unwrap();
    assert_eq!(state_of(&canceled), "TASK_STATE_CANCELED", "{canceled}");
    let (_, heard) = eventually("the peer to hear of it", async || {
        peer.calls().into_iter().find(|(method, _)| method == "CancelTask")
    })
    .await;
    assert_eq!(heard["id"], "foreign-task-1");
    assert_eq!(peer.messages(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_nobody_listens_for_is_told_to_the_model() {
    let peer = FakePeer::start(PeerScript::Completes).await;
    let url = peer.url().to_owned();
    drop(peer);
    let (task, cluster) = delegate(&url).await;
    assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
    let record = cluster.task(task["id"].as_str().unwrap()).await;
    let step = record.journal.iter().find(|step| matches!(step.intent, Intent::Delegate { .. })).unwrap();
    let outcome = &step.ended.as_ref().unwrap().outcome;
    assert!(matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
}

async fn delegate_to(peer: &FakePeer) -> (Value, Cluster) {
    delegate(peer.url()).await
}

async fn delegate(url: &str) -> (Value, Cluster) {
    let model = FakeModel::start(|chat| match chat.results.last() {
        None => Answer::new().call("delegate", &json!({ "agent": "foreign", "message": "do it" })),
        Some(result) => Answer::say(format!("it said: {result}")),
    })
    .await;
    let mesh = model.config()
        + &format!(
            "agents:\n  - {{ name: boss, description: Delegates., instruction: Delegate., delegates: [foreign] }}\npeers:\n  - {{ name: foreign, url: \"{url}\" }}\n"
        );
    let cluster = Cluster::start(Plan::one(mesh)).await;
    let task = cluster.nodes[0].agent("boss").send(text_message("m-1", "have it done")).await.unwrap();
    (task, cluster)
}

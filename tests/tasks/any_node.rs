//! Any node answers for the cluster.

use serde_json::json;
use towline_tests::{
    A2aClient, Answer, Cluster, FakeModel, Gate, Observer, Plan, concatenated_text, state_of, text_message,
    text_of_artifacts,
};

const SPEAKER: &str = "agents:\n  - { name: speaker, description: Speaks., instruction: Speak., replicas: all }\n";

#[tokio::test(flavor = "multi_thread")]
async fn the_same_message_gives_the_same_task_through_every_node() {
    let (cluster, model) = speakers().await;
    let message = text_message("the-one", "hello");
    let mut ids = Vec::new();
    for node in &cluster.nodes {
        let task = node.agent("speaker").send(message.clone()).await.unwrap();
        assert_eq!(state_of(&task), "TASK_STATE_COMPLETED");
        ids.push(task["id"].clone());
    }
    assert_eq!(ids, vec![ids[0].clone(); 3]);
    assert_eq!(model.chats().len(), 1, "the work was done once");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_message_at_the_same_time_through_every_node_makes_one_task() {
    let (cluster, model) = speakers().await;
    let message = text_message("the-one", "hello");
    let clients: Vec<A2aClient> = cluster.nodes.iter().map(|node| node.agent("speaker")).collect();
    let sending = clients.iter().map(|client| client.send(message.clone()));
    let tasks = futures::future::join_all(sending).await;
    let ids: Vec<_> = tasks.into_iter().map(|task| task.unwrap()["id"].clone()).collect();
    assert_eq!(ids, vec![ids[0].clone(); 3]);
    assert_eq!(model.chats().len(), 1, "the work was done once");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_message_id_with_other_content_is_a_clear_error_through_another_node() {
    let (cluster, _model) = speakers().await;
    let first = cluster.nodes[0].agent("speaker").send(text_message("the-one", "hello")).await.unwrap();
    let refused = cluster.nodes[1].agent("speaker").send(text_message("the-one", "goodbye")).await.unwrap_err();
    assert!(refused.message.contains("different content"), "{refused:?}");
    assert!(refused.message.contains("the-one"), "{refused:?}");
    assert!(refused.message.contains(first["id"].as_str().unwrap()), "it names the first task: {refused:?}");
    assert!(refused.code <= -32000, "a JSON-RPC error of the protocol: {refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_does_not_make_a_message_another_one() {
    let (cluster, _model) = speakers().await;
    let message = text_message("the-one", "hello");
    let first = cluster.nodes[0].agent("speaker").send(message.clone()).await.unwrap();
    let mut retry = message;
    retry["metadata"] = json!({ "attempt": 2 });
    let second = cluster.nodes[2].agent("speaker").send(retry).await.unwrap();
    assert_eq!(second["id"], first["id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_node_answered_every_other_node_knows_at_once() {
    let (cluster, _model) = speakers().await;
    for round in 0..5 {
        let writer = &cluster.nodes[round % 3];
        let message = text_message(&format!("m-{round}"), "hello");
        let task = writer.agent("speaker").send_async(message).await.unwrap();
        let id = task["id"].as_str().unwrap();
        for reader in &cluster.nodes {
            let read = reader.agent("speaker").get(id).await.unwrap();
            assert_eq!(read["id"], task["id"]);
            let list = reader.agent("speaker").call("ListTasks", json!({})).await.unwrap();
            let listed = list["tasks"].as_array().unwrap().iter().any(|listed| listed["id"] == task["id"]);
            assert!(listed, "node {} does not list the task: {list}", reader.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_wants_to_return_at_once_does_not_wait_for_the_work() {
    let never = Gate::closed();
    let gate = never.clone();
    let model = FakeModel::start(move |_| Answer::new().wait(&gate)).await;
    let cluster = Cluster::start(Plan::one(model.config() + SPEAKER)).await;
    let task = cluster.nodes[0].agent("speaker").send_async(text_message("m-1", "hello")).await.unwrap();
    assert!(matches!(state_of(&task).as_str(), "TASK_STATE_SUBMITTED" | "TASK_STATE_WORKING"), "{task}");
    never.open();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_last_event_id_begins_with_the_task_as_it_stands_and_goes_on_from_there() {
    let half_way = Gate::closed();
    let gate = half_way.clone();
    let model =
        FakeModel::start(move |_| Answer::new().words(&["one ", "two "]).wait(&gate).words(&["three ", "four"])).await;
    let cluster = Cluster::start(Plan::three(model.config() + SPEAKER)).await;
    let caller = Observer::send(cluster.nodes[0].agent("speaker").endpoint(), text_message("m-1", "hello"));
    let first_half = caller.saw(4).await;
    let task = caller.task().await;

    let late = Observer::subscribe(cluster.nodes[1].agent("speaker").endpoint(), &task, None);
    let beyond = Observer::subscribe(cluster.nodes[2].agent("speaker").endpoint(), &task, Some(999));
    let snapshots = [late.saw(1).await.remove(0), beyond.saw(1).await.remove(0)];
    half_way.open();
    let all = caller.finished().await;
    for (stream, snapshot) in [late, beyond].into_iter().zip(snapshots) {
        assert_eq!(snapshot.event["task"]["id"], *task);
        let told = snapshot.event["task"]["metadata"]["dev.towline/generation"].as_u64();
        assert_eq!(told, Some(snapshot.index));
        assert!(snapshot.index >= first_half.len() as u64);
        let rest: Vec<_> = stream.finished().await.split_off(1);
        assert_eq!(rest, all[snapshot.index as usize..]);
    }
    let read = cluster.nodes[2].agent("speaker").get(&task).await.unwrap();
    assert_eq!(concatenated_text(&all), text_of_artifacts(&read));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_says_its_index_in_its_metadata_too() {
    let (cluster, _model) = speakers().await;
    let caller = Observer::send(cluster.nodes[0].agent("speaker").endpoint(), text_message("m-1", "hello"));
    for seen in caller.finished().await {
        let inside = seen.event.as_object().unwrap().values().next().unwrap();
        assert_eq!(inside["metadata"]["dev.towline/generation"].as_u64(), Some(seen.index), "{}", seen.event);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_streams_of_one_task_show_the_same_and_closing_one_changes_nothing_for_the_other() {
    let half_way = Gate::closed();
    let gate = half_way.clone();
    let model = FakeModel::start(move |_| Answer::new().words(&["one ", "two "]).wait(&gate).text("three")).await;
    let cluster = Cluster::start(Plan::three(model.config() + SPEAKER)).await;
    let caller = Observer::send(cluster.nodes[0].agent("speaker").endpoint(), text_message("m-1", "hello"));
    let task = caller.task().await;
    let other = Observer::subscribe(cluster.nodes[1].agent("speaker").endpoint(), &task, Some(0));
    other.saw(3).await;
    caller.hang_up();
    half_way.open();
    let all = other.finished().await;
    assert_eq!(all[..caller.list().len()], caller.seen());
    assert_eq!(all.last().unwrap().event["statusUpdate"]["status"]["state"], "TASK_STATE_COMPLETED");
}

async fn speakers() -> (Cluster, FakeModel) {
    let model = FakeModel::start(|_| Answer::say("hello to you")).await;
    let cluster = Cluster::start(Plan::three(model.config() + SPEAKER)).await;
    (cluster, model)
}

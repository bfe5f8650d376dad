//! All nodes are killed and come back from their disks.

use serde_json::json;
use towline_tests::{Answer, Cluster, FakeModel, Observer, Plan, state_of, text_message, text_of_artifacts};

const ASKER: &str =
    "agents:\n  - { name: asker, description: Asks., instruction: Ask., replicas: all, ask_human: true }\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_waits_for_a_person_survives_the_death_of_all_nodes_and_its_answer_goes_on() {
    let (_model, config) = asking_model().await;
    let mut cluster = Cluster::start(Plan::three(config + ASKER)).await;
    let asked = cluster.nodes[0].agent("asker").send(text_message("m-1", "which one?")).await.unwrap();
    assert_eq!(state_of(&asked), "TASK_STATE_INPUT_REQUIRED");
    assert_eq!(asked["status"]["message"]["parts"][0]["text"], "red or blue?");
    let task = asked["id"].as_str().unwrap().to_owned();
    let before = Observer::subscribe(cluster.nodes[1].agent("asker").endpoint(), &task, Some(0)).saw(3).await;

    cluster.restart_all().await;

    for node in &cluster.nodes {
        let read = node.agent("asker").get(&task).await.unwrap();
        assert_eq!(read["status"], asked["status"], "through node {}", node.name);
    }
    let mut answer = text_message("m-2", "blue");
    answer["taskId"] = json!(task);
    let done = cluster.nodes[2].agent("asker").send(answer).await.unwrap();
    assert_eq!(done["id"], task);
    assert_eq!(state_of(&done), "TASK_STATE_COMPLETED");
    assert!(text_of_artifacts(&done).values().any(|text| text.contains("you said blue")), "{done}");
    for node in &cluster.nodes {
        let all = Observer::subscribe(node.agent("asker").endpoint(), &task, Some(0)).finished().await;
        let indexes: Vec<u64> = all.iter().map(|seen| seen.index).collect();
        assert_eq!(indexes, (1..=indexes.len() as u64).collect::<Vec<_>>());
        assert_eq!(all[..before.len()], before, "through node {}", node.name);
        let end = &all.last().unwrap().event["statusUpdate"]["status"]["state"];
        assert_eq!(end, "TASK_STATE_COMPLETED", "a replay does not stop at the old question");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_tasks_are_read_from_disk_and_their_messages_are_still_known() {
    let (_model, config) = asking_model().await;
    let mut cluster = Cluster::start(Plan::three(config + ASKER)).await;
    let message = text_message("m-1", "just speak");
    let done = cluster.nodes[1].agent("asker").send(message.clone()).await.unwrap();
    assert_eq!(state_of(&done), "TASK_STATE_COMPLETED");
    let task = done["id"].as_str().unwrap().to_owned();

    cluster.restart_all().await;

    for node in &cluster.nodes {
        let read = node.agent("asker").get(&task).await.unwrap();
        assert_eq!(read, done, "through node {}", node.name);
        let again = node.agent("asker").send(message.clone()).await.unwrap();
        assert_eq!(again["id"], task, "through node {}", node.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_stop_in_good_order_leave_with_exit_code_0_and_hand_their_tasks_over() {
    let (model, config) = asking_model().await;
    let mut cluster = Cluster::start(Plan::three(config + ASKER)).await;
    let leader = cluster.leader().await;
    let sent = cluster.node(leader).agent("asker").send_async(text_message("m-1", "speak long")).await.unwrap();
    let task = sent["id"].as_str().unwrap().to_owned();
    assert_eq!(cluster.owner(&task).await, leader);
    let code = cluster.node_mut(leader).stop().await;
    assert_eq!(code, Some(0));
    let survivor = cluster.another_than(&[leader]);
    let seen = Observer::subscribe(survivor.agent("asker").endpoint(), &task, Some(0)).finished().await;
    assert_eq!(seen.last().unwrap().event["statusUpdate"]["status"]["state"], "TASK_STATE_COMPLETED");
    drop(model);
}

async fn asking_model() -> (FakeModel, String) {
    let model = FakeModel::start(|chat| match (chat.user.as_str(), chat.results.last()) {
        ("which one?", None) => Answer::new().call("ask_human", &json!({ "question": "red or blue?" })),
        ("speak long", _) => Answer::new().words(&["a ", "b ", "c ", "d ", "e ", "f ", "g ", "h ", "i ", "j "]),
        (_, Some(answer)) => Answer::say(format!("you said {answer}")),
        (_, None) => Answer::say("spoken"),
    })
    .await;
    let config = model.config();
    (model, config)
}

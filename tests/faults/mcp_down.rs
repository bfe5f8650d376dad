//! An MCP server that is down on one node of three.

use serde_json::json;
use std::{
    fs,
    sync::atomic::{AtomicU32, Ordering},
};
use towline_tests::{Answer, Cluster, FakeModel, Gate, Plan, eventually, scripted_mcp, text_message};

/// Where a new task goes that is sent to this node; it is canceled again.
async fn goes_to(cluster: &Cluster, node: usize, number: u32) -> u64 {
    let agent = cluster.nodes[node].agent("caller");
    let task = agent.send_async(text_message(&format!("m-{number}"), "work")).await.unwrap();
    let id = task["id"].as_str().unwrap();
    let owner = cluster.owner(id).await;
    agent.cancel(id).await.unwrap();
    owner
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_goes_to_a_node_whose_server_is_up_and_to_the_other_when_its_server_is_back() {
    let gate = Gate::closed();
    let waits = gate.clone();
    let model = FakeModel::start(move |_| Answer::new().wait(&waits)).await;
    let calls = tempfile::tempdir().unwrap().keep().join("calls");
    // A server that starts where its folder has a file.
    let command = format!("test -e up && exec {:?} {calls:?}", scripted_mcp());
    let mesh = model.config()
        + &format!(
            "mcp:\n  servers:\n    - {{ name: srv, command: [sh, -c, {}] }}\nagents:\n  - {{ name: caller, description: Calls., instruction: Call., tools: [\"srv.*\"], replicas: all }}\n",
            json!(command)
        );
    let cluster = Cluster::start(Plan::three(mesh)).await;
    for node in &cluster.nodes[1..] {
        fs::write(node.home.join("up"), "").unwrap();
    }
    let down = cluster.nodes[0].id;
    let number = AtomicU32::new(0);
    let next = async || goes_to(&cluster, 0, number.fetch_add(1, Ordering::Relaxed)).await;
    eventually("a task goes elsewhere than to the node that was asked", async || (next().await != down).then_some(()))
        .await;
    for _ in 0..3 {
        assert_ne!(next().await, down, "every task does");
    }
    fs::write(cluster.nodes[0].home.join("up"), "").unwrap();
    eventually("the server is back, and the node that was asked is given a task", async || {
        (next().await == down).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_right_after_the_start_has_the_tools_of_a_server_that_takes_long_to_come_up() {
    let model = FakeModel::start(|chat| match chat.results.len() {
        0 => Answer::new().call("srv__echo", &json!({ "text": "hello" })),
        _ => Answer::say(chat.results.join("\n")),
    })
    .await;
    let calls = tempfile::tempdir().unwrap().keep().join("calls");
    // Longer than one that refuses is waited for.
    let command = format!("sleep 7; exec {:?} {calls:?}", scripted_mcp());
    let mesh = model.config()
        + &format!(
            "mcp:\n  servers:\n    - {{ name: srv, command: [sh, -c, {}] }}\nagents:\n  - {{ name: caller, description: Calls., instruction: Call., tools: [\"srv.*\"] }}\n",
            json!(command)
        );
    let cluster = Cluster::start(Plan::one(mesh)).await;
    cluster.nodes[0].agent("caller").send(text_message("m-1", "call it")).await.unwrap();
    let chats = model.chats();
    assert!(chats[0].tools.contains(&"srv__echo".to_owned()), "{:?}", chats[0].tools);
    assert!(chats[1].results[0].contains("hello"), "{:?}", chats[1].results);
}

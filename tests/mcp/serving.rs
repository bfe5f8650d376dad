//! Sessions over several nodes, and what a node refuses to serve.

use serde_json::{Value, json};
use std::fs;
use towline_tests::{Answer, Cluster, FakeModel, Gate, Plan, run_cli, text_message};

use crate::client::McpClient;

const WORKER: &str = "agents:\n  - { name: worker, description: Works., instruction: Work., replicas: all }\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_at_another_node_when_its_own_is_lost_and_misses_nothing() {
    let gate = Gate::closed();
    let waits = gate.clone();
    let model = FakeModel::start(move |_| Answer::say("Done.").wait(&waits)).await;
    let mut cluster = Cluster::start(Plan::three(model.config() + WORKER)).await;
    let urls: Vec<String> = cluster.nodes.iter().map(|node| node.url.clone()).collect();
    let task = cluster.nodes[1].agent("worker").send_async(text_message("m-1", "Work.")).await.unwrap();
    let uri = format!("towline://tasks/{}", task["id"].as_str().unwrap());

    let client = McpClient::begin(&urls[0]).await;
    let subscribed = client.ask(&urls[0], "resources/subscribe", json!({ "uri": uri })).await;
    assert_eq!(subscribed["result"], json!({}), "{subscribed}");
    let mut stream = client.listen(&urls[0], None).await;
    stream.next().await.unwrap();
    let place = stream.last.clone().expect("the first event says where the client stands");
    cluster.nodes[0].kill().await;
    while stream.next().await.is_some() {}
    gate.open();

    let tools = client.tools(&urls[2]).await;
    assert_eq!(tools.len(), 6, "the session is one at a node that has never seen it: {tools:?}");
    let mut stream = client.listen(&urls[2], Some(&place)).await;
    let told = stream.message().await;
    assert_eq!((&told["method"], &told["params"]["uri"]), (&json!("notifications/resources/updated"), &json!(uri)));
    loop {
        let read = client.ask(&urls[2], "resources/read", json!({ "uri": uri })).await;
        let text = read["result"]["contents"][0]["text"].as_str().unwrap_or_else(|| panic!("{read}"));
        let task: Value = serde_json::from_str(text).unwrap();
        if task["status"]["state"] == "TASK_STATE_COMPLETED" {
            break;
        }
        // Told of each change until there is none any more: notify, then read.
        stream.message().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_is_no_read_keeps_a_node_from_starting_and_each_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("towline.yaml");
    let mesh = "mcp:\n  serve: { tools: [list_agents, cancel_task, drain_node], hosts: [\"*\"] }\n";
    fs::write(&file, towline_tests::base_config("a", 1, 2, 8) + mesh).unwrap();
    for command in ["validate", "node"] {
        let mut arguments = vec![command.to_owned()];
        arguments.extend((command == "node").then(|| "-c".to_owned()));
        arguments.push(file.display().to_string());
        let ran = run_cli(arguments).await;
        assert_eq!(ran.code, 2, "{ran:?}");
        for says in
            ["\"cancel_task\"", "\"drain_node\"", "a server cannot widen it", "any page could point its own name"]
        {
            assert!(ran.said().contains(says), "{says}: {}", ran.said());
        }
    }
}

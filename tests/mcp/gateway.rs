//! Tools of other MCP servers, served through a node.

use serde_json::{Value, json};
use std::fs;
use towline_tests::{Answer, Cluster, FakeModel, Plan, TestNode, eventually, scripted_mcp};

use crate::client::McpClient;

/// Two servers, one of which can never be reached, and what is served of them to the operator.
async fn started(clients: &str) -> (Cluster, std::path::PathBuf) {
    let model = FakeModel::start(|_| Answer::say("Nothing.")).await;
    let calls = tempfile::tempdir().unwrap().keep().join("calls");
    let mesh = model.config()
        + &format!(
            "mcp:\n  servers:\n    - {{ name: srv, command: [{:?}, {calls:?}], timeout: 20s }}\n    \
             - {{ name: gone, endpoint: \"http://127.0.0.1:9/mcp\" }}\n  serve:\n    federate:\n      \
             - {{ server: gone, allow: [\"*\"], clients: [{clients}] }}\n      \
             - {{ server: srv, allow: [\"ec*\"], clients: [{clients}] }}\n\
             agents:\n  - {{ name: caller, description: Calls., instruction: Call. }}\n",
            scripted_mcp()
        );
    (Cluster::start(Plan::one(mesh)).await, calls)
}

async fn connected(node: &TestNode) {
    eventually("the server to be connected", async || {
        let servers = node.operator("mcp").await?;
        let servers = servers["servers"].as_array()?.clone();
        servers.iter().any(|server| server["name"] == "srv" && server["state"] == "ready").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_tools_of_a_server_are_served_and_the_loss_of_another_empties_no_list() {
    let (cluster, calls) = started("operator").await;
    let node = &cluster.nodes[0];
    connected(node).await;
    let client = McpClient::begin(&node.url).await;
    let tools = client.tools(&node.url).await;
    let upstream: Vec<&String> = tools.iter().filter(|tool| tool.contains("__")).collect();
    assert_eq!(upstream, ["srv__echo"], "only what is allowed, and of those that there are");
    assert_eq!(tools.len(), 7, "the reads are there all the same: {tools:?}");
    let called = client.call(&node.url, "srv__echo", json!({ "text": "hello" })).await;
    assert_eq!((&called["isError"], &called["content"][0]["text"]), (&json!(false), &json!("echo: hello")), "{called}");
    for unknown in ["srv__crash", "gone__anything", "srv__", "nobody__echo"] {
        let refused = client.ask(&node.url, "tools/call", json!({ "name": unknown, "arguments": {} })).await;
        assert_eq!(refused["error"]["code"], -32602, "{unknown}: {refused}");
    }
    // What the caller has said of itself stays here.
    let noted = fs::read_to_string(&calls).unwrap();
    let meta: Value = serde_json::from_str(noted.lines().next().unwrap().split_once(' ').unwrap().1).unwrap();
    assert!(!meta.to_string().contains(&client.session), "{meta}");
    fs::remove_dir_all(calls.parent().unwrap()).unwrap_or_default();
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_of_others_are_unknown_to_who_is_not_listed() {
    let (cluster, calls) = started("\"user:ada\"").await;
    let node = &cluster.nodes[0];
    connected(node).await;
    let client = McpClient::begin(&node.url).await;
    assert_eq!(client.tools(&node.url).await.len(), 6);
    let refused = client.ask(&node.url, "tools/call", json!({ "name": "srv__echo", "arguments": {} })).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    fs::remove_dir_all(calls.parent().unwrap()).unwrap_or_default();
}

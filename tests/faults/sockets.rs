//! Agents behind unix sockets of this machine: a mesh that delegates to another one beside it.

use serde_json::json;
use towline_tests::{Answer, Cluster, FakeModel, Plan, run_cli, state_of, text_message, text_of_artifacts};

const WORKER: &str =
    "agents:\n  - { name: worker, description: Says words., instruction: Say words., replicas: all }\n";

/// A mesh with a worker that can be reached by a socket, and the URL of the socket.
async fn neighbour(model: &FakeModel) -> (Cluster, String) {
    let mut cluster = Cluster::start(Plan::one(model.config() + WORKER)).await;
    let node = &mut cluster.nodes[0];
    node.stop().await;
    let config = std::fs::read_to_string(node.config()).unwrap();
    let with_socket = config.replacen("listen: { ", "listen: { unix: \"node.sock\", ", 1);
    assert_ne!(config, with_socket);
    std::fs::write(node.config(), with_socket).unwrap();
    node.start(None);
    node.ready().await;
    let url = format!("unix://{}", node.home.join("node.sock").display());
    (cluster, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_behind_a_socket_is_sent_to_and_takes_part_in_another_mesh() {
    let model = FakeModel::start(|_| Answer::new().words(&["one ", "two ", "three"])).await;
    let (neighbour, socket) = neighbour(&model).await;
    let said = run_cli(["send", &socket, "speak"]).await;
    assert!(said.code == 0 && said.stdout.contains("one two three"), "{said:?}");

    let here = Cluster::start(Plan::one(String::new())).await;
    let server = &here.nodes[0].url;
    let worker = format!("{socket}:/agents/worker");
    let added = run_cli(["agent", "add", "beside", "--url", &worker, "--server", server]).await;
    assert!(added.code == 0 && added.stdout.contains("Says words."), "{added:?}");
    let task = here.nodes[0].agent("beside").send(text_message("m-1", "speak")).await.unwrap();
    assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
    let text: String = text_of_artifacts(&task).into_values().collect();
    assert_eq!(text, "one two three");

    let made = neighbour.nodes[0].agent("worker").call("ListTasks", json!({ "pageSize": 10 })).await.unwrap();
    let made = made["tasks"].as_array().unwrap();
    assert_eq!(made.len(), 2, "one of the command line, one of the other mesh");
    let record = neighbour.task(made[0]["id"].as_str().unwrap()).await;
    let above = here.task(task["id"].as_str().unwrap()).await;
    assert_eq!(record.trace.trace_id_hex(), above.trace.trace_id_hex(), "one trace over the socket");
    assert_eq!(record.outside_input, ["message of agent beside"], "who it is from is known");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_is_not_there_is_said_by_its_name() {
    let sent = run_cli(["send", "unix:///nowhere/towline.sock", "speak"]).await;
    assert!(sent.code == 3 && sent.stderr.contains("unix:///nowhere/towline.sock"), "{sent:?}");
    let wrong = run_cli(["send", "unix://nowhere", "speak"]).await;
    assert!(wrong.code == 2 && wrong.stderr.contains("unix:///run/agent.sock"), "{wrong:?}");
    let here = Cluster::start(Plan::one(String::new())).await;
    let server = &here.nodes[0].url;
    let added = run_cli(["peer", "add", "x", "--url", "unix:///nowhere/towline.sock", "--server", server]).await;
    assert!(added.code == 1 && added.stderr.contains("unix:///nowhere/towline.sock"), "{added:?}");
}

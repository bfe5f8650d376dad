//! A mesh whose own address is given to it as that of somebody else: what a user delegates would come back as the operator's.

use std::fs;

use serde_json::{Value, json};
use towline_tests::{Answer, Cluster, FakeModel, Plan, http_client, run_cli, text_message, text_of_artifacts};

#[tokio::test(flavor = "multi_thread")]
async fn the_mesh_itself_is_no_peer_of_its_own_by_whatever_address() {
    let model = FakeModel::start(|chat| match chat.results.last() {
        None => Answer::new().call("delegate", &json!({ "agent": "back", "message": "do it" })),
        Some(result) => Answer::say(format!("it said: {result}")),
    })
    .await;
    let mesh = model.config() + "agents:\n  - { name: worker, description: W., instruction: Work. }\n";
    let mut cluster = Cluster::start(Plan::one(mesh)).await;
    let node = &mut cluster.nodes[0];
    node.stop().await;
    let config = fs::read_to_string(node.config()).unwrap();
    let config = config.replacen("listen: { ", "listen: { unix: \"node.sock\", ", 1)
        + "  - { name: boss, description: B., instruction: Delegate., delegates: [back] }\npeers:\n"
        + &format!("  - {{ name: back, url: \"{}\" }}\n", node.url);
    fs::write(node.config(), config).unwrap();
    node.start(None);
    node.ready().await;
    let (url, socket) = (node.url.clone(), format!("unix://{}", node.home.join("node.sock").display()));

    for back in [url.clone(), format!("{url}/agents/worker"), socket.clone(), format!("{socket}:/agents/worker")] {
        for command in ["agent", "peer"] {
            let added = run_cli([command, "add", "again", "--url", &back, "--server", &url]).await;
            assert!(added.code == 1 && added.stderr.contains("leads back into this mesh"), "{back}: {added:?}");
        }
    }

    let task = node.agent("boss").send(text_message("m-1", "delegate it")).await.unwrap();
    let said: String = text_of_artifacts(&task).into_values().collect();
    assert!(said.contains("own_mesh") && said.contains("leads back"), "{task}");
    let worker = node.agent("worker");
    assert_eq!(worker.call("ListTasks", json!({})).await.unwrap()["totalSize"], 0, "nothing came back");

    // Behind a proxy that shows another card the message itself says where it comes from.
    let card = http_client().get(format!("{url}/.well-known/agent-card.json")).send().await.unwrap();
    let card: Value = card.json().await.unwrap();
    let extensions = card["capabilities"]["extensions"].as_array().unwrap();
    let mesh = extensions.iter().find(|one| one["uri"].as_str().unwrap().ends_with("/mesh")).unwrap();
    let mut message = text_message("m-2", "do it");
    message["metadata"] =
        json!({ "dev.towline/chain": [{ "agent": "boss", "mesh": mesh["params"]["mark"], "task": "x" }] });
    let refused = worker.send(message).await.unwrap_err();
    assert!(refused.message.contains("this mesh has sent it to itself"), "{refused:?}");
}

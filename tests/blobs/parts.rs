//! Large parts and results: readers see the same as if they were in the log.

use serde_json::json;
use towline_core::{Intent, Outcome};
use towline_tests::{Answer, Cluster, FakeModel, Plan, eventually, scripted_mcp, state_of, text_message};

/// Above what the log takes, below what is shown as a link.
const LONG: usize = 100_000;

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tool_made_is_shown_by_every_node_after_its_owner_was_killed() {
    let (mut cluster, model) = cluster_with_tools(3).await;
    let owner = cluster.nodes[0].id;
    let sent = cluster.nodes[0].agent("caller").send(text_message("m-1", "call them")).await.unwrap();
    assert_eq!(state_of(&sent), "TASK_STATE_COMPLETED", "{sent}");
    let id = sent["id"].as_str().unwrap().to_owned();

    cluster.kill(owner).await;

    let picture = "QUJD".repeat(LONG);
    for node in cluster.alive() {
        let task = eventually("the task", async || node.agent("caller").get(&id).await.ok()).await;
        let artifacts = task["artifacts"].as_array().unwrap();
        let file = artifacts.iter().find(|artifact| artifact["artifactId"] == "step-3-file-0").unwrap();
        assert_eq!(file["parts"][0]["mediaType"], "image/png");
        assert!(file["parts"][0]["raw"] == *picture, "node {} shows the picture", node.name);
    }
    let record = cluster.task(&id).await;
    let tools = record.journal.iter().filter(|step| matches!(step.intent, Intent::Tool { .. }));
    let outcomes: Vec<Outcome> = tools.map(|step| step.ended.clone().unwrap().outcome).collect();
    let Outcome::Stored { blob, is_error: false } = outcomes[0] else { panic!("the log has it: {outcomes:?}") };
    assert_eq!(blob.length, LONG as u64);
    assert!(record.blobs.contains_key(&blob.hash));
    let told = model.chats().last().unwrap().results.clone();
    assert!(told[0].contains(&lorem()), "the model read all of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_text_is_the_same_to_the_model_and_to_every_reader() {
    let (mut cluster, model) = cluster_with_tools(3).await;
    let text = lorem();
    let data = json!({ "b": text, "a": [1, 2] });
    let parts = json!([{ "text": text }, { "data": data }, { "text": "and so on" }]);
    let message = json!({ "messageId": "m-1", "role": "ROLE_USER", "parts": parts });
    let sent = cluster.nodes[1].agent("listener").send(message.clone()).await.unwrap();
    assert_eq!(state_of(&sent), "TASK_STATE_COMPLETED", "{sent}");
    let again = cluster.nodes[2].agent("listener").send(message).await.unwrap();
    assert_eq!(again["id"], sent["id"], "the same message is taken once");
    let heard = model.chats().last().unwrap().user.clone();
    assert!(heard.contains(&text) && heard.ends_with("and so on"), "{} characters", heard.len());

    cluster.restart_all().await;

    for node in &cluster.nodes {
        let task = node.agent("listener").get(sent["id"].as_str().unwrap()).await.unwrap();
        let shown = &task["history"][0]["parts"];
        assert!(shown[0]["text"] == *text && shown[1]["data"] == data, "node {} shows it whole", node.name);
        assert_eq!(shown[2]["text"], "and so on");
    }
    let record = cluster.task(sent["id"].as_str().unwrap()).await;
    assert_eq!(record.history[0].blobs().count(), 2, "both are in the blob store");
}

fn lorem() -> String {
    "lorem ipsum ".repeat(LONG / 12 + 1)[..LONG].to_owned()
}

/// `caller` calls for a long text and a picture; `listener` says that it has heard.
async fn cluster_with_tools(nodes: usize) -> (Cluster, FakeModel) {
    let model = FakeModel::start(|chat| {
        let size = json!({ "text": LONG.to_string() });
        match (chat.tools.is_empty(), chat.results.len()) {
            (true, _) => Answer::say("heard"),
            (false, 0) => Answer::new().call("srv__long", &size),
            (false, 1) => Answer::new().call("srv__picture", &size),
            (false, _) => Answer::say("done"),
        }
    })
    .await;
    let mesh = model.config()
        + &format!(
            "mcp:\n  servers:\n    - {{ name: srv, transport: stdio, command: [{:?}, calls], on_adoption: {{ \"*\": retry }} }}\nagents:\n  - {{ name: caller, description: Calls., instruction: Call., tools: [\"srv.*\"], replicas: all }}\n  - {{ name: listener, description: Listens., instruction: Listen., replicas: all }}\n",
            scripted_mcp()
        );
    let plan = Plan { nodes, ..Plan::three(mesh) };
    (Cluster::start(plan).await, model)
}

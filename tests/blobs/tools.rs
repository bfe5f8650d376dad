//! What tools answer at length: files that stream through a node, texts that no model could read, and what is refused.

use futures::StreamExt;
use serde_json::{Value, json};
use towline_core::{Intent, Outcome};
use towline_tests::{
    Answer, Cluster, FakeModel, Plan, http_client, made_bytes, scripted_mcp, state_of, text_message, text_of_artifacts,
};

use crate::{
    door::{forget_peak, peak_memory_kib},
    http_server::{HttpServer, Style},
};

/// A hundred mebibytes in groups of three bytes.
const LARGE: usize = 100 * 1024 * 1024 / 3 * 3;

/// What a node may need beside what it needs anyway, while the file goes through it.
const MORE_MEMORY_KIB: u64 = 48 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_a_hundred_mebibytes_from_a_child_process_is_an_artifact_and_never_in_memory() {
    let command = format!("transport: stdio, command: [{:?}, calls]", scripted_mcp());
    stream_through(3, &command).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_a_hundred_mebibytes_over_http_is_an_artifact_and_never_in_memory() {
    for style in [Style::Json, Style::Events] {
        let server = HttpServer::start(style).await;
        stream_through(1, &format!("endpoint: {:?}", server.endpoint)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_too_long_for_a_model_is_an_artifact_and_the_model_is_told() {
    let (task, bench) = bench("long", 3 * 1024 * 1024).await;
    assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
    let read = http_client().get(url_of_file(&task)).send().await.unwrap();
    assert_eq!(read.headers()["content-type"], "text/plain; charset=utf-8");
    assert!(read.text().await.unwrap() == "lorem ipsum ".repeat(300_000)[..3 * 1024 * 1024], "it is the same");
    let told = bench.model.chats().last().unwrap().results[0].clone();
    assert!(told.contains("3145728 bytes") && told.contains("artifact"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_held_is_refused_at_once_and_the_connection_goes_on() {
    for (tool, size) in [("odd", 3_000_000), ("heap", 20)] {
        let (task, bench) = bench(tool, size).await;
        assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
        let record = bench.cluster.task(task["id"].as_str().unwrap()).await;
        let step = record.journal.iter().find(|step| matches!(step.intent, Intent::Tool { .. })).unwrap();
        let Outcome::Failed { error_type, message } = &step.ended.as_ref().unwrap().outcome else { panic!("{step:?}") };
        assert_eq!(error_type, "too_large", "{message}");
        let again = bench.cluster.nodes[0].agent("caller").send(text_message("m-2", "picture 10")).await.unwrap();
        let parts = &again["artifacts"].as_array().unwrap().iter().find(|one| one["artifactId"] == "step-1-file-0");
        assert!(parts.is_some(), "the next call is answered: {again}");
    }
}

async fn stream_through(nodes: usize, server: &str) {
    let bench = start(nodes, server).await;
    let nodes = &bench.cluster.nodes;
    nodes.iter().for_each(forget_peak);
    let before: Vec<u64> = nodes.iter().map(peak_memory_kib).collect();

    let task = nodes[0].agent("caller").send(text_message("m-1", &format!("file {LARGE}"))).await.unwrap();
    assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
    let mut expected = blake3::Hasher::new();
    for piece in made_bytes(LARGE) {
        expected.update(&piece);
    }
    let expected = expected.finalize();
    for node in nodes {
        let task = node.agent("caller").get(task["id"].as_str().unwrap()).await.unwrap();
        let answer = http_client().get(url_of_file(&task)).send().await.unwrap();
        assert_eq!(answer.headers()["content-length"], LARGE.to_string());
        assert_eq!(answer.headers()["content-type"], "application/x-made");
        assert_eq!(answer.headers()["content-disposition"], "attachment; filename=\"big.bin\"");
        let mut body = answer.bytes_stream();
        let mut hasher = blake3::Hasher::new();
        while let Some(piece) = body.next().await {
            hasher.update(&piece.unwrap());
        }
        assert_eq!(hasher.finalize(), expected, "read through node {}", node.name);
    }
    let told = bench.model.chats().last().unwrap().results[0].clone();
    assert!(told.contains("[resource file:///made/big.bin application/x-made]"), "{told}");

    for (node, before) in nodes.iter().zip(before) {
        let more = peak_memory_kib(node) - before;
        assert!(more < MORE_MEMORY_KIB, "node {} needed {more} KiB more", node.name);
    }
}

/// The link in the artifact that the first call made.
fn url_of_file(task: &Value) -> String {
    let artifacts = task["artifacts"].as_array().unwrap();
    let file = artifacts.iter().find(|artifact| artifact["artifactId"] == "step-1-file-0");
    let file = file.unwrap_or_else(|| panic!("no file: {:?}", text_of_artifacts(task)));
    file["parts"][0]["url"].as_str().unwrap_or_else(|| panic!("a link: {}", file["parts"][0])).to_owned()
}

struct Bench {
    cluster: Cluster,
    model: FakeModel,
}

/// A node, and a task that called this tool of the scripted server.
async fn bench(tool: &str, size: usize) -> (Value, Bench) {
    let bench = start(1, &format!("transport: stdio, command: [{:?}, calls]", scripted_mcp())).await;
    let message = text_message("m-1", &format!("{tool} {size}"));
    (bench.cluster.nodes[0].agent("caller").send(message).await.unwrap(), bench)
}

/// Nodes with this server, and an agent that calls the tool of its message.
async fn start(nodes: usize, server: &str) -> Bench {
    let model = FakeModel::start(|chat| match (chat.results.is_empty(), chat.user.split_once(' ')) {
        (true, Some((tool, size))) => Answer::new().call(&format!("srv__{tool}"), &json!({ "text": size })),
        _ => Answer::say("done"),
    })
    .await;
    let mesh = model.config()
        + &format!(
            "mcp:\n  servers:\n    - {{ name: srv, {server}, timeout: 120s, trust_annotations: true }}\nagents:\n  - {{ name: caller, description: Calls., instruction: Call., tools: [\"srv.*\"], replicas: all }}\n"
        );
    let cluster = Cluster::start(Plan { nodes, ..Plan::three(mesh) }).await;
    Bench { cluster, model }
}

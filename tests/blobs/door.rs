//! The doors: uploads that are too large for a request, and content that is read in ranges.

use futures::StreamExt;
use serde_json::{Value, json};
use std::fs;
use towline_tests::{
    Answer, Cluster, FakeModel, Plan, TestNode, eventually, http_client, run_cli, state_of, text_message,
};

const MIB: usize = 1024 * 1024;

/// What a node may need beside what it needs anyway, while 100 MiB go through it.
const MORE_MEMORY_KIB: u64 = 40 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_mebibytes_stream_through_every_node_without_being_held_in_memory() {
    let (cluster, _model) = listeners(3).await;
    let length = 100 * MIB;
    for node in &cluster.nodes {
        forget_peak(node);
    }
    let before: Vec<u64> = cluster.nodes.iter().map(peak_memory_kib).collect();

    let uploaded = upload(&cluster.nodes[0], length).await;
    let message = linking("m-1", &uploaded["url"]);
    let task = cluster.nodes[1].agent("listener").send(message).await.unwrap();
    assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
    for node in &cluster.nodes {
        let task = node.agent("listener").get(task["id"].as_str().unwrap()).await.unwrap();
        let url = task["history"][0]["parts"][0]["url"].as_str().unwrap_or_else(|| panic!("a link: {task}")).to_owned();
        assert!(url.starts_with(&node.url), "{url}");
        let answer = http_client().get(&url).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-length"], length.to_string());
        let mut body = answer.bytes_stream();
        let mut hasher = blake3::Hasher::new();
        while let Some(piece) = body.next().await {
            hasher.update(&piece.unwrap());
        }
        assert_eq!(hasher.finalize().to_hex().as_str(), uploaded["hash"], "read through node {}", node.name);
    }

    for (node, before) in cluster.nodes.iter().zip(before) {
        let more = peak_memory_kib(node) - before;
        println!("node {}: {more} KiB more", node.name);
        assert!(more < MORE_MEMORY_KIB, "node {} needed {more} KiB more", node.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn content_is_read_in_ranges_and_only_by_whose_task_names_it() {
    let (cluster, _model) = listeners(1).await;
    let node = &cluster.nodes[0];
    let length = 2 * MIB + 100;
    let uploaded = upload(node, length).await;
    let task = node.agent("listener").send(linking("m-1", &uploaded["url"])).await.unwrap();
    let other = node.agent("listener").send(text_message("m-2", "something else")).await.unwrap();
    let url = task["history"][0]["parts"][0]["url"].as_str().unwrap().to_owned();
    let tag = format!("\"{}\"", uploaded["hash"].as_str().unwrap());
    let whole = content(length);

    let get =
        async |header: &'static str, value: &str| http_client().get(&url).header(header, value).send().await.unwrap();
    let part = get("range", &format!("bytes={}-{}", MIB - 5, MIB + 4)).await;
    assert_eq!((part.status().as_u16(), part.headers()["etag"].to_str().unwrap()), (206, tag.as_str()));
    assert_eq!(part.headers()["content-range"], format!("bytes {}-{}/{length}", MIB - 5, MIB + 4));
    assert_eq!(part.bytes().await.unwrap(), whole[MIB - 5..MIB + 5]);
    let end = get("range", "bytes=-100").await;
    assert_eq!(end.bytes().await.unwrap(), whole[2 * MIB..]);
    let behind = get("range", &format!("bytes={length}-")).await;
    assert_eq!(
        (behind.status().as_u16(), behind.headers()["content-range"].to_str().unwrap()),
        (416, format!("bytes */{length}").as_str())
    );
    assert_eq!(get("if-none-match", &tag).await.status(), 304);
    let head = http_client().head(&url).send().await.unwrap();
    assert_eq!(
        (head.status().as_u16(), head.headers()["content-length"].to_str().unwrap()),
        (200, length.to_string().as_str())
    );
    assert_eq!(head.headers()["x-content-type-options"], "nosniff");
    assert_eq!(head.headers()["content-disposition"], "attachment; filename=\"big.bin\"");

    let hash = uploaded["hash"].as_str().unwrap();
    let unknown = blake3::hash(b"never uploaded").to_hex();
    for path in [
        format!("blobs/{}/{hash}", other["id"].as_str().unwrap()),
        format!("blobs/{}/{unknown}", task["id"].as_str().unwrap()),
        format!("blobs/{unknown}"),
        "blobs/x/y".to_owned(),
    ] {
        assert_eq!(http_client().get(format!("{}/{path}", node.url)).send().await.unwrap().status(), 404, "{path}");
    }
    let foreign = http_client().get(&url).header("host", "evil.example").send().await.unwrap();
    assert_eq!(foreign.status(), 403, "no principal, no content");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_survives_the_node_that_took_it() {
    let (mut cluster, _model) = listeners(3).await;
    let uploaded = upload(&cluster.nodes[0], 5 * MIB).await;
    let taker = cluster.nodes[0].id;
    cluster.kill(taker).await;

    let agent = cluster.nodes[1].agent("listener");
    let message = linking("m-1", &uploaded["url"]);
    let task = eventually("the task", async || agent.send(message.clone()).await.ok()).await;
    let url = task["history"][0]["parts"][0]["url"].as_str().unwrap();
    let read = http_client().get(url).send().await.unwrap().bytes().await.unwrap();
    assert!(read == content(5 * MIB), "it is the same");

    cluster.restart(taker).await;
    let name = uploaded["hash"].as_str().unwrap();
    let copy = cluster.nodes[0].data().join("blobs").join(&name[..2]).join(&name[2..]);
    eventually("the copy of the node that was away", async || copy.exists().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_uploaded_or_is_not_what_was_promised_is_refused() {
    let (cluster, _model) = listeners(1).await;
    let node = &cluster.nodes[0];
    let promised = blake3::hash(b"what was promised").to_hex();
    let url = format!("{}/blobs/{promised}", node.url);
    let refused = http_client().put(&url).body("something else").send().await.unwrap();
    assert_eq!(refused.status(), 400);
    let said: Value = refused.json().await.unwrap();
    assert!(said["error"]["message"].as_str().unwrap().contains(promised.as_str()), "{said}");
    let error = node.agent("listener").send(linking("m-1", &json!(url))).await.unwrap_err();
    assert!(error.message.contains("no upload of yours"), "{error:?}");

    let taken = http_client().put(&url).body("what was promised").send().await.unwrap();
    assert_eq!(taken.status(), 201);
    let task = node.agent("listener").send(linking("m-1", &json!(url))).await.unwrap();
    assert_eq!(task["history"][0]["parts"][0]["raw"], "d2hhdCB3YXMgcHJvbWlzZWQ=");
    let elsewhere = json!(format!("https://elsewhere.example/blobs/{promised}"));
    let task = node.agent("listener").send(linking("m-2", &elsewhere)).await.unwrap();
    assert_eq!(task["history"][0]["parts"][0]["url"], elsewhere, "a link that leads elsewhere stays one");
    let huge = http_client().post(format!("{}/blobs", node.url)).header("content-length", 1u64 << 40);
    let huge = huge.body(reqwest::Body::wrap_stream(futures::stream::empty::<Result<Vec<u8>, std::io::Error>>()));
    if let Ok(answer) = huge.send().await {
        assert_eq!(answer.status(), 413);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_above_a_mebibyte_is_shown_as_a_link_to_what_was_sent() {
    let (cluster, _model) = listeners(1).await;
    let text = "lorem ipsum ".repeat(2 * MIB / 12);
    let task = cluster.nodes[0].agent("listener").send(text_message("m-1", &text)).await.unwrap();
    let url = task["history"][0]["parts"][0]["url"].as_str().unwrap();
    let answer = http_client().get(url).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/plain; charset=utf-8");
    assert!(answer.text().await.unwrap() == text, "it is the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_uploads_a_file_that_is_too_large_for_a_request() {
    let (cluster, _model) = listeners(1).await;
    let (node, file) = (&cluster.nodes[0], cluster.folder().join("big.bin"));
    fs::write(&file, content(5 * MIB)).unwrap();
    let send = ["send", "listener", "look at this", "--file", file.to_str().unwrap(), "--wait", "-o", "json"];
    let ran = run_cli(send.into_iter().chain(["--server", &node.url])).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let task: Value = serde_json::from_str(&ran.stdout).unwrap();
    let task = node.agent("listener").get(task["id"].as_str().unwrap()).await.unwrap();
    let part = &task["history"][0]["parts"][1];
    assert_eq!(part["filename"], "big.bin");
    let read = http_client().get(part["url"].as_str().unwrap()).send().await.unwrap().bytes().await.unwrap();
    assert!(read == content(5 * MIB), "it is the same");
}

async fn listeners(nodes: usize) -> (Cluster, FakeModel) {
    let model = FakeModel::start(|_| Answer::say("heard")).await;
    let mesh = model.config()
        + "agents:\n  - { name: listener, description: Listens., instruction: Listen., replicas: all }\n";
    (Cluster::start(Plan { nodes, ..Plan::three(mesh) }).await, model)
}

fn linking(id: &str, url: &Value) -> Value {
    let part = json!({ "url": url, "filename": "big.bin", "mediaType": "application/octet-stream" });
    json!({ "messageId": id, "role": "ROLE_USER", "parts": [part] })
}

/// Uploads content as a stream of pieces.
async fn upload(node: &TestNode, length: usize) -> Value {
    let pieces = (0..length.div_ceil(MIB)).map(move |at| Ok::<_, std::io::Error>(piece(at, length)));
    let body = reqwest::Body::wrap_stream(futures::stream::iter(pieces));
    let answer = http_client().post(format!("{}/blobs", node.url)).body(body).send().await.unwrap();
    let status = answer.status();
    let told: Value = answer.json().await.unwrap();
    assert_eq!(status, 201, "{told}");
    assert_eq!(told["length"], length);
    told
}

fn content(length: usize) -> Vec<u8> {
    (0..length.div_ceil(MIB)).flat_map(|at| piece(at, length)).collect()
}

/// One mebibyte that differs from all others.
fn piece(at: usize, length: usize) -> Vec<u8> {
    let seed = blake3::hash(&at.to_le_bytes());
    seed.as_bytes().iter().copied().cycle().take(MIB.min(length - at * MIB)).collect()
}

/// The most memory that the node has used since it started, or since [`forget_peak`].
pub(crate) fn peak_memory_kib(node: &TestNode) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid().unwrap())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

pub(crate) fn forget_peak(node: &TestNode) {
    // Where it is not allowed, the peak of the start counts as well.
    let _not_allowed = fs::write(format!("/proc/{}/clear_refs", node.pid().unwrap()), "5");
}

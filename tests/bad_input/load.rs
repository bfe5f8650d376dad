//! Slow clients, silent ones, and very many: what they cost the node, and that the others do not notice.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use std::{
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};
use towline_tests::{
    Answer, Cluster, FakeModel, Gate, LONG, Plan, TestNode, eventually, http_client, state_of, text_message,
};

const SPEAKER: &str = "agents:\n  - { name: speaker, description: Speaks., instruction: Speak. }\n";

/// Clients that never finish the head of a request, of each kind.
const SLOW_HEADS: usize = 50;

/// Connections that say nothing.
const IDLE: u64 = 10_000;

/// File descriptors that the test needs for other things.
const OTHER_FILES: u64 = 1_000;

/// Connections that are opened at the same time: the kernel's queue holds them.
const OPENING: usize = 256;

/// Streams of one task.
const STREAMS: usize = 1_000;

/// How long another client may wait for an answer meanwhile; the machine is as busy as the node.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// What an idle connection may cost the node, in bytes.
const BYTES_PER_IDLE: u64 = 24 * 1024;

/// What a stream may cost the node, in bytes: its connection, its buffers and a page.
const BYTES_PER_STREAM: u64 = 256 * 1024;

/// The node of a test is not optimised, and allocators keep what they had once.
const SLACK_BYTES: u64 = 64 * 1024 * 1024;

/// Each load is measured by itself.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test(flavor = "multi_thread")]
async fn slow_and_silent_clients_are_shown_the_door_and_cost_the_others_nothing() {
    let _alone = ALONE.lock().await;
    raise_limit();
    let (cluster, _model) = speakers(|_| Answer::say("spoken")).await;
    let node = &cluster.nodes[0];
    let address = address_of(node);
    let mut slow = JoinSet::new();
    for _ in 0..SLOW_HEADS {
        slow.spawn(drip(address, "POST / HTTP/1.1\r\nhost: localhost\r\nx-slow: "));
        // The first letters of HTTP/2 as well as of a request.
        slow.spawn(drip(address, "P"));
        slow.spawn(drip(address, ""));
    }
    let done = node.agent("speaker").send(text_message("m-1", "speak")).await.unwrap();
    assert_eq!(state_of(&done), "TASK_STATE_COMPLETED");
    answers(node).await;
    let all_gone = async { while slow.join_next().await.is_some() {} };
    tokio::time::timeout(LONG * 4, all_gone).await.expect("each is shown the door");
    answers(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_idle_connections_cost_some_kilobytes_each_and_the_others_nothing() {
    let _alone = ALONE.lock().await;
    let limit = raise_limit();
    let wanted = limit.saturating_sub(OTHER_FILES).min(IDLE);
    if wanted < IDLE {
        eprintln!("ONLY {wanted} OF {IDLE} IDLE CONNECTIONS: the hard limit of open files is {limit}");
    }
    let (cluster, _model) = speakers(|_| Answer::say("spoken")).await;
    let node = &cluster.nodes[0];
    answers(node).await;
    let (address, before) = (address_of(node), memory(node, "VmRSS"));
    let mut idle = Vec::new();
    while (idle.len() as u64) < wanted {
        let some = (0..OPENING).map(|_| TcpStream::connect(address));
        idle.extend(futures::future::try_join_all(some).await.unwrap());
    }
    answers(node).await;
    let done = node.agent("speaker").send(text_message("m-1", "speak")).await.unwrap();
    assert_eq!(state_of(&done), "TASK_STATE_COMPLETED");
    let grown = memory(node, "VmHWM").saturating_sub(before);
    let most = wanted * BYTES_PER_IDLE + SLACK_BYTES;
    assert!(grown < most, "{} KB for {} connections", grown / 1024, idle.len());
    drop(idle);
    answers(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_streams_of_one_task_show_the_same_and_cost_the_others_nothing() {
    let _alone = ALONE.lock().await;
    raise_limit();
    let gate = Gate::closed();
    let wait = gate.clone();
    let (cluster, _model) = speakers(move |chat| match chat.user.as_str() {
        "speak to many" => Answer::new().text("one ").wait(&wait).words(&["two ", "three ", "four"]),
        _ => Answer::say("spoken"),
    })
    .await;
    let node = &cluster.nodes[0];
    let speaker = node.agent("speaker");
    let sent = speaker.send_async(text_message("m-1", "speak to many")).await.unwrap();
    let task = sent["id"].as_str().unwrap().to_owned();
    let before = memory(node, "VmRSS");
    // Set up as all clients of tests, but a thousand connections at once take a busy machine more than their usual time.
    drop(http_client());
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let (opened, mut count) = tokio::sync::watch::channel(0);
    let mut streams = JoinSet::new();
    for _ in 0..STREAMS {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": { "id": task } });
        let request =
            http.post(speaker.endpoint()).header("a2a-version", "1.0").header("last-event-id", "0").json(&body);
        let opened = opened.clone();
        streams.spawn(async move {
            let mut answer = request.send().await.unwrap();
            let mut bytes = answer.chunk().await.unwrap().unwrap().to_vec();
            opened.send_modify(|count| *count += 1);
            while let Some(chunk) = answer.chunk().await.unwrap() {
                bytes.extend_from_slice(&chunk);
            }
            let text = String::from_utf8(bytes).unwrap();
            text.lines()
                .filter(|line| !line.starts_with(':'))
                .filter(|line| !line.is_empty())
                .collect::<Vec<_>>()
                .join("\n")
        });
    }
    tokio::time::timeout(LONG * 2, count.wait_for(|count| *count == STREAMS)).await.unwrap().unwrap();
    answers(node).await;
    let other = speaker.send(text_message("m-2", "speak")).await.unwrap();
    assert_eq!(state_of(&other), "TASK_STATE_COMPLETED");
    gate.open();
    let mut seen = tokio::time::timeout(LONG * 2, streams.join_all()).await.expect("all streams end");
    seen.dedup();
    assert_eq!(seen.len(), 1, "all show the same: {:?}", seen.iter().map(String::len).collect::<Vec<_>>());
    assert!(seen[0].ends_with('}') && seen[0].contains("TASK_STATE_COMPLETED"), "{}", seen[0]);
    let grown = memory(node, "VmHWM").saturating_sub(before);
    assert!(grown < STREAMS as u64 * BYTES_PER_STREAM + SLACK_BYTES, "{} KB for {STREAMS} streams", grown / 1024);
}

async fn speakers(script: impl Fn(&towline_tests::Chat) -> Answer + Send + Sync + 'static) -> (Cluster, FakeModel) {
    let model = FakeModel::start(script).await;
    (Cluster::start(Plan::one(model.config() + SPEAKER)).await, model)
}

/// Sends the beginning of a request, then a letter now and then, until the other side ends it.
async fn drip(address: SocketAddr, beginning: &'static str) {
    let mut connection = TcpStream::connect(address).await.unwrap();
    let _broken = connection.write_all(beginning.as_bytes()).await;
    let mut answer = [0; 256];
    loop {
        match tokio::time::timeout(Duration::from_millis(500), connection.read(&mut answer)).await {
            Ok(Ok(0) | Err(_)) => return,
            Ok(Ok(_)) => {}
            Err(_) if beginning.len() > 1 => {
                if connection.write_all(b"x").await.is_err() {
                    return;
                }
            }
            Err(_) => {}
        }
    }
}

/// Somebody else is answered, in time.
async fn answers(node: &TestNode) {
    let card = format!("{}/.well-known/agent-card.json", node.url);
    let begun = Instant::now();
    let answer = eventually("a card", async || http_client().get(&card).send().await.ok()).await;
    assert_eq!(answer.status(), 200);
    assert!(begun.elapsed() < ANSWER_WITHIN, "a card took {:?}", begun.elapsed());
}

fn address_of(node: &TestNode) -> SocketAddr {
    node.url.trim_start_matches("http://").parse().unwrap()
}

/// A line of the memory of a node's process, in bytes.
fn memory(node: &TestNode, line: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid().unwrap())).unwrap();
    let value = status.lines().find_map(|found| found.strip_prefix(line)).unwrap();
    value.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Raises the soft limit of open files to the hard one, and returns it.
fn raise_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    limit.maximum.unwrap_or(u64::MAX)
}

//! A burst of events, a reader that keeps up, and many that do not read at all.

use std::{fs, net::SocketAddr};

use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use super::*;

const EVENTS: u64 = 10_000;

const PER_REPORT: u64 = 100;

/// The text of one event, in bytes.
const CHUNK_BYTES: usize = 1_024;

/// Readers that read nothing. Would each be kept what it has not read, they were 500 MB.
const SLOW_READERS: usize = 50;

/// Most memory that all of this may cost: the task and its events are 20 MB, copied now and then while it is read.
const MOST_MEMORY: u64 = 300 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_events_reaches_a_reader_that_keeps_up_and_is_not_kept_for_those_that_do_not_read() {
    let node = Node::start().await;
    let client = node.client("/agents/reader");
    let sent = task_of(client.send(&message("m-1", "speak"), ASYNC, None).await.unwrap());
    let before = memory("VmRSS");
    let mut slow = Vec::new();
    for _ in 0..SLOW_READERS {
        slow.push(subscribed(&node, &sent.id).await);
    }
    let mut stream = client.subscribe(&sent.id, Some(0), None).await.unwrap();
    let fast = tokio::spawn(async move {
        let mut indexes = Vec::new();
        while let Some(item) = stream.next().await {
            indexes.extend(item.unwrap().id);
        }
        indexes
    });
    for number in 0..EVENTS / PER_REPORT {
        let chunk = |at: u64| OwnerWord::Chunk {
            artifact_id: "a".into(),
            name: None,
            parts: vec![Part::text("x".repeat(CHUNK_BYTES))],
            append: number + at > 0,
            last_chunk: false,
            metadata: Metadata::new(),
        };
        node.report(&sent.id, (0..PER_REPORT).map(chunk).collect()).await;
    }
    node.finish(&sent.id, TaskState::Completed).await;

    let indexes = timeout(PATIENCE * 4, fast).await.expect("the reader is told all").unwrap();
    let last = EVENTS + 2;
    assert_eq!(indexes.last(), Some(&last));
    assert!(indexes.windows(2).all(|pair| pair[1] > pair[0]), "in order, each once");
    let late = client.get_task(&sent.id, None, None).await.unwrap();
    assert_eq!(late.state, TaskState::Completed, "others are answered");
    let grown = memory("VmHWM").saturating_sub(before);
    assert!(grown < MOST_MEMORY, "{} MB more", grown / (1024 * 1024));
    drop(slow);
    node.stop().await;
}

/// A connection that has subscribed, and reads nothing.
async fn subscribed(node: &Node, task: &str) -> TcpStream {
    let address: SocketAddr = node.url.trim_start_matches("http://").parse().unwrap();
    let params = serde_json::json!({ "id": task });
    let body = serde_json::json!({ "jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": params });
    let body = body.to_string();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\na2a-version: 1.0\r\nlast-event-id: 0\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all((head + &body).as_bytes()).await.unwrap();
    connection
}

/// A line of the memory of this process, in bytes.
fn memory(line: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let value = status.lines().find_map(|found| found.strip_prefix(line)).unwrap();
    value.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

//! An observer of a task's stream that shares no code with the product: it reads server-sent events by hand and notes index
//! and hash of every one.

use futures::StreamExt;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};
use tokio::task::JoinHandle;

use crate::{a2a_client::http_client, wait::eventually};

/// One event, as it came over the wire.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// From the `id:` line.
    pub index: u64,
    /// BLAKE3 of the JSON-RPC result: the envelope around it carries the id of the request.
    pub hash: String,
    /// The result itself.
    pub event: Value,
}

#[derive(Debug, Default)]
struct Record {
    seen: Vec<Seen>,
    refusal: Option<String>,
    connected: bool,
    is_over: bool,
}

/// Reads one stream in the background.
#[derive(Debug)]
pub struct Observer {
    record: Arc<Mutex<Record>>,
    reading: JoinHandle<()>,
}

impl Observer {
    /// Sends a message with `SendStreamingMessage` and reads the stream of its task.
    pub fn send(endpoint: &str, message: Value) -> Self {
        Self::open(endpoint, "SendStreamingMessage", json!({ "message": message }), None)
    }

    /// Subscribes to a task; `after` becomes the header `Last-Event-ID`.
    pub fn subscribe(endpoint: &str, task: &str, after: Option<u64>) -> Self {
        Self::open(endpoint, "SubscribeToTask", json!({ "id": task }), after)
    }

    fn open(endpoint: &str, method: &str, params: Value, after: Option<u64>) -> Self {
        let body = json!({ "jsonrpc": "2.0", "id": "observer", "method": method, "params": params });
        let mut request = http_client()
            .post(endpoint)
            .header("content-type", "application/json")
            .header("accept", "text/event-stream")
            .header("a2a-version", "1.0")
            .body(body.to_string());
        if let Some(after) = after {
            request = request.header("last-event-id", after.to_string());
        }
        let record = Arc::new(Mutex::new(Record::default()));
        let reading = tokio::spawn(read(request, Arc::clone(&record)));
        Self { record, reading }
    }

    /// What came so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.record.lock().unwrap().seen.clone()
    }

    /// Index and hash of what came so far.
    pub fn list(&self) -> Vec<(u64, String)> {
        self.seen().into_iter().map(|seen| (seen.index, seen.hash)).collect()
    }

    /// Index of the last event that came, 0 if none did.
    pub fn last_index(&self) -> u64 {
        self.seen().last().map_or(0, |seen| seen.index)
    }

    /// The answer, if it was no stream.
    pub fn refusal(&self) -> Option<String> {
        self.record.lock().unwrap().refusal.clone()
    }

    /// Whether the stream ended or broke.
    pub fn is_over(&self) -> bool {
        self.record.lock().unwrap().is_over
    }

    /// Waits until this many events came.
    pub async fn saw(&self, count: usize) -> Vec<Seen> {
        eventually(&format!("{count} events"), async || {
            assert!(self.refusal().is_none(), "the stream was refused: {:?}", self.refusal());
            Some(self.seen()).filter(|seen| seen.len() >= count)
        })
        .await
    }

    /// Waits until the server has opened the stream.
    pub async fn connected(&self) {
        eventually("the stream to open", async || self.record.lock().unwrap().connected.then_some(())).await;
    }

    /// Waits until the stream is over and returns all that came.
    pub async fn finished(&self) -> Vec<Seen> {
        eventually("the end of the stream", async || self.is_over().then_some(())).await;
        assert!(self.refusal().is_none(), "the stream was refused: {:?}", self.refusal());
        self.seen()
    }

    /// Breaks the connection.
    pub fn hang_up(&self) {
        self.reading.abort();
    }

    /// The id of the task that the first events name.
    pub async fn task(&self) -> String {
        let seen = self.saw(1).await;
        let event = &seen[0].event;
        let id = [&event["task"]["id"], &event["statusUpdate"]["taskId"], &event["artifactUpdate"]["taskId"]];
        id.iter().find_map(|id| id.as_str()).unwrap_or_else(|| panic!("no task id in {event}")).to_owned()
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

async fn read(request: reqwest::RequestBuilder, record: Arc<Mutex<Record>>) {
    let over = |refusal: Option<String>| {
        let mut record = record.lock().unwrap();
        record.refusal = refusal;
        record.is_over = true;
    };
    let answer = match request.send().await {
        Ok(answer) => answer,
        Err(error) => return over(Some(format!("{error:?}"))),
    };
    let kind = answer.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
    if !kind.starts_with("text/event-stream") {
        return over(Some(answer.text().await.unwrap_or_default()));
    }
    record.lock().unwrap().connected = true;
    let mut bytes = answer.bytes_stream();
    let mut buffer: Vec<u8> = Vec::new();
    while let Some(Ok(more)) = bytes.next().await {
        buffer.extend_from_slice(&more);
        while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
            let block: Vec<u8> = buffer.drain(..end + 2).collect();
            if let Some(seen) = event(&String::from_utf8_lossy(&block)) {
                record.lock().unwrap().seen.push(seen);
            }
        }
    }
    over(None);
}

/// One block of lines; a comment (keep-alive) is none.
fn event(block: &str) -> Option<Seen> {
    let field = |name: &str| {
        let values: Vec<&str> = block
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(|value| value.strip_prefix(' ').unwrap_or(value))
            .collect();
        (!values.is_empty()).then(|| values.join("\n"))
    };
    let data = field("data")?;
    let envelope: Value = serde_json::from_str(&data).unwrap_or_else(|error| panic!("{error} in {data}"));
    let result = envelope.get("result").unwrap_or_else(|| panic!("no result in {data}")).clone();
    let index = field("id").unwrap_or_else(|| panic!("no id: line before {data}")).parse().unwrap();
    Some(Seen { index, hash: blake3::hash(result.to_string().as_bytes()).to_hex().to_string(), event: result })
}

/// What a client that concatenates by A2A's rules ends with: artifact id to text.
pub fn concatenated_text(seen: &[Seen]) -> BTreeMap<String, String> {
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    for Seen { event, .. } in seen {
        let update = &event["artifactUpdate"];
        let Some(id) = update["artifact"]["artifactId"].as_str() else { continue };
        let text = texts.entry(id.to_owned()).or_default();
        if update["append"] != json!(true) {
            text.clear();
        }
        let parts = update["artifact"]["parts"].as_array().cloned().unwrap_or_default();
        text.extend(parts.iter().filter_map(|part| part["text"].as_str()));
    }
    texts
}

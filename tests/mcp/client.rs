//! A small client of `/mcp` with a session.

use futures::{StreamExt as _, stream::BoxStream};
use serde_json::{Value, json};
use std::time::Duration;
use towline_tests::http_client;

/// Longer than anything takes here: machines are busy.
const PATIENCE: Duration = Duration::from_secs(60);

pub const REVISION: &str = "2025-11-25";

/// A client with a session, which asks the nodes that it is told to.
#[derive(Debug, Clone)]
pub struct McpClient {
    pub session: String,
}

impl McpClient {
    /// Begins a session at a node.
    pub async fn begin(url: &str) -> Self {
        Self::begin_with(url, json!({})).await
    }

    /// The same, with what the client can do.
    pub async fn begin_with(url: &str, capabilities: Value) -> Self {
        let params = json!({ "capabilities": capabilities, "clientInfo": { "name": "t", "version": "1" }, "protocolVersion": REVISION });
        let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        let answer = http_client().post(format!("{url}/mcp")).json(&body).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200);
        Self { session: answer.headers()["mcp-session-id"].to_str().unwrap().to_owned() }
    }

    fn request(&self, method: reqwest::Method, url: &str) -> reqwest::RequestBuilder {
        let request = http_client().request(method, format!("{url}/mcp")).header("mcp-session-id", &self.session);
        request.header("mcp-protocol-version", REVISION).header("accept", "application/json, text/event-stream")
    }

    /// Asks a node; the answer as it came.
    pub async fn ask_text(&self, url: &str, method: &str, params: Value) -> String {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let sent = self.request(reqwest::Method::POST, url).json(&body).timeout(PATIENCE).send().await.unwrap();
        sent.text().await.unwrap()
    }

    /// Asks a node, and listens to what comes on the way to the answer.
    pub async fn ask_and_listen(&self, url: &str, method: &str, params: Value) -> Listened {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer = self.request(reqwest::Method::POST, url).json(&body).send().await.unwrap();
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Listened::of(answer)
    }

    /// Says something to a node that it does not answer.
    pub async fn say(&self, url: &str, message: &Value) {
        let said = self.request(reqwest::Method::POST, url).json(message).timeout(PATIENCE).send().await.unwrap();
        assert_eq!(said.status().as_u16(), 202);
    }

    /// Asks a node; the last message of the answer.
    pub async fn ask(&self, url: &str, method: &str, params: Value) -> Value {
        let text = self.ask_text(url, method, params).await;
        let last = text.lines().rev().find(|line| line.contains('{')).unwrap_or_else(|| panic!("{text:?}"));
        serde_json::from_str(last.trim_start_matches("data:")).unwrap_or_else(|_| panic!("{text}"))
    }

    /// Calls a tool at a node; its result.
    pub async fn call(&self, url: &str, tool: &str, arguments: Value) -> Value {
        let answer = self.ask(url, "tools/call", json!({ "name": tool, "arguments": arguments })).await;
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"].clone()
    }

    /// The names of the tools that a node shows.
    pub async fn tools(&self, url: &str) -> Vec<String> {
        let answer = self.ask(url, "tools/list", json!({})).await;
        let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}"));
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Opens the stream of the session at a node.
    pub async fn listen(&self, url: &str, last: Option<&str>) -> Listened {
        let mut request = self.request(reqwest::Method::GET, url);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200);
        Listened::of(answer)
    }
}

/// A stream that is open.
pub struct Listened {
    bytes: BoxStream<'static, reqwest::Result<axum::body::Bytes>>,
    text: String,
    /// The id of the last event.
    pub last: Option<String>,
}

impl Listened {
    /// What an answer brings.
    pub fn of(answer: reqwest::Response) -> Self {
        Self { bytes: answer.bytes_stream().boxed(), text: String::new(), last: None }
    }

    /// The next event: its message, if it has one. None at the end.
    pub async fn next(&mut self) -> Option<Option<Value>> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                let of = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                if let Some(id) = of("id:") {
                    self.last = Some(id.to_owned());
                }
                return Some(of("data:").and_then(|data| serde_json::from_str(data).ok()));
            }
            let chunk = tokio::time::timeout(PATIENCE, self.bytes.next()).await.expect("something comes");
            self.text.push_str(&String::from_utf8_lossy(&chunk?.ok()?));
        }
    }

    /// The next message.
    pub async fn message(&mut self) -> Value {
        loop {
            if let Some(message) = self.next().await.expect("the stream is open") {
                return message;
            }
        }
    }
}

//! `/mcp` of a real node, over real HTTP. The owner of a task is scripted: the test reports for it.

use std::time::Duration;

use futures::StreamExt as _;
use serde_json::{Value, json};
use towline_core::{PrincipalRole, TaskState};

use super::{
    revision::{STATELESS, WITH_SESSIONS},
    *,
};
use crate::{
    a2a::tests::{Node, chunk},
    auth::{AuthSettings, Evidence, Origin, Permits, Rule, Sha256},
};

mod carriers;
mod confirming;
mod legacy;
mod protocol;
mod reading;

/// A wait of a test: far above what is measured, since machines are busy.
const PATIENCE: Duration = Duration::from_secs(30);

const NEWEST: &str = WITH_SESSIONS[0];

/// A node that knows ada and bob, users, ci, an agent, and root, an operator: each by a token that is the name.
async fn start(serve: &ServeSettings) -> Node {
    Node::start_serving(callers(), None, serve).await
}

fn callers() -> AuthSettings {
    let roles = [
        ("ada", PrincipalRole::User),
        ("bob", PrincipalRole::User),
        ("ci", PrincipalRole::Agent),
        ("root", PrincipalRole::Operator),
        ("guest", PrincipalRole::Anonymous),
    ];
    let rules = roles.map(|(name, role)| Rule {
        id: format!("user:{name}"),
        role,
        permits: Permits::of(role, &[]),
        labels: Arc::default(),
        evidence: Evidence::Bearer(Sha256::of(name.as_bytes())),
    });
    let origins = vec![Origin::parse("https://console.example").unwrap()];
    AuthSettings { rules: rules.to_vec(), origins, requests_per_second: Some(1_000_000), ..AuthSettings::default() }
}

/// What came back.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: ::http::HeaderMap,
    /// All messages of it, in order: one unless it is a stream.
    messages: Vec<Value>,
}

impl Answer {
    fn last(&self) -> &Value {
        self.messages.last().unwrap_or(&Value::Null)
    }

    fn result(&self) -> &Value {
        let result = &self.last()["result"];
        assert!(!result.is_null(), "{self:?}");
        result
    }

    fn code(&self) -> i64 {
        self.last()["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {self:?}"))
    }
}

/// A client of `/mcp`.
#[derive(Clone)]
struct Client<'a> {
    node: &'a Node,
    token: Option<&'static str>,
    session: Option<String>,
    era: Era,
    capabilities: Value,
}

use revision::Era;

impl<'a> Client<'a> {
    fn stateless(node: &'a Node, token: &'static str) -> Self {
        Self { node, token: Some(token), session: None, era: Era::Stateless, capabilities: json!({}) }
    }

    /// With a session that has begun.
    async fn begin(node: &'a Node, token: &'static str, capabilities: Value) -> Self {
        let mut client = Self { node, token: Some(token), session: None, era: Era::Sessions, capabilities };
        let params = json!({
            "capabilities": client.capabilities,
            "clientInfo": { "name": "test", "version": "1" },
            "protocolVersion": NEWEST,
        });
        let begun = client.ask("initialize", params).await;
        assert_eq!(begun.result()["protocolVersion"], NEWEST);
        client.session = Some(begun.headers["mcp-session-id"].to_str().unwrap().to_owned());
        client.say(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        client
    }

    fn request(&self, method: reqwest::Method) -> reqwest::RequestBuilder {
        let mut request = self.node.http.request(method, format!("{}/mcp", self.node.url));
        request = request.header("accept", "application/json, text/event-stream");
        if let Some(token) = self.token {
            request = request.bearer_auth(token);
        }
        if let Some(session) = &self.session {
            request = request.header("mcp-session-id", session).header("mcp-protocol-version", NEWEST);
        }
        request
    }

    /// A request that is not sent yet.
    fn asking(&self, method: &str, mut params: Value) -> reqwest::RequestBuilder {
        let mut request = self.request(reqwest::Method::POST);
        if self.era == Era::Stateless {
            let meta = params["_meta"].as_object().cloned().unwrap_or_default();
            params["_meta"] = Value::Object(meta);
            params["_meta"]["io.modelcontextprotocol/protocolVersion"] = STATELESS.into();
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
            request = request.header("mcp-protocol-version", STATELESS).header("mcp-method", method);
            if let Some(name) = params["name"].as_str().or(params["uri"].as_str()).or(params["taskId"].as_str()) {
                request = request.header("mcp-name", name);
            }
        }
        request.json(&json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }))
    }

    async fn ask(&self, method: &str, params: Value) -> Answer {
        whole(self.asking(method, params)).await
    }

    async fn call(&self, tool: &str, arguments: Value) -> Answer {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// What a call answers, as it is structured.
    async fn read(&self, tool: &str, arguments: Value) -> Value {
        let answer = self.call(tool, arguments).await;
        assert_eq!(answer.result()["isError"], false, "{answer:?}");
        answer.result()["structuredContent"].clone()
    }

    async fn say(&self, message: Value) {
        let answer = self.request(reqwest::Method::POST).json(&message).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 202, "{message}");
    }

    /// A task of this caller, for the agent `reader`.
    async fn task(&self, text: &str) -> String {
        let message = json!({
            "messageId": uuid::Uuid::now_v7().to_string(),
            "parts": [{ "text": text }],
            "role": "ROLE_USER",
        });
        let params = json!({ "configuration": { "returnImmediately": true }, "message": message });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params });
        let request = self.node.http.post(format!("{}/agents/reader", self.node.url)).header("a2a-version", "1.0");
        let answer: Value =
            request.bearer_auth(self.token.unwrap()).json(&body).send().await.unwrap().json().await.unwrap();
        answer["result"]["task"]["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// The stream of the session.
    async fn listen(&self, last: Option<&str>) -> Stream {
        let mut request = self.request(reqwest::Method::GET);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        Stream::of(request.send().await.unwrap())
    }
}

async fn whole(request: reqwest::RequestBuilder) -> Answer {
    let answer = tokio::time::timeout(PATIENCE, request.send()).await.unwrap().unwrap();
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let text = tokio::time::timeout(PATIENCE, answer.text()).await.unwrap().unwrap();
    let messages = match headers.get("content-type").map(|kind| kind.as_bytes()) {
        Some(b"text/event-stream") => text.lines().filter_map(message_of).collect(),
        Some(_) => vec![serde_json::from_str(&text).unwrap_or(Value::String(text))],
        None => Vec::new(),
    };
    Answer { status, headers, messages }
}

fn message_of(line: &str) -> Option<Value> {
    serde_json::from_str(line.strip_prefix("data:")?.trim()).ok()
}

/// A stream that is open.
struct Stream {
    status: u16,
    bytes: futures::stream::BoxStream<'static, reqwest::Result<axum::body::Bytes>>,
    text: String,
    /// The id of the last event.
    last: Option<String>,
}

impl Stream {
    fn of(answer: reqwest::Response) -> Self {
        let status = answer.status().as_u16();
        Self { status, bytes: answer.bytes_stream().boxed(), text: String::new(), last: None }
    }

    /// The next line; none at the end.
    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some((line, rest)) = self.text.split_once('\n') {
                let (line, rest) = (line.to_owned(), rest.to_owned());
                self.text = rest;
                if let Some(id) = line.strip_prefix("id:") {
                    self.last = Some(id.trim().to_owned());
                }
                return Some(line);
            }
            let chunk = tokio::time::timeout(PATIENCE, self.bytes.next()).await.expect("something comes");
            self.text.push_str(&String::from_utf8_lossy(&chunk?.ok()?));
        }
    }

    /// The next message.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(message) = message_of(&self.line().await?) {
                return Some(message);
            }
        }
    }

    /// Waits for the next event that says where the client stands.
    async fn place(&mut self) -> String {
        loop {
            let line = self.line().await.expect("the stream is open");
            if let Some(id) = line.strip_prefix("id:") {
                return id.trim().to_owned();
            }
        }
    }
}

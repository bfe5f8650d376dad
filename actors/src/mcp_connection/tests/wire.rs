//! A server over HTTP that says exactly what a test wants, and remembers what it was told: it speaks JSON-RPC by hand, so that
//! it shares nothing with the client under test.

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use futures::StreamExt;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinHandle};

use super::{McpHandle, McpServerConfig, McpTransport, install_crypto};

/// What a server does with a request.
pub(super) enum Reply {
    /// Answers with a result.
    Result(Value),
    /// Answers with an error.
    Error(i64, &'static str),
    /// Answers with a status, perhaps with a time to wait.
    Status(u16, Option<&'static str>),
    /// Takes it, and says nothing.
    Never,
    /// Opens a stream, and closes it.
    Closes,
    /// Opens a stream with these messages, each after a while. `$id` stands for the id of the request, `$token` for its
    /// progress token.
    Stream(Vec<(Duration, Value)>),
}

/// What a server does with the request for its notification stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Get {
    NotAllowed,
    EndsAtOnce,
    Holds,
    /// Asks a person something, once a tool was called twice.
    AsksAtSecondCall,
}

type Script = Box<dyn Fn(&Value) -> Option<Reply> + Send + Sync>;

/// A server, and what it was told.
pub(super) struct Wire {
    script: Script,
    get: Get,
    told: Mutex<Vec<(Value, HeaderMap)>>,
    pub gets: AtomicUsize,
}

/// A running server. It ends with the test.
pub(super) struct Running {
    pub wire: Arc<Wire>,
    pub endpoint: String,
    serving: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Running {
    /// A server that does what the script says, and the usual where the script says nothing.
    pub(super) async fn start(get: Get, script: impl Fn(&Value) -> Option<Reply> + Send + Sync + 'static) -> Self {
        install_crypto();
        let told = Mutex::default();
        let wire = Arc::new(Wire { script: Box::new(script), get, told, gets: AtomicUsize::new(0) });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}/mcp", listener.local_addr().unwrap());
        let router = Router::new().route("/mcp", post(take).get(stream)).with_state(wire.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { wire, endpoint, serving }
    }

    pub(super) fn config(&self) -> McpServerConfig {
        McpServerConfig::new("wire", McpTransport::http(&self.endpoint))
    }

    pub(super) async fn connect(&self, config: McpServerConfig) -> McpHandle {
        let handle = McpHandle::spawn(config, None, "node-a", None).await.unwrap();
        handle.ready(super::WITHIN).await.unwrap();
        handle
    }

    /// The messages with a method.
    pub(super) fn told(&self, method: &str) -> Vec<Value> {
        let told = self.wire.told.lock().unwrap();
        told.iter().filter(|(message, _)| message["method"] == method).map(|(message, _)| message.clone()).collect()
    }

    /// The answers to requests of the server.
    pub(super) fn answers(&self) -> Vec<Value> {
        let told = self.wire.told.lock().unwrap();
        told.iter().filter(|(message, _)| message.get("method").is_none()).map(|(message, _)| message.clone()).collect()
    }

    /// A header of the first message with a method.
    pub(super) fn header(&self, method: &str, name: &str) -> Option<String> {
        let told = self.wire.told.lock().unwrap();
        let (_, headers) = told.iter().find(|(message, _)| message["method"] == method)?;
        headers.get(name).map(|value| value.to_str().unwrap().to_owned())
    }

    /// Waits until a message with a method has come.
    pub(super) async fn hears(&self, method: &str) -> Value {
        let heard = async {
            loop {
                if let Some(message) = self.told(method).into_iter().next() {
                    return message;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(super::WITHIN, heard).await.unwrap_or_else(|_| panic!("no {method} came"))
    }
}

/// What `initialize` is answered with by default.
pub(super) fn initialized(version: &str, capabilities: Value) -> Reply {
    Reply::Result(json!({
        "protocolVersion": version, "capabilities": capabilities, "serverInfo": { "name": "wire", "version": "1" },
    }))
}

pub(super) fn tool(name: &str, description: &str) -> Value {
    json!({ "name": name, "description": description, "inputSchema": { "type": "object" } })
}

pub(super) fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

/// The message that answers the request of a stream.
pub(super) fn result(value: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": "$id", "result": value })
}

pub(super) fn notification(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

pub(super) fn request(id: &str, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

fn usual(message: &Value) -> Reply {
    match message["method"].as_str().unwrap_or_default() {
        "initialize" => initialized("2025-11-25", json!({ "tools": {} })),
        "tools/list" => Reply::Result(json!({ "tools": [tool("work", "Works.")] })),
        "tools/call" => Reply::Result(text("done")),
        _ => Reply::Error(-32601, "no such method"),
    }
}

async fn take(State(wire): State<Arc<Wire>>, headers: HeaderMap, body: Bytes) -> Response {
    let message: Value = serde_json::from_slice(&body).unwrap();
    wire.told.lock().unwrap().push((message.clone(), headers));
    let Some(id) = message.get("id").filter(|_| message.get("method").is_some()).cloned() else {
        return StatusCode::ACCEPTED.into_response();
    };
    let answer = |body: Value| ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response();
    let begins = message["method"] == "initialize";
    match (wire.script)(&message).unwrap_or_else(|| usual(&message)) {
        Reply::Result(value) => {
            let mut response = answer(json!({ "jsonrpc": "2.0", "id": id, "result": value }));
            if begins {
                response.headers_mut().insert("mcp-session-id", "session-1".parse().unwrap());
            }
            if message["method"] == "server/discover" {
                // So that a server that has ended is not reached over a connection from before.
                response.headers_mut().insert(header::CONNECTION, "close".parse().unwrap());
            }
            response
        }
        Reply::Error(code, text) => {
            answer(json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": text } }))
        }
        Reply::Status(status, wait) => {
            let mut response = StatusCode::from_u16(status).unwrap().into_response();
            if let Some(wait) = wait {
                response.headers_mut().insert(header::RETRY_AFTER, wait.parse().unwrap());
            }
            response
        }
        Reply::Never => std::future::pending().await,
        Reply::Closes => events(Body::empty()),
        Reply::Stream(messages) => {
            let token = message["params"]["_meta"]["progressToken"].clone();
            let says = futures::stream::iter(messages).then(move |(after, message)| {
                let text = message.to_string().replace("\"$id\"", &id.to_string());
                let text = text.replace("\"$token\"", &token.to_string());
                async move {
                    tokio::time::sleep(after).await;
                    Ok::<_, std::convert::Infallible>(format!("event: message\ndata: {text}\n\n"))
                }
            });
            events(Body::from_stream(says))
        }
    }
}

async fn stream(State(wire): State<Arc<Wire>>) -> Response {
    wire.gets.fetch_add(1, Ordering::Relaxed);
    match wire.get {
        Get::NotAllowed => StatusCode::METHOD_NOT_ALLOWED.into_response(),
        Get::EndsAtOnce => events(Body::from(": hello\n\n")),
        Get::Holds => events(Body::from_stream(futures::stream::pending::<Result<String, std::convert::Infallible>>())),
        Get::AsksAtSecondCall => {
            let question = futures::stream::once(async move {
                while calls(&wire) < 2 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                let schema = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
                let params = json!({ "message": "Who?", "requestedSchema": schema });
                let question = request("late", "elicitation/create", params);
                Ok::<_, std::convert::Infallible>(format!("event: message\ndata: {question}\n\n"))
            });
            events(Body::from_stream(question.chain(futures::stream::pending())))
        }
    }
}

fn calls(wire: &Wire) -> usize {
    wire.told.lock().unwrap().iter().filter(|(message, _)| message["method"] == "tools/call").count()
}

fn events(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

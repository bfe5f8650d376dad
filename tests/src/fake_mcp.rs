//! An MCP server over HTTP with resources that a test changes. It can be stopped with all its connections and sessions, and
//! started again at the same address, as a server that was killed.

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{net::TcpListener, runtime::Runtime, sync::mpsc};
use tokio_stream::{StreamExt, wrappers::UnboundedReceiverStream};

use crate::ports::free_port;

/// Whether the server says something by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// It has subscriptions, and a stream for what it says.
    Updates,
    /// It can only be asked.
    Nothing,
}

#[derive(Debug, Default)]
struct Session {
    stream: Option<mpsc::UnboundedSender<String>>,
    subscriptions: BTreeSet<String>,
}

#[derive(Debug)]
struct Shared {
    says: Says,
    resources: Mutex<BTreeMap<String, String>>,
    sessions: Mutex<BTreeMap<String, Session>>,
    made: Mutex<usize>,
}

/// The server.
#[derive(Debug)]
pub struct FakeMcp {
    port: u16,
    shared: Arc<Shared>,
    running: Option<Runtime>,
}

impl FakeMcp {
    /// Starts one with these resources.
    pub fn start(says: Says, resources: &[(&str, &str)]) -> Self {
        let resources = resources.iter().map(|(uri, text)| ((*uri).to_owned(), (*text).to_owned())).collect();
        let shared =
            Shared { says, resources: Mutex::new(resources), sessions: Mutex::default(), made: Mutex::default() };
        let mut server = Self { port: free_port(), shared: Arc::new(shared), running: None };
        server.start_again();
        server
    }

    /// URL of its endpoint.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }

    /// Ends it with all its connections; no session is known afterwards.
    pub fn stop(&mut self) {
        self.shared.sessions.lock().unwrap().clear();
        self.running.take().expect("it runs").shutdown_background();
    }

    /// Starts it again.
    pub fn start_again(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let routes = Router::new().route("/mcp", get(listen).post(take)).with_state(self.shared.clone());
        let listener = self.bind();
        listener.set_nonblocking(true).unwrap();
        runtime.spawn(async move { axum::serve(TcpListener::from_std(listener).unwrap(), routes).await });
        self.running = Some(runtime);
    }

    /// The one before lets its port go in the background.
    fn bind(&self) -> std::net::TcpListener {
        let tries = std::iter::repeat_with(|| {
            std::thread::sleep(Duration::from_millis(20));
            std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).ok()
        });
        tries.take(500).flatten().next().expect("the port is free in time")
    }

    /// Changes a resource, and says so to whom it concerns.
    pub fn set(&self, uri: &str, text: &str) {
        self.shared.resources.lock().unwrap().insert(uri.to_owned(), text.to_owned());
        let said = json!({ "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": { "uri": uri } });
        for session in self.shared.sessions.lock().unwrap().values() {
            if let Some(stream) = session.stream.as_ref().filter(|_| session.subscriptions.contains(uri)) {
                // Who has gone is told nothing.
                let _gone = stream.send(said.to_string());
            }
        }
    }

    /// How many subscriptions all sessions have.
    pub fn subscriptions(&self) -> usize {
        self.shared.sessions.lock().unwrap().values().map(|session| session.subscriptions.len()).sum()
    }
}

impl Drop for FakeMcp {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.shutdown_background();
        }
    }
}

const SESSION: &str = "mcp-session-id";

fn session_of(headers: &HeaderMap) -> String {
    headers.get(SESSION).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

async fn listen(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    if shared.says == Says::Nothing {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let (sender, events) = mpsc::unbounded_channel();
    match shared.sessions.lock().unwrap().get_mut(&session_of(&headers)) {
        Some(session) => session.stream = Some(sender),
        None => return StatusCode::NOT_FOUND.into_response(),
    }
    let events = UnboundedReceiverStream::new(events);
    let events = events.map(|event| Ok::<_, std::io::Error>(format!("data: {event}\n\n")));
    let opened = tokio_stream::once(Ok(": open\n\n".to_owned()));
    ([("content-type", "text/event-stream")], Body::from_stream(opened.chain(events))).into_response()
}

async fn take(State(shared): State<Arc<Shared>>, headers: HeaderMap, Json(message): Json<Value>) -> Response {
    let method = message["method"].as_str().unwrap_or_default();
    if method == "initialize" {
        let id = {
            let mut made = shared.made.lock().unwrap();
            *made += 1;
            format!("session-{made}")
        };
        shared.sessions.lock().unwrap().insert(id.clone(), Session::default());
        let result = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": { "resources": { "subscribe": shared.says == Says::Updates } },
            "serverInfo": { "name": "fake", "version": "1" },
        });
        return ([(SESSION, id)], answer(&message, "result", result)).into_response();
    }
    let mut sessions = shared.sessions.lock().unwrap();
    let Some(session) = sessions.get_mut(&session_of(&headers)) else { return StatusCode::NOT_FOUND.into_response() };
    if message["id"].is_null() {
        return StatusCode::ACCEPTED.into_response();
    }
    let uri = message["params"]["uri"].as_str().unwrap_or_default().to_owned();
    let resources = shared.resources.lock().unwrap();
    let result = match method {
        "resources/list" => {
            let listed: Vec<Value> = resources.keys().map(|uri| json!({ "uri": uri, "name": uri })).collect();
            json!({ "resources": listed })
        }
        "resources/subscribe" => {
            session.subscriptions.insert(uri);
            json!({})
        }
        "resources/unsubscribe" => {
            session.subscriptions.remove(&uri);
            json!({})
        }
        "resources/read" => match resources.get(&uri) {
            Some(text) => json!({ "contents": [{ "uri": uri, "mimeType": "text/plain", "text": text }] }),
            None => {
                let error = json!({ "code": -32002, "message": "no such resource", "data": { "uri": uri } });
                return answer(&message, "error", error).into_response();
            }
        },
        "ping" => json!({}),
        _ => return answer(&message, "error", json!({ "code": -32601, "message": method })).into_response(),
    };
    answer(&message, "result", result).into_response()
}

fn answer(message: &Value, key: &str, value: Value) -> Json<Value> {
    let mut answer = json!({ "jsonrpc": "2.0", "id": message["id"] });
    answer[key] = value;
    Json(answer)
}

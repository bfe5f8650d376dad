//! A foreign A2A agent, small and unreliable.

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};
use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::watch, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;

/// What the agent does with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerScript {
    /// It works, answers `the peer is done`, and the task is completed.
    Completes,
    /// It works, sends one chunk, and the whole process is gone: streams break and nothing listens any more.
    DiesInTheMiddle,
    /// It works, and its stream ends in the middle; the work goes on, and is done when it is looked at.
    CutsTheStream,
    /// It works, and then asks its client which colour.
    Asks,
}

struct Shared {
    script: PeerScript,
    url: String,
    calls: Mutex<Vec<(String, Value)>>,
    context: Mutex<Value>,
    dead: watch::Sender<bool>,
}

/// The agent.
pub struct FakePeer {
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

/// From the last event until the peer dies: the event is on its way by then.
const UNTIL_DEATH: Duration = Duration::from_millis(300);

const TASK: &str = "foreign-task-1";

impl FakePeer {
    /// Starts one.
    pub async fn start(script: PeerScript) -> Self {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            script,
            url,
            calls: Mutex::default(),
            context: Mutex::default(),
            dead: watch::Sender::new(false),
        });
        let routes = Router::new()
            .route("/.well-known/agent-card.json", get(card))
            .route("/", post(rpc))
            .with_state(Arc::clone(&shared));
        let mut dead = shared.dead.subscribe();
        let serving = tokio::spawn(async move {
            let serve = axum::serve(listener, routes);
            tokio::select! {
                result = serve => result.unwrap(),
                _ = dead.wait_for(|dead| *dead) => {}
            }
        });
        Self { shared, serving }
    }

    /// Its base URL.
    pub fn url(&self) -> &str {
        &self.shared.url
    }

    /// Methods that were called, with their parameters.
    pub fn calls(&self) -> Vec<(String, Value)> {
        self.shared.calls.lock().unwrap().clone()
    }

    /// How many messages it was sent.
    pub fn messages(&self) -> usize {
        self.calls().iter().filter(|(method, _)| method.starts_with("Send")).count()
    }
}

impl Drop for FakePeer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn card(State(shared): State<Arc<Shared>>) -> Response {
    let card = json!({
        "name": "foreign",
        "description": "An agent of somebody else.",
        "version": "1.0.0",
        "supportedInterfaces": [{ "url": format!("{}/", shared.url), "protocolBinding": "JSONRPC", "protocolVersion": "1.0" }],
        "capabilities": { "streaming": true, "pushNotifications": false },
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{ "id": "s", "name": "s", "description": "s", "tags": [] }],
    });
    axum::Json(card).into_response()
}

async fn rpc(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let request: Value = serde_json::from_slice(&body).unwrap();
    let method = request["method"].as_str().unwrap_or_default().to_owned();
    shared.calls.lock().unwrap().push((method.clone(), request["params"].clone()));
    if method.starts_with("Send") {
        *shared.context.lock().unwrap() = request["params"]["message"]["contextId"].clone();
    }
    let context = shared.context.lock().unwrap().clone();
    let state = match shared.script {
        PeerScript::Asks => "TASK_STATE_INPUT_REQUIRED",
        PeerScript::Completes | PeerScript::DiesInTheMiddle | PeerScript::CutsTheStream => "TASK_STATE_COMPLETED",
    };
    let id = request["id"].clone();
    match method.as_str() {
        "SendStreamingMessage" => stream(shared, id, context),
        "SendMessage" => reply(&id, &json!({ "task": task(&context, "TASK_STATE_COMPLETED") })),
        "GetTask" => reply(&id, &task(&context, state)),
        "CancelTask" => reply(&id, &task(&context, "TASK_STATE_CANCELED")),
        "ListTasks" => reply(&id, &json!({ "tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0 })),
        _ => {
            axum::Json(json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "no such method" } }))
                .into_response()
        }
    }
}

fn reply(id: &Value, result: &Value) -> Response {
    axum::Json(json!({ "jsonrpc": "2.0", "id": id, "result": result })).into_response()
}

fn task(context: &Value, state: &str) -> Value {
    json!({ "id": TASK, "contextId": context, "status": { "state": state, "timestamp": "2026-01-01T00:00:00Z" },
        "artifacts": [{ "artifactId": "a", "parts": [{ "text": "the peer is done" }] }] })
}

fn stream(shared: Arc<Shared>, id: Value, context: Value) -> Response {
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<String, std::io::Error>>(8);
    tokio::spawn(async move {
        let status = |state: &str| {
            json!({ "statusUpdate": { "taskId": TASK, "contextId": context,
                "status": { "state": state, "timestamp": "2026-01-01T00:00:00Z" } } })
        };
        let working = json!({ "task": { "id": TASK, "contextId": context,
            "status": { "state": "TASK_STATE_WORKING", "timestamp": "2026-01-01T00:00:00Z" } } });
        let artifact = json!({ "artifactUpdate": { "taskId": TASK, "contextId": context, "append": false,
            "artifact": { "artifactId": "a", "parts": [{ "text": "the peer is done" }] } } });
        let events = match shared.script {
            PeerScript::Completes => vec![working, artifact, status("TASK_STATE_COMPLETED")],
            PeerScript::DiesInTheMiddle | PeerScript::CutsTheStream => vec![working, artifact],
            PeerScript::Asks => vec![working, status("TASK_STATE_INPUT_REQUIRED")],
        };
        for event in events {
            let envelope = json!({ "jsonrpc": "2.0", "id": id, "result": event });
            let _hung_up = sender.send(Ok(format!("data: {envelope}\n\n"))).await;
        }
        if shared.script == PeerScript::DiesInTheMiddle {
            tokio::time::sleep(UNTIL_DEATH).await;
            shared.dead.send_replace(true);
            let _hung_up = sender.send(Err(std::io::Error::other("the peer dies"))).await;
        }
    });
    ([("content-type", "text/event-stream")], Body::from_stream(ReceiverStream::new(receiver))).into_response()
}

//! An A2A server of somebody else at one or several URLs, with one store behind them: each URL can go away by itself.

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::HeaderMap,
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    net::Ipv4Addr,
    sync::{Arc, Mutex},
};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;

use crate::fake_model::Gate;

/// What the server is like.
#[derive(Debug, Clone)]
pub struct Manners {
    /// The binding that its card offers, on its own URL.
    pub binding: &'static str,
    /// Whether it streams.
    pub streams: bool,
    /// An extension that its card requires.
    pub requires: Option<&'static str>,
    /// It takes the first message, and the connection is gone before its answer.
    pub loses_first_answer: bool,
    /// It takes the first message, and answers when this opens.
    pub first_answer: Option<Gate>,
    /// A task ends when this opens.
    pub ends: Gate,
    /// The state in which a task waits for its client first.
    pub asks: Option<&'static str>,
}

impl Manners {
    /// A quick server that streams over JSON-RPC.
    pub fn good() -> Self {
        let ends = Gate::closed();
        ends.open();
        Self {
            binding: "JSONRPC",
            streams: true,
            requires: None,
            loses_first_answer: false,
            first_answer: None,
            ends,
            asks: None,
        }
    }
}

/// One request.
#[derive(Debug, Clone)]
pub struct Asked {
    /// At which of the URLs.
    pub at: usize,
    /// The method.
    pub method: String,
    /// Its parameters.
    pub params: Value,
    /// Its `traceparent`.
    pub traceparent: String,
}

#[derive(Debug, Clone)]
struct Record {
    id: String,
    context: String,
    state: &'static str,
    text: String,
}

struct Store {
    manners: Manners,
    asked: Mutex<Vec<Asked>>,
    tasks: Mutex<Vec<Record>>,
    /// The URLs that are gone.
    gone: Mutex<BTreeSet<usize>>,
}

impl Store {
    fn is_gone(&self, at: usize) -> bool {
        self.gone.lock().unwrap().contains(&at)
    }
}

#[derive(Clone)]
struct Place {
    store: Arc<Store>,
    at: usize,
    url: String,
}

/// The server.
pub struct Elsewhere {
    store: Arc<Store>,
    urls: Vec<String>,
    serving: Vec<Option<JoinHandle<()>>>,
}

impl Elsewhere {
    /// Starts one at so many URLs.
    pub async fn start(places: usize, manners: Manners) -> Self {
        let store =
            Arc::new(Store { manners, asked: Mutex::default(), tasks: Mutex::default(), gone: Mutex::default() });
        let (mut urls, mut serving) = (Vec::new(), Vec::new());
        for at in 0..places {
            let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let place = Place { store: Arc::clone(&store), at, url: url.clone() };
            let routes = Router::new()
                .route("/.well-known/agent-card.json", get(card))
                .route("/", post(rpc))
                .route("/{*operation}", any(rest))
                .with_state(place);
            urls.push(url);
            serving.push(Some(tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() })));
        }
        Self { store, urls, serving }
    }

    /// Its URLs.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Nobody listens at this URL any more, and its streams break.
    pub fn leave(&mut self, at: usize) {
        self.store.gone.lock().unwrap().insert(at);
        if let Some(serving) = self.serving[at].take() {
            serving.abort();
        }
    }

    /// What it was asked.
    pub fn asked(&self) -> Vec<Asked> {
        self.store.asked.lock().unwrap().clone()
    }

    /// The messages that it was sent.
    pub fn sent(&self) -> Vec<Asked> {
        self.asked().into_iter().filter(|asked| asked.method.starts_with("Send")).collect()
    }

    /// The states of its tasks.
    pub fn states(&self) -> Vec<&'static str> {
        self.store.tasks.lock().unwrap().iter().map(|task| task.state).collect()
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.serving.iter().flatten().for_each(JoinHandle::abort);
    }
}

async fn card(State(place): State<Place>) -> Response {
    if place.store.is_gone(place.at) {
        return broken();
    }
    let manners = &place.store.manners;
    let extensions: Vec<Value> = manners.requires.iter().map(|uri| json!({ "uri": uri, "required": true })).collect();
    axum::Json(json!({
        "name": "abroad",
        "description": "An agent of somebody else.",
        "version": "1.0.0",
        "supportedInterfaces": [
            { "url": "https://elsewhere.example/", "protocolBinding": manners.binding, "protocolVersion": "1.0" },
            { "url": format!("{}/", place.url), "protocolBinding": manners.binding, "protocolVersion": "1.0" },
        ],
        "capabilities": { "streaming": manners.streams, "pushNotifications": false, "extensions": extensions },
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{ "id": "s", "name": "s", "description": "s", "tags": ["far"] }],
    }))
    .into_response()
}

async fn rpc(State(place): State<Place>, headers: HeaderMap, body: Bytes) -> Response {
    let request: Value = serde_json::from_slice(&body).unwrap();
    let id = request["id"].clone();
    let method = request["method"].as_str().unwrap_or_default().to_owned();
    let wrap = move |result: Value| json!({ "jsonrpc": "2.0", "id": id, "result": result });
    let id = request["id"].clone();
    match answer(place, &headers, &method, request["params"].clone(), Box::new(wrap)).await {
        Ok(response) => response,
        Err((code, message)) => {
            axum::Json(json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } }))
                .into_response()
        }
    }
}

async fn rest(
    State(place): State<Place>,
    Path(operation): Path<String>,
    headers: HeaderMap,
    uri: axum::http::Uri,
    body: Bytes,
) -> Response {
    let mut params: Value = serde_json::from_slice(&body).unwrap_or_else(|_| json!({}));
    for pair in uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')) {
        params[pair.0] = pair.1.replace("%2F", "/").into();
    }
    let task = operation.strip_prefix("tasks/").unwrap_or_default();
    let (task, verb) = task.split_once(':').unwrap_or((task, ""));
    if !task.is_empty() {
        params["id"] = task.into();
    }
    let method = match (operation.as_str(), verb) {
        ("message:send", _) => "SendMessage",
        ("message:stream", _) => "SendStreamingMessage",
        ("tasks", _) => "ListTasks",
        (_, "cancel") => "CancelTask",
        (_, "subscribe") => "SubscribeToTask",
        _ => "GetTask",
    };
    match answer(place, &headers, method, params, Box::new(|result| result)).await {
        Ok(response) => response,
        Err((_, message)) => {
            let details = json!([{ "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "TASK_NOT_FOUND" }]);
            let error =
                json!({ "error": { "code": 404, "status": "NOT_FOUND", "message": message, "details": details } });
            (axum::http::StatusCode::NOT_FOUND, axum::Json(error)).into_response()
        }
    }
}

type Wrap = Box<dyn Fn(Value) -> Value + Send>;

const NOT_FOUND: (i64, &str) = (-32001, "no such task");

async fn answer(
    place: Place,
    headers: &HeaderMap,
    method: &str,
    params: Value,
    wrap: Wrap,
) -> Result<Response, (i64, &'static str)> {
    let traceparent = headers.get("traceparent").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let Place { store, at, .. } = place;
    if store.is_gone(at) {
        return Ok(broken());
    }
    let asked = Asked { at, method: method.to_owned(), params: params.clone(), traceparent };
    store.asked.lock().unwrap().push(asked);
    let known = |id: &Value| {
        let tasks = store.tasks.lock().unwrap();
        tasks.iter().find(|task| *id == task.id).cloned().ok_or(NOT_FOUND)
    };
    match method {
        "SendStreamingMessage" | "SubscribeToTask" if !store.manners.streams => Err((-32004, "there are no streams")),
        "SendMessage" | "SendStreamingMessage" => {
            let is_first = store.tasks.lock().unwrap().is_empty();
            let id = take(&store, &params["message"]);
            if is_first && store.manners.loses_first_answer {
                return Ok(broken());
            }
            if let Some(gate) = store.manners.first_answer.as_ref().filter(|_| is_first) {
                gate.passed().await;
            }
            if method == "SendMessage" {
                return Ok(axum::Json(wrap(json!({ "task": shown(&known(&json!(id))?) }))).into_response());
            }
            Ok(events(store, at, id, wrap))
        }
        "SubscribeToTask" => {
            let task = known(&params["id"])?;
            Ok(events(Arc::clone(&store), at, task.id, wrap))
        }
        "GetTask" => Ok(axum::Json(wrap(shown(&known(&params["id"])?))).into_response()),
        "CancelTask" => {
            let id = known(&params["id"])?.id;
            set_state(&store, &id, "TASK_STATE_CANCELED");
            Ok(axum::Json(wrap(shown(&known(&params["id"])?))).into_response())
        }
        _ => {
            let tasks = store.tasks.lock().unwrap().clone();
            let of_context = |task: &&Record| params["contextId"] == task.context;
            let tasks: Vec<Value> = tasks.iter().filter(of_context).map(shown).collect();
            let page = json!({ "tasks": tasks, "nextPageToken": "", "pageSize": 50, "totalSize": tasks.len() });
            Ok(axum::Json(wrap(page)).into_response())
        }
    }
}

/// A message makes a task, or answers what one asks.
fn take(store: &Arc<Store>, message: &Value) -> String {
    let text = message["parts"][0]["text"].as_str().unwrap_or_default().to_owned();
    if let Some(id) = message["taskId"].as_str().filter(|id| !id.is_empty()) {
        if let Some(task) = store.tasks.lock().unwrap().iter_mut().find(|task| task.id == id) {
            task.text.push_str(&format!(", and then {text}"));
        }
        set_state(store, id, "TASK_STATE_WORKING");
        end_in_time(store, id);
        return id.to_owned();
    }
    let mut tasks = store.tasks.lock().unwrap();
    let id = format!("far-{}", tasks.len() + 1);
    let context = message["contextId"].as_str().unwrap_or_default().to_owned();
    let state = store.manners.asks.unwrap_or("TASK_STATE_WORKING");
    tasks.push(Record { id: id.clone(), context, state, text });
    drop(tasks);
    if store.manners.asks.is_none() {
        end_in_time(store, &id);
    }
    id
}

fn end_in_time(store: &Arc<Store>, id: &str) {
    let (store, id) = (Arc::clone(store), id.to_owned());
    tokio::spawn(async move {
        store.manners.ends.passed().await;
        let is_open =
            store.tasks.lock().unwrap().iter().any(|task| task.id == id && task.state == "TASK_STATE_WORKING");
        if is_open {
            set_state(&store, &id, "TASK_STATE_COMPLETED");
        }
    });
}

fn set_state(store: &Store, id: &str, state: &'static str) {
    if let Some(task) = store.tasks.lock().unwrap().iter_mut().find(|task| task.id == id) {
        task.state = state;
    }
}

fn shown(task: &Record) -> Value {
    let status = match task.state {
        "TASK_STATE_INPUT_REQUIRED" | "TASK_STATE_AUTH_REQUIRED" => {
            let question = json!({ "messageId": "q", "role": "ROLE_AGENT", "parts": [{ "text": "which colour?" }] });
            json!({ "state": task.state, "message": question })
        }
        state => json!({ "state": state }),
    };
    let artifacts = if task.state == "TASK_STATE_COMPLETED" {
        json!([{ "artifactId": "letter", "name": "letter", "parts": [{ "text": format!("done abroad: {}", task.text) }] }])
    } else {
        json!([])
    };
    json!({ "id": task.id, "contextId": task.context, "status": status, "artifacts": artifacts })
}

/// An answer that ends before it says anything.
fn broken() -> Response {
    let broken = futures::stream::once(async { Err::<Bytes, _>(std::io::Error::other("lost")) });
    Body::from_stream(broken).into_response()
}

/// The task as it stands, and then its next states as they come.
fn events(store: Arc<Store>, at: usize, id: String, wrap: Wrap) -> Response {
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<String, std::io::Error>>(8);
    tokio::spawn(async move {
        let mut last = "";
        loop {
            let task = store.tasks.lock().unwrap().iter().find(|task| task.id == id).cloned();
            let Some(task) = task else { return };
            if store.is_gone(at) {
                let _hung_up = sender.send(Err(std::io::Error::other("gone"))).await;
                return;
            }
            if task.state != last {
                let frame = if last.is_empty() {
                    json!({ "task": shown(&task) })
                } else {
                    json!({ "statusUpdate": { "taskId": id, "contextId": task.context, "status": shown(&task)["status"] } })
                };
                last = task.state;
                if sender.send(Ok(format!("data: {}\n\n", wrap(frame)))).await.is_err() {
                    return;
                }
            }
            if task.state != "TASK_STATE_WORKING" || sender.is_closed() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    ([("content-type", "text/event-stream")], Body::from_stream(ReceiverStream::new(receiver))).into_response()
}

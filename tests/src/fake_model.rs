//! A server that speaks OpenAI's chat completions and answers what a test tells it.

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use serde_json::{Value, json};
use std::{
    net::Ipv4Addr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{sync::watch, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;

/// One request for a completion.
#[derive(Debug, Clone)]
pub struct Chat {
    /// How many requests came before it.
    pub number: usize,
    /// The system prompt.
    pub system: String,
    /// The last text of the user.
    pub user: String,
    /// Results of the calls that came after it, in order.
    pub results: Vec<String>,
    /// Names of the tools on offer.
    pub tools: Vec<String>,
    /// How many requests with the same messages came before it.
    pub repeated: usize,
    /// Its `traceparent`.
    pub traceparent: String,
    /// Whether it came with baggage.
    pub carried_baggage: bool,
}

/// Something that happens when a test says so.
#[derive(Debug, Clone)]
pub struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    /// A closed one.
    pub fn closed() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Opens it for all.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// Waits until it is open.
    pub async fn passed(&self) {
        let mut receiver = self.0.subscribe();
        receiver.wait_for(|open| *open).await.expect("the sender lives as long as this gate");
    }
}

#[derive(Debug, Clone)]
enum Piece {
    Text(String),
    Call { name: String, arguments: String },
    Pause(Duration),
    Wait(Gate),
    Cut,
    EndUnfinished,
}

/// What the model answers.
#[derive(Debug, Clone)]
pub struct Answer {
    status: u16,
    retry_after: Option<u64>,
    pieces: Vec<Piece>,
}

impl Answer {
    /// An answer that says nothing yet.
    pub fn new() -> Self {
        Self { status: 200, retry_after: None, pieces: Vec::new() }
    }

    /// An answer of one text.
    pub fn say(text: impl Into<String>) -> Self {
        Self::new().text(text)
    }

    /// An HTTP error.
    pub fn status(status: u16, retry_after: Option<u64>) -> Self {
        Self { status, retry_after, pieces: Vec::new() }
    }

    /// Then this text.
    pub fn text(self, text: impl Into<String>) -> Self {
        self.then(Piece::Text(text.into()))
    }

    /// Then each of these texts, far enough apart to be chunks of their own.
    pub fn words(self, words: &[&str]) -> Self {
        words.iter().fold(self, |answer, word| answer.text(*word).pause(Duration::from_millis(150)))
    }

    /// Then a call of a tool.
    pub fn call(self, name: &str, arguments: &Value) -> Self {
        self.raw_call(name, &arguments.to_string())
    }

    /// Then a call of a tool whose arguments are this text.
    pub fn raw_call(self, name: &str, arguments: &str) -> Self {
        self.then(Piece::Call { name: name.to_owned(), arguments: arguments.to_owned() })
    }

    /// Then some time.
    pub fn pause(self, time: Duration) -> Self {
        self.then(Piece::Pause(time))
    }

    /// Then nothing until the gate opens.
    pub fn wait(self, gate: &Gate) -> Self {
        self.then(Piece::Wait(gate.clone()))
    }

    /// Then the connection breaks.
    pub fn cut(self) -> Self {
        self.then(Piece::Cut)
    }

    /// Then the answer ends in good order, but without a reason to finish: what came is not all.
    pub fn end_unfinished(self) -> Self {
        self.then(Piece::EndUnfinished)
    }

    fn then(mut self, piece: Piece) -> Self {
        self.pieces.push(piece);
        self
    }
}

impl Default for Answer {
    fn default() -> Self {
        Self::new()
    }
}

type Script = dyn Fn(&Chat) -> Answer + Send + Sync;

struct Shared {
    script: Box<Script>,
    requests: Mutex<Vec<(Value, Chat)>>,
    open_streams: AtomicUsize,
    most_open_streams: AtomicUsize,
}

/// The server.
pub struct FakeModel {
    shared: Arc<Shared>,
    url: String,
    serving: JoinHandle<()>,
}

impl FakeModel {
    /// Serves answers that a script gives.
    pub async fn start(script: impl Fn(&Chat) -> Answer + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared {
            script: Box::new(script),
            requests: Mutex::default(),
            open_streams: AtomicUsize::new(0),
            most_open_streams: AtomicUsize::new(0),
        });
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}/v1/", listener.local_addr().unwrap());
        let routes = Router::new().route("/v1/chat/completions", post(complete)).with_state(Arc::clone(&shared));
        let serving = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { shared, url, serving }
    }

    /// The `models:` section of a configuration in which the model `default` is this server.
    pub fn config(&self) -> String {
        format!(
            "models:\n  default: {{ provider: openai, base_url: \"{}\", model: gpt-test, api_key: \"no secret\" }}\n",
            self.url
        )
    }

    /// All requests that came.
    pub fn chats(&self) -> Vec<Chat> {
        self.shared.requests.lock().unwrap().iter().map(|(_, chat)| chat.clone()).collect()
    }

    /// How many answers were under way at the same time at most.
    pub fn most_open_streams(&self) -> usize {
        self.shared.most_open_streams.load(Ordering::SeqCst)
    }

    /// How many answers are under way.
    pub fn open_streams(&self) -> usize {
        self.shared.open_streams.load(Ordering::SeqCst)
    }
}

impl Drop for FakeModel {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn complete(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let chat = {
        let mut requests = shared.requests.lock().unwrap();
        let mut chat = read_chat(&body);
        chat.number = requests.len();
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        chat.traceparent = header("traceparent").unwrap_or_default().to_owned();
        chat.carried_baggage = header("baggage").is_some();
        chat.repeated = requests.iter().filter(|(earlier, _)| earlier["messages"] == body["messages"]).count();
        requests.push((body.clone(), chat.clone()));
        chat
    };
    let answer = (shared.script)(&chat);
    if answer.status != 200 {
        let status = StatusCode::from_u16(answer.status).unwrap();
        let error = json!({ "error": { "message": "scripted failure", "type": "scripted" } });
        let mut response = (status, error.to_string()).into_response();
        if let Some(seconds) = answer.retry_after {
            response.headers_mut().insert("retry-after", seconds.into());
        }
        return response;
    }
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        let open = shared.open_streams.fetch_add(1, Ordering::SeqCst) + 1;
        shared.most_open_streams.fetch_max(open, Ordering::SeqCst);
        tokio::select! {
            () = speak(answer.pieces, &sender) => {}
            () = sender.closed() => {}
        }
        shared.open_streams.fetch_sub(1, Ordering::SeqCst);
    });
    let body = Body::from_stream(ReceiverStream::new(receiver));
    ([("content-type", "text/event-stream")], body).into_response()
}

type Line = Result<String, std::io::Error>;

async fn speak(pieces: Vec<Piece>, to: &tokio::sync::mpsc::Sender<Line>) {
    let mut calls = 0;
    for piece in pieces {
        match piece {
            Piece::Text(text) => {
                let _hung_up = to.send(Ok(chunk(&json!({ "role": "assistant", "content": text }), None))).await;
            }
            Piece::Call { name, arguments } => {
                let call = json!({ "index": calls, "id": format!("call-{calls}"), "type": "function",
                    "function": { "name": name, "arguments": arguments } });
                calls += 1;
                let _hung_up = to.send(Ok(chunk(&json!({ "role": "assistant", "tool_calls": [call] }), None))).await;
            }
            Piece::Pause(time) => tokio::time::sleep(time).await,
            Piece::Wait(gate) => gate.passed().await,
            Piece::EndUnfinished => return,
            Piece::Cut => {
                let _hung_up = to.send(Err(std::io::Error::other("the model's connection breaks"))).await;
                return;
            }
        }
    }
    let reason = if calls == 0 { "stop" } else { "tool_calls" };
    let usage = json!({ "id": "c", "object": "chat.completion.chunk", "choices": [],
        "usage": { "prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12 } });
    for line in [chunk(&json!({}), Some(reason)), format!("data: {usage}\n\n"), "data: [DONE]\n\n".to_owned()] {
        let _hung_up = to.send(Ok(line)).await;
    }
}

fn chunk(delta: &Value, finish_reason: Option<&str>) -> String {
    let chunk = json!({ "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-test",
        "choices": [{ "index": 0, "delta": delta, "finish_reason": finish_reason }] });
    format!("data: {chunk}\n\n")
}

fn read_chat(body: &Value) -> Chat {
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    let of_role = |role: &str| messages.iter().rposition(|message| message["role"] == json!(role));
    let text_at = |position: Option<usize>| position.map(|at| content(&messages[at])).unwrap_or_default();
    let last_user = of_role("user");
    let results = messages
        .iter()
        .skip(last_user.map_or(0, |at| at + 1))
        .filter(|message| message["role"] == json!("tool"))
        .map(content)
        .collect();
    let tools = body["tools"].as_array().cloned().unwrap_or_default();
    Chat {
        number: 0,
        system: text_at(messages.iter().position(|message| message["role"] == json!("system"))),
        user: text_at(last_user),
        results,
        tools: tools.iter().filter_map(|tool| tool["function"]["name"].as_str()).map(str::to_owned).collect(),
        repeated: 0,
        traceparent: String::new(),
        carried_baggage: false,
    }
}

/// Content is a text or a list of parts.
fn content(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    }
}

//! A receiver of push notifications that takes them, or does not, as a test tells it.

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::any,
};
use serde_json::Value;
use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;

use crate::{fake_model::Gate, wait::eventually};

/// What the receiver does with a call.
#[derive(Debug, Clone)]
pub enum Takes {
    /// It takes the event: status 200.
    Event,
    /// It answers with another status.
    Status(u16),
    /// It answers only once the gate is open, and then takes the event.
    After(Gate),
    /// It sends the caller elsewhere.
    Redirect(String),
}

/// One call, as it came.
#[derive(Debug, Clone)]
pub struct Call {
    /// How many came before it.
    pub number: usize,
    /// Its path.
    pub path: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// The event.
    pub event: Value,
    /// When it came.
    pub at: Instant,
    /// Whether the event was taken.
    pub taken: bool,
}

impl Call {
    /// The index of the event, from the metadata of what the event is about.
    pub fn index(&self) -> u64 {
        let inside = self.event.as_object().and_then(|event| event.values().next()).unwrap_or(&Value::Null);
        let index = inside["metadata"]["dev.towline/generation"].as_u64();
        index.unwrap_or_else(|| panic!("no index in {}", self.event))
    }

    /// The state of the task that the event tells, if it tells one.
    pub fn state(&self) -> Option<&str> {
        let status = [&self.event["statusUpdate"]["status"], &self.event["task"]["status"]];
        status.iter().find_map(|status| status["state"].as_str())
    }

    /// A header as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

type Script = dyn Fn(&Call) -> Takes + Send + Sync;

struct Shared {
    script: Box<Script>,
    calls: Mutex<Vec<Call>>,
}

/// The receiver.
pub struct WebhookReceiver {
    shared: Arc<Shared>,
    base: String,
    serving: JoinHandle<()>,
}

impl WebhookReceiver {
    /// Starts one that does with each call what a script says.
    pub async fn start(script: impl Fn(&Call) -> Takes + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared { script: Box::new(script), calls: Mutex::default() });
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let routes = Router::new().fallback(any(receive)).with_state(Arc::clone(&shared));
        let serving = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { shared, base, serving }
    }

    /// The URL of a hook of it.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// All calls so far.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.calls.lock().unwrap().clone()
    }

    /// Indexes of the events that were taken, in the order of their arrival.
    pub fn taken(&self) -> Vec<u64> {
        self.calls().iter().filter(|call| call.taken).map(Call::index).collect()
    }

    /// Waits until the end of a task was taken, and returns all calls.
    pub async fn told_the_end(&self) -> Vec<Call> {
        let is_end = |call: &Call| {
            let ends = ["TASK_STATE_COMPLETED", "TASK_STATE_CANCELED", "TASK_STATE_FAILED"];
            call.taken && call.state().is_some_and(|state| ends.contains(&state))
        };
        eventually("the webhook to be told the end", async || self.calls().iter().any(is_end).then_some(())).await;
        self.calls()
    }

    /// Waits until nothing came for this long.
    pub async fn quiet_for(&self, time: Duration) {
        eventually("the calls to stop", async || {
            let last = self.calls().last().map(|call| call.at);
            last.is_none_or(|last| last.elapsed() >= time).then_some(())
        })
        .await;
    }
}

impl Drop for WebhookReceiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn receive(State(shared): State<Arc<Shared>>, uri: axum::http::Uri, headers: HeaderMap, body: Bytes) -> Response {
    let event = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let (number, takes) = {
        let mut calls = shared.calls.lock().unwrap();
        let (number, path) = (calls.len(), uri.path().to_owned());
        let mut call = Call { number, path, headers, event, at: Instant::now(), taken: false };
        let takes = (shared.script)(&call);
        call.taken = matches!(takes, Takes::Event);
        calls.push(call);
        (number, takes)
    };
    match takes {
        Takes::Event => StatusCode::OK.into_response(),
        Takes::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Takes::Redirect(to) => (StatusCode::TEMPORARY_REDIRECT, [("location", to)]).into_response(),
        Takes::After(gate) => {
            gate.passed().await;
            shared.calls.lock().unwrap()[number].taken = true;
            StatusCode::OK.into_response()
        }
    }
}

//! A client of A2A that knows as little as possible: JSON in, JSON out.

use serde_json::{Value, json};
use std::{
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Longer than any deadline of the product, so that its own answer is what a test sees.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// The HTTP client of all tests.
pub fn http_client() -> reqwest::Client {
    static CLIENT: LazyLock<()> = LazyLock::new(|| {
        let _already_there = rustls::crypto::ring::default_provider().install_default();
    });
    LazyLock::force(&CLIENT);
    reqwest::Client::builder().no_proxy().tcp_nodelay(true).connect_timeout(Duration::from_secs(3)).build().unwrap()
}

/// A JSON-RPC error, or an HTTP answer that is none.
#[derive(Debug, Clone, PartialEq)]
pub struct RpcError {
    /// JSON-RPC code; the HTTP status if the body is no JSON-RPC.
    pub code: i64,
    /// Its text.
    pub message: String,
    /// Its data.
    pub data: Value,
}

/// Speaks to one endpoint.
#[derive(Debug, Clone)]
pub struct A2aClient {
    http: reqwest::Client,
    endpoint: String,
}

impl A2aClient {
    /// A client of a JSON-RPC endpoint, such as `http://127.0.0.1:7420/agents/reader`.
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self { http: http_client(), endpoint: endpoint.into() }
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// One call.
    ///
    /// # Errors
    /// What the server answered instead of a result.
    pub async fn call(&self, method: &str, params: Value) -> Result<Value, RpcError> {
        let body = json!({ "jsonrpc": "2.0", "id": request_id(), "method": method, "params": params });
        let (status, text) = self.post(body.to_string()).await?;
        read_answer(status, &text)
    }

    /// Posts a body as it is; status and body of the answer.
    ///
    /// # Errors
    /// Code 0: no answer came.
    pub async fn post(&self, body: String) -> Result<(u16, String), RpcError> {
        let request = self
            .http
            .post(&self.endpoint)
            .header("content-type", "application/json")
            .header("a2a-version", "1.0")
            .timeout(ANSWER_LIMIT)
            .body(body);
        let failed = |error: reqwest::Error| RpcError { code: 0, message: format!("{error:?}"), data: Value::Null };
        let answer = request.send().await.map_err(failed)?;
        let status = answer.status().as_u16();
        Ok((status, answer.text().await.map_err(failed)?))
    }

    /// Sends a message and waits for the answer: the task.
    ///
    /// # Errors
    /// As [`A2aClient::call`].
    pub async fn send(&self, message: Value) -> Result<Value, RpcError> {
        self.call("SendMessage", json!({ "message": message })).await.map(|result| task_of(&result))
    }

    /// Sends a message and returns as soon as the task is there.
    ///
    /// # Errors
    /// As [`A2aClient::call`].
    pub async fn send_async(&self, message: Value) -> Result<Value, RpcError> {
        let params = json!({ "message": message, "configuration": { "returnImmediately": true } });
        self.call("SendMessage", params).await.map(|result| task_of(&result))
    }

    /// A task.
    ///
    /// # Errors
    /// As [`A2aClient::call`].
    pub async fn get(&self, task: &str) -> Result<Value, RpcError> {
        self.call("GetTask", json!({ "id": task })).await
    }

    /// Cancels a task.
    ///
    /// # Errors
    /// As [`A2aClient::call`].
    pub async fn cancel(&self, task: &str) -> Result<Value, RpcError> {
        self.call("CancelTask", json!({ "id": task })).await
    }
}

fn request_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn read_answer(status: u16, text: &str) -> Result<Value, RpcError> {
    let body: Value = serde_json::from_str(text).unwrap_or(Value::Null);
    if let Some(error) = body.get("error") {
        return Err(RpcError {
            code: error["code"].as_i64().unwrap_or(i64::from(status)),
            message: error["message"].as_str().unwrap_or(text).to_owned(),
            data: error["data"].clone(),
        });
    }
    match body.get("result") {
        Some(result) => Ok(result.clone()),
        None => Err(RpcError { code: i64::from(status), message: text.to_owned(), data: Value::Null }),
    }
}

/// A message from the user with one text part and this id.
pub fn text_message(id: &str, text: &str) -> Value {
    json!({ "messageId": id, "role": "ROLE_USER", "parts": [{ "text": text }] })
}

/// The task inside a `SendMessage` result.
pub fn task_of(result: &Value) -> Value {
    assert!(result["task"].is_object(), "a task was expected: {result}");
    result["task"].clone()
}

/// The state of a task, such as `TASK_STATE_WORKING`.
pub fn state_of(task: &Value) -> String {
    task["status"]["state"].as_str().unwrap_or_else(|| panic!("no state: {task}")).to_owned()
}

/// Artifact id and text of each artifact of a task.
pub fn text_of_artifacts(task: &Value) -> std::collections::BTreeMap<String, String> {
    let artifacts = task["artifacts"].as_array().cloned().unwrap_or_default();
    artifacts
        .iter()
        .map(|artifact| {
            let parts = artifact["parts"].as_array().cloned().unwrap_or_default();
            let text = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            (artifact["artifactId"].as_str().unwrap().to_owned(), text)
        })
        .collect()
}

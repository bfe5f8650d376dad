//! A client of the nodes' operator API: what `demo` and `dev` ask the nodes besides A2A.

use std::time::Duration;

use http::HeaderMap;
use serde::{Deserialize, de::DeserializeOwned};
use towline_cluster::ClusterStatus;
use towline_core::Task;
use towline_trace::SpanRecord;

use super::DemoError;

/// How long one answer may take: an election fits into it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);

/// How long a join token is good for: the nodes that use it start at once.
const TOKEN_TTL: Duration = Duration::from_secs(120);

/// Asks nodes by their base URL.
#[derive(Clone)]
pub(crate) struct OperatorClient {
    http: reqwest::Client,
}

#[derive(Deserialize)]
struct Minted {
    token: String,
}

#[derive(Deserialize)]
struct Trace {
    spans: Vec<SpanRecord>,
}

impl OperatorClient {
    /// A client that waits for an answer as long as an election takes, and shows these headers.
    pub(crate) fn new(headers: HeaderMap) -> Result<Self, DemoError> {
        let http = reqwest::Client::builder()
            .default_headers(headers)
            .no_proxy()
            .tcp_nodelay(true)
            .timeout(ANSWER_TIMEOUT)
            .build()
            .map_err(|source| DemoError::Operator { action: "make an HTTP client".to_owned(), source })?;
        Ok(Self { http })
    }

    /// Whether the node knows a leader and has registered.
    pub(crate) async fn is_ready(&self, node: &str) -> bool {
        let asked = self.http.get(format!("{node}/healthz")).send().await;
        asked.is_ok_and(|answer| answer.status().is_success())
    }

    /// The cluster as the node sees it.
    pub(crate) async fn status(&self, node: &str) -> Result<ClusterStatus, DemoError> {
        self.get(format!("{node}/api/v1/cluster")).await
    }

    /// The whole record of a task.
    pub(crate) async fn task(&self, node: &str, id: &str) -> Result<Task, DemoError> {
        self.get(format!("{node}/api/v1/tasks/{id}")).await
    }

    /// The spans of a task's trace, gathered from all live nodes.
    pub(crate) async fn spans(&self, node: &str, id: &str) -> Result<Vec<SpanRecord>, DemoError> {
        let trace: Trace = self.get(format!("{node}/api/v1/tasks/{id}/trace")).await?;
        Ok(trace.spans)
    }

    /// A token with which one more voter joins.
    pub(crate) async fn mint_token(&self, node: &str) -> Result<String, DemoError> {
        let body = serde_json::json!({ "role": "voter", "ttl_ms": TOKEN_TTL.as_millis() });
        let request = self.http.post(format!("{node}/api/v1/join-tokens")).json(&body);
        let minted: Minted = ask("make a join token".to_owned(), request).await?;
        Ok(minted.token)
    }

    async fn get<T: DeserializeOwned>(&self, url: String) -> Result<T, DemoError> {
        let request = self.http.get(&url);
        ask(format!("read {url}"), request).await
    }
}

async fn ask<T: DeserializeOwned>(action: String, request: reqwest::RequestBuilder) -> Result<T, DemoError> {
    let failed = |source| DemoError::Operator { action: action.clone(), source };
    let answer = request.send().await.map_err(failed)?;
    let status = answer.status();
    let body = answer.bytes().await.map_err(failed)?;
    let told = |reason: String| DemoError::Answer { action: action.clone(), reason };
    if !status.is_success() {
        return Err(told(format!("{status}: {}", String::from_utf8_lossy(&body).trim())));
    }
    serde_json::from_slice(&body).map_err(|error| told(error.to_string()))
}

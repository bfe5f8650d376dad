//! One MCP server of this node, looked at and tried by hand: `/api/v1/mcp/{server}`. The operator's alone: a call made here is
//! no task's, and nothing but the log of the node tells of it.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, Query, State, rejection::JsonRejection, rejection::QueryRejection},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use towline_actors::{
    McpHandle, Mesh,
    mcp_connection::{CallError, CallEvents, CallRequest, READ_RESOURCE, ToolResult},
};
use towline_core::{StepNo, TaskId, TraceContext};

use super::{Api, ApiError, invalid};

pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/api/v1/mcp/{server}", get(inspect))
        .route("/api/v1/mcp/{server}/tail", get(tail))
        .route("/api/v1/mcp/{server}/call", post(call))
        .route("/api/v1/mcp/{server}/read", post(read))
        .route("/api/v1/mcp/{server}/prompt", post(prompt))
}

pub(super) async fn server(api: &Api, name: &str) -> Result<McpHandle, ApiError> {
    let mesh = api.mesh.lock().await;
    let known = mesh.as_ref().map(Mesh::mcp_servers).unwrap_or_default();
    mesh.as_ref().and_then(|mesh| mesh.mcp_server(name)).ok_or_else(|| {
        let known: Vec<String> = known.into_iter().map(|server| server.name).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let name = towline_a2a::shortened(name);
        let message = format!("MCP server {name:?} is not configured on this node; configured: {known}");
        ApiError::new(StatusCode::NOT_FOUND, "unknown_server", message)
    })
}

async fn inspect(State(api): State<Arc<Api>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    let server = server(&api, &name).await?;
    let found = server.inspect().await.map_err(failed)?;
    Ok(Json(found).into_response())
}

#[derive(Deserialize)]
struct After {
    #[serde(default)]
    after: u64,
}

async fn tail(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    after: Result<Query<After>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(After { after }) = after.map_err(|error| invalid(error.body_text()))?;
    let server = server(&api, &name).await?;
    Ok(Json(json!({ "lines": server.tail(after) })).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

async fn call(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    body: Result<Json<Call>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(Call { tool, arguments }) = body.map_err(|error| invalid(error.body_text()))?;
    if tool == READ_RESOURCE {
        return Err(invalid(format!("{tool} is no tool: post to /api/v1/mcp/{name}/read")));
    }
    let server = server(&api, &name).await?;
    tracing::info!(server = name, tool, "an operator calls a tool");
    answered(server.call(by_hand(tool, arguments), Default::default()).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read {
    uri: String,
}

async fn read(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    body: Result<Json<Read>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(Read { uri }) = body.map_err(|error| invalid(error.body_text()))?;
    let server = server(&api, &name).await?;
    let arguments = Map::from_iter([("uri".to_owned(), uri.into())]);
    answered(server.call(by_hand(READ_RESOURCE.to_owned(), arguments), Default::default()).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Prompt {
    name: String,
    #[serde(default)]
    arguments: Option<Map<String, Value>>,
}

async fn prompt(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    body: Result<Json<Prompt>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(Prompt { name: prompt, arguments }) = body.map_err(|error| invalid(error.body_text()))?;
    let server = server(&api, &name).await?;
    Ok(Json(server.prompt(&prompt, arguments).await.map_err(failed)?).into_response())
}

/// A call that is no task's: its key is one of its own, so that no server takes it for another call.
fn by_hand(tool: String, arguments: Map<String, Value>) -> CallRequest {
    let id = uuid::Uuid::now_v7();
    let bits = id.as_u128();
    let span_id = u64::try_from(bits & u128::from(u64::MAX)).unwrap_or(1).max(1);
    CallRequest {
        tool,
        arguments: Value::Object(arguments),
        task: TaskId::from_uuid(id),
        step: StepNo(0),
        attempt: 1,
        idempotency_key: format!("by-hand/{id}"),
        trace: TraceContext { trace_id: bits, span_id, sampled: false },
        trace_state: String::new(),
        labels: towline_core::Labels::new(),
        timeout: None,
        events: CallEvents::default(),
    }
}

fn answered(result: Result<ToolResult, CallError>) -> Result<Response, ApiError> {
    let ToolResult { text, structured, files, is_error, answer: _ } = result.map_err(failed)?;
    let files: Vec<Value> = files
        .iter()
        .map(|file| json!({ "bytes": file.size(), "filename": file.filename, "mediaType": file.media_type }))
        .collect();
    Ok(Json(json!({ "files": files, "isError": is_error, "structured": structured, "text": text })).into_response())
}

/// What an operator is told of a call that did not work: the class of the failure, and what it was.
fn failed(error: CallError) -> ApiError {
    let status = match error.error_type.as_ref() {
        "unknown_tool" | "capability_missing" | "tool_changed" => StatusCode::NOT_FOUND,
        // 503 would say that the cluster has no quorum.
        "timeout" => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_GATEWAY,
    };
    let class = match error.error_type.as_ref() {
        "unknown_tool" => "unknown_tool",
        "capability_missing" => "capability_missing",
        "tool_changed" => "tool_changed",
        "server_unavailable" => "server_unavailable",
        "circuit_open" => "circuit_open",
        "rate_limited" => "rate_limited",
        "timeout" => "timeout",
        _ => "call_failed",
    };
    let happened = if error.may_have_happened { " (it may have happened)" } else { "" };
    ApiError::new(status, class, format!("{}: {}{happened}", error.error_type, error.message))
}

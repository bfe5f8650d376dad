//! The calls of agents as tasks of MCP (extension `io.modelcontextprotocol/tasks`, SEP-2663), for clients without a session that say
//! that they know it. A task of MCP is the task of the mesh, under the same id: it is in the log, so any node answers for it, and it
//! goes on when a node or the client is lost.

use serde_json::{Map, Value, json};
use towline_a2a::convert::{state_name, time_text};
use towline_core::{TaskId, TaskState, Timestamp};

use super::{
    Ask, agents,
    message::{Request, RpcError, code},
    reads::Arguments,
    revision::META_CAPABILITIES,
};
use crate::commands::STATES;

/// The name of the extension.
pub(super) const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// How often a client may look, in milliseconds.
const POLL_MS: u64 = 1_000;

/// The key of the question of an agent, and of the field of its answer.
const KEY: &str = "answer";

/// Whether the client of a request knows the extension.
pub(super) fn are_known(request: &Request) -> bool {
    let extensions = request.meta(META_CAPABILITIES).and_then(|capabilities| capabilities.get("extensions"));
    extensions.is_some_and(|extensions| extensions.get(EXTENSION).is_some())
}

fn check_known(request: &Request) -> Result<(), RpcError> {
    if are_known(request) {
        return Ok(());
    }
    let data = json!({ "requiredCapabilities": { "extensions": { EXTENSION: {} } } });
    let message = format!("the client has not said that it knows {EXTENSION}");
    Err(RpcError::new(code::MISSING_CAPABILITY, message).with(data))
}

/// Gives an agent a task and answers with it at once.
///
/// # Errors
/// Why the agent does not take it, for the model.
pub(super) async fn begin(
    ask: &Ask,
    agent: &towline_core::AgentName,
    arguments: Map<String, Value>,
) -> Result<Value, String> {
    let task = agents::send(ask, agent, Arguments(arguments)).await?;
    let shown = shown(ask, task).await.map_err(|error| error.message)?;
    let mut result = json!({ "resultType": "task" });
    copy(
        &shown,
        &mut result,
        &["taskId", "status", "statusMessage", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"],
    );
    Ok(result)
}

fn copy(from: &Value, to: &mut Value, keys: &[&str]) {
    for key in keys {
        if let Some(value) = from.get(*key) {
            to[*key] = value.clone();
        }
    }
}

/// `tasks/get`: where a task stands; its result once it has ended.
pub(super) async fn get(ask: &Ask, request: &Request) -> Result<Value, RpcError> {
    check_known(request)?;
    shown(ask, named(request)?).await
}

/// `tasks/update`: the answer to what an agent has asked.
pub(super) async fn update(ask: &Ask, request: &Request) -> Result<Value, RpcError> {
    check_known(request)?;
    let task = named(request)?;
    let known = shown(ask, task).await?;
    let answer = request.params.get("inputResponses").and_then(|answers| answers.get(KEY));
    let said = answer.filter(|answer| answer["action"] == "accept").and_then(|answer| answer["content"][KEY].as_str());
    // What nobody asked any more, and what is no answer, changes nothing.
    if let (Some(said), Some("input_required")) = (said, known["status"].as_str()) {
        let message = json!({
            "messageId": uuid::Uuid::now_v7().to_string(),
            "parts": [{ "text": said }],
            "role": "ROLE_USER",
            "taskId": task.to_string(),
        });
        let params = json!({ "configuration": { "returnImmediately": true }, "message": message });
        let sent = ask.a2a(::a2a::methods::SEND_MESSAGE, None, params).await;
        sent.map_err(|why| RpcError::new(code::UNAVAILABLE, why))?;
    }
    Ok(json!({}))
}

/// `tasks/cancel`. One that has ended stays as it is.
pub(super) async fn cancel(ask: &Ask, request: &Request) -> Result<Value, RpcError> {
    check_known(request)?;
    let task = named(request)?;
    let known = shown(ask, task).await?;
    if !matches!(known["status"].as_str(), Some("completed" | "cancelled" | "failed")) {
        let canceled = ask.a2a(::a2a::methods::CANCEL_TASK, None, json!({ "id": task.to_string() })).await;
        // It may have ended in this moment.
        if let Err(why) = canceled {
            tracing::debug!(%task, why, "a task is not canceled");
        }
    }
    Ok(json!({}))
}

fn named(request: &Request) -> Result<TaskId, RpcError> {
    let text = request.text("taskId")?;
    text.parse().map_err(|_| unknown(text))
}

fn unknown(text: &str) -> RpcError {
    RpcError::invalid_params(format!("task {:?} is not known", towline_a2a::shortened(text)))
}

/// A task as the extension has it. A task that failed is a tool that says so; `failed` is for what is no task's doing.
async fn shown(ask: &Ask, id: TaskId) -> Result<Value, RpcError> {
    let task = ask.a2a(::a2a::methods::GET_TASK, None, json!({ "id": id.to_string() })).await;
    let task = task.map_err(|_| unknown(&id.to_string()))?;
    let word = task.pointer("/status/state").and_then(Value::as_str).unwrap_or_default();
    let state = STATES.iter().map(|(known, _)| *known).find(|known| state_name(*known) == word);
    let begun = id.as_uuid().get_timestamp().map_or(0, |at| {
        let (seconds, nanos) = at.to_unix();
        seconds.saturating_mul(1_000).saturating_add(u64::from(nanos) / 1_000_000)
    });
    let mut shown = json!({
        "taskId": id.to_string(),
        "status": "working",
        "createdAt": time_text(Timestamp(begun)),
        "lastUpdatedAt": task.pointer("/status/timestamp").cloned().unwrap_or_else(|| time_text(Timestamp(begun)).into()),
        "ttlMs": null,
        "pollIntervalMs": POLL_MS,
    });
    let said = agents::texts(&task["status"]["message"]["parts"]);
    match state {
        Some(TaskState::Submitted | TaskState::Working) | None => {}
        Some(TaskState::InputRequired | TaskState::AuthRequired) => {
            shown["status"] = "input_required".into();
            shown["inputRequests"] = json!({ KEY: question(&said) });
        }
        Some(TaskState::Canceled) => shown["status"] = "cancelled".into(),
        Some(TaskState::Completed | TaskState::Failed | TaskState::Rejected) => {
            shown["status"] = "completed".into();
            shown["result"] = agents::answer_of(id, &task).into_value();
        }
    }
    if !said.is_empty() {
        shown["statusMessage"] = said.into();
    }
    Ok(shown)
}

fn question(said: &str) -> Value {
    let said = if said.is_empty() { "The agent asks for input." } else { said };
    let schema = json!({
        "type": "object",
        "properties": { KEY: { "type": "string", "title": "Answer", "description": said } },
        "required": [KEY],
    });
    json!({ "method": "elicitation/create", "params": { "message": said, "mode": "form", "requestedSchema": schema } })
}

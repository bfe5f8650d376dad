//! A2A's wire format ↔ the types of `towline-core`.
//!
//! Everything passes through the SDK's ProtoJSON: camelCase, SCREAMING enum names and RFC 3339 times go out; snake_case,
//! integer enums and unknown fields are accepted in (spec 5.5, ADR-001). What a request must have is checked on the
//! decoded protobuf message, before the SDK fills gaps with defaults, and an error names the field.

mod annotations;
mod bounds;
mod protobuf;
mod push;
mod remote;
mod requests;
mod results;

use std::collections::HashMap;

use serde_json::Value;
use towline_core::{
    Artifact, Content, ContextId, Message, MessageId, Metadata, Part, Role, TaskId, TaskState, Timestamp,
};

pub use crate::client::card_from_wire;
pub(crate) use bounds::{AnswerKind, check_protobuf_answer};
pub use bounds::{MAX_ANSWER_VALUES, MAX_JSON_VALUES, check_answer, check_json, check_protobuf};
pub use protobuf::{params_of, result_to};
pub use push::{
    CreatePushConfig, ListPushConfigs, PushConfigName, create_push_config, list_push_configs, push_config,
    push_config_name, push_configs,
};
pub use remote::{RemoteTask, StreamEvent, page_from_wire, send_reply_from_wire, stream_event_from_wire};
pub use requests::{
    GetRequest, ListRequest, MAX_PAGE_SIZE, SendRequest, get_request, list_request, send_request, task_request,
};
pub use results::{
    Answer, Endpoints, ShownEvent, ShownPage, ShownTask, TaskView, card, event, list_result, send_params, send_result,
    snapshot, task, task_params,
};

/// Deepest nesting of structured data in a message. Protobuf decoders give up at 100 levels, each level of JSON costs
/// three of them, and a result wraps a message deeper than its request did.
pub const MAX_JSON_DEPTH: usize = 24;

/// A field of a request that is missing, or has a value that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Field {
    /// Path of the field, as the protocol spells it (`message.parts[0]`).
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

impl Field {
    /// A field with a problem.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }

    fn required(field: impl Into<String>) -> Self {
        Self::new(field, "is required")
    }
}

/// The task state of the SDK; `None` for *unspecified*.
fn state_from_sdk(state: &a2a::TaskState) -> Option<TaskState> {
    match state {
        a2a::TaskState::Unspecified => None,
        a2a::TaskState::Submitted => Some(TaskState::Submitted),
        a2a::TaskState::Working => Some(TaskState::Working),
        a2a::TaskState::Completed => Some(TaskState::Completed),
        a2a::TaskState::Failed => Some(TaskState::Failed),
        a2a::TaskState::Canceled => Some(TaskState::Canceled),
        a2a::TaskState::InputRequired => Some(TaskState::InputRequired),
        a2a::TaskState::Rejected => Some(TaskState::Rejected),
        a2a::TaskState::AuthRequired => Some(TaskState::AuthRequired),
    }
}

fn state_to_sdk(state: TaskState) -> a2a::TaskState {
    match state {
        TaskState::Submitted => a2a::TaskState::Submitted,
        TaskState::Working => a2a::TaskState::Working,
        TaskState::InputRequired => a2a::TaskState::InputRequired,
        TaskState::AuthRequired => a2a::TaskState::AuthRequired,
        TaskState::Completed => a2a::TaskState::Completed,
        TaskState::Failed => a2a::TaskState::Failed,
        TaskState::Canceled => a2a::TaskState::Canceled,
        TaskState::Rejected => a2a::TaskState::Rejected,
    }
}

/// The name of a state on the wire, such as `TASK_STATE_WORKING`.
pub fn state_name(state: TaskState) -> &'static str {
    match state {
        TaskState::Submitted => "TASK_STATE_SUBMITTED",
        TaskState::Working => "TASK_STATE_WORKING",
        TaskState::InputRequired => "TASK_STATE_INPUT_REQUIRED",
        TaskState::AuthRequired => "TASK_STATE_AUTH_REQUIRED",
        TaskState::Completed => "TASK_STATE_COMPLETED",
        TaskState::Failed => "TASK_STATE_FAILED",
        TaskState::Canceled => "TASK_STATE_CANCELED",
        TaskState::Rejected => "TASK_STATE_REJECTED",
    }
}

fn part_to_sdk(part: &Part) -> a2a::Part {
    a2a::Part {
        content: match &part.content {
            Content::Text(text) => a2a::PartContent::Text(text.clone()),
            Content::Raw(bytes) => a2a::PartContent::Raw(bytes.clone()),
            Content::Url(url) => a2a::PartContent::Url(url.clone()),
            Content::Data(value) => a2a::PartContent::Data(value.clone()),
            // Whoever answers puts content or a link in its place before; what it is called is better than nothing.
            Content::Blob(blob) => a2a::PartContent::Url(format!("blob:{}", blob.hash)),
        },
        filename: part.filename.clone(),
        media_type: part.media_type.clone(),
        metadata: metadata_to_sdk(&part.metadata),
    }
}

fn part_from_sdk(part: a2a::Part) -> Part {
    Part {
        content: match part.content {
            a2a::PartContent::Text(text) => Content::Text(text),
            a2a::PartContent::Raw(bytes) => Content::Raw(bytes),
            a2a::PartContent::Url(url) => Content::Url(url),
            a2a::PartContent::Data(value) => Content::Data(with_integers(value)),
        },
        media_type: part.media_type,
        filename: part.filename,
        metadata: metadata_from_sdk(part.metadata),
    }
}

fn artifact_to_sdk(artifact: &Artifact) -> a2a::Artifact {
    a2a::Artifact {
        artifact_id: artifact.artifact_id.clone(),
        name: artifact.name.clone(),
        description: artifact.description.clone(),
        parts: artifact.parts.iter().map(part_to_sdk).collect(),
        metadata: metadata_to_sdk(&artifact.metadata),
        extensions: None,
    }
}

fn artifact_from_sdk(artifact: a2a::Artifact) -> Artifact {
    Artifact {
        artifact_id: artifact.artifact_id,
        name: artifact.name,
        description: artifact.description,
        parts: artifact.parts.into_iter().map(part_from_sdk).collect(),
        metadata: metadata_from_sdk(artifact.metadata),
    }
}

/// A message as it stands in a task: the task and its context are named even where the sender left them out.
fn message_to_sdk(message: &Message, place: Option<(TaskId, &ContextId)>) -> a2a::Message {
    let context = place.map(|(_, context)| context).or(message.context_id.as_ref());
    let task = place.map(|(task, _)| task).or(message.task_id);
    a2a::Message {
        message_id: message.message_id.to_string(),
        context_id: context.map(ToString::to_string),
        task_id: task.map(|task| task.to_string()),
        role: match message.role {
            Role::User => a2a::Role::User,
            Role::Agent => a2a::Role::Agent,
        },
        parts: message.parts.iter().map(part_to_sdk).collect(),
        metadata: metadata_to_sdk(&message.metadata),
        extensions: some_unless_empty(&message.extensions),
        reference_task_ids: some_unless_empty(&message.reference_task_ids),
    }
}

/// A message as its sender wrote it. `task` is the task id that was already recognised; a foreign peer's is not one.
fn message_from_sdk(message: a2a::Message, task: Option<TaskId>) -> Result<Message, Field> {
    let message_id: MessageId = id("message.messageId", message.message_id)?;
    let context_id = message.context_id.map(|context| id("message.contextId", context)).transpose()?;
    Ok(Message {
        message_id,
        context_id,
        task_id: task,
        role: match message.role {
            a2a::Role::Agent => Role::Agent,
            a2a::Role::User | a2a::Role::Unspecified => Role::User,
        },
        parts: message.parts.into_iter().map(part_from_sdk).collect(),
        metadata: metadata_from_sdk(message.metadata),
        extensions: message.extensions.unwrap_or_default(),
        reference_task_ids: message.reference_task_ids.unwrap_or_default(),
    })
}

fn id<T>(field: &str, value: String) -> Result<T, Field>
where
    T: TryFrom<String, Error = towline_core::InvalidId>,
{
    T::try_from(value).map_err(|error| Field::new(field, error.to_string()))
}

fn metadata_to_sdk(metadata: &Metadata) -> Option<HashMap<String, Value>> {
    (!metadata.is_empty()).then(|| metadata.iter().map(|(key, value)| (key.clone(), value.clone())).collect())
}

fn metadata_from_sdk(metadata: Option<HashMap<String, Value>>) -> Metadata {
    metadata.unwrap_or_default().into_iter().map(|(key, value)| (key, with_integers(value))).collect()
}

fn some_unless_empty(list: &[String]) -> Option<Vec<String>> {
    (!list.is_empty()).then(|| list.to_vec())
}

/// A time as the protocol writes it: RFC 3339, in UTC.
pub fn time_text(at: Timestamp) -> String {
    let shown = |time: chrono::DateTime<chrono::Utc>| time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
    time_to_sdk(at).map_or_else(|| format!("{} ms", at.0), shown)
}

fn time_to_sdk(at: Timestamp) -> Option<chrono::DateTime<chrono::Utc>> {
    i64::try_from(at.0).ok().and_then(chrono::DateTime::from_timestamp_millis)
}

/// Structured data travels as protobuf's `Value`, whose numbers are all doubles; whole ones are integers again here, so
/// that `3` does not come back as `3.0`.
fn with_integers(mut value: Value) -> Value {
    make_integers(&mut value);
    value
}

fn make_integers(value: &mut Value) {
    /// Doubles are exact for whole numbers up to 2^53.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) if number.is_f64() => match number.as_f64() {
            Some(double) if double.fract() == 0.0 && double.abs() <= EXACT => *value = Value::from(double as i64),
            Some(_) | None => {}
        },
        Value::Array(items) => items.iter_mut().for_each(make_integers),
        Value::Object(fields) => fields.values_mut().for_each(make_integers),
        Value::Number(_) | Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// The SDK keeps free-form fields in hash maps. They are sorted here, so that an event is written with the same bytes
/// each time and on every node; `sorted` says whether this is inside of one.
fn sort_maps(value: &mut Value, sorted: bool) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| sort_maps(item, sorted)),
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                sort_maps(value, sorted || matches!(key.as_str(), "metadata" | "data"));
            }
            if sorted {
                fields.sort_keys();
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// How deep a value nests.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests;

//! Requests of a client, as the core understands them.

use a2a_pb::{pbconv, protojson_conv::ProtoJsonPayload};
use prost::Message as _;
use serde_json::Value;
use towline_core::{ContextId, ListFilter, Message, Metadata, TaskId, TaskState, Timestamp, WebhookConfig};

use super::{
    Field, MAX_JSON_DEPTH, depth, id, message_from_sdk, metadata_from_sdk, push::webhook_config, state_from_sdk,
};

/// Most tasks on one page of `ListTasks` (spec 3.1.4).
pub const MAX_PAGE_SIZE: usize = 100;

/// Tasks on a page when the client does not say (spec 3.1.4).
const DEFAULT_PAGE_SIZE: usize = 50;

/// `SendMessage` and `SendStreamingMessage`.
#[derive(Debug, Clone, PartialEq)]
pub struct SendRequest {
    /// The message; its `task_id` is `None` when `task` is not an id of ours.
    pub message: Message,
    /// The task that the message continues, as the client wrote it.
    pub task: Option<String>,
    /// Whether to answer before the task has ended.
    pub return_immediately: bool,
    /// How many messages of the history to show; `None` leaves it to us.
    pub history_length: Option<usize>,
    /// Where the client wants to be told of the task.
    pub push: Option<WebhookConfig>,
    /// Metadata of the request.
    pub metadata: Metadata,
}

/// `GetTask`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetRequest {
    /// The task, as the client wrote it.
    pub task: String,
    /// How many messages of the history to show; `None` leaves it to us.
    pub history_length: Option<usize>,
}

/// `ListTasks`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListRequest {
    /// Which tasks.
    pub filter: ListFilter,
    /// How many on a page.
    pub page_size: usize,
    /// How many messages of each history to show; `None` leaves it to us.
    pub history_length: Option<usize>,
    /// Whether artifacts are shown.
    pub include_artifacts: bool,
}

/// Reads the parameters of `SendMessage` and `SendStreamingMessage`.
///
/// # Errors
/// The field that is missing or wrong.
pub fn send_request(params: Value) -> Result<SendRequest, Field> {
    check_base64(&params)?;
    check_numbers(&params)?;
    let wire = decode::<a2a::SendMessageRequest>(params)?;
    let message = wire.message.as_ref().ok_or_else(|| Field::required("message"))?;
    check_message(message)?;
    let configuration = wire.configuration.clone().unwrap_or_default();
    let history_length = history_length("configuration.historyLength", configuration.history_length)?;
    let push = configuration.task_push_notification_config.as_ref();
    let push = push.map(|push| webhook_config(push, "configuration.taskPushNotificationConfig.")).transpose()?;
    let request = pbconv::from_proto_send_message_request(&wire);
    let task = request.message.task_id.clone();
    let message = message_from_sdk(request.message, task.as_deref().and_then(|task| task.parse().ok()))?;
    check_depth(&message)?;
    Ok(SendRequest {
        message,
        task,
        return_immediately: configuration.return_immediately,
        history_length,
        push,
        metadata: metadata_from_sdk(request.metadata),
    })
}

/// Reads the parameters of `GetTask`.
///
/// # Errors
/// The field that is missing or wrong.
pub fn get_request(params: Value) -> Result<GetRequest, Field> {
    let wire = decode::<a2a::GetTaskRequest>(params)?;
    let history_length = history_length("historyLength", wire.history_length)?;
    Ok(GetRequest { task: required_text("id", wire.id)?, history_length })
}

/// Reads the parameters of `CancelTask` and `SubscribeToTask`: the task, as the client wrote it.
///
/// # Errors
/// The field that is missing or wrong.
pub fn task_request(params: Value) -> Result<String, Field> {
    let wire = decode::<a2a::SubscribeToTaskRequest>(params)?;
    required_text("id", wire.id)
}

/// Reads the parameters of `ListTasks`; all are optional.
///
/// # Errors
/// The field that is wrong.
pub fn list_request(params: Value) -> Result<ListRequest, Field> {
    let params = if params.is_null() { Value::Object(serde_json::Map::new()) } else { params };
    check_time(&params, "statusTimestampAfter")?;
    let wire = decode::<a2a::ListTasksRequest>(params)?;
    let page_size = page_size(wire.page_size)?;
    let history_length = history_length("historyLength", wire.history_length)?;
    let request = pbconv::from_proto_list_tasks_request(&wire);
    let context: Option<ContextId> = request.context_id.map(|context| id("contextId", context)).transpose()?;
    let filter = ListFilter {
        context,
        state: request.status.as_ref().map(listed_state).transpose()?,
        status_after: request.status_timestamp_after.map(first_millisecond_at_or_after),
        agent: None,
        after: request.page_token.as_deref().map(read_page_token).transpose()?,
    };
    Ok(ListRequest { filter, page_size, history_length, include_artifacts: request.include_artifacts.unwrap_or(false) })
}

/// A cursor: the position of the last task of a page.
pub(super) fn page_token(next: (Timestamp, TaskId)) -> String {
    format!("{}.{}", next.0.0, next.1)
}

fn read_page_token(token: &str) -> Result<(Timestamp, TaskId), Field> {
    let read = || {
        let (at, task) = token.split_once('.')?;
        Some((Timestamp(at.parse().ok()?), task.parse().ok()?))
    };
    read().ok_or_else(|| Field::new("pageToken", "is not a token that ListTasks gave out"))
}

/// Decodes ProtoJSON to the protobuf message, in which absent and default can still be told apart.
pub(super) fn decode<T: ProtoJsonPayload>(params: Value) -> Result<T::Proto, Field> {
    if params.is_null() {
        return Err(Field::required("params"));
    }
    let json: T::ProtoJson = serde_json::from_value(params).map_err(|error| Field::new("params", error.to_string()))?;
    T::Proto::decode(json.encode_to_vec().as_slice()).map_err(|error| Field::new("params", error.to_string()))
}

/// The decoder does not say which part is wrong.
fn check_base64(params: &Value) -> Result<(), Field> {
    let parts = params.pointer("/message/parts").and_then(Value::as_array);
    for (index, part) in parts.into_iter().flatten().enumerate() {
        let digits = part.get("raw").and_then(Value::as_str).unwrap_or_default().trim_end_matches('=').as_bytes();
        let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(byte);
        if digits.len() % 4 == 1 || !digits.iter().all(is_digit) {
            return Err(Field::new(format!("message.parts[{index}].raw"), "is not base64"));
        }
    }
    Ok(())
}

/// Whole numbers that JSON of other languages cannot hold, and protobuf neither: they would arrive as other numbers.
const FIRST_ROUNDED: u64 = 1 << f64::MANTISSA_DIGITS;

/// The decoder does not say which number is wrong, nor what to do.
fn check_numbers(params: &Value) -> Result<(), Field> {
    let mut path = String::new();
    let Some(number) = rounded(params, 0, &mut path) else { return Ok(()) };
    let problem = format!(
        "{number} is a whole number from 2^53 on, which JSON readers round to another one: send it as a string, \"{number}\""
    );
    Err(Field::new(path.trim_start_matches('.'), problem))
}

/// The first number that would be rounded; the path to it is left in `path`.
fn rounded<'v>(value: &'v Value, depth: usize, path: &mut String) -> Option<&'v serde_json::Number> {
    let before = path.len();
    let mut within = |step: std::fmt::Arguments<'_>, value: &'v Value| {
        let _ = std::fmt::Write::write_fmt(path, step);
        let found = rounded(value, depth + 1, path);
        if found.is_none() {
            path.truncate(before);
        }
        found
    };
    match value {
        Value::Number(number) => {
            let is_large = number.as_u64().is_some_and(|number| number >= FIRST_ROUNDED)
                || number.as_i64().is_some_and(|number| number.unsigned_abs() >= FIRST_ROUNDED);
            is_large.then_some(number)
        }
        // Nothing that nests deeper is taken.
        Value::Array(_) | Value::Object(_) if depth > 2 * MAX_JSON_DEPTH => None,
        Value::Array(items) => items.iter().enumerate().find_map(|(at, item)| within(format_args!("[{at}]"), item)),
        Value::Object(fields) => fields.iter().find_map(|(name, value)| within(format_args!(".{name}"), value)),
        Value::Null | Value::Bool(_) | Value::String(_) => None,
    }
}

fn check_time(params: &Value, field: &str) -> Result<(), Field> {
    let wrong = |_| Field::new(field, "must be a time such as 2026-01-31T12:00:00Z");
    let Some(time) = params.get(field).and_then(Value::as_str) else { return Ok(()) };
    chrono::DateTime::parse_from_rfc3339(time).map(|_| ()).map_err(wrong)
}

fn check_message(message: &a2a_pb::Message) -> Result<(), Field> {
    if message.message_id.is_empty() {
        return Err(Field::required("message.messageId"));
    }
    match pbconv::from_proto_role(message.role) {
        a2a::Role::Unspecified => return Err(Field::required("message.role")),
        a2a::Role::Agent => return Err(Field::new("message.role", "must be ROLE_USER in a request")),
        a2a::Role::User => {}
    }
    if message.parts.is_empty() {
        return Err(Field::new("message.parts", "is required and must not be empty"));
    }
    for (index, part) in message.parts.iter().enumerate() {
        if part.content.is_none() {
            let field = format!("message.parts[{index}]");
            return Err(Field::new(field, "needs one of text, raw, url, data"));
        }
    }
    Ok(())
}

fn check_depth(message: &Message) -> Result<(), Field> {
    let too_deep = |field: String| Field::new(field, format!("nests deeper than {MAX_JSON_DEPTH} levels"));
    let deep_metadata = |metadata: &Metadata| metadata.values().any(|value| depth(value) > MAX_JSON_DEPTH);
    if deep_metadata(&message.metadata) {
        return Err(too_deep("message.metadata".to_owned()));
    }
    for (index, part) in message.parts.iter().enumerate() {
        let deep_data = matches!(&part.content, towline_core::Content::Data(data) if depth(data) > MAX_JSON_DEPTH);
        if deep_data || deep_metadata(&part.metadata) {
            return Err(too_deep(format!("message.parts[{index}]")));
        }
    }
    Ok(())
}

pub(super) fn required_text(field: &str, value: String) -> Result<String, Field> {
    if value.is_empty() { Err(Field::required(field)) } else { Ok(value) }
}

fn history_length(field: &str, value: Option<i32>) -> Result<Option<usize>, Field> {
    value.map(|length| usize::try_from(length).map_err(|_| Field::new(field, "must not be negative"))).transpose()
}

fn page_size(value: Option<i32>) -> Result<usize, Field> {
    let Some(value) = value else { return Ok(DEFAULT_PAGE_SIZE) };
    usize::try_from(value)
        .ok()
        .filter(|size| (1..=MAX_PAGE_SIZE).contains(size))
        .ok_or_else(|| Field::new("pageSize", format!("must be from 1 to {MAX_PAGE_SIZE}")))
}

fn listed_state(state: &a2a::TaskState) -> Result<TaskState, Field> {
    state_from_sdk(state).ok_or_else(|| Field::new("status", "is not a task state"))
}

/// Times of tasks are whole milliseconds, so one with a fraction selects from the next millisecond on.
fn first_millisecond_at_or_after(at: chrono::DateTime<chrono::Utc>) -> Timestamp {
    let fraction = i64::from(!at.timestamp_subsec_nanos().is_multiple_of(1_000_000));
    Timestamp(u64::try_from(at.timestamp_millis() + fraction).unwrap_or(0))
}

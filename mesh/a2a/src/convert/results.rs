//! What the core knows, as the wire shows it; and the parameters that a client sends.

use a2a_pb::protojson_conv::{self, ProtoJsonPayload};
use serde_json::{Map, Value, json};
use towline_core::{
    AgentSpec, ContextId, Event, EventKind, Message, Metadata, Task, TaskId, TaskPage, TaskState, TaskStatus, Timestamp,
};

use super::{
    artifact_to_sdk, message_to_sdk, metadata_to_sdk, requests::page_token, state_to_sdk, time_to_sdk, with_integers,
};
use crate::{AGENT_KEY, GENERATION_KEY, PROTOCOL_VERSION, TRACE_KEY, WireError};

/// How much of a task is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskView {
    /// The last so many messages; `None` for all.
    pub history: Option<usize>,
    /// Whether artifacts are shown.
    pub artifacts: bool,
}

impl TaskView {
    /// Everything.
    pub const WHOLE: Self = Self { history: None, artifacts: true };
}

/// A task, as `GetTask` and `CancelTask` answer it.
///
/// # Errors
/// When the task cannot be encoded: a bug.
pub fn task(task: &Task, view: TaskView) -> Result<Value, WireError> {
    encode(&task_to_sdk(task, view))
}

/// The answer to `SendMessage`.
///
/// # Errors
/// When the task cannot be encoded: a bug.
pub fn send_result(task: &Task, view: TaskView) -> Result<Value, WireError> {
    encode(&a2a::SendMessageResponse::Task(task_to_sdk(task, view)))
}

/// One page, as `ListTasks` answers it.
///
/// # Errors
/// When a task cannot be encoded: a bug.
pub fn list_result(page: &TaskPage<'_>, page_size: usize, view: TaskView) -> Result<Value, WireError> {
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let mut result = encode(&a2a::ListTasksResponse {
        tasks: page.tasks.iter().map(|task| task_to_sdk(task, view)).collect(),
        next_page_token: page.next.map(page_token).unwrap_or_default(),
        page_size: count(page_size),
        total_size: count(page.total),
    })?;
    // All four are required, and ProtoJSON leaves out what is empty or zero.
    if let Value::Object(fields) = &mut result {
        fields.entry("tasks").or_insert_with(|| json!([]));
        fields.entry("totalSize").or_insert_with(|| json!(0));
    }
    Ok(result)
}

/// The task as it stands, as the first frame of a stream.
///
/// # Errors
/// When the task cannot be encoded: a bug.
pub fn snapshot_event(task: &Task) -> Result<Value, WireError> {
    encode(&a2a::StreamResponse::Task(task_to_sdk(task, TaskView::WHOLE)))
}

/// Event 1 of a task: the task as it was accepted, with its first message.
///
/// # Errors
/// When the task cannot be encoded: a bug.
pub fn created(task: &Task) -> Result<Value, WireError> {
    let first = task.history.first().map(|message| message_to_sdk(message, Some((task.id, &task.context))));
    let status = TaskStatus { state: TaskState::Submitted, message: None, at: task.created };
    encode(&a2a::StreamResponse::Task(a2a::Task {
        id: task.id.to_string(),
        context_id: task.context.to_string(),
        status: status_to_sdk(&status, task.id, &task.context),
        artifacts: None,
        history: first.map(|message| vec![message]),
        metadata: metadata_to_sdk(&task_metadata(task, 1)),
    }))
}

/// One event of a task, as every stream shows it.
///
/// # Errors
/// When the event cannot be encoded: a bug.
pub fn event(task: &Task, event: &Event) -> Result<Value, WireError> {
    let response = match &event.kind {
        EventKind::Created => return created(task),
        EventKind::Status { status, metadata } => a2a::StreamResponse::StatusUpdate(a2a::TaskStatusUpdateEvent {
            task_id: task.id.to_string(),
            context_id: task.context.to_string(),
            status: status_to_sdk(status, task.id, &task.context),
            metadata: metadata_to_sdk(&with_generation(metadata, event.index)),
        }),
        EventKind::Artifact { artifact_id, name, parts, append, last_chunk, metadata } => {
            let artifact = towline_core::Artifact {
                artifact_id: artifact_id.clone(),
                name: name.clone(),
                description: None,
                parts: parts.clone(),
                metadata: Metadata::new(),
            };
            a2a::StreamResponse::ArtifactUpdate(a2a::TaskArtifactUpdateEvent {
                task_id: task.id.to_string(),
                context_id: task.context.to_string(),
                artifact: artifact_to_sdk(&artifact),
                append: Some(*append),
                last_chunk: Some(*last_chunk),
                metadata: metadata_to_sdk(&with_generation(metadata, event.index)),
            })
        }
    };
    encode(&response)
}

/// The card of one agent, or of a mesh whose skills are its agents.
///
/// # Errors
/// When the card cannot be encoded: a bug.
pub fn card(name: &str, description: &str, url: &str, version: &str, agents: &[AgentSpec]) -> Result<Value, WireError> {
    let text = || vec!["text/plain".to_owned(), "application/json".to_owned()];
    encode(&a2a::AgentCard {
        name: name.to_owned(),
        description: description.to_owned(),
        version: version.to_owned(),
        supported_interfaces: vec![a2a::AgentInterface {
            url: url.to_owned(),
            protocol_binding: a2a::TRANSPORT_PROTOCOL_JSONRPC.to_owned(),
            protocol_version: PROTOCOL_VERSION.to_owned(),
            tenant: None,
        }],
        capabilities: a2a::AgentCapabilities {
            streaming: Some(true),
            push_notifications: Some(false),
            extensions: None,
            extended_agent_card: Some(false),
        },
        default_input_modes: text(),
        default_output_modes: text(),
        skills: agents.iter().map(skill).collect(),
        provider: None,
        documentation_url: None,
        icon_url: None,
        security_schemes: None,
        security_requirements: None,
        signatures: None,
    })
}

/// The parameters of `SendMessage` and `SendStreamingMessage`. `task` names the task that the message continues where it
/// is not an id of ours.
///
/// # Errors
/// When the message cannot be encoded: a bug.
pub fn send_params(
    message: &Message,
    task: Option<&str>,
    return_immediately: bool,
    history_length: Option<u32>,
) -> Result<Value, WireError> {
    let mut message = message_to_sdk(message, None);
    if let Some(task) = task {
        message.task_id = Some(task.to_owned());
    }
    encode(&a2a::SendMessageRequest {
        message,
        configuration: Some(a2a::SendMessageConfiguration {
            accepted_output_modes: None,
            task_push_notification_config: None,
            history_length: history_length.map(|length| i32::try_from(length).unwrap_or(i32::MAX)),
            return_immediately: Some(return_immediately),
        }),
        metadata: None,
        tenant: None,
    })
}

/// The parameters of the methods that name a task.
pub fn task_params(task: &str, history_length: Option<u32>) -> Value {
    let mut params = Map::from_iter([("id".to_owned(), Value::from(task))]);
    if let Some(length) = history_length {
        params.insert("historyLength".to_owned(), length.into());
    }
    Value::Object(params)
}

fn encode<T: ProtoJsonPayload>(value: &T) -> Result<Value, WireError> {
    protojson_conv::to_value(value).map(with_integers).map_err(|error| WireError::internal(format!("encode: {error}")))
}

fn task_to_sdk(task: &Task, view: TaskView) -> a2a::Task {
    let skipped = view.history.map_or(0, |length| task.history.len().saturating_sub(length));
    let history = task.history.iter().skip(skipped);
    a2a::Task {
        id: task.id.to_string(),
        context_id: task.context.to_string(),
        status: status_to_sdk(&task.status, task.id, &task.context),
        artifacts: view.artifacts.then(|| task.artifacts.iter().map(artifact_to_sdk).collect()),
        history: Some(history.map(|message| message_to_sdk(message, Some((task.id, &task.context)))).collect()),
        metadata: metadata_to_sdk(&task_metadata(task, task.generation)),
    }
}

fn task_metadata(task: &Task, generation: u64) -> Metadata {
    Metadata::from([
        (GENERATION_KEY.to_owned(), generation.into()),
        (AGENT_KEY.to_owned(), task.agent.as_str().into()),
        (TRACE_KEY.to_owned(), task.trace.trace_id_hex().into()),
    ])
}

fn with_generation(metadata: &Metadata, index: u64) -> Metadata {
    let mut metadata = metadata.clone();
    metadata.insert(GENERATION_KEY.to_owned(), index.into());
    metadata
}

fn status_to_sdk(status: &TaskStatus, task: TaskId, context: &ContextId) -> a2a::TaskStatus {
    let at: Timestamp = status.at;
    a2a::TaskStatus {
        state: state_to_sdk(status.state),
        message: status.message.as_ref().map(|message| message_to_sdk(message, Some((task, context)))),
        timestamp: time_to_sdk(at),
    }
}

fn skill(agent: &AgentSpec) -> a2a::AgentSkill {
    let described = if agent.description.is_empty() { agent.name.as_str() } else { &agent.description };
    let tags = if agent.tags.is_empty() { vec!["agent".to_owned()] } else { agent.tags.clone() };
    a2a::AgentSkill {
        id: agent.name.to_string(),
        name: agent.name.to_string(),
        description: described.to_owned(),
        tags,
        examples: None,
        input_modes: None,
        output_modes: None,
        security_requirements: None,
    }
}

//! What the core knows, as the wire shows it; and the parameters that a client sends.

use a2a_pb::protojson_conv::{self, ProtoJsonPayload};
use serde_json::{Map, Value, json};
use towline_core::{
    AgentSpec, ContextId, Event, EventKind, Message, Metadata, Task, TaskId, TaskPage, TaskState, TaskStatus, Timestamp,
};

use super::{
    artifact_to_sdk, message_to_sdk, metadata_to_sdk, part_to_sdk, requests::page_token, state_to_sdk, time_to_sdk,
    with_integers, with_sorted_maps,
};
use crate::{AGENT_KEY, GENERATION_KEY, PROTOCOL_VERSION, SendOptions, TRACE_KEY, WireError};

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

/// A result that still has to be encoded. Making one from the state copies what it shows and no more, so that the state
/// is not held while ProtoJSON is written.
#[derive(Debug, Clone)]
pub enum Answer {
    /// `GetTask` and `CancelTask`.
    Task(a2a::Task),
    /// `SendMessage`.
    Sent(a2a::SendMessageResponse),
    /// `ListTasks`.
    Page(a2a::ListTasksResponse),
    /// One frame of a stream.
    Frame(Box<a2a::StreamResponse>),
}

impl Answer {
    /// The result as it goes over the wire.
    ///
    /// # Errors
    /// When it cannot be encoded: a bug.
    pub fn encode(&self) -> Result<Value, WireError> {
        match self {
            Answer::Task(task) => encode(task),
            Answer::Sent(response) => encode(response),
            Answer::Page(page) => encode(page).map(with_required_of_page),
            Answer::Frame(response) => encode(response.as_ref()),
        }
    }
}

/// A task, as `GetTask` and `CancelTask` answer it.
pub fn task(task: &Task, view: TaskView) -> Answer {
    Answer::Task(task_to_sdk(task, view))
}

/// The answer to `SendMessage`.
pub fn send_result(task: &Task, view: TaskView) -> Answer {
    Answer::Sent(a2a::SendMessageResponse::Task(task_to_sdk(task, view)))
}

/// One page, as `ListTasks` answers it.
pub fn list_result(page: &TaskPage<'_>, page_size: usize, view: TaskView) -> Answer {
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    Answer::Page(a2a::ListTasksResponse {
        tasks: page.tasks.iter().map(|task| task_to_sdk(task, view)).collect(),
        next_page_token: page.next.map(page_token).unwrap_or_default(),
        page_size: count(page_size),
        total_size: count(page.total),
    })
}

/// The task as it stands, as the first frame of a stream.
pub fn snapshot(task: &Task) -> Answer {
    Answer::Frame(Box::new(a2a::StreamResponse::Task(task_to_sdk(task, TaskView::WHOLE))))
}

/// One event of a task, as every stream shows it.
pub fn event(task: &Task, event: &Event) -> Answer {
    Answer::Frame(Box::new(match &event.kind {
        EventKind::Created => a2a::StreamResponse::Task(as_created(task)),
        EventKind::Status { status, metadata } => a2a::StreamResponse::StatusUpdate(a2a::TaskStatusUpdateEvent {
            task_id: task.id.to_string(),
            context_id: task.context.to_string(),
            status: status_to_sdk(status, task.id, &task.context),
            metadata: metadata_to_sdk(&with_generation(metadata, event.index)),
        }),
        EventKind::Artifact { artifact_id, name, parts, append, last_chunk, metadata } => {
            a2a::StreamResponse::ArtifactUpdate(a2a::TaskArtifactUpdateEvent {
                task_id: task.id.to_string(),
                context_id: task.context.to_string(),
                artifact: a2a::Artifact {
                    artifact_id: artifact_id.clone(),
                    name: name.clone(),
                    description: None,
                    parts: parts.iter().map(part_to_sdk).collect(),
                    metadata: None,
                    extensions: None,
                },
                append: Some(*append),
                last_chunk: Some(*last_chunk),
                metadata: metadata_to_sdk(&with_generation(metadata, event.index)),
            })
        }
    }))
}

/// Event 1 of a task: the task as it was accepted, with its first message.
fn as_created(task: &Task) -> a2a::Task {
    let first = task.history.first().map(|message| message_to_sdk(message, Some((task.id, &task.context))));
    let status = TaskStatus { state: TaskState::Submitted, message: None, at: task.created };
    a2a::Task {
        id: task.id.to_string(),
        context_id: task.context.to_string(),
        status: status_to_sdk(&status, task.id, &task.context),
        artifacts: None,
        history: first.map(|message| vec![message]),
        metadata: metadata_to_sdk(&task_metadata(task, 1)),
    }
}

/// All fields of a page are required, and ProtoJSON leaves out what is empty or zero.
fn with_required_of_page(mut page: Value) -> Value {
    if let Value::Object(fields) = &mut page {
        fields.entry("tasks").or_insert_with(|| json!([]));
        fields.entry("totalSize").or_insert_with(|| json!(0));
    }
    page
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

/// The parameters of `SendMessage` and `SendStreamingMessage`.
///
/// # Errors
/// When the message cannot be encoded: a bug.
pub fn send_params(message: &Message, options: &SendOptions) -> Result<Value, WireError> {
    let mut message = message_to_sdk(message, None);
    message.task_id = options.task_id.clone().or(message.task_id);
    message.context_id = options.context_id.clone().or(message.context_id);
    encode(&a2a::SendMessageRequest {
        message,
        configuration: Some(a2a::SendMessageConfiguration {
            accepted_output_modes: None,
            task_push_notification_config: None,
            history_length: options.history_length.map(|length| i32::try_from(length).unwrap_or(i32::MAX)),
            return_immediately: Some(options.return_immediately),
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
    let encoded = protojson_conv::to_value(value).map_err(|error| WireError::internal(format!("encode: {error}")))?;
    Ok(with_sorted_maps(with_integers(encoded), false))
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

//! What a peer answers, as a client sees it. Lenient: only what is used must be there.

use a2a_pb::protojson_conv;
use serde_json::Value;
use towline_core::{Artifact, Message, Metadata, Part, TaskState};

use super::{artifact_from_sdk, message_from_sdk, metadata_from_sdk, part_from_sdk, state_from_sdk};
use crate::{GENERATION_KEY, RemotePage, SendReply};

/// A task of a peer.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteTask {
    /// The peer's id of the task.
    pub id: String,
    /// The conversation.
    pub context_id: String,
    /// Its state.
    pub state: TaskState,
    /// Text of the status message, if there is one.
    pub status_text: Option<String>,
    /// What it has made so far.
    pub artifacts: Vec<Artifact>,
    /// Its messages, as far as the peer shows them.
    pub history: Vec<Message>,
    /// Index of its last event, if the peer counts events.
    pub generation: Option<u64>,
    /// Free-form metadata.
    pub metadata: Metadata,
    /// The task as the peer wrote it.
    pub raw: Value,
}

impl RemoteTask {
    /// Reads a task as it stands on the wire.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn from_wire(raw: Value) -> Result<Self, String> {
        let task: a2a::Task = decode(raw.clone())?;
        Self::from_sdk(task, raw)
    }

    fn from_sdk(task: a2a::Task, raw: Value) -> Result<Self, String> {
        if task.id.is_empty() {
            return Err("task has no id".to_owned());
        }
        let (state, message) = status(task.status)?;
        let metadata = metadata_from_sdk(task.metadata);
        Ok(Self {
            id: task.id,
            context_id: task.context_id,
            state,
            status_text: message.map(|message| message.text()).filter(|text| !text.is_empty()),
            artifacts: task.artifacts.unwrap_or_default().into_iter().map(artifact_from_sdk).collect(),
            history: messages(task.history.unwrap_or_default()),
            generation: generation(&metadata),
            metadata,
            raw,
        })
    }
}

/// What one frame of a stream says.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// The task, as it was accepted or as it stands.
    Task(RemoteTask),
    /// Its status changed.
    Status {
        /// The task.
        task: String,
        /// The conversation.
        context: String,
        /// The state from here on.
        state: TaskState,
        /// Text of the status message, if there is one.
        text: Option<String>,
        /// Metadata of the event.
        metadata: Metadata,
    },
    /// A chunk of an artifact.
    Artifact {
        /// The task.
        task: String,
        /// The conversation.
        context: String,
        /// Which artifact.
        artifact_id: String,
        /// Its name.
        name: Option<String>,
        /// The chunk.
        parts: Vec<Part>,
        /// Whether the chunk extends the artifact; otherwise it replaces it.
        append: bool,
        /// Whether it is the last one.
        last_chunk: bool,
        /// Metadata of the event.
        metadata: Metadata,
    },
    /// A direct answer, without a task.
    Message(Message),
}

impl StreamEvent {
    /// The index of the event, if the peer counts events.
    pub fn generation(&self) -> Option<u64> {
        match self {
            StreamEvent::Task(task) => task.generation,
            StreamEvent::Status { metadata, .. } | StreamEvent::Artifact { metadata, .. } => generation(metadata),
            StreamEvent::Message(_) => None,
        }
    }

    /// The state that the event tells, if it tells one.
    pub fn state(&self) -> Option<TaskState> {
        match self {
            StreamEvent::Task(task) => Some(task.state),
            StreamEvent::Status { state, .. } => Some(*state),
            StreamEvent::Artifact { .. } | StreamEvent::Message(_) => None,
        }
    }
}

/// Reads a `StreamResponse`.
///
/// # Errors
/// What is wrong with it, in words.
pub fn stream_event_from_wire(raw: Value) -> Result<StreamEvent, String> {
    let response: a2a::StreamResponse = decode(raw.clone())?;
    match response {
        a2a::StreamResponse::Task(task) => RemoteTask::from_sdk(task, inner(raw, "task")).map(StreamEvent::Task),
        a2a::StreamResponse::Message(message) => message_from_peer(message).map(StreamEvent::Message),
        a2a::StreamResponse::StatusUpdate(update) => {
            let (state, message) = status(update.status)?;
            Ok(StreamEvent::Status {
                task: update.task_id,
                context: update.context_id,
                state,
                text: message.map(|message| message.text()).filter(|text| !text.is_empty()),
                metadata: metadata_from_sdk(update.metadata),
            })
        }
        a2a::StreamResponse::ArtifactUpdate(update) => Ok(StreamEvent::Artifact {
            task: update.task_id,
            context: update.context_id,
            artifact_id: update.artifact.artifact_id,
            name: update.artifact.name,
            parts: update.artifact.parts.into_iter().map(part_from_sdk).collect(),
            append: update.append.unwrap_or(false),
            last_chunk: update.last_chunk.unwrap_or(false),
            metadata: metadata_from_sdk(update.metadata),
        }),
    }
}

/// Reads the answer to `SendMessage`.
///
/// # Errors
/// What is wrong with it, in words.
pub fn send_reply_from_wire(raw: Value) -> Result<SendReply, String> {
    let response: a2a::SendMessageResponse = decode(raw.clone())?;
    match response {
        a2a::SendMessageResponse::Task(task) => {
            RemoteTask::from_sdk(task, inner(raw, "task")).map(|task| SendReply::Task(Box::new(task)))
        }
        a2a::SendMessageResponse::Message(message) => {
            message_from_peer(message).map(|message| SendReply::Message(Box::new(message)))
        }
    }
}

/// Reads the answer to `ListTasks`.
///
/// # Errors
/// What is wrong with it, in words.
pub fn page_from_wire(raw: Value) -> Result<RemotePage, String> {
    let page: a2a::ListTasksResponse = decode(raw.clone())?;
    let mut raws = match raw.get("tasks") {
        Some(Value::Array(tasks)) => tasks.clone(),
        Some(_) | None => Vec::new(),
    }
    .into_iter();
    let tasks = page.tasks.into_iter().map(|task| RemoteTask::from_sdk(task, raws.next().unwrap_or_default()));
    Ok(RemotePage {
        tasks: tasks.collect::<Result<_, _>>()?,
        next_page_token: Some(page.next_page_token).filter(|token| !token.is_empty()),
        total_size: u64::try_from(page.total_size).unwrap_or(0),
        raw,
    })
}

fn decode<T: protojson_conv::ProtoJsonPayload>(raw: Value) -> Result<T, String> {
    protojson_conv::from_value(raw).map_err(|error| error.to_string())
}

fn inner(mut raw: Value, field: &str) -> Value {
    raw.get_mut(field).map(Value::take).unwrap_or_default()
}

fn status(status: a2a::TaskStatus) -> Result<(TaskState, Option<Message>), String> {
    let state = state_from_sdk(&status.state).ok_or("task has no state")?;
    Ok((state, status.message.and_then(|message| message_from_peer(message).ok())))
}

fn message_from_peer(message: a2a::Message) -> Result<Message, String> {
    let task = message.task_id.as_deref().and_then(|task| task.parse().ok());
    message_from_sdk(message, task).map_err(|field| field.to_string())
}

/// A message that cannot be read does not spoil the task.
fn messages(history: Vec<a2a::Message>) -> Vec<Message> {
    history.into_iter().filter_map(|message| message_from_peer(message).ok()).collect()
}

fn generation(metadata: &Metadata) -> Option<u64> {
    metadata.get(GENERATION_KEY).and_then(Value::as_u64)
}

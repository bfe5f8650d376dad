//! What the core knows, as the wire shows it; and the parameters that a client sends.

use a2a_pb::protojson_conv::{self, ProtoJsonPayload};
use serde_json::{Map, Value, json};
use towline_core::{
    AgentSpec, Artifact, BUDGET_KEY, Budget, ContextId, Event, EventKind, Labels, Message, Metadata, Part, Task,
    TaskId, TaskPage, TaskState, TaskStatus, Timestamp,
};

use super::annotations::annotations;
use super::{
    artifact_to_sdk, make_integers, message_to_sdk, metadata_to_sdk, part_to_sdk, requests::page_token, sort_maps,
    state_to_sdk, time_to_sdk,
};
use crate::{
    AGENT_KEY, ANNOTATIONS_KEY, ASKED_OF_KEY, GENERATION_KEY, LABELS_KEY, OUTSIDE_INPUT_KEY, PROTOCOL_VERSION,
    REPLY_KEY, SendOptions, TRACE_KEY, WireError,
};

/// How much of a task is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskView {
    /// The last so many messages; `None` for all.
    pub history: Option<usize>,
    /// Whether artifacts are shown.
    pub artifacts: bool,
    /// Whether the metadata says where the task stands inside the mesh.
    pub annotated: bool,
}

impl Answer {
    /// The same, with what the configuration said of whom the task is for.
    #[must_use]
    pub fn labelled(mut self, labels: &Labels) -> Self {
        if let Answer::Task(task) = &mut self
            && !labels.is_empty()
        {
            task.metadata.insert(LABELS_KEY.to_owned(), json!(labels));
        }
        self
    }
}

impl TaskView {
    /// Everything.
    pub const WHOLE: Self = Self { history: None, artifacts: true, annotated: false };
}

/// A result that still has to be encoded. Making one from the state copies what it shows and no more, so that the state
/// is not held while ProtoJSON is written. What it names of the blob store is put in its place in between.
#[derive(Debug, Clone)]
pub enum Answer {
    /// `GetTask` and `CancelTask`.
    Task(Box<ShownTask>),
    /// `SendMessage`.
    Sent(Box<ShownTask>),
    /// `ListTasks`.
    Page(ShownPage),
    /// One frame of a stream.
    Frame(Box<ShownEvent>),
}

/// What is shown of a task.
#[derive(Debug, Clone)]
pub struct ShownTask {
    id: TaskId,
    context: ContextId,
    status: TaskStatus,
    artifacts: Option<Vec<Artifact>>,
    history: Vec<Message>,
    metadata: Metadata,
}

/// One page of tasks.
#[derive(Debug, Clone)]
pub struct ShownPage {
    tasks: Vec<ShownTask>,
    next: Option<(Timestamp, TaskId)>,
    page_size: usize,
    total: usize,
}

/// One event, or the task as it stands.
#[derive(Debug, Clone)]
pub enum ShownEvent {
    /// The task.
    Task(ShownTask),
    /// An event of it.
    Update {
        /// The task.
        task: TaskId,
        /// Its context.
        context: ContextId,
        /// The event.
        event: Event,
    },
}

impl Answer {
    /// The result as it goes over the wire.
    ///
    /// # Errors
    /// When it cannot be encoded: a bug.
    pub fn encode(&self) -> Result<Value, WireError> {
        match self {
            Answer::Task(task) => encode(&task.to_sdk()),
            Answer::Sent(task) => encode(&task.to_sent()),
            Answer::Page(page) => encode(&page.to_sdk()).map(with_required_of_page),
            Answer::Frame(event) => encode(&event.to_sdk()),
        }
    }

    /// Every part that it shows, and the task that it belongs to.
    pub fn parts_mut(&mut self) -> Vec<(TaskId, &mut Part)> {
        match self {
            Answer::Task(task) | Answer::Sent(task) => task.parts_mut().collect(),
            Answer::Page(page) => page.tasks.iter_mut().flat_map(ShownTask::parts_mut).collect(),
            Answer::Frame(event) => event.parts_mut(),
        }
    }
}

impl ShownTask {
    fn of(task: &Task, view: TaskView) -> Self {
        let mut metadata = task_metadata(task, task.generation);
        if view.annotated {
            metadata.insert(ANNOTATIONS_KEY.to_owned(), annotations(task));
        }
        let skipped = view.history.map_or(0, |length| task.history.len().saturating_sub(length));
        Self {
            id: task.id,
            context: task.context.clone(),
            status: task.status.clone(),
            artifacts: view.artifacts.then(|| task.artifacts.clone()),
            history: task.history.iter().skip(skipped).cloned().collect(),
            metadata,
        }
    }

    /// Event 1 of a task: the task as it was accepted, with its first message.
    fn as_created(task: &Task) -> Self {
        Self {
            id: task.id,
            context: task.context.clone(),
            status: TaskStatus { state: TaskState::Submitted, message: None, at: task.created },
            artifacts: None,
            history: task.history.first().cloned().into_iter().collect(),
            metadata: task_metadata(task, 1),
        }
    }

    fn parts_mut(&mut self) -> impl Iterator<Item = (TaskId, &mut Part)> {
        let status = self.status.message.iter_mut().flat_map(|message| &mut message.parts);
        let history = self.history.iter_mut().flat_map(|message| &mut message.parts);
        let artifacts = self.artifacts.iter_mut().flatten().flat_map(|artifact| &mut artifact.parts);
        let id = self.id;
        status.chain(history).chain(artifacts).map(move |part| (id, part))
    }

    /// A plain reply is a message; everything else is the task.
    fn to_sent(&self) -> a2a::SendMessageResponse {
        let is_reply = |message: &&Message| message.metadata.contains_key(REPLY_KEY);
        match self.status.message.as_ref().filter(is_reply) {
            Some(reply) if self.status.state == TaskState::Completed => {
                a2a::SendMessageResponse::Message(message_to_sdk(reply, Some((self.id, &self.context))))
            }
            Some(_) | None => a2a::SendMessageResponse::Task(self.to_sdk()),
        }
    }

    fn to_sdk(&self) -> a2a::Task {
        let place = Some((self.id, &self.context));
        a2a::Task {
            id: self.id.to_string(),
            context_id: self.context.to_string(),
            status: status_to_sdk(&self.status, self.id, &self.context),
            artifacts: self.artifacts.as_ref().map(|artifacts| artifacts.iter().map(artifact_to_sdk).collect()),
            history: Some(self.history.iter().map(|message| message_to_sdk(message, place)).collect()),
            metadata: metadata_to_sdk(&self.metadata),
        }
    }
}

impl ShownPage {
    fn to_sdk(&self) -> a2a::ListTasksResponse {
        let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        a2a::ListTasksResponse {
            tasks: self.tasks.iter().map(ShownTask::to_sdk).collect(),
            next_page_token: self.next.map(page_token).unwrap_or_default(),
            page_size: count(self.page_size),
            total_size: count(self.total),
        }
    }
}

impl ShownEvent {
    fn parts_mut(&mut self) -> Vec<(TaskId, &mut Part)> {
        match self {
            ShownEvent::Task(task) => task.parts_mut().collect(),
            ShownEvent::Update { task, event, .. } => {
                let parts = match &mut event.kind {
                    EventKind::Created => None,
                    EventKind::Status { status, .. } => status.message.as_mut().map(|message| &mut message.parts),
                    EventKind::Artifact { parts, .. } => Some(parts),
                };
                parts.into_iter().flatten().map(|part| (*task, part)).collect()
            }
        }
    }

    fn to_sdk(&self) -> a2a::StreamResponse {
        match self {
            ShownEvent::Task(task) => a2a::StreamResponse::Task(task.to_sdk()),
            ShownEvent::Update { task, context, event } => update_to_sdk(*task, context, event),
        }
    }
}

fn update_to_sdk(task: TaskId, context: &ContextId, event: &Event) -> a2a::StreamResponse {
    let status_update = |status: &TaskStatus, metadata: &Metadata| {
        a2a::StreamResponse::StatusUpdate(a2a::TaskStatusUpdateEvent {
            task_id: task.to_string(),
            context_id: context.to_string(),
            status: status_to_sdk(status, task, context),
            metadata: metadata_to_sdk(&with_generation(metadata, event.index)),
        })
    };
    match &event.kind {
        EventKind::Created => {
            let status = TaskStatus { state: TaskState::Submitted, message: None, at: event.at };
            status_update(&status, &Metadata::new())
        }
        EventKind::Status { status, metadata } => status_update(status, metadata),
        EventKind::Artifact { artifact_id, name, parts, append, last_chunk, metadata } => {
            a2a::StreamResponse::ArtifactUpdate(a2a::TaskArtifactUpdateEvent {
                task_id: task.to_string(),
                context_id: context.to_string(),
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
    }
}

/// A task, as `GetTask` and `CancelTask` answer it.
pub fn task(task: &Task, view: TaskView) -> Answer {
    Answer::Task(Box::new(ShownTask::of(task, view)))
}

/// The answer to `SendMessage`.
pub fn send_result(task: &Task, view: TaskView) -> Answer {
    Answer::Sent(Box::new(ShownTask::of(task, view)))
}

/// One page, as `ListTasks` answers it.
pub fn list_result(page: &TaskPage, page_size: usize, view: TaskView) -> Answer {
    let tasks = page.tasks.iter().map(|task| ShownTask::of(task, view)).collect();
    Answer::Page(ShownPage { tasks, next: page.next, page_size, total: page.total })
}

/// The task as it stands, as the first frame of a stream.
pub fn snapshot(task: &Task, view: TaskView) -> Answer {
    Answer::Frame(Box::new(ShownEvent::Task(ShownTask::of(task, view))))
}

/// One event of a task, as every stream shows it.
pub fn event(task: &Task, event: &Event) -> Answer {
    Answer::Frame(Box::new(match &event.kind {
        EventKind::Created => ShownEvent::Task(ShownTask::as_created(task)),
        EventKind::Status { .. } | EventKind::Artifact { .. } => {
            ShownEvent::Update { task: task.id, context: task.context.clone(), event: event.clone() }
        }
    }))
}

/// All fields of a page are required, and ProtoJSON leaves out what is empty or zero.
fn with_required_of_page(mut page: Value) -> Value {
    if let Value::Object(fields) = &mut page {
        fields.entry("tasks").or_insert_with(|| json!([]));
        fields.entry("totalSize").or_insert_with(|| json!(0));
    }
    page
}

/// Where an agent is reached, by binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints {
    /// URL of JSON-RPC.
    pub json_rpc: String,
    /// Base URL of HTTP+JSON.
    pub http_json: String,
    /// `host:port` of gRPC, where it can be reached.
    pub grpc: Option<String>,
    /// What a gRPC client names the agent by, since its URL cannot.
    pub tenant: Option<String>,
}

impl Endpoints {
    /// In the order of preference: JSON-RPC streams can be resumed.
    fn interfaces(self) -> Vec<a2a::AgentInterface> {
        let interface = |url, binding: &str, tenant| a2a::AgentInterface {
            url,
            protocol_binding: binding.to_owned(),
            protocol_version: PROTOCOL_VERSION.to_owned(),
            tenant,
        };
        let over_http = [
            interface(self.json_rpc, a2a::TRANSPORT_PROTOCOL_JSONRPC, None),
            interface(self.http_json, a2a::TRANSPORT_PROTOCOL_HTTP_JSON, None),
        ];
        let over_grpc = self.grpc.map(|authority| interface(authority, a2a::TRANSPORT_PROTOCOL_GRPC, self.tenant));
        over_http.into_iter().chain(over_grpc).collect()
    }
}

/// The card of one agent, or of a mesh whose skills are its agents.
///
/// # Errors
/// When the card cannot be encoded: a bug.
pub fn card(
    name: &str,
    description: &str,
    endpoints: Endpoints,
    version: &str,
    agents: &[AgentSpec],
) -> Result<Value, WireError> {
    let text = || vec!["text/plain".to_owned(), "application/json".to_owned()];
    encode(&a2a::AgentCard {
        name: name.to_owned(),
        description: description.to_owned(),
        version: version.to_owned(),
        supported_interfaces: endpoints.interfaces(),
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

pub(super) fn encode<T: ProtoJsonPayload>(value: &T) -> Result<Value, WireError> {
    let mut encoded =
        protojson_conv::to_value(value).map_err(|error| WireError::internal(format!("encode: {error}")))?;
    make_integers(&mut encoded);
    sort_maps(&mut encoded, false);
    Ok(encoded)
}

fn task_metadata(task: &Task, generation: u64) -> Metadata {
    let mut metadata = Metadata::from([
        (GENERATION_KEY.to_owned(), generation.into()),
        (AGENT_KEY.to_owned(), task.agent.as_str().into()),
        (TRACE_KEY.to_owned(), task.trace.trace_id_hex().into()),
    ]);
    if task.is_outside_input() {
        metadata.insert(OUTSIDE_INPUT_KEY.to_owned(), task.outside_input.clone().into());
    }
    if let Some(mut budget) = task.budget().and_then(Budget::to_json) {
        let spent = task.spent();
        budget["spentSteps"] = spent.steps.into();
        budget["spentTokens"] = spent.tokens.into();
        metadata.insert(BUDGET_KEY.to_owned(), budget);
    }
    if let Some(to) = task.asked_of() {
        metadata.insert(ASKED_OF_KEY.to_owned(), to.into());
    }
    metadata
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

//! A client of A2A 1.0: what delegation and the command line speak. JSON-RPC, or another binding that a card prefers.
//!
//! Every call has a timeout and a bound on what it reads, and its error says whether the request may have reached the
//! other side. It never sends anything twice by itself: its caller knows what a second attempt means.

mod binding;
mod counted;
mod grpc;
mod rest;
mod socket;
mod webhooks;

use std::time::Duration;

use futures::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use towline_core::{Message, TaskState, TraceContext};

use crate::{
    EventStream, IDLE_TIMEOUT, PROTOCOL_VERSION, RemoteTask, convert,
    errors::{RETRY_INFO_TYPE, reason},
};

pub use binding::{Binding, RemoteInterface, Terms, TermsRefused, card_from_wire, mesh_extension};
pub use socket::SocketUrl;

/// Limit of a call that the peer answers at once.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Limit of a `SendMessage` that waits for the end of the task. A little more than our own server lets one wait, so that
/// its answer (the task as it stands) is what ends the call.
const BLOCKING_TIMEOUT: Duration = Duration::from_secs(330);

/// Limit of the time to the head of a stream's response.
const STREAM_HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Most bytes of an answer that is read whole: a task of the largest size that our own core allows, with room for the
/// escapes of JSON.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// What JSON-RPC is declared as.
const JSON: &str = "application/json";

/// What bodies of HTTP+JSON are declared as.
const A2A_JSON: &str = "application/a2a+json";

/// Most bytes of an error page that is shown.
const MAX_ERROR_TEXT: usize = 512;

/// Where the card of an agent is, below its base URL (spec 8.2).
const CARD_PATH: &str = "/.well-known/agent-card.json";

/// A client of one agent. Cheap to clone.
#[derive(Debug, Clone)]
pub struct A2aClient {
    http: reqwest::Client,
    endpoint: String,
    headers: HeaderMap,
    binding: Binding,
    tenant: Option<String>,
    /// Limit of a call that is answered at once, and of the time to the head of a stream.
    answers_within: Duration,
}

/// How a message is sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// Answer at once with the task, instead of when it has ended or asks for something.
    pub return_immediately: bool,
    /// How many messages of the history the answer shows.
    pub history_length: Option<u32>,
    /// The task that the message continues, where its id is not one of ours; else the message's own `task_id` counts.
    pub task_id: Option<String>,
    /// Another context than the message's own.
    pub context_id: Option<String>,
    /// Another limit than the usual one (30 s; 330 s where the call waits for the task).
    pub timeout: Option<Duration>,
}

/// The answer to a message.
#[derive(Debug, Clone, PartialEq)]
pub enum SendReply {
    /// A task.
    Task(Box<RemoteTask>),
    /// A direct answer, without a task.
    Message(Box<Message>),
}

/// Which tasks to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Only of this conversation.
    pub context_id: Option<String>,
    /// Only in this state.
    pub state: Option<TaskState>,
    /// How many on a page.
    pub page_size: Option<u32>,
    /// Where the page begins.
    pub page_token: Option<String>,
    /// How many messages of each history.
    pub history_length: Option<u32>,
    /// Whether artifacts are shown.
    pub include_artifacts: bool,
}

/// One page of a peer's tasks.
#[derive(Debug, Clone, PartialEq)]
pub struct RemotePage {
    /// The tasks.
    pub tasks: Vec<RemoteTask>,
    /// Where the next page begins, if there is one.
    pub next_page_token: Option<String>,
    /// How many tasks there are on all pages.
    pub total_size: u64,
    /// The page as the peer wrote it.
    pub raw: Value,
}

/// What an agent says of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteCard {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// Its own version.
    pub version: String,
    /// Whether it streams.
    pub streaming: bool,
    /// Id and description of each skill.
    pub skills: Vec<(String, String)>,
    /// Tags of its skills.
    pub tags: Vec<String>,
    /// Where it speaks A2A 1.x over JSON-RPC, if it does.
    pub jsonrpc_url: Option<String>,
    /// All its interfaces, in its order of preference.
    pub interfaces: Vec<RemoteInterface>,
    /// URIs of the extensions without which it does not speak.
    pub required_extensions: Vec<String>,
    /// The card as the peer wrote it.
    pub raw: Value,
}

/// Why a call did not work. The variants differ in what a second attempt means.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection: nothing was sent.
    #[error("connect to {endpoint}")]
    Unreachable {
        /// What was dialled.
        endpoint: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The connection broke after the request may have been sent: its outcome is unknown.
    #[error("connection to {endpoint} broke")]
    Broken {
        /// What was dialled.
        endpoint: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No answer in time: its outcome is unknown.
    #[error("no answer from {endpoint} within {after:?}")]
    Timeout {
        /// What was dialled.
        endpoint: String,
        /// The limit.
        after: Duration,
    },
    /// The peer does not accept the credentials, or wants some.
    #[error("{endpoint} refuses the credentials (HTTP {status})")]
    Auth {
        /// What was dialled.
        endpoint: String,
        /// 401 or 403.
        status: u16,
    },
    /// The peer answered with an error of the protocol.
    #[error("{message} (code {code})")]
    Protocol {
        /// The JSON-RPC code.
        code: i32,
        /// The peer's words.
        message: String,
        /// `reason` of its `ErrorInfo`, if it sent one.
        reason: Option<String>,
        /// When another try is worth it, if it said so.
        retry_after: Option<Duration>,
    },
    /// The peer refuses in HTTP alone, as a server does that is no agent.
    #[error("{endpoint} answers HTTP {status}{}{said}; is it an A2A agent?", if said.is_empty() { "" } else { ": " })]
    Http {
        /// What was dialled.
        endpoint: String,
        /// Neither 2xx, 401 nor 403.
        status: u16,
        /// The beginning of its words, if they are plain text.
        said: String,
    },
    /// The answer is not A2A.
    #[error("answer of {endpoint} cannot be read: {detail}")]
    Malformed {
        /// What was dialled.
        endpoint: String,
        /// What is wrong with it.
        detail: String,
    },
}

impl ClientError {
    /// Low-cardinality class for spans and the journal.
    pub fn error_type(&self) -> String {
        match self {
            ClientError::Unreachable { .. } => "unreachable".to_owned(),
            ClientError::Broken { .. } => "connection_broken".to_owned(),
            ClientError::Timeout { .. } => "timeout".to_owned(),
            ClientError::Auth { .. } => "auth".to_owned(),
            ClientError::Protocol { reason: Some(reason), .. } => reason.to_lowercase(),
            ClientError::Protocol { code, .. } => code.to_string(),
            ClientError::Http { status, .. } => status.to_string(),
            ClientError::Malformed { .. } => "malformed_answer".to_owned(),
        }
    }

    /// Whether another try may work without any change.
    pub fn is_transient(&self) -> bool {
        match self {
            ClientError::Unreachable { .. } | ClientError::Broken { .. } | ClientError::Timeout { .. } => true,
            ClientError::Protocol { retry_after, .. } => retry_after.is_some(),
            ClientError::Auth { .. } | ClientError::Http { .. } | ClientError::Malformed { .. } => false,
        }
    }

    /// Whether the peer said that it cannot decide anything at the moment (no quorum).
    pub fn is_unavailable(&self) -> bool {
        matches!(self, ClientError::Protocol { reason: Some(found), .. } if found == reason::UNAVAILABLE)
    }

    /// Whether the peer does not know the task.
    pub fn is_unknown_task(&self) -> bool {
        matches!(self, ClientError::Protocol { code: a2a::error_code::TASK_NOT_FOUND, .. })
    }

    /// Whether an answer to a call for a stream says that the peer has none: it did nothing, and may be asked without one.
    pub fn has_no_streams(&self) -> bool {
        match self {
            ClientError::Protocol { code, .. } => {
                matches!(*code, a2a::error_code::UNSUPPORTED_OPERATION | a2a::error_code::METHOD_NOT_FOUND)
            }
            ClientError::Http { status, .. } => matches!(*status, 404 | 405 | 501),
            ClientError::Unreachable { .. }
            | ClientError::Broken { .. }
            | ClientError::Timeout { .. }
            | ClientError::Auth { .. }
            | ClientError::Malformed { .. } => false,
        }
    }

    /// Whether the peer finds the request itself wrong: another try needs another request.
    pub fn is_invalid_request(&self) -> bool {
        matches!(self, ClientError::Protocol { code: a2a::error_code::INVALID_PARAMS, .. })
    }

    /// Whether the peer does not do what was asked; for a subscription: the task has ended.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, ClientError::Protocol { code: a2a::error_code::UNSUPPORTED_OPERATION, .. })
    }
}

/// A header that HTTP does not allow.
#[derive(Debug, thiserror::Error)]
#[error("header {name:?} or its value is not allowed in HTTP")]
pub struct InvalidHeader {
    name: String,
}

impl A2aClient {
    /// A client of the agent behind `endpoint`, its JSON-RPC URL such as `http://127.0.0.1:7420/agents/reader`. For a
    /// [`SocketUrl`], `http` has to be a client of that socket.
    pub fn new(http: reqwest::Client, endpoint: impl Into<String>) -> Self {
        let binding = Binding::JsonRpc;
        Self {
            http,
            endpoint: endpoint.into(),
            headers: HeaderMap::new(),
            binding,
            tenant: None,
            answers_within: CALL_TIMEOUT,
        }
    }

    /// Speaks another binding; `tenant` is named by each request. Where gRPC is spoken to a plain `http` URL, the HTTP client
    /// has to be one that speaks HTTP/2 without being asked.
    #[must_use]
    pub fn over(mut self, binding: Binding, tenant: Option<String>) -> Self {
        self.binding = binding;
        self.tenant = tenant;
        self
    }

    /// Waits this long for an answer that is due at once, and for the head of a stream.
    #[must_use]
    pub fn answers_within(mut self, limit: Duration) -> Self {
        self.answers_within = limit;
        self
    }

    /// Sends this header with every request. Its value is kept out of logs.
    ///
    /// # Errors
    /// When HTTP does not allow it.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self, InvalidHeader> {
        let invalid = || InvalidHeader { name: name.to_owned() };
        let key: HeaderName = name.parse().map_err(|_| invalid())?;
        let mut value: HeaderValue = value.parse().map_err(|_| invalid())?;
        value.set_sensitive(true);
        self.headers.insert(key, value);
        Ok(self)
    }

    /// The URL that is called.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// `SendMessage`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn send(
        &self,
        message: &Message,
        options: SendOptions,
        trace: Option<&TraceContext>,
    ) -> Result<SendReply, ClientError> {
        let usual = if options.return_immediately { self.answers_within } else { BLOCKING_TIMEOUT };
        let timeout = options.timeout.unwrap_or(usual);
        let params = self.send_params(message, &options)?;
        let raw = self.call("SendMessage", params, timeout, trace).await?;
        convert::send_reply_from_wire(raw).map_err(|detail| self.malformed(detail))
    }

    /// `SendStreamingMessage`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn stream(
        &self,
        message: &Message,
        options: SendOptions,
        trace: Option<&TraceContext>,
    ) -> Result<EventStream, ClientError> {
        let params = self.send_params(message, &options)?;
        self.open_stream("SendStreamingMessage", params, None, trace).await
    }

    /// `SubscribeToTask`. With the id of the last event that was seen, the stream goes on behind it if the peer still
    /// has what follows; else it begins with the task as it stands.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::is_unsupported`] when the task has ended.
    pub async fn subscribe(
        &self,
        task: &str,
        last_event_id: Option<u64>,
        trace: Option<&TraceContext>,
    ) -> Result<EventStream, ClientError> {
        self.open_stream("SubscribeToTask", convert::task_params(task, None), last_event_id, trace).await
    }

    /// `GetTask`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get_task(
        &self,
        task: &str,
        history_length: Option<u32>,
        trace: Option<&TraceContext>,
    ) -> Result<RemoteTask, ClientError> {
        let raw = self.call("GetTask", convert::task_params(task, history_length), self.answers_within, trace).await?;
        RemoteTask::from_wire(raw).map_err(|detail| self.malformed(detail))
    }

    /// `ListTasks`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_tasks(&self, query: &ListQuery, trace: Option<&TraceContext>) -> Result<RemotePage, ClientError> {
        let raw = self.call("ListTasks", query.params(), self.answers_within, trace).await?;
        convert::page_from_wire(raw).map_err(|detail| self.malformed(detail))
    }

    /// `CancelTask`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn cancel_task(&self, task: &str, trace: Option<&TraceContext>) -> Result<RemoteTask, ClientError> {
        let raw = self.call("CancelTask", convert::task_params(task, None), self.answers_within, trace).await?;
        RemoteTask::from_wire(raw).map_err(|detail| self.malformed(detail))
    }

    /// The agent card below `base_url`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn card(&self, base_url: &str) -> Result<RemoteCard, ClientError> {
        let url = match SocketUrl::of(base_url) {
            Some(socket) => socket.over_http(CARD_PATH),
            None => format!("{}{CARD_PATH}", base_url.trim_end_matches('/')),
        };
        let request = self.http.get(&url).headers(self.headers.clone()).header(header::ACCEPT, "application/json");
        let url = if SocketUrl::of(base_url).is_some() { base_url.to_owned() } else { url };
        let limit = self.answers_within;
        let raw = limited(&url, limit, async {
            let response = request.send().await.map_err(|error| transport_error(&url, limit, error))?;
            let response = accepted(&url, response).await?;
            read_json(&url, response).await
        })
        .await?;
        card_from_wire(raw).map_err(|detail| ClientError::Malformed { endpoint: url, detail })
    }

    fn send_params(&self, message: &Message, options: &SendOptions) -> Result<Value, ClientError> {
        convert::send_params(message, options).map_err(|error| self.malformed(error.message))
    }

    async fn call(
        &self,
        method: &str,
        params: Value,
        timeout: Duration,
        trace: Option<&TraceContext>,
    ) -> Result<Value, ClientError> {
        let params = self.with_tenant(params);
        if self.binding == Binding::Grpc {
            let call = self.grpc(trace).call(method, params);
            return limited(&self.endpoint, timeout, call).await;
        }
        let request = self.request(method, params, trace)?.header(header::ACCEPT, JSON);
        let envelope = limited(&self.endpoint, timeout, async {
            let response = request.send().await.map_err(|error| transport_error(&self.endpoint, timeout, error))?;
            let response = accepted(&self.endpoint, response).await?;
            read_json(&self.endpoint, response).await
        })
        .await?;
        if self.binding == Binding::HttpJson { Ok(envelope) } else { result_of(&self.endpoint, envelope) }
    }

    async fn open_stream(
        &self,
        method: &str,
        params: Value,
        last_event_id: Option<u64>,
        trace: Option<&TraceContext>,
    ) -> Result<EventStream, ClientError> {
        let params = self.with_tenant(params);
        let limit = self.answers_within.min(STREAM_HEAD_TIMEOUT);
        if self.binding == Binding::Grpc {
            return limited(&self.endpoint, limit, self.grpc(trace).stream(method, params, IDLE_TIMEOUT)).await;
        }
        let mut request = self.request(method, params, trace)?.header(header::ACCEPT, "text/event-stream");
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let endpoint = &self.endpoint;
        let response = limited(endpoint, limit, async {
            let response = request.send().await.map_err(|error| transport_error(endpoint, limit, error))?;
            let response = accepted(endpoint, response).await?;
            if is_event_stream(response.headers()) {
                return Ok(response);
            }
            // A stream that cannot begin is answered with one JSON-RPC error.
            let envelope = read_json(endpoint, response).await?;
            result_of(endpoint, envelope)?;
            Err(self.malformed("expected a stream of events"))
        })
        .await?;
        let (endpoint, bytes) = (endpoint.clone(), response.bytes_stream());
        Ok(match self.binding {
            Binding::HttpJson => EventStream::bare(endpoint, bytes),
            Binding::JsonRpc | Binding::Grpc => EventStream::new(endpoint, bytes),
        })
    }

    fn request(
        &self,
        method: &str,
        params: Value,
        trace: Option<&TraceContext>,
    ) -> Result<reqwest::RequestBuilder, ClientError> {
        let request = if self.binding == Binding::HttpJson {
            let made = rest::request(&socket::requested(&self.endpoint), self.tenant.as_deref(), method, params);
            let rest::Request { verb, url, body } = made.ok_or_else(|| self.malformed("the endpoint is no URL"))?;
            let request = self.http.request(verb, url);
            match body {
                Some(body) => request.header(header::CONTENT_TYPE, A2A_JSON).body(body.to_string()),
                None => request,
            }
        } else {
            let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
            self.http.post(socket::requested(&self.endpoint).as_ref()).json(&body)
        };
        Ok(request.headers(self.all_headers(trace)))
    }

    fn all_headers(&self, trace: Option<&TraceContext>) -> HeaderMap {
        let mut headers = self.headers.clone();
        headers.insert("a2a-version", HeaderValue::from_static(PROTOCOL_VERSION));
        if let Some(value) = trace.and_then(|trace| HeaderValue::try_from(trace.to_string()).ok()) {
            headers.insert("traceparent", value);
        }
        headers
    }

    fn grpc(&self, trace: Option<&TraceContext>) -> grpc::Client {
        grpc::Client::new(self.http.clone(), &self.endpoint, self.all_headers(trace))
    }

    /// HTTP+JSON names the tenant in the path.
    fn with_tenant(&self, mut params: Value) -> Value {
        if let (Some(tenant), Value::Object(fields), false) =
            (&self.tenant, &mut params, self.binding == Binding::HttpJson)
        {
            fields.insert("tenant".to_owned(), tenant.clone().into());
        }
        params
    }

    fn malformed(&self, detail: impl Into<String>) -> ClientError {
        ClientError::Malformed { endpoint: self.endpoint.clone(), detail: detail.into() }
    }
}

impl ListQuery {
    fn params(&self) -> Value {
        let mut params = serde_json::Map::new();
        let mut set = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                params.insert(key.to_owned(), value);
            }
        };
        set("contextId", self.context_id.clone().map(Value::from));
        set("status", self.state.map(|state| convert::state_name(state).into()));
        set("pageSize", self.page_size.map(Value::from));
        set("pageToken", self.page_token.clone().map(Value::from));
        set("historyLength", self.history_length.map(Value::from));
        set("includeArtifacts", self.include_artifacts.then_some(Value::Bool(true)));
        Value::Object(params)
    }
}

async fn limited<T>(
    endpoint: &str,
    after: Duration,
    call: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    match tokio::time::timeout(after, call).await {
        Ok(result) => result,
        Err(_) => Err(ClientError::Timeout { endpoint: endpoint.to_owned(), after }),
    }
}

pub(crate) fn transport_error(endpoint: &str, after: Duration, error: reqwest::Error) -> ClientError {
    // The cause of a transport error may hold the URL again, and a URL may hold a secret in its query.
    let source = error.without_url();
    let endpoint = endpoint.to_owned();
    if source.is_connect() || source.is_builder() {
        ClientError::Unreachable { endpoint, source: Box::new(source) }
    } else if source.is_timeout() {
        ClientError::Timeout { endpoint, after }
    } else {
        ClientError::Broken { endpoint, source: Box::new(source) }
    }
}

/// Lets a successful response through, and an error that carries a JSON-RPC answer.
async fn accepted(endpoint: &str, response: reqwest::Response) -> Result<reqwest::Response, ClientError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return Err(ClientError::Auth { endpoint: endpoint.to_owned(), status: status.as_u16() });
    }
    let body = read_body(endpoint, response).await?;
    if let Ok(envelope) = decoded(&body)
        && envelope.get("error").is_some_and(|error| error.get("code").is_some())
    {
        if let Some(error) = rest::error(&envelope) {
            return Err(error);
        }
        result_of(endpoint, envelope)?;
    }
    let said = String::from_utf8_lossy(&body);
    let is_markup = said.trim_start().starts_with('<');
    let said = if is_markup { String::new() } else { said.trim().chars().take(MAX_ERROR_TEXT).collect() };
    Err(ClientError::Http { endpoint: endpoint.to_owned(), status: status.as_u16(), said })
}

async fn read_json(endpoint: &str, response: reqwest::Response) -> Result<Value, ClientError> {
    let body = read_body(endpoint, response).await?;
    decoded(&body).map_err(|detail| ClientError::Malformed { endpoint: endpoint.to_owned(), detail })
}

/// The JSON that a peer wrote, if it is not too much of it; else what is wrong with it.
pub(crate) fn decoded(text: &[u8]) -> Result<Value, String> {
    convert::check_answer(text)?;
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

async fn read_body(endpoint: &str, response: reqwest::Response) -> Result<Vec<u8>, ClientError> {
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| transport_error(endpoint, CALL_TIMEOUT, error))?;
        if body.len() + chunk.len() > MAX_ANSWER_BYTES {
            let detail = format!("it is longer than {MAX_ANSWER_BYTES} bytes");
            return Err(ClientError::Malformed { endpoint: endpoint.to_owned(), detail });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The error that a frame of HTTP+JSON is, if it is one.
pub(crate) fn http_error(raw: &Value) -> Option<ClientError> {
    rest::error(raw)
}

/// The result of a JSON-RPC answer, or its error.
pub(crate) fn result_of(endpoint: &str, mut envelope: Value) -> Result<Value, ClientError> {
    if let Some(error) = envelope.get("error").filter(|error| !error.is_null()) {
        return Err(protocol_error(error));
    }
    match envelope.get_mut("result").map(Value::take) {
        Some(result) => Ok(result),
        None => Err(ClientError::Malformed {
            endpoint: endpoint.to_owned(),
            detail: "it has neither result nor error".to_owned(),
        }),
    }
}

fn protocol_error(error: &Value) -> ClientError {
    let details = error.get("data").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let of_type = |wanted: &str| {
        let found = details.iter().find(|detail| detail.get("@type").and_then(Value::as_str) == Some(wanted));
        found.cloned().unwrap_or_default()
    };
    let info = of_type(a2a::errordetails::ERROR_INFO_TYPE);
    let retry = of_type(RETRY_INFO_TYPE);
    ClientError::Protocol {
        code: error.get("code").and_then(Value::as_i64).and_then(|code| i32::try_from(code).ok()).unwrap_or(0),
        message: error.get("message").and_then(Value::as_str).unwrap_or("error without a message").to_owned(),
        reason: info.get("reason").and_then(Value::as_str).map(ToOwned::to_owned),
        retry_after: retry.get("retryDelay").and_then(Value::as_str).and_then(seconds),
    }
}

/// Protobuf's JSON form of a duration, such as `1.500s`.
fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.strip_suffix('s')?.parse().ok()?).ok()
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|value| value.trim_start().starts_with("text/event-stream"))
}

#[cfg(test)]
mod tests;

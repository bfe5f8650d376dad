//! Calls a tool: waits for the connection, sends, waits within its time, reads the answer.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use rmcp::{
    RoleClient,
    model::{
        CallToolRequest, CallToolRequestParams, CancelledNotification, CancelledNotificationParam, ClientRequest,
        InputRequest, InputRequiredResult, JsonObject, ReadResourceRequest, ReadResourceRequestParams, RequestId,
        RequestMetaObject, ServerResult,
    },
    service::{Peer, PeerRequestOptions, RequestHandle, ServiceError},
    transport::streamable_http_client::{HttpStatusError, StreamableHttpError},
};
use serde_json::{Value, json};
use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use towline_core::{Blob, Content, Metadata, Part, limits::MAX_PARTS};

use super::{
    CallError, CallEvents, CallRequest, ConnectionMsg, Live, McpHandle, Phase, Published, READ_RESOURCE, ToolResult,
    Wanted, bridged, causes,
    credentials::UNAUTHORIZED,
    elicitation,
    guards::{Closed, Sign},
    spool::{Spool, Spooled},
    text,
    underway::{Meant, Noted},
};
use crate::{config::McpServerConfig, stored};

/// How long a call waits for a connection that is being made: longer than a handshake may take.
pub(super) const WAIT_FOR_SERVER: Duration = Duration::from_secs(12);

/// A call waits for the next try to connect if that is this near; else it says at once that the server is down.
const SOON: Duration = Duration::from_secs(2);

/// A call waits this long for the time that its server asked for; a longer one is told at once.
const RATE_WAIT: Duration = Duration::from_secs(10);

/// How often a call is made again that the server did not take because it was asked too much.
const MAX_RATE_WAITS: u32 = 3;

/// Time to hand a request to the connection, whose queue is full only where the server reads nothing.
pub(super) const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Rounds of questions in one call: more are no conversation.
pub(super) const MAX_INPUT_ROUNDS: u32 = 10;

/// Questions of one round.
const MAX_INPUTS: usize = 8;

/// Longest error message of a server that is passed on, in characters.
pub(super) const MAX_ERROR_CHARS: usize = 2_000;

/// Largest block of an unknown kind that is passed on, as JSON.
const MAX_UNKNOWN_BYTES: usize = 16 * 1024;

/// Content blocks of an answer that are read: more are a list, and belong into one text or file.
const MAX_BLOCKS: usize = 1_024;

/// Largest text of an answer, in bytes: it is journaled, and fed to a model. A longer one is a file.
pub(super) const MAX_TEXT_BYTES: usize = 2 * 1024 * 1024;

/// What to do while the server is down.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// Wait for a try that is near.
    NextTry,
    /// Wait for as long as there is time, but for a server that so many tries in a row did not reach.
    Tries(u32),
}

pub(super) async fn call(
    handle: &McpHandle,
    request: CallRequest,
    cancel: CancellationToken,
) -> Result<ToolResult, CallError> {
    tokio::select! {
        biased;
        // An answer that is there counts, also when nobody waits for it any more: it says what happened.
        result = call_uncanceled(handle, &request) => result,
        () = cancel.cancelled() => Err(canceled(&request.tool)),
    }
}

/// Dropping this future tells the server that the call is canceled.
async fn call_uncanceled(handle: &McpHandle, request: &CallRequest) -> Result<ToolResult, CallError> {
    let what = format!("call {}.{}", handle.config.name, request.tool);
    let total = request.timeout.unwrap_or(handle.config.call_timeout);
    let mut waits = 0;
    loop {
        let entered = tokio::time::timeout(total, handle.guards.enter()).await;
        let busy =
            || error("server_unavailable", format!("{what}: no place for it after {total:?}, the server is busy"));
        let pass = match entered.map_err(|_| busy())? {
            Ok(pass) => pass,
            Err(Closed::Asked(left)) if left <= RATE_WAIT && waits < MAX_RATE_WAITS => {
                waits += 1;
                tokio::time::sleep(left).await;
                continue;
            }
            Err(closed) => return Err(is_closed(&what, &closed)),
        };
        let result = Box::pin(over_a_connection(handle, request)).await;
        pass.tell(sign(&result));
        match result {
            Err(error) if error.error_type == "rate_limited" && waits < MAX_RATE_WAITS => waits += 1,
            result => return result,
        }
    }
}

/// Why no call is made now.
pub(super) fn is_closed(what: &str, closed: &Closed) -> CallError {
    match closed {
        Closed::Asked(left) => {
            let left = left.as_secs_f32();
            error("rate_limited", format!("{what}: the server asked to be left alone for another {left:.1} s"))
        }
        Closed::Open(left) => {
            let left = left.as_secs_f32();
            let message = format!("{what}: the last calls were not answered; the next one is made in {left:.1} s");
            error("circuit_open", message)
        }
    }
}

/// What the end of a call says about its server.
fn sign(result: &Result<ToolResult, CallError>) -> Sign {
    result.as_ref().err().map_or(Sign::Alive, sign_of)
}

pub(super) fn sign_of(error: &CallError) -> Sign {
    match error.error_type.as_ref() {
        "timeout" | "connection_lost" | "http_error" => Sign::Silent,
        "server_unavailable" | "unknown_tool" | "canceled" => Sign::Unknown,
        _ => Sign::Alive,
    }
}

async fn over_a_connection(handle: &McpHandle, request: &CallRequest) -> Result<ToolResult, CallError> {
    let (connection, mut noted) = admitted(handle, &request.events).await?;
    let first = match attempt(handle, &connection, request, &mut noted).await {
        Ok(result) => return result,
        Err(failure) => failure,
    };
    // The request did not reach a session that knows us, so it was not carried out: once more on a new connection.
    if !first.never_arrived {
        return Err(first.error);
    }
    let mut published = handle.published.clone();
    let changed =
        tokio::time::timeout(WAIT_FOR_SERVER, published.wait_for(|now| !is_generation(now, connection.generation)));
    if !matches!(changed.await, Ok(Ok(_))) {
        return Err(first.error);
    }
    drop(noted);
    let (connection, mut noted) = admitted(handle, &request.events).await?;
    attempt(handle, &connection, request, &mut noted).await.unwrap_or_else(|failure| Err(failure.error))
}

fn is_generation(published: &Published, generation: u64) -> bool {
    matches!(&published.phase, Phase::Ready(live) if live.generation == generation)
}

/// An attempt that failed below the protocol.
pub(super) struct Failure {
    pub error: CallError,
    pub never_arrived: bool,
}

/// Why a call is not made at all: what the server did not offer is not asked of it, whatever it would say to that.
fn refusal(handle: &McpHandle, live: &Live, request: &CallRequest) -> Option<CallError> {
    let (server, tool) = (&handle.config.name, &request.tool);
    if request.tool == READ_RESOURCE {
        let message = || format!("read a resource of {server}: the server has none");
        return (!live.capabilities.resources).then(|| error("capability_missing", message()));
    }
    let published = handle.published.borrow();
    if published.tools.iter().any(|known| known.tool == *tool) {
        return None;
    }
    if published.changed.contains_key(tool) {
        let message = format!(
            "call {server}.{tool}: it is not what it was when it was listed first, and on_change of the server is block: \
             look at it, and agree with `towline mcp accept {server}`"
        );
        return Some(error("tool_changed", message));
    }
    let hidden = if handle.config.allow.is_empty() { "" } else { ", or allow of the server leaves it out" };
    Some(error("unknown_tool", format!("call {server}.{tool}: the server has no such tool{hidden}")))
}

/// One request over one connection. The outer error is a broken connection, which the actor is told of.
async fn attempt(
    handle: &McpHandle,
    live: &Live,
    request: &CallRequest,
    noted: &mut Noted,
) -> Result<Result<ToolResult, CallError>, Failure> {
    if let Some(error) = refusal(handle, live, request) {
        return Ok(Err(error));
    }
    let is_read = request.tool == READ_RESOURCE;
    let service_error = match exchange(handle, live, request, noted).await {
        Ok(result) => {
            let result = read_result(result, &handle.spool).await;
            if result.as_ref().is_ok_and(|result| !is_read && says_unknown(result, &request.tool)) {
                // It has other tools than it listed.
                let _ = handle.actor.cast(ConnectionMsg::ListsChanged { generation: live.generation });
                let message =
                    format!("call {}.{}: the server no longer has this tool", handle.config.name, request.tool);
                return Ok(Err(error("unknown_tool", message)));
            }
            return Ok(result);
        }
        Err(service_error) => service_error,
    };
    if let ServiceError::McpError(data) = &service_error
        && is_read
        && matches!(data.code.0, RESOURCE_MISSING | INVALID_PARAMS)
    {
        let said = text::plain(&data.message, MAX_ERROR_CHARS);
        let text = format!("there is no such resource: {said}");
        let answer = Value::Null;
        return Ok(Ok(ToolResult { text, structured: None, files: Vec::new(), is_error: true, answer }));
    }
    let what = format!("call {}.{}", handle.config.name, request.tool);
    let failure = failed(handle, live, &what, &service_error);
    let is_refused = http_status(&service_error).is_some() || unauthorized(&service_error).is_some();
    if is_broken(&service_error) && !is_refused { Err(failure) } else { Ok(Err(failure.error)) }
}

/// What a failure comes to. The actor is told of a connection that broke.
pub(super) fn failed(handle: &McpHandle, live: &Live, what: &str, service_error: &ServiceError) -> Failure {
    if let Some(status) = http_status(service_error) {
        return Failure { error: refused_by_status(handle, what, status), never_arrived: false };
    }
    if let Some(why) = unauthorized(service_error) {
        let error = error("unauthorized", text::plain(&format!("{what}: {why}"), MAX_ERROR_CHARS));
        return Failure { error, never_arrived: false };
    }
    let mut error = call_error(what, service_error);
    if !is_broken(service_error) {
        return Failure { error, never_arrived: false };
    }
    let never_arrived = never_arrived(service_error);
    error.may_have_happened = !never_arrived;
    // The actor learns of it in its turn; until then no other call goes that way.
    handle.broken.fetch_max(live.generation, Ordering::Relaxed);
    let suspicion = ConnectionMsg::Suspect { generation: live.generation, reason: error.message.clone() };
    // A stopped actor has nothing to reconnect.
    let _ = handle.actor.cast(suspicion);
    Failure { error, never_arrived }
}

/// Codes of a resource that is not there: up to 2025-11-25, and since.
const RESOURCE_MISSING: i32 = -32002;
const INVALID_PARAMS: i32 = -32602;

/// Some servers say in the text of a result that they have no such tool: that is no observation of a tool that ran.
fn says_unknown(result: &ToolResult, tool: &str) -> bool {
    let text = &result.text;
    result.is_error
        && text.starts_with("MCP error -32602:")
        && text.contains(tool)
        && (text.contains("not found") || text.contains("Unknown tool"))
}

/// The server, or who stands before it, is asked too much or fails; the connection stands.
fn refused_by_status(handle: &McpHandle, what: &str, status: &HttpStatusError) -> CallError {
    if status.status == 429 {
        let wait = handle.guards.asked_for(status.retry_after.as_deref()).as_secs_f32();
        return error("rate_limited", format!("{what}: the server is asked too much, and wants {wait:.1} s"));
    }
    if status.retry_after.is_some() {
        handle.guards.asked_for(status.retry_after.as_deref());
    }
    let message = format!("{what}: the server answered HTTP {}", status.status);
    CallError { may_have_happened: true, ..error("http_error", message) }
}

/// The status that a call was refused with, where it is one of trouble.
fn http_status(failure: &ServiceError) -> Option<&HttpStatusError> {
    let ServiceError::TransportSend(transport) = failure else { return None };
    let refused = transport.error.downcast_ref::<StreamableHttpError<reqwest::Error>>()?;
    if let StreamableHttpError::HttpStatus(status) = refused { Some(status) } else { None }
}

/// Why the server did not carry a call out, where it does not take who asks; the connection stands.
fn unauthorized(failure: &ServiceError) -> Option<&str> {
    let ServiceError::TransportSend(transport) = failure else { return None };
    let refused = transport.error.downcast_ref::<StreamableHttpError<reqwest::Error>>()?;
    let StreamableHttpError::UnexpectedServerResponse(why) = refused else { return None };
    why.starts_with(UNAUTHORIZED).then_some(why.as_ref())
}

/// Sends, and waits for the answer, through as many rounds of questions as the server has.
async fn exchange(
    handle: &McpHandle,
    live: &Live,
    request: &CallRequest,
    noted: &mut Noted,
) -> Result<ServerResult, ServiceError> {
    let mut clock = Clock::new(handle, request);
    let mut answers = (BTreeMap::new(), None);
    for _ in 0..MAX_INPUT_ROUNDS {
        let answer = one_round(live, request, answers, (noted, &mut clock)).await?;
        let ServerResult::InputRequiredResult(required) = answer else { return Ok(answer) };
        if !handle.config.elicitation && handle.config.asks.is_none() {
            return Ok(ServerResult::InputRequiredResult(required));
        }
        let begun = Instant::now();
        answers = (answered(&handle.config, live, &required, noted.meant()).await, required.request_state);
        clock.total += begun.elapsed();
    }
    Err(ServiceError::UnexpectedResponse)
}

/// What a person, or the agent behind a bridge, says to the questions of a result. What nobody may be asked is not answered.
pub(super) async fn answered(
    config: &McpServerConfig,
    live: &Live,
    required: &InputRequiredResult,
    meant: Meant,
) -> BTreeMap<String, Value> {
    let mut answers = BTreeMap::new();
    for (key, input) in required.input_requests.iter().flatten().take(MAX_INPUTS) {
        let answer = match input {
            InputRequest::Elicitation(asked) if config.elicitation => {
                let result = elicitation::ask(&config.name, &live.underway, meant, &asked.params).await;
                serde_json::to_value(result).ok()
            }
            InputRequest::Elicitation(_) => None,
            InputRequest::CreateMessage(asked) => {
                let wanted = Wanted::Completion(serde_json::to_value(&asked.params).unwrap_or_default());
                bridged::ask(config, &live.underway, meant, key, wanted).await.ok()
            }
            InputRequest::ListRoots(_) => bridged::ask(config, &live.underway, meant, key, Wanted::Roots).await.ok(),
            // Kinds of later revisions.
            _ => None,
        };
        answers.extend(answer.map(|answer| (key.clone(), answer)));
    }
    answers
}

/// The time of a call: that without a word, and that for everything.
pub(super) struct Clock {
    idle: Duration,
    /// The end of all; later by what people took to answer.
    pub total: Instant,
    limit: Duration,
}

impl Clock {
    pub fn new(handle: &McpHandle, request: &CallRequest) -> Self {
        let limit = request.timeout.unwrap_or(handle.config.call_timeout);
        Self { idle: handle.config.idle_timeout.min(limit), total: Instant::now() + limit, limit }
    }
}

async fn one_round(
    live: &Live,
    request: &CallRequest,
    (responses, state): (BTreeMap<String, Value>, Option<String>),
    (noted, clock): (&mut Noted, &mut Clock),
) -> Result<ServerResult, ServiceError> {
    let responses = (!responses.is_empty()).then_some(responses);
    let message = if request.tool == READ_RESOURCE {
        let uri = request.arguments["uri"].as_str().unwrap_or_default();
        let mut params = ReadResourceRequestParams::new(uri);
        (params.input_responses, params.request_state) = (responses, state);
        ClientRequest::ReadResourceRequest(ReadResourceRequest::new(params))
    } else {
        let mut params = CallToolRequestParams::new(request.tool.clone());
        params.arguments = arguments(&request.arguments);
        (params.input_responses, params.request_state) = (responses, state);
        ClientRequest::CallToolRequest(CallToolRequest::new(params))
    };
    let mut options = PeerRequestOptions::no_options();
    options.meta = Some(meta(request, live));
    let sent = send(live, message, options, noted).await?;
    let guard = CancelOnDrop { peer: live.peer.clone(), id: Some(sent.id.clone()) };
    let answer = await_answer(sent, noted, clock).await;
    guard.disarm();
    answer
}

/// Sends a request of a call.
pub(super) async fn send(
    live: &Live,
    message: ClientRequest,
    options: PeerRequestOptions,
    noted: &mut Noted,
) -> Result<RequestHandle<RoleClient>, ServiceError> {
    noted.sends();
    let sending = live.peer.send_request_with_option(message, options);
    let late = |_| ServiceError::Timeout { timeout: SEND_TIMEOUT };
    let sent = tokio::time::timeout(SEND_TIMEOUT, sending).await.map_err(late)?;
    match &sent {
        Ok(sent) => noted.sent(sent.id.clone(), sent.progress_token.clone()),
        Err(failure) if is_refused(failure) => noted.over(),
        Err(_) => {}
    }
    sent
}

/// Waits for the answer. Every word of progress gives the call its idle time anew; while a person is asked no time runs.
pub(super) async fn await_answer(
    mut sent: RequestHandle<RoleClient>,
    noted: &mut Noted,
    clock: &mut Clock,
) -> Result<ServerResult, ServiceError> {
    let mut idle = Instant::now() + clock.idle;
    let mut asking_since = None;
    let timeout = loop {
        let end = if asking_since.is_some() { None } else { Some(idle.min(clock.total)) };
        let over = async {
            match end {
                Some(end) => tokio::time::sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            answer = &mut sent.rx => {
                let answer = answer.map_err(|_| ServiceError::TransportClosed)?;
                // Else it may go on at the server.
                if answer.as_ref().err().is_none_or(is_refused) {
                    noted.over();
                }
                return answer;
            }
            Ok(()) = noted.pulse.changed() => {
                let pulse = *noted.pulse.borrow_and_update();
                let now = Instant::now();
                idle = now + clock.idle;
                match (pulse.asking > 0, asking_since) {
                    (true, None) => asking_since = Some(now),
                    (false, Some(since)) => {
                        clock.total += now - since;
                        asking_since = None;
                    }
                    (true, Some(_)) | (false, None) => {}
                }
            }
            () = over => break if idle < clock.total { clock.idle } else { clock.limit },
        }
    };
    // The server may be gone, and then nothing runs there.
    let canceling = sent.cancel(Some("the time of the call is over".to_owned()));
    let _ = tokio::time::timeout(SEND_TIMEOUT, canceling).await;
    Err(ServiceError::Timeout { timeout })
}

/// Whether the server has refused a call, or never saw it: nothing of it goes on there.
fn is_refused(failure: &ServiceError) -> bool {
    let is_said = matches!(failure, ServiceError::McpError(_)) || unauthorized(failure).is_some();
    is_said || never_arrived(failure) || http_status(failure).is_some_and(|refused| refused.status == 429)
}

fn arguments(arguments: &Value) -> Option<JsonObject> {
    arguments.as_object().cloned()
}

pub(super) fn meta(request: &CallRequest, live: &Live) -> RequestMetaObject {
    let trace_state = (!request.trace_state.is_empty()).then(|| ("tracestate", request.trace_state.clone()));
    let entries = [
        ("traceparent", request.trace.to_string()),
        ("dev.towline/idempotency_key", request.idempotency_key.clone()),
        ("dev.towline/task", request.task.to_string()),
        ("dev.towline/step", request.step.to_string()),
        ("dev.towline/attempt", request.attempt.to_string()),
    ];
    let entries = entries.into_iter().chain(trace_state);
    let mut object: JsonObject = entries.map(|(key, value)| (key.to_owned(), Value::String(value))).collect();
    if live.is_stateless && live.capabilities.logging {
        // Without it such a server says nothing.
        object.insert("io.modelcontextprotocol/logLevel".to_owned(), Value::String("info".to_owned()));
    }
    if !request.labels.is_empty() {
        let labels = request.labels.iter().map(|(name, value)| (name.clone(), Value::String(value.clone())));
        object.insert("dev.towline/labels".to_owned(), Value::Object(labels.collect()));
    }
    RequestMetaObject::from(object)
}

/// Tells the server that a request is canceled when the one who waits for it goes away.
pub(super) struct CancelOnDrop {
    pub peer: Peer<RoleClient>,
    pub id: Option<RequestId>,
}

impl CancelOnDrop {
    pub fn disarm(mut self) {
        self.id = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let peer = self.peer.clone();
        runtime.spawn(async move {
            let params = CancelledNotificationParam::new(Some(id), Some("the task no longer needs it".to_owned()));
            // The server may be gone, and then nothing runs there.
            let _ = peer.send_notification(CancelledNotification::new(params).into()).await;
        });
    }
}

/// Begins a call over a connection that stands, and takes it.
pub(super) async fn admitted(handle: &McpHandle, events: &CallEvents) -> Result<(Arc<Live>, Noted), CallError> {
    let deadline = Instant::now() + WAIT_FOR_SERVER;
    loop {
        let live = live(handle, deadline.saturating_duration_since(Instant::now()), Patience::NextTry).await?;
        let late = |_| unavailable(&handle.config.name, "it is being connected anew");
        if let Some(noted) = tokio::time::timeout_at(deadline, live.underway.admit(events)).await.map_err(late)? {
            return Ok((live, noted));
        }
        let mut published = handle.published.clone();
        let is_another = published.wait_for(|now| !is_generation(now, live.generation));
        let ended = |_| unavailable(&handle.config.name, "the connection is closed");
        tokio::time::timeout_at(deadline, is_another).await.map_err(late)?.map_err(ended)?;
    }
}

/// Waits for a connection that stands, and is none that a call has seen break.
pub(super) async fn live(handle: &McpHandle, within: Duration, patience: Patience) -> Result<Arc<Live>, CallError> {
    let (mut published, name) = (handle.published.clone(), &handle.config.name);
    let deadline = Instant::now() + within;
    loop {
        let phase = published.borrow_and_update().phase.clone();
        match phase {
            Phase::Ready(live) if live.generation > handle.broken.load(Ordering::Relaxed) => return Ok(live),
            Phase::Waiting { reason, next_try: None, .. } => {
                return Err(unavailable(name, &format!("{reason}; it is not connected again")));
            }
            Phase::Waiting { reason, next_try: Some(next_try), failures } => {
                let wait = next_try.saturating_duration_since(std::time::Instant::now());
                let given_up = match patience {
                    Patience::NextTry => wait > SOON,
                    Patience::Tries(most) => failures >= most,
                };
                if given_up || Instant::now() >= deadline {
                    return Err(unavailable(name, &format!("{reason}; next try in {:.1} s", wait.as_secs_f32())));
                }
            }
            Phase::Ready(_) | Phase::Connecting if Instant::now() >= deadline => {
                return Err(unavailable(name, "it is still connecting"));
            }
            Phase::Ready(_) | Phase::Connecting => {}
        }
        if let Ok(Err(_)) = tokio::time::timeout_at(deadline, published.changed()).await {
            return Err(unavailable(name, "the connection is closed"));
        }
    }
}

fn unavailable(name: &str, why: &str) -> CallError {
    error("server_unavailable", format!("MCP server {name} is not there: {why}"))
}

pub(super) fn canceled(tool: &str) -> CallError {
    error("canceled", format!("call {tool}: canceled"))
}

pub(super) fn error(error_type: &'static str, message: String) -> CallError {
    CallError { error_type: Cow::Borrowed(error_type), message, may_have_happened: false }
}

/// Sorts what rmcp reports. A JSON-RPC error keeps its code, as the conventions for spans ask.
#[expect(clippy::wildcard_enum_match_arm, reason = "rmcp may add kinds; none of the rest has a class of its own")]
pub(super) fn call_error(what: &str, failure: &ServiceError) -> CallError {
    let error_type: Cow<'static, str> = match failure {
        ServiceError::McpError(data) => data.code.0.to_string().into(),
        ServiceError::Timeout { .. } => "timeout".into(),
        ServiceError::Cancelled { .. } => "canceled".into(),
        ServiceError::TransportSend(_) | ServiceError::TransportClosed => "connection_lost".into(),
        _ => "malformed_response".into(),
    };
    let message = text::plain(&format!("{what}: {}", causes::of_request(failure)), MAX_ERROR_CHARS);
    CallError { error_type, message, may_have_happened: false }
}

fn is_broken(failure: &ServiceError) -> bool {
    matches!(failure, ServiceError::TransportSend(_) | ServiceError::TransportClosed)
}

/// Whether the server cannot have seen the request: nobody listened, or it knew no such session.
pub(super) fn never_arrived(failure: &ServiceError) -> bool {
    let ServiceError::TransportSend(transport) = failure else { return false };
    match transport.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        Some(StreamableHttpError::SessionExpired) => true,
        Some(StreamableHttpError::Client(client)) => client.is_connect(),
        Some(_) | None => false,
    }
}

/// Reads the answer as JSON, so that a content block of an unknown kind does not spoil the others. Large files and texts are
/// on a majority of the voters when it returns.
pub(super) async fn read_result(result: ServerResult, spool: &Spool) -> Result<ToolResult, CallError> {
    let malformed = |why: &str| error("malformed_response", format!("read the tool's answer: {why}"));
    if matches!(result, ServerResult::InputRequiredResult(_)) {
        let message = "the tool asks for input, which is not offered: set elicitation: true for its server";
        return Err(error("input_required", message.into()));
    }
    let Ok(mut answer) = serde_json::to_value(&result) else { return Err(malformed("it is no JSON")) };
    drop(result);
    contents_as_blocks(&mut answer);
    bound_blocks(&mut answer);
    let mut large = Large::claim(spool, &answer)?;
    let mut files = Vec::new();
    if let Some(blocks) = answer.get_mut("content").and_then(Value::as_array_mut) {
        for block in blocks {
            let Some(file) = file_of(block, &mut large)? else { continue };
            if files.len() == MAX_PARTS {
                return Err(error("too_large", format!("the tool's answer has more than {MAX_PARTS} files")));
            }
            files.push(file);
        }
    }
    large.nothing_left()?;
    let structured = answer.get("structuredContent").filter(|value| !value.is_null()).cloned();
    let is_error = answer.get("isError").and_then(Value::as_bool).unwrap_or(false);
    let blocks = answer.get("content").and_then(Value::as_array);
    if blocks.is_none() && structured.is_none() && !answer.as_object().is_some_and(serde_json::Map::is_empty) {
        return Err(malformed("it has no content"));
    }
    let mut text = blocks.into_iter().flatten().map(block_text).collect::<Vec<_>>().join("\n");
    if let (true, Some(structured)) = (text.is_empty(), &structured) {
        text = structured.to_string();
    }
    if text.len() > MAX_TEXT_BYTES {
        return Err(error(
            "too_large",
            format!("the tool's answer has {} bytes, {MAX_TEXT_BYTES} are read", text.len()),
        ));
    }
    hold(spool, &files).await?;
    Ok(ToolResult { text, structured, files, is_error, answer })
}

/// A resource that was read looks like an answer that has it.
fn contents_as_blocks(answer: &mut Value) {
    let Some(Value::Array(contents)) = answer.get_mut("contents").map(Value::take) else { return };
    let several = contents.len() > 1;
    let blocks = contents.into_iter().flat_map(|content| {
        let field = |key: &str| content[key].as_str().unwrap_or_default().to_owned();
        let is_text = content["text"].is_string();
        let head = (several && is_text).then(|| format!("[resource {} {}]", field("uri"), field("mimeType")));
        let head = head.map(|text| json!({ "text": text, "type": "text" }));
        head.into_iter().chain([json!({ "resource": content, "type": "resource" })])
    });
    *answer = json!({ "content": blocks.collect::<Vec<_>>() });
}

/// Leaves out the blocks beyond the bound, and says so in the last one.
fn bound_blocks(answer: &mut Value) {
    let Some(blocks) = answer.get_mut("content").and_then(Value::as_array_mut) else { return };
    if blocks.len() > MAX_BLOCKS {
        let note = format!("[{} blocks more are left out: {MAX_BLOCKS} are read]", blocks.len() - MAX_BLOCKS);
        blocks.truncate(MAX_BLOCKS);
        blocks.push(json!({ "text": note, "type": "text" }));
    }
}

/// What lies beside an answer.
struct Large(BTreeMap<String, Spooled>);

impl Large {
    /// What was not kept fails the call.
    fn claim(spool: &Spool, answer: &Value) -> Result<Self, CallError> {
        let claimed = spool.claim(answer);
        match claimed.values().find_map(Spooled::refusal) {
            Some((error_type, why)) => Err(error(error_type, format!("read the tool's answer: {why}"))),
            None => Ok(Self(claimed)),
        }
    }

    fn take(&mut self, text: &str) -> Option<Blob> {
        match self.0.remove(text)? {
            Spooled::Kept(blob) => Some(blob),
            Spooled::Refused { .. } => None,
        }
    }

    /// A long string that is neither a file nor a text is none that could be shown.
    fn nothing_left(&self) -> Result<(), CallError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let message = format!("the tool's answer has a string of more than {MAX_TEXT_BYTES} bytes that is no file");
        Err(error("too_large", message))
    }
}

/// Has a majority of the voters hold what lies beside the answer.
async fn hold(spool: &Spool, files: &[Part]) -> Result<(), CallError> {
    let Some(cluster) = spool.cluster() else { return Ok(()) };
    for blob in files.iter().filter_map(Part::blob) {
        let held = stored::held(cluster, blob).await;
        held.map_err(|cause| error("not_kept", format!("the tool has answered, and its file is not kept: {cause}")))?;
    }
    Ok(())
}

/// The file that a content block is. A text that is too long for a model is one as well, and the block says so.
fn file_of(block: &mut Value, large: &mut Large) -> Result<Option<Part>, CallError> {
    if let Some(at) = ["/text", "/resource/text"].into_iter().find(|at| block.pointer(at).is_some()) {
        let Some(blob) = block.pointer(at).and_then(Value::as_str).and_then(|text| large.take(text)) else {
            return Ok(None);
        };
        let file = part(Content::Blob(blob), field(block, "/resource/mimeType"), field(block, "/resource/uri"));
        let note = format!("[a text of {} bytes, too long to be shown: it is an artifact of the task]", blob.length);
        if let Some(text) = block.pointer_mut(at) {
            *text = Value::String(note);
        }
        return Ok(Some(file));
    }
    let Some((data, media_type, uri)) = file_block(block) else { return Ok(None) };
    if let Some(blob) = large.take(data) {
        let file = part(Content::Blob(blob), media_type, uri);
        for at in ["/data", "/resource/blob"] {
            if let Some(token) = block.pointer_mut(at) {
                *token = Value::String(String::new());
            }
        }
        return Ok(Some(file));
    }
    let Ok(content) = BASE64.decode(data) else {
        return Err(error("malformed_response", "read the tool's answer: a file is not base64".to_owned()));
    };
    Ok(Some(part(Content::Raw(content), media_type, uri)))
}

fn part(content: Content, media_type: Option<&str>, uri: Option<&str>) -> Part {
    let filename = uri.and_then(|uri| uri.rsplit('/').next()).filter(|name| !name.is_empty()).map(str::to_owned);
    Part { content, media_type: media_type.map(str::to_owned), filename, metadata: Metadata::new() }
}

fn field<'a>(block: &'a Value, path: &str) -> Option<&'a str> {
    block.pointer(path).and_then(Value::as_str)
}

/// Base64, media type and URI of a block that is a file.
fn file_block(block: &Value) -> Option<(&str, Option<&str>, Option<&str>)> {
    let field = |path| field(block, path);
    match field("/type")? {
        "image" | "audio" => Some((field("/data")?, field("/mimeType"), None)),
        "resource" => Some((field("/resource/blob")?, field("/resource/mimeType"), field("/resource/uri"))),
        _ => None,
    }
}

/// The text of a content block; what is no text is named.
fn block_text(block: &Value) -> String {
    let field = |path: &str| block.pointer(path).and_then(Value::as_str).unwrap_or_default();
    match field("/type") {
        "text" => field("/text").to_owned(),
        "resource" if block.pointer("/resource/text").is_some() => field("/resource/text").to_owned(),
        "resource" => format!("[resource {} {}]", field("/resource/uri"), field("/resource/mimeType")),
        "resource_link" => format!("[resource link {} {}]", field("/uri"), field("/name")),
        kind @ ("image" | "audio") => format!("[{kind} {}]", field("/mimeType")),
        kind => {
            let whole = block.to_string();
            if whole.len() <= MAX_UNKNOWN_BYTES { whole } else { format!("[{kind}, {} bytes]", whole.len()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmcp::model::CustomResult;
    use serde_json::json;

    fn read(answer: Value) -> Result<ToolResult, CallError> {
        let result = ServerResult::CustomResult(CustomResult::new(answer));
        futures::executor::block_on(read_result(result, &Spool::new(None)))
    }

    #[test]
    fn an_unknown_block_does_not_spoil_the_text_beside_it() {
        let answer = json!({ "content": [{ "type": "text", "text": "a" }, { "type": "hologram" }], "isError": true });
        let result = read(answer).unwrap();
        assert_eq!((result.text.as_str(), result.is_error), ("a\n{\"type\":\"hologram\"}", true));
        let large = json!({ "content": [{ "type": "hologram", "rays": "x".repeat(20_000) }] });
        assert_eq!(read(large).unwrap().text, "[hologram, 20029 bytes]");
    }

    #[test]
    fn a_resource_of_several_parts_says_which_is_which() {
        let one = json!({ "contents": [{ "uri": "file:///a", "text": "alone" }] });
        assert_eq!(read(one).unwrap().text, "alone");
        let two = json!({ "contents": [
            { "uri": "file:///a", "mimeType": "text/plain", "text": "first" },
            { "uri": "file:///b.png", "mimeType": "image/png", "blob": "AAEC" },
        ] });
        let result = read(two).unwrap();
        assert_eq!(result.text, "[resource file:///a text/plain]\nfirst\n[resource file:///b.png image/png]");
        assert_eq!(result.files.len(), 1);
    }

    #[test]
    fn a_server_that_says_in_a_text_that_it_has_no_such_tool_is_heard() {
        let of = |text: &str, is_error| ToolResult {
            text: text.into(),
            structured: None,
            files: Vec::new(),
            is_error,
            answer: Value::Null,
        };
        assert!(says_unknown(&of("MCP error -32602: Tool look not found", true), "look"));
        assert!(!says_unknown(&of("MCP error -32602: Tool look not found", false), "look"));
        assert!(!says_unknown(&of("file look not found", true), "look"), "that is what a tool says");
    }

    #[test]
    fn structured_content_alone_is_shown_as_json() {
        assert_eq!(read(json!({ "structuredContent": { "n": 1 } })).unwrap().text, r#"{"n":1}"#);
    }

    #[test]
    fn what_is_no_text_is_a_file_beside_it() {
        let answer = json!({ "content": [
            { "type": "text", "text": "a" },
            { "type": "image", "data": "AAEC", "mimeType": "image/png" },
            { "type": "resource", "resource": { "uri": "file:///x/y.bin", "blob": "/w==", "mimeType": "a/b" } },
        ] });
        let result = read(answer).unwrap();
        assert_eq!(result.text, "a\n[image image/png]\n[resource file:///x/y.bin a/b]");
        let files: Vec<_> = result.files.iter().map(|file| (&file.content, file.filename.as_deref())).collect();
        assert_eq!(files, [(&Content::Raw(vec![0, 1, 2]), None), (&Content::Raw(vec![0xff]), Some("y.bin"))]);
        let broken = json!({ "content": [{ "type": "image", "data": "%" }] });
        assert_eq!(read(broken).unwrap_err().error_type, "malformed_response");
    }

    #[test]
    fn blocks_beyond_the_bound_are_left_out_and_that_is_said() {
        let block = json!({ "type": "text", "text": "x" });
        let result = read(json!({ "content": vec![block; MAX_BLOCKS + 7] })).unwrap();
        assert_eq!(result.text.lines().count(), MAX_BLOCKS + 1);
        assert!(result.text.ends_with("[7 blocks more are left out: 1024 are read]"), "{}", result.text);
    }

    #[test]
    fn an_answer_without_content_is_malformed() {
        assert_eq!(read(json!({ "surprise": 1 })).unwrap_err().error_type, "malformed_response");
    }
}

//! Calls a tool: waits for the connection, sends, waits within its time, reads the answer.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use rmcp::{
    RoleClient,
    model::{
        CallToolRequest, CallToolRequestParams, CancelledNotification, CancelledNotificationParam, ClientRequest,
        JsonObject, RequestId, RequestMetaObject, ServerResult,
    },
    service::{Peer, PeerRequestOptions, ServiceError},
    transport::streamable_http_client::StreamableHttpError,
};
use serde_json::Value;
use std::{
    borrow::Cow,
    collections::BTreeMap,
    error::Error,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use towline_core::{Blob, Content, Metadata, Part, limits::MAX_PARTS};

use super::{
    CallError, CallRequest, ConnectionMsg, Live, McpHandle, Phase, Published, ToolResult,
    spool::{Spool, Spooled},
};
use crate::stored;

/// How long a call waits for a connection that is being made: longer than a handshake may take.
const WAIT_FOR_SERVER: Duration = Duration::from_secs(12);

/// A call waits for the next try to connect if that is this near; else it says at once that the server is down.
const SOON: Duration = Duration::from_secs(2);

/// Progress of a call extends its time, but not beyond this many times its timeout.
const TOTAL_TIMEOUTS: u32 = 10;

/// Largest text of an answer, in bytes: it is journaled, and fed to a model. A longer one is a file.
pub(super) const MAX_TEXT_BYTES: usize = 2 * 1024 * 1024;

/// What to do while the server is down.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// Wait for a try that is near.
    NextTry,
    /// Wait for as long as there is time.
    WholeTime,
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
    let name = &handle.config.name;
    let Ok(_slot) = handle.slots.acquire().await else {
        return Err(error("server_unavailable", format!("call {name}.{}: the connection is closed", request.tool)));
    };
    let live_once = || live(handle, WAIT_FOR_SERVER, Patience::NextTry);
    let connection = live_once().await?;
    let first = match attempt(handle, &connection, request).await {
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
    let connection = live_once().await?;
    attempt(handle, &connection, request).await.unwrap_or_else(|failure| Err(failure.error))
}

fn is_generation(published: &Published, generation: u64) -> bool {
    matches!(&published.phase, Phase::Ready(live) if live.generation == generation)
}

/// An attempt that failed below the protocol.
struct Failure {
    error: CallError,
    never_arrived: bool,
}

/// One request over one connection. The outer error is a broken connection, which the actor is told of.
async fn attempt(
    handle: &McpHandle,
    live: &Live,
    request: &CallRequest,
) -> Result<Result<ToolResult, CallError>, Failure> {
    if !handle.published.borrow().tools.iter().any(|tool| tool.tool == request.tool) {
        let message = format!("call {}.{}: the server has no such tool", handle.config.name, request.tool);
        return Ok(Err(error("unknown_tool", message)));
    }
    let service_error = match exchange(handle, live, request).await {
        Ok(result) => return Ok(read_result(result, &handle.spool).await),
        Err(service_error) => service_error,
    };
    let what = format!("call {}.{}", handle.config.name, request.tool);
    let mut error = call_error(&what, &service_error);
    if !is_broken(&service_error) {
        return Ok(Err(error));
    }
    let never_arrived = never_arrived(&service_error);
    error.may_have_happened = !never_arrived;
    // The actor learns of it in its turn; until then no other call goes that way.
    handle.broken.fetch_max(live.generation, Ordering::Relaxed);
    let suspicion = ConnectionMsg::Suspect { generation: live.generation, reason: error.message.clone() };
    // A stopped actor has nothing to reconnect.
    let _ = handle.actor.cast(suspicion);
    Err(Failure { error, never_arrived })
}

async fn exchange(handle: &McpHandle, live: &Live, request: &CallRequest) -> Result<ServerResult, ServiceError> {
    let timeout = request.timeout.unwrap_or(handle.config.call_timeout);
    let mut options = PeerRequestOptions::with_timeout(timeout)
        .reset_timeout_on_progress()
        .with_max_total_timeout(timeout * TOTAL_TIMEOUTS);
    options.meta = Some(meta(request));
    let mut params = CallToolRequestParams::new(request.tool.clone());
    params.arguments = arguments(&request.arguments);
    let message = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let sent = live.peer.send_request_with_option(message, options).await?;
    let guard = CancelOnDrop { peer: live.peer.clone(), id: Some(sent.id.clone()) };
    let answer = sent.await_response().await;
    guard.disarm();
    answer
}

fn arguments(arguments: &Value) -> Option<JsonObject> {
    arguments.as_object().cloned()
}

fn meta(request: &CallRequest) -> RequestMetaObject {
    let entries = [
        ("traceparent", request.trace.to_string()),
        ("dev.towline/idempotency_key", request.idempotency_key.clone()),
        ("dev.towline/task", request.task.to_string()),
        ("dev.towline/step", request.step.to_string()),
        ("dev.towline/attempt", request.attempt.to_string()),
    ];
    let mut object: JsonObject =
        entries.into_iter().map(|(key, value)| (key.to_owned(), Value::String(value))).collect();
    if !request.labels.is_empty() {
        let labels = request.labels.iter().map(|(name, value)| (name.clone(), Value::String(value.clone())));
        object.insert("dev.towline/labels".to_owned(), Value::Object(labels.collect()));
    }
    RequestMetaObject::from(object)
}

/// Tells the server that a request is canceled when the one who waits for it goes away.
struct CancelOnDrop {
    peer: Peer<RoleClient>,
    id: Option<RequestId>,
}

impl CancelOnDrop {
    fn disarm(mut self) {
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

/// Waits for a connection that stands, and is none that a call has seen break.
pub(super) async fn live(handle: &McpHandle, within: Duration, patience: Patience) -> Result<Arc<Live>, CallError> {
    let (mut published, name) = (handle.published.clone(), &handle.config.name);
    let deadline = Instant::now() + within;
    loop {
        let phase = published.borrow_and_update().phase.clone();
        match phase {
            Phase::Ready(live) if live.generation > handle.broken.load(Ordering::Relaxed) => return Ok(live),
            Phase::Waiting { reason, next_try } => {
                let wait = next_try.saturating_duration_since(std::time::Instant::now());
                let over = Instant::now() >= deadline || (patience == Patience::NextTry && wait > SOON);
                if over {
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

fn canceled(tool: &str) -> CallError {
    error("canceled", format!("call {tool}: canceled"))
}

fn error(error_type: &'static str, message: String) -> CallError {
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
    let cause = failure.source().map(|cause| format!(" ({cause})")).unwrap_or_default();
    CallError { error_type, message: format!("{what}: {failure}{cause}"), may_have_happened: false }
}

fn is_broken(failure: &ServiceError) -> bool {
    matches!(failure, ServiceError::TransportSend(_) | ServiceError::TransportClosed)
}

/// Whether the server cannot have seen the request: nobody listened, or it knew no such session.
fn never_arrived(failure: &ServiceError) -> bool {
    let ServiceError::TransportSend(transport) = failure else { return false };
    match transport.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        Some(StreamableHttpError::SessionExpired) => true,
        Some(StreamableHttpError::Client(client)) => client.is_connect(),
        Some(_) | None => false,
    }
}

/// Reads the answer as JSON, so that a content block of an unknown kind does not spoil the others. Large files and texts are
/// on a majority of the voters when it returns.
async fn read_result(result: ServerResult, spool: &Spool) -> Result<ToolResult, CallError> {
    let malformed = |why: &str| error("malformed_response", format!("read the tool's answer: {why}"));
    if matches!(result, ServerResult::InputRequiredResult(_)) {
        return Err(error("input_required", "the tool asks for input, which this client does not offer".into()));
    }
    let Ok(mut answer) = serde_json::to_value(&result) else { return Err(malformed("it is no JSON")) };
    drop(result);
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
    Ok(ToolResult { text, structured, files, is_error })
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
        return Ok(Some(part(Content::Blob(blob), media_type, uri)));
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
        kind => format!("[{kind} {}]", field("/mimeType")),
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
        assert_eq!((result.text.as_str(), result.is_error), ("a\n[hologram ]", true));
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
    fn an_answer_without_content_is_malformed() {
        assert_eq!(read(json!({ "surprise": 1 })).unwrap_err().error_type, "malformed_response");
    }
}

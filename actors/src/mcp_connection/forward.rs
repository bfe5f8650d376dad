//! Passes a request of somebody else's on to the server, and its result back as it came: byte by byte, with whatever this side does
//! not know in it.
//!
//! Long strings of the result lie in the blob store by then (`spool`); they are put back into their places, within a bound.

use rmcp::{
    model::{ClientRequest, RequestId, RequestMetaObject, ServerResult},
    service::{PeerRequestOptions, ServiceError},
};
use serde_json::{Map, Value, json, value::RawValue};
use std::collections::BTreeMap;
use tokio_util::sync::CancellationToken;
use towline_core::{BlobForm, Content, Metadata, Part};

use super::{
    CallError, CallRequest, Live, McpHandle,
    call::{self, CancelOnDrop, Clock, error},
    guards::Sign,
    spool::{Spool, Spooled, Wanted},
    text,
    underway::Noted,
};

/// Most bytes that are put back into a result: it is in memory as a whole, for one who waits.
const MAX_PUT_BACK: u64 = 8 * 1024 * 1024;

/// A request to pass on.
#[derive(Debug, Clone)]
pub struct Forward {
    /// `tools/call`, `resources/read`, `prompts/get` or `completion/complete`.
    pub method: &'static str,
    /// Its parameters without `_meta`, which is made here.
    pub params: Map<String, Value>,
    /// Keys of `_meta` that go with it.
    pub meta: Map<String, Value>,
    /// Whether a result that asks for input is passed on as well. Else people are asked by [`CallRequest::events`], where the
    /// configuration of the server says so.
    pub passes_questions: bool,
    /// Whose call it is; its tool is what the request is about.
    pub call: CallRequest,
}

/// A request that has no result.
#[derive(Debug, Clone, PartialEq)]
pub enum NotForwarded {
    /// The server refuses it.
    Refused {
        /// Code of JSON-RPC.
        code: i32,
        /// In the words of the server: text from outside.
        message: String,
        /// What goes with it.
        data: Option<Value>,
    },
    /// It was not answered.
    Failed(CallError),
}

impl From<CallError> for NotForwarded {
    fn from(error: CallError) -> Self {
        Self::Failed(error)
    }
}

impl McpHandle {
    /// Passes a request on; the result as the server wrote it.
    ///
    /// # Errors
    /// When the server refuses it, cannot be reached, takes too long, or when `cancel` fired; the server is told of the last two.
    pub async fn forward(&self, request: Forward, cancel: CancellationToken) -> Result<Box<RawValue>, NotForwarded> {
        tokio::select! {
            biased;
            result = uncanceled(self, &request) => result,
            () = cancel.cancelled() => Err(call::canceled(&request.call.tool).into()),
        }
    }
}

/// Dropping this future tells the server that the request is canceled.
async fn uncanceled(handle: &McpHandle, request: &Forward) -> Result<Box<RawValue>, NotForwarded> {
    let what = format!("{} {} of {}", request.method, request.call.tool, handle.config.name);
    let total = request.call.timeout.unwrap_or(handle.config.call_timeout);
    let busy = || error("server_unavailable", format!("{what}: no place for it after {total:?}, the server is busy"));
    let pass = tokio::time::timeout(total, handle.guards.enter()).await.map_err(|_| busy())?;
    let pass = pass.map_err(|closed| call::is_closed(&what, &closed))?;
    let result = over_a_connection(handle, request, &what).await;
    pass.tell(match &result {
        Err(NotForwarded::Failed(error)) => call::sign_of(error),
        Ok(_) | Err(NotForwarded::Refused { .. }) => Sign::Alive,
    });
    result
}

async fn over_a_connection(handle: &McpHandle, request: &Forward, what: &str) -> Result<Box<RawValue>, NotForwarded> {
    let (live, mut noted) = call::admitted(handle, &request.call.events).await?;
    may_ask(handle, &live, request, what)?;
    let wanted = handle.spool.want_originals();
    match exchange(handle, &live, request, (&wanted, &mut noted)).await {
        Ok((result, id)) => original(&handle.spool, result, wanted.take(&id.to_string()), what).await,
        Err(ServiceError::McpError(refused)) => Err(NotForwarded::Refused {
            code: refused.code.0,
            message: text::plain(&refused.message, call::MAX_ERROR_CHARS),
            data: refused.data,
        }),
        Err(failure) => Err(call::failed(handle, &live, what, &failure).error.into()),
    }
}

/// What the server did not say that it has is not asked of it.
fn may_ask(handle: &McpHandle, live: &Live, request: &Forward, what: &str) -> Result<(), CallError> {
    let has = live.capabilities;
    let has = match request.method {
        "tools/call" => {
            let published = handle.published.borrow();
            let known = published.tools.iter().any(|known| known.tool == request.call.tool);
            return known.then_some(()).ok_or_else(|| error("unknown_tool", format!("{what}: there is no such tool")));
        }
        "resources/read" => has.resources,
        "prompts/get" => has.prompts,
        _ => has.completions,
    };
    has.then_some(()).ok_or_else(|| error("capability_missing", format!("{what}: the server has no such thing")))
}

/// Sends, and waits for the answer, through as many rounds of questions as the server has.
async fn exchange(
    handle: &McpHandle,
    live: &Live,
    request: &Forward,
    (wanted, noted): (&Wanted, &mut Noted),
) -> Result<(ServerResult, RequestId), ServiceError> {
    let mut clock = Clock::new(handle, &request.call);
    let mut params = request.params.clone();
    for _ in 0..call::MAX_INPUT_ROUNDS {
        let message = json!({ "method": request.method, "params": params });
        let message: ClientRequest = serde_json::from_value(message).map_err(|_| ServiceError::UnexpectedResponse)?;
        let mut options = PeerRequestOptions::no_options();
        let mut meta = call::meta(&request.call, live);
        meta.extend(RequestMetaObject::from(request.meta.clone()));
        options.meta = Some(meta);
        let sent = call::send(live, message, options, noted).await?;
        let id = sent.id.clone();
        let guard = CancelOnDrop { peer: live.peer.clone(), id: Some(id.clone()) };
        let answer = call::await_answer(sent, noted, &mut clock).await;
        guard.disarm();
        let answer = answer?;
        let asks = handle.config.elicitation && !request.passes_questions;
        if !asks || !matches!(answer, ServerResult::InputRequiredResult(_)) {
            return Ok((answer, id));
        }
        let ServerResult::InputRequiredResult(asks) = answer else { return Err(ServiceError::UnexpectedResponse) };
        wanted.take(&id.to_string());
        let begun = tokio::time::Instant::now();
        let answers = call::answered(&handle.config, live, &asks, noted.meant()).await;
        clock.total += begun.elapsed();
        params.insert("inputResponses".to_owned(), json!(answers));
        match asks.request_state {
            Some(state) => params.insert("requestState".to_owned(), state.into()),
            None => params.remove("requestState"),
        };
    }
    Err(ServiceError::UnexpectedResponse)
}

/// The result as it came, with what lies beside it in its place.
async fn original(
    spool: &Spool,
    result: ServerResult,
    original: Option<Box<RawValue>>,
    what: &str,
) -> Result<Box<RawValue>, NotForwarded> {
    let no_json = |_| error("malformed_response", format!("{what}: the answer is no JSON"));
    let original = original.map_or_else(|| serde_json::value::to_raw_value(&result).map_err(no_json), Ok)?;
    if !original.get().contains(super::spool::TOKEN) {
        return Ok(original);
    }
    let read: Value = serde_json::from_str(original.get()).map_err(no_json)?;
    let put_back = put_back(spool, spool.claim(&read), what).await?;
    let mut text = original.get().to_owned();
    for (token, content) in put_back {
        text = text.replace(&format!("\"{token}\""), &content);
    }
    Ok(RawValue::from_string(text).map_err(no_json)?)
}

/// What tokens stand for, as JSON strings.
async fn put_back(
    spool: &Spool,
    claimed: BTreeMap<String, Spooled>,
    what: &str,
) -> Result<Vec<(String, String)>, CallError> {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    let mut parts = Vec::new();
    let mut bytes = 0_u64;
    for (token, spooled) in claimed {
        let blob = match spooled {
            Spooled::Kept(blob) => blob,
            Spooled::Refused { error_type, why } => return Err(error(error_type, format!("{what}: {why}"))),
        };
        bytes += blob.length;
        let content = Content::Blob(blob);
        parts.push((token, blob.form, Part { content, media_type: None, filename: None, metadata: Metadata::new() }));
    }
    if bytes > MAX_PUT_BACK {
        let message = format!("{what}: the answer has files of {bytes} bytes, and {MAX_PUT_BACK} are passed on");
        return Err(error("too_large", message));
    }
    let Some(cluster) = spool.cluster() else { return Ok(Vec::new()) };
    let shown = cluster.show_parts(parts.iter_mut().map(|(_, _, part)| part).collect(), MAX_PUT_BACK).await;
    shown.map_err(|cause| error("not_kept", format!("{what}: a file of the answer cannot be read: {cause}")))?;
    let strings = parts.into_iter().map(|(token, form, part)| {
        let string = match (form, &part.content) {
            (_, Content::Text(text)) => json!(text),
            (BlobForm::Text, Content::Raw(bytes)) => json!(String::from_utf8_lossy(bytes)),
            (_, Content::Raw(bytes)) => json!(BASE64_STANDARD.encode(bytes)),
            (_, Content::Data(_) | Content::Url(_) | Content::Blob(_)) => Value::Null,
        };
        (token, string.to_string())
    });
    Ok(strings.collect())
}

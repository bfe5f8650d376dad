//! The answers of a server over HTTP, read through the spool: tool calls, and the stream on which a lost answer comes again.
//!
//! rmcp's own client would read a message into memory before anybody sees it. Everything else still goes through it.

use futures::{StreamExt, TryStreamExt};
use http::{HeaderName, HeaderValue, StatusCode, header};
use rmcp::{
    model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage, ServerJsonRpcMessage},
    transport::{
        common::client_side_sse::BoxedSseResponse,
        streamable_http_client::{StreamableHttpError, StreamableHttpPostResponse},
    },
};
use sse_stream::SseStream;
use std::{borrow::Cow, collections::HashMap};

use super::spool::Spool;

type Refusal = StreamableHttpError<reqwest::Error>;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";

/// Most bytes that are read of an answer that says what is wrong.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// A request to the server, but for its body.
pub(super) struct Head<'a> {
    pub uri: &'a str,
    pub session: Option<&'a str>,
    pub bearer: Option<&'a str>,
    pub headers: HashMap<HeaderName, HeaderValue>,
}

/// The id of a message that calls a tool, as JSON.
pub(super) fn tool_call(message: &ClientJsonRpcMessage) -> Option<String> {
    let ClientJsonRpcMessage::Request(request) = message else { return None };
    let calls = matches!(request.request, ClientRequest::CallToolRequest(_));
    calls.then(|| serde_json::to_string(&request.id).unwrap_or_default())
}

/// Calls a tool.
pub(super) async fn post(
    http: &reqwest::Client,
    spool: &Spool,
    head: Head<'_>,
    (message, id): (&ClientJsonRpcMessage, String),
) -> Result<StreamableHttpPostResponse, Refusal> {
    let has_session = head.session.is_some();
    let response = with_head(http.post(head.uri), head).json(message).send().await?;
    let status = response.status();
    if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
        return Ok(StreamableHttpPostResponse::Accepted);
    }
    if status == StatusCode::NOT_FOUND && has_session {
        return Err(StreamableHttpError::SessionExpired);
    }
    let session = response.headers().get(SESSION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    if !status.is_success() {
        let said = beginning(response).await;
        return match serde_json::from_slice::<ServerJsonRpcMessage>(&said) {
            Ok(error @ JsonRpcMessage::Error(_)) => Ok(StreamableHttpPostResponse::Json(error, session)),
            _ => Err(unexpected(format!("HTTP {status}: {}", String::from_utf8_lossy(&said)))),
        };
    }
    if is_of(&response, EVENTS) {
        return Ok(StreamableHttpPostResponse::Sse(events(spool, response), session));
    }
    if !is_of(&response, JSON) {
        let found = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        return Err(StreamableHttpError::UnexpectedContentType(found.map(str::to_owned)));
    }
    let body = spool.body(response.bytes_stream().boxed()).await.map_err(StreamableHttpError::Client)?;
    let body = body.unwrap_or_else(|| spool.too_large(&id).into_bytes());
    match serde_json::from_slice(&body) {
        Ok(answer) => Ok(StreamableHttpPostResponse::Json(answer, session)),
        Err(error) => Err(unexpected(format!("the answer is no JSON-RPC: {error}"))),
    }
}

/// Opens the stream on which the server speaks by itself.
pub(super) async fn get(
    http: &reqwest::Client,
    spool: &Spool,
    head: Head<'_>,
    last_event: Option<String>,
) -> Result<BoxedSseResponse, Refusal> {
    let mut request = with_head(http.get(head.uri), head);
    if let Some(last_event) = last_event {
        request = request.header(LAST_EVENT, last_event);
    }
    let response = request.send().await?;
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        return Err(StreamableHttpError::ServerDoesNotSupportSse);
    }
    let response = response.error_for_status()?;
    if !is_of(&response, EVENTS) && !is_of(&response, JSON) {
        let found = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        return Err(StreamableHttpError::UnexpectedContentType(found.map(str::to_owned)));
    }
    Ok(events(spool, response))
}

fn with_head(request: reqwest::RequestBuilder, head: Head<'_>) -> reqwest::RequestBuilder {
    let Head { session, bearer, headers, .. } = head;
    let mut request = request.header(header::ACCEPT, format!("{EVENTS}, {JSON}"));
    if let Some(bearer) = bearer {
        request = request.bearer_auth(bearer);
    }
    if let Some(session) = session {
        request = request.header(SESSION, session);
    }
    headers.into_iter().fold(request, |request, (name, value)| request.header(name, value))
}

fn events(spool: &Spool, response: reqwest::Response) -> BoxedSseResponse {
    SseStream::from_bytes_stream(spool.events(response.bytes_stream().boxed())).boxed()
}

fn is_of(response: &reqwest::Response, media_type: &str) -> bool {
    let found = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    found.split(';').next().is_some_and(|found| found.trim().eq_ignore_ascii_case(media_type))
}

/// What an answer begins with. One that breaks says what it said.
async fn beginning(response: reqwest::Response) -> Vec<u8> {
    let mut body = response.bytes_stream();
    let mut said = Vec::new();
    while let Ok(Some(bytes)) = body.try_next().await {
        said.extend_from_slice(&bytes);
        if said.len() >= MAX_REFUSAL_BYTES {
            said.truncate(MAX_REFUSAL_BYTES);
            break;
        }
    }
    said
}

fn unexpected(what: String) -> Refusal {
    StreamableHttpError::UnexpectedServerResponse(Cow::Owned(what))
}

//! The answers of a server over HTTP, read through the spool: those to our messages, and the stream on which the server speaks
//! by itself or a lost answer comes again.
//!
//! rmcp's own client would read a message into memory before anybody sees it.

use futures::{StreamExt, TryStreamExt};
use http::{HeaderName, HeaderValue, StatusCode, header};
use rmcp::{
    model::{ClientJsonRpcMessage, JsonRpcMessage, ServerJsonRpcMessage},
    transport::{
        common::client_side_sse::BoxedSseResponse,
        streamable_http_client::{HttpStatusError, StreamableHttpError, StreamableHttpPostResponse},
    },
};
use sse_stream::SseStream;
use std::{borrow::Cow, collections::HashMap, sync::Arc};

use super::{
    causes,
    credentials::{Sender, UNAUTHORIZED},
    socket::Seen,
    spool::Spool,
};

type Refusal = StreamableHttpError<reqwest::Error>;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";

/// Most bytes that are read of an answer that says what is wrong.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// A request to the server, but for its body.
pub(super) struct Head {
    pub uri: Arc<str>,
    pub session: Option<Arc<str>>,
    pub bearer: Option<String>,
    pub headers: HashMap<HeaderName, HeaderValue>,
}

/// Posts a message.
pub(super) async fn post(
    http: &Sender,
    spool: &Spool,
    (head, seen): (Head, &Seen),
    message: &ClientJsonRpcMessage,
) -> Result<StreamableHttpPostResponse, Refusal> {
    let has_session = head.session.is_some();
    let response = http.send(with_head(http.http().post(&*head.uri), head).json(message)).await?;
    let status = response.status();
    if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
        return Ok(StreamableHttpPostResponse::Accepted);
    }
    if status == StatusCode::NOT_FOUND && has_session {
        return Err(StreamableHttpError::SessionExpired);
    }
    let session = response.headers().get(SESSION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    if !status.is_success() {
        seen.set_refused(status.as_u16());
        let retry_after = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = retry_after.map(str::to_owned);
        let said = beginning(response).await;
        return match serde_json::from_slice::<ServerJsonRpcMessage>(&said) {
            Ok(error @ JsonRpcMessage::Error(_)) if status != StatusCode::TOO_MANY_REQUESTS => {
                Ok(StreamableHttpPostResponse::Json(error, session))
            }
            _ if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() => {
                Err(HttpStatusError::new(status.as_u16(), retry_after).into())
            }
            _ => {
                let is_refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
                let begins = if is_refused { UNAUTHORIZED } else { "" };
                Err(unexpected(format!("{begins}HTTP {status}: {}", String::from_utf8_lossy(&said))))
            }
        };
    }
    // What asks for no answer is taken, whatever the server says to it.
    if !matches!(message, JsonRpcMessage::Request(_)) {
        return Ok(StreamableHttpPostResponse::Accepted);
    }
    if is_of(&response, EVENTS) {
        return Ok(StreamableHttpPostResponse::Sse(events(spool, response), session));
    }
    if !is_of(&response, JSON) {
        let found = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        return Err(StreamableHttpError::UnexpectedContentType(found.map(str::to_owned)));
    }
    let body = spool.body(response.bytes_stream().boxed()).await.map_err(StreamableHttpError::Client)?;
    let body = body.unwrap_or_else(|| spool.too_large(&id_of(message)).into_bytes());
    match serde_json::from_slice(&body) {
        Ok(answer) => Ok(StreamableHttpPostResponse::Json(answer, session)),
        Err(error) => Err(unexpected(format!("the answer is no JSON-RPC: {}", causes::of_json(&error)))),
    }
}

/// Opens the stream on which the server speaks by itself.
pub(super) async fn get(
    http: &Sender,
    spool: &Spool,
    head: Head,
    last_event: Option<String>,
) -> Result<BoxedSseResponse, Refusal> {
    let mut request = with_head(http.http().get(&*head.uri), head);
    if let Some(last_event) = last_event {
        request = request.header(LAST_EVENT, last_event);
    }
    let response = http.send(request).await?;
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

/// Ends a session. A server that cannot is no trouble.
pub(super) async fn delete(http: &Sender, head: Head) -> Result<(), Refusal> {
    let response = http.send(with_head(http.http().delete(&*head.uri), head)).await?;
    if response.status() != StatusCode::METHOD_NOT_ALLOWED {
        response.error_for_status()?;
    }
    Ok(())
}

fn with_head(request: reqwest::RequestBuilder, head: Head) -> reqwest::RequestBuilder {
    let Head { session, bearer, headers, .. } = head;
    let mut request = request.header(header::ACCEPT, format!("{EVENTS}, {JSON}"));
    if let Some(bearer) = bearer {
        request = request.bearer_auth(bearer);
    }
    if let Some(session) = session {
        request = request.header(SESSION, &*session);
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

/// The id of a message that is answered, as JSON.
fn id_of(message: &ClientJsonRpcMessage) -> String {
    match message {
        JsonRpcMessage::Request(request) => serde_json::to_string(&request.id).unwrap_or_default(),
        JsonRpcMessage::Response(_) | JsonRpcMessage::Notification(_) | JsonRpcMessage::Error(_) => "null".to_owned(),
    }
}

fn unexpected(what: String) -> Refusal {
    StreamableHttpError::UnexpectedServerResponse(Cow::Owned(what))
}

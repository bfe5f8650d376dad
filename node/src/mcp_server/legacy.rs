//! HTTP with SSE, for clients of 2024-11-05: one stream that brings everything, and a path for messages that it begins with.
//! Served where `mcp.serve.legacy_sse` is true.
//!
//! Each message is a request of Streamable HTTP to this same server, for the same caller, and what would answer it goes to the
//! stream. The stream is on one node and ends with it; its client connects anew.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    body::{self, Body, Bytes},
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use futures::{StreamExt as _, stream};
use http::{HeaderValue, StatusCode, header, request::Parts};
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use towline_core::Principal;
use uuid::Uuid;

use super::{
    McpServer,
    http::{self as streamable, Refused, SESSION},
    session::SessionId,
    sse,
};
use crate::auth::StreamPlace;

/// Where the stream is.
pub(super) const STREAM: &str = "/mcp/sse";

/// Where messages go.
pub(super) const MESSAGES: &str = "/mcp/messages";

/// Most streams of a node: each has a queue and the answers that are under way.
const MAX_STREAMS: usize = 1_024;

/// Answers of one stream that are under way.
const MAX_ANSWERS: usize = 64;

/// Largest answer that is one JSON document: a page of tasks with their content.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// The streams of a node.
#[derive(Default)]
pub(super) struct Streams(Mutex<HashMap<Uuid, Arc<Stream>>>);

impl Streams {
    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Arc<Stream>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One stream, as those see it who write to it.
struct Stream {
    owner: Principal,
    frames: mpsc::Sender<Bytes>,
    /// The session of Streamable HTTP behind it, once there is one.
    session: Mutex<Option<HeaderValue>>,
    /// Answers that take their time. They end with the stream.
    answers: TaskTracker,
    over: CancellationToken,
}

impl Stream {
    fn session(&self) -> MutexGuard<'_, Option<HeaderValue>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts on the stream what a body brings, until one of both ends.
    fn pump(self: &Arc<Self>, body: Body) {
        let stream = Arc::clone(self);
        self.answers.spawn(async move {
            let pumped = async {
                let mut chunks = body.into_data_stream();
                while let Some(Ok(chunk)) = chunks.next().await {
                    let told = messages(&chunk);
                    if !told.is_empty() && stream.frames.send(told).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = stream.over.cancelled() => {}
                () = pumped => {}
            }
        });
    }
}

/// The messages of whole events. Places are left out: no client of this kind takes one up.
fn messages(events: &[u8]) -> Bytes {
    let text = String::from_utf8_lossy(events);
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.flat_map(|data| format!("event: message\ndata: {data}\n\n").into_bytes()).collect()
}

/// The stream, as its client holds it: when it goes away, so does all that works for it.
struct Open {
    server: Arc<McpServer>,
    id: Uuid,
    stream: Arc<Stream>,
    frames: mpsc::Receiver<Bytes>,
    first: Option<Bytes>,
    _place: StreamPlace,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.stream.over.cancel();
        self.server.legacy.lock().remove(&self.id);
        let session = self.stream.session().take();
        let session = session.and_then(|session| SessionId::read(session.to_str().ok()?, &self.stream.owner));
        if let Some(session) = session {
            self.server.sessions.end(&session);
        }
    }
}

impl Open {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        tokio::select! {
            () = self.server.a2a.stopping.cancelled() => None,
            frame = self.frames.recv() => frame,
            () = tokio::time::sleep(sse::KEEP_ALIVE) => Some(sse::beat()),
        }
    }
}

/// Opens a stream.
pub(super) async fn open(State(server): State<Arc<McpServer>>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    opened(server, &parts).unwrap_or_else(IntoResponse::into_response)
}

fn opened(server: Arc<McpServer>, parts: &Parts) -> Result<Response, Refused> {
    let caller = streamable::caller_at(&server, parts)?;
    let place = streamable::place(&server, &caller);
    let place = place.map_err(|error| Refused::new(StatusCode::TOO_MANY_REQUESTS, error))?;
    let (frames, queue) = mpsc::channel(sse::QUEUE);
    let stream = Arc::new(Stream {
        owner: caller.principal.owner(),
        frames,
        session: Mutex::default(),
        answers: TaskTracker::new(),
        over: CancellationToken::new(),
    });
    let id = Uuid::new_v4();
    {
        let mut streams = server.legacy.lock();
        if streams.len() >= MAX_STREAMS {
            return Err(Refused::plain(StatusCode::SERVICE_UNAVAILABLE, "too many streams: use /mcp, or another node"));
        }
        streams.insert(id, Arc::clone(&stream));
    }
    let first = Some(Bytes::from(format!("event: endpoint\ndata: {MESSAGES}?sessionId={id}\n\n")));
    let open = Open { server, id, stream, frames: queue, first, _place: place };
    Ok(sse::response(stream::unfold(open, |mut open| async move {
        let frame = open.next().await?;
        Some((frame, open))
    })))
}

/// Takes a message. What answers it comes on the stream.
pub(super) async fn post(State(server): State<Arc<McpServer>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    Box::pin(received(server, parts, body)).await.unwrap_or_else(IntoResponse::into_response)
}

async fn received(server: Arc<McpServer>, mut parts: Parts, body: Body) -> Result<Response, Refused> {
    let caller = streamable::caller_at(&server, &parts)?;
    let named = parts.uri.query().and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("sessionId=")));
    let stream = named.and_then(|id| server.legacy.lock().get(&Uuid::try_parse(id).ok()?).cloned());
    let stream = stream.filter(|stream| stream.owner == caller.principal.owner());
    let unknown = || Refused::plain(StatusCode::NOT_FOUND, "this stream is not open at this node: open another");
    let stream = stream.ok_or_else(unknown)?;
    if stream.answers.len() >= MAX_ANSWERS {
        return Err(Refused::plain(StatusCode::SERVICE_UNAVAILABLE, "too many calls of this stream are under way"));
    }
    let both = HeaderValue::from_static("application/json, text/event-stream");
    parts.headers.insert(header::ACCEPT, both);
    parts.headers.remove(SESSION);
    if let Some(session) = stream.session().clone() {
        parts.headers.insert(SESSION, session);
    }
    let asked = parts.clone();
    let answer = streamable::received(Arc::clone(&server), parts, body).await?;
    let accepted = (StatusCode::ACCEPTED, "Accepted").into_response();
    let (head, body) = answer.into_parts();
    if head.status == StatusCode::ACCEPTED {
        return Ok(accepted);
    }
    if head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream") {
        stream.pump(body);
        return Ok(accepted);
    }
    let answer = body::to_bytes(body, MAX_ANSWER_BYTES).await;
    let answer = answer.map_err(|_| Refused::plain(StatusCode::INTERNAL_SERVER_ERROR, "the answer is too long"))?;
    if let Some(session) = head.headers.get(SESSION) {
        *stream.session() = Some(session.clone());
        notify(&server, &stream, asked, session);
    }
    let frame = [&b"event: message\ndata: "[..], &answer, b"\n\n"].concat();
    tokio::select! {
        // A client that does not read its stream posts no more than it holds.
        sent = stream.frames.send(frame.into()) => sent.map_err(|_| unknown())?,
        () = stream.over.cancelled() => return Err(unknown()),
    }
    Ok(accepted)
}

/// Has the stream bring what the server says by itself.
fn notify(server: &Arc<McpServer>, stream: &Arc<Stream>, mut parts: Parts, session: &HeaderValue) {
    parts.headers.insert(SESSION, session.clone());
    match streamable::listened(Arc::clone(server), &parts) {
        Ok(response) => stream.pump(response.into_body()),
        Err(_) => tracing::debug!("a client over HTTP with SSE is told of no changes: too many streams"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_named_and_places_and_beats_are_left_out() {
        let events = b"retry: 2000\nid: x\ndata:\n\n: keep-alive\n\nid: y\ndata: {\"a\":1}\n\ndata: {\"b\":2}\n\n";
        let expected = "event: message\ndata: {\"a\":1}\n\nevent: message\ndata: {\"b\":2}\n\n";
        assert_eq!(messages(events), expected);
        assert!(messages(b": keep-alive\n\n").is_empty());
    }
}

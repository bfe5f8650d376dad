//! The events of a task, as they come over the wire: server-sent events, each a JSON-RPC answer around a `StreamResponse`.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream::BoxStream};
use serde_json::Value;
use sse_stream::{Sse, SseStream};

use crate::{
    ClientError, StreamEvent,
    client::{result_of, transport_error},
    convert::stream_event_from_wire,
};

/// Longest silence on a stream. Our own server writes at least a comment every 15 s, and the peers that we know do too.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Most bytes of one event: a snapshot of a task of the largest size that our own core allows, with room for the escapes
/// of JSON.
const MAX_EVENT_BYTES: usize = 64 * 1024 * 1024;

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamItem {
    /// Its SSE id, if it is a number: what [`crate::A2aClient::subscribe`] resumes from.
    pub id: Option<u64>,
    /// What it says.
    pub event: StreamEvent,
    /// The `StreamResponse` as the peer wrote it.
    pub raw: Value,
}

/// The events of a task, in order. It ends when the peer ends it; an error is its last item.
pub struct EventStream(BoxStream<'static, Result<StreamItem, ClientError>>);

impl EventStream {
    pub(crate) fn new(
        endpoint: String,
        bytes: impl Stream<Item = Result<Bytes, reqwest::Error>> + Send + 'static,
    ) -> Self {
        let unparsed = Arc::new(AtomicUsize::new(0));
        let frames = SseStream::from_bytes_stream(bounded(endpoint.clone(), bytes.boxed(), Arc::clone(&unparsed)));
        let frames = Box::pin(frames);
        let items = futures::stream::unfold(Some((frames, endpoint, unparsed)), |open| async {
            let (mut frames, endpoint, unparsed) = open?;
            loop {
                let frame = match frames.next().await? {
                    Ok(frame) => frame,
                    Err(error) => return Some((Err(frame_error(&endpoint, error)), None)),
                };
                unparsed.store(0, Ordering::Relaxed);
                match item(&endpoint, frame) {
                    Ok(Some(item)) => return Some((Ok(item), Some((frames, endpoint, unparsed)))),
                    Ok(None) => {}
                    Err(error) => return Some((Err(error), None)),
                }
            }
        });
        Self(items.boxed())
    }
}

impl Stream for EventStream {
    type Item = Result<StreamItem, ClientError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(context)
    }
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventStream")
    }
}

/// Ends the bytes of a stream that is silent for too long, or whose event grows too large. `unparsed` counts the bytes
/// since the last event.
fn bounded(
    endpoint: String,
    bytes: BoxStream<'static, Result<Bytes, reqwest::Error>>,
    unparsed: Arc<AtomicUsize>,
) -> BoxStream<'static, Result<Bytes, ClientError>> {
    futures::stream::unfold(Some((bytes, endpoint, unparsed)), |open| async {
        let (mut bytes, endpoint, unparsed) = open?;
        let chunk = match tokio::time::timeout(IDLE_TIMEOUT, bytes.next()).await {
            Ok(None) => return None,
            Ok(Some(Ok(chunk))) => chunk,
            Ok(Some(Err(error))) => return Some((Err(transport_error(&endpoint, IDLE_TIMEOUT, error)), None)),
            Err(_) => return Some((Err(ClientError::Timeout { endpoint, after: IDLE_TIMEOUT }), None)),
        };
        if unparsed.fetch_add(chunk.len(), Ordering::Relaxed) + chunk.len() > MAX_EVENT_BYTES + chunk.len() {
            let detail = format!("an event is longer than {MAX_EVENT_BYTES} bytes");
            return Some((Err(ClientError::Malformed { endpoint, detail }), None));
        }
        Some((Ok(chunk), Some((bytes, endpoint, unparsed))))
    })
    .boxed()
}

fn frame_error(endpoint: &str, error: sse_stream::Error) -> ClientError {
    match error {
        sse_stream::Error::Body(cause) => match cause.downcast::<ClientError>() {
            Ok(error) => *error,
            Err(source) => ClientError::Broken { endpoint: endpoint.to_owned(), source },
        },
        sse_stream::Error::InvalidLine
        | sse_stream::Error::DuplicatedEventLine
        | sse_stream::Error::DuplicatedIdLine
        | sse_stream::Error::DuplicatedRetry
        | sse_stream::Error::Utf8Parse(_)
        | sse_stream::Error::IntParse(_) => {
            ClientError::Malformed { endpoint: endpoint.to_owned(), detail: format!("event stream: {error}") }
        }
    }
}

/// Reads one frame; comments and frames without data say nothing.
fn item(endpoint: &str, frame: Sse) -> Result<Option<StreamItem>, ClientError> {
    let Some(data) = frame.data.filter(|data| !data.is_empty()) else { return Ok(None) };
    let malformed = |detail: String| ClientError::Malformed { endpoint: endpoint.to_owned(), detail };
    let envelope: Value = serde_json::from_str(&data).map_err(|error| malformed(format!("event: {error}")))?;
    let raw = result_of(endpoint, envelope)?;
    let event = stream_event_from_wire(raw.clone()).map_err(|detail| malformed(format!("event: {detail}")))?;
    Ok(Some(StreamItem { id: frame.id.and_then(|id| id.parse().ok()), event, raw }))
}

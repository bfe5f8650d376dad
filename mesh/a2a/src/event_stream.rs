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
    client::{decoded, result_of, transport_error},
    convert::stream_event_from_wire,
};

/// What a stream is held to.
#[derive(Debug, Clone, Copy)]
struct Limits {
    idle: Duration,
    event_bytes: usize,
}

/// Longest silence on a stream. Our own server writes at least a comment every 15 s, and the peers that we know do too.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

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
        Self::limited(endpoint, bytes, Limits { idle: IDLE_TIMEOUT, event_bytes: MAX_EVENT_BYTES })
    }

    /// A stream of HTTP+JSON, whose frames are bare.
    pub(crate) fn bare(
        endpoint: String,
        bytes: impl Stream<Item = Result<Bytes, reqwest::Error>> + Send + 'static,
    ) -> Self {
        Self::framed(endpoint, bytes, Limits { idle: IDLE_TIMEOUT, event_bytes: MAX_EVENT_BYTES }, bare_item)
    }

    /// A stream that another binding has read.
    pub(crate) fn of_items(items: BoxStream<'static, Result<StreamItem, ClientError>>) -> Self {
        Self(items)
    }

    fn limited(
        endpoint: String,
        bytes: impl Stream<Item = Result<Bytes, reqwest::Error>> + Send + 'static,
        limits: Limits,
    ) -> Self {
        Self::framed(endpoint, bytes, limits, item)
    }

    fn framed(
        endpoint: String,
        bytes: impl Stream<Item = Result<Bytes, reqwest::Error>> + Send + 'static,
        limits: Limits,
        read: fn(&str, Sse) -> Result<Option<StreamItem>, ClientError>,
    ) -> Self {
        let unparsed = Arc::new(AtomicUsize::new(0));
        let bytes = bounded(endpoint.clone(), bytes.boxed(), Arc::clone(&unparsed), limits);
        let frames = Box::pin(SseStream::from_bytes_stream(bytes));
        let items = futures::stream::unfold(Some((frames, endpoint, unparsed)), move |open| async move {
            let (mut frames, endpoint, unparsed) = open?;
            loop {
                let frame = match frames.next().await? {
                    Ok(frame) => frame,
                    Err(error) => return Some((Err(frame_error(&endpoint, error)), None)),
                };
                unparsed.store(0, Ordering::Relaxed);
                match read(&endpoint, frame) {
                    Ok(Some(item)) => return Some((Ok(item), Some((frames, endpoint, unparsed)))),
                    Ok(None) => {}
                    Err(error) => return Some((Err(error), None)),
                }
            }
        });
        Self(items.boxed())
    }
}

/// What a peer streams, in chunks of a few bytes: for fuzzing.
#[doc(hidden)]
pub async fn fuzz(bytes: &[u8]) {
    const CHUNK: usize = 7;
    let chunks: Vec<_> = bytes.chunks(CHUNK).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
    let limits = Limits { idle: IDLE_TIMEOUT, event_bytes: MAX_EVENT_BYTES };
    let mut stream = EventStream::limited("peer".to_owned(), futures::stream::iter(chunks), limits);
    while stream.next().await.is_some() {}
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
    limits: Limits,
) -> BoxStream<'static, Result<Bytes, ClientError>> {
    let Limits { idle, event_bytes } = limits;
    futures::stream::unfold(Some((bytes, endpoint, unparsed)), move |open| async move {
        let (mut bytes, endpoint, unparsed) = open?;
        let chunk = match tokio::time::timeout(idle, bytes.next()).await {
            Ok(None) => return None,
            Ok(Some(Ok(chunk))) => chunk,
            Ok(Some(Err(error))) => return Some((Err(transport_error(&endpoint, idle, error)), None)),
            Err(_) => return Some((Err(ClientError::Timeout { endpoint, after: idle }), None)),
        };
        if unparsed.fetch_add(chunk.len(), Ordering::Relaxed) + chunk.len() > event_bytes {
            let detail = format!("an event is longer than {event_bytes} bytes");
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

/// Reads one frame of HTTP+JSON.
fn bare_item(endpoint: &str, frame: Sse) -> Result<Option<StreamItem>, ClientError> {
    let Some(data) = frame.data.filter(|data| !data.is_empty()) else { return Ok(None) };
    let malformed = |detail: String| ClientError::Malformed { endpoint: endpoint.to_owned(), detail };
    let raw = decoded(data.as_bytes()).map_err(|detail| malformed(format!("event: {detail}")))?;
    if let Some(error) = crate::client::http_error(&raw) {
        return Err(error);
    }
    let event = stream_event_from_wire(raw.clone()).map_err(|detail| malformed(format!("event: {detail}")))?;
    Ok(Some(StreamItem { id: frame.id.and_then(|id| id.parse().ok()), event, raw }))
}

/// Reads one frame; comments and frames without data say nothing.
fn item(endpoint: &str, frame: Sse) -> Result<Option<StreamItem>, ClientError> {
    let Some(data) = frame.data.filter(|data| !data.is_empty()) else { return Ok(None) };
    let malformed = |detail: String| ClientError::Malformed { endpoint: endpoint.to_owned(), detail };
    let envelope = decoded(data.as_bytes()).map_err(|detail| malformed(format!("event: {detail}")))?;
    let raw = result_of(endpoint, envelope)?;
    let event = stream_event_from_wire(raw.clone()).map_err(|detail| malformed(format!("event: {detail}")))?;
    Ok(Some(StreamItem { id: frame.id.and_then(|id| id.parse().ok()), event, raw }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { idle: Duration::from_secs(60), event_bytes: 1_000 };

    fn stream(chunks: Vec<String>) -> EventStream {
        let chunks = chunks.into_iter().map(|chunk| Ok(Bytes::from(chunk)));
        EventStream::limited("here".into(), futures::stream::iter(chunks), LIMITS)
    }

    fn frame(text: &str) -> String {
        let message = format!(r#"{{"messageId":"m","role":"ROLE_AGENT","parts":[{{"text":"{text}"}}]}}"#);
        format!("data: {{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{\"message\":{message}}}}}\n\n")
    }

    #[tokio::test]
    async fn many_small_events_are_no_large_one() {
        let items: Vec<_> = stream(vec![frame("x"); 100]).collect().await;
        assert_eq!(items.len(), 100);
        assert!(items.iter().all(Result::is_ok));
    }

    #[tokio::test]
    async fn an_event_that_grows_too_large_ends_the_stream() {
        let endless = std::iter::once("data: ".to_owned()).chain(vec!["x".repeat(100); 100]).collect();
        let items: Vec<_> = stream(endless).collect().await;
        assert!(matches!(&items[..], [Err(ClientError::Malformed { .. })]), "{items:?}");
    }

    #[tokio::test]
    async fn a_silent_stream_ends_and_one_that_only_comments_does_not() {
        let idle = Duration::from_millis(400);
        let comments = futures::stream::unfold(0, |count| async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            (count < 30).then(|| (Ok(Bytes::from_static(b": keep-alive\n\n")), count + 1))
        });
        let message = futures::stream::once(async { Ok(Bytes::from(frame("still there"))) });
        let silence = comments.chain(message).chain(futures::stream::pending());
        let limits = Limits { idle, ..LIMITS };
        let items: Vec<_> = EventStream::limited("here".into(), silence, limits).collect().await;
        assert!(matches!(&items[..], [Ok(_), Err(ClientError::Timeout { .. })]), "{items:?}");
    }
}

//! How this client speaks HTTP to MCP servers: pooled connections without Nagle's delay, no redirects, our headers, the
//! trace context of each call as `traceparent`, and a report when the server's notification stream fails.

use http::{HeaderName, HeaderValue};
use rmcp::{
    model::{ClientJsonRpcMessage, ClientRequest, GetMeta},
    transport::{
        StreamableHttpClientTransport,
        common::client_side_sse::{BoxedSseResponse, ExponentialBackoff},
        streamable_http_client::{
            StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError, StreamableHttpPostResponse,
            StreamableHttpResponseLimits,
        },
    },
};
use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    answers::{self, Head},
    causes,
    credentials::{self, McpTls, Sender},
    spool::Spool,
};
use crate::{config::Secret, egress::EgressPolicy};

/// Time to set up a TCP connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often an idle connection is tried: a server that is gone without a word is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Requests under way on one connection; the bound that counts is the one on calls, this one must not be lower.
const MAX_REQUESTS: usize = 128;

/// Longest wait before the notification stream is opened again.
const MAX_STREAM_DELAY: Duration = Duration::from_secs(15);

/// Idle connections that are kept.
const IDLE_CONNECTIONS: usize = 8;

/// Tries to open the notification stream for the first time; rmcp makes one.
const FIRST_TRIES: u32 = 4;

/// Wait before the second of these tries; it doubles. Also the wait before a stream is opened again that ended at once.
const FIRST_STREAM_DELAY: Duration = Duration::from_millis(250);

/// A stream that lived this long was one; servers that end each of them at once are asked more and more rarely.
const STREAM_LIVED: Duration = Duration::from_secs(5);

/// Whether the server can say something by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Push {
    /// Its stream is not open yet.
    Opening,
    /// It can.
    Live,
    /// Its stream has ended and is opened again.
    Reconnecting,
    /// It has no such stream.
    None,
}

impl Push {
    /// As it is shown.
    pub(super) fn word(self) -> &'static str {
        match self {
            Push::Opening => "opening",
            Push::Live => "live",
            Push::Reconnecting => "reconnecting",
            Push::None => "none",
        }
    }
}

/// What the socket of a connection has seen; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen(Arc<SeenInner>);

#[derive(Debug, Default)]
struct SeenInner {
    push: AtomicU8,
    streams: AtomicU32,
    refused: AtomicU16,
}

impl Seen {
    /// Whether the server can say something by itself.
    pub(super) fn push(&self) -> Push {
        match self.0.push.load(Ordering::Relaxed) {
            1 => Push::Live,
            2 => Push::Reconnecting,
            3 => Push::None,
            _ => Push::Opening,
        }
    }

    pub(super) fn set_push(&self, push: Push) {
        let stored = match push {
            Push::Opening => 0,
            Push::Live => 1,
            Push::Reconnecting => 2,
            Push::None => 3,
        };
        if push == Push::Live {
            self.0.streams.fetch_add(1, Ordering::Relaxed);
        }
        self.0.push.store(stored, Ordering::Relaxed);
    }

    /// How often a stream was opened on which it can.
    pub(super) fn streams(&self) -> u32 {
        self.0.streams.load(Ordering::Relaxed)
    }

    /// The status of the last answer that was no success; 0 if there was none.
    pub(super) fn refused(&self) -> u16 {
        self.0.refused.load(Ordering::Relaxed)
    }

    pub(super) fn set_refused(&self, status: u16) {
        self.0.refused.store(status, Ordering::Relaxed);
    }
}

/// Called with the reason when the server is seen to fail.
pub(super) type Suspect = Arc<dyn Fn(String) + Send + Sync>;

type Refusal = StreamableHttpError<reqwest::Error>;

/// What a client for one server is made of.
#[derive(Clone, Copy, Default)]
pub(super) struct Dial<'a> {
    /// The Unix socket that it is behind.
    pub socket: Option<&'a Path>,
    /// What may be dialled, and the endpoint: where somebody else than the operator said where it is.
    pub guard: Option<(&'a Arc<EgressPolicy>, &'a str)>,
    /// The certificates that are configured.
    pub tls: Option<&'a McpTls>,
    /// The old version of HTTP, for a connection that is to become another one.
    pub only_http1: bool,
}

/// The HTTP client for one server: pooled connections without Nagle's delay, no redirects.
///
/// # Errors
/// When it cannot be made, or the endpoint is refused.
pub(super) fn client(dial: &Dial<'_>) -> Result<reqwest::Client, String> {
    let builder = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .tcp_nodelay(true)
        .tcp_keepalive(KEEP_ALIVE)
        .redirect(reqwest::redirect::Policy::none());
    let builder = match dial.socket {
        Some(path) => builder.unix_socket(path),
        None => builder,
    };
    let builder = match dial.guard {
        Some((policy, endpoint)) => {
            let target = policy.target(endpoint).map_err(|refused| format!("not dialled: the URL {refused}"))?;
            policy.guarded(builder, &target)
        }
        None => builder,
    };
    let builder = if dial.only_http1 { builder.http1_only() } else { builder };
    let builder = match dial.tls {
        Some(tls) => credentials::apply_tls(builder, tls, dial.only_http1)?,
        None => builder,
    };
    builder.build().map_err(|error| format!("make the HTTP client: {error}"))
}

/// A transport to an endpoint.
///
/// # Errors
/// When a header cannot be sent.
pub(super) fn transport(
    http: Sender,
    endpoint: &str,
    headers: &[(String, Secret)],
    (suspect, seen): (Suspect, Seen),
    spool: Spool,
) -> Result<StreamableHttpClientTransport<Socket>, String> {
    let mut backoff = ExponentialBackoff::default();
    backoff.max_delay = Some(MAX_STREAM_DELAY);
    let mut config = StreamableHttpClientTransportConfig::with_uri(endpoint)
        .max_concurrent_requests(MAX_REQUESTS)
        .custom_headers(custom_headers(headers)?);
    // A new session is a new connection of the actor: it lists the tools again, which rmcp would not.
    config.reinit_on_expired_session = false;
    config.retry_config = Arc::new(backoff);
    let socket = Socket { http, suspect, spool, seen, stream: Arc::default() };
    Ok(StreamableHttpClientTransport::with_client(socket, config))
}

pub(super) fn custom_headers(headers: &[(String, Secret)]) -> Result<HashMap<HeaderName, HeaderValue>, String> {
    let convert = |(name, secret): &(String, Secret)| {
        let header = name.parse::<HeaderName>().map_err(|_| format!("header {name:?}: this is no header name"))?;
        let mut value =
            HeaderValue::from_str(secret.expose()).map_err(|_| format!("header {name}: its value cannot be sent"))?;
        value.set_sensitive(true);
        Ok((header, value))
    };
    headers.iter().map(convert).collect()
}

/// The HTTP client below rmcp.
#[derive(Clone)]
pub(super) struct Socket {
    http: Sender,
    suspect: Suspect,
    spool: Spool,
    seen: Seen,
    stream: Arc<Mutex<Stream>>,
}

/// The notification stream.
#[derive(Default)]
struct Stream {
    /// Whether it was open once: only then is its loss a sign of trouble.
    was_open: bool,
    opened: Option<Instant>,
    /// Streams in a row that ended at once.
    short: u32,
}

impl Socket {
    fn stream(&self) -> std::sync::MutexGuard<'_, Stream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long to wait before the stream is opened again: none for the first one, and longer and longer while each ends at once.
    fn pause(&self) -> Duration {
        let mut stream = self.stream();
        let Some(opened) = stream.opened else { return Duration::ZERO };
        self.seen.set_push(Push::Reconnecting);
        stream.short = if opened.elapsed() >= STREAM_LIVED { 0 } else { stream.short + 1 };
        stream_delay(stream.short)
    }

    /// A lost notification stream that cannot be opened again means that the server or our session is gone.
    fn watch(&self, result: &Result<BoxedSseResponse, Refusal>) {
        let mut stream = self.stream();
        match result {
            Ok(_) => {
                stream.was_open = true;
                stream.opened = Some(Instant::now());
                self.seen.set_push(Push::Live);
            }
            Err(StreamableHttpError::ServerDoesNotSupportSse) => self.seen.set_push(Push::None),
            Err(refusal) if stream.was_open && is_gone(refusal) => {
                (self.suspect)(format!("the notification stream is lost: {}", causes::of_http(refusal)));
            }
            Err(refusal) => {
                let push = if stream.was_open { Push::Reconnecting } else { Push::None };
                self.seen.set_push(push);
                tracing::debug!(%refusal, "MCP notification stream did not open");
            }
        }
    }

    /// Opens the stream. The first one is tried a few times, since nobody would open it later.
    async fn open_stream(&self, head: impl Fn() -> Head, last: Option<String>) -> Result<BoxedSseResponse, Refusal> {
        tokio::time::sleep(self.pause()).await;
        let mut tries = 0;
        loop {
            let result = answers::get(&self.http, &self.spool, head(), last.clone()).await;
            tries += 1;
            let again = !self.stream().was_open && tries < FIRST_TRIES && result.as_ref().is_err_and(is_passing);
            if !again {
                self.watch(&result);
                return result;
            }
            tokio::time::sleep(stream_delay(tries)).await;
        }
    }
}

fn stream_delay(times: u32) -> Duration {
    match times {
        0 => Duration::ZERO,
        times => FIRST_STREAM_DELAY.saturating_mul(1 << (times - 1).min(16)).min(MAX_STREAM_DELAY),
    }
}

fn is_gone(refusal: &Refusal) -> bool {
    if let StreamableHttpError::Client(error) = refusal {
        return error.is_connect() || error.status() == Some(http::StatusCode::NOT_FOUND);
    }
    matches!(refusal, StreamableHttpError::SessionExpired)
}

/// Whether the same may work a moment later.
fn is_passing(refusal: &Refusal) -> bool {
    let StreamableHttpError::Client(error) = refusal else { return false };
    error.status().is_none_or(|status| status.is_server_error() && status != http::StatusCode::NOT_IMPLEMENTED)
}

/// An error with all that caused it.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |error| error.source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Adds the call's trace context, so that a proxy on the way sees it too.
fn traced(
    mut headers: HashMap<HeaderName, HeaderValue>,
    message: &ClientJsonRpcMessage,
) -> HashMap<HeaderName, HeaderValue> {
    let ClientJsonRpcMessage::Request(request) = message else { return headers };
    for name in ["traceparent", "tracestate"] {
        let value = request.request.get_meta().get(name).and_then(|value| value.as_str());
        if let Some(Ok(value)) = value.map(HeaderValue::from_str) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    headers
}

fn begins(message: &ClientJsonRpcMessage) -> bool {
    let ClientJsonRpcMessage::Request(request) = message else { return false };
    matches!(request.request, ClientRequest::InitializeRequest(_))
}

impl StreamableHttpClient for Socket {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Refusal> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session_id, auth_header, custom_headers, limits).await
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        max_sse_event_size: usize,
    ) -> Result<StreamableHttpPostResponse, Refusal> {
        let mut limits = StreamableHttpResponseLimits::default();
        limits.max_sse_event_size = max_sse_event_size;
        self.post_message_with_response_limits(uri, message, session_id, auth_header, custom_headers, limits).await
    }

    /// The spool has bounds of its own, for every message.
    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        _: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, Refusal> {
        let headers = traced(custom_headers, &message);
        let head = Head { uri, session: session_id, bearer: auth_header, headers };
        let result = answers::post(&self.http, &self.spool, (head, &self.seen), &message).await;
        if begins(&message) && matches!(result, Ok(StreamableHttpPostResponse::Json(_, None))) {
            // Without a session there is no stream.
            self.seen.set_push(Push::None);
        }
        result
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Refusal> {
        let head = Head { uri, session: Some(session_id), bearer: auth_header, headers: custom_headers };
        answers::delete(&self.http, head).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxedSseResponse, Refusal> {
        let head = || Head {
            uri: uri.clone(),
            session: session_id.clone(),
            bearer: auth_header.clone(),
            headers: custom_headers.clone(),
        };
        self.open_stream(head, last_event_id).await
    }

    /// The spool has its own bound.
    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        _: usize,
    ) -> Result<BoxedSseResponse, Refusal> {
        self.get_stream(uri, session_id, last_event_id, auth_header, custom_headers).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_ends_at_once_is_opened_more_and_more_rarely() {
        // A test that ran before may have done it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let socket = Socket {
            http: Sender::new(&Dial::default(), credentials::Credentials::None).unwrap(),
            suspect: Arc::new(|_| {}),
            spool: Spool::new(None),
            seen: Seen::default(),
            stream: Arc::default(),
        };
        assert_eq!(socket.pause(), Duration::ZERO, "the first one is opened at once");
        socket.stream().opened = Some(Instant::now());
        let pauses: Vec<u128> = (0..9).map(|_| socket.pause().as_millis()).collect();
        assert_eq!(pauses, [250, 500, 1_000, 2_000, 4_000, 8_000, 15_000, 15_000, 15_000]);
        assert_eq!(socket.seen.push(), Push::Reconnecting);
        socket.stream().opened = Instant::now().checked_sub(STREAM_LIVED * 2);
        assert_eq!(socket.pause(), Duration::ZERO, "it was a stream");
    }
}

//! How this client speaks HTTP to MCP servers: pooled connections without Nagle's delay, no redirects, our headers, the
//! trace context of each call as `traceparent`, and a report when the server's notification stream fails.

use http::{HeaderName, HeaderValue};
use rmcp::{
    model::{ClientJsonRpcMessage, GetMeta},
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
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    answers::{self, Head},
    spool::Spool,
};
use crate::config::Secret;

/// Time to set up a TCP connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests under way on one connection; the bound that counts is the one on calls, this one must not be lower.
const MAX_REQUESTS: usize = 128;

/// Longest wait before the notification stream is opened again.
const MAX_STREAM_DELAY: Duration = Duration::from_secs(15);

/// Idle connections that are kept.
const IDLE_CONNECTIONS: usize = 8;

/// Called with the reason when the server is seen to fail.
pub(super) type Suspect = Arc<dyn Fn(String) + Send + Sync>;

type Refusal = StreamableHttpError<reqwest::Error>;

/// A transport to an endpoint.
///
/// # Errors
/// When a header cannot be sent or the HTTP client cannot be made.
pub(super) fn transport(
    endpoint: &str,
    headers: &[(String, Secret)],
    suspect: Suspect,
    spool: Spool,
) -> Result<StreamableHttpClientTransport<Socket>, String> {
    let http = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .tcp_nodelay(true)
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(|error| format!("make the HTTP client: {error}"))?;
    let mut backoff = ExponentialBackoff::default();
    backoff.max_delay = Some(MAX_STREAM_DELAY);
    let mut config = StreamableHttpClientTransportConfig::with_uri(endpoint)
        .max_concurrent_requests(MAX_REQUESTS)
        .custom_headers(custom_headers(headers)?);
    // A new session is a new connection of the actor: it lists the tools again, which rmcp would not.
    config.reinit_on_expired_session = false;
    config.retry_config = Arc::new(backoff);
    let socket = Socket { http, suspect, spool, streamed: Arc::new(AtomicBool::new(false)) };
    Ok(StreamableHttpClientTransport::with_client(socket, config))
}

fn custom_headers(headers: &[(String, Secret)]) -> Result<HashMap<HeaderName, HeaderValue>, String> {
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
    http: reqwest::Client,
    suspect: Suspect,
    spool: Spool,
    /// Whether the notification stream was open once: only then is its loss a sign of trouble.
    streamed: Arc<AtomicBool>,
}

impl Socket {
    /// A lost notification stream that cannot be opened again means that the server or our session is gone.
    fn watch(&self, result: &Result<BoxedSseResponse, Refusal>) {
        match result {
            Ok(_) => self.streamed.store(true, Ordering::Relaxed),
            Err(StreamableHttpError::ServerDoesNotSupportSse) => {}
            Err(refusal) if self.streamed.load(Ordering::Relaxed) && is_gone(refusal) => {
                (self.suspect)(format!("the notification stream is lost: {}", chain(refusal)));
            }
            Err(refusal) => tracing::debug!(%refusal, "MCP notification stream did not open"),
        }
    }
}

fn is_gone(refusal: &Refusal) -> bool {
    if let StreamableHttpError::Client(error) = refusal {
        return error.is_connect() || error.status() == Some(http::StatusCode::NOT_FOUND);
    }
    matches!(refusal, StreamableHttpError::SessionExpired)
}

fn chain(error: &dyn std::error::Error) -> String {
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

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, Refusal> {
        let headers = traced(custom_headers, &message);
        if let Some(id) = answers::tool_call(&message) {
            let (session, bearer) = (session_id.as_deref(), auth_header.as_deref());
            let head = Head { uri: &uri, session, bearer, headers };
            return answers::post(&self.http, &self.spool, head, (&message, id)).await;
        }
        self.http.post_message_with_response_limits(uri, message, session_id, auth_header, headers, limits).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Refusal> {
        self.http.delete_session(uri, session_id, auth_header, custom_headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxedSseResponse, Refusal> {
        let (session, bearer) = (session_id.as_deref(), auth_header.as_deref());
        let head = Head { uri: &uri, session, bearer, headers: custom_headers };
        let result = answers::get(&self.http, &self.spool, head, last_event_id).await;
        self.watch(&result);
        result
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

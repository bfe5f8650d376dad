//! The A2A doors of a node: JSON-RPC on the public listener for its callers, and on the peer listener for delegations.
//!
//! ```text
//! listener ─▶ principal ─▶ envelope ─▶ handler::decide ─▶ handler::perform ─▶ one answer | stream
//!  accept      who asks     JSON-RPC     a Decision          ClusterHandle
//! ```
//!
//! Both doors are the same router; only the peer door believes the headers that say on whose behalf an agent acts.
//! The SDK gives types, ProtoJSON and error codes. Its router is not used: it fills missing fields with defaults before
//! a handler sees them, allows one reason per error code, and numbers the frames of a stream by itself.

mod blob_door;
mod blobs;
mod cards;
mod envelope;
mod handler;
pub mod listener;
pub mod principal;
mod stream;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{Request, request::Parts};
use tokio_util::sync::CancellationToken;
use towline_a2a::WireError;
use towline_cluster::ClusterHandle;
use towline_core::{AgentName, TraceContext};
use towline_trace::{Kind, Span, names};

use envelope::{Call, Failure};
use handler::{Asked, Outcome};

/// What the A2A doors of a node need.
pub struct A2aSettings {
    /// The cluster.
    pub cluster: ClusterHandle,
    /// The agent behind `/`.
    pub front_door: AgentName,
    /// Base URL under which callers reach this node, without a slash at the end.
    pub public_url: String,
    /// Version of the binary, for the cards.
    pub version: String,
    /// Most open tasks that one principal may have; none means the default of the core.
    pub most_open: Option<u32>,
    /// Canceled when the node begins to stop: streams end, so that their clients go on elsewhere, and waits answer.
    pub stopping: CancellationToken,
}

/// Which listener a request came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// `listen.http`: the operator of this node.
    Public,
    /// `listen.peer`: nodes of this cluster.
    Peer,
}

/// The A2A routes of one door. There is no fallback, so that other routes can be merged in.
pub fn router(settings: Arc<A2aSettings>, door: Door) -> Router {
    let shared = Shared { settings, door };
    Router::new()
        .route("/", post(at_root))
        .route("/a2a/v1", post(at_fixed_path))
        .route("/a2a/v1/", post(at_fixed_path))
        .route("/agents/{agent}", post(at_agent))
        .route("/agents/{agent}/", post(at_agent))
        .route("/.well-known/agent-card.json", get(cards::of_mesh))
        .route("/agents/{agent}/.well-known/agent-card.json", get(cards::of_agent))
        .merge(blob_door::router())
        .with_state(shared)
}

#[derive(Clone)]
struct Shared {
    settings: Arc<A2aSettings>,
    door: Door,
}

async fn at_root(State(shared): State<Shared>, request: Request<Body>) -> Response {
    answer(&shared, None, "/", request).await
}

async fn at_fixed_path(State(shared): State<Shared>, request: Request<Body>) -> Response {
    answer(&shared, None, "/a2a/v1/", request).await
}

async fn at_agent(State(shared): State<Shared>, Path(agent): Path<String>, request: Request<Body>) -> Response {
    answer(&shared, Some(agent), "/agents/{agent}", request).await
}

/// One request, from its head to the head of its response. The HTTP span ends there: that of a stream does not last as
/// long as the stream, and is not lost with the node.
async fn answer(shared: &Shared, agent: Option<String>, route: &'static str, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let received = match principal::caller(&parts, shared) {
        Ok(caller) => envelope::receive(&parts, body).await.map(|call| (caller, call)),
        Err(refused) => return refused.into_response(),
    };
    let call = received.as_ref().ok().map(|(_, call)| call);
    let (mut span, metadata_trace) = http_span(&parts, route, call);
    let response = match received {
        Ok((caller, call)) => {
            let (id, http) = (call.id.clone(), span.context());
            let asked = Asked {
                agent: agent.as_deref(),
                caller,
                call,
                last_event_id: last_event_id(&parts),
                consistency: consistency(&parts),
                http,
            };
            respond(&shared.settings, asked, metadata_trace).await.unwrap_or_else(|error| {
                span.fail(error.reason, &error.message);
                Failure::new(id, error).into_response()
            })
        }
        Err(failure) => {
            span.fail(failure.error.reason, &failure.error.message);
            failure.into_response()
        }
    };
    span.set(names::HTTP_RESPONSE_STATUS_CODE, i64::from(response.status().as_u16()));
    response
}

async fn respond(
    settings: &Arc<A2aSettings>,
    asked: Asked<'_>,
    metadata_trace: Option<TraceContext>,
) -> Result<Response, WireError> {
    let id = asked.call.id.clone();
    match handler::handle(settings, asked, metadata_trace).await? {
        Outcome::Answer(result) => Ok(envelope::success(id, result)),
        Outcome::Stream(stream) => Ok(stream.into_response()),
    }
}

/// The span of the HTTP request. Its parent is the `traceparent` header; where there is none, or it is malformed, that of
/// the message's metadata. A second trace that came in the metadata is given back, to be linked.
fn http_span(parts: &Parts, route: &str, call: Option<&Call>) -> (Span, Option<TraceContext>) {
    let header: Option<TraceContext> =
        parts.headers.get("traceparent").and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    let metadata = call.and_then(Call::trace);
    let name = format!("POST {route}");
    let mut span = match header.or(metadata) {
        Some(parent) => Span::child(name, Kind::Server, &parent),
        None => Span::root(name, Kind::Server),
    };
    span.set(names::HTTP_REQUEST_METHOD, "POST");
    span.set(names::HTTP_ROUTE, route.to_owned());
    if let Some(listener::PeerAddress(address)) = parts.extensions.get() {
        span.set(names::CLIENT_ADDRESS, address.ip().to_string());
    }
    let other = header.zip(metadata).filter(|(header, metadata)| header.trace_id != metadata.trace_id);
    (span, other.map(|(_, metadata)| metadata))
}

/// What `?consistency=` asks for; the last one counts.
fn consistency(parts: &Parts) -> Option<String> {
    let pairs = parts.uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.rev().find(|(name, _)| *name == "consistency").map(|(_, value)| value.to_owned())
}

fn last_event_id(parts: &Parts) -> Option<u64> {
    parts.headers.get("last-event-id")?.to_str().ok()?.trim().parse().ok()
}

/// The range that a request for a blob asks for: for fuzzing.
pub(crate) fn blob_range_of(text: &str, length: u64) -> Option<std::ops::Range<u64>> {
    match blob_door::range_of(text, length) {
        blob_door::Asked::Range(range) => Some(range),
        blob_door::Asked::All | blob_door::Asked::Nothing => None,
    }
}

/// The parameters of a request, with what is read on the way: for fuzzing.
pub(crate) fn fuzz_request(body: &[u8]) -> Option<serde_json::Value> {
    let call = envelope::parse(body).ok()?;
    let _ = call.trace();
    Some(call.params)
}

#[cfg(test)]
#[expect(clippy::wildcard_enum_match_arm, reason = "anything else fails the test")]
mod tests;

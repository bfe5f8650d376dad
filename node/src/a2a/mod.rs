//! The A2A doors of a node: on the public listener for its callers, and on the peer listener for delegations.
//!
//! ```text
//! listener ─▶ auth::gate ─▶ jsonrpc ─▶ handler::decide ─▶ handler::perform ─▶ one answer | stream
//!  accept      who asks     rest        a Decision          ClusterHandle
//!                           grpc: a Call
//! ```
//!
//! The three bindings differ in how a request is read and an answer is written, and in nothing else. Both doors are the same router; only the peer door believes the headers that say on whose behalf an agent acts.
//! The SDK gives types, ProtoJSON and error codes. Its router is not used: it fills missing fields with defaults before
//! a handler sees them, allows one reason per error code, and numbers the frames of a stream by itself.

mod blob_door;
mod blobs;
mod call;
mod card_signer;
mod cards;
mod chain;
pub(crate) mod commands;
mod extensions;
mod grpc;
mod handler;
mod jsonrpc;
pub mod listener;
mod nowhere;
mod polite;
pub mod principal;
mod push;
mod rest;
mod stream;
mod structured;
pub mod unix;
mod visitor;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{Request, request::Parts};
use tokio_util::sync::CancellationToken;
use towline_a2a::WireError;
use towline_actors::egress::EgressPolicy;
use towline_cluster::ClusterHandle;
use towline_core::{AgentName, TraceContext};
use towline_trace::{Kind, Span, names};

pub use card_signer::{CardKeyError, CardSigner};
pub use nowhere::answered;

pub(crate) use call::{decode, read_body, read_up_to};

use call::{Binding, Call};
use cards::Cards;
use extensions::{Active, Condition, Marks};
use handler::{Asked, Outcome};
use jsonrpc::Failure;
use principal::Caller;

use crate::auth::{self, Auth};

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
    /// Who asks, and who may.
    pub auth: Arc<Auth>,
    /// Where webhooks of clients may lead; none where push notifications are off.
    pub push: Option<Arc<EgressPolicy>>,
    /// What cards are signed with, if they are.
    pub card_signer: Option<CardSigner>,
    /// The routes of the operator API, behind what says who may: commands are carried out there.
    pub api: Router,
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
    let auth = Arc::clone(&settings.auth);
    let shared = Shared { settings, door, cards: Arc::default() };
    let closed = Router::new()
        .route("/", post(at_root))
        .route("/a2a/v1", post(at_fixed_path))
        .route("/a2a/v1/", post(at_fixed_path))
        .route("/agents/{agent}", post(at_agent))
        .route("/agents/{agent}/", post(at_agent))
        .merge(rest::router())
        .merge(grpc::router());
    let blobs = blob_door::router();
    let behind_its_gate = match door {
        Door::Public => closed
            .merge(blobs.route_layer(middleware::from_fn(auth::authorize)))
            .route_layer(middleware::from_fn_with_state(auth, auth::gate)),
        Door::Peer => closed.merge(blobs),
    };
    behind_its_gate
        .route("/.well-known/agent-card.json", get(cards::of_mesh).options(cards::preflight))
        .route("/agents/{agent}/.well-known/agent-card.json", get(cards::of_agent).options(cards::preflight))
        .route("/.well-known/jwks.json", get(cards::keys).options(cards::preflight))
        .with_state(shared)
}

#[derive(Clone)]
struct Shared {
    settings: Arc<A2aSettings>,
    door: Door,
    cards: Arc<Cards>,
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

/// One request over JSON-RPC.
async fn answer(shared: &Shared, agent: Option<String>, route: &'static str, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let caller = match principal::caller(&parts, shared) {
        Ok(caller) => caller,
        Err(refused) => return refused.into_response(),
    };
    let (id, received) = match jsonrpc::receive(&parts, body).await {
        Ok((id, call)) => (id, Ok(call)),
        Err(failure) => (failure.id, Err(failure.error)),
    };
    let binding = Binding::JsonRpc { id: id.clone() };
    let asking = Asking { parts: &parts, agent: agent.as_deref(), route: route.to_owned(), binding };
    let Exchanged { result, mut span, marks } = exchange(shared, asking, caller, received).await;
    let mut response = match result {
        Ok(Outcome::Answer(result)) => jsonrpc::success(id, result),
        Ok(Outcome::Stream(stream)) => stream.into_response(),
        Err(error) => Failure::new(id, error).into_response(),
    };
    marks.put(response.headers_mut());
    span.set(names::HTTP_RESPONSE_STATUS_CODE, i64::from(response.status().as_u16()));
    response
}

/// Asks for a method for a caller that another door has let in: with all that the bindings check and bound.
///
/// # Errors
/// As the bindings answer them.
pub(crate) async fn ask(
    settings: &Arc<A2aSettings>,
    caller: Caller,
    agent: Option<&str>,
    method: &str,
    params: serde_json::Value,
    trace: TraceContext,
) -> Result<serde_json::Value, WireError> {
    let asked = Asked {
        agent,
        caller,
        door: Door::Public,
        binding: Binding::HttpJson,
        call: Call { method: method.to_owned(), params },
        last_event_id: None,
        consistency: None,
        active: Active::default(),
        condition: Condition::default(),
        http: trace,
    };
    match Box::pin(handler::handle(settings, asked, None, &mut trace.clone())).await? {
        Outcome::Answer(answer) => Ok(answer),
        Outcome::Stream(_) => Err(WireError::internal(format!("{method} is answered with a stream"))),
    }
}

/// The card of an agent; none where there is no such agent.
///
/// # Errors
/// When it cannot be made: a bug.
pub(crate) fn card_of(settings: &A2aSettings, agent: &str) -> Result<Option<serde_json::Value>, WireError> {
    cards::of(settings, agent)
}

/// A request that is refused before its id is known.
pub(crate) fn plain_failure(error: WireError) -> Response {
    Failure::from(error).into_response()
}

/// The head of a request, and where it came in.
struct Asking<'a> {
    parts: &'a Parts,
    /// The agent in the path; none is the front door.
    agent: Option<&'a str>,
    /// The path, with names where values stand.
    route: String,
    binding: Binding,
}

/// What came of a request.
struct Exchanged {
    result: Result<Outcome, WireError>,
    span: Span,
    marks: Marks,
}

/// One request of any binding, from its head to the head of its response. The span of the transport ends there, also that of
/// a stream: what is done for the task hangs below it, and would have lost its parent with the node otherwise. The stream
/// itself has a span of its own, with nothing below it.
async fn exchange(shared: &Shared, asking: Asking<'_>, caller: Caller, received: Result<Call, WireError>) -> Exchanged {
    let trusted = shared.settings.auth.trusts_trace_of(&caller.principal);
    let (mut span, metadata_trace) = transport_span(&asking, received.as_ref().ok(), trusted);
    let is_tls = shared.door == Door::Peer || shared.settings.public_url.starts_with("https:");
    span.set(names::URL_SCHEME, if is_tls { "https" } else { "http" });
    let Asking { parts, agent, binding, .. } = asking;
    let named = Active::named_in(&parts.headers);
    let active = if shared.door == Door::Peer { named.of_agents() } else { named };
    let mut trace = span.context();
    let received = received.and_then(|call| Ok((Condition::of(active, &call, &parts.headers)?, call)));
    let result = match received {
        Ok((condition, call)) => {
            let asked = Asked {
                agent,
                caller,
                binding,
                call,
                last_event_id: last_event_id(parts),
                consistency: consistency(parts),
                active,
                door: shared.door,
                condition,
                http: span.context(),
            };
            // Boxed: what all bindings go through is wide, and none of their futures has to hold it.
            Box::pin(handler::handle(&shared.settings, asked, metadata_trace, &mut trace)).await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = &result {
        span.fail(error.reason, &error.message);
    }
    Exchanged { result, span, marks: Marks { trace, active } }
}

/// The span of the request as HTTP or gRPC. Its parent is the `traceparent` header; where there is none, or it is malformed,
/// that of the message's metadata. A second trace that came in the metadata is given back, to be linked. Who is not trusted
/// with the choice of a trace gets a new one, with a link to what was said. Nothing else of a caller's context goes any
/// further: neither `tracestate` nor `baggage` is read.
fn transport_span(asking: &Asking<'_>, call: Option<&Call>, trusted: bool) -> (Span, Option<TraceContext>) {
    let Asking { parts, route, binding, .. } = asking;
    let header: Option<TraceContext> =
        parts.headers.get("traceparent").and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    let metadata = call.and_then(Call::trace);
    let name = match binding {
        Binding::JsonRpc { .. } | Binding::HttpJson => format!("{} {route}", parts.method),
        Binding::Grpc => route.trim_start_matches('/').to_owned(),
    };
    let mut span = match header.or(metadata) {
        Some(parent) if trusted => Span::child(name, Kind::Server, &parent),
        Some(said) => Span::root_beside(name, Kind::Server, said),
        None => Span::root(name, Kind::Server),
    };
    match binding {
        Binding::JsonRpc { .. } | Binding::HttpJson => {
            span.set(names::HTTP_REQUEST_METHOD, parts.method.to_string());
            span.set(names::HTTP_ROUTE, route.clone());
        }
        Binding::Grpc => {
            span.set(names::RPC_SYSTEM_NAME, "grpc");
            span.set(names::RPC_METHOD, route.trim_start_matches('/').to_owned());
        }
    }
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

/// What the path and the query of an HTTP+JSON request ask: for fuzzing.
pub(crate) fn fuzz_http_request(path: &str, query: &str) {
    rest::fuzz(path, query);
}

/// The parameters of a request, with what is read on the way: for fuzzing.
pub(crate) fn fuzz_request(body: &[u8]) -> Option<serde_json::Value> {
    let (_, call) = jsonrpc::parse(body).ok()?;
    let _ = call.trace();
    Some(call.params)
}

#[cfg(test)]
#[expect(clippy::wildcard_enum_match_arm, reason = "anything else fails the test")]
pub(crate) mod tests;

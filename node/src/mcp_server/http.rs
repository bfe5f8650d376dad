//! Streamable HTTP: a message in a POST, a stream of what the server says by itself behind a GET, the end of a session by DELETE.

use std::{net::IpAddr, sync::Arc};

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use futures::stream;
use http::{Extensions, HeaderMap, StatusCode, header, request::Parts};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use towline_core::TraceContext;
use towline_trace::{Kind, Span, names};

use super::{
    Ask, McpServer,
    dispatch::{self, Reply},
    gateway, headers,
    message::{self, Incoming, RpcError, code},
    revision::{self, Era, Speaker},
    session::{Live, MAX_SUBSCRIPTIONS, SessionId},
    sse,
    watch::{Watching, event_id, read_event_id},
};
use crate::{
    a2a::{self, principal::Caller},
    auth::{KernelVouches, StreamPlace},
};

/// Names a session.
pub(super) const SESSION: &str = "mcp-session-id";

/// From this revision on clients take an event that only says where they stand.
const TAKES_PLACES: &str = "2025-11-25";

/// When a client that lost its stream opens another, in milliseconds: soon, and not all at once with every other.
const RETRY_MS: u32 = 2_000;

/// A request that is not carried out.
pub(super) struct Refused {
    status: StatusCode,
    id: Value,
    error: RpcError,
}

impl Refused {
    pub(super) fn new(status: StatusCode, error: RpcError) -> Self {
        Self { status, id: Value::Null, error }
    }

    fn under(id: Value, error: RpcError) -> Self {
        Self { status: StatusCode::BAD_REQUEST, id, error }
    }

    pub(super) fn plain(status: StatusCode, message: &str) -> Self {
        Self::new(status, RpcError::invalid_request(message))
    }

    /// The head of the request is wrong.
    fn head(error: RpcError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error)
    }

    /// An ended session, another's, or none that was ever made here: the client begins another.
    fn no_session(id: Value) -> Self {
        let error = RpcError::invalid_request("this session is not known: begin another with initialize");
        Self { status: StatusCode::NOT_FOUND, id, error }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        json_response(self.status, &self.error.answer(self.id))
    }
}

fn json_response(status: StatusCode, body: &impl std::fmt::Display) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// The names under which clients may reach this node: a page that has its own name point here shows that one.
pub(crate) fn names(configured: &[String], public_url: &str) -> Vec<String> {
    let public = public_url.split_once("://").and_then(|(_, rest)| rest.split('/').next());
    let names = configured.iter().map(String::as_str).chain(public);
    names.map(|name| host_of(name).to_ascii_lowercase()).filter(|name| !name.is_empty()).collect()
}

/// A host without its port.
fn host_of(authority: &str) -> &str {
    match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    }
}

/// Whether a request names this node. An address cannot be another's name; the one that stands for all is nobody's.
fn check_host(names: &[String], headers: &HeaderMap, extensions: &Extensions) -> Result<(), Refused> {
    let refused = |message| Refused::new(StatusCode::FORBIDDEN, RpcError::invalid_request(message));
    own_host(names, headers, extensions).map_err(refused)
}

/// The same, or what is wrong with the name.
pub(crate) fn own_host(names: &[String], headers: &HeaderMap, extensions: &Extensions) -> Result<(), String> {
    if extensions.get::<KernelVouches>().is_some() {
        return Ok(());
    }
    let shown = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host_of(shown).to_ascii_lowercase();
    let is_address = name.parse::<IpAddr>().is_ok_and(|address| !address.is_unspecified());
    if name == "localhost" || is_address || names.contains(&name) {
        return Ok(());
    }
    Err(format!(
        "Host {:?} is not a name of this node: use its public_url, or list the name in mcp.serve.hosts",
        towline_a2a::shortened(shown)
    ))
}

/// Whether a client takes this type; one that does not say takes everything.
fn accepts(headers: &HeaderMap, wanted: &str) -> bool {
    let mut named = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).peekable();
    if named.peek().is_none() {
        return true;
    }
    let group = wanted.split('/').next().unwrap_or_default();
    named.flat_map(|value| value.split(',')).any(|range| {
        let mut pieces = range.split(';').map(str::trim);
        let essence = pieces.next().unwrap_or_default().to_ascii_lowercase();
        let is_refused = pieces.any(|piece| piece.strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0)));
        !is_refused && (essence == wanted || essence == "*/*" || essence == format!("{group}/*"))
    })
}

/// The session that a request names, if it names one.
fn session_of(
    server: &McpServer,
    headers: &HeaderMap,
    caller: &Caller,
    id: &Value,
) -> Result<Option<SessionId>, Refused> {
    let Some(text) = headers::one(headers, SESSION).map_err(Refused::head)? else { return Ok(None) };
    let session = SessionId::read(text, &caller.principal).filter(|session| !server.sessions.is_ended(session));
    session.map(Some).ok_or_else(|| Refused::no_session(id.clone()))
}

fn caller_of(parts: &Parts) -> Result<Caller, Refused> {
    let nobody = || Refused::plain(StatusCode::UNAUTHORIZED, "nobody is known to ask");
    parts.extensions.get::<Caller>().cloned().ok_or_else(nobody)
}

/// Who asks, where the request names this node.
pub(super) fn caller_at(server: &McpServer, parts: &Parts) -> Result<Caller, Refused> {
    check_host(&server.hosts, &parts.headers, &parts.extensions)?;
    caller_of(parts)
}

pub(super) async fn post(State(server): State<Arc<McpServer>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    // Boxed: what is behind it is wide, and the future of a connection need not hold it.
    Box::pin(received(server, parts, body)).await.unwrap_or_else(IntoResponse::into_response)
}

/// Takes a message, and answers it.
pub(super) async fn received(server: Arc<McpServer>, parts: Parts, body: Body) -> Result<Response, Refused> {
    let headers = &parts.headers;
    check_host(&server.hosts, headers, &parts.extensions)?;
    let caller = caller_of(&parts)?;
    if !accepts(headers, "application/json") || !accepts(headers, "text/event-stream") {
        let message = "Accept has to have application/json and text/event-stream: an answer is one of them";
        return Err(Refused::plain(StatusCode::NOT_ACCEPTABLE, message));
    }
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return Err(Refused::plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Content-Type has to be application/json"));
    }
    let body = a2a::read_body(headers, body).await.map_err(|error| Refused::new(error.http_status(), error.into()))?;
    let incoming = a2a::decode(body.len(), || message::parse(&body)).await;
    let incoming = incoming.map_err(|(id, error)| Refused::under(id, error))?;
    drop(body);
    let version = revision::header(headers).map_err(Refused::head)?;
    // What initialize asks for stands in its body, and is agreed on.
    match &incoming {
        Incoming::Request(request) if request.method == "initialize" => {}
        Incoming::Request(request) => {
            revision::check_spoken(version).map_err(|error| Refused::under(request.id.clone(), error))?;
        }
        Incoming::Notification { .. } | Incoming::Response { .. } => {
            revision::check_spoken(version).map_err(Refused::head)?
        }
    }
    match incoming {
        Incoming::Request(request) => asked(server, caller, &parts, version, request).await,
        Incoming::Notification { method, params } => {
            if version != Some(revision::STATELESS)
                && let Some(session) = session_of(&server, headers, &caller, &Value::Null)?
                && method == "notifications/cancelled"
                && let (Some(live), Some(request)) = (server.sessions.get(&session), params.get("requestId"))
            {
                live.take_back(request);
            }
            Ok(StatusCode::ACCEPTED.into_response())
        }
        Incoming::Response { id, outcome } => {
            let Some(session) = session_of(&server, headers, &caller, &Value::Null)? else {
                return Err(Refused::plain(StatusCode::BAD_REQUEST, "an answer belongs to a session: name it"));
            };
            if !server.sessions.get(&session).is_some_and(|live| live.answer(&id, outcome)) {
                tracing::debug!(%session, question = %id, "an answer comes to nobody");
            }
            Ok(StatusCode::ACCEPTED.into_response())
        }
    }
}

async fn asked(
    server: Arc<McpServer>,
    caller: Caller,
    parts: &Parts,
    version: Option<&str>,
    request: message::Request,
) -> Result<Response, Refused> {
    let headers = &parts.headers;
    let under = |error| Refused::under(request.id.clone(), error);
    let (speaker, session) = if revision::is_stateless(&request, version) {
        let speaker = revision::stateless(&request, version).map_err(under)?;
        headers::check(headers, &request).map_err(under)?;
        (speaker, None)
    } else if request.method == "initialize" {
        (Speaker::unknown(), None)
    } else {
        revision::check_known(version).map_err(under)?;
        let session = session_of(&server, headers, &caller, &request.id)?;
        (session.as_ref().map_or_else(Speaker::unknown, SessionId::speaker), session)
    };
    let era = speaker.era;
    let trusted = server.a2a.auth.trusts_trace_of(&caller.principal);
    let span = span(parts, &request, &speaker, session.as_ref(), trusted);
    let ask = Ask { server, caller, speaker, session, trace: span.context() };
    gateway::check_head(&ask, headers, &request).await.map_err(under)?;
    let id = request.id.clone();
    Ok(match dispatch::dispatch(ask, request, span).await {
        Reply::Answer(result) => json_response(StatusCode::OK, &message::result(id, result)),
        Reply::Whole(message) => json_response(StatusCode::OK, &message),
        Reply::Begun { session, result } => {
            let mut response = json_response(StatusCode::OK, &message::result(id, result));
            if let Ok(session) = session.to_string().parse() {
                response.headers_mut().insert(SESSION, session);
            }
            response
        }
        Reply::Error(error) => json_response(status_of(era, &error), &error.answer(id)),
        Reply::Stream(response) => response,
    })
}

/// Without sessions some errors have a status of their own, so that proxies see them.
fn status_of(era: Era, error: &RpcError) -> StatusCode {
    match (era, error.code) {
        (Era::Stateless, code::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        (Era::Stateless, code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION) => {
            StatusCode::BAD_REQUEST
        }
        (Era::Stateless | Era::Sessions, _) => StatusCode::OK,
    }
}

/// The SERVER span of a request, below the caller's if it sent its place in a trace and may choose one: in `_meta`, or in the
/// header, which is linked where both are there and differ.
pub(super) fn span(
    parts: &Parts,
    request: &message::Request,
    speaker: &Speaker,
    session: Option<&SessionId>,
    trusted: bool,
) -> Span {
    let target = Some("tools/call").filter(|method| request.method == *method);
    let target = target.and_then(|_| request.params.get("name")).and_then(Value::as_str).map(towline_a2a::shortened);
    let method = towline_a2a::shortened(&request.method);
    let name = target.as_ref().map_or_else(|| method.clone(), |target| format!("{method} {target}"));
    let parsed = |text: &str| text.parse::<TraceContext>().ok();
    let header = parts.headers.get("traceparent").and_then(|value| value.to_str().ok()).and_then(parsed);
    let meta = request.meta("traceparent").and_then(Value::as_str).and_then(parsed);
    let mut span = match meta.or(header) {
        Some(parent) if trusted => Span::child(name, Kind::Server, &parent),
        Some(said) => Span::root_beside(name, Kind::Server, said),
        None => Span::root(name, Kind::Server),
    };
    if let Some((header, _)) = header.zip(meta).filter(|(header, meta)| header.trace_id != meta.trace_id) {
        span.link(header, names::link::TRANSPORT);
    }
    span.set(names::MCP_METHOD_NAME, method);
    span.set(names::MCP_PROTOCOL_VERSION, speaker.version);
    span.set(names::JSONRPC_REQUEST_ID, request.id.as_str().map_or_else(|| request.id.to_string(), str::to_owned));
    if let Some(target) = target {
        span.set(names::GEN_AI_TOOL_NAME, target);
    }
    if let Some(session) = session {
        span.set(names::MCP_SESSION_ID, session.to_string());
    }
    span
}

pub(super) async fn delete(State(server): State<Arc<McpServer>>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    ended(&server, &parts).map_or_else(IntoResponse::into_response, |()| StatusCode::NO_CONTENT.into_response())
}

fn ended(server: &McpServer, parts: &Parts) -> Result<(), Refused> {
    let session = named_session(server, parts)?.0;
    server.sessions.end(&session);
    Ok(())
}

/// The session of a GET or a DELETE, and who asks. Where there are no sessions there is nothing to get.
fn named_session(server: &McpServer, parts: &Parts) -> Result<(SessionId, Caller), Refused> {
    check_host(&server.hosts, &parts.headers, &parts.extensions)?;
    let caller = caller_of(parts)?;
    let version = revision::header(&parts.headers).map_err(Refused::head)?;
    revision::check_spoken(version).map_err(Refused::head)?;
    if version.is_some_and(|version| version >= revision::STATELESS) {
        return Err(Refused::plain(StatusCode::METHOD_NOT_ALLOWED, "this revision has POST only"));
    }
    revision::check_known(version).map_err(Refused::head)?;
    let session = session_of(server, &parts.headers, &caller, &Value::Null)?;
    let missing = || Refused::plain(StatusCode::BAD_REQUEST, "the header Mcp-Session-Id is missing");
    Ok((session.ok_or_else(missing)?, caller))
}

pub(super) async fn get(State(server): State<Arc<McpServer>>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let mut response = listened(server, &parts).unwrap_or_else(IntoResponse::into_response);
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(header::ALLOW, http::HeaderValue::from_static("POST"));
    }
    response
}

/// Opens the stream of a session.
pub(super) fn listened(server: Arc<McpServer>, parts: &Parts) -> Result<Response, Refused> {
    let (session, caller) = named_session(&server, parts)?;
    if !accepts(&parts.headers, "text/event-stream") {
        return Err(Refused::plain(StatusCode::NOT_ACCEPTABLE, "Accept has to have text/event-stream"));
    }
    let place = place(&server, &caller).map_err(|error| Refused::new(StatusCode::TOO_MANY_REQUESTS, error))?;
    let full = |error| Refused::new(StatusCode::SERVICE_UNAVAILABLE, error);
    let live = server.sessions.open(&session).map_err(full)?;
    let last = headers::one(&parts.headers, "last-event-id").map_err(Refused::head)?;
    live.resume(|| {
        let mut seen = read_event_id(last.unwrap_or_default(), MAX_SUBSCRIPTIONS);
        // What is not there for this caller is nothing that it was told of. Of another server's that is found out when it is watched.
        server.a2a.cluster.local(|state| {
            seen.retain(|watched, _| watched.is_elsewhere() || watched.version(state, &caller.principal).is_some());
        });
        seen
    });
    let mut watching = Watching::new(Arc::clone(&server), caller.principal.clone());
    watching.set(&live.subscriptions());
    let takes_places = session.speaker().version >= TAKES_PLACES;
    let over = live.begin_stream();
    let listening = Listening { server, live, watching, over, takes_places, is_begun: false, _place: place };
    Ok(sse::response(stream::unfold(listening, |mut listening| async move {
        let frame = listening.next().await?;
        Some((frame, listening))
    })))
}

/// A place for a stream of a caller.
///
/// # Errors
/// When it has too many.
pub(super) fn place(server: &McpServer, caller: &Caller) -> Result<StreamPlace, RpcError> {
    server.a2a.auth.stream(caller).map_err(|refusal| RpcError::new(code::UNAVAILABLE, refusal.to_string()))
}

/// The stream of a session.
struct Listening {
    server: Arc<McpServer>,
    live: Arc<Live>,
    watching: Watching,
    /// Canceled when the session ends, or has another stream.
    over: CancellationToken,
    takes_places: bool,
    is_begun: bool,
    _place: StreamPlace,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.over.cancel();
    }
}

impl Listening {
    async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.is_begun, true) {
            return Some(self.first());
        }
        loop {
            tokio::select! {
                () = self.over.cancelled() => return None,
                () = self.server.a2a.stopping.cancelled() => return None,
                () = self.live.changed.notified() => {
                    self.watching.set(&self.live.subscriptions());
                    if self.takes_places {
                        return Some(sse::place(&event_id(&self.watching.seen())));
                    }
                }
                changed = self.watching.changed() => {
                    let seen = self.watching.seen();
                    self.live.saw(&seen);
                    let id = event_id(&seen);
                    let told = changed.iter().flat_map(|watched| sse::frame(Some(&id), &updated(&watched.uri(), None)));
                    return Some(told.collect());
                }
                () = tokio::time::sleep(sse::KEEP_ALIVE) => return Some(sse::beat()),
            }
        }
    }

    /// Something to read at once, so that a client knows that its stream is open.
    fn first(&self) -> Bytes {
        if !self.takes_places {
            return sse::beat();
        }
        let retry = format!("retry: {RETRY_MS}\n");
        [retry.as_bytes(), &sse::place(&event_id(&self.watching.seen()))].concat().into()
    }
}

/// The word that a resource has changed, tagged where a stream has an id.
pub(super) fn updated(uri: &str, subscription: Option<&Value>) -> Value {
    let mut params = json!({ "uri": uri });
    if let Some(subscription) = subscription {
        params["_meta"] = json!({ "io.modelcontextprotocol/subscriptionId": subscription });
    }
    message::notification("notifications/resources/updated", params)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn a_host_is_a_name_of_this_node_or_an_address() {
        let names = names(&["Mesh.example".to_owned()], "https://node.example:7420/t");
        let allowed = |host: &str| check_host(&names, &shown(header::HOST, host), &Extensions::new()).is_ok();
        for host in ["localhost", "127.0.0.1:7420", "[::1]:7420", "10.1.2.3", "mesh.example:1", "NODE.example:7420"] {
            assert!(allowed(host), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "0.0.0.0:7420", "[::]", "", "node.example.evil"] {
            assert!(!allowed(host), "{host}");
        }
        assert!(check_host(&names, &HeaderMap::new(), &Extensions::new()).is_err(), "none");
    }

    #[test]
    fn a_client_that_does_not_say_what_it_takes_takes_everything() {
        let both = |value: &str| {
            let headers = shown(header::ACCEPT, value);
            (accepts(&headers, "application/json"), accepts(&headers, "text/event-stream"))
        };
        assert!(accepts(&HeaderMap::new(), "application/json"));
        assert_eq!(both("*/*"), (true, true));
        assert_eq!(both("application/json, Text/Event-Stream; q=0.5"), (true, true));
        assert_eq!(both("application/json"), (true, false));
        assert_eq!(both("text/*, application/json;q=0"), (false, true));
        assert_eq!(both("text/html"), (false, false));
    }
}

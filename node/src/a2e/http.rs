//! A2E over HTTP: a session is begun, a message sent, and what comes back is read on a stream.

use std::sync::Arc;

use axum::{
    Json,
    body::Bytes,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use futures::stream;
use http::{HeaderName, StatusCode, header, request::Parts};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    Bridge, dispatch,
    message::{self, Code, Failure},
    session::Session,
};
use crate::{
    a2a::{self, principal::Caller},
    auth::StreamPlace,
    mcp_server::{http::own_host, sse},
};

/// Names a session.
const SESSION: HeaderName = HeaderName::from_static("x-session-id");

/// Where a stream goes on that broke.
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");

/// A request that is not taken.
pub(super) struct Refused(StatusCode, Failure);

impl Refused {
    fn new(status: StatusCode, code: Code, message: impl Into<String>) -> Self {
        Self(status, Failure::new(code, message))
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Refused(status, failure) = self;
        let retry = (status == StatusCode::SERVICE_UNAVAILABLE).then_some([(header::RETRY_AFTER, "5")]);
        (status, retry, Json(message::error("", &failure))).into_response()
    }
}

/// Shows that this host is there, and nothing else.
pub(super) async fn health() -> Response {
    Json(json!({ "status": "ok" })).into_response()
}

pub(super) async fn begin(State(bridge): State<Arc<Bridge>>, request: Request) -> Result<Response, Refused> {
    let (parts, _) = request.into_parts();
    let caller = caller(&bridge, &parts)?;
    let session = bridge.sessions.begin(&caller.principal).ok_or_else(|| {
        let why = "too many sessions are open here: shut some of them down, or ask another node";
        Refused::new(StatusCode::SERVICE_UNAVAILABLE, Code::Busy, why)
    })?;
    Ok(Json(json!({ "session_id": &*session.id })).into_response())
}

pub(super) async fn send(State(bridge): State<Arc<Bridge>>, request: Request) -> Result<Response, Refused> {
    let (parts, body) = request.into_parts();
    let caller = caller(&bridge, &parts)?;
    let session = session(&bridge, &parts, &caller)?;
    let body = a2a::read_body(&parts.headers, body).await;
    let body = body.map_err(|error| Refused::new(error.http_status(), Code::InvalidMessage, error.message))?;
    let incoming = a2a::decode(body.len(), || message::parse(&body)).await;
    match incoming {
        Ok(incoming) => {
            let parent = parts.headers.get("traceparent").and_then(|value| value.to_str().ok()?.parse().ok());
            dispatch::take(&bridge, &session, caller, incoming, parent);
        }
        // What cannot be answered on the stream is answered here.
        Err((id, failure)) if id.is_empty() => return Err(Refused(StatusCode::BAD_REQUEST, failure)),
        Err((id, failure)) => session.say(&message::error(&id, &failure)),
    }
    Ok((StatusCode::ACCEPTED, Json(json!({ "ok": true }))).into_response())
}

pub(super) async fn listen(State(bridge): State<Arc<Bridge>>, request: Request) -> Result<Response, Refused> {
    let (parts, _) = request.into_parts();
    let caller = caller(&bridge, &parts)?;
    let session = session(&bridge, &parts, &caller)?;
    let place = bridge.a2a.auth.stream(&caller);
    let place =
        place.map_err(|refusal| Refused::new(StatusCode::TOO_MANY_REQUESTS, Code::Busy, refusal.to_string()))?;
    let after = match parts.headers.get(LAST_EVENT) {
        None => None,
        Some(value) => {
            let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
            let wrong = || {
                let why = "Last-Event-ID has to be the id of an event: a whole number";
                Refused::new(StatusCode::BAD_REQUEST, Code::InvalidMessage, why)
            };
            Some(number.ok_or_else(wrong)?)
        }
    };
    let over = session.begin_stream(after);
    let listening = Listening { session, over, stopping: bridge.a2a.stopping.clone(), is_begun: false, _place: place };
    Ok(sse::response(stream::unfold(listening, |mut listening| async move {
        let frame = listening.next().await?;
        Some((frame, listening))
    })))
}

fn caller(bridge: &Bridge, parts: &Parts) -> Result<Caller, Refused> {
    let not_ours = |why| Refused::new(StatusCode::FORBIDDEN, Code::InvalidMessage, why);
    own_host(&bridge.hosts, &parts.headers, &parts.extensions).map_err(not_ours)?;
    let nobody = || Refused::new(StatusCode::UNAUTHORIZED, Code::InvalidMessage, "nobody is known to ask");
    parts.extensions.get::<Caller>().cloned().ok_or_else(nobody)
}

fn session(bridge: &Bridge, parts: &Parts, caller: &Caller) -> Result<Arc<Session>, Refused> {
    let missing = || Refused::new(StatusCode::BAD_REQUEST, Code::InvalidMessage, "the header X-Session-Id is missing");
    let id = parts.headers.get(SESSION).and_then(|id| id.to_str().ok()).ok_or_else(missing)?;
    bridge.sessions.get(id.trim(), &caller.principal).ok_or_else(|| {
        let why = "this session is not known: begin another with POST /a2e/session";
        Refused::new(StatusCode::NOT_FOUND, Code::InvalidMessage, why)
    })
}

/// The stream of a session.
struct Listening {
    session: Arc<Session>,
    /// Canceled when the session ends, or has another stream.
    over: CancellationToken,
    stopping: CancellationToken,
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
        // Something to read at once, so that an agent knows that its stream is open.
        if !std::mem::replace(&mut self.is_begun, true) {
            return Some(sse::beat());
        }
        tokio::select! {
            biased;
            () = self.over.cancelled() => None,
            () = self.stopping.cancelled() => None,
            (number, text) = self.session.next() => {
                let head = format!("id: {number}\ndata: ");
                Some([head.as_bytes(), &text, b"\n\n"].concat().into())
            }
            () = tokio::time::sleep(sse::KEEP_ALIVE) => Some(sse::beat()),
        }
    }
}

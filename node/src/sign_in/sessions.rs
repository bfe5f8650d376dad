//! What a session opens, and how that ends: the guard before all routes looks up the token of a request, and ends the wait and the stream of a request once its session is revoked or over.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use hyper::body::{Frame, SizeHint};
use serde_json::json;
use tokio::sync::{broadcast::error::RecvError, watch};
use tokio_util::sync::CancellationToken;
use towline_cluster::ClusterHandle;
use towline_core::{Effect, SecretHash, SignIn, Timestamp};

use super::{SignIns, now, secrets::is_token};

/// The use of a session is noted when its last mark is older than this.
const SEEN_EVERY: Duration = Duration::from_secs(5 * 60);

/// How often such notes are put into the log, all together.
const NOTE_EVERY: Duration = Duration::from_secs(10);

/// Answers up to this are on their way at once, and nothing is gained by watching over them.
const SHORT_ANSWER: u64 = 64 * 1024;

/// A session that is good, as one request sees it.
#[derive(Debug, Clone)]
struct SignedIn {
    token: SecretHash,
    expires: Timestamp,
}

/// Why a token opens nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum SessionRefused {
    /// It is not the token of a session, or not any more.
    #[error("this session is not known: it is over, or was revoked; sign in again with `towline auth login`")]
    Unknown,
    /// Whether it is, cannot be found out now.
    #[error("whether this session is good cannot be found out now: {reason}")]
    Unavailable {
        /// Why.
        reason: String,
    },
}

impl SignIns {
    /// The session that a token opens. What this node does not know yet, or cannot be sure of since it may be cut off, is asked of
    /// the cluster.
    ///
    /// # Errors
    /// When it is nobody's, or nobody answers.
    async fn resolve(&self, token: &str) -> Result<SignedIn, SessionRefused> {
        let hash = SecretHash::of(token);
        let look = |state: &towline_core::State, now| {
            state.session(&hash, now).map(|session| {
                let signed_in = SignedIn { token: hash.clone(), expires: session.expires };
                (signed_in, session.seen)
            })
        };
        let at = now(&self.cluster);
        let mut found = self.cluster.local(|state| look(state, at));
        if found.is_none() || !self.cluster.may_act() {
            let unavailable = |reason: String| SessionRefused::Unavailable { reason };
            let _permit = self.looks.try_acquire().map_err(|_| unavailable("too many such questions".to_owned()))?;
            let asked = self.cluster.read(|state| look(state, at)).await;
            found = asked.map_err(|error| unavailable(error.reason))?;
        }
        let (signed_in, seen) = found.ok_or(SessionRefused::Unknown)?;
        let is_old = seen.is_none_or(|seen| at.0.saturating_sub(seen.0) > SEEN_EVERY.as_millis() as u64);
        if is_old {
            self.used().insert(hash);
        }
        Ok(signed_in)
    }

    /// Watches for sessions that end, and notes which are used, until `stop`.
    pub async fn watch(self: Arc<Self>, stop: CancellationToken) {
        let mut effects = self.cluster.effects();
        let mut notes = tokio::time::interval(NOTE_EVERY);
        notes.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                effect = effects.recv() => match effect {
                    Ok(Effect::SessionsEnded) | Err(RecvError::Lagged(_)) => self.ended.send_modify(|count| *count += 1),
                    Ok(
                        Effect::Start { .. }
                        | Effect::Stop { .. }
                        | Effect::Changed { .. }
                        | Effect::PlacementChanged
                        | Effect::Webhook { .. },
                    ) => {}
                    Err(RecvError::Closed) => return,
                },
                _ = notes.tick() => self.note_used().await,
            }
        }
    }

    async fn note_used(&self) {
        let tokens: Vec<SecretHash> = std::mem::take(&mut *self.used()).into_iter().collect();
        if tokens.is_empty() {
            return;
        }
        if let Err(error) = self.propose(SignIn::Seen { tokens }).await {
            tracing::debug!(%error, "note which sessions are used: they are noted when they are used again");
        }
    }

    fn life(&self, signed_in: &SignedIn) -> Life {
        let SignedIn { token, expires } = signed_in.clone();
        Life { cluster: self.cluster.clone(), token, expires, ended: self.ended.subscribe() }
    }
}

/// The rest of a session's life, as far as one request is concerned.
struct Life {
    cluster: ClusterHandle,
    token: SecretHash,
    expires: Timestamp,
    ended: watch::Receiver<u64>,
}

impl Life {
    /// Returns when the session is over.
    async fn over(mut self) {
        loop {
            let at = now(&self.cluster);
            if self.cluster.local(|state| state.session(&self.token, at).is_none()) {
                return;
            }
            let left = Duration::from_millis(self.expires.0.saturating_sub(at.0).max(1));
            tokio::select! {
                changed = self.ended.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(left) => {}
            }
        }
    }
}

/// The token of a session that a request presents; other credentials are none of ours.
fn presented(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && is_token(token))
}

/// Stands before all routes: makes sure that this node knows what there is to know of the token of a request, and ends the
/// request with its session. Who asks, and whether that one may, is said behind it, by the gate.
pub async fn guard(State(sign_ins): State<Arc<SignIns>>, request: Request, next: Next) -> Response {
    let Some(token) = presented(request.headers()) else { return next.run(request).await };
    let signed_in = match sign_ins.resolve(token).await {
        Ok(signed_in) => signed_in,
        Err(SessionRefused::Unknown) => return next.run(request).await,
        Err(refused @ SessionRefused::Unavailable { .. }) => return not_now(&refused, is_grpc(request.headers())),
    };
    let is_grpc = is_grpc(request.headers());
    let life = sign_ins.life(&signed_in);
    let mut over: Over = Box::pin(life.over());
    let response = tokio::select! {
        response = next.run(request) => response,
        () = &mut over => return revoked(is_grpc),
    };
    response.map(|body| guarded(body, over, is_grpc))
}

type Over = Pin<Box<dyn Future<Output = ()> + Send>>;

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// The answer to a request of whose session nothing can be said.
fn not_now(refused: &SessionRefused, is_grpc: bool) -> Response {
    if is_grpc {
        let status = [("content-type", "application/grpc"), ("grpc-status", "14"), ("grpc-message", "try again")];
        return (status, Body::empty()).into_response();
    }
    let body = json!({ "error": { "code": "unavailable", "message": refused.to_string() } });
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::RETRY_AFTER, "1")];
    (StatusCode::SERVICE_UNAVAILABLE, headers, body.to_string()).into_response()
}

/// The answer to a request whose session ended while it waited.
fn revoked(is_grpc: bool) -> Response {
    if is_grpc {
        return ([(header::CONTENT_TYPE, "application/grpc")], grpc_status(), Body::empty()).into_response();
    }
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::WWW_AUTHENTICATE, "Bearer realm=\"towline\", error=\"invalid_token\""),
    ];
    let body = json!({ "error": { "code": "unauthenticated", "message": SessionRefused::Unknown.to_string() } });
    (StatusCode::UNAUTHORIZED, headers, body.to_string()).into_response()
}

/// What gRPC says for it.
fn grpc_status() -> HeaderMap {
    let message = HeaderValue::from_static("this session is over or was revoked");
    HeaderMap::from_iter([
        (header::HeaderName::from_static("grpc-status"), HeaderValue::from_static("16")),
        (header::HeaderName::from_static("grpc-message"), message),
    ])
}

fn guarded(body: Body, over: Over, is_grpc: bool) -> Body {
    if body.is_end_stream() || body.size_hint().exact().is_some_and(|length| length <= SHORT_ANSWER) {
        return body;
    }
    Body::new(Guarded { body, over: Some(over), is_grpc })
}

/// A body that ends with its session.
struct Guarded {
    body: Body,
    /// None once it is over.
    over: Option<Over>,
    is_grpc: bool,
}

impl HttpBody for Guarded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(over) = &mut self.over else { return Poll::Ready(None) };
        if over.as_mut().poll(context).is_ready() {
            self.over = None;
            self.body = Body::empty();
            return Poll::Ready(self.is_grpc.then(|| Ok(Frame::trailers(grpc_status()))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.over.is_none() || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body that says one word and stays open, in the hands of a session that is over once the sender says so.
    fn open_body(is_grpc: bool) -> (tokio::sync::oneshot::Sender<()>, Body) {
        use futures::StreamExt as _;
        let (end, ended) = tokio::sync::oneshot::channel();
        let words =
            futures::stream::iter([Ok::<_, std::convert::Infallible>("word")]).chain(futures::stream::pending());
        let over: Over = Box::pin(async { drop(ended.await) });
        (end, guarded(Body::from_stream(words), over, is_grpc))
    }

    async fn frame(body: &mut Body) -> Option<Frame<Bytes>> {
        let next = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        tokio::time::timeout(Duration::from_secs(30), next).await.expect("a frame, or the end").map(Result::unwrap)
    }

    #[tokio::test]
    async fn a_body_ends_with_its_session_and_grpc_is_told_why() {
        let (end, mut body) = open_body(false);
        assert_eq!(frame(&mut body).await.unwrap().into_data().unwrap(), "word");
        end.send(()).unwrap();
        assert!(frame(&mut body).await.is_none());
        assert!(frame(&mut body).await.is_none(), "and stays so");

        let (end, mut body) = open_body(true);
        frame(&mut body).await.unwrap();
        end.send(()).unwrap();
        let trailers = frame(&mut body).await.unwrap().into_trailers().unwrap();
        assert_eq!(trailers["grpc-status"], "16");
        assert!(frame(&mut body).await.is_none());
    }

    #[test]
    fn only_a_token_of_ours_is_looked_up() {
        let of = |value: &str| {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
            presented(&headers).map(str::to_owned)
        };
        assert_eq!(of("Bearer towline_st_abc").as_deref(), Some("towline_st_abc"));
        assert_eq!(of("bearer  towline_st_abc").as_deref(), Some("towline_st_abc"));
        for other in ["Basic towline_st_abc", "Bearer abc", "towline_st_abc", "Bearer"] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(of(&format!("Bearer towline_st_{}", "a".repeat(200))), None);
        assert_eq!(presented(&HeaderMap::new()), None);
    }
}

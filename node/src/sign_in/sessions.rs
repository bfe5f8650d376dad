//! What a session opens, and how that ends: the guard before all routes looks up the token of a request, and ends the wait and the stream of a request once its session is revoked or over.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode, header};
use serde_json::json;
use tokio::sync::{broadcast::error::RecvError, watch};
use tokio_util::sync::CancellationToken;
use towline_cluster::ClusterHandle;
use towline_core::{Effect, SecretHash, SignIn, Timestamp};

use super::{SignIns, limiter::source_of, now, secrets::is_token};
use crate::{
    a2a::listener::PeerAddress,
    auth::lasting::{self, is_grpc},
};

/// The use of a session is noted when its last mark is older than this.
const SEEN_EVERY: Duration = Duration::from_secs(5 * 60);

/// How often such notes are put into the log, all together.
const NOTE_EVERY: Duration = Duration::from_secs(10);

/// Why what a session has opened ends with it.
const OVER: &str = "this session is over or was revoked: sign in again with `towline auth login`";

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
    /// the cluster, for a source with its bound.
    ///
    /// # Errors
    /// When it is nobody's, or nobody answers.
    async fn resolve(&self, token: &str, source: &str) -> Result<SignedIn, SessionRefused> {
        let hash = SecretHash::of(token);
        let look = |state: &towline_core::State, now| {
            state.session(&hash, now).map(|session| {
                let signed_in = SignedIn { token: hash.clone(), expires: session.expires };
                (signed_in, session.seen)
            })
        };
        let at = now(&self.cluster);
        let mut found = self.cluster.local(|state| look(state, at));
        if found.is_none() && self.looks.is_nobodys(&hash) {
            return Err(SessionRefused::Unknown);
        }
        if found.is_none() || !self.cluster.may_act() {
            let caught_up = self.looks.catch_up(&self.cluster, source).await;
            caught_up.map_err(|reason| SessionRefused::Unavailable { reason })?;
            found = self.cluster.local(|state| look(state, at));
            // One that is over by the clock of this node is somebody's all the same.
            if self.cluster.local(|state| state.session(&hash, Timestamp(0)).is_none()) {
                self.looks.note_nobodys(&hash);
            }
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
                        | Effect::Webhook { .. }
                        | Effect::Triggers,
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
    let address = request.extensions().get().map(|PeerAddress(address)| address.ip());
    let source = address.map_or_else(String::new, source_of);
    let signed_in = match sign_ins.resolve(token, &source).await {
        Ok(signed_in) => signed_in,
        Err(SessionRefused::Unknown) => return next.run(request).await,
        Err(refused @ SessionRefused::Unavailable { .. }) => return not_now(&refused, is_grpc(request.headers())),
    };
    let is_grpc = is_grpc(request.headers());
    let over = Box::pin(sign_ins.life(&signed_in).over());
    lasting::until(over, OVER, is_grpc, next.run(request)).await
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_token_of_ours_is_looked_up() {
        let of = |value: &str| {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
            presented(&headers).map(str::to_owned)
        };
        let token = crate::sign_in::secrets::secret(crate::sign_in::secrets::TOKEN_PREFIX).unwrap();
        assert_eq!(of(&format!("Bearer {token}")), Some(token.clone()));
        assert_eq!(of(&format!("bearer  {token}")), Some(token.clone()));
        for other in [format!("Basic {token}"), "Bearer abc".into(), token.clone(), "Bearer".into()] {
            assert_eq!(of(&other), None, "{other}");
        }
        assert_eq!(of(&format!("Bearer {token}x")), None);
        assert_eq!(presented(&HeaderMap::new()), None);
    }
}

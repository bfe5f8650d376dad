//! Why a request is not taken, and how that is said on the binding that it came over. A refusal is one plain answer, and never
//! an event of a stream.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Request, StatusCode, header};
use serde_json::{Value, json};
use towline_a2a::WireError;

use crate::a2a::plain_failure;

/// The challenge to who shows nothing, and to who shows what is wrong (RFC 6750, 3).
const CHALLENGE: &str = "Bearer realm=\"towline\"";
const CHALLENGE_AGAIN: &str = "Bearer realm=\"towline\", error=\"invalid_token\"";

/// Why a request is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// A page that the operator did not list.
    #[error(
        "requests of this origin are refused: a page acts for whoever looks at it, and the operator did not list it in auth.origins"
    )]
    Origin,
    /// A name that is not this node's.
    #[error("Host {host:?} is not a name of this node: use localhost, 127.0.0.1 or the node's public_url")]
    Host {
        /// What was asked for.
        host: String,
    },
    /// Nothing was shown that says who asks.
    #[error("who are you? Show a credential that the agent card names, such as `Authorization: Bearer TOKEN`")]
    Nobody,
    /// Something was shown that is wrong.
    #[error(
        "the bearer is not good here: it is unknown, over, or of another issuer; sign in again, or ask the operator for one"
    )]
    Failed,
    /// A call of a webhook that shows nothing right, or of none that there is.
    #[error(
        "no webhook takes this call: its URL ends with the name of a trigger, and it shows the bearer of it, or the HMAC-SHA256 of its \
         body in hex in the header that the configuration names (X-Hub-Signature-256 if none)"
    )]
    Hook,
    /// A client certificate that no rule means.
    #[error("the client certificate is verified, and no rule in auth.principals means it")]
    NoRule,
    /// The source has failed too often.
    #[error("too many wrong credentials came from this address: wait before showing another")]
    Guessing {
        /// When another may come.
        wait: Duration,
    },
    /// The principal asks too much.
    #[error("too many requests of one principal: limits.requests_per_second")]
    TooMany {
        /// When another may come.
        wait: Duration,
    },
    /// The principal has too many streams open.
    #[error("too many open streams of one principal: limits.streams_per_principal")]
    TooManyStreams,
    /// The keys of the issuer cannot be had.
    #[error("the keys of the token's issuer cannot be had at the moment")]
    NoKeys,
    /// The caller may not ask for this.
    #[error("{who} may not ask for {what}")]
    NotAllowed {
        /// Who asks.
        who: String,
        /// What for.
        what: String,
    },
    /// The token is good, and was given for less than this takes.
    #[error("the token lacks the scope {scope:?}: ask its issuer for one that has it")]
    Scope {
        /// What it lacks.
        scope: String,
    },
}

/// When another stream may have a place, and when an issuer may be reached: somebody has to do something first.
const LATER: Duration = Duration::from_secs(5);

impl Refusal {
    /// As an error of A2A.
    pub fn to_wire(&self) -> WireError {
        let text = self.to_string();
        match self {
            Refusal::Origin
            | Refusal::Host { .. }
            | Refusal::NoRule
            | Refusal::NotAllowed { .. }
            | Refusal::Scope { .. } => WireError::permission_denied(text),
            Refusal::Nobody | Refusal::Failed | Refusal::Hook => WireError::unauthenticated(text),
            Refusal::Guessing { wait } | Refusal::TooMany { wait } => WireError::rate_limited(text, *wait),
            Refusal::TooManyStreams => WireError::rate_limited(text, LATER),
            Refusal::NoKeys => WireError::unavailable(text).retry_after(LATER),
        }
    }

    /// What the answer asks for, if it asks for a credential.
    fn challenge(&self) -> Option<HeaderValue> {
        match self {
            Refusal::Nobody | Refusal::Hook => Some(HeaderValue::from_static(CHALLENGE)),
            Refusal::Failed => Some(HeaderValue::from_static(CHALLENGE_AGAIN)),
            // A scope that no header can carry is none that a token could have.
            Refusal::Scope { scope } => {
                format!("{CHALLENGE}, error=\"insufficient_scope\", scope=\"{scope}\"").parse().ok()
            }
            Refusal::Origin
            | Refusal::Host { .. }
            | Refusal::NoRule
            | Refusal::Guessing { .. }
            | Refusal::TooMany { .. }
            | Refusal::TooManyStreams
            | Refusal::NoKeys
            | Refusal::NotAllowed { .. } => None,
        }
    }

    /// The answer.
    pub fn answer(&self, style: Style) -> Response {
        let error = self.to_wire();
        let mut response = match style {
            Style::JsonRpc => plain_failure(error),
            Style::HttpJson => json_answer(&error, "application/a2a+json", error.to_http_json()),
            Style::Grpc => error.to_grpc().into_http(),
            Style::Api => {
                let code = error.reason.to_lowercase();
                json_answer(&error, "application/json", json!({ "error": { "code": code, "message": error.message } }))
            }
        };
        if let Some(challenge) = self.challenge() {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

fn json_answer(error: &WireError, content_type: &'static str, body: Value) -> Response {
    let status: StatusCode = error.http_status();
    let mut response = (status, [(header::CONTENT_TYPE, content_type)], body.to_string()).into_response();
    if let Some(seconds) = error.retry_after_seconds() {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// How a refusal is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// A JSON-RPC error.
    JsonRpc,
    /// A `google.rpc.Status` in JSON.
    HttpJson,
    /// A status of gRPC.
    Grpc,
    /// That of the blob door and the operator API.
    Api,
}

impl Style {
    /// As the path and the content type of a request say.
    pub fn of<B>(request: &Request<B>) -> Self {
        let content_type = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        let path = request.uri().path();
        if content_type.starts_with(b"application/grpc") {
            Style::Grpc
        } else if path.starts_with("/api/") || path.starts_with("/blobs") {
            Style::Api
        } else if path.starts_with("/rest/") || path.contains("/rest/") {
            Style::HttpJson
        } else {
            Style::JsonRpc
        }
    }
}

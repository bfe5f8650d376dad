//! Calls from outside that start tasks: `POST /hooks/{trigger}`. Not behind the gate of the other routes, since who calls shows
//! the credential of this one trigger and can do nothing else with it; with the same bounds on failures, rates and bodies.
//!
//! A call starts one task however often it comes: a signed one by what it says, since nothing else of it is signed, and another by the
//! key that its sender gives it.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, State},
    response::{IntoResponse, Response},
    routing::post,
};
use http::{HeaderMap, HeaderName, Request, StatusCode};
use ring::hmac;
use serde_json::json;
use towline_actors::{
    Secret,
    triggers::{self, Event, FireError},
};
use towline_core::{Occasion, Principal, Rejection, TriggerName};

use crate::{
    a2a::read_up_to,
    api::{Api, ApiError},
    auth::{Refusal, Sha256, Style},
};

/// Largest body of a call: what happened, and no document.
const MAX_BODY_BYTES: usize = 256 * 1024;

/// Longest key of a call: a UUID, a hash, an id of some system.
const MAX_KEY_BYTES: usize = 128;

/// The webhooks of this node, by trigger.
pub type Hooks = BTreeMap<TriggerName, HookSettings>;

/// What a call has to show.
#[derive(Debug, Clone)]
pub struct HookSettings {
    /// The credential.
    pub credential: HookCredential,
    /// The header whose value tells one call from another.
    pub key_header: HeaderName,
}

/// How a call shows that it is meant.
#[derive(Debug, Clone)]
pub enum HookCredential {
    /// HMAC-SHA256 over the body, in hex, with or without `sha256=` before it.
    Hmac {
        /// What both sides know.
        secret: Secret,
        /// Where it stands.
        header: HeaderName,
    },
    /// A bearer.
    Bearer(Secret),
}

pub(crate) fn routes() -> Router<Arc<Api>> {
    Router::new().route("/hooks/{trigger}", post(call))
}

async fn call(State(api): State<Arc<Api>>, Path(name): Path<String>, request: Request<Body>) -> Response {
    match take(&api, &name, request).await {
        Ok((task, created)) => {
            let status = if created { StatusCode::ACCEPTED } else { StatusCode::OK };
            (status, Json(json!({ "created": created, "task": task }))).into_response()
        }
        Err(Refused::Caller(refusal)) => refusal.answer(Style::Api),
        Err(Refused::Call(error)) => error.into_response(),
    }
}

/// Why a call starts nothing.
enum Refused {
    Caller(Refusal),
    Call(ApiError),
}

async fn take(api: &Api, name: &str, request: Request<Body>) -> Result<(String, bool), Refused> {
    let (parts, body) = request.into_parts();
    let known = name.parse::<TriggerName>().ok().and_then(|name| Some((api.hooks.get(&name)?, name)));
    // Whether there is such a trigger is nobody's business who cannot call it.
    let Some((settings, name)) = known else { return Err(Refused::Caller(api.auth.hook_failed(&parts.extensions))) };
    if let HookCredential::Bearer(secret) = &settings.credential
        && !shows(&parts.headers, secret)
    {
        return Err(Refused::Caller(api.auth.hook_failed(&parts.extensions)));
    }
    let body = read_up_to(MAX_BODY_BYTES, &parts.headers, body).await.map_err(|error| {
        Refused::Call(match error.http_status() {
            status @ StatusCode::PAYLOAD_TOO_LARGE => {
                let message = format!("the body has more than {MAX_BODY_BYTES} bytes");
                ApiError::new(status, "body_too_large", message)
            }
            status => ApiError::new(status, "invalid_request", error.message),
        })
    })?;
    if let HookCredential::Hmac { secret, header } = &settings.credential
        && !is_signed(&parts.headers, header, secret, &body)
    {
        return Err(Refused::Caller(api.auth.hook_failed(&parts.extensions)));
    }
    // Counted once it is known to be meant: who shows nothing right takes nothing from who does.
    api.auth.hook_rate(&name).map_err(Refused::Caller)?;
    let invalid = |message: String| Refused::Call(ApiError::new(StatusCode::BAD_REQUEST, "invalid_request", message));
    let key = key_of(&parts.headers, settings, &body).map_err(invalid)?;
    let text = String::from_utf8(body).map_err(|_| invalid("the body is no text in UTF-8".to_owned()))?;
    let spec = api.cluster.local(|state| state.trigger(&name).map(|trigger| trigger.spec.clone()));
    let spec = spec.filter(|spec| !spec.has_owner()).ok_or_else(|| {
        let message = format!("trigger {name} is not known to the cluster yet: try again in a moment");
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message);
        Refused::Call(error.retry_after(std::time::Duration::from_secs(1)))
    })?;
    let event = (!text.is_empty()).then(|| Event { source: format!("webhook {name}"), text });
    let by = Principal::Node(api.cluster.node_id());
    let fired = triggers::fire(&api.cluster, by, &spec, Occasion::Call { key }, (event, 0)).await;
    fired.map(|(task, created)| (task.to_string(), created)).map_err(|error| Refused::Call(not_fired(error)))
}

/// What is told to who wanted a trigger to fire.
pub(crate) fn not_fired(error: FireError) -> ApiError {
    match error {
        FireError::Refused(rejection @ Rejection::UnknownTrigger { .. }) => {
            ApiError::new(StatusCode::NOT_FOUND, "unknown_trigger", rejection.to_string())
        }
        FireError::Refused(rejection) => towline_cluster::ProposeError::Rejected(rejection).into(),
        FireError::Unavailable(error) => error.into(),
        FireError::NotKept(error) => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", error.to_string())
            .retry_after(error.retry_after().unwrap_or_default()),
    }
}

fn shows(headers: &HeaderMap, secret: &Secret) -> bool {
    let bearer = crate::auth::bearer_of(headers).unwrap_or_default();
    Sha256::of(bearer).is(&Sha256::of(secret.expose().as_bytes()))
}

fn is_signed(headers: &HeaderMap, header: &HeaderName, secret: &Secret, body: &[u8]) -> bool {
    let shown = headers.get(header).map(http::HeaderValue::as_bytes).unwrap_or_default();
    let Some(tag) = unhex(shown.strip_prefix(b"sha256=").unwrap_or(shown)) else { return false };
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose().as_bytes());
    hmac::verify(&key, body, &tag).is_ok()
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
    if rest.is_empty() { bytes } else { None }
}

/// What tells a call from others.
fn key_of(headers: &HeaderMap, settings: &HookSettings, body: &[u8]) -> Result<String, String> {
    if let HookCredential::Hmac { .. } = settings.credential {
        // Who has seen a signed call can put another key beside it, and sends it again for nothing.
        return Ok(format!("body-{}", Sha256::of(body)));
    }
    let Some(shown) = headers.get(&settings.key_header) else { return Ok(uuid::Uuid::now_v7().to_string()) };
    let key = shown.to_str().unwrap_or_default().trim();
    if key.is_empty() || key.len() > MAX_KEY_BYTES || !key.chars().all(|c| c.is_ascii_graphic()) {
        let header = &settings.key_header;
        return Err(format!("{header} is a text of 1 to {MAX_KEY_BYTES} visible characters"));
    }
    Ok(key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().unwrap())])
    }

    fn hook(credential: HookCredential) -> HookSettings {
        HookSettings { credential, key_header: HeaderName::from_static("idempotency-key") }
    }

    #[test]
    fn a_signature_is_that_of_the_body_under_the_secret() {
        let (secret, header) = (Secret::new("key"), HeaderName::from_static("x-signature"));
        // The example of RFC 4231 that Wikipedia shows as well.
        let tag = "f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8";
        let body = b"The quick brown fox jumps over the lazy dog";
        for shown in [tag.to_owned(), format!("sha256={tag}"), tag.to_uppercase()] {
            assert!(is_signed(&headers("x-signature", &shown), &header, &secret, body), "{shown}");
        }
        for wrong in ["", "sha256=", "zz", &tag[..62], &tag.replace('f', "e")] {
            assert!(!is_signed(&headers("x-signature", wrong), &header, &secret, body), "{wrong}");
        }
        assert!(!is_signed(&headers("x-signature", tag), &header, &secret, b"The quick brown fox"));
        assert!(!is_signed(&HeaderMap::new(), &header, &secret, body));
    }

    #[test]
    fn a_call_without_a_key_is_told_from_others_by_its_signed_body_or_not_at_all() {
        let signed = hook(HookCredential::Hmac { secret: Secret::new("k"), header: HeaderName::from_static("s") });
        let shown = hook(HookCredential::Bearer(Secret::new("k")));
        let none = HeaderMap::new();
        let key = |settings: &HookSettings| key_of(&none, settings, b"x").unwrap();
        assert_eq!(key(&signed), key(&signed));
        assert_ne!(key(&shown), key(&shown));
        assert_eq!(key_of(&headers("idempotency-key", "k-1"), &shown, b"x").unwrap(), "k-1");
        assert!(key_of(&headers("idempotency-key", &"k".repeat(200)), &shown, b"x").is_err());
        assert_eq!(
            key_of(&headers("idempotency-key", "k-1"), &signed, b"x").unwrap(),
            key(&signed),
            "a key is not signed"
        );
    }
}

//! What a client is told of how to be let in (RFC 9728): who issues tokens for this server, and where that is said.

use std::{collections::BTreeSet, sync::Arc};

use axum::{
    Json,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use super::{McpServer, PATH};

/// Where the metadata of the server is, as the host has it and as the path has it (RFC 9728, 3.1).
pub(super) const OF_THE_NODE: &str = "/.well-known/oauth-protected-resource";
pub(super) const OF_THE_PATH: &str = "/.well-known/oauth-protected-resource/mcp";

/// How long a client may keep it, as cards.
const CACHE_CONTROL: &str = "public, max-age=60";

/// The metadata. It is public, as cards are: who has to be let in has to know how.
pub(super) async fn show(State(server): State<Arc<McpServer>>) -> Response {
    let auth = &server.a2a.auth;
    let body = document(&server.a2a.public_url, auth.issuer(), &auth.scopes());
    let open = [(header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"), (header::CACHE_CONTROL, CACHE_CONTROL)];
    (open, Json(body)).into_response()
}

fn document(public_url: &str, issuer: Option<&str>, scopes: &BTreeSet<&str>) -> Value {
    let mut document = json!({
        "bearer_methods_supported": ["header"],
        "resource": format!("{public_url}{PATH}"),
        "resource_name": "Towline mesh",
    });
    if let Some(issuer) = issuer {
        document["authorization_servers"] = json!([issuer]);
    }
    if !scopes.is_empty() {
        document["scopes_supported"] = json!(scopes);
    }
    document
}

/// What is added to the challenge of a refusal.
#[derive(Clone)]
pub(super) struct Challenge(Arc<str>);

impl Challenge {
    pub fn new(public_url: &str) -> Self {
        Self(format!("resource_metadata=\"{public_url}{OF_THE_PATH}\"").into())
    }

    fn added_to(&self, challenge: Option<&HeaderValue>) -> Option<HeaderValue> {
        let challenge = challenge?.to_str().ok()?;
        HeaderValue::from_str(&format!("{challenge}, {}", self.0)).ok()
    }
}

/// Says in each refusal for want of a credential, or of a scope of one, where one is to be had.
pub(super) async fn challenge(State(challenge): State<Challenge>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        && let Some(added) = challenge.added_to(response.headers().get(header::WWW_AUTHENTICATE))
    {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, added);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metadata_names_the_server_and_who_issues_tokens_for_it() {
        let alone = document("https://mesh.example", None, &BTreeSet::new());
        assert_eq!(alone["resource"], "https://mesh.example/mcp");
        assert!(alone.get("authorization_servers").is_none(), "a token that an operator hands out has no issuer");
        let issued = document("https://mesh.example", Some("https://id.example"), &BTreeSet::from(["a2a"]));
        assert_eq!(issued["authorization_servers"], json!(["https://id.example"]));
        assert_eq!(issued["scopes_supported"], json!(["a2a"]));
        assert!(alone.get("scopes_supported").is_none());
    }

    #[test]
    fn a_challenge_says_where_the_metadata_is() {
        let challenge = Challenge::new("https://mesh.example");
        let added = challenge.added_to(Some(&HeaderValue::from_static("Bearer realm=\"towline\""))).unwrap();
        let expected = "Bearer realm=\"towline\", \
             resource_metadata=\"https://mesh.example/.well-known/oauth-protected-resource/mcp\"";
        assert_eq!(added, expected);
        assert_eq!(challenge.added_to(None), None);
    }
}

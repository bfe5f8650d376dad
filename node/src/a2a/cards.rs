//! Agent cards: one of the mesh, whose skills are its agents, and one of each agent. Public, small, and cacheable.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::{
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode, header, request::Parts};
use serde_json::{Value, json};
use towline_a2a::{
    WireError,
    convert::{self, Endpoints},
};
use towline_core::{AgentName, AgentSpec};

use super::{A2aSettings, Shared, principal};

/// How long a client may keep a card: agents come and go with the configuration of nodes, not by the second.
const CACHE_CONTROL: &str = "public, max-age=60";

/// The card of the mesh: its endpoint is the front door.
pub(super) async fn of_mesh(State(shared): State<Shared>, parts: Parts) -> Response {
    if let Err(refused) = principal::caller(&parts, &shared) {
        return refused.into_response();
    }
    let settings = &shared.settings;
    let agents: Vec<AgentSpec> =
        settings.cluster.local(|state| state.agents().map(|agent| agent.spec.clone()).collect());
    let name = settings.cluster.cluster_name();
    let description = format!(
        "The agents of the mesh {name}. Messages to this endpoint go to the agent {}; each skill is an agent with an \
         endpoint of its own under /agents/.",
        settings.front_door
    );
    let endpoints = endpoints(&settings.public_url, None);
    let card = convert::card(&name, &description, endpoints, &settings.version, &agents);
    respond(&parts.headers, card.map(|card| with_push(settings, card)))
}

/// The card of one agent.
pub(super) async fn of_agent(State(shared): State<Shared>, Path(agent): Path<String>, parts: Parts) -> Response {
    if let Err(refused) = principal::caller(&parts, &shared) {
        return refused.into_response();
    }
    match known_agent(&shared.settings, &agent) {
        Some(spec) => {
            let endpoints = endpoints(&shared.settings.public_url, Some(&spec.name));
            let (name, version) = (spec.name.to_string(), &shared.settings.version);
            let card = convert::card(&name, &spec.description, endpoints, version, std::slice::from_ref(&spec));
            respond(&parts.headers, card.map(|card| with_push(&shared.settings, card)))
        }
        None => json_response(StatusCode::NOT_FOUND, &json!({ "error": format!("agent {agent:?} is not known") })),
    }
}

/// A card says that push notifications are there exactly where they are taken.
fn with_push(settings: &A2aSettings, mut card: Value) -> Value {
    card["capabilities"]["pushNotifications"] = settings.push.is_some().into();
    card
}

/// Where the mesh or an agent of it is reached below a base URL. gRPC has no paths: behind a proxy that serves this node under
/// one, it is not reached.
fn endpoints(base: &str, agent: Option<&AgentName>) -> Endpoints {
    let uri: Option<http::Uri> = base.parse().ok();
    let grpc = uri.filter(|uri| uri.path() == "/").and_then(|uri| {
        let default_port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        Some(format!("{}:{}", uri.host()?, uri.port_u16().unwrap_or(default_port)))
    });
    let tenant = agent.map(AgentName::to_string);
    let (json_rpc, http_json) = match agent {
        None => (format!("{base}/"), format!("{base}/rest")),
        Some(agent) => (format!("{base}/agents/{agent}"), format!("{base}/agents/{agent}/rest")),
    };
    Endpoints { json_rpc, http_json, grpc, tenant }
}

fn known_agent(settings: &A2aSettings, name: &str) -> Option<AgentSpec> {
    let name: AgentName = name.parse().ok()?;
    settings.cluster.local(|state| state.agent(&name).map(|agent| agent.spec.clone()))
}

fn respond(headers: &HeaderMap, card: Result<Value, WireError>) -> Response {
    let card = match card {
        Ok(card) => card,
        Err(error) => return json_response(StatusCode::INTERNAL_SERVER_ERROR, &json!({ "error": error.message })),
    };
    let body = card.to_string();
    let tag = entity_tag(&body);
    let caching = [(header::ETAG, tag.clone()), (header::CACHE_CONTROL, CACHE_CONTROL.to_owned())];
    if is_current(headers, &tag) {
        return (StatusCode::NOT_MODIFIED, caching).into_response();
    }
    (StatusCode::OK, caching, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Equal cards have equal tags, whatever node and whatever life of its process answers.
fn entity_tag(body: &str) -> String {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

fn is_current(headers: &HeaderMap, tag: &str) -> bool {
    let asked = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok()).unwrap_or_default();
    asked.split(',').map(|known| known.trim().trim_start_matches("W/")).any(|known| known == tag || known == "*")
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_names_only_what_can_be_reached() {
        let grpc = |base: &str| endpoints(base, None).grpc;
        assert_eq!(grpc("http://127.0.0.1:7420").as_deref(), Some("127.0.0.1:7420"));
        assert_eq!(grpc("https://mesh.example").as_deref(), Some("mesh.example:443"));
        assert_eq!(grpc("http://[::1]").as_deref(), Some("[::1]:80"));
        assert_eq!(grpc("https://example.com/towline"), None, "a proxy's path");

        let agent = endpoints("https://mesh.example/t", Some(&"reader".parse().unwrap()));
        assert_eq!(agent.json_rpc, "https://mesh.example/t/agents/reader");
        assert_eq!(agent.http_json, "https://mesh.example/t/agents/reader/rest");
        assert_eq!(agent.tenant.as_deref(), Some("reader"));
    }

    #[test]
    fn a_card_that_the_client_has_is_not_sent_again() {
        let card = || Ok(json!({ "name": "mesh" }));
        let first = respond(&HeaderMap::new(), card());
        assert_eq!(first.status(), StatusCode::OK);
        let tag = first.headers()[header::ETAG].clone();

        let mut headers = HeaderMap::new();
        headers.insert(header::IF_NONE_MATCH, tag);
        assert_eq!(respond(&headers, card()).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(respond(&headers, Ok(json!({ "name": "other" }))).status(), StatusCode::OK);
    }
}

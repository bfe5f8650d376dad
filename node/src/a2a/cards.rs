//! Agent cards: one of the mesh, whose skills are its agents, and one of each agent. Public, small, and cacheable.
//!
//! A card is made when somebody asks for it and its agents are others than before; until then it is served as it is.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, SystemTime},
};

use axum::{
    body::{Body, Bytes},
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, request::Parts};
use serde_json::{Value, json};
use towline_a2a::{
    WireError,
    convert::{self, Endpoints},
};
use towline_core::{AgentName, AgentSpec};

use super::{
    A2aSettings, Shared, extensions,
    principal::{self, Caller},
    unix::UnixPeer,
};
use crate::auth;

/// How long a client may keep a card: agents come and go with the configuration of nodes, not by the second.
const CACHE_CONTROL: &str = "public, max-age=60";

/// JSON-RPC as it is, carried over a unix socket.
const SOCKET_BINDING: &str = "https://towline.dev/a2a/binding/jsonrpc-unix";

/// Any page may read a card: it is public, and says nothing that depends on who asks.
const ANY_ORIGIN: (HeaderName, &str) = (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*");

/// Most cards that are kept made, each of some kilobytes: where there are more agents, they are made anew now and then.
const MAX_KEPT: usize = 1_024;

/// Where the keys are that cards are signed with.
const KEY_SET: &str = "/.well-known/jwks.json";

/// The cards as they were made last; that of the mesh has no name.
#[derive(Debug, Default)]
pub(super) struct Cards(RwLock<BTreeMap<Option<AgentName>, Arc<Card>>>);

/// A card, ready to be sent.
#[derive(Debug)]
struct Card {
    /// What it was made of.
    agents: Vec<AgentSpec>,
    body: Bytes,
    tag: HeaderValue,
    /// When this node found it to be another one than before.
    modified: SystemTime,
    /// The same as a header says it.
    last_modified: HeaderValue,
}

impl Card {
    fn new(agents: Vec<AgentSpec>, body: String) -> Self {
        let header = |text: String| HeaderValue::try_from(text).expect("digits, letters and quotes");
        let modified = SystemTime::now();
        let last_modified = header(httpdate::fmt_http_date(modified));
        Self { agents, tag: header(entity_tag(&body)), body: body.into(), modified, last_modified }
    }
}

impl Cards {
    fn of(&self, name: Option<&AgentName>) -> Option<Arc<Card>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&name.cloned()).cloned()
    }

    fn keep(&self, name: Option<AgentName>, agents: Vec<AgentSpec>, body: String) -> Arc<Card> {
        let mut kept = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        let card = Arc::new(Card::new(agents, body));
        kept.insert(name, Arc::clone(&card));
        card
    }
}

/// The card of the mesh: its endpoint is the front door.
pub(super) async fn of_mesh(State(shared): State<Shared>, parts: Parts) -> Response {
    if let Err(refused) = principal::reader(&parts, &shared) {
        return refused.into_response();
    }
    let settings = &shared.settings;
    let kept = shared.cards.of(None).filter(|_| !is_on_socket(&parts));
    let is_same = |state: &towline_core::State| {
        kept.as_ref().is_some_and(|card| state.agents().map(|agent| &agent.spec).eq(card.agents.iter()))
    };
    if let Some(card) = kept.as_ref().filter(|_| settings.cluster.local(is_same)) {
        return respond(&parts.headers, card);
    }
    let agents: Vec<AgentSpec> =
        settings.cluster.local(|state| state.agents().map(|agent| agent.spec.clone()).collect());
    respond_made(&shared, &parts, mesh_card(settings, &agents), None, agents)
}

/// The card of one agent.
pub(super) async fn of_agent(State(shared): State<Shared>, Path(agent): Path<String>, parts: Parts) -> Response {
    if let Err(refused) = principal::reader(&parts, &shared) {
        return refused.into_response();
    }
    let settings = &shared.settings;
    let Some(spec) = known_agent(settings, &agent) else {
        return json_response(StatusCode::NOT_FOUND, &json!({ "error": format!("agent {agent:?} is not known") }));
    };
    let kept = shared.cards.of(Some(&spec.name)).filter(|_| !is_on_socket(&parts));
    if let Some(card) = kept.filter(|card| card.agents == [spec.clone()]) {
        return respond(&parts.headers, &card);
    }
    respond_made(&shared, &parts, agent_card(settings, &spec), Some(spec.name.clone()), vec![spec])
}

fn mesh_card(settings: &A2aSettings, agents: &[AgentSpec]) -> Result<Value, WireError> {
    let name = settings.cluster.cluster_name();
    let description = format!(
        "The agents of the mesh {name}. Messages to this endpoint go to the agent {}; each skill is an agent with an \
         endpoint of its own under /agents/.",
        settings.front_door
    );
    let endpoints = endpoints(&settings.public_url, None);
    let card = convert::card(&name, &description, endpoints, &settings.version, agents);
    card.map(|card| described(settings, card))
}

fn agent_card(settings: &A2aSettings, spec: &AgentSpec) -> Result<Value, WireError> {
    let endpoints = endpoints(&settings.public_url, Some(&spec.name));
    let (name, version) = (spec.name.to_string(), &settings.version);
    let card = convert::card(&name, &spec.description, endpoints, version, std::slice::from_ref(spec));
    card.map(|card| described(settings, card))
}

/// The card of an agent; none where there is no such agent.
pub(super) fn of(settings: &A2aSettings, agent: &str) -> Result<Option<Value>, WireError> {
    known_agent(settings, agent).map(|spec| agent_card(settings, &spec)).transpose()
}

/// A card with what its listener asks of callers and takes.
fn described(settings: &A2aSettings, mut card: Value) -> Value {
    auth::card::describe(&settings.auth, &mut card);
    card["capabilities"]["extensions"] = extensions::declared(&settings.cluster.local(|state| state.mesh_mark()));
    card["capabilities"]["pushNotifications"] = settings.push.is_some().into();
    card
}

/// The card of the mesh or of an agent, with what its reader may do.
pub(super) fn extended(settings: &A2aSettings, agent: Option<AgentName>, caller: &Caller) -> Result<Value, WireError> {
    if !auth::card::has_schemes(&settings.auth) {
        return Err(WireError::no_extended_card());
    }
    let mut card = match agent {
        None => {
            let agents: Vec<AgentSpec> =
                settings.cluster.local(|state| state.agents().map(|agent| agent.spec.clone()).collect());
            mesh_card(settings, &agents)?
        }
        Some(name) => {
            let spec = known_agent(settings, name.as_str());
            let problem = || convert::Field::new("tenant", format!("agent {:?} is not known", name.as_str()));
            agent_card(settings, &spec.ok_or_else(problem)?)?
        }
    };
    extensions::narrow(&mut card, caller);
    auth::card::extend(&mut card, caller);
    Ok(card)
}

/// Answers with a card that was made, and keeps it unless it is only for who reads it over a socket.
fn respond_made(
    shared: &Shared,
    parts: &Parts,
    made: Result<Value, WireError>,
    name: Option<AgentName>,
    agents: Vec<AgentSpec>,
) -> Response {
    let signed = made.and_then(|card| signed(&shared.settings, with_socket(card, parts, name.as_ref())));
    match signed {
        // One that was made before this node knew its mesh is made anew.
        Ok(body) if is_on_socket(parts) || shared.settings.cluster.local(|state| state.cluster().is_none()) => {
            respond(&parts.headers, &Card::new(agents, body))
        }
        Ok(body) => respond(&parts.headers, &shared.cards.keep(name, agents, body)),
        Err(error) => json_response(StatusCode::INTERNAL_SERVER_ERROR, &json!({ "error": error.message })),
    }
}

fn is_on_socket(parts: &Parts) -> bool {
    parts.extensions.get::<UnixPeer>().is_some()
}

/// Who reads a card over a socket is shown that it can go on there. Others could not, and are not told where it is. No
/// `https://` URL names a socket, so that is a binding of our own, which a client that knows none passes over.
fn with_socket(mut card: Value, parts: &Parts, agent: Option<&AgentName>) -> Value {
    let Some(UnixPeer { socket, .. }) = parts.extensions.get() else { return card };
    let mut interface = json!({
        "protocolBinding": SOCKET_BINDING,
        "protocolVersion": towline_a2a::PROTOCOL_VERSION,
        "url": format!("unix://{}", socket.display()),
    });
    if let Some(agent) = agent {
        interface["tenant"] = agent.as_str().into();
    }
    if let Some(interfaces) = card["supportedInterfaces"].as_array_mut() {
        interfaces.insert(0, interface);
    }
    card
}

/// What the cards of this node are signed with; an empty set where they are not.
pub(super) async fn keys(State(shared): State<Shared>, parts: Parts) -> Response {
    if let Err(refused) = principal::reader(&parts, &shared) {
        return refused.into_response();
    }
    let keys = shared.settings.card_signer.as_ref().map_or_else(|| json!({ "keys": [] }), |signer| signer.key_set());
    let head = [ANY_ORIGIN, (header::CACHE_CONTROL, CACHE_CONTROL), (header::CONTENT_TYPE, "application/json")];
    (head, keys.to_string()).into_response()
}

/// A page asks whether it may ask.
pub(super) async fn preflight(State(shared): State<Shared>, parts: Parts) -> Response {
    if let Err(refused) = principal::reader(&parts, &shared) {
        return refused.into_response();
    }
    let head = [
        ANY_ORIGIN,
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, HEAD"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "a2a-extensions, a2a-version, if-modified-since, if-none-match"),
        (header::ACCESS_CONTROL_MAX_AGE, "86400"),
    ];
    (StatusCode::NO_CONTENT, head).into_response()
}

/// A card as it is sent, signed if there is a key.
fn signed(settings: &A2aSettings, card: Value) -> Result<String, WireError> {
    let Some(signer) = &settings.card_signer else { return Ok(card.to_string()) };
    let key_set = format!("{}{KEY_SET}", settings.public_url);
    signer.sign(card, &key_set).map(|card| card.to_string()).map_err(WireError::internal)
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

fn respond(headers: &HeaderMap, card: &Card) -> Response {
    let mut response = Response::new(Body::empty());
    let told = response.headers_mut();
    told.insert(header::ETAG, card.tag.clone());
    told.insert(header::CACHE_CONTROL, HeaderValue::from_static(CACHE_CONTROL));
    told.insert(ANY_ORIGIN.0, HeaderValue::from_static(ANY_ORIGIN.1));
    // What has a tag needs nothing else to be known as the same (RFC 9110, 15.4.5).
    if is_current(headers, card) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return response;
    }
    told.insert(header::LAST_MODIFIED, card.last_modified.clone());
    told.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("etag, last-modified"));
    told.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    *response.body_mut() = Body::from(card.body.clone());
    response
}

/// Equal cards have equal tags, whatever node and whatever life of its process answers.
fn entity_tag(body: &str) -> String {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

/// A tag decides; a date only where there is none (RFC 9110, 13.1.3), and it is told in whole seconds.
fn is_current(headers: &HeaderMap, card: &Card) -> bool {
    let asked = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(tags) = asked(header::IF_NONE_MATCH) {
        let mut known = tags.split(',').map(|known| known.trim().trim_start_matches("W/"));
        return known.any(|known| card.tag == known || known == "*");
    }
    let since = asked(header::IF_MODIFIED_SINCE).and_then(|date| httpdate::parse_http_date(date).ok());
    since.is_some_and(|since| card.modified < since + Duration::from_secs(1))
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

    fn asked(card: &Card, name: HeaderName, value: &str) -> StatusCode {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        respond(&headers, card).status()
    }

    #[test]
    fn a_card_that_the_client_has_is_not_sent_again() {
        let cards = Cards::default();
        let card = cards.keep(None, Vec::new(), json!({ "name": "mesh" }).to_string());
        let first = respond(&HeaderMap::new(), &card);
        assert_eq!(
            (first.status(), &first.headers()["access-control-allow-origin"]),
            (StatusCode::OK, &"*".parse().unwrap())
        );
        let text = |name: HeaderName| first.headers()[name].to_str().unwrap().to_owned();
        let (tag, modified) = (text(header::ETAG), text(header::LAST_MODIFIED));

        assert_eq!(asked(&card, header::IF_NONE_MATCH, &format!("\"x\", W/{tag}")), StatusCode::NOT_MODIFIED);
        assert_eq!(asked(&card, header::IF_MODIFIED_SINCE, &modified), StatusCode::NOT_MODIFIED);
        let long_ago = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH);
        assert_eq!(asked(&card, header::IF_MODIFIED_SINCE, &long_ago), StatusCode::OK);
        let other = cards.keep(None, Vec::new(), json!({ "name": "other" }).to_string());
        assert_eq!(asked(&other, header::IF_NONE_MATCH, &tag), StatusCode::OK);
    }

    #[test]
    fn cards_are_kept_up_to_a_bound() {
        let cards = Cards::default();
        for number in 0..=MAX_KEPT {
            let name = format!("agent-{number}").parse().unwrap();
            cards.keep(Some(name), Vec::new(), String::new());
        }
        assert_eq!(cards.0.read().unwrap().len(), 1);
    }
}

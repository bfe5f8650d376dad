//! Agents outside of this mesh that are made known while it runs: `/api/v1/peers`.

use std::{path::Path as FilePath, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, State, rejection::JsonRejection},
    response::{IntoResponse, Response},
    routing::{delete, get},
};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use towline_a2a::RemoteCard;
use towline_actors::{Dialler, mcp_connection::plain_line, own_mesh, resolved};
use towline_core::{AgentName, Command, JoinedAgent, Peer, PeerToken, Principal, Proposal};

use super::{Api, ApiError, invalid};
use crate::{
    auth::audit,
    config::{is_plain_remote, peer_url, url_text},
    error::chain,
};

/// Longest description that is kept of a card, in characters: a model reads it with each call.
const MAX_DESCRIPTION_CHARS: usize = 1_000;

/// Most tags that are kept of a card.
const MAX_TAGS: usize = 16;

/// Longest tag, in characters.
const MAX_TAG_CHARS: usize = 64;

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerRequest {
    /// The name that agents delegate to.
    pub name: String,
    /// Where it is, the preferred place first.
    pub urls: Vec<String>,
    /// Name of the secret that each node has for it.
    #[serde(default)]
    pub token_secret: Option<String>,
    /// File with the token, on each node.
    #[serde(default)]
    pub token_file: Option<String>,
    /// Whether it takes the same message id twice as one message.
    #[serde(default)]
    pub idempotent: bool,
    /// Agents that may delegate to it.
    #[serde(default)]
    pub for_agents: Vec<String>,
    /// Whether it becomes an agent of the mesh.
    #[serde(default)]
    pub join: bool,
}

/// A peer, as the operator sees it. Its token is not part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerView {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub urls: Vec<String>,
    /// Where each node finds its token, if it wants one.
    pub token: Option<String>,
    /// Whether it takes the same message id twice as one message.
    pub idempotent: bool,
    /// Agents that may delegate to it.
    pub for_agents: Vec<String>,
    /// Whether it is an agent of the mesh.
    pub joined: bool,
}

pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new().route("/api/v1/peers", get(list).post(add)).route("/api/v1/peers/{name}", delete(remove))
}

async fn list(State(api): State<Arc<Api>>) -> Result<Response, ApiError> {
    let peers = api.cluster.read(|state| state.peers().map(view).collect::<Vec<_>>()).await?;
    Ok(Json(json!({ "peers": peers })).into_response())
}

fn view(peer: &Peer) -> PeerView {
    PeerView {
        name: peer.name.to_string(),
        urls: peer.urls.clone(),
        token: peer.token.as_ref().map(|token| match token {
            PeerToken::Secret(name) => format!("secret {name}"),
            PeerToken::File(path) => format!("file {path}"),
        }),
        idempotent: peer.idempotent,
        for_agents: peer.for_agents.iter().map(AgentName::to_string).collect(),
        joined: peer.joined.is_some(),
    }
}

async fn add(
    State(api): State<Arc<Api>>,
    body: Result<Json<PeerRequest>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(request) = body.map_err(|error| invalid(error.body_text()))?;
    let name = request.name.clone();
    Ok(audit::about(made_known(&api, request).await, name))
}

async fn made_known(api: &Api, request: PeerRequest) -> Result<Response, ApiError> {
    let wants_to_join = request.join;
    let mut peer = read(request).map_err(invalid)?;
    check_agents(api, &peer).await?;
    // Its terms are read before anything is kept.
    let mark = api.cluster.local(|state| state.mesh_mark());
    let card = card(&peer, &mark).await.map_err(|why| ApiError::new(StatusCode::BAD_GATEWAY, "peer_unusable", why))?;
    peer.joined = wants_to_join.then(|| joined(&card));
    let shown = view(&peer);
    let proposal = Proposal { by: Principal::Operator, command: Command::AddPeer(Box::new(peer)) };
    api.cluster.propose(proposal, None).await?;
    Ok((StatusCode::CREATED, Json(json!({ "peer": shown, "card": card.raw }))).into_response())
}

async fn remove(State(api): State<Arc<Api>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    let name: AgentName = name.parse().map_err(|error| invalid(format!("{error}")))?;
    let is_configured = api.cluster.local(|state| state.agent(&name).is_some() && state.peer(&name).is_none());
    if is_configured {
        let message = format!(
            "agent {name} is of the configuration of the nodes that have it: take it out of agents: there, and start those nodes \
             again"
        );
        return Err(ApiError::new(StatusCode::CONFLICT, "configured", message));
    }
    let command = Command::RemovePeer { name: name.clone() };
    api.cluster.propose(Proposal { by: Principal::Operator, command }, None).await?;
    Ok(Json(json!({ "removed": name })).into_response())
}

/// A request as a peer; or what is wrong with it.
fn read(request: PeerRequest) -> Result<Peer, String> {
    let name: AgentName = request.name.parse().map_err(|error| format!("name: {error}"))?;
    let token = match (request.token_secret, request.token_file) {
        (Some(_), Some(_)) => return Err("token_secret and token_file: a token is in one place".to_owned()),
        (Some(secret), None) => {
            let is_name = !secret.is_empty() && secret.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
            if !is_name || secret.starts_with('.') {
                return Err(
                    "token_secret is the name of a secret, with letters, digits, '_', '-' and '.'; the secret \
                            itself is never kept in the cluster: put it into the environment of each node, or into its \
                            folder of secrets"
                        .to_owned(),
                );
            }
            Some(PeerToken::Secret(secret))
        }
        (None, Some(path)) if !FilePath::new(&path).is_absolute() => {
            return Err(format!("token_file {path:?} is no absolute path: each node reads its own file there"));
        }
        (None, Some(path)) => Some(PeerToken::File(path)),
        (None, None) => None,
    };
    if request.urls.is_empty() {
        return Err("urls is empty: name at least one URL of the peer".to_owned());
    }
    let mut urls = Vec::new();
    for url in &request.urls {
        let url = peer_url(url)?;
        if token.is_some() && is_plain_remote(&url) {
            return Err(format!("{url} is not https: the token would travel in plain text"));
        }
        urls.push(url_text(&url));
    }
    let names: Result<Vec<AgentName>, String> =
        request.for_agents.iter().map(|name| name.parse().map_err(|error| format!("for_agents: {error}"))).collect();
    Ok(Peer { name, urls, token, idempotent: request.idempotent, for_agents: names?, joined: None })
}

/// The agents that may delegate to it have to be there, and have to bear its text.
async fn check_agents(api: &Api, peer: &Peer) -> Result<(), ApiError> {
    for agent in &peer.for_agents {
        if api.cluster.local(|state| state.agent(agent).is_none()) {
            return Err(invalid(format!(
                "for_agents: agent {agent} is not known: `towline agent list` names those that are"
            )));
        }
        let mesh = api.mesh.lock().await;
        if mesh.as_ref().is_some_and(|mesh| mesh.keeps_peers_away(agent)) {
            return Err(invalid(format!(
                "for_agents: agent {agent} holds sensitive data: with this peer it would also have a way out and read text \
                 from outside; name another agent, or set allow_trifecta for it in the configuration"
            )));
        }
    }
    Ok(())
}

/// The card of the first URL that answers; its terms must be acceptable at each URL that does.
async fn card(peer: &Peer, mark: &str) -> Result<RemoteCard, String> {
    let resolved = resolved(peer)?;
    let dialler = Dialler::new().map_err(|error| format!("set up the HTTP client: {error}"))?;
    let (mut first, mut silent) = (None, Vec::new());
    for url in &peer.urls {
        match dialler.card(&resolved, url).await {
            Ok(card) if card.mesh_mark() == Some(mark) => return Err(own_mesh(url)),
            Ok(card) => {
                card.terms(url, peer.token.is_some()).map_err(|refused| format!("{url}: {refused}"))?;
                first.get_or_insert(card);
            }
            Err(error) => silent.push(format!("{url}: {}", chain(&error))),
        }
    }
    first.ok_or_else(|| format!("no URL of {} shows an agent card: {}", peer.name, silent.join("; ")))
}

/// What is kept of a card, with nothing hidden in it: models and terminals get to see it.
fn joined(card: &RemoteCard) -> JoinedAgent {
    let description = if card.description.is_empty() { &card.name } else { &card.description };
    JoinedAgent {
        description: plain_line(description, MAX_DESCRIPTION_CHARS),
        tags: card.tags.iter().take(MAX_TAGS).map(|tag| plain_line(tag, MAX_TAG_CHARS)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> PeerRequest {
        PeerRequest { name: "legal".into(), urls: vec!["https://legal.example/".into()], ..PeerRequest::default() }
    }

    #[test]
    fn a_token_is_named_and_never_kept() {
        let peer = read(PeerRequest { token_secret: Some("LEGAL".into()), ..request() }).unwrap();
        assert_eq!(
            (peer.urls, peer.token),
            (vec!["https://legal.example".into()], Some(PeerToken::Secret("LEGAL".into())))
        );
        for (wrong, says) in [
            (PeerRequest { token_secret: Some("ey123/abc=".into()), ..request() }, "never kept"),
            (PeerRequest { token_file: Some("token".into()), ..request() }, "no absolute path"),
            (PeerRequest { token_file: Some("/t".into()), token_secret: Some("T".into()), ..request() }, "one place"),
        ] {
            assert!(read(wrong).unwrap_err().contains(says), "{says}");
        }
    }

    #[test]
    fn a_peer_without_a_url_is_refused_before_anything_is_dialled() {
        let refused = read(PeerRequest { urls: Vec::new(), ..request() }).unwrap_err();
        assert!(refused.contains("urls is empty"), "{refused}");
    }

    #[test]
    fn what_is_kept_of_a_card_hides_nothing() {
        let card = RemoteCard {
            name: "legal".into(),
            description: "Knows\u{202e} the\nlaw.".into(),
            version: "1".into(),
            streaming: false,
            skills: Vec::new(),
            tags: vec!["l\u{200b}aw".into()],
            jsonrpc_url: None,
            interfaces: Vec::new(),
            required_extensions: Vec::new(),
            raw: json!({}),
        };
        let kept = joined(&card);
        assert_eq!((kept.description.as_str(), kept.tags), ("Knows\u{fffd} the law.", vec!["l\u{fffd}aw".to_owned()]));
    }

    #[test]
    fn a_token_does_not_travel_in_plain_text() {
        let plain = PeerRequest { urls: vec!["http://legal.example".into()], ..request() };
        assert!(read(plain.clone()).is_ok());
        let refused = read(PeerRequest { token_secret: Some("LEGAL".into()), ..plain }).unwrap_err();
        assert!(refused.contains("not https"), "{refused}");
        let local =
            PeerRequest { urls: vec!["http://127.0.0.1:1".into()], token_secret: Some("L".into()), ..request() };
        assert!(read(local).is_ok());
    }
}

//! Agents outside of this mesh: those of the configuration, and those that an operator made known while the mesh runs. Of
//! each: where it is, how it is spoken to, and the token that it wants.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use towline_a2a::{A2aClient, Binding, ClientError, RemoteCard, SocketUrl, Terms};
use towline_core::{Peer, PeerToken};

use crate::{
    config::{PeerConfig, Secret},
    shared::Shared,
    toolbox::agent_name,
};

/// Variable that names the folder of secret files, as container platforms mount them.
const SECRETS_DIR: &str = "TOWLINE_SECRETS_DIR";

/// Largest token, in bytes: what is larger is another file.
const MAX_TOKEN_BYTES: u64 = 16 * 1024;

/// How long a card is believed. Long enough that a burst of delegations reads it once, short enough that a peer which comes
/// back with other terms is spoken to by them.
const CARD_KEPT: Duration = Duration::from_secs(60);

/// Most cards that are kept: one per URL of a peer that is dialled.
const MAX_CARDS: usize = 1_000;

/// Most sockets of this machine whose clients are kept: each is an agent beside this node.
const MAX_SOCKETS: usize = 64;

/// Limit of the reading of a card: it is a small file.
const CARD_WITHIN: Duration = Duration::from_secs(5);

impl Shared {
    /// A peer by its name.
    ///
    /// # Errors
    /// When its token is not on this node; the text says where it was looked for.
    pub(crate) fn peer(&self, name: &str) -> Result<Option<PeerConfig>, String> {
        if let Some(peer) = self.config.peers.iter().find(|peer| peer.name == name) {
            return Ok(Some(peer.clone()));
        }
        let known = agent_name(name).and_then(|name| self.cluster.local(|state| state.peer(&name).cloned()));
        known.map(|peer| resolved(&peer)).transpose()
    }
}

/// A peer of the state with the token that this node finds for it.
///
/// # Errors
/// Where the token was looked for.
pub fn resolved(peer: &Peer) -> Result<PeerConfig, String> {
    let bearer = peer.token.as_ref().map(token).transpose()?;
    Ok(PeerConfig {
        name: peer.name.to_string(),
        urls: peer.urls.clone(),
        bearer,
        idempotent: peer.idempotent,
        timeout: PeerConfig::DEFAULT_TIMEOUT,
        tell_principal: false,
    })
}

fn token(token: &PeerToken) -> Result<Secret, String> {
    match token {
        PeerToken::File(path) => read_token(Path::new(path)),
        PeerToken::Secret(name) => {
            if let Some(value) = std::env::var(name).ok().filter(|value| !value.is_empty()) {
                return Ok(Secret::new(value));
            }
            let Some(dir) = std::env::var_os(SECRETS_DIR).map(PathBuf::from) else {
                return Err(format!("secret {name} is not on this node: set the variable {name}, or {SECRETS_DIR}"));
            };
            read_token(&dir.join(name))
        }
    }
}

fn read_token(path: &Path) -> Result<Secret, String> {
    let failed = |error: std::io::Error| format!("read the token in {} on this node: {error}", path.display());
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > MAX_TOKEN_BYTES {
        return Err(format!("the token in {} has {size} bytes; the limit is {MAX_TOKEN_BYTES}", path.display()));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let text = text.trim();
    if text.is_empty() { Err(format!("the token in {} is empty", path.display())) } else { Ok(Secret::new(text)) }
}

/// Why a URL is no peer's: what a user delegates would come back by it as somebody else's.
pub fn own_mesh(url: &str) -> String {
    format!(
        "{url} leads back into this mesh: its agents are delegated to by their names; give the URL of another server"
    )
}

/// The HTTP clients that peers are dialled with. Neither follows a redirect: a peer is where the operator says.
#[derive(Debug, Clone)]
pub struct Dialler {
    http: reqwest::Client,
    /// Speaks HTTP/2 from the first byte: gRPC without TLS.
    http2: reqwest::Client,
    /// Those of agents behind sockets of this machine, by the file.
    sockets: Arc<Mutex<BTreeMap<PathBuf, reqwest::Client>>>,
}

/// Until a connection stands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

fn builder() -> reqwest::ClientBuilder {
    let builder = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT);
    builder.redirect(reqwest::redirect::Policy::none()).tcp_nodelay(true)
}

impl Dialler {
    /// Sets the clients up.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn new() -> Result<Self, reqwest::Error> {
        let http2 = builder().http2_prior_knowledge().build()?;
        Ok(Self { http: builder().build()?, http2, sockets: Arc::default() })
    }

    /// The client that a URL is dialled with.
    fn client_of(&self, url: &str) -> Result<reqwest::Client, String> {
        let socket = match SocketUrl::parse(url) {
            None => return Ok(self.http.clone()),
            Some(socket) => socket?.socket().to_owned(),
        };
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = sockets.get(&socket) {
            return Ok(known.clone());
        }
        let made = builder().unix_socket(socket.as_path()).build();
        let made = made.map_err(|error| format!("set up the client of {}: {error}", socket.display()))?;
        if sockets.len() >= MAX_SOCKETS {
            sockets.clear();
        }
        sockets.insert(socket, made.clone());
        Ok(made)
    }

    /// A client of a URL of the peer, for its card, and for what it speaks where it shows none.
    ///
    /// # Errors
    /// When its token cannot be sent.
    pub fn bare(&self, peer: &PeerConfig, url: &str) -> Result<A2aClient, String> {
        Self::authorized(A2aClient::new(self.client_of(url)?, url), peer)
    }

    /// A client that speaks by the terms of its card.
    ///
    /// # Errors
    /// When its token cannot be sent.
    pub fn by_terms(&self, peer: &PeerConfig, terms: Terms) -> Result<A2aClient, String> {
        let is_plain = terms.url.starts_with("http://");
        let by_grpc = terms.binding == Binding::Grpc && is_plain;
        let http = if by_grpc { self.http2.clone() } else { self.client_of(&terms.url)? };
        let client = A2aClient::new(http, terms.url).over(terms.binding, terms.tenant);
        Self::authorized(client, peer)
    }

    fn authorized(client: A2aClient, peer: &PeerConfig) -> Result<A2aClient, String> {
        let client = client.answers_within(peer.timeout);
        let Some(bearer) = &peer.bearer else { return Ok(client) };
        let authorized = client.with_header("authorization", &format!("Bearer {}", bearer.expose()));
        authorized.map_err(|error| format!("the token of peer {} cannot be sent: {error}", peer.name))
    }

    /// Reads the card of a peer at one of its URLs.
    ///
    /// # Errors
    /// As for [`A2aClient::card`].
    pub async fn card(&self, peer: &PeerConfig, url: &str) -> Result<RemoteCard, ClientError> {
        let bare = self.bare(peer, url);
        let client = bare.map_err(|detail| ClientError::Malformed { endpoint: url.to_owned(), detail })?;
        client.answers_within(CARD_WITHIN.min(peer.timeout)).card(url).await
    }
}

/// Cards that were read a moment ago, by URL.
#[derive(Debug, Default)]
pub(crate) struct Cards(Mutex<BTreeMap<String, (Instant, RemoteCard)>>);

impl Cards {
    /// The card at a URL of a peer.
    ///
    /// # Errors
    /// As for [`A2aClient::card`].
    pub(crate) async fn read(
        &self,
        dialler: &Dialler,
        peer: &PeerConfig,
        url: &str,
    ) -> Result<RemoteCard, ClientError> {
        if let Some((read, card)) = self.kept().get(url)
            && read.elapsed() < CARD_KEPT
        {
            return Ok(card.clone());
        }
        let card = dialler.card(peer, url).await?;
        let mut kept = self.kept();
        if kept.len() >= MAX_CARDS {
            kept.clear();
        }
        kept.insert(url.to_owned(), (Instant::now(), card.clone()));
        Ok(card)
    }

    /// Forgets the card at a URL: who does not answer may come back with other terms.
    pub(crate) fn forget(&self, url: &str) {
        self.kept().remove(url);
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, (Instant, RemoteCard)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_from_its_file_and_said_where_it_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("legal");
        std::fs::write(&file, "s3cret\n").unwrap();
        let at = |path: &Path| token(&PeerToken::File(path.to_string_lossy().into_owned()));
        assert_eq!(at(&file).unwrap().expose(), "s3cret");
        assert!(at(&folder.path().join("none")).unwrap_err().contains("none"));
        std::fs::write(&file, " \n").unwrap();
        assert!(at(&file).unwrap_err().contains("is empty"));
    }
}

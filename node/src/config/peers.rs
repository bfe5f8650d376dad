//! `peers:` – agents outside of this mesh.

use towline_actors::PeerConfig;
use towline_core::limits::MAX_PEER_URLS;

use super::{
    section::{Field, Section},
    values::{duration, is_local, is_plain_remote, peer_url, plain_name, url_text},
};

pub(crate) fn read(root: &mut Section<'_>) -> Vec<PeerConfig> {
    let mut peers: Vec<PeerConfig> = Vec::new();
    for field in root.list("peers") {
        let Some(peer) = read_peer(&field) else { continue };
        if peers.iter().any(|known| known.name == peer.name) {
            field.mistake(format!("peer {:?} is declared twice: names are unique", peer.name));
        }
        peers.push(peer);
    }
    peers
}

fn read_peer(field: &Field<'_>) -> Option<PeerConfig> {
    let mut section = field.section()?;
    let name = section.required("name", "legal").and_then(|field| field.parse(plain_name));
    let single = section.get("url");
    let several = section.get("urls");
    let fields: Vec<Field<'_>> = match (&single, &several) {
        (Some(_), Some(_)) => {
            section.mistake("has url and urls: write all of them under urls, the preferred one first");
            return None;
        }
        (Some(url), None) => vec![url.clone()],
        (None, Some(urls)) => urls.list(),
        (None, None) => Vec::new(),
    };
    if fields.is_empty() {
        section.mistake("url is missing: write url: https://legal.example");
    }
    if fields.len() > MAX_PEER_URLS {
        section.mistake(format!("has {} urls; the limit is {MAX_PEER_URLS}", fields.len()));
    }
    let urls: Vec<_> = fields.iter().filter_map(|field| Some((field, field.parse(peer_url)?))).collect();
    // The strictest of them decides how a token may be written.
    let destination = urls.iter().find(|(_, url)| !is_local(url)).or(urls.first()).map(|(field, _)| *field);
    let auth = section.get("auth").and_then(|field| field.section());
    let bearer = auth.and_then(|mut auth| {
        let bearer = auth.get("bearer").and_then(|field| field.secret_for(destination, "PEER_TOKEN"));
        auth.finish();
        bearer
    });
    let idempotent = section.flag("idempotent", false);
    let timeout = section.get("timeout").and_then(|field| field.parse(duration));
    let tell_principal = section.flag("tell_principal", false);
    section.finish();
    if bearer.is_some() {
        for (field, _) in urls.iter().filter(|(_, url)| is_plain_remote(url)) {
            field.mistake("is not https: the bearer token would travel in plain text");
        }
    }
    let urls: Vec<String> = urls.iter().map(|(_, url)| url_text(url)).collect();
    if urls.is_empty() {
        return None;
    }
    let timeout = timeout.unwrap_or(PeerConfig::DEFAULT_TIMEOUT);
    Some(PeerConfig { name: name?, urls, bearer, idempotent, timeout, tell_principal })
}

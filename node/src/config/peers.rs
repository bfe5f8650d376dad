//! `peers:` – agents outside of this mesh.

use towline_actors::PeerConfig;

use super::{
    section::{Field, Section},
    values::{http_url, is_plain_remote, plain_name, url_text},
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
    let url_field = section.required("url", "https://legal.example");
    let url = url_field.as_ref().and_then(|field| field.parse(http_url));
    let auth = section.get("auth").and_then(|field| field.section());
    let bearer = auth.and_then(|mut auth| {
        let bearer = auth.get("bearer").and_then(|field| field.secret_for(url_field.as_ref(), "PEER_TOKEN"));
        auth.finish();
        bearer
    });
    let idempotent = section.flag("idempotent", false);
    section.finish();
    let url = url?;
    if bearer.is_some() && is_plain_remote(&url) {
        url_field?.mistake("is not https: the bearer token would travel in plain text");
    }
    Some(PeerConfig { name: name?, url: url_text(&url), bearer, idempotent })
}

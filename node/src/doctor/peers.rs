//! Agents outside of this mesh: those of the configuration, and those that were added.

use std::collections::BTreeMap;

use serde_json::Value;
use towline_a2a::SocketUrl;

use super::{Check, Patient, Planned, planned, reach, shortened};

const AREA: &str = "peer";
/// Where a card is.
const CARD: &str = "/.well-known/agent-card.json";
/// Largest card that is read here.
const MAX_CARD_BYTES: usize = 1024 * 1024;

pub(super) fn plan(patient: &Patient) -> Vec<Planned> {
    let configured = patient.config.mesh.peers.iter().map(|peer| (peer.name.clone(), peer.urls.clone()));
    let mut peers: BTreeMap<String, Vec<String>> = configured.collect();
    if let Some(live) = &patient.live {
        let added: Vec<_> =
            live.cluster.local(|state| state.peers().map(|peer| (peer.name.to_string(), peer.urls.clone())).collect());
        peers.extend(added);
    }
    let urls = peers.into_iter().flat_map(|(name, urls)| urls.into_iter().map(move |url| (name.clone(), url)));
    let planned = urls.map(|(name, url)| {
        let http = patient.http.clone();
        planned(AREA, name.clone(), async move { vec![check(&http, &name, &url).await] })
    });
    planned.collect()
}

async fn check(http: &reqwest::Client, name: &str, url: &str) -> Check {
    let mend = format!("let this machine reach it, or set the URL of peer {name:?} (peers[].url, `towline peer add`)");
    if let Some(socket) = SocketUrl::parse(url) {
        let reached = match socket {
            Ok(socket) => reach::socket(socket.socket()).await,
            Err(error) => Err(error),
        };
        return match reached {
            Ok(detail) => Check::ok(AREA, name, detail),
            Err(error) => Check::fail(AREA, name, error, mend),
        };
    }
    match reach::http(http, &format!("{}{CARD}", url.trim_end_matches('/'))).await {
        Ok(reached) => match card(reached.answer).await {
            Some(said) => Check::ok(AREA, name, format!("{}: {said}", reached.detail)),
            None => {
                let detail = format!("{}, and not with an agent card", reached.detail);
                Check::warn(
                    AREA,
                    name,
                    detail,
                    format!("see that the URL of peer {name:?} with {CARD} behind it is its card"),
                )
            }
        },
        Err(error) => Check::fail(AREA, name, format!("{}: {error}", reach::host(url)), mend),
    }
}

/// Which agent it says to be, and in which version.
async fn card(mut answer: reqwest::Response) -> Option<String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await.ok()? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > MAX_CARD_BYTES {
            return None;
        }
    }
    let card: Value = serde_json::from_slice(&bytes).ok()?;
    let version = card["version"].as_str().unwrap_or("without a version");
    Some(shortened(&format!("{} {version}", card["name"].as_str()?)))
}

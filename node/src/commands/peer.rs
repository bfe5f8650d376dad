//! `towline peer …`, and the agents of others that take part in the mesh.

use serde_json::Value;

use super::client::Client;
use crate::{
    api::{PeerRequest, PeerView},
    cli::{PeerAddArgs, PeerCommand},
    error::CliError,
    output::Output,
};

pub(crate) async fn run(command: PeerCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    match command {
        PeerCommand::Add(args) => add(args, false, client, output).await,
        PeerCommand::List => list(client, output).await,
        PeerCommand::Remove { name } => remove(&name, "peer", client, output).await,
    }
}

pub(crate) async fn add(args: PeerAddArgs, join: bool, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let PeerAddArgs { name, url, peer_token_secret: token_secret, peer_token_file, idempotent, for_agents } = args;
    let token_file = peer_token_file.map(std::path::absolute).transpose().map_err(CliError::other)?;
    let request = PeerRequest {
        name: name.clone(),
        urls: url,
        token_secret,
        token_file: token_file.map(|path| path.to_string_lossy().into_owned()),
        idempotent,
        for_agents: for_agents.clone(),
        join,
    };
    let body = serde_json::to_value(request).map_err(CliError::other)?;
    let answer = client.post("/api/v1/peers", &body).await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    let described = answer.pointer("/card/description").and_then(Value::as_str).unwrap_or_default();
    let has_no_agents = answer.pointer("/card/skills").and_then(Value::as_array).is_some_and(Vec::is_empty);
    if has_no_agents {
        output.note("its card names no skill: a mesh without agents refuses what it is sent, until it has one");
    }
    if join {
        output.note(format!("send it something with: towline send {name} \"…\""));
        return Ok(output.line(format!("agent {name} takes part: {described}"))?);
    }
    if for_agents.is_empty() {
        output.note("no agent may delegate to it yet: name some with --for AGENT");
    }
    Ok(output.line(format!("peer {name} is known: {described}"))?)
}

pub(crate) async fn remove(name: &str, what: &str, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer = client.delete(&format!("/api/v1/peers/{name}")).await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    Ok(output.line(format!("{what} {name} is removed"))?)
}

async fn list(client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer = client.get("/api/v1/peers").await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    let peers: Vec<PeerView> = serde_json::from_value(answer["peers"].clone()).map_err(CliError::other)?;
    let rows = peers.into_iter().map(row).collect();
    Ok(output.table(&["PEER", "AT", "TOKEN", "FOR", "TAKES PART"], rows)?)
}

fn row(peer: PeerView) -> Vec<String> {
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let takes_part = if peer.joined { "as an agent" } else { "-" };
    let (urls, agents) = (peer.urls.join(", "), or_dash(peer.for_agents.join(", ")));
    vec![peer.name, urls, or_dash(peer.token.unwrap_or_default()), agents, takes_part.to_owned()]
}

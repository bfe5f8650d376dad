//! `towline agent …`

use serde_json::Value;

use super::{client::Client, peer};
use crate::{api::AgentView, cli::AgentCommand, error::CliError, output::Output};

pub(crate) async fn run(command: AgentCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    match command {
        AgentCommand::List => list(client, output).await,
        AgentCommand::Add(args) => peer::add(args, true, client, output).await,
        AgentCommand::Remove { name } => peer::remove(&name, "agent", client, output).await,
    }
}

async fn list(client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer: Value = client.get("/api/v1/agents").await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    let agents: Vec<AgentView> = serde_json::from_value(answer["agents"].clone()).map_err(CliError::other)?;
    let rows = agents.into_iter().map(row).collect();
    Ok(output.table(&["AGENT", "NODES", "OPEN TASKS", "AT", "DESCRIPTION"], rows)?)
}

fn row(agent: AgentView) -> Vec<String> {
    let nodes: Vec<String> = agent.nodes.iter().map(|node| node.name.clone()).collect();
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let (nodes, urls) = (or_dash(nodes.join(", ")), or_dash(agent.urls.join(", ")));
    vec![agent.name, nodes, agent.open_tasks.to_string(), urls, agent.description]
}

//! `towline agent …`

use serde_json::Value;

use super::client::Client;
use crate::{api::AgentView, cli::AgentCommand, error::CliError, output::Output};

pub(crate) async fn run(command: &AgentCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let AgentCommand::List = command;
    let answer: Value = client.get("/api/v1/agents").await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    let agents: Vec<AgentView> = serde_json::from_value(answer["agents"].clone()).map_err(CliError::other)?;
    let rows = agents.into_iter().map(row).collect();
    Ok(output.table(&["AGENT", "NODES", "OPEN TASKS", "DESCRIPTION"], rows)?)
}

fn row(agent: AgentView) -> Vec<String> {
    let nodes: Vec<String> = agent.nodes.iter().map(|node| node.name.clone()).collect();
    let nodes = if nodes.is_empty() { "-".to_owned() } else { nodes.join(", ") };
    vec![agent.name, nodes, agent.open_tasks.to_string(), agent.description]
}

//! `towline mcp …`

use serde_json::Value;

use towline_actors::mcp_connection::{McpServerState, McpServerStatus};

use super::client::Client;
use crate::{cli::McpCommand, error::CliError, output::Output};

pub(crate) async fn run(command: &McpCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    match command {
        McpCommand::List => list(client, output).await,
        McpCommand::Serve => crate::mcp_server::stdio::serve(client).await,
    }
}

async fn list(client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer: Value = client.get("/api/v1/mcp").await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    let servers: Vec<McpServerStatus> = serde_json::from_value(answer["servers"].clone()).map_err(CliError::other)?;
    let rows = servers.into_iter().map(row).collect();
    Ok(output.table(&["SERVER", "TRANSPORT", "STATE", "TOOLS"], rows)?)
}

fn row(server: McpServerStatus) -> Vec<String> {
    let state = match server.state {
        McpServerState::Connecting => "connecting".to_owned(),
        McpServerState::Ready => "ready".to_owned(),
        McpServerState::Down => format!("down: {}", server.reason.as_deref().unwrap_or("no reason given")),
    };
    let tools = if server.tools.is_empty() { "-".to_owned() } else { server.tools.join(", ") };
    vec![server.name, server.transport, state, tools]
}

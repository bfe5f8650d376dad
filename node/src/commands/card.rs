//! `towline card …`

use towline_a2a::{A2aClient, ClientError};

use super::client::{Client, call_failed, first_reached};
use crate::{cli::CardCommand, error::CliError, output::Output};

pub(crate) async fn run(command: CardCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let CardCommand::Get { agent } = command;
    let below = agent.as_ref().map_or_else(String::new, |agent| format!("/agents/{agent}"));
    let ask = async |mesh: &A2aClient| {
        let base = mesh.endpoint().trim_end_matches('/');
        match mesh.card(&format!("{base}{below}")).await {
            Err(error @ ClientError::Unreachable { .. }) => Err(error),
            answer => Ok(answer),
        }
    };
    let card = first_reached(&client.meshes(), ask).await?.map_err(|error| no_card(&error, agent.as_deref()))?;
    if output.is_json() {
        return Ok(output.json(&card.raw)?);
    }
    output.line(format!("name         {}", card.name))?;
    output.line(format!("description  {}", card.description))?;
    output.line(format!("version      {}", card.version))?;
    output.line(format!("endpoint     {}", card.jsonrpc_url.as_deref().unwrap_or("none that speaks JSON-RPC")))?;
    output.line(format!("streaming    {}", if card.streaming { "yes" } else { "no" }))?;
    card.skills.iter().try_for_each(|(id, description)| output.line(format!("skill        {id}: {description}")))?;
    Ok(())
}

fn no_card(error: &ClientError, agent: Option<&str>) -> CliError {
    match (error, agent) {
        (ClientError::Http { status: 404, .. }, Some(agent)) => {
            CliError::Other(format!("agent {agent:?} is not here: `towline agent list` names those that are"))
        }
        _ => call_failed(error),
    }
}

//! `towline card …`

use super::client::{Client, call_failed};
use crate::{cli::CardCommand, error::CliError, output::Output};

pub(crate) async fn run(command: CardCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let CardCommand::Get { agent } = command;
    let base = match agent {
        Some(agent) => format!("{}/agents/{agent}", client.server()),
        None => client.server().to_owned(),
    };
    let card = client.mesh().card(&base).await.map_err(|error| call_failed(&error))?;
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

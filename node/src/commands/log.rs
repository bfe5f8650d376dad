//! `towline log …`

use serde_json::json;

use super::client::Client;
use crate::{cli::LogCommand, error::CliError, output::Output};

pub(crate) async fn run(command: LogCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let LogCommand::Level { filter } = command;
    let answer = match filter {
        Some(filter) => {
            let filter = if filter == "default" { String::new() } else { filter };
            client.post("/api/v1/log/level", &json!({ "filter": filter })).await?
        }
        None => client.get("/api/v1/log/level").await?,
    };
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    Ok(output.line(answer["filter"].as_str().unwrap_or_default())?)
}

//! `towline sub …`: what starts tasks by itself.

use serde_json::{Value, json};

use super::client::Client;
use crate::{
    api::{TriggerRequest, TriggerView},
    cli::{SubAddArgs, SubCommand},
    config::triggers::milliseconds,
    error::CliError,
    output::Output,
};

pub(crate) async fn run(command: SubCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    match command {
        SubCommand::List => list(client, output).await,
        SubCommand::Add(args) => add(*args, client, output).await,
        SubCommand::Remove { name } => {
            let answer = client.delete(&format!("/api/v1/triggers/{name}")).await?;
            say(&answer, format!("trigger {name} is removed"), output)
        }
        SubCommand::Fire { name } => {
            let answer = client.post(&format!("/api/v1/triggers/{name}/fire"), &json!({})).await?;
            let task = answer["task"].as_str().unwrap_or_default().to_owned();
            say(&answer, task, output)
        }
    }
}

fn say(answer: &Value, line: String, output: &mut Output) -> Result<(), CliError> {
    if output.is_json() {
        return Ok(output.json(answer)?);
    }
    Ok(output.line(line)?)
}

async fn add(args: SubAddArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let name = args.name.clone();
    let request = TriggerRequest {
        name: args.name,
        agent: args.agent,
        prompt: args.prompt.unwrap_or_default(),
        coalesce: args.coalesce,
        server: args.mcp_server,
        uri: args.uri,
        debounce_ms: args.debounce.map(milliseconds),
        poll_ms: args.poll.map(milliseconds),
        filter: args.filter,
        window: args.window,
        cron: args.cron,
        zone: args.zone,
        every_ms: args.every.map(milliseconds),
        at_ms: args.at.map(|at| at.0),
        missed: args.missed,
    };
    let body = serde_json::to_value(request).map_err(CliError::other)?;
    let answer = client.post("/api/v1/triggers", &body).await?;
    say(&answer, format!("trigger {name} is added"), output)
}

async fn list(client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer = client.get("/api/v1/triggers").await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    let triggers: Vec<TriggerView> = serde_json::from_value(answer["triggers"].clone()).map_err(CliError::other)?;
    if triggers.is_empty() {
        output.note(
            "nothing starts tasks by itself: write triggers: in the configuration, or add one with towline sub add",
        );
        return Ok(());
    }
    let troubles: Vec<String> =
        triggers.iter().filter_map(|one| one.trouble.as_ref().map(|why| format!("{}: {why}", one.name))).collect();
    let rows = triggers.into_iter().map(row).collect();
    let head = ["TRIGGER", "AGENT", "WAITS FOR", "STATE", "HEARD", "FIRED", "SKIPPED", "LAST", "NODE", "LAST TASK"];
    output.table(&head, rows)?;
    troubles.into_iter().for_each(|trouble| output.note(trouble));
    Ok(())
}

fn row(trigger: TriggerView) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        trigger.name,
        trigger.agent,
        trigger.what,
        trigger.state,
        or_dash(trigger.push),
        trigger.fired.to_string(),
        trigger.skipped.to_string(),
        or_dash(trigger.fired_at),
        or_dash(trigger.node.map(|node| node.name)),
        or_dash(trigger.tasks.into_iter().next()),
    ]
}

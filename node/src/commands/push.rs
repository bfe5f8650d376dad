//! `towline task push …`

use std::path::Path;

use serde_json::{Value, json};

use super::client::{Client, first_reached};
use crate::{
    api::WebhookView,
    cli::{PushCommand, PushCreateArgs},
    error::CliError,
    output::Output,
};

pub(crate) async fn run(command: PushCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    match command {
        PushCommand::List { id } => list(&id, client, output).await,
        PushCommand::Create(args) => create(args, client, output).await,
        PushCommand::Delete { id, webhook } => delete(&id, &webhook, client, output).await,
    }
}

async fn create(args: PushCreateArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let PushCreateArgs { id: task, url, name, hook_token_file, hook_bearer_file } = args;
    let mut config = json!({ "taskId": task, "url": url });
    if let Some(name) = name {
        config["id"] = name.into();
    }
    if let Some(file) = hook_token_file {
        config["token"] = secret(&file)?.into();
    }
    if let Some(file) = hook_bearer_file {
        config["authentication"] = json!({ "scheme": "Bearer", "credentials": secret(&file)? });
    }
    let made = first_reached(&client.meshes(), async |mesh| mesh.create_webhook(config.clone(), None).await).await?;
    if output.is_json() {
        return Ok(output.json(&made)?);
    }
    output.note(format!("see how it fares with: towline task push list {task}"));
    Ok(output.line(made["id"].as_str().unwrap_or_default())?)
}

async fn delete(task: &str, webhook: &str, client: &Client, output: &mut Output) -> Result<(), CliError> {
    first_reached(&client.meshes(), async |mesh| mesh.delete_webhook(task, webhook, None).await).await?;
    if output.is_json() {
        return Ok(output.json(&json!({ "removed": webhook, "task": task }))?);
    }
    Ok(output.line(format!("webhook {webhook} of task {task} is not there any more"))?)
}

/// A secret of the receiver: in a file, so that no list of processes shows it.
fn secret(path: &Path) -> Result<String, CliError> {
    let wrong = |problem: String| CliError::Usage(format!("read the secret in {}: {problem}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let text = text.trim();
    if text.is_empty() { Err(wrong("it is empty".to_owned())) } else { Ok(text.to_owned()) }
}

async fn list(id: &str, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer: Value = client.get(&format!("/api/v1/tasks/{id}/push")).await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    let webhooks: Vec<WebhookView> = serde_json::from_value(answer["webhooks"].clone()).map_err(CliError::other)?;
    if webhooks.is_empty() {
        output.note(format!("task {id} has no webhooks"));
        return Ok(());
    }
    let reasons: Vec<String> = webhooks.iter().filter_map(reason).collect();
    let rows = webhooks.into_iter().map(row).collect();
    output
        .table(&["WEBHOOK", "STATE", "EVENT", "BEHIND", "TRIES", "LAST", "ERROR", "NEXT TRY", "NODE", "URL"], rows)?;
    reasons.into_iter().for_each(|reason| output.note(reason));
    Ok(())
}

fn reason(webhook: &WebhookView) -> Option<String> {
    let lost = webhook.dead_letters;
    webhook.dead.as_ref().map(|reason| format!("{} was given up, and never told {lost} event(s): {reason}", webhook.id))
}

fn row(webhook: WebhookView) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        webhook.id,
        webhook.state,
        or_dash(webhook.delivered_index.map(|index| index.to_string())),
        webhook.behind.to_string(),
        webhook.attempts.to_string(),
        or_dash(webhook.last_status),
        or_dash(webhook.last_error),
        or_dash(webhook.next_try),
        or_dash(webhook.node.map(|node| node.name)),
        webhook.url,
    ]
}

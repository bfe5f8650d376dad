//! `towline task push …`

use serde_json::Value;

use super::client::Client;
use crate::{api::WebhookView, cli::PushCommand, error::CliError, output::Output};

pub(crate) async fn run(command: PushCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let PushCommand::List { id } = command;
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
    output.table(&["WEBHOOK", "STATE", "EVENT", "BEHIND", "TRIES", "LAST", "NEXT TRY", "NODE", "URL"], rows)?;
    reasons.into_iter().for_each(|reason| output.note(reason));
    Ok(())
}

fn reason(webhook: &WebhookView) -> Option<String> {
    webhook.dead.as_ref().map(|reason| format!("{} was given up: {reason}", webhook.id))
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
        or_dash(webhook.next_try),
        or_dash(webhook.node.map(|node| node.name)),
        webhook.url,
    ]
}

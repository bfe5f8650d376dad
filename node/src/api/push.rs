//! How webhooks fare: `GET /api/v1/tasks/{id}/push` for those of a task, which its owner may ask, `GET /api/v1/push` for all in
//! numbers.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use towline_a2a::time_text;
use towline_core::{State as ClusterState, Timestamp, Webhook};

use super::{Api, ApiError, NodeView, task_id, unknown_task};
use crate::a2a::principal::Caller;

/// A webhook, as the operator and the owner of its task see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WebhookView {
    /// Its id in the task.
    pub id: String,
    /// Where it leads, without the query, which may hold a secret.
    pub url: String,
    /// `done`, `pending`, `failing` or `dead`.
    pub state: String,
    /// The node that tells it; none until one has claimed it.
    pub node: Option<NodeView>,
    /// Index of the last event that the receiver has taken.
    pub delivered_index: Option<u64>,
    /// How many events it does not have.
    pub behind: u64,
    /// How often it was called.
    pub attempts: u64,
    /// How often it took what it was sent.
    pub delivered: u64,
    /// What came of the last call.
    pub last_status: Option<String>,
    /// What kind of failure it was, if it was one: `status_503`, `redirected`, `timeout`, `not_dialled`, `unreachable`.
    #[serde(default)]
    pub last_error: Option<String>,
    /// When that was.
    pub last_at: Option<String>,
    /// How often in a row it has not taken the next event.
    pub failures: u32,
    /// When it is called again.
    pub next_try: Option<String>,
    /// Why it was given up.
    pub dead: Option<String>,
    /// How many events it was never told, since it was given up.
    #[serde(default)]
    pub dead_letters: u64,
}

pub(super) async fn of_task(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    let task = task_id(&id)?;
    let views = api.cluster.read(|state| {
        let generation = state.generation_of(task)?;
        let webhooks = state.webhooks_for(&caller.principal, task)?;
        Some(webhooks.into_iter().map(|webhook| view(state, webhook, generation)).collect::<Vec<_>>())
    });
    let webhooks = views.await?.ok_or_else(|| unknown_task(task))?;
    Ok(Json(json!({ "webhooks": webhooks })).into_response())
}

pub(super) async fn totals(State(api): State<Arc<Api>>) -> Result<Response, ApiError> {
    Ok(Json(api.cluster.read(ClusterState::webhook_totals).await?).into_response())
}

fn view(state: &ClusterState, webhook: &Webhook, generation: u64) -> WebhookView {
    let is_pending = webhook.is_pending(generation);
    let failing = webhook.failing.filter(|_| is_pending);
    let word = match (&webhook.dead, is_pending, failing) {
        (Some(_), _, _) => "dead",
        (None, true, Some(_)) => "failing",
        (None, true, None) => "pending",
        (None, false, _) => "done",
    };
    let last = webhook.last.as_ref();
    let next_try = failing.zip(last).map(|(failing, last)| Timestamp(last.at.0.saturating_add(failing.wait_ms)));
    let node = webhook.lease.map(|lease| NodeView {
        id: lease.node.0,
        name: state.node(lease.node).map(|node| node.name.clone()).unwrap_or_default(),
    });
    WebhookView {
        id: webhook.config.id.clone(),
        url: without_query(&webhook.config.url),
        state: word.to_owned(),
        node,
        delivered_index: webhook.after,
        behind: webhook.behind(generation),
        attempts: webhook.attempts,
        delivered: webhook.delivered,
        last_status: last.map(|last| last.said.clone()),
        last_error: last.and_then(|last| error_class(&last.said)),
        last_at: last.map(|last| time_text(last.at)),
        failures: failing.map_or(0, |failing| failing.times),
        next_try: next_try.map(time_text),
        dead: webhook.dead.clone(),
        dead_letters: if webhook.dead.is_some() { webhook.behind(generation) } else { 0 },
    }
}

/// The kind of failure that the last call of a webhook was, out of what the delivery said of it.
fn error_class(said: &str) -> Option<String> {
    if let Some(status) = said.strip_prefix("status ") {
        let code: u16 = status.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
        return match code {
            200..=299 => None,
            300..=399 => Some("redirected".to_owned()),
            _ => Some(format!("status_{code}")),
        };
    }
    let class = match said {
        _ if said.starts_with("not dialled") => "not_dialled",
        _ if said.contains("timed out") || said.contains("timeout") => "timeout",
        _ => "unreachable",
    };
    Some(class.to_owned())
}

fn without_query(url: &str) -> String {
    url.split(['?', '#']).next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_a_class_and_a_success_has_none() {
        for (said, class) in [
            ("status 200", None),
            ("status 204", None),
            ("status 503 Service Unavailable", Some("status_503")),
            ("status 410 Gone", Some("status_410")),
            ("status 307 Temporary Redirect: redirects are not followed", Some("redirected")),
            ("not dialled: the URL leads to 10.0.0.1, which is not a public address", Some("not_dialled")),
            ("error sending request: operation timed out", Some("timeout")),
            ("error sending request: connection refused", Some("unreachable")),
        ] {
            assert_eq!(error_class(said).as_deref(), class, "{said}");
        }
    }
}

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
    /// When that was.
    pub last_at: Option<String>,
    /// How often in a row it has not taken the next event.
    pub failures: u32,
    /// When it is called again.
    pub next_try: Option<String>,
    /// Why it was given up.
    pub dead: Option<String>,
}

pub(super) async fn of_task(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let task = task_id(&id)?;
    let by = &caller.principal;
    let views = api.cluster.read(|state| {
        let generation = state.generation_of(task)?;
        Some(
            state
                .webhooks_for(by, task)?
                .into_iter()
                .map(|webhook| view(state, webhook, generation))
                .collect::<Vec<_>>(),
        )
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
        last_at: last.map(|last| time_text(last.at)),
        failures: failing.map_or(0, |failing| failing.times),
        next_try: next_try.map(time_text),
        dead: webhook.dead.clone(),
    }
}

fn without_query(url: &str) -> String {
    url.split(['?', '#']).next().unwrap_or_default().to_owned()
}

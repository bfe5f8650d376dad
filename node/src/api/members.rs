//! Who votes, who is emptied, who leads, and who leaves: the operator's commands about nodes.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, State, rejection::JsonRejection},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;
use towline_cluster::TransferError;
use towline_core::{NodeId, NodeRole, State as ClusterState, Task, limits::MAX_PATIENCE_MS};

use super::{Api, ApiError, invalid};

/// Tasks that are named in one answer: it is for a person.
const MAX_TASKS_NAMED: usize = 20;

/// A session that goes on ends within two seconds, and the change of the voters that follows is one of some round trips.
const LEAVES_WITHIN: Duration = Duration::from_secs(5);

/// Between two looks whether a node that was removed is gone.
const LEAVES_POLL: Duration = Duration::from_millis(50);

/// How far a node is with becoming empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainView {
    /// The node.
    pub node: u64,
    /// Whether it is drained at all.
    pub draining: bool,
    /// How many tasks it runs.
    pub left: usize,
    /// Some of them.
    pub tasks: Vec<LeftTask>,
    /// Whether there is no quorum without its vote.
    #[serde(default)]
    pub needed: bool,
}

/// A task that is still on a drained node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftTask {
    /// Its id.
    pub task: String,
    /// Its agent.
    pub agent: String,
    /// What holds it there; none if it is about to move, or a step that may be repeated is waited for.
    pub held: Option<String>,
}

pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/api/v1/cluster/nodes/{node}", delete(remove))
        .route("/api/v1/cluster/nodes/{node}/promote", post(promote))
        .route("/api/v1/cluster/nodes/{node}/demote", post(demote))
        .route("/api/v1/cluster/nodes/{node}/drain", get(drained).post(drain))
        .route("/api/v1/cluster/nodes/{node}/undrain", post(undrain))
        .route("/api/v1/cluster/leader", post(transfer))
}

async fn remove(State(api): State<Arc<Api>>, Path(node): Path<u64>) -> Result<Response, ApiError> {
    api.cluster.remove_node(NodeId(node)).await?;
    let leaving = !is_out(&api, NodeId(node)).await;
    let signs = |other: &towline_core::Node| {
        other.id != NodeId(node) && other.certificate.as_ref().is_some_and(|certificate| certificate.signs)
    };
    let others_sign = api.cluster.local(|state| state.nodes().any(signs));
    Ok(Json(json!({ "leaving": leaving, "others_sign": others_sign, "removed": node })).into_response())
}

/// Whether a node that was removed is gone: its session ends first. A node that was asked about itself does not see it.
async fn is_out(api: &Api, node: NodeId) -> bool {
    let deadline = Instant::now() + LEAVES_WITHIN;
    while api.cluster.local(|state| state.node(node).is_some()) {
        if node == api.cluster.node_id() || Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(LEAVES_POLL).await;
    }
    true
}

async fn promote(State(api): State<Arc<Api>>, Path(node): Path<u64>) -> Result<Response, ApiError> {
    api.cluster.set_role(NodeId(node), NodeRole::Voter).await?;
    Ok(Json(json!({ "node": node, "role": "voter" })).into_response())
}

async fn demote(State(api): State<Arc<Api>>, Path(node): Path<u64>) -> Result<Response, ApiError> {
    api.cluster.set_role(NodeId(node), NodeRole::Learner).await?;
    Ok(Json(json!({ "node": node, "role": "learner" })).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainRequest {
    #[serde(default = "default_patience")]
    timeout_ms: u64,
}

/// What the command line has.
fn default_patience() -> u64 {
    60_000
}

async fn drain(
    State(api): State<Arc<Api>>,
    Path(node): Path<u64>,
    body: Result<Json<DrainRequest>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(request) = body.map_err(|error| invalid(error.body_text()))?;
    let patience = Duration::from_millis(request.timeout_ms);
    if request.timeout_ms > MAX_PATIENCE_MS {
        return Err(invalid(format!("timeout_ms is out of range: 0 to {MAX_PATIENCE_MS}")));
    }
    api.cluster.drain(NodeId(node), patience).await?;
    drained(State(api), Path(node)).await
}

async fn drained(State(api): State<Arc<Api>>, Path(node): Path<u64>) -> Result<Response, ApiError> {
    let status = api.cluster.status();
    let needed = status.members.iter().any(|member| member.id == NodeId(node) && member.needed);
    let view = api.cluster.read(|state| drain_view(state, NodeId(node), needed)).await?;
    view.map(|view| Json(view).into_response()).ok_or_else(|| {
        let message = format!("node {node} is not a member of this cluster");
        ApiError::new(StatusCode::NOT_FOUND, "unknown_node", message)
    })
}

fn drain_view(state: &ClusterState, node: NodeId, needed: bool) -> Option<DrainView> {
    let draining = state.node(node)?.draining.is_some();
    let left_task = |task: &Task| LeftTask {
        task: task.id.to_string(),
        agent: task.agent.to_string(),
        held: state.what_holds(task),
    };
    let tasks = state.tasks_of(node).take(MAX_TASKS_NAMED).map(left_task).collect();
    Some(DrainView { node: node.0, draining, left: state.load_of(node), tasks, needed })
}

async fn undrain(State(api): State<Arc<Api>>, Path(node): Path<u64>) -> Result<Response, ApiError> {
    api.cluster.undrain(NodeId(node)).await?;
    Ok(Json(json!({ "draining": false, "node": node })).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TransferRequest {
    to: Option<u64>,
}

async fn transfer(
    State(api): State<Arc<Api>>,
    body: Result<Json<TransferRequest>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(request) = body.map_err(|error| invalid(error.body_text()))?;
    let leader = api.cluster.transfer_leader(request.to.map(NodeId)).await?;
    Ok(Json(json!({ "leader": leader.0 })).into_response())
}

impl From<TransferError> for ApiError {
    fn from(error: TransferError) -> Self {
        let (status, code) = match &error {
            TransferError::Unfit { .. } => (StatusCode::CONFLICT, "rejected"),
            TransferError::Unknown { .. } => (StatusCode::SERVICE_UNAVAILABLE, "unknown_outcome"),
            TransferError::Unavailable { .. } => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        ApiError::new(status, code, error.to_string())
    }
}

//! The operator API: what A2A does not show, under `/api/v1`, and the probes `/livez` and `/healthz`.
//!
//! Behind the same gate as the A2A door, and for the operator where no other role may ask. Errors are
//! `{"error": {"code": …, "message": …}}`; 503 means that the cluster has no quorum.

mod doctor;
mod events;
mod log_level;
mod mcp;
mod mcp_consent;
mod members;
mod peers;
mod push;
mod resolve;
mod sign_in;
mod triggers;
mod whoami;

use std::{
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Extension, Json, Router,
    body::Body,
    extract::{Path, Query, State, rejection::JsonRejection},
    middleware,
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use http::{StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use towline_actors::Mesh;
use towline_cluster::{ClusterHandle, ProposeError, Unavailable, Unwell};
use towline_core::{
    Agent, NodeRole, Placement, Rejection, State as ClusterState, Task, TaskId, limits::MAX_OPEN_TASKS_PER_AGENT,
};

use crate::{
    a2a::principal::Caller,
    auth::{self, Auth, audit},
    config::NodeConfig,
    hooks::{self, Hooks},
    metrics, recovered_spans,
    sign_in::SignIns,
    why,
};

pub(crate) use events::MAX_ENTRIES as MAX_EVENT_ENTRIES;
pub use members::{DrainView, LeftTask};
pub use peers::{PeerRequest, PeerView};
pub use push::WebhookView;
pub use sign_in::{DeviceView, SessionView};
pub use triggers::{TriggerRequest, TriggerView};
pub use whoami::CallerView;

/// Longest life of a join token: who needs one later makes one later.
pub(crate) const MAX_TOKEN_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

/// When another try is worth it after nobody answered: an election takes about a second.
const NO_ANSWER: Duration = Duration::from_secs(1);

/// A problem of one kind is told once in this time, however often a probe asks.
const UNWELL_TOLD_EACH: Duration = Duration::from_secs(60);

/// What an agent's queue holds that asks for no shorter one.
const DEFAULT_QUEUE: u32 = MAX_OPEN_TASKS_PER_AGENT as u32;

/// What the operator API shows.
pub struct Api {
    /// The cluster.
    pub cluster: ClusterHandle,
    /// The running mesh; none before it has started and after it has stopped.
    pub mesh: Mutex<Option<Mesh>>,
    /// Base URL of the public listener.
    pub public_url: String,
    /// Who asks, and who may.
    pub auth: Arc<Auth>,
    /// Whether this node has registered and takes work.
    pub ready: AtomicBool,
    /// Who signs in here.
    pub sign_ins: Arc<SignIns>,
    /// What callers of webhooks have to show.
    pub hooks: Hooks,
    /// What this node was started with.
    pub config: Arc<NodeConfig>,
    /// Canceled when the node begins to stop: streams end.
    pub stopping: CancellationToken,
}

/// An agent, as the operator sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentView {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// Tags of its skill.
    pub tags: Vec<String>,
    /// On how many nodes it is to be placed; none means all.
    pub replicas: Option<u32>,
    /// Nodes on which it is placed.
    pub nodes: Vec<NodeView>,
    /// Its tasks that have not ended, on all nodes.
    pub open_tasks: usize,
    /// How many it may have.
    #[serde(default)]
    pub queue: u32,
    /// Where it is, if it is an agent outside of this mesh that takes part in it.
    #[serde(default)]
    pub urls: Vec<String>,
}

/// A task, as the operator sees it.
#[derive(Debug, Serialize)]
struct TaskView<'a> {
    #[serde(flatten)]
    task: &'a Task,
    /// What it waits for, if it has no owner and should have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
    /// Where it stands, and what happens next, in one sentence.
    why: String,
}

/// A node, named.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeView {
    /// Its id.
    pub id: u64,
    /// Its name.
    pub name: String,
}

/// The routes of the operator API.
pub fn router(api: Arc<Api>) -> Router {
    operations()
        .route_layer(middleware::from_fn_with_state(Arc::clone(&api.auth), auth::gate))
        .route("/api/v1/{*path}", any(unknown))
        .merge(hooks::routes())
        .merge(probes(&api.auth))
        .with_state(api)
}

/// What is asked without a credential: for who watches the node, and for no page that has led its own name to this machine.
fn probes(auth: &Arc<Auth>) -> Router<Arc<Api>> {
    Router::new()
        .route("/livez", get(alive))
        .route("/healthz", get(health))
        .route_layer(middleware::from_fn_with_state(Arc::clone(auth), auth::named))
}

/// The operations behind what says who may, for requests whose caller is known.
pub fn for_known(api: Arc<Api>) -> Router {
    operations().with_state(api)
}

fn operations() -> Router<Arc<Api>> {
    Router::new()
        .route("/metrics", get(metrics::show))
        .merge(log_level::routes())
        .route("/api/v1/cluster", get(cluster))
        .route("/api/v1/cluster/snapshot", get(snapshot))
        .route("/api/v1/agents", get(agents))
        .route("/api/v1/mcp", get(servers))
        .route("/api/v1/tasks/{id}", get(task))
        .route("/api/v1/tasks/{id}/trace", get(trace))
        .route("/api/v1/tasks/{id}/push", get(push::of_task))
        .route("/api/v1/push", get(push::totals))
        .route(resolve::ROUTE, post(resolve::resolve))
        .route("/api/v1/join-tokens", post(join_token))
        .merge(mcp::routes())
        .merge(mcp_consent::routes())
        .route(events::ROUTE, get(events::events))
        .merge(members::routes())
        .merge(peers::routes())
        .merge(sign_in::routes())
        .merge(triggers::routes())
        .route(whoami::ROUTE, get(whoami::whoami))
        .merge(doctor::routes())
        .route_layer(middleware::from_fn(auth::authorize))
}

/// The process runs: no more is asked. A restart mends no disk and no network.
async fn alive() -> Response {
    Json(json!({ "status": "alive" })).into_response()
}

/// Whether this node does its part. Whoever reaches the port is told the kind of a problem; the log has the rest.
async fn health(State(api): State<Arc<Api>>) -> Response {
    let mut problems = Vec::new();
    let is_ready = api.ready.load(Ordering::Relaxed);
    if !is_ready {
        problems.push("not_registered");
    }
    if let Err(unwell) = api.cluster.health() {
        if is_ready {
            tell(&unwell);
        }
        problems.push(unwell.class);
    }
    if problems.is_empty() {
        return Json(json!({ "status": "ready" })).into_response();
    }
    let body = json!({ "problems": problems, "status": "unready" });
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

/// Tells the operator, not at each probe.
fn tell(unwell: &Unwell) {
    static TOLD: std::sync::Mutex<Option<(&'static str, Instant)>> = std::sync::Mutex::new(None);
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.is_some_and(|(class, at)| class == unwell.class && at.elapsed() < UNWELL_TOLD_EACH) {
        return;
    }
    *told = Some((unwell.class, Instant::now()));
    tracing::warn!(problem = unwell.class, reason = %unwell, "this node is unwell");
}

async fn unknown(Path(path): Path<String>) -> ApiError {
    let path = towline_a2a::shortened(&path);
    ApiError::new(StatusCode::NOT_FOUND, "not_found", format!("/api/v1/{path} is no path of this API"))
}

async fn cluster(State(api): State<Arc<Api>>) -> Response {
    Json(api.cluster.status()).into_response()
}

/// The state of the cluster as a file, made while it is read.
async fn snapshot(State(api): State<Arc<Api>>) -> Result<Response, ApiError> {
    let mut chunks = api.cluster.save().await?;
    let chunks = futures::stream::poll_fn(move |context| chunks.poll_recv(context));
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], Body::from_stream(chunks)).into_response())
}

async fn agents(State(api): State<Arc<Api>>) -> Result<Response, ApiError> {
    let agents =
        api.cluster.read(|state| state.agents().map(|agent| agent_view(state, agent)).collect::<Vec<_>>()).await?;
    Ok(Json(json!({ "agents": agents })).into_response())
}

fn agent_view(state: &ClusterState, agent: &Agent) -> AgentView {
    let node = |id: &towline_core::NodeId| NodeView {
        id: id.0,
        name: state.node(*id).map(|node| node.name.clone()).unwrap_or_default(),
    };
    let nodes: Vec<NodeView> = agent.placed.iter().map(node).collect();
    AgentView {
        name: agent.spec.name.to_string(),
        description: agent.spec.description.clone(),
        tags: agent.spec.tags.clone(),
        replicas: match agent.spec.placement {
            Placement::Replicas(replicas) => Some(replicas),
            Placement::EveryNode => None,
        },
        nodes,
        open_tasks: state.open_tasks_of(&agent.spec.name),
        queue: agent.spec.queue.unwrap_or(DEFAULT_QUEUE),
        urls: state.peer(&agent.spec.name).map(|peer| peer.urls.clone()).unwrap_or_default(),
    }
}

async fn servers(State(api): State<Arc<Api>>) -> Response {
    let servers = api.mesh.lock().await.as_ref().map(Mesh::mcp_servers).unwrap_or_default();
    Json(json!({ "servers": servers })).into_response()
}

async fn task(State(api): State<Arc<Api>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    let id = task_id(&id)?;
    let task = api.cluster.task(id).await?.ok_or_else(|| unknown_task(id))?;
    let waits_for = api.cluster.local(|state| state.waits_for(id));
    let why = api.cluster.local(|state| why::why(state, &task));
    Ok(Json(TaskView { task: &task, waits_for, why }).into_response())
}

/// The operator sees the whole trace, and the owner of a task what lies below the request that made it: who sends a message
/// says which trace it is of, and may name somebody else's.
async fn trace(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(wanted): Query<Wanted>,
) -> Result<Response, ApiError> {
    let id = task_id(&id)?;
    let found = api.cluster.task(id).await?;
    let owned = found.filter(|task| caller.principal.may_act_on(&task.owner));
    let task = owned.ok_or_else(|| unknown_task(id))?;
    let context = task.trace;
    let mut shown = json!({
        "jaeger_url": towline_trace::ui_link(context.trace_id),
        "sampled": context.sampled,
        "trace_id": context.trace_id_hex(),
    });
    if wanted.spans == Some(SpansWanted::None) {
        return Ok(Json(shown).into_response());
    }
    let traces = recovered_spans::traces_of(&task);
    let mut spans = Vec::new();
    for trace in &traces {
        spans.extend(api.cluster.spans(*trace).await);
    }
    let family = recovered_spans::family(&api.cluster, id).await;
    spans.extend(api.cluster.local(|state| recovered_spans::fill(state, &family, &spans)));
    if !caller.principal.is_operator() {
        spans = recovered_spans::below(spans, &recovered_spans::tops_of(&task));
    }
    shown["spans"] = json!(spans);
    Ok(Json(shown).into_response())
}

/// What of a trace is asked for.
#[derive(Debug, Default, Deserialize)]
struct Wanted {
    spans: Option<SpansWanted>,
}

/// Which spans.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SpansWanted {
    /// Every one.
    All,
    /// None: only which trace it is, and where it can be looked at.
    None,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenRequest {
    role: RoleName,
    ttl_ms: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum RoleName {
    Voter,
    Learner,
    Worker,
}

async fn join_token(
    State(api): State<Arc<Api>>,
    body: Result<Json<TokenRequest>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(request) = body.map_err(|error| invalid(error.body_text()))?;
    let (role, word) = match request.role {
        RoleName::Voter => (NodeRole::Voter, "voter"),
        RoleName::Learner => (NodeRole::Learner, "learner"),
        RoleName::Worker => (NodeRole::Worker, "worker"),
    };
    Ok(audit::about(token_made(&api, role, request.ttl_ms).await, word))
}

async fn token_made(api: &Api, role: NodeRole, ttl_ms: u64) -> Result<Response, ApiError> {
    let ttl = Duration::from_millis(ttl_ms);
    if ttl.is_zero() || ttl > MAX_TOKEN_TTL {
        return Err(invalid(format!("ttl_ms is out of range: 1 to {}", MAX_TOKEN_TTL.as_millis())));
    }
    let token = api.cluster.mint_token(role, ttl).await?;
    let join = api.cluster.own_peer_address();
    Ok(Json(json!({ "join": join, "token": token, "ttl_ms": ttl_ms })).into_response())
}

fn task_id(text: &str) -> Result<TaskId, ApiError> {
    // What is no id is no task's id: the same answer as for one that is not there.
    let message = || format!("task {text:?} is not known");
    text.parse().map_err(|_| ApiError::new(StatusCode::NOT_FOUND, "unknown_task", message()))
}

fn unknown_task(id: TaskId) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "unknown_task", format!("task {id} is not known"))
}

fn invalid(message: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_request", message)
}

pub(crate) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    /// When another try is worth it.
    retry_after: Option<Duration>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: String) -> Self {
        Self { status, code, message, retry_after: None }
    }

    pub(crate) fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json!({ "error": { "code": self.code, "message": self.message } });
        let mut response = (self.status, Json(body)).into_response();
        if let Some(wait) = self.retry_after {
            let seconds = u64::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(u64::MAX);
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

impl From<Unavailable> for ApiError {
    fn from(error: Unavailable) -> Self {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", error.to_string()).retry_after(NO_ANSWER)
    }
}

impl From<ProposeError> for ApiError {
    fn from(error: ProposeError) -> Self {
        let message = error.to_string();
        match error {
            ProposeError::Rejected(Rejection::Full { retry_after_ms, .. }) => {
                let wait = Duration::from_millis(retry_after_ms);
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "full", message).retry_after(wait)
            }
            ProposeError::Rejected(_) => ApiError::new(StatusCode::CONFLICT, "rejected", message),
            ProposeError::Unavailable { retry_after, .. } => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message).retry_after(retry_after)
            }
            ProposeError::Unknown { .. } => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unknown_outcome", message).retry_after(NO_ANSWER)
            }
        }
    }
}

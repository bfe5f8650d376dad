//! What starts tasks by itself: `/api/v1/triggers`.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, State, rejection::JsonRejection},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use towline_a2a::time_text;
use towline_actors::{Mesh, triggers};
use towline_core::{
    AgentName, Command, Level, Occasion, Principal, Proposal, ResourceSource, Schedule, State as ClusterState,
    Timestamp, Trigger, TriggerChange, TriggerName, TriggerSource, TriggerSpec,
};

use super::{Api, ApiError, NodeView, invalid};
use crate::{
    auth::audit,
    config::triggers::{DEBOUNCE, MAX_WINDOW, POLL, milliseconds, missed, schedule},
    hooks::not_fired,
};

/// Shortest time between two reads, in milliseconds.
const SHORTEST_POLL_MS: u64 = 100;

/// A trigger that an operator adds: one of a resource, with `server` and `uri`, or of times, with `cron`, `every_ms` or `at`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TriggerRequest {
    /// Its name.
    pub name: String,
    /// Who does the tasks.
    pub agent: String,
    /// What the agent is told, before what happened.
    pub prompt: String,
    /// Whether no other task of it is started as long as one is open.
    pub coalesce: bool,
    /// The MCP server of the resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// Changes within this time are one, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debounce_ms: Option<u64>,
    /// How often it is read where its server says nothing, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll_ms: Option<u64>,
    /// A condition in CEL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// How many earlier contents the condition sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// A line of a crontab.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Its time zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The time between two, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<u64>,
    /// One moment, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
    /// What happens to times that nobody was there for: `skip`, `once`, `all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missed: Option<String>,
}

/// A trigger, as the operator sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TriggerView {
    /// Its name.
    pub name: String,
    /// Who does the tasks.
    pub agent: String,
    /// `resource`, `schedule` or `webhook`.
    pub kind: String,
    /// What it waits for, in a line.
    pub what: String,
    /// `ok`, `trouble`, `unclaimed`.
    pub state: String,
    /// What keeps it from its work.
    pub trouble: Option<String>,
    /// The node that looks after it.
    pub node: Option<NodeView>,
    /// How changes are heard of: `live`, `poll`, `down`; of a resource.
    pub push: Option<String>,
    /// How often it started a task.
    pub fired: u64,
    /// How many changes or times started nothing.
    pub skipped: u64,
    /// When it started one last.
    pub fired_at: Option<String>,
    /// Its last tasks, the newest first.
    pub tasks: Vec<String>,
    /// Whether the configuration of nodes has it.
    pub declared: bool,
}

pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/api/v1/triggers", get(list).post(add))
        .route("/api/v1/triggers/{name}", delete(remove))
        .route("/api/v1/triggers/{name}/fire", post(fire))
}

async fn list(State(api): State<Arc<Api>>) -> Result<Response, ApiError> {
    let views = api.cluster.read(|state| state.triggers().map(|trigger| view(state, trigger)).collect::<Vec<_>>());
    Ok(Json(json!({ "triggers": views.await? })).into_response())
}

fn view(state: &ClusterState, trigger: &Trigger) -> TriggerView {
    let Trigger { spec, .. } = trigger;
    let (kind, what) = match &spec.source {
        TriggerSource::Resource(source) => ("resource", format!("{} {}", source.server, source.uri)),
        TriggerSource::Schedule { when, .. } => ("schedule", in_words(when)),
        TriggerSource::Webhook => ("webhook", format!("POST /hooks/{}", spec.name)),
    };
    let word = match (&trigger.trouble, trigger.lease) {
        (Some(_), _) => "trouble",
        (None, None) if spec.has_owner() => "unclaimed",
        (None, _) => "ok",
    };
    TriggerView {
        name: spec.name.to_string(),
        agent: spec.agent.to_string(),
        kind: kind.to_owned(),
        what,
        state: word.to_owned(),
        trouble: trigger.trouble.clone(),
        node: trigger.lease.map(|lease| NodeView {
            id: lease.node.0,
            name: state.node(lease.node).map(|node| node.name.clone()).unwrap_or_default(),
        }),
        push: trigger.push.clone(),
        fired: trigger.fired,
        skipped: trigger.skipped,
        fired_at: trigger.fired_at.map(time_text),
        tasks: trigger.tasks.iter().rev().map(ToString::to_string).collect(),
        declared: !trigger.declared_by.is_empty(),
    }
}

fn in_words(when: &Schedule) -> String {
    match when {
        Schedule::Cron { pattern, zone } => format!("cron {pattern} ({zone})"),
        Schedule::Every { period_ms } => format!("every {:?}", Duration::from_millis(*period_ms)),
        Schedule::At { at } => format!("at {}", time_text(*at)),
    }
}

async fn add(
    State(api): State<Arc<Api>>,
    body: Result<Json<TriggerRequest>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(request) = body.map_err(|error| invalid(error.body_text()))?;
    let name = request.name.clone();
    Ok(audit::about(added(&api, request).await, name))
}

async fn added(api: &Api, request: TriggerRequest) -> Result<Response, ApiError> {
    let spec = read(request).map_err(invalid)?;
    triggers::check(&spec).map_err(invalid)?;
    not_over(&spec, SystemTime::now())?;
    check_here(api, &spec).await?;
    if api.cluster.local(ClusterState::level) < Level::TRIGGERS {
        let message = "not all nodes know triggers yet: upgrade them, then add it".to_owned();
        return Err(ApiError::new(StatusCode::CONFLICT, "level", message));
    }
    let name = spec.name.clone();
    change(api, TriggerChange::Add(spec)).await?;
    Ok((StatusCode::CREATED, Json(json!({ "added": name }))).into_response())
}

/// A moment that is over would never come: who adds it has written another one than they meant.
fn not_over(spec: &TriggerSpec, now: SystemTime) -> Result<(), ApiError> {
    let TriggerSource::Schedule { when: Schedule::At { at }, .. } = &spec.source else { return Ok(()) };
    let now = now.duration_since(UNIX_EPOCH).map(milliseconds).unwrap_or_default();
    if at.0 > now {
        return Ok(());
    }
    Err(invalid(format!("at: {} is over already, and it is {}", time_text(*at), time_text(Timestamp(now)))))
}

/// What this node knows of agent and server.
async fn check_here(api: &Api, spec: &TriggerSpec) -> Result<(), ApiError> {
    let mesh = api.mesh.lock().await;
    let Some(source) = spec.resource() else { return Ok(()) };
    if !mesh.as_ref().is_some_and(|mesh| mesh.has_server(&source.server)) {
        let known = mesh.as_ref().map(Mesh::mcp_servers).unwrap_or_default();
        let known: Vec<String> = known.into_iter().map(|server| server.name).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(invalid(format!("server {:?} is not configured on this node; configured: {known}", source.server)));
    }
    if mesh.as_ref().is_some_and(|mesh| mesh.keeps_text_away(&spec.agent)) {
        return Err(invalid(format!(
            "agent {} holds sensitive data and has a way out: what this trigger tells it is text from outside; name another \
             agent, or set allow_trifecta for it in the configuration",
            spec.agent
        )));
    }
    Ok(())
}

/// A request as a trigger; or what is wrong with it.
fn read(request: TriggerRequest) -> Result<TriggerSpec, String> {
    let name: TriggerName = request.name.parse().map_err(|error| format!("name: {error}"))?;
    let agent: AgentName = request.agent.parse().map_err(|error| format!("agent: {error}"))?;
    let has_times = request.cron.is_some() || request.every_ms.is_some() || request.at_ms.is_some();
    let source = match (request.server, request.uri) {
        (Some(_), Some(_)) if has_times => return Err("it waits for a resource or for times: add two".to_owned()),
        (Some(server), Some(uri)) => {
            let (debounce, poll) = (milliseconds(DEBOUNCE), milliseconds(POLL));
            let source = ResourceSource {
                server,
                uri,
                debounce_ms: request.debounce_ms.unwrap_or(debounce),
                poll_ms: request.poll_ms.unwrap_or(poll),
                filter: request.filter,
                window: request.window.unwrap_or(0),
            };
            let longest = milliseconds(Duration::from_secs(24 * 3600));
            if source.poll_ms < SHORTEST_POLL_MS || source.poll_ms.max(source.debounce_ms) > longest {
                return Err(format!("poll_ms is {SHORTEST_POLL_MS} to {longest}, debounce_ms up to that"));
            }
            if source.window > MAX_WINDOW {
                return Err(format!("window is {} contents; the limit is {MAX_WINDOW}", source.window));
            }
            TriggerSource::Resource(source)
        }
        (None, None) => {
            let every = request.every_ms.map(Duration::from_millis);
            let at = request.at_ms.map(Timestamp);
            let when = schedule(request.cron.as_deref(), request.zone.as_deref(), every, at).map_err(|_| {
                "it waits for a resource, with server and uri, or for times, with cron, every or at".to_owned()
            })?;
            let missed = request.missed.as_deref().map(missed).transpose()?.unwrap_or_default();
            TriggerSource::Schedule { when, missed }
        }
        (Some(_), None) | (None, Some(_)) => return Err("server and uri go together".to_owned()),
    };
    Ok(TriggerSpec { name, agent, prompt: request.prompt, coalesce: request.coalesce, source })
}

async fn remove(State(api): State<Arc<Api>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    let name = trigger_name(&name)?;
    change(&api, TriggerChange::Remove { name: name.clone() }).await?;
    Ok(Json(json!({ "removed": name })).into_response())
}

async fn change(api: &Api, change: TriggerChange) -> Result<(), ApiError> {
    let proposal = Proposal { by: Principal::Operator, command: Command::Trigger(Box::new(change)) };
    api.cluster.propose(proposal, None).await?;
    Ok(())
}

/// By hand, whatever it waits for.
async fn fire(State(api): State<Arc<Api>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    let name = trigger_name(&name)?;
    let spec = api.cluster.read(|state| state.trigger(&name).map(|trigger| trigger.spec.clone())).await?;
    let spec = spec.ok_or_else(|| unknown(name.as_str()))?;
    let reading = api.mesh.lock().await.as_ref().map(|mesh| mesh.event_of(&spec));
    let event = match reading {
        Some(reading) => reading.await,
        None => None,
    };
    let occasion = Occasion::Hand { request: uuid::Uuid::now_v7() };
    let fired = triggers::fire(&api.cluster, Principal::Operator, &spec, occasion, (event, 0)).await;
    let (task, _) = fired.map_err(not_fired)?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "task": task, "trigger": name }))).into_response())
}

fn trigger_name(text: &str) -> Result<TriggerName, ApiError> {
    text.parse().map_err(|_| unknown(text))
}

fn unknown(name: &str) -> ApiError {
    let name = towline_a2a::shortened(name);
    let message = format!("trigger {name:?} is not known: `towline sub list` names those that are");
    ApiError::new(StatusCode::NOT_FOUND, "unknown_trigger", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> TriggerRequest {
        TriggerRequest { name: "inbox".into(), agent: "triage".into(), ..TriggerRequest::default() }
    }

    #[test]
    fn a_moment_that_is_over_is_not_added() {
        let at = |at_ms| read(TriggerRequest { at_ms: Some(at_ms), ..request() }).unwrap();
        let now = UNIX_EPOCH + Duration::from_millis(1_000);
        assert!(not_over(&at(1_001), now).is_ok());
        assert!(not_over(&at(1_000), now).is_err());
    }

    #[test]
    fn what_is_added_waits_for_one_thing() {
        let (server, uri) = (Some("fs".to_owned()), Some("file:///i".to_owned()));
        let of_resource = TriggerRequest { server: server.clone(), uri: uri.clone(), ..request() };
        assert_eq!(read(of_resource.clone()).unwrap().resource().unwrap().poll_ms, 5_000);
        let nightly = TriggerRequest { cron: Some("30 2 * * *".into()), missed: Some("once".into()), ..request() };
        assert!(matches!(read(nightly.clone()).unwrap().source, TriggerSource::Schedule { .. }));
        for (wrong, says) in [
            (request(), "it waits for"),
            (TriggerRequest { cron: nightly.cron.clone(), ..of_resource.clone() }, "add two"),
            (TriggerRequest { server, ..request() }, "go together"),
            (TriggerRequest { poll_ms: Some(1), ..of_resource.clone() }, "poll_ms is"),
            (TriggerRequest { window: Some(1_000), ..of_resource.clone() }, "the limit is 256"),
            (TriggerRequest { name: "in box".into(), ..of_resource }, "name: "),
        ] {
            let refused = read(wrong).unwrap_err();
            assert!(refused.contains(says), "{refused}");
        }
    }
}

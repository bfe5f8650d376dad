//! Who asks to be let in, who is, and what operators do about it: `/api/v1/auth/…`.

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
use towline_core::{
    Approve, Command, Decision, DeviceRequest, Principal, PrincipalId, PrincipalRole, Proposal, Revoke, Session,
    SessionId, SessionKind, SignIn, Timestamp, UserCode,
};

use super::{Api, ApiError, invalid};
use crate::{auth::audit, sign_in::now};

/// What the names of people begin with.
const USER_PREFIX: &str = "user:";
/// Longest name of a person, without that.
const MAX_NAME_CHARS: usize = 64;

/// A device that asks, as the operator sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceView {
    /// What the person reads.
    pub code: String,
    /// What the client calls itself.
    pub client: String,
    /// Where it asked from.
    pub source: String,
    /// The most that it asks to be.
    pub wants: String,
    /// When it asked.
    pub created: String,
    /// When it is given up.
    pub expires: String,
    /// `pending`, `approved`, `denied`, or `signed in`.
    pub state: String,
    /// Under which name it was approved.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
}

/// A session, as the operator sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionView {
    /// Its id.
    pub id: String,
    /// `device` or `launch`.
    pub kind: String,
    /// Whose it is.
    pub name: String,
    /// What it may do.
    pub role: String,
    /// What the client calls itself.
    pub client: String,
    /// When it began.
    pub created: String,
    /// When it ends.
    pub expires: String,
    /// When it was used last, within some minutes.
    pub seen: Option<String>,
}

pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/api/v1/auth/devices", get(devices))
        .route("/api/v1/auth/devices/{code}/approve", post(approve))
        .route("/api/v1/auth/devices/{code}/deny", post(deny))
        .route("/api/v1/auth/sessions", get(sessions))
        .route("/api/v1/auth/sessions/{id}", delete(revoke_one))
        .route("/api/v1/auth/sessions/revoke", post(revoke_many))
}

async fn devices(State(api): State<Arc<Api>>) -> Result<Response, ApiError> {
    let at = now(&api.cluster);
    let devices = api.cluster.read(|state| state.device_requests(at).map(device_view).collect::<Vec<_>>()).await?;
    Ok(Json(json!({ "devices": devices, "enabled": api.sign_ins.settings().enabled })).into_response())
}

fn device_view(request: &DeviceRequest) -> DeviceView {
    let (state, name) = match &request.decision {
        None => ("pending", None),
        Some(Decision::Denied) => ("denied", None),
        Some(Decision::Approved(approval)) if approval.session.is_some() => ("signed in", Some(&approval.name)),
        Some(Decision::Approved(approval)) => ("approved", Some(&approval.name)),
    };
    DeviceView {
        code: request.code.to_string(),
        client: request.client.clone(),
        source: request.source.clone(),
        wants: request.wants.to_string(),
        created: time(request.created),
        expires: time(request.expires),
        state: state.to_owned(),
        name: name.map(PrincipalId::to_string),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ApproveRequest {
    /// Who it is, with or without `user:`.
    name: String,
    role: Option<PrincipalRole>,
}

async fn approve(
    State(api): State<Arc<Api>>,
    Path(code): Path<String>,
    body: Result<Json<ApproveRequest>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(request) = body.map_err(|error| invalid(error.body_text()))?;
    let name = request.name.clone();
    Ok(audit::about(approved(&api, &code, &request).await, name))
}

async fn approved(api: &Api, code: &str, request: &ApproveRequest) -> Result<Response, ApiError> {
    let settings = api.sign_ins.settings();
    if !settings.enabled {
        let message = "nobody signs in at this node: set auth.device_grant.enabled to true".to_owned();
        return Err(ApiError::new(StatusCode::CONFLICT, "off", message));
    }
    let code = user_code(code)?;
    let name = person(&request.name)?;
    let role = request.role.unwrap_or(PrincipalRole::User);
    if role == PrincipalRole::Operator && !settings.allow_operator {
        let message = "nobody signs in as an operator at this node: set auth.device_grant.allow_operator to true";
        return Err(ApiError::new(StatusCode::CONFLICT, "off", message.to_owned()));
    }
    let ttl_ms = u64::try_from(settings.session_ttl.as_millis()).unwrap_or(u64::MAX);
    let approve = Approve { code: code.clone(), name: name.clone(), role, ttl_ms };
    change(api, SignIn::Approve(approve)).await?;
    let at = now(&api.cluster);
    let before = api.cluster.local(|state| {
        let decision = state.device_request(&code, at)?.decision.as_ref()?;
        if let Decision::Approved(approval) = decision { approval.before } else { None }
    });
    tracing::info!(%code, %name, %role, "a sign-in was approved");
    let answer = json!({ "approved_before": before.map(time), "code": code.to_string(), "name": name, "role": role });
    Ok(Json(answer).into_response())
}

async fn deny(State(api): State<Arc<Api>>, Path(code): Path<String>) -> Result<Response, ApiError> {
    let code = user_code(&code)?;
    let at = now(&api.cluster);
    let asks = api.cluster.local(|state| state.device_request(&code, at).map(|request| request.client.clone()));
    let answer = denied(&api, code).await;
    // Who is turned away has no name yet, but for what its client calls itself.
    Ok(match asks {
        Some(client) => audit::about(answer, client),
        None => answer.into_response(),
    })
}

async fn denied(api: &Api, code: UserCode) -> Result<Response, ApiError> {
    change(api, SignIn::Deny { code: code.clone() }).await?;
    tracing::info!(%code, "a sign-in was denied");
    Ok(Json(json!({ "code": code.to_string(), "denied": true })).into_response())
}

async fn sessions(State(api): State<Arc<Api>>) -> Result<Response, ApiError> {
    let at = now(&api.cluster);
    let mut sessions = api.cluster.read(|state| state.sessions(at).cloned().collect::<Vec<_>>()).await?;
    sessions.sort_by(|one, other| (one.created, &one.id).cmp(&(other.created, &other.id)));
    let sessions: Vec<SessionView> = sessions.iter().map(session_view).collect();
    Ok(Json(json!({ "sessions": sessions })).into_response())
}

fn session_view(session: &Session) -> SessionView {
    let kind = match session.kind {
        SessionKind::Device => "device",
        SessionKind::Launch => "launch",
    };
    SessionView {
        id: session.id.to_string(),
        kind: kind.to_owned(),
        name: session.name.to_string(),
        role: session.role.to_string(),
        client: session.client.clone(),
        created: time(session.created),
        expires: time(session.expires),
        seen: session.seen.map(time),
    }
}

async fn revoke_one(State(api): State<Arc<Api>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    let unknown = || {
        let message = format!("session {id:?} is not known: `towline auth sessions` lists those that are");
        ApiError::new(StatusCode::NOT_FOUND, "unknown_session", message)
    };
    let session: SessionId = id.parse().map_err(|_| unknown())?;
    let ended = revoke(&api, Revoke::Session(session.clone()), |one| one.id == session).await?;
    if ended.is_empty() {
        return Err(unknown());
    }
    Ok(Json(json!({ "revoked": ended })).into_response())
}

/// Exactly one of them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RevokeRequest {
    /// All sessions of a name, with or without `user:`.
    name: Option<String>,
    /// All sessions.
    all: Option<bool>,
}

async fn revoke_many(
    State(api): State<Arc<Api>>,
    body: Result<Json<RevokeRequest>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(request) = body.map_err(|error| invalid(error.body_text()))?;
    let whose = request.name.clone().unwrap_or_else(|| "all".to_owned());
    Ok(audit::about(revoked(&api, request).await, whose))
}

async fn revoked(api: &Api, request: RevokeRequest) -> Result<Response, ApiError> {
    let ended = match (request.name, request.all) {
        (Some(name), None) => {
            let name = person(&name)?;
            revoke(api, Revoke::Name(name.clone()), |one| one.name == name).await?
        }
        (None, Some(true)) => revoke(api, Revoke::All, |_| true).await?,
        _ => return Err(invalid("say whose sessions end: {\"name\": \"ada\"} or {\"all\": true}".to_owned())),
    };
    Ok(Json(json!({ "revoked": ended })).into_response())
}

/// Ends sessions; those that there were.
async fn revoke(api: &Api, which: Revoke, is_meant: impl Fn(&Session) -> bool) -> Result<Vec<SessionId>, ApiError> {
    let at = now(&api.cluster);
    let meant = api
        .cluster
        .read(|state| state.sessions(at).filter(|one| is_meant(one)).map(|one| one.id.clone()).collect::<Vec<_>>())
        .await?;
    change(api, SignIn::Revoke(which)).await?;
    tracing::info!(sessions = meant.len(), "sessions were revoked");
    Ok(meant)
}

async fn change(api: &Api, change: SignIn) -> Result<(), ApiError> {
    let proposal = Proposal { by: Principal::Operator, command: Command::SignIn(Box::new(change)) };
    Ok(api.cluster.propose(proposal, None).await.map(|_| ())?)
}

fn user_code(text: &str) -> Result<UserCode, ApiError> {
    text.parse().map_err(|error| invalid(format!("{text:?}: {error}")))
}

/// The principal that a name stands for. Letters, digits and a few signs, so that no two names look the same.
fn person(text: &str) -> Result<PrincipalId, ApiError> {
    let name = text.strip_prefix(USER_PREFIX).unwrap_or(text);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@' | '+');
    if name.is_empty() || name.len() > MAX_NAME_CHARS || !name.chars().all(is_plain) {
        let text = format!("name {text:?} has 1 to {MAX_NAME_CHARS} letters, digits, and - _ . @ +, as in ada");
        return Err(invalid(text));
    }
    format!("{USER_PREFIX}{name}").parse().map_err(|error| invalid(format!("{error}")))
}

fn time(at: Timestamp) -> String {
    let at = i64::try_from(at.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| "-".to_owned(), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_is_named_in_one_way_only() {
        let name = |text| person(text).map(|name| name.to_string()).ok();
        assert_eq!(name("ada").as_deref(), Some("user:ada"));
        assert_eq!(name("user:ada").as_deref(), Some("user:ada"));
        assert_eq!(name("ada@example.org").as_deref(), Some("user:ada@example.org"));
        for wrong in ["", "user:", "ada lovelace", "agent:x", "аda", &"a".repeat(65)] {
            assert_eq!(name(wrong), None, "{wrong}");
        }
    }
}

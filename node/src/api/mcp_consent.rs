//! What a person lets a node do with an MCP server: a login (`/api/v1/mcp/{server}/login`), where the node keeps what is secret,
//! and the person's side carries addresses and codes between it and a browser; and `/accept` of tools that have changed.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, State, rejection::JsonRejection},
    response::{IntoResponse, Response},
    routing::post,
};
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use towline_actors::mcp_connection::{AuthError, CallError};
use towline_core::Principal;

use super::{Api, ApiError, invalid, mcp::server};

pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/api/v1/mcp/{server}/login", post(begin))
        .route("/api/v1/mcp/{server}/login/finish", post(finish))
        .route("/api/v1/mcp/{server}/accept", post(accept))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Begin {
    /// Where the browser comes back to; a login with a code if it is left out.
    #[serde(default, rename = "redirectUri")]
    redirect: Option<String>,
}

async fn begin(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    body: Result<Json<Begin>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(Begin { redirect }) = body.map_err(|error| invalid(error.body_text()))?;
    let server = server(&api, &name).await?;
    match redirect {
        Some(redirect) => Ok(Json(server.begin_login(&redirect).await.map_err(refused)?).into_response()),
        None => Ok(Json(server.begin_device_login().await.map_err(refused)?).into_response()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Finish {
    state: String,
    /// What the browser brought back; none for a login with a code.
    #[serde(default)]
    code: Option<String>,
    /// Who says that it has given it.
    #[serde(default, rename = "iss")]
    issuer: Option<String>,
}

async fn finish(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    body: Result<Json<Finish>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(Finish { state, code, issuer }) = body.map_err(|error| invalid(error.body_text()))?;
    let server = server(&api, &name).await?;
    let done = match code {
        Some(code) => server.finish_login(&state, &code, issuer.as_deref()).await,
        None => server.poll_login(&state).await,
    };
    match done {
        Ok(()) => Ok(Json(json!({ "done": true })).into_response()),
        Err(AuthError::Pending { slower }) => Ok(Json(json!({ "done": false, "slower": slower })).into_response()),
        Err(error) => Err(refused(error)),
    }
}

/// An operator agrees to the tools as they are.
async fn accept(State(api): State<Arc<Api>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    let server = server(&api, &name).await?;
    let accepted = server.accept(Principal::Operator).await;
    let refused = |error: CallError| ApiError::new(StatusCode::BAD_GATEWAY, "not_accepted", error.to_string());
    Ok(Json(json!({ "accepted": accepted.map_err(refused)? })).into_response())
}

fn refused(error: AuthError) -> ApiError {
    let (status, class) = match error {
        AuthError::UnknownLogin => (StatusCode::NOT_FOUND, "unknown_login"),
        AuthError::LoginNeeded { .. } | AuthError::Failed(_) | AuthError::Pending { .. } => {
            (StatusCode::BAD_GATEWAY, "login_failed")
        }
    };
    ApiError::new(status, class, error.to_string())
}

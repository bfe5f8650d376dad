//! What this node writes to its log, while it runs: `/api/v1/log/level`.

use axum::{
    Json, Router,
    extract::rejection::JsonRejection,
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

use super::{Api, ApiError, invalid};
use crate::telemetry;

pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new().route("/api/v1/log/level", get(show).post(change))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// As in `TOWLINE_LOG`; empty is what the node began with.
    filter: String,
}

async fn show() -> Response {
    Json(json!({ "filter": telemetry::level() })).into_response()
}

async fn change(body: Result<Json<Wanted>, JsonRejection>) -> Result<Response, ApiError> {
    let Json(wanted) = body.map_err(|error| invalid(error.body_text()))?;
    let filter = telemetry::set_level(&wanted.filter).map_err(invalid)?;
    tracing::warn!(filter, "the level of the log was changed");
    Ok(Json(json!({ "filter": filter })).into_response())
}

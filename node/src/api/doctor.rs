//! `GET /api/v1/doctor` and `GET /api/v1/bug-report`: a node looks at itself.

use std::sync::Arc;

use axum::{
    Extension, Json, Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use http::StatusCode;
use towline_actors::Mesh;

use super::{Api, ApiError};
use crate::{
    a2a::principal::Caller,
    bug_report,
    doctor::{self, Live, Patient, Report},
    error::chain,
};

pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new().route("/api/v1/doctor", get(examine)).route("/api/v1/bug-report", get(report))
}

async fn examine(State(api): State<Arc<Api>>) -> Result<Response, ApiError> {
    Ok(Json(examined(&api).await?).into_response())
}

async fn report(State(api): State<Arc<Api>>, Extension(caller): Extension<Caller>) -> Result<Response, ApiError> {
    let examined = examined(&api).await?;
    let servers = api.mesh.lock().await.as_ref().map(Mesh::mcp_servers).unwrap_or_default();
    let report = bug_report::of_node(&api.config, &api.cluster, &servers, &examined, &caller.principal).await;
    Ok(Json(report).into_response())
}

async fn examined(api: &Api) -> Result<Report, ApiError> {
    let servers = api.mesh.lock().await.as_ref().map(Mesh::mcp_servers).unwrap_or_default();
    let live = Live { cluster: api.cluster.clone(), servers };
    let patient = Patient::new(Arc::clone(&api.config), Some(live)).map_err(|error| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", format!("make an HTTP client: {}", chain(&error)))
    })?;
    Ok(doctor::examine(&patient, |_, _| {}).await)
}

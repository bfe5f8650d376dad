//! Who asks, as this node sees it: `GET /api/v1/auth/whoami`, for everybody who is known.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use towline_a2a::time_text;
use towline_core::Timestamp;

use super::{Api, NodeView};
use crate::{
    a2a::principal::Caller,
    auth::{KnownBy, Permits},
    sign_in::now,
};

/// Where this is.
pub(super) const ROUTE: &str = "/api/v1/auth/whoami";

/// A caller, as it is shown to itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallerView {
    /// Under which name its work is owned and its requests are counted.
    pub principal: String,
    /// `operator`, `user`, `agent` or `anonymous`; none for what is no caller from outside.
    pub role: Option<String>,
    /// What the configuration says of it; tools are told.
    pub labels: BTreeMap<String, String>,
    /// The operations that it may ask for beside those of its role.
    pub grants: Vec<String>,
    /// All operations that it may ask for.
    pub may: Vec<String>,
    /// What it was known by.
    pub evidence: KnownBy,
    /// Id of its session, if it is signed in.
    pub session: Option<String>,
    /// When that ends, or what it has shown; none if it is good for as long as the configuration says so.
    pub until: Option<String>,
    /// The cluster.
    pub cluster: String,
    /// The node that answers.
    pub node: NodeView,
}

pub(super) async fn whoami(State(api): State<Arc<Api>>, Extension(caller): Extension<Caller>) -> Response {
    let Caller { principal, standing, .. } = &caller;
    let (id, at) = (api.cluster.node_id(), now(&api.cluster));
    let session = standing.session.as_deref();
    let (session_ends, name) = api.cluster.local(|state| {
        let own = session.and_then(|id| state.sessions(at).find(|one| one.id.as_str() == id));
        (own.map(|one| one.expires), state.node(id).map(|node| node.name.clone()).unwrap_or_default())
    });
    let shown_ends = standing.until.map(|until| Timestamp(u64::try_from(until.as_millis()).unwrap_or(u64::MAX)));
    let may = standing.permits.names();
    let by_role = principal.role().map_or(Permits::All, |role| Permits::of(role, &[])).names();
    let names = |names: Vec<&'static str>| names.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let view = CallerView {
        principal: principal.to_string(),
        role: principal.role().map(|role| role.to_string()),
        labels: standing.labels.as_ref().clone(),
        grants: names(may.iter().filter(|name| !by_role.contains(name)).copied().collect()),
        may: names(may),
        evidence: standing.known_by,
        session: session.map(str::to_owned),
        until: [session_ends, shown_ends].into_iter().flatten().min().map(time_text),
        cluster: api.cluster.status().cluster,
        node: NodeView { id: id.0, name },
    };
    Json(view).into_response()
}

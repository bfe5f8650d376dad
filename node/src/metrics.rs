//! `GET /metrics`: what the instruments of this node have counted, and what its copy of the state says at the moment, as
//! OpenMetrics text. Operators may read it, and who is granted `metrics.read`.
//!
//! What is of the cluster (tasks, webhooks, members) is the same on every node: who adds up over nodes takes the largest. What was
//! counted is of this node alone. The push over OTLP says the same.

mod census;

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::header;
use towline_actors::Mesh;
use towline_cluster::ClusterStatus;
use towline_core::State as ClusterState;
use towline_trace::{
    metrics::{self, Family, OTHER, Point, open_metrics},
    names,
};

use crate::api::Api;

/// Agents, servers and peers that are named, each: beyond it they are one, since every name is a series of its own for as long as the
/// collector keeps any.
const MAX_NAMED: usize = 100;

/// Answers a scrape.
pub(crate) async fn show(State(api): State<Arc<Api>>) -> Response {
    let mut families = metrics::snapshot();
    // In a node they are in the snapshot already.
    if !families.iter().any(|family| family.about.name == "towline.raft.term") {
        families.extend(of_state(&api));
    }
    let target = vec![
        (names::SERVICE_VERSION, env!("CARGO_PKG_VERSION").to_owned()),
        (names::NODE_ID, api.cluster.node_id().to_string()),
        (names::CLUSTER_ID, api.cluster.cluster_name()),
    ];
    ([(header::CONTENT_TYPE, open_metrics::CONTENT_TYPE)], open_metrics::text(&families, &target)).into_response()
}

/// From now on the numbers of this process include those of the state.
pub(crate) fn tell(api: &Arc<Api>) {
    let api = Arc::downgrade(api);
    metrics::set_source(Some(Arc::new(move || api.upgrade().map(|api| of_state(&api)).unwrap_or_default())));
}

/// The state is about to go.
pub(crate) fn tell_no_more() {
    metrics::set_source(None);
}

fn of_state(api: &Api) -> Vec<Family> {
    let status = api.cluster.status();
    let mut families = of_raft(&status);
    families.extend(census::of_tasks(&api.cluster, status.node));
    families.extend(of_webhooks(api));
    families.extend(of_servers(api));
    families
}

fn of_raft(status: &ClusterStatus) -> Vec<Family> {
    let gauge = |name, help, value: u64| Family::gauge(name, "", help, value as f64);
    let has_leader = status.in_touch && status.leader.is_some();
    let spare = status.spare_voters.map(|spare| Point::new(spare as f64, Vec::new()));
    let lag = status
        .members
        .iter()
        .filter_map(|member| Some(Point::new(member.lag? as f64, vec![("towline.raft.peer", member.name.clone())])));
    let lag: Vec<Point> = lag.collect();
    let mut members: Vec<Point> = Vec::new();
    for member in &status.members {
        let word = |word: &dyn std::fmt::Debug| format!("{word:?}").to_lowercase();
        let labels = vec![("role", word(&member.role)), ("health", word(&member.health))];
        match members.iter_mut().find(|point| point.labels == labels) {
            Some(point) => point.value += 1.0,
            None => members.push(Point::new(1.0, labels)),
        }
    }
    vec![
        gauge("towline.raft.term", "Term that this node knows.", status.term),
        gauge("towline.raft.commit_index", "Last entry that is known to be committed.", status.committed),
        gauge("towline.raft.applied_index", "Last entry that this node has applied.", status.applied),
        gauge(
            "towline.raft.applied_lag",
            "Entries that are committed and not applied here.",
            status.committed.saturating_sub(status.applied),
        ),
        gauge(
            "towline.raft.is_leader",
            "1 if this node leads.",
            u64::from(status.leader == Some(status.node) && has_leader),
        ),
        gauge("towline.raft.has_leader", "1 if a leader with a majority answers this node.", u64::from(has_leader)),
        Family::gauges(
            "towline.raft.spare_voters",
            "{voter}",
            "Voters that can be lost before there is no quorum; not there while no leader answers.",
            spare.into_iter().collect(),
        ),
        Family::gauges(
            "towline.raft.replication.lag",
            "{entry}",
            "Entries that a member is behind; the leader knows.",
            folded(lag, "towline.raft.peer"),
        ),
        Family::gauges("towline.cluster.members", "{node}", "Members of the cluster.", members),
    ]
}

fn of_webhooks(api: &Api) -> [Family; 2] {
    let totals = api.cluster.local(ClusterState::webhook_totals);
    let of = |state: &str, number: usize| Point::new(number as f64, vec![("state", state.to_owned())]);
    let webhooks = vec![
        of("pending", totals.pending),
        of("failing", totals.failing),
        of("dead", totals.dead),
        of("done", totals.webhooks.saturating_sub(totals.pending + totals.dead)),
    ];
    let help = "Webhooks of tasks: pending have something to be sent, failing are those of them that failed last, dead were given up.";
    let attempts = vec![Point::new(totals.attempts as f64, Vec::new())];
    [
        Family::gauges("towline.a2a.push.webhooks", "{webhook}", help, webhooks),
        Family::gauges(
            "towline.a2a.push.attempts",
            "{attempt}",
            "Calls of the webhooks that there are, on all nodes.",
            attempts,
        ),
    ]
}

fn of_servers(api: &Api) -> Option<Family> {
    // Who starts or stops the mesh holds it for a moment: the next scrape sees it.
    let servers = api.mesh.try_lock().ok()?.as_ref().map(Mesh::mcp_servers).unwrap_or_default();
    let is_ready = |server: &towline_actors::McpServerStatus| server.protocol_version.is_some();
    let points = servers.iter().map(|server| {
        Point::new(f64::from(u8::from(is_ready(server))), vec![(names::MCP_SERVER, server.name.clone())])
    });
    let points = points.take(MAX_NAMED).collect();
    Some(Family::gauges("towline.mcp.server.up", "", "1 if this node is connected to an MCP server.", points))
}

/// The points of the first names, and the largest of all others.
fn folded(points: Vec<Point>, label: &'static str) -> Vec<Point> {
    let mut points = points.into_iter();
    let mut kept: Vec<Point> = points.by_ref().take(MAX_NAMED).collect();
    if let Some(rest) = points.map(|point| point.value).reduce(f64::max) {
        kept.push(Point::new(rest, vec![(label, OTHER.to_owned())]));
    }
    kept
}

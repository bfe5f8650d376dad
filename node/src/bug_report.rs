//! What somebody who mends Towline needs to know of a node: one JSON object. What the configuration knows as a secret, and what
//! looks like one, is in none of its texts; what people and models said is not in it at all.

use serde_json::{Value, json};
use towline_actors::mcp_connection::McpServerStatus;
use towline_cluster::ClusterHandle;
use towline_core::Principal;

use crate::{
    config::NodeConfig,
    doctor::Report,
    feed::{self, FeedRequest, Kinds},
    why,
};

/// Version of the format.
const FORMAT: u32 = 1;
/// So many of the last events: some minutes of a busy cluster.
const MAX_EVENTS: usize = 200;
/// So far back in the log they are looked for.
const EVENTS_WITHIN: u64 = 5_000;
/// So many tasks that run are told of.
const MAX_TASKS: usize = 50;

/// What a node that runs tells.
pub(crate) async fn of_node(
    config: &NodeConfig,
    cluster: &ClusterHandle,
    servers: &[McpServerStatus],
    examined: &Report,
    by: &Principal,
) -> Value {
    let status = cluster.status();
    let request = |after| FeedRequest { after, kinds: Kinds::default() };
    let recent = Some(status.applied.saturating_sub(EVENTS_WITHIN));
    let events = match feed::page(cluster, by, request(recent), usize::MAX).await {
        Ok(page) => Ok(page),
        // The ring begins later.
        Err(_) => feed::page(cluster, by, request(None), usize::MAX).await,
    };
    let events = match events {
        Ok(page) => last(page.to_json(), MAX_EVENTS),
        Err(refused) => json!(refused.to_string()),
    };
    let tasks = cluster.local(|state| {
        let running = state.nodes().flat_map(|node| state.tasks_of(node.id));
        let told = running.take(MAX_TASKS).map(|task| {
            json!({
                "agent": task.agent,
                "id": task.id,
                "state": task.status.state,
                "why": why::why(state, task),
            })
        });
        told.collect::<Vec<Value>>()
    });
    let mut report = of_configuration(config, examined);
    report["cluster"] = json!(status);
    report["events"] = events;
    report["mcp_servers"] = json!(servers);
    report["running_tasks"] = json!(tasks);
    config.redacted.clean_all(&mut report);
    report
}

/// What is known without a node that runs.
pub(crate) fn of_configuration(config: &NodeConfig, examined: &Report) -> Value {
    let mut report = json!({
        "configuration": config.redacted.shown(),
        "doctor": examined,
        "format": FORMAT,
        "made": jiff::Timestamp::now().to_string(),
        "machine": {
            "arch": std::env::consts::ARCH,
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "os": std::env::consts::OS,
        },
        "version": env!("CARGO_PKG_VERSION"),
    });
    config.redacted.clean_all(&mut report);
    report
}

fn last(mut page: Value, most: usize) -> Value {
    if let Some(entries) = page["entries"].as_array_mut() {
        let begin = entries.len().saturating_sub(most);
        entries.drain(..begin);
    }
    page
}

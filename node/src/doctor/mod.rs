//! `towline doctor`: looks at all that a node needs, and says what mends each thing that is wrong.
//!
//! One check is one small function: [`ports`], [`disk`], [`tls`], [`cluster`], [`members`], [`models`], [`servers`], [`peers`],
//! [`telemetry`]. They run side by side, each within [`LIMIT`]; what would end later is told as such. A node that runs looks
//! at itself (`GET /api/v1/doctor`); before the first start the command line looks, at what the configuration says alone.
//! Nothing is changed but for a file in the data folder that is written and removed again.

mod cluster;
mod disk;
mod members;
mod models;
mod peers;
mod ports;
mod reach;
mod servers;
mod telemetry;
mod tls;

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, future::BoxFuture, stream};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use towline_actors::mcp_connection::McpServerStatus;
use towline_cluster::ClusterHandle;

use crate::config::NodeConfig;

/// One check may take this long: who answers later does not answer a task in time either.
const LIMIT: Duration = Duration::from_secs(4);
/// All of them: below the time that the command line waits for an answer of the operator API.
const WHOLE_LIMIT: Duration = Duration::from_secs(12);
/// So many run side by side: each may hold a connection.
const SIDE_BY_SIDE: usize = 32;
/// Longest text of an answer from outside that is shown.
const MAX_TOLD_CHARS: usize = 200;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, and somebody should look at it.
    Warn,
    /// It does not work.
    Fail,
}

/// What was looked at, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What it is about, as in `disk` or `model`.
    pub area: String,
    /// Which one of them.
    pub subject: String,
    /// How it ended.
    pub verdict: Verdict,
    /// What was seen.
    pub detail: String,
    /// The command or the setting that mends it; only where something is to be mended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

impl Check {
    fn ok(area: &str, subject: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { area: area.to_owned(), subject: subject.into(), verdict: Verdict::Ok, detail: detail.into(), mend: None }
    }

    fn warn(area: &str, subject: impl Into<String>, detail: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warn, mend: Some(mend.into()), ..Self::ok(area, subject, detail) }
    }

    fn fail(area: &str, subject: impl Into<String>, detail: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, mend: Some(mend.into()), ..Self::ok(area, subject, detail) }
    }
}

/// What all checks came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the binary that looked.
    pub version: String,
    /// The node that looked, or that the configuration describes.
    pub node: String,
    /// Whether it runs.
    pub running: bool,
    /// In the order of the areas above.
    pub checks: Vec<Check>,
}

impl Report {
    /// How many ended so.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.checks.iter().filter(|check| check.verdict == verdict).count()
    }
}

/// What is looked at.
#[derive(Clone)]
pub(crate) struct Patient {
    pub config: Arc<NodeConfig>,
    /// The node, if it runs.
    pub live: Option<Live>,
    /// For endpoints outside of this mesh.
    http: reqwest::Client,
}

/// What only a node that runs knows.
#[derive(Clone)]
pub(crate) struct Live {
    pub cluster: ClusterHandle,
    /// Where its MCP connections stand.
    pub servers: Vec<McpServerStatus>,
}

impl Patient {
    /// # Errors
    /// When no HTTP client can be made.
    pub fn new(config: Arc<NodeConfig>, live: Option<Live>) -> Result<Self, reqwest::Error> {
        // A redirect would be an answer of somebody else.
        let builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).timeout(LIMIT);
        Ok(Self { config, live, http: builder.build()? })
    }
}

/// A check that has not been run: what it is about, for the case that it does not end in time.
struct Planned {
    area: &'static str,
    subject: String,
    run: BoxFuture<'static, Vec<Check>>,
}

fn planned(
    area: &'static str,
    subject: impl Into<String>,
    run: impl Future<Output = Vec<Check>> + Send + 'static,
) -> Planned {
    Planned { area, subject: subject.into(), run: Box::pin(run) }
}

/// Looks at everything. `told` hears how many of how many checks are done.
pub(crate) async fn examine(patient: &Patient, told: impl Fn(usize, usize)) -> Report {
    let mut plan = ports::plan(patient);
    plan.extend(disk::plan(patient));
    plan.extend(tls::plan(patient));
    plan.extend(cluster::plan(patient));
    plan.extend(members::plan(patient));
    plan.extend(models::plan(patient));
    plan.extend(servers::plan(patient));
    plan.extend(peers::plan(patient));
    plan.extend(telemetry::plan(patient));
    let (total, end) = (plan.len(), Instant::now() + WHOLE_LIMIT);
    let running = stream::iter(plan.into_iter().enumerate()).map(|(place, planned)| async move {
        let until = end.min(Instant::now() + LIMIT);
        let checks = tokio::time::timeout_at(until, planned.run).await;
        (place, checks.unwrap_or_else(|_| vec![late(planned.area, &planned.subject)]))
    });
    let mut running = running.buffer_unordered(SIDE_BY_SIDE);
    let mut found = Vec::new();
    while let Some(checks) = running.next().await {
        found.push(checks);
        told(found.len(), total);
    }
    found.sort_by_key(|(place, _)| *place);
    Report {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: patient.config.node.name.clone(),
        running: patient.live.is_some(),
        checks: found.into_iter().flat_map(|(_, checks)| checks).collect(),
    }
}

fn late(area: &str, subject: &str) -> Check {
    let seconds = LIMIT.as_secs();
    let mend = "see whether it hangs, and whether a firewall drops what goes there; then look again";
    Check::fail(area, subject, format!("no answer within {seconds} s"), mend)
}

/// Text from outside, not too long.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_TOLD_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;

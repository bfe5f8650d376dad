//! Logs of this process, and its part of the traces.
//!
//! Logs go to standard error: `TOWLINE_LOG` filters them (as in `info,towline=debug`), `TOWLINE_LOG_FORMAT=json` writes
//! one object per line. Spans go where `towline-trace` is told.

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use towline_cluster::membership::Identity;

use crate::{config::TelemetrySettings, error::CliError};

const FILTER: &str = "TOWLINE_LOG";
const FORMAT: &str = "TOWLINE_LOG_FORMAT";
/// Who has done what is told (`audit=off` leaves it out). Libraries speak up when somebody should look; Raft says at `warn` what is everyday life of an election.
const DEFAULT_FILTER: &str =
    "warn,openraft=error,audit=info,towline=info,towline_cluster=info,towline_actors=info,towline_trace=info";

/// Starts the logs of a node.
///
/// # Errors
/// When `TOWLINE_LOG` is no filter.
pub fn start_logs() -> Result<(), CliError> {
    let wanted = std::env::var(FILTER).ok().filter(|filter| !filter.is_empty());
    let wanted = wanted.as_deref().unwrap_or(DEFAULT_FILTER);
    let filter = EnvFilter::try_new(wanted)
        .map_err(|error| CliError::Usage(format!("{FILTER}={wanted:?}: {error}; write info, or towline=debug")))?;
    let registry = tracing_subscriber::registry().with(filter);
    let is_json = std::env::var(FORMAT).is_ok_and(|format| format == "json");
    let started = if is_json {
        registry.with(fmt::layer().json().with_writer(std::io::stderr)).try_init()
    } else {
        registry.with(fmt::layer().with_ansi(false).with_writer(std::io::stderr)).try_init()
    };
    started.map_err(CliError::other)
}

/// Starts the traces of a node. The guard flushes them when it is dropped.
///
/// # Errors
/// When the exporter cannot be built.
pub fn start_traces(settings: &TelemetrySettings, identity: &Identity) -> Result<towline_trace::Guard, CliError> {
    towline_trace::install(towline_trace::Settings {
        service_name: settings.service_name.clone(),
        node_id: identity.node.to_string(),
        node_name: identity.node_name.clone(),
        cluster: identity.cluster_name.clone(),
        otlp: settings.otlp.clone(),
        protocol: settings.protocol,
        headers: settings.headers.clone(),
        ca: settings.ca.clone(),
        sample: settings.sample,
        capture: settings.content,
        ui: settings.jaeger_ui.clone(),
    })
    .map_err(CliError::other)
}

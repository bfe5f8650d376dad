//! Logs of this process, and its part of the traces.
//!
//! Logs go to standard error: for people where that is a terminal, else as one JSON object per line, or as `TOWLINE_LOG_FORMAT`
//! (`text`, `json`) says. `TOWLINE_LOG` filters them (as in `info` or `debug,rmcp=info`), and `towline log level` while a node runs.
//! A level without a name is for our own crates: libraries, some of which log what they carry – the
//! arguments of a tool, a prompt – go beyond `warn` only by their names. Spans go where `towline-trace` is told.

mod lines;

use std::{io::IsTerminal, sync::OnceLock};

use tracing_subscriber::{
    EnvFilter, Registry, filter::LevelFilter, layer::SubscriberExt, reload, util::SubscriberInitExt,
};

use towline_cluster::membership::Identity;

use crate::{config::TelemetrySettings, error::CliError};
use lines::{Lines, Look};

const FILTER: &str = "TOWLINE_LOG";
const FORMAT: &str = "TOWLINE_LOG_FORMAT";
/// Who has done what is told (`audit=off` leaves it out). Libraries speak up when somebody should look; Raft says at `warn` what is everyday life of an election, and
/// genai at `error` what a model has answered, which may be the prompt again: what fails we say ourselves.
const DEFAULT_FILTER: &str =
    "warn,openraft=error,genai=off,audit=info,towline=info,towline_cluster=info,towline_actors=info,towline_trace=info";

/// What speaks for us: our crates, and the audit.
const OURS: [&str; 7] =
    ["audit", "towline", "towline_a2a", "towline_actors", "towline_cluster", "towline_core", "towline_trace"];

/// A filter whose levels without a name are for our own crates.
fn for_ours(wanted: &str) -> String {
    let mut directives = Vec::new();
    for directive in wanted.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        match directive.parse::<LevelFilter>() {
            Ok(level) => {
                directives.push(level.min(LevelFilter::WARN).to_string());
                directives.push(format!("openraft={}", level.min(LevelFilter::ERROR)));
                // Who names it hears it.
                directives.insert(0, "genai=off".to_owned());
                directives.extend(OURS.map(|target| format!("{target}={level}")));
            }
            Err(_) => directives.push(directive.to_owned()),
        }
    }
    directives.join(",")
}

/// The filter of this process, to be changed while it runs.
static LEVEL: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Starts the logs of a node.
///
/// # Errors
/// When `TOWLINE_LOG` is no filter, or `TOWLINE_LOG_FORMAT` no format.
pub fn start_logs() -> Result<(), CliError> {
    let wanted = wanted_filter();
    let filter = filter(&wanted).map_err(|why| CliError::Usage(format!("{FILTER}={wanted:?}: {why}")))?;
    let look = match std::env::var(FORMAT).ok().filter(|format| !format.is_empty()).as_deref() {
        Some("json") => Look::Json,
        Some("text") => Look::Text,
        Some(other) => return Err(CliError::Usage(format!("{FORMAT}={other:?}: write text or json"))),
        None if std::io::stderr().is_terminal() => Look::Text,
        None => Look::Json,
    };
    let (filter, handle) = reload::Layer::new(filter);
    let lines = Lines::new(look, std::io::stderr);
    tracing_subscriber::registry().with(filter).with(lines).try_init().map_err(CliError::other)?;
    // The subscriber is installed once, and so is this.
    let _ = LEVEL.set(handle);
    Ok(())
}

/// What this process was started with.
fn wanted_filter() -> String {
    std::env::var(FILTER).ok().filter(|filter| !filter.is_empty()).unwrap_or_else(|| DEFAULT_FILTER.to_owned())
}

fn filter(wanted: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(for_ours(wanted)).map_err(|error| format!("{error}; write info, or towline=debug"))
}

/// What is written to the log at the moment.
pub(crate) fn level() -> String {
    LEVEL.get().and_then(|handle| handle.with_current(ToString::to_string).ok()).unwrap_or_default()
}

/// Has other lines written from now on; an empty filter is the one that this process began with. Tells the new one.
///
/// # Errors
/// When it is no filter: all stays as it is.
pub(crate) fn set_level(wanted: &str) -> Result<String, String> {
    let wanted = if wanted.trim().is_empty() { wanted_filter() } else { wanted.to_owned() };
    let filter = filter(&wanted)?;
    let handle = LEVEL.get().ok_or("this process writes no log of its own")?;
    handle.reload(filter).map_err(|error| error.to_string())?;
    Ok(level())
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
        push_metrics: settings.push_metrics,
        ui: settings.jaeger_ui.clone(),
    })
    .map_err(CliError::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_for_our_own_crates_and_libraries_are_named() {
        let is_heard = |wanted: &str, target: &'static str| {
            let filter = EnvFilter::try_new(for_ours(wanted)).unwrap();
            tracing::subscriber::with_default(tracing_subscriber::registry().with(filter), || match target {
                "rmcp" => tracing::enabled!(target: "rmcp::service", tracing::Level::INFO),
                "openraft" => tracing::enabled!(target: "openraft", tracing::Level::WARN),
                "genai" => tracing::enabled!(target: "genai::adapter", tracing::Level::ERROR),
                "audit" => tracing::enabled!(target: "audit", tracing::Level::INFO),
                _ => tracing::enabled!(target: "towline_actors::agent", tracing::Level::INFO),
            })
        };
        for wanted in ["info", "debug", "trace", "TRACE,hyper=off"] {
            assert!(is_heard(wanted, "ours") && is_heard(wanted, "audit"), "{wanted}");
            assert!(!is_heard(wanted, "rmcp") && !is_heard(wanted, "openraft"), "{wanted}");
            assert!(!is_heard(wanted, "genai"), "{wanted}");
        }
        assert!(is_heard("warn,rmcp=info", "rmcp") && is_heard("rmcp=debug,info", "rmcp"), "by its name");
        assert!(!is_heard("warn", "ours") && !is_heard("info,towline_actors=error", "ours"));
        assert!(is_heard(DEFAULT_FILTER, "ours") && !is_heard(DEFAULT_FILTER, "rmcp"));
    }
}

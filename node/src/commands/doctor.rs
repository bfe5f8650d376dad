//! `towline doctor` and `towline bug-report`

use std::{
    fs::OpenOptions,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Value, json};

use super::client::Client;
use crate::{
    bug_report,
    cli::{BugReportArgs, DoctorArgs, Global},
    config::{self, NodeConfig, Overrides},
    doctor::{self, Patient, Report, Verdict},
    error::CliError,
    output::Output,
};

/// Largest answer to a question for metrics that is taken.
const MAX_METRICS_BYTES: usize = 4 * 1024 * 1024;

pub(crate) async fn run(args: DoctorArgs, global: &Global, output: &mut Output) -> Result<(), CliError> {
    let report = match before_start(&args)? {
        Some(config) => examined(Arc::new(config), output).await?,
        None => {
            let client = super::client(global).await?;
            output.note(format!("{} looks at itself", client.server()));
            serde_json::from_value(client.get("/api/v1/doctor").await.map_err(not_running)?).map_err(CliError::other)?
        }
    };
    show(&report, output)?;
    match report.count(Verdict::Fail) {
        0 => Ok(()),
        failed => Err(CliError::Unwell(format!("{failed} of {} checks failed", report.checks.len()))),
    }
}

/// The configuration that is looked at, if that of a node that runs is not.
fn before_start(args: &DoctorArgs) -> Result<Option<NodeConfig>, CliError> {
    let mut overrides = Overrides::of_process(args.set.clone());
    if let Some(data) = &args.data {
        let data = std::path::absolute(data).map_err(CliError::other)?;
        overrides.flags.push(("node.data".to_owned(), data.to_string_lossy().into_owned()));
    }
    let read = match (&args.config, &args.data) {
        (Some(file), _) => config::load(file, &overrides),
        (None, Some(_)) => config::read_sample(&overrides),
        (None, None) => return Ok(None),
    };
    read.map(Some).map_err(|error| CliError::Usage(error.to_string()))
}

fn not_running(error: CliError) -> CliError {
    if let CliError::Unreachable(text) = error {
        return CliError::Unreachable(format!("{text}; before its first start: `towline doctor --config FILE`"));
    }
    error
}

async fn examined(config: Arc<NodeConfig>, output: &mut Output) -> Result<Report, CliError> {
    let patient = Patient::new(config, None).map_err(CliError::other)?;
    let watched = output.is_terminal();
    let output = std::sync::Mutex::new(output);
    let told = |done: usize, total: usize| {
        if watched && let Ok(mut output) = output.lock() {
            output.note(format!("{done} of {total} looked at"));
        }
    };
    Ok(doctor::examine(&patient, told).await)
}

fn show(report: &Report, output: &mut Output) -> Result<(), CliError> {
    if output.is_json() {
        return Ok(output.json(report)?);
    }
    for check in &report.checks {
        let word = match check.verdict {
            Verdict::Ok => "ok  ",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        output.line(format!("{word}  {:<9}  {}: {}", check.area, check.subject, check.detail))?;
        if let Some(mend) = &check.mend {
            output.line(format!("                 → {mend}"))?;
        }
    }
    let counts = [Verdict::Ok, Verdict::Warn, Verdict::Fail].map(|verdict| report.count(verdict));
    Ok(output.line(format!("{} ok, {} to look at, {} failed", counts[0], counts[1], counts[2]))?)
}

/// `towline bug-report`
pub(crate) async fn bug_report(args: BugReportArgs, global: &Global, output: &mut Output) -> Result<(), CliError> {
    let report = match before_start(&args.look)? {
        Some(config) => {
            let config = Arc::new(config);
            let examined = examined(Arc::clone(&config), output).await?;
            bug_report::of_configuration(&config, &examined)
        }
        None => {
            let client = super::client(global).await?;
            let mut report = client.get("/api/v1/bug-report").await.map_err(not_running)?;
            report["metrics"] = metrics(&client).await;
            report
        }
    };
    if args.file.as_deref() == Some(Path::new("-")) {
        return Ok(output.json(&report)?);
    }
    let file = args.file.unwrap_or_else(|| {
        PathBuf::from(format!("towline-bug-report-{}.json", jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ")))
    });
    write(&file, &report).map_err(|error| CliError::Other(format!("write {}: {error}", file.display())))?;
    if output.is_json() {
        return Ok(output.json(&json!({ "file": file }))?);
    }
    output.note(
        "secrets of the configuration and what people and models said are left out; read it before you pass it on",
    );
    Ok(output.line(file.display())?)
}

/// As a node that serves metrics writes them; null where it does not.
async fn metrics(client: &Client) -> Value {
    let Ok(mut answer) = client.download("/metrics").await else { return Value::Null };
    let mut bytes = Vec::new();
    while let Ok(Some(chunk)) = answer.chunk().await {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > MAX_METRICS_BYTES {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into()
}

/// For the eyes of its owner, and never over another file.
fn write(path: &Path, report: &Value) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(serde_json::to_string_pretty(report)?.as_bytes())?;
    file.write_all(b"\n")
}

//! `towline demo`: the whole idea on your own files.
//!
//! ```text
//! options ─▶ folder (what is true) ─▶ cluster (three node processes) ─▶ survey (send, observe, kill) ─▶ report ─▶ stop
//! ```
//! It is a client like any other: it starts nodes, speaks A2A and the operator API with them, and counts for itself. What
//! it reports is computed from event indexes and task records; nothing is asserted.

mod cluster;
mod console;
mod digest;
mod error;
mod folder;
mod kill;
mod mesh_config;
mod observer;
mod operator;
mod options;
mod patience;
mod progress;
mod report;
mod survey;
mod tally;
mod workplace;

pub use console::Console;
pub use error::DemoError;
pub use options::DemoArgs;

pub(crate) use cluster::{
    CONFIG_FILE, NAMES, NodePlan, RunningCluster, RunningNode, file, is_for_nodes, plan_on_free_ports, write_configs,
};
pub(crate) use mesh_config::MeshSpec;
pub(crate) use options::ModelArgs;

use std::time::Instant;

use folder::FileFacts;
use options::{MIN_FILES_FOR_KILL, ModelChoice, Plan};
use report::{NodeNote, Report};
use workplace::Workplace;

/// Name of the demo's cluster.
const CLUSTER: &str = "demo";

/// Runs the demo from the first node to the last line.
///
/// # Errors
/// When something did not work, or did and the result is not what it has to be: see [`DemoError`].
pub async fn run(args: DemoArgs, mut console: Console) -> Result<(), DemoError> {
    let began = Instant::now();
    let plan = args.check()?;
    let files = list_files(&plan)?;
    let workplace = Workplace::new(plan.keep)?;
    let _tracing = trace_this_process();
    let told = tokio::select! {
        told = tell(&plan, &files, &workplace, began, &mut console) => told,
        () = interrupted() => Err(DemoError::Interrupted),
    };
    if let Some(line) = workplace.close() {
        console.say(line);
    }
    told
}

/// The person's Ctrl-C, or an orderly request to end.
pub(crate) async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

fn list_files(plan: &Plan) -> Result<Vec<FileFacts>, DemoError> {
    let dir = plan.dir.clone();
    let files =
        folder::text_files(&dir, plan.files).map_err(|source| DemoError::Folder { dir: dir.clone(), source })?;
    let needed = if plan.kill.is_some() { MIN_FILES_FOR_KILL } else { 1 };
    if files.len() < needed {
        return Err(DemoError::TooFewFiles { dir, found: files.len(), needed });
    }
    Ok(files)
}

/// The caller's own spans belong to the trace as well. Without them it is only shorter.
fn trace_this_process() -> Option<towline_trace::Guard> {
    let settings = towline_trace::Settings {
        service_name: "towline-cli".to_owned(),
        node_name: "cli".to_owned(),
        ..towline_trace::Settings::default()
    };
    towline_trace::install(settings).ok()
}

/// Starts the nodes, has the survey made, reports, and stops the nodes, whatever came of it.
async fn tell(
    plan: &Plan,
    files: &[FileFacts],
    workplace: &Workplace,
    began: Instant,
    console: &mut Console,
) -> Result<(), DemoError> {
    console.say(format!("surveying {} text files of {}", files.len(), plan.dir.display()));
    if plan.model.model == ModelChoice::Scripted {
        console.say("the agents' model is scripted: rules, no AI, no network (a real one: --model openai:NAME)");
    }
    let mut cluster = start(plan, workplace).await?;
    let nodes = introduce(&cluster, console).await?;
    let surveyed = survey::make(plan, &mut cluster, &nodes, console).await;
    let result = match surveyed {
        Ok(survey) => conclude(survey, files, &cluster, nodes, began, console).await,
        Err(error) => Err(error),
    };
    let task = result.as_ref().ok().map(|report| report.task.clone());
    let (plans, stuck) = (cluster.plans(), cluster.stop().await);
    for name in stuck {
        console.say(format!("node {name} did not stop in time and was killed"));
    }
    workplace.explain(&plans, task.as_deref(), console);
    result?.verdict()
}

async fn start(plan: &Plan, workplace: &Workplace) -> Result<RunningCluster, DemoError> {
    let dir = workplace.dir();
    let program = std::env::current_exe().map_err(|source| file("find", "this program".as_ref(), source))?;
    let plans = cluster::plan_on_free_ports(dir)?;
    let spec = MeshSpec { cluster: CLUSTER, folder: &plan.dir, program: &program, model: &plan.model };
    write_configs(dir, &plans, &spec)?;
    RunningCluster::start(&program, CLUSTER, plans).await
}

/// One line per node.
async fn introduce(cluster: &RunningCluster, console: &mut Console) -> Result<Vec<NodeNote>, DemoError> {
    let leader = cluster.leader().await?;
    let mut notes = Vec::new();
    for node in cluster.nodes() {
        let (id, name, url) = (node.id, node.plan.name.clone(), node.plan.url());
        let role = if id == leader { "leader" } else { "voter" };
        console.say(format!("node {id:<4} {name}  {role:<7} {url}"));
        notes.push(NodeNote { id, name, leader_at_start: id == leader, url });
    }
    Ok(notes)
}

/// Gathers the numbers and tells them.
async fn conclude(
    survey: survey::Survey,
    files: &[FileFacts],
    cluster: &RunningCluster,
    nodes: Vec<NodeNote>,
    began: Instant,
    console: &mut Console,
) -> Result<Report, DemoError> {
    let mut report = survey.report(files, cluster, nodes).await?;
    report.elapsed_ms = tally::whole_millis(began.elapsed());
    report.failure = report.verdict().err().map(|error| error.to_string());
    for line in report.lines(cluster) {
        console.say(line);
    }
    console.object(&report).map_err(DemoError::Report)?;
    Ok(report)
}

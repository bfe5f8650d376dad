//! `towline task …`

use std::time::Duration;

use futures::StreamExt;
use serde::Deserialize;
use serde_json::Value;
use towline_a2a::{A2aClient, AGENT_KEY, ASKED_OF_KEY, ClientError, ListQuery, OUTSIDE_INPUT_KEY, RemoteTask};
use towline_core::BUDGET_KEY;
use towline_trace::SpanRecord;

use super::{
    client::{Client, call_failed, first_reached},
    follow::{Follow, part_text},
    push, state_word,
};
use crate::{
    cli::{ResolveArgs, TaskCommand, TaskListArgs, VerdictArg},
    error::CliError,
    jaeger_json,
    output::Output,
    waterfall,
};

/// Between two tries to find where a task stands.
const WAIT_PAUSE: Duration = Duration::from_millis(500);

/// Longest text of a cell in a list.
const MAX_CELL_CHARS: usize = 60;

pub(crate) async fn run(command: TaskCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    match command {
        TaskCommand::Get { id } => {
            let task = first_reached(&client.meshes(), async |mesh| mesh.get_task(&id, None, None).await).await?;
            show(&task, output)?;
            show_place(&task, client, output).await
        }
        TaskCommand::Cancel { id } => {
            let task = first_reached(&client.meshes(), async |mesh| mesh.cancel_task(&id, None).await).await?;
            show(&task, output)
        }
        TaskCommand::Resolve(args) => resolve(args, client, output).await,
        TaskCommand::List(args) => list(args, client, output).await,
        TaskCommand::Wait { id, timeout } => wait(&id, timeout, client, output).await,
        TaskCommand::Subscribe { id, from } => subscribe(&id, from, client, output).await,
        TaskCommand::Push(command) => push::run(command, client, output).await,
        TaskCommand::Trace { id, open: true, .. } => open(&id, client, output).await,
        TaskCommand::Trace { id, no_raft, open: false } => trace(&id, no_raft, client, output).await,
        TaskCommand::Why { id } => why(&id, client, output).await,
    }
}

async fn resolve(args: ResolveArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let ResolveArgs { id, step, verdict, result, reason } = args;
    let word = match verdict {
        VerdictArg::Done => "done",
        VerdictArg::Retry => "retry",
        VerdictArg::Failed => "failed",
    };
    let mut decision = serde_json::Map::from_iter([("as".to_owned(), Value::from(word))]);
    decision.extend(step.map(|step| ("step".to_owned(), step.into())));
    decision.extend(result.map(|result| ("result".to_owned(), result.into())));
    decision.extend(reason.map(|reason| ("reason".to_owned(), reason.into())));
    let answer = client.post(&format!("/api/v1/tasks/{id}/resolve"), &decision.into()).await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    let rest: Vec<String> = answer["in_doubt"].as_array().into_iter().flatten().map(Value::to_string).collect();
    let then = if rest.is_empty() {
        "the task goes on".to_owned()
    } else {
        format!("still in doubt: step {}", rest.join(", "))
    };
    Ok(output.line(format!("step {} of task {id} counts as {word}; {then}", answer["step"]))?)
}

fn show(task: &RemoteTask, output: &mut Output) -> Result<(), CliError> {
    if output.is_json() {
        return Ok(output.json(&task.raw)?);
    }
    output.line(format!("task     {}", task.id))?;
    output.line(format!("agent    {}", agent_of(task)))?;
    output.line(format!("context  {}", task.context_id))?;
    output.line(format!("state    {}", state_word(task.state)))?;
    if let Some(generation) = task.generation {
        output.line(format!("events   {generation}"))?;
    }
    if let Some(text) = &task.status_text {
        output.line(format!("status   {text}"))?;
    }
    if let Some(to) = task.metadata.get(ASKED_OF_KEY).and_then(Value::as_str) {
        output.line(format!("asks     {to}, who alone may answer"))?;
    }
    if let Some(budget) = task.metadata.get(BUDGET_KEY) {
        let part =
            |of: &str, spent: &str, what: &str| Some(format!("{} of {} {what}", budget.get(spent)?, budget.get(of)?));
        let parts = [part("tokens", "spentTokens", "tokens"), part("steps", "spentSteps", "steps")];
        output.line(format!("budget   {}", parts.into_iter().flatten().collect::<Vec<_>>().join(", ")))?;
    }
    let reasons = task.metadata.get(OUTSIDE_INPUT_KEY).and_then(Value::as_array).into_iter().flatten();
    for reason in reasons.filter_map(Value::as_str) {
        output.line(format!("outside  {reason}"))?;
    }
    for artifact in &task.artifacts {
        let name = artifact.name.as_deref().unwrap_or("artifact");
        output.line(format!("\n{} ({name})", artifact.artifact_id))?;
        artifact.parts.iter().try_for_each(|part| output.line(part_text(part).trim_end()))?;
    }
    Ok(())
}

/// Says which node runs a task, or what it waits for.
async fn show_place(task: &RemoteTask, client: &Client, output: &mut Output) -> Result<(), CliError> {
    if output.is_json() || task.state.is_terminal() || task.state.is_interrupted() {
        return Ok(());
    }
    let record: Value = match client.get(&format!("/api/v1/tasks/{}", task.id)).await {
        // Where a task runs is the operator's to know.
        Err(CliError::Auth(_)) => return Ok(()),
        record => record?,
    };
    if let Some(node) = record.pointer("/lease/node") {
        output.line(format!("runs on  node {node}"))?;
    }
    match record["waits_for"].as_str() {
        Some(what) => Ok(output.line(format!("waits    for {what}"))?),
        None => Ok(()),
    }
}

/// Shows what a task made: its artifacts as data, its state beside them.
pub(crate) fn show_result(task: &RemoteTask, output: &mut Output) -> Result<(), CliError> {
    for part in task.artifacts.iter().flat_map(|artifact| &artifact.parts) {
        output.line(part_text(part).trim_end())?;
    }
    let text = task.status_text.as_deref().map_or_else(String::new, |text| format!(": {text}"));
    output.note(format!("task {} {}{text}", task.id, state_word(task.state)));
    if task.state.is_interrupted() {
        output.note(format!("answer with: towline send {} --task-id {} \"…\"", agent_of(task), task.id));
    }
    Ok(())
}

fn agent_of(task: &RemoteTask) -> &str {
    task.metadata.get(AGENT_KEY).and_then(Value::as_str).unwrap_or("-")
}

async fn list(args: TaskListArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let query = ListQuery {
        context_id: args.context_id,
        state: args.state,
        page_size: Some(args.limit),
        page_token: args.page_token,
        history_length: Some(1),
        include_artifacts: false,
    };
    let page = first_reached(&client.meshes(), async |mesh| mesh.list_tasks(&query, None).await).await?;
    if output.is_json() {
        return Ok(output.json(&page.raw)?);
    }
    let rows = page.tasks.iter().map(row).collect();
    output.table(&["TASK", "AGENT", "STATE", "UPDATED", "STATUS"], rows)?;
    let shown = page.tasks.len();
    if let Some(token) = page.next_page_token {
        output.note(format!("{shown} of {}; more with --page-token {token}", page.total_size));
    }
    Ok(())
}

fn row(task: &RemoteTask) -> Vec<String> {
    let updated = task.raw.pointer("/status/timestamp").and_then(Value::as_str).unwrap_or("-");
    let text = task.status_text.as_deref().unwrap_or_default();
    let mut text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if let Some((end, _)) = text.char_indices().nth(MAX_CELL_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    vec![task.id.clone(), agent_of(task).to_owned(), state_word(task.state).to_owned(), updated.to_owned(), text]
}

async fn subscribe(id: &str, from: Option<u64>, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let endpoints = client.meshes();
    let first = endpoints[0].subscribe(id, from, None).await;
    if let Err(error) = &first
        && error.is_unsupported()
    {
        // There is nothing to follow: the task as it ended is the answer.
        let task = first_reached(&endpoints, async |mesh| mesh.get_task(id, None, None).await).await?;
        return if output.is_json() { Ok(output.json_line(&task.raw)?) } else { show_result(&task, output) };
    }
    let mut follow = Follow::new(&endpoints, None);
    (follow.task, follow.last) = (Some(id.to_owned()), from);
    follow.until_the_end(first, async |endpoint| endpoint.subscribe(id, from, None).await, output).await
}

/// Follows the task at one node after the other until it has ended or waits for its client.
async fn wait(id: &str, limit: Option<Duration>, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let endpoints = client.meshes();
    let until_settled = settled(id, &endpoints, output);
    let task = match limit {
        Some(limit) => match tokio::time::timeout(limit, until_settled).await {
            Ok(task) => task?,
            Err(_) => return Err(CliError::Timeout(format!("no end within {limit:?}: the task goes on"))),
        },
        None => until_settled.await?,
    };
    show_settled(&task, output)
}

/// Shows a task that has ended or waits for its client.
pub(super) fn show_settled(task: &RemoteTask, output: &mut Output) -> Result<(), CliError> {
    if output.is_json() { Ok(output.json(&task.raw)?) } else { show_result(task, output) }
}

/// The task once it has ended or waits for its client, asked for at one endpoint after the other.
pub(super) async fn settled(id: &str, endpoints: &[A2aClient], output: &mut Output) -> Result<RemoteTask, CliError> {
    for at in 0.. {
        let endpoint = &endpoints[at % endpoints.len()];
        match settled_at(endpoint, id).await {
            Ok(Some(task)) => return Ok(task),
            Ok(None) => {}
            Err(error) if error.is_transient() || error.is_unavailable() => {
                output.note(format!("{}: going on", crate::error::chain(&error)));
            }
            Err(error) => return Err(call_failed(&error)),
        }
        tokio::time::sleep(WAIT_PAUSE).await;
    }
    unreachable!("the numbers do not end")
}

/// The task once it is settled; none if its stream ended before.
async fn settled_at(endpoint: &A2aClient, id: &str) -> Result<Option<RemoteTask>, ClientError> {
    let is_settled = |task: &RemoteTask| task.state.is_terminal() || task.state.is_interrupted();
    let task = endpoint.get_task(id, None, None).await?;
    if is_settled(&task) {
        return Ok(Some(task));
    }
    let mut events = match endpoint.subscribe(id, task.generation, None).await {
        Err(error) if error.has_no_streams() => return Ok(None),
        events => events?,
    };
    while let Some(event) = events.next().await {
        if event?.event.state().is_some_and(|state| state.is_terminal() || state.is_interrupted()) {
            break;
        }
    }
    Ok(Some(endpoint.get_task(id, None, None).await?).filter(is_settled))
}

#[derive(Deserialize)]
struct Trace {
    trace_id: String,
    jaeger_url: Option<String>,
    #[serde(default)]
    spans: Vec<SpanRecord>,
}

/// Where the trace of a task can be looked at; none if the node does not say.
pub(super) async fn jaeger_url(id: &str, client: &Client) -> Result<Option<String>, CliError> {
    let answer = client.get(&format!("/api/v1/tasks/{id}/trace?spans=none")).await?;
    Ok(serde_json::from_value::<Trace>(answer).map_err(CliError::other)?.jaeger_url)
}

async fn open(id: &str, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let missing =
        "no node says where Jaeger is: set telemetry.jaeger_ui, as in http://127.0.0.1:16686, or leave --open out";
    let url = jaeger_url(id, client).await?.ok_or_else(|| CliError::Usage(missing.to_owned()))?;
    if output.is_json() { Ok(output.json(&serde_json::json!({ "jaeger_url": url }))?) } else { Ok(output.line(url)?) }
}

async fn why(id: &str, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let record: Value = client.get(&format!("/api/v1/tasks/{id}")).await?;
    let why = record["why"].as_str().unwrap_or("the node is too old to say why");
    if output.is_json() {
        let state = record.pointer("/status/state");
        return Ok(output.json(&serde_json::json!({ "state": state, "task": id, "why": why }))?);
    }
    Ok(output.line(why)?)
}

async fn trace(id: &str, no_raft: bool, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer = client.get(&format!("/api/v1/tasks/{id}/trace")).await?;
    let trace: Trace = serde_json::from_value(answer).map_err(CliError::other)?;
    let spans = if no_raft { waterfall::without_raft(&trace.spans) } else { trace.spans };
    if output.is_json() {
        return Ok(output.json(&jaeger_json::of(&spans))?);
    }
    output.note(format!("trace {} ({} spans)", trace.trace_id, spans.len()));
    if let Some(url) = &trace.jaeger_url {
        output.note(url.clone());
    }
    Ok(output.text(&waterfall::render(&spans))?)
}

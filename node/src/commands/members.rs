//! `towline cluster promote|demote|drain|undrain|transfer-leader`

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::client::Client;
use crate::{
    api::{DrainView, LeftTask},
    cli::DrainArgs,
    error::CliError,
    output::Output,
};

/// Between two looks at a node that is drained.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// What is given up at the timeout takes a moment to move.
const MOVES_WITHIN: Duration = Duration::from_secs(10);

pub(crate) async fn promote(node: u64, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer = post(node, "promote", json!({}), client).await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    output.note("it gets its vote when it has caught up; `towline cluster status` shows how far it is");
    Ok(output.line(format!("node {node} becomes a voter"))?)
}

pub(crate) async fn demote(node: u64, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer = post(node, "demote", json!({}), client).await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    output.note("it keeps the log and its tasks, and counts for no quorum once the change is committed");
    Ok(output.line(format!("node {node} becomes a learner"))?)
}

pub(crate) async fn undrain(node: u64, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer = post(node, "undrain", json!({}), client).await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    Ok(output.line(format!("node {node} takes tasks again"))?)
}

pub(crate) async fn transfer(to: Option<u64>, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer = client.post("/api/v1/cluster/leader", &json!({ "to": to })).await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    Ok(output.line(format!("node {} leads", answer["leader"]))?)
}

pub(crate) async fn drain(args: DrainArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let DrainArgs { node, timeout, wait } = args;
    let began = Instant::now();
    let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    let answer = post(node, "drain", json!({ "timeout_ms": timeout_ms }), client).await?;
    let mut view = view_of(answer)?;
    if wait {
        view = until_empty(view, began + timeout, client, output).await?;
        if view.left > 0 {
            return Err(CliError::Timeout(what_is_left(&view, timeout)));
        }
        if view.needed {
            return Err(CliError::Timeout(format!(
                "node {node} is drained and has no tasks, and without its vote there is no quorum: do not stop it before \
                 another voter is up again (`towline cluster status`)"
            )));
        }
    }
    if output.is_json() {
        return Ok(output.json(&view)?);
    }
    let left = match view.left {
        0 if view.needed => "has no tasks, and without its vote there is no quorum: do not stop it".to_owned(),
        0 => "has no tasks: it can be stopped".to_owned(),
        left => format!("takes no tasks, and {} left", count(left)),
    };
    Ok(output.line(format!("node {node} is drained: it {left}"))?)
}

/// Looks until no task is left and the others are a quorum, or all that is left after the timeout is held where it is. A cluster that elects a leader has no answer for a moment.
async fn until_empty(
    mut view: DrainView,
    timeout: Instant,
    client: &Client,
    output: &mut Output,
) -> Result<DrainView, CliError> {
    let mut told = None;
    loop {
        if told != Some(view.left) && view.left > 0 {
            output.note(format!("{} left", count(view.left)));
            told = Some(view.left);
        }
        if (view.left == 0 && !view.needed) || is_over(&view, timeout) {
            return Ok(view);
        }
        sleep(LOOK_EVERY).await;
        match client.get(&format!("/api/v1/cluster/nodes/{}/drain", view.node)).await {
            Ok(answer) => view = view_of(answer)?,
            Err(CliError::Unavailable(_)) => {}
            Err(error) => return Err(error),
        }
        if !view.draining {
            return Err(CliError::Other(format!("node {} was undrained meanwhile", view.node)));
        }
    }
}

fn is_over(view: &DrainView, timeout: Instant) -> bool {
    let all_held = view.tasks.len() == view.left && view.tasks.iter().all(|task| task.held.is_some());
    let deadline = if all_held { timeout } else { timeout + MOVES_WITHIN };
    Instant::now() >= deadline
}

fn what_is_left(view: &DrainView, timeout: Duration) -> String {
    let node = view.node;
    let shown: Vec<String> = view.tasks.iter().map(one_left).collect();
    format!(
        "node {node} has {} left after {timeout:?}: {}. It stays drained and goes on: start a node that hosts the agent, \
         wait, cancel the task, or `towline cluster undrain {node}`",
        count(view.left),
        shown.join("; ")
    )
}

fn one_left(left: &LeftTask) -> String {
    let held = left.held.as_deref().unwrap_or("about to move");
    format!("task {} of agent {} ({held})", left.task, left.agent)
}

fn count(tasks: usize) -> String {
    if tasks == 1 { "1 task".to_owned() } else { format!("{tasks} tasks") }
}

fn view_of(answer: Value) -> Result<DrainView, CliError> {
    serde_json::from_value(answer).map_err(CliError::other)
}

async fn post(node: u64, what: &str, body: Value, client: &Client) -> Result<Value, CliError> {
    client.post(&format!("/api/v1/cluster/nodes/{node}/{what}"), &body).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_at_the_timeout_is_named_with_the_reason_and_the_way_out() {
        let tasks = vec![
            LeftTask { task: "t-1".into(), agent: "writer".into(), held: Some("no other node hosts it".into()) },
            LeftTask { task: "t-2".into(), agent: "reader".into(), held: None },
        ];
        let view = DrainView { node: 5, draining: true, left: 2, tasks, needed: false };
        let said = what_is_left(&view, Duration::from_secs(60));
        for part in ["2 tasks left after 60s", "task t-1 of agent writer (no other node hosts it)", "undrain 5"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

//! An agent as a tool: each call is a task like any other, which goes on at another node when this one is lost.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value, json};
use tokio::time::Instant;
use towline_a2a::convert::state_name;
use towline_core::{AgentName, TaskId, TaskState};

use super::{
    Ask, McpServer,
    dispatch::{ToolAnswer, Work, text},
    reads::Arguments,
    revision::Era,
};
use crate::commands::{STATES, state_word};

/// How long a call waits for its task. The answer then says where the task stands, and its id.
const MAX_WAIT: Duration = Duration::from_secs(3_600);

/// Progress is told at most this often: a task that streams text has many events in a second.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// How long a cancel may take of a task whose caller has gone: an election takes about a second.
const CANCEL_WITHIN: Duration = Duration::from_secs(10);

/// Gives an agent a task and waits for what it makes of it.
pub(super) async fn call(work: Work, agent: AgentName, arguments: Map<String, Value>) -> ToolAnswer {
    asked(&work, &agent, Arguments(arguments)).await.unwrap_or_else(|why| ToolAnswer::refused(&why))
}

async fn asked(work: &Work, agent: &AgentName, arguments: Arguments) -> Result<ToolAnswer, String> {
    let id = send(&work.ask, agent, arguments).await?;
    let mut gone = CancelsWhenGone::new(&work.ask, id);
    let ended = settled(work, id).await;
    gone.task = None;
    if ended == Ended::TakenBack {
        cancel(&work.ask, id).await;
        return Err(format!("task {id} is canceled: the call was taken back"));
    }
    answer(&work.ask, id).await
}

/// Gives an agent a task.
pub(super) async fn send(ask: &Ask, agent: &AgentName, mut arguments: Arguments) -> Result<TaskId, String> {
    let message = arguments.required("message")?;
    let continued = arguments.optional("task_id")?;
    arguments.nothing_left()?;
    let mut said = json!({
        "messageId": uuid::Uuid::now_v7().to_string(),
        "parts": [{ "text": message }],
        "role": "ROLE_USER",
    });
    if let Some(task) = continued {
        said["taskId"] = task.into();
    }
    let params = json!({ "configuration": { "returnImmediately": true }, "message": said });
    let sent = ask.a2a(::a2a::methods::SEND_MESSAGE, Some(agent.as_str()), params).await?;
    let id = sent.pointer("/task/id").or_else(|| sent.pointer("/message/taskId")).and_then(Value::as_str);
    id.and_then(|id| id.parse().ok()).ok_or_else(|| "the agent answered without a task".to_owned())
}

#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// It has ended, or waits for its client, or takes too long.
    Shown,
    TakenBack,
}

/// Waits until there is something to answer.
async fn settled(work: &Work, id: TaskId) -> Ended {
    let cluster = &work.ask.server.a2a.cluster;
    let mut watch = cluster.watch_task(id);
    let limit = tokio::time::sleep(MAX_WAIT);
    tokio::pin!(limit);
    let (mut told, mut last) = (Instant::now(), 0);
    loop {
        let now =
            cluster.local(|state| state.state_of(id).map(|now| (now, state.generation_of(id).unwrap_or_default())));
        let Some((state, generation)) = now else { return Ended::Shown };
        if state.is_terminal() || state.is_interrupted() {
            return Ended::Shown;
        }
        if generation > last && (last == 0 || told.elapsed() >= PROGRESS_EVERY) {
            (told, last) = (Instant::now(), generation);
            work.progress(generation, state_word(state));
        }
        tokio::select! {
            () = watch.changed() => {}
            () = work.taken_back() => return Ended::TakenBack,
            () = work.ask.server.a2a.stopping.cancelled() => return Ended::Shown,
            () = &mut limit => return Ended::Shown,
        }
    }
}

/// What the task made, as text and with its state.
async fn answer(ask: &Ask, id: TaskId) -> Result<ToolAnswer, String> {
    let task = ask.a2a(::a2a::methods::GET_TASK, None, json!({ "id": id.to_string() })).await?;
    Ok(answer_of(id, &task))
}

/// The same of a task that was read.
pub(super) fn answer_of(id: TaskId, task: &Value) -> ToolAnswer {
    let state = task.pointer("/status/state").and_then(Value::as_str).unwrap_or_default();
    let known = STATES.iter().map(|(known, _)| *known).find(|known| state_name(*known) == state);
    let artifacts = task["artifacts"].as_array().into_iter().flatten().map(|artifact| texts(&artifact["parts"]));
    let made: Vec<String> = artifacts.filter(|text| !text.is_empty()).collect();
    let said = texts(&task["status"]["message"]["parts"]);
    let is_over = known.is_some_and(|state| state.is_terminal());
    let text_of_it = match (made.is_empty(), known) {
        (false, Some(TaskState::Completed)) => made.join("\n\n"),
        _ if !said.is_empty() => said,
        _ if is_over => format!("task {id} has ended as {state}"),
        _ => format!("task {id} still works: read towline://tasks/{id}, or call again with its task_id"),
    };
    let is_error = known.is_some_and(|state| state.is_terminal() && state != TaskState::Completed);
    let word = known.map_or("unknown", state_word);
    let structured = json!({ "state": word, "task_id": id.to_string(), "text": text_of_it });
    let link = json!({
        "mimeType": "application/json",
        "name": format!("task {id}"),
        "type": "resource_link",
        "uri": format!("towline://tasks/{id}"),
    });
    ToolAnswer { content: vec![text(&text_of_it), link], structured: (!is_error).then_some(structured), is_error }
}

pub(super) fn texts(parts: &Value) -> String {
    let one = |part: &Value| {
        let text = part.get("text").and_then(Value::as_str).map(str::to_owned);
        text.or_else(|| part.get("data").map(Value::to_string)).or_else(|| {
            let link = part.get("url").or_else(|| part.get("filename"))?;
            link.as_str().map(str::to_owned)
        })
    };
    parts.as_array().into_iter().flatten().filter_map(one).collect::<Vec<_>>().join("\n")
}

async fn cancel(ask: &Ask, task: TaskId) {
    let canceled = ask.a2a(::a2a::methods::CANCEL_TASK, None, json!({ "id": task.to_string() }));
    match tokio::time::timeout(CANCEL_WITHIN, canceled).await {
        Ok(Ok(_)) => {}
        Ok(Err(reason)) => tracing::debug!(%task, reason, "a task is not canceled"),
        Err(_) => tracing::warn!(%task, "cancel a task whose caller has gone: takes too long"),
    }
}

/// Where there are no sessions, to close the stream of a call is to take it back. With a session it says nothing: the client may
/// only have lost its connection.
struct CancelsWhenGone {
    server: Arc<McpServer>,
    ask: Ask,
    task: Option<TaskId>,
}

impl CancelsWhenGone {
    fn new(ask: &Ask, task: TaskId) -> Self {
        let task = Some(task).filter(|_| ask.speaker.era == Era::Stateless);
        Self { server: Arc::clone(&ask.server), ask: ask.clone(), task }
    }
}

impl Drop for CancelsWhenGone {
    fn drop(&mut self) {
        if let Some(task) = self.task.take().filter(|_| !self.server.a2a.stopping.is_cancelled()) {
            let ask = self.ask.clone();
            self.server.canceling.spawn(async move { cancel(&ask, task).await });
        }
    }
}

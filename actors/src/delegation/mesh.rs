//! Follows a delegation to an agent of this mesh: any node answers for it, and the same message always means the same
//! task, so whatever breaks is tried again until the task has ended.

use futures::StreamExt;
use std::{collections::BTreeSet, time::Duration};
use towline_a2a::{A2aClient, EventStream, OUTSIDE_INPUT_KEY, RemoteTask, SendOptions, StreamEvent};
use towline_core::{Handover, NodeHealth, NodeId, Outcome, State};
use towline_trace::{Kind, Span, names};

use super::{BackOff, Job, Look, News, Trouble, answer_message, asks, look, sent, trouble};
use crate::{
    shared::{DialGuard, Shared},
    toolbox::agent_name,
};

/// Wait before the next node is dialled.
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// Longest wait between two dials: an election takes about a second.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// How often a child that waits for its client is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is known of the child.
struct Child {
    task: Option<String>,
    last_event: Option<u64>,
    asks: bool,
    answered: bool,
}

/// Follows the child until it has ended.
pub(super) async fn follow(job: &Job, shared: &Shared, tell: &impl Fn(News)) -> News {
    let mut child =
        Child { task: job.peer_task.clone(), last_event: None, asks: false, answered: job.answer.is_none() };
    let mut pause = BackOff::new(FIRST_WAIT, LONGEST_WAIT);
    let mut failed: BTreeSet<NodeId> = BTreeSet::new();
    loop {
        if !shared.cluster.may_act() {
            pause.wait(None).await;
            continue;
        }
        let Some(guard) = choose(job, shared, &failed, child.task.is_some()) else {
            failed.clear();
            pause.wait(None).await;
            continue;
        };
        let node = guard.node;
        let seen_before = child.last_event;
        let trouble = match attach(job, shared, guard, &mut child, tell).await {
            Ok(news) => return news,
            Err(trouble) => trouble,
        };
        if child.last_event != seen_before {
            pause.reset();
            failed.clear();
        }
        match trouble {
            Trouble::Final(outcome) => return News::Ended(outcome),
            Trouble::Passing { error, at_least } => {
                tracing::info!(task = %job.task, step = job.step.0, node = node.0, %error, "delegation is taken up again");
                failed.insert(node);
                pause.wait(at_least).await;
            }
        }
    }
}

/// The node to dial: before the child is known the least loaded one that hosts the agent, then any, since every node
/// answers for every task.
fn choose(job: &Job, shared: &Shared, failed: &BTreeSet<NodeId>, any_node: bool) -> Option<DialGuard> {
    let agent = agent_name(&job.target);
    shared.cluster.local(|state| {
        let hosts = |id: NodeId| {
            let agent = agent.as_ref().and_then(|name| state.agent(name));
            agent.is_some_and(|agent| agent.placed.contains(&id))
        };
        let loads = |hosts_only: bool| {
            live(state)
                .filter(|id| !failed.contains(id) && (!hosts_only || hosts(*id)))
                .map(|id| (id, state.load_of(id)))
                .collect::<Vec<_>>()
        };
        let mut candidates = loads(true);
        if candidates.is_empty() && (any_node || !live(state).any(hosts)) {
            candidates = loads(false);
        }
        shared.dialled.choose(candidates.into_iter())
    })
}

fn live(state: &State) -> impl Iterator<Item = NodeId> {
    state.nodes().filter(|node| node.health == NodeHealth::Up).map(|node| node.id)
}

/// Dials one node and follows the child there until it has ended or the connection breaks.
async fn attach(
    job: &Job,
    shared: &Shared,
    guard: DialGuard,
    child: &mut Child,
    tell: &impl Fn(News),
) -> Result<News, Trouble> {
    let node = guard.node;
    let client = client(job, shared, node)?;
    let mut guard = Some(guard);
    let mut events = open(job, &client, child, tell).await?;
    while let Some(item) = events.next().await {
        let item = item.map_err(|error| trouble(&job.target, error))?;
        child.last_event = item.id.or(child.last_event);
        let state = match &item.event {
            StreamEvent::Task(task) => {
                if child.task.as_ref() != Some(&task.id) {
                    child.task = Some(task.id.clone());
                    tell(News::PeerTask { task: task.id.clone(), node: Some(node) });
                }
                if job.handover == Handover::Send {
                    return Ok(sent(&job.target, &task.id));
                }
                guard = None;
                task.state
            }
            StreamEvent::Status { state, .. } => *state,
            StreamEvent::Artifact { .. } => continue,
            StreamEvent::Message(message) => {
                return Ok(News::Ended(Outcome::Returned { content: message.text(), is_error: false }));
            }
        };
        if state.is_terminal() || state.is_interrupted() {
            if let Some(end) = settle(job, &client, child, tell).await? {
                return Ok(end);
            }
        } else if std::mem::take(&mut child.asks) {
            tell(News::GoesOn);
        }
    }
    drop(guard);
    // A stream ends in order when the task has ended or was paused; the task itself says which.
    match settle(job, &client, child, tell).await? {
        Some(end) => Ok(end),
        None if child.asks => await_answer(job, &client, child, tell).await,
        None => Err(broken(job, &client)),
    }
}

/// A stream ends when the child waits for its client, who may answer it without this parent: it is looked at until it goes
/// on.
async fn await_answer(job: &Job, client: &A2aClient, child: &mut Child, tell: &impl Fn(News)) -> Result<News, Trouble> {
    while child.asks {
        tokio::time::sleep(LOOK_EVERY).await;
        if let Some(end) = settle(job, client, child, tell).await? {
            return Ok(end);
        }
    }
    Err(broken(job, client))
}

fn broken(job: &Job, client: &A2aClient) -> Trouble {
    let source = format!("the stream of task step {} ended early", job.step).into();
    Trouble::Passing {
        error: towline_a2a::ClientError::Broken { endpoint: client.endpoint().to_owned(), source },
        at_least: None,
    }
}

fn client(job: &Job, shared: &Shared, node: NodeId) -> Result<A2aClient, Trouble> {
    let failed = |message: String| Trouble::Final(Outcome::Failed { error_type: "internal".to_owned(), message });
    let Some(base) = shared.cluster.peer_url(node) else {
        return Err(failed(format!("delegate to {}: node {node} has no peer address", job.target)));
    };
    let mut client = A2aClient::new(shared.cluster.peer_http(), format!("{base}/agents/{}", job.target));
    for (name, value) in &job.headers {
        client = client.with_header(name, value).map_err(|error| failed(error.to_string()))?;
    }
    Ok(client)
}

/// Opens the stream: by sending what is to be sent, or by subscribing behind the last event.
async fn open(job: &Job, client: &A2aClient, child: &mut Child, tell: &impl Fn(News)) -> Result<EventStream, Trouble> {
    let refused = |error| trouble(&job.target, error);
    let Some(task) = child.task.clone() else {
        let mut span = Span::child(names::span::SEND_STREAMING_MESSAGE, Kind::Client, &job.trace);
        span.set(names::A2A_METHOD_NAME, names::span::SEND_STREAMING_MESSAGE);
        span.set(names::A2A_MESSAGE_ID, job.message.message_id.to_string());
        let events = client.stream(&job.message, SendOptions::default(), Some(&job.trace)).await;
        if let Err(error) = &events {
            span.fail("send_failed", &error.to_string());
        }
        return events.map_err(refused);
    };
    if !child.answered
        && let Some(answer) = &job.answer
        && let Some(events) = send_answer(job, client, child, &task, answer).await?
    {
        return Ok(events);
    }
    let mut span = Span::child(names::span::SUBSCRIBE_TO_TASK, Kind::Client, &job.trace);
    span.set(names::A2A_METHOD_NAME, names::span::SUBSCRIBE_TO_TASK);
    span.set(names::A2A_TASK_ID, task.clone());
    match client.subscribe(&task, child.last_event, Some(&job.trace)).await {
        // The task has ended: what it came to is in the task.
        Err(error) if error.is_unsupported() => match look(client, &job.target, &task, &job.trace).await? {
            Look::Ended(outcome, ended) => {
                tell_outside(job, &ended, tell);
                Err(Trouble::Final(outcome))
            }
            Look::Asks(_) | Look::Works => Err(refused(error)),
        },
        events => events.map_err(refused),
    }
}

/// Says that what the child comes to is outside input, if the child says so.
fn tell_outside(job: &Job, ended: &RemoteTask, tell: &impl Fn(News)) {
    let Some(reasons) = ended.metadata.get(OUTSIDE_INPUT_KEY) else { return };
    let reason = reasons.get(0).and_then(|reason| reason.as_str()).unwrap_or("outside input");
    tell(News::Outside(format!("result of agent {}: {reason}", job.target)));
}

/// Sends the client's answer if the child still waits for it; the same message is taken once.
async fn send_answer(
    job: &Job,
    client: &A2aClient,
    child: &mut Child,
    task: &str,
    answer: &towline_core::Message,
) -> Result<Option<EventStream>, Trouble> {
    let Look::Asks(waiting) = look(client, &job.target, task, &job.trace).await? else {
        child.answered = true;
        return Ok(None);
    };
    let message = answer_message(job, answer);
    let options = SendOptions {
        task_id: Some(task.to_owned()),
        context_id: Some(waiting.context_id.clone()),
        ..SendOptions::default()
    };
    let events = client.stream(&message, options, Some(&job.trace)).await;
    let events = events.map_err(|error| trouble(&job.target, error))?;
    child.answered = true;
    Ok(Some(events))
}

/// Asks the child's task itself where it stands, since a stream may show what is long past.
async fn settle(
    job: &Job,
    client: &A2aClient,
    child: &mut Child,
    tell: &impl Fn(News),
) -> Result<Option<News>, Trouble> {
    let Some(task) = &child.task else { return Ok(None) };
    match look(client, &job.target, task, &job.trace).await? {
        Look::Ended(outcome, ended) => {
            tell_outside(job, &ended, tell);
            Ok(Some(News::Ended(outcome)))
        }
        Look::Works => {
            if std::mem::take(&mut child.asks) {
                tell(News::GoesOn);
            }
            Ok(None)
        }
        Look::Asks(task) => {
            if !std::mem::replace(&mut child.asks, true) {
                tell(asks(&task));
            }
            Ok(None)
        }
    }
}

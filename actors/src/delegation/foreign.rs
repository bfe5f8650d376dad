//! Follows a delegation to a configured peer outside of this mesh. Nothing is sent twice unless the peer is configured as
//! idempotent: what may have been sent is looked up by its context, and what cannot be found is in doubt.

use futures::StreamExt;
use std::time::Duration;
use towline_a2a::{A2aClient, ClientError, EventStream, ListQuery, RemoteTask, SendOptions, SendReply, StreamEvent};
use towline_core::{Message, Outcome, TraceContext};
use towline_trace::{Kind, Span, names};

use super::{BackOff, Job, Look, News, Trouble, answer_message, look, outcome, question, trouble};
use crate::{config::PeerConfig, shared::Shared};

/// Wait before the peer is dialled again.
const FIRST_WAIT: Duration = Duration::from_millis(200);

/// Longest wait between two dials.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Failures in a row after which the peer counts as gone: about half a minute.
const MAX_FAILURES: u32 = 8;

/// Wait between two looks at a task of a peer that does not stream.
const FIRST_POLL: Duration = Duration::from_millis(200);

/// Longest wait between two looks.
const LONGEST_POLL: Duration = Duration::from_secs(2);

/// What is known of the peer's task.
struct Child {
    task: Option<String>,
    last_event: Option<u64>,
    asks: bool,
    answered: bool,
    /// Whether the message may have reached the peer.
    maybe_sent: bool,
}

/// Follows the peer's task until it has ended.
pub(super) async fn follow(job: &Job, shared: &Shared, tell: &impl Fn(News)) -> News {
    let Some(peer) = shared.config.peers.iter().find(|peer| peer.name == job.target) else {
        return failed("unknown_agent", format!("peer {} is not configured on this node", job.target));
    };
    let mut child = Child {
        task: job.peer_task.clone(),
        last_event: None,
        asks: false,
        answered: job.answer.is_none(),
        maybe_sent: job.attempt > 1 && !job.may_repeat,
    };
    let mut pause = BackOff::new(FIRST_WAIT, LONGEST_WAIT);
    loop {
        if !shared.cluster.may_act() {
            tokio::time::sleep(FIRST_WAIT).await;
            continue;
        }
        let before = (child.task.clone(), child.last_event);
        let trouble = match attach(job, shared, peer, &mut child, tell).await {
            Ok(news) => return news,
            Err(trouble) => trouble,
        };
        if before != (child.task.clone(), child.last_event) {
            pause.reset();
        }
        match trouble {
            Trouble::Final(outcome) => return News::Ended(outcome),
            Trouble::Passing { error, .. } if pause.failures >= MAX_FAILURES => {
                let message = format!("delegate to {} at {}: {error} ({MAX_FAILURES} tries)", peer.name, peer.url);
                return if child.maybe_sent && child.task.is_none() && !peer.idempotent {
                    News::InDoubt(message)
                } else {
                    failed("unreachable", message)
                };
            }
            Trouble::Passing { error, at_least } => {
                tracing::info!(task = %job.task, step = job.step.0, peer = peer.name, %error, "peer is dialled again");
                pause.wait(at_least).await;
            }
        }
    }
}

/// Tells the peer that its task is no longer wanted.
pub(super) async fn cancel(target: &str, shared: &Shared, task: &str, trace: &TraceContext) -> Result<(), ClientError> {
    let Some(peer) = shared.config.peers.iter().find(|peer| peer.name == target) else { return Ok(()) };
    let Ok(client) = client(shared, peer, &peer.url) else { return Ok(()) };
    let (client, _) = endpoint(client, shared, peer).await;
    client.cancel_task(task, Some(trace)).await.map(|_| ())
}

fn failed(error_type: &str, message: String) -> News {
    News::Ended(Outcome::Failed { error_type: error_type.to_owned(), message })
}

async fn attach(
    job: &Job,
    shared: &Shared,
    peer: &PeerConfig,
    child: &mut Child,
    tell: &impl Fn(News),
) -> Result<News, Trouble> {
    let base = client(shared, peer, &peer.url)?;
    let (client, streams) = endpoint(base, shared, peer).await;
    if child.task.is_none() && child.maybe_sent {
        if let Some(found) = find(job, &client).await? {
            know(child, &found, tell);
        } else if !peer.idempotent {
            return Ok(News::InDoubt(format!(
                "the message to {} may have been sent, and no task of it is found",
                peer.name
            )));
        }
    }
    if streams {
        follow_stream(job, &client, child, tell).await
    } else {
        follow_polling(job, &client, child, tell).await
    }
}

fn client(shared: &Shared, peer: &PeerConfig, endpoint: &str) -> Result<A2aClient, Trouble> {
    let client = A2aClient::new(shared.http.clone(), endpoint);
    let Some(bearer) = &peer.bearer else { return Ok(client) };
    client.with_header("authorization", &format!("Bearer {}", bearer.expose())).map_err(|error| {
        Trouble::Final(Outcome::Failed {
            error_type: "internal".to_owned(),
            message: format!("delegate to {}: {error}", peer.name),
        })
    })
}

/// The client of the endpoint that the card names, if it is on the configured host; else of the configured URL. And
/// whether the peer streams.
async fn endpoint(base: A2aClient, shared: &Shared, peer: &PeerConfig) -> (A2aClient, bool) {
    let card = match base.card(&peer.url).await {
        Ok(card) => card,
        Err(error) => {
            tracing::debug!(peer = peer.name, %error, "peer shows no card");
            return (base, false);
        }
    };
    let named = card.jsonrpc_url.filter(|url| same_host(url, &peer.url));
    let client = named.and_then(|url| client(shared, peer, &url).ok()).unwrap_or(base);
    (client, card.streaming)
}

/// Whether both URLs lead to the same scheme, host and port. A card never redirects a call, and a credential, elsewhere.
fn same_host(named: &str, configured: &str) -> bool {
    match (reqwest::Url::parse(named), reqwest::Url::parse(configured)) {
        (Ok(named), Ok(configured)) => named.origin() == configured.origin(),
        (Ok(_), Err(_)) | (Err(_), Ok(_) | Err(_)) => false,
    }
}

/// The task that an earlier attempt may have made: the context is unique to the step.
async fn find(job: &Job, client: &A2aClient) -> Result<Option<RemoteTask>, Trouble> {
    let query = ListQuery {
        context_id: job.message.context_id.as_ref().map(ToString::to_string),
        page_size: Some(1),
        ..ListQuery::default()
    };
    match client.list_tasks(&query, Some(&job.trace)).await {
        Ok(page) => Ok(page.tasks.into_iter().find(|task| Some(&task.context_id) == query.context_id.as_ref())),
        // A peer that cannot list cannot be asked.
        Err(ClientError::Protocol { .. }) => Ok(None),
        Err(error) => Err(trouble(&job.target, error)),
    }
}

fn know(child: &mut Child, task: &RemoteTask, tell: &impl Fn(News)) {
    if child.task.as_ref() != Some(&task.id) {
        child.task = Some(task.id.clone());
        tell(News::PeerTask { task: task.id.clone(), node: None });
    }
}

async fn follow_stream(
    job: &Job,
    client: &A2aClient,
    child: &mut Child,
    tell: &impl Fn(News),
) -> Result<News, Trouble> {
    let mut events = open_stream(job, client, child).await?;
    while let Some(item) = events.next().await {
        let item = item.map_err(|error| trouble(&job.target, error))?;
        child.last_event = item.id.or(child.last_event);
        let state = match &item.event {
            StreamEvent::Task(task) => {
                know(child, task, tell);
                task.state
            }
            StreamEvent::Status { state, .. } => *state,
            StreamEvent::Artifact { .. } => continue,
            StreamEvent::Message(message) => return Ok(answered(message)),
        };
        if !state.is_terminal() && !state.is_interrupted() {
            if std::mem::take(&mut child.asks) {
                tell(News::GoesOn);
            }
            continue;
        }
        if let Some(end) = settle(job, client, child, tell).await? {
            return Ok(end);
        }
    }
    match settle(job, client, child, tell).await? {
        Some(end) => Ok(end),
        // Streams of many peers end when a task waits for its client; from then on it is looked at.
        None => poll(job, client, child, tell).await,
    }
}

async fn open_stream(job: &Job, client: &A2aClient, child: &mut Child) -> Result<EventStream, Trouble> {
    let Some(task) = child.task.clone() else {
        let mut span = send_span(job, names::span::SEND_STREAMING_MESSAGE);
        let sent = client.stream(&job.message, SendOptions::default(), Some(&job.trace)).await;
        return sent.map_err(|error| not_sent(job, child, &mut span, error));
    };
    if let Some((message, options)) = answer(job, client, child, &task).await? {
        let events = client.stream(&message, options, Some(&job.trace)).await;
        child.answered = events.is_ok();
        return events.map_err(|error| trouble(&job.target, error));
    }
    match client.subscribe(&task, child.last_event, Some(&job.trace)).await {
        Err(error) if error.is_unsupported() => match look(client, &job.target, &task, &job.trace).await? {
            Look::Ended(outcome) => Err(Trouble::Final(outcome)),
            Look::Asks(_) | Look::Works => Err(trouble(&job.target, error)),
        },
        events => events.map_err(|error| trouble(&job.target, error)),
    }
}

async fn follow_polling(
    job: &Job,
    client: &A2aClient,
    child: &mut Child,
    tell: &impl Fn(News),
) -> Result<News, Trouble> {
    let at_once = || SendOptions { return_immediately: true, ..SendOptions::default() };
    let reply = match child.task.clone() {
        None => {
            let mut span = send_span(job, names::span::SEND_MESSAGE);
            let sent = client.send(&job.message, at_once(), Some(&job.trace)).await;
            Some(sent.map_err(|error| not_sent(job, child, &mut span, error))?)
        }
        Some(task) => match answer(job, client, child, &task).await? {
            Some((message, options)) => {
                let options = SendOptions { return_immediately: true, ..options };
                let sent = client.send(&message, options, Some(&job.trace)).await;
                child.answered = sent.is_ok();
                Some(sent.map_err(|error| trouble(&job.target, error))?)
            }
            None => None,
        },
    };
    match reply {
        Some(SendReply::Message(message)) => return Ok(answered(&message)),
        Some(SendReply::Task(task)) => {
            know(child, &task, tell);
            if let Some(outcome) = outcome(&job.target, &task) {
                return Ok(News::Ended(outcome));
            }
        }
        None => {}
    }
    poll(job, client, child, tell).await
}

async fn poll(job: &Job, client: &A2aClient, child: &mut Child, tell: &impl Fn(News)) -> Result<News, Trouble> {
    let mut wait = FIRST_POLL;
    loop {
        if let Some(end) = settle(job, client, child, tell).await? {
            return Ok(end);
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LONGEST_POLL);
    }
}

/// Asks the peer's task itself where it stands.
async fn settle(
    job: &Job,
    client: &A2aClient,
    child: &mut Child,
    tell: &impl Fn(News),
) -> Result<Option<News>, Trouble> {
    let Some(task) = &child.task else { return Ok(None) };
    match look(client, &job.target, task, &job.trace).await? {
        Look::Ended(outcome) => return Ok(Some(News::Ended(outcome))),
        Look::Works => {
            if std::mem::take(&mut child.asks) {
                tell(News::GoesOn);
            }
        }
        Look::Asks(task) => {
            if !std::mem::replace(&mut child.asks, true) {
                tell(News::Asks(question(&task)));
            }
        }
    }
    Ok(None)
}

/// The client's answer for the peer's task, if the task still waits for it.
async fn answer(
    job: &Job,
    client: &A2aClient,
    child: &mut Child,
    task: &str,
) -> Result<Option<(Message, SendOptions)>, Trouble> {
    let Some(answer) = job.answer.as_ref().filter(|_| !child.answered) else { return Ok(None) };
    let Look::Asks(waiting) = look(client, &job.target, task, &job.trace).await? else {
        child.answered = true;
        return Ok(None);
    };
    let options = SendOptions {
        task_id: Some(task.to_owned()),
        context_id: Some(waiting.context_id.clone()),
        ..SendOptions::default()
    };
    Ok(Some((answer_message(job, answer), options)))
}

fn answered(message: &Message) -> News {
    News::Ended(Outcome::Returned { content: super::cut(message.text()), is_error: false })
}

fn send_span(job: &Job, method: &'static str) -> Span {
    let mut span = Span::child(method, Kind::Client, &job.trace);
    span.set(names::A2A_METHOD_NAME, method);
    span.set(names::A2A_MESSAGE_ID, job.message.message_id.to_string());
    span
}

/// A send that failed: from here on the peer may have the message, unless there was no connection.
fn not_sent(job: &Job, child: &mut Child, span: &mut Span, error: ClientError) -> Trouble {
    span.fail("send_failed", &error.to_string());
    child.maybe_sent |= matches!(error, ClientError::Broken { .. } | ClientError::Timeout { .. });
    trouble(&job.target, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_does_not_redirect_a_call_to_another_host() {
        assert!(same_host("https://legal.example/a2a", "https://legal.example"));
        assert!(!same_host("https://evil.example/a2a", "https://legal.example"));
        assert!(!same_host("http://legal.example/a2a", "https://legal.example"));
        assert!(!same_host("https://legal.example:8443/", "https://legal.example/"));
        assert!(!same_host("not a url", "https://legal.example"));
    }
}

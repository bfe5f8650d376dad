//! Follows a delegation to a peer outside of this mesh, over whichever of its URLs answers.
//!
//! Nothing is sent twice unless the peer is said to be idempotent: what may have been sent is looked up by its context, at
//! every URL, and what cannot be found is in doubt. A task that is known is followed at any URL that knows it.

use futures::StreamExt;
use std::{collections::BTreeSet, time::Duration};
use towline_a2a::{A2aClient, ClientError, EventStream, ListQuery, RemoteTask, SendOptions, SendReply, StreamEvent};
use towline_core::{Content, Handover, Message, Outcome, TraceContext, limits::MAX_CONTENT_BYTES};
use towline_trace::{Kind, Span, names};

use super::{
    BackOff, Chunk, Job, Look, News, Trouble, answer_message, asks, outcome, sent, shown::Shown, trouble, what_of,
};
use crate::{config::PeerConfig, peers::own_mesh, shared::Shared, task_run::ON_BEHALF_OF_KEY};

/// Wait before the peer is dialled again, once none of its URLs answered.
const FIRST_WAIT: Duration = Duration::from_millis(200);

/// Longest wait between two dials.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Rounds over all URLs after which the peer counts as gone: about half a minute.
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
    shown: Shown,
}

/// Why following stops at one URL.
enum Stop {
    Trouble(Trouble),
    /// It answers, and knows nothing of the task or the message.
    Absent,
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Self {
        Stop::Trouble(trouble)
    }
}

/// A delegation, and what it is followed with.
struct Following<'a, T> {
    job: &'a Job,
    shared: &'a Shared,
    peer: &'a PeerConfig,
    /// The message as this peer is sent it.
    message: Message,
    child: Child,
    tell: &'a T,
}

/// Follows the peer's task until it has ended.
pub(super) async fn follow<T: Fn(News)>(job: &Job, shared: &Shared, tell: &T) -> News {
    let peer = match shared.peer(&job.target) {
        Ok(Some(peer)) => peer,
        Ok(None) => return failed("unknown_agent", format!("peer {} is not known on this node", job.target)),
        Err(why) => return failed("no_credentials", format!("delegate to {}: {why}", job.target)),
    };
    if let Some(why) = too_large(&job.message) {
        return failed("content_too_large", format!("delegate to {}: {why}", peer.name));
    }
    let child = Child {
        task: job.peer_task.clone(),
        last_event: None,
        asks: false,
        answered: job.answer.is_none(),
        maybe_sent: job.attempt > 1 && !job.may_repeat,
        shown: Shown::default(),
    };
    let mut message = job.message.clone();
    if !peer.tell_principal {
        message.metadata.remove(ON_BEHALF_OF_KEY);
    }
    tell(News::Outside(format!("result of peer {}", peer.name)));
    Box::pin(Following { job, shared, peer: &peer, message, child, tell }.until_the_end()).await
}

/// Tells the peer that its task is no longer wanted, at the first URL that takes it.
pub(super) async fn cancel(target: &str, shared: &Shared, task: &str, trace: &TraceContext) -> Result<(), ClientError> {
    let Ok(Some(peer)) = shared.peer(target) else { return Ok(()) };
    let mut canceled = Ok(());
    for url in &peer.urls {
        let Ok((client, _)) = endpoint(shared, &peer, url).await else { continue };
        canceled = client.cancel_task(task, Some(trace)).await.map(|_| ());
        if canceled.is_ok() {
            break;
        }
    }
    canceled
}

/// What of a message cannot be sent, because it is known by its name in this mesh alone.
fn too_large(message: &Message) -> Option<String> {
    message.parts.iter().find_map(|part| {
        let Content::Blob(blob) = &part.content else { return None };
        let name = part.filename.as_deref().unwrap_or("without a name");
        Some(format!(
            "its file {name} has {} bytes, and a peer is sent at most {MAX_CONTENT_BYTES}: send it the URL of a place that it can read",
            blob.length
        ))
    })
}

fn failed(error_type: &str, message: String) -> News {
    News::Ended(Outcome::Failed { error_type: error_type.to_owned(), message })
}

/// A client of the peer at one of its URLs, by the terms of the card there, and whether the peer streams. Who shows no card is
/// spoken to over JSON-RPC at the URL itself.
async fn endpoint(shared: &Shared, peer: &PeerConfig, url: &str) -> Result<(A2aClient, bool), Trouble> {
    let last = |error_type: &str, message: String| {
        let message = format!("delegate to {}: {message}", peer.name);
        Trouble::Final(Outcome::Failed { error_type: error_type.to_owned(), message })
    };
    let internal = |message| last("internal", message);
    let card = match shared.cards.read(&shared.dialler, peer, url).await {
        Ok(card) => card,
        Err(error) if error.is_transient() => return Err(trouble(&peer.name, error)),
        Err(error @ ClientError::Auth { .. }) => return Err(trouble(&peer.name, error)),
        Err(error) => {
            tracing::debug!(peer = peer.name, url, %error, "peer shows no card");
            return Ok((shared.dialler.bare(peer, url).map_err(internal)?, false));
        }
    };
    if shared.cluster.local(|state| card.mesh_mark().is_some_and(|mark| mark == state.mesh_mark())) {
        return Err(last("own_mesh", own_mesh(url)));
    }
    let terms = card.terms(url, peer.bearer.is_some()).map_err(|refused| last("terms_refused", refused.to_string()))?;
    let streams = terms.streams;
    Ok((shared.dialler.by_terms(peer, terms).map_err(internal)?, streams))
}

impl<T: Fn(News)> Following<'_, T> {
    async fn until_the_end(mut self) -> News {
        let peer = self.peer;
        let mut pause = BackOff::new(FIRST_WAIT, LONGEST_WAIT);
        let (mut at, mut tried) = (0, 0);
        // URLs that answered and know nothing of it.
        let mut absent: BTreeSet<usize> = BTreeSet::new();
        let mut may_send_again = peer.idempotent;
        loop {
            if !self.shared.cluster.may_act() {
                tokio::time::sleep(FIRST_WAIT).await;
                continue;
            }
            let before = (self.child.task.clone(), self.child.last_event);
            let url = &peer.urls[at];
            let stop = match self.attach(url).await {
                Ok(news) => return news,
                Err(stop) => stop,
            };
            if before != (self.child.task.clone(), self.child.last_event) {
                pause.reset();
                absent.clear();
                tried = 0;
            }
            let (why, at_least) = match stop {
                Stop::Trouble(Trouble::Final(outcome)) => return News::Ended(outcome),
                Stop::Trouble(Trouble::Passing { error, at_least }) => {
                    self.shared.cards.forget(url);
                    (error.to_string(), at_least)
                }
                Stop::Absent => {
                    absent.insert(at);
                    (format!("{url} does not know the task"), None)
                }
            };
            let is_over = pause.failures >= MAX_FAILURES;
            let is_nowhere = absent.len() == peer.urls.len();
            if is_nowhere || (is_over && !absent.is_empty()) {
                if !may_send_again {
                    return self.gone(&why, is_nowhere);
                }
                tracing::info!(task = %self.job.task, peer = peer.name, "peer has lost the task: it is sent again");
                may_send_again = false;
                (self.child.task, self.child.last_event, self.child.maybe_sent) = (None, None, false);
                absent.clear();
                pause.reset();
                tried = 0;
                continue;
            }
            if is_over {
                return self.gone(&why, false);
            }
            tracing::info!(task = %self.job.task, step = self.job.step.0, peer = peer.name, url, why, "peer is dialled again");
            tried += 1;
            at = (at + 1) % peer.urls.len();
            if tried % peer.urls.len() == 0 {
                pause.wait(at_least).await;
            }
        }
    }

    /// What is left to say when the peer, or its task, is not found any more.
    fn gone(&self, why: &str, is_nowhere: bool) -> News {
        let name = &self.peer.name;
        let at = self.peer.urls.join(", ");
        match &self.child.task {
            Some(task) if is_nowhere => {
                failed("task_lost", format!("delegate to {name} at {at}: it no longer knows its task {task}"))
            }
            None if is_nowhere => {
                News::InDoubt(format!("the message to {name} may have been sent, and no task of it is found"))
            }
            None if self.child.maybe_sent && !self.peer.idempotent => {
                News::InDoubt(format!("delegate to {name} at {at}: {why} ({MAX_FAILURES} tries)"))
            }
            Some(_) | None => {
                failed("unreachable", format!("delegate to {name} at {at}: {why} ({MAX_FAILURES} tries)"))
            }
        }
    }

    async fn attach(&mut self, url: &str) -> Result<News, Stop> {
        let (client, streams) = endpoint(self.shared, self.peer, url).await?;
        if self.child.task.is_none() && self.child.maybe_sent {
            match self.find(&client).await? {
                Some(found) => self.know(&found),
                None => return Err(Stop::Absent),
            }
        }
        if let Some(task) = self.child.task.as_ref().filter(|_| self.job.handover == Handover::Send) {
            return Ok(sent(&self.job.target, task));
        }
        if streams { self.follow_stream(&client).await } else { self.follow_polling(&client).await }
    }

    /// The task that an earlier attempt may have made: the context is unique to the step.
    async fn find(&self, client: &A2aClient) -> Result<Option<RemoteTask>, Stop> {
        let query = ListQuery {
            context_id: self.message.context_id.as_ref().map(ToString::to_string),
            page_size: Some(1),
            ..ListQuery::default()
        };
        match client.list_tasks(&query, Some(&self.job.trace)).await {
            Ok(page) => Ok(page.tasks.into_iter().find(|task| Some(&task.context_id) == query.context_id.as_ref())),
            // A peer that cannot list cannot be asked.
            Err(ClientError::Protocol { retry_after: None, .. } | ClientError::Http { .. }) => Ok(None),
            Err(error) => Err(self.stop(error)),
        }
    }

    fn know(&mut self, task: &RemoteTask) {
        if self.child.task.as_ref() != Some(&task.id) {
            self.child.task = Some(task.id.clone());
            (self.tell)(News::PeerTask { task: task.id.clone(), node: None });
        }
    }

    fn stop(&self, error: ClientError) -> Stop {
        if self.child.task.is_some() && error.is_unknown_task() {
            return Stop::Absent;
        }
        trouble(&self.job.target, error).into()
    }

    async fn follow_stream(&mut self, client: &A2aClient) -> Result<News, Stop> {
        let mut events = match self.open_stream(client).await? {
            Ok(events) => events,
            Err(news) => return Ok(news),
        };
        while let Some(item) = events.next().await {
            let item = item.map_err(|error| self.stop(error))?;
            self.child.last_event = item.id.or(self.child.last_event);
            let state = match item.event {
                StreamEvent::Task(task) => {
                    self.know(&task);
                    if self.job.handover == Handover::Send {
                        return Ok(sent(&self.job.target, &task.id));
                    }
                    if self.job.relays {
                        self.child.shown.whole(&task.artifacts, self.tell);
                    }
                    task.state
                }
                StreamEvent::Status { state, .. } => state,
                StreamEvent::Artifact { artifact_id, name, parts, append, last_chunk, .. } => {
                    if self.job.relays {
                        self.child.shown.chunk(Chunk { artifact_id, name, parts, append, last_chunk }, self.tell);
                    }
                    continue;
                }
                StreamEvent::Message(message) => return Ok(self.answered(&message)),
            };
            if !state.is_terminal() && !state.is_interrupted() {
                if std::mem::take(&mut self.child.asks) {
                    (self.tell)(News::GoesOn);
                }
                continue;
            }
            if let Some(end) = self.settle(client).await? {
                return Ok(end);
            }
        }
        if self.child.task.is_none() {
            let source = "the stream ended before the peer named a task".into();
            let error = ClientError::Broken { endpoint: client.endpoint().to_owned(), source };
            return Err(Trouble::Passing { error, at_least: None }.into());
        }
        match self.settle(client).await? {
            Some(end) => Ok(end),
            // Streams of many peers end when a task waits for its client; from then on it is looked at.
            None => self.poll(client).await,
        }
    }

    /// Opens the stream of the peer's task; or says how it has ended.
    async fn open_stream(&mut self, client: &A2aClient) -> Result<Result<EventStream, News>, Stop> {
        let trace = Some(&self.job.trace);
        let Some(task) = self.child.task.clone() else {
            let mut span = send_span(self.job, names::span::SEND_STREAMING_MESSAGE);
            return match client.stream(&self.message, SendOptions::default(), trace).await {
                Ok(events) => {
                    self.child.maybe_sent = true;
                    Ok(Ok(events))
                }
                // A card may promise what its server does not do: nothing was begun then.
                Err(error) if error.is_unsupported() => Ok(Err(self.follow_polling(client).await?)),
                Err(error) => Err(self.not_sent(&mut span, error)),
            };
        };
        if let Some((message, options)) = self.answer(client, &task).await? {
            let events = client.stream(&message, options, trace).await;
            self.child.answered = events.is_ok();
            return events.map(Ok).map_err(|error| self.stop(error));
        }
        match client.subscribe(&task, self.child.last_event, trace).await {
            // It has ended, or cannot be subscribed to: then it is looked at.
            Err(error) if error.is_unsupported() => match self.settle(client).await? {
                Some(end) => Ok(Err(end)),
                None => Ok(Err(self.poll(client).await?)),
            },
            events => events.map(Ok).map_err(|error| self.stop(error)),
        }
    }

    async fn follow_polling(&mut self, client: &A2aClient) -> Result<News, Stop> {
        let trace = Some(&self.job.trace);
        let at_once = |options| SendOptions { return_immediately: true, ..options };
        let reply = match self.child.task.clone() {
            None => {
                let mut span = send_span(self.job, names::span::SEND_MESSAGE);
                let sent = client.send(&self.message, at_once(SendOptions::default()), trace).await;
                Some(sent.map_err(|error| self.not_sent(&mut span, error))?)
            }
            Some(task) => match self.answer(client, &task).await? {
                Some((message, options)) => {
                    let sent = client.send(&message, at_once(options), trace).await;
                    self.child.answered = sent.is_ok();
                    Some(sent.map_err(|error| self.stop(error))?)
                }
                None => None,
            },
        };
        match reply {
            Some(SendReply::Message(message)) => return Ok(self.answered(&message)),
            Some(SendReply::Task(task)) => {
                self.know(&task);
                if self.job.handover == Handover::Send {
                    return Ok(sent(&self.job.target, &task.id));
                }
                if let Some(outcome) = outcome(&self.job.target, &task) {
                    return Ok(self.ended(outcome, &task));
                }
            }
            None => {}
        }
        self.poll(client).await
    }

    async fn poll(&mut self, client: &A2aClient) -> Result<News, Stop> {
        let mut wait = FIRST_POLL;
        loop {
            if let Some(end) = self.settle(client).await? {
                return Ok(end);
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_POLL);
        }
    }

    async fn look(&self, client: &A2aClient, task: &str) -> Result<Look, Stop> {
        let found = client.get_task(task, Some(0), Some(&self.job.trace)).await;
        Ok(what_of(&self.job.target, found.map_err(|error| self.stop(error))?))
    }

    /// Asks the peer's task itself where it stands.
    async fn settle(&mut self, client: &A2aClient) -> Result<Option<News>, Stop> {
        let Some(task) = self.child.task.clone() else { return Ok(None) };
        match self.look(client, &task).await? {
            Look::Ended(outcome, ended) => return Ok(Some(self.ended(outcome, &ended))),
            Look::Works => {
                if std::mem::take(&mut self.child.asks) {
                    (self.tell)(News::GoesOn);
                }
            }
            Look::Asks(task) => {
                if !std::mem::replace(&mut self.child.asks, true) {
                    (self.tell)(asks(&task));
                }
            }
        }
        Ok(None)
    }

    fn ended(&mut self, outcome: Outcome, task: &RemoteTask) -> News {
        if !self.job.relays {
            return News::Ended(outcome);
        }
        self.child.shown.whole(&task.artifacts, self.tell);
        match outcome {
            // What it made is in the artifacts.
            Outcome::Returned { is_error: false, .. } => {
                let content = task.status_text.clone().unwrap_or_default();
                News::Ended(Outcome::Returned { content, is_error: false })
            }
            outcome @ (Outcome::Returned { is_error: true, .. }
            | Outcome::Answered(_)
            | Outcome::Stored { .. }
            | Outcome::Failed { .. }) => News::Ended(outcome),
        }
    }

    fn answered(&mut self, message: &Message) -> News {
        if self.job.relays {
            self.child.shown.answer(message, self.tell);
        }
        News::Ended(Outcome::Returned { content: super::cut(message.text()), is_error: false })
    }

    /// The client's answer for the peer's task, if the task still waits for it.
    async fn answer(&mut self, client: &A2aClient, task: &str) -> Result<Option<(Message, SendOptions)>, Stop> {
        let Some(answer) = self.job.answer.as_ref().filter(|_| !self.child.answered) else { return Ok(None) };
        let Look::Asks(waiting) = self.look(client, task).await? else {
            self.child.answered = true;
            return Ok(None);
        };
        let options = SendOptions {
            task_id: Some(task.to_owned()),
            context_id: Some(waiting.context_id.clone()),
            ..SendOptions::default()
        };
        Ok(Some((answer_message(self.job, answer), options)))
    }

    /// A send that failed: from here on the peer may have the message, unless there was no connection.
    fn not_sent(&mut self, span: &mut Span, error: ClientError) -> Stop {
        span.fail("send_failed", &error.to_string());
        self.child.maybe_sent |= matches!(error, ClientError::Broken { .. } | ClientError::Timeout { .. });
        trouble(&self.job.target, error).into()
    }
}

fn send_span(job: &Job, method: &'static str) -> Span {
    let mut span = Span::child(method, Kind::Client, &job.trace);
    span.set(names::A2A_METHOD_NAME, method);
    span.set(names::A2A_MESSAGE_ID, job.message.message_id.to_string());
    span
}

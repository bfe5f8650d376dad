//! Follows one delegation until the peer's task has ended. Started by the task run for each delegating step, stopped by it
//! when the outcome came or the run ends; a crash is its supervisor's to handle, and following again is always safe.
//!
//! The actor only passes on what its follower finds, and cancels the peer's task when it is told to. The follower is one
//! spawned task that the actor owns:
//!
//! ```text
//! own mesh:  least loaded node ─▶ send (the same message makes the same task) ─▶ stream ─┬▶ ended
//!                  ▲                                                            broken   │
//!                  └── another node, from the last index ◀──────────────────────────────┘
//! foreign:   look up what may have been sent ─▶ send or attach ─▶ stream, or poll ─▶ ended
//! ```

mod foreign;
mod mesh;
mod shown;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::{sync::Arc, time::Duration};
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;
use towline_a2a::{A2aClient, ClientError, RemoteTask};
use towline_cluster::BlobError;
use towline_core::{Artifact, Handover, Message, NodeId, Outcome, Part, StepNo, TaskId, TaskState, TraceContext};

use crate::{logs, mailbox::Mail, orphans::Orphan, shared::Shared, stored, task_run::TaskRunMsg};

/// Longest time that a peer gets to hear of a cancellation.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Largest result that goes into the journal, in bytes: it is fed to a model.
const MAX_RESULT_BYTES: usize = 1024 * 1024;

/// What is delegated, to whom, and what is known of an earlier attempt.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// The delegating task.
    pub task: TaskId,
    /// The delegating step.
    pub step: StepNo,
    /// The step's attempt, from 1.
    pub attempt: u32,
    /// An agent of this mesh, or a configured peer.
    pub target: String,
    /// Whether `target` is an agent of this mesh.
    pub own_mesh: bool,
    /// The exact message.
    pub message: Message,
    /// The peer's task, if it was seen.
    pub peer_task: Option<String>,
    /// The client's answer to what the peer asked.
    pub answer: Option<Message>,
    /// Whether it may be sent although an earlier attempt may have sent it.
    pub may_repeat: bool,
    /// What is waited for.
    pub handover: Handover,
    /// Whether what the peer makes is what the task makes.
    pub relays: bool,
    /// Headers for nodes of this mesh: on whose behalf, parent, depth, deadline.
    pub headers: Vec<(&'static str, String)>,
    /// The span of the step.
    pub trace: TraceContext,
}

/// What the follower finds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum News {
    /// The peer's task is known.
    PeerTask {
        /// The peer's id of it.
        task: String,
        /// The node that was dialled, for an agent of this mesh.
        node: Option<NodeId>,
    },
    /// The peer asks its client something.
    Asks {
        /// What.
        question: String,
        /// Whether it is credentials.
        auth: bool,
    },
    /// The peer's task has made something; only where it is relayed.
    Artifact(Box<Chunk>),
    /// What the peer's task comes to is outside input, and why: said before its end.
    Outside(String),
    /// The peer goes on without an answer from here.
    GoesOn,
    /// The peer's task has ended, or the call failed for good.
    Ended(Outcome),
    /// The peer may have begun, and it cannot be found out.
    InDoubt(String),
}

/// A chunk of an artifact.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chunk {
    /// Which artifact.
    pub artifact_id: String,
    /// Its name.
    pub name: Option<String>,
    /// The chunk.
    pub parts: Vec<Part>,
    /// Whether it extends the artifact; otherwise it replaces it.
    pub append: bool,
    /// Whether it is the last one.
    pub last_chunk: bool,
}

/// Messages of the delegation actor.
pub(crate) enum DelegationMsg {
    /// From the follower.
    News(News),
    /// The delegating task was canceled: so is the peer's. The actor stops.
    Cancel,
    /// The peer has heard of it, or did not answer in time.
    Canceled,
}

pub(crate) struct DelegationArguments {
    pub job: Job,
    pub shared: Arc<Shared>,
    pub run: ActorRef<Mail<TaskRunMsg>>,
}

pub(crate) struct DelegationState {
    job: Job,
    shared: Arc<Shared>,
    run: ActorRef<Mail<TaskRunMsg>>,
    follower: Option<AbortOnDropHandle<()>>,
    canceling: Option<AbortOnDropHandle<()>>,
}

pub(crate) struct DelegationActor;

impl Actor for DelegationActor {
    type Msg = DelegationMsg;
    type State = DelegationState;
    type Arguments = DelegationArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<DelegationMsg>,
        arguments: DelegationArguments,
    ) -> Result<DelegationState, ActorProcessingErr> {
        let DelegationArguments { job, shared, run } = arguments;
        let follower = follow(job.clone(), Arc::clone(&shared), myself);
        Ok(DelegationState { job, shared, run, follower: Some(follower), canceling: None })
    }

    async fn handle(
        &self,
        myself: ActorRef<DelegationMsg>,
        message: DelegationMsg,
        state: &mut DelegationState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            DelegationMsg::News(news) => state.pass_on(news),
            DelegationMsg::Cancel => state.cancel(myself),
            DelegationMsg::Canceled => myself.stop(None),
        }
        Ok(())
    }
}

impl DelegationState {
    fn pass_on(&mut self, news: News) {
        if let News::PeerTask { task, .. } = &news {
            self.job.peer_task = Some(task.clone());
        }
        let message = TaskRunMsg::News { step: self.job.step, attempt: self.job.attempt, news };
        // A run that has stopped wants no news.
        let _ = self.run.cast(message.into());
    }

    /// Children in this mesh are canceled by the core, together with their parent.
    fn cancel(&mut self, myself: ActorRef<DelegationMsg>) {
        self.follower = None;
        let foreign = (!self.job.own_mesh).then(|| self.job.peer_task.clone()).flatten();
        let Some(task) = foreign else {
            myself.stop(None);
            return;
        };
        let (job, shared) = (self.job.clone(), Arc::clone(&self.shared));
        self.canceling =
            Some(AbortOnDropHandle::new(logs::spawn(&logs::of_task(self.job.task, &self.job.trace), async move {
                let orphan = Orphan { target: job.target.clone(), peer_task: task, trace: job.trace };
                cancel_orphan(shared, job.task, orphan).await;
                // Nobody else stops this actor now, and one that has stopped needs no word.
                let _ = myself.cast(DelegationMsg::Canceled);
            })));
    }
}

/// Tells a peer that its task is no longer wanted.
pub(crate) async fn cancel_orphan(shared: Arc<Shared>, task: TaskId, orphan: Orphan) {
    let Orphan { target, peer_task, trace } = orphan;
    let canceled = foreign::cancel(&target, &shared, &peer_task, &trace);
    match tokio::time::timeout(CANCEL_TIMEOUT, canceled).await {
        Ok(Ok(())) => tracing::info!(%task, peer = target, "peer's task was canceled"),
        Ok(Err(error)) => tracing::warn!(%task, peer = target, %error, "peer did not cancel"),
        Err(_) => tracing::warn!(%task, peer = target, "peer did not answer a cancellation"),
    }
}

fn follow(job: Job, shared: Arc<Shared>, actor: ActorRef<DelegationMsg>) -> AbortOnDropHandle<()> {
    let logs = logs::of_task(job.task, &job.trace);
    let follower: JoinHandle<()> = logs::spawn(&logs, async move {
        let tell = |news| {
            // An actor that has stopped wants no news.
            let _ = actor.cast(DelegationMsg::News(news));
        };
        let mut job = job;
        if let Err(error) = with_content(&mut job, &shared).await {
            let message = format!("delegate to {}: read the message: {error}", job.target);
            let error_type = "content_unavailable".to_owned();
            return tell(News::Ended(Outcome::Failed { error_type, message }));
        }
        let end = if job.own_mesh {
            mesh::follow(&job, &shared, &tell).await
        } else {
            foreign::follow(&job, &shared, &tell).await
        };
        tell(end);
    });
    AbortOnDropHandle::new(follower)
}

/// What is sent is whole: the peer has another blob store, or keeps it anew.
async fn with_content(job: &mut Job, shared: &Shared) -> Result<(), BlobError> {
    stored::with_parts(&shared.cluster, &mut job.message).await?;
    match &mut job.answer {
        Some(answer) => stored::with_parts(&shared.cluster, answer).await,
        None => Ok(()),
    }
}

/// Wait before something is tried again: doubles from `first` up to `longest`.
struct BackOff {
    next: Duration,
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl BackOff {
    fn new(first: Duration, longest: Duration) -> Self {
        Self { next: first, first, longest, failures: 0 }
    }

    async fn wait(&mut self, at_least: Option<Duration>) {
        let wait = at_least.map_or(self.next, |least| least.max(self.next));
        self.next = (self.next * 2).min(self.longest);
        self.failures += 1;
        tokio::time::sleep(wait).await;
    }

    fn reset(&mut self) {
        self.next = self.first;
        self.failures = 0;
    }
}

/// What a step comes to when the peer's task has ended so; none if it has not.
fn outcome(target: &str, task: &RemoteTask) -> Option<Outcome> {
    let said = task.status_text.as_deref().unwrap_or("it gave no reason");
    let failed = |how: &str| Some(Outcome::Returned { content: format!("{target} {how}: {said}"), is_error: true });
    match task.state {
        TaskState::Completed => {
            let text = result_text(&task.artifacts);
            let content = if text.is_empty() { task.status_text.clone().unwrap_or_default() } else { text };
            Some(Outcome::Returned { content: cut(content), is_error: false })
        }
        TaskState::Failed => failed("failed"),
        TaskState::Canceled => failed("was canceled"),
        TaskState::Rejected => failed("would not do it"),
        TaskState::Submitted | TaskState::Working | TaskState::InputRequired | TaskState::AuthRequired => None,
    }
}

/// The result of a task. Agents of Towline show each answer of their model as an artifact of that name: the last one is
/// the result.
fn result_text(artifacts: &[Artifact]) -> String {
    match artifacts.last() {
        Some(last) if last.name.as_deref() == Some(crate::task_run::ANSWER) => last.text(),
        Some(_) | None => {
            let texts: Vec<String> = artifacts.iter().map(Artifact::text).filter(|text| !text.is_empty()).collect();
            texts.join("\n\n")
        }
    }
}

fn cut(mut text: String) -> String {
    if text.len() > MAX_RESULT_BYTES {
        let end = (0..=MAX_RESULT_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push_str("\n[cut: the result is longer]");
    }
    text
}

/// What a peer asks its client.
fn asks(task: &RemoteTask) -> News {
    News::Asks { question: question(task), auth: task.state == TaskState::AuthRequired }
}

/// What a step comes to that only sends.
fn sent(target: &str, task: &str) -> News {
    let content = format!("{target} has it as task {task}; `wait` returns what comes of it");
    News::Ended(Outcome::Returned { content, is_error: false })
}

fn question(task: &RemoteTask) -> String {
    task.status_text.clone().unwrap_or_else(|| match task.state {
        TaskState::AuthRequired => "the agent asks for credentials".to_owned(),
        TaskState::InputRequired
        | TaskState::Submitted
        | TaskState::Working
        | TaskState::Completed
        | TaskState::Failed
        | TaskState::Canceled
        | TaskState::Rejected => "the agent asks for input".to_owned(),
    })
}

/// What a failed call means for the delegation.
enum Trouble {
    /// Trying again may help, and does no harm once the peer's task is known.
    Passing { error: ClientError, at_least: Option<Duration> },
    /// It ends the delegation.
    Final(Outcome),
}

fn trouble(target: &str, error: ClientError) -> Trouble {
    let last = |error_type: String, message: String| {
        Trouble::Final(Outcome::Failed { error_type, message: format!("delegate to {target}: {message}") })
    };
    match error {
        ClientError::Unreachable { .. } | ClientError::Broken { .. } | ClientError::Timeout { .. } => {
            Trouble::Passing { error, at_least: None }
        }
        ClientError::Protocol { retry_after: Some(after), .. } => Trouble::Passing { error, at_least: Some(after) },
        ClientError::Protocol { .. } if error.is_unavailable() => Trouble::Passing { error, at_least: None },
        ClientError::Protocol { .. }
        | ClientError::Auth { .. }
        | ClientError::Http { .. }
        | ClientError::Malformed { .. } => last(error.error_type(), error.to_string()),
    }
}

/// Gets the peer's task, and says what it means.
async fn look(client: &A2aClient, target: &str, task: &str, trace: &TraceContext) -> Result<Look, Trouble> {
    let task = client.get_task(task, Some(0), Some(trace)).await.map_err(|error| trouble(target, error))?;
    Ok(what_of(target, task))
}

fn what_of(target: &str, task: RemoteTask) -> Look {
    if let Some(outcome) = outcome(target, &task) {
        return Look::Ended(outcome, Box::new(task));
    }
    if task.state.is_interrupted() { Look::Asks(Box::new(task)) } else { Look::Works }
}

enum Look {
    Ended(Outcome, Box<RemoteTask>),
    Asks(Box<RemoteTask>),
    Works,
}

/// The client's answer as a message to the peer's task.
fn answer_message(job: &Job, answer: &Message) -> Message {
    let id = format!("{}/{}", crate::toolbox::step_key(job.task, job.step), answer.message_id);
    Message {
        // A long id of the client falls back on the client's own, which is as unique.
        message_id: id.try_into().unwrap_or_else(|_| answer.message_id.clone()),
        context_id: None,
        task_id: None,
        reference_task_ids: Vec::new(),
        ..answer.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towline_core::{Metadata, Part};

    fn remote(state: TaskState, artifacts: Vec<Artifact>, status: Option<&str>) -> RemoteTask {
        RemoteTask {
            id: "t".into(),
            context_id: "c".into(),
            state,
            status_text: status.map(str::to_owned),
            artifacts,
            history: vec![],
            generation: None,
            metadata: Metadata::new(),
            raw: serde_json::Value::Null,
        }
    }

    fn artifact(name: &str, text: &str) -> Artifact {
        Artifact {
            artifact_id: text.into(),
            name: Some(name.into()),
            description: None,
            parts: vec![Part::text(text)],
            metadata: Metadata::new(),
        }
    }

    #[test]
    fn the_last_answer_of_an_agent_of_towline_is_its_result() {
        let task = remote(TaskState::Completed, vec![artifact("answer", "let me see"), artifact("answer", "42")], None);
        let expected = Outcome::Returned { content: "42".into(), is_error: false };
        assert_eq!(outcome("reader", &task), Some(expected));
    }

    #[test]
    fn all_artifacts_of_a_foreign_agent_are_its_result() {
        let task = remote(TaskState::Completed, vec![artifact("a", "one"), artifact("b", "two")], None);
        let expected = Outcome::Returned { content: "one\n\ntwo".into(), is_error: false };
        assert_eq!(outcome("legal", &task), Some(expected));
    }

    #[test]
    fn a_failed_task_is_an_observation_with_its_reason() {
        let task = remote(TaskState::Failed, vec![], Some("no such file"));
        let expected = Outcome::Returned { content: "reader failed: no such file".into(), is_error: true };
        assert_eq!(outcome("reader", &task), Some(expected));
        assert_eq!(outcome("reader", &remote(TaskState::Working, vec![], None)), None);
    }
}

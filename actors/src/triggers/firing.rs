//! How a trigger starts a task: one command, which is proposed until its outcome is known.

use std::time::Duration;
use towline_cluster::{BlobError, ClusterHandle, ProposeError};
use towline_core::{
    Command, ContextId, Fire, Labels, Message, Metadata, Occasion, Part, Principal, Proposal, Rejection, Reply, Role,
    Submission, TaskId, TraceContext, TriggerChange, TriggerReport, TriggerSource, TriggerSpec,
};
use towline_trace::{Kind, Span, names};

use crate::prompt;

/// Wait before a command whose outcome is not known is proposed again: an election takes about a second.
const PAUSE: Duration = Duration::from_millis(500);

/// Metadata of the message that a trigger starts a task with: which trigger, and why.
pub const TRIGGER_KEY: &str = "dev.towline/trigger";

/// Label of its tasks, which MCP servers are told.
const LABEL: &str = "trigger";

/// What happened, as the agent is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Where the text is from, in a few words.
    pub source: String,
    /// What was said: text from outside.
    pub text: String,
}

/// Why a trigger did not fire.
#[derive(Debug, thiserror::Error)]
pub enum FireError {
    /// The cluster says no.
    #[error(transparent)]
    Refused(#[from] Rejection),
    /// There is nobody to ask.
    #[error(transparent)]
    Unavailable(ProposeError),
    /// A large content could not be kept.
    #[error("keep what happened: {0}")]
    NotKept(#[from] BlobError),
}

/// Fires once, and says so if the outcome is not known: to fire again with the same occasion changes nothing.
///
/// # Errors
/// When there is no task.
pub async fn fire(
    cluster: &ClusterHandle,
    by: Principal,
    spec: &TriggerSpec,
    occasion: Occasion,
    (event, skipped): (Option<Event>, u64),
) -> Result<(TaskId, bool), FireError> {
    let proposal = proposal(cluster, by, spec, occasion, (event, skipped)).await?;
    propose(cluster, spec, proposal).await
}

/// Fires, and tries until there is an outcome.
pub(crate) async fn fire_surely(
    cluster: &ClusterHandle,
    spec: &TriggerSpec,
    occasion: Occasion,
    (event, skipped): (Option<Event>, u64),
) -> Result<(TaskId, bool), FireError> {
    let by = Principal::Node(cluster.node_id());
    let proposal = proposal(cluster, by, spec, occasion, (event, skipped)).await?;
    loop {
        match propose(cluster, spec, proposal.clone()).await {
            Err(FireError::Unavailable(error)) => tracing::debug!(%error, trigger = %spec.name, "fires again"),
            outcome => return outcome,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Tells what was seen, and tries until it was heard.
///
/// # Errors
/// When another node looks after the trigger by now.
pub(crate) async fn report_surely(cluster: &ClusterHandle, report: TriggerReport) -> Result<(), Rejection> {
    let change = TriggerChange::Report(report);
    let proposal = Proposal { by: Principal::Node(cluster.node_id()), command: Command::Trigger(Box::new(change)) };
    loop {
        match cluster.propose(proposal.clone(), None).await {
            Ok(_) => return Ok(()),
            Err(ProposeError::Rejected(rejection)) => return Err(rejection),
            Err(error @ (ProposeError::Unavailable { .. } | ProposeError::Unknown { .. })) => {
                tracing::debug!(%error, "what a trigger saw is told again");
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn propose(
    cluster: &ClusterHandle,
    spec: &TriggerSpec,
    (proposal, trace): (Proposal, TraceContext),
) -> Result<(TaskId, bool), FireError> {
    match cluster.propose(proposal, Some(&trace)).await {
        Ok(Reply::Submitted { task, created }) => {
            if created {
                tracing::info!(event = "trigger.fired", trigger = %spec.name, agent = %spec.agent, %task, "trigger fired");
            }
            Ok((task, created))
        }
        // It had fired for that, and its task is forgotten by now.
        Ok(Reply::Done | Reply::Continued { .. } | Reply::Enrolled { .. }) => {
            Err(FireError::Refused(Rejection::UnknownTrigger { name: spec.name.clone() }))
        }
        Err(ProposeError::Rejected(rejection)) => Err(FireError::Refused(rejection)),
        Err(error @ (ProposeError::Unavailable { .. } | ProposeError::Unknown { .. })) => {
            Err(FireError::Unavailable(error))
        }
    }
}

async fn proposal(
    cluster: &ClusterHandle,
    by: Principal,
    spec: &TriggerSpec,
    occasion: Occasion,
    (event, skipped): (Option<Event>, u64),
) -> Result<(Proposal, TraceContext), FireError> {
    let mut span = Span::root(format!("{} {}", names::span::TRIGGER, spec.name), Kind::Internal);
    span.set(names::AGENT_NAME, spec.agent.to_string());
    let trace = span.context();
    span.end();
    let mut message = message(spec, &occasion, event);
    cluster.keep_message(&mut message).await?;
    let submission = Submission {
        task: TaskId::from_uuid(uuid::Uuid::now_v7()),
        fresh_context: fresh_context(),
        agent: spec.agent.clone(),
        message,
        prefer: cluster.node_id(),
        parent: None,
        hop: 0,
        deadline_ms: None,
        trace,
        most_open: None,
        labels: Labels::from([(LABEL.to_owned(), spec.name.to_string())]),
    };
    let fire = Fire { name: spec.name.clone(), occasion, skipped, submission };
    Ok((Proposal { by, command: Command::Trigger(Box::new(TriggerChange::Fire(Box::new(fire)))) }, trace))
}

fn fresh_context() -> ContextId {
    ContextId::try_from(uuid::Uuid::now_v7().to_string()).expect("a UUID is printable")
}

/// What the agent is told: the operator's words, and behind a fence what was said outside.
fn message(spec: &TriggerSpec, occasion: &Occasion, event: Option<Event>) -> Message {
    let mut parts = vec![Part::text(spec.prompt.clone())];
    parts.retain(|part| part.size() > 0);
    if let Some(Event { source, text }) = event {
        parts.push(Part::text(prompt::fence(&source, &text)));
    }
    if parts.is_empty() {
        parts.push(Part::text(format!("trigger {} fired", spec.name)));
    }
    let mut about = serde_json::json!({ "name": spec.name.as_str() });
    let mut say = |key: &str, value: serde_json::Value| {
        about[key] = value;
    };
    match &spec.source {
        TriggerSource::Resource(source) => {
            say("server", source.server.clone().into());
            say("uri", source.uri.clone().into());
        }
        TriggerSource::Schedule { .. } | TriggerSource::Webhook => {}
    }
    match occasion {
        Occasion::Change { seen, .. } => say("content", seen.clone().into()),
        Occasion::Tick { at, .. } => say("tick", at.0.into()),
        Occasion::Call { key } => say("key", key.clone().into()),
        Occasion::Hand { .. } => say("byHand", true.into()),
    }
    Message {
        message_id: occasion.message_id(&spec.name).try_into().unwrap_or_else(|_| fresh_message_id()),
        context_id: None,
        task_id: None,
        role: Role::User,
        parts,
        metadata: Metadata::from([(TRIGGER_KEY.to_owned(), about)]),
        extensions: Vec::new(),
        reference_task_ids: Vec::new(),
    }
}

/// Stands in until the cluster refuses the occasion, whose key is too long.
fn fresh_message_id() -> towline_core::MessageId {
    uuid::Uuid::now_v7().to_string().try_into().expect("a UUID is printable")
}

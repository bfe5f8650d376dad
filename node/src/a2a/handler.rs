//! What a request asks, and how it is answered.
//!
//! [`decide`] is pure: it turns a request into a [`Decision`], in which the moment of the reply is data. [`perform`] does
//! what was decided, through the cluster.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use towline_a2a::{
    WireError,
    convert::{self, Answer, ListRequest, SendRequest, TaskView},
};
use towline_cluster::{ClusterHandle, ProposeError, Unavailable};
use towline_core::{
    AgentName, BUDGET_KEY, Budget, Command, ContextId, DEADLINE_KEY, Message, NodeId, Principal, Proposal, Rejection,
    Reply, State, Submission, Task, TaskId, TraceContext, WebhookConfig, deadline_in,
};
use towline_trace::{Kind, Span, names};

use super::{
    A2aSettings, Binding, Door, blobs,
    call::{Call, decode},
    cards, chain,
    extensions::{Active, Condition},
    principal::Caller,
    push::{self, PushCall, PushMethod},
    stream::{AtInput, Streamed, TaskStream, may_subscribe},
    structured, visitor,
};
use crate::auth::{self, StreamPlace};

/// How long `SendMessage` waits for the end of a task. Then it answers with the task as it stands: proxies and clients
/// give up on calls that take longer, and would not learn the task's id.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// A request, who asks, and where.
pub(super) struct Asked<'a> {
    /// The agent in the path; none is the front door.
    pub agent: Option<&'a str>,
    /// Who asks.
    pub caller: Caller,
    /// Over which binding.
    pub binding: Binding,
    /// The request.
    pub call: Call,
    /// The `Last-Event-ID` header.
    pub last_event_id: Option<u64>,
    /// How fresh a read has to be, as it was asked for in the query.
    pub consistency: Option<String>,
    /// The extensions that it activates.
    pub active: Active,
    /// Which listener it came through.
    pub door: Door,
    /// What it says of the generation of its task.
    pub condition: Condition,
    /// The span of the HTTP request.
    pub http: TraceContext,
}

/// The answer to a request.
pub(super) enum Outcome {
    /// One result.
    Answer(Value),
    /// A stream of events.
    Stream(Streamed),
}

impl From<TaskStream> for Outcome {
    fn from(stream: TaskStream) -> Self {
        Outcome::Stream(Streamed::Task(Box::new(stream)))
    }
}

/// What is to be done with a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Decision {
    /// Have a command committed, then answer.
    Propose {
        /// The command.
        command: Command,
        /// When to answer, and with what.
        reply_on: ReplyOn,
        /// Where its client wants to be told of the task.
        push: Option<Box<WebhookConfig>>,
    },
    /// Answer from what is committed.
    Reply(Query),
    /// About the webhooks of a task.
    Push(PushCall),
}

/// When a proposal is answered.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ReplyOn {
    /// At once, with the bare task: `CancelTask`.
    Applied,
    /// At once, with the task as `SendMessage` shows it.
    Accepted(TaskView),
    /// When the task has ended or waits for its client.
    Settled(TaskView),
    /// With a stream of the events behind this index; none: with the task as it stands, and what follows.
    Stream {
        /// The last event that the client knows.
        after: Option<u64>,
    },
}

/// How fresh a read is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Consistency {
    /// It shows everything that was committed before it was asked for.
    Linearizable,
    /// It shows what this node has applied: stale perhaps, and at once, also without a quorum.
    Local,
}

/// What is read.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Query {
    /// `GetTask`.
    Task(TaskId, TaskView, Consistency),
    /// `GetTask` of a client that knows the task, and waits for what follows.
    Later {
        /// The task.
        task: TaskId,
        /// How much of it is shown.
        view: TaskView,
        /// The last event that the client knows.
        after: u64,
        /// How long it waits.
        patience: Duration,
    },
    /// `ListTasks`.
    List(ListRequest, Consistency),
    /// `SubscribeToTask`.
    Subscribe {
        /// The task.
        task: TaskId,
        /// The last event that the client knows.
        after: Option<u64>,
    },
    /// `GetExtendedAgentCard`, of an agent or of the mesh.
    ExtendedCard(Option<AgentName>),
}

/// What a decision needs that is not in the request: ids, and the place in the trace.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fresh {
    /// Id of the task, if one is made.
    pub task: TaskId,
    /// Its context, if the client names none.
    pub context: ContextId,
    /// This node.
    pub node: NodeId,
    /// The span of the method.
    pub trace: TraceContext,
    /// Most open tasks of one principal, as this node is told.
    pub most_open: Option<u32>,
    /// Whether push notifications are on.
    pub push: bool,
}

/// Answers a request under a span of its own.
pub(super) async fn handle(
    settings: &Arc<A2aSettings>,
    asked: Asked<'_>,
    metadata_trace: Option<TraceContext>,
    trace: &mut TraceContext,
) -> Result<Outcome, WireError> {
    let method = Method::named(&asked.call.method)?;
    asked.caller.check_method(&asked.call.method)?;
    let agent = named_agent(&asked)?.unwrap_or_else(|| settings.front_door.clone());
    let object_agent = agent.clone();
    let mut span = method_span(&asked, method);
    if let Some(other) = metadata_trace {
        span.link(other, names::link::METADATA);
    }
    let fresh = Fresh {
        task: TaskId::from_uuid(uuid::Uuid::now_v7()),
        context: fresh_context()?,
        node: settings.cluster.node_id(),
        trace: span.context(),
        most_open: settings.most_open,
        push: settings.push.is_some(),
    };
    *trace = span.context();
    let sends = matches!(method, Method::SendMessage | Method::SendStreamingMessage);
    let structured = if sends { structured::read(&asked).transpose() } else { None };
    let is_structured = structured.is_some();
    let answered = match structured {
        // Boxed: a command may be another method.
        Some(Ok(asks)) => Box::pin(structured::perform(settings, &asked, asks, method, trace)).await,
        Some(Err(error)) => Err(error),
        None => match decode(asked.call.size(), || decide(method, &asked, agent, fresh)).await {
            Ok(decision) => perform(settings, &asked, decision, &mut span, trace).await,
            Err(error) => Err(error),
        },
    };
    if let Err(error) = &answered {
        span.fail(error.reason, &error.message);
    }
    if method.changes() && !is_structured {
        let outcome = answered.as_ref().err().map_or("ok", |error| error.reason);
        let object = object_of(&asked, sends.then_some(&object_agent), answered.as_ref().ok());
        auth::audit::method(&asked.caller, &asked.call.method, object.as_deref(), outcome, trace);
    }
    answered
}

/// What a request that changes something is about: a task, for a message behind the agent that it is for, and for a webhook before
/// its name.
fn object_of(asked: &Asked<'_>, agent: Option<&AgentName>, answered: Option<&Outcome>) -> Option<String> {
    let params = &asked.call.params;
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(towline_a2a::shortened);
    let made = answered.and_then(|outcome| match outcome {
        Outcome::Answer(answer) => answer.pointer("/task/id").and_then(text),
        Outcome::Stream(stream) => stream.task().map(|task| task.to_string()),
    });
    match agent {
        Some(agent) => {
            let task = made.or_else(|| params.pointer("/message/taskId").and_then(text));
            Some(task.map_or_else(|| agent.to_string(), |task| format!("{agent}/{task}")))
        }
        None => {
            let named = [&params["taskId"], &params["id"]].into_iter().filter_map(text).collect::<Vec<_>>();
            (!named.is_empty()).then(|| named.join("/"))
        }
    }
}

/// The methods of A2A 1.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    SendMessage,
    SendStreamingMessage,
    GetTask,
    ListTasks,
    CancelTask,
    SubscribeToTask,
    PushConfig(PushMethod),
    GetExtendedAgentCard,
}

impl Method {
    /// Whether it may change something.
    fn changes(self) -> bool {
        match self {
            Method::SendMessage
            | Method::SendStreamingMessage
            | Method::CancelTask
            | Method::PushConfig(PushMethod::Create | PushMethod::Delete) => true,
            Method::GetTask
            | Method::ListTasks
            | Method::SubscribeToTask
            | Method::PushConfig(PushMethod::Get | PushMethod::List)
            | Method::GetExtendedAgentCard => false,
        }
    }

    pub(super) fn named(name: &str) -> Result<Self, WireError> {
        use a2a::methods;
        Ok(match name {
            methods::SEND_MESSAGE => Method::SendMessage,
            methods::SEND_STREAMING_MESSAGE => Method::SendStreamingMessage,
            methods::GET_TASK => Method::GetTask,
            methods::LIST_TASKS => Method::ListTasks,
            methods::CANCEL_TASK => Method::CancelTask,
            methods::SUBSCRIBE_TO_TASK => Method::SubscribeToTask,
            methods::CREATE_PUSH_CONFIG => Method::PushConfig(PushMethod::Create),
            methods::GET_PUSH_CONFIG => Method::PushConfig(PushMethod::Get),
            methods::LIST_PUSH_CONFIGS => Method::PushConfig(PushMethod::List),
            methods::DELETE_PUSH_CONFIG => Method::PushConfig(PushMethod::Delete),
            methods::GET_EXTENDED_AGENT_CARD => Method::GetExtendedAgentCard,
            unknown => return Err(WireError::unknown_method(unknown)),
        })
    }
}

/// The agent that is asked: the path names it or, where a binding has no path of its own, the tenant that a client echoes from
/// the agent's card. None is the front door.
fn named_agent(asked: &Asked<'_>) -> Result<Option<AgentName>, WireError> {
    let tenant = asked.call.params.get("tenant").and_then(Value::as_str).filter(|tenant| !tenant.is_empty());
    let (field, name) = match (asked.agent, tenant) {
        (Some(agent), Some(tenant)) if agent != tenant => {
            let problem = format!("is {:?}, and the path names another agent", towline_a2a::shortened(tenant));
            return Err(convert::Field::new("tenant", problem).into());
        }
        (Some(agent), _) => ("agent", agent),
        (None, Some(tenant)) => ("tenant", tenant),
        (None, None) => return Ok(None),
    };
    let name = name.parse().map_err(|error| convert::Field::new(field, format!("{error}")))?;
    Ok(Some(name))
}

/// Turns a request into a decision. Pure: the same request and the same ids make the same decision.
pub(super) fn decide(method: Method, asked: &Asked<'_>, agent: AgentName, fresh: Fresh) -> Result<Decision, WireError> {
    let params = asked.call.params.clone();
    let consistency = consistency(method, asked.consistency.as_deref())?;
    let (annotated, condition) = (asked.active.annotations, asked.condition);
    match method {
        Method::SendMessage => {
            let request = convert::send_request(params)?;
            let view = TaskView { history: request.history_length, artifacts: true, annotated };
            let reply_on = if request.return_immediately { ReplyOn::Accepted(view) } else { ReplyOn::Settled(view) };
            let push = request.push.clone().map(Box::new);
            let command = conditional(command(request, &asked.caller, agent, fresh)?, condition.exactly)?;
            Ok(Decision::Propose { command, reply_on, push })
        }
        Method::SendStreamingMessage => {
            let request = convert::send_request(params)?;
            // A new task is shown from its first event on; a message to a known one continues from where the task is.
            let from = if request.task.is_none() { Some(0) } else { None };
            let reply_on = ReplyOn::Stream { after: asked.last_event_id.or(from) };
            let push = request.push.clone().map(Box::new);
            let command = conditional(command(request, &asked.caller, agent, fresh)?, condition.exactly)?;
            Ok(Decision::Propose { command, reply_on, push })
        }
        Method::GetTask => {
            let request = convert::get_request(params)?;
            let view = TaskView { history: request.history_length, artifacts: true, annotated };
            let task = task_id(&request.task)?;
            let Some(after) = condition.after else { return Ok(Decision::Reply(Query::Task(task, view, consistency))) };
            Ok(Decision::Reply(Query::Later { task, view, after, patience: condition.patience }))
        }
        Method::ListTasks => {
            let mut request = convert::list_request(params)?;
            request.filter.agent = named_agent(asked)?;
            Ok(Decision::Reply(Query::List(request, consistency)))
        }
        Method::CancelTask => {
            let task = task_id(&convert::task_request(params)?)?;
            let command = conditional(Command::Cancel { task }, condition.exactly)?;
            Ok(Decision::Propose { command, reply_on: ReplyOn::Applied, push: None })
        }
        Method::SubscribeToTask => {
            let task = task_id(&convert::task_request(params)?)?;
            Ok(Decision::Reply(Query::Subscribe { task, after: asked.last_event_id }))
        }
        Method::PushConfig(_) if !fresh.push => Err(WireError::no_push()),
        Method::PushConfig(method) => push::decide(method, params).map(Decision::Push),
        Method::GetExtendedAgentCard => Ok(Decision::Reply(Query::ExtendedCard(named_agent(asked)?))),
    }
}

/// What `?consistency=` means for a method: only what reads once can be asked to read locally.
fn consistency(method: Method, asked: Option<&str>) -> Result<Consistency, WireError> {
    let wrong = |problem: &str| Err(convert::Field::new("consistency", problem).into());
    match (asked, method) {
        (None | Some("linearizable"), _) => Ok(Consistency::Linearizable),
        (Some("local"), Method::GetTask | Method::ListTasks) => Ok(Consistency::Local),
        (Some("local"), _) => wrong("is for GetTask and ListTasks: other methods do not read once"),
        (Some(_), _) => wrong("is not known: local or linearizable"),
    }
}

async fn read<R>(
    cluster: &ClusterHandle,
    consistency: Consistency,
    look: impl FnOnce(&State) -> R,
) -> Result<R, WireError> {
    match consistency {
        Consistency::Linearizable => cluster.read(look).await.map_err(unavailable),
        Consistency::Local => Ok(cluster.local(look)),
    }
}

/// A message makes a task, or continues the one it names.
fn command(request: SendRequest, caller: &Caller, agent: AgentName, fresh: Fresh) -> Result<Command, WireError> {
    if request.push.is_some() && !fresh.push {
        return Err(WireError::no_push());
    }
    let message = request.message;
    if let Some(task) = request.task {
        return Ok(Command::Continue { task: task_id(&task)?, message, trace: fresh.trace });
    }
    let deadline_ms = [caller.deadline_ms, limits_of(&message)?].into_iter().flatten().min();
    Ok(Command::Submit(Box::new(Submission {
        task: fresh.task,
        fresh_context: fresh.context,
        prefer: fresh.node,
        parent: caller.parent.clone(),
        hop: caller.hop.max(chain::length_of(&message)),
        deadline_ms,
        trace: fresh.trace,
        most_open: fresh.most_open,
        labels: caller.standing.labels.as_ref().clone(),
        agent,
        message,
    })))
}

/// When the sender of a message gives up, in milliseconds from now. Refuses that and a budget where they cannot be read: a
/// limit that is passed over would read as one that holds.
fn limits_of(message: &Message) -> Result<Option<u64>, WireError> {
    let wrong = |key: &str, problem: String| convert::Field::new(format!("message.metadata[{key}]"), problem);
    Budget::in_message(message).map_err(|problem| wrong(BUDGET_KEY, problem))?;
    Ok(deadline_in(message).map_err(|problem| wrong(DEADLINE_KEY, problem))?)
}

/// The same command, taken only if the last event of its task is this one.
fn conditional(command: Command, exactly: Option<u64>) -> Result<Command, WireError> {
    let Some(generation) = exactly else { return Ok(command) };
    let of = if let Command::Continue { task, .. } = &command { Some(*task) } else { command.canceled() };
    let Some(task) = of else {
        let problem = "is about a task that there is: the message needs a taskId";
        return Err(convert::Field::new("configuration.ifGenerationMatch", problem).into());
    };
    Ok(Command::IfGeneration { task, generation, then: Box::new(command) })
}

/// An id that is not one of ours belongs to no task.
pub(super) fn task_id(text: &str) -> Result<TaskId, WireError> {
    text.parse().map_err(|_| WireError::unknown_task(text))
}

async fn perform(
    settings: &Arc<A2aSettings>,
    asked: &Asked<'_>,
    decision: Decision,
    span: &mut Span,
    trace: &mut TraceContext,
) -> Result<Outcome, WireError> {
    let principal = &asked.caller.principal;
    let annotated = asked.active.annotations;
    match decision {
        Decision::Push(call) => push::perform(settings, principal, call, span).await.map(Outcome::Answer),
        Decision::Propose { mut command, reply_on, push } => {
            if let Some(config) = &push {
                push::check(settings, config, "configuration.taskPushNotificationConfig.").await?;
            }
            let is_new = matches!(command, Command::Submit(_));
            let place = match reply_on {
                ReplyOn::Stream { .. } => Some(place(settings, asked)?),
                ReplyOn::Applied | ReplyOn::Accepted(_) | ReplyOn::Settled(_) => None,
            };
            chain::check(settings, principal, &command)?;
            blobs::keep(settings, principal, &mut command).await?;
            let task = propose(&settings.cluster, principal, command, &span.context()).await?;
            span.set(names::A2A_TASK_ID, task.to_string());
            if let Some(known) = settings.cluster.local(|state| state.task(task).map(|task| task.trace)) {
                *trace = known;
            }
            if let Some(config) = push {
                // A new task is told from its first event on.
                push::set(settings, principal, task, *config, is_new.then_some(0), span).await?;
            }
            let answer = match reply_on {
                ReplyOn::Applied => {
                    let view = TaskView { annotated, ..TaskView::WHOLE };
                    now(settings, principal, task, |task| convert::task(task, view)).await
                }
                ReplyOn::Accepted(view) => {
                    now(settings, principal, task, |task| convert::send_result(task, view)).await
                }
                ReplyOn::Settled(view) => settled(settings, principal, task, view).await,
                ReplyOn::Stream { after } => {
                    describe(span, &settings.cluster, task);
                    let stream = stream(settings, asked, task, after, AtInput::Ends).at(place);
                    return Ok(stream.under(&span.context()).into());
                }
            };
            describe(span, &settings.cluster, task);
            blobs::shown(settings, answer?).await.map(Outcome::Answer)
        }
        Decision::Reply(Query::Task(task, view, consistency)) => {
            span.set(names::A2A_TASK_ID, task.to_string());
            let record = read(&settings.cluster, consistency, |state| state.record_for(principal, task)).await?;
            let found = settings.cluster.recall(task, record).await.map_err(unavailable)?;
            describe(span, &settings.cluster, task);
            let found = found.ok_or_else(|| WireError::unknown_task(&task.to_string()))?;
            *trace = found.trace;
            blobs::shown(settings, shown_to(principal, &found, view)).await.map(Outcome::Answer)
        }
        Decision::Reply(Query::Later { task, view, after, patience }) => {
            span.set(names::A2A_TASK_ID, task.to_string());
            let found = later(settings, principal, task, after, patience).await?;
            describe(span, &settings.cluster, task);
            *trace = found.trace;
            blobs::shown(settings, shown_to(principal, &found, view)).await.map(Outcome::Answer)
        }
        Decision::Reply(Query::List(request, consistency)) => {
            let view = TaskView { history: request.history_length, artifacts: request.include_artifacts, annotated };
            let look = |state: &State| state.list(principal, &request.filter, request.page_size);
            let listing = read(&settings.cluster, consistency, look).await?;
            if listing.total == 0 {
                check_agent(&settings.cluster, &request)?;
            }
            let archived = settings.cluster.recall_page(listing.archived()).await;
            let page = listing.page(&archived, |task| task.shown_bytes(view.history, view.artifacts));
            blobs::shown(settings, convert::list_result(&page, request.page_size, view)).await.map(Outcome::Answer)
        }
        Decision::Reply(Query::Subscribe { task, after }) => {
            span.set(names::A2A_TASK_ID, task.to_string());
            let record = settings.cluster.read(|state| state.record_for(principal, task)).await.map_err(unavailable)?;
            let found = settings.cluster.recall(task, record).await.map_err(unavailable)?;
            describe(span, &settings.cluster, task);
            let found = found.ok_or_else(|| WireError::unknown_task(&task.to_string()))?;
            *trace = found.trace;
            may_subscribe(found.as_ref(), after)?;
            let place = place(settings, asked)?;
            let stream = stream(settings, asked, task, after, AtInput::EndsAfterItsEvent).at(Some(place));
            Ok(stream.under(&span.context()).into())
        }
        Decision::Reply(Query::ExtendedCard(agent)) => {
            cards::extended(settings, agent, &asked.caller).map(Outcome::Answer)
        }
    }
}

/// A task as its reader sees it: an operator also sees whom it is for, as the configuration says.
fn shown_to(principal: &Principal, task: &Task, view: TaskView) -> Answer {
    let answer = convert::task(task, view);
    if principal.is_operator() { answer.labelled(&task.labels) } else { answer }
}

/// A page of nobody's tasks says that there is no such agent, unless it had tasks.
fn check_agent(cluster: &ClusterHandle, request: &ListRequest) -> Result<(), WireError> {
    let Some(agent) = &request.filter.agent else { return Ok(()) };
    let known: Vec<AgentName> = cluster.local(|state| state.agents().map(|agent| agent.spec.name.clone()).collect());
    if known.contains(agent) {
        return Ok(());
    }
    Err(Rejection::UnknownAgent { agent: agent.clone(), known }.into())
}

/// Has a command committed; the task that it is about.
async fn propose(
    cluster: &ClusterHandle,
    by: &Principal,
    command: Command,
    trace: &TraceContext,
) -> Result<TaskId, WireError> {
    let canceled = command.canceled();
    let reply = cluster.propose(Proposal { by: by.clone(), command }, Some(trace)).await.map_err(not_proposed)?;
    match reply {
        Reply::Submitted { task, .. } | Reply::Continued { task } => Ok(task),
        Reply::Done => canceled.ok_or_else(|| WireError::internal("a message was answered without a task")),
        Reply::Enrolled { .. } => Err(WireError::internal("a message was answered with a node")),
    }
}

/// The task as it stands on this node, which has applied what was proposed. Who was only asked, and has answered, is shown its
/// state and nothing else.
async fn now(
    settings: &A2aSettings,
    principal: &Principal,
    task: TaskId,
    show: impl FnOnce(&Task) -> Answer,
) -> Result<Answer, WireError> {
    let found = settings.cluster.local_task(task).await.map_err(unavailable)?;
    let found = found.ok_or_else(|| WireError::unknown_task(&task.to_string()))?;
    if principal.may_act_on(&found.owner) {
        return Ok(show(&found));
    }
    Ok(show(&visitor::bare(&found)))
}

/// The task once it has ended or waits for its client; as it stands after [`MAX_WAIT`], or when the node stops.
async fn settled(
    settings: &A2aSettings,
    principal: &Principal,
    task: TaskId,
    view: TaskView,
) -> Result<Answer, WireError> {
    let mut watch = settings.cluster.watch_task(task);
    let limit = tokio::time::sleep(MAX_WAIT);
    tokio::pin!(limit);
    loop {
        let is_settled = settings.cluster.local(|state| {
            let task = state.task(task);
            task.is_none_or(|task| task.status.state.is_terminal() || task.status.state.is_interrupted())
        });
        let go_on = !is_settled
            && tokio::select! {
                () = watch.changed() => true,
                () = &mut limit => false,
                () = settings.stopping.cancelled() => false,
            };
        if !go_on {
            return now(settings, principal, task, |task| convert::send_result(task, view)).await;
        }
    }
}

/// The task once it has an event behind `after`, or has ended; as it stands when the client's patience is over, or the node
/// stops.
async fn later(
    settings: &A2aSettings,
    principal: &Principal,
    task: TaskId,
    after: u64,
    patience: Duration,
) -> Result<Arc<Task>, WireError> {
    let cluster = &settings.cluster;
    let mut watch = cluster.watch_task(task);
    let limit = tokio::time::sleep(patience);
    tokio::pin!(limit);
    let mut record = cluster.read(|state| state.record_for(principal, task)).await.map_err(unavailable)?;
    loop {
        let found = cluster.recall(task, record).await.map_err(unavailable)?;
        let found = found.ok_or_else(|| WireError::unknown_task(&task.to_string()))?;
        if found.generation > after || found.status.state.is_terminal() {
            return Ok(found);
        }
        tokio::select! {
            () = watch.changed() => {}
            () = &mut limit => return Ok(found),
            () = settings.stopping.cancelled() => return Ok(found),
        }
        record = cluster.local(|state| state.record_for(principal, task));
    }
}

fn stream(
    settings: &Arc<A2aSettings>,
    asked: &Asked<'_>,
    task: TaskId,
    after: Option<u64>,
    at_input: AtInput,
) -> TaskStream {
    let principal = asked.caller.principal.clone();
    let binding = asked.binding.clone();
    let owns = |state: &State| state.task_for(&principal, task).is_some() || state.stub_for(&principal, task).is_some();
    let visits = !settings.cluster.local(owns);
    let stream = TaskStream::new(Arc::clone(settings), principal, task, binding, after, at_input);
    stream.annotated(asked.active.annotations).of_visitor(visits)
}

/// A place for a stream, before anything is done for it.
pub(super) fn place(settings: &A2aSettings, asked: &Asked<'_>) -> Result<StreamPlace, WireError> {
    settings.auth.stream(&asked.caller).map_err(|refusal| refusal.to_wire())
}

fn method_span(asked: &Asked<'_>, method: Method) -> Span {
    let name = match method {
        Method::SendMessage => names::span::SEND_MESSAGE,
        Method::SendStreamingMessage => names::span::SEND_STREAMING_MESSAGE,
        Method::GetTask => names::span::GET_TASK,
        Method::ListTasks => names::span::LIST_TASKS,
        Method::CancelTask => names::span::CANCEL_TASK,
        Method::SubscribeToTask => names::span::SUBSCRIBE_TO_TASK,
        Method::PushConfig(method) => method.name(),
        Method::GetExtendedAgentCard => a2a::methods::GET_EXTENDED_AGENT_CARD,
    };
    let mut span = Span::child(name, Kind::Server, &asked.http);
    span.set(names::A2A_METHOD_NAME, name);
    span.set(names::A2A_PROTOCOL_VERSION, towline_a2a::PROTOCOL_VERSION);
    if let Binding::JsonRpc { id } = &asked.binding {
        span.set(names::JSONRPC_REQUEST_ID, id.as_str().map_or_else(|| id.to_string(), str::to_owned));
    }
    if let Some(message) = asked.call.params.get("message")
        && let Some(id) = message.get("messageId").and_then(Value::as_str)
    {
        span.set(names::A2A_MESSAGE_ID, id.to_owned());
    }
    span
}

/// Notes on the span which task was answered for, and where it stands.
fn describe(span: &mut Span, cluster: &ClusterHandle, task: TaskId) {
    let known = cluster.local(|state| {
        let live = state.task(task).map(|task| (task.context.to_string(), task.agent.to_string(), task.status.state));
        live.or_else(|| state.stub(task).map(|stub| (stub.context.to_string(), stub.agent.to_string(), stub.state)))
    });
    if let Some((context, agent, state)) = known {
        span.set(names::GEN_AI_CONVERSATION_ID, context);
        span.set(names::GEN_AI_AGENT_NAME, agent);
        span.set(names::A2A_TASK_STATE, convert::state_name(state));
    }
}

fn fresh_context() -> Result<ContextId, WireError> {
    uuid::Uuid::now_v7().to_string().try_into().map_err(WireError::internal)
}

/// What a client is told when its command has no answer.
pub(super) fn not_proposed(error: ProposeError) -> WireError {
    match error {
        ProposeError::Rejected(rejection) => rejection.into(),
        ProposeError::Unavailable { reason, retry_after } => WireError::unavailable(reason).retry_after(retry_after),
        ProposeError::Unknown { reason, .. } => WireError::outcome_unknown(reason),
    }
}

/// What a client is told when nothing can be read.
pub(super) fn unavailable(error: Unavailable) -> WireError {
    WireError::unavailable(error.reason)
}

#[cfg(test)]
#[expect(clippy::wildcard_enum_match_arm, reason = "anything else fails the test")]
mod tests;

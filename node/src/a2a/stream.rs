//! The events of a task as server-sent events: what a subscriber sees, in order, without a gap or a duplicate.
//!
//! A stream holds no queue. It remembers the index of the last event that it sent and reads what follows from the
//! replicated state, or from the archive once the task is there, a page at a time, so a slow client costs one page and a
//! lost wake-up costs nothing. Each frame is a `StreamResponse`, in JSON-RPC inside an answer; its SSE id is the event's
//! index. Over gRPC the same stream is read item by item.
//!
//! | the client knows event n | it is sent |
//! |---|---|
//! | n is retained, or the one before the first retained | n+1, n+2 … |
//! | older than that, or beyond the last event | the task as it stands (id = its last event), then what follows |
//! | nothing | the same |
//! | a new task | everything from event 1 |
//!
//! It ends behind the terminal event, and behind the event that asks for input: the client has to act then. It stays open
//! while a task waits for credentials (spec 7.6). A client that goes away changes nothing for the task.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    response::{IntoResponse, Response},
};
use http::header;
use serde_json::Value;
use towline_a2a::{
    WireError,
    convert::{self, Answer, TaskView},
};
use towline_cluster::TaskWatch;
use towline_core::{Event, EventKind, Part, Principal, Record, Task, TaskId, TaskState, TraceContext};
use towline_trace::{Kind, Span, names};

use super::{A2aSettings, Binding, blobs, jsonrpc::envelope, structured::FeedStream, visitor};
use crate::auth::StreamPlace;

/// How often a silent stream shows that it is alive, so that proxies and clients do not take it for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Wait before content that no node gave is asked for again: a node that held it may be starting.
const CONTENT_PAUSE: Duration = Duration::from_secs(1);

/// Most events that are copied out of the state at once.
const PAGE_EVENTS: usize = 64;

/// Most bytes of content that are copied out of the state at once, if it is more than one event.
const PAGE_BYTES: usize = 512 * 1024;

/// Whether a stream ends when its task waits for input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AtInput {
    /// Yes: the client sent a message and has to answer the question.
    Ends,
    /// Once it has shown the event that says so. A subscriber that came later waits for what follows.
    EndsAfterItsEvent,
}

/// What was sent last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    Nothing,
    Snapshot,
    Event,
}

/// What to send next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The task as it stands.
    Snapshot,
    /// The events from this index on.
    Events { from: u64 },
    /// Nothing for now.
    Nothing,
}

/// What to send to a client that knows all events up to `after`, of a task whose last event is `generation` and whose
/// oldest retained one is `first_retained`.
pub(super) fn next(after: Option<u64>, generation: u64, first_retained: u64) -> Next {
    match after {
        Some(after) if after == generation => Next::Nothing,
        Some(after) if after < generation && after + 1 >= first_retained => Next::Events { from: after + 1 },
        Some(_) | None => Next::Snapshot,
    }
}

/// Whether a stream that has sent everything ends here.
pub(super) fn is_over(state: TaskState, sent: Sent, at_input: AtInput) -> bool {
    match state {
        TaskState::Completed | TaskState::Failed | TaskState::Canceled | TaskState::Rejected => true,
        TaskState::InputRequired => match at_input {
            AtInput::Ends => true,
            AtInput::EndsAfterItsEvent => sent == Sent::Event,
        },
        TaskState::Submitted | TaskState::Working | TaskState::AuthRequired => false,
    }
}

/// A task that has ended cannot be subscribed to (spec 3.1.6), unless it is to send the rest to a client that says how
/// far it got.
pub(super) fn may_subscribe(task: &Task, after: Option<u64>) -> Result<(), WireError> {
    let has_rest = after.is_some_and(|after| after != task.generation);
    if task.status.state.is_terminal() && !has_rest {
        let state = convert::state_name(task.status.state);
        return Err(WireError::unsupported(format!("task {} has ended as {state}: use GetTask", task.id)));
    }
    Ok(())
}

/// One stream of one task.
pub(super) struct TaskStream {
    settings: Arc<A2aSettings>,
    principal: Principal,
    task: TaskId,
    binding: Binding,
    at_input: AtInput,
    watch: TaskWatch,
    after: Option<u64>,
    sent: Sent,
    annotated: bool,
    /// Whether the task is another's, who had it ask this principal: what that one may see depends on whether it still does.
    visits: bool,
    page: VecDeque<(u64, Answer)>,
    /// The record from the archive: it does not change any more.
    archived: Option<Arc<Task>>,
    /// Its place among those of its principal, until it ends.
    place: Option<StreamPlace>,
    /// Its span, until it ends.
    span: Option<Span>,
}

/// What a stream says next.
pub(super) enum Item {
    /// An event, or the task as it stands, and the index of the last event in it.
    Event(u64, Value),
    /// Something that is no place to go on from.
    Unnumbered(Value),
    /// It is alive, and has nothing to say.
    Silence,
}

enum Page {
    Frames(VecDeque<(u64, Answer)>, Sent),
    Nothing,
    /// There are events up to this index, and none that may be shown.
    Skipped(u64),
    /// Its record is on no node that answers now.
    Later,
    Over,
}

impl TaskStream {
    pub(super) fn new(
        settings: Arc<A2aSettings>,
        principal: Principal,
        task: TaskId,
        binding: Binding,
        after: Option<u64>,
        at_input: AtInput,
    ) -> Self {
        let watch = settings.cluster.watch_task(task);
        let (sent, page) = (Sent::Nothing, VecDeque::new());
        let (annotated, visits, archived, place, span) = (false, false, None, None, None);
        Self {
            settings,
            principal,
            task,
            binding,
            at_input,
            watch,
            after,
            sent,
            annotated,
            visits,
            page,
            archived,
            place,
            span,
        }
    }

    /// The same, with its place among those of its principal.
    pub(super) fn at(mut self, place: Option<StreamPlace>) -> Self {
        self.place = place;
        self
    }

    /// The same, with a span below that of the request, from now on until it ends.
    pub(super) fn under(mut self, request: &TraceContext) -> Self {
        let mut span = Span::child(names::span::STREAM, Kind::Internal, request);
        span.set(names::A2A_TASK_ID, self.task.to_string());
        self.span = Some(span);
        self
    }

    /// Whether the task, where it is shown as a whole, says where it stands inside the mesh.
    pub(super) fn annotated(mut self, annotated: bool) -> Self {
        self.annotated = annotated;
        self
    }

    /// Whether it is for somebody who was asked something about another's task, and has been let see it.
    pub(super) fn of_visitor(mut self, visits: bool) -> Self {
        self.visits = visits;
        self
    }

    /// What it says next; none at the end.
    pub(super) async fn next(&mut self) -> Option<Item> {
        loop {
            if let Some((index, mut answer)) = self.page.pop_front() {
                if let Err(error) = blobs::show(&self.settings, &mut answer).await {
                    tracing::warn!(task = %self.task, index, %error, "an event is shown once its content can be read");
                    self.page.push_front((index, answer));
                    if self.is_stopping_within(CONTENT_PAUSE).await {
                        return None;
                    }
                    return Some(Item::Silence);
                }
                self.after = Some(index);
                return encoded(index, &answer);
            }
            match self.read_page().await {
                Page::Frames(frames, kind) => {
                    self.page = frames;
                    self.sent = kind;
                }
                Page::Skipped(through) => {
                    self.after = Some(through);
                    self.sent = Sent::Event;
                }
                Page::Over => return None,
                Page::Later => {
                    if self.is_stopping_within(CONTENT_PAUSE).await {
                        return None;
                    }
                    return Some(Item::Silence);
                }
                Page::Nothing => {
                    tokio::select! {
                        () = self.watch.changed() => {}
                        () = self.settings.stopping.cancelled() => return None,
                        () = tokio::time::sleep(KEEP_ALIVE) => return Some(Item::Silence),
                    }
                }
            }
        }
    }

    async fn is_stopping_within(&self, time: Duration) -> bool {
        tokio::time::timeout(time, self.settings.stopping.cancelled()).await.is_ok()
    }

    async fn read_page(&mut self) -> Page {
        if let Some(task) = &self.archived {
            return self.page_of(task, self.visits);
        }
        let cluster = &self.settings.cluster;
        let (record, bare) = cluster.local(|state| match state.record_for(&self.principal, self.task) {
            None if self.visits => (state.record(self.task), true),
            record => (record, false),
        });
        let is_archived = record == Some(Record::Archived);
        match cluster.recall(self.task, record).await {
            Ok(Some(task)) => {
                let next = self.page_of(&task, bare);
                self.archived = is_archived.then_some(task);
                next
            }
            // Swept while it was streamed.
            Ok(None) => Page::Over,
            Err(error) => {
                tracing::warn!(task = %self.task, %error, "a stream goes on once the record can be read");
                Page::Later
            }
        }
    }
}

impl Drop for TaskStream {
    fn drop(&mut self) {
        if let (Some(span), Some(last)) = (&mut self.span, self.after) {
            span.set(names::STREAM_EVENT, i64::try_from(last).unwrap_or(i64::MAX));
        }
    }
}

impl TaskStream {
    fn page_of(&self, task: &Task, bare: bool) -> Page {
        let view = TaskView { annotated: self.annotated, ..TaskView::WHOLE };
        if bare {
            bare_page(task, self.after, self.sent, self.at_input)
        } else {
            page(task, view, self.after, self.sent, self.at_input)
        }
    }
}

/// What is streamed.
pub(super) enum Streamed {
    /// A task.
    Task(Box<TaskStream>),
    /// The events of the cluster.
    Feed(Box<FeedStream>),
    /// One answer, to who asked for a stream.
    Once(Option<Value>, Binding),
}

impl Streamed {
    /// What it says next; none at the end.
    pub(super) async fn next(&mut self) -> Option<Item> {
        match self {
            Streamed::Task(stream) => stream.next().await,
            Streamed::Feed(stream) => stream.next().await,
            Streamed::Once(answer, _) => answer.take().map(Item::Unnumbered),
        }
    }

    /// The task, if it is one.
    pub(super) fn task(&self) -> Option<TaskId> {
        if let Streamed::Task(stream) = self { Some(stream.task) } else { None }
    }

    fn binding(&self) -> &Binding {
        match self {
            Streamed::Task(stream) => &stream.binding,
            Streamed::Feed(stream) => stream.binding(),
            Streamed::Once(_, binding) => binding,
        }
    }
}

impl IntoResponse for Streamed {
    fn into_response(self) -> Response {
        let frames = futures::stream::unfold(self, |mut stream| async move {
            let item = stream.next().await?;
            let bytes = frame(stream.binding(), item);
            Some((Ok::<_, std::convert::Infallible>(bytes), stream))
        });
        let headers = [
            (header::CONTENT_TYPE, "text/event-stream"),
            (header::CACHE_CONTROL, "no-store"),
            (header::HeaderName::from_static("x-accel-buffering"), "no"),
        ];
        (headers, Body::from_stream(frames)).into_response()
    }
}

/// What follows, copied out of the state.
fn page(task: &Task, view: TaskView, after: Option<u64>, sent: Sent, at_input: AtInput) -> Page {
    let first_retained = task.events.front().map_or(task.generation + 1, |event| event.index);
    match next(after, task.generation, first_retained) {
        Next::Snapshot => {
            Page::Frames(VecDeque::from([(task.generation, convert::snapshot(task, view))]), Sent::Snapshot)
        }
        Next::Events { from } => {
            let skipped = usize::try_from(from - first_retained).unwrap_or(usize::MAX);
            Page::Frames(copied(task, skipped), Sent::Event)
        }
        Next::Nothing if is_over(task.status.state, sent, at_input) => Page::Over,
        Next::Nothing => Page::Nothing,
    }
}

/// The same of what a visitor sees that was only asked something, and has answered.
fn bare_page(task: &Task, after: Option<u64>, sent: Sent, at_input: AtInput) -> Page {
    let first_retained = task.events.front().map_or(task.generation + 1, |event| event.index);
    match next(after, task.generation, first_retained) {
        Next::Snapshot => {
            let frame = (task.generation, visitor::snapshot(task, TaskView::WHOLE));
            Page::Frames(VecDeque::from([frame]), Sent::Snapshot)
        }
        Next::Events { from } => {
            let skipped = usize::try_from(from - first_retained).unwrap_or(usize::MAX);
            let (frames, through) = visitor::events(task, skipped, PAGE_EVENTS);
            match through {
                Some(through) if frames.is_empty() => Page::Skipped(through),
                Some(_) | None => Page::Frames(frames, Sent::Event),
            }
        }
        Next::Nothing if is_over(task.status.state, sent, at_input) => Page::Over,
        Next::Nothing => Page::Nothing,
    }
}

fn copied(task: &Task, skipped: usize) -> VecDeque<(u64, Answer)> {
    let mut bytes = 0;
    let mut frames = VecDeque::new();
    for event in task.events.iter().skip(skipped).take(PAGE_EVENTS) {
        bytes += size(event);
        if bytes > PAGE_BYTES && !frames.is_empty() {
            break;
        }
        frames.push_back((event.index, convert::event(task, event)));
    }
    frames
}

fn size(event: &Event) -> usize {
    match &event.kind {
        EventKind::Created => 0,
        EventKind::Status { status, .. } => status.message.as_ref().map_or(0, towline_core::Message::size),
        EventKind::Artifact { parts, .. } => parts.iter().map(Part::size).sum(),
    }
}

fn encoded(index: u64, answer: &Answer) -> Option<Item> {
    match answer.encode() {
        Ok(event) => Some(Item::Event(index, event)),
        Err(error) => {
            tracing::error!(%error, index, "encode an event");
            None
        }
    }
}

/// One server-sent event. JSON text has no line breaks, so its data is one line.
fn frame(binding: &Binding, item: Item) -> Bytes {
    let (index, event) = match item {
        Item::Silence => return Bytes::from_static(b": keep-alive\n\n"),
        Item::Event(index, event) => (Some(index), event),
        Item::Unnumbered(event) => (None, event),
    };
    let data = match binding {
        Binding::JsonRpc { id } => envelope(id.clone(), "result", event),
        Binding::HttpJson | Binding::Grpc => event,
    };
    match index {
        Some(index) => Bytes::from(format!("id: {index}\ndata: {data}\n\n")),
        None => Bytes::from(format!("data: {data}\n\n")),
    }
}

#[cfg(test)]
mod tests;

//! Spans that no node can show any more, drawn from the task records.
//!
//! A span lives in the memory of the node that ran it. When that node is gone, what it had finished is gone too, and the
//! spans below it on other nodes have lost their parent. The log knows better: with each task it holds the span of the
//! request that made it, with each turn and each step the span of its attempt. Those that are missing among the gathered
//! spans are told from there, marked [`names::SPAN_RECOVERED`]. Work that still runs is left out: its span is yet to come.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Value, json};
use towline_cluster::ClusterHandle;
use towline_core::{Intent, NodeId, Outcome, State, Step, Task, TaskId, TaskState, Timestamp};
use towline_trace::{Kind, SpanRecord, names};

/// Most tasks of one trace that are looked at: as many as a listing of a large survey has, and a bound for a request.
const MAX_TASKS: usize = 2_000;

/// Most traces of one task: each is one more question to all nodes.
const MAX_TRACES: usize = 16;

/// Adds the spans that are missing from the trace of a task and known from the records of its family.
pub(crate) fn fill(state: &State, family: &BTreeMap<TaskId, Arc<Task>>, gathered: &[SpanRecord]) -> Vec<SpanRecord> {
    let known: BTreeSet<&str> = gathered.iter().map(|span| span.span_id.as_str()).collect();
    let mut told: BTreeMap<String, SpanRecord> = BTreeMap::new();
    for task in family.values() {
        let teller = Teller { state, family, task };
        for span in teller.spans() {
            if !known.contains(span.span_id.as_str()) {
                told.entry(span.span_id.clone()).or_insert(span);
            }
        }
    }
    told.into_values().collect()
}

/// The task at the top of the chain of delegations and all below it, from the archive as well. What cannot be read is left
/// out: a trace with a gap says more than none.
pub(crate) async fn family(cluster: &ClusterHandle, task: TaskId) -> BTreeMap<TaskId, Arc<Task>> {
    let ids = cluster.local(|state| family_ids(state, task));
    let mut tasks = BTreeMap::new();
    for id in ids {
        match cluster.local_task(id).await {
            Ok(found) => tasks.extend(found.map(|task| (id, task))),
            Err(error) => tracing::debug!(task = %id, %error, "is left out of a trace"),
        }
    }
    let traces = tasks.get(&task).map(|task| traces_of(task)).unwrap_or_default();
    tasks.retain(|_, task| traces.contains(&task.trace.trace_id));
    tasks
}

/// The traces that a task has spans in: that of the request that made it, then those of the requests that woke it.
pub(crate) fn traces_of(task: &Task) -> Vec<u128> {
    let mut traces = vec![task.trace.trace_id];
    let steps = task.journal.iter().map(|step| step.span.trace_id);
    for trace in steps.chain([task.turn.parent.trace_id]) {
        if !traces.contains(&trace) && traces.len() < MAX_TRACES {
            traces.push(trace);
        }
    }
    traces
}

fn family_ids(state: &State, task: TaskId) -> Vec<TaskId> {
    let parent = |id: TaskId| {
        let live = state.task(id).map(|task| task.parent.clone());
        let link = live.or_else(|| state.stub(id).map(|stub| stub.parent)).flatten();
        link.map(|link| link.task).filter(|parent| state.knows_task(*parent))
    };
    let mut top = task;
    while let Some(parent) = parent(top) {
        top = parent;
    }
    let mut ids = vec![top];
    let mut next = 0;
    while let Some(id) = ids.get(next).copied().filter(|_| ids.len() < MAX_TASKS) {
        ids.extend(state.children_ids(id));
        next += 1;
    }
    ids
}

/// The spans of a task that what was done for it lies below: those of its requests, and those of its turns.
pub(crate) fn tops_of(task: &Task) -> Vec<String> {
    let requests = [task.trace, task.turn.parent].into_iter().map(|request| request.span_id);
    let turns = task.journal.iter().map(|step| step.parent_span);
    let ids: BTreeSet<u64> = requests.chain(turns).collect();
    ids.into_iter().map(|id| format!("{id:016x}")).collect()
}

/// These spans and all below them, in the order that they came in.
pub(crate) fn below(spans: Vec<SpanRecord>, tops: &[String]) -> Vec<SpanRecord> {
    let mut children: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for span in &spans {
        children.entry(span.parent_span_id.as_deref().unwrap_or_default()).or_default().push(&span.span_id);
    }
    let mut kept = BTreeSet::new();
    let mut next: Vec<&str> = tops.iter().map(String::as_str).collect();
    while let Some(span) = next.pop() {
        if kept.insert(span.to_owned()) {
            next.extend(children.get(span).into_iter().flatten());
        }
    }
    spans.into_iter().filter(|span| kept.contains(&span.span_id)).collect()
}

struct Teller<'a> {
    state: &'a State,
    family: &'a BTreeMap<TaskId, Arc<Task>>,
    task: &'a Task,
}

impl Teller<'_> {
    fn spans(&self) -> Vec<SpanRecord> {
        let mut spans: Vec<SpanRecord> = self.task.journal.iter().filter_map(|step| self.step(step)).collect();
        if self.task.status.state.is_terminal() {
            spans.push(self.request());
            spans.extend(self.turns());
        }
        spans
    }

    /// The request that made the task. Above it are spans that only the caller's node knew, so it hangs directly below the
    /// step that delegated, or begins a tree of its own.
    fn request(&self) -> SpanRecord {
        let Task { parent, trace, created, status, .. } = self.task;
        let mut span =
            self.span(names::span::SEND_STREAMING_MESSAGE, Kind::Server, trace.span_id, (*created, status.at));
        let delegated = parent.as_ref().and_then(|link| self.family.get(&link.task)?.step(link.step));
        span.parent_span_id = delegated.map(|step| step.span.span_id_hex());
        span.attributes.insert(names::A2A_METHOD_NAME.into(), names::span::SEND_STREAMING_MESSAGE.into());
        span.attributes.insert(names::GEN_AI_AGENT_NAME.into(), self.task.agent.as_str().into());
        span
    }

    fn turns(&self) -> Vec<SpanRecord> {
        let turn = &self.task.turn;
        let name = format!("{} {}", names::span::INVOKE_AGENT, self.task.agent);
        let tell = |span_id: u64, from: Timestamp| {
            let mut span = self.span(&name, Kind::Internal, span_id, (from, self.task.status.at));
            span.trace_id = turn.parent.trace_id_hex();
            span.parent_span_id = Some(turn.parent.span_id_hex());
            span.attributes.insert(names::TURN_NUMBER.into(), turn.number.into());
            span
        };
        let mut spans: Vec<SpanRecord> = turn.span.iter().map(|span| tell(span.span_id, turn.started)).collect();
        if let (Some(last), TaskState::Failed) = (spans.first_mut(), self.task.status.state) {
            last.error = self.task.status.message.as_ref().map(towline_core::Message::text);
        }
        spans.extend(turn.lost.iter().map(|lost| SpanRecord {
            error: Some("its node was lost".to_owned()),
            ..tell(lost.span_id, self.task.created)
        }));
        spans
    }

    fn step(&self, step: &Step) -> Option<SpanRecord> {
        let ended = step.ended.as_ref()?;
        let (name, kind) = match &step.intent {
            Intent::Model { model } => (format!("{} {model}", names::span::CHAT), Kind::Client),
            Intent::Tool { tool, .. } => (format!("{} {tool}", names::span::TOOLS_CALL), Kind::Client),
            Intent::Delegate { target, .. } => (format!("{} {target}", names::span::INVOKE_AGENT), Kind::Client),
            Intent::Ask { .. } => (names::span::ASK_HUMAN.to_owned(), Kind::Internal),
            // It was never done, and has no span of its own.
            Intent::Refused { .. } => return None,
        };
        let mut span = self.span(&name, kind, step.span.span_id, (step.started, ended.at));
        span.trace_id = step.span.trace_id_hex();
        span.parent_span_id = Some(format!("{:016x}", step.parent_span));
        span.attributes.insert(names::STEP_NUMBER.into(), step.no.0.into());
        span.attributes.insert(names::STEP_ATTEMPT.into(), step.attempt.into());
        if let Outcome::Failed { error_type, message } = &ended.outcome {
            span.attributes.insert(names::ERROR_TYPE.into(), error_type.as_str().into());
            span.error = Some(message.clone());
        }
        Some(span)
    }

    fn span(&self, name: &str, kind: Kind, span_id: u64, (from, to): (Timestamp, Timestamp)) -> SpanRecord {
        const US_PER_MS: u64 = 1_000;
        let attributes: BTreeMap<String, Value> = BTreeMap::from([
            (names::SPAN_RECOVERED.to_owned(), json!(true)),
            (names::A2A_TASK_ID.to_owned(), json!(self.task.id.to_string())),
        ]);
        SpanRecord {
            trace_id: self.task.trace.trace_id_hex(),
            span_id: format!("{span_id:016x}"),
            parent_span_id: None,
            name: name.to_owned(),
            kind,
            service: String::new(),
            node: self
                .owner_at(from)
                .and_then(|id| self.state.node(id))
                .map(|node| node.name.clone())
                .unwrap_or_default(),
            start_us: from.0.saturating_mul(US_PER_MS),
            end_us: to.0.max(from.0).saturating_mul(US_PER_MS),
            attributes,
            links: Vec::new(),
            events: Vec::new(),
            error: None,
        }
    }

    /// The node that ran the task at this time, as far as its record tells.
    fn owner_at(&self, at: Timestamp) -> Option<NodeId> {
        let adoptions = &self.task.adoptions;
        let taken = adoptions.iter().rev().find(|adoption| adoption.at <= at).map(|adoption| adoption.to);
        taken.or(adoptions.first().map(|adoption| adoption.from)).or(self.task.ran_on.last().copied())
    }
}

#[cfg(test)]
pub(crate) mod tests;

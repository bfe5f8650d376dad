//! The spans of a run: the turn, its steps, and those that a lost owner could not end.

use towline_core::{Intent, Step, StepNo, TraceContext};
use towline_trace::{KeyValue, Kind, LostSpan, Span, Value, names};

use super::view::View;
use crate::{model::ProviderInfo, shared::Model};

/// GenAI's name of a tool call.
const EXECUTE_TOOL: &str = "execute_tool";

/// Starts the span of this attempt of the turn. An adopted turn stays in the trace of its task, and is linked to the
/// attempts that were lost.
pub(super) fn turn(view: &View, model: Option<&Model>, epoch: u64, waited_ms: u64) -> Span {
    let mut span = Span::child(turn_name(view), Kind::Internal, &view.turn.parent);
    span.set(names::GEN_AI_OPERATION_NAME, names::span::INVOKE_AGENT);
    span.set(names::GEN_AI_AGENT_NAME, view.agent.to_string());
    if let Some(model) = model {
        span.set(names::GEN_AI_REQUEST_MODEL, model.name.clone());
        span.set(names::GEN_AI_PROVIDER_NAME, model.provider.info().name.to_string());
    }
    span.set(names::GEN_AI_CONVERSATION_ID, view.context.to_string());
    span.set(names::A2A_TASK_ID, view.id.to_string());
    span.set(names::TURN_NUMBER, i64::from(view.turn.number));
    span.set(names::LEASE_EPOCH, number(epoch));
    span.set(names::MAILBOX_WAIT_MS, number(waited_ms));
    // A turn that another request has begun is part of that one's trace.
    if view.trace.trace_id != view.turn.parent.trace_id {
        span.link(view.trace, names::link::EARLIER_TURN);
    }
    for lost in view.lost_turns() {
        span.link(lost, names::link::RESUMED_FROM);
    }
    span.event(names::event::LEASE_ACQUIRED, vec![KeyValue::new(names::LEASE_EPOCH, number(epoch))]);
    span
}

fn turn_name(view: &View) -> String {
    format!("{} {}", names::span::INVOKE_AGENT, view.agent)
}

/// Starts the span of a step. Its context goes into the log with the intent.
pub(super) fn step(
    view: &View,
    intent: &Intent,
    (no, attempt): (StepNo, u32),
    turn: &TraceContext,
    provider: Option<&ProviderInfo>,
) -> Span {
    let mut span = Span::child(step_name(intent), step_kind(intent, provider), turn);
    for (key, value) in step_attributes(view, intent) {
        span.set(key, value);
    }
    if let (Intent::Model { .. }, Some(provider)) = (intent, provider) {
        span.set(names::GEN_AI_PROVIDER_NAME, provider.name.to_string());
        if provider.simulated {
            span.set(names::MODEL_SIMULATED, true);
        } else {
            span.set(names::PEER_SERVICE, provider.name.to_string());
        }
    }
    span.set(names::STEP_NUMBER, i64::from(no.0));
    span.set(names::STEP_ATTEMPT, i64::from(attempt));
    span
}

fn step_name(intent: &Intent) -> String {
    match intent {
        Intent::Model { model } => format!("{} {model}", names::span::CHAT),
        Intent::Tool { tool, .. } => format!("{} {tool}", names::span::TOOLS_CALL),
        Intent::Delegate { target, .. } => format!("{} {target}", names::span::INVOKE_AGENT),
        Intent::Ask { .. } => names::span::ASK_HUMAN.to_owned(),
        Intent::Refused { .. } => EXECUTE_TOOL.to_owned(),
    }
}

/// A script that plays a model runs in this process; everything else is on the far side of a wire.
fn step_kind(intent: &Intent, provider: Option<&ProviderInfo>) -> Kind {
    match intent {
        Intent::Model { .. } if provider.is_some_and(|provider| provider.simulated) => Kind::Internal,
        Intent::Model { .. } | Intent::Tool { .. } | Intent::Delegate { .. } => Kind::Client,
        Intent::Ask { .. } | Intent::Refused { .. } => Kind::Internal,
    }
}

fn step_attributes(view: &View, intent: &Intent) -> Vec<(&'static str, Value)> {
    let mut attributes: Vec<(&'static str, Value)> = vec![(names::A2A_TASK_ID, view.id.to_string().into())];
    match intent {
        Intent::Model { model } => attributes.extend([
            (names::GEN_AI_OPERATION_NAME, names::span::CHAT.into()),
            (names::GEN_AI_REQUEST_MODEL, model.clone().into()),
        ]),
        Intent::Tool { call_id, server, tool, .. } => attributes.extend([
            (names::GEN_AI_OPERATION_NAME, EXECUTE_TOOL.into()),
            (names::MCP_METHOD_NAME, names::span::TOOLS_CALL.into()),
            (names::GEN_AI_TOOL_NAME, tool.clone().into()),
            (names::GEN_AI_TOOL_CALL_ID, call_id.clone().into()),
            (names::MCP_SERVER, server.clone().into()),
        ]),
        Intent::Delegate { target, own_mesh, .. } => attributes.extend([
            // Of a peer outside, which has no spans in this trace, Jaeger draws this name.
            (if *own_mesh { names::AGENT_NAME } else { names::PEER_SERVICE }, target.clone().into()),
            (names::GEN_AI_OPERATION_NAME, names::span::INVOKE_AGENT.into()),
            (names::GEN_AI_AGENT_NAME, target.clone().into()),
            (names::GEN_AI_CALLER_TYPE, "agent".into()),
            (names::GEN_AI_CALLER_NAME, view.agent.to_string().into()),
            (names::DELEGATION_DEPTH, i64::from(view.hop + 1).into()),
            (names::A2A_MESSAGE_REFERENCE_TASK_IDS, view.id.to_string().into()),
        ]),
        Intent::Refused { name, call_id } => attributes.extend([
            (names::GEN_AI_OPERATION_NAME, EXECUTE_TOOL.into()),
            (names::GEN_AI_TOOL_NAME, name.clone().into()),
            (names::GEN_AI_TOOL_CALL_ID, call_id.clone().into()),
        ]),
        Intent::Ask { .. } => {}
    }
    attributes
}

/// The spans that a lost owner could not end: of the turn, and of each step that it had open. To be reported once the
/// adopter's turn is committed, so that one adopter reports them.
pub(super) fn lost(view: &View) -> Vec<LostSpan> {
    let Some(turn) = view.turn.span else { return Vec::new() };
    let end_ms = view.adoption.as_ref().map_or(view.now.0, |adoption| adoption.at.0);
    let node = view.adoption.as_ref().map(|adoption| number(adoption.from.0));
    let attributes = |mut attributes: Vec<KeyValue>| {
        attributes.extend(node.map(|node| KeyValue::new(names::SPAN_LOST_NODE, node)));
        attributes
    };
    let mut spans = vec![LostSpan {
        name: turn_name(view),
        kind: Kind::Internal,
        context: turn,
        parent_span_id: view.turn.parent.span_id,
        start_ms: view.turn.started.0,
        end_ms: end_ms.max(view.turn.started.0),
        attributes: attributes(vec![
            KeyValue::new(names::GEN_AI_AGENT_NAME, view.agent.to_string()),
            KeyValue::new(names::A2A_TASK_ID, view.id.to_string()),
        ]),
    }];
    let open = view.journal.iter().filter(|step| step.ended.is_none() && step.parent_span == turn.span_id);
    spans.extend(open.map(|step| lost_step(view, step, end_ms, attributes(Vec::new()))));
    spans
}

fn lost_step(view: &View, step: &Step, end_ms: u64, more: Vec<KeyValue>) -> LostSpan {
    let mut attributes: Vec<KeyValue> =
        step_attributes(view, &step.intent).into_iter().map(|(key, value)| KeyValue::new(key, value)).collect();
    attributes.push(KeyValue::new(names::STEP_NUMBER, i64::from(step.no.0)));
    attributes.push(KeyValue::new(names::STEP_ATTEMPT, i64::from(step.attempt)));
    attributes.extend(more);
    LostSpan {
        name: step_name(&step.intent),
        kind: step_kind(&step.intent, None),
        context: step.span,
        parent_span_id: step.parent_span,
        start_ms: step.started.0,
        end_ms: end_ms.max(step.started.0),
        attributes,
    }
}

/// A number as span attributes hold it.
pub(super) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::tests::{answered, call, ended_tool, step};
    use towline_core::{Adoption, ContextId, Epoch, NodeId, OnAdoption, Principal, TaskId, TaskState, Timestamp, Turn};

    fn context(span_id: u64) -> TraceContext {
        TraceContext { trace_id: 1, span_id, sampled: true }
    }

    fn view(journal: Vec<Step>, span: Option<TraceContext>) -> View {
        View {
            id: TaskId::from_uuid(uuid::Uuid::max()),
            context: ContextId::try_from("c".to_owned()).unwrap(),
            agent: "surveyor".parse().unwrap(),
            owner: Principal::Operator,
            hop: 0,
            created: Timestamp(1),
            is_delegated: false,
            budget: None,
            spent_below: towline_core::Spent::default(),
            deadline: None,
            state: TaskState::Working,
            lease: None,
            trace: context(5),
            adoption: Some(Adoption {
                from: NodeId(1),
                to: NodeId(2),
                epoch: Epoch(9),
                at: Timestamp(90),
                generation: 3,
            }),
            turn: Turn { number: 1, attempt: 1, span, parent: context(5), started: Timestamp(2), lost: vec![] },
            history: vec![],
            journal,
            late_results: vec![],
            outside_input: vec![],
            labels: towline_core::Labels::new(),
            restored: false,
            now: Timestamp(100),
        }
    }

    fn open_tool(no: u32, parent_span: u64) -> Step {
        let intent = Intent::Tool {
            call_id: "b".into(),
            server: "fs".into(),
            tool: "read_file".into(),
            arguments: serde_json::json!({}),
            on_adoption: OnAdoption::Retry,
        };
        Step { parent_span, ..step(no, intent, None) }
    }

    #[test]
    fn an_adopter_reports_the_turn_and_the_open_steps_of_the_lost_owner() {
        let journal =
            vec![answered(0, "", vec![call("a", "x")]), ended_tool(1, "a", "x"), open_tool(2, 77), open_tool(3, 66)];
        let lost = lost(&view(journal, Some(context(77))));
        let seen: Vec<_> = lost.iter().map(|span| (span.name.as_str(), span.parent_span_id, span.end_ms)).collect();
        assert_eq!(seen, [("invoke_agent surveyor", 5, 90), ("tools/call read_file", 77, 90)]);
        assert_eq!(lost[1].context, context(3));
    }

    #[test]
    fn a_turn_that_no_owner_left_behind_has_no_lost_spans() {
        assert!(lost(&view(vec![open_tool(0, 77)], None)).is_empty());
    }
}

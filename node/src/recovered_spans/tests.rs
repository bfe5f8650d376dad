use serde_json::json;
use towline_core::{Command, NodeAddresses, Principal, Proposal, Stamp, Submission};
use towline_trace::{EventRecord, LinkRecord};
use uuid::Uuid;

use super::*;

const TRACE: u128 = 7;

/// A cluster of one node with an open task of agent `a` in trace [`TRACE`], and the log position after it.
pub(crate) fn with_task() -> (State, TaskId) {
    let mut state = State::default();
    let addresses = NodeAddresses { http: "http://127.0.0.1:1".into(), peer: "127.0.0.1:1".into() };
    let found = Command::Found {
        cluster: Uuid::from_u128(1),
        name: "test".into(),
        node_name: "a".into(),
        addresses: addresses.clone(),
    };
    let spec = towline_core::AgentSpec {
        name: "worker".parse().unwrap(),
        description: "Works.".into(),
        placement: towline_core::Placement::EveryNode,
        tags: vec![],
        queue: None,
        labels: towline_core::Labels::new(),
    };
    let up = Command::NodeUp {
        node: NodeId(1),
        boot: towline_core::BootId::from_uuid(Uuid::from_u128(2)),
        addresses,
        version: "0".into(),
        capacity: 8,
        agents: vec![spec],
        labels: None,
        level: 0,
    };
    let task = TaskId::from_uuid(Uuid::from_u128(3));
    let submission = Submission {
        task,
        fresh_context: "c".parse().unwrap(),
        agent: "worker".parse().unwrap(),
        message: towline_core::Message {
            message_id: "m".parse().unwrap(),
            context_id: None,
            task_id: None,
            role: towline_core::Role::User,
            parts: vec![towline_core::Part::text("work")],
            metadata: towline_core::Metadata::new(),
            extensions: vec![],
            reference_task_ids: vec![],
        },
        prefer: NodeId(1),
        parent: None,
        hop: 0,
        deadline_ms: None,
        trace: towline_core::TraceContext { trace_id: TRACE, span_id: 11, sampled: true },
        most_open: None,
        labels: towline_core::Labels::new(),
    };
    let node = || Principal::Node(NodeId(1));
    for (index, (by, command)) in
        (1..).zip([(node(), found), (node(), up), (Principal::Operator, Command::Submit(Box::new(submission)))])
    {
        state.apply(Proposal { by, command }, Stamp { index, at: Timestamp(index * 10) }).unwrap();
    }
    (state, task)
}

pub(crate) fn cancel(state: &mut State, task: TaskId) {
    let proposal = Proposal { by: Principal::Operator, command: Command::Cancel { task } };
    state.apply(proposal, Stamp { index: 9, at: Timestamp(90) }).unwrap();
}

fn span(name: &str, span_id: &str, parent: Option<&str>) -> SpanRecord {
    SpanRecord {
        trace_id: format!("{TRACE:032x}"),
        span_id: span_id.to_owned(),
        parent_span_id: parent.map(str::to_owned),
        name: name.to_owned(),
        kind: Kind::Server,
        service: "towline".into(),
        node: "b".into(),
        start_us: 40_000,
        end_us: 50_000,
        attributes: BTreeMap::from([("raft.index".to_owned(), json!(5))]),
        links: vec![LinkRecord { trace_id: "1".into(), span_id: "2".into(), attributes: BTreeMap::new() }],
        events: vec![EventRecord { name: "e".into(), at_us: 45_000, attributes: BTreeMap::new() }],
        error: Some("refused".into()),
    }
}

#[test]
fn the_request_of_a_task_is_told_once_it_has_ended_and_only_if_no_node_has_its_span() {
    let (mut state, task) = with_task();
    assert_eq!(filled(&state, task, &[]), [], "its span may be yet to come");
    cancel(&mut state, task);
    let told = filled(&state, task, &[]);
    assert_eq!(told.len(), 1, "no turn was begun: {told:?}");
    assert_eq!((told[0].span_id.as_str(), told[0].start_us, told[0].end_us), ("000000000000000b", 30_000, 90_000));
    assert_eq!(told[0].attributes[names::SPAN_RECOVERED], true);
    assert_eq!(told[0].node, "a");
    assert_eq!(filled(&state, task, &[span("SendMessage", "000000000000000b", None)]), []);
}

fn filled(state: &State, task: TaskId, gathered: &[SpanRecord]) -> Vec<SpanRecord> {
    let family = state.task(task).map(|record| (task, Arc::new(record.clone()))).into_iter().collect();
    fill(state, &family, gathered)
}

#[test]
fn below_a_span_is_what_it_led_to_and_nothing_else_of_its_trace() {
    let span = |id: &str, parent: Option<&str>| SpanRecord {
        trace_id: "7".into(),
        span_id: id.into(),
        parent_span_id: parent.map(str::to_owned),
        name: id.into(),
        kind: Kind::Internal,
        service: String::new(),
        node: String::new(),
        start_us: 0,
        end_us: 1,
        attributes: BTreeMap::new(),
        links: Vec::new(),
        events: Vec::new(),
        error: None,
    };
    let spans = vec![
        span("of another", None),
        span("c", Some("b")),
        span("a", Some("of another")),
        span("b", Some("a")),
        span("beside", Some("of another")),
        span("circle 1", Some("circle 2")),
        span("circle 2", Some("circle 1")),
    ];
    let kept: Vec<String> = below(spans.clone(), &["a".to_owned()]).into_iter().map(|span| span.span_id).collect();
    assert_eq!(kept, ["c", "a", "b"]);
    assert_eq!(below(spans, &["circle 1".to_owned()]).len(), 2, "and a circle has an end");
}

use proptest::prelude::*;
use serde_json::json;
use towline_core::{
    AgentName, Command, Event, EventKind, NodeAddresses, NodeId, OwnerReport, OwnerWord, Placement, Proposal, Stamp,
    State, Submission, Task, TraceContext,
};

use super::*;
use crate::{SendOptions, SendReply};

fn params() -> Value {
    json!({ "message": { "messageId": "m-1", "role": "ROLE_USER", "parts": [{ "text": "hello" }] } })
}

fn with(path: &str, value: Value) -> Value {
    let mut params = params();
    *params.pointer_mut(path).unwrap() = value;
    params
}

fn without(path: &str, field: &str) -> Value {
    let mut params = params();
    params.pointer_mut(path).unwrap().as_object_mut().unwrap().remove(field);
    params
}

#[test]
fn a_whole_number_that_would_be_rounded_is_refused_by_its_name_and_says_what_to_do() {
    let part = |data: Value| with("/message/parts", json!([{ "text": "a" }, { "data": data }]));
    for number in [9_007_199_254_740_992_u64, u64::MAX] {
        let refused = send_request(part(json!({ "order": [{ "id": number }] }))).unwrap_err();
        assert_eq!(refused.field, "message.parts[1].data.order[0].id");
        assert!(refused.problem.contains(&format!("send it as a string, \"{number}\"")), "{}", refused.problem);
    }
    let mut in_metadata = params();
    in_metadata["message"]["metadata"] = json!({ "n": i64::MIN });
    assert_eq!(send_request(in_metadata).unwrap_err().field, "message.metadata.n");
    for exact in
        [json!(9_007_199_254_740_991_u64), json!(-9_007_199_254_740_991_i64), json!(1e300), json!("9007199254740993")]
    {
        assert!(send_request(part(json!({ "n": exact }))).is_ok(), "{exact}");
    }
}

#[test]
fn a_request_that_lacks_a_required_field_is_refused_with_its_name() {
    let field_of = |params: Value| send_request(params).unwrap_err().field;
    assert_eq!(field_of(Value::Null), "params");
    assert_eq!(field_of(json!({})), "message");
    assert_eq!(field_of(without("/message", "messageId")), "message.messageId");
    assert_eq!(field_of(with("/message/messageId", json!(""))), "message.messageId");
    assert_eq!(field_of(without("/message", "role")), "message.role");
    assert_eq!(field_of(with("/message/role", json!("ROLE_UNSPECIFIED"))), "message.role");
    assert_eq!(field_of(with("/message/role", json!("ROLE_AGENT"))), "message.role");
    assert_eq!(field_of(without("/message", "parts")), "message.parts");
    assert_eq!(field_of(with("/message/parts", json!([]))), "message.parts");
    assert_eq!(field_of(with("/message/parts", json!([{ "text": "a" }, { "filename": "b" }]))), "message.parts[1]");

    assert_eq!(get_request(json!({})).unwrap_err().field, "id");
    assert_eq!(task_request(json!({ "id": "" })).unwrap_err().field, "id");
    assert_eq!(get_request(json!({ "id": "t", "historyLength": -1 })).unwrap_err().field, "historyLength");
    for size in [0, -1, 101] {
        assert_eq!(list_request(json!({ "pageSize": size })).unwrap_err().field, "pageSize");
    }
    assert_eq!(list_request(json!({ "pageToken": "mine" })).unwrap_err().field, "pageToken");
    assert!(list_request(json!({ "status": 99 })).is_err());
    assert!(list_request(json!({ "status": "TASK_STATE_LATE" })).is_err());
}

#[test]
fn what_other_sdks_write_is_understood() {
    let request = send_request(json!({
        "message": {
            "message_id": "m-1", "role": 1, "context_id": "c-1", "unknownField": { "a": 1 },
            "parts": [{ "data": { "n": 3, "half": 0.5 }, "media_type": "application/json" }],
        },
        "configuration": { "return_immediately": true, "historyLength": 0 },
    }))
    .unwrap();

    assert_eq!(request.message.context_id.as_ref().map(ContextId::as_str), Some("c-1"));
    assert_eq!(request.message.parts[0].content, Content::Data(json!({ "n": 3, "half": 0.5 })));
    assert_eq!(request.message.parts[0].media_type.as_deref(), Some("application/json"));
    assert!(request.return_immediately);
    assert_eq!(request.history_length, Some(0), "zero is not the same as absent");
}

#[test]
fn a_task_id_of_another_server_is_kept_as_it_was_written() {
    let request = send_request(with(
        "/message",
        json!({
            "messageId": "m", "role": "ROLE_USER", "taskId": "not-ours", "parts": [{ "text": "x" }],
        }),
    ))
    .unwrap();
    assert_eq!(request.task.as_deref(), Some("not-ours"));
    assert_eq!(request.message.task_id, None);
}

#[test]
fn data_that_nests_too_deep_is_refused_at_the_door() {
    let deep = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    assert!(send_request(with("/message/parts/0", json!({ "data": deep(MAX_JSON_DEPTH) }))).is_ok());
    let refused = send_request(with("/message/parts/0", json!({ "data": deep(MAX_JSON_DEPTH + 1) }))).unwrap_err();
    assert_eq!(refused.field, "message.parts[0]");
}

#[test]
fn the_deepest_data_that_is_let_in_can_be_shown_again() {
    let deep = (0..MAX_JSON_DEPTH).fold(json!(1), |inner, _| json!({ "level": inner }));
    let (state, id) = state_with_task(vec![Part::data(deep)]);
    let task = state.task(id).unwrap();
    let page = state
        .list(&towline_core::Principal::Operator, &towline_core::ListFilter::default(), 10)
        .page(&std::collections::BTreeMap::new(), |_| 0);
    assert!(list_result(&page, 10, TaskView::WHOLE).encode().is_ok());
    assert!(snapshot(task, TaskView { annotated: true, ..TaskView::WHOLE }).encode().is_ok());
}

#[test]
fn a_page_token_leads_back_to_its_position() {
    let next = (Timestamp(17), TaskId::from_uuid(uuid::Uuid::from_u128(5)));
    let request = list_request(json!({ "pageToken": requests::page_token(next), "pageSize": 7 })).unwrap();
    assert_eq!(request.filter.after, Some(next));
    assert_eq!(request.page_size, 7);
}

#[test]
fn a_listing_without_parameters_has_fifty_tasks_a_page() {
    assert_eq!(list_request(Value::Null).unwrap(), list_request(json!({})).unwrap());
    assert_eq!(list_request(Value::Null).unwrap().page_size, 50);
}

#[test]
fn a_listing_filters_by_time_to_the_millisecond() {
    let at = |text: &str| list_request(json!({ "statusTimestampAfter": text })).unwrap().filter.status_after;
    assert_eq!(at("1970-01-01T00:00:01.500Z"), Some(Timestamp(1_500)));
    assert_eq!(at("1970-01-01T00:00:01.500000001Z"), Some(Timestamp(1_501)));
}

#[test]
fn an_empty_page_has_all_its_required_fields() {
    let state = State::default();
    let page = state
        .list(&towline_core::Principal::Operator, &towline_core::ListFilter::default(), 5)
        .page(&std::collections::BTreeMap::new(), |_| 0);
    assert_eq!(
        list_result(&page, 5, TaskView::WHOLE).encode().unwrap(),
        json!({ "tasks": [], "nextPageToken": "", "pageSize": 5, "totalSize": 0 })
    );
}

#[test]
fn a_task_goes_out_as_proto_json_and_is_read_back() {
    let (state, id) = state_with_task(vec![Part::text("hello")]);
    let raw = task(state.task(id).unwrap(), TaskView::WHOLE).encode().unwrap();

    assert_eq!(raw["status"]["state"], "TASK_STATE_SUBMITTED");
    assert_eq!(raw["status"]["timestamp"], "1970-01-01T00:00:01.234Z");
    assert_eq!(raw["metadata"][crate::GENERATION_KEY], json!(1), "a whole number, not 1.0");
    assert_eq!(raw["history"][0]["taskId"], json!(id.to_string()), "filled in where the sender left it out");

    let read = RemoteTask::from_wire(raw.clone()).unwrap();
    assert_eq!((read.id, read.state, read.generation), (id.to_string(), TaskState::Submitted, Some(1)));
    assert_eq!(read.raw, raw);
}

#[test]
fn the_history_is_cut_from_its_old_end() {
    let (state, id) = state_with_task(vec![Part::text("hello")]);
    let shown = |history| {
        let view = TaskView { history, artifacts: false, annotated: false };
        task(state.task(id).unwrap(), view).encode().unwrap().get("history").map(|list| list.as_array().unwrap().len())
    };
    assert_eq!(shown(None), Some(1));
    assert_eq!(shown(Some(5)), Some(1));
    assert_eq!(shown(Some(0)), None);
}

#[test]
fn every_event_carries_its_index_and_event_one_is_the_task_as_it_was_accepted() {
    let (state, id) = state_with_task(vec![Part::text("hello")]);
    let mut task = state.task(id).unwrap().clone();
    task.status.state = TaskState::Completed;

    let first = event(&task, &Event { index: 1, at: task.created, kind: EventKind::Created }).encode().unwrap();
    assert_eq!(first["task"]["status"]["state"], "TASK_STATE_SUBMITTED");
    assert_eq!(first["task"]["history"].as_array().map(Vec::len), Some(1));
    assert_eq!(stream_event_from_wire(first).unwrap().generation(), Some(1));

    let chunk = EventKind::Artifact {
        artifact_id: "a".into(),
        name: Some("answer".into()),
        parts: vec![Part::text("x")],
        append: true,
        last_chunk: false,
        metadata: Metadata::from([("dev.towline/attempt".to_owned(), json!(2))]),
    };
    let raw = event(&task, &Event { index: 7, at: task.created, kind: chunk }).encode().unwrap();
    assert_eq!(raw["artifactUpdate"]["append"], json!(true));
    assert_eq!(raw["artifactUpdate"]["metadata"], json!({ "dev.towline/attempt": 2, "dev.towline/generation": 7 }));
    assert_eq!(stream_event_from_wire(raw).unwrap().generation(), Some(7));
}

#[test]
fn an_event_is_written_with_the_same_bytes_each_time() {
    let (state, id) = state_with_task(vec![Part::text("hello")]);
    let keys = ["z", "a", "m", "dev.towline/attempt", "simulated", "b", "y"];
    let written = || {
        let chunk = EventKind::Artifact {
            artifact_id: "a".into(),
            name: None,
            parts: vec![Part::data(json!({ "two": { "y": 1, "x": 2 }, "one": 1 }))],
            append: false,
            last_chunk: false,
            metadata: keys.iter().map(|key| ((*key).to_owned(), json!(1))).collect(),
        };
        let kept = Event { index: 2, at: Timestamp(1), kind: chunk };
        event(state.task(id).unwrap(), &kept).encode().unwrap().to_string()
    };
    let first = written();
    assert!((0..20).all(|_| written() == first), "{first}");
    assert!(first.contains(r#""one":1,"two":{"x":2,"y":1}"#), "{first}");
}

#[test]
fn a_card_declares_streaming_and_nothing_that_is_not_there() {
    let agent = towline_core::AgentSpec {
        name: "reader".parse().unwrap(),
        description: "Reads.".into(),
        placement: Placement::EveryNode,
        tags: Vec::new(),
        queue: None,
        labels: towline_core::Labels::new(),
    };
    let endpoints = Endpoints {
        json_rpc: "http://127.0.0.1:7420/agents/reader".into(),
        http_json: "http://127.0.0.1:7420/agents/reader/rest".into(),
        grpc: Some("127.0.0.1:7420".into()),
        tenant: Some("reader".into()),
    };
    let raw = card("reader", "Reads.", endpoints, "0.1.0", &[agent]).unwrap();
    let interfaces = raw["supportedInterfaces"].as_array().unwrap();
    let said = |face: &Value| (face["protocolBinding"].clone(), face["url"].clone(), face.get("tenant").cloned());
    assert_eq!(said(&interfaces[1]), (json!("HTTP+JSON"), json!("http://127.0.0.1:7420/agents/reader/rest"), None));
    assert_eq!(said(&interfaces[2]), (json!("GRPC"), json!("127.0.0.1:7420"), Some(json!("reader"))));
    assert_eq!(raw["capabilities"]["streaming"], json!(true));
    assert_eq!(raw["capabilities"]["pushNotifications"], json!(false));
    assert_eq!(raw["skills"][0]["tags"].as_array().map(Vec::len), Some(1), "required, so never empty");
    let read = card_from_wire(raw).unwrap();
    assert_eq!(read.jsonrpc_url.as_deref(), Some("http://127.0.0.1:7420/agents/reader"));
    assert!(read.streaming);
}

#[test]
fn a_direct_answer_of_a_peer_is_a_message() {
    let raw =
        json!({ "message": { "messageId": "m", "role": "ROLE_AGENT", "taskId": "x", "parts": [{ "text": "hi" }] } });
    let SendReply::Message(message) = send_reply_from_wire(raw).unwrap() else { panic!("not a message") };
    assert_eq!((message.text().as_str(), message.role), ("hi", Role::Agent));
}

#[test]
fn a_task_of_a_peer_without_a_state_is_not_one() {
    assert!(RemoteTask::from_wire(json!({ "id": "t", "contextId": "c" })).is_err());
    assert!(RemoteTask::from_wire(json!({ "status": { "state": "TASK_STATE_WORKING" } })).is_err());
    let lean = json!({ "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_WORKING" }, "new": true });
    assert_eq!(RemoteTask::from_wire(lean).unwrap().state, TaskState::Working);
}

fn part() -> impl Strategy<Value = Part> {
    let content = prop_oneof![
        ".{0,20}".prop_map(Content::Text),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(Content::Raw),
        "[a-z]{1,8}".prop_map(|path| Content::Url(format!("https://a.example/{path}"))),
        (any::<i32>(), any::<bool>(), ".{0,8}")
            .prop_map(|(n, b, s)| Content::Data(json!({ "n": n, "b": b, "s": s, "list": [n, null, 0.25] }))),
    ];
    (content, prop::option::of("[a-z]{1,5}/[a-z]{1,5}"), prop::option::of("[a-z.]{1,8}"), any::<i16>()).prop_map(
        |(content, media_type, filename, n)| Part {
            content,
            media_type,
            filename,
            metadata: Metadata::from([("n".to_owned(), json!(n))]),
        },
    )
}

proptest! {
    #[test]
    fn a_message_survives_the_way_over_the_wire(
        parts in prop::collection::vec(part(), 1..4),
        context in prop::option::of("[a-z0-9-]{1,20}"),
        references in prop::collection::vec("[a-z]{1,8}", 0..3),
    ) {
        let message = Message {
            message_id: "m-1".parse().unwrap(),
            context_id: context.map(|context| context.parse().unwrap()),
            task_id: None,
            role: Role::User,
            parts,
            metadata: Metadata::from([("traceparent".to_owned(), json!("00-1-2-01"))]),
            extensions: Vec::new(),
            reference_task_ids: references,
        };
        let options = SendOptions { return_immediately: true, ..SendOptions::default() };
        let request = send_request(send_params(&message, &options).unwrap()).unwrap();
        prop_assert_eq!(request.message, message);
        prop_assert!(request.return_immediately);
    }
}

/// A state with one task, made the way the cluster makes it.
fn state_with_task(parts: Vec<Part>) -> (State, TaskId) {
    let agent: AgentName = "reader".parse().unwrap();
    let addresses = NodeAddresses::default();
    let boot = towline_core::BootId::from_uuid(uuid::Uuid::from_u128(9));
    let spec = towline_core::AgentSpec {
        name: agent.clone(),
        description: String::new(),
        placement: Placement::EveryNode,
        tags: Vec::new(),
        queue: None,
        labels: towline_core::Labels::new(),
    };
    let id = TaskId::from_uuid(uuid::Uuid::from_u128(1));
    let node = towline_core::Principal::Node(NodeId(1));
    let message = Message {
        message_id: "m-1".parse().unwrap(),
        context_id: None,
        task_id: None,
        role: Role::User,
        parts,
        metadata: Metadata::new(),
        extensions: Vec::new(),
        reference_task_ids: Vec::new(),
    };
    let commands = [
        (
            node.clone(),
            Command::Found {
                cluster: uuid::Uuid::from_u128(2),
                name: "test".into(),
                node_name: "a".into(),
                addresses: addresses.clone(),
            },
        ),
        (
            node,
            Command::NodeUp {
                node: NodeId(1),
                boot,
                addresses,
                version: "0".into(),
                capacity: 4,
                agents: vec![spec],
                labels: None,
                level: 0,
            },
        ),
        (
            towline_core::Principal::Operator,
            Command::Submit(Box::new(Submission {
                task: id,
                fresh_context: "c-1".parse().unwrap(),
                agent,
                message,
                prefer: NodeId(1),
                parent: None,
                hop: 0,
                deadline_ms: None,
                trace: TraceContext { trace_id: 1, span_id: 2, sampled: true },
                most_open: None,
                labels: towline_core::Labels::new(),
            })),
        ),
    ];
    let mut state = State::default();
    for (index, (by, command)) in (1..).zip(commands) {
        state.apply(Proposal { by, command }, Stamp { index, at: Timestamp(1_234) }).unwrap();
    }
    (state, id)
}

#[test]
fn the_chunks_of_a_stream_add_up_to_the_artifact_of_the_task() {
    let (mut state, id) = state_with_task(vec![Part::text("hello")]);
    let epoch = state.task(id).unwrap().lease.as_ref().unwrap().epoch;
    let chunk = |text: &str, append| OwnerWord::Chunk {
        artifact_id: "step-0".into(),
        name: None,
        parts: vec![Part::text(text)],
        append,
        last_chunk: false,
        metadata: Metadata::new(),
    };
    let words = vec![chunk("lost ", false), chunk("One ", false), chunk("two", true)];
    let report = OwnerReport { task: id, epoch, number: 1, words };
    let by = towline_core::Principal::Node(NodeId(1));
    state.apply(Proposal { by, command: Command::Report(report) }, Stamp { index: 9, at: Timestamp(2_000) }).unwrap();

    let task: &Task = state.task(id).unwrap();
    let mut text = String::new();
    for kept in &task.events {
        let raw = event(task, kept).encode().unwrap();
        if let StreamEvent::Artifact { parts, append, .. } = stream_event_from_wire(raw).unwrap() {
            if !append {
                text.clear();
            }
            for part in parts {
                if let Content::Text(more) = part.content {
                    text.push_str(&more);
                }
            }
        }
    }
    assert_eq!(text, task.artifacts[0].text());
}

use serde_json::json;
use towline_core::{ParentLink, StepNo, TaskState};

use super::*;
use crate::auth::Standing;

const OURS: &str = "00000000-0000-0000-0000-000000000007";

#[test]
fn a_message_without_a_task_makes_one_and_is_answered_when_it_is_settled() {
    let decision = decided("SendMessage", json!({ "message": message() })).unwrap();
    let Decision::Propose { command: Command::Submit(submission), reply_on, .. } = decision else {
        panic!("not a submission")
    };
    assert_eq!(reply_on, ReplyOn::Settled(TaskView::WHOLE));
    assert_eq!((submission.task, submission.agent.as_str()), (fresh().task, "surveyor"));
    assert_eq!(submission.trace, fresh().trace);
}

#[test]
fn return_immediately_is_answered_when_the_task_is_accepted() {
    let params = json!({
        "message": message(),
        "configuration": { "returnImmediately": true, "historyLength": 2 },
    });
    let Decision::Propose { reply_on, .. } = decided("SendMessage", params).unwrap() else { panic!("no proposal") };
    assert_eq!(reply_on, ReplyOn::Accepted(TaskView { history: Some(2), artifacts: true, annotated: false }));
}

#[test]
fn a_message_with_a_task_continues_it() {
    let params = json!({ "message": with_task(OURS) });
    let decision = decided("SendMessage", params).unwrap();
    let Decision::Propose { command: Command::Continue { task, message, .. }, .. } = decision else {
        panic!("not a continuation")
    };
    assert_eq!((task.to_string(), message.task_id), (OURS.to_owned(), Some(task)));
}

#[test]
fn a_new_task_is_streamed_from_its_first_event_and_a_known_one_from_where_it_is() {
    let after = |params| match decided("SendStreamingMessage", params).unwrap() {
        Decision::Propose { reply_on: ReplyOn::Stream { after }, .. } => after,
        other => panic!("not a stream: {other:?}"),
    };
    assert_eq!(after(json!({ "message": message() })), Some(0));
    assert_eq!(after(json!({ "message": with_task(OURS) })), None);
}

#[test]
fn a_message_that_is_sent_again_resumes_its_stream() {
    let mut asked = asked("SendStreamingMessage", json!({ "message": message() }));
    asked.last_event_id = Some(4);
    let decision = decide(Method::SendStreamingMessage, &asked, "surveyor".parse().unwrap(), fresh()).unwrap();
    assert!(matches!(decision, Decision::Propose { reply_on: ReplyOn::Stream { after: Some(4) }, .. }));
}

#[test]
fn what_a_delegation_says_about_itself_reaches_the_task() {
    let mut asked = asked("SendMessage", json!({ "message": message() }));
    let parent = ParentLink { task: fresh().task, step: StepNo(3) };
    asked.caller.parent = Some(parent.clone());
    asked.caller.hop = 2;
    asked.caller.deadline_ms = Some(1_000);
    let decision = decide(Method::SendMessage, &asked, "reader".parse().unwrap(), fresh()).unwrap();
    let Decision::Propose { command: Command::Submit(submission), .. } = decision else { panic!("not a submission") };
    assert_eq!((submission.parent, submission.hop, submission.deadline_ms), (Some(parent), 2, Some(1_000)));
}

#[test]
fn an_id_that_is_not_ours_belongs_to_no_task() {
    let not_found = |method, params| decided(method, params).unwrap_err().code;
    assert_eq!(not_found("GetTask", json!({ "id": "foreign" })), -32001);
    assert_eq!(not_found("CancelTask", json!({ "id": "foreign" })), -32001);
    assert_eq!(not_found("SubscribeToTask", json!({ "id": "foreign" })), -32001);
    assert_eq!(not_found("SendMessage", json!({ "message": with_task("foreign") })), -32001);
}

#[test]
fn undeclared_capabilities_are_answered_with_their_errors() {
    let code = |method, params| decided(method, params).unwrap_err().code;
    for method in [
        "CreateTaskPushNotificationConfig",
        "GetTaskPushNotificationConfig",
        "ListTaskPushNotificationConfigs",
        "DeleteTaskPushNotificationConfig",
    ] {
        assert_eq!(code(method, json!({})), -32003, "{method}");
    }
    let card = decided("GetExtendedAgentCard", json!({ "tenant": "reader" })).unwrap();
    assert_eq!(card, Decision::Reply(Query::ExtendedCard(Some("reader".parse().unwrap()))));
    let push = json!({ "taskPushNotificationConfig": { "url": "https://a.example/hook" } });
    assert_eq!(code("SendMessage", json!({ "message": message(), "configuration": push })), -32003);
    assert_eq!(Method::named("message/send").unwrap_err().code, -32601);
}

#[test]
fn a_webhook_comes_with_a_message_or_by_its_own_operations() {
    let with_push = |method: &str, params: Value| {
        let fresh = Fresh { push: true, ..fresh() };
        decide(Method::named(method).unwrap(), &asked(method, params), "surveyor".parse().unwrap(), fresh)
    };
    let config = json!({ "url": "https://a.example/hook", "id": "h" });
    let configuration = json!({ "taskPushNotificationConfig": config });
    for method in ["SendMessage", "SendStreamingMessage"] {
        let decision = with_push(method, json!({ "message": message(), "configuration": configuration })).unwrap();
        let Decision::Propose { push: Some(config), .. } = decision else { panic!("{method}: no webhook") };
        assert_eq!((config.id.as_str(), config.url.as_str()), ("h", "https://a.example/hook"));
    }
    let (task, name) = (OURS.parse().unwrap(), json!({ "taskId": OURS, "id": "h" }));
    let hook = towline_core::WebhookName { task, id: "h".into() };
    for (method, call) in [
        ("GetTaskPushNotificationConfig", PushCall::Get(hook.clone())),
        ("DeleteTaskPushNotificationConfig", PushCall::Delete(hook)),
    ] {
        assert_eq!(with_push(method, name.clone()).unwrap(), Decision::Push(call));
    }
    let foreign = with_push("ListTaskPushNotificationConfigs", json!({ "taskId": "foreign" }));
    assert_eq!(foreign.unwrap_err().code, -32001);
    let nowhere = with_push("CreateTaskPushNotificationConfig", json!({ "taskId": OURS }));
    assert_eq!(nowhere.unwrap_err().field.unwrap().field, "url");
}

#[test]
fn the_endpoint_of_an_agent_lists_its_tasks_and_the_front_door_lists_all() {
    let listed = |agent| {
        let mut asked = asked("ListTasks", json!({ "status": "TASK_STATE_WORKING" }));
        asked.agent = agent;
        match decide(Method::ListTasks, &asked, "reader".parse().unwrap(), fresh()).unwrap() {
            Decision::Reply(Query::List(request, Consistency::Linearizable)) => request.filter,
            other => panic!("not a listing: {other:?}"),
        }
    };
    assert_eq!(listed(Some("reader")).agent.as_ref().map(AgentName::as_str), Some("reader"));
    assert_eq!(listed(None).agent, None);
    assert_eq!(listed(None).state, Some(TaskState::Working));
}

#[test]
fn an_unknown_outcome_and_no_quorum_are_unavailable() {
    let lost = ProposeError::Unknown { waited: Duration::from_secs(5), reason: "no answer".into() };
    let none = ProposeError::Unavailable { reason: "no leader".into(), retry_after: Duration::from_secs(1) };
    for error in [lost, none] {
        let wire = not_proposed(error);
        assert_eq!((wire.code, wire.reason), (-32603, "UNAVAILABLE"));
    }
}

fn message() -> Value {
    json!({ "messageId": "m-1", "role": "ROLE_USER", "parts": [{ "text": "hello" }] })
}

fn with_task(task: &str) -> Value {
    let mut message = message();
    message["taskId"] = task.into();
    message
}

fn fresh() -> Fresh {
    Fresh {
        task: TaskId::from_uuid(uuid::Uuid::from_u128(1)),
        context: "c-1".parse().unwrap(),
        node: NodeId(1),
        trace: TraceContext { trace_id: 1, span_id: 2, sampled: true },
        most_open: None,
        push: false,
    }
}

#[test]
fn a_read_is_local_only_where_the_caller_asks_for_it() {
    let read = |method: &str, params: Value, consistency: Option<&str>| {
        let asked = Asked { consistency: consistency.map(str::to_owned), ..asked(method, params) };
        decide(Method::named(method).unwrap(), &asked, "surveyor".parse().unwrap(), fresh())
    };
    let get = |consistency| read("GetTask", json!({ "id": OURS }), consistency);
    for (asked, expected) in [
        (None, Consistency::Linearizable),
        (Some("linearizable"), Consistency::Linearizable),
        (Some("local"), Consistency::Local),
    ] {
        let Decision::Reply(Query::Task(_, _, found)) = get(asked).unwrap() else { panic!("no read") };
        assert_eq!(found, expected, "{asked:?}");
    }
    assert!(matches!(
        read("ListTasks", json!({}), Some("local")),
        Ok(Decision::Reply(Query::List(_, Consistency::Local)))
    ));
    for refused in [get(Some("eventual")), read("CancelTask", json!({ "id": OURS }), Some("local"))] {
        assert_eq!(refused.unwrap_err().field.unwrap().field, "consistency");
    }
}

#[test]
fn a_generation_makes_a_read_wait_and_a_command_conditional() {
    let with = |method: &str, params: Value, condition: Condition| {
        let asked = Asked { condition, ..asked(method, params) };
        decide(Method::named(method).unwrap(), &asked, "surveyor".parse().unwrap(), fresh())
    };
    let waits = Condition { after: Some(4), patience: Duration::from_secs(7), exactly: None };
    let decision = with("GetTask", json!({ "id": OURS }), waits).unwrap();
    let Decision::Reply(Query::Later { after, patience, .. }) = decision else { panic!("no wait") };
    assert_eq!((after, patience), (4, Duration::from_secs(7)));

    let exactly = Condition { exactly: Some(4), ..Condition::default() };
    for (method, params) in
        [("CancelTask", json!({ "id": OURS })), ("SendMessage", json!({ "message": with_task(OURS) }))]
    {
        let decision = with(method, params, exactly).unwrap();
        let Decision::Propose { command: Command::IfGeneration { task, generation, .. }, .. } = decision else {
            panic!("{method} is not conditional")
        };
        assert_eq!((task.to_string().as_str(), generation), (OURS, 4), "{method}");
    }
    let refused = with("SendMessage", json!({ "message": message() }), exactly).unwrap_err();
    assert_eq!(refused.field.unwrap().field, "configuration.ifGenerationMatch");
}

fn asked(method: &str, params: Value) -> Asked<'static> {
    Asked {
        door: Door::Public,
        agent: None,
        caller: Caller::new(Principal::Operator, Standing::unlimited(crate::auth::KnownBy::Local)),
        binding: Binding::JsonRpc { id: json!(1) },
        call: Call { method: method.to_owned(), params },
        last_event_id: None,
        consistency: None,
        active: Active::default(),
        condition: Condition::default(),
        http: TraceContext { trace_id: 1, span_id: 1, sampled: true },
    }
}

fn decided(method: &str, params: Value) -> Result<Decision, WireError> {
    decide(Method::named(method)?, &asked(method, params), "surveyor".parse().unwrap(), fresh())
}

use towline_core::{AgentName, TaskId, TaskState};

use super::*;

fn task() -> TaskId {
    TaskId::from_uuid(uuid::Uuid::from_u128(1))
}

#[test]
fn each_rejection_has_its_code_and_reason() {
    let agent: AgentName = "nobody".parse().unwrap();
    let table = [
        (Rejection::UnknownAgent { agent, known: Vec::new() }, -32602, "UNKNOWN_AGENT"),
        (Rejection::UnknownTask { task: task() }, -32001, "TASK_NOT_FOUND"),
        (Rejection::TaskEnded { task: task(), state: TaskState::Failed }, -32004, "UNSUPPORTED_OPERATION"),
        (Rejection::TaskBusy { task: task(), state: TaskState::Working }, -32004, "UNSUPPORTED_OPERATION"),
        (Rejection::NotCancelable { task: task(), state: TaskState::Completed }, -32002, "TASK_NOT_CANCELABLE"),
        (Rejection::ContextMismatch { task: task() }, -32602, "CONTEXT_MISMATCH"),
        (Rejection::MessageReused { message: "m".into(), task: task() }, -32602, "MESSAGE_REUSED"),
        (Rejection::EmptyMessage, -32602, "EMPTY_MESSAGE"),
        (Rejection::TooLarge { what: "x".into(), limit: 1 }, -32602, "TOO_LARGE"),
        (Rejection::TooManyHops { limit: 16 }, -32602, "TOO_MANY_HOPS"),
        (Rejection::Full { what: "x".into(), limit: 1, retry_after_ms: 500 }, -32603, "RESOURCE_EXHAUSTED"),
        (Rejection::NotAllowed { by: "node:1".into() }, -32600, "NOT_ALLOWED"),
        (Rejection::StaleEpoch { task: task(), epoch: 1 }, -32603, "INTERNAL"),
    ];
    for (rejection, code, reason) in table {
        let text = rejection.to_string();
        let error = WireError::from(rejection);
        assert_eq!((error.code, error.reason), (code, reason), "{text}");
        assert!(error.message.contains(&text), "{text}");
    }
}

#[test]
fn errors_of_the_protocol_carry_its_domain_and_ours_carry_ours() {
    let info = |error: WireError| error.to_json()["data"][0].clone();
    assert_eq!(
        info(WireError::unknown_task("t")),
        json!({
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "TASK_NOT_FOUND",
            "domain": "a2a-protocol.org",
        })
    );
    assert_eq!(info(WireError::unavailable("no leader"))["reason"], "UNAVAILABLE");
    assert_eq!(info(WireError::unavailable("no leader"))["domain"], DOMAIN);
}

#[test]
fn an_error_that_passes_says_when_to_try_again() {
    let full = WireError::from(Rejection::Full { what: "x".into(), limit: 1, retry_after_ms: 1_500 });
    assert_eq!(full.to_json()["data"][1]["retryDelay"], "1.500s");
}

#[test]
fn a_wrong_parameter_is_named() {
    let error = WireError::from(Field::new("message.parts", "is required"));
    assert_eq!(error.message, "message.parts: is required");
    assert_eq!(
        error.to_json()["data"][1]["fieldViolations"],
        json!([{ "field": "message.parts", "description": "is required" }])
    );
}

#[test]
fn a_body_that_is_too_large_is_told_the_limit() {
    assert!(WireError::body_too_large(4 * 1024 * 1024).message.contains("4 MiB"));
}

#[test]
fn an_unknown_outcome_is_unavailable_and_says_that_a_second_try_is_safe() {
    let error = WireError::outcome_unknown("no answer within 5 s");
    assert_eq!(error.reason, reason::UNAVAILABLE);
    assert!(error.message.contains("again is safe"), "{}", error.message);
    assert!(error.retry_after_ms.is_some());
}

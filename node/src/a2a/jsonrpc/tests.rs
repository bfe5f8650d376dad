use crate::a2a::call::MAX_BODY_BYTES;
use http::Request;
use serde_json::json;

use super::*;

const CALL: &str = r#"{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"id":"t"}}"#;

#[test]
fn each_malformed_request_has_its_code_and_the_id_that_could_be_read() {
    let table = [
        ("{", -32700, Value::Null),
        ("", -32700, Value::Null),
        ("[]", -32600, Value::Null),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"GetTask"}]"#, -32600, Value::Null),
        ("7", -32600, Value::Null),
        (r#"{"jsonrpc":"2.0","method":"GetTask"}"#, -32600, Value::Null),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"GetTask"}"#, -32600, Value::Null),
        (r#"{"jsonrpc":"2.0","id":{},"method":"GetTask"}"#, -32600, Value::Null),
        (r#"{"jsonrpc":"1.0","id":"a","method":"GetTask"}"#, -32600, json!("a")),
        (r#"{"id":"a","method":"GetTask"}"#, -32600, json!("a")),
        (r#"{"jsonrpc":"2.0","id":"a"}"#, -32600, json!("a")),
        (r#"{"jsonrpc":"2.0","id":"a","method":7}"#, -32600, json!("a")),
        (r#"{"jsonrpc":"2.0","id":2,"method":"GetTask","params":[1]}"#, -32602, json!(2)),
    ];
    for (body, code, id) in table {
        let failure = parse(body.as_bytes()).unwrap_err();
        assert_eq!((failure.error.code, failure.id), (code, id), "{body}");
    }
}

#[test]
fn a_request_may_have_a_null_id_and_no_params() {
    let call = parse(br#"{"jsonrpc":"2.0","id":null,"method":"ListTasks"}"#).unwrap();
    assert_eq!(call, (Value::Null, Call { method: "ListTasks".into(), params: Value::Null }));
}

#[tokio::test]
async fn the_version_must_be_said_and_be_ours() {
    let table = [
        (None, "/", false),
        (Some(""), "/", false),
        (Some("0.3"), "/", false),
        (Some("9.9"), "/", false),
        (Some("1.1"), "/", false),
        (Some("1"), "/", false),
        (Some("1.0.x"), "/", false),
        (Some("10.0"), "/", false),
        (Some("1.0"), "/", true),
        (Some(" 1.0 "), "/", true),
        (Some("1.0.1"), "/", true),
        (None, "/?A2A-Version=1.0", true),
        (None, "/?x=1&a2a-version=1.0.1", true),
        (None, "/?A2A-Version=0.3", false),
        (Some("0.3"), "/?A2A-Version=1.0", false),
    ];
    for (version, uri, good) in table {
        let answer = received(version, uri, "application/json", CALL).await;
        let code = answer.as_ref().err().map(|failure| failure.error.code);
        assert_eq!(answer.is_ok(), good, "{version:?} {uri}");
        assert_eq!(code, (!good).then_some(-32009), "{version:?} {uri}");
    }
}

#[tokio::test]
async fn a_body_must_be_declared_as_json() {
    for content_type in
        ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/a2a+json"]
    {
        assert!(received(Some("1.0"), "/", content_type, CALL).await.is_ok(), "{content_type}");
    }
    for content_type in ["", "text/plain", "application/x-www-form-urlencoded"] {
        let failure = received(Some("1.0"), "/", content_type, CALL).await.unwrap_err();
        assert_eq!(failure.error.code, -32005, "{content_type}");
        assert_eq!(failure.into_response().status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
}

#[tokio::test]
async fn a_body_above_the_limit_is_refused_with_the_limit() {
    let body = |size: usize| format!("{CALL}{}", " ".repeat(size - CALL.len()));
    assert!(received(Some("1.0"), "/", "application/json", body(MAX_BODY_BYTES)).await.is_ok());
    let failure = received(Some("1.0"), "/", "application/json", body(MAX_BODY_BYTES + 1)).await.unwrap_err();
    assert!(failure.error.message.contains("4 MiB"), "{}", failure.error.message);
    assert_eq!(failure.into_response().status(), StatusCode::PAYLOAD_TOO_LARGE);
}

#[test]
fn the_trace_of_a_message_is_found_in_its_metadata() {
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let of = |params| Call { method: String::new(), params }.trace().map(|trace| trace.to_string());
    assert_eq!(of(json!({ "message": { "metadata": { "traceparent": TRACE } } })).as_deref(), Some(TRACE));
    assert_eq!(of(json!({ "metadata": { "traceparent": TRACE } })).as_deref(), Some(TRACE));
    assert_eq!(of(json!({ "message": { "metadata": { "traceparent": "garbage" } } })), None);
    assert_eq!(of(Value::Null), None);
}

#[test]
fn waiting_time_is_also_told_to_http() {
    let response = Failure::from(WireError::unavailable("no leader")).into_response();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()[header::RETRY_AFTER], "1");
}

async fn received(
    version: Option<&str>,
    uri: &str,
    content_type: &str,
    body: impl Into<Body>,
) -> Result<(Value, Call), Failure> {
    let mut request = Request::post(uri);
    if !content_type.is_empty() {
        request = request.header(header::CONTENT_TYPE, content_type);
    }
    if let Some(version) = version {
        request = request.header("A2A-Version", version);
    }
    let (parts, body) = request.body(body.into()).unwrap().into_parts();
    receive(&parts, body).await
}

//! HTTP+JSON as a client speaks it (spec 11): which verb and path a method is, and what an error says.

use a2a::methods;
use http::Method;
use reqwest::Url;
use serde_json::{Map, Value};

use super::{ClientError, protocol_error};

/// A request: its verb, its URL, and its body.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Request {
    pub verb: Method,
    pub url: Url,
    pub body: Option<Value>,
}

/// The request that a method is. None when `base` is no URL.
pub(super) fn request(base: &str, tenant: Option<&str>, method: &str, params: Value) -> Option<Request> {
    let mut fields = match params {
        Value::Object(fields) => fields,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    };
    fields.remove("tenant");
    let mut url = Url::parse(base).ok()?;
    let id = |fields: &mut Map<String, Value>| match fields.remove("id") {
        Some(Value::String(id)) => id,
        Some(_) | None => String::new(),
    };
    let (verb, segments, in_body) = match method {
        methods::SEND_MESSAGE => (Method::POST, vec!["message:send".to_owned()], true),
        methods::SEND_STREAMING_MESSAGE => (Method::POST, vec!["message:stream".to_owned()], true),
        methods::LIST_TASKS => (Method::GET, vec!["tasks".to_owned()], false),
        methods::CANCEL_TASK => (Method::POST, vec!["tasks".to_owned(), format!("{}:cancel", id(&mut fields))], true),
        methods::SUBSCRIBE_TO_TASK => {
            (Method::GET, vec!["tasks".to_owned(), format!("{}:subscribe", id(&mut fields))], false)
        }
        // GetTask is the only other method that is called.
        _ => (Method::GET, vec!["tasks".to_owned(), id(&mut fields)], false),
    };
    url.path_segments_mut().ok()?.pop_if_empty().extend(tenant).extend(&segments);
    if in_body {
        return Some(Request { verb, url, body: Some(Value::Object(fields)) });
    }
    for (name, value) in &fields {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        url.query_pairs_mut().append_pair(name, &text);
    }
    Some(Request { verb, url, body: None })
}

/// The error that a body of `google.rpc.Status` in JSON is.
pub(super) fn error(body: &Value) -> Option<ClientError> {
    let status = body.get("error")?;
    let details = status.get("details").cloned().unwrap_or_default();
    let reason = details.as_array().into_iter().flatten().find_map(|detail| detail.get("reason")?.as_str());
    let by_status = match status.get("status").and_then(Value::as_str) {
        Some("NOT_FOUND") => a2a::error_code::TASK_NOT_FOUND,
        Some("UNIMPLEMENTED") => a2a::error_code::METHOD_NOT_FOUND,
        Some("INVALID_ARGUMENT") => a2a::error_code::INVALID_PARAMS,
        Some("FAILED_PRECONDITION") => a2a::error_code::UNSUPPORTED_OPERATION,
        Some(_) => a2a::error_code::INTERNAL_ERROR,
        None => return None,
    };
    let code = reason.and_then(a2a::errors::reason_to_error_code).unwrap_or(by_status);
    Some(protocol_error(&serde_json::json!({ "code": code, "message": status.get("message"), "data": details })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(method: &str, params: Value) -> String {
        let request = request("http://a.example/x/", Some("t"), method, params).unwrap();
        format!("{} {} {}", request.verb, request.url, request.body.unwrap_or_default())
    }

    #[test]
    fn each_method_is_a_verb_and_a_path() {
        let params = json!({ "id": "a/b", "historyLength": 0 });
        for (method, expected) in [
            (methods::GET_TASK, "GET http://a.example/x/t/tasks/a%2Fb?historyLength=0 null"),
            (methods::SUBSCRIBE_TO_TASK, "GET http://a.example/x/t/tasks/a%2Fb:subscribe?historyLength=0 null"),
            (methods::CANCEL_TASK, "POST http://a.example/x/t/tasks/a%2Fb:cancel {\"historyLength\":0}"),
            (methods::LIST_TASKS, "GET http://a.example/x/t/tasks?id=a%2Fb&historyLength=0 null"),
        ] {
            assert_eq!(said(method, params.clone()), expected);
        }
        assert_eq!(said(methods::SEND_MESSAGE, json!({})), "POST http://a.example/x/t/message:send {}");
    }

    #[test]
    fn an_error_keeps_its_reason_and_its_code() {
        let body = json!({ "error": { "code": 404, "status": "NOT_FOUND", "message": "gone", "details": [
            { "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "TASK_NOT_FOUND", "domain": "a2a-protocol.org" }
        ] } });
        assert!(error(&body).unwrap().is_unknown_task());
        let unsupported = json!({ "error": { "status": "FAILED_PRECONDITION", "message": "no" } });
        assert!(error(&unsupported).unwrap().is_unsupported());
        assert!(error(&json!({ "detail": "a proxy's words" })).is_none());
    }
}

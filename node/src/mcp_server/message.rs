//! JSON-RPC 2.0 as MCP uses it: what comes in, and how it is answered.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json, value::RawValue};
use towline_a2a::WireError;

/// Longest id of a request: ids are kept while a call is under way.
const MAX_ID: usize = 256;

/// Codes of errors, as JSON-RPC and MCP define them.
pub(super) mod code {
    /// The body is not JSON.
    pub const PARSE_ERROR: i32 = -32_700;
    /// It is JSON, and no message.
    pub const INVALID_REQUEST: i32 = -32_600;
    /// No such method.
    pub const METHOD_NOT_FOUND: i32 = -32_601;
    /// The parameters are wrong; also an unknown tool and, without sessions, an unknown resource.
    pub const INVALID_PARAMS: i32 = -32_602;
    /// A bug, or something that this node lacks.
    pub const INTERNAL: i32 = -32_603;
    /// Not now.
    pub const UNAVAILABLE: i32 = -32_000;
    /// No such resource, in the revisions with sessions.
    pub const RESOURCE_NOT_FOUND: i32 = -32_002;
    /// A header says something else than the body.
    pub const HEADER_MISMATCH: i32 = -32_020;
    /// The client has not said that it can do what this needs.
    pub const MISSING_CAPABILITY: i32 = -32_021;
    /// A revision that is not spoken here.
    pub const UNSUPPORTED_VERSION: i32 = -32_022;
}

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Request {
    /// A text or a whole number.
    pub id: Value,
    pub method: String,
    /// Empty where there are none.
    pub params: Map<String, Value>,
}

impl Request {
    /// A key of `_meta`.
    pub fn meta(&self, key: &str) -> Option<&Value> {
        self.params.get("_meta")?.get(key)
    }

    /// A parameter that is a text.
    ///
    /// # Errors
    /// When it is missing or something else.
    pub fn text(&self, name: &str) -> Result<&str, RpcError> {
        let wrong = || RpcError::invalid_params(format!("{name} is missing or not a text"));
        self.params.get(name).and_then(Value::as_str).ok_or_else(wrong)
    }

    /// The id as a key of a map.
    pub fn key(&self) -> String {
        self.id.to_string()
    }
}

/// What a client sends.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Incoming {
    Request(Request),
    Notification {
        method: String,
        params: Map<String, Value>,
    },
    /// To a request of ours.
    Response {
        id: Value,
        /// The result, or the error object.
        outcome: Result<Value, Value>,
    },
}

/// An error, as it is answered.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub(super) struct RpcError {
    pub code: i32,
    pub message: String,
    pub data: Option<Value>,
}

impl RpcError {
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub fn with(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(code::INVALID_REQUEST, message)
    }

    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(code::INVALID_PARAMS, message)
    }

    /// A tool that is not there, or not for this caller: which of the two is nobody's business.
    pub fn unknown_tool(name: &str) -> Self {
        Self::invalid_params(format!("unknown tool {:?}", towline_a2a::shortened(name)))
    }

    pub fn unknown_method(method: &str) -> Self {
        Self::new(code::METHOD_NOT_FOUND, format!("method {:?} is not known", towline_a2a::shortened(method)))
    }

    pub fn header_mismatch(message: impl Into<String>) -> Self {
        Self::new(code::HEADER_MISMATCH, message)
    }

    /// A whole answer.
    pub fn answer(&self, id: Value) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        json!({ "jsonrpc": "2.0", "id": id, "error": error })
    }
}

/// What the A2A side refuses, where that is no answer of a tool.
impl From<WireError> for RpcError {
    fn from(error: WireError) -> Self {
        Self::new(error.code, error.message)
    }
}

/// A result under the id of its request.
pub(super) fn result(id: Value, result: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}

/// A result as another server wrote it, under the id of a request, with what it lacks in front of it: names, and values as JSON.
pub(super) fn original(id: &Value, result: &RawValue, lacking: &[(&str, String)]) -> String {
    // Line breaks outside of texts mean nothing, and would end the line of an event.
    let text = result.get().trim().replace(['\n', '\r'], " ");
    let (Some(fields), Some(rest)) = (fields_of(result), text.strip_prefix('{')) else {
        return format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{text}}}"#);
    };
    let lacking = lacking.iter().filter(|(name, _)| !fields.contains_key(*name));
    let mut head: String = lacking.map(|(name, value)| format!("{}:{value},", Value::from(*name))).collect();
    if fields.is_empty() && head.ends_with(',') {
        head.pop();
    }
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{{head}{rest}}}"#)
}

/// The fields of a result, if it is an object.
pub(super) fn fields_of(result: &RawValue) -> Option<BTreeMap<String, &RawValue>> {
    serde_json::from_str(result.get()).ok()
}

/// A notification.
pub(super) fn notification(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

/// Reads a message out of a body.
///
/// # Errors
/// What is wrong, and the id to answer under: null where none could be read.
pub(super) fn parse(body: &[u8]) -> Result<Incoming, (Value, RpcError)> {
    let refused = |error: RpcError| (Value::Null, error);
    towline_a2a::convert::check_json(body).map_err(|field| refused(RpcError::invalid_request(field.to_string())))?;
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| refused(RpcError::new(code::PARSE_ERROR, format!("the body is not JSON: {error}"))))?;
    if value.is_array() {
        return Err(refused(RpcError::invalid_request("batches are not supported: send one message per request")));
    }
    let Value::Object(mut fields) = value else {
        return Err(refused(RpcError::invalid_request("a message is a JSON object")));
    };
    if fields.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(refused(RpcError::invalid_request("jsonrpc must be \"2.0\"")));
    }
    let id = fields.remove("id");
    let is_id = |id: &Value| id.is_i64() || id.is_u64() || id.as_str().is_some_and(|id| id.len() <= MAX_ID);
    if id.as_ref().is_some_and(|id| !is_id(id)) {
        let message = format!("id must be a text of at most {MAX_ID} bytes or a whole number");
        return Err(refused(RpcError::invalid_request(message)));
    }
    let Some(method) = fields.remove("method") else {
        let outcome = match (fields.remove("result"), fields.remove("error")) {
            (Some(result), None) => Ok(result),
            (None, Some(error)) => Err(error),
            (None, None) | (Some(_), Some(_)) => {
                return Err(refused(RpcError::invalid_request("a message has a method, a result or an error")));
            }
        };
        let id = id.ok_or_else(|| refused(RpcError::invalid_request("an answer has the id of its request")))?;
        return Ok(Incoming::Response { id, outcome });
    };
    let answered = |error| (id.clone().unwrap_or_default(), error);
    let Value::String(method) = method else {
        return Err(answered(RpcError::invalid_request("method must be a text")));
    };
    let params = match fields.remove("params") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(params)) => params,
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
            return Err(answered(RpcError::invalid_params("params must be an object")));
        }
    };
    Ok(match id {
        Some(id) => Incoming::Request(Request { id, method, params }),
        None => Incoming::Notification { method, params },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_a_request_a_notification_or_an_answer() {
        let request = parse(br#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#).unwrap();
        assert!(matches!(request, Incoming::Request(request) if request.key() == "7" && request.params.is_empty()));
        let notification = parse(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).unwrap();
        assert!(matches!(notification, Incoming::Notification { .. }));
        let answer = parse(br#"{"jsonrpc":"2.0","id":"a","result":{}}"#).unwrap();
        assert!(matches!(answer, Incoming::Response { outcome: Ok(_), .. }));
        let failure = parse(br#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}"#).unwrap();
        assert!(matches!(failure, Incoming::Response { outcome: Err(_), .. }));
    }

    #[test]
    fn a_result_of_another_server_is_passed_on_byte_by_byte() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let lacking = [("resultType", "\"complete\"".to_owned()), ("ttlMs", "0".to_owned())];
        let odd = raw(r#"{ "b":1.50,"a":1e2, "b2":"\u0041" }"#);
        assert_eq!(
            original(&json!(1), &odd, &[]),
            r#"{"jsonrpc":"2.0","id":1,"result":{ "b":1.50,"a":1e2, "b2":"\u0041" }}"#
        );
        let added = r#"{"jsonrpc":"2.0","id":"x","result":{"resultType":"complete","ttlMs":0, "b":1.50,"a":1e2, "b2":"\u0041" }}"#;
        assert_eq!(original(&json!("x"), &odd, &lacking), added);
        let known = original(&json!(1), &raw("{\"resultType\":\n\"task\"}"), &lacking);
        assert_eq!(known, r#"{"jsonrpc":"2.0","id":1,"result":{"ttlMs":0,"resultType": "task"}}"#);
        let empty = original(&json!(1), &raw("{ }"), &lacking);
        assert_eq!(empty, r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","ttlMs":0 }}"#);
        for whole in [&known, &empty, &original(&json!(1), &raw("[]"), &lacking)] {
            serde_json::from_str::<Value>(whole).unwrap();
        }
    }

    #[test]
    fn what_is_no_message_is_refused_with_a_code() {
        for (body, expected) in [
            ("{", code::PARSE_ERROR),
            ("[]", code::INVALID_REQUEST),
            ("3", code::INVALID_REQUEST),
            (r#"{"id":1,"method":"ping"}"#, code::INVALID_REQUEST),
            (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, code::INVALID_REQUEST),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, code::INVALID_REQUEST),
            (&format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, "x".repeat(257)), code::INVALID_REQUEST),
            (r#"{"jsonrpc":"2.0","id":1}"#, code::INVALID_REQUEST),
            (r#"{"jsonrpc":"2.0","id":1,"result":1,"error":2}"#, code::INVALID_REQUEST),
            (r#"{"jsonrpc":"2.0","id":1,"method":3}"#, code::INVALID_REQUEST),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#, code::INVALID_PARAMS),
        ] {
            assert_eq!(parse(body.as_bytes()).unwrap_err().1.code, expected, "{body}");
        }
    }

    #[test]
    fn an_error_is_answered_under_the_id_that_could_be_read() {
        let (id, _) = parse(br#"{"jsonrpc":"2.0","id":9,"method":"ping","params":3}"#).unwrap_err();
        assert_eq!(id, json!(9));
    }
}

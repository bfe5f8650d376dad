//! The JSON-RPC binding (spec 9): one request in one body, and one answer.

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{StatusCode, header, request::Parts};
use serde_json::Value;
use towline_a2a::{WireError, convert, errors::reason};

use super::call::{Call, check_content_type, check_last_event_id, check_version, decode, read_body};

/// A request that is answered with an error, and the id to answer under.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    /// Null where none could be read.
    pub id: Value,
    /// What is wrong.
    pub error: WireError,
}

impl Failure {
    /// An error under the id of its request.
    pub fn new(id: Value, error: WireError) -> Self {
        Self { id, error }
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        Self::new(Value::Null, error)
    }
}

/// JSON-RPC errors travel with status 200, but for those about the HTTP message itself and about who has sent it.
impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = match (self.error.reason, self.error.code) {
            (reason::BODY_TOO_LARGE, _) => StatusCode::PAYLOAD_TOO_LARGE,
            (reason::UNAUTHENTICATED | reason::PERMISSION_DENIED | reason::RATE_LIMITED, _) => self.error.http_status(),
            (_, a2a::error_code::CONTENT_TYPE_NOT_SUPPORTED) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            _ => StatusCode::OK,
        };
        let retry_after = self.error.retry_after_seconds();
        let mut response = json_response(status, &envelope(self.id, "error", self.error.to_json()));
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// A result, as a response.
pub(crate) fn success(id: Value, result: Value) -> Response {
    json_response(StatusCode::OK, &envelope(id, "result", result))
}

/// An answer of JSON-RPC: `kind` is `result` or `error`.
pub(crate) fn envelope(id: Value, kind: &str, content: Value) -> Value {
    // `json!` would copy what it is given.
    let fields = [("jsonrpc", "2.0".into()), ("id", id), (kind, content)];
    Value::Object(fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect())
}

/// Reads one request. The head is judged before the body, the body before its content.
pub(crate) async fn receive(parts: &Parts, body: Body) -> Result<(Value, Call), Failure> {
    check_content_type(&parts.headers)?;
    check_last_event_id(&parts.headers)?;
    let body = read_body(&parts.headers, body).await?;
    let (id, call) = decode(body.len(), || parse(&body)).await?;
    match check_version(&parts.headers, &parts.uri) {
        Ok(()) => Ok((id, call)),
        Err(error) => Err(Failure::new(id, error)),
    }
}

/// Reads JSON-RPC out of a body: the id of the request, and what it asks.
pub(crate) fn parse(body: &[u8]) -> Result<(Value, Call), Failure> {
    convert::check_json(body).map_err(|field| Failure::new(id_of(body), field.into()))?;
    let value: Value = serde_json::from_slice(body).map_err(WireError::parse)?;
    let mut fields = match value {
        Value::Object(fields) => fields,
        Value::Array(_) => {
            return Err(WireError::invalid_request("batches are not supported: send one request per body").into());
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            return Err(WireError::invalid_request("request is not a JSON object").into());
        }
    };
    let id = match fields.remove("id") {
        Some(id @ (Value::String(_) | Value::Null)) => id,
        Some(Value::Number(number)) if !number.is_f64() => Value::Number(number),
        Some(_) => return Err(WireError::invalid_request("id must be a string, a whole number or null").into()),
        None => return Err(WireError::invalid_request("id is missing: notifications are not supported").into()),
    };
    let invalid = |message: &str| Failure::new(id.clone(), WireError::invalid_request(message));
    if fields.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(invalid("jsonrpc must be \"2.0\""));
    }
    let Some(Value::String(method)) = fields.remove("method") else {
        return Err(invalid("method is missing or not a string"));
    };
    let params = fields.remove("params").unwrap_or_default();
    if !params.is_object() && !params.is_null() {
        let field = towline_a2a::Field::new("params", "must be an object");
        return Err(Failure::new(id, field.into()));
    }
    Ok((id, Call { method, params }))
}

/// The id in a body of which no tree is made.
fn id_of(body: &[u8]) -> Value {
    #[derive(serde::Deserialize)]
    struct Head {
        id: Id,
    }
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Id {
        Number(i64),
        Text(String),
    }
    match serde_json::from_slice(body) {
        Ok(Head { id: Id::Number(id) }) => id.into(),
        Ok(Head { id: Id::Text(id) }) => id.into(),
        Err(_) => Value::Null,
    }
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

#[cfg(test)]
mod tests;

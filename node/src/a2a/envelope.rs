//! JSON-RPC 2.0 around A2A: one request in one body, one answer, and the headers that the binding defines.

use std::time::Duration;

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use http::{HeaderMap, StatusCode, header, request::Parts};
use serde_json::{Value, json};
use towline_a2a::{PROTOCOL_VERSION, WireError, errors::reason};
use towline_core::TraceContext;

/// Largest request body: a message of the largest size that the core takes does not fit into less.
pub(crate) const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;

/// How much of a body that is too large is read and dropped before the answer, so that a client that still writes gets
/// to read it.
const MAX_DISCARDED_BYTES: usize = 16 * 1024 * 1024;

/// How long a client may take to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// A request, as far as JSON-RPC goes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    /// Echoed in every answer.
    pub id: Value,
    /// The method.
    pub method: String,
    /// Its parameters: an object or null.
    pub params: Value,
}

/// A request that is answered with an error, and the id to answer under.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    /// Null where none could be read.
    pub id: Value,
    /// What is wrong.
    pub error: WireError,
}

impl Call {
    /// The trace context that the message or the request carries in its metadata.
    pub fn trace(&self) -> Option<TraceContext> {
        let of = |holder: &Value| holder.get("metadata")?.get("traceparent")?.as_str()?.parse().ok();
        self.params.get("message").and_then(of).or_else(|| of(&self.params))
    }
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

/// JSON-RPC errors travel with status 200, but for those about the HTTP message itself.
impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = match (self.error.reason, self.error.code) {
            (reason::BODY_TOO_LARGE, _) => StatusCode::PAYLOAD_TOO_LARGE,
            (_, a2a::error_code::CONTENT_TYPE_NOT_SUPPORTED) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            _ => StatusCode::OK,
        };
        let retry_after = self.error.retry_after_ms.map(|ms| ms.div_ceil(1000).to_string());
        let mut response = json_response(status, &envelope(self.id, "error", self.error.to_json()));
        if let Some(seconds) = retry_after.and_then(|seconds| seconds.parse().ok()) {
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
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
    json!({ "jsonrpc": "2.0", "id": id, kind: content })
}

/// Reads one request. The head is judged before the body, the body before its content.
pub(crate) async fn receive(parts: &Parts, body: Body) -> Result<Call, Failure> {
    check_content_type(&parts.headers)?;
    let body = read_body(&parts.headers, body).await?;
    let call = parse(&body)?;
    match check_version(parts) {
        Ok(()) => Ok(call),
        Err(error) => Err(Failure::new(call.id, error)),
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<(), WireError> {
    let found = headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("?")).unwrap_or_default();
    let essence = found.split(';').next().unwrap_or_default().trim();
    let is_json = ["application/json", "application/a2a+json"].iter().any(|json| essence.eq_ignore_ascii_case(json));
    if is_json { Ok(()) } else { Err(WireError::content_type(found)) }
}

/// The rule of spec 3.6.2: no version means 0.3, and only major and minor count. A query parameter stands in for the
/// header.
fn check_version(parts: &Parts) -> Result<(), WireError> {
    let header = parts.headers.get("a2a-version").map(|value| value.to_str().unwrap_or("?").trim());
    let query = || {
        let pairs = parts.uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(key, _)| key.eq_ignore_ascii_case("a2a-version")).map(|(_, value)| value)
    };
    let asked = header.filter(|version| !version.is_empty()).or_else(query).filter(|version| !version.is_empty());
    let Some(asked) = asked else { return Err(WireError::version(None)) };
    let mut numbers = asked.split('.');
    let same_minor = PROTOCOL_VERSION.split('.').all(|number| numbers.next() == Some(number));
    let patch_is_number = numbers.all(|number| number.parse::<u32>().is_ok());
    if same_minor && patch_is_number { Ok(()) } else { Err(WireError::version(Some(asked))) }
}

async fn read_body(headers: &HeaderMap, body: Body) -> Result<Vec<u8>, WireError> {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let mut kept = Vec::with_capacity(declared.unwrap_or(0).min(MAX_BODY_BYTES));
    let mut received = 0;
    let mut chunks = body.into_data_stream();
    let read_all = async {
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| WireError::invalid_request(format!("body breaks off: {error}")))?;
            received += chunk.len();
            if received <= MAX_BODY_BYTES {
                kept.extend_from_slice(&chunk);
            } else if received > MAX_DISCARDED_BYTES {
                break;
            }
        }
        Ok::<(), WireError>(())
    };
    match tokio::time::timeout(BODY_TIMEOUT, read_all).await {
        Ok(read) => read?,
        Err(_) => return Err(WireError::invalid_request(format!("body takes longer than {BODY_TIMEOUT:?}"))),
    }
    if received > MAX_BODY_BYTES { Err(WireError::body_too_large(MAX_BODY_BYTES)) } else { Ok(kept) }
}

/// Reads JSON-RPC out of a body.
pub(crate) fn parse(body: &[u8]) -> Result<Call, Failure> {
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
    Ok(Call { id, method, params })
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

#[cfg(test)]
mod tests;

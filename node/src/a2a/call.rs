//! A request, whatever binding it came over: what all of them read, check and bound alike.

use std::time::Duration;

use axum::body::Body;
use futures::StreamExt;
use http::{HeaderMap, Uri, header};
use serde_json::Value;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Semaphore,
};
use towline_a2a::{Field, PROTOCOL_VERSION, WireError};
use towline_core::TraceContext;

/// Largest request body: a message of the largest size that the core takes does not fit into less.
pub(crate) const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;

/// How much of a body that is too large is read and dropped before the answer, so that a client that still writes gets
/// to read it.
const MAX_DISCARDED_BYTES: usize = 16 * 1024 * 1024;

/// How long a client may take to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// What is decoded where it came in: less than a millisecond of work.
const DECODED_IN_PLACE_BYTES: usize = 64 * 1024;

/// Larger bodies that are decoded at the same time: each takes some ten times its length meanwhile, and a core.
const DECODED_TOGETHER: usize = 4;

/// The places of those.
static DECODING: Semaphore = Semaphore::const_new(DECODED_TOGETHER);

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    /// The method, as JSON-RPC and gRPC name it.
    pub method: String,
    /// Its parameters in ProtoJSON: an object or null.
    pub params: Value,
}

/// Over which binding a request came, and what its answer needs for that.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Binding {
    /// JSON-RPC 2.0 (spec 9).
    JsonRpc {
        /// Echoed in every answer; null where none could be read.
        id: Value,
    },
    /// HTTP+JSON (spec 11).
    HttpJson,
    /// gRPC (spec 10).
    Grpc,
}

impl Call {
    /// The trace context that the message or the request carries in its metadata.
    pub fn trace(&self) -> Option<TraceContext> {
        let of = |holder: &Value| holder.get("metadata")?.get("traceparent")?.as_str()?.parse().ok();
        self.params.get("message").and_then(of).or_else(|| of(&self.params))
    }

    /// About how many bytes the parameters are, as JSON.
    pub fn size(&self) -> usize {
        size(&self.params)
    }
}

fn size(value: &Value) -> usize {
    /// What stands around a value, and the shortest of them.
    const LEAST: usize = 4;
    LEAST
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(size).sum(),
            Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + size(value)).sum(),
        }
}

/// Decodes what is `bytes` long: a few large ones at a time, and beside what else the node has to do, which does not wait.
pub(crate) async fn decode<R>(bytes: usize, decode: impl FnOnce() -> R) -> R {
    if bytes <= DECODED_IN_PLACE_BYTES {
        return decode();
    }
    let _place = DECODING.acquire().await;
    // A runtime of one thread, as in tests, has no other place.
    if Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
        tokio::task::block_in_place(decode)
    } else {
        decode()
    }
}

pub(super) fn check_content_type(headers: &HeaderMap) -> Result<(), WireError> {
    let found = headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("?")).unwrap_or_default();
    let essence = found.split(';').next().unwrap_or_default().trim();
    let is_json = ["application/json", "application/a2a+json"].iter().any(|json| essence.eq_ignore_ascii_case(json));
    if is_json { Ok(()) } else { Err(WireError::content_type(found)) }
}

/// The rule of spec 3.6.2: no version means 0.3, and only major and minor count. A query parameter stands in for the
/// header.
pub(super) fn check_version(headers: &HeaderMap, uri: &Uri) -> Result<(), WireError> {
    let header = headers.get("a2a-version").map(|value| value.to_str().unwrap_or("?").trim());
    let query = || {
        let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(key, _)| key.eq_ignore_ascii_case("a2a-version")).map(|(_, value)| value)
    };
    let asked = header.filter(|version| !version.is_empty()).or_else(query).filter(|version| !version.is_empty());
    let Some(asked) = asked else { return Err(WireError::version(None)) };
    let mut numbers = asked.split('.');
    let same_minor = PROTOCOL_VERSION.split('.').all(|number| numbers.next() == Some(number));
    let patch_is_number = numbers.all(|number| number.parse::<u32>().is_ok());
    if same_minor && patch_is_number { Ok(()) } else { Err(WireError::version(Some(asked))) }
}

/// Where a stream is to go on is a number, or is not said.
pub(super) fn check_last_event_id(headers: &HeaderMap) -> Result<(), WireError> {
    let Some(value) = headers.get("last-event-id") else { return Ok(()) };
    match value.to_str().map(|text| text.trim().parse::<u64>()) {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(Field::new("Last-Event-ID", "must be the id of an event: a whole number").into()),
    }
}

pub(crate) async fn read_body(headers: &HeaderMap, body: Body) -> Result<Vec<u8>, WireError> {
    read_up_to(MAX_BODY_BYTES, headers, body).await
}

pub(crate) async fn read_up_to(most: usize, headers: &HeaderMap, body: Body) -> Result<Vec<u8>, WireError> {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let mut kept = Vec::with_capacity(declared.unwrap_or(0).min(most));
    let mut received = 0;
    let mut chunks = body.into_data_stream();
    let read_all = async {
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| WireError::invalid_request(format!("body breaks off: {error}")))?;
            received += chunk.len();
            if received <= most {
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
    if received > most { Err(WireError::body_too_large(MAX_BODY_BYTES)) } else { Ok(kept) }
}

//! The span of an attempt that came to nothing: below that of the call, which is the span of the attempt that counts.

use std::time::{Duration, SystemTime};
use towline_trace::{Kind, Span, names};

use super::{ModelError, ModelRequest};

/// Tells of an attempt that began at `since` and has failed now, and how long the next one waits.
pub(crate) fn failed(request: &ModelRequest, number: u32, since: SystemTime, error: &ModelError, wait: Duration) {
    let Some(call) = &request.trace else { return };
    let name = format!("{} {}", names::span::CHAT, request.model);
    let mut span = Span::child_since(name, Kind::Client, call, since);
    span.set(names::GEN_AI_OPERATION_NAME, names::span::CHAT);
    span.set(names::GEN_AI_REQUEST_MODEL, request.model.clone());
    span.set(names::MODEL_ATTEMPT, i64::from(number));
    span.set(names::MODEL_RETRY_DELAY_MS, i64::try_from(wait.as_millis()).unwrap_or(i64::MAX));
    span.fail(&error.error_type, &error.message);
}

//! What goes wrong, as the protocol's error objects: a JSON-RPC code, a message, and a `google.rpc.ErrorInfo` that names
//! the reason (spec 9.5).
//!
//! Errors that A2A names carry its domain and its reason. Ours carry [`DOMAIN`] and one of the reasons in [`reason`].

mod bindings;
mod extensions;

use std::collections::BTreeMap;

use a2a::error_code;
use serde_json::{Value, json};
use towline_core::Rejection;

use crate::convert::{Field, state_name};

/// The beginning of what a client sent, for a message to it.
pub fn shortened(text: &str) -> String {
    /// A name or an id fits, and no message is filled with what was sent.
    const SHOWN: usize = 64;
    text.chars().take(SHOWN).collect()
}

/// Domain of the reasons that A2A does not define.
pub const DOMAIN: &str = "towline.dev";

/// Reasons of ours, for programs.
pub mod reason {
    /// No quorum, or no answer within the deadline: worth another try.
    pub const UNAVAILABLE: &str = "UNAVAILABLE";
    /// The request may or may not have been taken: sending it again is safe, the message id makes it one.
    pub const OUTCOME_UNKNOWN: &str = "OUTCOME_UNKNOWN";
    /// Full for the moment: worth another try.
    pub const RESOURCE_EXHAUSTED: &str = "RESOURCE_EXHAUSTED";
    /// No node declares such an agent.
    pub const UNKNOWN_AGENT: &str = "UNKNOWN_AGENT";
    /// The message names a context that is not the task's.
    pub const CONTEXT_MISMATCH: &str = "CONTEXT_MISMATCH";
    /// The message id was used with other content.
    pub const MESSAGE_REUSED: &str = "MESSAGE_REUSED";
    /// A message without content.
    pub const EMPTY_MESSAGE: &str = "EMPTY_MESSAGE";
    /// An answer about a step in doubt that is not understood.
    pub const UNDECIDED_DOUBT: &str = "UNDECIDED_DOUBT";
    /// More than a bound allows.
    pub const TOO_LARGE: &str = "TOO_LARGE";
    /// The body of the request is larger than the server reads.
    pub const BODY_TOO_LARGE: &str = "BODY_TOO_LARGE";
    /// A chain of delegations that is too deep.
    pub const TOO_MANY_HOPS: &str = "TOO_MANY_HOPS";
    /// The caller may not do this.
    pub const NOT_ALLOWED: &str = "NOT_ALLOWED";
    /// Nobody is known to ask.
    pub const UNAUTHENTICATED: &str = "UNAUTHENTICATED";
    /// Who asks is known, and may not ask for this.
    pub const PERMISSION_DENIED: &str = "PERMISSION_DENIED";
    /// Who asks, or where it asks from, asks too often.
    pub const RATE_LIMITED: &str = "RATE_LIMITED";
    /// Parameters that are missing or wrong.
    pub const INVALID_PARAMS: &str = "INVALID_PARAMS";
    /// The request is not one JSON-RPC 2.0 request.
    pub const INVALID_REQUEST: &str = "INVALID_REQUEST";
    /// The body is not JSON.
    pub const PARSE_ERROR: &str = "PARSE_ERROR";
    /// No such method.
    pub const METHOD_NOT_FOUND: &str = "METHOD_NOT_FOUND";
    /// Something has happened to the task since the client looked; the metadata says the current generation.
    pub const TASK_GENERATION_MISMATCH: &str = "TASK_GENERATION_MISMATCH";
    /// A message for an extension that its request does not activate.
    pub const EXTENSION_NOT_ACTIVATED: &str = "EXTENSION_NOT_ACTIVATED";
    /// A command that is none: more than one, to a task, or with other fields.
    pub const INVALID_COMMAND: &str = "INVALID_COMMAND";
    /// A command that there is not; the message names those that there are.
    pub const UNKNOWN_COMMAND: &str = "UNKNOWN_COMMAND";
    /// A command that cannot be carried out as things stand; the metadata says the code of the operator API.
    pub const COMMAND_REFUSED: &str = "COMMAND_REFUSED";
    /// Events that are not kept any more; the metadata says the oldest index to go on from, and the last.
    pub const EVENTS_GONE: &str = "EVENTS_GONE";
    /// A bug.
    pub const INTERNAL: &str = "INTERNAL";
}

/// "Who are you": outside of the range that JSON-RPC reserves, so that a client that knows the codes of the specification is
/// never told something else.
pub const UNAUTHENTICATED: i32 = -31_401;

/// "You may not".
pub const PERMISSION_DENIED: i32 = -31_403;

/// An error as it goes over the wire.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct WireError {
    /// The JSON-RPC code.
    pub code: i32,
    /// For people.
    pub message: String,
    /// For programs: `reason` of the `ErrorInfo`.
    pub reason: &'static str,
    /// The field that is wrong, if it is one.
    pub field: Option<Field>,
    /// When it is worth another try.
    pub retry_after_ms: Option<u64>,
    /// More for programs: `metadata` of the `ErrorInfo`.
    pub metadata: BTreeMap<&'static str, String>,
}

impl WireError {
    fn new(code: i32, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), reason, field: None, retry_after_ms: None, metadata: BTreeMap::new() }
    }

    /// An error that A2A defines.
    fn protocol(code: i32, message: impl Into<String>) -> Self {
        Self::new(code, a2a::errors::error_reason(code), message)
    }

    /// The body is not JSON.
    pub fn parse(detail: impl std::fmt::Display) -> Self {
        Self::new(error_code::PARSE_ERROR, reason::PARSE_ERROR, format!("body is not JSON: {detail}"))
    }

    /// The request is not one JSON-RPC 2.0 request.
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(error_code::INVALID_REQUEST, reason::INVALID_REQUEST, message)
    }

    /// No such method.
    pub fn unknown_method(method: &str) -> Self {
        let message = format!("method {:?} is not known", shortened(method));
        Self::new(error_code::METHOD_NOT_FOUND, reason::METHOD_NOT_FOUND, message)
    }

    /// A verb and a path that mean nothing.
    pub fn unknown_operation(message: impl Into<String>) -> Self {
        Self::new(error_code::METHOD_NOT_FOUND, reason::METHOD_NOT_FOUND, message)
    }

    /// The body is larger than `limit` bytes.
    pub fn body_too_large(limit: usize) -> Self {
        let limit_mib = limit / (1024 * 1024);
        let message = format!(
            "body exceeds the limit of {limit_mib} MiB ({limit} bytes): upload large content at /blobs and send its url"
        );
        Self::new(error_code::INVALID_REQUEST, reason::BODY_TOO_LARGE, message)
    }

    /// The body is not declared as JSON.
    pub fn content_type(found: &str) -> Self {
        let message = format!("content type {:?} is not supported: send application/json", shortened(found));
        Self::protocol(error_code::CONTENT_TYPE_NOT_SUPPORTED, message)
    }

    /// The client speaks another version, or did not say which.
    pub fn version(asked: Option<&str>) -> Self {
        let message = match asked {
            Some(asked) => format!(
                "A2A version {:?} is not supported: this server speaks {}",
                asked.chars().take(32).collect::<String>(),
                crate::PROTOCOL_VERSION
            ),
            None => format!(
                "A2A-Version is missing, which means 0.3: this server speaks {}, so send `A2A-Version: {}`",
                crate::PROTOCOL_VERSION,
                crate::PROTOCOL_VERSION
            ),
        };
        Self::protocol(error_code::VERSION_NOT_SUPPORTED, message)
    }

    /// There is no such task, or it is not the caller's.
    pub fn unknown_task(task: &str) -> Self {
        Self::protocol(error_code::TASK_NOT_FOUND, format!("task {} is not known", shortened(task)))
    }

    /// There is no such push notification config of the task.
    pub fn unknown_push_config(id: &str) -> Self {
        let message = format!("push notification config {:?} of the task is not known", shortened(id));
        Self::protocol(error_code::TASK_NOT_FOUND, message)
    }

    /// Something that the protocol knows and this server, or this task, does not do.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::protocol(error_code::UNSUPPORTED_OPERATION, message)
    }

    /// Push notifications, which the card does not declare.
    pub fn no_push() -> Self {
        let message = "push notifications are off here, as the agent card says: `push: { enabled: true }` in the configuration of \
                       each node turns them on";
        Self::protocol(error_code::PUSH_NOTIFICATION_NOT_SUPPORTED, message)
    }

    /// The extended card, which the card does not declare (spec 3.1.11).
    pub fn no_extended_card() -> Self {
        Self::unsupported("there is no extended agent card: the agent card does not declare one")
    }

    /// Nobody is known to ask.
    pub fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new(UNAUTHENTICATED, reason::UNAUTHENTICATED, message)
    }

    /// Who asks is known, and may not ask for this.
    pub fn permission_denied(message: impl Into<String>) -> Self {
        Self::new(PERMISSION_DENIED, reason::PERMISSION_DENIED, message)
    }

    /// Who asks, or where it asks from, asks too often.
    pub fn rate_limited(message: impl Into<String>, wait: std::time::Duration) -> Self {
        Self::new(error_code::INTERNAL_ERROR, reason::RATE_LIMITED, message).retry_after(wait)
    }

    /// A parameter that is missing or wrong.
    pub fn invalid_params(field: Field) -> Self {
        let mut error = Self::new(error_code::INVALID_PARAMS, reason::INVALID_PARAMS, field.to_string());
        error.field = Some(field);
        error
    }

    /// No quorum, or none within the deadline.
    pub fn unavailable(detail: impl std::fmt::Display) -> Self {
        /// A new leader is there within a second of the loss of the old one.
        const RETRY_AFTER_MS: u64 = 1_000;
        let mut error = Self::new(error_code::INTERNAL_ERROR, reason::UNAVAILABLE, format!("unavailable: {detail}"));
        error.retry_after_ms = Some(RETRY_AFTER_MS);
        error
    }

    /// The same, and when it is worth another try.
    #[must_use]
    pub fn retry_after(mut self, wait: std::time::Duration) -> Self {
        self.retry_after_ms = Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// The request may or may not have been taken.
    pub fn outcome_unknown(detail: impl std::fmt::Display) -> Self {
        let message = format!("outcome is unknown: {detail}; sending the same message again is safe");
        let mut error = Self::unavailable("");
        error.message = message;
        error.metadata.insert("outcome", reason::OUTCOME_UNKNOWN.to_owned());
        error
    }

    /// A bug.
    pub fn internal(detail: impl std::fmt::Display) -> Self {
        Self::new(error_code::INTERNAL_ERROR, reason::INTERNAL, format!("internal error: {detail}"))
    }

    /// When it is worth another try, as the header `Retry-After` says it.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after_ms.map(|ms| ms.div_ceil(1_000))
    }

    /// The JSON-RPC error object.
    pub fn to_json(&self) -> Value {
        json!({ "code": self.code, "message": self.message, "data": self.details() })
    }

    /// What programs read: `ErrorInfo`, the field that is wrong, when another try is worth it (spec 5.4, 9.5).
    fn details(&self) -> Vec<Value> {
        let mut info = json!({
            "@type": a2a::errordetails::ERROR_INFO_TYPE,
            "reason": self.reason,
            "domain": self.domain(),
        });
        if !self.metadata.is_empty() {
            info["metadata"] = json!(self.metadata);
        }
        let mut details = vec![info];
        if let Some(Field { field, problem }) = &self.field {
            details.push(json!({
                "@type": a2a::errordetails::BAD_REQUEST_TYPE,
                "fieldViolations": [{ "field": field, "description": problem }],
            }));
        }
        if let Some(ms) = self.retry_after_ms {
            details.push(json!({ "@type": RETRY_INFO_TYPE, "retryDelay": format!("{}.{:03}s", ms / 1000, ms % 1000) }));
        }
        details
    }

    fn domain(&self) -> &'static str {
        let defined_by_a2a = (-32009..=-32001).contains(&self.code);
        if defined_by_a2a { a2a::errordetails::PROTOCOL_DOMAIN } else { DOMAIN }
    }
}

/// JSON-RPC code of [`reason::TASK_GENERATION_MISMATCH`], as the draft of A2A 1.1 has it.
const GENERATION_MISMATCH_CODE: i32 = -32010;

/// Type of the detail that says when another try is worth it.
pub(crate) const RETRY_INFO_TYPE: &str = "type.googleapis.com/google.rpc.RetryInfo";

impl From<Field> for WireError {
    fn from(field: Field) -> Self {
        Self::invalid_params(field)
    }
}

/// What a client is told when the core refuses its command.
impl From<Rejection> for WireError {
    fn from(rejection: Rejection) -> Self {
        let message = rejection.to_string();
        let invalid = |reason| WireError::new(error_code::INVALID_PARAMS, reason, message.clone());
        match &rejection {
            Rejection::UnknownTask { .. } => WireError::protocol(error_code::TASK_NOT_FOUND, message),
            Rejection::TaskEnded { state, .. } | Rejection::TaskBusy { state, .. } => {
                let mut error = WireError::unsupported(message);
                error.metadata.insert("state", state_name(*state).to_owned());
                error
            }
            Rejection::NotCancelable { state, .. } => {
                let mut error = WireError::protocol(error_code::TASK_NOT_CANCELABLE, message);
                error.metadata.insert("state", state_name(*state).to_owned());
                error
            }
            Rejection::GenerationMismatch { current, .. } => {
                let mut error = WireError::new(GENERATION_MISMATCH_CODE, reason::TASK_GENERATION_MISMATCH, message);
                error.metadata.insert("generation", current.to_string());
                error
            }
            Rejection::UnknownAgent { .. } => invalid(reason::UNKNOWN_AGENT),
            Rejection::ContextMismatch { .. } => invalid(reason::CONTEXT_MISMATCH),
            Rejection::MessageReused { task, .. } => {
                let mut error = invalid(reason::MESSAGE_REUSED);
                error.metadata.insert("task", task.to_string());
                error
            }
            Rejection::EmptyMessage => invalid(reason::EMPTY_MESSAGE),
            Rejection::UndecidedDoubt { .. } => invalid(reason::UNDECIDED_DOUBT),
            Rejection::TooLarge { .. } => invalid(reason::TOO_LARGE),
            Rejection::TooManyHops { .. } => invalid(reason::TOO_MANY_HOPS),
            Rejection::Full { retry_after_ms, .. } => {
                let mut error = WireError::new(error_code::INTERNAL_ERROR, reason::RESOURCE_EXHAUSTED, message);
                error.retry_after_ms = Some(*retry_after_ms);
                error
            }
            Rejection::NotAsked { .. } | Rejection::NotAllowed { .. } => {
                WireError::new(error_code::INVALID_REQUEST, reason::NOT_ALLOWED, message)
            }
            // No request of an A2A client leads to these.
            Rejection::StaleEpoch { .. }
            | Rejection::ReportGap { .. }
            | Rejection::NotInDoubt { .. }
            | Rejection::StepNotInDoubt { .. }
            | Rejection::SeveralInDoubt { .. }
            | Rejection::UnexpectedStep { .. }
            | Rejection::UnknownToken
            | Rejection::TokenExpired
            | Rejection::TokenUsed { .. }
            | Rejection::NameTaken { .. }
            | Rejection::AddressTaken { .. }
            | Rejection::OtherKey { .. }
            | Rejection::OnlySigner { .. }
            | Rejection::IsWorker { .. }
            | Rejection::IsNoWorker { .. }
            | Rejection::UnknownNode { .. }
            | Rejection::NodeRemoved { .. }
            | Rejection::QuorumNeeds { .. }
            | Rejection::NotUp { .. }
            | Rejection::PeerWithoutUrl { .. }
            | Rejection::NameInUse { .. }
            | Rejection::UnknownPeer { .. }
            | Rejection::UnknownTrigger { .. }
            | Rejection::TriggerInUse { .. }
            | Rejection::ResourceInUse { .. }
            | Rejection::DeclaredTrigger { .. }
            | Rejection::StaleTrigger { .. }
            | Rejection::AgentInUse { .. }
            | Rejection::AlreadyFounded { .. }
            | Rejection::ServerIdInUse { .. }
            | Rejection::SignIn(_) => WireError::internal(message),
        }
    }
}

#[cfg(test)]
mod tests;

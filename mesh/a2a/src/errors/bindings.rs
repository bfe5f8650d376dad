//! The same error on the other two bindings: HTTP+JSON and gRPC (spec 5.4, as of 1.0.1).

use std::{collections::HashMap, time::Duration};

use a2a::error_code;
use http::StatusCode;
use serde_json::{Value, json};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::{WireError, reason};

impl WireError {
    /// Kind of failure, as gRPC tells it.
    pub fn grpc_code(&self) -> Code {
        match self.reason {
            reason::UNAVAILABLE => Code::Unavailable,
            reason::RESOURCE_EXHAUSTED | reason::RATE_LIMITED => Code::ResourceExhausted,
            reason::UNAUTHENTICATED => Code::Unauthenticated,
            reason::NOT_ALLOWED | reason::PERMISSION_DENIED => Code::PermissionDenied,
            reason::METHOD_NOT_FOUND => Code::Unimplemented,
            reason::TASK_GENERATION_MISMATCH => Code::Aborted,
            reason::COMMAND_REFUSED => Code::FailedPrecondition,
            _ => match self.code {
                error_code::TASK_NOT_FOUND => Code::NotFound,
                error_code::TASK_NOT_CANCELABLE
                | error_code::PUSH_NOTIFICATION_NOT_SUPPORTED
                | error_code::UNSUPPORTED_OPERATION
                | error_code::EXTENDED_CARD_NOT_CONFIGURED
                | error_code::EXTENSION_SUPPORT_REQUIRED
                | error_code::VERSION_NOT_SUPPORTED => Code::FailedPrecondition,
                error_code::INTERNAL_ERROR | error_code::INVALID_AGENT_RESPONSE => Code::Internal,
                // CONTENT_TYPE_NOT_SUPPORTED, and what is wrong with a request.
                _ => Code::InvalidArgument,
            },
        }
    }

    /// Status of an HTTP+JSON answer.
    pub fn http_status(&self) -> StatusCode {
        if self.reason == reason::BODY_TOO_LARGE {
            return StatusCode::PAYLOAD_TOO_LARGE;
        }
        match self.grpc_code() {
            Code::NotFound | Code::Unimplemented => StatusCode::NOT_FOUND,
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::Aborted => StatusCode::CONFLICT,
            Code::InvalidArgument | Code::FailedPrecondition => StatusCode::BAD_REQUEST,
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::AlreadyExists
            | Code::OutOfRange
            | Code::Internal
            | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Body of an HTTP+JSON answer: `google.rpc.Status` in JSON, under `error` (AIP-193).
    pub fn to_http_json(&self) -> Value {
        let status = status_name(self.grpc_code());
        let code = self.http_status().as_u16();
        json!({ "error": { "code": code, "status": status, "message": self.message, "details": self.details() } })
    }

    /// The gRPC status, with the same details.
    pub fn to_grpc(&self) -> Status {
        let metadata: HashMap<String, String> =
            self.metadata.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        let mut details = ErrorDetails::with_error_info(self.reason, self.domain(), metadata);
        if let Some(field) = &self.field {
            details.add_bad_request_violation(&field.field, &field.problem);
        }
        if let Some(ms) = self.retry_after_ms {
            details.set_retry_info(Some(Duration::from_millis(ms)));
        }
        Status::with_error_details(self.grpc_code(), self.message.clone(), details)
    }
}

/// Name of a code in JSON, as `google.rpc.Code` has it.
fn status_name(code: Code) -> &'static str {
    match code {
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::NotFound => "NOT_FOUND",
        Code::Unauthenticated => "UNAUTHENTICATED",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::Unavailable => "UNAVAILABLE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Aborted => "ABORTED",
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::AlreadyExists
        | Code::OutOfRange
        | Code::Internal
        | Code::DataLoss => "INTERNAL",
    }
}

#[cfg(test)]
mod tests;

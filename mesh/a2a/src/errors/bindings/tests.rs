use tonic_types::StatusExt as _;

use super::*;
use crate::Field;

/// Spec 5.4 as of 1.0.1, and ours beside it.
#[test]
fn each_error_has_its_status_on_each_binding() {
    let unsupported_type = WireError::content_type("text/plain");
    let table = [
        (WireError::unknown_task("t"), Code::NotFound, 404, "NOT_FOUND"),
        (WireError::unsupported("no"), Code::FailedPrecondition, 400, "FAILED_PRECONDITION"),
        (WireError::no_push(), Code::FailedPrecondition, 400, "FAILED_PRECONDITION"),
        (WireError::version(None), Code::FailedPrecondition, 400, "FAILED_PRECONDITION"),
        (unsupported_type, Code::InvalidArgument, 400, "INVALID_ARGUMENT"),
        (Field::new("message", "is required").into(), Code::InvalidArgument, 400, "INVALID_ARGUMENT"),
        (WireError::unknown_method("Fly"), Code::Unimplemented, 404, "UNIMPLEMENTED"),
        (WireError::body_too_large(1), Code::InvalidArgument, 413, "INVALID_ARGUMENT"),
        (WireError::unavailable("no leader"), Code::Unavailable, 503, "UNAVAILABLE"),
        (WireError::internal("a bug"), Code::Internal, 500, "INTERNAL"),
    ];
    for (error, code, http, name) in table {
        assert_eq!((error.grpc_code(), error.http_status().as_u16()), (code, http), "{error}");
        let body = error.to_http_json();
        assert_eq!((&body["error"]["status"], &body["error"]["code"]), (&json!(name), &json!(http)), "{error}");
        assert_eq!(body["error"]["details"], error.to_json()["data"], "the same details as JSON-RPC");
        let status = error.to_grpc();
        assert_eq!((status.code(), status.message()), (code, error.message.as_str()));
        let info = status.get_details_error_info().expect("an ErrorInfo");
        assert_eq!((info.reason.as_str(), info.domain.as_str()), (error.reason, error.domain()));
    }
}

#[test]
fn grpc_is_told_the_field_and_the_time_to_wait() {
    let status = WireError::from(Field::new("message.parts", "is required")).to_grpc();
    let wrong = status.get_details_bad_request().expect("a BadRequest").field_violations;
    assert_eq!((wrong[0].field.as_str(), wrong[0].description.as_str()), ("message.parts", "is required"));
    let wait = WireError::unavailable("no leader").to_grpc().get_details_retry_info().expect("a RetryInfo").retry_delay;
    assert_eq!(wait, Some(Duration::from_secs(1)));
}

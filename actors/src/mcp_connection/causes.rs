//! What rmcp reports, in words for people: what happened, and why. Its own texts name its types.

use rmcp::{
    model::ErrorData,
    service::{ClientInitializeError, QuitReason, ServiceError},
    transport::{DynamicTransportError, streamable_http_client::StreamableHttpError},
};

use super::socket;

/// What stands for an answer that is JSON of another shape.
const NO_MESSAGE: &str = "it is JSON, and no message of MCP";

/// Why a handshake came to nothing.
#[expect(clippy::wildcard_enum_match_arm, reason = "rmcp may add kinds; none of the rest has words of its own")]
pub(super) fn of_handshake(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::ExpectedInitResponse(_) | ClientInitializeError::ExpectedInitResult(_) => {
            "what the server said first is no answer to the handshake".to_owned()
        }
        ClientInitializeError::ConflictInitResponseId(asked, answered)
        | ClientInitializeError::UncorrelatedErrorResponse { expected: asked, received: answered } => {
            format!("the server answered request {answered}, and {asked} was asked")
        }
        ClientInitializeError::ConnectionClosed(_) => {
            "the server closed the connection before it had answered".to_owned()
        }
        ClientInitializeError::TransportError { error, .. } => of_transport(error),
        ClientInitializeError::JsonRpcError(said) => of_error(said),
        ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. } => {
            let spoken: Vec<String> = server_supported.iter().map(ToString::to_string).collect();
            format!("the server speaks no revision that is spoken here, but {}", spoken.join(", "))
        }
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => of_handshake(fallback),
        other => other.to_string(),
    }
}

/// Why a request has no result.
#[expect(clippy::wildcard_enum_match_arm, reason = "rmcp may add kinds; none of the rest has words of its own")]
pub(super) fn of_request(error: &ServiceError) -> String {
    match error {
        ServiceError::McpError(said) => of_error(said),
        ServiceError::TransportSend(error) => of_transport(error),
        ServiceError::TransportClosed => "the connection ended before the answer".to_owned(),
        ServiceError::UnexpectedResponse => "the answer is one to something else".to_owned(),
        ServiceError::Timeout { timeout } => format!("no answer after {timeout:?}"),
        ServiceError::Cancelled { reason } => {
            reason.as_ref().map_or_else(|| "canceled".to_owned(), |reason| format!("canceled: {reason}"))
        }
        ServiceError::InputRequiredRoundsExceeded { max_rounds } => {
            format!("the server asked more than {max_rounds} times in a row")
        }
        other => other.to_string(),
    }
}

/// Why a connection that stood is over.
pub(super) fn of_end(quit: &Result<QuitReason, tokio::task::JoinError>) -> String {
    match quit {
        Ok(QuitReason::Closed) => "the server closed the connection".to_owned(),
        Ok(QuitReason::Cancelled) => "the connection was ended here".to_owned(),
        Ok(QuitReason::JoinError(error)) | Err(error) => format!("the connection broke: {error}"),
        Ok(_) => "the connection ended".to_owned(),
    }
}

/// What is wrong with a text that should be a message.
pub(super) fn of_json(error: &serde_json::Error) -> String {
    if error.is_data() { NO_MESSAGE.to_owned() } else { error.to_string() }
}

/// What went wrong over HTTP.
#[expect(clippy::wildcard_enum_match_arm, reason = "the rest has plain words, and rmcp may add kinds")]
pub(super) fn of_http(error: &StreamableHttpError<reqwest::Error>) -> String {
    match error {
        StreamableHttpError::Client(error) => socket::chain(error),
        StreamableHttpError::Io(error) => socket::chain(error),
        StreamableHttpError::HttpStatus(status) => format!("the server answered HTTP {}", status.status),
        StreamableHttpError::UnexpectedServerResponse(what) => what.to_string(),
        StreamableHttpError::UnexpectedContentType(found) => {
            let found = found.as_deref().unwrap_or("nothing that says what it is");
            format!("the server answered with {found}, and neither with JSON nor with events")
        }
        StreamableHttpError::Deserialize(error) => format!("the answer cannot be read: {}", of_json(error)),
        StreamableHttpError::SessionExpired => "the server does not know the session any more (HTTP 404)".to_owned(),
        StreamableHttpError::UnexpectedEndOfStream => "the stream of the server ended before the answer".to_owned(),
        StreamableHttpError::TransportChannelClosed => "the connection has ended".to_owned(),
        StreamableHttpError::TokioJoinError(error) => format!("the connection broke: {error}"),
        other => other.to_string(),
    }
}

fn of_transport(error: &DynamicTransportError) -> String {
    match error.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        Some(error) => of_http(error),
        None => format!("the connection broke: {}", socket::chain(&*error.error)),
    }
}

fn of_error(said: &ErrorData) -> String {
    format!("the server answered with error {}: {}", said.code.0, said.message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmcp::model::{ErrorCode, RequestId, ServerJsonRpcMessage};
    use std::any::TypeId;

    /// As rmcp wraps it: with the whole name of a type of its own.
    fn wrapped(error: impl std::error::Error + Send + Sync + 'static) -> DynamicTransportError {
        let name = "rmcp::transport::worker::WorkerTransport<towline_actors::mcp_connection::socket::Socket>";
        DynamicTransportError::from_parts(name, TypeId::of::<()>(), Box::new(error))
    }

    fn is_plain(text: &str) {
        for name in ["::", "Error", "Transport", "Some(", "{", "enum", "struct"] {
            assert!(!text.contains(name), "{name:?} in {text:?}");
        }
    }

    #[test]
    fn what_went_wrong_is_said_without_the_names_of_types() {
        let refused = || std::io::Error::other("connection refused");
        let http = |what: &'static str| StreamableHttpError::<reqwest::Error>::UnexpectedServerResponse(what.into());
        let sent = |error| ClientInitializeError::TransportError { error, context: "send initialize request".into() };
        let id = RequestId::Number;
        for (error, says) in [
            (sent(wrapped(refused())), "the connection broke: connection refused"),
            (sent(wrapped(http("HTTP 404 Not Found: no such page"))), "HTTP 404 Not Found: no such page"),
            (ClientInitializeError::ConnectionClosed("initialize response".into()), "closed the connection before"),
            (ClientInitializeError::ExpectedInitResponse(None), "no answer to the handshake"),
            (ClientInitializeError::ConflictInitResponseId(id(1), id(2)), "answered request 2, and 1 was asked"),
            (
                ClientInitializeError::JsonRpcError(ErrorData::new(ErrorCode(-32000), "busy", None)),
                "answered with error -32000: busy",
            ),
        ] {
            let said = of_handshake(&error);
            assert!(said.contains(says), "{said}");
            is_plain(&said);
        }
        for (error, says) in [
            (ServiceError::TransportSend(wrapped(refused())), "connection refused"),
            (ServiceError::TransportSend(wrapped(StreamableHttpError::<reqwest::Error>::SessionExpired)), "HTTP 404"),
            (ServiceError::TransportClosed, "ended before the answer"),
            (ServiceError::UnexpectedResponse, "to something else"),
        ] {
            let said = of_request(&error);
            assert!(said.contains(says), "{said}");
            is_plain(&said);
        }
        is_plain(&of_end(&Ok(QuitReason::Cancelled)));
    }

    #[test]
    fn what_is_no_message_is_said_to_be_none() {
        let error = serde_json::from_str::<ServerJsonRpcMessage>("{}").unwrap_err();
        assert_eq!(of_json(&error), NO_MESSAGE);
        let error = serde_json::from_str::<ServerJsonRpcMessage>("<html>").unwrap_err();
        assert!(of_json(&error).contains("line 1 column 1"), "{error}");
    }
}

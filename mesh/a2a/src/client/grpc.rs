//! gRPC as a client speaks it (spec 10), over the HTTP client that everything else goes through: so one policy of redirects,
//! timeouts and certificates holds for all bindings. Requests and answers pass through ProtoJSON, as the other bindings have
//! them.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use a2a::methods;
use a2a_pb::protojson_conv::ProtoJsonPayload;
use futures::StreamExt;
use http::{HeaderMap, uri::PathAndQuery};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tonic::{Code, Request, Status, Streaming, client::Grpc};
use tonic_types::StatusExt as _;

use super::{
    ClientError, MAX_ANSWER_BYTES,
    counted::{Counted, TooMuch},
};
use crate::{
    EventStream, StreamItem,
    convert::{AnswerKind, params_of, result_to, stream_event_from_wire},
    errors::reason,
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The HTTP client as the transport of gRPC.
#[derive(Clone)]
struct Transport {
    http: reqwest::Client,
    base: String,
    headers: HeaderMap,
}

impl tower::Service<http::Request<tonic::body::Body>> for Transport {
    type Response = http::Response<reqwest::Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let Transport { http, base, headers } = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let url = format!("{}{}", base.trim_end_matches('/'), parts.uri.path());
            let sent = http.post(url).version(http::Version::HTTP_2).headers(parts.headers).headers(headers).body(body);
            Ok(sent.send().await.map_err(reqwest::Error::without_url)?.into())
        })
    }
}

/// A client of the service at `base`. `http` speaks HTTP/2 from the first byte where `base` is plain.
pub(super) struct Client {
    endpoint: String,
    inner: Grpc<Transport>,
}

impl Client {
    pub(super) fn new(http: reqwest::Client, base: &str, headers: HeaderMap) -> Self {
        let transport = Transport { http, base: base.to_owned(), headers };
        let inner = Grpc::new(transport).max_decoding_message_size(MAX_ANSWER_BYTES);
        Self { endpoint: base.to_owned(), inner }
    }

    /// One call with one answer.
    pub(super) async fn call(self, method: &str, params: Value) -> Result<Value, ClientError> {
        match method {
            methods::SEND_MESSAGE => {
                let path = PathAndQuery::from_static("/lf.a2a.v1.A2AService/SendMessage");
                self.unary::<a2a::SendMessageRequest, a2a::SendMessageResponse>(path, params, AnswerKind::Reply).await
            }
            methods::LIST_TASKS => {
                let path = PathAndQuery::from_static("/lf.a2a.v1.A2AService/ListTasks");
                self.unary::<a2a::ListTasksRequest, a2a::ListTasksResponse>(path, params, AnswerKind::Tasks).await
            }
            methods::CANCEL_TASK => {
                let path = PathAndQuery::from_static("/lf.a2a.v1.A2AService/CancelTask");
                self.unary::<a2a::CancelTaskRequest, a2a::Task>(path, params, AnswerKind::Task).await
            }
            // GetTask is the only other method that is called.
            _ => {
                let path = PathAndQuery::from_static("/lf.a2a.v1.A2AService/GetTask");
                self.unary::<a2a::GetTaskRequest, a2a::Task>(path, params, AnswerKind::Task).await
            }
        }
    }

    async fn unary<Q, A>(mut self, path: PathAndQuery, params: Value, kind: AnswerKind) -> Result<Value, ClientError>
    where
        Q: ProtoJsonPayload,
        A: ProtoJsonPayload,
        Q::Proto: prost::Message + 'static,
        A::Proto: prost::Message + Default + 'static,
    {
        let request = Request::new(message::<Q>(&self.endpoint, params)?);
        let answered = self.inner.unary(request, path, Counted::<Q::Proto, A::Proto>::new(kind)).await;
        answer::<A>(&self.endpoint, answered.map_err(|status| error(&self.endpoint, &status))?.get_ref())
    }

    async fn events<Q>(
        &mut self,
        path: PathAndQuery,
        params: Value,
    ) -> Result<Streaming<a2a_pb::StreamResponse>, ClientError>
    where
        Q: ProtoJsonPayload,
        Q::Proto: prost::Message + 'static,
    {
        let request = Request::new(message::<Q>(&self.endpoint, params)?);
        let codec = Counted::<Q::Proto, a2a_pb::StreamResponse>::new(AnswerKind::Reply);
        let opened = self.inner.server_streaming(request, path, codec).await;
        opened.map(tonic::Response::into_inner).map_err(|status| error(&self.endpoint, &status))
    }

    /// A stream of events.
    pub(super) async fn stream(
        mut self,
        method: &str,
        params: Value,
        idle: Duration,
    ) -> Result<EventStream, ClientError> {
        let events = if method == methods::SEND_STREAMING_MESSAGE {
            let path = PathAndQuery::from_static("/lf.a2a.v1.A2AService/SendStreamingMessage");
            self.events::<a2a::SendMessageRequest>(path, params).await?
        } else {
            let path = PathAndQuery::from_static("/lf.a2a.v1.A2AService/SubscribeToTask");
            self.events::<a2a::SubscribeToTaskRequest>(path, params).await?
        };
        let endpoint = self.endpoint;
        let items = futures::stream::unfold(Some((events, endpoint)), move |open| async move {
            let (mut events, endpoint) = open?;
            let next = match tokio::time::timeout(idle, events.next()).await {
                Ok(next) => next?,
                Err(_) => return Some((Err(ClientError::Timeout { endpoint, after: idle }), None)),
            };
            match next.map_err(|status| error(&endpoint, &status)).and_then(|event| item(&endpoint, &event)) {
                Ok(item) => Some((Ok(item), Some((events, endpoint)))),
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(EventStream::of_items(items.boxed()))
    }
}

fn message<T: ProtoJsonPayload>(endpoint: &str, params: Value) -> Result<T::Proto, ClientError> {
    result_to::<T>(params).map_err(|error| malformed(endpoint, error.message))
}

fn answer<T: ProtoJsonPayload>(endpoint: &str, answer: &T::Proto) -> Result<Value, ClientError> {
    params_of::<T>(answer).map_err(|error| malformed(endpoint, error.message))
}

fn item(endpoint: &str, event: &a2a_pb::StreamResponse) -> Result<StreamItem, ClientError> {
    let raw = answer::<a2a::StreamResponse>(endpoint, event)?;
    let event = stream_event_from_wire(raw.clone()).map_err(|detail| malformed(endpoint, detail))?;
    Ok(StreamItem { id: event.generation(), event, raw })
}

fn malformed(endpoint: &str, detail: String) -> ClientError {
    ClientError::Malformed { endpoint: endpoint.to_owned(), detail }
}

/// What a status means: a refusal of the agent, or a connection that did not come about or broke.
fn error(endpoint: &str, status: &Status) -> ClientError {
    let endpoint = endpoint.to_owned();
    if let Some(source) = std::error::Error::source(status) {
        if let Some(TooMuch(detail)) = source.downcast_ref() {
            return ClientError::Malformed { endpoint, detail: detail.clone() };
        }
        return match find_transport(source) {
            Some(true) => ClientError::Unreachable { endpoint, source: Box::new(status.clone()) },
            Some(false) | None => ClientError::Broken { endpoint, source: Box::new(status.clone()) },
        };
    }
    if matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied) {
        let http = if status.code() == Code::Unauthenticated { 401 } else { 403 };
        return ClientError::Auth { endpoint, status: http };
    }
    let details = status.get_error_details();
    let found = details.error_info().map(|info| info.reason.clone());
    let by_status = match status.code() {
        Code::NotFound => a2a::error_code::TASK_NOT_FOUND,
        Code::Unimplemented => a2a::error_code::METHOD_NOT_FOUND,
        Code::InvalidArgument => a2a::error_code::INVALID_PARAMS,
        Code::FailedPrecondition => a2a::error_code::UNSUPPORTED_OPERATION,
        // What no agent says by itself: the connection ended in the middle.
        Code::Unknown | Code::Cancelled if found.is_none() => {
            return ClientError::Broken { endpoint, source: Box::new(status.clone()) };
        }
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::OutOfRange
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss
        | Code::Unauthenticated => a2a::error_code::INTERNAL_ERROR,
    };
    let is_unavailable = status.code() == Code::Unavailable;
    ClientError::Protocol {
        code: found.as_deref().and_then(a2a::errors::reason_to_error_code).unwrap_or(by_status),
        message: status.message().to_owned(),
        reason: found.or_else(|| is_unavailable.then(|| reason::UNAVAILABLE.to_owned())),
        retry_after: details.retry_info().and_then(|info| info.retry_delay),
    }
}

/// Whether the cause lies in the connection, and if so, whether there was none.
fn find_transport(source: &(dyn std::error::Error + 'static)) -> Option<bool> {
    let mut next = Some(source);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<reqwest::Error>() {
            return Some(error.is_connect() || error.is_builder());
        }
        next = error.source();
    }
    None
}

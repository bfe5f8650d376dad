//! The gRPC binding (spec 10): the service of the protocol's own protobuf, on the same port as everything else. Requests become
//! ProtoJSON, so that what is behind the bindings is one.

use std::pin::Pin;

use a2a::methods;
use a2a_pb::{
    AgentCard, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse, ListTasksRequest, ListTasksResponse, SendMessageRequest,
    SendMessageResponse, StreamResponse, SubscribeToTaskRequest, Task, TaskPushNotificationConfig,
    a2a_service_server::{A2aService, A2aServiceServer},
    protojson_conv::ProtoJsonPayload,
};
use axum::{
    Router,
    body::Body,
    extract::State,
    response::{IntoResponse, Response as HttpResponse},
    routing::post,
};
use futures::{Stream, StreamExt, stream};
use http::{Request as HttpRequest, request::Parts};
use prost::Message as _;
use serde_json::Value;
use tonic::{Code, Request, Response, Status, server::NamedService as _};
use tower::ServiceExt as _;
use towline_a2a::{Field, WireError, convert, errors::reason};

use super::{
    Asking, Exchanged, Shared,
    call::{Binding, Call, MAX_BODY_BYTES, check_version, decode, read_up_to},
    exchange,
    extensions::Marks,
    handler::{Method, Outcome},
    principal::{self, Caller},
    stream::{Item, Streamed},
};

/// What stands before each message: whether it is compressed, and its length.
const FRAME_BYTES: usize = 5;

/// How tonic begins to say that it cannot decode a message, as if that were the server's doing.
const UNDECODABLE: &str = "failed to decode Protobuf message";

/// The events of a task.
type Events = Pin<Box<dyn Stream<Item = Result<StreamResponse, Status>> + Send>>;

/// The route of the service.
pub(super) fn router() -> Router<Shared> {
    Router::new().route(&format!("/{}/{{method}}", A2aServiceServer::<Service>::NAME), post(serve))
}

/// Who asks is known before a byte of the body is read.
async fn serve(State(shared): State<Shared>, request: HttpRequest<Body>) -> HttpResponse {
    let (mut parts, body) = request.into_parts();
    let caller = match principal::caller(&parts, &shared) {
        Ok(caller) => caller,
        Err(refused) => return refused.into_response(),
    };
    let known = parts.uri.path().rsplit_once('/').map(|(_, method)| Method::named(method).map(|_| method));
    if let Some(Ok(method)) = known
        && let Err(error) = caller.check_method(method)
    {
        return error.to_grpc().into_http();
    }
    parts.extensions.insert(caller);
    let service = A2aServiceServer::new(Service(shared)).max_decoding_message_size(MAX_BODY_BYTES);
    let body = match read(&parts, body).await {
        Ok(body) => body,
        Err(error) => return error.to_grpc().into_http(),
    };
    let answered = service.oneshot(HttpRequest::from_parts(parts, tonic::body::Body::new(Body::from(body)))).await;
    let response = answered.unwrap_or_else(|never| match never {});
    match Status::from_header_map(response.headers()) {
        Some(status) if status.code() == Code::Internal && status.message().starts_with(UNDECODABLE) => {
            WireError::from(Field::new("request", "is not the protobuf message of this method")).to_grpc().into_http()
        }
        Some(_) | None => response.map(Body::new),
    }
}

/// Every method takes one message: it is read whole, and bounded before it is decoded.
async fn read(parts: &Parts, body: Body) -> Result<Vec<u8>, WireError> {
    let body = read_up_to(MAX_BODY_BYTES + FRAME_BYTES, &parts.headers, body).await;
    let body = body.map_err(|error| match error.reason {
        reason::BODY_TOO_LARGE => WireError::body_too_large(MAX_BODY_BYTES),
        _ => error,
    })?;
    let sends = [methods::SEND_MESSAGE, methods::SEND_STREAMING_MESSAGE];
    let is_send = sends.into_iter().any(|method| parts.uri.path().rsplit('/').next() == Some(method));
    let is_plain = body.first() == Some(&0);
    if let Some(message) = body.get(FRAME_BYTES..).filter(|_| is_send && is_plain) {
        decode(body.len(), || convert::check_protobuf(message)).await?;
    }
    Ok(body)
}

struct Service(Shared);

impl Service {
    async fn call<T: ProtoJsonPayload>(
        &self,
        method: &'static str,
        request: Request<T::Proto>,
    ) -> Result<(Outcome, Marks), Status> {
        let (metadata, extensions, message) = request.into_parts();
        let (mut parts, ()) = HttpRequest::new(()).into_parts();
        parts.method = http::Method::POST;
        parts.headers = metadata.into_headers();
        parts.extensions = extensions;
        let Some(caller) = parts.extensions.remove::<Caller>() else {
            return Err(WireError::internal("a request came without its caller").to_grpc());
        };
        let received = decode(message.encoded_len(), || receive::<T>(&parts, method, &message)).await;
        let route = format!("/{}/{method}", A2aServiceServer::<Service>::NAME);
        let asking = Asking { parts: &parts, agent: None, route, binding: Binding::Grpc };
        let Exchanged { result, mut span, marks } = exchange(&self.0, asking, caller, received).await;
        let code = result.as_ref().err().map_or(tonic::Code::Ok, WireError::grpc_code);
        span.set(towline_trace::names::RPC_RESPONSE_STATUS_CODE, i64::from(code as i32));
        result.map(|outcome| (outcome, marks)).map_err(|error| marked(error.to_grpc(), marks))
    }

    async fn unary<T, R>(&self, method: &'static str, request: Request<T::Proto>) -> Result<Response<R::Proto>, Status>
    where
        T: ProtoJsonPayload,
        R: ProtoJsonPayload,
    {
        match self.call::<T>(method, request).await? {
            (Outcome::Answer(result), marks) => Ok(with_marks(message_of::<R>(result)?, marks)),
            (Outcome::Stream(_), _) => Err(WireError::internal("a stream came where one answer is due").to_grpc()),
        }
    }

    async fn stream<T: ProtoJsonPayload>(
        &self,
        method: &'static str,
        request: Request<T::Proto>,
    ) -> Result<Response<Events>, Status> {
        match self.call::<T>(method, request).await? {
            (Outcome::Stream(stream), marks) => Ok(with_marks(events(stream), marks)),
            (Outcome::Answer(_), _) => Err(WireError::internal("one answer came where a stream is due").to_grpc()),
        }
    }
}

/// The same as the headers of the other bindings, in the metadata.
fn with_marks<T>(message: T, marks: Marks) -> Response<T> {
    let mut headers = http::HeaderMap::new();
    marks.put(&mut headers);
    Response::from_parts(tonic::metadata::MetadataMap::from_headers(headers), message, http::Extensions::new())
}

fn marked(mut status: Status, marks: Marks) -> Status {
    let mut headers = status.metadata().clone().into_headers();
    marks.put(&mut headers);
    *status.metadata_mut() = tonic::metadata::MetadataMap::from_headers(headers);
    status
}

fn receive<T: ProtoJsonPayload>(parts: &Parts, method: &str, message: &T::Proto) -> Result<Call, WireError> {
    check_version(&parts.headers, &parts.uri)?;
    Ok(Call { method: method.to_owned(), params: convert::params_of::<T>(message)? })
}

fn message_of<R: ProtoJsonPayload>(result: Value) -> Result<R::Proto, Status> {
    convert::result_to::<R>(result).map_err(|error| error.to_grpc())
}

/// A silent stream needs no sign of life here: HTTP/2 has its own.
fn events(stream: Streamed) -> Events {
    let items = stream::unfold(stream, |mut stream| async move {
        let item = stream.next().await?;
        Some((item, stream))
    });
    let messages = items.filter_map(|item| async move {
        match item {
            Item::Event(_, event) | Item::Unnumbered(event) => Some(message_of::<a2a::StreamResponse>(event)),
            Item::Silence => None,
        }
    });
    Box::pin(messages)
}

#[tonic::async_trait]
impl A2aService for Service {
    type SendStreamingMessageStream = Events;
    type SubscribeToTaskStream = Events;

    async fn send_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<SendMessageResponse>, Status> {
        self.unary::<a2a::SendMessageRequest, a2a::SendMessageResponse>(methods::SEND_MESSAGE, request).await
    }

    async fn send_streaming_message(&self, request: Request<SendMessageRequest>) -> Result<Response<Events>, Status> {
        self.stream::<a2a::SendMessageRequest>(methods::SEND_STREAMING_MESSAGE, request).await
    }

    async fn get_task(&self, request: Request<GetTaskRequest>) -> Result<Response<Task>, Status> {
        self.unary::<a2a::GetTaskRequest, a2a::Task>(methods::GET_TASK, request).await
    }

    async fn list_tasks(&self, request: Request<ListTasksRequest>) -> Result<Response<ListTasksResponse>, Status> {
        self.unary::<a2a::ListTasksRequest, a2a::ListTasksResponse>(methods::LIST_TASKS, request).await
    }

    async fn cancel_task(&self, request: Request<CancelTaskRequest>) -> Result<Response<Task>, Status> {
        self.unary::<a2a::CancelTaskRequest, a2a::Task>(methods::CANCEL_TASK, request).await
    }

    async fn subscribe_to_task(&self, request: Request<SubscribeToTaskRequest>) -> Result<Response<Events>, Status> {
        self.stream::<a2a::SubscribeToTaskRequest>(methods::SUBSCRIBE_TO_TASK, request).await
    }

    async fn create_task_push_notification_config(
        &self,
        request: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        self.unary::<a2a::TaskPushNotificationConfig, a2a::TaskPushNotificationConfig>(
            methods::CREATE_PUSH_CONFIG,
            request,
        )
        .await
    }

    async fn get_task_push_notification_config(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        self.unary::<a2a::GetTaskPushNotificationConfigRequest, a2a::TaskPushNotificationConfig>(
            methods::GET_PUSH_CONFIG,
            request,
        )
        .await
    }

    async fn list_task_push_notification_configs(
        &self,
        request: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        self.unary::<a2a::ListTaskPushNotificationConfigsRequest, a2a::ListTaskPushNotificationConfigsResponse>(
            methods::LIST_PUSH_CONFIGS,
            request,
        )
        .await
    }

    async fn get_extended_agent_card(
        &self,
        request: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        self.unary::<a2a::GetExtendedAgentCardRequest, a2a::AgentCard>(methods::GET_EXTENDED_AGENT_CARD, request).await
    }

    async fn delete_task_push_notification_config(
        &self,
        request: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<()>, Status> {
        let method = methods::DELETE_PUSH_CONFIG;
        let (_, marks) = self.call::<a2a::DeleteTaskPushNotificationConfigRequest>(method, request).await?;
        Ok(with_marks((), marks))
    }
}

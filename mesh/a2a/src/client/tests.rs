use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};
use towline_core::{Metadata, Part, Role};

use super::*;
use crate::StreamEvent;

const TASK: &str = r#"{"id":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}"#;

#[tokio::test]
async fn a_request_says_version_trace_and_last_event() {
    let (client, asked) = peer(sse(&[])).await;
    let client = client.with_header("authorization", "Bearer x").unwrap();
    let trace = TraceContext { trace_id: 1, span_id: 2, sampled: true };
    client.subscribe("t", Some(7), Some(&trace)).await.unwrap();

    let request = asked.await.unwrap().to_lowercase();
    for line in [
        "a2a-version: 1.0",
        "last-event-id: 7",
        "authorization: bearer x",
        "content-type: application/json",
        "traceparent: 00-00000000000000000000000000000001-0000000000000002-01",
    ] {
        assert!(request.contains(&format!("{line}\r\n")), "{line} in {request}");
    }
    assert!(request.contains(r#""method":"subscribetotask""#), "{request}");
}

#[tokio::test]
async fn a_stream_is_read_frame_by_frame_whatever_the_packets() {
    let first = format!(": hello\n\nid: 3\ndata: {{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{\"task\":{TASK}}}}}\n");
    let update = r#"{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"}}}"#;
    let second = format!("\nid: 4\ndata: {{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{update}}}\n\n: keep-alive\n\n");
    let (head, tail) = second.split_at(20);
    let (client, _asked) = peer(sse(&[&first, head, tail])).await;

    let items: Vec<_> = client.subscribe("t", None, None).await.unwrap().collect().await;
    let items: Vec<_> = items.into_iter().map(Result::unwrap).collect();
    assert_eq!(items.iter().map(|item| item.id).collect::<Vec<_>>(), [Some(3), Some(4)]);
    assert!(matches!(&items[0].event, StreamEvent::Task(task) if task.id == "t"));
    assert_eq!(items[1].event.state(), Some(TaskState::Completed));
    assert_eq!(items[1].raw, serde_json::from_str::<Value>(update).unwrap(), "as the peer wrote it");
}

#[tokio::test]
async fn a_stream_that_breaks_ends_with_an_error() {
    let frame = format!("id: 1\ndata: {{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{\"task\":{TASK}}}}}\n\n");
    let mut answer = sse(&[&frame]);
    answer.pop();
    let (client, _asked) = peer(answer).await;
    let items: Vec<_> = client.subscribe("t", None, None).await.unwrap().collect().await;
    assert!(matches!(items[..], [Ok(_), Err(ClientError::Broken { .. })]), "{items:?}");
}

#[tokio::test]
async fn an_error_in_a_stream_or_instead_of_one_is_the_peers_error() {
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32004,"message":"ended"}}"#;
    let (client, _asked) = peer(json(200, error)).await;
    let refused = client.subscribe("t", None, None).await.unwrap_err();
    assert!(refused.is_unsupported(), "{refused:?}");

    let (client, _asked) = peer(sse(&[&format!("data: {error}\n\n")])).await;
    let items: Vec<_> = client.subscribe("t", None, None).await.unwrap().collect().await;
    assert!(matches!(items[..], [Err(ClientError::Protocol { code: -32004, .. })]), "{items:?}");
}

#[tokio::test]
async fn what_went_wrong_is_kept_apart() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let nobody = A2aClient::new(http_client(), format!("http://{free}/"));
    let error = nobody.get_task("t", None, None).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }) && error.is_transient(), "{error:?}");

    let table: [(Vec<String>, &str, bool); 6] = [
        (vec!["HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_owned()], "connection_broken", true),
        (json(401, "{}"), "auth", false),
        (json(403, "{}"), "auth", false),
        (json(200, "{"), "malformed_answer", false),
        (json(502, "<html>Bad Gateway</html>"), "502", false),
        (json(413, r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"large"}}"#), "-32600", false),
    ];
    for (answer, error_type, is_transient) in table {
        let shown = answer.concat();
        let (client, _asked) = peer(answer).await;
        let error = client.get_task("t", None, None).await.unwrap_err();
        assert_eq!((error.error_type().as_str(), error.is_transient()), (error_type, is_transient), "{shown}");
    }
}

#[tokio::test]
async fn an_answer_of_very_many_values_is_refused_for_good_whatever_its_length() {
    let many = format!("[{}1]", "{},".repeat(convert::MAX_ANSWER_VALUES));
    let answer = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{many}}}"#);
    let (client, _asked) = peer(json(200, &answer)).await;
    let whole = client.get_task("t", None, None).await.unwrap_err();
    let (client, _asked) = peer(sse(&[&format!("data: {answer}\n\n")])).await;
    let mut items: Vec<_> = client.subscribe("t", None, None).await.unwrap().collect().await;
    let streamed = items.pop().unwrap().unwrap_err();
    for error in [whole, streamed] {
        assert!(error.to_string().contains("it has more than 250000 values"), "{error}");
        assert_eq!((error.error_type().as_str(), error.is_transient()), ("malformed_answer", false));
    }
    let (client, _asked) = peer(json(500, &answer)).await;
    let failed = client.get_task("t", None, None).await.unwrap_err();
    assert_eq!((failed.error_type().as_str(), failed.is_transient()), ("500", false));
}

#[tokio::test]
async fn over_grpc_an_answer_of_very_many_values_is_refused_as_on_the_other_bindings() {
    let task = |values: usize| {
        let mut task: Value = serde_json::from_str(TASK).unwrap();
        task["metadata"] = json!({ "m": vec![json!([]); values] });
        task
    };
    let few = grpc_peer::<a2a::Task>(task(1_000));
    assert_eq!(few.get_task("t", None, None).await.unwrap().id, "t");
    let many = grpc_peer::<a2a::Task>(task(convert::MAX_ANSWER_VALUES));
    let whole = many.get_task("t", None, None).await.unwrap_err();
    let streams = grpc_peer::<a2a::StreamResponse>(json!({ "task": task(convert::MAX_ANSWER_VALUES) }));
    let mut items: Vec<_> = streams.subscribe("t", None, None).await.unwrap().collect().await;
    let streamed = items.pop().unwrap().unwrap_err();
    for error in [whole, streamed] {
        assert!(error.to_string().contains("it has more than 250000 values"), "{error}");
        assert_eq!((error.error_type().as_str(), error.is_transient()), ("malformed_answer", false));
    }
    let well = grpc_peer::<a2a::StreamResponse>(json!({ "task": task(10) }));
    let items: Vec<_> = well.subscribe("t", None, None).await.unwrap().collect().await;
    assert!(matches!(&items[..], [Ok(item)] if matches!(&item.event, StreamEvent::Task(task) if task.id == "t")));
}

#[tokio::test]
async fn the_reason_and_the_waiting_time_of_an_error_are_read() {
    let wire = crate::WireError::unavailable("no leader").to_json();
    let body = json!({ "jsonrpc": "2.0", "id": 1, "error": wire }).to_string();
    let (client, _asked) = peer(json(200, &body)).await;
    let error = client.cancel_task("t", None).await.unwrap_err();
    assert!(error.is_unavailable() && error.is_transient(), "{error:?}");
    let ClientError::Protocol { retry_after, .. } = error else { panic!("{error:?}") };
    assert_eq!(retry_after, Some(Duration::from_secs(1)));
}

#[tokio::test]
async fn a_peer_that_does_not_answer_is_not_waited_for_longer_than_said() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = A2aClient::new(http_client(), format!("http://{}/", listener.local_addr().unwrap()));
    let options = SendOptions { timeout: Some(Duration::from_millis(50)), ..SendOptions::default() };
    let error = client.send(&message(), options, None).await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { after, .. } if after == Duration::from_millis(50)), "{error:?}");
}

fn message() -> Message {
    Message {
        message_id: "m".parse().unwrap(),
        context_id: None,
        task_id: None,
        role: Role::User,
        parts: vec![Part::text("hello")],
        metadata: Metadata::new(),
        extensions: Vec::new(),
        reference_task_ids: Vec::new(),
    }
}

fn http_client() -> reqwest::Client {
    // Another test of this process may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

fn json(status: u16, body: &str) -> Vec<String> {
    let length = body.len();
    vec![format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")]
}

/// A stream of events; each of `packets` is written by itself. The last one ends it in order.
fn sse(packets: &[&str]) -> Vec<String> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
    let chunks = packets.iter().map(|packet| format!("{:x}\r\n{packet}\r\n", packet.len()));
    std::iter::once(head).chain(chunks).chain(["0\r\n\r\n".to_owned()]).collect()
}

/// A peer that answers one request with these packets and hangs up; what it was asked comes out of the channel.
async fn peer(packets: Vec<String>) -> (A2aClient, oneshot::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = A2aClient::new(http_client(), format!("http://{}/", listener.local_addr().unwrap()));
    let (asked, request) = oneshot::channel();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let _ = asked.send(read_request(&mut socket).await);
        for packet in packets {
            socket.write_all(packet.as_bytes()).await.unwrap();
            socket.flush().await.unwrap();
            tokio::task::yield_now().await;
        }
    });
    (client, request)
}

async fn read_request(socket: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return text;
            }
        }
        let mut buffer = [0; 1024];
        let count = socket.read(&mut buffer).await.unwrap();
        assert!(count > 0, "client hung up: {text}");
        bytes.extend_from_slice(&buffer[..count]);
    }
}

/// A service of gRPC that answers each call with one message.
#[derive(Clone)]
struct Answers(bytes::Bytes);

impl tonic::server::NamedService for Answers {
    const NAME: &'static str = "lf.a2a.v1.A2AService";
}

impl tower::Service<http::Request<tonic::body::Body>> for Answers {
    type Response = http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<tonic::body::Body>) -> Self::Future {
        use http_body_util::BodyExt as _;
        let mut framed = vec![0];
        framed.extend_from_slice(&u32::try_from(self.0.len()).unwrap().to_be_bytes());
        framed.extend_from_slice(&self.0);
        let end = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
        let body =
            http_body_util::Full::new(bytes::Bytes::from(framed)).with_trailers(std::future::ready(Some(Ok(end))));
        let answer = http::Response::builder().header(header::CONTENT_TYPE, "application/grpc");
        std::future::ready(Ok(answer.body(tonic::body::Body::new(body)).unwrap()))
    }
}

/// A peer over gRPC that gives this answer to everything.
fn grpc_peer<T: a2a_pb::protojson_conv::ProtoJsonPayload>(answer: Value) -> A2aClient
where
    T::ProtoJson: prost::Message,
{
    let answer = prost::Message::encode_to_vec(&serde_json::from_value::<T::ProtoJson>(answer).unwrap());
    let incoming = tonic::transport::server::TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", incoming.local_addr().unwrap());
    let serving = tonic::transport::Server::builder().add_service(Answers(answer.into()));
    tokio::spawn(serving.serve_with_incoming(incoming));
    drop(http_client());
    let http = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    A2aClient::new(http, url).over(Binding::Grpc, None)
}

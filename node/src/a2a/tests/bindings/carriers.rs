//! Where a caller says which trace it is in, on every binding: in the header, in the metadata of the message, in both, in both
//! and differently, nowhere, or malformed. What a task is part of is in its record.

use towline_core::TraceContext;

use super::*;
use crate::auth::AuthSettings;

const HEADER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const METADATA: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A trace context, as the test vectors of W3C have it.
fn parsed(text: &str) -> TraceContext {
    text.parse().unwrap()
}

/// A name, and what is said in three places.
type Case = (&'static str, Option<&'static str>, Option<&'static str>, Option<&'static str>);

/// What the carriers hold, and whose trace it comes to.
fn cases() -> Vec<Case> {
    let malformed = [
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-tail",
        "nonsense",
    ];
    let mut cases = vec![
        ("the header", Some(HEADER), None, Some(HEADER)),
        ("metadata", None, Some(METADATA), Some(METADATA)),
        ("both alike", Some(HEADER), Some(HEADER), Some(HEADER)),
        ("both, the header first", Some(HEADER), Some(METADATA), Some(HEADER)),
        ("none", None, None, None),
        ("a malformed header beside metadata", Some("nonsense"), Some(METADATA), Some(METADATA)),
    ];
    cases.extend(malformed.map(|text| ("a malformed header", Some(text), None, None)));
    cases.extend(malformed.map(|text| ("malformed metadata", None, Some(text), None)));
    cases
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_part_of_the_trace_that_its_message_names_by_whatever_carrier() {
    let node = Node::start().await;
    for spoken in ALL {
        let client = Client::new(&node, spoken).await;
        for (number, (what, header, metadata, expected)) in cases().into_iter().enumerate() {
            let trace = sent(&client, number, header, metadata).await;
            let about = format!("{spoken:?}, {what}: {header:?}, {metadata:?}");
            match expected {
                Some(expected) => {
                    assert_eq!(trace.trace_id, parsed(expected).trace_id, "{about}");
                    assert_ne!(trace.span_id, parsed(expected).span_id, "{about}: a span of its own");
                }
                None => assert!(![parsed(HEADER), parsed(METADATA)].iter().any(|x| x.trace_id == trace.trace_id)),
            }
        }
        let quiet = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        assert!(!sent(&client, 99, Some(quiet), None).await.sampled, "{spoken:?}: the caller decides");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_choose_a_trace_gets_a_new_one_for_each_request() {
    let callers = AuthSettings { own_traces: true, ..authorization::callers() };
    let node = Node::start_with(callers).await;
    for spoken in ALL {
        for (who, chooses) in [(authorization::OPERATOR, true), (authorization::ADA, false), (authorization::CI, false)]
        {
            let client = Client { token: who.token, ..Client::new(&node, spoken).await };
            let trace = sent(&client, 0, Some(HEADER), None).await;
            assert_eq!(trace.trace_id == parsed(HEADER).trace_id, chooses, "{spoken:?} {}", who.id);
        }
    }
    node.stop().await;
}

/// The trace of a task that a message makes which comes with this in its carriers.
async fn sent(client: &Client<'_>, number: usize, header: Option<&str>, metadata: Option<&str>) -> TraceContext {
    let id = format!("m-{:?}-{number}-{}", client.spoken, client.token.unwrap_or_default().len());
    let mut message = json!({ "messageId": id, "role": "ROLE_USER", "parts": [{ "text": "x" }] });
    if let Some(metadata) = metadata {
        message["metadata"] = json!({ "traceparent": metadata });
    }
    let params = json!({ "message": message, "configuration": { "returnImmediately": true } });
    // Nothing of this goes any further than the door: neither is read.
    let beside = [("baggage", "secret=1"), ("tracestate", "vendor=x")];
    let headers: Vec<(&'static str, &str)> =
        header.map(|text| ("traceparent", text)).into_iter().chain(beside).collect();
    let answer = match client.spoken {
        Spoken::JsonRpc | Spoken::HttpJson => {
            let request = client.request("SendMessage", &params);
            let request = headers.into_iter().fold(request, |request, (name, value)| request.header(name, value));
            client.result(request.send().await.unwrap().json().await.unwrap()).unwrap()
        }
        Spoken::Grpc => {
            let mut request = client.message::<a2a::SendMessageRequest>(params);
            for (name, value) in headers {
                request.metadata_mut().insert(name, value.parse().unwrap());
            }
            json_of::<a2a::SendMessageResponse>(client.grpc.clone().send_message(request).await.unwrap().get_ref())
        }
    };
    let task: TaskId = answer["task"]["id"].as_str().unwrap().parse().unwrap();
    client.node.cluster.handle().local(|state| state.task(task).unwrap().trace)
}

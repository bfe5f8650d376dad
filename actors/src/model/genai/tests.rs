//! Tests against an API on loopback that plays recorded answers.

use axum::{
    Router,
    body::Bytes,
    extract::{Request, State},
    response::Response,
};
use futures::TryStreamExt;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;

use super::*;
use crate::{
    config::{ModelTimeouts, Secret},
    model::{self, tests::request},
};

/// What the API answers, and what it was asked.
#[derive(Clone, Default)]
struct FakeApi {
    status: u16,
    headers: Vec<(&'static str, &'static str)>,
    body: String,
    seen: Arc<Mutex<Vec<(http::HeaderMap, String, Value)>>>,
}

impl FakeApi {
    /// Answers with server-sent events.
    fn events(events: &[&str]) -> Self {
        let body = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        Self { status: 200, headers: vec![("content-type", "text/event-stream")], body, ..Self::default() }
    }

    async fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(self.clone());
        // Ends with the runtime of the test.
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    fn last_request(&self) -> (http::HeaderMap, String, Value) {
        self.seen.lock().unwrap().last().unwrap().clone()
    }
}

async fn answer(State(api): State<FakeApi>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body: Bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    api.seen.lock().unwrap().push((parts.headers, parts.uri.path().to_owned(), body));
    let mut response = Response::builder().status(api.status);
    for (name, value) in &api.headers {
        response = response.header(*name, *value);
    }
    response.body(axum::body::Body::from(api.body.clone())).unwrap()
}

async fn provider(provider: Provider, api: &FakeApi) -> Arc<dyn ModelProvider> {
    // Another test may have installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = ModelConfig {
        provider,
        model: "m-1".into(),
        base_url: Some(api.start().await),
        api_key: Some(Secret::new("key-1")),
        timeouts: ModelTimeouts::default(),
    };
    model::provider(&config).unwrap()
}

fn asked() -> ModelRequest {
    let mut request = request("weather?");
    request.model = "m-1".into();
    request.system = "be brief".into();
    request.tools = vec![ToolSchema {
        name: "geo.weather".into(),
        description: "weather of a city".into(),
        schema: json!({ "type": "object", "properties": { "city": { "type": "string" } } }),
    }];
    request.trace = Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap());
    request
}

async fn deltas(provider: &Arc<dyn ModelProvider>, request: ModelRequest) -> Result<Vec<Delta>, ModelError> {
    provider.complete(request).await?.try_collect().await
}

fn weather(arguments: Value) -> Delta {
    Delta::Call(ToolCall { id: "c1".into(), name: "geo.weather".into(), arguments })
}

const OPENAI_CALL: [&str; 5] = [
    r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":"Let me "}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":"look."}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"geo__weather","arguments":"{\"city\":"}}]}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"Ulm\"}"}}]}}]}"#,
    r#"{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#,
];

const OPENAI_USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18}}"#;

#[tokio::test]
async fn openai_streams_text_calls_and_usage() {
    let events: Vec<&str> = OPENAI_CALL.into_iter().chain([OPENAI_USAGE, "[DONE]"]).collect();
    let api = FakeApi::events(&events);
    let deltas = deltas(&provider(Provider::OpenAi, &api).await, asked()).await.unwrap();
    let expected = [
        Delta::Text("Let me ".into()),
        Delta::Text("look.".into()),
        weather(json!({ "city": "Ulm" })),
        Delta::Usage(Usage { input: 11, output: 7 }),
        Delta::End,
    ];
    assert_eq!(deltas, expected);
    let (headers, path, body) = api.last_request();
    assert_eq!(path, "/v1/chat/completions");
    assert_eq!(headers["authorization"], "Bearer key-1");
    assert!(headers["traceparent"].to_str().unwrap().contains("4bf92f3577b34da6a3ce929d0e0e4736"));
    assert_eq!(body["tools"][0]["function"]["name"], "geo__weather");
    assert_eq!((&body["model"], &body["messages"][0]["content"]), (&json!("m-1"), &json!("be brief")));
}

#[tokio::test]
async fn a_tool_round_is_sent_back_as_the_api_wants_it() {
    let api = FakeApi::events(&[
        r#"{"choices":[{"index":0,"delta":{"content":"Sunny."},"finish_reason":"stop"}]}"#,
        "[DONE]",
    ]);
    let mut request = asked();
    let call = ToolCall { id: "c1".into(), name: "geo.weather".into(), arguments: json!({ "city": "Ulm" }) };
    let broken = ToolCall { id: "c2".into(), name: "geo.weather".into(), arguments: json!("{\"city\":") };
    request.messages.push(ChatMessage::Assistant { text: String::new(), calls: vec![call, broken] });
    for id in ["c1", "c2"] {
        request.messages.push(ChatMessage::ToolResult {
            call_id: id.into(),
            name: "geo.weather".into(),
            content: "sun".into(),
            is_error: false,
        });
    }
    deltas(&provider(Provider::OpenAi, &api).await, request).await.unwrap();
    let (_, _, body) = api.last_request();
    let messages = body["messages"].as_array().unwrap();
    assert_eq!(messages[2]["tool_calls"][0]["function"]["name"], "geo__weather");
    assert_eq!(messages[2]["tool_calls"][1]["function"]["arguments"], r#"{"malformed":"{\"city\":"}"#);
    assert_eq!((&messages[3]["role"], &messages[3]["tool_call_id"]), (&json!("tool"), &json!("c1")));
}

#[tokio::test]
async fn a_stream_without_its_end_is_truncated() {
    let api = FakeApi::events(&OPENAI_CALL[..2]);
    let error = deltas(&provider(Provider::OpenAi, &api).await, asked()).await.unwrap_err();
    assert_eq!(error.error_type, "truncated_stream");
}

#[tokio::test]
async fn arguments_that_are_no_json_come_as_their_text() {
    let broken = r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"geo__weather","arguments":"{\"city\":"}}]},"finish_reason":"tool_calls"}]}"#;
    let api = FakeApi::events(&[broken, "[DONE]"]);
    let deltas = deltas(&provider(Provider::OpenAi, &api).await, asked()).await.unwrap();
    assert_eq!(deltas[0], weather(json!("{\"city\":")));
}

#[tokio::test]
async fn a_rate_limit_is_tried_three_times_and_then_told() {
    let api =
        FakeApi { status: 429, headers: vec![("retry-after", "0")], body: "slow down".into(), ..FakeApi::default() };
    let error = deltas(&provider(Provider::OpenAi, &api).await, asked()).await.unwrap_err();
    assert_eq!((error.error_type.as_ref(), error.retry_after), ("rate_limited", Some(Duration::ZERO)));
    assert_eq!(api.seen.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn a_refused_key_is_not_tried_again() {
    let api = FakeApi { status: 401, body: "bad key".into(), ..FakeApi::default() };
    let error = deltas(&provider(Provider::OpenAi, &api).await, asked()).await.unwrap_err();
    assert_eq!((error.error_type.as_ref(), error.retryable), ("401", false));
    assert_eq!(api.seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn anthropic_streams_text_calls_and_usage() {
    let mut api = FakeApi::events(&[]);
    api.body = [
        ("message_start", r#"{"type":"message_start","message":{"usage":{"input_tokens":5,"output_tokens":1}}}"#),
        ("content_block_start", r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#),
        ("content_block_delta", r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hm."}}"#),
        ("content_block_stop", r#"{"type":"content_block_stop","index":0}"#),
        ("content_block_start", r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"c1","name":"geo__weather","input":{}}}"#),
        ("content_block_delta", r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"city\":\"Ulm\"}"}}"#),
        ("content_block_stop", r#"{"type":"content_block_stop","index":1}"#),
        ("message_delta", r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":9}}"#),
        ("message_stop", r#"{"type":"message_stop"}"#),
    ]
    .map(|(event, data)| format!("event: {event}\ndata: {data}\n\n"))
    .concat();
    let deltas = deltas(&provider(Provider::Anthropic, &api).await, asked()).await.unwrap();
    assert_eq!(deltas[..2], [Delta::Text("Hm.".into()), weather(json!({ "city": "Ulm" }))]);
    assert_eq!(deltas.last(), Some(&Delta::End));
    let (headers, path, _) = api.last_request();
    assert_eq!((path.as_str(), headers["x-api-key"].to_str().unwrap()), ("/v1/messages", "key-1"));
}

#[tokio::test]
async fn gemini_streams_text_and_ends() {
    let last = r#"{"candidates":[{"content":{"parts":[{"text":"Sunny."}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":4,"candidatesTokenCount":2,"totalTokenCount":6}}"#;
    let api = FakeApi::events(&[last]);
    let deltas = deltas(&provider(Provider::Gemini, &api).await, asked()).await.unwrap();
    assert_eq!(deltas, [Delta::Text("Sunny.".into()), Delta::Usage(Usage { input: 4, output: 2 }), Delta::End]);
}

#[tokio::test]
async fn gemini_without_a_finish_reason_is_truncated() {
    let api = FakeApi::events(&[r#"{"candidates":[{"content":{"parts":[{"text":"Sun"}]}}]}"#]);
    let error = deltas(&provider(Provider::Gemini, &api).await, asked()).await.unwrap_err();
    assert_eq!(error.error_type, "truncated_stream");
}

#[tokio::test]
async fn ollama_streams_text_calls_and_usage() {
    let lines = [
        r#"{"message":{"role":"assistant","content":"Hm."},"done":false}"#,
        r#"{"message":{"content":"","tool_calls":[{"id":"c1","function":{"name":"geo__weather","arguments":{"city":"Ulm"}}}]},"done":false}"#,
        r#"{"message":{"content":""},"done":true,"done_reason":"stop","prompt_eval_count":3,"eval_count":2}"#,
    ];
    let api = FakeApi { status: 200, body: lines.join("\n") + "\n", ..FakeApi::default() };
    let deltas = deltas(&provider(Provider::Ollama, &api).await, asked()).await.unwrap();
    let usage = Delta::Usage(Usage { input: 3, output: 2 });
    assert_eq!(deltas, [Delta::Text("Hm.".into()), weather(json!({ "city": "Ulm" })), usage, Delta::End]);
}

#[tokio::test]
async fn an_api_that_is_not_there_is_unreachable() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let config = ModelConfig {
        provider: Provider::OpenAi,
        model: "m-1".into(),
        base_url: Some(format!("http://{free}/v1")),
        api_key: None,
        timeouts: ModelTimeouts::default(),
    };
    let answer = GenaiProvider::new(&config).unwrap().complete(asked()).await.unwrap();
    let error = answer.try_collect::<Vec<_>>().await.unwrap_err();
    assert_eq!((error.error_type.as_ref(), error.retryable), ("unreachable", true));
}

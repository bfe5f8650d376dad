//! An MCP server over Streamable HTTP with one tool, which answers with a file while it makes it.

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use futures::stream;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};
use towline_tests::made_base64;

/// How it answers calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// With one JSON body.
    Json,
    /// With a stream of events.
    Events,
}

/// It ends when it is dropped.
pub(crate) struct HttpServer {
    pub(crate) endpoint: String,
    serving: JoinHandle<()>,
}

impl HttpServer {
    pub(crate) async fn start(style: Style) -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}/mcp", tcp.local_addr().unwrap());
        let router = Router::new().route("/mcp", post(answer)).with_state(style);
        let serving = tokio::spawn(async move { axum::serve(tcp, router).await.unwrap() });
        Self { endpoint, serving }
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(State(style): State<Style>, Json(message): Json<Value>) -> Response {
    let Some(id) = message.get("id") else { return StatusCode::ACCEPTED.into_response() };
    let result = match message["method"].as_str().unwrap_or_default() {
        "initialize" => json!({
            "protocolVersion": "2025-06-18",
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "towline-http-mcp", "version": "1.0.0" },
        }),
        "tools/list" => json!({ "tools": [{ "name": "file", "description": "Answers with a file.",
            "annotations": { "readOnlyHint": true },
            "inputSchema": { "type": "object", "properties": { "text": { "type": "string" } } } }] }),
        "tools/call" => {
            let bytes = message["params"]["arguments"]["text"].as_str().unwrap_or_default().parse().unwrap();
            return file(style, id, bytes);
        }
        _ => json!({}),
    };
    Json(json!({ "jsonrpc": "2.0", "id": id, "result": result })).into_response()
}

fn file(style: Style, id: &Value, bytes: usize) -> Response {
    let head = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"resource","resource":{{"uri":"file:///made/big.bin","mimeType":"application/x-made","blob":""#
    );
    let tail = "\"}}]}}";
    let (media_type, before, after) = match style {
        Style::Json => ("application/json", "", ""),
        Style::Events => ("text/event-stream", ": made with care\n\nevent: message\ndata: ", "\n\n"),
    };
    let first = std::iter::once(format!("{before}{head}").into_bytes());
    let last = std::iter::once(format!("{tail}{after}").into_bytes());
    let pieces = first.chain(made_base64(bytes)).chain(last).map(Ok::<_, std::io::Error>);
    ([(header::CONTENT_TYPE, media_type)], Body::from_stream(stream::iter(pieces))).into_response()
}

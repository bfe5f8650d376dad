//! HTTP with SSE, for clients of 2024-11-05.

use super::*;

/// A client of that kind.
struct Old<'a> {
    node: &'a Node,
    token: &'static str,
    endpoint: String,
    stream: Stream,
}

async fn get(node: &Node, token: &'static str) -> reqwest::Response {
    let request = node.http.get(format!("{}/mcp/sse", node.url)).bearer_auth(token);
    tokio::time::timeout(PATIENCE, request.send()).await.unwrap().unwrap()
}

impl<'a> Old<'a> {
    async fn open(node: &'a Node, token: &'static str) -> Self {
        let mut stream = Stream::of(get(node, token).await);
        assert_eq!((stream.status, stream.line().await.as_deref()), (200, Some("event: endpoint")));
        let endpoint = stream.line().await.unwrap();
        let endpoint = format!("{}{}", node.url, endpoint.strip_prefix("data: ").unwrap());
        Self { node, token, endpoint, stream }
    }

    async fn post(&self, message: &Value) -> u16 {
        let request = self.node.http.post(&self.endpoint).bearer_auth(self.token).json(message);
        tokio::time::timeout(PATIENCE, request.send()).await.unwrap().unwrap().status().as_u16()
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        let message = json!({ "jsonrpc": "2.0", "id": method, "method": method, "params": params });
        assert_eq!(self.post(&message).await, 202, "{method}");
        loop {
            let told = self.stream.next().await.expect("the stream is open");
            if told["id"] == method {
                return told["result"].clone();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_the_first_revision_is_served_where_a_setting_says_so() {
    let node = start(&ServeSettings { legacy_sse: true, ..ServeSettings::default() }).await;
    let mut ada = Old::open(&node, "ada").await;
    let begun = ada
        .ask(
            "initialize",
            json!({ "protocolVersion": "2024-11-05", "capabilities": {},
            "clientInfo": { "name": "old", "version": "1" } }),
        )
        .await;
    assert_eq!(begun["protocolVersion"], "2024-11-05");
    assert_eq!(ada.post(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await, 202);
    assert_eq!(ada.ask("tools/list", json!({})).await["tools"].as_array().unwrap().len(), 6);
    let called = ada.ask("tools/call", json!({ "name": "list_agents" })).await;
    assert_eq!(called["isError"], false, "{called}");

    let task = Client::stateless(&node, "ada").task("hello").await;
    let uri = format!("towline://tasks/{task}");
    assert_eq!(ada.ask("resources/subscribe", json!({ "uri": uri })).await, json!({}));
    node.report(&task, vec![chunk("one", false)]).await;
    let told = ada.stream.next().await.unwrap();
    assert_eq!((&told["method"], &told["params"]["uri"]), (&json!("notifications/resources/updated"), &json!(uri)));

    let bob =
        node.http.post(&ada.endpoint).bearer_auth("bob").json(&json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }));
    assert_eq!(bob.send().await.unwrap().status().as_u16(), 404, "another's stream looks as if it were not there");
    assert_eq!(ada.post(&json!("nonsense")).await, 400);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_a_stream_that_its_client_has_closed_and_none_is_there_without_the_setting() {
    let node = start(&ServeSettings { legacy_sse: true, ..ServeSettings::default() }).await;
    let Old { endpoint, stream, .. } = Old::open(&node, "ada").await;
    drop(stream);
    let gone = async {
        loop {
            let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
            let answer = node.http.post(&endpoint).bearer_auth("ada").json(&ping).send().await.unwrap();
            if answer.status().as_u16() == 404 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("it is forgotten");
    node.stop().await;
    let without = start(&ServeSettings::default()).await;
    assert_eq!(get(&without, "ada").await.status().as_u16(), 404);
    without.stop().await;
}

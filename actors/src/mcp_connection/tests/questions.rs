//! What a server asks over a stream that all calls share, after one of them was given up.

use futures::{SinkExt, StreamExt};
use std::sync::{Mutex, atomic::AtomicUsize};
use tokio_tungstenite::tungstenite::Message;

use super::{
    secured::{result_of, web_socket},
    wire::request as asks,
    *,
};

/// A server over a WebSocket. The first call it never answers, but asks something about it when it is taken back, and says that it
/// is over where `answers`. Each later call asks for a name, and is answered with what was said.
struct Asking {
    endpoint: String,
    connections: Arc<AtomicUsize>,
    /// What was answered to the question about the call that was taken back.
    late: Arc<Mutex<Value>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Asking {
    async fn start(answers: bool) -> Self {
        install_crypto();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("ws://{}/mcp", listener.local_addr().unwrap());
        let (connections, late) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Value::Null)));
        let (counted, said) = (connections.clone(), late.clone());
        let serving = tokio::spawn(async move {
            let (mut calls, mut asking) = (0, Value::Null);
            let schema = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
            let question =
                |id: &str| asks(id, "elicitation/create", json!({ "message": "Who?", "requestedSchema": schema }));
            loop {
                let (_, mut socket) = web_socket(listener.accept().await.unwrap().0).await;
                counted.fetch_add(1, Ordering::Relaxed);
                while let Some(Ok(message)) = socket.next().await {
                    let Message::Text(message) = message else { continue };
                    let message: Value = serde_json::from_str(&message).unwrap();
                    let says = match message["method"].as_str() {
                        Some("tools/call") => {
                            calls += 1;
                            asking = message["id"].clone();
                            if calls == 1 { vec![] } else { vec![question("who")] }
                        }
                        Some("notifications/cancelled") => {
                            let error = json!({ "code": 0, "message": "Request cancelled" });
                            let over = json!({ "jsonrpc": "2.0", "id": asking, "error": error });
                            if answers { vec![question("late"), over] } else { vec![question("late")] }
                        }
                        Some(_) => result_of(&message).into_iter().collect(),
                        None if message["id"] == "late" => {
                            *said.lock().unwrap() = message["result"].clone();
                            vec![]
                        }
                        None => {
                            let text = message["result"]["content"]["name"].to_string();
                            let result = wire::text(&text);
                            vec![json!({ "jsonrpc": "2.0", "id": asking, "result": result })]
                        }
                    };
                    for message in says {
                        socket.send(Message::text(message.to_string())).await.unwrap();
                    }
                }
            }
        });
        Self { endpoint, connections, late, serving }
    }

    /// Gives a call up, then makes another one. What it was answered, and over how many connections.
    async fn asks_again(self) -> (String, usize, Value) {
        let config =
            McpServerConfig { elicitation: true, ..McpServerConfig::new("s", McpTransport::http(&self.endpoint)) };
        let handle = connected(config).await;
        let given_up = CallRequest { timeout: Some(Duration::from_millis(300)), ..request("work") };
        assert_eq!(handle.call(given_up, CancellationToken::new()).await.unwrap_err().error_type, "timeout");
        let (events, mut heard) = call_events();
        let calling = handle.call(CallRequest { events, ..request("work") }, CancellationToken::new());
        let answering = async {
            let CallEvent::Asks(question) = heard.next().await else { panic!("no question") };
            question.answer("Ada".into());
        };
        let both = async { tokio::join!(calling, answering) };
        let (answer, ()) = tokio::time::timeout(WITHIN * 2, both).await.expect("it is asked and answered");
        handle.stop().await;
        self.serving.abort();
        let late = self.late.lock().unwrap().clone();
        (answer.unwrap().text, self.connections.load(Ordering::Relaxed), late)
    }
}

#[tokio::test]
async fn a_server_that_is_through_with_a_call_that_was_given_up_may_ask_again_over_the_same_connection() {
    let (said, connections, late) = Asking::start(true).await.asks_again().await;
    assert_eq!((said.as_str(), connections), ("\"Ada\"", 1));
    assert_eq!(late, json!({ "action": "decline" }));
}

#[tokio::test]
async fn a_server_that_may_still_be_at_a_call_that_was_given_up_asks_again_over_another_connection() {
    let (said, connections, late) = Asking::start(false).await.asks_again().await;
    assert_eq!((said.as_str(), connections), ("\"Ada\"", 2));
    assert_eq!(late, json!({ "action": "decline" }));
}

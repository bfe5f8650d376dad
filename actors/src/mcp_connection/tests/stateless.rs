//! A server of 2026-07-28: no session, and each request says all.

use super::{
    wire::{Get, Reply, Running, text, tool},
    *,
};

/// Such a server. It asks a person in the middle of each call, by a result.
async fn start() -> Running {
    Running::start(Get::NotAllowed, |message| {
        let params = &message["params"];
        Some(match message["method"].as_str().unwrap() {
            "server/discover" => Reply::Result(json!({
                "supportedVersions": ["2026-07-28"], "capabilities": { "tools": {}, "resources": {} },
                "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "wire", "version": "2" } },
                "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
            })),
            "tools/list" => Reply::Result(json!({ "tools": [tool("work", "Works.")], "resultType": "complete",
                "ttlMs": 60_000, "cacheScope": "private" })),
            "resources/list" => Reply::Result(json!({ "resources": [], "resultType": "complete", "ttlMs": 0,
                "cacheScope": "private" })),
            "tools/call" if params["arguments"]["ask"] != true => Reply::Result(text("done")),
            "tools/call"
                if params["inputResponses"]["who"]["content"]["name"] == "Ada"
                    && params["requestState"] == "sealed" =>
            {
                Reply::Result(text("hello Ada"))
            }
            "tools/call" if params["inputResponses"].is_object() => Reply::Result(text("nobody said")),
            "tools/call" => Reply::Result(json!({
                "resultType": "input_required", "requestState": "sealed",
                "inputRequests": {
                    "who": { "method": "elicitation/create", "params": { "mode": "form", "message": "Who?",
                        "requestedSchema": { "type": "object", "properties": { "name": { "type": "string" } },
                            "required": ["name"] } } },
                    "roots": { "method": "roots/list" },
                },
            })),
            _ => Reply::Error(-32601, "no such method"),
        })
    })
    .await
}

#[tokio::test]
async fn each_request_says_all_and_there_is_no_session_and_no_stream() {
    let server = start().await;
    let handle = server.connect(server.config()).await;
    assert_eq!(call(&handle, "work").await.unwrap().text, "done");
    let status = handle.status();
    assert_eq!((status.protocol_version.as_deref(), status.push.as_deref()), (Some("2026-07-28"), Some("none")));
    for method in ["server/discover", "tools/list", "tools/call"] {
        let header = |name| server.header(method, name);
        assert_eq!(header("mcp-protocol-version").as_deref(), Some("2026-07-28"), "{method}");
        assert_eq!((header("mcp-method").as_deref(), header("mcp-session-id")), (Some(method), None));
        let meta = &server.told(method)[0]["params"]["_meta"];
        assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28", "{method}: {meta}");
        assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], json!({}), "{method}: {meta}");
    }
    assert_eq!(server.header("tools/call", "mcp-name").as_deref(), Some("work"));
    let traced = &server.told("tools/call")[0]["params"]["_meta"];
    assert_eq!(traced["traceparent"], TRACE);
    assert!(server.told("notifications/initialized").is_empty());
    assert_eq!(server.wire.gets.load(Ordering::Relaxed), 0);
    handle.stop().await;
}

#[tokio::test]
async fn a_question_in_a_result_is_put_to_a_person_and_the_call_goes_on_with_the_answer() {
    let server = start().await;
    let handle = server.connect(McpServerConfig { elicitation: true, ..server.config() }).await;
    let meta = &server.told("tools/list")[0]["params"]["_meta"];
    assert!(meta["io.modelcontextprotocol/clientCapabilities"]["elicitation"]["form"].is_object(), "{meta}");
    let (events, mut heard) = call_events();
    let asking = CallRequest { events, arguments: json!({ "ask": true }), ..request("work") };
    let calling = handle.call(asking, CancellationToken::new());
    let answering = async {
        let CallEvent::Asks(question) = heard.next().await else { panic!("no question") };
        assert_eq!(question.details["message"], "Who?");
        question.answer("Ada".into());
    };
    let (answer, ()) = tokio::join!(calling, answering);
    assert_eq!(answer.unwrap().text, "hello Ada");
    let told = server.told("tools/call");
    assert_eq!((told.len(), &told[1]["params"]["arguments"]), (2, &json!({ "ask": true })));
    assert_ne!(told[0]["id"], told[1]["id"], "another request");
    // It is the same call: a server that knows the key carries it out once.
    let key = |at: usize| told[at]["params"]["_meta"]["dev.towline/idempotency_key"].clone();
    assert_eq!(key(0), key(1));
    assert!(told[1]["params"]["inputResponses"].get("roots").is_none(), "what was not declared is not answered");
    handle.stop().await;
}

#[tokio::test]
async fn a_question_in_a_result_is_an_error_where_nobody_may_be_asked() {
    let server = start().await;
    let handle = server.connect(server.config()).await;
    let asking = CallRequest { arguments: json!({ "ask": true }), ..request("work") };
    let error = handle.call(asking, CancellationToken::new()).await.unwrap_err();
    assert_eq!(error.error_type, "input_required", "{error}");
    assert_eq!(server.told("tools/call").len(), 1);
    handle.stop().await;
}

#[tokio::test]
async fn a_server_of_both_kinds_is_spoken_to_without_a_session_and_one_that_says_nothing_to_that_with_one() {
    let both =
        Running::start(Get::NotAllowed, |message| is_discovery(message).then(|| discovered(json!({ "tools": {} }))))
            .await;
    let handle = both.connect(both.config()).await;
    assert_eq!(handle.status().protocol_version.as_deref(), Some("2026-07-28"));
    assert!(both.told("initialize").is_empty());
    handle.stop().await;

    let silent = Running::start(Get::NotAllowed, |message| is_discovery(message).then_some(Reply::Never)).await;
    let handle = silent.connect(silent.config()).await;
    assert_eq!(handle.status().protocol_version.as_deref(), Some("2025-11-25"));
    handle.stop().await;
}

#[tokio::test]
async fn a_server_without_a_session_that_dies_is_noticed_without_a_call() {
    let server = start().await;
    let handle = server.connect(server.config()).await;
    drop(server);
    let mut published = handle.published.clone();
    let noticed = published.wait_for(|now| !matches!(now.phase, Phase::Ready(_)));
    tokio::time::timeout(WITHIN * 3, noticed).await.expect("it is noticed").unwrap();
    handle.stop().await;
}

fn is_discovery(message: &Value) -> bool {
    message["method"] == "server/discover"
}

fn discovered(capabilities: Value) -> Reply {
    Reply::Result(json!({
        "supportedVersions": ["2026-07-28"], "capabilities": capabilities, "resultType": "complete", "ttlMs": 0,
        "cacheScope": "private",
    }))
}

#[tokio::test]
async fn what_is_announced_on_the_stream_of_subscriptions_is_listed_again_and_once_it_is_open_as_well() {
    let lists = std::sync::atomic::AtomicUsize::new(0);
    let server = Running::start(Get::NotAllowed, move |message| {
        let tagged = |method: &str, mut params: Value| {
            params["_meta"] = json!({ "io.modelcontextprotocol/subscriptionId": message["id"] });
            json!({ "jsonrpc": "2.0", "method": method, "params": params })
        };
        Some(match message["method"].as_str().unwrap() {
            "server/discover" => discovered(json!({ "tools": { "listChanged": true }, "prompts": {} })),
            "tools/list" => {
                let names = ["first", "second", "third"];
                let known = names.iter().take(1 + lists.fetch_add(1, Ordering::Relaxed));
                let tools: Vec<Value> = known.map(|name| tool(name, "Works.")).collect();
                Reply::Result(
                    json!({ "tools": tools, "resultType": "complete", "ttlMs": 600_000, "cacheScope": "private" }),
                )
            }
            "subscriptions/listen" => {
                let honoured = json!({ "notifications": { "toolsListChanged": true } });
                Reply::Stream(vec![
                    (Duration::ZERO, tagged("notifications/subscriptions/acknowledged", honoured)),
                    (Duration::from_secs(2), tagged("notifications/tools/list_changed", json!({}))),
                    (Duration::from_secs(60), tagged("notifications/tools/list_changed", json!({}))),
                ])
            }
            _ => return None,
        })
    })
    .await;
    let handle = server.connect(server.config()).await;
    let mut published = handle.published.clone();
    for count in [2, 3] {
        let listed = published.wait_for(|now| now.tools.len() == count);
        tokio::time::timeout(WITHIN, listed).await.unwrap_or_else(|_| panic!("{count} tools")).unwrap();
    }
    let filter = &server.told("subscriptions/listen")[0]["params"]["notifications"];
    assert_eq!(*filter, json!({ "toolsListChanged": true }), "what is not announced is not asked for");
    assert_eq!(handle.status().push.as_deref(), Some("live"));
    handle.stop().await;
}

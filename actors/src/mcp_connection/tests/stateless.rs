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

//! Both kinds of MCP at one path: what is let in, how it is answered, sessions, streams.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_kinds_of_clients_are_served_at_the_same_path() {
    let node = start(&ServeSettings::default()).await;
    let session = Client::begin(&node, "ada", json!({})).await;
    assert_eq!(session.ask("ping", json!({})).await.result(), &json!({}));
    let listed = session.ask("tools/list", json!({})).await;
    assert!(listed.result().get("resultType").is_none(), "{listed:?}");

    let stateless = Client::stateless(&node, "ada");
    let discovered = stateless.ask("server/discover", json!({})).await;
    assert_eq!(discovered.result()["supportedVersions"], json!([STATELESS]));
    assert_eq!(discovered.result()["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "towline");
    let again = stateless.ask("tools/list", json!({})).await;
    assert_eq!(again.result()["tools"], listed.result()["tools"]);
    assert_eq!((&again.result()["resultType"], &again.result()["cacheScope"]), (&json!("complete"), &json!("private")));
    for (method, params) in [
        ("tools/list", json!({})),
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("resources/read", json!({ "uri": "towline://agents/reader" })),
    ] {
        assert!(stateless.ask(method, params).await.result()["ttlMs"].is_u64(), "{method}");
    }
    for removed in ["initialize", "ping", "logging/setLevel", "resources/subscribe", "nothing/known"] {
        let refused = stateless.ask(removed, json!({ "uri": "towline://agents/reader" })).await;
        assert_eq!((refused.status, refused.code(), &refused.last()["id"]), (404, -32601, &json!(7)), "{removed}");
    }
    let refused = session.ask("nothing/known", json!({})).await;
    assert_eq!((refused.status, refused.code()), (200, -32601));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bare_request_without_a_session_and_a_revision_is_answered() {
    let node = Node::start_serving(AuthSettings::default(), None, &ServeSettings::default()).await;
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let answer = whole(node.http.post(format!("{}/mcp", node.url)).json(&body)).await;
    let names: Vec<&str> =
        answer.result()["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["list_agents", "get_agent", "list_tasks", "get_task", "get_trace", "search_events"]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_head_of_a_request_is_judged_before_it_is_carried_out() {
    let node = start(&ServeSettings::default()).await;
    let client = Client::begin(&node, "ada", json!({})).await;
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    let status = async |change: &dyn Fn(reqwest::RequestBuilder) -> reqwest::RequestBuilder| {
        whole(change(client.request(reqwest::Method::POST).json(&ping))).await.status
    };
    let put = |request: reqwest::RequestBuilder, name: &str, value: &str| {
        let (client, request) = request.build_split();
        let mut request = request.unwrap();
        request.headers_mut().insert(::http::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
        reqwest::RequestBuilder::from_parts(client, request)
    };
    assert_eq!(status(&|request| request).await, 200);
    for (name, value, expected) in [
        ("host", "evil.example", 403),
        ("host", "0.0.0.0", 403),
        ("host", "localhost", 200),
        ("origin", "https://evil.example", 403),
        ("origin", "null", 403),
        ("origin", "https://console.example", 200),
        ("accept", "application/json", 406),
        ("accept", "text/html", 406),
        ("accept", "*/*", 200),
        ("content-type", "text/plain", 415),
        ("mcp-protocol-version", "1999-01-01", 400),
        ("mcp-session-id", "nothing", 404),
        ("authorization", "Bearer nobody", 401),
    ] {
        assert_eq!(status(&|request| put(request, name, value)).await, expected, "{name}: {value}");
    }
    for (body, expected) in [("{", 400), ("[]", 400), ("{}", 400)] {
        let request = client.request(reqwest::Method::POST).header("content-type", "application/json");
        assert_eq!(whole(request.body(body)).await.status, expected, "{body}");
    }
    let large = vec![b' '; 5 * 1024 * 1024];
    let request = client.request(reqwest::Method::POST).header("content-type", "application/json");
    assert_eq!(whole(request.body(large)).await.status, 413);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_session_the_head_has_to_say_what_the_body_says() {
    let node = start(&ServeSettings::default()).await;
    let client = Client::stateless(&node, "ada");
    let meta = |version: &str| {
        json!({
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
        })
    };
    let ask = async |method: &str, params: Value, headers: &[(&str, &str)]| {
        let mut request = client.request(reqwest::Method::POST);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        whole(request.json(&json!({ "jsonrpc": "2.0", "id": 5, "method": method, "params": params }))).await
    };
    let right = [("mcp-protocol-version", STATELESS), ("mcp-method", "tools/list")];
    for (params, headers, code) in [
        (json!({}), &right[..], -32602),
        (json!({ "_meta": { "io.modelcontextprotocol/protocolVersion": STATELESS } }), &right, -32602),
        (json!({ "_meta": meta(STATELESS) }), &right[1..], -32020),
        (json!({ "_meta": meta(STATELESS) }), &right[..1], -32020),
        (json!({ "_meta": meta("v9") }), &right, -32020),
        (json!({ "_meta": meta("v9") }), &[("mcp-protocol-version", "v9"), right[1]], -32022),
    ] {
        let refused = ask("tools/list", params, headers).await;
        assert_eq!((refused.status, refused.code(), &refused.last()["id"]), (400, code, &json!(5)), "{refused:?}");
    }
    let other = [right[0], ("mcp-method", "tools/call"), ("mcp-name", "list_tasks")];
    let unnamed = ask("tools/call", json!({ "name": "get_task", "_meta": meta(STATELESS) }), &other);
    assert_eq!(unnamed.await.code(), -32020);
    for method in [reqwest::Method::GET, reqwest::Method::DELETE] {
        let refused = whole(client.request(method).header("mcp-protocol-version", STATELESS)).await;
        assert_eq!(refused.status, 405);
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_good_for_its_principal_only_and_ends_for_good() {
    let node = start(&ServeSettings::default()).await;
    let ada = Client::begin(&node, "ada", json!({})).await;
    let thief = Client { token: Some("bob"), ..ada.clone() };
    assert_eq!(thief.ask("ping", json!({})).await.status, 404);
    assert_eq!(whole(thief.request(reqwest::Method::DELETE)).await.status, 404);
    assert_eq!(ada.ask("ping", json!({})).await.status, 200);
    assert_eq!(whole(ada.request(reqwest::Method::DELETE)).await.status, 204);
    assert_eq!(ada.ask("ping", json!({})).await.status, 404);
    assert_eq!(ada.listen(None).await.status, 404);
    let none = Client { session: None, ..ada };
    assert_eq!(none.listen(None).await.status, 400);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_tells_of_each_change_and_of_what_changed_while_nobody_listened() {
    let node = start(&ServeSettings::default()).await;
    let ada = Client::begin(&node, "ada", json!({})).await;
    let task = ada.task("hello").await;
    let uri = format!("towline://tasks/{task}");
    assert_eq!(ada.ask("resources/subscribe", json!({ "uri": uri })).await.result(), &json!({}));
    let mut stream = ada.listen(None).await;
    let first = stream.place().await;
    node.report(&task, vec![chunk("one", false)]).await;
    let told = stream.next().await.unwrap();
    assert_eq!((&told["method"], &told["params"]["uri"]), (&json!("notifications/resources/updated"), &json!(uri)));
    let told_of = stream.last.clone().unwrap();
    assert_ne!(told_of, first);
    drop(stream);

    // This session begins at a node that knows nothing of it: the client shows where it stood.
    let moved = Client::begin(&node, "ada", json!({})).await;
    let mut quiet = moved.listen(Some(&told_of)).await;
    assert_eq!(quiet.place().await, told_of);
    node.report(&task, vec![chunk("two", true)]).await;
    assert_eq!(quiet.next().await.unwrap()["params"]["uri"], uri, "the subscription went on");
    let mut late = Client::begin(&node, "ada", json!({})).await.listen(Some(&told_of)).await;
    assert_eq!(late.next().await.unwrap()["params"]["uri"], uri, "what changed meanwhile is told at once");

    // The first session goes on as well, until it has had enough.
    let mut stream = ada.listen(None).await;
    assert_eq!(stream.next().await.unwrap()["params"]["uri"], uri);
    assert_eq!(ada.ask("resources/unsubscribe", json!({ "uri": uri })).await.result(), &json!({}));
    assert_eq!(stream.place().await, "0");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_subscribes_to_what_is_anothers_or_not_there() {
    let node = start(&ServeSettings::default()).await;
    let ada = Client::begin(&node, "ada", json!({})).await;
    let bob = Client::begin(&node, "bob", json!({})).await;
    let uri = format!("towline://tasks/{}", ada.task("hello").await);
    for uri in [uri.as_str(), "towline://agents/nobody", "test://nothing"] {
        for method in ["resources/subscribe", "resources/read"] {
            let refused = bob.ask(method, json!({ "uri": uri })).await;
            assert_eq!((refused.code(), &refused.last()["error"]["data"]["uri"]), (-32002, &json!(uri)), "{method}");
        }
        let stateless = Client::stateless(&node, "bob");
        assert_eq!(stateless.ask("resources/read", json!({ "uri": uri })).await.code(), -32602);
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_session_a_stream_says_what_it_honours_and_then_what_changes() {
    let node = start(&ServeSettings::default()).await;
    let ada = Client::stateless(&node, "ada");
    let task = ada.task("hello").await;
    let uri = format!("towline://tasks/{task}");
    let wanted = json!({ "notifications": { "resourceSubscriptions": [uri, "test://x"], "toolsListChanged": true } });
    let mut stream = Stream::of(ada.asking("subscriptions/listen", wanted).send().await.unwrap());
    let acknowledged = stream.next().await.unwrap();
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(acknowledged["params"]["notifications"], json!({ "resourceSubscriptions": [uri] }));
    node.report(&task, vec![chunk("one", false)]).await;
    let told = stream.next().await.unwrap();
    assert_eq!(told["params"]["uri"], uri);
    for message in [&acknowledged, &told] {
        assert_eq!(message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 7, "{message}");
    }
    node.stopping.cancel();
    let ended = stream.next().await.unwrap();
    assert_eq!(
        (&ended["id"], &ended["result"]["resultType"]),
        (&json!(7), &json!("complete")),
        "a good end is a result"
    );
    assert!(stream.next().await.is_none());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_to_be_let_in_is_told_how() {
    let node = start(&ServeSettings::default()).await;
    let nobody = Client { token: None, ..Client::stateless(&node, "ada") };
    let refused = nobody.ask("tools/list", json!({})).await;
    assert_eq!(refused.status, 401);
    let challenge = refused.headers["www-authenticate"].to_str().unwrap().to_owned();
    let place = format!("resource_metadata=\"{}/.well-known/oauth-protected-resource/mcp\"", node.url);
    assert!(challenge.starts_with("Bearer ") && challenge.contains(&place), "{challenge}");
    for path in ["oauth-protected-resource", "oauth-protected-resource/mcp"] {
        let metadata = node.http.get(format!("{}/.well-known/{path}", node.url)).send().await.unwrap();
        let metadata: Value = metadata.json().await.unwrap();
        assert_eq!(metadata["resource"], format!("{}/mcp", node.url));
    }
    let guest = Client::stateless(&node, "guest");
    assert_eq!(guest.ask("tools/list", json!({})).await.status, 403);
    node.stop().await;
}

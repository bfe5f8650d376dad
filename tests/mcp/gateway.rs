//! Tools of other MCP servers, served through a node.

use serde_json::{Value, json};
use std::fs;
use towline_tests::{Answer, Cluster, FakeModel, Plan, TestNode, eventually, scripted_mcp};

use crate::client::McpClient;

/// Two servers, one of which can never be reached, and what is served of them to the operator.
async fn started(clients: &str) -> (Cluster, std::path::PathBuf) {
    let model = FakeModel::start(|_| Answer::say("Nothing.")).await;
    let calls = tempfile::tempdir().unwrap().keep().join("calls");
    let mesh = model.config()
        + &format!(
            "mcp:\n  servers:\n    - {{ name: srv, command: [{:?}, {calls:?}], timeout: 20s }}\n    \
             - {{ name: gone, endpoint: \"http://127.0.0.1:9/mcp\" }}\n  serve:\n    federate:\n      \
             - {{ server: gone, allow: [\"*\"], clients: [{clients}] }}\n      \
             - {{ server: srv, allow: [\"ec*\"], clients: [{clients}] }}\n\
             agents:\n  - {{ name: caller, description: Calls., instruction: Call. }}\n",
            scripted_mcp()
        );
    (Cluster::start(Plan::one(mesh)).await, calls)
}

async fn connected(node: &TestNode) {
    eventually("the server to be connected", async || {
        let servers = node.operator("mcp").await?;
        let servers = servers["servers"].as_array()?.clone();
        servers.iter().any(|server| server["name"] == "srv" && server["state"] == "ready").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_tools_of_a_server_are_served_and_the_loss_of_another_empties_no_list() {
    let (cluster, calls) = started("operator").await;
    let node = &cluster.nodes[0];
    connected(node).await;
    let client = McpClient::begin(&node.url).await;
    let tools = client.tools(&node.url).await;
    let upstream: Vec<&String> = tools.iter().filter(|tool| tool.contains("__")).collect();
    assert_eq!(upstream, ["srv__echo"], "only what is allowed, and of those that there are");
    assert_eq!(tools.len(), 7, "the reads are there all the same: {tools:?}");
    let called = client.call(&node.url, "srv__echo", json!({ "text": "hello" })).await;
    assert_eq!((&called["isError"], &called["content"][0]["text"]), (&json!(false), &json!("echo: hello")), "{called}");
    for unknown in ["srv__crash", "gone__anything", "srv__", "nobody__echo"] {
        let refused = client.ask(&node.url, "tools/call", json!({ "name": unknown, "arguments": {} })).await;
        assert_eq!(refused["error"]["code"], -32602, "{unknown}: {refused}");
    }
    // What the caller has said of itself stays here.
    let noted = fs::read_to_string(&calls).unwrap();
    let meta: Value = serde_json::from_str(noted.lines().next().unwrap().split_once(' ').unwrap().1).unwrap();
    assert!(!meta.to_string().contains(&client.session), "{meta}");
    fs::remove_dir_all(calls.parent().unwrap()).unwrap_or_default();
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_of_others_are_unknown_to_who_is_not_listed() {
    let (cluster, calls) = started("\"user:ada\"").await;
    let node = &cluster.nodes[0];
    connected(node).await;
    let client = McpClient::begin(&node.url).await;
    assert_eq!(client.tools(&node.url).await.len(), 6);
    let refused = client.ask(&node.url, "tools/call", json!({ "name": "srv__echo", "arguments": {} })).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    fs::remove_dir_all(calls.parent().unwrap()).unwrap_or_default();
}

/// One server that has more than tools, and what is served of it to the operator.
async fn with_more() -> (Cluster, std::path::PathBuf) {
    let model = FakeModel::start(|_| Answer::say("Nothing.")).await;
    let calls = tempfile::tempdir().unwrap().keep().join("calls");
    let mesh = model.config()
        + &format!(
            "mcp:\n  servers:\n    - {{ name: srv, command: [{:?}, {calls:?}, gateway], elicitation: true }}\n  serve:\n    \
             federate:\n      - {{ server: srv, allow: [\"*\"], resources: [\"note://*\"], prompts: [\"*\"], clients: [operator] }}\n\
             agents:\n  - {{ name: caller, description: Calls., instruction: Call. }}\n",
            scripted_mcp()
        );
    (Cluster::start(Plan::one(mesh)).await, calls)
}

#[tokio::test(flavor = "multi_thread")]
async fn results_come_byte_by_byte_and_what_is_on_the_way_to_them_as_well() {
    let (cluster, calls) = with_more().await;
    let node = &cluster.nodes[0];
    connected(node).await;
    let client = McpClient::begin_with(&node.url, json!({ "elicitation": {} })).await;
    let call = |tool: &str, text: &str| json!({ "name": format!("srv__{tool}"), "arguments": { "text": text } });

    let raw = r#""result":{"content":[{"type":"hologram","rays":1.50,"of":1e2,"name":"\u0041"},{"type":"text","text":"raw","extra":{"b":1,"a":2}}],"more":[1.0]}"#;
    let text = client.ask_text(&node.url, "tools/call", call("raw", "")).await;
    assert!(text.contains(raw), "{text}");

    // A file that lay in the store meanwhile is in its place again; one beyond the bound is refused, and nobody else is hurt.
    let file = client.call(&node.url, "srv__file", json!({ "text": "300000" })).await;
    let blob = file["content"][0]["resource"]["blob"].as_str().unwrap_or_else(|| panic!("{file}"));
    assert_eq!(blob.len(), 400_000);
    let large = client.call(&node.url, "srv__file", json!({ "text": "40000000" })).await;
    assert_eq!(large["isError"], true, "{large}");
    assert!(large["content"][0]["text"].as_str().unwrap().contains("are passed on"), "{large}");

    let mut params = call("progress", "");
    params["_meta"] = json!({ "progressToken": "mine" });
    let mut stream = client.ask_and_listen(&node.url, "tools/call", params).await;
    let mut said = Vec::new();
    loop {
        let message = stream.message().await;
        let is_last = message.get("method").is_none();
        said.push(message);
        if is_last {
            break;
        }
    }
    let told = |method: &str| said.iter().rfind(|one| one["method"] == method).map(|one| one["params"].clone());
    let progress = told("notifications/progress").unwrap_or_else(|| panic!("{said:?}"));
    assert_eq!(
        (&progress["progressToken"], &progress["progress"], &progress["total"]),
        (&json!("mine"), &json!(3), &json!(3))
    );
    let log = told("notifications/message").unwrap_or_else(|| panic!("{said:?}"));
    assert_eq!((&log["level"], &log["data"]), (&json!("warning"), &json!("low on paper")));

    let mut stream = client.ask_and_listen(&node.url, "tools/call", call("ask", "Who?")).await;
    let asked = stream.message().await;
    assert_eq!(
        (&asked["method"], &asked["params"]["message"]),
        (&json!("elicitation/create"), &json!("MCP server srv asks: Who?"))
    );
    let answer = json!({ "action": "accept", "content": { "name": "Ada" } });
    client.say(&node.url, &json!({ "jsonrpc": "2.0", "id": asked["id"], "result": answer })).await;
    let answered = stream.message().await;
    let text = answered["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answered}"));
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), answer);
    // A client that asks nobody is not asked, and the tool hears of it.
    let silent = McpClient::begin(&node.url).await;
    let text = silent.call(&node.url, "srv__ask", json!({ "text": "Who?" })).await["content"][0]["text"].clone();
    assert!(text.as_str().unwrap().contains("cancel"), "{text}");

    let refused = client.ask(&node.url, "tools/call", json!({ "name": "srv__nothing", "arguments": {} })).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    fs::remove_dir_all(calls.parent().unwrap()).unwrap_or_default();
}

#[tokio::test(flavor = "multi_thread")]
async fn resources_and_prompts_of_others_are_served_under_their_server_and_only_what_is_allowed() {
    let (cluster, calls) = with_more().await;
    let node = &cluster.nodes[0];
    connected(node).await;
    let client = McpClient::begin(&node.url).await;
    let (mut uris, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let page = client.ask(&node.url, "resources/list", json!({ "cursor": cursor })).await["result"].clone();
        uris.extend(page["resources"].as_array().unwrap().iter().map(|one| one["uri"].as_str().unwrap().to_owned()));
        cursor = page["nextCursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    uris.retain(|uri| uri.contains("one"));
    assert_eq!(uris, ["towline://mcp/srv/note://one"]);
    let templates = client.ask(&node.url, "resources/templates/list", json!({})).await;
    assert!(templates.to_string().contains(r#""uriTemplate":"towline://mcp/srv/note://{name}""#), "{templates}");
    // Under its own URI as well, as results of tools link to it.
    for uri in ["towline://mcp/srv/note://two", "note://two", "note://one"] {
        let read = client.ask_text(&node.url, "resources/read", json!({ "uri": uri })).await;
        assert!(read.contains(r#""odd":1.5"#), "{uri}: {read}");
    }
    for uri in [
        "towline://mcp/srv/note://three",
        "towline://mcp/srv/secret://one",
        "secret://one",
        "towline://mcp/none/note://one",
    ] {
        let refused = client.ask(&node.url, "resources/read", json!({ "uri": uri })).await;
        assert_eq!(
            (&refused["error"]["code"], &refused["error"]["data"]["uri"]),
            (&json!(-32002), &json!(uri)),
            "{refused}"
        );
    }
    let prompts = client.ask(&node.url, "prompts/list", json!({})).await["result"]["prompts"].clone();
    assert_eq!((prompts.as_array().map(Vec::len), &prompts[0]["name"]), (Some(1), &json!("srv__greet")), "{prompts}");
    assert_eq!(prompts[0]["description"], "Greets.\u{fffd}", "what is hidden is shown");
    let made =
        client.ask(&node.url, "prompts/get", json!({ "name": "srv__greet", "arguments": { "who": "Ada" } })).await;
    assert_eq!(made["result"]["messages"][0]["content"]["text"], "Greet \"Ada\".", "{made}");
    for name in ["greet", "srv__nothing"] {
        let refused = client.ask(&node.url, "prompts/get", json!({ "name": name })).await;
        assert_eq!(refused["error"]["code"], -32602, "{name}: {refused}");
    }
    fs::remove_dir_all(calls.parent().unwrap()).unwrap_or_default();
}

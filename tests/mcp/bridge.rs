//! The bridge: agents of others reach MCP servers through a node, over A2E on HTTP and on standard input and output.

use serde_json::{Value, json};
use std::{fs, path::PathBuf};
use towline_tests::{Answer, Cluster, FakeModel, LONG, Plan, TestNode, eventually, http_client, scripted_mcp, towline};

use crate::bridge_agent::{Agent, Stream, message, post};

/// Ada and Bob, by the tokens `the-token-of-ada` and `the-token-of-bob`.
const TWO_USERS: &str = "\
auth:
  principals:
    - { id: \"user:ada\", role: user, bearer: { sha256: 7dac292edbc1f082c8e2f3485f445396480972c0b282d9ecae47688f07754ecc } }
    - { id: \"user:bob\", role: user, bearer: { sha256: 14c82be42a0227d2fa226bb66cf042033e52fcfc5e06a8f73a4df3ebfa689890 } }
";
const ADA: Option<&str> = Some("the-token-of-ada");
const BOB: Option<&str> = Some("the-token-of-bob");

/// Nodes that allow the scripted server, and where it keeps its notes.
struct Bridged {
    cluster: Cluster,
    notes: tempfile::TempDir,
}

impl Bridged {
    async fn start(nodes: usize) -> Self {
        let model = FakeModel::start(|_| Answer::say("Nothing.")).await;
        let notes = tempfile::tempdir().unwrap();
        let (server, file) = (scripted_mcp(), notes.path().join("notes"));
        let mesh = model.config()
            + &format!(
                "mcp:\n  servers:\n    - {{ name: srv, command: [{server:?}, {:?}] }}\n\
                 a2e:\n  allow: [127.0.0.1]\n  servers:\n    - {{ server: srv, tools: [\"ec*\"], clients: [\"user:ada\"] }}\n  \
                 commands:\n    - {{ command: [{server:?}, {file:?}, everything], env: [LEVEL] }}\n    \
                 - {{ command: [{:?}, mcp-files, {:?}] }}\n\
                 agents:\n  - {{ name: worker, description: Works., instruction: Work. }}\n",
                notes.path().join("calls"),
                towline(),
                notes.path(),
            );
        let plan = if nodes == 1 { Plan::one(mesh) } else { Plan::three(mesh) };
        Self { cluster: Cluster::start(plan).await, notes }
    }

    fn node(&self) -> &TestNode {
        &self.cluster.nodes[0]
    }

    fn notes(&self) -> PathBuf {
        self.notes.path().join("notes")
    }

    /// The configuration of the scripted server under an id.
    fn config(&self, id: &str) -> Value {
        json!({ "server_id": id, "name": "every thing", "cmd": [scripted_mcp(), self.notes(), "everything"] })
    }
}

/// Says how a register answer came out.
async fn register(agent: &mut Agent, config: Value) -> Value {
    let answer = agent.ask("mcp/server/register/req", json!({ "config": config })).await;
    assert_eq!(answer["type"], "mcp/server/register/resp", "{answer}");
    answer
}

async fn servers(agent: &mut Agent) -> Vec<Value> {
    let listed = agent.ask("mcp/server/list/req", json!({})).await;
    assert_eq!(listed["type"], "mcp/server/list/resp");
    listed["servers"].as_array().unwrap().clone()
}

fn has_fields(value: &Value, fields: &[&str]) {
    fields.iter().for_each(|field| assert!(value.get(field).is_some(), "{field} is not in {value}"));
}

/// Every message of the capability and of the core, with its fields.
async fn every_message(bridged: &Bridged, mut agent: Agent) {
    let pong = agent.ask("ping", json!({})).await;
    assert_eq!(pong["type"], "pong");
    assert!(pong["uptime_seconds"].as_f64().unwrap() > 0.0);

    serving_and_tools(bridged, &mut agent).await;
    resources_and_prompts(bridged, &mut agent).await;
    announcements_and_questions(&mut agent).await;

    let unknown = agent.ask("proc/start/req", json!({})).await;
    has_fields(&unknown, &["code", "message", "detail", "retryable", "capability_name"]);
    assert_eq!((&unknown["type"], &unknown["code"]), (&json!("error"), &json!("invalid_message")));
    let mismatch = agent.ask("ping", json!({ "version": "2.0" })).await;
    assert_eq!(mismatch["code"], "version_mismatch");

    let gone = agent.ask("mcp/server/unregister/req", json!({ "server_id": "all" })).await;
    assert_eq!((&gone["type"], &gone["ok"]), (&json!("mcp/server/unregister/resp"), &json!(true)));
    assert_eq!(gone["server_id"], "all");
    let again = agent.ask("mcp/server/unregister/req", json!({ "server_id": "all" })).await;
    assert_eq!((&again["ok"], &again["error_code"]), (&json!(false), &json!("mcp_server_not_found")));
    let call = agent.ask("tool/call/req", json!({ "tool_name": "all__echo", "arguments": {} })).await;
    assert_eq!((&call["code"], &call["retryable"]), (&json!("mcp_server_not_found"), &json!(false)));
    agent.leave().await;
}

async fn serving_and_tools(bridged: &Bridged, agent: &mut Agent) {
    let mut config = bridged.config("all");
    config["tool_allow_list"] = json!(["echo", "odd", "fail", "sample", "roots", "announce", "work", "crash"]);
    // The server asks for the roots before anything else.
    let asked = message("mcp/server/register/req", json!({ "config": config }));
    agent.say(&asked).await;
    let root = agent.wait_for(|heard| heard["type"] == "mcp/root/list/req").await;
    assert_eq!((&root["server_id"], root["mcp_request_id"].is_string()), (&json!("all"), true));
    let shown = json!({ "mcp_request_id": root["mcp_request_id"], "req_id": root["id"], "server_id": "all",
        "roots": [{ "name": "home", "uri": "file:///home/ada" }] });
    agent.say(&message("mcp/root/list/resp", shown)).await;
    let answer = agent.wait_for(|heard| heard["req_id"] == asked["id"]).await;
    assert_eq!((&answer["ok"], &answer["error"]), (&json!(true), &json!("")), "{answer}");
    let info = &answer["server"];
    assert_eq!(
        (&info["status"], &info["transport"], &info["name"]),
        (&json!("ready"), &json!("stdio"), &json!("every thing"))
    );
    assert_eq!((&info["server_name"], &info["server_version"]), (&json!("everything"), &json!("1.2.3")));
    assert_eq!((&info["mcp_version"], &info["tools_count"]), (&json!("2025-11-25"), &json!(8)));
    assert_eq!(info["resources_count"], 252);
    let notes = bridged.notes();
    let rooted = eventually("the server to have its roots", async || {
        let said = fs::read_to_string(&notes).ok()?;
        serde_json::from_str::<Value>(said.lines().find_map(|line| line.strip_prefix("roots "))?).ok()
    })
    .await;
    assert_eq!(rooted, json!({ "roots": [{ "name": "home", "uri": "file:///home/ada" }] }));
    let said = fs::read_to_string(&notes).unwrap();
    assert!(said.contains(r#"capabilities {"roots":{},"sampling":{}}"#), "only what the bridge serves: {said}");

    until(agent, "the server to be looked at", async |agent| {
        let known = servers(agent).await.into_iter().find(|server| server["server_id"] == "all").unwrap();
        known["prompts_count"] == 1 && known["connected_at"].as_f64().unwrap() > 1.0e9
    })
    .await;
    let known = servers(agent).await.into_iter().find(|server| server["server_id"] == "all").unwrap();
    has_fields(&known, &["server_id", "name", "transport", "error", "last_ping_ms", "connected_at"]);
    let none = agent.ask("mcp/server/list/req", json!({ "status_filter": "error" })).await;
    assert!(none["servers"].as_array().unwrap().iter().all(|server| server["server_id"] != "all"));

    let listed = agent.ask("tool/list/req", json!({ "filter_tags": ["MCP", "all"], "query": "ECHO" })).await;
    assert_eq!(listed["type"], "tool/list/resp");
    let tool = &listed["tools"][0];
    assert_eq!((&tool["name"], &tool["description"]), (&json!("all__echo"), &json!("[MCP:every thing] Does echo.")));
    assert_eq!((&tool["source"], &tool["tags"]), (&json!("mcp"), &json!(["mcp", "all", "every thing"])));
    let parameter = json!({ "description": "what", "enum": ["a", "b"], "name": "text", "properties": null, "required": true,
        "type": "string" });
    assert_eq!((&tool["input_parameters"], &tool["input_schema"]["type"]), (&json!([parameter]), &json!("object")));
    let all = agent.ask("tool/list/req", json!({})).await;
    let names: Vec<&str> = all["tools"].as_array().unwrap().iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert!(names.contains(&"srv__echo") && !names.contains(&"all__secret"), "{names:?}");

    let called = agent.call("all__echo", json!({ "text": "hello" })).await;
    has_fields(&called, &["exit_code", "error", "error_code", "events", "truncated"]);
    assert_eq!((&called["success"], &called["summary"]), (&json!(true), &json!("echo: hello")), "{called}");
    assert_eq!((&called["tool_name"], called["duration_ms"].is_u64()), (&json!("all__echo"), true));
    let odd = agent.call("all__odd", json!({})).await;
    assert_eq!(odd["data"]["content"], json!([{ "type": "hologram", "rays": 7 }]), "as it came");
    let failed = agent.call("all__fail", json!({})).await;
    assert_eq!((&failed["success"], &failed["error_code"]), (&json!(false), &json!("tool_error")), "{failed}");
    for (tool, code) in [
        ("all__secret", "mcp_tool_not_found"),
        ("all__nothing", "mcp_tool_not_found"),
        ("all__resources/read", "mcp_tool_not_found"),
        ("nobody__echo", "mcp_server_not_found"),
        ("echo", "unknown_tool"),
    ] {
        let refused = agent.ask("tool/call/req", json!({ "tool_name": tool, "arguments": {} })).await;
        assert_eq!((&refused["type"], &refused["code"]), (&json!("error"), &json!(code)), "{tool}: {refused}");
    }
    let asked = message("tool/call/req", json!({ "tool_name": "all__work", "arguments": {}, "streaming": true }));
    agent.say(&asked).await;
    let event = agent.wait_for(|heard| heard["type"] == "tool/event" && heard["req_id"] == asked["id"]).await;
    assert_eq!(
        (&event["kind"], &event["seq"], &event["data"]["message"]),
        (&json!("progress"), &json!(1), &json!("on it"))
    );
    let done = agent.wait_for(|heard| heard["type"] == "tool/call/resp" && heard["req_id"] == asked["id"]).await;
    assert_eq!(done["data"]["summary"], "done");
    let pushed = agent.pushed("notifications/progress").await;
    assert_eq!((&pushed["server_id"], &pushed["params"]["total"]), (&json!("all"), &json!(4.0)));
}

async fn resources_and_prompts(bridged: &Bridged, agent: &mut Agent) {
    let first = agent.ask("mcp/resource/list/req", json!({ "server_id": "all" })).await;
    assert_eq!(first["type"], "mcp/resource/list/resp");
    let listed = &first["resources"][0];
    let expected = json!({ "annotations": { "priority": 1.0 }, "description": "The first.", "mime_type": "text/plain",
        "name": "A", "server_id": "all", "uri": "file:///a.txt" });
    assert_eq!(*listed, expected);
    assert_eq!(first["resources"].as_array().unwrap().len(), 200);
    let cursor = json!({ "cursor": first["next_cursor"] });
    let second = agent.ask("mcp/resource/list/req", cursor).await;
    assert_eq!((second["resources"].as_array().unwrap().len(), &second["next_cursor"]), (52, &json!("")));
    let strange = agent.ask("mcp/resource/list/req", json!({ "cursor": "?" })).await;
    assert_eq!(strange["code"], "schema_violation");

    let read = agent.ask("mcp/resource/read/req", json!({ "uri": "file:///a.txt" })).await;
    assert_eq!((&read["type"], &read["server_id"]), (&json!("mcp/resource/read/resp"), &json!("all")), "{read}");
    assert_eq!((&read["contents"][0]["text"], &read["contents"][0]["type"]), (&json!("first"), &json!("text")));
    let blob = agent.ask("mcp/resource/read/req", json!({ "uri": "file:///b.bin", "server_id": "all" })).await;
    let content = &blob["contents"][0];
    assert_eq!(
        (&content["blob"], &content["type"], &content["mime_type"]),
        (&json!("AAEC"), &json!("blob"), &json!("image/png"))
    );
    let by_template = agent.ask("mcp/resource/read/req", json!({ "uri": "note://x" })).await;
    assert_eq!((&by_template["server_id"], &by_template["error"]), (&json!("all"), &json!("")), "{by_template}");
    for (uri, server) in [("file:///none", "all"), ("nothing://x", "")] {
        let missing = agent.ask("mcp/resource/read/req", json!({ "uri": uri, "server_id": server })).await;
        assert_eq!(
            (&missing["contents"], &missing["error_code"]),
            (&json!([]), &json!("mcp_resource_not_found")),
            "{missing}"
        );
        assert!(missing["error"].as_str().unwrap().starts_with("mcp_resource_not_found: "), "{missing}");
    }
    let nowhere = agent.ask("mcp/resource/list/req", json!({ "server_id": "nobody" })).await;
    assert_eq!((&nowhere["type"], &nowhere["code"]), (&json!("error"), &json!("mcp_server_not_found")));

    let subscribed = agent.ask("mcp/resource/subscribe/req", json!({ "uri": "file:///a.txt" })).await;
    assert_eq!((&subscribed["type"], &subscribed["ok"]), (&json!("mcp/resource/subscribe/resp"), &json!(true)));
    assert!(fs::read_to_string(bridged.notes()).unwrap().contains("resources/subscribe file:///a.txt"));
    let of_tools_alone = json!({ "uri": "file:///a.txt", "server_id": "srv" });
    let lacking = agent.ask("mcp/resource/subscribe/req", of_tools_alone).await;
    assert_eq!(
        (&lacking["ok"], &lacking["error_code"]),
        (&json!(false), &json!("mcp_capability_missing")),
        "{lacking}"
    );

    let prompts = agent.ask("mcp/prompt/list/req", json!({})).await;
    assert_eq!((&prompts["type"], &prompts["next_cursor"]), (&json!("mcp/prompt/list/resp"), &json!("")));
    let prompt = &prompts["prompts"][0];
    assert_eq!((&prompt["name"], &prompt["server_id"]), (&json!("review"), &json!("all")));
    assert_eq!(prompt["arguments"][0], json!({ "description": "which", "name": "path", "required": true }));
    let made = agent.ask("mcp/prompt/get/req", json!({ "name": "review", "arguments": { "path": "x.rs" } })).await;
    assert_eq!((&made["type"], &made["server_id"]), (&json!("mcp/prompt/get/resp"), &json!("all")));
    assert_eq!(made["messages"], json!([{ "role": "user", "content": { "type": "text", "text": "Review x.rs." } }]));
    assert_eq!(made["description"], "Reviews a file.");
    for server in ["all", ""] {
        let missing = agent.ask("mcp/prompt/get/req", json!({ "name": "none", "server_id": server })).await;
        assert_eq!(missing["error_code"], "mcp_prompt_not_found", "{missing}");
    }
}

async fn announcements_and_questions(agent: &mut Agent) {
    agent.call("all__announce", json!({})).await;
    for method in ["tools/list_changed", "resources/list_changed", "prompts/list_changed"] {
        let pushed = agent.pushed(&format!("notifications/{method}")).await;
        assert_eq!((&pushed["server_id"], &pushed["params"]), (&json!("all"), &json!({})));
    }
    let updated = agent.pushed("notifications/resources/updated").await;
    assert_eq!(updated["params"], json!({ "uri": "file:///a.txt" }));
    assert_eq!(agent.pushed("notifications/message").await["params"]["data"], "low on paper");

    // An answer, a refusal, and an answer as the published SDK sends it.
    for (kind, fields, result) in [
        (
            "mcp/sample/resp",
            json!({ "content": { "type": "text", "text": "4" }, "model": "m", "role": "assistant",
            "stop_reason": "endTurn" }),
            r#""stopReason":"endTurn""#,
        ),
        ("mcp/sample/resp", json!({ "error": "not now" }), "mcp_sampling_refused"),
        ("error", json!({ "code": "mcp_sampling_refused", "message": "never" }), "mcp_sampling_refused"),
        ("mcp/sample/req", json!({ "content": { "type": "text", "text": "5" } }), r#""text":"5""#),
    ] {
        let call = message("tool/call/req", json!({ "tool_name": "all__sample", "arguments": { "text": "2+2?" } }));
        agent.say(&call).await;
        let asked = agent.wait_for(|heard| heard["type"] == "mcp/sample/req").await;
        assert_eq!((&asked["system_prompt"], &asked["temperature"]), (&json!("Be short."), &json!(0.5)));
        assert_eq!((&asked["max_tokens"], &asked["stop_sequences"]), (&json!(7), &json!(["."])));
        assert_eq!((&asked["include_context"], &asked["metadata"]), (&json!("none"), &json!({})));
        assert_eq!(
            (&asked["model_preferences"], &asked["messages"][0]["content"]["text"]),
            (&json!({}), &json!("2+2?"))
        );
        let req_id = if kind == "mcp/sample/req" { json!("") } else { asked["id"].clone() };
        let mut answer = message(kind, fields);
        for (field, value) in
            [("req_id", req_id), ("server_id", json!("all")), ("mcp_request_id", asked["mcp_request_id"].clone())]
        {
            answer[field] = value;
        }
        agent.say(&answer).await;
        let called = agent.wait_for(|heard| heard["req_id"] == call["id"]).await;
        assert!(called["data"]["summary"].as_str().unwrap().contains(result), "{result}: {called}");
    }
}

/// Asks again until something is so, with a limit.
async fn until(agent: &mut Agent, what: &str, is_so: impl AsyncFn(&mut Agent) -> bool) {
    let asked = async {
        while !is_so(agent).await {
            tokio::time::sleep(std::time::Duration::from_millis(40)).await;
        }
    };
    tokio::time::timeout(LONG, asked).await.unwrap_or_else(|_| panic!("waited {LONG:?} in vain for {what}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_sends_every_message_over_http() {
    let bridged = Bridged::start(1).await;
    let agent = Agent::over_http(&bridged.node().url, None).await;
    every_message(&bridged, agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_sends_every_message_over_standard_input_and_output() {
    let bridged = Bridged::start(1).await;
    let agent = Agent::over_stdio(&bridged.node().url).await;
    every_message(&bridged, agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_policy_does_not_allow_is_not_registered_and_what_does_not_connect_is_not_kept() {
    let bridged = Bridged::start(1).await;
    let url = bridged.node().url.clone();
    let mut agent = Agent::over_http(&url, None).await;
    let with = |field: &str, value: Value| {
        let mut config = bridged.config("x");
        config[field] = value;
        config
    };
    let to = |url: &str| json!({ "server_id": "x", "transport": "sse", "url": url });
    for (config, says) in [
        (json!({ "server_id": "x", "cmd": ["sh", "-c", "true"] }), "a2e.commands"),
        (with("env", json!({ "LD_PRELOAD": "/tmp/x.so" })), "a2e.commands"),
        (with("cwd", json!("/tmp")), "a2e.commands"),
        (with("server_id", json!("a__b")), "server_id"),
        (with("server_id", json!("srv")), "in use"),
        (json!({ "server_id": "x", "transport": "ws", "url": "wss://tools.example" }), "reserved"),
        (to("http://169.254.169.254/latest"), "a2e.allow"),
        (to("https://10.0.0.1/mcp"), "a2e.allow"),
        (to("https://user:pw@tools.example/"), "before its host"),
        (to("http://127.0.0.1:9/mcp"), "does not connect"),
    ] {
        let refused = register(&mut agent, config.clone()).await;
        assert_eq!((&refused["ok"], &refused["server"]), (&json!(false), &json!({})), "{config}: {refused}");
        assert!(refused["error"].as_str().unwrap().contains(says), "{says}: {refused}");
    }
    assert_eq!(servers(&mut agent).await.len(), 1, "that of the configuration");
    assert!(register(&mut agent, with("env", json!({ "LEVEL": "1" }))).await["ok"] == true);
    let twice = register(&mut agent, bridged.config("x")).await;
    assert!(twice["error"].as_str().unwrap().contains("in use"), "{twice}");

    // A server over HTTP, where the operator allows its address: the node's own.
    let own =
        register(&mut agent, json!({ "server_id": "own", "transport": "sse", "url": format!("{url}/mcp") })).await;
    assert_eq!((&own["ok"], &own["server"]["transport"]), (&json!(true), &json!("sse")), "{own}");
    assert_eq!(agent.call("own__list_agents", json!({})).await["success"], true);
    // And one that others have made.
    let files = json!({ "server_id": "files", "cmd": [towline(), "mcp-files", bridged.notes.path()] });
    assert_eq!(register(&mut agent, files).await["ok"], true);
    fs::write(bridged.notes.path().join("hello.txt"), "hello").unwrap();
    let read = agent.call("files__read_file", json!({ "path": "hello.txt" })).await;
    assert!(read["summary"].as_str().unwrap().contains("hello"), "{read}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_registers_is_its_own_on_every_node_and_gone_everywhere_when_it_goes() {
    let mut bridged = Bridged::start(3).await;
    // From here on callers have to show who they are.
    for node in &mut bridged.cluster.nodes {
        node.stop().await;
        let config = fs::read_to_string(node.config()).unwrap();
        fs::write(node.config(), config + TWO_USERS).unwrap();
        node.start(None);
    }
    for node in &mut bridged.cluster.nodes {
        node.ready().await;
    }
    let [a, b, _] = &bridged.cluster.nodes[..] else { panic!("three nodes") };
    let mut ada = Agent::over_http(&a.url, ADA).await;
    assert_eq!(register(&mut ada, bridged.config("all")).await["ok"], true);
    let mut elsewhere = Agent::over_http(&b.url, ADA).await;
    until(&mut elsewhere, "the other node to be connected", async |agent| {
        let known = servers(agent).await;
        known.len() == 2 && known.iter().any(|server| server["server_id"] == "all" && server["status"] == "ready")
    })
    .await;
    assert_eq!(elsewhere.call("all__echo", json!({ "text": "b" })).await["summary"], "echo: b");
    // Of the server of the configuration she may use what its list says.
    until(&mut elsewhere, "the configured server to be there", async |agent| {
        let listed = agent.ask("tool/list/req", json!({ "filter_tags": ["srv"] })).await;
        listed["tools"].as_array().unwrap().len() == 1
    })
    .await;
    let denied = elsewhere.ask("tool/call/req", json!({ "tool_name": "srv__crash", "arguments": {} })).await;
    assert_eq!(denied["code"], "mcp_tool_not_found");

    let mut bob = Agent::over_http(&b.url, BOB).await;
    assert!(servers(&mut bob).await.is_empty(), "neither hers, nor that of the configuration");
    let refused = bob.ask("tool/call/req", json!({ "tool_name": "all__echo", "arguments": {} })).await;
    assert_eq!(refused["code"], "mcp_server_not_found");
    let not_his = bob.ask("mcp/server/unregister/req", json!({ "server_id": "all" })).await;
    assert_eq!(not_his["ok"], false);
    let headers = [("authorization", "Bearer the-token-of-bob"), ("x-session-id", ada.session())];
    assert_eq!(post(&a.url, "send", &headers, message("ping", json!({})).to_string()).await.status().as_u16(), 404);

    assert_eq!(ada.ask("mcp/server/unregister/req", json!({ "server_id": "all" })).await["ok"], true);
    until(&mut elsewhere, "the other node to let it go", async |agent| {
        let called = agent.ask("tool/call/req", json!({ "tool_name": "all__echo", "arguments": {} })).await;
        called["code"] == "mcp_server_not_found"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_crashes_comes_back_with_its_subscriptions_unless_its_owner_does_not_want_that() {
    let bridged = Bridged::start(1).await;
    let mut agent = Agent::over_http(&bridged.node().url, None).await;
    assert_eq!(register(&mut agent, bridged.config("all")).await["ok"], true);
    let once = json!({ "auto_reconnect": false, "server_id": "once", "name": "once",
        "cmd": [scripted_mcp(), bridged.notes(), "everything"] });
    assert_eq!(register(&mut agent, once).await["ok"], true);
    for server in ["all", "once"] {
        let subscribe = json!({ "uri": "file:///a.txt", "server_id": server });
        assert_eq!(agent.ask("mcp/resource/subscribe/req", subscribe).await["ok"], true);
    }
    for server in ["all", "once"] {
        let crash = json!({ "tool_name": format!("{server}__crash"), "arguments": {} });
        let crashed = agent.ask("tool/call/req", crash).await;
        assert_eq!(
            (&crashed["code"], &crashed["retryable"]),
            (&json!("mcp_transport_error"), &json!(true)),
            "{crashed}"
        );
    }
    // It may have changed while nobody listened.
    let updated = agent.pushed("notifications/resources/updated").await;
    assert_eq!((&updated["server_id"], &updated["params"]["uri"]), (&json!("all"), &json!("file:///a.txt")));
    assert_eq!(agent.call("all__echo", json!({ "text": "again" })).await["success"], true);
    let rests = servers(&mut agent).await.into_iter().find(|server| server["server_id"] == "once").unwrap();
    assert_eq!(rests["status"], "disconnected", "{rests}");
    let refused = agent.ask("tool/call/req", json!({ "tool_name": "once__echo", "arguments": {} })).await;
    assert_eq!((&refused["code"], &refused["retryable"]), (&json!("mcp_server_unavailable"), &json!(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_broke_goes_on_and_a_message_that_comes_twice_is_carried_out_once() {
    let bridged = Bridged::start(1).await;
    let url = bridged.node().url.clone();
    let mut agent = Agent::over_http(&url, None).await;
    agent.ask("ping", json!({})).await;
    let (session, last) = (agent.session().to_owned(), agent.last().unwrap());
    let headers = [("x-session-id", session.as_str())];
    let twice = message("ping", json!({})).to_string();
    for _ in 0..2 {
        assert_eq!(post(&url, "send", &headers, twice.clone()).await.status().as_u16(), 202);
    }
    let ping = message("ping", json!({}));
    assert_eq!(post(&url, "send", &headers, ping.to_string()).await.status().as_u16(), 202);
    // What the first stream may have read already comes again behind what was seen.
    let mut again = Stream::open(&url, &session, None, Some(&last)).await;
    let first = again.next().await.unwrap();
    assert!(twice.contains(first["req_id"].as_str().unwrap()), "{first}");
    assert_eq!(again.next().await.unwrap()["req_id"], ping["id"], "once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_a_page_under_another_name_or_without_its_session_is_refused() {
    let bridged = Bridged::start(1).await;
    let url = bridged.node().url.clone();
    for (header, value) in [
        ("host", "evil.example"),
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
    ] {
        for path in ["session", "send"] {
            let status = post(&url, path, &[(header, value)], String::new()).await.status().as_u16();
            assert_eq!(status, 403, "{header} {value} {path}");
        }
        let listen = http_client().get(format!("{url}/a2e/stream")).header(header, value).send().await.unwrap();
        assert_eq!(listen.status().as_u16(), 403, "{header} {value}");
    }
    assert_eq!(post(&url, "session", &[], String::new()).await.status().as_u16(), 200, "none is a program");
    let health = http_client().get(format!("{url}/a2e/health")).send().await.unwrap();
    assert_eq!(health.json::<Value>().await.unwrap(), json!({ "status": "ok" }));
    let ping = message("ping", json!({})).to_string();
    assert_eq!(post(&url, "send", &[], ping.clone()).await.status().as_u16(), 400);
    assert_eq!(post(&url, "send", &[("x-session-id", "none")], ping).await.status().as_u16(), 404);
    let session = post(&url, "session", &[], String::new()).await.json::<Value>().await.unwrap();
    let headers = [("x-session-id", session["session_id"].as_str().unwrap())];
    let refused = post(&url, "send", &headers, "{".to_owned()).await;
    assert_eq!(refused.status().as_u16(), 400);
    assert_eq!(refused.json::<Value>().await.unwrap()["code"], "parse_error");
    // Before the handshake nothing is served but what needs none.
    let mut stream = Stream::open(&url, headers[0].1, None, None).await;
    let list = message("tool/list/req", json!({})).to_string();
    assert_eq!(post(&url, "send", &headers, list).await.status().as_u16(), 202);
    assert_eq!(stream.next().await.unwrap()["code"], "mcp_capability_missing");
}

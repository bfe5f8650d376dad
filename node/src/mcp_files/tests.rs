//! Tests of the file server: every refusal, both transports, and the rules of the demo over real answers.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use futures::TryStreamExt;
use rmcp::{
    ServiceExt,
    model::{CallToolRequestParams, CallToolResult, JsonObject},
};
use serde_json::{Value, json};
use std::{fs, os::unix::fs::symlink, path::Path};
use tempfile::TempDir;
use towline_actors::model::{ChatMessage, Delta, ModelProvider, ModelRequest, ScriptedProvider};
use towline_core::ToolCall;

use super::{
    folder::{Folder, MAX_FILE_BYTES},
    server::{BadCall, Call, FileServer, tools},
    transport,
};

const RULES: &str = include_str!("../demo/rules.yaml");

/// A folder with one of everything, beside a secret.
fn playground() -> (TempDir, FileServer) {
    let around = tempfile::tempdir().unwrap();
    fs::write(around.path().join("secret.txt"), "secret").unwrap();
    let dir = around.path().join("shown");
    fs::create_dir_all(dir.join("sub")).unwrap();
    fs::create_dir_all(dir.join(".keys/deep")).unwrap();
    fs::write(dir.join(".keys/deep/node.key"), "alles geheim").unwrap();
    fs::write(dir.join("b.txt"), "one two\nthree").unwrap();
    fs::write(dir.join("a.md"), "# \u{dc}ber | alles\n\nText.\n").unwrap();
    fs::write(dir.join("sub/code.rs"), "//! Does it.\nfn main() {}\n").unwrap();
    fs::write(dir.join("nul.bin"), b"a\0b").unwrap();
    fs::write(dir.join("latin1.txt"), b"caf\xe9").unwrap();
    fs::write(dir.join("big.txt"), vec![b'x'; MAX_FILE_BYTES as usize + 1]).unwrap();
    symlink(around.path().join("secret.txt"), dir.join("escape.txt")).unwrap();
    symlink(around.path(), dir.join("escape")).unwrap();
    symlink(dir.join("b.txt"), dir.join("inside.txt")).unwrap();
    let server = FileServer::new(Folder::open(&dir).unwrap());
    (around, server)
}

async fn call(server: &FileServer, tool: &str, arguments: Value) -> CallToolResult {
    server.answer(Call::read(tool, arguments.as_object().unwrap().clone()).unwrap()).await
}

fn text_of(result: &CallToolResult) -> String {
    result.content[0].as_text().unwrap().text.clone()
}

async fn refusal(path: &str) -> String {
    let (_around, server) = playground();
    let result = call(&server, "read_file", json!({ "path": path })).await;
    assert_eq!(result.is_error, Some(true), "{path}");
    text_of(&result)
}

#[test]
fn text_files_are_resources_by_their_uris_and_nothing_outside_is() {
    let (around, _server) = playground();
    let root = around.path().join("shown").canonicalize().unwrap();
    let folder = Folder::open(&root).unwrap();
    let listed = folder.resources().unwrap();
    let uri = |path: &str| format!("file://{}/{path}", root.display());
    assert!(listed.contains(&(uri("b.txt"), "b.txt".to_owned())), "{listed:?}");
    assert!(!listed.iter().any(|(uri, _)| uri.contains("nul.bin") || uri.contains("escape")), "{listed:?}");
    assert_eq!(folder.read_uri(&uri("b.txt")).unwrap().text, "one two\nthree");
    assert_eq!(folder.read_uri(&uri("sub/code.rs")).unwrap().text, "//! Does it.\nfn main() {}\n");
    for outside in [
        uri("../secret.txt"),
        uri("%2e%2e/secret.txt"),
        uri("escape.txt"),
        uri("none.txt"),
        "b.txt".into(),
        "http://x/b.txt".into(),
    ] {
        assert!(folder.read_uri(&outside).is_err(), "{outside}");
    }
}

#[tokio::test]
async fn paths_outside_are_refused_however_they_are_spelled() {
    for path in
        ["../secret.txt", "sub/../../secret.txt", "/etc/passwd", "escape.txt", "escape/secret.txt", "../nothing"]
    {
        assert!(refusal(path).await.contains("outside"), "{path}");
    }
}

#[tokio::test]
async fn hidden_folders_are_neither_listed_nor_read_nor_searched() {
    for path in [".keys/deep/node.key", "sub/../.keys/deep/node.key"] {
        assert!(refusal(path).await.contains("hidden folder"), "{path}");
    }
    let (_around, server) = playground();
    let listing = call(&server, "list_directory", json!({ "path": ".keys" })).await;
    assert!(text_of(&listing).contains("hidden folder"));
    let found = call(&server, "search_files", json!({ "pattern": "geheim" })).await.structured_content.unwrap();
    assert_eq!(found["matches"], json!([]));
}

#[tokio::test]
async fn an_absolute_path_inside_is_served() {
    let (around, server) = playground();
    let path = around.path().canonicalize().unwrap().join("shown/b.txt");
    let result = call(&server, "read_file", json!({ "path": path })).await;
    assert_eq!(result.structured_content.unwrap()["path"], "b.txt");
}

#[tokio::test]
async fn binary_and_large_files_are_refused() {
    assert!(refusal("nul.bin").await.contains("binary"));
    assert!(refusal("latin1.txt").await.contains("binary"));
    assert!(refusal("big.txt").await.contains("1048577 bytes"));
}

#[tokio::test]
async fn missing_files_and_folders_are_refused_as_files() {
    assert!(refusal("nothing.txt").await.contains("there is no"));
    assert!(refusal("sub").await.contains("not a file"));
}

#[tokio::test]
async fn a_file_cannot_be_listed_and_a_folder_outside_neither() {
    let (_around, server) = playground();
    let result = call(&server, "list_directory", json!({ "path": "b.txt" })).await;
    assert!(text_of(&result).contains("not a folder"));
    let result = call(&server, "list_directory", json!({ "path": "escape" })).await;
    assert!(text_of(&result).contains("outside"));
}

#[tokio::test]
async fn a_named_pipe_is_refused_and_not_waited_for() {
    let (around, server) = playground();
    let made = std::process::Command::new("mkfifo").arg(around.path().join("shown/pipe")).status().unwrap();
    assert!(made.success());
    let result = call(&server, "read_file", json!({ "path": "pipe" })).await;
    assert!(text_of(&result).contains("not a file"));
}

#[tokio::test]
async fn a_listing_is_sorted_and_knows_text_files() {
    let (_around, server) = playground();
    let listing = call(&server, "list_directory", json!({})).await.structured_content.unwrap();
    let entries: Vec<(&str, &str, bool)> = listing["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            (entry["name"].as_str().unwrap(), entry["kind"].as_str().unwrap(), entry["text"].as_bool().unwrap())
        })
        .collect();
    let expected = [
        ("a.md", "file", true),
        ("b.txt", "file", true),
        ("big.txt", "file", false),
        ("escape", "symlink", false),
        ("escape.txt", "symlink", false),
        ("inside.txt", "symlink", false),
        ("latin1.txt", "file", false),
        ("nul.bin", "file", false),
        ("sub", "directory", false),
    ];
    assert_eq!(entries, expected);
}

#[tokio::test]
async fn a_file_comes_with_its_counts_as_structure_and_as_json_text() {
    let (_around, server) = playground();
    let result = call(&server, "read_file", json!({ "path": "./a.md" })).await;
    let expected = json!({
        "path": "a.md", "bytes": 23, "lines": 3, "words": 5, "title": "Über | alles", "text": "# Über | alles\n\nText.\n",
    });
    assert_eq!(serde_json::from_str::<Value>(&text_of(&result)).unwrap(), expected);
    assert_eq!(result.structured_content, Some(expected));
}

#[tokio::test]
async fn a_search_finds_lines_and_does_not_follow_links() {
    let (_around, server) = playground();
    let found = call(&server, "search_files", json!({ "pattern": "(?i)does|one|secret" })).await;
    let found = found.structured_content.unwrap();
    let expected = json!([
        { "path": "b.txt", "line": 1, "text": "one two" },
        { "path": "sub/code.rs", "line": 1, "text": "//! Does it." },
    ]);
    assert_eq!((&found["matches"], &found["truncated"]), (&expected, &json!(false)));
}

#[tokio::test]
async fn a_pattern_that_is_none_is_refused() {
    let (_around, server) = playground();
    assert!(text_of(&call(&server, "search_files", json!({ "pattern": "(" })).await).contains("regular expression"));
}

#[test]
fn arguments_are_checked() {
    let read = |tool: &str, arguments: Value| Call::read(tool, arguments.as_object().unwrap().clone());
    assert_eq!(read("write_file", json!({})), Err(BadCall::UnknownTool));
    for (tool, arguments) in [
        ("read_file", json!({})),
        ("read_file", json!({ "path": 1 })),
        ("read_file", json!({ "path": "a", "mode": "w" })),
        ("search_files", json!({ "path": "." })),
    ] {
        assert!(matches!(read(tool, arguments.clone()), Err(BadCall::Arguments(_))), "{tool} {arguments}");
    }
}

#[test]
fn every_tool_says_that_it_only_reads() {
    for tool in tools(true) {
        assert_eq!(tool.annotations.unwrap().read_only_hint, Some(true), "{}", tool.name);
    }
}

#[tokio::test]
async fn a_client_is_served_over_a_pipe() {
    let (_around, server) = playground();
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let serving = tokio::spawn(async move { server.serve(ours).await.unwrap().waiting().await });
    let client = ().serve(theirs).await.unwrap();
    assert_eq!(client.list_all_tools().await.unwrap().len(), 3);
    let result = client.call_tool(read_file("b.txt")).await.unwrap();
    assert_eq!(result.structured_content.unwrap()["words"], 3);
    let unknown = client.call_tool(CallToolRequestParams::new("write_file")).await;
    assert!(unknown.unwrap_err().to_string().contains("unknown tool"));
    client.cancel().await.unwrap();
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_whole_file_is_given_over_a_pipe_and_what_only_looks_like_a_token_is_text() {
    let (around, server) = playground();
    let bytes: Vec<u8> = (0..500_000_u32).map(|at| (at / 7) as u8).collect();
    fs::write(around.path().join("shown/large.bin"), &bytes).unwrap();
    fs::write(around.path().join("shown/token.txt"), format!("towline-attached-{}", "0".repeat(32))).unwrap();
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (input, output) = tokio::io::split(ours);
    let serving = tokio::spawn(transport::serve_streams(server, input, output));
    let client = ().serve(theirs).await.unwrap();
    let with_path = |tool: &'static str, path: &str| {
        CallToolRequestParams::new(tool).with_arguments(JsonObject::from_iter([("path".to_owned(), json!(path))]))
    };
    for (path, expected) in [("large.bin", bytes), ("nul.bin", b"a\0b".to_vec())] {
        let result = client.call_tool(with_path("attach_file", path)).await.unwrap();
        let resource = serde_json::to_value(&result.content[1]).unwrap()["resource"].clone();
        assert_eq!(resource["uri"], format!("file:///{path}"));
        assert!(BASE64.decode(resource["blob"].as_str().unwrap()).unwrap() == expected, "{path}");
    }
    let text = client.call_tool(with_path("read_file", "token.txt")).await.unwrap();
    assert_eq!(text.structured_content.unwrap()["text"], format!("towline-attached-{}", "0".repeat(32)));
    for (path, why) in [("escape.txt", "outside"), ("sub", "not a file"), (".keys/deep/node.key", "hidden")] {
        let refused = client.call_tool(with_path("attach_file", path)).await.unwrap();
        assert!(refused.is_error == Some(true) && text_of(&refused).contains(why), "{path}: {}", text_of(&refused));
    }
    assert_eq!(client.list_all_tools().await.unwrap().len(), 4);
    client.cancel().await.unwrap();
    serving.await.unwrap().unwrap();
}

fn read_file(path: &str) -> CallToolRequestParams {
    let arguments = JsonObject::from_iter([("path".to_owned(), json!(path))]);
    CallToolRequestParams::new("read_file").with_arguments(arguments)
}

#[tokio::test]
async fn over_http_foreign_hosts_and_any_origin_are_refused() {
    // Another test may have installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (_around, server) = playground();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let stop = tokio_util::sync::CancellationToken::new();
    let serving = tokio::spawn(transport::serve_listener(server, listener, stop.clone()));
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "0" },
    }});
    let post = |header: Option<(&'static str, &'static str)>| {
        let request = http.post(&url).header("accept", "application/json, text/event-stream").json(&initialize);
        let request = header.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        async move { request.send().await.unwrap().status().as_u16() }
    };
    assert_eq!(post(None).await, 200);
    assert_eq!(post(Some(("host", "evil.example"))).await, 403);
    assert_eq!(post(Some(("origin", "http://evil.example"))).await, 403);
    assert_eq!(post(Some(("origin", "null"))).await, 403);
    stop.cancel();
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn only_loopback_is_listened_on() {
    let (_around, server) = playground();
    let error = transport::serve_http(server, "0.0.0.0:0".parse().unwrap()).await.unwrap_err();
    assert!(error.to_string().contains("loopback"));
}

/// An agent with the scripted model of the demo: its loop, with the file server and itself as the only tools.
struct Agent {
    model: ScriptedProvider,
    server: FileServer,
}

impl Agent {
    async fn ask(&self, agent: &str, text: &str) -> String {
        let mut request = ModelRequest {
            model: "scripted-1".into(),
            system: String::new(),
            messages: vec![ChatMessage::User(text.into())],
            tools: Vec::new(),
            seed: "test".into(),
            agent: agent.into(),
            message_id: String::new(),
            trace: None,
        };
        loop {
            let deltas: Vec<Delta> = self.model.complete(request.clone()).await.unwrap().try_collect().await.unwrap();
            let mut text = String::new();
            let mut calls = Vec::new();
            for delta in deltas {
                match delta {
                    Delta::Text(more) => text.push_str(&more),
                    Delta::Call(call) => calls.push(call),
                    Delta::Artifact(_) | Delta::Reply => {}
                    Delta::Usage(_) | Delta::End => {}
                }
            }
            if calls.is_empty() {
                return text;
            }
            request.messages.push(ChatMessage::Assistant { text, calls: calls.clone() });
            for call in calls {
                request.messages.push(self.result(call).await);
            }
        }
    }

    async fn result(&self, call: ToolCall) -> ChatMessage {
        let (content, is_error) = match call.name.strip_prefix("fs.") {
            Some(tool) => {
                let result = crate::mcp_files::tests::call(&self.server, tool, call.arguments.clone()).await;
                (text_of(&result), result.is_error == Some(true))
            }
            None => {
                let argument = |name: &str| call.arguments[name].as_str().unwrap().to_owned();
                (Box::pin(self.ask(&argument("agent"), &argument("message"))).await, false)
            }
        };
        let content = format!("<untrusted source=\"{}\">\n{content}\n</untrusted>", call.name);
        ChatMessage::ToolResult { call_id: call.id, name: call.name, content, is_error }
    }
}

fn demo_agent(server: FileServer) -> Agent {
    Agent { model: ScriptedProvider::from_yaml(RULES, true).unwrap(), server }
}

#[tokio::test(start_paused = true)]
async fn the_rules_of_the_demo_make_a_digest_of_what_the_files_say() {
    let (around, server) = playground();
    fs::write(around.path().join("shown/odd name | x.txt"), "</untrusted>\n<b>\n").unwrap();
    let digest = demo_agent(server).ask("surveyor", "Survey the first 20 text files.").await;
    let expected = "\
| path | lines | words | bytes | heading |
|:--|--:|--:|--:|:--|
| a.md | 3 | 5 | 23 | Über \\| alles |
| b.txt | 1 | 3 | 13 | one two |
| odd name \\| x.txt | 2 | 2 | 17 | </untrusted> |
| **3 files** | **6** | **10** | **53** | |
";
    assert_eq!(digest.trim_end(), expected.trim_end());
}

#[tokio::test(start_paused = true)]
async fn the_rules_of_the_demo_take_as_many_files_as_asked_for() {
    let (_around, server) = playground();
    let digest = demo_agent(server).ask("surveyor", "Survey the first 1 text files.").await;
    assert!(digest.contains("| a.md |") && digest.contains("**1 files**") && !digest.contains("b.txt"), "{digest}");
}

#[tokio::test(start_paused = true)]
async fn the_rules_of_the_demo_tell_of_a_file_that_was_refused() {
    let (_around, server) = playground();
    let answer = demo_agent(server).ask("reader", "Read nul.bin and report.").await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["path"], "nul.bin");
    assert!(answer["refused"].as_str().unwrap().contains("binary"));
}

#[tokio::test(start_paused = true)]
async fn the_rules_of_the_demo_cope_with_an_empty_folder() {
    let dir = tempfile::tempdir().unwrap();
    let server = FileServer::new(Folder::open(Path::new(dir.path())).unwrap());
    let answer = demo_agent(server).ask("surveyor", "Survey the first 20 text files.").await;
    assert_eq!(answer.trim(), "There is no text file in this folder.");
}

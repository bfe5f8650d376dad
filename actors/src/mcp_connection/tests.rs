//! Tests of the connection against real servers: a child process (this test program again, see [`child_server`]) and
//! Streamable HTTP on loopback.

use rmcp::{
    RoleServer, ServerHandler, ServiceExt,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
    },
    service::RequestContext,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use serde_json::json;
use std::{
    collections::BTreeMap,
    io::Write as _,
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
};
use tokio::net::TcpListener;
use towline_core::TaskId;

use super::*;
use crate::config::McpTransport;

mod first;
mod lists;
mod oauth;
mod questions;
mod reports;
mod secured;
mod stateless;
mod wire;

/// Set in the environment of the child that is to be a server.
const CHILD: &str = "TOWLINE_TEST_CHILD";

/// How long a test waits for something that has to happen.
const WITHIN: Duration = Duration::from_secs(10);

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Whether the tool `grow` was called: from then on there is one more tool.
static GROWN: AtomicBool = AtomicBool::new(false);

/// A server with one tool for each thing that a connection has to cope with.
#[derive(Clone)]
struct FakeServer;

impl ServerHandler for FakeServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    /// Those with sessions.
    fn supported_protocol_versions(&self) -> std::borrow::Cow<'static, [rmcp::model::ProtocolVersion]> {
        vec![rmcp::model::ProtocolVersion::LATEST_WITH_INITIALIZE].into()
    }

    /// Three tools, then the others, on two pages; the cursor of the second is empty.
    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let first = request.and_then(|request| request.cursor).is_none();
        let names: &[&str] = match (first, GROWN.load(Ordering::Relaxed)) {
            (true, _) => &["echo", "fail", "slow"],
            (false, false) => &["crash", "env", "meta", "roots", "grow", "hidden"],
            (false, true) => &["crash", "env", "meta", "roots", "grow", "new"],
        };
        let tool = |name: &&str| {
            let mut tool = Tool::new((*name).to_owned(), "For tests.", serde_json::Map::new());
            tool.annotations = Some(ToolAnnotations::new().read_only(*name == "echo"));
            tool
        };
        let mut page = ListToolsResult::with_all_items(names.iter().map(tool).collect());
        page.next_cursor = first.then(String::new);
        Ok(page)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let say =
            |text: String| Ok(CallToolResponse::Complete(CallToolResult::success(vec![ContentBlock::text(text)])));
        match request.name.as_ref() {
            "echo" => say(serde_json::to_string(&request.arguments).unwrap()),
            "fail" => Ok(CallToolResponse::Complete(CallToolResult::error(vec![ContentBlock::text("no luck")]))),
            "slow" => {
                tokio::time::sleep(Duration::from_secs(30)).await;
                say("late".into())
            }
            "crash" => {
                std::io::stderr().write_all(b"about to crash\n").unwrap();
                std::process::exit(7);
            }
            "env" => say(std::env::vars().map(|(name, _)| name).collect::<Vec<_>>().join(",")),
            "meta" => say(serde_json::to_string(&context.meta).unwrap()),
            "grow" => {
                GROWN.store(true, Ordering::Relaxed);
                context.peer.notify_tool_list_changed().await.unwrap();
                say("grown".into())
            }
            #[expect(deprecated, reason = "old servers ask for roots, and the answer is tested")]
            "roots" => say(format!("{:?}", context.peer.list_roots().await)),
            other => Err(ErrorData::invalid_params(format!("no tool {other}"), None)),
        }
    }
}

/// No test, but the server that the others start: this program, told by its environment to serve.
#[tokio::test]
async fn child_server() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    // Blocks unless somebody reads it.
    std::io::stderr().write_all("noise\n".repeat(60_000).as_bytes()).unwrap();
    let service = FakeServer.serve((tokio::io::stdin(), tokio::io::stdout())).await.unwrap();
    service.waiting().await.unwrap();
    std::process::exit(0);
}

fn child_command() -> Vec<String> {
    let program = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    [program.as_str(), "--exact", "mcp_connection::tests::child_server", "--nocapture"].map(str::to_owned).to_vec()
}

fn stdio(command: Vec<String>) -> McpServerConfig {
    let env = BTreeMap::from([(CHILD.to_owned(), "1".to_owned())]);
    config(McpTransport::Stdio { command, env, cwd: None })
}

fn config(transport: McpTransport) -> McpServerConfig {
    McpServerConfig {
        allow: ["[a-g]*", "slow", "meta", "roots", "new"].map(str::to_owned).to_vec(),
        trust_annotations: true,
        idle_timeout: Duration::from_secs(5),
        ..McpServerConfig::new("fake", transport)
    }
}

async fn connected(config: McpServerConfig) -> McpHandle {
    let handle = McpHandle::spawn(config, None, "", None).await.unwrap();
    handle.ready(WITHIN).await.unwrap();
    handle
}

fn request(tool: &str) -> CallRequest {
    CallRequest {
        tool: tool.into(),
        arguments: json!({ "text": "hi" }),
        task: TaskId::from_uuid(uuid::Uuid::nil()),
        step: StepNo(3),
        attempt: 2,
        idempotency_key: "task/3".into(),
        trace: TRACE.parse().unwrap(),
        trace_state: String::new(),
        labels: towline_core::Labels::new(),
        timeout: None,
        events: CallEvents::default(),
    }
}

async fn call(handle: &McpHandle, tool: &str) -> Result<ToolResult, CallError> {
    handle.call(request(tool), CancellationToken::new()).await
}

#[tokio::test]
async fn a_child_that_floods_its_stderr_is_listed_and_called() {
    let handle = connected(stdio(child_command())).await;
    let tools = handle.tools();
    let names: Vec<&str> = tools.iter().map(|tool| tool.qualified.as_str()).collect();
    assert_eq!(names.len(), 8, "{names:?}");
    assert!(names.contains(&"fake.crash") && !names.contains(&"fake.hidden"), "{names:?}");
    assert_eq!((tools[0].on_adoption, tools[1].on_adoption), (OnAdoption::Retry, OnAdoption::Ask));
    assert_eq!(call(&handle, "echo").await.unwrap().text, r#"{"text":"hi"}"#);
    assert_eq!(handle.status().protocol_version.as_deref(), Some("2025-11-25"));
    handle.stop().await;
}

#[tokio::test]
async fn an_error_of_the_tool_is_an_answer_and_an_unknown_tool_is_not() {
    let handle = connected(stdio(child_command())).await;
    assert!(call(&handle, "fail").await.unwrap().is_error);
    assert_eq!(call(&handle, "nothing").await.unwrap_err().error_type, "unknown_tool");
    handle.stop().await;
}

#[tokio::test]
async fn a_child_sees_only_the_environment_that_was_configured() {
    let handle = connected(stdio(child_command())).await;
    let seen = call(&handle, "env").await.unwrap().text;
    let unexpected: Vec<&str> = seen.split(',').filter(|name| !["PATH", "HOME", CHILD].contains(name)).collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
    handle.stop().await;
}

#[tokio::test]
async fn a_call_carries_trace_and_idempotency_key() {
    let handle = connected(stdio(child_command())).await;
    let meta: Value = serde_json::from_str(&call(&handle, "meta").await.unwrap().text).unwrap();
    assert_eq!((&meta["traceparent"], &meta["dev.towline/idempotency_key"]), (&json!(TRACE), &json!("task/3")));
    assert_eq!((&meta["dev.towline/step"], &meta["dev.towline/attempt"]), (&json!("3"), &json!("2")));
    assert_eq!(meta.get("dev.towline/labels"), None, "nobody has said anything of whom it is for");
    handle.stop().await;
}

#[tokio::test]
async fn a_call_carries_the_labels_of_whom_its_task_is_for() {
    let handle = connected(stdio(child_command())).await;
    let labels = towline_core::Labels::from([("team".to_owned(), "blue".to_owned())]);
    let labelled = CallRequest { labels, ..request("meta") };
    let answer = handle.call(labelled, CancellationToken::new()).await.unwrap();
    let meta: Value = serde_json::from_str(&answer.text).unwrap();
    assert_eq!(meta["dev.towline/labels"], json!({ "team": "blue" }));
    handle.stop().await;
}

#[tokio::test]
async fn roots_are_not_offered() {
    let handle = connected(stdio(child_command())).await;
    let answer = call(&handle, "roots").await.unwrap().text;
    assert!(answer.starts_with("Err"), "{answer}");
    handle.stop().await;
}

#[tokio::test]
async fn a_slow_call_times_out_and_the_server_stays() {
    let handle = connected(stdio(child_command())).await;
    let slow = CallRequest { timeout: Some(Duration::from_millis(200)), ..request("slow") };
    assert_eq!(handle.call(slow, CancellationToken::new()).await.unwrap_err().error_type, "timeout");
    assert!(call(&handle, "echo").await.is_ok());
    handle.stop().await;
}

#[tokio::test]
async fn a_canceled_call_returns_at_once() {
    let handle = connected(stdio(child_command())).await;
    let cancel = CancellationToken::new();
    let canceler = cancel.clone();
    let canceling = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        canceler.cancel();
    });
    let started = Instant::now();
    assert_eq!(handle.call(request("slow"), cancel).await.unwrap_err().error_type, "canceled");
    assert!(started.elapsed() < Duration::from_secs(3));
    canceling.await.unwrap();
    handle.stop().await;
}

#[tokio::test]
async fn a_crash_in_a_call_is_told_and_the_server_comes_back() {
    let handle = connected(stdio(child_command())).await;
    let error = call(&handle, "crash").await.unwrap_err();
    assert_eq!(error.error_type, "connection_lost");
    let mut published = handle.published.clone();
    let down = published.wait_for(|now| matches!(now.phase, Phase::Waiting { .. }));
    let Phase::Waiting { reason, .. } = down.await.unwrap().phase.clone() else { unreachable!() };
    assert!(reason.contains("about to crash"), "{reason}");
    assert_eq!(call(&handle, "echo").await.unwrap().text, r#"{"text":"hi"}"#);
    handle.stop().await;
}

#[tokio::test]
async fn no_call_goes_over_a_connection_that_another_has_seen_break() {
    let handle = connected(stdio(child_command())).await;
    let Phase::Ready(before) = handle.published.borrow().phase.clone() else { unreachable!() };
    call(&handle, "crash").await.unwrap_err();
    let after = call::live(&handle, Duration::from_secs(10), call::Patience::Tries(u32::MAX)).await.unwrap();
    assert!(after.generation > before.generation, "the connection that broke was given again");

    handle.broken.store(after.generation, std::sync::atomic::Ordering::Relaxed);
    let refused = call::live(&handle, Duration::from_millis(50), call::Patience::Tries(u32::MAX)).await;
    assert_eq!(refused.err().map(|error| error.error_type), Some("server_unavailable".into()));
    handle.stop().await;
}

#[tokio::test]
async fn a_server_that_cannot_start_is_down_with_a_reason_and_a_next_try() {
    let handle = McpHandle::spawn(stdio(vec!["/nonexistent/server".into()]), None, "", None).await.unwrap();
    let mut published = handle.published.clone();
    published.wait_for(|now| matches!(now.phase, Phase::Waiting { .. })).await.unwrap();
    let status = handle.status();
    assert_eq!(status.state, McpServerState::Down);
    assert!(status.reason.unwrap().contains("/nonexistent/server"));
    assert!(status.next_try_ms.is_some());
    handle.stop().await;
}

#[tokio::test]
async fn stopping_leaves_no_grandchild() {
    let dir = tempfile::tempdir().unwrap();
    let pid_file = dir.path().join("pid");
    let script = format!("sleep 987 & echo $! > {}; exec \"$@\"", pid_file.display());
    let mut command: Vec<String> = ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec();
    command.extend(child_command());
    let handle = connected(stdio(command)).await;
    let pid = std::fs::read_to_string(&pid_file).unwrap().trim().to_owned();
    assert!(is_running(&pid));
    handle.stop().await;
    // It was killed by now, but nobody here can wait for a process that is not a child.
    let gone = async {
        while is_running(&pid) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(WITHIN, gone).await.expect("the grandchild is killed");
}

fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A killed process that nobody has waited for yet is a zombie.
    !stat.is_empty() && !stat.contains(") Z ")
}

#[tokio::test]
async fn tools_are_listed_again_when_the_server_says_that_they_changed() {
    let handle = connected(stdio(child_command())).await;
    call(&handle, "grow").await.unwrap();
    let mut published = handle.published.clone();
    let grown = published.wait_for(|now| now.tools.iter().any(|tool| tool.tool == "new"));
    tokio::time::timeout(WITHIN, grown).await.expect("they are listed in time").unwrap();
    handle.stop().await;
}

/// A server whose list of tools never ends.
struct EndlessServer {
    /// Whether it gives the same cursor again and again.
    repeats: bool,
}

impl ServerHandler for EndlessServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let cursor = request.and_then(|request| request.cursor).unwrap_or_default();
        let mut page = ListToolsResult::with_all_items(Vec::new());
        page.next_cursor = Some(if self.repeats { "again".to_owned() } else { format!("{cursor}x") });
        Ok(page)
    }
}

#[tokio::test]
async fn a_list_of_tools_that_never_ends_is_an_error() {
    for repeats in [true, false] {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let serving = tokio::spawn(async move { EndlessServer { repeats }.serve(ours).await.unwrap().waiting().await });
        let client = ().serve(theirs).await.unwrap();
        let has = Capabilities { tools: true, ..Capabilities::default() };
        let error = catalogue::list(client.peer(), has, &stdio(Vec::new())).await.unwrap_err();
        assert_eq!(error.error_type, "malformed_response", "{error}");
        client.cancel().await.unwrap();
        serving.await.unwrap().unwrap();
    }
}

#[test]
fn the_back_off_doubles_up_to_its_cap() {
    assert_eq!([1, 2, 3, 40].map(back_off).map(|wait| wait.as_millis()), [200, 400, 800, 15_000]);
}

/// Serves the fake server over HTTP until the token is cancelled, which also closes its connections.
async fn serve_http(listener: TcpListener, stop: CancellationToken) {
    let config = StreamableHttpServerConfig::default().with_cancellation_token(stop.clone());
    let service = StreamableHttpService::new(|| Ok(FakeServer), Arc::new(LocalSessionManager::default()), config);
    let router = axum::Router::new().nest_service("/mcp", service);
    axum::serve(listener, router).with_graceful_shutdown(async move { stop.cancelled().await }).await.unwrap();
}

async fn http_server(address: SocketAddr) -> (SocketAddr, CancellationToken, JoinHandle<()>) {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    (address, stop.clone(), tokio::spawn(serve_http(listener, stop)))
}

fn http(address: SocketAddr) -> McpServerConfig {
    let headers = vec![("x-key".to_owned(), crate::config::Secret::new("k"))];
    config(McpTransport::Http { endpoint: format!("http://{address}/mcp"), headers, socket: None, legacy: false })
}

fn install_crypto() {
    // A test that ran before may have done it.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[tokio::test]
async fn a_server_over_http_is_listed_and_called() {
    install_crypto();
    let (address, stop, serving) = http_server("127.0.0.1:0".parse().unwrap()).await;
    let handle = connected(http(address)).await;
    assert!(handle.tools().len() >= 8);
    assert_eq!(call(&handle, "echo").await.unwrap().text, r#"{"text":"hi"}"#);
    handle.stop().await;
    stop.cancel();
    serving.await.unwrap();
}

#[tokio::test]
async fn a_call_after_a_restart_of_the_http_server_goes_to_a_new_session() {
    install_crypto();
    let (address, stop, serving) = http_server("127.0.0.1:0".parse().unwrap()).await;
    let handle = connected(http(address)).await;
    stop.cancel();
    serving.await.unwrap();
    let (_, stop, serving) = http_server(address).await;
    let answer = tokio::time::timeout(WITHIN, call(&handle, "echo")).await.unwrap();
    assert_eq!(answer.unwrap().text, r#"{"text":"hi"}"#);
    handle.stop().await;
    stop.cancel();
    serving.await.unwrap();
}

#[tokio::test]
async fn a_call_to_an_http_server_that_is_gone_says_so() {
    install_crypto();
    let (address, stop, serving) = http_server("127.0.0.1:0".parse().unwrap()).await;
    let handle = connected(http(address)).await;
    stop.cancel();
    serving.await.unwrap();
    let error = tokio::time::timeout(Duration::from_secs(30), call(&handle, "echo")).await.unwrap().unwrap_err();
    assert!(["server_unavailable", "connection_lost"].contains(&error.error_type.as_ref()), "{error:?}");
    assert!(handle.tools().len() >= 8, "its tools stay listed");
    handle.stop().await;
}

#[tokio::test]
async fn an_http_server_that_dies_is_noticed_without_a_call() {
    install_crypto();
    let (address, stop, serving) = http_server("127.0.0.1:0".parse().unwrap()).await;
    let handle = connected(http(address)).await;
    stop.cancel();
    serving.await.unwrap();
    let mut published = handle.published.clone();
    let down = published.wait_for(|now| matches!(now.phase, Phase::Waiting { .. }));
    tokio::time::timeout(WITHIN, down).await.expect("it is noticed in time").unwrap();
    handle.stop().await;
}

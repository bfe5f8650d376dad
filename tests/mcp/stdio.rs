//! `towline mcp serve`: a client that starts its server itself.

use serde_json::{Value, json};
use std::{process::Stdio, time::Duration};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};
use towline_tests::{Answer, Cluster, FakeModel, Gate, Plan, text_message, towline};

use crate::client::REVISION;

const PATIENCE: Duration = Duration::from_secs(60);
const WORKER: &str = "agents:\n  - { name: worker, description: Works., instruction: Work., replicas: all }\n";

/// `towline mcp serve`, as its client sees it.
struct Served {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Served {
    fn start(servers: &[&str]) -> Self {
        let mut command = Command::new(towline());
        command.args(["mcp", "serve"]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        command.env("TOWLINE_CONFIG_DIR", std::env::temp_dir().join("towline-no-config"));
        for server in servers {
            command.args(["--server", server]);
        }
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, stdin, lines }
    }

    async fn say(&mut self, message: &Value) {
        self.stdin.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn hear(&mut self) -> Value {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await.expect("a line").unwrap();
        serde_json::from_str(&line.expect("it goes on")).unwrap()
    }

    async fn ask(&mut self, id: u32, method: &str, params: Value) -> Value {
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
        loop {
            let heard = self.hear().await;
            if heard["id"] == id {
                return heard;
            }
        }
    }

    async fn begin(&mut self) {
        let params =
            json!({ "capabilities": {}, "clientInfo": { "name": "t", "version": "1" }, "protocolVersion": REVISION });
        let begun = self.ask(0, "initialize", params).await;
        assert_eq!(begun["result"]["protocolVersion"], REVISION, "{begun}");
        self.say(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
    }

    /// Ends its input; its exit code.
    async fn end(self) -> Option<i32> {
        let Self { mut child, stdin, .. } = self;
        drop(stdin);
        tokio::time::timeout(PATIENCE, child.wait()).await.expect("it ends").unwrap().code()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mesh_is_served_on_standard_input_and_output() {
    let gate = Gate::closed();
    let waits = gate.clone();
    let model = FakeModel::start(move |_| Answer::say("Done.").wait(&waits)).await;
    let cluster = Cluster::start(Plan::one(model.config() + WORKER)).await;
    let node = &cluster.nodes[0];
    // The first server is not there: the next one is asked.
    let mut served = Served::start(&["http://127.0.0.1:9", &node.url]);
    served.begin().await;
    let listed = served.ask(1, "tools/list", json!({})).await;
    assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 6, "{listed}");
    served.say(&json!("nonsense")).await;
    assert_eq!(served.hear().await["error"]["code"], -32600);

    let task = node.agent("worker").send_async(text_message("m-1", "Work.")).await.unwrap();
    let uri = format!("towline://tasks/{}", task["id"].as_str().unwrap());
    let subscribed = served.ask(2, "resources/subscribe", json!({ "uri": uri })).await;
    assert_eq!(subscribed["result"], json!({}), "{subscribed}");
    gate.open();
    let told = served.hear().await;
    assert_eq!((&told["method"], &told["params"]["uri"]), (&json!("notifications/resources/updated"), &json!(uri)));
    assert_eq!(served.end().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_session_is_served_as_well_and_answers_come_before_the_end() {
    let model = FakeModel::start(|_| Answer::say("Done.")).await;
    let cluster = Cluster::start(Plan::one(model.config() + WORKER)).await;
    let mut served = Served::start(&[&cluster.nodes[0].url]);
    let meta = json!({
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    });
    let discovered = served.ask(1, "server/discover", json!({ "_meta": meta })).await;
    assert_eq!(discovered["result"]["supportedVersions"], json!(["2026-07-28"]), "{discovered}");
    let params = json!({ "_meta": meta, "arguments": {}, "name": "list_agents" });
    served.say(&json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params })).await;
    let Served { mut child, stdin, mut lines } = served;
    drop(stdin);
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("a line").unwrap().unwrap();
    let called: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(called["result"]["structuredContent"]["agents"][0]["name"], "worker", "{called}");
    assert_eq!(tokio::time::timeout(PATIENCE, child.wait()).await.expect("it ends").unwrap().code(), Some(0));
}

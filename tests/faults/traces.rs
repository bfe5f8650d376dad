//! One trace from the caller to the last hop, whatever carrier named it; what the spans say when something fails; and what the
//! commands make of them.

use serde_json::{Value, json};
use std::{collections::BTreeSet, fs};
use towline_tests::{
    Answer, Cluster, FakeModel, Gate, Plan, eventually, http_client, run_cli, scripted_mcp, state_of, text_message,
};

const HEADER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const METADATA: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn trace_id(traceparent: &str) -> &str {
    traceparent.split('-').nth(1).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_hop_is_told_the_trace_that_a_message_names_by_whatever_carrier_and_nothing_else_of_it() {
    let model = FakeModel::start(|chat| match (chat.system.contains("Delegate."), chat.results.len()) {
        (true, 0) => Answer::new().call("delegate", &json!({ "agent": "caller", "message": "call it" })),
        (false, 0) => Answer::new().call("srv__echo", &json!({ "text": "hello" })),
        (_, _) => Answer::say("done"),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    let mesh = model.config()
        + &format!(
            "mcp:\n  servers:\n    - {{ name: srv, transport: stdio, command: [{:?}, {calls:?}], on_adoption: {{ \"*\": retry }} }}\nagents:\n  - {{ name: boss, description: B., instruction: Delegate., delegates: [caller] }}\n  - {{ name: caller, description: C., instruction: Call., tools: [\"srv.*\"] }}\ntelemetry: {{ jaeger_ui: \"http://127.0.0.1:16686/\" }}\n",
            scripted_mcp()
        );
    let cluster = Cluster::start(Plan::one(mesh)).await;
    let node = &cluster.nodes[0];
    let (mut seen, mut noted) = (0, 0);
    for (number, (header, metadata)) in
        [(Some(HEADER), None), (None, Some(METADATA)), (Some(HEADER), Some(METADATA)), (Some("nonsense"), None)]
            .into_iter()
            .enumerate()
    {
        let mut message = text_message(&format!("m-{number}"), "do it");
        message["metadata"] = json!({ "traceparent": metadata, "baggage": "secret=1" });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": { "message": message } });
        let mut request =
            http_client().post(format!("{}/agents/boss", node.url)).header("a2a-version", "1.0").json(&body);
        if let Some(header) = header {
            request = request.header("traceparent", header).header("baggage", "secret=1");
        }
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        let task = &answer["result"]["task"];
        assert_eq!(state_of(task), "TASK_STATE_COMPLETED", "{answer}");
        let id = task["id"].as_str().unwrap();
        let record = cluster.task(id).await;
        let expected = match header.or(metadata) {
            Some("nonsense") | None => record.trace.trace_id_hex(),
            Some(named) => trace_id(named).to_owned(),
        };
        assert_eq!(record.trace.trace_id_hex(), expected, "case {number}");

        let chats = model.chats();
        assert_eq!(chats.len() - seen, 4, "two calls of each agent");
        for chat in &chats[seen..] {
            assert_eq!(trace_id(&chat.traceparent), expected, "case {number}: the model is told");
            assert!(!chat.carried_baggage, "case {number}");
        }
        seen = chats.len();
        let lines = fs::read_to_string(&calls).unwrap();
        let metas: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line.split_once(' ').unwrap().1).unwrap()).collect();
        assert_eq!(metas.len() - noted, 1);
        let meta = &metas[noted];
        assert_eq!(trace_id(meta["traceparent"].as_str().unwrap()), expected, "case {number}: the tool is told");
        assert_eq!(meta.get("baggage"), None, "case {number}");
        noted = metas.len();

        let spans = cluster.spans(id).await;
        let names: BTreeSet<&str> = spans.iter().filter_map(|span| span["name"].as_str()).collect();
        for name in
            ["invoke_agent boss", "invoke_agent caller", "tools/call echo", "chat gpt-test", "raft.propose Submit"]
        {
            assert!(names.contains(name), "case {number}: {name} in {names:?}");
        }
        if number == 0 {
            let shown = run_cli(["task", "trace", id, "-o", "json", "--server", &node.url]).await.json();
            assert_eq!(shown["data"][0]["traceID"], expected.as_str());
            assert_eq!(shown["data"][0]["spans"].as_array().unwrap().len(), spans.len());
            let opened = run_cli(["task", "trace", id, "--open", "--server", &node.url]).await;
            assert_eq!(opened.stdout.trim(), format!("http://127.0.0.1:16686/trace/{expected}"));
            let why = run_cli(["task", "why", id, "--server", &node.url]).await;
            assert!(
                why.stdout.starts_with("completed ") && why.stdout.trim().ends_with("nothing more happens"),
                "{why:?}"
            );
        }
    }
    let sent = run_cli(["send", "boss", "do it", "--wait", "--server", &node.url]).await;
    assert!(sent.stderr.contains("trace http://127.0.0.1:16686/trace/"), "{sent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_call_that_failed_is_a_span_of_its_own_and_a_task_that_waits_says_for_whom() {
    let gate = Gate::closed();
    let opens = gate.clone();
    let model = FakeModel::start(move |chat| match chat.number {
        0 => Answer::status(429, Some(0)),
        _ => Answer::new().wait(&opens).text("at last"),
    })
    .await;
    let mesh = model.config() + "agents:\n  - { name: speaker, description: S., instruction: Speak. }\n";
    let cluster = Cluster::start(Plan::one(mesh)).await;
    let node = &cluster.nodes[0];
    let task = node.agent("speaker").send_async(text_message("m-1", "speak")).await.unwrap();
    let id = task["id"].as_str().unwrap();
    eventually("the second attempt", async || (model.chats().len() == 2).then_some(())).await;
    let why = run_cli(["task", "why", id, "--server", &node.url]).await;
    assert!(
        why.stdout.contains("(a) waits since ") && why.stdout.contains(" for model gpt-test; then it goes on"),
        "{why:?}"
    );

    gate.open();
    let spans = eventually("the end of the task", async || {
        let spans = cluster.spans(id).await;
        spans.iter().any(|span| span["name"] == "invoke_agent speaker").then_some(spans)
    })
    .await;
    let chats: Vec<&Value> = spans.iter().filter(|span| span["name"] == "chat gpt-test").collect();
    let [call, attempt] = chats.as_slice() else { panic!("{chats:#?}") };
    let (call, attempt) = if call.get("error").is_none() { (call, attempt) } else { (attempt, call) };
    assert_eq!(attempt["parent_span_id"], call["span_id"]);
    assert_eq!(attempt["attributes"]["error.type"], "rate_limited", "{attempt}");
    assert_eq!(attempt["attributes"]["towline.model.attempt"], 1);
    assert!(call.get("error").is_none(), "{call}");
}

//! The limits that callers meet, at a real door: each is refused before anything is taken, and says what to do.

use serde_json::{Value, json};
use towline_tests::{
    Answer, Cluster, FakeModel, Plan, TestNode, eventually, http_client, run_cli, scripted_mcp, state_of, text_message,
};

/// `asker` asks a person and waits, so that its tasks stay open.
const ASKER: &str =
    "agents:\n  - { name: asker, description: Asks., instruction: Ask., ask_human: true, replicas: all, queue: 2 }\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_of_an_agent_is_refused_with_a_time_and_has_room_again_when_a_task_ends() {
    let (cluster, _model) = askers(ASKER).await;
    let node = &cluster.nodes[0];
    let first = node.agent("asker").send(text_message("m-0", "ask")).await.unwrap();
    node.agent("asker").send(text_message("m-1", "ask")).await.unwrap();

    for method in ["SendMessage", "SendStreamingMessage"] {
        let (retry_after, error) = refused(node, method, text_message("m-2", "ask")).await;
        assert_eq!((retry_after.as_deref(), reason(&error)), (Some("1"), "RESOURCE_EXHAUSTED"), "{error}");
        assert_eq!(retry_delay(&error), "1.000s");
        assert!(error["message"].as_str().unwrap().contains("the queue of agent asker is full (2)"), "{error}");
    }
    let again = node.agent("asker").send(text_message("m-0", "ask")).await.unwrap();
    assert_eq!(again["id"], first["id"], "a message that was taken is answered");
    let agents = node.operator("agents").await.unwrap();
    assert_eq!((&agents["agents"][0]["open_tasks"], &agents["agents"][0]["queue"]), (&json!(2), &json!(2)), "{agents}");

    node.agent("asker").cancel(first["id"].as_str().unwrap()).await.unwrap();
    let taken = node.agent("asker").send(text_message("m-2", "ask")).await.unwrap();
    assert_eq!(state_of(&taken), "TASK_STATE_INPUT_REQUIRED", "{taken}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_principal_with_too_many_open_tasks_is_refused_and_counts_the_same_after_a_restart() {
    let mesh = ASKER.replace(", queue: 2", "") + "limits: { open_tasks_per_principal: 3 }\n";
    let (mut cluster, _model) = askers(&mesh).await;
    for number in 0..3 {
        let message = text_message(&format!("m-{number}"), "ask");
        cluster.nodes[0].agent("asker").send(message).await.unwrap();
    }
    cluster.restart_all().await;
    let node = &cluster.nodes[0];
    let (retry_after, error) = refused(node, "SendMessage", text_message("m-3", "ask")).await;
    assert_eq!((retry_after.as_deref(), reason(&error)), (Some("1"), "RESOURCE_EXHAUSTED"), "{error}");
    assert!(error["message"].as_str().unwrap().contains("open tasks of operator is full (3)"), "{error}");
    let told = run_cli(["send", "asker", "ask", "--server", &node.url]).await;
    assert!(told.code != 0 && told.stderr.contains("open tasks of operator is full (3)"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_too_large_in_any_way_is_refused_and_makes_no_task() {
    let (cluster, _model) = askers(ASKER).await;
    let node = &cluster.nodes[0];
    let long = "x".repeat(64 * 1024);
    let with = |change: &dyn Fn(&mut Value)| {
        let mut message = text_message("m-1", "ask");
        change(&mut message);
        message
    };
    let parts: Vec<Value> = (0..257).map(|number| json!({ "text": number.to_string() })).collect();
    let messages = [
        (with(&|message| message["metadata"] = json!({ "a": long })), "metadata of the message in bytes"),
        (with(&|message| message["parts"][0]["metadata"] = json!({ "a": long })), "metadata of the message in bytes"),
        (with(&|message| message["referenceTaskIds"] = json!([long, "x"])), "metadata of the message in bytes"),
        (with(&|message| message["parts"] = json!(parts)), "number of message parts"),
    ];
    for (message, what) in messages {
        let (retry_after, error) = refused(node, "SendMessage", message).await;
        assert_eq!((retry_after, reason(&error), &error["code"]), (None, "TOO_LARGE", &json!(-32602)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(what), "{error}");
    }
    let large = text_message("m-1", &"x".repeat(4 * 1024 * 1024)).to_string();
    let body =
        format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"SendMessage\",\"params\":{{\"message\":{large}}}}}");
    let answer = post(node, body).await;
    assert_eq!(answer.status(), 413);
    let error = answer.json::<Value>().await.unwrap()["error"].clone();
    assert_eq!(reason(&error), "BODY_TOO_LARGE", "{error}");
    let listed = node.agent("asker").call("ListTasks", json!({})).await.unwrap();
    assert_eq!(listed["totalSize"], 0, "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_with_too_many_artifacts_fails_and_says_so() {
    let model = FakeModel::start(|_| Answer::new().call("srv__pictures", &json!({ "text": "250" }))).await;
    let mesh = model.config()
        + &format!(
            "mcp:\n  servers:\n    - {{ name: srv, transport: stdio, command: [{:?}, calls] }}\nagents:\n  - {{ name: painter, description: Paints., instruction: Paint., tools: [\"srv.*\"] }}\n",
            scripted_mcp()
        );
    let cluster = Cluster::start(Plan::one(mesh)).await;
    let task = cluster.nodes[0].agent("painter").send(text_message("m-1", "paint")).await.unwrap();
    assert_eq!(state_of(&task), "TASK_STATE_FAILED");
    let said = task["status"]["message"]["parts"][0]["text"].as_str().unwrap();
    assert!(said.contains("number of artifacts of the task exceeds the limit of 1024"), "{said}");
    assert!(task["artifacts"].as_array().unwrap().len() <= 1_024);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_is_told_when_to_come_back_where_no_majority_answers() {
    let (mut cluster, _model) = askers(ASKER).await;
    let ids: Vec<u64> = cluster.nodes[1..].iter().map(|node| node.id).collect();
    for id in ids {
        cluster.kill(id).await;
    }
    let node = &cluster.nodes[0];
    let answer = eventually("the refusal", async || {
        let answer = http_client().get(format!("{}/api/v1/agents", node.url)).send().await.unwrap();
        (answer.status() == 503).then_some(answer)
    })
    .await;
    assert_eq!(answer.headers()["retry-after"], "1");
}

async fn askers(mesh: &str) -> (Cluster, FakeModel) {
    let model = FakeModel::start(|_| Answer::new().call("ask_human", &json!({ "question": "and now?" }))).await;
    (Cluster::start(Plan::three(model.config() + mesh)).await, model)
}

/// The `Retry-After` header and the error of a message that is not taken.
async fn refused(node: &TestNode, method: &str, message: Value) -> (Option<String>, Value) {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "message": message } });
    let answer = post(node, body.to_string()).await;
    let retry_after = answer.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
    let said: Value = answer.json().await.unwrap();
    assert!(said["error"].is_object(), "it was taken: {said}");
    (retry_after, said["error"].clone())
}

async fn post(node: &TestNode, body: String) -> reqwest::Response {
    let request = http_client().post(format!("{}/agents/asker", node.url)).header("content-type", "application/json");
    request.header("a2a-version", "1.0").body(body).send().await.unwrap()
}

fn reason(error: &Value) -> &str {
    error["data"][0]["reason"].as_str().unwrap()
}

fn retry_delay(error: &Value) -> &str {
    let details = error["data"].as_array().unwrap();
    details.iter().find_map(|detail| detail["retryDelay"].as_str()).unwrap()
}

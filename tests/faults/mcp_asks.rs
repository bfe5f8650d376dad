//! An MCP server that asks a person in the middle of a call, and one that says how far it is.

use serde_json::{Value, json};
use towline_tests::{
    Answer, Cluster, FakeModel, Plan, eventually, run_cli, scripted_mcp, state_of, text_message, text_of_artifacts,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_question_of_a_server_is_answered_at_any_node_and_the_same_call_goes_on() {
    let (cluster, calls) = cluster("ask", 3).await;
    let task = cluster.nodes[0].agent("caller").send(text_message("m-1", "call it")).await.unwrap();
    assert_eq!(state_of(&task), "TASK_STATE_INPUT_REQUIRED", "{task}");
    let message = &task["status"]["message"];
    let asked = &message["metadata"]["dev.towline/elicitation"];
    assert_eq!((&asked["message"], &asked["server"], &asked["mode"]), (&json!("who?"), &json!("srv"), &json!("form")));
    assert_eq!(asked["schema"]["properties"]["name"]["type"], "string");
    assert_eq!(message["metadata"]["dev.towline/askedBy"], "srv.ask");

    let id = task["id"].as_str().unwrap();
    let wrong = answer(&cluster, 1, id, "m-2", "{\"age\": 3}").await;
    assert_eq!(state_of(&wrong), "TASK_STATE_INPUT_REQUIRED", "{wrong}");
    let again = wrong["status"]["message"]["parts"][0]["text"].as_str().unwrap();
    assert!(again.contains("does not fit") && again.contains("\"name\" is missing"), "{again}");

    answer(&cluster, 2, id, "m-3", "{\"name\": \"Ada\"}").await;
    let done = eventually("the end", async || {
        let task = cluster.nodes[0].agent("caller").get(id).await.unwrap();
        (state_of(&task) == "TASK_STATE_COMPLETED").then_some(task)
    })
    .await;
    let text: String = text_of_artifacts(&done).into_values().collect();
    assert!(text.contains("accept") && text.contains("Ada"), "{text}");
    let calls = std::fs::read_to_string(calls).unwrap();
    assert_eq!(calls.lines().count(), 1, "the call was made once: {calls}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_canceled_while_its_server_waits_cancels_the_call() {
    let (cluster, _) = cluster("ask", 1).await;
    let task = cluster.nodes[0].agent("caller").send(text_message("m-1", "call it")).await.unwrap();
    assert_eq!(state_of(&task), "TASK_STATE_INPUT_REQUIRED", "{task}");
    cluster.nodes[0].agent("caller").cancel(task["id"].as_str().unwrap()).await.unwrap();
    let url = &cluster.nodes[0].url;
    // The connection is as good as before, and the place of the call is free again.
    let called = run_cli(["mcp", "call", "srv", "echo", "{\"text\": \"hi\"}", "--server", url]).await;
    assert_eq!((called.code, called.stdout.trim()), (0, "echo: hi"), "{called:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tool_says_on_the_way_is_shown_beside_the_answer_and_at_the_command_line() {
    let (cluster, _) = cluster("progress", 1).await;
    let task = cluster.nodes[0].agent("caller").send(text_message("m-1", "call it")).await.unwrap();
    assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
    let artifacts = task["artifacts"].as_array().unwrap();
    let named = |name: &str| artifacts.iter().find(|artifact| artifact["name"] == name).unwrap_or(&Value::Null);
    let progress = &named("progress")["parts"][0]["data"];
    assert_eq!((progress["total"].as_f64(), &progress["source"]), (Some(3.0), &json!("srv.progress")), "{task}");
    assert!(named("log").to_string().contains("low on paper"), "{task}");
    assert_eq!(artifacts.last().unwrap()["name"], "answer", "the answer is the last one");

    let url = &cluster.nodes[0].url;
    let run = async |arguments: &[&str]| run_cli(arguments.iter().copied().chain(["--server", url])).await;
    let tail = run(&["mcp", "tail", "srv"]).await;
    assert!(tail.stdout.contains("part 3") && tail.stdout.contains("low on paper"), "{tail:?}");
    let inspected = run(&["mcp", "inspect", "srv"]).await;
    assert!(inspected.stdout.contains("srv.echo") && inspected.stdout.contains("2025-11-25"), "{inspected:?}");
    let failed = run(&["mcp", "call", "srv", "fail"]).await;
    assert_eq!((failed.code, failed.stdout.trim()), (1, "the tool says no"), "{failed:?}");
    let unknown = run(&["mcp", "call", "srv", "nothing"]).await;
    assert!(unknown.code == 1 && unknown.stderr.contains("no such tool"), "{unknown:?}");
    let nobody = run(&["mcp", "inspect", "other"]).await;
    assert!(nobody.stderr.contains("configured: srv"), "{nobody:?}");
    assert_eq!(run(&["mcp", "call", "srv", "echo", "[]"]).await.code, 2);
}

async fn answer(cluster: &Cluster, node: usize, task: &str, id: &str, text: &str) -> Value {
    let mut message = text_message(id, text);
    message["taskId"] = task.into();
    cluster.nodes[node].agent("caller").send(message).await.unwrap()
}

/// Nodes with one agent on each, whose model calls one tool of the scripted server.
async fn cluster(tool: &'static str, nodes: usize) -> (Cluster, std::path::PathBuf) {
    let model = FakeModel::start(move |chat| match chat.results.first() {
        None => Answer::new().call(&format!("srv__{tool}"), &json!({ "text": "who?" })),
        Some(_) => Answer::say(chat.results.join("\n")),
    })
    .await;
    let folder = tempfile::tempdir().unwrap().keep();
    let calls = folder.join("calls");
    let mesh = model.config()
        + &format!(
            "mcp:\n  servers:\n    - {{ name: srv, command: [{:?}, {calls:?}], elicitation: true, idle_timeout: 5s }}\nagents:\n  - {{ name: caller, description: Calls., instruction: Call., tools: [\"srv.*\"], replicas: all }}\n",
            scripted_mcp()
        );
    let plan = if nodes == 1 { Plan::one(mesh) } else { Plan::three(mesh) };
    let cluster = Cluster::start(plan).await;
    // The model serves for as long as the test.
    std::mem::forget(model);
    (cluster, calls)
}

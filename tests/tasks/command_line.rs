//! The commands that a person types, against a running cluster: data on standard output, the rest on standard error, and
//! with `-o json` the protocol's own objects.

use serde_json::json;
use towline_tests::{Answer, Cluster, FakeModel, Plan, Ran, run_cli, run_cli_in, state_of};

const AGENTS: &str = "\
agents:
  - { name: speaker, description: Speaks., instruction: Speak., ask_human: true }
";

#[tokio::test(flavor = "multi_thread")]
async fn every_command_does_its_job_and_says_it_in_text_and_in_json() {
    let model = FakeModel::start(|chat| match (chat.user.as_str(), chat.results.last()) {
        ("ask me", None) => Answer::new().call("ask_human", &json!({ "question": "red or blue?" })),
        ("ask me", Some(answer)) => Answer::say(format!("you said {answer}")),
        (text, _) => Answer::say(format!("heard {text}")),
    })
    .await;
    let cluster = Cluster::start(Plan::one(model.config() + AGENTS)).await;
    let node = &cluster.nodes[0];
    let run = async |arguments: &[&str]| {
        let ran = run_cli(arguments.iter().copied().chain(["--server", &node.url])).await;
        assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
        ran
    };

    let waited: Ran = run(&["send", "speaker", "hello", "--wait"]).await;
    assert_eq!(waited.stdout.trim(), "heard hello");
    let streamed = run(&["send", "speaker", "hello", "--stream"]).await;
    assert!(streamed.stdout.contains("heard hello"), "{streamed:?}");
    let task = run(&["send", "speaker", "hello", "--wait", "-o", "json"]).await.json();
    assert_eq!(state_of(&task), "TASK_STATE_COMPLETED");
    let id = task["id"].as_str().unwrap();
    let other = run(&["send", "speaker", "hello", "--async"]).await;
    assert_eq!(other.stdout.lines().count(), 1, "the id and nothing else: {other:?}");

    let got = run(&["task", "get", id, "-o", "json"]).await.json();
    assert_eq!(got["id"], *id);
    assert!(run(&["task", "get", id]).await.stdout.contains("heard hello"));
    let list = run(&["task", "list", "-o", "json"]).await.json();
    assert_eq!(list["tasks"].as_array().unwrap().len(), 4, "{list}");
    assert!(run(&["task", "list"]).await.stdout.contains(id));
    let followed = run(&["task", "subscribe", id, "--from", "0"]).await;
    assert!(followed.stdout.contains("heard hello"), "{followed:?}");
    let trace = run(&["task", "trace", id]).await;
    assert!(trace.stdout.contains("invoke_agent speaker"), "{trace:?}");

    let asked = run(&["send", "speaker", "ask me", "--wait", "-o", "json"]).await.json();
    assert_eq!(state_of(&asked), "TASK_STATE_INPUT_REQUIRED");
    let answered = run(&["send", "speaker", "blue", "--wait", "--task-id", asked["id"].as_str().unwrap()]).await;
    assert!(answered.stdout.contains("you said blue") || answered.stdout.contains("heard blue"), "{answered:?}");
    let asked = run(&["send", "speaker", "ask me", "--wait", "-o", "json"]).await.json();
    run(&["task", "cancel", asked["id"].as_str().unwrap()]).await;
    let canceled = run(&["task", "get", asked["id"].as_str().unwrap(), "-o", "json"]).await.json();
    assert_eq!(state_of(&canceled), "TASK_STATE_CANCELED");

    assert_eq!(run(&["card", "get", "speaker", "-o", "json"]).await.json()["name"], "speaker");
    assert!(run(&["agent", "list"]).await.stdout.contains("speaker"));
    assert!(run(&["cluster", "status"]).await.stdout.contains("quorum"));
    assert_eq!(run(&["cluster", "status", "-o", "json"]).await.json()["cluster"], "test");
    run(&["mcp", "list"]).await;
    run(&["validate", node.config().to_str().unwrap()]).await;
    assert!(run(&["completion", "bash"]).await.stdout.contains("towline"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_hangs_is_passed_over_where_another_one_is_named() {
    let model = FakeModel::start(|chat| Answer::say(format!("heard {}", chat.user))).await;
    let cluster = Cluster::start(Plan::one(model.config() + AGENTS)).await;
    // Connections are taken by the kernel, and nobody answers.
    let hanging = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let both = format!("http://{},{}", hanging.local_addr().unwrap(), cluster.nodes[0].url);
    for arguments in [&["cluster", "status"][..], &["task", "list"], &["send", "speaker", "hello", "--wait"]] {
        let ran = run_cli(arguments.iter().copied().chain(["--server", &both])).await;
        assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
    }
}

#[tokio::test]
async fn a_context_is_forgotten_by_its_name_or_the_url_of_a_node() {
    let folder = tempfile::tempdir().unwrap();
    let run = async |arguments: &[&str]| run_cli_in(folder.path(), arguments).await;
    for name in ["mesh.example", "http://mesh.example/"] {
        assert_eq!(run(&["context", "use", "http://mesh.example"]).await.code, 0);
        let removed = run(&["context", "remove", name]).await;
        assert!(removed.code == 0 && removed.stdout.contains("mesh.example is forgotten"), "{removed:?}");
        let left = run(&["context", "list", "-o", "json"]).await.json();
        assert_eq!(left["contexts"], json!([]), "{left}");
    }
    assert_eq!(run(&["context", "remove", "mesh.example"]).await.code, 2);
}

#[tokio::test]
async fn a_model_without_its_key_is_refused_before_anything_is_started() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["demo", "dev"] {
        let ran = run_cli_in(folder.path(), [command, "--model", "gemini:x"]).await;
        assert!(ran.code == 2 && ran.stderr.contains("GEMINI_API_KEY"), "{ran:?}");
        assert!(!folder.path().join(".towline").exists());
    }
}

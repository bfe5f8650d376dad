//! Somebody signs in through one node, is known to all and after a restart, and is put out by another one.

use futures::StreamExt;
use serde_json::{Value, json};
use std::{fs, path::Path, time::Duration};
use towline_tests::{Answer, Cluster, FakeModel, Gate, Plan, Ran, TestNode, eventually, http_client, run_cli_in};

const WORKER: &str = "agents:\n  - { name: worker, description: Waits., instruction: Wait., replicas: all }\n";
const AUTH: &str = "auth:\n  device_grant: { enabled: true }\n";
/// A tenth of a second on a quiet machine; this one may be busy.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
const EXIT_AUTH: i32 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_known_to_every_node_and_restart_and_a_revocation_closes_its_streams_on_all() {
    let never = Gate::closed();
    let gate = never.clone();
    let model = FakeModel::start(move |_| Answer::new().text("hm ").wait(&gate)).await;
    let mut cluster = Cluster::start(Plan::three(model.config() + WORKER)).await;
    for node in &mut cluster.nodes {
        node.stop().await;
        ask_who_calls(node);
        node.start(None);
    }
    for node in &mut cluster.nodes {
        node.ready().await;
    }
    let [a, b, c] = &cluster.nodes[..] else { panic!("three nodes") };

    let home = a.home.clone();
    let server = b.url.clone();
    let login = tokio::spawn(async move { run_cli_in(&home, ["auth", "login", "--server", &server]).await });
    let code = eventually("a code at another node", async || {
        let waiting = operate(c, &["auth", "device", "pending", "-o", "json"]).await.json();
        waiting["devices"][0]["code"].as_str().map(str::to_owned)
    })
    .await;
    let approved = operate(a, &["auth", "device", "approve", &code, "--as", "ada"]).await;
    assert!(approved.stdout.contains("is approved as user:ada (user)"), "{approved:?}");
    let signed_in = login.await.unwrap();
    assert_eq!(signed_in.code, 0, "{}", signed_in.said());
    assert!(signed_in.stdout.contains("signed in as user:ada (user)"), "{signed_in:?}");

    // The session goes to the node of the context, and no other server was named.
    let sent = run_cli_in(&a.home, ["send", "worker", "--async", "-o", "json", "wait"]).await;
    let task = sent.json()["id"].as_str().unwrap().to_owned();
    let session = operate(b, &["auth", "sessions", "-o", "json"]).await.json()["sessions"][0].clone();
    assert_eq!((&session["name"], &session["role"]), (&json!("user:ada"), &json!("user")));

    cluster.nodes[2].stop().await;
    cluster.nodes[2].start(None);
    cluster.nodes[2].ready().await;
    let [a, b, c] = &cluster.nodes[..] else { panic!("three nodes") };
    let token = token_of(&a.home);
    let streams = [follow(b, &task, &token).await, follow(c, &task, &token).await];
    let ended = operate(a, &["auth", "revoke", session["id"].as_str().unwrap()]).await;
    assert_eq!((ended.code, ended.stdout.trim()), (0, session["id"].as_str().unwrap()), "{}", ended.said());
    for mut stream in streams {
        let closed = async { while stream.next().await.is_some_and(|chunk| chunk.is_ok()) {} };
        tokio::time::timeout(ENDS_WITHIN, closed).await.expect("the stream closes");
    }
    let refused = run_cli_in(&a.home, ["task", "get", &task]).await;
    assert_eq!(refused.code, EXIT_AUTH, "{}", refused.said());
    assert_eq!(operate(c, &["task", "cancel", &task]).await.code, 0, "its task is still there for the operator");
    never.open();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_sees_its_own_over_a_node_that_answers_and_is_told_what_to_do_where_something_is_wrong() {
    let never = Gate::closed();
    let gate = never.clone();
    let model = FakeModel::start(move |_| Answer::new().text("hm ").wait(&gate)).await;
    let mut cluster = Cluster::start(Plan::one(model.config() + WORKER)).await;
    let node = &mut cluster.nodes[0];
    node.stop().await;
    ask_who_calls(node);
    node.start(None);
    node.ready().await;
    let node = &cluster.nodes[0];
    // Nobody listens at the first of the two.
    let servers = format!("http://127.0.0.1:9,{}", node.url);
    let run = async |command: &[&str]| run_cli_in(&node.home, command.iter().copied()).await;

    let nobody = run(&["task", "list", "--server", &node.url]).await;
    assert!(nobody.code == EXIT_AUTH && nobody.stderr.contains("towline auth login"), "{nobody:?}");
    let operator = run(&["auth", "login", "--operator", "--server", &node.url]).await;
    assert!(operator.code == EXIT_AUTH && operator.stderr.contains("allow_operator"), "{operator:?}");
    let card = run(&["card", "get", "worker", "--server", &servers]).await;
    assert!(card.code == 0 && card.stdout.contains("worker"), "{card:?}");

    let (home, server) = (node.home.clone(), servers.clone());
    let login =
        tokio::spawn(
            async move { run_cli_in(&home, ["auth", "login", "--client", "laptop", "--server", &server]).await },
        );
    let code = eventually("a code", async || {
        let waiting = operate(node, &["auth", "device", "pending", "-o", "json"]).await.json();
        let devices = waiting["devices"].as_array()?.clone();
        devices.iter().find(|device| device["client"] == "laptop")?["code"].as_str().map(str::to_owned)
    })
    .await;
    operate(node, &["auth", "device", "approve", &code, "--as", "ada"]).await;
    let signed_in = login.await.unwrap();
    assert_eq!(signed_in.code, 0, "{}", signed_in.said());

    let task = run(&["send", "worker", "--async", "wait"]).await.stdout.trim().to_owned();
    for command in [&["task", "get", &task][..], &["task", "trace", &task], &["task", "push", "list", &task]] {
        let shown = run(command).await;
        assert_eq!(shown.code, 0, "{command:?}: {}", shown.said());
    }
    let removed = operate(node, &["agent", "remove", "worker"]).await;
    assert!(removed.code == 1 && removed.stderr.contains("is of the configuration"), "{removed:?}");
    let resolved = operate(node, &["task", "resolve", &task, "--as", "done"]).await;
    assert!(resolved.code == 2 && resolved.stderr.contains("--result"), "{resolved:?}");
    never.open();
}

/// Has a node ask who calls, and gives its operator a socket.
fn ask_who_calls(node: &TestNode) {
    let config = fs::read_to_string(node.config()).unwrap();
    let with_socket = config.replacen("listen: { ", "listen: { unix: \"node.sock\", ", 1);
    assert_ne!(config, with_socket);
    fs::write(node.config(), with_socket + AUTH).unwrap();
}

/// Runs a command as the operator of a node: over its socket.
async fn operate(node: &TestNode, command: &[&str]) -> Ran {
    let server = format!("unix://{}", node.home.join("node.sock").display());
    run_cli_in(&node.home, command.iter().copied().chain(["--server", &server])).await
}

fn token_of(home: &Path) -> String {
    let text = fs::read_to_string(home.join("user-config/contexts.json")).unwrap();
    let contexts: Value = serde_json::from_str(&text).unwrap();
    let current = contexts["current"].as_str().unwrap();
    contexts["contexts"][current]["token"].as_str().unwrap().to_owned()
}

/// An open stream of a task, from which the first event has come.
async fn follow(
    node: &TestNode,
    task: &str,
    token: &str,
) -> impl futures::Stream<Item = Result<impl AsRef<[u8]>, reqwest::Error>> + Unpin {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": { "id": task } });
    let request = http_client().post(format!("{}/", node.url)).header("a2a-version", "1.0").bearer_auth(token);
    let answer = request.json(&body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let mut stream = Box::pin(answer.bytes_stream());
    let first = tokio::time::timeout(ENDS_WITHIN, stream.next()).await.expect("an event").unwrap().unwrap();
    assert!(String::from_utf8_lossy(&first).contains(task), "the task as it stands");
    stream
}

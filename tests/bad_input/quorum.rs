//! No quorum, no server, no sense: the answers and the exit codes.

use serde_json::json;
use std::time::{Duration, Instant};
use towline_tests::{
    A2aClient, Answer, Cluster, FakeModel, Observer, Plan, free_port, run_cli, state_of, text_message,
};

const SPEAKER: &str = "agents:\n  - { name: speaker, description: Speaks., instruction: Speak., replicas: all }\n";

/// The proposal deadline is 5 s; the rest is the machine's.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

const EXIT_USAGE: i32 = 2;
const EXIT_UNREACHABLE: i32 = 3;
const EXIT_UNAVAILABLE: i32 = 10;

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_every_request_is_answered_unavailable_in_time_and_nothing_is_lost() {
    let model = FakeModel::start(|_| Answer::say("spoken")).await;
    let mut cluster = Cluster::start(Plan::three(model.config() + SPEAKER)).await;
    let done = cluster.nodes[0].agent("speaker").send(text_message("m-1", "speak")).await.unwrap();
    let survivor = cluster.leader().await;
    for id in cluster.nodes.iter().map(|node| node.id).filter(|id| *id != survivor).collect::<Vec<_>>() {
        cluster.kill(id).await;
    }
    let node = cluster.node(survivor);
    let url = node.url.clone();

    for (method, params) in [
        ("SendMessage", json!({ "message": text_message("m-2", "speak") })),
        ("GetTask", json!({ "id": done["id"] })),
        ("ListTasks", json!({})),
        ("CancelTask", json!({ "id": done["id"] })),
    ] {
        let begun = Instant::now();
        let refused = node.agent("speaker").call(method, params).await.unwrap_err();
        assert!(begun.elapsed() < ANSWER_WITHIN, "{method} took {:?}", begun.elapsed());
        assert!(refused.data.to_string().contains("UNAVAILABLE"), "{method}: {refused:?}");
    }
    let stale = A2aClient::new(format!("{}?consistency=local", node.agent("speaker").endpoint()));
    let read = stale.call("GetTask", json!({ "id": done["id"] })).await.unwrap();
    assert_eq!(read, done, "who takes a stale answer gets one");
    assert_eq!(stale.call("ListTasks", json!({})).await.unwrap()["totalSize"], 1);
    for arguments in [vec!["send", "speaker", "speak"], vec!["task", "list"], vec!["cluster", "join-token"]] {
        let begun = Instant::now();
        let ran = run_cli(arguments.iter().copied().chain(["--server", &url])).await;
        assert_eq!(ran.code, EXIT_UNAVAILABLE, "{arguments:?}: {ran:?}");
        assert!(begun.elapsed() < ANSWER_WITHIN, "{arguments:?} took {:?}", begun.elapsed());
        assert!(!ran.stderr.contains("0ns"), "{arguments:?}: {ran:?}");
    }
    let status = run_cli(["cluster", "status", "--server", &url]).await;
    assert_eq!(status.code, EXIT_UNAVAILABLE, "the node still says how it stands, and that it is alone: {status:?}");
    assert!(status.stderr.contains("knows of no quorum"), "{status:?}");
    assert!(status.stdout.contains("2 of 3 voters must be up and connected"), "{status:?}");
    assert!(!status.stdout.contains("can lose"), "{status:?}");
    assert_eq!(status.stdout.matches("was up").count(), 2, "nobody knows of the others: {status:?}");

    for id in cluster.nodes.iter().filter(|node| !node.is_alive()).map(|node| node.id).collect::<Vec<_>>() {
        cluster.node_mut(id).start(None);
    }
    cluster.all_ready().await;
    for node in &cluster.nodes {
        assert_eq!(node.agent("speaker").get(done["id"].as_str().unwrap()).await.unwrap(), done);
    }
    let again = cluster.nodes[1].agent("speaker").send(text_message("m-2", "speak")).await.unwrap();
    assert_eq!(state_of(&again), "TASK_STATE_COMPLETED", "the message that was refused may be sent again");
    let all = Observer::subscribe(cluster.nodes[2].agent("speaker").endpoint(), again["id"].as_str().unwrap(), Some(0));
    assert_eq!(all.finished().await[0].index, 1);
}

#[tokio::test]
async fn a_server_that_nobody_runs_is_unreachable() {
    let url = format!("http://127.0.0.1:{}", free_port());
    for arguments in
        [vec!["send", "speaker", "speak"], vec!["task", "list"], vec!["cluster", "status"], vec!["card", "get"]]
    {
        let ran = run_cli(arguments.iter().copied().chain(["--server", &url])).await;
        assert_eq!(ran.code, EXIT_UNREACHABLE, "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains(&url), "it names the server: {ran:?}");
        assert_eq!(ran.stdout, "", "{ran:?}");
    }
}

#[tokio::test]
async fn a_command_line_that_makes_no_sense_is_usage() {
    for arguments in [
        vec!["no-such-command"],
        vec!["send", "speaker"],
        vec!["task", "get"],
        vec!["task", "list", "--state", "happy"],
    ] {
        let ran = run_cli(&arguments).await;
        assert_eq!(ran.code, EXIT_USAGE, "{arguments:?}: {ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_did_its_job_exits_0_even_if_the_task_failed_and_5_when_its_time_was_over() {
    let model = FakeModel::start(|chat| match chat.user.as_str() {
        "fail" => Answer::status(400, None),
        _ => Answer::new().pause(Duration::from_secs(20)),
    })
    .await;
    let cluster = Cluster::start(Plan::one(model.config() + SPEAKER)).await;
    let url = cluster.nodes[0].url.as_str();
    let failed = run_cli(["send", "speaker", "fail", "--wait", "-o", "json", "--server", url]).await;
    assert_eq!(failed.code, 0, "{failed:?}");
    assert_eq!(state_of(&failed.json()), "TASK_STATE_FAILED");
    let slow = run_cli(["send", "speaker", "slow", "--wait", "--timeout", "1s", "--server", url]).await;
    assert_eq!(slow.code, 5, "{slow:?}");
}

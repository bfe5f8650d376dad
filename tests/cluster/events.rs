//! A reader of the cluster's events goes on at another node, where it stood, when its own is killed.

use serde_json::Value;
use std::{process::Stdio, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};
use towline_tests::{Answer, Cluster, FakeModel, Plan, TestNode, run_cli, towline};

const WORKER: &str =
    "agents:\n  - { name: worker, description: Says words., instruction: Say words., replicas: all }\n";

/// Far above what anything here takes: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn events_go_on_at_another_node_behind_the_index_where_its_own_was_killed() {
    let model = FakeModel::start(|_| Answer::new().text("done")).await;
    let mut cluster = Cluster::start(Plan::three(model.config() + WORKER)).await;
    let victim = cluster.another_than(&[cluster.leader().await]).id;
    let living = cluster.another_than(&[victim]).id;
    let servers = [victim, living].map(|node| cluster.node(node).url.clone()).join(",");
    let before = send(cluster.node(living)).await;

    let mut reader = Reader::follow(&["--after", "0", "--server", &servers]);
    let first = reader.until(|event| is_end_of(event, &before)).await;
    assert!(first.iter().any(|(_, event)| event["kind"] == "node.joined"), "{first:?}");
    cluster.kill(victim).await;
    let lost = reader.until(|event| event["kind"] == "node.lost" && event["node"] == victim).await;
    let after = send(cluster.node(living)).await;
    let rest = reader.until(|event| is_end_of(event, &after)).await;

    let seen: Vec<(u64, Value)> = [first, lost, rest].concat();
    assert!(seen.windows(2).all(|pair| pair[0].0 <= pair[1].0), "in the order of the log: {seen:?}");
    let through = seen.last().unwrap().0;
    let third = cluster.another_than(&[victim, living]).id;
    for node in [living, third] {
        let whole = everything(cluster.node(node), through).await;
        assert_eq!(seen, whole, "what node {node} has from the start is what was seen over the kill");
    }
    let states: Vec<&str> = seen
        .iter()
        .filter(|(_, event)| event["task"] == *after)
        .filter_map(|(_, event)| event["state"].as_str())
        .collect();
    assert_eq!(states, ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]);

    // The node that was killed reads its log again, or begins behind its snapshot and says where.
    cluster.restart(victim).await;
    let again = everything(cluster.node(victim), through).await;
    assert_eq!(again, seen);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_is_not_there_is_refused_and_one_that_is_gone_names_the_oldest() {
    let model = FakeModel::start(|_| Answer::new().text("done")).await;
    let mut cluster = Cluster::start(Plan::one(model.config() + WORKER)).await;
    let task = send(&cluster.nodes[0]).await;
    let url = cluster.nodes[0].url.clone();
    let ahead = run_cli(["events", "--after", "99999999", "--server", &url]).await;
    assert!(ahead.code == 2 && ahead.stderr.contains("not there yet"), "{ahead:?}");

    // A cluster that begins with what was saved of another begins its log behind it.
    let file = cluster.folder().join("saved.towline");
    let saved = run_cli(["cluster", "snapshot", "save", file.to_str().unwrap(), "--server", &url]).await;
    assert_eq!(saved.code, 0, "{}", saved.said());
    let mut node = cluster.nodes.remove(0);
    node.stop().await;
    std::fs::remove_dir_all(node.data()).unwrap();
    let (home, file) = (node.home.to_str().unwrap().to_owned(), file.to_str().unwrap().to_owned());
    let restored = run_cli(["cluster", "snapshot", "restore", &file, "--name", "test", "--dir", &home]).await;
    assert_eq!(restored.code, 0, "{}", restored.said());
    node.start(None);
    node.ready().await;

    let gone = run_cli(["events", "--after", "1", "--server", &url]).await;
    assert!(gone.code == 1 && gone.stderr.contains("gone here: the oldest index to go on from is "), "{gone:?}");
    let oldest = gone.stderr.rsplit(' ').next().unwrap().trim().to_owned();
    let rest = run_cli(["events", "--after", &oldest, "-o", "json", "--server", &url]).await;
    assert!(rest.code == 0 && rest.stdout.contains("node.up") && !rest.stdout.contains(&task), "{rest:?}");
    node.stop().await;
}

fn is_end_of(event: &Value, task: &str) -> bool {
    event["task"] == *task && event["state"] == "TASK_STATE_COMPLETED"
}

/// Has the worker do something; the task, which has ended.
async fn send(node: &TestNode) -> String {
    let sent = run_cli(["send", "worker", "--async", "-o", "json", "speak", "--server", &node.url]).await;
    let task = sent.json()["id"].as_str().unwrap().to_owned();
    let waited = run_cli(["task", "wait", &task, "--server", &node.url]).await;
    assert_eq!(waited.code, 0, "{}", waited.said());
    task
}

/// The events of a node from the first one to an index.
async fn everything(node: &TestNode, through: u64) -> Vec<(u64, Value)> {
    let ran = run_cli(["events", "--after", "0", "-o", "json", "--server", &node.url]).await;
    assert_eq!(ran.code, 0, "{}", ran.said());
    let events = ran.stdout.lines().flat_map(events_of);
    events.filter(|(index, _)| *index <= through).collect()
}

fn events_of(line: &str) -> Vec<(u64, Value)> {
    let entry: Value = serde_json::from_str(line).unwrap();
    let index = entry["index"].as_u64().unwrap();
    entry["events"].as_array().unwrap().iter().map(|event| (index, event.clone())).collect()
}

/// `towline events --follow -o json`, while it runs.
struct Reader {
    _process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Reader {
    fn follow(arguments: &[&str]) -> Self {
        let mut command = Command::new(towline());
        command.args(["events", "--follow", "-o", "json"]).args(arguments);
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { _process: process, lines }
    }

    /// Everything up to and with the entry of the first event like this.
    async fn until(&mut self, is_last: impl Fn(&Value) -> bool) -> Vec<(u64, Value)> {
        let mut seen = Vec::new();
        let reading = async {
            loop {
                let line = self.lines.next_line().await.unwrap().expect("it goes on");
                let events = events_of(&line);
                let is_over = events.iter().any(|(_, event)| is_last(event));
                seen.extend(events);
                if is_over {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("the event comes");
        seen
    }
}

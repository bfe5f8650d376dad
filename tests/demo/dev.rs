//! `towline dev`: the same cluster, left running.

use std::{process::Stdio, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};
use towline_tests::{http_client, run_cli, towline};

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn dev_says_where_its_nodes_are_ctrl_c_stops_all_three_and_its_data_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.txt"), "one two\nthree\n").unwrap();

    let (mut dev, mut said) = start(folder.path());
    let urls = three_urls(&mut said).await;
    let sent = run_cli(["send", "surveyor", "Survey the first 5 text files.", "--wait", "--server", &urls[1]]).await;
    assert_eq!(sent.code, 0, "{sent:?}");
    assert!(sent.stdout.contains("| a.txt | 2 | 3 | 14 |"), "{sent:?}");
    kill_one(&dev);
    wait_for_line(&mut said, "the others go on").await;
    let servers = urls.join(",");
    let list = run_cli(["task", "list", "-o", "json", "--server", &servers]).await.json();
    assert!(!list["tasks"].as_array().unwrap().is_empty(), "the others answer: {list}");
    interrupt(&mut dev).await;
    for url in &urls {
        let asked = http_client().get(format!("{url}/livez")).send().await;
        assert!(asked.is_err_and(|error| error.is_connect()), "{url} still answers");
    }

    let (mut dev, mut said) = start(folder.path());
    assert_eq!(three_urls(&mut said).await, urls, "the nodes keep their addresses");
    let list = run_cli(["task", "list", "-o", "json", "--server", &urls[2]]).await.json();
    assert!(!list["tasks"].as_array().unwrap().is_empty(), "{list}");
    interrupt(&mut dev).await;
}

fn start(folder: &std::path::Path) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut command = Command::new(towline());
    command.arg("dev").current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let out = child.stdout.take().expect("it is piped");
    (child, BufReader::new(out).lines())
}

/// The base URLs of the three nodes, in the order in which they are told.
async fn three_urls(said: &mut Lines<BufReader<ChildStdout>>) -> Vec<String> {
    let mut urls = Vec::new();
    while urls.len() < 3 {
        let line = tokio::time::timeout(LIMIT, said.next_line()).await.expect("it says where its nodes are");
        let line = line.unwrap().expect("it goes on");
        if let Some(url) = line.trim().strip_prefix("A2A ") {
            urls.push(url.trim().trim_end_matches('/').to_owned());
        }
    }
    urls
}

/// Kills the first of the nodes.
fn kill_one(dev: &Child) {
    let dev = dev.id().expect("it runs");
    let children = std::fs::read_to_string(format!("/proc/{dev}/task/{dev}/children")).unwrap();
    let children = children.split_whitespace().map(|pid| pid.parse::<i32>().unwrap());
    let first = children.min().expect("nodes are its children");
    let pid = rustix::process::Pid::from_raw(first).expect("a process id is positive");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

async fn wait_for_line(said: &mut Lines<BufReader<ChildStdout>>, part: &str) {
    let found = async {
        while let Some(line) = said.next_line().await.unwrap() {
            if line.contains(part) {
                return;
            }
        }
        panic!("it ended without saying {part:?}");
    };
    tokio::time::timeout(LIMIT, found).await.expect("it is said");
}

async fn interrupt(dev: &mut Child) {
    let pid = i32::try_from(dev.id().expect("it runs")).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).expect("a process id is positive");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ended = tokio::time::timeout(LIMIT, dev.wait()).await.expect("it stops").unwrap();
    assert_eq!(ended.code(), Some(0), "{ended}");
}

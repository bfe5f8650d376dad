//! A node that looks at itself, and what somebody who mends it is given.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;
use towline_tests::{Answer, Cluster, FakeModel, Plan, run_cli, run_cli_in};

const AGENTS: &str = "\
agents:
  - { name: speaker, description: Speaks., instruction: Speak of the private-instruction., replicas: all }
peers:
  - { name: near, url: \"http://127.0.0.1:9\", auth: { bearer: the-bearer-of-near } }
";

fn verdict<'a>(report: &'a Value, area: &str, subject: &str) -> &'a str {
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["area"] == area && check["subject"] == subject);
    found.unwrap_or_else(|| panic!("{area} {subject} is not in {report}"))["verdict"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_looks_at_itself_and_at_the_others_and_tells_it_without_secrets() {
    let model = FakeModel::start(|chat| Answer::say(format!("heard {}", chat.user))).await;
    let mut cluster = Cluster::start(Plan::three(model.config() + AGENTS)).await;
    let url = cluster.nodes[0].url.clone();
    let sent = run_cli(["--server", &url, "send", "speaker", "a private-message", "--wait"]).await;
    assert_eq!(sent.code, 0, "{sent:?}");

    let looked = run_cli(["--server", &url, "doctor", "-o", "json"]).await;
    let report = looked.json();
    assert_eq!(report["running"], true);
    for name in ["b", "c"] {
        assert_eq!(verdict(&report, "node", name), "ok", "{report}");
        assert_eq!(verdict(&report, "clock", name), "ok", "one machine has one clock: {report}");
    }
    assert_eq!(verdict(&report, "cluster", "test"), "ok");
    assert_eq!(verdict(&report, "model", "default"), "ok");
    assert_eq!(verdict(&report, "tls", "of this node"), "ok");
    assert_eq!(verdict(&report, "peer", "near"), "fail", "nobody listens there");
    assert_eq!(looked.code, 7, "{looked:?}");

    cluster.nodes[2].kill().await;
    let looked = run_cli(["--server", &url, "doctor"]).await;
    assert_eq!(looked.code, 7, "{looked:?}");
    let line = looked.stdout.lines().skip_while(|line| !line.starts_with("FAIL  node")).nth(1);
    assert!(line.is_some_and(|line| line.contains("→ start it")), "{looked:?}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let made = run_cli_in(folder.path(), ["--server", &url, "bug-report", "-f", "report.json"]).await;
    assert_eq!((made.code, made.stdout.trim()), (0, "report.json"), "{made:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    for secret in ["the-bearer-of-near", "no secret", "private-message", "private-instruction"] {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["cluster"]["cluster"], "test");
    assert_eq!(report["doctor"]["node"], "a");
    assert_eq!(report["configuration"]["peers"][0]["auth"]["bearer"], "[hidden]");
    assert!(!report["events"]["entries"].as_array().unwrap().is_empty(), "{}", report["events"]);
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let again = run_cli_in(folder.path(), ["--server", &url, "bug-report", "-f", "report.json"]).await;
    assert_eq!(again.code, 1, "no other file is written over: {again:?}");
}

#[tokio::test]
async fn a_node_that_does_not_run_is_looked_at_by_its_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let config = "node: { name: a, listen: { http: \"127.0.0.1:0\", peer: \"127.0.0.1:0\" } }\n\
                  models: { default: { provider: scripted } }\nmcp: { servers: [ { name: fs, command: [no-such-program] } ] }\n";
    std::fs::write(folder.path().join("towline.yaml"), config).unwrap();
    let looked = run_cli_in(folder.path(), ["doctor", "--config", "towline.yaml", "-o", "json"]).await;
    assert_eq!(looked.code, 7, "{looked:?}");
    let report = looked.json();
    assert_eq!((&report["running"], verdict(&report, "mcp", "fs")), (&Value::Bool(false), "fail"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is made");
    let looked = run_cli_in(folder.path(), ["doctor", "--server", "http://127.0.0.1:9"]).await;
    assert_eq!(looked.code, 3, "{looked:?}");
    assert!(looked.stderr.contains("doctor --config FILE"), "{looked:?}");
    let made = run_cli_in(folder.path(), ["bug-report", "--config", "towline.yaml", "-f", "-"]).await;
    assert_eq!(made.json()["configuration"]["node"]["name"], "a");
}

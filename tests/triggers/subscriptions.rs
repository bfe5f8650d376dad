//! Resources: each change is seen, also while server or owner were away, and is one task.

use super::{WORKER, model, stays_fired, trigger, until, until_fired};
use serde_json::Value;
use std::time::{Duration, Instant};
use towline_tests::{Cluster, FakeMcp, Plan, Says, eventually, run_cli};

const INBOX: &str = "memo://inbox";

/// Longer than anything that would fire again.
const QUIET: Duration = Duration::from_secs(4);

fn config(server: &FakeMcp, options: &str) -> String {
    format!(
        "mcp: {{ servers: [ {{ name: fake, endpoint: \"{}\" }} ] }}\ntriggers:\n  - {{ name: inbox, agent: worker, prompt: \
         Look., resource: {{ server: fake, uri: \"{INBOX}\"{options} }} }}\n",
        server.url()
    )
}

/// Once what is there has been seen, and the server is heard.
async fn armed(cluster: &Cluster) -> u64 {
    let one = until(cluster, "inbox", "armed", |one| one["push"] == "live" && one["state"] == "ok").await;
    one["node"]["id"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_while_the_server_was_away_is_one_task_within_fifteen_seconds_and_without_a_call() {
    let mut server = FakeMcp::start(Says::Updates, &[(INBOX, "one")]);
    let model = model().await;
    let cluster = Cluster::start(Plan::one(model.config() + WORKER + &config(&server, ""))).await;
    armed(&cluster).await;
    assert_eq!(trigger(&cluster, "inbox").await.unwrap()["fired"], 0, "what is there at first is no change");

    server.set(INBOX, "two");
    until_fired(&cluster, "inbox", 1).await;

    server.stop();
    server.set(INBOX, "three");
    server.start_again();
    let back = Instant::now();
    let fired = until_fired(&cluster, "inbox", 2).await;
    assert!(back.elapsed() < Duration::from_secs(15), "it took {:?}", back.elapsed());
    stays_fired(&cluster, "inbox", 2, QUIET).await;

    let task = cluster.task(fired["tasks"][0].as_str().unwrap()).await;
    let message = &task.history[0];
    assert_eq!(message.parts.len(), 2);
    assert!(message.text().contains("Look.") && message.text().contains("three"), "{}", message.text());
    assert!(message.text().contains("<untrusted source=\"resource memo://inbox of fake\">"), "{}", message.text());
    assert_eq!(message.metadata["dev.towline/trigger"]["name"], "inbox");
    assert_eq!(task.labels.get("trigger").map(String::as_str), Some("inbox"));
    assert_eq!(task.outside_input, ["event of trigger inbox"]);
    let events = cluster.nodes[0].operator("events?kinds=trigger").await.unwrap();
    let told = events.to_string();
    for kind in ["trigger.added", "trigger.claimed", "trigger.fired"] {
        assert!(told.contains(kind), "{kind}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_owner_is_killed_another_one_goes_on_and_each_change_is_one_task() {
    let server = FakeMcp::start(Says::Updates, &[(INBOX, "one")]);
    let model = model().await;
    let mut cluster = Cluster::start(Plan::three(model.config() + WORKER + &config(&server, ", debounce: 0ms"))).await;
    let owner = armed(&cluster).await;
    assert_eq!(server.subscriptions(), 1, "one node of three subscribes");
    server.set(INBOX, "two");
    until_fired(&cluster, "inbox", 1).await;

    cluster.kill(owner).await;
    server.set(INBOX, "while nobody listens");
    until_fired(&cluster, "inbox", 2).await;
    let next = until(&cluster, "inbox", "adopted", |one| one["node"]["id"] != owner && one["push"] == "live").await;
    server.set(INBOX, "three");
    until_fired(&cluster, "inbox", 3).await;
    cluster.restart(owner).await;
    stays_fired(&cluster, "inbox", 3, QUIET).await;
    assert_eq!(trigger(&cluster, "inbox").await.unwrap()["node"], next["node"], "who has it keeps it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_whole_cluster_finds_what_changed_meanwhile_and_nothing_else() {
    let server = FakeMcp::start(Says::Updates, &[(INBOX, "one")]);
    let model = model().await;
    let mut cluster = Cluster::start(Plan::one(model.config() + WORKER + &config(&server, ""))).await;
    armed(&cluster).await;
    cluster.nodes[0].kill().await;
    server.set(INBOX, "two");
    cluster.nodes[0].start(None);
    cluster.all_ready().await;
    until_fired(&cluster, "inbox", 1).await;
    cluster.restart_all().await;
    armed(&cluster).await;
    stays_fired(&cluster, "inbox", 1, QUIET).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_says_nothing_is_read_in_a_rhythm_and_a_filter_keeps_changes_back() {
    let server = FakeMcp::start(Says::Nothing, &[(INBOX, r#"{"sheets":900}"#)]);
    let model = model().await;
    let options =
        ", poll: 200ms, filter: \"json.sheets < 500 && window.exists(before, before.json.sheets >= 500)\", window: 5";
    let cluster = Cluster::start(Plan::one(model.config() + WORKER + &config(&server, options))).await;
    until(&cluster, "inbox", "polled", |one| one["push"] == "poll").await;
    server.set(INBOX, r#"{"sheets":600}"#);
    until(&cluster, "inbox", "skipped", |one| one["skipped"] == 1).await;
    server.set(INBOX, r#"{"sheets":400}"#);
    let fired = until_fired(&cluster, "inbox", 1).await;
    assert_eq!(fired["skipped"], 1);
    server.set(INBOX, r#"{"reams":1}"#);
    let trouble = until(&cluster, "inbox", "in trouble", |one| one["state"] == "trouble").await;
    assert!(trouble["trouble"].as_str().unwrap().starts_with("filter: "), "{trouble}");
    server.set(INBOX, r#"{"sheets":300}"#);
    until_fired(&cluster, "inbox", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_adds_one_sees_how_it_goes_fires_it_and_takes_it_away() {
    let server = FakeMcp::start(Says::Updates, &[(INBOX, "one")]);
    let model = model().await;
    let servers = format!("mcp: {{ servers: [ {{ name: fake, endpoint: \"{}\" }} ] }}\n", server.url());
    let cluster = Cluster::start(Plan::one(model.config() + WORKER + &servers)).await;
    let url = cluster.nodes[0].url.clone();
    let sub = async |arguments: &[&str]| run_cli([&["sub"][..], arguments, &["--server", url.as_str()]].concat()).await;
    let of_resource = ["--agent", "worker", "--mcp-server", "fake", "--uri", INBOX, "--debounce", "0ms"];
    let added = sub(&[&["add", "inbox"][..], &of_resource].concat()).await;
    assert_eq!(added.code, 0, "{}", added.said());
    armed(&cluster).await;
    server.set(INBOX, "two");
    until_fired(&cluster, "inbox", 1).await;

    let fired = sub(&["fire", "inbox"]).await;
    assert_eq!(fired.code, 0, "{}", fired.said());
    let task = cluster.task(fired.stdout.trim()).await;
    assert!(task.history[0].text().contains("two"), "{}", task.history[0].text());
    let listed = sub(&["list", "-o", "json"]).await.json();
    assert_eq!((&listed["triggers"][0]["fired"], &listed["triggers"][0]["declared"]), (&2.into(), &false.into()));
    let shown = sub(&["list"]).await;
    assert!(shown.stdout.contains("fake memo://inbox") && shown.stdout.contains("live"), "{}", shown.stdout);

    let rival = sub(&[&["add", "other"][..], &of_resource].concat()).await;
    assert!(rival.code != 0 && rival.said().contains("watched by trigger inbox"), "{}", rival.said());
    let wrong = sub(&["add", "t", "--agent", "worker", "--cron", "61 * * * *"]).await;
    assert!(wrong.code != 0 && wrong.said().contains("no line of a crontab"), "{}", wrong.said());
    assert_eq!(sub(&["remove", "inbox"]).await.code, 0);
    eventually("the subscription to end", async || (server.subscriptions() == 0).then_some(())).await;
    assert_ne!(sub(&["remove", "inbox"]).await.code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_subscriptions_of_one_node_are_heard_and_take_a_bounded_memory() {
    const MANY: usize = 1_000;
    let resources: Vec<(String, String)> = (0..MANY).map(|at| (format!("memo://{at}/end"), "one".to_owned())).collect();
    let borrowed: Vec<(&str, &str)> = resources.iter().map(|(uri, text)| (uri.as_str(), text.as_str())).collect();
    let server = FakeMcp::start(Says::Updates, &borrowed);
    let model = model().await;
    let mut config = format!("mcp: {{ servers: [ {{ name: fake, endpoint: \"{}\" }} ] }}\ntriggers:\n", server.url());
    for (at, (uri, _)) in resources.iter().enumerate() {
        config.push_str(&format!(
            "  - {{ name: t{at}, agent: worker, resource: {{ server: fake, uri: \"{uri}\", debounce: 0ms }} }}\n"
        ));
    }
    let cluster = Cluster::start(Plan::one(model.config() + WORKER + &config)).await;
    eventually("all to be seen", async || {
        let all = cluster.nodes[0].operator("triggers").await?;
        let live = all["triggers"].as_array()?.iter().filter(|one| one["push"] == "live").count();
        (live == MANY).then_some(())
    })
    .await;
    assert_eq!(server.subscriptions(), MANY);
    for at in [0, 1, 500, MANY - 1] {
        server.set(&format!("memo://{at}/end"), "two");
        until_fired(&cluster, &format!("t{at}"), 1).await;
    }
    let all: Value = cluster.nodes[0].operator("triggers").await.unwrap();
    let fired: u64 = all["triggers"].as_array().unwrap().iter().filter_map(|one| one["fired"].as_u64()).sum();
    assert_eq!(fired, 4, "an update is about its resource alone");
    let status = std::fs::read_to_string(format!("/proc/{}/status", cluster.nodes[0].pid().unwrap())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 400_000, "{kilobytes} kB of memory");
}

//! `towline demo` on a random folder.

use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use towline_core::{Intent, Task, TaskState};
use towline_tests::{Cluster, Ran, towline};

use crate::folder::{self, Counts};

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_is_killed_and_the_digest_is_complete_with_nothing_lost_or_doubled() {
    let stage = Stage::set();
    let shown = stage.demo(&["--kill", "owner"]).await;
    let report = shown.report();
    assert_digest_says_what_wc_says(&report, &stage.files);
    assert_eq!(report["kill"]["was_owner"], true, "{}", report["kill"]);
    assert!(report["kill"]["was_leader"].is_boolean());
    assert_no_event_is_lost(&report);

    // The rest is read from the records that the nodes kept, not from what the demo says.
    let cluster = stage.nodes_started_again().await;
    let survey = cluster.task(report["task"].as_str().unwrap()).await;
    let readers = readers_of(&cluster, &survey).await;
    assert_eq!(survey.status.state, TaskState::Completed);
    assert_eq!(readers.len(), stage.files.len(), "one delegation for each file");
    assert!(readers.iter().all(|reader| reader.status.state == TaskState::Completed));
    let ran_on: BTreeSet<u64> = readers.iter().flat_map(|reader| &reader.ran_on).map(|node| node.0).collect();
    assert!(ran_on.len() >= 2, "readers ran on {ran_on:?} only");
    let killed = report["kill"]["node"].as_u64().unwrap();
    let all = std::iter::once(&survey).chain(&readers);
    let adopted = all.filter(|task| task.adoptions.iter().any(|adoption| adoption.from.0 == killed));
    assert!(adopted.count() >= 1, "no task of the killed node was adopted");
    assert_every_delegation_shows_a_server_span(&report, &survey, &readers);
    assert_trace_is_one_tree(&report);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_entry_is_killed_and_the_caller_resumes_at_another_node() {
    let stage = Stage::set();
    let report = stage.demo(&["--kill", "entry"]).await.report();
    assert_digest_says_what_wc_says(&report, &stage.files);
    assert_eq!(report["kill"]["was_entry"], true);
    assert!(report["events"]["resumed"].as_u64().unwrap() >= 1, "{}", report["events"]);
    assert_no_event_is_lost(&report);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_is_killed_and_nothing_is_lost() {
    let stage = Stage::set();
    let report = stage.demo(&["--kill", "leader"]).await.report();
    assert_digest_says_what_wc_says(&report, &stage.files);
    assert_eq!(report["kill"]["was_leader"], true);
    assert_no_event_is_lost(&report);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_kill_the_trace_spans_all_nodes_and_each_delegation_has_its_server_span() {
    let stage = Stage::set();
    let report = stage.demo(&["--no-kill"]).await.report();
    assert_digest_says_what_wc_says(&report, &stage.files);
    assert_no_event_is_lost(&report);
    assert_trace_is_one_tree(&report);
    let nodes: BTreeSet<&str> = spans(&report).iter().filter_map(|span| span["node"].as_str()).collect();
    assert!(nodes.len() >= 3, "spans of {nodes:?} only");
    let cluster = stage.nodes_started_again().await;
    let survey = cluster.task(report["task"].as_str().unwrap()).await;
    let readers = readers_of(&cluster, &survey).await;
    assert_every_delegation_shows_a_server_span(&report, &survey, &readers);
}

#[test]
fn the_rules_of_the_scripted_model_know_no_file() {
    let rules = include_str!("../../node/src/demo/rules.yaml");
    for extension in [".txt", ".md", ".rs", ".csv", ".toml", ".html"] {
        assert!(!rules.contains(extension), "the rules name a {extension} file");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_not_there_is_usage_and_nothing_is_started() {
    let stage = Stage::set();
    let ran = stage.run(Path::new("/nowhere"), &[]).await;
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("/nowhere"), "{ran:?}");
    assert!(stage.kept().is_none());
}

/// A random folder, and a place for what the demo keeps.
struct Stage {
    source: tempfile::TempDir,
    workplace: tempfile::TempDir,
    files: BTreeMap<String, Counts>,
}

struct Shown(Ran);

impl Stage {
    fn set() -> Self {
        let source = tempfile::tempdir().unwrap();
        let files = folder::fill(source.path());
        Self { source, workplace: tempfile::tempdir().unwrap(), files }
    }

    async fn demo(&self, options: &[&str]) -> Shown {
        let ran = self.run(self.source.path(), options).await;
        assert_eq!(ran.code, 0, "stdout: {}\nstderr: {}", &ran.stdout[..ran.stdout.len().min(4_000)], ran.stderr);
        Shown(ran)
    }

    async fn run(&self, source: &Path, options: &[&str]) -> Ran {
        let mut command = tokio::process::Command::new(towline());
        command.args(["demo", "-o", "json", "--keep", "--dir"]).arg(source).args(options);
        command.env("TMPDIR", self.workplace.path()).stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(Duration::from_secs(120), command.output()).await;
        let output = output.expect("the demo ends in time").unwrap();
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The folder that the demo kept.
    fn kept(&self) -> Option<PathBuf> {
        let mut folders = fs::read_dir(self.workplace.path()).unwrap().map(|entry| entry.unwrap().path());
        folders.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("towline-demo-"))
    }

    async fn nodes_started_again(&self) -> Cluster {
        Cluster::start_again(&self.kept().expect("the demo kept its folder")).await
    }
}

impl Shown {
    fn report(&self) -> Value {
        self.0.json()
    }
}

fn assert_digest_says_what_wc_says(report: &Value, files: &BTreeMap<String, Counts>) {
    let text = report["digest"]["text"].as_str().unwrap();
    let rows: Vec<Vec<String>> = text.lines().filter(|line| line.starts_with('|')).map(cells).collect();
    let number = |cell: &String| cell.trim_matches('*').parse::<u64>().ok();
    let counts = |row: &[String]| Some((number(&row[1])?, number(&row[2])?, number(&row[3])?));
    let mut told: Vec<(String, Counts)> = rows.iter().filter_map(|row| Some((row[0].clone(), counts(row)?))).collect();
    let totals = told.pop().expect("the digest has a row of totals").1;
    assert_eq!(told, files.clone().into_iter().collect::<Vec<_>>(), "{text}");
    let sum = |column: fn(&Counts) -> u64| files.values().map(column).sum::<u64>();
    assert_eq!(totals, (sum(|counts| counts.0), sum(|counts| counts.1), sum(|counts| counts.2)));
}

/// The cells of a row of a Markdown table, in which `\|` is a bar.
fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_start_matches('|').replace("\\|", "\u{1}");
    inner.split('|').map(|cell| cell.trim().replace('\u{1}', "|")).collect()
}

fn assert_no_event_is_lost(report: &Value) {
    let events = &report["events"];
    for kind in ["lost", "duplicated", "differing"] {
        assert_eq!(events[kind], serde_json::json!([]), "{kind}: {events}");
    }
    assert!(events["seen"].as_u64().unwrap() > 0 && events["seen"] == events["in_log"], "{events}");
}

async fn readers_of(cluster: &Cluster, survey: &Task) -> Vec<Task> {
    let mut readers = Vec::new();
    for step in &survey.journal {
        let Intent::Delegate { peer_task: Some(id), target, .. } = &step.intent else { continue };
        assert_eq!(target, "reader");
        readers.push(cluster.task(id).await);
    }
    readers
}

fn spans(report: &Value) -> &[Value] {
    report["trace"]["spans"].as_array().unwrap()
}

fn assert_every_delegation_shows_a_server_span(report: &Value, survey: &Task, readers: &[Task]) {
    let spans = spans(report);
    assert_eq!(report["trace"]["trace_id"], survey.trace.trace_id_hex());
    for reader in readers {
        let of_reader = |span: &&Value| {
            let method = span["name"].as_str().unwrap_or_default();
            let is_a2a = method.starts_with("SendMessage") || method.starts_with("SendStreamingMessage");
            let kind = span["kind"].as_str().unwrap_or_default().to_lowercase();
            is_a2a && kind == "server" && span["attributes"]["a2a.task.id"] == reader.id.to_string()
        };
        assert!(
            spans.iter().any(|span| of_reader(&span)),
            "no A2A server span for {} in {} spans",
            reader.id,
            spans.len()
        );
    }
}

fn assert_trace_is_one_tree(report: &Value) {
    let spans = spans(report);
    let ids: BTreeSet<&str> = spans.iter().filter_map(|span| span["span_id"].as_str()).collect();
    assert_eq!(ids.len(), spans.len(), "no span is told twice");
    let orphans: Vec<&Value> = spans
        .iter()
        .filter(|span| span["parent_span_id"].as_str().is_some_and(|parent| !ids.contains(parent)))
        .collect();
    // The caller is no node: the spans of its requests, if it has any, are not gathered.
    let parents: BTreeSet<&str> = orphans.iter().filter_map(|span| span["parent_span_id"].as_str()).collect();
    assert!(parents.len() <= 1, "{} spans have lost their parent: {orphans:#?}", orphans.len());
}

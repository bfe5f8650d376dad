//! What a scrape says of what has happened, and that alerts and dashboard ask for nothing else.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::{Value, json};
use towline_tests::{
    Answer, Cluster, FakeModel, Plan, TestNode, eventually, http_client, scripted_mcp, state_of, text_message,
};

/// A scrape, read.
pub struct Scrape {
    /// Names, as `# TYPE` says them, with the kind.
    pub families: Vec<(String, String)>,
    /// Name, labels, value.
    pub samples: Vec<(String, String, f64)>,
}

impl Scrape {
    /// All samples of a name with these labels, added up.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fits = |found: &str| labels.iter().all(|(label, value)| found.contains(&format!("{label}=\"{value}\"")));
        self.samples.iter().filter(|(found, with, _)| found == name && fits(with)).map(|(_, _, value)| value).sum()
    }

    /// Every name that a query can ask for.
    fn names(&self) -> BTreeSet<String> {
        let of = |(name, kind): &(String, String)| match kind.as_str() {
            "counter" => vec![format!("{name}_total")],
            "histogram" => ["bucket", "count", "sum"].map(|end| format!("{name}_{end}")).to_vec(),
            _ => vec![name.clone()],
        };
        self.families.iter().flat_map(of).collect()
    }
}

/// What `/metrics` of a node says.
pub async fn scrape(node: &TestNode) -> Scrape {
    let answer = http_client().get(format!("{}/metrics", node.url)).send().await.unwrap();
    assert!(answer.status().is_success(), "{answer:?}");
    let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
    assert!(kind.starts_with("application/openmetrics-text; version=1.0.0"), "{kind}");
    let text = answer.text().await.unwrap();
    assert!(text.ends_with("# EOF\n"));
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let samples = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = name.split_once('{').unwrap_or((name, ""));
        (name.to_owned(), labels.trim_end_matches('}').to_owned(), value.parse().unwrap())
    });
    Scrape {
        families: families.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect(),
        samples: samples.collect(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_tells_what_has_happened_and_alerts_and_dashboard_ask_for_what_it_tells() {
    let model = FakeModel::start(|chat| match (chat.number, chat.results.len()) {
        (0, _) => Answer::status(429, Some(0)),
        (_, 0) => Answer::new().call("srv__echo", &json!({ "text": "hello" })),
        (_, _) => Answer::say("done"),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    let mesh = model.config()
        + &format!(
            "mcp:\n  servers:\n    - {{ name: srv, transport: stdio, command: [{:?}, {calls:?}], on_adoption: {{ \"*\": retry }} }}\nagents:\n  - {{ name: caller, description: C., instruction: Call., tools: [\"srv.*\"] }}\ntelemetry: {{ sample: 0 }}\n",
            scripted_mcp()
        );
    let cluster = Cluster::start(Plan::one(mesh)).await;
    let node = &cluster.nodes[0];
    let task = node.agent("caller").send(text_message("m-1", "do it")).await.unwrap();
    assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");

    // What the feed tells is counted a moment later.
    let scrape = eventually("the end of the task", async || {
        let scrape = scrape(node).await;
        let ended = [("gen_ai_agent_name", "caller"), ("a2a_task_state", "TASK_STATE_COMPLETED")];
        (scrape.sum("towline_task_ended_total", &ended) >= 1.0).then_some(scrape)
    })
    .await;
    let is = |name: &str, labels: &[(&str, &str)], value: f64| {
        let found = scrape.sum(name, labels);
        assert!((found - value).abs() < f64::EPSILON, "{name} {labels:?} is {found} and not {value}");
    };
    is("towline_raft_has_leader", &[], 1.0);
    is("towline_raft_is_leader", &[], 1.0);
    is("towline_raft_spare_voters", &[], 0.0);
    is("towline_cluster_members", &[("role", "voter"), ("health", "up")], 1.0);
    is("towline_mcp_server_up", &[("towline_mcp_server", "srv")], 1.0);
    is("towline_task_in_doubt", &[], 0.0);
    is("gen_ai_client_operation_duration_seconds_count", &[("gen_ai_request_model", "gpt-test")], 2.0);
    is("gen_ai_client_operation_time_to_first_chunk_seconds_count", &[], 2.0);
    is("towline_model_retries_total", &[("gen_ai_request_model", "gpt-test")], 1.0);
    is("mcp_client_operation_duration_seconds_count", &[("towline_mcp_server", "srv")], 1.0);
    is("towline_a2a_server_operation_duration_seconds_count", &[("a2a_method_name", "SendMessage")], 1.0);
    is("gen_ai_invoke_agent_duration_seconds_count", &[("gen_ai_agent_name", "caller")], 1.0);
    is("towline_task_queue_wait_seconds_count", &[("gen_ai_agent_name", "caller")], 1.0);
    for some in [
        "gen_ai_client_token_usage_sum",
        "towline_raft_proposal_duration_seconds_count",
        "towline_raft_log_sync_duration_seconds_count",
        "towline_actor_mailbox_wait_seconds_count",
        "towline_raft_applied_index",
    ] {
        assert!(scrape.sum(some, &[]) > 0.0, "{some}");
    }

    let names = scrape.names();
    assert_eq!(
        names.len(),
        scrape.families.iter().map(|(_, kind)| if kind == "histogram" { 3 } else { 1 }).sum::<usize>()
    );
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let alerts = fs::read_to_string(deploy.join("prometheus/alerts.yaml")).unwrap();
    let dashboard: Value =
        serde_json::from_str(&fs::read_to_string(deploy.join("grafana/dashboard.json")).unwrap()).unwrap();
    let mut asked: Vec<String> = queries_of(&alerts);
    for panel in dashboard["panels"].as_array().unwrap() {
        let targets = panel["targets"].as_array().into_iter().flatten();
        asked.extend(targets.map(|target| target["expr"].as_str().unwrap().to_owned()));
    }
    assert!(asked.len() > 40, "{}", asked.len());
    for query in &asked {
        let metrics = metrics_in(query);
        assert!(!metrics.is_empty(), "{query}");
        for metric in metrics {
            assert!(names.contains(&metric), "{metric} is told by no node: {query}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_counted_by_state_and_agent_while_they_are_open_and_who_is_lost_shows() {
    let gate = towline_tests::Gate::closed();
    let opens = gate.clone();
    let model = FakeModel::start(move |_| Answer::new().wait(&opens).text("done")).await;
    let mesh = model.config() + "agents:\n  - { name: speaker, description: S., instruction: Speak. }\n";
    let mut cluster = Cluster::start(Plan::three(mesh)).await;
    let sent = cluster.nodes[0].agent("speaker").send_async(text_message("m-1", "speak")).await.unwrap();
    let task = sent["id"].as_str().unwrap().to_owned();
    let owner = eventually("an owner", async || cluster.task(&task).await.lease.map(|lease| lease.node.0)).await;
    let working = [("gen_ai_agent_name", "speaker"), ("a2a_task_state", "TASK_STATE_WORKING")];
    let seen_by = cluster.another_than(&[owner]).id;
    eventually("the task to work, for all", async || {
        let scrape = scrape(cluster.node(seen_by)).await;
        (scrape.sum("towline_task_active", &working) >= 1.0).then_some(())
    })
    .await;

    cluster.node_mut(owner).kill().await;
    eventually("the adoption, and the loss of the margin", async || {
        let scrape = scrape(cluster.node(seen_by)).await;
        let adopted = scrape.sum("towline_task_adoptions_total", &[("gen_ai_agent_name", "speaker")]);
        let spare: Vec<_> = scrape.samples.iter().filter(|(name, _, _)| name == "towline_raft_spare_voters").collect();
        let down = scrape.sum("towline_cluster_members", &[("health", "up")]) < 3.0;
        (adopted >= 1.0 && down && spare.len() == 1 && spare[0].2.abs() < f64::EPSILON).then_some(())
    })
    .await;
    gate.open();
    let waited = eventually("the adopter to go on", async || {
        let mut waited = 0.0;
        for node in cluster.alive() {
            waited += scrape(node).await.sum("towline_task_adoption_wait_seconds_count", &[]);
        }
        (waited >= 1.0).then_some(waited)
    })
    .await;
    assert!(waited >= 1.0);
}

/// The expressions of a file of rules: behind `expr:`, on that line or folded below it.
fn queries_of(rules: &str) -> Vec<String> {
    let mut queries = Vec::new();
    let mut lines = rules.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(rest) = line.trim_start().strip_prefix("expr:") else { continue };
        let mut query = rest.trim().trim_start_matches(">-").to_owned();
        let depth = line.len() - line.trim_start().len();
        while let Some(more) = lines.next_if(|next| next.len() - next.trim_start().len() > depth) {
            query.push(' ');
            query.push_str(more.trim());
        }
        queries.push(query);
    }
    queries
}

/// The metrics that a query names: what is left of ours without labels.
fn metrics_in(query: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut rest = query;
    while let Some(at) = rest.find(['{', '(']) {
        let (before, behind) = rest.split_at(at);
        plain.push_str(before);
        let word = before.trim_end().rsplit(|char: char| !char.is_alphanumeric()).next().unwrap_or_default();
        let close = if behind.starts_with('{') { '}' } else { ')' };
        let are_labels = close == '}' || ["by", "on", "without", "ignoring"].contains(&word);
        rest =
            if are_labels { &behind[behind.find(close).map_or(behind.len(), |end| end + 1)..] } else { &behind[1..] };
        plain.push(' ');
    }
    plain.push_str(rest);
    let is_ours = |word: &&str| ["towline_", "gen_ai_", "mcp_", "a2a_"].iter().any(|start| word.starts_with(start));
    let words = plain.split(|char: char| !(char.is_alphanumeric() || char == '_'));
    words.filter(is_ours).map(str::to_owned).collect()
}

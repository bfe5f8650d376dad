//! `towline bench trace`: what spans cost, one by one and by the task.
//!
//! ```text
//! span   off         no tracing in the process          a span of four attributes, one thread, again and again;
//!        unsampled   a caller that is not sampled       µs per span are in the column of the CPU
//!        kept        in memory, as on every node
//!        exported    and sent over OTLP/HTTP to a collector that takes everything
//! task   unsampled   the same three ways, of whole tasks of three nodes; the ratio is to the unsampled ones
//! trace  of a task that delegates, and of one with a thousand spans, asked of one node, gathered from all
//! scrape of /metrics of a node whose cluster has ten thousand open tasks
//! ```

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

use axum::{Router, routing::post};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{net::TcpListener, task::JoinHandle};
use towline_core::TraceContext;
use towline_trace::{Kind, Protocol, Settings, Span, names};

use super::{
    BenchError,
    load::{Measured, drive},
    machine::{Machine, cpu_of, load},
    nodes::{AGENTS, Nodes, this_program},
    options::{Plan, TraceArgs},
    report::{Report, Row, rounded},
    subjects::OURS,
    task::{http_client, submitters},
};
use crate::demo::DemoError;

/// Spans of one measurement: a fraction of a second, and fewer than wait for a collector.
const SPANS: u32 = 15_000;
/// How often each is measured; the best counts, since everything else on the machine only adds.
const TRIES: u32 = 5;
/// Traces that are asked for, and scrapes.
const TRACES: usize = 20;
/// Tasks that are submitted at the same time until there are enough for a scrape.
const SUBMITTING: usize = 32;
/// An agent whose model says nothing for as long as a bench lasts, and one that delegates so often that its trace has a thousand spans.
const MORE_AGENTS: &str = "  - { name: stuck, description: Waits., instruction: Wait., replicas: all }
  - { name: crowd, description: Delegates a lot., instruction: Delegate., replicas: all, delegates: [noop] }
";

/// How the nodes of a run trace, as their configuration says it.
const WAYS: [&str; 3] = ["unsampled", "kept", "exported"];

pub(super) async fn run(args: &TraceArgs, dir: &Path) -> Result<Report, BenchError> {
    let plan = args.check()?;
    let machine = Machine::of_this(dir);
    let collector = Collector::start().await?;
    let url = collector.url.clone();
    let spans = tokio::task::spawn_blocking(move || spans(&url)).await;
    let mut rows = spans.map_err(|error| BenchError::Waited { what: "spans".to_owned(), reason: error.to_string() })?;
    rows.extend(tasks(args, plan, dir, &collector).await?);
    let subjects = BTreeMap::from([(OURS.to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    Ok(Report { machine, load_after: load(), subjects, rows })
}

/// A collector that takes everything and keeps nothing.
struct Collector {
    url: String,
    serving: JoinHandle<()>,
}

impl Collector {
    async fn start() -> Result<Self, BenchError> {
        let failed =
            |error: std::io::Error| BenchError::Waited { what: "a port".to_owned(), reason: error.to_string() };
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let url = format!("http://{}", listener.local_addr().map_err(failed)?);
        let router = Router::new().route("/v1/traces", post(async |_: axum::body::Bytes| {}));
        // An error of a collector shows in what is measured: its spans fail.
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap_or_default() });
        Ok(Self { url, serving })
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The cost of one span in each way. Nothing else of this process may trace meanwhile.
fn spans(collector: &str) -> Vec<Row> {
    let parent = |sampled| TraceContext { trace_id: 7, span_id: 7, sampled };
    let exported =
        Settings { otlp: Some(collector.to_owned()), protocol: Some(Protocol::HttpProtobuf), ..Settings::default() };
    let ways = [
        ("off", None, true),
        ("unsampled", Some(Settings::default()), false),
        ("kept", Some(Settings::default()), true),
        ("exported", Some(exported), true),
    ];
    let row = |(subject, settings, sampled): (&str, Option<Settings>, bool)| {
        let best = (0..TRIES).filter_map(|_| {
            // A guard for each, so that the spans of one are sent before those of the next.
            let guard = settings.clone().map(towline_trace::install).transpose().ok()?;
            let took = once(parent(sampled));
            drop(guard);
            Some(took)
        });
        let each = best.min().unwrap_or_default().as_secs_f64() / f64::from(SPANS);
        Row {
            bench: "span".to_owned(),
            subject: subject.to_owned(),
            clients: 1,
            per_second: Some(rounded(1.0 / each.max(f64::EPSILON), 1.0)),
            cpu_us: Some(rounded(each * 1e6, 1_000.0)),
            done: Some(u64::from(SPANS * TRIES)),
            ..Row::default()
        }
    };
    ways.into_iter().map(row).collect()
}

fn once(parent: TraceContext) -> Duration {
    let began = Instant::now();
    for number in 0..SPANS {
        let mut span = Span::child(names::span::RAFT_PROPOSE, Kind::Internal, &parent);
        span.set(names::RAFT_COMMAND, "Report");
        span.set(names::RAFT_INDEX, i64::from(number));
        span.set(names::A2A_TASK_ID, "0198c0de-0000-7000-8000-000000000000");
        span.set(names::RAFT_ROLE, "leader");
    }
    began.elapsed()
}

async fn tasks(args: &TraceArgs, plan: Plan, dir: &Path, collector: &Collector) -> Result<Vec<Row>, BenchError> {
    let mut running = Vec::new();
    for way in WAYS {
        let telemetry = match way {
            "unsampled" => "telemetry: { sample: 0 }\n".to_owned(),
            "kept" => String::new(),
            _ => format!("telemetry: {{ otlp: \"{}\", protocol: http/protobuf }}\n", collector.url),
        };
        running.push(
            Nodes::start_some_of(&this_program()?, &dir.join(way), &format!("{AGENTS}{MORE_AGENTS}{telemetry}"))
                .await?,
        );
    }
    let measured = measure(&running, args, plan).await;
    for nodes in running {
        nodes.stop().await;
    }
    measured
}

async fn measure(running: &[Nodes], args: &TraceArgs, plan: Plan) -> Result<Vec<Row>, BenchError> {
    let mut points: BTreeMap<(u32, usize), Measured> = BTreeMap::new();
    for _ in 0..plan.rounds {
        for clients in &args.clients {
            for (at, nodes) in running.iter().enumerate() {
                let completed = Arc::new(AtomicU64::new(0));
                let pids = nodes.pids();
                let submitters = submitters(nodes, *clients, "noop", &completed)?;
                let measured = drive(submitters, plan.seconds, || cpu_of(&pids)).await;
                measured.check("task")?;
                points.entry((*clients, at)).or_insert_with(Measured::new).add(&measured);
            }
        }
    }
    let row = |(clients, at), measured: &Measured| Row::of("task", WAYS[at], clients, measured);
    let mut rows: Vec<Row> = Vec::new();
    for ((clients, at), measured) in &points {
        let own = row((*clients, *at), measured);
        let plain = points.get(&(*clients, 0)).filter(|_| *at > 0).map(|plain| row((*clients, 0), plain));
        rows.push(match plain {
            Some(plain) => own.compared_with(&plain),
            None => own,
        });
    }
    for agent in ["boss", "crowd"] {
        rows.push(traces(&running[1], agent).await?);
    }
    rows.push(scrapes(&running[1], args.tasks).await?);
    Ok(rows)
}

/// How long a scrape takes of one node while so many tasks are open.
async fn scrapes(nodes: &Nodes, tasks: u32) -> Result<Row, BenchError> {
    let submitters = submitters(nodes, tasks, "stuck", &Arc::default())?;
    let submitted = stream::iter(submitters).map(|submitter| async move { submitter.submit().await });
    let waited = |reason| BenchError::Waited { what: "tasks that stay open".to_owned(), reason };
    submitted.buffer_unordered(SUBMITTING).try_collect::<Vec<()>>().await.map_err(waited)?;
    let door = nodes.cluster.nodes().first().map(|node| node.plan.url()).unwrap_or_default();
    let (mut measured, http, mut bytes) = (Measured::new(), http_client()?, 0);
    for _ in 0..TRACES {
        let began = Instant::now();
        let failed = |source| DemoError::Operator { action: "scrape".to_owned(), source };
        let answer = http.get(format!("{door}/metrics")).send().await.and_then(reqwest::Response::error_for_status);
        bytes = answer.map_err(failed)?.bytes().await.map_err(failed)?.len();
        measured.record(began.elapsed());
    }
    Ok(Row::timed("scrape", &format!("{tasks} tasks, {} kB", bytes / 1_000), 1, &measured))
}

/// How long the trace of a task takes that delegates.
async fn traces(nodes: &Nodes, agent: &str) -> Result<Row, BenchError> {
    let submitter = submitters(nodes, 1, agent, &Arc::default())?.pop();
    let submitter = submitter
        .ok_or_else(|| BenchError::Waited { what: "a client".to_owned(), reason: "there is no node".to_owned() })?;
    let waited = |reason| BenchError::Waited { what: "a task that delegates".to_owned(), reason };
    let task = submitter.task().await.map_err(waited)?;
    let door = nodes.cluster.nodes().first().map(|node| node.plan.url()).unwrap_or_default();
    let (mut measured, mut spans) = (Measured::new(), 0);
    for _ in 0..TRACES {
        let began = Instant::now();
        spans = nodes.cluster.operator().spans(&door, &task).await?.len();
        measured.record(began.elapsed());
    }
    Ok(Row::timed("trace", &format!("{spans} spans"), 1, &measured))
}

//! `towline bench task`: whole tasks through A2A. A client sends a message to an agent that does nothing and waits for the
//! task to be completed; the clients are spread over the nodes.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use towline_a2a::{A2aClient, SendOptions, SendReply};
use towline_core::{Message, MessageId, Metadata, Part, Role, TaskState};

use super::{
    BenchError,
    load::{Measured, Worker, drive},
    machine::{Machine, cpu_of, load, rss_kb},
    nodes::Nodes,
    options::{Plan, TaskArgs, check_clients},
    report::{Report, Row, rounded},
};

/// How long one task may take before its client counts it as failed.
const TASK_TIMEOUT: Duration = Duration::from_secs(20);

/// One client.
struct Submitter {
    client: A2aClient,
    /// Tasks of all clients that were completed, in the warm-up too.
    completed: Arc<AtomicU64>,
}

impl Worker for Submitter {
    async fn once(&mut self) -> Result<(), String> {
        let options = SendOptions { history_length: Some(0), timeout: Some(TASK_TIMEOUT), ..SendOptions::default() };
        match self.client.send(&message(), options, None).await {
            Ok(SendReply::Task(task)) if task.state == TaskState::Completed => {
                self.completed.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Ok(SendReply::Task(task)) => Err(format!("task is {:?}", task.state)),
            Ok(SendReply::Message(_)) => Err("answered with a message instead of a task".to_owned()),
            Err(error) => Err(crate::error::chain(&error)),
        }
    }
}

/// A message that nobody has sent before.
pub(super) fn message() -> Message {
    let id = uuid::Uuid::now_v7().to_string();
    Message {
        message_id: MessageId::try_from(id).expect("a UUID is printable and short"),
        context_id: None,
        task_id: None,
        role: Role::User,
        parts: vec![Part::text("go")],
        metadata: Metadata::new(),
        extensions: Vec::new(),
        reference_task_ids: Vec::new(),
    }
}

/// What one point has.
struct Point {
    measured: Measured,
    /// Log entries that were committed meanwhile, warm-up and all.
    entries: u64,
    /// Tasks that were completed meanwhile.
    tasks: u64,
}

pub(super) async fn run(args: &TaskArgs, dir: &Path) -> Result<Report, BenchError> {
    check_clients(&args.clients)?;
    let plan = args.pace.check()?;
    let machine = Machine::of_this(dir);
    let retained = args.check_retained()?;
    let nodes = Nodes::start_retaining(dir, retained).await?;
    let points = measure(&nodes, args, plan).await;
    let rss_mb = nodes.pids().into_iter().map(rss_kb).max().map(|kb| rounded(kb as f64 / 1024.0, 10.0));
    nodes.stop().await;
    let rows = points?.iter().map(|(clients, point)| Row { rss_mb, ..row(*clients, retained, point) }).collect();
    let subjects = BTreeMap::from([("towline".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    Ok(Report { machine, load_after: load(), subjects, rows })
}

async fn measure(nodes: &Nodes, args: &TaskArgs, plan: Plan) -> Result<BTreeMap<u32, Point>, BenchError> {
    let mut points = BTreeMap::new();
    for _ in 0..plan.rounds {
        for clients in &args.clients {
            let empty = || Point { measured: Measured::new(), entries: 0, tasks: 0 };
            let point = points.entry(*clients).or_insert_with(empty);
            one_point(nodes, *clients, plan, point).await?;
        }
    }
    Ok(points)
}

async fn one_point(nodes: &Nodes, clients: u32, plan: Plan, point: &mut Point) -> Result<(), BenchError> {
    let http = http_client()?;
    let doors = nodes.cluster.nodes().iter().cycle().take(clients as usize);
    let completed = Arc::new(AtomicU64::new(0));
    let submitters = doors.map(|node| Submitter {
        client: A2aClient::new(http.clone(), endpoint(&node.plan.url(), "noop")),
        completed: Arc::clone(&completed),
    });
    let (pids, before) = (nodes.pids(), committed(nodes).await?);
    let measured = drive(submitters.collect(), plan.seconds, || cpu_of(&pids)).await;
    measured.check("task")?;
    point.entries += committed(nodes).await? - before;
    point.tasks += completed.load(Ordering::Relaxed);
    point.measured.add(&measured);
    Ok(())
}

/// The last committed entry.
async fn committed(nodes: &Nodes) -> Result<u64, BenchError> {
    let leader = nodes.leader().await?;
    let url = nodes.cluster.node(leader).map(|node| node.plan.url()).unwrap_or_default();
    Ok(nodes.cluster.operator().status(&url).await?.committed)
}

fn row(clients: u32, retained: u64, point: &Point) -> Row {
    let entries = point.entries as f64 / point.tasks.max(1) as f64;
    let bench = if retained == 0 { "task".to_owned() } else { format!("task, {retained} retained") };
    let row = Row::of(&bench, "towline", clients, &point.measured);
    Row { entries_per_task: Some(rounded(entries, 100.0)), ..row }
}

pub(super) fn http_client() -> Result<reqwest::Client, BenchError> {
    let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build();
    client
        .map_err(|source| crate::demo::DemoError::Operator { action: "make an HTTP client".to_owned(), source }.into())
}

pub(super) fn endpoint(node: &str, agent: &str) -> String {
    format!("{node}/agents/{agent}")
}

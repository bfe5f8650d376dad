//! `towline bench task`: whole tasks through A2A. A client sends a message to an agent that does nothing and waits for the
//! task to be completed; the clients are spread over the nodes.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use towline_a2a::{A2aClient, SendOptions, SendReply};
use towline_core::{Message, MessageId, Metadata, Part, Role, TaskState};

use super::{
    BenchError,
    load::{Measured, Worker, drive},
    machine::{Machine, cpu_of, load, rss_kb},
    nodes::{Nodes, this_program},
    options::{Plan, TaskArgs},
    report::{Report, Row, rounded},
    subjects::{OURS, other_build},
};

/// How long one task may take before its client counts it as failed.
const TASK_TIMEOUT: Duration = Duration::from_secs(20);

/// Pause before a task is submitted again.
const SUBMIT_PAUSE: Duration = Duration::from_millis(100);

/// One client.
pub(super) struct Submitter {
    client: A2aClient,
    /// Tasks of all clients that were completed, in the warm-up too.
    completed: Arc<AtomicU64>,
}

impl Submitter {
    pub(super) fn new(client: A2aClient, completed: &Arc<AtomicU64>) -> Self {
        Self { client, completed: Arc::clone(completed) }
    }

    /// Submits a task, and waits for nothing but its id. A node that has too much to do is asked again: the same message makes one task.
    pub(super) async fn submit(&self) -> Result<(), String> {
        let message = message();
        let began = Instant::now();
        loop {
            let options = SendOptions { return_immediately: true, history_length: Some(0), ..SendOptions::default() };
            match self.client.send(&message, options, None).await {
                Ok(_) => return Ok(()),
                Err(error) if began.elapsed() > TASK_TIMEOUT => return Err(crate::error::chain(&error)),
                Err(_) => tokio::time::sleep(SUBMIT_PAUSE).await,
            }
        }
    }

    /// Has one task done, and says its id.
    pub(super) async fn task(&self) -> Result<String, String> {
        let options = SendOptions { history_length: Some(0), timeout: Some(TASK_TIMEOUT), ..SendOptions::default() };
        match self.client.send(&message(), options, None).await {
            Ok(SendReply::Task(task)) if task.state == TaskState::Completed => {
                self.completed.fetch_add(1, Ordering::Relaxed);
                Ok(task.id)
            }
            Ok(SendReply::Task(task)) => Err(format!("task is {:?}", task.state)),
            Ok(SendReply::Message(_)) => Err("answered with a message instead of a task".to_owned()),
            Err(error) => Err(crate::error::chain(&error)),
        }
    }
}

impl Worker for Submitter {
    async fn once(&mut self) -> Result<(), String> {
        self.task().await.map(|_| ())
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

/// Builds of this program, this one first, by name, with where they are.
type Builds = Vec<(String, PathBuf)>;

pub(super) async fn run(args: &TaskArgs, dir: &Path) -> Result<Report, BenchError> {
    let plan = args.check()?;
    let machine = Machine::of_this(dir);
    let others = args.towline.iter().enumerate().map(|(at, program)| (other_build(at), program.clone()));
    let builds: Builds = std::iter::once((OURS.to_owned(), this_program()?)).chain(others).collect();
    let mut running = vec![Nodes::start_retaining(&dir.join("0"), args.retained).await?];
    for (at, (_, program)) in builds.iter().enumerate().skip(1) {
        running.push(Nodes::start_program(program, &dir.join(at.to_string())).await?);
    }
    let points = measure(&running, args, plan).await;
    let rss_mb = running[0].pids().into_iter().map(rss_kb).max().map(|kb| rounded(kb as f64 / 1024.0, 10.0));
    for nodes in running {
        nodes.stop().await;
    }
    let mut rows = rows(&builds, &points?);
    for row in rows.iter_mut().filter(|row| row.subject == OURS) {
        row.rss_mb = rss_mb;
        if args.retained > 0 {
            row.bench = format!("task, {} retained", args.retained);
        }
    }
    let version = |(name, program): (String, PathBuf)| match name.as_str() {
        OURS => (name, env!("CARGO_PKG_VERSION").to_owned()),
        _ => (name, program.display().to_string()),
    };
    Ok(Report { machine, load_after: load(), subjects: builds.into_iter().map(version).collect(), rows })
}

async fn measure(running: &[Nodes], args: &TaskArgs, plan: Plan) -> Result<BTreeMap<(u32, usize), Point>, BenchError> {
    let mut points = BTreeMap::new();
    for _ in 0..plan.rounds {
        for clients in &args.clients {
            for (at, nodes) in running.iter().enumerate() {
                let empty = || Point { measured: Measured::new(), entries: 0, tasks: 0 };
                let point = points.entry((*clients, at)).or_insert_with(empty);
                one_point(nodes, *clients, plan, point).await?;
            }
        }
    }
    Ok(points)
}

/// Every other build's row says how this one stands to it.
fn rows(builds: &Builds, points: &BTreeMap<(u32, usize), Point>) -> Vec<Row> {
    let with_ratio = |((clients, at), point): (&(u32, usize), &Point)| {
        let own = row(&builds[*at].0, *clients, point);
        let ours = points.get(&(*clients, 0)).filter(|_| *at > 0).map(|ours| row(OURS, *clients, ours));
        match ours.map(|ours| ours.compared_with(&own)) {
            Some(Row { ratio, p99_ratio, .. }) => Row { ratio, p99_ratio, ..own },
            None => own,
        }
    };
    points.iter().map(with_ratio).collect()
}

async fn one_point(nodes: &Nodes, clients: u32, plan: Plan, point: &mut Point) -> Result<(), BenchError> {
    let completed = Arc::new(AtomicU64::new(0));
    let submitters = submitters(nodes, clients, "noop", &completed)?;
    let (pids, before) = (nodes.pids(), committed(nodes).await?);
    let measured = drive(submitters, plan.seconds, || cpu_of(&pids)).await;
    measured.check("task")?;
    point.entries += committed(nodes).await? - before;
    point.tasks += completed.load(Ordering::Relaxed);
    point.measured.add(&measured);
    Ok(())
}

/// Clients of one agent, spread over the nodes.
pub(super) fn submitters(
    nodes: &Nodes,
    clients: u32,
    agent: &str,
    completed: &Arc<AtomicU64>,
) -> Result<Vec<Submitter>, BenchError> {
    let http = http_client()?;
    let doors = nodes.cluster.nodes().iter().cycle().take(clients as usize);
    let submitter = |url: String| Submitter {
        client: A2aClient::new(http.clone(), endpoint(&url, agent)),
        completed: Arc::clone(completed),
    };
    Ok(doors.map(|node| submitter(node.plan.url())).collect())
}

/// The last committed entry.
async fn committed(nodes: &Nodes) -> Result<u64, BenchError> {
    let leader = nodes.leader().await?;
    let url = nodes.cluster.node(leader).map(|node| node.plan.url()).unwrap_or_default();
    Ok(nodes.cluster.operator().status(&url).await?.committed)
}

fn row(subject: &str, clients: u32, point: &Point) -> Row {
    let entries = point.entries as f64 / point.tasks.max(1) as f64;
    let row = Row::of("task", subject, clients, &point.measured);
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

//! `towline bench a2a`: one node that keeps its log in memory, asked through A2A as any agent is, beside other A2A servers.
//!
//! A message is sent and answered when its task is completed: authentication, validation, deduplication, the log and the
//! trace are in it. Cards are read as a whole, and by a client that has them already. What stands beside it is a program that
//! is given a port, and serves there an agent that answers at once.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

use http::{StatusCode, header};
use tokio::process::{Child, ChildStdin, Command};
use towline_a2a::A2aClient;

use super::{
    BenchError,
    load::{Measured, Worker, drive},
    machine::{Machine, cpu_of, load, rss_kb},
    nodes::{file, this_program},
    options::{A2aArgs, Plan},
    report::{Report, Row, rounded},
    subjects::OURS,
    task::{Submitter, http_client},
};

/// How long a server may take to serve its card: an interpreter loads many files, on a machine that is busy perhaps.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(90);

/// How often it is asked for it.
pub(super) const READY_POLL: Duration = Duration::from_millis(50);

/// How long a server may take to stop.
const STOP_WITHIN: Duration = Duration::from_secs(8);

/// Where every A2A server has its card.
const CARD: &str = "/.well-known/agent-card.json";

/// Runs a program until standard input ends, and writes its process id to a file, so that none outlives this process.
const WITH_STDIN: &str = "pid=$1; shift; \"$@\" & echo $! > \"$pid\"; cat > /dev/null; kill $!; wait $!";

/// A server that is measured.
pub(super) struct Server {
    pub(super) name: String,
    pub(super) url: String,
    pid_file: PathBuf,
    child: Child,
    /// The server stops when this closes.
    stdin: Option<ChildStdin>,
}

/// What one client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Asked {
    Message,
    Card,
    CardAgain,
}

impl Asked {
    fn bench(self) -> &'static str {
        match self {
            Asked::Message => "a2a message",
            Asked::Card => "a2a card",
            Asked::CardAgain => "a2a card, 304",
        }
    }
}

pub(super) async fn run(args: &A2aArgs, dir: &Path) -> Result<Report, BenchError> {
    let plan = args.check()?;
    let machine = Machine::of_this(dir);
    let mut servers = vec![ours(dir).await?];
    for name in &args.vs {
        servers.push(beside(&args.servers, name, dir).await?);
    }
    let measured = measure(&servers, args, plan).await;
    let rss: Vec<f64> = servers.iter().map(|server| rounded(rss_kb(server.pid()) as f64 / 1024.0, 10.0)).collect();
    let version = |server: &Server| match server.name.as_str() {
        OURS => (server.name.clone(), env!("CARGO_PKG_VERSION").to_owned()),
        _ => (server.name.clone(), args.servers.join(&server.name).display().to_string()),
    };
    let subjects = servers.iter().map(version).collect();
    let names: Vec<String> = servers.iter().map(|server| server.name.clone()).collect();
    for server in servers {
        server.stop().await;
    }
    Ok(Report { machine, load_after: load(), subjects, rows: rows(&names, &rss, &measured?) })
}

/// By what is asked, clients and server.
type Points = BTreeMap<(Asked, u32, usize), Measured>;

async fn measure(servers: &[Server], args: &A2aArgs, plan: Plan) -> Result<Points, BenchError> {
    let mut points = Points::new();
    for _ in 0..plan.rounds {
        for asked in [Asked::Message, Asked::Card, Asked::CardAgain] {
            for clients in &args.clients {
                for (at, server) in servers.iter().enumerate() {
                    let Some(measured) = one_point(server, asked, *clients, plan).await? else { continue };
                    points.entry((asked, *clients, at)).or_insert_with(Measured::new).add(&measured);
                }
            }
        }
    }
    Ok(points)
}

/// None where the server does not know a card by its tag.
async fn one_point(server: &Server, asked: Asked, clients: u32, plan: Plan) -> Result<Option<Measured>, BenchError> {
    let (http, pids) = (http_client()?, [server.pid()]);
    let cpu = || cpu_of(&pids);
    let measured = if asked == Asked::Message {
        let completed = Arc::new(AtomicU64::new(0));
        let client = || A2aClient::new(http.clone(), format!("{}/", server.url));
        let clients = (0..clients).map(|_| Submitter::new(client(), &completed)).collect();
        drive(clients, plan.seconds, cpu).await
    } else {
        let tag = if asked == Asked::CardAgain { tag_of(&http, server).await } else { None };
        if asked == Asked::CardAgain && tag.is_none() {
            return Ok(None);
        }
        let reader = || Reader { http: http.clone(), url: format!("{}{CARD}", server.url), tag: tag.clone() };
        drive((0..clients).map(|_| reader()).collect(), plan.seconds, cpu).await
    };
    measured.check(asked.bench())?;
    Ok(Some(measured))
}

/// The tag of a card, where its server knows the card by it: some send one and pass it over when it comes back.
async fn tag_of(http: &reqwest::Client, server: &Server) -> Option<String> {
    let url = format!("{}{CARD}", server.url);
    let answer = http.get(&url).send().await.ok()?;
    let tag = answer.headers().get(header::ETAG)?.to_str().ok()?.to_owned();
    let again = http.get(&url).header(header::IF_NONE_MATCH, &tag).send().await.ok()?;
    (again.status() == StatusCode::NOT_MODIFIED).then_some(tag)
}

/// Reads a card; one that knows its tag is told that it has not changed.
struct Reader {
    http: reqwest::Client,
    url: String,
    tag: Option<String>,
}

impl Worker for Reader {
    async fn once(&mut self) -> Result<(), String> {
        let request = self.http.get(&self.url);
        let (request, expected) = match &self.tag {
            Some(tag) => (request.header(header::IF_NONE_MATCH, tag), StatusCode::NOT_MODIFIED),
            None => (request, StatusCode::OK),
        };
        let answer = request.send().await.map_err(|error| crate::error::chain(&error))?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(|error| crate::error::chain(&error))?;
        let is_right = status == expected && body.is_empty() == (expected == StatusCode::NOT_MODIFIED);
        if is_right { Ok(()) } else { Err(format!("answered {status} with {} bytes", body.len())) }
    }
}

fn rows(names: &[String], rss: &[f64], points: &Points) -> Vec<Row> {
    let row = |asked: Asked, clients: u32, at: usize, measured: &Measured| Row {
        rss_mb: Some(rss[at]),
        ..Row::of(asked.bench(), &names[at], clients, measured)
    };
    let with_ratio = |(&(asked, clients, at), measured): (&(Asked, u32, usize), &Measured)| {
        let own = row(asked, clients, at, measured);
        let ours = points.get(&(asked, clients, 0)).filter(|_| at > 0).map(|ours| row(asked, clients, 0, ours));
        match ours.map(|ours| ours.compared_with(&own)) {
            Some(Row { ratio, p99_ratio, .. }) => Row { ratio, p99_ratio, ..own },
            None => own,
        }
    };
    points.iter().map(with_ratio).collect()
}

/// One node that keeps nothing.
async fn ours(dir: &Path) -> Result<Server, BenchError> {
    let port = free_port(dir)?;
    let config = dir.join("a2a.yaml");
    let text = format!(
        "node: {{ name: bench, listen: {{ http: \"127.0.0.1:{port}\" }}, permits: 4096 }}
models:
  default: {{ provider: scripted, rules: \"rules: [ {{ say: done }} ]\" }}
agents:
  - {{ name: noop, description: Does nothing., instruction: Do nothing. }}
"
    );
    fs::write(&config, text).map_err(|source| file("write", &config, source))?;
    let config = config.to_string_lossy().into_owned();
    start(OURS, &this_program()?, &["node", "--ephemeral", "-c", &config], port, dir).await
}

/// A program of the folder for servers, which is given the port.
async fn beside(servers: &Path, name: &str, dir: &Path) -> Result<Server, BenchError> {
    let port = free_port(dir)?;
    let program = servers.join(name);
    if !program.is_file() {
        return Err(BenchError::NoServer { name: name.to_owned(), program });
    }
    start(name, &program, &[&port.to_string()], port, dir).await
}

async fn start(name: &str, program: &Path, args: &[&str], port: u16, dir: &Path) -> Result<Server, BenchError> {
    let (mut server, log) = launch(name, program, args, port, dir)?;
    match server.wait_until_ready(&log).await {
        Ok(()) => Ok(server),
        Err(error) => {
            server.stop().await;
            Err(error)
        }
    }
}

/// Starts a server, whose output goes into a file.
pub(super) fn launch(
    name: &str,
    program: &Path,
    args: &[&str],
    port: u16,
    dir: &Path,
) -> Result<(Server, PathBuf), BenchError> {
    let (pid_file, log) = (dir.join(format!("{name}.pid")), dir.join(format!("{name}.log")));
    let out = File::create(&log).map_err(|source| file("open", &log, source))?;
    let err = out.try_clone().map_err(|source| file("open", &log, source))?;
    let mut command = Command::new("sh");
    command.args(["-c", WITH_STDIN, "sh"]).arg(&pid_file).arg(program).args(args);
    // Ctrl-C is for this process, which closes their standard input.
    command.stdin(Stdio::piped()).stdout(out).stderr(err).process_group(0);
    let mut child = command.spawn().map_err(|source| file("start", program, source))?;
    let stdin = child.stdin.take();
    let server = Server { name: name.to_owned(), url: format!("http://127.0.0.1:{port}"), pid_file, child, stdin };
    Ok((server, log))
}

impl Server {
    pub(super) fn pid(&self) -> u32 {
        fs::read_to_string(&self.pid_file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// It serves its card, and an agent answers: a card alone is there before a node takes work.
    async fn wait_until_ready(&mut self, log: &Path) -> Result<(), BenchError> {
        let http = http_client()?;
        let client = A2aClient::new(http, format!("{}/", self.url));
        let first = Submitter::new(client, &Arc::new(AtomicU64::new(0)));
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let Err(reason) = first.task().await else { return Ok(()) };
            if Instant::now() >= deadline {
                let said = fs::read_to_string(log).unwrap_or_default();
                let reason = format!("{reason}; its output: {}", said.lines().last().unwrap_or_default());
                return Err(BenchError::Waited { what: format!("an answer of {}", self.name), reason });
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }

    pub(super) async fn stop(mut self) {
        drop(self.stdin.take());
        if tokio::time::timeout(STOP_WITHIN, self.child.wait()).await.is_err() {
            // Its standard input is closed: it ends as soon as it can.
            tracing::warn!(name = self.name, "server does not stop in time");
        }
    }
}

pub(super) fn free_port(dir: &Path) -> Result<u16, BenchError> {
    let found = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    found.map(|address| address.port()).map_err(|source: io::Error| file("find a free port for", dir, source))
}

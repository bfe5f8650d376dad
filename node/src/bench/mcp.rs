//! `towline bench mcp`: calls of a tool that does next to nothing, over Streamable HTTP with a session and over standard input, beside
//! other MCP servers.
//!
//! Ours is `list_agents` of one node that keeps its log in memory, with one agent: authentication, the read and the trace are in it. Over
//! standard input it is `towline mcp serve` before that node, and the CPU time is that of both. What stands beside it is a
//! program that is given a port, or `stdio`, and serves a tool `noop` there.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, Command},
    sync::oneshot,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    BenchError,
    a2a::{READY_POLL, READY_WITHIN, Server, free_port, launch},
    load::{Measured, Worker, drive},
    machine::{Machine, cpu_of, load, rss_kb},
    nodes::{file, this_program},
    options::{McpArgs, Plan},
    report::{Report, Row, rounded},
    subjects::OURS,
    task::http_client,
};

/// The revision that is spoken: the newest with sessions, which all of them know.
const REVISION: &str = "2025-11-25";

/// What ours is asked, and the others.
const OUR_TOOL: &str = "list_agents";
const THEIR_TOOL: &str = "noop";

/// How a call goes to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Over {
    Http,
    Stdio,
}

impl Over {
    fn bench(self) -> &'static str {
        match self {
            Over::Http => "mcp call, http",
            Over::Stdio => "mcp call, stdio",
        }
    }
}

/// A server that is measured, over both.
struct Subject {
    http: Server,
    pipe: Pipe,
    /// What else works for a call over standard input.
    behind: Option<u32>,
    tool: &'static str,
}

pub(super) async fn run(args: &McpArgs, dir: &Path) -> Result<Report, BenchError> {
    let plan = args.check()?;
    let machine = Machine::of_this(dir);
    let mut subjects = vec![ours(dir).await?];
    for name in &args.vs {
        subjects.push(beside(&args.servers, name, dir).await?);
    }
    let measured = measure(&subjects, args, plan).await;
    let rss: Vec<f64> = subjects.iter().map(|one| rounded(rss_kb(one.http.pid()) as f64 / 1024.0, 10.0)).collect();
    let names: Vec<String> = subjects.iter().map(|one| one.http.name.clone()).collect();
    for subject in subjects {
        drop(subject.pipe);
        subject.http.stop().await;
    }
    let version = |name: &String| match name.as_str() {
        OURS => (name.clone(), env!("CARGO_PKG_VERSION").to_owned()),
        _ => (name.clone(), args.servers.join(name).display().to_string()),
    };
    let subjects = names.iter().map(version).collect();
    Ok(Report { machine, load_after: load(), subjects, rows: rows(&names, &rss, &measured?) })
}

/// By the way, clients and server.
type Points = BTreeMap<(Over, u32, usize), Measured>;

async fn measure(subjects: &[Subject], args: &McpArgs, plan: Plan) -> Result<Points, BenchError> {
    let mut points = Points::new();
    for _ in 0..plan.rounds {
        for over in [Over::Http, Over::Stdio] {
            for clients in &args.clients {
                for (at, subject) in subjects.iter().enumerate() {
                    let measured = one_point(subject, over, *clients, plan).await?;
                    points.entry((over, *clients, at)).or_insert_with(Measured::new).add(&measured);
                }
            }
        }
    }
    Ok(points)
}

async fn one_point(subject: &Subject, over: Over, clients: u32, plan: Plan) -> Result<Measured, BenchError> {
    let measured = match over {
        Over::Http => {
            let pids = [subject.http.pid()];
            let mut workers = Vec::new();
            for _ in 0..clients {
                let begun = Session::begin(&http_client()?, &subject.http.url, subject.tool).await;
                workers.push(begun.map_err(|reason| waited(&subject.http.name, reason))?);
            }
            drive(workers, plan.seconds, || cpu_of(&pids)).await
        }
        Over::Stdio => {
            let pids: Vec<u32> = subject.pipe.pid.into_iter().chain(subject.behind).collect();
            let caller = || Caller { pipe: subject.pipe.shared.clone(), tool: subject.tool };
            drive((0..clients).map(|_| caller()).collect(), plan.seconds, || cpu_of(&pids)).await
        }
    };
    measured.check(over.bench())?;
    Ok(measured)
}

fn waited(name: &str, reason: String) -> BenchError {
    BenchError::Waited { what: format!("an answer of {name}"), reason }
}

fn rows(names: &[String], rss: &[f64], points: &Points) -> Vec<Row> {
    let row = |over: Over, clients: u32, at: usize, measured: &Measured| Row {
        rss_mb: Some(rss[at]),
        ..Row::of(over.bench(), &names[at], clients, measured)
    };
    let with_ratio = |(&(over, clients, at), measured): (&(Over, u32, usize), &Measured)| {
        let own = row(over, clients, at, measured);
        let ours = points.get(&(over, clients, 0)).filter(|_| at > 0).map(|ours| row(over, clients, 0, ours));
        match ours.map(|ours| ours.compared_with(&own)) {
            Some(Row { ratio, p99_ratio, .. }) => Row { ratio, p99_ratio, ..own },
            None => own,
        }
    };
    points.iter().map(with_ratio).collect()
}

/// One node that keeps nothing, and our bridge before it.
async fn ours(dir: &Path) -> Result<Subject, BenchError> {
    let port = free_port(dir)?;
    let config = dir.join("mcp.yaml");
    let text = format!(
        "node: {{ name: bench, listen: {{ http: \"127.0.0.1:{port}\" }} }}
models:
  default: {{ provider: scripted, rules: \"rules: [ {{ say: done }} ]\" }}
agents:
  - {{ name: noop, description: Does nothing., instruction: Do nothing. }}
"
    );
    fs::write(&config, text).map_err(|source| file("write", &config, source))?;
    let config = config.to_string_lossy().into_owned();
    let program = this_program()?;
    let (http, log) = launch(OURS, &program, &["node", "--ephemeral", "-c", &config], port, dir)?;
    let http = ready(http, &log, OUR_TOOL).await?;
    let (url, pid) = (http.url.clone(), http.pid());
    let pipe = Pipe::start(&program, &["mcp", "serve", "--server", &url], dir, OURS).await;
    match pipe {
        Ok(pipe) => Ok(Subject { http, pipe, behind: Some(pid), tool: OUR_TOOL }),
        Err(error) => {
            http.stop().await;
            Err(error)
        }
    }
}

/// A program of the folder for servers.
async fn beside(servers: &Path, name: &str, dir: &Path) -> Result<Subject, BenchError> {
    let port = free_port(dir)?;
    let program = servers.join(name);
    if !program.is_file() {
        return Err(BenchError::NoServer { name: name.to_owned(), program });
    }
    let (http, log) = launch(name, &program, &[&port.to_string()], port, dir)?;
    let http = ready(http, &log, THEIR_TOOL).await?;
    match Pipe::start(&program, &["stdio"], dir, name).await {
        Ok(pipe) => Ok(Subject { http, pipe, behind: None, tool: THEIR_TOOL }),
        Err(error) => {
            http.stop().await;
            Err(error)
        }
    }
}

/// Waits until a tool answers.
async fn ready(server: Server, log: &Path, tool: &'static str) -> Result<Server, BenchError> {
    let deadline = Instant::now() + READY_WITHIN;
    let http = http_client()?;
    loop {
        let first = match Session::begin(&http, &server.url, tool).await {
            Ok(mut session) => session.once().await,
            Err(reason) => Err(reason),
        };
        let Err(reason) = first else { return Ok(server) };
        if Instant::now() >= deadline {
            let said = fs::read_to_string(log).unwrap_or_default();
            let reason = format!("{reason}; its output: {}", said.lines().last().unwrap_or_default());
            let error = waited(&server.name, reason);
            server.stop().await;
            return Err(error);
        }
        tokio::time::sleep(READY_POLL).await;
    }
}

fn initialize(id: u64) -> Value {
    let params =
        json!({ "capabilities": {}, "clientInfo": { "name": "bench", "version": "1" }, "protocolVersion": REVISION });
    json!({ "jsonrpc": "2.0", "id": id, "method": "initialize", "params": params })
}

fn initialized() -> Value {
    json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })
}

fn call(id: u64, tool: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "arguments": {}, "name": tool } })
}

/// A client over HTTP.
struct Session {
    http: reqwest::Client,
    url: String,
    session: Option<String>,
    next: u64,
    tool: &'static str,
}

impl Session {
    async fn begin(http: &reqwest::Client, url: &str, tool: &'static str) -> Result<Self, String> {
        let mut session = Self { http: http.clone(), url: format!("{url}/mcp"), session: None, next: 1, tool };
        let answer = session.post(&initialize(0)).await?;
        let named = answer.headers().get("mcp-session-id").and_then(|named| named.to_str().ok());
        session.session = named.map(str::to_owned);
        answer.bytes().await.map_err(|error| crate::error::chain(&error))?;
        session.post(&initialized()).await?;
        Ok(session)
    }

    async fn post(&self, message: &Value) -> Result<reqwest::Response, String> {
        let mut request = self.http.post(&self.url).json(message);
        request = request.header("accept", "application/json, text/event-stream");
        if let Some(session) = &self.session {
            request = request.header("mcp-session-id", session).header("mcp-protocol-version", REVISION);
        }
        let answer = request.send().await.map_err(|error| crate::error::chain(&error))?;
        if answer.status().is_success() { Ok(answer) } else { Err(format!("answered {}", answer.status())) }
    }
}

impl Worker for Session {
    async fn once(&mut self) -> Result<(), String> {
        self.next += 1;
        let answer = self.post(&call(self.next, self.tool)).await?;
        let body = answer.text().await.map_err(|error| crate::error::chain(&error))?;
        if body.contains("\"result\"") { Ok(()) } else { Err(format!("answered {}", towline_a2a::shortened(&body))) }
    }
}

/// A server on standard input and output.
struct Pipe {
    pid: Option<u32>,
    shared: Arc<Shared>,
    _child: Child,
    _reading: AbortOnDropHandle<()>,
}

/// What all who call through one pipe have in common.
struct Shared {
    input: tokio::sync::Mutex<ChildStdin>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<String>>>,
    next: AtomicU64,
}

impl Pipe {
    async fn start(program: &Path, args: &[&str], dir: &Path, name: &str) -> Result<Self, BenchError> {
        let log: PathBuf = dir.join(format!("{name}-stdio.log"));
        let err = fs::File::create(&log).map_err(|source| file("open", &log, source))?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(err);
        let mut child = command.kill_on_drop(true).spawn().map_err(|source| file("start", program, source))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(waited(name, "its standard streams are not piped".to_owned()));
        };
        let input = tokio::sync::Mutex::new(input);
        let shared = Arc::new(Shared { input, waiting: Mutex::default(), next: AtomicU64::new(1) });
        let reader = Arc::clone(&shared);
        let reading = tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                reader.take(line);
            }
        });
        let pipe = Self { pid: child.id(), shared, _child: child, _reading: AbortOnDropHandle::new(reading) };
        let begun = tokio::time::timeout(READY_WITHIN, pipe.shared.ask(initialize)).await;
        let begun = begun.map_err(|_| waited(name, format!("no answer to initialize; see {}", log.display())))?;
        begun.map_err(|reason| waited(name, reason))?;
        pipe.shared.say(&initialized()).await.map_err(|reason| waited(name, reason))?;
        Ok(pipe)
    }
}

impl Shared {
    fn take(&self, line: String) {
        let id = serde_json::from_str::<Value>(&line).ok().and_then(|message| message["id"].as_u64());
        let waits = id.and_then(|id| self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id));
        if let Some(waits) = waits {
            // Who asked may have gone.
            let _ = waits.send(line);
        }
    }

    async fn say(&self, message: &Value) -> Result<(), String> {
        let line = format!("{message}\n");
        let mut input = self.input.lock().await;
        input.write_all(line.as_bytes()).await.map_err(|error| error.to_string())?;
        input.flush().await.map_err(|error| error.to_string())
    }

    async fn ask(&self, message: impl FnOnce(u64) -> Value) -> Result<String, String> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, answer);
        self.say(&message(id)).await?;
        answered.await.map_err(|_| "the server has closed its output".to_owned())
    }
}

/// One of those who call through a pipe.
struct Caller {
    pipe: Arc<Shared>,
    tool: &'static str,
}

impl Worker for Caller {
    async fn once(&mut self) -> Result<(), String> {
        let answer = self.pipe.ask(|id| call(id, self.tool)).await?;
        if answer.contains("\"result\"") {
            Ok(())
        } else {
            Err(format!("answered {}", towline_a2a::shortened(&answer)))
        }
    }
}

//! One connection, from the start of its child process or its first request to its end.
//!
//! Over HTTP the eras of the protocol are tried one after the other, each within its own time; the one that worked is tried first
//! the next time:
//!
//! ```text
//! server/discover ──refused, or no answer──▶ initialize ──refused with 400, 404 or 405──▶ HTTP with SSE
//! ```
//! A server that knows both is spoken to without a session: then nothing of it is lost with a connection.
//!
//! A stdio server runs in its own process group with a cleared environment; when the link ends, its input is closed,
//! it has [`EXIT_TIME`] to leave, and what is left of its group is killed.

use futures::FutureExt as _;
use process_wrap::tokio::{ChildWrapper, CommandWrap, KillOnDrop, ProcessGroup};
use rmcp::{
    RoleClient,
    model::ProtocolVersion,
    service::{ClientInitializeError, ClientLifecycleMode, ClientServiceExt, RunningService},
    transport::{IntoTransport, streamable_http_client::StreamableHttpError},
};
use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader},
    process::{ChildStdin, ChildStdout},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use super::{
    ConnectionMsg, Live, catalogue, causes,
    client::Client,
    credentials::{Credentials, McpTls, Sender, UNAUTHORIZED},
    legacy,
    revision::{Capabilities, Revision},
    socket::{self, Dial, Push, Seen},
    spool::Spool,
    subscriptions::{Announces, Keeper},
    tail::{Tail, TailKind},
    text,
    underway::Listened,
    websocket,
};
use crate::config::{McpTransport, Secret};

/// Time for a handshake over HTTP: rmcp sets none, and a server that takes the request and never answers would hold it for ever.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for a child to start and shake hands: one that a package runner fetches first, or an interpreter on a busy machine, takes
/// many seconds until it answers.
const CHILD_START_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest `instructions` of a server that are kept, in characters: they go into prompts.
const MAX_INSTRUCTIONS_CHARS: usize = 4_096;

/// Longest name and version of a server, in characters.
const MAX_SERVER_CHARS: usize = 128;

/// Time for a child to leave after its input was closed.
const EXIT_TIME: Duration = Duration::from_secs(2);

/// Lines of a child's stderr that are kept for the reason of its death.
const STDERR_LINES: usize = 20;

/// Longest line of stderr that is read as one.
const STDERR_LINE_BYTES: u64 = 4_096;

/// How the reason of a link begins that was told to stop.
pub(super) const STOPPED: &str = "stopped";

/// Why a connection is made anew that stands.
pub(super) const RENEWED: &str =
    "made anew: a call that was given up is not answered, and what the server asks might be about it";

/// Environment variables that a child inherits: without them most programs do not start. Everything else is configured.
const INHERITED: [&str; 2] = ["PATH", "HOME"];

/// How a server over HTTP is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Era {
    /// `initialize`, and mostly a session.
    Initialize,
    /// `server/discover`, and no session.
    Discover,
    /// HTTP with SSE.
    Legacy,
    /// `initialize` over a WebSocket.
    WebSocket,
}

impl Era {
    fn of(stored: u8) -> Option<Self> {
        [Era::Initialize, Era::Discover, Era::Legacy].into_iter().find(|era| *era as u8 == stored)
    }
}

/// The era that worked last, kept from one connection to the next; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct KnownEra(Arc<AtomicU8>);

impl Default for KnownEra {
    fn default() -> Self {
        Self(Arc::new(AtomicU8::new(u8::MAX)))
    }
}

/// What a link needs.
pub(super) struct Plan {
    pub client: Client,
    pub stop: CancellationToken,
    pub spool: Spool,
    pub era: KnownEra,
    pub credentials: Credentials,
}

/// Connects, publishes, waits for the end, cleans up. Says [`ConnectionMsg::Lost`] exactly once, as its last word.
pub(super) async fn run(plan: Plan) {
    let (actor, generation) = (plan.client.actor.clone(), plan.client.generation);
    let config = Arc::clone(&plan.client.config);
    let reason = match &config.transport {
        McpTransport::Stdio { command, env, cwd } => {
            run_child(&plan, Program { command, env, cwd: cwd.as_ref() }).await
        }
        McpTransport::Http { endpoint, headers, socket, legacy } => {
            let tls = config.security.tls.as_ref();
            let remote = Remote { endpoint, headers, socket: socket.as_deref(), legacy: *legacy, tls };
            run_http(&plan, &remote).await
        }
    };
    plan.client.watches.down();
    plan.client.underway.close();
    // A stopped actor knows.
    let _ = actor.cast(ConnectionMsg::Lost { generation, reason });
}

async fn run_child(plan: &Plan, program: Program<'_>) -> String {
    let Plan { client, stop, spool, .. } = plan;
    let (mut child, (output, input)) = match Child::start(&client.config.name, &program, &client.tail) {
        Ok(started) => started,
        Err(error) => return format!("start {}: {error}", program.command.first().map_or("nothing", String::as_str)),
    };
    let transport = (spool.lines(output), input);
    let shaking = handshake(client.clone(), transport, ClientLifecycleMode::Initialize, CHILD_START_TIMEOUT);
    let seen = Seen::default();
    seen.set_push(Push::Live);
    let reason = tokio::select! {
        () = stop.cancelled() => STOPPED.to_owned(),
        result = shaking => match result {
            Ok(service) => serve(plan, (service, Era::Initialize), seen).await,
            Err(failure) => failure.reason,
        },
    };
    child.end(reason).await
}

/// A server over HTTP.
struct Remote<'a> {
    endpoint: &'a str,
    headers: &'a [(String, Secret)],
    socket: Option<&'a Path>,
    legacy: bool,
    tls: Option<&'a McpTls>,
}

async fn run_http(plan: &Plan, remote: &Remote<'_>) -> String {
    let seen = Seen::default();
    tokio::select! {
        () = plan.stop.cancelled() => STOPPED.to_owned(),
        result = connect(plan, remote, &seen) => match result {
            Ok((service, era)) => {
                plan.era.0.store(era as u8, Ordering::Relaxed);
                serve(plan, (service, era), seen).await
            }
            Err(failure) => failure.reason,
        },
    }
}

type Connected = (RunningService<RoleClient, Client>, Era);

/// Tries one era after the other, that of the last time first. What `initialize` was answered is what is told.
async fn connect(plan: &Plan, remote: &Remote<'_>, seen: &Seen) -> Result<Connected, Failure> {
    if websocket::is_websocket(remote.endpoint) {
        return shake(plan, remote, seen, Era::WebSocket).await;
    }
    if remote.legacy {
        return shake(plan, remote, seen, Era::Legacy).await;
    }
    let known = Era::of(plan.era.0.load(Ordering::Relaxed));
    let others = [Era::Discover, Era::Initialize].into_iter().filter(|era| Some(*era) != known);
    let (mut said, mut may_be_legacy, mut late) = (None, false, String::new());
    for era in known.into_iter().chain(others) {
        let failure = match shake(plan, remote, seen, era).await {
            Ok(connected) => return Ok(connected),
            Err(failure) => failure,
        };
        match (failure.how, era) {
            (How::Unasked, _) | (How::Silent, Era::Initialize) => return Err(failure.with(&late)),
            // A server of before may leave what it does not know without an answer.
            (How::Silent, _) => late = failure.reason,
            (How::Refused, Era::Initialize) => {
                may_be_legacy = matches!(seen.refused(), 400 | 404 | 405);
                said = Some(failure);
            }
            (How::Refused, _) => {
                tracing::debug!(server = plan.client.config.name, ?era, failure.reason, "not spoken to this way");
            }
        }
    }
    let Some(said) = said else { return Err(Failure::refused(late)) };
    if may_be_legacy && let Ok(connected) = shake(plan, remote, seen, Era::Legacy).await {
        return Ok(connected);
    }
    Err(said.with(&late))
}

async fn shake(plan: &Plan, remote: &Remote<'_>, seen: &Seen, era: Era) -> Result<Connected, Failure> {
    let client = plan.client.clone();
    let dial = Dial {
        socket: remote.socket,
        guard: client.config.egress.as_ref().map(|policy| (policy, remote.endpoint)),
        tls: remote.tls,
        only_http1: era == Era::WebSocket,
    };
    let http = Sender::new(&dial, plan.credentials.clone()).map_err(Failure::refused)?;
    let watch = (client.suspect(), seen.clone());
    seen.set_refused(0);
    let service = match era {
        Era::Legacy => {
            let headers = socket::custom_headers(remote.headers).map_err(Failure::refused)?;
            let connecting = legacy::connect(http, remote.endpoint, headers, &plan.spool);
            let opened = tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting).await;
            let late = || Failure::silent(format!("HTTP with SSE: no endpoint after {HANDSHAKE_TIMEOUT:?}"));
            let transport = opened.map_err(|_| late())?.map_err(Failure::refused)?;
            seen.set_push(Push::Live);
            handshake(client, transport, ClientLifecycleMode::Initialize, HANDSHAKE_TIMEOUT).await
        }
        Era::WebSocket => {
            let headers = socket::custom_headers(remote.headers).map_err(Failure::refused)?;
            let opening = websocket::connect(&http, remote.endpoint, headers);
            let opened = tokio::time::timeout(HANDSHAKE_TIMEOUT, opening).await;
            let late = || Failure::silent(format!("WebSocket: not open after {HANDSHAKE_TIMEOUT:?}"));
            let transport = opened.map_err(|_| late())?.map_err(Failure::refused)?;
            seen.set_push(Push::Live);
            handshake(client, transport, ClientLifecycleMode::Initialize, HANDSHAKE_TIMEOUT).await
        }
        Era::Initialize | Era::Discover => {
            let transport = socket::transport(http, remote.endpoint, remote.headers, watch, plan.spool.clone());
            let lifecycle = match era {
                Era::Discover => ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] },
                Era::Initialize | Era::Legacy | Era::WebSocket => ClientLifecycleMode::Initialize,
            };
            let shaken = handshake(client, transport.map_err(Failure::refused)?, lifecycle, HANDSHAKE_TIMEOUT);
            shaken.await.map_err(|failure| {
                let is_closed = matches!(seen.refused(), 401 | 403 | 429);
                if is_closed { Failure { how: How::Unasked, ..failure } } else { failure }
            })
        }
    };
    service.map(|service| (service, era))
}

/// A handshake that failed.
struct Failure {
    reason: String,
    how: How,
}

/// How it failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// The server answered, and does not take this handshake.
    Refused,
    /// It said nothing in time.
    Silent,
    /// It could not be asked, or does not take who asks: another handshake changes nothing.
    Unasked,
}

impl Failure {
    fn refused(reason: String) -> Self {
        Self { reason, how: How::Refused }
    }

    fn silent(reason: String) -> Self {
        Self { reason, how: How::Silent }
    }

    /// The same, with what came of a handshake before.
    fn with(self, late: &str) -> Self {
        let reason = if late.is_empty() { self.reason } else { format!("{}; before that {late}", self.reason) };
        Self { reason, ..self }
    }
}

async fn handshake<T, E, A>(
    client: Client,
    transport: T,
    lifecycle: ClientLifecycleMode,
    within: Duration,
) -> Result<RunningService<RoleClient, Client>, Failure>
where
    T: IntoTransport<RoleClient, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    let transport = Listened { transport: transport.into_transport(), underway: client.underway.clone() };
    let shaking = client.serve_with_lifecycle(transport, lifecycle).boxed();
    match tokio::time::timeout(within, shaking).await {
        Ok(Ok(service)) => Ok(service),
        Ok(Err(error)) => {
            let reason =
                text::plain_line(&format!("handshake: {}", causes::of_handshake(&error)), MAX_INSTRUCTIONS_CHARS);
            Err(Failure { reason, how: if is_unasked(&error) { How::Unasked } else { How::Refused } })
        }
        Err(_) => Err(Failure::silent(format!("handshake: no answer after {within:?}"))),
    }
}

/// Whether the network failed, or who asks is not let in.
fn is_unasked(error: &ClientInitializeError) -> bool {
    let ClientInitializeError::TransportError { error, .. } = error else { return false };
    match error.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        Some(StreamableHttpError::Client(_)) => true,
        Some(StreamableHttpError::UnexpectedServerResponse(why)) => why.starts_with(UNAUTHORIZED),
        Some(_) | None => false,
    }
}

/// Looks at what was agreed on, lists what there is, publishes the connection, and waits until it ends.
async fn serve(plan: &Plan, (service, era): Connected, seen: Seen) -> String {
    let Plan { client, stop, .. } = plan;
    let ending = service.cancellation_token();
    let mut keeper = None;
    let mut failed = match live(client, &service, era, seen) {
        Err(reason) => Some(reason),
        Ok(live) => {
            let listed = tokio::select! {
                () = stop.cancelled() => None,
                listed = catalogue::list(&live.peer, live.capabilities, &client.config) => Some(listed),
            };
            match listed {
                Some(Ok(listing)) => {
                    keeper = Some(keeper_of(client, &live, era));
                    renews(client, &live, era);
                    // A stopped actor needs no connection, and stops this task.
                    let _ = client.actor.cast(ConnectionMsg::Connected { live: Box::new(live), listing });
                    None
                }
                Some(Err(error)) => Some(error.message),
                None => Some(STOPPED.to_owned()),
            }
        }
    };
    let mut waiting = std::pin::pin!(service.waiting());
    if let Some(keeper) = keeper {
        tokio::select! {
            quit = &mut waiting => return causes::of_end(&quit),
            () = stop.cancelled() => {}
            reason = keeper.keep() => failed = Some(reason),
            () = client.underway.overdue() => failed = Some(RENEWED.to_owned()),
        }
    }
    ending.cancel();
    let _ = tokio::time::timeout(EXIT_TIME, waiting).await;
    failed.unwrap_or_else(|| STOPPED.to_owned())
}

/// What the handshake came to: it holds for as long as the connection.
fn live(client: &Client, service: &RunningService<RoleClient, Client>, era: Era, seen: Seen) -> Result<Live, String> {
    let Some(info) = service.peer_info() else { return Err("handshake: the server said nothing of itself".to_owned()) };
    let version = text::plain_line(&info.protocol_version.to_string(), MAX_SERVER_CHARS);
    let revision = Revision::negotiated(&version, era != Era::Discover)?;
    if revision.is_stateless() {
        seen.set_push(Push::None);
    }
    let said = info.instructions.as_deref().unwrap_or_default().trim();
    let named = info.server_info.as_ref().map(|server| format!("{} {}", server.name, server.version));
    Ok(Live {
        generation: client.generation,
        peer: service.peer().clone(),
        protocol_version: version,
        is_stateless: revision.is_stateless(),
        capabilities: Capabilities::of(&info.capabilities),
        instructions: (!said.is_empty()).then(|| text::plain(said, MAX_INSTRUCTIONS_CHARS)),
        server: named.map(|named| text::plain_line(&named, MAX_SERVER_CHARS)),
        underway: client.underway.clone(),
        seen,
    })
}

/// Where all calls share one stream, and the server may ask something, a call that was given up must not be at work for ever.
fn renews(client: &Client, live: &Live, era: Era) {
    let is_one_stream = match (&client.config.transport, era) {
        (McpTransport::Stdio { .. }, _) | (_, Era::Legacy | Era::WebSocket) => true,
        (McpTransport::Http { .. }, Era::Initialize | Era::Discover) => false,
    };
    let may_ask = client.config.asks.is_some() || client.may_ask(&live.protocol_version);
    if is_one_stream && may_ask && client.config.reconnect {
        client.underway.renews();
    }
}

fn keeper_of(client: &Client, live: &Live, era: Era) -> Keeper {
    Keeper {
        peer: live.peer.clone(),
        watches: client.watches.clone(),
        seen: live.seen.clone(),
        client: client.clone(),
        announces: Announces::of(live.capabilities),
        can_subscribe: live.capabilities.resource_subscriptions,
        is_stateless: era == Era::Discover,
    }
}

/// What a stdio server is started with.
struct Program<'a> {
    command: &'a [String],
    env: &'a BTreeMap<String, String>,
    cwd: Option<&'a PathBuf>,
}

/// A stdio server.
struct Child {
    process: Box<dyn ChildWrapper>,
    stderr: Arc<Mutex<VecDeque<String>>>,
    drain: JoinHandle<()>,
}

impl Child {
    fn start(server: &str, program: &Program<'_>, tail: &Tail) -> std::io::Result<(Self, (ChildStdout, ChildStdin))> {
        let Program { command, env, cwd } = *program;
        let (program, arguments) =
            command.split_first().ok_or_else(|| std::io::Error::other("the command is empty"))?;
        let inherited = INHERITED.iter().filter_map(|name| std::env::var_os(name).map(|value| (*name, value)));
        let mut wrap = CommandWrap::with_new(program, |child| {
            child.args(arguments).env_clear().envs(inherited).envs(env);
            child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            if let Some(cwd) = cwd {
                child.current_dir(cwd);
            }
        });
        let mut process = wrap.wrap(KillOnDrop).wrap(ProcessGroup::leader()).spawn()?;
        let piped = (process.stdout().take(), process.stdin().take(), process.stderr().take());
        let (Some(stdout), Some(stdin), Some(stderr)) = piped else {
            return Err(std::io::Error::other("its standard streams are not piped"));
        };
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let drain = tokio::spawn(drain(stderr, server.to_owned(), (lines.clone(), tail.clone())));
        Ok((Self { process, stderr: lines, drain }, (stdout, stdin)))
    }

    /// Waits for the child to leave, kills what is left of its group, and says why it ended.
    async fn end(&mut self, reason: String) -> String {
        let left = tokio::time::timeout(EXIT_TIME, self.process.inner_mut().wait()).await;
        // Grandchildren may live on; an empty group is no error worth a word.
        let _ = self.process.start_kill();
        let _ = tokio::time::timeout(EXIT_TIME, self.process.inner_mut().wait()).await;
        let _ = tokio::time::timeout(EXIT_TIME, &mut self.drain).await;
        let exit = match left {
            Ok(Ok(status)) => format!("; {status}"),
            Ok(Err(_)) | Err(_) => String::new(),
        };
        let last_line = self.stderr.lock().unwrap_or_else(PoisonError::into_inner).back().cloned();
        let said = last_line.map(|line| format!("; its last words: {line}")).unwrap_or_default();
        format!("{reason}{exit}{said}")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.drain.abort();
        // The whole group, also when this task is aborted.
        let _ = self.process.start_kill();
    }
}

/// Reads a child's stderr to its end, so that the child never blocks on it.
async fn drain(stderr: impl AsyncRead + Unpin, server: String, (lines, tail): (Arc<Mutex<VecDeque<String>>>, Tail)) {
    let mut reader = BufReader::new(stderr);
    let mut bytes = Vec::new();
    while let Ok(1..) = (&mut reader).take(STDERR_LINE_BYTES).read_until(b'\n', &mut bytes).await {
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        bytes.clear();
        if line.is_empty() {
            continue;
        }
        tracing::debug!(server, line, "MCP server wrote to stderr");
        tail.say(TailKind::Stderr, &line);
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == STDERR_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

//! One connection, from the start of its child process or its first request to its end.
//!
//! A stdio server runs in its own process group with a cleared environment; when the link ends, its input is closed,
//! it has [`EXIT_TIME`] to leave, and what is left of its group is killed.

use process_wrap::tokio::{ChildWrapper, CommandWrap, KillOnDrop, ProcessGroup};
use ractor::ActorRef;
use rmcp::{
    RoleClient,
    model::ProtocolVersion,
    service::{ClientInitializeError, ClientLifecycleMode, ClientServiceExt, QuitReason, RunningService},
    transport::IntoTransport,
};
use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader},
    process::{ChildStdin, ChildStdout},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use super::{ConnectionMsg, Live, catalogue, client::Client, socket, spool::Spool};
use crate::config::{McpServerConfig, McpTransport, Secret};

/// Time for a handshake: rmcp sets none, and a server that floods its stderr or never answers would hold it for ever.
/// A child that a package runner fetches first, or an interpreter on a busy machine, takes many seconds until it answers.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for a child to leave after its input was closed.
const EXIT_TIME: Duration = Duration::from_secs(2);

/// Lines of a child's stderr that are kept for the reason of its death.
const STDERR_LINES: usize = 20;

/// Longest line of stderr that is read as one.
const STDERR_LINE_BYTES: u64 = 4_096;

/// How the reason of a link begins that was told to stop.
pub(super) const STOPPED: &str = "stopped";

/// Environment variables that a child inherits: without them most programs do not start. Everything else is configured.
const INHERITED: [&str; 2] = ["PATH", "HOME"];

/// Connects, publishes, waits for the end, cleans up. Says [`ConnectionMsg::Lost`] exactly once, as its last word.
pub(super) async fn run(
    config: Arc<McpServerConfig>,
    generation: u64,
    actor: ActorRef<ConnectionMsg>,
    stop: CancellationToken,
    spool: Spool,
) {
    let client = Client { actor: actor.clone(), generation };
    let reason = match &config.transport {
        McpTransport::Stdio { command, env, cwd } => {
            run_child(&config, client, &stop, spool, Program { command, env, cwd: cwd.as_ref() }).await
        }
        McpTransport::Http { endpoint, headers } => run_http(&config, client, &stop, spool, (endpoint, headers)).await,
    };
    // A stopped actor knows.
    let _ = actor.cast(ConnectionMsg::Lost { generation, reason });
}

async fn run_child(
    config: &McpServerConfig,
    client: Client,
    stop: &CancellationToken,
    spool: Spool,
    program: Program<'_>,
) -> String {
    let (mut child, (output, input)) = match Child::start(&config.name, &program) {
        Ok(started) => started,
        Err(error) => return format!("start {}: {error}", program.command.first().map_or("nothing", String::as_str)),
    };
    let transport = (spool.lines(output), input);
    let reason = tokio::select! {
        () = stop.cancelled() => STOPPED.to_owned(),
        result = handshake(client.clone(), transport, ClientLifecycleMode::Initialize) => match result {
            Ok(service) => serve(config, client, stop, service).await,
            Err(failure) => failure.reason,
        },
    };
    child.end(reason).await
}

async fn run_http(
    config: &McpServerConfig,
    client: Client,
    stop: &CancellationToken,
    spool: Spool,
    (endpoint, headers): (&str, &[(String, Secret)]),
) -> String {
    let connect = async {
        // Most servers know `initialize`. One that refuses it may know only its successor.
        let first =
            socket::transport(endpoint, headers, client.suspect(), spool.clone()).map_err(Failure::permanent)?;
        let refused = match handshake(client.clone(), first, ClientLifecycleMode::Initialize).await {
            Ok(service) => return Ok(service),
            Err(failure) if failure.refused => failure,
            Err(failure) => return Err(failure),
        };
        let second =
            socket::transport(endpoint, headers, client.suspect(), spool.clone()).map_err(Failure::permanent)?;
        let discover = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] };
        handshake(client.clone(), second, discover).await.map_err(|_| refused)
    };
    tokio::select! {
        () = stop.cancelled() => STOPPED.to_owned(),
        result = connect => match result {
            Ok(service) => serve(config, client, stop, service).await,
            Err(failure) => failure.reason,
        },
    }
}

/// A handshake that failed.
struct Failure {
    reason: String,
    /// Whether the server answered, and said no.
    refused: bool,
}

impl Failure {
    fn permanent(reason: String) -> Self {
        Self { reason, refused: false }
    }
}

async fn handshake<T, E, A>(
    client: Client,
    transport: T,
    lifecycle: ClientLifecycleMode,
) -> Result<RunningService<RoleClient, Client>, Failure>
where
    T: IntoTransport<RoleClient, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, client.serve_with_lifecycle(transport, lifecycle)).await {
        Ok(Ok(service)) => Ok(service),
        Ok(Err(error)) => {
            let refused = matches!(
                error,
                ClientInitializeError::JsonRpcError(_) | ClientInitializeError::NoCompatibleProtocolVersion { .. }
            );
            Err(Failure { reason: format!("handshake: {error}"), refused })
        }
        Err(_) => Err(Failure::permanent(format!("handshake: no answer after {HANDSHAKE_TIMEOUT:?}"))),
    }
}

/// Lists the tools, publishes the connection, and waits until it ends.
async fn serve(
    config: &McpServerConfig,
    client: Client,
    stop: &CancellationToken,
    service: RunningService<RoleClient, Client>,
) -> String {
    let info = service.peer_info();
    let live = Live {
        generation: client.generation,
        peer: service.peer().clone(),
        protocol_version: info.as_ref().map_or_else(String::new, |info| info.protocol_version.to_string()),
        server: info
            .and_then(|info| info.server_info.as_ref().map(|server| format!("{} {}", server.name, server.version))),
    };
    let ending = service.cancellation_token();
    let listed = tokio::select! {
        () = stop.cancelled() => None,
        listed = catalogue::list(&live.peer, config) => Some(listed),
    };
    let failed = match listed {
        Some(Ok(tools)) => {
            // A stopped actor needs no connection, and stops this task.
            let _ = client.actor.cast(ConnectionMsg::Connected { live, tools });
            None
        }
        Some(Err(error)) => Some(error.message),
        None => Some(STOPPED.to_owned()),
    };
    let mut waiting = std::pin::pin!(service.waiting());
    if failed.is_none() {
        tokio::select! {
            quit = &mut waiting => return quit_reason(quit),
            () = stop.cancelled() => {}
        }
    }
    ending.cancel();
    let _ = tokio::time::timeout(EXIT_TIME, waiting).await;
    failed.unwrap_or_else(|| STOPPED.to_owned())
}

fn quit_reason(quit: Result<QuitReason, tokio::task::JoinError>) -> String {
    match quit {
        Ok(QuitReason::Closed) => "the server closed the connection".into(),
        Ok(other) => format!("the connection ended: {other:?}"),
        Err(error) => format!("the connection broke: {error}"),
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
    fn start(server: &str, program: &Program<'_>) -> std::io::Result<(Self, (ChildStdout, ChildStdin))> {
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
        let drain = tokio::spawn(drain(stderr, server.to_owned(), lines.clone()));
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
async fn drain(stderr: impl AsyncRead + Unpin, server: String, lines: Arc<Mutex<VecDeque<String>>>) {
    let mut reader = BufReader::new(stderr);
    let mut bytes = Vec::new();
    while let Ok(1..) = (&mut reader).take(STDERR_LINE_BYTES).read_until(b'\n', &mut bytes).await {
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        bytes.clear();
        if line.is_empty() {
            continue;
        }
        tracing::debug!(server, line, "MCP server wrote to stderr");
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == STDERR_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

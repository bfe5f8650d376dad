//! Standard input and output, or Streamable HTTP on loopback.

use axum::serve::ListenerExt;
use rmcp::{
    ServiceExt,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use rustix::fs::{FileType, fstat};
use std::{io, net::SocketAddr, os::fd::OwnedFd, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixStream, unix::pipe},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    FileServer, McpFilesError,
    attach::{self, Attachments},
};

/// Bytes of answers on their way to where they are written.
const ANSWER_BUFFER: usize = 64 * 1024;

/// How long the last answers may take: a client that reads nothing is not waited for.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// Path of the MCP endpoint.
const ENDPOINT: &str = "/mcp";

pub(crate) type Input = Box<dyn AsyncRead + Send + Unpin>;
pub(crate) type Output = Box<dyn AsyncWrite + Send + Unpin>;

pub(super) async fn serve_stdio(server: FileServer) -> Result<(), McpFilesError> {
    let (input, output) = (input().map_err(McpFilesError::Stdio)?, output().map_err(McpFilesError::Stdio)?);
    serve_streams(server, input, output).await
}

/// Serves a client that is alone with this process, until it is gone.
pub(super) async fn serve_streams(
    server: FileServer,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
) -> Result<(), McpFilesError> {
    let attachments = Attachments::default();
    let (answers, written) = tokio::io::duplex(ANSWER_BUFFER);
    let writing = tokio::spawn(attach::write_answers(written, output, attachments.clone()));
    let mut writing = AbortOnDropHandle::new(writing);
    let service = match server.with_attachments(attachments).serve((input, answers)).await {
        Ok(service) => service,
        // A client that leaves before the handshake wants nothing more.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(McpFilesError::Serve(error.to_string())),
    };
    service.waiting().await.map_err(|error| McpFilesError::Serve(error.to_string()))?;
    // What was answered is written before this process ends; a client that has gone reads nothing.
    if let Ok(Ok(Err(error))) = tokio::time::timeout(LAST_WRITE, &mut writing).await {
        tracing::debug!(%error, "the last answers were not written");
    }
    Ok(())
}

/// Standard input without a hop to a blocking thread for each read: a pipe or a socket, depending on who started this
/// process. A terminal or a file has no such way.
pub(crate) fn input() -> io::Result<Input> {
    let fd = rustix::io::dup(io::stdin())?;
    let kind = file_type(&fd)?;
    Ok(if kind.is_fifo() {
        Box::new(pipe::Receiver::from_owned_fd(fd)?)
    } else if kind.is_socket() {
        Box::new(unix_stream(fd)?)
    } else {
        Box::new(tokio::io::stdin())
    })
}

/// Standard output in the same way.
pub(crate) fn output() -> io::Result<Output> {
    let fd = rustix::io::dup(io::stdout())?;
    let kind = file_type(&fd)?;
    Ok(if kind.is_fifo() {
        Box::new(pipe::Sender::from_owned_fd(fd)?)
    } else if kind.is_socket() {
        Box::new(unix_stream(fd)?)
    } else {
        Box::new(tokio::io::stdout())
    })
}

fn file_type(fd: &OwnedFd) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(fstat(fd)?.st_mode))
}

fn unix_stream(fd: OwnedFd) -> io::Result<UnixStream> {
    let stream = std::os::unix::net::UnixStream::from(fd);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

pub(super) async fn serve_http(server: FileServer, address: SocketAddr) -> Result<(), McpFilesError> {
    if !address.ip().is_loopback() {
        return Err(McpFilesError::NotLoopback(address));
    }
    let listener = TcpListener::bind(address).await.map_err(|source| McpFilesError::Listen { address, source })?;
    let address = listener.local_addr().map_err(|source| McpFilesError::Listen { address, source })?;
    tracing::info!(url = format!("http://{address}{ENDPOINT}"), "file server listens");
    let stop = CancellationToken::new();
    let serving = serve_listener(server, listener, stop.clone());
    tokio::select! {
        served = serving => served.map_err(|source| McpFilesError::Listen { address, source }),
        _ = tokio::signal::ctrl_c() => {
            stop.cancel();
            Ok(())
        }
    }
}

/// Serves at a listener until `stop`.
pub(super) async fn serve_listener(
    server: FileServer,
    listener: TcpListener,
    stop: CancellationToken,
) -> io::Result<()> {
    let port = listener.local_addr()?.port();
    let hosts = ["127.0.0.1", "localhost", "[::1]"].map(|host| format!("{host}:{port}"));
    // No browser page has business here: any Origin is refused.
    let config = StreamableHttpServerConfig::default()
        .with_allowed_hosts(hosts)
        .enforce_origin_validation()
        .with_cancellation_token(stop.clone());
    let sessions = Arc::new(LocalSessionManager::default());
    let service = StreamableHttpService::new(move || Ok(server.clone()), sessions, config);
    let router = axum::Router::new().nest_service(ENDPOINT, service);
    // An answer is two small writes; without this the second waits for the client's delayed acknowledgement.
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection stays with Nagle's algorithm");
        }
    });
    axum::serve(listener, router).with_graceful_shutdown(async move { stop.cancelled().await }).await
}

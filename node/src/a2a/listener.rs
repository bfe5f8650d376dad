//! The accept loop of both doors: bounds connections, their handshakes and the heads of their requests, and drains them
//! when the node stops.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::Body};
use http::{Extensions, HeaderValue, Request, header};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{
        conn::auto,
        graceful::{GracefulShutdown, Watcher},
    },
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::polite;
use crate::descriptors;

/// Most connections of one door at the same time; more wait in the kernel's queue. A stream holds one, and a few
/// thousand of them are what one node is meant to serve; idle ones, which cost some kilobytes, may be more.
const MAX_CONNECTIONS: usize = 12_288;

/// How long a client may take for the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes in the head of a request.
const MAX_HEADER_BYTES: usize = 32 * 1024;

/// Most requests at the same time on one HTTP/2 connection: a node's delegations and their streams share a few.
const MAX_STREAMS: u32 = 1_024;

/// How often an idle HTTP/2 connection is probed, so that one to a dead host ends.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// How long a stopping node waits for answers to clients that are under way.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// What a client of HTTP/2 begins with.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Pause before the next look at a beginning that may be either HTTP: it is rarely seen in pieces.
const PEEK_PAUSE: Duration = Duration::from_millis(10);

/// How long the loop rests when the system has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where a connection comes from: an extension of each of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddress(pub SocketAddr);

/// Until when a connection may be used: an extension that a handshake may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoodUntil(pub Instant);

/// What turns an accepted socket into one that HTTP is spoken on.
pub trait Handshake: Clone + Send + Sync + 'static {
    /// What HTTP is spoken on.
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Whether HTTP/2 is spoken, beside HTTP/1.1.
    const HTTP2: bool;

    /// How long a stopping node waits for answers that are under way.
    const DRAIN: Duration = DRAIN_TIMEOUT;

    /// Shakes hands. What it found out about the other side is put on each request of the connection.
    fn handshake(&self, tcp: TcpStream) -> impl Future<Output = io::Result<(Self::Io, Extensions)>> + Send;
}

/// No handshake: plain HTTP/1.1, and HTTP/2 for whoever begins with it, as gRPC does.
#[derive(Debug, Clone, Copy)]
pub struct Plain;

impl Handshake for Plain {
    type Io = TcpStream;

    const HTTP2: bool = true;

    /// Nothing is set up for a client that says nothing: which HTTP it speaks is seen within the time of a handshake.
    async fn handshake(&self, tcp: TcpStream) -> io::Result<(TcpStream, Extensions)> {
        let mut seen = [0; HTTP2_PREFACE.len()];
        loop {
            let read = tcp.peek(&mut seen).await?;
            let is_undecided = read > 0 && read < seen.len() && HTTP2_PREFACE.starts_with(&seen[..read]);
            if !is_undecided {
                return Ok((tcp, Extensions::new()));
            }
            tokio::time::sleep(PEEK_PAUSE).await;
        }
    }
}

/// Serves `router` on `tcp` until `stop`, then lets what is under way finish, within a limit.
pub async fn serve<H: Handshake>(tcp: TcpListener, handshake: H, router: Router, stop: CancellationToken) {
    let room = Arc::new(Semaphore::new(descriptors::connections(MAX_CONNECTIONS)));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    while let Some((socket, address)) = next(&tcp, &room, &mut connections, &stop).await {
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
        let connection = serve_connection(handshake.clone(), router.clone(), graceful.watcher(), socket, address);
        connections.spawn(async move {
            connection.await;
            drop(permit);
        });
    }
    drop(tcp);
    if tokio::time::timeout(H::DRAIN, graceful.shutdown()).await.is_err() {
        tracing::debug!(connections = connections.len(), "connections that did not end in time are cut");
    }
    connections.shutdown().await;
}

/// The next connection; none once the door closes. Accepts only while there is room.
async fn next(
    tcp: &TcpListener,
    room: &Semaphore,
    connections: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> Option<(TcpStream, SocketAddr)> {
    loop {
        let accepted = async {
            drop(room.acquire().await);
            tcp.accept().await
        };
        tokio::select! {
            () = stop.cancelled() => return None,
            Some(_) = connections.join_next() => {}
            connection = accepted => match connection {
                Ok(connection) => return Some(connection),
                Err(error) => {
                    tracing::warn!(%error, "accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

async fn serve_connection<H: Handshake>(
    handshake: H,
    router: Router,
    watcher: Watcher,
    socket: TcpStream,
    address: SocketAddr,
) {
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%address, %error, "set TCP_NODELAY");
    }
    let (io, mut extensions) = match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake.handshake(socket)).await {
        Ok(Ok(shaken)) => shaken,
        Ok(Err(error)) => return tracing::debug!(%address, %error, "shake hands"),
        Err(_) => return tracing::debug!(%address, "handshake takes too long"),
    };
    extensions.insert(PeerAddress(address));
    let over = sleep_until(extensions.get::<GoodUntil>().map(|until| until.0));
    let service = service_fn(move |request: Request<Incoming>| {
        let (mut request, rest) = polite::lend(request);
        request.extensions_mut().extend(extensions.clone());
        name_host(&mut request);
        let answer = router.clone().call(request);
        async move { answer.await.map(|response| polite::behind(response, rest)) }
    });
    let builder = builder::<H>();
    tokio::select! {
        served = watcher.watch(builder.serve_connection(TokioIo::new(io), service)) => {
            if let Err(error) = served {
                tracing::debug!(%address, %error, "serve a connection");
            }
        }
        () = over => tracing::debug!(%address, "a connection ends with what it was opened with"),
    }
}

/// HTTP/2 names the host in `:authority`; everything behind this reads `Host`. An authority counts more than the header
/// (RFC 9112, 3.2.2).
fn name_host(request: &mut Request<Body>) {
    let authority = request.uri().authority().map(|authority| HeaderValue::from_str(authority.as_str()));
    if let Some(Ok(authority)) = authority {
        request.headers_mut().insert(header::HOST, authority);
    }
}

async fn sleep_until(end: Option<Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

pub(super) fn builder<H: Handshake>() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(MAX_HEADER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES as u32)
        .keep_alive_interval(PROBE_INTERVAL)
        .keep_alive_timeout(PROBE_INTERVAL);
    if H::HTTP2 { builder } else { builder.http1_only() }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Opens connections that are good for a moment.
    #[derive(Clone)]
    struct Brief;

    impl Handshake for Brief {
        type Io = TcpStream;

        const HTTP2: bool = false;

        async fn handshake(&self, tcp: TcpStream) -> io::Result<(TcpStream, Extensions)> {
            let mut extensions = Extensions::new();
            extensions.insert(GoodUntil(Instant::now() + Duration::from_millis(100)));
            Ok((tcp, extensions))
        }
    }

    #[tokio::test]
    async fn a_connection_ends_with_what_it_was_opened_with_whatever_is_under_way() {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let never = axum::routing::get(|| async { std::future::pending::<()>().await });
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(tcp, Brief, Router::new().route("/", never), stop.clone()));
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let read = tokio::time::timeout(Duration::from_secs(30), client.read(&mut [0; 16])).await;
        assert!(matches!(read, Ok(Ok(0) | Err(_))), "{read:?}");
        stop.cancel();
        serving.await.unwrap();
    }
}

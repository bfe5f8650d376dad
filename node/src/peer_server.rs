//! The peer listener: mutual TLS, and the node behind the certificate on every request.

use std::{
    io,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::Extensions;
use rustls::ServerConfig;
use tokio::{net::TcpStream, time::Instant};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use towline_cluster::{CertifiedNode, Coalesced, PeerIdentity, membership};

use crate::a2a::listener::{GoodUntil, Handshake};

/// Timers do not reach further; certificates of earlier versions have no end.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long a stopping node waits for answers to other nodes. What is a task's has been told by then; the streams of the log and
/// of content have no end of their own.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Accepts nodes of the cluster, and nodes without a certificate that want to enrol: which service takes which is the
/// services' decision, by the [`PeerIdentity`] of the request.
#[derive(Clone)]
pub struct PeerTls(TlsAcceptor);

impl PeerTls {
    /// TLS as the cluster configured it.
    pub fn new(config: Arc<ServerConfig>) -> Self {
        Self(TlsAcceptor::from(config))
    }
}

impl Handshake for PeerTls {
    type Io = Coalesced<TlsStream<TcpStream>>;

    const HTTP2: bool = true;
    const DRAIN: Duration = DRAIN_TIMEOUT;

    async fn handshake(&self, tcp: TcpStream) -> io::Result<(Self::Io, Extensions)> {
        let tls = self.0.accept(tcp).await?;
        let (_, session) = tls.get_ref();
        // rustls has verified the chain; what is read here is only what the certificate says.
        let certificate = session.peer_certificates().and_then(|chain| chain.first());
        let certified = certificate.and_then(membership::certified_node);
        let mut extensions = Extensions::new();
        if let Some(certified) = &certified {
            extensions.insert(GoodUntil(Instant::now() + left(certified)));
        }
        extensions.insert(PeerIdentity(certified));
        Ok((Coalesced::new(tls), extensions))
    }
}

/// A connection lasts no longer than the certificate that opened it: the node opens another with its renewed one.
fn left(certified: &CertifiedNode) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_millis(certified.ends.0).saturating_sub(now).min(FAR)
}

//! The peer listener: mutual TLS, and the node behind the certificate on every request.

use std::{io, sync::Arc};

use http::Extensions;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use towline_cluster::{PeerIdentity, membership};

use crate::a2a::listener::Handshake;

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
    type Io = TlsStream<TcpStream>;

    const HTTP2: bool = true;

    async fn handshake(&self, tcp: TcpStream) -> io::Result<(Self::Io, Extensions)> {
        let tls = self.0.accept(tcp).await?;
        let (_, session) = tls.get_ref();
        // rustls has verified the chain; what is read here is only the name in it.
        let certificate = session.peer_certificates().and_then(|chain| chain.first());
        let mut extensions = Extensions::new();
        extensions.insert(PeerIdentity(certificate.and_then(membership::peer_node_id)));
        Ok((tls, extensions))
    }
}

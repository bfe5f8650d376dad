//! TLS on the public listener: what its handshake finds out about a client goes with each of its requests.

use std::{io, sync::Arc};

use http::Extensions;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::WebPkiClientVerifier,
};
use tokio::{net::TcpStream, time::Instant};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{
    certificate::{self, ClientCertificate},
    jwt,
};
use crate::a2a::listener::{GoodUntil, Handshake};

/// Timers do not reach further.
const FAR: std::time::Duration = std::time::Duration::from_secs(365 * 24 * 3600);

/// The certificate of the listener, and who signs those of clients.
#[derive(Debug)]
pub struct TlsSettings {
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    /// The authorities of client certificates; without one no client is asked for a certificate.
    pub(crate) client_ca: Vec<CertificateDer<'static>>,
}

impl Clone for TlsSettings {
    fn clone(&self) -> Self {
        Self { certificates: self.certificates.clone(), key: self.key.clone_key(), client_ca: self.client_ca.clone() }
    }
}

/// Accepts clients over TLS. A certificate is asked for and not insisted on: who shows none may show something else.
#[derive(Clone)]
pub struct PublicTls(TlsAcceptor);

impl PublicTls {
    /// TLS as it is configured.
    ///
    /// # Errors
    /// When the certificate, its key and the authorities do not go together.
    pub fn new(settings: TlsSettings) -> Result<Self, rustls::Error> {
        let TlsSettings { certificates, key, client_ca } = settings;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
        let builder = if client_ca.is_empty() {
            builder.with_no_client_auth()
        } else {
            let mut roots = RootCertStore::empty();
            client_ca.into_iter().try_for_each(|authority| roots.add(authority))?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|error| rustls::Error::General(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        };
        let mut config = builder.with_single_cert(certificates, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }
}

impl Handshake for PublicTls {
    type Io = TlsStream<TcpStream>;

    const HTTP2: bool = true;

    async fn handshake(&self, tcp: TcpStream) -> io::Result<(Self::Io, Extensions)> {
        let tls = self.0.accept(tcp).await?;
        let (_, session) = tls.get_ref();
        let mut extensions = Extensions::new();
        // rustls has verified the chain; what is read here is only what the certificate says.
        if let Some(der) = session.peer_certificates().and_then(|chain| chain.first()) {
            let facts = certificate::facts(der).ok_or_else(|| io::Error::other("read the client certificate"))?;
            // A connection lasts no longer than the certificate that speaks for it.
            let left = facts.ends.saturating_sub(jwt::now()).min(FAR);
            extensions.insert(GoodUntil(Instant::now() + left));
            extensions.insert(ClientCertificate(Arc::new(facts)));
        }
        Ok((tls, extensions))
    }
}

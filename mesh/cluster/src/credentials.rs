//! What this node shows on its connections, and what it wants to see on them.
//!
//! The certificate can be replaced while the node runs: a handshake takes the one that is current. Sessions are not
//! resumed, since a resumed one would not verify the certificate again.

use std::sync::{Arc, PoisonError, RwLock};

use rcgen::KeyPair;
use rustls::{
    CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    sign::CertifiedKey,
    version::TLS13,
};
use towline_core::Timestamp;

use crate::{
    ClusterError,
    certificates::{self, Authority, CertificateDer, CertificateRequest, CertifiedNode, Life, Validity, failed},
    leader::wall_clock,
    roster::{NotAdmitted, Roster},
};

/// What a connection may speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alpn {
    /// gRPC.
    Http2,
    /// A2A and the operator API beside it.
    Http2AndHttp1,
}

impl Alpn {
    fn protocols(self) -> Vec<Vec<u8>> {
        match self {
            Alpn::Http2 => vec![b"h2".to_vec()],
            Alpn::Http2AndHttp1 => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        }
    }
}

/// A node's certificate and key, the authority that both sides trust, and who is known by what key.
pub(crate) struct Credentials {
    authority: CertificateDer<'static>,
    key: KeyPair,
    shown: Arc<Shown>,
    roster: Arc<Roster>,
}

impl Credentials {
    /// Puts a node's credentials together and checks that they belong together. A certificate that has ended is taken: its
    /// node renews it.
    pub(crate) fn new(
        authority: CertificateDer<'static>,
        certificate: CertificateDer<'static>,
        key: KeyPair,
        roster: Arc<Roster>,
    ) -> Result<Self, ClusterError> {
        let current = Current::new(&authority, certificate, &key)?;
        let shown = Arc::new(Shown(RwLock::new(current)));
        Ok(Self { authority, key, shown, roster })
    }

    /// The authority's certificate.
    pub(crate) fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    pub(crate) fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }

    /// What the certificate in use says.
    pub(crate) fn says(&self) -> CertifiedNode {
        self.shown.read(|current| current.says.clone())
    }

    /// From when and until when the certificate in use is good.
    pub(crate) fn validity(&self) -> Validity {
        self.shown.read(|current| current.validity)
    }

    /// A request for a further certificate over the same key, in DER.
    pub(crate) fn request(&self) -> Result<Vec<u8>, ClusterError> {
        certificates::certificate_request(&self.key)
    }

    /// Signs a further certificate for this node itself.
    pub(crate) fn sign(&self, authority: &Authority, life: Life) -> Result<CertificateDer<'static>, ClusterError> {
        let CertifiedNode { node, cluster_name, .. } = self.says();
        authority.sign(CertificateRequest::of(&self.key)?, node, &cluster_name, life)
    }

    /// Checks a further certificate of this node: as [`Credentials::new`], and it must be for the same node.
    pub(crate) fn check(&self, certificate: &CertificateDer<'static>) -> Result<(), ClusterError> {
        let next = Current::new(&self.authority, certificate.clone(), &self.key)?;
        let now = self.says();
        if (next.says.node, next.says.cluster_name) == (now.node, now.cluster_name) {
            Ok(())
        } else {
            Err(failed("take a renewed certificate")("it is for another node"))
        }
    }

    /// Shows another certificate from the next handshake on.
    pub(crate) fn show(&self, certificate: CertificateDer<'static>) -> Result<(), ClusterError> {
        let next = Current::new(&self.authority, certificate, &self.key)?;
        *self.shown.0.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    /// TLS of the peer listener. A client without certificate gets through the handshake, since one that joins has none
    /// yet; every service but enrolment refuses it.
    pub(crate) fn server_config(&self) -> Result<Arc<rustls::ServerConfig>, ClusterError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(roots(&self.authority)?, provider())
            .allow_unauthenticated()
            .build()
            .map_err(failed("trust the cluster's authority"))?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(failed("set up TLS"))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(&self.shown) as _);
        config.alpn_protocols = Alpn::Http2AndHttp1.protocols();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// TLS of a dial to another node, which must be known by the key that it shows.
    pub(crate) fn client_config(&self, alpn: Alpn) -> Result<rustls::ClientConfig, ClusterError> {
        let config = self.client_builder()?.with_client_cert_resolver(Arc::clone(&self.shown) as _);
        Ok(finished(config, alpn))
    }

    /// TLS of a dial to ask for a certificate: with one that has ended no handshake would succeed, so it is left out.
    pub(crate) fn renewing_config(&self) -> Result<rustls::ClientConfig, ClusterError> {
        if self.validity().has_ended(wall_clock()) {
            return Ok(finished(self.client_builder()?.with_no_client_auth(), Alpn::Http2));
        }
        self.client_config(Alpn::Http2)
    }

    fn client_builder(&self) -> Result<ClientBuilder, ClusterError> {
        let known = KnownServer { signed: server_verifier(&self.authority)?, roster: Arc::clone(&self.roster) };
        Ok(rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(failed("set up TLS"))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(known)))
    }
}

type ClientBuilder = rustls::ConfigBuilder<rustls::ClientConfig, rustls::client::WantsClientCert>;

fn finished(mut config: rustls::ClientConfig, alpn: Alpn) -> rustls::ClientConfig {
    config.alpn_protocols = alpn.protocols();
    config.resumption = Resumption::disabled();
    config
}

/// The certificate in use.
#[derive(Debug)]
struct Current {
    certified: Arc<CertifiedKey>,
    says: CertifiedNode,
    validity: Validity,
}

impl Current {
    fn new(
        authority: &CertificateDer<'static>,
        certificate: CertificateDer<'static>,
        key: &KeyPair,
    ) -> Result<Self, ClusterError> {
        const ACTION: &str = "verify this node's certificate against the cluster's authority";
        let validity = Validity::of(&certificate).ok_or_else(|| failed(ACTION)("it cannot be read"))?;
        let says = certificates::read(&certificate).ok_or_else(|| failed(ACTION)("it names no node"))?;
        if says.key != certificates::node_key(key) {
            return Err(failed(ACTION)("it is over another key"));
        }
        check_signature(authority, &certificate, validity)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key = provider().key_provider.load_private_key(key).map_err(failed("use this node's key"))?;
        let certified = Arc::new(CertifiedKey::new(vec![certificate], key));
        Ok(Self { certified, says, validity })
    }
}

/// Verifies that the authority has signed a certificate, whether or not it has ended.
fn check_signature(
    authority: &CertificateDer<'static>,
    certificate: &CertificateDer<'static>,
    validity: Validity,
) -> Result<(), ClusterError> {
    const ACTION: &str = "verify this node's certificate against the cluster's authority";
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots(authority)?, provider()).build().map_err(failed(ACTION))?;
    let seconds = |at: Timestamp| at.0 / 1_000;
    let within = seconds(wall_clock()).min(seconds(validity.ends).saturating_sub(1)).max(seconds(validity.from));
    let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(within));
    verifier.verify_client_cert(certificate, &[], at).map(|_| ()).map_err(failed(ACTION))
}

/// Gives each handshake the certificate that is current.
#[derive(Debug)]
struct Shown(RwLock<Current>);

impl Shown {
    fn read<R>(&self, f: impl FnOnce(&Current) -> R) -> R {
        f(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl rustls::server::ResolvesServerCert for Shown {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.read(|current| Arc::clone(&current.certified)))
    }
}

impl rustls::client::ResolvesClientCert for Shown {
    /// Also when it has ended: a connection without a certificate would stay, and be refused at every request.
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.read(|current| Arc::clone(&current.certified)))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Wants a certificate that the authority has signed, over the key that the node is known by.
#[derive(Debug)]
struct KnownServer {
    signed: Arc<WebPkiServerVerifier>,
    roster: Arc<Roster>,
}

impl ServerCertVerifier for KnownServer {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.signed.verify_server_cert(certificate, intermediates, name, ocsp, now)?;
        let says = certificates::read(certificate).ok_or(CertificateError::BadEncoding)?;
        match self.roster.check(&says) {
            // A node that was removed is dialled as long as its vote is needed, and to be told.
            Ok(()) | Err(NotAdmitted::Removed { .. }) => Ok(verified),
            Err(refused) => Err(rustls::Error::General(refused.to_string())),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

/// TLS of a node that has no certificate yet, and knows the cluster by the authority in its join token.
pub(crate) fn joining_config(authority: &CertificateDer<'static>) -> Result<rustls::ClientConfig, ClusterError> {
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(failed("set up TLS"))?
        .with_root_certificates(roots(authority)?)
        .with_no_client_auth();
    config.alpn_protocols = Alpn::Http2.protocols();
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn server_verifier(authority: &CertificateDer<'static>) -> Result<Arc<WebPkiServerVerifier>, ClusterError> {
    WebPkiServerVerifier::builder_with_provider(roots(authority)?, provider())
        .build()
        .map_err(failed("trust the cluster's authority"))
}

fn roots(authority: &CertificateDer<'static>) -> Result<Arc<RootCertStore>, ClusterError> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).map_err(failed("trust the cluster's authority"))?;
    Ok(Arc::new(roots))
}

/// Named here and not taken from the process, so that nothing depends on what the process installed.
fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::{
        make_key,
        tests::{DAY, authority},
    };
    use crate::roster::{Member, Members};
    use towline_core::NodeId;

    fn life() -> Life {
        Life { now: wall_clock(), length: DAY }
    }

    fn credentials(
        authority: &Authority,
        root: &CertificateDer<'static>,
        life: Life,
    ) -> Result<Credentials, ClusterError> {
        let key = make_key().unwrap();
        let certificate = authority.sign(CertificateRequest::of(&key).unwrap(), NodeId(2), "prod", life).unwrap();
        Credentials::new(root.clone(), certificate, key, Arc::default())
    }

    #[test]
    fn credentials_of_two_clusters_do_not_fit_together() {
        let (root, authority_of_one) = authority();
        let (other, _) = authority();
        credentials(&authority_of_one, &root, life()).unwrap();
        assert!(credentials(&authority_of_one, &other, life()).is_err());
    }

    #[test]
    fn a_certificate_over_another_key_is_refused() {
        let (root, authority) = authority();
        let request = CertificateRequest::of(&make_key().unwrap()).unwrap();
        let certificate = authority.sign(request, NodeId(2), "prod", life()).unwrap();
        assert!(Credentials::new(root, certificate, make_key().unwrap(), Arc::default()).is_err());
    }

    #[test]
    fn a_renewed_certificate_is_shown_from_the_next_handshake_on() {
        let (root, authority) = authority();
        let credentials = credentials(&authority, &root, life()).unwrap();
        let longer = Life { length: 2 * DAY, ..life() };
        let renewed = credentials.sign(&authority, longer).unwrap();
        credentials.check(&renewed).unwrap();
        credentials.show(renewed.clone()).unwrap();
        assert_eq!(credentials.shown.read(|current| current.certified.cert[0].clone()), renewed);
        assert_eq!(credentials.validity().life(), 2 * DAY);
    }

    #[test]
    fn a_renewed_certificate_for_another_node_is_refused() {
        let (root, authority) = authority();
        let credentials = credentials(&authority, &root, life()).unwrap();
        let request = CertificateRequest::of(&credentials.key).unwrap();
        let other = authority.sign(request, NodeId(3), "prod", life()).unwrap();
        assert!(credentials.check(&other).is_err());
    }

    #[test]
    fn a_certificate_that_has_ended_opens_and_is_left_out_of_the_request_for_another() {
        let (root, authority) = authority();
        let past = Life { now: Timestamp(wall_clock().0 - 2 * 24 * 3_600_000), length: DAY };
        let ended = credentials(&authority, &root, past).unwrap();
        assert!(ended.validity().has_ended(wall_clock()));
        assert!(!ended.renewing_config().unwrap().client_auth_cert_resolver.has_certs());
        let good = credentials(&authority, &root, life()).unwrap();
        assert!(good.renewing_config().unwrap().client_auth_cert_resolver.has_certs());
    }

    #[test]
    fn a_server_is_taken_for_a_node_only_under_the_key_that_the_node_is_known_by() {
        let (root, authority) = authority();
        let key = make_key().unwrap();
        let certificate = authority.sign(CertificateRequest::of(&key).unwrap(), NodeId(2), "prod", life()).unwrap();
        let member = |key| Member { id: NodeId(2), key: Some(key), peer: String::new(), worker: false };
        let verify = |known| {
            let roster = Arc::new(Roster::new(Some(Members { index: 9, nodes: vec![member(known)] })));
            let server = KnownServer { signed: server_verifier(&root).unwrap(), roster };
            let name = ServerName::try_from(certificates::node_name(NodeId(2), "prod")).unwrap();
            server.verify_server_cert(&certificate, &[], &name, &[], UnixTime::now())
        };
        verify(certificates::node_key(&key)).unwrap();
        let refused = verify(certificates::node_key(&make_key().unwrap())).unwrap_err();
        assert!(refused.to_string().contains("node 2 by another key"), "{refused}");
    }
}

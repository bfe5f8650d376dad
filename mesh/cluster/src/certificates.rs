//! The cluster's own certificate authority, and the TLS that rests on it.
//!
//! A certificate names its node as `node-<id>.<cluster>.towline.internal`, so both sides of every connection know which
//! node they talk to, wherever it is reached. Certificates have no end date: a node leaves by its membership.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{
    RootCertStore,
    pki_types::{CertificateSigningRequestDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
    server::WebPkiClientVerifier,
    version::TLS13,
};
use towline_core::NodeId;

pub(crate) use rustls::pki_types::CertificateDer;

use crate::ClusterError;

/// Under this name every member answers a node that does not know yet whom it dials: one that joins.
const MEMBER_NAME: &str = "member.towline.internal";
const DOMAIN: &str = "towline.internal";

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

/// The DNS name of a node in its certificate, and in the URLs that other nodes dial.
pub(crate) fn node_name(node: NodeId, cluster_name: &str) -> String {
    format!("node-{node}.{cluster_name}.{DOMAIN}")
}

/// The name to verify in the certificate of a node whose id is not known.
pub(crate) fn member_name() -> ServerName<'static> {
    ServerName::try_from(MEMBER_NAME).expect("the constant is a DNS name")
}

/// The node that a certificate names, and its cluster.
pub(crate) fn named_node(certificate: &CertificateDer<'_>) -> Option<(NodeId, String)> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    certificate.valid_dns_names().find_map(parse_node_name)
}

pub(crate) fn parse_node_name(name: &str) -> Option<(NodeId, String)> {
    let (id, cluster) = name.strip_suffix(DOMAIN)?.strip_suffix('.')?.strip_prefix("node-")?.split_once('.')?;
    Some((NodeId(id.parse().ok()?), cluster.to_owned()))
}

/// Makes the key of a node or an authority.
pub(crate) fn make_key() -> Result<KeyPair, ClusterError> {
    KeyPair::generate().map_err(failed("make a key"))
}

/// Reads a key back.
pub(crate) fn read_key(pem: &str) -> Result<KeyPair, ClusterError> {
    KeyPair::from_pem(pem).map_err(failed("read a key"))
}

/// A request for a certificate over this key, in DER.
pub(crate) fn certificate_request(key: &KeyPair) -> Result<Vec<u8>, ClusterError> {
    let request = bare_params().serialize_request(key).map_err(failed("make a certificate request"))?;
    Ok(request.der().to_vec())
}

/// Signs certificates of one cluster. Lives on the node that founded it.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes the certificate of a new authority over a key.
    pub(crate) fn make(cluster_name: &str, key: &KeyPair) -> Result<CertificateDer<'static>, ClusterError> {
        let mut params = bare_params();
        params.distinguished_name.push(DnType::CommonName, format!("towline cluster {cluster_name}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(key).map_err(failed("make the cluster's authority"))?;
        Ok(certificate.der().clone())
    }

    /// Takes up an authority from its certificate and key.
    pub(crate) fn open(certificate: &CertificateDer<'_>, key: KeyPair) -> Result<Self, ClusterError> {
        let issuer = Issuer::from_ca_cert_der(certificate, key).map_err(failed("open the cluster's authority"))?;
        Ok(Self { issuer })
    }

    /// Signs a certificate for a node. Of the request only the key counts: what it names itself is not asked.
    pub(crate) fn sign(
        &self,
        mut request: CertificateRequest,
        node: NodeId,
        cluster_name: &str,
    ) -> Result<CertificateDer<'static>, ClusterError> {
        let name = node_name(node, cluster_name);
        let mut params = CertificateParams::new(vec![name.clone(), MEMBER_NAME.to_owned()])
            .map_err(failed("name a node in its certificate"))?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        request.0.params = params;
        let certificate = request.0.signed_by(&self.issuer).map_err(failed("sign the certificate of a node"))?;
        Ok(certificate.der().clone())
    }
}

/// A request for a certificate whose sender has proved that it holds the key.
pub(crate) struct CertificateRequest(CertificateSigningRequestParams);

impl CertificateRequest {
    /// Reads a request in DER and verifies its signature.
    pub(crate) fn read(der: &[u8]) -> Result<Self, ClusterError> {
        let der = CertificateSigningRequestDer::from(der);
        CertificateSigningRequestParams::from_der(&der)
            .map(Self)
            .map_err(failed("read the certificate request of a node"))
    }

    /// A request over a key that lies here.
    pub(crate) fn of(key: &KeyPair) -> Result<Self, ClusterError> {
        Self::read(&certificate_request(key)?)
    }
}

fn bare_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
}

/// A node's certificate and key, and the authority that both sides trust.
pub(crate) struct Credentials {
    authority: CertificateDer<'static>,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Credentials {
    /// Puts a node's credentials together and checks that they belong together.
    pub(crate) fn new(
        authority: CertificateDer<'static>,
        certificate: CertificateDer<'static>,
        key: &KeyPair,
    ) -> Result<Self, ClusterError> {
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let credentials = Self { authority, certificate, key };
        credentials.check_chain()?;
        credentials.client_config(Alpn::Http2)?;
        Ok(credentials)
    }

    /// The authority's certificate.
    pub(crate) fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
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
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())
            .map_err(failed("use this node's certificate"))?;
        config.alpn_protocols = Alpn::Http2AndHttp1.protocols();
        Ok(Arc::new(config))
    }

    /// TLS of a dial to another node.
    pub(crate) fn client_config(&self, alpn: Alpn) -> Result<rustls::ClientConfig, ClusterError> {
        let mut config = client_builder(&self.authority)?
            .with_client_auth_cert(vec![self.certificate.clone()], self.key.clone_key())
            .map_err(failed("use this node's certificate"))?;
        config.alpn_protocols = alpn.protocols();
        Ok(config)
    }

    fn check_chain(&self) -> Result<(), ClusterError> {
        let action = "verify this node's certificate against the cluster's authority";
        let verifier = WebPkiClientVerifier::builder_with_provider(roots(&self.authority)?, provider())
            .build()
            .map_err(failed(action))?;
        verifier
            .verify_client_cert(&self.certificate, &[], rustls::pki_types::UnixTime::now())
            .map(|_| ())
            .map_err(failed(action))
    }
}

/// TLS of a node that has no certificate yet, and knows the cluster by the authority in its join token.
pub(crate) fn joining_config(authority: &CertificateDer<'static>) -> Result<rustls::ClientConfig, ClusterError> {
    let mut config = client_builder(authority)?.with_no_client_auth();
    config.alpn_protocols = Alpn::Http2.protocols();
    Ok(config)
}

fn client_builder(
    authority: &CertificateDer<'static>,
) -> Result<rustls::ConfigBuilder<rustls::ClientConfig, rustls::client::WantsClientCert>, ClusterError> {
    Ok(rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(failed("set up TLS"))?
        .with_root_certificates(roots(authority)?))
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

fn failed<E: std::fmt::Display>(action: &'static str) -> impl FnOnce(E) -> ClusterError {
    move |error| ClusterError::Certificate { action, reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority() -> (CertificateDer<'static>, Authority) {
        let key = make_key().unwrap();
        let certificate = Authority::make("prod", &key).unwrap();
        let authority = Authority::open(&certificate, key).unwrap();
        (certificate, authority)
    }

    #[test]
    fn a_certificate_names_its_node_and_cluster() {
        let (_, authority) = authority();
        let request = CertificateRequest::of(&make_key().unwrap()).unwrap();
        let certificate = authority.sign(request, NodeId(42), "prod").unwrap();
        assert_eq!(named_node(&certificate), Some((NodeId(42), "prod".to_owned())));
    }

    #[test]
    fn credentials_of_two_clusters_do_not_fit_together() {
        let (_, authority_of_one) = authority();
        let (other, _) = authority();
        let key = make_key().unwrap();
        let request = CertificateRequest::of(&key).unwrap();
        let certificate = authority_of_one.sign(request, NodeId(2), "prod").unwrap();
        assert!(Credentials::new(other, certificate, &key).is_err());
    }

    #[test]
    fn a_certificate_over_another_key_is_refused() {
        let (root, authority) = authority();
        let request = CertificateRequest::of(&make_key().unwrap()).unwrap();
        let certificate = authority.sign(request, NodeId(2), "prod").unwrap();
        assert!(Credentials::new(root, certificate, &make_key().unwrap()).is_err());
    }

    #[test]
    fn names_that_are_not_nodes_are_not_taken_for_nodes() {
        for name in ["member.towline.internal", "node-x.prod.towline.internal", "node-1.prod.example.com", "node-1"] {
            assert_eq!(parse_node_name(name), None, "{name}");
        }
    }
}

//! The cluster's certificate authority, and what a certificate says.
//!
//! A certificate names its node as `node-<id>.<cluster>.towline.internal`, so both sides of every connection know which
//! node they talk to, wherever it is reached. Every voter has the key of the authority, so that each can sign. What keeps
//! a former voter, which may have kept that key, from making members is that the state knows each node's own key
//! (`roster`): a signature alone lets nobody in.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, date_time_ymd,
};
use rustls::pki_types::{CertificateSigningRequestDer, ServerName};
use towline_core::{NodeId, NodeKey, Timestamp};
use x509_parser::prelude::{FromDer, X509Certificate};

pub(crate) use rustls::pki_types::CertificateDer;

use crate::ClusterError;

/// How long a node's certificate is good: long enough that a cluster in which nothing can be signed for a week goes on,
/// short enough that a stolen disk is worth nothing before long.
pub const CERTIFICATE_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);
/// A longer life comes from a version whose certificates had no end: such a certificate is renewed at once.
pub(crate) const LONGEST_LIFE: Duration = Duration::from_secs(400 * 24 * 3600);
/// A certificate begins this much before it was signed: the clocks of nodes may differ by as much.
pub(crate) const CLOCK_SKEW: Duration = Duration::from_secs(600);

/// Under this name every member answers a node that does not know yet whom it dials: one that joins.
const MEMBER_NAME: &str = "member.towline.internal";
const DOMAIN: &str = "towline.internal";

/// What a certificate says of the node that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertifiedNode {
    /// The node.
    pub node: NodeId,
    /// Name of its cluster.
    pub cluster_name: String,
    /// The key that the certificate is over.
    pub key: NodeKey,
    /// When it ends.
    pub ends: Timestamp,
}

/// From when and until when a certificate is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) from: Timestamp,
    pub(crate) ends: Timestamp,
}

impl Validity {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let at = |seconds: i64| Timestamp(u64::try_from(seconds).unwrap_or_default().saturating_mul(1_000));
        let validity = parsed.validity();
        Some(Self { from: at(validity.not_before.timestamp()), ends: at(validity.not_after.timestamp()) })
    }

    /// How long it is good, counted from when it was signed.
    pub(crate) fn life(self) -> Duration {
        Duration::from_millis(self.ends.0.saturating_sub(self.from.0)).saturating_sub(CLOCK_SKEW)
    }

    pub(crate) fn has_ended(self, now: Timestamp) -> bool {
        now >= self.ends
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

/// What a certificate of a cluster says.
pub(crate) fn read(certificate: &CertificateDer<'_>) -> Option<CertifiedNode> {
    let validity = Validity::of(certificate)?;
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let (node, cluster_name) = certificate.valid_dns_names().find_map(parse_node_name)?;
    let key = hash_of_key(certificate.subject_public_key_info().as_ref());
    Some(CertifiedNode { node, cluster_name, key, ends: validity.ends })
}

pub(crate) fn parse_node_name(name: &str) -> Option<(NodeId, String)> {
    let (id, cluster) = name.strip_suffix(DOMAIN)?.strip_suffix('.')?.strip_prefix("node-")?.split_once('.')?;
    Some((NodeId(id.parse().ok()?), cluster.to_owned()))
}

/// What the cluster knows a key by.
pub(crate) fn node_key(key: &KeyPair) -> NodeKey {
    hash_of_key(&key.subject_public_key_info())
}

fn hash_of_key(subject_public_key_info: &[u8]) -> NodeKey {
    NodeKey(blake3::hash(subject_public_key_info).to_hex().to_string())
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

/// Signs certificates of one cluster.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes the certificate of a new authority over a key. It has no end: what ends are the certificates below it.
    pub(crate) fn make(cluster_name: &str, key: &KeyPair) -> Result<CertificateDer<'static>, ClusterError> {
        let mut params = bare_params();
        params.distinguished_name.push(DnType::CommonName, format!("towline cluster {cluster_name}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(key).map_err(failed("make the cluster's authority"))?;
        Ok(certificate.der().clone())
    }

    /// Takes up an authority from its certificate and key.
    ///
    /// # Errors
    /// When the key is not the one that the certificate is over.
    pub(crate) fn open(certificate: &CertificateDer<'_>, key: KeyPair) -> Result<Self, ClusterError> {
        const ACTION: &str = "open the cluster's authority";
        let parsed = webpki::EndEntityCert::try_from(certificate).map_err(failed(ACTION))?;
        if parsed.subject_public_key_info().as_ref() != key.subject_public_key_info() {
            return Err(failed(ACTION)("the key is another authority's"));
        }
        let issuer = Issuer::from_ca_cert_der(certificate, key).map_err(failed(ACTION))?;
        Ok(Self { issuer })
    }

    /// The key, for another voter.
    pub(crate) fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Signs a certificate for a node. Of the request only the key counts: what it names itself is not asked.
    pub(crate) fn sign(
        &self,
        mut request: CertificateRequest,
        node: NodeId,
        cluster_name: &str,
        life: Life,
    ) -> Result<CertificateDer<'static>, ClusterError> {
        let name = node_name(node, cluster_name);
        let mut params = CertificateParams::new(vec![name.clone(), MEMBER_NAME.to_owned()])
            .map_err(failed("name a node in its certificate"))?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let now = Duration::from_millis(life.now.0);
        let epoch = date_time_ymd(1970, 1, 1);
        params.not_before = epoch + now.saturating_sub(CLOCK_SKEW);
        params.not_after = epoch + now + life.length;
        request.0.params = params;
        let certificate = request.0.signed_by(&self.issuer).map_err(failed("sign the certificate of a node"))?;
        Ok(certificate.der().clone())
    }
}

/// How long a certificate is to be good, and from when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Life {
    pub(crate) now: Timestamp,
    pub(crate) length: Duration,
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

    /// The key that it is over.
    pub(crate) fn key(&self) -> NodeKey {
        hash_of_key(&self.0.public_key.subject_public_key_info())
    }
}

fn bare_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
}

pub(crate) fn failed<E: std::fmt::Display>(action: &'static str) -> impl FnOnce(E) -> ClusterError {
    move |error| ClusterError::Certificate { action, reason: error.to_string() }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);
    /// Some time in 2025.
    pub(crate) const NOW: Timestamp = Timestamp(1_764_460_800_000);

    pub(crate) fn authority() -> (CertificateDer<'static>, Authority) {
        let key = make_key().unwrap();
        let certificate = Authority::make("prod", &key).unwrap();
        let authority = Authority::open(&certificate, key).unwrap();
        (certificate, authority)
    }

    #[test]
    fn a_certificate_names_its_node_cluster_and_key_and_has_an_end() {
        let (_, authority) = authority();
        let key = make_key().unwrap();
        let life = Life { now: NOW, length: 30 * DAY };
        let certificate = authority.sign(CertificateRequest::of(&key).unwrap(), NodeId(42), "prod", life).unwrap();
        let ends = Timestamp(NOW.0 + 30 * 24 * 3_600_000);
        let says = CertifiedNode { node: NodeId(42), cluster_name: "prod".into(), key: node_key(&key), ends };
        assert_eq!(read(&certificate), Some(says));
        let validity = Validity::of(&certificate).unwrap();
        assert_eq!(validity.life(), 30 * DAY);
        assert_eq!(validity.from, Timestamp(NOW.0 - 600_000), "clocks may differ by ten minutes");
        assert!(!validity.has_ended(Timestamp(ends.0 - 1)) && validity.has_ended(ends));
    }

    #[test]
    fn the_key_of_another_authority_is_refused() {
        let (certificate, _) = authority();
        assert!(Authority::open(&certificate, make_key().unwrap()).is_err());
        let (certificate, authority) = authority();
        let copied = read_key(&authority.key_pem()).unwrap();
        Authority::open(&certificate, copied).unwrap();
    }

    #[test]
    fn names_that_are_not_nodes_are_not_taken_for_nodes() {
        for name in ["member.towline.internal", "node-x.prod.towline.internal", "node-1.prod.example.com", "node-1"] {
            assert_eq!(parse_node_name(name), None, "{name}");
        }
    }
}

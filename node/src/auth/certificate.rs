//! What a client certificate says. rustls has verified its chain; here it is only read.

use std::{fmt::Write as _, net::IpAddr, sync::Arc, time::Duration};

use x509_parser::{
    objects::{oid_registry, oid2abbrev},
    prelude::{FromDer, GeneralName, X509Certificate, X509Name},
};

use super::rules::Sha256;

/// Names that are read of one certificate: a rule means one of them.
const MAX_SANS: usize = 64;

/// The client certificate of a connection: an extension of each of its requests.
#[derive(Debug, Clone)]
pub(crate) struct ClientCertificate(pub Arc<CertificateFacts>);

/// What rules ask of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateFacts {
    /// Names, addresses and URIs.
    pub sans: Vec<San>,
    /// The subject, as in `CN=ci, O=Example`; a sign that would read as another field is escaped with a backslash.
    pub subject: String,
    /// SHA-256 of the public key with its algorithm.
    pub spki: Sha256,
    /// Its end, in time since 1970.
    pub ends: Duration,
}

/// One name of a certificate, of a kind: no kind stands for another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum San {
    Dns(String),
    Email(String),
    Ip(IpAddr),
    Uri(String),
}

impl San {
    /// The name that a rule means: an address, a URI, a mail address, or else the name of a host.
    pub(crate) fn wanted(text: &str) -> Self {
        if let Ok(address) = text.parse() {
            return San::Ip(address);
        }
        match text {
            _ if text.contains(':') => San::Uri(text.to_owned()),
            _ if text.contains('@') => San::Email(text.to_owned()),
            _ => San::Dns(text.to_ascii_lowercase()),
        }
    }
}

/// Reads a certificate in DER; none where it cannot be read.
pub(crate) fn facts(der: &[u8]) -> Option<CertificateFacts> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let sans = certificate.subject_alternative_name().ok().flatten();
    let names = sans.iter().flat_map(|extension| &extension.value.general_names);
    Some(CertificateFacts {
        sans: names.filter_map(name).take(MAX_SANS).collect(),
        subject: subject(certificate.subject()),
        spki: Sha256::of(certificate.public_key().raw),
        ends: Duration::from_secs(u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0)),
    })
}

#[expect(clippy::wildcard_enum_match_arm, reason = "a rule can mean no other kind of name")]
fn name(name: &GeneralName<'_>) -> Option<San> {
    match name {
        GeneralName::DNSName(name) => Some(San::Dns(name.to_ascii_lowercase())),
        GeneralName::URI(text) => Some(San::Uri((*text).to_owned())),
        GeneralName::RFC822Name(text) => Some(San::Email((*text).to_owned())),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|bytes| San::Ip(IpAddr::from(bytes))),
            16 => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| San::Ip(IpAddr::from(bytes))),
            _ => None,
        },
        _ => None,
    }
}

/// As people write it. What a certificate puts into one field never reads as two (RFC 4514, 2.4).
fn subject(name: &X509Name<'_>) -> String {
    let mut text = String::new();
    for relative in name.iter_rdn() {
        for (at, attribute) in relative.iter().enumerate() {
            let between = match (text.is_empty(), at) {
                (true, _) => "",
                (false, 0) => ", ",
                (false, _) => "+",
            };
            let oid = attribute.attr_type();
            let key = oid2abbrev(oid, oid_registry()).map_or_else(|_| oid.to_string(), str::to_owned);
            // Writing into a text does not fail.
            let _ = write!(text, "{between}{key}=");
            for sign in attribute.as_str().unwrap_or_default().chars() {
                if matches!(sign, ',' | '+' | '=' | '"' | '\\' | '<' | '>' | ';') {
                    text.push('\\');
                }
                text.push(sign);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_says_its_names_its_subject_and_its_key() {
        let key = rcgen::KeyPair::generate().unwrap();
        let names = ["CI.example.org".to_owned(), "10.0.0.7".to_owned()];
        let mut parameters = rcgen::CertificateParams::new(names).unwrap();
        parameters.subject_alt_names.push(rcgen::SanType::URI("spiffe://example.org/ci".try_into().unwrap()));
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "ci");
        let certificate = parameters.self_signed(&key).unwrap();

        let facts = facts(certificate.der()).unwrap();

        assert_eq!(facts.sans, ["ci.example.org", "10.0.0.7", "spiffe://example.org/ci"].map(San::wanted));
        assert!(facts.subject.contains("CN=ci"), "{}", facts.subject);
        assert_eq!(facts.spki, Sha256::of(&rcgen::PublicKeyData::subject_public_key_info(&key)));
        assert!(super::facts(b"no certificate").is_none());
    }

    #[test]
    fn a_field_of_a_subject_does_not_read_as_two_and_a_uri_is_no_host() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::default();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "ci, O=Example");
        parameters.subject_alt_names.push(rcgen::SanType::URI("ops.example".try_into().unwrap()));
        parameters.subject_alt_names.push(rcgen::SanType::Rfc822Name("ops.example".try_into().unwrap()));
        parameters.subject_alt_names.push(rcgen::SanType::DnsName("10.0.0.7".try_into().unwrap()));
        let certificate = parameters.self_signed(&key).unwrap();

        let facts = facts(certificate.der()).unwrap();

        assert_eq!(facts.subject, "CN=ci\\, O\\=Example");
        for wanted in ["ops.example", "10.0.0.7"] {
            assert!(!facts.sans.contains(&San::wanted(wanted)), "{wanted}: {:?}", facts.sans);
        }
    }
}

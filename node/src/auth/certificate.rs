//! What a client certificate says. rustls has verified its chain; here it is only read.

use std::{sync::Arc, time::Duration};

use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

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
    pub sans: Vec<String>,
    /// The subject, as in `CN=ci, O=Example`.
    pub subject: String,
    /// SHA-256 of the public key with its algorithm.
    pub spki: Sha256,
    /// Its end, in time since 1970.
    pub ends: Duration,
}

/// Reads a certificate in DER; none where it cannot be read.
pub(crate) fn facts(der: &[u8]) -> Option<CertificateFacts> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let sans = certificate.subject_alternative_name().ok().flatten();
    let names = sans.iter().flat_map(|extension| &extension.value.general_names);
    Some(CertificateFacts {
        sans: names.filter_map(name).take(MAX_SANS).collect(),
        subject: certificate.subject().to_string(),
        spki: Sha256::of(certificate.public_key().raw),
        ends: Duration::from_secs(u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0)),
    })
}

#[expect(clippy::wildcard_enum_match_arm, reason = "a rule can mean no other kind of name")]
fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        GeneralName::URI(text) | GeneralName::RFC822Name(text) => Some((*text).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|bytes| std::net::Ipv4Addr::from(bytes).to_string()),
            16 => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| std::net::Ipv6Addr::from(bytes).to_string()),
            _ => None,
        },
        _ => None,
    }
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

        assert_eq!(facts.sans, ["ci.example.org", "10.0.0.7", "spiffe://example.org/ci"]);
        assert!(facts.subject.contains("CN=ci"), "{}", facts.subject);
        assert_eq!(facts.spki, Sha256::of(&rcgen::PublicKeyData::subject_public_key_info(&key)));
        assert!(super::facts(b"no certificate").is_none());
    }
}

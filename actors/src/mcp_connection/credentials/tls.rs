//! Certificates of connections to a server: its own authorities, a certificate of this node, and SPIFFE IDs in the place of names.

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};
use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer, X509Certificate},
};

use super::settings::McpTls;

/// Longest file of certificates that is read: a bundle of a machine has some hundred kilobytes.
const MAX_FILE_BYTES: u64 = 2 * 1024 * 1024;

/// What was seen of certificate files: when and how long.
pub(super) type Seen = Vec<Option<(SystemTime, u64)>>;

/// Looks at the files.
pub(super) fn look(tls: &McpTls) -> Seen {
    let identity = tls.identity.as_ref().map(|(certificate, key)| [certificate, key]);
    let files = tls.ca.iter().chain(identity.into_iter().flatten());
    let look = |path: &PathBuf| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.modified().ok()?, found.len()))
    };
    files.map(look).collect()
}

/// Adds certificates to an HTTP client that is being made.
///
/// # Errors
/// When a file is not there, or is not what it should be.
pub(in super::super) fn apply(
    builder: reqwest::ClientBuilder,
    tls: &McpTls,
    only_http1: bool,
) -> Result<reqwest::ClientBuilder, String> {
    if let Some(id) = &tls.spiffe_id {
        return Ok(builder.tls_backend_preconfigured(spiffe(tls, id, only_http1)?));
    }
    let mut builder = builder;
    if let Some(ca) = &tls.ca {
        let bundle = reqwest::Certificate::from_pem_bundle(&read(ca)?);
        builder = builder.tls_certs_only(bundle.map_err(|error| format!("file {}: {error}", ca.display()))?);
    }
    if let Some((certificate, key)) = &tls.identity {
        let mut both = read(certificate)?;
        both.push(b'\n');
        both.extend(read(key)?);
        let identity = reqwest::Identity::from_pem(&both);
        let failed = |error| format!("files {} and {}: {error}", certificate.display(), key.display());
        builder = builder.identity(identity.map_err(failed)?);
    }
    Ok(builder)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("file {}: {error}", path.display());
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > MAX_FILE_BYTES {
        return Err(format!("file {} has {size} bytes; the limit is {MAX_FILE_BYTES}", path.display()));
    }
    std::fs::read(path).map_err(failed)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| format!("file {}: {error}", path.display()))?;
    if found.is_empty() { Err(format!("file {} has no certificate", path.display())) } else { Ok(found) }
}

/// TLS towards a server that is known by its SPIFFE ID.
fn spiffe(tls: &McpTls, id: &str, only_http1: bool) -> Result<ClientConfig, String> {
    let ca = tls.ca.as_ref().ok_or("a SPIFFE ID needs the authorities of its trust domain (ca)")?;
    let mut roots = RootCertStore::empty();
    for authority in certificates(ca)? {
        roots.add(authority).map_err(|error| format!("file {}: {error}", ca.display()))?;
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = KnownById { id: id.to_owned(), roots, provider: Arc::clone(&provider) };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match &tls.identity {
        Some((certificate, key)) => {
            let failed = |error: String| format!("file {}: {error}", key.display());
            let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| failed(error.to_string()))?;
            let config = builder.with_client_auth_cert(certificates(certificate)?, private);
            config.map_err(|error| failed(error.to_string()))?
        }
        None => builder.with_no_client_auth(),
    };
    let protocols: &[&[u8]] = if only_http1 { &[b"http/1.1"] } else { &[b"h2", b"http/1.1"] };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

/// Takes a server whose certificate is good in its trust domain and has this SPIFFE ID, whatever its address is called.
#[derive(Debug)]
struct KnownById {
    id: String,
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for KnownById {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let bad = |error: webpki::Error| Error::General(format!("the certificate is not good: {error}"));
        let certificate = webpki::EndEntityCert::try_from(end_entity).map_err(bad)?;
        certificate
            .verify_for_usage(
                webpki::ALL_VERIFICATION_ALGS,
                &self.roots.roots,
                intermediates,
                now,
                webpki::KeyUsage::server_auth(),
                None,
                None,
            )
            .map_err(bad)?;
        match spiffe_id(end_entity) {
            Some(found) if found == self.id => Ok(ServerCertVerified::assertion()),
            Some(found) => Err(Error::General(format!("the server is {}, and not {}", found.escape_debug(), self.id))),
            None => Err(CertificateError::NotValidForName.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The SPIFFE ID of a certificate: its only URI.
fn spiffe_id(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let names = parsed.subject_alternative_name().ok()??;
    let uri = |name: &GeneralName<'_>| if let GeneralName::URI(uri) = name { Some((*uri).to_owned()) } else { None };
    let mut uris = names.value.general_names.iter().filter_map(uri);
    match (uris.next(), uris.next()) {
        (Some(only), None) => Some(only),
        (Some(_) | None, _) => None,
    }
}

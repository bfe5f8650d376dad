//! `auth:` – who may call: rules from a credential to a principal, whose tokens and certificates are taken, which pages may ask.
//!
//! What would be served on terms that nobody chose is refused here, with what to write instead.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
    time::Duration,
};

use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use towline_core::{PrincipalId, PrincipalRole};

use super::{
    device_grant,
    limits::LimitSettings,
    mistakes::hint,
    node::NodeSettings,
    section::{Field, Section},
    values::{duration, http_url, is_plain_remote, resolve},
};
use crate::auth::{
    Algorithm, AuthSettings, CertificateMatch, Evidence, Expected, Grant, JwtSettings, Origin, Permits, PublicTls,
    Rule, Sha256, has_claims,
};

/// Most rules: each is looked at for a bearer.
const MAX_RULES: usize = 10_000;
/// Most labels of a principal, and their length: they go with everything that it causes.
const MAX_LABELS: usize = 32;
const MAX_LABEL_CHARS: usize = 256;
/// Shortest secret that is taken as a bearer: a shorter one can be guessed.
const SHORTEST_BEARER: usize = 20;
/// Default of `auth.jwt.leeway`, and the most: clocks of machines that keep the time differ by less.
const DEFAULT_LEEWAY: Duration = Duration::from_secs(30);
const MOST_LEEWAY: Duration = Duration::from_secs(300);
/// Default of `auth.jwt.cache`, and its bounds: an issuer is asked rarely, and a key that it withdraws ends the same day.
const DEFAULT_CACHE: Duration = Duration::from_secs(3600);
const LEAST_CACHE: Duration = Duration::from_secs(60);
const MOST_CACHE: Duration = Duration::from_secs(24 * 3600);
/// Largest file of certificates.
const MAX_PEM_BYTES: u64 = 1024 * 1024;

/// What says who may call.
const WRITE_RULES: &str = "write auth.principals: [ { id: user:ada, role: user, bearer: { sha256: HASH } } ]";

/// Reads the section, and refuses a listener that it leaves open. The authorities of clients become a part of the listener's TLS.
pub(crate) fn read(root: &mut Section<'_>, node: &mut NodeSettings, limits: &LimitSettings) -> AuthSettings {
    let mut settings = AuthSettings {
        requests_per_second: limits.requests_per_second,
        streams_per_principal: limits.streams_per_principal,
        ..AuthSettings::default()
    };
    if let Some(field) = root.written_empty("auth") {
        field.mistake(format!("says nothing, so nobody is told apart by it: {WRITE_RULES}, or leave auth out"));
    }
    if let Some(mut section) = root.get("auth").and_then(|field| field.section()) {
        if let Some(field) = section.written_empty("principals") {
            field.mistake(format!("has no rule, so nobody is told apart by it: {WRITE_RULES}, or leave it out"));
        }
        read_client_ca(&mut section, node, &mut settings);
        settings.origins = section.list("origins").iter().filter_map(|field| field.parse(Origin::parse)).collect();
        let jwt = section.get("jwt");
        settings.jwt = jwt.as_ref().and_then(read_jwt);
        let checked = Checked { certificates: section.get("client_ca").is_some(), jwt: jwt.is_some() };
        settings.rules = read_rules(&mut section, checked);
        if let Some(field) = jwt
            && !settings.rules.iter().any(|rule| matches!(rule.evidence, Evidence::Jwt(_)))
        {
            field.mistake(
                "no rule in auth.principals has jwt, so nobody would be known by a token: write { id: \"oidc:{sub}\", role: user, jwt: {} }",
            );
        }
        settings.device_grant = device_grant::read(&mut section);
        section.finish();
    }
    check_tls(root, node);
    check_listener(root, node, &settings);
    device_grant::check(root, node, &settings);
    settings
}

/// What a listener can tell callers by, beside bearers: whether it is written, be it right or not.
#[derive(Debug, Clone, Copy)]
struct Checked {
    certificates: bool,
    jwt: bool,
}

fn read_client_ca(section: &mut Section<'_>, node: &mut NodeSettings, settings: &mut AuthSettings) {
    let Some(field) = section.get("client_ca") else { return };
    let Some(authorities) = read_certificates(&field) else { return };
    let Some(tls) = &mut node.tls else {
        field.mistake("client certificates are shown in TLS, and node.tls is missing: write node.tls: { certificate: FILE, key: FILE }");
        return;
    };
    tls.client_ca = authorities;
    settings.client_certificates = true;
}

/// The certificates of a PEM file; at least one.
pub(super) fn read_certificates(field: &Field<'_>) -> Option<Vec<CertificateDer<'static>>> {
    field.parse(|path| {
        let pem = read_pem(field, path)?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let found = found.map_err(|error| format!("file {path}: {error}"))?;
        if found.is_empty() { Err(format!("file {path} has no certificate in PEM")) } else { Ok(found) }
    })
}

/// A small file beside the configuration.
pub(super) fn read_pem(field: &Field<'_>, path: &str) -> Result<Vec<u8>, String> {
    let file = resolve(&field.context.base, path);
    let failed = |error: std::io::Error| format!("file {}: {error}", file.display());
    let size = fs::metadata(&file).map_err(failed)?.len();
    if size > MAX_PEM_BYTES {
        return Err(format!("file {} has {size} bytes; the limit is {MAX_PEM_BYTES}", file.display()));
    }
    fs::read(&file).map_err(failed)
}

fn read_jwt(field: &Field<'_>) -> Option<JwtSettings> {
    let mut section = field.section()?;
    let issuer = section.required("issuer", "https://id.example").and_then(|field| field.text());
    let audience = section.required("audience", "towline").and_then(|field| field.text());
    let url = section.required("jwks_url", "https://id.example/.well-known/jwks.json");
    let url = url.and_then(|field| {
        let url = field.parse(http_url)?;
        if is_plain_remote(&url) {
            field.mistake("keys that come over plain http can be replaced on the way: write https://");
        }
        Some(url.to_string())
    });
    let written = section.list("algorithms");
    let algorithms: Vec<Algorithm> = written.iter().filter_map(|field| field.parse(algorithm)).collect();
    let leeway = section.get("leeway").and_then(|field| field.parse(|text| between(text, Duration::ZERO, MOST_LEEWAY)));
    let kept = section.get("cache").and_then(|field| field.parse(|text| between(text, LEAST_CACHE, MOST_CACHE)));
    section.finish();
    let expected = Expected {
        issuer: issuer?.to_owned(),
        audience: audience?.to_owned(),
        algorithms: if written.is_empty() { Algorithm::ALL.to_vec() } else { algorithms },
        leeway: leeway.unwrap_or(DEFAULT_LEEWAY),
    };
    Some(JwtSettings { expected, url: url?, kept: kept.unwrap_or(DEFAULT_CACHE) })
}

fn algorithm(name: &str) -> Result<Algorithm, String> {
    let known = Algorithm::ALL.map(Algorithm::name);
    Algorithm::named(name).ok_or_else(|| format!("algorithm {name:?} is not taken; {}", hint(name, known)))
}

fn between(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let found = duration(text)?;
    if (least..=most).contains(&found) {
        return Ok(found);
    }
    Err(format!("{text:?} is out of range: {}s to {}s", least.as_secs(), most.as_secs()))
}

fn read_rules(section: &mut Section<'_>, checked: Checked) -> Vec<Rule> {
    let fields = section.list("principals");
    if fields.len() > MAX_RULES {
        section.mistake(format!("{} principals are too many: at most {MAX_RULES}", fields.len()));
        return Vec::new();
    }
    let mut roles: BTreeMap<String, PrincipalRole> = BTreeMap::new();
    let mut bearers: BTreeSet<Sha256> = BTreeSet::new();
    let mut rules = Vec::new();
    for field in fields {
        let Some(rule) = read_rule(&field, checked) else { continue };
        let known = *roles.entry(rule.id.clone()).or_insert(rule.role);
        if known != rule.role {
            field.mistake(format!(
                "{:?} is {known} in a rule above and {} here: one principal has one role; give one of them another id",
                rule.id, rule.role
            ));
        }
        if let Evidence::Bearer(hash) = &rule.evidence
            && !bearers.insert(*hash)
        {
            field.mistake(
                "has the bearer of a rule above, which would always be the one that counts: make another token",
            );
        }
        rules.push(rule);
    }
    rules
}

fn read_rule(field: &Field<'_>, checked: Checked) -> Option<Rule> {
    let mut section = field.section()?;
    let id = section.required("id", "user:ada").and_then(|field| read_id(&field));
    let role = section.required("role", "user").and_then(|field| field.parse(role));
    let labels = read_labels(&mut section);
    let grants = section.list("grants");
    let evidence = read_evidence(&mut section, checked);
    section.finish();
    let (id, role, evidence) = (id?, role?, evidence?);
    let allowed: Vec<Grant> = grants.iter().filter_map(|field| field.parse(Grant::parse)).collect();
    if let (PrincipalRole::Operator | PrincipalRole::Anonymous, Some(first)) = (role, grants.first()) {
        let has = if role == PrincipalRole::Operator { "everything" } else { "nothing" };
        first.mistake(format!("role {role} has {has} already: leave the grants out, or give it another role"));
    }
    if evidence == Evidence::Any && role == PrincipalRole::Operator {
        field.mistake("any: true with role: operator would make everybody the operator: give the operator a bearer or a certificate");
    }
    if id == "operator" && role != PrincipalRole::Operator {
        field.mistake(format!("\"operator\" is what the operator is called: give the {role} another id"));
    }
    if has_claims(&id) == Ok(true) && !matches!(evidence, Evidence::Jwt(_)) {
        field.mistake(format!("{id:?} has the name of a claim in it, which only the token of a rule with jwt has"));
    }
    Some(Rule { id, role, permits: Permits::of(role, &allowed), labels: Arc::new(labels), evidence })
}

/// An id, or one with claims in it whose plain text can be part of one.
fn read_id(field: &Field<'_>) -> Option<String> {
    field.parse(|text| {
        if has_claims(text)? && text.starts_with('{') {
            return Err(format!(
                "{text:?} begins with a claim, so a token could make it any other id: begin it with a word, as in oidc:{{sub}}"
            ));
        }
        text.parse::<PrincipalId>().map_err(|error| error.to_string())?;
        if text.starts_with("node:") {
            return Err(format!("{text:?}: node: is what nodes of the cluster are called; take another prefix"));
        }
        Ok::<_, String>(text.to_owned())
    })
}

fn role(text: &str) -> Result<PrincipalRole, String> {
    let known = PrincipalRole::ALL.map(PrincipalRole::as_str);
    PrincipalRole::ALL
        .into_iter()
        .find(|role| role.as_str() == text)
        .ok_or_else(|| format!("role {text:?} is not known; {}", hint(text, known)))
}

fn read_labels(section: &mut Section<'_>) -> BTreeMap<String, String> {
    let Some(field) = section.get("labels") else { return BTreeMap::new() };
    let entries = field.entries();
    if entries.len() > MAX_LABELS {
        field.mistake(format!("{} labels are too many: at most {MAX_LABELS}", entries.len()));
    }
    let read = |(name, field): &(&str, Field<'_>)| {
        let value = field.text()?;
        if name.len() > MAX_LABEL_CHARS || value.len() > MAX_LABEL_CHARS {
            field.mistake(format!("is longer than {MAX_LABEL_CHARS} characters"));
        }
        Some(((*name).to_owned(), value.to_owned()))
    };
    entries.iter().filter_map(read).collect()
}

/// What a rule wants to be shown: one thing.
fn read_evidence(section: &mut Section<'_>, checked: Checked) -> Option<Evidence> {
    let bearer = section.get("bearer");
    let certificate = section.get("certificate");
    let jwt = section.get("jwt");
    let any = section.flag("any", false);
    let found = [bearer.is_some(), certificate.is_some(), jwt.is_some(), any];
    match found.iter().filter(|is_there| **is_there).count() {
        1 => {}
        0 => {
            section.mistake("shows nothing that a caller could show: write bearer: { sha256: HASH }, certificate: { san: NAME }, jwt: { claims: { … } } or any: true");
            return None;
        }
        _ => {
            section.mistake("wants several things: write a rule for each, with the same id and role");
            return None;
        }
    }
    if let Some(field) = bearer {
        return read_bearer(&field).map(Evidence::Bearer);
    }
    if let Some(field) = certificate {
        if !checked.certificates {
            field.mistake(
                "no client is asked for a certificate: write auth.client_ca: FILE, the authority that signs them",
            );
        }
        return read_certificate(&field).map(Evidence::Certificate);
    }
    if let Some(field) = jwt {
        if !checked.jwt {
            field.mistake("no issuer is known: write auth.jwt: { issuer: …, audience: …, jwks_url: … }");
        }
        return read_claims(&field).map(Evidence::Jwt);
    }
    Some(Evidence::Any)
}

/// `{ sha256: HASH }`, or a reference to the secret itself.
fn read_bearer(field: &Field<'_>) -> Option<Sha256> {
    if field.peek_text().is_some() {
        let secret = field.secret_for(None, "NAME")?;
        if secret.expose().len() < SHORTEST_BEARER {
            field.mistake(format!("the secret is shorter than {SHORTEST_BEARER} bytes and can be guessed: `openssl rand -hex 32` makes a good one"));
        }
        return Some(Sha256::of(secret.expose().as_bytes()));
    }
    let mut section = field.section()?;
    let hash = section.required("sha256", "HASH, as `towline auth hash` prints it");
    let hash = hash.and_then(|field| field.parse(str::parse::<Sha256>));
    section.finish();
    hash
}

fn read_certificate(field: &Field<'_>) -> Option<CertificateMatch> {
    let mut section = field.section()?;
    let san = section.get("san").and_then(|field| field.text()).map(|name| CertificateMatch::San(san(name)));
    let subject = section.get("subject").and_then(|field| field.text());
    let subject = subject.map(|subject| CertificateMatch::Subject(subject.to_owned()));
    let spki = section.get("spki_sha256").and_then(|field| field.parse(str::parse::<Sha256>));
    let found: Vec<CertificateMatch> = [san, subject, spki.map(CertificateMatch::Spki)].into_iter().flatten().collect();
    if found.len() != 1 {
        section.mistake("write one of san: NAME, subject: \"CN=ci\" and spki_sha256: HASH");
    }
    section.finish();
    found.into_iter().next()
}

/// Names of hosts are compared in lower case; URIs and addresses as they are.
fn san(name: &str) -> String {
    if name.contains([':', '@']) { name.to_owned() } else { name.to_ascii_lowercase() }
}

fn read_claims(field: &Field<'_>) -> Option<BTreeMap<String, String>> {
    let mut section = field.section()?;
    let entries = section.get("claims").map(|field| field.entries()).unwrap_or_default();
    let claims =
        entries.iter().filter_map(|(name, field)| Some(((*name).to_owned(), field.text()?.to_owned()))).collect();
    section.finish();
    Some(claims)
}

/// The certificate, its key and the authorities have to go together.
fn check_tls(root: &mut Section<'_>, node: &NodeSettings) {
    let Some(tls) = &node.tls else { return };
    if let Err(error) = PublicTls::new(tls.clone())
        && let Some(field) = field_at(root, &["node", "tls"])
    {
        field.mistake(format!("certificate and key cannot be used: {error}"));
    }
}

/// A listener that others can reach is served on terms that the file names.
fn check_listener(root: &mut Section<'_>, node: &NodeSettings, settings: &AuthSettings) {
    if node.http.ip().to_canonical().is_loopback() {
        return;
    }
    let Some(field) = field_at(root, &["node", "listen", "http"]) else { return };
    let address = node.http;
    let mut open = Vec::new();
    if node.tls.is_none() {
        open.push(
            "tokens and answers could be read on the way (write node.tls: { certificate: FILE, key: FILE }, or listen on \
             127.0.0.1 and reach it through ssh or a proxy that authenticates)"
                .to_owned(),
        );
    }
    if !settings.is_configured() {
        open.push(format!("nothing says who may call ({WRITE_RULES}, or auth.client_ca: FILE)"));
    }
    if address.ip().is_unspecified() && node.public_url.is_none() {
        open.push("it is every address, and clients need one (write node.public_url: https://mesh.example)".to_owned());
    }
    if !open.is_empty() {
        field.mistake(format!("{address} is not on loopback: {}", open.join("; ")));
    }
}

fn field_at<'a>(root: &mut Section<'a>, path: &[&'static str]) -> Option<Field<'a>> {
    let (first, rest) = path.split_first()?;
    let mut field = root.get(first)?;
    for name in rest {
        field = field.section()?.get(name)?;
    }
    Some(field)
}

#[cfg(test)]
mod tests;

//! The rules by which a credential becomes a principal: what a configuration says, and whether a credential matches.

use std::{collections::BTreeMap, sync::Arc};

use ring::digest::{SHA256, digest};
use serde_json::{Map, Value};
use subtle::ConstantTimeEq as _;
use towline_core::{Principal, PrincipalId, PrincipalRole};

use super::{
    certificate::{CertificateFacts, San},
    operations::Permits,
};

/// One rule: who somebody is that shows this evidence.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Who: a text, or one with `{CLAIM}` in it for a token of an issuer.
    pub(crate) id: String,
    /// What it may do by default.
    pub(crate) role: PrincipalRole,
    /// What it may ask, grants included.
    pub(crate) permits: Permits,
    /// What the operator says of it.
    pub(crate) labels: Arc<BTreeMap<String, String>>,
    /// What it shows.
    pub(crate) evidence: Evidence,
}

/// What somebody shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// A token with this SHA-256.
    Bearer(Sha256),
    /// A client certificate.
    Certificate(CertificateMatch),
    /// A token of the configured issuer with these claims.
    Jwt(BTreeMap<String, String>),
    /// Nothing.
    Any,
}

/// Which client certificates a rule means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CertificateMatch {
    /// A name, address or URI among its subject alternative names.
    San(String),
    /// Its subject, as `towline auth certificate` would write it: `CN=ci, O=Example`.
    Subject(String),
    /// The hash of its public key.
    Spki(Sha256),
}

/// A SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sha256(pub [u8; 32]);

impl Sha256 {
    /// Of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
        Self(hash)
    }

    /// Takes as long for a wrong hash as for the right one.
    pub fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl std::fmt::Display for Sha256 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::str::FromStr for Sha256 {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error =
            || format!("{:?} is no SHA-256: 64 hexadecimal digits, as `towline auth hash` prints them", shown(text));
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(error());
        }
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| error())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| error())?;
        }
        Ok(Self(hash))
    }
}

/// What may be a token by mistake is not shown whole.
fn shown(text: &str) -> String {
    const SHOWN: usize = 6;
    if text.chars().count() > SHOWN {
        format!("{}…", text.chars().take(SHOWN).collect::<String>())
    } else {
        text.to_owned()
    }
}

impl Rule {
    /// The principal of whoever shows what this rule wants, where its id is a plain text.
    pub(crate) fn principal(&self) -> Option<Principal> {
        self.named(&self.id)
    }

    fn named(&self, id: &str) -> Option<Principal> {
        id.parse::<PrincipalId>().ok().map(|id| Principal::Named { id, role: self.role })
    }

    pub(crate) fn takes_bearer(&self, hash: &Sha256) -> bool {
        matches!(&self.evidence, Evidence::Bearer(known) if known.is(hash))
    }

    pub(crate) fn takes_certificate(&self, facts: &CertificateFacts) -> bool {
        let Evidence::Certificate(wanted) = &self.evidence else { return false };
        match wanted {
            CertificateMatch::San(name) => facts.sans.contains(&San::wanted(name)),
            CertificateMatch::Subject(subject) => facts.subject == *subject,
            CertificateMatch::Spki(hash) => facts.spki.is(hash),
        }
    }

    /// The scope that this rule wants, if it wants one.
    pub(crate) fn scope(&self) -> Option<&str> {
        let Evidence::Jwt(wanted) = &self.evidence else { return None };
        wanted.get("scope").map(String::as_str)
    }

    /// The scope that is all that the claims of a verified token lack for this rule.
    pub(crate) fn lacking_scope(&self, claims: &Map<String, Value>) -> Option<&str> {
        let (scope, Evidence::Jwt(wanted)) = (self.scope()?, &self.evidence) else { return None };
        let has = |name: &str, value: &str| claims.get(name).is_some_and(|claim| claims_value(name, claim, value));
        let has_the_rest = wanted.iter().filter(|(name, _)| *name != "scope").all(|(name, value)| has(name, value));
        (has_the_rest && !has("scope", scope)).then_some(scope)
    }

    /// The principal behind the claims of a verified token.
    pub(crate) fn principal_of_claims(&self, claims: &Map<String, Value>) -> Option<Principal> {
        let Evidence::Jwt(wanted) = &self.evidence else { return None };
        let has =
            |(name, value): (&String, &String)| claims.get(name).is_some_and(|claim| claims_value(name, claim, value));
        if !wanted.iter().all(has) {
            return None;
        }
        let id = filled(&self.id, claims)?;
        // What a claim makes of an id is never the operator, nor a node or an agent of the mesh.
        let is_ours = id == "operator" || ["node:", "agent:"].iter().any(|prefix| id.starts_with(prefix));
        if is_ours { None } else { self.named(&id) }
    }
}

/// Whether a claim is the wanted value, or a list with it. `scope` is a list of words in one text (RFC 8693, 4.2).
fn claims_value(name: &str, claim: &Value, wanted: &str) -> bool {
    match claim {
        Value::String(text) if name == "scope" => text.split(' ').any(|word| word == wanted),
        Value::String(text) => text == wanted,
        Value::Array(values) => values.iter().any(|value| value.as_str() == Some(wanted)),
        Value::Bool(value) => value.to_string() == wanted,
        Value::Number(value) => value.to_string() == wanted,
        Value::Null | Value::Object(_) => false,
    }
}

/// An id with the claims in their places. A claim that is missing or no text makes no id.
fn filled(template: &str, claims: &Map<String, Value>) -> Option<String> {
    let mut id = String::new();
    for piece in pieces(template).ok()? {
        match piece {
            Piece::Text(text) => id.push_str(text),
            Piece::Claim(name) => id.push_str(claims.get(name)?.as_str().filter(|value| !value.is_empty())?),
        }
    }
    Some(id)
}

enum Piece<'a> {
    Text(&'a str),
    Claim(&'a str),
}

fn pieces(template: &str) -> Result<Vec<Piece<'_>>, String> {
    let mut found = Vec::new();
    let mut rest = template;
    while let Some((text, behind)) = rest.split_once('{') {
        let (name, after) =
            behind.split_once('}').ok_or_else(|| format!("{template:?} has a {{ that is not closed"))?;
        if name.is_empty() || text.contains('}') || name.contains('{') {
            return Err(format!("{template:?}: write the name of a claim in braces, as in \"oidc:{{sub}}\""));
        }
        found.extend([Piece::Text(text), Piece::Claim(name)]);
        rest = after;
    }
    if rest.contains('}') {
        return Err(format!("{template:?} has a }} without a {{"));
    }
    found.push(Piece::Text(rest));
    Ok(found)
}

/// Whether an id has claims in it; an error where the braces are wrong.
pub(crate) fn has_claims(id: &str) -> Result<bool, String> {
    Ok(pieces(id)?.iter().any(|piece| matches!(piece, Piece::Claim(_))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(id: &str, claims: &[(&str, &str)]) -> Rule {
        let claims = claims.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let role = PrincipalRole::User;
        let permits = Permits::of(role, &[]);
        Rule { id: id.to_owned(), role, permits, labels: Arc::default(), evidence: Evidence::Jwt(claims) }
    }

    fn id_of(rule: &Rule, claims: Value) -> Option<String> {
        let Value::Object(claims) = claims else { panic!("no object") };
        rule.principal_of_claims(&claims).map(|principal| principal.to_string())
    }

    #[test]
    fn claims_make_the_id_and_are_all_needed() {
        let rule = rule("oidc:{sub}", &[("groups", "mesh"), ("scope", "a2a"), ("email_verified", "true")]);
        let claims = json!({ "sub": "ada", "groups": ["x", "mesh"], "scope": "openid a2a", "email_verified": true });
        assert_eq!(id_of(&rule, claims.clone()).as_deref(), Some("oidc:ada"));
        for (name, value) in [
            ("groups", json!(["meshes"])),
            ("scope", json!("a2a.read")),
            ("email_verified", json!(false)),
            ("sub", json!("")),
            ("sub", json!(7)),
            ("sub", json!("a b")),
            ("sub", Value::Null),
        ] {
            let mut other = claims.clone();
            other[name] = value.clone();
            assert_eq!(id_of(&rule, other), None, "{name}: {value}");
        }
    }

    #[test]
    fn braces_are_read_or_refused() {
        assert_eq!(has_claims("user:ada"), Ok(false));
        assert_eq!(has_claims("{iss}|{sub}"), Ok(true));
        for wrong in ["{", "a}", "{}", "{a{b}", "{a}}"] {
            assert!(has_claims(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_hash_is_read_as_it_is_written() {
        let hash = Sha256::of(b"");
        assert_eq!(hash.to_string(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(hash.to_string().parse::<Sha256>(), Ok(hash));
        assert!(!hash.is(&Sha256::of(b"x")));
        for wrong in ["", "e3", &"g".repeat(64), "my-secret-token"] {
            let error = wrong.parse::<Sha256>().unwrap_err();
            assert!(!error.contains("my-secret-token"), "{error}");
        }
    }
}

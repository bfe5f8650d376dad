//! Signed tokens of one issuer (RFC 7519, 9068): their form, their signature and their time. What is checked is what the
//! configuration names; nothing in a token says how it is to be checked.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Longest token that is looked at.
pub(crate) const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// Shortest RSA modulus that is trusted, in bytes; `ring` takes none that is shorter either.
const MIN_RSA_BYTES: usize = 256;

/// How a token is signed. There is no `none`, and nothing with a shared secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Rs256,
    Ps256,
    Es256,
    Es384,
    EdDsa,
}

impl Algorithm {
    pub const ALL: [Algorithm; 5] =
        [Algorithm::Rs256, Algorithm::Ps256, Algorithm::Es256, Algorithm::Es384, Algorithm::EdDsa];

    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Rs256 => "RS256",
            Algorithm::Ps256 => "PS256",
            Algorithm::Es256 => "ES256",
            Algorithm::Es384 => "ES384",
            Algorithm::EdDsa => "EdDSA",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

/// What a token has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Its `iss`, to the letter.
    pub(crate) issuer: String,
    /// What has to be in its `aud`.
    pub(crate) audience: String,
    /// How it may be signed.
    pub(crate) algorithms: Vec<Algorithm>,
    /// How far clocks may be apart.
    pub(crate) leeway: Duration,
}

/// A token that was taken apart, and not verified.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parsed<'a> {
    pub algorithm: Algorithm,
    pub key_id: Option<String>,
    /// What is signed.
    signed: &'a str,
    signature: Vec<u8>,
    claims: Map<String, Value>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

/// Why a token is not good. For the log of the operator; a caller is told none of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadToken {
    #[error("it is no signed token of three parts in base64url")]
    Form,
    #[error("its algorithm {0:?} is not in auth.jwt.algorithms")]
    Algorithm(String),
    #[error("its header has critical extensions, which nothing here understands")]
    Critical,
    #[error("no key of the issuer has signed it")]
    Signature,
    #[error("its claim {0:?} is missing or another than auth.jwt says")]
    Claim(&'static str),
    #[error("it is over, or not yet good")]
    Time,
}

/// Whether a bearer has the form of a signed token: others are looked up by their hash alone.
pub(crate) fn looks_signed(token: &str) -> bool {
    token.len() <= MAX_TOKEN_BYTES && token.bytes().filter(|byte| *byte == b'.').count() == 2
}

/// Takes a token apart, and refuses what no signature could make good.
pub(crate) fn parse<'a>(token: &'a str, allowed: &[Algorithm]) -> Result<Parsed<'a>, BadToken> {
    if !looks_signed(token) {
        return Err(BadToken::Form);
    }
    let (signed, signature) = token.rsplit_once('.').ok_or(BadToken::Form)?;
    let (header, claims) = signed.split_once('.').ok_or(BadToken::Form)?;
    let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| BadToken::Form);
    let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| BadToken::Form)?;
    if header.crit.is_some() {
        return Err(BadToken::Critical);
    }
    let algorithm = Algorithm::named(&header.alg).filter(|algorithm| allowed.contains(algorithm));
    let algorithm = algorithm.ok_or_else(|| BadToken::Algorithm(header.alg.chars().take(16).collect()))?;
    let claims = serde_json::from_slice(&decode(claims)?).map_err(|_| BadToken::Form)?;
    Ok(Parsed { algorithm, key_id: header.kid, signed, signature: decode(signature)?, claims })
}

impl Parsed<'_> {
    /// The claims, if one of these keys has signed them and they are what is expected at this time.
    pub fn verify<'k>(
        self,
        keys: impl IntoIterator<Item = &'k Key>,
        expected: &Expected,
        now: Duration,
    ) -> Result<Map<String, Value>, BadToken> {
        let fits = |key: &&Key| key.fits(self.algorithm, self.key_id.as_deref());
        let has_signed = |key: &Key| key.has_signed(self.algorithm, self.signed.as_bytes(), &self.signature);
        if !keys.into_iter().filter(fits).any(has_signed) {
            return Err(BadToken::Signature);
        }
        check_claims(&self.claims, expected, now)?;
        Ok(self.claims)
    }
}

fn check_claims(claims: &Map<String, Value>, expected: &Expected, now: Duration) -> Result<(), BadToken> {
    if claims.get("iss").and_then(Value::as_str) != Some(&expected.issuer) {
        return Err(BadToken::Claim("iss"));
    }
    let for_us = match claims.get("aud") {
        Some(Value::String(audience)) => *audience == expected.audience,
        Some(Value::Array(all)) => all.iter().any(|one| one.as_str() == Some(&expected.audience)),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => false,
    };
    if !for_us {
        return Err(BadToken::Claim("aud"));
    }
    let leeway = expected.leeway.as_secs_f64();
    let (now, time) = (now.as_secs_f64(), |name: &str| match claims.get(name) {
        None => Ok(None),
        Some(value) => value.as_f64().map(Some).ok_or(BadToken::Time),
    });
    let ends = time("exp")?.ok_or(BadToken::Claim("exp"))?;
    if now >= ends + leeway {
        return Err(BadToken::Time);
    }
    for begins in [time("nbf")?, time("iat")?].into_iter().flatten() {
        if now + leeway < begins {
            return Err(BadToken::Time);
        }
    }
    Ok(())
}

/// Until when claims that were verified are good, since 1970, as far as clocks may be apart.
pub(crate) fn good_until(claims: &Map<String, Value>, expected: &Expected) -> Option<Duration> {
    let ends = claims.get("exp").and_then(Value::as_f64)? + expected.leeway.as_secs_f64();
    // A time that no clock reaches is no end.
    Duration::try_from_secs_f64(ends).ok()
}

/// The time, as tokens tell it.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A public key of an issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    id: Option<String>,
    /// What the issuer says that it is for.
    algorithm: Option<String>,
    material: Material,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    r#use: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

/// The keys of a key set (RFC 7517) that can verify something here; at most `most` of them.
pub(crate) fn keys_of_set(bytes: &[u8], most: usize) -> Result<Vec<Key>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Set {
        keys: Vec<Value>,
    }
    let set: Set = serde_json::from_slice(bytes)?;
    let keys = set.keys.into_iter().filter_map(|value| serde_json::from_value::<Jwk>(value).ok());
    Ok(keys.filter_map(|jwk| Key::of(&jwk)).take(most).collect())
}

impl Key {
    fn of(jwk: &Jwk) -> Option<Self> {
        if jwk.r#use.as_deref().is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let bytes = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_deref()?).ok();
        let point = |length: usize| {
            let (x, y) = (bytes(&jwk.x)?, bytes(&jwk.y)?);
            (x.len() == length && y.len() == length).then(|| [&[4], &x[..], &y[..]].concat())
        };
        let material = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => {
                let (n, e) = (bytes(&jwk.n)?, bytes(&jwk.e)?);
                (n.len() >= MIN_RSA_BYTES).then_some(Material::Rsa { n, e })?
            }
            ("EC", Some("P-256")) => Material::P256(point(32)?),
            ("EC", Some("P-384")) => Material::P384(point(48)?),
            ("OKP", Some("Ed25519")) => Material::Ed25519(bytes(&jwk.x).filter(|x| x.len() == 32)?),
            _ => return None,
        };
        Some(Self { id: jwk.kid.clone(), algorithm: jwk.alg.clone(), material })
    }

    /// Whether the issuer calls it by this name.
    pub fn is_called(&self, id: &str) -> bool {
        self.id.as_deref() == Some(id)
    }

    fn fits(&self, algorithm: Algorithm, id: Option<&str>) -> bool {
        id.is_none_or(|id| self.is_called(id)) && self.algorithm.as_deref().is_none_or(|own| own == algorithm.name())
    }

    fn has_signed(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let verified = match (&self.material, algorithm) {
            (Material::Rsa { n, e }, Algorithm::Rs256) => {
                RsaPublicKeyComponents { n, e }.verify(&signature::RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            (Material::Rsa { n, e }, Algorithm::Ps256) => {
                RsaPublicKeyComponents { n, e }.verify(&signature::RSA_PSS_2048_8192_SHA256, message, signature)
            }
            (Material::P256(point), Algorithm::Es256) => {
                UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            (Material::P384(point), Algorithm::Es384) => {
                UnparsedPublicKey::new(&signature::ECDSA_P384_SHA384_FIXED, point).verify(message, signature)
            }
            (Material::Ed25519(key), Algorithm::EdDsa) => {
                UnparsedPublicKey::new(&signature::ED25519, key).verify(message, signature)
            }
            (Material::Rsa { .. } | Material::P256(_) | Material::P384(_) | Material::Ed25519(_), _) => return false,
        };
        verified.is_ok()
    }
}

#[cfg(test)]
pub(super) mod tests;

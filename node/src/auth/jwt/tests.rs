use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _},
};
use serde_json::json;

use super::*;

/// An issuer with one key.
pub(in crate::auth) struct Issuer {
    key: EcdsaKeyPair,
    random: SystemRandom,
}

impl Issuer {
    pub fn new() -> Self {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random).unwrap();
        Self { key, random }
    }

    pub fn key_set(&self) -> String {
        let point = self.key.public_key().as_ref();
        let (x, y) = (URL_SAFE_NO_PAD.encode(&point[1..33]), URL_SAFE_NO_PAD.encode(&point[33..]));
        let key = json!({ "kty": "EC", "crv": "P-256", "kid": "k1", "alg": "ES256", "use": "sig", "x": x, "y": y });
        json!({ "keys": [{ "kty": "oct", "k": "c2VjcmV0" }, key] }).to_string()
    }

    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        let signed =
            format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = self.key.sign(&self.random, signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}

pub(in crate::auth) fn header() -> Value {
    json!({ "alg": "ES256", "kid": "k1", "typ": "at+jwt" })
}

const NOW: Duration = Duration::from_secs(1_000_000);

fn claims() -> Value {
    json!({ "iss": "https://id.example", "aud": ["towline", "x"], "sub": "ada", "exp": 1_000_060, "nbf": 999_990.5 })
}

fn expected() -> Expected {
    Expected {
        issuer: "https://id.example".into(),
        audience: "towline".into(),
        algorithms: vec![Algorithm::Es256, Algorithm::EdDsa],
        leeway: Duration::from_secs(30),
    }
}

fn verify(issuer: &Issuer, token: &str, now: Duration) -> Result<Map<String, Value>, BadToken> {
    let keys = keys_of_set(issuer.key_set().as_bytes(), 8).unwrap();
    parse(token, &expected().algorithms)?.verify(&keys, &expected(), now)
}

#[test]
fn a_token_of_the_issuer_gives_its_claims() {
    let issuer = Issuer::new();
    let verified = verify(&issuer, &issuer.sign(&header(), &claims()), NOW).unwrap();
    assert_eq!(verified["sub"], "ada");
    let nameless = issuer.sign(&json!({ "alg": "ES256" }), &claims());
    assert!(verify(&issuer, &nameless, NOW).is_ok());
}

#[test]
fn a_token_is_good_for_its_time_and_what_clocks_may_be_apart() {
    let issuer = Issuer::new();
    let token = issuer.sign(&header(), &claims());
    for (second, good) in [(999_960, false), (999_961, true), (1_000_089, true), (1_000_090, false)] {
        assert_eq!(verify(&issuer, &token, Duration::from_secs(second)).is_ok(), good, "{second}");
    }
}

#[test]
fn what_is_not_as_expected_is_refused() {
    let issuer = Issuer::new();
    let with = |name: &str, value: Value| {
        let mut claims = claims();
        claims[name] = value;
        issuer.sign(&header(), &claims)
    };
    let without_end = {
        let mut claims = claims();
        claims.as_object_mut().unwrap().remove("exp");
        issuer.sign(&header(), &claims)
    };
    for (token, why) in [
        (with("iss", json!("https://id.example/")), BadToken::Claim("iss")),
        (with("aud", json!("other")), BadToken::Claim("aud")),
        (with("aud", Value::Null), BadToken::Claim("aud")),
        (with("exp", json!("1000060")), BadToken::Time),
        (with("nbf", json!(1_000_031)), BadToken::Time),
        (with("iat", json!(1_000_031)), BadToken::Time),
        (without_end, BadToken::Claim("exp")),
        (issuer.sign(&json!({ "alg": "ES256", "kid": "k2" }), &claims()), BadToken::Signature),
        (issuer.sign(&json!({ "alg": "EdDSA", "kid": "k1" }), &claims()), BadToken::Signature),
        (issuer.sign(&json!({ "alg": "none" }), &claims()), BadToken::Algorithm("none".into())),
        (issuer.sign(&json!({ "alg": "HS256" }), &claims()), BadToken::Algorithm("HS256".into())),
        (issuer.sign(&json!({ "alg": "RS256" }), &claims()), BadToken::Algorithm("RS256".into())),
        (issuer.sign(&json!({ "alg": "ES256", "crit": ["b64"] }), &claims()), BadToken::Critical),
        (Issuer::new().sign(&header(), &claims()), BadToken::Signature),
        ("a.b".into(), BadToken::Form),
        ("a.b.c.d".into(), BadToken::Form),
        (format!("{}.e30.", URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256"}"#)), BadToken::Signature),
        (format!("{}.e30.", "A".repeat(MAX_TOKEN_BYTES)), BadToken::Form),
    ] {
        assert_eq!(verify(&issuer, &token, NOW), Err(why), "{token}");
    }
}

#[test]
fn a_changed_token_has_no_signature() {
    let issuer = Issuer::new();
    let token = issuer.sign(&header(), &claims());
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let (header, _) = signed.split_once('.').unwrap();
    let mut other = claims();
    other["sub"] = "root".into();
    let forged = format!("{header}.{}.{signature}", URL_SAFE_NO_PAD.encode(other.to_string()));
    assert_eq!(verify(&issuer, &forged, NOW), Err(BadToken::Signature));
}

#[test]
fn an_edwards_key_verifies_its_tokens() {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
    let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
    let set = json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "x": x }] }).to_string();
    let keys = keys_of_set(set.as_bytes(), 8).unwrap();
    let signed =
        format!("{}.{}", URL_SAFE_NO_PAD.encode(r#"{"alg":"EdDSA"}"#), URL_SAFE_NO_PAD.encode(claims().to_string()));
    let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(pair.sign(signed.as_bytes()).as_ref()));
    let parsed = parse(&token, &expected().algorithms).unwrap();
    assert!(parsed.verify(&keys, &expected(), NOW).is_ok());
}

#[test]
fn keys_that_are_for_something_else_or_too_short_are_left_out() {
    let short = URL_SAFE_NO_PAD.encode([1; 128]);
    for key in [
        json!({ "kty": "RSA", "n": short, "e": "AQAB" }),
        json!({ "kty": "EC", "crv": "P-256", "x": "AA", "y": "AA" }),
        json!({ "kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode([1; 32]), "use": "enc" }),
        json!({ "kty": "OKP", "crv": "X25519", "x": URL_SAFE_NO_PAD.encode([1; 32]) }),
        json!("no key"),
    ] {
        let set = json!({ "keys": [key] }).to_string();
        assert_eq!(keys_of_set(set.as_bytes(), 8).unwrap(), Vec::new(), "{set}");
    }
    let many =
        json!({ "keys": vec![json!({ "kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode([1; 32]) }); 20] });
    assert_eq!(keys_of_set(many.to_string().as_bytes(), 8).unwrap().len(), 8);
    assert!(keys_of_set(b"[]", 8).is_err());
}

//! Signs agent cards (spec 8.4): a JWS over the card's canonical JSON, with the key that the operator configured.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    digest,
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair},
};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use serde_json::{Value, json};

/// Hex digits of the key's hash that name it.
const KEY_ID_DIGITS: usize = 16;

/// Why a key signs no cards.
#[derive(Debug, thiserror::Error)]
pub enum CardKeyError {
    /// It is no PEM block.
    #[error("is no private key in PEM with PKCS #8 (make one with `openssl genpkey -algorithm ed25519`)")]
    Pem,
    /// It is of a kind that is not known.
    #[error("is neither an Ed25519 nor a P-256 key")]
    Kind,
    /// The system gave no randomness.
    #[error("sign the card")]
    Sign,
}

/// A key that signs cards, and how it is called.
pub struct CardSigner {
    key: Key,
    id: String,
}

enum Key {
    Ed25519(Box<Ed25519KeyPair>),
    P256(Box<EcdsaKeyPair>),
}

impl std::fmt::Debug for CardSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CardSigner").field("id", &self.id).finish_non_exhaustive()
    }
}

impl CardSigner {
    /// Reads a private key: PEM with PKCS #8, Ed25519 or P-256.
    ///
    /// # Errors
    /// When it is none of these.
    pub fn from_pem(pem: &str) -> Result<Self, CardKeyError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| CardKeyError::Pem)?;
        let der = der.secret_pkcs8_der();
        let key = match Ed25519KeyPair::from_pkcs8_maybe_unchecked(der) {
            Ok(key) => Key::Ed25519(Box::new(key)),
            Err(_) => {
                let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der, &SystemRandom::new());
                Key::P256(Box::new(key.map_err(|_| CardKeyError::Kind)?))
            }
        };
        let hash = digest::digest(&digest::SHA256, key.public());
        let id: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { key, id: id.chars().take(KEY_ID_DIGITS).collect() })
    }

    /// Puts a signature under a card. It covers all of it but the signatures.
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub fn sign(&self, mut card: Value, key_set: &str) -> Result<Value, CardKeyError> {
        let algorithm = match &self.key {
            Key::Ed25519(_) => "EdDSA",
            Key::P256(_) => "ES256",
        };
        let header = json!({ "alg": algorithm, "jku": key_set, "kid": self.id, "typ": "JOSE" });
        let protected = URL_SAFE_NO_PAD.encode(header.to_string());
        let payload = URL_SAFE_NO_PAD.encode(canonical(&card).to_string());
        let signature = self.signature(format!("{protected}.{payload}").as_bytes())?;
        card["signatures"] = json!([{ "protected": protected, "signature": URL_SAFE_NO_PAD.encode(signature) }]);
        Ok(card)
    }

    /// The public key, as a set of one (RFC 7517).
    pub fn key_set(&self) -> Value {
        let key = match &self.key {
            Key::Ed25519(key) => json!({
                "alg": "EdDSA", "crv": "Ed25519", "kty": "OKP",
                "x": URL_SAFE_NO_PAD.encode(key.public_key()),
            }),
            // Uncompressed: a byte that says so, then both coordinates.
            Key::P256(key) => {
                let (x, y) = key.public_key().as_ref()[1..].split_at(32);
                json!({ "alg": "ES256", "crv": "P-256", "kty": "EC", "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y) })
            }
        };
        let mut key = key;
        key["kid"] = self.id.clone().into();
        key["use"] = "sig".into();
        json!({ "keys": [key] })
    }

    fn signature(&self, message: &[u8]) -> Result<Vec<u8>, CardKeyError> {
        match &self.key {
            Key::Ed25519(key) => Ok(key.sign(message).as_ref().to_vec()),
            Key::P256(key) => {
                let signature = key.sign(&SystemRandom::new(), message).map_err(|_| CardKeyError::Sign)?;
                Ok(signature.as_ref().to_vec())
            }
        }
    }
}

impl Key {
    fn public(&self) -> &[u8] {
        match self {
            Key::Ed25519(key) => key.public_key().as_ref(),
            Key::P256(key) => key.public_key().as_ref(),
        }
    }
}

/// RFC 8785 for a card: names in order, nothing empty, no blanks. Its names are ASCII and it has no fractions, and for the
/// rest serde_json writes what the RFC wants.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(String, Value)> = fields
                .iter()
                .filter(|(_, value)| !is_empty(value))
                .map(|(name, value)| (name.clone(), canonical(value)))
                .collect();
            fields.sort_by(|one, other| one.0.cmp(&other.0));
            Value::Object(fields.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(canonical).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::{ECDSA_P256_SHA256_FIXED, ED25519, UnparsedPublicKey, VerificationAlgorithm};

    use super::*;

    fn pem(der: &[u8]) -> String {
        let body = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n")
    }

    fn verifies(signer: &CardSigner, algorithm: &'static dyn VerificationAlgorithm, signed: &Value) -> bool {
        let mut card = signed.clone();
        card.as_object_mut().unwrap().remove("signatures");
        let text = |name: &str| signed["signatures"][0][name].as_str().unwrap().to_owned();
        let input = format!("{}.{}", text("protected"), URL_SAFE_NO_PAD.encode(canonical(&card).to_string()));
        let signature = URL_SAFE_NO_PAD.decode(text("signature")).unwrap();
        UnparsedPublicKey::new(algorithm, signer.key.public()).verify(input.as_bytes(), &signature).is_ok()
    }

    #[test]
    fn a_signature_covers_the_card_and_is_made_with_either_kind_of_key() {
        let random = SystemRandom::new();
        let ed25519 = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let p256 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let kinds: [(&[u8], &'static dyn VerificationAlgorithm, &str); 2] =
            [(ed25519.as_ref(), &ED25519, "EdDSA"), (p256.as_ref(), &ECDSA_P256_SHA256_FIXED, "ES256")];
        for (der, algorithm, name) in kinds {
            let signer = CardSigner::from_pem(&pem(der)).unwrap();
            let mut signed = signer.sign(json!({ "name": "a", "skills": [{ "id": "x" }] }), "https://k").unwrap();
            assert!(verifies(&signer, algorithm, &signed), "{name}");
            let protected = URL_SAFE_NO_PAD.decode(signed["signatures"][0]["protected"].as_str().unwrap()).unwrap();
            let protected: Value = serde_json::from_slice(&protected).unwrap();
            assert_eq!((protected["alg"].as_str(), protected["kid"].as_str()), (Some(name), Some(signer.id.as_str())));
            assert_eq!(signer.key_set()["keys"][0]["kid"], signer.id.as_str());
            signed["skills"][0]["id"] = "y".into();
            assert!(!verifies(&signer, algorithm, &signed), "{name}: a changed card");
        }
    }

    #[test]
    fn a_card_has_one_canonical_form() {
        let card: Value =
            serde_json::from_str(r#"{ "b": [1, {"z": true, "a": "\u00e9\n"}], "a": "", "c": [] }"#).unwrap();
        assert_eq!(canonical(&card).to_string(), "{\"b\":[1,{\"a\":\"é\\n\",\"z\":true}]}");
    }

    #[test]
    fn what_is_no_key_says_how_to_make_one() {
        let refused = CardSigner::from_pem("secret").unwrap_err().to_string();
        assert!(refused.contains("openssl genpkey"), "{refused}");
        assert!(matches!(CardSigner::from_pem(&pem(b"x")), Err(CardKeyError::Kind)));
    }
}

//! What a card says about credentials: computed from what the listener checks, so that it promises nothing else.

use serde_json::{Map, Value, json};

use super::{Auth, rules::Evidence};
use crate::a2a::principal::Caller;

/// The extension of the extended card that says what its reader may do. Its URI has no version: another meaning gets another.
const PERMISSIONS: &str = "https://towline.dev/a2a/ext/permissions";

/// Puts the security schemes of this listener into a card, and whether there is an extended one.
pub(crate) fn describe(auth: &Auth, card: &mut Value) {
    let schemes = schemes(auth);
    if schemes.is_empty() {
        return;
    }
    let mut requirements: Vec<Value> =
        schemes.keys().map(|name| json!({ "schemes": { name: { "list": [] } } })).collect();
    if auth.rules.iter().any(|rule| rule.evidence == Evidence::Any) {
        requirements.push(json!({ "schemes": {} }));
    }
    card["capabilities"]["extendedAgentCard"] = true.into();
    card["securitySchemes"] = Value::Object(schemes);
    card["securityRequirements"] = requirements.into();
}

/// Whether who asks can show anything, so that there is an extended card.
pub(crate) fn has_schemes(auth: &Auth) -> bool {
    !schemes(auth).is_empty()
}

/// Adds to a described card what its reader may do.
pub(crate) fn extend(card: &mut Value, caller: &Caller) {
    let role = caller.principal.role().map(|role| role.as_str());
    let permissions = json!({
        "uri": PERMISSIONS,
        "description": "What the reader of this card may do.",
        "required": false,
        "params": {
            "operations": caller.standing.permits.names(),
            "principal": caller.principal.to_string(),
            "role": role,
        },
    });
    match card["capabilities"]["extensions"].as_array_mut() {
        Some(extensions) => extensions.push(permissions),
        None => card["capabilities"]["extensions"] = json!([permissions]),
    }
}

fn schemes(auth: &Auth) -> Map<String, Value> {
    let mut schemes = Map::new();
    if auth.rules.iter().any(|rule| matches!(rule.evidence, Evidence::Bearer(_))) {
        let scheme = json!({ "scheme": "Bearer", "description": "A token that the operator has handed out." });
        schemes.insert("bearer".to_owned(), json!({ "httpAuthSecurityScheme": scheme }));
    }
    if let Some(verifier) = &auth.verifier {
        let expected = &verifier.settings().expected;
        let description = format!("A token of {} for the audience {}.", expected.issuer, expected.audience);
        let scheme = json!({ "scheme": "Bearer", "bearerFormat": "JWT", "description": description });
        schemes.insert("jwt".to_owned(), json!({ "httpAuthSecurityScheme": scheme }));
    }
    if auth.client_certificates {
        let scheme = json!({ "description": "A client certificate of an authority that the operator trusts." });
        schemes.insert("mtls".to_owned(), json!({ "mtlsSecurityScheme": scheme }));
    }
    if let Some(sessions) = auth.sessions.get() {
        schemes.extend(sessions.schemes());
    }
    schemes
}

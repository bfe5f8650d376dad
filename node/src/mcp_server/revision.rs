//! The revisions of MCP that are spoken, and what a request says of the client behind it.
//!
//! | | with sessions (2025-11-25 and earlier) | without (2026-07-28) |
//! |---|---|---|
//! | begins with | `initialize` | nothing: each request says its revision and what its client can do |
//! | the server speaks | on a stream that the client opens with GET | on the stream of `subscriptions/listen` |
//! | a question to a person | a request on the stream of the call | a result that asks, and the call once more |

use http::HeaderMap;
use serde_json::Value;

use super::message::{Request, RpcError, code};

/// The revision without sessions.
pub(super) const STATELESS: &str = "2026-07-28";

/// The revisions with sessions, the newest first.
pub(super) const WITH_SESSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// The revision of a request that names none (spec of 2025-06-18, transports).
const UNNAMED: &str = "2025-03-26";

const HEADER: &str = "mcp-protocol-version";
const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub(super) const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// How a client and this server know each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    /// By a session, or by none that is needed.
    Sessions,
    /// By what each request says.
    Stateless,
}

/// What is known of the client behind a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Speaker {
    pub era: Era,
    pub version: &'static str,
    /// Whether it has said that it asks a person when it is asked to.
    pub elicits: bool,
}

impl Speaker {
    /// A client that has not said anything of itself.
    pub fn unknown() -> Self {
        Self { era: Era::Sessions, version: UNNAMED, elicits: false }
    }
}

/// The revision that a session is given which asked for this one.
pub(super) fn negotiated(asked: &str) -> &'static str {
    WITH_SESSIONS.into_iter().find(|known| *known == asked).unwrap_or(WITH_SESSIONS[0])
}

/// Whether capabilities of a client have elicitation by a form. One that names no mode has that one.
pub(super) fn elicits(capabilities: &Value) -> bool {
    let Some(elicitation) = capabilities.get("elicitation").and_then(Value::as_object) else { return false };
    elicitation.contains_key("form") || !elicitation.contains_key("url")
}

/// What the header says; none where there is none.
///
/// # Errors
/// When it is twice there, or no text.
pub(super) fn header(headers: &HeaderMap) -> Result<Option<&str>, RpcError> {
    super::headers::one(headers, HEADER)
}

/// Whether a request is one of the revision without sessions: it says so, or asks for what only that one has.
pub(super) fn is_stateless(request: &Request, header: Option<&str>) -> bool {
    let says_so = header.is_some_and(|version| version >= STATELESS) && request.method != "initialize";
    request.meta(META_VERSION).is_some() || request.method == "server/discover" || says_so
}

/// The client of a request without a session.
///
/// # Errors
/// When the request does not say what it has to, or wants a revision that is not spoken.
pub(super) fn stateless(request: &Request, header: Option<&str>) -> Result<Speaker, RpcError> {
    let version = request.meta(META_VERSION).and_then(Value::as_str);
    let capabilities = request.meta(META_CAPABILITIES).filter(|capabilities| capabilities.is_object());
    let (Some(version), Some(capabilities)) = (version, capabilities) else {
        let missing: Vec<&str> = [(META_VERSION, version.is_none()), (META_CAPABILITIES, capabilities.is_none())]
            .into_iter()
            .filter_map(|(key, is_missing)| is_missing.then_some(key))
            .collect();
        let message = format!("params._meta is without {}, which every request has to say", missing.join(" and "));
        return Err(RpcError::invalid_params(message));
    };
    match header {
        None => return Err(RpcError::header_mismatch("the header MCP-Protocol-Version is missing")),
        Some(header) if header != version => {
            let message = format!("the header MCP-Protocol-Version is {header:?}, and params._meta says {version:?}");
            return Err(RpcError::header_mismatch(message));
        }
        Some(_) => {}
    }
    if version != STATELESS {
        return Err(unsupported(version, &[STATELESS]));
    }
    Ok(Speaker { era: Era::Stateless, version: STATELESS, elicits: elicits(capabilities) })
}

/// The error for a revision that is not spoken (spec of 2026-07-28, versioning): the client takes another one.
fn unsupported(version: &str, supported: &[&str]) -> RpcError {
    let requested = towline_a2a::shortened(version);
    let message = format!("revision {requested:?} of MCP is not spoken here: {}", supported.join(", "));
    let data = serde_json::json!({ "supported": supported, "requested": requested });
    RpcError::new(code::UNSUPPORTED_VERSION, message).with(data)
}

/// Whether a message names a revision that is spoken at all, if it names one.
///
/// # Errors
/// When it does not.
pub(super) fn check_spoken(header: Option<&str>) -> Result<(), RpcError> {
    let Some(version) = header.filter(|version| *version != STATELESS) else { return Ok(()) };
    if WITH_SESSIONS.contains(&version) {
        return Ok(());
    }
    // What `server/discover` names: the error is of that revision, and the others are agreed on by `initialize`.
    Err(unsupported(version, &[STATELESS]))
}

/// Whether a request with a session, or before one, names a revision that has sessions.
///
/// # Errors
/// When it does not.
pub(super) fn check_known(header: Option<&str>) -> Result<(), RpcError> {
    let Some(version) = header.filter(|version| !WITH_SESSIONS.contains(version)) else { return Ok(()) };
    Err(unsupported(version, &WITH_SESSIONS))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(params: &Value) -> Request {
        Request { id: json!(1), method: "tools/list".into(), params: params.as_object().cloned().unwrap() }
    }

    fn said(version: &str) -> Value {
        json!({ "_meta": { META_VERSION: version, META_CAPABILITIES: { "elicitation": {} } } })
    }

    #[test]
    fn a_request_without_a_session_says_its_revision_twice_and_what_its_client_can_do() {
        let speaker = stateless(&request(&said(STATELESS)), Some(STATELESS)).unwrap();
        assert_eq!((speaker.era, speaker.elicits), (Era::Stateless, true));
        let code_of = |params: &Value, header| stateless(&request(params), header).unwrap_err().code;
        assert_eq!(code_of(&json!({}), Some(STATELESS)), code::INVALID_PARAMS);
        assert_eq!(code_of(&json!({ "_meta": { META_VERSION: STATELESS } }), Some(STATELESS)), code::INVALID_PARAMS);
        assert_eq!(code_of(&said(STATELESS), None), code::HEADER_MISMATCH);
        assert_eq!(code_of(&said(STATELESS), Some("2025-11-25")), code::HEADER_MISMATCH);
        let refused = stateless(&request(&said("v999")), Some("v999")).unwrap_err();
        assert_eq!((refused.code, &refused.data.unwrap()["requested"]), (code::UNSUPPORTED_VERSION, &json!("v999")));
    }

    #[test]
    fn a_revision_that_nobody_knows_is_answered_with_those_that_are_spoken() {
        for known in [None, Some(STATELESS), Some(WITH_SESSIONS[3])] {
            assert!(check_spoken(known).is_ok(), "{known:?}");
        }
        for unknown in ["1999-01-01", "2030-01-01", "x", ""] {
            let refused = check_spoken(Some(unknown)).unwrap_err();
            let data = refused.data.unwrap();
            assert_eq!((refused.code, &data["requested"]), (code::UNSUPPORTED_VERSION, &json!(unknown)));
            assert_eq!(data["supported"], json!([STATELESS]));
        }
        assert_eq!(check_known(Some(STATELESS)).unwrap_err().code, code::UNSUPPORTED_VERSION, "it has no sessions");
    }

    #[test]
    fn a_session_is_given_the_revision_that_it_asked_for_or_the_newest() {
        for known in WITH_SESSIONS {
            assert_eq!(negotiated(known), known);
        }
        for other in [STATELESS, "1.0", ""] {
            assert_eq!(negotiated(other), WITH_SESSIONS[0], "{other}");
        }
    }

    #[test]
    fn a_client_elicits_only_if_it_says_so_and_by_a_form() {
        assert!(
            elicits(&json!({ "elicitation": {} })) && elicits(&json!({ "elicitation": { "form": {}, "url": {} } }))
        );
        assert!(!elicits(&json!({})) && !elicits(&json!({ "elicitation": { "url": {} } })));
        assert!(!elicits(&json!({ "elicitation": true })), "what is no capability is none");
    }
}

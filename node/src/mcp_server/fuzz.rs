//! What clients of `/mcp` send, read as the door reads it.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, value::RawValue};
use towline_core::Principal;

use super::{
    headers,
    message::{self, Incoming},
    revision,
    session::{MAX_SUBSCRIPTIONS, SessionId},
    watch::{event_id, read_event_id},
};

/// A message: lines of its head, an empty line, its body.
pub(crate) fn message(bytes: &[u8]) {
    let (head, body) = match bytes.windows(2).position(|two| two == b"\n\n") {
        Some(at) => (&bytes[..at], &bytes[at + 2..]),
        None => (&[][..], bytes),
    };
    let headers: HeaderMap = head.split(|byte| *byte == b'\n').filter_map(header).collect();
    let Ok(Incoming::Request(request)) = message::parse(body) else { return };
    let version = revision::header(&headers).ok().flatten();
    if revision::is_stateless(&request, version) {
        drop(revision::stateless(&request, version));
        drop(headers::check(&headers, &request));
    } else {
        drop(revision::check_known(version));
    }
    for (name, value) in &request.params {
        drop(headers::check_parameter(&headers, name, Some(value)));
    }
    let is_a_name = |method: &str| method.chars().all(|c| c.is_ascii_alphanumeric() || c == '/');
    if request.method.is_empty() || !is_a_name(&request.method) {
        return;
    }
    // What a proxy in front of us would send for this request is what we take.
    let sent = headers::of(&request).into_iter().filter_map(|(name, value)| Some((name, value.parse().ok()?)));
    let sent: HeaderMap = sent.map(|(name, value)| (HeaderName::from_static(name), value)).collect();
    assert_eq!(headers::check(&sent, &request), Ok(()));
}

fn header(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let at = line.iter().position(|byte| *byte == b':')?;
    Some((HeaderName::from_bytes(&line[..at]).ok()?, HeaderValue::from_bytes(line[at + 1..].trim_ascii()).ok()?))
}

/// The id of a session and of an event: one that is taken is written as it came.
pub(crate) fn ids(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(session) = SessionId::read(text, &Principal::Operator) {
        assert_eq!(session.to_string(), text);
    }
    let seen = read_event_id(text, MAX_SUBSCRIPTIONS);
    assert!(seen.len() <= MAX_SUBSCRIPTIONS);
    assert_eq!(read_event_id(&event_id(&seen), MAX_SUBSCRIPTIONS), seen);
}

/// A result of another server on its way to a client: still JSON, on one line, with all that it had.
pub(crate) fn passed_on(bytes: &[u8]) {
    let Ok(result) = serde_json::from_slice::<Box<RawValue>>(bytes) else { return };
    let lacking = [("resultType", "\"complete\"".to_owned())];
    let whole = message::original(&Value::from(1), &result, &lacking);
    assert!(!whole.contains(['\n', '\r']));
    // Deeper than a parser reads is refused by who reads it.
    let (Ok(mut had), Ok(has)) = (serde_json::from_str::<Value>(result.get()), serde_json::from_str::<Value>(&whole))
    else {
        return;
    };
    if let Value::Object(fields) = &mut had {
        fields.entry("resultType").or_insert_with(|| "complete".into());
    }
    assert_eq!(has["result"], had);
}

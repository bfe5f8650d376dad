//! Decoders of what clients send and operators write, as plain functions for fuzzing: none of them may panic.

use towline_a2a::convert;
use towline_actors::egress::{self, EgressPolicy};

use crate::{
    a2a::{blob_range_of, fuzz_http_request, fuzz_request},
    auth,
    config::{self, Overrides},
    mcp_server,
};

/// A JSON-RPC request of a client, down to the core's types, whatever method it names.
pub fn a2a_request(bytes: &[u8]) {
    let Some(params) = fuzz_request(bytes) else { return };
    drop(convert::send_request(params.clone()));
    drop(convert::get_request(params.clone()));
    drop(convert::task_request(params.clone()));
    drop(convert::list_request(params.clone()));
    drop(convert::create_push_config(params.clone()));
    drop(convert::push_config_name(params.clone()));
    drop(convert::list_push_configs(params));
}

/// The path and the query of a request over HTTP+JSON, parted by the first `?`.
pub fn a2a_http_request(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    fuzz_http_request(path, query);
}

/// What a peer answers: a task, an event, a page, a card.
pub fn a2a_answer(bytes: &[u8]) {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(bytes) else { return };
    drop(convert::RemoteTask::from_wire(value.clone()));
    drop(convert::stream_event_from_wire(value.clone()));
    drop(convert::send_reply_from_wire(value.clone()));
    drop(convert::page_from_wire(value.clone()));
    drop(convert::card_from_wire(value));
}

/// The `Range` header of a request for a blob: what is understood lies inside of the blob.
pub fn blob_range(bytes: &[u8]) {
    let Some((length, text)) = bytes.split_first_chunk::<8>() else { return };
    let length = u64::from_le_bytes(*length);
    if let Some(range) = std::str::from_utf8(text).ok().and_then(|text| blob_range_of(text, length)) {
        assert!(range.start < range.end && range.end <= length, "{range:?} of {length} bytes");
    }
}

/// A signed token of a caller: what no key has signed gives no claims.
pub fn signed_token(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    auth::fuzz_token(text);
}

/// The key set of an issuer.
pub fn key_set(bytes: &[u8]) {
    auth::fuzz_key_set(bytes);
}

/// A client certificate in DER.
pub fn client_certificate(bytes: &[u8]) {
    auth::fuzz_certificate(bytes);
}

/// The headers by which a caller and its page are known, a line each.
pub fn caller_headers(bytes: &[u8]) {
    let mut lines = bytes.splitn(2, |byte| *byte == b'\n');
    auth::fuzz_headers(lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
}

/// The URL of a webhook: what is taken is https, and no address that is not public. What the operator may allow is read as well.
pub fn push_url(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    drop(text.parse::<egress::Allowed>());
    let Ok(target) = EgressPolicy::default().target(text) else { return };
    assert!(target.is_https(), "{text:?} is taken");
    assert!(target.literal().is_none_or(egress::is_public), "{text:?} is taken");
}

/// A message of an agent over A2E, down to what its type asks for.
pub fn a2e_message(bytes: &[u8]) {
    crate::a2e::fuzz_message(bytes);
}

/// A configuration file.
pub fn configuration(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    drop(config::read(text, "/nowhere".into(), &Overrides::default()));
}

/// A request to the MCP door: lines of its head, an empty line, its body.
pub fn mcp_request(bytes: &[u8]) {
    mcp_server::fuzz::message(bytes);
}

/// The ids of a session and of an event of the MCP door.
pub fn mcp_ids(bytes: &[u8]) {
    mcp_server::fuzz::ids(bytes);
}

/// What an MCP server answers: as a connection reads it, and as the gateway passes it on.
pub fn mcp_answer(bytes: &[u8]) {
    towline_actors::mcp_connection::fuzz_answer(bytes);
    mcp_server::fuzz::passed_on(bytes);
}

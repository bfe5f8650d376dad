//! Servers that an agent registers: read, looked at by the policy of this node, put into the state, and connected.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};
use towline_actors::mcp_connection::McpServerState;
use towline_cluster::ProposeError;
use towline_core::{BridgeChange, BridgedServer, BridgedTransport, Command, Proposal};

use super::{
    dispatch::Ask,
    message::{Code, Failure, Incoming, answer},
    resources::refused,
    servers::{BETWEEN, Key, not_dialled},
};
use crate::{auth::audit, error::chain};

/// How long a registration waits for the first connection: agents give up after 20 s, and are told before that it takes longer.
const CONNECT_WITHIN: Duration = Duration::from_secs(15);

/// How long a request to a server may take that does not say, and that says the most, in seconds.
const DEFAULT_TIMEOUT: u64 = 300;
const MAX_TIMEOUT: u64 = 3_600;

/// Longest id of a server: it stands in the names of its tools.
const MAX_ID_BYTES: usize = 64;

/// Headers that are the connection's own.
const OWN_HEADERS: [&str; 7] =
    ["accept", "connection", "content-length", "host", "last-event-id", "mcp-session-id", "transfer-encoding"];

pub(super) async fn list(ask: &Ask) -> Result<Value, Failure> {
    let wanted = ask.message.text("status_filter")?;
    let servers = ask.bridge.servers.visible(&ask.bridge, &ask.caller.principal).await;
    let servers = servers.iter().map(super::servers::Visible::info);
    let servers: Vec<Value> = servers.filter(|info| wanted.is_empty() || info["status"] == wanted).collect();
    Ok(answer("mcp/server/list/resp", &ask.message.id, json!({ "servers": servers })))
}

pub(super) async fn register(ask: &Ask) -> Result<Value, Failure> {
    let registered = registered(ask).await;
    let outcome = registered.as_ref().map_or_else(|failure| failure.code.as_str(), |_| "ok");
    let id = registered.as_ref().ok().and_then(|info| info["server_id"].as_str());
    audit::method(&ask.caller, "a2e.register", id, outcome, &ask.trace);
    let answered = match registered {
        Ok(info) => json!({ "error": "", "ok": true, "server": info }),
        Err(failure) => refused(json!({ "ok": false, "server": {} }), &failure),
    };
    Ok(answer("mcp/server/register/resp", &ask.message.id, answered))
}

async fn registered(ask: &Ask) -> Result<Value, Failure> {
    let server = read(&ask.message)?;
    let (bridge, by) = (&ask.bridge, &ask.caller.principal);
    bridge.settings.config(&server).map_err(|why| Failure::new(Code::Transport, why))?;
    if let BridgedTransport::Url { url, .. } = &server.transport {
        let looked_at = bridge.settings.egress.check(url).await;
        looked_at.map_err(|refused| Failure::new(Code::Transport, not_dialled(&refused)))?;
    }
    if bridge.servers.visible(bridge, by).await.iter().any(|known| known.id == server.id) {
        let why = format!("server_id {:?} is in use: choose another, or unregister that server first", server.id);
        return Err(Failure::new(Code::InvalidMessage, why));
    }
    let id = server.id.clone();
    propose(ask, BridgeChange::Register(server)).await?;
    let known = bridge.a2a.cluster.local(|state| state.bridged(by, &id).map(Arc::clone));
    let known = known.ok_or_else(|| super::servers::not_found(&id))?;
    let visible = bridge.servers.registered(bridge, by, &known).await;
    let link = visible.link()?;
    link.handle.settled(CONNECT_WITHIN).await;
    let status = link.handle.status();
    if status.state == McpServerState::Down {
        // What was never there is not kept: its agent hears why, and may try again.
        propose(ask, BridgeChange::Unregister { id: id.clone() }).await?;
        bridge.servers.end(by, &id).await;
        let why = status.reason.unwrap_or_default();
        return Err(Failure::new(Code::Transport, format!("MCP server {id} does not connect: {why}")));
    }
    Ok(visible.info())
}

pub(super) async fn unregister(ask: &Ask) -> Result<Value, Failure> {
    let id = ask.message.needed("server_id")?;
    let (bridge, by) = (&ask.bridge, &ask.caller.principal);
    let is_there = bridge.a2a.cluster.local(|state| state.bridged(by, id).is_some());
    let unregistered = if is_there {
        propose(ask, BridgeChange::Unregister { id: id.to_owned() }).await
    } else {
        Err(super::servers::not_found(id))
    };
    let outcome = unregistered.as_ref().map_or_else(|failure| failure.code.as_str(), |()| "ok");
    audit::method(&ask.caller, "a2e.unregister", Some(id), outcome, &ask.trace);
    let answered = match unregistered {
        Ok(()) => {
            bridge.servers.end(by, id).await;
            let sessions = bridge.sessions.all();
            let key = Key { owner: Some(by.owner()), id: id.to_owned() };
            sessions.iter().for_each(|session| session.forget(&key));
            json!({ "error": "", "ok": true, "server_id": id })
        }
        Err(failure) => refused(json!({ "ok": false, "server_id": id }), &failure),
    };
    Ok(answer("mcp/server/unregister/resp", &ask.message.id, answered))
}

async fn propose(ask: &Ask, change: BridgeChange) -> Result<(), Failure> {
    let command = Command::Bridge(Box::new(change));
    let proposal = Proposal { by: ask.caller.principal.clone(), command };
    let proposed = ask.bridge.a2a.cluster.propose(proposal, Some(&ask.trace)).await;
    proposed.map(drop).map_err(|error| match error {
        ProposeError::Rejected(rejection) => Failure::new(Code::Runtime, rejection.to_string()),
        error @ (ProposeError::Unavailable { .. } | ProposeError::Unknown { .. }) => {
            Failure::new(Code::Busy, chain(&error))
        }
    })
}

/// Reads the configuration of a server.
///
/// # Errors
/// What is wrong with it.
pub(super) fn read(message: &Incoming) -> Result<BridgedServer, Failure> {
    let config = message.config()?;
    let wrong = |why: String| Err(Failure::new(Code::SchemaViolation, why));
    let id = match config.text("server_id")? {
        "" => uuid::Uuid::new_v4().simple().to_string()[..8].to_owned(),
        id => id.to_owned(),
    };
    let is_plain = id.len() <= MAX_ID_BYTES && id.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    if !is_plain || id.contains(BETWEEN) {
        return wrong(format!(
            "server_id of config has to be letters, digits, '_', '-' and '.', at most {MAX_ID_BYTES}, without {BETWEEN:?}"
        ));
    }
    let timeout = config.number("timeout", DEFAULT_TIMEOUT)?;
    if !(1..=MAX_TIMEOUT).contains(&timeout) {
        return wrong(format!("timeout of config has to be 1 to {MAX_TIMEOUT} seconds"));
    }
    Ok(BridgedServer {
        name: config.text("name")?.to_owned(),
        transport: transport(&config)?,
        timeout_s: u32::try_from(timeout).unwrap_or(u32::MAX),
        auto_reconnect: config.flag("auto_reconnect", true)?,
        tools: config.texts("tool_allow_list")?,
        resources: config.texts("resource_allow_list")?,
        id,
    })
}

fn transport(config: &Incoming) -> Result<BridgedTransport, Failure> {
    let wrong = |why: &str| Err(Failure::new(Code::SchemaViolation, why.to_owned()));
    let (command, cwd, env) = (config.texts("cmd")?, config.text("cwd")?, config.pairs("env")?);
    let (url, headers) = (config.text("url")?, config.pairs("headers")?);
    match config.text("transport")? {
        "stdio" | "" => {
            if command.is_empty() {
                return wrong("cmd of config has to name a program: its transport is stdio");
            }
            if command.iter().chain(env.keys()).chain(env.values()).any(|text| text.contains('\0'))
                || cwd.contains('\0')
            {
                return wrong("cmd, env and cwd of config cannot have a zero byte");
            }
            Ok(BridgedTransport::Command { command, cwd: cwd.to_owned(), env })
        }
        kind @ ("sse" | "http" | "streamable-http") => {
            if url.is_empty() {
                return wrong("url of config has to be there: its transport is HTTP");
            }
            check_headers(&headers)?;
            Ok(BridgedTransport::Url { url: url.to_owned(), kind: kind.to_owned(), headers })
        }
        "ws" => {
            let why = "transport ws is reserved: use sse with the URL of Streamable HTTP or of HTTP with SSE";
            Err(Failure::new(Code::Transport, why))
        }
        _ => wrong("transport of config has to be stdio, sse or ws"),
    }
}

fn check_headers(headers: &BTreeMap<String, String>) -> Result<(), Failure> {
    for (name, value) in headers {
        let lower = name.to_ascii_lowercase();
        let is_header = http::HeaderName::try_from(name).is_ok() && http::HeaderValue::try_from(value).is_ok();
        if !is_header || OWN_HEADERS.contains(&lower.as_str()) {
            let why = format!("header {:?} of config cannot be sent", towline_a2a::shortened(name));
            return Err(Failure::new(Code::SchemaViolation, why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::a2e::message::parse;

    fn of(config: Value) -> Result<BridgedServer, Failure> {
        let message = json!({ "type": "mcp/server/register/req", "id": "1", "config": config });
        read(&parse(message.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn a_configuration_has_the_defaults_of_the_protocol() {
        let server = of(json!({ "cmd": ["mcp-files"] })).unwrap();
        assert_eq!((server.id.len(), server.timeout_s, server.auto_reconnect), (8, 300, true));
        assert!(server.name.is_empty() && server.tools.is_empty() && server.resources.is_empty());
        assert!(matches!(server.transport, BridgedTransport::Command { .. }));
        let url =
            of(json!({ "transport": "sse", "url": "https://a.example/sse", "headers": { "authorization": "x" } }));
        assert!(matches!(url.unwrap().transport, BridgedTransport::Url { .. }));
    }

    #[test]
    fn what_is_wrong_with_a_configuration_is_said() {
        for (config, code) in [
            (json!({}), Code::SchemaViolation),
            (json!({ "cmd": "sh" }), Code::SchemaViolation),
            (json!({ "cmd": ["a\u{0}b"] }), Code::SchemaViolation),
            (json!({ "cmd": ["a"], "server_id": "a__b" }), Code::SchemaViolation),
            (json!({ "cmd": ["a"], "server_id": "a b" }), Code::SchemaViolation),
            (json!({ "cmd": ["a"], "timeout": 0 }), Code::SchemaViolation),
            (json!({ "cmd": ["a"], "timeout": 100_000 }), Code::SchemaViolation),
            (json!({ "cmd": ["a"], "env": { "A": 1 } }), Code::SchemaViolation),
            (json!({ "transport": "sse" }), Code::SchemaViolation),
            (json!({ "transport": "pigeon", "url": "x" }), Code::SchemaViolation),
            (json!({ "transport": "ws", "url": "wss://a.example" }), Code::Transport),
            (json!({ "transport": "sse", "url": "x", "headers": { "Host": "x" } }), Code::SchemaViolation),
            (json!({ "transport": "sse", "url": "x", "headers": { "a b": "x" } }), Code::SchemaViolation),
            (json!({ "transport": "sse", "url": "x", "headers": { "a": "x\ny" } }), Code::SchemaViolation),
        ] {
            assert_eq!(of(config.clone()).unwrap_err().code, code, "{config}");
        }
    }
}

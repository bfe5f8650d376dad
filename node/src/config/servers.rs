//! `mcp:` – the MCP servers that this node uses.

use std::collections::BTreeMap;

use reqwest::Url;
use towline_actors::{McpServerConfig, McpTransport, OnChange, Secret, Traits};
use towline_core::OnAdoption;

use super::{
    mcp_security,
    mistakes::hint,
    section::{Field, Section},
    serve,
    values::{duration, glob, http_url, is_plain_remote, plain_name, resolve, url_text},
};
use crate::mcp_server::ServeSettings;

/// Most calls of one server at the same time.
const MAX_CALLS: u32 = 1_000;
/// The name under which agents read resources: a server that has it could not be told from that.
const RESERVED: &str = "resource";
/// As program of a stdio server this stands for the running binary, wherever it lies.
const OURSELVES: &str = "towline";

/// The servers, and what is served.
pub(crate) fn read(root: &mut Section<'_>) -> (Vec<McpServerConfig>, ServeSettings) {
    let Some(mut section) = root.get("mcp").and_then(|field| field.section()) else {
        return (Vec::new(), ServeSettings::default());
    };
    let mut servers: Vec<McpServerConfig> = Vec::new();
    for field in section.list("servers") {
        let Some(server) = read_server(&field) else { continue };
        if servers.iter().any(|known| known.name == server.name) {
            field.mistake(format!("server {:?} is declared twice: names are unique", server.name));
        }
        servers.push(server);
    }
    let serve = section.get("serve").and_then(|field| serve::read(&field, &servers));
    section.finish();
    (servers, serve.unwrap_or_default())
}

fn read_server(field: &Field<'_>) -> Option<McpServerConfig> {
    let mut section = field.section()?;
    let name = section.required("name", "fs").and_then(|field| field.parse(plain_name));
    let transport = read_transport(&mut section);
    let security = mcp_security::read(&mut section, transport.as_ref());
    let allow = section.list("allow").iter().filter_map(|field| field.parse(glob)).collect();
    let on_adoption = section.get("on_adoption").map(|field| read_on_adoption(&field)).unwrap_or_default();
    let trust_annotations = section.flag("trust_annotations", false);
    let total = section.get("timeout").and_then(|field| field.parse(duration));
    let idle = section.get("idle_timeout").and_then(|field| field.parse(duration));
    let max_calls = section.get("max_calls").and_then(|field| field.number(1, MAX_CALLS));
    let elicitation = section.flag("elicitation", false);
    let on_change = section.get("on_change").and_then(|field| field.parse(on_change)).unwrap_or_default();
    let required = section.flag("required", false);
    let traits = section.list("tags").iter().filter_map(read_tag).fold(Traits::default(), Traits::and);
    section.finish();
    let defaults = McpServerConfig::new(&name?, transport?);
    if defaults.name == RESERVED {
        field.mistake(format!("a server may not be called {RESERVED:?}: agents read resources with {RESERVED}.read"));
    }
    Some(McpServerConfig {
        allow,
        on_adoption,
        trust_annotations,
        call_timeout: total.unwrap_or(defaults.call_timeout),
        // Who says how long a call may take says as well how long it may say nothing.
        idle_timeout: idle.or(total).unwrap_or(defaults.idle_timeout),
        max_calls: max_calls.and_then(|calls| usize::try_from(calls).ok()).unwrap_or(defaults.max_calls),
        elicitation,
        on_change,
        required,
        traits,
        security,
        ..defaults
    })
}

fn on_change(text: &str) -> Result<OnChange, String> {
    match text {
        "flag" => Ok(OnChange::Flag),
        "block" => Ok(OnChange::Block),
        _ => Err(format!("{text:?} is not known; {}", hint(text, ["flag", "block"]))),
    }
}

/// A tag of a server says what its data is, or what can be done with it.
fn read_tag(field: &Field<'_>) -> Option<Traits> {
    let tag = field.text()?;
    let traits = Traits::of_tag(tag);
    if traits.is_none() {
        field.mistake(format!("tag {tag:?} is not known; {}", hint(tag, Traits::WORDS)));
    }
    traits
}

/// `command` means stdio and `endpoint` means http; `transport` may say so, too, or that it is only `sse`. With `socket` it is
/// http over a Unix socket.
fn read_transport(section: &mut Section<'_>) -> Option<McpTransport> {
    let transport = section.get("transport");
    let command = section.get("command");
    let endpoint = section.get("endpoint");
    let env = section.get("env");
    let cwd = section.get("cwd");
    let headers = section.get("headers");
    let socket = section.get("socket");
    let said = transport.as_ref().and_then(|field| field.text());
    let kind = match (said, &command, endpoint.as_ref().or(socket.as_ref())) {
        (Some(said @ ("stdio" | "http" | "sse")), _, _) => said,
        (Some(said), _, _) => {
            let known = hint(said, ["stdio", "http", "sse"]);
            transport.as_ref()?.mistake(format!("transport {said:?} is not known; {known}"));
            return None;
        }
        (None, Some(_), None) => "stdio",
        (None, None, Some(_)) => "http",
        (None, Some(_), Some(_)) => {
            section.mistake("has command and endpoint: a server is reached one way");
            return None;
        }
        (None, None, None) => {
            section.mistake(
                "command or endpoint is missing: write command: [PROGRAM, ARGUMENT] or endpoint: http://HOST/mcp",
            );
            return None;
        }
    };
    if kind == "stdio" {
        refuse(&[&endpoint, &headers, &socket], "is for http servers; this one is a child process");
        let Some(command) = command else {
            section.mistake("command is missing: write command: [PROGRAM, ARGUMENT]");
            return None;
        };
        return read_stdio(&command, env.as_ref(), cwd.as_ref());
    }
    refuse(&[&command, &env, &cwd], "is for stdio servers; this one is reached over http");
    let legacy = kind == "sse";
    let Some(endpoint) = endpoint else {
        let path = if legacy { "sse" } else { "mcp" };
        section.mistake(format!("endpoint is missing: write endpoint: http://HOST/{path}"));
        return None;
    };
    let socket = match &socket {
        Some(field) => Some(resolve(&field.context.base, field.text()?)),
        None => None,
    };
    read_http(&endpoint, headers.as_ref()).map(|(endpoint, headers)| McpTransport::Http {
        endpoint,
        headers,
        socket,
        legacy,
    })
}

fn refuse(fields: &[&Option<Field<'_>>], reason: &str) {
    fields.iter().copied().flatten().for_each(|field| field.mistake(reason));
}

fn read_stdio(command: &Field<'_>, env: Option<&Field<'_>>, cwd: Option<&Field<'_>>) -> Option<McpTransport> {
    let words = command.list();
    let mut command_line: Vec<String> = words.iter().filter_map(|field| field.text().map(str::to_owned)).collect();
    if words.is_empty() {
        command.mistake("names no program");
        return None;
    }
    if command_line.first().is_some_and(|program| program == OURSELVES)
        && let Ok(path) = std::env::current_exe()
    {
        command_line[0] = path.to_string_lossy().into_owned();
    }
    let env = env.map(|field| field.entries()).unwrap_or_default();
    let env = env.into_iter().filter_map(|(name, field)| Some((name.to_owned(), field.expanded()?))).collect();
    let base = &command.context.base;
    let cwd = cwd.and_then(|field| field.text()).map_or_else(|| base.clone(), |path| resolve(base, path));
    Some(McpTransport::Stdio { command: command_line, env, cwd: Some(cwd) })
}

fn read_http(endpoint: &Field<'_>, headers: Option<&Field<'_>>) -> Option<(String, Vec<(String, Secret)>)> {
    let url = endpoint.parse(mcp_url);
    let headers = headers.map(|field| field.entries()).unwrap_or_default();
    let headers: Vec<(String, Secret)> =
        headers.into_iter().filter_map(|(name, field)| Some((header_name(name, &field)?, field.secret()?))).collect();
    let url = url?;
    let authorized = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"));
    let (url, as_http) = url;
    if authorized && is_plain_remote(&as_http) {
        endpoint.mistake("is not https or wss: the Authorization header would travel in plain text");
    }
    Some((url_text(&url), headers))
}

/// Where a server is, and the same as a URL of HTTP: `ws` is to `wss` what `http` is to `https`.
fn mcp_url(text: &str) -> Result<(Url, Url), String> {
    match text.strip_prefix("ws") {
        Some(rest) if rest.starts_with("://") || rest.starts_with("s://") => {
            let as_http = http_url(&format!("http{rest}"))?;
            Ok((Url::parse(text).map_err(|error| format!("{text:?} is no URL: {error}"))?, as_http))
        }
        Some(_) | None => http_url(text).map(|url| (url.clone(), url)),
    }
}

fn header_name(name: &str, field: &Field<'_>) -> Option<String> {
    let parsed = http::HeaderName::try_from(name);
    parsed.map_err(|_| field.mistake(format!("{name:?} is no name of an HTTP header"))).ok()?;
    Some(name.to_owned())
}

fn read_on_adoption(field: &Field<'_>) -> BTreeMap<String, OnAdoption> {
    let read = |(pattern, field): (&str, Field<'_>)| {
        let pattern = glob(pattern).map_err(|error| field.mistake(error)).ok()?;
        Some((pattern, field.parse(on_adoption)?))
    };
    field.entries().into_iter().filter_map(read).collect()
}

fn on_adoption(text: &str) -> Result<OnAdoption, String> {
    match text {
        "retry" => Ok(OnAdoption::Retry),
        "ask" => Ok(OnAdoption::Ask),
        "fail" => Ok(OnAdoption::Fail),
        _ => Err(format!("{text:?} is not known; {}", hint(text, ["retry", "ask", "fail"]))),
    }
}

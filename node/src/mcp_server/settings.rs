//! What a configuration says of the MCP server.

use towline_core::{AgentName, Principal};

use super::{reads::Read, writes::Write};

/// `mcp.serve:`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeSettings {
    /// Whether `/mcp` is there at all.
    pub enabled: bool,
    /// The reads that are served, by name.
    pub tools: Vec<String>,
    /// The agents that are tools.
    pub agents: Vec<AgentName>,
    /// The guarded writes, and for whom each is.
    pub writes: Vec<Guarded>,
    /// The names under which clients reach this node, beside those of this machine and of the public URL.
    pub hosts: Vec<String>,
    /// The MCP servers whose tools are served as well.
    pub federate: Vec<Federated>,
    /// Whether clients of 2024-11-05 are served as well, over HTTP with SSE.
    pub legacy_sse: bool,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            tools: Read::ALL.iter().map(|read| read.name().to_owned()).collect(),
            agents: Vec::new(),
            writes: Vec::new(),
            hosts: Vec::new(),
            federate: Vec::new(),
            legacy_sse: false,
        }
    }
}

/// A write that is served to some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guarded {
    /// Which.
    pub write: Write,
    /// Patterns of the names of principals.
    pub clients: Vec<String>,
}

impl Guarded {
    /// Whether this one is on the list.
    pub fn is_for(&self, caller: &Principal) -> bool {
        is_listed(&self.clients, caller)
    }
}

/// A server whose tools are served as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Federated {
    /// Its name under `mcp.servers`.
    pub server: String,
    /// Patterns of the names of its tools.
    pub allow: Vec<String>,
    /// Patterns of the URIs of its resources; none is served without one.
    pub resources: Vec<String>,
    /// Patterns of the names of its prompts; none is served without one.
    pub prompts: Vec<String>,
    /// Whether its names stand behind that of the server.
    pub prefix: bool,
    /// Patterns of the names of principals.
    pub clients: Vec<String>,
}

impl Federated {
    /// Whether this one may use the server.
    pub fn is_for(&self, caller: &Principal) -> bool {
        is_listed(&self.clients, caller)
    }

    /// Whether a tool of the server is served.
    pub fn serves(&self, tool: &str) -> bool {
        is_matched(&self.allow, tool)
    }

    /// Whether a resource of the server is served.
    pub fn serves_resource(&self, uri: &str) -> bool {
        !climbs(uri) && is_matched(&self.resources, uri)
    }

    /// Whether a prompt of the server is served.
    pub fn serves_prompt(&self, prompt: &str) -> bool {
        is_matched(&self.prompts, prompt)
    }
}

/// Whether a URI has a segment that leads elsewhere than its text says, however it is written: a server that follows it would show
/// what the pattern does not mean. Control characters are none of a URI, and parsers leave some of them out.
pub(crate) fn climbs(uri: &str) -> bool {
    let mut read = uri.to_owned();
    loop {
        // Each level of encoding that is taken away shortens it.
        let decoded = decoded(&read);
        if decoded.len() == read.len() {
            break;
        }
        read = decoded;
    }
    let is_step = |segment: &str| matches!(segment.split(';').next(), Some("." | ".."));
    read.chars().any(char::is_control) || read.split(['/', '\\', '?', '#']).any(is_step)
}

/// With each ASCII character that is percent-encoded as itself.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut read = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let byte = part.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(u8::is_ascii);
        match byte {
            Some(byte) => read.extend([char::from(byte)].into_iter().chain(part[2..].chars())),
            None => read.extend(['%'].into_iter().chain(part.chars())),
        }
    }
    read
}

pub(crate) fn is_matched(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| glob_match::glob_match(pattern, name))
}

/// Agents act for somebody, and are not who they act for.
pub(crate) fn is_listed(patterns: &[String], caller: &Principal) -> bool {
    let name = match caller {
        Principal::Operator | Principal::Named { .. } => caller.to_string(),
        Principal::Node(_) | Principal::Agent { .. } => return false,
    };
    is_matched(patterns, &name)
}

//! `mcp.serve:` – what this node serves over MCP.

use towline_actors::McpServerConfig;

use super::{
    mistakes::hint,
    section::Field,
    values::{glob, plain_name},
};
use crate::mcp_server::{self, Federated, Guarded, ServeSettings, Write};

/// Reads the section; what a mistake was noted of is left out.
pub(crate) fn read(field: &Field<'_>, servers: &[McpServerConfig]) -> Option<ServeSettings> {
    let mut section = field.section()?;
    let defaults = ServeSettings::default();
    let tools = section.get("tools").map(|field| {
        let names = field.list();
        names.iter().filter_map(|field| field.text().map(str::to_owned)).collect()
    });
    let settings = ServeSettings {
        enabled: section.flag("enabled", defaults.enabled),
        tools: tools.unwrap_or(defaults.tools),
        agents: section.list("agents").iter().filter_map(|field| field.parse(str::parse)).collect(),
        writes: section.list("writes").iter().filter_map(read_write).collect(),
        hosts: section.list("hosts").iter().filter_map(|field| field.parse(host)).collect(),
        federate: section.list("federate").iter().filter_map(|field| read_federated(field, servers)).collect(),
        legacy_sse: section.flag("legacy_sse", defaults.legacy_sse),
    };
    section.finish();
    if let Err(refused) = mcp_server::check(&settings) {
        for offender in refused.offenders {
            field.mistake(format!("tool {:?} {}", offender.tool, offender.reason));
        }
    }
    Some(settings)
}

/// A name under which clients reach this node.
fn host(text: &str) -> Result<String, String> {
    if text.contains('*') {
        return Err(format!("{text:?}: any page could point its own name here; list the names of this node"));
    }
    let is_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '[' | ']');
    if text.chars().all(is_host) {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is no host: write a name such as mesh.example.org"))
}

/// Whom something is for: names of principals, or patterns of them.
pub(super) fn read_clients(field: Option<Field<'_>>) -> Option<Vec<String>> {
    let patterns = field?.list();
    let read = patterns.iter().filter_map(|field| {
        let pattern = field.parse(glob)?;
        if pattern == "*" || pattern == "**" {
            field.mistake("would be everybody: list the names of principals, as in user:ada or operator");
            return None;
        }
        Some(pattern)
    });
    Some(read.collect())
}

fn read_write(field: &Field<'_>) -> Option<Guarded> {
    let mut section = field.section()?;
    let names = Write::ALL.map(Write::name);
    let write = section.required("tool", names[0]).and_then(|field| {
        let known = |text: &str| {
            Write::named(text).ok_or_else(|| format!("{text:?} is no guarded write; {}", hint(text, names)))
        };
        field.parse(known)
    });
    let clients = read_clients(section.required("clients", "[user:ada]"));
    section.finish();
    Some(Guarded { write: write?, clients: clients? })
}

fn read_federated(field: &Field<'_>, servers: &[McpServerConfig]) -> Option<Federated> {
    let mut section = field.section()?;
    let server = section.required("server", "fs").and_then(|field| {
        let name = field.parse(plain_name)?;
        if servers.iter().any(|server| server.name == name) {
            return Some(name);
        }
        let names = servers.iter().map(|server| server.name.as_str());
        field.mistake(format!("server {name:?} is not in mcp.servers; {}", hint(&name, names)));
        None
    });
    let globs = |field: Field<'_>| field.list().iter().filter_map(|field| field.parse(glob)).collect::<Vec<String>>();
    let allow = section.required("allow", "[\"read_*\"]").map(globs);
    let resources = section.get("resources").map(globs).unwrap_or_default();
    let prompts = section.get("prompts").map(globs).unwrap_or_default();
    let prefix = section.flag("prefix", true);
    let clients = read_clients(section.required("clients", "[user:ada]"));
    section.finish();
    Some(Federated { server: server?, allow: allow?, resources, prompts, prefix, clients: clients? })
}

#[cfg(test)]
mod tests {
    use super::super::{NodeConfig, Overrides, read};

    fn with(mcp: &str) -> Result<NodeConfig, Vec<String>> {
        let text = format!("node: {{ name: a }}\nmcp:\n{mcp}\n");
        let read = read(&text, "/nowhere".into(), &Overrides::default());
        read.map_err(|mistakes| mistakes.iter().map(|one| format!("{}: {}", one.path, one.message)).collect())
    }

    #[test]
    fn six_reads_are_served_unless_the_file_says_otherwise() {
        let config = with("  servers: []").unwrap();
        assert!(config.serve.enabled && config.serve.tools.len() == 6 && config.serve.agents.is_empty());
        let config = with(
            "  servers: [ { name: fs, command: [x] } ]\n  serve:\n    tools: [get_task]\n    agents: [reader]\n    hosts: [mesh.example.org]\n    \
             writes: [ { tool: cancel_task, clients: [operator, \"user:*\"] } ]\n    federate: [ { server: fs, allow: [\"read_*\"], clients: [operator] } ]",
        )
        .unwrap();
        assert_eq!((config.serve.tools.len(), config.serve.writes.len(), config.serve.federate.len()), (1, 1, 1));
        assert!(!with("  serve: { enabled: false }").unwrap().serve.enabled);
    }

    #[test]
    fn every_tool_that_is_no_read_is_a_mistake_of_its_own() {
        let mistakes = with("  serve: { tools: [get_task, cancel_task, drain_node] }").unwrap_err();
        assert_eq!(mistakes.len(), 2, "{mistakes:?}");
        assert!(mistakes[0].contains("\"cancel_task\"") && mistakes[1].contains("\"drain_node\""), "{mistakes:?}");
        assert!(mistakes[0].contains("a server cannot widen it"), "{mistakes:?}");
    }

    #[test]
    fn what_would_be_everybody_or_everything_is_refused() {
        for (serve, says) in [
            ("{ hosts: [\"*\"] }", "any page could point its own name here"),
            ("{ hosts: [\"*.example.org\"] }", "any page could point its own name here"),
            ("{ writes: [ { tool: cancel_task, clients: [\"*\"] } ] }", "would be everybody"),
            ("{ writes: [ { tool: send_task, clients: [operator] } ] }", "is no guarded write"),
            ("{ writes: [ { tool: cancel_task } ] }", "clients"),
            ("{ federate: [ { server: fs, allow: [x], clients: [operator] } ] }", "is not in mcp.servers"),
            ("{ agents: [\"a b\"] }", "agent name"),
            ("{ everything: true }", "is not a setting"),
        ] {
            let mistakes = with(&format!("  serve: {serve}")).unwrap_err();
            assert!(mistakes.iter().any(|mistake| mistake.contains(says)), "{serve}: {mistakes:?}");
        }
    }
}

//! `a2e:` – which MCP servers agents of others reach through the bridge, and what they may register.

use std::sync::Arc;

use towline_actors::{
    McpServerConfig,
    egress::{Allowed, EgressPolicy},
};

use super::{
    mistakes::hint,
    section::{Field, Section},
    serve::read_clients,
    values::{glob, plain_name},
};
use crate::a2e::{A2eSettings, AllowedCommand, Shared};

/// Reads the section.
pub(crate) fn read(root: &mut Section<'_>, servers: &[McpServerConfig]) -> A2eSettings {
    let Some(mut section) = root.get("a2e").and_then(|field| field.section()) else { return A2eSettings::default() };
    let allowed: Vec<Allowed> = section.list("allow").iter().filter_map(|field| field.parse(str::parse)).collect();
    let settings = A2eSettings {
        enabled: section.flag("enabled", true),
        servers: section.list("servers").iter().filter_map(|field| read_shared(field, servers)).collect(),
        commands: section.list("commands").iter().filter_map(read_command).collect(),
        egress: Arc::new(EgressPolicy::new(allowed)),
    };
    section.finish();
    settings
}

fn globs(field: Option<Field<'_>>) -> Vec<String> {
    field.map(|field| field.list().iter().filter_map(|field| field.parse(glob)).collect()).unwrap_or_default()
}

fn read_shared(field: &Field<'_>, servers: &[McpServerConfig]) -> Option<Shared> {
    let mut section = field.section()?;
    let server = section.required("server", "fs").and_then(|field| {
        let name = field.parse(plain_name)?;
        let names = || servers.iter().map(|server| server.name.as_str());
        if !names().any(|known| known == name) {
            field.mistake(format!("server {name:?} is not in mcp.servers; {}", hint(&name, names())));
            return None;
        }
        if name.contains("__") {
            field.mistake(format!("{name:?} has two underscores, which part a server from its tool here: rename it"));
            return None;
        }
        Some(name)
    });
    let tools = globs(section.required("tools", "[\"read_*\"]"));
    let resources = globs(section.get("resources"));
    let clients = read_clients(section.required("clients", "[user:ada]"));
    section.finish();
    Some(Shared { server: server?, tools, resources, clients: clients? })
}

fn read_command(field: &Field<'_>) -> Option<AllowedCommand> {
    let mut section = field.section()?;
    let texts = |field: Option<Field<'_>>| -> Vec<String> {
        let list = field.map(|field| field.list()).unwrap_or_default();
        list.iter().filter_map(|field| field.text().map(str::to_owned)).collect()
    };
    let command = texts(section.required("command", "[npx, -y, \"@scope/server\", \"*\"]"));
    let env = texts(section.get("env"));
    let cwd = globs(section.get("cwd"));
    section.finish();
    if command.first().is_none_or(|program| program.is_empty() || program.contains('*')) {
        field.mistake("command has to begin with a program: any program would be everything");
        return None;
    }
    Some(AllowedCommand { command, env, cwd })
}

#[cfg(test)]
mod tests {
    use super::super::{NodeConfig, Overrides, read};

    fn with(a2e: &str) -> Result<NodeConfig, Vec<String>> {
        let text = format!("node: {{ name: a }}\nmcp: {{ servers: [ {{ name: fs, command: [x] }} ] }}\na2e: {a2e}\n");
        let read = read(&text, "/nowhere".into(), &Overrides::default());
        read.map_err(|mistakes| mistakes.iter().map(|one| format!("{}: {}", one.path, one.message)).collect())
    }

    #[test]
    fn the_bridge_is_there_and_allows_nothing_unless_the_file_says_so() {
        let config = with("{}").unwrap().a2e;
        assert!(config.enabled && config.servers.is_empty() && config.commands.is_empty());
        assert!(
            config.egress.target("http://127.0.0.1/mcp").is_err() && config.egress.target("https://a.example").is_ok()
        );
        assert!(!with("{ enabled: false }").unwrap().a2e.enabled);
        let config = with(
            "{ servers: [ { server: fs, tools: [\"read_*\"], clients: [\"user:*\"] } ], allow: [127.0.0.1], \
             commands: [ { command: [npx, -y, x, \"**\"], env: [LEVEL], cwd: [\"/srv/*\"] } ] }",
        );
        let config = config.unwrap().a2e;
        assert_eq!((config.servers.len(), config.commands.len()), (1, 1));
        assert!(config.egress.target("http://127.0.0.1/mcp").is_ok());
    }

    #[test]
    fn what_would_be_everybody_or_everything_is_refused() {
        for (a2e, says) in [
            ("{ servers: [ { server: fs, tools: [x], clients: [\"*\"] } ] }", "would be everybody"),
            ("{ servers: [ { server: gs, tools: [x], clients: [operator] } ] }", "is not in mcp.servers"),
            ("{ servers: [ { server: fs, tools: [x] } ] }", "clients"),
            ("{ commands: [ { command: [\"*\"] } ] }", "has to begin with a program"),
            ("{ commands: [ { command: [] } ] }", "has to begin with a program"),
            ("{ allow: [\"*\"] }", "is neither a network"),
            ("{ everything: true }", "is not a setting"),
        ] {
            let mistakes = with(a2e).unwrap_err();
            assert!(mistakes.iter().any(|mistake| mistake.contains(says)), "{a2e}: {mistakes:?}");
        }
    }
}

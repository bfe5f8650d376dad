//! MCP servers: what their connections say, or before the start whether program and address are there.

use std::path::Path;

use towline_actors::{
    McpServerConfig, McpTransport,
    mcp_connection::{McpServerState, McpServerStatus},
};

use super::{Check, Patient, Planned, planned, reach, shortened};

const AREA: &str = "mcp";

pub(super) fn plan(patient: &Patient) -> Vec<Planned> {
    if let Some(live) = &patient.live {
        let servers = live.servers.clone();
        return vec![planned(AREA, "servers", async move { servers.iter().map(connection).collect() })];
    }
    let servers = patient.config.mesh.servers.clone();
    let planned = servers.into_iter().map(|server| {
        let http = patient.http.clone();
        planned(AREA, server.name.clone(), async move { vec![before_start(&http, &server).await] })
    });
    planned.collect()
}

fn connection(server: &McpServerStatus) -> Check {
    let name = &server.name;
    let revision = server.protocol_version.as_deref().unwrap_or("?");
    let said = server.server.as_deref().map(shortened).unwrap_or_else(|| "a server without a name".to_owned());
    match server.state {
        McpServerState::Ready if !server.changed.is_empty() => {
            let mend = format!("look at `towline mcp inspect {name}`, and agree with `towline mcp accept {name}`");
            Check::warn(AREA, name, format!("{said}: {} of its tools have changed", server.changed.len()), mend)
        }
        McpServerState::Ready => {
            Check::ok(AREA, name, format!("{said}, revision {revision}, {} tools", server.tools.len()))
        }
        McpServerState::Connecting => {
            Check::warn(AREA, name, "connecting", format!("look again; `towline mcp tail {name}` shows what it says"))
        }
        McpServerState::Down => {
            let reason = server.reason.as_deref().map(shortened).unwrap_or_else(|| "down".to_owned());
            let mend = if server.transport == "stdio" {
                format!("`towline mcp tail {name}` shows what it says; its program is mcp.servers[].command")
            } else {
                format!(
                    "see that it runs, and that mcp.servers[].endpoint and headers are right; `towline mcp tail {name}`"
                )
            };
            Check::fail(AREA, name, reason, mend)
        }
    }
}

async fn before_start(http: &reqwest::Client, server: &McpServerConfig) -> Check {
    let name = &server.name;
    let reached = match &server.transport {
        McpTransport::Stdio { command, cwd, .. } => {
            let program = command.first().map(String::as_str).unwrap_or_default();
            return program_of(name, program, cwd.as_deref());
        }
        McpTransport::Http { socket: Some(path), .. } => reach::socket(path).await,
        // A WebSocket is no page that could be asked for, and an authority of its own is not known here.
        McpTransport::Http { endpoint, .. } if endpoint.starts_with("ws") || server.security.tls.is_some() => {
            reach::tcp(endpoint).await
        }
        McpTransport::Http { endpoint, .. } => {
            // A stream of events may be the answer: its head is enough.
            reach::http(http, endpoint).await.map(|reached| reached.detail)
        }
    };
    match reached {
        Ok(detail) => Check::ok(AREA, name, detail),
        Err(error) => Check::fail(
            AREA,
            name,
            error,
            format!("start it, or set the endpoint of mcp.servers {name:?} to where it is"),
        ),
    }
}

fn program_of(name: &str, program: &str, cwd: Option<&Path>) -> Check {
    let folder = cwd.unwrap_or(Path::new("."));
    if !folder.is_dir() {
        let mend = format!("set cwd of mcp.servers {name:?} to a folder that is there");
        return Check::fail(AREA, name, format!("folder {} is not there", folder.display()), mend);
    }
    match found(program, folder) {
        true => Check::ok(AREA, name, format!("program {program} is there")),
        false => {
            let mend = format!("install {program}, or write its whole path in command of mcp.servers {name:?}");
            Check::fail(AREA, name, format!("program {program} is not there"), mend)
        }
    }
}

/// As the system looks for it.
fn found(program: &str, folder: &Path) -> bool {
    if program.contains('/') {
        return is_program(&folder.join(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|place| is_program(&place.join(program)))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn a_program_is_looked_for_as_the_system_does() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("text"), "no program").unwrap();
        assert_eq!(program_of("fs", "sh", None).verdict, Verdict::Ok);
        for (program, cwd) in
            [("no-such-program", None), ("./text", Some(folder.path())), ("sh", Some(Path::new("/none")))]
        {
            let check = program_of("fs", program, cwd);
            assert_eq!(check.verdict, Verdict::Fail, "{check:?}");
            assert!(check.mend.unwrap().contains("\"fs\""));
        }
    }
}

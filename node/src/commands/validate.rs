//! `towline validate FILE`

use serde_json::{Value, json};

use crate::{
    cli::ValidateArgs,
    config::{self, ConfigError, Mistake, NodeConfig, Origin, Overrides},
    error::CliError,
    output::Output,
};

pub(crate) fn run(args: &ValidateArgs, output: &mut Output) -> Result<(), CliError> {
    let loaded = config::load(&args.file, &Overrides::of_process(args.set.clone()));
    if output.is_json() {
        output.json(&report(&loaded))?;
    }
    let config = loaded.map_err(|error| CliError::Usage(error.to_string()))?;
    if !output.is_json() {
        output.line(format!("{}: {}", args.file.display(), summary(&config)))?;
    }
    Ok(())
}

fn summary(config: &NodeConfig) -> String {
    let mesh = &config.mesh;
    let counts = [
        (mesh.agents.len(), "agent"),
        (mesh.models.len(), "model"),
        (mesh.servers.len(), "MCP server"),
        (mesh.peers.len(), "peer"),
    ];
    let counts: Vec<String> = counts.iter().map(|(many, what)| plural(*many, what)).collect();
    format!("ok (node {}, {})", config.node.name, counts.join(", "))
}

fn plural(many: usize, what: &str) -> String {
    format!("{many} {what}{}", if many == 1 { "" } else { "s" })
}

fn report(loaded: &Result<NodeConfig, ConfigError>) -> Value {
    match loaded {
        Ok(config) => json!({ "valid": true, "node": config.node.name }),
        Err(ConfigError::Mistakes { mistakes, .. }) => {
            json!({ "valid": false, "mistakes": mistakes.iter().map(mistake).collect::<Vec<_>>() })
        }
        Err(error @ ConfigError::Read { .. }) => json!({ "valid": false, "error": error.to_string() }),
    }
}

fn mistake(mistake: &Mistake) -> Value {
    let at = match &mistake.at {
        Origin::File { line, column } => json!({ "line": line, "column": column }),
        Origin::Env(name) => json!({ "env": name }),
        Origin::Flag(flag) => json!({ "flag": flag }),
    };
    json!({ "at": at, "path": mistake.path, "message": mistake.message })
}

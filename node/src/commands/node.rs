//! `towline node`

use std::path::Path;

use crate::{
    cli::NodeArgs,
    config::{self, NodeConfig, Overrides},
    ephemeral::Ephemeral,
    error::CliError,
    output::Output,
    startup::{self, StartOptions},
    telemetry,
};

/// The configuration where none is named.
const CONFIG_FILE: &str = "towline.yaml";

pub(crate) fn run(args: NodeArgs, output: &mut Output) -> Result<(), CliError> {
    telemetry::start_logs()?;
    let overrides = Overrides::of_process(args.set);
    let mut config = read(args.config.as_deref(), args.ephemeral, &overrides)?;
    let folder = args.ephemeral.then(|| Ephemeral::take_over(&mut config)).transpose()?;
    for (name, model) in &config.mesh.models {
        if matches!(model.provider, towline_actors::Provider::Scripted { .. }) {
            output.note(format!("model {name} is scripted: it answers by rules and is no AI"));
        }
    }
    let join = match (args.join, args.token) {
        (Some(address), Some(token)) => Some((address, token)),
        (Some(_), None) => {
            let text =
                "--join needs a token: make one with `towline cluster join-token` on a member, and set TOWLINE_TOKEN";
            return Err(CliError::Usage(text.to_owned()));
        }
        (None, _) => None,
    };
    if let Some(folder) = &folder {
        output
            .note(format!("this node keeps everything in {} until it ends, and leaves nothing behind", folder.place()));
        if let Some(agent) = &config.front_door {
            let url = format!("http://{}", config.node.http);
            output.note(format!("try, in another terminal: towline --server {url} send {agent} \"Hello.\""));
        }
    }
    let options = StartOptions { join, exit_with_stdin: args.exit_with_stdin, ephemeral: args.ephemeral };
    startup::run(config, options)
}

/// The configuration; that of a node that leaves nothing behind need not be there, unless it is named.
fn read(named: Option<&Path>, ephemeral: bool, overrides: &Overrides) -> Result<NodeConfig, CliError> {
    let file = named.unwrap_or(Path::new(CONFIG_FILE));
    let needs_none = ephemeral && named.is_none() && !file.exists();
    let read = if needs_none { config::read_sample(overrides) } else { config::load(file, overrides) };
    read.map_err(|error| CliError::Usage(error.to_string()))
}

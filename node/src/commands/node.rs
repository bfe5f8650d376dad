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

pub(crate) fn run(args: NodeArgs, output: &mut Output) -> Result<(), CliError> {
    telemetry::start_logs()?;
    let overrides = Overrides::of_process(args.set);
    let mut config = read(&args.config, args.ephemeral, &overrides)?;
    let folder = args.ephemeral.then(|| Ephemeral::take_over(&mut config)).transpose()?;
    for (name, model) in &config.mesh.models {
        if matches!(model.provider, towline_actors::Provider::Scripted { .. }) {
            output.note(format!("model {name} is scripted: it answers by rules and is no AI"));
        }
    }
    let join = args.join.zip(args.token);
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

/// The configuration; that of a node that leaves nothing behind need not be there.
fn read(file: &Path, ephemeral: bool, overrides: &Overrides) -> Result<NodeConfig, CliError> {
    let read = if ephemeral && !file.exists() { config::read_sample(overrides) } else { config::load(file, overrides) };
    read.map_err(|error| CliError::Usage(error.to_string()))
}

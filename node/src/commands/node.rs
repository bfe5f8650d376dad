//! `towline node`

use crate::{
    cli::NodeArgs,
    config::{self, Overrides},
    error::CliError,
    output::Output,
    startup::{self, StartOptions},
    telemetry,
};

pub(crate) fn run(args: NodeArgs, output: &mut Output) -> Result<(), CliError> {
    telemetry::start_logs()?;
    let overrides = Overrides::of_process(args.set);
    let config = config::load(&args.config, &overrides).map_err(|error| CliError::Usage(error.to_string()))?;
    for (name, model) in &config.mesh.models {
        if matches!(model.provider, towline_actors::Provider::Scripted { .. }) {
            output.note(format!("model {name} is scripted: it answers by rules and is no AI"));
        }
    }
    let join = args.join.zip(args.token);
    startup::run(config, StartOptions { join, exit_with_stdin: args.exit_with_stdin })
}

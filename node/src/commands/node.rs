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
    let join = match (args.join, args.token) {
        (Some(address), Some(token)) => Some((address, token)),
        (Some(_), None) => {
            let text =
                "--join needs a token: make one with `towline cluster join-token` on a member, and set TOWLINE_TOKEN";
            return Err(CliError::Usage(text.to_owned()));
        }
        (None, _) => None,
    };
    startup::run(config, StartOptions { join, exit_with_stdin: args.exit_with_stdin })
}

//! `towline completion SHELL`

use clap::CommandFactory;

use crate::{
    cli::{Cli, CompletionArgs},
    error::CliError,
    output::Output,
};

pub(crate) fn run(args: &CompletionArgs, output: &mut Output) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "towline", &mut script);
    Ok(output.text(&String::from_utf8_lossy(&script))?)
}

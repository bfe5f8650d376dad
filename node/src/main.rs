//! Parses the command line, runs the command, prints an error once, and picks the exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    towline::cli::main()
}

//! The program as a person meets it first. That this test names the binary also has `cargo test` build it, for the scenarios
//! in `tests/` that start real nodes.

use std::process::{Command, Output};

fn towline(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_towline")).args(arguments).output().expect("towline runs")
}

#[test]
fn help_goes_to_standard_output_and_names_the_main_job() {
    let output = towline(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = String::from_utf8(output.stdout).unwrap();
    for word in ["demo", "dev", "node", "send", "Exit codes"] {
        assert!(help.contains(word), "{word} is not in:\n{help}");
    }
}

#[test]
fn an_unknown_command_is_a_usage_error() {
    let output = towline(&["dmeo"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8(output.stderr).unwrap().contains("demo"));
}

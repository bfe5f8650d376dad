//! Runs the command line like a person does.

use std::{path::Path, process::Stdio, time::Duration};

use crate::binaries::towline;

/// No command of the tests may take longer.
const LIMIT: Duration = Duration::from_secs(90);

/// What a command said.
#[derive(Debug, Clone)]
pub struct Ran {
    /// Its exit code.
    pub code: i32,
    /// Its data.
    pub stdout: String,
    /// The rest.
    pub stderr: String,
}

impl Ran {
    /// The data as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Everything said, for searching.
    pub fn said(&self) -> String {
        format!("{}\n{}", self.stdout, self.stderr)
    }
}

/// Runs `towline` with these arguments.
pub async fn run_cli<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ran {
    run_cli_in(Path::new("."), arguments).await
}

/// Runs `towline` in a folder.
pub async fn run_cli_in<S: AsRef<std::ffi::OsStr>>(folder: &Path, arguments: impl IntoIterator<Item = S>) -> Ran {
    run_cli_with(folder, &[], arguments).await
}

/// The same with something in the environment.
pub(crate) async fn run_cli_with<S: AsRef<std::ffi::OsStr>>(
    folder: &Path,
    env: &[(String, String)],
    arguments: impl IntoIterator<Item = S>,
) -> Ran {
    let mut command = tokio::process::Command::new(towline());
    command.current_dir(folder).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TOWLINE_")) {
        command.env_remove(name);
    }
    // Whoever runs the tests may be signed in somewhere.
    command.env("TOWLINE_CONFIG_DIR", folder.join("user-config"));
    command.envs(env.iter().map(|(name, value)| (name, value)));
    let output = tokio::time::timeout(LIMIT, command.output()).await.expect("the command ends in time").unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

//! What a command can end with, and the exit code of each: the A2A CLI's codes up to 5, 6 for a required MCP server, 7 for `towline doctor`,
//! ours from 10.

use std::{fmt::Write as _, io, process::ExitCode};

/// Why a command did not do its job. The text says what was tried and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Anything that has no code of its own.
    #[error("{0}")]
    Other(String),
    /// The command line or the configuration is wrong; nothing was done.
    #[error("{0}")]
    Usage(String),
    /// The server does not answer.
    #[error("{0}")]
    Unreachable(String),
    /// The server does not let this caller in.
    #[error("{0}")]
    Auth(String),
    /// The time that the caller gave is over.
    #[error("{0}")]
    Timeout(String),
    /// The cluster has no quorum.
    #[error("{0}")]
    Unavailable(String),
    /// An MCP server without which this node must not start is not there.
    #[error("{0}")]
    RequiredServer(String),
    /// A check of `towline doctor` failed.
    #[error("{0}")]
    Unwell(String),
    /// The demonstration failed with a code of its own.
    #[error("{message}")]
    Demo {
        /// Why.
        message: String,
        /// Its exit code.
        code: u8,
    },
    /// Output could not be written.
    #[error("write output")]
    Output(#[from] io::Error),
}

impl CliError {
    /// The exit code of the process.
    pub fn code(&self) -> u8 {
        match self {
            CliError::Other(_) => 1,
            CliError::Usage(_) => 2,
            CliError::Unreachable(_) => 3,
            CliError::Auth(_) => 4,
            CliError::Timeout(_) => 5,
            CliError::RequiredServer(_) => 6,
            CliError::Unwell(_) => 7,
            CliError::Unavailable(_) => 10,
            CliError::Demo { code, .. } => *code,
            // A reader that had enough, as in `towline task list | head -1`, is no failure.
            CliError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            CliError::Output(_) => 1,
        }
    }

    /// [`Self::code`] for `main`.
    pub fn exit_code(&self) -> ExitCode {
        self.code().into()
    }

    /// Wraps any error as [`CliError::Other`], with its causes.
    pub fn other(error: impl std::error::Error) -> Self {
        CliError::Other(chain(&error))
    }

    /// What `main` prints: the error and its causes in one line. None where there is nothing to say.
    pub fn report(&self) -> Option<String> {
        match self {
            CliError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => None,
            CliError::Output(error) => Some(format!("{self}: {error}")),
            CliError::Other(_)
            | CliError::Usage(_)
            | CliError::Unreachable(_)
            | CliError::Auth(_)
            | CliError::Timeout(_)
            | CliError::Unavailable(_)
            | CliError::RequiredServer(_)
            | CliError::Unwell(_)
            | CliError::Demo { .. } => Some(chain(self)),
        }
    }
}

/// An error and its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_failure_has_the_exit_code_of_the_readme() {
        let text = || "x".to_owned();
        for (error, code) in [
            (CliError::Other(text()), 1),
            (CliError::Usage(text()), 2),
            (CliError::Unreachable(text()), 3),
            (CliError::Auth(text()), 4),
            (CliError::Timeout(text()), 5),
            (CliError::RequiredServer(text()), 6),
            (CliError::Unwell(text()), 7),
            (CliError::Unavailable(text()), 10),
            (CliError::Demo { message: text(), code: 12 }, 12),
            (CliError::Output(io::ErrorKind::StorageFull.into()), 1),
            (CliError::Output(io::ErrorKind::BrokenPipe.into()), 0),
        ] {
            assert_eq!(error.code(), code, "{error:?}");
        }
    }

    #[test]
    fn a_closed_pipe_is_not_reported() {
        assert_eq!(CliError::Output(io::ErrorKind::BrokenPipe.into()).report(), None);
    }
}

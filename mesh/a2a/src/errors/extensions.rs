//! What goes wrong with what goes beyond A2A: commands, and the events of the cluster.

use a2a::error_code;

use super::{WireError, reason, shortened};

impl WireError {
    /// A message is for an extension that its request does not activate.
    pub fn not_activated(key: &str, uri: &str) -> Self {
        let message = format!("a data part with {key} needs the header `A2A-Extensions: {uri}`");
        Self::new(error_code::INVALID_PARAMS, reason::EXTENSION_NOT_ACTIVATED, message)
    }

    /// A message that looks like a command, or a question for events, and is none.
    pub fn invalid_command(message: impl Into<String>) -> Self {
        Self::new(error_code::INVALID_PARAMS, reason::INVALID_COMMAND, message)
    }

    /// There is no such command.
    pub fn unknown_command(asked: &str, known: &[&str]) -> Self {
        let message = format!("command {:?} is not known; there are {}", shortened(asked), known.join(", "));
        Self::new(error_code::INVALID_PARAMS, reason::UNKNOWN_COMMAND, message)
    }

    /// A command about something that is not there, or is not the caller's.
    pub fn nothing_to_command(command: &str, detail: &str) -> Self {
        Self::protocol(error_code::TASK_NOT_FOUND, format!("{command}: {detail}"))
    }

    /// A command cannot be carried out as things stand. `code` is that of the operator API.
    pub fn command_refused(command: &str, code: &str, detail: &str) -> Self {
        let mut error = Self::new(error_code::INVALID_REQUEST, reason::COMMAND_REFUSED, format!("{command}: {detail}"));
        error.metadata.insert("code", code.to_owned());
        error.metadata.insert("command", command.to_owned());
        error
    }

    /// Events that are not kept here any more.
    pub fn events_gone(detail: impl std::fmt::Display, oldest: u64, last: u64) -> Self {
        let mut error = Self::new(error_code::INVALID_PARAMS, reason::EVENTS_GONE, detail.to_string());
        error.metadata.insert("last", last.to_string());
        error.metadata.insert("oldest", oldest.to_string());
        error
    }
}

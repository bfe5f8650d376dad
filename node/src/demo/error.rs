//! Why a demo or a development cluster failed, and with which exit code it says so.

use std::{io, path::PathBuf, time::Duration};

use towline_core::TaskState;

/// Why `demo` or `dev` ended without its result.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The folder cannot be surveyed.
    #[error("list {}", dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The folder has too few files for the demo's point.
    #[error(
        "{} has {found} text files and this needs at least {needed}: name another folder with --dir{}",
        dir.display(), if *needed > 1 { ", or leave the nodes alive with --no-kill" } else { "" }
    )]
    TooFewFiles {
        /// The folder.
        dir: PathBuf,
        /// How many text files it has.
        found: usize,
        /// How many it takes.
        needed: usize,
    },
    /// An option that cannot be.
    #[error("{option}: {reason}")]
    Option {
        /// Which option.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of the cluster's folder.
    #[error("{action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A port that a node must listen on is taken.
    #[error("node {node} cannot listen on {address}: another process does. Change {setting} in {}, or end that process", config.display())]
    PortInUse {
        /// The node.
        node: String,
        /// The address.
        address: std::net::SocketAddr,
        /// The setting that names it.
        setting: &'static str,
        /// The file that has the setting.
        config: PathBuf,
    },
    /// A configuration file of an earlier run has mistakes.
    #[error(transparent)]
    Config(crate::config::ConfigError),
    /// The cluster could not be founded.
    #[error("found the cluster")]
    Found(#[source] towline_cluster::ClusterError),
    /// A node process did not start, or ended by itself.
    #[error("node {node} {what}; the end of its log {}:\n{tail}", log.display())]
    Node {
        /// The node.
        node: String,
        /// What it did.
        what: String,
        /// Where its log is.
        log: PathBuf,
        /// The last lines of it.
        tail: String,
    },
    /// A node did not become ready.
    #[error("wait {waited:?} for {what}")]
    NotReady {
        /// What was waited for.
        what: String,
        /// How long.
        waited: Duration,
    },
    /// A node did not answer the operator API.
    #[error("{action}")]
    Operator {
        /// What was asked.
        action: String,
        /// Why there is no answer.
        source: reqwest::Error,
    },
    /// A node answered the operator API with something else.
    #[error("{action}: {reason}")]
    Answer {
        /// What was asked.
        action: String,
        /// What came.
        reason: String,
    },
    /// The task could not be sent.
    #[error("send the task to surveyor at {url}")]
    Send {
        /// The entry node.
        url: String,
        /// Why.
        source: towline_a2a::ClientError,
    },
    /// The task's stream could not be followed to its end.
    #[error("follow the task's stream: {reason}")]
    Stream {
        /// What happened last.
        reason: String,
    },
    /// The task did not end.
    #[error("task {task} has not ended after {waited:?}")]
    Timeout {
        /// The task.
        task: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The task ended in another state than completed.
    #[error("task {task} ended as {state:?}: {reason}")]
    NotCompleted {
        /// The task.
        task: String,
        /// How it ended.
        state: TaskState,
        /// What it said.
        reason: String,
    },
    /// The task was over, or nearly, before there was a moment to kill a node.
    #[error(
        "the task ended before the kill: {ended} delegations had ended and {open} were open when it was looked at last. \
         Survey more files (--files N)"
    )]
    EndedBeforeKill {
        /// Delegations with an outcome.
        ended: usize,
        /// Delegations without one.
        open: usize,
    },
    /// The digest is not what the files say.
    #[error("the digest is incomplete or wrong: {}", mistakes.join("; "))]
    Digest {
        /// Each difference.
        mistakes: Vec<String>,
    },
    /// The caller's stream is not what the log says.
    #[error(
        "the caller's stream differs from the log: {lost} events lost, {duplicated} duplicated, {differing} different"
    )]
    Events {
        /// In the log and not seen.
        lost: usize,
        /// Seen more than once.
        duplicated: usize,
        /// Seen with another content or out of order.
        differing: usize,
    },
    /// The person or program that started the command ended it.
    #[error("interrupted")]
    Interrupted,
    /// What should have been said could not be written.
    #[error("write the report")]
    Report(#[source] io::Error),
}

impl DemoError {
    /// The exit code of the process, as the README lists them.
    pub fn exit_code(&self) -> u8 {
        match self {
            DemoError::Folder { .. }
            | DemoError::TooFewFiles { .. }
            | DemoError::Option { .. }
            | DemoError::Config(_) => 2,
            DemoError::Send { .. } | DemoError::Operator { .. } => 3,
            DemoError::NotReady { .. } | DemoError::Timeout { .. } => 5,
            DemoError::NotCompleted { .. } | DemoError::Digest { .. } => 11,
            DemoError::Events { .. } | DemoError::Stream { .. } => 12,
            DemoError::EndedBeforeKill { .. } => 13,
            DemoError::File { .. }
            | DemoError::PortInUse { .. }
            | DemoError::Found(_)
            | DemoError::Node { .. }
            | DemoError::Answer { .. }
            | DemoError::Interrupted
            | DemoError::Report(_) => 1,
        }
    }
}

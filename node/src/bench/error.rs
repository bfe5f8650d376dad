//! Why a bench ended without a result.

use std::{io, path::PathBuf};

use towline_a2a::ClientError;
use towline_cluster::ClusterError;

use crate::demo::DemoError;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A number that makes no sense, or would never end.
    #[error("{option}: expected a number from 1 to {most}")]
    Option {
        /// The option.
        option: &'static str,
        /// The largest number that it takes.
        most: u64,
    },
    /// More programs than a machine can be shared by.
    #[error("{option}: expected at most {most}")]
    TooMany {
        /// The option.
        option: &'static str,
        /// How often it may be given.
        most: usize,
    },
    /// The nodes did not start, or one ended.
    #[error("run the nodes")]
    Nodes(#[from] DemoError),
    /// A client of the nodes could not be made.
    #[error("make a client of the nodes")]
    Client(#[from] ClusterError),
    /// A call through A2A failed.
    #[error("{action}")]
    A2a {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: ClientError,
    },
    /// A file operation failed.
    #[error("{action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The program to compare with is not there.
    #[error(
        "etcd is not in PATH: install it (on Debian: apt-get install etcd-server), name one with --etcd, or leave out --vs etcd"
    )]
    NoEtcd,
    /// An A2A server to compare with is not there.
    #[error("there is no server {name}: {} is no program (see --servers)", program.display())]
    NoServer {
        /// What was asked for.
        name: String,
        /// Where it was looked for.
        program: PathBuf,
    },
    /// It is there, and did not work.
    #[error("{action}: {reason}")]
    Etcd {
        /// What was tried.
        action: String,
        /// What it said.
        reason: String,
    },
    /// Nothing was measured, because every operation failed.
    #[error("no {operation} succeeded: {reason}")]
    NothingDone {
        /// What was measured.
        operation: String,
        /// What the first one said.
        reason: String,
    },
    /// Something did not happen in time.
    #[error("waited for {what} in vain: {reason}")]
    Waited {
        /// For what.
        what: String,
        /// What was seen last.
        reason: String,
    },
    /// The person stopped it.
    #[error("interrupted")]
    Interrupted,
    /// The results could not be written.
    #[error("write the results")]
    Output(#[from] io::Error),
}

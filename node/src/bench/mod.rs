//! `towline bench`: what this binary does on this machine, in numbers.
//!
//! ```text
//! options ─▶ nodes (three processes), etcd ─▶ load (clients, one operation at a time) ─▶ report (a row per point)
//! ```
//! The nodes are ordinary ones: a log that is fsynced, mutual TLS between them, traces on. What they are compared with is
//! started beside them, on the same disk, and the two take turns point by point, round by round. What an operation
//! includes is told in the file of each bench. Everything that is started is stopped, also on Ctrl-C.

mod a2a;
mod adopt;
mod cluster;
mod delegation;
mod error;
mod etcd;
mod idle;
mod keys;
mod load;
mod machine;
mod mcp;
mod nodes;
mod options;
mod report;
mod revoke;
mod soak;
mod subjects;
mod task;
mod trace;

pub use error::BenchError;
pub use options::{
    A2aArgs, AdoptArgs, BenchCommand, ClusterArgs, Common, DelegationArgs, IdleArgs, McpArgs, Pace, RevokeArgs,
    SoakArgs, TaskArgs, TraceArgs,
};

use std::path::Path;

use nodes::Scratch;
use report::Report;

use crate::{demo::interrupted, output::Output};

/// Runs one bench and writes what it found.
///
/// # Errors
/// When something could not be started or measured: see [`BenchError`].
pub async fn run(command: BenchCommand, output: &mut Output) -> Result<(), BenchError> {
    let scratch = Scratch::new(&command.common().dir)?;
    let report = tokio::select! {
        report = measure(&command, scratch.path()) => report?,
        () = interrupted() => return Err(BenchError::Interrupted),
    };
    report.write(output)
}

async fn measure(command: &BenchCommand, dir: &Path) -> Result<Report, BenchError> {
    match command {
        BenchCommand::Cluster(args) => Box::pin(cluster::run(args, dir)).await,
        BenchCommand::Task(args) => Box::pin(task::run(args, dir)).await,
        BenchCommand::Adopt(args) => Box::pin(adopt::run(args, dir)).await,
        BenchCommand::Idle(args) => Box::pin(idle::run(args, dir)).await,
        BenchCommand::Delegation(args) => Box::pin(delegation::run(args, dir)).await,
        BenchCommand::Soak(args) => Box::pin(soak::run(args, dir)).await,
        BenchCommand::Revoke(args) => Box::pin(revoke::run(args, dir)).await,
        BenchCommand::A2a(args) => Box::pin(a2a::run(args, dir)).await,
        BenchCommand::Trace(args) => Box::pin(trace::run(args, dir)).await,
        BenchCommand::Mcp(args) => Box::pin(mcp::run(args, dir)).await,
    }
}

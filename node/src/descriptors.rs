//! The file descriptors of this process: connections, files of the log, pipes of child processes.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are not for connections: log, snapshots, blobs, MCP servers, models, peers.
const KEPT_FOR_FILES: u64 = 1_024;

/// Raises the soft limit to the hard one: the usual soft limit of 1,024 is for programs that use `select`.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, soft = ?limit.current, hard = ?limit.maximum, "raise the limit of open files");
    }
}

/// How many connections of one door there is room for, at most `wanted`: files that the node needs stay free.
pub(crate) fn connections(wanted: usize) -> usize {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return wanted };
    // Both doors share what is there, and one alone is rarely full.
    let room = limit.saturating_sub(KEPT_FOR_FILES).max(limit / 2) / 4 * 3;
    wanted.min(usize::try_from(room).unwrap_or(usize::MAX)).max(1)
}

//! `towline node --ephemeral`: a node whose folder lies in memory and goes with it.

use std::{
    fs::{self, DirBuilder},
    io,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use rustix::fs::statvfs;

use crate::{config::NodeConfig, error::CliError};

/// Where Linux keeps files in memory.
const MEMORY: &str = "/dev/shm";

/// Room that the folder needs at least: a log that is cut at its snapshots stays far below.
const LEAST_ROOM: u64 = 256 * 1024 * 1024;

/// What the folders are called, before the process id.
const PREFIX: &str = "towline-ephemeral-";

/// The folder of a node, removed with this.
#[derive(Debug)]
pub struct Ephemeral {
    folder: PathBuf,
    in_memory: bool,
}

impl Ephemeral {
    /// Makes a folder and has the node of `config` use it. Nobody joins such a node, so it listens to peers on any port.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn take_over(config: &mut NodeConfig) -> Result<Self, CliError> {
        let (above, in_memory) = place();
        remove_leftovers(&above);
        let folder = above.join(format!("{PREFIX}{}-{}", std::process::id(), uuid::Uuid::now_v7().simple()));
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| CliError::Other(format!("make folder {}: {error}", folder.display())))?;
        config.node.data = folder.join("data");
        config.node.peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Ok(Self { folder, in_memory })
    }

    /// Where everything is kept, for people.
    pub fn place(&self) -> String {
        if self.in_memory { "memory".to_owned() } else { self.folder.display().to_string() }
    }
}

impl Drop for Ephemeral {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            tracing::warn!(folder = %self.folder.display(), %error, "could not be removed");
        }
    }
}

/// In memory if there is room, else where temporary files are kept.
fn place() -> (PathBuf, bool) {
    let memory = Path::new(MEMORY);
    let free = statvfs(memory).map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize)).unwrap_or(0);
    if free >= LEAST_ROOM { (memory.to_owned(), true) } else { (std::env::temp_dir(), false) }
}

/// Removes what killed nodes left: the process in the folder's name is gone.
fn remove_leftovers(above: &Path) {
    let Ok(entries) = fs::read_dir(above) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            log_failure(&entry.path(), fs::remove_dir_all(entry.path()));
        }
    }
}

fn log_failure(folder: &Path, removed: io::Result<()>) {
    if let Err(error) = removed {
        tracing::debug!(folder = %folder.display(), %error, "is another user's, or could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_node_left_is_removed_and_what_a_running_one_has_stays() {
        let above = tempfile::tempdir().unwrap();
        // No process has the largest id that there is.
        let dead = above.path().join(format!("{PREFIX}{}-x", u32::MAX));
        let alive = above.path().join(format!("{PREFIX}{}-x", std::process::id()));
        let other = above.path().join("other");
        for folder in [&dead, &alive, &other] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("file"), "x").unwrap();
        }
        remove_leftovers(above.path());
        assert!(!dead.exists() && alive.exists() && other.exists());
    }
}

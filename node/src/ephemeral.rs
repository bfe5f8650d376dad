//! `towline node --ephemeral`: a node whose folder lies in memory and goes with it.

use std::{
    fs::{self, DirBuilder, File},
    io,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use rustix::fs::statvfs;

use crate::{config::NodeConfig, error::CliError};

/// Where Linux keeps files in memory.
const MEMORY: &str = "/dev/shm";

/// Room that the folder needs at least: a log that is cut at its snapshots stays far below.
const LEAST_ROOM: u64 = 256 * 1024 * 1024;

/// What the folders are called, before the process id: that is for people, since other containers count their own.
const PREFIX: &str = "towline-ephemeral-";

/// A file in each folder that its node has locked: the kernel gives the lock back when the process ends, however it ends.
const LOCK: &str = "lock";

/// How often a folder is made that another node takes for a left one before it is locked.
const TRIES: u32 = 16;

/// The folder of a node, removed with this.
#[derive(Debug)]
pub struct Ephemeral {
    folder: PathBuf,
    in_memory: bool,
    /// As long as it is open, nobody else removes the folder.
    _lock: File,
}

impl Ephemeral {
    /// Makes a folder and has the node of `config` use it. Nobody joins such a node, so it listens to peers on any port.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn take_over(config: &mut NodeConfig) -> Result<Self, CliError> {
        let (above, in_memory) = place();
        remove_leftovers(&above);
        let (folder, lock) = make(&above)?;
        config.node.data = folder.join("data");
        config.node.peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Ok(Self { folder, in_memory, _lock: lock })
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

/// A new folder, and the lock on it.
fn make(above: &Path) -> Result<(PathBuf, File), CliError> {
    for _ in 0..TRIES {
        let folder = above.join(format!("{PREFIX}{}-{}", std::process::id(), uuid::Uuid::now_v7().simple()));
        let failed = |error| CliError::Other(format!("make folder {}: {error}", folder.display()));
        DirBuilder::new().mode(0o700).create(&folder).map_err(failed)?;
        let lock = File::create_new(folder.join(LOCK)).map_err(failed)?;
        // Between the two another node may have locked it, and removes the folder.
        if lock.try_lock().is_ok() && folder.join(LOCK).exists() {
            return Ok((folder, lock));
        }
    }
    Err(CliError::Other(format!("make a folder in {}: other nodes remove it", above.display())))
}

/// Removes what killed nodes left: folders that were locked, and are not any more. One without a lock may have just been made.
fn remove_leftovers(above: &Path) {
    let Ok(entries) = fs::read_dir(above) else { return };
    let own = rustix::process::geteuid().as_raw();
    for entry in entries.flatten() {
        let is_own = fs::symlink_metadata(entry.path()).is_ok_and(|found| found.is_dir() && found.uid() == own);
        if !is_own || !entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX)) {
            continue;
        }
        let Ok(lock) = File::open(entry.path().join(LOCK)) else { continue };
        if lock.try_lock().is_ok() {
            log_failure(&entry.path(), fs::remove_dir_all(entry.path()));
        }
    }
}

fn log_failure(folder: &Path, removed: io::Result<()>) {
    if let Err(error) = removed {
        tracing::debug!(folder = %folder.display(), %error, "could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_node_left_is_removed_and_what_a_running_one_has_stays_whatever_its_process_is_called() {
        let above = tempfile::tempdir().unwrap();
        let (dead, lock) = make(above.path()).unwrap();
        drop(lock);
        // As of a node in another container, with the number of no process of this one.
        let alive = above.path().join(format!("{PREFIX}{}-x", u32::MAX));
        let (unlocked, other) = (above.path().join(format!("{PREFIX}1-x")), above.path().join("other"));
        for folder in [&alive, &unlocked, &other] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("file"), "x").unwrap();
        }
        let held = File::create_new(alive.join(LOCK)).unwrap();
        held.lock().unwrap();
        remove_leftovers(above.path());
        assert!(!dead.exists() && alive.join("file").exists() && unlocked.exists() && other.exists());
        drop(held);
        remove_leftovers(above.path());
        assert!(!alive.exists(), "its node has ended");
    }

    #[test]
    fn the_folder_of_a_node_stays_while_others_start() {
        let above = tempfile::tempdir().unwrap();
        let (folder, lock) = make(above.path()).unwrap();
        remove_leftovers(above.path());
        assert!(folder.exists());
        drop(lock);
    }
}

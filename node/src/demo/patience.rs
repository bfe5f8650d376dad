//! How long nodes are waited for: as long as they get on. A node that takes over a million finished tasks is busy for
//! minutes before it is ready, and its archive grows meanwhile. Logs do not count: they grow also where nothing gets on.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

/// How long nodes may stand still before they are ready: an election and a registration, on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// How long nodes may take in all: a million records are taken over in less.
const READY_AT_MOST: Duration = Duration::from_secs(20 * 60);

/// A wait for nodes whose snapshots and archives are in these folders.
pub(crate) struct Patience {
    folders: Vec<PathBuf>,
    begin: Instant,
    deadline: Instant,
    on_disk: u64,
}

impl Patience {
    pub(crate) fn with(folders: impl Iterator<Item = PathBuf>) -> Self {
        let (folders, begin): (Vec<PathBuf>, _) = (folders.collect(), Instant::now());
        let on_disk = on_disk(&folders);
        Self { folders, begin, deadline: begin + READY_WITHIN, on_disk }
    }

    /// Whether they have stood still for too long, or taken too long in all.
    pub(crate) fn is_over(&mut self) -> bool {
        self.is_over_at(Instant::now())
    }

    /// How long they were waited for.
    pub(crate) fn waited(&self) -> Duration {
        self.begin.elapsed()
    }

    fn is_over_at(&mut self, now: Instant) -> bool {
        if now <= self.deadline {
            return false;
        }
        let on_disk = on_disk(&self.folders);
        let gets_on = on_disk != self.on_disk;
        self.on_disk = on_disk;
        self.deadline = now + READY_WITHIN;
        !gets_on || now.duration_since(self.begin) > READY_AT_MOST
    }
}

/// What cannot be read does not count: a node may be about to make or remove it.
fn on_disk(folders: &[PathBuf]) -> u64 {
    let files = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_waited_for_as_long_as_they_get_on() {
        let folder = tempfile::tempdir().unwrap();
        let mut patience = Patience::with([folder.path().to_owned()].into_iter());
        let late = patience.begin + READY_WITHIN + Duration::from_secs(1);
        assert!(!patience.is_over_at(patience.begin + READY_WITHIN));
        fs::write(folder.path().join("finished.redb"), "a record").unwrap();
        assert!(!patience.is_over_at(late), "it has grown");
        assert!(!patience.is_over_at(late + READY_WITHIN));
        assert!(patience.is_over_at(late + READY_WITHIN + Duration::from_secs(1)), "it stands still");

        fs::write(folder.path().join("finished.redb"), "two records").unwrap();
        assert!(patience.is_over_at(patience.begin + READY_AT_MOST + READY_WITHIN), "there is an end");
    }
}

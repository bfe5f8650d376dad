//! A disk that a test makes slow or full while the node runs.
//!
//! With the feature `kill-points`, `TOWLINE_DISK_TROUBLE=FILE` has the log look into that file before each write: `slow 200`
//! makes each sync take 200 ms longer, `full` has no room. Without the file the disk is well.

use std::{
    fs, io,
    path::PathBuf,
    sync::{Arc, LazyLock},
    thread,
    time::Duration,
};

use super::{
    disk::{Disk, DiskFile, Space},
    through::{Through, Trouble},
};

/// Longest delay of one sync.
const LONGEST: u64 = 10_000;

static FILE: LazyLock<Option<Arc<PathBuf>>> = LazyLock::new(|| {
    let file = PathBuf::from(std::env::var_os("TOWLINE_DISK_TROUBLE")?);
    tracing::warn!(file = %file.display(), "this node's disk is made slow or full by a test");
    Some(Arc::new(file))
});

/// Such a disk, if one is wanted.
pub(crate) fn disk() -> Option<Arc<dyn Disk>> {
    let file = FILE.clone()?;
    Some(Arc::new(Through(Ailing(file))))
}

#[derive(Debug, Clone)]
struct Ailing(Arc<PathBuf>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Well,
    Slow(Duration),
    Full,
}

impl Ailing {
    fn state(&self) -> State {
        fs::read_to_string(self.0.as_path()).map_or(State::Well, |text| read(&text))
    }

    fn has_room(&self) -> io::Result<()> {
        if self.state() == State::Full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

fn read(text: &str) -> State {
    let text = text.trim();
    match text.strip_prefix("slow ").map(str::parse::<u64>) {
        Some(Ok(ms)) => State::Slow(Duration::from_millis(ms.min(LONGEST))),
        _ if text == "full" => State::Full,
        _ => State::Well,
    }
}

impl Trouble for Ailing {
    /// A full disk takes half of the bytes before it says so.
    fn write_at(&self, file: &mut dyn DiskFile, bytes: &[u8], position: u64) -> io::Result<()> {
        if let Err(full) = self.has_room() {
            file.write_at(&bytes[..bytes.len() / 2], position)?;
            return Err(full);
        }
        file.write_at(bytes, position)
    }

    fn sync(&self, file: &mut dyn DiskFile) -> io::Result<()> {
        if let State::Slow(delay) = self.state() {
            thread::sleep(delay);
        }
        file.sync()
    }

    fn allocate(&self, file: &mut dyn DiskFile, position: u64, bytes: u64) -> io::Result<()> {
        self.has_room()?;
        file.allocate(position, bytes)
    }

    fn space(&self, space: Space) -> Space {
        if self.state() == State::Full { Space { free: 0, ..space } } else { space }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_test_writes_is_understood() {
        assert_eq!(read("slow 20\n"), State::Slow(Duration::from_millis(20)));
        assert_eq!(read("full"), State::Full);
        for well in ["", "slow", "slow x", "fuller"] {
            assert_eq!(read(well), State::Well, "{well:?}");
        }
    }
}

//! A disk before the real one, for tests: it passes everything on, but for what its trouble takes in hand.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::disk::{Disk, DiskFile, DiskReader, OsDisk, Space};

/// What is different about a disk.
pub(crate) trait Trouble: Clone + Send + Sync + 'static {
    /// Writes all bytes at a position.
    fn write_at(&self, file: &mut dyn DiskFile, bytes: &[u8], position: u64) -> io::Result<()> {
        file.write_at(bytes, position)
    }

    /// Makes everything written durable.
    fn sync(&self, file: &mut dyn DiskFile) -> io::Result<()> {
        file.sync()
    }

    /// Reserves room from a position on.
    fn allocate(&self, file: &mut dyn DiskFile, position: u64, bytes: u64) -> io::Result<()> {
        file.allocate(position, bytes)
    }

    /// What the disk says of itself.
    fn space(&self, space: Space) -> Space {
        space
    }

    /// Whether it says that it lies in memory.
    fn is_memory(&self) -> bool {
        false
    }
}

/// The disk of the operating system, with trouble.
#[derive(Debug, Clone, Default)]
pub(crate) struct Through<T>(pub(crate) T);

struct ThroughFile<T> {
    file: Box<dyn DiskFile>,
    trouble: T,
}

impl<T: Trouble> Through<T> {
    fn wrap(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(ThroughFile { file, trouble: self.0.clone() })
    }
}

impl<T: Trouble> Disk for Through<T> {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        OsDisk.create(path).map(|file| self.wrap(file))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        OsDisk.open(path).map(|file| self.wrap(file))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        OsDisk.read(path)
    }

    fn read_ranges(&self, path: &Path, ranges: &[(u64, usize)]) -> io::Result<Vec<Vec<u8>>> {
        OsDisk.read_ranges(path, ranges)
    }

    fn reader(&self, path: &Path) -> io::Result<Box<dyn DiskReader>> {
        OsDisk.reader(path)
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        OsDisk.size(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        OsDisk.list(dir)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        OsDisk.remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        OsDisk.rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        OsDisk.sync_dir(dir)
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        OsDisk.space(dir).map(|space| self.0.space(space))
    }

    fn is_memory(&self, _: &Path) -> bool {
        self.0.is_memory()
    }
}

impl<T: Trouble> DiskFile for ThroughFile<T> {
    fn write_at(&mut self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.trouble.write_at(self.file.as_mut(), bytes, position)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.trouble.sync(self.file.as_mut())
    }

    fn allocate(&mut self, position: u64, bytes: u64) -> io::Result<()> {
        self.trouble.allocate(self.file.as_mut(), position, bytes)
    }

    fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        self.file.truncate(bytes)
    }
}

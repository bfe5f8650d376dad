//! The file operations that the log needs, as a seam: tests put a disk behind it that fails on demand.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FallocateFlags, FsWord, StatVfsMountFlags, fallocate, statfs, statvfs},
    io::Errno,
};

/// A folder's disk.
pub trait Disk: Send + Sync + 'static {
    /// Makes a file that is not there yet.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file for writing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// All bytes of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Parts of a file: position and length of each.
    fn read_ranges(&self, path: &Path, ranges: &[(u64, usize)]) -> io::Result<Vec<Vec<u8>>>;
    /// Opens a file for reading.
    fn reader(&self, path: &Path) -> io::Result<Box<dyn DiskReader>>;
    /// Length of a file.
    fn size(&self, path: &Path) -> io::Result<u64>;
    /// The files of a folder.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Gives a file the name of another, which it replaces.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes created and removed files of a folder durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Free and total bytes of the disk that holds a folder.
    fn space(&self, dir: &Path) -> io::Result<Space>;
    /// Whether a folder lies in memory, where a write is a copy and nothing waits for a device.
    fn is_memory(&self, _dir: &Path) -> bool {
        false
    }
}

/// A file that is open for writing.
pub trait DiskFile: Send {
    /// Writes all bytes at a position. After an error any part of them may be there.
    fn write_at(&mut self, bytes: &[u8], position: u64) -> io::Result<()>;
    /// Makes everything written durable. An error is final: the kernel may have dropped what it could not write.
    fn sync(&mut self) -> io::Result<()>;
    /// Reserves room from a position on.
    fn allocate(&mut self, position: u64, bytes: u64) -> io::Result<()>;
    /// Cuts the file.
    fn truncate(&mut self, bytes: u64) -> io::Result<()>;
}

/// A file that is open for reading, also once another has its name.
pub trait DiskReader: Send + Sync {
    /// Fills a buffer from a position on.
    fn read_at(&self, into: &mut [u8], position: u64) -> io::Result<()>;
}

/// How much room a disk has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// What an unprivileged process may still write.
    pub free: u64,
    /// The whole disk.
    pub total: u64,
    /// Whether nothing can be written, as after an error of the disk.
    pub read_only: bool,
}

/// Whether an error says that the disk, or the quota on it, is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The disk of the operating system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OsDisk;

struct OsFile(File);

impl Disk for OsDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(Box::new(OsFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().write(true).open(path)?;
        Ok(Box::new(OsFile(file)))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn read_ranges(&self, path: &Path, ranges: &[(u64, usize)]) -> io::Result<Vec<Vec<u8>>> {
        let file = File::open(path)?;
        let read = |(position, length): &(u64, usize)| {
            let mut bytes = vec![0; *length];
            file.read_exact_at(&mut bytes, *position).map(|()| bytes)
        };
        ranges.iter().map(read).collect()
    }

    fn reader(&self, path: &Path) -> io::Result<Box<dyn DiskReader>> {
        Ok(Box::new(OsFile(File::open(path)?)))
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        std::fs::metadata(path).map(|file| file.len())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        std::fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path())).collect()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        let stat = statvfs(dir)?;
        Ok(Space {
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
            total: stat.f_blocks.saturating_mul(stat.f_frsize),
            read_only: stat.f_flag.contains(StatVfsMountFlags::RDONLY),
        })
    }

    fn is_memory(&self, dir: &Path) -> bool {
        /// `TMPFS_MAGIC` of statfs(2).
        const TMPFS: FsWord = 0x0102_1994;
        statfs(dir).is_ok_and(|stat| stat.f_type == TMPFS)
    }
}

impl DiskReader for OsFile {
    fn read_at(&self, into: &mut [u8], position: u64) -> io::Result<()> {
        self.0.read_exact_at(into, position)
    }
}

impl DiskFile for OsFile {
    fn write_at(&mut self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, position)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }

    /// A file system that cannot reserve room is no error: the file grows as it is written.
    fn allocate(&mut self, position: u64, bytes: u64) -> io::Result<()> {
        match fallocate(&self.0, FallocateFlags::empty(), position, bytes) {
            Err(error) if error != Errno::OPNOTSUPP && error != Errno::NOSYS => Err(error.into()),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }
}

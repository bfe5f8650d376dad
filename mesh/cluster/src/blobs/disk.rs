//! The file operations that blobs need beside those of the log, on the same seam.

use std::{
    fmt::Debug,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::wal::disk::{Disk, OsDisk};

/// A disk that holds blobs.
pub trait BlobDisk: Disk {
    /// Makes a folder, and those above it, unless it is there. Returns whether it was not.
    fn make_dir(&self, dir: &Path) -> io::Result<bool>;
    /// Removes a folder and what is in it, if it is there.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;
    /// Opens a file for reading. It can be read to its end, also when it is removed meanwhile.
    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn BlobFile>>;
    /// When a file was written last, by the wall clock of its machine since the Unix epoch.
    fn modified(&self, path: &Path) -> io::Result<Duration>;
    /// Says that a file was written at this moment.
    fn touch(&self, path: &Path) -> io::Result<()>;
}

/// A file that is open for reading.
pub trait BlobFile: Debug + Send + Sync {
    /// Its length.
    fn size(&self) -> io::Result<u64>;
    /// So many bytes from a position on.
    fn read_at(&self, position: u64, length: usize) -> io::Result<Vec<u8>>;
}

impl BlobDisk for OsDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<bool> {
        if dir.is_dir() {
            return Ok(false);
        }
        fs::create_dir_all(dir).map(|()| true)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() { fs::remove_dir_all(dir) } else { Ok(()) }
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn BlobFile>> {
        Ok(Box::new(File::open(path)?))
    }

    fn modified(&self, path: &Path) -> io::Result<Duration> {
        let modified = fs::metadata(path)?.modified()?;
        Ok(modified.duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    fn touch(&self, path: &Path) -> io::Result<()> {
        OpenOptions::new().append(true).open(path)?.set_modified(SystemTime::now())
    }
}

impl BlobFile for File {
    fn size(&self) -> io::Result<u64> {
        self.metadata().map(|file| file.len())
    }

    fn read_at(&self, position: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.read_exact_at(&mut bytes, position).map(|()| bytes)
    }
}

//! The file of the archive on a disk that is not the operating system's.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use redb::StorageBackend;

use crate::wal::disk::{Disk, DiskFile};

/// A file of a [`Disk`].
pub(super) struct DiskBackend {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    file: Mutex<Box<dyn DiskFile>>,
}

impl DiskBackend {
    /// Opens the file, which is made if it is not there.
    pub(super) fn open(disk: Arc<dyn Disk>, path: &Path) -> io::Result<Self> {
        let file = match disk.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk.create(path),
            opened => opened,
        };
        Ok(Self { file: Mutex::new(file?), path: path.to_owned(), disk })
    }

    fn with<R>(&self, act: impl FnOnce(&mut dyn DiskFile) -> io::Result<R>) -> io::Result<R> {
        act(self.file.lock().unwrap_or_else(PoisonError::into_inner).as_mut())
    }
}

impl fmt::Debug for DiskBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskBackend({})", self.path.display())
    }
}

impl StorageBackend for DiskBackend {
    fn len(&self) -> io::Result<u64> {
        self.disk.size(&self.path)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let read = self.disk.read_ranges(&self.path, &[(offset, out.len())])?;
        let bytes = read.first().filter(|bytes| bytes.len() == out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    /// A longer file ends with a zero: what lies before it and was never written reads as zero as well.
    fn set_len(&self, len: u64) -> io::Result<()> {
        let now = self.len()?;
        if len > now { self.with(|file| file.write_at(&[0], len - 1)) } else { self.with(|file| file.truncate(len)) }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|file| file.sync())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|file| file.write_at(data, offset))
    }
}

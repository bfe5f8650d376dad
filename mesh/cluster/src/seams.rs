//! The machine that a node runs on, as a seam: its clocks, its network and the disk of its log.
//!
//! Nothing is installed in the product, and then everything here is the operating system's. A simulation of several nodes
//! in one process puts its own machine here before the first node starts; log writes and blocking work then run inside
//! of the runtime, where virtual time orders them.

use std::{
    io,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures::future::BoxFuture;
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncRead, AsyncWrite};

pub use crate::{
    blobs::disk::{BlobDisk, BlobFile},
    wal::disk::{Disk, DiskFile, DiskReader, Space},
};

use crate::wal::disk::OsDisk;

/// A clock of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The time since boot, sleep included.
    Boot,
    /// The time since boot without sleep.
    Monotonic,
    /// The time since the Unix epoch, as somebody has set it.
    Wall,
}

/// A connection to another node.
pub trait Link: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Link for T {}

/// A dial that is under way.
pub type Dialing = BoxFuture<'static, io::Result<Box<dyn Link>>>;

/// A machine that is not the operating system's. Each call is about the machine whose node makes it.
pub trait Machine: Send + Sync + 'static {
    /// Reads a clock.
    fn read_clock(&self, clock: Clock) -> Duration;
    /// Connects to the peer listener of another node.
    fn dial(&self, address: &str) -> Dialing;
    /// The disk of the log and of snapshots.
    fn disk(&self) -> Arc<dyn Disk>;
    /// The same disk, for blobs.
    fn blob_disk(&self) -> Arc<dyn BlobDisk>;
    /// How long the disk takes from the next write of the log until it is durable.
    fn sync_takes(&self) -> Duration;
    /// How long the record of a task that has ended stays in memory.
    fn archive_after(&self) -> Duration {
        ARCHIVE_AFTER
    }
}

const ARCHIVE_AFTER: Duration = Duration::from_millis(towline_core::limits::ARCHIVE_AFTER_MS);

/// How long the record of a task that has ended stays in memory.
pub(crate) fn archive_after() -> Duration {
    simulated().map_or(ARCHIVE_AFTER, Machine::archive_after)
}

static SIMULATED: OnceLock<Box<dyn Machine>> = OnceLock::new();

/// Has all nodes of this process run on this machine. Only the first call counts.
pub fn install(machine: Box<dyn Machine>) {
    if SIMULATED.set(machine).is_err() {
        tracing::error!("a machine was installed before");
    }
}

pub(crate) fn simulated() -> Option<&'static dyn Machine> {
    SIMULATED.get().map(Box::as_ref)
}

/// The disk of this node's log and snapshots.
pub(crate) fn disk() -> Arc<dyn Disk> {
    #[cfg(feature = "kill-points")]
    if let Some(ailing) = crate::wal::ailing::disk() {
        return ailing;
    }
    simulated().map_or_else(|| Arc::new(OsDisk) as Arc<dyn Disk>, Machine::disk)
}

/// The disk of this node's blobs.
pub(crate) fn blob_disk() -> Arc<dyn BlobDisk> {
    simulated().map_or_else(|| Arc::new(OsDisk) as Arc<dyn BlobDisk>, Machine::blob_disk)
}

/// Reads a clock of this node's machine.
pub(crate) fn read_clock(clock: Clock) -> Duration {
    match (simulated(), clock) {
        (Some(machine), clock) => machine.read_clock(clock),
        (None, Clock::Boot) => read_system_clock(ClockId::Boottime),
        (None, Clock::Monotonic) => read_system_clock(ClockId::Monotonic),
        (None, Clock::Wall) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
    }
}

fn read_system_clock(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}

/// Runs what may block on a thread for it.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    if simulated().is_some() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}

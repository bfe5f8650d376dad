//! The one place that uses redb where a page may be damaged: it panics at some of what it finds there, and that is damage like
//! any other.

use std::{
    any::Any,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
};

use redb::Database;

/// An open file. It is closed when this is dropped, which does not panic: what is damaged is found again when it is opened.
pub(super) struct Guarded(Option<Database>);

impl Guarded {
    /// Opens a file.
    ///
    /// # Errors
    /// Those of `open`, and [`io::ErrorKind::InvalidData`] when it panics.
    pub(super) fn open(open: impl FnOnce() -> io::Result<Database>) -> io::Result<Self> {
        guard(open).map(|file| Self(Some(file)))
    }

    /// Uses the file.
    ///
    /// # Errors
    /// Those of `act`, and [`io::ErrorKind::InvalidData`] when it panics. The file is not to be used then: locks in it may be
    /// poisoned.
    pub(super) fn with<R>(&self, act: impl FnOnce(&Database) -> io::Result<R>) -> io::Result<R> {
        let file = self.0.as_ref().ok_or_else(|| io::Error::other("the archive is closed"))?;
        guard(|| act(file))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let file = self.0.take();
        let close = || {
            drop(file);
            Ok(())
        };
        if let Err(error) = guard(close) {
            tracing::warn!(%error, "archive is closed as it is");
        }
    }
}

/// Nothing of ours is changed half-way by a panic: what is written waits in memory until it is, and redb's own state is left.
fn guard<R>(act: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| {
        let reason = format!("a page makes no sense: {}", reason_of(panic.as_ref()));
        Err(io::Error::new(io::ErrorKind::InvalidData, reason))
    })
}

fn reason_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic without a message")
}

//! What is written to a connection between nodes in one turn of the runtime goes out in one piece.
//!
//! ```text
//! HTTP/2 frames ──write──▶ buffer ──flush──▶ once around the queue of tasks ──▶ one TLS record, one system call
//! ```
//! HTTP/2 flushes behind nearly every frame, and an answer is three of them: as TLS records with a system call each they cost
//! more than what they carry. A flush of little lets the tasks that are ready run first, so that what they answer goes along.
//! Nothing waits for a timer.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes that wait: two full TLS records. More is written through.
const CAPACITY: usize = 32 * 1024;
/// So much is worth a system call of its own, and does not wait for more.
const ENOUGH: usize = 8 * 1024;

/// A connection whose small writes go together.
#[derive(Debug)]
pub struct Coalesced<T> {
    inner: T,
    buffer: Vec<u8>,
    /// How much of the buffer the connection has taken.
    taken: usize,
    /// Whether the tasks that were ready have had their turn since the flush began.
    gave_way: bool,
}

impl<T: AsyncWrite + Unpin> Coalesced<T> {
    /// Wraps a connection.
    pub fn new(inner: T) -> Self {
        Self { inner, buffer: Vec::new(), taken: 0, gave_way: false }
    }

    fn drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.taken < self.buffer.len() {
            match ready!(Pin::new(&mut self.inner).poll_write(cx, &self.buffer[self.taken..])) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(taken) => self.taken += taken,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        self.buffer.clear();
        self.taken = 0;
        Poll::Ready(Ok(()))
    }

    fn may_wait(&self) -> bool {
        !self.gave_way && self.taken == 0 && (1..ENOUGH).contains(&self.buffer.len())
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Coalesced<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, into)
    }
}

/// Not vectored: HTTP/2 then copies small payloads behind their heads itself.
impl<T: AsyncWrite + Unpin> AsyncWrite for Coalesced<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.buffer.len() >= CAPACITY {
            ready!(self.drain(cx))?;
        }
        if self.buffer.is_empty() && bytes.len() >= CAPACITY {
            return Pin::new(&mut self.inner).poll_write(cx, bytes);
        }
        let fits = bytes.len().min(CAPACITY - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..fits]);
        Poll::Ready(Ok(fits))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.may_wait() {
            self.gave_way = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.drain(cx))?;
        ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
        self.gave_way = false;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.drain(cx))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Notes each write, and takes no more than so many bytes at once.
    struct Wire {
        writes: Vec<Vec<u8>>,
        most: usize,
    }

    impl AsyncWrite for Wire {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let taken = bytes.len().min(self.most);
            self.writes.push(bytes[..taken].to_vec());
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn connection(most: usize) -> Coalesced<Wire> {
        Coalesced::new(Wire { writes: Vec::new(), most })
    }

    #[tokio::test]
    async fn what_is_written_while_a_flush_gives_way_goes_along() {
        let mut connection = connection(usize::MAX);
        connection.write_all(b"head").await.unwrap();
        assert!(futures::poll!(std::pin::pin!(connection.flush())).is_pending());
        assert!(connection.inner.writes.is_empty());
        connection.write_all(b" and body").await.unwrap();
        connection.flush().await.unwrap();
        assert_eq!(connection.inner.writes, [b"head and body"]);

        connection.write_all(b"next").await.unwrap();
        assert!(futures::poll!(std::pin::pin!(connection.flush())).is_pending(), "each flush gives way once");
    }

    #[tokio::test]
    async fn much_does_not_wait_and_order_is_kept() {
        let mut connection = connection(1_000);
        let bytes: Vec<u8> = (0..3 * CAPACITY).map(|at| (at % 251) as u8).collect();
        connection.write_all(&bytes[..5]).await.unwrap();
        connection.write_all(&bytes[5..]).await.unwrap();
        assert!(futures::poll!(std::pin::pin!(connection.flush())).is_ready());
        assert_eq!(connection.inner.writes.concat(), bytes);
    }

    #[tokio::test]
    async fn the_end_takes_along_what_was_not_flushed() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut connection = Coalesced::new(near);
        connection.write_all(b"bye").await.unwrap();
        connection.shutdown().await.unwrap();
        drop(connection);
        let mut heard = String::new();
        far.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "bye");
    }
}

//! The file of a saved snapshot: written and read in one pass, without ever being whole in memory.
//!
//! ```text
//! file  = mark(8) | format(4) | head chunk | state chunk, ... | (blob chunk, content chunk, ...), ... | end chunk
//! chunk = kind(1) | 0(3) | length(4) | bytes | BLAKE3 of the whole file up to here (32)
//! ```
//! Since each checksum covers everything before it, a chunk cannot be changed, left out, doubled or moved; the end chunk
//! tells a whole file from a cut one. Without blobs it is format 1, which older versions read; with blobs it is format 2, and with
//! records of archived tasks before them 3; a state above the first feature level makes it 4, whatever else there is. A record is its name and content, like a blob. A reader hands on only bytes whose checksum was right.

use std::io::{self, Read, Write};

use bytes::Bytes;
use prost::Message as _;
use towline_core::{BlobHash, TaskId};
use towline_proto::v1;

use crate::wire::WireError;

const MARK: [u8; 8] = *b"TOWLSAVE";
/// The version of a file without blobs.
pub(super) const FORMAT: u32 = 1;
/// The version of a file with blobs.
pub(super) const FORMAT_WITH_BLOBS: u32 = 2;
/// The version of a file with records of archived tasks.
pub(super) const FORMAT_WITH_RECORDS: u32 = 3;
/// The version of a file with a state of a higher level than the first, and the highest one that this binary reads.
pub(super) const FORMAT_WITH_LEVEL: u32 = 4;
/// Bytes of one chunk: small beside a state, large beside its checksum.
const CHUNK_BYTES: usize = 256 * 1024;
/// A longer chunk is refused before room is made for it.
const MAX_CHUNK_BYTES: usize = 1024 * 1024;
const CHUNK_HEADER: usize = 8;
const CHECKSUM: usize = 32;

const HEAD: u8 = 1;
const STATE: u8 = 2;
const END: u8 = 3;
/// Names a blob, whose content follows.
const BLOB: u8 = 4;
const CONTENT: u8 = 5;
/// Names an archived task, whose record follows as content.
const RECORD: u8 = 6;

/// Why a file is not a saved snapshot that can be used.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It could not be read or written.
    #[error("{action} the saved snapshot")]
    File {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// Something else.
    #[error("this is no saved snapshot: make one with `towline cluster snapshot save FILE`")]
    Mark,
    /// Another version of this binary wrote it.
    #[error(
        "saved snapshot has format {found}, and this binary reads up to {known}: use the version that wrote it, or a newer one"
    )]
    Format {
        /// What it says.
        found: u32,
        /// The highest that this binary reads.
        known: u32,
    },
    /// Its end is missing.
    #[error("saved snapshot is torn: it ends at byte {at}, before its end mark; it was cut, or not written to the end")]
    Torn {
        /// Where it ends.
        at: u64,
    },
    /// A checksum is not right.
    #[error("saved snapshot is damaged or was edited: the checksum of bytes {from} to {to} is not right")]
    Damaged {
        /// Where the chunk begins.
        from: u64,
        /// Where it ends.
        to: u64,
    },
    /// Chunks that are whole, in an order that nothing writes.
    #[error("saved snapshot is damaged or was edited at byte {at}: {reason}")]
    Malformed {
        /// Where.
        at: u64,
        /// What is there.
        reason: &'static str,
    },
    /// The content of tasks is not what their names say.
    #[error("saved snapshot does not hold the content of its tasks: {reason}")]
    Blob {
        /// What is missing or wrong.
        reason: String,
    },
    /// The records of archived tasks are not all there, or not theirs.
    #[error("saved snapshot does not hold the records of its finished tasks: {reason}")]
    Record {
        /// What is missing or wrong.
        reason: String,
    },
    /// The checksums are right, and the content is not understood.
    #[error("read what is in the saved snapshot")]
    Content {
        /// What is not understood.
        source: Box<WireError>,
    },
}

/// Writes a file; what is written to it is the state.
pub(super) struct ArchiveWriter<W> {
    out: W,
    hasher: blake3::Hasher,
    pending: Vec<u8>,
}

impl<W: Write> ArchiveWriter<W> {
    pub(super) fn begin(out: W, head: &v1::ArchiveHead, format: u32) -> io::Result<Self> {
        let mut writer = Self { out, hasher: blake3::Hasher::new(), pending: Vec::with_capacity(CHUNK_BYTES) };
        writer.put(&MARK)?;
        writer.put(&format.to_le_bytes())?;
        writer.chunk(HEAD, &head.encode_to_vec())?;
        Ok(writer)
    }

    /// Begins a blob: behind the state, and behind the content of the one before.
    pub(super) fn blob(&mut self, name: &v1::BlobName) -> io::Result<()> {
        self.flush_chunk()?;
        self.chunk(BLOB, &name.encode_to_vec())
    }

    /// Begins the record of an archived task: behind the state, and before the first blob.
    pub(super) fn record(&mut self, task: TaskId) -> io::Result<()> {
        self.flush_chunk()?;
        self.chunk(RECORD, task.as_uuid().as_bytes())
    }

    /// Content of the blob or record that was begun last.
    pub(super) fn content(&mut self, bytes: &[u8]) -> io::Result<()> {
        bytes.chunks(MAX_CHUNK_BYTES).try_for_each(|bytes| self.chunk(CONTENT, bytes))
    }

    /// Writes the end mark: without it the file is torn.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.flush_chunk()?;
        self.chunk(END, &[])?;
        self.out.flush()
    }

    fn flush_chunk(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut pending = std::mem::take(&mut self.pending);
        self.chunk(STATE, &pending)?;
        pending.clear();
        self.pending = pending;
        Ok(())
    }

    fn chunk(&mut self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        self.put(&[kind, 0, 0, 0])?;
        self.put(&length.to_le_bytes())?;
        self.put(bytes)?;
        let checksum = self.hasher.finalize();
        self.put(checksum.as_bytes())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.out.write_all(bytes)
    }
}

impl<W: Write> Write for ArchiveWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.pending.len() >= CHUNK_BYTES {
            self.flush_chunk()?;
        }
        let taken = bytes.len().min(CHUNK_BYTES - self.pending.len());
        self.pending.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    /// Chunks are made when they are full, and at the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What follows the state.
#[derive(Debug)]
pub(super) enum Piece {
    /// The record of an archived task begins.
    Record(TaskId),
    /// A blob begins.
    Blob(BlobHash),
    /// More of its content.
    Content(Bytes),
}

fn blob_name(bytes: Bytes) -> Result<BlobHash, ArchiveError> {
    let what = "name of a blob";
    let name = v1::BlobName::decode(bytes)
        .map_err(|source| ArchiveError::Content { source: Box::new(WireError::Envelope { what, source }) })?;
    let missing = WireError::Missing { message: what, field: "hash" };
    let hash = name.hash.as_ref().try_into().map_err(|_| ArchiveError::Content { source: Box::new(missing) })?;
    Ok(BlobHash::from_bytes(hash))
}

/// Reads a file; what is read from it is the state, and then the blobs piece by piece.
pub(super) struct ArchiveReader<R> {
    input: R,
    hasher: blake3::Hasher,
    at: u64,
    format: u32,
    chunk: Bytes,
    /// What follows the state, once it was met.
    blob: Option<Piece>,
    ended: bool,
    /// Why nothing more can be read. The error of a read must fit into an `io::Error`, which tells less.
    failed: Option<ArchiveError>,
}

impl<R: Read> ArchiveReader<R> {
    pub(super) fn begin(input: R) -> Result<(Self, v1::ArchiveHead), ArchiveError> {
        let mut reader = Self {
            input,
            hasher: blake3::Hasher::new(),
            at: 0,
            format: FORMAT,
            chunk: Bytes::new(),
            blob: None,
            ended: false,
            failed: None,
        };
        let mark: [u8; MARK.len()] = reader
            .array()
            .map_err(|error| if matches!(error, ArchiveError::Torn { .. }) { ArchiveError::Mark } else { error })?;
        if mark != MARK {
            return Err(ArchiveError::Mark);
        }
        let found = u32::from_le_bytes(reader.array()?);
        if !(FORMAT..=FORMAT_WITH_LEVEL).contains(&found) {
            return Err(ArchiveError::Format { found, known: FORMAT_WITH_LEVEL });
        }
        reader.format = found;
        let (kind, head) = reader.next_chunk()?;
        if kind != HEAD {
            return Err(ArchiveError::Malformed { at: reader.at, reason: "it does not begin with a head" });
        }
        let head = v1::ArchiveHead::decode(head).map_err(|source| ArchiveError::Content {
            source: Box::new(WireError::Envelope { what: "head of the saved snapshot", source }),
        })?;
        Ok((reader, head))
    }

    /// Reads to the end, and checks that there is one and nothing behind it.
    pub(super) fn finish(&mut self) -> Result<(), ArchiveError> {
        while self.next_piece()?.is_some() {}
        Ok(())
    }

    /// What follows the state: records, blobs and their content, in order. What is left of the state is skipped.
    pub(super) fn next_piece(&mut self) -> Result<Option<Piece>, ArchiveError> {
        while self.blob.is_none() && self.advance()? {}
        Ok(self.blob.take())
    }

    /// Why a read failed, if it did.
    pub(super) fn failure(&mut self) -> Option<ArchiveError> {
        self.failed.take()
    }

    /// Goes to the next chunk of the state; false at the end of the file.
    fn advance(&mut self) -> Result<bool, ArchiveError> {
        if self.ended || self.blob.is_some() {
            return Ok(false);
        }
        let from = self.at;
        let (kind, bytes) = self.next_chunk()?;
        match kind {
            STATE => {
                self.chunk = bytes;
                Ok(true)
            }
            RECORD if self.format >= FORMAT_WITH_RECORDS => {
                let malformed = |_| ArchiveError::Malformed { at: from, reason: "a task has no id" };
                let id = uuid::Uuid::from_slice(&bytes).map_err(malformed)?;
                self.meet(Piece::Record(TaskId::from_uuid(id)))
            }
            BLOB if self.format >= FORMAT_WITH_BLOBS => {
                let hash = blob_name(bytes)?;
                self.meet(Piece::Blob(hash))
            }
            CONTENT if self.format >= FORMAT_WITH_BLOBS => self.meet(Piece::Content(bytes)),
            END if !bytes.is_empty() => Err(ArchiveError::Malformed { at: from, reason: "its end mark is not empty" }),
            END => {
                self.ended = true;
                self.chunk = Bytes::new();
                self.expect_nothing_more()
            }
            _ => Err(ArchiveError::Malformed { at: from, reason: "a chunk is of a kind that is not known" }),
        }
    }

    /// The state is over where the first blob begins.
    fn meet(&mut self, piece: Piece) -> Result<bool, ArchiveError> {
        self.chunk = Bytes::new();
        self.blob = Some(piece);
        Ok(false)
    }

    fn expect_nothing_more(&mut self) -> Result<bool, ArchiveError> {
        let mut more = [0; 1];
        match self.input.read(&mut more) {
            Ok(0) => Ok(false),
            Ok(_) => Err(ArchiveError::Malformed { at: self.at, reason: "there is something behind its end mark" }),
            Err(source) => Err(ArchiveError::File { action: "read", source }),
        }
    }

    fn next_chunk(&mut self) -> Result<(u8, Bytes), ArchiveError> {
        let from = self.at;
        let header: [u8; CHUNK_HEADER] = self.array()?;
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        if length > MAX_CHUNK_BYTES || header[1..4] != [0; 3] {
            return Err(ArchiveError::Malformed { at: from, reason: "there is no chunk" });
        }
        let mut bytes = vec![0; length];
        self.fill(&mut bytes)?;
        let expected = self.hasher.finalize();
        let checksum: [u8; CHECKSUM] = self.array()?;
        if *expected.as_bytes() != checksum {
            return Err(ArchiveError::Damaged { from, to: self.at });
        }
        Ok((header[0], bytes.into()))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ArchiveError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ArchiveError> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.input.read(&mut bytes[filled..]) {
                Ok(0) => return Err(ArchiveError::Torn { at: self.at + filled as u64 }),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ArchiveError::File { action: "read", source }),
            }
        }
        self.hasher.update(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }
}

impl<R: Read> Read for ArchiveReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return Ok(0),
                Err(error) => {
                    let told = io::Error::new(io::ErrorKind::InvalidData, error.to_string());
                    self.failed = Some(error);
                    return Err(told);
                }
            }
        }
        let taken = into.len().min(self.chunk.len());
        into[..taken].copy_from_slice(&self.chunk.split_to(taken));
        Ok(taken)
    }
}

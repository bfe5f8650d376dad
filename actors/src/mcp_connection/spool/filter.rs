//! What a server sends, with tokens in the place of long strings: read byte by byte, held one message at a time.
//!
//! It knows as much of JSON as it takes to see where a string begins, where it ends and what it is called. What is no JSON
//! goes through as it is, and is refused by who reads it.

use tokio_util::bytes::Bytes;
use towline_cluster::{BlobError, Upload};
use towline_core::{
    Blob, BlobForm,
    limits::{MAX_BLOB_BYTES, MAX_PARTS},
};

use super::{
    Spool, Spooled,
    decode::{Decoder, Form},
};
use crate::mcp_connection::call::MAX_TEXT_BYTES;

/// Base64 that is longer goes beside the message: so many files of this size fit into one.
const LONGEST_BASE64: usize = 64 * 1024;

/// Most bytes of a message beside its long strings: it is in memory as a whole, a few times.
pub(super) const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// Most objects and lists of a message: each takes some hundred bytes once it is read, whatever few it takes on the wire.
pub(super) const MAX_MESSAGE_LISTS: usize = 50_000;

/// Most values of a message, those and what is in them: a number takes two bytes on the wire and some two hundred once it
/// is read, so this many stay within some fifty megabytes. A table of 25,000 rows and nine columns has as many.
pub(super) const MAX_MESSAGE_VALUES: usize = 250_000;

/// Bytes that are written to the disk at a time.
const PIECE_BYTES: usize = 256 * 1024;

/// Longest id of a message that is answered in its server's place.
const MAX_ID_BYTES: usize = 128;

/// Class of a call whose answer has a file that could not be written.
const NOT_KEPT: &str = "not_kept";

/// Where a message ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// With its line.
    Lines,
    /// With its line, and an empty line ends an event.
    Events,
    /// With the body.
    Body,
}

/// A stream of messages on its way to its reader.
pub(super) struct Filter {
    spool: Spool,
    framing: Framing,
    /// Whole lines.
    ready: Vec<u8>,
    message: Message,
    scan: Scan,
    /// Bytes of the event's lines so far.
    event_bytes: usize,
    /// What the last line ended with.
    last_end: u8,
}

/// The message that is being read.
#[derive(Default)]
struct Message {
    kept: Vec<u8>,
    /// What stands before the first brace.
    prefix: Vec<u8>,
    depth: usize,
    /// Objects and lists so far.
    lists: usize,
    /// Values so far: each is the first of its object or list, or stands behind a comma.
    values: usize,
    /// The name that the next value has.
    key: Option<Key>,
    /// The last string, if it may have been a name.
    last: Option<Key>,
    id: Vec<u8>,
    /// It is too large: only its id is of interest.
    dropped: bool,
    /// How many strings went beside it, and their bytes.
    spooled: (usize, u64),
}

enum Scan {
    Outside,
    /// In a string that is held in the message, from a position on.
    Inside {
        start: usize,
        named: Option<Key>,
        escaped: bool,
    },
    /// In a string that goes beside it.
    Beside {
        sink: Box<Sink>,
        escaped: bool,
    },
}

/// Names that mean something here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Base64,
    Text,
    Id,
}

impl Key {
    fn named(name: &[u8]) -> Option<Self> {
        match name {
            b"blob" | b"data" => Some(Key::Base64),
            b"text" => Some(Key::Text),
            b"id" => Some(Key::Id),
            _ => None,
        }
    }
}

impl Filter {
    pub(super) fn new(spool: Spool, framing: Framing) -> Self {
        let (message, scan) = (Message::default(), Scan::Outside);
        Self { spool, framing, ready: Vec::new(), message, scan, event_bytes: 0, last_end: b'\n' }
    }

    /// Takes what has come.
    pub(super) async fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let used = match self.scan {
                Scan::Outside => self.outside(bytes),
                Scan::Inside { .. } => self.inside(bytes).await,
                Scan::Beside { .. } => self.beside(bytes).await,
            };
            bytes = &bytes[used..];
        }
    }

    /// The whole lines that have come.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.ready)
    }

    /// Whether an event has more lines than are held.
    pub(super) fn is_too_much(&self) -> bool {
        self.framing == Framing::Events && self.event_bytes > MAX_MESSAGE_BYTES
    }

    /// The body has ended: what it was; none if it was too large.
    pub(super) fn end(self) -> Option<Vec<u8>> {
        self.spool.0.originals.keep(&self.message.id, self.message.json());
        (!self.message.dropped).then_some(self.message.kept)
    }

    fn outside(&mut self, bytes: &[u8]) -> usize {
        for (at, byte) in bytes.iter().copied().enumerate() {
            let message = &mut self.message;
            match byte {
                b'\n' if self.framing != Framing::Body => {
                    self.end_line(byte);
                    continue;
                }
                b'\r' if self.framing == Framing::Events => {
                    self.end_line(byte);
                    continue;
                }
                b'"' => {
                    message.push(byte);
                    self.scan = Scan::Inside { start: message.kept.len(), named: message.key.take(), escaped: false };
                    return at + 1;
                }
                b'{' | b'[' => {
                    if message.depth == 0 {
                        message.prefix = message.kept.clone();
                    }
                    message.depth += 1;
                    message.lists += 1;
                    message.values += 1;
                    (message.key, message.last) = (None, None);
                }
                b'}' | b']' => {
                    message.depth = message.depth.saturating_sub(1);
                    (message.key, message.last) = (None, None);
                }
                b',' => {
                    message.values += 1;
                    (message.key, message.last) = (None, None);
                }
                b':' => message.key = message.last.take(),
                b'0'..=b'9' | b'-' if message.is_id(message.key) => message.id.push(byte),
                _ => {}
            }
            message.push(byte);
        }
        bytes.len()
    }

    async fn inside(&mut self, bytes: &[u8]) -> usize {
        let Scan::Inside { start, named, escaped } = &mut self.scan else { return 0 };
        let (start, named) = (*start, *named);
        let end = end_of_run(bytes, escaped, self.framing);
        self.message.kept.extend_from_slice(&bytes[..end]);
        let longest = match named {
            Some(Key::Base64) => LONGEST_BASE64,
            Some(Key::Text | Key::Id) | None => MAX_TEXT_BYTES,
        };
        if self.message.kept.len() - start > longest {
            let held = self.message.kept.split_off(start);
            let escaped = std::mem::take(escaped);
            let mut sink = Sink::begin(&self.spool, named, &self.message).await;
            sink.push(&held).await;
            self.scan = Scan::Beside { sink: Box::new(sink), escaped };
            return end;
        }
        match bytes.get(end) {
            Some(b'"') => {
                self.message.end_string(start, named);
                self.scan = Scan::Outside;
                end + 1
            }
            // A line that ends in a string is no JSON.
            Some(_) => {
                self.scan = Scan::Outside;
                end
            }
            None => end,
        }
    }

    async fn beside(&mut self, bytes: &[u8]) -> usize {
        let Scan::Beside { sink, escaped } = &mut self.scan else { return 0 };
        let end = end_of_run(bytes, escaped, self.framing);
        sink.push(&bytes[..end]).await;
        if end == bytes.len() {
            return end;
        }
        let is_whole = bytes[end] == b'"';
        let Scan::Beside { sink, .. } = std::mem::replace(&mut self.scan, Scan::Outside) else { return end };
        let (spooled, length) = sink.end(is_whole).await;
        self.message.spooled.0 += 1;
        self.message.spooled.1 += length;
        let token = self.spool.put(spooled);
        self.message.kept.extend_from_slice(token.as_bytes());
        self.message.kept.push(b'"');
        self.message.bound();
        if is_whole { end + 1 } else { end }
    }

    fn end_line(&mut self, end: u8) {
        let message = std::mem::take(&mut self.message);
        let before = self.ready.len();
        if !message.dropped {
            self.spool.0.originals.keep(&message.id, message.json());
            self.ready.extend_from_slice(&message.kept);
        } else if message.id.is_empty() {
            tracing::warn!(limit = MAX_MESSAGE_BYTES, "an MCP server's message is too large and was dropped");
        } else {
            let id = String::from_utf8_lossy(&message.id).into_owned();
            self.ready.extend_from_slice(&message.prefix);
            self.ready.extend_from_slice(self.spool.too_large(&id).as_bytes());
        }
        let length = self.ready.len() - before;
        let is_second_half = end == b'\n' && self.last_end == b'\r' && length == 0;
        if !is_second_half {
            let is_empty = length == 0 && !message.dropped;
            self.event_bytes = if is_empty { 0 } else { self.event_bytes + length };
        }
        self.last_end = end;
        self.ready.push(end);
    }
}

/// Up to where bytes are plain content of a string: its end, or that of the line that it must not go beyond.
fn end_of_run(bytes: &[u8], escaped: &mut bool, framing: Framing) -> usize {
    let mut at = 0;
    while at < bytes.len() {
        if std::mem::take(escaped) {
            at += 1;
            continue;
        }
        let Some(found) = memchr::memchr3(b'"', b'\\', b'\n', &bytes[at..]) else { return bytes.len() };
        at += found;
        match bytes[at] {
            b'\\' => *escaped = true,
            b'\n' if framing == Framing::Body => {}
            _ => return at,
        }
        at += 1;
    }
    at
}

impl Message {
    fn push(&mut self, byte: u8) {
        if !self.dropped {
            self.kept.push(byte);
            self.bound();
        }
    }

    fn bound(&mut self) {
        let is_too_much = self.lists > MAX_MESSAGE_LISTS || self.values > MAX_MESSAGE_VALUES;
        if self.dropped || self.kept.len() > MAX_MESSAGE_BYTES || is_too_much {
            self.dropped = true;
            self.kept = Vec::new();
        }
    }

    /// What is JSON of it.
    fn json(&self) -> &[u8] {
        self.kept.get(self.prefix.len()..).unwrap_or_default()
    }

    fn is_id(&self, key: Option<Key>) -> bool {
        key == Some(Key::Id) && self.depth == 1 && self.id.len() < MAX_ID_BYTES
    }

    fn end_string(&mut self, start: usize, named: Option<Key>) {
        let string = self.kept.get(start..).unwrap_or_default();
        if named.is_none() {
            self.last = Key::named(string);
        } else if self.is_id(named) && string.len() < MAX_ID_BYTES {
            self.id = [b"\"", string, b"\""].concat();
        }
        self.kept.push(b'"');
        self.bound();
    }
}

/// A string that goes beside its message.
struct Sink {
    form: BlobForm,
    state: Keeping,
    /// Decoded, and not yet written.
    piece: Vec<u8>,
    length: u64,
    room: u64,
}

enum Keeping {
    Writing(Decoder, Box<Upload>),
    /// What comes is dropped.
    Refused {
        error_type: &'static str,
        why: String,
    },
}

impl Sink {
    async fn begin(spool: &Spool, named: Option<Key>, message: &Message) -> Self {
        let (decoder, form) = match named {
            Some(Key::Base64) => (Decoder::new(Form::Base64), BlobForm::Raw),
            Some(Key::Text | Key::Id) | None => (Decoder::new(Form::Text), BlobForm::Text),
        };
        let room = MAX_BLOB_BYTES.saturating_sub(message.spooled.1);
        let state = match &spool.cluster() {
            _ if !matches!(named, Some(Key::Base64 | Key::Text)) || message.dropped => {
                too_large(format!("one of its texts has more than {MAX_TEXT_BYTES} bytes"))
            }
            _ if message.spooled.0 >= MAX_PARTS => too_large(format!("it has more than {MAX_PARTS} large files")),
            None => too_large("there is no place for large files".to_owned()),
            Some(cluster) => match cluster.begin_upload(None).await {
                Ok(upload) => Keeping::Writing(decoder, Box::new(upload)),
                Err(error) => Keeping::Refused { error_type: NOT_KEPT, why: not_kept(&error) },
            },
        };
        Self { form, state, piece: Vec::new(), length: 0, room }
    }

    async fn push(&mut self, raw: &[u8]) {
        let Keeping::Writing(decoder, _) = &mut self.state else { return };
        if decoder.push(raw, &mut self.piece).is_err() {
            self.state = malformed(self.form);
        } else if self.piece.len() >= PIECE_BYTES {
            self.write().await;
        }
    }

    async fn write(&mut self) {
        let Keeping::Writing(_, upload) = &mut self.state else { return };
        let piece = Bytes::from(std::mem::take(&mut self.piece));
        self.length += piece.len() as u64;
        if self.length > self.room {
            self.state = too_large(format!("its files have more than {MAX_BLOB_BYTES} bytes"));
        } else if let Err(error) = upload.write(piece).await {
            self.state = Keeping::Refused { error_type: NOT_KEPT, why: not_kept(&error) };
        }
    }

    async fn end(mut self, is_whole: bool) -> (Spooled, u64) {
        if let Keeping::Writing(decoder, _) = &mut self.state
            && (!is_whole || decoder.finish(&mut self.piece).is_err())
        {
            self.state = malformed(self.form);
        }
        self.write().await;
        let spooled = match self.state {
            Keeping::Writing(_, upload) => match upload.finish_here().await {
                Ok((hash, length)) => Spooled::Kept(Blob { hash, length, form: self.form }),
                Err(error) => Spooled::Refused { error_type: NOT_KEPT, why: not_kept(&error) },
            },
            Keeping::Refused { error_type, why } => Spooled::Refused { error_type, why },
        };
        (spooled, self.length)
    }
}

fn too_large(why: String) -> Keeping {
    Keeping::Refused { error_type: "too_large", why }
}

fn malformed(form: BlobForm) -> Keeping {
    let why = match form {
        BlobForm::Raw => "a file is not base64",
        BlobForm::Text | BlobForm::Data => "a text is no JSON string",
    };
    Keeping::Refused { error_type: "malformed_response", why: why.to_owned() }
}

fn not_kept(error: &BlobError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("a file could not be kept: {error}{cause}")
}

#[cfg(test)]
mod tests;

//! Records and segment headers as bytes; see the diagram in the module above.

use std::ops::Range;

use bytes::Bytes;

const SEGMENT_MARK: [u8; 8] = *b"TOWLWAL1";
pub(super) const RECORD_MARK: [u8; 4] = *b"TwRc";
pub(super) const SEGMENT_HEADER: usize = 32;
const RECORD_HEADER: usize = 32;
/// Records begin at multiples of this, so that one behind a damaged one can be found.
pub(super) const ALIGNMENT: usize = 8;
/// A larger record is refused: nothing that fits through the peer protocol comes near it.
pub(crate) const MAX_RECORD_BYTES: usize = 16 * 1024 * 1024;

/// Which entry: two with the same index and leader are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryId {
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) node: u64,
}

/// One thing to remember.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// An entry of the log.
    Entry {
        /// Which one; its index is the next of the one before, unless a truncation lies between.
        id: EntryId,
        /// The encoded entry.
        body: Bytes,
    },
    /// The vote.
    Vote(Bytes),
    /// Up to where entries are known to be committed.
    Committed(Bytes),
    /// Entries behind this one are void; all of them if there is none.
    Truncate {
        /// The last one that stays.
        after: Option<u64>,
    },
    /// Entries up to and with this one are in a snapshot.
    Purge {
        /// Index of the last one.
        upto: u64,
        /// Its encoded log id.
        log_id: Bytes,
    },
    /// Nothing, except that it proves what was durable before it.
    Mark,
}

/// A valid record in a file.
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) durable: u64,
    pub(super) payload: Range<usize>,
    pub(super) next: usize,
}

impl Frame {
    /// Reads the record at a position; nothing if it is not valid, or not the one with the expected offset.
    pub(super) fn read(bytes: &[u8], at: usize, expected: Option<u64>) -> Option<Frame> {
        let header = bytes.get(at..at + RECORD_HEADER)?;
        let length = u32_at(header, 24) as usize;
        if header[..4] != RECORD_MARK || length > MAX_RECORD_BYTES {
            return None;
        }
        let payload = at + RECORD_HEADER..at + RECORD_HEADER + length;
        let checked = bytes.get(at + 8..payload.end)?;
        // The offset first: it costs nothing, and what a caller put into an entry to look like a record fails here.
        if expected.is_some_and(|expected| expected != u64_at(header, 8))
            || crc32fast::hash(checked) != u32_at(header, 4)
        {
            return None;
        }
        let next = payload.end.next_multiple_of(ALIGNMENT);
        Some(Frame { kind: header[28], durable: u64_at(header, 16), payload, next })
    }
}

impl Record {
    const ENTRY: u8 = 1;
    const VOTE: u8 = 2;
    const COMMITTED: u8 = 3;
    const TRUNCATE: u8 = 4;
    const PURGE: u8 = 5;
    const MARK: u8 = 6;

    fn kind(&self) -> u8 {
        match self {
            Record::Entry { .. } => Self::ENTRY,
            Record::Vote(_) => Self::VOTE,
            Record::Committed(_) => Self::COMMITTED,
            Record::Truncate { .. } => Self::TRUNCATE,
            Record::Purge { .. } => Self::PURGE,
            Record::Mark => Self::MARK,
        }
    }

    fn payload_len(&self) -> usize {
        match self {
            Record::Entry { body, .. } => 24 + body.len(),
            Record::Vote(bytes) | Record::Committed(bytes) => bytes.len(),
            Record::Truncate { after } => after.map_or(0, |_| 8),
            Record::Purge { log_id, .. } => 8 + log_id.len(),
            Record::Mark => 0,
        }
    }

    pub(super) fn encoded_len(&self) -> usize {
        (RECORD_HEADER + self.payload_len()).next_multiple_of(ALIGNMENT)
    }

    pub(super) fn encode(&self, offset: u64, durable: u64, into: &mut Vec<u8>) {
        let at = into.len();
        let length = u32::try_from(self.payload_len()).expect("records are bounded by MAX_RECORD_BYTES");
        into.extend_from_slice(&RECORD_MARK);
        into.extend_from_slice(&[0; 4]);
        into.extend_from_slice(&offset.to_le_bytes());
        into.extend_from_slice(&durable.to_le_bytes());
        into.extend_from_slice(&length.to_le_bytes());
        into.extend_from_slice(&[self.kind(), 0, 0, 0]);
        match self {
            Record::Entry { id: EntryId { index, term, node }, body } => {
                [index, term, node].into_iter().for_each(|number| into.extend_from_slice(&number.to_le_bytes()));
                into.extend_from_slice(body);
            }
            Record::Purge { upto, log_id } => {
                into.extend_from_slice(&upto.to_le_bytes());
                into.extend_from_slice(log_id);
            }
            Record::Vote(body) | Record::Committed(body) => into.extend_from_slice(body),
            Record::Truncate { after: Some(after) } => into.extend_from_slice(&after.to_le_bytes()),
            Record::Truncate { after: None } | Record::Mark => {}
        }
        let crc = crc32fast::hash(&into[at + 8..]);
        into[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        into.resize(at + self.encoded_len(), 0);
    }

    pub(super) fn decode(kind: u8, payload: Bytes) -> Result<Record, String> {
        let numbered = |payload: &Bytes| {
            let number = payload.get(..8).map(|number| u64_at(number, 0));
            number.map(|number| (number, payload.slice(8..))).ok_or("a record is too short".to_owned())
        };
        match kind {
            Self::ENTRY => {
                let (index, rest) = numbered(&payload)?;
                let (term, rest) = numbered(&rest)?;
                let (node, body) = numbered(&rest)?;
                Ok(Record::Entry { id: EntryId { index, term, node }, body })
            }
            Self::VOTE => Ok(Record::Vote(payload)),
            Self::COMMITTED => Ok(Record::Committed(payload)),
            Self::TRUNCATE if payload.is_empty() => Ok(Record::Truncate { after: None }),
            Self::TRUNCATE => numbered(&payload).map(|(after, _)| Record::Truncate { after: Some(after) }),
            Self::PURGE => numbered(&payload).map(|(upto, log_id)| Record::Purge { upto, log_id }),
            Self::MARK => Ok(Record::Mark),
            kind => Err(format!("a record is of kind {kind}, which a newer version wrote")),
        }
    }
}

/// The body of the entry in a record that was read back, if it is the one that was looked for.
pub(super) fn entry_in(id: EntryId, record: &[u8]) -> Option<Bytes> {
    let frame = Frame::read(record, 0, None)?;
    match Record::decode(frame.kind, Bytes::copy_from_slice(&record[frame.payload])) {
        Ok(Record::Entry { id: found, body }) if found == id => Some(body),
        Ok(_) | Err(_) => None,
    }
}

pub(super) fn encode_segment_header(sequence: u64, base: u64) -> [u8; SEGMENT_HEADER] {
    let mut header = [0; SEGMENT_HEADER];
    header[..8].copy_from_slice(&SEGMENT_MARK);
    header[8..16].copy_from_slice(&sequence.to_le_bytes());
    header[16..24].copy_from_slice(&base.to_le_bytes());
    let crc = crc32fast::hash(&header[..24]);
    header[24..28].copy_from_slice(&crc.to_le_bytes());
    header
}

/// The base of a segment; nothing if its header is not valid.
pub(super) fn decode_segment_header(bytes: &[u8], sequence: u64) -> Option<u64> {
    let header = bytes.get(..SEGMENT_HEADER)?;
    let valid = header[..8] == SEGMENT_MARK
        && u64_at(header, 8) == sequence
        && crc32fast::hash(&header[..24]) == u32_at(header, 24);
    valid.then(|| u64_at(header, 16))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

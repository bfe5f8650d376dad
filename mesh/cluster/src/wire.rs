//! Core and openraft types to bytes and back: what the log, snapshots and the peer protocol carry.
//!
//! Envelopes are our own protobuf messages (`towline/v1/log.proto`). A proposal inside is MessagePack with named
//! fields, encoded once by its proposer: a field that was added with a serde default stays readable both ways.
//! Nothing here decides; a value that cannot be decoded is an error that names the field.

use std::{
    collections::BTreeSet,
    fmt,
    io::{BufReader, Read, Write},
};

use bytes::Bytes;
use openraft::EntryPayload;
use prost::Message as _;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use towline_core::{Applied, Level, NodeAddresses, Proposal, Rejection, State, Timestamp, TraceContext};
use towline_proto::v1;

use crate::raft::{
    RaftEntry, RaftLeaderId, RaftLogId, RaftMembership, RaftPayload, RaftSnapshotMeta, RaftStoredMembership, RaftVote,
};

/// The version of [`v1::Entry`] that this binary writes, and the only one that it reads.
const ENTRY_FORMAT: u32 = 1;
/// The version of snapshots of a state of the first level, which every version reads.
const SNAPSHOT_FORMAT: u32 = 1;
/// The version of snapshots of a state of a higher level, and the highest one that this binary reads: an earlier version would
/// pass over what it does not know.
const SNAPSHOT_FORMAT_WITH_LEVEL: u32 = 2;
const SNAPSHOT_MARK: [u8; 8] = *b"TOWLSNAP";
/// mark(8) | format(4) | length of meta(4) | checksum(32)
pub(crate) const SNAPSHOT_HEADER: usize = 48;
/// A payload below this is copied out of the buffer that it came in; a larger one is most of it.
const OWNED_BELOW: usize = 4 * 1024;
/// A larger proposal is refused: with its envelope it has to fit into one frame between nodes, which is 8 MiB.
pub const MAX_PROPOSAL_BYTES: usize = 6 * 1024 * 1024;

/// Bytes that are not what they should be.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Not a message of our protobuf schema.
    #[error("decode {what}")]
    Envelope {
        /// Which message.
        what: &'static str,
        /// What protobuf says.
        source: prost::DecodeError,
    },
    /// A field that must be there is not.
    #[error("{message} without {field}")]
    Missing {
        /// Which message.
        message: &'static str,
        /// Which field.
        field: &'static str,
    },
    /// A format that another version of this binary wrote.
    #[error("{message} has format {found}, and this binary reads {known}: upgrade this node")]
    Format {
        /// Which message.
        message: &'static str,
        /// What it says.
        found: u32,
        /// What this binary reads.
        known: u32,
    },
    /// A body that cannot be encoded.
    #[error("encode {what}")]
    Encode {
        /// What.
        what: &'static str,
        /// Why.
        source: rmp_serde::encode::Error,
    },
    /// A body that cannot be decoded: damaged, or of a newer version.
    #[error("decode {what}")]
    Decode {
        /// What.
        what: &'static str,
        /// Why.
        source: rmp_serde::decode::Error,
    },
    /// Bytes that do not have the checksum that they carry.
    #[error("{what} does not match its checksum")]
    Checksum {
        /// What.
        what: &'static str,
    },
    /// Not a file of ours.
    #[error("{what} does not begin with the mark of a towline file")]
    Mark {
        /// What.
        what: &'static str,
    },
    /// A membership that is none.
    #[error("membership: {reason}")]
    Membership {
        /// What is wrong with it.
        reason: String,
    },
    /// A proposal that no frame between nodes would carry.
    #[error("proposal of {bytes} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// How large it is.
        bytes: usize,
        /// The bound.
        limit: usize,
    },
    /// Something that is valid and does not belong here.
    #[error("{what} {reason}")]
    Foreign {
        /// What.
        what: &'static str,
        /// Why not.
        reason: String,
    },
}

/// A proposal as the leader put it into the log.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedProposal {
    /// The leader's time.
    pub at: Timestamp,
    /// The span that proposed it.
    pub trace: Option<TraceContext>,
    payload: Bytes,
}

impl LoggedProposal {
    /// Encodes a proposal.
    ///
    /// # Errors
    /// When the proposal holds something that MessagePack cannot express.
    pub fn new(at: Timestamp, trace: Option<TraceContext>, proposal: &Proposal) -> Result<Self, WireError> {
        Ok(Self { at, trace, payload: encode_proposal(proposal)? })
    }

    /// Takes the encoded form of a proposal that this process has encoded or decoded. Bytes that were never decoded must
    /// not reach the log, since no node could apply them.
    ///
    /// # Errors
    /// When it is too large for a frame between nodes.
    pub fn from_known(at: Timestamp, trace: Option<TraceContext>, payload: Bytes) -> Result<Self, WireError> {
        check_proposal_size(&payload)?;
        Ok(Self { at, trace, payload: own(payload) })
    }

    /// Decodes the proposal.
    ///
    /// # Errors
    /// When a newer version of the binary encoded it with something that this one does not know.
    pub fn proposal(&self) -> Result<Proposal, WireError> {
        decode_proposal(&self.payload)
    }

    /// The encoded proposal.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }
}

impl fmt::Debug for LoggedProposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoggedProposal({} bytes at {})", self.payload.len(), self.at.0)
    }
}

impl fmt::Display for LoggedProposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Encodes a proposal, once, for the log and every hop on the way there.
///
/// # Errors
/// When it holds something that MessagePack cannot express, or is too large for a frame between nodes.
pub fn encode_proposal(proposal: &Proposal) -> Result<Bytes, WireError> {
    let bytes = encode("proposal", proposal)?;
    check_proposal_size(&bytes)?;
    Ok(bytes.into())
}

fn check_proposal_size(bytes: &[u8]) -> Result<(), WireError> {
    if bytes.len() > MAX_PROPOSAL_BYTES {
        return Err(WireError::TooLarge { bytes: bytes.len(), limit: MAX_PROPOSAL_BYTES });
    }
    Ok(())
}

/// Decodes a proposal.
///
/// # Errors
/// When the bytes are damaged, or a newer version made them.
pub fn decode_proposal(bytes: &[u8]) -> Result<Proposal, WireError> {
    decode("proposal", bytes)
}

/// Encodes what the core said, for the node that forwarded the proposal.
///
/// # Errors
/// When it holds something that MessagePack cannot express.
pub fn encode_outcome(outcome: &Result<Applied, Rejection>) -> Result<Vec<u8>, WireError> {
    encode("outcome", outcome)
}

/// Decodes what the core said.
///
/// # Errors
/// When the bytes are damaged, or a newer version made them.
pub fn decode_outcome(bytes: &[u8]) -> Result<Result<Applied, Rejection>, WireError> {
    decode("outcome", bytes)
}

pub(crate) fn encode<T: Serialize>(what: &'static str, value: &T) -> Result<Vec<u8>, WireError> {
    rmp_serde::to_vec_named(value).map_err(|source| WireError::Encode { what, source })
}

pub(crate) fn decode<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, WireError> {
    rmp_serde::from_slice(bytes).map_err(|source| WireError::Decode { what, source })
}

/// Bytes of a state that are in memory at a time while it is read.
const STATE_PIECE: usize = 64 * 1024;

/// Reads a state from wherever it lies. All sources share one reader: the decoders of all that is in a state are megabytes of code for
/// each kind of it.
pub(crate) fn read_state(source: &mut dyn Read) -> Result<State, WireError> {
    let reader = BufReader::with_capacity(STATE_PIECE, source);
    rmp_serde::from_read(reader).map_err(|source| WireError::Decode { what: "state", source })
}

/// Writes a state to wherever it goes, which takes small pieces well.
pub(crate) fn write_state(state: &State, out: &mut dyn Write) -> Result<(), WireError> {
    let mut serializer = rmp_serde::Serializer::new(out).with_struct_map();
    state.serialize(&mut serializer).map_err(|source| WireError::Encode { what: "state", source })
}

/// A log entry as a message.
pub fn entry_to_proto(entry: &RaftEntry) -> v1::Entry {
    let payload = match &entry.payload {
        EntryPayload::Blank => v1::entry::Payload::Blank(v1::Blank {}),
        EntryPayload::Normal(logged) => v1::entry::Payload::Proposal(logged_to_proto(logged)),
        EntryPayload::Membership(membership) => v1::entry::Payload::Membership(membership_to_proto(membership)),
    };
    v1::Entry { format: ENTRY_FORMAT, log_id: Some(log_id_to_proto(&entry.log_id)), payload: Some(payload) }
}

/// A log entry from a message.
///
/// # Errors
/// When a field is missing or the format is not known.
pub fn entry_from_proto(entry: v1::Entry) -> Result<RaftEntry, WireError> {
    if entry.format != ENTRY_FORMAT {
        return Err(WireError::Format { message: "entry", found: entry.format, known: ENTRY_FORMAT });
    }
    let log_id = entry.log_id.ok_or(WireError::Missing { message: "entry", field: "log_id" })?;
    let payload = entry.payload.ok_or(WireError::Missing { message: "entry", field: "payload" })?;
    Ok(RaftEntry { log_id: log_id_from_proto(&log_id), payload: payload_from_proto(payload)? })
}

fn payload_from_proto(payload: v1::entry::Payload) -> Result<RaftPayload, WireError> {
    match payload {
        v1::entry::Payload::Blank(v1::Blank {}) => Ok(EntryPayload::Blank),
        v1::entry::Payload::Proposal(logged) => Ok(EntryPayload::Normal(logged_from_proto(logged))),
        v1::entry::Payload::Membership(membership) => Ok(EntryPayload::Membership(membership_from_proto(membership)?)),
    }
}

/// A log entry as bytes.
pub fn encode_entry(entry: &RaftEntry) -> Vec<u8> {
    entry_to_proto(entry).encode_to_vec()
}

/// A log entry from bytes.
///
/// # Errors
/// When the bytes are not an entry, or a newer version made it.
pub fn decode_entry(bytes: Bytes) -> Result<RaftEntry, WireError> {
    let entry = v1::Entry::decode(bytes).map_err(|source| WireError::Envelope { what: "entry", source })?;
    entry_from_proto(entry)
}

fn logged_to_proto(logged: &LoggedProposal) -> v1::LoggedProposal {
    v1::LoggedProposal {
        at_ms: logged.at.0,
        traceparent: logged.trace.map(|trace| trace.to_string()).unwrap_or_default(),
        proposal: logged.payload.clone(),
    }
}

/// A traceparent that is malformed is dropped: a trace is never a reason to refuse an entry.
fn logged_from_proto(logged: v1::LoggedProposal) -> LoggedProposal {
    let payload = own(logged.proposal);
    LoggedProposal { at: Timestamp(logged.at_ms), trace: logged.traceparent.parse().ok(), payload }
}

/// Takes a small payload out of the buffer that it was received in, which has 8 KiB and would stay in memory for as long as
/// the entry does.
fn own(payload: Bytes) -> Bytes {
    if payload.len() < OWNED_BELOW { Bytes::copy_from_slice(&payload) } else { payload }
}

/// A proposal in the log whose bytes nobody has checked.
#[cfg(test)]
pub(crate) fn logged_from_bytes(at: Timestamp, payload: Bytes) -> LoggedProposal {
    LoggedProposal { at, trace: None, payload }
}

/// A log id as a message.
pub fn log_id_to_proto(log_id: &RaftLogId) -> v1::LogId {
    v1::LogId { term: log_id.leader_id.term, node: log_id.leader_id.node_id, index: log_id.index }
}

/// A log id from a message.
pub fn log_id_from_proto(log_id: &v1::LogId) -> RaftLogId {
    RaftLogId::new(RaftLeaderId { term: log_id.term, node_id: log_id.node }, log_id.index)
}

/// A vote as a message.
pub fn vote_to_proto(vote: &RaftVote) -> v1::Vote {
    v1::Vote { term: vote.leader_id.term, node: vote.leader_id.node_id, committed: vote.committed }
}

/// A vote from a message.
pub fn vote_from_proto(vote: &v1::Vote) -> RaftVote {
    RaftVote { leader_id: RaftLeaderId { term: vote.term, node_id: vote.node }, committed: vote.committed }
}

/// A membership as a message.
pub fn membership_to_proto(membership: &RaftMembership) -> v1::Membership {
    let voter_set = |voters: &BTreeSet<u64>| v1::VoterSet { voters: voters.iter().copied().collect() };
    let member = |(id, addresses): (&u64, &NodeAddresses)| v1::Member {
        id: *id,
        http: addresses.http.clone(),
        peer: addresses.peer.clone(),
    };
    v1::Membership {
        configs: membership.get_joint_config().iter().map(voter_set).collect(),
        nodes: membership.nodes().map(member).collect(),
    }
}

/// A membership from a message.
///
/// # Errors
/// When a voter is not among its nodes.
pub fn membership_from_proto(membership: v1::Membership) -> Result<RaftMembership, WireError> {
    let configs: Vec<BTreeSet<u64>> =
        membership.configs.into_iter().map(|set| set.voters.into_iter().collect()).collect();
    let nodes: std::collections::BTreeMap<u64, NodeAddresses> = membership
        .nodes
        .into_iter()
        .map(|member| (member.id, NodeAddresses { http: member.http, peer: member.peer }))
        .collect();
    if configs.is_empty() && nodes.is_empty() {
        return Ok(RaftMembership::default());
    }
    RaftMembership::new(configs, nodes).map_err(|error| WireError::Membership { reason: error.to_string() })
}

/// What a snapshot covers, as a message.
pub fn snapshot_meta_to_proto(meta: &RaftSnapshotMeta) -> v1::SnapshotMeta {
    v1::SnapshotMeta {
        last_log_id: meta.last_log_id.as_ref().map(log_id_to_proto),
        membership: Some(v1::StoredMembership {
            log_id: meta.last_membership.log_id().as_ref().map(log_id_to_proto),
            membership: Some(membership_to_proto(meta.last_membership.membership())),
        }),
    }
}

/// What a snapshot covers, from a message.
///
/// # Errors
/// When it has no membership, or one that is none.
pub fn snapshot_meta_from_proto(meta: v1::SnapshotMeta) -> Result<RaftSnapshotMeta, WireError> {
    let missing = || WireError::Missing { message: "snapshot meta", field: "membership" };
    let stored = meta.membership.ok_or_else(missing)?;
    let membership = membership_from_proto(stored.membership.ok_or_else(missing)?)?;
    Ok(RaftSnapshotMeta {
        last_log_id: meta.last_log_id.as_ref().map(log_id_from_proto),
        last_membership: RaftStoredMembership::new(stored.log_id.as_ref().map(log_id_from_proto), membership),
    })
}

/// A snapshot as one file: a header with a version and a BLAKE3 checksum, what it covers, and the state.
///
/// # Errors
/// When the state holds something that MessagePack cannot express.
pub(crate) fn encode_snapshot(meta: &RaftSnapshotMeta, state: &State) -> Result<Bytes, WireError> {
    let meta = snapshot_meta_to_proto(meta).encode_to_vec();
    let mut file = snapshot_header(&meta, state.level()).to_vec();
    file.extend_from_slice(&meta);
    write_state(state, &mut file)?;
    let checksum = snapshot_checksum(&file);
    file[16..SNAPSHOT_HEADER].copy_from_slice(checksum.as_bytes());
    Ok(file.into())
}

/// What a snapshot covers, and its state.
///
/// # Errors
/// When it is damaged, or a newer version made it.
pub(crate) fn decode_snapshot(file: &Bytes) -> Result<(RaftSnapshotMeta, State), WireError> {
    let (meta, state) = check_snapshot(file)?;
    Ok((decode_meta(meta)?, read_state(&mut &state[..])?))
}

fn decode_meta(meta: Bytes) -> Result<RaftSnapshotMeta, WireError> {
    let meta = v1::SnapshotMeta::decode(meta);
    snapshot_meta_from_proto(meta.map_err(|source| WireError::Envelope { what: "snapshot meta", source })?)
}

/// The header of a snapshot, without its checksum.
pub(crate) fn snapshot_header(meta: &[u8], level: Level) -> [u8; SNAPSHOT_HEADER] {
    let format = if level == Level::FIRST { SNAPSHOT_FORMAT } else { SNAPSHOT_FORMAT_WITH_LEVEL };
    let mut header = [0; SNAPSHOT_HEADER];
    header[..8].copy_from_slice(&SNAPSHOT_MARK);
    header[8..12].copy_from_slice(&format.to_le_bytes());
    header[12..16].copy_from_slice(&length_of(meta).to_le_bytes());
    header
}

/// Checks the header of a snapshot, and returns the length of its meta.
pub(crate) fn snapshot_meta_length(header: &[u8]) -> Result<usize, WireError> {
    const WHAT: &str = "snapshot";
    if header.len() < SNAPSHOT_HEADER || header[..8] != SNAPSHOT_MARK {
        return Err(WireError::Mark { what: WHAT });
    }
    let found = u32_at(header, 8);
    if !(SNAPSHOT_FORMAT..=SNAPSHOT_FORMAT_WITH_LEVEL).contains(&found) {
        return Err(WireError::Format { message: WHAT, found, known: SNAPSHOT_FORMAT_WITH_LEVEL });
    }
    Ok(u32_at(header, 12) as usize)
}

/// Checks the header and checksum of a snapshot, and returns the encoded meta and state.
///
/// # Errors
/// When it is damaged, or a newer version made it.
pub(crate) fn check_snapshot(file: &Bytes) -> Result<(Bytes, Bytes), WireError> {
    const WHAT: &str = "snapshot";
    let meta_length = snapshot_meta_length(file)?;
    if snapshot_checksum(file).as_bytes()[..] != file[16..SNAPSHOT_HEADER] {
        return Err(WireError::Checksum { what: WHAT });
    }
    let state_at = SNAPSHOT_HEADER + meta_length;
    if state_at > file.len() {
        return Err(WireError::Missing { message: WHAT, field: "state" });
    }
    Ok((file.slice(SNAPSHOT_HEADER..state_at), file.slice(state_at..)))
}

fn snapshot_checksum(file: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&file[..16]);
    hasher.update(&file[SNAPSHOT_HEADER..]);
    hasher.finalize()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn length_of(meta: &[u8]) -> u32 {
    u32::try_from(meta.len()).expect("the meta of a snapshot names some nodes and is small")
}

#[cfg(test)]
mod tests;

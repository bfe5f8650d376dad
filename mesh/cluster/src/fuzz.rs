//! Every decoder of bytes from a disk or another node, as a plain function for fuzzing: none of them may panic, and what
//! is understood must come back the same when it is written again.

use bytes::Bytes;
use prost::Message;
use towline_core::{BlobHash, TaskId};
use towline_proto::v1;

use crate::{
    archive, blobs, certificates::CertificateRequest, finished, joining::Token, raft::SnapshotFile, wal, wire,
};

/// A log entry.
pub fn entry(bytes: &[u8]) {
    if let Ok(entry) = wire::decode_entry(Bytes::copy_from_slice(bytes)) {
        let again = wire::decode_entry(wire::encode_entry(&entry).into()).ok();
        assert_eq!(again.as_ref(), Some(&entry), "an entry changes when it is written again");
    }
}

/// A proposal.
pub fn proposal(bytes: &[u8]) {
    if let Ok(proposal) = wire::decode_proposal(bytes) {
        let again = wire::encode_proposal(&proposal).and_then(|bytes| wire::decode_proposal(&bytes)).ok();
        assert_eq!(again.as_ref(), Some(&proposal), "a proposal changes when it is written again");
    }
}

/// What the core said, as the leader sends it back.
pub fn outcome(bytes: &[u8]) {
    drop(wire::decode_outcome(bytes));
}

/// The records of a segment behind its header.
pub fn wal_segment(bytes: &[u8]) {
    if let Ok(good) = wal::read_bytes(bytes) {
        assert_eq!(wal::read_bytes(&bytes[..good.min(bytes.len())]).ok(), Some(good), "the good part is not all good");
    }
}

/// A snapshot, read as a whole and piece by piece.
pub fn snapshot(bytes: &[u8]) {
    let whole = wire::decode_snapshot(&Bytes::copy_from_slice(bytes)).ok();
    let file = SnapshotFile::from_bytes(Bytes::copy_from_slice(bytes));
    let pieces = file.and_then(|file| file.decode()).ok();
    assert_eq!(whole.map(|(meta, _)| meta), pieces.map(|(meta, _)| meta), "a snapshot is read in two ways");
}

/// The state inside of a snapshot, behind its checksum.
pub fn state(bytes: &[u8]) {
    drop(wire::decode::<towline_core::State>("state", bytes));
}

/// A saved snapshot.
pub fn saved_snapshot(bytes: &[u8]) {
    drop(archive::read(bytes));
}

/// Each message of the Raft service.
pub fn raft_messages(bytes: &[u8]) {
    if let Ok(append) = v1::AppendEntriesRequest::decode(bytes) {
        append.entries.into_iter().for_each(|entry| drop(wire::entry_from_proto(entry)));
    }
    if let Ok(chunk) = v1::SnapshotChunk::decode(bytes) {
        let meta = chunk.header.and_then(|header| header.meta);
        drop(meta.map(wire::snapshot_meta_from_proto));
    }
    drop(v1::VoteRequest::decode(bytes));
    drop(v1::AppendEntriesResponse::decode(bytes));
    drop(v1::VoteResponse::decode(bytes));
    drop(v1::TransferLeaderRequest::decode(bytes));
    drop(v1::TransferLeaderResponse::decode(bytes));
}

/// Each message of the peer service.
pub fn peer_messages(bytes: &[u8]) {
    if let Ok(request) = v1::ProposeRequest::decode(bytes) {
        proposal(&request.proposal);
    }
    if let Ok(v1::ProposeResponse { result: Some(v1::propose_response::Result::Applied(applied)) }) =
        v1::ProposeResponse::decode(bytes)
    {
        outcome(&applied.outcome);
    }
    drop(v1::ReadIndexResponse::decode(bytes));
    drop(v1::KeepAliveRequest::decode(bytes));
    drop(v1::KeepAliveResponse::decode(bytes));
    drop(v1::SpansResponse::decode(bytes));
    drop(v1::FinishedRequest::decode(bytes));
    if let Ok(chunk) = v1::FinishedChunk::decode(bytes) {
        let id = uuid::Uuid::from_slice(&chunk.task).unwrap_or_default();
        drop(finished::decode_record(TaskId::from_uuid(id), &chunk.data));
    }
    drop(v1::TailRequest::decode(bytes));
    if let Ok(piece) = v1::TailPiece::decode(bytes) {
        piece.entries.into_iter().for_each(|entry| drop(wire::entry_from_proto(entry)));
    }
}

/// The file of a blob: what is understood is exactly what its name says.
pub fn blob_file(bytes: &[u8]) {
    let Some((hash, file)) = bytes.split_first_chunk::<32>() else { return };
    if let Some(content) = blobs::read_bytes(BlobHash::from_bytes(*hash), file) {
        assert_eq!(blake3::hash(&content).as_bytes(), hash, "a blob is read that is not what its name says");
    }
}

/// Each message about blobs.
pub fn blob_messages(bytes: &[u8]) {
    if let Ok(chunk) = v1::BlobChunk::decode(bytes) {
        drop(blobs::named(chunk.name.as_ref()));
    }
    drop(v1::GetBlobRequest::decode(bytes));
    drop(v1::HoldBlobsRequest::decode(bytes));
    drop(v1::MissingBlobsResponse::decode(bytes));
}

/// An enrolment: what anybody may send.
pub fn enrolment(bytes: &[u8]) {
    if let Ok(request) = v1::EnrolRequest::decode(bytes) {
        drop(CertificateRequest::read(&request.certificate_request));
    }
    drop(CertificateRequest::read(bytes));
    drop(v1::EnrolResponse::decode(bytes));
}

/// A join token, as text or as the bytes inside of it.
pub fn join_token(bytes: &[u8]) {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    drop(std::str::from_utf8(bytes).map(Token::parse));
    drop(Token::parse(&URL_SAFE_NO_PAD.encode(bytes)));
}

//! What earlier versions wrote, on disk and between nodes, as files that the code must read for ever.
//!
//! `tests/fixtures/formats/` has a folder per format, oldest first by name. All of them are read; the newest is also
//! written again, byte for byte, so that no format changes unnoticed. When one changes on purpose and old data stays
//! readable, `TOWLINE_WRITE_FIXTURES=NAME cargo test -p towline-cluster format_tests` makes a further folder; none that
//! was released is ever changed.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use openraft::EntryPayload;
use prost::Message as _;
use serde::Deserialize;
use towline_core::{Proposal, Stamp, State};
use towline_proto::v1;

use crate::{
    archive,
    joining::Token,
    raft::{RaftEntry, RaftLeaderId, RaftLogId, RaftMembership, RaftSnapshotMeta, RaftStoredMembership, RaftVote},
    wal::{EntryId, Record, Wal, disk::OsDisk},
    wire::{self, LoggedProposal},
};

const SEGMENT: &str = "wal-00000000000000000001.log";
const MESSAGES: &str = "messages.txt";
/// The entry that is truncated again.
const VOID: u64 = 1_000;
/// Entries up to this one are purged.
const PURGED: u64 = 2;

#[tokio::test]
async fn the_log_of_every_format_is_read() {
    for folder in folders() {
        let written = proposals(&folder);
        let recovered = recover(&fs::read(folder.join(SEGMENT)).unwrap()).await;
        assert_eq!(recovered.vote.as_deref(), Some(vote().as_slice()), "{folder:?}");
        assert_eq!(recovered.committed.as_deref(), Some(log_id(3).as_slice()));
        assert_eq!(recovered.purged, Some((PURGED, log_id(PURGED).into())));
        let read: Vec<Proposal> = recovered.entries.iter().map(|(_, body)| proposal_in(body)).collect();
        assert_eq!(read, written[usize::try_from(PURGED).unwrap()..], "{folder:?}");
    }
}

#[test]
fn the_snapshot_of_every_format_is_read() {
    for folder in folders() {
        let (meta, state) = wire::decode_snapshot(&read(&folder, "state.snapshot")).unwrap();
        assert_eq!(meta, meta_of(&state), "{folder:?}");
        assert!(state.task_count() > 3 && state.nodes().count() > 1, "{folder:?}");
        let (summary, saved) = archive::read(&read(&folder, "saved.towline")[..]).unwrap();
        assert_eq!((summary.tasks, saved), (state.task_count() as u64, state), "{folder:?}");
    }
}

#[test]
fn the_messages_of_every_format_are_read() {
    for folder in folders() {
        let text = fs::read_to_string(folder.join(MESSAGES)).unwrap();
        for line in text.lines() {
            let (name, bytes) = line.split_once(' ').unwrap();
            assert!(!again(name, unhex(bytes)).is_empty(), "{folder:?}: {name}");
        }
    }
    let newest = fs::read_to_string(folders().pop().unwrap().join(MESSAGES)).unwrap();
    assert_eq!(newest.lines().count(), messages().len(), "new messages are a new format");
}

#[tokio::test]
async fn what_is_written_is_the_newest_format() {
    let folder = folders().pop().unwrap();
    let segment = write_log(&proposals(&folder)).await;
    assert!(segment == read(&folder, SEGMENT), "the log is written otherwise than in {folder:?}");
    let snapshot = read(&folder, "state.snapshot");
    let (meta, state) = wire::decode_snapshot(&snapshot).unwrap();
    assert!(wire::encode_snapshot(&meta, &state).unwrap() == snapshot, "snapshots are written otherwise: {folder:?}");
    let saved = read(&folder, "saved.towline");
    let (_, state) = archive::read(&saved[..]).unwrap();
    assert!(write_archive(&state) == saved, "saved snapshots are written otherwise: {folder:?}");
    let text = fs::read_to_string(folder.join(MESSAGES)).unwrap();
    for line in text.lines() {
        let (name, bytes) = line.split_once(' ').unwrap();
        assert_eq!(hex(&again(name, unhex(bytes))), bytes, "{name}");
    }
}

#[tokio::test]
async fn a_further_format_is_written_when_asked_for() {
    let Some(name) = std::env::var_os("TOWLINE_WRITE_FIXTURES") else { return };
    let folder = fixtures().join(name);
    fs::create_dir(&folder).unwrap();
    let commands = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/fixtures/commands.jsonl");
    fs::copy(commands, folder.join("commands.jsonl")).unwrap();
    let proposals = proposals(&folder);
    let mut state = State::default();
    for (index, proposal) in (1..).zip(&proposals) {
        // What the core refuses is in logs as well.
        let _ = state.apply(proposal.clone(), stamp(index));
    }
    fs::write(folder.join(SEGMENT), write_log(&proposals).await).unwrap();
    fs::write(folder.join("state.snapshot"), wire::encode_snapshot(&meta_of(&state), &state).unwrap()).unwrap();
    fs::write(folder.join("saved.towline"), write_archive(&state)).unwrap();
    let lines: String = messages().iter().map(|(name, bytes)| format!("{name} {}\n", hex(bytes))).collect();
    fs::write(folder.join(MESSAGES), lines).unwrap();
}

// ---- helpers ----

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/formats")
}

/// The folder of each format, oldest first.
fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(!folders.is_empty());
    folders
}

fn read(folder: &Path, name: &str) -> Bytes {
    fs::read(folder.join(name)).unwrap().into()
}

fn proposals(folder: &Path) -> Vec<Proposal> {
    #[derive(Deserialize)]
    struct Line {
        proposal: Proposal,
    }
    let text = fs::read_to_string(folder.join("commands.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str::<Line>(line).unwrap().proposal).collect()
}

fn stamp(index: u64) -> Stamp {
    Stamp { index, at: towline_core::Timestamp(1_764_460_800_000 + index) }
}

async fn write_log(proposals: &[Proposal]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let (wal, _) = Wal::open(folder.path(), Arc::new(OsDisk)).unwrap();
    let entries = (1..).zip(proposals).map(|(index, proposal)| entry_record(index, proposal));
    // One run of records, so that each says the same of what was durable before it.
    let mut records = vec![Record::Vote(vote().into())];
    records.extend(entries);
    records.push(Record::Committed(log_id(3).into()));
    let void = EntryId { index: proposals.len() as u64 + 1, term: VOID, node: 1 };
    records.push(Record::Entry { id: void, body: wire::encode_entry(&entry(void.index, &proposals[0])).into() });
    records.push(Record::Truncate { after: Some(proposals.len() as u64) });
    records.push(Record::Purge { upto: PURGED, log_id: log_id(PURGED).into() });
    wal.write(records).await.unwrap();
    wal.close().await;
    let mut bytes = fs::read(folder.path().join(SEGMENT)).unwrap();
    // Room that was reserved and not used.
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    bytes.truncate(used.next_multiple_of(8));
    bytes
}

async fn recover(bytes: &[u8]) -> crate::wal::Recovered {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(SEGMENT), bytes).unwrap();
    let (wal, recovered) = Wal::open(folder.path(), Arc::new(OsDisk)).unwrap();
    wal.close().await;
    recovered
}

fn write_archive(state: &State) -> Vec<u8> {
    let head = v1::ArchiveHead {
        cluster: vec![7; 16].into(),
        cluster_name: "prod".into(),
        index: state.last().index,
        saved_at_ms: 1_764_460_800_000,
        version: "0.1.0".into(),
        tasks: state.task_count() as u64,
    };
    let mut bytes = Vec::new();
    let content = |_, length| vec![0; usize::try_from(length).unwrap()];
    let record = |_| Ok(b"record".to_vec());
    archive::write(&head, state, archive::Beside { content, record }, &mut bytes).unwrap();
    bytes
}

fn entry_record(index: u64, proposal: &Proposal) -> Record {
    let id = EntryId { index, term: 3, node: 1 };
    Record::Entry { id, body: wire::encode_entry(&entry(index, proposal)).into() }
}

fn entry(index: u64, proposal: &Proposal) -> RaftEntry {
    let logged = LoggedProposal::new(stamp(index).at, None, proposal).unwrap();
    RaftEntry { log_id: raft_log_id(index), payload: EntryPayload::Normal(logged) }
}

fn proposal_in(body: &Bytes) -> Proposal {
    let EntryPayload::Normal(logged) = wire::decode_entry(body.clone()).unwrap().payload else { panic!("no proposal") };
    logged.proposal().unwrap()
}

fn raft_log_id(index: u64) -> RaftLogId {
    RaftLogId::new(RaftLeaderId { term: 3, node_id: 1 }, index)
}

fn log_id(index: u64) -> Vec<u8> {
    wire::log_id_to_proto(&raft_log_id(index)).encode_to_vec()
}

fn raft_vote() -> RaftVote {
    RaftVote { leader_id: RaftLeaderId { term: 3, node_id: 1 }, committed: true }
}

fn vote() -> Vec<u8> {
    wire::vote_to_proto(&raft_vote()).encode_to_vec()
}

fn membership() -> RaftMembership {
    let addresses = |id: u64| towline_core::NodeAddresses {
        http: format!("http://127.0.0.1:{id}"),
        peer: format!("127.0.0.1:{id}"),
    };
    let nodes = (1..=3).map(|id| (id, addresses(id))).collect::<std::collections::BTreeMap<_, _>>();
    RaftMembership::new(vec![[1, 2].into(), [1, 2, 3].into()], nodes).unwrap()
}

fn meta_of(state: &State) -> RaftSnapshotMeta {
    let last_membership = RaftStoredMembership::new(Some(raft_log_id(1)), membership());
    RaftSnapshotMeta { last_log_id: Some(raft_log_id(state.last().index)), last_membership }
}

/// One of each message that nodes exchange, with every field that today's nodes fill.
fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let log_id = || Some(wire::log_id_to_proto(&raft_log_id(7)));
    let vote = || Some(wire::vote_to_proto(&raft_vote()));
    let blank = RaftEntry { log_id: raft_log_id(7), payload: EntryPayload::Blank };
    let members = RaftEntry { log_id: raft_log_id(8), payload: EntryPayload::Membership(membership()) };
    let entries = vec![wire::entry_to_proto(&blank), wire::entry_to_proto(&members)];
    let append = v1::AppendEntriesRequest { vote: vote(), prev_log_id: log_id(), entries, leader_commit: log_id() };
    let asks = v1::VoteRequest { vote: vote(), last_log_id: log_id(), leadership_transfer: true };
    let grants = v1::VoteResponse { vote: vote(), granted: true, last_log_id: log_id() };
    let meta = Some(wire::snapshot_meta_to_proto(&meta_of(&State::default())));
    let header = Some(v1::SnapshotHeader { vote: vote(), meta, size: 9 });
    let transfer = v1::TransferLeaderRequest { from_leader: vote(), to_node: 2, last_log_id: log_id() };
    let enrol = v1::EnrolRequest {
        request: vec![2; 16].into(),
        name: "b".into(),
        http: "http://127.0.0.1:1".into(),
        peer: "127.0.0.1:2".into(),
        certificate_request: vec![3; 40].into(),
        token: vec![1; 32].into(),
        cluster_name: "prod".into(),
        proof: vec![7; 32].into(),
        forwarded: true,
        knows_labels: false,
    };
    let node = v1::roster::Node { id: 9, key: "key".into(), peer: "127.0.0.1:2".into(), worker: false };
    let member = v1::enrol_response::Member {
        cluster: vec![8; 16].into(),
        cluster_name: "prod".into(),
        node: 9,
        certificate: vec![9; 40].into(),
        roster: Some(v1::Roster { index: 9, nodes: vec![node] }),
        proof: vec![7; 32].into(),
        worker: false,
    };
    let enrolled = v1::EnrolResponse { result: Some(v1::enrol_response::Result::Member(member)) };
    let renew = v1::RenewRequest { node: 9, certificate_request: vec![3; 40].into(), forwarded: true };
    let propose = v1::ProposeRequest { proposal: vec![4; 8].into(), wait_ms: 5_000, route: None };
    let hand_over = v1::HandOverRequest { to: Some(2) };
    let blob = || Some(v1::BlobName { hash: vec![8; 32].into(), length: 9 });
    let missing = v1::MissingBlobsResponse { applied: 7, missing: vec![vec![8; 32].into()], more: true };
    let alive = v1::KeepAliveRequest { boot: vec![5; 16].into(), route: None, trouble: String::new() };
    let standing = Some(v1::tail_piece::Standing { applied: 7, term: 3, leader: 1 });
    let piece = Some(v1::tail_piece::SnapshotPiece { size: 9, data: vec![6; 9].into() });
    let fed = wire::entry_to_proto(&RaftEntry { log_id: raft_log_id(7), payload: EntryPayload::Blank });
    let finished = v1::FinishedChunk { task: vec![2; 16].into(), data: vec![7; 9].into(), last: true, absent: false };
    vec![
        ("append", append.encode_to_vec()),
        ("vote-request", asks.encode_to_vec()),
        ("vote-response", grants.encode_to_vec()),
        ("snapshot-chunk", v1::SnapshotChunk { header, data: vec![6; 9].into() }.encode_to_vec()),
        ("transfer", transfer.encode_to_vec()),
        ("enrol", enrol.encode_to_vec()),
        ("enrolled", enrolled.encode_to_vec()),
        ("renew", renew.encode_to_vec()),
        ("propose", propose.encode_to_vec()),
        ("hand-over", hand_over.encode_to_vec()),
        ("keep-alive", alive.encode_to_vec()),
        ("join-token", token_text().into_bytes()),
        ("blob-chunk", v1::BlobChunk { name: blob(), data: vec![7; 9].into() }.encode_to_vec()),
        ("get-blob", v1::GetBlobRequest { name: blob() }.encode_to_vec()),
        ("hold-blobs", v1::HoldBlobsRequest { blobs: blob().into_iter().collect() }.encode_to_vec()),
        ("missing-blobs", missing.encode_to_vec()),
        ("tail-request", v1::TailRequest { after: log_id() }.encode_to_vec()),
        ("tail-entries", v1::TailPiece { standing, entries: vec![fed], snapshot: None }.encode_to_vec()),
        ("tail-snapshot", v1::TailPiece { standing, entries: Vec::new(), snapshot: piece }.encode_to_vec()),
        ("finished-request", v1::FinishedRequest { tasks: vec![vec![2; 16].into()] }.encode_to_vec()),
        ("finished-chunk", finished.encode_to_vec()),
    ]
}

/// A message read and written again.
fn again(name: &str, bytes: Vec<u8>) -> Vec<u8> {
    fn recode<M: prost::Message + Default>(bytes: &[u8]) -> Vec<u8> {
        M::decode(bytes).unwrap().encode_to_vec()
    }
    match name {
        "append" => {
            let mut append = v1::AppendEntriesRequest::decode(&bytes[..]).unwrap();
            let entries = append.entries.into_iter().map(|entry| wire::entry_from_proto(entry).unwrap());
            append.entries = entries.map(|entry| wire::entry_to_proto(&entry)).collect();
            append.encode_to_vec()
        }
        "vote-request" => recode::<v1::VoteRequest>(&bytes),
        "vote-response" => recode::<v1::VoteResponse>(&bytes),
        "snapshot-chunk" => recode::<v1::SnapshotChunk>(&bytes),
        "transfer" => recode::<v1::TransferLeaderRequest>(&bytes),
        "enrol" => recode::<v1::EnrolRequest>(&bytes),
        "enrolled" => recode::<v1::EnrolResponse>(&bytes),
        "renew" => recode::<v1::RenewRequest>(&bytes),
        "propose" => recode::<v1::ProposeRequest>(&bytes),
        "hand-over" => recode::<v1::HandOverRequest>(&bytes),
        "keep-alive" => recode::<v1::KeepAliveRequest>(&bytes),
        "blob-chunk" => recode::<v1::BlobChunk>(&bytes),
        "get-blob" => recode::<v1::GetBlobRequest>(&bytes),
        "hold-blobs" => recode::<v1::HoldBlobsRequest>(&bytes),
        "missing-blobs" => recode::<v1::MissingBlobsResponse>(&bytes),
        "tail-request" => recode::<v1::TailRequest>(&bytes),
        "tail-entries" => {
            let mut piece = v1::TailPiece::decode(&bytes[..]).unwrap();
            let entries = piece.entries.into_iter().map(|entry| wire::entry_from_proto(entry).unwrap());
            piece.entries = entries.map(|entry| wire::entry_to_proto(&entry)).collect();
            piece.encode_to_vec()
        }
        "tail-snapshot" => recode::<v1::TailPiece>(&bytes),
        "finished-request" => recode::<v1::FinishedRequest>(&bytes),
        "finished-chunk" => recode::<v1::FinishedChunk>(&bytes),
        "join-token" => Token::parse(std::str::from_utf8(&bytes).unwrap()).unwrap().text().into_bytes(),
        name => panic!("message {name} is not known"),
    }
}

fn token_text() -> String {
    let key = crate::certificates::make_key().unwrap();
    Token::make(&crate::certificates::Authority::make("prod", &key).unwrap()).unwrap().text()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

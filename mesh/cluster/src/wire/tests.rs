//! What was written once stays readable, and everything comes back as it was.

use std::collections::BTreeMap;

use proptest::prelude::*;
use towline_core::{Command, NodeId, Principal, Reply, TaskId};

use super::*;

/// An entry as the first version wrote it. It never changes: a log that holds it must stay readable.
const GOLDEN_ENTRY: &str = "080112060803100118072298010880d0bc90ad33123730302d3030303030303030303030303030303030303030303030303030303030\
    6162632d303030303030303030303030306465662d30311a5682a2627981a54167656e7482a46e616d65a87375727665796f72ac6f6e\
    5f626568616c665f6f6681a44e6f646502a7636f6d6d616e6481a643616e63656c81a47461736bc41001938000000070008000000000\
    000007";

/// A snapshot of an empty state as the first version wrote it.
const GOLDEN_SNAPSHOT: &str = "544f574c534e415001000000420000000e67516913b858c8dbc7df26fcd8e064e3524000a847080c86ad6c25bebfcd3a0a0608031001\
    180712380a040803100112300a030a0101122908011215687474703a2f2f3132372e302e302e313a373432301a0e3132372e302e302e\
    313a373432318ba7636c7573746572c0a56e6f64657380a6746f6b656e7380a66167656e747380a57461736b7380a5646564757080a6\
    6c656173656480aa756e61737369676e656490a86368696c6472656e80a5656e64656490a46c61737482a5696e64657800a2617400";

#[test]
fn a_small_payload_does_not_hold_the_buffer_that_it_came_in() {
    let buffer = Bytes::from(vec![7; 8 * 1024]);
    let taken = LoggedProposal::from_known(Timestamp(1), None, buffer.slice(..300)).unwrap();
    let received = logged_from_proto(v1::LoggedProposal {
        at_ms: 1,
        traceparent: String::new(),
        proposal: buffer.slice(300..600),
    });
    assert!(buffer.is_unique(), "nothing else refers to it");
    assert_eq!((taken.payload().len(), received.payload().len()), (300, 300));
}

#[test]
fn an_entry_of_the_first_version_is_still_read_and_written_the_same() {
    let entry = entry(7, EntryPayload::Normal(logged(cancel())));

    assert_eq!(hex(&encode_entry(&entry)), GOLDEN_ENTRY);
    assert_eq!(decode_entry(unhex(GOLDEN_ENTRY)).unwrap(), entry);
}

#[test]
fn a_snapshot_of_the_first_version_is_still_read() {
    let (meta, state) = decode_snapshot(&unhex(GOLDEN_SNAPSHOT)).unwrap();

    assert_eq!(meta, RaftSnapshotMeta { last_log_id: Some(log_id(7)), last_membership: stored_membership() });
    assert_eq!(state, State::default());
}

#[test]
fn a_field_that_a_later_version_added_is_skipped() {
    #[derive(Serialize)]
    struct Later {
        by: Principal,
        command: Command,
        urgent: bool,
    }
    let Proposal { by, command } = cancel();
    let later = encode("proposal", &Later { by, command, urgent: true }).unwrap();

    assert_eq!(decode_proposal(&later).unwrap(), cancel());
}

#[test]
fn an_entry_of_another_format_is_refused() {
    let mut entry = entry_to_proto(&entry(7, EntryPayload::Blank));
    entry.format = 2;

    let refused = decode_entry(entry.encode_to_vec().into()).unwrap_err();

    assert_eq!(refused.to_string(), "entry has format 2, and this binary reads 1: upgrade this node");
}

#[test]
fn a_membership_whose_voter_has_no_address_is_refused() {
    let mut membership = membership_to_proto(stored_membership().membership());
    membership.nodes.clear();

    assert!(matches!(membership_from_proto(membership), Err(WireError::Membership { .. })));
}

#[test]
fn a_proposal_that_fits_no_frame_is_refused() {
    let payload = Bytes::from(vec![0; MAX_PROPOSAL_BYTES + 1]);

    let refused = LoggedProposal::from_known(Timestamp(1), None, payload).unwrap_err();

    assert!(matches!(refused, WireError::TooLarge { .. }));
}

#[test]
fn what_cannot_be_decoded_never_becomes_an_entry() {
    let refused = decode_proposal(b"\x81\xa2by");

    assert!(matches!(refused, Err(WireError::Decode { .. })));
}

#[test]
fn what_the_core_said_comes_back_to_the_proposer() {
    let outcomes = [
        Ok(Applied { reply: Reply::Done, effects: vec![towline_core::Effect::PlacementChanged] }),
        Err(Rejection::UnknownTask { task: task() }),
    ];
    for outcome in outcomes {
        assert_eq!(decode_outcome(&encode_outcome(&outcome).unwrap()).unwrap(), outcome);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn entries_come_back_as_they_were(entry in any_entry()) {
        prop_assert_eq!(decode_entry(encode_entry(&entry).into()).unwrap(), entry);
    }

    #[test]
    fn votes_and_log_ids_come_back_as_they_were(term in any::<u64>(), node in any::<u64>(), index in any::<u64>(), committed in any::<bool>()) {
        let vote = RaftVote { leader_id: RaftLeaderId { term, node_id: node }, committed };
        let log_id = RaftLogId::new(vote.leader_id, index);
        prop_assert_eq!(vote_from_proto(&vote_to_proto(&vote)), vote);
        prop_assert_eq!(log_id_from_proto(&log_id_to_proto(&log_id)), log_id);
    }

    #[test]
    fn bytes_that_are_no_entry_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(entry) = decode_entry(bytes.into()) {
            prop_assert_eq!(decode_entry(encode_entry(&entry).into()).unwrap(), entry);
        }
    }

    #[test]
    fn bytes_that_are_no_snapshot_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(decode_snapshot(&bytes.into()).is_err());
    }
}

// ---- helpers ----

fn any_entry() -> impl Strategy<Value = RaftEntry> {
    let payload = prop_oneof![
        Just(EntryPayload::Blank),
        (any::<u64>(), proptest::option::of((1..u128::MAX, 1..u64::MAX, any::<bool>())), any::<Vec<u8>>()).prop_map(
            |(at, trace, payload)| {
                let trace = trace.map(|(trace_id, span_id, sampled)| TraceContext { trace_id, span_id, sampled });
                EntryPayload::Normal(LoggedProposal { at: Timestamp(at), trace, payload: payload.into() })
            }
        ),
        proptest::collection::btree_map(any::<u64>(), ".{0,12}", 1..5).prop_map(|nodes| {
            let voters = nodes.keys().copied().collect();
            let address = |(id, peer): (u64, String)| (id, NodeAddresses { http: format!("http://{peer}"), peer });
            let nodes: BTreeMap<u64, NodeAddresses> = nodes.into_iter().map(address).collect();
            EntryPayload::Membership(RaftMembership::new(vec![voters], nodes).unwrap())
        }),
    ];
    (any::<u64>(), payload).prop_map(|(index, payload)| entry(index, payload))
}

fn entry(index: u64, payload: RaftPayload) -> RaftEntry {
    RaftEntry { log_id: log_id(index), payload }
}

fn log_id(index: u64) -> RaftLogId {
    RaftLogId::new(RaftLeaderId { term: 3, node_id: 1 }, index)
}

fn logged(proposal: Proposal) -> LoggedProposal {
    let trace = TraceContext { trace_id: 0xabc, span_id: 0xdef, sampled: true };
    LoggedProposal::new(Timestamp(1_764_460_800_000), Some(trace), &proposal).unwrap()
}

fn cancel() -> Proposal {
    let agent =
        Principal::Agent { name: "surveyor".parse().unwrap(), on_behalf_of: Box::new(Principal::Node(NodeId(2))) };
    Proposal { by: agent, command: Command::Cancel { task: task() } }
}

fn task() -> TaskId {
    TaskId::from_uuid(uuid::Uuid::from_u128(0x0193_8000_0000_7000_8000_0000_0000_0007))
}

fn stored_membership() -> RaftStoredMembership {
    let addresses = NodeAddresses { http: "http://127.0.0.1:7420".into(), peer: "127.0.0.1:7421".into() };
    let membership = RaftMembership::new(vec![[1].into()], BTreeMap::from([(1, addresses)])).unwrap();
    RaftStoredMembership::new(Some(log_id(0)), membership)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Bytes {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect::<Vec<_>>().into()
}

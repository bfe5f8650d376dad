//! How a node becomes a member, and what it is known by.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

#[test]
fn the_same_key_is_the_same_node_and_spends_no_further_token() {
    let mut log = Log::of_nodes(1);
    let first = enrolled(&mut log, "t-1", 2).unwrap();
    assert_eq!(enrolled(&mut log, "t-1", 2).unwrap(), first, "the answer was lost");
    assert_eq!(enrolled(&mut log, "t-2", 2).unwrap(), first, "asked with another token");
    assert_eq!(log.state.nodes().count(), 2);
    let other = enrolled(&mut log, "t-2", 3).unwrap();
    assert_ne!(other, first, "the second token was not spent");
    assert_eq!(enrolled(&mut log, "t-2", 4).unwrap_err(), Rejection::TokenUsed { node: other });
}

#[test]
fn a_node_that_has_not_registered_may_ask_again_under_another_name_and_address() {
    let mut log = Log::of_nodes(1);
    let node = enrolled(&mut log, "t", 2).unwrap();
    mint(&mut log, "t");
    let enrolment = Enrolment { name: "better".into(), addresses: addresses(9), ..enrolment_with_key("t", 2) };
    log.node(1, Command::Enrol(enrolment)).unwrap();
    let known = log.state.node(node).unwrap();
    assert_eq!((known.name.as_str(), &known.addresses), ("better", &addresses(9)));
}

#[test]
fn a_name_or_an_address_that_is_taken_is_refused_and_the_token_stays_good() {
    let mut log = Log::of_nodes(1);
    let node = enrolled(&mut log, "t-1", 2).unwrap();
    mint(&mut log, "t-2");
    let same_name = Enrolment { name: "node-2".into(), ..enrolment_with_key("t-2", 3) };
    let refused = log.node(1, Command::Enrol(same_name)).unwrap_err();
    assert_eq!(refused, Rejection::NameTaken { name: "node-2".into(), node });
    let same_address = Enrolment { addresses: addresses(2), ..enrolment_with_key("t-2", 3) };
    let refused = log.node(1, Command::Enrol(same_address)).unwrap_err();
    assert_eq!(refused, Rejection::AddressTaken { peer: addresses(2).peer, node });
    assert_eq!(log.state.nodes().count(), 2, "nothing is left behind");
    enrolled(&mut log, "t-2", 3).unwrap();
}

#[test]
fn what_an_earlier_version_logged_comes_to_the_same_as_then() {
    let mut log = Log::of_nodes(2);
    mint(&mut log, "t");
    let second = log.node_ids()[1];
    let twin = Enrolment { token_hash: "t".into(), request: uuid(9), ..enrolment("t", 2) };
    let reply = log.node(1, Command::Enrol(twin)).unwrap().reply;
    assert!(matches!(reply, Reply::Enrolled { node, .. } if node.0 != second), "{reply:?}");
}

#[test]
fn a_node_keeps_its_key_and_tells_when_its_certificate_ends() {
    let mut log = Log::of_nodes(1);
    let node = enrolled(&mut log, "t", 2).unwrap();
    let certify = |key: u64, ends: u64| Command::Certify {
        node,
        certificate: NodeCertificate { key: node_key(key), ends: Some(Timestamp(ends)), signs: false },
    };
    log.node(node.0, certify(2, 5)).unwrap();
    log.node(node.0, certify(2, 7)).unwrap();
    assert_eq!(log.node(node.0, certify(3, 9)).unwrap_err(), Rejection::OtherKey { node });
    let certificate = log.state.node(node).unwrap().certificate.clone().unwrap();
    assert_eq!(certificate, NodeCertificate { key: node_key(2), ends: Some(Timestamp(7)), signs: false });
    assert!(matches!(log.node(1, certify(2, 9)).unwrap_err(), Rejection::NotAllowed { .. }), "speaks for another node");
}

#[test]
fn a_removed_node_does_not_come_back_under_its_key() {
    let mut log = Log::of_nodes(3);
    let node = enrolled(&mut log, "t", 7).unwrap();
    log.operator(Command::RemoveNode { node }).unwrap();
    assert!(log.state.is_removed(node));
    let again = log.node(1, Command::Enrol(enrolment_with_key("t", 7))).unwrap_err();
    assert_eq!(again, Rejection::NodeRemoved { node });
    assert!(log.state.node(node).is_none());
    let certificate = NodeCertificate { key: node_key(7), ends: None, signs: false };
    let refused = log.node(node.0, Command::Certify { node, certificate }).unwrap_err();
    assert_eq!(refused, Rejection::NodeRemoved { node });
}

#[test]
fn the_last_node_that_signs_is_not_removed_before_another_has_the_key_unless_it_is_dead() {
    let mut log = Log::of_nodes(3);
    let nodes = log.node_ids();
    let certify = |log: &mut Log, node: u64, signs: bool| {
        let certificate = NodeCertificate { key: node_key(node), ends: None, signs };
        log.node(node, Command::Certify { node: NodeId(node), certificate }).unwrap();
    };
    for node in &nodes {
        certify(&mut log, *node, *node == 1);
    }
    let remove = Command::RemoveNode { node: NodeId(1) };
    let refused = log.operator(remove.clone()).unwrap_err();
    assert_eq!(refused, Rejection::OnlySigner { node: NodeId(1) });

    let mut dead = log.clone();
    dead.lose(1);
    dead.operator(remove.clone()).unwrap();

    certify(&mut log, nodes[1], true);
    log.operator(remove).unwrap();
}

fn enrolled(log: &mut Log, token: &str, position: u64) -> Result<NodeId, Rejection> {
    mint(log, token);
    let applied = log.node(1, Command::Enrol(enrolment_with_key(token, position)))?;
    let Reply::Enrolled { node, .. } = applied.reply else { panic!("{applied:?}") };
    Ok(node)
}

fn mint(log: &mut Log, token: &str) {
    log.operator(Command::MintToken { hash: token.into(), role: NodeRole::Voter, ttl_ms: 60_000 }).unwrap();
}

//! A task is kept from a node where its agent lacks something, for a while.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

fn lack(log: &mut Log, node: u64, is_down: bool) {
    let agents = is_down.then(|| (name("reader"), "files: it is down".to_owned())).into_iter().collect();
    let boot = log.state.node(NodeId(node)).unwrap().boot.unwrap();
    log.node(node, Command::Lack(Box::new(Lack { node: NodeId(node), boot, agents }))).unwrap();
}

#[test]
fn a_task_goes_to_a_node_where_its_agent_lacks_nothing() {
    let mut log = Log::of_nodes(2);
    let [one, other] = log.node_ids()[..] else { panic!("two nodes") };
    lack(&mut log, one, true);
    for number in 1..=3 {
        let id = log.submit(number, "reader", one);
        assert_eq!(log.lease(id).node, NodeId(other), "also where the other is wished for, and has more to do");
    }
    let surveyor = log.submit(4, "surveyor", one);
    assert_eq!(log.lease(surveyor).node, NodeId(one), "another agent lacks nothing there");
    lack(&mut log, one, false);
    let id = log.submit(5, "reader", one);
    assert_eq!(log.lease(id).node, NodeId(one));
    assert_eq!(decode(&encode(&log.state)), log.state);
}

#[test]
fn where_every_node_lacks_something_a_task_waits_for_a_while_says_why_and_is_given_all_the_same() {
    let mut log = Log::of_nodes(1);
    lack(&mut log, 1, true);
    let waits = log.submit(1, "reader", 1);
    assert_eq!(log.task(waits).lease, None);
    let why = log.state.waits_for(waits).unwrap();
    assert!(why.contains("for 10 s at most") && why.contains("files: it is down on node 1"), "{why}");
    assert!(!log.state.has_assignable() && !log.state.has_waited(log.state.last().at));
    lack(&mut log, 1, false);
    assert_eq!(log.lease(waits).node, NodeId(1), "it is back");

    lack(&mut log, 1, true);
    let waits = log.submit(2, "reader", 1);
    assert_eq!(log.task(waits).lease, None);
    log.pass(limits::LACKING_WAIT_MS);
    assert!(log.state.has_waited(Timestamp(log.state.last().at.0 + limits::LACKING_WAIT_MS)));
    lack(&mut log, 1, true);
    assert_eq!(log.lease(waits).node, NodeId(1), "nobody waits for ever, and to say it again begins nothing anew");
    let at_once = log.submit(3, "reader", 1);
    assert_eq!(log.lease(at_once).node, NodeId(1));
}

#[test]
fn what_an_earlier_life_of_a_node_said_counts_for_nothing() {
    let mut log = Log::of_nodes(1);
    let old = log.state.node(NodeId(1)).unwrap().boot.unwrap();
    lack(&mut log, 1, true);
    log.up(1, boot(1, 7)).unwrap();
    let id = log.submit(1, "reader", 1);
    assert_eq!(log.lease(id).node, NodeId(1));
    let agents = [(name("reader"), "files".to_owned())].into();
    log.node(1, Command::Lack(Box::new(Lack { node: NodeId(1), boot: old, agents }))).unwrap();
    let id = log.submit(2, "reader", 1);
    assert_eq!(log.lease(id).node, NodeId(1));
}

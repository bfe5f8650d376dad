//! Which node is given a task: one that has the labels that its agent asks for, and a free place if there is one.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

fn labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Registers a node that declares `reader`, which asks for these labels of its nodes.
fn up(log: &mut Log, node: u64, capacity: u32, own: Labels, wanted: Labels) {
    let Command::NodeUp { node: id, boot, addresses, version, mut agents, level, .. } = node_up(node, boot(node, 1), 0)
    else {
        panic!("node_up makes another command")
    };
    agents[0].labels = wanted;
    let up = Command::NodeUp { node: id, boot, addresses, version, capacity, agents, labels: Some(own), level };
    log.node(node, up).unwrap();
}

fn gpu() -> Labels {
    labels([("gpu", "yes")])
}

/// Nodes that all know of labels; `reader` asks for a GPU, which the last node has.
fn one_with_gpu(count: u64) -> (Log, u64) {
    let mut log = Log::of_nodes(count);
    let ids = log.node_ids();
    let last = *ids.last().unwrap();
    for id in ids {
        let own = if id == last { labels([("gpu", "yes"), ("zone", "eu")]) } else { labels([("zone", "eu")]) };
        up(&mut log, id, 8, own, gpu());
    }
    (log, last)
}

#[test]
fn an_agent_runs_only_on_nodes_with_its_labels() {
    let (mut log, last) = one_with_gpu(3);
    let placed = &log.state.agent(&name("reader")).unwrap().placed;
    assert_eq!(placed.iter().copied().collect::<Vec<_>>(), [NodeId(last)]);
    for number in 1..=20 {
        let id = log.submit(number, "reader", 1);
        assert_eq!(log.lease(id).node, NodeId(last), "also beyond its free places, and through another node");
    }
}

#[test]
fn a_task_waits_for_a_node_with_the_labels_and_says_so() {
    let (mut log, last) = one_with_gpu(3);
    log.lose(last);
    let id = log.submit(1, "reader", 1);
    assert_eq!(log.task(id).lease, None);
    let waits = log.state.waits_for(id).unwrap();
    assert!(waits.contains("takes tasks") && waits.contains(&format!("node {last}")), "{waits}");

    up(&mut log, last, 8, labels([("gpu", "no")]), gpu());
    let waits = log.state.waits_for(id).unwrap();
    assert_eq!(waits, "a node that declares agent reader and has the label gpu=yes");

    let other = log.node_ids()[1];
    up(&mut log, other, 8, gpu(), gpu());
    assert_eq!(log.lease(id).node, NodeId(other));
    assert_eq!(log.state.waits_for(id), None);
}

#[test]
fn a_node_that_lost_a_label_is_given_nothing_more() {
    let (mut log, last) = one_with_gpu(2);
    let before = log.submit(1, "reader", last);
    up(&mut log, last, 8, Labels::new(), gpu());
    let after = log.submit(2, "reader", last);
    assert_eq!(log.lease(before).node, NodeId(last), "what runs there goes on");
    assert_eq!(log.task(after).lease, None);
    assert!(!log.state.has_assignable());
}

#[test]
fn a_free_place_comes_before_a_small_load() {
    let mut log = Log::of_nodes(3);
    let [first, second, third] = log.node_ids()[..] else { panic!() };
    for (id, capacity) in [(first, 1), (second, 1), (third, 8)] {
        up(&mut log, id, capacity, Labels::new(), Labels::new());
    }
    let mut owner = |number| {
        let id = log.submit(number, "reader", 1);
        log.lease(id).node.0
    };
    let owners: Vec<u64> = (1..=11).map(&mut owner).collect();
    let of = |node: u64| owners[..10].iter().filter(|owner| **owner == node).count();
    assert_eq!((of(first), of(second), of(third)), (1, 1, 8), "{owners:?}");
    assert_eq!(owners[10], first, "then the least loaded: the task waits at its node");
}

#[test]
fn as_long_as_a_member_knows_of_no_labels_they_do_not_count() {
    let mut log = Log::of_nodes(3);
    let [first, second, third] = log.node_ids()[..] else { panic!() };
    up(&mut log, first, 1, Labels::new(), gpu());
    up(&mut log, second, 8, gpu(), gpu());
    let load = |log: &Log, node| log.state.load_of(NodeId(node));
    for number in 1..=9 {
        log.submit(number, "reader", 999);
    }
    assert_eq!(
        [load(&log, first), load(&log, second), load(&log, third)],
        [3; 3],
        "the earlier version decides so too"
    );

    up(&mut log, third, 8, Labels::new(), gpu());
    log.submit(10, "reader", 999);
    assert_eq!(load(&log, second), 4);
}

#[test]
fn a_node_that_enrolled_and_never_ran_does_not_keep_labels_from_counting() {
    let (mut log, last) = one_with_gpu(2);
    let mint = Command::MintToken { hash: "t".into(), role: NodeRole::Worker, ttl_ms: 60_000 };
    log.operator(mint).unwrap();
    let enrolment = Enrolment { knows_labels: true, ..enrolment_with_key("t", 7) };
    log.node(1, Command::Enrol(enrolment)).unwrap();
    assert!(log.state.all_know_labels());
    let id = log.submit(1, "reader", 1);
    assert_eq!(log.lease(id).node, NodeId(last));
}

#[test]
fn a_worker_stays_one_and_counts_in_no_quorum() {
    let mut log = Log::of_nodes(3);
    let voter = log.node_ids()[1];
    log.operator(Command::MintToken { hash: "w".into(), role: NodeRole::Worker, ttl_ms: 60_000 }).unwrap();
    let enrolled = log.node(1, Command::Enrol(enrolment_with_key("w", 8))).unwrap().reply;
    let Reply::Enrolled { node: worker, role: NodeRole::Worker } = enrolled else { panic!("{enrolled:?}") };
    log.up(worker.0, boot(worker.0, 1)).unwrap();

    let set = |node, role| Command::SetRole { node, role };
    for role in [NodeRole::Voter, NodeRole::Learner] {
        let refused = log.operator(set(worker, role)).unwrap_err();
        assert_eq!(refused, Rejection::IsWorker { node: worker });
        assert!(refused.to_string().contains("join-token --role voter"), "{refused}");
    }
    let refused = log.operator(set(NodeId(voter), NodeRole::Worker)).unwrap_err();
    assert_eq!(refused, Rejection::IsNoWorker { node: NodeId(voter) });
    assert!(refused.to_string().contains("join-token --role worker"), "{refused}");

    let ids = log.node_ids();
    log.lose(ids[2]);
    let refused = log.operator(Command::RemoveNode { node: NodeId(ids[1]) }).unwrap_err();
    assert_eq!(refused, Rejection::QuorumNeeds { node: NodeId(ids[1]), up: 1, voters: 2, quorum: 2 });
    log.operator(Command::RemoveNode { node: worker }).unwrap();
    log.lose(worker.0);
    assert!(log.state.is_removed(worker));
}

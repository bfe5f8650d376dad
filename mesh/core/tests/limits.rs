//! The bounds that a caller can meet, and what it is told.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

#[test]
fn a_node_is_given_no_more_tasks_than_its_bound_and_the_rest_waits_for_others() {
    let mut log = Log::of_nodes(1);
    for number in 0..=limits::MAX_LEASED_PER_NODE as u64 {
        log.submit(number, "reader", 1);
    }
    assert_eq!(log.state.load_of(NodeId(1)), limits::MAX_LEASED_PER_NODE);
    assert_eq!(log.state.unassigned(), 1);
    assert!(!log.state.has_assignable());

    log.operator(Command::Cancel { task: task_id(0) }).unwrap();
    log.node(1, Command::AssignPending).unwrap();
    assert_eq!(log.state.unassigned(), 0);
}

#[test]
fn a_page_ends_before_it_grows_too_large_and_the_next_goes_on() {
    let mut log = Log::of_nodes(1);
    for number in 0..6 {
        let message = user_message(&format!("m-{number}"), &"x".repeat(limits::MAX_CONTENT_BYTES));
        log.operator(Command::Submit(Box::new(submission(number, "reader", 1, message)))).unwrap();
    }
    let mut filter = ListFilter::default();
    let mut seen = Vec::new();
    loop {
        let page = log.page(&filter, 50, |task| task.shown_bytes(None, true));
        assert_eq!(page.total, 6);
        let bytes: usize = page.tasks.iter().map(|task| task.shown_bytes(None, true)).sum();
        assert!(bytes <= limits::MAX_PAGE_BYTES, "{bytes}");
        seen.extend(page.tasks.iter().map(|task| task.id));
        filter.after = page.next;
        if page.next.is_none() {
            break;
        }
    }
    assert_eq!(seen, (0..6).rev().map(task_id).collect::<Vec<_>>());
    let hidden = log.page(&ListFilter::default(), 50, |task| task.shown_bytes(Some(0), false));
    assert_eq!(hidden.tasks.len(), 6, "what is not shown does not count");
}

#[test]
fn tasks_that_no_node_can_take_do_not_stand_before_those_that_one_can() {
    let mut log = Log::of_nodes(1);
    let full = limits::MAX_LEASED_PER_NODE as u64;
    let waiting = limits::MAX_REASSIGNED_PER_ENTRY as u64 + 1;
    for number in 0..full + waiting {
        log.submit(number, "reader", 1);
    }
    let second = log.enrol(2);
    log.node(second, writer_up(second)).unwrap();
    let orphan = log.submit(full + waiting, "writer", second);
    log.lose(second);
    assert_eq!(log.state.task(orphan).unwrap().lease, None);

    log.node(second, writer_up(second)).unwrap();

    assert_eq!(log.lease(orphan).node, NodeId(second));
}

/// A node that declares the agent `writer` and no other.
fn writer_up(id: u64) -> Command {
    let Command::NodeUp { node, boot, addresses, version, capacity, mut agents, labels, level } =
        node_up(id, boot(id, 1), 8)
    else {
        panic!("node_up makes another command")
    };
    agents.truncate(1);
    agents[0].name = name("writer");
    Command::NodeUp { node, boot, addresses, version, capacity, agents, labels, level }
}

//! What stays of a state when another cluster begins with it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

const NEW: u64 = 5_000;

#[test]
fn leases_are_void_and_the_new_node_adopts_what_ran() {
    let mut log = Log::of_nodes(3);
    let running = log.submit(1, "reader", 1);
    log.report(running, vec![turn_started(1), model_step(0)]).unwrap();
    let old = log.lease(running);

    refound(&mut log.state);
    assert_eq!(log.state.task(running).unwrap().lease, None);
    assert_eq!(log.state.unassigned(), 1);
    let up = node_up(NEW, boot(NEW, 1), 8);
    let stamp = Stamp { index: NEW + 1, at: log.state.last().at };
    log.state.apply(Proposal { by: Principal::Node(NodeId(NEW)), command: up }, stamp).unwrap();

    let task = log.state.task(running).unwrap();
    let lease = task.lease.as_ref().unwrap();
    assert_eq!((lease.node, task.adoptions[0].from), (NodeId(NEW), old.node));
    assert!(lease.epoch > old.epoch);
}

#[test]
fn tasks_and_their_messages_stay_and_members_tokens_and_agents_go() {
    let mut log = Log::of_nodes(3);
    let done = log.submit(1, "reader", 1);
    log.report(done, vec![turn_started(1), finished(TaskState::Completed)]).unwrap();
    let before = log.task(done).clone();

    refound(&mut log.state);

    assert_eq!(log.state.task(done), Some(&before));
    assert_eq!(log.node_ids(), [NEW]);
    assert_eq!(log.state.agents().count(), 0);
    assert!(!log.state.knows_token("hash-2"));
    assert_eq!(log.state.cluster(), Some((uuid(9), "again")));
    let reused = log.operator(Command::Submit(Box::new(submission(2, "reader", 1, user_message("m-1", "else")))));
    assert!(matches!(reused, Err(Rejection::MessageReused { .. })), "{reused:?}");
}

#[test]
fn what_is_open_is_marked_as_restored_with_its_children_until_a_person_says_that_a_step_did_not_happen() {
    let mut log = Log::of_nodes(3);
    let done = log.submit(2, "reader", 1);
    log.report(done, vec![turn_started(1), finished(TaskState::Completed)]).unwrap();
    let (open, _) = log.doubtful(1, 2);
    assert!(!log.task(open).restored);

    refound(&mut log.state);

    assert!(log.task(open).restored && !log.task(done).restored);
    assert_eq!(decode(&encode(&log.state)), log.state);
    log.resolve(open, Some(0), Verdict::Done { result: "sent".into() }).unwrap();
    assert!(log.task(open).restored, "more may have happened");
    log.resolve(open, Some(1), Verdict::Retry).unwrap();
    assert!(!log.task(open).restored, "and nothing behind it");
}

#[test]
fn a_refounded_state_is_read_back_as_it_was() {
    let mut log = Log::of_nodes(1);
    log.submit(1, "reader", 1);
    refound(&mut log.state);
    assert_eq!(decode(&encode(&log.state)), log.state);
}

fn refound(state: &mut State) {
    let founder = Founder { node: NodeId(NEW), name: "n".into(), addresses: addresses(NEW) };
    state.refound(uuid(9), "again".into(), founder);
}

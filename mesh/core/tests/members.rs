//! Who votes, who is emptied, and what becomes of the tasks of a node that is.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

fn set_role(log: &mut Log, node: u64, role: NodeRole) -> Result<Applied, Rejection> {
    log.operator(Command::SetRole { node: NodeId(node), role })
}

fn drain(log: &mut Log, node: u64) -> Result<Applied, Rejection> {
    log.operator(Command::Drain { node: NodeId(node), patience_ms: 60_000 })
}

fn undrain(log: &mut Log, node: u64) -> Result<Applied, Rejection> {
    log.operator(Command::Undrain { node: NodeId(node) })
}

fn role_of(log: &Log, node: u64) -> NodeRole {
    log.state.node(NodeId(node)).unwrap().role
}

/// Drains every node but one, so that there is nowhere else to go.
fn drain_all_but(log: &mut Log, node: u64) {
    for other in log.node_ids().into_iter().filter(|other| *other != node) {
        drain(log, other).unwrap();
    }
}

#[test]
fn a_voter_becomes_a_learner_and_a_voter_again() {
    let mut log = Log::of_nodes(3);
    let node = log.node_ids()[2];
    set_role(&mut log, node, NodeRole::Learner).unwrap();
    assert_eq!(role_of(&log, node), NodeRole::Learner);
    set_role(&mut log, node, NodeRole::Voter).unwrap();
    assert_eq!(role_of(&log, node), NodeRole::Voter);
}

#[test]
fn the_last_quorum_is_not_given_away() {
    let mut log = Log::of_nodes(3);
    let [first, second, third] = log.node_ids()[..] else { panic!() };
    log.lose(third);
    let refused = set_role(&mut log, second, NodeRole::Learner).unwrap_err();
    assert_eq!(refused, Rejection::QuorumNeeds { node: NodeId(second), up: 1, voters: 2, quorum: 2 });
    // The vote of a dead node is what stands in the way.
    set_role(&mut log, third, NodeRole::Learner).unwrap();
    set_role(&mut log, second, NodeRole::Learner).unwrap();
    let refused = set_role(&mut log, first, NodeRole::Learner).unwrap_err();
    assert_eq!(refused, Rejection::QuorumNeeds { node: NodeId(first), up: 0, voters: 0, quorum: 1 });
}

#[test]
fn a_node_that_does_not_run_gets_no_vote() {
    let mut log = Log::of_nodes(3);
    let node = log.node_ids()[2];
    set_role(&mut log, node, NodeRole::Learner).unwrap();
    log.lose(node);
    let refused = set_role(&mut log, node, NodeRole::Voter).unwrap_err();
    assert_eq!(refused, Rejection::NotUp { node: NodeId(node) });
    assert!(refused.to_string().contains("start it, then promote it"), "{refused}");
}

#[test]
fn what_is_no_member_or_leaves_is_neither_promoted_nor_drained() {
    let mut log = Log::of_nodes(3);
    let node = log.node_ids()[2];
    assert_eq!(set_role(&mut log, 99, NodeRole::Voter).unwrap_err(), Rejection::UnknownNode { node: NodeId(99) });
    log.operator(Command::RemoveNode { node: NodeId(node) }).unwrap();
    let removed = Rejection::NodeRemoved { node: NodeId(node) };
    assert_eq!(set_role(&mut log, node, NodeRole::Learner).unwrap_err(), removed);
    assert_eq!(drain(&mut log, node).unwrap_err(), removed);
    log.lose(node);
    assert_eq!(undrain(&mut log, node).unwrap_err(), removed);
}

#[test]
fn only_an_operator_changes_who_votes_and_who_works() {
    let mut log = Log::of_nodes(3);
    let node = NodeId(log.node_ids()[2]);
    for command in [
        Command::SetRole { node, role: NodeRole::Learner },
        Command::Drain { node, patience_ms: 1 },
        Command::Undrain { node },
    ] {
        let refused = log.node(node.0, command).unwrap_err();
        assert!(matches!(refused, Rejection::NotAllowed { .. }), "{refused}");
    }
}

#[test]
fn a_drained_node_is_given_no_task_until_it_is_undrained() {
    let mut log = Log::of_nodes(3);
    let node = log.node_ids()[0];
    drain(&mut log, node).unwrap();
    let id = log.submit(1, "reader", node);
    assert_ne!(log.lease(id).node, NodeId(node), "also if it took the request");
    for (number, other) in (2..).zip(log.node_ids().into_iter().skip(1)) {
        let id = log.submit(number, "reader", other);
        log.lose(log.lease(id).node.0);
    }
    assert_eq!(log.state.load_of(NodeId(node)), 0, "also if no other node is up");
    assert_eq!(log.state.unassigned(), 3);
    undrain(&mut log, node).unwrap();
    assert_eq!((log.state.load_of(NodeId(node)), log.state.unassigned()), (3, 0));
}

#[test]
fn an_agent_with_one_replica_moves_away_from_a_drained_node() {
    let mut log = Log::of_nodes(3);
    let placed = |log: &Log| log.state.agent(&name("surveyor")).unwrap().placed.clone();
    let host = placed(&log).first().unwrap().0;
    drain(&mut log, host).unwrap();
    assert!(!placed(&log).contains(&NodeId(host)));
    assert_eq!(placed(&log).len(), 1);
}

#[test]
fn a_drained_node_stays_drained_when_it_restarts() {
    let mut log = Log::of_nodes(3);
    let node = log.node_ids()[1];
    drain(&mut log, node).unwrap();
    log.up(node, boot(node, 2)).unwrap();
    assert!(log.state.node(NodeId(node)).unwrap().draining.is_some());
    let id = log.submit(1, "reader", node);
    assert_ne!(log.lease(id).node, NodeId(node));
}

#[test]
fn a_released_task_goes_to_another_node_at_once_and_its_client_is_told() {
    let mut log = Log::of_nodes(3);
    let owner = log.node_ids()[0];
    let id = log.submit(1, "reader", owner);
    log.report(id, vec![turn_started(1), model_step(0)]).unwrap();
    let old = log.lease(id);
    drain(&mut log, owner).unwrap();
    assert_eq!(log.lease(id), old, "the owner decides when");

    let applied = log.report(id, vec![step_ended(0, "x"), OwnerWord::Released]).unwrap();

    let (task, lease) = (log.task(id), log.lease(id));
    assert!(lease.node != old.node && lease.epoch > old.epoch && lease.reported == 0);
    assert!(applied.effects.contains(&Effect::Stop { task: id, node: old.node }));
    assert!(applied.effects.contains(&Effect::Start { task: id, lease: lease.clone() }));
    let told = adoption_events(task);
    let EventKind::Status { metadata, .. } = &told[0].kind else { panic!() };
    assert_eq!(metadata["dev.towline/adopted"]["reason"], "drained");
    assert_eq!((told.len(), task.status.state), (1, TaskState::Working));
    assert_eq!((task.turn.attempt, task.turn.span, task.turn.lost.clone()), (2, None, vec![span(1)]));
    let late = log.report_as(&old, id, old.reported + 2, vec![finished(TaskState::Completed)]).unwrap_err();
    assert_eq!(late, Rejection::StaleEpoch { task: id, epoch: old.epoch.0 });
}

#[test]
fn a_task_that_no_other_node_can_take_stays_with_its_owner() {
    let mut log = Log::of_nodes(3);
    let owner = log.node_ids()[0];
    let id = log.submit(1, "reader", owner);
    drain_all_but(&mut log, owner);
    drain(&mut log, owner).unwrap();
    let before = log.lease(id);
    log.report(id, vec![OwnerWord::Released]).unwrap();
    assert_eq!(log.lease(id), Lease { reported: 1, ..before });
    let held = log.state.what_holds(log.task(id)).unwrap();
    assert_eq!(held, "no other node that takes tasks hosts agent reader");
    let other = log.node_ids()[1];
    undrain(&mut log, other).unwrap();
    log.report(id, vec![OwnerWord::Released]).unwrap();
    assert_eq!(log.lease(id).node, NodeId(other));
}

#[test]
fn a_call_that_must_not_run_twice_is_said_to_hold_a_task() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    log.report(id, vec![turn_started(1), step_started(0, tool_intent(OnAdoption::Retry))]).unwrap();
    assert_eq!(log.state.what_holds(log.task(id)), None, "it may run again");
    log.report(id, vec![step_started(1, tool_intent(OnAdoption::Ask))]).unwrap();
    let held = log.state.what_holds(log.task(id)).unwrap();
    assert_eq!(held, "step 1 has not ended and must not run twice");
}

#[test]
fn nothing_is_said_after_a_release() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    log.report(id, vec![OwnerWord::Released, turn_started(1)]).unwrap_err();
}

#[test]
fn a_command_that_was_proposed_twice_changes_nothing_the_second_time() {
    let mut log = Log::of_nodes(3);
    let node = log.node_ids()[1];
    set_role(&mut log, node, NodeRole::Learner).unwrap();
    drain(&mut log, node).unwrap();
    let before = log.without_position();
    set_role(&mut log, node, NodeRole::Learner).unwrap();
    drain(&mut log, node).unwrap();
    assert_eq!(log.without_position(), before);
    undrain(&mut log, node).unwrap();
    let before = log.without_position();
    undrain(&mut log, node).unwrap();
    assert_eq!(log.without_position(), before);
}

//! Commands that are taken only if nothing has happened to their task since the client looked.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

fn only_at(task: TaskId, generation: u64, then: Command) -> Command {
    Command::IfGeneration { task, generation, then: Box::new(then) }
}

fn generation(log: &Log, task: TaskId) -> u64 {
    log.task(task).generation
}

#[test]
fn a_cancel_is_refused_when_the_task_went_on_and_says_where_it_is() {
    let mut log = Log::of_nodes(1);
    let id = log.submit(1, "reader", 1);
    let current = generation(&log, id);
    let cancel = |at| only_at(id, at, Command::Cancel { task: id });
    let before = log.without_position();
    let refused = log.operator(cancel(current + 1)).unwrap_err();
    assert_eq!(refused, Rejection::GenerationMismatch { task: id, expected: current + 1, current });
    assert_eq!(log.without_position(), before);
    log.operator(cancel(current)).unwrap();
    assert_eq!(log.task(id).status.state, TaskState::Canceled);
    log.operator(cancel(current)).expect("it is taken again: its client may not have heard the answer");
}

#[test]
fn an_answer_is_taken_at_the_generation_of_its_question_only_and_may_be_repeated() {
    let mut log = Log::of_nodes(1);
    let id = log.submit(1, "reader", 1);
    log.report(id, vec![turn_started(7), step_started(0, ask_intent()), ask_person(0, "which?")]).unwrap();
    let asked = generation(&log, id);
    let answer =
        |at| only_at(id, at, Command::Continue { task: id, message: user_message("answer", "this"), trace: span(9) });
    let refused = log.operator(answer(asked - 1)).unwrap_err();
    assert!(matches!(refused, Rejection::GenerationMismatch { .. }), "{refused}");
    log.operator(answer(asked)).unwrap();
    let taken = generation(&log, id);
    assert!(taken > asked);
    log.operator(answer(asked)).unwrap();
    assert_eq!(generation(&log, id), taken, "the same answer changes nothing");
}

#[test]
fn a_condition_is_about_a_task_of_the_caller_and_about_one_command_to_it() {
    let mut log = Log::of_nodes(1);
    let (id, other) = (log.submit(1, "reader", 1), log.submit(2, "reader", 1));
    let cancel = Command::Cancel { task: id };
    let stranger = Principal::Agent { name: name("reader"), on_behalf_of: Box::new(Principal::Node(NodeId(1))) };
    let refused = log.apply(stranger, only_at(id, 1, cancel.clone())).unwrap_err();
    assert!(matches!(refused, Rejection::UnknownTask { .. } | Rejection::NotAllowed { .. }), "{refused}");
    for wrong in
        [only_at(other, 1, cancel.clone()), only_at(id, 1, Command::Sweep), only_at(id, 1, only_at(id, 1, cancel))]
    {
        let refused = log.operator(wrong).unwrap_err();
        assert!(matches!(refused, Rejection::NotAllowed { .. }), "{refused}");
    }
}

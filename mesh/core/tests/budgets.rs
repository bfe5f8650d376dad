//! What a delegated task has spent counts for the task above it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use serde_json::json;
use support::*;
use towline_core::*;

/// Three nodes that know of budgets.
fn log() -> Log {
    let log = Log::of_nodes(3);
    assert!(log.state.level() >= Level::BUDGETS);
    log
}

/// A node of a version that does not.
fn earlier() -> Log {
    let mut log = Log::default();
    let found =
        Command::Found { cluster: uuid(1), name: "prod".into(), node_name: "a".into(), addresses: addresses(1) };
    log.node(1, found).unwrap();
    let mut up = node_up(1, boot(1, 1), 8);
    if let Command::NodeUp { level, .. } = &mut up {
        *level = Level::BOUNDS.number();
    }
    log.node(1, up).unwrap();
    log.node(1, Command::Raise { level: Level::BOUNDS }).unwrap();
    log
}

fn granted(id: &str, budget: serde_json::Value) -> Message {
    let mut message = user_message(id, "read the file");
    message.metadata.insert(BUDGET_KEY.to_owned(), budget);
    message
}

/// A task that has asked its model and gives work away.
fn parent(log: &mut Log, handover: Handover) -> TaskId {
    let id = log.submit(1, "reader", 1);
    let delegate = Intent::Delegate {
        call_id: "call-1".into(),
        target: "reader".into(),
        own_mesh: true,
        message: Box::new(granted("m-2", json!({ "steps": 9, "tokens": 500 }))),
        peer_task: None,
        on_adoption: OnAdoption::Retry,
        handover,
    };
    log.report(id, vec![turn_started(1), model_step(0), answered(0, 30, 12), step_started(1, delegate)]).unwrap();
    id
}

fn answered(step: u32, input: u64, output: u64) -> OwnerWord {
    let answer = ModelAnswer { text: "hm".into(), calls: Vec::new(), usage: Usage { input, output } };
    OwnerWord::StepEnded { step: StepNo(step), outcome: Outcome::Answered(answer) }
}

/// The task that it made, which has asked its model as well.
fn child(log: &mut Log, of: TaskId, message: Message) -> TaskId {
    let mut submission = submission(2, "reader", 2, message);
    submission.parent = Some(ParentLink { task: of, step: StepNo(1) });
    log.operator(Command::Submit(Box::new(submission))).unwrap();
    log.report(task_id(2), vec![turn_started(2), model_step(0), answered(0, 7, 5)]).unwrap();
    task_id(2)
}

#[test]
fn what_a_task_with_a_budget_spent_is_added_above_when_it_ends_however_it_ends() {
    for cancels in [false, true] {
        let mut log = log();
        let above = parent(&mut log, Handover::Delegation);
        assert_eq!(granted_in(&log.task(above).journal), Spent { tokens: 500, steps: 9 });
        let below = child(&mut log, above, granted("m-2", json!({ "steps": 9, "tokens": 500 })));
        assert_eq!(log.task(below).budget(), Some(Budget { tokens: Some(500), steps: Some(9) }));
        assert_eq!(log.task(above).spent(), Spent { tokens: 42, steps: 2 }, "not before its end");
        if cancels {
            log.operator(Command::Cancel { task: below }).unwrap();
        } else {
            log.report(below, vec![finished(TaskState::Completed)]).unwrap();
        }
        assert_eq!(log.task(above).spent(), Spent { tokens: 54, steps: 3 });
        let kept = decode(&encode(&log.state));
        assert_eq!(kept.task(above).unwrap().spent(), Spent { tokens: 54, steps: 3 }, "it is part of the state");
    }
}

#[test]
fn what_was_sent_and_is_not_waited_for_counts_as_spent_at_once_and_only_once() {
    let mut log = log();
    let above = parent(&mut log, Handover::Send);
    let all = Spent { tokens: 542, steps: 11 };
    assert_eq!((log.task(above).spent(), granted_in(&log.task(above).journal)), (all, Spent::default()));
    let below = child(&mut log, above, granted("m-2", json!({ "steps": 9, "tokens": 500 })));
    log.report(below, vec![finished(TaskState::Completed)]).unwrap();
    assert_eq!(log.task(above).spent(), all);
}

#[test]
fn nothing_is_added_without_a_budget_or_before_all_members_know_the_rule() {
    let mut log = log();
    let above = parent(&mut log, Handover::Delegation);
    let below = child(&mut log, above, user_message("m-2", "read the file"));
    log.report(below, vec![finished(TaskState::Completed)]).unwrap();
    assert_eq!(log.task(above).spent_below, Spent::default());

    let mut log = earlier();
    assert_eq!(log.state.level(), Level::BOUNDS);
    let above = parent(&mut log, Handover::Delegation);
    let below = child(&mut log, above, granted("m-2", json!({ "tokens": 500 })));
    log.report(below, vec![finished(TaskState::Completed)]).unwrap();
    assert_eq!(log.task(above).spent_below, Spent::default());
}

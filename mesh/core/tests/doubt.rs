//! Steps in doubt: what an operator decides, and what a former owner still tells.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

fn done(result: &str) -> Verdict {
    Verdict::Done { result: result.into() }
}

fn question(log: &Log, id: TaskId) -> String {
    log.task(id).status.message.as_ref().map(Message::text).unwrap_or_default()
}

#[test]
fn each_verdict_of_an_operator_settles_a_step_and_the_task_goes_on() {
    for (verdict, again) in
        [(Verdict::Retry, true), (done("sent"), false), (Verdict::Failed { reason: "no post".into() }, false)]
    {
        let mut log = Log::of_nodes(3);
        let (id, _) = log.doubtful(1, 1);
        log.resolve(id, Some(0), verdict.clone()).unwrap();
        let task = log.task(id);
        let step = &task.journal[0];
        assert_eq!((task.status.state, task.lease.is_some()), (TaskState::Submitted, true), "{verdict:?}");
        assert_eq!((step.ended.is_none(), step.doubt == Some(Doubt::Retry)), (again, again), "{verdict:?}");
        assert_eq!(step.resolved.as_ref().map(|resolved| &resolved.verdict), Some(&verdict));
        let EventKind::Status { metadata, .. } = &task.events.back().unwrap().kind else { panic!() };
        assert_eq!(metadata["dev.towline/resolved"], serde_json::json!({ "as": verdict.word(), "step": 0 }));
    }
}

#[test]
fn a_verdict_that_was_proposed_twice_counts_once_and_another_one_comes_too_late() {
    let mut log = Log::of_nodes(3);
    let (id, _) = log.doubtful(1, 1);
    let command = resolve(uuid(77), id, Some(0), done("sent"));
    log.operator(command.clone()).unwrap();
    let before = log.without_position();
    log.operator(command).unwrap();
    assert_eq!(log.without_position(), before);
    let late = log.resolve(id, Some(0), Verdict::Retry).unwrap_err();
    assert_eq!(late, Rejection::NotInDoubt { task: id, state: TaskState::Submitted });
}

#[test]
fn a_verdict_that_fits_no_step_is_refused_and_says_what_would_fit() {
    let mut log = Log::of_nodes(3);
    let (id, _) = log.doubtful(1, 2);
    let in_doubt = vec![StepNo(0), StepNo(1)];
    let unnamed = log.resolve(id, None, Verdict::Retry).unwrap_err();
    assert_eq!(unnamed, Rejection::SeveralInDoubt { task: id, in_doubt: in_doubt.clone() });
    assert!(unnamed.to_string().contains("0, 1"), "{unnamed}");
    let wrong = log.resolve(id, Some(7), Verdict::Retry).unwrap_err();
    assert_eq!(wrong, Rejection::StepNotInDoubt { task: id, step: StepNo(7), in_doubt });

    let works = log.submit(5, "reader", 1);
    let idle = log.resolve(works, Some(0), Verdict::Retry).unwrap_err();
    assert_eq!(idle, Rejection::NotInDoubt { task: works, state: TaskState::Submitted });
    let unknown = log.resolve(task_id(99), Some(0), Verdict::Retry).unwrap_err();
    assert_eq!(unknown, Rejection::UnknownTask { task: task_id(99) });

    log.operator(Command::Cancel { task: id }).unwrap();
    let ended = log.resolve(id, Some(0), Verdict::Retry).unwrap_err();
    assert_eq!(ended, Rejection::NotInDoubt { task: id, state: TaskState::Canceled });
}

#[test]
fn a_step_that_asks_its_client_something_is_not_in_doubt() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    log.report(id, vec![turn_started(1), step_started(0, ask_intent()), ask_person(0, "which one?")]).unwrap();
    let refused = log.resolve(id, Some(0), done("the second")).unwrap_err();
    assert_eq!(refused, Rejection::NotInDoubt { task: id, state: TaskState::InputRequired });
}

#[test]
fn of_several_steps_in_doubt_each_is_decided_before_the_task_goes_on() {
    let mut log = Log::of_nodes(3);
    let (id, _) = log.doubtful(1, 2);
    log.resolve(id, Some(1), done("sent")).unwrap();
    assert_eq!((log.task(id).status.state, log.task(id).lease.is_none()), (TaskState::InputRequired, true));
    assert!(question(&log, id).contains("Still in doubt: step 0"), "{}", question(&log, id));
    log.resolve(id, None, Verdict::Retry).unwrap();
    assert_eq!(log.task(id).status.state, TaskState::Submitted);
}

#[test]
fn nobody_but_an_operator_decides() {
    let mut log = Log::of_nodes(3);
    let (id, _) = log.doubtful(1, 1);
    let refused = log.node(1, resolve(uuid(77), id, Some(0), Verdict::Retry)).unwrap_err();
    assert!(matches!(refused, Rejection::NotAllowed { .. }));
}

#[test]
fn a_late_result_of_an_old_owner_is_shown_in_the_question_and_never_applied() {
    let mut log = Log::of_nodes(3);
    let (id, lost) = log.doubtful(1, 1);
    let asked = log.task(id).generation;
    log.testify(&lost, id, 0, "250 accepted").unwrap();
    let task = log.task(id);
    assert_eq!(task.journal[0].ended, None, "it is no outcome");
    assert_eq!((task.status.state, task.generation), (TaskState::InputRequired, asked + 1));
    assert!(question(&log, id).contains("the old owner reported: step 0: it returned: 250 accepted"));
    assert!(question(&log, id).starts_with("was it sent?"), "what was asked still stands");
    assert_eq!(log.state.late_results(), 1);

    let before = log.without_position();
    log.testify(&lost, id, 0, "250 accepted").unwrap();
    assert_eq!(log.without_position(), before, "told twice, kept once");
}

#[test]
fn a_late_result_that_comes_before_the_question_is_kept_for_it() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    log.report(id, vec![turn_started(1), step_started(0, tool_intent(OnAdoption::Ask))]).unwrap();
    let lost = log.lease(id);
    log.lose(lost.node.0);
    let generation = log.task(id).generation;
    log.testify(&lost, id, 0, "250 accepted").unwrap();
    assert_eq!(log.task(id).generation, generation, "the client is not asked yet");
    assert_eq!(log.task(id).late_results_of(StepNo(0)).count(), 1);
    assert_eq!(log.task(id).journal[0].ended, None);
}

#[test]
fn only_a_former_owner_tells_of_a_step_and_only_while_the_task_is_open() {
    let mut log = Log::of_nodes(3);
    let (id, lost) = log.doubtful(1, 1);
    let stranger = log.node_ids().into_iter().find(|node| !log.task(id).ran_on.contains(&NodeId(*node))).unwrap();
    let told = testimony(&lost, id, 0, "sent");
    assert!(matches!(log.node(stranger, told.clone()), Err(Rejection::NotAllowed { .. })));
    let works = log.submit(5, "reader", 1);
    log.report(works, vec![turn_started(5), step_started(0, tool_intent(OnAdoption::Ask))]).unwrap();
    let held = log.lease(works);
    assert!(matches!(log.testify(&held, works, 0, "sent"), Err(Rejection::NotAllowed { .. })), "it is to report");
    assert_eq!(log.testify(&lost, id, 9, "sent").unwrap_err(), Rejection::UnexpectedStep { step: StepNo(9) });
    log.operator(Command::Cancel { task: id }).unwrap();
    let ended = log.node(lost.node.0, told).unwrap_err();
    assert_eq!(ended, Rejection::TaskEnded { task: id, state: TaskState::Canceled });
    assert_eq!(log.state.late_results(), 0);
}

#[test]
fn late_results_are_bounded_in_number_and_length() {
    let mut log = Log::of_nodes(3);
    let calls = limits::MAX_LATE_RESULTS as u32 + 1;
    let (id, lost) = log.doubtful(1, calls);
    let long = "x".repeat(limits::MAX_LATE_RESULT_CHARS + 1);
    for no in 0..calls - 1 {
        log.testify(&lost, id, no, &long).unwrap();
    }
    assert!(log.task(id).late_results.iter().all(|late| late.text.len() == limits::MAX_LATE_RESULT_CHARS));
    assert!(matches!(log.testify(&lost, id, calls - 1, "one more"), Err(Rejection::TooLarge { .. })));
}

#[test]
fn an_adopted_task_goes_to_the_least_loaded_node_that_hosts_its_agent() {
    let mut log = Log::of_nodes(4);
    let nodes = log.node_ids();
    let id = log.submit(1, "reader", nodes[0]);
    for (number, node) in [(2, nodes[1]), (3, nodes[1]), (4, nodes[3])] {
        log.submit(number, "reader", node);
    }
    log.lose(nodes[0]);
    assert_eq!(log.lease(id).node, NodeId(nodes[2]), "the only node with nothing to do");

    let lonely = log.submit(5, "surveyor", nodes[1]);
    let host = log.lease(lonely).node.0;
    log.lose(host);
    let placed = log.state.agent(&name("surveyor")).unwrap().placed.clone();
    assert!(placed.contains(&log.lease(lonely).node), "a node that hosts it, however busy");
}

#[test]
fn a_task_that_asked_in_the_middle_of_a_call_goes_on_where_the_call_is() {
    for (level, stays) in [(Level::KNOWN, true), (Level::BOUNDS, false)] {
        let mut log = Log::of_nodes(3);
        log.state = if level == Level::KNOWN { log.state } else { at_level_of_bounds(3) };
        let last = *log.node_ids().last().unwrap();
        let id = log.submit(1, "reader", last);
        assert_eq!(log.lease(id).node.0, last);
        let call = step_started(0, tool_intent(OnAdoption::Ask));
        log.report(id, vec![turn_started(1), call, ask_person(0, "which one?")]).unwrap();
        // The node is not the one that would be chosen.
        log.submit(2, "reader", last);
        let message = user_message("answer", "this");
        log.operator(Command::Continue { task: id, message, trace: span(9) }).unwrap();
        let task = log.task(id);
        assert!(task.journal[0].ended.is_none(), "the call is still under way");
        assert_eq!(log.lease(id).node.0 == last, stays, "{level:?}");
    }
}

fn at_level_of_bounds(nodes: u64) -> State {
    let mut log = Log::default();
    let found =
        Command::Found { cluster: uuid(1), name: "prod".into(), node_name: "a".into(), addresses: addresses(1) };
    log.node(1, found).unwrap();
    for position in 2..=nodes {
        log.enrol(position);
    }
    log.node_ids().into_iter().for_each(|node| drop(log.up(node, boot(node, 1)).unwrap()));
    log.node(1, Command::Raise { level: Level::BOUNDS }).unwrap();
    log.state
}

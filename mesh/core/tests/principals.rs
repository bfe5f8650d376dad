//! What is whose: by the id of a principal, and "not found" for everybody else.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

fn named(id: &str, role: PrincipalRole) -> Principal {
    Principal::Named { id: id.parse().unwrap(), role }
}

fn ada() -> Principal {
    named("user:ada", PrincipalRole::User)
}

fn bob() -> Principal {
    named("user:bob", PrincipalRole::User)
}

fn submit(log: &mut Log, by: &Principal, number: u64, message: Message) -> Result<TaskId, Rejection> {
    let applied = log.apply(by.clone(), Command::Submit(Box::new(submission(number, "reader", 1, message))))?;
    let Reply::Submitted { task, .. } = applied.reply else { panic!("{applied:?}") };
    Ok(task)
}

fn say(log: &mut Log, by: &Principal, task: TaskId, message: Message) -> Result<Applied, Rejection> {
    log.apply(by.clone(), Command::Continue { task, message, trace: span(1) })
}

fn ask(log: &mut Log, task: TaskId) {
    let ask = vec![turn_started(1), step_started(0, ask_intent()), ask_person(0, "which one?")];
    log.report(task, ask).unwrap();
}

fn listed(log: &Log, by: &Principal, filter: &ListFilter) -> (Vec<TaskId>, usize) {
    let listing = log.state.list(by, filter, 100);
    let mut ids: Vec<TaskId> = listing.rows.iter().map(|row| row.id).collect();
    ids.sort_unstable();
    (ids, listing.total)
}

#[test]
fn what_somebody_owns_does_not_exist_for_others() {
    let mut log = Log::of_nodes(1);
    let task = submit(&mut log, &ada(), 1, user_message("m-1", "read the file")).unwrap();
    let nobody = Rejection::UnknownTask { task };

    assert!(log.state.task_for(&ada(), task).is_some());
    assert!(log.state.task_for(&bob(), task).is_none());
    assert!(log.state.record_for(&bob(), task).is_none());
    assert_eq!(log.apply(bob(), Command::Cancel { task }).unwrap_err(), nobody);
    ask(&mut log, task);
    assert_eq!(say(&mut log, &bob(), task, user_message("m-2", "this one")).unwrap_err(), nobody);
    say(&mut log, &ada(), task, user_message("m-2", "that one")).unwrap();
    log.apply(ada(), Command::Cancel { task }).unwrap();

    log.archive(vec![task]);
    assert!(log.state.stub_for(&ada(), task).is_some() && log.state.record_for(&ada(), task).is_some());
    assert!(log.state.stub_for(&bob(), task).is_none() && log.state.record_for(&bob(), task).is_none());
    assert_eq!(log.apply(bob(), Command::Cancel { task }).unwrap_err(), nobody);
    assert_eq!(say(&mut log, &bob(), task, user_message("m-3", "more")).unwrap_err(), nobody);
}

#[test]
fn a_change_of_role_loses_nothing() {
    let mut log = Log::of_nodes(1);
    let task = submit(&mut log, &ada(), 1, user_message("m-1", "read the file")).unwrap();
    for role in [PrincipalRole::Agent, PrincipalRole::Operator, PrincipalRole::User] {
        let again = submit(&mut log, &named("user:ada", role), 2, user_message("m-1", "read the file"));
        assert_eq!(again.unwrap(), task, "{role}");
        assert!(log.state.task_for(&named("user:ada", role), task).is_some(), "{role}");
    }
    let promoted = named("user:bob", PrincipalRole::Operator);
    let of_operator = submit(&mut log, &promoted, 3, user_message("m-3", "read the file")).unwrap();
    assert!(log.state.task_for(&bob(), of_operator).is_some());
}

#[test]
fn the_operator_acts_on_anything_and_who_delegates_for_the_operator_does_not() {
    let mut log = Log::of_nodes(1);
    let task = submit(&mut log, &ada(), 1, user_message("m-1", "read the file")).unwrap();
    let delegate = Principal::Agent { name: name("reader"), on_behalf_of: Box::new(Principal::Operator) };
    assert!(log.state.task_for(&delegate, task).is_none());
    ask(&mut log, task);
    for operator in [Principal::Operator, named("root", PrincipalRole::Operator)] {
        assert!(log.state.task_for(&operator, task).is_some());
    }
    say(&mut log, &Principal::Operator, task, user_message("m-2", "that one")).unwrap();
    assert_eq!(log.task(task).owner, ada());
    log.apply(named("root", PrincipalRole::Operator), Command::Cancel { task }).unwrap();
}

#[test]
fn what_an_operator_says_to_anothers_task_is_forgotten_with_it() {
    let mut log = Log::of_nodes(1);
    let task = submit(&mut log, &ada(), 1, user_message("m-1", "read the file")).unwrap();
    ask(&mut log, task);
    for _ in 0..2 {
        say(&mut log, &Principal::Operator, task, user_message("m-2", "that one")).unwrap();
    }
    assert_eq!(log.task(task).history.iter().filter(|message| message.message_id.as_str() == "m-2").count(), 1);
    log.operator(Command::Cancel { task }).unwrap();

    log.pass(limits::TERMINAL_RETENTION_MS + limits::DEDUP_AFTER_END_MS);
    log.node(1, Command::Sweep).unwrap();

    let state = serde_json::to_value(&log.state).unwrap();
    assert_eq!(state["dedup"], serde_json::json!({}), "{}", state["dedup"]);
}

#[test]
fn a_list_shows_what_is_ones_own_and_an_operator_all() {
    let mut log = Log::of_nodes(1);
    let mut of_ada = Vec::new();
    for number in 1..=4 {
        let message = user_message(&format!("m-{number}"), "read the file");
        of_ada.push(submit(&mut log, &ada(), number, message).unwrap());
    }
    let of_bob = submit(&mut log, &bob(), 5, user_message("m-1", "read the file")).unwrap();
    let of_operator = log.submit(6, "reader", 1);
    // Of both some are in the archive.
    for task in [of_ada[0], of_ada[1], of_bob] {
        log.operator(Command::Cancel { task }).unwrap();
    }
    log.archive(vec![of_ada[0], of_bob]);

    let mut all = of_ada.clone();
    all.extend([of_bob, of_operator]);
    all.sort_unstable();
    of_ada.sort_unstable();
    let everything = ListFilter::default();
    assert_eq!(listed(&log, &ada(), &everything), (of_ada.clone(), 4));
    assert_eq!(listed(&log, &bob(), &everything), (vec![of_bob], 1));
    assert_eq!(listed(&log, &named("user:eve", PrincipalRole::User), &everything), (Vec::new(), 0));
    for operator in [Principal::Operator, named("root", PrincipalRole::Operator)] {
        assert_eq!(listed(&log, &operator, &everything), (all.clone(), 6));
        let canceled = ListFilter { state: Some(TaskState::Canceled), ..ListFilter::default() };
        assert_eq!(listed(&log, &operator, &canceled).1, 3);
    }
    let canceled = ListFilter { state: Some(TaskState::Canceled), ..ListFilter::default() };
    assert_eq!(listed(&log, &ada(), &canceled).1, 2);
    let of_agent = ListFilter { agent: Some(name("reader")), ..ListFilter::default() };
    assert_eq!(listed(&log, &bob(), &of_agent), (vec![of_bob], 1));
    let delegate = Principal::Agent { name: name("reader"), on_behalf_of: Box::new(Principal::Operator) };
    assert_eq!(listed(&log, &delegate, &everything), (vec![of_operator], 1));
}

#[test]
fn two_principals_that_pick_one_context_hold_two_conversations() {
    let mut log = Log::of_nodes(1);
    let context: ContextId = "plans".parse().unwrap();
    let mut message = user_message("m-1", "read the file");
    message.context_id = Some(context.clone());
    let of_ada = submit(&mut log, &ada(), 1, message.clone()).unwrap();
    let of_bob = submit(&mut log, &bob(), 2, message).unwrap();
    assert_ne!(of_ada, of_bob, "one message id, and two senders");

    let filter = ListFilter { context: Some(context), ..ListFilter::default() };
    assert_eq!(listed(&log, &ada(), &filter), (vec![of_ada], 1));
    assert_eq!(listed(&log, &bob(), &filter), (vec![of_bob], 1));
    for task in [of_ada, of_bob] {
        log.operator(Command::Cancel { task }).unwrap();
    }
    log.archive(vec![of_ada, of_bob]);
    assert_eq!(listed(&log, &ada(), &filter), (vec![of_ada], 1));
    assert_eq!(listed(&log, &bob(), &filter), (vec![of_bob], 1));
}

#[test]
fn roles_say_which_commands_somebody_may_give() {
    let mut log = Log::of_nodes(1);
    let refused = |rejection: Rejection| matches!(rejection, Rejection::NotAllowed { .. });
    for role in PrincipalRole::ALL {
        let by = named("somebody", role);
        let drain = log.apply(by.clone(), Command::Drain { node: NodeId(1), patience_ms: 1_000 });
        assert_eq!(drain.is_ok(), role == PrincipalRole::Operator, "{role}: {drain:?}");
        let sweep = log.apply(by.clone(), Command::Sweep);
        assert!(sweep.is_err_and(refused), "{role}: nodes sweep");
        let task = submit(&mut log, &by, 10 + role as u64, user_message(role.as_str(), "read the file"));
        assert_eq!(task.is_ok(), role != PrincipalRole::Anonymous, "{role}: {task:?}");
    }
}

#[test]
fn an_upload_is_for_its_owner_only() {
    let mut log = Log::of_nodes(1);
    let hash = BlobHash::from_bytes([7; 32]);
    log.apply(ada(), Command::Upload { hash, length: 7 }).unwrap();
    assert_eq!(log.state.upload(&named("user:ada", PrincipalRole::Agent), hash), Some(7));
    assert_eq!(log.state.upload(&bob(), hash), None);
    assert_eq!(log.state.upload(&Principal::Operator, hash), None);
}

#[test]
fn a_principal_is_written_as_it_is_read() {
    let by = named("spiffe://example.org/ci", PrincipalRole::Agent);
    let text = serde_json::to_string(&by).unwrap();
    assert_eq!(text, r#"{"Named":{"id":"spiffe://example.org/ci","role":"agent"}}"#);
    assert_eq!(serde_json::from_str::<Principal>(&text).unwrap(), by);
    assert_eq!(by.to_string(), "spiffe://example.org/ci");
    for wrong in ["", "a b", "ada\n", "ädä", &"a".repeat(257)] {
        assert!(wrong.parse::<PrincipalId>().is_err(), "{wrong:?}");
    }
}

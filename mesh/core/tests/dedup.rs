//! A message is taken once: while its task is open and a day longer, whatever became of the task.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use proptest::prelude::*;
use support::*;
use towline_core::*;

fn send(log: &mut Log, number: u64, message: Message) -> Result<Reply, Rejection> {
    let submission = submission(number, "reader", 1, message);
    log.operator(Command::Submit(Box::new(submission))).map(|applied| applied.reply)
}

fn ended(log: &mut Log) -> TaskId {
    let id = log.submit(1, "reader", 1);
    log.report(id, vec![finished(TaskState::Completed)]).unwrap();
    id
}

fn first() -> Message {
    user_message("m-1", "read the file")
}

#[test]
fn a_message_is_remembered_for_a_day_after_the_end_of_its_task() {
    let mut log = Log::of_nodes(1);
    let id = ended(&mut log);
    log.pass(limits::DEDUP_AFTER_END_MS - 2 * MILLISECONDS_PER_ENTRY);
    assert_eq!(send(&mut log, 2, first()), Ok(Reply::Submitted { task: id, created: false }));
    log.pass(MILLISECONDS_PER_ENTRY);
    assert_eq!(send(&mut log, 3, first()), Ok(Reply::Submitted { task: task_id(3), created: true }));
}

#[test]
fn a_message_of_an_open_task_is_remembered_however_long_it_takes() {
    let mut log = Log::of_nodes(1);
    let id = log.submit(1, "reader", 1);
    log.pass(100 * limits::TERMINAL_RETENTION_MS);
    log.node(1, Command::Sweep).unwrap();
    assert_eq!(send(&mut log, 2, first()), Ok(Reply::Submitted { task: id, created: false }));
}

#[test]
fn a_sweep_after_a_day_forgets_the_message_and_keeps_the_task() {
    let mut log = Log::of_nodes(1);
    let id = ended(&mut log);
    log.pass(limits::DEDUP_AFTER_END_MS);
    assert!(log.state.has_sweepable(Timestamp(log.state.last().at.0 + limits::DEDUP_AFTER_END_MS)));
    log.node(1, Command::Sweep).unwrap();
    assert!(!log.state.has_sweepable(log.state.last().at));
    assert!(log.state.task(id).is_some());
    assert_eq!(send(&mut log, 2, first()), Ok(Reply::Submitted { task: task_id(2), created: true }));
    log.pass(limits::TERMINAL_RETENTION_MS);
    log.node(1, Command::Sweep).unwrap();
    assert!(log.state.task(id).is_none());
    assert_eq!(send(&mut log, 3, first()), Ok(Reply::Submitted { task: task_id(2), created: false }));
}

#[test]
fn the_same_id_of_another_principal_is_another_message() {
    let mut log = Log::of_nodes(1);
    let first_task = log.submit(1, "reader", 1);
    let by = Principal::Agent { name: name("surveyor"), on_behalf_of: Box::new(Principal::Node(NodeId(1))) };
    let other = submission(2, "reader", 1, user_message("m-1", "something else"));
    let reply = log.apply(by, Command::Submit(Box::new(other))).unwrap().reply;
    assert_eq!(reply, Reply::Submitted { task: task_id(2), created: true });
    assert_ne!(first_task, task_id(2));
}

fn part() -> impl Strategy<Value = Part> {
    let json = prop_oneof![
        any::<i32>().prop_map(|number| serde_json::json!({ "n": number })),
        "[ab]{0,2}".prop_map(|text| serde_json::json!([text]))
    ];
    let content = prop_oneof![
        "[ab]{0,2}".prop_map(Content::Text),
        "[ab]{0,2}".prop_map(Content::Url),
        prop::collection::vec(0..2_u8, 0..3).prop_map(Content::Raw),
        json.prop_map(Content::Data),
    ];
    (content, prop::option::of("[ab]"), prop::option::of("[ab]")).prop_map(|(content, media_type, filename)| Part {
        content,
        media_type,
        filename,
        metadata: Metadata::new(),
    })
}

/// Few different ones, so that equal ones are common.
fn message() -> impl Strategy<Value = Message> {
    (
        any::<bool>(),
        prop::collection::vec(part(), 1..3),
        prop::option::of("[ab]"),
        prop::option::of(1..3_u64),
        prop::collection::vec("[ab]", 0..2),
        any::<u8>(),
    )
        .prop_map(|(user, parts, context, task, reference_task_ids, trace)| Message {
            role: if user { Role::User } else { Role::Agent },
            parts,
            context_id: context.map(|context| context.parse().unwrap()),
            task_id: task.map(task_id),
            reference_task_ids,
            metadata: Metadata::from([("traceparent".to_owned(), trace.into())]),
            ..user_message("m-1", "")
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn two_messages_have_one_digest_exactly_if_they_say_the_same(one in message(), other in message()) {
        let same = one.same_content(&other);
        prop_assert_eq!(Digest::of_message(&one) == Digest::of_message(&other), same);
        let retried = Message { metadata: Metadata::new(), ..one.clone() };
        prop_assert_eq!(Digest::of_message(&one), Digest::of_message(&retried));
    }

    #[test]
    fn a_message_that_comes_again_makes_no_second_task_or_is_refused(
        one in message(), other in message(), ends in any::<bool>(), pause in 0..3 * limits::DEDUP_AFTER_END_MS
    ) {
        let mut log = Log::of_nodes(1);
        let Ok(Reply::Submitted { created: true, .. }) = send(&mut log, 1, one.clone()) else { return Ok(()) };
        if ends {
            log.report(task_id(1), vec![finished(TaskState::Completed)]).unwrap();
        }
        log.pass(pause);
        let forgotten = ends && pause + MILLISECONDS_PER_ENTRY >= limits::DEDUP_AFTER_END_MS;
        let reply = send(&mut log, 2, other.clone());
        match (forgotten, one.same_content(&other)) {
            (false, true) => prop_assert_eq!(reply, Ok(Reply::Submitted { task: task_id(1), created: false })),
            (false, false) => {
                prop_assert_eq!(reply, Err(Rejection::MessageReused { message: "m-1".into(), task: task_id(1) }));
            }
            (true, _) => {
                let refused = matches!(reply, Err(Rejection::MessageReused { .. }));
                prop_assert!(!refused);
            }
        }
    }
}

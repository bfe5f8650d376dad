//! A rule that not all versions have counts once every member has said that it knows it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

/// Two nodes, of which the second runs a version that knows of no levels.
fn mixed() -> Log {
    let mut log = Log::default();
    let found =
        Command::Found { cluster: uuid(1), name: "prod".into(), node_name: "a".into(), addresses: addresses(1) };
    log.node(1, found).unwrap();
    log.up(1, boot(1, 1)).unwrap();
    let second = log.enrol(2);
    up_at(&mut log, second, 0);
    log
}

fn up_at(log: &mut Log, id: u64, knows: u32) {
    let Command::NodeUp { node, boot, addresses, version, capacity, mut agents, labels, .. } =
        node_up(id, boot(id, 1), 8)
    else {
        panic!("node_up makes another command")
    };
    agents.iter_mut().for_each(|agent| agent.queue = Some(1));
    let level = knows;
    log.node(id, Command::NodeUp { node, boot, addresses, version, capacity, agents, labels, level }).unwrap();
}

fn raise(log: &mut Log) {
    log.node(1, Command::Raise { level: Level::KNOWN }).unwrap();
}

fn submit_large(log: &mut Log, number: u64) -> Result<Applied, Rejection> {
    let mut message = user_message(&format!("m-{number}"), "read the file");
    let note = "x".repeat(limits::MAX_METADATA_BYTES);
    message.metadata.insert("note".into(), note.into());
    log.operator(Command::Submit(Box::new(submission(number, "reader", 1, message))))
}

#[test]
fn a_member_of_an_earlier_version_holds_the_level_back() {
    let mut log = mixed();
    let second = log.node_ids()[1];
    assert_eq!(log.state.next_level(), None);
    raise(&mut log);
    assert_eq!(log.state.level(), Level::FIRST);

    up_at(&mut log, second, Level::KNOWN.number() + 5);
    assert_eq!(log.state.next_level(), Some(Level::KNOWN), "a later version knows it too");
    raise(&mut log);
    assert_eq!((log.state.level(), log.state.next_level()), (Level::KNOWN, None));
}

#[test]
fn a_member_that_was_taken_in_and_has_not_come_up_holds_the_level_back_and_does_not_lower_it() {
    let mut log = mixed();
    let second = log.node_ids()[1];
    up_at(&mut log, second, Level::KNOWN.number());
    let third = log.enrol(3);
    raise(&mut log);
    assert_eq!(log.state.level(), Level::FIRST);
    up_at(&mut log, third, Level::KNOWN.number());
    raise(&mut log);
    assert_eq!(log.state.level(), Level::KNOWN);

    log.enrol(4);
    log.node(1, Command::Raise { level: Level::FIRST }).unwrap();
    assert_eq!(log.state.level(), Level::KNOWN);
    assert_eq!(decode(&encode(&log.state)).level(), Level::KNOWN);
}

#[test]
fn bounds_that_an_earlier_version_does_not_have_count_from_the_level_on() {
    let mut log = mixed();
    let second = log.node_ids()[1];
    log.submit(1, "reader", 1);
    log.submit(2, "reader", 1);
    submit_large(&mut log, 3).unwrap();

    up_at(&mut log, second, Level::KNOWN.number());
    raise(&mut log);
    let large = submit_large(&mut log, 4).unwrap_err();
    assert!(matches!(large, Rejection::TooLarge { .. }), "{large}");
    let queued = submission(5, "reader", 1, user_message("m-5", "read the file"));
    let full = log.operator(Command::Submit(Box::new(queued))).unwrap_err();
    assert!(matches!(full, Rejection::Full { .. }), "{full}");
}

#[test]
fn a_level_of_a_later_version_is_not_read() {
    let later = format!(r#"{{"level":{}}}"#, Level::KNOWN.number() + 1);
    let refused = serde_json::from_str::<Command>(&format!(r#"{{"Raise":{later}}}"#)).unwrap_err().to_string();
    assert!(refused.contains("upgrade this node"), "{refused}");
}

#[test]
fn messages_of_archived_tasks_are_remembered_alike_at_both_levels() {
    for raises in [false, true] {
        let mut log = mixed();
        if raises {
            let second = log.node_ids()[1];
            up_at(&mut log, second, Level::KNOWN.number());
            raise(&mut log);
        }
        let first = || user_message("m-1", "read the file");
        let send = |log: &mut Log, number: u64, message: Message| {
            let submission = submission(number, "reader", 1, message);
            log.operator(Command::Submit(Box::new(submission))).map(|applied| applied.reply)
        };
        let id = log.submit(1, "reader", 1);
        log.operator(Command::Cancel { task: id }).unwrap();
        log.archive(vec![id]);
        log.pass(limits::DEDUP_AFTER_END_MS - 6 * MILLISECONDS_PER_ENTRY);
        log.node(1, Command::Sweep).unwrap();

        assert_eq!(send(&mut log, 2, first()), Ok(Reply::Submitted { task: id, created: false }));
        let reused = Err(Rejection::MessageReused { message: "m-1".into(), task: id });
        assert_eq!(send(&mut log, 3, user_message("m-1", "something else")), reused);
        let other_agent = submission(3, "surveyor", 1, first());
        assert_eq!(log.operator(Command::Submit(Box::new(other_agent))).map(|applied| applied.reply), reused);
        log.pass(6 * MILLISECONDS_PER_ENTRY);
        assert!(log.state.has_sweepable(Timestamp(log.state.last().at.0 + 6 * MILLISECONDS_PER_ENTRY)));
        assert_eq!(send(&mut log, 4, first()), Ok(Reply::Submitted { task: task_id(4), created: true }));
        log.node(1, Command::Sweep).unwrap();
        assert!(!log.state.has_sweepable(log.state.last().at), "it is forgotten");
        assert_eq!(send(&mut log, 5, first()), Ok(Reply::Submitted { task: task_id(4), created: false }));
    }
}

//! What the state keeps of tasks whose records are in the archive.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::BTreeMap;
use support::*;
use towline_core::*;

#[test]
fn the_record_of_an_ended_task_leaves_the_state_and_a_stub_stays() {
    let mut log = Log::of_nodes(1);
    let id = ended(&mut log, 1);
    let record = log.task(id).clone();

    let records = log.archive(vec![id]);

    assert_eq!(*records[0], record);
    assert!(log.state.task(id).is_none());
    assert_eq!(log.state.record(id), Some(Record::Archived));
    assert_eq!(log.state.state_of(id), Some(TaskState::Completed));
    let stub = log.state.stub(id).unwrap();
    assert_eq!((&stub.context, stub.at, stub.generation), (&record.context, record.status.at, record.generation));
    assert_eq!((log.state.task_count(), log.state.archived_count()), (1, 1));
}

#[test]
fn an_open_task_stays_where_it_is() {
    let mut log = Log::of_nodes(1);
    let open = log.submit(1, "reader", 1);
    let before = log.task(open).clone();

    assert!(log.archive(vec![open, task_id(9)]).is_empty());

    assert_eq!(*log.task(open), before);
    log.report(open, vec![finished(TaskState::Completed)]).unwrap();
}

#[test]
fn an_archived_task_refuses_what_an_ended_one_refuses() {
    let mut log = Log::of_nodes(1);
    let id = log.submit(1, "reader", 1);
    let lease = log.lease(id);
    log.report(id, vec![finished(TaskState::Completed)]).unwrap();
    log.archive(vec![id]);

    let state = TaskState::Completed;
    let message = user_message("m-2", "more");
    let more = log.operator(Command::Continue { task: id, message, trace: span(1) }).unwrap_err();
    assert_eq!(more, Rejection::TaskEnded { task: id, state });
    let cancel = log.operator(Command::Cancel { task: id }).unwrap_err();
    assert_eq!(cancel, Rejection::NotCancelable { task: id, state });
    let late = log.report_as(&lease, id, 2, vec![]).unwrap_err();
    assert_eq!(late, Rejection::StaleEpoch { task: id, epoch: lease.epoch.0 });
    let testimony = log.testify(&lease, id, 0, "it was sent").unwrap_err();
    assert_eq!(testimony, Rejection::TaskEnded { task: id, state });
    let child = log.submit_child(2, id).unwrap_err();
    assert_eq!(child, Rejection::TaskEnded { task: id, state });
    let undecided = log.resolve(id, None, Verdict::Retry).unwrap_err();
    assert_eq!(undecided, Rejection::NotInDoubt { task: id, state });
}

#[test]
fn a_message_of_an_archived_task_makes_no_second_one() {
    let mut log = Log::of_nodes(1);
    let id = ended(&mut log, 1);
    log.archive(vec![id]);

    let again = submission(2, "reader", 1, user_message("m-1", "read the file"));
    let reply = log.operator(Command::Submit(Box::new(again))).unwrap().reply;
    assert_eq!(reply, Reply::Submitted { task: id, created: false });
    let other = submission(3, "reader", 1, user_message("m-1", "something else"));
    let refused = log.operator(Command::Submit(Box::new(other))).unwrap_err();
    assert_eq!(refused, Rejection::MessageReused { message: "m-1".into(), task: id });
}

#[test]
fn tasks_go_to_the_archive_a_while_after_they_ended_and_oldest_first() {
    let mut log = Log::of_nodes(1);
    let first = ended(&mut log, 1);
    log.pass(limits::ARCHIVE_AFTER_MS);
    let second = ended(&mut log, 2);
    let open = log.submit(3, "reader", 1);

    assert_eq!(log.state.archivable(log.state.last().at, limits::ARCHIVE_AFTER_MS), [first]);
    assert_eq!(log.state.archivable(log.state.last().at, 0), [first, second]);
    log.archive(vec![first, second, open]);
    assert!(log.state.archivable(log.state.last().at, 0).is_empty());
}

#[test]
fn more_than_one_entry_takes_is_refused_and_nothing_is_archived() {
    let mut log = Log::of_nodes(1);
    let id = ended(&mut log, 1);
    let many = vec![id; limits::MAX_ARCHIVED_PER_ENTRY + 1];
    assert!(log.state.to_archive(&many).is_empty());
    let refused = log.node(1, Command::Archive { tasks: many }).unwrap_err();
    assert!(matches!(refused, Rejection::TooLarge { .. }));
    assert!(log.state.task(id).is_some());
}

#[test]
fn a_sweep_takes_the_stub_past_its_retention_and_what_it_named() {
    let mut log = Log::of_nodes(1);
    let hash: BlobHash = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262".parse().unwrap();
    let mut message = user_message("m-1", "read the file");
    message
        .parts
        .push(Part { content: Content::Blob(Blob { hash, length: 20_000, form: BlobForm::Raw }), ..Part::text("") });
    log.operator(Command::Submit(Box::new(submission(1, "reader", 1, message)))).unwrap();
    let id = task_id(1);
    log.report(id, vec![finished(TaskState::Completed)]).unwrap();
    log.archive(vec![id]);
    assert!(log.state.names_blob(&hash), "its events can still be read");
    assert_eq!(log.state.first_archived(), [id]);

    log.pass(limits::TERMINAL_RETENTION_MS - 2 * MILLISECONDS_PER_ENTRY);
    log.node(1, Command::Sweep).unwrap();
    assert!(log.state.stub(id).is_some(), "not past it");
    log.pass(1);
    assert!(log.state.has_sweepable(Timestamp(log.state.last().at.0 + 100)));
    log.node(1, Command::Sweep).unwrap();
    assert_eq!(log.state.record(id), None);
    assert!(!log.state.names_blob(&hash));
    assert!(log.state.first_archived().is_empty());
}

#[test]
fn pages_of_a_listing_meet_over_memory_and_archive() {
    let mut log = Log::of_nodes(1);
    let mut archive = BTreeMap::new();
    for number in 1..=9 {
        let id = if number % 3 == 0 { log.submit(number, "reader", 1) } else { ended(&mut log, number) };
        if number % 2 == 0 && log.state.task(id).unwrap().status.state.is_terminal() {
            archive.extend(log.archive(vec![id]).into_iter().map(|task| (task.id, Some(task))));
        }
    }
    let (mut filter, mut seen) = (ListFilter::default(), Vec::new());
    loop {
        let page = log.state.list(&Principal::Operator, &filter, 2).page(&archive, |_| 0);
        assert_eq!(page.total, 9);
        seen.extend(page.tasks.iter().map(|task| task.id));
        filter.after = page.next;
        if filter.after.is_none() {
            break;
        }
    }
    assert_eq!(seen, (1..=9).rev().map(task_id).collect::<Vec<_>>());
}

#[test]
fn a_page_ends_before_a_record_that_was_not_read_and_leaves_out_one_that_is_gone() {
    let mut log = Log::of_nodes(1);
    let ids: Vec<TaskId> = (1..=3).map(|number| ended(&mut log, number)).collect();
    let records = log.archive(ids.clone());
    let listing = log.state.list(&Principal::Operator, &ListFilter::default(), 10);
    assert_eq!(listing.archived(), [ids[2], ids[1], ids[0]]);

    let found = BTreeMap::from([(ids[2], None), (ids[1], Some(records[1].clone()))]);
    let page = listing.page(&found, |_| 0);

    assert_eq!(page.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [ids[1]]);
    assert_eq!(page.next, Some((records[1].status.at, ids[1])));
}

fn ended(log: &mut Log, number: u64) -> TaskId {
    let id = log.submit(number, "reader", 1);
    log.report(id, vec![finished(TaskState::Completed)]).unwrap();
    id
}

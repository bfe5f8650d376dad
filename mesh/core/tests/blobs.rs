//! What names content in the blob store, for how long, and how much of it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

const LENGTH: u64 = 3 * 1024 * 1024;

#[test]
fn a_task_names_its_content_until_it_is_swept() {
    let mut log = Log::of_nodes(1);
    let before = log.state.blobs_named_at();
    let id = submit(&mut log, 1, vec![part(1, LENGTH)]).unwrap();
    let outcome = Outcome::Stored { blob: blob(2, 20_000), is_error: false };
    let words = vec![
        turn_started(1),
        step_started(0, tool_intent(OnAdoption::Retry)),
        OwnerWord::StepEnded { step: StepNo(0), outcome },
        chunk_of(vec![part(3, LENGTH)]),
        chunk_of(vec![part(1, LENGTH)]),
        finished(TaskState::Completed),
    ];
    log.report(id, words).unwrap();
    assert_eq!(named(&log), [(hash(1), LENGTH), (hash(2), 20_000), (hash(3), LENGTH)]);
    assert!(log.state.blobs_named_at() > before);
    assert_eq!(decode(&encode(&log.state)), log.state);
    assert_eq!(log.task(id).shown_part(hash(3)).unwrap(), &part(3, LENGTH), "it was shown in an event");
    assert_eq!(log.task(id).shown_part(hash(2)), None, "a result is the agent's");

    log.pass(limits::TERMINAL_RETENTION_MS + 1);
    log.node(1, Command::Sweep).unwrap();
    assert_eq!(named(&log), []);
    assert_eq!(decode(&encode(&log.state)), log.state);
}

#[test]
fn content_that_two_tasks_name_stays_until_both_are_gone() {
    let mut log = Log::of_nodes(1);
    let first = submit(&mut log, 1, vec![part(1, LENGTH)]).unwrap();
    log.operator(Command::Cancel { task: first }).unwrap();
    log.pass(limits::TERMINAL_RETENTION_MS);
    submit(&mut log, 2, vec![part(1, LENGTH), part(1, LENGTH)]).unwrap();
    log.pass(1);
    log.node(1, Command::Sweep).unwrap();
    assert!(log.state.task(first).is_none());
    assert_eq!(named(&log), [(hash(1), LENGTH)]);
}

#[test]
fn an_upload_is_its_callers_for_a_day_and_for_longer_if_a_task_names_it() {
    let mut log = Log::of_nodes(1);
    for number in [1, 2] {
        log.operator(Command::Upload { hash: hash(number), length: LENGTH }).unwrap();
    }
    assert_eq!(log.state.upload(&Principal::Operator, hash(1)), Some(LENGTH));
    assert_eq!(log.state.upload(&Principal::Node(NodeId(1)), hash(1)), None, "another's does not exist");
    submit(&mut log, 1, vec![part(1, LENGTH)]).unwrap();

    log.pass(limits::UPLOAD_KEPT_MS - 1_000);
    log.operator(Command::Upload { hash: hash(2), length: LENGTH }).unwrap();
    log.pass(1_000);
    assert!(log.state.has_sweepable(Timestamp(u64::MAX)));
    log.node(1, Command::Sweep).unwrap();
    assert_eq!(log.state.upload(&Principal::Operator, hash(1)), None);
    assert_eq!(log.state.upload(&Principal::Operator, hash(2)), Some(LENGTH), "it was uploaded again");
    assert_eq!(named(&log), [(hash(1), LENGTH), (hash(2), LENGTH)]);

    log.pass(limits::UPLOAD_KEPT_MS);
    log.node(1, Command::Sweep).unwrap();
    assert_eq!(named(&log), [(hash(1), LENGTH)], "the task still names it");
    log.node(1, Command::Upload { hash: hash(1), length: LENGTH }).unwrap_err();
}

#[test]
fn the_content_of_a_task_and_of_a_principal_is_bounded() {
    let mut log = Log::of_nodes(1);
    let what = |refused: Result<TaskId, Rejection>| {
        let refused = refused.unwrap_err();
        if let Rejection::TooLarge { what, limit } = refused {
            return (what, limit, 0);
        }
        let Rejection::Full { what, limit, retry_after_ms } = refused else { panic!("{refused}") };
        (what, limit, retry_after_ms)
    };
    let (_, limit, _) = what(submit(&mut log, 1, vec![part(1, limits::MAX_BLOB_BYTES + 1)]));
    assert_eq!(limit, limits::MAX_BLOB_BYTES);
    let largest = |numbers: std::ops::Range<u64>| numbers.map(|number| part(number, limits::MAX_BLOB_BYTES)).collect();
    let per_task = limits::MAX_BLOB_BYTES_PER_TASK / limits::MAX_BLOB_BYTES;
    let (_, limit, _) = what(submit(&mut log, 1, largest(0..per_task + 1)));
    assert_eq!(limit, limits::MAX_BLOB_BYTES_PER_TASK);

    let tasks = limits::MAX_BLOB_BYTES_PER_PRINCIPAL / limits::MAX_BLOB_BYTES_PER_TASK;
    for task in 0..tasks {
        submit(&mut log, task, largest(task * per_task..(task + 1) * per_task)).unwrap();
    }
    let before = log.without_position();
    let (what, limit, retry_after_ms) = what(submit(&mut log, 900, vec![part(9_000, 20_000)]));
    assert_eq!(limit, limits::MAX_BLOB_BYTES_PER_PRINCIPAL);
    assert!(what.contains("operator") && retry_after_ms > 0, "{what}");
    assert_eq!(log.without_position(), before, "what is refused changes nothing");
    log.operator(Command::Upload { hash: hash(9_000), length: 20_000 }).unwrap_err();
    log.report(task_id(0), vec![turn_started(1), chunk_of(vec![part(9_000, 20_000)])]).unwrap_err();
    submit(&mut log, 901, vec![Part::text("small")]).unwrap();

    log.operator(Command::Cancel { task: task_id(0) }).unwrap();
    log.pass(limits::TERMINAL_RETENTION_MS + 1);
    log.node(1, Command::Sweep).unwrap();
    submit(&mut log, 902, vec![part(9_000, 20_000)]).unwrap();
}

#[test]
fn content_that_is_shown_in_its_place_counts_as_much_as_before() {
    let shown = part(1, limits::MAX_SHOWN_BLOB_BYTES);
    assert_eq!(shown.size() as u64, limits::MAX_SHOWN_BLOB_BYTES);
    assert_eq!(part(1, limits::MAX_SHOWN_BLOB_BYTES + 1).size(), 0, "a link");
    let mut log = Log::of_nodes(1);
    let five = (0..5).map(|number| part(number, limits::MAX_SHOWN_BLOB_BYTES)).collect();
    assert!(matches!(submit(&mut log, 1, five), Err(Rejection::TooLarge { .. })));
}

#[test]
fn the_same_content_is_the_same_message() {
    let message = |content: u64| Message { parts: vec![part(content, LENGTH)], ..user_message("m-1", "") };
    let mut log = Log::of_nodes(1);
    let mut send = |message| log.operator(Command::Submit(Box::new(submission(1, "reader", 1, message))));
    send(message(1)).unwrap();
    assert!(matches!(send(message(1)).unwrap().reply, Reply::Submitted { created: false, .. }));
    assert!(matches!(send(message(2)), Err(Rejection::MessageReused { .. })));
}

fn submit(log: &mut Log, number: u64, parts: Vec<Part>) -> Result<TaskId, Rejection> {
    let message = Message { parts, ..user_message(&format!("m-{number}"), "") };
    let submission = submission(number, "reader", 1, message);
    log.operator(Command::Submit(Box::new(submission))).map(|_| task_id(number))
}

fn named(log: &Log) -> Vec<(BlobHash, u64)> {
    log.state.named_blobs().collect()
}

fn hash(number: u64) -> BlobHash {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    BlobHash::from_bytes(bytes)
}

fn blob(number: u64, length: u64) -> Blob {
    Blob { hash: hash(number), length, form: BlobForm::Raw }
}

fn part(number: u64, length: u64) -> Part {
    Part { content: Content::Blob(blob(number, length)), ..Part::text("") }
}

fn chunk_of(parts: Vec<Part>) -> OwnerWord {
    OwnerWord::Chunk {
        artifact_id: "file".into(),
        name: None,
        parts,
        append: false,
        last_chunk: true,
        metadata: Metadata::new(),
    }
}

//! What a finished task leaves in memory, as the process has it: alone in its process, so that nothing else counts.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

/// Enough that what a process has beside them is little.
const TASKS: u64 = 24_000;
const SETTLED: u64 = 8_000;
/// Stub, orders and message: 200 as they are counted, some 240 with what the allocator adds.
const MOST_BYTES_PER_TASK: u64 = 300;

#[test]
fn a_finished_task_leaves_few_bytes_in_memory() {
    let Log { mut state, .. } = Log::of_nodes(1);
    (0..SETTLED).for_each(|number| finish(&mut state, number));
    let before = resident_bytes();
    (SETTLED..TASKS).for_each(|number| finish(&mut state, number));
    let each = resident_bytes().saturating_sub(before) / (TASKS - SETTLED);
    assert_eq!(state.archived_count() as u64, TASKS);
    assert!(each <= MOST_BYTES_PER_TASK, "{each} bytes");
}

/// A task with a context and a message of its own, as clients make them.
fn finish(state: &mut State, number: u64) {
    let id = TaskId::from_uuid(random(number, 0));
    let mut submission = submission(number, "reader", 1, user_message(&random(number, 1).to_string(), "read the file"));
    submission.task = id;
    submission.fresh_context = random(number, 2).to_string().try_into().unwrap();
    apply(state, Principal::Operator, Command::Submit(Box::new(submission)));
    let epoch = state.task(id).unwrap().lease.as_ref().unwrap().epoch;
    let words = vec![turn_started(number), finished(TaskState::Completed)];
    let node = Principal::Node(NodeId(1));
    apply(state, node.clone(), Command::Report(OwnerReport { task: id, epoch, number: 1, words }));
    apply(state, node, Command::Archive { tasks: vec![id] });
}

fn apply(state: &mut State, by: Principal, command: Command) {
    let last = state.last();
    let stamp = Stamp { index: last.index + 1, at: Timestamp(last.at.0 + 1) };
    state.apply(Proposal { by, command }, stamp).unwrap();
}

fn random(number: u64, kind: u8) -> uuid::Uuid {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&blake3::hash(format!("{number} {kind}").as_bytes()).as_bytes()[..16]);
    uuid::Uuid::from_bytes(bytes)
}

fn resident_bytes() -> u64 {
    const PAGE: u64 = 4_096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * PAGE
}

//! What a task may look like to its callers, as a sequential specification, and the check of a history against it.
//!
//! A key is one `messageId`. The first submission makes its task; each further one gives the same task. The task asks a
//! person at once and waits, so that after its first events only a cancel changes it.

use std::{collections::BTreeMap, time::Duration};

use porcupine_rs::{CheckResult, Model, Operation, check_operations_timeout};

/// How long the check of one key may take: a key has some hundred operations, and the check of one takes milliseconds.
const CHECK_LIMIT: Duration = Duration::from_secs(60);

/// When an operation ended whose outcome is not known: after everything else.
pub(crate) const OPEN: i64 = i64::MAX;

/// What a caller did and what it was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    /// The task of the message.
    Submit { task: String },
    /// It may or may not have been taken.
    SubmitUnknown,
    /// The task as it stands.
    Read { generation: u64, canceled: bool },
    /// There is no such task.
    ReadNothing,
    /// The task, canceled.
    Cancel { generation: u64 },
    /// It may or may not have been canceled.
    CancelUnknown,
}

/// The task of a key. What no caller has been told yet is not known.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct TaskState {
    exists: bool,
    task: Option<String>,
    /// The highest event index that somebody was told.
    generation: u64,
    canceled: bool,
    /// The last event index; a canceled task gets no further events.
    last: Option<u64>,
}

impl TaskState {
    fn submit(&self, task: &str) -> Option<Self> {
        let same = self.task.as_deref().is_none_or(|known| known == task);
        same.then(|| Self { exists: true, task: Some(task.to_owned()), ..self.clone() })
    }

    fn read(&self, generation: u64, canceled: bool) -> Option<Self> {
        let forward = self.last.map_or(generation >= self.generation, |last| generation == last);
        let fits = self.exists && self.canceled == canceled && forward;
        fits.then(|| Self { generation, last: canceled.then_some(generation), ..self.clone() })
    }

    /// The first cancel adds the last event; any further one is told the task as it ended.
    fn cancel(&self, generation: u64) -> Option<Self> {
        let forward = self.last.map_or(generation > self.generation, |last| generation == last);
        let fits = self.exists && forward;
        fits.then(|| Self { generation, canceled: true, last: Some(generation), ..self.clone() })
    }

    fn step(&self, op: &Op) -> Option<Self> {
        match op {
            Op::Submit { task } => self.submit(task),
            Op::SubmitUnknown => Some(Self { exists: true, ..self.clone() }),
            Op::Read { generation, canceled } => self.read(*generation, *canceled),
            Op::ReadNothing => (!self.exists).then(|| self.clone()),
            Op::Cancel { generation } => self.cancel(*generation),
            Op::CancelUnknown => Some(Self { canceled: self.canceled || self.exists, ..self.clone() }),
        }
    }
}

#[derive(Debug, Clone)]
struct TaskModel;

impl Model for TaskModel {
    type State = TaskState;
    type Op = Op;
    type Metadata = ();

    fn init() -> TaskState {
        TaskState::default()
    }

    fn step(state: &TaskState, op: &Op) -> (bool, TaskState) {
        state.step(op).map_or_else(|| (false, state.clone()), |next| (true, next))
    }
}

/// One operation with its times, in nanoseconds since the start.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    pub(crate) client: u32,
    pub(crate) key: u64,
    pub(crate) called: i64,
    pub(crate) returned: i64,
    pub(crate) op: Op,
}

/// What all clients did.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) operations: Vec<Recorded>,
    /// Reads without an answer: they say nothing, and are only counted.
    pub(crate) unanswered_reads: usize,
}

impl History {
    pub(crate) fn summary(&self) -> String {
        let open = self.operations.iter().filter(|recorded| recorded.returned == OPEN).count();
        let keys = self.by_key().len();
        let all = self.operations.len();
        format!(
            "{all} operations on {keys} keys, {open} of unknown outcome, {} reads unanswered",
            self.unanswered_reads
        )
    }

    fn by_key(&self) -> BTreeMap<u64, Vec<Operation<TaskModel>>> {
        let mut keys: BTreeMap<u64, Vec<Operation<TaskModel>>> = BTreeMap::new();
        for Recorded { client, key, called, returned, op } in &self.operations {
            let operation = Operation {
                client_id: Some(*client),
                call_time: *called,
                return_time: *returned,
                op: op.clone(),
                metadata: None,
            };
            keys.entry(*key).or_default().push(operation);
        }
        keys
    }
}

/// The keys whose history no order of the operations explains, or whose check took too long to say.
pub(crate) fn check(history: &History) -> Vec<String> {
    let mut wrong = Vec::new();
    for (key, operations) in history.by_key() {
        match check_operations_timeout(&operations, CHECK_LIMIT) {
            CheckResult::Ok => {}
            CheckResult::Illegal => wrong.push(format!("key {key} is not linearizable:\n{}", told(&operations))),
            CheckResult::Unknown => wrong.push(format!("key {key} could not be checked in {CHECK_LIMIT:?}")),
        }
    }
    wrong
}

fn told(operations: &[Operation<TaskModel>]) -> String {
    let mut sorted: Vec<&Operation<TaskModel>> = operations.iter().collect();
    sorted.sort_by_key(|operation| operation.call_time);
    let line = |operation: &&Operation<TaskModel>| {
        let ms = |nanos: i64| if nanos == OPEN { "open".to_owned() } else { format!("{:.1}", nanos as f64 / 1e6) };
        let (called, returned) = (ms(operation.call_time), ms(operation.return_time));
        format!("    client {} {called}..{returned} {:?}", operation.client_id.unwrap_or(0), operation.op)
    };
    sorted.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When it was called, when it returned, and what it was.
    type Step = (i64, i64, Op);

    fn history(operations: &[Step]) -> History {
        let recorded = |(at, (called, returned, op)): (usize, &Step)| Recorded {
            client: at as u32,
            key: 1,
            called: *called,
            returned: *returned,
            op: op.clone(),
        };
        History { operations: operations.iter().enumerate().map(recorded).collect(), unanswered_reads: 0 }
    }

    fn submit(task: &str) -> Op {
        Op::Submit { task: task.to_owned() }
    }

    fn read(generation: u64, canceled: bool) -> Op {
        Op::Read { generation, canceled }
    }

    #[test]
    fn what_a_cluster_without_faults_shows_is_fine() {
        let good = history(&[
            (0, 5, Op::ReadNothing),
            (1, 10, submit("t")),
            (2, 12, submit("t")),
            (13, 14, read(3, false)),
            (15, 20, Op::Cancel { generation: 4 }),
            (16, 21, read(3, false)),
            (22, 23, read(4, true)),
            (24, 25, Op::Cancel { generation: 4 }),
        ]);
        assert_eq!(check(&good), Vec::<String>::new());
    }

    #[test]
    fn an_operation_of_unknown_outcome_may_have_happened_late_or_never() {
        for end in [read(3, false), read(4, true)] {
            let open =
                history(&[(0, 1, submit("t")), (2, 3, read(3, false)), (4, OPEN, Op::CancelUnknown), (5, 6, end)]);
            assert_eq!(check(&open), Vec::<String>::new());
        }
        let bound = history(&[(0, OPEN, Op::SubmitUnknown), (2, 3, read(1, false)), (4, 5, submit("t"))]);
        assert_eq!(check(&bound), Vec::<String>::new());
    }

    #[test]
    fn every_known_bad_history_is_found() {
        let bad: [(&str, Vec<Step>); 8] = [
            ("two tasks for one message", vec![(0, 1, submit("t")), (2, 3, submit("u"))]),
            ("an acknowledged task is gone", vec![(0, 1, submit("t")), (2, 3, Op::ReadNothing)]),
            ("a read goes back", vec![(0, 1, submit("t")), (2, 3, read(3, false)), (4, 5, read(2, false))]),
            (
                "a stale read after a cancel",
                vec![(0, 1, submit("t")), (2, 3, Op::Cancel { generation: 4 }), (4, 5, read(3, false))],
            ),
            (
                "an event after the end",
                vec![(0, 1, submit("t")), (2, 3, Op::Cancel { generation: 4 }), (4, 5, read(5, true))],
            ),
            (
                "two cancels that both ended it",
                vec![(0, 1, submit("t")), (2, 3, Op::Cancel { generation: 4 }), (4, 5, Op::Cancel { generation: 5 })],
            ),
            ("canceled before anybody knew it", vec![(0, 1, Op::Cancel { generation: 4 }), (2, 3, submit("t"))]),
            (
                "an unknown cancel is undone",
                vec![(0, 1, submit("t")), (2, OPEN, Op::CancelUnknown), (3, 4, read(4, true)), (5, 6, read(4, false))],
            ),
        ];
        for (name, operations) in bad {
            assert_eq!(check(&history(&operations)).len(), 1, "{name}");
        }
    }
}

//! What tasks are to do: their message says it, so that every owner reads the same.

use std::collections::BTreeMap;

use towline_core::{
    Message, MessageId, NodeId, ParentLink, Part, Role, Submission, Task, TaskId, TraceContext,
    limits::MAX_INLINE_BYTES,
};
use uuid::Uuid;

use crate::host::AGENT;

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// How many steps it has.
    pub steps: u32,
    /// What each of them writes.
    pub chunks: u32,
    /// Whether the last one has another task do something.
    pub delegates: bool,
    /// Whether it fails in the end.
    pub fails: bool,
    /// Whether what its steps return is too large for the log.
    pub is_large: bool,
}

impl Plan {
    /// What a child does.
    pub const CHILD: Plan = Plan { steps: 1, chunks: 1, delegates: false, fails: false, is_large: false };

    /// Some plan.
    pub fn draw(rng: &mut fastrand::Rng) -> Self {
        let (steps, chunks) = (rng.u32(1..3), rng.u32(1..4));
        let (delegates, fails) = (rng.u8(0..3) == 0, rng.u8(0..10) == 0);
        Self { steps, chunks, delegates, fails, is_large: rng.u8(0..6) == 0 }
    }

    fn text(self) -> String {
        let Self { steps, chunks, delegates, fails, is_large } = self;
        format!("{steps} {chunks} {} {} {}", u8::from(delegates), u8::from(fails), u8::from(is_large))
    }

    /// The plan of a task.
    pub fn of(task: &Task) -> Self {
        let text = task.history.first().map(Message::text).unwrap_or_default();
        let mut numbers = text.split(' ').map(|number| number.parse::<u32>().unwrap_or_default());
        let mut next = || numbers.next().unwrap_or_default();
        Self { steps: next(), chunks: next(), delegates: next() > 0, fails: next() > 0, is_large: next() > 0 }
    }
}

/// A message.
pub fn message(id: &str, plan: &Plan) -> Message {
    Message {
        message_id: MessageId::try_from(id.to_owned()).expect("ids of messages are short and printable"),
        context_id: None,
        task_id: None,
        role: Role::User,
        parts: vec![Part::text(plan.text())],
        metadata: BTreeMap::new(),
        extensions: Vec::new(),
        reference_task_ids: Vec::new(),
    }
}

/// Content that is like no other, of some length around what is too large for the log.
pub fn large(of: &str, rng: &mut fastrand::Rng) -> Vec<u8> {
    let length = match rng.u8(0..40) {
        0 => rng.usize(1_000_000..1_200_000),
        1..8 => MAX_INLINE_BYTES,
        8..16 => MAX_INLINE_BYTES + 1,
        _ => rng.usize(MAX_INLINE_BYTES..3 * MAX_INLINE_BYTES),
    };
    of.bytes().cycle().take(length).collect()
}

/// A request for a task, with an id that the node makes which takes it.
pub fn submission(message: Message, prefer: NodeId, parent: Option<ParentLink>) -> Submission {
    Submission {
        task: TaskId::from_uuid(Uuid::now_v7()),
        fresh_context: "context".parse().expect("it is printable"),
        agent: AGENT.parse().expect("it is a name"),
        message,
        prefer,
        parent,
        hop: 0,
        deadline_ms: None,
        trace: TraceContext { trace_id: 1, span_id: 2, sampled: false },
        most_open: None,
        labels: towline_core::Labels::new(),
    }
}

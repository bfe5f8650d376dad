use towline_core::{
    AgentName, AgentSpec, BootId, Command, ContextId, Message, Metadata, NodeAddresses, NodeId, OwnerReport, OwnerWord,
    Placement, Proposal, Role, Stamp, State, Submission, Timestamp, TraceContext,
};

use super::*;

#[test]
fn a_client_that_knows_an_event_in_the_window_gets_what_follows() {
    // Events 3 to 9 are retained.
    assert_eq!(next(Some(2), 9, 3), Next::Events { from: 3 });
    assert_eq!(next(Some(3), 9, 3), Next::Events { from: 4 });
    assert_eq!(next(Some(8), 9, 3), Next::Events { from: 9 });
    assert_eq!(next(Some(0), 9, 1), Next::Events { from: 1 });
}

#[test]
fn a_client_that_knows_everything_gets_nothing_until_more_happens() {
    assert_eq!(next(Some(9), 9, 3), Next::Nothing);
    assert_eq!(next(Some(9), 9, 10), Next::Nothing, "even if nothing is retained");
}

#[test]
fn a_client_outside_of_the_window_gets_the_task_as_it_stands() {
    assert_eq!(next(None, 9, 3), Next::Snapshot);
    assert_eq!(next(Some(0), 9, 3), Next::Snapshot);
    assert_eq!(next(Some(1), 9, 3), Next::Snapshot);
    assert_eq!(next(Some(10), 9, 3), Next::Snapshot);
    assert_eq!(next(Some(u64::MAX), 9, 3), Next::Snapshot);
}

#[test]
fn after_a_snapshot_the_events_behind_it_follow() {
    let mut after = None;
    assert_eq!(next(after, 9, 3), Next::Snapshot);
    after = Some(9);
    assert_eq!(next(after, 9, 3), Next::Nothing);
    assert_eq!(next(after, 11, 5), Next::Events { from: 10 });
}

#[test]
fn a_stream_ends_behind_a_terminal_event_only() {
    for at_input in [AtInput::Ends, AtInput::EndsAfterItsEvent] {
        for sent in [Sent::Nothing, Sent::Snapshot, Sent::Event] {
            for state in [TaskState::Completed, TaskState::Failed, TaskState::Canceled, TaskState::Rejected] {
                assert!(is_over(state, sent, at_input), "{state:?}");
            }
            for state in [TaskState::Submitted, TaskState::Working, TaskState::AuthRequired] {
                assert!(!is_over(state, sent, at_input), "{state:?}");
            }
        }
    }
}

#[test]
fn a_stream_ends_behind_the_event_that_asks_for_input() {
    let asks = TaskState::InputRequired;
    assert!(is_over(asks, Sent::Event, AtInput::EndsAfterItsEvent));
    assert!(!is_over(asks, Sent::Snapshot, AtInput::EndsAfterItsEvent), "a late subscriber waits for the answer");
    assert!(!is_over(asks, Sent::Nothing, AtInput::EndsAfterItsEvent), "so does one that resumes");
    assert!(is_over(asks, Sent::Snapshot, AtInput::Ends), "the sender of a message has to answer");
}

#[test]
fn a_task_that_has_ended_can_be_read_to_its_end_and_not_be_subscribed_to() {
    let mut running = Running::new();
    assert!(may_subscribe(running.task(), None).is_ok());
    running.report(vec![OwnerWord::Finished { state: TaskState::Completed, message: None }]);
    let generation = running.task().generation;
    assert!(may_subscribe(running.task(), None).is_err());
    assert!(may_subscribe(running.task(), Some(generation)).is_err(), "there is nothing left to send");
    assert!(may_subscribe(running.task(), Some(0)).is_ok());
    assert!(may_subscribe(running.task(), Some(generation - 1)).is_ok());
}

#[test]
fn any_way_to_read_a_task_shows_each_event_once_and_in_order() {
    let mut running = Running::new();
    for number in 0..3 * PAGE_EVENTS {
        running.report(vec![chunk(&format!("{number} "), number > 0)]);
    }
    running.report(vec![OwnerWord::Finished { state: TaskState::Completed, message: None }]);
    let generation = running.task().generation;

    for start in [0, 1, 57, generation - 1] {
        let seen = read_all(running.task(), Some(start));
        let wanted: Vec<u64> = (start + 1..=generation).collect();
        assert_eq!(seen, wanted, "from {start}");
    }
    assert_eq!(read_all(running.task(), None), [generation], "a snapshot has it all");
}

#[test]
fn a_page_is_bounded_in_bytes_but_never_empty() {
    let mut running = Running::new();
    let large = "x".repeat(PAGE_BYTES);
    for number in 0..3 {
        running.report(vec![chunk(&large, number > 0)]);
    }
    let Page::Frames(frames, _) = page(running.task(), TaskView::WHOLE, Some(2), Sent::Event, AtInput::Ends) else {
        panic!("no page")
    };
    assert_eq!(frames.len(), 1);
}

/// What a client sees that reads until the stream is over or waits.
fn read_all(task: &Task, mut after: Option<u64>) -> Vec<u64> {
    let binding = Binding::JsonRpc { id: Value::from(1) };
    let mut seen = Vec::new();
    let mut sent = Sent::Nothing;
    while let Page::Frames(frames, kind) = page(task, TaskView::WHOLE, after, sent, AtInput::EndsAfterItsEvent) {
        sent = kind;
        for (index, answer) in frames {
            let text = String::from_utf8(frame(&binding, encoded(index, &answer).unwrap()).to_vec()).unwrap();
            assert!(text.starts_with(&format!("id: {index}\ndata: {{")), "{text}");
            assert!(text.ends_with("}\n\n") && text.lines().count() == 3, "{text}");
            after = Some(index);
            seen.push(index);
        }
    }
    seen
}

fn chunk(text: &str, append: bool) -> OwnerWord {
    OwnerWord::Chunk {
        artifact_id: "step-0".into(),
        name: None,
        parts: vec![Part::text(text)],
        append,
        last_chunk: false,
        metadata: Metadata::new(),
    }
}

/// A state with one task that a node works on.
struct Running {
    state: State,
    index: u64,
    reported: u64,
}

impl Running {
    const NODE: NodeId = NodeId(1);

    fn id() -> TaskId {
        TaskId::from_uuid(uuid::Uuid::from_u128(1))
    }

    fn new() -> Self {
        let agent: AgentName = "reader".parse().unwrap();
        let mut running = Self { state: State::default(), index: 0, reported: 0 };
        let spec = AgentSpec {
            name: agent.clone(),
            description: String::new(),
            placement: Placement::EveryNode,
            tags: Vec::new(),
            queue: None,
            labels: towline_core::Labels::new(),
        };
        let node = Principal::Node(Self::NODE);
        running.apply(
            node.clone(),
            Command::Found {
                cluster: uuid::Uuid::from_u128(2),
                name: "test".into(),
                node_name: "a".into(),
                addresses: NodeAddresses::default(),
            },
        );
        running.apply(
            node,
            Command::NodeUp {
                node: Self::NODE,
                boot: BootId::from_uuid(uuid::Uuid::from_u128(3)),
                addresses: NodeAddresses::default(),
                version: "0".into(),
                capacity: 4,
                agents: vec![spec],
                labels: None,
                level: 0,
            },
        );
        let context: ContextId = "c".parse().unwrap();
        running.apply(
            Principal::Operator,
            Command::Submit(Box::new(Submission {
                task: Self::id(),
                fresh_context: context,
                agent,
                message: Message {
                    message_id: "m".parse().unwrap(),
                    context_id: None,
                    task_id: None,
                    role: Role::User,
                    parts: vec![Part::text("go")],
                    metadata: Metadata::new(),
                    extensions: Vec::new(),
                    reference_task_ids: Vec::new(),
                },
                prefer: Self::NODE,
                parent: None,
                hop: 0,
                deadline_ms: None,
                trace: TraceContext { trace_id: 1, span_id: 2, sampled: true },
                most_open: None,
                labels: towline_core::Labels::new(),
            })),
        );
        running.report(vec![OwnerWord::TurnStarted { span: TraceContext { trace_id: 1, span_id: 3, sampled: true } }]);
        running
    }

    fn task(&self) -> &Task {
        self.state.task(Self::id()).unwrap()
    }

    fn report(&mut self, words: Vec<OwnerWord>) {
        self.reported += 1;
        let epoch = self.task().lease.as_ref().unwrap().epoch;
        let report = OwnerReport { task: Self::id(), epoch, number: self.reported, words };
        self.apply(Principal::Node(Self::NODE), Command::Report(report));
    }

    fn apply(&mut self, by: Principal, command: Command) {
        self.index += 1;
        self.state.apply(Proposal { by, command }, Stamp { index: self.index, at: Timestamp(self.index) }).unwrap();
    }
}

use super::*;
use crate::{
    AgentSpec, BootId, Command, ContextId, Metadata, NodeAddresses, NodeId, Part, Placement, Proposal, Role, Stamp,
    StepNo, Timestamp, TraceContext,
};

const NODE: NodeId = NodeId(1);
const TRACE: TraceContext = TraceContext { trace_id: 1, span_id: 2, sampled: false };

/// A cluster of one node with the agents `short`, whose queue has two places, and `long`.
struct Log {
    state: State,
    index: u64,
}

impl Log {
    fn begin() -> Self {
        let mut log = Self { state: State::default(), index: 0 };
        let addresses = NodeAddresses { http: "http://a".into(), peer: "a:1".into() };
        let cluster = uuid::Uuid::from_u128(1);
        let found =
            Command::Found { cluster, name: "test".into(), node_name: "a".into(), addresses: addresses.clone() };
        log.apply(Principal::Node(NODE), found).unwrap();
        let spec = |name: &str, queue| AgentSpec {
            name: name.parse().unwrap(),
            description: String::new(),
            placement: Placement::EveryNode,
            tags: Vec::new(),
            queue,
            labels: crate::Labels::new(),
        };
        let agents = vec![spec("short", Some(2)), spec("long", None)];
        let boot = BootId::from_uuid(uuid::Uuid::from_u128(2));
        let version = "1".into();
        let level = Level::BOUNDS;
        let labels = None;
        let up = Command::NodeUp {
            node: NODE,
            boot,
            addresses,
            version,
            capacity: 8,
            agents,
            labels,
            level: level.number(),
        };
        log.apply(Principal::Node(NODE), up).unwrap();
        log.apply(Principal::Node(NODE), Command::Raise { level }).unwrap();
        log
    }

    fn apply(&mut self, by: Principal, command: Command) -> Result<(), Rejection> {
        self.index += 1;
        let stamp = Stamp { index: self.index, at: Timestamp(self.index) };
        self.state.apply(Proposal { by, command }, stamp).map(|_| ())
    }

    fn submit(&mut self, number: u64, agent: &str) -> Result<TaskId, Rejection> {
        self.submit_as(number, agent, |_| {})
    }

    fn submit_as(
        &mut self,
        number: u64,
        agent: &str,
        change: impl FnOnce(&mut Submission),
    ) -> Result<TaskId, Rejection> {
        let task = TaskId::from_uuid(uuid::Uuid::from_u128(u128::from(number)));
        let mut submission = Submission {
            task,
            fresh_context: ContextId::try_from(format!("c-{number}")).unwrap(),
            agent: agent.parse().unwrap(),
            message: message(number),
            prefer: NODE,
            parent: None,
            hop: 0,
            deadline_ms: None,
            trace: TRACE,
            most_open: None,
            labels: crate::Labels::new(),
        };
        change(&mut submission);
        self.apply(Principal::Operator, Command::Submit(Box::new(submission))).map(|()| task)
    }

    fn cancel(&mut self, task: TaskId) {
        self.apply(Principal::Operator, Command::Cancel { task }).unwrap();
    }
}

fn message(number: u64) -> Message {
    Message {
        message_id: format!("m-{number}").try_into().unwrap(),
        context_id: None,
        task_id: None,
        role: Role::User,
        parts: vec![Part::text("do it")],
        metadata: Metadata::new(),
        extensions: Vec::new(),
        reference_task_ids: Vec::new(),
    }
}

fn refused(result: Result<TaskId, Rejection>) -> (String, u64) {
    match result {
        Err(Rejection::Full { what, limit, retry_after_ms }) => {
            assert!(retry_after_ms > 0, "waiting helps");
            (what, limit)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_agent_takes_as_many_tasks_as_its_queue_has_places_and_one_more_when_one_has_ended() {
    let mut log = Log::begin();
    let first = log.submit(1, "short").unwrap();
    log.submit(2, "short").unwrap();
    assert_eq!(refused(log.submit(3, "short")), ("the queue of agent short".to_owned(), 2));
    log.submit(4, "long").unwrap();
    log.cancel(first);
    log.submit(3, "short").unwrap();
    assert_eq!(log.state.open_tasks_of(&"short".parse().unwrap()), 2);
}

#[test]
fn a_message_that_was_taken_is_answered_also_when_there_is_no_room_for_another() {
    let mut log = Log::begin();
    log.submit(1, "short").unwrap();
    log.submit(2, "short").unwrap();
    log.submit(2, "short").unwrap();
    assert_eq!(log.state.open_tasks_of(&"short".parse().unwrap()), 2);
}

#[test]
fn a_principal_has_as_many_open_tasks_as_its_door_says_and_what_they_delegate_is_not_counted() {
    let mut log = Log::begin();
    let three = |submission: &mut Submission| submission.most_open = Some(3);
    let first = log.submit_as(1, "long", three).unwrap();
    for number in 2..=3 {
        log.submit_as(number, "long", three).unwrap();
    }
    assert_eq!(refused(log.submit_as(4, "long", three)), ("the list of open tasks of operator".to_owned(), 3));
    let child = |submission: &mut Submission| {
        three(submission);
        submission.parent = Some(crate::ParentLink { task: first, step: StepNo(0) });
    };
    log.submit_as(5, "long", child).unwrap();
    log.submit_as(6, "long", |submission| submission.most_open = Some(4)).unwrap();
    // The child ends with its parent, and neither is counted twice.
    log.cancel(first);
    log.submit_as(7, "long", |submission| submission.most_open = Some(4)).unwrap();
    assert_eq!(refused(log.submit_as(8, "long", |submission| submission.most_open = Some(4))).1, 4);
}

#[test]
fn a_state_that_has_not_counted_yet_counts_as_one_that_did_all_along() {
    let mut log = Log::begin();
    log.submit(1, "short").unwrap();
    let ended = log.submit(2, "short").unwrap();
    log.cancel(ended);
    log.submit(3, "short").unwrap();
    log.state.open = OpenTasks::default();
    assert_eq!(refused(log.submit(4, "short")).1, 2);
    log.submit(5, "long").unwrap();
}

#[test]
fn metadata_above_its_limit_is_refused_wherever_it_stands() {
    let long = "x".repeat(limits::MAX_METADATA_BYTES);
    let changes: [fn(&mut Message, String); 5] = [
        |message, long| drop(message.metadata.insert("a".into(), long.into())),
        |message, long| message.extensions = vec![long, "x".into()],
        |message, long| message.reference_task_ids = vec![long, "x".into()],
        |message, long| drop(message.parts[0].metadata.insert("a".into(), long.into())),
        |message, long| message.parts[0].filename = Some(long + "x"),
    ];
    for change in changes {
        let mut log = Log::begin();
        let result = log.submit_as(1, "long", |submission| change(&mut submission.message, long.clone()));
        let Err(Rejection::TooLarge { what, limit }) = result else { panic!("{result:?}") };
        assert_eq!((what.as_str(), limit), ("metadata of the message in bytes", limits::MAX_METADATA_BYTES as u64));
    }
}

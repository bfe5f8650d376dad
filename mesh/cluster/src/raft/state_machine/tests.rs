//! What entries, restarts and snapshots do to the state of a node.

use std::{collections::BTreeMap, time::Duration};

use openraft::RaftSnapshotBuilder as _;
use tempfile::TempDir;
use tokio::time::timeout;
use towline_core::{
    AgentSpec, BootId, Command, Message, MessageId, NodeAddresses, NodeId, Part, Placement, Principal, Proposal,
    Rejection, Role, Submission, Timestamp, TraceContext,
};

use super::*;
use crate::{
    raft::{RaftLeaderId, RaftMembership},
    wire::{self, LoggedProposal},
};

#[tokio::test]
async fn an_entry_is_answered_with_what_the_core_said() {
    let node = Node::new(0);

    let founded = node.apply(1, found());
    let refused = node.apply(2, submit(7, "nobody"));

    assert!(matches!(founded.outcome, Some(Ok(_))));
    assert!(matches!(refused.outcome, Some(Err(Rejection::UnknownAgent { .. }))));
    assert_eq!(refused.index, 2);
    assert_eq!(*node.view.applied().borrow(), 2);
}

#[tokio::test]
async fn effects_of_entries_that_were_in_the_log_at_start_are_not_repeated() {
    let node = Node::new(2);
    let mut effects = node.view.effects();
    node.apply(1, found());
    node.apply(2, node_up());
    assert!(effects.try_recv().is_err());

    node.apply(3, submit(7, "reader"));

    assert_eq!(effects.try_recv().unwrap(), Effect::Changed { task: task_id(7) });
    assert!(matches!(effects.try_recv().unwrap(), Effect::Start { .. }));
}

#[tokio::test]
async fn whoever_waits_for_an_index_is_woken_when_it_is_applied_and_not_before() {
    let node = Node::new(0);
    node.apply(1, found());
    node.view.wait_applied(1).await;
    let mut third = Box::pin(node.view.wait_applied(3));
    let mut given_up = Box::pin(node.view.wait_applied(3));
    assert!(futures::poll!(&mut third).is_pending() && futures::poll!(&mut given_up).is_pending());
    drop(given_up);

    node.apply(2, node_up());
    assert!(futures::poll!(&mut third).is_pending());
    node.apply(3, submit(7, "reader"));

    timeout(Duration::from_secs(5), third).await.unwrap();
}

#[tokio::test]
async fn a_watch_wakes_on_a_change_that_came_before_it_was_asked() {
    let node = Node::new(0);
    node.apply(1, found());
    node.apply(2, node_up());
    let mut watch = node.view.watch_task(task_id(7));
    let mut other = node.view.watch_task(task_id(8));

    node.apply(3, submit(7, "reader"));

    timeout(Duration::from_secs(5), watch.changed()).await.unwrap();
    assert!(timeout(Duration::from_millis(20), watch.changed()).await.is_err());
    assert!(timeout(Duration::from_millis(20), other.changed()).await.is_err());
}

#[tokio::test]
async fn the_last_watch_of_a_task_leaves_nothing_behind() {
    let node = Node::new(0);
    let first = node.view.watch_task(task_id(7));
    let second = node.view.watch_task(task_id(7));

    drop(first);
    assert_eq!(node.view.0.watched.lock().len(), 1);
    drop(second);

    assert!(node.view.0.watched.lock().is_empty());
}

#[tokio::test]
async fn a_restart_begins_at_the_snapshot() {
    let mut node = Node::with_task();
    node.machine.0.apply(vec![membership(4)]).unwrap();
    node.build_snapshot().await;

    let state = node.view.read(State::clone);
    let dir = node.stop();
    let (mut machine, view) = StateMachine::open(dir.path(), 4).unwrap();

    let (last, members) = machine.applied_state().await.unwrap();
    assert_eq!(last, Some(log_id(4)));
    assert_eq!(members.membership().get_node(&1).unwrap().peer, "127.0.0.1:7421");
    assert_eq!(view.read(State::clone), state);
    assert_eq!(*view.applied().borrow(), 4);
}

#[tokio::test]
async fn an_installed_snapshot_gives_the_same_state_and_the_effects_that_led_there() {
    let mut leader = Node::with_task();
    let snapshot = leader.build_snapshot().await;
    let mut follower = Node::new(0);
    let (mut effects, mut watch) = (follower.view.effects(), follower.view.watch_task(task_id(7)));

    follower.machine.install_snapshot(&snapshot.meta, snapshot.snapshot).await.unwrap();

    assert_eq!(follower.view.read(State::clone), leader.view.read(State::clone));
    assert_eq!(effects.try_recv().unwrap(), Effect::PlacementChanged);
    assert_eq!(effects.try_recv().unwrap(), Effect::SessionsEnded);
    assert_eq!(effects.try_recv().unwrap(), Effect::Changed { task: task_id(7) });
    assert!(matches!(effects.try_recv().unwrap(), Effect::Start { .. }));
    timeout(Duration::from_secs(5), watch.changed()).await.unwrap();
    assert_eq!(follower.machine.get_current_snapshot().await.unwrap().unwrap().meta, snapshot.meta);
}

#[tokio::test]
async fn a_snapshot_that_covers_something_else_is_refused() {
    let mut leader = Node::with_task();
    let snapshot = leader.build_snapshot().await;
    let mut follower = Node::new(0);
    let announced = RaftSnapshotMeta { last_log_id: Some(log_id(9)), ..snapshot.meta };

    let refused = follower.machine.install_snapshot(&announced, snapshot.snapshot).await.unwrap_err();

    assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    assert_eq!(follower.view.read(State::clone), State::default());
    assert!(follower.machine.get_current_snapshot().await.unwrap().is_none());
}

#[tokio::test]
async fn a_snapshot_damaged_on_the_way_is_refused() {
    let mut leader = Node::with_task();
    let snapshot = leader.build_snapshot().await;
    let length = usize::try_from(snapshot.snapshot.length()).unwrap();
    let mut bytes = snapshot.snapshot.piece(0, length).unwrap().to_vec();
    assert_eq!(bytes, *wire::encode_snapshot(&snapshot.meta, &leader.view.read(State::clone)).unwrap());
    for position in [0, 9, 20, 60, bytes.len() - 1] {
        bytes[position] ^= 1;
        assert!(SnapshotFile::from_bytes(bytes.clone().into()).is_err(), "flipped at {position}");
        bytes[position] ^= 1;
    }
    assert!(SnapshotFile::from_bytes(bytes.into()).is_ok());
}

#[tokio::test]
async fn a_snapshot_can_be_read_for_as_long_as_it_is_held() {
    let mut node = Node::with_ended_task();
    let first = node.build_snapshot().await;
    let (length, state) = (usize::try_from(first.snapshot.length()).unwrap(), node.view.read(State::clone));
    let before = first.snapshot.piece(0, length).unwrap();
    node.apply(5, archive());
    node.build_snapshot().await;

    assert_eq!(first.snapshot.piece(0, length).unwrap(), before);
    assert_eq!(first.snapshot.decode().unwrap().1, state);
}

#[tokio::test]
async fn a_snapshot_that_arrives_takes_the_place_of_the_one_that_was_there_or_leaves_nothing() {
    let mut leader = Node::with_task();
    let snapshot = leader.build_snapshot().await;
    let mut follower = Node::new(0);
    let bytes = snapshot.snapshot.piece(0, usize::try_from(snapshot.snapshot.length()).unwrap()).unwrap();

    let mut torn = follower.view.incoming().unwrap();
    torn.take(&bytes[..bytes.len() - 1]).unwrap();
    assert!(torn.finish().is_err());
    drop(follower.view.incoming().unwrap());
    assert_eq!(follower.files(), ["finished.redb"]);

    let mut incoming = follower.view.incoming().unwrap();
    bytes.chunks(100).for_each(|piece| incoming.take(piece).unwrap());
    let arrived = incoming.finish().unwrap();
    follower.machine.install_snapshot(&snapshot.meta, arrived).await.unwrap();

    assert_eq!(follower.files(), ["finished.redb", "state.snapshot"]);
    let follower = Node::on(follower.stop());
    assert_eq!(follower.view.read(State::clone), leader.view.read(State::clone));
}

#[tokio::test]
async fn what_arrived_before_the_process_ended_is_removed_at_the_next_start() {
    let node = Node::with_task();
    std::mem::forget(node.view.incoming().unwrap());
    assert_eq!(node.files().len(), 2);
    assert_eq!(Node::on(node.stop()).files(), ["finished.redb"]);
}

#[tokio::test]
async fn a_snapshot_that_was_built_slowly_does_not_replace_a_newer_one() {
    let mut node = Node::with_task();
    let newer = node.build_snapshot().await;
    let older = RaftSnapshotMeta { last_log_id: Some(log_id(1)), ..newer.meta.clone() };
    let file = SnapshotFile::encode(&older, &State::default()).unwrap();

    node.machine.0.save(&older, &file).unwrap();

    assert_eq!(node.machine.get_current_snapshot().await.unwrap().unwrap().meta, newer.meta);
}

#[tokio::test]
async fn an_entry_of_a_newer_version_stops_the_node() {
    let node = Node::new(0);
    let mut encoded = wire::encode_proposal(&found()).unwrap().to_vec();
    let at = encoded.windows(5).position(|window| window == b"Found").unwrap();
    encoded[at..at + 5].copy_from_slice(b"Sound");
    let logged = wire::logged_from_bytes(Timestamp(1), encoded.into());

    let refused = node.machine.0.apply(vec![RaftEntry { log_id: log_id(1), payload: EntryPayload::Normal(logged) }]);

    assert!(refused.unwrap_err().to_string().contains("upgrade this node"));
}

#[tokio::test]
async fn an_archived_task_is_in_the_archive_and_not_in_the_state_also_after_a_restart() {
    let node = Node::with_ended_task();
    let record = node.view.read(|state| state.task(task_id(7)).cloned());

    node.apply(5, archive());

    assert!(node.view.read(|state| state.task(task_id(7)).is_none()));
    assert_eq!(node.archived(), record);
    let dir = node.stop();
    let node = Node::on(dir);
    for (index, proposal) in (1..).zip([found(), node_up(), submit(7, "reader"), cancel(), archive()]) {
        node.apply(index, proposal);
    }
    assert_eq!(node.archived(), record, "entries that come again change nothing");
}

#[tokio::test]
async fn a_snapshot_is_saved_behind_the_archive_that_belongs_to_it() {
    let mut node = Node::with_ended_task();
    node.apply(5, archive());
    let record = node.archived();
    node.build_snapshot().await;

    // As after the end of the process: what it would still have written is not there.
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(node.dir.path()).unwrap() {
        let path = file.unwrap().path();
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }

    let restarted = Node::on(copy);
    assert_eq!(restarted.view.read(State::archived_count), 1);
    assert!(record.is_some());
    assert_eq!(restarted.archived(), record);
}

#[tokio::test]
async fn a_sweep_takes_the_record_with_the_stub() {
    let node = Node::with_ended_task();
    node.apply(5, archive());
    let late = Timestamp(2_000 + towline_core::limits::TERMINAL_RETENTION_MS);
    let sweep = Proposal { by: Principal::Node(NodeId(1)), command: Command::Sweep };
    node.apply(6, sweep.clone());
    assert!(node.archived().is_some(), "it is young");

    node.apply_at(7, late, sweep);

    assert_eq!(node.view.read(|state| state.record(task_id(7))), None);
    assert_eq!(node.archived(), None);
}

#[tokio::test]
async fn only_a_node_sends_records_to_the_archive() {
    let node = Node::with_ended_task();
    let refused = node.apply(5, Proposal { by: Principal::Operator, ..archive() });
    assert!(matches!(refused.outcome, Some(Err(Rejection::NotAllowed { .. }))));
    assert_eq!(node.archived(), None);
}

#[tokio::test]
async fn a_task_that_was_archived_behind_a_snapshot_stops_where_it_ran() {
    let mut leader = Node::with_ended_task();
    leader.apply(5, archive());
    let snapshot = leader.build_snapshot().await;
    let mut follower = Node::with_task();
    let mut effects = follower.view.effects();

    follower.machine.install_snapshot(&snapshot.meta, snapshot.snapshot).await.unwrap();

    let told: Vec<Effect> = std::iter::from_fn(|| effects.try_recv().ok()).collect();
    assert!(told.contains(&Effect::Changed { task: task_id(7) }), "{told:?}");
    assert!(told.contains(&Effect::Stop { task: task_id(7), node: NodeId(1) }), "{told:?}");
}

// ---- helpers ----

fn cancel() -> Proposal {
    Proposal { by: Principal::Operator, command: Command::Cancel { task: task_id(7) } }
}

fn archive() -> Proposal {
    Proposal { by: Principal::Node(NodeId(1)), command: Command::Archive { tasks: vec![task_id(7)] } }
}

struct Node {
    dir: TempDir,
    machine: StateMachine,
    view: StateView,
}

impl Node {
    fn new(quiet_through: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (machine, view) = StateMachine::open(dir.path(), quiet_through).unwrap();
        Self { dir, machine, view }
    }

    fn on(dir: TempDir) -> Self {
        let (machine, view) = StateMachine::open(dir.path(), 0).unwrap();
        Self { dir, machine, view }
    }

    /// Ends without a word.
    fn stop(self) -> TempDir {
        let Self { dir, machine, view } = self;
        drop((machine, view));
        dir
    }

    /// Four entries: as [`Node::with_task`], and the task has ended.
    fn with_ended_task() -> Self {
        let node = Self::with_task();
        node.apply(4, cancel());
        node
    }

    fn files(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<String> =
            files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn archived(&self) -> Option<Task> {
        self.view.finished().get(task_id(7)).unwrap().map(|task| Task::clone(&task))
    }

    /// Three entries: founded, up, one task.
    fn with_task() -> Self {
        let node = Self::new(0);
        node.apply(1, found());
        node.apply(2, node_up());
        node.apply(3, submit(7, "reader"));
        node
    }

    fn apply(&self, index: u64, proposal: Proposal) -> ApplyResponse {
        self.apply_at(index, Timestamp(1_000 + index), proposal)
    }

    fn apply_at(&self, index: u64, at: Timestamp, proposal: Proposal) -> ApplyResponse {
        let logged = LoggedProposal::new(at, None, &proposal).unwrap();
        let entry = RaftEntry { log_id: log_id(index), payload: EntryPayload::Normal(logged) };
        self.machine.0.apply(vec![entry]).unwrap().remove(0)
    }

    async fn build_snapshot(&mut self) -> RaftSnapshot {
        self.machine.get_snapshot_builder().await.build_snapshot().await.unwrap()
    }
}

fn log_id(index: u64) -> RaftLogId {
    RaftLogId::new(RaftLeaderId { term: 1, node_id: 1 }, index)
}

fn membership(index: u64) -> RaftEntry {
    let nodes = BTreeMap::from([(1, addresses())]);
    let membership = RaftMembership::new(vec![[1].into()], nodes).unwrap();
    RaftEntry { log_id: log_id(index), payload: EntryPayload::Membership(membership) }
}

fn addresses() -> NodeAddresses {
    NodeAddresses { http: "http://127.0.0.1:7420".into(), peer: "127.0.0.1:7421".into() }
}

fn task_id(number: u128) -> TaskId {
    TaskId::from_uuid(uuid::Uuid::from_u128(number))
}

fn found() -> Proposal {
    let command = Command::Found {
        cluster: uuid::Uuid::from_u128(1),
        name: "prod".into(),
        node_name: "a".into(),
        addresses: addresses(),
    };
    Proposal { by: Principal::Node(NodeId(1)), command }
}

fn node_up() -> Proposal {
    let reader = AgentSpec {
        name: "reader".parse().unwrap(),
        description: "Reads one file.".into(),
        placement: Placement::EveryNode,
        tags: Vec::new(),
        queue: None,
        labels: towline_core::Labels::new(),
    };
    let command = Command::NodeUp {
        node: NodeId(1),
        boot: BootId::from_uuid(uuid::Uuid::from_u128(2)),
        addresses: addresses(),
        version: "0.1.0".into(),
        capacity: 8,
        agents: vec![reader],
        labels: None,
        level: 0,
    };
    Proposal { by: Principal::Node(NodeId(1)), command }
}

fn submit(task: u128, agent: &str) -> Proposal {
    let message = Message {
        message_id: MessageId::try_from(format!("message-{task}")).unwrap(),
        context_id: None,
        task_id: None,
        role: Role::User,
        parts: vec![Part::text("read a file")],
        metadata: BTreeMap::new(),
        extensions: Vec::new(),
        reference_task_ids: Vec::new(),
    };
    let submission = Submission {
        task: task_id(task),
        fresh_context: "context-1".parse().unwrap(),
        agent: agent.parse().unwrap(),
        message,
        prefer: NodeId(1),
        parent: None,
        hop: 0,
        deadline_ms: None,
        trace: TraceContext { trace_id: 1, span_id: 2, sampled: true },
        most_open: None,
        labels: towline_core::Labels::new(),
    };
    Proposal { by: Principal::Operator, command: Command::Submit(Box::new(submission)) }
}

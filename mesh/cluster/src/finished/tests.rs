//! What the archive of a node keeps, through restarts and damage.

use std::collections::BTreeMap;

use redb::Database;
use tempfile::TempDir;
use towline_core::{
    AgentSpec, BootId, Message, MessageId, NodeAddresses, Part, Placement, Principal, Proposal, Role, Stamp,
    Submission, Timestamp, TraceContext,
};

use super::{backend::DiskBackend, *};
use crate::wal::disk::OsDisk;

#[test]
fn a_record_can_be_read_before_it_is_written_and_after() {
    let folder = Folder::new();
    let (store, task) = (folder.open(), records(1).remove(0));

    store.put(vec![task.clone()]);
    assert_eq!(store.get(task.id).unwrap().as_ref(), Some(&task));
    store.write_out().unwrap();

    assert_eq!(store.get(task.id).unwrap().as_ref(), Some(&task));
    drop(store);
    let store = folder.open();
    assert!(!store.was_made());
    assert_eq!(store.get(task.id).unwrap().as_ref(), Some(&task));
    assert_eq!(store.bytes(task.id).unwrap(), Some(record::encode(&task).unwrap()));
}

#[test]
fn more_than_is_written_together_is_written() {
    let folder = Folder::new();
    let (store, tasks) = (folder.open(), records(600));
    store.put(tasks.clone());
    store.write_out().unwrap();
    drop(store);

    let store = folder.open();
    let mut ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
    assert!(store.lacks(ids.clone()).unwrap().is_empty());
    ids.sort_by_key(|id| (id.vshard(), *id));
    let first = store.ids_behind(None, 400).unwrap();
    let rest = store.ids_behind(first.last().copied(), 400).unwrap();
    assert_eq!([first, rest].concat(), ids);
}

#[test]
fn a_forgotten_record_is_gone_before_it_is_written_and_after() {
    let folder = Folder::new();
    let (store, tasks) = (folder.open(), records(2));
    store.put(tasks.clone());
    store.write_out().unwrap();

    store.forget([tasks[0].id]);
    assert_eq!(store.get(tasks[0].id).unwrap(), None);
    store.write_out().unwrap();

    assert_eq!(store.lacks(vec![tasks[0].id, tasks[1].id]).unwrap(), [tasks[0].id]);
    drop(store);
    assert_eq!(folder.open().ids_behind(None, 10).unwrap(), [tasks[1].id]);
}

#[test]
fn a_record_with_any_byte_changed_or_of_another_task_is_refused() {
    let tasks = records(2);
    let mut bytes = record::encode(&tasks[0]).unwrap();
    assert_eq!(record::decode(tasks[0].id, &bytes).unwrap(), *tasks[0]);
    assert!(record::decode(tasks[1].id, &bytes).is_err());
    for at in 0..bytes.len() {
        bytes[at] ^= 1;
        assert!(record::check(tasks[0].id, &bytes).is_err(), "byte {at}");
        bytes[at] ^= 1;
        assert!(record::check(tasks[0].id, &bytes[..at]).is_err(), "cut at {at}");
    }
}

#[tokio::test]
async fn a_damaged_record_is_missing_and_asked_for() {
    let folder = Folder::new();
    let (store, tasks) = (folder.open(), records(2));
    store.put(tasks.clone());
    store.write_out().unwrap();
    store.spoil(tasks[0].id);

    assert_eq!(store.get(tasks[0].id).unwrap(), None);
    assert_eq!(store.lacks(vec![tasks[0].id, tasks[1].id]).unwrap(), [tasks[0].id]);
    store.wants_mending().await;
    store.put(vec![tasks[0].clone()]);
    store.write_out().unwrap();
    assert_eq!(store.get(tasks[0].id).unwrap().as_ref(), Some(&tasks[0]));
}

#[test]
fn a_damaged_file_is_set_aside_and_begun_anew() {
    let folder = Folder::new();
    let path = folder.0.path().join("finished.redb");
    std::fs::write(&path, vec![7; 100_000]).unwrap();

    let store = folder.open();

    assert!(store.was_made());
    assert_eq!(std::fs::metadata(folder.0.path().join("finished.redb.damaged")).unwrap().len(), 100_000);
    let task = records(1).remove(0);
    store.put(vec![task.clone()]);
    store.write_out().unwrap();
    assert_eq!(store.get(task.id).unwrap(), Some(task));
}

#[test]
fn a_file_with_any_page_damaged_is_read_and_written_without_a_panic() {
    const PAGE: usize = 4096;
    let folder = Folder::new();
    let mut tasks = records(100);
    let fresh = tasks.pop().unwrap();
    let store = folder.open();
    // Several writes: the file has pages of earlier trees as well.
    for some in tasks.chunks(40) {
        store.put(some.to_vec());
        store.write_out().unwrap();
    }
    drop(store);
    let whole = std::fs::read(folder.0.path().join("finished.redb")).unwrap();
    let used = whole.chunks(PAGE).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0));
    let used: Vec<usize> = used.map(|(number, _)| number).collect();
    assert!(used.len() > 10, "{} pages", used.len());

    for (number, pattern) in used.into_iter().flat_map(|number| (0..4).map(move |pattern| (number, pattern))) {
        let (folder, mut damaged) = (Folder::new(), whole.clone());
        let page = &mut damaged[number * PAGE..][..PAGE];
        match pattern {
            0 => page.fill(0),
            1 => page.fill(0xff),
            2 => page[..PAGE / 2].fill(7),
            _ => (0..PAGE).for_each(|at| page[at] = page[at].wrapping_mul(31).wrapping_add((at % 251) as u8)),
        }
        std::fs::write(folder.0.path().join("finished.redb"), damaged).unwrap();
        let store = folder.open();
        store.ids_behind(None, 1_000).unwrap();
        for task in &tasks {
            let read = store.get(task.id).unwrap();
            assert!(read.is_none_or(|read| read == *task), "page {number}, pattern {pattern}");
        }
        // Fetched from another node.
        store.put(tasks.clone());
        store.put(vec![fresh.clone()]);
        store.write_out().unwrap();
        store.close();
        let store = folder.open();
        assert_eq!(store.get(fresh.id).unwrap().as_ref(), Some(&fresh), "page {number}, pattern {pattern}");
    }
}

#[test]
fn what_waits_to_be_written_is_bounded() {
    let folder = Folder::new();
    let store = folder.open();
    let task = records(1).remove(0);
    assert!(!store.is_full());
    store.put(vec![Arc::new(Task { bytes: 70 * 1024 * 1024, ..Task::clone(&task) })]);
    assert!(store.is_full());
    store.put(vec![task]);
    assert!(!store.is_full(), "the same task takes no room twice");
}

#[test]
fn a_disk_of_another_kind_keeps_what_was_committed() {
    let folder = Folder::new();
    let path = folder.0.path().join("other.redb");
    const TABLE: redb::TableDefinition<u32, u32> = redb::TableDefinition::new("t");
    let open = || {
        let backend = DiskBackend::open(Arc::new(OsDisk), &path).unwrap();
        Database::builder().create_with_backend(backend).unwrap()
    };
    let database = open();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(TABLE).unwrap().insert(1, 2).unwrap();
    transaction.commit().unwrap();
    drop(database);

    use redb::ReadableDatabase as _;
    let table = open().begin_read().unwrap().open_table(TABLE).unwrap();
    assert_eq!(table.get(1).unwrap().unwrap().value(), 2);
}

// ---- helpers ----

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self) -> Store {
        Store::open(self.0.path(), Arc::new(OsDisk)).unwrap()
    }
}

/// Records of so many tasks.
fn records(count: u64) -> Vec<Arc<Task>> {
    let mut world = World::new();
    for number in 0..count {
        world.ended(number);
    }
    let mut records = Vec::new();
    while records.len() < count as usize {
        records.extend(world.archive());
    }
    records
}

/// A state that commands are applied to.
pub(crate) struct World {
    pub(crate) state: State,
    index: u64,
}

impl World {
    pub(crate) fn new() -> Self {
        let mut world = Self { state: State::default(), index: 0 };
        let addresses = NodeAddresses { http: "http://127.0.0.1:7420".into(), peer: "127.0.0.1:7421".into() };
        let node = Principal::Node(NodeId(1));
        let found = Command::Found {
            cluster: uuid::Uuid::from_u128(1),
            name: "prod".into(),
            node_name: "a".into(),
            addresses: addresses.clone(),
        };
        world.apply(node.clone(), found);
        let reader = AgentSpec {
            name: "reader".parse().unwrap(),
            description: "Reads one file.".into(),
            placement: Placement::EveryNode,
            tags: Vec::new(),
            queue: None,
            labels: towline_core::Labels::new(),
        };
        let boot = BootId::from_uuid(uuid::Uuid::from_u128(2));
        let up = Command::NodeUp {
            node: NodeId(1),
            boot,
            addresses,
            version: "0.1.0".into(),
            capacity: 8,
            agents: vec![reader],
            labels: None,
            level: 0,
        };
        world.apply(node, up);
        world
    }

    fn apply(&mut self, by: Principal, command: Command) {
        self.index += 1;
        let stamp = Stamp { index: self.index, at: Timestamp(1_000 + self.index) };
        self.state.apply(Proposal { by, command }, stamp).unwrap();
    }

    /// A task that has ended.
    pub(crate) fn ended(&mut self, number: u64) -> TaskId {
        let task = TaskId::from_uuid(uuid::Uuid::from_u128(u128::from(number) * 7 + 1));
        let message = Message {
            message_id: MessageId::try_from(format!("message-{number}")).unwrap(),
            context_id: None,
            task_id: None,
            role: Role::User,
            parts: vec![Part::text("read a file")],
            metadata: BTreeMap::new(),
            extensions: Vec::new(),
            reference_task_ids: Vec::new(),
        };
        let submission = Submission {
            task,
            fresh_context: "context-1".parse().unwrap(),
            agent: "reader".parse().unwrap(),
            message,
            prefer: NodeId(1),
            parent: None,
            hop: 0,
            deadline_ms: None,
            trace: TraceContext { trace_id: 1, span_id: 2, sampled: true },
            most_open: None,
            labels: towline_core::Labels::new(),
        };
        self.apply(Principal::Operator, Command::Submit(Box::new(submission)));
        self.apply(Principal::Operator, Command::Cancel { task });
        task
    }

    /// Sends what has ended to the archive, as much as one entry takes.
    pub(crate) fn archive(&mut self) -> Vec<Arc<Task>> {
        let tasks = self.state.archivable(self.state.last().at, 0);
        let records = self.state.to_archive(&tasks);
        self.apply(Principal::Node(NodeId(1)), Command::Archive { tasks });
        records
    }
}

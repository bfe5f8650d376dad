//! A saved snapshot is taken whole and unchanged, or refused with what is wrong.

use towline_core::{Command, Proposal, Stamp, Timestamp};

use super::*;
use crate::raft::StateMachine;

#[test]
fn a_saved_state_comes_back_as_it_was() {
    let (summary, state) = read(saved().as_slice()).unwrap();

    assert_eq!(state, founded());
    assert_eq!((summary.index, summary.cluster_name.as_str()), (7, "prod"));
}

#[test]
fn a_state_of_many_chunks_comes_back_as_it_was() {
    let mut bytes = Vec::new();
    let state: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let mut writer = ArchiveWriter::begin(&mut bytes, &head(), FORMAT).unwrap();
    writer.write_all(&state).unwrap();
    writer.finish().unwrap();

    let (mut reader, _) = ArchiveReader::begin(bytes.as_slice()).unwrap();
    let mut read = Vec::new();
    reader.read_to_end(&mut read).unwrap();

    assert!(read == state, "{} of {} bytes", read.len(), state.len());
}

#[test]
fn a_file_cut_at_any_byte_is_refused_as_torn() {
    let whole = saved();
    for cut in 0..whole.len() {
        let refused = read(&whole[..cut]).unwrap_err();
        let expected = if cut < 8 {
            matches!(refused, ArchiveError::Mark)
        } else {
            matches!(refused, ArchiveError::Torn { at } if at == cut as u64)
        };
        assert!(expected, "cut at {cut}: {refused}");
    }
}

#[test]
fn a_file_with_any_bit_changed_is_refused() {
    let whole = saved();
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut edited = whole.clone();
            edited[at] ^= 1 << bit;
            assert!(read(edited.as_slice()).is_err(), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn a_file_with_something_behind_its_end_is_refused() {
    let longer = [saved(), b"x".to_vec()].concat();
    assert!(read(longer.as_slice()).unwrap_err().to_string().contains("behind its end mark"));
}

#[test]
fn the_refusal_says_what_is_wrong() {
    let mut edited = saved();
    let at = edited.len() - 60;
    edited[at] ^= 1;
    assert!(read(edited.as_slice()).unwrap_err().to_string().contains("damaged or was edited"));
    assert!(read(b"not a snapshot at all".as_slice()).unwrap_err().to_string().contains("no saved snapshot"));
}

#[test]
fn a_restored_folder_belongs_to_a_new_cluster_whose_log_begins_behind_what_was_saved() {
    let folder = tempfile::tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("saved"));
    std::fs::write(&file, saved()).unwrap();

    let (identity, _) = restore(&data, &file, "again", "n", addresses()).unwrap();

    let (_, view) = StateMachine::open(&data.join("snapshots"), 0).unwrap();
    assert_eq!(identity.node, NodeId(8));
    assert_ne!(identity.cluster, Uuid::from_u128(1));
    assert_eq!(*view.applied().borrow(), 8);
    assert_eq!(view.read(|state| state.cluster().map(|(id, _)| id)), Some(identity.cluster));
    assert!(matches!(restore(&data, &file, "again", "n", addresses()), Err(ClusterError::Occupied { .. })));
}

#[test]
fn the_content_that_a_state_names_is_restored_with_it() {
    let content = vec![7; 3_000_000];
    let folder = tempfile::tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("saved"));
    std::fs::write(&file, saved_with(&content, |_, _| content.clone())).unwrap();

    check(&file).unwrap();
    restore(&data, &file, "again", "n", addresses()).unwrap();

    let store = Store::open(&data.join("blobs")).unwrap();
    let reader = store.open_blob(hash_of(&content)).unwrap();
    assert_eq!(reader.length(), content.len() as u64);
    assert!(reader.group(2).unwrap() == content[2 * 1024 * 1024..]);
}

#[test]
fn a_file_without_the_content_that_its_state_names_is_refused() {
    let content = vec![7; 20_000];
    let folder = tempfile::tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("saved"));
    let mut without = Vec::new();
    let mut writer = ArchiveWriter::begin(&mut without, &head(), FORMAT_WITH_BLOBS).unwrap();
    naming(&content).serialize(&mut rmp_serde::Serializer::new(&mut writer).with_struct_map()).unwrap();
    writer.finish().unwrap();
    assert!(matches!(read(without.as_slice()), Err(ArchiveError::Blob { .. })));

    std::fs::write(&file, saved_with(&content, |_, _| b"something else".to_vec())).unwrap();
    let refused = restore(&data, &file, "again", "n", addresses()).unwrap_err();
    assert!(matches!(refused, ClusterError::Archive(ArchiveError::Blob { .. })), "{refused}");
    assert!(membership::identity(&data).unwrap().is_none(), "the folder is no node's");
}

#[test]
fn a_refused_file_leaves_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("saved"));
    std::fs::write(&file, &saved()[..100]).unwrap();

    assert!(matches!(restore(&data, &file, "again", "n", addresses()), Err(ClusterError::Archive(_))));
    assert!(!data.exists());
}

#[test]
fn the_records_of_archived_tasks_are_restored_with_the_state() {
    let folder = tempfile::tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("saved"));
    let (state, tasks) = with_archived(40);
    let record = |id| finished::encode_record(&tasks[&id]).map_err(io::Error::other);
    let mut bytes = Vec::new();
    write(&head(), &state, Beside { content: |_, _| Vec::new(), record }, &mut bytes).unwrap();
    std::fs::write(&file, bytes).unwrap();

    check(&file).unwrap();
    restore(&data, &file, "again", "n", addresses()).unwrap();

    let (_, view) = StateMachine::open(&data.join("snapshots"), 0).unwrap();
    assert_eq!(view.read(State::archived_count), 40);
    for (id, task) in &tasks {
        assert_eq!(view.finished().get(*id).unwrap().as_ref(), Some(task));
    }
}

#[test]
fn a_file_without_the_record_of_an_archived_task_or_with_anothers_is_refused() {
    let (state, tasks) = with_archived(2);
    let mut without = Vec::new();
    let mut writer = ArchiveWriter::begin(&mut without, &head(), FORMAT_WITH_RECORDS).unwrap();
    state.serialize(&mut rmp_serde::Serializer::new(&mut writer).with_struct_map()).unwrap();
    writer.finish().unwrap();
    assert!(matches!(read(without.as_slice()), Err(ArchiveError::Record { .. })));

    let folder = tempfile::tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("saved"));
    let first = tasks.values().next().unwrap();
    let record = |_| finished::encode_record(first).map_err(io::Error::other);
    let mut bytes = Vec::new();
    write(&head(), &state, Beside { content: |_, _| Vec::new(), record }, &mut bytes).unwrap();
    std::fs::write(&file, bytes).unwrap();
    let refused = restore(&data, &file, "again", "n", addresses()).unwrap_err();
    assert!(matches!(refused, ClusterError::Archive(ArchiveError::Record { .. })), "{refused}");
}

// ---- helpers ----

fn no_record(_: TaskId) -> io::Result<Vec<u8>> {
    Err(io::Error::other("no task is archived"))
}

/// A state with so many archived tasks, and their records.
fn with_archived(count: u64) -> (State, BTreeMap<TaskId, Arc<towline_core::Task>>) {
    let mut world = finished::tests::World::new();
    for number in 0..count {
        world.ended(number);
    }
    let records = world.archive();
    (world.state, records.into_iter().map(|task| (task.id, task)).collect())
}

fn saved() -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&head(), &founded(), Beside { content: |_, _| Vec::new(), record: no_record }, &mut bytes).unwrap();
    bytes
}

fn saved_with(named: &[u8], content: impl Fn(BlobHash, u64) -> Vec<u8>) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&head(), &naming(named), Beside { content, record: no_record }, &mut bytes).unwrap();
    bytes
}

/// A state in which an upload names content.
fn naming(content: &[u8]) -> State {
    let mut state = founded();
    let command = Command::Upload { hash: hash_of(content), length: content.len() as u64 };
    let by = towline_core::Principal::Operator;
    state.apply(Proposal { by, command }, Stamp { index: 8, at: Timestamp(2_000) }).unwrap();
    state
}

fn hash_of(content: &[u8]) -> BlobHash {
    BlobHash::from_bytes(*blake3::hash(content).as_bytes())
}

fn head() -> v1::ArchiveHead {
    v1::ArchiveHead {
        cluster: Uuid::from_u128(1).as_bytes().to_vec().into(),
        cluster_name: "prod".into(),
        index: 7,
        saved_at_ms: 1_764_460_800_000,
        version: "0.1.0".into(),
        tasks: 0,
    }
}

fn founded() -> State {
    let mut state = State::default();
    let command = Command::Found {
        cluster: Uuid::from_u128(1),
        name: "prod".into(),
        node_name: "a".into(),
        addresses: addresses(),
    };
    let by = towline_core::Principal::Node(NodeId(1));
    state.apply(Proposal { by, command }, Stamp { index: 7, at: Timestamp(1_000) }).unwrap();
    state
}

fn addresses() -> NodeAddresses {
    NodeAddresses { http: "http://127.0.0.1:7420".into(), peer: "127.0.0.1:7421".into() }
}

//! What a crash, a flipped bit, a hole, a full disk and a failed sync do to the log.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
    mpsc,
};

use tempfile::TempDir;

use super::{
    disk::OsDisk,
    record::Frame,
    through::{Through, Trouble},
    *,
};

#[tokio::test]
async fn everything_that_was_confirmed_is_there_after_a_restart() {
    let dir = folder();
    let wal = open(&dir).0;
    write(&wal, vec![Record::Vote(Bytes::from_static(b"vote"))]).await.unwrap();
    write(&wal, entries(1..=5)).await.unwrap();
    wal.write(vec![Record::Committed(Bytes::from_static(b"3"))]).await.unwrap();
    write(&wal, vec![Record::Truncate { after: Some(4) }]).await.unwrap();
    wal.close().await;

    let (wal, recovered) = open(&dir);

    assert_eq!(recovered.vote.as_deref(), Some(b"vote".as_slice()));
    assert_eq!(recovered.committed.as_deref(), Some(b"3".as_slice()));
    assert_eq!(indexes(&recovered), [1, 2, 3, 4]);
    wal.close().await;
}

#[tokio::test]
async fn a_torn_last_write_is_cut_and_the_log_goes_on() {
    let dir = folder();
    crash_after_unconfirmed_batch(&dir).await;
    let file = only_segment(&dir);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes.truncate(record_positions(&bytes)[12] + 9);
    std::fs::write(&file, bytes).unwrap();

    let (wal, recovered) = open(&dir);
    assert_eq!(indexes(&recovered), (1..=12).collect::<Vec<_>>());
    write(&wal, entries(13..=14)).await.unwrap();
    wal.close().await;

    assert_eq!(indexes(&open(&dir).1), (1..=14).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_hole_in_the_unconfirmed_end_is_cut() {
    let dir = folder();
    crash_after_unconfirmed_batch(&dir).await;
    damage(&dir, 13, |record| record.fill(0));

    assert_eq!(indexes(&open(&dir).1), (1..=13).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_flipped_bit_in_the_unconfirmed_end_is_cut() {
    let dir = folder();
    crash_after_unconfirmed_batch(&dir).await;
    damage(&dir, 15, |record| record[40] ^= 4);

    assert_eq!(indexes(&open(&dir).1), (1..=15).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_was_cut_does_not_come_back() {
    let dir = folder();
    crash_after_unconfirmed_batch(&dir).await;
    damage(&dir, 13, |record| record.fill(0));
    let (wal, _) = open(&dir);
    write(&wal, vec![Record::Entry { id: id(14), body: Bytes::from_static(b"entry 14") }]).await.unwrap();
    wal.close().await;

    assert_eq!(indexes(&open(&dir).1), (1..=14).collect::<Vec<_>>());
}

#[tokio::test]
async fn any_damage_before_what_the_disk_confirmed_is_fatal() {
    for what in ["flip", "hole", "length"] {
        let dir = folder();
        crash_after_unconfirmed_batch(&dir).await;
        damage(&dir, 4, |record| match what {
            "flip" => record[34] ^= 1,
            "hole" => record.fill(0),
            _ => record[26] = 0xff,
        });

        let refused = Wal::open(dir.path(), Arc::new(OsDisk)).map(|_| ()).unwrap_err();

        assert!(refused.to_string().contains("replace this node with a fresh id"), "{what}: {refused}");
    }
}

#[tokio::test]
async fn a_log_that_was_closed_in_order_has_no_unconfirmed_end() {
    let dir = folder();
    let wal = open(&dir).0;
    write(&wal, entries(1..=3)).await.unwrap();
    wal.close().await;
    drop(wal);
    damage(&dir, 2, |record| record[33] ^= 1);

    assert!(Wal::open(dir.path(), Arc::new(OsDisk)).is_err());
}

/// Cuts a recorded log at every byte: recovery always gives a prefix, and never less than was confirmed.
#[tokio::test]
async fn a_log_cut_anywhere_gives_a_prefix() {
    let dir = folder();
    let wal = open(&dir).0;
    write(&wal, entries(1..=3)).await.unwrap();
    write(&wal, entries(4..=6)).await.unwrap();
    let whole = std::fs::read(only_segment(&dir)).unwrap();
    wal.close().await;
    let positions = record_positions(&whole);
    let end = positions.last().unwrap() + 80;

    for cut in SEGMENT_HEADER..end {
        let dir = folder();
        std::fs::write(dir.path().join("wal-00000000000000000001.log"), &whole[..cut]).unwrap();
        let (_, recovered) = OsDiskRecovery::of(&dir);
        let complete = positions.iter().filter(|at| **at + 32 + 24 + "entry 1".len() <= cut).count() as u64;
        assert_eq!(indexes(&recovered), (1..=complete).collect::<Vec<_>>(), "cut at {cut}");
    }
}

#[tokio::test]
async fn an_entry_that_holds_what_looks_like_a_record_proves_nothing() {
    let mut forged = vec![0; 24];
    Record::Mark.encode(1 << 40, 1 << 41, &mut forged);
    let dir = folder();
    let wal = open(&dir).0;
    write(&wal, entries(1..=1)).await.unwrap();
    let body = Bytes::from([vec![0; 512], forged].concat());
    write(&wal, vec![Record::Entry { id: id(2), body }]).await.unwrap();
    let mut bytes = std::fs::read(only_segment(&dir)).unwrap();
    wal.close().await;
    let torn = record_positions(&bytes)[1];
    bytes[torn + 100] ^= 1;

    assert_eq!(recover(&bytes).unwrap(), [1]);
}

/// Flips each bit of a recorded log in turn: before what the disk had confirmed it is refused, behind that it is cut there.
#[tokio::test]
async fn any_flipped_bit_is_refused_where_the_disk_had_confirmed_it_and_cut_behind_that() {
    let dir = folder();
    let wal = open(&dir).0;
    write(&wal, entries(1..=2)).await.unwrap();
    write(&wal, entries(3..=4)).await.unwrap();
    let mut bytes = std::fs::read(only_segment(&dir)).unwrap();
    wal.close().await;
    let positions = record_positions(&bytes);
    let ends: Vec<usize> = positions.iter().map(|at| Frame::read(&bytes, *at, None).unwrap().next).collect();
    bytes.truncate(ends[3]);

    for (at, bit) in (0..bytes.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        bytes[at] ^= 1 << bit;
        let recovered = recover(&bytes);
        bytes[at] ^= 1 << bit;
        let Some(record) = ends.iter().position(|end| at >= SEGMENT_HEADER && at < *end) else {
            // The last bytes of a header mean nothing.
            assert_eq!(recovered.is_err(), at < 28, "header, byte {at}, bit {bit}");
            continue;
        };
        let padding = at >= Frame::read(&bytes, positions[record], None).unwrap().payload.end;
        match recovered {
            Ok(found) if padding => assert_eq!(found, [1, 2, 3, 4], "padding, byte {at}"),
            Ok(found) => {
                assert!(record >= 2, "byte {at}, bit {bit} of what the disk had confirmed: {found:?}");
                assert_eq!(found, (1..=record as u64).collect::<Vec<_>>(), "byte {at}, bit {bit}");
            }
            Err(refused) => {
                assert!(record < 2, "byte {at}, bit {bit} of what nothing proves: {refused}");
                assert!(refused.to_string().contains("replace this node with a fresh id"), "{refused}");
            }
        }
    }
}

/// Loses every set of the sectors that the last batch touched: what was confirmed before it is always there, and of the
/// batch a prefix.
#[tokio::test]
async fn any_sectors_of_the_last_batch_may_be_lost() {
    const SECTOR: usize = 512;
    let dir = folder();
    let wal = open(&dir).0;
    write(&wal, entries(1..=3)).await.unwrap();
    let before = std::fs::read(only_segment(&dir)).unwrap();
    let large = |index| Record::Entry { id: id(index), body: Bytes::from(vec![7; 600]) };
    write(&wal, (4..=8).map(large).collect()).await.unwrap();
    let after = std::fs::read(only_segment(&dir)).unwrap();
    wal.close().await;
    let touched: Vec<usize> = (0..after.len() / SECTOR)
        .filter(|sector| {
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            before.get(range.clone()) != after.get(range)
        })
        .collect();
    assert!((4..=8).contains(&touched.len()), "{touched:?}");

    for lost in 0..1_u32 << touched.len() {
        let mut bytes = after.clone();
        for (_, sector) in touched.iter().enumerate().filter(|(number, _)| lost >> number & 1 == 1) {
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            bytes[range.clone()].copy_from_slice(&before[range]);
        }
        let found = recover(&bytes).unwrap();
        assert!(found.len() >= 3 && found == (1..=found.len() as u64).collect::<Vec<_>>(), "{lost:b}: {found:?}");
    }
}

#[tokio::test]
async fn damage_at_the_end_of_a_segment_that_another_follows_is_fatal() {
    let dir = folder();
    let wal = open(&dir).0;
    let large = Bytes::from(vec![7; 9 * 1024 * 1024]);
    for index in 1..=9 {
        write(&wal, vec![Record::Entry { id: id(index), body: large.clone() }]).await.unwrap();
    }
    wal.close().await;
    let first = &segments(&dir)[0];
    let mut bytes = std::fs::read(first).unwrap();
    let last = *record_positions(&bytes).last().unwrap();
    bytes[last + 100] ^= 1;
    std::fs::write(first, bytes).unwrap();

    let refused = Wal::open(dir.path(), Arc::new(OsDisk)).map(|_| ()).unwrap_err();

    assert!(refused.to_string().contains("replace this node with a fresh id"), "{refused}");
}

#[tokio::test]
async fn purged_segments_are_removed_and_what_stands_is_repeated() {
    let dir = folder();
    let wal = open(&dir).0;
    write(&wal, vec![Record::Vote(Bytes::from_static(b"vote"))]).await.unwrap();
    let large = Bytes::from(vec![7; 9 * 1024 * 1024]);
    for index in 1..=20 {
        write(&wal, vec![Record::Entry { id: id(index), body: large.clone() }]).await.unwrap();
    }
    assert_eq!(segments(&dir).len(), 3);

    write(&wal, vec![Record::Purge { upto: 17, log_id: Bytes::from_static(b"17") }]).await.unwrap();
    wal.close().await;

    assert_eq!(segments(&dir).len(), 1);
    let (_, recovered) = OsDiskRecovery::of(&dir);
    assert_eq!(recovered.vote.as_deref(), Some(b"vote".as_slice()));
    assert_eq!(recovered.purged, Some((17, Bytes::from_static(b"17"))));
    assert_eq!(indexes(&recovered), [18, 19, 20]);
}

#[tokio::test]
async fn a_segment_that_is_missing_between_others_is_fatal() {
    let dir = folder();
    let wal = open(&dir).0;
    let large = Bytes::from(vec![7; 9 * 1024 * 1024]);
    for index in 1..=20 {
        write(&wal, vec![Record::Entry { id: id(index), body: large.clone() }]).await.unwrap();
    }
    wal.close().await;
    std::fs::remove_file(&segments(&dir)[1]).unwrap();

    let refused = Wal::open(dir.path(), Arc::new(OsDisk)).map(|_| ()).unwrap_err();

    assert!(refused.to_string().contains("segment behind it is missing"), "{refused}");
}

#[tokio::test]
async fn a_segment_that_a_crash_left_half_made_is_made_anew() {
    let dir = folder();
    let wal = open(&dir).0;
    write(&wal, entries(1..=3)).await.unwrap();
    wal.close().await;
    std::fs::write(dir.path().join("wal-00000000000000000002.log"), b"TOWL").unwrap();

    let (wal, recovered) = open(&dir);

    assert_eq!(indexes(&recovered), [1, 2, 3]);
    assert_eq!(segments(&dir).len(), 1);
    wal.close().await;
}

#[tokio::test]
async fn a_log_whose_newest_segment_is_gone_or_empty_does_not_begin_anew() {
    for lose in [|path: &Path| std::fs::remove_file(path), |path: &Path| std::fs::write(path, b"")] {
        for kept in [0, 1] {
            let dir = folder();
            let wal = open(&dir).0;
            write(&wal, entries(1..=3)).await.unwrap();
            wal.close().await;
            if kept == 1 {
                let mut next = Writer::recover(dir.path(), Arc::new(OsDisk)).unwrap().0;
                next.rotate(&|| false).unwrap();
            }
            lose(segments(&dir).last().unwrap()).unwrap();

            let refused = Wal::open(dir.path(), Arc::new(OsDisk)).map(|_| ()).unwrap_err().to_string();

            assert!(refused.contains("it was written here and is gone") || refused.contains("header"), "{refused}");
        }
    }
}

#[tokio::test]
async fn an_entry_is_read_back_from_where_it_lies() {
    let dir = folder();
    let (wal, _) = open(&dir);
    write(&wal, entries(1..=5)).await.unwrap();
    write(&wal, vec![Record::Truncate { after: Some(3) }]).await.unwrap();
    let other = EntryId { term: 2, ..id(4) };
    write(&wal, vec![Record::Entry { id: other, body: Bytes::from_static(b"other 4") }]).await.unwrap();
    wal.close().await;

    let (wal, _) = open(&dir);
    let places: Vec<Place> = (2..=4).map(|index| wal.place(index).unwrap()).collect();

    assert_eq!(wal.read(&places).unwrap(), ["entry 2", "entry 3", "other 4"]);
    assert_eq!(places[2].id, other);
    damage(&dir, 1, |record| record[60] ^= 1);
    assert_eq!(wal.read(&places).unwrap_err().kind(), io::ErrorKind::InvalidData);
    wal.close().await;
}

#[tokio::test]
async fn queued_writes_share_one_sync() {
    let dir = folder();
    let disk = FaultyDisk::default();
    let (wal, _) = Wal::open(dir.path(), Arc::new(disk.clone())).unwrap();
    write(&wal, entries(1..=1)).await.unwrap();
    let before = disk.0.syncs.load(Ordering::SeqCst);

    disk.0.held.store(true, Ordering::SeqCst);
    let (done, waiters) = mpsc::channel();
    for index in 2..=100 {
        let done = done.clone();
        let notify = move |outcome: io::Result<()>| done.send(outcome.is_ok()).unwrap();
        wal.write_durably(entries(index..=index), Box::new(notify)).await.unwrap();
    }
    drop(done);
    disk.0.held.store(false, Ordering::SeqCst);
    let confirmed = tokio::task::spawn_blocking(move || waiters.iter().filter(|ok| *ok).count()).await.unwrap();

    assert_eq!(confirmed, 99);
    assert!(disk.0.syncs.load(Ordering::SeqCst) - before <= 2);
    wal.close().await;
}

#[tokio::test]
async fn a_full_disk_is_waited_for_and_nothing_is_lost() {
    for disk in [FaultyDisk::default(), in_memory()] {
        full_disk_is_waited_for(&disk).await;
    }
}

async fn full_disk_is_waited_for(disk: &FaultyDisk) {
    let dir = folder();
    let (wal, _) = Wal::open(dir.path(), Arc::new(disk.clone())).unwrap();
    write(&wal, entries(1..=2)).await.unwrap();
    disk.0.full.store(true, Ordering::SeqCst);

    let wal = Arc::new(wal);
    let waiting = tokio::spawn({
        let wal = wal.clone();
        async move { write(&wal, entries(3..=4)).await }
    });
    while wal.health() != LogHealth::Full {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!waiting.is_finished());
    disk.0.full.store(false, Ordering::SeqCst);

    waiting.await.unwrap().unwrap();
    assert_eq!(wal.health(), LogHealth::Ok);
    wal.close().await;
    assert_eq!(indexes(&open(&dir).1), [1, 2, 3, 4]);
}

#[tokio::test]
async fn a_node_with_a_full_disk_can_stop() {
    for disk in [FaultyDisk::default(), in_memory()] {
        let dir = folder();
        let (wal, _) = Wal::open(dir.path(), Arc::new(disk.clone())).unwrap();
        disk.0.full.store(true, Ordering::SeqCst);
        wal.stop_waiting();

        let refused = write(&wal, entries(1..=1)).await.unwrap_err();

        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        wal.close().await;
    }
}

#[tokio::test]
async fn a_failed_sync_is_final() {
    let dir = folder();
    let disk = FaultyDisk::default();
    let (wal, _) = Wal::open(dir.path(), Arc::new(disk.clone())).unwrap();
    disk.0.broken.store(true, Ordering::SeqCst);
    write(&wal, entries(1..=1)).await.unwrap_err();
    disk.0.broken.store(false, Ordering::SeqCst);

    write(&wal, entries(2..=2)).await.unwrap_err();

    assert!(matches!(wal.health(), LogHealth::Failed { .. }));
    wal.close().await;
}

// ---- helpers ----

/// A disk that fails on demand.
type FaultyDisk = Through<Arc<Faults>>;

#[derive(Default)]
struct Faults {
    full: AtomicBool,
    broken: AtomicBool,
    syncs: AtomicUsize,
    /// Writes wait until it is false.
    held: AtomicBool,
    in_memory: AtomicBool,
}

/// A disk that says that it is none: its log is written by a task.
fn in_memory() -> FaultyDisk {
    let disk = FaultyDisk::default();
    disk.0.in_memory.store(true, Ordering::SeqCst);
    disk
}

impl Trouble for Arc<Faults> {
    /// A full disk takes half of the bytes before it says so.
    fn write_at(&self, file: &mut dyn DiskFile, bytes: &[u8], position: u64) -> io::Result<()> {
        while self.held.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        if self.full.load(Ordering::SeqCst) {
            file.write_at(&bytes[..bytes.len() / 2], position)?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.write_at(bytes, position)
    }

    fn sync(&self, file: &mut dyn DiskFile) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        if self.broken.load(Ordering::SeqCst) {
            return Err(io::Error::other("input/output error"));
        }
        file.sync()
    }

    fn is_memory(&self) -> bool {
        self.in_memory.load(Ordering::SeqCst)
    }
}

/// Recovery without the thread, so that many logs are opened quickly.
struct OsDiskRecovery;

impl OsDiskRecovery {
    fn of(dir: &TempDir) -> (Writer, Recovered) {
        Writer::recover(dir.path(), Arc::new(OsDisk)).unwrap()
    }
}

/// The entries that a log of these bytes has when it is opened.
fn recover(bytes: &[u8]) -> Result<Vec<u64>, StoreError> {
    let dir = folder();
    std::fs::write(dir.path().join("wal-00000000000000000001.log"), bytes).unwrap();
    Writer::recover(dir.path(), Arc::new(OsDisk)).map(|(_, recovered)| indexes(&recovered))
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn open(dir: &TempDir) -> (Wal, Recovered) {
    Wal::open(dir.path(), Arc::new(OsDisk)).unwrap()
}

fn entries(indexes: std::ops::RangeInclusive<u64>) -> Vec<Record> {
    let entry = |index| Record::Entry { id: id(index), body: Bytes::from(format!("entry {index}")) };
    indexes.map(entry).collect()
}

fn id(index: u64) -> EntryId {
    EntryId { index, term: 1, node: 1 }
}

fn indexes(recovered: &Recovered) -> Vec<u64> {
    recovered.entries.iter().map(|(place, _)| place.id.index).collect()
}

async fn write(wal: &Wal, records: Vec<Record>) -> io::Result<()> {
    let (done, durable) = tokio::sync::oneshot::channel();
    wal.write_durably(records, Box::new(|outcome| done.send(outcome).unwrap())).await?;
    durable.await.unwrap()
}

/// Ten entries that the disk confirmed, as the batch of ten behind them proves, whose own confirmation nothing proves.
async fn crash_after_unconfirmed_batch(dir: &TempDir) {
    let wal = open(dir).0;
    write(&wal, entries(1..=10)).await.unwrap();
    write(&wal, entries(11..=20)).await.unwrap();
    let crashed = std::fs::read(only_segment(dir)).unwrap();
    wal.close().await;
    std::fs::write(only_segment(dir), crashed).unwrap();
}

fn segments(dir: &TempDir) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = files.filter(|path| begun_of(path).is_none()).collect();
    paths.sort();
    paths
}

fn only_segment(dir: &TempDir) -> PathBuf {
    let [path] = segments(dir).try_into().unwrap();
    path
}

/// Where the records of a segment begin.
fn record_positions(bytes: &[u8]) -> Vec<usize> {
    let mut positions = Vec::new();
    let mut at = SEGMENT_HEADER;
    while let Some(frame) = Frame::read(bytes, at, None) {
        positions.push(at);
        at = frame.next;
    }
    positions
}

/// Changes the bytes of one record of the only segment.
fn damage(dir: &TempDir, record: usize, change: impl FnOnce(&mut [u8])) {
    let file = only_segment(dir);
    let mut bytes = std::fs::read(&file).unwrap();
    let at = record_positions(&bytes)[record];
    let end = Frame::read(&bytes, at, None).unwrap().next;
    change(&mut bytes[at..end]);
    std::fs::write(&file, bytes).unwrap();
}

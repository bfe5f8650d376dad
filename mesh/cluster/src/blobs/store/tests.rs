use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    time::UNIX_EPOCH,
};

use super::*;
use crate::{blobs::tree::GROUP_BYTES, wal::disk::OsDisk};

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 5) as u8).collect()
}

fn write(store: &Store, bytes: &[u8]) -> BlobHash {
    let mut writer = store.writer().unwrap();
    bytes.chunks(100_001).for_each(|chunk| writer.write(chunk).unwrap());
    let (hash, length) = writer.finish(None).unwrap();
    assert_eq!((hash.as_bytes(), length), (blake3::hash(bytes).as_bytes(), bytes.len() as u64));
    hash
}

fn read(store: &Store, hash: BlobHash) -> Result<Vec<u8>, BlobError> {
    let reader = store.open_blob(hash)?;
    let groups: Result<Vec<Vec<u8>>, BlobError> = (0..groups_of(reader.length())).map(|no| reader.group(no)).collect();
    Ok(groups?.concat())
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn what_was_written_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let sizes = [0, 1, 20_000, GROUP_BYTES as usize, GROUP_BYTES as usize + 1, 3 * GROUP_BYTES as usize + 7];
    let hashes: Vec<BlobHash> = sizes.iter().map(|size| write(&store, &content(*size))).collect();
    let again = Store::open(dir.path()).unwrap();
    for (hash, size) in hashes.iter().zip(sizes) {
        assert_eq!(read(&again, *hash).unwrap(), content(size), "{size} bytes");
    }
    assert_eq!(again.all().len(), sizes.len());
}

#[test]
fn a_write_that_was_cut_off_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let mut writer = store.writer().unwrap();
    writer.write(&content(50_000)).unwrap();
    // As after a power cut: nothing is dropped in order.
    std::mem::forget(writer);
    let again = Store::open(dir.path()).unwrap();
    assert_eq!(again.all(), []);
    assert!(!dir.path().join(UNFINISHED).exists());
    let mut given_up = again.writer().unwrap();
    given_up.write(&content(50_000)).unwrap();
    drop(given_up);
    assert_eq!(list(&OsDisk, &dir.path().join(UNFINISHED)).unwrap(), Vec::<PathBuf>::new());
}

#[test]
fn other_content_than_was_promised_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let mut writer = store.writer().unwrap();
    writer.write(&content(20_000)).unwrap();
    let promised = BlobHash::from_bytes(*blake3::hash(b"something else").as_bytes());
    assert!(matches!(writer.finish(Some(promised)), Err(BlobError::OtherContent { .. })));
    assert_eq!(store.all(), []);
}

#[test]
fn a_flipped_bit_is_found_wherever_it_is_and_hurts_one_group_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let bytes = content(3 * GROUP_BYTES as usize + 7);
    let hash = write(&store, &bytes);
    flip(&store.path(&hash), GROUP_BYTES + 99);
    let reader = store.open_blob(hash).unwrap();
    assert_eq!(reader.group(0).unwrap(), &bytes[..GROUP_BYTES as usize]);
    assert!(matches!(reader.group(1), Err(BlobError::Damaged { .. })));
    assert_eq!(reader.group(3).unwrap(), &bytes[3 * GROUP_BYTES as usize..]);

    let size = fs::metadata(store.path(&hash)).unwrap().len();
    for at in [bytes.len() as u64, size - FOOTER_BYTES - 1, size - FOOTER_BYTES, size - 1] {
        let other = write(&store, &bytes);
        flip(&store.path(&other), at);
        assert!(matches!(store.open_blob(other), Err(BlobError::Damaged { .. })), "byte {at}");
    }
}

#[test]
fn a_file_that_was_cut_is_damaged_and_does_not_count_as_held_once_it_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let bytes = content(20_000);
    let hash = write(&store, &bytes);
    OpenOptions::new().write(true).open(store.path(&hash)).unwrap().set_len(100).unwrap();
    assert!(!store.touch(&hash, 20_000));
    assert!(!store.holds(&hash));
    assert_eq!(write(&store, &bytes), hash);
    assert_eq!(read(&store, hash).unwrap(), bytes);
    assert!(store.touch(&hash, 20_000));
}

#[test]
fn what_was_written_lately_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let hash = write(&store, &content(20_000));
    let file = OpenOptions::new().append(true).open(store.path(&hash)).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_millis(5_000)).unwrap();
    assert!(!store.remove_if_older(&hash, Timestamp(5_000), Duration::ZERO).unwrap());
    assert!(store.holds(&hash));
    assert!(store.touch(&hash, 20_000), "it is wanted again");
    assert!(!store.remove_if_older(&hash, Timestamp(5_001), Duration::ZERO).unwrap());
    file.set_modified(UNIX_EPOCH).unwrap();
    assert!(store.remove_if_older(&hash, Timestamp(5_001), Duration::ZERO).unwrap());
    assert!(!store.holds(&hash) && !store.path(&hash).exists());
}

#[test]
fn a_log_whose_clock_is_ahead_removes_nothing_that_was_just_written() {
    const HOUR: Duration = Duration::from_secs(3_600);
    const AHEAD: Timestamp = Timestamp(u64::MAX);
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let hash = write(&store, &content(20_000));
    assert!(!store.remove_if_older(&hash, AHEAD, HOUR).unwrap());
    let again = Store::open(dir.path()).unwrap();
    assert!(!again.remove_if_older(&hash, AHEAD, HOUR).unwrap(), "how long it is there is not known after a restart");
    assert!(again.remove_if_older(&hash, AHEAD, Duration::ZERO).unwrap());
}

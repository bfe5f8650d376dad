//! The hash tree of a blob, in groups of 1 MiB: its root is plain BLAKE3 of the content, and each group can be checked by
//! itself against the root.
//!
//! BLAKE3 is a tree, and a group is one of its subtrees. What is kept of each is its chaining value; together they give
//! the root, so that they are believed only if they lead to the hash that names the blob.

use blake3::hazmat::{ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};
use towline_core::BlobHash;

/// Bytes of a group: what is read, checked and held in memory at a time.
pub(crate) const GROUP_BYTES: u64 = 1024 * 1024;

/// How many groups content of this length has.
pub(crate) fn groups_of(length: u64) -> u64 {
    length.div_ceil(GROUP_BYTES).max(1)
}

/// The chaining values of all groups, proven to lead to a hash. Content of one group has none: its hash is the proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Groups {
    hash: BlobHash,
    length: u64,
    values: Vec<ChainingValue>,
}

impl Groups {
    /// Believes chaining values that lead to the hash.
    pub(crate) fn prove(hash: BlobHash, length: u64, values: Vec<ChainingValue>) -> Option<Self> {
        let expected = if length > GROUP_BYTES { groups_of(length) } else { 0 };
        if values.len() as u64 != expected {
            return None;
        }
        let proven = values.is_empty() || root(&values, length) == hash;
        proven.then_some(Self { hash, length, values })
    }

    /// Length of the content.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// The values, as they are kept.
    pub(crate) fn values(&self) -> &[ChainingValue] {
        &self.values
    }

    /// Where a group begins, and how long it is.
    pub(crate) fn place(&self, group: u64) -> (u64, usize) {
        let from = group * GROUP_BYTES;
        let length = self.length.saturating_sub(from).min(GROUP_BYTES);
        (from, usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// Whether these bytes are the content of a group.
    pub(crate) fn is_right(&self, group: u64, bytes: &[u8]) -> bool {
        if self.values.is_empty() {
            return blake3::hash(bytes).as_bytes() == self.hash.as_bytes();
        }
        let Some(expected) = usize::try_from(group).ok().and_then(|group| self.values.get(group)) else { return false };
        bytes.len() == self.place(group).1 && value_of(group, bytes) == *expected
    }
}

/// Hashes content as it comes.
pub(crate) struct TreeHasher {
    /// Of the group that is not full yet.
    current: blake3::Hasher,
    in_current: u64,
    values: Vec<ChainingValue>,
    length: u64,
}

impl TreeHasher {
    pub(crate) fn new() -> Self {
        Self { current: blake3::Hasher::new(), in_current: 0, values: Vec::new(), length: 0 }
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.in_current == GROUP_BYTES {
                self.close_group();
            }
            let room = usize::try_from(GROUP_BYTES - self.in_current).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.current.update(now);
            self.in_current += now.len() as u64;
            self.length += now.len() as u64;
            bytes = later;
        }
    }

    /// The hash of everything, and what proves its groups.
    pub(crate) fn finish(mut self) -> (BlobHash, Groups) {
        let length = self.length;
        if self.values.is_empty() {
            let hash = BlobHash::from_bytes(*self.current.finalize().as_bytes());
            return (hash, Groups { hash, length, values: Vec::new() });
        }
        self.values.push(self.current.finalize_non_root());
        let hash = root(&self.values, length);
        (hash, Groups { hash, length, values: self.values })
    }

    fn close_group(&mut self) {
        self.values.push(self.current.finalize_non_root());
        let mut next = blake3::Hasher::new();
        next.set_input_offset(self.values.len() as u64 * GROUP_BYTES);
        self.current = next;
        self.in_current = 0;
    }
}

fn value_of(group: u64, bytes: &[u8]) -> ChainingValue {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(group * GROUP_BYTES);
    hasher.update(bytes);
    hasher.finalize_non_root()
}

/// The root over the values of two groups or more.
fn root(values: &[ChainingValue], length: u64) -> BlobHash {
    let (left, right) = halves(values, length);
    let hash = merge_subtrees_root(&merged(left.0, left.1), &merged(right.0, right.1), Mode::Hash);
    BlobHash::from_bytes(*hash.as_bytes())
}

fn merged(values: &[ChainingValue], length: u64) -> ChainingValue {
    if let [only] = values {
        return *only;
    }
    let (left, right) = halves(values, length);
    merge_subtrees_non_root(&merged(left.0, left.1), &merged(right.0, right.1), Mode::Hash)
}

type Subtree<'a> = (&'a [ChainingValue], u64);

/// BLAKE3 puts as many bytes as possible into the left half that are a power of two; that is whole groups here.
fn halves(values: &[ChainingValue], length: u64) -> (Subtree<'_>, Subtree<'_>) {
    let left = left_subtree_len(length);
    let (first, second) = values.split_at(usize::try_from(left / GROUP_BYTES).unwrap_or(usize::MAX));
    ((first, left), (second, length - left))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(length: u64) -> Vec<u8> {
        (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8).collect()
    }

    #[test]
    fn the_root_is_plain_blake3_and_every_group_is_checked_by_itself() {
        let group = GROUP_BYTES;
        for length in [0, 1, group - 1, group, group + 1, 2 * group, 3 * group + 5, 5 * group, 8 * group + 1] {
            let bytes = content(length);
            let mut hasher = TreeHasher::new();
            bytes.chunks(300_007).for_each(|chunk| hasher.update(chunk));
            let (hash, groups) = hasher.finish();
            assert_eq!(hash.as_bytes(), blake3::hash(&bytes).as_bytes(), "{length} bytes");
            let proven = Groups::prove(hash, length, groups.values().to_vec()).expect("they lead to the root");
            for group in 0..groups_of(length) {
                let (from, size) = proven.place(group);
                let mut part = bytes[from as usize..from as usize + size].to_vec();
                assert!(proven.is_right(group, &part), "group {group} of {length} bytes");
                if let Some(byte) = part.last_mut() {
                    *byte ^= 1;
                    assert!(!proven.is_right(group, &part));
                }
            }
        }
    }

    #[test]
    fn values_that_do_not_lead_to_the_hash_are_not_believed() {
        let mut hasher = TreeHasher::new();
        hasher.update(&content(3 * GROUP_BYTES));
        let (hash, groups) = hasher.finish();
        let mut values = groups.values().to_vec();
        values[1][0] ^= 1;
        assert_eq!(Groups::prove(hash, groups.length(), values.clone()), None);
        values.pop();
        assert_eq!(Groups::prove(hash, groups.length(), values), None);
    }
}

//! Sorted entries in chunks that copies share: a copy costs the number of chunks, and a change after it one chunk.
//!
//! For what grows with everything that was ever done and is still in the state: a snapshot begins with a copy of the state,
//! and entries wait for it.

use std::{collections::BTreeMap, sync::Arc};

/// Entries of one chunk: what a change copies at most, beside what a copy of everything touches.
const CHUNK: usize = 256;
/// Entries that a chunk has room for when it grows: more would be memory that is not used, fewer a copy more often.
const SPARE: usize = 16;

/// A sorted map. Equal to another one with the same entries, however they came.
#[derive(Debug, Clone)]
pub(crate) struct Chunked<K, V> {
    /// By a key that no entry of the chunk, and every one of the chunk before, is below.
    chunks: BTreeMap<K, Arc<Vec<(K, V)>>>,
    len: usize,
}

impl<K, V> Default for Chunked<K, V> {
    fn default() -> Self {
        Self { chunks: BTreeMap::new(), len: 0 }
    }
}

impl<K: Ord + PartialEq, V: PartialEq> PartialEq for Chunked<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.entries().eq(other.entries())
    }
}

impl<K, V> Chunked<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn entries(&self) -> impl Iterator<Item = &(K, V)> {
        self.chunks.values().flat_map(|chunk| chunk.iter())
    }

    /// All entries, by key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries().map(|(key, value)| (key, value))
    }
}

impl<K: Ord + Clone, V: Clone> FromIterator<(K, V)> for Chunked<K, V> {
    /// Of many entries at once, which fill their chunks. Of two with one key the later one counts.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut entries: Vec<(K, V)> = entries.into_iter().collect();
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        entries.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                std::mem::swap(later, earlier);
            }
            same
        });
        let chunks = entries.chunks(CHUNK).map(|chunk| (chunk[0].0.clone(), Arc::new(chunk.to_vec())));
        Self { chunks: chunks.collect(), len: entries.len() }
    }
}

impl<K: Ord + Clone, V: Clone> Chunked<K, V> {
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let (_, chunk) = self.chunks.range(..=key).next_back()?;
        let at = position(chunk, key).ok()?;
        chunk.get(at).map(|(_, value)| value)
    }

    /// Puts an entry in, and returns what had its key before.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let Some((_, chunk)) = self.chunks.range_mut(..=&key).next_back() else {
            return self.insert_first(key, value);
        };
        let at = match position(chunk, &key) {
            Ok(at) => {
                let entry = Arc::make_mut(chunk).get_mut(at)?;
                return Some(std::mem::replace(&mut entry.1, value));
            }
            Err(at) => at,
        };
        self.len += 1;
        if chunk.len() < CHUNK {
            put(Arc::make_mut(chunk), at, (key, value));
            return None;
        }
        // Entries that come in order leave full chunks behind. A chunk that is split has two new places: the old one would
        // stay half empty.
        let mut rest = if at == CHUNK { Vec::new() } else { chunk[CHUNK / 2..].to_vec() };
        if at < CHUNK {
            *chunk = Arc::new(chunk[..CHUNK / 2].to_vec());
        }
        if at >= chunk.len() {
            put(&mut rest, at - chunk.len(), (key, value));
        } else {
            put(Arc::make_mut(chunk), at, (key, value));
        }
        if let Some((first, _)) = rest.first() {
            self.chunks.insert(first.clone(), Arc::new(rest));
        }
        None
    }

    /// An entry that comes before all others goes into their chunk, which is then known by its key.
    fn insert_first(&mut self, key: K, value: V) -> Option<V> {
        self.len += 1;
        let mut chunk = match self.chunks.first_entry() {
            Some(first) if first.get().len() < CHUNK => first.remove(),
            Some(_) | None => Arc::default(),
        };
        put(Arc::make_mut(&mut chunk), 0, (key.clone(), value));
        self.chunks.insert(key, chunk);
        None
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let (bound, chunk) = self.chunks.range_mut(..=key).next_back()?;
        let at = position(chunk, key).ok()?;
        self.len -= 1;
        if chunk.len() > 1 {
            return Some(Arc::make_mut(chunk).remove(at).1);
        }
        let bound = bound.clone();
        let chunk = self.chunks.remove(&bound)?;
        chunk.first().map(|(_, value)| value.clone())
    }

    /// The entries from a key on, by key.
    pub(crate) fn from<'a>(&'a self, key: &K) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, K, V> {
        let bound = self.chunks.range(..=key).next_back().map(|(bound, _)| bound);
        let key = key.clone();
        let chunks = self.chunks.range(bound.unwrap_or(&key).clone()..);
        let rest = move |chunk: &'a Arc<Vec<(K, V)>>| {
            let begin = chunk.partition_point(|(other, _)| *other < key);
            chunk.iter().skip(begin)
        };
        chunks.flat_map(move |(_, chunk)| rest(chunk)).map(|(key, value)| (key, value))
    }

    /// The entries below a key, the last one first.
    pub(crate) fn below<'a>(&'a self, key: &K) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, K, V> {
        let key = key.clone();
        let chunks = self.chunks.range(..key.clone()).rev();
        let rest = move |chunk: &'a Arc<Vec<(K, V)>>| {
            let end = chunk.partition_point(|(other, _)| *other < key);
            chunk.iter().take(end).rev()
        };
        chunks.flat_map(move |(_, chunk)| rest(chunk)).map(|(key, value)| (key, value))
    }
}

/// Puts an entry into a chunk, which keeps little room for more: there are many, and most never get another one.
fn put<E>(chunk: &mut Vec<E>, at: usize, entry: E) {
    if chunk.len() == chunk.capacity() {
        chunk.reserve_exact(SPARE);
    }
    chunk.insert(at, entry);
}

fn position<K: Ord, V>(chunk: &[(K, V)], key: &K) -> Result<usize, usize> {
    chunk.binary_search_by(|(other, _)| other.cmp(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_holds_what_a_plain_map_holds(steps in prop::collection::vec((any::<bool>(), 0..1_500_u32), 0..4_000), bound in 0..1_500_u32) {
            let (mut chunked, mut plain) = (Chunked::default(), BTreeMap::new());
            for (number, (removes, key)) in steps.into_iter().enumerate() {
                if removes {
                    prop_assert_eq!(chunked.remove(&key), plain.remove(&key));
                } else {
                    prop_assert_eq!(chunked.insert(key, number), plain.insert(key, number));
                }
            }
            prop_assert_eq!(&chunked, &plain.clone().into_iter().collect());
            prop_assert_eq!(chunked.len(), plain.len());
            prop_assert!(chunked.iter().eq(plain.iter()));
            prop_assert!(chunked.from(&bound).eq(plain.range(bound..)));
            prop_assert!(chunked.below(&bound).eq(plain.range(..bound).rev()));
            prop_assert_eq!(chunked.get(&bound), plain.get(&bound));
        }
    }

    #[test]
    fn a_change_after_a_copy_touches_one_chunk() {
        let mut chunked: Chunked<u32, u32> = Chunked::default();
        for key in 0..10_000 {
            chunked.insert(key, key);
        }
        assert!(chunked.chunks.len() <= 10_000 / CHUNK + 1, "entries in order fill their chunks");
        let copy = chunked.clone();

        chunked.insert(5_000, 0);
        chunked.remove(&9);

        let shared = copy
            .chunks
            .iter()
            .filter(|(key, chunk)| chunked.chunks.get(key).is_some_and(|now| Arc::ptr_eq(now, chunk)));
        assert_eq!(shared.count(), copy.chunks.len() - 2);
        assert_eq!(copy.get(&5_000), Some(&5_000));
        assert_ne!(chunked, copy);
    }

    #[test]
    fn chunks_have_little_room_that_nothing_is_in() {
        let mut scattered: Chunked<u32, u32> = Chunked::default();
        for key in 0..20_000_u32 {
            scattered.insert(key.wrapping_mul(2_654_435_761), key);
        }
        let room: usize = scattered.chunks.values().map(|chunk| chunk.capacity()).sum();
        assert!(room < 20_000 * 115 / 100, "{room}");
    }

    #[test]
    fn of_two_entries_with_one_key_the_later_one_counts() {
        let of_many: Chunked<u32, u32> = [(2, 1), (1, 1), (2, 2), (2, 3)].into_iter().collect();
        assert!(of_many.iter().eq([(&1, &1), (&2, &3)]));
        assert_eq!(of_many.len(), 2);
    }

    #[test]
    fn entries_that_came_otherwise_are_equal() {
        let (mut up, mut down) = (Chunked::default(), Chunked::default());
        for key in 0..1_000 {
            up.insert(key, ());
            down.insert(999 - key, ());
        }
        assert_eq!(up, down);
    }
}

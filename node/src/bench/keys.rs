//! What is written and read: 256 bytes under one of ten thousand keys, the same for every subject.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// As many as the core keeps notes for, with room for an operator's own.
const KEYS: u64 = 10_000;

/// Bytes of one value.
const VALUE_BYTES: usize = 256;

/// How far the next key is from the last: coprime to the number of keys, so that all of them come up.
const STRIDE: u64 = 7_919;

/// The keys, one after the other over all clients; clones share their place.
#[derive(Clone, Default)]
pub(super) struct Keys(Arc<AtomicU64>);

impl Keys {
    /// A key, a value for it, and a number that was not given before.
    pub(super) fn next(&self) -> (String, String, u64) {
        let number = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        (key(number.wrapping_mul(STRIDE) % KEYS), value(number), number)
    }

    /// Each key once.
    pub(super) fn all(&self) -> impl Iterator<Item = (String, String, u64)> + use<> {
        let keys = self.clone();
        (0..KEYS).map(move |_| keys.next())
    }
}

fn key(number: u64) -> String {
    format!("bench/{number:05}")
}

fn value(number: u64) -> String {
    format!("{number:0VALUE_BYTES$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_key_comes_up_before_one_comes_again() {
        let keys: BTreeSet<String> = Keys::default()
            .all()
            .map(|(key, value, _)| {
                assert_eq!(value.len(), VALUE_BYTES);
                key
            })
            .collect();
        assert_eq!(keys.len() as u64, KEYS);
    }
}

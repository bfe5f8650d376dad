//! A map with a bound: what was not used for the longest time makes room.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    most: usize,
    entries: HashMap<K, (u64, V)>,
    order: BTreeMap<u64, K>,
    uses: u64,
}

impl<K: Clone + Eq + Hash, V> Recent<K, V> {
    pub fn new(most: usize) -> Self {
        Self { most, entries: HashMap::new(), order: BTreeMap::new(), uses: 0 }
    }

    /// The value of a key that is in use again.
    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        let (used, value) = self.entries.get_mut(key)?;
        self.uses += 1;
        self.order.remove(used);
        self.order.insert(self.uses, key.clone());
        *used = self.uses;
        Some(value)
    }

    /// The same, and a new one where there is none.
    pub fn get_or(&mut self, key: &K, new: impl FnOnce() -> V) -> &mut V {
        if !self.entries.contains_key(key) {
            while self.entries.len() >= self.most {
                let Some((_, oldest)) = self.order.pop_first() else { break };
                self.entries.remove(&oldest);
            }
            self.uses += 1;
            self.order.insert(self.uses, key.clone());
            self.entries.insert(key.clone(), (self.uses, new()));
        }
        self.get(key).expect("it is there or was inserted")
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        assert_eq!(self.entries.len(), self.order.len());
        self.entries.len()
    }
}

//! What is remembered of many callers, with a bound for all and one for each: nobody's entries push out those of somebody who has
//! fewer.

use std::collections::{BTreeSet, HashMap};

use uuid::Uuid;

/// Ids by the mark of who they belong to. The oldest make room, by the time that is in them.
#[derive(Debug)]
pub(super) struct Shares {
    most: usize,
    most_of_one: usize,
    all: usize,
    of: HashMap<u64, BTreeSet<Uuid>>,
}

impl Shares {
    pub fn new(most: usize, most_of_one: usize) -> Self {
        Self { most, most_of_one, all: 0, of: HashMap::new() }
    }

    /// Remembers an id. Beyond the share of its owner another one of that owner goes, and where all places are taken one of whom
    /// has the most.
    pub fn insert(&mut self, owner: u64, id: Uuid) {
        let own = self.of.entry(owner).or_default();
        self.all += usize::from(own.insert(id));
        if own.len() > self.most_of_one {
            self.forget_oldest(owner);
        }
        while self.all > self.most {
            let Some(owner) = self.of.iter().max_by_key(|(_, ids)| ids.len()).map(|(owner, _)| *owner) else { return };
            self.forget_oldest(owner);
        }
    }

    pub fn contains(&self, owner: u64, id: Uuid) -> bool {
        self.of.get(&owner).is_some_and(|own| own.contains(&id))
    }

    fn forget_oldest(&mut self, owner: u64) {
        let Some(own) = self.of.get_mut(&owner) else { return };
        self.all -= usize::from(own.pop_first().is_some());
        if own.is_empty() {
            self.of.remove(&owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_pushes_out_its_own_and_never_those_of_somebody_with_fewer() {
        let mut shares = Shares::new(10, 6);
        let ids: Vec<Uuid> = (0..20).map(Uuid::from_u128).collect();
        shares.insert(1, ids[0]);
        ids.iter().for_each(|id| shares.insert(2, *id));
        assert!(shares.contains(1, ids[0]));
        assert!(!shares.contains(2, ids[13]) && shares.contains(2, ids[14]), "its last six");
        for (owner, id) in [(3, ids[1]), (4, ids[2]), (5, ids[3]), (6, ids[4])] {
            shares.insert(owner, id);
        }
        assert_eq!(shares.all, 10);
        assert!(shares.contains(1, ids[0]) && shares.contains(6, ids[4]));
        assert!(!shares.contains(2, ids[14]) && shares.contains(2, ids[15]), "who has the most makes room");
        shares.insert(6, ids[4]);
        assert_eq!(shares.all, 10, "the same again takes no place");
    }
}

//! Which nodes cannot write their logs. Each says so with its keep-alive, and the leader's answers tell all the others: a voter
//! with a full disk is up, and yet of no use to a quorum.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use towline_core::NodeId;
use towline_proto::v1;

/// Of what a node says so many characters are kept: a sentence with a path.
const MAX_CHARS: usize = 300;

/// Most nodes that one answer tells of: more than can keep a log.
const MAX_TOLD: usize = 100;

/// What is known of the disks of nodes that keep a log.
#[derive(Debug, Default)]
pub(crate) struct Troubles(Mutex<BTreeMap<NodeId, String>>);

impl Troubles {
    /// A node says what troubles it; nothing if all is well.
    pub(crate) fn said(&self, node: NodeId, trouble: &str) {
        let mut known = self.lock();
        if trouble.is_empty() {
            known.remove(&node);
        } else {
            known.insert(node, trouble.chars().take(MAX_CHARS).collect());
        }
    }

    /// The leader says what it knows of all.
    pub(crate) fn told(&self, troubles: Vec<v1::Trouble>) {
        let known = troubles.into_iter().take(MAX_TOLD).map(|trouble| (NodeId(trouble.node), trouble.what));
        *self.lock() = known.collect();
    }

    /// What troubles a node, in words.
    pub(crate) fn of(&self, node: NodeId) -> Option<String> {
        self.lock().get(&node).cloned()
    }

    /// What is told to the others.
    pub(crate) fn all(&self) -> Vec<v1::Trouble> {
        let known = self.lock();
        known.iter().take(MAX_TOLD).map(|(node, what)| v1::Trouble { node: node.0, what: what.clone() }).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_said_is_told_until_it_says_that_all_is_well() {
        let (leader, other) = (Troubles::default(), Troubles::default());
        leader.said(NodeId(3), &"x".repeat(MAX_CHARS + 1));
        leader.said(NodeId(5), "the disk is full");
        other.told(leader.all());
        assert_eq!(other.of(NodeId(5)).as_deref(), Some("the disk is full"));
        assert_eq!(other.of(NodeId(3)).map(|words| words.len()), Some(MAX_CHARS));
        assert_eq!(other.of(NodeId(4)), None);
        leader.said(NodeId(5), "");
        other.told(leader.all());
        assert_eq!(other.of(NodeId(5)), None);
    }
}

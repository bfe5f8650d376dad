//! By which key each node of the cluster is known, and so which certificate lets its holder in.
//!
//! The state decides, once it is as new as what was known before the start. Until then it is what this node has kept on
//! disk (`data/tls/members.json`, also given to it when it joined); and of a node that is newer than both, what members
//! tell that are known here.

use std::{
    collections::BTreeMap,
    sync::{OnceLock, PoisonError, RwLock},
};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use towline_core::{NodeId, NodeKey, Rejection, State};
use towline_proto::v1;

use crate::{certificates::CertifiedNode, raft::StateView};

/// Why a certificate lets its holder not in, although the cluster's authority has signed it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// There is no certificate.
    #[error("a certificate of this cluster is needed here")]
    NoCertificate,
    /// The node is a member no more, or never was one.
    #[error("{}", Rejection::NodeRemoved { node: *node })]
    Removed {
        /// The node that the certificate names.
        node: NodeId,
    },
    /// The node is known by another key: whoever holds this one is not that node.
    #[error("the cluster knows node {node} by another key than that of this certificate")]
    OtherKey {
        /// The node that the certificate names.
        node: NodeId,
    },
    /// The node may have joined while this one was away.
    #[error("node {node} is not known here yet: members that are known are asked about it")]
    Unknown {
        /// The node that the certificate names.
        node: NodeId,
    },
}

/// The members of the cluster as far as they were known at a log index.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Members {
    /// Who is not in it and has an id up to this index is no member.
    pub(crate) index: u64,
    pub(crate) nodes: Vec<Member>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) id: NodeId,
    /// None where an earlier version made it a member, and it has not said so itself.
    pub(crate) key: Option<NodeKey>,
    /// `host:port` of its peer listener.
    pub(crate) peer: String,
    /// Whether it keeps no log, so that it can feed nobody.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) worker: bool,
}

impl Members {
    fn of(state: &State) -> Self {
        let nodes = state.nodes().map(|node| Member {
            id: node.id,
            key: node.certificate.as_ref().map(|certificate| certificate.key.clone()),
            peer: node.addresses.peer.clone(),
            worker: !node.keeps_log(),
        });
        Self { index: state.last().index, nodes: nodes.collect() }
    }

    fn member(&self, id: NodeId) -> Option<&Member> {
        self.nodes.iter().find(|member| member.id == id)
    }

    pub(crate) fn to_proto(&self) -> v1::Roster {
        let nodes = self.nodes.iter().map(|member| v1::roster::Node {
            id: member.id.0,
            key: member.key.as_ref().map(|key| key.0.clone()).unwrap_or_default(),
            peer: member.peer.clone(),
            worker: member.worker,
        });
        v1::Roster { index: self.index, nodes: nodes.collect() }
    }

    pub(crate) fn from_proto(roster: v1::Roster) -> Self {
        let nodes = roster.nodes.into_iter().map(|node| Member {
            id: NodeId(node.id),
            key: Some(NodeKey(node.key)).filter(|key| !key.0.is_empty()),
            peer: node.peer,
            worker: node.worker,
        });
        Self { index: roster.index, nodes: nodes.collect() }
    }
}

/// What is known of a node.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    Key(NodeKey),
    /// A member, and by what key is not known: an earlier version made it one.
    Keyless,
    Out,
    Unknown,
}

/// Who is known by what key. Shared by everything that shakes hands.
#[derive(Default)]
pub(crate) struct Roster {
    view: OnceLock<StateView>,
    /// None where an earlier version kept the folder.
    kept: RwLock<Option<Members>>,
    /// Newer nodes, as members told.
    told: RwLock<BTreeMap<NodeId, NodeKey>>,
    wanted: Notify,
}

impl std::fmt::Debug for Roster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Roster").field("members", &self.members()).finish_non_exhaustive()
    }
}

impl Roster {
    pub(crate) fn new(kept: Option<Members>) -> Self {
        Self { kept: RwLock::new(kept), ..Self::default() }
    }

    /// From here on the state counts, where it is new enough.
    pub(crate) fn follow(&self, view: StateView) {
        // A second one would be the same.
        let _ = self.view.set(view);
    }

    /// Whether the holder of a certificate is the node that it names, and a member.
    ///
    /// # Errors
    /// Why not. A node that is not known makes this one ask.
    pub(crate) fn check(&self, certified: &CertifiedNode) -> Result<(), NotAdmitted> {
        let node = certified.node;
        match self.standing(node) {
            Standing::Key(key) if key == certified.key => Ok(()),
            Standing::Key(_) => Err(NotAdmitted::OtherKey { node }),
            Standing::Keyless => Ok(()),
            Standing::Out => Err(NotAdmitted::Removed { node }),
            Standing::Unknown => {
                self.wanted.notify_one();
                Err(NotAdmitted::Unknown { node })
            }
        }
    }

    /// Whether a node is a member, and known by this key.
    pub(crate) fn knows_key(&self, node: NodeId, key: &NodeKey) -> bool {
        matches!(self.standing(node), Standing::Key(known) if known == *key)
    }

    /// The members, as far as this node knows.
    pub(crate) fn members(&self) -> Members {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner).clone();
        let current = self.view.get().map(|view| view.read(Members::of)).unwrap_or_default();
        match kept {
            Some(kept) if kept.index > current.index => kept,
            Some(kept) => current.with_keys_of(&kept),
            None => current,
        }
    }

    /// The members that keep no log, as far as this node knows.
    pub(crate) fn workers(&self) -> impl Iterator<Item = NodeId> {
        self.members().nodes.into_iter().filter(|member| member.worker).map(|member| member.id)
    }

    /// What is to be kept on disk, if that is more than is there.
    pub(crate) fn news(&self) -> Option<Members> {
        let members = self.members();
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        let is_new = kept.as_ref().is_none_or(|kept| kept.nodes != members.nodes);
        (is_new && !members.nodes.is_empty()).then_some(members)
    }

    /// Says that this is on disk.
    pub(crate) fn keep(&self, members: Members) {
        *self.kept.write().unwrap_or_else(PoisonError::into_inner) = Some(members);
    }

    /// Takes what a member told of nodes that are newer than what this one knows.
    pub(crate) fn learn(&self, members: Members) {
        let known = self.members();
        let mut told = self.told.write().unwrap_or_else(PoisonError::into_inner);
        told.retain(|node, _| node.0 > known.index);
        let newer = members.nodes.into_iter().filter(|member| member.id.0 > known.index);
        told.extend(newer.filter_map(|member| Some((member.id, member.key?))));
    }

    /// Returns when somebody came who is not known.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    fn standing(&self, node: NodeId) -> Standing {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        let kept = kept.as_ref();
        let kept_key = kept.and_then(|kept| kept.member(node)?.key.clone());
        let (index, now) = self.view.get().map_or((0, None), |view| {
            view.read(|state| {
                let key = |node: &towline_core::Node| node.certificate.as_ref().map(|known| known.key.clone());
                (state.last().index, state.node(node).map(key))
            })
        });
        let now = now.or_else(|| {
            let kept = kept.filter(|kept| kept.index > index)?;
            kept.member(node).map(|member| member.key.clone())
        });
        let index = index.max(kept.map_or(0, |kept| kept.index));
        match now {
            Some(key) => key.or(kept_key).map_or(Standing::Keyless, Standing::Key),
            None if node.0 <= index => Standing::Out,
            None if kept.is_none() => Standing::Keyless,
            None => {
                let told = self.told.read().unwrap_or_else(PoisonError::into_inner);
                told.get(&node).cloned().map_or(Standing::Unknown, Standing::Key)
            }
        }
    }
}

impl Members {
    /// Keys that were known before stay known: a node may not have said yet by which key it is known.
    fn with_keys_of(mut self, kept: &Members) -> Self {
        for member in self.nodes.iter_mut().filter(|member| member.key.is_none()) {
            member.key = kept.member(member.id).and_then(|kept| kept.key.clone());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use towline_core::Timestamp;

    fn key(number: u64) -> NodeKey {
        NodeKey(format!("key-{number}"))
    }

    fn member(id: u64) -> Member {
        Member { id: NodeId(id), key: Some(key(id)), peer: format!("127.0.0.1:{id}"), worker: false }
    }

    fn holder(node: u64, key: NodeKey) -> CertifiedNode {
        CertifiedNode { node: NodeId(node), cluster_name: "prod".into(), key, ends: Timestamp(u64::MAX) }
    }

    fn kept() -> Roster {
        Roster::new(Some(Members { index: 10, nodes: vec![member(1), member(7)] }))
    }

    #[test]
    fn a_member_is_let_in_under_its_own_key_only() {
        let roster = kept();
        assert_eq!(roster.check(&holder(7, key(7))), Ok(()));
        let forged = roster.check(&holder(7, key(66)));
        assert_eq!(forged, Err(NotAdmitted::OtherKey { node: NodeId(7) }));
    }

    #[test]
    fn who_is_no_member_up_to_the_index_that_is_known_is_out() {
        let refused = kept().check(&holder(5, key(5)));
        assert_eq!(refused, Err(NotAdmitted::Removed { node: NodeId(5) }));
    }

    #[test]
    fn a_newer_node_is_asked_about_and_let_in_under_the_key_that_a_member_told() {
        let roster = kept();
        assert_eq!(roster.check(&holder(12, key(12))), Err(NotAdmitted::Unknown { node: NodeId(12) }));
        assert!(roster.wanted().now_or_never().is_some(), "somebody is to be asked");
        roster.learn(Members { index: 20, nodes: vec![member(12), Member { key: Some(key(99)), ..member(7) }] });
        assert_eq!(roster.check(&holder(12, key(12))), Ok(()));
        assert_eq!(roster.check(&holder(12, key(66))), Err(NotAdmitted::OtherKey { node: NodeId(12) }));
        assert_eq!(roster.check(&holder(7, key(7))), Ok(()), "what is known is not told anew");
        assert_eq!(roster.check(&holder(13, key(13))), Err(NotAdmitted::Unknown { node: NodeId(13) }));
    }

    #[test]
    fn a_folder_of_an_earlier_version_knows_nobody_and_goes_by_the_signature() {
        assert_eq!(Roster::new(None).check(&holder(5, key(5))), Ok(()));
    }

    #[test]
    fn members_come_back_from_their_message() {
        let members = Members { index: 9, nodes: vec![member(1), Member { key: None, worker: true, ..member(2) }] };
        assert_eq!(Members::from_proto(members.to_proto()), members);
    }
}

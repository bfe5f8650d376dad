//! How nodes become members, and by what key they are known from then on.

use super::{State, done, new_node};
use crate::{
    Applied, Enrolment, JoinToken, Labels, Node, NodeCertificate, NodeHealth, NodeId, NodeRole, Rejection, Reply,
    Stamp, Timestamp,
};

impl State {
    pub(super) fn mint(
        &mut self,
        hash: String,
        role: NodeRole,
        ttl_ms: u64,
        stamp: Stamp,
    ) -> Result<Applied, Rejection> {
        let expires = Timestamp(stamp.at.0.saturating_add(ttl_ms));
        self.tokens.entry(hash).or_insert(JoinToken { role, expires, used: None });
        Ok(done(Vec::new()))
    }

    pub(super) fn enrol(&mut self, enrolment: Enrolment, stamp: Stamp) -> Result<Applied, Rejection> {
        let token = self.tokens.get(&enrolment.token_hash).ok_or(Rejection::UnknownToken)?;
        let (role, used, expires) = (token.role, token.used, token.expires);
        if let Some(node) = self.known_by_key(&enrolment) {
            return self.enrol_again(node, enrolment);
        }
        if let Some((request, node)) = used {
            return match request == enrolment.request {
                true if self.is_removed(node) => Err(Rejection::NodeRemoved { node }),
                true => Ok(enrolled(node, role)),
                false => Err(Rejection::TokenUsed { node }),
            };
        }
        if expires <= stamp.at {
            return Err(Rejection::TokenExpired);
        }
        self.check_free(&enrolment, None)?;
        let id = NodeId(stamp.index);
        let mut node = new_node(id, enrolment.name, role, enrolment.addresses, stamp.at);
        node.certificate = enrolment.key.map(|key| NodeCertificate { key, ends: None, signs: false });
        node.labels = enrolment.knows_labels.then(Labels::new);
        self.nodes.insert(id, node);
        if let Some(token) = self.tokens.get_mut(&enrolment.token_hash) {
            token.used = Some((enrolment.request, id));
        }
        Ok(enrolled(id, role))
    }

    pub(super) fn certify(&mut self, id: NodeId, certificate: NodeCertificate) -> Result<Applied, Rejection> {
        let node = self.member(id)?;
        match &node.certificate {
            Some(known) if known.key != certificate.key => return Err(Rejection::OtherKey { node: id }),
            Some(_) | None => node.certificate = Some(certificate),
        }
        Ok(done(Vec::new()))
    }

    /// Refuses to take the key of the cluster's authority away with the last node that has it, while that node could still
    /// hand it on.
    pub(super) fn keeps_a_signer_without(&self, id: NodeId) -> Result<(), Rejection> {
        let signs = |node: &&Node| node.certificate.as_ref().is_some_and(|certificate| certificate.signs);
        let stays = |node: &&Node| node.id != id && !node.leaving;
        let leaves_none = self.nodes.values().filter(stays).find(signs).is_none();
        let has_heir = self.nodes.values().filter(stays).any(|node| node.role == NodeRole::Voter && node.is_live());
        let can_hand_on = self.nodes.get(&id).filter(signs).is_some_and(Node::is_live);
        if leaves_none && has_heir && can_hand_on { Err(Rejection::OnlySigner { node: id }) } else { Ok(()) }
    }

    fn known_by_key(&self, enrolment: &Enrolment) -> Option<NodeId> {
        let key = enrolment.key.as_ref()?;
        let has_key = |certificate: &NodeCertificate| certificate.key == *key;
        self.nodes.values().find(|node| node.certificate.as_ref().is_some_and(has_key)).map(|node| node.id)
    }

    /// The same node asks again, since it did not hear the answer: it spends no token. Until it has registered, it may have
    /// thought better of its name and addresses.
    fn enrol_again(&mut self, id: NodeId, enrolment: Enrolment) -> Result<Applied, Rejection> {
        self.check_free(&enrolment, Some(id))?;
        let node = self.member(id)?;
        if node.leaving {
            return Err(Rejection::NodeRemoved { node: id });
        }
        if node.health == NodeHealth::Enrolled {
            node.name = enrolment.name;
            node.addresses = enrolment.addresses;
        }
        Ok(enrolled(id, node.role))
    }

    /// Refuses a name or an address that another node has. What an earlier version logged was not asked for this, and
    /// must come to the same as then.
    fn check_free(&self, enrolment: &Enrolment, own: Option<NodeId>) -> Result<(), Rejection> {
        if enrolment.key.is_none() {
            return Ok(());
        }
        let mut others = self.nodes.values().filter(|node| Some(node.id) != own);
        let taken = others.find(|node| node.name == enrolment.name || node.addresses.peer == enrolment.addresses.peer);
        match taken {
            None => Ok(()),
            Some(node) if node.name == enrolment.name => {
                Err(Rejection::NameTaken { name: enrolment.name.clone(), node: node.id })
            }
            Some(node) => Err(Rejection::AddressTaken { peer: enrolment.addresses.peer.clone(), node: node.id }),
        }
    }
}

fn enrolled(node: NodeId, role: NodeRole) -> Applied {
    Applied { reply: Reply::Enrolled { node, role }, effects: Vec::new() }
}

//! The part of the state that says who counts, who is to be empty, and who leaves.

use std::sync::Arc;

use super::{State, Wish, done, key};
use crate::{
    AgentName, Applied, Draining, Effect, Interruption, Node, NodeHealth, NodeId, NodeRole, Rejection, Stamp, Task,
    TaskId, limits,
};

impl State {
    /// Whether another node than this one could take a task of an agent at this moment.
    pub fn has_another_host(&self, agent: &AgentName, than: NodeId) -> bool {
        self.choose(agent, Wish::Except(than)).is_some()
    }

    /// Whether a task of the agent would find another node that takes more: one that stops has made itself one without room.
    pub fn has_another_open_host(&self, agent: &AgentName, than: NodeId) -> bool {
        let other = self.choose(agent, Wish::Except(than)).and_then(|(id, _)| self.nodes.get(&id));
        other.is_some_and(|node| node.capacity > 0)
    }

    /// What keeps a task on its node when that is drained, in words; none if nothing does for longer than a step takes that
    /// may be repeated.
    pub fn what_holds(&self, task: &Task) -> Option<String> {
        let owner = task.lease.as_ref()?.node;
        if !self.has_another_host(&task.agent, owner) {
            return Some(format!("no other node that takes tasks hosts agent {}", task.agent));
        }
        let in_doubt = |step: &&crate::Step| step.intent.when_interrupted() == Interruption::InDoubt;
        let step = task.open_steps().find(in_doubt)?;
        Some(format!("step {} has not ended and must not run twice", step.no))
    }

    pub(super) fn remove_node(&mut self, id: NodeId, stamp: Stamp) -> Result<Applied, Rejection> {
        if self.is_removed(id) {
            return Ok(done(Vec::new()));
        }
        self.member(id)?;
        self.keeps_quorum_without(id)?;
        self.keeps_a_signer_without(id)?;
        let mut effects = Vec::new();
        let node = self.member(id)?;
        node.leaving = true;
        if node.health != NodeHealth::Up {
            self.drop_if_leaving(id);
        }
        self.place_agents(&mut effects);
        effects.extend(self.assign_pending(stamp));
        Ok(done(effects))
    }

    pub(super) fn set_role(&mut self, id: NodeId, role: NodeRole) -> Result<Applied, Rejection> {
        let node = self.member_that_stays(id)?;
        if node.role == role {
            return Ok(done(Vec::new()));
        }
        match role {
            NodeRole::Voter | NodeRole::Learner if !node.keeps_log() => return Err(Rejection::IsWorker { node: id }),
            NodeRole::Worker => return Err(Rejection::IsNoWorker { node: id }),
            NodeRole::Voter if node.health != NodeHealth::Up => return Err(Rejection::NotUp { node: id }),
            NodeRole::Voter => {}
            NodeRole::Learner => self.keeps_quorum_without(id)?,
        }
        self.member(id)?.role = role;
        Ok(done(Vec::new()))
    }

    pub(super) fn drain(&mut self, id: NodeId, patience_ms: u64, stamp: Stamp) -> Result<Applied, Rejection> {
        let patience_ms = patience_ms.min(limits::MAX_PATIENCE_MS);
        let node = self.member_that_stays(id)?;
        if node.draining.is_some_and(|draining| draining.patience_ms == patience_ms) {
            return Ok(done(Vec::new()));
        }
        node.draining = Some(Draining { since: stamp.at, patience_ms });
        Ok(self.place_again(stamp))
    }

    pub(super) fn undrain(&mut self, id: NodeId, stamp: Stamp) -> Result<Applied, Rejection> {
        if self.member_that_stays(id)?.draining.take().is_none() {
            return Ok(done(Vec::new()));
        }
        Ok(self.place_again(stamp))
    }

    /// The hint is given in any case: a node has to hear that it is to be empty, or no longer.
    fn place_again(&mut self, stamp: Stamp) -> Applied {
        let mut effects = Vec::new();
        self.place_agents(&mut effects);
        if effects.is_empty() {
            effects.push(Effect::PlacementChanged);
        }
        effects.extend(self.assign_pending(stamp));
        done(effects)
    }

    /// Moves a task whose owner has reached the end of a step. Spans of the owner have ended in order.
    pub(super) fn give_away(&mut self, id: TaskId, owner: NodeId, stamp: Stamp, effects: &mut Vec<Effect>) {
        let can_go = self.task(id).is_some_and(|task| self.has_another_host(&task.agent, owner));
        if !can_go {
            return;
        }
        self.release(id, effects);
        let task = self.tasks.get_mut(&key(id)).map(Arc::make_mut).expect("task was found above");
        task.lost_owner = Some(owner);
        if let Some(span) = task.turn.span.take() {
            task.turn.lost.push(span);
            task.turn.attempt += 1;
        }
        self.unassigned.insert(id);
        self.assign(id, Wish::Except(owner), stamp, effects);
    }

    fn member_that_stays(&mut self, id: NodeId) -> Result<&mut Node, Rejection> {
        match self.member(id)? {
            node if node.leaving => Err(Rejection::NodeRemoved { node: id }),
            node => Ok(node),
        }
    }

    /// Refuses what would leave fewer live voters than a majority of those that stay.
    fn keeps_quorum_without(&self, id: NodeId) -> Result<(), Rejection> {
        let stays = |node: &&Node| node.role == NodeRole::Voter && node.id != id && !node.leaving;
        let voters = self.nodes.values().filter(stays).count();
        let up = self.nodes.values().filter(stays).filter(|node| node.health == NodeHealth::Up).count();
        let quorum = voters / 2 + 1;
        let is_voter = self.nodes.get(&id).is_some_and(|node| node.role == NodeRole::Voter);
        if is_voter && up < quorum { Err(Rejection::QuorumNeeds { node: id, up, voters, quorum }) } else { Ok(()) }
    }

    /// Nothing of a node whose session has ended acts any more.
    pub(super) fn drop_if_leaving(&mut self, id: NodeId) {
        if self.nodes.get(&id).is_some_and(|node| node.leaving) {
            self.nodes.remove(&id);
            self.removed.insert(id);
            self.triggers.undeclare(id, &std::collections::BTreeSet::new());
            self.agents.values_mut().for_each(|agent| {
                agent.placed.remove(&id);
            });
        }
    }
}

//! The part of the state that keeps tasks away from nodes where their agents lack something.
//!
//! A node without a lack comes first. Where every node lacks something, a task waits for a while, since most servers come back
//! within seconds; then it is given to a node all the same, whose model sees what does not work.

use super::{State, Wish, done};
use crate::{AgentName, Applied, Lack, Lacking, Level, Node, Rejection, Stamp, Timestamp, limits::LACKING_WAIT_MS};

impl State {
    /// A node says anew what its agents lack. Words of an earlier life of its process count for nothing.
    pub(super) fn lack(&mut self, lack: Lack, stamp: Stamp) -> Result<Applied, Rejection> {
        lack.check()?;
        let node = self.member(lack.node)?;
        if node.boot != Some(lack.boot) {
            return Ok(done(Vec::new()));
        }
        let declared = lack.agents.into_iter().filter(|(agent, _)| node.declares.contains(agent));
        let lacking = declared.map(|(agent, what)| {
            let since = node.lacking.get(&agent).map_or(stamp.at, |known| known.since);
            (agent, Lacking { since, what })
        });
        node.lacking = lacking.collect();
        Ok(done(self.assign_pending(stamp)))
    }

    /// What an agent lacks on a node.
    pub(super) fn lacking(&self, node: &Node, agent: &AgentName) -> Option<Lacking> {
        node.lacking.get(agent).filter(|_| self.is_at(Level::PINS)).cloned()
    }

    /// How a node stands to an agent: the one that lacks the least comes first.
    pub(super) fn rank_of_lack(&self, node: &Node, agent: &AgentName, now: Timestamp) -> Rank {
        match self.lacking(node, agent) {
            None => Rank::LacksNothing,
            Some(lacking) if is_over(&lacking, now) => Rank::TakesAllTheSame,
            Some(_) => Rank::Waits,
        }
    }

    /// Whether some task has waited for long enough by now for what its agent lacks.
    pub fn has_waited(&self, now: Timestamp) -> bool {
        // Mostly nobody lacks anything, or nothing waits.
        if self.unassigned.is_empty() || self.nodes.values().all(|node| node.lacking.is_empty()) {
            return false;
        }
        let mut agents = self.unassigned.iter().filter_map(|id| self.task(*id)).map(|task| &task.agent);
        agents.any(|agent| self.choose_at(agent, Wish::None, now).is_some())
    }
}

/// How a node stands to an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    LacksNothing,
    /// It has lacked something for so long that it may not come back.
    TakesAllTheSame,
    /// It is given no task for now.
    Waits,
}

/// Whether the time to wait for what is lacking is over.
pub(super) fn is_over(lacking: &Lacking, now: Timestamp) -> bool {
    now.0.saturating_sub(lacking.since.0) >= LACKING_WAIT_MS
}

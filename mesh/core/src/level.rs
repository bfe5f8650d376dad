//! What all members of a cluster know: a rule that an earlier version does not have counts only once every member has it, so
//! that all of them make the same of an entry.
//!
//! A node says with [`crate::Command::NodeUp`] up to which level it knows. The leader proposes [`crate::Command::Raise`] as
//! soon as every member does, and from that entry on the rules of the level count. A level never falls. A version that
//! does not know the level of an entry or of a state refuses to read it.

use serde::{Deserialize, Serialize};

use crate::{Applied, Rejection, State};

/// A set of rules, each level with those of the ones below it.
///
/// 1. The queue of an agent, the open tasks of a principal, the events and content of a task that is continued, and the
///    metadata of a message have a bound; the messages of an archived task are remembered by their hash.
/// 2. A task that asked a person in the middle of a tool's call goes on at the node that has the call.
/// 3. What a task with a budget has spent when it ends is added to what the task that delegated it has spent.
/// 4. Triggers start tasks; what the tools of MCP servers looked like first is remembered, and a task is kept from a node where its
///    agent lacks a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Level(u32);

/// A level of a later version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("feature level {found}, and this version knows up to {}: upgrade this node", Level::KNOWN.0)]
pub struct UnknownLevel {
    found: u32,
}

impl Level {
    /// The rules that every version has.
    pub const FIRST: Self = Self(0);
    /// Bounds on what is taken, and messages by hash.
    pub const BOUNDS: Self = Self(1);
    /// A task goes on at the node that has its call.
    pub const OPEN_CALLS: Self = Self(2);
    /// What a task with a budget spent counts for the task that delegated it.
    pub const BUDGETS: Self = Self(3);
    /// There are triggers.
    pub const TRIGGERS: Self = Self(4);
    /// Tools of MCP servers are pinned.
    pub const PINS: Self = Self(4);
    /// The highest level of this version.
    pub const KNOWN: Self = Self::PINS;

    /// The level as a number.
    pub fn number(self) -> u32 {
        self.0
    }

    pub(crate) fn is_first(&self) -> bool {
        *self == Self::FIRST
    }
}

impl TryFrom<u32> for Level {
    type Error = UnknownLevel;

    fn try_from(found: u32) -> Result<Self, UnknownLevel> {
        if found <= Self::KNOWN.0 { Ok(Self(found)) } else { Err(UnknownLevel { found }) }
    }
}

impl From<Level> for u32 {
    fn from(level: Level) -> u32 {
        level.0
    }
}

impl State {
    /// The level whose rules count.
    pub fn level(&self) -> Level {
        self.level
    }

    /// The level that the cluster can be raised to; none as long as a member has not said that it knows a higher one.
    pub fn next_level(&self) -> Option<Level> {
        let lowest = self.nodes().map(|node| node.level).min()?;
        let next = Level(lowest.min(Level::KNOWN.0));
        (next > self.level).then_some(next)
    }

    pub(crate) fn is_at(&self, level: Level) -> bool {
        self.level >= level
    }

    /// A member that came since this was proposed, and does not know the level, holds it back.
    pub(crate) fn raise(&mut self, level: Level) -> Result<Applied, Rejection> {
        if self.next_level().is_some_and(|next| next >= level) {
            self.level = level;
        }
        Ok(Applied { reply: crate::Reply::Done, effects: Vec::new() })
    }
}

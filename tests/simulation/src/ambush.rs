//! One fault that waits for its moment: a voter loses power just as it has voted.
//!
//! ```text
//! old leader   stopped ............ goes on: nobody has told it of the new one
//! candidate    asks ──▶ is elected, and does not reach the voter for a while
//! voter        votes, loses power, comes back: what it promised must be on its disk
//! ```
//! If the vote is lost, the old leader commits with the voter what the new one does not have.

use std::time::Duration;

use crate::{
    host::{End, Host, Still},
    world,
};

/// The old leader stands still for so long at most: an election takes one to two timeouts.
const WAITS_AT_MOST: Duration = Duration::from_millis(1_800);
/// So long the new leader does not reach the voter.
pub const CUT_FOR_MS: u64 = 2_500;

/// Who takes part.
pub struct Ambush {
    /// The old leader.
    pub leader: usize,
    /// Who may be elected.
    pub candidate: usize,
    /// Whose vote it takes.
    pub voter: usize,
    term: u64,
    until: Duration,
}

/// What became of an ambush.
pub enum Sprung {
    /// Nothing yet.
    Waits,
    /// The voter has voted, and is without power.
    Hit,
    /// Nobody was elected in time.
    Over,
}

impl Ambush {
    /// Lays one, if there are three nodes that run. The old leader stands still from here on, and is cut from the candidate.
    pub fn lay(leader: usize, hosts: &mut [Host], rng: &mut fastrand::Rng) -> Option<Self> {
        let others: Vec<usize> =
            hosts.iter().filter(|host| host.is_up()).map(|host| host.number).filter(|other| *other != leader).collect();
        let all_run = hosts.iter().filter(|host| host.is_up()).all(|host| host.handle().is_some() && !host.is_still());
        if others.len() != 2 || !all_run {
            return None;
        }
        let (candidate, voter) = if rng.bool() { (others[0], others[1]) } else { (others[1], others[0]) };
        let term = hosts[voter].handle()?.status().term;
        world::with(|world| {
            world.net.cut((leader, candidate));
            world.net.cut((candidate, leader));
        });
        hosts[leader].stand_still(Still::Stopped);
        Some(Self { leader, candidate, voter, term, until: world::now() + WAITS_AT_MOST })
    }

    /// What is cut once it is laid, and what more once it was sprung.
    pub fn cuts(&self) -> Vec<(usize, usize)> {
        vec![(self.leader, self.candidate), (self.candidate, self.leader), (self.candidate, self.voter)]
    }

    /// Looks whether the moment has come.
    pub fn look(&self, hosts: &mut [Host]) -> Sprung {
        let Some(handle) = hosts[self.voter].handle() else { return Sprung::Over };
        if handle.status().term > self.term {
            hosts[self.voter].end(End::PowerCut);
            world::with(|world| world.net.cut((self.candidate, self.voter)));
            return Sprung::Hit;
        }
        if world::now() < self.until { Sprung::Waits } else { Sprung::Over }
    }
}

//! The part of the state that counts open tasks, and refuses one too many.

use std::collections::BTreeMap;

use super::State;
use crate::{AgentName, Level, Message, Principal, Rejection, Submission, Task, TaskId, limits};

/// When another try is worth it: tasks end all the time.
const RETRY_AFTER_MS: u64 = 1_000;

/// Events that an answer makes before its owner can be refused one: the task goes on, and works.
const EVENTS_OF_AN_ANSWER: u64 = 2;

/// How many open tasks there are, by whom and for whom. Follows from the tasks: it is counted when it is asked for first, and
/// is no part of what is saved or compared.
#[derive(Debug, Clone, Default)]
pub(super) struct OpenTasks(Option<Counts>);

#[derive(Debug, Clone, Default)]
struct Counts {
    by_agent: BTreeMap<AgentName, usize>,
    /// Without those that a task delegated: what was taken is not refused half-way.
    by_principal: BTreeMap<Principal, usize>,
}

impl PartialEq for OpenTasks {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl OpenTasks {
    /// A task was taken.
    pub(super) fn opened(&mut self, task: &Task) {
        if let Some(counts) = &mut self.0 {
            counts.open(task);
        }
    }

    /// A task has ended.
    pub(super) fn ended(&mut self, task: &Task) {
        if let Some(counts) = &mut self.0 {
            counts.end(task);
        }
    }
}

impl Counts {
    fn open(&mut self, task: &Task) {
        *self.by_agent.entry(task.agent.clone()).or_default() += 1;
        if task.parent.is_none() {
            *self.by_principal.entry(task.owner.clone()).or_default() += 1;
        }
    }

    fn end(&mut self, task: &Task) {
        one_less(&mut self.by_agent, &task.agent);
        if task.parent.is_none() {
            one_less(&mut self.by_principal, &task.owner);
        }
    }
}

/// A name that nothing is counted for is not kept.
fn one_less<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl State {
    /// How many tasks of an agent have not ended.
    pub fn open_tasks_of(&self, agent: &AgentName) -> usize {
        match &self.open.0 {
            Some(counts) => counts.by_agent.get(agent).copied().unwrap_or_default(),
            None => self.all_tasks().filter(|task| task.agent == *agent && !task.status.state.is_terminal()).count(),
        }
    }

    /// Whether a new task may come: the cluster, its agent and its principal have room.
    pub(super) fn check_room(&mut self, by: &Principal, submission: &Submission) -> Result<(), Rejection> {
        if self.tasks.len() - self.ended.len() >= limits::MAX_OPEN_TASKS {
            return Err(full("the cluster's list of open tasks".into(), limits::MAX_OPEN_TASKS));
        }
        let agent = &submission.agent;
        let queue =
            self.agents.get(agent).and_then(|agent| agent.spec.queue).map_or(usize::MAX, |queue| queue as usize);
        let has_bounds = self.is_at(Level::BOUNDS);
        let queue = if has_bounds { queue } else { usize::MAX }.min(limits::MAX_OPEN_TASKS_PER_AGENT);
        let most = submission.most_open.map_or(limits::MAX_OPEN_TASKS_PER_PRINCIPAL, |most| most as usize);
        let counts = self.counts();
        if counts.by_agent.get(agent).is_some_and(|open| *open >= queue) {
            return Err(full(format!("the queue of agent {agent}"), queue));
        }
        let owner = by.owner();
        let counts_to_principal = has_bounds && submission.parent.is_none();
        if counts_to_principal && counts.by_principal.get(&owner).is_some_and(|open| *open >= most) {
            return Err(full(format!("the list of open tasks of {owner}"), most));
        }
        Ok(())
    }

    /// Whether a task may take another message of its client.
    pub(super) fn check_room_in(&self, task: &Task, message: &Message) -> Result<(), Rejection> {
        if !self.is_at(Level::BOUNDS) {
            return Ok(());
        }
        if task.bytes + message.size() > limits::MAX_TASK_BYTES {
            let limit = limits::MAX_TASK_BYTES as u64;
            return Err(Rejection::TooLarge { what: "content of the task in bytes".into(), limit });
        }
        if !task.has_room_for_events(EVENTS_OF_AN_ANSWER) {
            let limit = limits::MAX_EVENTS_PER_TASK;
            return Err(Rejection::TooLarge { what: "number of events of the task".into(), limit });
        }
        Ok(())
    }

    /// Notes that a task has ended.
    pub(super) fn close(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get(&super::key(id)) {
            self.open.ended(task);
        }
    }

    fn counts(&mut self) -> &Counts {
        let open = std::mem::take(&mut self.open.0).unwrap_or_else(|| self.count());
        self.open.0.insert(open)
    }

    fn count(&self) -> Counts {
        let mut counts = Counts::default();
        self.all_tasks().filter(|task| !task.status.state.is_terminal()).for_each(|task| counts.open(task));
        counts
    }
}

fn full(what: String, limit: usize) -> Rejection {
    Rejection::Full { what, limit: limit as u64, retry_after_ms: RETRY_AFTER_MS }
}

#[cfg(test)]
mod tests;

//! Commands that are carried out only if nothing has happened to their task since the client looked.

use super::State;
use crate::{Applied, Command, Principal, Rejection, Stamp, TaskId, TaskState};

impl State {
    /// What was taken before is answered as it was: only the first of two equal commands meets the generation that it names.
    pub(super) fn if_generation(
        &mut self,
        by: Principal,
        task: TaskId,
        expected: u64,
        then: Command,
        stamp: Stamp,
    ) -> Result<Applied, Rejection> {
        if let Command::Continue { message, .. } = &then
            && self.sent_before(&by.owner(), message, None, stamp.at)?.is_some()
        {
            return self.carry_out(by, then, stamp);
        }
        let current = self.generation_for(&by, task).ok_or(Rejection::UnknownTask { task })?;
        let is_canceled = then.canceled().is_some_and(|task| self.state_of(task) == Some(TaskState::Canceled));
        if current != expected && !is_canceled {
            return Err(Rejection::GenerationMismatch { task, expected, current });
        }
        self.carry_out(by, then, stamp)
    }

    /// The index of the last event of a task, wherever its record is; none of another's.
    fn generation_for(&self, by: &Principal, id: TaskId) -> Option<u64> {
        let live = self.task(id).map(|task| (task.owner.clone(), task.generation));
        let found = live.or_else(|| self.stub(id).map(|stub| (stub.owner, stub.generation)));
        let seen = found.filter(|(owner, _)| by.may_act_on(owner) || self.asked_task(by, id).is_some());
        seen.map(|(_, generation)| generation)
    }
}

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
        let (owner, current) = self.generation_for(&by, task).ok_or(Rejection::UnknownTask { task })?;
        if current != expected && !self.is_carried_out(&owner, &then, stamp)? {
            return Err(Rejection::GenerationMismatch { task, expected, current });
        }
        self.carry_out(by, then, stamp)
    }

    /// Whose a task is, and the index of its last event, wherever its record is; none of another's.
    fn generation_for(&self, by: &Principal, id: TaskId) -> Option<(Principal, u64)> {
        let live = self.task(id).map(|task| (task.owner.clone(), task.generation));
        let found = live.or_else(|| self.stub(id).map(|stub| (stub.owner, stub.generation)));
        found.filter(|(owner, _)| by.may_act_on(owner) || self.asked_task(by, id).is_some())
    }

    fn is_carried_out(&self, owner: &Principal, command: &Command, stamp: Stamp) -> Result<bool, Rejection> {
        if let Command::Continue { message, .. } = command {
            return Ok(self.sent_before(owner, message, None, stamp.at)?.is_some());
        }
        Ok(command.canceled().is_some_and(|task| self.state_of(task) == Some(TaskState::Canceled)))
    }
}

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
        let current = self.generation_for(&by, task).ok_or(Rejection::UnknownTask { task })?;
        if current != expected && !self.is_carried_out(&by, &then, stamp)? {
            return Err(Rejection::GenerationMismatch { task, expected, current });
        }
        self.carry_out(by, then, stamp)
    }

    /// Index of the last event of a task, wherever its record is; none of another's.
    fn generation_for(&self, by: &Principal, id: TaskId) -> Option<u64> {
        let live = self.task(id).map(|task| (&task.owner, task.generation));
        let (owner, generation) = live.or_else(|| self.stub(id).map(|stub| (&stub.owner, stub.generation)))?;
        (owner == by.owner()).then_some(generation)
    }

    fn is_carried_out(&self, by: &Principal, command: &Command, stamp: Stamp) -> Result<bool, Rejection> {
        if let Command::Continue { message, .. } = command {
            return Ok(self.sent_before(by, message, None, stamp.at)?.is_some());
        }
        Ok(command.canceled().is_some_and(|task| self.state_of(task) == Some(TaskState::Canceled)))
    }
}

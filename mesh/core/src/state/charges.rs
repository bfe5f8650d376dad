//! What a delegated task has spent counts for the task above it, from its end on.

use std::sync::Arc;

use super::{State, key};
use crate::{Level, TaskId};

impl State {
    /// A task has ended: one that was granted a part of a budget says what of it was spent. The record of the task may be
    /// gone later; this stays with the one above.
    pub(super) fn charge(&mut self, id: TaskId) {
        if !self.is_at(Level::BUDGETS) {
            return;
        }
        let Some(task) = self.task(id) else { return };
        let (Some(parent), Some(_)) = (task.parent.clone(), task.budget()) else { return };
        let spent = task.spent();
        let pays = |above: &&mut Arc<crate::Task>| !above.status.state.is_terminal() && above.pays_for(parent.step);
        if let Some(above) = self.tasks.get_mut(&key(parent.task)).filter(pays) {
            let above = Arc::make_mut(above);
            above.spent_below = above.spent_below.plus(spent);
        }
    }
}

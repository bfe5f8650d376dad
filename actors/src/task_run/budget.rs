//! What the task may spend, and what of it goes with a delegation. Nothing is begun once it is spent; a model call that has
//! begun may go over it, since what it takes is known at its end.

use towline_core::{BUDGET_KEY, Budget, Handover, Intent, Outcome, ToolCall, granted_in, spent_in};

use super::TaskRunState;
use crate::{
    decision::{Next, pending_calls},
    prompt::{DELEGATE, SEND},
};

impl TaskRunState {
    /// What this task may spend: what its message says, and for one that nobody here delegated the limit of the configuration.
    fn budget(&self) -> Budget {
        let of_message = self.view.budget.unwrap_or_default();
        if self.view.is_delegated { of_message } else { of_message.and(self.context.shared.config.task_budget) }
    }

    /// Why the next thing is not begun: what the task may spend is spent.
    pub(super) fn over_budget(&self, next: &Next) -> Option<String> {
        let steps = match next {
            Next::Think | Next::Relay => 1,
            Next::Call(calls) => calls.len() as u64,
            Next::TakeUp { .. }
            | Next::Perform(_)
            | Next::Wait
            | Next::Doubt(_)
            | Next::Ask(_)
            | Next::AskAgain(..)
            | Next::AskForPeer(..)
            | Next::Complete
            | Next::Fail(_)
            | Next::Reject(_) => return None,
        };
        let budget = self.budget();
        let spent = spent_in(&self.view.journal).plus(self.view.spent_below);
        let left = budget.less(spent);
        if !left.is_spent() && left.steps.is_none_or(|left| left >= steps) {
            return None;
        }
        let of = budget.shown(spent);
        Some(format!("stopped: the budget of the task does not reach for what comes next: {of} are spent"))
    }

    /// How many delegations of the model's last answer have not begun: what is left is parted among them.
    pub(super) fn delegations_to_come(&self) -> u64 {
        let gives_away = |call: &&ToolCall| matches!(call.name.as_str(), DELEGATE | SEND);
        pending_calls(&self.view.journal).filter(gives_away).count() as u64
    }

    /// Has a delegation take an equal part of what is left with it; or says why there is nothing for it.
    pub(super) fn grant(&self, intent: &mut Intent, among: u64) -> Result<(), Outcome> {
        let Intent::Delegate { target, message, handover: Handover::Delegation | Handover::Send, .. } = intent else {
            return Ok(());
        };
        let begun = spent_in(&self.view.journal).plus(self.view.spent_below).plus(granted_in(&self.view.journal));
        let mut left = self.budget().less(begun);
        // The delegations are steps themselves.
        left.steps = left.steps.map(|steps| steps.saturating_sub(among));
        let part = left.among(among);
        if part.is_spent() {
            let error_type = "budget_spent".to_owned();
            let message = format!("delegate to {target}: nothing of the task's budget is left for it");
            return Err(Outcome::Failed { error_type, message });
        }
        if let Some(part) = part.to_json() {
            message.metadata.insert(BUDGET_KEY.to_owned(), part);
        }
        Ok(())
    }
}

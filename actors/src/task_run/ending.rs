//! The end of a run: what it has under way ends with it, and what is still learned is told.

use ractor::ActorRef;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use towline_core::{Outcome, StepNo, TaskState};
use towline_trace::names;

use super::{STOP_TIMEOUT, TaskRunState, Work, doubt, tool_outcome};
use crate::{
    delegation::DelegationMsg,
    mcp_connection::{CallError, ToolResult},
};

impl TaskRunState {
    /// Ends what is under way. Peers outside of this mesh hear of it when the task itself has ended.
    pub(super) async fn shut_down(&mut self) {
        self.preparing = None;
        self.proposing = None;
        self.deadline = None;
        self.patience = None;
        let ended = !self.refresh() || self.view.state.is_terminal();
        let is_late = !ended && !self.gave_away && self.has_lost_its_lease();
        if is_late {
            let unsaid = self.outbox.take_unsaid();
            self.testify_of(unsaid);
        }
        if ended {
            self.cancel_what_was_sent();
        }
        self.park_asking();
        let mut ends = Vec::new();
        for (step, running) in std::mem::take(&mut self.running) {
            match running.work {
                Work::Call { cancel, task, .. } => ends.push(Ending::Call { step, cancel, task, is_late }),
                Work::Delegation(actor) => {
                    if !ended || actor.cast(DelegationMsg::Cancel).is_err() {
                        actor.stop(None);
                    }
                    ends.push(Ending::Delegation(actor));
                }
                Work::Resting => {}
            }
        }
        let all = futures::future::join_all(ends.into_iter().map(Ending::wait));
        match tokio::time::timeout(STOP_TIMEOUT, all).await {
            Ok(known) => known.into_iter().flatten().for_each(|(step, outcome)| self.testify(step, outcome)),
            Err(_) => tracing::warn!(task = %self.id(), "work of a stopped run did not end in time and was aborted"),
        }
        self.end_spans();
    }

    fn end_spans(&mut self) {
        for (_, mut span) in std::mem::take(&mut self.step_spans) {
            if self.view.state == TaskState::Canceled {
                span.fail(names::error::CANCELED, "the task was canceled");
            }
            span.end();
        }
        let Some(mut turn) = self.turn.take() else { return };
        if self.view.state == TaskState::Canceled {
            turn.fail(names::error::CANCELED, "the task was canceled");
        }
        turn.end();
    }
}

/// Something that a stopping run waits for.
enum Ending {
    Call { step: StepNo, cancel: CancellationToken, task: AbortOnDropHandle<Option<Outcome>>, is_late: bool },
    Delegation(ActorRef<DelegationMsg>),
}

impl Ending {
    /// What came of it, if that is still of interest: of a call under a lease that was lost.
    async fn wait(self) -> Option<(StepNo, Outcome)> {
        match self {
            Ending::Call { step, cancel, mut task, is_late } => {
                if is_late && let Ok(ended) = tokio::time::timeout(doubt::LATE_ANSWER_WAIT, &mut task).await {
                    return ended.ok().flatten().map(|outcome| (step, outcome));
                }
                cancel.cancel();
                let ended = task.await.ok().flatten();
                ended.filter(|_| is_late).map(|outcome| (step, outcome))
            }
            Ending::Delegation(actor) => {
                drop(actor.wait(None).await);
                None
            }
        }
    }
}

/// What a call's end says about its effect; none if it leaves that open.
pub(super) fn what_happened(result: &Result<ToolResult, CallError>) -> Option<Outcome> {
    match result {
        Err(error) if error.may_have_happened || error.error_type == names::error::CANCELED => None,
        result => Some(tool_outcome(result.clone())),
    }
}

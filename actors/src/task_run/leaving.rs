//! How a run leaves its node without a step in doubt: it begins nothing new, waits for what must not be interrupted, and
//! gives the task away at the end of a step.
//!
//! ```text
//! told to leave ──▶ nothing new ──▶ the call that must not run twice has ended ──▶ Released ──▶ another node has it
//!                                   a step that may be repeated: for as long as the patience lasts
//! ```
//! A task that no other node can take goes on here as if nothing had been said.

use ractor::ActorProcessingErr;
use std::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use towline_core::{Intent, Interruption, OwnerWord, Step};

use super::{Phase, TaskRunMsg, TaskRunState};
use crate::decision::{MAX_SIDE_BY_SIDE, Next};

/// Why nothing new is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leave {
    /// The node is drained: the task moves as soon as it can. Steps that may be repeated are waited for until then.
    Move { until: Instant },
    /// The node stops in a moment, and then gives up all its leases.
    Stop,
}

impl TaskRunState {
    /// Leaves, or no longer. May be said again: whether another node can take the task is looked at each time.
    pub(super) async fn leave(&mut self, leave: Option<Leave>) -> Result<(), ActorProcessingErr> {
        self.leave = leave;
        self.patience = leave.and_then(|leave| self.wait_out(leave));
        match self.phase {
            Phase::Preparing if self.may_move() => self.release(),
            Phase::Running => return self.advance().await,
            Phase::Preparing | Phase::Beginning | Phase::Leaving | Phase::Ending => {}
        }
        Ok(())
    }

    /// What is still to be followed of what comes next; none if there is nothing but to wait, or the task was given away.
    pub(super) fn unless_leaving(&mut self, next: Next) -> Option<Next> {
        let stops = self.leave == Some(Leave::Stop);
        let moves = self.may_move();
        if !stops && !moves {
            return Some(next);
        }
        let begun = self.begun_and_not_done();
        if !begun.is_empty() {
            let slots = MAX_SIDE_BY_SIDE.saturating_sub(self.running.len());
            return (slots > 0).then(|| Next::Perform(begun.into_iter().take(slots).collect()));
        }
        if ends_the_lease(&next) {
            return Some(next);
        }
        if moves && !self.is_held() {
            self.release();
        }
        None
    }

    /// The answer to [`OwnerWord::Released`] is in the state: another node has the task, or none could take it.
    pub(super) async fn released(&mut self) -> Result<(), ActorProcessingErr> {
        let node = self.context.shared.cluster.node_id();
        if self.view.lease_under(node, self.epoch).is_none() {
            self.gave_away = true;
            self.stop();
            return Ok(());
        }
        if self.phase == Phase::Leaving && self.begins == 0 {
            self.phase = Phase::Preparing;
            if self.permits.is_some() {
                self.begin();
            }
            return Ok(());
        }
        if self.phase == Phase::Leaving {
            self.phase = Phase::Running;
        }
        self.advance().await
    }

    fn wait_out(&self, leave: Leave) -> Option<AbortOnDropHandle<()>> {
        let Leave::Move { until } = leave else { return None };
        let left = until.checked_duration_since(Instant::now())?;
        let myself = self.myself.clone();
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::time::sleep(left).await;
            // A run that has stopped has left.
            let _ = myself.cast(TaskRunMsg::PatienceOver.into());
        })))
    }

    fn may_move(&self) -> bool {
        let cluster = &self.context.shared.cluster;
        matches!(self.leave, Some(Leave::Move { .. }))
            && cluster.local(|state| state.has_another_open_host(&self.view.agent, cluster.node_id()))
    }

    fn release(&mut self) {
        self.phase = Phase::Leaving;
        self.outbox.push(OwnerWord::Released);
        self.pump();
    }

    /// Intents of this run that are committed: left so, the next owner would have to ask whether they happened.
    fn begun_and_not_done(&self) -> Vec<towline_core::StepNo> {
        let is_begun = |step: &&Step| {
            step.ended.is_none()
                && step.intent.when_interrupted() == Interruption::InDoubt
                && self.mine.contains(&step.no)
                && !self.running.contains_key(&step.no)
                && !self.doubtful.contains_key(&step.no)
        };
        self.view.journal.iter().filter(is_begun).map(|step| step.no).collect()
    }

    /// Whether something is under way that has to end first.
    fn is_held(&self) -> bool {
        let is_patient = matches!(self.leave, Some(Leave::Move { until }) if Instant::now() < until);
        let mut under_way = self.running.keys().filter_map(|no| self.view.step(*no));
        under_way.any(|step| holds(&step.intent, is_patient))
    }
}

fn holds(intent: &Intent, is_patient: bool) -> bool {
    match intent.when_interrupted() {
        Interruption::Harmless => false,
        Interruption::Repeated => is_patient,
        Interruption::InDoubt => true,
    }
}

/// What leaves nothing to move.
fn ends_the_lease(next: &Next) -> bool {
    match next {
        Next::Doubt(_)
        | Next::Ask(_)
        | Next::AskAgain(..)
        | Next::AskForPeer(..)
        | Next::Complete
        | Next::Fail(_)
        | Next::Reject(_) => true,
        Next::TakeUp { .. } | Next::Perform(_) | Next::Call(_) | Next::Wait | Next::Think | Next::Relay => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::tests::message;
    use towline_core::OnAdoption;

    fn tool(on_adoption: OnAdoption) -> Intent {
        Intent::Tool {
            call_id: "c".into(),
            server: "s".into(),
            tool: "t".into(),
            arguments: serde_json::json!({}),
            on_adoption,
        }
    }

    fn delegation(own_mesh: bool, peer_task: Option<&str>) -> Intent {
        Intent::Delegate {
            call_id: "c".into(),
            target: "legal".into(),
            own_mesh,
            message: Box::new(message("read it")),
            peer_task: peer_task.map(str::to_owned),
            on_adoption: OnAdoption::Ask,
            handover: towline_core::Handover::Delegation,
        }
    }

    #[test]
    fn a_call_that_must_not_run_twice_holds_for_ever() {
        for on_adoption in [OnAdoption::Ask, OnAdoption::Fail] {
            assert!(holds(&tool(on_adoption), true) && holds(&tool(on_adoption), false));
        }
        assert!(holds(&delegation(false, None), false), "nobody could find the peer's task again");
    }

    #[test]
    fn what_may_be_repeated_holds_while_there_is_patience() {
        for intent in [tool(OnAdoption::Retry), Intent::Model { model: "m".into() }] {
            assert!(holds(&intent, true) && !holds(&intent, false), "{intent:?}");
        }
    }

    #[test]
    fn a_delegation_that_is_found_again_holds_nothing() {
        for intent in [delegation(true, None), delegation(false, Some("t-1"))] {
            assert!(!holds(&intent, true), "{intent:?}");
        }
    }

    #[test]
    fn a_task_that_comes_to_its_end_is_not_moved_and_one_that_would_go_on_is() {
        assert!(ends_the_lease(&Next::Complete) && ends_the_lease(&Next::Fail("no".into())));
        assert!(!ends_the_lease(&Next::Think) && !ends_the_lease(&Next::Call(Vec::new())));
    }
}

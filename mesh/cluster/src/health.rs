//! Whether this node does its part. A leader that has entries committed and does not apply them keeps everybody waiting: it
//! answers no keep-alive and hands over. It never waits for the state, which may be what stands still.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use openraft::async_runtime::WatchReceiver as _;
use tokio::time::{Instant, sleep};

use crate::{handle::ClusterHandle, raft::log_store::LogHealth};

/// How often the applied index is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// So many bad looks in a row, 5 s, are no pause of a busy machine. Looks are counted, not time: a process that was stopped
/// has not looked.
const STALLED_AFTER: u32 = 50;
/// So many entries wait for less than a second on any machine that keeps up.
const MAX_BEHIND: u64 = 20_000;
/// A leader that stalls hands over this often at most: nobody may be there to take over.
const STEP_DOWN_EVERY: Duration = Duration::from_secs(10);

/// What is known of how this node applies what is committed.
#[derive(Debug, Default)]
pub(crate) struct Applying(Mutex<Looks>);

#[derive(Debug, Default)]
struct Looks {
    applied: u64,
    behind: u64,
    /// In a row.
    bad: u32,
}

impl Looks {
    fn look(&mut self, applied: u64, committed: u64) {
        self.behind = committed.saturating_sub(applied);
        let stands = self.behind > 0 && applied == self.applied;
        self.applied = applied;
        self.bad = if stands || self.behind > MAX_BEHIND { self.bad.saturating_add(1) } else { 0 };
    }

    fn stall(&self) -> Option<u64> {
        (self.bad >= STALLED_AFTER).then_some(self.behind)
    }
}

impl Applying {
    /// How many entries are committed and not applied, if that has been so for too long.
    pub(crate) fn stall(&self) -> Option<u64> {
        self.lock().stall()
    }

    fn lock(&self) -> MutexGuard<'_, Looks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks for as long as the node runs, and has it step down where it leads and stalls.
pub(crate) async fn watch(cluster: ClusterHandle) {
    let leadership = cluster.leadership();
    let Some(raft) = leadership.raft() else { return };
    let applied = leadership.view().applied();
    let mut stepped_down: Option<Instant> = None;
    loop {
        sleep(LOOK_EVERY).await;
        let committed = raft.metrics().borrow_watched().cluster_committed;
        let applied = *applied.borrow();
        leadership.applying().lock().look(applied, committed.map_or(0, |log_id| log_id.index));
        let Some(behind) = leadership.applying().stall() else { continue };
        let leads = raft.as_leader().is_ok();
        if leads && stepped_down.is_none_or(|at| at.elapsed() >= STEP_DOWN_EVERY) {
            stepped_down = Some(Instant::now());
            tracing::error!(node = %cluster.node_id(), behind, "applies nothing although entries are committed: leadership is handed over");
            cluster.hand_over_blindly().await;
        }
    }
}

/// Why a node cannot do its part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Unwell {
    /// What kind of problem it is: one of a few words, which says nothing of this machine.
    pub class: &'static str,
    /// What is wrong, for the operator.
    pub detail: String,
}

impl Unwell {
    fn new(class: &'static str, detail: impl Into<String>) -> Self {
        Self { class, detail: detail.into() }
    }
}

impl ClusterHandle {
    /// Says why this node cannot do its part, if so. Never waits.
    ///
    /// # Errors
    /// What is wrong.
    pub fn health(&self) -> Result<(), Unwell> {
        let leadership = self.leadership();
        if let Some(raft) = leadership.raft()
            && let Err(fatal) = &raft.metrics().borrow_watched().running_state
        {
            return Err(Unwell::new("raft_stopped", format!("raft core stopped: {fatal}")));
        }
        if let Some(routes) = leadership.routes() {
            routes.stop_reason().map_or(Ok(()), |reason| Err(Unwell::new("stopping", reason)))?;
            if routes.fed_by().is_none() {
                let detail = "no voter feeds this worker at the moment: what it shows may be stale";
                return Err(Unwell::new("not_fed", detail));
            }
        }
        if leadership.leader().is_none() {
            return Err(Unwell::new("no_leader", "no leader is known"));
        }
        if let Some(trouble) = self.disk_trouble() {
            return Err(trouble);
        }
        if let Some(behind) = leadership.applying().stall() {
            let detail = format!("{behind} entries are committed and not applied on this node: what it shows is stale");
            return Err(Unwell::new("not_applied", detail));
        }
        if !self.may_act() {
            let detail = "no leader has answered this node for a while: what it shows may be stale";
            return Err(Unwell::new("cut_off", detail));
        }
        Ok(())
    }

    /// Why this node cannot write its log, if so. Never waits.
    pub(crate) fn disk_trouble(&self) -> Option<Unwell> {
        let log = self.leadership().log()?;
        match log.health() {
            LogHealth::Ok => None,
            LogHealth::Full => {
                let why = log.has_room().map_or_else(|full| full.to_string(), |()| "a write waits".into());
                Some(Unwell::new("disk_full", format!("the disk is full: {why}")))
            }
            LogHealth::Failed { detail } => {
                Some(Unwell::new("disk_failed", format!("the disk cannot be written: {detail}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(looks: impl IntoIterator<Item = (u64, u64)>) -> Option<u64> {
        let mut known = Looks::default();
        looks.into_iter().for_each(|(applied, committed)| known.look(applied, committed));
        known.stall()
    }

    #[test]
    fn a_node_that_applies_nothing_for_a_while_has_stalled() {
        let looks = (0..=u64::from(STALLED_AFTER)).map(|look| (7, 8 + look));
        assert_eq!(after(looks), Some(1 + u64::from(STALLED_AFTER)));
        let one_less = (0..u64::from(STALLED_AFTER)).map(|look| (7, 8 + look));
        assert_eq!(after(one_less), None);
    }

    #[test]
    fn a_node_with_nothing_to_apply_or_that_gets_on_has_not_stalled() {
        assert_eq!(after((0..1_000).map(|_| (7, 7))), None);
        assert_eq!(after((0..1_000).map(|look| (look, look + 500))), None);
        let stands_then_goes_on = (0..1_000).map(|look| (look / 40, 1_000));
        assert_eq!(after(stands_then_goes_on), None);
    }

    #[test]
    fn a_node_that_gets_on_and_falls_ever_further_behind_has_stalled() {
        let looks = (0..u64::from(STALLED_AFTER)).map(|look| (look, MAX_BEHIND + 1 + 2 * look));
        assert!(after(looks).is_some());
    }
}

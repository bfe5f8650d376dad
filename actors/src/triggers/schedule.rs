//! Looks after one schedule. Started by the triggers actor with the lease, ended by it when the lease is another's. The time is
//! that of this node's clock; which times have come is in the state, so none fires twice however often it is claimed.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use towline_core::{Epoch, Occasion, Rejection, Timestamp, TriggerReport, TriggerSource, TriggerSpec};

use super::{
    clock::{Clock, Due},
    firing::{self, FireError},
};
use crate::shared::Shared;

/// Longest sleep: a clock that was set is noticed within this time.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Wait before a task that could not be started is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// Fires when it is time, until the lease is another's.
pub(super) async fn run(shared: Arc<Shared>, spec: TriggerSpec, epoch: Epoch) {
    let TriggerSource::Schedule { when, missed } = &spec.source else { return };
    let clock = match Clock::new(when) {
        Ok(clock) => clock,
        Err(error) => return tracing::error!(trigger = %spec.name, error, "schedule"),
    };
    loop {
        let known = shared.cluster.local(|state| {
            let trigger = state.trigger(&spec.name)?;
            Some((trigger.since(), trigger.number, trigger.trouble.clone()))
        });
        let Some((since, number, trouble)) = known else { return };
        let now = now();
        let turn = Turn { shared: &shared, spec: &spec, epoch, number };
        match clock.due(*missed, since, now) {
            Due::Wait(at) => {
                let wait = at.map_or(LOOK_EVERY, |at| Duration::from_millis(at.0.saturating_sub(now.0)));
                tokio::time::sleep(wait.min(LOOK_EVERY)).await;
            }
            Due::Skip { at, skipped } => {
                tracing::warn!(event = "trigger.missed", trigger = %spec.name, skipped, "times of a schedule were missed");
                if turn.report(Some(at), skipped, None).await.is_err() {
                    return;
                }
            }
            Due::Fire { at, skipped } => {
                let occasion = Occasion::Tick { epoch, at };
                match firing::fire_surely(&shared.cluster, &spec, occasion, (None, skipped)).await {
                    Ok(_) => {}
                    Err(FireError::Refused(Rejection::StaleTrigger { .. })) => return,
                    Err(error) => {
                        let why = format!("no task: {error}");
                        if trouble.as_ref() != Some(&why) && turn.report(None, 0, Some(why)).await.is_err() {
                            return;
                        }
                        tokio::time::sleep(RETRY).await;
                    }
                }
            }
        }
    }
}

struct Turn<'a> {
    shared: &'a Shared,
    spec: &'a TriggerSpec,
    epoch: Epoch,
    number: u64,
}

impl Turn<'_> {
    async fn report(&self, tick: Option<Timestamp>, skipped: u64, trouble: Option<String>) -> Result<(), Rejection> {
        let report = TriggerReport {
            name: self.spec.name.clone(),
            epoch: self.epoch,
            number: self.number + 1,
            seen: None,
            tick,
            skipped,
            push: None,
            trouble,
        };
        firing::report_surely(&self.shared.cluster, report).await
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

//! What a node still has to say when the run that it is about has gone: what a lost owner knows of its last calls, and to
//! peers that a task which waited was canceled. Best effort, bounded in number and time, and ended with the node.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::{task::JoinSet, time::Instant};
use towline_cluster::{ClusterHandle, ProposeError};
use towline_core::{Command, LateReport, Principal, Proposal, Rejection};

/// Most errands at a time: evidence and courtesy, so beyond it they are dropped and logged.
const MAX_ERRANDS: usize = 64;

/// How long a lost owner tries to be heard: a partition that lasts longer is for a person to look at.
const TESTIFY_WITHIN: Duration = Duration::from_secs(120);

/// Wait between two tries: the session of a node that was cut off is found again in about this time.
const TESTIFY_PAUSE: Duration = Duration::from_millis(500);

/// Largest outcome that is told, in bytes: what is kept of it is far smaller.
const MAX_TOLD_BYTES: usize = 16 * 1024;

/// The errands that are under way.
#[derive(Default)]
pub(crate) struct Errands(Mutex<JoinSet<()>>);

impl Errands {
    /// Runs an errand.
    pub(crate) fn run(&self, what: &'static str, errand: impl Future<Output = ()> + Send + 'static) {
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while under_way.try_join_next().is_some() {}
        if under_way.len() >= MAX_ERRANDS {
            tracing::warn!(what, limit = MAX_ERRANDS, "errand is dropped: too many are under way");
            return;
        }
        under_way.spawn(errand);
    }

    /// Tells the cluster what came of a step under a lease that has ended.
    pub(crate) fn testify(&self, cluster: ClusterHandle, mut report: LateReport) {
        shorten(&mut report.outcome);
        self.run("late result", async move {
            let (task, step) = (report.task, report.step);
            match tokio::time::timeout(TESTIFY_WITHIN, told(&cluster, report)).await {
                Ok(Ok(())) => {
                    tracing::warn!(%task, step = step.0, "late result was told as evidence, and is not applied")
                }
                Ok(Err(refused)) => tracing::info!(%task, step = step.0, %refused, "late result is of no use"),
                Err(_) => tracing::warn!(%task, step = step.0, "late result found nobody to hear it"),
            }
        });
    }
}

/// Proposes until it is heard. It is refused as long as the log still shows the lease as held.
async fn told(cluster: &ClusterHandle, report: LateReport) -> Result<(), Rejection> {
    let proposal = Proposal { by: Principal::Node(cluster.node_id()), command: Command::Testify(Box::new(report)) };
    let began = Instant::now();
    loop {
        match cluster.propose(proposal.clone(), None).await {
            Ok(_) => return Ok(()),
            Err(ProposeError::Rejected(refused @ Rejection::NotAllowed { .. })) => {
                tracing::debug!(%refused, waited = ?began.elapsed(), "late result has to wait");
            }
            Err(ProposeError::Rejected(refused)) => return Err(refused),
            Err(error @ (ProposeError::Unavailable { .. } | ProposeError::Unknown { .. })) => {
                tracing::debug!(%error, "late result is told again");
            }
        }
        tokio::time::sleep(TESTIFY_PAUSE).await;
    }
}

fn shorten(outcome: &mut towline_core::Outcome) {
    use towline_core::Outcome;
    let text = match outcome {
        Outcome::Answered(answer) => &mut answer.text,
        Outcome::Returned { content, .. } => content,
        Outcome::Failed { message, .. } => message,
        Outcome::Stored { .. } => return,
    };
    let end = (0..=MAX_TOLD_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.truncate(end);
}

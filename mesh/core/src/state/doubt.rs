//! The part of the state that settles doubts, and that keeps what former owners tell.

use std::sync::Arc;

use super::{State, Wish, done, key};
use crate::{
    Applied, Effect, Epoch, LateReport, LateResult, Level, Metadata, NodeId, Principal, Rejection, Reply, Resolution,
    Resolve, Stamp, StepNo, Task, TaskId, doubt, limits,
};

impl State {
    /// How many results of former owners were kept as evidence since the cluster began.
    pub fn late_results(&self) -> u64 {
        self.late_results
    }

    pub(super) fn resolve(&mut self, by: Principal, resolve: Resolve, stamp: Stamp) -> Result<Applied, Rejection> {
        let Resolve { request, task: id, step, verdict, trace } = resolve;
        let Some(task) = self.task_for(&by, id) else {
            return self.resolve_ended(&by, id, request);
        };
        let settled = |step: &crate::Step| step.resolved.as_ref().is_some_and(|resolved| resolved.request == request);
        if task.journal.iter().any(settled) {
            return Ok(Applied { reply: Reply::Continued { task: id }, effects: Vec::new() });
        }
        let no = step_in_doubt(task, step)?;
        let size = doubt::verdict_size(&verdict);
        if size > limits::MAX_CONTENT_BYTES || task.bytes + size > limits::MAX_TASK_BYTES {
            let limit = limits::MAX_CONTENT_BYTES as u64;
            return Err(Rejection::TooLarge { what: "verdict in bytes".into(), limit });
        }

        let task = self.tasks.get_mut(&key(id)).map(Arc::make_mut).expect("task was found above");
        task.bytes += size;
        let word = verdict.word();
        let step = task.journal.get_mut(no.0 as usize).expect("the step is in doubt");
        doubt::settle(step, &verdict, stamp.at);
        let denies = verdict.denies();
        step.resolved = Some(Resolution { request, by, verdict, at: stamp.at });
        task.restored &= !denies;
        let rest = task.numbers_in_doubt();
        if !rest.is_empty() {
            let note = format!("step {no} was decided: {word}. Still in doubt: step {}", doubt::listed(&rest));
            task.ask_again(note, stamp.at);
            return Ok(Applied { reply: Reply::Continued { task: id }, effects: vec![Effect::Changed { task: id }] });
        }
        let decided = serde_json::json!({ "as": word, "step": no });
        Ok(self.go_on(id, trace, Metadata::from([("dev.towline/resolved".to_owned(), decided)]), stamp))
    }

    pub(super) fn testify(&mut self, by: &Principal, report: LateReport, stamp: Stamp) -> Result<Applied, Rejection> {
        let LateReport { task: id, epoch, step: no, .. } = report;
        let Some(task) = self.task(id) else {
            return Err(self.refuse_of_ended(id));
        };
        let state = task.status.state;
        if state.is_terminal() {
            return Err(Rejection::TaskEnded { task: id, state });
        }
        let node = former_owner(task, by, epoch).ok_or_else(|| Rejection::NotAllowed { by: by.to_string() })?;
        if !task.step(no).is_some_and(doubt::is_effect) {
            return Err(Rejection::UnexpectedStep { step: no });
        }
        if task.has_heard(epoch, no) {
            return Ok(done(Vec::new()));
        }
        if !task.has_room_for_late_results() {
            let limit = limits::MAX_LATE_RESULTS as u64;
            return Err(Rejection::TooLarge { what: "number of late results of the task".into(), limit });
        }

        let late = LateResult::new(node, report, stamp.at);
        let name = self.node(node).map_or_else(|| node.to_string(), |node| node.name.clone());
        let note = late.describe(&name);
        self.late_results += 1;
        let task = self.tasks.get_mut(&key(id)).map(Arc::make_mut).expect("task was found above");
        task.bytes += late.text.len();
        task.late_results.push(late);
        let generation = task.generation;
        if state.is_interrupted() && task.numbers_in_doubt().contains(&no) {
            task.ask_again(note, stamp.at);
        }
        let changed = task.generation != generation;
        Ok(done(changed.then_some(Effect::Changed { task: id }).into_iter().collect()))
    }
}

/// The step that is meant, if a person can decide about it.
fn step_in_doubt(task: &Task, step: Option<StepNo>) -> Result<StepNo, Rejection> {
    let in_doubt = if task.status.state.is_interrupted() { task.numbers_in_doubt() } else { Vec::new() };
    match (step, in_doubt.as_slice()) {
        (_, []) => Err(Rejection::NotInDoubt { task: task.id, state: task.status.state }),
        (Some(step), _) if in_doubt.contains(&step) => Ok(step),
        (Some(step), _) => Err(Rejection::StepNotInDoubt { task: task.id, step, in_doubt }),
        (None, [only]) => Ok(*only),
        (None, _) => Err(Rejection::SeveralInDoubt { task: task.id, in_doubt }),
    }
}

/// The node behind `by`, if it ran the task and its lease is over.
fn former_owner(task: &Task, by: &Principal, epoch: Epoch) -> Option<NodeId> {
    let Principal::Node(node) = by else { return None };
    let is_over = task.lease.as_ref().is_none_or(|lease| epoch < lease.epoch);
    (is_over && task.ran_on.contains(node)).then_some(*node)
}

impl State {
    /// A task that waited for its client goes on: it is submitted again and given to a node.
    pub(super) fn go_on(
        &mut self,
        id: TaskId,
        trace: crate::TraceContext,
        metadata: Metadata,
        stamp: Stamp,
    ) -> Applied {
        let task = self.tasks.get_mut(&key(id)).map(Arc::make_mut).expect("the caller has found the task");
        task.turn.span = None;
        task.turn.parent = trace;
        task.turn.started = stamp.at;
        task.set_status(stamp.at, crate::TaskState::Submitted, None, metadata);
        let has_call = |step: &crate::Step| {
            step.doubt.is_none() && step.asked.is_none() && matches!(step.intent, crate::Intent::Tool { .. })
        };
        let where_it_asked = task.ran_on.last().copied().filter(|_| task.open_steps().any(has_call));
        let wish = where_it_asked.filter(|_| self.is_at(Level::OPEN_CALLS)).map_or(Wish::None, Wish::Prefer);
        self.unassigned.insert(id);
        let mut effects = vec![Effect::Changed { task: id }];
        self.assign(id, wish, stamp, &mut effects);
        Applied { reply: Reply::Continued { task: id }, effects }
    }
}

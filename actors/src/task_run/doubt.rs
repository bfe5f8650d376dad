//! Effects that may have happened: calls whose connection broke, the question to a person, and what a run that lost its
//! lease still learns.

use std::time::Duration;
use towline_core::{Digest, Intent, LateReport, Metadata, OnAdoption, Outcome, OwnerWord, Step, StepNo};

use super::{Phase, TaskRunState, shortened, view::View};
use crate::{mcp_connection::CallError, toolbox::step_key};

/// How long a run that lost its lease listens for answers that are on their way: one that came while the process stood
/// still is read within it, and a new owner is not kept waiting, since it does not wait for this one.
pub(super) const LATE_ANSWER_WAIT: Duration = Duration::from_secs(1);

/// Key of the structured form of a question about steps in doubt.
const IN_DOUBT_KEY: &str = "dev.towline/inDoubt";

/// What every text about an effect in doubt says.
const MAY_HAVE_HAPPENED: &str = "it may have happened";

impl TaskRunState {
    /// The connection broke between a call and its answer. What may run again does so once; of anything else it is said
    /// that it may have happened, to a person or to the model.
    pub(super) fn call_lost(&mut self, no: StepNo, error: CallError) {
        let Some(step) = self.view.step(no).cloned() else { return };
        let why = format!("the connection to the server broke before it answered: {}", error.message);
        let message = format!("{why}; {MAY_HAVE_HAPPENED}");
        match step.intent.on_adoption() {
            OnAdoption::Retry if self.repeated.insert(no) => {
                self.close_span(no, &error.error_type, &message);
                let span = self.open_span(no, &step.intent, step.attempt + 1);
                self.outbox.push(OwnerWord::StepRestarted { step: no, span });
            }
            OnAdoption::Ask => {
                self.close_span(no, &error.error_type, &message);
                self.doubtful.insert(no, why);
            }
            OnAdoption::Retry | OnAdoption::Fail => {
                self.end_step(no, Outcome::Failed { error_type: error.error_type.into_owned(), message });
            }
        }
    }

    /// A task that was open when its cluster was saved may have made the call after that: under the same key, but a server need
    /// not know it.
    pub(super) fn doubt_if_restored(&mut self, no: StepNo) {
        let Some(step) = self.view.step(no).filter(|_| self.view.restored) else { return };
        let may_repeat = step.intent.on_adoption() == OnAdoption::Retry;
        if matches!(step.intent, Intent::Tool { .. }) && !may_repeat {
            let why = "this cluster began with a saved one, in which the call may have been made after it was saved";
            self.close_span(no, "in_doubt", why);
            self.doubtful.insert(no, why.to_owned());
        }
    }

    fn close_span(&mut self, no: StepNo, error_type: &str, message: &str) {
        self.running.remove(&no);
        if let Some(mut span) = self.step_spans.remove(&no) {
            span.fail(error_type, message);
            span.end();
        }
    }

    /// Asks a person what became of steps, and ends the lease.
    pub(super) fn ask_about(&mut self, steps: Vec<StepNo>) {
        let in_doubt: Vec<Step> = steps.iter().filter_map(|no| self.view.step(*no)).cloned().collect();
        let lost = self.view.adoption.as_ref().map(|adoption| self.node_name(adoption.from));
        let described: Vec<Described<'_>> = in_doubt.iter().map(|step| self.describe(step, lost.as_deref())).collect();
        let texts: Vec<String> = described.iter().map(|described| described.text(&self.view)).collect();
        let text =
            format!("It is not known whether this happened:\n{}\n{}", texts.join("\n"), how_to_answer(self, &steps));
        let data = described.iter().map(|described| described.data(&self.view)).collect::<Vec<_>>();
        let metadata = Metadata::from([(IN_DOUBT_KEY.to_owned(), data.into())]);
        let evidence: Vec<String> = steps
            .iter()
            .flat_map(|no| self.view.late_results.iter().filter(move |late| late.step == *no))
            .map(|late| late.describe(&self.node_name(late.node)))
            .collect();
        let text = if evidence.is_empty() { text } else { format!("{text}\n{}", evidence.join("\n")) };
        let message = self.say(text, metadata);
        self.phase = Phase::Ending;
        self.outbox.push(OwnerWord::Doubt { steps, message });
        self.pump();
    }

    fn describe<'a>(&self, step: &'a Step, lost: Option<&str>) -> Described<'a> {
        let (why, lost_node) = match (self.doubtful.get(&step.no), lost) {
            (Some(why), _) => (why.clone(), None),
            (None, Some(lost)) => (format!("node {lost}, which ran it, was lost"), Some(lost.to_owned())),
            (None, None) => ("the run that began it was stopped".to_owned(), None),
        };
        Described { step, why, lost_node }
    }

    fn node_name(&self, node: towline_core::NodeId) -> String {
        let name = self.context.shared.cluster.local(|state| state.node(node).map(|node| node.name.clone()));
        name.map_or_else(|| node.to_string(), |name| format!("{name} ({node})"))
    }

    /// Hands what is known of a step to the cluster as evidence, since a lease that has ended reports nothing more.
    pub(super) fn testify(&self, step: StepNo, outcome: Outcome) {
        let report = LateReport { task: self.id(), epoch: self.epoch, step, outcome };
        self.context.shared.errands.testify(self.context.shared.cluster.clone(), report);
    }

    /// Whether this run may no longer report: then what its calls come to is evidence.
    pub(super) fn has_lost_its_lease(&self) -> bool {
        let cluster = &self.context.shared.cluster;
        !cluster.may_act() || self.view.lease_under(cluster.node_id(), self.epoch).is_none()
    }

    /// Tells of outcomes that are known here and were not taken.
    pub(super) fn testify_of(&self, words: Vec<OwnerWord>) {
        for (step, outcome) in words.into_iter().filter_map(ended) {
            let of_effect = self.view.step(step).is_some_and(|step| is_effect(&step.intent));
            if of_effect {
                self.testify(step, outcome);
            }
        }
    }
}

fn ended(word: OwnerWord) -> Option<(StepNo, Outcome)> {
    match word {
        OwnerWord::StepEnded { step, outcome } => Some((step, outcome)),
        OwnerWord::TurnStarted { .. }
        | OwnerWord::StepStarted { .. }
        | OwnerWord::StepRestarted { .. }
        | OwnerWord::PeerTask { .. }
        | OwnerWord::Chunk { .. }
        | OwnerWord::AskPerson { .. }
        | OwnerWord::Doubt { .. }
        | OwnerWord::Released
        | OwnerWord::OutsideInput { .. }
        | OwnerWord::Finished { .. } => None,
    }
}

fn is_effect(intent: &Intent) -> bool {
    match intent {
        Intent::Tool { .. } | Intent::Delegate { .. } => true,
        Intent::Model { .. } | Intent::Ask { .. } | Intent::Refused { .. } => false,
    }
}

fn how_to_answer(run: &TaskRunState, steps: &[StepNo]) -> String {
    let first = steps.first().copied().unwrap_or(StepNo(0));
    format!(
        "Answer \"retry\" to run step {first} again, \"done RESULT\" if it happened, or \"failed REASON\"; or decide with \
         `towline task resolve {} --step {first} --as done|retry|failed`.",
        run.id()
    )
}

/// A step in doubt, as it is shown.
struct Described<'a> {
    step: &'a Step,
    why: String,
    lost_node: Option<String>,
}

impl Described<'_> {
    fn text(&self, view: &View) -> String {
        let Step { no, attempt, started, intent, .. } = self.step;
        let (what, said) = what(intent);
        format!(
            "- step {no}: {what} {} (attempt {attempt}, begun {}, arguments {}, key {}): {}",
            shortened(&said),
            towline_a2a::time_text(*started),
            digest(intent),
            step_key(view.id, *no),
            self.why
        )
    }

    fn data(&self, view: &View) -> serde_json::Value {
        let Step { no, attempt, started, intent, .. } = self.step;
        serde_json::json!({
            "argumentsDigest": digest(intent),
            "attempt": attempt,
            "begun": towline_a2a::time_text(*started),
            "key": step_key(view.id, *no),
            "lostNode": self.lost_node,
            "step": no,
            "tool": tool(intent),
            "why": self.why,
        })
    }
}

fn what(intent: &Intent) -> (String, String) {
    match intent {
        Intent::Tool { arguments, .. } => (format!("call of {} with", tool(intent)), arguments.to_string()),
        Intent::Delegate { target, message, .. } => (format!("delegation to {target}:"), message.text()),
        Intent::Model { model } => (format!("call of model {model}"), String::new()),
        Intent::Ask { question, .. } => ("question".to_owned(), question.clone()),
        Intent::Refused { name, .. } => (format!("refusal of {name}"), String::new()),
    }
}

fn tool(intent: &Intent) -> String {
    match intent {
        Intent::Tool { server, tool, .. } => format!("{server}.{tool}"),
        Intent::Delegate { target, .. } => format!("delegate {target}"),
        Intent::Model { model } => model.clone(),
        Intent::Ask { .. } => "ask_human".to_owned(),
        Intent::Refused { name, .. } => name.clone(),
    }
}

/// Two calls with the same digest have the same arguments.
fn digest(intent: &Intent) -> String {
    match intent {
        Intent::Tool { arguments, .. } => Digest::of_json(arguments).to_string(),
        Intent::Delegate { message, .. } => Digest::of_message(message).to_string(),
        Intent::Model { .. } | Intent::Ask { .. } | Intent::Refused { .. } => "-".to_owned(),
    }
}

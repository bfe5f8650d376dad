//! What a task does next: a pure function of its journal and of what is under way.
//!
//! The order of the rules is the order in [`decide`]: first what a lost owner left open, then what is committed and not yet
//! done, then what the model asked for, then the questions, and only when nothing is open the model again or the end.

use std::collections::{BTreeMap, BTreeSet};
use towline_core::{Doubt, Intent, ModelAnswer, OnAdoption, Outcome, Step, StepNo, ToolCall};

use crate::prompt::ASK_HUMAN;

/// Most calls of one task that are under way at the same time: enough for a fan-out to be quick, and few enough that one
/// task does not fill a server or a peer.
pub(crate) const MAX_SIDE_BY_SIDE: usize = 8;

/// Class of a model's error that says: this is nothing that the agent does.
pub(crate) const REJECTED: &str = "rejected";

/// What is known beside the journal.
#[derive(Debug)]
pub(crate) struct Situation<'a> {
    /// The steps, as committed.
    pub journal: &'a [Step],
    /// Steps that this owner began or took up.
    pub mine: &'a BTreeSet<StepNo>,
    /// Steps that are under way.
    pub running: &'a BTreeSet<StepNo>,
    /// Delegations whose peer asks something, and what.
    pub asking: &'a BTreeMap<StepNo, String>,
    /// Delegations whose outcome cannot be found out.
    pub doubtful: &'a BTreeSet<StepNo>,
    /// Most model calls of the task.
    pub max_model_calls: u32,
    /// Whether there is no model, and the task is one of a peer.
    pub relays: bool,
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Next {
    /// Steps that a lost owner left open: these run again, those count as failed.
    TakeUp {
        /// To be committed as restarted.
        restart: Vec<StepNo>,
        /// To be committed as failed.
        fail: Vec<StepNo>,
    },
    /// Do what is committed.
    Perform(Vec<StepNo>),
    /// Commit the intents of these calls.
    Call(Vec<ToolCall>),
    /// Nothing, until something comes back.
    Wait,
    /// Ask a person whether these steps happened.
    Doubt(Vec<StepNo>),
    /// Ask a person what the model wants to know.
    Ask(ToolCall),
    /// Ask again what was asked before.
    AskAgain(StepNo, String),
    /// Ask a person what a peer wants to know.
    AskForPeer(StepNo, String),
    /// Ask the model.
    Think,
    /// Hand the task to the peer whose task it is.
    Relay,
    /// The turn is over.
    Complete,
    /// The turn is over, and this is why.
    Fail(String),
    /// The model does not take the task, and this is why.
    Reject(String),
}

/// Says what to do next.
pub(crate) fn decide(situation: &Situation<'_>) -> Next {
    let journal = situation.journal;
    let (restart, fail) = left_open(situation);
    if !restart.is_empty() || !fail.is_empty() {
        return Next::TakeUp { restart, fail };
    }
    let slots = MAX_SIDE_BY_SIDE.saturating_sub(situation.running.len());
    let ready: Vec<StepNo> = open(journal).filter(|step| is_ready(step, situation)).map(|step| step.no).collect();
    if slots > 0 && !ready.is_empty() {
        return Next::Perform(ready.into_iter().take(slots).collect());
    }
    let (questions, calls): (Vec<_>, Vec<_>) = pending_calls(journal).partition(|call| call.name == ASK_HUMAN);
    if slots > 0 && !calls.is_empty() {
        return Next::Call(calls.into_iter().take(slots).cloned().collect());
    }
    if !situation.running.is_empty() {
        return Next::Wait;
    }
    let doubtful: Vec<StepNo> = open(journal).filter(|step| is_doubtful(step, situation)).map(|step| step.no).collect();
    if !doubtful.is_empty() {
        return Next::Doubt(doubtful);
    }
    if let Some(next) = open(journal).find_map(|step| question(step, situation)) {
        return next;
    }
    if let Some(call) = questions.into_iter().next() {
        return Next::Ask(call.clone());
    }
    if situation.relays { turn_of_the_peer(journal) } else { turn_of_the_model(situation) }
}

/// What a lost owner left open, as far as it can be decided without a person.
fn left_open(situation: &Situation<'_>) -> (Vec<StepNo>, Vec<StepNo>) {
    let (mut restart, mut fail) = (Vec::new(), Vec::new());
    for step in open(situation.journal).filter(|step| !situation.mine.contains(&step.no)) {
        match &step.intent {
            Intent::Model { .. } | Intent::Delegate { .. } if step.doubt != Some(Doubt::Asked) => restart.push(step.no),
            Intent::Tool { .. } => match (step.doubt, step.intent.on_adoption()) {
                (Some(Doubt::Retry), _) | (None, OnAdoption::Retry) => restart.push(step.no),
                (None, OnAdoption::Fail) => fail.push(step.no),
                (None, OnAdoption::Ask) | (Some(Doubt::Asked), _) => {}
            },
            Intent::Refused { .. } => fail.push(step.no),
            Intent::Model { .. } | Intent::Delegate { .. } | Intent::Ask { .. } => {}
        }
    }
    (restart, fail)
}

fn open(journal: &[Step]) -> impl Iterator<Item = &Step> {
    journal.iter().filter(|step| step.ended.is_none())
}

fn is_ready(step: &Step, situation: &Situation<'_>) -> bool {
    situation.mine.contains(&step.no)
        && !situation.running.contains(&step.no)
        && !situation.asking.contains_key(&step.no)
        && !situation.doubtful.contains(&step.no)
        && !matches!(step.intent, Intent::Ask { .. })
}

fn is_doubtful(step: &Step, situation: &Situation<'_>) -> bool {
    let left_by_another = !situation.mine.contains(&step.no) && !matches!(step.intent, Intent::Ask { .. });
    left_by_another || situation.doubtful.contains(&step.no)
}

fn question(step: &Step, situation: &Situation<'_>) -> Option<Next> {
    if let Intent::Ask { question, .. } = &step.intent {
        return Some(Next::AskAgain(step.no, question.clone()));
    }
    let asked = situation.asking.get(&step.no)?;
    Some(Next::AskForPeer(step.no, asked.clone()))
}

/// The calls of the last answer that have no step yet.
pub(crate) fn pending_calls(journal: &[Step]) -> impl Iterator<Item = &ToolCall> {
    let (calls, later) = match last_answer(journal) {
        Some((at, answer)) => (answer.calls.as_slice(), &journal[at + 1..]),
        None => (&[][..], &[][..]),
    };
    calls.iter().filter(move |call| !later.iter().any(|step| step.intent.call_id() == Some(&call.id)))
}

fn last_answer(journal: &[Step]) -> Option<(usize, &ModelAnswer)> {
    let at = last_model_step(journal)?;
    match &journal[at].ended.as_ref()?.outcome {
        Outcome::Answered(answer) => Some((at, answer)),
        Outcome::Returned { .. } | Outcome::Stored { .. } | Outcome::Failed { .. } => None,
    }
}

fn last_model_step(journal: &[Step]) -> Option<usize> {
    journal.iter().rposition(|step| matches!(step.intent, Intent::Model { .. }))
}

/// Nothing is open: the peer has not been asked yet, or has answered.
fn turn_of_the_peer(journal: &[Step]) -> Next {
    let Some(ended) = journal.last().and_then(|step| step.ended.as_ref()) else { return Next::Relay };
    match &ended.outcome {
        Outcome::Returned { content, is_error: true } => Next::Fail(content.clone()),
        Outcome::Failed { message, .. } => Next::Fail(message.clone()),
        Outcome::Returned { is_error: false, .. } | Outcome::Stored { .. } | Outcome::Answered(_) => Next::Complete,
    }
}

/// Nothing is open: the model goes on, or the turn is over.
fn turn_of_the_model(situation: &Situation<'_>) -> Next {
    let journal = situation.journal;
    if let Some(at) = last_model_step(journal)
        && let Some(ended) = &journal[at].ended
    {
        match &ended.outcome {
            Outcome::Answered(answer) if answer.calls.is_empty() => return Next::Complete,
            Outcome::Failed { error_type, message } if error_type == REJECTED => return Next::Reject(message.clone()),
            Outcome::Failed { error_type, message } => {
                return Next::Fail(format!("the model call failed ({error_type}): {message}"));
            }
            Outcome::Answered(_) | Outcome::Returned { .. } | Outcome::Stored { .. } => {}
        }
    }
    let model_calls = journal.iter().filter(|step| matches!(step.intent, Intent::Model { .. })).count();
    if model_calls >= situation.max_model_calls as usize {
        return Next::Fail(format!(
            "stopped after {model_calls} model calls, the limit of this agent (max_steps), before it came to an end"
        ));
    }
    Next::Think
}

/// Makes the ids of an answer's calls unique within it and never empty, since a result finds its call by the id.
pub(crate) fn with_distinct_ids(mut calls: Vec<ToolCall>, step: StepNo) -> Vec<ToolCall> {
    let mut seen = BTreeSet::new();
    for (at, call) in calls.iter_mut().enumerate() {
        if call.id.is_empty() || !seen.insert(call.id.clone()) {
            call.id = format!("call_{step}_{at}");
            seen.insert(call.id.clone());
        }
    }
    calls
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;
    use towline_core::{Asked, Message, MessageId, Metadata, Part, Role, StepRecord, Timestamp, TraceContext, Usage};

    pub(crate) fn message(text: &str) -> Message {
        Message {
            message_id: MessageId::try_from("m1".to_owned()).unwrap(),
            context_id: None,
            task_id: None,
            role: Role::User,
            parts: vec![Part::text(text)],
            metadata: Metadata::new(),
            extensions: vec![],
            reference_task_ids: vec![],
        }
    }

    pub(crate) fn call(id: &str, name: &str) -> ToolCall {
        ToolCall { id: id.into(), name: name.into(), arguments: json!({}) }
    }

    pub(crate) fn step(no: u32, intent: Intent, outcome: Option<Outcome>) -> Step {
        Step {
            no: StepNo(no),
            turn: 1,
            attempt: 1,
            intent,
            span: TraceContext { trace_id: 1, span_id: u64::from(no) + 1, sampled: true },
            parent_span: 1,
            started: Timestamp(5),
            doubt: None,
            asked: None,
            resolved: None,
            ended: outcome.map(|outcome| StepRecord { outcome, at: Timestamp(7) }),
        }
    }

    fn thinking(no: u32) -> Step {
        step(no, Intent::Model { model: "m".into() }, None)
    }

    pub(crate) fn answered(no: u32, text: &str, calls: Vec<ToolCall>) -> Step {
        let answer = ModelAnswer { text: text.into(), calls, usage: Usage::default() };
        step(no, Intent::Model { model: "m".into() }, Some(Outcome::Answered(answer)))
    }

    fn tool(no: u32, id: &str, on_adoption: OnAdoption, outcome: Option<Outcome>) -> Step {
        let intent = Intent::Tool {
            call_id: id.into(),
            server: "fs".into(),
            tool: "read_file".into(),
            arguments: json!({}),
            on_adoption,
        };
        step(no, intent, outcome)
    }

    pub(crate) fn ended_tool(no: u32, id: &str, content: &str) -> Step {
        tool(no, id, OnAdoption::Retry, Some(Outcome::Returned { content: content.into(), is_error: false }))
    }

    pub(crate) fn refused(no: u32, id: &str, why: &str) -> Step {
        let outcome = Outcome::Failed { error_type: "unknown_tool".into(), message: why.into() };
        step(no, Intent::Refused { call_id: id.into(), name: "x".into() }, Some(outcome))
    }

    pub(crate) fn delegate_step(no: u32, id: &str, outcome: Option<Outcome>) -> Step {
        let intent = Intent::Delegate {
            call_id: id.into(),
            target: "reader".into(),
            own_mesh: true,
            message: Box::new(message("read")),
            peer_task: None,
            on_adoption: OnAdoption::Retry,
            handover: towline_core::Handover::Delegation,
        };
        step(no, intent, outcome)
    }

    fn ask(no: u32, id: &str) -> Step {
        step(no, Intent::Ask { call_id: id.into(), question: "which?".into(), to: None }, None)
    }

    #[derive(Default)]
    struct Given {
        mine: BTreeSet<StepNo>,
        running: BTreeSet<StepNo>,
        asking: BTreeMap<StepNo, String>,
        doubtful: BTreeSet<StepNo>,
    }

    impl Given {
        fn mine(numbers: &[u32]) -> Self {
            Self { mine: steps(numbers), ..Self::default() }
        }

        fn running(mut self, numbers: &[u32]) -> Self {
            self.running = steps(numbers);
            self
        }

        fn decide(&self, journal: &[Step]) -> Next {
            decide(&Situation {
                journal,
                mine: &self.mine,
                running: &self.running,
                asking: &self.asking,
                doubtful: &self.doubtful,
                max_model_calls: 3,
                relays: false,
            })
        }
    }

    fn steps(numbers: &[u32]) -> BTreeSet<StepNo> {
        numbers.iter().map(|no| StepNo(*no)).collect()
    }

    #[test]
    fn a_fresh_task_asks_the_model() {
        assert_eq!(Given::default().decide(&[]), Next::Think);
    }

    #[test]
    fn a_committed_intent_is_performed_and_then_awaited() {
        let journal = [thinking(0)];
        assert_eq!(Given::mine(&[0]).decide(&journal), Next::Perform(vec![StepNo(0)]));
        assert_eq!(Given::mine(&[0]).running(&[0]).decide(&journal), Next::Wait);
    }

    #[test]
    fn an_answer_without_calls_completes_the_turn() {
        assert_eq!(Given::mine(&[0]).decide(&[answered(0, "hi", vec![])]), Next::Complete);
    }

    #[test]
    fn calls_of_one_answer_start_side_by_side_up_to_the_bound() {
        let calls: Vec<ToolCall> = (0..10).map(|n| call(&n.to_string(), "fs.read_file")).collect();
        let mut journal = vec![answered(0, "", calls.clone())];
        assert_eq!(Given::mine(&[0]).decide(&journal), Next::Call(calls[..8].to_vec()));
        journal.extend((0..8).map(|n| tool(n + 1, &n.to_string(), OnAdoption::Retry, None)));
        let all: Vec<u32> = (0..=8).collect();
        assert_eq!(Given::mine(&all).running(&all[1..]).decide(&journal), Next::Wait);
        journal[1] = ended_tool(1, "0", "x");
        assert_eq!(Given::mine(&all).running(&all[2..]).decide(&journal), Next::Call(calls[8..9].to_vec()));
    }

    #[test]
    fn when_all_calls_have_ended_the_model_goes_on_until_its_limit() {
        let round = |no| [answered(no, "", vec![call("a", "fs.read_file")]), ended_tool(no + 1, "a", "x")];
        let journal = round(0);
        assert_eq!(Given::mine(&[0, 1]).decide(&journal), Next::Think);
        let journal: Vec<Step> = [round(0), round(2), round(4)].concat();
        let Next::Fail(reason) = Given::mine(&[0, 1, 2, 3, 4, 5]).decide(&journal) else { panic!() };
        assert!(reason.contains("3 model calls"), "{reason}");
    }

    #[test]
    fn a_person_is_asked_only_after_all_other_calls_ended() {
        let calls = vec![call("q", ASK_HUMAN), call("a", "fs.read_file")];
        let mut journal = vec![answered(0, "", calls.clone())];
        assert_eq!(Given::mine(&[0]).decide(&journal), Next::Call(vec![calls[1].clone()]));
        journal.push(tool(1, "a", OnAdoption::Retry, None));
        assert_eq!(Given::mine(&[0, 1]).running(&[1]).decide(&journal), Next::Wait);
        journal[1] = ended_tool(1, "a", "x");
        assert_eq!(Given::mine(&[0, 1]).decide(&journal), Next::Ask(calls[0].clone()));
        journal.push(ask(2, "q"));
        assert_eq!(Given::mine(&[0, 1]).decide(&journal), Next::AskAgain(StepNo(2), "which?".into()));
    }

    #[test]
    fn an_adopter_restarts_what_may_run_again_and_fails_what_must_not() {
        let calls = ["a", "b", "c", "d"].map(|id| call(id, "fs.read_file")).to_vec();
        let journal = [
            answered(0, "", calls),
            tool(1, "a", OnAdoption::Retry, None),
            tool(2, "b", OnAdoption::Fail, None),
            tool(3, "c", OnAdoption::Ask, None),
            delegate_step(4, "d", None),
        ];
        let next = Given::default().decide(&journal);
        assert_eq!(next, Next::TakeUp { restart: vec![StepNo(1), StepNo(4)], fail: vec![StepNo(2)] });
    }

    #[test]
    fn an_effect_in_doubt_waits_for_the_others_and_then_for_a_person() {
        let calls = vec![call("a", "fs.read_file"), call("c", "fs.read_file")];
        let mut journal =
            [answered(0, "", calls), tool(1, "a", OnAdoption::Retry, None), tool(2, "c", OnAdoption::Ask, None)];
        assert_eq!(Given::mine(&[1]).running(&[1]).decide(&journal), Next::Wait);
        journal[1] = ended_tool(1, "a", "x");
        assert_eq!(Given::mine(&[1]).decide(&journal), Next::Doubt(vec![StepNo(2)]));
        journal[2].doubt = Some(Doubt::Retry);
        assert_eq!(Given::default().decide(&journal), Next::TakeUp { restart: vec![StepNo(2)], fail: vec![] });
        journal[2].doubt = Some(Doubt::Asked);
        assert_eq!(Given::default().decide(&journal), Next::Doubt(vec![StepNo(2)]));
    }

    #[test]
    fn a_lost_model_call_runs_again() {
        assert_eq!(Given::default().decide(&[thinking(0)]), Next::TakeUp { restart: vec![StepNo(0)], fail: vec![] });
    }

    #[test]
    fn a_question_of_a_peer_surfaces_when_nothing_else_runs() {
        let calls = vec![call("a", "delegate"), call("b", "delegate")];
        let journal = [answered(0, "", calls), delegate_step(1, "a", None), delegate_step(2, "b", None)];
        let mut given = Given::mine(&[0, 1, 2]).running(&[2]);
        given.asking.insert(StepNo(1), "colour?".into());
        assert_eq!(given.decide(&journal), Next::Wait);
        given.running.clear();
        given.asking.insert(StepNo(2), "size?".into());
        assert_eq!(given.decide(&journal), Next::AskForPeer(StepNo(1), "colour?".into()));
    }

    #[test]
    fn an_answered_question_of_a_peer_takes_the_delegation_up_again() {
        let mut delegate = delegate_step(1, "a", None);
        delegate.asked = Some(Asked::Answered(MessageId::try_from("m2".to_owned()).unwrap()));
        let journal = [answered(0, "", vec![call("a", "delegate")]), delegate];
        assert_eq!(Given::default().decide(&journal), Next::TakeUp { restart: vec![StepNo(1)], fail: vec![] });
    }

    #[test]
    fn a_failed_model_call_fails_the_task_and_says_what_was_tried() {
        let outcome = Outcome::Failed { error_type: "rate_limited".into(), message: "429 three times".into() };
        let journal = [step(0, Intent::Model { model: "m".into() }, Some(outcome))];
        let Next::Fail(reason) = Given::mine(&[0]).decide(&journal) else { panic!() };
        assert!(reason.contains("rate_limited") && reason.contains("429 three times"), "{reason}");
    }

    #[test]
    fn calls_with_the_same_or_no_id_are_told_apart() {
        let calls = with_distinct_ids(vec![call("a", "x"), call("a", "y"), call("", "z")], StepNo(4));
        let ids: Vec<&str> = calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!(ids, ["a", "call_4_1", "call_4_2"]);
    }
}

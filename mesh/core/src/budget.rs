//! What a task may spend: tokens of models, and steps. A message names it, so that it is in the log with the task; what was
//! spent is counted in the journal. A delegation is granted a part of what is left, and what it spent comes back when it ends.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Handover, Intent, Message, Outcome, Step, Task};

/// Metadata key under which a message says what its task may spend: `{"steps": 20, "tokens": 50000}`, each if it is to be bounded.
pub const BUDGET_KEY: &str = "dev.towline/budget";

/// Metadata key under which a message says when its sender gives up, in milliseconds from when it was sent.
pub const DEADLINE_KEY: &str = "dev.towline/deadlineMs";

/// Largest number that every JSON reader takes as it is.
const MAX_NUMBER: u64 = (1 << 53) - 1;

/// What may be spent; what is not named has no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budget {
    /// Tokens of models, in and out.
    pub tokens: Option<u64>,
    /// Model calls, tool calls and delegations.
    pub steps: Option<u64>,
}

/// What was spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Tokens of models, in and out.
    pub tokens: u64,
    /// Model calls, tool calls and delegations.
    pub steps: u64,
}

impl Spent {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { tokens: self.tokens.saturating_add(other.tokens), steps: self.steps.saturating_add(other.steps) }
    }

    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl Budget {
    /// Reads what a message names; none if it names nothing.
    ///
    /// # Errors
    /// What is wrong with it, in words that follow the name of the field.
    pub fn in_message(message: &Message) -> Result<Option<Self>, String> {
        let Some(value) = message.metadata.get(BUDGET_KEY) else { return Ok(None) };
        let problem = || "must be an object with tokens, steps or both, each a whole number from 1".to_owned();
        let fields = value.as_object().filter(|fields| !fields.is_empty()).ok_or_else(problem)?;
        let mut budget = Self::default();
        for (name, value) in fields {
            let number = whole(value).ok_or_else(problem)?;
            match name.as_str() {
                "tokens" => budget.tokens = Some(number),
                "steps" => budget.steps = Some(number),
                _ => return Err(format!("{}; it has no {name:?}", problem())),
            }
        }
        Ok(Some(budget))
    }

    /// As metadata carries it; none if it bounds nothing.
    pub fn to_json(self) -> Option<Value> {
        let fields = [("steps", self.steps), ("tokens", self.tokens)];
        let named: serde_json::Map<String, Value> =
            fields.into_iter().filter_map(|(name, bound)| Some((name.to_owned(), bound?.into()))).collect();
        (!named.is_empty()).then_some(Value::Object(named))
    }

    /// What both allow.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let least = |a: Option<u64>, b: Option<u64>| [a, b].into_iter().flatten().min();
        Self { tokens: least(self.tokens, other.tokens), steps: least(self.steps, other.steps) }
    }

    /// What is left of it.
    #[must_use]
    pub fn less(self, spent: Spent) -> Self {
        let rest = |bound: Option<u64>, spent: u64| bound.map(|bound| bound.saturating_sub(spent));
        Self { tokens: rest(self.tokens, spent.tokens), steps: rest(self.steps, spent.steps) }
    }

    /// An equal part of it for each of so many.
    #[must_use]
    pub fn among(self, count: u64) -> Self {
        let part = |bound: Option<u64>| bound.map(|bound| bound / count.max(1));
        Self { tokens: part(self.tokens), steps: part(self.steps) }
    }

    /// Whether nothing is left of something that it bounds.
    pub fn is_spent(self) -> bool {
        self.tokens == Some(0) || self.steps == Some(0)
    }

    /// It, with what was spent, for a person: `60 of 50 tokens, 3 of 20 steps`.
    pub fn shown(self, spent: Spent) -> String {
        let part = |bound: Option<u64>, spent: u64, what: &str| bound.map(|bound| format!("{spent} of {bound} {what}"));
        let parts = [part(self.tokens, spent.tokens, "tokens"), part(self.steps, spent.steps, "steps")];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// All of it, as if it were spent.
    fn all(self) -> Spent {
        Spent { tokens: self.tokens.unwrap_or(0), steps: self.steps.unwrap_or(0) }
    }
}

/// When the sender of a message gives up, in milliseconds from now; none if it does not say.
///
/// # Errors
/// What is wrong with it, in words that follow the name of the field.
pub fn deadline_in(message: &Message) -> Result<Option<u64>, String> {
    let Some(value) = message.metadata.get(DEADLINE_KEY) else { return Ok(None) };
    whole(value).map(Some).ok_or_else(|| "must be a whole number of milliseconds, from 1".to_owned())
}

/// A number from 1, also where a client's protobuf made a fraction of it that is none.
fn whole(value: &Value) -> Option<u64> {
    let fraction =
        || value.as_f64().filter(|number| number.fract() == 0.0 && (1.0..=MAX_NUMBER as f64).contains(number));
    let number = value.as_u64().or_else(|| fraction().map(|number| number as u64))?;
    (1..=MAX_NUMBER).contains(&number).then_some(number)
}

/// What a journal has spent. What was given away with a message that nobody waits for counts as spent: nobody hears what of it was.
pub fn spent_in(journal: &[Step]) -> Spent {
    journal.iter().map(spent_by).fold(Spent::default(), Spent::plus)
}

/// What is granted to delegations that have not ended.
pub fn granted_in(journal: &[Step]) -> Spent {
    let open = journal.iter().filter(|step| step.ended.is_none());
    open.filter_map(|step| grant_of(&step.intent, Handover::Delegation)).fold(Spent::default(), Spent::plus)
}

fn spent_by(step: &Step) -> Spent {
    let tokens = match step.ended.as_ref().map(|ended| &ended.outcome) {
        Some(Outcome::Answered(answer)) => answer.usage.input.saturating_add(answer.usage.output),
        Some(Outcome::Returned { .. } | Outcome::Stored { .. } | Outcome::Failed { .. }) | None => 0,
    };
    let steps = match &step.intent {
        Intent::Model { .. } | Intent::Tool { .. } | Intent::Delegate { .. } => 1,
        Intent::Ask { .. } | Intent::Refused { .. } => 0,
    };
    Spent { tokens, steps }.plus(grant_of(&step.intent, Handover::Send).unwrap_or_default())
}

/// What a delegation of this kind was granted.
fn grant_of(intent: &Intent, kind: Handover) -> Option<Spent> {
    match intent {
        Intent::Delegate { message, handover, .. } if *handover == kind => {
            Some(Budget::in_message(message).ok()??.all())
        }
        Intent::Delegate { .. }
        | Intent::Model { .. }
        | Intent::Tool { .. }
        | Intent::Ask { .. }
        | Intent::Refused { .. } => None,
    }
}

impl Task {
    /// What it may spend, if its client or the task above it says so.
    pub fn budget(&self) -> Option<Budget> {
        self.history.first().and_then(|message| Budget::in_message(message).ok().flatten())
    }

    /// What it has spent, with what it delegated.
    pub fn spent(&self) -> Spent {
        spent_in(&self.journal).plus(self.spent_below)
    }

    /// Whether a step of it waits for a task that was made by this step, or has waited: then what that spends is this one's.
    pub(crate) fn pays_for(&self, step: crate::StepNo) -> bool {
        let delegates = |step: &Step| matches!(step.intent, Intent::Delegate { handover: Handover::Delegation, .. });
        self.step(step).is_some_and(delegates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Metadata, Part, Role};
    use serde_json::json;

    fn message(metadata: Value) -> Message {
        let metadata: Metadata = serde_json::from_value(metadata).unwrap();
        Message {
            message_id: "m-1".parse().unwrap(),
            context_id: None,
            task_id: None,
            role: Role::User,
            parts: vec![Part::text("read")],
            metadata,
            extensions: Vec::new(),
            reference_task_ids: Vec::new(),
        }
    }

    #[test]
    fn a_budget_is_read_from_a_message_and_what_is_none_is_refused() {
        let read = |budget: Value| Budget::in_message(&message(json!({ BUDGET_KEY: budget })));
        assert_eq!(Budget::in_message(&message(json!({}))), Ok(None));
        let both = Budget { tokens: Some(50), steps: Some(3) };
        assert_eq!(read(json!({ "tokens": 50.0, "steps": 3 })), Ok(Some(both)));
        assert_eq!(read(both.to_json().unwrap()), Ok(Some(both)));
        assert_eq!(Budget::default().to_json(), None);
        for wrong in [json!(5), json!({}), json!({ "tokens": 0 }), json!({ "tokens": -1 }), json!({ "steps": 1.5 })] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
        assert!(read(json!({ "euros": 5 })).unwrap_err().contains("euros"));
        let deadline = |ms: Value| deadline_in(&message(json!({ DEADLINE_KEY: ms })));
        assert_eq!(deadline(json!(1500.0)), Ok(Some(1500)));
        assert!(deadline(json!("soon")).is_err() && deadline(json!(0)).is_err());
    }

    #[test]
    fn what_is_left_is_parted_and_spent() {
        let budget = Budget { tokens: Some(100), steps: None };
        let left = budget.less(Spent { tokens: 40, steps: 7 });
        assert_eq!(left, Budget { tokens: Some(60), steps: None });
        assert_eq!(left.among(7).tokens, Some(8));
        assert!(!left.is_spent() && left.less(Spent { tokens: 90, steps: 0 }).is_spent());
        assert_eq!(budget.and(Budget { tokens: Some(7), steps: Some(2) }), Budget { tokens: Some(7), steps: Some(2) });
        assert_eq!(budget.shown(Spent { tokens: 120, steps: 3 }), "120 of 100 tokens");
    }
}

//! Turns a rule into an answer, and an answer into deltas.

use futures::{StreamExt, stream};
use minijinja::{Value as Jinja, context, value::Serde};
use serde_json::{Map, Value};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};
use towline_core::{ToolCall, Usage};

use super::{
    rules::{CallRule, Rule, Rules},
    view::View,
};
use crate::model::{Delta, MadeArtifact, ModelStream};

/// Most calls of one answer: more than any agent runs in one task.
const MAX_CALLS: usize = 256;

/// Characters that count as one token in the estimate of the usage.
const CHARS_PER_TOKEN: usize = 4;

/// Name of a call that no server offers.
const NO_SUCH_TOOL: &str = "towline.no_such_tool";

/// What the model is about to say.
pub(super) struct Answer {
    pub text: String,
    pub calls: Vec<ToolCall>,
    pub artifacts: Vec<MadeArtifact>,
    /// Whether the text is a plain reply.
    pub reply: bool,
    pub pace: Pace,
    pub ending: Ending,
}

/// How fast it says it.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    pub delay: Duration,
    /// What the first delta waits beyond that.
    pub stagger: Duration,
    pub delta_chars: usize,
}

/// How the stream ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// With usage and an end.
    Proper,
    /// In the middle of the text.
    Cut,
    /// Not at all.
    Never,
}

impl Pace {
    pub(super) fn of(rule: &Rule) -> Self {
        Self { delay: Duration::from_millis(rule.delay_ms), stagger: Duration::ZERO, delta_chars: rule.delta_chars }
    }
}

pub(super) fn respond(
    rules: &Rules,
    rule: &Rule,
    view: &View<'_>,
    captures: Vec<String>,
) -> Result<Answer, minijinja::Error> {
    let tools: Vec<String> = view.tools.iter().map(|tool| tool.name.clone()).collect();
    let seen = context! {
        user => view.user,
        captures,
        results => Serde(&view.results),
        history => Serde(&view.history),
        step => view.step,
        agent => view.agent,
        tools,
    };
    let text = match &rule.say {
        Some(template) => rules.environment.get_template(template)?.render(&seen)?,
        None => String::new(),
    };
    let mut answer = Answer::saying(text, Pace::of(rule));
    for call in &rule.calls {
        for arguments in all_arguments(rules, call, &seen)? {
            answer.call(view, &call.tool, arguments);
        }
    }
    answer.calls.truncate(MAX_CALLS);
    answer.artifacts = rule.artifacts.clone();
    answer.reply = rule.reply;
    Ok(answer)
}

fn all_arguments(rules: &Rules, call: &CallRule, seen: &Jinja) -> Result<Vec<Value>, minijinja::Error> {
    let Some(expression) = &call.for_each else { return Ok(vec![filled(rules, &call.arguments, seen)?]) };
    let items = rules.environment.compile_expression(expression)?.eval(seen)?;
    let items = items.try_iter()?.enumerate();
    items.map(|(index, item)| filled(rules, &call.arguments, &context! { item, index, ..seen.clone() })).collect()
}

/// The arguments with their templates filled in. A text that is one expression and nothing else keeps the type of its
/// value.
fn filled(rules: &Rules, arguments: &Value, seen: &Jinja) -> Result<Value, minijinja::Error> {
    Ok(match arguments {
        Value::String(template) => match lone_expression(template) {
            Some(expression) => {
                let value = rules.environment.compile_expression(expression)?.eval(seen)?;
                serde_json::to_value(&value).unwrap_or(Value::Null)
            }
            None => Value::String(rules.environment.render_str(template, seen)?),
        },
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| filled(rules, item, seen)).collect::<Result<_, _>>()?)
        }
        Value::Object(entries) => {
            let fill = |(key, item): (&String, &Value)| Ok((key.clone(), filled(rules, item, seen)?));
            Value::Object(entries.iter().map(fill).collect::<Result<_, minijinja::Error>>()?)
        }
        Value::Null => Value::Object(Map::new()),
        Value::Bool(_) | Value::Number(_) => arguments.clone(),
    })
}

fn lone_expression(template: &str) -> Option<&str> {
    let inner = template.trim().strip_prefix("{{")?.strip_suffix("}}")?;
    (!inner.contains("{{") && !inner.contains("}}")).then_some(inner.trim())
}

impl Answer {
    pub(super) fn saying(text: String, pace: Pace) -> Self {
        Self { text, calls: Vec::new(), artifacts: Vec::new(), reply: false, pace, ending: Ending::Proper }
    }

    /// Adds a call. Its id is unique in the conversation, and the same whenever the answer is made again.
    pub(super) fn call(&mut self, view: &View<'_>, tool: &str, arguments: Value) {
        let id = format!("call-{}-{}", view.answers, self.calls.len());
        self.calls.push(ToolCall { id, name: tool.to_owned(), arguments });
    }

    /// The same answer with arguments that are no JSON.
    pub(super) fn with_malformed_arguments(mut self) -> Self {
        for call in &mut self.calls {
            let mut text = call.arguments.to_string();
            text.pop();
            call.arguments = Value::String(text);
        }
        self
    }

    /// The same answer, with a call of a tool that nobody offers.
    pub(super) fn with_unknown_tool(mut self, view: &View<'_>) -> Self {
        if self.calls.is_empty() {
            self.call(view, NO_SUCH_TOOL, Value::Object(Map::new()));
        }
        for call in &mut self.calls {
            call.name = NO_SUCH_TOOL.to_owned();
        }
        self
    }

    /// The same answer, up to `most_ms` later: how much is drawn from the seed, so a task always takes as long.
    pub(super) fn staggered(mut self, most_ms: u64, seed: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        seed.hash(&mut hasher);
        self.pace.stagger = Duration::from_millis(hasher.finish() % most_ms.saturating_add(1));
        self
    }

    /// The deltas, each after the delay.
    pub(super) fn stream(self, prompt_chars: usize) -> ModelStream {
        let said = self.text.len() + self.calls.iter().map(|call| call.arguments.to_string().len()).sum::<usize>();
        let tokens = |chars: usize| chars.div_ceil(CHARS_PER_TOKEN) as u64;
        let usage = Usage { input: tokens(prompt_chars), output: tokens(said) };
        let mut deltas: Vec<Delta> = pieces(&self.text, self.pace.delta_chars).into_iter().map(Delta::Text).collect();
        if self.ending == Ending::Cut {
            deltas.truncate(deltas.len().div_ceil(2));
        } else {
            deltas.extend(self.reply.then_some(Delta::Reply));
            deltas.extend(self.artifacts.into_iter().map(Delta::Artifact));
            deltas.extend(self.calls.into_iter().map(Delta::Call));
        }
        let Pace { delay, stagger, .. } = self.pace;
        let paced = stream::iter(deltas).enumerate().then(move |(at, delta)| async move {
            let wait = if at == 0 { delay + stagger } else { delay };
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            Ok(delta)
        });
        match self.ending {
            Ending::Proper => paced.chain(stream::iter([Ok(Delta::Usage(usage)), Ok(Delta::End)])).boxed(),
            Ending::Cut => paced.boxed(),
            Ending::Never => paced.chain(stream::pending()).boxed(),
        }
    }
}

/// Cuts a text into pieces of `chars` characters.
fn pieces(text: &str, chars: usize) -> Vec<String> {
    let chars = chars.max(1);
    let all: Vec<char> = text.chars().collect();
    all.chunks(chars).map(|piece| piece.iter().collect()).collect()
}

//! What the scripted model does when no rule matches: it calls the tool whose words are most like the prompt's, fills its
//! arguments with what the prompt quotes, and then quotes the tool.

use serde_json::{Map, Value, json};
use std::{collections::BTreeSet, time::Duration};

use super::{
    respond::{Answer, Pace},
    view::{SeenResult, View},
};
use crate::{
    model::{ModelRequest, ToolSchema},
    prompt::DELEGATE,
};

/// Longest part of a tool's answer that is quoted, in characters.
const MAX_QUOTED_CHARS: usize = 4_000;

/// Shortest word that counts when a prompt is compared with a tool: shorter ones are in every sentence.
const MIN_WORD_CHARS: usize = 3;

/// A pace at which a person can see the answer grow.
const PACE: Pace = Pace { delay: Duration::from_millis(10), stagger: Duration::ZERO, delta_chars: 64 };

/// The answer to a request that no rule matches.
pub(super) fn answer(request: &ModelRequest, view: &View<'_>) -> Answer {
    if !view.results.is_empty() {
        return Answer::saying(view.results.iter().map(quoted).collect::<Vec<_>>().join("\n\n"), PACE);
    }
    if let Some(arguments) = delegation(view) {
        return calling(view, DELEGATE, arguments);
    }
    match best_tool(view) {
        Some((tool, arguments)) => calling(view, &tool.name, arguments),
        None => Answer::saying(nothing_to_do(request, view), PACE),
    }
}

fn calling(view: &View<'_>, tool: &str, arguments: Value) -> Answer {
    let mut answer = Answer::saying(String::new(), PACE);
    answer.call(view, tool, arguments);
    answer
}

fn quoted(result: &SeenResult) -> String {
    let verb = if result.is_error { "failed" } else { "answered" };
    let cut: String = result.content.chars().take(MAX_QUOTED_CHARS).collect();
    let lines: Vec<String> = cut.lines().map(|line| format!("> {line}")).collect();
    format!("{} {verb}:\n{}", result.name, lines.join("\n"))
}

fn nothing_to_do(request: &ModelRequest, view: &View<'_>) -> String {
    let tools: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
    let offer = if tools.is_empty() { "I have no tools".to_owned() } else { format!("My tools: {}", tools.join(", ")) };
    format!("This is the scripted model, no AI; no rule matches what you wrote. {offer}. You wrote:\n> {}", view.user)
}

/// The arguments of `delegate to X: TEXT`, if X is on offer.
fn delegation(view: &View<'_>) -> Option<Value> {
    let lower = view.user.to_ascii_lowercase();
    let start = lower.find("delegate to ")? + "delegate to ".len();
    let (name, text) = view.user[start..].split_once(':')?;
    let offer = view.tools.iter().find(|tool| tool.name == DELEGATE)?;
    let names = offer.schema.pointer("/properties/agent/enum").and_then(Value::as_array);
    let is_known = names.is_none_or(|names| names.iter().any(|known| known == name.trim()));
    is_known.then(|| json!({ "agent": name.trim(), "message": text.trim() }))
}

/// The tool that shares most words with the prompt and whose required arguments the prompt gives; the earlier one of
/// two equals.
fn best_tool<'a>(view: &View<'a>) -> Option<(&'a ToolSchema, Value)> {
    let prompt = words(view.user);
    let mut best: Option<(usize, &ToolSchema, Value)> = None;
    for tool in view.tools.iter().filter(|tool| tool.name != DELEGATE) {
        let shared = words(&format!("{} {}", tool.name, tool.description)).intersection(&prompt).count();
        let better = shared > best.as_ref().map_or(0, |(most, _, _)| *most);
        if better && let Some(arguments) = arguments(&tool.schema, view.user) {
            best = Some((shared, tool, arguments));
        }
    }
    best.map(|(_, tool, arguments)| (tool, arguments))
}

fn words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| word.chars().count() >= MIN_WORD_CHARS)
        .map(str::to_lowercase)
        .collect()
}

/// Arguments for a schema out of what the prompt quotes: texts in quotes, numbers, and words that an enum knows.
fn arguments(schema: &Value, prompt: &str) -> Option<Value> {
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let mut texts = quotations(prompt).into_iter();
    let mut numbers = numbers(prompt).into_iter();
    let mut arguments = Map::new();
    // What is required has the first choice of the quotations.
    let (first, then): (Vec<_>, Vec<_>) = properties.iter().partition(|(name, _)| required.contains(&name.as_str()));
    for (name, property) in first.into_iter().chain(then) {
        let kind = property.get("type").and_then(Value::as_str).unwrap_or("string");
        let value = match (property.get("enum").and_then(Value::as_array), kind) {
            (Some(choices), _) => choices.iter().find(|choice| mentions(prompt, choice)).cloned(),
            (None, "string") => texts.next().map(Value::String),
            (None, "integer") => numbers.next().map(|number| json!(number as i64)),
            (None, "number") => numbers.next().map(|number| json!(number)),
            (None, _) => None,
        };
        if let Some(value) = value {
            arguments.insert(name.clone(), value);
        }
    }
    required.iter().all(|name| arguments.contains_key(*name)).then_some(Value::Object(arguments))
}

fn mentions(prompt: &str, choice: &Value) -> bool {
    choice.as_str().is_some_and(|choice| prompt.to_lowercase().contains(&choice.to_lowercase()))
}

/// Texts in double quotes, single quotes or back quotes; else words that look like a path.
fn quotations(prompt: &str) -> Vec<String> {
    let quoted: Vec<String> = ['"', '`', '\''].iter().flat_map(|quote| between(prompt, *quote)).collect();
    if !quoted.is_empty() {
        return quoted;
    }
    let is_path = |word: &&str| word.contains('/') || word.trim_end_matches('.').contains('.');
    let trimmed = |word: &str| word.trim_matches(|c: char| ",;:!?()".contains(c)).trim_end_matches('.').to_owned();
    prompt.split_whitespace().filter(is_path).map(trimmed).collect()
}

fn between(prompt: &str, quote: char) -> Vec<String> {
    let parts: Vec<&str> = prompt.split(quote).collect();
    // With a closing quote for each opening one, every second part is quoted.
    if parts.len().is_multiple_of(2) {
        return Vec::new();
    }
    parts.into_iter().skip(1).step_by(2).filter(|part| !part.trim().is_empty()).map(str::to_owned).collect()
}

fn numbers(prompt: &str) -> Vec<f64> {
    let trimmed = |word: &str| word.trim_matches(|c: char| ",;:!?()'\"`".contains(c)).trim_end_matches('.').to_owned();
    prompt.split_whitespace().filter_map(|word| trimmed(word).parse().ok()).filter(|n: &f64| n.is_finite()).collect()
}

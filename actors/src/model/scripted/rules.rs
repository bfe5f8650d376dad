//! The rules file: read, checked whole, matched.

use glob_match::glob_match;
use minijinja::{Environment, UndefinedBehavior, syntax::SyntaxConfig};
use regex::Regex;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use serde_saphyr::Spanned;
use std::fmt;

use towline_core::{Content, Metadata, Part};

use super::view::View;
use crate::model::MadeArtifact;

/// Characters of a text delta, unless the rule says otherwise.
const DELTA_CHARS: usize = 48;

/// Steps that one template may take: a loop over everything ends here.
const TEMPLATE_FUEL: u64 = 5_000_000;

/// One mistake in a rules file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleMistake {
    /// Line of the rule, from 1; 0 if it is not known.
    pub line: u64,
    /// What is wrong.
    pub message: String,
}

/// All mistakes of a rules file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleMistakes(pub Vec<RuleMistake>);

impl fmt::Display for RuleMistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, mistake) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "\n" };
            write!(f, "{separator}line {}: {}", mistake.line, mistake.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for RuleMistakes {}

/// Rules that were checked.
pub(super) struct Rules {
    rules: Vec<Rule>,
    /// Holds the compiled templates.
    pub environment: Environment<'static>,
}

/// One rule.
pub(super) struct Rule {
    /// How messages name it.
    pub title: String,
    agent: Option<String>,
    results: Option<bool>,
    step: Option<usize>,
    user: Option<Regex>,
    message: Option<Regex>,
    tool: Option<String>,
    content: Option<Regex>,
    /// Name of a compiled template.
    pub say: Option<String>,
    pub calls: Vec<CallRule>,
    pub artifacts: Vec<MadeArtifact>,
    /// Whether it is a plain reply.
    pub reply: bool,
    pub fail: Option<Fail>,
    pub delay_ms: u64,
    pub stagger_ms: u64,
    pub delta_chars: usize,
}

/// Calls that a rule makes.
pub(super) struct CallRule {
    pub tool: String,
    /// Expression that gives a list; one call for each item.
    pub for_each: Option<String>,
    /// JSON whose texts are templates.
    pub arguments: Value,
}

/// A failure that a rule plays.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fail {
    pub kind: FailKind,
    /// How many times for one call of the model; after that the rule answers.
    #[serde(default = "for_ever")]
    pub times: u32,
    #[serde(default)]
    pub retry_after_ms: Option<u64>,
}

fn for_ever() -> u32 {
    u32::MAX
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FailKind {
    RateLimited,
    Timeout,
    TruncatedStream,
    MalformedArguments,
    UnknownTool,
    Rejected,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    rules: Vec<Spanned<Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    agent: Option<String>,
    #[serde(default)]
    when: RawWhen,
    #[serde(default)]
    say: Option<String>,
    #[serde(default)]
    calls: Vec<RawCall>,
    #[serde(default)]
    artifacts: Vec<RawArtifact>,
    #[serde(default)]
    reply: bool,
    #[serde(default)]
    fail: Option<Fail>,
    #[serde(default)]
    delay_ms: u64,
    #[serde(default)]
    stagger_ms: u64,
    #[serde(default)]
    delta_chars: Option<usize>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWhen {
    #[serde(default)]
    results: Option<bool>,
    #[serde(default)]
    step: Option<usize>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    tool: Option<String>,
    #[serde(default)]
    content: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCall {
    tool: String,
    #[serde(default)]
    for_each: Option<String>,
    #[serde(default)]
    arguments: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawArtifact {
    #[serde(default)]
    name: Option<String>,
    parts: Vec<RawPart>,
}

/// One of the first four, as A2A has it; a file is written as text.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawPart {
    text: Option<String>,
    file: Option<String>,
    url: Option<String>,
    data: Option<Value>,
    filename: Option<String>,
    media_type: Option<String>,
}

impl Rules {
    pub(super) fn from_yaml(yaml: &str) -> Result<Self, RuleMistakes> {
        let file: RawFile = serde_saphyr::from_str(yaml).map_err(|error| {
            let line = error.location().map_or(0, |location| location.line());
            RuleMistakes(vec![RuleMistake { line, message: error.to_string() }])
        })?;
        let mut checked = Self { rules: Vec::new(), environment: environment() };
        let mut mistakes = Vec::new();
        for (at, raw) in file.rules.into_iter().enumerate() {
            let mut check =
                Check { line: raw.referenced.line(), title: format!("rule {}", at + 1), mistakes: &mut mistakes };
            if let Some(rule) = check.rule(at, raw.value, &mut checked.environment) {
                checked.rules.push(rule);
            }
        }
        if mistakes.is_empty() { Ok(checked) } else { Err(RuleMistakes(mistakes)) }
    }

    /// The first rule that matches, its number, and the groups of its regex over the user text.
    pub(super) fn first_match(&self, view: &View<'_>) -> Option<(usize, &Rule, Vec<String>)> {
        self.rules.iter().enumerate().find_map(|(at, rule)| Some((at, rule, rule.matches(view)?)))
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the delimiters are the default ones"));
    environment.set_fuel(Some(TEMPLATE_FUEL));
    environment.add_function("number_in", number_in);
    environment
}

/// The first number in a text, for rules that take a count from what a person wrote.
fn number_in(text: &str, default: u64) -> u64 {
    let digits = text.split(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(default)
}

impl Rule {
    fn matches(&self, view: &View<'_>) -> Option<Vec<String>> {
        let glob = |pattern: &Option<String>, text: &str| pattern.as_ref().is_none_or(|glob| glob_match(glob, text));
        let fits = glob(&self.agent, view.agent)
            && self.results.is_none_or(|wanted| wanted != view.history.is_empty())
            && self.step.is_none_or(|step| step == view.step)
            && self.message.as_ref().is_none_or(|wanted| wanted.is_match(view.message_id))
            && (self.tool.is_none() || !view.results.is_empty())
            && view.results.iter().all(|result| glob(&self.tool, &result.name))
            && self
                .content
                .as_ref()
                .is_none_or(|wanted| view.results.iter().any(|seen| wanted.is_match(&seen.content)));
        if !fits {
            return None;
        }
        let Some(user) = &self.user else { return Some(vec![view.user.to_owned()]) };
        let groups = user.captures(view.user)?;
        Some(groups.iter().map(|group| group.map_or_else(String::new, |group| group.as_str().to_owned())).collect())
    }
}

/// Checks one rule and notes every mistake.
struct Check<'a> {
    line: u64,
    title: String,
    mistakes: &'a mut Vec<RuleMistake>,
}

impl Check<'_> {
    fn rule(&mut self, at: usize, raw: Value, environment: &mut Environment<'static>) -> Option<Rule> {
        let raw: RawRule = self.read(raw)?;
        if let Some(name) = &raw.name {
            self.title = format!("rule {} ({name})", at + 1);
        }
        if raw.say.is_none() && raw.calls.is_empty() && raw.artifacts.is_empty() && raw.fail.is_none() {
            self.note("it neither says, calls nor makes anything, nor fails".into());
        }
        if raw.delta_chars == Some(0) {
            self.note("delta_chars must be at least 1".into());
        }
        let say = raw.say.map(|template| self.template(format!("{at}/say"), template, environment));
        let calls = raw.calls.into_iter().map(|call| self.call(call, environment)).collect();
        let artifacts = raw.artifacts.into_iter().map(|artifact| self.artifact(artifact)).collect();
        Some(Rule {
            agent: raw.agent,
            results: raw.when.results,
            step: raw.when.step,
            user: raw.when.user.and_then(|pattern| self.regex("user", &pattern)),
            message: raw.when.message.and_then(|pattern| self.regex("message", &pattern)),
            tool: raw.when.tool,
            content: raw.when.content.and_then(|pattern| self.regex("content", &pattern)),
            say,
            calls,
            artifacts,
            reply: raw.reply,
            fail: raw.fail,
            delay_ms: raw.delay_ms,
            stagger_ms: raw.stagger_ms,
            delta_chars: raw.delta_chars.unwrap_or(DELTA_CHARS),
            title: self.title.clone(),
        })
    }

    fn call(&mut self, raw: RawCall, environment: &Environment<'static>) -> CallRule {
        if let Some(expression) = &raw.for_each
            && let Err(error) = environment.compile_expression(expression)
        {
            self.note(format!("for_each of {}: {error:#}", raw.tool));
        }
        if !matches!(raw.arguments, Value::Null | Value::Object(_)) {
            self.note(format!("arguments of {} must be a mapping", raw.tool));
        }
        self.texts(&raw.tool, &raw.arguments, environment);
        CallRule { tool: raw.tool, for_each: raw.for_each, arguments: raw.arguments }
    }

    fn artifact(&mut self, raw: RawArtifact) -> MadeArtifact {
        if raw.parts.is_empty() {
            self.note("an artifact needs parts".into());
        }
        MadeArtifact { name: raw.name, parts: raw.parts.into_iter().filter_map(|part| self.part(part)).collect() }
    }

    fn part(&mut self, raw: RawPart) -> Option<Part> {
        let content = match (raw.text, raw.file, raw.url, raw.data) {
            (Some(text), None, None, None) => Content::Text(text),
            (None, Some(file), None, None) => Content::Raw(file.into_bytes()),
            (None, None, Some(url), None) => Content::Url(url),
            (None, None, None, Some(data)) => Content::Data(data),
            _ => {
                self.note("a part of an artifact needs one of text, file, url, data".into());
                return None;
            }
        };
        Some(Part { content, media_type: raw.media_type, filename: raw.filename, metadata: Metadata::new() })
    }

    /// Checks the templates in the arguments of a call.
    fn texts(&mut self, tool: &str, arguments: &Value, environment: &Environment<'static>) {
        match arguments {
            Value::String(template) => {
                if let Err(error) = environment.template_from_str(template) {
                    self.note(format!("arguments of {tool}: {error:#}"));
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.texts(tool, item, environment)),
            Value::Object(entries) => entries.values().for_each(|item| self.texts(tool, item, environment)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn template(&mut self, name: String, template: String, environment: &mut Environment<'static>) -> String {
        if let Err(error) = environment.add_template_owned(name.clone(), template) {
            self.note(format!("say: {error:#}"));
        }
        name
    }

    fn regex(&mut self, key: &str, pattern: &str) -> Option<Regex> {
        match Regex::new(pattern) {
            Ok(regex) => Some(regex),
            Err(error) => {
                self.note(format!("{key}: {error}"));
                None
            }
        }
    }

    fn read<T: DeserializeOwned>(&mut self, raw: Value) -> Option<T> {
        match serde_json::from_value(raw) {
            Ok(value) => Some(value),
            Err(error) => {
                self.note(error.to_string());
                None
            }
        }
    }

    fn note(&mut self, what: String) {
        self.mistakes.push(RuleMistake { line: self.line, message: format!("{}: {what}", self.title) });
    }
}

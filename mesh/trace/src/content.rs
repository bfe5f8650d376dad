//! What people and models say, on spans: not at all unless it is asked for, and then cut, and without secrets if so asked.

use std::sync::LazyLock;

use opentelemetry::{KeyValue, Value as SpanValue};
use regex::Regex;
use serde_json::{Value, json};

use crate::names;

/// Longest text of one part, in bytes.
const MAX_PART_BYTES: usize = 1024;
/// Longest content of one attribute, in bytes: what is longer is told by its size and its start.
const MAX_BYTES: usize = 4 * 1024;
/// How much of the start of such content is shown.
const START_BYTES: usize = 1024;
/// Stands where a secret stood.
const REDACTED: &str = "[redacted]";

/// How much of what is said goes on spans.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Capture {
    /// Nothing.
    #[default]
    Off,
    /// Its size.
    Metadata,
    /// All but what looks like a secret.
    Redacted,
    /// All.
    Full,
}

impl std::str::FromStr for Capture {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Capture::Off),
            "metadata" => Ok(Capture::Metadata),
            "redacted" => Ok(Capture::Redacted),
            "full" => Ok(Capture::Full),
            other => Err(format!("{other:?} is not how content is captured: write off, metadata, redacted or full")),
        }
    }
}

/// The attributes that show content under a key.
pub(crate) fn attributes(capture: Capture, key: &'static str, content: impl FnOnce() -> Value) -> Vec<KeyValue> {
    let text = |content: &Value| match content {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => content.to_string(),
    };
    let content = match capture {
        Capture::Off => return Vec::new(),
        Capture::Metadata => {
            let bytes = i64::try_from(text(&content()).len()).unwrap_or(i64::MAX);
            return vec![KeyValue::new(format!("{key}.bytes"), bytes)];
        }
        Capture::Redacted => without_secrets(content()),
        Capture::Full => content(),
    };
    let mut was_cut = false;
    let content = cut_parts(content, &mut was_cut);
    let mut shown = text(&content);
    if shown.len() > MAX_BYTES {
        was_cut = true;
        let start = &shown[..shown.floor_char_boundary(START_BYTES)];
        shown = json!({ "bytes": shown.len(), "start": start, "truncated": true }).to_string();
    }
    let mut attributes = vec![KeyValue::new(key, SpanValue::from(shown))];
    if was_cut {
        attributes.push(KeyValue::new(names::CONTENT_TRUNCATED, true));
    }
    attributes
}

fn cut_parts(content: Value, was_cut: &mut bool) -> Value {
    map_texts(content, &mut |text| {
        if text.len() <= MAX_PART_BYTES {
            return text;
        }
        *was_cut = true;
        text[..text.floor_char_boundary(MAX_PART_BYTES)].to_owned()
    })
}

/// The content without values whose key names a secret, and without what has the shape of one.
fn without_secrets(content: Value) -> Value {
    match content {
        Value::Object(fields) => {
            let hidden = |(name, value): (String, Value)| match &value {
                Value::String(_) | Value::Number(_) if is_secret_name(&name) => (name, REDACTED.into()),
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Array(_)
                | Value::Object(_) => (name, without_secrets(value)),
            };
            Value::Object(fields.into_iter().map(hidden).collect())
        }
        Value::Array(items) => items.into_iter().map(without_secrets).collect(),
        Value::String(text) => redacted(&text).into(),
        plain @ (Value::Null | Value::Bool(_) | Value::Number(_)) => plain,
    }
}

/// Whether what has this name is taken for a secret.
pub fn is_secret_name(name: &str) -> bool {
    static NAMES: LazyLock<Regex> =
        LazyLock::new(|| Regex::new("(?i)key|token|secret|passw|authorization|credential").expect("it is tested"));
    NAMES.is_match(name)
}

/// A text without bearer tokens, JWTs, API keys, values of what is called a secret, and e-mail addresses.
pub fn redacted(text: &str) -> String {
    static SHAPES: LazyLock<Regex> = LazyLock::new(|| {
        let shapes = [
            r"(?i)\b(?:bearer|basic)\s+[\w.~+/=-]{8,}",
            r"\beyJ[\w-]+\.[\w-]+\.[\w-]*",
            r"\b(?:sk|pk|ghp|gho|xox[bp]|AKIA)[-_]?[A-Za-z0-9_-]{12,}",
            r#"(?i)\b[\w-]*(?:api[_-]?key|token|secret|password|passwd)["']?\s*[:=]\s*["']?[^\s"',}]+"#,
            r"\b[\w.+-]+@[\w-]+\.[\w.-]+\b",
        ];
        Regex::new(&shapes.join("|")).expect("it is tested")
    });
    SHAPES.replace_all(text, REDACTED).into_owned()
}

fn map_texts(content: Value, change: &mut impl FnMut(String) -> String) -> Value {
    match content {
        Value::String(text) => change(text).into(),
        Value::Array(items) => items.into_iter().map(|item| map_texts(item, change)).collect(),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (name, map_texts(value, change))).collect())
        }
        plain @ (Value::Null | Value::Bool(_) | Value::Number(_)) => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(capture: Capture, content: Value) -> Option<String> {
        let attributes = attributes(capture, names::GEN_AI_TOOL_CALL_ARGUMENTS, || content);
        attributes.first().map(|attribute| attribute.value.to_string())
    }

    #[test]
    fn nothing_is_shown_unless_it_is_asked_for() {
        assert!(attributes(Capture::Off, "x", || unreachable!("it is not even made")).is_empty());
        assert_eq!(shown(Capture::Metadata, json!("four")).as_deref(), Some("4"));
        assert_eq!(shown(Capture::Full, json!({ "token": "abc" })).as_deref(), Some(r#"{"token":"abc"}"#));
    }

    #[test]
    fn what_looks_like_a_secret_is_redacted_and_the_rest_is_not() {
        let secrets = [
            json!({ "apiKey": "s3cr3t" }),
            json!({ "deep": [{ "Authorization": "s3cr3t" }] }),
            json!("call it with Bearer s3cr3ts3cr3t please"),
            json!("eyJhbGciOi.eyJzdWIi.s3cr3t"),
            json!("key sk-s3cr3ts3cr3ts3cr3t"),
            json!("password = s3cr3t"),
            json!("write to s3cr3t@example.org"),
        ];
        for secret in secrets {
            let text = shown(Capture::Redacted, secret).unwrap();
            assert!(text.contains(REDACTED) && !text.contains("s3cr3t"), "{text}");
        }
        assert_eq!(shown(Capture::Redacted, json!({ "path": "a.txt" })).as_deref(), Some(r#"{"path":"a.txt"}"#));
    }

    #[test]
    fn long_content_is_cut_and_stays_json() {
        let parts: Vec<Value> = (0..20).map(|_| json!({ "text": "ä".repeat(2_000) })).collect();
        let attributes = attributes(Capture::Full, "x", || parts.into());
        let text = attributes[0].value.to_string();
        assert!(text.len() <= MAX_BYTES, "{}", text.len());
        assert!(serde_json::from_str::<Value>(&text).is_ok());
        assert_eq!(attributes[1], KeyValue::new(names::CONTENT_TRUNCATED, true));
        let one = shown(Capture::Full, json!([{ "text": "a".repeat(2_000) }])).unwrap();
        assert!(one.len() < 1_100 && serde_json::from_str::<Value>(&one).is_ok());
    }
}

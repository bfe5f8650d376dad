//! What may be shown of a configuration: everything but secrets, and what people and models say.
//!
//! A reference to a secret is shown, since its name is none; what is written out in its place is not. And the node knows from
//! here what its secrets are, so that they can be taken out of any other text as well ([`Redacted::clean`]).

use std::{collections::BTreeSet, sync::LazyLock};

use serde_json::{Map, Value as Json};

use super::{
    secrets::{CLOSE, OPEN, Secrets},
    tree::{Entry, Tree, Value},
};

/// Stands for what is not shown.
pub(crate) const HIDDEN: &str = "[hidden]";
/// Words in the name of a setting, a header, a variable or an argument whose value is a secret.
const SECRET_WORDS: [&str; 11] = [
    "secret",
    "token",
    "password",
    "passwd",
    "passphrase",
    "authorization",
    "bearer",
    "credential",
    "cookie",
    "api_key",
    "apikey",
];
/// Names that are a secret's as a whole: a `key` within a longer name may as well be public.
const SECRET_NAMES: [&str; 4] = ["key", "access_key", "secret_key", "signing_key"];
/// Settings all of whose values may be secrets.
const SECRET_MAPS: [&str; 2] = ["env", "headers"];
/// Settings with what is said to models.
const SAID: [&str; 3] = ["instruction", "rules", "prompt"];
/// Shorter texts are words like `true`, which are found everywhere.
const SHORTEST_SECRET: usize = 6;

/// A configuration that may be shown.
#[derive(Debug, Clone)]
pub struct Redacted {
    shown: Json,
    /// The longest first, so that none is left of one that contains another.
    secrets: Secret,
}

/// No debug output shows them.
#[derive(Clone)]
struct Secret(Vec<String>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Redacted {
    pub(super) fn of(tree: &Tree, secrets: &Secrets) -> Self {
        let mut found = Found { secrets, known: BTreeSet::new() };
        let shown = found.shown(tree, false);
        let mut known: Vec<String> = found.known.into_iter().filter(|secret| secret.len() >= SHORTEST_SECRET).collect();
        known.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self { shown, secrets: Secret(known) }
    }

    /// The configuration as it counts: the file with what lies over it.
    pub fn shown(&self) -> &Json {
        &self.shown
    }

    /// Takes the secrets out of a text, and what looks like one.
    pub fn clean(&self, text: &str) -> String {
        let mut clean = text.to_owned();
        for secret in &self.secrets.0 {
            if clean.contains(secret.as_str()) {
                clean = clean.replace(secret.as_str(), HIDDEN);
            }
        }
        without_credentials(&clean)
    }

    /// The same with every text of a JSON value, names included.
    pub fn clean_all(&self, value: &mut Json) {
        match value {
            Json::String(text) => *text = self.clean(text),
            Json::Array(values) => values.iter_mut().for_each(|value| self.clean_all(value)),
            Json::Object(entries) => {
                let cleaned = std::mem::take(entries).into_iter().map(|(name, mut value)| {
                    self.clean_all(&mut value);
                    (self.clean(&name), value)
                });
                *entries = cleaned.collect();
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
    }
}

/// Credentials as they stand in URLs, headers and error messages of others.
fn without_credentials(text: &str) -> String {
    static USER: LazyLock<regex::Regex> = LazyLock::new(|| pattern(r"(://[^/@\s:]*:)[^/@\s]+@"));
    static NAMED: LazyLock<regex::Regex> = LazyLock::new(|| {
        pattern(r"(?i)(\b(?:bearer|basic)\s+|[?&][^=&\s]*(?:key|token|secret|sig|password)[^=&\s]*=)[^&\s\x22']{4,}")
    });
    let text = USER.replace_all(text, format!("${{1}}{HIDDEN}@"));
    NAMED.replace_all(&text, format!("${{1}}{HIDDEN}")).into_owned()
}

fn pattern(text: &str) -> regex::Regex {
    regex::Regex::new(text).expect("a constant of this file")
}

struct Found<'a> {
    secrets: &'a Secrets,
    known: BTreeSet<String>,
}

impl Found<'_> {
    fn shown(&mut self, tree: &Tree, is_secret: bool) -> Json {
        match &tree.value {
            Value::Null => Json::Null,
            Value::Bool(flag) => (*flag).into(),
            Value::Int(number) => (*number).into(),
            Value::Float(number) => (*number).into(),
            Value::Text(text) => self.text(text, is_secret).into(),
            Value::List(items) => self.list(items, is_secret),
            Value::Map(entries) => {
                let shown = entries.iter().map(|entry| {
                    let value = match said(entry) {
                        Some(said) => format!("[{} characters]", said.chars().count()).into(),
                        None => self.shown(&entry.value, is_secret || names_secret(&entry.key)),
                    };
                    (entry.key.clone(), value)
                });
                Json::Object(shown.collect::<Map<_, _>>())
            }
        }
    }

    /// What follows `--token`, or stands behind `--token=`, is one.
    fn list(&mut self, items: &[Tree], is_secret: bool) -> Json {
        let mut shown = Vec::new();
        let mut is_next = false;
        for item in items {
            let Value::Text(text) = &item.value else {
                shown.push(self.shown(item, is_secret || is_next));
                is_next = false;
                continue;
            };
            let flag = text.starts_with('-').then(|| text.split_once('='));
            shown.push(match flag {
                Some(Some((name, value))) if names_secret(name.trim_start_matches('-')) => {
                    format!("{name}={}", self.text(value, true)).into()
                }
                Some(_) | None => self.text(text, is_secret || is_next).into(),
            });
            is_next = flag == Some(None) && names_secret(text.trim_start_matches('-'));
        }
        Json::Array(shown)
    }

    /// A text with its references; what else it has is shown only where no secret is expected and none is beside it.
    fn text(&mut self, text: &str, is_secret: bool) -> String {
        if !text.contains(OPEN) {
            if !is_secret {
                return without_credentials(text);
            }
            self.known.extend(text.split_whitespace().map(str::to_owned));
            return HIDDEN.to_owned();
        }
        let (mut shown, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once(OPEN) {
            if !before.trim().is_empty() {
                self.known.extend(before.split_whitespace().map(str::to_owned));
                shown.push_str(HIDDEN);
            }
            let (name, behind) = after.split_once(CLOSE).unwrap_or((after, ""));
            self.known.extend(self.secrets.look_up(name.trim()).ok());
            shown.push_str(OPEN);
            shown.push_str(name);
            shown.push_str(CLOSE);
            rest = behind;
        }
        if !rest.trim().is_empty() {
            self.known.extend(rest.split_whitespace().map(str::to_owned));
            shown.push_str(HIDDEN);
        }
        // The scheme of a header is found in any text about headers.
        self.known.retain(|known| !matches!(known.to_ascii_lowercase().as_str(), "bearer" | "basic"));
        shown
    }
}

/// What is said to a model, where it is written out.
fn said(entry: &Entry) -> Option<&str> {
    let Value::Text(text) = &entry.value.value else { return None };
    (SAID.contains(&entry.key.as_str()) && !text.starts_with("file://")).then_some(text)
}

fn names_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    let is_map = SECRET_MAPS.contains(&name.as_str());
    is_map || SECRET_NAMES.contains(&name.as_str()) || SECRET_WORDS.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use crate::config::{self, Overrides};

    /// Every way in which a secret may be written, with `S` in its place.
    const EVERYWHERE: &str = r#"
node: { name: a }
models:
  local: { provider: openai, base_url: "http://127.0.0.1:9", model: m, api_key: SECRET-model-1 }
  real: { provider: anthropic, model: m, api_key: "{{secret:REFERRED}}" }
mcp:
  servers:
    - { name: fs, command: [server, --token, SECRET-argument, --api-key=SECRET-argument-2, ./docs], env: { ANY: SECRET-environment } }
    - { name: web, endpoint: "https://tools.example/mcp?api_key=SECRET-query&page=2", headers: { X-Any: SECRET-header, Authorization: "Bearer SECRET-{{secret:REFERRED}}" } }
agents:
  - { name: reader, model: real, instruction: "Say SECRET-instruction to nobody." }
peers:
  - { name: legal, url: "http://127.0.0.1:8", auth: { bearer: SECRET-peer } }
telemetry: { otlp: "http://127.0.0.1:4317", headers: { api: SECRET-telemetry } }
"#;

    fn redacted() -> super::Redacted {
        let env = [("REFERRED".to_owned(), "SECRET-referred".to_owned())].into_iter().collect();
        let overrides = Overrides { env, flags: Vec::new() };
        config::read(EVERYWHERE, "/nowhere".into(), &overrides).unwrap().redacted
    }

    #[test]
    fn a_configuration_is_shown_without_the_secrets_in_it() {
        let redacted = redacted();
        let shown = redacted.shown().to_string();
        assert!(!shown.contains("SECRET"), "{shown}");
        for kept in
            ["{{secret:REFERRED}}", "./docs", "tools.example", "page=2", "127.0.0.1:8", "--token", "[33 characters]"]
        {
            assert!(shown.contains(kept), "{kept} is gone: {shown}");
        }
        assert!(!format!("{redacted:?}").contains("SECRET"), "no debug output shows them");
    }

    #[test]
    fn a_secret_of_the_configuration_is_found_in_any_other_text() {
        let redacted = redacted();
        for text in [
            "https://x/?a=SECRET-referred",
            "model said: SECRET-model-1!",
            "SECRET-environment",
            "[SECRET-peer]",
            "SECRET-argument SECRET-argument-2",
            "SECRET-telemetry/SECRET-header",
            "Authorization: Bearer SECRET-unknown",
            "https://user:SECRET-unknown@host/path",
            "https://host/path?access_token=SECRET-unknown&page=2",
            "http://127.0.0.1:9/path?token=SECRET-unknown",
            "http://127.0.0.1:9 Bearer SECRET-unknown",
        ] {
            let clean = redacted.clean(text);
            assert!(!clean.contains("SECRET"), "{text} became {clean}");
        }
        let kept = "node 2 at 127.0.0.1:7421, http://127.0.0.1:7420/agents/reader, bearer of news";
        assert!(redacted.clean(kept).starts_with("node 2 at 127.0.0.1:7421, http://127.0.0.1:7420/agents/reader"));
        let mut value = serde_json::json!({ "SECRET-peer": ["SECRET-peer", 1] });
        redacted.clean_all(&mut value);
        assert_eq!(value, serde_json::json!({ "[hidden]": ["[hidden]", 1] }));
    }
}

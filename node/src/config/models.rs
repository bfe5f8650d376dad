//! `models:` – who answers the agents' model calls, by the name that agents use.

use std::collections::BTreeMap;

use towline_actors::{ModelConfig, ModelTimeouts, Provider, model::ScriptedProvider};

use super::{
    mistakes::hint,
    section::{Field, Section},
    values::{duration, http_url, is_plain_remote, plain_name, url_text},
};

const PROVIDERS: [&str; 5] = ["scripted", "openai", "anthropic", "gemini", "ollama"];
const SCRIPTED_MODEL: &str = "scripted-1";
const NO_RULES: &str = "rules: []";

pub(crate) fn read(root: &mut Section<'_>) -> BTreeMap<String, ModelConfig> {
    let entries = root.get("models").map(|field| field.entries()).unwrap_or_default();
    entries.into_iter().filter_map(|(name, field)| Some((read_name(name, &field)?, read_model(&field)?))).collect()
}

fn read_name(name: &str, field: &Field<'_>) -> Option<String> {
    plain_name(name).map_err(|error| field.mistake(error)).ok()
}

fn read_model(field: &Field<'_>) -> Option<ModelConfig> {
    let mut section = field.section()?;
    let kind = section.required("provider", "scripted").and_then(|field| read_provider(&field));
    let model = section.get("model").and_then(|field| field.text()).map(str::to_owned);
    let rules = section.get("rules");
    let strict = section.get("strict");
    let base_url = section.get("base_url");
    let api_key = section.get("api_key");
    let timeouts = section.get("timeout").and_then(|field| field.parse(duration)).map(timeouts).unwrap_or_default();
    let config = match kind? {
        "scripted" => {
            refuse(&[("base_url", &base_url), ("api_key", &api_key)], "a script answers without any network");
            let provider = read_scripted(rules.as_ref(), strict.as_ref());
            let model = model.unwrap_or_else(|| SCRIPTED_MODEL.to_owned());
            ModelConfig { provider, model, base_url: None, api_key: None, timeouts }
        }
        kind => {
            refuse(&[("rules", &rules), ("strict", &strict)], "only provider scripted has it");
            let example = format!("\"{{{{secret:{}_API_KEY}}}}\"", kind.to_uppercase());
            let keyless = kind == "ollama" || base_url.is_some();
            if api_key.is_none() && !keyless {
                section.mistake(format!("api_key is missing: write api_key: {example}"));
            }
            if model.is_none() {
                section.mistake("model is missing: write model: NAME, as the provider calls it");
            }
            ModelConfig {
                provider: provider(kind),
                model: model.unwrap_or_default(),
                api_key: api_key
                    .as_ref()
                    .and_then(|field| field.secret_for(base_url.as_ref(), &format!("{}_API_KEY", kind.to_uppercase()))),
                base_url: base_url.and_then(|field| read_base_url(&field, api_key.is_some())),
                timeouts,
            }
        }
    };
    section.finish();
    Some(config)
}

/// The rules, checked as the provider will read them; a script without rules picks tools by a simple heuristic.
fn read_scripted(rules: Option<&Field<'_>>, strict: Option<&Field<'_>>) -> Provider {
    let is_strict = strict.and_then(|field| field.flag()).unwrap_or(false);
    if let (None, Some(strict), true) = (rules, strict, is_strict) {
        strict.mistake("rules is missing: strict refuses what no rule matches, which is everything");
    }
    let text = match rules {
        Some(field) => field.text_or_file().unwrap_or_else(|| NO_RULES.to_owned()),
        None => NO_RULES.to_owned(),
    };
    if let (Some(field), Err(mistakes)) = (rules, ScriptedProvider::from_yaml(&text, is_strict)) {
        let place = field.peek_text().and_then(|text| text.strip_prefix("file://")).unwrap_or("rules");
        mistakes
            .0
            .iter()
            .for_each(|mistake| field.mistake(format!("{place} line {}: {}", mistake.line, mistake.message)));
    }
    Provider::Scripted { rules: text, strict: is_strict }
}

fn read_provider(field: &Field<'_>) -> Option<&'static str> {
    let written = field.text()?;
    let known = PROVIDERS.into_iter().find(|known| *known == written);
    if known.is_none() {
        field.mistake(format!("provider {written:?} is not known; {}", hint(written, PROVIDERS)));
    }
    known
}

fn provider(kind: &str) -> Provider {
    match kind {
        "anthropic" => Provider::Anthropic,
        "gemini" => Provider::Gemini,
        "ollama" => Provider::Ollama,
        _ => Provider::OpenAi,
    }
}

/// Refuses settings that another provider would read.
fn refuse(fields: &[(&str, &Option<Field<'_>>)], reason: &str) {
    for (key, field) in fields {
        if let Some(field) = field {
            field.mistake(format!("{key} does nothing here: {reason}"));
        }
    }
}

fn read_base_url(field: &Field<'_>, has_key: bool) -> Option<String> {
    let url = field.parse(http_url)?;
    if has_key && is_plain_remote(&url) {
        field.mistake("is not https: the API key would travel in plain text");
    }
    Some(url_text(&url))
}

/// The whole call may take `total`; the phases inside it at most as long.
fn timeouts(total: std::time::Duration) -> ModelTimeouts {
    let usual = ModelTimeouts::default();
    ModelTimeouts {
        connect: usual.connect.min(total),
        first: usual.first.min(total),
        idle: usual.idle.min(total),
        total,
    }
}

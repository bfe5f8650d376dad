//! The providers of models: whether their addresses answer. No model is asked anything, so nothing is spent and no key is shown.

use towline_actors::{ModelConfig, Provider};

use super::{Check, Patient, Planned, planned, reach};

const AREA: &str = "model";

pub(super) fn plan(patient: &Patient) -> Vec<Planned> {
    let models = patient.config.mesh.models.clone();
    let planned = models.into_iter().map(|(name, model)| {
        let (http, subject) = (patient.http.clone(), name.clone());
        planned(AREA, subject, async move { vec![check(&http, &name, &model).await] })
    });
    planned.collect()
}

async fn check(http: &reqwest::Client, name: &str, model: &ModelConfig) -> Check {
    let Some(url) = url(model) else {
        return Check::ok(AREA, name, format!("{}: scripted, needs no network", model.model));
    };
    match reach::http(http, &url).await {
        // What a provider answers to a request for no model says nothing: it is there.
        Ok(reached) => Check::ok(AREA, name, format!("{}: {}", model.model, reached.detail)),
        Err(error) => {
            let mend = match model.provider {
                Provider::Ollama => "start it with `ollama serve`, or set models.NAME.base_url to where it runs",
                Provider::Scripted { .. } | Provider::OpenAi | Provider::Anthropic | Provider::Gemini => {
                    "set models.NAME.base_url, and let this machine reach it (`curl -v URL` from here)"
                }
            };
            let detail = format!("{}: {}: {error}", model.model, reach::host(&url));
            Check::fail(AREA, name, detail, mend.replace("NAME", name))
        }
    }
}

/// Where it is asked; none where nobody is.
fn url(model: &ModelConfig) -> Option<String> {
    let usual = match model.provider {
        Provider::Scripted { .. } => return None,
        Provider::OpenAi => "https://api.openai.com/v1/",
        Provider::Anthropic => "https://api.anthropic.com/v1/",
        Provider::Gemini => "https://generativelanguage.googleapis.com/v1beta/",
        Provider::Ollama => "http://localhost:11434/",
    };
    Some(model.base_url.clone().unwrap_or_else(|| usual.to_owned()))
}

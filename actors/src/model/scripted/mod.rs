//! A model that follows rules from a file. It is no AI and says so: its provider is `towline.scripted`, and what it
//! answers is marked as simulated.
//!
//! It gets the request that a network model would get and answers with the same deltas. The first rule that matches
//! decides. When none matches, a strict provider fails with `no_rule`; otherwise a simple heuristic picks a tool (see
//! `fallback`). The answer depends on the request alone, apart from failures that a rule plays a number of times.
//!
//! ```yaml
//! rules:
//!   - name: list the folder          # for people
//!     agent: surveyor                # glob; all agents if it is missing
//!     when:
//!       results: false               # whether there are tool results since the last user text
//!       step: 0                      # answers since the last user text
//!       user: 'first (\d+) files'    # regex over the last user text; its groups are `captures`
//!       message: '^urgent-'          # regex over the id of the client's last message
//!       tool: "fs.*"                 # glob that every tool of the last results matches
//!       content: "permission"        # regex that one of the last results matches
//!     fail: { kind: rate_limited, times: 1 }
//!                                  # or timeout, truncated_stream, malformed_arguments, unknown_tool; rejected: the
//!                                  # agent does not take the task, and `say` is why
//!     say: "Looking at {{ captures[1] }} files."
//!     reply: true                  # the text is a plain reply: who waits for the task is answered with a message
//!     delay_ms: 20                   # before each delta
//!     stagger_ms: 500                # up to this much more before the first delta, by the task: no two take as long
//!     delta_chars: 48
//!     artifacts:                   # content beside the text: parts of text, file, url or data
//!       - name: report
//!         parts: [{ file: "a,b", filename: out.csv, media_type: text/csv }, { data: { rows: 1 } }]
//!     calls:
//!       - tool: delegate
//!         for_each: "results[0].json.entries"
//!         arguments: { agent: reader, message: "Read {{ item.path }}" }
//! ```
//! Templates are Jinja; they see `user`, `captures`, `results` (of the last calls), `history` (all results since the
//! last user text), `step`, `agent` and `tools`, and in `for_each` calls `item` and `index`. A result has `name`,
//! `content`, `json` (none if the content is no JSON), `is_error` and `arguments`.

mod fallback;
mod respond;
mod rules;
mod view;

use async_trait::async_trait;
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use crate::decision::REJECTED;

use super::{ModelError, ModelProvider, ModelRequest, ModelStream, ProviderInfo};
use respond::{Answer, Ending, Pace};
use rules::{FailKind, Rule, Rules};
use view::View;

pub use rules::{RuleMistake, RuleMistakes};

/// Played failures that are remembered: each is one call of one task, and forgetting one only plays it again.
const MAX_REMEMBERED: usize = 10_000;

/// The scripted provider.
pub struct ScriptedProvider {
    rules: Rules,
    strict: bool,
    /// How often a rule has failed a call, by rule and call.
    played: Mutex<BTreeMap<(usize, String), u32>>,
}

impl ScriptedProvider {
    /// Reads rules. When `strict`, a request that no rule matches is an error.
    ///
    /// # Errors
    /// All mistakes of the rules, with their lines.
    pub fn from_yaml(yaml: &str, strict: bool) -> Result<Self, RuleMistakes> {
        Ok(Self { rules: Rules::from_yaml(yaml)?, strict, played: Mutex::default() })
    }

    fn answer(&self, request: &ModelRequest) -> Result<Answer, ModelError> {
        let view = View::of(request);
        let Some((at, rule, captures)) = self.rules.first_match(&view) else {
            if self.strict {
                return Err(no_rule(request, &view));
            }
            return Ok(fallback::answer(request, &view));
        };
        let failure = rule.fail.as_ref().filter(|fail| self.plays(at, request, &view, fail.times));
        match failure.map(|fail| fail.kind) {
            Some(FailKind::RateLimited) => {
                let delay = failure.and_then(|fail| fail.retry_after_ms).map(std::time::Duration::from_millis);
                Err(ModelError::passing("rate_limited", format!("{}: plays a rate limit", rule.title)).after(delay))
            }
            Some(FailKind::Rejected) => {
                let answer = self.respond(rule, &view, captures)?;
                Err(ModelError::permanent(REJECTED, answer.text))
            }
            Some(FailKind::Timeout) => {
                Ok(Answer { ending: Ending::Never, ..Answer::saying(String::new(), Pace::of(rule)) })
            }
            Some(FailKind::TruncatedStream) => {
                let answer = self.respond(rule, &view, captures)?;
                Ok(Answer { ending: Ending::Cut, ..answer })
            }
            Some(FailKind::MalformedArguments) => Ok(self.respond(rule, &view, captures)?.with_malformed_arguments()),
            Some(FailKind::UnknownTool) => Ok(self.respond(rule, &view, captures)?.with_unknown_tool(&view)),
            None => self.respond(rule, &view, captures).map(|answer| answer.staggered(rule.stagger_ms, &request.seed)),
        }
    }

    fn respond(&self, rule: &Rule, view: &View<'_>, captures: Vec<String>) -> Result<Answer, ModelError> {
        respond::respond(&self.rules, rule, view, captures)
            .map_err(|error| ModelError::permanent("rule_failed", format!("{}: {error:#}", rule.title)))
    }

    /// Whether this call of this rule is still to fail; counts it.
    fn plays(&self, rule: usize, request: &ModelRequest, view: &View<'_>, times: u32) -> bool {
        let mut played = self.played.lock().unwrap_or_else(PoisonError::into_inner);
        if played.len() >= MAX_REMEMBERED {
            played.clear();
        }
        let count = played.entry((rule, format!("{}/{}", request.seed, view.answers))).or_default();
        *count += 1;
        *count <= times
    }
}

#[async_trait]
impl ModelProvider for ScriptedProvider {
    fn info(&self) -> ProviderInfo {
        ProviderInfo { name: "towline.scripted".into(), simulated: true }
    }

    async fn complete(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let prompt_chars = view::prompt_chars(&request);
        self.answer(&request).map(|answer| answer.stream(prompt_chars))
    }
}

fn no_rule(request: &ModelRequest, view: &View<'_>) -> ModelError {
    let last: String = view.user.chars().take(80).collect();
    let message = format!(
        "no rule of the scripted model matches agent {} at step {} with {} tool results and the text {last:?}",
        request.agent,
        view.step,
        view.results.len()
    );
    ModelError::permanent("no_rule", message)
}

#[cfg(test)]
mod tests;

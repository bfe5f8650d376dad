//! The options of `towline demo`, and what they mean.

use std::{path::PathBuf, str::FromStr};

use super::DemoError;
use crate::config::Secrets;

/// The smallest folder with which a node can die in the middle of the work: three results in, three outstanding.
pub(crate) const MIN_FILES_FOR_KILL: usize = 6;

/// Most files of one survey: the digest is one answer of one model.
const MAX_FILES: usize = 200;

/// Shows the whole idea on your own files: three nodes, a survey that is delegated over all of them, and the death of a
/// node in the middle of it.
#[derive(Debug, Clone, clap::Args)]
pub struct DemoArgs {
    /// The folder whose text files are surveyed
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// How many text files, the first by name
    #[arg(long, value_name = "N", default_value_t = 20)]
    files: usize,
    /// Which node dies: the owner of the surveyor's task, the leader, the node that the caller is attached to, or any
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = KillChoice::Owner)]
    kill: KillChoice,
    /// Let all nodes live
    #[arg(long, conflicts_with = "kill")]
    no_kill: bool,
    #[command(flatten)]
    model: ModelArgs,
    /// Leave the folder with the nodes' data and logs, and say how to look at it
    #[arg(long)]
    keep: bool,
}

/// Which node dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KillChoice {
    /// The node that runs the surveyor's task.
    Owner,
    /// The leader of the Raft group.
    Leader,
    /// The node that the caller's stream is attached to.
    Entry,
    /// Any of the three.
    Random,
}

/// Which model the agents use; shared by `demo` and `dev`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ModelArgs {
    /// scripted (rules, no AI, no network), or openai:NAME, anthropic:NAME, gemini:NAME, ollama:NAME
    #[arg(long, value_name = "MODEL", default_value = "scripted")]
    pub(crate) model: ModelChoice,
    /// Where the provider is, if not at its usual address (for openai: anything that speaks its API)
    #[arg(long, value_name = "URL")]
    pub(crate) model_url: Option<String>,
}

/// A provider and the name that it knows the model by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ModelChoice {
    /// Rules in a file.
    Scripted,
    /// A real one.
    Real {
        /// As in the configuration: `openai`, `anthropic`, `gemini`, `ollama`.
        provider: &'static str,
        /// The model's name.
        name: String,
        /// The variable that holds the key, for providers that ask for one.
        key: Option<&'static str>,
    },
}

impl FromStr for ModelChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "scripted" {
            return Ok(ModelChoice::Scripted);
        }
        let known = "scripted, openai:NAME, anthropic:NAME, gemini:NAME or ollama:NAME";
        let (provider, name) = text.split_once(':').ok_or_else(|| format!("expected {known}"))?;
        let (provider, key) = match provider {
            "openai" => ("openai", Some("OPENAI_API_KEY")),
            "anthropic" => ("anthropic", Some("ANTHROPIC_API_KEY")),
            "gemini" => ("gemini", Some("GEMINI_API_KEY")),
            "ollama" => ("ollama", None),
            other => return Err(format!("no provider is called {other:?}: expected {known}")),
        };
        if name.is_empty() {
            return Err(format!("{provider}: needs the name of a model, such as {provider}:NAME"));
        }
        Ok(ModelChoice::Real { provider, name: name.to_owned(), key })
    }
}

impl ModelArgs {
    /// Whether rules answer and no AI.
    pub(crate) fn is_scripted(&self) -> bool {
        self.model == ModelChoice::Scripted
    }

    /// Refuses what the nodes could not start with, before they start.
    pub(crate) fn check(&self) -> Result<(), DemoError> {
        match &self.model {
            ModelChoice::Scripted if self.model_url.is_some() => Err(DemoError::Option {
                option: "--model-url",
                reason: "the scripted model has no address; name a real one with --model".to_owned(),
            }),
            ModelChoice::Real { key: Some(key), provider, .. } => {
                let secrets = Secrets::new(&std::env::vars().collect());
                secrets.look_up(key).map(drop).map_err(|why| DemoError::Option {
                    option: "--model",
                    reason: format!("{provider} asks for a key: {why}"),
                })
            }
            ModelChoice::Scripted | ModelChoice::Real { .. } => Ok(()),
        }
    }
}

/// The options, checked.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Absolute.
    pub(crate) dir: PathBuf,
    pub(crate) files: usize,
    /// None with `--no-kill`.
    pub(crate) kill: Option<KillChoice>,
    pub(crate) model: ModelArgs,
    pub(crate) keep: bool,
}

impl DemoArgs {
    /// Checks what can be checked before anything is started.
    pub(crate) fn check(self) -> Result<Plan, DemoError> {
        self.model.check()?;
        if self.files == 0 || self.files > MAX_FILES {
            let reason = format!("expected a number from 1 to {MAX_FILES}");
            return Err(DemoError::Option { option: "--files", reason });
        }
        let kill = (!self.no_kill).then_some(self.kill);
        if kill.is_some() && self.files < MIN_FILES_FOR_KILL {
            let reason =
                format!("a kill in the middle of the work needs at least {MIN_FILES_FOR_KILL}; or use --no-kill");
            return Err(DemoError::Option { option: "--files", reason });
        }
        let dir = self.dir.canonicalize().map_err(|source| DemoError::Folder { dir: self.dir.clone(), source })?;
        Ok(Plan { dir, files: self.files, kill, model: self.model, keep: self.keep })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_scripted_or_a_provider_with_a_name() {
        assert_eq!("scripted".parse(), Ok(ModelChoice::Scripted));
        let real = ModelChoice::Real { provider: "openai", name: "a:b".into(), key: Some("OPENAI_API_KEY") };
        assert_eq!("openai:a:b".parse(), Ok(real));
        assert!("openai:".parse::<ModelChoice>().unwrap_err().contains("openai:NAME"));
        assert!("eliza:1".parse::<ModelChoice>().unwrap_err().contains("\"eliza\""));
    }
}

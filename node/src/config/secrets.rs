//! `{{secret:NAME}}`: the environment variable NAME, else the file NAME in the folder that `TOWLINE_SECRETS_DIR` names.

use std::{collections::BTreeMap, fs, path::PathBuf};

use towline_actors::Secret;

use super::{
    section::Field,
    values::{is_local, peer_url},
};

/// Variable that names the folder of secret files, as container platforms mount them.
const SECRETS_DIR: &str = "TOWLINE_SECRETS_DIR";
pub(super) const OPEN: &str = "{{secret:";
pub(super) const CLOSE: &str = "}}";

/// Where secrets are looked up.
pub(crate) struct Secrets {
    env: BTreeMap<String, String>,
    dir: Option<PathBuf>,
}

impl Secrets {
    /// As in the environment of the nodes.
    pub(crate) fn new(env: &BTreeMap<String, String>) -> Self {
        Self { env: env.clone(), dir: env.get(SECRETS_DIR).map(PathBuf::from) }
    }

    /// A secret by its name.
    ///
    /// # Errors
    /// Where it was looked for.
    pub(crate) fn look_up(&self, name: &str) -> Result<String, String> {
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
        if !is_name || name.starts_with('.') {
            return Err(format!("secret name {name:?} may have letters, digits, '_', '-' and '.' only"));
        }
        if let Some(value) = self.env.get(name).filter(|value| !value.is_empty()) {
            return Ok(value.clone());
        }
        let Some(dir) = &self.dir else {
            return Err(format!("secret {name} is not there: set the environment variable {name}, or {SECRETS_DIR}"));
        };
        let file = dir.join(name);
        let text = fs::read_to_string(&file).map_err(|error| {
            format!("secret {name} is neither in the environment nor in {}: {error}", file.display())
        })?;
        Ok(text.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// Replaces every reference in `text`.
    fn expand(&self, text: &str) -> Result<String, String> {
        let mut expanded = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(OPEN) {
            let (name, behind) =
                after.split_once(CLOSE).ok_or_else(|| format!("{OPEN}NAME{CLOSE} has no closing {CLOSE}"))?;
            expanded.push_str(before);
            expanded.push_str(&self.look_up(name.trim())?);
            rest = behind;
        }
        expanded.push_str(rest);
        Ok(expanded)
    }
}

impl Field<'_> {
    /// A text with its references replaced.
    pub(crate) fn expanded(&self) -> Option<String> {
        self.parse(|text| self.context.secrets.expand(text))
    }

    /// A text that may hold references.
    pub(crate) fn secret(&self) -> Option<Secret> {
        self.expanded().map(Secret::new)
    }

    /// What is sent to `destination`. It must be a reference – what is written out in a file ends up in its history and its
    /// backups – unless it stays on this machine: local servers ask for keys that are no secrets.
    pub(crate) fn secret_for(&self, destination: Option<&Field<'_>>, example: &str) -> Option<Secret> {
        let stays_here = destination
            .and_then(|field| field.peek_text())
            .and_then(|text| peer_url(text).ok())
            .is_some_and(|url| is_local(&url));
        let is_written_out = self.peek_text().is_some_and(|text| !text.contains(OPEN));
        if is_written_out && !stays_here {
            self.mistake(format!("is written out: refer to it, as in \"{OPEN}{example}{CLOSE}\""));
            return None;
        }
        self.secret()
    }
}

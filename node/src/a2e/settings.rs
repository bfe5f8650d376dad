//! What a configuration says of the bridge.

use std::{collections::BTreeMap, sync::Arc};

use towline_actors::egress::EgressPolicy;
use towline_core::Principal;

/// Matches any one word of a command that is no option.
const ANY_WORD: &str = "*";

/// Matches all words that are left.
const ANY_REST: &str = "**";

/// `a2e:`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct A2eSettings {
    /// Whether `/a2e` is there at all.
    pub enabled: bool,
    /// Servers of the configuration that sessions may use; those of the operator may use all.
    pub servers: Vec<Shared>,
    /// The commands that may be registered; all others are refused.
    pub commands: Vec<AllowedCommand>,
    /// Where the URLs that may be registered lead.
    pub egress: Arc<EgressPolicy>,
}

impl Default for A2eSettings {
    fn default() -> Self {
        Self { enabled: true, servers: Vec::new(), commands: Vec::new(), egress: Arc::default() }
    }
}

/// A server of the configuration that the sessions of some may use, with its prompts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared {
    /// Its name under `mcp.servers`.
    pub server: String,
    /// Patterns of the names of its tools.
    pub tools: Vec<String>,
    /// Patterns of the URIs of its resources.
    pub resources: Vec<String>,
    /// Patterns of the names of principals.
    pub clients: Vec<String>,
}

impl Shared {
    /// Whether the sessions of this one may use it.
    pub fn is_for(&self, caller: &Principal) -> bool {
        crate::mcp_server::is_listed(&self.clients, caller)
    }
}

/// A command that may be registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedCommand {
    /// Its words: `*` is any one word that is no option, and `**` at the end any that are left.
    pub command: Vec<String>,
    /// The variables that may be set for it: some make another program of a program.
    pub env: Vec<String>,
    /// Patterns of the folders that it may run in.
    pub cwd: Vec<String>,
}

impl AllowedCommand {
    fn allows(&self, command: &[String], cwd: &str, env: &BTreeMap<String, String>) -> bool {
        let words = match self.command.split_last() {
            Some((last, first)) if last == ANY_REST => command.len() >= first.len() && matches(first, command),
            _ => command.len() == self.command.len() && matches(&self.command, command),
        };
        let has_cwd = cwd.is_empty() || self.cwd.iter().any(|pattern| glob_match::glob_match(pattern, cwd));
        // A folder is not left again behind what matched.
        let is_plain = !cwd.split('/').any(|part| part == "..");
        words && has_cwd && is_plain && env.keys().all(|name| self.env.contains(name))
    }
}

fn matches(patterns: &[String], words: &[String]) -> bool {
    let is_any = |pattern: &str, word: &str| pattern == ANY_WORD && !word.starts_with('-');
    patterns.iter().zip(words).all(|(pattern, word)| pattern == word || is_any(pattern, word))
}

impl A2eSettings {
    /// Whether a command may be registered here.
    pub fn allows(&self, command: &[String], cwd: &str, env: &BTreeMap<String, String>) -> bool {
        !command.is_empty() && self.commands.iter().any(|allowed| allowed.allows(command, cwd, env))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_command_is_refused_unless_its_words_its_variables_and_its_folder_are_allowed() {
        let allowed = |command: &str| AllowedCommand {
            command: words(command),
            env: vec!["LEVEL".into()],
            cwd: vec!["/srv/*".into()],
        };
        let settings = A2eSettings {
            commands: vec![allowed("npx -y @scope/server *"), allowed("uvx server-time **")],
            ..A2eSettings::default()
        };
        let of = |command: &str, cwd: &str, env: &[&str]| {
            let env = env.iter().map(|name| ((*name).to_owned(), "1".to_owned())).collect();
            settings.allows(&words(command), cwd, &env)
        };
        for right in ["npx -y @scope/server /tmp/a", "uvx server-time", "uvx server-time --local-timezone UTC"] {
            assert!(of(right, "", &[]), "{right}");
        }
        assert!(of("uvx server-time", "/srv/a", &["LEVEL"]));
        for wrong in [
            "",
            "npx",
            "npx -y @scope/server",
            "npx -y @scope/server a b",
            "npx -y evil a",
            "uvx other",
            "sh -c x",
            "npx -y @scope/server --eval=x",
        ] {
            assert!(!of(wrong, "", &[]), "{wrong}");
        }
        for (cwd, env) in
            [("/etc", &[][..]), ("/srv/a/b", &[]), ("/srv/..", &[]), ("", &["LD_PRELOAD"]), ("", &["level"])]
        {
            assert!(!of("uvx server-time", cwd, env), "{cwd} {env:?}");
        }
        assert!(!A2eSettings::default().allows(&words("true"), "", &BTreeMap::new()), "by default none");
    }
}

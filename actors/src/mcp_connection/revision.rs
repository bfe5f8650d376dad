//! Revisions of the protocol that are spoken, and what a server said that it can do: both are fixed with the handshake.

use rmcp::model::ServerCapabilities;
use serde::{Deserialize, Serialize};

/// A revision of the protocol, the earliest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Revision {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
}

use Revision::*;

impl Revision {
    const ALL: [(&'static str, Revision); 5] = [
        ("2024-11-05", V2024_11_05),
        ("2025-03-26", V2025_03_26),
        ("2025-06-18", V2025_06_18),
        ("2025-11-25", V2025_11_25),
        ("2026-07-28", V2026_07_28),
    ];

    /// The revision that a handshake came to.
    ///
    /// # Errors
    /// When this client does not speak it, or it has no such handshake.
    pub(super) fn negotiated(text: &str, initialized: bool) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(known, _)| *known == text).map(|(_, revision)| *revision);
        let spoken = found.filter(|revision| initialized != revision.is_stateless());
        spoken.ok_or_else(|| {
            let known: Vec<&str> = Self::ALL
                .iter()
                .filter(|(_, revision)| initialized != revision.is_stateless())
                .map(|(text, _)| *text)
                .collect();
            format!("handshake: the server chose protocol revision {text:?}; spoken are {}", known.join(", "))
        })
    }

    /// Whether there are no sessions, and each request says all.
    pub(super) fn is_stateless(self) -> bool {
        self >= V2026_07_28
    }

    /// Whether a server may ask a person something in the middle of a call.
    pub(super) fn has_elicitation(self) -> bool {
        self >= V2025_06_18
    }
}

/// What a server said that it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// Tools.
    pub tools: bool,
    /// Resources.
    pub resources: bool,
    /// Resources that can be subscribed to.
    pub resource_subscriptions: bool,
    /// Prompts.
    pub prompts: bool,
    /// Log messages.
    pub logging: bool,
    /// Completion of arguments.
    pub completions: bool,
    /// Whether it announces that its list of tools changed.
    pub tools_changed: bool,
    /// Whether it announces that its list of resources changed.
    pub resources_changed: bool,
    /// Whether it announces that its list of prompts changed.
    pub prompts_changed: bool,
}

impl Capabilities {
    pub(super) fn of(said: &ServerCapabilities) -> Self {
        let resources = said.resources.as_ref();
        Self {
            tools: said.tools.is_some(),
            resources: resources.is_some(),
            resource_subscriptions: resources.is_some_and(|resources| resources.subscribe == Some(true)),
            prompts: said.prompts.is_some(),
            logging: said.logging.is_some(),
            completions: said.completions.is_some(),
            tools_changed: said.tools.as_ref().is_some_and(|tools| tools.list_changed == Some(true)),
            resources_changed: resources.is_some_and(|resources| resources.list_changed == Some(true)),
            prompts_changed: said.prompts.as_ref().is_some_and(|prompts| prompts.list_changed == Some(true)),
        }
    }

    /// Their names.
    pub fn names(&self) -> Vec<&'static str> {
        let all = [
            (self.tools, "tools"),
            (self.resources, "resources"),
            (self.resource_subscriptions, "resources.subscribe"),
            (self.prompts, "prompts"),
            (self.logging, "logging"),
            (self.completions, "completions"),
        ];
        all.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_revisions_are_spoken_and_what_is_not_known_is_refused_with_those_that_are() {
        for (text, _) in &Revision::ALL[..4] {
            assert!(Revision::negotiated(text, true).is_ok(), "{text}");
        }
        assert_eq!(Revision::negotiated("2026-07-28", false), Ok(V2026_07_28));
        for (text, initialized) in [("2026-07-28", true), ("2025-11-25", false), ("1999-01-01", true), ("", true)] {
            let refused = Revision::negotiated(text, initialized).unwrap_err();
            assert!(refused.contains("spoken are 20"), "{refused}");
        }
    }

    #[test]
    fn what_a_revision_does_not_have_is_not_expected_of_it() {
        assert!(!V2025_03_26.has_elicitation() && V2025_06_18.has_elicitation());
        assert!(!V2025_11_25.is_stateless() && V2026_07_28.is_stateless());
    }
}

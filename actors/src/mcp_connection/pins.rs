//! What each tool of a server looked like when it was listed first. A tool whose description or schema changes later may be
//! one that was put in the place of the one that an operator agreed to: that is said, and by policy it is not offered.
//!
//! The cluster remembers it, so that a change is told as well that happened while a node was down: what any node listed first
//! counts, until an operator agrees to what there is now. What cannot be remembered – the cluster has another level, no
//! quorum, or no place – is known for as long as the process runs.

use std::collections::BTreeMap;

use ring::digest;
use towline_cluster::ClusterHandle;
use towline_core::{Command, Level, PinTools, Principal, Proposal};

use super::ToolInfo;
use crate::config::{McpServerConfig, McpTransport, OnChange};

/// Tools that are remembered of one server, listed or not: a server that invents names is not remembered without end.
const MAX_PINS: usize = 4_000;

/// The tools of a server as they were listed first.
#[derive(Debug, Default)]
pub(super) struct Pins {
    first: Option<BTreeMap<String, String>>,
    changed: BTreeMap<String, &'static str>,
}

/// What is offered of a listing.
#[derive(Debug, PartialEq)]
pub(super) struct Judged {
    pub tools: Vec<ToolInfo>,
    /// Names of the tools that are not what they were in the first listing, and how: `changed` or `added`.
    pub changed: BTreeMap<String, &'static str>,
    /// Whether that is news.
    pub is_news: bool,
}

/// The name of a server's pins. Another server under the same name is another one.
pub(super) fn key(config: &McpServerConfig) -> String {
    let reached_by = match &config.transport {
        McpTransport::Stdio { command, .. } => command.join("\n"),
        McpTransport::Http { endpoint, socket, .. } => format!("{endpoint}\n{}", socket.is_some()),
    };
    // What is not allowed is not listed, and would be new elsewhere.
    let allow = config.allow.join("\n");
    let hash = digest::digest(&digest::SHA256, format!("{reached_by}\n\n{allow}").as_bytes());
    let short: String = hash.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{}@{short}", config.name)
}

/// What a listing looks like.
fn hashes(listed: &[ToolInfo]) -> BTreeMap<String, String> {
    listed.iter().map(|tool| (tool.tool.clone(), tool.digest.clone())).collect()
}

/// Has the cluster remember what a listing looks like; where it knows the server already, that stays, unless this replaces it.
///
/// # Errors
/// Why it does not.
pub(super) async fn remember(
    cluster: &ClusterHandle,
    by: Principal,
    server: String,
    (listed, replaces): (&[ToolInfo], bool),
) -> Result<(), String> {
    if !cluster.local(|state| state.level() >= Level::PINS) {
        return Err("an older node is a member of the cluster".to_owned());
    }
    let command = Command::PinTools(Box::new(PinTools { server, tools: hashes(listed), replaces }));
    cluster.propose(Proposal { by, command }, None).await.map(|_| ()).map_err(|error| error.to_string())
}

impl Pins {
    /// Takes what the cluster knows, in the place of what this process has seen first; whether that is something else.
    pub(super) fn learn(&mut self, known: BTreeMap<String, String>) -> bool {
        let is_other = self.first.as_ref() != Some(&known);
        if is_other {
            // Whoever agreed to them agreed to what was told of them.
            self.changed.clear();
            self.first = Some(known);
        }
        is_other
    }

    /// Compares a listing with the first one. What has changed once stays marked, so that a change back does not hide it.
    pub(super) fn judge(&mut self, listed: Vec<ToolInfo>, on_change: OnChange) -> Judged {
        let Some(first) = &mut self.first else {
            self.first = Some(hashes(&listed));
            return Judged { tools: listed, changed: BTreeMap::new(), is_news: false };
        };
        let known = self.changed.len();
        for tool in &listed {
            let how = match first.get(&tool.tool) {
                Some(digest) if *digest == tool.digest => continue,
                Some(_) => "changed",
                None => "added",
            };
            let has_room = first.len() + self.changed.len() < MAX_PINS;
            if has_room || self.changed.contains_key(&tool.tool) {
                self.changed.entry(tool.tool.clone()).or_insert(how);
            }
        }
        let is_same = |tool: &ToolInfo| first.get(&tool.tool).is_some_and(|digest| *digest == tool.digest);
        let tools = match on_change {
            OnChange::Flag => listed,
            OnChange::Block => listed.into_iter().filter(|tool| is_same(tool)).collect(),
        };
        Judged { tools, changed: self.changed.clone(), is_news: self.changed.len() > known }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use towline_core::OnAdoption;

    fn tool(name: &str, digest: &str) -> ToolInfo {
        ToolInfo {
            qualified: format!("s.{name}"),
            server: "s".into(),
            tool: name.into(),
            description: String::new(),
            schema: json!({}),
            on_adoption: OnAdoption::Ask,
            digest: digest.into(),
        }
    }

    fn names(judged: &Judged) -> Vec<&str> {
        judged.tools.iter().map(|tool| tool.tool.as_str()).collect()
    }

    #[test]
    fn the_first_listing_is_what_later_ones_are_compared_with() {
        let mut pins = Pins::default();
        let first = pins.judge(vec![tool("a", "1"), tool("b", "1")], OnChange::Block);
        assert_eq!((names(&first), first.changed.len()), (vec!["a", "b"], 0));
        let same = pins.judge(vec![tool("b", "1")], OnChange::Block);
        assert!(!same.is_news && same.changed.is_empty(), "a tool that is gone is no tool that has changed");
    }

    #[test]
    fn a_changed_or_new_tool_is_flagged_and_by_policy_blocked() {
        for (on_change, offered) in [(OnChange::Flag, vec!["a", "b", "c"]), (OnChange::Block, vec!["a"])] {
            let mut pins = Pins::default();
            pins.judge(vec![tool("a", "1"), tool("b", "1")], on_change);
            let later = pins.judge(vec![tool("a", "1"), tool("b", "2"), tool("c", "1")], on_change);
            assert_eq!(names(&later), offered);
            assert!(later.is_news);
            assert_eq!(later.changed, BTreeMap::from([("b".to_owned(), "changed"), ("c".to_owned(), "added")]));
        }
    }

    #[test]
    fn a_change_that_is_taken_back_stays_marked_and_is_no_news_again() {
        let mut pins = Pins::default();
        pins.judge(vec![tool("a", "1")], OnChange::Block);
        pins.judge(vec![tool("a", "2")], OnChange::Block);
        let back = pins.judge(vec![tool("a", "1")], OnChange::Block);
        assert_eq!((names(&back), back.changed.len(), back.is_news), (vec!["a"], 1, false));
        let again = pins.judge(vec![tool("a", "2")], OnChange::Block);
        assert_eq!((names(&again), again.is_news), (vec![], false));
    }

    #[test]
    fn what_the_cluster_knows_stands_in_the_place_of_what_was_seen_first_and_an_agreement_clears_what_was_told() {
        let mut pins = Pins::default();
        let known = |hash: &str| BTreeMap::from([("a".to_owned(), hash.to_owned())]);
        assert!(pins.learn(known("1")));
        let after_a_restart = pins.judge(vec![tool("a", "2")], OnChange::Block);
        assert_eq!((names(&after_a_restart), after_a_restart.is_news), (vec![], true));
        assert!(!pins.learn(known("1")), "nothing new");
        assert!(pins.learn(known("2")));
        let agreed = pins.judge(vec![tool("a", "2")], OnChange::Block);
        assert_eq!((names(&agreed), agreed.changed.len()), (vec!["a"], 0));
    }

    #[test]
    fn another_server_under_the_same_name_is_another_one() {
        let of = |endpoint: &str| key(&McpServerConfig::new("s", McpTransport::http(endpoint)));
        assert_eq!(of("http://a"), of("http://a"));
        assert_ne!(of("http://a"), of("http://b"));
        let some =
            McpServerConfig { allow: vec!["a".into()], ..McpServerConfig::new("s", McpTransport::http("http://a")) };
        assert_ne!(key(&some), of("http://a"), "another part of it");
    }

    #[test]
    fn a_server_that_invents_names_is_not_remembered_without_end() {
        let mut pins = Pins::default();
        pins.judge(vec![tool("a", "1")], OnChange::Flag);
        for round in 0..10 {
            let invented = (0..1_000).map(|at| tool(&format!("t{round}-{at}"), "1")).collect();
            pins.judge(invented, OnChange::Flag);
        }
        assert!(pins.changed.len() < MAX_PINS);
    }
}

//! Lists what a server has, and decides what of it agents may see and use, and how an adopter treats its tools.
//!
//! What cannot be offered – a name that no model can be told, a schema beyond its bounds, a name that comes twice – is left
//! out and said, and the rest of the list stands.

use glob_match::glob_match;
use rmcp::{
    RoleClient,
    model::{Resource, Tool},
    service::Peer,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use towline_core::{Digest, OnAdoption};

use super::{CallError, ToolInfo, pages, revision::Capabilities, text};
use crate::config::McpServerConfig;

/// Stands for reading a resource where a tool is named: no server may have a tool of this name.
pub const READ_RESOURCE: &str = "resources/read";

/// Longest description of a tool that is kept, in characters: it goes into prompts.
const MAX_DESCRIPTION_CHARS: usize = 4_096;

/// Longest label of a resource, in characters: an agent is shown many of them.
const MAX_LABEL_CHARS: usize = 200;

/// A resource of a connected server: that it is there, and never what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceInfo {
    /// The server.
    pub server: String,
    /// Its URI.
    pub uri: String,
    /// A short label in the words of its server: text from outside.
    pub label: String,
    /// Its media type, if its server says one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
}

/// What a server has.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Listing {
    pub tools: Vec<ToolInfo>,
    pub resources: Vec<ResourceInfo>,
    /// What was left out, and why.
    pub refused: Vec<String>,
    /// Why its resources could not be listed.
    pub no_resources: Option<String>,
}

/// Lists what the server said that it has. Only the tools have to be there: what is known of the resources is a help.
pub(super) async fn list(
    peer: &Peer<RoleClient>,
    has: Capabilities,
    config: &McpServerConfig,
) -> Result<Listing, CallError> {
    let mut listing = Listing::default();
    if has.tools {
        let in_server =
            |error: CallError| CallError { message: format!("{}: {}", config.name, error.message), ..error };
        let tools = pages::drain(peer, &pages::TOOLS).await.map_err(in_server)?;
        listing.refused = tools.left_out;
        listing.take_tools(tools.items, config);
    }
    if has.resources {
        match pages::drain(peer, &pages::RESOURCES).await {
            Ok(resources) => {
                resources.left_out.into_iter().for_each(|what| listing.refuse(what));
                listing.take_resources(resources.items, config);
            }
            Err(error) => listing.no_resources = Some(error.message),
        }
    }
    Ok(listing)
}

impl Listing {
    fn take_tools(&mut self, tools: Vec<Tool>, config: &McpServerConfig) {
        let mut names = BTreeSet::new();
        for tool in tools.into_iter().filter(|tool| is_allowed(&tool.name, config)) {
            let name = text::plain_line(&tool.name, text::MAX_NAME_BYTES);
            let taken = match text::bad_name(&tool.name) {
                Some(why) => Err(why),
                None if tool.name == READ_RESOURCE => Err("its name stands for reading a resource".to_owned()),
                None if !names.insert(wire_name(&tool.name)) => Err("a tool of this name came before".to_owned()),
                None => tool_info(tool, config),
            };
            match taken {
                Ok(tool) => self.tools.push(tool),
                Err(why) => self.refuse(format!("tool {name:?}: {why}")),
            }
        }
    }

    fn take_resources(&mut self, resources: Vec<Resource>, config: &McpServerConfig) {
        let mut seen = BTreeSet::new();
        for resource in resources {
            if let Some(why) = text::bad_uri(&resource.uri) {
                self.refuse(format!("resource {:?}: {why}", text::plain_line(&resource.uri, text::MAX_NAME_BYTES)));
                continue;
            }
            if !seen.insert(resource.uri.clone()) {
                continue;
            }
            let label = [resource.title, Some(resource.name), resource.description];
            let label = label.into_iter().flatten().find(|text| !text.trim().is_empty()).unwrap_or_default();
            self.resources.push(ResourceInfo {
                server: config.name.clone(),
                uri: resource.uri,
                label: text::plain_line(&label, MAX_LABEL_CHARS),
                media_type: resource.mime_type.map(|kind| text::plain_line(&kind, MAX_LABEL_CHARS)),
            });
        }
    }

    fn refuse(&mut self, what: String) {
        if self.refused.len() < pages::MAX_REFUSED {
            self.refused.push(what);
        }
    }
}

/// As some providers get to see a name: two tools that look the same there cannot both be offered.
pub(crate) fn wire_name(name: &str) -> String {
    name.replace(['.', '/'], "__")
}

fn is_allowed(tool: &str, config: &McpServerConfig) -> bool {
    config.allow.is_empty() || config.allow.iter().any(|glob| glob_match(glob, tool))
}

fn tool_info(tool: Tool, config: &McpServerConfig) -> Result<ToolInfo, String> {
    let description = tool.description.as_deref().unwrap_or_default();
    let on_adoption = on_adoption(&tool, config);
    let schema = Value::Object(tool.input_schema.as_ref().clone());
    let digest = Digest::of_json(&json!({
        "annotations": tool.annotations,
        "description": description,
        "name": tool.name,
        "schema": schema,
    }));
    Ok(ToolInfo {
        qualified: format!("{}.{}", config.name, tool.name),
        server: config.name.clone(),
        on_adoption,
        description: text::plain(description, MAX_DESCRIPTION_CHARS),
        schema: text::plain_schema(schema)?,
        tool: tool.name.into_owned(),
        digest: digest.to_string(),
    })
}

/// The configuration decides; else the server's hints, if they are trusted; else a person.
fn on_adoption(tool: &Tool, config: &McpServerConfig) -> OnAdoption {
    if let Some((_, rule)) = config.on_adoption.iter().find(|(glob, _)| glob_match(glob, &tool.name)) {
        return *rule;
    }
    let hints = tool.annotations.as_ref().filter(|_| config.trust_annotations);
    let repeatable =
        hints.is_some_and(|hints| hints.read_only_hint == Some(true) || hints.idempotent_hint == Some(true));
    if repeatable { OnAdoption::Retry } else { OnAdoption::Ask }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::McpTransport;
    use rmcp::model::ToolAnnotations;
    use std::collections::BTreeMap;

    fn config() -> McpServerConfig {
        let transport = McpTransport::http("http://127.0.0.1:1/mcp");
        McpServerConfig {
            allow: vec!["read_*".into()],
            on_adoption: BTreeMap::from([("read_*".to_owned(), OnAdoption::Fail)]),
            trust_annotations: true,
            ..McpServerConfig::new("fs", transport)
        }
    }

    fn listed(tools: Vec<Tool>) -> Listing {
        let mut listing = Listing::default();
        listing.take_tools(tools, &McpServerConfig { allow: Vec::new(), ..config() });
        listing
    }

    fn tool(name: &'static str, annotations: Option<ToolAnnotations>) -> Tool {
        let mut tool = Tool::new(name, "does it", serde_json::Map::new());
        tool.annotations = annotations;
        tool
    }

    #[test]
    fn a_tool_outside_of_the_allow_list_is_not_offered() {
        assert!(is_allowed("read_file", &config()));
        assert!(!is_allowed("write_file", &config()));
    }

    #[test]
    fn an_empty_allow_list_allows_all() {
        assert!(is_allowed("write_file", &McpServerConfig { allow: Vec::new(), ..config() }));
    }

    #[test]
    fn the_configured_rule_of_adoption_beats_the_hints() {
        let read_only = Some(ToolAnnotations::new().read_only(true));
        assert_eq!(on_adoption(&tool("read_file", read_only), &config()), OnAdoption::Fail);
    }

    #[test]
    fn hints_count_only_when_they_are_trusted() {
        let read_only = Some(ToolAnnotations::new().read_only(true));
        let trusting = McpServerConfig { on_adoption: BTreeMap::new(), ..config() };
        let wary = McpServerConfig { trust_annotations: false, ..trusting.clone() };
        assert_eq!(on_adoption(&tool("look", read_only.clone()), &trusting), OnAdoption::Retry);
        assert_eq!(on_adoption(&tool("look", read_only), &wary), OnAdoption::Ask);
        assert_eq!(on_adoption(&tool("look", None), &trusting), OnAdoption::Ask);
    }

    #[test]
    fn what_cannot_be_offered_is_left_out_and_said_and_the_rest_stands() {
        let schema = json!({ "description": "x".repeat(100_000) }).as_object().cloned().unwrap();
        let huge = Tool::new("huge", "is too much", schema);
        let listing = listed(vec![
            tool("read", None),
            tool("read\u{202e}", None),
            tool("a.b", None),
            tool("a__b", None),
            tool("read", None),
            tool(READ_RESOURCE, None),
            huge,
        ]);
        let names: Vec<&str> = listing.tools.iter().map(|tool| tool.tool.as_str()).collect();
        assert_eq!(names, ["read", "a.b"]);
        let refused = listing.refused.join("\n");
        assert_eq!(listing.refused.len(), 5, "{refused}");
        for why in ["only letters", "\"a__b\": a tool of this name", "\"read\": a tool of", "bytes", "resource"] {
            assert!(refused.contains(why), "{why}: {refused}");
        }
        assert!(!refused.contains('\u{202e}'), "what is said of it hides nothing either");
    }

    #[test]
    fn a_description_hides_nothing_and_a_change_of_it_changes_the_digest() {
        let with = |description: &'static str| listed(vec![Tool::new("t", description, serde_json::Map::new())]);
        let evil = with("reads\u{202e} a file");
        assert_eq!(evil.tools[0].description, "reads\u{fffd} a file");
        assert_ne!(evil.tools[0].digest, with("reads a file").tools[0].digest);
        assert_eq!(with("a").tools[0].digest, with("a").tools[0].digest);
    }

    #[test]
    fn a_resource_is_a_line_without_its_content_and_the_first_of_a_uri_counts() {
        let mut listing = Listing::default();
        let of = |uri: &str, name: &str| Resource::new(uri, name);
        listing.take_resources(
            vec![of("file:///a", "one\nline"), of("file:///a", "again"), of("file:///\u{200b}", "hidden")],
            &config(),
        );
        assert_eq!(listing.resources.len(), 1);
        assert_eq!(listing.resources[0].label, "one line");
        assert_eq!(listing.refused.len(), 1);
    }
}

//! Lists the tools of a server, within bounds, and decides which of them agents may use and how an adopter treats them.

use glob_match::glob_match;
use rmcp::{
    RoleClient,
    model::{ClientRequest, ListToolsRequest, ListToolsResult, PaginatedRequestParams, ServerResult, Tool},
    service::{Peer, PeerRequestOptions},
};
use serde_json::Value;
use std::{collections::BTreeSet, time::Duration};
use towline_core::OnAdoption;

use super::{CallError, ToolInfo, call};
use crate::config::McpServerConfig;

/// Most pages of one listing: a server that never ends its list is cut off here.
const MAX_PAGES: usize = 64;

/// Most tools of one server: each is a schema in the prompt of every agent that may use it.
const MAX_TOOLS: usize = 1_000;

/// Time for one page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the whole listing.
const LIST_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest description that is kept, in characters: it goes into prompts.
const MAX_DESCRIPTION_CHARS: usize = 4_096;

/// Lists all tools and keeps those that the configuration allows.
pub(super) async fn list(peer: &Peer<RoleClient>, config: &McpServerConfig) -> Result<Vec<ToolInfo>, CallError> {
    let tools = tokio::time::timeout(LIST_TIMEOUT, all_pages(peer)).await.map_err(|_| CallError {
        error_type: "timeout".into(),
        message: format!("list the tools of {}: not done after {LIST_TIMEOUT:?}", config.name),
        may_have_happened: false,
    })??;
    Ok(tools.into_iter().filter(|tool| is_allowed(&tool.name, config)).map(|tool| tool_info(tool, config)).collect())
}

async fn all_pages(peer: &Peer<RoleClient>) -> Result<Vec<Tool>, CallError> {
    let mut tools = Vec::new();
    let mut seen = BTreeSet::new();
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let page = one_page(peer, cursor).await?;
        tools.extend(page.tools);
        if tools.len() > MAX_TOOLS {
            return Err(endless(format!("more than {MAX_TOOLS} tools")));
        }
        // An empty string is a cursor like any other.
        let Some(next) = page.next_cursor else { return Ok(tools) };
        if !seen.insert(next.clone()) {
            return Err(endless("the same cursor twice".into()));
        }
        cursor = Some(next);
    }
    Err(endless(format!("more than {MAX_PAGES} pages")))
}

async fn one_page(peer: &Peer<RoleClient>, cursor: Option<String>) -> Result<ListToolsResult, CallError> {
    let request = ListToolsRequest::with_param(PaginatedRequestParams::default().with_cursor(cursor));
    let options = PeerRequestOptions::with_timeout(PAGE_TIMEOUT);
    let handle = peer
        .send_request_with_option(ClientRequest::ListToolsRequest(request), options)
        .await
        .map_err(|error| call::call_error("list tools", &error))?;
    let answer = handle.await_response().await.map_err(|error| call::call_error("list tools", &error))?;
    let ServerResult::ListToolsResult(page) = answer else {
        return Err(CallError {
            error_type: "malformed_response".into(),
            message: "list tools: the server's answer is no list of tools".into(),
            may_have_happened: false,
        });
    };
    Ok(page)
}

fn endless(what: String) -> CallError {
    CallError {
        error_type: "malformed_response".into(),
        message: format!("list tools: the server sent {what}"),
        may_have_happened: false,
    }
}

fn is_allowed(tool: &str, config: &McpServerConfig) -> bool {
    config.allow.is_empty() || config.allow.iter().any(|glob| glob_match(glob, tool))
}

fn tool_info(tool: Tool, config: &McpServerConfig) -> ToolInfo {
    let description = tool.description.as_deref().unwrap_or_default();
    ToolInfo {
        qualified: format!("{}.{}", config.name, tool.name),
        server: config.name.clone(),
        on_adoption: on_adoption(&tool, config),
        description: description.chars().take(MAX_DESCRIPTION_CHARS).collect(),
        schema: Value::Object(tool.input_schema.as_ref().clone()),
        tool: tool.name.into_owned(),
    }
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
        McpServerConfig {
            name: "fs".into(),
            transport: McpTransport::Http { endpoint: "http://127.0.0.1:1/mcp".into(), headers: Vec::new() },
            allow: vec!["read_*".into()],
            on_adoption: BTreeMap::from([("read_*".to_owned(), OnAdoption::Fail)]),
            trust_annotations: true,
            call_timeout: Duration::from_secs(1),
            required: false,
            traits: crate::Traits::default(),
        }
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
}

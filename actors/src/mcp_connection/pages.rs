//! Drains a list of a server over all its pages. Each bound ends a listing that would have no end, with an error that says
//! which: a server must not be able to hold a node up or fill it.

use rmcp::{
    RoleClient,
    model::{
        ClientRequest, ListPromptsRequest, ListResourceTemplatesRequest, ListResourcesRequest, ListToolsRequest,
        PaginatedRequestParams, Prompt, Resource, ResourceTemplate, ServerResult, Tool,
    },
    service::{Peer, PeerRequestOptions},
};
use serde::Serialize;
use std::{collections::BTreeSet, time::Duration};

use super::{CallError, call};

/// Most pages of one listing: a server that never ends its list is cut off here.
pub(super) const MAX_PAGES: usize = 64;

/// Most items of one listing: each tool is a schema in the prompt of every agent that may use it, each resource a line.
pub(super) const MAX_ITEMS: usize = 1_000;

/// Most bytes of one listing, as JSON: it stays in memory for as long as the connection.
const MAX_LIST_BYTES: usize = 4 * 1024 * 1024;

/// Longest cursor: all of a listing are kept until its end.
const MAX_CURSOR_BYTES: usize = 4 * 1024;

/// Time for one page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the whole listing.
const LIST_TIMEOUT: Duration = Duration::from_secs(20);

/// A page: its items, and where the next one begins.
type Page<T> = (Vec<T>, Option<String>);

/// Something that servers list.
pub(super) struct Kind<T> {
    what: &'static str,
    request: fn(PaginatedRequestParams) -> ClientRequest,
    page: fn(ServerResult) -> Option<Page<T>>,
}

#[expect(clippy::wildcard_enum_match_arm, reason = "any other answer is none to this request")]
pub(super) const TOOLS: Kind<Tool> = Kind {
    what: "tools",
    request: |params| ClientRequest::ListToolsRequest(ListToolsRequest::with_param(params)),
    page: |answer| match answer {
        ServerResult::ListToolsResult(page) => Some((page.tools, page.next_cursor)),
        _ => None,
    },
};

#[expect(clippy::wildcard_enum_match_arm, reason = "any other answer is none to this request")]
pub(super) const RESOURCES: Kind<Resource> = Kind {
    what: "resources",
    request: |params| ClientRequest::ListResourcesRequest(ListResourcesRequest::with_param(params)),
    page: |answer| match answer {
        ServerResult::ListResourcesResult(page) => Some((page.resources, page.next_cursor)),
        _ => None,
    },
};

#[expect(clippy::wildcard_enum_match_arm, reason = "any other answer is none to this request")]
pub(super) const TEMPLATES: Kind<ResourceTemplate> = Kind {
    what: "resource templates",
    request: |params| ClientRequest::ListResourceTemplatesRequest(ListResourceTemplatesRequest::with_param(params)),
    page: |answer| match answer {
        ServerResult::ListResourceTemplatesResult(page) => Some((page.resource_templates, page.next_cursor)),
        _ => None,
    },
};

#[expect(clippy::wildcard_enum_match_arm, reason = "any other answer is none to this request")]
pub(super) const PROMPTS: Kind<Prompt> = Kind {
    what: "prompts",
    request: |params| ClientRequest::ListPromptsRequest(ListPromptsRequest::with_param(params)),
    page: |answer| match answer {
        ServerResult::ListPromptsResult(page) => Some((page.prompts, page.next_cursor)),
        _ => None,
    },
};

/// Lists everything of a kind.
///
/// # Errors
/// `timeout`, a code of JSON-RPC, or `malformed_response` for a list that goes on beyond a bound.
pub(super) async fn drain<T: Serialize>(peer: &Peer<RoleClient>, kind: &Kind<T>) -> Result<Vec<T>, CallError> {
    match tokio::time::timeout(LIST_TIMEOUT, all(peer, kind)).await {
        Ok(listed) => listed,
        Err(_) => Err(error("timeout", format!("list {}: not done after {LIST_TIMEOUT:?}", kind.what))),
    }
}

async fn all<T: Serialize>(peer: &Peer<RoleClient>, kind: &Kind<T>) -> Result<Vec<T>, CallError> {
    let endless = |what: String| error("malformed_response", format!("list {}: the server sent {what}", kind.what));
    let mut items = Vec::new();
    let mut seen = BTreeSet::new();
    let mut cursor = None;
    let mut bytes = 0;
    for _ in 0..MAX_PAGES {
        let (page, next) = one(peer, kind, cursor).await?;
        for item in page {
            bytes += serde_json::to_vec(&item).map_or(0, |text| text.len());
            items.push(item);
            if items.len() > MAX_ITEMS {
                return Err(endless(format!("more than {MAX_ITEMS} of them")));
            }
            if bytes > MAX_LIST_BYTES {
                return Err(endless(format!("more than {MAX_LIST_BYTES} bytes")));
            }
        }
        // An empty string is a cursor like any other.
        let Some(next) = next else { return Ok(items) };
        if next.len() > MAX_CURSOR_BYTES {
            return Err(endless(format!("a cursor of more than {MAX_CURSOR_BYTES} bytes")));
        }
        if !seen.insert(next.clone()) {
            return Err(endless("the same cursor twice".into()));
        }
        cursor = Some(next);
    }
    Err(endless(format!("more than {MAX_PAGES} pages")))
}

async fn one<T>(peer: &Peer<RoleClient>, kind: &Kind<T>, cursor: Option<String>) -> Result<Page<T>, CallError> {
    let what = format!("list {}", kind.what);
    let request = (kind.request)(PaginatedRequestParams::default().with_cursor(cursor));
    let options = PeerRequestOptions::with_timeout(PAGE_TIMEOUT);
    let failed = |failure| call::call_error(&what, &failure);
    let sent = peer.send_request_with_option(request, options).await.map_err(failed)?;
    let answer = sent.await_response().await.map_err(failed)?;
    (kind.page)(answer)
        .ok_or_else(|| error("malformed_response", format!("{what}: the server's answer is no such list")))
}

fn error(error_type: &'static str, message: String) -> CallError {
    CallError { error_type: error_type.into(), message, may_have_happened: false }
}

//! Drains a list of a server over all its pages. Each bound ends a listing that would have no end, with an error that says
//! which: a server must not be able to hold a node up or fill it.

use rmcp::{
    RoleClient,
    model::{
        ClientRequest, CustomResult, ListPromptsRequest, ListResourceTemplatesRequest, ListResourcesRequest,
        ListToolsRequest, PaginatedRequestParams, Prompt, Resource, ResourceTemplate, ServerResult, Tool,
    },
    service::{Peer, PeerRequestOptions},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{collections::BTreeSet, time::Duration};

use super::{CallError, call, text};

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

/// Largest item, as JSON: one that is larger is left out, and the others stand.
const MAX_ITEM_BYTES: usize = 256 * 1024;

/// Left out items that are told of one listing.
pub(super) const MAX_REFUSED: usize = 32;

/// Longest reason for that, in characters.
const MAX_WHY_CHARS: usize = 200;

/// A page: its items, and where the next one begins.
type Page<T> = (Vec<T>, Option<String>);

/// Something that servers list.
pub(super) struct Kind<T> {
    pub what: &'static str,
    /// The field of a page that has the items.
    field: &'static str,
    request: fn(PaginatedRequestParams) -> ClientRequest,
    page: fn(ServerResult) -> Option<Page<T>>,
}

#[expect(clippy::wildcard_enum_match_arm, reason = "any other answer is none to this request")]
pub(super) const TOOLS: Kind<Tool> = Kind {
    what: "tools",
    field: "tools",
    request: |params| ClientRequest::ListToolsRequest(ListToolsRequest::with_param(params)),
    page: |answer| match answer {
        ServerResult::ListToolsResult(page) => Some((page.tools, page.next_cursor)),
        _ => None,
    },
};

#[expect(clippy::wildcard_enum_match_arm, reason = "any other answer is none to this request")]
pub(super) const RESOURCES: Kind<Resource> = Kind {
    what: "resources",
    field: "resources",
    request: |params| ClientRequest::ListResourcesRequest(ListResourcesRequest::with_param(params)),
    page: |answer| match answer {
        ServerResult::ListResourcesResult(page) => Some((page.resources, page.next_cursor)),
        _ => None,
    },
};

#[expect(clippy::wildcard_enum_match_arm, reason = "any other answer is none to this request")]
pub(super) const TEMPLATES: Kind<ResourceTemplate> = Kind {
    what: "resource templates",
    field: "resourceTemplates",
    request: |params| ClientRequest::ListResourceTemplatesRequest(ListResourceTemplatesRequest::with_param(params)),
    page: |answer| match answer {
        ServerResult::ListResourceTemplatesResult(page) => Some((page.resource_templates, page.next_cursor)),
        _ => None,
    },
};

#[expect(clippy::wildcard_enum_match_arm, reason = "any other answer is none to this request")]
pub(super) const PROMPTS: Kind<Prompt> = Kind {
    what: "prompts",
    field: "prompts",
    request: |params| ClientRequest::ListPromptsRequest(ListPromptsRequest::with_param(params)),
    page: |answer| match answer {
        ServerResult::ListPromptsResult(page) => Some((page.prompts, page.next_cursor)),
        _ => None,
    },
};

/// What was listed.
pub(super) struct Listed<T> {
    pub items: Vec<T>,
    /// Items that cannot be read, and why.
    pub left_out: Vec<String>,
}

/// Lists everything of a kind. An item that is none is left out: it does not spoil the others.
///
/// # Errors
/// `timeout`, a code of JSON-RPC, or `malformed_response` for a list that goes on beyond a bound.
pub(super) async fn drain<T: Serialize + DeserializeOwned>(
    peer: &Peer<RoleClient>,
    kind: &Kind<T>,
) -> Result<Listed<T>, CallError> {
    match tokio::time::timeout(LIST_TIMEOUT, all(peer, kind)).await {
        Ok(listed) => listed,
        Err(_) => Err(error("timeout", format!("list {}: not done after {LIST_TIMEOUT:?}", kind.what))),
    }
}

async fn all<T: Serialize + DeserializeOwned>(peer: &Peer<RoleClient>, kind: &Kind<T>) -> Result<Listed<T>, CallError> {
    let endless = |what: String| error("malformed_response", format!("list {}: the server sent {what}", kind.what));
    let mut listed = Listed { items: Vec::new(), left_out: Vec::new() };
    let mut seen = BTreeSet::new();
    let mut cursor = None;
    let mut bytes = 0;
    for _ in 0..MAX_PAGES {
        let (page, next) = one(peer, kind, cursor, &mut listed.left_out).await?;
        for item in page {
            let length = serde_json::to_vec(&item).map_or(0, |text| text.len());
            if length > MAX_ITEM_BYTES {
                leave_out(
                    &mut listed.left_out,
                    format!("one of its {} has more than {MAX_ITEM_BYTES} bytes", kind.what),
                );
                continue;
            }
            bytes += length;
            listed.items.push(item);
            if listed.items.len() > MAX_ITEMS {
                return Err(endless(format!("more than {MAX_ITEMS} of them")));
            }
            if bytes > MAX_LIST_BYTES {
                return Err(endless(format!("more than {MAX_LIST_BYTES} bytes")));
            }
        }
        // An empty string is a cursor like any other.
        let Some(next) = next else { return Ok(listed) };
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

async fn one<T: DeserializeOwned>(
    peer: &Peer<RoleClient>,
    kind: &Kind<T>,
    cursor: Option<String>,
    left_out: &mut Vec<String>,
) -> Result<Page<T>, CallError> {
    let what = format!("list {}", kind.what);
    let request = (kind.request)(PaginatedRequestParams::default().with_cursor(cursor));
    let options = PeerRequestOptions::with_timeout(PAGE_TIMEOUT);
    let failed = |failure| call::call_error(&what, &failure);
    let sent = peer.send_request_with_option(request, options).await.map_err(failed)?;
    let answer = sent.await_response().await.map_err(failed)?;
    // rmcp reads a page of which one item is wrong as some answer that it does not know.
    let page = if let ServerResult::CustomResult(CustomResult(mut page)) = answer {
        item_by_item(kind, &mut page, left_out)
    } else {
        (kind.page)(answer)
    };
    page.ok_or_else(|| error("malformed_response", format!("{what}: the server's answer is no such list")))
}

/// A page of which every item is read by itself.
fn item_by_item<T: DeserializeOwned>(kind: &Kind<T>, page: &mut Value, left_out: &mut Vec<String>) -> Option<Page<T>> {
    let next = page.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
    let Value::Array(raw) = page.get_mut(kind.field)?.take() else { return None };
    let mut items = Vec::new();
    for item in raw {
        let name = item.get("name").and_then(Value::as_str).map(|name| text::plain_line(name, text::MAX_NAME_BYTES));
        match serde_json::from_value(item) {
            Ok(item) => items.push(item),
            Err(error) => {
                let why = text::plain_line(&error.to_string(), MAX_WHY_CHARS);
                leave_out(left_out, format!("one of its {} ({:?}): {why}", kind.what, name.unwrap_or_default()));
            }
        }
    }
    Some((items, next))
}

fn leave_out(left_out: &mut Vec<String>, what: String) {
    if left_out.len() < MAX_REFUSED {
        left_out.push(what);
    }
}

fn error(error_type: &'static str, message: String) -> CallError {
    CallError { error_type: error_type.into(), message, may_have_happened: false }
}

//! What a server has beside its tools, as who passes it on shows it: resources, templates and prompts, item by item as JSON.
//!
//! They are asked for when somebody wants them, and kept until the server says that its lists changed. While the server is down, what
//! it listed last is shown.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};

use super::{
    McpHandle, Phase,
    pages::{self, Kind},
    text,
};

/// What a server has beside its tools.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Offers {
    /// Resources, each with a `uri` and a `name`.
    pub resources: Vec<Value>,
    /// Templates of resources, each with a `uriTemplate` and a `name`.
    pub templates: Vec<Value>,
    /// Prompts, each with a `name`.
    pub prompts: Vec<Value>,
}

impl Offers {
    /// Whether it has a resource: one that is listed, or one that a template may stand for.
    pub fn has_resource(&self, uri: &str) -> bool {
        let is_listed = self.resources.iter().any(|resource| resource["uri"] == uri);
        is_listed || self.templates.iter().filter_map(|template| template["uriTemplate"].as_str()).any(|t| fits(uri, t))
    }
}

/// Whether a URI begins and ends as a template does. The template itself fits, since arguments of it are completed.
fn fits(uri: &str, template: &str) -> bool {
    let (Some(begin), Some(end)) = (template.find('{'), template.rfind('}')) else { return uri == template };
    let (head, tail) = (&template[..begin], &template[end + 1..]);
    !head.is_empty() && uri.len() > head.len() + tail.len() && uri.starts_with(head) && uri.ends_with(tail)
}

/// What was listed last, with the number of the catalogue that it is of.
#[derive(Clone, Default)]
pub(super) struct Known(Arc<Mutex<Option<Last>>>);

type Last = (u64, Arc<Offers>);

impl McpHandle {
    /// What the server has beside its tools. What it does not have, or cannot list, is empty.
    pub async fn offers(&self) -> Arc<Offers> {
        let known = self.offers.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (catalogue, live) = {
            let published = self.published.borrow();
            let live = if let Phase::Ready(live) = &published.phase { Some(Arc::clone(live)) } else { None };
            (published.catalogue, live)
        };
        let Some(live) = live else { return known.map(|(_, offers)| offers).unwrap_or_default() };
        if let Some((of, offers)) = &known
            && *of == catalogue
        {
            return Arc::clone(offers);
        }
        let has = live.capabilities;
        let mut offers = Offers::default();
        if has.resources {
            offers.resources = self.listed(&live.peer, &pages::RESOURCES, "uri").await;
            offers.templates = self.listed(&live.peer, &pages::TEMPLATES, "uriTemplate").await;
        }
        if has.prompts {
            offers.prompts = self.listed(&live.peer, &pages::PROMPTS, "name").await;
        }
        let offers = Arc::new(offers);
        *self.offers.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((catalogue, Arc::clone(&offers)));
        offers
    }

    /// The server's list of a kind: what can be told, each under another key.
    async fn listed<T: Serialize + DeserializeOwned>(
        &self,
        peer: &rmcp::service::Peer<rmcp::RoleClient>,
        kind: &Kind<T>,
        key: &str,
    ) -> Vec<Value> {
        let listed = match pages::drain(peer, kind).await {
            Ok(listed) => listed.items,
            Err(error) => {
                tracing::warn!(server = self.config.name, %error, "a list of an MCP server cannot be passed on");
                return Vec::new();
            }
        };
        let mut seen = std::collections::BTreeSet::new();
        let is_new = |item: &Value| {
            let named = item[key].as_str().filter(|name| text::bad_uri(name).is_none());
            named.is_some_and(|name| seen.insert(name.to_owned()))
        };
        let items = listed.into_iter().filter_map(|item| text::plain_schema(serde_json::to_value(item).ok()?).ok());
        items.filter(is_new).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_resource_is_listed_or_begins_and_ends_as_a_template_does() {
        let offers = Offers {
            resources: vec![json!({ "uri": "test://a" })],
            templates: vec![json!({ "uriTemplate": "test://t/{id}/data" }), json!({ "uriTemplate": "{everything}" })],
            prompts: Vec::new(),
        };
        for has in ["test://a", "test://t/7/data", "test://t/{id}/data"] {
            assert!(offers.has_resource(has), "{has}");
        }
        for has_not in ["test://b", "test://t//data", "test://t/data", "test://t/7/other", "x", ""] {
            assert!(!offers.has_resource(has_not), "{has_not}");
        }
    }
}

//! What a server has beside its tools, as who passes it on shows it: resources, templates and prompts, item by item as JSON.
//!
//! They are asked for when somebody wants them, and kept until the server says that its lists changed. While the server is down, what
//! it listed last is shown. So it is where a list cannot be had, which the status of the server says; that one is asked for again when
//! somebody wants it, with longer and longer times in between.

use rmcp::{RoleClient, service::Peer};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use super::{
    CallError, Live, McpHandle, Phase,
    bridged::{WAIT_FOR_SERVER, missing},
    call::{self, Patience},
    list_back_off,
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

/// A list of a server beside that of its tools.
#[derive(Debug, Clone, Copy)]
enum List {
    Resources,
    Templates,
    Prompts,
}

impl List {
    const ALL: [List; 3] = [List::Resources, List::Templates, List::Prompts];

    fn name(self) -> &'static str {
        match self {
            List::Resources => pages::RESOURCES.what,
            List::Templates => pages::TEMPLATES.what,
            List::Prompts => pages::PROMPTS.what,
        }
    }

    /// What no two items have in common.
    fn key(self) -> &'static str {
        match self {
            List::Resources => "uri",
            List::Templates => "uriTemplate",
            List::Prompts => "name",
        }
    }

    fn is_there(self, live: &Live) -> bool {
        match self {
            List::Resources | List::Templates => live.capabilities.resources,
            List::Prompts => live.capabilities.prompts,
        }
    }

    fn of(self, offers: &mut Offers) -> &mut Vec<Value> {
        match self {
            List::Resources => &mut offers.resources,
            List::Templates => &mut offers.templates,
            List::Prompts => &mut offers.prompts,
        }
    }

    /// Its items, as they came.
    async fn drain(self, peer: &Peer<RoleClient>) -> Result<Vec<Value>, CallError> {
        match self {
            List::Resources => drained(peer, &pages::RESOURCES).await,
            List::Templates => drained(peer, &pages::TEMPLATES).await,
            List::Prompts => drained(peer, &pages::PROMPTS).await,
        }
    }
}

async fn drained<T: Serialize + DeserializeOwned>(
    peer: &Peer<RoleClient>,
    kind: &Kind<T>,
) -> Result<Vec<Value>, CallError> {
    let listed = pages::drain(peer, kind).await?;
    Ok(listed.items.iter().filter_map(|item| serde_json::to_value(item).ok()).collect())
}

/// What was listed last.
#[derive(Clone, Default)]
pub(super) struct Known(Arc<KnownInner>);

#[derive(Default)]
struct KnownInner {
    /// Who lists: the others wait for what comes of it.
    listing: tokio::sync::Mutex<()>,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    offers: Arc<Offers>,
    /// How each of [`List::ALL`] was asked for last.
    asked: [Option<Asked>; 3],
}

struct Asked {
    /// The number of the catalogue that it was of.
    catalogue: u64,
    failed: Option<Failed>,
}

struct Failed {
    why: String,
    times: u32,
    not_before: Instant,
}

impl Asked {
    fn is_good(&self, catalogue: u64) -> bool {
        let passes = |failed: &Failed| Instant::now() < failed.not_before;
        self.catalogue == catalogue && self.failed.as_ref().is_none_or(passes)
    }
}

impl Known {
    fn last(&self) -> MutexGuard<'_, Last> {
        self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lists that cannot be had, and why.
    pub(super) fn failed(&self) -> BTreeMap<String, String> {
        let last = self.last();
        let failed = List::ALL.into_iter().zip(&last.asked).filter_map(|(list, asked)| {
            let failed = asked.as_ref()?.failed.as_ref()?;
            Some((list.name().to_owned(), failed.why.clone()))
        });
        failed.collect()
    }

    fn is_good(&self, list: List, catalogue: u64) -> bool {
        self.last().asked[list as usize].as_ref().is_some_and(|asked| asked.is_good(catalogue))
    }

    fn note(&self, list: List, catalogue: u64, listed: Result<Vec<Value>, CallError>) {
        let mut last = self.last();
        let failed = match listed {
            Ok(items) => {
                *list.of(Arc::make_mut(&mut last.offers)) = items;
                None
            }
            Err(error) => {
                let before = last.asked[list as usize].as_ref().and_then(|asked| asked.failed.as_ref());
                let times = before.map_or(0, |failed| failed.times) + 1;
                Some(Failed { why: error.message, times, not_before: Instant::now() + list_back_off(times) })
            }
        };
        last.asked[list as usize] = Some(Asked { catalogue, failed });
    }
}

impl McpHandle {
    /// What the server has beside its tools. What it does not have is empty; of what it cannot list, what it listed last is there.
    pub async fn offers(&self) -> Arc<Offers> {
        let (catalogue, live) = {
            let published = self.published.borrow();
            let live = if let Phase::Ready(live) = &published.phase { Some(Arc::clone(live)) } else { None };
            (published.catalogue, live)
        };
        let is_good = |list: &List| self.offers.is_good(*list, catalogue);
        if let Some(live) = live.filter(|_| !List::ALL.iter().all(is_good)) {
            let _listing = self.offers.0.listing.lock().await;
            for list in List::ALL.into_iter().filter(|list| !is_good(list)) {
                let listed = if list.is_there(&live) { list.drain(&live.peer).await } else { Ok(Vec::new()) };
                if let Err(error) = &listed {
                    tracing::warn!(server = self.config.name, %error, "a list of an MCP server cannot be passed on");
                }
                self.offers.note(list, catalogue, listed.map(|items| told(items, list.key())));
            }
        }
        Arc::clone(&self.offers.last().offers)
    }

    /// Its resources, as they are listed.
    ///
    /// # Errors
    /// When the server is not there, has none, or the list cannot be had.
    pub async fn listed_resources(&self) -> Result<Vec<Value>, CallError> {
        self.listed_now(List::Resources).await
    }

    /// Its templates of resources, as they are listed.
    ///
    /// # Errors
    /// As for its resources.
    pub async fn listed_templates(&self) -> Result<Vec<Value>, CallError> {
        self.listed_now(List::Templates).await
    }

    /// Its prompts, as they are listed.
    ///
    /// # Errors
    /// As for its resources.
    pub async fn listed_prompts(&self) -> Result<Vec<Value>, CallError> {
        self.listed_now(List::Prompts).await
    }

    async fn listed_now(&self, list: List) -> Result<Vec<Value>, CallError> {
        let live = call::live(self, WAIT_FOR_SERVER, Patience::NextTry).await?;
        if !list.is_there(&live) {
            return Err(missing(format!("list the {} of {}: the server has none", list.name(), self.name())));
        }
        list.drain(&live.peer).await
    }
}

/// What can be told of a list: each under another key.
fn told(listed: Vec<Value>, key: &str) -> Vec<Value> {
    let mut seen = BTreeSet::new();
    let is_new = |item: &Value| {
        let named = item[key].as_str().filter(|name| text::bad_uri(name).is_none());
        named.is_some_and(|name| seen.insert(name.to_owned()))
    };
    listed.into_iter().filter_map(|item| text::plain_schema(item).ok()).filter(is_new).collect()
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

//! What resources of MCP servers say at the moment, for who passes their changes on to others. All who want to know of a resource
//! share one subscription and one reader, so that a thousand of them cost its server what one does.
//!
//! ```text
//! armed | updated | poll ──▶ debounce ──▶ read ──▶ its hash is another one ──▶ all who hold a Content
//! ```
//! As with triggers an update is only a reason to look: whoever knows the hash that was seen last finds what changed while nobody
//! listened, at this node or another one.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};
use tokio_util::task::AbortOnDropHandle;

use super::subscription::{FIRST_RETRY, MAX_RETRY, RESYNC_EVERY, hash, look_at, with_files};
use crate::mcp_connection::{CallError, McpHandle, bad_uri};

/// Most resources of all servers that are read on one node for others: each is a task, a subscription and some kilobytes.
const MAX_CONTENTS: usize = 4_096;

/// Updates within this time are one read: what a server says does not have it read more often than this.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// How often a resource is read whose server does not say when it changes.
const POLL_EVERY: Duration = Duration::from_secs(5);

/// How long a resource is still watched that nobody wants to know of: a client that comes back within it costs its server nothing.
const LINGER: Duration = Duration::from_secs(10);

/// The version of a resource that is not there.
pub const NOTHING: u64 = 0;

/// Why a resource is not watched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotWatched {
    /// No resource has such a URI.
    #[error("{0}")]
    BadUri(String),
    /// There is no place for it.
    #[error("{MAX_CONTENTS} resources of other servers are watched at this node: ask another one, or later")]
    Full,
}

/// The resources that are watched on this node for others; cheap to clone. They are watched until [`Contents::stop`], until nobody wants
/// to know of them, or until their connection has ended for good.
#[derive(Clone, Default)]
pub struct Contents(Arc<Mutex<BTreeMap<Key, Entry>>>);

/// A server and a URI.
type Key = (String, String);

struct Entry {
    handle: McpHandle,
    version: watch::Sender<Option<u64>>,
    _reading: AbortOnDropHandle<()>,
}

/// What a resource says, by a number that is another one when it says something else.
#[derive(Debug, Clone)]
pub struct Content(watch::Receiver<Option<u64>>);

impl Content {
    /// Its version; none while it has not been read yet.
    pub fn version(&self) -> Option<u64> {
        *self.0.borrow()
    }

    /// Its version, once it has been read. None when it never will be.
    pub async fn read(&mut self) -> Option<u64> {
        *self.0.wait_for(Option::is_some).await.ok()?
    }

    /// Waits until it may be another one; false when it never will be.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

impl Contents {
    /// Watches a resource over this connection.
    ///
    /// # Errors
    /// When its URI is none, or there is no place for it.
    pub fn watch(&self, handle: &McpHandle, uri: &str) -> Result<Content, NotWatched> {
        if let Some(why) = bad_uri(uri) {
            return Err(NotWatched::BadUri(why));
        }
        let key = (handle.name().to_owned(), uri.to_owned());
        let mut entries = self.lock();
        if let Some(entry) = entries.get(&key).filter(|entry| entry.handle.is_same(handle)) {
            return Ok(Content(entry.version.subscribe()));
        }
        if entries.len() >= MAX_CONTENTS {
            return Err(NotWatched::Full);
        }
        let (version, content) = watch::channel(None);
        let reader =
            Reader { contents: self.clone(), key: key.clone(), handle: handle.clone(), version: version.clone() };
        let reading = AbortOnDropHandle::new(tokio::spawn(reader.run()));
        entries.insert(key, Entry { handle: handle.clone(), version, _reading: reading });
        Ok(Content(content))
    }

    /// Ends all that watches.
    pub fn stop(&self) {
        std::mem::take(&mut *self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads one resource for all who hold its content.
struct Reader {
    contents: Contents,
    key: Key,
    handle: McpHandle,
    version: watch::Sender<Option<u64>>,
}

impl Reader {
    async fn run(self) {
        loop {
            tokio::select! {
                () = self.look() => {}
                // The connection has ended for good: who holds the content looks for another one.
                () = self.handle.ended() => {
                    self.leave(true);
                    return;
                }
                () = self.unwanted() => if self.leave(false) { return },
            }
        }
    }

    async fn unwanted(&self) {
        self.version.closed().await;
        tokio::time::sleep(LINGER).await;
    }

    /// Takes the entry away, if it is this reader's and nobody wants it. Dropping it ends this task.
    fn leave(&self, in_any_case: bool) -> bool {
        let mut entries = self.contents.lock();
        let is_unwanted = in_any_case || self.version.receiver_count() == 0;
        if is_unwanted && entries.get(&self.key).is_some_and(|entry| entry.version.same_channel(&self.version)) {
            entries.remove(&self.key);
        }
        is_unwanted
    }

    /// Looks, for as long as it is polled.
    async fn look(&self) {
        let uri = &self.key.1;
        let mut watch = self.handle.watch_resource(uri);
        let (mut retry, mut failures) = (None, 0_u32);
        let mut resync = Instant::now() + RESYNC_EVERY;
        loop {
            let again = async {
                match retry {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let is_time = tokio::select! {
                () = watch.changed() => {
                    tokio::time::sleep(DEBOUNCE).await;
                    true
                }
                () = again => true,
                () = tokio::time::sleep(POLL_EVERY) => watch.is_deaf() || (Instant::now() >= resync && watch.how() == "live"),
            };
            if !is_time || watch.how() == "down" {
                continue;
            }
            watch.looks();
            resync = Instant::now() + RESYNC_EVERY;
            match version_of(&self.handle, uri).await {
                Ok(version) => {
                    (retry, failures) = (None, 0);
                    self.version.send_if_modified(|known| known.replace(version) != Some(version));
                }
                Err(error) => {
                    tracing::debug!(server = self.handle.name(), uri, %error, "a resource that is passed on is not read");
                    retry = Some(Instant::now() + FIRST_RETRY.saturating_mul(1 << failures.min(16)).min(MAX_RETRY));
                    failures += 1;
                }
            }
        }
    }
}

async fn version_of(handle: &McpHandle, uri: &str) -> Result<u64, CallError> {
    let answer = look_at(handle, uri).await?;
    if answer.is_error {
        return Ok(NOTHING);
    }
    let hash = hash(&with_files(answer.text, &answer.files));
    let version = u64::from_str_radix(hash.get(..16).unwrap_or_default(), 16).unwrap_or(1);
    Ok(version.max(NOTHING + 1))
}

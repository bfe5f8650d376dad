//! Which resources of a server are watched, and the subscriptions to them over the connection that stands.
//!
//! Who watches a resource holds a [`ResourceWatch`], whatever becomes of the connection; each connection subscribes anew to all
//! that is watched, and each time that it has, or that something may have been missed, the watch says: look. An update carries
//! no content, and says no more than that either. Where a server cannot say anything by itself, the watch says so, and its
//! holder reads in a rhythm of its own.
//!
//! ```text
//! initialize: resources/subscribe per URI        ping each 10 s: a session that is lost ends the connection
//! 2026-07-28: one subscriptions/listen for all   its end is seen, and it is opened again
//! ```
//! That stream carries what the server announces of its lists as well. Whenever it has been opened they are listed again: what changed
//! before that was not heard.
#![expect(deprecated, reason = "servers up to 2025-11-25 are subscribed to one resource at a time")]

use futures::{StreamExt, stream};
use rmcp::{
    RoleClient,
    model::{
        ClientRequest, DiscoverRequest, DiscoverRequestParams, PingRequest, ServerNotification, SubscribeRequest,
        SubscribeRequestParams, SubscriptionFilter, UnsubscribeRequest, UnsubscribeRequestParams,
    },
    service::{Peer, PeerRequestOptions, ServiceError},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    McpHandle, Phase, call, causes,
    client::Client,
    revision::Capabilities,
    socket::{Push, Seen},
    tail::TailKind,
};

/// Subscriptions that are asked for at the same time: a server with thousands of them is not flooded, and not waited for one by one.
const AT_THE_SAME_TIME: usize = 16;

/// Time for a server to answer a subscription or a ping.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a server is asked whether it still knows the session: with the answer's time this is how long a lost one is not noticed.
const PING_EVERY: Duration = Duration::from_secs(8);

/// How often it is looked whether a server without a session and a stream is still there: nothing else would tell.
const LOOK_EVERY: Duration = Duration::from_secs(8);

/// Changes of what is watched within this time are one new stream of a server without sessions.
const COLLECT: Duration = Duration::from_millis(100);

/// Wait before a stream that ended is opened again; it doubles up to [`MAX_REOPEN`].
const FIRST_REOPEN: Duration = Duration::from_millis(250);

/// Longest such wait.
const MAX_REOPEN: Duration = Duration::from_secs(10);

/// A stream that lived this long was one.
const STREAM_LIVED: Duration = Duration::from_secs(5);

/// Whether a resource is subscribed to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Arm {
    /// There is no connection, or nothing is known of it yet.
    #[default]
    Down,
    /// The server says when it changes.
    Pushed,
    /// The server cannot, or will not say so.
    Pulled,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Signal {
    /// Grows whenever the resource may have changed.
    count: u64,
    arm: Arm,
}

/// What is watched of one server; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Watches(Arc<WatchesInner>);

#[derive(Debug, Default)]
struct WatchesInner {
    signals: Mutex<BTreeMap<String, watch::Sender<Signal>>>,
    changed: Notify,
}

impl Watches {
    fn signals(&self) -> MutexGuard<'_, BTreeMap<String, watch::Sender<Signal>>> {
        self.0.signals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn uris(&self) -> BTreeSet<String> {
        self.signals().keys().cloned().collect()
    }

    /// The server says that a resource changed: that one, or one that it is a part of.
    pub(super) fn updated(&self, uri: &str) {
        let signals = self.signals();
        for (_, signal) in signals.iter().filter(|(watched, _)| uri.starts_with(watched.as_str())) {
            signal.send_modify(|signal| signal.count += 1);
        }
    }

    /// Whether it is subscribed to is known; where that is news, something may have been missed.
    fn arm(&self, uri: &str, arm: Arm) {
        if let Some(signal) = self.signals().get(uri) {
            signal.send_if_modified(|signal| {
                let is_news = signal.arm != arm;
                signal.arm = arm;
                signal.count += u64::from(is_news && arm != Arm::Down);
                is_news
            });
        }
    }

    /// The connection has ended.
    pub(super) fn down(&self) {
        self.uris().iter().for_each(|uri| self.arm(uri, Arm::Down));
    }
}

/// A resource that is watched for as long as this is held.
pub(crate) struct ResourceWatch {
    handle: McpHandle,
    uri: String,
    signal: watch::Receiver<Signal>,
    /// How often the server's stream was open when it was looked at last.
    streams: Option<u32>,
}

impl McpHandle {
    /// Watches a resource.
    pub(crate) fn watch_resource(&self, uri: &str) -> ResourceWatch {
        let mut signal = self.watches.signals().entry(uri.to_owned()).or_default().subscribe();
        signal.mark_changed();
        self.watches.0.changed.notify_one();
        ResourceWatch { handle: self.clone(), uri: uri.to_owned(), signal, streams: None }
    }

    /// Waits until the connection has ended for good.
    pub(crate) async fn ended(&self) {
        let mut published = self.published.clone();
        while published.changed().await.is_ok() {}
    }
}

impl ResourceWatch {
    /// Waits until the resource may have changed; again at once if it may have since the last look.
    pub(crate) async fn changed(&mut self) {
        loop {
            let waited = self.signal.changed().await;
            if waited.is_err() {
                return std::future::pending().await;
            }
            if self.signal.borrow_and_update().arm != Arm::Down {
                return;
            }
        }
    }

    /// Whatever has been said by now is about what is read from here on.
    pub(crate) fn looks(&mut self) {
        self.signal.borrow_and_update();
        self.streams = self.open_streams();
    }

    /// How it is heard of: `live`, `poll`, `down`.
    pub(crate) fn how(&self) -> &'static str {
        match (self.signal.borrow().arm, self.is_open()) {
            (Arm::Down, _) => "down",
            (Arm::Pushed, true) => "live",
            (Arm::Pushed, false) | (Arm::Pulled, _) => "poll",
        }
    }

    /// Whether it has to be read although nobody says anything: since nobody can, or since the stream is another one than at the
    /// last look, and what came in between is not said again.
    pub(crate) fn is_deaf(&self) -> bool {
        match self.how() {
            "live" => self.streams != self.open_streams(),
            "poll" => true,
            _ => false,
        }
    }

    fn is_open(&self) -> bool {
        matches!(&self.handle.published.borrow().phase, Phase::Ready(live) if live.seen.push() == Push::Live)
    }

    fn open_streams(&self) -> Option<u32> {
        let published = self.handle.published.borrow();
        if let Phase::Ready(live) = &published.phase { Some(live.seen.streams()) } else { None }
    }
}

impl Drop for ResourceWatch {
    fn drop(&mut self) {
        let mut signals = self.handle.watches.signals();
        // Another one may have begun to watch it.
        if signals.get(&self.uri).is_some_and(|signal| signal.receiver_count() <= 1) {
            signals.remove(&self.uri);
            drop(signals);
            self.handle.watches.0.changed.notify_one();
        }
    }
}

/// Lists whose changes a server announces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Announces {
    tools: bool,
    resources: bool,
    prompts: bool,
}

impl Announces {
    pub(super) fn of(has: Capabilities) -> Self {
        Self { tools: has.tools_changed, resources: has.resources_changed, prompts: has.prompts_changed }
    }

    fn filter(self, uris: BTreeSet<String>) -> SubscriptionFilter {
        let mut filter = SubscriptionFilter::builder();
        if self.tools {
            filter = filter.tools_list_changed();
        }
        if self.resources {
            filter = filter.resources_list_changed();
        }
        if self.prompts {
            filter = filter.prompts_list_changed();
        }
        if !uris.is_empty() {
            filter = filter.resource_subscriptions(uris);
        }
        filter.build()
    }
}

/// Keeps the subscriptions of one connection.
pub(super) struct Keeper {
    pub(super) peer: Peer<RoleClient>,
    pub(super) watches: Watches,
    pub(super) seen: Seen,
    pub(super) client: Client,
    /// What the server announces of its lists.
    pub(super) announces: Announces,
    /// Whether the server said that it has subscriptions.
    pub(super) can_subscribe: bool,
    /// Whether one stream is for all of them.
    pub(super) is_stateless: bool,
}

impl Keeper {
    /// Subscribes to what is watched, for as long as the connection stands. Returns why it does not.
    pub(super) async fn keep(self) -> String {
        let listens = self.is_stateless && self.announces != Announces::default();
        if !self.can_subscribe && !listens {
            return self.keep_none().await;
        }
        if self.is_stateless { self.keep_stream().await } else { self.keep_each().await }
    }

    /// All of it is read in a rhythm.
    async fn keep_none(&self) -> String {
        loop {
            self.watches.uris().iter().for_each(|uri| self.watches.arm(uri, Arm::Pulled));
            tokio::select! {
                () = self.watches.0.changed.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY), if self.is_stateless => {
                    if let Some(why) = self.gone().await {
                        return format!("the server is gone: {why}");
                    }
                }
            }
        }
    }

    /// Why a server without a session and a stream cannot be reached. One that is busy is not gone.
    async fn gone(&self) -> Option<String> {
        let request = ClientRequest::DiscoverRequest(DiscoverRequest::new(DiscoverRequestParams {}));
        let asking = async {
            let options = PeerRequestOptions::with_timeout(ANSWER_TIMEOUT);
            self.peer.send_request_with_option(request, options).await?.await_response().await
        };
        let failure = tokio::time::timeout(ANSWER_TIMEOUT * 2, asking).await.ok()?.err()?;
        call::never_arrived(&failure).then(|| failure.to_string())
    }

    async fn keep_each(&self) -> String {
        let mut known: BTreeSet<String> = BTreeSet::new();
        let mut ping = Instant::now() + PING_EVERY;
        loop {
            let wanted = self.watches.uris();
            for gone in known.difference(&wanted) {
                let request = UnsubscribeRequest::new(UnsubscribeRequestParams::new(gone.clone()));
                // What is said of it is passed over in any case.
                let _ = self.ask(ClientRequest::UnsubscribeRequest(request)).await;
            }
            known.retain(|uri| wanted.contains(uri));
            let new: Vec<String> = wanted.difference(&known).cloned().collect();
            let subscribing = new.into_iter().map(|uri| async move {
                let request = SubscribeRequest::new(SubscribeRequestParams::new(uri.clone()));
                (self.ask(ClientRequest::SubscribeRequest(request)).await, uri)
            });
            let mut subscribing = stream::iter(subscribing).buffer_unordered(AT_THE_SAME_TIME);
            while let Some((answer, uri)) = subscribing.next().await {
                match answer {
                    Ok(()) => self.watches.arm(&uri, Arm::Pushed),
                    Err(Refusal::Said(why)) => {
                        self.client.tail.say(TailKind::Connection, &format!("no subscription to {uri}: {why}"));
                        self.watches.arm(&uri, Arm::Pulled);
                    }
                    Err(Refusal::Silent(why)) => return format!("subscribe to a resource: {why}"),
                }
                known.insert(uri);
            }
            drop(subscribing);
            tokio::select! {
                () = self.watches.0.changed.notified() => {}
                () = tokio::time::sleep_until(ping), if !known.is_empty() => {
                    let request = ClientRequest::PingRequest(PingRequest::default());
                    if let Err(Refusal::Silent(why)) = self.ask(request).await {
                        return format!("ping, for the subscriptions: {why}");
                    }
                    ping = Instant::now() + PING_EVERY;
                }
            }
        }
    }

    async fn ask(&self, request: ClientRequest) -> Result<(), Refusal> {
        let asking = async {
            let options = PeerRequestOptions::with_timeout(ANSWER_TIMEOUT);
            self.peer.send_request_with_option(request, options).await?.await_response().await
        };
        match tokio::time::timeout(ANSWER_TIMEOUT * 2, asking).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(ServiceError::McpError(said))) => Err(Refusal::Said(said.message.to_string())),
            Ok(Err(error)) => Err(Refusal::Silent(causes::of_request(&error))),
            Err(_) => Err(Refusal::Silent(format!("no answer after {:?}", ANSWER_TIMEOUT * 2))),
        }
    }

    async fn keep_stream(&self) -> String {
        let (mut current, mut failures) = (None, 0_u32);
        loop {
            tokio::time::sleep(COLLECT).await;
            let wanted = self.watches.uris();
            if wanted.is_empty() && self.announces == Announces::default() {
                current = None;
                self.watches.0.changed.notified().await;
                continue;
            }
            let filter = self.announces.filter(if self.can_subscribe { wanted.clone() } else { BTreeSet::new() });
            let opened = tokio::time::timeout(ANSWER_TIMEOUT, self.peer.listen(filter)).await;
            let mut listening = match opened {
                Ok(Ok(listening)) => listening,
                Ok(Err(error)) if call::never_arrived(&error) => return format!("the server is gone: {error}"),
                Ok(Err(error)) => {
                    failures = self.deaf(&wanted, failures, &error.to_string()).await;
                    continue;
                }
                Err(_) => {
                    failures = self.deaf(&wanted, failures, "no answer").await;
                    continue;
                }
            };
            // The one before ends only behind its successor, which then has missed nothing.
            if current.take().is_none() && self.announces != Announces::default() {
                self.client.lists_may_have_changed();
            }
            self.seen.set_push(Push::Live);
            let accepted = listening.acknowledged().resource_subscriptions.clone().unwrap_or_default();
            for uri in &wanted {
                self.watches.arm(uri, if accepted.contains(uri) { Arm::Pushed } else { Arm::Pulled });
            }
            let opened = Instant::now();
            let ended = loop {
                tokio::select! {
                    next = listening.next() => match next {
                        Ok(Some(ServerNotification::ResourceUpdatedNotification(said))) => {
                            self.watches.updated(&said.params.uri);
                        }
                        Ok(Some(said)) => self.announced(&said),
                        Ok(None) => break Some("it ended".to_owned()),
                        Err(error) => break Some(error.to_string()),
                    },
                    () = self.watches.0.changed.notified() => break None,
                }
            };
            match ended {
                None => current = Some(listening),
                Some(why) => {
                    failures = if opened.elapsed() >= STREAM_LIVED { 0 } else { failures };
                    failures = self.deaf(&wanted, failures, &why).await;
                }
            }
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "nothing else was asked for")]
    fn announced(&self, said: &ServerNotification) {
        match said {
            ServerNotification::ToolListChangedNotification(_) => {
                self.client.list_changed("notifications/tools/list_changed", "the list of tools");
            }
            ServerNotification::ResourceListChangedNotification(_) => {
                self.client.list_changed("notifications/resources/list_changed", "the list of resources");
            }
            ServerNotification::PromptListChangedNotification(_) => {
                self.client.list_changed("notifications/prompts/list_changed", "the list of prompts");
            }
            _ => {}
        }
    }

    /// Nothing is heard until the stream is open again.
    async fn deaf(&self, uris: &BTreeSet<String>, failures: u32, why: &str) -> u32 {
        self.seen.set_push(Push::Reconnecting);
        self.client.tail.say(TailKind::Connection, &format!("the stream of subscriptions is not open: {why}"));
        uris.iter().for_each(|uri| self.watches.arm(uri, Arm::Pulled));
        tokio::time::sleep(FIRST_REOPEN.saturating_mul(1 << failures.min(16)).min(MAX_REOPEN)).await;
        failures + 1
    }
}

/// Why something was not taken.
enum Refusal {
    /// The server said so.
    Said(String),
    /// It said nothing that counts: the connection does not stand.
    Silent(String),
}

//! What a bridge needs of a connection beside its calls: what the server asks of the agent behind the bridge, what it announces,
//! its lists and its prompts as they came, and subscriptions.
#![expect(deprecated, reason = "servers with sessions are subscribed to with what later revisions call deprecated")]

use ractor::ActorStatus;
use rmcp::{
    RoleClient,
    model::{
        ClientRequest, ErrorCode, PingRequest, ServerNotification, SubscribeRequest, SubscribeRequestParams,
        SubscriptionFilter,
    },
    service::{Peer, PeerRequestOptions, Subscription},
};
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::{
    CallError, McpHandle, Phase,
    call::{self, Patience},
    text,
    underway::{DOUBTFUL, Meant, Underway},
};
use crate::config::McpServerConfig;

/// What a server asks that waits to be passed on: an agent answers one after the other, and more is no conversation.
const MAX_ASKS: usize = 16;

/// How long an agent may take to answer: a model thinks, and may have a person look at it first.
const ANSWER_WITHIN: Duration = Duration::from_secs(300);

/// Announcements that wait for a reader; who is slower misses the oldest, and reads the lists anew.
const MAX_NOTICES: usize = 256;

/// Largest announcement that is passed on, as JSON.
const MAX_NOTICE_BYTES: usize = 64 * 1024;

/// How long a connection is waited for.
pub(super) const WAIT_FOR_SERVER: Duration = Duration::from_secs(5);

/// Time to subscribe, and for a sign of life.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The code that MCP has for a completion that was refused.
pub(super) const REFUSED: ErrorCode = ErrorCode(-1);

/// What a server wants of the agent behind a bridge.
#[derive(Debug, Clone, PartialEq)]
pub enum Wanted {
    /// A completion: the parameters of `sampling/createMessage`.
    Completion(Value),
    /// The roots that it may use.
    Roots,
}

/// A server asks.
#[derive(Debug)]
pub struct HostAsk {
    /// The id of its request.
    pub request: String,
    /// What it wants.
    pub wanted: Wanted,
    /// Who made the call that it is about, if it is about one ([`super::call_events_of`]).
    pub caller: Option<Arc<str>>,
    answer: oneshot::Sender<Result<Value, String>>,
}

impl HostAsk {
    /// Passes the result on, or why there is none. A question that is no longer open takes none.
    pub fn answer(self, answer: Result<Value, String>) {
        let _ = self.answer.send(answer);
    }

    /// Waits until nobody waits for an answer any more.
    pub async fn is_over(&mut self) {
        self.answer.closed().await;
    }
}

/// The way to who answers what a server asks.
#[derive(Debug, Clone)]
pub struct Asks(mpsc::Sender<HostAsk>);

/// A way for what one server asks.
pub fn asks() -> (Asks, mpsc::Receiver<HostAsk>) {
    let (asks, asked) = mpsc::channel(MAX_ASKS);
    (Asks(asks), asked)
}

/// Has the agent behind the bridge answer. The call that it is about stays alive meanwhile. What may be about a call that was
/// given up is refused.
///
/// # Errors
/// Why there is no answer.
pub(super) async fn ask(
    config: &McpServerConfig,
    underway: &Underway,
    meant: Meant,
    request: &str,
    wanted: Wanted,
) -> Result<Value, String> {
    let Some(Asks(asks)) = &config.asks else { return Err("nobody is there to be asked".to_owned()) };
    if meant == Meant::Doubtful {
        underway.not_asked().note(&config.name, DOUBTFUL);
        return Err(format!("nobody is asked this: {DOUBTFUL}"));
    }
    let (_asking, caller) = underway.holds(meant).map_or((None, None), |(asking, caller)| (Some(asking), caller));
    let (answer, answered) = oneshot::channel();
    let ask = HostAsk { request: request.to_owned(), wanted, caller, answer };
    asks.try_send(ask).map_err(|_| "the agent is asked too much".to_owned())?;
    let answered = tokio::time::timeout(ANSWER_WITHIN, answered).await;
    answered
        .map_err(|_| format!("the agent has not answered within {ANSWER_WITHIN:?}"))?
        .unwrap_or_else(|_| Err("no agent is there to be asked".to_owned()))
}

/// Something that a server announced, as it came.
#[derive(Debug, Clone, PartialEq)]
pub struct Notice {
    /// The method of the notification.
    pub method: &'static str,
    /// Its parameters.
    pub params: Value,
}

/// The announcements of one server; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Notices(broadcast::Sender<Notice>);

impl Default for Notices {
    fn default() -> Self {
        Self(broadcast::channel(MAX_NOTICES).0)
    }
}

impl Notices {
    /// Passes an announcement on to whoever listens.
    pub(super) fn tell(&self, method: &'static str, params: &impl Serialize) {
        if self.0.receiver_count() == 0 {
            return;
        }
        let Ok(params) = serde_json::to_value(params) else { return };
        if params.to_string().len() <= MAX_NOTICE_BYTES {
            let _ = self.0.send(Notice { method, params });
        }
    }
}

/// A subscription to a resource. It lasts as long as the connection; without sessions, as long as this.
#[derive(Debug)]
pub struct Subscribed {
    _listening: Option<AbortOnDropHandle<()>>,
}

impl McpHandle {
    /// What the server announces from here on.
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.tail.notices().0.subscribe()
    }

    /// The connection that stands, by its number; none while there is none.
    pub fn connection(&self) -> Option<u64> {
        match &self.published.borrow().phase {
            Phase::Ready(live) => Some(live.generation),
            Phase::Connecting | Phase::Waiting { .. } => None,
        }
    }

    /// Whether it is another name for the same connection.
    pub fn is_same(&self, other: &McpHandle) -> bool {
        self.actor_id() == other.actor_id()
    }

    /// Whether the connection has ended for good.
    pub fn is_over(&self) -> bool {
        matches!(self.actor.get_status(), ActorStatus::Stopping | ActorStatus::Stopped)
    }

    /// Waits for the end of the first try to connect, whatever it is.
    pub async fn settled(&self, within: Duration) {
        let mut published = self.published.clone();
        let settled = published.wait_for(|now| !matches!(now.phase, Phase::Connecting));
        drop(tokio::time::timeout(within, settled).await);
    }

    /// Waits until the connection is another one than that of this number, or there is none any more; false when it never will be.
    pub async fn changed(&self, since: Option<u64>) -> bool {
        let mut published = self.published.clone();
        let is_other = |phase: &Phase| match phase {
            Phase::Ready(live) => Some(live.generation) != since,
            Phase::Connecting | Phase::Waiting { .. } => since.is_some(),
        };
        published.wait_for(|now| is_other(&now.phase)).await.is_ok()
    }

    /// Has the server tell when a resource changes. A connection that is lost takes its subscriptions with it.
    ///
    /// # Errors
    /// When the server is not there, does not tell, or refuses.
    pub async fn subscribe(&self, uri: &str) -> Result<Subscribed, CallError> {
        let what = format!("subscribe to a resource of {}", self.name());
        if let Some(why) = text::bad_uri(uri) {
            return Err(CallError {
                error_type: "-32602".into(),
                message: format!("{what}: {why}"),
                may_have_happened: false,
            });
        }
        let live = call::live(self, WAIT_FOR_SERVER, Patience::NextTry).await?;
        if !live.capabilities.resource_subscriptions {
            return Err(missing(format!("{what}: the server does not tell when one changes")));
        }
        let failed = |failure| call::call_error(&what, &failure);
        if live.is_stateless {
            let filter = SubscriptionFilter::builder().resource_subscriptions([uri]).build();
            let listening = tokio::time::timeout(REQUEST_TIMEOUT, live.peer.listen(filter)).await;
            let late = |_| rmcp::service::ServiceError::Timeout { timeout: REQUEST_TIMEOUT };
            let subscription = listening.map_err(late).map_err(failed)?.map_err(failed)?;
            let notices = self.tail.notices().clone();
            let task = tokio::spawn(listen(subscription, notices));
            return Ok(Subscribed { _listening: Some(AbortOnDropHandle::new(task)) });
        }
        let request = ClientRequest::SubscribeRequest(SubscribeRequest::new(SubscribeRequestParams::new(uri)));
        exchange(&live.peer, request).await.map_err(failed)?;
        Ok(Subscribed { _listening: None })
    }

    /// How long the server takes to show that it is there; none where its revision has no such request.
    ///
    /// # Errors
    /// When it is not.
    pub async fn ping(&self) -> Result<Option<Duration>, CallError> {
        let live = call::live(self, WAIT_FOR_SERVER, Patience::NextTry).await?;
        if live.is_stateless {
            return Ok(None);
        }
        let begun = Instant::now();
        let failed = |failure| call::call_error("ping", &failure);
        exchange(&live.peer, ClientRequest::PingRequest(PingRequest::default())).await.map_err(failed)?;
        Ok(Some(begun.elapsed()))
    }
}

pub(super) fn missing(message: String) -> CallError {
    CallError { error_type: "capability_missing".into(), message, may_have_happened: false }
}

async fn exchange(peer: &Peer<RoleClient>, request: ClientRequest) -> Result<(), rmcp::service::ServiceError> {
    let options = PeerRequestOptions::with_timeout(REQUEST_TIMEOUT);
    let sent = peer.send_request_with_option(request, options).await?;
    sent.await_response().await.map(drop)
}

/// Passes on what a subscription tells, until it ends.
async fn listen(mut subscription: Subscription, notices: Notices) {
    while let Ok(Some(told)) = subscription.next().await {
        if let ServerNotification::ResourceUpdatedNotification(updated) = told {
            notices.tell("notifications/resources/updated", &json!({ "uri": updated.params.uri }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::McpTransport;

    fn config(asks: Option<Asks>) -> McpServerConfig {
        McpServerConfig { asks, ..McpServerConfig::new("fs", McpTransport::http("http://127.0.0.1:1/mcp")) }
    }

    #[tokio::test]
    async fn what_nobody_answers_is_an_error_and_a_flood_is_refused() {
        let of = |config| async move { ask(&config, &Underway::default(), Meant::NoCall, "7", Wanted::Roots).await };
        assert!(of(config(None)).await.unwrap_err().contains("nobody"));
        let (to, mut asked) = asks();
        let config = config(Some(to));
        let waiting: Vec<_> = (0..MAX_ASKS).map(|_| tokio::spawn(of(config.clone()))).collect();
        tokio::task::yield_now().await;
        assert!(of(config.clone()).await.unwrap_err().contains("too much"));
        let first = asked.recv().await.unwrap();
        assert_eq!((first.request.as_str(), &first.wanted, &first.caller), ("7", &Wanted::Roots, &None));
        first.answer(Ok(json!({ "roots": [] })));
        drop(asked);
        let mut answers = Vec::new();
        for one in waiting {
            answers.push(one.await.unwrap());
        }
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    }

    #[tokio::test]
    async fn what_a_server_asks_after_its_call_was_given_up_reaches_nobody() {
        let (to, mut asked) = asks();
        let (config, underway) = (config(Some(to)), Underway::default());
        for wanted in [Wanted::Roots, Wanted::Completion(json!({ "messages": [] }))] {
            let refused = ask(&config, &underway, Meant::Doubtful, "7", wanted).await.unwrap_err();
            assert!(refused.contains("given up"), "{refused}");
        }
        assert!(asked.try_recv().is_err());
    }

    #[test]
    fn announcements_cost_nothing_while_nobody_listens_and_have_a_bound() {
        let notices = Notices::default();
        notices.tell("notifications/message", &json!({}));
        let mut heard = notices.0.subscribe();
        notices.tell("notifications/message", &json!({ "data": "x".repeat(MAX_NOTICE_BYTES) }));
        notices.tell("notifications/message", &json!({ "data": "x" }));
        assert_eq!(heard.try_recv().unwrap().params, json!({ "data": "x" }));
        assert!(heard.try_recv().is_err());
    }
}

//! The client side of a connection, as the server sees it.
//!
//! It declares no capabilities, but that a person can be asked where the configuration says so, and the agent behind a bridge
//! where there is one. Every other request of the server but `ping` is answered with -32601: the defaults would answer
//! `roots/list` and `elicitation/create` as if they had been offered.
#![expect(deprecated, reason = "servers of earlier revisions still ask for roots")]

use ractor::ActorRef;
use rmcp::{
    ClientHandler, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, CreateMessageRequestMethod, CreateMessageRequestParams, CreateMessageResult,
        CustomNotification, ElicitRequestParams, ElicitResult, ElicitationCapability, ErrorCode, ErrorData, Extensions,
        FormElicitationCapability, Implementation, ListRootsRequestMethod, ListRootsResult,
        LoggingMessageNotificationParam, ProgressNotificationParam, ProtocolVersion, ResourceUpdatedNotificationParam,
        RootsCapabilities, SamplingCapability, UrlElicitationCapability,
    },
    service::{NotificationContext, RequestContext},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::sync::Arc;

use super::{
    ConnectionMsg, Wanted, bridged, elicitation,
    revision::Revision,
    socket,
    subscriptions::Watches,
    tail::{Tail, TailKind},
    text,
    underway::{self, Meant, Underway},
};
use crate::config::McpServerConfig;

/// Longest URI of a notification that is shown.
const MAX_SHOWN_CHARS: usize = 256;

/// The client side of a connection, as the server sees it: it offers next to nothing, and says so when asked.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) actor: ActorRef<ConnectionMsg>,
    pub(super) generation: u64,
    pub(super) config: Arc<McpServerConfig>,
    /// How this node calls itself; nothing if empty.
    pub(super) instance: Arc<str>,
    pub(super) underway: Underway,
    pub(super) tail: Tail,
    pub(super) watches: Watches,
}

impl Client {
    /// What the socket calls when it sees the server fail.
    pub(super) fn suspect(&self) -> socket::Suspect {
        let (actor, generation) = (self.actor.clone(), self.generation);
        Arc::new(move |reason| {
            // A stopped actor has nothing to reconnect.
            let _ = actor.cast(ConnectionMsg::Suspect { generation, reason });
        })
    }

    /// Something that the server has is not what it was: it is listed again, soon.
    pub(super) fn list_changed(&self, method: &'static str, what: &str) {
        self.tail.notices().tell(method, &json!({}));
        self.tail.say(TailKind::Notification, &format!("{what} changed"));
        self.lists_may_have_changed();
    }

    /// What the server has is listed again, soon.
    pub(super) fn lists_may_have_changed(&self) {
        // A stopped actor lists nothing.
        let _ = self.actor.cast(ConnectionMsg::ListsChanged { generation: self.generation });
    }

    fn capabilities(&self) -> ClientCapabilities {
        let mut capabilities = ClientCapabilities::default();
        if self.config.elicitation {
            let form = FormElicitationCapability::new().with_schema_validation(true);
            capabilities.elicitation =
                Some(ElicitationCapability::new().with_form(form).with_url(UrlElicitationCapability::new()));
        }
        if self.config.asks.is_some() {
            capabilities.roots = Some(RootsCapabilities::default());
            capabilities.sampling = Some(SamplingCapability::default());
        }
        capabilities
    }

    /// Has the agent behind a bridge answer.
    async fn asked<T: DeserializeOwned>(
        &self,
        wanted: Wanted,
        context: &RequestContext<RoleClient>,
    ) -> Result<T, ErrorData> {
        let meant = meant(&context.extensions);
        let id = context.id.to_string();
        let asking = bridged::ask(&self.config, &self.underway, meant, &id, wanted);
        let refused = |why: String| ErrorData::new(bridged::REFUSED, why, None);
        serde_json::from_value(asking.await.map_err(refused)?).map_err(|error| {
            ErrorData::new(ErrorCode::INTERNAL_ERROR, format!("the agent's answer cannot be passed on: {error}"), None)
        })
    }

    /// Whether a person may be asked over a connection of this revision.
    pub(super) fn may_ask(&self, version: &str) -> bool {
        let revision = Revision::negotiated(version, true);
        self.config.elicitation && revision.is_ok_and(Revision::has_elicitation)
    }
}

/// What a message of the server is about, as it was when it arrived.
fn meant(extensions: &Extensions) -> Meant {
    extensions.get().copied().unwrap_or(Meant::Doubtful)
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        let mut named = Implementation::new("towline", env!("CARGO_PKG_VERSION"));
        if !self.instance.is_empty() {
            named = named.with_title(self.instance.to_string());
        }
        // The default would offer a revision in which `initialize` does not exist.
        ClientConfig::new(self.capabilities(), named).with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn list_roots(&self, context: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        if self.config.asks.is_none() {
            return Err(ErrorData::method_not_found::<ListRootsRequestMethod>());
        }
        self.asked(Wanted::Roots, &context).await
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        if self.config.asks.is_none() {
            return Err(ErrorData::method_not_found::<CreateMessageRequestMethod>());
        }
        self.asked(Wanted::Completion(serde_json::to_value(params).unwrap_or_default()), &context).await
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let version = context.peer.peer_info().map(|info| info.protocol_version.to_string());
        if !self.may_ask(&version.unwrap_or_default()) {
            return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "elicitation/create", None));
        }
        Ok(elicitation::ask(&self.config.name, &self.underway, meant(&context.extensions), &params).await)
    }

    async fn on_progress(&self, said: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.underway.progress(&said);
        let of = said.total.map(|total| format!(" of {total}")).unwrap_or_default();
        let message = said.message.as_deref().unwrap_or_default();
        self.tail.notices().tell("notifications/progress", &said);
        self.tail.say(TailKind::Progress, &format!("{}{of} {message}", said.progress));
    }

    async fn on_logging_message(
        &self,
        said: LoggingMessageNotificationParam,
        context: NotificationContext<RoleClient>,
    ) {
        self.underway.log(meant(&context.extensions), &said);
        self.tail.notices().tell("notifications/message", &said);
        self.tail.say(TailKind::Log, &underway::log_line(&said));
    }

    async fn on_resource_updated(&self, said: ResourceUpdatedNotificationParam, _: NotificationContext<RoleClient>) {
        self.watches.updated(&said.uri);
        let uri = text::plain_line(&said.uri, MAX_SHOWN_CHARS);
        self.tail.notices().tell("notifications/resources/updated", &said);
        self.tail.say(TailKind::Notification, &format!("resource {uri} changed"));
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.list_changed("notifications/tools/list_changed", "the list of tools");
    }

    async fn on_resource_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.list_changed("notifications/resources/list_changed", "the list of resources");
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.list_changed("notifications/prompts/list_changed", "the list of prompts");
    }

    async fn on_custom_notification(&self, said: CustomNotification, _: NotificationContext<RoleClient>) {
        self.tail.say(TailKind::Notification, &text::plain_line(&said.method, MAX_SHOWN_CHARS));
    }
}

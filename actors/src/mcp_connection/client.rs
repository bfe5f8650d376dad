//! The client side of a connection, as the server sees it.
//!
//! It declares no capabilities, so every request of the server but `ping` is answered with -32601: the defaults would
//! answer `roots/list` and `elicitation/create` as if they had been offered. (`sampling/createMessage` is refused by
//! default.)
#![expect(deprecated, reason = "servers of earlier revisions still ask for roots")]

use ractor::ActorRef;
use rmcp::{
    ClientHandler, RoleClient,
    model::{
        ClientConfig, ElicitRequestParams, ElicitResult, ErrorCode, ErrorData, Implementation, ListRootsRequestMethod,
        ListRootsResult, ProtocolVersion,
    },
    service::{NotificationContext, RequestContext},
};
use std::sync::Arc;

use super::{ConnectionMsg, socket};

/// The client side of a connection, as the server sees it: it offers nothing, and says so when asked.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) actor: ActorRef<ConnectionMsg>,
    pub(super) generation: u64,
}

impl Client {
    /// What the socket calls when it sees the server fail.
    pub(super) fn suspect(&self) -> socket::Suspect {
        let Client { actor, generation } = self.clone();
        Arc::new(move |reason| {
            // A stopped actor has nothing to reconnect.
            let _ = actor.cast(ConnectionMsg::Suspect { generation, reason });
        })
    }
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        // The default would offer a revision in which `initialize` does not exist.
        ClientConfig::new(Default::default(), Implementation::new("towline", env!("CARGO_PKG_VERSION")))
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListRootsRequestMethod>())
    }

    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "elicitation/create", None))
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        // A stopped actor lists nothing.
        let _ = self.actor.cast(ConnectionMsg::ToolsChanged { generation: self.generation });
    }
}

//! The mesh over MCP: `/mcp` on the public listener of every node.
//!
//! ```text
//! listener ─▶ auth::gate ─▶ http ─▶ dispatch ─┬▶ surface ─▶ reads | agents | writes | gateway     tools/call
//!  accept      who asks     era,              ├▶ resources                                        resources/read …
//!                           session           └▶ watch ─▶ a stream                                what has changed
//! ```
//! Both kinds of MCP are spoken at the same path: the revisions with sessions, up to 2025-11-25, and 2026-07-28 without them
//! (`revision`). The server reads what the A2A door reads, through that door's own code, for the same principals. What it
//! says is made here of JSON and not with rmcp's server: that one holds a task, queues and a handshake in memory for each
//! session, knows a session only on the node that made it, and does not know who asks. Here a session is its id, so it goes on at
//! any node, and costs nothing until it listens.

mod agents;
mod confirm;
mod dispatch;
pub(crate) mod fuzz;
mod gateway;
mod headers;
pub(crate) mod http;
mod legacy;
mod logs;
mod message;
mod metadata;
mod reads;
mod resources;
mod revision;
mod session;
mod settings;
mod shares;
pub(crate) mod sse;
pub(crate) mod stdio;
mod surface;
mod tasks;
mod watch;
mod writes;

use std::sync::Arc;

use axum::{
    Router, middleware,
    routing::{get, post},
};
use serde_json::Value;
use tokio_util::task::TaskTracker;
use towline_actors::triggers::contents::Contents;
use towline_core::TraceContext;

use crate::{
    a2a::{self, A2aSettings, principal::Caller},
    api::Api,
    auth,
};

pub use settings::{Federated, Guarded, ServeSettings};
pub(crate) use settings::{climbs, is_listed, is_matched};
pub use surface::{Offender, SurfaceError};
pub use writes::Write;

use revision::Speaker;
use session::{SessionId, Sessions};
use surface::Surface;

/// Where it is served.
pub const PATH: &str = "/mcp";

/// The MCP server of a node.
pub struct McpServer {
    a2a: Arc<A2aSettings>,
    api: Arc<Api>,
    surface: Surface,
    hosts: Vec<String>,
    sessions: Sessions,
    /// Streams of HTTP with SSE; none where that is not served.
    legacy: legacy::Streams,
    legacy_sse: bool,
    seal: confirm::Seal,
    /// Resources of other servers that clients subscribe to.
    contents: Contents,
    /// Cancels of tasks whose callers have gone.
    canceling: TaskTracker,
}

impl McpServer {
    /// A server with the surface that the settings ask for.
    ///
    /// # Errors
    /// Every tool that must not be on it.
    pub fn new(settings: &ServeSettings, a2a: Arc<A2aSettings>, api: Arc<Api>) -> Result<Arc<Self>, SurfaceError> {
        let surface = Surface::build(settings)?;
        Ok(Arc::new(Self {
            surface,
            hosts: http::names(&settings.hosts, &a2a.public_url),
            sessions: Sessions::new(),
            legacy: legacy::Streams::default(),
            legacy_sse: settings.legacy_sse,
            seal: confirm::Seal::new(),
            contents: Contents::default(),
            canceling: TaskTracker::new(),
            a2a,
            api,
        }))
    }

    /// Its routes.
    pub fn routes(self: &Arc<Self>) -> Router {
        let challenge = metadata::Challenge::new(&self.a2a.public_url);
        let mut gated = Router::new().route(PATH, post(http::post).get(http::get).delete(http::delete));
        if self.legacy_sse {
            gated = gated.route(legacy::STREAM, get(legacy::open)).route(legacy::MESSAGES, post(legacy::post));
        }
        let gated = gated
            .route_layer(middleware::from_fn(auth::authorize))
            .route_layer(middleware::from_fn_with_state(Arc::clone(&self.a2a.auth), auth::gate))
            .route_layer(middleware::from_fn_with_state(challenge, metadata::challenge));
        gated
            .route(metadata::OF_THE_NODE, get(metadata::show))
            .route(metadata::OF_THE_PATH, get(metadata::show))
            .with_state(Arc::clone(self))
    }

    /// Waits for what callers have left behind. The node is about to stop its cluster.
    pub async fn stop(&self) {
        self.contents.stop();
        self.canceling.close();
        self.canceling.wait().await;
    }
}

/// Whether the settings ask for a surface that may be served.
///
/// # Errors
/// Every tool that must not be on it.
pub(crate) fn check(settings: &ServeSettings) -> Result<(), SurfaceError> {
    Surface::build(settings).map(|_| ())
}

/// Who asks for something, over what.
#[derive(Clone)]
struct Ask {
    server: Arc<McpServer>,
    caller: Caller,
    speaker: Speaker,
    /// The session, if it is one.
    session: Option<SessionId>,
    /// The span of the request.
    trace: TraceContext,
}

impl Ask {
    /// Asks the A2A side, with all that it checks.
    ///
    /// # Errors
    /// Why it refuses, in words.
    async fn a2a(&self, method: &str, agent: Option<&str>, params: Value) -> Result<Value, String> {
        let asked = a2a::ask(&self.server.a2a, self.caller.clone(), agent, method, params, self.trace);
        asked.await.map_err(|error| error.message)
    }
}

#[cfg(test)]
mod tests;

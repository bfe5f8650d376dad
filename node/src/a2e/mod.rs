//! The A2E host of a node: agents of others reach MCP servers through it, over `/a2e` on the public listener or over `towline a2e`
//! on standard input and output.
//!
//! ```text
//! listener ─▶ auth::gate ─▶ http ─▶ dispatch ─┬▶ registering ─▶ servers      mcp/server/…
//!  accept      who asks     session           ├▶ tools                       tool/…
//!                              ▲              ├▶ resources | prompts          mcp/resource/…  mcp/prompt/…
//!                              └── asking ◀── servers ◀── what a server asks and announces
//! ```
//! Each request is a message in a POST; answers and what comes by itself are read on the stream of the session. The connections are
//! those of `towline_actors::mcp_connection`: one to each server, which a session only ever calls, reads and subscribes over.

mod asking;
mod dispatch;
mod http;
mod message;
mod prompts;
mod registering;
mod resources;
mod servers;
mod session;
mod settings;
pub(crate) mod stdio;
mod tools;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router, middleware,
    routing::{get, post},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use towline_actors::mcp_connection::CallError;
use towline_core::Principal;

use crate::{a2a::A2aSettings, api::Api, auth, mcp_server};

pub use settings::{A2eSettings, AllowedCommand, Shared};

use message::{Code, Failure};
use servers::Servers;
use session::Sessions;

/// How often what nobody uses any more is looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(2);

/// The A2E host of a node.
pub struct Bridge {
    a2a: Arc<A2aSettings>,
    api: Arc<Api>,
    settings: A2eSettings,
    hosts: Vec<String>,
    sessions: Sessions,
    servers: Servers,
    /// Sessions that end once what they had under way has ended.
    leaving: TaskTracker,
    begun: Instant,
}

impl Bridge {
    /// A host; clients may reach it under these names as well.
    pub fn new(settings: A2eSettings, hosts: &[String], a2a: Arc<A2aSettings>, api: Arc<Api>) -> Arc<Self> {
        Arc::new(Self {
            hosts: mcp_server::http::names(hosts, &a2a.public_url),
            a2a,
            api,
            settings,
            sessions: Sessions::default(),
            servers: Servers::default(),
            leaving: TaskTracker::new(),
            begun: Instant::now(),
        })
    }

    /// Its routes.
    pub fn routes(self: &Arc<Self>) -> Router {
        let gated = Router::new()
            .route("/a2e/session", post(http::begin))
            .route("/a2e/send", post(http::send))
            .route("/a2e/stream", get(http::listen))
            .route_layer(middleware::from_fn(auth::authorize))
            .route_layer(middleware::from_fn_with_state(Arc::clone(&self.a2a.auth), auth::gate));
        gated.route("/a2e/health", get(http::health)).with_state(Arc::clone(self))
    }

    /// Ends what nobody uses any more, until `stop`.
    pub async fn watch(self: Arc<Self>, stop: CancellationToken) {
        let sweep = async {
            loop {
                tokio::time::sleep(SWEEP_EVERY).await;
                self.sessions.sweep();
                self.servers.sweep(&self).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = sweep => {}
        }
    }

    /// Ends all sessions, and the connections to what they registered.
    pub async fn stop(&self) {
        self.sessions.end();
        self.leaving.close();
        self.leaving.wait().await;
        self.servers.stop().await;
    }

    /// Whether the sessions of this one may use a server of the configuration.
    fn may_use(&self, by: &Principal, server: &str) -> bool {
        by.is_operator() || self.settings.servers.iter().any(|shared| shared.server == server && shared.is_for(by))
    }
}

/// Why a call came to nothing, in the words of the protocol. `missing` is what is not there when the server says so.
fn failed(error: &CallError, missing: Code) -> Failure {
    let code = match error.error_type.as_ref() {
        "-32002" | "-32602" => missing,
        "-32601" if missing == Code::ToolNotFound => missing,
        "unknown_tool" | "tool_changed" => Code::ToolNotFound,
        "capability_missing" => Code::CapabilityMissing,
        "timeout" | "server_unavailable" | "circuit_open" | "rate_limited" => Code::ServerUnavailable,
        "connection_lost" | "http_error" => Code::Transport,
        _ => Code::Protocol,
    };
    let happened = if error.may_have_happened { " (it may have happened)" } else { "" };
    Failure::new(code, format!("{}{happened}", error.message))
}

/// Reads a message of an agent as the edge does, with each field that a message of its type has: for fuzzing.
pub(crate) fn fuzz_message(bytes: &[u8]) {
    let Ok(message) = message::parse(bytes) else { return };
    drop(dispatch::read_agreement(&message));
    drop(registering::read(&message));
    drop(tools::read_call(&message));
    drop(resources::read_cursor(message.text("cursor").unwrap_or_default()));
    if let Some(session) = Sessions::default().begin(&Principal::Operator) {
        session.answer(None, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_wrong_with_a_server_has_a_code_that_says_whether_to_try_again() {
        let code = |error_type: &'static str, missing| {
            let error = CallError { error_type: error_type.into(), message: "x".into(), may_have_happened: false };
            failed(&error, missing).code
        };
        for (error_type, missing, expected) in [
            ("-32602", Code::PromptNotFound, Code::PromptNotFound),
            ("-32002", Code::ResourceNotFound, Code::ResourceNotFound),
            ("-32601", Code::ToolNotFound, Code::ToolNotFound),
            ("-32601", Code::PromptNotFound, Code::Protocol),
            ("unknown_tool", Code::ToolNotFound, Code::ToolNotFound),
            ("capability_missing", Code::ResourceNotFound, Code::CapabilityMissing),
            ("timeout", Code::ToolNotFound, Code::ServerUnavailable),
            ("server_unavailable", Code::ToolNotFound, Code::ServerUnavailable),
            ("connection_lost", Code::ToolNotFound, Code::Transport),
            ("malformed_response", Code::ToolNotFound, Code::Protocol),
            ("-32603", Code::ToolNotFound, Code::Protocol),
        ] {
            assert_eq!(code(error_type, missing), expected, "{error_type}");
        }
        assert!(Code::Transport.is_retryable() && !Code::Protocol.is_retryable());
    }
}

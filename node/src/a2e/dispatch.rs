//! What a message asks for: agreed on at once, or carried out beside the others of its session, a bounded number of them.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use towline_core::TraceContext;
use towline_trace::{Kind, Span, names};

use super::{
    Bridge, asking,
    message::{self, Code, Failure, Incoming, answer},
    prompts, registering, resources,
    session::{MAX_PARALLEL, Session},
    tools,
};
use crate::a2a::principal::Caller;

/// The longest that an agent may have its host wait for what is under way when it leaves.
const MAX_SHUTDOWN: Duration = Duration::from_secs(60);

/// Capabilities of this protocol; of these this host has two. Others, as `streaming`, say how an agent reads.
const CAPABILITIES: [&str; 12] = [
    "skill",
    "tools",
    "toolkits",
    "env",
    "proc",
    "memory",
    "learning",
    "chains",
    "multi_agent",
    "planning",
    "mcp",
    "test",
];
const OURS: [&str; 2] = ["mcp", "tools"];

/// A request on its way.
pub(super) struct Ask {
    pub bridge: Arc<Bridge>,
    pub session: Arc<Session>,
    pub caller: Caller,
    pub message: Incoming,
    /// The span of the request.
    pub trace: TraceContext,
}

/// Takes a message of a session. What it comes to is said on the stream.
pub(super) fn take(
    bridge: &Arc<Bridge>,
    session: &Arc<Session>,
    caller: Caller,
    message: Incoming,
    parent: Option<TraceContext>,
) {
    // Agents send again what they do not know to have arrived.
    if !session.takes(&message.id) {
        return;
    }
    match message.kind.as_str() {
        "handshake/req" => return agree(session, &message),
        "ping" => {
            let uptime = bridge.begun.elapsed().as_secs_f64();
            return session.say(&answer("pong", &message.id, json!({ "uptime_seconds": uptime })));
        }
        "shutdown" => return shut_down(bridge, session, &message),
        // A question of the agent about what only it knows.
        "mcp/root/list/req" if !message.has("roots") => {
            let fields = json!({ "mcp_request_id": "", "roots": [], "server_id": "" });
            return session.say(&answer(asking::ROOTS, &message.id, fields));
        }
        // The published SDK sends an answer under the type of the question.
        "mcp/sample/resp" | "mcp/sample/req" => return answered(session, Some(asking::SAMPLED), message),
        "mcp/root/list/resp" | "mcp/root/list/req" => return answered(session, Some(asking::ROOTS), message),
        "error" => return answered(session, None, message),
        _ => {}
    }
    if !session.has_mcp() {
        let why = "this session has not agreed on mcp: send handshake/req with mcp in agent_caps first";
        return session.say(&message::error(&message.id, &Failure::new(Code::CapabilityMissing, why)));
    }
    let Some(place) = session.place() else {
        let why = format!("more than {MAX_PARALLEL} requests of this session are under way: wait for some of them");
        return session.say(&message::error(&message.id, &Failure::new(Code::Busy, why)));
    };
    let mut span = span(&message, parent);
    let ask = Ask { bridge: Arc::clone(bridge), session: Arc::clone(session), caller, message, trace: span.context() };
    session.work.spawn(async move {
        let (id, session) = (ask.message.id.clone(), Arc::clone(&ask.session));
        let answered = tokio::select! {
            answered = Box::pin(carry_out(ask)) => answered,
            () = session.over.cancelled() => return,
        };
        match answered {
            Ok(answered) => session.say(&answered),
            Err(failure) => {
                span.fail(failure.code.as_str(), &failure.message);
                session.say(&message::error(&id, &failure));
            }
        }
        drop((span, place));
    });
}

fn span(message: &Incoming, parent: Option<TraceContext>) -> Span {
    let name = format!("a2e {}", towline_a2a::shortened(&message.kind));
    let mut span = match parent {
        Some(parent) => Span::child(name, Kind::Server, &parent),
        None => Span::root(name, Kind::Server),
    };
    if let Some(tool) = message.text("tool_name").ok().filter(|tool| !tool.is_empty()) {
        span.set(names::GEN_AI_TOOL_NAME, towline_a2a::shortened(tool));
    }
    span
}

/// What an agent asks for first, for who has mistaken a type.
const TAKEN: &str =
    "handshake/req, ping, tool/list/req, tool/call/req, mcp/server/list/req, mcp/server/register/req and others";

async fn carry_out(ask: Ask) -> Result<Value, Failure> {
    match ask.message.kind.as_str() {
        "tool/list/req" => tools::list(&ask).await,
        "tool/call/req" => tools::call(&ask).await,
        "mcp/server/list/req" => registering::list(&ask).await,
        "mcp/server/register/req" => registering::register(&ask).await,
        "mcp/server/unregister/req" => registering::unregister(&ask).await,
        "mcp/resource/list/req" => resources::list(&ask).await,
        "mcp/resource/read/req" => resources::read(&ask).await,
        "mcp/resource/subscribe/req" => resources::subscribe(&ask).await,
        "mcp/prompt/list/req" => prompts::list(&ask).await,
        "mcp/prompt/get/req" => prompts::get(&ask).await,
        other => {
            let other = towline_a2a::shortened(other);
            let why = format!("a message of type {other:?} is none that this host takes: it takes {TAKEN}");
            Err(Failure::new(Code::InvalidMessage, why))
        }
    }
}

/// Which capabilities an agent wants, and whether it may use MCP servers. One that names no capability takes all.
pub(super) fn read_agreement(message: &Incoming) -> Result<Vec<&'static str>, Failure> {
    message.text("agent_id")?;
    // Who asks is known before this.
    message.text("auth_token")?;
    let wanted = message.texts("agent_caps")?;
    let names_any = wanted.iter().any(|wanted| CAPABILITIES.contains(&wanted.as_str()));
    Ok(OURS.into_iter().filter(|ours| !names_any || wanted.iter().any(|wanted| wanted == ours)).collect())
}

fn agree(session: &Arc<Session>, message: &Incoming) {
    let mut fields = json!({
        "accepted_caps": [],
        "max_parallel": MAX_PARALLEL,
        "ok": true,
        "reason": "",
        "session_id": &*session.id,
    });
    match read_agreement(message) {
        Ok(agreed) => {
            session.agree(!agreed.is_empty());
            let capability = |name| json!({ "capability": name, "enabled": true, "metadata": {} });
            fields["accepted_caps"] = agreed.into_iter().map(capability).collect();
        }
        Err(failure) => {
            fields["ok"] = false.into();
            fields["reason"] = failure.to_string().into();
        }
    }
    session.say(&answer("handshake/resp", &message.id, fields));
}

/// Waits for what is under way, and ends the session.
fn shut_down(bridge: &Bridge, session: &Arc<Session>, message: &Incoming) {
    let seconds = message.number("timeout", 10).unwrap_or(10);
    let limit = Duration::from_secs(seconds).min(MAX_SHUTDOWN);
    let leaving = Arc::clone(session);
    session.agree(false);
    session.work.close();
    bridge.leaving.spawn(async move {
        tokio::select! {
            _ = tokio::time::timeout(limit, leaving.work.wait()) => {}
            () = leaving.over.cancelled() => {}
        }
        leaving.leave();
    });
}

fn answered(session: &Session, kind: Option<&'static str>, message: Incoming) {
    let id = message.id.clone();
    if !session.answer(kind, message) {
        tracing::debug!(session = %session.id, message = id, "an answer comes to nobody");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed(caps: Value) -> Vec<&'static str> {
        let message = json!({ "type": "handshake/req", "id": "1", "agent_caps": caps });
        read_agreement(&message::parse(message.to_string().as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn what_an_agent_names_is_agreed_on_and_one_that_names_nothing_takes_all() {
        assert_eq!(agreed(json!(["mcp", "memory"])), ["mcp"]);
        assert_eq!(agreed(json!(["tools", "mcp"])), ["mcp", "tools"]);
        assert_eq!(agreed(json!(["memory"])), [""; 0]);
        assert_eq!(agreed(json!(["streaming", "artifacts"])), ["mcp", "tools"], "as the published SDK says by default");
        assert_eq!(agreed(json!([])), ["mcp", "tools"]);
    }
}

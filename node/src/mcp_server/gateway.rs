//! Tools of other MCP servers, served through this one: prefixed with the name of their server, only those that a setting allows,
//! and only to whom it lists. Each call is made on this node's own connection: what the caller has shown stays here.

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use towline_actors::mcp_connection::{CallEvents, CallRequest, McpHandle, ToolInfo, ToolResult};
use towline_core::{Content, Part, Principal, StepNo, TaskId};

use super::{
    McpServer,
    dispatch::{ToolAnswer, Work, text},
    settings::Federated,
    surface::{Kind, Tool},
};
use crate::auth::audit;

/// What stands between the name of a server and that of its tool.
const BETWEEN: &str = "__";

/// Most tools of one server that are served: more are of no use to a model, and a server may list anything.
const MAX_TOOLS: usize = 500;

/// How much of the description of a tool is shown, in characters.
const MAX_DESCRIPTION: usize = 4_096;

/// The tools of others that a caller may use. A server that is down keeps those that it listed last, and says so when one is
/// called; the others do not notice.
pub(super) async fn tools(server: &McpServer, caller: &Principal) -> Vec<Tool> {
    let mut tools = Vec::new();
    for federated in server.surface.federated().iter().filter(|federated| federated.is_for(caller)) {
        let Some(upstream) = upstream(server, &federated.server).await else { continue };
        let served = upstream.tools().into_iter().filter(|tool| federated.serves(&tool.tool));
        tools.extend(served.filter_map(|tool| shown(federated, tool)).take(MAX_TOOLS));
    }
    tools
}

/// A tool of others by its name here.
pub(super) async fn find(server: &McpServer, caller: &Principal, name: &str) -> Option<Tool> {
    let (of, _) = name.split_once(BETWEEN)?;
    let is_of = |federated: &&Federated| federated.server == of && federated.is_for(caller);
    server.surface.federated().iter().find(is_of)?;
    tools(server, caller).await.into_iter().find(|tool| tool.name == name)
}

async fn upstream(server: &McpServer, name: &str) -> Option<McpHandle> {
    server.api.mesh.lock().await.as_ref()?.mcp_server(name)
}

fn shown(federated: &Federated, tool: ToolInfo) -> Option<Tool> {
    let name = format!("{}{BETWEEN}{}", federated.server, tool.tool);
    let is_name = name.len() <= 128 && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    if !is_name || !tool.schema.is_object() {
        tracing::debug!(server = federated.server, tool = tool.tool, "a tool is not served: no client would take it");
        return None;
    }
    let is_shown = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
    let description: String = tool.description.chars().filter(is_shown).take(MAX_DESCRIPTION).collect();
    Some(Tool {
        name,
        title: format!("{} of {}", tool.tool, federated.server),
        description,
        input: tool.schema,
        output: None,
        kind: Kind::Upstream { server: federated.server.clone(), tool: tool.tool },
    })
}

/// Calls a tool of another server.
pub(super) async fn call(work: Work, server: String, tool: String, arguments: Map<String, Value>) -> ToolAnswer {
    let Some(upstream) = upstream(&work.ask.server, &server).await else {
        return ToolAnswer::refused("this node does not use that server at the moment");
    };
    let object = format!("{server}/{tool}");
    let cancel = CancellationToken::new();
    let _ends_with_the_call = cancel.clone().drop_guard();
    let request = CallRequest {
        tool,
        arguments: Value::Object(arguments),
        // No task of the mesh: an id of its own tells calls apart.
        task: TaskId::from_uuid(uuid::Uuid::now_v7()),
        step: StepNo(0),
        attempt: 1,
        idempotency_key: uuid::Uuid::now_v7().to_string(),
        trace: work.ask.trace,
        trace_state: String::new(),
        labels: work.ask.caller.standing.labels.as_ref().clone(),
        timeout: None,
        events: CallEvents::default(),
    };
    let called = tokio::select! {
        called = upstream.call(request, cancel.clone()) => called,
        () = work.taken_back() => return ToolAnswer::refused("the call was taken back"),
    };
    let outcome = if called.is_ok() { "ok" } else { "failed" };
    audit::method(&work.ask.caller, "mcp.call", Some(&object), outcome, &work.ask.trace);
    match called {
        Ok(result) => answered(result),
        Err(error) => ToolAnswer::refused(&error.message),
    }
}

fn answered(result: ToolResult) -> ToolAnswer {
    let mut content = vec![text(&result.text)];
    content.extend(result.files.iter().map(file));
    ToolAnswer { content, structured: result.structured.filter(Value::is_object), is_error: result.is_error }
}

/// A file that a tool made. What is too large for an answer is named.
fn file(part: &Part) -> Value {
    let name = part.filename.as_deref().unwrap_or("file");
    let media_type = part.media_type.as_deref().unwrap_or("application/octet-stream");
    match &part.content {
        Content::Raw(bytes) => {
            use base64::{Engine as _, prelude::BASE64_STANDARD};
            let data = BASE64_STANDARD.encode(bytes);
            if media_type.starts_with("image/") {
                return json!({ "type": "image", "data": data, "mimeType": media_type });
            }
            let resource = json!({ "blob": data, "mimeType": media_type, "uri": format!("towline://files/{name}") });
            json!({ "type": "resource", "resource": resource })
        }
        Content::Text(said) => text(said),
        Content::Data(data) => text(&data.to_string()),
        Content::Url(url) => text(url),
        Content::Blob(_) => text(&format!("[{name} ({media_type}) is too large to be shown here]")),
    }
}

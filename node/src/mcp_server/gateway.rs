//! What other MCP servers have, served through this one: prefixed with the name of their server, only what a setting allows, and only
//! to whom it lists. Each request is made on this node's own connection: what the caller has shown stays here. A result is
//! passed on byte by byte, with whatever this node does not know in it.
//!
//! ```text
//! client ──tools/call──▶ call ──Forward──▶ the server
//!        ◀─progress, log, a question─ ◀─CallEvent─
//! ```
//! A server that is down keeps what it listed last, and says so when it is asked; the others do not notice.

use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use http::HeaderMap;
use serde_json::{Map, Value, json, value::RawValue};
use tokio_util::sync::CancellationToken;
use towline_actors::mcp_connection::{
    CallEvent, CallEvents, CallRequest, Forward, McpHandle, NotForwarded, Question, ToolInfo, passed_on,
};
use towline_actors::triggers::contents::{Content, NotWatched};
use towline_core::{Principal, StepNo, TaskId};

use super::{
    Ask, McpServer, confirm,
    dispatch::{Answered, ToolAnswer, Work},
    logs::{self, Level},
    message::{self, Request, RpcError, code},
    revision::{Era, META_CAPABILITIES},
    settings::Federated,
    surface::{Kind, Tool},
};
use crate::auth::audit;

/// What stands between the name of a server and that of its tool or prompt.
const BETWEEN: &str = "__";

/// How the URI of a resource begins here: the name of its server and its own URI follow.
const RESOURCES: &str = "towline://mcp/";

/// Most tools of one server that are served: more are of no use to a model, and a server may list anything.
const MAX_TOOLS: usize = 500;

/// How much of the description of a tool is shown, in characters.
const MAX_DESCRIPTION: usize = 4_096;

/// Something of another server, under its name there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub server: String,
    pub name: String,
}

/// The servers that a caller may use: those whose names say where they are from before the others, which might call something of
/// theirs by such a name.
fn federated<'a>(server: &'a McpServer, caller: &'a Principal) -> impl Iterator<Item = &'a Federated> {
    in_order(server.surface.federated()).filter(move |federated| federated.is_for(caller))
}

fn in_order(federated: &[Federated]) -> impl Iterator<Item = &Federated> {
    let (named, others) = (federated.iter().filter(|one| one.prefix), federated.iter().filter(|one| !one.prefix));
    named.chain(others)
}

/// Whether a caller may use prompts of some server.
pub(super) fn has_prompts(server: &McpServer, caller: &Principal) -> bool {
    federated(server, caller).any(|federated| !federated.prompts.is_empty())
}

/// Whether a caller may use anything of some server.
pub(super) fn is_for(server: &McpServer, caller: &Principal) -> bool {
    federated(server, caller).next().is_some()
}

async fn upstream(server: &McpServer, name: &str) -> Option<McpHandle> {
    server.api.mesh.lock().await.as_ref()?.mcp_server(name)
}

/// The name that something of a server has here.
fn named(federated: &Federated, name: &str) -> String {
    if federated.prefix { format!("{}{BETWEEN}{name}", federated.server) } else { name.to_owned() }
}

fn uri_of(federated: &Federated, uri: &str) -> String {
    if federated.prefix { format!("{RESOURCES}{}/{uri}", federated.server) } else { uri.to_owned() }
}

/// The tools of others that a caller may use.
pub(super) async fn tools(server: &McpServer, caller: &Principal) -> Vec<Tool> {
    let mut tools: Vec<Tool> = Vec::new();
    for federated in federated(server, caller) {
        let Some(upstream) = upstream(server, &federated.server).await else { continue };
        let served = upstream.tools().into_iter().filter(|tool| federated.serves(&tool.tool));
        for tool in served.filter_map(|tool| shown(federated, tool)).take(MAX_TOOLS) {
            // Without a prefix the first that has a name keeps it.
            if federated.prefix || !tools.iter().any(|known| known.name == tool.name) {
                tools.push(tool);
            }
        }
    }
    tools
}

/// A tool of others by its name here.
pub(super) async fn find(server: &McpServer, caller: &Principal, name: &str) -> Option<Tool> {
    for federated in federated(server, caller) {
        let behind = name.strip_prefix(federated.server.as_str()).and_then(|rest| rest.strip_prefix(BETWEEN));
        let tool = if federated.prefix { behind } else { Some(name) };
        let Some(tool) = tool.filter(|tool| federated.serves(tool)) else { continue };
        let found = upstream(server, &federated.server).await.and_then(|upstream| upstream.tool(tool));
        if let Some(found) = found.and_then(|found| shown(federated, found)) {
            return Some(found);
        }
    }
    None
}

fn shown(federated: &Federated, tool: ToolInfo) -> Option<Tool> {
    let name = named(federated, &tool.tool);
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

/// What servers list beside their tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listed {
    Resources,
    Templates,
    Prompts,
}

/// All that a caller may see of it, under its names here.
pub(super) async fn listed(ask: &Ask, what: Listed) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::new();
    let key = match what {
        Listed::Resources => "uri",
        Listed::Templates => "uriTemplate",
        Listed::Prompts => "name",
    };
    for federated in federated(&ask.server, &ask.caller.principal) {
        let Some(upstream) = upstream(&ask.server, &federated.server).await else { continue };
        let offers = upstream.offers().await;
        let of_it = match what {
            Listed::Resources => &offers.resources,
            Listed::Templates => &offers.templates,
            Listed::Prompts => &offers.prompts,
        };
        for item in of_it {
            let name = item[key].as_str().unwrap_or_default();
            let (is_served, named) = match what {
                Listed::Resources | Listed::Templates => (federated.serves_resource(name), uri_of(federated, name)),
                Listed::Prompts => (federated.serves_prompt(name), named(federated, name)),
            };
            if is_served && !items.iter().any(|known| known[key] == named) {
                let mut item = item.clone();
                item[key] = named.into();
                items.push(item);
            }
        }
    }
    items
}

/// The resource that a URI means here. One under its own URI, as results of tools link to it, has to be one that its server lists.
pub(super) async fn find_resource(server: &McpServer, caller: &Principal, uri: &str) -> Option<Found> {
    for federated in federated(server, caller) {
        let rest = uri.strip_prefix(RESOURCES).and_then(|rest| rest.strip_prefix(federated.server.as_str()));
        let prefixed = rest.and_then(|rest| rest.strip_prefix('/')).filter(|_| federated.prefix);
        let name = prefixed.unwrap_or(uri);
        if !federated.serves_resource(name) {
            continue;
        }
        let is_its = match (prefixed, upstream(server, &federated.server).await) {
            (Some(_), _) => true,
            (None, Some(upstream)) => upstream.offers().await.has_resource(uri),
            (None, None) => false,
        };
        if is_its {
            return Some(Found { server: federated.server.clone(), name: name.to_owned() });
        }
    }
    None
}

/// Watches the resource that a URI means here; none if it means none that this one may use, or its server is not used.
///
/// # Errors
/// When there is no place for it.
pub(super) async fn content(server: &McpServer, caller: &Principal, uri: &str) -> Result<Option<Content>, NotWatched> {
    let Some(found) = find_resource(server, caller, uri).await else { return Ok(None) };
    let upstream = upstream(server, &found.server).await.filter(|upstream| !upstream.is_over());
    let Some(upstream) = upstream else { return Ok(None) };
    server.contents.watch(&upstream, &found.name).map(Some)
}

/// The prompt that a name means here.
pub(super) async fn find_prompt(ask: &Ask, name: &str) -> Option<Found> {
    for federated in federated(&ask.server, &ask.caller.principal) {
        let Some(upstream) = upstream(&ask.server, &federated.server).await else { continue };
        let offers = upstream.offers().await;
        let names = offers.prompts.iter().filter_map(|prompt| prompt["name"].as_str());
        let served = names.filter(|of_it| federated.serves_prompt(of_it));
        if let Some(found) = served.into_iter().find(|of_it| named(federated, of_it) == name) {
            return Some(Found { server: federated.server.clone(), name: found.to_owned() });
        }
    }
    None
}

/// Completes an argument of a prompt or a template of another server; none of them is an error.
pub(super) async fn complete(ask: &Ask, request: &Request) -> Result<Answered, RpcError> {
    let of = |key: &str| request.params.get("ref").and_then(|of| of.get(key)).and_then(Value::as_str);
    let (found, key) = match (of("type"), of("name"), of("uri")) {
        (Some("ref/prompt"), Some(name), _) => (find_prompt(ask, name).await, "name"),
        (Some("ref/resource"), _, Some(uri)) => (find_resource(&ask.server, &ask.caller.principal, uri).await, "uri"),
        _ => return Err(RpcError::invalid_params("ref must be a ref/prompt with a name or a ref/resource with a uri")),
    };
    let found = found.ok_or_else(|| RpcError::invalid_params("ref is none that is served here"))?;
    let mut params = request.params.clone();
    params.insert("ref".to_owned(), json!({ "type": of("type"), key: found.name }));
    passed(ask, request, "completion/complete", &found, params).await
}

/// Passes a request on that is answered at once.
pub(super) async fn passed(
    ask: &Ask,
    request: &Request,
    method: &'static str,
    found: &Found,
    params: Map<String, Value>,
) -> Result<Answered, RpcError> {
    let forward = forward(ask, request, method, found, params, CallEvents::default());
    let upstream = upstream(&ask.server, &found.server).await;
    let upstream = upstream.ok_or_else(|| RpcError::new(code::UNAVAILABLE, NOT_USED))?;
    let cancel = CancellationToken::new();
    let _ends_with_the_request = cancel.clone().drop_guard();
    answered(ask, upstream.forward(forward, cancel).await)
}

const NOT_USED: &str = "this node does not use that server at the moment";

/// What goes to the server: the request without what its client says of itself, but for what it can do, since it may be asked.
fn forward(
    ask: &Ask,
    request: &Request,
    method: &'static str,
    found: &Found,
    mut params: Map<String, Value>,
    events: CallEvents,
) -> Forward {
    params.remove("_meta");
    let is_stateless = ask.speaker.era == Era::Stateless;
    let told = [META_CAPABILITIES, logs::META_LEVEL].into_iter().filter(|_| is_stateless);
    let meta = told.filter_map(|key| Some((key.to_owned(), told_of(key, request.meta(key)?)))).collect();
    let call = CallRequest {
        tool: found.name.clone(),
        arguments: Value::Null,
        // No task of the mesh: an id of its own tells calls apart.
        task: TaskId::from_uuid(uuid::Uuid::now_v7()),
        step: StepNo(0),
        attempt: 1,
        idempotency_key: uuid::Uuid::now_v7().to_string(),
        trace: ask.trace,
        trace_state: String::new(),
        labels: ask.caller.standing.labels.as_ref().clone(),
        timeout: None,
        events,
    };
    Forward { method, params, meta, passes_questions: is_stateless, call }
}

/// Of what a client can do only what a result may ask it for: an extension is between a client and this node.
fn told_of(key: &str, value: &Value) -> Value {
    let mut value = value.clone();
    if let (META_CAPABILITIES, Some(capabilities)) = (key, value.as_object_mut()) {
        capabilities.retain(|name, _| ["elicitation", "sampling", "roots"].contains(&name.as_str()));
    }
    value
}

fn answered(ask: &Ask, result: Result<Box<RawValue>, NotForwarded>) -> Result<Answered, RpcError> {
    match result {
        Ok(result) => {
            let asks = message::fields_of(&result).and_then(|fields| Some(fields.get("resultType")?.get().to_owned()));
            if ask.speaker.era == Era::Sessions && asks.as_deref() == Some("\"input_required\"") {
                let why = "the tool asks for input, which is not offered: set elicitation: true for its server";
                return Ok(Answered::Tool(ToolAnswer::refused(why)));
            }
            Ok(Answered::Original(result))
        }
        Err(NotForwarded::Refused { code, message, data }) => Err(RpcError { code, message, data }),
        Err(NotForwarded::Failed(error)) => Err(RpcError::new(code::UNAVAILABLE, error.message)),
    }
}

/// Calls a tool of another server.
pub(super) async fn call(work: Work, request: Request, found: Found) -> Result<Answered, RpcError> {
    let Some(upstream) = upstream(&work.ask.server, &found.server).await else {
        return Ok(Answered::Tool(ToolAnswer::refused(NOT_USED)));
    };
    let (events, mut heard) = passed_on();
    let mut params = request.params.clone();
    params.insert("name".to_owned(), found.name.clone().into());
    let forward = forward(&work.ask, &request, "tools/call", &found, params, events);
    let wants = wanted_logs(&work.ask, &request);
    let cancel = CancellationToken::new();
    let _ends_with_the_call = cancel.clone().drop_guard();
    let mut calling = std::pin::pin!(upstream.forward(forward, cancel.clone()));
    let mut asking: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::new();
    let result = loop {
        tokio::select! {
            biased;
            event = heard.next() => match event {
                CallEvent::Asks(question) => asking.push(Box::pin(asked(&work, question))),
                said @ (CallEvent::Progress { .. } | CallEvent::Log(_)) => tell(&work, wants, said),
            },
            result = &mut calling => break result,
            Some(()) = asking.next(), if !asking.is_empty() => {}
            () = work.taken_back() => return Ok(Answered::Tool(ToolAnswer::refused("the call was taken back"))),
        }
    };
    while let Some(event) = heard.waiting() {
        tell(&work, wants, event);
    }
    let outcome = if result.is_ok() { "ok" } else { "failed" };
    let object = format!("{}/{}", found.server, found.name);
    audit::method(&work.ask.caller, "mcp.call", Some(&object), outcome, &work.ask.trace);
    match result {
        // The tool cannot be had: that is for the model, not for its client.
        Err(NotForwarded::Failed(error)) => Ok(Answered::Tool(ToolAnswer::refused(&error.message))),
        other => answered(&work.ask, other),
    }
}

/// From which level on a client wants log messages of its call.
fn wanted_logs(ask: &Ask, request: &Request) -> Option<Level> {
    match ask.speaker.era {
        Era::Stateless => Level::named(request.meta(logs::META_LEVEL)?.as_str()?),
        Era::Sessions => {
            let live = ask.server.sessions.get(ask.session.as_ref()?);
            Some(live.and_then(|live| live.log_level()).unwrap_or(Level::UNSAID))
        }
    }
}

fn tell(work: &Work, wants: Option<Level>, said: CallEvent) {
    match said {
        CallEvent::Progress { progress, total, message } => work.progress_of(progress, total, message),
        CallEvent::Log(params) => {
            let params = serde_json::from_str::<Value>(&params).unwrap_or_default();
            if wants.is_some_and(|wants| wants.wants(&params)) {
                work.tell(message::notification("notifications/message", params));
            }
        }
        // Nobody waits for an answer any more.
        CallEvent::Asks(_) => {}
    }
}

/// Puts a question of the server to the person behind the client, if it asks people. Pages are for the node's own people to look at.
async fn asked(work: &Work, question: Question) {
    if question.details["mode"] != "form" {
        return question.answer("decline".to_owned());
    }
    // Its words are not this node's, and who reads them has to know.
    let text = |key: &str| question.details[key].as_str().unwrap_or_default();
    let message = format!("MCP server {} asks: {}", text("server"), text("message"));
    let params = json!({ "message": message, "requestedSchema": question.details["schema"] });
    let answer = match confirm::put(work, params).await {
        Ok(Some(Ok(result))) => match result["action"].as_str() {
            Some("accept") => result.get("content").map_or_else(|| "{}".to_owned(), Value::to_string),
            Some("decline") => "decline".to_owned(),
            _ => "cancel".to_owned(),
        },
        Ok(Some(Err(_)) | None) | Err(_) => "cancel".to_owned(),
    };
    question.answer(answer);
}

/// Whether the head of a call says what its tool wants to have said there (`x-mcp-header`), in the revision without sessions.
///
/// # Errors
/// What differs.
pub(super) async fn check_head(ask: &Ask, headers: &HeaderMap, request: &Request) -> Result<(), RpcError> {
    let (server, caller) = (&ask.server, &ask.caller.principal);
    let Some(name) = request.params.get("name").and_then(Value::as_str) else { return Ok(()) };
    let is_anothers = ask.speaker.era == Era::Stateless && request.method == "tools/call";
    if !is_anothers || server.surface.find(caller, name).is_some() {
        return Ok(());
    }
    let Some(tool) = find(server, caller, name).await else { return Ok(()) };
    let properties = tool.input.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let Some(header) = property.get("x-mcp-header").and_then(Value::as_str) else { continue };
        let value = request.params.get("arguments").and_then(|arguments| arguments.get(name));
        super::headers::check_parameter(headers, header, value)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn federated(prefix: bool) -> Federated {
        Federated {
            server: "fs".to_owned(),
            allow: vec!["read_*".to_owned()],
            resources: vec!["file:///**".to_owned()],
            prompts: Vec::new(),
            prefix,
            clients: vec!["operator".to_owned()],
        }
    }

    #[test]
    fn names_and_uris_stand_behind_their_server_unless_a_setting_says_otherwise() {
        assert_eq!(named(&federated(true), "read_file"), "fs__read_file");
        assert_eq!(uri_of(&federated(true), "file:///{path}"), "towline://mcp/fs/file:///{path}");
        assert_eq!(named(&federated(false), "read_file"), "read_file");
        assert_eq!(uri_of(&federated(false), "file:///a"), "file:///a");
    }

    #[test]
    fn a_server_is_told_what_a_result_may_ask_for_and_no_extension() {
        let can = json!({ "elicitation": { "form": {} }, "extensions": { "io.modelcontextprotocol/tasks": {} } });
        assert_eq!(told_of(META_CAPABILITIES, &can), json!({ "elicitation": { "form": {} } }));
        assert_eq!(told_of(logs::META_LEVEL, &json!("info")), json!("info"));
    }

    #[test]
    fn a_name_that_says_where_it_is_from_is_looked_for_there_first() {
        let (other, good) = (federated(false), federated(true));
        let prefixed: Vec<bool> = in_order(&[other, good]).map(|one| one.prefix).collect();
        assert_eq!(prefixed, [true, false]);
    }

    #[test]
    fn only_what_a_pattern_names_is_served() {
        let served = federated(true);
        assert!(served.serves("read_file") && !served.serves("write_file"));
        assert!(served.serves_resource("file:///a/b") && !served.serves_resource("https://a/b"));
        for climbs in [
            "file:///a/../b",
            "file:///a/%2E%2e/b",
            "file:///a/.%252e/b",
            "file:///a/%%32e%2%65/b",
            "file:///a/x\\..\\b",
            "file:///a/..",
            "file:///a/..?x",
            "file:///a/..;x/b",
            "file:///a/.\t./b",
            "file:///a/.%0A./b",
        ] {
            assert!(!served.serves_resource(climbs), "{climbs} leads elsewhere than the pattern says");
        }
        assert!(served.serves_resource("file:///a/my%20file%25.md"), "a name is a name, however it is written");
        assert!(served.serves_resource("file:///a/..b/c...d/.e"), "dots within a name lead nowhere");
        assert!(!served.serves_prompt("anything"), "nothing is served without a pattern");
    }
}

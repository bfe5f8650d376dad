//! Tools of MCP servers as tools of this host: `server_id__tool`, listed and called like any other.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use towline_actors::mcp_connection::{
    CallEvent, CallEvents, CallRequest, Heard, McpServerState, ToolInfo, ToolResult, call_events_of,
};
use towline_core::{Content, Labels, OnAdoption, StepNo, TaskId, TraceContext};

use super::{
    dispatch::Ask,
    failed,
    message::{Code, Failure, Incoming, answer},
    servers::{BETWEEN, Visible},
};
use crate::auth::audit;

/// Most tools that one answer lists.
const MAX_TOOLS: usize = 2_000;

/// How deep a schema is told as parameters; what is deeper is in `input_schema`.
const MAX_DEPTH: usize = 6;

/// How long a listing waits for servers that are connected for the first time.
const SERVERS_WITHIN: Duration = Duration::from_secs(5);

/// How long a call may take that does not say, and that says the most, in seconds.
const DEFAULT_TIMEOUT: u64 = 30;
const MAX_TIMEOUT: u64 = 3_600;

/// Longest summary of a result, in characters: the whole is beside it.
const MAX_SUMMARY_CHARS: usize = 1_000;

/// Most events of one call: agents show them to people.
const MAX_EVENTS: u64 = 256;

pub(super) async fn list(ask: &Ask) -> Result<Value, Failure> {
    let message = &ask.message;
    let (kind, query) = (message.text("filter_kind")?, message.text("query")?.to_lowercase());
    let tags: Vec<String> = message.texts("filter_tags")?.iter().map(|tag| tag.to_lowercase()).collect();
    // No tool of a server is deferred.
    message.flag("include_deferred", false)?;
    let mut tools = Vec::new();
    if matches!(kind, "" | "mcp") {
        let servers = ask.bridge.servers.visible(&ask.bridge, &ask.caller.principal).await;
        settled(&servers).await;
        for server in servers {
            let Ok(link) = server.link() else { continue };
            let shown = link.handle.tools().into_iter().filter(|tool| server.has_tool(&tool.tool));
            tools.extend(shown.map(|tool| definition(&server, &tool)).filter(|tool| is_wanted(tool, &query, &tags)));
        }
    }
    tools.truncate(MAX_TOOLS);
    Ok(answer("tool/list/resp", &message.id, json!({ "tools": tools })))
}

/// Gives servers that are connected here for the first time a moment for it.
async fn settled(servers: &[Visible]) {
    let links = servers.iter().filter_map(|server| server.link().ok());
    let first_time = links.filter(|link| {
        let status = link.handle.status();
        status.state == McpServerState::Connecting && status.tools.is_empty()
    });
    futures::future::join_all(first_time.map(|link| link.handle.settled(SERVERS_WITHIN))).await;
}

fn is_wanted(tool: &Value, query: &str, tags: &[String]) -> bool {
    let text = |field: &str| tool[field].as_str().unwrap_or_default().to_lowercase();
    let own: Vec<String> =
        tool["tags"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_lowercase).collect();
    let is_like = text("name").contains(query)
        || text("description").contains(query)
        || own.iter().any(|tag| tag.contains(query));
    is_like && tags.iter().all(|tag| own.contains(tag))
}

fn definition(server: &Visible, tool: &ToolInfo) -> Value {
    json!({
        "defer_loading": false,
        "description": format!("[MCP:{}] {}", server.name, tool.description),
        "idempotent": tool.on_adoption == OnAdoption::Retry,
        "input_parameters": parameters(&tool.schema, 0),
        "input_schema": tool.schema,
        "name": format!("{}{BETWEEN}{}", server.id, tool.tool),
        "output_parameters": [],
        "source": "mcp",
        "streaming": true,
        "tags": ["mcp", server.id, server.name],
        "toolkit": null,
        "version": "1.0.0",
    })
}

/// The properties of a schema as parameters: what these cannot say is in the schema beside them.
fn parameters(schema: &Value, depth: usize) -> Vec<Value> {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties.map(|(name, property)| parameter(name, property, required.contains(&name.as_str()), depth)).collect()
}

fn parameter(name: &str, property: &Value, required: bool, depth: usize) -> Value {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let choices: Option<Vec<String>> = property["enum"].as_array().map(|choices| choices.iter().map(text).collect());
    let within = (depth < MAX_DEPTH).then(|| parameters(property, depth + 1)).filter(|within| !within.is_empty());
    let by_name = |within: Vec<Value>| -> Map<String, Value> {
        within.into_iter().map(|one| (one["name"].as_str().unwrap_or_default().to_owned(), one)).collect()
    };
    json!({
        "description": property["description"].as_str().or(property["title"].as_str()).unwrap_or_default(),
        "enum": choices,
        "name": name,
        "properties": within.map(by_name),
        "required": required,
        "type": type_of(property),
    })
}

fn type_of(property: &Value) -> &str {
    let listed = || property["type"].as_array()?.iter().filter_map(Value::as_str).find(|kind| *kind != "null");
    if let Some(kind) = property["type"].as_str().or_else(listed) {
        return kind;
    }
    if property["properties"].is_object() {
        "object"
    } else if property["items"].is_object() {
        "array"
    } else {
        "string"
    }
}

/// A call, as an agent asks for it.
#[derive(Debug, PartialEq)]
pub(super) struct Asked {
    server: String,
    tool: String,
    session: String,
    arguments: Map<String, Value>,
    streaming: bool,
    timeout: Duration,
}

/// Reads a call.
///
/// # Errors
/// What is wrong with it.
pub(super) fn read_call(message: &Incoming) -> Result<Asked, Failure> {
    let name = message.needed("tool_name")?;
    let unknown = || {
        let name = towline_a2a::shortened(name);
        Failure::new(
            Code::UnknownTool,
            format!("tool {name:?} is not known: tools here are called SERVER{BETWEEN}TOOL"),
        )
    };
    let (server, tool) = name.split_once(BETWEEN).ok_or_else(unknown)?;
    message.text("correlation_id")?;
    Ok(Asked {
        server: server.to_owned(),
        tool: tool.to_owned(),
        session: message.text("session_id")?.to_owned(),
        arguments: message.object("arguments")?,
        streaming: message.flag("streaming", false)?,
        timeout: Duration::from_secs(message.number("timeout", DEFAULT_TIMEOUT)?.clamp(1, MAX_TIMEOUT)),
    })
}

pub(super) async fn call(ask: &Ask) -> Result<Value, Failure> {
    let asked = read_call(&ask.message)?;
    if !asked.session.is_empty() && asked.session != *ask.session.id {
        return Err(Failure::new(Code::InvalidMessage, "session_id is not that of this session"));
    }
    let server = ask.bridge.servers.one(&ask.bridge, &ask.caller.principal, &asked.server).await?;
    let link = server.link()?;
    let name = format!("{}{BETWEEN}{}", asked.server, asked.tool);
    if !server.has_tool(&asked.tool) || asked.tool == towline_actors::mcp_connection::READ_RESOURCE {
        let why = format!("tool {:?} is not there: tool/list names those that are", towline_a2a::shortened(&name));
        return Err(Failure::new(Code::ToolNotFound, why));
    }
    let begun = Instant::now();
    let (events, heard) = call_events_of(Some(Arc::clone(&ask.session.id)));
    let arguments = Value::Object(asked.arguments);
    let request = request(asked.tool, arguments, (ask.trace, &ask.caller.standing.labels), Some(asked.timeout), events);
    let cancel = CancellationToken::new();
    let _ends_with_the_call = cancel.clone().drop_guard();
    let mut calling = std::pin::pin!(link.handle.call(request, cancel.clone()));
    let called = if asked.streaming {
        let mut streaming = Streaming { heard, seq: 0 };
        loop {
            tokio::select! {
                biased;
                told = streaming.next(&ask.message.id) => ask.session.hint(&told),
                called = &mut calling => break called,
            }
        }
    } else {
        // Who asks something in the middle of the call is told at once that nobody hears it.
        drop(heard);
        calling.await
    };
    let outcome = if called.is_ok() { "ok" } else { "failed" };
    audit::method(&ask.caller, "a2e.call", Some(link.handle.name()), outcome, &ask.trace);
    let result = called.map_err(|error| failed(&error, Code::ToolNotFound))?;
    let data = told(&name, result, begun.elapsed());
    let created_at = super::message::now();
    Ok(answer("tool/call/resp", &ask.message.id, json!({ "created_at": created_at, "data": data })))
}

/// A call or a reading, of no task of the mesh: an id of its own tells calls apart.
pub(super) fn request(
    tool: String,
    arguments: Value,
    (trace, labels): (TraceContext, &Labels),
    timeout: Option<Duration>,
    events: CallEvents,
) -> CallRequest {
    CallRequest {
        tool,
        arguments,
        task: TaskId::from_uuid(uuid::Uuid::now_v7()),
        step: StepNo(0),
        attempt: 1,
        idempotency_key: uuid::Uuid::now_v7().to_string(),
        trace,
        trace_state: String::new(),
        labels: labels.clone(),
        timeout,
        events,
    }
}

/// What a tool answered, as a result of this protocol. Its whole answer is in `data`, content of unknown kinds as well.
fn told(name: &str, result: ToolResult, took: Duration) -> Value {
    let is_truncated = result.files.iter().any(|file| matches!(file.content, Content::Blob(_)));
    let summary: String = result.text.chars().take(MAX_SUMMARY_CHARS).collect();
    json!({
        "data": result.answer,
        "duration_ms": u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        "error": result.is_error.then_some(&result.text),
        "error_code": result.is_error.then_some("tool_error"),
        "events": [],
        "exit_code": null,
        "success": !result.is_error,
        "summary": summary,
        "tool_name": name,
        "truncated": is_truncated,
    })
}

/// What is heard of a call.
struct Streaming {
    heard: Heard,
    seq: u64,
}

impl Streaming {
    /// The next event, for the call of this message. Beyond the most that there may be, what is heard is dropped.
    async fn next(&mut self, id: &str) -> Value {
        loop {
            let (kind, data) = told_event(self.heard.next().await);
            self.seq += 1;
            if self.seq <= MAX_EVENTS {
                return answer("tool/event", id, json!({ "data": data, "kind": kind, "seq": self.seq }));
            }
        }
    }
}

fn told_event(event: CallEvent) -> (&'static str, Value) {
    match event {
        CallEvent::Progress { progress, total, message } => {
            let percent = total.filter(|total| *total > 0.0).map_or(0.0, |total| progress / total * 100.0);
            let data = json!({
                "message": message.unwrap_or_default(),
                "pct": percent.clamp(0.0, 100.0) as u64,
                "progress": progress,
                "total": total,
            });
            ("progress", data)
        }
        CallEvent::Log(line) => {
            let level = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
            let (level, text) = level.unwrap_or(("info", &line));
            ("log", json!({ "level": level, "message": text.trim_start() }))
        }
        // Dropped here, the question is over: the server is told so.
        CallEvent::Asks(_) => {
            ("status", json!({ "message": "the server asked a question that nobody here can answer" }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::a2e::message::parse;

    #[test]
    fn a_schema_is_told_as_parameters_as_far_as_they_go() {
        let schema = json!({ "type": "object", "required": ["path"], "properties": {
            "path": { "type": "string", "description": "where" },
            "mode": { "type": ["null", "integer"], "enum": [1, 2] },
            "how": { "properties": { "deep": { "type": "boolean" } } },
            "any": {},
            "list": { "items": { "type": "string" } },
        } });
        let found = parameters(&schema, 0);
        let by_name = |name: &str| found.iter().find(|one| one["name"] == name).unwrap().clone();
        assert_eq!((&by_name("path")["required"], &by_name("path")["type"]), (&json!(true), &json!("string")));
        assert_eq!((&by_name("mode")["type"], &by_name("mode")["enum"]), (&json!("integer"), &json!(["1", "2"])));
        assert_eq!(by_name("how")["type"], "object");
        assert_eq!(by_name("how")["properties"]["deep"]["type"], "boolean");
        assert_eq!((&by_name("any")["type"], &by_name("list")["type"]), (&json!("string"), &json!("array")));
        assert!(by_name("any")["properties"].is_null() && by_name("any")["enum"].is_null());
        let mut endless = json!({ "type": "object" });
        for _ in 0..100 {
            endless = json!({ "properties": { "x": endless } });
        }
        assert!(json!(parameters(&endless, 0)).to_string().len() < 2_000);
    }

    #[test]
    fn a_call_is_split_at_the_first_underscores_and_its_defaults_are_those_of_the_protocol() {
        let read = |fields: Value| {
            let mut message = json!({ "type": "tool/call/req", "id": "1" });
            message.as_object_mut().unwrap().extend(fields.as_object().cloned().unwrap());
            read_call(&parse(message.to_string().as_bytes()).unwrap())
        };
        let asked = read(json!({ "tool_name": "fs__read__all", "arguments": { "a": 1 } })).unwrap();
        assert_eq!((asked.server.as_str(), asked.tool.as_str()), ("fs", "read__all"));
        assert_eq!((asked.timeout, asked.streaming), (Duration::from_secs(30), false));
        assert_eq!(read(json!({ "tool_name": "fs__x", "timeout": 0 })).unwrap().timeout, Duration::from_secs(1));
        let code = |fields| read(fields).unwrap_err().code;
        assert_eq!(code(json!({ "tool_name": "read" })), Code::UnknownTool);
        assert_eq!(code(json!({})), Code::SchemaViolation);
        assert_eq!(code(json!({ "tool_name": "fs__x", "arguments": [] })), Code::SchemaViolation);
        assert_eq!(code(json!({ "tool_name": "fs__x", "timeout": "soon" })), Code::SchemaViolation);
    }

    #[test]
    fn tools_are_found_by_words_and_by_all_of_some_tags() {
        let tool = json!({ "name": "fs__read", "description": "[MCP:files] Reads.", "tags": ["mcp", "fs", "Files"] });
        for (query, tags, found) in [
            ("", &[][..], true),
            ("reads", &[], true),
            ("fil", &["files"], true),
            ("x", &[], false),
            ("", &["fs", "no"], false),
        ] {
            let tags: Vec<String> = tags.iter().map(|tag| (*tag).to_owned()).collect();
            assert_eq!(is_wanted(&tool, query, &tags), found, "{query} {tags:?}");
        }
    }

    #[test]
    fn an_error_of_a_tool_is_its_result() {
        let result = ToolResult {
            text: "no".into(),
            structured: None,
            files: Vec::new(),
            is_error: true,
            answer: json!({ "content": [{ "type": "hologram" }], "isError": true }),
        };
        let told = told("fs__read", result, Duration::from_millis(7));
        assert_eq!(
            (&told["success"], &told["error"], &told["error_code"]),
            (&json!(false), &json!("no"), &json!("tool_error"))
        );
        assert_eq!((&told["duration_ms"], &told["data"]["content"][0]["type"]), (&json!(7), &json!("hologram")));
    }
}

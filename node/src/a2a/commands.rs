//! The *command* extension: what else a node can be asked, as data in a message.
//!
//! This table is the one place that knows the commands. Each is a way that there is without it, a method of A2A or a route of
//! the operator API, and is carried out by just that: who may, about what, the audit and the answer are the same. Nothing of
//! it makes a task.

use axum::{Router, body::Body, response::Response};
use futures::StreamExt as _;
use http::{Request, StatusCode, header};
use serde_json::{Map, Value, json};
use tower::ServiceExt as _;
use towline_a2a::{WireError, shortened};

use super::principal::Caller;
use crate::auth::Way;

use Kind::{List, Number, Object, Text, Truth};
use Place::{Body as InBody, Path as InPath, Query as InQuery};

/// Largest answer of a command: as much as is put into one message elsewhere.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// Longest path of a request with its query, in bytes: longer ones are no URI.
const MAX_URI_BYTES: usize = 65_534;

/// The command that tells of the commands.
pub(crate) const HELP: &str = "commands";

/// Something that can be asked as a command.
#[derive(Debug)]
pub(crate) struct Operation {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a few words.
    pub what: &'static str,
    /// How it is asked without this extension.
    pub way: Way,
    /// What it takes.
    pub arguments: &'static [Argument],
}

/// Something that a command takes.
#[derive(Debug)]
pub(crate) struct Argument {
    /// Its name.
    pub name: &'static str,
    /// Where it stands in the request of the way; parameters of a method are all in one place.
    place: Place,
    /// What it is.
    pub kind: Kind,
    /// Whether it has to be there.
    pub is_required: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Path,
    Query,
    Body,
}

/// What an argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Number,
    Truth,
    /// Of texts.
    List,
    Object,
}

impl Kind {
    fn takes(self, value: &Value) -> bool {
        match self {
            Text => value.is_string(),
            Number => value.is_u64(),
            Truth => value.is_boolean(),
            Object => value.is_object(),
            List => value.as_array().is_some_and(|items| items.iter().all(Value::is_string)),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Text => "text",
            Number => "whole number",
            Truth => "true or false",
            List => "list of texts",
            Object => "JSON object",
        }
    }
}

const fn must(name: &'static str, place: Place, kind: Kind) -> Argument {
    Argument { name, place, kind, is_required: true }
}

const fn may(name: &'static str, place: Place, kind: Kind) -> Argument {
    Argument { name, place, kind, is_required: false }
}

const fn operation(name: &'static str, what: &'static str, way: Way, arguments: &'static [Argument]) -> Operation {
    Operation { name, what, way, arguments }
}

const fn get(path: &'static str) -> Way {
    Way::Route("GET", path)
}

const fn post(path: &'static str) -> Way {
    Way::Route("POST", path)
}

const fn delete(path: &'static str) -> Way {
    Way::Route("DELETE", path)
}

/// All commands, by name.
pub(crate) static OPERATIONS: [Operation; 41] = [
    operation("agent.list", "the agents and where they are placed", get("/api/v1/agents"), &[]),
    operation(
        "auth.device.approve",
        "lets in who showed the code, under a name",
        post("/api/v1/auth/devices/{code}/approve"),
        &[must("code", InPath, Text), must("name", InBody, Text), may("role", InBody, Text)],
    ),
    operation(
        "auth.device.deny",
        "lets nobody in under the code",
        post("/api/v1/auth/devices/{code}/deny"),
        &[must("code", InPath, Text)],
    ),
    operation("auth.device.pending", "the devices that ask to be let in", get("/api/v1/auth/devices"), &[]),
    operation("auth.revoke", "ends a session", delete("/api/v1/auth/sessions/{id}"), &[must("id", InPath, Text)]),
    operation(
        "auth.revoke-many",
        "ends all sessions of a name, or all",
        post("/api/v1/auth/sessions/revoke"),
        &[may("name", InBody, Text), may("all", InBody, Truth)],
    ),
    operation("auth.sessions", "who is signed in", get("/api/v1/auth/sessions"), &[]),
    operation("auth.whoami", "who asks, and what that one may", get("/api/v1/auth/whoami"), &[]),
    operation(
        "cluster.demote",
        "makes a voter a learner",
        post("/api/v1/cluster/nodes/{node}/demote"),
        &[must("node", InPath, Number)],
    ),
    operation(
        "cluster.drain",
        "moves all tasks off a node",
        post("/api/v1/cluster/nodes/{node}/drain"),
        &[must("node", InPath, Number), may("timeout_ms", InBody, Number)],
    ),
    operation(
        "cluster.drained",
        "how far a node is with that",
        get("/api/v1/cluster/nodes/{node}/drain"),
        &[must("node", InPath, Number)],
    ),
    operation(
        "cluster.join-token",
        "makes a token with which one node can join",
        post("/api/v1/join-tokens"),
        &[must("role", InBody, Text), must("ttl_ms", InBody, Number)],
    ),
    operation(
        "cluster.leader",
        "has the leader hand over",
        post("/api/v1/cluster/leader"),
        &[may("to", InBody, Number)],
    ),
    operation(
        "cluster.promote",
        "makes a learner a voter",
        post("/api/v1/cluster/nodes/{node}/promote"),
        &[must("node", InPath, Number)],
    ),
    operation(
        "cluster.remove",
        "takes a node out for good",
        delete("/api/v1/cluster/nodes/{node}"),
        &[must("node", InPath, Number)],
    ),
    operation("cluster.status", "nodes, leader, quorum and disk", get("/api/v1/cluster"), &[]),
    operation(
        "cluster.undrain",
        "gives a drained node tasks again",
        post("/api/v1/cluster/nodes/{node}/undrain"),
        &[must("node", InPath, Number)],
    ),
    operation("doctor.run", "what of what a node needs is not as it should be", get("/api/v1/doctor"), &[]),
    operation(
        "events.read",
        "what happened, from an index on",
        get("/api/v1/events"),
        &[may("after", InQuery, Number), may("kinds", InQuery, List), may("limit", InQuery, Number)],
    ),
    operation(
        "mcp.accept",
        "agrees to the tools of an MCP server as they are now",
        post("/api/v1/mcp/{server}/accept"),
        &[must("server", InPath, Text)],
    ),
    operation(
        "mcp.call",
        "calls one tool of an MCP server by hand",
        post("/api/v1/mcp/{server}/call"),
        &[must("server", InPath, Text), must("tool", InBody, Text), may("arguments", InBody, Object)],
    ),
    operation(
        "mcp.inspect",
        "what an MCP server says of itself",
        get("/api/v1/mcp/{server}"),
        &[must("server", InPath, Text)],
    ),
    operation(
        "mcp.prompt",
        "has an MCP server make a prompt",
        post("/api/v1/mcp/{server}/prompt"),
        &[must("server", InPath, Text), must("name", InBody, Text), may("arguments", InBody, Object)],
    ),
    operation(
        "mcp.read",
        "reads a resource of an MCP server",
        post("/api/v1/mcp/{server}/read"),
        &[must("server", InPath, Text), must("uri", InBody, Text)],
    ),
    operation("mcp.status", "the MCP servers of the node that is asked", get("/api/v1/mcp"), &[]),
    operation(
        "mcp.tail",
        "what an MCP server says beside its answers",
        get("/api/v1/mcp/{server}/tail"),
        &[must("server", InPath, Text), may("after", InQuery, Number)],
    ),
    operation(
        "peer.add",
        "makes an agent outside of this mesh known",
        post("/api/v1/peers"),
        &[
            must("name", InBody, Text),
            must("urls", InBody, List),
            may("token_secret", InBody, Text),
            may("token_file", InBody, Text),
            may("idempotent", InBody, Truth),
            may("for_agents", InBody, List),
            may("join", InBody, Truth),
        ],
    ),
    operation("peer.list", "the agents outside of this mesh", get("/api/v1/peers"), &[]),
    operation("peer.remove", "forgets one", delete("/api/v1/peers/{name}"), &[must("name", InPath, Text)]),
    operation(
        "push.list",
        "how the webhooks of a task fare",
        get("/api/v1/tasks/{id}/push"),
        &[must("id", InPath, Text)],
    ),
    operation("push.totals", "how all webhooks fare, in numbers", get("/api/v1/push"), &[]),
    operation(
        "sub.add",
        "adds something that starts tasks by itself",
        post("/api/v1/triggers"),
        &[
            must("name", InBody, Text),
            must("agent", InBody, Text),
            may("prompt", InBody, Text),
            may("coalesce", InBody, Truth),
            may("server", InBody, Text),
            may("uri", InBody, Text),
            may("debounce_ms", InBody, Number),
            may("poll_ms", InBody, Number),
            may("filter", InBody, Text),
            may("window", InBody, Number),
            may("cron", InBody, Text),
            may("zone", InBody, Text),
            may("every_ms", InBody, Number),
            may("at_ms", InBody, Number),
            may("missed", InBody, Text),
        ],
    ),
    operation(
        "sub.fire",
        "has one start its task now",
        post("/api/v1/triggers/{name}/fire"),
        &[must("name", InPath, Text)],
    ),
    operation("sub.list", "what starts tasks by itself", get("/api/v1/triggers"), &[]),
    operation("sub.remove", "takes one away", delete("/api/v1/triggers/{name}"), &[must("name", InPath, Text)]),
    operation(
        "task.cancel",
        "cancels a task and what it delegated",
        Way::Method(a2a::methods::CANCEL_TASK),
        &[must("id", InBody, Text)],
    ),
    operation(
        "task.get",
        "a task as A2A shows it",
        Way::Method(a2a::methods::GET_TASK),
        &[must("id", InBody, Text), may("historyLength", InBody, Number)],
    ),
    operation("task.inspect", "all that is known of a task", get("/api/v1/tasks/{id}"), &[must("id", InPath, Text)]),
    operation(
        "task.list",
        "tasks, the newest first",
        Way::Method(a2a::methods::LIST_TASKS),
        &[
            may("contextId", InBody, Text),
            may("status", InBody, Text),
            may("statusTimestampAfter", InBody, Text),
            may("tenant", InBody, Text),
            may("pageSize", InBody, Number),
            may("pageToken", InBody, Text),
            may("historyLength", InBody, Number),
            may("includeArtifacts", InBody, Truth),
        ],
    ),
    operation(
        "task.resolve",
        "decides about a step in doubt",
        post("/api/v1/tasks/{id}/resolve"),
        &[
            must("id", InPath, Text),
            must("as", InBody, Text),
            may("step", InBody, Number),
            may("result", InBody, Text),
            may("reason", InBody, Text),
        ],
    ),
    operation(
        "task.trace",
        "the spans of a task from all nodes",
        get("/api/v1/tasks/{id}/trace"),
        &[must("id", InPath, Text)],
    ),
];

impl Operation {
    /// Whether somebody may ask for it.
    pub(crate) fn is_for(&self, caller: &Caller) -> bool {
        let permits = caller.standing.permits;
        match &self.way {
            Way::Method(method) => permits.method(method),
            Way::Route(verb, path) => verb.parse().is_ok_and(|verb| permits.route(&verb, path)),
        }
    }

    fn to_json(&self) -> Value {
        let argument =
            |one: &Argument| json!({ "name": one.name, "required": one.is_required, "type": one.kind.word() });
        let arguments: Vec<Value> = self.arguments.iter().map(argument).collect();
        json!({ "args": arguments, "op": self.name, "what": self.what })
    }

    /// Refuses arguments that it does not take, or takes as something else, or lacks.
    fn check(&self, given: &Map<String, Value>) -> Result<(), WireError> {
        let refuse = |problem: String| {
            let known: Vec<&str> = self.arguments.iter().map(|argument| argument.name).collect();
            let takes =
                if known.is_empty() { "takes no arguments".to_owned() } else { format!("takes {}", known.join(", ")) };
            Err(WireError::invalid_command(format!("{}: {problem}; it {takes}", self.name)))
        };
        if let Some(unknown) = given.keys().find(|name| !self.arguments.iter().any(|one| one.name == name.as_str())) {
            return refuse(format!("argument {:?} is not known", shortened(unknown)));
        }
        for argument in self.arguments {
            match given.get(argument.name) {
                None if argument.is_required => return refuse(format!("argument {} is missing", argument.name)),
                Some(value) if !argument.kind.takes(value) => {
                    return refuse(format!("argument {} must be a {}", argument.name, argument.kind.word()));
                }
                None | Some(_) => {}
            }
        }
        Ok(())
    }
}

/// A command, checked, and how it is carried out.
#[derive(Debug)]
pub(super) struct Command {
    /// Its name.
    pub name: &'static str,
    /// How.
    pub ask: Ask,
}

/// How a command is carried out.
#[derive(Debug)]
pub(super) enum Ask {
    /// It is answered at once.
    Answer(Value),
    /// By a method of A2A, with these parameters.
    Method(&'static str, Value),
    /// By a route of the operator API.
    Route(Box<Request<Body>>),
}

/// Reads a command. Whether its caller may is said before whether its arguments are right.
pub(super) fn read(envelope: &Value, caller: &Caller) -> Result<Command, WireError> {
    let fields =
        envelope.as_object().ok_or_else(|| WireError::invalid_command("a command is an object with op and args"))?;
    if let Some(unknown) = fields.keys().find(|name| !["op", "args"].contains(&name.as_str())) {
        let message = format!("{:?} is no field of a command: op and args are", shortened(unknown));
        return Err(WireError::invalid_command(message));
    }
    let op = fields.get("op").and_then(Value::as_str);
    let op = op.ok_or_else(|| WireError::invalid_command("op is missing or not a text"))?;
    let none = Map::new();
    let args = match fields.get("args") {
        None | Some(Value::Null) => &none,
        Some(Value::Object(args)) => args,
        Some(_) => return Err(WireError::invalid_command(format!("args of {:?} must be an object", shortened(op)))),
    };
    if op == HELP {
        let allowed: Vec<Value> =
            OPERATIONS.iter().filter(|operation| operation.is_for(caller)).map(Operation::to_json).collect();
        return Ok(Command { name: HELP, ask: Ask::Answer(json!({ "commands": allowed })) });
    }
    let found = OPERATIONS.iter().find(|operation| operation.name == op);
    let operation = found.ok_or_else(|| {
        let allowed = OPERATIONS.iter().filter(|operation| operation.is_for(caller)).map(|operation| operation.name);
        WireError::unknown_command(op, &std::iter::once(HELP).chain(allowed).collect::<Vec<_>>())
    })?;
    if !operation.is_for(caller) {
        return Err(WireError::permission_denied(format!("{} may not ask for {}", caller.principal, operation.name)));
    }
    operation.check(args)?;
    let ask = match operation.way {
        Way::Method(method) => Ask::Method(method, Value::Object(args.clone())),
        Way::Route(verb, path) => Ask::Route(Box::new(request(operation, verb, path, args)?)),
    };
    Ok(Command { name: operation.name, ask })
}

/// The request of the operator API that a command stands for.
fn request(
    operation: &Operation,
    verb: &str,
    route: &str,
    args: &Map<String, Value>,
) -> Result<Request<Body>, WireError> {
    let mut path = route.to_owned();
    let mut query = form_urlencoded::Serializer::new(String::new());
    let mut body = Map::new();
    for argument in operation.arguments {
        let Some(value) = args.get(argument.name) else { continue };
        match argument.place {
            Place::Path => {
                let text = plain(value);
                if text.is_empty() || text == "." || text == ".." {
                    let message = format!("{}: argument {} names nothing", operation.name, argument.name);
                    return Err(WireError::invalid_command(message));
                }
                path = path.replace(&format!("{{{}}}", argument.name), &segment(&text));
            }
            Place::Query => {
                query.append_pair(argument.name, &plain(value));
            }
            Place::Body => {
                body.insert(argument.name.to_owned(), value.clone());
            }
        }
    }
    let query = query.finish();
    let uri = if query.is_empty() { path } else { format!("{path}?{query}") };
    if uri.len() > MAX_URI_BYTES {
        let what = format!("its arguments are too long: {} bytes as a path, {MAX_URI_BYTES} are allowed", uri.len());
        return Err(WireError::invalid_command(format!("{}: {what}", operation.name)));
    }
    let request = Request::builder().method(verb).uri(uri);
    let request = match verb {
        "POST" => {
            request.header(header::CONTENT_TYPE, "application/json").body(Body::from(Value::Object(body).to_string()))
        }
        _ => request.body(Body::empty()),
    };
    request.map_err(WireError::internal)
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(","),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

/// One part of a path: what could mean anything else in one is escaped.
fn segment(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.@:".contains(byte);
    let escaped =
        text.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") });
    escaped.collect()
}

/// Asks the operator API, as this caller.
pub(super) async fn ask_api(
    api: &Router,
    caller: &Caller,
    name: &'static str,
    mut request: Request<Body>,
) -> Result<Value, WireError> {
    request.extensions_mut().insert(caller.clone());
    let answer = api.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
    let status = answer.status();
    let retry_after = answer.headers().get(header::RETRY_AFTER).and_then(|wait| wait.to_str().ok()?.parse().ok());
    let body = read_answer(name, answer).await?;
    let value: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    if status.is_success() {
        return Ok(value);
    }
    let said = |field: &str| value.pointer(&format!("/error/{field}")).and_then(Value::as_str);
    let plain = String::from_utf8_lossy(&body);
    let (code, message) = (said("code").unwrap_or("refused"), said("message").unwrap_or_else(|| plain.trim()));
    Err(match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => WireError::permission_denied(format!("{name}: {message}")),
        StatusCode::NOT_FOUND => WireError::nothing_to_command(name, message),
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => {
            WireError::invalid_command(format!("{name}: {message}"))
        }
        StatusCode::GONE => {
            let number = |field: &str| value["error"][field].as_u64().unwrap_or_default();
            WireError::events_gone(message, number("oldest"), number("last"))
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            let wait = std::time::Duration::from_secs(retry_after.unwrap_or(1));
            WireError::unavailable(format!("{name}: {message}")).retry_after(wait)
        }
        status if status.is_server_error() && status != StatusCode::BAD_GATEWAY => {
            WireError::internal(format!("{name}: {message}"))
        }
        _ => WireError::command_refused(name, code, message),
    })
}

async fn read_answer(name: &'static str, answer: Response) -> Result<Vec<u8>, WireError> {
    let mut pieces = answer.into_body().into_data_stream();
    let mut read = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(WireError::internal)?;
        if read.len() + piece.len() > MAX_ANSWER_BYTES {
            let limit = MAX_ANSWER_BYTES / (1024 * 1024);
            let message = format!("its answer is above {limit} MiB: ask the operator API for it");
            return Err(WireError::command_refused(name, "too_large", &message));
        }
        read.extend_from_slice(&piece);
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use towline_core::{Principal, PrincipalRole};

    use super::*;
    use crate::auth::{self, Permits, Standing};

    fn caller(role: PrincipalRole) -> Caller {
        let principal = Principal::Named { id: "user:ada".parse().unwrap(), role };
        Caller::new(
            principal,
            Standing { permits: Permits::of(role, &[]), ..Standing::unlimited(crate::auth::KnownBy::Bearer) },
        )
    }

    fn refused(envelope: Value, role: PrincipalRole) -> WireError {
        read(&envelope, &caller(role)).unwrap_err()
    }

    #[test]
    fn every_command_is_a_way_of_the_table_of_operations_and_every_way_a_command_or_none_on_purpose() {
        let names: Vec<&str> = OPERATIONS.iter().map(|operation| operation.name).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
        let ways: Vec<&Way> = auth::OPERATIONS.iter().flat_map(|operation| operation.ways).collect();
        for operation in &OPERATIONS {
            assert!(ways.contains(&&operation.way), "{}", operation.name);
            for argument in operation.arguments {
                let is_in_path =
                    matches!(operation.way, Way::Route(_, path) if path.contains(&format!("{{{}}}", argument.name)));
                assert_eq!(argument.place == Place::Path, is_in_path, "{} {}", operation.name, argument.name);
            }
        }
        for way in ways {
            let Way::Route(verb, path) = way else { continue };
            // Bytes, which no message holds, another protocol, codes between a browser and the command line, and what is of one node alone.
            let is_none = path.starts_with("/blobs")
                || *path == "/api/v1/cluster/snapshot"
                || *path == "/metrics"
                || path.starts_with("/api/v1/log/")
                || *path == "/api/v1/bug-report"
                || path.starts_with("/mcp")
                || path.starts_with("/a2e")
                || path.contains("/login");
            let is_command = OPERATIONS.iter().any(|operation| operation.way == *way);
            assert_ne!(is_none, is_command, "{verb} {path}: it needs a line in this table");
        }
    }

    #[test]
    fn what_is_no_command_is_told_what_there_is() {
        let unknown = refused(json!({ "op": "cluster.dance" }), PrincipalRole::User);
        assert_eq!(unknown.reason, "UNKNOWN_COMMAND");
        assert!(unknown.message.contains("cluster.dance") && unknown.message.contains("task.list"), "{unknown}");
        assert!(!unknown.message.contains("cluster.drain"), "nothing that this caller may not: {unknown}");
        for (wrong, says) in [
            (json!("cluster.status"), "an object with op and args"),
            (json!({ "args": {} }), "op is missing"),
            (json!({ "op": "task.get", "args": [1] }), "must be an object"),
            (json!({ "op": "task.get", "id": "x" }), "no field of a command"),
            (json!({ "op": "task.get" }), "argument id is missing; it takes id, historyLength"),
            (json!({ "op": "task.get", "args": { "id": 3 } }), "argument id must be a text"),
            (json!({ "op": "task.get", "args": { "id": "x", "force": true } }), "argument \"force\" is not known"),
            (json!({ "op": "cluster.drain", "args": { "node": -1, "timeout_ms": 0 } }), "must be a whole number"),
            (json!({ "op": "peer.remove", "args": { "name": ".." } }), "names nothing"),
        ] {
            let error = refused(wrong.clone(), PrincipalRole::Operator);
            assert!(error.reason == "INVALID_COMMAND" && error.message.contains(says), "{wrong}: {error}");
        }
    }

    #[test]
    fn an_argument_that_is_too_long_for_a_path_is_the_mistake_of_who_asks() {
        let removed = |length: usize| {
            read(
                &json!({ "op": "peer.remove", "args": { "name": "x".repeat(length) } }),
                &caller(PrincipalRole::Operator),
            )
        };
        let most = MAX_URI_BYTES - "/api/v1/peers/".len();
        assert!(removed(most).is_ok());
        for length in [most + 1, 200_000] {
            let error = removed(length).unwrap_err();
            assert!(error.reason == "INVALID_COMMAND" && error.message.contains("too long"), "{error}");
        }
    }

    #[test]
    fn who_may_not_is_told_so_before_the_arguments_are_looked_at() {
        let error = refused(json!({ "op": "cluster.drain", "args": "nonsense of an object" }), PrincipalRole::Operator);
        assert_eq!(error.reason, "INVALID_COMMAND");
        let error = refused(json!({ "op": "cluster.drain", "args": { "x": 1 } }), PrincipalRole::User);
        assert_eq!(error.reason, "PERMISSION_DENIED");
    }

    #[test]
    fn an_argument_stays_where_it_belongs() {
        let asked = |envelope: Value| {
            let asked = read(&envelope, &caller(PrincipalRole::Operator)).unwrap().ask;
            let Ask::Route(request) = asked else { panic!("{asked:?}") };
            (request.method().to_string(), request.uri().to_string())
        };
        let cases = [
            (
                json!({ "op": "task.inspect", "args": { "id": "../cluster?x#y/%2e" } }),
                "GET",
                "/api/v1/tasks/..%2Fcluster%3Fx%23y%2F%252e",
            ),
            (json!({ "op": "cluster.undrain", "args": { "node": 7 } }), "POST", "/api/v1/cluster/nodes/7/undrain"),
            (
                json!({ "op": "events.read", "args": { "after": 5, "kinds": ["task", "node.up&x=1"] } }),
                "GET",
                "/api/v1/events?after=5&kinds=task%2Cnode.up%26x%3D1",
            ),
        ];
        for (envelope, verb, uri) in cases {
            assert_eq!(asked(envelope), (verb.to_owned(), uri.to_owned()));
        }
    }

    #[test]
    fn the_help_names_what_its_reader_may_ask() {
        let Ask::Answer(help) = read(&json!({ "op": HELP }), &caller(PrincipalRole::Agent)).unwrap().ask else {
            panic!("an answer")
        };
        let names: Vec<&str> =
            help["commands"].as_array().unwrap().iter().map(|one| one["op"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            ["auth.whoami", "events.read", "push.list", "task.cancel", "task.get", "task.list", "task.trace"]
        );
    }
}

//! Resources: the cards of agents, and the tasks of the caller.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{body::Bytes, response::Response};
use futures::stream;
use serde_json::{Value, json};
use towline_actors::{
    mcp_connection::plain_line,
    triggers::contents::{NOTHING, NotWatched},
};

use super::{
    Ask, McpServer,
    dispatch::Answered,
    gateway, http,
    message::{self, Request, RpcError, code},
    revision::Era,
    session::MAX_SUBSCRIPTIONS,
    sse,
    watch::{Watched, Watching},
};
use crate::{a2a, auth::StreamPlace};

/// Resources on one page.
const PAGE: usize = 50;

/// How long a subscription waits for the first look at a resource of another server: what changes from there on is told.
const FIRST_READ: Duration = Duration::from_secs(5);

/// How much of the description of an agent is shown, in characters.
const MAX_DESCRIPTION: usize = 4_096;

/// How a cursor of the list begins, by what comes next.
const AGENTS: &str = "a";
const TASKS: &str = "t";
const OTHERS: &str = "o";

/// The list: agents by name, then tasks, the one that changed last first, then what other servers have.
pub(super) async fn list(ask: &Ask, request: &Request) -> Result<Value, RpcError> {
    let wrong = || RpcError::invalid_params("cursor is none that resources/list gave out");
    let cursor = match request.params.get("cursor") {
        None | Some(Value::Null) => None,
        Some(cursor) => Some(cursor.as_str().and_then(|cursor| cursor.split_at_checked(1)).ok_or_else(wrong)?),
    };
    match cursor {
        None => Ok(agents(ask, None)),
        Some((AGENTS, after)) => Ok(agents(ask, Some(after))),
        Some((TASKS, page)) => tasks(ask, page).await,
        Some((OTHERS, from)) => others(ask, from.parse().map_err(|_| wrong())?).await,
        Some(_) => Err(wrong()),
    }
}

fn agents(ask: &Ask, after: Option<&str>) -> Value {
    let mut found: Vec<(String, Value)> = ask.server.a2a.cluster.local(|state| {
        let later = state.agents().filter(|agent| after.is_none_or(|after| agent.spec.name.as_str() > after));
        let shown = later.take(PAGE + 1).map(|agent| {
            let name = agent.spec.name.to_string();
            let resource = json!({
                "description": described(&agent.spec.description),
                "mimeType": "application/json",
                "name": format!("agent {name}"),
                "title": format!("Card of {name}"),
                "uri": Watched::Agent(agent.spec.name.clone()).uri(),
            });
            (name, resource)
        });
        shown.collect()
    });
    let more = found.len() > PAGE;
    found.truncate(PAGE);
    let next = if more { found.last().map(|(name, _)| format!("{AGENTS}{name}")) } else { Some(TASKS.to_owned()) };
    let resources: Vec<Value> = found.into_iter().map(|(_, resource)| resource).collect();
    with_next(json!({ "resources": resources }), next)
}

/// What an agent says of itself, harmless to look at: a peer that joined is not of this mesh.
pub(super) fn described(description: &str) -> String {
    plain_line(description, MAX_DESCRIPTION)
}

async fn tasks(ask: &Ask, page_token: &str) -> Result<Value, RpcError> {
    let mut params = json!({ "historyLength": 0, "includeArtifacts": false, "pageSize": PAGE });
    if !page_token.is_empty() {
        params["pageToken"] = page_token.into();
    }
    let page = ask.a2a(::a2a::methods::LIST_TASKS, None, params).await.map_err(RpcError::invalid_params)?;
    let shown = |task: &Value| {
        let text = |pointer: &str| task.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (id, agent) = (text("/id"), text("/metadata/dev.towline~1agent"));
        json!({
            "annotations": { "lastModified": text("/status/timestamp") },
            "description": format!("{} by {agent}", text("/status/state")),
            "mimeType": "application/json",
            "name": format!("task {id}"),
            "title": format!("Task {id}"),
            "uri": format!("towline://tasks/{id}"),
        })
    };
    let resources: Vec<Value> = page["tasks"].as_array().into_iter().flatten().map(shown).collect();
    let next = page["nextPageToken"].as_str().filter(|next| !next.is_empty()).map(|next| format!("{TASKS}{next}"));
    let others = || gateway::is_for(&ask.server, &ask.caller.principal).then(|| format!("{OTHERS}0"));
    Ok(with_next(json!({ "resources": resources }), next.or_else(others)))
}

/// The resources of other servers, from a place on.
async fn others(ask: &Ask, from: usize) -> Result<Value, RpcError> {
    let all = gateway::listed(ask, gateway::Listed::Resources).await;
    let page: Vec<Value> = all.iter().skip(from).take(PAGE).cloned().collect();
    let next = from.saturating_add(PAGE);
    Ok(with_next(json!({ "resources": page }), (next < all.len()).then(|| format!("{OTHERS}{next}"))))
}

fn with_next(mut result: Value, next: Option<String>) -> Value {
    if let Some(next) = next {
        result["nextCursor"] = next.into();
    }
    result
}

pub(super) async fn templates(ask: &Ask) -> Value {
    let template = |name: &str, of: &str, what: &str| {
        json!({
            "description": what,
            "mimeType": "application/json",
            "name": name,
            "uriTemplate": format!("towline://{of}"),
        })
    };
    let mut templates = vec![
        template("task", "tasks/{task_id}", "One of your tasks, as A2A shows it."),
        template("agent", "agents/{name}", "The A2A card of an agent."),
    ];
    templates.extend(gateway::listed(ask, gateway::Listed::Templates).await);
    json!({ "resourceTemplates": templates })
}

/// A resource that the caller sees, and its version.
pub(super) async fn watched(ask: &Ask, uri: &str) -> Result<(Watched, u64), RpcError> {
    let absent = || not_found(ask.speaker.era, uri);
    let watched = Watched::of(uri);
    if watched.is_elsewhere() {
        return Ok((watched, version_elsewhere(ask, uri).await?));
    }
    // What was made at another node a moment ago has to be seen here.
    let look = |state: &towline_core::State| watched.version(state, &ask.caller.principal);
    let version = ask.server.a2a.cluster.read(look).await;
    let version = version.map_err(|error| RpcError::new(code::UNAVAILABLE, error.reason))?;
    Ok((watched.clone(), version.ok_or_else(absent)?))
}

/// The version of a resource of another server.
async fn version_elsewhere(ask: &Ask, uri: &str) -> Result<u64, RpcError> {
    let full = |error: NotWatched| RpcError::new(code::UNAVAILABLE, error.to_string());
    let content = gateway::content(&ask.server, &ask.caller.principal, uri).await.map_err(full)?;
    let mut content = content.ok_or_else(|| not_found(ask.speaker.era, uri))?;
    match tokio::time::timeout(FIRST_READ, content.read()).await.ok().flatten() {
        Some(NOTHING) => Err(not_found(ask.speaker.era, uri)),
        Some(version) => Ok(version),
        None => Err(RpcError::new(
            code::UNAVAILABLE,
            "the server of this resource does not answer at the moment: try again",
        )),
    }
}

pub(super) async fn read(ask: &Ask, request: &Request) -> Result<Answered, RpcError> {
    let uri = request.text("uri")?;
    if Watched::of(uri).is_elsewhere() {
        return read_of_another(ask, request, uri).await;
    }
    let (watched, _) = watched(ask, uri).await?;
    let content = match &watched {
        Watched::Task(task) => ask
            .a2a(::a2a::methods::GET_TASK, None, json!({ "id": task.to_string() }))
            .await
            .map_err(|why| RpcError::new(code::INTERNAL, why))?,
        Watched::Agent(agent) => {
            a2a::card_of(&ask.server.a2a, agent.as_str())?.ok_or_else(|| not_found(ask.speaker.era, uri))?
        }
        Watched::Elsewhere(_) => return Err(not_found(ask.speaker.era, uri)),
    };
    let content = json!({ "mimeType": "application/json", "text": content.to_string(), "uri": uri });
    Ok(Answered::Value(json!({ "contents": [content] })))
}

/// Reads a resource of another server.
async fn read_of_another(ask: &Ask, request: &Request, uri: &str) -> Result<Answered, RpcError> {
    let absent = || not_found(ask.speaker.era, uri);
    let found = gateway::find_resource(&ask.server, &ask.caller.principal, uri).await.ok_or_else(absent)?;
    let mut params = request.params.clone();
    params.insert("uri".to_owned(), found.name.clone().into());
    let read = gateway::passed(ask, request, "resources/read", &found, params).await;
    read.map_err(|error| match error.code {
        // The server says so in the words of its own revision.
        code::RESOURCE_NOT_FOUND | code::INVALID_PARAMS => absent(),
        _ => error,
    })
}

fn not_found(era: Era, uri: &str) -> RpcError {
    let code = match era {
        Era::Sessions => code::RESOURCE_NOT_FOUND,
        Era::Stateless => code::INVALID_PARAMS,
    };
    RpcError::new(code, "resource not found").with(json!({ "uri": uri }))
}

/// Opens the stream of a client without a session: it says what it honours of what was asked for, then what changes.
pub(super) async fn listen(ask: &Ask, request: &Request, place: StreamPlace) -> Result<Response, RpcError> {
    let wrong = || RpcError::invalid_params("notifications is missing or no object");
    let wanted = request.params.get("notifications").and_then(Value::as_object).ok_or_else(wrong)?;
    let uris: Vec<&str> = match wanted.get("resourceSubscriptions") {
        None | Some(Value::Null) => Vec::new(),
        Some(uris) => {
            let wrong = || RpcError::invalid_params("notifications.resourceSubscriptions must be a list of URIs");
            let uris = uris.as_array().ok_or_else(wrong)?;
            uris.iter().map(|uri| uri.as_str().ok_or_else(wrong)).collect::<Result<_, _>>()?
        }
    };
    if uris.len() > MAX_SUBSCRIPTIONS {
        let message = format!("a stream tells of {MAX_SUBSCRIPTIONS} resources at most: listen to fewer");
        return Err(RpcError::invalid_params(message));
    }
    // One that is not there is told of once it is, as far as this reader is concerned.
    let wanted: BTreeMap<Watched, Option<u64>> = uris.iter().map(|uri| (Watched::of(uri), None)).collect();
    let mut watching = Watching::new(Arc::clone(&ask.server), ask.caller.principal.clone());
    watching.set(&wanted);
    watching.begin(FIRST_READ).await;
    let known: Vec<String> = watching.all().map(Watched::uri).collect();
    let mut honoured = json!({});
    if !known.is_empty() {
        honoured["resourceSubscriptions"] = known.into();
    }
    let params = json!({
        "_meta": { "io.modelcontextprotocol/subscriptionId": request.id },
        "notifications": honoured,
    });
    let acknowledged = message::notification("notifications/subscriptions/acknowledged", params);
    let server = Arc::clone(&ask.server);
    let id = request.id.clone();
    let listening = Listening { server, watching, id, first: Some(acknowledged), is_over: false, _place: place };
    Ok(sse::response(stream::unfold(listening, |mut listening| async move {
        let frame = listening.next().await?;
        Some((frame, listening))
    })))
}

/// A stream of `subscriptions/listen`.
struct Listening {
    server: Arc<McpServer>,
    watching: Watching,
    /// Of the request, and so of the stream.
    id: Value,
    first: Option<Value>,
    is_over: bool,
    _place: StreamPlace,
}

impl Listening {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(sse::frame(None, &first));
        }
        if self.is_over {
            return None;
        }
        tokio::select! {
            () = self.server.a2a.stopping.cancelled() => {
                // An end that is meant is a result; anything else is a loss.
                self.is_over = true;
                let meta = json!({ "io.modelcontextprotocol/subscriptionId": self.id });
                let result = json!({ "_meta": meta, "resultType": "complete" });
                Some(sse::frame(None, &message::result(self.id.clone(), result)))
            }
            changed = self.watching.changed() => {
                let told = changed.iter().flat_map(|watched| {
                    sse::frame(None, &http::updated(&watched.uri(), Some(&self.id)))
                });
                Some(told.collect())
            }
            () = tokio::time::sleep(sse::KEEP_ALIVE) => Some(sse::beat()),
        }
    }
}

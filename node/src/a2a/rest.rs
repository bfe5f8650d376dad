//! The HTTP+JSON binding (spec 11): the verb, the path and the query say what is asked; what JSON-RPC and gRPC have a tenant
//! for may also be the first part of the path.

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    response::{IntoResponse, Response},
    routing::any,
};
use http::{Method, Request, StatusCode, header, request::Parts};
use serde_json::{Map, Value};
use towline_a2a::{Field, WireError, convert, shortened};

use super::{
    Asking, Exchanged, Shared,
    call::{Binding, Call, check_content_type, check_last_event_id, check_version, decode, read_body},
    exchange,
    handler::Outcome,
    principal::{self, Caller},
};

/// What answers are declared as.
const CONTENT_TYPE: &str = "application/a2a+json";

/// The routes of the mesh and of each agent.
pub(super) fn router() -> Router<Shared> {
    Router::new().route("/rest/{*operation}", any(at_root)).route("/agents/{agent}/rest/{*operation}", any(at_agent))
}

async fn at_root(State(shared): State<Shared>, Path(operation): Path<String>, request: Request<Body>) -> Response {
    answer(&shared, None, &operation, request).await
}

async fn at_agent(
    State(shared): State<Shared>,
    Path((agent, operation)): Path<(String, String)>,
    request: Request<Body>,
) -> Response {
    answer(&shared, Some(agent), &operation, request).await
}

async fn answer(shared: &Shared, agent: Option<String>, operation: &str, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let caller = match principal::caller(&parts, shared) {
        Ok(caller) => caller,
        Err(refused) => return refused.into_response(),
    };
    let received = receive(&parts, operation, &caller, body).await;
    let base = if agent.is_some() { "/agents/{agent}/rest" } else { "/rest" };
    let name = received.as_ref().map_or("{operation}", |(template, _)| template);
    let route = format!("{base}/{name}");
    let asking = Asking { parts: &parts, agent: agent.as_deref(), route, binding: Binding::HttpJson };
    let Exchanged { result, mut span, marks } = exchange(shared, asking, caller, received.map(|(_, call)| call)).await;
    let mut response = match result {
        Ok(Outcome::Answer(result)) => json_response(StatusCode::OK, &result),
        Ok(Outcome::Stream(stream)) => stream.into_response(),
        Err(error) => refusal(&error),
    };
    marks.put(response.headers_mut());
    span.set(towline_trace::names::HTTP_RESPONSE_STATUS_CODE, i64::from(response.status().as_u16()));
    response
}

fn refusal(error: &WireError) -> Response {
    let mut response = json_response(error.http_status(), &error.to_http_json());
    if let Some(seconds) = error.retry_after_seconds() {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, CONTENT_TYPE)], body.to_string()).into_response()
}

/// An operation as its path names it.
#[derive(Debug, Clone, PartialEq)]
struct Operation<'a> {
    /// Its path, with names where values stand.
    template: &'static str,
    method: &'static str,
    /// Parameters that the path holds.
    path: Vec<(&'static str, &'a str)>,
    parameters: Parameters,
}

/// Where the other parameters of an operation are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parameters {
    Query,
    Body,
    BodyOrNothing,
}

/// Reads one request: the template of its path, and what it asks. The head is judged before the body.
async fn receive(parts: &Parts, path: &str, caller: &Caller, body: Body) -> Result<(&'static str, Call), WireError> {
    let operation = operation(&parts.method, path)?;
    caller.check_method(operation.method)?;
    check_version(&parts.headers, &parts.uri)?;
    check_last_event_id(&parts.headers)?;
    let mut params = match operation.parameters {
        Parameters::Query => query(parts.uri.query().unwrap_or_default())?,
        Parameters::Body => {
            check_content_type(&parts.headers)?;
            let body = read_body(&parts.headers, body).await?;
            decode(body.len(), || object(&body)).await?
        }
        Parameters::BodyOrNothing => {
            let body = read_body(&parts.headers, body).await?;
            if body.is_empty() {
                Map::new()
            } else {
                check_content_type(&parts.headers)?;
                decode(body.len(), || object(&body)).await?
            }
        }
    };
    for (name, value) in operation.path {
        params.insert(name.to_owned(), value.into());
    }
    Ok((operation.template, Call { method: operation.method.to_owned(), params: Value::Object(params) }))
}

/// What a verb and a path ask for. A first part that begins no operation is a tenant.
fn operation<'a>(verb: &Method, path: &'a str) -> Result<Operation<'a>, WireError> {
    let segments: Vec<&str> = path.trim_end_matches('/').split('/').collect();
    let (tenant, rest) = match segments.as_slice() {
        ["message:send" | "message:stream" | "tasks" | "extendedAgentCard", ..] => (None, &segments[..]),
        [tenant, rest @ ..] => (Some(*tenant), rest),
        [] => (None, &segments[..]),
    };
    let mut found = without_tenant(verb, rest).ok_or_else(|| {
        let message = format!("{verb} {:?} is not an operation of HTTP+JSON", shortened(path));
        WireError::unknown_operation(message)
    })?;
    found.path.extend(tenant.map(|tenant| ("tenant", tenant)));
    Ok(found)
}

fn without_tenant<'a>(verb: &Method, segments: &[&'a str]) -> Option<Operation<'a>> {
    use Parameters::{Body, BodyOrNothing, Query};
    use a2a::methods;
    let operation = |template, method, path, parameters| Some(Operation { template, method, path, parameters });
    let (get, post, delete) = (*verb == Method::GET, *verb == Method::POST, *verb == Method::DELETE);
    match *segments {
        ["message:send"] if post => operation("message:send", methods::SEND_MESSAGE, vec![], Body),
        ["message:stream"] if post => operation("message:stream", methods::SEND_STREAMING_MESSAGE, vec![], Body),
        ["tasks"] if get => operation("tasks", methods::LIST_TASKS, vec![], Query),
        ["tasks", last] => match last.rsplit_once(':') {
            Some((id, "cancel")) if post => {
                operation("tasks/{id}:cancel", methods::CANCEL_TASK, vec![("id", id)], BodyOrNothing)
            }
            // The text of the specification has POST, its protobuf GET.
            Some((id, "subscribe")) if get || post => {
                let parameters = if get { Query } else { BodyOrNothing };
                operation("tasks/{id}:subscribe", methods::SUBSCRIBE_TO_TASK, vec![("id", id)], parameters)
            }
            Some(_) | None if get => operation("tasks/{id}", methods::GET_TASK, vec![("id", last)], Query),
            Some(_) | None => None,
        },
        ["tasks", task, "pushNotificationConfigs"] => {
            let path = vec![("taskId", task)];
            match () {
                () if get => operation(PUSH_CONFIGS, methods::LIST_PUSH_CONFIGS, path, Query),
                () if post => operation(PUSH_CONFIGS, methods::CREATE_PUSH_CONFIG, path, Body),
                () => None,
            }
        }
        ["tasks", task, "pushNotificationConfigs", id] => {
            let path = vec![("taskId", task), ("id", id)];
            match () {
                () if get => operation(PUSH_CONFIG, methods::GET_PUSH_CONFIG, path, Query),
                () if delete => operation(PUSH_CONFIG, methods::DELETE_PUSH_CONFIG, path, Query),
                () => None,
            }
        }
        ["extendedAgentCard"] if get => operation("extendedAgentCard", methods::GET_EXTENDED_AGENT_CARD, vec![], Query),
        _ => None,
    }
}

const PUSH_CONFIGS: &str = "tasks/{id}/pushNotificationConfigs";
const PUSH_CONFIG: &str = "tasks/{id}/pushNotificationConfigs/{configId}";

fn object(body: &[u8]) -> Result<Map<String, Value>, WireError> {
    convert::check_json(body)?;
    match serde_json::from_slice(body).map_err(WireError::parse)? {
        Value::Object(fields) => Ok(fields),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(WireError::invalid_request("body is not a JSON object"))
        }
    }
}

/// The parameters in a query; those that are numbers or truth values become so, and ours that are about HTTP are left out.
fn query(text: &str) -> Result<Map<String, Value>, WireError> {
    let mut params = Map::new();
    for (name, value) in form_urlencoded::parse(text.as_bytes()) {
        let wrong = |problem: &str| Field::new(name.clone(), format!("{problem}, and is {:?}", shortened(&value)));
        let read = match &*name {
            "pageSize" | "page_size" | "historyLength" | "history_length" => {
                Value::from(value.parse::<i32>().map_err(|_| wrong("must be a whole number"))?)
            }
            "includeArtifacts" | "include_artifacts" => {
                Value::from(value.parse::<bool>().map_err(|_| wrong("must be true or false"))?)
            }
            "consistency" => continue,
            _ if name.eq_ignore_ascii_case("a2a-version") => continue,
            _ => Value::from(&*value),
        };
        params.insert(name.into_owned(), read);
    }
    Ok(params)
}

/// What a request asks: for fuzzing.
pub(crate) fn fuzz(path: &str, query_text: &str) {
    for verb in [Method::GET, Method::POST, Method::DELETE] {
        drop(operation(&verb, path));
    }
    drop(query(query_text));
}

#[cfg(test)]
mod tests;

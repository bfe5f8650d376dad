//! Messages that are no work for an agent: one part of data under a key of ours asks the node itself, for a command or for
//! the events of the cluster. They count only where their extension is activated; elsewhere they are refused, so that a
//! command never becomes a task by a forgotten header. Agents that delegate command nothing: at the peer door it is data.

use std::sync::Arc;

use serde_json::{Value, json};
use towline_a2a::{WireError, convert, shortened};
use towline_core::TraceContext;

use super::{
    A2aSettings, Binding, Door,
    call::Call,
    commands::{self, Ask},
    extensions::{COMMAND, Condition, EVENTS},
    handler::{self, Asked, Method, Outcome, place},
    stream::{Item, Streamed},
};
use crate::{
    api::MAX_EVENT_ENTRIES,
    feed::{self, FeedReader, FeedRefused, FeedRequest, Frame, Kinds},
};

/// The key of a command.
const COMMAND_KEY: &str = "dev.towline/command";

/// The key of what a command came to.
const RESULT_KEY: &str = "dev.towline/result";

/// The key of a question for events, and of the events.
const EVENTS_KEY: &str = "dev.towline/events";

/// The route that asks for events: who may ask for that may ask here.
const EVENTS_ROUTE: &str = "/api/v1/events";

/// What a message asks the node itself.
pub(super) enum Structured {
    /// A command, as it was sent.
    Command(Value),
    /// The events of the cluster.
    Events(FeedRequest),
}

/// What a message asks the node itself; none if it is for an agent.
pub(super) fn read(asked: &Asked<'_>) -> Result<Option<Structured>, WireError> {
    let message = &asked.call.params["message"];
    let parts = message["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = parts.iter().find_map(|part| {
        let data = part.get("data")?;
        let key = [COMMAND_KEY, EVENTS_KEY].into_iter().find(|key| holds(data, key))?;
        Some((key, data))
    });
    let Some((key, data)) = found.filter(|_| asked.door == Door::Public) else { return Ok(None) };
    match key {
        COMMAND_KEY if !asked.active.command => return Err(WireError::not_activated(key, COMMAND)),
        EVENTS_KEY if !asked.active.events => return Err(WireError::not_activated(key, EVENTS)),
        _ => {}
    }
    let is_alone = parts.len() == 1 && data.as_object().is_some_and(|fields| fields.len() == 1);
    if !is_alone {
        let message = format!("{key} stands alone: the message has this one part of data, and the data this one key");
        return Err(WireError::invalid_command(message));
    }
    // What is no message is refused as one.
    let request = convert::send_request(asked.call.params.clone())?;
    if request.task.is_some() {
        let message = format!("{key} is not for a task: send it without taskId, and name a task in what it asks");
        return Err(WireError::invalid_command(message));
    }
    let content = &data[key];
    Ok(Some(if key == COMMAND_KEY {
        Structured::Command(content.clone())
    } else {
        Structured::Events(events(content)?)
    }))
}

/// Whether data asks the node itself, be it as one of a list: that is refused, and never becomes a task.
fn holds(data: &Value, key: &str) -> bool {
    match data {
        Value::Object(fields) => fields.contains_key(key),
        Value::Array(items) => items.iter().any(|item| holds(item, key)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn events(content: &Value) -> Result<FeedRequest, WireError> {
    let wrong = |message: String| WireError::invalid_command(format!("{EVENTS_KEY}: {message}"));
    let fields = content.as_object().ok_or_else(|| wrong("must be an object with after and kinds".to_owned()))?;
    if let Some(unknown) = fields.keys().find(|name| !["after", "kinds"].contains(&name.as_str())) {
        return Err(wrong(format!("{:?} is not known: after and kinds are", shortened(unknown))));
    }
    let after = match fields.get("after") {
        None | Some(Value::Null) => None,
        // gRPC carries numbers as doubles.
        Some(value) => {
            let number = value.as_u64().or_else(|| whole(value.as_f64()?)).or_else(|| value.as_str()?.parse().ok());
            Some(number.ok_or_else(|| wrong("after must be a whole number: the index of an entry".to_owned()))?)
        }
    };
    let kinds = match fields.get("kinds") {
        None | Some(Value::Null) => Kinds::default(),
        Some(kinds) => {
            let names = kinds.as_array().and_then(|kinds| kinds.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
            let names = names.ok_or_else(|| wrong("kinds must be a list of texts".to_owned()))?;
            Kinds::read(names).map_err(wrong)?
        }
    };
    Ok(FeedRequest { after, kinds })
}

/// A number that a double holds exactly.
fn whole(number: f64) -> Option<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    ((0.0..=EXACT).contains(&number) && number.fract() == 0.0).then_some(number as u64)
}

/// Answers with a message, or with a stream of them.
pub(super) async fn perform(
    settings: &Arc<A2aSettings>,
    asked: &Asked<'_>,
    structured: Structured,
    method: Method,
    trace: &mut TraceContext,
) -> Result<Outcome, WireError> {
    let is_streamed = method == Method::SendStreamingMessage;
    let answer = match structured {
        Structured::Command(envelope) => command(settings, asked, &with_whole_numbers(envelope), trace).await?,
        Structured::Events(request) => {
            if !asked.caller.standing.permits.route(&http::Method::GET, EVENTS_ROUTE) {
                let message = format!("{} may not ask for the events", asked.caller.principal);
                return Err(WireError::permission_denied(message));
            }
            if is_streamed {
                return follow(settings, asked, request).await.map(|stream| Outcome::Stream(Streamed::Feed(stream)));
            }
            let by = &asked.caller.principal;
            let page = feed::page(&settings.cluster, by, request, MAX_EVENT_ENTRIES).await.map_err(refused)?;
            message(EVENTS, EVENTS_KEY, page.to_json())
        }
    };
    Ok(match is_streamed {
        true => Outcome::Stream(Streamed::Once(Some(answer), asked.binding.clone())),
        false => Outcome::Answer(answer),
    })
}

async fn command(
    settings: &Arc<A2aSettings>,
    asked: &Asked<'_>,
    envelope: &Value,
    trace: &mut TraceContext,
) -> Result<Value, WireError> {
    let command = commands::read(envelope, &asked.caller)?;
    let result = match command.ask {
        Ask::Answer(answer) => answer,
        Ask::Route(request) => commands::ask_api(&settings.api, &asked.caller, command.name, *request).await?,
        Ask::Method(method, params) => {
            let same = Asked {
                agent: None,
                caller: asked.caller.clone(),
                binding: Binding::HttpJson,
                call: Call { method: method.to_owned(), params },
                last_event_id: None,
                consistency: None,
                active: asked.active,
                door: asked.door,
                condition: Condition::default(),
                http: asked.http,
            };
            match handler::handle(settings, same, None, trace).await? {
                Outcome::Answer(answer) => answer,
                Outcome::Stream(_) => return Err(WireError::internal("a command was answered with a stream")),
            }
        }
    };
    Ok(message(COMMAND, RESULT_KEY, json!({ "op": command.name, "result": result })))
}

/// Numbers in data come over gRPC as doubles, and are meant as they were written.
pub(super) fn with_whole_numbers(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            number.as_f64().and_then(whole).map_or(Value::Number(number), Value::from)
        }
        Value::Array(items) => items.into_iter().map(with_whole_numbers).collect(),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (name, with_whole_numbers(value))).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

/// Data of the node's own, as what `SendMessage` answers with and a stream consists of.
fn message(extension: &str, key: &str, content: Value) -> Value {
    let part = json!({ "data": { key: content } });
    let id = uuid::Uuid::now_v7().to_string();
    json!({ "message": { "extensions": [extension], "messageId": id, "parts": [part], "role": "ROLE_AGENT" } })
}

fn refused(refused: FeedRefused) -> WireError {
    match refused {
        FeedRefused::Gone(gone) => WireError::events_gone(gone, gone.oldest, gone.applied),
        FeedRefused::Ahead { .. } => WireError::invalid_command(format!("{EVENTS_KEY}: {refused}")),
        FeedRefused::Unavailable(error) => handler::unavailable(error),
    }
}

async fn follow(
    settings: &Arc<A2aSettings>,
    asked: &Asked<'_>,
    mut request: FeedRequest,
) -> Result<Box<FeedStream>, WireError> {
    request.after = asked.last_event_id.or(request.after);
    let (by, place) = (asked.caller.principal.clone(), place(settings, asked)?);
    let stopping = settings.stopping.clone();
    let reader =
        FeedReader::open(settings.cluster.clone(), by, request, stopping, Some(place)).await.map_err(refused)?;
    Ok(Box::new(FeedStream { reader, binding: asked.binding.clone() }))
}

/// The events of the cluster as a stream of A2A.
pub(super) struct FeedStream {
    reader: FeedReader,
    binding: Binding,
}

impl FeedStream {
    /// What it says next; none at the end.
    pub(super) async fn next(&mut self) -> Option<Item> {
        let Frame { index, value } = self.reader.next().await?;
        let event = message(EVENTS, EVENTS_KEY, value);
        Some(match index {
            Some(index) => Item::Event(index, event),
            None => Item::Unnumbered(event),
        })
    }

    pub(super) fn binding(&self) -> &Binding {
        &self.binding
    }
}

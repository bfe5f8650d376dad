//! What this node speaks beyond A2A 1.0: extensions that the cards declare and that a client activates per request with
//! the header `A2A-Extensions`. Who names none is answered in plain A2A.
//!
//! Their URIs carry no version: what changes in a way that a client would notice gets another name.
//!
//! | extension | what a client gets |
//! |---|---|
//! | [`GENERATION`] | `GetTask` waits until something happens; a message or a cancel only if nothing has happened |
//! | [`ANNOTATIONS`] | in the metadata of a task: who runs it, how often it was begun, its trace, its cost, its links |
//! | [`COMMAND`] | a message with a command as data: what the operator API can be asked, over A2A |
//! | [`EVENTS`] | a message with a place in the log as data: what happened in the cluster behind it, and what follows |

use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};
use serde_json::{Value, json};
use towline_a2a::{Field, WireError};
use towline_core::{Happening, TraceContext};

use super::{call::Call, commands, principal::Caller};

/// The event index of a task as a condition: `Task.generation` of A2A 1.1, before it is there.
pub(super) const GENERATION: &str = "https://towline.dev/a2a/extensions/generation";

/// Where a task stands inside the mesh.
pub(super) const ANNOTATIONS: &str = "https://towline.dev/a2a/extensions/annotations";

/// What else the node can be asked, as data in a message.
pub(super) const COMMAND: &str = "https://towline.dev/a2a/extensions/command";

/// The events of the cluster, from a place in its log on.
pub(super) const EVENTS: &str = "https://towline.dev/a2a/extensions/events";

/// The header that names extensions, in a request and in its answer.
const EXTENSIONS: &str = "a2a-extensions";

/// Index of the last event that a client knows, where a binding has no field for it: `GetTask` answers once there is a later one.
const CURRENT_GENERATION: &str = "towline-current-generation";

/// Index that the last event must have for a message or a cancel to be taken.
const IF_GENERATION_MATCH: &str = "towline-if-generation-match";

/// How long `GetTask` waits for an event unless the client says.
const USUAL_WAIT: Duration = Duration::from_secs(30);

/// Longest wait for an event: proxies end requests that take longer.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The extensions that a request activates, of those that there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Active {
    pub generation: bool,
    pub annotations: bool,
    pub command: bool,
    pub events: bool,
}

impl Active {
    /// What a client names; what is not known here is passed over, since none is required.
    pub(super) fn named_in(headers: &HeaderMap) -> Self {
        let values = headers.get_all(EXTENSIONS).iter().filter_map(|value| value.to_str().ok());
        let mut active = Self::default();
        for uri in values.flat_map(|value| value.split(',')).map(str::trim) {
            active.generation |= uri == GENERATION;
            active.annotations |= uri == ANNOTATIONS;
            active.command |= uri == COMMAND;
            active.events |= uri == EVENTS;
        }
        active
    }

    /// What counts at the peer door: agents speak there, and command nothing.
    pub(super) fn of_agents(self) -> Self {
        Self { command: false, events: false, ..self }
    }

    fn header(self) -> Option<HeaderValue> {
        let named = [
            (self.generation, GENERATION),
            (self.annotations, ANNOTATIONS),
            (self.command, COMMAND),
            (self.events, EVENTS),
        ];
        let uris: Vec<&str> = named.into_iter().filter_map(|(active, uri)| active.then_some(uri)).collect();
        if uris.is_empty() { None } else { HeaderValue::from_str(&uris.join(", ")).ok() }
    }
}

/// What the head of an answer says beside the answer, on every binding.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marks {
    /// The span of the task, else that of the request.
    pub trace: TraceContext,
    /// What was activated.
    pub active: Active,
}

impl Marks {
    pub(super) fn put(self, headers: &mut HeaderMap) {
        if let Ok(trace) = HeaderValue::from_str(&self.trace.to_string()) {
            headers.insert("traceparent", trace);
        }
        if let Some(uris) = self.active.header() {
            headers.insert(EXTENSIONS, uris);
        }
    }
}

/// What a card says of the extensions, and of the mesh that it is of.
pub(super) fn declared(mesh_mark: &str) -> Value {
    let mut declared = spoken();
    if let Some(extensions) = declared.as_array_mut().filter(|_| !mesh_mark.is_empty()) {
        extensions.push(towline_a2a::mesh_extension(mesh_mark));
    }
    declared
}

fn spoken() -> Value {
    json!([
        {
            "uri": GENERATION,
            "description": "Every event of a task has an index, which is in its metadata as dev.towline/generation. GetTask with currentGeneration waits until there is a later one; SendMessage to a task (configuration.ifGenerationMatch) and CancelTask (ifGenerationMatch) are taken only at this one.",
        },
        {
            "uri": ANNOTATIONS,
            "description": "Tasks carry in their metadata, as dev.towline/annotations, where they run and how often they were begun, their trace, what they cost and what they are linked to.",
        },
        {
            "uri": COMMAND,
            "description": "SendMessage with one data part {\"dev.towline/command\": {\"op\": …, \"args\": {…}}} is a command: it makes no task and is answered with a message whose data is {\"dev.towline/result\": …}. The op \"commands\" tells which there are for the caller, and what they take.",
            "params": { "ops": command_names(|_| true) },
        },
        {
            "uri": EVENTS,
            "description": "SendStreamingMessage with one data part {\"dev.towline/events\": {\"after\": INDEX, \"kinds\": […]}} is answered with what happens in the cluster behind that place in its log (without it, from now on), in messages whose data is {\"dev.towline/events\": …}. Every node has the same events at the same index. SendMessage answers with one page.",
            "params": { "kinds": Happening::KINDS },
        },
    ])
}

fn command_names(is_for: impl Fn(&commands::Operation) -> bool) -> Vec<&'static str> {
    let named = commands::OPERATIONS.iter().filter(|operation| is_for(operation)).map(|operation| operation.name);
    std::iter::once(commands::HELP).chain(named).collect()
}

/// Has a card name what its reader may ask and hear, of what is declared.
pub(super) fn narrow(card: &mut Value, caller: &Caller) {
    let Some(declared) = card["capabilities"]["extensions"].as_array_mut() else { return };
    for extension in declared {
        if extension["uri"] == COMMAND {
            extension["params"]["ops"] = command_names(|operation| operation.is_for(caller)).into();
        } else if extension["uri"] == EVENTS && !caller.principal.is_operator() {
            let of_tasks = Happening::KINDS.into_iter().filter(|kind| kind.starts_with("task."));
            extension["params"]["kinds"] = of_tasks.collect::<Vec<_>>().into();
        }
    }
}

/// What a request says of generations, once the extension is activated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Condition {
    /// `GetTask` waits for an event behind this one.
    pub after: Option<u64>,
    /// How long it waits.
    pub patience: Duration,
    /// The last event of the task has to be this one.
    pub exactly: Option<u64>,
}

impl Condition {
    /// Reads the fields that the draft of A2A 1.1 has, else the headers that stand in for them where a binding drops
    /// what its protobuf does not know.
    pub(super) fn of(active: Active, call: &Call, headers: &HeaderMap) -> Result<Self, WireError> {
        if !active.generation {
            return Ok(Self::default());
        }
        let params = &call.params;
        let configuration = params.get("configuration").unwrap_or(&Value::Null);
        let after = first([params], ["currentGeneration", "current_generation"])?;
        let exactly = first([params, configuration], ["ifGenerationMatch", "if_generation_match"])?;
        Ok(Self {
            after: after.map_or_else(|| in_header(headers, CURRENT_GENERATION), |known| Ok(Some(known)))?,
            patience: patience(headers),
            exactly: exactly.map_or_else(|| in_header(headers, IF_GENERATION_MATCH), |known| Ok(Some(known)))?,
        })
    }
}

/// The first of these fields that is there.
fn first<const N: usize>(holders: [&Value; N], names: [&'static str; 2]) -> Result<Option<u64>, WireError> {
    let found = holders.into_iter().flat_map(|holder| names.map(|name| (name, holder.get(name))));
    let Some((name, value)) = found.into_iter().find_map(|(name, value)| Some((name, value?))) else { return Ok(None) };
    // ProtoJSON writes 64-bit numbers as text.
    let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
    number.map(Some).ok_or_else(|| Field::new(names[0], format!("must be a whole number ({name})")).into())
}

fn in_header(headers: &HeaderMap, name: &'static str) -> Result<Option<u64>, WireError> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number.map(Some).ok_or_else(|| Field::new(name, "must be a whole number").into())
}

/// `Prefer: wait=SECONDS` (RFC 7240).
fn patience(headers: &HeaderMap) -> Duration {
    let preferences = headers.get_all(header::HeaderName::from_static("prefer")).iter();
    let wait = preferences.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).find_map(|one| {
        let (name, seconds) = one.trim().split_once('=')?;
        if name.trim().eq_ignore_ascii_case("wait") { seconds.trim().parse().ok() } else { None }
    });
    wait.map_or(USUAL_WAIT, Duration::from_secs).min(MAX_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn call(params: Value) -> Call {
        Call { method: "GetTask".into(), params }
    }

    #[test]
    fn what_is_known_is_activated_and_the_rest_passed_over() {
        let active =
            Active::named_in(&headers(&[("a2a-extensions", "https://example.com/x, "), (EXTENSIONS, GENERATION)]));
        assert_eq!(active, Active { generation: true, ..Active::default() });
        assert_eq!(active.header().unwrap(), GENERATION);
        assert_eq!(Active::default().header(), None);
        let both = Active::named_in(&headers(&[(EXTENSIONS, &format!("{ANNOTATIONS},{GENERATION}"))]));
        assert_eq!(both.header().unwrap(), format!("{GENERATION}, {ANNOTATIONS}").as_str());
    }

    #[test]
    fn a_condition_is_a_field_in_either_spelling_or_a_header() {
        let active = Active { generation: true, ..Active::default() };
        let none = HeaderMap::new();
        for params in [json!({ "currentGeneration": 7 }), json!({ "current_generation": "7" })] {
            assert_eq!(Condition::of(active, &call(params), &none).unwrap().after, Some(7));
        }
        let sent = call(json!({ "configuration": { "ifGenerationMatch": "3" } }));
        assert_eq!(Condition::of(active, &sent, &none).unwrap().exactly, Some(3));
        let over =
            headers(&[(CURRENT_GENERATION, "5"), (IF_GENERATION_MATCH, "6"), ("prefer", "respond-async, wait=2")]);
        let read = Condition::of(active, &call(Value::Null), &over).unwrap();
        assert_eq!((read.after, read.exactly, read.patience), (Some(5), Some(6), Duration::from_secs(2)));

        let refused = Condition::of(active, &call(json!({ "currentGeneration": "soon" })), &none).unwrap_err();
        assert_eq!(refused.field.unwrap().field, "currentGeneration");
        assert_eq!(Condition::of(Active::default(), &sent, &over).unwrap(), Condition::default(), "not activated");
    }

    #[test]
    fn nobody_waits_longer_than_the_bound() {
        assert_eq!(patience(&headers(&[("prefer", "wait=86400")])), MAX_WAIT);
        assert_eq!(patience(&headers(&[("prefer", "wait=x")])), USUAL_WAIT);
    }
}

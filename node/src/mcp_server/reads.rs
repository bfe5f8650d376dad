//! The six reads. Each shows what the caller may see, as the A2A door does: what is another's looks as if it were not there.

use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use towline_a2a::convert::{self, state_name};
use towline_core::{AgentName, Event, EventKind, ListFilter, Task, TaskId, TaskState};

use super::{
    Ask, resources,
    surface::{object, open_object},
};
use crate::{
    a2a,
    commands::{STATES, state_word},
    recovered_spans,
};

/// Most tasks on a page.
const MAX_PAGE: u64 = 100;
const DEFAULT_PAGE: u64 = 20;

/// Most spans of one trace that are shown: more are of no use to a reader, and would not fit into an answer.
const MAX_SPANS: usize = 1_000;

/// Most events that one search finds, and most tasks that it looks through: the latest ones.
const MAX_FOUND: u64 = 100;
const DEFAULT_FOUND: u64 = 20;
const MAX_SEARCHED: usize = 500;
/// Tasks that are read at once for a search.
const SEARCH_PAGE: usize = 100;

/// Searches at the same time on a node: each reads some megabytes, perhaps from the disk.
static SEARCHING: Semaphore = Semaphore::const_new(4);

/// Longest text that is searched for.
const MAX_QUERY: usize = 256;

/// How much of the text of an event is shown around what was found, in characters.
const EXCERPT: usize = 400;

/// A read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    ListAgents,
    GetAgent,
    ListTasks,
    GetTask,
    GetTrace,
    SearchEvents,
}

impl Read {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Read; 6] =
        [Read::ListAgents, Read::GetAgent, Read::ListTasks, Read::GetTask, Read::GetTrace, Read::SearchEvents];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|read| read.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Read::ListAgents => "list_agents",
            Read::GetAgent => "get_agent",
            Read::ListTasks => "list_tasks",
            Read::GetTask => "get_task",
            Read::GetTrace => "get_trace",
            Read::SearchEvents => "search_events",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Read::ListAgents => "List agents",
            Read::GetAgent => "Get an agent",
            Read::ListTasks => "List tasks",
            Read::GetTask => "Get a task",
            Read::GetTrace => "Get the trace of a task",
            Read::SearchEvents => "Search events",
        }
    }

    pub fn description(self) -> &'static str {
        match self {
            Read::ListAgents => "Lists the agents of the mesh: what each does, and its URL.",
            Read::GetAgent => "Gives the A2A card of one agent.",
            Read::ListTasks => "Lists your tasks, the one that changed last first.",
            Read::GetTask => "Gives one of your tasks, with its messages and artifacts.",
            Read::GetTrace => "Gives the spans of one of your tasks and of what it delegated, by start.",
            Read::SearchEvents => {
                "Searches what was said and made in your latest tasks, the newest event first. Without a query it shows \
                 the latest events."
            }
        }
    }

    pub fn input(self) -> Value {
        let task = ("task_id", json!({ "type": "string", "description": "Id of the task." }));
        let agent = ("agent", json!({ "type": "string", "description": "Only tasks of this agent." }));
        let states: Vec<&str> = STATES.iter().map(|(_, word)| *word).collect();
        let state = ("state", json!({ "type": "string", "enum": states, "description": "Only tasks in this state." }));
        match self {
            Read::ListAgents => object(&[], &[]),
            Read::GetAgent => {
                object(&[("name", json!({ "type": "string", "description": "Name of the agent." }))], &["name"])
            }
            Read::ListTasks => object(
                &[
                    agent,
                    state,
                    ("context_id", json!({ "type": "string", "description": "Only tasks of this conversation." })),
                    ("page_size", number(1, MAX_PAGE, DEFAULT_PAGE)),
                    ("cursor", json!({ "type": "string", "description": "next_cursor of the page before." })),
                ],
                &[],
            ),
            Read::GetTask => object(
                &[
                    task,
                    (
                        "history_length",
                        json!({ "type": "integer", "minimum": 0, "description": "Only the last so many messages." }),
                    ),
                ],
                &["task_id"],
            ),
            Read::GetTrace => object(&[task], &["task_id"]),
            Read::SearchEvents => object(
                &[
                    (
                        "query",
                        json!({ "type": "string", "maxLength": MAX_QUERY, "description": "Text that the event has, in upper or lower case." }),
                    ),
                    ("task_id", json!({ "type": "string", "description": "Only events of this task." })),
                    agent,
                    state,
                    ("limit", number(1, MAX_FOUND, DEFAULT_FOUND)),
                ],
                &[],
            ),
        }
    }

    pub fn output(self) -> Value {
        let text = || json!({ "type": "string" });
        let list = |of: Value| json!({ "type": "array", "items": of });
        match self {
            Read::ListAgents => {
                let fields = [("description", text()), ("name", text()), ("tags", list(text())), ("url", text())];
                let agent = open_object(&fields, &["description", "name", "tags", "url"]);
                open_object(&[("agents", list(agent))], &["agents"])
            }
            Read::GetAgent => open_object(&[("card", json!({ "type": "object" }))], &["card"]),
            Read::ListTasks => {
                let names = ["agent", "context_id", "state", "task_id", "updated"];
                let fields = names.map(|name| (name, text()));
                let task = open_object(&fields, &names);
                let total = json!({ "type": "integer", "minimum": 0 });
                open_object(&[("next_cursor", text()), ("tasks", list(task)), ("total", total)], &["tasks", "total"])
            }
            Read::GetTask => open_object(&[("task", json!({ "type": "object" }))], &["task"]),
            Read::GetTrace => {
                let flag = || json!({ "type": "boolean" });
                let spans = list(json!({ "type": "object" }));
                let fields = [("sampled", flag()), ("spans", spans), ("trace_id", text()), ("truncated", flag())];
                open_object(&fields, &["sampled", "spans", "trace_id", "truncated"])
            }
            Read::SearchEvents => {
                let names = ["agent", "at", "kind", "task_id", "text"];
                let mut fields: Vec<(&str, Value)> = names.iter().map(|name| (*name, text())).collect();
                fields.push(("index", json!({ "type": "integer", "minimum": 1 })));
                let event = open_object(&fields, &["agent", "at", "index", "kind", "task_id", "text"]);
                let more = json!({ "type": "boolean", "description": "Whether there is more that was not looked at." });
                open_object(&[("events", list(event)), ("truncated", more)], &["events", "truncated"])
            }
        }
    }
}

fn number(least: u64, most: u64, default: u64) -> Value {
    json!({ "type": "integer", "minimum": least, "maximum": most, "default": default })
}

/// Carries out a read.
///
/// # Errors
/// Why not, for the model that asked.
pub(super) async fn call(ask: &Ask, read: Read, arguments: Map<String, Value>) -> Result<Value, String> {
    let mut arguments = Arguments(arguments);
    match read {
        Read::ListAgents => {
            arguments.nothing_left()?;
            Ok(list_agents(ask))
        }
        Read::GetAgent => {
            let name = arguments.required("name")?;
            arguments.nothing_left()?;
            get_agent(ask, &name)
        }
        Read::ListTasks => list_tasks(ask, arguments).await,
        Read::GetTask => {
            let task = arguments.required("task_id")?;
            let history = arguments.number("history_length", 0, u64::from(u32::MAX))?;
            arguments.nothing_left()?;
            let mut params = json!({ "id": task });
            if let Some(length) = history {
                params["historyLength"] = length.min(i32::MAX as u64).into();
            }
            let task = ask.a2a(::a2a::methods::GET_TASK, None, params).await?;
            Ok(json!({ "task": task }))
        }
        Read::GetTrace => {
            let task = arguments.required("task_id")?;
            arguments.nothing_left()?;
            get_trace(ask, &task).await
        }
        Read::SearchEvents => search_events(ask, arguments).await,
    }
}

/// Agents and their cards are public: anybody reads them without being asked who it is.
fn list_agents(ask: &Ask) -> Value {
    let base = &ask.server.a2a.public_url;
    let agents: Vec<Value> = ask.server.a2a.cluster.local(|state| {
        let agents = state.agents().map(|agent| {
            json!({
                "description": resources::described(&agent.spec.description),
                "name": agent.spec.name.as_str(),
                "tags": agent.spec.tags.iter().map(|tag| resources::described(tag)).collect::<Vec<_>>(),
                "url": format!("{base}/agents/{}", agent.spec.name),
            })
        });
        agents.collect()
    });
    json!({ "agents": agents })
}

fn get_agent(ask: &Ask, name: &str) -> Result<Value, String> {
    let card = a2a::card_of(&ask.server.a2a, name).map_err(|error| error.message)?;
    let card = card.ok_or_else(|| format!("agent {:?} is not known", towline_a2a::shortened(name)))?;
    Ok(json!({ "card": card }))
}

async fn list_tasks(ask: &Ask, mut arguments: Arguments) -> Result<Value, String> {
    let agent = arguments.optional("agent")?;
    let mut params = json!({ "historyLength": 0, "includeArtifacts": false });
    params["pageSize"] = arguments.number("page_size", 1, MAX_PAGE)?.unwrap_or(DEFAULT_PAGE).into();
    if let Some(state) = arguments.state()? {
        params["status"] = state_name(state).into();
    }
    for (name, param) in [("context_id", "contextId"), ("cursor", "pageToken")] {
        if let Some(value) = arguments.optional(name)? {
            params[param] = value.into();
        }
    }
    arguments.nothing_left()?;
    let page = ask.a2a(::a2a::methods::LIST_TASKS, agent.as_deref(), params).await?;
    let tasks: Vec<Value> = page["tasks"].as_array().into_iter().flatten().map(shown).collect();
    let mut answer = json!({ "tasks": tasks, "total": page["totalSize"].as_u64().unwrap_or_default() });
    if let Some(next) = page["nextPageToken"].as_str().filter(|next| !next.is_empty()) {
        answer["next_cursor"] = next.into();
    }
    Ok(answer)
}

/// A task of a list, from how A2A shows it.
fn shown(task: &Value) -> Value {
    let text = |pointer: &str| task.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let state = text("/status/state");
    let state = STATES.iter().find(|(known, _)| state_name(*known) == state).map_or("unknown", |(_, word)| word);
    json!({
        "agent": text("/metadata/dev.towline~1agent"),
        "context_id": text("/contextId"),
        "state": state,
        "task_id": text("/id"),
        "updated": text("/status/timestamp"),
    })
}

/// The spans of a task. An operator is shown all that the nodes remember under its trace; others what the records of their own
/// tasks tell, since a trace id is chosen by whoever calls, and must not open what another does under the same one.
async fn get_trace(ask: &Ask, task: &str) -> Result<Value, String> {
    ask.caller.check_method(::a2a::methods::GET_TASK).map_err(|error| error.message)?;
    let cluster = &ask.server.a2a.cluster;
    let unknown = || format!("task {:?} is not known", towline_a2a::shortened(task));
    let id: TaskId = task.parse().map_err(|_| unknown())?;
    let principal = &ask.caller.principal;
    let record = cluster.read(|state| state.record_for(principal, id)).await.map_err(|error| error.reason)?;
    let found = cluster.recall(id, record).await.map_err(|error| error.reason)?;
    let context = found.filter(|task| principal.may_act_on(&task.owner)).ok_or_else(unknown)?.trace;
    let mut family = recovered_spans::family(cluster, id).await;
    family.retain(|_, task| principal.may_act_on(&task.owner));
    let mut spans = if principal.is_operator() { cluster.spans(context.trace_id).await } else { Vec::new() };
    spans.extend(cluster.local(|state| recovered_spans::fill(state, &family, &spans)));
    spans.sort_by_key(|span| span.start_us);
    let truncated = spans.len() > MAX_SPANS;
    spans.truncate(MAX_SPANS);
    let trace_id = context.trace_id_hex();
    Ok(json!({ "sampled": context.sampled, "spans": spans, "trace_id": trace_id, "truncated": truncated }))
}

/// What is searched for.
struct Search {
    query: String,
    filter: ListFilter,
    most: usize,
}

async fn search_events(ask: &Ask, mut arguments: Arguments) -> Result<Value, String> {
    ask.caller.check_method(::a2a::methods::LIST_TASKS).map_err(|error| error.message)?;
    let query = arguments.optional("query")?.unwrap_or_default();
    if query.len() > MAX_QUERY {
        return Err(format!("query is longer than {MAX_QUERY} bytes: search for less"));
    }
    let task = arguments.optional("task_id")?;
    let agent = arguments.optional("agent")?;
    let agent: Option<AgentName> =
        agent.map(|agent| agent.parse()).transpose().map_err(|error| format!("agent: {error}"))?;
    let state = arguments.state()?;
    let most = arguments.number("limit", 1, MAX_FOUND)?.unwrap_or(DEFAULT_FOUND);
    arguments.nothing_left()?;
    let search = Search {
        query: query.to_lowercase(),
        filter: ListFilter { agent, state, ..ListFilter::default() },
        most: usize::try_from(most).unwrap_or(usize::MAX),
    };
    match task {
        Some(task) => search_in(ask, &search, &task).await,
        None => search_all(ask, search).await,
    }
}

async fn search_in(ask: &Ask, search: &Search, task: &str) -> Result<Value, String> {
    let unknown = || format!("task {:?} is not known", towline_a2a::shortened(task));
    let id: TaskId = task.parse().map_err(|_| unknown())?;
    let (cluster, principal) = (&ask.server.a2a.cluster, &ask.caller.principal);
    let record = cluster.read(|state| state.record_for(principal, id)).await.map_err(|error| error.reason)?;
    let found = cluster.recall(id, record).await.map_err(|error| error.reason)?;
    let found = found.filter(|task| principal.may_act_on(&task.owner)).ok_or_else(unknown)?;
    let fits = search.filter.agent.as_ref().is_none_or(|agent| *agent == found.agent)
        && search.filter.state.is_none_or(|state| state == found.status.state);
    let mut events: Vec<(u64, Value)> = if fits { matching(&found, &search.query).collect() } else { Vec::new() };
    Ok(newest(&mut events, search.most, false))
}

/// Looks through the latest tasks of the caller.
async fn search_all(ask: &Ask, mut search: Search) -> Result<Value, String> {
    let _place = SEARCHING.acquire().await;
    let (cluster, principal) = (&ask.server.a2a.cluster, &ask.caller.principal);
    let (mut events, mut looked_at) = (Vec::new(), 0);
    loop {
        let look = |state: &towline_core::State| state.list(principal, &search.filter, SEARCH_PAGE);
        let listing = cluster.read(look).await.map_err(|error| error.reason)?;
        let archived = cluster.recall_page(listing.archived()).await;
        let page = listing.page(&archived, |task| task.shown_bytes(None, true));
        looked_at += page.tasks.len();
        for task in &page.tasks {
            events.extend(matching(task, &search.query));
        }
        // Enough to choose the newest from, and no more in memory than that.
        keep_newest(&mut events, search.most);
        let Some(next) = page.next else { return Ok(newest(&mut events, search.most, false)) };
        if looked_at >= MAX_SEARCHED {
            return Ok(newest(&mut events, search.most, true));
        }
        search.filter.after = Some(next);
    }
}

fn keep_newest(events: &mut Vec<(u64, Value)>, most: usize) {
    events.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    // One more tells that there are more.
    events.truncate(most + 1);
}

fn newest(events: &mut Vec<(u64, Value)>, most: usize, more: bool) -> Value {
    keep_newest(events, most);
    let truncated = more || events.len() > most;
    let events: Vec<Value> = events.drain(..).take(most).map(|(_, event)| event).collect();
    json!({ "events": events, "truncated": truncated })
}

/// The events of a task that have a text, with their time.
fn matching<'a>(task: &'a Task, query: &'a str) -> impl Iterator<Item = (u64, Value)> + 'a {
    task.events.iter().filter_map(move |event| {
        let (kind, text) = described(task, event);
        let text = excerpt(&text, query)?;
        let event_at = convert::time_text(event.at);
        let shown = json!({
            "agent": task.agent.as_str(),
            "at": event_at,
            "index": event.index,
            "kind": kind,
            "task_id": task.id.to_string(),
            "text": text,
        });
        Some((event.at.0, shown))
    })
}

/// What kind of event it is, and its text.
fn described(task: &Task, event: &Event) -> (String, String) {
    let texts = |parts: &[towline_core::Part]| {
        let text = |part: &towline_core::Part| match &part.content {
            towline_core::Content::Text(text) => Some(text.clone()),
            towline_core::Content::Data(data) => Some(data.to_string()),
            towline_core::Content::Url(url) => Some(url.clone()),
            towline_core::Content::Raw(_) | towline_core::Content::Blob(_) => part.filename.clone(),
        };
        parts.iter().filter_map(text).collect::<Vec<_>>().join("\n")
    };
    match &event.kind {
        EventKind::Created => {
            let said = task.history.first().map(|message| texts(&message.parts)).unwrap_or_default();
            ("created".to_owned(), said)
        }
        EventKind::Status { status, .. } => {
            let said = status.message.as_ref().map(|message| texts(&message.parts)).unwrap_or_default();
            (format!("status:{}", state_word(status.state)), said)
        }
        EventKind::Artifact { parts, .. } => ("artifact".to_owned(), texts(parts)),
    }
}

/// The part of a text around the first place that has what is searched for; none if it has not.
fn excerpt(text: &str, query: &str) -> Option<String> {
    if query.is_empty() {
        return Some(text.chars().take(EXCERPT).collect());
    }
    let lower = text.to_lowercase();
    let at = lower.find(query)?;
    // Lower case may have other lengths: characters before the place are counted there, and taken here.
    let before = lower[..at].chars().count();
    let skipped = before.saturating_sub(EXCERPT / 4);
    Some(text.chars().skip(skipped).take(EXCERPT).collect())
}

/// The arguments of a call. What is left in the end is unknown.
pub(super) struct Arguments(pub Map<String, Value>);

impl Arguments {
    pub fn optional(&mut self, name: &str) -> Result<Option<String>, String> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                Err(format!("{name} must be a text"))
            }
        }
    }

    pub fn required(&mut self, name: &str) -> Result<String, String> {
        self.optional(name)?.ok_or_else(|| format!("{name} is missing"))
    }

    pub fn number(&mut self, name: &str, least: u64, most: u64) -> Result<Option<u64>, String> {
        let Some(value) = self.0.remove(name).filter(|value| !value.is_null()) else { return Ok(None) };
        let number = value.as_u64().filter(|number| (least..=most).contains(number));
        number.map(Some).ok_or_else(|| format!("{name} must be a whole number from {least} to {most}"))
    }

    fn state(&mut self) -> Result<Option<TaskState>, String> {
        let Some(word) = self.optional("state")? else { return Ok(None) };
        let known = STATES.iter().find(|(_, known)| *known == word);
        let words = || STATES.iter().map(|(_, word)| *word).collect::<Vec<_>>().join(", ");
        known.map(|(state, _)| Some(*state)).ok_or_else(|| format!("state must be one of {}", words()))
    }

    pub fn nothing_left(self) -> Result<(), String> {
        match self.0.keys().next() {
            Some(name) => Err(format!("{:?} is no argument of this tool", towline_a2a::shortened(name))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_around_what_was_found_in_upper_or_lower_case() {
        assert_eq!(excerpt("The ROPE is long", "rope").as_deref(), Some("The ROPE is long"));
        assert_eq!(excerpt("The rope is long", "chain"), None);
        let long = format!("{}Needle{}", "ä".repeat(2_000), "x".repeat(2_000));
        let found = excerpt(&long, "needle").unwrap();
        assert!(found.contains("Needle") && found.chars().count() == EXCERPT, "{found}");
        assert_eq!(excerpt(&long, "").unwrap().chars().count(), EXCERPT);
        assert!(excerpt("İİİİ stanbul", "stanbul").unwrap().contains("stanbul"), "letters that grow in lower case");
    }

    #[test]
    fn arguments_are_checked_one_by_one() {
        let read = |value: Value| Arguments(value.as_object().cloned().unwrap());
        assert_eq!(read(json!({ "a": "x" })).required("a"), Ok("x".to_owned()));
        assert!(read(json!({})).required("a").is_err());
        assert!(read(json!({ "a": 1 })).optional("a").is_err());
        assert_eq!(read(json!({ "n": 5 })).number("n", 1, 5), Ok(Some(5)));
        for wrong in [json!(0), json!(6), json!(-1), json!(1.5), json!("1")] {
            assert!(read(json!({ "n": wrong })).number("n", 1, 5).is_err(), "{wrong}");
        }
        assert_eq!(read(json!({ "state": "working" })).state(), Ok(Some(TaskState::Working)));
        assert!(read(json!({ "state": "dancing" })).state().unwrap_err().contains("working"));
        assert!(read(json!({ "x": 1 })).nothing_left().is_err());
    }
}

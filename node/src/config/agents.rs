//! `agents:` – the agents that this node declares, and what they refer to.

use std::collections::BTreeSet;

use towline_actors::{AgentConfig, McpServerConfig, Traits};
use towline_core::{
    AgentName, Placement,
    limits::{MAX_OPEN_TASKS_PER_AGENT, MAX_STEPS},
};

use super::{
    labels,
    mistakes::hint,
    section::{Field, Section},
    trifecta,
    values::glob,
};

/// Default of `model`.
const DEFAULT_MODEL: &str = "default";
/// Default of `max_steps`: a survey of twenty files takes a handful of model calls, a loop takes all there are.
const DEFAULT_MAX_STEPS: u32 = 64;
/// More replicas than any cluster has nodes.
const MAX_REPLICAS: u32 = 1_000;
const MAX_PERMITS: u32 = 100_000;

/// What agents may refer to.
pub(crate) struct Known<'a> {
    pub models: BTreeSet<&'a str>,
    pub servers: BTreeSet<&'a str>,
    pub peers: BTreeSet<&'a str>,
    /// The servers, with what their tags say.
    pub configured: &'a [McpServerConfig],
}

pub(crate) fn read(root: &mut Section<'_>, known: &Known<'_>) -> Vec<AgentConfig> {
    let fields = root.list("agents");
    let names: BTreeSet<&str> = fields.iter().filter_map(Field::peek_name).collect();
    let mut agents: Vec<AgentConfig> = Vec::new();
    let mut places = Vec::new();
    let mut declared = BTreeSet::new();
    for field in &fields {
        let Some(agent) = read_agent(field, known, &names) else { continue };
        let name = agent.name.as_str();
        if !declared.insert(agent.name.clone()) {
            field.mistake(format!("agent {name:?} is declared twice: names are unique"));
        }
        if known.peers.contains(name) {
            field.mistake(format!("agent {name:?} has the name of a peer: a delegate would be ambiguous"));
        }
        places.push((agents.len(), field.clone()));
        agents.push(agent);
    }
    trifecta::judge(&places, &mut agents, known.configured, &known.peers);
    agents
}

/// `front_door`, or the first agent.
pub(crate) fn read_front_door(root: &mut Section<'_>, agents: &[AgentConfig]) -> Option<AgentName> {
    let Some(field) = root.get("front_door") else { return agents.first().map(|agent| agent.name.clone()) };
    let written = field.text()?;
    let agent = agents.iter().find(|agent| agent.name.as_str() == written);
    if agent.is_none() {
        let names = agents.iter().map(|agent| agent.name.as_str());
        field.mistake(format!("agent {written:?} is not declared; {}", hint(written, names)));
    }
    agent.map(|agent| agent.name.clone())
}

fn read_agent(field: &Field<'_>, known: &Known<'_>, names: &BTreeSet<&str>) -> Option<AgentConfig> {
    let mut section = field.section()?;
    let name = section.required("name", "reader").and_then(|field| field.parse(str::parse::<AgentName>));
    let description = section.get("description").and_then(|field| field.text()).unwrap_or_default().to_owned();
    let model = read_model(&mut section, known);
    let instruction = section.required("instruction", "file://prompt.md").and_then(|field| field.text_or_file());
    let tools = section.list("tools").iter().filter_map(|field| read_tool(field, known)).collect();
    let resources = section.list("resources").iter().filter_map(|field| read_resource_server(field, known)).collect();
    let delegates = section.list("delegates").iter().filter_map(|field| read_delegate(field, known, names)).collect();
    let placement = section.get("replicas").and_then(|field| read_placement(&field));
    let permits = section.get("permits").and_then(|field| field.number(1, MAX_PERMITS));
    let longest_queue = u32::try_from(MAX_OPEN_TASKS_PER_AGENT).unwrap_or(u32::MAX);
    let queue = section.get("queue").and_then(|field| field.number(1, longest_queue));
    let most_steps = u32::try_from(MAX_STEPS).unwrap_or(u32::MAX);
    let max_steps = section.get("max_steps").and_then(|field| field.number(1, most_steps));
    let ask_human = section.flag("ask_human", false);
    let tags = section.texts("tags");
    let labels = labels::read(&mut section);
    let allow_trifecta = section.flag("allow_trifecta", false);
    section.finish();
    Some(AgentConfig {
        name: name?,
        description,
        model,
        instruction: instruction.unwrap_or_default(),
        tools,
        resources,
        delegates,
        placement: placement.unwrap_or(Placement::Replicas(1)),
        permits,
        queue,
        max_steps: max_steps.unwrap_or(DEFAULT_MAX_STEPS),
        ask_human,
        traits: Traits::of_tags(&tags),
        tags,
        labels,
        allow_trifecta,
        relays: false,
    })
}

fn read_model(section: &mut Section<'_>, known: &Known<'_>) -> String {
    let field = section.get("model");
    let name = field.as_ref().and_then(|field| field.text()).unwrap_or(DEFAULT_MODEL);
    if !known.models.contains(name) {
        let message = format!("model {name:?} is not declared in models; {}", hint(name, known.models.iter().copied()));
        field.map_or_else(|| section.mistake(message.clone()), |field| field.mistake(message.clone()));
    }
    name.to_owned()
}

/// A glob over `server.tool`.
fn read_tool(field: &Field<'_>, known: &Known<'_>) -> Option<String> {
    let pattern = field.parse(glob)?;
    let Some((server, _)) = pattern.split_once('.') else {
        if pattern != "*" {
            field.mistake(format!("{pattern:?} names no server: write SERVER.TOOL, as in \"{pattern}.*\""));
        }
        return Some(pattern);
    };
    if !known.servers.iter().any(|name| glob_match::glob_match(server, name)) {
        let names = known.servers.iter().copied();
        field.mistake(format!("server {server:?} is not declared in mcp.servers; {}", hint(server, names)));
    }
    Some(pattern)
}

/// A glob over servers.
fn read_resource_server(field: &Field<'_>, known: &Known<'_>) -> Option<String> {
    let pattern = field.parse(glob)?;
    if !known.servers.iter().any(|name| glob_match::glob_match(&pattern, name)) {
        let names = known.servers.iter().copied();
        field.mistake(format!("server {pattern:?} is not declared in mcp.servers; {}", hint(&pattern, names)));
    }
    Some(pattern)
}

fn read_delegate(field: &Field<'_>, known: &Known<'_>, names: &BTreeSet<&str>) -> Option<String> {
    let name = field.text()?;
    if !names.contains(name) && !known.peers.contains(name) {
        let all = names.iter().chain(&known.peers).copied();
        field.mistake(format!("{name:?} is neither an agent nor a peer; {}", hint(name, all)));
    }
    Some(name.to_owned())
}

/// A number, or `all`.
fn read_placement(field: &Field<'_>) -> Option<Placement> {
    if field.peek_text() == Some("all") {
        return Some(Placement::EveryNode);
    }
    if field.is_number() {
        return field.number(1, MAX_REPLICAS).map(Placement::Replicas);
    }
    field.mistake("expected a number of nodes, or all");
    None
}

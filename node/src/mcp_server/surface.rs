//! The tools of this server: what they are, who sees them, and the check that there is none that nobody meant to serve.
//!
//! Three guards keep the surface read-only, each of which holds when the other two fail:
//! 1. [`Surface::build`] refuses to start with a tool that is no read and that no setting of its own asks for.
//! 2. A tool that is not on the surface of a caller is an *unknown tool*: there is nothing to authorise or to forget to check.
//! 3. A guarded write runs on a [`super::confirm::Confirmed`] alone, which only the word of a person behind a client makes.

use std::{collections::BTreeSet, fmt};

use serde_json::{Map, Value, json};
use towline_core::{AgentName, Principal};

use super::{
    reads::Read,
    settings::{Federated, ServeSettings},
    writes::Write,
};

/// Longest name of a tool (spec of 2025-11-25, tools).
const MAX_NAME: usize = 128;

/// What comes before the name of an agent in the name of its tool.
pub(super) const AGENT_PREFIX: &str = "ask_";

/// A tool, as clients see it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tool {
    pub name: String,
    pub title: String,
    pub description: String,
    pub input: Value,
    pub output: Option<Value>,
    pub kind: Kind,
}

/// What a tool does.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// Reads.
    Read(Read),
    /// Gives an agent a task.
    Agent(AgentName),
    /// Changes something, once a person has confirmed it.
    Write(Write),
    /// Is a tool of another server.
    Upstream { server: String, tool: String },
}

impl Tool {
    /// As `tools/list` shows it.
    pub fn listed(&self) -> Value {
        let (read_only, destructive, open_world) = match &self.kind {
            Kind::Read(_) => (true, false, false),
            Kind::Agent(_) => (false, false, true),
            Kind::Write(_) => (false, true, false),
            // What it says of itself is text from outside: the cautious word stands in for it.
            Kind::Upstream { .. } => (false, true, true),
        };
        let mut annotations = json!({ "openWorldHint": open_world, "readOnlyHint": read_only, "title": self.title });
        if read_only {
            annotations["idempotentHint"] = true.into();
        } else {
            annotations["destructiveHint"] = destructive.into();
        }
        let mut tool = json!({
            "annotations": annotations,
            "description": self.description,
            "inputSchema": self.input,
            "name": self.name,
            "title": self.title,
        });
        if let Some(output) = &self.output {
            tool["outputSchema"] = output.clone();
        }
        tool
    }
}

/// A tool that must not be on the surface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offender {
    /// Its name.
    pub tool: String,
    /// Why not.
    pub reason: String,
}

/// The surface has tools that must not be there: all of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct SurfaceError {
    /// In the order in which they are served.
    pub offenders: Vec<Offender>,
}

impl fmt::Display for SurfaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the MCP surface must not be served")?;
        self.offenders.iter().try_for_each(|offender| write!(f, "\ntool {:?} {}", offender.tool, offender.reason))
    }
}

/// The tools of this server.
#[derive(Debug, Clone)]
pub(super) struct Surface {
    tools: Vec<Tool>,
    settings: ServeSettings,
}

impl Surface {
    /// The tools that the settings ask for.
    ///
    /// # Errors
    /// Every tool that must not be served.
    pub fn build(settings: &ServeSettings) -> Result<Self, SurfaceError> {
        let reads = settings.tools.iter().map(|name| Read::named(name).map_or_else(|| stray(name), read_tool));
        let agents = settings.agents.iter().map(agent_tool);
        let writes = settings.writes.iter().map(|guarded| write_tool(guarded.write));
        Self::check(reads.chain(agents).chain(writes).collect(), settings)
    }

    /// Takes these tools if all of them may be served.
    fn check(tools: Vec<Tool>, settings: &ServeSettings) -> Result<Self, SurfaceError> {
        let mut names = BTreeSet::new();
        let offenders: Vec<Offender> = tools
            .iter()
            .filter_map(|tool| {
                let reason = why_not(tool, settings).or_else(|| {
                    let is_new = names.insert(tool.name.clone());
                    (!is_new).then(|| "is served twice: names are unique".to_owned())
                })?;
                Some(Offender { tool: tool.name.clone(), reason })
            })
            .collect();
        if offenders.is_empty() {
            Ok(Self { tools, settings: settings.clone() })
        } else {
            Err(SurfaceError { offenders })
        }
    }

    /// What a caller sees of it.
    pub fn of<'a>(&'a self, caller: &'a Principal) -> impl Iterator<Item = &'a Tool> {
        self.tools.iter().filter(move |tool| match &tool.kind {
            Kind::Read(_) | Kind::Agent(_) => true,
            Kind::Write(write) => {
                self.settings.writes.iter().any(|guarded| guarded.write == *write && guarded.is_for(caller))
            }
            Kind::Upstream { .. } => false,
        })
    }

    /// A tool that a caller sees.
    pub fn find<'a>(&'a self, caller: &'a Principal, name: &str) -> Option<&'a Tool> {
        self.of(caller).find(|tool| tool.name == name)
    }

    /// Whose tools are served as well.
    pub fn federated(&self) -> &[Federated] {
        &self.settings.federate
    }
}

/// Why a tool must not be served.
fn why_not(tool: &Tool, settings: &ServeSettings) -> Option<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if tool.name.is_empty() || tool.name.len() > MAX_NAME || !tool.name.chars().all(is_name) {
        return Some(format!("has no name of a tool: 1 to {MAX_NAME} letters, digits, '_', '-' and '.'"));
    }
    let is_meant = match &tool.kind {
        Kind::Read(read) => read.name() == tool.name,
        Kind::Agent(agent) => settings.agents.contains(agent),
        Kind::Write(write) => {
            write.name() == tool.name && settings.writes.iter().any(|guarded| guarded.write == *write)
        }
        Kind::Upstream { .. } => false,
    };
    (!is_meant).then(|| {
        let reads: Vec<&str> = Read::ALL.iter().map(|read| read.name()).collect();
        format!(
            "is not in the read allow list ({}); the MCP surface is read-only and a server cannot widen it",
            reads.join(", ")
        )
    })
}

/// A tool that a setting names among the reads and that is none.
fn stray(name: &str) -> Tool {
    match Write::named(name) {
        Some(write) => write_tool(write),
        None => Tool {
            name: name.to_owned(),
            title: String::new(),
            description: String::new(),
            input: Value::Null,
            output: None,
            kind: Kind::Upstream { server: String::new(), tool: name.to_owned() },
        },
    }
}

fn read_tool(read: Read) -> Tool {
    Tool {
        name: read.name().to_owned(),
        title: read.title().to_owned(),
        description: read.description().to_owned(),
        input: read.input(),
        output: Some(read.output()),
        kind: Kind::Read(read),
    }
}

fn write_tool(write: Write) -> Tool {
    Tool {
        name: write.name().to_owned(),
        title: write.title().to_owned(),
        description: write.description().to_owned(),
        input: write.input(),
        output: Some(write.output()),
        kind: Kind::Write(write),
    }
}

fn agent_tool(agent: &AgentName) -> Tool {
    Tool {
        name: format!("{AGENT_PREFIX}{agent}"),
        title: format!("Ask {agent}"),
        description: format!(
            "Gives the agent {agent} a task and answers with what it made. The card of the agent says what it does: \
             towline://agents/{agent}"
        ),
        input: object(
            &[
                ("message", json!({ "type": "string", "minLength": 1, "description": "What is to be done." })),
                (
                    "task_id",
                    json!({ "type": "string", "description": "A task of this agent that asked: the message is the answer." }),
                ),
            ],
            &["message"],
        ),
        output: Some(open_object(
            &[
                ("state", json!({ "type": "string" })),
                ("task_id", json!({ "type": "string" })),
                ("text", json!({ "type": "string" })),
            ],
            &["state", "task_id", "text"],
        )),
        kind: Kind::Agent(agent.clone()),
    }
}

/// The schema of an object with these properties and no others.
pub(super) fn object(properties: &[(&str, Value)], required: &[&str]) -> Value {
    let mut schema = open_object(properties, required);
    schema["additionalProperties"] = false.into();
    schema
}

/// The schema of an object with these properties and perhaps others: what is answered may grow.
pub(super) fn open_object(properties: &[(&str, Value)], required: &[&str]) -> Value {
    let properties: Map<String, Value> =
        properties.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({ "type": "object", "properties": properties, "required": required })
}

#[cfg(test)]
mod tests {
    use towline_core::PrincipalRole;

    use super::{super::settings::Guarded, *};

    fn user(id: &str) -> Principal {
        Principal::Named { id: id.parse().unwrap(), role: PrincipalRole::User }
    }

    #[test]
    fn the_surface_check_lists_every_tool_that_is_no_read() {
        let mut settings = ServeSettings::default();
        settings.tools.extend(["cancel_task", "drain_node", "rm_rf"].map(str::to_owned));
        let refused = Surface::build(&settings).unwrap_err();
        let names: Vec<&str> = refused.offenders.iter().map(|offender| offender.tool.as_str()).collect();
        assert_eq!(names, ["cancel_task", "drain_node", "rm_rf"]);
        let text = refused.to_string();
        assert!(text.contains("list_agents, get_agent, list_tasks, get_task, get_trace, search_events"), "{text}");
        assert!(text.contains("a server cannot widen it"), "{text}");
    }

    #[test]
    fn a_write_that_no_setting_asks_for_is_refused_also_where_it_calls_itself_a_read() {
        let settings = ServeSettings::default();
        for write in Write::ALL {
            assert!(Surface::check(vec![write_tool(write)], &settings).is_err());
            let disguised = Tool { kind: Kind::Read(Read::GetTask), ..write_tool(write) };
            assert!(Surface::check(vec![disguised], &settings).is_err(), "a read has its own name");
        }
        let stranger = agent_tool(&"stranger".parse().unwrap());
        assert!(Surface::check(vec![stranger], &settings).is_err(), "an agent that is not named");
        let twice = vec![read_tool(Read::GetTask), read_tool(Read::GetTask)];
        assert!(Surface::check(twice, &settings).is_err());
    }

    #[test]
    fn six_reads_are_served_and_nothing_else_unless_a_setting_says_so() {
        let surface = Surface::build(&ServeSettings::default()).unwrap();
        let names: Vec<&str> = surface.of(&Principal::Operator).map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["list_agents", "get_agent", "list_tasks", "get_task", "get_trace", "search_events"]);
        for tool in surface.of(&Principal::Operator) {
            let listed = tool.listed();
            assert_eq!(listed["annotations"]["readOnlyHint"], true, "{listed}");
            assert_eq!(listed["inputSchema"]["type"], "object");
            assert_eq!(listed["inputSchema"]["additionalProperties"], false);
            assert_eq!(listed["outputSchema"]["type"], "object");
        }
    }

    #[test]
    fn a_guarded_write_is_seen_by_those_alone_who_are_listed() {
        let mut settings = ServeSettings::default();
        settings.agents.push("reader".parse().unwrap());
        settings.writes.push(Guarded { write: Write::CancelTask, clients: vec!["user:ada".into()] });
        let surface = Surface::build(&settings).unwrap();
        assert!(surface.find(&user("user:ada"), "cancel_task").is_some());
        assert!(surface.find(&user("user:bob"), "cancel_task").is_none());
        assert!(surface.find(&Principal::Operator, "cancel_task").is_none(), "the operator is not listed either");
        assert!(surface.find(&user("user:ada"), "drain_node").is_none());
        assert!(surface.find(&user("user:bob"), "ask_reader").is_some());
    }
}

//! What an agent may call at this moment, and what a call of its model becomes: an intent, or a refusal that says why.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use towline_core::{
    AgentName, ContextId, Handover, Intent, Message, MessageId, Metadata, OnAdoption, Outcome, Part, Role, Step,
    StepNo, TaskId, ToolCall,
};

use crate::{
    mcp_connection::{READ_RESOURCE, ResourceInfo, ToolInfo, wire_name},
    prompt::{ASK_HUMAN, DELEGATE, RESOURCE_READ, SEND, WAIT},
};

/// Most resources that an agent is shown: awareness, and no more of a prompt than a few pages. Others can be read all the same.
const MAX_SHOWN_RESOURCES: usize = 200;

/// Most tools of one agent, over all its servers.
const MAX_TOOLS: usize = 2_000;

/// Everything on offer to one agent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Toolbox {
    /// Tools of MCP servers by their qualified name.
    pub tools: BTreeMap<String, ToolInfo>,
    /// Resources that it may read.
    pub readable: Readable,
    /// What its servers say of how they are used, by server: text from outside.
    pub instructions: BTreeMap<String, String>,
    /// Its servers that have never listed their tools to this node, and why: the reason is text from outside.
    pub missing: Arc<BTreeMap<String, String>>,
    /// Whom it may delegate to, by name.
    pub delegates: BTreeMap<String, Delegate>,
    /// Whether it may ask a person.
    pub ask_human: bool,
    /// What this task has sent, by the peer's id of it.
    pub sent: BTreeMap<String, Sent>,
}

/// Resources that an agent may read.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Readable {
    /// Servers that have resources, by name.
    pub servers: Vec<String>,
    /// What they listed: of a URI that two have the one of the first.
    pub known: Vec<ResourceInfo>,
}

impl Readable {
    /// The resources of some servers, in the order of their names.
    pub(crate) fn of(servers: impl IntoIterator<Item = (String, Vec<ResourceInfo>)>) -> Self {
        let servers: BTreeMap<String, Vec<ResourceInfo>> = servers.into_iter().collect();
        let mut seen = BTreeSet::new();
        let names = servers.keys().cloned().collect();
        let known = servers.into_values().flatten().filter(|resource| seen.insert(resource.uri.clone())).collect();
        Self { servers: names, known }
    }

    /// A line for each, and how many there are beside.
    pub(crate) fn lines(&self) -> String {
        let line = |resource: &ResourceInfo| format!("- {} ({}): {}", resource.uri, resource.server, resource.label);
        let mut lines: Vec<String> = self.known.iter().take(MAX_SHOWN_RESOURCES).map(line).collect();
        if self.known.len() > MAX_SHOWN_RESOURCES {
            lines.push(format!("… and {} more", self.known.len() - MAX_SHOWN_RESOURCES));
        }
        lines.join("\n")
    }

    /// Whose resource it is.
    fn owner(&self, uri: &str, named: Option<&str>) -> Result<&str, (&'static str, String)> {
        let owner = match named {
            Some(named) => self.servers.iter().find(|server| *server == named),
            None => self.known.iter().find(|resource| resource.uri == uri).map(|resource| &resource.server),
        };
        let only = self.servers.first().filter(|_| named.is_none() && self.servers.len() == 1);
        owner.or(only).map(String::as_str).ok_or_else(|| {
            let servers = self.servers.join(", ");
            let message = match named {
                Some(named) => format!("there is no server {named:?} with resources; servers: {servers}"),
                None => format!("{uri:?} is not listed: name its server; servers: {servers}"),
            };
            ("unknown_resource", message)
        })
    }
}

/// Tools by their names, in their order; of two that would look the same to a provider only the first, and not more than a bound.
pub(crate) fn distinct(tools: impl Iterator<Item = ToolInfo>) -> BTreeMap<String, ToolInfo> {
    let all: BTreeMap<String, ToolInfo> = tools.map(|tool| (tool.qualified.clone(), tool)).collect();
    let mut seen = BTreeSet::from([wire_name(RESOURCE_READ)]);
    all.into_iter().filter(|(name, _)| seen.insert(wire_name(name))).take(MAX_TOOLS).collect()
}

/// Work that was given away with `send`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sent {
    /// To whom.
    pub target: String,
    /// Whether that is an agent of this mesh.
    pub own_mesh: bool,
    /// What was said.
    pub message: Message,
}

/// What a task has sent.
pub(crate) fn sent_in(journal: &[Step]) -> BTreeMap<String, Sent> {
    let sent = |step: &Step| match &step.intent {
        Intent::Delegate { target, own_mesh, message, peer_task: Some(id), handover: Handover::Send, .. } => {
            let sent = Sent { target: target.clone(), own_mesh: *own_mesh, message: message.as_ref().clone() };
            Some((id.clone(), sent))
        }
        Intent::Delegate { .. }
        | Intent::Model { .. }
        | Intent::Tool { .. }
        | Intent::Ask { .. }
        | Intent::Refused { .. } => None,
    };
    journal.iter().filter_map(sent).collect()
}

/// Someone to delegate to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delegate {
    /// What it is good at.
    pub description: String,
    /// Whether it is an agent of this mesh; otherwise a configured peer.
    pub own_mesh: bool,
    /// What an adopter does when the peer's task cannot be found.
    pub on_adoption: OnAdoption,
}

/// What a model's call becomes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Planned {
    /// This is committed, then done.
    Do(Intent),
    /// This is committed together with its outcome.
    Refuse(Intent, Outcome),
}

impl Toolbox {
    /// Turns a call into the intent of step `step`.
    pub(crate) fn plan(&self, call: &ToolCall, task: TaskId, step: StepNo) -> Planned {
        match self.intent(call, task, step) {
            Ok(intent) => Planned::Do(intent),
            Err((error_type, message)) => Planned::Refuse(
                Intent::Refused { call_id: call.id.clone(), name: call.name.clone() },
                Outcome::Failed { error_type: error_type.to_owned(), message },
            ),
        }
    }

    fn intent(&self, call: &ToolCall, task: TaskId, step: StepNo) -> Result<Intent, (&'static str, String)> {
        let is_known = match call.name.as_str() {
            DELEGATE | SEND => !self.delegates.is_empty(),
            WAIT => !self.delegates.is_empty() || !self.sent.is_empty(),
            ASK_HUMAN => self.ask_human,
            RESOURCE_READ => !self.readable.servers.is_empty(),
            name => self.tools.contains_key(name),
        };
        if !is_known {
            let missing: String =
                self.missing.keys().map(|server| format!("; MCP server {server} is not there at the moment")).collect();
            return Err((
                "unknown_tool",
                format!("there is no tool {:?}; tools: {}{missing}", call.name, self.names()),
            ));
        }
        let arguments = arguments(call)?;
        match call.name.as_str() {
            DELEGATE => self.delegation(call, &arguments, Handover::Delegation, (task, step)),
            SEND => self.delegation(call, &arguments, Handover::Send, (task, step)),
            WAIT => self.wait(call, &arguments),
            RESOURCE_READ => self.read(call, &arguments),
            ASK_HUMAN => {
                let question = text_argument(&arguments, "question")?;
                let to = arguments.get("to").and_then(serde_json::Value::as_str).map(str::trim);
                let to = to.filter(|to| !to.is_empty()).map(str::to_owned);
                Ok(Intent::Ask { call_id: call.id.clone(), question, to })
            }
            name => {
                let tool = self.tools.get(name).expect("the name was found above");
                Ok(Intent::Tool {
                    call_id: call.id.clone(),
                    server: tool.server.clone(),
                    tool: tool.tool.clone(),
                    arguments,
                    on_adoption: tool.on_adoption,
                })
            }
        }
    }

    fn delegation(
        &self,
        call: &ToolCall,
        arguments: &serde_json::Value,
        handover: Handover,
        (task, step): (TaskId, StepNo),
    ) -> Result<Intent, (&'static str, String)> {
        let target = text_argument(arguments, "agent")?;
        let text = text_argument(arguments, "message")?;
        let Some(delegate) = self.delegates.get(&target) else {
            let known: Vec<&str> = self.delegates.keys().map(String::as_str).collect();
            return Err(("unknown_agent", format!("there is no agent {target:?}; agents: {}", known.join(", "))));
        };
        Ok(Intent::Delegate {
            call_id: call.id.clone(),
            target,
            own_mesh: delegate.own_mesh,
            message: Box::new(delegation_message(task, step, text)),
            peer_task: None,
            on_adoption: delegate.on_adoption,
            handover,
        })
    }

    /// Reading changes nothing, so it may be done again.
    fn read(&self, call: &ToolCall, arguments: &serde_json::Value) -> Result<Intent, (&'static str, String)> {
        let uri = text_argument(arguments, "uri")?;
        let named = arguments.get("server").and_then(serde_json::Value::as_str).map(str::trim);
        let server = self.readable.owner(&uri, named.filter(|named| !named.is_empty()))?;
        Ok(Intent::Tool {
            call_id: call.id.clone(),
            server: server.to_owned(),
            tool: READ_RESOURCE.to_owned(),
            arguments: serde_json::json!({ "uri": uri }),
            on_adoption: OnAdoption::Retry,
        })
    }

    /// Waiting takes up a task that is known: nothing is sent, so it may be done again.
    fn wait(&self, call: &ToolCall, arguments: &serde_json::Value) -> Result<Intent, (&'static str, String)> {
        let task = text_argument(arguments, "task")?;
        let Some(sent) = self.sent.get(&task) else {
            let known: Vec<&str> = self.sent.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(("unknown_task", format!("no task {task:?} was sent from here; sent: {known}")));
        };
        Ok(Intent::Delegate {
            call_id: call.id.clone(),
            target: sent.target.clone(),
            own_mesh: sent.own_mesh,
            message: Box::new(sent.message.clone()),
            peer_task: Some(task),
            on_adoption: OnAdoption::Retry,
            handover: Handover::Wait,
        })
    }

    fn names(&self) -> String {
        let mut names: Vec<&str> = self.tools.keys().map(String::as_str).collect();
        names.extend((!self.delegates.is_empty()).then_some([DELEGATE, SEND, WAIT]).into_iter().flatten());
        names.extend(self.ask_human.then_some(ASK_HUMAN));
        names.extend((!self.readable.servers.is_empty()).then_some(RESOURCE_READ));
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }
}

/// The key of a step's effect, the same on every attempt.
pub(crate) fn step_key(task: TaskId, step: StepNo) -> String {
    format!("{task}/{step}")
}

fn delegation_message(task: TaskId, step: StepNo, text: String) -> Message {
    let key = step_key(task, step);
    Message {
        message_id: MessageId::try_from(key.clone()).expect("a task id and a number are printable and short"),
        context_id: Some(ContextId::try_from(key).expect("a task id and a number are printable and short")),
        task_id: None,
        role: Role::User,
        parts: vec![Part::text(text)],
        metadata: Metadata::new(),
        extensions: Vec::new(),
        reference_task_ids: vec![task.to_string()],
    }
}

/// The name as an agent of this mesh, if it can be one.
pub(crate) fn agent_name(name: &str) -> Option<AgentName> {
    name.parse().ok()
}

fn arguments(call: &ToolCall) -> Result<serde_json::Value, (&'static str, String)> {
    match &call.arguments {
        serde_json::Value::Null => Ok(serde_json::json!({})),
        serde_json::Value::Object(_) => Ok(call.arguments.clone()),
        serde_json::Value::String(text) => Err(malformed(format!("the arguments are not valid JSON: {text:.200}"))),
        other @ (serde_json::Value::Bool(_) | serde_json::Value::Number(_) | serde_json::Value::Array(_)) => {
            Err(malformed(format!("the arguments must be a JSON object, not {other:.200}")))
        }
    }
}

fn text_argument(arguments: &serde_json::Value, name: &str) -> Result<String, (&'static str, String)> {
    match arguments.get(name).and_then(serde_json::Value::as_str) {
        Some(text) if !text.trim().is_empty() => Ok(text.to_owned()),
        _ => Err(malformed(format!("argument {name:?} is missing, empty or not a string"))),
    }
}

fn malformed(message: String) -> (&'static str, String) {
    ("malformed_arguments", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn toolbox() -> Toolbox {
        let reader = Delegate { description: "reads".into(), own_mesh: true, on_adoption: OnAdoption::Retry };
        Toolbox { delegates: BTreeMap::from([("reader".to_owned(), reader)]), ..Toolbox::default() }
    }

    fn plan(name: &str, arguments: serde_json::Value) -> Planned {
        let call = ToolCall { id: "c1".into(), name: name.into(), arguments };
        toolbox().plan(&call, TaskId::from_uuid(uuid::Uuid::max()), StepNo(3))
    }

    fn refusal(planned: Planned) -> String {
        let Planned::Refuse(_, Outcome::Failed { error_type, message }) = planned else { panic!("{planned:?}") };
        format!("{error_type}: {message}")
    }

    #[test]
    fn a_delegation_carries_the_key_of_its_step() {
        let Planned::Do(Intent::Delegate { message, target, own_mesh: true, .. }) =
            plan("delegate", json!({"agent": "reader", "message": "read a.md"}))
        else {
            panic!("not a delegation")
        };
        assert_eq!(target, "reader");
        assert_eq!(message.message_id.as_str(), "ffffffff-ffff-ffff-ffff-ffffffffffff/3");
        assert_eq!(message.context_id.unwrap().as_str(), "ffffffff-ffff-ffff-ffff-ffffffffffff/3");
        assert_eq!(message.reference_task_ids, ["ffffffff-ffff-ffff-ffff-ffffffffffff"]);
    }

    fn resource(server: &str, uri: &str) -> ResourceInfo {
        ResourceInfo { server: server.into(), uri: uri.into(), label: "x".into(), media_type: None }
    }

    fn read(readable: Readable, arguments: serde_json::Value) -> Planned {
        let call = ToolCall { id: "c1".into(), name: RESOURCE_READ.into(), arguments };
        let toolbox = Toolbox { readable, ..Toolbox::default() };
        toolbox.plan(&call, TaskId::from_uuid(uuid::Uuid::max()), StepNo(3))
    }

    #[test]
    fn a_resource_is_read_from_the_first_server_that_lists_it_or_the_one_that_is_named() {
        let readable = || {
            let of = |server: &str| (server.to_owned(), vec![resource(server, "file:///a")]);
            Readable::of([of("b"), of("a")])
        };
        assert_eq!(readable().known, [resource("a", "file:///a")]);
        let server_of = |planned: Planned| {
            let Planned::Do(Intent::Tool { server, tool, on_adoption: OnAdoption::Retry, .. }) = planned else {
                panic!("{planned:?}")
            };
            assert_eq!(tool, READ_RESOURCE);
            server
        };
        assert_eq!(server_of(read(readable(), json!({ "uri": "file:///a" }))), "a");
        assert_eq!(server_of(read(readable(), json!({ "uri": "file:///a", "server": "b" }))), "b");
        assert_eq!(server_of(read(readable(), json!({ "uri": "made:///x", "server": "b" }))), "b", "of a template");
        assert!(refusal(read(readable(), json!({ "uri": "made:///x" }))).starts_with("unknown_resource"));
        assert!(refusal(read(readable(), json!({ "uri": "file:///a", "server": "c" }))).contains("servers: a, b"));
        assert!(refusal(read(readable(), json!({}))).starts_with("malformed_arguments"));
        assert!(refusal(read(Readable::default(), json!({ "uri": "file:///a" }))).starts_with("unknown_tool"));
    }

    #[test]
    fn an_agent_is_shown_a_bounded_number_of_resources() {
        let many = (0..MAX_SHOWN_RESOURCES + 5).map(|at| resource("s", &format!("file:///{at:04}"))).collect();
        let lines = Readable::of([("s".to_owned(), many)]).lines();
        assert_eq!(lines.lines().count(), MAX_SHOWN_RESOURCES + 1);
        assert!(lines.ends_with("… and 5 more"));
    }

    #[test]
    fn of_two_tools_that_look_the_same_to_a_provider_the_first_is_offered() {
        let tool = |server: &str, tool: &str| ToolInfo {
            qualified: format!("{server}.{tool}"),
            server: server.into(),
            tool: tool.into(),
            description: String::new(),
            schema: json!({}),
            on_adoption: OnAdoption::Ask,
            digest: String::new(),
        };
        let tools =
            distinct([tool("a__b", "c"), tool("a", "b__c"), tool("resource", "read"), tool("a", "x")].into_iter());
        assert_eq!(tools.keys().collect::<Vec<_>>(), ["a.b__c", "a.x"]);
    }

    #[test]
    fn what_was_sent_is_waited_for_and_nothing_else() {
        let send = plan("send", json!({"agent": "reader", "message": "read a.md"}));
        let Planned::Do(intent @ Intent::Delegate { handover: Handover::Send, .. }) = send else { panic!("{send:?}") };
        let Intent::Delegate { call_id, target, own_mesh, message, on_adoption, handover, .. } = intent else {
            panic!()
        };
        let peer_task = Some("t-1".to_owned());
        let sent = Intent::Delegate { call_id, target, own_mesh, message, peer_task, on_adoption, handover };
        let journal = [crate::decision::tests::step(0, sent, None)];
        let toolbox = Toolbox { sent: sent_in(&journal), ..toolbox() };
        let wait = |task: &str| {
            let call = ToolCall { id: "c2".into(), name: "wait".into(), arguments: json!({ "task": task }) };
            toolbox.plan(&call, TaskId::from_uuid(uuid::Uuid::max()), StepNo(4))
        };
        let Planned::Do(Intent::Delegate { peer_task, handover: Handover::Wait, .. }) = wait("t-1") else { panic!() };
        assert_eq!(peer_task.as_deref(), Some("t-1"));
        assert_eq!(refusal(wait("t-2")), "unknown_task: no task \"t-2\" was sent from here; sent: t-1");
    }

    #[test]
    fn a_tool_of_a_server_that_never_answered_is_refused_with_the_name_of_that() {
        let missing = Arc::new(BTreeMap::from([("fs".to_owned(), "its last words: call fs.rm".to_owned())]));
        let call = ToolCall { id: "c1".into(), name: "fs.read".into(), arguments: json!({}) };
        let said =
            refusal(Toolbox { missing, ..toolbox() }.plan(&call, TaskId::from_uuid(uuid::Uuid::max()), StepNo(3)));
        assert!(said.ends_with("; MCP server fs is not there at the moment"), "{said}");
    }

    #[test]
    fn what_cannot_be_called_is_refused_with_a_reason() {
        assert_eq!(
            refusal(plan("fs.rm", json!({}))),
            "unknown_tool: there is no tool \"fs.rm\"; tools: delegate, send, wait"
        );
        assert!(refusal(plan("ask_human", json!({"question": "?"}))).starts_with("unknown_tool"));
        assert!(refusal(plan("delegate", json!({"agent": "x", "message": "y"}))).starts_with("unknown_agent"));
        assert!(refusal(plan("delegate", json!("{\"agent\": "))).starts_with("malformed_arguments"));
        assert!(refusal(plan("delegate", json!({"agent": "reader"}))).starts_with("malformed_arguments"));
    }
}

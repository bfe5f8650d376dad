//! The guarded writes: served to those alone whom a setting lists, and carried out on a person's word alone.

use std::time::Duration;

use serde_json::{Map, Value, json};
use towline_core::{NodeId, TaskId, limits::MAX_PATIENCE_MS};

use super::{
    Ask,
    confirm::Confirmed,
    reads::Arguments,
    surface::{object, open_object},
};
use crate::auth::audit;

/// How long a node's tasks may take to move, where the call does not say.
const DEFAULT_PATIENCE_S: u64 = 300;

/// Where the operator API drains a node: who may not ask there may not ask here.
const DRAIN_ROUTE: &str = "/api/v1/cluster/nodes/0/drain";

/// Something that can be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// Ends a task of the caller.
    CancelTask,
    /// Empties a node.
    DrainNode,
}

impl Write {
    /// All of them.
    pub const ALL: [Write; 2] = [Write::CancelTask, Write::DrainNode];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|write| write.name() == name)
    }

    /// Name of its tool.
    pub fn name(self) -> &'static str {
        match self {
            Write::CancelTask => "cancel_task",
            Write::DrainNode => "drain_node",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Write::CancelTask => "Cancel a task",
            Write::DrainNode => "Drain a node",
        }
    }

    pub(super) fn description(self) -> &'static str {
        match self {
            Write::CancelTask => {
                "Ends one of your tasks, and all that it delegated inside the mesh. A person is asked first."
            }
            Write::DrainNode => "Empties a node: its tasks move to others, and it takes none. A person is asked first.",
        }
    }

    pub(super) fn input(self) -> Value {
        match self {
            Write::CancelTask => {
                object(&[("task_id", json!({ "type": "string", "description": "Id of the task." }))], &["task_id"])
            }
            Write::DrainNode => object(
                &[
                    ("node", json!({ "type": "string", "description": "Name or number of the node." })),
                    (
                        "timeout_s",
                        json!({
                            "type": "integer",
                            "minimum": 0,
                            "maximum": MAX_PATIENCE_MS / 1_000,
                            "default": DEFAULT_PATIENCE_S,
                            "description": "How long steps that may be repeated are waited for, in seconds.",
                        }),
                    ),
                ],
                &["node"],
            ),
        }
    }

    pub(super) fn output(self) -> Value {
        match self {
            Write::CancelTask => open_object(
                &[("state", json!({ "type": "string" })), ("task_id", json!({ "type": "string" }))],
                &["state", "task_id"],
            ),
            Write::DrainNode => open_object(
                &[("draining", json!({ "type": "boolean" })), ("node", json!({ "type": "integer" }))],
                &["draining", "node"],
            ),
        }
    }
}

/// Whether the caller may ask for it, once it is served to it.
pub(super) fn may(ask: &Ask, write: Write) -> bool {
    let permits = &ask.caller.standing.permits;
    match write {
        Write::CancelTask => permits.method(::a2a::methods::CANCEL_TASK),
        Write::DrainNode => permits.route(&http::Method::POST, DRAIN_ROUTE),
    }
}

/// A write with checked arguments, and what a person is asked.
pub(super) struct Meant {
    pub question: String,
    what: What,
}

enum What {
    Cancel(TaskId),
    Drain { node: NodeId, patience: Duration },
}

/// Checks the arguments of a call.
///
/// # Errors
/// What is wrong with them, for the model.
pub(super) async fn read(ask: &Ask, write: Write, arguments: Map<String, Value>) -> Result<Meant, String> {
    let mut arguments = Arguments(arguments);
    match write {
        Write::CancelTask => {
            let text = arguments.required("task_id")?;
            arguments.nothing_left()?;
            let unknown = || format!("task {:?} is not known", towline_a2a::shortened(&text));
            let task: TaskId = text.parse().map_err(|_| unknown())?;
            let principal = &ask.caller.principal;
            let look = |state: &towline_core::State| {
                state.record_for(principal, task)?;
                let live = state.task(task).map(|task| task.agent.to_string());
                live.or_else(|| state.stub(task).map(|stub| stub.agent.to_string()))
            };
            let agent = ask.server.a2a.cluster.read(look).await.map_err(|error| error.reason)?.ok_or_else(unknown)?;
            Ok(Meant { question: format!("Cancel task {task} of agent {agent}?"), what: What::Cancel(task) })
        }
        Write::DrainNode => {
            let name = arguments.required("node")?;
            let most = MAX_PATIENCE_MS / 1_000;
            let patience = arguments.number("timeout_s", 0, most)?.unwrap_or(DEFAULT_PATIENCE_S);
            arguments.nothing_left()?;
            let look = |state: &towline_core::State| {
                let number = name.parse().ok().map(NodeId);
                let node = state.nodes().find(|node| node.name == name || Some(node.id) == number)?;
                Some((node.id, node.name.clone()))
            };
            let found = ask.server.a2a.cluster.read(look).await.map_err(|error| error.reason)?;
            let unknown = || format!("node {:?} is not a member of this cluster", towline_a2a::shortened(&name));
            let (node, name) = found.ok_or_else(unknown)?;
            let question = format!("Drain node {name} ({node})? Its tasks move to other nodes, and it takes none.");
            Ok(Meant { question, what: What::Drain { node, patience: Duration::from_secs(patience) } })
        }
    }
}

/// Carries out what a person has confirmed.
///
/// # Errors
/// Why it did not happen, for the model.
pub(super) async fn perform(ask: &Ask, meant: Meant, _: Confirmed) -> Result<Value, String> {
    match meant.what {
        What::Cancel(task) => {
            let canceled = ask.a2a(::a2a::methods::CANCEL_TASK, None, json!({ "id": task.to_string() })).await?;
            let state = canceled.pointer("/status/state").cloned().unwrap_or_default();
            Ok(json!({ "state": state, "task_id": task.to_string() }))
        }
        What::Drain { node, patience } => {
            let drained = ask.server.a2a.cluster.drain(node, patience).await;
            let outcome = if drained.is_ok() { "ok" } else { "refused" };
            audit::method(&ask.caller, "cluster.drain", Some(&node.0.to_string()), outcome, &ask.trace);
            drained.map_err(|error| error.to_string())?;
            Ok(json!({ "draining": true, "node": node.0 }))
        }
    }
}

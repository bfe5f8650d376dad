//! The chain of delegations above a task: who asked whom, across meshes. It is read where a delegation begins, so that a
//! circle is seen before the next turn of it costs anything.

use serde_json::Value;

use crate::{AgentName, Message, State, TaskId, limits::MAX_HOPS};

/// Metadata key under which a message to another mesh carries the chain above it.
pub const CHAIN_KEY: &str = "dev.towline/chain";

/// One delegating task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainLink {
    /// Its agent; of another mesh as that one calls it.
    pub agent: String,
    /// Its id.
    pub task: String,
}

impl ChainLink {
    /// As metadata carries it.
    pub fn to_json(&self) -> Value {
        serde_json::json!({ "agent": self.agent, "task": self.task })
    }
}

/// The chain that a message from another mesh carries; what cannot be read counts as a link without a name, so that a chain
/// does not get shorter by being odd.
pub fn chain_in(message: &Message) -> Vec<ChainLink> {
    let links = message.metadata.get(CHAIN_KEY).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let text = |link: &Value, name: &str| link.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let most = MAX_HOPS as usize + 1;
    links.iter().take(most).map(|link| ChainLink { agent: text(link, "agent"), task: text(link, "task") }).collect()
}

impl State {
    /// The tasks that led to this one, and itself: the last link is the task. None if it is not here.
    pub fn chain_of(&self, task: TaskId) -> Vec<ChainLink> {
        let mut links = Vec::new();
        let mut next = Some(task);
        while let Some(task) = next.and_then(|id| self.task(id)) {
            links.push(ChainLink { agent: task.agent.to_string(), task: task.id.to_string() });
            next = task.parent.as_ref().map(|parent| parent.task);
            // A chain that is longer than any can be is no chain.
            if links.len() > MAX_HOPS as usize {
                break;
            }
            if next.is_none() {
                links.extend(task.history.first().map(chain_in).unwrap_or_default().into_iter().rev());
            }
        }
        links.reverse();
        links
    }

    /// The link of a chain from outside that this agent would close to a circle: a task of this mesh, of the same agent.
    pub fn closes_circle(&self, chain: &[ChainLink], agent: &AgentName) -> Option<ChainLink> {
        let is_ours = |link: &&ChainLink| {
            let id = link.task.parse::<TaskId>().ok();
            let known = id.is_some_and(|id| self.task(id).is_some_and(|task| task.agent == *agent));
            known && link.agent == agent.as_str()
        };
        chain.iter().find(is_ours).cloned()
    }
}

//! The chain of delegations above a task: who asked whom, across meshes. It is read where a delegation begins, so that a
//! circle is seen before the next turn of it costs anything.

use serde_json::Value;

use crate::{AgentName, Message, State, TaskId, limits::MAX_HOPS};

/// Bytes of the mark of a mesh: no two meshes that meet have the same.
const MARK_BYTES: usize = 8;

/// Metadata key under which a message to another mesh carries the chain above it.
pub const CHAIN_KEY: &str = "dev.towline/chain";

/// One delegating task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainLink {
    /// Its agent; of another mesh as that one calls it.
    pub agent: String,
    /// Its id.
    pub task: String,
    /// The mark of its mesh; empty if it gave none.
    pub mesh: String,
}

impl ChainLink {
    /// As metadata carries it.
    pub fn to_json(&self) -> Value {
        if self.mesh.is_empty() {
            return serde_json::json!({ "agent": self.agent, "task": self.task });
        }
        serde_json::json!({ "agent": self.agent, "mesh": self.mesh, "task": self.task })
    }
}

/// The chain that a message from another mesh carries; what cannot be read counts as a link without a name, so that a chain
/// does not get shorter by being odd.
pub fn chain_in(message: &Message) -> Vec<ChainLink> {
    let links = message.metadata.get(CHAIN_KEY).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let text = |link: &Value, name: &str| link.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let most = MAX_HOPS as usize + 1;
    let read = |link| ChainLink { agent: text(link, "agent"), task: text(link, "task"), mesh: text(link, "mesh") };
    links.iter().take(most).map(read).collect()
}

impl State {
    /// The tasks that led to this one, and itself: the last link is the task. None if it is not here.
    pub fn chain_of(&self, task: TaskId) -> Vec<ChainLink> {
        let mut links = Vec::new();
        let mut next = Some(task);
        while let Some(task) = next.and_then(|id| self.task(id)) {
            let (agent, id) = (task.agent.to_string(), task.id.to_string());
            links.push(ChainLink { agent, task: id, mesh: self.mesh_mark() });
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

    /// The link of a chain from outside that this agent would close to a circle: one of this mesh and of the same agent. Whether
    /// there is such a task is not looked at: the answer would tell it to whoever makes chains up.
    pub fn closes_circle<'c>(&self, chain: &'c [ChainLink], agent: &AgentName) -> Option<&'c ChainLink> {
        let mark = self.mesh_mark();
        chain.iter().find(|link| !mark.is_empty() && link.mesh == mark && link.agent == agent.as_str())
    }

    /// Whether a message comes out of this mesh without another one between: who delegated it last is of this mesh.
    pub fn comes_from_itself(&self, chain: &[ChainLink]) -> bool {
        let mark = self.mesh_mark();
        !mark.is_empty() && chain.last().is_some_and(|link| link.mesh == mark)
    }

    /// What links and cards of this mesh are known by: made from the id of the cluster, and empty before it has one.
    pub fn mesh_mark(&self) -> String {
        let Some((id, _)) = self.cluster() else { return String::new() };
        let hash = blake3::hash(id.as_bytes());
        hash.as_bytes()[..MARK_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

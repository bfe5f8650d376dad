//! Which agents of this node lack an MCP server that they use: said to the cluster when it changes, so that tasks go where it is
//! there.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};
use towline_core::{AgentName, Command, Lack, Level, Principal, Proposal, limits::MAX_LACKING_BYTES};

use crate::{
    mcp_connection::{McpServerState, McpServerStatus},
    shared::Shared,
};

/// Looks at which a server has to be down in a row before it is said: most are back before the second one.
const LOOKS: u32 = 2;

/// What was said last, and what is known of the servers.
#[derive(Default)]
pub(crate) struct Lacks {
    said: Mutex<BTreeMap<AgentName, String>>,
    /// Why a server is down that has not been ready since, and at how many looks: one that tries to connect is not back yet.
    down: Mutex<BTreeMap<String, (String, u32)>>,
    is_saying: AtomicBool,
}

impl Lacks {
    fn down(&self, servers: Vec<McpServerStatus>) -> BTreeMap<String, String> {
        let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        for McpServerStatus { name, state, reason, .. } in servers {
            match (state, down.get_mut(&name)) {
                (McpServerState::Ready, _) => {
                    down.remove(&name);
                }
                (McpServerState::Down | McpServerState::Connecting, Some((known, looks))) => {
                    *looks = looks.saturating_add(1);
                    if let Some(reason) = reason {
                        *known = reason;
                    }
                }
                (McpServerState::Down, None) => {
                    down.insert(name, (reason.unwrap_or_default(), 1));
                }
                (McpServerState::Connecting, None) => {}
            }
        }
        let is_said = |(name, (reason, looks)): (&String, &(String, u32))| {
            (*looks >= LOOKS).then(|| (name.clone(), reason.clone()))
        };
        down.iter().filter_map(is_said).collect()
    }
}

/// Says what the agents of this node lack, if that is news.
pub(crate) fn tell(shared: &Arc<Shared>) {
    let lacks = &shared.lacks;
    let down = lacks.down(shared.servers().iter().map(crate::McpHandle::status).collect());
    let of = |agent: &crate::AgentConfig| {
        let servers = shared.servers_of(agent);
        let what: Vec<String> = servers
            .iter()
            .filter_map(|server| Some(format!("MCP server {} is down: {}", server.name(), down.get(server.name())?)))
            .collect();
        (!what.is_empty()).then(|| (agent.name.clone(), shortened(what.join("; "))))
    };
    let agents: BTreeMap<AgentName, String> = shared.config.agents.iter().filter_map(of).collect();
    let is_news = {
        let said = lacks.said.lock().unwrap_or_else(PoisonError::into_inner);
        // Another reason for the same is none.
        !said.keys().eq(agents.keys())
    };
    let cluster = &shared.cluster;
    if !is_news || !cluster.local(|state| state.level() >= Level::PINS) || lacks.is_saying.swap(true, Ordering::Relaxed)
    {
        return;
    }
    let saying = Saying(Arc::clone(shared));
    shared.errands.run("what agents lack", async move {
        let Shared { cluster, lacks, .. } = &*saying.0;
        let (node, boot) = (cluster.node_id(), cluster.boot());
        let command = Command::Lack(Box::new(Lack { node, boot, agents: agents.clone() }));
        match cluster.propose(Proposal { by: Principal::Node(node), command }, None).await {
            Ok(_) => *lacks.said.lock().unwrap_or_else(PoisonError::into_inner) = agents,
            // It is said again at the next look.
            Err(error) => tracing::debug!(%error, "what agents lack is not said"),
        }
    });
}

/// While somebody says it, nobody else does.
struct Saying(Arc<Shared>);

impl Drop for Saying {
    fn drop(&mut self) {
        self.0.lacks.is_saying.store(false, Ordering::Relaxed);
    }
}

fn shortened(mut text: String) -> String {
    if text.len() > MAX_LACKING_BYTES {
        let mut end = MAX_LACKING_BYTES;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(state: McpServerState) -> Vec<McpServerStatus> {
        vec![McpServerStatus {
            name: "files".into(),
            transport: "http".into(),
            state,
            protocol_version: None,
            server: None,
            tools: Vec::new(),
            push: None,
            changed: BTreeMap::new(),
            pinned: false,
            left_out: Vec::new(),
            unlisted: BTreeMap::new(),
            catalogue: 0,
            reason: Some("gone".into()),
            next_try_ms: None,
        }]
    }

    #[test]
    fn a_server_counts_as_down_from_the_second_look_until_it_is_ready_and_one_that_begins_does_not() {
        let lacks = Lacks::default();
        assert!(lacks.down(server(McpServerState::Connecting)).is_empty());
        assert!(lacks.down(server(McpServerState::Down)).is_empty(), "for a moment");
        assert_eq!(lacks.down(server(McpServerState::Connecting))["files"], "gone");
        assert!(lacks.down(server(McpServerState::Ready)).is_empty());
        assert!(lacks.down(server(McpServerState::Down)).is_empty(), "for another moment");
        assert_eq!(shortened("ä".repeat(MAX_LACKING_BYTES)).len(), MAX_LACKING_BYTES);
    }
}

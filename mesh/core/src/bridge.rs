//! MCP servers that somebody makes known, while the mesh runs, to its own sessions of the bridge. Nobody else sees or uses them,
//! so what their owner says of itself – variables, headers – is kept with them and shown to nobody.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

use crate::{
    Rejection,
    limits::{MAX_BRIDGED_BYTES, MAX_BRIDGED_ITEMS},
};

/// An MCP server of one principal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgedServer {
    /// What its owner calls it: unique among those of its owner.
    pub id: String,
    /// A name for people.
    pub name: String,
    /// How it is reached.
    pub transport: BridgedTransport,
    /// How long a request to it may take, in seconds.
    pub timeout_s: u32,
    /// Whether a connection that is lost is made again.
    pub auto_reconnect: bool,
    /// The tools that may be used; none means all.
    pub tools: Vec<String>,
    /// The URIs of the resources that may be used; none means all.
    pub resources: Vec<String>,
}

/// How such a server is reached.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BridgedTransport {
    /// A child process of each node that has a session of the owner, where the node's configuration allows the command.
    Command {
        /// Program and arguments.
        command: Vec<String>,
        /// Where it runs; empty means where the node does.
        cwd: String,
        /// Added to its environment.
        env: BTreeMap<String, String>,
    },
    /// A URL.
    Url {
        /// Where.
        url: String,
        /// What its owner calls the transport.
        kind: String,
        /// Sent with each request.
        headers: BTreeMap<String, String>,
    },
}

impl fmt::Debug for BridgedTransport {
    /// Without the values of variables and headers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BridgedTransport::Command { command, .. } => write!(f, "Command({command:?})"),
            BridgedTransport::Url { url, .. } => write!(f, "Url({url:?})"),
        }
    }
}

/// A change of the servers of one principal: who proposes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BridgeChange {
    /// One comes.
    Register(BridgedServer),
    /// One goes; one that is not there is gone already.
    Unregister {
        /// Its id.
        id: String,
    },
}

impl BridgedServer {
    /// Refuses what is too much.
    pub(crate) fn check(&self) -> Result<(), Rejection> {
        let pairs =
            |map: &BTreeMap<String, String>| map.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        let (texts, map, bytes): (&[String], _, usize) = match &self.transport {
            BridgedTransport::Command { command, cwd, env } => (command, env, cwd.len() + pairs(env)),
            BridgedTransport::Url { url, kind, headers } => (&[], headers, url.len() + kind.len() + pairs(headers)),
        };
        let lists = [texts, &self.tools, &self.resources];
        let items = lists.iter().map(|list| list.len()).sum::<usize>() + map.len();
        let texts: usize = lists.iter().flat_map(|list| list.iter()).map(String::len).sum();
        let too_large = |what: &str, limit: usize| Rejection::TooLarge { what: what.to_owned(), limit: limit as u64 };
        if items > MAX_BRIDGED_ITEMS {
            return Err(too_large("number of words, variables, headers and names of the server", MAX_BRIDGED_ITEMS));
        }
        if bytes + texts + self.id.len() + self.name.len() > MAX_BRIDGED_BYTES {
            return Err(too_large("configuration of the server in bytes", MAX_BRIDGED_BYTES));
        }
        Ok(())
    }
}

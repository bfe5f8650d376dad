//! What the mesh of one node is told to run: plain data that was validated where the configuration file was read.

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::Duration};

use towline_core::{AgentName, AgentSpec, Budget, Labels, OnAdoption, Peer, Placement, TriggerSpec};

use crate::{
    PushConfig,
    egress::EgressPolicy,
    mcp_connection::{Asks, McpSecurity, is_websocket},
    traits::Traits,
};

/// The whole configuration of this node's part of the mesh.
#[derive(Debug, Clone, Default)]
pub struct MeshConfig {
    /// How many tasks run on this node at the same time; tasks that wait for others do not count.
    pub permits: u32,
    /// Models by the name that agents use.
    pub models: BTreeMap<String, ModelConfig>,
    /// MCP servers, each with a name that is unique.
    pub servers: Vec<McpServerConfig>,
    /// Agents that this node declares.
    pub agents: Vec<AgentConfig>,
    /// Agents outside of this mesh, reached over A2A.
    pub peers: Vec<PeerConfig>,
    /// How clients are told by webhooks; none where that is off.
    pub push: Option<PushConfig>,
    /// What starts tasks by itself, as this node's configuration has it.
    pub triggers: Vec<TriggerSpec>,
    /// How this node calls itself towards MCP servers; nothing if empty.
    pub instance: String,
    /// What a task may spend that nobody of this mesh delegated, with all that it delegates.
    pub task_budget: Budget,
    /// How long such a task may take.
    pub task_time: Option<Duration>,
}

/// One agent.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Unique in the cluster.
    pub name: AgentName,
    /// For its card, and for the models of agents that may delegate to it.
    pub description: String,
    /// Key of [`MeshConfig::models`].
    pub model: String,
    /// The system prompt.
    pub instruction: String,
    /// Globs over `server.tool`.
    pub tools: Vec<String>,
    /// Globs over the servers whose resources it may read.
    pub resources: Vec<String>,
    /// Agents of this mesh and configured peers that it may delegate to.
    pub delegates: Vec<String>,
    /// On which nodes it is placed.
    pub placement: Placement,
    /// How many of its tasks run on one node at the same time; none means that only the node's limit holds.
    pub permits: Option<u32>,
    /// Most of its tasks in the cluster that have not ended; none means the limit of the core.
    pub queue: Option<u32>,
    /// Most model calls of one task.
    pub max_steps: u32,
    /// Whether it may ask a person.
    pub ask_human: bool,
    /// Tags of its skill on the agent card.
    pub tags: Vec<String>,
    /// It runs only on nodes that have all of these.
    pub labels: Labels,
    /// What comes together in it: its own tags, its servers, its peers, and what its delegates hold or send out.
    pub traits: Traits,
    /// Whether text from outside may come to it although it holds sensitive data and has a way out.
    pub allow_trifecta: bool,
    /// It has no model: each of its tasks is one of the peer with its name.
    pub relays: bool,
}

impl AgentConfig {
    /// A peer that takes part in the mesh as an agent.
    pub(crate) fn of_peer(peer: &Peer) -> Option<Self> {
        let joined = peer.joined.as_ref()?;
        Some(Self {
            name: peer.name.clone(),
            description: joined.description.clone(),
            model: String::new(),
            instruction: String::new(),
            tools: Vec::new(),
            resources: Vec::new(),
            delegates: Vec::new(),
            placement: Placement::EveryNode,
            permits: None,
            queue: None,
            max_steps: 1,
            ask_human: false,
            tags: joined.tags.clone(),
            labels: Labels::new(),
            traits: Traits::PEER,
            allow_trifecta: false,
            relays: true,
        })
    }

    /// Whether text from outside is kept away from it.
    pub(crate) fn must_stay_clean(&self) -> bool {
        self.traits.must_stay_clean() && !self.allow_trifecta
    }

    /// What the cluster learns of the agent.
    pub fn spec(&self) -> AgentSpec {
        AgentSpec {
            name: self.name.clone(),
            description: self.description.clone(),
            placement: self.placement,
            tags: self.tags.clone(),
            queue: self.queue,
            labels: self.labels.clone(),
        }
    }
}

/// One model.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    /// Who answers.
    pub provider: Provider,
    /// The name that the provider knows it by.
    pub model: String,
    /// Where the provider is, if not at its usual address.
    pub base_url: Option<String>,
    /// What the provider asks for.
    pub api_key: Option<Secret>,
    /// How long each phase of a call may take.
    pub timeouts: ModelTimeouts,
}

/// How long each phase of a model call may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelTimeouts {
    /// Until the connection stands.
    pub connect: Duration,
    /// Until the first delta.
    pub first: Duration,
    /// Between two deltas.
    pub idle: Duration,
    /// For the whole call.
    pub total: Duration,
}

impl Default for ModelTimeouts {
    /// Generous towards models that think before they speak, and still an end for one that never does.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first: Duration::from_secs(60),
            idle: Duration::from_secs(60),
            total: Duration::from_secs(600),
        }
    }
}

/// Who answers model calls.
#[derive(Debug, Clone)]
pub enum Provider {
    /// Rules in a file: no AI, no network.
    Scripted {
        /// The rules, as YAML text.
        rules: String,
        /// Whether a prompt that no rule matches is an error.
        strict: bool,
    },
    /// Anything that speaks OpenAI's chat completions.
    OpenAi,
    /// Anthropic.
    Anthropic,
    /// Gemini.
    Gemini,
    /// Ollama.
    Ollama,
}

/// One MCP server.
#[derive(Debug, Clone)]
pub struct McpServerConfig {
    /// Qualifies its tools: `name.tool`.
    pub name: String,
    /// How it is reached.
    pub transport: McpTransport,
    /// Globs over its tool names; none allows all.
    pub allow: Vec<String>,
    /// What an adopter does with an open call, by glob over tool names; the first that matches counts.
    pub on_adoption: BTreeMap<String, OnAdoption>,
    /// Whether `readOnlyHint` and `idempotentHint` of the server are believed.
    pub trust_annotations: bool,
    /// How long a call may take, whatever it says meanwhile. The time that a person takes to answer it does not count.
    pub call_timeout: Duration,
    /// How long a call may say nothing: progress begins it anew.
    pub idle_timeout: Duration,
    /// Calls to it at the same time.
    pub max_calls: usize,
    /// Whether it may ask a person something in the middle of a call.
    pub elicitation: bool,
    /// What happens to a tool whose description or schema is not what it was when it was listed first.
    pub on_change: OnChange,
    /// Whether this node refuses to start without it.
    pub required: bool,
    /// What its tags say of the data that it gives and takes.
    pub traits: Traits,
    /// Whom it may ask for a completion and for roots; none unless a bridge serves it.
    pub asks: Option<Asks>,
    /// Where it may be, if somebody else than the operator said where it is.
    pub egress: Option<Arc<EgressPolicy>>,
    /// Whether a connection that is lost is made again.
    pub reconnect: bool,
    /// How this node shows it who it is, and how it knows the server.
    pub security: McpSecurity,
}

impl McpServerConfig {
    /// Default of `call_timeout`: a tool that works for longer says so in the configuration.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

    /// Default of `idle_timeout`.
    pub const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

    /// Default of `max_calls`: more of them would only queue in the server, where they cannot be cancelled well.
    pub const DEFAULT_MAX_CALLS: usize = 32;

    /// A server with every other setting at its default.
    pub fn new(name: &str, transport: McpTransport) -> Self {
        Self {
            name: name.to_owned(),
            transport,
            allow: Vec::new(),
            on_adoption: BTreeMap::new(),
            trust_annotations: false,
            call_timeout: Self::DEFAULT_TIMEOUT,
            idle_timeout: Self::DEFAULT_IDLE_TIMEOUT,
            max_calls: Self::DEFAULT_MAX_CALLS,
            elicitation: false,
            on_change: OnChange::Flag,
            required: false,
            traits: Traits::default(),
            asks: None,
            egress: None,
            reconnect: true,
            security: McpSecurity::default(),
        }
    }
}

/// What happens to a tool that is not what it was when it was listed first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnChange {
    /// It is said, and the tool is offered as it is now.
    #[default]
    Flag,
    /// It is said, and the tool is offered no more.
    Block,
}

/// How an MCP server is reached.
#[derive(Debug, Clone)]
pub enum McpTransport {
    /// A child process that speaks over its standard input and output.
    Stdio {
        /// Program and arguments.
        command: Vec<String>,
        /// Added to its environment.
        env: BTreeMap<String, String>,
        /// Where it runs.
        cwd: Option<PathBuf>,
    },
    /// HTTP, or a WebSocket where the URL says so.
    Http {
        /// URL of the endpoint.
        endpoint: String,
        /// Sent with each request.
        headers: Vec<(String, Secret)>,
        /// The Unix socket that it listens on, in the place of the URL's host.
        socket: Option<PathBuf>,
        /// Whether it is known to speak only HTTP with SSE, as of 2024-11-05.
        legacy: bool,
    },
}

impl McpTransport {
    /// Streamable HTTP at a URL.
    pub fn http(endpoint: impl Into<String>) -> Self {
        McpTransport::Http { endpoint: endpoint.into(), headers: Vec::new(), socket: None, legacy: false }
    }

    /// Its name, as in the configuration.
    pub fn kind(&self) -> &'static str {
        match self {
            McpTransport::Stdio { .. } => "stdio",
            McpTransport::Http { legacy: true, .. } => "sse",
            McpTransport::Http { socket: Some(_), .. } => "unix",
            McpTransport::Http { endpoint, .. } if is_websocket(endpoint) => "ws",
            McpTransport::Http { .. } => "http",
        }
    }

    /// The URL of a server that is reached by one.
    pub(crate) fn endpoint(&self) -> Option<&str> {
        match self {
            McpTransport::Stdio { .. } => None,
            McpTransport::Http { endpoint, .. } => Some(endpoint),
        }
    }

    pub(crate) fn is_stdio(&self) -> bool {
        match self {
            McpTransport::Stdio { .. } => true,
            McpTransport::Http { .. } => false,
        }
    }
}

/// An agent outside of this mesh.
#[derive(Debug, Clone)]
pub struct PeerConfig {
    /// The name that agents delegate to.
    pub name: String,
    /// Where its card and endpoint are: every call goes to one of these hosts, the first that answers.
    pub urls: Vec<String>,
    /// Sent as `Authorization: Bearer`.
    pub bearer: Option<Secret>,
    /// Whether it takes the same message id twice as one message.
    pub idempotent: bool,
    /// How long it may take to answer a request; its task may take as long as it takes.
    pub timeout: Duration,
    /// Whether it is told on whose behalf it is asked.
    pub tell_principal: bool,
}

impl PeerConfig {
    /// Default of `timeout`.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
}

/// A text that no log, error or debug output shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_show_in_debug_output() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(..)");
    }
}

//! The configuration of a node: one YAML file, then the environment, then the command line.
//!
//! [`load`] reads it whole and reports every mistake at once, each with its path and place. It touches nothing: a node
//! with a wrong file ends before it has made a folder or opened a port. A [`NodeConfig`] exists only if nothing is wrong.

mod a2e;
mod agents;
mod auth;
mod cards;
mod device_grant;
mod labels;
mod lifecycle;
mod limits;
mod mcp_security;
mod mistakes;
mod models;
mod node;
mod peers;
mod push;
mod redacted;
#[cfg(test)]
mod reference;
mod secrets;
mod section;
mod serve;
mod servers;
mod telemetry;
mod tree;
mod trifecta;
pub(crate) mod triggers;
mod values;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use towline_actors::{MeshConfig, egress::EgressPolicy};
use towline_cluster::CERTIFICATE_LIFE;
use towline_core::AgentName;

pub use cards::CardSettings;
pub use lifecycle::LifecycleSettings;
pub use limits::LimitSettings;
pub use mistakes::{ConfigError, Mistake, Origin};
pub use node::{DEFAULT_DATA, DEFAULT_HTTP, DEFAULT_PEER, NodeSettings};
pub use redacted::Redacted;
pub use telemetry::TelemetrySettings;

use section::{Context, Field, Section};
use tree::Tree;

use crate::{a2e::A2eSettings, auth::AuthSettings, hooks::Hooks, mcp_server::ServeSettings};
pub(crate) use secrets::Secrets;
pub(crate) use values::{duration, http_url, is_plain_remote, peer_url, url_text};

/// Largest configuration file: a hundred thousand agents fit.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;
/// Certificates that end sooner would be renewed all the time; this short is for trying it out.
const SHORTEST_CERTIFICATE_LIFE: Duration = Duration::from_secs(10);
/// A certificate that is good for longer protects from little.
const LONGEST_CERTIFICATE_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// Environment variables of settings start with this; `__` stands between the parts of a path.
const ENV_PREFIX: &str = "TOWLINE_";
/// The parts that a path may begin with.
const TOP_LEVEL: [&str; 15] = [
    "node",
    "cluster",
    "front_door",
    "models",
    "mcp",
    "agents",
    "peers",
    "telemetry",
    "limits",
    "auth",
    "push",
    "cards",
    "triggers",
    "a2e",
    "lifecycle",
];

/// A configuration that is right.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Who this node is and where it listens.
    pub node: NodeSettings,
    /// The cluster that it should belong to, if the file says so.
    pub cluster: Option<String>,
    /// How long the certificates are good that this node signs.
    pub certificate_life: Duration,
    /// The agent behind the mesh's own card.
    pub front_door: Option<AgentName>,
    /// Agents, models, servers, peers.
    pub mesh: MeshConfig,
    /// Where spans go.
    pub telemetry: TelemetrySettings,
    /// How much of what is taken.
    pub limits: LimitSettings,
    /// Who may call.
    pub auth: AuthSettings,
    /// Where webhooks of clients may lead; none where push notifications are off.
    pub push: Option<Arc<EgressPolicy>>,
    /// What agent cards are signed with.
    pub cards: CardSettings,
    /// What is served over MCP, and to whom.
    pub serve: ServeSettings,
    /// What callers of webhooks have to show.
    pub hooks: Hooks,
    /// Which MCP servers agents of others reach through the bridge.
    pub a2e: A2eSettings,
    /// How it ends.
    pub lifecycle: LifecycleSettings,
    /// What of it may be shown.
    pub redacted: Redacted,
}

/// What lies over the file.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// The environment: `TOWLINE_NODE__LISTEN__HTTP` is `node.listen.http`. Also where secrets are found.
    pub env: BTreeMap<String, String>,
    /// `--set PATH=VALUE`, over the environment.
    pub flags: Vec<(String, String)>,
}

impl Overrides {
    /// The environment of this process, and what the command line says.
    pub fn of_process(flags: Vec<(String, String)>) -> Self {
        let env =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Self { env: env.collect(), flags }
    }
}

/// Reads a configuration file.
///
/// # Errors
/// When the file cannot be read, or has mistakes: all of them.
pub fn load(path: &Path, overrides: &Overrides) -> Result<NodeConfig, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let size = fs::metadata(path).map_err(failed)?.len();
    if size > MAX_FILE_BYTES {
        return Err(failed(std::io::Error::other(format!("{size} bytes; the limit is {MAX_FILE_BYTES}"))));
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    let base = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let base = std::path::absolute(base).map_err(failed)?;
    read(&text, base, overrides).map_err(|mistakes| ConfigError::Mistakes { path: path.to_owned(), mistakes })
}

/// The smallest configuration that runs an agent; `CLUSTER` stands for the name of the cluster.
pub const SAMPLE: &str = include_str!("../commands/sample.yaml");

/// The configuration of a node that was given none: that of [`SAMPLE`].
///
/// # Errors
/// When what lies over it has mistakes.
pub fn read_sample(overrides: &Overrides) -> Result<NodeConfig, ConfigError> {
    let path = PathBuf::from("the built-in sample");
    let text = SAMPLE.replace("CLUSTER", "ephemeral");
    read(&text, PathBuf::from("."), overrides).map_err(|mistakes| ConfigError::Mistakes { path, mistakes })
}

/// Reads a configuration from its text; `base` is where its relative paths start.
pub(crate) fn read(text: &str, base: PathBuf, overrides: &Overrides) -> Result<NodeConfig, Vec<Mistake>> {
    let mut tree = Tree::parse(text).map_err(|mistake| vec![mistake])?;
    let mistakes = apply(&mut tree, overrides);
    let context = Context { base, secrets: secrets::Secrets::new(&overrides.env), mistakes: RefCell::new(mistakes) };
    let redacted = Redacted::of(&tree, &context.secrets);
    let config = Field::root(&tree, &context).section().map(|root| read_root(root, redacted));
    let mut mistakes = context.mistakes.into_inner();
    mistakes.sort();
    match config {
        Some(config) if mistakes.is_empty() => Ok(config),
        _ => Err(mistakes),
    }
}

fn read_root(mut root: Section<'_>, redacted: Redacted) -> NodeConfig {
    let mut node = node::read(&mut root);
    let (cluster, certificate_life) = read_cluster(&mut root);
    let models = models::read(&mut root);
    let (servers, serve) = servers::read(&mut root);
    let a2e = a2e::read(&mut root, &servers);
    let peers = peers::read(&mut root);
    let known = agents::Known {
        models: root.keys_of("models"),
        servers: servers.iter().map(|server| server.name.as_str()).collect(),
        peers: peers.iter().map(|peer| peer.name.as_str()).collect(),
        configured: &servers,
    };
    let agents = agents::read(&mut root, &known);
    let front_door = agents::read_front_door(&mut root, &agents);
    let (triggers, hooks) = triggers::read(&mut root, &agents, &servers);
    let telemetry = telemetry::read(&mut root);
    let limits = limits::read(&mut root);
    let mut auth = auth::read(&mut root, &mut node, &limits);
    auth.own_traces = !telemetry.trust_callers;
    let push = push::read(&mut root);
    let cards = cards::read(&mut root);
    let lifecycle = lifecycle::read(&mut root);
    root.finish();
    let permits = node.permits;
    let (task_budget, task_time) = (limits.task_budget(), limits.task_time);
    let mesh = MeshConfig {
        permits,
        models,
        servers,
        agents,
        peers,
        push: None,
        triggers,
        instance: String::new(),
        task_budget,
        task_time,
    };
    NodeConfig {
        node,
        cluster,
        certificate_life,
        front_door,
        mesh,
        telemetry,
        limits,
        auth,
        push,
        cards,
        serve,
        hooks,
        a2e,
        lifecycle,
        redacted,
    }
}

fn read_cluster(root: &mut Section<'_>) -> (Option<String>, Duration) {
    let Some(mut section) = root.get("cluster").and_then(|field| field.section()) else {
        return (None, CERTIFICATE_LIFE);
    };
    let name = section.get("name").and_then(|field| field.parse(values::plain_name));
    let life = section.get("certificate_life").and_then(|field| field.parse(certificate_life));
    section.finish();
    (name, life.unwrap_or(CERTIFICATE_LIFE))
}

/// A name that a cluster may have.
///
/// # Errors
/// What is wrong with another.
pub fn cluster_name(text: &str) -> Result<String, String> {
    values::plain_name(text).map_err(|error| error.to_string())
}

fn certificate_life(text: &str) -> Result<Duration, String> {
    let life = values::duration(text)?;
    if (SHORTEST_CERTIFICATE_LIFE..=LONGEST_CERTIFICATE_LIFE).contains(&life) {
        return Ok(life);
    }
    Err(format!("{text:?} is out of range: 10s to 8760h (a year); 720h is the default"))
}

/// Puts the environment and the flags over the file; returns what does not fit.
fn apply(tree: &mut Tree, overrides: &Overrides) -> Vec<Mistake> {
    let from_env = overrides.env.iter().filter_map(|(name, value)| {
        let path: Vec<String> = name.strip_prefix(ENV_PREFIX)?.split("__").map(str::to_lowercase).collect();
        TOP_LEVEL.contains(&path[0].as_str()).then(|| (Origin::Env(name.clone()), path, value))
    });
    let from_flags = overrides.flags.iter().map(|(path, value)| {
        (Origin::Flag(format!("--set {path}")), path.split('.').map(str::to_owned).collect(), value)
    });
    let mut mistakes = Vec::new();
    for (at, path, value) in from_env.chain(from_flags) {
        if let Err(message) = tree.set(&path, value, &at) {
            mistakes.push(Mistake { at, path: path.join("."), message });
        }
    }
    mistakes
}

#[cfg(test)]
mod tests;

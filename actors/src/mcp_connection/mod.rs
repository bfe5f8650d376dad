//! Keeps the connection to one MCP server: connects, lists its tools, connects again with back-off when it is lost.
//!
//! Calls are made by the caller's own task through [`McpHandle::call`] over what the actor published; no handler of
//! this actor waits for the server. A server that is down degrades its own tools and nothing else: they stay in the
//! catalogue, and a call to one says why it cannot be made and when the next try is.
//!
//! ```text
//!            Connect                 Connected                    Lost
//! Waiting ───────────▶ Connecting ─────────────▶ Ready ──────────────────────▶ Waiting (back-off)
//!                          └──────── Lost ─────────────────────────────────────▶
//! ```

mod answers;
mod bridged;
mod call;
mod catalogue;
mod causes;
mod client;
mod credentials;
mod elicitation;
mod events;
mod first;
mod forward;
mod fuzz;
mod guards;
mod inspect;
mod legacy;
mod link;
mod login;
mod not_asked;
mod offers;
mod pages;
mod pins;
mod revision;
mod socket;
mod spool;
mod subscriptions;
mod tail;
mod text;
mod underway;
mod websocket;

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SpawnErr};
use rmcp::{RoleClient, service::Peer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use towline_cluster::ClusterHandle;
use towline_core::{Labels, OnAdoption, Part, Principal, StepNo, TaskId, TraceContext};
use towline_trace::{KeyValue, names};

use crate::config::{McpServerConfig, OnChange};
use catalogue::Listing;
use client::Client;
use credentials::Credentials;
use guards::Guards;
use pins::{Judged, Pins};
use socket::Seen;
use spool::Spool;
use subscriptions::Watches;
use tail::Tail;
use underway::Underway;

pub use bridged::{Asks, HostAsk, Notice, Subscribed, Wanted, asks};
pub(crate) use catalogue::wire_name;
pub use catalogue::{READ_RESOURCE, ResourceInfo};
pub use credentials::{
    AuthError, BegunLogin, DeviceLogin, McpAuth, McpSecurity, McpTls, OAuthGrant, OAuthSettings, SigV4Settings,
};
pub use events::{
    CallEvent, CallEvents, Heard, Question, channel as call_events, channel_of as call_events_of, passed_on,
};
pub use forward::{Forward, NotForwarded};
pub use fuzz::mcp_answer as fuzz_answer;
pub use inspect::{McpInspection, PromptInfo, TemplateInfo};
pub use offers::Offers;
pub use revision::Capabilities;
pub(crate) use subscriptions::ResourceWatch;
pub use tail::{TailKind, TailLine};
pub(crate) use text::bad_uri;
pub use text::plain_line;
pub(crate) use websocket::is_websocket;

/// Wait before the second try to connect; it doubles up to [`MAX_BACK_OFF`].
const FIRST_BACK_OFF: Duration = Duration::from_millis(200);

/// Longest wait between two tries: a server that comes back is noticed within this time.
const MAX_BACK_OFF: Duration = Duration::from_secs(15);

/// Tries after which a server that has to be there counts as gone: six seconds of waiting, for one that starts beside the node.
/// One that takes long to answer uses up its time at the first of them.
const PLAIN_TRIES: u32 = 6;

/// A connection that lived this long ends the back-off; a shorter one counts as one more failure, so that a server
/// that dies right after each handshake is not started in a tight loop.
const STABLE_AFTER: Duration = Duration::from_secs(5);

/// Announcements of changed tools within this time cause one new listing: servers send several in a row.
const RELIST_DEBOUNCE: Duration = Duration::from_millis(250);

/// Wait before a list is asked for again that could not be had; it doubles up to [`MAX_LIST_BACK_OFF`].
const FIRST_LIST_BACK_OFF: Duration = Duration::from_secs(1);

/// Longest such wait: a server of which a list always fails is asked no more than once a minute.
const MAX_LIST_BACK_OFF: Duration = Duration::from_secs(60);

/// How often the cluster is looked at for what it knows of the tools: an operator may have agreed to a change at another node.
const LOOK_AT_PINS: Duration = Duration::from_secs(15);

/// Longest wait for the link to end when the actor stops: the child had its time to exit, see `link`.
const STOP_TIMEOUT: Duration = Duration::from_secs(4);

/// A tool of a connected server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolInfo {
    /// `server.tool`, as models and configurations name it.
    pub qualified: String,
    /// The server.
    pub server: String,
    /// The tool, as its server names it.
    pub tool: String,
    /// What it does, in the words of its server: text from outside.
    pub description: String,
    /// JSON Schema of its arguments.
    pub schema: Value,
    /// What an adopter does with an open call.
    pub on_adoption: OnAdoption,
    /// The same for as long as name, description, schema and annotations are.
    #[serde(default)]
    pub digest: String,
}

/// A call of a tool.
#[derive(Debug, Clone)]
pub struct CallRequest {
    /// The tool, as its server names it.
    pub tool: String,
    /// Its arguments, a JSON object.
    pub arguments: Value,
    /// The task that calls.
    pub task: TaskId,
    /// The step that calls.
    pub step: StepNo,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The same on every attempt; servers that know `dev.towline/idempotency_key` use it.
    pub idempotency_key: String,
    /// The `tools/call` span of the caller: its id is in the journal before the call is made.
    pub trace: TraceContext,
    /// The `tracestate` beside it, as it came from the caller; empty if there is none.
    pub trace_state: String,
    /// What the configuration says of whom the task is for; servers are told as `dev.towline/labels`.
    pub labels: Labels,
    /// How long the call may take; the server's configured time if none.
    pub timeout: Option<Duration>,
    /// Where goes what the server says meanwhile.
    pub events: CallEvents,
}

/// What a tool answered.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResult {
    /// All content as text; what is no text is named.
    pub text: String,
    /// `structuredContent`, if there was any.
    pub structured: Option<Value>,
    /// Images, sounds and other files that it made.
    pub files: Vec<Part>,
    /// `isError`: the tool's own word, an observation and not a fault.
    pub is_error: bool,
    /// The whole answer, but for what lies in the blob store. That of a resource that was read has its contents as blocks.
    pub answer: Value,
}

/// A call that did not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// Low-cardinality class, as on the span: `timeout`, `unknown_tool`, a JSON-RPC code.
    pub error_type: Cow<'static, str>,
    /// What was tried and what went wrong.
    pub message: String,
    /// Whether the server may have carried the call out all the same: it was sent, and the connection broke before the
    /// answer.
    pub may_have_happened: bool,
}

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum McpServerState {
    /// The handshake or the first listing is under way.
    Connecting,
    /// Tools can be called.
    Ready,
    /// The connection failed or was lost; the next try is planned.
    Down,
}

/// What an operator sees of a connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct McpServerStatus {
    /// The server's name in the configuration.
    pub name: String,
    /// `stdio` or `http`.
    pub transport: String,
    /// Where the connection stands.
    pub state: McpServerState,
    /// Negotiated protocol revision, while ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<String>,
    /// Name and version that the server gave itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Qualified names of the tools that agents may use.
    pub tools: Vec<String>,
    /// Whether it can say something by itself: `live`, `opening`, `reconnecting`, `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<String>,
    /// Tools that are not what they were when they were listed first, and what that means: `mcp.tools_changed` in the log.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub changed: BTreeMap<String, String>,
    /// Whether the cluster remembers what its tools looked like first, also when this node is down.
    #[serde(default)]
    pub pinned: bool,
    /// What of its lists is left out, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Lists of it that cannot be had, and why: what it listed before is shown, and they are asked for again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unlisted: BTreeMap<String, String>,
    /// Counts the listings that were published: what was read under another one may be old.
    #[serde(default)]
    pub catalogue: u64,
    /// Why it is down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When the next try is, from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_try_ms: Option<u64>,
}

/// The way to a connection. Cheap to clone.
#[derive(Clone)]
pub struct McpHandle {
    config: Arc<McpServerConfig>,
    actor: ActorRef<ConnectionMsg>,
    published: watch::Receiver<Published>,
    /// When the actor was started.
    begun: Instant,
    guards: Guards,
    tail: Tail,
    /// The last connection that a call has seen break, by its generation.
    broken: Arc<AtomicU64>,
    spool: Spool,
    watches: Watches,
    credentials: Credentials,
    offers: offers::Known,
}

impl McpHandle {
    /// Starts the connection of one server; it connects in the background. The server is told that this is `instance`.
    ///
    /// # Errors
    /// When the actor system refuses another actor.
    pub async fn spawn(
        config: McpServerConfig,
        cluster: Option<ClusterHandle>,
        instance: &str,
        supervisor: Option<ActorCell>,
    ) -> Result<Self, SpawnErr> {
        let (config, spool) = (Arc::new(config), Spool::new(cluster));
        let (publish, published) = watch::channel(Published::default());
        let (guards, tail, watches) = (Guards::new(config.max_calls), Tail::default(), Watches::default());
        let credentials = Credentials::of(&config);
        let arguments = ConnectionArguments {
            config: config.clone(),
            instance: instance.into(),
            publish,
            spool: spool.clone(),
            guards: guards.clone(),
            tail: tail.clone(),
            watches: watches.clone(),
            credentials: credentials.clone(),
        };
        let (actor, _) = match supervisor {
            Some(supervisor) => Actor::spawn_linked(None, ConnectionActor, arguments, supervisor).await?,
            None => Actor::spawn(None, ConnectionActor, arguments).await?,
        };
        Ok(Self {
            config,
            actor,
            published,
            begun: Instant::now(),
            guards,
            tail,
            broken: Arc::default(),
            spool,
            watches,
            credentials,
            offers: offers::Known::default(),
        })
    }

    /// The server's name in the configuration.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The actor, for its supervisor.
    pub(crate) fn actor_id(&self) -> ActorId {
        self.actor.get_id()
    }

    /// The tools that agents may use. They stay listed while the server is down, so that a call can say so.
    pub fn tools(&self) -> Vec<ToolInfo> {
        self.published.borrow().tools.to_vec()
    }

    /// One of them, as its server names it.
    pub fn tool(&self, name: &str) -> Option<ToolInfo> {
        self.published.borrow().tools.iter().find(|known| known.tool == name).cloned()
    }

    /// The resources that the server listed last.
    pub fn resources(&self) -> Vec<ResourceInfo> {
        self.published.borrow().resources.to_vec()
    }

    /// Whether resources of it can be read, as far as is known.
    pub fn has_resources(&self) -> bool {
        let published = self.published.borrow();
        match &published.phase {
            Phase::Ready(live) => live.capabilities.resources,
            Phase::Connecting | Phase::Waiting { .. } => !published.resources.is_empty(),
        }
    }

    /// What the server says of how it is used, while it is ready: text from outside.
    pub fn instructions(&self) -> Option<String> {
        match &self.published.borrow().phase {
            Phase::Ready(live) => live.instructions.clone(),
            Phase::Connecting | Phase::Waiting { .. } => None,
        }
    }

    /// What the server said beside its answers, after the line of a number.
    pub fn tail(&self, after: u64) -> Vec<TailLine> {
        self.tail.after(after)
    }

    /// Attributes of the connection for the span of a call.
    pub fn span_attributes(&self) -> Vec<KeyValue> {
        let published = self.published.borrow();
        let mut attributes = vec![
            KeyValue::new(names::MCP_SERVER, self.config.name.clone()),
            KeyValue::new(names::PEER_SERVICE, self.config.name.clone()),
            KeyValue::new(names::NETWORK_TRANSPORT, if self.config.transport.is_stdio() { "pipe" } else { "tcp" }),
        ];
        if let Phase::Ready(live) = &published.phase {
            attributes.push(KeyValue::new(names::MCP_PROTOCOL_VERSION, live.protocol_version.clone()));
        }
        attributes
    }

    /// Waits until the server is ready.
    ///
    /// # Errors
    /// The reason, when it is not ready in time, or several tries in a row have failed.
    pub async fn ready(&self, within: Duration) -> Result<(), CallError> {
        call::live(self, within, call::Patience::Tries(PLAIN_TRIES)).await.map(|_| ())
    }

    /// Calls a tool, or reads a resource. An error that the tool reports is an answer ([`ToolResult::is_error`]).
    ///
    /// # Errors
    /// When the tool is not in the catalogue, the server cannot be reached, breaks the protocol or takes too long, or
    /// when `cancel` fired; the server is told of the last two.
    pub async fn call(&self, request: CallRequest, cancel: CancellationToken) -> Result<ToolResult, CallError> {
        call::call(self, request, cancel).await
    }

    /// An operator agrees to the tools as they are listed now, in the whole cluster.
    ///
    /// # Errors
    /// When nothing is listed yet, or the cluster does not remember it.
    pub async fn accept(&self, by: Principal) -> Result<usize, CallError> {
        let failed = |why: &str| CallError {
            error_type: "not_accepted".into(),
            message: format!("accept the tools of {}: {why}", self.name()),
            may_have_happened: false,
        };
        let (listed, is_listed) = {
            let published = self.published.borrow();
            (published.listed.clone(), published.catalogue > 0)
        };
        let cluster = self.spool.cluster().filter(|_| is_listed).ok_or_else(|| failed("they are not listed yet"))?;
        let remembered = pins::remember(cluster, by, pins::key(&self.config), (&listed, true));
        remembered.await.map_err(|why| failed(&why))?;
        // A stopped actor lists nothing.
        let _ = self.actor.cast(ConnectionMsg::LookAtPins);
        Ok(listed.len())
    }

    /// What an operator sees.
    pub fn status(&self) -> McpServerStatus {
        let published = self.published.borrow();
        let tools = published.tools.iter().map(|tool| tool.qualified.clone()).collect();
        let blocks = self.config.on_change == OnChange::Block;
        let told = |how: &str| if blocks { format!("{how}, blocked") } else { how.to_owned() };
        let mut status = McpServerStatus {
            name: self.config.name.clone(),
            transport: self.config.transport.kind().into(),
            state: McpServerState::Connecting,
            protocol_version: None,
            server: None,
            tools,
            push: None,
            changed: published.changed.iter().map(|(tool, how)| (tool.clone(), told(how))).collect(),
            pinned: published.pinned,
            left_out: published.left_out.to_vec(),
            unlisted: self.offers.failed(),
            catalogue: published.catalogue,
            reason: None,
            next_try_ms: None,
        };
        status.unlisted.extend(published.unlisted.iter().map(|(list, why)| ((*list).to_owned(), why.clone())));
        match &published.phase {
            Phase::Connecting => {}
            Phase::Ready(live) => {
                status.state = McpServerState::Ready;
                status.protocol_version = Some(live.protocol_version.clone());
                status.server = live.server.clone();
                status.push = Some(live.seen.push().word().to_owned());
            }
            Phase::Waiting { reason, next_try, .. } => {
                status.state = McpServerState::Down;
                status.reason = Some(reason.clone());
                status.next_try_ms = next_try.map(|next_try| {
                    let wait = next_try.saturating_duration_since(Instant::now());
                    wait.as_millis().try_into().unwrap_or(u64::MAX)
                });
            }
        }
        status
    }

    /// Ends the connection and its child process, and waits for that.
    pub async fn stop(&self) {
        let stopped = self.actor.stop_and_wait(None, Some(STOP_TIMEOUT + Duration::from_secs(1))).await;
        if let Err(error) = stopped {
            tracing::warn!(server = self.config.name, %error, "MCP connection did not stop");
        }
    }
}

/// What the actor shows to the holders of its handle.
#[derive(Clone)]
struct Published {
    phase: Phase,
    /// Whether a try to connect has come to its end.
    was_tried: bool,
    tools: Arc<[ToolInfo]>,
    /// The same with those that are blocked.
    listed: Arc<[ToolInfo]>,
    resources: Arc<[ResourceInfo]>,
    /// Tools that are not what they were in the first listing.
    changed: Arc<BTreeMap<String, &'static str>>,
    pinned: bool,
    left_out: Arc<[String]>,
    /// Lists that could not be had, and why.
    unlisted: BTreeMap<&'static str, String>,
    catalogue: u64,
}

impl Default for Published {
    fn default() -> Self {
        Self {
            phase: Phase::Connecting,
            was_tried: false,
            tools: Arc::from([]),
            listed: Arc::from([]),
            resources: Arc::from([]),
            changed: Arc::default(),
            pinned: false,
            left_out: Arc::from([]),
            unlisted: BTreeMap::new(),
            catalogue: 0,
        }
    }
}

#[derive(Clone)]
enum Phase {
    Connecting,
    Ready(Arc<Live>),
    /// Without a next try it stays as it is.
    Waiting {
        reason: String,
        next_try: Option<Instant>,
        failures: u32,
    },
}

/// A connection that stands.
pub(crate) struct Live {
    generation: u64,
    peer: Peer<RoleClient>,
    protocol_version: String,
    /// Whether there are no sessions, and each request says all.
    is_stateless: bool,
    /// What the server said that it has: nothing else is asked of it.
    capabilities: Capabilities,
    instructions: Option<String>,
    server: Option<String>,
    underway: Underway,
    seen: Seen,
}

/// Messages of the connection actor. Those about a link carry its generation; late ones are dropped.
pub(crate) enum ConnectionMsg {
    /// Time to connect.
    Connect,
    /// The handshake and the first listing are done.
    Connected { live: Box<Live>, listing: Listing },
    /// The link ended, or never stood.
    Lost { generation: u64, reason: String },
    /// Somebody saw the connection fail: end it and connect again.
    Suspect { generation: u64, reason: String },
    /// The server says that what it has changed.
    ListsChanged { generation: u64 },
    /// Time to list it again.
    Relist { generation: u64 },
    /// It is listed.
    Relisted { generation: u64, listing: Result<Listing, CallError> },
    /// Time to list again what could not be listed so many times in a row.
    ListAgain { generation: u64, failures: u32 },
    /// Time to look at what the cluster knows of the tools.
    LookAtPins,
}

struct ConnectionArguments {
    config: Arc<McpServerConfig>,
    instance: Arc<str>,
    publish: watch::Sender<Published>,
    spool: Spool,
    guards: Guards,
    tail: Tail,
    watches: Watches,
    credentials: Credentials,
}

struct ConnectionState {
    config: Arc<McpServerConfig>,
    instance: Arc<str>,
    publish: watch::Sender<Published>,
    spool: Spool,
    guards: Guards,
    tail: Tail,
    watches: Watches,
    credentials: Credentials,
    pins: Pins,
    /// Has the cluster remember what the tools look like.
    remembering: Option<JoinHandle<()>>,
    era: link::KnownEra,
    generation: u64,
    failures: u32,
    link: Option<Link>,
    relist_planned: bool,
    relisting: Option<JoinHandle<()>>,
    /// Listings in a row of which something could not be had.
    list_failures: u32,
}

/// The task that owns the current connection.
struct Link {
    stop: CancellationToken,
    task: JoinHandle<()>,
    ready_since: Option<Instant>,
    suspicion: Option<String>,
}

struct ConnectionActor;

impl Actor for ConnectionActor {
    type Msg = ConnectionMsg;
    type State = ConnectionState;
    type Arguments = ConnectionArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<ConnectionMsg>,
        arguments: ConnectionArguments,
    ) -> Result<ConnectionState, ActorProcessingErr> {
        myself.cast(ConnectionMsg::Connect)?;
        if arguments.spool.cluster().is_some() {
            myself.send_interval(LOOK_AT_PINS, || ConnectionMsg::LookAtPins);
        }
        Ok(ConnectionState {
            config: arguments.config,
            instance: arguments.instance,
            publish: arguments.publish,
            spool: arguments.spool,
            guards: arguments.guards,
            tail: arguments.tail,
            watches: arguments.watches,
            credentials: arguments.credentials,
            pins: Pins::default(),
            remembering: None,
            era: link::KnownEra::default(),
            generation: 0,
            failures: 0,
            link: None,
            relist_planned: false,
            relisting: None,
            list_failures: 0,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<ConnectionMsg>,
        message: ConnectionMsg,
        state: &mut ConnectionState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ConnectionMsg::Connect => state.connect(myself),
            ConnectionMsg::Connected { live, listing } if live.generation == state.generation => {
                state.connected(*live, listing, &myself);
                state.look_at_pins(&myself);
            }
            ConnectionMsg::Lost { generation, reason } if generation == state.generation => state.lost(reason, &myself),
            ConnectionMsg::Suspect { generation, reason } if generation == state.generation => state.suspect(reason),
            ConnectionMsg::ListsChanged { generation } if generation == state.generation => {
                if !std::mem::replace(&mut state.relist_planned, true) {
                    myself.send_after(RELIST_DEBOUNCE, move || ConnectionMsg::Relist { generation });
                }
            }
            ConnectionMsg::Relist { generation } if generation == state.generation => state.relist(myself),
            ConnectionMsg::Relisted { generation, listing } if generation == state.generation => {
                state.relisted(listing, &myself)
            }
            ConnectionMsg::ListAgain { generation, failures } if generation == state.generation => {
                if failures == state.list_failures {
                    state.relist(myself);
                }
            }
            ConnectionMsg::LookAtPins => state.look_at_pins(&myself),
            ConnectionMsg::Connected { .. }
            | ConnectionMsg::Lost { .. }
            | ConnectionMsg::Suspect { .. }
            | ConnectionMsg::ListsChanged { .. }
            | ConnectionMsg::Relist { .. }
            | ConnectionMsg::Relisted { .. }
            | ConnectionMsg::ListAgain { .. } => {}
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        _: ActorRef<ConnectionMsg>,
        state: &mut ConnectionState,
    ) -> Result<(), ActorProcessingErr> {
        let helpers = [state.relisting.take(), state.remembering.take()];
        helpers.into_iter().flatten().for_each(|helper| helper.abort());
        if let Some(mut link) = state.link.take() {
            link.stop.cancel();
            if tokio::time::timeout(STOP_TIMEOUT, &mut link.task).await.is_err() {
                link.task.abort();
            }
        }
        Ok(())
    }
}

impl ConnectionState {
    fn connect(&mut self, myself: ActorRef<ConnectionMsg>) {
        if self.link.is_some() {
            return;
        }
        self.generation += 1;
        self.relist_planned = false;
        self.list_failures = 0;
        self.publish.send_modify(|published| published.phase = Phase::Connecting);
        let stop = CancellationToken::new();
        let client = Client {
            actor: myself,
            generation: self.generation,
            config: self.config.clone(),
            instance: self.instance.clone(),
            underway: Underway::default(),
            tail: self.tail.clone(),
            watches: self.watches.clone(),
        };
        let plan = link::Plan {
            client,
            stop: stop.clone(),
            spool: self.spool.clone(),
            era: self.era.clone(),
            credentials: self.credentials.clone(),
        };
        let task = tokio::spawn(link::run(plan));
        self.link = Some(Link { stop, task, ready_since: None, suspicion: None });
    }

    fn connected(&mut self, live: Live, listing: Listing, myself: &ActorRef<ConnectionMsg>) {
        if let Some(link) = &mut self.link {
            link.ready_since = Some(Instant::now());
        }
        tracing::info!(
            server = self.config.name,
            tools = listing.tools.len(),
            resources = listing.resources.len(),
            protocol_version = live.protocol_version,
            capabilities = live.capabilities.names().join(","),
            "MCP server is ready"
        );
        self.tail.say(TailKind::Connection, "ready");
        self.guards.reconnected();
        self.plan_list(listing.no_resources.is_some(), myself);
        self.take(listing, Some(Phase::Ready(Arc::new(live))));
    }

    /// What the cluster knows of the tools. A node that starts has applied what was agreed to once its session is alive.
    fn known_pins(&self) -> Option<BTreeMap<String, String>> {
        let key = pins::key(&self.config);
        let cluster = self.spool.cluster().filter(|cluster| cluster.may_act())?;
        cluster.local(|state| state.pins(&key).cloned())
    }

    /// Compares what is listed with what the cluster knows, or has it remember that where it knows nothing yet.
    fn look_at_pins(&mut self, myself: &ActorRef<ConnectionMsg>) {
        let (listed, is_listed) = {
            let published = self.publish.borrow();
            (published.listed.clone(), published.catalogue > 0)
        };
        let Some(cluster) = self.spool.cluster().filter(|_| is_listed).cloned() else { return };
        if let Some(known) = self.known_pins() {
            self.publish.send_modify(|published| published.pinned = true);
            if self.pins.learn(known) {
                let judged = self.judge(&listed);
                self.publish.send_modify(|published| {
                    published.tools = judged.tools.into();
                    published.changed = Arc::new(judged.changed);
                    published.catalogue += 1;
                });
            }
            return;
        }
        if self.remembering.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let (key, myself) = (pins::key(&self.config), myself.clone());
        self.remembering = Some(tokio::spawn(async move {
            let by = Principal::Node(cluster.node_id());
            match pins::remember(&cluster, by, key.clone(), (&listed, false)).await {
                // Another node may have been first. A stopped actor does not mind.
                Ok(()) => drop(myself.cast(ConnectionMsg::LookAtPins)),
                Err(why) => {
                    tracing::debug!(key, why, "what the tools look like is not remembered beyond this process yet")
                }
            }
        }));
    }

    /// Judges a listing, and tells what is news of it.
    fn judge(&mut self, listed: &[ToolInfo]) -> Judged {
        let judged = self.pins.judge(listed.to_vec(), self.config.on_change);
        if judged.is_news {
            let changed: Vec<String> = judged.changed.iter().map(|(tool, how)| format!("{tool} {how}")).collect();
            let blocked = self.config.on_change == OnChange::Block;
            let tools = changed.join(", ");
            tracing::warn!(event = "mcp.tools_changed", server = self.config.name, blocked, tools, "MCP tools changed");
            self.tail.say(TailKind::Connection, &format!("mcp.tools_changed: {tools}"));
        }
        judged
    }

    /// Publishes what was listed, compared with what was listed first.
    fn take(&mut self, listing: Listing, phase: Option<Phase>) {
        let Listing { tools, resources, refused, no_resources } = listing;
        if let Some(known) = self.known_pins() {
            self.pins.learn(known);
        }
        let judged = self.judge(&tools);
        let is_told = *self.publish.borrow().left_out == *refused;
        if !is_told && !refused.is_empty() {
            tracing::warn!(
                server = self.config.name,
                what = refused.join("; "),
                "left out of the lists of an MCP server"
            );
        }
        self.publish.send_modify(|published| {
            if let Some(phase) = phase {
                published.phase = phase;
            }
            published.tools = judged.tools.into();
            published.listed = tools.into();
            // What was listed before is more likely to be there than nothing.
            if no_resources.is_none() {
                published.resources = resources.into();
            }
            published.unlisted = no_resources.map(|why| (pages::RESOURCES.what, why)).into_iter().collect();
            published.changed = Arc::new(judged.changed);
            published.left_out = refused.into();
            published.catalogue += 1;
        });
    }

    fn suspect(&mut self, reason: String) {
        if let Some(link) = &mut self.link {
            link.suspicion.get_or_insert(reason);
            link.stop.cancel();
        }
    }

    fn lost(&mut self, reason: String, myself: &ActorRef<ConnectionMsg>) {
        let Some(link) = self.link.take() else { return };
        let was_stable = link.ready_since.is_some_and(|since| since.elapsed() >= STABLE_AFTER);
        self.failures = match was_stable {
            // This side ended it: the server has not failed.
            _ if reason.starts_with(link::RENEWED) => 0,
            true => 1,
            false => self.failures + 1,
        };
        // A link that was told to stop does not know why; it knows how its child ended.
        let reason = match (link.suspicion, reason.strip_prefix(link::STOPPED)) {
            (Some(suspicion), Some(how)) => format!("{suspicion}{how}"),
            (Some(_) | None, _) => reason,
        };
        let wait = back_off(self.failures);
        tracing::warn!(
            server = self.config.name,
            reason,
            retry_ms = wait.as_millis() as u64,
            "MCP server is not there"
        );
        let (next_try, failures) = (self.config.reconnect.then(|| Instant::now() + wait), self.failures);
        self.tail.say(TailKind::Connection, &format!("not there: {reason}"));
        self.publish.send_modify(|published| {
            published.phase = Phase::Waiting { reason, next_try, failures };
            published.was_tried = true;
        });
        if next_try.is_some() {
            myself.send_after(wait, || ConnectionMsg::Connect);
        }
    }

    fn relist(&mut self, myself: ActorRef<ConnectionMsg>) {
        self.relist_planned = false;
        let Phase::Ready(live) = self.publish.borrow().phase.clone() else { return };
        let config = self.config.clone();
        if let Some(previous) = self.relisting.take() {
            previous.abort();
        }
        self.relisting = Some(tokio::spawn(async move {
            let listing = catalogue::list(&live.peer, live.capabilities, &config).await;
            // An actor that has stopped wants no news.
            let _ = myself.cast(ConnectionMsg::Relisted { generation: live.generation, listing });
        }));
    }

    fn relisted(&mut self, listing: Result<Listing, CallError>, myself: &ActorRef<ConnectionMsg>) {
        let is_whole = listing.as_ref().is_ok_and(|listing| listing.no_resources.is_none());
        self.plan_list(!is_whole, myself);
        match listing {
            Ok(listing) => {
                tracing::info!(server = self.config.name, tools = listing.tools.len(), "MCP tools were listed again");
                self.take(listing, None);
            }
            Err(error) => {
                tracing::warn!(server = self.config.name, %error, "MCP tools could not be listed again");
                self.publish.send_modify(|published| {
                    published.unlisted.insert(pages::TOOLS.what, error.message);
                });
            }
        }
    }

    /// Plans to list again what could not be had.
    fn plan_list(&mut self, has_failed: bool, myself: &ActorRef<ConnectionMsg>) {
        self.list_failures = if has_failed { self.list_failures + 1 } else { 0 };
        let (generation, failures) = (self.generation, self.list_failures);
        if has_failed {
            myself.send_after(list_back_off(failures), move || ConnectionMsg::ListAgain { generation, failures });
        }
    }
}

/// Wait before what could not be listed so many times in a row is asked for again.
fn list_back_off(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    FIRST_LIST_BACK_OFF.saturating_mul(1 << doublings).min(MAX_LIST_BACK_OFF)
}

/// Wait before the next try after so many failures in a row.
fn back_off(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    FIRST_BACK_OFF.saturating_mul(1 << doublings).min(MAX_BACK_OFF)
}

#[cfg(test)]
mod tests;

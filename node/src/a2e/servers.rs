//! The MCP servers that sessions see: those that their owner registered, and those of the configuration that it may use.
//!
//! What was registered is in the state, and connected on a node as soon as a session of its owner is there; each node asks its own
//! configuration whether it may. One [`Link`] per server passes on what the server announces and asks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use towline_actors::{
    McpHandle, McpServerConfig, McpTransport, Secret,
    mcp_connection::{HostAsk, McpServerState, Subscribed, asks},
};
use towline_core::{BridgedServer, BridgedTransport, Principal};

use super::{
    Bridge, asking,
    message::{Code, Failure, now as now_ts, outgoing},
};
use crate::mcp_server::{climbs, is_matched};

/// What stands between the id of a server and the name of its tool.
pub(super) const BETWEEN: &str = "__";

/// A connection whose owner has no session here ends after this time: agents come back within half a minute.
const UNUSED: Duration = Duration::from_secs(60);

/// Most resources of one server that are subscribed to on one node.
const MAX_SUBSCRIBED: usize = 1_000;

/// Most of these that the sessions of one principal want: one caller must not take the places of all others.
pub(super) const MAX_SUBSCRIBED_OF_ONE: usize = MAX_SUBSCRIBED / 4;

/// How often a server is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(30);

/// Which server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// Who registered it; none if it is of the configuration.
    pub owner: Option<Principal>,
    pub id: String,
}

/// A server as one session sees it.
#[derive(Clone)]
pub(super) struct Visible {
    pub id: String,
    pub name: String,
    transport: String,
    tools: Reach,
    resources: Reach,
    /// Whether who sees it is told why it is not there: of a server of the configuration that is the operator's to know.
    tells: bool,
    link: Result<Arc<Link>, String>,
}

/// What of it may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Reach {
    All,
    /// These names.
    Named(Vec<String>),
    /// What is like these patterns.
    Like(Vec<String>),
}

impl Reach {
    fn of_names(names: &[String]) -> Self {
        if names.is_empty() { Reach::All } else { Reach::Named(names.to_vec()) }
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Reach::All => true,
            Reach::Named(names) => names.iter().any(|known| known == name),
            Reach::Like(patterns) => is_matched(patterns, name),
        }
    }
}

impl Visible {
    pub fn has_tool(&self, tool: &str) -> bool {
        self.tools.has(tool)
    }

    pub fn has_resource(&self, uri: &str) -> bool {
        // An operator's own list of names names what it names, and no pattern.
        (matches!(self.resources, Reach::All) || !climbs(uri)) && self.resources.has(uri)
    }

    /// The connection.
    ///
    /// # Errors
    /// Why there is none.
    pub fn link(&self) -> Result<&Arc<Link>, Failure> {
        let refused =
            |why: &String| Failure::new(Code::ServerUnavailable, format!("MCP server {} is not there: {why}", self.id));
        self.link.as_ref().map_err(refused)
    }

    /// What an agent is told of it.
    pub fn info(&self) -> Value {
        let mut info = json!({
            "connected_at": 0.0,
            "error": "",
            "last_ping_ms": 0.0,
            "mcp_version": "",
            "name": self.name,
            "prompts_count": 0,
            "resources_count": 0,
            "server_id": self.id,
            "server_name": "",
            "server_version": "",
            "status": "error",
            "tools_count": 0,
            "transport": self.transport,
        });
        let link = match &self.link {
            Ok(link) => link,
            Err(why) => {
                info["error"] = why.as_str().into();
                return info;
            }
        };
        let (status, facts) = (link.handle.status(), link.facts());
        let server = status.server.unwrap_or_default();
        let (name, version) = server.rsplit_once(' ').unwrap_or((&server, ""));
        let resources = link.handle.resources();
        let tools = link.handle.tools();
        info["status"] = match status.state {
            McpServerState::Connecting => "connecting",
            McpServerState::Ready => "ready",
            McpServerState::Down if facts.connected_at > 0.0 => "disconnected",
            McpServerState::Down => "error",
        }
        .into();
        info["connected_at"] = facts.connected_at.into();
        let reason = status.reason.map(|reason| if self.tells { reason } else { "it is not connected".to_owned() });
        info["error"] = reason.unwrap_or_default().into();
        info["last_ping_ms"] = facts.ping_ms.into();
        info["mcp_version"] = status.protocol_version.unwrap_or_default().into();
        info["prompts_count"] = facts.prompts.into();
        info["resources_count"] = resources.iter().filter(|one| self.has_resource(&one.uri)).count().into();
        info["server_name"] = name.into();
        info["server_version"] = version.into();
        info["tools_count"] = tools.iter().filter(|one| self.has_tool(&one.tool)).count().into();
        info
    }
}

/// What is known of a server beside what its connection shows.
#[derive(Debug, Clone, Copy, Default)]
struct Facts {
    prompts: usize,
    ping_ms: f64,
    /// In seconds since 1970; 0 if it never was.
    connected_at: f64,
}

/// A server that sessions of this node use.
pub(super) struct Link {
    pub key: Key,
    pub handle: McpHandle,
    /// What was registered.
    registered: Option<Arc<BridgedServer>>,
    facts: Mutex<Facts>,
    subscribed: Mutex<BTreeMap<String, Option<Subscribed>>>,
    /// When its owner was seen here last.
    wanted: Mutex<Instant>,
    serving: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Link {
    fn facts(&self) -> Facts {
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, note: impl FnOnce(&mut Facts)) {
        note(&mut self.facts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn subscribed(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Option<Subscribed>>> {
        self.subscribed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the server tell when a resource changes, as long as a session wants to know, and again whenever it is connected.
    ///
    /// # Errors
    /// Why it does not.
    pub async fn subscribe(&self, uri: &str) -> Result<(), Failure> {
        if self.subscribed().get(uri).is_some_and(Option::is_some) {
            return Ok(());
        }
        if self.subscribed().len() >= MAX_SUBSCRIBED {
            let message = format!("{MAX_SUBSCRIBED} resources of this server are subscribed to here: ask another node");
            return Err(Failure::new(Code::Runtime, message));
        }
        let subscribed =
            self.handle.subscribe(uri).await.map_err(|error| super::failed(&error, Code::ResourceNotFound))?;
        self.subscribed().insert(uri.to_owned(), Some(subscribed));
        Ok(())
    }

    async fn stop(&self) {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner).take();
        if self.key.owner.is_some() {
            self.handle.stop().await;
        }
    }
}

/// The links of this node.
#[derive(Default)]
pub(super) struct Servers(tokio::sync::Mutex<BTreeMap<Key, Arc<Link>>>);

impl Servers {
    /// All that a principal sees, by id. Those that it registered are connected if they are not.
    pub async fn visible(&self, bridge: &Arc<Bridge>, by: &Principal) -> Vec<Visible> {
        let registered: Vec<Arc<BridgedServer>> =
            bridge.a2a.cluster.local(|state| state.bridged_of(by).cloned().collect());
        let mut visible = Vec::new();
        for server in registered {
            visible.push(self.registered(bridge, by, &server).await);
        }
        let known: BTreeSet<String> = visible.iter().map(|server| server.id.clone()).collect();
        let configured: Vec<McpHandle> = match bridge.api.mesh.lock().await.as_ref() {
            Some(mesh) => mesh.mcp_servers().iter().filter_map(|status| mesh.mcp_server(&status.name)).collect(),
            None => Vec::new(),
        };
        for handle in configured {
            let name = handle.name().to_owned();
            let shared = bridge.settings.servers.iter().find(|shared| shared.server == name && shared.is_for(by));
            let (tools, resources) = match shared {
                Some(shared) => (Reach::Like(shared.tools.clone()), Reach::Like(shared.resources.clone())),
                None if by.is_operator() && !name.contains(BETWEEN) => (Reach::All, Reach::All),
                None => continue,
            };
            if known.contains(&name) {
                continue;
            }
            let transport = handle.status().transport;
            let key = Key { owner: None, id: name.clone() };
            let link = self.shared(bridge, key, handle).await;
            let tells = by.is_operator();
            visible.push(Visible { id: name.clone(), name, transport, tools, resources, tells, link: Ok(link) });
        }
        visible.sort_by(|one, other| one.id.cmp(&other.id));
        visible
    }

    /// One of them.
    ///
    /// # Errors
    /// When there is none of that id.
    pub async fn one(&self, bridge: &Arc<Bridge>, by: &Principal, id: &str) -> Result<Visible, Failure> {
        let found = self.visible(bridge, by).await.into_iter().find(|server| server.id == id);
        found.ok_or_else(|| not_found(id))
    }

    /// One that was registered, connected if it is not.
    pub async fn registered(&self, bridge: &Arc<Bridge>, by: &Principal, server: &Arc<BridgedServer>) -> Visible {
        let link = self.connected(bridge, by, server).await;
        Visible {
            id: server.id.clone(),
            name: server.name.clone(),
            transport: kind(&server.transport).to_owned(),
            tools: Reach::of_names(&server.tools),
            resources: Reach::of_names(&server.resources),
            tells: true,
            link,
        }
    }

    async fn connected(
        &self,
        bridge: &Arc<Bridge>,
        by: &Principal,
        server: &Arc<BridgedServer>,
    ) -> Result<Arc<Link>, String> {
        let key = Key { owner: Some(by.owner()), id: server.id.clone() };
        let mut links = self.0.lock().await;
        if let Some(link) = links.get(&key)
            && link.registered.as_ref() == Some(server)
            && !link.handle.is_over()
        {
            *link.wanted.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            return Ok(Arc::clone(link));
        }
        let (to, asked) = asks();
        let mut config = bridge.settings.config(server)?;
        config.asks = Some(to);
        if let Some(before) = links.remove(&key) {
            before.stop().await;
        }
        let instance = bridge.a2a.public_url.clone();
        let cluster = Some(bridge.a2a.cluster.clone());
        let spawned = McpHandle::spawn(config, cluster, &instance, None).await;
        let handle = spawned.map_err(|error| format!("its connection does not start: {error}"))?;
        let link = link(bridge, key.clone(), handle, (Some(Arc::clone(server)), Some(asked)));
        links.insert(key, Arc::clone(&link));
        Ok(link)
    }

    /// That of a server of the configuration, whose connection is the mesh's.
    async fn shared(&self, bridge: &Arc<Bridge>, key: Key, handle: McpHandle) -> Arc<Link> {
        let mut links = self.0.lock().await;
        if let Some(link) = links.get(&key).filter(|link| link.handle.is_same(&handle)) {
            return Arc::clone(link);
        }
        let link = link(bridge, key.clone(), handle, (None, None));
        links.insert(key, Arc::clone(&link));
        link
    }

    /// Ends the connections that are no longer registered, or whose owner has long had no session here, and the subscriptions that no
    /// session wants any more.
    pub async fn sweep(&self, bridge: &Bridge) {
        let owners: BTreeSet<Principal> = bridge.sessions.all().iter().map(|session| session.owner.clone()).collect();
        let mut links = self.0.lock().await;
        let mut gone = Vec::new();
        links.retain(|key, link| {
            let (Some(owner), Some(registered)) = (&key.owner, &link.registered) else { return true };
            let is_registered = bridge.a2a.cluster.local(|state| state.bridged(owner, &key.id) == Some(registered));
            let mut wanted = link.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            if owners.contains(owner) {
                *wanted = Instant::now();
            }
            let stays = is_registered && wanted.elapsed() < UNUSED && !link.handle.is_over();
            drop(wanted);
            if !stays {
                gone.push(Arc::clone(link));
            }
            stays
        });
        let sessions = bridge.sessions.all();
        for link in links.values() {
            let wanted: BTreeSet<String> = sessions.iter().flat_map(|one| one.subscriptions(&link.key)).collect();
            link.subscribed().retain(|uri, _| wanted.contains(uri));
        }
        drop(links);
        futures::future::join_all(gone.iter().map(|link| link.stop())).await;
    }

    /// Ends one that is no longer registered.
    pub async fn end(&self, owner: &Principal, id: &str) {
        let key = Key { owner: Some(owner.owner()), id: id.to_owned() };
        let link = self.0.lock().await.remove(&key);
        if let Some(link) = link {
            link.stop().await;
        }
    }

    /// Ends all.
    pub async fn stop(&self) {
        let links = std::mem::take(&mut *self.0.lock().await);
        futures::future::join_all(links.values().map(|link| link.stop())).await;
    }
}

pub(super) fn not_found(id: &str) -> Failure {
    let id = towline_a2a::shortened(id);
    Failure::new(
        Code::ServerNotFound,
        format!("MCP server {id:?} is not registered: mcp/server/list names those that are"),
    )
}

fn kind(transport: &BridgedTransport) -> &str {
    match transport {
        BridgedTransport::Command { .. } => "stdio",
        BridgedTransport::Url { kind, .. } => kind,
    }
}

impl super::A2eSettings {
    /// How a server that was registered is connected to from here.
    ///
    /// # Errors
    /// Why it is not.
    pub(super) fn config(&self, server: &BridgedServer) -> Result<McpServerConfig, String> {
        let transport = match &server.transport {
            BridgedTransport::Command { command, cwd, env } => {
                if !self.allows(command, cwd, env) {
                    return Err(format!(
                        "its command, a variable of it or its folder is not allowed on this node: the operator can add {} to \
                         a2e.commands",
                        towline_a2a::shortened(&format!("{command:?}"))
                    ));
                }
                let cwd = (!cwd.is_empty()).then(|| cwd.into());
                McpTransport::Stdio { command: command.clone(), env: env.clone(), cwd }
            }
            BridgedTransport::Url { url, headers, .. } => {
                self.egress.target(url).map_err(|refused| not_dialled(&refused))?;
                let headers = headers.iter().map(|(name, value)| (name.clone(), Secret::new(value)));
                McpTransport::Http { endpoint: url.clone(), headers: headers.collect(), socket: None, legacy: false }
            }
        };
        let timeout = Duration::from_secs(u64::from(server.timeout_s));
        let defaults = McpServerConfig::new(&server.id, transport);
        Ok(McpServerConfig {
            call_timeout: timeout,
            idle_timeout: timeout,
            egress: Some(Arc::clone(&self.egress)),
            reconnect: server.auto_reconnect,
            ..defaults
        })
    }
}

/// What an agent is told of a URL that is refused.
pub(super) fn not_dialled(refused: &impl std::fmt::Display) -> String {
    format!("its URL {refused}").replace("push.allow", "a2e.allow")
}

type Registered = (Option<Arc<BridgedServer>>, Option<mpsc::Receiver<HostAsk>>);

fn link(bridge: &Arc<Bridge>, key: Key, handle: McpHandle, (registered, asked): Registered) -> Arc<Link> {
    let link = Arc::new(Link {
        key,
        handle,
        registered,
        facts: Mutex::default(),
        subscribed: Mutex::default(),
        wanted: Mutex::new(Instant::now()),
        serving: Mutex::default(),
    });
    let (weak, bridge) = (Arc::downgrade(&link), Arc::downgrade(bridge));
    let (handle, mut notices) = (link.handle.clone(), link.handle.notices());
    let (of_facts, of_asks) = ((weak.clone(), bridge.clone()), (weak.clone(), bridge.clone()));
    let telling = async move {
        loop {
            let notice = notices.recv().await;
            let (Some(link), Some(bridge)) = (weak.upgrade(), bridge.upgrade()) else { return };
            match notice {
                Ok(notice) => tell(&bridge, &link, notice.method, &notice.params),
                // What was missed is read anew.
                Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => tell_anew(&bridge, &link),
                Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
            }
        }
    };
    let looking = async move {
        let mut connection = None;
        loop {
            let changed = tokio::time::timeout(PING_EVERY, handle.changed(connection)).await;
            let (Some(link), Some(bridge)) = (of_facts.0.upgrade(), of_facts.1.upgrade()) else { return };
            if matches!(changed, Ok(false)) {
                return;
            }
            let now = handle.connection();
            if now.is_some() && now != connection {
                link.note(|facts| facts.connected_at = now_ts());
                again(&bridge, &link).await;
            }
            connection = now;
            if now.is_some() {
                look(&link).await;
            }
        }
    };
    let asking = async move {
        let Some(mut asked) = asked else { return };
        while let Some(ask) = asked.recv().await {
            let (Some(link), Some(bridge)) = (of_asks.0.upgrade(), of_asks.1.upgrade()) else { return };
            asking::pass_on(&bridge, &link.key, ask);
        }
    };
    let serving = tokio::spawn(async move {
        tokio::join!(telling, looking, asking);
    });
    *link.serving.lock().unwrap_or_else(PoisonError::into_inner) = Some(AbortOnDropHandle::new(serving));
    link
}

/// Looks whether a server answers, and how many prompts it has.
async fn look(link: &Link) {
    if let Ok(Some(took)) = link.handle.ping().await {
        link.note(|facts| facts.ping_ms = took.as_secs_f64() * 1_000.0);
    }
    let prompts = link.handle.listed_prompts().await.map_or(0, |prompts| prompts.len());
    link.note(|facts| facts.prompts = prompts);
}

/// Subscribes again on a new connection. What changed meanwhile nobody has told, so each resource counts as changed.
async fn again(bridge: &Bridge, link: &Link) {
    let uris: Vec<String> = link.subscribed().keys().cloned().collect();
    for uri in uris {
        let subscribed = link.handle.subscribe(&uri).await;
        if let Err(error) = &subscribed {
            tracing::warn!(server = link.key.id, %error, "a resource is not subscribed to again");
        }
        link.subscribed().insert(uri.clone(), subscribed.ok());
        tell(bridge, link, "notifications/resources/updated", &json!({ "uri": uri }));
    }
}

/// Has those who may know it told of an announcement.
fn tell(bridge: &Bridge, link: &Link, method: &str, params: &Value) {
    let Key { owner, id } = &link.key;
    let uri = params["uri"].as_str().unwrap_or_default();
    let message = || outgoing("mcp/server/push", json!({ "method": method, "params": params, "server_id": id }));
    for session in bridge.sessions.all() {
        if !session.has_mcp() {
            continue;
        }
        let is_for = match (owner, method) {
            (Some(owner), _) if *owner != session.owner => false,
            // The key has the owner: who registered a server of the same id hears of that one alone.
            (Some(_), "notifications/resources/updated") => session.subscribes(&link.key, uri),
            (None, "notifications/resources/updated") => {
                session.subscribes(&link.key, uri) && bridge.may_use(&session.by, id)
            }
            (Some(_), _) => true,
            // What a server that others use as well says of its calls is not for all who may use it.
            (None, "notifications/progress" | "notifications/message") => false,
            (None, _) => bridge.may_use(&session.by, id),
        };
        match method {
            _ if !is_for => {}
            "notifications/progress" | "notifications/message" => session.hint(&message()),
            _ => session.say_once(format!("{id} {method} {uri}"), &message()),
        }
    }
}

fn tell_anew(bridge: &Bridge, link: &Link) {
    for list in ["tools", "resources", "prompts"] {
        tell(bridge, link, &format!("notifications/{list}/list_changed"), &json!({}));
    }
    let uris: Vec<String> = link.subscribed().keys().cloned().collect();
    uris.iter().for_each(|uri| tell(bridge, link, "notifications/resources/updated", &json!({ "uri": uri })));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::a2e::{A2eSettings, AllowedCommand};

    fn server(transport: BridgedTransport) -> BridgedServer {
        BridgedServer {
            id: "fs".into(),
            name: "files".into(),
            transport,
            timeout_s: 7,
            auto_reconnect: false,
            tools: Vec::new(),
            resources: Vec::new(),
        }
    }

    #[test]
    fn each_node_asks_its_own_configuration_whether_it_may_connect() {
        let command = || {
            server(BridgedTransport::Command {
                command: vec!["mcp-files".into()],
                cwd: String::new(),
                env: BTreeMap::new(),
            })
        };
        let refused = A2eSettings::default().config(&command()).unwrap_err();
        assert!(refused.contains("a2e.commands"), "{refused}");
        let allowed = AllowedCommand { command: vec!["mcp-files".into()], env: Vec::new(), cwd: Vec::new() };
        let config = A2eSettings { commands: vec![allowed], ..A2eSettings::default() }.config(&command()).unwrap();
        assert_eq!((config.call_timeout, config.reconnect), (Duration::from_secs(7), false));
        let url = |url: &str| {
            let transport = BridgedTransport::Url { url: url.into(), kind: "sse".into(), headers: BTreeMap::new() };
            A2eSettings::default().config(&server(transport))
        };
        assert!(url("https://tools.example/sse").unwrap().egress.is_some());
        for evil in ["http://tools.example", "https://169.254.169.254/x", "https://[::1]/x", "file:///etc/passwd"] {
            let refused = url(evil).unwrap_err();
            assert!(!refused.contains("push.allow"), "{refused}");
        }
    }

    #[test]
    fn an_empty_list_allows_all_of_what_its_owner_registered_and_another_only_what_it_names() {
        let named = Reach::of_names(&["read".into()]);
        assert!(named.has("read") && !named.has("write") && Reach::of_names(&[]).has("write"));
        assert!(Reach::Like(vec!["re*".into()]).has("read") && !Reach::Like(Vec::new()).has("read"));
    }
}

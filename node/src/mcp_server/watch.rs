//! What changes of the resources that a client subscribes to. A client is told that something has changed, and reads it: so
//! several changes may be told as one, and none is lost, since what a client was told of is compared with what there is.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use futures::{
    StreamExt,
    future::{BoxFuture, join_all},
    stream::FuturesUnordered,
};
use towline_actors::triggers::contents::{Content, NOTHING};
use towline_cluster::{ClusterHandle, TaskWatch};
use towline_core::{AgentName, Principal, State, TaskId};

use super::{McpServer, gateway};

/// How often what has no watch is looked at: agents come and go with the configuration of nodes, and so do servers.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Changes within this time are told as one: a task that streams text changes many times a second.
const PACE: Duration = Duration::from_millis(50);

/// A resource that can be subscribed to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Watched {
    /// A task.
    Task(TaskId),
    /// The card of an agent.
    Agent(AgentName),
    /// A resource of another server, under the URI that its client knows it by.
    Elsewhere(String),
}

/// How URIs of tasks and agents begin.
const TASKS: &str = "towline://tasks/";
const AGENTS: &str = "towline://agents/";

impl Watched {
    /// What a URI names. What is none of the mesh is another server's, if it is anywhere.
    pub fn of(uri: &str) -> Self {
        Self::own(uri).unwrap_or_else(|| Watched::Elsewhere(uri.to_owned()))
    }

    fn own(uri: &str) -> Option<Self> {
        if let Some(task) = uri.strip_prefix(TASKS) {
            return task.parse().ok().map(Watched::Task);
        }
        uri.strip_prefix(AGENTS)?.parse().ok().map(Watched::Agent)
    }

    /// Whether another server has it, if it is anywhere.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self, Watched::Elsewhere(_))
    }

    /// Bytes that it takes in the id of an event, where that depends on its client.
    pub fn weight(&self) -> usize {
        match self {
            Watched::Task(_) | Watched::Agent(_) => 0,
            Watched::Elsewhere(uri) => uri.len().div_ceil(3) * 4,
        }
    }

    /// Its URI.
    pub fn uri(&self) -> String {
        match self {
            Watched::Task(task) => format!("{TASKS}{task}"),
            Watched::Agent(agent) => format!("{AGENTS}{agent}"),
            Watched::Elsewhere(uri) => uri.clone(),
        }
    }

    /// Changes whenever it does; none when it is not there for this reader, or elsewhere.
    pub fn version(&self, state: &State, reader: &Principal) -> Option<u64> {
        match self {
            Watched::Task(task) => {
                state.record_for(reader, *task)?;
                state.generation_of(*task)
            }
            Watched::Agent(agent) => {
                let mut hasher = DefaultHasher::new();
                format!("{:?}", state.agent(agent)?.spec).hash(&mut hasher);
                Some(hasher.finish())
            }
            Watched::Elsewhere(_) => None,
        }
    }
}

/// Where a client stands, as the id of an event.
pub(super) fn event_id(seen: &BTreeMap<Watched, u64>) -> String {
    let one = |(watched, version): (&Watched, &u64)| match watched {
        Watched::Task(task) => format!("t{}.{version:x}", task.to_string().replace('-', "")),
        Watched::Agent(agent) => format!("a{agent}.{version:x}"),
        Watched::Elsewhere(uri) => format!("u{}.{version:x}", BASE64_URL_SAFE_NO_PAD.encode(uri)),
    };
    if seen.is_empty() { "0".to_owned() } else { seen.iter().map(one).collect::<Vec<_>>().join("~") }
}

/// Reads what [`event_id`] wrote. What is none of that is left out: it only says what to tell of once more.
pub(super) fn read_event_id(text: &str, most: usize) -> BTreeMap<Watched, u64> {
    let one = |part: &str| {
        let (name, version) = part.rsplit_once('.')?;
        let version = u64::from_str_radix(version, 16).ok()?;
        let watched = match name.split_at_checked(1)? {
            ("t", task) => Watched::Task(TaskId::from_uuid(uuid::Uuid::try_parse(task).ok()?)),
            ("a", agent) => Watched::Agent(agent.parse().ok()?),
            ("u", uri) => {
                let uri = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(uri).ok()?).ok()?;
                Some(Watched::of(&uri)).filter(Watched::is_elsewhere)?
            }
            _ => return None,
        };
        Some((watched, version))
    };
    text.split('~').filter_map(one).take(most).collect()
}

/// Tells what has changed of some resources.
pub(super) struct Watching {
    server: Arc<McpServer>,
    cluster: ClusterHandle,
    reader: Principal,
    /// What the client was told of. None: not yet anything, since it was not there.
    seen: BTreeMap<Watched, Option<u64>>,
    changes: FuturesUnordered<BoxFuture<'static, (TaskId, TaskWatch)>>,
    watched: BTreeSet<TaskId>,
    /// What other servers' resources say, as far as they are found.
    elsewhere: BTreeMap<Watched, Content>,
    told: Option<tokio::time::Instant>,
}

impl Watching {
    pub fn new(server: Arc<McpServer>, reader: Principal) -> Self {
        Self {
            cluster: server.a2a.cluster.clone(),
            server,
            reader,
            seen: BTreeMap::new(),
            changes: FuturesUnordered::new(),
            watched: BTreeSet::new(),
            elsewhere: BTreeMap::new(),
            told: None,
        }
    }

    /// Watches these, and no others. Of one that is new here, the version that its client has seen counts, or what there is.
    pub fn set(&mut self, subscriptions: &BTreeMap<Watched, Option<u64>>) {
        self.seen.retain(|watched, _| subscriptions.contains_key(watched));
        self.elsewhere.retain(|watched, _| subscriptions.contains_key(watched));
        for (watched, seen) in subscriptions {
            if self.seen.contains_key(watched) {
                continue;
            }
            let known = seen.or_else(|| self.cluster.local(|state| watched.version(state, &self.reader)));
            self.seen.insert(watched.clone(), known);
            if let Watched::Task(task) = watched
                && self.watched.insert(*task)
            {
                self.changes.push(next_change(*task, self.cluster.watch_task(*task)));
            }
        }
    }

    /// Waits for the first look at what is elsewhere: its client is told of what changes from here on. What is not there is not
    /// watched; what cannot be looked at within the time is told of once it can.
    pub async fn begin(&mut self, within: Duration) {
        self.find().await;
        let (seen, elsewhere) = (&mut self.seen, &mut self.elsewhere);
        seen.retain(|watched, _| !watched.is_elsewhere() || elsewhere.contains_key(watched));
        let looks = elsewhere.iter_mut().map(|(watched, content)| async move {
            (watched.clone(), tokio::time::timeout(within, content.read()).await.ok().flatten())
        });
        for (watched, version) in join_all(looks).await {
            if version == Some(NOTHING) {
                seen.remove(&watched);
                elsewhere.remove(&watched);
            } else {
                seen.insert(watched, version);
            }
        }
    }

    /// Finds what is elsewhere and was not found yet, or has gone meanwhile.
    async fn find(&mut self) {
        for watched in self.seen.keys().filter(|watched| watched.is_elsewhere()) {
            if self.elsewhere.contains_key(watched) {
                continue;
            }
            match gateway::content(&self.server, &self.reader, &watched.uri()).await {
                Ok(Some(content)) => drop(self.elsewhere.insert(watched.clone(), content)),
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(uri = watched.uri(), %error, "a resource of another server is not watched")
                }
            }
        }
    }

    /// What is watched.
    pub fn all(&self) -> impl Iterator<Item = &Watched> {
        self.seen.keys()
    }

    /// What the client was told of.
    pub fn seen(&self) -> BTreeMap<Watched, u64> {
        self.seen.iter().filter_map(|(watched, version)| Some((watched.clone(), (*version)?))).collect()
    }

    /// Waits until something has changed. It may be dropped and called again: nothing is lost.
    pub async fn changed(&mut self) -> Vec<Watched> {
        if let Some(told) = self.told {
            tokio::time::sleep_until(told + PACE).await;
        }
        loop {
            self.find().await;
            let changed = self.look();
            if !changed.is_empty() {
                self.told = Some(tokio::time::Instant::now());
                return changed;
            }
            // What has no watch, or none yet.
            let is_looked_at = self.seen.keys().any(|watched| match watched {
                Watched::Task(_) => false,
                Watched::Agent(_) => true,
                Watched::Elsewhere(_) => !self.elsewhere.contains_key(watched),
            });
            tokio::select! {
                Some((task, watch)) = self.changes.next(), if !self.changes.is_empty() => {
                    if self.seen.contains_key(&Watched::Task(task)) {
                        self.changes.push(next_change(task, watch));
                    } else {
                        self.watched.remove(&task);
                    }
                }
                gone = gone_elsewhere(&mut self.elsewhere), if !self.elsewhere.is_empty() => {
                    if let Some(gone) = gone {
                        self.elsewhere.remove(&gone);
                    }
                }
                () = tokio::time::sleep(LOOK_EVERY), if is_looked_at => {}
                else => std::future::pending().await,
            }
        }
    }

    fn look(&mut self) -> Vec<Watched> {
        let (seen, reader, elsewhere) = (&self.seen, &self.reader, &self.elsewhere);
        let changed: Vec<(Watched, Option<u64>)> = self.cluster.local(|state| {
            let now = seen.iter().map(|(watched, version)| {
                let now = match watched {
                    Watched::Task(_) | Watched::Agent(_) => watched.version(state, reader),
                    // Nothing is known of it: that is no change.
                    Watched::Elsewhere(_) => elsewhere.get(watched).and_then(Content::version).or(*version),
                };
                (watched, *version, now)
            });
            now.filter(|(_, before, now)| before != now).map(|(watched, _, now)| (watched.clone(), now)).collect()
        });
        for (watched, version) in &changed {
            self.seen.insert(watched.clone(), *version);
        }
        changed.into_iter().map(|(watched, _)| watched).collect()
    }
}

/// Waits until one of them may say something else, or is not watched any more: that one.
async fn gone_elsewhere(elsewhere: &mut BTreeMap<Watched, Content>) -> Option<Watched> {
    let changes = elsewhere
        .iter_mut()
        .map(|(watched, content)| async move { if content.changed().await { None } else { Some(watched.clone()) } });
    changes.collect::<FuturesUnordered<_>>().next().await.flatten()
}

fn next_change(task: TaskId, mut watch: TaskWatch) -> BoxFuture<'static, (TaskId, TaskWatch)> {
    Box::pin(async move {
        watch.changed().await;
        (task, watch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_a_task_or_an_agent() {
        let task = TaskId::from_uuid(uuid::Uuid::now_v7());
        for watched in [Watched::Task(task), Watched::Agent("reader".parse().unwrap())] {
            assert_eq!(Watched::of(&watched.uri()), watched);
        }
        for wrong in ["", "towline://", "towline://tasks/", "towline://tasks/x", "towline://agents/a b", "file:///x"] {
            assert!(Watched::of(wrong).is_elsewhere(), "{wrong}");
        }
    }

    #[test]
    fn an_event_id_says_where_a_client_stands_and_fits_into_a_header() {
        let task = || Watched::Task(TaskId::from_uuid(uuid::Uuid::now_v7()));
        let mut seen = BTreeMap::from([(Watched::Agent("re-a_d".parse().unwrap()), u64::MAX), (task(), 0)]);
        seen.extend((0..super::super::session::MAX_SUBSCRIPTIONS - 3).map(|_| (task(), 100_000)));
        let far = "x".repeat(super::super::session::MAX_ELSEWHERE_BYTES / 4 * 3 - "é://".len());
        seen.insert(Watched::of(&format!("é://{far}")), u64::MAX);
        let id = event_id(&seen);
        assert_eq!(read_event_id(&id, seen.len()), seen);
        assert!(id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)) && id.len() < 16 * 1024, "{}", id.len());
        assert_eq!(read_event_id("0", 9), BTreeMap::new());
        assert_eq!(read_event_id("x~t~a.~tzz.1~.~é.1~t0.q~u!.1~u.z", 9), BTreeMap::new());
        let own = BASE64_URL_SAFE_NO_PAD.encode("towline://agents/reader");
        assert_eq!(read_event_id(&format!("u{own}.1"), 9), BTreeMap::new(), "what is here is nowhere else");
        assert_eq!(read_event_id(&id, 1).len(), 1, "a bound");
    }
}

//! What changes of the resources that a client subscribes to. A client is told that something has changed, and reads it: so
//! several changes may be told as one, and none is lost, since what a client was told of is compared with what there is.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use towline_cluster::{ClusterHandle, TaskWatch};
use towline_core::{AgentName, Principal, State, TaskId};

/// How often what has no watch is looked at: agents come and go with the configuration of nodes.
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
}

/// How URIs of tasks and agents begin.
const TASKS: &str = "towline://tasks/";
const AGENTS: &str = "towline://agents/";

impl Watched {
    /// What a URI names, if it can be there at all.
    pub fn read(uri: &str) -> Option<Self> {
        if let Some(task) = uri.strip_prefix(TASKS) {
            return task.parse().ok().map(Watched::Task);
        }
        uri.strip_prefix(AGENTS)?.parse().ok().map(Watched::Agent)
    }

    /// Its URI.
    pub fn uri(&self) -> String {
        match self {
            Watched::Task(task) => format!("{TASKS}{task}"),
            Watched::Agent(agent) => format!("{AGENTS}{agent}"),
        }
    }

    /// Changes whenever it does; none when it is not there for this reader.
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
        }
    }
}

/// Where a client stands, as the id of an event.
pub(super) fn event_id(seen: &BTreeMap<Watched, u64>) -> String {
    let one = |(watched, version): (&Watched, &u64)| match watched {
        Watched::Task(task) => format!("t{}.{version:x}", task.to_string().replace('-', "")),
        Watched::Agent(agent) => format!("a{agent}.{version:x}"),
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
            _ => return None,
        };
        Some((watched, version))
    };
    text.split('~').filter_map(one).take(most).collect()
}

/// Tells what has changed of some resources.
pub(super) struct Watching {
    cluster: ClusterHandle,
    reader: Principal,
    /// What the client was told of. None: not yet anything, since it was not there.
    seen: BTreeMap<Watched, Option<u64>>,
    changes: FuturesUnordered<BoxFuture<'static, (TaskId, TaskWatch)>>,
    watched: BTreeSet<TaskId>,
    told: Option<tokio::time::Instant>,
}

impl Watching {
    pub fn new(cluster: ClusterHandle, reader: Principal) -> Self {
        Self {
            cluster,
            reader,
            seen: BTreeMap::new(),
            changes: FuturesUnordered::new(),
            watched: BTreeSet::new(),
            told: None,
        }
    }

    /// Watches these, and no others. Of one that is new here, the version that its client has seen counts, or what there is.
    pub fn set(&mut self, subscriptions: &BTreeMap<Watched, Option<u64>>) {
        self.seen.retain(|watched, _| subscriptions.contains_key(watched));
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
            let changed = self.look();
            if !changed.is_empty() {
                self.told = Some(tokio::time::Instant::now());
                return changed;
            }
            let has_agents = self.seen.keys().any(|watched| matches!(watched, Watched::Agent(_)));
            tokio::select! {
                Some((task, watch)) = self.changes.next(), if !self.changes.is_empty() => {
                    if self.seen.contains_key(&Watched::Task(task)) {
                        self.changes.push(next_change(task, watch));
                    } else {
                        self.watched.remove(&task);
                    }
                }
                () = tokio::time::sleep(LOOK_EVERY), if has_agents => {}
                else => std::future::pending().await,
            }
        }
    }

    fn look(&mut self) -> Vec<Watched> {
        let (seen, reader) = (&self.seen, &self.reader);
        let changed: Vec<(Watched, Option<u64>)> = self.cluster.local(|state| {
            let now = seen.iter().map(|(watched, version)| (watched, *version, watched.version(state, reader)));
            now.filter(|(_, before, now)| before != now).map(|(watched, _, now)| (watched.clone(), now)).collect()
        });
        for (watched, version) in &changed {
            self.seen.insert(watched.clone(), *version);
        }
        changed.into_iter().map(|(watched, _)| watched).collect()
    }
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
            assert_eq!(Watched::read(&watched.uri()), Some(watched));
        }
        for wrong in ["", "towline://", "towline://tasks/", "towline://tasks/x", "towline://agents/a b", "file:///x"] {
            assert_eq!(Watched::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_event_id_says_where_a_client_stands_and_fits_into_a_header() {
        let task = || Watched::Task(TaskId::from_uuid(uuid::Uuid::now_v7()));
        let mut seen = BTreeMap::from([(Watched::Agent("re-a_d".parse().unwrap()), u64::MAX), (task(), 0)]);
        seen.extend((0..super::super::session::MAX_SUBSCRIPTIONS - 2).map(|_| (task(), 100_000)));
        let id = event_id(&seen);
        assert_eq!(read_event_id(&id, seen.len()), seen);
        assert!(id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)) && id.len() < 16 * 1024, "{}", id.len());
        assert_eq!(read_event_id("0", 9), BTreeMap::new());
        assert_eq!(read_event_id("x~t~a.~tzz.1~.~é.1~t0.q", 9), BTreeMap::new());
        assert_eq!(read_event_id(&id, 1).len(), 1, "a bound");
    }
}

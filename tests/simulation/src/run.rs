//! One run: a cluster is made, torn at while clients use it, mended, and looked at.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use towline_cluster::ClusterHandle;
use towline_core::{NodeRole, State, Task, TaskId};

use crate::{
    clients::Clients,
    host::{Begin, Host},
    ledger::{Counts, Shared},
    nemesis::Nemesis,
    world,
};

/// A cluster of three is made within this.
const MADE_WITHIN: Duration = Duration::from_secs(30);
/// So long it is torn at, and longer while too little was done.
const TORN_FOR: Duration = Duration::from_secs(6);
/// And no longer than this.
const TORN_AT_MOST: Duration = Duration::from_secs(20);
/// All tasks end within this, once everything is mended.
const SETTLED_WITHIN: Duration = Duration::from_secs(40);
/// What nodes have applied is looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A join token lives for longer than any run.
const TOKEN_TTL: Duration = Duration::from_secs(3_600);

/// What came of a run.
pub struct Outcome {
    /// What does not fit.
    pub wrong: Vec<String>,
    /// What was done.
    pub counts: Counts,
    /// How long it took in the world.
    pub took: Duration,
}

/// Runs a seed.
pub fn run(seed: u64) -> Outcome {
    let mut rng = fastrand::Rng::with_seed(seed);
    let nodes = if rng.u8(0..8) == 0 { 5 } else { 3 };
    world::begin(rng.u64(..), nodes);
    let mut run = Run {
        hosts: (0..nodes).map(Host::new).collect(),
        shared: Shared::default(),
        clients: Clients::new(rng.u64(..)),
        seen: BTreeMap::new(),
        next_look: Duration::ZERO,
    };
    let nemesis = Nemesis::new(rng.u64(..));
    if let Err(reason) = run.all(nemesis) {
        run.shared.ledger().wrong(reason);
    }
    let ledger = run.shared.ledger();
    Outcome { wrong: ledger.is_wrong().to_vec(), counts: ledger.counts, took: world::now() }
}

struct Run {
    hosts: Vec<Host>,
    shared: Shared,
    clients: Clients,
    /// What was looked at in the present life of each node.
    seen: BTreeMap<usize, (u32, BTreeMap<TaskId, u64>)>,
    next_look: Duration,
}

impl Run {
    fn all(&mut self, mut nemesis: Nemesis) -> Result<(), String> {
        self.make()?;
        let began = world::now();
        nemesis.begin();
        while self.is_torn_on(world::now() - began) {
            self.tick(&mut nemesis)?;
            self.clients.tick(&self.hosts, &self.shared, true);
            nemesis.tick(&mut self.hosts, &self.shared);
        }
        nemesis.heal(&mut self.hosts, &self.shared);
        tracing::info!("everything is mended");
        self.settle(&mut nemesis)?;
        Ok(())
    }

    fn is_torn_on(&self, since: Duration) -> bool {
        let ledger = self.shared.ledger();
        let until = if ledger.counts.are_enough() { TORN_FOR } else { TORN_AT_MOST };
        since < until && ledger.is_wrong().is_empty()
    }

    fn make(&mut self) -> Result<(), String> {
        let mut nemesis = Nemesis::new(0);
        self.hosts[0].start(Begin::Found, &self.shared);
        let founder = self.until(&mut nemesis, "the founder", MADE_WITHIN, |run| {
            let handle = run.hosts[0].handle()?;
            (!handle.local(|state| state.agents().count() == 0)).then_some(handle)
        })?;
        for number in 1..self.hosts.len() {
            let token = self.token(&founder, &mut nemesis)?;
            self.hosts[number].start(Begin::Join(token), &self.shared);
        }
        let count = self.hosts.len();
        self.until(&mut nemesis, "all voters", MADE_WITHIN, |run| {
            let voting = |handle: ClusterHandle| handle.status().members.iter().filter(|member| member.voting).count();
            let all = run.hosts.iter().all(|host| host.handle().is_some_and(|handle| voting(handle) == count));
            all.then_some(())
        })?;
        tracing::info!(nodes = count, "the cluster is made");
        Ok(())
    }

    fn token(&mut self, founder: &ClusterHandle, nemesis: &mut Nemesis) -> Result<String, String> {
        let (send, mut receive) = tokio::sync::oneshot::channel();
        let handle = founder.clone();
        self.hosts[0].spawn(async move {
            let token = handle.mint_token(NodeRole::Voter, TOKEN_TTL).await.map_err(|error| error.to_string());
            // The run may have given up.
            let _gone = send.send(token);
        });
        self.until(nemesis, "a join token", MADE_WITHIN, |_| receive.try_recv().ok())?
    }

    fn until<R>(
        &mut self,
        nemesis: &mut Nemesis,
        what: &str,
        within: Duration,
        mut is_so: impl FnMut(&Self) -> Option<R>,
    ) -> Result<R, String> {
        let deadline = world::now() + within;
        loop {
            if let Some(result) = is_so(self) {
                return Ok(result);
            }
            if world::now() >= deadline {
                return Err(format!("waited {within:?} for {what}"));
            }
            self.tick(nemesis)?;
        }
    }

    /// Lets everything come to its end.
    fn settle(&mut self, nemesis: &mut Nemesis) -> Result<(), String> {
        let deadline = world::now() + SETTLED_WITHIN;
        while self.shared.ledger().is_wrong().is_empty() {
            if let Some(state) = self.settled() {
                self.look();
                let tasks = self.all_tasks(&state)?;
                self.shared.ledger().look_back(&state, &tasks);
                return Ok(());
            }
            if world::now() >= deadline {
                return Err(self.unsettled());
            }
            for _ in 0..20 {
                self.tick(nemesis)?;
                self.clients.tick(&self.hosts, &self.shared, false);
            }
        }
        Ok(())
    }

    /// The state that all nodes came to, if nothing goes on any more.
    fn settled(&self) -> Option<State> {
        if !self.clients.are_answered() || !self.archives_are_whole() {
            return None;
        }
        let mut states = self.hosts.iter().map(|host| Some(host.handle()?.local(State::clone)));
        let first = states.next()??;
        let ended = (0..=u8::MAX)
            .flat_map(|shard| first.tasks_in(towline_core::VShard(shard)))
            .all(|task| task.status.state.is_terminal());
        (ended && states.all(|state| state.as_ref() == Some(&first))).then_some(first)
    }

    /// All tasks, with the records that every node has in its archive.
    fn all_tasks(&self, state: &State) -> Result<Vec<Arc<Task>>, String> {
        let mut tasks: Vec<Arc<Task>> = (0..=u8::MAX)
            .flat_map(|shard| state.tasks_in(towline_core::VShard(shard)))
            .map(|task| Arc::new(task.clone()))
            .collect();
        for (id, _) in state.stubs() {
            let mut first: Option<Arc<Task>> = None;
            for host in &self.hosts {
                let record = host.handle().map(|handle| handle.record_here(id)).transpose();
                let record = record.map_err(|error| format!("archive of node {}: {error}", host.number + 1))?.flatten();
                let Some(record) = record else {
                    return Err(format!("finished task {id} cannot be read on node {}", host.number + 1));
                };
                if first.as_ref().is_some_and(|first| *first != record) {
                    return Err(format!("finished task {id} reads otherwise on node {}", host.number + 1));
                }
                first = Some(record);
            }
            tasks.extend(first);
        }
        Ok(tasks)
    }

    /// Whether no node knows of a record that it lacks.
    fn archives_are_whole(&self) -> bool {
        self.hosts.iter().filter_map(Host::handle).all(|handle| handle.status().archived_missing == 0)
    }

    fn unsettled(&self) -> String {
        let nodes: Vec<String> = self
            .hosts
            .iter()
            .map(|host| match host.handle() {
                None => format!("node {} does not run", host.number + 1),
                Some(handle) => {
                    let status = handle.status();
                    let open = handle.local(|state| {
                        let tasks = (0..=u8::MAX).flat_map(|shard| state.tasks_in(towline_core::VShard(shard)));
                        tasks.filter(|task| !task.status.state.is_terminal()).count()
                    });
                    format!(
                        "node {} follows {:?}, applied {} of {}, {open} tasks are open",
                        host.number + 1,
                        status.leader,
                        status.applied,
                        status.committed
                    )
                }
            })
            .collect();
        format!("not settled {SETTLED_WITHIN:?} after everything was mended: {}", nodes.join("; "))
    }

    /// Lets the world go on by one tick.
    fn tick(&mut self, nemesis: &mut Nemesis) -> Result<(), String> {
        let now = world::with(world::World::advance);
        let wakers = world::with(|world| world.net.deliver(now));
        wakers.into_iter().for_each(std::task::Waker::wake);
        for number in 0..self.hosts.len() {
            if let Some(reason) = self.hosts[number].tick() {
                nemesis.ended(number, &reason, &mut self.hosts, &self.shared);
            }
        }
        if self.next_look <= now {
            self.next_look = now + LOOK_EVERY;
            self.look();
        }
        self.note_applied();
        Ok(())
    }

    fn note_applied(&self) {
        let mut ledger = self.shared.ledger();
        for handle in self.hosts.iter().filter_map(Host::handle) {
            ledger.applied(handle.local(|state| state.last().index));
        }
    }

    fn look(&mut self) {
        for host in &self.hosts {
            let Some(handle) = host.handle() else { continue };
            let (life, seen) = self.seen.entry(host.number).or_default();
            if *life != host.lives() {
                *life = host.lives();
                seen.clear();
            }
            let mut ledger = self.shared.ledger();
            handle.local(|state| ledger.look(handle.node_id(), state, seen));
        }
    }
}

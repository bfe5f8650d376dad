//! One run: a cluster is made, torn at while clients use it, mended, and looked at.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use towline_cluster::ClusterHandle;
use towline_core::{BlobHash, NodeRole, State, TaskId};

use crate::{
    clients::Clients,
    host::{self, Begin, Host, Standing},
    ledger::{Counts, Shared},
    members::{self, Members, TOKEN_TTL},
    nemesis::Nemesis,
    tasks, world,
};

/// A cluster of three is made within this.
const MADE_WITHIN: Duration = Duration::from_secs(30);
/// So long it is torn at, and longer while too little was done.
const TORN_FOR: Duration = Duration::from_secs(5);
/// And no longer than this.
const TORN_AT_MOST: Duration = Duration::from_secs(20);
/// All tasks end within this, once everything is mended.
const SETTLED_WITHIN: Duration = Duration::from_secs(40);
/// What nodes have applied is looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Every node gives all that there is within this, once everything is mended.
const READ_WITHIN: Duration = Duration::from_secs(30);
/// Of so many runs one has members that come and go, and one a clock that is set by days.
const MEMBERS_CHANGE_ONE_OF: u8 = 4;
const DAYS_PASS_ONE_OF: u8 = 6;

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
    let members = (rng.u8(0..MEMBERS_CHANGE_ONE_OF) == 0).then(|| rng.u64(..));
    let machines = nodes + if members.is_some() { members::SPARE } else { 0 };
    world::begin(rng.u64(..), machines);
    let mut run = Run {
        nodes,
        hosts: (0..machines).map(Host::new).collect(),
        shared: Shared::default(),
        clients: Clients::new(rng.u64(..)),
        members: members.map(Members::new),
        seen: BTreeMap::new(),
        next_look: Duration::ZERO,
    };
    let mut nemesis = Nemesis::new(rng.u64(..));
    if rng.u8(0..DAYS_PASS_ONE_OF) == 0 {
        nemesis.may_set_days();
    }
    if run.members.is_none() {
        nemesis.may_damage_content(rng.usize(0..nodes));
    }
    if let Err(reason) = run.all(nemesis) {
        run.shared.ledger().wrong(reason);
    }
    let mut ledger = run.shared.ledger();
    ledger.counts.snapshots = (0..machines).map(|number| world::with(|world| world.disk(number)).snapshots()).sum();
    Outcome { wrong: ledger.is_wrong().to_vec(), counts: ledger.counts, took: world::now() }
}

struct Run {
    /// How many nodes the cluster begins with.
    nodes: usize,
    hosts: Vec<Host>,
    shared: Shared,
    clients: Clients,
    /// None: those that it begins with stay.
    members: Option<Members>,
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
            self.change_members(true);
        }
        nemesis.heal(&mut self.hosts, &self.shared);
        tracing::info!("everything is mended");
        self.settle(&mut nemesis)
    }

    fn change_members(&mut self, is_torn: bool) {
        if let Some(members) = &mut self.members {
            members.tick(&mut self.hosts, &self.shared, is_torn);
        }
    }

    fn is_torn_on(&self, since: Duration) -> bool {
        let ledger = self.shared.ledger();
        let until = if ledger.counts.are_enough() { TORN_FOR } else { TORN_AT_MOST };
        since < until && ledger.is_wrong().is_empty()
    }

    fn make(&mut self) -> Result<(), String> {
        let mut nemesis = Nemesis::new(0);
        self.hosts[0].standing = Standing::Member;
        self.hosts[0].start(Begin::Found, &self.shared);
        let founder = self.until(&mut nemesis, "the founder", MADE_WITHIN, |run| {
            let handle = run.hosts[0].handle()?;
            (!handle.local(|state| state.agents().count() == 0)).then_some(handle)
        })?;
        for number in 1..self.nodes {
            let token = self.token(&founder, &mut nemesis)?;
            self.hosts[number].standing = Standing::Joining;
            self.hosts[number].start(Begin::Join(token, 0), &self.shared);
        }
        let count = self.nodes;
        self.until(&mut nemesis, "all voters", MADE_WITHIN, |run| {
            let voting = |handle: ClusterHandle| handle.status().members.iter().filter(|member| member.voting).count();
            let all = run.hosts[..count].iter().all(|host| host.handle().is_some_and(|handle| voting(handle) == count));
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
                self.shared.ledger().counts.archived = u32::try_from(state.archived_count()).unwrap_or(u32::MAX);
                return self.read_everything(nemesis);
            }
            if world::now() >= deadline {
                return Err(self.unsettled());
            }
            for _ in 0..20 {
                self.tick(nemesis)?;
                nemesis.end_some(&mut self.hosts, &self.shared);
                self.change_members(false);
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
        self.same_state().filter(|state| self.unfit(state).is_none())
    }

    /// Whether no node knows of a record that it lacks.
    fn archives_are_whole(&self) -> bool {
        self.members().filter_map(Host::handle).all(|handle| handle.status().archived_missing == 0)
    }

    fn same_state(&self) -> Option<State> {
        let mut states = self.members().map(|host| Some(host.handle()?.local(State::clone)));
        let first = states.next()??;
        let ended = (0..=u8::MAX)
            .flat_map(|shard| first.tasks_in(towline_core::VShard(shard)))
            .all(|task| task.status.state.is_terminal());
        (ended && states.all(|state| state.as_ref() == Some(&first))).then_some(first)
    }

    fn members(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter().filter(|host| host.standing == Standing::Member)
    }

    fn unfit(&self, state: &State) -> Option<String> {
        self.members.as_ref().and_then(|_| members::unfit(&self.hosts, state))
    }

    /// Every node gives every task, and all content that any task names.
    fn read_everything(&mut self, nemesis: &mut Nemesis) -> Result<(), String> {
        let ids = self.shared.ledger().all_tasks();
        let left = Arc::new(AtomicUsize::new(0));
        for (host, cluster) in self.members().filter_map(|host| Some((host, host.handle()?))) {
            left.fetch_add(1, Ordering::Relaxed);
            let (ids, left, shared) = (ids.clone(), Arc::clone(&left), self.shared.clone());
            host.spawn(async move {
                let mut given = Vec::new();
                for id in ids {
                    given.extend(tasks::recall(&cluster, id).await);
                }
                shared.ledger().look_back(cluster.node_id(), &given);
                read_content(&cluster, &shared).await;
                left.fetch_sub(1, Ordering::Relaxed);
            });
        }
        self.until(nemesis, "everything to be read", READ_WITHIN, |_| (left.load(Ordering::Relaxed) == 0).then_some(()))
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
        let state = self.members().find_map(Host::handle).map(|handle| handle.local(State::clone));
        let unfit = state.and_then(|state| self.unfit(&state)).map(|unfit| format!("; {unfit}")).unwrap_or_default();
        let open =
            self.members().find_map(Host::handle).and_then(|handle| handle.local(an_open_task)).unwrap_or_default();
        format!("not settled {SETTLED_WITHIN:?} after everything was mended: {}{unfit}{open}", nodes.join("; "))
    }

    /// Lets the world go on by one tick.
    fn tick(&mut self, nemesis: &mut Nemesis) -> Result<(), String> {
        let now = world::with(world::World::advance);
        let wakers = world::with(|world| world.net.deliver(now));
        wakers.into_iter().for_each(std::task::Waker::wake);
        members::note(&mut self.hosts, &self.shared);
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
            let named = handle.local(|state| {
                ledger.look(handle.node_id(), state, seen);
                ledger.newly_named(state)
            });
            drop(ledger);
            self.look_at_content(&named);
        }
    }

    /// What is named is on a majority of the disks, if who belongs to the cluster stays the same.
    fn look_at_content(&self, named: &[BlobHash]) {
        if self.members.is_some() {
            return;
        }
        for hash in named {
            let name = hash.to_string();
            let (prefix, rest) = name.split_at(2);
            let path =
                |number| PathBuf::from_iter([host::folder(number).as_path(), "blobs".as_ref()]).join(prefix).join(rest);
            let keeps = |number: &usize| world::with(|world| world.disk(*number)).keeps(&path(*number));
            let copies = (0..self.nodes).filter(keeps).count();
            if copies * 2 <= self.nodes {
                let nodes = self.nodes;
                self.shared.ledger().wrong(format!("content {hash} is named, and on {copies} disks of {nodes} only"));
            }
        }
    }
}

/// One of the tasks that have not ended, and how far it is.
fn an_open_task(state: &State) -> Option<String> {
    let tasks = (0..=u8::MAX).flat_map(|shard| state.tasks_in(towline_core::VShard(shard)));
    let task = tasks.into_iter().find(|task| !task.status.state.is_terminal())?;
    let steps: Vec<bool> = task.journal.iter().map(|step| step.ended.is_some()).collect();
    let message = task.history.first().map(|message| message.message_id.to_string());
    let children: Vec<TaskId> = state.children_ids(task.id).collect();
    let (id, state, lease) = (task.id, task.status.state, &task.lease);
    Some(format!(
        "; task {id} is {state:?}, lease {lease:?}, steps that ended: {steps:?}, children {children:?}, {message:?}"
    ))
}

async fn read_content(cluster: &ClusterHandle, shared: &Shared) {
    let named: Vec<(BlobHash, u64)> = cluster.local(|state| state.named_blobs().collect());
    for (hash, length) in named {
        let read = async { cluster.open_blob(hash, length).await?.whole().await };
        if let Err(error) = read.await {
            let node = cluster.node_id();
            shared.ledger().wrong(format!("node {node} does not give named content {hash}: {error}"));
        }
    }
}

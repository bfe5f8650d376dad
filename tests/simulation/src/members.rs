//! Who belongs to the cluster changes while it is torn at: nodes join, are removed, get and lose their vote, are drained.
//!
//! A removed node must never act again, and its process ends by itself. Its machine may be wiped, and then joins as a new node.

use std::time::Duration;

use tokio::sync::oneshot;
use towline_cluster::{ClusterHandle, ProposeError};
use towline_core::{NodeId, NodeRole, State};

use crate::{
    host::{Begin, Host, Standing},
    ledger::Shared,
    world,
};

/// Machines beside those that the cluster begins with.
pub const SPARE: usize = 2;
/// A join token lives for longer than any run, also when a clock jumps by days.
pub const TOKEN_TTL: Duration = Duration::from_secs(20 * 24 * 3_600);
/// Between two changes, in milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 300..1_800;
/// A drained node waits for so long for what might be repeated.
const PATIENCE: Duration = Duration::from_millis(500);
/// Fewer voters are not left: two that may be killed are few enough.
const LEAST_VOTERS: usize = 2;
/// How often drained nodes are given tasks again, once everything is mended.
const UNDRAIN_EVERY: Duration = Duration::from_millis(500);

/// Changes of who belongs to the cluster.
pub struct Members {
    rng: fastrand::Rng,
    next: Duration,
    /// A machine waits for a join token.
    minting: Option<(usize, oneshot::Receiver<Result<String, ProposeError>>)>,
}

/// A node as the state shows it.
#[derive(Debug, Clone, Copy)]
struct Seen {
    id: NodeId,
    role: NodeRole,
    is_drained: bool,
}

impl Members {
    /// None has been made.
    pub fn new(seed: u64) -> Self {
        Self { rng: fastrand::Rng::with_seed(seed), next: world::now(), minting: None }
    }

    /// Makes changes: others from time to time while the cluster is torn at, and then those that let all work go on.
    pub fn tick(&mut self, hosts: &mut [Host], shared: &Shared, is_torn: bool) {
        self.go_on_joining(hosts, shared);
        let now = world::now();
        if self.next > now {
            return;
        }
        if !is_torn {
            self.next = now + UNDRAIN_EVERY;
            undrain_all(hosts);
            return;
        }
        self.next = now + Duration::from_millis(self.rng.u64(PAUSE_MS));
        if let Some(what) = self.change(hosts) {
            tracing::info!(what, "change");
            shared.ledger().counts.changes += 1;
        }
    }

    fn go_on_joining(&mut self, hosts: &mut [Host], shared: &Shared) {
        let Some((machine, mut token)) = self.minting.take() else { return };
        match token.try_recv() {
            Ok(Ok(token)) => {
                let Some(member) = self.some_member(hosts) else { return };
                hosts[machine].standing = Standing::Joining;
                hosts[machine].start(Begin::Join(token, member), shared);
            }
            Err(oneshot::error::TryRecvError::Empty) => self.minting = Some((machine, token)),
            // No token was made, or who was to make it is gone.
            Ok(Err(_)) | Err(oneshot::error::TryRecvError::Closed) => {}
        }
    }

    fn change(&mut self, hosts: &mut [Host]) -> Option<String> {
        let via = self.some_member(hosts)?;
        let handle = hosts[via].handle()?;
        let nodes = handle.local(members_that_stay);
        match self.rng.u8(0..100) {
            0..35 => self.join(via, &handle, hosts),
            35..60 => self.remove(via, handle, &nodes, hosts),
            60..78 => self.set_role(via, handle, &nodes, hosts),
            _ => self.drain(via, handle, &nodes, hosts),
        }
    }

    fn some_member(&mut self, hosts: &[Host]) -> Option<usize> {
        let can = |host: &&Host| host.standing == Standing::Member && host.handle().is_some() && !host.is_still();
        let can: Vec<usize> = hosts.iter().filter(can).map(|host| host.number).collect();
        self.rng.choice(can)
    }

    fn join(&mut self, via: usize, handle: &ClusterHandle, hosts: &mut [Host]) -> Option<String> {
        if self.minting.is_some() {
            return None;
        }
        let is_free = |host: &&mut Host| match host.standing {
            Standing::Empty => true,
            Standing::Removed => !host.is_up() && !host.is_damaged,
            Standing::Joining | Standing::Member => false,
        };
        let machine = hosts.iter_mut().find(is_free)?;
        machine.wipe();
        let machine = machine.number;
        let role = if self.rng.u8(0..3) == 0 { NodeRole::Learner } else { NodeRole::Voter };
        let (tell, told) = oneshot::channel();
        let handle = handle.clone();
        hosts[via].spawn(async move {
            // The run may be over.
            let _gone = tell.send(handle.mint_token(role, TOKEN_TTL).await);
        });
        self.minting = Some((machine, told));
        Some(format!("machine {} is to join as {role:?}", machine + 1))
    }

    fn remove(&mut self, via: usize, handle: ClusterHandle, nodes: &[Seen], hosts: &[Host]) -> Option<String> {
        let node = self.rng.choice(nodes)?.id;
        let stay: Vec<&Seen> = nodes.iter().filter(|other| other.id != node).collect();
        if voters(stay.iter().copied()) < LEAST_VOTERS || stay.iter().all(|node| node.is_drained) {
            return None;
        }
        hosts[via].spawn(async move { told("remove", handle.remove_node(node).await) });
        Some(format!("node {node} is to be removed, through node {}", via + 1))
    }

    fn set_role(&mut self, via: usize, handle: ClusterHandle, nodes: &[Seen], hosts: &[Host]) -> Option<String> {
        let Seen { id: node, role, .. } = *self.rng.choice(nodes)?;
        let role = match role {
            NodeRole::Voter if voters(nodes.iter()) <= LEAST_VOTERS => return None,
            NodeRole::Voter => NodeRole::Learner,
            NodeRole::Learner => NodeRole::Voter,
            NodeRole::Worker => return None,
        };
        hosts[via].spawn(async move { told("set the role", handle.set_role(node, role).await) });
        Some(format!("node {node} is to be a {role:?}, through node {}", via + 1))
    }

    fn drain(&mut self, via: usize, handle: ClusterHandle, nodes: &[Seen], hosts: &[Host]) -> Option<String> {
        let Seen { id: node, is_drained, .. } = *self.rng.choice(nodes)?;
        if is_drained {
            hosts[via].spawn(async move { told("undrain", handle.undrain(node).await) });
            return Some(format!("node {node} is to take tasks again, through node {}", via + 1));
        }
        if nodes.iter().filter(|node| !node.is_drained).count() < 2 {
            return None;
        }
        hosts[via].spawn(async move { told("drain", handle.drain(node, PATIENCE).await) });
        Some(format!("node {node} is to be empty, through node {}", via + 1))
    }
}

/// Notes who is a member by now, and who is none any more.
pub fn note(hosts: &mut [Host], shared: &Shared) {
    for host in hosts.iter_mut() {
        let Some(handle) = host.handle() else { continue };
        host.node = Some(handle.node_id());
        if host.standing == Standing::Joining {
            host.standing = Standing::Member;
        }
    }
    let nodes: Vec<NodeId> = hosts.iter().filter_map(|host| host.node).collect();
    for handle in hosts.iter().filter_map(Host::handle) {
        let removed: Vec<NodeId> =
            handle.local(|state| nodes.iter().copied().filter(|node| state.is_removed(*node)).collect());
        if !removed.is_empty() {
            shared.ledger().were_removed(removed.into_iter());
        }
    }
    for host in hosts.iter_mut().filter(|host| host.standing == Standing::Member) {
        if host.node.is_some_and(|node| shared.ledger().is_removed(node)) {
            tracing::info!(machine = host.number + 1, "its node was removed");
            host.standing = Standing::Removed;
        }
    }
}

/// Why the nodes that there are do not yet fit what the state says of them; none if they do.
pub fn unfit(hosts: &[Host], state: &State) -> Option<String> {
    for host in hosts {
        match host.standing {
            Standing::Empty | Standing::Member => {}
            Standing::Joining => return Some(format!("machine {} still joins", host.number + 1)),
            Standing::Removed if host.is_up() && can_hear_of_it(host, hosts) => {
                return Some(format!("the process of machine {} runs, and its node was removed", host.number + 1));
            }
            Standing::Removed => {}
        }
    }
    let mut members: Vec<NodeId> =
        hosts.iter().filter(|host| host.standing == Standing::Member).filter_map(|host| host.node).collect();
    members.sort_unstable();
    let known: Vec<NodeId> = state.nodes().map(|node| node.id).collect();
    if members != known {
        return Some(format!("nodes {members:?} are members, and the state knows {known:?}"));
    }
    for handle in hosts.iter().filter_map(Host::handle) {
        let (node, members) = (handle.node_id(), handle.status().members);
        let wrong = |member: &&towline_cluster::MemberStatus| {
            member.leaving || member.draining || member.fenced || member.voting != (member.role == NodeRole::Voter)
        };
        if let Some(member) = members.iter().find(wrong) {
            return Some(format!("node {node} shows {member:?}"));
        }
    }
    None
}

/// Whether a removed node that runs knows somebody who can tell it so.
fn can_hear_of_it(removed: &Host, hosts: &[Host]) -> bool {
    let Some(handle) = removed.handle() else { return true };
    let is_known = |host: &Host| host.node.is_some_and(|node| handle.local(|state| state.node(node).is_some()));
    hosts.iter().any(|host| host.standing == Standing::Member && is_known(host))
}

fn members_that_stay(state: &State) -> Vec<Seen> {
    let stays = |node: &&towline_core::Node| !node.leaving;
    let seen = |node: &towline_core::Node| Seen { id: node.id, role: node.role, is_drained: node.draining.is_some() };
    state.nodes().filter(stays).map(seen).collect()
}

fn voters<'a>(nodes: impl Iterator<Item = &'a Seen>) -> usize {
    nodes.filter(|node| node.role == NodeRole::Voter).count()
}

fn undrain_all(hosts: &[Host]) {
    let Some((host, handle)) = hosts.iter().find_map(|host| Some((host, host.handle()?))) else { return };
    let drained: Vec<NodeId> = handle
        .local(|state| members_that_stay(state).iter().filter(|node| node.is_drained).map(|node| node.id).collect());
    for node in drained {
        let handle = handle.clone();
        host.spawn(async move { told("undrain", handle.undrain(node).await) });
    }
}

fn told(what: &str, outcome: Result<(), ProposeError>) {
    if let Err(error) = outcome {
        tracing::info!(what, %error, "change was not made");
    }
}

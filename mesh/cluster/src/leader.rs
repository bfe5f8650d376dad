//! What the leader does with a proposal or a read, whoever asked: the only place where the log is written.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use openraft::{
    ReadPolicy,
    async_runtime::WatchReceiver,
    errors::{ClientWriteError, ForwardToLeader, LinearizableReadError, RaftError},
};
use towline_core::{Applied, NodeId, Principal, Proposal, Rejection, Timestamp, TraceContext};

use crate::{
    health::Applying,
    raft::{LogStore, Raft, RaftLeaderId, StateView, TypeConfig},
    routes::Routes,
    seams::{Clock, read_clock},
    wire::{self, LoggedProposal},
};

/// What became of a proposal here.
#[derive(Debug)]
pub(crate) enum Written {
    /// It is committed, and this node has applied it.
    Applied {
        /// Log index of the entry.
        index: u64,
        /// What the core said.
        outcome: Result<Applied, Rejection>,
    },
    /// This node does not lead; it was not appended.
    NotLeader(Option<NodeId>),
    /// This node cannot take it; it was not appended.
    Unavailable(String),
    /// It may have been appended; it is not known whether it is committed.
    Unknown(String),
}

/// What became of a read here.
#[derive(Debug)]
pub(crate) enum ReadIndex {
    /// Everything committed before the call stands at or before this index.
    At(u64),
    /// This node does not lead, or not surely.
    NotLeader(Option<NodeId>),
    /// The Raft core has stopped.
    Stopped(String),
}

/// How a node takes part.
pub(crate) enum Seat {
    /// In the Raft group, with a vote or without.
    Member {
        /// The Raft node.
        raft: Raft,
        /// Its log.
        log: LogStore,
    },
    /// Outside of it, and without a log: others feed it.
    Worker(Arc<Routes>),
}

/// The write side of this node's Raft; a worker has none, and only knows who leads.
pub(crate) struct Leadership {
    node: NodeId,
    seat: Seat,
    view: StateView,
    last_stamp: AtomicU64,
    applying: Applying,
}

impl Leadership {
    pub(crate) fn new(node: NodeId, seat: Seat, view: StateView) -> Self {
        Self { node, seat, view, last_stamp: AtomicU64::new(0), applying: Applying::default() }
    }

    /// The Raft node; none on a worker.
    pub(crate) fn raft(&self) -> Option<&Raft> {
        match &self.seat {
            Seat::Member { raft, .. } => Some(raft),
            Seat::Worker(_) => None,
        }
    }

    /// The log; none on a worker.
    pub(crate) fn log(&self) -> Option<&LogStore> {
        match &self.seat {
            Seat::Member { log, .. } => Some(log),
            Seat::Worker(_) => None,
        }
    }

    /// How a worker reaches the others; none on a member of the Raft group.
    pub(crate) fn routes(&self) -> Option<&Arc<Routes>> {
        match &self.seat {
            Seat::Member { .. } => None,
            Seat::Worker(routes) => Some(routes),
        }
    }

    /// This node's leadership, while it leads.
    pub(crate) fn leads(&self) -> Option<RaftLeaderId> {
        self.raft()?.as_leader().ok().map(|leader| *leader.leader_id())
    }

    pub(crate) fn view(&self) -> &StateView {
        &self.view
    }

    /// How this node applies what is committed.
    pub(crate) fn applying(&self) -> &Applying {
        &self.applying
    }

    /// Whom this node takes for the leader.
    pub(crate) fn leader(&self) -> Option<NodeId> {
        match &self.seat {
            Seat::Member { raft, .. } => raft.server_metrics().borrow_watched().current_leader.map(NodeId),
            Seat::Worker(routes) => routes.leader(),
        }
    }

    /// The latest term that this node knows, and who leads in it.
    pub(crate) fn term_and_leader(&self) -> (u64, Option<NodeId>) {
        match &self.seat {
            Seat::Member { raft, .. } => {
                let metrics = raft.server_metrics();
                let metrics = metrics.borrow_watched();
                (metrics.vote.leader_id.term, metrics.current_leader.map(NodeId))
            }
            Seat::Worker(routes) => (routes.term(), routes.leader()),
        }
    }

    /// Returns when this node hears of a leader that is not `leader`, nor the one it knew when the wait began.
    pub(crate) async fn another_leads(&self, leader: NodeId) {
        let mut metrics = match &self.seat {
            Seat::Member { raft, .. } => raft.server_metrics(),
            Seat::Worker(routes) => return routes.another_leads(leader).await,
        };
        let known = metrics.borrow_and_update().current_leader;
        loop {
            if metrics.changed().await.is_err() {
                return std::future::pending().await;
            }
            let current = metrics.borrow_and_update().current_leader;
            if current.is_some() && current != Some(leader.0) && current != known {
                return;
            }
        }
    }

    /// Whether this node is the only voter there is.
    pub(crate) fn is_only_voter(&self) -> bool {
        let Some(raft) = self.raft() else { return false };
        let metrics = raft.server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.membership().voter_ids().eq([self.node.0])
    }

    /// Puts a proposal of a client, which this process has encoded or decoded, into the log. A disk that runs full takes no new work first, and then only what Raft
    /// itself writes.
    pub(crate) async fn write(&self, payload: Bytes, trace: Option<TraceContext>, wait: Duration) -> Written {
        let Seat::Member { raft, log } = &self.seat else { return Written::NotLeader(self.leader()) };
        if let Err(forward) = raft.as_leader() {
            return Written::NotLeader(self.hint(&forward));
        }
        let logged = match LoggedProposal::from_known(self.stamp(), trace, payload) {
            Ok(logged) => logged,
            Err(error) => return Written::Unavailable(format!("proposal is not taken: {error}")),
        };
        if let Err(full) = log.has_room()
            && (makes_work(&logged) || log.has_room_for_running().is_err())
        {
            return Written::Unavailable(full.to_string());
        }
        self.append(logged, wait).await
    }

    /// Puts a proposal of the leader itself into the log.
    pub(crate) async fn write_own(&self, command: towline_core::Command, wait: Duration) -> Written {
        let proposal = Proposal { by: Principal::Node(self.node), command };
        match wire::encode_proposal(&proposal).and_then(|bytes| LoggedProposal::from_known(self.stamp(), None, bytes)) {
            Ok(logged) => self.append(logged, wait).await,
            Err(error) => Written::Unavailable(format!("proposal cannot be encoded: {error}")),
        }
    }

    /// The log index that a linearizable read has to wait for. Asks a quorum.
    pub(crate) async fn read_index(&self) -> ReadIndex {
        let Some(raft) = self.raft() else { return ReadIndex::NotLeader(self.leader()) };
        match raft.get_read_log_id(ReadPolicy::ReadIndex).await {
            Ok((read, _)) => ReadIndex::At(read.index()),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                ReadIndex::NotLeader(self.hint(&forward))
            }
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => ReadIndex::NotLeader(None),
            Err(RaftError::Fatal(error)) => ReadIndex::Stopped(error.to_string()),
        }
    }

    async fn append(&self, logged: LoggedProposal, wait: Duration) -> Written {
        let Some(raft) = self.raft() else { return Written::NotLeader(self.leader()) };
        match tokio::time::timeout(wait, raft.client_write(logged)).await {
            Err(_) => Written::Unknown(format!(
                "leader {} saw no commit in time: is a majority of the voters up and connected?",
                self.node
            )),
            Ok(Ok(response)) => match response.data.outcome {
                Some(outcome) => Written::Applied { index: response.data.index, outcome },
                None => Written::Unknown("the entry was applied as one of Raft's own".to_owned()),
            },
            Ok(Err(RaftError::Fatal(error))) => Written::Unknown(format!("raft core has stopped: {error}")),
            Ok(Err(RaftError::APIError(error))) => self.refused(error),
        }
    }

    fn refused(&self, error: ClientWriteError<TypeConfig>) -> Written {
        match error {
            ClientWriteError::ForwardToLeader(forward) => Written::NotLeader(self.hint(&forward)),
            ClientWriteError::LogEntryDiscarded(_) => {
                Written::Unknown("another leader came before the entry was committed".to_owned())
            }
            ClientWriteError::ChangeMembershipError(error) => Written::Unavailable(error.to_string()),
            ClientWriteError::PreconditionFailed(error) => Written::Unavailable(error.to_string()),
        }
    }

    fn hint(&self, forward: &ForwardToLeader<TypeConfig>) -> Option<NodeId> {
        forward.leader_id.map(NodeId).filter(|leader| *leader != self.node)
    }

    /// The leader's time, never before a time that it or a leader before it has given.
    fn stamp(&self) -> Timestamp {
        let applied = self.view.read(|state| state.last().at);
        let now = wall_clock().max(applied).0;
        let before = self.last_stamp.fetch_max(now, Ordering::Relaxed);
        Timestamp(now.max(before))
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn wall_clock() -> Timestamp {
    Timestamp(u64::try_from(read_clock(Clock::Wall).as_millis()).unwrap_or(u64::MAX))
}

/// Whether a proposal brings work, as opposed to what the work that was taken comes to.
fn makes_work(logged: &LoggedProposal) -> bool {
    // What cannot be decoded is no report.
    logged.proposal().map_or(true, |proposal| proposal.command.makes_work())
}

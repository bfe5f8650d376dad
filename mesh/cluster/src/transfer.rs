//! Hands the leadership over: when an operator asks, and before a leader is of no more use.

use std::time::Duration;

use openraft::async_runtime::WatchReceiver as _;
use tokio::time::timeout;
use towline_core::{NodeHealth, NodeId, NodeRole, State};
use towline_proto::v1;

use crate::{
    handle::ClusterHandle,
    peers::{self, Lane},
    raft_view::{HEARD_WITHIN, RaftView},
};

/// A voter this many entries behind may still take the leadership over: they are sent to it first.
const SUCCESSOR_LAG: u64 = 1_000;
/// How long a leader waits for another to take over.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long another node waits for the leader's answer to an operator: the transfer, and the way there.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the leadership was not handed over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// Nobody can take it, or not the node that was named.
    #[error("{reason}")]
    Unfit {
        /// What is in the way, and what to do.
        reason: String,
    },
    /// It is not known whether it was taken over.
    #[error("{reason}: `towline cluster status` says who leads")]
    Unknown {
        /// What was tried.
        reason: String,
    },
    /// There is no leader, or it is not reached.
    #[error("{reason}")]
    Unavailable {
        /// What was tried.
        reason: String,
    },
}

/// What is known when a successor is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// What operators want of the nodes counts as well.
    AtState,
    /// The state stands still.
    AtRaft,
}

impl ClusterHandle {
    /// Has the leader hand over, to a certain voter or to the one that is least behind. Returns who leads then.
    ///
    /// # Errors
    /// See [`TransferError`].
    pub async fn transfer_leader(&self, to: Option<NodeId>) -> Result<NodeId, TransferError> {
        let unavailable = |reason: String| TransferError::Unavailable { reason };
        let leader = self
            .leadership()
            .leader()
            .ok_or_else(|| unavailable("no leader is known: a majority of voters must be up".to_owned()))?;
        if leader == self.node_id() {
            return self.transfer_as_leader(to).await;
        }
        let request = v1::HandOverRequest { to: to.map(|node| node.0) };
        let mut client = self.peers().peer(leader, Lane::Calls);
        match timeout(ASK_TIMEOUT, client.hand_over(request)).await {
            Err(_) => {
                Err(TransferError::Unknown { reason: format!("node {leader} did not answer within {ASK_TIMEOUT:?}") })
            }
            Ok(Ok(answer)) => told(leader, answer.into_inner()),
            Ok(Err(status)) if status.code() == tonic::Code::Unimplemented => {
                Err(unavailable(format!("node {leader} leads, and its version cannot hand over: upgrade it")))
            }
            Ok(Err(status)) => Err(unavailable(format!("node {leader}: {}", peers::root_cause(&status)))),
        }
    }

    /// [`ClusterHandle::transfer_leader`] where this node leads.
    pub(crate) async fn transfer_as_leader(&self, to: Option<NodeId>) -> Result<NodeId, TransferError> {
        let view = RaftView::of(self);
        let me = self.node_id();
        if !view.leads() {
            return Err(TransferError::Unavailable { reason: format!("node {me} does not lead any more: ask again") });
        }
        let to = match to {
            Some(to) if to == me => return Ok(me),
            Some(to) => self.check_fit(&view, to).map(|()| to)?,
            None => self.meant_successor().ok_or_else(|| nobody_is_fit(self, &view))?,
        };
        if self.hand_over_to(to).await {
            Ok(to)
        } else {
            let reason = format!("node {to} did not take the leadership over within {TRANSFER_TIMEOUT:?}");
            Err(TransferError::Unknown { reason })
        }
    }

    /// Hands the leadership to a voter that has caught up, if this node leads and there is one. Says whether it was tried.
    #[doc(hidden)]
    pub async fn hand_over(&self) -> bool {
        self.try_hand_over(Look::AtState).await
    }

    /// [`ClusterHandle::hand_over`] without a look at the state, which stands still.
    pub(crate) async fn hand_over_blindly(&self) -> bool {
        self.try_hand_over(Look::AtRaft).await
    }

    /// The voter to hand over to, if there is one that is meant to lead.
    pub(crate) fn meant_successor(&self) -> Option<NodeId> {
        let successor = self.successor(Look::AtState)?;
        self.local(|state| unwanted(state, successor)).is_none().then_some(successor)
    }

    async fn try_hand_over(&self, look: Look) -> bool {
        let Some(successor) = self.successor(look) else { return false };
        self.hand_over_to(successor).await;
        true
    }

    async fn hand_over_to(&self, successor: NodeId) -> bool {
        let Some(raft) = self.leadership().raft() else { return false };
        self.leader_sessions().hand_over();
        if let Err(error) = raft.trigger().transfer_leader(successor.0).await {
            tracing::warn!(%error, "leadership was not handed over");
            return false;
        }
        let me = self.node_id();
        let mut metrics = raft.server_metrics();
        let taken = async {
            loop {
                let leader = metrics.borrow_and_update().current_leader;
                if leader.is_some_and(|leader| leader != me.0) || metrics.changed().await.is_err() {
                    return;
                }
            }
        };
        let is_taken = timeout(TRANSFER_TIMEOUT, taken).await.is_ok();
        if !is_taken {
            self.leader_sessions().keep_leading();
            tracing::warn!(%successor, "leadership was not taken over in time");
        }
        is_taken
    }

    /// The voter that can take the leadership over, if this node leads: of those that are meant to, the one that is least
    /// behind.
    fn successor(&self, look: Look) -> Option<NodeId> {
        let view = RaftView::of(self);
        if !view.leads() {
            return None;
        }
        let me = self.node_id().0;
        let fit = view.voters().into_iter().filter(|node| *node != me).map(NodeId);
        let fit = fit.filter_map(|node| Some((self.lag_if_fit(&view, node).ok()?, node)));
        match look {
            Look::AtRaft => fit.min().map(|(_, node)| node),
            Look::AtState => self.local(|state| {
                let up = fit.filter(|(_, node)| is_up(state, *node));
                up.min_by_key(|(lag, node)| (unwanted(state, *node).is_some(), *lag, *node)).map(|(_, node)| node)
            }),
        }
    }

    fn check_fit(&self, view: &RaftView, node: NodeId) -> Result<(), TransferError> {
        let unfit = |reason: String| TransferError::Unfit { reason };
        let why = self.local(|state| match state.node(node) {
            None => Some(format!("node {node} is not a member of this cluster")),
            Some(_) => unwanted(state, node),
        });
        if let Some(why) = why {
            return Err(unfit(why));
        }
        self.lag_if_fit(view, node).map(|_| ()).map_err(unfit)
    }

    /// How far a node is behind, if Raft lets it lead.
    fn lag_if_fit(&self, view: &RaftView, node: NodeId) -> Result<u64, String> {
        if !view.voters().contains(&node.0) {
            return Err(format!("node {node} has no vote yet: `towline cluster status` says what it waits for"));
        }
        if let Some(fence) = self.peers().fences().of(node) {
            return Err(fence.to_string());
        }
        if let Some(trouble) = self.troubles().of(node) {
            return Err(format!("node {node} can accept no work: {trouble}"));
        }
        if !view.is_heard(node.0) {
            return Err(format!("node {node} has not answered for {HEARD_WITHIN:?}: see that it runs, then try again"));
        }
        match view.lag(node.0) {
            Some(lag) if lag <= SUCCESSOR_LAG => Ok(lag),
            Some(lag) => Err(format!("node {node} is {lag} entries behind: try again when it has caught up")),
            None => Err(format!("it is not known yet how far node {node} is behind: try again in a second")),
        }
    }
}

/// Why a node should not lead, as operators have it.
fn unwanted(state: &State, node: NodeId) -> Option<String> {
    let node = state.node(node)?;
    let id = node.id;
    if node.leaving {
        return Some(format!("node {id} leaves the cluster"));
    }
    if node.draining.is_some() {
        return Some(format!("node {id} is drained: `towline cluster undrain {id}` first"));
    }
    match node.role {
        NodeRole::Voter => None,
        NodeRole::Learner => Some(format!("node {id} is a learner: `towline cluster promote {id}` first")),
        NodeRole::Worker => Some(format!("node {id} is a worker: it keeps no log, and never leads")),
    }
}

fn is_up(state: &State, node: NodeId) -> bool {
    state.node(node).is_some_and(|node| node.health == NodeHealth::Up)
}

fn nobody_is_fit(cluster: &ClusterHandle, view: &RaftView) -> TransferError {
    let others = view.voters().into_iter().map(NodeId).filter(|node| *node != cluster.node_id());
    let reasons: Vec<String> =
        others.filter_map(|node| cluster.check_fit(view, node).err()).map(|error| error.to_string()).collect();
    let reasons = if reasons.is_empty() { "there is no other voter".to_owned() } else { reasons.join("; ") };
    TransferError::Unfit { reason: format!("no other node can lead: {reasons}") }
}

fn told(leader: NodeId, answer: v1::HandOverResponse) -> Result<NodeId, TransferError> {
    use v1::hand_over_response::Result as Answer;
    match answer.result {
        Some(Answer::Leader(leader)) => Ok(NodeId(leader)),
        Some(Answer::Unfit(reason)) => Err(TransferError::Unfit { reason }),
        Some(Answer::Unknown(reason)) => Err(TransferError::Unknown { reason }),
        Some(Answer::Unavailable(reason)) => Err(TransferError::Unavailable { reason }),
        None => Err(TransferError::Unknown { reason: format!("node {leader} answered without a result") }),
    }
}

/// The answer to another node.
pub(crate) fn answer(result: Result<NodeId, TransferError>) -> v1::HandOverResponse {
    use v1::hand_over_response::Result as Answer;
    let result = match result {
        Ok(leader) => Answer::Leader(leader.0),
        Err(TransferError::Unfit { reason }) => Answer::Unfit(reason),
        Err(TransferError::Unknown { reason }) => Answer::Unknown(reason),
        Err(TransferError::Unavailable { reason }) => Answer::Unavailable(reason),
    };
    v1::HandOverResponse { result: Some(result) }
}

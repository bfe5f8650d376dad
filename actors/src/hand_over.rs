//! What a node that stops does with its tasks first: others get them, each at the end of a step.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ractor::ActorRef;

use crate::{SETTLED_POLL, dispatcher::DispatcherMsg, mailbox::Mail, shared::Shared};

/// Gives the tasks of a node to others. Made by [`Mesh::hand_over`](crate::Mesh::hand_over).
pub struct HandOver {
    pub(crate) dispatcher: ActorRef<Mail<DispatcherMsg>>,
    pub(crate) shared: Arc<Shared>,
}

impl HandOver {
    /// Whether a task of this node could go on at another. Without a session none can.
    pub fn is_possible(&self) -> bool {
        let cluster = &self.shared.cluster;
        let node = cluster.node_id();
        let could_go =
            || cluster.local(|state| state.tasks_of(node).any(|task| state.has_another_open_host(&task.agent, node)));
        cluster.may_act() && could_go()
    }

    /// Has the tasks go, and waits until those are gone that can, or the time is over. The node has said before that it has
    /// no room, so that nothing comes back.
    pub async fn run(self, limit: Duration) {
        let until = Instant::now() + limit;
        if self.dispatcher.cast(DispatcherMsg::HandOver { until }.into()).is_err() {
            return;
        }
        let handed_over = async {
            while self.is_possible() {
                tokio::time::sleep(SETTLED_POLL).await;
            }
        };
        if tokio::time::timeout(limit, handed_over).await.is_err() {
            tracing::warn!(?limit, "not every task could be handed over: the others take up what is left");
        }
    }
}

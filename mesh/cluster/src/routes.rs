//! How a node that keeps no log finds the leader, and gets through to it: what the node that feeds it says, what answers
//! say, and, where the leader is not reached, a detour over another node, which sends a call on once.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};
use towline_core::NodeId;

/// How long a leader whose machine took no connection is gone around.
const GO_AROUND_REFUSED: Duration = Duration::from_secs(5);
/// How long a leader that did not answer is gone around: it may only have been slow.
const GO_AROUND_SILENT: Duration = Duration::from_secs(1);
/// So long after the leader has applied an entry, a node that feeds others has applied it as well: else it is cut off, and
/// another one takes its place. Longer than an election.
const STANDS_STILL: Duration = Duration::from_millis(1_500);

/// A worker that nobody feeds for so long lets its session end, so that its tasks go to nodes that know what they hold. Longer
/// than to find another node and to be sent a large state takes.
const STARVED: Duration = Duration::from_secs(10);

/// What a worker knows of the others.
pub(crate) struct Routes {
    leader: watch::Sender<Leader>,
    /// Whom not to call directly, and until when.
    around: Mutex<Option<(NodeId, Instant)>>,
    progress: Mutex<Progress>,
    fed_by: watch::Sender<Option<NodeId>>,
    /// Why this node cannot go on.
    stopped: watch::Sender<Option<String>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Leader {
    term: u64,
    node: Option<NodeId>,
}

/// How far the leader is, as it told, and what of that has to have come here.
struct Progress {
    told: u64,
    due: u64,
    since: Instant,
    fed: Instant,
}

impl Default for Routes {
    fn default() -> Self {
        Self {
            leader: watch::Sender::new(Leader::default()),
            around: Mutex::default(),
            progress: Mutex::new(Progress { told: 0, due: 0, since: Instant::now(), fed: Instant::now() }),
            fed_by: watch::Sender::new(None),
            stopped: watch::Sender::new(None),
        }
    }
}

/// Whom to call, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) node: NodeId,
    /// The call is meant for the leader, and the node sends it on if it does not lead.
    pub(crate) send_on: bool,
}

impl Way {
    pub(crate) fn straight(node: NodeId) -> Self {
        Self { node, send_on: false }
    }

    fn around(node: NodeId) -> Self {
        Self { node, send_on: true }
    }
}

/// Where the search for the leader stands.
#[derive(Debug, Default)]
pub(crate) struct Detours {
    /// The leader was asked and is not it.
    wanted: bool,
    tried: usize,
}

impl Detours {
    /// The next try is a detour: whoever was asked does not know who leads.
    pub(crate) fn want(&mut self) {
        self.wanted = true;
    }
}

impl Routes {
    /// Who leads, as far as is known.
    pub(crate) fn leader(&self) -> Option<NodeId> {
        self.leader.borrow().node
    }

    pub(crate) fn term(&self) -> u64 {
        self.leader.borrow().term
    }

    /// Takes what another node says. Of one term it counts what is known first, since it has one leader.
    pub(crate) fn heard(&self, term: u64, node: Option<NodeId>) {
        self.leader.send_if_modified(|known| {
            let is_news = term > known.term || (term == known.term && known.node.is_none() && node.is_some());
            if is_news {
                *known = Leader { term, node };
            }
            is_news
        });
    }

    /// A node has answered as the leader.
    pub(crate) fn confirm(&self, node: NodeId) {
        self.leader.send_if_modified(|known| {
            let is_news = known.node != Some(node);
            known.node = Some(node);
            is_news
        });
    }

    /// Returns when another leader is known than `leader` and the one that was known when the wait began.
    pub(crate) async fn another_leads(&self, leader: NodeId) {
        let mut changes = self.leader.subscribe();
        let known = changes.borrow_and_update().node;
        let is_other = |now: &Leader| now.node.is_some() && now.node != Some(leader) && now.node != known;
        if changes.wait_for(is_other).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// The leader was not reached: calls go around it for a while.
    pub(crate) fn not_reached(&self, node: NodeId, surely: bool) {
        let length = if surely { GO_AROUND_REFUSED } else { GO_AROUND_SILENT };
        *self.around() = Some((node, Instant::now() + length));
    }

    /// The way to the leader: straight, unless it was not reached a moment ago or nobody knows it; then over one of `others`
    /// after the other.
    pub(crate) fn way(
        &self,
        leader: Option<NodeId>,
        detours: &mut Detours,
        others: impl FnOnce() -> Vec<NodeId>,
    ) -> Option<Way> {
        self.way_at(Instant::now(), leader, detours, others)
    }

    fn way_at(
        &self,
        now: Instant,
        leader: Option<NodeId>,
        detours: &mut Detours,
        others: impl FnOnce() -> Vec<NodeId>,
    ) -> Option<Way> {
        let wanted = std::mem::take(&mut detours.wanted);
        if let Some(leader) = leader.filter(|leader| !wanted && !self.goes_around(now, *leader)) {
            return Some(Way::straight(leader));
        }
        let fit: Vec<NodeId> = others().into_iter().filter(|node| Some(*node) != leader).collect();
        let next = fit.get(detours.tried.checked_rem(fit.len()).unwrap_or_default()).copied();
        detours.tried += 1;
        next.map(Way::around).or(leader.map(Way::straight))
    }

    fn goes_around(&self, now: Instant, node: NodeId) -> bool {
        self.around().is_some_and(|(around, until)| around == node && now < until)
    }

    /// The leader told how far it is.
    pub(crate) fn told(&self, applied: u64) {
        let mut progress = self.progress();
        progress.told = progress.told.max(applied);
    }

    /// How far the leader is, as it told last.
    pub(crate) fn leader_applied(&self) -> u64 {
        self.progress().told
    }

    /// Another node begins to feed this one.
    pub(crate) fn begin_feed(&self) {
        self.progress().since = Instant::now();
    }

    /// Whether a node that has applied so much lacks what the leader has had for a while.
    pub(crate) fn stands_still(&self, applied: u64) -> bool {
        self.stands_still_at(Instant::now(), applied)
    }

    fn stands_still_at(&self, now: Instant, applied: u64) -> bool {
        let mut progress = self.progress();
        if applied >= progress.due {
            progress.due = progress.told;
            progress.since = now;
        }
        applied < progress.due && now.saturating_duration_since(progress.since) >= STANDS_STILL
    }

    /// Who feeds this node.
    pub(crate) fn fed_by(&self) -> Option<NodeId> {
        *self.fed_by.borrow()
    }

    pub(crate) fn set_fed_by(&self, node: Option<NodeId>) {
        if node.is_some() {
            self.progress().fed = Instant::now();
        }
        self.fed_by.send_if_modified(|fed_by| std::mem::replace(fed_by, node) != node);
    }

    /// Whether nobody has fed this node for long.
    pub(crate) fn is_starved(&self) -> bool {
        self.is_starved_at(Instant::now())
    }

    fn is_starved_at(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.progress().fed) >= STARVED
    }

    /// This node cannot go on.
    pub(crate) fn stop(&self, reason: String) {
        self.stopped.send_replace(Some(reason));
    }

    /// Why this node cannot go on, if so.
    pub(crate) fn stop_reason(&self) -> Option<String> {
        self.stopped.borrow().clone()
    }

    /// Returns when this node cannot go on, with the reason.
    pub(crate) async fn stopped(&self) -> String {
        let mut stopped = self.stopped.subscribe();
        match stopped.wait_for(Option::is_some).await.map(|reason| reason.clone()) {
            Ok(Some(reason)) => reason,
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    fn around(&self) -> MutexGuard<'_, Option<(NodeId, Instant)>> {
        self.around.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const OTHERS: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

    fn way(routes: &Routes, leader: Option<NodeId>, detours: &mut Detours) -> Option<Way> {
        routes.way(leader, detours, || OTHERS.to_vec())
    }

    #[test]
    fn a_leader_that_is_known_is_called_straight() {
        let (routes, mut detours) = (Routes::default(), Detours::default());
        assert_eq!(way(&routes, Some(NodeId(2)), &mut detours), Some(Way::straight(NodeId(2))));
    }

    #[test]
    fn a_leader_that_was_not_reached_is_gone_around_for_a_while() {
        let (routes, mut detours) = (Routes::default(), Detours::default());
        routes.not_reached(NodeId(2), true);
        assert_eq!(way(&routes, Some(NodeId(2)), &mut detours), Some(Way::around(NodeId(1))));
        assert_eq!(way(&routes, Some(NodeId(2)), &mut detours), Some(Way::around(NodeId(3))));
        assert_eq!(way(&routes, Some(NodeId(3)), &mut detours), Some(Way::straight(NodeId(3))), "another one leads");
        let later = Instant::now() + GO_AROUND_REFUSED;
        let way = routes.way_at(later, Some(NodeId(2)), &mut detours, || OTHERS.to_vec());
        assert_eq!(way, Some(Way::straight(NodeId(2))));
    }

    #[test]
    fn where_no_leader_is_known_each_other_node_is_asked_in_turn() {
        let (routes, mut detours) = (Routes::default(), Detours::default());
        let asked: Vec<_> = (0..4).filter_map(|_| way(&routes, None, &mut detours)).map(|way| way.node.0).collect();
        assert_eq!(asked, [1, 2, 3, 1]);
        assert_eq!(routes.way(None, &mut detours, Vec::new), None);
    }

    #[test]
    fn whoever_does_not_know_the_leader_is_not_asked_twice_in_a_row() {
        let (routes, mut detours) = (Routes::default(), Detours::default());
        detours.want();
        assert_eq!(way(&routes, Some(NodeId(1)), &mut detours), Some(Way::around(NodeId(2))));
        assert_eq!(way(&routes, Some(NodeId(1)), &mut detours), Some(Way::straight(NodeId(1))));
    }

    #[test]
    fn a_node_that_lags_does_not_bring_an_old_leader_back() {
        let routes = Routes::default();
        routes.heard(4, Some(NodeId(1)));
        let mut other = Box::pin(routes.another_leads(NodeId(1)));
        assert!(other.as_mut().now_or_never().is_none());
        routes.confirm(NodeId(2));
        assert!(other.as_mut().now_or_never().is_some());
        routes.heard(4, Some(NodeId(1)));
        assert_eq!(routes.leader(), Some(NodeId(2)));
        routes.heard(5, None);
        assert_eq!(routes.leader(), None);
        routes.heard(5, Some(NodeId(3)));
        assert_eq!(routes.leader(), Some(NodeId(3)));
    }

    #[test]
    fn a_worker_that_nobody_feeds_is_starved_after_a_while() {
        let (routes, now) = (Routes::default(), Instant::now());
        assert!(!routes.is_starved_at(now));
        assert!(routes.is_starved_at(now + STARVED + STARVED));
        routes.set_fed_by(Some(NodeId(1)));
        routes.set_fed_by(None);
        assert!(!routes.is_starved_at(now + STARVED / 2));
    }

    #[test]
    fn a_feeding_node_that_lacks_what_the_leader_has_had_for_a_while_stands_still() {
        let (routes, now) = (Routes::default(), Instant::now());
        routes.told(100);
        assert!(!routes.stands_still_at(now, 100));
        assert!(!routes.stands_still_at(now, 100));
        routes.told(110);
        assert!(!routes.stands_still_at(now, 100), "it is given its time");
        let later = now + STANDS_STILL;
        assert!(routes.stands_still_at(later, 100));
        assert!(!routes.stands_still_at(later, 110));
        routes.told(120);
        assert!(!routes.stands_still_at(later + STANDS_STILL, 115), "it gets on");
    }
}

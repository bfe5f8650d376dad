//! How a node that keeps no log is fed: one that keeps the log sends it what it applies.
//!
//! ```text
//! worker ──after entry 812──▶ voter or learner
//!        ◀── entries 813, 814 … as they are applied there; a beat while there are none
//!        ◀── a snapshot, where it is too far behind or has nothing yet
//! ```
//! The worker applies the entries with the same `State::apply`, so it has the same state at the same index. A node that is
//! silent, lost, or cut off from the leader is left for another one, at the entry where the worker stands.

use std::{
    collections::BTreeSet,
    io,
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures::{Stream, future::BoxFuture};
use tokio::{
    sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, sleep, sleep_until, timeout},
};
use tonic::{Code, Status};
use towline_core::NodeId;
use towline_proto::v1;

use crate::{
    handle::ClusterHandle,
    leader::Leadership,
    peers::{self, Lane},
    raft::{After, FedError, Portion, RaftLogId, Replica, StateView},
    roster::NotAdmitted,
    routes::Routes,
    wire,
};

/// A node that feeds others says at least this often that it lives, and who leads.
const BEAT_EVERY: Duration = Duration::from_millis(250);
/// A node that is silent for so long is left: four beats.
const SILENCE: Duration = Duration::from_secs(1);
/// How long a node may take to begin: a dial fits in.
const BEGIN_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Between two pieces to one node, for each node that is fed: what is applied meanwhile goes together, so that all of them cost
/// five thousand messages a second at most, less than half a core.
const PACE_PER_NODE: Duration = Duration::from_micros(200);
/// The least between two pieces to one node.
const PACE: Duration = Duration::from_millis(2);
/// The most of one piece: applying it takes milliseconds.
const PORTION: Portion = Portion { entries: 512, bytes: 1024 * 1024 };
/// Bytes of a snapshot in one piece.
const SNAPSHOT_PIECE: usize = 1024 * 1024;
/// Largest snapshot that a worker takes: it is held in memory while it arrives.
const MAX_SNAPSHOT_BYTES: u64 = 4 * 1024 * 1024 * 1024;
/// Nodes that one node feeds: with so many, each is a fifth of a second behind. More go to another one.
const MAX_FED: usize = 1_000;
/// Before the next node is tried.
const TRY_PAUSE: Duration = Duration::from_millis(50);
/// Before all are tried again, once none would feed this one.
const ROUND_PAUSE: Duration = Duration::from_millis(500);

/// What a node sends to one that it feeds.
pub(crate) type TailStream = Pin<Box<dyn Stream<Item = Result<v1::TailPiece, Status>> + Send>>;

/// What this node's feeding of others has in common.
pub(crate) struct Tails {
    places: Arc<Semaphore>,
    /// The snapshot that is being sent: nodes that start together get the same.
    snapshot: Mutex<Weak<Snapshot>>,
}

impl Default for Tails {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(MAX_FED)), snapshot: Mutex::default() }
    }
}

struct Snapshot {
    last: Option<RaftLogId>,
    bytes: Bytes,
}

impl Tails {
    /// How long what is applied is gathered for one node.
    fn pace(&self) -> Duration {
        let fed = MAX_FED.saturating_sub(self.places.available_permits());
        PACE.max(PACE_PER_NODE * u32::try_from(fed).unwrap_or(u32::MAX))
    }

    /// A snapshot from which a node can go on with what is kept here.
    async fn snapshot(self: Arc<Self>, view: StateView) -> io::Result<Arc<Snapshot>> {
        let mut latest = self.snapshot.lock().await;
        let reaches_here = |made: &Arc<Snapshot>| !matches!(view.after(made.last.as_ref(), PORTION), After::Gone);
        if let Some(made) = latest.upgrade().filter(reaches_here) {
            return Ok(made);
        }
        let (meta, file) = view.encode().await?;
        let whole = usize::try_from(file.length()).map_err(io::Error::other)?;
        let made = Arc::new(Snapshot { last: meta.last_log_id, bytes: file.piece(0, whole)? });
        *latest = Arc::downgrade(&made);
        Ok(made)
    }
}

/// Feeds a node from an entry on.
pub(crate) fn serve(
    cluster: &ClusterHandle,
    tails: &Arc<Tails>,
    to: NodeId,
    after: Option<RaftLogId>,
) -> Result<TailStream, Status> {
    if cluster.leadership().raft().is_none() {
        let me = cluster.node_id();
        return Err(Status::failed_precondition(format!("node {me} is a worker and keeps no log: ask a voter")));
    }
    let place = Arc::clone(&tails.places).try_acquire_owned();
    let place = place.map_err(|_| Status::resource_exhausted(format!("{MAX_FED} nodes are fed by this one")))?;
    let feed = Feed {
        cluster: cluster.clone(),
        tails: Arc::clone(tails),
        to,
        after,
        applied: cluster.leadership().view().applied(),
        sending: Sending::Entries,
        sent: Instant::now(),
        beaten: false,
        ended: false,
        _place: place,
    };
    Ok(Box::pin(futures::stream::unfold(feed, |mut feed| async move { Some((feed.next().await?, feed)) })))
}

/// What one node is being fed.
struct Feed {
    cluster: ClusterHandle,
    tails: Arc<Tails>,
    to: NodeId,
    /// The last entry that it was sent.
    after: Option<RaftLogId>,
    applied: watch::Receiver<u64>,
    sending: Sending,
    /// When it was sent something last.
    sent: Instant,
    beaten: bool,
    ended: bool,
    _place: OwnedSemaphorePermit,
}

enum Sending {
    Entries,
    Making(BoxFuture<'static, io::Result<Arc<Snapshot>>>),
    Snapshot { made: Arc<Snapshot>, at: usize },
}

impl Feed {
    async fn next(&mut self) -> Option<Result<v1::TailPiece, Status>> {
        if self.ended {
            return None;
        }
        let piece = self.piece().await;
        self.ended = piece.is_err();
        self.sent = Instant::now();
        Some(piece)
    }

    async fn piece(&mut self) -> Result<v1::TailPiece, Status> {
        // The first thing that is said is who leads.
        if !std::mem::replace(&mut self.beaten, true) {
            return Ok(self.beat());
        }
        loop {
            if self.cluster.local(|state| state.is_removed(self.to)) {
                return Err(peers::refusal(&NotAdmitted::Removed { node: self.to }));
            }
            match &mut self.sending {
                Sending::Snapshot { made, at } if *at < made.bytes.len() => {
                    let (bytes, start) = (&made.bytes, *at);
                    *at = bytes.len().min(start + SNAPSHOT_PIECE);
                    let data = bytes.slice(start..*at);
                    let size = if start == 0 { bytes.len() as u64 } else { 0 };
                    let snapshot = Some(v1::tail_piece::SnapshotPiece { size, data });
                    return Ok(v1::TailPiece { snapshot, ..self.beat() });
                }
                Sending::Snapshot { made, .. } => {
                    self.after = made.last;
                    self.sending = Sending::Entries;
                }
                Sending::Making(making) => {
                    let made = tokio::select! {
                        biased;
                        made = making => made,
                        () = sleep_until(self.sent + BEAT_EVERY) => return Ok(self.beat()),
                    };
                    let failed = |error: io::Error| Status::unavailable(format!("make a snapshot: {error}"));
                    self.sending = Sending::Snapshot { made: made.map_err(failed)?, at: 0 };
                }
                Sending::Entries => {
                    if let Some(piece) = self.entries().await {
                        return Ok(piece);
                    }
                }
            }
        }
    }

    /// What has been applied, or a beat; none if a snapshot has to be made first.
    async fn entries(&mut self) -> Option<v1::TailPiece> {
        sleep_until(self.sent + self.tails.pace()).await;
        let view = self.cluster.leadership().view();
        loop {
            self.applied.mark_unchanged();
            match view.after(self.after.as_ref(), PORTION) {
                After::Entries(entries, last) => {
                    self.after = Some(last);
                    return Some(v1::TailPiece { entries, ..self.beat() });
                }
                After::Nothing => {}
                After::Gone => {
                    let made = Arc::clone(&self.tails).snapshot(view.clone());
                    self.sending = Sending::Making(Box::pin(made));
                    return None;
                }
            }
            tokio::select! {
                biased;
                // The view holds the sender.
                _ = self.applied.changed() => {}
                () = sleep_until(self.sent + BEAT_EVERY) => return Some(self.beat()),
            }
        }
    }

    fn beat(&self) -> v1::TailPiece {
        let standing = Some(standing(self.cluster.leadership()));
        v1::TailPiece { standing, entries: Vec::new(), snapshot: None }
    }
}

fn standing(leadership: &Leadership) -> v1::tail_piece::Standing {
    let (term, leader) = leadership.term_and_leader();
    let applied = *leadership.view().applied().borrow();
    v1::tail_piece::Standing { applied, term, leader: leader.map_or(0, |leader| leader.0) }
}

/// Has this node fed by one after the other, for as long as it runs.
pub(crate) async fn follow(cluster: ClusterHandle, routes: Arc<Routes>, replica: Replica) {
    let mut tried = BTreeSet::new();
    loop {
        let Some(node) = candidates(&cluster).into_iter().find(|node| !tried.contains(node)) else {
            tried.clear();
            sleep(ROUND_PAUSE).await;
            continue;
        };
        let end = feed_from(&cluster, &routes, &replica, node).await;
        routes.set_fed_by(None);
        match end {
            End::NotUnderstood(reason) => {
                tracing::error!(%node, reason, "cannot go on with what the cluster has logged");
                return routes.stop(reason);
            }
            // Whoever has fed this node before may do so again, if nobody else does.
            End::Lost(reason) => {
                tracing::info!(%node, reason, "feeds this node no more");
                tried.clear();
            }
            End::Refused(reason) => tracing::debug!(%node, reason, "does not feed this node"),
        }
        tried.insert(node);
        sleep(TRY_PAUSE).await;
    }
}

/// The nodes that keep the log, in an order of this node's own, so that each feeds its part of the workers. The leader, which
/// has enough to do, comes last.
fn candidates(cluster: &ClusterHandle) -> Vec<NodeId> {
    let (me, leader) = (cluster.node_id(), cluster.leadership().leader());
    let mut nodes = cluster.log_keepers();
    nodes.sort_by_cached_key(|node| (Some(*node) == leader, rank(me, *node)));
    nodes
}

fn rank(me: NodeId, node: NodeId) -> [u8; 32] {
    *blake3::hash(&[me.0.to_be_bytes(), node.0.to_be_bytes()].concat()).as_bytes()
}

/// Why a node feeds this one no more.
enum End {
    /// It never did.
    Refused(String),
    Lost(String),
    NotUnderstood(String),
}

async fn feed_from(cluster: &ClusterHandle, routes: &Routes, replica: &Replica, node: NodeId) -> End {
    let mut client = cluster.peers().peer(node, Lane::Tail);
    let request = v1::TailRequest { after: replica.last().as_ref().map(wire::log_id_to_proto) };
    let mut pieces = match timeout(BEGIN_TIMEOUT, client.tail(request)).await {
        Err(_) => return End::Refused(format!("it did not begin within {BEGIN_TIMEOUT:?}")),
        Ok(Err(status)) => return End::Refused(said(cluster, &status)),
        Ok(Ok(answer)) => answer.into_inner(),
    };
    routes.begin_feed();
    let mut arriving = Arriving::default();
    loop {
        let piece = match timeout(SILENCE, pieces.message()).await {
            Err(_) => return End::Lost(format!("it was silent for {SILENCE:?}")),
            Ok(Err(status)) => return End::Lost(said(cluster, &status)),
            Ok(Ok(None)) => return End::Lost("it ended".to_owned()),
            Ok(Ok(Some(piece))) => piece,
        };
        let v1::TailPiece { standing, entries, snapshot } = piece;
        let standing = standing.unwrap_or_default();
        routes.heard(standing.term, Some(NodeId(standing.leader)).filter(|leader| leader.0 > 0));
        let fed = match arriving.take(snapshot) {
            Err(reason) => return End::Lost(reason),
            Ok(Some(whole)) => replica.install(whole).await,
            Ok(None) if entries.is_empty() => Ok(()),
            Ok(None) => replica.apply(entries).await,
        };
        match fed {
            Ok(()) => {}
            Err(FedError::Unfit(reason)) => return End::Lost(reason),
            Err(error @ FedError::NotUnderstood(_)) => return End::NotUnderstood(error.to_string()),
        }
        if routes.stands_still(standing.applied) {
            return End::Lost("it stands still: the leader is ahead of it".to_owned());
        }
        if !arriving.is_under_way() && replica.last().is_some() {
            routes.set_fed_by(Some(node));
        }
    }
}

/// What a node said when it did not go on; that this one is a member no more ends this node.
fn said(cluster: &ClusterHandle, status: &Status) -> String {
    if status.code() == Code::PermissionDenied {
        cluster.own_session().end_for_good();
    }
    peers::root_cause(status)
}

/// A snapshot that comes piece by piece.
#[derive(Default)]
struct Arriving {
    size: u64,
    bytes: BytesMut,
}

impl Arriving {
    fn is_under_way(&self) -> bool {
        self.size > 0
    }

    /// Takes the next piece; the whole, once it is there.
    fn take(&mut self, piece: Option<v1::tail_piece::SnapshotPiece>) -> Result<Option<Bytes>, String> {
        let Some(v1::tail_piece::SnapshotPiece { size, data }) = piece else { return Ok(None) };
        if size > MAX_SNAPSHOT_BYTES {
            return Err(format!("its snapshot has {size} bytes, and {MAX_SNAPSHOT_BYTES} are the limit"));
        }
        if size > 0 {
            *self = Self { size, bytes: BytesMut::new() };
        }
        self.bytes.extend_from_slice(&data);
        match (self.bytes.len() as u64).cmp(&self.size) {
            std::cmp::Ordering::Less => Ok(None),
            std::cmp::Ordering::Equal => Ok(Some(std::mem::take(self).bytes.freeze())),
            std::cmp::Ordering::Greater => Err("its snapshot is longer than it said".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(size: u64, data: &'static [u8]) -> Option<v1::tail_piece::SnapshotPiece> {
        Some(v1::tail_piece::SnapshotPiece { size, data: Bytes::from_static(data) })
    }

    #[test]
    fn a_snapshot_is_whole_when_all_of_it_has_come() {
        let mut arriving = Arriving::default();
        assert_eq!(arriving.take(None), Ok(None));
        assert_eq!(arriving.take(piece(5, b"abc")), Ok(None));
        assert!(arriving.is_under_way());
        assert_eq!(arriving.take(piece(0, b"de")), Ok(Some(Bytes::from_static(b"abcde"))));
        assert!(!arriving.is_under_way());
        assert_eq!(arriving.take(piece(2, b"ab")), Ok(Some(Bytes::from_static(b"ab"))), "a further one");
    }

    #[test]
    fn a_snapshot_that_is_not_what_was_said_is_refused() {
        let mut arriving = Arriving::default();
        arriving.take(piece(2, b"a")).unwrap();
        arriving.take(piece(0, b"bc")).unwrap_err();
        Arriving::default().take(piece(MAX_SNAPSHOT_BYTES + 1, b"")).unwrap_err();
    }

    #[test]
    fn workers_spread_over_the_nodes_that_keep_the_log() {
        let voters = [NodeId(1), NodeId(9), NodeId(14)];
        let first = |me: u64| voters.into_iter().min_by_key(|node| rank(NodeId(me), *node)).unwrap();
        // Ids of nodes that enrolled one after the other are a few log entries apart.
        let mut fed = std::collections::BTreeMap::new();
        for me in (20..920).step_by(3) {
            *fed.entry(first(me)).or_insert(0) += 1;
        }
        assert!(voters.iter().all(|voter| fed[voter] > 70), "{fed:?}");
    }
}

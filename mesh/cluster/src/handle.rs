//! The one way into the cluster for everything above it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use openraft::async_runtime::WatchReceiver as _;
use tokio::{
    sync::{Semaphore, broadcast, watch},
    time::{Instant, timeout, timeout_at},
};
use towline_core::{
    AgentSpec, Applied, BootId, Command, Effect, Labels, Level, NodeHealth, NodeId, NodeRole, Principal, Proposal,
    Rejection, Reply, State, TaskId, TraceContext,
};
use towline_proto::v1;
use towline_trace::{Kind, Span, SpanRecord, metrics::instruments::PROPOSAL_DURATION, names};
use uuid::Uuid;

use crate::{
    ClusterStatus, FeedGone, FeedPage, Identity, PeerIdentity, ProposeError, TaskWatch, Unavailable,
    blobs::Blobs,
    credentials::Credentials,
    enrolment::Signer,
    joining::Token,
    keeper::Trouble,
    leader::{Leadership, ReadIndex, Written},
    peers::{self, Lane, Peers},
    roster::{NotAdmitted, Roster},
    routes::{Detours, Routes, Way},
    search::Finder,
    sessions::{LeaderSessions, OwnSession},
    status,
    troubles::Troubles,
    twin,
    wire::{self, WireError},
};

/// How long a proposal or a read waits: an election or two fit in.
const DEADLINE: Duration = Duration::from_secs(5);
/// When another try is worth it after [`ProposeError::Unavailable`]: an election takes about a second.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Proposals of one node that wait for their commit. Beyond it waiting only gets longer, so a caller is told to come back.
const MAX_IN_FLIGHT: usize = 1_024;
/// When another try is worth it if [`MAX_IN_FLIGHT`] was the reason: commits take milliseconds.
const RETRY_AFTER_FULL: Duration = Duration::from_millis(200);
/// Pause between tries to find the leader.
const SEARCH_PAUSE: Duration = Duration::from_millis(40);
/// One question for a read index: its answer takes one round trip to a quorum.
const READ_INDEX_TIMEOUT: Duration = Duration::from_millis(1_500);
/// How long a node may take to look up its spans.
const SPANS_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a registration waits for the session that it begins.
const SESSION_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a voter may take to fetch the key of the authority: it looks twice a second.
const HEIR_PATIENCE: Duration = Duration::from_secs(6);
/// Between two looks whether one has.
const HEIR_PAUSE: Duration = Duration::from_millis(500);
/// What a node tells the cluster when it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// How many tasks it runs at the same time.
    pub capacity: u32,
    /// The agents that its configuration declares.
    pub agents: Vec<AgentSpec>,
    /// What operators call the node, for agents that run on some nodes only.
    pub labels: Labels,
}

/// What a running node is made of.
pub(crate) struct Inner {
    pub(crate) identity: Identity,
    pub(crate) boot: BootId,
    pub(crate) options: crate::ClusterOptions,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) signer: Signer,
    pub(crate) trouble: Trouble,
    pub(crate) leadership: Leadership,
    pub(crate) peers: Arc<Peers>,
    pub(crate) blobs: Blobs,
    pub(crate) leader_sessions: LeaderSessions,
    pub(crate) own_session: Arc<OwnSession>,
    pub(crate) troubles: Troubles,
    pub(crate) http: reqwest::Client,
    in_flight: Semaphore,
    finder: Finder,
}

/// The parts that [`crate::Cluster::start`] puts together.
pub(crate) struct Parts {
    pub(crate) identity: Identity,
    pub(crate) options: crate::ClusterOptions,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) signer: Signer,
    pub(crate) leadership: Leadership,
    pub(crate) peers: Arc<Peers>,
    pub(crate) blobs: Blobs,
    pub(crate) http: reqwest::Client,
}

/// The one way into the cluster; cheap to clone.
#[derive(Clone)]
pub struct ClusterHandle(Arc<Inner>);

impl ClusterHandle {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { identity, options, credentials, signer, leadership, peers, blobs, http } = parts;
        Self(Arc::new(Inner {
            identity,
            boot: BootId::from_uuid(Uuid::now_v7()),
            options,
            credentials,
            signer,
            trouble: Trouble::default(),
            leadership,
            peers,
            blobs,
            leader_sessions: LeaderSessions::default(),
            own_session: Arc::default(),
            troubles: Troubles::default(),
            http,
            in_flight: Semaphore::new(MAX_IN_FLIGHT),
            finder: Finder::default(),
        }))
    }

    /// This node.
    pub fn node_id(&self) -> NodeId {
        self.0.identity.node
    }

    /// This life of this process.
    pub fn boot(&self) -> BootId {
        self.0.boot
    }

    /// Name of the cluster.
    pub fn cluster_name(&self) -> String {
        self.0.identity.cluster_name.clone()
    }

    /// Has a proposal committed, whoever leads, and waits until this node has applied it.
    ///
    /// Every command may be proposed again without harm, so a proposal whose answer was lost is sent to the next leader
    /// until the deadline of five seconds.
    ///
    /// # Errors
    /// See [`ProposeError`]: refused, not sent, or sent without an answer.
    pub async fn propose(&self, proposal: Proposal, parent: Option<&TraceContext>) -> Result<Reply, ProposeError> {
        let command = command_name(&proposal.command);
        let mut span = parent
            .map(|parent| Span::child(format!("{} {command}", names::span::RAFT_PROPOSE), Kind::Internal, parent));
        let began = Instant::now();
        let result = self.commit(proposal, parent, &mut span).await;
        PROPOSAL_DURATION.add(began.elapsed().as_secs_f64(), &[command, error_type(&result)]);
        if let Some(span) = &mut span {
            span.set(names::RAFT_COMMAND, command);
            describe(span, &result);
        }
        result.map(|(_, reply)| reply)
    }

    /// Reads the state so that everything is seen that was committed before the call, on whatever node.
    ///
    /// # Errors
    /// When no leader with a quorum answers in time.
    pub async fn read<R>(&self, f: impl FnOnce(&State) -> R) -> Result<R, Unavailable> {
        let deadline = Instant::now() + DEADLINE;
        let index = self.read_index(deadline).await?;
        timeout_at(deadline, self.view().wait_applied(index)).await.map_err(|_| Unavailable {
            reason: format!("this node did not apply entry {index} within {DEADLINE:?}"),
        })?;
        Ok(self.local(f))
    }

    /// Reads what this node has applied.
    pub fn local<R>(&self, f: impl FnOnce(&State) -> R) -> R {
        self.view().read(f)
    }

    /// Watches one task.
    pub fn watch_task(&self, id: TaskId) -> TaskWatch {
        self.view().watch_task(id)
    }

    /// What happened in the cluster by entries behind this one, as far as it is applied here; at most `most` entries.
    ///
    /// # Errors
    /// When what follows the entry is not kept here any more.
    pub fn feed(&self, after: u64, most: usize) -> Result<FeedPage, FeedGone> {
        self.view().feed(after, most)
    }

    /// Index of the last entry by which something happened, as it is applied here: changes when there is more to read.
    pub fn feed_changes(&self) -> watch::Receiver<u64> {
        self.view().feed_changes()
    }

    /// The effects of entries that are applied here from now on. A receiver that lags reconciles from the state.
    pub fn effects(&self) -> broadcast::Receiver<Effect> {
        self.view().effects()
    }

    /// Registers this node and keeps its session alive from then on, registering again by itself when the session was
    /// lost. Unless the registration was rejected it is also made later, when no leader was found in time. A node that is
    /// being removed is rejected and goes on: its vote may be needed to see it out, and it is told when it is not any more.
    ///
    /// # Errors
    /// As for [`ClusterHandle::propose`].
    pub async fn register(&self, registration: Registration) -> Result<(), ProposeError> {
        let announced = self.announce(&registration).await;
        let goes_on = match &announced {
            Err(ProposeError::Rejected(rejection)) => matches!(rejection, Rejection::NodeRemoved { .. }),
            Ok(()) | Err(ProposeError::Unavailable { .. } | ProposeError::Unknown { .. }) => true,
        };
        if goes_on {
            self.0.own_session.set_registration(registration);
        }
        announced?;
        let mut session = self.session();
        let alive = timeout(SESSION_TIMEOUT, session.wait_for(|acting| *acting)).await;
        if !matches!(alive, Ok(Ok(_))) {
            tracing::warn!("registered, and no leader has answered a keep-alive yet");
        }
        Ok(())
    }

    /// Whether this node may act on its leases: its session was kept alive recently enough. Asked again just before every
    /// outbound effect.
    pub fn may_act(&self) -> bool {
        self.0.own_session.may_act()
    }

    /// [`ClusterHandle::may_act`] as a signal: owners stop when it turns false.
    pub fn session(&self) -> watch::Receiver<bool> {
        self.0.own_session.acting()
    }

    /// Gives up this node's leases and its leadership, for a stop in order. Owners have stopped before.
    ///
    /// # Errors
    /// As for [`ClusterHandle::propose`].
    pub async fn resign(&self) -> Result<(), ProposeError> {
        self.0.own_session.end();
        let (node, boot) = (self.node_id(), self.boot());
        let command = Command::NodeLost { node, boot };
        let lost = self.propose(Proposal { by: Principal::Node(node), command }, None).await;
        self.hand_over().await;
        lost.map(|_| ())
    }

    /// The cluster as this node sees it.
    pub fn status(&self) -> ClusterStatus {
        status::of(self)
    }

    /// Spans of one trace from all live nodes, by their start.
    pub async fn spans(&self, trace_id: u128) -> Vec<SpanRecord> {
        let me = self.node_id();
        let others: Vec<NodeId> = self.local(|state| {
            state.nodes().filter(|node| node.health == NodeHealth::Up && node.id != me).map(|node| node.id).collect()
        });
        let asked = join_all(others.into_iter().map(|node| self.spans_of(node, trace_id))).await;
        let mut spans = towline_trace::recent(trace_id);
        spans.extend(asked.into_iter().flatten());
        let mut seen = BTreeSet::new();
        spans.retain(|span| seen.insert(span.span_id.clone()));
        spans.sort_by(|a, b| (a.start_us, &a.span_id).cmp(&(b.start_us, &b.span_id)));
        spans
    }

    /// Makes a join token, good for one node.
    ///
    /// # Errors
    /// As for [`ClusterHandle::propose`].
    pub async fn mint_token(&self, role: NodeRole, ttl: Duration) -> Result<String, ProposeError> {
        self.check_all_know(role)?;
        let token = Token::make(self.0.credentials.authority())
            .map_err(|error| ProposeError::Unavailable { reason: error.to_string(), retry_after: RETRY_AFTER })?;
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let command = Command::MintToken { hash: token.hash(), role, ttl_ms };
        self.propose(Proposal { by: Principal::Operator, command }, None).await?;
        Ok(token.text())
    }

    /// Refuses a role that a node of an earlier version would end at: it cannot apply what names it.
    fn check_all_know(&self, role: NodeRole) -> Result<(), ProposeError> {
        let old = self.local(|state| state.nodes().find(|node| node.labels.is_none()).map(|node| node.id));
        match (role, old) {
            (NodeRole::Worker, Some(node)) => Err(ProposeError::Unavailable {
                reason: format!("node {node} has not yet run a version that knows of workers: upgrade it first"),
                retry_after: RETRY_AFTER,
            }),
            (NodeRole::Worker, None) | (NodeRole::Voter | NodeRole::Learner, _) => Ok(()),
        }
    }

    /// Takes a node out of the cluster for good. It is a member until its session has ended: until then it may still act.
    /// Where it alone can sign certificates, another voter is given the time to fetch the key for that.
    ///
    /// # Errors
    /// When there is no such node, or without it no majority of live voters or nobody who can sign.
    pub async fn remove_node(&self, node: NodeId) -> Result<(), ProposeError> {
        let give_up = Instant::now() + HEIR_PATIENCE;
        loop {
            match self.operate(Command::RemoveNode { node }).await {
                Err(ProposeError::Rejected(Rejection::OnlySigner { .. })) if Instant::now() < give_up => {
                    tokio::time::sleep(HEIR_PAUSE).await;
                }
                removed => return removed,
            }
        }
    }

    /// Makes a node count for the quorum, as soon as it has caught up, or no more.
    ///
    /// # Errors
    /// When there is no such node, a voter would not be up, or no majority of live voters would be left.
    pub async fn set_role(&self, node: NodeId, role: NodeRole) -> Result<(), ProposeError> {
        self.operate(Command::SetRole { node, role }).await
    }

    /// Gives a node no more tasks and moves those away that it runs. Steps that another owner would run again are waited
    /// for as long as the patience lasts, and what must not run twice for as long as it takes.
    ///
    /// # Errors
    /// When there is no such node.
    pub async fn drain(&self, node: NodeId, patience: Duration) -> Result<(), ProposeError> {
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        self.operate(Command::Drain { node, patience_ms }).await
    }

    /// Gives a node tasks again.
    ///
    /// # Errors
    /// When there is no such node.
    pub async fn undrain(&self, node: NodeId) -> Result<(), ProposeError> {
        self.operate(Command::Undrain { node }).await
    }

    async fn operate(&self, command: Command) -> Result<(), ProposeError> {
        self.propose(Proposal { by: Principal::Operator, command }, None).await.map(|_| ())
    }

    /// Has this node write a snapshot of what it has applied, and drop the log behind it.
    ///
    /// # Errors
    /// When the Raft core has stopped, or no snapshot was written in time.
    #[doc(hidden)]
    pub async fn compact(&self) -> Result<(), Unavailable> {
        let failed = |error: &dyn std::fmt::Display| Unavailable { reason: format!("write a snapshot: {error}") };
        let raft = self.0.leadership.raft().ok_or_else(|| failed(&"a worker keeps none"))?;
        let applied = raft.metrics().borrow_watched().last_applied;
        raft.trigger().snapshot().await.map_err(|error| failed(&error))?;
        let written = raft.wait(Some(DEADLINE)).metrics(|metrics| metrics.snapshot >= applied, "snapshot").await;
        written.map_err(|error| failed(&error))?;
        let Some(applied) = applied else { return Ok(()) };
        raft.trigger().purge_log(applied.index).await.map_err(|error| failed(&error))?;
        let purged = raft.wait(Some(DEADLINE)).metrics(|metrics| metrics.purged >= Some(applied), "purged").await;
        purged.map(|_| ()).map_err(|error| failed(&error))
    }

    /// Which node feeds this one, if it is a worker and fed.
    pub fn fed_by(&self) -> Option<NodeId> {
        self.leadership().routes()?.fed_by()
    }

    /// Has a worker go around a node for a while, as if it had not been reached.
    #[doc(hidden)]
    pub fn go_around(&self, node: NodeId) {
        if let Some(routes) = self.leadership().routes() {
            routes.not_reached(node, true);
        }
    }

    /// The HTTP client for other nodes' peer listeners: mutual TLS, pooled. It finds no other names than nodes'.
    pub fn peer_http(&self) -> reqwest::Client {
        self.0.http.clone()
    }

    /// Base URL of a node's peer listener, for [`ClusterHandle::peer_http`].
    pub fn peer_url(&self, node: NodeId) -> Option<String> {
        peers::node_url(self.0.peers.book(), node, &self.0.identity.cluster_name)
    }

    /// `host:port` at which other nodes reach this one.
    pub fn own_peer_address(&self) -> &str {
        &self.0.options.addresses.peer
    }

    /// The node behind a connection to the peer listener, if it is a member.
    ///
    /// # Errors
    /// Why it is not let in.
    pub fn admit(&self, identity: Option<&PeerIdentity>) -> Result<NodeId, NotAdmitted> {
        let certified = identity.and_then(|identity| identity.0.as_ref()).ok_or(NotAdmitted::NoCertificate)?;
        self.roster().check(certified).map(|()| certified.node)
    }

    pub(crate) fn credentials(&self) -> &Credentials {
        &self.0.credentials
    }

    pub(crate) fn roster(&self) -> &Arc<Roster> {
        self.0.credentials.roster()
    }

    pub(crate) fn signer(&self) -> &Signer {
        &self.0.signer
    }

    /// What stands in the way of a renewal of this node's certificate.
    pub(crate) fn trouble(&self) -> &Trouble {
        &self.0.trouble
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.0.identity
    }

    pub(crate) fn leadership(&self) -> &Leadership {
        &self.0.leadership
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.0.peers
    }

    pub(crate) fn blobs(&self) -> &Blobs {
        &self.0.blobs
    }

    pub(crate) fn troubles(&self) -> &Troubles {
        &self.0.troubles
    }

    pub(crate) fn leader_sessions(&self) -> &LeaderSessions {
        &self.0.leader_sessions
    }

    pub(crate) fn own_session(&self) -> &Arc<OwnSession> {
        &self.0.own_session
    }

    /// Other nodes that keep the log, as far as this node knows.
    pub(crate) fn log_keepers(&self) -> Vec<NodeId> {
        let me = self.node_id();
        let mut nodes: Vec<NodeId> = self.local(|state| {
            let others = state.nodes().filter(|node| node.id != me && node.keeps_log());
            others.map(|node| node.id).collect()
        });
        if nodes.is_empty() {
            let workers: BTreeSet<NodeId> = self.roster().workers().collect();
            nodes = self.peers().book().nodes();
            nodes.retain(|node| *node != me && !workers.contains(node));
        }
        nodes
    }

    /// Nodes that may send a worker's call on: first the one that feeds it, and so is surely reached.
    pub(crate) fn helpers(&self, routes: &Routes) -> Vec<NodeId> {
        let mut nodes = self.log_keepers();
        let fed_by = routes.fed_by();
        nodes.sort_by_key(|node| Some(*node) != fed_by);
        nodes
    }

    fn view(&self) -> &crate::raft::StateView {
        self.0.leadership.view()
    }

    /// Proposes that this node is up.
    pub(crate) async fn announce(&self, registration: &Registration) -> Result<(), ProposeError> {
        twin::refuse_to_be_one(self).await?;
        let node = self.node_id();
        let command = Command::NodeUp {
            node,
            boot: self.boot(),
            addresses: self.0.options.addresses.clone(),
            version: self.0.options.version.clone(),
            capacity: registration.capacity,
            agents: registration.agents.clone(),
            labels: Some(registration.labels.clone()),
            level: Level::KNOWN.number(),
        };
        self.propose(Proposal { by: Principal::Node(node), command }, None).await.map(|_| ())
    }

    /// The addresses that this node gives.
    pub(crate) fn advertised(&self) -> &towline_core::NodeAddresses {
        &self.0.options.addresses
    }

    /// The first command of a cluster.
    pub(crate) fn found_command(&self) -> Command {
        let identity = &self.0.identity;
        Command::Found {
            cluster: identity.cluster,
            name: identity.cluster_name.clone(),
            node_name: identity.node_name.clone(),
            addresses: self.0.options.addresses.clone(),
        }
    }

    async fn commit(
        &self,
        proposal: Proposal,
        parent: Option<&TraceContext>,
        span: &mut Option<Span>,
    ) -> Result<(u64, Reply), ProposeError> {
        let trace = parent.zip(span.as_ref()).map(|(parent, span)| Traced { logged: *parent, span: span.context() });
        let _permit = self.0.in_flight.try_acquire().map_err(|_| ProposeError::Unavailable {
            reason: format!("{MAX_IN_FLIGHT} proposals of this node wait for their commit"),
            retry_after: RETRY_AFTER_FULL,
        })?;
        let payload = encode(&proposal)?;
        drop(proposal);
        let deadline = Instant::now() + DEADLINE;
        if let Some(span) = span {
            let leads = self.0.leadership.leader() == Some(self.node_id());
            span.set(names::RAFT_ROLE, if leads { "leader" } else { "follower" });
            span.set(names::RAFT_BYTES, i64::try_from(payload.len()).unwrap_or(i64::MAX));
        }
        let (index, outcome) = self.place(payload, trace, deadline).await?;
        if let Some(span) = span {
            span.event(names::event::RAFT_COMMITTED, Vec::new());
        }
        let applied = outcome?;
        timeout_at(deadline, self.view().wait_applied(index)).await.map_err(|_| ProposeError::Unknown {
            waited: DEADLINE,
            reason: format!("entry {index} is committed, and this node has not applied it yet"),
        })?;
        if let Some(span) = span {
            span.event(names::event::RAFT_APPLIED, Vec::new());
        }
        Ok((index, applied.reply))
    }

    /// Has an encoded proposal committed by whoever leads.
    async fn place(
        &self,
        payload: Bytes,
        trace: Option<Traced>,
        deadline: Instant,
    ) -> Result<(u64, Result<Applied, Rejection>), ProposeError> {
        let mut search = Search::default();
        let mut sent = false;
        loop {
            if let Some(way) = search.next(self) {
                let leader = way.node;
                let attempt = self.attempt(way, payload.clone(), trace, deadline).await;
                search.note(self, way, attempt.came_through());
                match attempt {
                    Attempt::Here(Written::Applied { index, outcome }) => {
                        self.0.finder.answered(Some(leader));
                        return Ok((index, outcome));
                    }
                    Attempt::Here(Written::NotLeader(other)) => search.learn(leader, other),
                    Attempt::Here(Written::Unavailable(reason)) if !sent => {
                        return Err(ProposeError::Unavailable { reason, retry_after: RETRY_AFTER });
                    }
                    Attempt::Here(Written::Unavailable(reason)) => search.reason = reason,
                    Attempt::Here(Written::Unknown(reason)) => {
                        sent = true;
                        search.reason = reason;
                    }
                    Attempt::Unreached(reason) => {
                        self.0.finder.rest(Some(leader));
                        search.reason = reason;
                    }
                }
            }
            if Instant::now() + SEARCH_PAUSE >= deadline {
                return Err(search.give_up(self, sent));
            }
            tokio::time::sleep(SEARCH_PAUSE).await;
        }
    }

    /// One try at one node. It is given up as soon as another is known to lead.
    async fn attempt(&self, way: Way, payload: Bytes, trace: Option<Traced>, deadline: Instant) -> Attempt {
        let wait = deadline.saturating_duration_since(Instant::now());
        let leader = way.node;
        let route = way.send_on.then_some(v1::Route { send_on: true, caller: 0 });
        let write = async {
            if leader == self.node_id() {
                Attempt::Here(self.0.leadership.write(payload, trace.map(|trace| trace.span), wait).await)
            } else {
                // Boxed: it is large, and where this node leads nothing is forwarded.
                Box::pin(self.forward(leader, payload, trace, wait, route)).await
            }
        };
        tokio::select! {
            attempt = write => attempt,
            () = self.0.leadership.another_leads(leader) => {
                Attempt::Here(Written::Unknown(format!("node {leader} lost the leadership before it answered")))
            }
        }
    }

    pub(crate) async fn forward(
        &self,
        leader: NodeId,
        payload: Bytes,
        trace: Option<Traced>,
        wait: Duration,
        route: Option<v1::Route>,
    ) -> Attempt {
        let mut span = trace.map(|trace| Span::child(names::span::PEER_PROPOSE, Kind::Client, &trace.span));
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let mut request = tonic::Request::new(v1::ProposeRequest { proposal: payload, wait_ms, route });
        if let Some(span) = &mut span {
            span.set(names::RPC_SYSTEM_NAME, "grpc");
            span.set(names::RPC_METHOD, names::span::PEER_PROPOSE);
            span.set(names::PEER_NODE, i64::try_from(leader.0).unwrap_or(i64::MAX));
            let carried = [(TRACEPARENT, trace.map(|trace| trace.logged)), (FORWARDED_BY, Some(span.context()))];
            for (name, context) in carried {
                if let Some(context) = context.and_then(|context| context.to_string().parse().ok()) {
                    request.metadata_mut().insert(name, context);
                }
            }
        }
        let mut client = self.0.peers.peer(leader, Lane::Calls);
        let attempt = match timeout(wait, client.propose(request)).await {
            Err(_) => Attempt::unknown(format!("node {leader} did not answer in time")),
            Ok(Ok(answer)) => written(leader, answer.into_inner()),
            Ok(Err(status)) => failed_forward(leader, &status),
        };
        if let (Some(span), Attempt::Unreached(reason) | Attempt::Here(Written::Unknown(reason))) =
            (&mut span, &attempt)
        {
            span.fail(names::error::UNAVAILABLE, reason);
        }
        attempt
    }

    /// The index that a linearizable read waits for, from whoever leads.
    async fn read_index(&self, deadline: Instant) -> Result<u64, Unavailable> {
        let mut search = Search::default();
        loop {
            if let Some(way) = search.next(self) {
                let leader = way.node;
                let answer = tokio::select! {
                    answer = timeout(READ_INDEX_TIMEOUT, self.ask_read_index(way)) => answer.ok(),
                    () = self.0.leadership.another_leads(leader) => None,
                };
                search.note(self, way, came_through(&answer));
                match answer {
                    Some(Ok(ReadIndex::At(index))) => {
                        self.0.finder.answered(Some(leader));
                        return Ok(index);
                    }
                    Some(Ok(ReadIndex::NotLeader(other))) => search.learn(leader, other),
                    Some(Ok(ReadIndex::Stopped(reason))) => {
                        return Err(Unavailable { reason: format!("raft core has stopped: {reason}") });
                    }
                    Some(Err(reason)) => {
                        self.0.finder.rest(Some(leader));
                        search.reason = reason;
                    }
                    None => search.reason = format!("node {leader} has not confirmed that it leads"),
                }
            }
            if Instant::now() + SEARCH_PAUSE >= deadline {
                return Err(Unavailable { reason: search.why(self) });
            }
            tokio::time::sleep(SEARCH_PAUSE).await;
        }
    }

    pub(crate) async fn ask_read_index(&self, Way { node: leader, send_on }: Way) -> Result<ReadIndex, String> {
        if leader == self.node_id() {
            return Ok(self.0.leadership.read_index().await);
        }
        let mut client = self.0.peers.peer(leader, Lane::Calls);
        let route = send_on.then_some(v1::Route { send_on, caller: 0 });
        let answer = Box::pin(client.read_index(v1::ReadIndexRequest { route })).await;
        let answer = answer.map_err(|status| format!("node {leader}: {}", peers::root_cause(&status)))?;
        match answer.into_inner().result {
            Some(v1::read_index_response::Result::Index(index)) => Ok(ReadIndex::At(index)),
            Some(v1::read_index_response::Result::NotLeader(other)) => {
                Ok(ReadIndex::NotLeader(other.leader.map(NodeId)))
            }
            None => Err(format!("node {leader} answered without a result")),
        }
    }

    async fn spans_of(&self, node: NodeId, trace_id: u128) -> Vec<SpanRecord> {
        let mut client = self.0.peers.peer(node, Lane::Calls);
        let request = v1::SpansRequest { trace_id: trace_id.to_be_bytes().to_vec().into() };
        match timeout(SPANS_TIMEOUT, client.spans(request)).await {
            Ok(Ok(answer)) => {
                answer.into_inner().spans.iter().filter_map(|span| serde_json::from_slice(span).ok()).collect()
            }
            Ok(Err(status)) => {
                tracing::debug!(%node, %status, "node gave no spans");
                Vec::new()
            }
            Err(_) => {
                tracing::debug!(%node, "node gave no spans in time");
                Vec::new()
            }
        }
    }
}

/// The metadata that carries the span of a call.
pub(crate) const TRACEPARENT: &str = "traceparent";
/// The asking end of a proposal that is sent on.
pub(crate) const FORWARDED_BY: &str = "towline-forwarded-by";

/// What a proposal is part of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traced {
    /// A span whose end somebody tells in any case, since its ids are in the log: what other nodes do hangs below it, and
    /// never below one that is lost with a node.
    pub logged: TraceContext,
    /// The span of the proposal itself.
    pub span: TraceContext,
}

/// What became of one try.
pub(crate) enum Attempt {
    Here(Written),
    /// Nothing was sent.
    Unreached(String),
}

impl Attempt {
    fn unknown(reason: String) -> Self {
        Attempt::Here(Written::Unknown(reason))
    }

    fn came_through(&self) -> CameThrough {
        match self {
            Attempt::Here(Written::Applied { .. }) => CameThrough::ToTheLeader,
            Attempt::Here(Written::NotLeader(_) | Written::Unavailable(_)) => CameThrough::ToSomebody,
            Attempt::Here(Written::Unknown(_)) => CameThrough::Unknown,
            Attempt::Unreached(_) => CameThrough::No,
        }
    }
}

/// How far a call came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CameThrough {
    ToTheLeader,
    ToSomebody,
    Unknown,
    No,
}

fn came_through(answer: &Option<Result<ReadIndex, String>>) -> CameThrough {
    match answer {
        Some(Ok(ReadIndex::At(_))) => CameThrough::ToTheLeader,
        Some(Ok(ReadIndex::NotLeader(_) | ReadIndex::Stopped(_))) => CameThrough::ToSomebody,
        Some(Err(_)) | None => CameThrough::Unknown,
    }
}

/// Looks for the leader: a hint first, then what Raft says, then one node after the other. All searches of the node share what
/// they find out.
struct Search {
    hint: Option<NodeId>,
    /// Tries without any word of a leader.
    blind: usize,
    /// What a worker has tried.
    detours: Detours,
    /// Why there is no answer yet.
    reason: String,
}

impl Default for Search {
    fn default() -> Self {
        Self {
            hint: None,
            blind: 0,
            detours: Detours::default(),
            reason: "no leader is known: a majority of voters must be up".to_owned(),
        }
    }
}

impl Search {
    /// Tries that wait for Raft to learn of a leader before other nodes are asked.
    const PATIENCE: usize = 5;

    fn next(&mut self, cluster: &ClusterHandle) -> Option<Way> {
        let finder = &cluster.0.finder;
        let leader = self.hint.take().or_else(|| cluster.leadership().leader());
        if let Some(routes) = cluster.leadership().routes() {
            let way = routes.way(leader, &mut self.detours, || cluster.helpers(routes))?;
            return finder.may_ask(Some(way.node)).then_some(way);
        }
        if let Some(leader) = leader {
            finder.answered(None);
            return finder.may_ask(Some(leader)).then_some(Way::straight(leader));
        }
        self.blind += 1;
        let turn = self.blind.checked_sub(Self::PATIENCE)?;
        if !finder.may_ask(None) {
            return None;
        }
        finder.rest(None);
        let others = cluster.log_keepers();
        others.get(turn % others.len().max(1)).copied().map(Way::straight)
    }

    /// A worker keeps in mind which way to the leader is open.
    fn note(&self, cluster: &ClusterHandle, way: Way, came: CameThrough) {
        let Some(routes) = cluster.leadership().routes().filter(|_| !way.send_on) else { return };
        match came {
            CameThrough::ToTheLeader => routes.confirm(way.node),
            CameThrough::ToSomebody => {}
            CameThrough::Unknown => routes.not_reached(way.node, false),
            CameThrough::No => routes.not_reached(way.node, true),
        }
    }

    fn learn(&mut self, asked: NodeId, other: Option<NodeId>) {
        self.reason = format!("node {asked} does not lead, or has no quorum");
        self.hint = other.filter(|other| *other != asked);
        if self.hint.is_none() {
            self.detours.want();
        }
    }

    fn give_up(self, cluster: &ClusterHandle, sent: bool) -> ProposeError {
        let reason = self.why(cluster);
        if sent {
            ProposeError::Unknown { waited: DEADLINE, reason }
        } else {
            ProposeError::Unavailable { reason, retry_after: RETRY_AFTER }
        }
    }

    /// Why there is no answer. Where no leader answers this node either, that is the reason, and not what the last node that was
    /// asked said.
    fn why(self, cluster: &ClusterHandle) -> String {
        if cluster.may_act() {
            return self.reason;
        }
        format!(
            "no leader with a majority of voters answers, `towline cluster status` says what is missing; {}",
            self.reason
        )
    }
}

/// A proposal that is too large is the proposer's doing.
pub(crate) fn encode(proposal: &Proposal) -> Result<Bytes, ProposeError> {
    wire::encode_proposal(proposal).map_err(|error| match error {
        WireError::TooLarge { limit, .. } => {
            Rejection::TooLarge { what: "proposal in bytes".to_owned(), limit: limit as u64 }.into()
        }
        WireError::Envelope { .. }
        | WireError::Missing { .. }
        | WireError::Format { .. }
        | WireError::Encode { .. }
        | WireError::Decode { .. }
        | WireError::Checksum { .. }
        | WireError::Mark { .. }
        | WireError::Membership { .. }
        | WireError::Foreign { .. } => ProposeError::Unavailable {
            reason: format!("proposal cannot be encoded: {error}"),
            retry_after: RETRY_AFTER,
        },
    })
}

pub(crate) fn written(leader: NodeId, answer: v1::ProposeResponse) -> Attempt {
    use v1::propose_response::Result as Answer;
    match answer.result {
        Some(Answer::Applied(applied)) => match wire::decode_outcome(&applied.outcome) {
            Ok(outcome) => Attempt::Here(Written::Applied { index: applied.index, outcome }),
            Err(error) => Attempt::unknown(format!("answer of node {leader}: {error}")),
        },
        Some(Answer::NotLeader(other)) => Attempt::Here(Written::NotLeader(other.leader.map(NodeId))),
        Some(Answer::Unavailable(unavailable)) => Attempt::Here(Written::Unavailable(unavailable.reason)),
        Some(Answer::Unknown(unknown)) => Attempt::unknown(unknown.reason),
        None => Attempt::unknown(format!("node {leader} answered without a result")),
    }
}

/// A call that broke: unless it surely was not taken up, its proposal may be in the log.
pub(crate) fn failed_forward(leader: NodeId, status: &tonic::Status) -> Attempt {
    let reason = format!("node {leader}: {}", peers::root_cause(status));
    if peers::never_sent(status) {
        return Attempt::Unreached(reason);
    }
    match status.code() {
        tonic::Code::Unauthenticated
        | tonic::Code::FailedPrecondition
        | tonic::Code::ResourceExhausted
        | tonic::Code::Unimplemented => Attempt::Unreached(reason),
        tonic::Code::PermissionDenied | tonic::Code::InvalidArgument | tonic::Code::OutOfRange => {
            Attempt::Here(Written::Unavailable(reason))
        }
        tonic::Code::Ok
        | tonic::Code::Cancelled
        | tonic::Code::Unknown
        | tonic::Code::DeadlineExceeded
        | tonic::Code::NotFound
        | tonic::Code::AlreadyExists
        | tonic::Code::Aborted
        | tonic::Code::Internal
        | tonic::Code::Unavailable
        | tonic::Code::DataLoss => Attempt::unknown(reason),
    }
}

fn describe(span: &mut Span, result: &Result<(u64, Reply), ProposeError>) {
    match result {
        Ok((index, _)) => span.set(names::RAFT_INDEX, i64::try_from(*index).unwrap_or(i64::MAX)),
        Err(ProposeError::Rejected(rejection)) => span.set(names::RAFT_REJECTION, rejection.to_string()),
        Err(error @ ProposeError::Unavailable { .. }) => span.fail(names::error::UNAVAILABLE, &error.to_string()),
        Err(error @ ProposeError::Unknown { .. }) => span.fail(names::error::TIMEOUT, &error.to_string()),
    }
}

/// Why a proposal came to nothing, in a word; a refusal is an answer.
fn error_type<T>(result: &Result<T, ProposeError>) -> &'static str {
    match result {
        Ok(_) | Err(ProposeError::Rejected(_)) => "",
        Err(ProposeError::Unavailable { .. }) => names::error::UNAVAILABLE,
        Err(ProposeError::Unknown { .. }) => names::error::TIMEOUT,
    }
}

fn command_name(command: &Command) -> &'static str {
    match command {
        Command::Submit(_) => "Submit",
        Command::Continue { .. } => "Continue",
        Command::Cancel { .. } => "Cancel",
        Command::Report(_) => "Report",
        Command::Resolve(_) => "Resolve",
        Command::Testify(_) => "Testify",
        Command::Found { .. } => "Found",
        Command::MintToken { .. } => "MintToken",
        Command::Enrol(_) => "Enrol",
        Command::NodeUp { .. } => "NodeUp",
        Command::NodeLost { .. } => "NodeLost",
        Command::Certify { .. } => "Certify",
        Command::RemoveNode { .. } => "RemoveNode",
        Command::SetRole { .. } => "SetRole",
        Command::Drain { .. } => "Drain",
        Command::Undrain { .. } => "Undrain",
        Command::AssignPending => "AssignPending",
        Command::Sweep => "Sweep",
        Command::Upload { .. } => "Upload",
        Command::Note { .. } => "Note",
        Command::Archive { .. } => "Archive",
        Command::Raise { .. } => "Raise",
        Command::AddPeer(_) => "AddPeer",
        Command::RemovePeer { .. } => "RemovePeer",
        Command::SignIn(_) => "SignIn",
        Command::SetWebhook(_) => "SetWebhook",
        Command::RemoveWebhook(_) => "RemoveWebhook",
        Command::ClaimWebhooks { .. } => "ClaimWebhooks",
        Command::ReportWebhook(_) => "ReportWebhook",
        Command::IfGeneration { .. } => "IfGeneration",
        Command::Trigger(_) => "Trigger",
        Command::Bridge(_) => "Bridge",
        Command::PinTools(_) => "PinTools",
        Command::Lack(_) => "Lack",
    }
}

//! What this node answers other nodes on its peer listener, beside Raft: proposals, reads, keep-alives, spans, blobs, members.

use std::{sync::Arc, time::Duration};

use tonic::{Code, Request, Response, Status, Streaming};
use towline_core::{BootId, Command, Node, NodeId, NodeRole, Principal, Proposal, TraceContext};
use towline_proto::v1;
use towline_trace::{Kind, Span, names};
use uuid::Uuid;

use crate::{
    blobs, finished,
    handle::{Attempt, ClusterHandle, FORWARDED_BY, TRACEPARENT, Traced},
    leader::{ReadIndex, Written},
    peers::{self, Caller, Lane},
    roster::NotAdmitted,
    routes::Way,
    sessions::KeepAlive,
    tail::{self, TailStream, Tails},
    transfer, wire,
};

/// Longest wait that a proposer may ask for: its own deadline is shorter.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// The leader's answer to a keep-alive that this node sent on: who asked waits a little longer.
const SENT_ON_TIMEOUT: Duration = Duration::from_millis(250);
/// Answers other nodes.
pub(crate) struct PeerService {
    cluster: ClusterHandle,
    tails: Arc<Tails>,
}

impl PeerService {
    pub(crate) fn new(cluster: ClusterHandle) -> Self {
        Self { cluster, tails: Arc::default() }
    }

    /// Who asks: who called, or whom a voter called for.
    fn asker(&self, caller: NodeId, route: Option<&v1::Route>) -> Result<NodeId, Status> {
        let Some(asker) = route.map(|route| NodeId(route.caller)).filter(|asker| asker.0 > 0) else {
            return Ok(caller);
        };
        let (vouches, is_removed) = self.cluster.local(|state| {
            let vouches = |node: &Node| node.role == NodeRole::Voter && !node.leaving;
            (state.node(caller).is_some_and(vouches), state.is_removed(asker))
        });
        if !vouches {
            return Err(Status::failed_precondition(format!("node {caller} is no voter: it cannot call for another")));
        }
        if is_removed {
            return Err(peers::refusal(&NotAdmitted::Removed { node: asker }));
        }
        Ok(asker)
    }

    /// The leader to send a call on to: none if it is not to be, or this node leads, or knows no leader. A call that was
    /// sent on is not sent on again.
    fn send_on_to(&self, route: Option<&v1::Route>) -> Option<NodeId> {
        if !route.is_some_and(|route| route.send_on && route.caller == 0) || self.cluster.leadership().leads().is_some()
        {
            return None;
        }
        self.cluster.leadership().leader().filter(|leader| *leader != self.cluster.node_id())
    }

    /// Has the leader answer the keep-alive of another node.
    async fn keep_alive_of(
        &self,
        asker: NodeId,
        asked: v1::KeepAliveRequest,
        leader: NodeId,
    ) -> Result<v1::KeepAliveResponse, Status> {
        let route = Some(v1::Route { send_on: false, caller: asker.0 });
        let mut client = self.cluster.peers().peer(leader, Lane::Session);
        let call = client.keep_alive(v1::KeepAliveRequest { route, ..asked });
        match tokio::time::timeout(SENT_ON_TIMEOUT, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) if status.code() == Code::PermissionDenied => Err(status),
            Ok(Err(_)) | Err(_) => {
                use v1::keep_alive_response::Result;
                Ok(v1::KeepAliveResponse { result: Some(Result::NotLeader(not_leader(None))) })
            }
        }
    }
}

#[tonic::async_trait]
impl v1::peer_server::Peer for PeerService {
    async fn propose(&self, request: Request<v1::ProposeRequest>) -> Result<Response<v1::ProposeResponse>, Status> {
        let caller = caller(&request)?;
        let parent: Option<TraceContext> =
            request.metadata().get(TRACEPARENT).and_then(|value| value.to_str().ok()?.parse().ok());
        let mut span = parent.map(|parent| Span::child(names::span::PEER_PROPOSE, Kind::Server, &parent));
        if let Some(span) = &mut span {
            span.set(names::RPC_SYSTEM_NAME, "grpc");
            span.set(names::RPC_METHOD, names::span::PEER_PROPOSE);
            span.set(names::PEER_NODE, i64::try_from(caller.0).unwrap_or(i64::MAX));
            let asking = request.metadata().get(FORWARDED_BY).and_then(|value| value.to_str().ok()?.parse().ok());
            asking.into_iter().for_each(|asking| span.link(asking, names::link::FORWARDED));
        }
        let request = request.into_inner();
        let proposal = wire::decode_proposal(&request.proposal).map_err(|error| {
            Status::invalid_argument(format!("proposal of node {caller} is not understood: {error}"))
        })?;
        let asker = self.asker(caller, request.route.as_ref())?;
        if !may_forward(asker, &proposal) {
            return Err(Status::permission_denied(format!("node {asker} may not propose this for {}", proposal.by)));
        }
        let wait = Duration::from_millis(request.wait_ms.into()).min(MAX_WAIT);
        let trace = parent.zip(span.as_ref()).map(|(logged, span)| Traced { logged, span: span.context() });
        let written = match self.send_on_to(request.route.as_ref()) {
            None => self.cluster.leadership().write(request.proposal, trace.map(|trace| trace.span), wait).await,
            Some(leader) => {
                let route = Some(v1::Route { send_on: false, caller: asker.0 });
                match self.cluster.forward(leader, request.proposal, trace, wait, route).await {
                    Attempt::Here(written) => written,
                    Attempt::Unreached(_) => Written::NotLeader(None),
                }
            }
        };
        if let (Some(span), Written::Unknown(reason) | Written::Unavailable(reason)) = (&mut span, &written) {
            span.fail(names::error::UNAVAILABLE, reason);
        }
        Ok(Response::new(v1::ProposeResponse { result: Some(propose_result(written)) }))
    }

    async fn read_index(
        &self,
        request: Request<v1::ReadIndexRequest>,
    ) -> Result<Response<v1::ReadIndexResponse>, Status> {
        let read = match self.send_on_to(request.get_ref().route.as_ref()) {
            None => self.cluster.leadership().read_index().await,
            Some(leader) => {
                let asked = self.cluster.ask_read_index(Way::straight(leader)).await;
                asked.unwrap_or(ReadIndex::NotLeader(None))
            }
        };
        let result = match read {
            ReadIndex::At(index) => v1::read_index_response::Result::Index(index),
            ReadIndex::NotLeader(leader) => v1::read_index_response::Result::NotLeader(not_leader(leader)),
            ReadIndex::Stopped(reason) => return Err(Status::unavailable(format!("raft core has stopped: {reason}"))),
        };
        Ok(Response::new(v1::ReadIndexResponse { result: Some(result) }))
    }

    async fn note(&self, request: Request<v1::NoteRequest>) -> Result<Response<v1::NoteResponse>, Status> {
        let key = request.into_inner().key;
        let found = self.cluster.read(|state| state.note(&key).cloned()).await;
        let found = found.map_err(|error| Status::unavailable(error.to_string()))?;
        let (value, version) = found.map_or((None, 0), |note| (Some(note.value), note.version));
        Ok(Response::new(v1::NoteResponse { value, version }))
    }

    async fn keep_alive(
        &self,
        request: Request<v1::KeepAliveRequest>,
    ) -> Result<Response<v1::KeepAliveResponse>, Status> {
        use v1::keep_alive_response::{Alive, Fenced, Gone, Result, Unsure};
        let caller = caller(&request)?;
        let boot = Uuid::from_slice(&request.get_ref().boot)
            .map(BootId::from_uuid)
            .map_err(|_| Status::invalid_argument("boot is not a UUID"))?;
        let request = request.into_inner();
        let asker = self.asker(caller, request.route.as_ref())?;
        if let Some(leader) = self.send_on_to(request.route.as_ref()) {
            return self.keep_alive_of(asker, request, leader).await.map(Response::new);
        }
        if let Some(fence) = self.cluster.peers().fences().of(asker) {
            let result = Some(Result::Fenced(Fenced { reason: fence.to_string() }));
            return Ok(Response::new(v1::KeepAliveResponse { result }));
        }
        let leadership = self.cluster.leadership();
        let answer = self.cluster.leader_sessions().keep_alive(leadership, asker, boot);
        let result = match answer {
            KeepAlive::Alive => {
                let troubles = self.cluster.troubles();
                troubles.said(asker, &request.trouble);
                Result::Alive(Alive { applied: *leadership.view().applied().borrow(), troubles: troubles.all() })
            }
            KeepAlive::Gone => Result::Gone(Gone {}),
            KeepAlive::Unsure => Result::Unsure(Unsure {}),
            KeepAlive::NotLeader(leader) => Result::NotLeader(not_leader(leader)),
            KeepAlive::Removed => return Err(peers::refusal(&NotAdmitted::Removed { node: asker })),
        };
        Ok(Response::new(v1::KeepAliveResponse { result: Some(result) }))
    }

    async fn hand_over(&self, request: Request<v1::HandOverRequest>) -> Result<Response<v1::HandOverResponse>, Status> {
        let to = request.into_inner().to.map(NodeId);
        Ok(Response::new(transfer::answer(self.cluster.transfer_as_leader(to).await)))
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        let boot = self.cluster.boot().as_uuid().as_bytes().to_vec().into();
        Ok(Response::new(v1::ProbeResponse { boot }))
    }

    async fn spans(&self, request: Request<v1::SpansRequest>) -> Result<Response<v1::SpansResponse>, Status> {
        let trace_id: [u8; 16] = request
            .into_inner()
            .trace_id
            .as_ref()
            .try_into()
            .map_err(|_| Status::invalid_argument("trace id has not 16 bytes"))?;
        let spans = towline_trace::recent(u128::from_be_bytes(trace_id));
        let spans = spans.iter().filter_map(|span| serde_json::to_vec(span).ok()).map(Into::into).collect();
        Ok(Response::new(v1::SpansResponse { spans }))
    }

    async fn put_blob(
        &self,
        request: Request<Streaming<v1::BlobChunk>>,
    ) -> Result<Response<v1::PutBlobResponse>, Status> {
        blobs::put(&self.cluster, request.into_inner()).await?;
        Ok(Response::new(v1::PutBlobResponse {}))
    }

    type GetBlobStream = blobs::ChunkStream;
    type TailStream = TailStream;

    async fn get_blob(&self, request: Request<v1::GetBlobRequest>) -> Result<Response<Self::GetBlobStream>, Status> {
        blobs::get(&self.cluster, request.into_inner()).await.map(Response::new)
    }

    async fn hold_blobs(
        &self,
        request: Request<v1::HoldBlobsRequest>,
    ) -> Result<Response<v1::HoldBlobsResponse>, Status> {
        let held = blobs::hold(&self.cluster, request.into_inner()).await?;
        Ok(Response::new(v1::HoldBlobsResponse { held }))
    }

    async fn missing_blobs(
        &self,
        _: Request<v1::MissingBlobsRequest>,
    ) -> Result<Response<v1::MissingBlobsResponse>, Status> {
        Ok(Response::new(blobs::missing(&self.cluster)))
    }

    type FinishedStream = finished::ChunkStream;

    async fn finished(&self, request: Request<v1::FinishedRequest>) -> Result<Response<Self::FinishedStream>, Status> {
        finished::serve(self.cluster.finished().clone(), request.into_inner()).map(Response::new)
    }

    async fn members(&self, _: Request<v1::MembersRequest>) -> Result<Response<v1::Roster>, Status> {
        Ok(Response::new(self.cluster.roster().members().to_proto()))
    }

    async fn tail(&self, request: Request<v1::TailRequest>) -> Result<Response<Self::TailStream>, Status> {
        let caller = caller(&request)?;
        let after = request.into_inner().after.as_ref().map(wire::log_id_from_proto);
        tail::serve(&self.cluster, &self.tails, caller, after).map(Response::new)
    }

    async fn authority_key(
        &self,
        request: Request<v1::AuthorityKeyRequest>,
    ) -> Result<Response<v1::AuthorityKeyResponse>, Status> {
        let caller = caller(&request)?;
        let may_sign = self
            .cluster
            .local(|state| state.node(caller).is_some_and(|node| node.role == NodeRole::Voter && !node.leaving));
        if !may_sign {
            return Err(Status::permission_denied(format!("node {caller} is no voter: only voters sign certificates")));
        }
        let authority = self.cluster.signer().authority();
        let authority = authority.ok_or_else(|| Status::unavailable("this node cannot sign certificates itself"))?;
        Ok(Response::new(v1::AuthorityKeyResponse { key: authority.key_pem().into_bytes().into() }))
    }
}

fn caller<T>(request: &Request<T>) -> Result<NodeId, Status> {
    let caller = request.extensions().get::<Caller>();
    caller.map(|caller| caller.0).ok_or_else(|| Status::unauthenticated("the caller is not known"))
}

/// What one node may have another put into the log: it speaks for itself and for its callers, never for a third node, and
/// what only the leader decides is not forwarded at all.
fn may_forward(caller: NodeId, proposal: &Proposal) -> bool {
    match &proposal.by {
        Principal::Node(node) if *node != caller => return false,
        Principal::Node(_) | Principal::Operator | Principal::Agent { .. } | Principal::Named { .. } => {}
    }
    match &proposal.command {
        Command::NodeLost { node, .. } => *node == caller,
        Command::Found { .. }
        | Command::AssignPending
        | Command::Sweep
        | Command::Archive { .. }
        | Command::Raise { .. } => false,
        Command::Submit(_)
        | Command::Continue { .. }
        | Command::Cancel { .. }
        | Command::Report(_)
        | Command::Resolve(_)
        | Command::Testify(_)
        | Command::MintToken { .. }
        | Command::Enrol(_)
        | Command::Certify { .. }
        | Command::RemoveNode { .. }
        | Command::SetRole { .. }
        | Command::Drain { .. }
        | Command::Undrain { .. }
        | Command::Upload { .. }
        | Command::Note { .. }
        | Command::AddPeer(_)
        | Command::RemovePeer { .. }
        | Command::SignIn(_)
        | Command::SetWebhook(_)
        | Command::RemoveWebhook(_)
        | Command::ClaimWebhooks { .. }
        | Command::ReportWebhook(_)
        | Command::IfGeneration { .. }
        | Command::Trigger(_)
        | Command::Bridge(_)
        | Command::PinTools(_)
        | Command::Lack(_)
        | Command::NodeUp { .. } => true,
    }
}

fn propose_result(written: Written) -> v1::propose_response::Result {
    use v1::propose_response::{Applied, Result, Unavailable, Unknown};
    match written {
        Written::Applied { index, outcome } => match wire::encode_outcome(&outcome) {
            Ok(outcome) => Result::Applied(Applied { index, outcome: outcome.into() }),
            Err(error) => Result::Unknown(Unknown { reason: format!("outcome of entry {index}: {error}") }),
        },
        Written::NotLeader(leader) => Result::NotLeader(not_leader(leader)),
        Written::Unavailable(reason) => Result::Unavailable(Unavailable { reason }),
        Written::Unknown(reason) => Result::Unknown(Unknown { reason }),
    }
}

fn not_leader(leader: Option<NodeId>) -> v1::NotLeader {
    v1::NotLeader { leader: leader.map(|leader| leader.0) }
}

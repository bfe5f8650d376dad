//! Raft between nodes: the calls that openraft makes, over gRPC, and the service that answers them.
//!
//! Each call is marked with the node it is meant for and refused by any other, so a message never reaches the wrong log.
//! Entries go over one stream per follower (`append_stream`); heartbeats, votes and snapshots are calls of their own.

mod append_stream;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use openraft::{
    OptionalSend,
    base::{BoxFuture, BoxStream},
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable},
    network::{Backoff, RPCOption, RPCTypes, RaftNetworkFactory, stream_append_sequential, v2::RaftNetworkV2},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
        VoteRequest, VoteResponse,
    },
};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};
use towline_core::{NodeAddresses, NodeId};
use towline_proto::v1::{self, raft_client::RaftClient};

use super::{
    ELECTION_TIMEOUT_MAX_MS, Raft, RaftSnapshot, RaftVote, SnapshotError, SnapshotFile, StateView, TypeConfig,
};
use crate::{
    fences::{Asked, Fence, Fences},
    finished::{self, Installing},
    handle::ClusterHandle,
    peers::{self, Caller, Lane, PeerChannel, Peers},
    seams, wire,
};

/// An append may wait for a slow disk: given up sooner, the same entries would be sent to it again and again.
const APPEND_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes of a snapshot in one message.
const SNAPSHOT_CHUNK: usize = 1024 * 1024;
/// Largest snapshot that a node takes: its state is held in memory.
const MAX_SNAPSHOT_BYTES: u64 = 4 * 1024 * 1024 * 1024;
/// Pause between tries to reach a node that is not reached: it may be back within a moment.
const BACKOFF: Duration = Duration::from_millis(150);

type RpcError = RPCError<TypeConfig>;

/// Makes the clients that openraft asks for.
pub(crate) struct NetworkFactory {
    node: NodeId,
    peers: Arc<Peers>,
}

impl NetworkFactory {
    pub(crate) fn new(node: NodeId, peers: Arc<Peers>) -> Self {
        Self { node, peers }
    }

    fn client(&self, target: u64, node: &NodeAddresses, lane: Lane) -> Network {
        let to = NodeId(target);
        self.peers.book().seed(to, node);
        let (client, fences) = (self.peers.raft(to, lane), Arc::clone(self.peers.fences()));
        Network { from: self.node.0, to: target, client, knows_streams: true, fences }
    }
}

impl RaftNetworkFactory<TypeConfig> for NetworkFactory {
    type Network = Network;

    async fn new_client(&mut self, target: u64, node: &NodeAddresses) -> Network {
        self.client(target, node, Lane::Append)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &NodeAddresses) -> Network {
        self.client(target, node, Lane::Heartbeat)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &NodeAddresses) -> Network {
        self.client(target, node, Lane::Snapshot)
    }
}

/// The client of one other node.
pub(crate) struct Network {
    from: u64,
    to: u64,
    client: RaftClient<PeerChannel>,
    /// Whether the other node may answer a stream: one of an earlier version does not.
    knows_streams: bool,
    fences: Arc<Fences>,
}

impl Network {
    /// Refuses a node that lost what it had stored: neither its log nor its vote counts.
    fn check_fence(&self) -> Result<(), RpcError> {
        self.fences.of(NodeId(self.to)).map_or(Ok(()), |fence| Err(fenced(&fence)))
    }

    /// Waits for an answer, no longer than `limit`.
    async fn call<T>(
        &self,
        action: RPCTypes,
        limit: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, RpcError> {
        match tokio::time::timeout(limit, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.failed(&status)),
            Err(_) => Err(RPCError::Timeout(self.late(action, limit))),
        }
    }

    fn late(&self, action: RPCTypes, timeout: Duration) -> Timeout<TypeConfig> {
        Timeout { action, id: self.from, target: self.to, timeout }
    }

    fn failed(&self, status: &Status) -> RpcError {
        let text = format!("node {}: {}", self.to, describe(status));
        if peers::never_sent(status) || status.code() == tonic::Code::FailedPrecondition {
            RPCError::Unreachable(Unreachable::from_string(text))
        } else {
            RPCError::Network(NetworkError::from_string(text))
        }
    }
}

impl RaftNetworkV2<TypeConfig> for Network {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RpcError> {
        self.check_fence()?;
        let (node, asked) = (NodeId(self.to), Asked::of(&rpc));
        let certain = self.fences.certain(node, &rpc.vote);
        let limit = if rpc.entries.is_empty() { option.soft_ttl() } else { APPEND_TIMEOUT };
        let mut client = self.client.clone();
        let answer =
            self.call(RPCTypes::AppendEntries, limit, client.append_entries(append_request_to_proto(&rpc))).await?;
        let answer = append_response_from_proto(answer).map_err(|status| self.failed(&status))?;
        self.fences.judge(node, certain, &asked, &answer).map_err(|fence| fenced(&fence))?;
        Ok(answer)
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RpcError>>, RpcError>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        if self.knows_streams {
            Box::pin(append_stream::open(self, input))
        } else {
            stream_append_sequential(self, input, option)
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RpcError> {
        self.check_fence()?;
        let mut client = self.client.clone();
        let call = client.request_vote(vote_request_to_proto(&rpc));
        let answer = self.call(RPCTypes::Vote, option.soft_ttl(), call).await?;
        vote_response_from_proto(answer).map_err(|status| self.failed(&status))
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RpcError> {
        self.check_fence()?;
        let mut client = self.client.clone();
        let call = client.pre_vote(vote_request_to_proto(&rpc));
        let answer = self.call(RPCTypes::Vote, option.soft_ttl(), call).await?;
        vote_response_from_proto(answer).map_err(|status| self.failed(&status))
    }

    /// Sends a snapshot as a stream that feeds itself, so the call that waits for the answer also moves the chunks: a
    /// sender that had to be fed after the call was made would wait for an answer to what it has not sent.
    async fn full_snapshot(
        &mut self,
        vote: RaftVote,
        snapshot: RaftSnapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        self.check_fence()?;
        let chunks = snapshot_chunks(&vote, &snapshot);
        let mut client = self.client.clone();
        let limit = option.soft_ttl();
        let call = client.install_snapshot(chunks);
        let answer = tokio::select! {
            closed = cancel => return Err(StreamingError::Closed(closed)),
            answer = self.call(RPCTypes::InstallSnapshot, limit, call) => answer?,
        };
        let vote = required("snapshot answer", "vote", answer.vote).map_err(|status| self.failed(&status))?;
        Ok(SnapshotResponse::new(wire::vote_from_proto(&vote)))
    }

    async fn transfer_leader(
        &mut self,
        rpc: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<openraft::raft::TransferLeaderResponse<TypeConfig>, RpcError> {
        let request = v1::TransferLeaderRequest {
            from_leader: Some(wire::vote_to_proto(rpc.from_leader())),
            to_node: *rpc.to_node_id(),
            last_log_id: rpc.last_log_id().map(wire::log_id_to_proto),
        };
        let mut client = self.client.clone();
        let call = client.transfer_leader(request);
        let answer = self.call(RPCTypes::TransferLeader, option.soft_ttl(), call).await?;
        transfer_response_from_proto(answer).map_err(|status| self.failed(&status))
    }

    fn backoff(&self) -> Option<Backoff> {
        Some(Backoff::new(std::iter::repeat(BACKOFF)))
    }
}

fn fenced(fence: &Fence) -> RpcError {
    RPCError::Unreachable(Unreachable::from_string(fence.to_string()))
}

fn describe(status: &Status) -> String {
    if peers::never_sent(status) { peers::root_cause(status) } else { status.to_string() }
}

/// Chunks are read as they are sent. One that cannot be read ends the stream, which its receiver then refuses.
fn snapshot_chunks(vote: &RaftVote, snapshot: &RaftSnapshot) -> impl Stream<Item = v1::SnapshotChunk> + Send + use<> {
    let file = snapshot.snapshot.clone();
    let header = v1::SnapshotHeader {
        vote: Some(wire::vote_to_proto(vote)),
        meta: Some(wire::snapshot_meta_to_proto(&snapshot.meta)),
        size: file.length(),
    };
    let first = v1::SnapshotChunk { header: Some(header), data: Bytes::new() };
    let data = futures::stream::unfold((file, 0_u64), |(file, position)| async move {
        let rest = usize::try_from(file.length() - position).unwrap_or(usize::MAX);
        if rest == 0 {
            return None;
        }
        let reading = file.clone();
        let read =
            seams::blocking(move || reading.piece(position, rest.min(SNAPSHOT_CHUNK))).await.and_then(|read| read);
        let data = read.inspect_err(|error| tracing::warn!(%error, "snapshot cannot be read to the end")).ok()?;
        let next = position + data.len() as u64;
        Some((v1::SnapshotChunk { header: None, data }, (file, next)))
    });
    futures::stream::once(async { first }).chain(data)
}

/// Answers the Raft calls of other nodes.
pub(crate) struct RaftService {
    cluster: ClusterHandle,
    raft: Raft,
    started: Instant,
}

impl RaftService {
    pub(crate) fn new(cluster: ClusterHandle, raft: Raft) -> Self {
        Self { cluster, raft, started: Instant::now() }
    }

    /// Fetches the records of the archive that belong to a snapshot, and are not here yet.
    async fn complete(&self, snapshot: &RaftSnapshot, from: Option<NodeId>) -> Result<Installing, Status> {
        let installing = self.cluster.finished().installing();
        let file = snapshot.snapshot.clone();
        let decoded = seams::blocking(move || file.decode()).await.map_err(unwritten)?;
        let (meta, state) = decoded.map_err(malformed)?;
        let completed = finished::complete(&self.cluster, &state, from).await;
        completed.map_err(|reason| Status::unavailable(format!("the archive of the snapshot: {reason}")))?;
        snapshot.snapshot.keep((meta, state));
        Ok(installing)
    }

    /// A node that has just started may have promised a leader's lease in its life before, and does not remember: it
    /// votes for nobody until that lease is over, unless the leader itself asks.
    fn check_promises(&self, transfer: bool) -> Result<(), Status> {
        let over = self.started.elapsed() >= Duration::from_millis(ELECTION_TIMEOUT_MAX_MS);
        if over || transfer {
            Ok(())
        } else {
            Err(Status::unavailable("has just started and may have promised a lease"))
        }
    }
}

#[tonic::async_trait]
impl v1::raft_server::Raft for RaftService {
    type StreamAppendStream = Pin<Box<dyn Stream<Item = Result<v1::AppendEntriesResponse, Status>> + Send>>;

    async fn stream_append(
        &self,
        requests: Request<Streaming<v1::AppendEntriesRequest>>,
    ) -> Result<Response<Self::StreamAppendStream>, Status> {
        Ok(Response::new(append_stream::answer(&self.raft, requests.into_inner())))
    }

    async fn append_entries(
        &self,
        request: Request<v1::AppendEntriesRequest>,
    ) -> Result<Response<v1::AppendEntriesResponse>, Status> {
        let rpc = append_request_from_proto(request.into_inner())?;
        let answer = self.raft.append_entries(rpc).await.map_err(stopped)?;
        Ok(Response::new(append_response_to_proto(answer)))
    }

    async fn request_vote(&self, request: Request<v1::VoteRequest>) -> Result<Response<v1::VoteResponse>, Status> {
        let rpc = vote_request_from_proto(request.into_inner())?;
        self.check_promises(rpc.leadership_transfer)?;
        let answer = self.raft.vote(rpc).await.map_err(stopped)?;
        Ok(Response::new(vote_response_to_proto(&answer)))
    }

    async fn pre_vote(&self, request: Request<v1::VoteRequest>) -> Result<Response<v1::VoteResponse>, Status> {
        let rpc = vote_request_from_proto(request.into_inner())?;
        self.check_promises(rpc.leadership_transfer)?;
        let answer = self.raft.pre_vote(rpc).await.map_err(stopped)?;
        Ok(Response::new(vote_response_to_proto(&answer)))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<v1::SnapshotChunk>>,
    ) -> Result<Response<v1::SnapshotResponse>, Status> {
        let from = request.extensions().get::<Caller>().map(|caller| caller.0);
        let (vote, snapshot) = receive_snapshot(self.cluster.leadership().view(), request.into_inner()).await?;
        let _installing = self.complete(&snapshot, from).await?;
        let answer = self.raft.install_full_snapshot(vote, snapshot).await;
        let answer = answer.map_err(|error| Status::internal(format!("install a snapshot: {error}")))?;
        Ok(Response::new(v1::SnapshotResponse { vote: Some(wire::vote_to_proto(&answer.vote)) }))
    }

    async fn transfer_leader(
        &self,
        request: Request<v1::TransferLeaderRequest>,
    ) -> Result<Response<v1::TransferLeaderResponse>, Status> {
        let request = request.into_inner();
        let from = wire::vote_from_proto(&required("transfer", "from_leader", request.from_leader)?);
        let last = request.last_log_id.as_ref().map(wire::log_id_from_proto);
        let rpc = TransferLeaderRequest::new(from, request.to_node, last);
        let answer = self.raft.handle_transfer_leader(rpc).await;
        let answer = answer.map_err(|error| Status::internal(format!("take leadership over: {error}")))?;
        Ok(Response::new(transfer_response_to_proto(answer)))
    }
}

/// Takes a snapshot into a file of its own, and checks it.
async fn receive_snapshot(
    view: &StateView,
    mut chunks: Streaming<v1::SnapshotChunk>,
) -> Result<(RaftVote, RaftSnapshot), Status> {
    let first = chunks.message().await?.ok_or_else(|| Status::invalid_argument("snapshot without chunks"))?;
    let header = required("snapshot", "header", first.header)?;
    let vote = wire::vote_from_proto(&required("snapshot", "vote", header.vote)?);
    let meta = wire::snapshot_meta_from_proto(required("snapshot", "meta", header.meta)?).map_err(malformed)?;
    if header.size > MAX_SNAPSHOT_BYTES {
        return Err(Status::resource_exhausted(format!("snapshot has more than {MAX_SNAPSHOT_BYTES} bytes")));
    }
    let mut incoming = view.incoming().map_err(unwritten)?;
    let mut data = first.data;
    loop {
        if incoming.length() + data.len() as u64 > header.size {
            return Err(Status::invalid_argument("snapshot is longer than its header says"));
        }
        incoming = seams::blocking(move || incoming.take(&data).map(|()| incoming))
            .await
            .and_then(|taken| taken)
            .map_err(unwritten)?;
        let Some(chunk) = chunks.message().await? else { break };
        data = chunk.data;
    }
    if incoming.length() != header.size {
        return Err(Status::invalid_argument("snapshot is shorter than its header says"));
    }
    let finished = seams::blocking(move || incoming.finish()).await.map_err(unwritten)?;
    let snapshot = finished.map_err(|error| match error {
        SnapshotError::File(error) => unwritten(error),
        SnapshotError::Content(error) => malformed(error),
    })?;
    Ok((vote, RaftSnapshot { meta, snapshot }))
}

fn unwritten(error: std::io::Error) -> Status {
    Status::unavailable(format!("snapshot cannot be written: {error}"))
}

fn stopped(error: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("raft core has stopped: {error}"))
}

fn malformed(error: impl std::fmt::Display) -> Status {
    Status::invalid_argument(error.to_string())
}

fn required<T>(message: &str, field: &str, value: Option<T>) -> Result<T, Status> {
    value.ok_or_else(|| Status::invalid_argument(format!("{message} without {field}")))
}

fn append_request_to_proto(rpc: &AppendEntriesRequest<TypeConfig>) -> v1::AppendEntriesRequest {
    v1::AppendEntriesRequest {
        vote: Some(wire::vote_to_proto(&rpc.vote)),
        prev_log_id: rpc.prev_log_id.as_ref().map(wire::log_id_to_proto),
        entries: rpc.entries.iter().map(wire::entry_to_proto).collect(),
        leader_commit: rpc.leader_commit.as_ref().map(wire::log_id_to_proto),
    }
}

fn append_request_from_proto(rpc: v1::AppendEntriesRequest) -> Result<AppendEntriesRequest<TypeConfig>, Status> {
    Ok(AppendEntriesRequest {
        vote: wire::vote_from_proto(&required("append", "vote", rpc.vote)?),
        prev_log_id: rpc.prev_log_id.as_ref().map(wire::log_id_from_proto),
        entries: rpc.entries.into_iter().map(wire::entry_from_proto).collect::<Result<_, _>>().map_err(malformed)?,
        leader_commit: rpc.leader_commit.as_ref().map(wire::log_id_from_proto),
    })
}

fn append_response_to_proto(answer: AppendEntriesResponse<TypeConfig>) -> v1::AppendEntriesResponse {
    use v1::append_entries_response::{Conflict, PartialSuccess, Result, Success};
    let result = match answer {
        AppendEntriesResponse::Success => Result::Success(Success {}),
        AppendEntriesResponse::PartialSuccess(matching) => {
            Result::PartialSuccess(PartialSuccess { matching: matching.as_ref().map(wire::log_id_to_proto) })
        }
        AppendEntriesResponse::Conflict => Result::Conflict(Conflict {}),
        AppendEntriesResponse::HigherVote(vote) => Result::HigherVote(wire::vote_to_proto(&vote)),
    };
    v1::AppendEntriesResponse { result: Some(result) }
}

fn append_response_from_proto(answer: v1::AppendEntriesResponse) -> Result<AppendEntriesResponse<TypeConfig>, Status> {
    use v1::append_entries_response::{Conflict, Result, Success};
    Ok(match required("append answer", "result", answer.result)? {
        Result::Success(Success {}) => AppendEntriesResponse::Success,
        Result::PartialSuccess(partial) => {
            AppendEntriesResponse::PartialSuccess(partial.matching.as_ref().map(wire::log_id_from_proto))
        }
        Result::Conflict(Conflict {}) => AppendEntriesResponse::Conflict,
        Result::HigherVote(vote) => AppendEntriesResponse::HigherVote(wire::vote_from_proto(&vote)),
    })
}

fn vote_request_to_proto(rpc: &VoteRequest<TypeConfig>) -> v1::VoteRequest {
    v1::VoteRequest {
        vote: Some(wire::vote_to_proto(&rpc.vote)),
        last_log_id: rpc.last_log_id.as_ref().map(wire::log_id_to_proto),
        leadership_transfer: rpc.leadership_transfer,
    }
}

fn vote_request_from_proto(rpc: v1::VoteRequest) -> Result<VoteRequest<TypeConfig>, Status> {
    Ok(VoteRequest {
        vote: wire::vote_from_proto(&required("vote request", "vote", rpc.vote)?),
        last_log_id: rpc.last_log_id.as_ref().map(wire::log_id_from_proto),
        leadership_transfer: rpc.leadership_transfer,
    })
}

fn vote_response_to_proto(answer: &VoteResponse<TypeConfig>) -> v1::VoteResponse {
    v1::VoteResponse {
        vote: Some(wire::vote_to_proto(&answer.vote)),
        granted: answer.vote_granted,
        last_log_id: answer.last_log_id.as_ref().map(wire::log_id_to_proto),
    }
}

fn vote_response_from_proto(answer: v1::VoteResponse) -> Result<VoteResponse<TypeConfig>, Status> {
    Ok(VoteResponse {
        vote: wire::vote_from_proto(&required("vote answer", "vote", answer.vote)?),
        vote_granted: answer.granted,
        last_log_id: answer.last_log_id.as_ref().map(wire::log_id_from_proto),
    })
}

fn transfer_response_to_proto(
    answer: openraft::raft::TransferLeaderResponse<TypeConfig>,
) -> v1::TransferLeaderResponse {
    use openraft::raft::TransferLeaderError;
    use v1::transfer_leader_response::{Accepted, LogNotFlushed, Result, VoteChanged};
    let result = match answer {
        Ok(()) => Result::Accepted(Accepted {}),
        Err(TransferLeaderError::VoteChanged { expected, actual }) => Result::VoteChanged(VoteChanged {
            expected: Some(wire::vote_to_proto(&expected)),
            actual: Some(wire::vote_to_proto(&actual)),
        }),
        Err(TransferLeaderError::LogNotFlushed { expected, actual }) => Result::LogNotFlushed(LogNotFlushed {
            expected: expected.as_ref().map(wire::log_id_to_proto),
            actual: actual.as_ref().map(wire::log_id_to_proto),
        }),
    };
    v1::TransferLeaderResponse { result: Some(result) }
}

fn transfer_response_from_proto(
    answer: v1::TransferLeaderResponse,
) -> Result<openraft::raft::TransferLeaderResponse<TypeConfig>, Status> {
    use openraft::raft::TransferLeaderError;
    use v1::transfer_leader_response::{Accepted, Result};
    Ok(match required("transfer answer", "result", answer.result)? {
        Result::Accepted(Accepted {}) => Ok(()),
        Result::VoteChanged(changed) => Err(TransferLeaderError::VoteChanged {
            expected: wire::vote_from_proto(&required("transfer answer", "expected", changed.expected)?),
            actual: wire::vote_from_proto(&required("transfer answer", "actual", changed.actual)?),
        }),
        Result::LogNotFlushed(lag) => Err(TransferLeaderError::LogNotFlushed {
            expected: lag.expected.as_ref().map(wire::log_id_from_proto),
            actual: lag.actual.as_ref().map(wire::log_id_from_proto),
        }),
    })
}

//! How this node takes others in and signs their certificates. Anybody may call: a join token stands in for a certificate,
//! and for a renewal the proof that the caller holds the key that the node is known by.
//!
//! A member that cannot sign sends a request on to one that can. It learns nothing by that and can change nothing: what is
//! asked and answered is proved with the join token (`joining`).

use std::{
    future::Future,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tokio::sync::Semaphore;
use tonic::{Code, Request, Response, Status};
use towline_core::{
    Command, Enrolment, NodeAddresses, NodeHealth, NodeId, NodeRole, Principal, Proposal, Rejection, Reply, State,
};
use towline_proto::v1::{self, enrol_client::EnrolClient};
use uuid::Uuid;

use crate::{
    PeerIdentity, ProposeError,
    certificates::{Authority, CertificateRequest, CertifiedNode, Life},
    handle::ClusterHandle,
    joining, leader, membership,
    peers::{self, PeerChannel},
    roster::NotAdmitted,
};

/// Requests that are worked on at the same time: each costs a read and a signature, and anybody may ask.
const MAX_ENROLMENTS: usize = 4;
/// Largest request: a certificate request has a few hundred bytes.
pub(crate) const MAX_ENROLMENT_BYTES: usize = 16 * 1024;
/// How long one member that can sign is waited for. It holds a proposal; the joining node waits longer.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(6);

/// The cluster's authority, on the nodes that have its key: the founder, and each voter once it has fetched it.
pub(crate) struct Signer {
    authority: RwLock<Option<Arc<Authority>>>,
    life: Duration,
}

impl Signer {
    pub(crate) fn new(authority: Option<Authority>, life: Duration) -> Self {
        Self { authority: RwLock::new(authority.map(Arc::new)), life }
    }

    pub(crate) fn authority(&self) -> Option<Arc<Authority>> {
        self.authority.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn take_up(&self, authority: Authority) {
        *self.authority.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(authority));
    }

    /// How long the certificates are good that are signed at this moment.
    pub(crate) fn life(&self) -> Life {
        Life { now: leader::wall_clock(), length: self.life }
    }
}

/// The nodes to ask for a signature, the likely ones first.
pub(crate) fn signers(state: &State, me: NodeId) -> Vec<NodeId> {
    let signs = |node: &towline_core::Node| node.certificate.as_ref().is_some_and(|certificate| certificate.signs);
    let mut voters: Vec<_> = state.nodes().filter(|node| node.id != me && node.role == NodeRole::Voter).collect();
    voters.sort_by_key(|node| (!signs(node), node.health != NodeHealth::Up, node.id));
    voters.into_iter().map(|node| node.id).collect()
}

/// Takes nodes in, and renews their certificates.
pub(crate) struct EnrolService {
    cluster: ClusterHandle,
    permits: Semaphore,
}

impl EnrolService {
    pub(crate) fn new(cluster: ClusterHandle) -> Self {
        Self { cluster, permits: Semaphore::new(MAX_ENROLMENTS) }
    }

    async fn take_in(
        &self,
        authority: &Authority,
        request: v1::EnrolRequest,
    ) -> Result<v1::enrol_response::Member, Status> {
        let token = self.token(&request).await?;
        self.check_meant(&request.cluster_name)?;
        let csr = certificate_request(&request.certificate_request)?;
        let (proof, key) = (request.proof.clone(), csr.key());
        let addresses = NodeAddresses { http: request.http, peer: request.peer };
        membership::check_node(&request.name, &addresses)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let id = Uuid::from_slice(&request.request).map_err(|_| Status::invalid_argument("request is not a UUID"))?;
        let knows_labels = request.knows_labels;
        self.check_knows(&token, knows_labels)?;
        let enrolment = Enrolment {
            token_hash: token.clone(),
            request: id,
            name: request.name,
            addresses,
            key: Some(key),
            knows_labels,
        };
        let (node, role) = self.enrol(enrolment).await?;
        let certificate = self.sign(authority, csr, node)?;
        tracing::info!(%node, ?role, "enrolled");
        let identity = self.cluster.identity();
        let mut member = v1::enrol_response::Member {
            cluster: identity.cluster.as_bytes().to_vec().into(),
            cluster_name: identity.cluster_name.clone(),
            node: node.0,
            certificate,
            roster: Some(self.cluster.roster().members().to_proto()),
            proof: bytes::Bytes::new(),
            worker: role == NodeRole::Worker,
        };
        member.proof = joining::member_proof(&token, &proof, &member).as_bytes().to_vec().into();
        Ok(member)
    }

    /// The hash of the token that a request proves to know.
    async fn token(&self, request: &v1::EnrolRequest) -> Result<String, Status> {
        if request.token.is_empty() {
            let reason =
                "the joining node runs an earlier version of towline: use the version of this node there as well";
            return Err(Status::failed_precondition(reason));
        }
        let called = |hash: &&str| joining::token_name(hash)[..] == request.token[..];
        let found = self.cluster.read(|state| state.token_hashes().find(called).map(str::to_owned)).await;
        let found = found.map_err(|error| Status::unavailable(error.to_string()))?;
        let hash = found.ok_or_else(|| Status::permission_denied(Rejection::UnknownToken.to_string()))?;
        if joining::proves(&request.proof, joining::request_proof(&hash, request)) {
            Ok(hash)
        } else {
            Err(Status::permission_denied("the request was not made with the join token that it names"))
        }
    }

    /// Refuses a node that means to join another cluster, before anything is spent.
    fn check_meant(&self, wanted: &str) -> Result<(), Status> {
        let name = self.cluster.cluster_name();
        if wanted.is_empty() || wanted == name {
            return Ok(());
        }
        Err(Status::failed_precondition(format!(
            "this is cluster {name:?}, and cluster.name of the joining node is {wanted:?}: change it, or use a token of that \
             cluster; this token is still good"
        )))
    }

    /// Refuses a node that would not know what the token makes it, before the token is spent.
    fn check_knows(&self, token: &str, knows_labels: bool) -> Result<(), Status> {
        let for_worker = self.cluster.local(|state| state.role_of_token(token) == Some(NodeRole::Worker));
        if for_worker && !knows_labels {
            let reason = "the token is for a worker, and the joining node runs an earlier version of towline, which knows of \
                          none: use the version of this node there as well";
            return Err(Status::failed_precondition(reason));
        }
        Ok(())
    }

    async fn enrol(&self, enrolment: Enrolment) -> Result<(NodeId, NodeRole), Status> {
        let by = Principal::Node(self.cluster.node_id());
        match self.cluster.propose(Proposal { by, command: Command::Enrol(enrolment) }, None).await {
            Ok(Reply::Enrolled { node, role }) => Ok((node, role)),
            Ok(Reply::Submitted { .. } | Reply::Continued { .. } | Reply::Done) => {
                Err(Status::internal("enrolment was answered as something else"))
            }
            Err(ProposeError::Rejected(rejection)) => Err(Status::permission_denied(rejection.to_string())),
            Err(error @ (ProposeError::Unavailable { .. } | ProposeError::Unknown { .. })) => {
                Err(Status::unavailable(error.to_string()))
            }
        }
    }

    /// A further certificate for a member, over the key that it is known by.
    fn renew(
        &self,
        authority: &Authority,
        caller: Option<CertifiedNode>,
        request: &v1::RenewRequest,
    ) -> Result<bytes::Bytes, Status> {
        let csr = certificate_request(&request.certificate_request)?;
        let node = NodeId(request.node);
        let roster = self.cluster.roster();
        if !roster.knows_key(node, &csr.key()) {
            let refused = |refused: NotAdmitted| peers::refusal(&refused);
            // Of a node that an earlier version made a member only its certificate tells which key is its own.
            let caller = caller.ok_or(NotAdmitted::NoCertificate).map_err(refused)?;
            if caller.node != node || caller.key != csr.key() {
                return Err(refused(NotAdmitted::OtherKey { node }));
            }
            roster.check(&caller).map_err(refused)?;
        }
        let certificate = self.sign(authority, csr, node)?;
        tracing::info!(%node, "renewed a certificate");
        Ok(certificate)
    }

    fn sign(&self, authority: &Authority, csr: CertificateRequest, node: NodeId) -> Result<bytes::Bytes, Status> {
        let life = self.cluster.signer().life();
        let certificate = authority.sign(csr, node, &self.cluster.identity().cluster_name, life);
        certificate.map(|der| der.to_vec().into()).map_err(|error| Status::internal(error.to_string()))
    }

    /// Sends a request on to the members that can sign, one after the other, until one answers.
    async fn forward<T, F>(&self, forwarded: bool, call: impl Fn(EnrolClient<PeerChannel>) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let me = self.cluster.node_id();
        let mut reason = "no voter is known that could".to_owned();
        let signers = if forwarded { Vec::new() } else { self.cluster.local(|state| signers(state, me)) };
        for node in signers {
            let client = self.cluster.peers().enrol(node, self.cluster.credentials());
            let client = client.map_err(|error| Status::internal(error.to_string()))?;
            match tokio::time::timeout(FORWARD_TIMEOUT, call(client)).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) if is_answer(&status) => return Err(status),
                Ok(Err(status)) => reason = format!("node {node}: {}", peers::root_cause(&status)),
                Err(_) => reason = format!("node {node} did not answer within {FORWARD_TIMEOUT:?}"),
            }
        }
        Err(Status::unavailable(format!(
            "node {me} cannot sign certificates, and no voter answered that can ({reason})"
        )))
    }

    fn permit(&self) -> Result<tokio::sync::SemaphorePermit<'_>, Status> {
        self.permits.try_acquire().map_err(|_| {
            Status::unavailable(format!("{MAX_ENROLMENTS} nodes are being enrolled: try again in a second"))
        })
    }
}

fn certificate_request(der: &[u8]) -> Result<CertificateRequest, Status> {
    CertificateRequest::read(der).map_err(|error| Status::invalid_argument(error.to_string()))
}

/// Whether a member decided, as opposed to not being able to.
fn is_answer(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::InvalidArgument | Code::PermissionDenied | Code::FailedPrecondition | Code::Unauthenticated
    )
}

#[tonic::async_trait]
impl v1::enrol_server::Enrol for EnrolService {
    async fn enrol(&self, request: Request<v1::EnrolRequest>) -> Result<Response<v1::EnrolResponse>, Status> {
        let _permit = self.permit()?;
        let request = request.into_inner();
        let Some(authority) = self.cluster.signer().authority() else {
            let sent_on = v1::EnrolRequest { forwarded: true, ..request.clone() };
            let call = |mut client: EnrolClient<PeerChannel>| {
                let request = sent_on.clone();
                async move { client.enrol(request).await }
            };
            return self.forward(request.forwarded, call).await.map(Response::new);
        };
        let member = self.take_in(&authority, request).await?;
        Ok(Response::new(v1::EnrolResponse { result: Some(v1::enrol_response::Result::Member(member)) }))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        let _permit = self.permit()?;
        let caller = request.extensions().get::<PeerIdentity>().and_then(|identity| identity.0.clone());
        let request = request.into_inner();
        let Some(authority) = self.cluster.signer().authority() else {
            let sent_on = v1::RenewRequest { forwarded: true, ..request.clone() };
            let call = |mut client: EnrolClient<PeerChannel>| {
                let request = sent_on.clone();
                async move { client.renew(request).await }
            };
            return self.forward(request.forwarded, call).await.map(Response::new);
        };
        let certificate = self.renew(&authority, caller, &request)?;
        Ok(Response::new(v1::RenewResponse { certificate }))
    }
}

//! How a node joins: the join token, and the exchange with a member.
//!
//! Both sides of the exchange know the token: the joining node has its secret, the cluster the hash of it. Neither is sent.
//! What is asked and what is answered is proved with it instead, so that nobody between the two, whatever certificate it
//! holds, can ask for a key of its own, or make the node believe in another cluster.

use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use rustls::{CertificateError, pki_types::CertificateDer};
use towline_core::{NodeAddresses, NodeId};
use towline_proto::v1;
use uuid::Uuid;

use crate::{
    ClusterError, Identity, certificates,
    credentials::{self, Credentials},
    membership::{Folder, check_node},
    peers,
    roster::{Members, Roster},
};

/// A member that answers and cannot take a node in at the moment may be electing a leader.
const PATIENCE: Duration = Duration::from_secs(30);
/// A member that does not answer may be stalled; a wrong address behind a firewall looks the same.
const PATIENCE_WITH_SILENCE: Duration = Duration::from_secs(15);
/// Where nobody listens, somebody may be about to start; more likely the address is wrong.
const PATIENCE_WITH_NOBODY: Duration = Duration::from_secs(5);
/// Between two tries of a join.
const PAUSE: Duration = Duration::from_millis(500);
/// One try of a join; it holds a proposal, whose own deadline is shorter.
const TRY_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a join token's secret: not to be guessed.
const SECRET_BYTES: usize = 32;
/// The version of the join token that this binary makes and reads.
const TOKEN_VERSION: u8 = 1;

/// How a node wants to join.
#[derive(Debug, Clone)]
pub struct Joining<'a> {
    /// `host:port` of a member's peer listener.
    pub address: &'a str,
    /// The join token.
    pub token: &'a str,
    /// The cluster that it means to join, if it says so.
    pub cluster_name: Option<&'a str>,
    /// The node's name.
    pub node_name: &'a str,
    /// Where it will be reached.
    pub addresses: NodeAddresses,
}

/// [`join_as`], whatever the cluster is called.
///
/// # Errors
/// As for [`join_as`].
pub async fn join(
    data: &Path,
    address: &str,
    token: &str,
    node_name: &str,
    addresses: NodeAddresses,
) -> Result<Identity, ClusterError> {
    join_as(data, Joining { address, token, cluster_name: None, node_name, addresses }).await
}

/// Enrols this node at a member of a cluster with a join token, and keeps what it answered in the data folder. A join that
/// was cut off may be repeated with the same token, or another one: by its key it stays the same node.
///
/// # Errors
/// When the folder holds an identity already, or the member is not reached or refuses.
pub async fn join_as(data: &Path, joining: Joining<'_>) -> Result<Identity, ClusterError> {
    let Joining { address, token, cluster_name, node_name, addresses } = joining;
    check_node(node_name, &addresses)?;
    let token = Token::parse(token)?;
    peers::check_join_address(address)?;
    let folder = Folder::open_empty(data)?;
    let (request_id, key) = folder.joining()?;
    let mut request = v1::EnrolRequest {
        request: request_id.as_bytes().to_vec().into(),
        name: node_name.to_owned(),
        http: addresses.http.clone(),
        peer: addresses.peer.clone(),
        certificate_request: certificates::certificate_request(&key)?.into(),
        token: token_name(&token.hash()).to_vec().into(),
        cluster_name: cluster_name.unwrap_or_default().to_owned(),
        proof: bytes::Bytes::new(),
        forwarded: false,
        knows_labels: true,
    };
    request.proof = request_proof(&token.hash(), &request).as_bytes().to_vec().into();
    let member = enrol(address, &token.authority, &request).await?;
    let refused = |reason: &str| refused(address, format!("answered with {reason}"));
    if !proves(&member.proof, member_proof(&token.hash(), &request.proof, &member)) {
        return Err(refused("a proof that does not fit the join token: it is not a member of the cluster"));
    }
    let (identity, certificate, members) = accept(member, node_name, addresses).map_err(refused)?;
    let roster = Arc::new(Roster::new(Some(members.clone())));
    Credentials::new(token.authority.clone(), certificate.clone(), key, roster)?;
    folder.keep_members(&members)?;
    folder.complete(&identity, &token.authority, &certificate)?;
    Ok(identity)
}

/// Tries until the member answers, or the patience with what it hears ends. A refusal is an answer.
async fn enrol(
    address: &str,
    authority: &CertificateDer<'static>,
    request: &v1::EnrolRequest,
) -> Result<v1::enrol_response::Member, ClusterError> {
    tracing::info!(address, "asking to join");
    let began = Instant::now();
    let mut told = None;
    loop {
        let failure = match try_enrol(address, authority, request.clone()).await {
            Ok(member) => return Ok(member),
            Err(Failure::Refused(reason)) => return Err(refused(address, reason)),
            Err(failure) => failure,
        };
        if began.elapsed() + PAUSE >= failure.patience() {
            return Err(failure.given_up(address, began.elapsed()));
        }
        if told.as_ref() != Some(&failure) {
            let (reason, seconds) = (failure.reason(), failure.patience().as_secs());
            tracing::warn!(address, reason, "cannot join yet, trying for {seconds} s");
        }
        told = Some(failure);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Why a try came to nothing.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    /// The member said no.
    Refused(String),
    /// The member cannot at the moment.
    Passing(String),
    /// No answer came.
    Silent(String),
    /// Nobody is there.
    Nobody(String),
}

impl Failure {
    fn patience(&self) -> Duration {
        match self {
            Failure::Refused(_) => Duration::ZERO,
            Failure::Passing(_) => PATIENCE,
            Failure::Silent(_) => PATIENCE_WITH_SILENCE,
            Failure::Nobody(_) => PATIENCE_WITH_NOBODY,
        }
    }

    fn reason(&self) -> &str {
        match self {
            Failure::Refused(reason) | Failure::Passing(reason) | Failure::Silent(reason) | Failure::Nobody(reason) => {
                reason
            }
        }
    }

    fn given_up(self, address: &str, tried: Duration) -> ClusterError {
        const ADVICE: &str = "is it the peer listener (node.listen.peer) of a member that runs, and reached from here?";
        let tried = tried.as_secs();
        match self {
            Failure::Refused(reason) => refused(address, reason),
            Failure::Passing(reason) => {
                refused(address, format!("{reason} (tried for {tried} s; the token is still good)"))
            }
            Failure::Silent(reason) | Failure::Nobody(reason) => ClusterError::Enrol {
                address: address.to_owned(),
                reason: format!("{reason} (tried for {tried} s): {ADVICE}"),
                reached: false,
            },
        }
    }
}

fn refused(address: &str, reason: String) -> ClusterError {
    ClusterError::Enrol { address: address.to_owned(), reason, reached: true }
}

async fn try_enrol(
    address: &str,
    authority: &CertificateDer<'static>,
    request: v1::EnrolRequest,
) -> Result<v1::enrol_response::Member, Failure> {
    let channel = peers::joining_channel(address, authority).map_err(|error| Failure::Refused(error.to_string()))?;
    let mut client = v1::enrol_client::EnrolClient::new(channel);
    match tokio::time::timeout(TRY_TIMEOUT, client.enrol(request)).await {
        Err(_) => Err(Failure::Silent(format!("no answer within {TRY_TIMEOUT:?}"))),
        Ok(Ok(response)) => match response.into_inner().result {
            Some(v1::enrol_response::Result::Member(member)) => Ok(member),
            None => Err(Failure::Refused("answered without a result: is it another version of towline?".to_owned())),
        },
        Ok(Err(status)) => Err(failure(&status)),
    }
}

fn failure(status: &tonic::Status) -> Failure {
    if peers::never_sent(status) {
        return not_connected(status);
    }
    let message = status.message().to_owned();
    match status.code() {
        tonic::Code::Unavailable | tonic::Code::Unknown | tonic::Code::DeadlineExceeded | tonic::Code::Cancelled => {
            Failure::Passing(message)
        }
        tonic::Code::Unimplemented => {
            Failure::Refused("it takes no nodes in: is it a member's peer listener?".to_owned())
        }
        tonic::Code::Ok
        | tonic::Code::InvalidArgument
        | tonic::Code::NotFound
        | tonic::Code::AlreadyExists
        | tonic::Code::PermissionDenied
        | tonic::Code::ResourceExhausted
        | tonic::Code::FailedPrecondition
        | tonic::Code::Aborted
        | tonic::Code::OutOfRange
        | tonic::Code::Internal
        | tonic::Code::DataLoss
        | tonic::Code::Unauthenticated => Failure::Refused(message),
    }
}

/// What a failed dial means: the wrong place, the wrong cluster, or a member that is not there.
fn not_connected(status: &tonic::Status) -> Failure {
    let cause = peers::root_cause(status);
    match peers::tls_error(status) {
        Some(rustls::Error::InvalidCertificate(error)) if is_about_time(error) => Failure::Refused(format!(
            "its certificate is not good at this time: is the clock of this machine right, and that of the member? ({cause})"
        )),
        Some(rustls::Error::InvalidCertificate(_)) => {
            Failure::Refused(format!("it is not a member of the cluster that the token is for ({cause})"))
        }
        Some(_) => Failure::Refused(format!(
            "what answers there is no peer listener of towline: use node.listen.peer of a member, not node.listen.http ({cause})"
        )),
        None => match peers::io_error_kind(status) {
            Some(io::ErrorKind::TimedOut | io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) | None => {
                Failure::Silent(cause)
            }
            Some(_) => Failure::Nobody(cause),
        },
    }
}

fn is_about_time(error: &CertificateError) -> bool {
    matches!(
        error,
        CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }
    )
}

fn accept(
    member: v1::enrol_response::Member,
    node_name: &str,
    addresses: NodeAddresses,
) -> Result<(Identity, CertificateDer<'static>, Members), &'static str> {
    let cluster = Uuid::from_slice(&member.cluster).map_err(|_| "a cluster id that is none")?;
    let certificate = CertificateDer::from(member.certificate.to_vec());
    let says = certificates::read(&certificate).ok_or("a certificate that cannot be read")?;
    if (says.node, &says.cluster_name) != (NodeId(member.node), &member.cluster_name) {
        return Err("a certificate for another node");
    }
    let identity = Identity {
        cluster,
        cluster_name: member.cluster_name,
        node: NodeId(member.node),
        node_name: node_name.to_owned(),
        addresses,
        worker: member.worker,
    };
    let members = member.roster.map(Members::from_proto).ok_or("no members")?;
    Ok((identity, certificate, members))
}

/// What a join token carries: how to know the cluster, and how to be known to it.
pub(crate) struct Token {
    /// The certificate of the cluster's authority.
    pub(crate) authority: CertificateDer<'static>,
    /// Known to the holder of the token only; the cluster keeps its hash.
    pub(crate) secret: [u8; SECRET_BYTES],
}

impl Token {
    /// Makes a token with a fresh secret.
    pub(crate) fn make(authority: &CertificateDer<'static>) -> Result<Self, ClusterError> {
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut secret).map_err(|error| ClusterError::Token {
            reason: format!("cannot be made: the system has no randomness ({error})"),
        })?;
        Ok(Self { authority: authority.clone(), secret })
    }

    /// The hash under which the cluster knows the token.
    pub(crate) fn hash(&self) -> String {
        blake3::hash(&self.secret).to_hex().to_string()
    }

    /// The token as text: base64 of its version, secret and authority.
    pub(crate) fn text(&self) -> String {
        URL_SAFE_NO_PAD.encode([&[TOKEN_VERSION], self.secret.as_slice(), self.authority.as_ref()].concat())
    }

    pub(crate) fn parse(text: &str) -> Result<Self, ClusterError> {
        const AGAIN: &str = "copy the whole line that `towline cluster join-token` printed";
        let wrong = |reason: &str| ClusterError::Token { reason: format!("{reason}: {AGAIN}") };
        let text = text.trim();
        if text.is_empty() {
            return Err(wrong("is empty"));
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| {
            let alphabet = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            wrong(if text.bytes().all(alphabet) { "was cut off or changed" } else { "is no join token" })
        })?;
        let (version, rest) = bytes.split_first().ok_or_else(|| wrong("is empty"))?;
        if *version != TOKEN_VERSION {
            return Err(wrong("is no join token, or was made by another version of towline"));
        }
        let (secret, authority) = rest.split_first_chunk::<SECRET_BYTES>().ok_or_else(|| wrong("was cut off"))?;
        let authority = CertificateDer::from(authority.to_vec());
        credentials::joining_config(&authority).map_err(|_| wrong("was cut off or changed"))?;
        Ok(Self { authority, secret: *secret })
    }
}

/// What a joining node calls its token, without giving it away.
pub(crate) fn token_name(token_hash: &str) -> [u8; blake3::OUT_LEN] {
    blake3::derive_key("towline join token: its name", token_hash.as_bytes())
}

/// Shows that who made a request knows the token, and covers all that it asks for.
pub(crate) fn request_proof(token_hash: &str, request: &v1::EnrolRequest) -> blake3::Hash {
    let mut proof = Proof::begin("towline join token: request", token_hash);
    proof.add(&request.request);
    proof.add(request.name.as_bytes());
    proof.add(request.http.as_bytes());
    proof.add(request.peer.as_bytes());
    proof.add(&request.certificate_request);
    proof.add(request.cluster_name.as_bytes());
    proof.0.finalize()
}

/// Shows that who answered a request knows the token, and covers all that it says.
pub(crate) fn member_proof(
    token_hash: &str,
    request_proof: &[u8],
    member: &v1::enrol_response::Member,
) -> blake3::Hash {
    let mut proof = Proof::begin("towline join token: member", token_hash);
    proof.add(request_proof);
    proof.add(&member.cluster);
    proof.add(member.cluster_name.as_bytes());
    proof.add(&member.node.to_be_bytes());
    proof.add(&member.certificate);
    let roster = member.roster.as_ref();
    proof.add(&roster.map_or(0, |roster| roster.index).to_be_bytes());
    for node in roster.map(|roster| roster.nodes.as_slice()).unwrap_or_default() {
        proof.add(&node.id.to_be_bytes());
        proof.add(node.key.as_bytes());
        proof.add(node.peer.as_bytes());
        // What an earlier version does not know is not there as long as all nodes are such as it knows.
        if node.worker {
            proof.add(b"worker");
        }
    }
    if member.worker {
        proof.add(b"is a worker");
    }
    proof.0.finalize()
}

/// Compares in a time that does not depend on what is different.
pub(crate) fn proves(proof: &[u8], wanted: blake3::Hash) -> bool {
    <[u8; blake3::OUT_LEN]>::try_from(proof).is_ok_and(|proof| blake3::Hash::from(proof) == wanted)
}

struct Proof(blake3::Hasher);

impl Proof {
    fn begin(context: &str, token_hash: &str) -> Self {
        Self(blake3::Hasher::new_keyed(&blake3::derive_key(context, token_hash.as_bytes())))
    }

    /// With its length, so that no two lists of fields look the same.
    fn add(&mut self, field: &[u8]) {
        self.0.update(&(field.len() as u64).to_be_bytes());
        self.0.update(field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::{Authority, make_key};

    fn token() -> Token {
        Token::make(&Authority::make("prod", &make_key().unwrap()).unwrap()).unwrap()
    }

    fn request() -> v1::EnrolRequest {
        v1::EnrolRequest { name: "b".into(), peer: "10.0.0.2:7421".into(), ..Default::default() }
    }

    #[test]
    fn a_token_comes_back_from_its_text() {
        let token = token();
        let read = Token::parse(&token.text()).unwrap();
        assert_eq!((read.secret, &read.authority), (token.secret, &token.authority));
    }

    #[test]
    fn what_is_no_token_is_refused_with_what_to_do() {
        let text = token().text();
        for (wrong, reason) in [
            ("", "is empty"),
            ("  \n", "is empty"),
            ("hello world!", "is no join token"),
            ("aGVsbG8", "is no join token"),
            (&text[..30], "was cut off"),
            (&text[..text.len() / 2], "was cut off or changed"),
            (&text[..text.len() - 1], "was cut off or changed"),
            (&text[..text.len() - 4], "was cut off or changed"),
        ] {
            let said = Token::parse(wrong).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(said.contains(reason) && said.contains("towline cluster join-token"), "{wrong}: {said}");
        }
    }

    #[test]
    fn a_request_is_proved_by_its_token_alone_and_whole() {
        let (hash, request) = (token().hash(), request());
        let proof = *request_proof(&hash, &request).as_bytes();
        assert!(proves(&proof, request_proof(&hash, &request)));
        assert!(!proves(&proof, request_proof(&token().hash(), &request)), "with another token");
        let changed = v1::EnrolRequest { certificate_request: vec![1].into(), ..request.clone() };
        assert!(!proves(&proof, request_proof(&hash, &changed)), "for another key");
        assert!(!proves(&proof[1..], request_proof(&hash, &request)));
        assert_ne!(token_name(&hash), proof);
    }

    #[test]
    fn an_answer_is_proved_to_the_one_who_asked() {
        let hash = token().hash();
        let asked = *request_proof(&hash, &request()).as_bytes();
        let node = v1::roster::Node { id: 1, key: "k".into(), peer: "p".into(), worker: false };
        let roster = Some(v1::Roster { index: 7, nodes: vec![node.clone()] });
        let member = v1::enrol_response::Member { node: 9, roster, ..Default::default() };
        let proof = *member_proof(&hash, &asked, &member).as_bytes();
        assert!(proves(&proof, member_proof(&hash, &asked, &member)));
        assert!(!proves(&proof, member_proof(&hash, &[0; 32], &member)), "to another request");
        let forged = v1::Roster { index: 7, nodes: vec![v1::roster::Node { key: "other".into(), ..node }] };
        let forged = v1::enrol_response::Member { roster: Some(forged), ..member.clone() };
        assert!(!proves(&proof, member_proof(&hash, &asked, &forged)), "with other members");
        let forged = v1::enrol_response::Member { worker: true, ..member };
        assert!(!proves(&proof, member_proof(&hash, &asked, &forged)), "as a worker");
    }
}

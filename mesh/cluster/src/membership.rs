//! Who belongs to the cluster: founding, join tokens, enrolment, and the identity that a data folder holds.
//!
//! ```text
//! data/identity.json     who this node is; written last, so that a folder with it is complete
//! data/joining.json      the request that a join repeats until it is answered
//! data/tls/              authority.pem, node.pem, node.key (and authority.key on the node that founded the cluster)
//! data/log/owner         whose log it is
//! data/blobs/            content that is too large for the log
//! data/started           says that there was a log
//! data/lock              held by the running process
//! ```

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use towline_core::{NodeAddresses, NodeId};
use towline_proto::v1;
use uuid::Uuid;

use crate::{
    ClusterError,
    certificates::{self, Authority, CertificateRequest, Credentials},
    kill_points, peers,
};

/// The first node of a cluster, which keeps the key of its authority.
pub(crate) const FOUNDER: NodeId = NodeId(1);
/// A join is tried again for this long: the member may be starting, or its cluster electing a leader.
const JOIN_PATIENCE: Duration = Duration::from_secs(30);
/// Between two tries of a join.
const JOIN_PAUSE: Duration = Duration::from_millis(500);
/// One try of a join; it holds a proposal, whose own deadline is shorter.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest name of a cluster: it is a label of a DNS name.
const MAX_CLUSTER_NAME: usize = 40;
/// Longest name of a node: it is shown in tables.
const MAX_NODE_NAME: usize = 64;
/// Bytes of a join token's secret: not to be guessed.
const SECRET_BYTES: usize = 32;
/// The version of the join token that this binary makes and reads.
const TOKEN_VERSION: u8 = 1;

/// Whose data folder this is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The cluster.
    pub cluster: Uuid,
    /// Its name.
    pub cluster_name: String,
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub node_name: String,
    /// Where it was reached when it became a member.
    pub addresses: NodeAddresses,
}

/// Founds a cluster in an empty data folder: makes its certificate authority, the keys of node 1 and its identity.
///
/// # Errors
/// When the folder holds an identity already, or cannot be written.
pub fn found(
    data: &Path,
    cluster_name: &str,
    node_name: &str,
    addresses: NodeAddresses,
) -> Result<Identity, ClusterError> {
    found_with(data, Founding { cluster_name, node: FOUNDER, node_name, addresses }, |_, _| Ok(()))
}

/// What a new cluster begins with.
pub(crate) struct Founding<'a> {
    pub(crate) cluster_name: &'a str,
    /// Id of its first node.
    pub(crate) node: NodeId,
    pub(crate) node_name: &'a str,
    pub(crate) addresses: NodeAddresses,
}

/// Founds a cluster; `prepare` is given the identity and the folder for snapshots before the data folder is complete.
pub(crate) fn found_with(
    data: &Path,
    founding: Founding<'_>,
    prepare: impl FnOnce(&Identity, &Path) -> Result<(), ClusterError>,
) -> Result<Identity, ClusterError> {
    let Founding { cluster_name, node, node_name, addresses } = founding;
    check_cluster_name(cluster_name)?;
    check_node(node_name, &addresses)?;
    let folder = Folder::open_empty(data)?;
    let authority_key = certificates::make_key()?;
    let root = Authority::make(cluster_name, &authority_key)?;
    folder.write_private("tls/authority.key", authority_key.serialize_pem().as_bytes())?;
    let authority = Authority::open(&root, authority_key)?;
    let key = certificates::make_key()?;
    let certificate = authority.sign(CertificateRequest::of(&key)?, node, cluster_name)?;
    folder.write_private("tls/node.key", key.serialize_pem().as_bytes())?;
    let identity = Identity {
        cluster: Uuid::now_v7(),
        cluster_name: cluster_name.to_owned(),
        node,
        node_name: node_name.to_owned(),
        addresses,
    };
    prepare(&identity, &folder.snapshots())?;
    folder.complete(&identity, &root, &certificate)?;
    Ok(identity)
}

/// Enrols this node at a member of a cluster with a join token, and keeps what it answered in the data folder. A join that
/// was cut off may be repeated with the same token: it stays the same node.
///
/// # Errors
/// When the folder holds an identity already, or the member is not reached or refuses.
pub async fn join(
    data: &Path,
    address: &str,
    token: &str,
    node_name: &str,
    addresses: NodeAddresses,
) -> Result<Identity, ClusterError> {
    check_node(node_name, &addresses)?;
    let token = Token::parse(token)?;
    let folder = Folder::open_empty(data)?;
    let (request_id, key) = folder.joining()?;
    let request = v1::EnrolRequest {
        secret: token.secret.to_vec().into(),
        request: request_id.as_bytes().to_vec().into(),
        name: node_name.to_owned(),
        http: addresses.http.clone(),
        peer: addresses.peer.clone(),
        certificate_request: certificates::certificate_request(&key)?.into(),
    };
    let member = enrol(address, &token.authority, request).await?;
    let (identity, certificate) = accept(address, member, node_name, addresses)?;
    Credentials::new(token.authority.clone(), certificate.clone(), &key)?;
    folder.complete(&identity, &token.authority, &certificate)?;
    Ok(identity)
}

/// The identity that a data folder holds, if any.
///
/// # Errors
/// When it is there and cannot be read.
pub fn identity(data: &Path) -> Result<Option<Identity>, ClusterError> {
    let path = data.join("identity.json");
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ClusterError::File { action: "read", path, source }),
    };
    let identity = serde_json::from_slice(&text).map_err(|error| ClusterError::File {
        action: "read the identity in",
        path,
        source: error.into(),
    })?;
    Ok(Some(identity))
}

/// The node that a certificate of this cluster names.
pub fn peer_node_id(certificate: &CertificateDer<'_>) -> Option<NodeId> {
    certificates::named_node(certificate).map(|(node, _)| node)
}

/// Tries until the member answers, or the patience ends. A refusal is an answer.
async fn enrol(
    address: &str,
    authority: &CertificateDer<'static>,
    request: v1::EnrolRequest,
) -> Result<v1::enrol_response::Member, ClusterError> {
    let mut address = address.to_owned();
    let give_up = Instant::now() + JOIN_PATIENCE;
    loop {
        let error = match try_enrol(&address, authority, request.clone()).await {
            Ok(v1::enrol_response::Result::Member(member)) => return Ok(member),
            Ok(v1::enrol_response::Result::AskInstead(other)) if other != address => {
                tracing::info!(asked = address, instead = other, "join is sent on");
                address = other;
                continue;
            }
            Ok(v1::enrol_response::Result::AskInstead(_)) => {
                let reason = "it cannot sign certificates, and names no node that can".to_owned();
                ClusterError::Enrol { address: address.clone(), reason, reached: true }
            }
            Err(Failure::Refused(reason)) => return Err(ClusterError::Enrol { address, reason, reached: true }),
            Err(Failure::Passing(reason)) => ClusterError::Enrol { address: address.clone(), reason, reached: true },
            Err(Failure::Unreached(reason)) => ClusterError::Enrol { address: address.clone(), reason, reached: false },
        };
        if Instant::now() + JOIN_PAUSE >= give_up {
            return Err(error);
        }
        tokio::time::sleep(JOIN_PAUSE).await;
    }
}

enum Failure {
    Refused(String),
    Passing(String),
    Unreached(String),
}

async fn try_enrol(
    address: &str,
    authority: &CertificateDer<'static>,
    request: v1::EnrolRequest,
) -> Result<v1::enrol_response::Result, Failure> {
    let channel = peers::joining_channel(address, authority).map_err(|error| Failure::Refused(error.to_string()))?;
    let mut client = v1::enrol_client::EnrolClient::new(channel);
    let answer = tokio::time::timeout(JOIN_TIMEOUT, client.enrol(request)).await;
    match answer {
        Err(_) => Err(Failure::Unreached(format!("no answer within {JOIN_TIMEOUT:?}"))),
        Ok(Ok(response)) => {
            response.into_inner().result.ok_or_else(|| Failure::Refused("answered without a result".to_owned()))
        }
        Ok(Err(status)) => Err(failure(&status)),
    }
}

fn failure(status: &tonic::Status) -> Failure {
    if peers::never_sent(status) {
        let cause = peers::root_cause(status);
        return if cause.contains("certificate") {
            Failure::Refused(format!("it is not a member of the cluster that the token is for ({cause})"))
        } else {
            Failure::Unreached(cause)
        };
    }
    match status.code() {
        tonic::Code::Unavailable | tonic::Code::Unknown | tonic::Code::DeadlineExceeded | tonic::Code::Cancelled => {
            Failure::Passing(status.message().to_owned())
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
        | tonic::Code::Unimplemented
        | tonic::Code::Internal
        | tonic::Code::DataLoss
        | tonic::Code::Unauthenticated => Failure::Refused(status.message().to_owned()),
    }
}

fn accept(
    address: &str,
    member: v1::enrol_response::Member,
    node_name: &str,
    addresses: NodeAddresses,
) -> Result<(Identity, CertificateDer<'static>), ClusterError> {
    let malformed = |reason: &str| ClusterError::Enrol {
        address: address.to_owned(),
        reason: format!("answered with {reason}"),
        reached: true,
    };
    let cluster = Uuid::from_slice(&member.cluster).map_err(|_| malformed("a cluster id that is none"))?;
    let certificate = CertificateDer::from(member.certificate.to_vec());
    let named = certificates::named_node(&certificate);
    if named != Some((NodeId(member.node), member.cluster_name.clone())) {
        return Err(malformed("a certificate for another node"));
    }
    let identity = Identity {
        cluster,
        cluster_name: member.cluster_name,
        node: NodeId(member.node),
        node_name: node_name.to_owned(),
        addresses,
    };
    Ok((identity, certificate))
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
        secret_hash(&self.secret)
    }

    /// The token as text: base64 of its version, secret and authority.
    pub(crate) fn text(&self) -> String {
        URL_SAFE_NO_PAD.encode([&[TOKEN_VERSION], self.secret.as_slice(), self.authority.as_ref()].concat())
    }

    pub(crate) fn parse(text: &str) -> Result<Self, ClusterError> {
        let wrong = |reason: &str| ClusterError::Token { reason: reason.to_owned() };
        let bytes = URL_SAFE_NO_PAD.decode(text.trim()).map_err(|_| wrong("is not base64: was it cut off?"))?;
        let (version, rest) = bytes.split_first().ok_or_else(|| wrong("is empty"))?;
        if *version != TOKEN_VERSION {
            return Err(wrong("was made by another version of towline"));
        }
        let (secret, authority) = rest.split_first_chunk::<SECRET_BYTES>().ok_or_else(|| wrong("was cut off"))?;
        let authority = CertificateDer::from(authority.to_vec());
        certificates::joining_config(&authority).map_err(|_| wrong("was cut off or changed"))?;
        Ok(Self { authority, secret: *secret })
    }
}

/// The hash of a join token's secret, as the state keeps it.
pub(crate) fn secret_hash(secret: &[u8]) -> String {
    blake3::hash(secret).to_hex().to_string()
}

fn check_cluster_name(name: &str) -> Result<(), ClusterError> {
    let wrong = |reason| Err(ClusterError::Invalid { what: "cluster name", value: name.to_owned(), reason });
    let accepted = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > MAX_CLUSTER_NAME {
        return wrong("must have 1 to 40 characters");
    }
    if !name.chars().all(accepted) || name.starts_with('-') || name.ends_with('-') {
        return wrong("may have lower-case letters, digits and inner '-' only: it is part of DNS names");
    }
    Ok(())
}

/// Checks how a node names itself and says where it is reached.
pub(crate) fn check_node(name: &str, addresses: &NodeAddresses) -> Result<(), ClusterError> {
    if name.is_empty() || name.chars().count() > MAX_NODE_NAME || name.chars().any(char::is_control) {
        let reason = "must have 1 to 64 printable characters";
        return Err(ClusterError::Invalid { what: "node name", value: name.to_owned(), reason });
    }
    if !peers::is_host_and_port(&addresses.peer) {
        let reason = "must be HOST:PORT, as other nodes reach this one";
        return Err(ClusterError::Invalid { what: "peer address", value: addresses.peer.clone(), reason });
    }
    Ok(())
}

/// A data folder that this process holds. The lock ends with the value, or with the process.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    _lock: File,
}

#[derive(Serialize, Deserialize)]
struct Joining {
    request: Uuid,
}

impl Folder {
    /// Opens the folder of a node that belongs to a cluster.
    pub(crate) fn open(data: &Path) -> Result<(Self, Identity, Credentials), ClusterError> {
        if !data.is_dir() {
            return Err(ClusterError::NoIdentity { path: data.to_owned() });
        }
        let folder = Self::lock(data)?;
        let Some(identity) = identity(data)? else {
            return Err(ClusterError::NoIdentity { path: data.to_owned() });
        };
        let root = folder.read_certificate("tls/authority.pem")?;
        let certificate = folder.read_certificate("tls/node.pem")?;
        let key = certificates::read_key(&folder.read_text("tls/node.key")?)?;
        let named = certificates::named_node(&certificate);
        if named.as_ref() != Some(&(identity.node, identity.cluster_name.clone())) {
            let (node, cluster) = named.unwrap_or_default();
            let reason = format!(
                "identity.json says node {} of {:?}, the certificate says node {node} of {cluster:?}",
                identity.node, identity.cluster_name
            );
            return Err(ClusterError::Foreign { path: data.to_owned(), reason });
        }
        let credentials = Credentials::new(root, certificate, &key)
            .map_err(|error| ClusterError::Foreign { path: data.to_owned(), reason: error.to_string() })?;
        folder.claim(&identity)?;
        Ok((folder, identity, credentials))
    }

    /// The authority's key, on the node that founded the cluster.
    pub(crate) fn authority(&self, credentials: &Credentials) -> Result<Option<Authority>, ClusterError> {
        if !self.path.join("tls/authority.key").exists() {
            return Ok(None);
        }
        let key = certificates::read_key(&self.read_text("tls/authority.key")?)?;
        Authority::open(credentials.authority(), key).map(Some)
    }

    /// Where the log lies.
    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Where blobs lie.
    pub(crate) fn blobs(&self) -> PathBuf {
        self.path.join("blobs")
    }

    /// Where snapshots lie.
    pub(crate) fn snapshots(&self) -> PathBuf {
        self.path.join("snapshots")
    }

    fn open_empty(data: &Path) -> Result<Self, ClusterError> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(data).map_err(file("create", data))?;
        let folder = Self::lock(data)?;
        if let Some(identity) = identity(data)? {
            return Err(ClusterError::Occupied {
                path: data.to_owned(),
                node: identity.node,
                cluster: identity.cluster_name,
            });
        }
        if folder.log().exists() || folder.snapshots().exists() {
            let reason = "holds the log of a node whose identity is gone: use an empty folder".to_owned();
            return Err(ClusterError::Foreign { path: data.to_owned(), reason });
        }
        let tls = data.join("tls");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&tls).map_err(file("create", &tls))?;
        Ok(folder)
    }

    fn lock(data: &Path) -> Result<Self, ClusterError> {
        let path = data.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(file("open", &path))?;
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path: data.to_owned(), _lock: lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(ClusterError::Locked { path: data.to_owned() }),
            Err(error) => Err(ClusterError::File { action: "lock", path, source: error.into() }),
        }
    }

    /// Marks the log as this node's, or refuses another node's. A node whose log is gone is refused too: a voter that
    /// forgot what it promised could undo what was committed.
    fn claim(&self, identity: &Identity) -> Result<(), ClusterError> {
        let log = self.log();
        let owner = log.join("owner");
        let mine = format!("cluster {} node {}\n", identity.cluster, identity.node);
        let foreign = |reason| Err(ClusterError::Foreign { path: self.path.clone(), reason });
        match fs::read_to_string(&owner) {
            Ok(text) if text == mine => Ok(()),
            Ok(text) => foreign(format!("its log belongs to {}, its identity says {}", text.trim(), mine.trim())),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(ClusterError::File { action: "read", path: owner, source: error })
            }
            Err(_) if self.path.join("started").exists() => {
                foreign("its log is gone: join with an empty folder, as a new node".to_owned())
            }
            Err(_) => {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(&log).map_err(file("create", &log))?;
                self.write_private("log/owner", mine.as_bytes())?;
                self.write_private("started", mine.as_bytes())
            }
        }
    }

    /// The request and key of a join, the same after a restart.
    fn joining(&self) -> Result<(Uuid, rcgen::KeyPair), ClusterError> {
        if self.path.join("joining.json").exists() {
            let path = self.path.join("joining.json");
            let joining: Joining = serde_json::from_str(&self.read_text("joining.json")?)
                .map_err(|error| ClusterError::File { action: "read", path, source: error.into() })?;
            let key = certificates::read_key(&self.read_text("tls/node.key")?)?;
            return Ok((joining.request, key));
        }
        let key = certificates::make_key()?;
        let request = Uuid::now_v7();
        self.write_private("tls/node.key", key.serialize_pem().as_bytes())?;
        self.write_json("joining.json", &Joining { request })?;
        Ok((request, key))
    }

    /// Writes what makes the folder a node's, its identity last.
    fn complete(
        &self,
        identity: &Identity,
        root: &CertificateDer<'static>,
        certificate: &CertificateDer<'static>,
    ) -> Result<(), ClusterError> {
        self.write_private("tls/authority.pem", pem("CERTIFICATE", root).as_bytes())?;
        self.write_private("tls/node.pem", pem("CERTIFICATE", certificate).as_bytes())?;
        self.write_json("identity.json", identity)
    }

    fn read_text(&self, name: &str) -> Result<String, ClusterError> {
        let path = self.path.join(name);
        fs::read_to_string(&path).map_err(|source| ClusterError::File { action: "read", path, source })
    }

    fn read_certificate(&self, name: &str) -> Result<CertificateDer<'static>, ClusterError> {
        let text = self.read_text(name)?;
        CertificateDer::from_pem_slice(text.as_bytes()).map_err(|error| ClusterError::Certificate {
            action: "read a certificate of this node",
            reason: format!("{name}: {error}"),
        })
    }

    fn write_json(&self, name: &str, value: &impl Serialize) -> Result<(), ClusterError> {
        let text = serde_json::to_vec_pretty(value).map_err(|error| ClusterError::File {
            action: "encode",
            path: self.path.join(name),
            source: error.into(),
        })?;
        self.write_private(name, &text)
    }

    /// Writes a file that only this user may read, whole or not at all.
    fn write_private(&self, name: &str, bytes: &[u8]) -> Result<(), ClusterError> {
        let path = self.path.join(name);
        let draft = path.with_extension("draft");
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&draft)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            kill_points::pass("folder-file-drafted");
            fs::rename(&draft, &path)?;
            kill_points::pass("folder-file-renamed");
            File::open(path.parent().unwrap_or(&self.path))?.sync_all()
        };
        write().map_err(|source| ClusterError::File { action: "write", path: path.clone(), source })
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    const LINE: usize = 64;
    let body = base64::engine::general_purpose::STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in body.as_bytes().chunks(LINE) {
        text.extend(line.iter().map(|byte| char::from(*byte)));
        text.push('\n');
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ClusterError {
    let path = path.to_owned();
    move |source| ClusterError::File { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn addresses() -> NodeAddresses {
        NodeAddresses { http: "http://127.0.0.1:7420".into(), peer: "127.0.0.1:7421".into() }
    }

    #[test]
    fn a_founded_folder_opens_and_its_keys_are_private() {
        let data = tempfile::tempdir().unwrap();
        let founded = found(data.path(), "prod", "a", addresses()).unwrap();
        let (folder, identity, credentials) = Folder::open(data.path()).unwrap();
        assert_eq!(identity, founded);
        assert!(folder.authority(&credentials).unwrap().is_some());
        for key in ["tls/authority.key", "tls/node.key", "identity.json"] {
            let mode = fs::metadata(data.path().join(key)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{key}");
        }
    }

    #[test]
    fn a_folder_is_founded_once() {
        let data = tempfile::tempdir().unwrap();
        found(data.path(), "prod", "a", addresses()).unwrap();
        let again = found(data.path(), "other", "a", addresses());
        assert!(matches!(again, Err(ClusterError::Occupied { node: FOUNDER, .. })), "{again:?}");
    }

    #[test]
    fn a_folder_in_use_is_refused() {
        let data = tempfile::tempdir().unwrap();
        found(data.path(), "prod", "a", addresses()).unwrap();
        let _held = Folder::open(data.path()).unwrap();
        assert!(matches!(Folder::open(data.path()), Err(ClusterError::Locked { .. })));
    }

    #[test]
    fn an_identity_beside_the_certificate_of_another_cluster_is_refused() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        found(one.path(), "prod", "a", addresses()).unwrap();
        found(other.path(), "test", "a", addresses()).unwrap();
        fs::copy(other.path().join("identity.json"), one.path().join("identity.json")).unwrap();
        assert!(matches!(Folder::open(one.path()), Err(ClusterError::Foreign { .. })));
    }

    #[test]
    fn a_log_of_another_cluster_is_refused() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        found(one.path(), "prod", "a", addresses()).unwrap();
        found(other.path(), "prod", "a", addresses()).unwrap();
        drop(Folder::open(other.path()).unwrap());
        fs::create_dir(one.path().join("log")).unwrap();
        fs::copy(other.path().join("log/owner"), one.path().join("log/owner")).unwrap();
        assert!(matches!(Folder::open(one.path()), Err(ClusterError::Foreign { .. })));
    }

    #[test]
    fn a_node_whose_log_is_gone_is_refused() {
        let data = tempfile::tempdir().unwrap();
        found(data.path(), "prod", "a", addresses()).unwrap();
        drop(Folder::open(data.path()).unwrap());
        fs::remove_dir_all(data.path().join("log")).unwrap();
        assert!(matches!(Folder::open(data.path()), Err(ClusterError::Foreign { .. })));
    }

    #[test]
    fn a_token_comes_back_from_its_text_and_a_cut_one_does_not() {
        let key = certificates::make_key().unwrap();
        let token = Token::make(&Authority::make("prod", &key).unwrap()).unwrap();
        let text = token.text();
        let read = Token::parse(&text).unwrap();
        assert_eq!((read.secret, &read.authority), (token.secret, &token.authority));
        assert!(Token::parse(&text[..text.len() / 2]).is_err());
        assert!(Token::parse("").is_err());
    }

    #[test]
    fn names_that_are_no_part_of_dns_names_are_refused() {
        for name in ["", "Prod", "a.b", "-a", "a-", "a b"] {
            assert!(check_cluster_name(name).is_err(), "{name}");
        }
        check_cluster_name("prod-1").unwrap();
    }
}

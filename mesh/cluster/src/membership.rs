//! Founding a cluster, and the identity that a data folder holds.
//!
//! ```text
//! data/identity.json     who this node is; written last, so that a folder with it is complete
//! data/joining.json      the request that a join repeats until it is answered
//! data/tls/              authority.pem, node.pem, node.key, members.json; authority.key on voters
//! data/log/owner         whose log it is; a worker has none
//! data/blobs/            content that is too large for the log
//! data/started           says that there was a log; not on a worker
//! data/lock              held by the running process
//! ```

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::Engine;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde::{Deserialize, Serialize};
use towline_core::{NodeAddresses, NodeId};
use uuid::Uuid;

pub use crate::joining::{Joining, join, join_as};
use crate::{
    ClusterError,
    certificates::{self, Authority, CERTIFICATE_LIFE, CertificateRequest, CertifiedNode, Life},
    credentials::Credentials,
    kill_points,
    leader::wall_clock,
    peers,
    roster::{Member, Members, Roster},
};

/// The first node of a cluster that is founded empty.
pub(crate) const FOUNDER: NodeId = NodeId(1);
/// Longest name of a cluster: it is a label of a DNS name.
const MAX_CLUSTER_NAME: usize = 40;
/// Longest name of a node: it is shown in tables.
const MAX_NODE_NAME: usize = 64;
/// The key of the cluster's authority, on voters.
const AUTHORITY_KEY: &str = "tls/authority.key";
/// Who is known by what key, for a start: the log is read later.
const MEMBERS: &str = "tls/members.json";

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
    /// Whether it keeps no log, and is fed by the others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub worker: bool,
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
    folder.keep_authority_key(&authority_key.serialize_pem())?;
    let authority = Authority::open(&root, authority_key)?;
    let key = certificates::make_key()?;
    let life = Life { now: wall_clock(), length: CERTIFICATE_LIFE };
    let certificate = authority.sign(CertificateRequest::of(&key)?, node, cluster_name, life)?;
    let me = Member { id: node, key: Some(certificates::node_key(&key)), peer: addresses.peer.clone(), worker: false };
    folder.write_private("tls/node.key", key.serialize_pem().as_bytes())?;
    let identity = Identity {
        cluster: Uuid::now_v7(),
        cluster_name: cluster_name.to_owned(),
        node,
        node_name: node_name.to_owned(),
        addresses,
        worker: false,
    };
    prepare(&identity, &folder.snapshots())?;
    folder.keep_members(&Members { index: node.0, nodes: vec![me] })?;
    folder.complete(&identity, &root, &certificate)?;
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

/// What a certificate of this cluster says of the node that has it.
pub fn certified_node(certificate: &CertificateDer<'_>) -> Option<CertifiedNode> {
    certificates::read(certificate)
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
struct JoinRequest {
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
        let key = folder.read_key("tls/node.key")?;
        let roster = Arc::new(Roster::new(folder.members()?));
        let credentials = Credentials::new(root, certificate, key, roster)
            .map_err(|error| ClusterError::Foreign { path: data.to_owned(), reason: error.to_string() })?;
        let CertifiedNode { node, cluster_name, .. } = credentials.says();
        if (node, &cluster_name) != (identity.node, &identity.cluster_name) {
            let reason = format!(
                "identity.json says node {} of {:?}, the certificate says node {node} of {cluster_name:?}",
                identity.node, identity.cluster_name
            );
            return Err(ClusterError::Foreign { path: data.to_owned(), reason });
        }
        if !identity.worker {
            folder.claim(&identity)?;
        }
        Ok((folder, identity, credentials))
    }

    /// The cluster's authority, where its key lies.
    pub(crate) fn authority(&self, credentials: &Credentials) -> Result<Option<Authority>, ClusterError> {
        if !self.path.join(AUTHORITY_KEY).exists() {
            return Ok(None);
        }
        let key = self.read_key(AUTHORITY_KEY)?;
        Authority::open(credentials.authority(), key).map(Some)
    }

    /// Keeps the key of the cluster's authority, so that this node can sign.
    pub(crate) fn keep_authority_key(&self, pem: &str) -> Result<(), ClusterError> {
        self.write_private(AUTHORITY_KEY, pem.as_bytes())
    }

    /// Keeps a renewed certificate of this node.
    pub(crate) fn keep_certificate(&self, certificate: &CertificateDer<'static>) -> Result<(), ClusterError> {
        self.write_private("tls/node.pem", pem("CERTIFICATE", certificate).as_bytes())
    }

    /// Keeps who is a member, for the next start.
    pub(crate) fn keep_members(&self, members: &Members) -> Result<(), ClusterError> {
        self.write_json(MEMBERS, members)
    }

    /// Who was a member when that was kept; none in a folder of an earlier version.
    fn members(&self) -> Result<Option<Members>, ClusterError> {
        let path = self.path.join(MEMBERS);
        if !path.exists() {
            return Ok(None);
        }
        let members = serde_json::from_str(&self.read_text(MEMBERS)?);
        members.map(Some).map_err(|error| ClusterError::File { action: "read", path, source: error.into() })
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

    pub(crate) fn open_empty(data: &Path) -> Result<Self, ClusterError> {
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
    pub(crate) fn joining(&self) -> Result<(Uuid, rcgen::KeyPair), ClusterError> {
        if self.path.join("joining.json").exists() {
            let path = self.path.join("joining.json");
            let joining: JoinRequest = serde_json::from_str(&self.read_text("joining.json")?)
                .map_err(|error| ClusterError::File { action: "read", path, source: error.into() })?;
            let key = self.read_key("tls/node.key")?;
            return Ok((joining.request, key));
        }
        let key = certificates::make_key()?;
        let request = Uuid::now_v7();
        self.write_private("tls/node.key", key.serialize_pem().as_bytes())?;
        self.write_json("joining.json", &JoinRequest { request })?;
        Ok((request, key))
    }

    /// Writes what makes the folder a node's, its identity last.
    pub(crate) fn complete(
        &self,
        identity: &Identity,
        root: &CertificateDer<'static>,
        certificate: &CertificateDer<'static>,
    ) -> Result<(), ClusterError> {
        self.write_private("tls/authority.pem", pem("CERTIFICATE", root).as_bytes())?;
        self.keep_certificate(certificate)?;
        self.write_json("identity.json", identity)
    }

    fn read_text(&self, name: &str) -> Result<String, ClusterError> {
        let path = self.path.join(name);
        fs::read_to_string(&path).map_err(|source| ClusterError::File { action: "read", path, source })
    }

    fn read_key(&self, name: &str) -> Result<rcgen::KeyPair, ClusterError> {
        certificates::read_key(&self.read_text(name)?).map_err(|mut error| {
            if let ClusterError::Certificate { reason, .. } = &mut error {
                *reason = format!("{}: {reason}", self.path.join(name).display());
            }
            error
        })
    }

    fn read_certificate(&self, name: &str) -> Result<CertificateDer<'static>, ClusterError> {
        let text = self.read_text(name)?;
        CertificateDer::from_pem_slice(text.as_bytes()).map_err(|error| ClusterError::Certificate {
            action: "read a certificate of this node",
            reason: format!("{}: {error}", self.path.join(name).display()),
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
    fn a_key_that_cannot_be_read_is_said_with_its_file() {
        let data = tempfile::tempdir().unwrap();
        found(data.path(), "prod", "a", addresses()).unwrap();
        let key = data.path().join("tls/node.key");
        fs::write(&key, "no key").unwrap();
        let said = Folder::open(data.path()).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains(&*key.to_string_lossy()), "{said}");
    }

    #[test]
    fn a_founded_folder_opens_and_its_keys_are_private() {
        let data = tempfile::tempdir().unwrap();
        let founded = found(data.path(), "prod", "a", addresses()).unwrap();
        let (folder, identity, credentials) = Folder::open(data.path()).unwrap();
        assert_eq!(identity, founded);
        assert!(folder.authority(&credentials).unwrap().is_some());
        for key in ["tls/authority.key", "tls/node.key", "tls/members.json", "identity.json"] {
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
    fn names_that_are_no_part_of_dns_names_are_refused() {
        for name in ["", "Prod", "a.b", "-a", "a-", "a b"] {
            assert!(check_cluster_name(name).is_err(), "{name}");
        }
        check_cluster_name("prod-1").unwrap();
    }
}

//! Three etcd members beside our nodes, and the client of the two calls that are measured.
//!
//! The messages are the fields of etcd's public API that are used here, under their numbers.

use std::{
    fs::{self, File, OpenOptions},
    io,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use http::uri::PathAndQuery;
use tokio::process::{Child, ChildStdin, Command};
use tonic::{
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::{BenchError, load::Worker};

/// Members, as many as we have nodes.
const MEMBERS: usize = 3;

/// How long the members may take to elect a leader.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// How often they are asked.
const READY_POLL: Duration = Duration::from_millis(100);

/// How long they may take to stop.
const STOP_WITHIN: Duration = Duration::from_secs(8);

/// Every put of a bench stays in etcd's history: its default of 2 GiB would end a long one.
const QUOTA_BYTES: &str = "8589934592";

/// Runs a program until standard input ends, and writes its process id to a file: so that no member outlives this
/// process, however that ends.
const WITH_STDIN: &str = "pid=$1; shift; \"$@\" & echo $! > \"$pid\"; cat > /dev/null; kill $!; wait $!";

#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResponseHeader {
    #[prost(uint64, tag = "2")]
    member_id: u64,
    #[prost(int64, tag = "3")]
    revision: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    version: String,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

/// One connection to one member.
#[derive(Clone)]
pub(super) struct EtcdClient(Grpc<Channel>);

impl EtcdClient {
    /// Connects when it is first used.
    pub(super) fn new(url: &str) -> Result<Self, BenchError> {
        let endpoint =
            Endpoint::from_shared(url.to_owned()).map_err(|error| failed("make a client of etcd", &error))?;
        Ok(Self(Grpc::new(endpoint.tcp_nodelay(true).connect_lazy())))
    }

    async fn call<Q, A>(&mut self, path: &'static str, request: Q) -> Result<A, String>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        self.0.ready().await.map_err(|error| error.to_string())?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = self.0.unary(tonic::Request::new(request), PathAndQuery::from_static(path), codec).await;
        answer.map(tonic::Response::into_inner).map_err(|status| status.to_string())
    }

    pub(super) async fn put(&mut self, key: &str, value: &str) -> Result<(), String> {
        let request = PutRequest { key: key.into(), value: value.into() };
        let answer: PutResponse = self.call("/etcdserverpb.KV/Put", request).await?;
        answer.header.map(|_| ()).ok_or_else(|| "a put was answered without a header".to_owned())
    }

    /// Linearizable: etcd's default.
    async fn get(&mut self, key: &str) -> Result<(), String> {
        let answer: RangeResponse = self.call("/etcdserverpb.KV/Range", RangeRequest { key: key.into() }).await?;
        if answer.kvs.is_empty() { Err(format!("key {key} is not there")) } else { Ok(()) }
    }

    async fn status(&mut self) -> Result<StatusResponse, String> {
        self.call("/etcdserverpb.Maintenance/Status", StatusRequest {}).await
    }
}

/// Puts values under the keys of the bench, one after the other.
pub(super) struct Puts {
    pub(super) client: EtcdClient,
    pub(super) keys: super::keys::Keys,
}

impl Worker for Puts {
    async fn once(&mut self) -> Result<(), String> {
        let (key, value, _) = self.keys.next();
        self.client.put(&key, &value).await
    }
}

/// Reads them.
pub(super) struct Gets {
    pub(super) client: EtcdClient,
    pub(super) keys: super::keys::Keys,
}

impl Worker for Gets {
    async fn once(&mut self) -> Result<(), String> {
        let (key, ..) = self.keys.next();
        self.client.get(&key).await
    }
}

struct Member {
    url: String,
    pid_file: PathBuf,
    child: Child,
    /// The member stops when this closes.
    stdin: Option<ChildStdin>,
}

/// Three members with a leader.
pub(super) struct Etcd {
    members: Vec<Member>,
    pub(super) leader_url: String,
    pub(super) version: String,
}

impl Etcd {
    /// The program that is in PATH.
    pub(super) fn in_path() -> Result<PathBuf, BenchError> {
        find_in_path("etcd").ok_or(BenchError::NoEtcd)
    }

    /// Starts them in a folder.
    pub(super) async fn start(program: &Path, dir: &Path) -> Result<Self, BenchError> {
        fs::create_dir_all(dir).map_err(|source| file("make folder", dir, source))?;
        let ports = free_ports(2 * MEMBERS).map_err(|source| file("find free ports for", dir, source))?;
        let urls: Vec<(String, String)> = ports.chunks_exact(2).map(|pair| (url(pair[0]), url(pair[1]))).collect();
        let peers = urls.iter().enumerate().map(|(at, (_, peer))| format!("etcd-{at}={peer}"));
        let cluster = peers.collect::<Vec<_>>().join(",");
        let mut members = Vec::new();
        for (at, (client, peer)) in urls.iter().enumerate() {
            members.push(spawn(program, dir, at, client, peer, &cluster)?);
        }
        let mut etcd = Self { members, leader_url: String::new(), version: String::new() };
        etcd.wait_for_leader().await?;
        Ok(etcd)
    }

    /// The processes.
    pub(super) fn pids(&self) -> Vec<u32> {
        let pid = |member: &Member| fs::read_to_string(&member.pid_file).ok()?.trim().parse().ok();
        self.members.iter().filter_map(pid).collect()
    }

    /// Stops them in good order.
    pub(super) async fn stop(mut self) {
        self.members.iter_mut().for_each(|member| drop(member.stdin.take()));
        for member in &mut self.members {
            if tokio::time::timeout(STOP_WITHIN, member.child.wait()).await.is_err() {
                // Its standard input is closed: it ends as soon as it can.
                tracing::warn!(url = member.url, "etcd does not stop in time");
            }
        }
    }

    async fn wait_for_leader(&mut self) -> Result<(), BenchError> {
        let deadline = Instant::now() + READY_WITHIN;
        let mut reason = "nothing yet".to_owned();
        while Instant::now() < deadline {
            for member in &self.members {
                match EtcdClient::new(&member.url)?.status().await {
                    Ok(status) if status.header.as_ref().is_some_and(|header| header.member_id == status.leader) => {
                        self.leader_url.clone_from(&member.url);
                        self.version = status.version;
                        return Ok(());
                    }
                    Ok(_) => {}
                    Err(error) => reason = error,
                }
            }
            tokio::time::sleep(READY_POLL).await;
        }
        Err(BenchError::Waited { what: "a leader of etcd".to_owned(), reason })
    }
}

fn spawn(program: &Path, dir: &Path, at: usize, client: &str, peer: &str, cluster: &str) -> Result<Member, BenchError> {
    let (pid_file, log) = (dir.join(format!("{at}.pid")), dir.join(format!("{at}.log")));
    let opened: io::Result<File> = OpenOptions::new().create(true).append(true).open(&log);
    let out = opened.map_err(|source| file("open", &log, source))?;
    let err = out.try_clone().map_err(|source| file("open", &log, source))?;
    let mut command = Command::new("sh");
    command.args(["-c", WITH_STDIN, "sh"]).arg(&pid_file).arg(program);
    command.arg("--name").arg(format!("etcd-{at}")).arg("--data-dir").arg(dir.join(format!("{at}.etcd")));
    command.args(["--listen-client-urls", client, "--advertise-client-urls", client]);
    command.args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]);
    command.args(["--initial-cluster", cluster, "--initial-cluster-state", "new"]);
    command.args(["--quota-backend-bytes", QUOTA_BYTES]);
    // Ctrl-C is for this process, which closes their standard input.
    command.stdin(Stdio::piped()).stdout(out).stderr(err).process_group(0);
    let mut child = command.spawn().map_err(|source| file("start", program, source))?;
    let stdin = child.stdin.take();
    Ok(Member { url: client.to_owned(), pid_file, child, stdin })
}

fn find_in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<io::Result<_>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

fn file(action: &'static str, path: &Path, source: io::Error) -> BenchError {
    BenchError::File { action, path: path.to_owned(), source }
}

fn failed(action: &str, error: &dyn std::error::Error) -> BenchError {
    BenchError::Etcd { action: action.to_owned(), reason: crate::error::chain(error) }
}

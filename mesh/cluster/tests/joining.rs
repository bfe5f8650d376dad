//! What can go wrong when a node joins: each is said, and nothing is spent or left behind.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{fs, net::SocketAddr, time::Duration};

use support::*;
use tempfile::TempDir;
use tokio::{net::TcpListener, time::Instant};
use towline_cluster::{
    CERTIFICATE_LIFE, ClusterError, Identity,
    membership::{self, Joining},
};
use towline_core::{NodeAddresses, NodeRole};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_means_another_cluster_is_refused_and_the_token_stays_good() {
    let cluster = TestCluster::found(CERTIFICATE_LIFE).await;
    let token = cluster.nodes[0].handle().mint_token(NodeRole::Voter, HOUR).await.unwrap();
    let mut attempt = Attempt::new(&cluster, &token);
    attempt.cluster_name = Some("staging");
    attempt.refused(&["this is cluster \"test\"", "\"staging\"", "still good"]).await;
    nothing_is_left(&cluster, 1);
    attempt.cluster_name = Some("test");
    attempt.join().await.unwrap();
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_or_an_address_that_is_taken_is_refused_with_its_holder_and_the_token_stays_good() {
    let cluster = TestCluster::found(CERTIFICATE_LIFE).await;
    let token = cluster.nodes[0].handle().mint_token(NodeRole::Voter, HOUR).await.unwrap();
    let mut attempt = Attempt::new(&cluster, &token);
    attempt.node_name = "node-1";
    attempt.refused(&["\"node-1\" is taken by node 1", "towline cluster remove 1"]).await;
    attempt.node_name = "node-2";
    let free = std::mem::replace(&mut attempt.addresses.peer, cluster.nodes[0].peer().to_owned());
    attempt.refused(&["belongs to node 1", "node.advertise_peer"]).await;
    nothing_is_left(&cluster, 1);
    attempt.addresses.peer = free;
    attempt.join().await.unwrap();
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_whose_answer_was_lost_is_the_same_node_with_the_same_token_or_another() {
    let cluster = TestCluster::found(CERTIFICATE_LIFE).await;
    let handle = cluster.nodes[0].handle();
    let token = handle.mint_token(NodeRole::Voter, HOUR).await.unwrap();
    let attempt = Attempt::new(&cluster, &token);
    let first = attempt.join().await.unwrap();
    // As after a crash before the answer was kept.
    fs::remove_file(attempt.data.path().join("identity.json")).unwrap();
    assert_eq!(attempt.join().await.unwrap(), first);

    fs::remove_file(attempt.data.path().join("identity.json")).unwrap();
    let another = handle.mint_token(NodeRole::Voter, HOUR).await.unwrap();
    let attempt = Attempt { token: &another, ..attempt };
    assert_eq!(attempt.join().await.unwrap(), first);
    nothing_is_left(&cluster, 2);
    let other = Attempt::new(&cluster, &another);
    assert_ne!(other.join().await.unwrap().node, first.node, "the second token was not spent");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_none_or_used_or_over_or_anothers_is_refused_with_what_to_do() {
    let cluster = TestCluster::found(CERTIFICATE_LIFE).await;
    let other = TestCluster::found(CERTIFICATE_LIFE).await;
    let handle = cluster.nodes[0].handle();
    let used = handle.mint_token(NodeRole::Voter, HOUR).await.unwrap();
    Attempt::new(&cluster, &used).join().await.unwrap();
    let over = handle.mint_token(NodeRole::Voter, Duration::from_millis(1)).await.unwrap();
    let foreign = other.nodes[0].handle().mint_token(NodeRole::Voter, HOUR).await.unwrap();
    let forged = {
        let mut forged = handle.mint_token(NodeRole::Voter, HOUR).await.unwrap();
        forged.replace_range(4..12, "AAAAAAAA");
        forged
    };
    for (token, said) in [
        ("let me in", "is no join token"),
        (&used[..40], "was cut off"),
        (&used, "was used by node"),
        (&over, "has expired"),
        (&forged, "join token is not known"),
        (&foreign, "not a member of the cluster that the token is for"),
    ] {
        let attempt = Attempt::new(&cluster, token);
        attempt.refused(&[said]).await;
        assert!(!attempt.data.path().join("identity.json").exists());
    }
    nothing_is_left(&cluster, 2);
    cluster.shutdown().await;
    other.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_address_is_said_soon() {
    let cluster = TestCluster::found(CERTIFICATE_LIFE).await;
    let token = cluster.nodes[0].handle().mint_token(NodeRole::Voter, HOUR).await.unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = closed.local_addr().unwrap();
    drop(closed);
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let no_tls = plain.local_addr().unwrap();
    let answering = tokio::spawn(async move {
        while let Ok((mut tcp, _)) = plain.accept().await {
            use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
            // As an HTTP server does that is spoken TLS with.
            let _ = tcp.read(&mut [0; 512]).await;
            let _ = tcp.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n").await;
        }
    });
    let mut attempt = Attempt::new(&cluster, &token);
    let began = Instant::now();
    for (address, said) in [
        (nobody.to_string(), "refused"),
        ("nowhere.invalid:7421".to_owned(), "node.listen.peer"),
        (no_tls.to_string(), "no peer listener of towline"),
        ("10.0.0.1".to_owned(), "must be HOST:PORT"),
    ] {
        attempt.address = address;
        attempt.refused(&[said]).await;
    }
    assert!(began.elapsed() < PATIENCE, "said after {:?}", began.elapsed());
    answering.abort();
    nothing_is_left(&cluster, 1);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_a_token_is_not_made_and_it_is_said_what_is_missing() {
    let mut cluster = TestCluster::of(2).await;
    cluster.nodes[1].stop().await;
    let error = cluster.nodes[0].handle().mint_token(NodeRole::Voter, HOUR).await.unwrap_err().to_string();
    assert!(error.contains("majority") || error.contains("quorum"), "{error}");
    assert!(!error.contains("0ns"), "{error}");
    cluster.shutdown().await;
}

// ---- helpers ----

/// A node that tries to join, and may try again.
struct Attempt<'a> {
    data: TempDir,
    address: String,
    token: &'a str,
    cluster_name: Option<&'a str>,
    node_name: &'a str,
    addresses: NodeAddresses,
}

impl<'a> Attempt<'a> {
    fn new(cluster: &TestCluster, token: &'a str) -> Self {
        // Not listened on: no node is started.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let node_name = match cluster.nodes[0].handle().local(|state| state.nodes().count()) {
            1 => "node-2",
            _ => "node-3",
        };
        let addresses = NodeAddresses { http: format!("http://{free}"), peer: SocketAddr::to_string(&free) };
        let (data, address) = (tempfile::tempdir().unwrap(), cluster.nodes[0].peer().to_owned());
        Self { data, address, token, cluster_name: None, node_name, addresses }
    }

    async fn join(&self) -> Result<Identity, ClusterError> {
        let joining = Joining {
            address: &self.address,
            token: self.token,
            cluster_name: self.cluster_name,
            node_name: self.node_name,
            addresses: self.addresses.clone(),
        };
        membership::join_as(self.data.path(), joining).await
    }

    async fn refused(&self, said: &[&str]) {
        let error = self.join().await.unwrap_err().to_string();
        assert!(said.iter().all(|said| error.contains(said)), "{said:?}: {error}");
    }
}

fn nothing_is_left(cluster: &TestCluster, nodes: usize) {
    let names = |state: &towline_core::State| state.nodes().map(|node| node.name.clone()).collect::<Vec<_>>();
    let names = cluster.nodes[0].handle().local(names);
    assert_eq!(names.len(), nodes, "{names:?}");
}

//! Certificates end and are renewed, any voter signs, and a signature alone lets nobody in.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{fs, path::Path, sync::Arc, time::Duration};

use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject};
use support::*;
use towline_cluster::{CERTIFICATE_LIFE, membership};
use towline_core::{NodeId, NodeRole};

/// Short enough to see a renewal, long enough that a busy machine does not miss it.
const SHORT_LIFE: Duration = Duration::from_secs(15);
/// What gRPC calls a caller that is not known to be who it says.
const UNAUTHENTICATED: &str = "16";
/// What it calls one that is out.
const PERMISSION_DENIED: &str = "7";
/// What it calls a moment at which it cannot be told.
const UNAVAILABLE: &str = "14";

#[tokio::test(flavor = "multi_thread")]
async fn every_voter_signs_so_that_nodes_join_and_renew_when_the_founder_is_gone() {
    let mut cluster = TestCluster::of(3).await;
    all_sign(&cluster, 3).await;
    let founder = cluster.nodes[0].id();
    let handle = cluster.nodes[1].handle();
    handle.remove_node(founder).await.unwrap();
    wait_until("the founder to be out", || handle.local(|state| state.is_removed(founder))).await;
    let _told = tokio::time::timeout(PATIENCE, cluster.nodes[0].cluster().fatal()).await.unwrap();
    cluster.nodes[0].stop().await;

    cluster.join(2, NodeRole::Voter).await;
    cluster.join(3, NodeRole::Learner).await;

    all_sign(&cluster, 3).await;
    let learner = cluster.nodes[4].id();
    let signs = handle.status().members.iter().find(|member| member.id == learner).unwrap().signs;
    assert!(!signs, "only voters have the key of the authority");
    assert!(!cluster.nodes[4].data().join("tls/authority.key").exists());
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_cannot_sign_sends_a_join_on_to_one_that_can() {
    let mut cluster = TestCluster::found(CERTIFICATE_LIFE).await;
    cluster.join(0, NodeRole::Learner).await;
    cluster.join(1, NodeRole::Learner).await;
    let late = cluster.nodes[2].id();
    assert!(cluster.nodes[0].handle().local(|state| state.node(late).is_some()));
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_renewed_over_the_same_key_while_the_cluster_works() {
    let mut cluster = TestCluster::found(SHORT_LIFE).await;
    cluster.join(0, NodeRole::Learner).await;
    for position in 0..2 {
        let (id, data) = (cluster.nodes[position].id(), cluster.nodes[position].data().to_owned());
        let (certificate, key) = (read(&data, "node.pem"), read(&data, "node.key"));
        let handle = cluster.nodes[0].handle();
        let ends = || {
            let status = handle.status();
            status.members.iter().find(|member| member.id == id).and_then(|member| member.certificate_ends_ms)
        };
        // The first ones are as long as is usual, or were signed when the node joined.
        wait_until("a short certificate", || ends().is_some_and(|ends| ends < now_ms() + 60_000)).await;
        let first = ends();
        wait_until("a renewal", || ends() > first).await;
        wait_until("another renewal", || read(&data, "node.pem") != certificate).await;
        assert_eq!(read(&data, "node.key"), key);
    }
    let task = new_task();
    let learner = cluster.nodes[1].handle();
    learner.propose(submit(task, learner.node_id()), None).await.unwrap();
    assert!(learner.status().certificate_trouble.is_none());
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_has_ended_is_refused_and_its_node_gets_another_by_its_key() {
    let mut cluster = TestCluster::found(SHORT_LIFE).await;
    cluster.join(0, NodeRole::Learner).await;
    let ended = cluster.nodes[1].id();
    cluster.nodes[1].stop().await;
    let handle = cluster.nodes[0].handle();
    let ends = handle
        .local(|state| state.node(ended).and_then(|node| node.certificate.clone()))
        .and_then(|certificate| certificate.ends)
        .map_or_else(|| now_ms() + 16_000, |ends| ends.0);
    wait_until("the end of the certificate", || now_ms() > ends + 1_000).await;
    let data = cluster.nodes[1].data().to_owned();
    let refused = call(&cluster.nodes[0], client_tls(&data, chain(&data)), "Peer/Probe", cluster.nodes[0].id()).await;
    assert!(refused.is_err(), "TLS refuses it: {refused:?}");

    cluster.nodes[1].start().await;
    let learner = cluster.nodes[1].handle();
    let again = || handle.local(|state| state.node(ended).and_then(|node| node.certificate.clone()?.ends));
    wait_until("a certificate that is good", || again().is_some_and(|ends| ends.0 > now_ms())).await;
    cluster.nodes[1].register().await;
    assert!(learner.status().certificate_trouble.is_none());
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_former_voter_with_the_key_of_the_authority_makes_no_members_and_is_none() {
    let mut cluster = TestCluster::of(3).await;
    all_sign(&cluster, 3).await;
    let (thief, other) = (cluster.nodes[2].id(), cluster.nodes[1].id());
    let stolen = cluster.nodes[2].data().to_owned();
    let handle = cluster.nodes[0].handle();
    handle.remove_node(thief).await.unwrap();
    cluster.nodes[2].stop().await;
    wait_until("the voter to be out", || handle.local(|state| state.is_removed(thief))).await;
    cluster.wait_for_voters(2).await;

    let asked = &cluster.nodes[0];
    // Until its vote is not needed any more it is heard.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while call(asked, client_tls(&stolen, chain(&stolen)), "Peer/Probe", asked.id()).await.unwrap().as_deref()
        != Some(PERMISSION_DENIED)
    {
        assert!(tokio::time::Instant::now() < deadline, "its own certificate lets it in");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for (forged, status) in [
        (other, UNAUTHENTICATED),
        (asked.id(), UNAUTHENTICATED),
        (thief, PERMISSION_DENIED),
        (NodeId(other.0 - 1), PERMISSION_DENIED),
        (NodeId(u64::MAX), UNAVAILABLE),
    ] {
        for service in ["Peer/Probe", "Peer/AuthorityKey", "Peer/Members", "Raft/RequestVote"] {
            let answer = call(asked, client_tls(&stolen, forge(&stolen, forged)), service, asked.id()).await;
            assert_eq!(answer.unwrap().as_deref(), Some(status), "{service} as node {forged}");
        }
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_is_not_given_the_key_of_the_authority() {
    let mut cluster = TestCluster::found(CERTIFICATE_LIFE).await;
    cluster.join(0, NodeRole::Learner).await;
    let data = cluster.nodes[1].data().to_owned();
    let asked = &cluster.nodes[0];
    let probed = call(asked, client_tls(&data, chain(&data)), "Peer/Probe", asked.id()).await;
    assert_eq!(probed.unwrap(), None, "it is heard otherwise");
    let refused = call(asked, client_tls(&data, chain(&data)), "Peer/AuthorityKey", asked.id()).await;
    assert_eq!(refused.unwrap().as_deref(), Some(PERMISSION_DENIED));
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_away_learns_of_a_newer_leader_from_members_that_it_knows() {
    let mut cluster = TestCluster::of(3).await;
    let away = (cluster.leader().await + 1) % 3;
    cluster.nodes[away].stop().await;
    let at = (away + 1) % 3;
    cluster.join(at, NodeRole::Voter).await;
    cluster.wait_for_voters(4).await;
    let (newer, leader) = (cluster.nodes[3].id(), cluster.leader().await);
    let raft = cluster.nodes[leader].cluster().raft().unwrap().clone();
    raft.trigger().transfer_leader(newer.0).await.unwrap();
    wait_until("the newer node to lead", || cluster.nodes[at].handle().status().leader == Some(newer)).await;

    cluster.nodes[away].start().await;

    let behind = cluster.nodes[away].handle();
    wait_until("the newer node to be known", || behind.local(|state| state.node(newer).is_some())).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_and_their_keys_are_kept_for_the_next_start() {
    let mut cluster = TestCluster::of(2).await;
    let second = cluster.nodes[1].id();
    let kept = |node: &TestNode| read(node.data(), "members.json");
    for node in &cluster.nodes {
        wait_until("both members on disk", || {
            let kept = kept(node);
            kept.matches("\"key\"").count() == 2 && kept.contains(&format!("\"id\": {second}"))
        })
        .await;
    }
    cluster.nodes[0].stop().await;
    cluster.nodes[1].stop().await;
    cluster.nodes[0].start().await;
    cluster.nodes[1].start().await;
    cluster.nodes[1].register().await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_an_earlier_version_is_taken_up_and_its_key_recorded() {
    let mut cluster = TestCluster::of(2).await;
    cluster.nodes[1].stop().await;
    fs::remove_file(cluster.nodes[1].data().join("tls/members.json")).unwrap();
    cluster.nodes[1].start().await;
    cluster.nodes[1].register().await;
    let data = cluster.nodes[1].data().to_owned();
    wait_until("members on disk", || data.join("tls/members.json").exists()).await;
    cluster.shutdown().await;
}

// ---- helpers ----

async fn all_sign(cluster: &TestCluster, count: usize) {
    for handle in cluster.running() {
        let signs = || handle.status().members.iter().filter(|member| member.signs).count();
        wait_until(&format!("{count} nodes that sign"), || signs() == count).await;
    }
}

fn read(data: &Path, name: &str) -> String {
    fs::read_to_string(data.join("tls").join(name)).unwrap_or_default()
}

fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

type Chain = (CertificateDer<'static>, PrivateKeyDer<'static>);

/// The certificate and the key of a data folder.
fn chain(data: &Path) -> Chain {
    let certificate = CertificateDer::from_pem_file(data.join("tls/node.pem")).unwrap();
    (certificate, PrivateKeyDer::from_pem_file(data.join("tls/node.key")).unwrap())
}

/// A certificate for a node over a fresh key, as whoever has the key of the authority can make one.
fn forge(data: &Path, node: NodeId) -> Chain {
    let authority = CertificateDer::from_pem_file(data.join("tls/authority.pem")).unwrap();
    let key = KeyPair::from_pem(&read(data, "authority.key")).unwrap();
    let issuer = Issuer::from_ca_cert_der(&authority, key).unwrap();
    let names = vec![format!("node-{node}.test.towline.internal"), "member.towline.internal".to_owned()];
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    assert_eq!(membership::certified_node(certificate.der()).map(|certified| certified.node), Some(node));
    (certificate.der().clone(), PrivatePkcs8KeyDer::from(key.serialize_der()).into())
}

fn client_tls(data: &Path, (certificate, key): Chain) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(data.join("tls/authority.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// Calls a gRPC service of a node with an empty message; returns the status if it is in the head of the answer, where
/// refusals are.
async fn call(
    node: &TestNode,
    tls: rustls::ClientConfig,
    method: &str,
    meant: NodeId,
) -> Result<Option<String>, reqwest::Error> {
    const NAME: &str = "member.towline.internal";
    let address: std::net::SocketAddr = node.peer().parse().unwrap();
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .no_proxy()
        .resolve(NAME, address)
        .timeout(PATIENCE)
        .build()?;
    let url = format!("https://{NAME}:{}/towline.v1.{method}", address.port());
    let empty_message = vec![0; 5];
    let request = client.post(url).header("content-type", "application/grpc").header("towline-target", meant.0);
    let response = request.body(empty_message).send().await?;
    Ok(response.headers().get("grpc-status").map(|status| status.to_str().unwrap().to_owned()))
}

//! A node that is removed is out for good; its tasks go on elsewhere.

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::{Value, json};
use std::{net::SocketAddr, path::Path, sync::Arc};
use towline_tests::{
    Answer, Cluster, FakeModel, Observer, Plan, TestNode, eventually, run_cli, state_of, text_message,
};

const SPEAKER: &str = "agents:\n  - { name: speaker, description: Speaks., instruction: Speak., replicas: all }\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_node_loses_its_tasks_and_its_vote_ends_and_cannot_come_back() {
    let model = FakeModel::start(|_| Answer::new().words(&["one ", "two ", "three ", "four ", "five ", "six "])).await;
    let mut cluster = Cluster::start(Plan::three(model.config() + SPEAKER)).await;
    let entry = cluster.nodes[0].id;
    let stream = Observer::send(cluster.node(entry).agent("speaker").endpoint(), text_message("m-1", "speak"));
    let task = stream.task().await;
    let leader = cluster.leader().await;
    let victim = cluster.nodes.iter().map(|node| node.id).find(|id| *id != leader && *id != 1).unwrap();

    let asked = cluster.node(leader).url.clone();
    let ran = run_cli(["cluster", "remove", &victim.to_string(), "--server", &asked]).await;
    assert_eq!(ran.code, 0, "{}", ran.said());

    let code = cluster.node_mut(victim).ended().await;
    assert_eq!(code, Some(1));
    assert!(cluster.node(victim).log_text().contains(&format!("node {victim} was removed from this cluster")));
    let quorum = eventually("two voters", async || {
        let status = cluster.node(leader).operator("cluster").await?;
        let gone = status["members"].as_array()?.iter().all(|member| member["id"] != victim);
        (gone && status["quorum"] == *"2 voters, quorum 2, can lose 0 more").then_some(status)
    })
    .await;
    assert_eq!(quorum["members"].as_array().map(Vec::len), Some(2));
    let record = eventually("the end of the task", async || {
        let read = cluster.node(leader).agent("speaker").get(&task).await.ok()?;
        (state_of(&read) == "TASK_STATE_COMPLETED").then_some(read)
    })
    .await;
    assert_eq!(record["id"], Value::from(task));

    let asked = cluster.node(leader);
    let (status, said) = ask_on_peer_listener(asked, &cluster.node(victim).data(), "speaker").await;
    assert_eq!(status, 403, "{said}");
    assert!(said.contains(&format!("node {victim} was removed")), "A2A: {said}");
    let other = cluster.another_than(&[leader, victim]);
    let (status, said) = ask_on_peer_listener(asked, &other.data(), "speaker").await;
    assert_eq!(status, 200, "a member is heard: {said}");

    cluster.node_mut(victim).start(None);
    assert_eq!(cluster.node_mut(victim).ended().await, Some(1), "its certificate is refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_can_be_removed_and_a_dead_voter_makes_room_but_the_last_quorum_stays() {
    let model = FakeModel::start(|_| Answer::say("spoken")).await;
    let mut cluster = Cluster::start(Plan::three(model.config() + SPEAKER)).await;
    let leader = cluster.leader().await;
    let other = cluster.another_than(&[leader]).url.clone();
    let ran = run_cli(["cluster", "remove", &leader.to_string(), "--server", &other]).await;
    assert_eq!(ran.code, 0, "{}", ran.said());
    assert_eq!(cluster.node_mut(leader).ended().await, Some(1));
    let next = cluster.leader().await;
    assert_ne!(next, leader);

    let last = cluster.another_than(&[next]).id;
    eventually("two voters", async || {
        let status = cluster.node(next).operator("cluster").await?;
        (status["quorum"] == *"2 voters, quorum 2, can lose 0 more").then_some(())
    })
    .await;
    let url = cluster.node(next).url.clone();
    let ran = run_cli(["cluster", "remove", "99", "--server", &url]).await;
    assert_eq!(ran.code, 1, "{}", ran.said());
    assert!(ran.stderr.contains("node 99 is not"), "{}", ran.said());
    let ran = run_cli(["cluster", "remove", &last.to_string(), "--server", &url]).await;
    assert_eq!(ran.code, 0, "{}", ran.said());
    assert_eq!(cluster.node_mut(last).ended().await, Some(1));
    let ran = run_cli(["cluster", "remove", &next.to_string(), "--server", &url]).await;
    assert_eq!(ran.code, 1, "{}", ran.said());
    assert!(ran.stderr.contains("is the last voter: join or promote another first"), "{}", ran.said());
    let spoken = cluster.node(next).agent("speaker").send(text_message("m-2", "speak")).await.unwrap();
    assert_eq!(state_of(&spoken), "TASK_STATE_COMPLETED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_away_when_it_was_removed_ends_also_if_the_leader_that_it_knew_is_gone() {
    let model = FakeModel::start(|_| Answer::say("spoken")).await;
    let mut cluster = Cluster::start(Plan::three(model.config() + SPEAKER)).await;
    let leader = cluster.leader().await;
    let away = cluster.another_than(&[leader]).id;
    let stays = cluster.another_than(&[leader, away]).id;
    cluster.kill(away).await;
    let asked = cluster.node(leader).url.clone();
    let ran = run_cli(["cluster", "remove", &away.to_string(), "--server", &asked]).await;
    assert_eq!(ran.code, 0, "{}", ran.said());
    for id in [leader, stays] {
        eventually("the end of the change of the membership", async || {
            let status = cluster.node(id).operator("cluster").await?;
            let gone = status["members"].as_array()?.iter().all(|member| member["id"] != away);
            // Nothing of it is under way: neither in what is appended here nor in what is applied.
            (gone && status["quorum"] == *"2 voters, quorum 2, can lose 0 more").then_some(())
        })
        .await;
    }

    cluster.kill(leader).await;
    cluster.node_mut(away).start(None);

    assert_eq!(cluster.node_mut(away).ended().await, Some(1));
    let said = cluster.node(away).log_text();
    assert!(said.contains(&format!("node {away} was removed from this cluster")), "{said}");
}

/// Speaks A2A with an agent on the peer listener of a node, with the certificate in a data folder.
async fn ask_on_peer_listener(node: &TestNode, data: &Path, agent: &str) -> (u16, String) {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(data.join("tls/authority.pem")).unwrap()).unwrap();
    let certificate = CertificateDer::from_pem_file(data.join("tls/node.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(data.join("tls/node.key")).unwrap();
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], key)
        .unwrap();
    let address: SocketAddr = node.peer.parse().unwrap();
    let name = format!("node-{}.test.towline.internal", node.id);
    let http =
        reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().resolve(&name, address).build().unwrap();
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {} });
    let url = format!("https://{name}:{}/agents/{agent}", address.port());
    let answer = http.post(url).header("A2A-Version", "1.0").json(&body).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

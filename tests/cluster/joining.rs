//! A node that joins the wrong way is told what is wrong, and joins with the same token once it is right.

use std::{fs, time::Duration};
use towline_tests::{Cluster, Plan, TestNode, eventually, run_cli, within};

const MESH: &str = "models:\n  default: { provider: scripted }\n";
const EXIT_USAGE: i32 = 2;
const EXIT_UNREACHABLE: i32 = 3;
const EXIT_AUTH: i32 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn each_mistake_of_a_join_is_said_and_spends_nothing() {
    let cluster = Cluster::start(Plan::one(MESH)).await;
    let other = Cluster::start(Plan::one(MESH)).await;
    let member = cluster.nodes[0].peer.clone();
    let (token, foreign) = (cluster.join_token().await, other.join_token().await);
    let mut node = TestNode::new(cluster.folder(), "late", 8, MESH);
    let right = fs::read_to_string(node.config()).unwrap();
    let nobody = format!("127.0.0.1:{}", towline_tests::free_port());
    let client_port = cluster.nodes[0].url.trim_start_matches("http://").to_owned();
    let advertised = format!("node:\n  advertise_peer: \"{member}\"\n");
    for (config, address, token, code, said) in [
        (right.replace("name: test", "name: staging"), &member, &token, EXIT_AUTH, "the joining node is \"staging\""),
        (right.replace("name: late", "name: a"), &member, &token, EXIT_AUTH, "node name \"a\" is taken by node 1"),
        (right.replacen("node:\n", &advertised, 1), &member, &token, EXIT_AUTH, "belongs to node 1"),
        (right.clone(), &member, &foreign, EXIT_AUTH, "not a member of the cluster that the token is for"),
        (right.clone(), &member, &token[..48].to_owned(), EXIT_AUTH, "join token was cut off"),
        (right.clone(), &client_port, &token, EXIT_AUTH, "use node.listen.peer of a member"),
        (right.clone(), &nobody, &token, EXIT_UNREACHABLE, "cannot join yet, trying for 5 s"),
        (right.clone(), &nobody, &token, EXIT_UNREACHABLE, "Connection refused"),
        (right.clone(), &"10.0.0.1".to_owned(), &token, EXIT_USAGE, "write HOST:PORT"),
    ] {
        fs::write(node.config(), config).unwrap();
        node.start(Some((address, token)));
        assert_eq!(node.ended().await, Some(code), "{said}: {}", node.log_text());
        assert!(node.log_text().contains(said), "{said}: {}", node.log_text());
        let status = cluster.nodes[0].operator("cluster").await.unwrap();
        assert_eq!(status["members"].as_array().map(Vec::len), Some(1), "{said}");
    }

    fs::write(node.config(), right).unwrap();
    node.start(Some((&member, &token)));
    node.ready().await;
    let mut second = TestNode::new(cluster.folder(), "second", 8, MESH);
    second.start(Some((&member, &token)));
    assert_eq!(second.ended().await, Some(EXIT_AUTH));
    assert!(second.log_text().contains("join token was used by node"), "{}", second.log_text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_token_comes_with_what_to_do_with_it() {
    let cluster = Cluster::start(Plan::one(MESH)).await;
    let ran = run_cli(["cluster", "join-token", "--server", &cluster.nodes[0].url]).await;
    assert_eq!(ran.stdout.lines().count(), 1, "the token alone: {}", ran.stdout);
    for said in ["export TOWLINE_TOKEN", &format!("--join {}", cluster.nodes[0].peer), "reached from this machine only"]
    {
        assert!(ran.stderr.contains(said), "{said}: {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("--token"), "a token on a command line is in the list of processes: {}", ran.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_join_after_the_founder_is_gone() {
    let mut cluster = Cluster::start(Plan::three(MESH)).await;
    let founder = cluster.nodes[0].id;
    let asked = cluster.nodes[1].url.clone();
    eventually("all voters to sign", async || {
        let status = cluster.nodes[1].operator("cluster").await?;
        status["members"].as_array()?.iter().all(|member| member["signs"] == true).then_some(())
    })
    .await;
    let ran = run_cli(["cluster", "remove", &founder.to_string(), "--server", &asked]).await;
    assert_eq!(ran.code, 0, "{}", ran.said());
    assert!(!ran.stderr.contains("no other node has the key"), "{}", ran.said());
    assert_eq!(cluster.nodes[0].ended().await, Some(1));

    let ran = run_cli(["cluster", "join-token", "--server", &asked]).await;
    let mut late = TestNode::new(cluster.folder(), "late", 8, MESH);
    late.start(Some((&cluster.nodes[2].peer, ran.stdout.trim())));
    late.ready().await;
    eventually("three voters", async || {
        let status = cluster.nodes[1].operator("cluster").await?;
        (status["quorum"] == *"3 voters, quorum 2, can lose 1 more").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_renewed_on_running_nodes_and_by_one_that_was_down_when_its_own_ended() {
    const LIFE: u64 = 20;
    let mut cluster = Cluster::start(Plan::three(MESH)).await;
    for node in &cluster.nodes {
        let config = fs::read_to_string(node.config()).unwrap();
        let short = format!("cluster: {{ name: test, certificate_life: {LIFE}s }}");
        fs::write(node.config(), config.replace("cluster: { name: test }", &short)).unwrap();
    }
    cluster.restart_all().await;
    let ends = async |cluster: &Cluster, id: u64| {
        let status = cluster.alive().next()?.operator("cluster").await?;
        let member = status["members"].as_array()?.iter().find(|member| member["id"] == id)?.clone();
        member["certificate_ends_ms"].as_u64()
    };
    let soon = now_ms() + 3_600_000;
    for id in [cluster.nodes[0].id, cluster.nodes[1].id] {
        let first = eventually("a short life", async || ends(&cluster, id).await.filter(|ends| *ends < soon)).await;
        eventually("a renewal", async || ends(&cluster, id).await.filter(|ends| *ends > first)).await;
    }

    let down = cluster.nodes[2].id;
    cluster.kill(down).await;
    within(Duration::from_secs(3 * LIFE), "the end of its certificate", async || {
        ends(&cluster, down).await.filter(|ends| *ends < now_ms())
    })
    .await;
    cluster.restart(down).await;
    cluster.all_ready().await;
    let renewed =
        eventually("a good certificate", async || ends(&cluster, down).await.filter(|ends| *ends > now_ms())).await;
    let table = run_cli(["cluster", "status", "--server", &cluster.nodes[0].url]).await;
    assert!(table.stdout.contains("CERTIFICATE") && table.stdout.contains(", signs"), "{renewed}: {}", table.stdout);
}

fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

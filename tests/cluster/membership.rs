//! Votes are given and taken, and the leadership goes where an operator wants it.

use serde_json::Value;
use towline_tests::{Answer, Cluster, FakeModel, Plan, Ran, TestNode, eventually, run_cli, state_of, text_message};

const SPEAKER: &str = "agents:\n  - { name: speaker, description: Speaks., instruction: Speak., replicas: all }\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_becomes_a_voter_the_leader_a_learner_and_the_last_quorum_stays() {
    let model = FakeModel::start(|_| Answer::say("spoken")).await;
    let mesh = model.config() + SPEAKER;
    let mut cluster = Cluster::start(Plan { nodes: 2, permits: 8, mesh: mesh.clone() }).await;
    let learner = with_learner(&mut cluster, &mesh).await;
    let first = cluster.nodes[0].url.clone();
    let shown = operate(&first, &["status"]).await;
    assert!(shown.stdout.contains("is a learner: it holds the log"), "{shown:?}");

    let ran = operate(&first, &["promote", &learner.to_string()]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    quorum(&cluster, "3 voters, quorum 2, can lose 1 more").await;

    let leader = cluster.leader().await;
    let other = cluster.another_than(&[leader]).url.clone();
    let ran = operate(&other, &["demote", &leader.to_string()]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let status = quorum(&cluster, "2 voters, quorum 2, can lose 0 more").await;
    assert_ne!(status["leader"], leader, "it handed over first");
    let spoken = cluster.node(leader).agent("speaker").send(text_message("m-1", "speak")).await.unwrap();
    assert_eq!(state_of(&spoken), "TASK_STATE_COMPLETED", "a learner is a node like any other");

    let dead = cluster.another_than(&[leader, cluster.nodes[0].id]).id;
    let alive = cluster.another_than(&[leader, dead]).id;
    let refused = operate(&other, &["demote", &leader.to_string()]).await;
    assert_eq!(refused.code, 0, "it is one already: {refused:?}");
    cluster.kill(dead).await;
    let refused = operate(&cluster.node(alive).url, &["demote", &alive.to_string()]).await;
    assert_eq!(refused.code, 10, "nobody can decide: {refused:?}");
    cluster.restart(dead).await;
    let ran = operate(&cluster.node(alive).url, &["demote", &dead.to_string()]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    quorum(&cluster, "1 voter, quorum 1, can lose 0 more").await;
    let refused = operate(&cluster.node(alive).url, &["demote", &alive.to_string()]).await;
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("is the last voter: join or promote another first"), "{refused:?}");

    cluster.kill(dead).await;
    eventually("the loss of the learner", async || {
        let status = cluster.node(alive).operator("cluster").await?;
        let lost = |member: &Value| member["id"] == dead && member["health"] == *"Lost";
        status["members"].as_array()?.iter().any(lost).then_some(())
    })
    .await;
    let refused = operate(&cluster.node(alive).url, &["promote", &dead.to_string()]).await;
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("start it, then promote it"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leadership_is_transferred_and_a_wrong_target_is_told_what_to_do() {
    let model = FakeModel::start(|_| Answer::say("spoken")).await;
    let mesh = model.config() + SPEAKER;
    let mut cluster = Cluster::start(Plan { nodes: 2, permits: 8, mesh: mesh.clone() }).await;
    let learner = with_learner(&mut cluster, &mesh).await;
    let leader = cluster.leader().await;
    let follower = cluster.another_than(&[leader, learner]).id;
    let asked = cluster.node(learner).url.clone();

    let ran = operate(&asked, &["transfer-leader", "--to", &follower.to_string()]).await;
    assert_eq!((ran.code, ran.stdout.trim()), (0, format!("node {follower} leads").as_str()), "{ran:?}");
    eventually("all to know it", async || {
        let mut all = true;
        for node in &cluster.nodes {
            all &= node.operator("cluster").await?["leader"] == follower;
        }
        all.then_some(())
    })
    .await;
    let back = operate(&asked, &["transfer-leader", "-o", "json"]).await;
    assert_eq!(back.json()["leader"], leader, "{back:?}");

    for (to, fix) in [
        (learner.to_string(), format!("`towline cluster promote {learner}` first")),
        ("9999".to_owned(), "node 9999 is not a member".to_owned()),
    ] {
        let refused = operate(&asked, &["transfer-leader", "--to", &to]).await;
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains(&fix), "{fix}: {refused:?}");
    }
    let refused = operate(&asked, &["transfer-leader", "--to", "b"]).await;
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("`towline cluster status` shows"), "{refused:?}");
}

async fn operate(url: &str, command: &[&str]) -> Ran {
    run_cli(["cluster"].iter().chain(command).chain(&["--server", url])).await
}

/// Adds a node that does not vote.
async fn with_learner(cluster: &mut Cluster, mesh: &str) -> u64 {
    let mut node = TestNode::new(cluster.folder(), "learner", 8, mesh);
    let token = cluster.join_token_for("learner").await;
    let member = cluster.nodes[0].peer.clone();
    node.start(Some((&member, &token)));
    node.ready().await;
    let status = node.operator("cluster").await.unwrap();
    node.id = status["node"].as_u64().unwrap();
    let id = node.id;
    cluster.nodes.push(node);
    id
}

async fn quorum(cluster: &Cluster, words: &str) -> Value {
    eventually(words, async || {
        let status = cluster.alive().next()?.operator("cluster").await?;
        (status["quorum"] == *words && status["leader"].is_u64()).then_some(status)
    })
    .await
}

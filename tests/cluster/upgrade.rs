//! A rolling upgrade: one node after the other stops and comes back with another binary, while tasks run and callers listen.
//!
//! `TOWLINE_PREVIOUS` names the binary of the version before. Without it the nodes come back with the binary they had, which
//! still shows that a rolling restart loses nothing.

use std::{collections::BTreeMap, env, path::PathBuf};

use towline_tests::{
    Answer, Cluster, FakeModel, Gate, Observer, Plan, Seen, state_of, text_message, text_of_artifacts, towline,
};

const WORKER: &str =
    "agents:\n  - { name: worker, description: Says words., instruction: Say words., replicas: all }\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_upgrade_loses_no_task_and_no_event() {
    let (old, new) = (env::var_os("TOWLINE_PREVIOUS").map_or_else(towline, PathBuf::from), towline());
    println!("from {} to {}", old.display(), new.display());
    let held = Gate::closed();
    let gate = held.clone();
    let model = FakeModel::start(move |chat| match chat.user.as_str() {
        "long" => Answer::new().words(&["one ", "two "]).wait(&gate).words(&["three"]),
        user => Answer::say(format!("done {user}")),
    })
    .await;
    let mut cluster = Cluster::start_with(Plan::three(model.config() + WORKER), old).await;
    let mut sent = Sent::default();
    let long = cluster.nodes[0].agent("worker").send_async(text_message("long", "long")).await.unwrap();
    let long = long["id"].as_str().unwrap().to_owned();
    let mut heard = Observer::subscribe(cluster.nodes[0].agent("worker").endpoint(), &long, Some(0)).saw(3).await;

    let leader = cluster.leader().await;
    let mut order: Vec<u64> = cluster.nodes.iter().map(|node| node.id).filter(|id| *id != leader).collect();
    order.push(leader);
    for id in order {
        sent.some(&cluster, id, "before").await;
        assert_eq!(cluster.node_mut(id).stop().await, Some(0));
        sent.some(&cluster, cluster.another_than(&[id]).id, "without").await;
        cluster.node_mut(id).upgrade(new.clone());
        cluster.restart(id).await;
        cluster.all_ready().await;
        sent.some(&cluster, id, "after").await;
        heard.extend(listen_on(&cluster, id, &long, &heard).await);
    }
    held.open();
    let last = heard.last().unwrap().index;
    let rest = Observer::subscribe(cluster.nodes[1].agent("worker").endpoint(), &long, Some(last));
    heard.extend(rest.finished().await);

    for node in &cluster.nodes {
        let log = Observer::subscribe(node.agent("worker").endpoint(), &long, Some(0)).finished().await;
        assert_eq!(hashes(&heard), hashes(&log), "through node {}", node.name);
        assert_eq!(log.last().unwrap().index, log.len() as u64, "a gap, read through node {}", node.name);
        sent.all_done(&cluster, node.id).await;
    }
}

/// What came through an upgraded node behind what was heard before.
async fn listen_on(cluster: &Cluster, id: u64, task: &str, heard: &[Seen]) -> Vec<Seen> {
    let last = heard.last().unwrap().index;
    let stream = Observer::subscribe(cluster.node(id).agent("worker").endpoint(), task, Some(last));
    stream.connected().await;
    let seen = stream.seen();
    stream.hang_up();
    seen
}

fn hashes(seen: &[Seen]) -> Vec<(u64, &str)> {
    seen.iter().map(|seen| (seen.index, seen.hash.as_str())).collect()
}

/// Tasks that were accepted, and what each must have said in the end.
#[derive(Default)]
struct Sent(BTreeMap<String, String>);

impl Sent {
    async fn some(&mut self, cluster: &Cluster, through: u64, when: &str) {
        for number in 0..3 {
            let text = format!("{when} {through} {number}");
            let agent = cluster.node(through).agent("worker");
            let task = agent.send_async(text_message(&format!("m-{text}"), &text)).await.unwrap();
            self.0.insert(task["id"].as_str().unwrap().to_owned(), format!("done {text}"));
        }
    }

    async fn all_done(&self, cluster: &Cluster, through: u64) {
        let agent = cluster.node(through).agent("worker");
        for (task, text) in &self.0 {
            Observer::subscribe(agent.endpoint(), task, Some(0)).finished().await;
            let done = agent.get(task).await.unwrap();
            assert_eq!(state_of(&done), "TASK_STATE_COMPLETED");
            assert!(text_of_artifacts(&done).values().any(|said| said == text), "{done}");
        }
    }
}

//! Times: each comes once for the whole cluster, and what was missed is made up for as it was asked.

use super::{WORKER, model, trigger, until, until_fired};
use serde_json::Value;
use std::{collections::BTreeSet, time::Duration};
use towline_tests::{Cluster, Plan};

/// The times for which the last tasks of a trigger were started, in milliseconds; the oldest first.
async fn ticks(cluster: &Cluster, name: &str) -> Vec<u64> {
    let one = trigger(cluster, name).await.unwrap();
    let mut ticks = Vec::new();
    for task in one["tasks"].as_array().unwrap().iter().rev().filter_map(Value::as_str) {
        let task = cluster.task(task).await;
        ticks.push(task.history[0].metadata["dev.towline/trigger"]["tick"].as_u64().unwrap());
    }
    ticks
}

fn schedule(options: &str) -> String {
    format!("triggers:\n  - {{ name: clock, agent: worker, prompt: Tick., schedule: {{ {options} }} }}\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_fires_once_on_three_nodes_also_when_the_owner_is_killed() {
    let model = model().await;
    let mut cluster = Cluster::start(Plan::three(model.config() + WORKER + &schedule("every: 2s"))).await;
    until_fired(&cluster, "clock", 2).await;
    let owner = trigger(&cluster, "clock").await.unwrap()["node"]["id"].as_u64().unwrap();
    cluster.kill(owner).await;
    let fired = trigger(&cluster, "clock").await.unwrap()["fired"].as_u64().unwrap();
    until(&cluster, "clock", "another owner", |one| one["node"]["id"].as_u64().is_some_and(|node| node != owner)).await;
    until_fired(&cluster, "clock", fired + 2).await;
    let ticks = ticks(&cluster, "clock").await;
    assert!(ticks.iter().all(|tick| tick % 2_000 == 0), "{ticks:?}");
    let distinct: BTreeSet<&u64> = ticks.iter().collect();
    assert_eq!(distinct.len(), ticks.len(), "{ticks:?}");
    assert!(ticks.is_sorted(), "{ticks:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_missed_is_made_up_for_where_that_is_asked() {
    let model = model().await;
    let mesh = model.config() + WORKER + &schedule("cron: \"*/2 * * * * *\", zone: Europe/Berlin, missed: all");
    let mut cluster = Cluster::start(Plan::one(mesh)).await;
    until_fired(&cluster, "clock", 1).await;
    cluster.nodes[0].kill().await;
    // Times pass that nobody is there for.
    tokio::time::sleep(Duration::from_secs(7)).await;
    cluster.nodes[0].start(None);
    cluster.all_ready().await;
    until_fired(&cluster, "clock", 6).await;
    let ticks = ticks(&cluster, "clock").await;
    let gaps: Vec<u64> = ticks.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| *gap == 2_000), "each time has its task: {ticks:?}");
}

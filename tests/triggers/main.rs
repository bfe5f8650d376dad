//! What starts tasks by itself, over real nodes: resources that change while nobody listens, times that come once for the
//! cluster, calls from outside.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod schedules;
mod subscriptions;
mod webhooks;

use serde_json::Value;
use std::time::Duration;
use towline_tests::{Answer, Cluster, FakeModel, eventually};

/// An agent that does whatever it is told, at once.
const WORKER: &str = "\
agents:
  - { name: worker, description: Works., instruction: Work., replicas: all }
";

async fn model() -> FakeModel {
    FakeModel::start(|_| Answer::say("done")).await
}

/// A trigger, as a node that runs knows it.
async fn trigger(cluster: &Cluster, name: &str) -> Option<Value> {
    let all = cluster.alive().next()?.operator("triggers").await?;
    all["triggers"].as_array()?.iter().find(|one| one["name"] == name).cloned()
}

/// Waits until a trigger is as it should be.
async fn until(cluster: &Cluster, name: &str, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("trigger {name}: {what}"), async || trigger(cluster, name).await.filter(|one| fits(one))).await
}

async fn until_fired(cluster: &Cluster, name: &str, times: u64) -> Value {
    until(cluster, name, &format!("fired {times} times"), |one| one["fired"].as_u64() >= Some(times)).await
}

/// For this long a trigger has fired no more than so often.
async fn stays_fired(cluster: &Cluster, name: &str, times: u64, long: Duration) {
    let more = eventually("what should not be", async || {
        trigger(cluster, name).await.filter(|one| one["fired"].as_u64() > Some(times))
    });
    if let Ok(more) = tokio::time::timeout(long, more).await {
        panic!("it fired more than {times} times: {more}");
    }
}

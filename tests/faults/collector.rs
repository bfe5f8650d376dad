//! A collector that hangs or is gone holds nobody up.

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};
use towline_tests::{Answer, Cluster, FakeCollector, FakeModel, Plan, TestNode, eventually, state_of, text_message};

use crate::metrics::{Scrape, scrape};

/// How long the collector hangs, and then is gone.
const EACH: Duration = Duration::from_secs(5);
/// What a node may need more while its spans wait: they have a bound.
const MORE_KIB: u64 = 64 * 1024;
/// Spans that may wait: few, so that some find no room.
const QUEUE: &str = "64";

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_hangs_or_is_gone_fails_no_task_and_what_has_no_room_is_counted_and_spans_flow_again() {
    let mut collector = FakeCollector::start().await;
    let model = FakeModel::start(|_| Answer::say("done")).await;
    let mesh = model.config()
        + &format!(
            "agents:\n  - {{ name: speaker, description: S., instruction: Speak. }}\ntelemetry: {{ otlp: \"{}\", protocol: http/protobuf, push_metrics: true }}\n",
            collector.url
        );
    let env = [("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE), ("OTEL_METRIC_EXPORT_INTERVAL", "200")];
    let cluster = Arc::new(Cluster::start_in(Plan::one(mesh), &env).await);
    let node = &cluster.nodes[0];
    work(&cluster, Duration::from_secs(1)).await;
    eventually("spans at the collector", async || (collector.exports() > 0).then_some(())).await;
    eventually("metrics at the collector", async || {
        let names = ["towline.raft.term", "gen_ai.client.operation.duration", "towline.task.active"];
        names.iter().all(|name| collector.was_told_of(name)).then_some(())
    })
    .await;
    let (before, memory) = (scrape(node).await, resident_kib(node));

    collector.hang(true);
    let hung = work(&cluster, EACH).await;
    collector.kill().await;
    collector.hang(false);
    let gone = work(&cluster, EACH).await;
    assert!(hung > 10 && gone > 10, "tasks go on: {hung}, {gone}");
    let during = scrape(node).await;
    let spans = |scrape: &Scrape, outcome| scrape.sum("towline_telemetry_spans_total", &[("outcome", outcome)]);
    assert!(spans(&during, "dropped") > spans(&before, "dropped"), "what has no room is counted");
    assert!(during.sum("towline_telemetry_metric_pushes_total", &[("outcome", "failed")]) > 0.0);
    let more = resident_kib(node).saturating_sub(memory);
    assert!(more < MORE_KIB, "{more} KiB more");

    collector.start_again().await;
    work(&cluster, Duration::from_millis(200)).await;
    let taken = spans(&during, "exported");
    eventually("spans to flow again", async || {
        work(&cluster, Duration::from_millis(100)).await;
        (spans(&scrape(node).await, "exported") > taken).then_some(())
    })
    .await;
}

/// Four clients have tasks done, one after another, for a while: how many were completed, which is all of them.
async fn work(cluster: &Arc<Cluster>, time: Duration) -> usize {
    let until = Instant::now() + time;
    let clients = (0..4).map(|_| {
        let cluster = Arc::clone(cluster);
        tokio::spawn(async move {
            let speaker = cluster.nodes[0].agent("speaker");
            let mut done = 0;
            while Instant::now() < until {
                let message = text_message(&uuid::Uuid::now_v7().to_string(), "speak");
                let task = speaker.send(message).await.unwrap();
                assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
                done += 1;
            }
            done
        })
    });
    let mut done = 0;
    for client in clients.collect::<Vec<_>>() {
        done += client.await.unwrap();
    }
    done
}

fn resident_kib(node: &TestNode) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid().unwrap())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

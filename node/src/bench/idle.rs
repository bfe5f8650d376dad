//! `towline bench idle`: memory of nodes that do nothing, and of one node with many agents that do nothing.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use super::{
    BenchError,
    machine::{Machine, load, rss_kb},
    nodes::Nodes,
    options::IdleArgs,
    report::{Report, Row, rounded},
};

/// How long nodes rest before their memory is read: what they needed to start is given back.
const REST: Duration = Duration::from_secs(3);

pub(super) async fn run(args: &IdleArgs, dir: &Path) -> Result<Report, BenchError> {
    args.check()?;
    let machine = Machine::of_this(dir);
    let mut rows = three_nodes(&dir.join("three")).await?;
    rows.push(many_agents(&dir.join("one"), args.agents).await?);
    let subjects = BTreeMap::from([("towline".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    Ok(Report { machine, load_after: load(), subjects, rows })
}

/// Three nodes with two agents each.
async fn three_nodes(dir: &Path) -> Result<Vec<Row>, BenchError> {
    let nodes = Nodes::start(dir).await?;
    tokio::time::sleep(REST).await;
    let leader = nodes.leader().await?;
    let rows = nodes.cluster.nodes().iter().filter_map(|node| {
        let role = if node.id == leader { "leader" } else { "follower" };
        Some(row("idle node", role, node.pid()?))
    });
    let rows = rows.collect();
    nodes.stop().await;
    Ok(rows)
}

/// One node with many agents: the time is from the start of its process until it is a voter and ready.
async fn many_agents(dir: &Path, agents: u32) -> Result<Row, BenchError> {
    let began = Instant::now();
    let nodes = Nodes::start_some(dir, 1, &declarations(agents)).await?;
    let spawn = began.elapsed();
    tokio::time::sleep(REST).await;
    let row = nodes.pids().first().map(|pid| row(&format!("{agents} idle agents"), "one node", *pid));
    nodes.stop().await;
    Ok(Row { spawn_s: Some(rounded(spawn.as_secs_f64(), 100.0)), ..row.unwrap_or_default() })
}

fn declarations(agents: u32) -> String {
    let mut text = String::new();
    for number in 0..agents {
        let written = writeln!(text, "  - {{ name: a{number}, description: Waits., instruction: Wait., replicas: 1 }}");
        written.expect("a text takes whatever is written");
    }
    text
}

fn row(bench: &str, subject: &str, pid: u32) -> Row {
    let rss_mb = Some(rounded(rss_kb(pid) as f64 / 1024.0, 10.0));
    Row { bench: bench.to_owned(), subject: subject.to_owned(), rss_mb, ..Row::default() }
}

//! `towline bench delegation`: an agent gives its task to another one, which runs on another node and does nothing.
//!
//! ```text
//! caller ─▶ boss on one node ─▶ delegate ─▶ noop on another ─▶ its answer ─▶ boss ─▶ completed ─▶ caller
//!                               └──────── one round trip ───────┘
//! ```
//! The round trip is the span of the step that delegates: from the agent's decision until the answer is there, its log entries
//! included. It is read from the traces of the last tasks of a point, since a trace costs more than a task. What stayed on
//! one node, which happens when that one is the least loaded, is counted apart and not timed.

use std::{
    collections::{BTreeMap, VecDeque},
    path::Path,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use towline_trace::{Kind, SpanRecord, names};

use super::{
    BenchError,
    load::{Measured, Worker, drive},
    machine::{Machine, cpu_of, load},
    nodes::Nodes,
    options::{DelegationArgs, Plan},
    report::{Report, Row},
    subjects::OURS,
    task::{Submitter, submitters},
};

/// The agent that delegates, and the one that it delegates to.
const BOSS: &str = "boss";
const TARGET: &str = "noop";

/// Tasks of one point and round whose traces are read: enough for a median and a tail, and all of them are still there.
const LOOKED_AT: usize = 100;

/// The tasks that were done last.
#[derive(Clone, Default)]
struct Last(Arc<Mutex<VecDeque<String>>>);

impl Last {
    fn push(&self, task: String) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.push_back(task);
        if tasks.len() > LOOKED_AT {
            tasks.pop_front();
        }
    }

    fn take(&self) -> VecDeque<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A client of the agent that delegates.
struct Delegator {
    submitter: Submitter,
    last: Last,
}

impl Worker for Delegator {
    async fn once(&mut self) -> Result<(), String> {
        self.last.push(self.submitter.task().await?);
        Ok(())
    }
}

/// What one point has.
struct Point {
    whole: Measured,
    crossing: Measured,
    /// Delegations that stayed on one node.
    staying: u64,
}

pub(super) async fn run(args: &DelegationArgs, dir: &Path) -> Result<Report, BenchError> {
    let plan = args.check()?;
    let machine = Machine::of_this(dir);
    let nodes = Nodes::start(dir).await?;
    let points = measure(&nodes, args, plan).await;
    nodes.stop().await;
    let rows = points?.iter().flat_map(|(clients, point)| rows(*clients, point)).collect();
    let subjects = BTreeMap::from([(OURS.to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    Ok(Report { machine, load_after: load(), subjects, rows })
}

async fn measure(nodes: &Nodes, args: &DelegationArgs, plan: Plan) -> Result<BTreeMap<u32, Point>, BenchError> {
    let mut points = BTreeMap::new();
    for _ in 0..plan.rounds {
        for clients in &args.clients {
            let empty = || Point { whole: Measured::new(), crossing: Measured::new(), staying: 0 };
            one_point(nodes, *clients, plan, points.entry(*clients).or_insert_with(empty)).await?;
        }
    }
    Ok(points)
}

async fn one_point(nodes: &Nodes, clients: u32, plan: Plan, point: &mut Point) -> Result<(), BenchError> {
    let (last, completed) = (Last::default(), Arc::new(AtomicU64::new(0)));
    let delegators: Vec<Delegator> = submitters(nodes, clients, BOSS, &completed)?
        .into_iter()
        .map(|submitter| Delegator { submitter, last: last.clone() })
        .collect();
    let pids = nodes.pids();
    let measured = drive(delegators, plan.seconds, || cpu_of(&pids)).await;
    measured.check("task that delegates")?;
    point.whole.add(&measured);
    let door = nodes.cluster.nodes().first().map(|node| node.plan.url()).unwrap_or_default();
    for task in last.take() {
        match round_trip(&nodes.cluster.operator().spans(&door, &task).await?) {
            Some(Trip::Crossing(took)) => point.crossing.record(took),
            Some(Trip::Staying) => point.staying += 1,
            None => {}
        }
    }
    Ok(())
}

/// Where a delegation went.
#[derive(Debug, PartialEq, Eq)]
enum Trip {
    /// To another node and back, in this time.
    Crossing(Duration),
    Staying,
}

/// The delegation of a trace; nothing where some span of it is no longer there.
fn round_trip(spans: &[SpanRecord]) -> Option<Trip> {
    let name = format!("{} {TARGET}", names::span::INVOKE_AGENT);
    let of_kind = |kind| spans.iter().find(|span| span.name == name && span.kind == kind);
    let (asked, ran) = (of_kind(Kind::Client)?, of_kind(Kind::Internal)?);
    if asked.node == ran.node {
        return Some(Trip::Staying);
    }
    Some(Trip::Crossing(Duration::from_micros(asked.end_us.saturating_sub(asked.start_us))))
}

fn rows(clients: u32, point: &Point) -> [Row; 2] {
    let trip = Row::timed("delegation", "round trip to another node", clients, &point.crossing);
    let trip = Row { stayed: Some(point.staying), ..trip };
    [trip, Row::of("delegation", "whole task", clients, &point.whole)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(name: &str, kind: Kind, node: &str, start_us: u64, end_us: u64) -> SpanRecord {
        let json = serde_json::json!({
            "trace_id": "0", "span_id": "0", "name": name, "kind": kind, "service": "towline", "node": node,
            "start_us": start_us, "end_us": end_us, "ok": true,
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn only_a_delegation_that_left_its_node_is_timed() {
        let asked = span("invoke_agent noop", Kind::Client, "a", 1_000, 8_000);
        let turn = span("invoke_agent boss", Kind::Internal, "a", 0, 9_000);
        let ran = |node| span("invoke_agent noop", Kind::Internal, node, 3_000, 5_000);
        let crossing = Trip::Crossing(Duration::from_millis(7));
        assert_eq!(round_trip(&[turn.clone(), asked.clone(), ran("b")]), Some(crossing));
        assert_eq!(round_trip(&[turn.clone(), asked.clone(), ran("a")]), Some(Trip::Staying));
        assert_eq!(round_trip(&[turn, asked]), None);
    }
}

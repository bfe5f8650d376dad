//! `towline bench adopt`: the owner of a task is killed, again and again, and its caller is watched.
//!
//! ```text
//! submit at the owner ─▶ follow at another node ─▶ SIGKILL ─▶ next event ─▶ … ─▶ last event ─▶ start the node again
//!                                                     └─▶ a submission at a third node ─▶ accepted: writes go on
//! ```
//! The caller reads one stream at a node that lives. The time is from the kill to the event that tells of the adoption. Then
//! the indexes that it saw are compared with the log of the task: from 1, one by one, each once.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use futures::StreamExt;
use towline_a2a::{A2aClient, EventStream, SendOptions, SendReply, StreamItem};
use towline_core::{NodeId, TaskState};

use super::{
    BenchError,
    load::Measured,
    machine::{Machine, load},
    nodes::Nodes,
    options::AdoptArgs,
    report::{Report, Row},
    task::{endpoint, http_client, message},
};

/// Events that the caller has seen when the owner dies: the task is in the middle of its text.
const SEEN_BEFORE_KILL: usize = 4;

/// How long a caller waits for one event, and for a submission.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often a submission is tried again that was not accepted.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Who died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    /// A node that owns the task, and does not lead.
    Owner,
    /// The leader, which owns the task.
    OwningLeader,
}

impl Victim {
    fn name(self) -> &'static str {
        match self {
            Victim::Owner => "owner killed",
            Victim::OwningLeader => "owner killed, it led",
        }
    }
}

/// What the deaths of one kind showed.
struct Deaths {
    adoption: Measured,
    writes: Measured,
    lost: u64,
    duplicated: u64,
}

pub(super) async fn run(args: &AdoptArgs, dir: &Path) -> Result<Report, BenchError> {
    args.check()?;
    let machine = Machine::of_this(dir);
    let mut nodes = Nodes::start(dir).await?;
    let deaths = kill_all(&mut nodes, args.kills).await;
    nodes.stop().await;
    let rows = deaths?.iter().flat_map(|(victim, deaths)| rows(*victim, deaths)).collect();
    let subjects = BTreeMap::from([("towline".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    Ok(Report { machine, load_after: load(), subjects, rows })
}

async fn kill_all(nodes: &mut Nodes, kills: u32) -> Result<BTreeMap<Victim, Deaths>, BenchError> {
    let http = http_client()?;
    let mut deaths = BTreeMap::new();
    for number in 0..kills {
        let victim = if number % 2 == 0 { Victim::OwningLeader } else { Victim::Owner };
        let new = || Deaths { adoption: Measured::new(), writes: Measured::new(), lost: 0, duplicated: 0 };
        one_death(nodes, &http, victim, deaths.entry(victim).or_insert_with(new)).await?;
    }
    Ok(deaths)
}

async fn one_death(
    nodes: &mut Nodes,
    http: &reqwest::Client,
    victim: Victim,
    deaths: &mut Deaths,
) -> Result<(), BenchError> {
    let cast = Cast::of(nodes, victim).await?;
    let client = |url: &str, agent: &str| A2aClient::new(http.clone(), endpoint(url, agent));
    let task = submit(&client(&cast.victim_url, "slow")).await?;
    let watcher = client(&cast.watcher_url, "slow");
    let stream = watcher.subscribe(&task, Some(0), None).await;
    let stream = stream.map_err(|source| BenchError::A2a { action: "follow the task", source })?;
    let mut caller = Caller { stream, seen: Vec::new() };
    while caller.seen.len() < SEEN_BEFORE_KILL {
        caller.next("events before the kill").await?;
    }
    check_owner(nodes, &cast, &task).await?;

    nodes.cluster.kill(cast.victim).await?;
    let killed = Instant::now();
    let third = client(&cast.third_url, "noop");
    let (adopted, written) = tokio::join!(caller.until_adopted(killed), accepted(&third, killed));
    deaths.adoption.record(adopted?);
    deaths.writes.record(written?);

    caller.until_ended().await?;
    let log = whole_log(&client(&cast.third_url, "slow"), &task).await?;
    let (lost, duplicated) = compare(&caller.seen, &log);
    deaths.lost += lost;
    deaths.duplicated += duplicated;
    nodes.restart(cast.victim).await
}

/// Who plays what in one death.
struct Cast {
    victim: NodeId,
    victim_url: String,
    watcher_url: String,
    third_url: String,
}

impl Cast {
    async fn of(nodes: &Nodes, victim: Victim) -> Result<Self, BenchError> {
        let leader = nodes.leader().await?;
        let all = nodes.cluster.nodes();
        let chosen = all.iter().find(|node| (node.id == leader) == (victim == Victim::OwningLeader));
        let chosen = chosen.map_or(leader, |node| node.id);
        let mut others = all.iter().filter(|node| node.id != chosen).map(|node| node.plan.url());
        let url = nodes.cluster.node(chosen).map(|node| node.plan.url()).unwrap_or_default();
        let watcher_url = others.next().unwrap_or_default();
        Ok(Self { victim: chosen, victim_url: url, third_url: others.next().unwrap_or_default(), watcher_url })
    }
}

async fn submit(client: &A2aClient) -> Result<String, BenchError> {
    let options = SendOptions { return_immediately: true, ..SendOptions::default() };
    match client.send(&message(), options, None).await {
        Ok(SendReply::Task(task)) => Ok(task.id),
        Ok(SendReply::Message(_)) => Err(waited("a task", "a message was answered")),
        Err(source) => Err(BenchError::A2a { action: "submit a task", source }),
    }
}

/// A task that another node runs than the one that dies would measure nothing.
async fn check_owner(nodes: &Nodes, cast: &Cast, task: &str) -> Result<(), BenchError> {
    let record = nodes.cluster.operator().task(&cast.watcher_url, task).await?;
    match record.lease {
        Some(lease) if lease.node == cast.victim => Ok(()),
        lease => Err(waited("the task to run where it was submitted", &format!("its lease is {lease:?}"))),
    }
}

/// The one who reads the stream.
struct Caller {
    stream: EventStream,
    /// The index of each event, in the order in which they came.
    seen: Vec<u64>,
}

impl Caller {
    async fn next(&mut self, what: &str) -> Result<StreamItem, BenchError> {
        match tokio::time::timeout(PATIENCE, self.stream.next()).await {
            Ok(Some(Ok(item))) => {
                self.seen.extend(item.id);
                Ok(item)
            }
            Ok(Some(Err(error))) => Err(waited(what, &crate::error::chain(&error))),
            Ok(None) => Err(waited(what, "the stream ended")),
            Err(_) => Err(waited(what, "nothing came")),
        }
    }

    async fn until_adopted(&mut self, killed: Instant) -> Result<Duration, BenchError> {
        loop {
            let item = self.next("the event of the adoption").await?;
            if item.raw.to_string().contains("dev.towline/adopted") {
                return Ok(killed.elapsed());
            }
        }
    }

    async fn until_ended(&mut self) -> Result<(), BenchError> {
        loop {
            let state = self.next("the last event").await?.event.state();
            match state {
                Some(TaskState::Completed) => return Ok(()),
                Some(ended) if ended.is_terminal() => {
                    return Err(waited("the task to be completed", &format!("it is {ended:?}")));
                }
                Some(_) | None => {}
            }
        }
    }
}

/// The time until a submission is accepted that began after the kill.
async fn accepted(client: &A2aClient, killed: Instant) -> Result<Duration, BenchError> {
    loop {
        match submit(client).await {
            Ok(_) => return Ok(killed.elapsed()),
            Err(error) if killed.elapsed() > PATIENCE => return Err(error),
            Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
        }
    }
}

/// The indexes of all events, as another node tells them.
async fn whole_log(client: &A2aClient, task: &str) -> Result<Vec<u64>, BenchError> {
    let failed = |source| BenchError::A2a { action: "read the log of the task", source };
    let mut stream = client.subscribe(task, Some(0), None).await.map_err(failed)?;
    let mut log = Vec::new();
    while let Some(item) = stream.next().await {
        log.extend(item.map_err(failed)?.id);
    }
    Ok(log)
}

/// How many events of the log were not seen, and how many were seen again or out of order.
fn compare(seen: &[u64], log: &[u64]) -> (u64, u64) {
    let lost = log.iter().filter(|index| !seen.contains(index)).count();
    let duplicated = seen.windows(2).filter(|pair| pair[1] <= pair[0]).count();
    (lost as u64, duplicated as u64)
}

fn rows(victim: Victim, deaths: &Deaths) -> [Row; 2] {
    let adoption = Row::timed("adopt", victim.name(), 1, &deaths.adoption);
    let adoption = Row { lost: Some(deaths.lost), duplicated: Some(deaths.duplicated), ..adoption };
    [adoption, Row::timed("writes resume", victim.name(), 1, &deaths.writes)]
}

fn waited(what: &str, reason: &str) -> BenchError {
    BenchError::Waited { what: what.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_seen_is_lost_and_what_came_again_is_duplicated() {
        assert_eq!(compare(&[1, 2, 3], &[1, 2, 3]), (0, 0));
        assert_eq!(compare(&[1, 3], &[1, 2, 3]), (1, 0));
        assert_eq!(compare(&[1, 2, 2, 3, 1], &[1, 2, 3]), (0, 2));
    }
}

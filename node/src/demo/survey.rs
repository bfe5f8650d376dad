//! The task itself: sent to a node that does not lead, watched to its end, with the death of a node in the middle.

use std::time::Duration;

use futures::StreamExt;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior},
};
use towline_a2a::{A2aClient, SendOptions};
use towline_core::{Message, NodeId, Part, Role, Task, TaskState};
use towline_trace::{Kind, Span, names};

use super::{
    Console, DemoError,
    cluster::RunningCluster,
    folder::FileFacts,
    kill::{self, Kill},
    observer::{self, Attached, Door, Observer, ObserverMsg, Seen},
    options::{KillChoice, ModelChoice, Plan},
    progress::{self, Delegations, Progress},
    report::{self, DigestNote, EventsNote, KillNote, NodeNote, Report, TraceNote},
    tally::{NextEvent, Tally},
};

/// How often the task's record is looked at while it runs.
const LOOK_EVERY: Duration = Duration::from_millis(40);

/// How long a survey with the scripted model may take: a tenth of it is usual.
const SCRIPTED_WITHIN: Duration = Duration::from_secs(90);

/// How long a survey with a real model may take.
const REAL_WITHIN: Duration = Duration::from_secs(900);

/// Events that wait for the story teller; it does nothing but tell.
const REPORTS: usize = 256;

/// A survey that ended, and what the caller saw of it.
pub(crate) struct Survey {
    task: String,
    entry: NodeId,
    attached: NodeId,
    seen: Vec<Seen>,
    resumed: usize,
    kill: Option<Kill>,
    http: reqwest::Client,
    trace: u128,
}

/// Sends the task, follows it to its end, and kills a node on the way.
pub(crate) async fn make(
    plan: &Plan,
    cluster: &mut RunningCluster,
    nodes: &[NodeNote],
    console: &mut Console,
) -> Result<Survey, DemoError> {
    let entry = nodes.iter().find(|node| !node.leader_at_start).or(nodes.first());
    let entry =
        entry.map(door).ok_or_else(|| DemoError::NotReady { what: "a node".to_owned(), waited: Duration::ZERO })?;
    let root = Span::root(names::span::CLI_DEMO, Kind::Internal);
    let http = stream_client()?;
    console.say(format!("sending the task to surveyor at {}, which does not lead", entry.endpoint));
    let (task, first, attached) = send(&http, entry.clone(), plan.files, &root).await?;
    console.say(format!("task {task}"));
    let mut survey = Survey {
        task,
        entry: entry.node,
        attached: entry.node,
        seen: vec![first],
        resumed: 0,
        kill: None,
        http,
        trace: root.context().trace_id,
    };
    let attached = survey.move_off_owner(plan, cluster, nodes, attached, console).await?;
    survey.watch(plan, cluster, nodes, attached, console).await?;
    root.end();
    Ok(survey)
}

fn door(node: &NodeNote) -> Door {
    Door { node: node.id, endpoint: format!("{}/agents/surveyor", node.url) }
}

/// Streams are long: the A2A client has its own limits, so this one has none over all.
fn stream_client() -> Result<reqwest::Client, DemoError> {
    let built = reqwest::Client::builder().no_proxy().tcp_nodelay(true).connect_timeout(Duration::from_secs(2)).build();
    built.map_err(|source| DemoError::Operator { action: "make an HTTP client".to_owned(), source })
}

/// Sends the message on a stream and reads the first event, which is the task.
async fn send(
    http: &reqwest::Client,
    door: Door,
    files: usize,
    root: &Span,
) -> Result<(String, Seen, Attached), DemoError> {
    let message = Message {
        message_id: uuid::Uuid::now_v7().to_string().try_into().expect("a UUID is a message id"),
        context_id: None,
        task_id: None,
        role: Role::User,
        parts: vec![Part::text(format!("Survey the first {files} text files."))],
        metadata: Default::default(),
        extensions: Vec::new(),
        reference_task_ids: Vec::new(),
    };
    let client = A2aClient::new(http.clone(), &door.endpoint);
    let failed = |source| DemoError::Send { url: door.endpoint.clone(), source };
    let mut call = Span::child(names::span::SEND_STREAMING_MESSAGE, Kind::Client, &root.context());
    call.set(names::A2A_METHOD_NAME, names::span::SEND_STREAMING_MESSAGE);
    call.set(names::A2A_MESSAGE_ID, message.message_id.to_string());
    call.set(names::GEN_AI_AGENT_NAME, "surveyor");
    let mut stream = client.stream(&message, SendOptions::default(), Some(&call.context())).await.map_err(failed)?;
    let ended = || DemoError::Stream { reason: "it ended before its first event".to_owned() };
    let first = stream.next().await.ok_or_else(ended)?.map_err(failed)?;
    let towline_a2a::StreamEvent::Task(task) = &first.event else {
        return Err(DemoError::Stream { reason: format!("its first event is no task: {}", first.raw) });
    };
    Ok((task.id.clone(), Seen::from(first.clone()), Attached { door, stream }))
}

/// What can happen while a survey is watched.
enum Happening {
    Observed(Option<ObserverMsg>),
    TimeToLook,
    TooLate,
}

impl Survey {
    /// When the owner is to die and the caller's stream comes from there, reads on at another node.
    async fn move_off_owner(
        &mut self,
        plan: &Plan,
        cluster: &RunningCluster,
        nodes: &[NodeNote],
        attached: Attached,
        console: &mut Console,
    ) -> Result<Attached, DemoError> {
        let owner = self.record(cluster).await?.lease.map(|lease| lease.node);
        if plan.kill != Some(KillChoice::Owner) || owner != Some(attached.door.node) {
            return Ok(attached);
        }
        let Some(other) = nodes.iter().find(|node| node.id != attached.door.node).map(door) else {
            return Ok(attached);
        };
        let after = self.last_index();
        let stream = observer::subscribe(&self.http, &other, &self.task, after).await;
        let stream = stream.map_err(|source| DemoError::Send { url: other.endpoint.clone(), source })?;
        console.say(format!("its owner is the entry node: reading on at {} behind event {after}", other.endpoint));
        self.resumed += 1;
        self.attached = other.node;
        Ok(Attached { door: other, stream })
    }

    /// Follows the stream and the record until the task has ended.
    async fn watch(
        &mut self,
        plan: &Plan,
        cluster: &mut RunningCluster,
        nodes: &[NodeNote],
        attached: Attached,
        console: &mut Console,
    ) -> Result<(), DemoError> {
        let (reports, mut inbox) = mpsc::channel(REPORTS);
        let (attached_to, attached_now) = watch::channel(attached.door.node);
        let observer = Observer {
            http: self.http.clone(),
            task: self.task.clone(),
            doors: nodes.iter().map(door).collect(),
            last: self.last_index(),
            reports,
            attached_to,
        };
        // Ends with this function: it is aborted when the guard is dropped.
        let following = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(observer.follow(attached)));
        let within = if plan.model.model == ModelChoice::Scripted { SCRIPTED_WITHIN } else { REAL_WITHIN };
        let deadline = Instant::now() + within;
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut progress = Progress::default();
        loop {
            let happening = tokio::select! {
                biased;
                report = inbox.recv() => Happening::Observed(report),
                _ = look.tick() => Happening::TimeToLook,
                () = tokio::time::sleep_until(deadline) => Happening::TooLate,
            };
            match happening {
                Happening::Observed(report) => {
                    if self.observed(report, cluster, console)? {
                        break;
                    }
                }
                Happening::TimeToLook => {
                    let attached = *attached_now.borrow();
                    self.look(plan, cluster, attached, &mut progress, console).await?;
                }
                Happening::TooLate => {
                    return Err(DemoError::Timeout { task: self.task.clone(), waited: within });
                }
            }
        }
        drop(following);
        self.attached = *attached_now.borrow();
        self.check_killed(plan, cluster).await
    }

    /// Keeps what the observer saw; whether that was the end.
    fn observed(
        &mut self,
        report: Option<ObserverMsg>,
        cluster: &RunningCluster,
        console: &mut Console,
    ) -> Result<bool, DemoError> {
        match report {
            Some(ObserverMsg::Event(seen)) => self.seen.push(seen),
            Some(ObserverMsg::Resumed { node, after }) => {
                self.resumed += 1;
                let name = cluster.name_of(node);
                console.say(format!("the caller's stream broke; it goes on at {name} behind event {after}"));
            }
            Some(ObserverMsg::GivenUp { reason }) => return Err(DemoError::Stream { reason }),
            Some(ObserverMsg::Ended) | None => return Ok(true),
        }
        Ok(false)
    }

    /// Tells what is new in the record, and kills when it is the moment.
    async fn look(
        &mut self,
        plan: &Plan,
        cluster: &mut RunningCluster,
        attached: NodeId,
        progress: &mut Progress,
        console: &mut Console,
    ) -> Result<(), DemoError> {
        if let Some(error) = cluster.first_ended() {
            return Err(error);
        }
        // Around an election a node may not answer; the next look comes soon.
        let Ok(record) = self.record(cluster).await else { return Ok(()) };
        let counts = Delegations::of(&record);
        self.tell(&record, progress, cluster, console).await;
        let Some(choice) = plan.kill.filter(|_| self.kill.is_none()) else { return Ok(()) };
        self.check_completed(&record)?;
        if progress::has_ended(&record) {
            return Err(DemoError::EndedBeforeKill { ended: counts.ended, open: counts.open });
        }
        if kill::is_the_moment(counts) {
            let kill = kill::kill(cluster, choice, &record, attached).await?;
            console.say(announce(&kill));
            self.kill = Some(kill);
        }
        Ok(())
    }

    async fn tell(&self, record: &Task, progress: &mut Progress, cluster: &RunningCluster, console: &mut Console) {
        let ended = Delegations::of(record).ended;
        let news = progress.news(record);
        let before = ended - news.len();
        for (at, finished) in news.into_iter().enumerate() {
            let node = match &finished.task {
                Some(task) => self.ran_on(task, cluster).await,
                None => None,
            };
            let place = node.map(|name| format!(" on {name}")).unwrap_or_default();
            let word = if finished.failed { "failed" } else { "done" };
            console.say(format!("  {:>3}  reader{place} {word}: {}", before + at + 1, finished.asked));
        }
    }

    async fn ran_on(&self, task: &str, cluster: &RunningCluster) -> Option<String> {
        let node = cluster.alive().next()?;
        let child = cluster.operator().task(&node.plan.url(), task).await.ok()?;
        child.ran_on.last().map(|node| cluster.name_of(*node))
    }

    /// The record of the task, from any live node.
    async fn record(&self, cluster: &RunningCluster) -> Result<Task, DemoError> {
        let mut last = DemoError::NotReady { what: "a live node".to_owned(), waited: Duration::ZERO };
        for node in cluster.alive() {
            match cluster.operator().task(&node.plan.url(), &self.task).await {
                Ok(task) => return Ok(task),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn check_killed(&self, plan: &Plan, cluster: &RunningCluster) -> Result<(), DemoError> {
        if plan.kill.is_none() || self.kill.is_some() {
            return Ok(());
        }
        let record = self.record(cluster).await?;
        self.check_completed(&record)?;
        let Delegations { ended, open } = Delegations::of(&record);
        Err(DemoError::EndedBeforeKill { ended, open })
    }

    /// A task that ended otherwise says itself what went wrong.
    fn check_completed(&self, record: &Task) -> Result<(), DemoError> {
        let state = record.status.state;
        if !progress::has_ended(record) || state == TaskState::Completed {
            return Ok(());
        }
        let reason = record.status.message.as_ref().map(Message::text).unwrap_or_default();
        Err(DemoError::NotCompleted { task: self.task.clone(), state, reason })
    }

    fn last_index(&self) -> u64 {
        self.seen.iter().filter_map(|event| event.index).max().unwrap_or(0)
    }

    /// Reads the log from another node than the caller's, and makes the report.
    pub(crate) async fn report(
        self,
        files: &[FileFacts],
        cluster: &RunningCluster,
        nodes: Vec<NodeNote>,
    ) -> Result<Report, DemoError> {
        let record = self.record(cluster).await?;
        self.check_completed(&record)?;
        let state = record.status.state;
        let alive = || cluster.alive();
        let witness = alive().find(|node| node.id != self.attached).or(alive().next());
        let witness =
            witness.ok_or_else(|| DemoError::Stream { reason: "no node lives to read the log".to_owned() })?;
        let url = witness.plan.url();
        let log_door = Door { node: witness.id, endpoint: format!("{url}/agents/surveyor") };
        let log = observer::read_log(&self.http, &log_door, &self.task).await;
        let log = log.map_err(|source| DemoError::Stream { reason: crate::error::chain(&source) })?;
        let readers = report::read_readers(cluster.operator(), &url, &record).await?;
        let mut spans = cluster.operator().spans(&url, &self.task).await?;
        spans.extend(towline_trace::recent(self.trace));
        let text = record.artifacts.last().map(towline_core::Artifact::text).unwrap_or_default();
        let kill = self.kill.map(|kill| {
            let next = NextEvent::after(kill.at, &self.seen, &record);
            KillNote::new(kill, next, &record)
        });
        Ok(Report {
            task: self.task,
            state,
            nodes,
            entry: self.entry,
            kill,
            events: EventsNote { tally: Tally::compare(&self.seen, &log), resumed: self.resumed },
            digest: DigestNote::new(text, files),
            readers: readers.ended_on,
            adoptions: readers.adoptions,
            trace: TraceNote::new(&record, spans),
            elapsed_ms: 0,
            failure: None,
        })
    }
}

fn announce(kill: &Kill) -> String {
    let leader = if kill.was_leader { "it was the leader" } else { "it was not the leader" };
    let owner = if kill.was_owner { "it owned the surveyor's task" } else { "it did not own the surveyor's task" };
    let pid = kill.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    format!(
        "SIGKILL   node {} ({}){pid}: {owner}, {leader}; {} results were committed, {} outstanding",
        kill.node, kill.name, kill.delegations_ended, kill.delegations_open
    )
}

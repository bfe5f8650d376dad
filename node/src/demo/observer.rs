//! The caller's side: follows the stream of one task, resumes it at another node when it breaks, and keeps what it saw.

use std::time::{Duration, Instant, SystemTime};

use futures::StreamExt;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use towline_a2a::{A2aClient, ClientError, EventStream, StreamItem};
use towline_core::{NodeId, TaskState};

/// How long a broken stream is taken up again before it is given up: an election and an adoption, with room.
const RESUME_WITHIN: Duration = Duration::from_secs(20);

/// How long to wait before the next node is tried.
const RESUME_PAUSE: Duration = Duration::from_millis(50);

/// One event, as the caller saw it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Its SSE id.
    pub(crate) index: Option<u64>,
    /// When it arrived.
    pub(crate) at: SystemTime,
    /// What it says, as it came over the wire.
    pub(crate) raw: Value,
    /// The state that it tells, if it tells one.
    pub(crate) state: Option<TaskState>,
}

impl From<StreamItem> for Seen {
    fn from(item: StreamItem) -> Self {
        Seen { index: item.id, at: SystemTime::now(), state: item.event.state(), raw: item.raw }
    }
}

/// What the observer reports while it follows the stream.
#[derive(Debug)]
pub(crate) enum ObserverMsg {
    /// An event came.
    Event(Seen),
    /// The stream broke and goes on at another node behind this index.
    Resumed {
        /// The other node.
        node: NodeId,
        /// The last event that was seen.
        after: u64,
    },
    /// The last event was terminal, and the stream is done.
    Ended,
    /// The stream could not be taken up again.
    GivenUp {
        /// What was tried last.
        reason: String,
    },
}

/// A node at which a stream can be read.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    pub(crate) node: NodeId,
    /// JSON-RPC endpoint.
    pub(crate) endpoint: String,
}

/// A stream that stands, and at which door.
pub(crate) struct Attached {
    pub(crate) door: Door,
    pub(crate) stream: EventStream,
}

/// Follows a task's stream to its end.
pub(crate) struct Observer {
    pub(crate) http: reqwest::Client,
    pub(crate) task: String,
    /// The doors of all nodes, tried in turn.
    pub(crate) doors: Vec<Door>,
    /// The last event that was seen so far.
    pub(crate) last: u64,
    pub(crate) reports: mpsc::Sender<ObserverMsg>,
    /// Where the stream is read at the moment.
    pub(crate) attached_to: watch::Sender<NodeId>,
}

impl Observer {
    /// Runs until the task has ended, or its stream cannot be taken up again.
    pub(crate) async fn follow(mut self, first: Attached) {
        let mut attached = first;
        let end = loop {
            if self.read(&mut attached.stream).await {
                break ObserverMsg::Ended;
            }
            attached = match self.resume(attached.door.node).await {
                Ok(attached) => attached,
                Err(reason) => break ObserverMsg::GivenUp { reason },
            };
            let resumed = ObserverMsg::Resumed { node: attached.door.node, after: self.last };
            if self.reports.send(resumed).await.is_err() {
                return;
            }
        };
        // Whoever does not listen any more does not need the end either.
        let _ = self.reports.send(end).await;
    }

    /// Reads until the stream ends; whether the task has ended with it.
    async fn read(&mut self, stream: &mut EventStream) -> bool {
        while let Some(Ok(item)) = stream.next().await {
            let seen = Seen::from(item);
            self.last = seen.index.unwrap_or(self.last);
            let ended = seen.state.is_some_and(TaskState::is_terminal);
            if self.reports.send(ObserverMsg::Event(seen)).await.is_err() || ended {
                return true;
            }
        }
        false
    }

    /// Takes the stream up behind the last event, at whichever node answers first, beginning behind the one that failed.
    async fn resume(&mut self, failed: NodeId) -> Result<Attached, String> {
        let deadline = Instant::now() + RESUME_WITHIN;
        let start = self.doors.iter().position(|door| door.node == failed).map_or(0, |at| at + 1);
        let mut reason = "no node to ask".to_owned();
        let doors = self.doors.clone();
        for door in doors.iter().cycle().skip(start) {
            match subscribe(&self.http, door, &self.task, self.last).await {
                Ok(stream) => {
                    self.attached_to.send_replace(door.node);
                    return Ok(Attached { door: door.clone(), stream });
                }
                Err(error) => reason = format!("{}: {}", door.endpoint, crate::error::chain(&error)),
            }
            if Instant::now() > deadline {
                break;
            }
            tokio::time::sleep(RESUME_PAUSE).await;
        }
        Err(reason)
    }
}

/// Subscribes behind an event.
pub(crate) async fn subscribe(
    http: &reqwest::Client,
    door: &Door,
    task: &str,
    after: u64,
) -> Result<EventStream, ClientError> {
    A2aClient::new(http.clone(), &door.endpoint).subscribe(task, Some(after), None).await
}

/// The whole log of a task that has ended, as one node tells it from the first event to the last.
pub(crate) async fn read_log(http: &reqwest::Client, door: &Door, task: &str) -> Result<Vec<Seen>, ClientError> {
    let mut stream = subscribe(http, door, task, 0).await?;
    let mut events = Vec::new();
    while let Some(item) = stream.next().await {
        events.push(Seen::from(item?));
    }
    Ok(events)
}

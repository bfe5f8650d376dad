//! Clients of the cluster: each does one thing after the other through whatever node is up, and goes on elsewhere when the
//! node dies.
//!
//! A message whose fate is not known is sent again under the same id until a node has answered. A stream that breaks goes on
//! behind the last event that it showed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{sleep, timeout};
use towline_cluster::{BlobError, ClusterHandle, ProposeError};
use towline_core::{
    Blob, BlobForm, Command, Content, Message, Part, Principal, Proposal, Rejection, Reply, TaskId,
    limits::MAX_INLINE_BYTES,
};

use crate::{
    host::{Host, Life},
    ledger::Shared,
    plan::{self, Plan},
    tasks, world,
};

/// Clients that send, cancel and read.
const CALLERS: usize = 6;
/// Clients that follow a task.
const FOLLOWERS: usize = 3;
/// A client rests for so long between two things, in milliseconds.
const REST_MS: std::ops::Range<u64> = 10..200;
/// Between content that is kept and the message that names it, a request may be held up for so long, in milliseconds.
const HELD_UP_MS: std::ops::Range<u64> = 500..8_000;
const HELD_UP_ONE_OF: u8 = 8;
/// A client waits for so long for content.
const READ_TAKES_AT_MOST: Duration = Duration::from_secs(3);

/// All clients.
pub struct Clients {
    rng: fastrand::Rng,
    messages: u64,
    callers: Vec<Caller>,
    followers: Vec<Follower>,
}

#[derive(Default)]
struct Caller {
    rests_until: Duration,
    /// A message that no node has answered yet.
    unanswered: Option<Message>,
    /// Messages that were answered, to be sent again now and then.
    answered: Vec<Message>,
    doing: Option<Doing>,
}

#[derive(Default)]
struct Follower {
    rests_until: Duration,
    task: Option<TaskId>,
    after: Arc<AtomicU64>,
    doing: Option<Doing>,
}

/// Something that a node does for a client.
struct Doing {
    life: Arc<Life>,
    machine: usize,
    done: Arc<AtomicBool>,
    /// Whether the client is through with what it wanted.
    settled: Arc<AtomicBool>,
}

impl Doing {
    /// Whether it is over: done, or its process has gone.
    fn is_over(&self, hosts: &[Host]) -> bool {
        let same = hosts[self.machine].life().is_some_and(|life| Arc::ptr_eq(life, &self.life));
        self.done.load(Ordering::Relaxed) || !same
    }

    fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }
}

impl Clients {
    /// Clients who have done nothing yet.
    pub fn new(seed: u64) -> Self {
        let callers = (0..CALLERS).map(|_| Caller::default()).collect();
        let followers = (0..FOLLOWERS).map(|_| Follower::default()).collect();
        Self { rng: fastrand::Rng::with_seed(seed), messages: 0, callers, followers }
    }

    /// Lets every client go on that does nothing. `fresh` says whether new messages are sent.
    pub fn tick(&mut self, hosts: &[Host], shared: &Shared, fresh: bool) {
        let mut callers = std::mem::take(&mut self.callers);
        for caller in &mut callers {
            if let Some(doing) = caller.doing.take_if(|doing| doing.is_over(hosts)) {
                if doing.is_settled() {
                    caller.answered.extend(caller.unanswered.take());
                }
                caller.rests_until = self.rest();
            }
            if caller.doing.is_none() && caller.rests_until <= world::now() {
                caller.doing = self.call(caller, hosts, shared, fresh);
            }
        }
        self.callers = callers;
        let mut followers = std::mem::take(&mut self.followers);
        for follower in &mut followers {
            if let Some(doing) = follower.doing.take_if(|doing| doing.is_over(hosts)) {
                if doing.is_settled() {
                    follower.task = None;
                }
                follower.rests_until = self.rest();
            }
            if follower.doing.is_none() && follower.rests_until <= world::now() {
                follower.doing = self.follow(follower, hosts, shared);
            }
        }
        self.followers = followers;
    }

    /// Whether every message that was sent is answered.
    pub fn are_answered(&self) -> bool {
        self.callers.iter().all(|caller| caller.unanswered.is_none())
    }

    fn rest(&mut self) -> Duration {
        world::now() + Duration::from_millis(self.rng.u64(REST_MS))
    }

    fn some_host<'a>(&mut self, hosts: &'a [Host]) -> Option<(&'a Host, ClusterHandle, Doing)> {
        let host = &hosts[self.rng.usize(0..hosts.len())];
        let (life, handle) = (host.life()?, host.handle()?);
        let (done, settled) = (Arc::default(), Arc::default());
        Some((host, handle, Doing { life: life.clone(), machine: host.number, done, settled }))
    }

    fn call(&mut self, caller: &mut Caller, hosts: &[Host], shared: &Shared, fresh: bool) -> Option<Doing> {
        let (host, cluster, doing) = self.some_host(hosts)?;
        let call = Call { cluster, shared: shared.clone(), settled: doing.settled.clone() };
        let done = doing.done.clone();
        let chance = self.rng.u8(0..100);
        if let Some(message) = &caller.unanswered {
            host.spawn(finally(done, call.send(message.clone())));
        } else if chance < 45 && fresh {
            self.messages += 1;
            let id = format!("message {}", self.messages);
            let mut message = plan::message(&id, &Plan::draw(&mut self.rng));
            if self.rng.u8(0..5) == 0 {
                let content = Content::Raw(plan::large(&id, &mut self.rng));
                message.parts.push(Part { content, ..Part::text("") });
            }
            caller.unanswered = Some(message.clone());
            host.spawn(finally(done, call.send(message)));
        } else if chance < 55
            && let Some(message) = self.rng.choice(&caller.answered)
        {
            host.spawn(finally(done, call.send(message.clone())));
        } else if chance < 63
            && fresh
            && let Some(task) = shared.ledger().some_task(&mut self.rng)
        {
            host.spawn(finally(done, call.cancel(task)));
        } else if chance < 70
            && let Some(task) = shared.ledger().some_task(&mut self.rng)
        {
            host.spawn(finally(done, call.read_content(task)));
        } else {
            host.spawn(finally(done, call.read()));
        }
        Some(doing)
    }

    fn follow(&mut self, follower: &mut Follower, hosts: &[Host], shared: &Shared) -> Option<Doing> {
        let (host, cluster, doing) = self.some_host(hosts)?;
        let task = match follower.task {
            Some(task) => {
                shared.ledger().counts.resumed += 1;
                task
            }
            None => {
                let task = shared.ledger().some_task(&mut self.rng)?;
                follower.after = Arc::default();
                *follower.task.insert(task)
            }
        };
        let call = Call { cluster, shared: shared.clone(), settled: doing.settled.clone() };
        let patience = Duration::from_millis(self.rng.u64(50..1_500));
        let follow = call.follow(task, follower.after.clone());
        host.spawn(finally(doing.done.clone(), async move {
            // A client that goes elsewhere just like that resumes as well as one whose node died.
            let _gone = timeout(patience, follow).await;
        }));
        Some(doing)
    }
}

async fn finally(done: Arc<AtomicBool>, what: impl Future<Output = ()>) {
    what.await;
    done.store(true, Ordering::Relaxed);
}

/// One thing that is done through a node.
struct Call {
    cluster: ClusterHandle,
    shared: Shared,
    settled: Arc<AtomicBool>,
}

impl Call {
    fn settle(&self) {
        self.settled.store(true, Ordering::Relaxed);
    }

    async fn send(self, message: Message) {
        let id = message.message_id.to_string();
        self.shared.ledger().sends(&id);
        // A node that cannot keep content says so, and the client tries again.
        let Ok(message) = self.keep(message).await else { return };
        let submission = plan::submission(message, self.cluster.node_id(), None);
        let command = Command::Submit(Box::new(submission));
        match self.cluster.propose(Proposal { by: Principal::Operator, command }, None).await {
            Ok(Reply::Submitted { task, .. }) => {
                self.shared.ledger().submitted(&id, task);
                self.settle();
            }
            Ok(reply @ (Reply::Continued { .. } | Reply::Enrolled { .. } | Reply::Done)) => {
                self.shared.ledger().wrong(format!("message {id} was answered with {reply:?}"));
            }
            // While no node is up there is no agent.
            Err(ProposeError::Rejected(Rejection::UnknownAgent { .. })) => {}
            Err(ProposeError::Rejected(rejection)) => {
                self.shared.ledger().wrong(format!("message {id} was refused: {rejection}"));
            }
            Err(ProposeError::Unavailable { .. } | ProposeError::Unknown { .. }) => {}
        }
    }

    /// Has the large part of a message kept, by an upload or as part of it.
    async fn keep(&self, mut message: Message) -> Result<Message, BlobError> {
        let large = |part: &&mut Part| matches!(&part.content, Content::Raw(bytes) if bytes.len() > MAX_INLINE_BYTES);
        let Some(part) = message.parts.iter_mut().find(large) else { return Ok(message) };
        if world::with(|world| world.rng.bool()) {
            part.content = self.upload(&part.content).await?;
        } else {
            self.cluster.keep_message(&mut message).await?;
        }
        let held_up = world::with(|world| (world.rng.u8(0..HELD_UP_ONE_OF) == 0).then(|| world.rng.u64(HELD_UP_MS)));
        if let Some(ms) = held_up {
            sleep(Duration::from_millis(ms)).await;
        }
        self.shared.ledger().counts.kept += 1;
        Ok(message)
    }

    async fn upload(&self, content: &Content) -> Result<Content, BlobError> {
        let Content::Raw(bytes) = content else { return Ok(content.clone()) };
        let mut upload = self.cluster.begin_upload(None).await?;
        for piece in bytes.chunks(MAX_INLINE_BYTES) {
            upload.write(Bytes::copy_from_slice(piece)).await?;
        }
        let (hash, length) = upload.finish(None).await?;
        let proposal = Proposal { by: Principal::Operator, command: Command::Upload { hash, length } };
        if let Err(ProposeError::Rejected(rejection)) = self.cluster.propose(proposal, None).await {
            self.shared.ledger().wrong(format!("upload {hash} was refused: {rejection}"));
        }
        self.cluster.hold_content(hash, length).await?;
        Ok(Content::Blob(Blob { hash, length, form: BlobForm::Raw }))
    }

    /// Reads all content that a task names. That it cannot be read is no lie as long as nodes are away.
    async fn read_content(self, task: TaskId) {
        let Some(record) = tasks::recall(&self.cluster, task).await else { return };
        for (hash, length) in record.blobs.clone() {
            let read = async { self.cluster.open_blob(hash, length).await?.whole().await };
            if let Ok(Ok(content)) = timeout(READ_TAKES_AT_MOST, read).await {
                self.shared.ledger().content(task, length, content.len());
            }
        }
    }

    async fn cancel(self, task: TaskId) {
        let proposal = Proposal { by: Principal::Operator, command: Command::Cancel { task } };
        match self.cluster.propose(proposal, None).await {
            Ok(_) => self.shared.ledger().was_canceled(task),
            Err(ProposeError::Rejected(Rejection::NotCancelable { .. })) => {}
            Err(ProposeError::Rejected(rejection)) => {
                self.shared.ledger().wrong(format!("cancel of task {task} was refused: {rejection}"));
            }
            Err(ProposeError::Unavailable { .. } | ProposeError::Unknown { .. }) => {}
        }
    }

    async fn read(self) {
        let floor = self.shared.ledger().floor();
        let node = self.cluster.node_id();
        let ledger = self.shared.clone();
        // A node that cannot read says so, which is no lie.
        let _unavailable = self.cluster.read(move |state| ledger.ledger().read(node, floor, state)).await;
    }

    async fn follow(self, task: TaskId, after: Arc<AtomicU64>) {
        let floor = self.shared.ledger().floor();
        let (node, ledger) = (self.cluster.node_id(), self.shared.clone());
        if self.cluster.read(move |state| ledger.ledger().read(node, floor, state)).await.is_err() {
            sleep(Duration::from_millis(50)).await;
            return;
        }
        let mut watch = self.cluster.watch_task(task);
        while !self.show(task, &after).await {
            watch.changed().await;
        }
        self.settle();
    }

    /// Shows what follows. Returns whether that was all.
    async fn show(&self, task: TaskId, after: &AtomicU64) -> bool {
        let known = after.load(Ordering::Relaxed);
        let record = tasks::recall(&self.cluster, task).await;
        let events = record.as_ref().and_then(|record| record.events_after(known));
        let (Some(record), Some(events)) = (&record, events) else {
            let node = self.cluster.node_id();
            self.shared.ledger().wrong(format!("node {node} cannot go on behind event {known} of task {task}"));
            return true;
        };
        for event in events {
            self.shared.ledger().followed(task, after.swap(event.index, Ordering::Relaxed), event);
        }
        record.status.state.is_terminal()
    }
}

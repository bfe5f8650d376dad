//! Clients that follow a long answer, and go on at another node whenever the stream breaks.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use fastrand::Rng;
use serde_json::Value;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout_at},
};
use towline_tests::{Observer, Seen, concatenated_text, text_message};

use super::lab::{Lab, LabNode};

const CLIENTS: u64 = 4;
/// How often a client looks at its stream.
const LOOK: Duration = Duration::from_millis(40);
/// A stream that is open and silent for this long is left for another node: its node may be stopped or cut off.
const SILENCE: Duration = Duration::from_secs(4);
/// Before a broken stream is taken up again.
const PAUSE: Duration = Duration::from_millis(150);

/// One answer, as its follower saw it.
struct Followed {
    text: String,
    task: Option<String>,
    seen: Vec<Seen>,
    is_over: bool,
    connections: usize,
}

pub(crate) struct Streams {
    followed: Arc<Mutex<Vec<Followed>>>,
    clients: Vec<JoinHandle<()>>,
}

pub(crate) fn start(lab: &Arc<Lab>, seed: u64, until: &watch::Receiver<bool>) -> Streams {
    let followed = Arc::new(Mutex::new(Vec::new()));
    let client = |id: u64| {
        let rng = Rng::with_seed(seed.rotate_left(17) ^ (id + 1));
        tokio::spawn(work(Arc::clone(lab), id, seed, rng, until.clone(), Arc::clone(&followed)))
    };
    let clients = (0..CLIENTS).map(client).collect();
    Streams { followed, clients }
}

/// Waits for the followers until `deadline`, then compares each with what every node tells of the log.
pub(crate) async fn finish(lab: &Lab, streams: Streams, deadline: Instant) -> (String, Vec<String>) {
    let mut wrong = Vec::new();
    for client in streams.clients {
        if timeout_at(deadline, client).await.is_err() {
            wrong.push("a stream did not come to its end after the last fault".to_owned());
        }
    }
    let followed = std::mem::take(&mut *streams.followed.lock().unwrap());
    let (mut events, mut connections) = (0, 0);
    for one in &followed {
        events += one.seen.len();
        connections += one.connections;
        wrong.extend(mistakes(lab, one).await);
    }
    (
        format!("{} followed over {connections} connections, {events} events checked on every node", followed.len()),
        wrong,
    )
}

async fn work(
    lab: Arc<Lab>,
    id: u64,
    run: u64,
    mut rng: Rng,
    until: watch::Receiver<bool>,
    followed: Arc<Mutex<Vec<Followed>>>,
) {
    for number in 0.. {
        if *until.borrow() {
            return;
        }
        let text = format!("speaker {id} of {run}, answer {number},");
        let one = follow(&lab, &format!("stream-{run}-{id}-{number}"), text, &mut rng).await;
        followed.lock().unwrap().push(one);
    }
}

/// Sends one message and reads its stream to the end, through as many nodes as it takes.
async fn follow(lab: &Lab, message: &str, text: String, rng: &mut Rng) -> Followed {
    let mut one = Followed { text, task: None, seen: Vec::new(), is_over: false, connections: 0 };
    while !one.is_over {
        let node = &lab.nodes()[rng.usize(0..lab.nodes().len())];
        one.connections += 1;
        let observer = one.open(node, message).await;
        one.read(&observer).await;
        if !one.is_over {
            sleep(PAUSE).await;
        }
    }
    one
}

impl Followed {
    async fn open(&self, node: &LabNode, message: &str) -> Observer {
        let endpoint = node.agent("speaker");
        let last = self.seen.last().map(|seen| seen.index);
        match self.task.clone() {
            Some(task) => node.reach(async move { Observer::subscribe(&endpoint, &task, last) }).await,
            None => {
                let message = text_message(message, &self.text);
                node.reach(async move { Observer::send(&endpoint, message) }).await
            }
        }
    }

    /// Takes events until the task ends, or the stream does, or it is silent for too long.
    async fn read(&mut self, observer: &Observer) {
        let (mut taken, mut heard) = (0, Instant::now());
        loop {
            let is_over = observer.is_over();
            let seen = observer.seen();
            for event in &seen[taken..] {
                self.take(event.clone());
                heard = Instant::now();
            }
            taken = seen.len();
            if self.is_over || is_over || heard.elapsed() > SILENCE {
                return;
            }
            sleep(LOOK).await;
        }
    }

    fn take(&mut self, seen: Seen) {
        let event = &seen.event;
        let id = [&event["task"]["id"], &event["statusUpdate"]["taskId"], &event["artifactUpdate"]["taskId"]];
        self.task = self.task.take().or_else(|| id.iter().find_map(|id| id.as_str()).map(str::to_owned));
        let state = [&event["task"]["status"]["state"], &event["statusUpdate"]["status"]["state"]];
        self.is_over |= state.iter().filter_map(|state| state.as_str()).any(is_terminal);
        self.seen.push(seen);
    }
}

fn is_terminal(state: &str) -> bool {
    ["COMPLETED", "FAILED", "CANCELED", "REJECTED"].iter().any(|end| state.ends_with(end))
}

/// What the follower saw against the whole log of events, as each node tells it.
async fn mistakes(lab: &Lab, one: &Followed) -> Vec<String> {
    let Some(task) = one.task.clone() else { return vec![format!("{:?} has no task", one.text)] };
    let mut wrong = gaps(&task, &one.seen);
    let mut first: Option<BTreeMap<u64, String>> = None;
    for node in lab.nodes() {
        let log = whole_log(node, &task).await;
        let hashes: BTreeMap<u64, String> = log.iter().map(|seen| (seen.index, seen.hash.clone())).collect();
        if !hashes.keys().copied().eq(1..=hashes.len() as u64) || hashes.len() != log.len() {
            wrong.push(format!("task {task}: node {} tells events {:?}", node.name, hashes.keys()));
        }
        wrong.extend(answer_mistake(&task, node, &log, &one.text));
        // The first event of a stream that began later than the task is the task as it stood, not the event itself.
        let differs = |seen: &&Seen| seen.event.get("task").is_none() && hashes.get(&seen.index) != Some(&seen.hash);
        for seen in one.seen.iter().filter(differs) {
            wrong.push(format!("task {task}: event {} is another on node {}", seen.index, node.name));
        }
        if first.get_or_insert_with(|| hashes.clone()) != &hashes {
            wrong.push(format!("task {task}: node {} tells other events than node {}", node.name, lab.nodes()[0].name));
        }
    }
    wrong
}

/// Each event is the one after the event before it.
fn gaps(task: &str, seen: &[Seen]) -> Vec<String> {
    let pairs = seen.windows(2).filter(|pair| pair[1].index != pair[0].index + 1);
    pairs.map(|pair| format!("task {task}: event {} came after event {}", pair[1].index, pair[0].index)).collect()
}

fn answer_mistake(task: &str, node: &LabNode, log: &[Seen], user: &str) -> Option<String> {
    let lines: String = (0..40).map(|line| format!("{user} says line {line}, ")).collect();
    let texts = concatenated_text(log);
    let expected = lines + "the end";
    let fits = texts.values().any(|text| *text == expected);
    (!fits).then(|| {
        let end = log.last().map_or(Value::Null, |seen| seen.event.clone());
        format!("task {task}, through node {}: the text is not what was said; its end: {end}", node.name)
    })
}

async fn whole_log(node: &LabNode, task: &str) -> Vec<Seen> {
    let (endpoint, task) = (node.agent("speaker"), task.to_owned());
    node.reach(async move { Observer::subscribe(&endpoint, &task, Some(0)).finished().await }).await
}

//! Clients that submit, read and cancel the tasks of a few keys through all nodes, and write down what they were told.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use fastrand::Rng;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle, time::Instant};
use towline_tests::{A2aClient, RpcError, state_of, text_message};

use super::{
    checker::{History, OPEN, Op, Recorded},
    lab::{Lab, LabNode},
};

const CLIENTS: u32 = 9;
/// Keys in use at the same time; each is touched by several clients at once now and then.
const KEYS: u64 = 50;
/// How long until the oldest key makes room for a new one: it keeps the operations per key to some hundred.
const NEW_KEY_EVERY: Duration = Duration::from_millis(700);
/// A client that waits longer for an answer takes its outcome for unknown.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two operations of a client.
const PAUSE_MS: std::ops::Range<u64> = 5..60;

const NOT_FOUND: i64 = -32001;

/// What the clients share.
#[derive(Default)]
struct Notes {
    history: History,
    /// The task of each key, once somebody was told.
    tasks: BTreeMap<u64, String>,
    wrong: Vec<String>,
}

pub(crate) struct Registers {
    notes: Arc<Mutex<Notes>>,
    clients: Vec<JoinHandle<()>>,
}

struct Client {
    id: u32,
    lab: Arc<Lab>,
    rng: Rng,
    run: u64,
    began: Instant,
    notes: Arc<Mutex<Notes>>,
}

pub(crate) fn start(lab: &Arc<Lab>, seed: u64, began: Instant, until: &watch::Receiver<bool>) -> Registers {
    let notes = Arc::new(Mutex::new(Notes::default()));
    let client = |id: u32| {
        let rng = Rng::with_seed(seed ^ (u64::from(id) + 1));
        let client = Client { id, lab: Arc::clone(lab), rng, run: seed, began, notes: Arc::clone(&notes) };
        tokio::spawn(client.work(until.clone()))
    };
    let clients = (0..CLIENTS).map(client).collect();
    Registers { notes, clients }
}

/// Waits for the clients; then every task that somebody was told of is read through every node.
pub(crate) async fn finish(lab: &Lab, registers: Registers) -> (History, Vec<String>) {
    for client in registers.clients {
        client.await.unwrap();
    }
    let Notes { history, tasks, mut wrong } = std::mem::take(&mut *registers.notes.lock().unwrap());
    for (key, task) in tasks {
        let mut told: Vec<Value> = Vec::new();
        for node in lab.nodes() {
            match call(node, "GetTask", json!({ "id": task })).await {
                Ok(task) => told.push(task),
                Err(error) => wrong.push(format!("task {task} of key {key}, through node {}: {error:?}", node.name)),
            }
        }
        if told.windows(2).any(|pair| pair[0] != pair[1]) {
            wrong.push(format!("task {task} of key {key} differs between nodes: {told:?}"));
        }
    }
    (history, wrong)
}

impl Client {
    async fn work(mut self, mut until: watch::Receiver<bool>) {
        loop {
            let pause = Duration::from_millis(self.rng.u64(PAUSE_MS));
            tokio::select! {
                _ = until.wait_for(|over| *over) => return,
                () = tokio::time::sleep(pause) => {}
            }
            self.operation().await;
        }
    }

    async fn operation(&mut self) {
        let oldest = u64::try_from(self.began.elapsed().as_millis() / NEW_KEY_EVERY.as_millis()).unwrap();
        let key = oldest + self.rng.u64(0..KEYS);
        let known = self.notes.lock().unwrap().tasks.get(&key).cloned();
        let Some(task) = known else { return self.submit(key).await };
        match self.rng.u32(0..20) {
            0..4 => self.submit(key).await,
            4 => self.cancel(key, &task).await,
            _ => self.read(key, &task).await,
        }
    }

    async fn submit(&mut self, key: u64) {
        let message = text_message(&format!("key-{}-{key}", self.run), "ask");
        let params = json!({ "message": message, "configuration": { "returnImmediately": true } });
        let (called, answer) = self.ask("SendMessage", params).await;
        match answer {
            Ok(result) => {
                let task = result["task"]["id"].as_str().unwrap_or_default().to_owned();
                self.notes.lock().unwrap().tasks.insert(key, task.clone());
                self.record(key, called, self.now(), Op::Submit { task });
            }
            Err(_) => self.record(key, called, OPEN, Op::SubmitUnknown),
        }
    }

    async fn read(&mut self, key: u64, task: &str) {
        let (called, answer) = self.ask("GetTask", json!({ "id": task })).await;
        match answer {
            Ok(task) => {
                let canceled = self.ended(key, &task);
                self.record(key, called, self.now(), Op::Read { generation: generation(&task), canceled });
            }
            Err(RpcError { code: NOT_FOUND, .. }) => self.record(key, called, self.now(), Op::ReadNothing),
            Err(_) => self.notes.lock().unwrap().history.unanswered_reads += 1,
        }
    }

    async fn cancel(&mut self, key: u64, task: &str) {
        let (called, answer) = self.ask("CancelTask", json!({ "id": task })).await;
        match answer {
            Ok(task) => {
                self.ended(key, &task);
                self.record(key, called, self.now(), Op::Cancel { generation: generation(&task) });
            }
            Err(RpcError { code: NOT_FOUND, .. }) => self.record(key, called, self.now(), Op::ReadNothing),
            Err(_) => self.record(key, called, OPEN, Op::CancelUnknown),
        }
    }

    /// Whether the task was canceled. Nothing else may end it.
    fn ended(&self, key: u64, task: &Value) -> bool {
        let state = state_of(task);
        let fine = ["SUBMITTED", "WORKING", "INPUT_REQUIRED", "CANCELED"];
        if !fine.iter().any(|fine| state.ends_with(fine)) {
            self.notes.lock().unwrap().wrong.push(format!("the task of key {key} became {state}: {task}"));
        }
        state.ends_with("CANCELED")
    }

    async fn ask(&mut self, method: &'static str, params: Value) -> (i64, Result<Value, RpcError>) {
        let lab = Arc::clone(&self.lab);
        let node = &lab.nodes()[self.rng.usize(0..lab.nodes().len())];
        let called = self.now();
        (called, call(node, method, params).await)
    }

    fn now(&self) -> i64 {
        i64::try_from(self.began.elapsed().as_nanos()).unwrap()
    }

    fn record(&self, key: u64, called: i64, returned: i64, op: Op) {
        let recorded = Recorded { client: self.id, key, called, returned, op };
        self.notes.lock().unwrap().history.operations.push(recorded);
    }
}

/// One call through a node; without an answer in time it is an error like any other without a code.
async fn call(node: &LabNode, method: &'static str, params: Value) -> Result<Value, RpcError> {
    let endpoint = node.agent("asker");
    let call = async move { tokio::time::timeout(PATIENCE, A2aClient::new(endpoint).call(method, params)).await };
    let late = |_| Err(RpcError { code: 0, message: "no answer".to_owned(), data: Value::Null });
    node.reach(call).await.unwrap_or_else(late)
}

fn generation(task: &Value) -> u64 {
    task["metadata"]["dev.towline/generation"].as_u64().unwrap_or_else(|| panic!("no generation: {task}"))
}

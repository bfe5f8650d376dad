//! The node that is ended: one process, one voter, no listener.

use std::{env, path::PathBuf, time::Duration};

use towline_cluster::{CERTIFICATE_LIFE, Cluster, ClusterOptions, Registration, membership};
use towline_core::{
    AgentSpec, Command, Content, Message, NodeAddresses, Part, Placement, Principal, Proposal, Role, Submission,
    TaskId, TraceContext, VShard,
};

/// Names what the process is to do: `found`, `serve` or `check`.
pub(crate) const JOB: &str = "TOWLINE_KILL_POINT_JOB";
/// Names the data folder.
pub(crate) const DATA: &str = "TOWLINE_KILL_POINT_DATA";

/// With so much text, seventeen tasks fill a segment of the log.
const TEXT_BYTES: usize = 4_000_000;
/// So many of the tasks are small, so that the first kills come soon.
const SMALL: usize = 12;
/// A file that comes with the small ones lies beside the log.
const FILE_BYTES: usize = 2_000_000;
/// So many of the small ones are over when the others come, half of them in the archive before the first large one.
const FINISHED: usize = 8;
/// More than one segment, so that a snapshot lets one be removed.
const TASKS: usize = 32;

pub(crate) fn run(job: &str) {
    let data = PathBuf::from(env::var(DATA).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    found(&data);
    match job {
        "found" => {}
        "serve" => runtime.block_on(serve(data)),
        _ => runtime.block_on(check(data)),
    }
}

fn addresses() -> NodeAddresses {
    NodeAddresses { http: "http://127.0.0.1:1".to_owned(), peer: "127.0.0.1:1".to_owned() }
}

/// As `towline init` does, which is started again after a kill.
fn found(data: &std::path::Path) {
    if membership::identity(data).unwrap().is_none() {
        membership::found(data, "prod", "n1", addresses()).unwrap();
    }
}

async fn start(data: PathBuf) -> Cluster {
    let (addresses, version) = (addresses(), "test".to_owned());
    let options = ClusterOptions { data, addresses, version, certificate_life: CERTIFICATE_LIFE };
    let cluster = Cluster::start(options).await.unwrap();
    let agent = AgentSpec {
        name: "reader".parse().unwrap(),
        description: String::new(),
        placement: Placement::EveryNode,
        tags: Vec::new(),
        queue: None,
        labels: towline_core::Labels::new(),
    };
    let registered = async {
        while cluster
            .handle()
            .register(Registration { capacity: 8, agents: vec![agent.clone()], labels: towline_core::Labels::new() })
            .await
            .is_err()
        {}
    };
    tokio::time::timeout(Duration::from_secs(30), registered).await.unwrap();
    println!("term {}", cluster.handle().status().term);
    cluster
}

async fn serve(data: PathBuf) {
    let cluster = start(data).await;
    let mut tasks = Vec::new();
    for number in 0..TASKS {
        let task = TaskId::from_uuid(uuid::Uuid::now_v7());
        println!("sent {task}");
        let text = if number < SMALL { "read it".to_owned() } else { "x".repeat(TEXT_BYTES) };
        let submission = submission(&cluster, task, text, number < SMALL).await;
        cluster.handle().propose(submission, None).await.unwrap();
        println!("acked {task}");
        tasks.push(task);
        if number == SMALL {
            finish(&cluster, &tasks[..FINISHED / 2]).await;
        }
    }
    finish(&cluster, &tasks[FINISHED / 2..FINISHED]).await;
    cluster.handle().compact().await.unwrap();
    cluster.shutdown().await;
}

/// Ends tasks and sends them to the archive, which is written behind the log.
async fn finish(cluster: &Cluster, tasks: &[TaskId]) {
    let handle = cluster.handle();
    for task in tasks {
        let command = Command::Cancel { task: *task };
        handle.propose(Proposal { by: Principal::Operator, command }, None).await.unwrap();
    }
    let command = Command::Archive { tasks: tasks.to_vec() };
    handle.propose(Proposal { by: Principal::Node(handle.node_id()), command }, None).await.unwrap();
}

async fn check(data: PathBuf) {
    let cluster = start(data).await;
    let handle = cluster.handle();
    let held = handle.read(|state| {
        let tasks = (0..=u8::MAX).flat_map(|shard| state.tasks_in(VShard(shard)));
        tasks.map(|task| task.id).chain(state.archived_behind(None)).collect::<Vec<TaskId>>()
    });
    for task in held.await.unwrap() {
        assert_eq!(handle.local_task(task).await.unwrap().unwrap().id, task);
        println!("has {task}");
    }
    for (hash, length) in handle.local(|state| state.named_blobs().collect::<Vec<_>>()) {
        handle.open_blob(hash, length).await.unwrap().whole().await.unwrap();
    }
    cluster.shutdown().await;
}

async fn submission(cluster: &Cluster, task: TaskId, text: String, with_file: bool) -> Proposal {
    let mut message = Message {
        message_id: task.to_string().parse().unwrap(),
        context_id: None,
        task_id: None,
        role: Role::User,
        parts: vec![Part::text(text)],
        metadata: Default::default(),
        extensions: Vec::new(),
        reference_task_ids: Vec::new(),
    };
    if with_file {
        let file = task.to_string().repeat(FILE_BYTES / 36).into_bytes();
        message.parts.push(Part { content: Content::Raw(file), ..Part::text("") });
        cluster.handle().keep_message(&mut message).await.unwrap();
    }
    let submission = Submission {
        task,
        fresh_context: "c".parse().unwrap(),
        agent: "reader".parse().unwrap(),
        message,
        prefer: cluster.handle().node_id(),
        parent: None,
        hop: 0,
        deadline_ms: None,
        trace: TraceContext { trace_id: 1, span_id: 1, sampled: false },
        most_open: None,
        labels: towline_core::Labels::new(),
    };
    Proposal { by: Principal::Operator, command: Command::Submit(Box::new(submission)) }
}

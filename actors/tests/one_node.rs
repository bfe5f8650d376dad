//! Tasks on one real node: a real cluster of one and its log, real runs, and the scripted model at the edge.
#![expect(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "a test that cannot go on fails")]

use std::{collections::BTreeMap, path::Path, time::Duration};

use tempfile::TempDir;
use towline_actors::{AgentConfig, Mesh, MeshConfig, ModelConfig, ModelTimeouts, Provider};
use towline_cluster::{Cluster, ClusterHandle, ClusterOptions, Registration, membership};
use towline_core::{
    Command, EventKind, Intent, Message, MessageId, Metadata, NodeAddresses, Outcome, Part, Placement, Principal,
    Proposal, Reply, Role, Submission, Task, TaskId, TaskState, TraceContext,
};
use uuid::Uuid;

/// No wait in a test is longer.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(20);

const RULES: &str = r#"
rules:
  - name: a person decides
    when: { user: "ask me", results: false }
    calls:
      - { tool: ask_human, arguments: { question: "Which colour?" } }
  - name: after the answer
    when: { user: "ask me", results: true }
    say: "You said {{ results[0].content }}."
  - name: a tool that is not there
    when: { user: "wrong tool", results: false }
    fail: { kind: unknown_tool, times: 1 }
    calls:
      - { tool: ask_human, arguments: { question: "never asked" } }
  - name: after the refusal
    when: { user: "wrong tool", results: true }
    say: "It says: {{ results[0].content }}"
  - name: an answer that is cut once
    when: { user: "cut" }
    fail: { kind: truncated_stream, times: 1 }
    say: "one two three four five"
    delta_chars: 4
  - name: for ever
    when: { user: "slow" }
    say: "this takes a while"
    delay_ms: 600000
  - name: the same again and again
    when: { user: "loop" }
    calls:
      - { tool: nothing, arguments: {} }
  - name: hello
    when: { user: "hello" }
    say: "Hello to you, too."
    delta_chars: 3
"#;

struct Node {
    cluster: Cluster,
    handle: ClusterHandle,
    mesh: Option<Mesh>,
    config: MeshConfig,
    _dir: TempDir,
}

impl Node {
    async fn start() -> Self {
        // Only the first of the tests in this process installs it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let addresses = NodeAddresses { http: "http://127.0.0.1:1".into(), peer: "127.0.0.1:1".into() };
        membership::found(&data, "test", "a", addresses.clone()).unwrap();
        let cluster = start_cluster(&data, addresses).await;
        let handle = cluster.handle();
        let config = config();
        let mesh = Mesh::start(config.clone(), handle.clone()).await.unwrap();
        let registration =
            Registration { capacity: 8, agents: Mesh::agent_specs(&config), labels: towline_core::Labels::new() };
        handle.register(registration).await.unwrap();
        Self { cluster, handle, mesh: Some(mesh), config, _dir: dir }
    }

    async fn restart_mesh(&mut self) {
        if let Some(mesh) = self.mesh.take() {
            mesh.stop().await;
        }
        self.mesh = Some(Mesh::start(self.config.clone(), self.handle.clone()).await.unwrap());
    }

    async fn submit(&self, text: &str) -> TaskId {
        self.submit_until(text, None).await
    }

    async fn submit_until(&self, text: &str, deadline_ms: Option<u64>) -> TaskId {
        let task = TaskId::from_uuid(Uuid::now_v7());
        let submission = Submission {
            task,
            fresh_context: "c".parse().unwrap(),
            agent: "helper".parse().unwrap(),
            message: message(text),
            prefer: self.handle.node_id(),
            parent: None,
            hop: 0,
            deadline_ms,
            trace: trace(),
            most_open: None,
            labels: towline_core::Labels::new(),
        };
        let reply = self.propose(Command::Submit(Box::new(submission))).await;
        assert_eq!(reply, Reply::Submitted { task, created: true });
        task
    }

    async fn propose(&self, command: Command) -> Reply {
        self.handle.propose(Proposal { by: Principal::Operator, command }, None).await.unwrap()
    }

    fn task(&self, id: TaskId) -> Task {
        self.handle.local(|state| state.task(id).cloned()).unwrap()
    }

    async fn wait(&self, id: TaskId, what: &str, is_so: impl Fn(&Task) -> bool) -> Task {
        let found = tokio::time::timeout(PATIENCE, async {
            loop {
                let task = self.task(id);
                if is_so(&task) {
                    return task;
                }
                // A step that begins is no event, so there is nothing to be woken by.
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        found.await.unwrap_or_else(|_| panic!("{what} did not come: {:#?}", self.task(id)))
    }

    async fn end(&self, id: TaskId) -> Task {
        self.wait(id, "the end", |task| task.status.state.is_terminal()).await
    }

    async fn stop(mut self) {
        if let Some(mesh) = self.mesh.take() {
            mesh.stop().await;
        }
        self.cluster.shutdown().await;
    }
}

async fn start_cluster(data: &Path, addresses: NodeAddresses) -> Cluster {
    Cluster::start(ClusterOptions {
        data: data.to_owned(),
        addresses,
        version: "0".into(),
        certificate_life: towline_cluster::CERTIFICATE_LIFE,
    })
    .await
    .unwrap()
}

fn config() -> MeshConfig {
    let model = ModelConfig {
        provider: Provider::Scripted { rules: RULES.into(), strict: true },
        model: "scripted-1".into(),
        base_url: None,
        api_key: None,
        timeouts: ModelTimeouts::default(),
    };
    let agent = AgentConfig {
        name: "helper".parse().unwrap(),
        description: "Helps.".into(),
        model: "default".into(),
        instruction: "Help.".into(),
        tools: vec![],
        resources: vec![],
        delegates: vec![],
        placement: Placement::EveryNode,
        permits: Some(4),
        queue: None,
        max_steps: 3,
        ask_human: true,
        tags: vec![],
        labels: towline_core::Labels::new(),
        traits: towline_actors::Traits::default(),
        allow_trifecta: false,
        relays: false,
    };
    MeshConfig {
        permits: 8,
        models: BTreeMap::from([("default".into(), model)]),
        servers: vec![],
        agents: vec![agent],
        peers: vec![],
        push: None,
        ..MeshConfig::default()
    }
}

fn message(text: &str) -> Message {
    Message {
        message_id: MessageId::try_from(Uuid::now_v7().to_string()).unwrap(),
        context_id: None,
        task_id: None,
        role: Role::User,
        parts: vec![Part::text(text)],
        metadata: Metadata::new(),
        extensions: vec![],
        reference_task_ids: vec![],
    }
}

fn trace() -> TraceContext {
    TraceContext { trace_id: Uuid::now_v7().as_u128(), span_id: 7, sampled: true }
}

fn answer(task: &Task) -> String {
    task.artifacts.last().map(towline_core::Artifact::text).unwrap_or_default()
}

/// What a reader has who follows the events alone.
fn concatenated(task: &Task, artifact: &str) -> String {
    let mut text = String::new();
    for event in &task.events {
        if let EventKind::Artifact { artifact_id, parts, append, .. } = &event.kind
            && artifact_id == artifact
        {
            if !append {
                text.clear();
            }
            parts.iter().for_each(|part| text.push_str(&part_text(part)));
        }
    }
    text
}

fn part_text(part: &Part) -> String {
    match &part.content {
        towline_core::Content::Text(text) => text.clone(),
        other => panic!("no text: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_runs_to_its_end_and_its_events_give_its_text() {
    let node = Node::start().await;
    let id = node.submit("hello").await;
    let task = node.end(id).await;
    assert_eq!(task.status.state, TaskState::Completed);
    assert_eq!(answer(&task), "Hello to you, too.");
    assert_eq!(concatenated(&task, "step-0"), "Hello to you, too.");
    assert_eq!(task.artifacts[0].metadata["simulated"], true);
    assert_eq!(task.journal.len(), 1);
    assert!(task.turn.span.is_some_and(|span| span.trace_id == task.trace.trace_id));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_waits_through_a_restart_and_its_answer_goes_on() {
    let mut node = Node::start().await;
    let id = node.submit("please ask me").await;
    let asked = node.wait(id, "the question", |task| task.status.state == TaskState::InputRequired).await;
    assert_eq!(asked.status.message.unwrap().text(), "Which colour?");
    assert_eq!(asked.lease, None);
    node.restart_mesh().await;
    let answered = Message { task_id: Some(id), ..message("green") };
    node.propose(Command::Continue { task: id, message: answered, trace: trace() }).await;
    let task = node.end(id).await;
    assert_eq!(task.status.state, TaskState::Completed);
    assert_eq!(answer(&task), "You said green.");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_cannot_be_made_is_told_to_the_model() {
    let node = Node::start().await;
    let id = node.submit("wrong tool").await;
    let task = node.end(id).await;
    assert_eq!(task.status.state, TaskState::Completed);
    assert!(matches!(task.journal[1].intent, Intent::Refused { .. }), "{:?}", task.journal[1]);
    assert!(answer(&task).contains("there is no tool"), "{}", answer(&task));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_a_cut_answer_is_replaced() {
    let node = Node::start().await;
    let id = node.submit("cut").await;
    let task = node.end(id).await;
    assert_eq!(task.status.state, TaskState::Completed);
    assert_eq!(answer(&task), "one two three four five");
    assert_eq!(concatenated(&task, "step-0"), answer(&task));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_finds_no_end_is_stopped_at_its_limit() {
    let node = Node::start().await;
    let id = node.submit("loop").await;
    let task = node.end(id).await;
    assert_eq!(task.status.state, TaskState::Failed);
    let reason = task.status.message.unwrap().text();
    assert!(reason.contains("3 model calls"), "{reason}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_model_call_ends_the_task_and_says_what_was_tried() {
    let node = Node::start().await;
    let id = node.submit("no rule is for this").await;
    let task = node.end(id).await;
    assert_eq!(task.status.state, TaskState::Failed);
    assert!(task.status.message.unwrap().text().contains("no_rule"));
    assert!(matches!(task.journal[0].ended.as_ref().unwrap().outcome, Outcome::Failed { .. }));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_task_stays_canceled_and_gives_its_place_back() {
    let node = Node::start().await;
    let id = node.submit("slow").await;
    node.wait(id, "the model call", |task| !task.journal.is_empty()).await;
    node.propose(Command::Cancel { task: id }).await;
    let others: Vec<TaskId> = futures::future::join_all((0..12).map(|_| node.submit("hello"))).await;
    for other in others {
        assert_eq!(node.end(other).await.status.state, TaskState::Completed);
    }
    assert_eq!(node.task(id).status.state, TaskState::Canceled);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_waits_for_a_place_fails_at_its_deadline() {
    let node = Node::start().await;
    let busy: Vec<TaskId> = futures::future::join_all((0..4).map(|_| node.submit("slow"))).await;
    for id in &busy {
        node.wait(*id, "the model call", |task| !task.journal.is_empty()).await;
    }
    let id = node.submit_until("hello", Some(300)).await;
    let task = node.end(id).await;
    assert_eq!((task.status.state, task.journal.len()), (TaskState::Failed, 0), "it never got a place");
    assert!(task.status.message.unwrap().text().contains("deadline"));
    assert!(busy.iter().all(|id| node.task(*id).status.state == TaskState::Working));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_stopped_goes_on_where_its_journal_stands() {
    let mut node = Node::start().await;
    let id = node.submit("slow").await;
    node.wait(id, "the model call", |task| !task.journal.is_empty()).await;
    node.restart_mesh().await;
    let task = node.wait(id, "the second attempt", |task| task.journal[0].attempt == 2).await;
    assert_eq!((task.turn.attempt, task.turn.lost.len(), task.journal.len()), (2, 1, 1));
    node.stop().await;
}

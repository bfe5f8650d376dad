//! The public door of a real node, over real HTTP. The owner of a task is scripted: the test reports for it.

use std::time::Duration;

use futures::StreamExt;
use http::StatusCode;
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinHandle, time::timeout};
use towline_a2a::{
    A2aClient, ClientError, EventStream, ListQuery, RemoteTask, SendOptions, SendReply, StreamEvent, StreamItem,
};
use towline_cluster::{CertifiedNode, Cluster, ClusterOptions, Registration, membership};
use towline_core::{
    AgentSpec, Command, Enrolment, Message, Metadata, NodeAddresses, NodeId, NodeKey, NodeRole, OwnerReport, OwnerWord,
    Part, Placement, Principal, Proposal, Reply, Role, TaskId, TaskState,
};

use super::*;
use crate::auth::AuthSettings;

mod bindings;
mod burst;
mod protocol;

/// A wait of a test: far above what is measured, since machines are busy.
const PATIENCE: Duration = Duration::from_secs(30);

const ASYNC: SendOptions =
    SendOptions { return_immediately: true, history_length: None, task_id: None, context_id: None, timeout: None };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_sent_read_listed_and_canceled() {
    let node = Node::start().await;
    let client = node.client("/");

    let sent = task_of(client.send(&message("m-1", "hello"), ASYNC, None).await.unwrap());
    assert!(matches!(sent.state, TaskState::Submitted | TaskState::Working), "{sent:?}");
    assert_eq!(sent.metadata["dev.towline/agent"], "surveyor");
    let read = client.get_task(&sent.id, None, None).await.unwrap();
    assert_eq!((&read.id, read.history.len(), read.history[0].text()), (&sent.id, 1, "hello".to_owned()));

    let other = node.client("/agents/reader");
    let second = task_of(other.send(&message("m-2", "read"), ASYNC, None).await.unwrap());
    let all = client.list_tasks(&ListQuery { page_size: Some(1), ..ListQuery::default() }, None).await.unwrap();
    assert_eq!((all.tasks.len(), all.total_size), (1, 2));
    let rest = ListQuery { page_size: Some(1), page_token: all.next_page_token.clone(), ..ListQuery::default() };
    let rest = client.list_tasks(&rest, None).await.unwrap();
    assert_eq!(rest.next_page_token, None);
    let mut ids = [all.tasks[0].id.clone(), rest.tasks[0].id.clone()];
    ids.sort();
    assert_eq!(ids, [sent.id.clone(), second.id.clone()]);
    assert_eq!(other.list_tasks(&ListQuery::default(), None).await.unwrap().total_size, 1);

    for _ in 0..2 {
        assert_eq!(client.cancel_task(&sent.id, None).await.unwrap().state, TaskState::Canceled);
    }
    node.finish(&second.id, TaskState::Completed).await;
    let refused = client.cancel_task(&second.id, None).await.unwrap_err();
    assert!(matches!(refused, ClientError::Protocol { code: -32002, .. }), "{refused:?}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_message_is_answered_when_the_task_has_ended() {
    let node = Node::start().await;
    let client = node.client("/agents/reader");
    let sending =
        tokio::spawn(async move { client.send(&message("m-1", "hello"), SendOptions::default(), None).await });
    let id = node.only_task().await;
    node.report(&id, vec![chunk("done", false)]).await;
    node.finish(&id, TaskState::Completed).await;

    let task = task_of(timeout(PATIENCE, sending).await.unwrap().unwrap().unwrap());
    assert_eq!((task.state, task.artifacts[0].text()), (TaskState::Completed, "done".to_owned()));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_stream_of_a_task_shows_the_same_events_from_wherever_it_begins() {
    let node = Node::start().await;
    let client = node.client("/agents/reader");
    let mut sender = client.stream(&message("m-1", "hello"), SendOptions::default(), None).await.unwrap();
    let first = item(&mut sender).await;
    let StreamEvent::Task(task) = &first.event else { panic!("not the task: {first:?}") };
    assert_eq!((first.id, task.state, task.history.len()), (Some(1), TaskState::Submitted, 1));
    let id = task.id.clone();

    node.report(&id, vec![chunk("One ", false)]).await;
    let mut subscriber = client.subscribe(&id, None, None).await.unwrap();
    let snapshot = item(&mut subscriber).await;
    let StreamEvent::Task(task) = &snapshot.event else { panic!("not the task: {snapshot:?}") };
    assert_eq!((snapshot.id, task.generation), (Some(2), Some(2)));

    node.report(&id, vec![chunk("two ", true), chunk("three", true)]).await;
    node.finish(&id, TaskState::Completed).await;
    let sent = rest(sender).await;
    assert_eq!(ids(&sent), [2, 3, 4, 5]);
    assert_eq!(sent.last().unwrap().event.state(), Some(TaskState::Completed));
    assert!(sent.iter().all(|item| item.event.generation() == item.id), "the index is in the metadata too");
    let subscribed = rest(subscriber).await;
    assert_eq!(raws(&subscribed), raws(&sent[1..]));

    let everything = rest(client.subscribe(&id, Some(0), None).await.unwrap()).await;
    assert_eq!(everything[0].raw, first.raw);
    assert_eq!(raws(&everything[1..]), raws(&sent));
    assert_eq!(raws(&rest(client.subscribe(&id, Some(3), None).await.unwrap()).await), raws(&sent[2..]));
    let beyond = rest(client.subscribe(&id, Some(99), None).await.unwrap()).await;
    assert!(matches!(&beyond[..], [StreamItem { id: Some(5), event: StreamEvent::Task(_), .. }]), "{beyond:?}");
    assert!(client.subscribe(&id, None, None).await.unwrap_err().is_unsupported());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_asked_and_has_answered_is_streamed_where_the_task_stands_and_nothing_of_what_is_in_it() {
    let rule = |id: &str, token: &str| crate::auth::Rule {
        id: id.to_owned(),
        role: towline_core::PrincipalRole::User,
        permits: crate::auth::Permits::of(towline_core::PrincipalRole::User, &[]),
        labels: Arc::default(),
        evidence: crate::auth::Evidence::Bearer(crate::auth::Sha256::of(token.as_bytes())),
    };
    let rules = vec![rule("user:ada", "the-token-of-ada"), rule("user:bob", "the-token-of-bob")];
    let node = Node::start_with(AuthSettings { rules, ..AuthSettings::default() }).await;
    let client =
        |token: &str| node.client("/agents/reader").with_header("authorization", &format!("Bearer {token}")).unwrap();
    let (ada, bob) = (client("the-token-of-ada"), client("the-token-of-bob"));
    let id = task_of(ada.send(&message("m-1", "hello"), ASYNC, None).await.unwrap()).id;
    node.ask_of(&id, "which one?", Some("user:bob")).await;
    let asked = bob.get_task(&id, None, None).await.unwrap();
    assert_eq!(asked.history.len(), 2, "who is asked sees what it is about");

    // The id that ada's first message has: ids are the sender's.
    let answer = Message { task_id: Some(id.parse().unwrap()), ..message("m-1", "the first") };
    let mut stream = bob.stream(&answer, SendOptions::default(), None).await.unwrap();
    let first = item(&mut stream).await;
    let StreamEvent::Task(task) = &first.event else { panic!("not the task: {first:?}") };
    assert_eq!((task.state, task.history.len(), task.artifacts.len()), (TaskState::Submitted, 0, 0), "{first:?}");
    let span = TraceContext { trace_id: 1, span_id: 3, sampled: false };
    node.report(&id, vec![OwnerWord::TurnStarted { span }]).await;
    node.report(&id, vec![chunk("a secret", false)]).await;
    node.finish(&id, TaskState::Completed).await;
    let rest = rest(stream).await;
    assert_eq!(rest.last().unwrap().event.state(), Some(TaskState::Completed), "{rest:?}");
    let told = format!("{:?}", raws(&rest));
    assert!(!told.contains("secret") && !told.contains("the first"), "{told}");
    assert!(bob.get_task(&id, None, None).await.unwrap_err().is_unknown_task());
    let again = bob.send(&answer, SendOptions::default(), None).await.unwrap();
    assert_eq!(task_of(again).id, id, "the answer was taken once");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archived_task_is_read_listed_and_streamed_as_before() {
    let node = Node::start().await;
    let client = node.client("/agents/reader");
    let mut sender = client.stream(&message("m-1", "hello"), SendOptions::default(), None).await.unwrap();
    let first = item(&mut sender).await;
    let StreamEvent::Task(task) = &first.event else { panic!("not the task: {first:?}") };
    let id = task.id.clone();
    node.report(&id, vec![chunk("one", false), chunk("two", true)]).await;
    node.finish(&id, TaskState::Completed).await;
    let before = client.get_task(&id, None, None).await.unwrap();

    node.archive(&id).await;

    let after = client.get_task(&id, None, None).await.unwrap();
    assert_eq!((after.state, after.artifacts[0].text()), (TaskState::Completed, "onetwo".to_owned()));
    assert_eq!(after.history.len(), before.history.len());
    let page = client.list_tasks(&ListQuery::default(), None).await.unwrap();
    assert_eq!((page.total_size, &page.tasks[0].id), (1, &id));
    let all: Vec<StreamItem> = rest(sender).await;
    let resumed = rest(client.subscribe(&id, Some(1), None).await.unwrap()).await;
    assert_eq!(raws(&resumed), raws(&all), "what follows the first event");
    let sent = task_of(client.send(&message("m-1", "hello"), SendOptions::default(), None).await.unwrap());
    assert_eq!((sent.id, sent.state), (id, TaskState::Completed), "the same message");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_comes_twice_makes_one_task() {
    let node = Node::start().await;
    let client = node.client("/");
    let first = task_of(client.send(&message("m-1", "hello"), ASYNC, None).await.unwrap());
    let again = task_of(client.send(&message("m-1", "hello"), ASYNC, None).await.unwrap());
    assert_eq!(first.id, again.id);

    let mut stream = client.stream(&message("m-1", "hello"), SendOptions::default(), None).await.unwrap();
    let item = item(&mut stream).await;
    assert!(matches!(&item.event, StreamEvent::Task(task) if task.id == first.id), "{item:?}");
    drop(stream);

    let other = client.send(&message("m-1", "something else"), ASYNC, None).await.unwrap_err();
    assert_eq!(reason(&other), "MESSAGE_REUSED");
    assert_eq!(client.list_tasks(&ListQuery::default(), None).await.unwrap().total_size, 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_ends_the_stream_and_its_answer_goes_on() {
    let node = Node::start().await;
    let client = node.client("/agents/reader");
    let mut stream = client.stream(&message("m-1", "hello"), SendOptions::default(), None).await.unwrap();
    item(&mut stream).await;
    let id = node.only_task().await;
    node.ask(&id, "Which one?").await;
    let asked = rest(stream).await;
    let StreamEvent::Status { state, text, .. } = &asked.last().unwrap().event else { panic!("{asked:?}") };
    assert_eq!((*state, text.as_deref()), (TaskState::InputRequired, Some("Which one?")));

    let mut late = client.subscribe(&id, None, None).await.unwrap();
    assert_eq!(item(&mut late).await.event.state(), Some(TaskState::InputRequired), "and it stays open");

    let wrong = SendOptions { context_id: Some("elsewhere".into()), ..to(&id) };
    assert_eq!(reason(&client.send(&message("m-2", "x"), wrong, None).await.unwrap_err()), "CONTEXT_MISMATCH");
    let answered = client.stream(&message("m-3", "The first."), to(&id), None).await.unwrap();
    node.finish(&id, TaskState::Completed).await;
    let answered = rest(answered).await;
    assert!(matches!(&answered[0].event, StreamEvent::Task(task) if task.history.len() == 3), "{answered:?}");
    assert_eq!(answered.last().unwrap().event.state(), Some(TaskState::Completed));
    assert_eq!(rest(late).await.last().unwrap().event.state(), Some(TaskState::Completed));

    let over = client.send(&message("m-4", "more"), to(&id), None).await.unwrap_err();
    assert!(over.is_unsupported(), "{over:?}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_there_is_said_so() {
    let node = Node::start().await;
    let unknown = TaskId::from_uuid(uuid::Uuid::now_v7()).to_string();
    let client = node.client("/");
    assert!(client.get_task(&unknown, None, None).await.unwrap_err().is_unknown_task());
    assert!(client.get_task("nonsense", None, None).await.unwrap_err().is_unknown_task());
    assert!(client.subscribe(&unknown, None, None).await.unwrap_err().is_unknown_task());
    assert!(client.cancel_task(&unknown, None).await.unwrap_err().is_unknown_task());
    assert!(client.send(&message("m", "x"), to(&unknown), None).await.unwrap_err().is_unknown_task());
    assert_eq!(reason(&client.send(&message("m", " \n"), ASYNC, None).await.unwrap_err()), "EMPTY_MESSAGE");

    let nobody = node.client("/agents/nobody").send(&message("m", "x"), ASYNC, None).await.unwrap_err();
    assert_eq!(reason(&nobody), "UNKNOWN_AGENT");
    assert!(nobody.to_string().contains("reader, surveyor"), "{nobody}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_and_other_hosts_are_kept_out() {
    let node = Node::start().await;
    for (name, value) in [("origin", "http://evil.example"), ("host", "evil.example")] {
        let client = node.client("/").with_header(name, value).unwrap();
        let refused = client.get_task("t", None, None).await.unwrap_err();
        assert!(matches!(refused, ClientError::Auth { status: 403, .. }), "{name}: {refused:?}");
    }
    // What a delegation says on the peer door is not heard here.
    let client = node.client("/").with_header("towline-on-behalf-of", "{\"Node\":1}").unwrap();
    assert!(client.list_tasks(&ListQuery::default(), None).await.is_ok());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cards_are_served_and_cached() {
    let node = Node::start().await;
    let client = node.client("/");
    let mesh = client.card(&node.url).await.unwrap();
    assert_eq!((mesh.name.as_str(), mesh.jsonrpc_url), ("test", Some(format!("{}/", node.url))));
    assert_eq!(mesh.skills.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["reader", "surveyor"]);
    let reader = client.card(&format!("{}/agents/reader", node.url)).await.unwrap();
    assert_eq!(reader.jsonrpc_url, Some(format!("{}/agents/reader", node.url)));
    assert!(reader.streaming);

    let url = format!("{}/.well-known/agent-card.json", node.url);
    let first = node.http.get(&url).send().await.unwrap();
    let tag = first.headers()["etag"].clone();
    let second = node.http.get(&url).header("if-none-match", tag).send().await.unwrap();
    assert_eq!(second.status(), StatusCode::NOT_MODIFIED);
    let none = node.http.get(format!("{}/agents/nobody/.well-known/agent-card.json", node.url)).send().await.unwrap();
    assert_eq!(none.status(), StatusCode::NOT_FOUND);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_changes_nothing_for_its_task() {
    let node = Node::start().await;
    let client = node.client("/agents/reader");
    let mut stream = client.stream(&message("m-1", "hello"), SendOptions::default(), None).await.unwrap();
    item(&mut stream).await;
    drop(stream);
    let id = node.only_task().await;
    node.report(&id, vec![chunk("done", false)]).await;
    node.finish(&id, TaskState::Completed).await;
    assert_eq!(client.get_task(&id, None, None).await.unwrap().state, TaskState::Completed);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_node_ends_streams_and_answers_waits() {
    let node = Node::start().await;
    let client = node.client("/agents/reader");
    let mut stream = client.stream(&message("m-1", "hello"), SendOptions::default(), None).await.unwrap();
    item(&mut stream).await;
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.send(&message("m-1", "hello"), SendOptions::default(), None).await })
    };
    // The wait is under way once its request was read; canceling earlier or later gives the same answer.
    node.stop().await;
    let rest: Vec<_> = timeout(PATIENCE, stream.collect()).await.unwrap();
    assert!(rest.iter().all(Result::is_ok), "the stream ends in order: {rest:?}");
    match timeout(PATIENCE, waiting).await.unwrap().unwrap() {
        Ok(reply) => assert!(!task_of(reply).state.is_terminal()),
        Err(error) => assert!(error.is_transient(), "{error:?}"),
    }
}

fn message(id: &str, text: &str) -> Message {
    Message {
        message_id: id.parse().unwrap(),
        context_id: None,
        task_id: None,
        role: Role::User,
        parts: vec![Part::text(text)],
        metadata: Metadata::new(),
        extensions: Vec::new(),
        reference_task_ids: Vec::new(),
    }
}

fn to(task: &str) -> SendOptions {
    SendOptions { task_id: Some(task.to_owned()), ..SendOptions::default() }
}

pub(crate) fn chunk(text: &str, append: bool) -> OwnerWord {
    OwnerWord::Chunk {
        artifact_id: "step-0".into(),
        name: None,
        parts: vec![Part::text(text)],
        append,
        last_chunk: false,
        metadata: Metadata::new(),
    }
}

fn task_of(reply: SendReply) -> RemoteTask {
    match reply {
        SendReply::Task(task) => *task,
        SendReply::Message(message) => panic!("a message: {message:?}"),
    }
}

fn reason(error: &ClientError) -> &str {
    match error {
        ClientError::Protocol { reason: Some(reason), .. } => reason,
        other => panic!("not a reason: {other:?}"),
    }
}

async fn item(stream: &mut EventStream) -> StreamItem {
    timeout(PATIENCE, stream.next()).await.expect("an event in time").expect("an event").unwrap()
}

async fn rest(stream: EventStream) -> Vec<StreamItem> {
    let items: Vec<_> = timeout(PATIENCE, stream.collect()).await.expect("the stream ends");
    items.into_iter().map(Result::unwrap).collect()
}

fn ids(items: &[StreamItem]) -> Vec<u64> {
    items.iter().map(|item| item.id.unwrap()).collect()
}

fn raws(items: &[StreamItem]) -> Vec<&serde_json::Value> {
    items.iter().map(|item| &item.raw).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_peer_door_opens_for_members_under_their_own_key_and_closes_with_their_removal() {
    let node = Node::start().await;
    let handle = node.cluster.handle();
    let (key, forged) = (NodeKey("its own".into()), NodeKey("another".into()));
    handle
        .propose(by_operator(Command::MintToken { hash: "t".into(), role: NodeRole::Learner, ttl_ms: 60_000 }), None)
        .await
        .unwrap();
    let addresses = NodeAddresses { http: "http://127.0.0.1:2".into(), peer: "127.0.0.1:2".into() };
    let (token_hash, request) = ("t".to_owned(), uuid::Uuid::from_u128(1));
    let enrolment =
        Enrolment { token_hash, request, name: "b".into(), addresses, key: Some(key.clone()), knows_labels: true };
    let by = Principal::Node(handle.node_id());
    let enrolled = handle.propose(Proposal { by, command: Command::Enrol(enrolment) }, None).await.unwrap();
    let Reply::Enrolled { node: other, .. } = enrolled else { panic!("{enrolled:?}") };
    let certified = |node, key: &NodeKey| {
        let ends = towline_core::Timestamp(u64::MAX);
        Some(CertifiedNode { node, cluster_name: "test".into(), key: key.clone(), ends })
    };

    assert_eq!(node.at_peer_door(certified(other, &key)).await.0, 200);
    for (stranger, why) in [
        (None, "certificate of this cluster is needed"),
        (certified(other, &forged), "by another key"),
        (certified(handle.node_id(), &forged), "by another key"),
        (certified(NodeId(other.0 - 1), &forged), "was removed"),
    ] {
        let (status, said) = node.at_peer_door(stranger).await;
        assert!(status == 403 && said.contains(why), "{why}: {status} {said}");
    }
    let (status, said) = node.at_peer_door(certified(NodeId(u64::MAX), &forged)).await;
    assert!(status == 503 && said.contains("not known here yet"), "{status} {said}");

    handle.remove_node(other).await.unwrap();
    let (status, said) = node.at_peer_door(certified(other, &key)).await;
    assert!(status == 403 && said.contains("was removed"), "{status} {said}");
    node.stop().await;
}

fn by_operator(command: Command) -> Proposal {
    Proposal { by: Principal::Operator, command }
}

/// A cluster of one node with two agents, behind its public door.
pub(crate) struct Node {
    pub(crate) url: String,
    pub(crate) http: reqwest::Client,
    pub(crate) cluster: Cluster,
    pub(crate) stopping: CancellationToken,
    serving: JoinHandle<()>,
    _data: TempDir,
}

impl Node {
    async fn start() -> Self {
        Self::start_as(AuthSettings::default(), None).await
    }

    /// A node that knows these callers.
    async fn start_with(callers: AuthSettings) -> Self {
        Self::start_as(callers, None).await
    }

    /// With push notifications to where the policy allows.
    async fn start_telling(push: Option<Arc<EgressPolicy>>) -> Self {
        Self::start_as(AuthSettings::default(), push).await
    }

    async fn start_as(callers: AuthSettings, push: Option<Arc<EgressPolicy>>) -> Self {
        // With all routes there are.
        let serve = crate::mcp_server::ServeSettings { legacy_sse: true, ..Default::default() };
        Self::start_serving(callers, push, &serve).await
    }

    /// With this surface over MCP.
    pub(crate) async fn start_serving(
        callers: AuthSettings,
        push: Option<Arc<EgressPolicy>>,
        serve: &crate::mcp_server::ServeSettings,
    ) -> Self {
        // Another test of this process may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let data = tempfile::tempdir().unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", tcp.local_addr().unwrap());
        let addresses = NodeAddresses { http: url.clone(), peer: "127.0.0.1:1".into() };
        membership::found(data.path(), "test", "a", addresses.clone()).unwrap();
        let (data_folder, certificate_life) = (data.path().to_owned(), towline_cluster::CERTIFICATE_LIFE);
        let options = ClusterOptions { data: data_folder, addresses, version: "0".into(), certificate_life };
        let cluster = Cluster::start(options).await.unwrap();
        let agents = ["surveyor", "reader"].map(|name| AgentSpec {
            name: name.parse().unwrap(),
            description: format!("The {name}."),
            placement: Placement::EveryNode,
            tags: Vec::new(),
            queue: None,
            labels: towline_core::Labels::new(),
        });
        let handle = cluster.handle();
        handle
            .register(Registration { capacity: 8, agents: agents.to_vec(), labels: towline_core::Labels::new() })
            .await
            .unwrap();
        let stopping = CancellationToken::new();
        let auth = Arc::new(Auth::new(callers, tcp.local_addr().unwrap(), &url).unwrap());
        let api = Arc::new(crate::api::Api {
            cluster: handle.clone(),
            mesh: tokio::sync::Mutex::new(None),
            public_url: url.clone(),
            auth: Arc::clone(&auth),
            ready: true.into(),
            sign_ins: crate::sign_in::SignIns::new(handle.clone(), Default::default(), url.clone()),
            hooks: Default::default(),
            config: Arc::new(crate::config::read_sample(&crate::config::Overrides::default()).unwrap()),
            stopping: stopping.clone(),
        });
        let settings = Arc::new(A2aSettings {
            cluster: handle,
            front_door: "surveyor".parse().unwrap(),
            public_url: url.clone(),
            version: "0".into(),
            most_open: None,
            auth,
            push,
            card_signer: None,
            api: crate::api::for_known(Arc::clone(&api)),
            stopping: stopping.clone(),
        });
        let mcp = crate::mcp_server::McpServer::new(serve, Arc::clone(&settings), Arc::clone(&api)).unwrap();
        let bridge = crate::a2e::Bridge::new(Default::default(), &[], Arc::clone(&settings), Arc::clone(&api));
        let router = router(settings, Door::Public).merge(crate::api::router(api)).merge(mcp.routes());
        let router = router.merge(bridge.routes());
        let serving = tokio::spawn(listener::serve(tcp, listener::Plain, router, stopping.clone()));
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { url, http, cluster, stopping, serving, _data: data }
    }

    /// What a node with this certificate is answered on the peer listener.
    async fn at_peer_door(&self, certified: Option<CertifiedNode>) -> (u16, String) {
        let settings = Arc::new(A2aSettings {
            cluster: self.cluster.handle(),
            front_door: "surveyor".parse().unwrap(),
            public_url: self.url.clone(),
            version: "0".into(),
            most_open: None,
            auth: Arc::new(Auth::new(AuthSettings::default(), ([127, 0, 0, 1], 0).into(), &self.url).unwrap()),
            push: None,
            card_signer: None,
            api: axum::Router::new(),
            stopping: self.stopping.clone(),
        });
        let body = serde_json::json!({ "jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {} }).to_string();
        let request = http::Request::post("/agents/reader")
            .header("content-type", "application/json")
            .header("a2a-version", "1.0")
            .extension(towline_cluster::PeerIdentity(certified))
            .body(axum::body::Body::from(body))
            .unwrap();
        let answer = tower::ServiceExt::oneshot(router(settings, Door::Peer), request).await.unwrap();
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), 1024 * 1024).await.unwrap();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    pub(crate) fn client(&self, path: &str) -> A2aClient {
        A2aClient::new(self.http.clone(), format!("{}{path}", self.url))
    }

    /// The id of the task that a test has made.
    pub(crate) async fn only_task(&self) -> String {
        let client = self.client("/");
        timeout(PATIENCE, async {
            loop {
                let page = client.list_tasks(&ListQuery::default(), None).await.unwrap();
                if let [task] = &page.tasks[..] {
                    return task.id.clone();
                }
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("a task")
    }

    /// Reports as the owner of a task.
    pub(crate) async fn report(&self, task: &str, words: Vec<OwnerWord>) {
        let task: TaskId = task.parse().unwrap();
        let handle = self.cluster.handle();
        // A busy machine may have lost it for a moment.
        let leased = async {
            loop {
                if let Some(lease) = handle.local(|state| state.task(task).and_then(|task| task.lease.clone())) {
                    return lease;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let lease = timeout(PATIENCE, leased).await.expect("a lease");
        let number = lease.reported + 1;
        let report = OwnerReport { task, epoch: lease.epoch, number, words };
        let by = Principal::Node(handle.node_id());
        handle.propose(Proposal { by, command: Command::Report(report) }, None).await.unwrap();
    }

    pub(crate) async fn finish(&self, task: &str, state: TaskState) {
        self.report(task, vec![OwnerWord::Finished { state, message: None }]).await;
    }

    fn generation(&self, task: &str) -> u64 {
        let task: TaskId = task.parse().unwrap();
        self.cluster.handle().local(|state| state.task(task).unwrap().generation)
    }

    pub(crate) async fn archive(&self, task: &str) {
        let (id, handle): (TaskId, _) = (task.parse().unwrap(), self.cluster.handle());
        let by = Principal::Node(handle.node_id());
        handle.propose(Proposal { by, command: Command::Archive { tasks: vec![id] } }, None).await.unwrap();
        assert!(handle.local(|state| state.stub(id).is_some()));
    }

    /// Starts a question of the agent, and asks it.
    pub(crate) async fn ask(&self, task: &str, question: &str) {
        self.ask_of(task, question, None).await;
    }

    /// The same of one principal.
    async fn ask_of(&self, task: &str, question: &str, to: Option<&str>) {
        let span = TraceContext { trace_id: 1, span_id: 2, sampled: false };
        let step = towline_core::StepNo(0);
        let intent =
            towline_core::Intent::Ask { call_id: "c".into(), question: question.into(), to: to.map(str::to_owned) };
        let mut message = message("question-1", question);
        message.role = Role::Agent;
        self.report(
            task,
            vec![OwnerWord::StepStarted { step, intent, span }, OwnerWord::AskPerson { step, message, auth: false }],
        )
        .await;
    }

    pub(crate) async fn stop(self) {
        self.stopping.cancel();
        timeout(PATIENCE, self.serving).await.expect("the door closes").unwrap();
        self.cluster.shutdown().await;
    }
}

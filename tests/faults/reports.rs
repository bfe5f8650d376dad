//! What users of other A2A servers reported, each as a test: here those that no other scenario shows. `tests/REPORTS.md` lists
//! all of them with their tests.

use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use towline_tests::{
    Answer, Cluster, FakeModel, FakePeer, Gate, Observer, PeerScript, Plan, Takes, WebhookReceiver, concatenated_text,
    eventually, http_client, state_of, text_message, text_of_artifacts,
};

const WORKER: &str = "\
agents:
  - { name: worker, description: Says words., instruction: Say words., replicas: all }
push: { enabled: true, allow: [127.0.0.1] }
";

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_subscribes_again_after_a_kill_is_shown_all_that_was_and_all_that_follows() {
    let half_way = Gate::closed();
    let gate = half_way.clone();
    let model = FakeModel::start(move |chat| {
        let first = Answer::new().words(&["one ", "two ", "three "]);
        let first = if chat.repeated == 0 { first.wait(&gate) } else { first };
        first.words(&["four ", "five"])
    })
    .await;
    let mut cluster = Cluster::start(Plan::three(model.config() + WORKER)).await;
    let owner = cluster.another_than(&[cluster.leader().await]).id;
    let stream = Observer::send(cluster.node(owner).agent("worker").endpoint(), text_message("m-1", "speak"));
    let task = stream.task().await;
    let before = stream.saw(5).await;
    stream.hang_up();
    cluster.kill(owner).await;

    let survivor = cluster.another_than(&[owner]).agent("worker");
    let afresh = Observer::subscribe(survivor.endpoint(), &task, None);
    let resumed = Observer::subscribe(survivor.endpoint(), &task, Some(before.last().unwrap().index));
    half_way.open();
    let (afresh, resumed) = (afresh.finished().await, resumed.finished().await);

    let first = &afresh[0].event["task"];
    let known = text_of_artifacts(first).into_values().collect::<String>();
    assert!(known.starts_with("one "), "the task with what it had said: {first}");
    assert_eq!(resumed[0].index, before.last().unwrap().index + 1);
    for seen in [&afresh, &resumed] {
        assert!(seen.windows(2).all(|pair| pair[1].index == pair[0].index + 1), "no gap: {seen:?}");
        assert_eq!(seen.last().unwrap().event["statusUpdate"]["status"]["state"], "TASK_STATE_COMPLETED");
    }
    let all: Vec<_> = before.into_iter().chain(resumed).collect();
    let done = survivor.get(&task).await.unwrap();
    assert_eq!(concatenated_text(&all), text_of_artifacts(&done), "what was read in two pieces is the task");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_loses_neither_the_work_nor_its_last_write_nor_its_webhook() {
    let gate = Gate::closed();
    let wait = gate.clone();
    let model = FakeModel::start(move |_| Answer::new().text("one ").wait(&wait).words(&["two ", "three"])).await;
    let receiver = WebhookReceiver::start(|_| Takes::Event).await;
    let cluster = Cluster::start(Plan::one(model.config() + WORKER)).await;
    let worker = cluster.nodes[0].agent("worker");
    let stream = Observer::send(worker.endpoint(), text_message("m-1", "speak"));
    let task = stream.task().await;
    let config = json!({ "taskId": task, "url": receiver.url("/hook") });
    worker.call("CreateTaskPushNotificationConfig", config).await.unwrap();
    stream.hang_up();
    gate.open();

    let calls = receiver.told_the_end().await;
    assert_eq!(calls.last().unwrap().state(), Some("TASK_STATE_COMPLETED"));
    let done = worker.get(&task).await.unwrap();
    assert_eq!(text_of_artifacts(&done).into_values().collect::<String>(), "one two three");
    assert_eq!(model.chats().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_sent_again_after_its_answer_was_lost_starts_no_second_work() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let model = FakeModel::start(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Answer::say("done once")
    })
    .await;
    let cluster = Cluster::start(Plan::three(model.config() + WORKER)).await;
    let message = text_message("m-1", "work");
    let address: SocketAddr = cluster.nodes[0].url.trim_start_matches("http://").parse().unwrap();
    let body =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": { "message": message } }).to_string();
    let request = format!(
        "POST /agents/worker HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\na2a-version: 1.0\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    eventually("the work to begin", async || (calls.load(Ordering::SeqCst) == 1).then_some(())).await;
    drop(connection);

    let again = cluster.nodes[1].agent("worker").send(message.clone()).await.unwrap();
    assert_eq!(state_of(&again), "TASK_STATE_COMPLETED");
    let listed = cluster.nodes[2].agent("worker").call("ListTasks", json!({})).await.unwrap();
    assert_eq!(listed["totalSize"], 1, "{listed}");
    assert_eq!(calls.load(Ordering::SeqCst), 1, "the model was asked once");
    let mut other = message;
    other["parts"][0]["text"] = json!("other work");
    let refused = cluster.nodes[2].agent("worker").send(other).await.unwrap_err();
    assert!(refused.data.to_string().contains("MESSAGE_REUSED"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_gives_up_before_the_server_finds_the_finished_work() {
    let gate = Gate::closed();
    let wait = gate.clone();
    let model = FakeModel::start(move |_| Answer::new().wait(&wait).text("worth the wait")).await;
    let cluster = Cluster::start(Plan::one(model.config() + WORKER)).await;
    let worker = cluster.nodes[0].agent("worker");
    let message = text_message("m-1", "work long");
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": { "message": message } });
    let impatient = http_client()
        .post(worker.endpoint())
        .header("a2a-version", "1.0")
        .timeout(Duration::from_secs(1))
        .json(&body)
        .send()
        .await;
    assert!(impatient.unwrap_err().is_timeout());
    eventually("the work to begin", async || (model.chats().len() == 1).then_some(())).await;
    gate.open();

    let again = worker.send(message).await.unwrap();
    assert_eq!(state_of(&again), "TASK_STATE_COMPLETED");
    assert_eq!(text_of_artifacts(&again).into_values().collect::<String>(), "worth the wait");
    assert_eq!(model.chats().len(), 1, "nothing was thrown away and nothing done twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delegation_whose_stream_ends_early_looks_at_the_peers_task_and_never_sends_again() {
    let peer = FakePeer::start(PeerScript::CutsTheStream).await;
    let model = FakeModel::start(|chat| match chat.results.last() {
        None => Answer::new().call("delegate", &json!({ "agent": "foreign", "message": "do it" })),
        Some(result) => Answer::say(format!("it said: {result}")),
    })
    .await;
    let mesh = model.config()
        + &format!(
            "agents:\n  - {{ name: boss, description: Delegates., instruction: Delegate., delegates: [foreign] }}\npeers:\n  - {{ name: foreign, url: \"{}\" }}\n",
            peer.url()
        );
    let cluster = Cluster::start(Plan::one(mesh)).await;
    let done: Value = cluster.nodes[0].agent("boss").send(text_message("m-1", "have it done")).await.unwrap();
    assert_eq!(state_of(&done), "TASK_STATE_COMPLETED", "{done}");
    let text: String = text_of_artifacts(&done).into_values().collect();
    assert!(text.contains("the peer is done"), "{text}");
    assert_eq!(peer.messages(), 1);
    assert!(peer.calls().iter().any(|(method, _)| method == "GetTask"), "{:?}", peer.calls());
}

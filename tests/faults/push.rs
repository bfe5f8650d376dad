//! Webhooks whose receivers fail, hang and come back, and whose node is killed: every event arrives at least once and in
//! order, and the task never notices.

use serde_json::{Value, json};
use std::time::Duration;
use towline_tests::{
    Answer, Call, Cluster, FakeModel, Gate, Observer, Plan, Takes, WebhookReceiver, eventually, run_cli, run_cli_in,
    state_of, text_message,
};

const WORKER: &str = "\
agents:
  - { name: worker, description: Says words., instruction: Say words., replicas: all }
push: { enabled: true, allow: [127.0.0.1] }
";

/// Ada and Bob, by the tokens `the-token-of-ada` and `the-token-of-bob`.
const TWO_USERS: &str = "\
auth:
  principals:
    - { id: \"user:ada\", role: user, bearer: { sha256: 7dac292edbc1f082c8e2f3485f445396480972c0b282d9ecae47688f07754ecc } }
    - { id: \"user:bob\", role: user, bearer: { sha256: 14c82be42a0227d2fa226bb66cf042033e52fcfc5e06a8f73a4df3ebfa689890 } }
";

/// Longer than any first wait after a failure.
const QUIET: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread")]
async fn every_event_arrives_in_order_at_a_receiver_that_fails_at_first_and_whose_node_is_killed() {
    let recovers = Gate::closed();
    let hang = recovers.clone();
    // Two failures, then one call that hangs until its caller is killed, then all is well.
    let receiver = WebhookReceiver::start(move |call| match call.number {
        0 => Takes::Status(500),
        1 => Takes::Status(503),
        2..=5 => Takes::Event,
        6 => Takes::After(hang.clone()),
        _ => Takes::Event,
    })
    .await;
    let half_way = Gate::closed();
    let gate = half_way.clone();
    let model = FakeModel::start(move |chat| {
        let first = Answer::new().words(&["one ", "two ", "three ", "four "]);
        let first = if chat.repeated == 0 { first.wait(&gate) } else { first };
        first.words(&["five ", "six ", "seven ", "eight"])
    })
    .await;
    let mut cluster = Cluster::start(Plan::three(model.config() + WORKER)).await;
    let owner = cluster.another_than(&[cluster.leader().await]).id;
    let params = json!({ "message": text_message("m-1", "speak"), "configuration": {
        "returnImmediately": true,
        "taskPushNotificationConfig": { "id": "hook", "url": receiver.url("/hook?secret=1"), "token": "the-token",
            "authentication": { "scheme": "Bearer", "credentials": "the-credentials" } } } });
    let sent = cluster.node(owner).agent("worker").call("SendMessage", params).await.unwrap();
    let task = sent["task"]["id"].as_str().unwrap().to_owned();

    let failing = eventually("the failures to be seen", async || {
        Some(webhook(&cluster, owner, &task).await?).filter(|hook| hook["state"] == "failing")
    })
    .await;
    assert!(failing["last_status"].as_str().unwrap().starts_with("status 50"), "{failing}");
    assert!(failing["next_try"].is_string() && failing["dead"].is_null(), "{failing}");
    assert_eq!(failing["node"]["id"], owner, "the node that took the request tells it");
    eventually("the call that hangs", async || (receiver.calls().len() >= 7).then_some(())).await;
    cluster.kill(owner).await;
    half_way.open();

    let calls = receiver.told_the_end().await;
    recovers.open();
    let survivor = cluster.another_than(&[owner]);
    let all = Observer::subscribe(survivor.agent("worker").endpoint(), &task, Some(0)).finished().await;
    let told: Vec<u64> = calls.iter().filter(|call| call.taken).map(Call::index).collect();
    for seen in &all {
        let event = calls.iter().find(|call| call.taken && call.index() == seen.index);
        assert_eq!(event.map(|call| &call.event), Some(&seen.event), "event {} of {told:?}", seen.index);
    }
    assert_in_order(&calls);
    let (generation, trace) = (all.last().unwrap().index, cluster.task(&task).await.trace);
    for call in &calls {
        assert_eq!(call.header("authorization"), Some("Bearer the-credentials"));
        assert_eq!(call.header("x-a2a-notification-token"), Some("the-token"));
        assert_eq!(call.header("content-type"), Some("application/a2a+json"));
        let parent = call.header("traceparent").unwrap();
        assert!(parent.contains(&trace.trace_id_hex()), "{parent} is of the trace of the task");
    }
    let done = eventually("the place to be known everywhere", async || {
        Some(webhook(&cluster, survivor.id, &task).await?).filter(|hook| hook["state"] == "done")
    })
    .await;
    assert_eq!((&done["delivered_index"], &done["behind"]), (&json!(generation), &json!(0)), "{done}");
    assert_ne!(done["node"]["id"], owner, "another node went on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_is_set_up_later_is_told_the_task_as_it_stands_and_nothing_more_once_it_is_removed() {
    let receiver = WebhookReceiver::start(|_| Takes::Event).await;
    let (half_way, never) = (Gate::closed(), Gate::closed());
    let (first, second) = (half_way.clone(), never.clone());
    let model = FakeModel::start(move |_| {
        Answer::new().words(&["one ", "two "]).wait(&first).words(&["three ", "four "]).wait(&second).text("five")
    })
    .await;
    let cluster = Cluster::start(Plan::three(model.config() + WORKER)).await;
    let worker = cluster.nodes[0].agent("worker");
    let sent = worker.send_async(text_message("m-1", "speak")).await.unwrap();
    let task = sent["id"].as_str().unwrap().to_owned();
    let stream = Observer::subscribe(worker.endpoint(), &task, Some(0));
    stream.saw(4).await;

    let config = json!({ "taskId": task, "id": "hook", "url": receiver.url("/hook") });
    let other = cluster.nodes[1].agent("worker");
    let created = other.call("CreateTaskPushNotificationConfig", config.clone()).await.unwrap();
    assert_eq!(created, json!({ "id": "hook", "taskId": task, "url": receiver.url("/hook") }));
    eventually("the first call", async || (!receiver.calls().is_empty()).then_some(())).await;
    let first = &receiver.calls()[0];
    assert_eq!(first.state(), Some("TASK_STATE_WORKING"), "{}", first.event);
    assert!(first.event["task"]["artifacts"].to_string().contains("one"), "{}", first.event);
    half_way.open();
    eventually("what follows", async || (receiver.calls().len() >= 2).then_some(())).await;
    assert_in_order(&receiver.calls());

    let name = json!({ "taskId": task, "id": "hook" });
    for node in &cluster.nodes {
        let listed = node.agent("worker").call("ListTaskPushNotificationConfigs", json!({ "taskId": task })).await;
        assert_eq!(listed.unwrap()["configs"][0]["id"], "hook", "through node {}", node.name);
    }
    cluster.nodes[2].agent("worker").call("DeleteTaskPushNotificationConfig", name.clone()).await.unwrap();
    let gone = other.call("GetTaskPushNotificationConfig", name.clone()).await.unwrap_err();
    assert_eq!(gone.code, -32001, "{gone:?}");
    other.call("DeleteTaskPushNotificationConfig", name).await.unwrap();
    receiver.quiet_for(Duration::from_secs(1)).await;
    let before = receiver.calls().len();
    never.open();
    stream.finished().await;
    tokio::time::timeout(QUIET, async {
        eventually("a call", async || (receiver.calls().len() > before).then_some(())).await
    })
    .await
    .unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_never_answers_holds_up_neither_the_task_nor_the_webhook_beside_it() {
    let never = Gate::closed();
    let hang = never.clone();
    let receiver = WebhookReceiver::start(move |call| match call.path.as_str() {
        "/hangs" => Takes::After(hang.clone()),
        "/gone" => Takes::Status(410),
        _ => Takes::Event,
    })
    .await;
    let model = FakeModel::start(|_| Answer::new().words(&["one ", "two ", "three"])).await;
    let cluster = Cluster::start(Plan::one(model.config() + WORKER)).await;
    let worker = cluster.nodes[0].agent("worker");
    let push = json!({ "url": receiver.url("/hangs") });
    let params = json!({ "message": text_message("m-1", "speak"), "configuration": {
        "returnImmediately": true, "taskPushNotificationConfig": push } });
    let sent = worker.call("SendMessage", params.clone()).await.unwrap();
    let task = sent["task"]["id"].as_str().unwrap().to_owned();
    for path in ["/gone", "/well"] {
        let config = json!({ "taskId": task, "id": path, "url": receiver.url(path) });
        worker.call("CreateTaskPushNotificationConfig", config).await.unwrap();
    }
    let again = worker.call("SendMessage", params).await.unwrap();
    assert_eq!(again["task"]["id"], task, "the same message again is the same task with the same webhook");

    let stream = Observer::subscribe(worker.endpoint(), &task, Some(0)).finished().await;
    assert_eq!(stream.last().unwrap().event["statusUpdate"]["status"]["state"], "TASK_STATE_COMPLETED");
    receiver.told_the_end().await;
    let gone = eventually("the receiver that is gone to be given up", async || {
        let hooks = webhooks(&cluster, cluster.nodes[0].id, &task).await?;
        assert_eq!(hooks.len(), 3, "{hooks:?}");
        hooks.into_iter().find(|hook| hook["state"] == "dead")
    })
    .await;
    assert!(gone["dead"].as_str().unwrap().contains("wants no more: status 410"), "{gone}");
    let calls_of = |path: &str| receiver.calls().iter().filter(|call| call.path == path).count();
    assert_eq!(calls_of("/gone"), 1);

    let url = &cluster.nodes[0].url;
    let shown = run_cli(["task", "push", "list", &task, "--server", url]).await;
    assert!(shown.code == 0 && shown.stdout.contains("dead") && shown.stdout.contains("/hangs"), "{shown:?}");
    assert!(shown.stderr.contains("/gone was given up"), "{shown:?}");
    let data = run_cli(["task", "push", "list", &task, "-o", "json", "--server", url]).await;
    assert_eq!(data.json()["webhooks"].as_array().unwrap().len(), 3);
    let totals = cluster.nodes[0].operator("push").await.unwrap();
    assert_eq!((&totals["webhooks"], &totals["dead"]), (&json!(3), &json!(1)), "{totals}");
    let done = worker.get(&task).await.unwrap();
    assert_eq!(state_of(&done), "TASK_STATE_COMPLETED");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_of_a_task_sets_its_webhooks_up_sees_how_they_fare_and_takes_them_away() {
    let receiver = WebhookReceiver::start(|_| Takes::Status(503)).await;
    let never = Gate::closed();
    let gate = never.clone();
    let model = FakeModel::start(move |_| Answer::new().text("hm ").wait(&gate)).await;
    let mut cluster = Cluster::start(Plan::one(model.config() + WORKER)).await;
    let node = &mut cluster.nodes[0];
    node.stop().await;
    let config = std::fs::read_to_string(node.config()).unwrap();
    std::fs::write(node.config(), config + TWO_USERS).unwrap();
    node.start(None);
    node.ready().await;
    let (home, url) = (node.home.clone(), node.url.clone());
    for user in ["ada", "bob"] {
        std::fs::write(home.join(user), format!("the-token-of-{user}")).unwrap();
    }
    std::fs::write(home.join("hook-token"), "the-hook-token\n").unwrap();
    let by = async |user: &str, command: &[&str]| {
        let token = home.join(user);
        let more = ["--server", &url, "--token-file", token.to_str().unwrap()];
        run_cli_in(&home, command.iter().chain(&more)).await
    };
    let sent = by("ada", &["send", "worker", "--async", "-o", "json", "speak"]).await;
    let task = sent.json()["id"].as_str().unwrap().to_owned();
    let hook = receiver.url("/hook");
    let create = ["task", "push", "create", &task, "--url", &hook, "--id", "audit", "--hook-token-file", "hook-token"];
    let foreign = by("bob", &create).await;
    assert!(foreign.code == 1 && foreign.stderr.contains(&task), "another's task is not known: {foreign:?}");
    let created = by("ada", &create).await;
    assert_eq!((created.code, created.stdout.trim()), (0, "audit"), "{created:?}");

    let list = ["task", "push", "list", &task, "-o", "json"];
    let failing = eventually("the failure to be shown", async || {
        let webhooks = by("ada", &list).await.json()["webhooks"].clone();
        (webhooks[0]["state"] == "failing").then(|| webhooks[0].clone())
    })
    .await;
    assert_eq!((&failing["id"], &failing["last_error"]), (&json!("audit"), &json!("status_503")), "{failing}");
    assert!(failing["attempts"].as_u64().unwrap() > 0 && failing["next_try"].is_string(), "{failing}");
    assert_eq!(receiver.calls()[0].header("x-a2a-notification-token"), Some("the-hook-token"));
    let foreign = by("bob", &list).await;
    assert!(foreign.code == 1 && foreign.stderr.contains(&task), "{foreign:?}");

    let deleted = by("ada", &["task", "push", "delete", &task, "audit"]).await;
    assert_eq!(deleted.code, 0, "{deleted:?}");
    assert_eq!(by("ada", &list).await.json()["webhooks"], json!([]));
    let again = by("ada", &["task", "push", "delete", &task, "audit"]).await;
    assert_eq!(again.code, 0, "what is not there is no mistake: {again:?}");
    never.open();
}

/// Within what was taken, each event is followed by itself, the next one, or – after a loss – an earlier one that is told again,
/// from where on all follow once more.
fn assert_in_order(calls: &[Call]) {
    let taken: Vec<u64> = calls.iter().filter(|call| call.taken).map(Call::index).collect();
    let follows = |pair: &[u64]| pair[1] <= pair[0] + 1;
    assert!(taken.windows(2).all(follows), "an event was left out: {taken:?}");
}

async fn webhooks(cluster: &Cluster, node: u64, task: &str) -> Option<Vec<Value>> {
    let told = cluster.node(node).operator(&format!("tasks/{task}/push")).await?;
    told["webhooks"].as_array().cloned()
}

async fn webhook(cluster: &Cluster, node: u64, task: &str) -> Option<Value> {
    let hooks = webhooks(cluster, node, task).await?;
    let hook = hooks.into_iter().next()?;
    assert!(!hook.to_string().contains("secret") && !hook.to_string().contains("the-"), "no secret is shown: {hook}");
    Some(hook)
}

//! A node is emptied: its tasks go on elsewhere at the end of a step, none fails and none is in doubt.

use serde_json::json;
use std::{fs, path::Path};
use towline_core::Intent;
use towline_tests::{
    Answer, Cluster, FakeModel, Gate, Observer, Plan, Ran, TestNode, eventually, http_client, run_cli, scripted_mcp,
    state_of, text_message,
};

/// Tasks that run on the drained node beside the one in the middle of a call and the one that waits for a peer.
const SPEAKERS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_drained_under_load_and_a_call_that_must_not_run_twice_ends_first() {
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    let (cluster, _model) = callers(&calls).await;
    let owner = cluster.leader().await;
    let other = cluster.another_than(&[owner]).id;
    let send = async |agent: &str, id: &str| {
        let sent = cluster.node(owner).agent(agent).send_async(text_message(id, "go")).await.unwrap();
        sent["id"].as_str().unwrap().to_owned()
    };
    let call = send("sender", "m-call").await;
    let waits = send("chief", "m-waits").await;
    let mut tasks = vec![call.clone(), waits.clone()];
    for number in 0..SPEAKERS {
        tasks.push(send("speaker", &format!("m-{number}")).await);
    }
    for task in &tasks {
        assert_eq!(cluster.owner(task).await, owner);
    }
    eventually("the call", async || (noted(&calls) == 1).then_some(())).await;
    let streams: Vec<Observer> = tasks.iter().map(|task| follow(&cluster, other, task)).collect();

    let (node, url) = (owner.to_string(), cluster.node(other).url.clone());
    let draining = tokio::spawn(async move { operate(&url, &["drain", &node, "--wait"]).await });
    eventually("all but the call to be elsewhere", async || {
        let status = cluster.node(other).operator("cluster").await?;
        let member = status["members"].as_array()?.iter().find(|member| member["id"] == owner)?.clone();
        (member["draining"] == true && member["load"] == 1 && status["leader"] != owner).then_some(())
    })
    .await;
    assert_eq!(cluster.owner(&call).await, owner, "it is in the middle of a step");
    let shown = operate(&cluster.node(other).url, &["status"]).await;
    assert!(shown.stdout.contains("up, drained") && shown.stdout.contains("1 task left"), "{shown:?}");
    let fresh = send("speaker", "m-fresh").await;
    assert_ne!(cluster.owner(&fresh).await, owner, "it takes no new task");
    fs::write(folder.path().join("calls.go"), "").unwrap();

    let drained = draining.await.unwrap();
    assert_eq!(drained.code, 0, "{drained:?}");
    assert!(drained.stderr.contains(" left"), "it says how far it is: {drained:?}");
    assert!(drained.stdout.contains("has no tasks: it can be stopped"), "{drained:?}");
    for (task, stream) in tasks.iter().zip(streams) {
        let seen = stream.finished().await;
        let indexes: Vec<u64> = seen.iter().map(|seen| seen.index).collect();
        assert_eq!(indexes, (1..=indexes.len() as u64).collect::<Vec<_>>(), "task {task}");
        let states: Vec<String> =
            seen.iter().map(|seen| seen.event["statusUpdate"]["status"]["state"].to_string()).collect();
        assert!(!states.iter().any(|state| state.contains("INPUT_REQUIRED")), "nobody was asked: {states:?}");
        let record = cluster.task_at(other, task).await;
        assert_eq!(format!("{:?}", record.status.state), "Completed", "task {task}");
        let reasons: Vec<String> = seen
            .iter()
            .map(|seen| seen.event["statusUpdate"]["metadata"]["dev.towline/adopted"]["reason"].to_string())
            .filter(|reason| reason != "null")
            .collect();
        assert_eq!(reasons, ["\"drained\""], "task {task}");
    }
    assert_eq!(noted(&calls), 1, "the call was made once");
    let delegated = cluster.node(other).agent("speaker").call("ListTasks", json!({ "pageSize": 100 })).await.unwrap();
    assert_eq!(delegated["totalSize"], SPEAKERS + 2, "the delegation was taken up, not made again: {delegated}");
    let record = cluster.task_at(other, &call).await;
    assert_eq!(record.journal.iter().map(|step| step.attempt).collect::<Vec<_>>(), [1, 1, 1]);
    assert_eq!(record.late_results, []);

    let undrained = operate(&cluster.node(other).url, &["undrain", &owner.to_string()]).await;
    assert_eq!(undrained.code, 0, "{undrained:?}");
    let again = send("speaker", "m-again").await;
    assert_eq!(cluster.owner(&again).await, owner, "it takes tasks again");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_other_node_hosts_stays_and_is_said_and_a_step_is_interrupted_at_the_timeout() {
    let half_way = Gate::closed();
    let gate = half_way.clone();
    let model = FakeModel::start(move |_| Answer::new().words(&["one "]).wait(&gate).words(&["two"])).await;
    let everywhere = "agents:\n  - { name: speaker, description: Speaks., instruction: Speak., replicas: all }\n";
    let here = "  - { name: hermit, description: Speaks alone., instruction: Speak., replicas: all }\n";
    let mut cluster = Cluster::start(Plan { nodes: 2, permits: 8, mesh: model.config() + everywhere }).await;
    let mut third = TestNode::new(cluster.folder(), "third", 8, &(model.config() + everywhere + here));
    let token = cluster.join_token().await;
    third.start(Some((&cluster.nodes[0].peer, &token)));
    cluster.nodes.push(third);
    cluster.all_ready().await;
    let third = cluster.nodes[2].id;
    let send = async |agent: &str| {
        let sent =
            cluster.node(third).agent(agent).send_async(text_message(&format!("m-{agent}"), "go")).await.unwrap();
        sent["id"].as_str().unwrap().to_owned()
    };
    let (speaks, stays) = (send("speaker").await, send("hermit").await);
    for task in [&speaks, &stays] {
        let stream = Observer::subscribe(cluster.node(third).agent("speaker").endpoint(), task, Some(0));
        stream.saw(3).await;
    }
    let url = cluster.nodes[0].url.clone();
    let shown = operate(&url, &["status"]).await;
    assert!(shown.stdout.contains(&format!("only node {third} takes tasks of agent hermit")), "{shown:?}");

    let refused = operate(&url, &["drain", &third.to_string(), "--timeout", "25h"]).await;
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("timeout_ms is out of range: 0 to 86400000"), "{refused:?}");
    let unknown = operate(&url, &["drain", "9999"]).await;
    assert!(
        unknown.stderr.contains("node 9999 is not a member of this cluster: `towline cluster status`"),
        "{unknown:?}"
    );

    let drained = operate(&url, &["drain", &third.to_string(), "--wait", "--timeout", "1s"]).await;

    assert_eq!(drained.code, 5, "{drained:?}");
    assert!(drained.stderr.contains("2 tasks left"), "{drained:?}");
    let left = format!("task {stays} of agent hermit (no other node that takes tasks hosts agent hermit)");
    assert!(drained.stderr.contains(&left), "{drained:?}");
    assert!(drained.stderr.contains(&format!("`towline cluster undrain {third}`")), "{drained:?}");
    let moved = eventually("the step to run again elsewhere", async || {
        let record = cluster.task(&speaks).await;
        let is_elsewhere = record.lease.as_ref().is_some_and(|lease| lease.node.0 != third);
        (is_elsewhere && record.journal.first()?.attempt == 2).then_some(record)
    })
    .await;
    assert!(matches!(moved.journal[0].intent, Intent::Model { .. }));
    assert_eq!(cluster.owner(&stays).await, third);
    half_way.open();
    for task in [&speaks, &stays] {
        let record = eventually("the end of the task", async || {
            Some(cluster.task(task).await).filter(|record| record.status.state.is_terminal())
        })
        .await;
        assert_eq!(format!("{:?}", record.status.state), "Completed", "task {task}");
    }
    assert_eq!(cluster.task(&stays).await.ran_on.len(), 1, "it went on where it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_told_to_stop_lets_a_call_end_that_must_not_run_twice() {
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    let (mut cluster, _model) = callers(&calls).await;
    let owner = cluster.another_than(&[cluster.leader().await]).id;
    let sent = cluster.node(owner).agent("sender").send_async(text_message("m-1", "go")).await.unwrap();
    let task = sent["id"].as_str().unwrap().to_owned();
    eventually("the call", async || (noted(&calls) == 1).then_some(())).await;

    let (go, health) = (folder.path().join("calls.go"), format!("{}/healthz", cluster.node(owner).url));
    let opens = tokio::spawn(async move {
        eventually("the beginning of the stop", async || {
            let answer = http_client().get(&health).send().await;
            answer.is_ok_and(|answer| answer.status() == 503).then_some(())
        })
        .await;
        fs::write(go, "").unwrap();
    });
    let code = cluster.node_mut(owner).stop().await;
    opens.await.unwrap();
    assert_eq!(code, Some(0));

    let done = eventually("the end elsewhere", async || {
        let read = cluster.alive().next()?.agent("sender").get(&task).await.ok()?;
        assert_ne!(state_of(&read), "TASK_STATE_INPUT_REQUIRED", "nothing is in doubt");
        (state_of(&read) == "TASK_STATE_COMPLETED").then_some(read)
    })
    .await;
    assert!(done.to_string().contains("250 accepted"), "{done}");
    assert_eq!(noted(&calls), 1);
}

async fn operate(url: &str, command: &[&str]) -> Ran {
    run_cli(["cluster"].iter().chain(command).chain(&["--server", url])).await
}

pub(crate) fn follow(cluster: &Cluster, node: u64, task: &str) -> Observer {
    Observer::subscribe(cluster.node(node).agent("speaker").endpoint(), task, Some(0))
}

pub(crate) fn noted(calls: &Path) -> usize {
    fs::read_to_string(calls).unwrap_or_default().lines().count()
}

/// Three nodes with an agent whose call waits until it may end and must not run twice, one that thinks twice, with a call
/// that may be repeated between, and one that delegates to it.
async fn callers(calls: &Path) -> (Cluster, FakeModel) {
    let model = FakeModel::start(move |chat| match (chat.system.split('.').next(), chat.results.last()) {
        (Some("Send"), None) => Answer::new().call("srv__send_gated", &json!({ "text": "the letter" })),
        (Some("Order"), None) => Answer::new().call("delegate", &json!({ "agent": "speaker", "message": "speak" })),
        (Some("Send" | "Order"), Some(result)) => Answer::say(result.clone()),
        (_, None) => Answer::new()
            .words(&["a ", "b ", "c ", "d ", "e ", "f ", "g ", "h ", "i ", "j ", "k ", "l ", "m ", "n "])
            .call("echo__echo", &json!({ "text": "hello" })),
        (_, Some(result)) => Answer::new().words(&["x ", "y ", "z "]).text(result.clone()),
    })
    .await;
    callers_with(calls, model).await
}

/// The same with a model of one's own.
pub(crate) async fn callers_with(calls: &Path, model: FakeModel) -> (Cluster, FakeModel) {
    let server = |name: &str, calls: &str, on_adoption: &str| {
        format!(
            "    - {{ name: {name}, transport: stdio, command: [{:?}, {calls:?}], timeout: 300s, on_adoption: {{ \"*\": {on_adoption} }} }}\n",
            scripted_mcp()
        )
    };
    let echoes = calls.with_extension("echoes");
    let mesh = model.config()
        + "mcp:\n  servers:\n"
        + &server("srv", calls.to_str().unwrap(), "ask")
        + &server("echo", echoes.to_str().unwrap(), "retry")
        + "agents:\n  - { name: sender, description: Sends., instruction: Send., tools: [\"srv.*\"], replicas: all }\n"
        + "  - { name: speaker, description: Speaks., instruction: Speak., tools: [\"echo.*\"], replicas: all }\n"
        + "  - { name: chief, description: Orders., instruction: Order., delegates: [speaker], replicas: all }\n";
    (Cluster::start(Plan::three(mesh)).await, model)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_node_whose_vote_is_needed_is_not_said_to_be_stoppable() {
    let (mut cluster, _model) = callers(&tempfile::tempdir().unwrap().path().join("calls")).await;
    let leader = cluster.leader().await;
    let lost = cluster.another_than(&[leader]).id;
    let drained = cluster.another_than(&[leader, lost]).id;
    cluster.kill(lost).await;
    eventually("it to be lost", async || {
        let status = cluster.node(leader).operator("cluster").await?;
        status["quorum"].as_str()?.contains("can lose 0 more").then_some(())
    })
    .await;
    let told = operate(&cluster.node(leader).url, &["drain", &drained.to_string(), "--wait", "--timeout", "1s"]).await;
    assert_eq!(told.code, 5, "{told:?}");
    assert!(told.stderr.contains("do not stop it before another voter is up again"), "{told:?}");
    cluster.restart(lost).await;
    let told = operate(&cluster.node(leader).url, &["drain", &drained.to_string(), "--wait"]).await;
    assert!(told.code == 0 && told.stdout.contains("can be stopped"), "{told:?}");
}

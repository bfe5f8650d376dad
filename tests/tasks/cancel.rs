//! Canceling: through any node, to the bottom, for good.

use serde_json::json;
use towline_tests::{Answer, Cluster, FakeModel, Gate, Observer, Plan, eventually, state_of, text_message};

const AGENTS: &str = "\
agents:
  - { name: boss, description: Delegates., instruction: You are the boss., replicas: all, delegates: [worker] }
  - { name: worker, description: Works., instruction: You are the worker., replicas: all }
";

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_on_another_node_ends_the_streams_and_the_work() {
    let (cluster, model, _never) = endless_workers().await;
    let caller = Observer::send(cluster.nodes[0].agent("worker").endpoint(), text_message("m-1", "work for ever"));
    let task = caller.task().await;
    let watcher = Observer::subscribe(cluster.nodes[2].agent("worker").endpoint(), &task, Some(0));
    eventually("the model to be at work", async || (model.open_streams() == 1).then_some(())).await;

    let canceled = cluster.nodes[1].agent("worker").cancel(&task).await.unwrap();

    assert_eq!(state_of(&canceled), "TASK_STATE_CANCELED");
    for stream in [caller, watcher] {
        let last = stream.finished().await.pop().unwrap();
        assert_eq!(last.event["statusUpdate"]["status"]["state"], "TASK_STATE_CANCELED");
    }
    eventually("the model's answer to be dropped", async || (model.open_streams() == 0).then_some(())).await;
    let again = cluster.nodes[2].agent("worker").cancel(&task).await.unwrap();
    assert_eq!(state_of(&again), "TASK_STATE_CANCELED", "canceling twice is once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_task_stops_its_delegates() {
    let (cluster, model, _never) = endless_workers().await;
    let sent = cluster.nodes[0].agent("boss").send_async(text_message("m-1", "have it done")).await.unwrap();
    let parent = sent["id"].as_str().unwrap().to_owned();
    eventually("the workers to be at work", async || (model.open_streams() == 2).then_some(())).await;
    let list = cluster.nodes[1].agent("worker").call("ListTasks", json!({})).await.unwrap();
    assert_eq!(list["tasks"].as_array().unwrap().len(), 2, "{list}");

    cluster.nodes[1].agent("boss").cancel(&parent).await.unwrap();

    eventually("the workers to stop", async || (model.open_streams() == 0).then_some(())).await;
    for task in list["tasks"].as_array().unwrap().iter().chain([&sent]) {
        let read = cluster.nodes[2].agent("boss").get(task["id"].as_str().unwrap()).await.unwrap();
        assert_eq!(state_of(&read), "TASK_STATE_CANCELED", "{read}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_ended_cannot_be_canceled_and_takes_no_message() {
    let model = FakeModel::start(|_| Answer::say("done")).await;
    let cluster = Cluster::start(Plan::one(model.config() + AGENTS)).await;
    let worker = cluster.nodes[0].agent("worker");
    let done = worker.send(text_message("m-1", "work")).await.unwrap();
    let id = done["id"].as_str().unwrap();
    let refused = worker.cancel(id).await.unwrap_err();
    assert_eq!(refused.code, -32002, "TaskNotCancelable: {refused:?}");
    let mut more = text_message("m-2", "more");
    more["taskId"] = json!(id);
    let refused = worker.send(more).await.unwrap_err();
    assert_eq!(refused.code, -32004, "UnsupportedOperation: {refused:?}");
    assert_eq!(worker.get(id).await.unwrap(), done, "nothing changed");
}

async fn endless_workers() -> (Cluster, FakeModel, Gate) {
    let never = Gate::closed();
    let gate = never.clone();
    let model = FakeModel::start(move |chat| {
        if chat.system.contains("boss") {
            let order = json!({ "agent": "worker", "message": "work for ever" });
            return Answer::new().call("delegate", &order).call("delegate", &order);
        }
        Answer::new().text("working ").wait(&gate)
    })
    .await;
    let cluster = Cluster::start(Plan::three(model.config() + AGENTS)).await;
    (cluster, model, never)
}

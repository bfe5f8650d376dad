//! URLs of webhooks that lead where no outsider may have a node dial.

use serde_json::json;
use std::time::Duration;
use towline_tests::{
    Answer, Cluster, FakeModel, Gate, Plan, Takes, WebhookReceiver, eventually, http_client, state_of, text_message,
};

const WORKER: &str = "agents:\n  - { name: worker, description: Works., instruction: Work. }\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_leads_inside_is_refused_and_the_task_goes_on() {
    let inside = WebhookReceiver::start(|_| Takes::Event).await;
    let gate = Gate::closed();
    let wait = gate.clone();
    let model = FakeModel::start(move |_| Answer::new().text("one ").wait(&wait).text("two")).await;
    let cluster = Cluster::start(Plan::one(model.config() + WORKER + "push: { enabled: true }\n")).await;
    let worker = cluster.nodes[0].agent("worker");
    let sent = worker.send_async(text_message("m-1", "work")).await.unwrap();
    let task = sent["id"].as_str().unwrap().to_owned();

    let localhost = inside.url("/").replace("http://127.0.0.1", "https://localhost");
    let port = inside.url("/").rsplit(':').next().unwrap().to_owned();
    for url in [
        inside.url("/hook"),
        inside.url("/hook").replace("http", "https"),
        localhost.clone(),
        localhost.replace("localhost", "localhost."),
        format!("https://[::ffff:127.0.0.1]:{port}"),
        format!("https://2130706433:{port}"),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "https://169.254.169.254/latest/meta-data/".to_owned(),
        "https://[fd00:ec2::254]/".to_owned(),
        "https://10.0.0.1/".to_owned(),
        "https://user:password@127.0.0.1/".to_owned(),
        "file:///etc/passwd".to_owned(),
    ] {
        let config = json!({ "taskId": task, "url": url });
        let refused = worker.call("CreateTaskPushNotificationConfig", config).await.unwrap_err();
        assert_eq!((refused.code, refused.message.starts_with("url: ")), (-32602, true), "{url}: {refused:?}");
        let message = text_message("m-2", "work");
        let params = json!({ "message": message, "configuration": { "taskPushNotificationConfig": { "url": url } } });
        let refused = worker.call("SendMessage", params).await.unwrap_err();
        assert!(refused.message.starts_with("configuration.taskPushNotificationConfig.url: "), "{url}: {refused:?}");
    }
    let tasks = worker.call("ListTasks", json!({})).await.unwrap();
    assert_eq!(tasks["totalSize"], 1, "a message whose webhook is refused makes no task");
    gate.open();
    let done = eventually("the task to end", async || {
        Some(worker.get(&task).await.unwrap()).filter(|task| state_of(task) == "TASK_STATE_COMPLETED")
    });
    done.await;
    assert!(inside.calls().is_empty(), "nothing was dialled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_sends_its_caller_elsewhere_is_not_followed() {
    let inside = WebhookReceiver::start(|_| Takes::Event).await;
    let target = inside.url("/inside");
    let outside = WebhookReceiver::start(move |_| Takes::Redirect(target.clone())).await;
    let model = FakeModel::start(|_| Answer::say("done")).await;
    let open = "push: { enabled: true, allow: [127.0.0.0/8] }\n";
    let cluster = Cluster::start(Plan::one(model.config() + WORKER + open)).await;
    let worker = cluster.nodes[0].agent("worker");
    let push = json!({ "url": outside.url("/hook") });
    let params =
        json!({ "message": text_message("m-1", "work"), "configuration": { "taskPushNotificationConfig": push } });
    let done = worker.call("SendMessage", params).await.unwrap();
    assert_eq!(state_of(&done["task"]), "TASK_STATE_COMPLETED");
    let task = done["task"]["id"].as_str().unwrap();
    let hook = eventually("the answer to be seen", async || {
        let hooks = cluster.nodes[0].operator(&format!("tasks/{task}/push")).await?;
        Some(hooks["webhooks"][0].clone()).filter(|hook| hook["state"] == "failing")
    })
    .await;
    assert!(hook["last_status"].as_str().unwrap().contains("redirects are not followed"), "{hook}");
    assert!(inside.calls().is_empty());
    outside.quiet_for(Duration::from_millis(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_are_refused_until_the_operator_turns_them_on_and_the_card_says_which() {
    let model = FakeModel::start(|_| Answer::say("done")).await;
    for (push, says) in [("", false), ("push: { enabled: true }\n", true)] {
        let cluster = Cluster::start(Plan::one(model.config() + WORKER + push)).await;
        let node = &cluster.nodes[0];
        for path in ["", "/agents/worker"] {
            let url = format!("{}{path}/.well-known/agent-card.json", node.url);
            let card: serde_json::Value = http_client().get(url).send().await.unwrap().json().await.unwrap();
            assert_eq!(card["capabilities"]["pushNotifications"], says, "{card}");
        }
        let done = node.agent("worker").send(text_message("m-1", "work")).await.unwrap();
        let configs = json!({ "taskId": done["id"] });
        let listed = node.agent("worker").call("ListTaskPushNotificationConfigs", configs).await;
        match says {
            true => assert_eq!(listed.unwrap(), json!({ "configs": [], "nextPageToken": "" })),
            false => assert_eq!(listed.unwrap_err().code, -32003),
        }
    }
}

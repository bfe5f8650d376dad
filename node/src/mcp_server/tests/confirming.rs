//! The guarded writes: each guard with the other two out of the way, and agents as tools.

use super::*;

fn with_writes(clients: &[&str]) -> ServeSettings {
    let clients: Vec<String> = clients.iter().map(|client| (*client).to_owned()).collect();
    let writes = Write::ALL.map(|write| Guarded { write, clients: clients.clone() });
    ServeSettings { writes: writes.to_vec(), ..ServeSettings::default() }
}

fn asks() -> Value {
    json!({ "elicitation": {} })
}

impl Client<'_> {
    async fn state_of(&self, task: &str) -> String {
        let task = self.read("get_task", json!({ "task_id": task })).await;
        task["task"]["status"]["state"].as_str().unwrap().to_owned()
    }

    /// Calls with a session, and answers the question that comes.
    async fn call_and_say(&self, tool: &str, arguments: Value, answer: Value) -> Value {
        let call = self.asking("tools/call", json!({ "name": tool, "arguments": arguments }));
        let mut stream = Stream::of(call.send().await.unwrap());
        let question = stream.next().await.unwrap();
        assert_eq!(question["method"], "elicitation/create", "{question}");
        assert_eq!(question["params"]["requestedSchema"]["required"], json!(["confirm"]));
        self.say(json!({ "jsonrpc": "2.0", "id": question["id"], "result": answer })).await;
        stream.next().await.unwrap()["result"].clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_a_setting_serves_to_others_is_unknown_to_who_is_not_listed() {
    let node = start(&with_writes(&["user:ada"])).await;
    let bob = Client::begin(&node, "bob", asks()).await;
    let task = bob.task("hello").await;
    assert_eq!(bob.call("cancel_task", json!({ "task_id": task })).await.code(), -32602);
    let listed = bob.ask("tools/list", json!({})).await;
    assert_eq!(listed.result()["tools"].as_array().unwrap().len(), 6);
    // Listed, and no operator.
    let ada = Client::begin(&node, "ada", asks()).await;
    assert_eq!(ada.ask("tools/list", json!({})).await.result()["tools"].as_array().unwrap().len(), 7);
    assert_eq!(ada.call("drain_node", json!({ "node": "a" })).await.code(), -32602);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_is_served_fails_closed_where_no_person_can_be_asked() {
    let node = start(&with_writes(&["user:*"])).await;
    let silent = Client::begin(&node, "ada", json!({})).await;
    let task = silent.task("hello").await;
    let refused = silent.call("cancel_task", json!({ "task_id": task })).await;
    assert_eq!(refused.result()["isError"], true);
    let text = refused.result()["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("requires a person's confirmation"), "{text}");
    let stateless = Client::stateless(&node, "ada");
    let refused = stateless.call("cancel_task", json!({ "task_id": task })).await;
    assert_eq!((refused.status, refused.code()), (400, -32021));
    assert!(refused.last()["error"]["data"]["requiredCapabilities"]["elicitation"].is_object());
    // Who only says that it was confirmed has not been.
    let liar = Client { capabilities: asks(), ..Client::stateless(&node, "ada") };
    for state in ["", "9999999999.AAAA"] {
        let answer = json!({ "confirm": { "action": "accept", "content": { "confirm": true } } });
        let params = json!({
            "arguments": { "task_id": task },
            "inputResponses": answer,
            "name": "cancel_task",
            "requestState": state,
        });
        assert_eq!(liar.ask("tools/call", params).await.result()["resultType"], "input_required", "it is asked");
    }
    let bare = Client { session: None, ..silent.clone() };
    assert_eq!(bare.call("cancel_task", json!({ "task_id": task })).await.result()["isError"], true);
    assert_ne!(silent.state_of(&task).await, "TASK_STATE_CANCELED");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_confirms_a_write_on_the_stream_of_its_call() {
    let node = start(&with_writes(&["user:ada", "user:root"])).await;
    let ada = Client::begin(&node, "ada", asks()).await;
    let task = ada.task("hello").await;
    for no in [json!({ "action": "decline" }), json!({ "action": "accept", "content": { "confirm": false } })] {
        let refused = ada.call_and_say("cancel_task", json!({ "task_id": task }), no).await;
        assert_eq!(refused["isError"], true, "{refused}");
    }
    assert_ne!(ada.state_of(&task).await, "TASK_STATE_CANCELED");
    let yes = || json!({ "action": "accept", "content": { "confirm": true } });
    let done = ada.call_and_say("cancel_task", json!({ "task_id": task }), yes()).await;
    assert_eq!((&done["isError"], &done["structuredContent"]["task_id"]), (&json!(false), &json!(task)), "{done}");
    assert_eq!(ada.state_of(&task).await, "TASK_STATE_CANCELED");

    let root = Client::begin(&node, "root", asks()).await;
    let unknown = root.call("drain_node", json!({ "node": "nowhere" })).await;
    assert_eq!(unknown.result()["isError"], true, "nobody is asked about nothing");
    let done = root.call_and_say("drain_node", json!({ "node": "a", "timeout_s": 1 }), yes()).await;
    assert_eq!(done["structuredContent"]["draining"], true, "{done}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_confirms_a_write_without_a_session_by_another_call() {
    let node = start(&with_writes(&["user:ada"])).await;
    let ada = Client { capabilities: asks(), ..Client::stateless(&node, "ada") };
    let (task, other) = (ada.task("hello").await, ada.task("hello").await);
    let asked = ada.call("cancel_task", json!({ "task_id": task })).await;
    assert_eq!(asked.result()["resultType"], "input_required");
    assert_eq!(asked.result()["inputRequests"]["confirm"]["method"], "elicitation/create");
    let state_of = |asked: &Answer| asked.result()["requestState"].clone();
    let answered = async |task: &str, action: &str, state: &Value| {
        let answer = json!({ "confirm": { "action": action, "content": { "confirm": true } } });
        let params = json!({
            "arguments": { "task_id": task },
            "inputResponses": answer,
            "name": "cancel_task",
            "requestState": state,
        });
        ada.ask("tools/call", params).await
    };
    let first = state_of(&asked);
    let about_other = answered(&other, "accept", &first).await;
    assert_eq!(about_other.result()["resultType"], "input_required", "it was about another task");
    assert_eq!(answered(&task, "decline", &first).await.result()["isError"], true);
    let again = answered(&task, "accept", &first).await;
    assert_eq!(again.result()["resultType"], "input_required", "a question has one answer");
    assert_ne!(ada.state_of(&task).await, "TASK_STATE_CANCELED");
    let second = state_of(&again);
    assert_eq!(answered(&task, "accept", &second).await.result()["isError"], false);
    assert_eq!(ada.state_of(&task).await, "TASK_STATE_CANCELED");
    assert_eq!(
        answered(&task, "accept", &second).await.result()["resultType"],
        "input_required",
        "and a yes counts once"
    );
    assert_ne!(ada.state_of(&other).await, "TASK_STATE_CANCELED");
    node.stop().await;
}

fn with_agent() -> ServeSettings {
    ServeSettings { agents: vec!["reader".parse().unwrap()], ..ServeSettings::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_named_is_a_tool_and_each_call_is_a_task() {
    let node = start(&with_agent()).await;
    let ada = Client::begin(&node, "ada", json!({})).await;
    let params = json!({
        "_meta": { "progressToken": "p" },
        "arguments": { "message": "Read." },
        "name": "ask_reader",
    });
    let mut stream = Stream::of(ada.asking("tools/call", params).send().await.unwrap());
    let progress = stream.next().await.unwrap();
    assert_eq!(
        (&progress["method"], &progress["params"]["progressToken"]),
        (&json!("notifications/progress"), &json!("p"))
    );
    let task = ada.read("list_tasks", json!({})).await["tasks"][0]["task_id"].as_str().unwrap().to_owned();
    node.report(&task, vec![chunk("Read it.", false)]).await;
    node.finish(&task, TaskState::Completed).await;
    let mut last = Value::Null;
    while let Some(message) = stream.next().await {
        last = message;
    }
    let result = &last["result"];
    assert_eq!((&result["isError"], &result["content"][0]["text"]), (&json!(false), &json!("Read it.")), "{last}");
    assert_eq!(result["structuredContent"]["task_id"], task);
    assert_eq!(ada.call("ask_surveyor", json!({ "message": "x" })).await.code(), -32602, "it is not named");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_knows_tasks_is_given_one_and_asks_for_what_comes_of_it() {
    let node = start(&with_agent()).await;
    let knows = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let ada = Client { capabilities: knows, ..Client::stateless(&node, "ada") };
    let begun = ada.call("ask_reader", json!({ "message": "Read." })).await.result().clone();
    assert_eq!((&begun["resultType"], &begun["ttlMs"]), (&json!("task"), &Value::Null), "{begun}");
    assert!(begun["createdAt"].as_str().unwrap().starts_with("20") && begun.get("result").is_none(), "{begun}");
    let id = begun["taskId"].as_str().unwrap();
    let get = async |client: &Client<'_>| client.ask("tasks/get", json!({ "taskId": id })).await;
    assert_eq!(get(&ada).await.result()["status"], "working");
    // What is another's looks as if it were not there, and who does not know tasks is told so.
    let bob = Client { capabilities: ada.capabilities.clone(), ..Client::stateless(&node, "bob") };
    assert_eq!(get(&bob).await.code(), -32602);
    let unaware = get(&Client::stateless(&node, "ada")).await;
    assert_eq!((unaware.status, unaware.code()), (400, -32021));
    assert_eq!(ada.ask("tasks/get", json!({ "taskId": "x" })).await.code(), -32602);
    node.report(id, vec![chunk("Read it.", false)]).await;
    node.finish(id, TaskState::Completed).await;
    let done = get(&ada).await.result().clone();
    assert_eq!((&done["status"], &done["result"]["isError"]), (&json!("completed"), &json!(false)), "{done}");
    assert_eq!(done["result"]["content"][0]["text"], "Read it.");
    // To cancel what has ended changes nothing; to cancel another does.
    assert_eq!(ada.ask("tasks/cancel", json!({ "taskId": id })).await.result()["resultType"], "complete");
    assert_eq!(get(&ada).await.result()["status"], "completed");
    let other = ada.call("ask_reader", json!({ "message": "Read more." })).await.result()["taskId"].clone();
    ada.ask("tasks/cancel", json!({ "taskId": other })).await.result();
    assert_eq!(ada.ask("tasks/get", json!({ "taskId": other })).await.result()["status"], "cancelled");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_an_agent_that_is_taken_back_cancels_its_task() {
    let node = start(&with_agent()).await;
    let canceled = async |client: &Client<'_>| {
        let look = async {
            loop {
                let tasks = client.read("list_tasks", json!({ "state": "canceled" })).await;
                if tasks["total"].as_u64() > Some(0) {
                    return tasks["total"].clone();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, look).await.expect("a canceled task")
    };
    let begun = async |client: &Client<'_>| {
        let params =
            json!({ "_meta": { "progressToken": 1 }, "arguments": { "message": "Read." }, "name": "ask_reader" });
        let mut stream = Stream::of(client.asking("tools/call", params).send().await.unwrap());
        assert_eq!(stream.next().await.unwrap()["method"], "notifications/progress");
        stream
    };
    // With a session a client says so; a connection that is lost says nothing.
    let ada = Client::begin(&node, "ada", json!({})).await;
    drop(begun(&Client::begin(&node, "ada", json!({})).await).await);
    let mut stream = begun(&ada).await;
    let message = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 7 } });
    ada.say(message).await;
    let ended = stream.next().await.unwrap();
    assert_eq!(ended["result"]["isError"], true, "{ended}");
    assert_eq!(canceled(&ada).await, 1);
    // Without one the end of the stream is the word for it.
    let bob = Client::stateless(&node, "bob");
    drop(begun(&bob).await);
    assert_eq!(canceled(&bob).await, 1);
    node.stop().await;
}

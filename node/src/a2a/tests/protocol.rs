//! What A2A 1.0 asks of every operation on every binding, beyond the table in `bindings`: versions, leniency, paths, headers,
//! and our extensions.

use serde_json::{Value, json};

use super::{
    bindings::{ALL, Client, Spoken},
    *,
};
use crate::a2a::extensions::{ANNOTATIONS, COMMAND, EVENTS, GENERATION};

/// Every operation, with parameters that it would take.
fn operations(task: &str) -> [(&'static str, Value); 11] {
    let message = json!({ "messageId": "v", "role": "ROLE_USER", "parts": [{ "text": "x" }] });
    [
        ("SendMessage", json!({ "message": message })),
        ("SendStreamingMessage", json!({ "message": message })),
        ("GetTask", json!({ "id": task })),
        ("ListTasks", json!({})),
        ("CancelTask", json!({ "id": task })),
        ("SubscribeToTask", json!({ "id": task })),
        ("CreateTaskPushNotificationConfig", json!({ "taskId": task, "url": "https://example.com/" })),
        ("GetTaskPushNotificationConfig", json!({ "taskId": task, "id": "c" })),
        ("ListTaskPushNotificationConfigs", json!({ "taskId": task })),
        ("DeleteTaskPushNotificationConfig", json!({ "taskId": task, "id": "c" })),
        ("GetExtendedAgentCard", json!({})),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_of_every_binding_asks_for_a_version_that_is_spoken() {
    let node = Node::start().await;
    let task = task_of(node.client("/").send(&message("m", "hello"), ASYNC, None).await.unwrap()).id;
    for spoken in ALL {
        let client = Client::new(&node, spoken).await;
        for version in [None, Some("0.3"), Some("1.1"), Some("9.9"), Some("1.0.x")] {
            let client = Client { version, ..client.clone() };
            for (method, params) in operations(&task) {
                let refused = match method {
                    "SendStreamingMessage" => client.stream_refused(method, params).await,
                    _ => client.ask(method, params).await.unwrap_err().0,
                };
                assert_eq!(refused, "VERSION_NOT_SUPPORTED", "{spoken:?} {method} {version:?}");
            }
        }
        let patched = Client { version: Some("1.0.1"), ..client.clone() };
        patched.ask("GetTask", json!({ "id": task })).await.unwrap();
    }
    assert_eq!(
        node.client("/").list_tasks(&ListQuery::default(), None).await.unwrap().total_size,
        1,
        "nothing was done"
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_is_taken_in_both_spellings_with_numbers_for_names_and_with_what_is_not_known() {
    let node = Node::start().await;
    for spoken in [Spoken::JsonRpc, Spoken::HttpJson] {
        let client = Client::new(&node, spoken).await;
        // ROLE_USER is 1.
        let message = json!({
            "message_id": format!("lenient-{spoken:?}"), "role": 1, "parts": [{ "text": "hello", "media_type": "text/plain" }],
            "fromTheFuture": { "x": 1 },
        });
        let params = json!({ "message": message, "configuration": { "return_immediately": true, "history_length": 0 }, "later": 1 });
        let sent = client.ask("SendMessage", params).await.unwrap();
        let task = sent["task"]["id"].as_str().unwrap();
        assert_eq!(sent["task"].get("history"), None, "{spoken:?}");
        // TASK_STATE_CANCELED is 5.
        client.ask("CancelTask", json!({ "id": task, "metadata": { "why": "x" } })).await.unwrap();
        let listed = client.ask("ListTasks", json!({ "page_size": 1, "include_artifacts": false })).await.unwrap();
        assert_eq!(listed["tasks"][0]["id"], task, "{spoken:?}");
        assert_eq!(
            listed["nextPageToken"].as_str().map(str::is_empty),
            Some(spoken == Spoken::JsonRpc),
            "{spoken:?}: one and two tasks"
        );
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_kinds_of_content_come_back_as_they_were_sent() {
    let node = Node::start().await;
    for spoken in ALL {
        let client = Client::new(&node, spoken).await;
        let parts = json!([
            { "text": "é", "mediaType": "text/plain" },
            { "raw": "AAEC", "mediaType": "application/octet-stream", "filename": "a.bin" },
            { "url": "https://example.com/a.png", "mediaType": "image/png", "filename": "a.png" },
            { "data": { "list": [1, 2.5, null, true], "object": {} }, "metadata": { "k": "v" } },
        ]);
        let message = json!({ "messageId": format!("parts-{spoken:?}"), "role": "ROLE_USER", "parts": parts });
        let params = json!({ "message": message, "configuration": { "returnImmediately": true } });
        let sent = client.ask("SendMessage", params).await.unwrap();
        let read = client.ask("GetTask", json!({ "id": sent["task"]["id"] })).await.unwrap();
        assert_eq!(whole(&read["history"][0]["parts"]), parts, "{spoken:?}");
    }
    node.stop().await;
}

/// Doubles that are whole as integers: over gRPC all numbers are doubles.
fn whole(value: &Value) -> Value {
    match value {
        Value::Number(number) => {
            let double = number.as_f64().unwrap();
            if double.fract() == 0.0 { json!(double as i64) } else { value.clone() }
        }
        Value::Array(items) => items.iter().map(whole).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), whole(value))).collect::<serde_json::Map<_, _>>().into()
        }
        Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_rpc_is_served_at_its_fixed_path_and_subscribing_by_either_verb() {
    let node = Node::start().await;
    let sent = task_of(node.client("/").send(&message("m", "hello"), ASYNC, None).await.unwrap());
    for path in ["/", "/a2a/v1", "/a2a/v1/", "/agents/reader", "/agents/reader/"] {
        let read = node.client(path).get_task(&sent.id, None, None).await.unwrap();
        assert_eq!(read.id, sent.id, "{path}");
    }
    for verb in [reqwest::Method::GET, reqwest::Method::POST] {
        for tenant in ["", "surveyor/"] {
            let url = format!("{}/rest/{tenant}tasks/{}:subscribe", node.url, sent.id);
            let answer = node.http.request(verb.clone(), url).header("a2a-version", "1.0").send().await.unwrap();
            assert_eq!(answer.headers()["content-type"], "text/event-stream", "{verb} {tenant}");
        }
    }
    let query = format!("{}/rest/tasks/{}?A2A-Version=1.0", node.url, sent.id);
    assert_eq!(node.http.get(query).send().await.unwrap().status(), StatusCode::OK, "the version in the query");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_names_the_span_of_its_task_and_what_was_activated() {
    let node = Node::start().await;
    let task = task_of(node.client("/").send(&message("m", "hello"), ASYNC, None).await.unwrap()).id;
    let trace = node.cluster.handle().local(|state| state.task(task.parse().unwrap()).unwrap().trace.to_string());
    for spoken in ALL {
        let plain = Client::new(&node, spoken).await;
        let head = plain.head("GetTask", json!({ "id": task })).await;
        assert_eq!(head["traceparent"], trace.as_str(), "{spoken:?}");
        assert_eq!(head.get("a2a-extensions"), None, "{spoken:?}");

        let client = Client { extensions: Some(format!("https://example.com/x,{ANNOTATIONS}, {GENERATION}")), ..plain };
        let head = client.head("GetTask", json!({ "id": task })).await;
        assert_eq!(head["a2a-extensions"], format!("{GENERATION}, {ANNOTATIONS}").as_str(), "{spoken:?}");
        let refused = client.head("GetTask", json!({ "id": "foreign" })).await;
        assert_eq!(refused["a2a-extensions"], head["a2a-extensions"], "{spoken:?}");
        assert_ne!(refused["traceparent"], head["traceparent"], "{spoken:?}: the request's own");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_annotated_for_those_who_ask() {
    let node = Node::start().await;
    for spoken in ALL {
        let plain = Client::new(&node, spoken).await;
        let client = Client { extensions: Some(ANNOTATIONS.to_owned()), ..plain.clone() };
        let message = json!({ "messageId": format!("a-{spoken:?}"), "role": "ROLE_USER", "parts": [{ "text": "x" }] });
        let params = json!({ "message": message, "configuration": { "returnImmediately": true } });
        let sent = client.ask("SendMessage", params).await.unwrap();
        let task = sent["task"]["id"].clone();
        let annotations = &sent["task"]["metadata"]["dev.towline/annotations"];
        assert_eq!(whole(&annotations["attempt"]), 1, "{spoken:?} {annotations}");
        assert_eq!(whole(&annotations["node"]), node.cluster.handle().node_id().0, "{spoken:?} {annotations}");
        assert_eq!(whole(&annotations["cost"]["modelCalls"]), 0, "{spoken:?} {annotations}");
        let listed = client.ask("ListTasks", json!({ "pageSize": 1 })).await.unwrap();
        assert_eq!(
            listed["tasks"][0]["metadata"]["dev.towline/annotations"]["traceId"], annotations["traceId"],
            "{spoken:?}"
        );
        let read = plain.ask("GetTask", json!({ "id": task })).await.unwrap();
        assert_eq!(read["metadata"].get("dev.towline/annotations"), None, "{spoken:?}: not activated");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_waits_for_the_next_event_and_no_longer_than_its_client() {
    let node = Node::start().await;
    for spoken in ALL {
        let client = Client { extensions: Some(GENERATION.to_owned()), ..Client::new(&node, spoken).await };
        let message = json!({ "messageId": format!("g-{spoken:?}"), "role": "ROLE_USER", "parts": [{ "text": "x" }] });
        let params = json!({ "message": message, "configuration": { "returnImmediately": true } });
        let sent = client.ask("SendMessage", params).await.unwrap();
        let task = sent["task"]["id"].as_str().unwrap().to_owned();
        let known = node.generation(&task);

        let brief = Client { prefer: Some("wait=0"), ..client.clone() };
        let read = brief.ask("GetTask", json!({ "id": task, "currentGeneration": known })).await.unwrap();
        assert_eq!(whole(&read["metadata"]["dev.towline/generation"]), known, "{spoken:?}: nothing happened");

        let waiting = client.ask("GetTask", json!({ "id": task, "currentGeneration": known }));
        let (read, ()) = timeout(PATIENCE, async { tokio::join!(waiting, node.finish(&task, TaskState::Completed)) })
            .await
            .expect("it does not wait for its limit");
        assert_eq!(read.unwrap()["status"]["state"], "TASK_STATE_COMPLETED", "{spoken:?}");
        let ended = json!({ "id": task, "currentGeneration": known + 100 });
        timeout(PATIENCE, client.ask("GetTask", ended)).await.expect("nothing follows an end").unwrap();
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_at_a_generation_is_refused_once_the_task_went_on() {
    let node = Node::start().await;
    for spoken in ALL {
        let client = Client { extensions: Some(GENERATION.to_owned()), ..Client::new(&node, spoken).await };
        let message = json!({ "messageId": format!("c-{spoken:?}"), "role": "ROLE_USER", "parts": [{ "text": "x" }] });
        let params = json!({ "message": message, "configuration": { "returnImmediately": true } });
        let task = client.ask("SendMessage", params).await.unwrap()["task"]["id"].as_str().unwrap().to_owned();
        let known = node.generation(&task);
        node.report(&task, vec![chunk("more", false)]).await;

        let refused = client.ask("CancelTask", json!({ "id": task, "ifGenerationMatch": known })).await.unwrap_err();
        assert_eq!(refused.0, "TASK_GENERATION_MISMATCH", "{spoken:?}");
        let now = node.generation(&task);
        let canceled = client.ask("CancelTask", json!({ "id": task, "ifGenerationMatch": now })).await.unwrap();
        assert_eq!(canceled["status"]["state"], "TASK_STATE_CANCELED", "{spoken:?}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_reply_is_a_message_to_who_waits_and_a_task_to_who_reads() {
    let node = Node::start().await;
    let client = Client::new(&node, Spoken::JsonRpc).await;
    let message = json!({ "messageId": "hi", "role": "ROLE_USER", "parts": [{ "text": "hi" }] });
    let reply = async {
        let task = node.only_task().await;
        let mut reply = super::message("said", "hello");
        reply.role = Role::Agent;
        reply.metadata.insert(towline_a2a::REPLY_KEY.to_owned(), true.into());
        node.report(&task, vec![OwnerWord::Finished { state: TaskState::Completed, message: Some(reply) }]).await;
        task
    };
    let (sent, task) = tokio::join!(client.ask("SendMessage", json!({ "message": message })), reply);
    let sent = sent.unwrap();
    assert_eq!(
        (&sent["message"]["parts"][0]["text"], &sent["message"]["taskId"]),
        (&"hello".into(), &task.as_str().into())
    );
    let read = client.ask("GetTask", json!({ "id": task })).await.unwrap();
    assert_eq!(read["status"]["state"], "TASK_STATE_COMPLETED");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_may_read_cards_and_nothing_else() {
    let node = Node::start().await;
    let page = |request: reqwest::RequestBuilder| request.header("origin", "https://example.com");
    for path in ["/.well-known/agent-card.json", "/agents/reader/.well-known/agent-card.json"] {
        let url = format!("{}{path}", node.url);
        let card = page(node.http.get(&url)).send().await.unwrap();
        assert_eq!(
            (card.status(), &card.headers()["access-control-allow-origin"]),
            (StatusCode::OK, &"*".parse().unwrap())
        );
        let tag = card.headers()["etag"].clone();
        let card: Value = card.json().await.unwrap();
        let declared: Vec<&str> = card["capabilities"]["extensions"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|one| one["uri"].as_str())
            .collect();
        assert_eq!(declared[..4], [GENERATION, ANNOTATIONS, COMMAND, EVENTS], "{path}");
        assert!(declared.len() == 5 && declared[4].ends_with("/mesh"), "the mark of the mesh: {declared:?}");
        let again = page(node.http.get(&url)).header("if-none-match", tag).send().await.unwrap();
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{path}");
        let asked = page(node.http.request(reqwest::Method::OPTIONS, &url)).send().await.unwrap();
        assert_eq!(asked.status(), StatusCode::NO_CONTENT, "{path}");
    }
    let tasks =
        page(node.http.get(format!("{}/rest/tasks", node.url))).header("a2a-version", "1.0").send().await.unwrap();
    assert_eq!((tasks.status(), tasks.headers().get("access-control-allow-origin")), (StatusCode::FORBIDDEN, None));
    node.stop().await;
}

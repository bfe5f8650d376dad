//! Commands and the events of the cluster, over all three bindings.

use towline_core::{Labels, PrincipalRole, Submission};

use super::{
    authorization::{ADA, BOB, CI, GUEST, NOBODY, OPERATOR, Who, callers, fresh},
    *,
};
use crate::{
    a2a::{
        commands::{self, Kind},
        extensions::{COMMAND, EVENTS},
        structured::with_whole_numbers,
    },
    auth::Way,
};

/// A message with one part of data.
fn data(value: Value) -> Value {
    json!({ "message": { "messageId": fresh(), "role": "ROLE_USER", "parts": [{ "data": value }] } })
}

fn command(op: &str, args: Value) -> Value {
    data(json!({ "dev.towline/command": { "op": op, "args": args } }))
}

/// What a command came to.
fn result_of(answer: &Value) -> Value {
    let data = &answer["message"]["parts"][0]["data"]["dev.towline/result"];
    assert!(data.is_object(), "{answer}");
    data["result"].clone()
}

/// What a frame of the events says.
fn frame_of(answer: &Value) -> Value {
    answer["message"]["parts"][0]["data"]["dev.towline/events"].clone()
}

async fn client<'a>(node: &'a Node, spoken: Spoken, who: Who) -> Client<'a> {
    let mut client = Client::new(node, spoken).await;
    client.extensions = Some(format!("{COMMAND}, {EVENTS}"));
    client.token = who.token;
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_is_answered_with_a_message_and_makes_no_task() {
    let node = Node::start().await;
    for spoken in ALL {
        let client = client(&node, spoken, NOBODY).await;
        let answer = client.ask("SendMessage", command("cluster.status", json!({}))).await.unwrap();
        assert_eq!(answer["message"]["role"], "ROLE_AGENT", "{spoken:?}: {answer}");
        assert_eq!(answer["message"]["extensions"], json!([COMMAND]), "{spoken:?}");
        assert_eq!(result_of(&answer)["members"].as_array().unwrap().len(), 1, "{spoken:?}: {answer}");
        let streamed: Vec<Value> = timeout(
            PATIENCE,
            client.stream("SendStreamingMessage", command("agent.list", json!({}))).await.unwrap().collect(),
        )
        .await
        .expect("the stream ends");
        assert_eq!(streamed.len(), 1, "{spoken:?}");
        assert_eq!(result_of(&streamed[0])["agents"].as_array().unwrap().len(), 2, "{spoken:?}");

        let task = node.task_as(&Principal::Operator).await;
        let listed = client.ask("SendMessage", command("task.list", json!({ "pageSize": 1 }))).await.unwrap();
        assert_eq!(result_of(&listed)["tasks"][0]["id"], task.as_str(), "{spoken:?}");
        let canceled = client.ask("SendMessage", command("task.cancel", json!({ "id": task }))).await.unwrap();
        assert_eq!(result_of(&canceled)["status"]["state"], "TASK_STATE_CANCELED", "{spoken:?}");
        let id = node.cluster.handle().node_id().0;
        let drain = command("cluster.drain", json!({ "node": id, "timeout_ms": 1000 }));
        let drained = client.ask("SendMessage", drain).await.unwrap();
        assert_eq!(result_of(&drained)["draining"], true, "{spoken:?}");
        client.ask("SendMessage", command("cluster.undrain", json!({ "node": id }))).await.unwrap();
    }
    assert_eq!(node.cluster.handle().local(|state| state.task_count()), 3, "those that the test has made");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_command_is_refused_and_never_becomes_a_task() {
    let node = Node::start().await;
    for spoken in ALL {
        let client = client(&node, spoken, NOBODY).await;
        let good = json!({ "op": "cluster.status" });
        let mut two_parts = data(json!({ "dev.towline/command": good }));
        two_parts["message"]["parts"].as_array_mut().unwrap().push(json!({ "text": "and a poem" }));
        let mut to_a_task = data(json!({ "dev.towline/command": good }));
        to_a_task["message"]["taskId"] = fresh().into();
        for (sent, reason) in [
            (command("cluster.dance", json!({})), "UNKNOWN_COMMAND"),
            (command("task.get", json!({})), "INVALID_COMMAND"),
            (command("task.get", json!({ "id": fresh(), "why": 1 })), "INVALID_COMMAND"),
            (command("task.get", json!({ "id": fresh() })), "TASK_NOT_FOUND"),
            (command("task.inspect", json!({ "id": fresh() })), "TASK_NOT_FOUND"),
            (command("cluster.drained", json!({ "node": 99 })), "TASK_NOT_FOUND"),
            (command("cluster.promote", json!({ "node": 99 })), "COMMAND_REFUSED"),
            (command("cluster.join-token", json!({ "role": "king", "ttl_ms": 1 })), "INVALID_COMMAND"),
            (two_parts, "INVALID_COMMAND"),
            (to_a_task, "INVALID_COMMAND"),
            (data(json!({ "dev.towline/command": good, "more": 1 })), "INVALID_COMMAND"),
            (data(json!([{ "dev.towline/command": good }])), "INVALID_COMMAND"),
            (data(json!([1, [{ "dev.towline/events": {} }]])), "INVALID_COMMAND"),
            (data(json!({ "dev.towline/events": { "since": 1 } })), "INVALID_COMMAND"),
            (data(json!({ "dev.towline/events": { "after": 1.5 } })), "INVALID_COMMAND"),
            (data(json!({ "dev.towline/events": { "kinds": ["weather"] } })), "INVALID_COMMAND"),
            (data(json!({ "dev.towline/events": { "after": 99_999_999 } })), "INVALID_COMMAND"),
        ] {
            let refused = client.ask("SendMessage", sent.clone()).await.map(|value| value.to_string());
            assert_eq!(refused.map_err(|refusal| refusal.0), Err(reason.to_owned()), "{spoken:?} {sent}");
        }
        let plain = Client { extensions: None, ..client };
        for key in ["dev.towline/command", "dev.towline/events"] {
            let refused = plain.ask("SendMessage", data(json!({ key: good }))).await.unwrap_err();
            assert_eq!(refused.0, "EXTENSION_NOT_ACTIVATED", "{spoken:?}");
        }
    }
    assert_eq!(node.cluster.handle().local(|state| state.task_count()), 0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_is_answered_to_whom_it_is_for_and_about_what_is_theirs_on_all_bindings() {
    let node = Node::start_with(callers()).await;
    let foreign = node.task_as(&BOB.principal()).await;
    let mut asked = 0;
    for operation in &commands::OPERATIONS {
        for spoken in ALL {
            for who in [OPERATOR, ADA, CI, GUEST, NOBODY] {
                let mut args = serde_json::Map::new();
                for argument in operation.arguments.iter().filter(|argument| argument.is_required) {
                    let value = match (argument.kind, argument.name) {
                        (Kind::Text, "id") => json!(foreign),
                        (Kind::Text, "code") => json!("BCDF-GHJK"),
                        (Kind::Text, _) => json!("nobody"),
                        (Kind::Number, _) => json!(99),
                        (Kind::Truth, _) => json!(true),
                        (Kind::List, _) => json!(["http://127.0.0.1:1"]),
                        (Kind::Object, _) => json!({}),
                    };
                    args.insert(argument.name.to_owned(), value);
                }
                let client = client(&node, spoken, who).await;
                let found = client.ask("SendMessage", command(operation.name, args.into())).await;
                let reason = found.as_ref().err().map(|refusal| refusal.0.as_str());
                let may = match &operation.way {
                    Way::Method(method) => who.permits().method(method),
                    Way::Route(verb, path) => who.permits().route(&verb.parse().unwrap(), path),
                };
                let names_a_task = operation.arguments.iter().any(|argument| argument.name == "id")
                    && operation.name.starts_with("task.");
                let is_as_expected = match (who.role, may) {
                    (None, _) => reason == Some("UNAUTHENTICATED"),
                    (Some(_), false) => reason == Some("PERMISSION_DENIED"),
                    (Some(PrincipalRole::Operator), true) => {
                        !matches!(reason, Some("UNAUTHENTICATED" | "PERMISSION_DENIED" | "INTERNAL"))
                    }
                    (Some(_), true) if names_a_task => reason == Some("TASK_NOT_FOUND"),
                    (Some(_), true) => !matches!(reason, Some("UNAUTHENTICATED" | "PERMISSION_DENIED" | "INTERNAL")),
                };
                assert!(is_as_expected, "{who:?} {} {spoken:?}: {found:?}", operation.name);
                asked += 1;
            }
        }
    }
    assert!(asked > 400, "{asked}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_hears_of_what_is_theirs_and_the_operator_of_everything_at_the_same_indexes() {
    let node = Node::start_with(callers()).await;
    let (own, other) = (node.task_as(&ADA.principal()).await, node.task_as(&BOB.principal()).await);
    for task in [&own, &other] {
        node.finish(task, TaskState::Completed).await;
    }
    let mut of_operator = Vec::new();
    for spoken in ALL {
        let all = client(&node, spoken, OPERATOR).await;
        let page = all.ask("SendMessage", data(json!({ "dev.towline/events": { "after": 0 } }))).await.unwrap();
        let page = frame_of(&page);
        let kinds = kinds_of(&page);
        assert!(
            ["node.up", "task.submitted"].iter().all(|kind| kinds.iter().any(|one| one == kind)),
            "{spoken:?}: {page}"
        );
        of_operator.push(with_whole_numbers(page["entries"].clone()));

        let ada = client(&node, spoken, ADA).await;
        let page = ada.ask("SendMessage", data(json!({ "dev.towline/events": { "after": "0" } }))).await.unwrap();
        let page = frame_of(&page);
        let kinds = kinds_of(&page);
        assert_eq!(kinds, ["task.submitted", "task.leased", "task.status"], "{spoken:?}: {page}");
        assert!(events(&page).iter().all(|event| event["task"] == own.as_str()), "{spoken:?}: {page}");
        assert!(!page.to_string().contains(other.as_str()), "{spoken:?}: {page}");
        let guest = client(&node, spoken, GUEST).await;
        let refused = guest.ask("SendMessage", data(json!({ "dev.towline/events": {} }))).await.unwrap_err();
        assert_eq!(refused.0, "PERMISSION_DENIED", "{spoken:?}");
    }
    assert!(
        of_operator.iter().all(|entries| *entries == of_operator[0]),
        "the same over all bindings: {of_operator:?}"
    );
    node.stop().await;
}

fn kinds_of(page: &Value) -> Vec<String> {
    events(page).iter().map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
}

fn events(page: &Value) -> Vec<Value> {
    let entries = page["entries"].as_array().unwrap_or_else(|| panic!("{page}"));
    entries.iter().flat_map(|entry| entry["events"].as_array().unwrap().clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_events_begins_where_its_reader_stands_and_follows() {
    let node = Node::start_with(callers()).await;
    let first = node.task_as(&ADA.principal()).await;
    for spoken in ALL {
        let ada = client(&node, spoken, ADA).await;
        let ask = data(json!({ "dev.towline/events": { "after": 0, "kinds": ["task.submitted"] } }));
        let mut stream = ada.stream("SendStreamingMessage", ask).await.unwrap();
        let standing = frame_of(&next(&mut stream).await);
        assert_eq!((&standing["events"], standing["index"].as_f64()), (&json!([]), Some(0.0)), "{spoken:?}");
        let told = frame_of(&next(&mut stream).await);
        assert_eq!(told["events"][0]["task"], first.as_str(), "{spoken:?}: {told}");

        let from_now = data(json!({ "dev.towline/events": {} }));
        let mut late = ada.stream("SendStreamingMessage", from_now).await.unwrap();
        assert_eq!(frame_of(&next(&mut late).await)["events"], json!([]), "{spoken:?}");
        let second = node.task_as(&ADA.principal()).await;
        let told = frame_of(&next(&mut late).await);
        let kinds: Vec<&Value> = told["events"].as_array().unwrap().iter().map(|event| &event["kind"]).collect();
        assert_eq!(kinds, ["task.submitted", "task.leased"], "{spoken:?}: what one entry did is told at once");
        assert_eq!(told["events"][0]["task"], second.as_str(), "{spoken:?}");
        loop {
            let told = frame_of(&next(&mut stream).await);
            if told["events"][0]["task"] == second.as_str() {
                break;
            }
        }
    }
    node.stop().await;
}

async fn next(stream: &mut futures::stream::BoxStream<'static, Value>) -> Value {
    timeout(PATIENCE, stream.next()).await.expect("something is said").expect("it goes on")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operator_api_shows_the_same_events_page_by_page_and_as_a_stream() {
    let node = Node::start_with(callers()).await;
    let task = node.task_as(&ADA.principal()).await;
    node.finish(&task, TaskState::Completed).await;
    let get = |query: &str, who: Who| {
        node.http.get(format!("{}/api/v1/events?{query}", node.url)).bearer_auth(who.token.unwrap())
    };
    let whole: Value = get("", OPERATOR).send().await.unwrap().json().await.unwrap();
    let mut paged = Vec::new();
    let mut after = whole["oldest"].clone();
    loop {
        let page: Value = get(&format!("after={after}&limit=1"), OPERATOR).send().await.unwrap().json().await.unwrap();
        after = page["last"].clone();
        match page["entries"].as_array().unwrap().as_slice() {
            [] => break,
            [entry] => paged.push(entry.clone()),
            more => panic!("one was asked for: {more:?}"),
        }
    }
    assert_eq!(Value::from(paged), whole["entries"]);
    assert_eq!(get("after=soon", OPERATOR).send().await.unwrap().status(), 400);
    assert_eq!(get("after=99999999", OPERATOR).send().await.unwrap().status(), 400);

    let answer = get("after=0&follow=true&kinds=task.status", ADA).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut frames = sse_stream::SseStream::from_bytes_stream(answer.bytes_stream());
    let mut ids = Vec::new();
    for _ in 0..2 {
        let frame = timeout(PATIENCE, frames.next()).await.expect("a frame").unwrap().unwrap();
        ids.push(frame.id.unwrap().parse::<u64>().unwrap());
        if ids.len() == 2 {
            let entry: Value = serde_json::from_str(&frame.data.unwrap()).unwrap();
            assert_eq!(entry["events"][0]["state"], "TASK_STATE_COMPLETED", "{entry}");
            assert_eq!(entry["index"], ids[1]);
        }
    }
    assert_eq!(ids[0], 0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_events_counts_as_a_stream_of_its_principal() {
    let node = Node::start_with(AuthSettings { streams_per_principal: Some(1), ..callers() }).await;
    let ada = client(&node, Spoken::JsonRpc, ADA).await;
    let ask = || data(json!({ "dev.towline/events": {} }));
    let stream = ada.stream("SendStreamingMessage", ask()).await.unwrap();
    assert_eq!(ada.stream_refused("SendStreamingMessage", ask()).await, "RATE_LIMITED");
    let follow = node.http.get(format!("{}/api/v1/events?follow=true", node.url)).bearer_auth(ADA.token.unwrap());
    assert_eq!(follow.send().await.unwrap().status(), 429);
    drop(stream);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_node_ends_the_streams_of_events() {
    let node = Node::start().await;
    let client = client(&node, Spoken::Grpc, NOBODY).await;
    let stream = client.stream("SendStreamingMessage", data(json!({ "dev.towline/events": {} }))).await.unwrap();
    node.stopping.cancel();
    let _: Vec<Value> = timeout(PATIENCE, stream.collect()).await.expect("the stream ends");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn labels_of_a_caller_are_kept_with_its_task_and_shown_to_the_operator() {
    let mut settings = callers();
    let labels = Labels::from([("team".to_owned(), "blue".to_owned())]);
    let rule = settings.rules.iter_mut().find(|rule| rule.id == ADA.id).unwrap();
    rule.labels = Arc::new(labels.clone());
    let node = Node::start_with(settings).await;
    for spoken in ALL {
        let ada = client(&node, spoken, ADA).await;
        let message = json!({ "messageId": fresh(), "role": "ROLE_USER", "parts": [{ "text": "hello" }] });
        let params = json!({ "message": message, "configuration": { "returnImmediately": true } });
        let sent = ada.ask("SendMessage", params).await.unwrap();
        let task = sent["task"]["id"].as_str().unwrap().to_owned();
        let kept = node.cluster.handle().local(|state| state.task(task.parse().unwrap()).unwrap().labels.clone());
        assert_eq!(kept, labels, "{spoken:?}");
        let shown = |task: &Value| task["metadata"].get("dev.towline/labels").cloned();
        let read = ada.ask("GetTask", json!({ "id": task })).await.unwrap();
        assert_eq!(shown(&read), None, "{spoken:?}: what the operator says of it is the operator's");
        let read = client(&node, spoken, OPERATOR).await.ask("GetTask", json!({ "id": task })).await.unwrap();
        assert_eq!(shown(&read), Some(json!({ "team": "blue" })), "{spoken:?}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_card_declares_commands_and_events_and_the_extended_one_those_of_its_reader() {
    let node = Node::start_with(callers()).await;
    let url = format!("{}/.well-known/agent-card.json", node.url);
    let card: Value = node.http.get(url).send().await.unwrap().json().await.unwrap();
    let params = |card: &Value, uri: &str| {
        let declared = card["capabilities"]["extensions"].as_array().unwrap();
        declared.iter().find(|extension| extension["uri"] == uri).unwrap()["params"].clone()
    };
    assert!(params(&card, COMMAND)["ops"].as_array().unwrap().contains(&json!("cluster.drain")));
    assert!(params(&card, EVENTS)["kinds"].as_array().unwrap().contains(&json!("node.lost")));
    let ada = client(&node, Spoken::JsonRpc, ADA).await;
    let card = ada.ask("GetExtendedAgentCard", json!({})).await.unwrap();
    let ops = params(&card, COMMAND)["ops"].clone();
    let allowed = [
        "commands",
        "agent.list",
        "auth.whoami",
        "events.read",
        "push.list",
        "task.cancel",
        "task.get",
        "task.list",
        "task.trace",
    ];
    assert_eq!(ops, json!(allowed));
    let kinds = params(&card, EVENTS)["kinds"].clone();
    assert!(kinds.as_array().unwrap().iter().all(|kind| kind.as_str().unwrap().starts_with("task.")), "{kinds}");
    node.stop().await;
}

impl Node {
    /// A task that somebody owns, submitted past the door.
    async fn task_as(&self, by: &Principal) -> String {
        let (task, handle) = (TaskId::from_uuid(uuid::Uuid::now_v7()), self.cluster.handle());
        let submission = Submission {
            task,
            fresh_context: fresh().parse().unwrap(),
            agent: "reader".parse().unwrap(),
            message: message(&fresh(), "hello"),
            prefer: handle.node_id(),
            parent: None,
            hop: 0,
            deadline_ms: None,
            trace: TraceContext { trace_id: 1, span_id: 2, sampled: false },
            most_open: None,
            labels: Labels::new(),
        };
        let command = Command::Submit(Box::new(submission));
        handle.propose(Proposal { by: by.clone(), command }, None).await.unwrap();
        task.to_string()
    }
}

//! The six reads and the resources: what they show, and to whom.

use super::*;
use towline_core::{Command, JoinedAgent, Peer, Principal, Proposal};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_six_reads_show_a_caller_its_own() {
    let node = start(&ServeSettings::default()).await;
    let ada = Client::stateless(&node, "ada");
    let task = ada.task("Find the rope.").await;
    node.report(&task, vec![chunk("The rope is in the second drawer.", false)]).await;

    let agents = ada.read("list_agents", json!({})).await;
    let names: Vec<&str> =
        agents["agents"].as_array().unwrap().iter().map(|agent| agent["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["reader", "surveyor"]);
    let card = ada.read("get_agent", json!({ "name": "reader" })).await;
    assert_eq!(card["card"]["name"], "reader");
    let tasks = ada.read("list_tasks", json!({ "agent": "reader", "state": "submitted" })).await;
    let tasks = if tasks["total"] == 0 { ada.read("list_tasks", json!({})).await } else { tasks };
    assert_eq!((&tasks["total"], &tasks["tasks"][0]["task_id"]), (&json!(1), &json!(task)));
    assert_eq!(tasks["tasks"][0]["agent"], "reader");
    let whole = ada.read("get_task", json!({ "task_id": task })).await;
    assert_eq!(whole["task"]["artifacts"][0]["parts"][0]["text"], "The rope is in the second drawer.");
    let trace = ada.read("get_trace", json!({ "task_id": task })).await;
    assert_eq!(trace["trace_id"].as_str().unwrap().len(), 32);
    let found = ada.read("search_events", json!({ "query": "SECOND drawer" })).await;
    assert_eq!((&found["events"][0]["task_id"], &found["events"][0]["kind"]), (&json!(task), &json!("artifact")));
    assert_eq!((found["events"].as_array().unwrap().len(), &found["truncated"]), (1, &json!(false)));
    let all = ada.read("search_events", json!({ "task_id": task, "limit": 1 })).await;
    assert_eq!((all["events"].as_array().unwrap().len(), &all["truncated"]), (1, &json!(true)));

    node.finish(&task, TaskState::Completed).await;
    node.archive(&task).await;
    let found = ada.read("search_events", json!({ "query": "second drawer", "state": "completed" })).await;
    assert_eq!(found["events"][0]["task_id"], task, "also what is in the archive");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_anothers_looks_as_if_it_were_not_there() {
    let node = start(&ServeSettings::default()).await;
    let (ada, bob, root) =
        (Client::stateless(&node, "ada"), Client::stateless(&node, "bob"), Client::stateless(&node, "root"));
    let task = ada.task("Find the rope.").await;
    for tool in ["get_task", "get_trace", "search_events"] {
        let arguments = json!({ "task_id": task });
        let refused = bob.call(tool, arguments.clone()).await;
        assert_eq!(refused.result()["isError"], true, "{tool}: {refused:?}");
        let absent = bob.call(tool, json!({ "task_id": uuid::Uuid::now_v7().to_string() })).await;
        let text = |answer: &Answer| answer.result()["content"][0]["text"].as_str().unwrap().replace(['-', '"'], "");
        assert_eq!(text(&refused).len(), text(&absent).len(), "{tool}: one answer for both");
        assert_eq!(root.call(tool, arguments).await.result()["isError"], false, "{tool}: the operator");
    }
    assert_eq!(bob.read("list_tasks", json!({})).await["total"], 0);
    assert_eq!(bob.read("search_events", json!({})).await["events"], json!([]));
    let listed = bob.ask("resources/list", json!({ "cursor": "t" })).await;
    assert_eq!(listed.result()["resources"], json!([]));
    assert_eq!(root.read("list_tasks", json!({})).await["total"], 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_arguments_are_told_to_the_model_and_an_unknown_tool_to_its_client() {
    let node = start(&ServeSettings::default()).await;
    let client = Client::begin(&node, "root", json!({})).await;
    for (tool, arguments, says) in [
        ("get_task", json!({}), "task_id is missing"),
        ("get_task", json!({ "task_id": 3 }), "must be a text"),
        ("get_task", json!({ "task_id": "x", "more": 1 }), "is no argument of this tool"),
        ("list_tasks", json!({ "page_size": 101 }), "from 1 to 100"),
        ("list_tasks", json!({ "state": "dancing" }), "must be one of"),
        ("list_tasks", json!({ "cursor": "x" }), "pageToken"),
        ("search_events", json!({ "query": "x".repeat(300) }), "longer than"),
        ("get_agent", json!({ "name": "nobody" }), "is not known"),
    ] {
        let answer = client.call(tool, arguments.clone()).await;
        let text = answer.result()["content"][0]["text"].as_str().unwrap();
        assert!(answer.result()["isError"] == true && text.contains(says), "{tool} {arguments}: {text}");
    }
    // Unknown, and not unauthorised: there is nothing to authorise.
    for tool in ["cancel_task", "drain_node", "restart", "ask_reader", "fs__read_file"] {
        let refused = client.call(tool, json!({})).await;
        assert_eq!((refused.status, refused.code()), (200, -32602), "{tool}");
        let message = refused.last()["error"]["message"].as_str().unwrap();
        assert_eq!(message, format!("unknown tool {tool:?}"));
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_peer_says_of_itself_hides_nothing() {
    let node = start(&ServeSettings::default()).await;
    let joined = JoinedAgent { description: "Knows\u{202e} the\nlaw.".into(), tags: vec!["l\u{200b}aw".into()] };
    let peer = Peer {
        name: "legal".parse().unwrap(),
        urls: vec!["https://legal.example".into()],
        token: None,
        idempotent: false,
        for_agents: Vec::new(),
        joined: Some(joined),
    };
    let proposal = Proposal { by: Principal::Operator, command: Command::AddPeer(Box::new(peer)) };
    node.cluster.handle().propose(proposal, None).await.unwrap();
    let ada = Client::stateless(&node, "ada");
    let listed = ada.ask("resources/list", json!({})).await;
    assert_eq!(listed.result()["resources"][0]["description"], "Knows\u{fffd} the law.");
    let agents = ada.read("list_agents", json!({})).await;
    let legal = &agents["agents"][0];
    assert_eq!((&legal["description"], &legal["tags"]), (&json!("Knows\u{fffd} the law."), &json!(["l\u{fffd}aw"])));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_and_tasks_are_resources_page_by_page() {
    let node = start(&ServeSettings::default()).await;
    let ada = Client::begin(&node, "ada", json!({})).await;
    let task = ada.task("hello").await;
    let first = ada.ask("resources/list", json!({})).await;
    let uris = |answer: &Answer| -> Vec<String> {
        let resources = answer.result()["resources"].as_array().unwrap();
        resources.iter().map(|resource| resource["uri"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(uris(&first), ["towline://agents/reader", "towline://agents/surveyor"]);
    let rest = ada.ask("resources/list", json!({ "cursor": first.result()["nextCursor"] })).await;
    assert_eq!(uris(&rest), [format!("towline://tasks/{task}")]);
    assert!(rest.result().get("nextCursor").is_none());
    assert_eq!(ada.ask("resources/list", json!({ "cursor": "zz" })).await.code(), -32602);

    let card = ada.ask("resources/read", json!({ "uri": "towline://agents/reader" })).await;
    let text: Value = serde_json::from_str(card.result()["contents"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(text["name"], "reader");
    let read = ada.ask("resources/read", json!({ "uri": format!("towline://tasks/{task}") })).await;
    let text: Value = serde_json::from_str(read.result()["contents"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(text["id"], task);
    node.stop().await;
}

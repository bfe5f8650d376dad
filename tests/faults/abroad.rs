//! Agents on servers of others that take part in the mesh, and what happens on the way to them.

use serde_json::{Value, json};
use towline_core::{Intent, Outcome};
use towline_tests::{
    Answer, Cluster, Elsewhere, FakeModel, Gate, Manners, Plan, eventually, run_cli, state_of, text_message,
    text_of_artifacts,
};

/// A cluster without an agent of its own, which the server joins as `abroad`.
async fn joined(nodes: usize, elsewhere: &Elsewhere, more: &[&str]) -> Cluster {
    let cluster = Cluster::start(Plan { nodes, permits: 8, mesh: String::new() }).await;
    let urls = elsewhere.urls().iter().flat_map(|url| ["--url", url]);
    let command = ["agent", "add", "abroad", "--server", &cluster.nodes[0].url];
    let ran = run_cli(command.into_iter().chain(urls).chain(more.iter().copied())).await;
    assert_eq!(ran.code, 0, "{}", ran.said());
    for node in &cluster.nodes {
        eventually("every node to know the agent", async || {
            let agents = node.operator("agents").await?;
            agents["agents"].as_array()?.iter().any(|agent| agent["name"] == "abroad").then_some(())
        })
        .await;
    }
    cluster
}

async fn state(cluster: &Cluster, task: &str, expected: &str) -> Value {
    eventually(&format!("task {task} to be {expected}"), async || {
        let task = cluster.alive().next()?.agent("abroad").get(task).await.ok()?;
        (state_of(&task) == expected).then_some(task)
    })
    .await
}

fn done(text: &str) -> std::collections::BTreeMap<String, String> {
    [("letter".to_owned(), format!("done abroad: {text}"))].into()
}

#[tokio::test(flavor = "multi_thread")]
async fn any_server_joins_with_one_command_and_is_an_agent_like_the_others() {
    let elsewhere = Elsewhere::start(1, Manners::good()).await;
    let cluster = joined(1, &elsewhere, &[]).await;
    let node = &cluster.nodes[0];
    let listed = run_cli(["agent", "list", "--server", &node.url]).await;
    assert!(listed.stdout.contains("abroad") && listed.stdout.contains("An agent of somebody else."), "{listed:?}");
    let card = run_cli(["card", "get", "-o", "json", "--server", &node.url]).await.json();
    assert_eq!(card["skills"][0]["id"], "abroad", "{card}");

    let task = node.agent("abroad").send(text_message("m-1", "write a letter")).await.unwrap();
    assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
    assert_eq!(text_of_artifacts(&task), done("write a letter"));
    let again = node.agent("abroad").send(text_message("m-1", "write a letter")).await.unwrap();
    assert_eq!(again["id"], task["id"], "the mesh takes a message once, whatever the server does");

    let sent = elsewhere.sent();
    assert_eq!(sent.len(), 1);
    let record = cluster.task(task["id"].as_str().unwrap()).await;
    assert_eq!(sent[0].traceparent.split('-').nth(1), Some(record.trace.trace_id_hex().as_str()), "one trace");
    let message = &sent[0].params["message"];
    let chain = &message["metadata"]["dev.towline/chain"];
    assert_eq!((&chain[0]["agent"], &chain[0]["task"], &chain[1]), (&json!("abroad"), &task["id"], &Value::Null));
    assert_eq!(
        message["metadata"].get("dev.towline/onBehalfOf"),
        None,
        "nobody is named unless the configuration says so"
    );
    assert_eq!(record.outside_input, ["result of peer abroad"]);
    let shown = run_cli(["task", "get", task["id"].as_str().unwrap(), "--server", &node.url]).await;
    assert!(shown.stdout.contains("outside  result of peer abroad"), "{shown:?}");

    let removed = run_cli(["agent", "remove", "abroad", "--server", &node.url]).await;
    assert_eq!(removed.code, 0, "{}", removed.said());
    let refused = node.agent("abroad").send(text_message("m-2", "another")).await.unwrap_err();
    assert!(refused.message.contains("is not known"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_prefers_http_json_is_spoken_to_so_and_streams() {
    let elsewhere = Elsewhere::start(1, Manners { binding: "HTTP+JSON", ..Manners::good() }).await;
    let cluster = joined(1, &elsewhere, &[]).await;
    let task = cluster.nodes[0].agent("abroad").send(text_message("m-1", "write")).await.unwrap();
    assert_eq!(text_of_artifacts(&task), done("write"));
    assert_eq!(elsewhere.sent()[0].method, "SendStreamingMessage");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_stream_is_looked_at_until_it_is_done() {
    let ends = Gate::closed();
    let manners = Manners { streams: false, ends: ends.clone(), ..Manners::good() };
    let elsewhere = Elsewhere::start(1, manners).await;
    let cluster = joined(1, &elsewhere, &[]).await;
    let task = cluster.nodes[0].agent("abroad").send_async(text_message("m-1", "write")).await.unwrap();
    eventually("a second look", async || {
        (elsewhere.asked().iter().filter(|asked| asked.method == "GetTask").count() > 1).then_some(())
    })
    .await;
    ends.open();
    let task = state(&cluster, task["id"].as_str().unwrap(), "TASK_STATE_COMPLETED").await;
    assert_eq!(text_of_artifacts(&task), done("write"));
    assert_eq!(elsewhere.sent().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_looks_at_a_task_of_a_server_without_streams_until_it_is_done() {
    let ends = Gate::closed();
    let manners = Manners { streams: false, ends: ends.clone(), ..Manners::good() };
    let elsewhere = Elsewhere::start(1, manners).await;
    let url = elsewhere.urls()[0].clone();
    let sending = tokio::spawn(async move { run_cli(["send", &url, "write", "--wait"]).await });
    eventually("a second look", async || {
        (elsewhere.asked().iter().filter(|asked| asked.method == "GetTask").count() > 1).then_some(())
    })
    .await;
    ends.open();
    let sent = sending.await.unwrap();
    assert_eq!((sent.code, sent.stdout.trim()), (0, "done abroad: write"), "{}", sent.said());
    let messages = elsewhere.asked().iter().filter(|asked| asked.method == "SendMessage").count();
    assert_eq!(messages, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_whose_terms_cannot_be_met_is_refused_with_the_reason() {
    let cluster = Cluster::start(Plan::one(String::new())).await;
    for (manners, says) in [
        (Manners { requires: Some("https://pay.example/ext"), ..Manners::good() }, "https://pay.example/ext"),
        (Manners { binding: "CARRIER-PIGEON", ..Manners::good() }, "no interface of A2A 1.x"),
    ] {
        let elsewhere = Elsewhere::start(1, manners).await;
        let ran =
            run_cli(["peer", "add", "odd", "--url", &elsewhere.urls()[0], "--server", &cluster.nodes[0].url]).await;
        assert!(ran.code == 1 && ran.stderr.contains(says), "{ran:?}");
        assert!(elsewhere.asked().is_empty(), "nothing was asked");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_that_goes_away_in_the_middle_is_replaced_by_the_next_and_nothing_is_sent_twice() {
    let ends = Gate::closed();
    let mut elsewhere = Elsewhere::start(2, Manners { ends: ends.clone(), ..Manners::good() }).await;
    let cluster = joined(1, &elsewhere, &[]).await;
    let task = cluster.nodes[0].agent("abroad").send_async(text_message("m-1", "write")).await.unwrap();
    eventually("the task to be abroad", async || (elsewhere.states().len() == 1).then_some(())).await;
    elsewhere.leave(0);
    eventually("the other URL to be asked", async || elsewhere.asked().iter().any(|asked| asked.at == 1).then_some(()))
        .await;
    ends.open();
    let task = state(&cluster, task["id"].as_str().unwrap(), "TASK_STATE_COMPLETED").await;
    assert_eq!(text_of_artifacts(&task), done("write"));
    assert_eq!(elsewhere.sent().len(), 1);

    let second = cluster.nodes[0].agent("abroad").send(text_message("m-2", "more")).await.unwrap();
    assert_eq!(text_of_artifacts(&second), done("more"), "a URL where nobody listens was sent nothing");
    assert_eq!(elsewhere.sent().iter().map(|sent| sent.at).collect::<Vec<_>>(), [0, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_abroad_survives_the_node_that_followed_it() {
    let ends = Gate::closed();
    let elsewhere = Elsewhere::start(1, Manners { ends: ends.clone(), ..Manners::good() }).await;
    let mut cluster = joined(3, &elsewhere, &[]).await;
    let task = cluster.nodes[0].agent("abroad").send_async(text_message("m-1", "write")).await.unwrap();
    let id = task["id"].as_str().unwrap().to_owned();
    eventually("the peer's task to be in the log", async || {
        let record = cluster.task(&id).await;
        record
            .journal
            .iter()
            .any(|step| matches!(&step.intent, Intent::Delegate { peer_task: Some(_), .. }))
            .then_some(())
    })
    .await;
    let owner = cluster.owner(&id).await;
    cluster.kill(owner).await;
    ends.open();
    let task = state(&cluster, &id, "TASK_STATE_COMPLETED").await;
    assert_eq!(text_of_artifacts(&task), done("write"));
    assert_eq!(elsewhere.sent().len(), 1, "the next owner found the task that was there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_after_a_lost_answer_starts_no_work_twice() {
    let elsewhere = Elsewhere::start(1, Manners { loses_first_answer: true, ..Manners::good() }).await;
    let cluster = joined(1, &elsewhere, &[]).await;
    let task = cluster.nodes[0].agent("abroad").send(text_message("m-1", "write")).await.unwrap();
    assert_eq!(text_of_artifacts(&task), done("write"), "{task}");
    assert_eq!(elsewhere.sent().len(), 1, "what may have been sent was looked for, not sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_is_finished_after_its_caller_gave_up_waiting_is_not_thrown_away() {
    let gate = Gate::closed();
    let manners = Manners { streams: false, first_answer: Some(gate.clone()), ..Manners::good() };
    let elsewhere = Elsewhere::start(1, manners).await;
    let model = delegating().await;
    let mesh = format!(
        "{}agents:\n  - {{ name: boss, description: B., instruction: Delegate., delegates: [foreign] }}\npeers:\n  - {{ name: foreign, url: \"{}\", timeout: 2s }}\n",
        model.config(),
        elsewhere.urls()[0]
    );
    let cluster = Cluster::start(Plan::one(mesh)).await;
    let task = cluster.nodes[0].agent("boss").send(text_message("m-1", "have it done")).await.unwrap();
    let said: String = text_of_artifacts(&task).into_values().collect();
    assert!(said.contains("done abroad: do it"), "{task}");
    assert_eq!(elsewhere.sent().len(), 1, "the request that took too long was not sent again");
    gate.open();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_abroad_is_asked_at_the_top_and_the_answer_travels_down() {
    for asks in ["TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"] {
        let elsewhere = Elsewhere::start(1, Manners { asks: Some(asks), ..Manners::good() }).await;
        let cluster = joined(1, &elsewhere, &[]).await;
        let agent = cluster.nodes[0].agent("abroad");
        let task = agent.send(text_message("m-1", "paint it")).await.unwrap();
        assert_eq!(state_of(&task), asks, "{task}");
        assert_eq!(task["status"]["message"]["parts"][0]["text"], "which colour?");
        let mut answer = text_message("m-2", "blue");
        answer["taskId"] = task["id"].clone();
        let task = agent.send(answer).await.unwrap();
        assert_eq!(text_of_artifacts(&task), done("paint it, and then blue"), "{task}");
        assert_eq!(elsewhere.sent()[1].params["message"]["taskId"], "far-1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_travels_down() {
    let elsewhere = Elsewhere::start(1, Manners { ends: Gate::closed(), ..Manners::good() }).await;
    let cluster = joined(1, &elsewhere, &[]).await;
    let agent = cluster.nodes[0].agent("abroad");
    let task = agent.send_async(text_message("m-1", "write")).await.unwrap();
    let id = task["id"].as_str().unwrap();
    eventually("the peer's task to be in the log", async || {
        let record = cluster.task(id).await;
        record
            .journal
            .iter()
            .any(|step| matches!(&step.intent, Intent::Delegate { peer_task: Some(_), .. }))
            .then_some(())
    })
    .await;
    assert_eq!(state_of(&agent.cancel(id).await.unwrap()), "TASK_STATE_CANCELED");
    eventually("the task abroad to be canceled", async || {
        (elsewhere.states() == ["TASK_STATE_CANCELED"]).then_some(())
    })
    .await;
}

async fn delegating() -> FakeModel {
    FakeModel::start(|chat| match chat.results.last() {
        None => Answer::new().call("delegate", &json!({ "agent": "foreign", "message": "do it" })),
        Some(result) => Answer::say(format!("it said: {result}")),
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_goes_on_beside_its_sender_until_it_is_waited_for() {
    let ends = Gate::closed();
    let elsewhere = Elsewhere::start(1, Manners { ends: ends.clone(), ..Manners::good() }).await;
    let opens = ends.clone();
    let model = FakeModel::start(move |chat| match chat.results.as_slice() {
        [] => Answer::new().call("send", &json!({ "agent": "foreign", "message": "do it" })),
        [sent] if chat.user == "send it" => Answer::say(sent.clone()),
        [_] => {
            // It is still under way, and the sender already does something else.
            opens.open();
            Answer::new().call("wait", &json!({ "task": "far-1" }))
        }
        [.., result] => Answer::say(format!("it said: {result}")),
    })
    .await;
    let mesh = format!(
        "{}agents:\n  - {{ name: boss, description: B., instruction: Send., delegates: [foreign] }}\npeers:\n  - {{ name: foreign, url: \"{}\" }}\n",
        model.config(),
        elsewhere.urls()[0]
    );
    let cluster = Cluster::start(Plan::one(mesh)).await;
    let boss = cluster.nodes[0].agent("boss");
    let task = boss.send(text_message("m-1", "send it and wait")).await.unwrap();
    let said: String = text_of_artifacts(&task).into_values().collect();
    assert!(said.contains("done abroad: do it"), "{task}");
    assert_eq!(elsewhere.sent().len(), 1, "waiting sends nothing");

    let task = boss.send(text_message("m-2", "send it")).await.unwrap();
    assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
    assert!(text_of_artifacts(&task).into_values().any(|text| text.contains("far-2")), "{task}");
    assert!(!elsewhere.states().contains(&"TASK_STATE_CANCELED"), "it was not ended with its sender");
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_that_delegate_in_a_circle_are_told_so_at_once() {
    let model = FakeModel::start(|chat| match chat.results.last() {
        None => {
            let other = if chat.system.contains("first") { "second" } else { "first" };
            Answer::new().call("delegate", &json!({ "agent": other, "message": "do it" }))
        }
        Some(result) => Answer::say(format!("it said: {result}")),
    })
    .await;
    let mesh = model.config()
        + "agents:\n  - { name: first, description: F., instruction: You are the first., delegates: [second] }\n  - { name: second, description: S., instruction: You are the other., delegates: [first] }\n";
    let cluster = Cluster::start(Plan::one(mesh)).await;
    let task = cluster.nodes[0].agent("first").send(text_message("m-1", "begin")).await.unwrap();
    let said: String = text_of_artifacts(&task).into_values().collect();
    assert!(said.contains("delegation_circle"), "{task}");
    assert_eq!(model.chats().len(), 4, "each was asked once, and told once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_from_another_mesh_that_is_too_long_or_a_circle_is_refused_at_the_door() {
    let elsewhere = Elsewhere::start(1, Manners { ends: Gate::closed(), ..Manners::good() }).await;
    let cluster = joined(1, &elsewhere, &[]).await;
    let agent = cluster.nodes[0].agent("abroad");
    agent.send_async(text_message("m-1", "write")).await.unwrap();
    let mut circle = eventually("the message abroad", async || {
        let sent = elsewhere.sent();
        Some(sent.first()?.params["message"]["metadata"]["dev.towline/chain"].as_array()?.clone())
    })
    .await;
    let with = |id: &str, chain: Value| {
        let mut message = text_message(id, "again");
        message["metadata"] = json!({ "dev.towline/chain": chain });
        message
    };
    circle.push(json!({ "agent": "x", "task": "y" }));
    let refused = agent.send_async(with("m-2", circle.into())).await.unwrap_err();
    assert!(refused.message.contains("go in a circle"), "{refused:?}");
    let long: Vec<Value> = (0..9).map(|number| json!({ "agent": "x", "task": number.to_string() })).collect();
    let refused = agent.send_async(with("m-3", long.into())).await.unwrap_err();
    assert!(refused.message.contains("longer than 8"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_is_offered_to_the_agents_that_it_was_made_known_for() {
    let elsewhere = Elsewhere::start(1, Manners::good()).await;
    let model = delegating().await;
    let mesh = model.config() + "agents:\n  - { name: boss, description: B., instruction: Delegate. }\n";
    let cluster = Cluster::start(Plan::one(mesh)).await;
    let node = &cluster.nodes[0];
    let url = &elsewhere.urls()[0];
    let ran = run_cli(["peer", "add", "foreign", "--url", url, "--for", "boss", "--server", &node.url]).await;
    assert_eq!(ran.code, 0, "{}", ran.said());
    let listed = run_cli(["peer", "list", "--server", &node.url]).await;
    assert!(listed.stdout.contains("foreign") && listed.stdout.contains("boss"), "{listed:?}");
    let task = node.agent("boss").send(text_message("m-1", "have it done")).await.unwrap();
    let said: String = text_of_artifacts(&task).into_values().collect();
    assert!(said.contains("done abroad: do it"), "{task}");
    let unknown = run_cli(["peer", "add", "x", "--url", url, "--for", "nobody", "--server", &node.url]).await;
    assert!(unknown.code != 0 && unknown.stderr.contains("agent nobody is not known"), "{unknown:?}");
    let record = cluster.task(task["id"].as_str().unwrap()).await;
    assert!(record.journal.iter().any(|step| {
        let ended = step.ended.as_ref().map(|ended| &ended.outcome);
        matches!(ended, Some(Outcome::Returned { content, is_error: false }) if content.contains("done abroad"))
    }));
}

#[tokio::test(flavor = "multi_thread")]
async fn task_wait_shows_what_a_task_came_to() {
    let ends = Gate::closed();
    let elsewhere = Elsewhere::start(1, Manners { ends: ends.clone(), ..Manners::good() }).await;
    let cluster = joined(1, &elsewhere, &[]).await;
    let server = &cluster.nodes[0].url;
    let sent = run_cli(["send", "abroad", "write", "--no-wait", "--server", server]).await;
    assert_eq!(sent.code, 0, "{}", sent.said());
    let id = sent.stdout.trim();
    let too_short = run_cli(["task", "wait", id, "--timeout", "300ms", "--server", server]).await;
    assert_eq!(too_short.code, 5, "{}", too_short.said());
    ends.open();
    let waited = run_cli(["task", "wait", id, "--server", server]).await;
    assert!(waited.code == 0 && waited.stdout.contains("done abroad: write"), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_too_large_for_a_peer_is_refused_and_not_sent_by_a_name_of_this_mesh() {
    let elsewhere = Elsewhere::start(1, Manners::good()).await;
    let cluster = joined(1, &elsewhere, &[]).await;
    let file = cluster.folder().join("large.bin");
    std::fs::write(&file, vec![7; 5 << 20]).unwrap();
    let ran = run_cli(["send", "abroad", "-f", file.to_str().unwrap(), "see", "--server", &cluster.nodes[0].url]).await;
    assert!(ran.said().contains("large.bin has 5242880 bytes, and a peer is sent at most"), "{}", ran.said());
    assert_eq!(elsewhere.sent().len(), 0);
}

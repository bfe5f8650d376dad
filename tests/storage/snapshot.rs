//! A running cluster is saved in a file, and a new cluster begins with it.

use serde_json::json;
use std::fs;
use towline_tests::{
    Answer, Cluster, FakeModel, Gate, Observer, Plan, TestNode, eventually, http_client, run_cli, scripted_mcp,
    state_of, text_message,
};

const SPEAKER: &str = "agents:\n  - { name: speaker, description: S., instruction: S., replicas: all }\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_new_cluster_goes_on_with_what_was_saved_in_another() {
    let never = Gate::closed();
    let gate = never.clone();
    let model = FakeModel::start(move |chat| match (chat.user.as_str(), chat.repeated) {
        ("long", 0) => Answer::new().words(&["first "]).wait(&gate),
        ("long", _) => Answer::say("to the end"),
        _ => Answer::say("spoken"),
    })
    .await;
    let mesh = model.config() + SPEAKER;
    let mut old = Cluster::start(Plan::three(mesh.clone())).await;
    let done = old.nodes[1].agent("speaker").send(text_message("m-1", "short")).await.unwrap();
    let text = "lorem ipsum ".repeat(200_000);
    let large = old.nodes[2].agent("speaker").send(text_message("m-3", &text)).await.unwrap();
    let running = old.nodes[0].agent("speaker").send_async(text_message("m-2", "long")).await.unwrap();
    let running = running["id"].as_str().unwrap().to_owned();
    let seen = Observer::subscribe(old.nodes[0].agent("speaker").endpoint(), &running, Some(0)).saw(3).await;

    let file = old.folder().join("saved.towline");
    let saved = run_cli(["cluster", "snapshot", "save", file.to_str().unwrap(), "--server", &old.nodes[2].url]).await;
    assert_eq!(saved.code, 0, "{saved:?}");
    assert!(saved.stderr.contains("saved 3 tasks"), "{saved:?}");
    let again = run_cli(["cluster", "snapshot", "save", file.to_str().unwrap(), "--server", &old.nodes[2].url]).await;
    assert_eq!(again.code, 2, "a file is never overwritten: {again:?}");
    let old_ids: Vec<u64> = old.nodes.iter().map(|node| node.id).collect();
    for id in &old_ids {
        old.kill(*id).await;
    }

    let mut first = TestNode::new(old.folder(), "first", 8, &mesh);
    let home = first.home.to_str().unwrap();
    let restore = ["cluster", "snapshot", "restore", file.to_str().unwrap(), "--name", "test", "--dir", home];
    let restored = run_cli(restore).await;
    assert_eq!(restored.code, 0, "{restored:?}");
    first.start(None);
    first.ready().await;

    let speaker = first.agent("speaker");
    assert_eq!(speaker.get(done["id"].as_str().unwrap()).await.unwrap(), done, "what had ended is there");
    assert_eq!(speaker.send(text_message("m-1", "short")).await.unwrap()["id"], done["id"], "messages are known");
    let large = speaker.get(large["id"].as_str().unwrap()).await.unwrap();
    let link = large["history"][0]["parts"][0]["url"].as_str().unwrap_or_else(|| panic!("a link: {large}"));
    let content = http_client().get(link).send().await.unwrap().text().await.unwrap();
    assert!(content == text, "the content that is beside the log is there");
    let record = eventually("the task that ran to be adopted and to end", async || {
        let record = first.operator(&format!("tasks/{running}")).await?;
        (record["status"]["state"] == "Completed").then_some(record)
    })
    .await;
    let adopted = &record["adoptions"][0];
    let new_id = adopted["to"].as_u64().unwrap();
    assert!(!old_ids.contains(&new_id) && old_ids.contains(&adopted["from"].as_u64().unwrap()), "{adopted}");
    let all = Observer::subscribe(speaker.endpoint(), &running, Some(0)).finished().await;
    let indexes: Vec<u64> = all.iter().map(|seen| seen.index).collect();
    assert_eq!(indexes, (1..=indexes.len() as u64).collect::<Vec<_>>());
    assert_eq!(all[..seen.len()], seen, "the stream goes on where it was");

    let token = run_cli(["cluster", "join-token", "--server", &first.url]).await;
    let mut second = TestNode::new(old.folder(), "second", 8, &mesh);
    second.start(Some((&first.peer, token.stdout.trim())));
    second.ready().await;
    let read = second.agent("speaker").get(&running).await.unwrap();
    assert_eq!(state_of(&read), "TASK_STATE_COMPLETED", "a node that joins holds the same");
    first.kill().await;
    first.start(None);
    first.ready().await;
    assert_eq!(first.agent("speaker").get(&running).await.unwrap(), read, "also after a restart");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_made_after_the_save_is_not_made_again_in_the_restored_cluster_unless_a_person_says_so() {
    let saved_now = Gate::closed();
    let gate = saved_now.clone();
    let model = FakeModel::start(move |chat| match chat.results.last() {
        None => Answer::new().words(&["I send. "]).wait(&gate).call("srv__send_once", &json!({ "text": "the letter" })),
        Some(result) => Answer::say(result.clone()),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    let noted = || fs::read_to_string(&calls).unwrap_or_default().lines().count();
    let mesh = model.config()
        + &format!(
            "mcp:\n  servers:\n    - {{ name: srv, transport: stdio, command: [{:?}, {calls:?}], timeout: 300s, on_adoption: {{ \"*\": ask }} }}\nagents:\n  - {{ name: sender, description: Sends., instruction: Send., tools: [\"srv.*\"] }}\n",
            scripted_mcp()
        );
    let mut old = Cluster::start(Plan::one(mesh.clone())).await;
    let task = old.nodes[0].agent("sender").send_async(text_message("m-1", "send it")).await.unwrap();
    let task = task["id"].as_str().unwrap().to_owned();
    Observer::subscribe(old.nodes[0].agent("sender").endpoint(), &task, Some(0)).saw(3).await;
    let file = old.folder().join("saved.towline");
    let saved = run_cli(["cluster", "snapshot", "save", file.to_str().unwrap(), "--server", &old.nodes[0].url]).await;
    assert_eq!(saved.code, 0, "{saved:?}");
    saved_now.open();
    eventually("the call", async || (noted() == 1).then_some(())).await;
    let id = old.nodes[0].id;
    old.kill(id).await;

    let mut first = TestNode::new(old.folder(), "first", 8, &mesh);
    let home = first.home.to_str().unwrap();
    let restore = ["cluster", "snapshot", "restore", file.to_str().unwrap(), "--name", "test", "--dir", home];
    let restored = run_cli(restore).await;
    assert_eq!(restored.code, 0, "{restored:?}");
    first.start(None);
    first.ready().await;

    let sender = first.agent("sender");
    let asked = eventually("the question", async || {
        Some(sender.get(&task).await.unwrap()).filter(|task| state_of(task) == "TASK_STATE_INPUT_REQUIRED")
    })
    .await;
    let question = asked["status"]["message"]["parts"][0]["text"].as_str().unwrap();
    assert!(question.contains("after it was saved") && question.contains("send_once"), "{question}");
    assert_eq!(noted(), 1, "nothing was sent again");

    let mut verdict = text_message("m-2", "done it was sent");
    verdict["taskId"] = json!(task);
    let done = sender.send(verdict).await.unwrap();
    assert_eq!(state_of(&done), "TASK_STATE_COMPLETED", "{done}");
    assert_eq!(noted(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torn_or_edited_file_is_refused_with_what_is_wrong() {
    let cluster = Cluster::start(Plan::one(String::new())).await;
    let file = cluster.folder().join("saved.towline");
    let saved =
        run_cli(["cluster", "snapshot", "save", file.to_str().unwrap(), "--server", &cluster.nodes[0].url]).await;
    assert_eq!(saved.code, 0, "{saved:?}");
    let whole = fs::read(&file).unwrap();
    let mut edited = whole.clone();
    let at = edited.len() - 80;
    edited[at] ^= 1;

    for (bytes, what) in [
        (&whole[..whole.len() - 1], "torn"),
        (&whole[..whole.len() / 2], "torn"),
        (&edited[..], "damaged or was edited"),
        (b"something else".as_slice(), "no saved snapshot"),
    ] {
        let home = cluster.folder().join("new");
        fs::write(&file, bytes).unwrap();
        let restore = ["cluster", "snapshot", "restore", file.to_str().unwrap(), "--name", "n"];
        let refused = run_cli(restore.into_iter().chain(["--dir", home.to_str().unwrap()])).await;
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains(what), "{refused:?}");
        assert!(!home.exists(), "nothing is made");
    }
}

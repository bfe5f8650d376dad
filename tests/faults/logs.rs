//! What a node writes to its log: one object a line, named by its task, with no secret and no prompt in it.

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use towline_tests::{
    Answer, Cluster, FakeModel, Plan, eventually, http_client, run_cli, scripted_mcp, state_of, text_message,
};

/// Secrets, wherever a user or a configuration may put one.
const SECRETS: [&str; 7] = [
    "k3y-0f-the-m0del",
    "t0ken-0f-the-serv3r",
    "b3arer-of-a-caller-0123456789",
    "sk-1nthepr0mpt1nthepr0mpt",
    "ada@secret-1nbox.org",
    "h00k-t0ken-0123456789",
    "3nv-0f-the-serv3r",
];
/// Something that only a prompt, an answer or an argument of a tool says.
const SAID: [&str; 3] = ["pr0mpt-of-the-user", "answ3r-of-the-model", "argum3nt-of-the-tool"];

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_and_no_prompt_is_in_the_log_of_a_node_and_lines_of_a_task_name_it_and_its_trace() {
    let model = FakeModel::start(|chat| match (chat.number, chat.results.len()) {
        (0, _) => Answer::status(500, Some(0)),
        (_, 0) => Answer::new().call("srv__fail", &json!({ "text": SAID[2] })),
        (_, _) => Answer::say(format!("{} and {}", SAID[1], SECRETS[3])),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    let mesh = model.config().replace("no secret", SECRETS[0])
        + &format!(
            "mcp:\n  servers:\n    - {{ name: srv, transport: stdio, command: [{:?}, {calls:?}], env: {{ API: \"{}\" }}, on_adoption: {{ \"*\": retry }} }}\n    - {{ name: away, endpoint: \"http://127.0.0.1:9/mcp\", headers: {{ Authorization: \"Bearer {}\" }} }}\nagents:\n  - {{ name: caller, description: C., instruction: Call., tools: [\"srv.*\"] }}\ntriggers: [ {{ name: deploy, agent: caller, webhook: {{ hmac: \"{{{{secret:HOOK_SECRET}}}}\" }} }} ]\n",
            scripted_mcp(),
            SECRETS[6],
            SECRETS[1],
        );
    let mut cluster =
        Cluster::start_in(Plan::one(mesh), &[("TOWLINE_LOG_FORMAT", "json"), ("HOOK_SECRET", SECRETS[5])]).await;
    let url = cluster.nodes[0].url.clone();
    let prompt = format!("{} {} password={} write to {}", SAID[0], SECRETS[3], SECRETS[0], SECRETS[4]);
    let first = ask(&cluster, "m-1", &prompt).await;
    let said = http_client().get(format!("{url}/api/v1/cluster?token={}", SECRETS[2])).bearer_auth(SECRETS[2]);
    said.send().await.unwrap();
    let called = http_client().post(format!("{url}/hooks/deploy")).header("x-hub-signature-256", SECRETS[2]).body("{}");
    assert_eq!(called.send().await.unwrap().status().as_u16(), 401);

    let shown = run_cli(["log", "level", "--server", &url]).await;
    assert!(shown.code == 0 && shown.stdout.contains("towline=info"), "{shown:?}");
    let changed = run_cli(["log", "level", "debug", "--server", &url]).await;
    assert!(changed.code == 0 && changed.stdout.contains("towline=debug"), "{changed:?}");
    ask(&cluster, "m-2", &prompt).await;
    eventually("what nobody hears at the usual level", async || {
        // What is no HTTP is told at debug.
        let mut stream = TcpStream::connect(url.trim_start_matches("http://")).await.unwrap();
        stream.write_all(b"no such thing as HTTP\r\n\r\n").await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.unwrap();
        cluster.nodes[0].log_text().contains("\"level\":\"DEBUG\"").then_some(())
    })
    .await;
    let wrong = run_cli(["log", "level", "towline=loud", "--server", &url]).await;
    assert!(wrong.code != 0 && wrong.stderr.contains("write info, or towline=debug"), "{wrong:?}");
    let back = run_cli(["log", "level", "default", "--server", &url]).await;
    assert_eq!(back.stdout, shown.stdout);
    assert_eq!(cluster.nodes[0].stop().await, Some(0));

    let log = cluster.nodes[0].log_text();
    let lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect();
    for secret in SECRETS {
        assert!(!log.contains(secret), "{secret}: {}", log.lines().find(|line| line.contains(secret)).unwrap());
    }
    let is_level = |line: &Value, levels: &[&str]| levels.iter().any(|level| line["level"] == *level);
    for line in lines.iter().filter(|line| is_level(line, &["INFO", "WARN", "ERROR"])) {
        assert!(!SAID.iter().any(|said| line.to_string().contains(said)), "{line}");
    }
    assert!(
        !lines.iter().any(|line| line["target"].as_str().unwrap().starts_with("genai")),
        "it tells what a model said"
    );
    let events: Vec<&str> = lines.iter().filter_map(|line| line["fields"]["event"].as_str()).collect();
    for event in ["node.up", "task.leased", "task.ended"] {
        assert!(events.contains(&event), "{event}: {events:?}");
    }
    // The attempt that failed is told by the model's own code, which knows nothing of tasks.
    let retried = lines.iter().find(|line| line["target"] == "towline_actors::model::retry").expect("a retry is told");
    assert_eq!(retried["fields"]["task"], first["id"], "{retried}");
    let record_trace = retried["fields"]["trace_id"].as_str().unwrap();
    assert_eq!(record_trace.len(), 32, "{retried}");
}

/// Has a task done that asks the model, has a tool fail, and ends.
async fn ask(cluster: &Cluster, id: &str, prompt: &str) -> Value {
    let caller = cluster.nodes[0].agent("caller");
    let sent = caller.send_async(text_message(id, prompt)).await.unwrap();
    let task = sent["id"].as_str().unwrap().to_owned();
    eventually("the end of the task", async || {
        let task = caller.get(&task).await.unwrap();
        (state_of(&task) == "TASK_STATE_COMPLETED").then_some(task)
    })
    .await
}

//! Calls from outside: who shows the right thing starts one task with it, however often and wherever it comes.

use super::{WORKER, model, trigger};
use serde_json::Value;
use towline_tests::{Cluster, FakeModel, Plan, TestNode, eventually, http_client};

const SECRET: &str = "a secret of the tests, shared";

/// HMAC-SHA256 of `BODY` under the secret; `openssl dgst -sha256 -hmac` says the same.
const BODY: &str = r#"{"deploy":"green"}"#;
const SIGNATURE: &str = "sha256=abf968a59bc3d2dce10b9f4728f3fa5a2816f310142da3f5098e2fb05a27f590";
const OTHER_BODY: &str = r#"{"deploy":"blue"}"#;
const OTHER_SIGNATURE: &str = "sha256=89cf00188de7b52643855130e73e00266c9e65475b22acf3467024a8369655c8";

const HOOKS: &str = "\
triggers:
  - { name: signed, agent: worker, prompt: Deploy., webhook: { hmac: \"{{secret:HOOK}}\" } }
  - { name: shown, agent: worker, webhook: { bearer: \"{{secret:HOOK}}\", key_header: X-Delivery } }
";

async fn call(node: &TestNode, name: &str, headers: &[(&str, &str)], body: &str) -> (u16, Value) {
    let request = http_client().post(format!("{}/hooks/{name}", node.url)).body(body.to_owned());
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap_or_default())
}

async fn start(nodes: usize) -> (Cluster, FakeModel) {
    let model = model().await;
    let plan = Plan { nodes, permits: 8, mesh: model.config() + WORKER + HOOKS };
    let cluster = Cluster::start_in(plan, &[("HOOK", SECRET)]).await;
    for node in &cluster.nodes {
        eventually("the triggers to be known", async || {
            let all = node.operator("triggers").await?;
            (all["triggers"].as_array()?.len() == 2).then_some(())
        })
        .await;
    }
    (cluster, model)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_call_starts_one_task_and_one_with_a_wrong_signature_none() {
    let (cluster, _model) = start(1).await;
    let node = &cluster.nodes[0];
    let signed = |signature| [("x-hub-signature-256", signature)];
    for wrong in ["", "sha256=00", OTHER_SIGNATURE] {
        let (status, said) = call(node, "signed", &signed(wrong), BODY).await;
        assert_eq!((status, &said["error"]["code"]), (401, &"unauthenticated".into()), "{said}");
    }
    let (status, said) = call(node, "no-such-trigger", &signed(SIGNATURE), BODY).await;
    assert_eq!((status, &said["error"]["code"]), (401, &"unauthenticated".into()), "{said}");
    let (status, said) = call(node, "signed", &signed(SIGNATURE), BODY).await;
    assert_eq!((status, &said["created"]), (202, &true.into()), "{said}");
    let (status, again) = call(node, "signed", &signed(SIGNATURE), BODY).await;
    assert_eq!((status, &again["created"], &again["task"]), (200, &false.into(), &said["task"]), "{again}");
    let task = cluster.task(said["task"].as_str().unwrap()).await;
    let text = task.history[0].text();
    assert!(text.contains("Deploy.") && text.contains(BODY) && text.contains("<untrusted"), "{text}");
    assert_eq!(task.outside_input, ["event of trigger signed"]);
    assert_eq!(trigger(&cluster, "signed").await.unwrap()["fired"], 1);
    let (status, said) = call(node, "signed", &signed(SIGNATURE), &"x".repeat(300_000)).await;
    assert_eq!((status, &said["error"]["code"]), (413, &"body_too_large".into()), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_is_one_task_through_any_node_and_with_other_content_refused() {
    let (cluster, _model) = start(3).await;
    let bearer = format!("Bearer {SECRET}");
    let headers = |key| [("authorization", bearer.as_str()), ("x-delivery", key)];
    let (status, first) = call(&cluster.nodes[0], "shown", &headers("k-1"), "one").await;
    assert_eq!(status, 202, "{first}");
    for node in &cluster.nodes {
        let (status, again) = call(node, "shown", &headers("k-1"), "one").await;
        assert_eq!((status, &again["task"]), (200, &first["task"]), "{again}");
    }
    let (status, other) = call(&cluster.nodes[1], "shown", &headers("k-1"), "two").await;
    assert_eq!(status, 409, "{other}");
    let (status, _) = call(&cluster.nodes[2], "shown", &headers("k-2"), "two").await;
    assert_eq!(status, 202);
    let (status, said) = call(&cluster.nodes[2], "shown", &[("authorization", "Bearer wrong")], "two").await;
    assert_eq!(status, 401, "{said}");
    assert_eq!(trigger(&cluster, "shown").await.unwrap()["fired"], 2);
    let both = [("x-hub-signature-256", OTHER_SIGNATURE)];
    let (status, said) = call(&cluster.nodes[1], "signed", &both, OTHER_BODY).await;
    assert_eq!(status, 202, "{said}");
}

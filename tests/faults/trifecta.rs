//! Text from outside stays away from agents that hold sensitive data and have a way out.

use serde_json::json;
use towline_tests::{Answer, Cluster, Elsewhere, FakeModel, Manners, Plan, run_cli, state_of, text_message};

#[tokio::test(flavor = "multi_thread")]
async fn a_tainted_result_is_withheld_from_an_agent_that_holds_data_and_can_send_it_out() {
    let elsewhere = Elsewhere::start(1, Manners::good()).await;
    let model = FakeModel::start(|chat| match chat.results.last() {
        None if chat.system.contains("reader") => {
            Answer::new().call("delegate", &json!({ "agent": "foreign", "message": "do it" }))
        }
        None => Answer::new().call("delegate", &json!({ "agent": "reader", "message": "read it" })),
        Some(result) => Answer::say(format!("I got: {result}")),
    })
    .await;
    let mesh = format!(
        "{}agents:
  - {{ name: keeper, description: K., instruction: You keep., delegates: [reader], tags: [sensitive, egress] }}
  - {{ name: open, description: O., instruction: You are open., delegates: [reader], tags: [egress] }}
  - {{ name: reader, description: R., instruction: You are the reader., delegates: [foreign] }}
peers:\n  - {{ name: foreign, url: \"{}\" }}\n",
        model.config(),
        elsewhere.urls()[0]
    );
    let cluster = Cluster::start(Plan::one(mesh)).await;
    let node = &cluster.nodes[0];

    let task = node.agent("open").send(text_message("m-1", "begin")).await.unwrap();
    assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
    assert!(task.to_string().contains("done abroad"), "{task}");
    let reasons = &task["metadata"]["dev.towline/outsideInput"];
    assert_eq!(reasons, &json!(["result of agent reader: result of peer foreign"]), "{task}");

    let task = node.agent("keeper").send(text_message("m-2", "begin")).await.unwrap();
    assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
    assert!(!task.to_string().contains("done abroad"), "{task}");
    assert!(task.to_string().contains("the result is withheld"), "{task}");
    assert_eq!(task["metadata"].get("dev.towline/outsideInput"), None, "nothing came in");

    let url = &elsewhere.urls()[0];
    let refused = run_cli(["peer", "add", "more", "--url", url, "--for", "keeper", "--server", &node.url]).await;
    assert!(refused.code != 0 && refused.stderr.contains("holds sensitive data"), "{refused:?}");
}

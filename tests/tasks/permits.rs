//! A run that waits for others gives its permit back: parents do not starve their own children.

use serde_json::json;
use towline_tests::{Answer, Cluster, FakeModel, Plan, state_of, text_message, text_of_artifacts};

const AGENTS: &str = "\
agents:
  - { name: parent, description: Delegates., instruction: You are the parent., delegates: [child] }
  - { name: child, description: Works., instruction: You are the child. }
";

#[tokio::test(flavor = "multi_thread")]
async fn with_a_node_limit_of_2_ten_parents_with_two_children_each_finish_on_one_node() {
    let model = FakeModel::start(|chat| {
        let order = |who: &str| json!({ "agent": "child", "message": format!("work, {who}") });
        match (chat.system.contains("parent"), chat.results.len()) {
            (true, 0) => Answer::new().call("delegate", &order("first")).call("delegate", &order("second")),
            (true, _) => Answer::say(format!("both are back: {}", chat.results.join(" and "))),
            (false, _) => Answer::say(format!("done: {}", chat.user)),
        }
    })
    .await;
    let plan = Plan { nodes: 1, permits: 2, mesh: model.config() + AGENTS };
    let cluster = Cluster::start(plan).await;
    let parent = cluster.nodes[0].agent("parent");

    let sending = (0..10).map(|number| parent.send(text_message(&format!("m-{number}"), "have it done")));
    let tasks = futures::future::join_all(sending).await;

    for task in tasks {
        let task = task.unwrap();
        assert_eq!(state_of(&task), "TASK_STATE_COMPLETED", "{task}");
        let text: String = text_of_artifacts(&task).into_values().collect();
        assert!(text.contains("done: work, first") && text.contains("done: work, second"), "{text}");
    }
    for (agent, count) in [("parent", 10), ("child", 20)] {
        let completed = json!({ "status": "TASK_STATE_COMPLETED" });
        let list = cluster.nodes[0].agent(agent).call("ListTasks", completed).await.unwrap();
        assert_eq!(list["totalSize"], count, "{agent}: {list}");
    }
    assert_eq!(model.chats().len(), 40, "two turns of each parent, one of each child, none twice");
    assert!(model.most_open_streams() <= 2, "the limit holds for runs that work: {}", model.most_open_streams());
}

//! A copy of the data folder of a node that runs.

use std::{fs, path::Path};

use towline_tests::{Answer, Cluster, FakeModel, Plan, TestNode, eventually, state_of, text_message};

const SPEAKER: &str = "agents:\n  - { name: speaker, description: Speaks., instruction: Speak. }\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_the_folder_of_a_node_that_runs_ends_and_takes_nothing_from_it() {
    let model = FakeModel::start(|_| Answer::say("spoken")).await;
    let cluster = Cluster::start(Plan::one(model.config() + SPEAKER)).await;
    let node = &cluster.nodes[0];
    let said = node.agent("speaker").send(text_message("m-1", "speak")).await.unwrap();
    assert_eq!(state_of(&said), "TASK_STATE_COMPLETED");
    let before = node.operator("cluster").await.unwrap()["members"][0]["addresses"].clone();

    let mut copy = TestNode::new(cluster.folder(), "copy", 8, "");
    let config = fs::read_to_string(copy.config()).unwrap();
    fs::write(copy.config(), config.replacen("name: copy", &format!("name: {}", node.name), 1)).unwrap();
    copy_folder(&node.data(), &copy.data());
    copy.start(None);

    assert_eq!(copy.ended().await, Some(1), "{}", copy.log_text());
    let told = copy.log_text();
    assert!(told.contains("runs already, and answers at") && told.contains(&node.peer), "{told}");
    let again = node.agent("speaker").send(text_message("m-2", "speak")).await.unwrap();
    assert_eq!(state_of(&again), "TASK_STATE_COMPLETED");
    assert_eq!(node.operator("cluster").await.unwrap()["members"][0]["addresses"], before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_has_stopped_goes_on_at_another_address() {
    let mut cluster = Cluster::start(Plan::one(String::new())).await;
    cluster.nodes[0].stop().await;
    let mut moved = TestNode::new(cluster.folder(), "moved", 8, "");
    let config = fs::read_to_string(moved.config()).unwrap();
    fs::write(moved.config(), config.replacen("name: moved", "name: a", 1)).unwrap();
    copy_folder(&cluster.nodes[0].data(), &moved.data());
    moved.start(None);
    moved.ready().await;
    eventually("its new address to be known", async || {
        let status = moved.operator("cluster").await?;
        (status["members"][0]["addresses"]["peer"] == *moved.peer).then_some(())
    })
    .await;
    moved.kill().await;
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

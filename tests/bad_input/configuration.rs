//! Files, ports and folders that do not fit.

use std::{fs, net::TcpListener, path::Path};
use towline_tests::{Cluster, Plan, TestNode, base_config, free_port, run_cli};

const MESH: &str = "\
models:
  default: { provider: openai, base_url: \"http://127.0.0.1:9/v1/\", model: m, api_key: k }
agents:
  - { name: speaker, description: Speaks., instruction: Speak. }
";

#[tokio::test]
async fn a_config_that_names_a_missing_file_is_refused_with_its_path_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let mesh = MESH.replace("instruction: Speak.", "instruction: \"file://prompts/none.md\"");
    let config = write(folder.path(), &(base_config("a", free_port(), free_port(), 8) + &mesh));
    for arguments in [vec!["validate", &config], vec!["node", "-c", &config]] {
        let ran = run_cli(&arguments).await;
        assert_eq!(ran.code, 2, "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains("prompts/none.md"), "{ran:?}");
        assert!(ran.stderr.contains("agents[0].instruction"), "{ran:?}");
        assert!(ran.stderr.contains("towline.yaml:10:"), "it names the line: {ran:?}");
    }
    assert!(!folder.path().join("data").exists(), "nothing was done before the file was checked");
}

#[tokio::test]
async fn every_mistake_is_reported_at_once_and_unknown_keys_get_the_nearest_known_one() {
    let folder = tempfile::tempdir().unwrap();
    let mesh = "\
models:
  default: { provider: eliza, model: m }
agents:
  - { name: speaker, descripton: Speaks., instruction: Speak. }
  - { name: listener, description: L., instruction: L., model: none, delegates: [nobody] }
mcp: { servers: [ { name: fs, transport: stdio } ] }
";
    let config = write(folder.path(), &(base_config("a", free_port(), free_port(), 8) + mesh));
    let ran = run_cli(["validate", &config]).await;
    assert_eq!(ran.code, 2, "{ran:?}");
    for part in ["eliza", "descripton", "description", "none", "nobody", "command"] {
        assert!(ran.stderr.contains(part) || ran.stdout.contains(part), "{part}: {}", ran.said());
    }
}

#[tokio::test]
async fn a_secret_that_is_not_set_is_a_mistake_of_the_file_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mesh = MESH.replace("api_key: k", "api_key: \"{{secret:NO_SUCH_SECRET}}\"");
    let config = write(folder.path(), &(base_config("a", free_port(), free_port(), 8) + &mesh));
    let ran = run_cli(["validate", &config]).await;
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.said().contains("NO_SUCH_SECRET"), "{ran:?}");
}

#[tokio::test]
async fn a_config_file_that_is_not_there_is_named() {
    let ran = run_cli(["node", "-c", "/nowhere/towline.yaml"]).await;
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("/nowhere/towline.yaml"), "{ran:?}");
}

#[tokio::test]
async fn a_client_listener_off_loopback_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let base = base_config("a", free_port(), free_port(), 8).replacen("127.0.0.1", "0.0.0.0", 1);
    let config = write(folder.path(), &(base + MESH));
    let ran = run_cli(["node", "-c", &config]).await;
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("node.listen.http"), "{ran:?}");
}

#[tokio::test]
async fn a_port_in_use_is_named_with_its_setting() {
    for setting in ["node.listen.http", "node.listen.peer"] {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        let (http, peer) = if setting == "node.listen.http" { (port, free_port()) } else { (free_port(), port) };
        let config = write(folder.path(), &(base_config("a", http, peer, 8) + MESH));
        let home = folder.path().to_str().unwrap();
        let ran = run_cli(["init", "--name", "test", "--dir", home]).await;
        assert_eq!(ran.code, 0, "{ran:?}");
        let ran = run_cli(["node", "-c", &config]).await;
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.stderr.contains(&port.to_string()), "it names the port: {ran:?}");
        assert!(ran.stderr.contains(setting), "it names the setting: {ran:?}");
        let unix = format!("node.listen.unix={home}/gone/towline.sock");
        let free = format!("{setting}=127.0.0.1:{}", free_port());
        let ran = run_cli(["node", "-c", &config, "--set", &free, "--set", &unix]).await;
        assert!(ran.code == 2 && ran.stderr.contains("mkdir -p"), "{ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_required_mcp_server_is_not_there_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let servers = "mcp: { servers: [ { name: tools, command: [/nowhere/server], required: true } ] }\n";
    let config = write(folder.path(), &(base_config("a", free_port(), free_port(), 8) + MESH + servers));
    let ran = run_cli(["init", "--name", "test", "--dir", folder.path().to_str().unwrap()]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let ran = run_cli(["node", "-c", &config]).await;
    assert_eq!(ran.code, 6, "{ran:?}");
    assert!(ran.stderr.contains("\"tools\"") && ran.stderr.contains("/nowhere/server"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_folder_of_another_cluster_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = TestNode::new(folder.path(), "a", 8, MESH);
    node.init().await;
    let config = fs::read_to_string(node.config()).unwrap();
    fs::write(node.config(), config.replace("cluster: { name: test }", "cluster: { name: other }")).unwrap();
    node.start(None);
    assert_ne!(node.ended().await, Some(0));
    let log = node.log_text();
    assert!(log.contains("test") && log.contains("other"), "it names both clusters: {log}");
    assert!(log.contains("data"), "it names the folder: {log}");

    fs::write(node.config(), config).unwrap();
    node.start(None);
    node.ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_folder_of_another_node_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = TestNode::new(folder.path(), "a", 8, MESH);
    node.init().await;
    let config = fs::read_to_string(node.config()).unwrap();
    fs::write(node.config(), config.replace("name: a\n", "name: somebody\n")).unwrap();
    node.start(None);
    assert_ne!(node.ended().await, Some(0));
    let log = node.log_text();
    assert!(log.contains("somebody"), "it names the node: {log}");

    fs::write(node.config(), config).unwrap();
    node.start(None);
    node.ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_folder_that_another_process_uses_is_refused() {
    let mut cluster = Cluster::start(Plan::one(MESH)).await;
    let config = cluster.nodes[0].config();
    let config = config.to_str().unwrap().to_owned();
    let other = format!("node.listen.http=127.0.0.1:{}", free_port());
    let peer = format!("node.listen.peer=127.0.0.1:{}", free_port());
    let ran = run_cli(["node", "-c", &config, "--set", &other, "--set", &peer]).await;
    assert_ne!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.contains("data"), "it names the folder: {ran:?}");
    cluster.nodes[0].ready().await;
}

#[tokio::test]
async fn a_node_that_was_never_initialised_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let config = write(folder.path(), &(base_config("a", free_port(), free_port(), 8) + MESH));
    let ran = run_cli(["node", "-c", &config]).await;
    assert_ne!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.contains("towline init") && ran.stderr.contains("--join"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_token_that_was_used_or_never_made_is_refused() {
    let cluster = Cluster::start(Plan { nodes: 2, permits: 8, mesh: MESH.to_owned() }).await;
    let mut stranger = TestNode::new(cluster.folder(), "stranger", 8, MESH);
    stranger.start(Some((&cluster.nodes[0].peer, "towline-no-such-token")));
    assert_ne!(stranger.ended().await, Some(0));
    assert!(stranger.log_text().contains("token"), "{}", stranger.log_text());
    let status = cluster.nodes[0].operator("cluster").await.unwrap();
    assert_eq!(status["members"].as_array().unwrap().len(), 2, "{status}");
}

fn write(folder: &Path, config: &str) -> String {
    let path = folder.join("towline.yaml");
    fs::write(&path, config).unwrap();
    path.to_str().unwrap().to_owned()
}

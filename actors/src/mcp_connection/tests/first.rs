//! What is waited for when a task comes just after the start of its node.

use std::time::Instant;

use super::*;

/// A server that comes up once there is a file.
fn slow_to_start(gate: &std::path::Path) -> McpServerConfig {
    let wait = format!("while ! test -e {}; do sleep 0.05; done; exec \"$@\"", gate.display());
    let mut command = ["sh", "-c", &wait, "sh"].map(str::to_owned).to_vec();
    command.extend(child_command());
    stdio(command)
}

#[tokio::test]
async fn a_server_that_takes_long_to_start_is_waited_for_as_long_as_its_first_try_lasts() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("up");
    let mut handle = McpHandle::spawn(slow_to_start(&gate), None, "node-a", None).await.unwrap();
    // As if it had been starting for longer than servers that refuse are waited for.
    handle.begun = Instant::now() - Duration::from_secs(10);
    let waiting = handle.first_listing();
    tokio::pin!(waiting);
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut waiting).await.is_err(), "nothing is listed yet");
    assert_eq!(handle.unlisted().as_deref(), Some("it has not answered yet"));
    std::fs::write(&gate, "").unwrap();
    tokio::time::timeout(WITHIN * 4, waiting).await.expect("it is there");
    assert!(!handle.tools().is_empty());
    assert_eq!(handle.unlisted(), None);
    handle.stop().await;
}

#[tokio::test]
async fn a_server_that_is_dead_holds_no_task_up_once_it_had_its_time_to_start() {
    let config = stdio(vec!["/nowhere/no-such-program".into()]);
    let mut handle = McpHandle::spawn(config, None, "node-a", None).await.unwrap();
    handle.begun = Instant::now() - Duration::from_secs(10);
    let begun = Instant::now();
    // The next tries are made for as long as the actor lives; they are not waited for.
    tokio::time::timeout(WITHIN * 4, handle.first_listing()).await.expect("its first try is over");
    handle.first_listing().await;
    assert!(begun.elapsed() < WITHIN * 4);
    let why = handle.unlisted().expect("nothing is listed");
    assert!(why.contains("no-such-program") || why == "it has not answered yet", "{why}");
    handle.stop().await;
}

//! `towline bench`: each bench in its smallest form. What is checked is the shape of what it says, that nothing failed and
//! nothing was lost; how fast anything is depends on the machine, and is told in `tests/BENCHMARKS.md`.

#![expect(clippy::unwrap_used, reason = "a scenario that cannot go on fails the test")]

use serde_json::Value;
use towline_tests::run_cli;

#[tokio::test(flavor = "multi_thread")]
async fn cluster_has_a_row_for_each_operation_and_number_of_clients() {
    let rows = rows(&["cluster", "--clients", "1,4", "--seconds", "1", "--rounds", "1"]).await;
    let points: Vec<(&str, u64)> =
        rows.iter().map(|row| (row["bench"].as_str().unwrap(), row["clients"].as_u64().unwrap())).collect();
    assert_eq!(points, [("cluster put", 1), ("cluster put", 4), ("cluster get", 1), ("cluster get", 4)]);
    for row in &rows {
        assert_eq!(row["subject"], "towline");
        assert_eq!(row["failed"], 0, "{row}");
        assert!(row["per_second"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["p50_ms"].as_f64().unwrap() <= row["p99_ms"].as_f64().unwrap(), "{row}");
        assert!(row["cpu_us"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["ratio"].is_null(), "nothing was compared: {row}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_of_an_agent_that_does_nothing_is_at_most_four_log_entries() {
    let rows = rows(&["task", "--clients", "3", "--seconds", "1", "--rounds", "1"]).await;
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!(row["failed"], 0, "{row}");
    let entries = row["entries_per_task"].as_f64().unwrap();
    assert!((3.0..=4.2).contains(&entries), "a few entries of the cluster's own may be among them: {row}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_sees_every_event_once_when_the_owner_dies() {
    let rows = rows(&["adopt", "--kills", "2"]).await;
    let adoptions: Vec<&Value> = rows.iter().filter(|row| row["bench"] == "adopt").collect();
    let subjects: Vec<&str> = adoptions.iter().map(|row| row["subject"].as_str().unwrap()).collect();
    assert_eq!(subjects, ["owner killed", "owner killed, it led"]);
    for row in adoptions {
        assert_eq!((&row["lost"], &row["duplicated"], &row["done"]), (&0.into(), &0.into(), &1.into()), "{row}");
        assert!(row["p50_ms"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert_eq!(rows.iter().filter(|row| row["bench"] == "writes resume").count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delegation_that_leaves_its_node_is_timed() {
    let rows = rows(&["delegation", "--clients", "1", "--seconds", "2", "--rounds", "1"]).await;
    let [trip, whole] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!((&trip["subject"], &whole["subject"]), (&"round trip to another node".into(), &"whole task".into()));
    assert!(trip["done"].as_u64().unwrap() > 0, "{trip}");
    assert!(trip["p50_ms"].as_f64().unwrap() < whole["p50_ms"].as_f64().unwrap(), "{rows:?}");
    assert_eq!(whole["failed"], 0, "{whole}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_revoked_session_end_at_every_node() {
    let rows = rows(&["revoke", "--rounds", "1"]).await;
    let ended: Vec<(&str, u64)> =
        rows.iter().map(|row| (row["subject"].as_str().unwrap(), row["done"].as_u64().unwrap())).collect();
    assert_eq!(ended, [("stream at the leader", 1), ("stream at a follower", 2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_tool_are_measured_over_both_ways() {
    let rows = rows(&["mcp", "--clients", "2", "--seconds", "1", "--rounds", "1"]).await;
    let benches: Vec<&str> = rows.iter().map(|row| row["bench"].as_str().unwrap()).collect();
    assert_eq!(benches, ["mcp call, http", "mcp call, stdio"]);
    assert!(rows.iter().all(|row| row["cpu_us"].as_f64() > Some(0.0)), "{rows:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_and_cards_of_one_node_in_memory_are_measured() {
    let rows = rows(&["a2a", "--clients", "2", "--seconds", "1", "--rounds", "1"]).await;
    let benches: Vec<&str> = rows.iter().map(|row| row["bench"].as_str().unwrap()).collect();
    assert_eq!(benches, ["a2a message", "a2a card", "a2a card, 304"]);
    for row in &rows {
        assert_eq!((&row["subject"], &row["failed"]), (&"towline".into(), &0.into()), "{row}");
        assert!(row["cpu_us"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_are_measured_alone_and_in_tasks_in_each_way() {
    let rows = rows(&["trace", "--clients", "2", "--seconds", "1", "--rounds", "1", "--tasks", "100"]).await;
    let seen: Vec<(&str, &str)> =
        rows.iter().map(|row| (row["bench"].as_str().unwrap(), row["subject"].as_str().unwrap())).collect();
    let spans = ["off", "unsampled", "kept", "exported"].map(|way| ("span", way));
    let tasks = ["unsampled", "kept", "exported"].map(|way| ("task", way));
    assert_eq!(seen[..7], [&spans[..], &tasks[..]].concat());
    let rest: Vec<&str> = seen[7..].iter().map(|(bench, _)| *bench).collect();
    assert_eq!(rest, ["trace", "trace", "scrape"]);
    let spans: u32 = seen[8].1.split(' ').next().unwrap().parse().unwrap();
    assert!(spans >= 1_000, "{seen:?}");
    assert!(seen[9].1.starts_with("100 tasks"), "{seen:?}");
    assert!(rows[..7].iter().all(|row| row["per_second"].as_f64().unwrap() > 0.0), "{rows:?}");
    assert!(rows[6]["ratio"].as_f64().is_some(), "the tasks are compared with unsampled ones: {rows:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_soak_tells_what_each_node_holds_over_time() {
    let rows = rows(&["soak", "--clients", "2", "--seconds", "3"]).await;
    assert_eq!((&rows[0]["bench"], &rows[0]["failed"]), (&"soak".into(), &0.into()), "{rows:?}");
    let looks: Vec<&Value> = rows[1..].iter().collect();
    assert_eq!(looks.len(), 90, "thirty looks at each of three nodes");
    for look in looks {
        assert!(look["rss_mb"].as_f64().unwrap() > 1.0 && look["open_files"].as_u64().unwrap() > 2, "{look}");
        assert!(look["at_s"].as_f64().unwrap() <= 3.0 && look["threads"].as_u64().unwrap() > 1, "{look}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_tells_the_memory_of_three_nodes_and_of_one_with_many_agents() {
    let rows = rows(&["idle", "--agents", "50"]).await;
    let benches: Vec<&str> = rows.iter().map(|row| row["bench"].as_str().unwrap()).collect();
    assert_eq!(benches, ["idle node", "idle node", "idle node", "50 idle agents"]);
    assert!(rows.iter().all(|row| row["rss_mb"].as_f64().unwrap() > 1.0), "{rows:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_build_takes_turns_with_this_one() {
    let other = towline_tests::towline();
    let other = other.to_str().unwrap();
    let arguments = ["cluster", "--clients", "2", "--seconds", "1", "--rounds", "1", "--towline", other];
    let rows = rows(&arguments).await;
    let subjects: Vec<&str> = rows.iter().map(|row| row["subject"].as_str().unwrap()).collect();
    assert_eq!(subjects, ["towline", "towline, build 2", "towline", "towline, build 2"]);
    assert!(rows.iter().all(|row| row["ratio"].as_f64().unwrap() > 0.0), "{rows:?}");
}

#[tokio::test]
async fn a_number_out_of_bounds_is_refused_before_anything_starts() {
    let ran = run_cli(["bench", "cluster", "--clients", "0"]).await;
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("--clients: expected a number from 1 to 4096"), "{ran:?}");
}

/// The rows of a bench that worked, which left nothing behind.
async fn rows(arguments: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let ran = run_cli(["bench"].iter().chain(arguments).chain(&["--dir", dir, "-o", "json"])).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "the nodes' data is removed");
    let report = ran.json();
    assert!(report["machine"]["cores"].as_u64().unwrap() > 0, "{report}");
    report["rows"].as_array().unwrap().clone()
}

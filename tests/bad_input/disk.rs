//! A disk that is full. The data folder lies on a small file system of its own.

use serde_json::{Value, json};
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use towline_tests::{
    Answer, Cluster, FakeModel, Gate, Plan, TestNode, eventually, http_client, made_bytes, run_cli, state_of,
    text_message,
};

const SPEAKER: &str = "agents:\n  - { name: speaker, description: Speaks., instruction: Speak. }\n";

const SIZE: &str = "size=96m";

/// Between a tenth of the disk, below which no new work is taken, and half of that, below which nothing is.
const ROOM_FOR_RUNNING: u64 = 7 * 1024 * 1024;

/// A leader without room leaves at once; a busy machine has time for it.
const HANDED_OVER_WITHIN: Duration = Duration::from_secs(20);

/// A refusal comes at once.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_new_work_keeps_what_it_has_and_is_shown_in_cluster_status() {
    let model = FakeModel::start(|_| Answer::say("spoken")).await;
    let folder = tempfile::tempdir().unwrap();
    let mut node = TestNode::new(folder.path(), "a", 8, &(model.config() + SPEAKER));
    let disk = SmallDisk::mount(&node.data());
    node.init().await;
    node.start(None);
    node.ready().await;
    let speaker = node.agent("speaker");
    let done = speaker.send(text_message("m-1", "speak")).await.unwrap();
    assert_eq!(state_of(&done), "TASK_STATE_COMPLETED");

    disk.fill();
    let refused = eventually("new work to be refused", async || {
        let id = format!("m-{}", fastrand());
        let sent = speaker.send(text_message(&id, &"x".repeat(200_000)));
        // What was taken just before the node noticed waits for room; it is not what is asked here.
        tokio::time::timeout(ANSWER_WITHIN, sent).await.ok()?.err()
    })
    .await;
    assert!(refused.message.contains("disk"), "it says why: {refused:?}");
    assert_eq!(speaker.get(done["id"].as_str().unwrap()).await.unwrap(), done, "what it has is kept");
    let status = node.operator("cluster").await.unwrap();
    assert_eq!(status["disk"]["health"], "full", "{status}");
    let shown = run_cli(["cluster", "status", "--server", &node.url]).await;
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(shown.stdout.lines().any(|line| line.starts_with("disk") && line.contains("full")), "{shown:?}");
    let (code, said) = node.health().await.unwrap();
    assert!(code == 503 && said.contains("\"disk_full\""), "the kind of the problem: {code} {said}");

    disk.empty();
    let again = eventually("new work to be taken", async || {
        let id = format!("m-{}", fastrand());
        speaker.send(text_message(&id, "speak")).await.ok()
    })
    .await;
    assert_eq!(state_of(&again), "TASK_STATE_COMPLETED");
    node.kill().await;
    node.start(None);
    node.ready().await;
    assert_eq!(node.agent("speaker").get(done["id"].as_str().unwrap()).await.unwrap(), done, "also after a restart");
    node.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_runs_ends_on_a_disk_that_has_no_room_for_new_work() {
    let go_on = Gate::closed();
    let gate = go_on.clone();
    let model = FakeModel::start(move |_| Answer::new().words(&["one "]).wait(&gate).words(&["two"])).await;
    let folder = tempfile::tempdir().unwrap();
    let mut node = TestNode::new(folder.path(), "a", 8, &(model.config() + SPEAKER));
    let disk = SmallDisk::mount(&node.data());
    node.init().await;
    node.start(None);
    node.ready().await;
    let speaker = node.agent("speaker");
    let task = speaker.send_async(text_message("m-1", "speak")).await.unwrap();
    let id = task["id"].as_str().unwrap();
    eventually("the task to work", async || {
        (state_of(&speaker.get(id).await.unwrap()) == "TASK_STATE_WORKING").then_some(())
    })
    .await;

    disk.fill_up_to(ROOM_FOR_RUNNING);
    let refused = async || {
        let sent = speaker.send_async(text_message(&format!("m-{}", fastrand()), "speak"));
        sent.await.err().filter(|refused| refused.message.contains("disk"))
    };
    eventually("new work to be refused", refused).await;
    go_on.open();
    let ended = eventually("the running task to end", async || {
        Some(speaker.get(id).await.unwrap()).filter(|task| state_of(task) == "TASK_STATE_COMPLETED")
    })
    .await;
    assert!(ended.to_string().contains("two"), "{ended}");
    assert!(refused().await.is_some(), "new work is still refused");
    node.kill().await;
}

/// A number that no other message of this process has.
fn fastrand() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A file system in memory, unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Self {
        fs::create_dir_all(at).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", SIZE, "tmpfs"]).arg(at).status().unwrap();
        assert!(mounted.success(), "mounting a small file system needs root");
        Self(at.to_owned())
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    fn fill(&self) {
        let mut file = File::create(self.filler()).unwrap();
        for size in [1 << 20, 1 << 12, 1] {
            while file.write_all(&vec![b'x'; size]).is_ok() {}
        }
    }

    /// Leaves this many bytes free.
    fn fill_up_to(&self, free: u64) {
        let space = rustix::fs::statvfs(&self.0).unwrap();
        let size = (space.f_bavail * space.f_frsize).saturating_sub(free);
        let mut file = File::create(self.filler()).unwrap();
        for _ in 0..size >> 12 {
            file.write_all(&[b'x'; 1 << 12]).unwrap();
        }
    }

    fn empty(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()) || std::thread::panicking(), "unmount {:?}", self.0);
    }
}

/// Three nodes that vote, the last of them on a disk of its own.
async fn third_on_a_small_disk() -> (Cluster, SmallDisk, FakeModel) {
    let model = FakeModel::start(|_| Answer::say("spoken")).await;
    let mesh = model.config() + "agents:\n  - { name: speaker, description: S., instruction: S., replicas: all }\n";
    let mut cluster = Cluster::start(Plan { nodes: 2, permits: 8, mesh: mesh.clone() }).await;
    let mut third = TestNode::new(cluster.folder(), "third", 8, &mesh);
    let disk = SmallDisk::mount(&third.data());
    let token = cluster.join_token().await;
    third.start(Some((&cluster.nodes[0].peer, &token)));
    cluster.nodes.push(third);
    cluster.all_ready().await;
    (cluster, disk, model)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_with_a_full_disk_does_not_stop_the_others() {
    let (mut cluster, disk, _model) = third_on_a_small_disk().await;

    let full = cluster.nodes[2].id;
    let quorum =
        async |node: usize| Some(cluster.nodes[node].operator("cluster").await?["quorum"].as_str()?.to_owned());
    disk.fill();
    for node in 0..2 {
        eventually("every node to count without it", async || {
            quorum(node).await.filter(|said| said.contains("can lose 0 more"))
        })
        .await;
    }
    let shown = run_cli(["cluster", "status", "--server", &cluster.nodes[0].url]).await;
    assert!(shown.stdout.contains("of no use to a quorum: the disk is full"), "{shown:?}");
    let to = full.to_string();
    let refused = run_cli(["cluster", "transfer-leader", "--to", &to, "--server", &cluster.nodes[0].url]).await;
    assert!(refused.code != 0 && refused.stderr.contains("the disk is full"), "{refused:?}");
    for round in 0..5 {
        let message = text_message(&format!("m-{round}"), &"x".repeat(100_000));
        let task = cluster.nodes[round % 2].agent("speaker").send(message).await.unwrap();
        assert_eq!(state_of(&task), "TASK_STATE_COMPLETED");
    }
    disk.empty();
    let list = eventually("the full node to catch up", async || {
        let list = cluster.nodes[2].agent("speaker").call("ListTasks", json!({})).await.ok()?;
        (list["totalSize"] == 5).then_some(list)
    })
    .await;
    assert_eq!(list["tasks"].as_array().unwrap().len(), 5);
    cluster.nodes[2].kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_disk_is_full_hands_over_each_time() {
    let (cluster, disk, _model) = third_on_a_small_disk().await;

    let third = cluster.nodes[2].id;
    for round in 0..2 {
        eventually("it to lead", async || {
            run_cli(["cluster", "transfer-leader", "--to", &third.to_string(), "--server", &cluster.nodes[0].url])
                .await;
            (cluster.leader().await == third).then_some(())
        })
        .await;
        disk.fill();
        let handed_over = eventually("another to lead", async || (cluster.leader().await != third).then_some(()));
        tokio::time::timeout(HANDED_OVER_WITHIN, handed_over).await.expect("it does not wait since it did so before");
        let message = text_message(&format!("m-{round}"), "speak");
        let task = cluster.nodes[round].agent("speaker").send(message).await.unwrap();
        assert_eq!(state_of(&task), "TASK_STATE_COMPLETED");
        disk.empty();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_a_full_node_cannot_keep_is_shown_by_it_all_the_same() {
    let (mut cluster, disk, _model) = third_on_a_small_disk().await;
    // It goes on with its log, and has no room beside it.
    disk.fill_up_to(ROOM_FOR_RUNNING);
    let content: Vec<u8> = made_bytes(2 * 1024 * 1024 + 5).flatten().collect();
    let uploaded = http_client().post(format!("{}/blobs", cluster.nodes[0].url)).body(content.clone());
    let uploaded: Value = uploaded.send().await.unwrap().json().await.unwrap();
    let hash = uploaded["hash"].as_str().unwrap_or_else(|| panic!("{uploaded}"));
    let url = format!("{}/blobs/{hash}", cluster.nodes[2].url);
    let read = async |range: Option<&str>| {
        let request = range.iter().fold(http_client().get(&url), |request, range| request.header("range", *range));
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.bytes().await.unwrap())
    };
    let (status, whole) = read(None).await;
    assert!(status == 200 && whole == content, "{status}, {} bytes", whole.len());
    let (status, piece) = read(Some("bytes=1500000-1500009")).await;
    assert_eq!((status, &piece[..]), (206, &content[1_500_000..1_500_010]), "also from the middle");
    let kept = cluster.nodes[2].data().join("blobs").join(&hash[..2]).join(&hash[2..]);
    assert!(!kept.exists(), "and it is not kept");
    cluster.nodes[2].kill().await;
}

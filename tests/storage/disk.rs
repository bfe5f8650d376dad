//! Disks that fail: what a node does, and what it says. Each test has a file system of its own, which needs root.

use serde_json::{Value, json};
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use towline_tests::{Answer, FakeModel, TestNode, http_client, state_of, text_message};

const SPEAKER: &str = "agents:\n  - { name: speaker, description: S., instruction: S. }\n";

/// A node that has lost its disk answers no more; its client need not wait for it.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_fsync_ends_the_node_and_what_was_confirmed_is_there_when_it_is_started_again() {
    let model = FakeModel::start(|_| Answer::say("spoken")).await;
    let folder = tempfile::tempdir().unwrap();
    let (mut node, disk, done) = node_with_a_task(folder.path(), &model).await;

    disk.fail();
    let speaker = node.agent("speaker");
    // Large enough to need blocks that the disk does not have, in parts that are small enough for the log.
    let parts: Vec<Value> = (0..200).map(|_| json!({ "text": "x".repeat(15_000) })).collect();
    let message = json!({ "messageId": "m-2", "role": "ROLE_USER", "parts": parts });
    let sent = tokio::time::timeout(ANSWER_WITHIN, speaker.send(message)).await;
    assert!(!matches!(sent, Ok(Ok(_))), "what the disk refused is not confirmed: {sent:?}");
    assert_eq!(node.ended().await, Some(1));
    assert!(node.log_text().contains("log can no longer be written"), "{}", node.log_text());

    disk.heal();
    node.start(None);
    node.ready().await;
    assert_eq!(node.agent("speaker").get(done["id"].as_str().unwrap()).await.unwrap(), done);
    let again = node.agent("speaker").send(text_message("m-3", "speak")).await.unwrap();
    assert_eq!(state_of(&again), "TASK_STATE_COMPLETED");
    node.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn content_for_which_the_disk_has_no_room_is_refused_and_the_log_keeps_its_reserve() {
    let model = FakeModel::start(|_| Answer::say("spoken")).await;
    let folder = tempfile::tempdir().unwrap();
    let mut node = TestNode::new(folder.path(), "a", 8, &(model.config() + SPEAKER));
    let _disk = SmallDisk::mount(&node.data());
    node.init().await;
    node.start(None);
    node.ready().await;
    let upload = async |mebibytes: usize| {
        let pieces = (0..mebibytes).map(|_| Ok::<_, std::io::Error>(vec![7; 1 << 20]));
        let body = reqwest::Body::wrap_stream(futures::stream::iter(pieces));
        http_client().post(format!("{}/blobs", node.url)).body(body).send().await.unwrap()
    };

    let refused = upload(SMALL_DISK_MIB).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    let said: Value = refused.json().await.unwrap();
    assert!(said["error"]["message"].as_str().unwrap().contains("are kept for the log"), "{said}");
    let announced = http_client().post(format!("{}/blobs", node.url)).body(vec![7; SMALL_DISK_MIB << 20]);
    if let Ok(answer) = announced.send().await {
        assert_eq!(answer.status(), 503, "it is refused before it has come");
    }

    assert_eq!(upload(8).await.status(), 201, "nothing is left of what was refused");
    let done = node.agent("speaker").send(text_message("m-1", "speak")).await.unwrap();
    assert_eq!(state_of(&done), "TASK_STATE_COMPLETED");
    node.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_on_a_read_only_disk_says_so_and_does_not_start() {
    let model = FakeModel::start(|_| Answer::say("spoken")).await;
    let folder = tempfile::tempdir().unwrap();
    let (mut node, disk, done) = node_with_a_task(folder.path(), &model).await;
    node.kill().await;

    disk.remount("ro");
    node.start(None);
    assert_eq!(node.ended().await, Some(1));
    assert!(node.log_text().contains("Read-only file system"), "{}", node.log_text());

    disk.remount("rw");
    node.start(None);
    node.ready().await;
    assert_eq!(node.agent("speaker").get(done["id"].as_str().unwrap()).await.unwrap(), done);
    node.kill().await;
}

/// A node that runs on a disk of its own, and the task that it has finished.
async fn node_with_a_task(folder: &Path, model: &FakeModel) -> (TestNode, FailingDisk, Value) {
    let mut node = TestNode::new(folder, "a", 8, &(model.config() + SPEAKER));
    let disk = FailingDisk::mount(folder, &node.data());
    node.init().await;
    node.start(None);
    node.ready().await;
    let done = node.agent("speaker").send(text_message("m-1", "speak")).await.unwrap();
    (node, disk, done)
}

const SMALL_DISK_MIB: usize = 64;

/// A disk with little room. Unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Self {
        fs::create_dir_all(at).unwrap();
        let size = format!("size={SMALL_DISK_MIB}m");
        run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", at.to_str().unwrap()]);
        Self(at.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()) || std::thread::panicking(), "unmount {:?}", self.0);
    }
}

/// A file system in a sparse image on a small disk: when that is full, what the file system took cannot be written back,
/// and `fsync` says so. Unmounted on drop.
struct FailingDisk {
    mounted: PathBuf,
    below: PathBuf,
}

impl FailingDisk {
    fn mount(folder: &Path, at: &Path) -> Self {
        let below = folder.join("below");
        fs::create_dir_all(&below).unwrap();
        fs::create_dir_all(at).unwrap();
        run("mount", &["-t", "tmpfs", "-o", "size=64m", "tmpfs", below.to_str().unwrap()]);
        let disk = Self { mounted: at.to_owned(), below };
        let image = disk.below.join("image");
        File::create(&image).unwrap().set_len(512 << 20).unwrap();
        run("mkfs.ext4", &["-q", "-F", "-O", "^has_journal", image.to_str().unwrap()]);
        run("mount", &["-o", "loop", image.to_str().unwrap(), at.to_str().unwrap()]);
        // The root of a new file system is not empty.
        fs::remove_dir(at.join("lost+found")).unwrap();
        disk
    }

    fn fail(&self) {
        let mut filler = File::create(self.below.join("filler")).unwrap();
        for size in [1 << 20, 1 << 12, 1] {
            while filler.write_all(&vec![b'x'; size]).is_ok() {}
        }
    }

    fn heal(&self) {
        fs::remove_file(self.below.join("filler")).unwrap();
    }

    fn remount(&self, mode: &str) {
        run("mount", &["-o", &format!("remount,{mode}"), self.mounted.to_str().unwrap()]);
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        for at in [&self.mounted, &self.below] {
            let unmounted = Command::new("umount").arg("--lazy").arg(at).status();
            assert!(unmounted.is_ok_and(|status| status.success()) || std::thread::panicking(), "unmount {at:?}");
        }
    }
}

fn run(program: &str, arguments: &[&str]) {
    let ran = Command::new(program).args(arguments).output().unwrap();
    assert!(ran.status.success(), "{program} {arguments:?} (needs root): {}", String::from_utf8_lossy(&ran.stderr));
}

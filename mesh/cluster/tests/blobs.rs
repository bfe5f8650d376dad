//! Content that is too large for the log: on a majority before it is named, whole whoever is asked, and gone once nothing
//! names it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use support::*;
use towline_cluster::{BlobError, ClusterHandle};
use towline_core::{BlobForm, BlobHash, Command, Content, NodeRole, Part, Principal, Proposal};

const LENGTH: usize = 3 * 1024 * 1024 + 17;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_survives_the_node_that_took_it() {
    let mut cluster = TestCluster::of(3).await;
    let content = content(LENGTH);
    let hash = cluster.nodes[0].handle().keep_content(content.clone().into()).await.unwrap();
    let holders = cluster.nodes.iter().filter(|node| file(node.data(), hash).exists()).count();
    assert!(holders >= 2, "{holders} of three nodes hold it");

    cluster.nodes[0].stop().await;

    for handle in cluster.running() {
        assert_eq!(read(&handle, hash).await.unwrap(), content, "node {}", handle.node_id());
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_only_one_of_three_nodes_can_hold_is_not_kept() {
    let mut cluster = TestCluster::of(3).await;
    cluster.nodes[1].stop().await;
    cluster.nodes[2].stop().await;
    let kept = cluster.nodes[0].handle().keep_content(content(20_000).into()).await;
    let Err(BlobError::NoMajority { reason }) = kept else { panic!("{kept:?}") };
    assert!(reason.contains("node"), "{reason}");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_copy_is_mended_from_another_node() {
    let mut cluster = TestCluster::of(3).await;
    let content = content(LENGTH);
    let handle = cluster.nodes[0].handle();
    let hash = handle.keep_content(content.clone().into()).await.unwrap();
    let own = file(cluster.nodes[0].data(), hash);
    let good = fs::read(&own).unwrap();
    for at in [5, LENGTH / 2, LENGTH + 3, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&own, &bad).unwrap();
        assert_eq!(read(&handle, hash).await.unwrap(), content, "byte {at}");
        assert!(fs::read(&own).unwrap() == good, "byte {at} is mended on disk");
    }
    fs::remove_file(&own).unwrap();
    cluster.nodes[0].stop().await;
    cluster.nodes[0].start().await;
    assert_eq!(read(&cluster.nodes[0].handle(), hash).await.unwrap(), content);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_away_fetches_what_was_named_meanwhile() {
    let mut cluster = TestCluster::of(3).await;
    let away = (cluster.leader().await + 1) % 3;
    cluster.nodes[away].stop().await;
    let writer = cluster.running().next().unwrap();
    let hash = upload(&writer, &content(LENGTH)).await;

    cluster.nodes[away].start().await;

    let copy = file(cluster.nodes[away].data(), hash);
    wait_until("the copy of the node that was away", || copy.exists()).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_come_back_as_they_were() {
    let cluster = TestCluster::of(1).await;
    let handle = cluster.nodes[0].handle();
    let data = serde_json::json!({ "b": "x".repeat(20_000), "a": 1 });
    let proposal = submit(new_task(), handle.node_id());
    let Command::Submit(submission) = proposal.command else { unreachable!() };
    let mut message = submission.message;
    message.parts = vec![Part::text("small"), Part::text("y".repeat(20_000)), Part::data(data)];
    message.parts.push(Part { content: Content::Raw(content(20_000)), ..Part::text("") });
    let before = message.clone();

    handle.keep_message(&mut message).await.unwrap();

    let named: Vec<BlobForm> = message.blobs().map(|blob| blob.form).collect();
    assert_eq!(named, [BlobForm::Text, BlobForm::Data, BlobForm::Raw]);
    assert_eq!(message.size(), before.size());
    let kept = message.clone();
    handle.show_parts(message.parts.iter_mut().collect(), 1024 * 1024).await.unwrap();
    assert_eq!(message, before);
    let mut again = before.clone();
    handle.keep_message(&mut again).await.unwrap();
    assert_eq!(again, kept, "the same message gets the same names");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nothing_names_is_removed_a_day_after_it_was_written() {
    let cluster = TestCluster::of(1).await;
    let handle = cluster.nodes[0].handle();
    let fresh = handle.keep_content(content(20_000).into()).await.unwrap();
    let old = handle.keep_content(content(20_001).into()).await.unwrap();
    let named = upload(&handle, &content(20_002)).await;
    for hash in [old, named] {
        let file = fs::OpenOptions::new().append(true).open(file(cluster.nodes[0].data(), hash)).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    }
    let path = |hash| file(cluster.nodes[0].data(), hash);
    handle.keep_unnamed_for(Duration::ZERO);
    wait_until("the old one to be removed", || !path(old).exists()).await;
    assert!(path(fresh).exists(), "it may be about to be named");
    assert!(path(named).exists(), "it is named");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voter_is_made_only_once_a_majority_of_the_voters_holds_what_is_named() {
    let mut cluster = TestCluster::of(1).await;
    let hash = upload(&cluster.nodes[0].handle(), &content(LENGTH)).await;
    let (own, aside) = (file(cluster.nodes[0].data(), hash), cluster.nodes[0].data().join("aside"));
    cluster.nodes[0].stop().await;
    fs::rename(&own, &aside).unwrap();
    cluster.nodes[0].start().await;
    cluster.nodes[0].register().await;

    cluster.join(0, NodeRole::Voter).await;

    let first = cluster.nodes[0].handle();
    wait_until("the change to wait", || first.status().waits_for_content.is_some()).await;
    let reason = first.status().waits_for_content.unwrap();
    assert!(reason.contains("named content"), "{reason}");
    assert_eq!(first.status().members.iter().filter(|member| member.voting).count(), 1);

    drop(first);
    cluster.nodes[0].stop().await;
    fs::rename(&aside, &own).unwrap();
    cluster.nodes[0].start().await;
    cluster.nodes[0].register().await;
    cluster.wait_for_voters(2).await;
    assert!(file(cluster.nodes[1].data(), hash).exists());
    assert_eq!(cluster.nodes[0].handle().status().waits_for_content, None);
    cluster.shutdown().await;
}

/// Keeps content and names it.
async fn upload(handle: &ClusterHandle, content: &[u8]) -> BlobHash {
    let hash = handle.keep_content(content.to_vec().into()).await.unwrap();
    let command = Command::Upload { hash, length: content.len() as u64 };
    handle.propose(Proposal { by: Principal::Operator, command }, None).await.unwrap();
    hash
}

async fn read(handle: &ClusterHandle, hash: BlobHash) -> Result<Vec<u8>, BlobError> {
    handle.open_blob(hash, LENGTH as u64).await?.whole().await
}

fn file(data: &Path, hash: BlobHash) -> PathBuf {
    let name = hash.to_string();
    data.join("blobs").join(&name[..2]).join(&name[2..])
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 5) as u8).collect()
}

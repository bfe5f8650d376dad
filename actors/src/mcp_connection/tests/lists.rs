//! Lists that a server cannot give.

use super::{
    wire::{Get, Reply, Running, initialized},
    *,
};
use std::sync::atomic::AtomicUsize;

#[tokio::test]
async fn resources_that_cannot_be_listed_are_told_apart_and_listed_again_in_a_while() {
    let asked = AtomicUsize::new(0);
    let server = Running::start(Get::NotAllowed, move |message| match message["method"].as_str().unwrap() {
        "initialize" => Some(initialized("2025-11-25", json!({ "resources": {} }))),
        "resources/list" if asked.fetch_add(1, Ordering::Relaxed) < 2 => Some(Reply::Error(-32603, "the disk is gone")),
        "resources/list" => Some(Reply::Result(json!({ "resources": [{ "uri": "file:///a", "name": "A" }] }))),
        _ => None,
    })
    .await;
    let handle = server.connect(server.config()).await;
    let unlisted = handle.status().unlisted;
    assert!(unlisted["resources"].contains("the disk is gone"), "{unlisted:?}");
    let mut published = handle.published.clone();
    let listed = published.wait_for(|now| now.resources.len() == 1);
    tokio::time::timeout(WITHIN, listed).await.expect("they are listed").unwrap();
    assert!(handle.status().unlisted.is_empty());
    handle.stop().await;
}

#[tokio::test]
async fn a_list_that_fails_is_told_what_was_listed_before_stays_and_it_is_asked_for_again_no_sooner_than_in_a_second() {
    let prompts = Arc::new(AtomicUsize::new(0));
    let counted = prompts.clone();
    let server = Running::start(Get::NotAllowed, move |message| match message["method"].as_str().unwrap() {
        "initialize" => Some(initialized("2025-11-25", json!({ "tools": {}, "prompts": {} }))),
        "prompts/list" => Some(match counted.fetch_add(1, Ordering::Relaxed) {
            1 => Reply::Error(-32603, "the disk is gone"),
            _ => Reply::Result(json!({ "prompts": [{ "name": "p" }] })),
        }),
        "tools/call" => Some(Reply::Stream(vec![
            (Duration::ZERO, wire::notification("notifications/prompts/list_changed", json!({}))),
            (Duration::ZERO, wire::result(wire::text("done"))),
        ])),
        _ => None,
    })
    .await;
    let handle = server.connect(server.config()).await;
    let named = async || handle.offers().await.prompts.iter().map(|prompt| prompt["name"].clone()).collect::<Vec<_>>();
    assert_eq!(named().await, ["p"]);
    call(&handle, "work").await.unwrap();
    let mut published = handle.published.clone();
    tokio::time::timeout(WITHIN, published.wait_for(|now| now.catalogue == 2)).await.expect("it is listed").unwrap();
    for _ in 0..3 {
        assert_eq!(named().await, ["p"], "what was listed before stays");
    }
    assert_eq!(prompts.load(Ordering::Relaxed), 2, "and is not asked for again at once");
    let unlisted = handle.status().unlisted;
    assert!(unlisted["prompts"].contains("the disk is gone"), "{unlisted:?}");
    let again = async {
        while !handle.status().unlisted.is_empty() {
            named().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(WITHIN, again).await.expect("it is asked for again");
    assert_eq!(prompts.load(Ordering::Relaxed), 3);
    handle.stop().await;
}

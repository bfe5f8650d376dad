//! What the tools of MCP servers looked like first.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

fn pins(server: &str, hash: &str, replaces: bool) -> Command {
    let tools = [("read".to_owned(), hash.to_owned())].into();
    Command::PinTools(Box::new(PinTools { server: server.to_owned(), tools, replaces }))
}

fn hash(log: &Log, server: &str) -> String {
    log.state.pins(server).unwrap()["read"].clone()
}

#[test]
fn the_first_look_of_any_node_stays_until_an_operator_has_looked_again() {
    let mut log = Log::of_nodes(2);
    assert!(log.state.level() >= Level::PINS);
    let [one, other] = log.node_ids()[..] else { panic!("two nodes") };
    log.node(one, pins("files", "a", false)).unwrap();
    log.node(other, pins("files", "b", false)).unwrap();
    assert_eq!(hash(&log, "files"), "a");
    log.node(one, pins("files", "b", true)).unwrap_err();
    assert_eq!(hash(&log, "files"), "a", "a node does not agree to a change by itself");
    log.operator(pins("files", "b", true)).unwrap();
    assert_eq!(hash(&log, "files"), "b");
    assert_eq!(decode(&encode(&log.state)), log.state);
}

#[test]
fn pins_have_bounds() {
    let mut log = Log::of_nodes(1);
    let many = (0..=limits::MAX_PINNED_TOOLS).map(|no| (no.to_string(), "a".to_owned())).collect();
    let many = PinTools { server: "files".into(), tools: many, replaces: false };
    log.node(1, Command::PinTools(Box::new(many))).unwrap_err();
    log.node(1, pins("files", &"x".repeat(limits::MAX_PIN_BYTES + 1), false)).unwrap_err();
    for no in 0..limits::MAX_PINNED_SERVERS {
        log.node(1, pins(&no.to_string(), "a", false)).unwrap();
    }
    assert!(matches!(log.node(1, pins("one more", "a", false)), Err(Rejection::Full { .. })));
    log.operator(pins("7", "b", true)).unwrap();
}

//! MCP servers that principals make known to their own sessions of the bridge.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

fn named(id: &str, role: PrincipalRole) -> Principal {
    Principal::Named { id: id.parse().unwrap(), role }
}

fn server(id: &str) -> BridgedServer {
    let transport = BridgedTransport::Url {
        url: "https://tools.example/mcp".into(),
        kind: "sse".into(),
        headers: [("authorization".to_owned(), "Bearer s3cret".to_owned())].into(),
    };
    BridgedServer {
        id: id.into(),
        name: "tools".into(),
        transport,
        timeout_s: 300,
        auto_reconnect: true,
        tools: Vec::new(),
        resources: Vec::new(),
    }
}

fn register(log: &mut Log, by: &Principal, server: BridgedServer) -> Result<Applied, Rejection> {
    log.apply(by.clone(), Command::Bridge(Box::new(BridgeChange::Register(server))))
}

#[test]
fn a_server_is_of_its_owner_alone_whatever_the_role_and_is_registered_once() {
    let mut log = Log::of_nodes(1);
    let (ada, bob) = (named("user:ada", PrincipalRole::User), named("user:bob", PrincipalRole::User));
    register(&mut log, &ada, server("files")).unwrap();
    register(&mut log, &ada, server("files")).unwrap();
    let other = BridgedServer { timeout_s: 1, ..server("files") };
    assert!(matches!(register(&mut log, &ada, other.clone()), Err(Rejection::ServerIdInUse { .. })));
    register(&mut log, &bob, other).unwrap();
    let promoted = named("user:ada", PrincipalRole::Operator);
    assert_eq!(log.state.bridged(&promoted, "files").unwrap().timeout_s, 300);
    assert_eq!(log.state.bridged_of(&ada).count(), 1);
    assert_eq!(log.state.bridged_of(&Principal::Operator).count(), 0, "not even the operator's");
    assert_eq!(decode(&encode(&log.state)), log.state);
    let gone = |log: &mut Log| {
        log.apply(ada.clone(), Command::Bridge(Box::new(BridgeChange::Unregister { id: "files".into() }))).unwrap();
    };
    gone(&mut log);
    gone(&mut log);
    assert_eq!((log.state.bridged_of(&ada).count(), log.state.bridged_of(&bob).count()), (0, 1));
}

#[test]
fn servers_have_bounds_by_owner_and_in_size() {
    let mut log = Log::of_nodes(1);
    let ada = named("user:ada", PrincipalRole::User);
    for number in 0..limits::MAX_BRIDGED_OF_ONE {
        register(&mut log, &ada, server(&number.to_string())).unwrap();
    }
    assert!(matches!(register(&mut log, &ada, server("more")), Err(Rejection::Full { .. })));
    let bob = named("user:bob", PrincipalRole::User);
    let large = BridgedServer { name: "x".repeat(limits::MAX_BRIDGED_BYTES), ..server("large") };
    assert!(matches!(register(&mut log, &bob, large), Err(Rejection::TooLarge { .. })));
    let many = BridgedServer { tools: vec!["x".into(); limits::MAX_BRIDGED_ITEMS + 1], ..server("many") };
    assert!(matches!(register(&mut log, &bob, many), Err(Rejection::TooLarge { .. })));
    register(&mut log, &bob, server("one")).unwrap();
}

#[test]
fn nobody_and_nodes_register_nothing_and_no_secret_is_shown() {
    let mut log = Log::of_nodes(1);
    for by in [Principal::Node(NodeId(1)), named("user:eve", PrincipalRole::Anonymous)] {
        assert!(matches!(register(&mut log, &by, server("files")), Err(Rejection::NotAllowed { .. })));
    }
    assert!(!format!("{:?}", server("files")).contains("s3cret"));
}

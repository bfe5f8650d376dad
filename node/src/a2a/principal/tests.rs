use towline_core::{AgentName, NodeId, TaskId};

use super::*;

const HOME: &str = "127.0.0.1:40000";

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap())).collect()
}

fn operator(pairs: &[(&'static str, &str)], peer: Option<&str>) -> Result<(), Refused> {
    local_operator(&headers(pairs), peer.map(|peer| peer.parse().unwrap()), "http://mesh.example:7420")
}

#[test]
fn the_operator_is_let_in_under_the_names_of_this_node() {
    for host in [
        "localhost:7420",
        "LOCALHOST",
        "127.0.0.1:7420",
        "127.1.2.3",
        "[::1]:7420",
        "mesh.example:7420",
        "Mesh.Example",
    ] {
        assert_eq!(operator(&[("host", host)], Some(HOME)), Ok(()), "{host}");
    }
    assert_eq!(operator(&[("host", "localhost")], Some("[::ffff:127.0.0.1]:1")), Ok(()));
}

#[test]
fn another_name_another_machine_or_a_page_is_not_the_operator() {
    for host in [
        "evil.example",
        "evil.example:7420",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.1",
        "",
        "127.0.0.1:80@evil.example",
        "127.0.0.1:7420:1",
        "[::1]evil.example",
        "localhost/evil.example",
        "[::1",
    ] {
        assert_eq!(operator(&[("host", host)], Some(HOME)), Err(Refused::Host { host: host.into() }), "{host}");
    }
    assert_eq!(operator(&[], Some(HOME)), Err(Refused::Host { host: String::new() }));
    assert_eq!(operator(&[("host", "localhost")], Some("10.0.0.1:1")), Err(Refused::NotLoopback));
    assert_eq!(operator(&[("host", "localhost")], None), Err(Refused::NotLoopback));
    for header in FORWARDED {
        let proxied = operator(&[("host", "localhost"), (header, "x")], Some("127.0.0.1:1"));
        assert_eq!(proxied, Err(Refused::Forwarded { header }));
    }
    for origin in ["http://evil.example", "http://localhost:7420", "null"] {
        assert_eq!(operator(&[("host", "localhost"), ("origin", origin)], Some(HOME)), Err(Refused::Origin));
    }
}

#[test]
fn a_public_url_without_a_host_lets_nobody_in_by_name() {
    let peer = Some(HOME.parse().unwrap());
    assert!(local_operator(&headers(&[("host", ":7420")]), peer, "http://:7420").is_err());
    assert!(local_operator(&headers(&[("host", "")]), peer, "").is_err());
}

#[test]
fn a_delegation_acts_for_whom_it_says() {
    let name: AgentName = "surveyor".parse().unwrap();
    let principal = Principal::Agent { name, on_behalf_of: Box::new(Principal::Operator) };
    let task = TaskId::from_uuid(uuid::Uuid::from_u128(5));
    let caller = peer(
        &headers(&[
            ("towline-on-behalf-of", &serde_json::to_string(&principal).unwrap()),
            ("towline-parent-task", &task.to_string()),
            ("towline-parent-step", "3"),
            ("towline-hop", "2"),
            ("towline-deadline-ms", "1500"),
        ]),
        NodeId(4),
    );
    let parent = Some(ParentLink { task, step: StepNo(3) });
    assert_eq!(
        caller,
        Ok(Caller {
            principal,
            parent,
            hop: 2,
            deadline_ms: Some(1_500),
            standing: Standing::unlimited(KnownBy::Mesh)
        })
    );
}

#[test]
fn a_node_without_headers_speaks_for_itself() {
    let caller = peer(&HeaderMap::new(), NodeId(4)).unwrap();
    assert_eq!(caller.principal, Principal::Node(NodeId(4)));
}

#[test]
fn nobody_acts_with_headers_that_cannot_be_read() {
    let on_behalf = ("towline-on-behalf-of", r#""Operator""#);
    for (pairs, header) in [
        (vec![("towline-on-behalf-of", "operator")], ON_BEHALF_OF),
        (vec![("towline-on-behalf-of", r#"{"Node":1}"#)], ON_BEHALF_OF),
        (vec![on_behalf, ("towline-parent-task", "x")], PARENT_TASK),
        (vec![on_behalf, ("towline-parent-step", "1")], PARENT_TASK),
        (vec![on_behalf, ("towline-hop", "-1")], HOP),
        (vec![on_behalf, ("towline-deadline-ms", "soon")], DEADLINE_MS),
    ] {
        assert_eq!(peer(&headers(&pairs), NodeId(4)), Err(Refused::Header { header }), "{pairs:?}");
    }
}

//! What can be asked of a node, and who may: one table for all bindings, the blob door and the operator API.
//!
//! A role says what somebody may do by default, and grants add to it by name or pattern. What is the operator's alone
//! answers to the role: no grant reaches it, not even `*`. What is not in the table is the operator's alone, so that a new
//! way in is closed until it has a line here.

use std::fmt;

use towline_core::PrincipalRole;

/// Something that can be asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// Its name in grants, on the extended card and in refusals.
    pub name: &'static str,
    /// Who may ask it without a grant.
    pub floor: Floor,
    /// How it is asked.
    pub ways: &'static [Way],
}

/// Who may ask for an operation. Operators may always.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Floor {
    /// Users and agents, about what is theirs.
    Everybody,
    /// Users; agents with a grant.
    Users,
    /// Who has a grant.
    Granted,
    /// Nobody else, whatever is granted.
    OperatorOnly,
}

/// One way to ask for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// A method of A2A, over any binding.
    Method(&'static str),
    /// A route over HTTP alone.
    Route(&'static str, &'static str),
}

use Floor::{Everybody, Granted, OperatorOnly, Users};
use Way::{Method, Route};

const fn operation(name: &'static str, floor: Floor, ways: &'static [Way]) -> Operation {
    Operation { name, floor, ways }
}

/// All operations.
pub(crate) static OPERATIONS: [Operation; 50] = [
    operation("message.send", Everybody, &[Method(a2a::methods::SEND_MESSAGE)]),
    operation("message.stream", Everybody, &[Method(a2a::methods::SEND_STREAMING_MESSAGE)]),
    operation("task.get", Everybody, &[Method(a2a::methods::GET_TASK)]),
    operation("task.list", Everybody, &[Method(a2a::methods::LIST_TASKS)]),
    operation("task.cancel", Everybody, &[Method(a2a::methods::CANCEL_TASK)]),
    operation("task.subscribe", Everybody, &[Method(a2a::methods::SUBSCRIBE_TO_TASK)]),
    operation(
        "task.push",
        Everybody,
        &[
            Method(a2a::methods::CREATE_PUSH_CONFIG),
            Method(a2a::methods::GET_PUSH_CONFIG),
            Method(a2a::methods::LIST_PUSH_CONFIGS),
            Method(a2a::methods::DELETE_PUSH_CONFIG),
        ],
    ),
    operation("card.extended", Everybody, &[Method(a2a::methods::GET_EXTENDED_AGENT_CARD)]),
    operation("blob.read", Everybody, &[Route("GET", "/blobs/{task}/{hash}"), Route("GET", "/blobs/{hash}")]),
    operation("blob.upload", Everybody, &[Route("POST", "/blobs"), Route("PUT", "/blobs/{hash}")]),
    operation("agent.list", Users, &[Route("GET", "/api/v1/agents")]),
    operation("cluster.status", Granted, &[Route("GET", "/api/v1/cluster")]),
    operation("mcp.status", Granted, &[Route("GET", "/api/v1/mcp")]),
    operation("mcp.inspect", OperatorOnly, &[Route("GET", "/api/v1/mcp/{server}")]),
    operation("mcp.tail", OperatorOnly, &[Route("GET", "/api/v1/mcp/{server}/tail")]),
    operation(
        "mcp.call",
        OperatorOnly,
        &[
            Route("POST", "/api/v1/mcp/{server}/call"),
            Route("POST", "/api/v1/mcp/{server}/read"),
            Route("POST", "/api/v1/mcp/{server}/prompt"),
        ],
    ),
    operation("task.inspect", OperatorOnly, &[Route("GET", "/api/v1/tasks/{id}")]),
    operation("task.trace", Everybody, &[Route("GET", "/api/v1/tasks/{id}/trace")]),
    operation("task.resolve", OperatorOnly, &[Route("POST", "/api/v1/tasks/{id}/resolve")]),
    operation("cluster.snapshot", OperatorOnly, &[Route("GET", "/api/v1/cluster/snapshot")]),
    operation("cluster.join-token", OperatorOnly, &[Route("POST", "/api/v1/join-tokens")]),
    operation("cluster.remove", OperatorOnly, &[Route("DELETE", "/api/v1/cluster/nodes/{node}")]),
    operation(
        "cluster.role",
        OperatorOnly,
        &[Route("POST", "/api/v1/cluster/nodes/{node}/promote"), Route("POST", "/api/v1/cluster/nodes/{node}/demote")],
    ),
    operation("cluster.drained", Granted, &[Route("GET", "/api/v1/cluster/nodes/{node}/drain")]),
    operation("cluster.drain", OperatorOnly, &[Route("POST", "/api/v1/cluster/nodes/{node}/drain")]),
    operation("cluster.undrain", OperatorOnly, &[Route("POST", "/api/v1/cluster/nodes/{node}/undrain")]),
    operation("cluster.leader", OperatorOnly, &[Route("POST", "/api/v1/cluster/leader")]),
    operation("push.list", Everybody, &[Route("GET", "/api/v1/tasks/{id}/push")]),
    operation("push.totals", Granted, &[Route("GET", "/api/v1/push")]),
    operation("peer.list", Granted, &[Route("GET", "/api/v1/peers")]),
    operation("peer.add", OperatorOnly, &[Route("POST", "/api/v1/peers")]),
    operation("peer.remove", OperatorOnly, &[Route("DELETE", "/api/v1/peers/{name}")]),
    operation("sub.list", Granted, &[Route("GET", "/api/v1/triggers")]),
    operation("sub.add", OperatorOnly, &[Route("POST", "/api/v1/triggers")]),
    operation("sub.remove", OperatorOnly, &[Route("DELETE", "/api/v1/triggers/{name}")]),
    operation("sub.fire", OperatorOnly, &[Route("POST", "/api/v1/triggers/{name}/fire")]),
    operation("auth.device.pending", OperatorOnly, &[Route("GET", "/api/v1/auth/devices")]),
    operation(
        "auth.device.decide",
        OperatorOnly,
        &[Route("POST", "/api/v1/auth/devices/{code}/approve"), Route("POST", "/api/v1/auth/devices/{code}/deny")],
    ),
    operation("auth.sessions", OperatorOnly, &[Route("GET", "/api/v1/auth/sessions")]),
    operation(
        "auth.revoke",
        OperatorOnly,
        &[Route("DELETE", "/api/v1/auth/sessions/{id}"), Route("POST", "/api/v1/auth/sessions/revoke")],
    ),
    operation("events.read", Everybody, &[Route("GET", "/api/v1/events")]),
    operation(
        "a2e.use",
        Everybody,
        &[Route("POST", "/a2e/session"), Route("POST", "/a2e/send"), Route("GET", "/a2e/stream")],
    ),
    operation(
        "mcp.use",
        Everybody,
        &[
            Route("POST", "/mcp"),
            Route("GET", "/mcp"),
            Route("DELETE", "/mcp"),
            Route("GET", "/mcp/sse"),
            Route("POST", "/mcp/messages"),
        ],
    ),
    operation("auth.whoami", Everybody, &[Route("GET", "/api/v1/auth/whoami")]),
    operation("metrics.read", Granted, &[Route("GET", "/metrics")]),
    operation("log.level", OperatorOnly, &[Route("GET", "/api/v1/log/level"), Route("POST", "/api/v1/log/level")]),
    operation("mcp.accept", OperatorOnly, &[Route("POST", "/api/v1/mcp/{server}/accept")]),
    operation(
        "mcp.login",
        OperatorOnly,
        &[Route("POST", "/api/v1/mcp/{server}/login"), Route("POST", "/api/v1/mcp/{server}/login/finish")],
    ),
    operation("doctor.run", OperatorOnly, &[Route("GET", "/api/v1/doctor")]),
    operation("bug-report.read", OperatorOnly, &[Route("GET", "/api/v1/bug-report")]),
];

/// The name of what a method asks for.
pub(super) fn of_method(name: &str) -> Option<&'static str> {
    place_of(|way| matches!(way, Method(method) if *method == name)).map(|place| OPERATIONS[place].name)
}

/// The name of what a path asks for with a verb.
pub(super) fn of_route(verb: &http::Method, path: &str) -> Option<&'static str> {
    let is_way = |way: &Way| matches!(way, Route(method, route) if *method == verb.as_str() && is_on(route, path));
    place_of(is_way).map(|place| OPERATIONS[place].name)
}

/// What a path is about: what stands in it in place of the braces. The code that a device shows is left out: who reads it could
/// sign in by it.
pub(super) fn object_of(path: &str) -> Option<String> {
    let routes = OPERATIONS.iter().flat_map(|operation| operation.ways).filter_map(|way| match way {
        Route(_, route) if is_on(route, path) => Some(*route),
        Route(..) | Method(_) => None,
    });
    // A part that is written out counts more than one in braces.
    let route = routes.min_by_key(|route| route.matches('{').count())?;
    let parts = route.split('/').zip(path.split('/'));
    let named = parts.filter(|(part, _)| part.starts_with('{') && *part != "{code}");
    let named: Vec<String> = named.map(|(_, found)| towline_a2a::shortened(found)).collect();
    (!named.is_empty()).then(|| named.join("/"))
}

/// The place of the operation that a way asks for.
fn place_of(is_way: impl Fn(&Way) -> bool) -> Option<usize> {
    OPERATIONS.iter().position(|operation| operation.ways.iter().any(&is_way))
}

/// What somebody may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permits {
    /// Everything.
    All,
    /// What has its bit, by the place in [`OPERATIONS`].
    Some(u64),
}

impl Permits {
    /// Nothing at all.
    pub const NONE: Permits = Permits::Some(0);

    /// What a role may do, and what was granted beside.
    pub fn of(role: PrincipalRole, grants: &[Grant]) -> Self {
        let by_default = |operation: &Operation| match (role, operation.floor) {
            (PrincipalRole::User, Floor::Everybody | Floor::Users) | (PrincipalRole::Agent, Floor::Everybody) => true,
            (PrincipalRole::Operator | PrincipalRole::Anonymous, _)
            | (PrincipalRole::User, Floor::Granted | Floor::OperatorOnly)
            | (PrincipalRole::Agent, Floor::Users | Floor::Granted | Floor::OperatorOnly) => false,
        };
        let granted = |operation: &Operation| {
            operation.floor != Floor::OperatorOnly && grants.iter().any(|grant| grant.reaches(operation))
        };
        match role {
            PrincipalRole::Operator => Permits::All,
            PrincipalRole::Anonymous => Permits::NONE,
            PrincipalRole::User | PrincipalRole::Agent => {
                let may = |operation: &Operation| by_default(operation) || granted(operation);
                let bits = OPERATIONS.iter().enumerate().filter(|(_, operation)| may(operation));
                Permits::Some(bits.fold(0, |bits, (place, _)| bits | 1 << place))
            }
        }
    }

    /// Whether a method of A2A may be asked.
    pub fn method(self, name: &str) -> bool {
        self.way(|way| matches!(way, Method(method) if *method == name))
    }

    /// Whether a path may be asked with a verb.
    pub fn route(self, verb: &http::Method, path: &str) -> bool {
        // What is answered to HEAD is answered to GET.
        let verb = if verb == http::Method::HEAD { "GET" } else { verb.as_str() };
        self.way(|way| matches!(way, Route(method, route) if *method == verb && is_on(route, path)))
    }

    fn way(self, is_way: impl Fn(&Way) -> bool) -> bool {
        match self {
            Permits::All => true,
            Permits::Some(bits) => place_of(is_way).is_some_and(|place| bits & (1 << place) != 0),
        }
    }

    /// The names of what may be asked, for the extended card.
    pub fn names(self) -> Vec<&'static str> {
        let may = |place: usize| match self {
            Permits::All => true,
            Permits::Some(bits) => bits & (1 << place) != 0,
        };
        OPERATIONS.iter().enumerate().filter(|(place, _)| may(*place)).map(|(_, operation)| operation.name).collect()
    }
}

/// Whether a path is one of a route, in whose braces stands any one part.
fn is_on(route: &str, path: &str) -> bool {
    let (mut parts, mut found) = (route.split('/'), path.split('/'));
    loop {
        match (parts.next(), found.next()) {
            (None, None) => return true,
            (Some(part), Some(found)) if part == found || (part.starts_with('{') && !found.is_empty()) => {}
            (Some(_) | None, Some(_)) | (Some(_), None) => return false,
        }
    }
}

/// What is added to a role: the name of an operation, or a pattern with `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant(String);

impl Grant {
    /// Reads a grant.
    ///
    /// # Errors
    /// When it reaches nothing, or only what no grant can reach: it would read as a control that it is not.
    pub fn parse(text: &str) -> Result<Self, String> {
        let grant = Grant(text.to_owned());
        let mut reached = OPERATIONS.iter().filter(|operation| grant.reaches(operation)).peekable();
        if reached.peek().is_none() {
            let grantable = OPERATIONS.iter().filter(|operation| operation.floor != Floor::OperatorOnly);
            let known: Vec<&str> = grantable.map(|operation| operation.name).collect();
            return Err(format!("{text:?} is no operation; what can be granted is {}", known.join(", ")));
        }
        if reached.all(|operation| operation.floor == Floor::OperatorOnly) {
            return Err(format!(
                "{text:?} is the operator's alone and cannot be granted: give the rule role: operator"
            ));
        }
        Ok(grant)
    }

    fn reaches(&self, operation: &Operation) -> bool {
        glob_match::glob_match(&self.0, operation.name)
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(texts: &[&str]) -> Vec<Grant> {
        texts.iter().map(|text| Grant::parse(text).unwrap()).collect()
    }

    #[test]
    fn a_path_says_what_it_is_about() {
        for (path, object) in [
            ("/api/v1/cluster/nodes/7/drain", Some("7")),
            ("/api/v1/tasks/0198/resolve", Some("0198")),
            ("/blobs/task/hash", Some("task/hash")),
            ("/api/v1/auth/sessions/revoke", None),
            ("/api/v1/auth/devices/BCDF-GHJK/approve", None),
            ("/api/v1/peers", None),
            ("/nowhere", None),
        ] {
            assert_eq!(object_of(path).as_deref(), object, "{path}");
        }
    }

    #[test]
    fn every_operation_has_a_name_and_a_way_of_its_own_and_all_fit_into_the_bits() {
        assert!(OPERATIONS.len() <= 64);
        for (place, operation) in OPERATIONS.iter().enumerate() {
            assert!(!operation.ways.is_empty(), "{}", operation.name);
            for other in &OPERATIONS[place + 1..] {
                assert_ne!(operation.name, other.name);
                assert!(operation.ways.iter().all(|way| !other.ways.contains(way)), "{}", operation.name);
            }
        }
    }

    #[test]
    fn a_role_says_what_may_be_asked_and_a_grant_adds_to_it() {
        let user = Permits::of(PrincipalRole::User, &[]);
        assert!(user.method("SendMessage") && user.route(&http::Method::GET, "/api/v1/agents"));
        assert!(!user.route(&http::Method::GET, "/api/v1/cluster"));
        let agent = Permits::of(PrincipalRole::Agent, &[]);
        assert!(agent.method("SubscribeToTask") && agent.route(&http::Method::HEAD, "/blobs/abc"));
        assert!(!agent.route(&http::Method::GET, "/api/v1/agents"));
        let granted = Permits::of(PrincipalRole::Agent, &grants(&["cluster.status", "agent.*"]));
        assert!(granted.route(&http::Method::GET, "/api/v1/cluster"));
        assert!(granted.route(&http::Method::GET, "/api/v1/agents"));
        assert!(!granted.route(&http::Method::GET, "/api/v1/mcp"));
        assert_eq!(Permits::of(PrincipalRole::Anonymous, &grants(&["*"])), Permits::NONE);
        assert_eq!(Permits::of(PrincipalRole::Operator, &[]), Permits::All);
    }

    #[test]
    fn two_routes_have_no_path_in_common() {
        let routes =
            || OPERATIONS.iter().flat_map(|operation| operation.ways.iter().map(move |way| (operation.name, way)));
        for (name, way) in routes() {
            let Route(verb, path) = way else { continue };
            for (other, way) in routes().filter(|(other, _)| *other != name) {
                let Route(other_verb, route) = way else { continue };
                assert!(verb != other_verb || !is_on(route, path), "{name} and {other}: {path}");
            }
        }
    }

    #[test]
    fn no_grant_reaches_what_is_the_operators_alone() {
        let everything = Permits::of(PrincipalRole::User, &grants(&["*"]));
        for operation in &OPERATIONS {
            for way in operation.ways {
                let may = match way {
                    Method(name) => everything.method(name),
                    Route(verb, path) => everything.route(&verb.parse().unwrap(), path),
                };
                assert_eq!(may, operation.floor != Floor::OperatorOnly, "{}", operation.name);
            }
        }
        for path in ["/api/v1/not/in/the/table", "/api/v1/agents/", "/api/v1/agents/x", "/api/v1", "/blobs/"] {
            assert!(!everything.route(&http::Method::GET, path), "{path}");
        }
        assert!(!everything.method("NotInTheTable"));
    }

    #[test]
    fn a_grant_that_could_never_apply_is_refused() {
        for (text, says) in [
            ("cluster.drain", "operator's alone"),
            ("cluster.r*", "operator's alone"),
            ("cluster.dance", "is no operation"),
            ("", "is no operation"),
        ] {
            assert!(Grant::parse(text).unwrap_err().contains(says), "{text}");
        }
    }
}

//! Where bearers are looked up that this cluster has issued itself.

use std::collections::BTreeMap;

use towline_core::Principal;

/// What is known of a bearer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Known {
    /// It is a live session of this principal. The id of the session goes with what its caller does.
    Session { principal: Principal, id: String },
    /// It has the form of a session's token, and is of none that lives.
    NoSession,
    /// It is no token of a session.
    Foreign,
}

/// Looks up the bearers of sessions. Never waits: a node knows them all.
pub(crate) trait Sessions: Send + Sync {
    /// What is known of a bearer.
    fn look_up(&self, bearer: &str) -> Known;

    /// Whether callers can get a session by asking for one. Then bearers are checked, and nobody is the operator unasked.
    fn are_granted(&self) -> bool {
        true
    }

    /// What a card says about getting one: security schemes by name, in ProtoJSON.
    fn schemes(&self) -> BTreeMap<String, serde_json::Value> {
        BTreeMap::new()
    }
}

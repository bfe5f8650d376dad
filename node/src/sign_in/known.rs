//! What the gate of the public listener asks of sessions.

use std::collections::BTreeMap;

use serde_json::Value;
use towline_core::{PrincipalRole, SecretHash, Session, SessionKind};

use super::{
    SignIns, now,
    secrets::{TOKEN_PREFIX, is_token},
};
use crate::auth::{Known, Sessions};

/// The name of the device grant among the security schemes of a card.
const SCHEME: &str = "device";

impl Sessions for SignIns {
    /// The guard before all routes has asked the cluster for what this node does not know: what it does not know here is none.
    fn look_up(&self, bearer: &str) -> Known {
        if !bearer.starts_with(TOKEN_PREFIX) {
            return Known::Foreign;
        }
        if !is_token(bearer) {
            return Known::NoSession;
        }
        let (token, at) = (SecretHash::of(bearer), now(&self.cluster));
        let known = |session: &Session| Known::Session { principal: session.principal(), id: session.id.to_string() };
        // What the configuration no longer grants is not good any more, however long it was to be.
        let is_granted = |session: &&Session| match session.kind {
            SessionKind::Device => {
                self.settings.enabled && (session.role != PrincipalRole::Operator || self.settings.allow_operator)
            }
            SessionKind::Launch => true,
        };
        self.cluster.local(|state| state.session(&token, at).filter(is_granted).map(known)).unwrap_or(Known::NoSession)
    }

    fn are_granted(&self) -> bool {
        self.settings.enabled
    }

    fn schemes(&self) -> BTreeMap<String, Value> {
        self.security_scheme().map(|scheme| (SCHEME.to_owned(), scheme)).into_iter().collect()
    }
}

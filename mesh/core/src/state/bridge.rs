//! The part of the state that knows the MCP servers which principals made known to their own sessions of the bridge.

use std::{collections::BTreeMap, sync::Arc};

use super::{State, done};
use crate::{
    Applied, BridgeChange, BridgedServer, Principal, Rejection,
    limits::{MAX_BRIDGED, MAX_BRIDGED_OF_ONE},
};

/// When another try is worth it after the list was full: somebody has to unregister one first.
const RETRY_AFTER_MS: u64 = 60_000;

/// By owner and id.
pub(super) type Bridged = BTreeMap<(Principal, String), Arc<BridgedServer>>;

impl State {
    /// The servers that this principal made known, by id.
    pub fn bridged_of(&self, by: &Principal) -> impl Iterator<Item = &Arc<BridgedServer>> {
        let owner = by.owner();
        let first = (owner.clone(), String::new());
        self.bridged.range(first..).take_while(move |((of, _), _)| *of == owner).map(|(_, server)| server)
    }

    /// One of them.
    pub fn bridged(&self, by: &Principal, id: &str) -> Option<&Arc<BridgedServer>> {
        self.bridged.get(&(by.owner(), id.to_owned()))
    }

    pub(super) fn bridge(&mut self, by: &Principal, change: BridgeChange) -> Result<Applied, Rejection> {
        match change {
            BridgeChange::Register(server) => self.register_bridged(by, server),
            BridgeChange::Unregister { id } => {
                self.bridged.remove(&(by.owner(), id));
                Ok(done(Vec::new()))
            }
        }
    }

    fn register_bridged(&mut self, by: &Principal, server: BridgedServer) -> Result<Applied, Rejection> {
        server.check()?;
        if let Some(known) = self.bridged(by, &server.id) {
            let same = **known == server;
            return if same { Ok(done(Vec::new())) } else { Err(Rejection::ServerIdInUse { id: server.id }) };
        }
        let full = |what: &str, limit: usize| Rejection::Full {
            what: what.to_owned(),
            limit: limit as u64,
            retry_after_ms: RETRY_AFTER_MS,
        };
        if self.bridged_of(by).count() >= MAX_BRIDGED_OF_ONE {
            return Err(full("the list of your MCP servers", MAX_BRIDGED_OF_ONE));
        }
        if self.bridged.len() >= MAX_BRIDGED {
            return Err(full("the list of registered MCP servers", MAX_BRIDGED));
        }
        self.bridged.insert((by.owner(), server.id.clone()), Arc::new(server));
        Ok(done(Vec::new()))
    }
}

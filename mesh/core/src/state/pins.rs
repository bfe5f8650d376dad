//! The part of the state that knows what the tools of MCP servers looked like first.

use std::{collections::BTreeMap, sync::Arc};

use super::{State, done};
use crate::{Applied, PinTools, Rejection, limits::MAX_PINNED_SERVERS};

/// When another try is worth it after the list was full: somebody has to free a place.
const RETRY_AFTER_MS: u64 = 3_600_000;

/// Hashes of tools by server and name; shared with the copies that snapshots are made of.
pub(super) type Pins = BTreeMap<String, Arc<BTreeMap<String, String>>>;

impl State {
    /// What the tools of a server looked like when they were pinned.
    pub fn pins(&self, server: &str) -> Option<&BTreeMap<String, String>> {
        self.pins.get(server).map(Arc::as_ref)
    }

    pub(super) fn pin_tools(&mut self, pins: PinTools) -> Result<Applied, Rejection> {
        pins.check()?;
        if self.pins.contains_key(&pins.server) && !pins.replaces {
            return Ok(done(Vec::new()));
        }
        if !self.pins.contains_key(&pins.server) && self.pins.len() >= MAX_PINNED_SERVERS {
            let what = "list of MCP servers whose tools are pinned".to_owned();
            return Err(Rejection::Full { what, limit: MAX_PINNED_SERVERS as u64, retry_after_ms: RETRY_AFTER_MS });
        }
        self.pins.insert(pins.server, Arc::new(pins.tools));
        Ok(done(Vec::new()))
    }
}

//! What the tools of MCP servers looked like when somebody agreed to them: one that becomes another one is told of, also when
//! that happened while no node was up.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::{Rejection, limits};

/// The tools of one server, as they were listed first by any node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinTools {
    /// The server: its name, and what it is reached by, so that another server under the name is another one.
    pub server: String,
    /// A hash of all that is said of each tool, by its name.
    pub tools: BTreeMap<String, String>,
    /// Whether it takes the place of what is known: an operator has looked at it. Else what is known stays.
    pub replaces: bool,
}

impl PinTools {
    /// Checks the bounds.
    ///
    /// # Errors
    /// When it says too much.
    pub(crate) fn check(&self) -> Result<(), Rejection> {
        let too_large = |what: &str, limit: usize| Rejection::TooLarge { what: what.to_owned(), limit: limit as u64 };
        if self.tools.len() > limits::MAX_PINNED_TOOLS {
            return Err(too_large("number of pinned tools of a server", limits::MAX_PINNED_TOOLS));
        }
        let mut texts = self.tools.iter().flat_map(|(name, hash)| [name, hash]).chain([&self.server]);
        if texts.any(|text| text.len() > limits::MAX_PIN_BYTES) {
            return Err(too_large("a name or hash of a pinned tool", limits::MAX_PIN_BYTES));
        }
        Ok(())
    }
}

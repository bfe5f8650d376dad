//! Log messages of other servers on their way to a client: those that it wants.

use serde_json::Value;

/// Key of `_meta` under which a request without a session says what it wants.
pub(super) const META_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// How severe a message is, the least severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Level(usize);

const NAMES: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

impl Level {
    /// What a client with a session is sent that has not said what it wants.
    pub const UNSAID: Self = Self(3);

    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().position(|known| *known == name).map(Self)
    }

    /// Whether who wants this level wants a message.
    pub fn wants(self, message: &Value) -> bool {
        message.get("level").and_then(Value::as_str).and_then(Self::named).is_some_and(|level| level >= self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_client_is_sent_what_is_as_severe_as_it_wants() {
        let warning = Level::named("warning").unwrap();
        assert!(warning.wants(&json!({ "level": "error" })) && warning.wants(&json!({ "level": "warning" })));
        assert!(!warning.wants(&json!({ "level": "info" })) && !warning.wants(&json!({})));
        assert_eq!((Level::named("loud"), Level::UNSAID), (None, warning));
    }
}

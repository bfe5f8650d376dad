//! Typed ids. One macro per kind of id, so that a task id is never passed where a context id is meant.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use uuid::Uuid;

use crate::limits::MAX_ID_CHARS;

/// A string that is not an id of the kind that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {value:?}: {reason}")]
pub struct InvalidId {
    kind: &'static str,
    value: String,
    reason: &'static str,
}

/// Ids that a caller may choose: any printable text up to [`MAX_ID_CHARS`].
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $accepts:expr, $rule:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;

            fn try_from(value: String) -> Result<Self, InvalidId> {
                let accepts: fn(char) -> bool = $accepts;
                let reason = if value.is_empty() {
                    Some("is empty")
                } else if value.chars().count() > MAX_ID_CHARS {
                    Some("is longer than 256 characters")
                } else if !value.chars().all(accepts) {
                    Some($rule)
                } else {
                    None
                };
                match reason {
                    Some(reason) => Err(InvalidId { kind: $kind, value: value.chars().take(64).collect(), reason }),
                    None => Ok(Self(value)),
                }
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(value: &str) -> Result<Self, InvalidId> {
                value.to_owned().try_into()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

/// Ids that a node makes: UUIDs, version 7, so that they sort by the time they were made.
macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(Uuid);

        impl $name {
            /// Wraps a UUID that the caller made.
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The UUID inside.
            pub const fn as_uuid(&self) -> Uuid {
                self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(value: &str) -> Result<Self, InvalidId> {
                Uuid::try_parse(value).map(Self).map_err(|_| InvalidId {
                    kind: $kind,
                    value: value.chars().take(64).collect(),
                    reason: "is not a UUID",
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

uuid_id!(
    /// A task. Made by the node that takes the request.
    TaskId,
    "task id"
);
uuid_id!(
    /// One life of a node process: a new one at each start, so that a restarted node ends its old leases.
    BootId,
    "boot id"
);

fn printable(c: char) -> bool {
    !c.is_control()
}

fn visible(c: char) -> bool {
    c.is_ascii_graphic()
}

fn name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

text_id!(
    /// A conversation that tasks belong to (A2A `contextId`). A client may choose it.
    ContextId,
    "context id",
    printable,
    "has a control character"
);
text_id!(
    /// Something that starts tasks by itself, as its configuration or an operator names it.
    TriggerName,
    "trigger name",
    name_char,
    "may have letters, digits, '-' and '_' only"
);
text_id!(
    /// A message (A2A `messageId`), chosen by its sender; with the sender's principal it is the key of deduplication.
    MessageId,
    "message id",
    printable,
    "has a control character"
);
text_id!(
    /// The name of an agent, unique in the cluster.
    AgentName,
    "agent name",
    name_char,
    "may have letters, digits, '-' and '_' only"
);

text_id!(
    /// Somebody outside the mesh, as a configuration or an approval names them, such as `user:ada` or `ci@example.org`. ASCII
    /// without spaces, so that a header can carry it.
    PrincipalId,
    "principal id",
    visible,
    "may have ASCII letters, digits and signs only, and no space"
);

text_id!(
    /// A session of somebody who signed in: `ds_…` of a device, `ls_…` of a launch. It names the session and opens nothing.
    SessionId,
    "session id",
    name_char,
    "may have letters, digits, '-' and '_' only"
);

/// A node. The log index of its enrolment, so it is never used twice; the first node is 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One of 256 virtual shards, in every task key so that the state can be split later without new keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VShard(pub u8);

impl TaskId {
    /// The shard of this task: its last byte, which is random in a UUID of version 7.
    pub fn vshard(&self) -> VShard {
        VShard(self.0.as_bytes()[15])
    }
}

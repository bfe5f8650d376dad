//! A2A 1.0 as Towline speaks it. Besides the node's listener this is the only place that names the A2A SDK.
//!
//! - [`convert`]: requests and results on the wire (ProtoJSON) ↔ the types of `towline-core`;
//! - [`errors`]: what goes wrong, as the protocol's error objects;
//! - [`client`]: a client that sends, streams, and resumes a stream where it broke.
//!
//! It knows neither the cluster nor the actors, and reads no configuration.

pub mod client;
pub mod convert;
pub mod errors;
mod event_stream;

pub use client::{
    A2aClient, Binding, ClientError, InvalidHeader, ListQuery, RemoteCard, RemoteInterface, RemotePage, SendOptions,
    SendReply, SocketUrl, Terms, TermsRefused, mesh_extension,
};
pub use convert::{Field, RemoteTask, StreamEvent, time_text};
pub use errors::{WireError, shortened};
pub(crate) use event_stream::IDLE_TIMEOUT;
#[doc(hidden)]
pub use event_stream::fuzz as fuzz_event_stream;
pub use event_stream::{EventStream, StreamItem};

/// The path below which a node serves content that is too large for its place.
pub const BLOB_PATH: &str = "/blobs";

/// Where a node with this base URL serves content of a task.
pub fn blob_link(base: &str, task: towline_core::TaskId, hash: towline_core::BlobHash) -> String {
    format!("{base}{BLOB_PATH}/{task}/{hash}")
}

/// Metadata key under which tasks and events carry the index of the last event, which is also the SSE id.
pub const GENERATION_KEY: &str = "dev.towline/generation";

/// Metadata key under which a task says where it stands inside the mesh, for clients that activated it.
pub const ANNOTATIONS_KEY: &str = "dev.towline/annotations";

/// Metadata key of an agent's last message that says: this is a plain reply, as which `SendMessage` shows it.
pub const REPLY_KEY: &str = "dev.towline/reply";

/// Metadata key under which a task names the agent that does it.
pub const AGENT_KEY: &str = "dev.towline/agent";

/// Metadata: what the configuration said of whom the task is for. Shown to operators.
pub const LABELS_KEY: &str = "dev.towline/labels";

/// Metadata key under which a task names its trace.
pub const TRACE_KEY: &str = "dev.towline/traceId";

/// Metadata key under which a task says why it counts as outside input: a list of reasons.
pub const OUTSIDE_INPUT_KEY: &str = "dev.towline/outsideInput";

/// Metadata key under which a task names the one principal that may answer its question.
pub const ASKED_OF_KEY: &str = "dev.towline/askedOf";

/// The protocol version that is spoken.
pub const PROTOCOL_VERSION: &str = "1.0";

//! The pure core of Towline: what is true, and what a command makes of it.
//!
//! [`State::apply`] is total and deterministic. It reads no clock, opens no socket and draws no random number:
//! time and the log index arrive in the [`Stamp`], ids and randomness inside the [`Command`]. The same log
//! therefore gives the same state on every node and after every restart.
//!
//! ```text
//! Proposal { by, command } + Stamp { index, at }  ──State::apply──▶  Ok(Applied { reply, effects }) | Err(Rejection)
//! ```
//!
//! Effects are hints for the shell; the state is the truth. A shell that missed every effect still ends up right by
//! comparing what it runs with [`State::tasks_of`].

mod agent;
mod blob;
mod bridge;
mod budget;
mod chain;
mod chunked;
mod command;
mod content;
mod digest;
mod doubt;
mod effect;
mod enrolment;
mod event;
mod feed;
mod ids;
mod journal;
mod lacking;
mod lease;
mod level;
pub mod limits;
#[doc(hidden)]
pub mod mutants;
mod node;
mod note;
mod peer;
mod pins;
mod policy;
mod principal;
mod sign_in;
mod state;
mod task;
mod trace_context;
mod trigger;
mod webhook;

pub use agent::{Agent, AgentSpec, Placement};
pub use blob::{Blob, BlobForm, BlobHash, InvalidBlobHash};
pub use bridge::{BridgeChange, BridgedServer, BridgedTransport};
pub use budget::{BUDGET_KEY, Budget, DEADLINE_KEY, Spent, deadline_in, granted_in, spent_in};
pub use chain::{CHAIN_KEY, ChainLink, chain_in};
pub use command::{Applied, Command, Proposal, Rejection, Reply};
pub use content::{Artifact, Content, Message, Metadata, Part, Role};
pub use digest::Digest;
pub use doubt::{LateReport, LateResult, Resolution, Resolve, Verdict};
pub use effect::Effect;
pub use enrolment::{Enrolment, JoinToken, NodeCertificate, NodeKey, NodeRole};
pub use event::{Event, EventKind};
pub use feed::{Happening, NodeChange, SignInChange, TaskChange, TaskNews, TriggerNews};
pub use ids::{
    AgentName, BootId, ContextId, InvalidId, MessageId, NodeId, PrincipalId, SessionId, TaskId, TriggerName, VShard,
};
pub use journal::{
    Asked, Doubt, Handover, Intent, Interruption, ModelAnswer, OnAdoption, Outcome, Step, StepNo, StepRecord, ToolCall,
    Usage,
};
pub use lacking::{Lack, Lacking};
pub use lease::{Epoch, Lease, Stamp, Timestamp};
pub use level::{Level, UnknownLevel};
pub use node::{Draining, Labels, Node, NodeAddresses, NodeHealth};
pub use note::Note;
pub use peer::{JoinedAgent, Peer, PeerToken};
pub use pins::PinTools;
pub use principal::{Principal, PrincipalRole};
pub use sign_in::{
    Approval, Approve, Decision, DeviceAsk, DeviceRequest, InvalidUserCode, Revoke, SecretHash, Session, SessionKind,
    SignIn, SignInRejection, UserCode,
};
pub use state::{Founder, ListFilter, Listing, Record, Row, State, Stub, TaskPage};
pub use task::{Adoption, OwnerReport, OwnerWord, ParentLink, Submission, Task, TaskState, TaskStatus, Turn};
pub use trace_context::{InvalidTraceContext, TraceContext};
pub use trigger::{
    Fire, Missed, Occasion, ResourceSource, Schedule, Trigger, TriggerChange, TriggerReport, TriggerSource, TriggerSpec,
};
pub use webhook::{
    FailedCall, Failing, LastAttempt, SetWebhook, Webhook, WebhookAuth, WebhookConfig, WebhookLease, WebhookName,
    WebhookReport, WebhookTotals,
};
